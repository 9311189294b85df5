"""Count documents and bytes by source, domain, licence and other dimensions.

All values are counted before the smallest are merged into one row, so that the order of partitions
does not matter. That takes about 400 bytes of memory per distinct value, and 70 bytes on disk per
distinct value of a batch, for any number of documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import Artifact, Row, Table
from hallmark.tasks.corpus.identities import classify_lengths
from hallmark.tasks.corpus.reading.metadata import LICENCE_FIELD

#: Replaces a null, and all values except the largest.
UNKNOWN_VALUE, OTHER_VALUES = "unknown", "other"

#: Replaces the name of a split for all splits together.
ALL_SPLITS = ""

COUNTS_SCHEMA = pa.schema(
    [
        ("dimension", pa.string()),
        ("value", pa.string()),
        ("split", pa.string()),
        ("documents", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_GROUP_COLUMNS = ["dimension", "value", "split"]


def read_licences_by_source(history: Mapping[str, Artifact]) -> dict[str, str | None]:
    """Read the licence that the config declares for each source that ingest has read."""
    return {
        row["source"]: row["licence"]
        for artifact in history.values()
        if "sources" in artifact.tables
        for row in artifact["sources"].read(["source", "licence"]).to_pylist()
    }


def find_signals(history: Mapping[str, Artifact], column_name: str) -> Table | None:
    """Return the signals of all stages that compute a column as one table; None if none ran."""
    signal_artifacts = [
        artifact
        for artifact in history.values()
        if "signals" in artifact.tables and column_name in artifact["signals"].columns
    ]
    return Table(tuple(signal_artifacts), "signals") if signal_artifacts else None


@dataclass(frozen=True)
class DimensionContext:
    """What is known of a batch of documents besides its columns.

    Attributes:
        text_bytes: Bytes of the texts.
        languages: Languages of the documents, if known.
        licence_by_source: Declared licences, for documents without a licence of their own.
        length_bounds: Limits of the length classes.
    """

    text_bytes: pa.Array
    languages: pa.Array | None
    licence_by_source: Mapping[str, str | None]
    length_bounds: Sequence[int]


def find_languages(documents: pa.RecordBatch, context: DimensionContext) -> pa.Array | None:
    """Return the language of each document; None if no language is known.

    Planted documents are composed in English, after the languages were detected.
    """
    if context.languages is None:
        return None
    is_planted = pc.starts_with(documents["source"], "planted/")
    composed_language = pc.if_else(is_planted, "en", pa.scalar(None, pa.string()))
    return pc.coalesce(context.languages, composed_language)


def find_licences(documents: pa.RecordBatch, context: DimensionContext) -> pa.Array:
    """Return the licence of each document, or else the one that its source declares."""
    declared_licences = pa.array(list(context.licence_by_source.values()), pa.string())
    licence_indices = pc.index_in(
        documents["source"], value_set=pa.array(context.licence_by_source, pa.string())
    )
    document_licences = pc.map_lookup(documents["metadata"], pa.scalar(LICENCE_FIELD), "first")
    return pc.coalesce(document_licences, declared_licences.take(licence_indices))


#: The functions that return the value of each document, by dimension; None if nothing is known. To
#: break the corpus down by another property, on the datasheet too, add it here.
DIMENSIONS: dict[str, Callable[[pa.RecordBatch, DimensionContext], pa.Array | None]] = {
    "source": lambda documents, context: documents["source"],
    "licence": find_licences,
    "domain": lambda documents, context: documents["domain"],
    "language": find_languages,
    "length": lambda documents, context: classify_lengths(
        context.text_bytes, context.length_bounds
    ),
    "year": lambda documents, context: pc.utf8_slice_codeunits(documents["date"], 0, 4),
}


def count_documents_by_dimension(
    documents: pa.RecordBatch, context: DimensionContext
) -> Iterator[pa.Table]:
    """Yield rows of COUNTS_SCHEMA for a batch of documents, one table per known dimension."""
    for dimension, find_values in DIMENSIONS.items():
        values = find_values(documents, context)
        if values is None:
            continue
        labelled_values = pc.fill_null(
            pc.if_else(pc.equal(values, ""), None, values), UNKNOWN_VALUE
        )
        rows = pa.table(
            {"value": labelled_values, "split": documents["split"], "bytes": context.text_bytes}
        )
        counts = rows.group_by(["value", "split"]).aggregate([("bytes", "count"), ("bytes", "sum")])
        counts = counts.rename_columns(["value", "split", "documents", "bytes"])
        dimension_column = pa.repeat(pa.scalar(dimension), len(counts))
        yield counts.append_column("dimension", dimension_column).select(COUNTS_SCHEMA.names)


def build_composition_rows(counts: pa.Table, max_values_per_dimension: int) -> list[Row]:
    """Build the rows of the ``composition`` table.

    Each dimension has its ``max_values_per_dimension`` largest values by bytes (ties by name) and
    UNKNOWN_VALUE; the rest are merged into OTHER_VALUES.
    """
    counts_by_split = _sum_counts(counts)
    counts_all_splits = _sum_counts(
        counts_by_split.set_column(
            2, "split", pa.repeat(pa.scalar(ALL_SPLITS), len(counts_by_split))
        )
    )
    kept_keys = _select_largest_keys(counts_all_splits, max_values_per_dimension)
    rows = pa.concat_tables([counts_all_splits, counts_by_split])
    keys = pc.binary_join_element_wise(rows["dimension"], rows["value"], "\0")
    is_other = pc.invert(pc.is_in(keys, value_set=kept_keys))
    rows = rows.set_column(1, "value", pc.if_else(is_other, OTHER_VALUES, rows["value"]))
    composition: list[Row] = _sum_counts(rows).to_pylist()
    bytes_by_split: dict[tuple[str, str], int] = {}
    for row in composition:
        key = row["dimension"], row["split"]
        bytes_by_split[key] = bytes_by_split.get(key, 0) + row["bytes"]
    for row in composition:
        total_bytes = bytes_by_split[row["dimension"], row["split"]]
        row["byte_share"] = row["bytes"] / total_bytes if total_bytes else None
    return composition


def _sum_counts(counts: pa.Table) -> pa.Table:
    sums = counts.group_by(_GROUP_COLUMNS).aggregate([("documents", "sum"), ("bytes", "sum")])
    return sums.select([*_GROUP_COLUMNS, "documents_sum", "bytes_sum"]).rename_columns(
        COUNTS_SCHEMA.names
    )


def _select_largest_keys(counts: pa.Table, max_values_per_dimension: int) -> pa.Array:
    """Return "dimension NUL value" of the values that get a row of their own."""
    sorted_counts = counts.sort_by(
        [("dimension", "ascending"), ("bytes", "descending"), ("value", "ascending")]
    )
    is_unknown = pc.equal(sorted_counts["value"], UNKNOWN_VALUE).to_numpy()
    is_ranked = ~is_unknown & ~pc.equal(sorted_counts["value"], OTHER_VALUES).to_numpy()
    dimension_codes = (
        sorted_counts["dimension"].combine_chunks().dictionary_encode().indices.to_numpy()
    )
    rank = np.cumsum(is_ranked)
    dimension_starts = np.flatnonzero(np.diff(dimension_codes, prepend=-1))
    rank_offsets = np.repeat(
        rank[dimension_starts] - is_ranked[dimension_starts],
        np.diff([*dimension_starts, len(dimension_codes)]),
    )
    kept_rows = sorted_counts.filter(
        pa.array(is_unknown | (is_ranked & (rank - rank_offsets <= max_values_per_dimension)))
    )
    return pc.binary_join_element_wise(
        kept_rows["dimension"], kept_rows["value"], "\0"
    ).combine_chunks()
