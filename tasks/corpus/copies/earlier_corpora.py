"""Compare a growing corpus with the documents that it already has.

A growing corpus is a list of additions, each with its own artifacts; earlier artifacts never
change. Each stage that looks for duplicates writes a table ``signatures`` of its kept documents. A
later addition is compared with these tables. Earlier documents rank before all new ones and are
kept. A cluster keeps its id, and so its side of the split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hallmark.tasks.contract import (
    ID_TYPE,
    STAGES,
    Artifact,
    HallmarkError,
    StageConfig,
    Table,
    TablePart,
    column,
    table_schema,
)

UInt64Array = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]

_NORMALISATION_MODULE = "hallmark.tasks.measures.normalised_words"
#: Settings and modules of each stage that must be the same in all additions.
MUST_MATCH_BY_STAGE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deduplicate": ((), (_NORMALISATION_MODULE, "hallmark.tasks.corpus.copies.text_equality")),
    "deduplicate_near": (
        (
            "shingle_unit",
            "shingle_length",
            "bands",
            "rows_per_band",
            "seed",
            "similarity_threshold",
            "cluster_threshold",
        ),
        (_NORMALISATION_MODULE, "hallmark.tasks.corpus.copies.sketches"),
    ),
    "split": (("seed", "validation_share", "holdout_share"), ()),
}


def build_signature_schema(*comparison_columns: pa.Field) -> pa.Schema:
    """Build the schema of a table ``signatures`` with these columns to compare by."""
    return table_schema(
        "Signatures of the kept documents. Documents added to the corpus later are compared with "
        "these signatures to find duplicates.",
        column("doc_id", ID_TYPE, "id", "the document"),
        column(
            "incoming_cluster", ID_TYPE, "id", "id of the document's cluster before the stage ran"
        ),
        column("cluster", ID_TYPE, "id", "id of the document's cluster after the stage ran"),
        *comparison_columns,
        partition_by_doc_id=True,
    )


#: Columns of the tables ``search_summary`` about the comparison with earlier corpora.
EARLIER_SEARCH_COLUMNS = (
    column(
        "earlier_documents",
        pa.int64(),
        "figure",
        "number of documents from earlier corpora that were compared with the new documents",
        unit="documents",
    ),
    column(
        "bridging_documents",
        pa.int64(),
        "figure",
        "number of kept documents that are similar to documents in several clusters from earlier "
        "corpora; each is assigned to the first of these clusters",
        unit="documents",
    ),
)


def check_earlier_compatible(
    earlier_artifact: Artifact, config: StageConfig, expected_stage: str | None = None
) -> None:
    """Check that an earlier artifact can be compared with this config and the present code.

    Raises:
        HallmarkError: if settings or code differ, or the artifact is not from ``expected_stage``.
    """
    if expected_stage and earlier_artifact.stage != expected_stage:
        raise HallmarkError(
            f"{earlier_artifact.name} was given as an earlier corpus but is not an artifact of "
            f"the {expected_stage} stage; use the artifact that {expected_stage} produced for "
            "the earlier corpus"
        )
    setting_names, module_names = MUST_MATCH_BY_STAGE[earlier_artifact.stage]
    if module_names and "signatures" not in earlier_artifact.tables:
        raise HallmarkError(
            f"{earlier_artifact.name} has no 'signatures' table, which is needed to compare "
            "documents; recompute the earlier corpus first"
        )
    earlier_settings = earlier_artifact.manifest["parts"]["config"]
    current_settings = config.model_dump(mode="json")
    for name in setting_names:
        if earlier_settings.get(name) != current_settings[name]:
            raise HallmarkError(
                f"{earlier_artifact.stage}.{name} is {current_settings[name]} but was "
                f"{earlier_settings.get(name)} in the earlier corpus ({earlier_artifact.name}); "
                f"set it to {earlier_settings.get(name)}, or recompute the earlier corpus with "
                f"{current_settings[name]}"
            )
    code_digests = STAGES[earlier_artifact.stage].compute_code_digests()
    for name in module_names:
        if earlier_artifact.manifest["parts"]["code"].get(name) != code_digests[name]:
            raise HallmarkError(
                f"the earlier corpus ({earlier_artifact.name}) was computed with another version "
                f"of the {name} code, so its signatures cannot be compared; recompute the earlier "
                "corpus first"
            )


def concatenate_earlier_tables(earlier_artifacts: Mapping[str, Artifact], table_name: str) -> Table:
    """Return the tables of this name of all earlier artifacts as one table."""
    return Table(tuple(earlier_artifacts.values()), table_name)


class MatchingSignatures(NamedTuple):
    """Hold the rows of a partition of earlier signatures that pass a test."""

    rows: pa.Table
    positions: NDArray[np.int64]
    """Position of each row in the partition, in ascending order."""


def read_matching_signatures(
    partition: TablePart, is_match: Callable[[pa.Table], BoolArray], columns: list[str]
) -> MatchingSignatures:
    """Read the rows of a partition of earlier signatures that pass a test."""
    rows = partition.read(columns)
    positions = np.flatnonzero(is_match(rows))
    return MatchingSignatures(rows.take(pa.array(positions)), positions)


def is_in_sorted(values: np.ndarray, sorted_values: np.ndarray) -> BoolArray:
    """Return which values are among the sorted values."""
    if not len(sorted_values):
        return np.zeros(len(values), bool)
    is_in: BoolArray = (
        sorted_values[np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)]
        == values
    )
    return is_in
