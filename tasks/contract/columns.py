"""What columns are: a schema carries for each its kind, its meaning and its unit.

    PAIRS = table(
        "Verified pairs of near copies.",
        column("left", ID, "id", "the document that was kept"),
        column("similarity", pa.float64(), "figure", "Jaccard similarity", unit="share"),
    )

Documentation, masking and machine-readable cards come from that, nowhere from lists of names. It
stands in the field metadata of the schema and in the manifest of every artifact; the parquet files
hold none of it, so that a better word changes no bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

#: Texts are told apart by whose they are, for what they may hold. ``personal`` may hold personal
#: data in clear, and is shown by no page. A figure is a measured number or count, a label a name
#: given by the project or the config, an id a key of rows or a digest.
ColumnKind = Literal[
    "corpus text", "model text", "audit text", "project text", "id", "label", "figure", "personal"
]
COLUMN_KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)


@dataclass(frozen=True)
class Column:
    """``judged_by`` names the column of the same table whose score says whether a text may be
    shown; a text of the corpus or of a model without one is not shown."""

    name: str
    type: str
    kind: ColumnKind
    meaning: str = ""
    unit: str = ""
    judged_by: str = ""


def column(
    name: str,
    data_type: pa.DataType,
    kind: ColumnKind,
    meaning: str,
    *,
    unit: str = "",
    judged_by: str = "",
) -> pa.Field:
    """A field of a schema that says what it is."""
    if kind not in COLUMN_KINDS:
        raise ValueError(
            f"column {name!r}: {kind!r} is no kind; the kinds are {', '.join(COLUMN_KINDS)}"
        )
    metadata = {"kind": kind, "meaning": meaning, "unit": unit, "judged_by": judged_by}
    return pa.field(name, data_type, metadata={k: v for k, v in metadata.items() if v})


def table_schema(meaning: str, *fields: pa.Field, partition_by: bool = False) -> pa.Schema:
    """A table's schema. ``cut``: it is about documents, sorted by ``doc_id`` and cut like them."""
    return pa.schema(
        fields, metadata={"meaning": meaning, **({"cut": "doc_id"} if partition_by else {})}
    )


def is_partitioned(schema: pa.Schema) -> bool:
    return b"cut" in (schema.metadata or {})


def get_table_meaning(schema: pa.Schema) -> str:
    return (schema.metadata or {}).get(b"meaning", b"").decode()


def describe_columns(schema: pa.Schema) -> list[Column]:
    """What the columns say of themselves; one that says nothing is ``personal``, shown nowhere."""
    columns = []
    for field in schema:
        metadata = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
        attributes = {name: metadata.get(name, "") for name in ("meaning", "unit", "judged_by")}
        kind: Any = metadata.get("kind", "personal")
        columns.append(Column(field.name, str(field.type), kind, **attributes))
    return columns


def columns_to_json(schema: pa.Schema) -> list[dict[str, str]]:
    """For a manifest, see ``from_json``."""
    return [{k: v for k, v in asdict(column).items() if v} for column in describe_columns(schema)]


def columns_from_json(columns: list[dict[str, Any]]) -> dict[str, Column]:
    return {column_fields["name"]: Column(**column_fields) for column_fields in columns}


def strip_metadata(schema: pa.Schema) -> pa.Schema:
    """Names and types alone, as parquet files hold them."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])
