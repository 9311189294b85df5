"""Hash the evidence of a card: the rows of its tables, which a reviewer's decision is bound to.

The hash covers names, types and values, not the bytes of the files. Another version of pyarrow,
other row groups, a new style sheet or a reworded page therefore change nothing.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from hallmark.tasks.contract import Artifact, HallmarkError, to_canonical_json

#: The tables of a card that a decision is about, in the order in which they are hashed.
EVIDENCE_TABLES = ("answers", "figures", "sections", "evidence")

#: First line of what is hashed; changed when the encoding changes.
ENCODING_NAME = b"hallmark evidence 1\n"


def compute_evidence_hash(card: Artifact) -> str:
    """Compute the evidence hash of the artifact of a card.

    Raises:
        HallmarkError: The artifact has none of these tables, or one cannot be read.
    """
    return hash_evidence_tables(
        {name: card[name].read() for name in EVIDENCE_TABLES if name in card.tables}, card.name
    )


def hash_evidence_tables(tables: Mapping[str, pa.Table], card_name: str) -> str:
    """Hash the rows of tables.

    Args:
        tables: The tables by name; others than ``EVIDENCE_TABLES`` are ignored.
        card_name: The name of the card, for errors.

    Raises:
        HallmarkError: There is no table to hash.
    """
    digest = hashlib.sha256(ENCODING_NAME)
    names = [name for name in EVIDENCE_TABLES if name in tables]
    if not names:
        raise HallmarkError(
            f"{card_name} has none of the required tables ({', '.join(EVIDENCE_TABLES)}), so it "
            "is not a card that can be reviewed"
        )
    for name in names:
        table = tables[name]
        columns = [[field.name, _name_type(field.type)] for field in table.schema]
        _add_line(digest, {"table": name, "columns": columns, "rows": len(table)})
        for batch in table.to_batches():
            values_by_column = [values.to_pylist() for values in batch.columns]
            for row in zip(*values_by_column, strict=True):
                _add_line(digest, [_encode_value(value) for value in row])
    return digest.hexdigest()


def _add_line(digest: Any, value: Any) -> None:
    digest.update(to_canonical_json(value) + b"\n")


def _name_type(data_type: pa.DataType) -> str:
    """Name a type independently of how Arrow stores it and of the version of pyarrow."""
    types = pa.types
    if types.is_dictionary(data_type):
        return _name_type(data_type.value_type)
    if types.is_map(data_type):
        return f"map<{_name_type(data_type.key_type)},{_name_type(data_type.item_type)}>"
    if types.is_list(data_type) or types.is_large_list(data_type):
        return f"list<{_name_type(data_type.value_type)}>"
    if types.is_struct(data_type):
        fields = [f"{field.name}:{_name_type(field.type)}" for field in data_type]
        return f"struct<{','.join(fields)}>"
    if types.is_string(data_type) or types.is_large_string(data_type):
        return "string"
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return "binary"
    return str(data_type)


def _encode_value(value: Any) -> Any:
    """Encode a value as JSON without loss; numbers with a fraction in hexadecimal notation."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value.hex()
        case bytes():
            return value.hex()
        case list() | tuple():
            return [*map(_encode_value, value)]
        case dict():
            return {key: _encode_value(item) for key, item in value.items()}
        case datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal() | datetime.timedelta():
            return str(value)
    raise HallmarkError(f"a card cannot contain values of type {type(value).__name__}")
