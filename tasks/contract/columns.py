"""Describe the columns of tables: each has a kind, a meaning and a unit.

    PAIRS = table_schema(
        "Verified pairs of near-duplicates.",
        column("kept_id", ID_TYPE, "id", "the document that was kept"),
        column("similarity", pa.float64(), "figure", "Jaccard similarity", unit="share"),
    )

Documentation, redaction and machine-readable cards are derived from these descriptions. They are
stored in the field metadata of the schema and in the manifest of every artifact, not in the parquet
files, so that rewording one changes no bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

#: Kind of a column. Texts are distinguished by origin, since it decides what they may contain.
#: ``personal``: may contain personal data in clear; pages show only what a document contains, too.
#: ``figure``: a measured number or count. ``label``: a name given by the project or the config.
#: ``id``: a row key or a digest.
ColumnKind = Literal[
    "corpus text", "model text", "audit text", "project text", "id", "label", "figure", "personal"
]
COLUMN_KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)


@dataclass(frozen=True)
class Column:
    """The description of a column.

    Attributes:
        name: Name in the table.
        type: Name of the Arrow type.
        kind: See ``ColumnKind``.
        meaning: The column's meaning, in words.
        unit: Unit of a figure.
        judged_by: Column of the same table whose score decides whether pages show the text. Texts
            of the corpus or of a model without such a column are not shown.
    """

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
    """Create a field of a schema with the metadata of a ``Column``.

    Raises:
        ValueError: The kind is unknown.
    """
    if kind not in COLUMN_KINDS:
        raise ValueError(
            f"column {name!r}: unknown kind {kind!r}; the valid kinds are {', '.join(COLUMN_KINDS)}"
        )
    metadata = {"kind": kind, "meaning": meaning, "unit": unit, "judged_by": judged_by}
    return pa.field(name, data_type, metadata={k: v for k, v in metadata.items() if v})


def table_schema(meaning: str, *fields: pa.Field, partition_by_doc_id: bool = False) -> pa.Schema:
    """Create a table's schema.

    Args:
        meaning: Description of the table.
        fields: Results of ``column``.
        partition_by_doc_id: Whether the table has rows about documents, sorted by ``doc_id`` and
            divided into the same partitions as the documents.
    """
    return pa.schema(
        fields,
        metadata={
            "meaning": meaning,
            **({"partition_by": "doc_id"} if partition_by_doc_id else {}),
        },
    )


def is_partitioned(schema: pa.Schema) -> bool:
    return b"partition_by" in (schema.metadata or {})


def get_table_meaning(schema: pa.Schema) -> str:
    meaning: str = (schema.metadata or {}).get(b"meaning", b"").decode()
    return meaning


def describe_columns(schema: pa.Schema) -> list[Column]:
    """Return the descriptions of all columns; a column without a kind counts as ``personal``."""
    columns = []
    for field in schema:
        metadata = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
        attributes = {name: metadata.get(name, "") for name in ("meaning", "unit", "judged_by")}
        kind: Any = metadata.get("kind", "personal")
        columns.append(Column(field.name, str(field.type), kind, **attributes))
    return columns


def columns_to_json(schema: pa.Schema) -> list[dict[str, str]]:
    """Convert the descriptions of all columns to JSON, for a manifest."""
    return [{k: v for k, v in asdict(column).items() if v} for column in describe_columns(schema)]


def columns_by_name_from_json(columns: list[dict[str, Any]]) -> dict[str, Column]:
    """Convert the output of ``columns_to_json`` to descriptions by name."""
    return {column_fields["name"]: Column(**column_fields) for column_fields in columns}


def strip_metadata(schema: pa.Schema) -> pa.Schema:
    """Reduce a schema to names and types, as parquet files store them."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])
