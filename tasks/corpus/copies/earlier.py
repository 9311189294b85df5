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

from tasks.contract import (
    ID,
    STAGES,
    Artifact,
    HallmarkError,
    Part,
    StageConfig,
    Table,
    column,
    table,
)

UInt64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]

#: By stage what must be the same in all additions: settings, and code that signatures come from.
_NORMALISED = "tasks.measures.words"
SAME: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deduplicate": ((), (_NORMALISED,)),
    "deduplicate_near": (
        ("shingle", "shingle_length", "bands", "rows", "seed", "threshold", "cluster_threshold"),
        (_NORMALISED, "tasks.corpus.copies.sketches"),
    ),
    "split": (("seed", "validation", "holdout"), ()),
}


def signatures(*fields: pa.Field) -> pa.Schema:
    """The schema of a table ``signatures``, with these ``fields`` to compare by."""
    return table(
        "What additions to this corpus are compared with: a row for each document that stayed.",
        column("doc_id", ID, "id", "the document"),
        column("entered", ID, "id", "the cluster with which it came in"),
        column("cluster", ID, "id", "the cluster with which it left"),
        *fields,
        cut=True,
    )


#: Columns of the tables ``search``: what an addition met of the earlier ones.
MET = (
    column("earlier", pa.int64(), "figure", "documents of earlier corpora that were looked at",
           unit="documents"),
    column("bridges", pa.int64(), "figure", "documents that stayed and join clusters of earlier "
           "corpora that are apart; they are in the first of these", unit="documents"),
)  # fmt: skip


def check_alike(earlier: Artifact, config: StageConfig, stage: str | None = None) -> None:
    """HallmarkError where an earlier artifact of a stage was made by what does not go together with
    this config of it, or with the code as it is now; or which is of another ``stage``."""
    if stage and earlier.stage != stage:
        raise HallmarkError(
            f"{earlier.name} was given as an earlier corpus, and is not what {stage} left of one: "
            f"give that"
        )
    settings, modules = SAME[earlier.stage]
    if modules and "signatures" not in earlier.tables:
        raise HallmarkError(f"{earlier.name} has no signatures; make that corpus again first")
    before, now = earlier.manifest["parts"]["config"], config.model_dump(mode="json")
    for name in settings:
        if before.get(name) != now[name]:
            raise HallmarkError(
                f"{earlier.stage}.{name} is {now[name]}, and was {before.get(name)} in the earlier "
                f"corpus ({earlier.name}); set it to {before.get(name)}, or make the earlier one "
                f"again with {now[name]}"
            )
    code = STAGES[earlier.stage].code_digests()
    for name in modules:
        if earlier.manifest["parts"]["code"].get(name) != code[name]:
            raise HallmarkError(
                f"the earlier corpus ({earlier.name}) was made with another version of {name}, so "
                f"its signatures cannot be compared; make it again first"
            )


def tables(earlier: Mapping[str, Artifact], name: str) -> Table:
    """A table of all of them, one behind the other."""
    return Table(tuple(earlier.values()), name)


def met(
    part: Part, test: Callable[[pa.Table], Bools], columns: list[str]
) -> tuple[pa.Table, NDArray[np.int64]]:
    """The rows of a part of earlier signatures that pass a test, and their places in it."""
    rows = part.read(columns)
    places = np.flatnonzero(test(rows))
    return rows.take(pa.array(places)), places


def among(values: np.ndarray, known: np.ndarray) -> Bools:
    """Which values are among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), bool)
    return known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
