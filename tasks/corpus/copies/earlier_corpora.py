"""Earlier corpora: what a corpus that grows must know of the documents that it has already.

A grown corpus is a list of additions, each with artifacts of its own; those of earlier ones are
never changed. Stages that look for duplicates leave a table ``signatures`` of the documents that
they kept. A later addition is compared with these, and earlier documents win: they stand before all
new ones and stay. A cluster keeps the id that it had, and so its side of the split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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

#: By stage what must be the same in all additions: settings, and code that signatures come from.
_NORMALISATION_MODULE = "hallmark.tasks.measures.normalised_words"
MUST_MATCH_BY_STAGE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deduplicate": ((), (_NORMALISATION_MODULE,)),
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
    """The schema of a table ``signatures``, with these ``fields`` to compare by."""
    return table_schema(
        "What additions to this corpus are compared with: a row for each document that stayed.",
        column("doc_id", ID_TYPE, "id", "the document"),
        column("incoming_cluster", ID_TYPE, "id", "the cluster with which it came in"),
        column("cluster", ID_TYPE, "id", "the cluster with which it left"),
        *comparison_columns,
        partition_by=True,
    )


#: Columns of the tables ``search_summary``: what an addition met of the earlier ones.
EARLIER_SEARCH_COLUMNS = (
    column(
        "earlier_documents",
        pa.int64(),
        "figure",
        "documents of earlier corpora that were looked at",
        unit="documents",
    ),
    column(
        "bridging_documents",
        pa.int64(),
        "figure",
        "documents that stayed and join clusters of earlier "
        "corpora that are apart; they are in the first of these",
        unit="documents",
    ),
)


def check_earlier_compatible(
    earlier_artifact: Artifact, config: StageConfig, expected_stage: str | None = None
) -> None:
    """HallmarkError where an earlier artifact of a stage was made by what does not go together with
    this config of it, or with the code as it is now; or which is of another ``stage``."""
    if expected_stage and earlier_artifact.stage != expected_stage:
        raise HallmarkError(
            f"{earlier_artifact.name} was given as an earlier corpus, and is not what "
            f"{expected_stage} left of one: "
            f"give that"
        )
    setting_names, module_names = MUST_MATCH_BY_STAGE[earlier_artifact.stage]
    if module_names and "signatures" not in earlier_artifact.tables:
        raise HallmarkError(
            f"{earlier_artifact.name} has no signatures; make that corpus again first"
        )
    earlier_settings, current_settings = (
        earlier_artifact.manifest["parts"]["config"],
        config.model_dump(mode="json"),
    )
    for name in setting_names:
        if earlier_settings.get(name) != current_settings[name]:
            raise HallmarkError(
                f"{earlier_artifact.stage}.{name} is {current_settings[name]}, and was "
                f"{earlier_settings.get(name)} in the earlier "
                f"corpus ({earlier_artifact.name}); set it to {earlier_settings.get(name)}, "
                f"or make the earlier one "
                f"again with {current_settings[name]}"
            )
    code_digests = STAGES[earlier_artifact.stage].compute_code_digests()
    for name in module_names:
        if earlier_artifact.manifest["parts"]["code"].get(name) != code_digests[name]:
            raise HallmarkError(
                f"the earlier corpus ({earlier_artifact.name}) was made with another version "
                f"of {name}, so "
                f"its signatures cannot be compared; make it again first"
            )


def concatenate_earlier_tables(earlier_artifacts: Mapping[str, Artifact], table_name: str) -> Table:
    """A table of all of them, one behind the other."""
    return Table(tuple(earlier_artifacts.values()), table_name)


def read_matching_earlier(
    partition: TablePart, is_match: Callable[[pa.Table], BoolArray], columns: list[str]
) -> tuple[pa.Table, NDArray[np.int64]]:
    """The rows of a part of earlier signatures that pass a test, and their places in it."""
    rows = partition.read(columns)
    positions = np.flatnonzero(is_match(rows))
    return rows.take(pa.array(positions)), positions


def is_in_sorted(values: np.ndarray, sorted_values: np.ndarray) -> BoolArray:
    """Which values are among the known ones, which are sorted."""
    if not len(sorted_values):
        return np.zeros(len(values), bool)
    return (
        sorted_values[np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)]
        == values
    )
