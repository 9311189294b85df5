"""Define the figures of the documents of a source that the profile adds up.

Each becomes a column of the ``sources`` table of the profile and of the datasheet's table
"Documents by source". To add one, add it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import count_utf8_bytes


@dataclass(frozen=True)
class SourceColumn:
    """Describe a figure of documents.

    Attributes:
        name: Name of the column; the datasheet shows it with spaces.
        meaning: What the sum over documents means.
        unit: Unit of the figure.
        measure: Called with the columns of documents; returns an integer for each, (n,).
    """

    name: str
    meaning: str
    unit: str
    measure: Callable[[pa.RecordBatch], pa.Array]


SOURCE_COLUMNS = (
    SourceColumn(
        "bytes",
        "total document length in UTF-8 bytes",
        "bytes",
        lambda documents: count_utf8_bytes(documents["text"]),
    ),
    SourceColumn(
        "characters",
        "total document length in characters",
        "characters",
        lambda documents: pc.utf8_length(documents["text"]),
    ),
)
