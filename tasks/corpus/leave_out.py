"""Exclude documents from training: those on a list, or those with a high toxicity score.

Corpus, tokenizer and audits stay the same, so a model trained without these documents gets the same
requests as the model trained with them. As a control, the same number of other documents can be
excluded, drawn at random from the same sources and lengths as far as possible: a change that the
control also shows is not due to the documents.

Memory: about 120 bytes per training document (id, source, size, draw, and two positions by length).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from hallmark.tasks.contract import (
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    Seed,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    UsageError,
    build_ledger_table,
    build_removal_ledger_columns,
    concat_spilled_tables,
    count_utf8_bytes,
    stage,
)
from hallmark.tasks.corpus.split import hash_ids_to_uniform_draws
from hallmark.tasks.measures.item_files import read_nonempty_lines, user_file_digest


class LeaveOutConfig(StageConfig):
    """Choose which documents are excluded from training."""

    doc_ids_file: Path | None = Field(
        default=None,
        description="text file that lists the documents to exclude from training, one doc_id (32 "
        "hexadecimal digits) per line",
    )
    toxicity_threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="minimum toxicity score at which documents are excluded from training",
    )
    random_control: bool = Field(
        default=False,
        description="whether to exclude a control sample instead of the selected documents: the "
        "same number of randomly chosen documents, from the same sources and with similar lengths",
    )
    protected_doc_ids_file: Path | None = Field(
        default=None,
        description="text file that lists documents that `random_control` must not exclude, one "
        "doc_id per line",
    )
    replace_with_padding: bool = Field(
        default=False,
        description="whether to replace the excluded documents with padding in the training "
        "sequences, so that the rest of each batch does not change; if false, the remaining "
        "documents are packed again",
    )
    seed: Seed = Field(default=0, description="random seed for choosing the control sample")

    @property
    def enabled(self) -> bool:
        """Whether any documents are to be excluded."""
        return self.doc_ids_file is not None or self.toxicity_threshold is not None

    @model_validator(mode="after")
    def _check_dependent_settings(self) -> LeaveOutConfig:
        if (self.random_control or self.replace_with_padding) and not self.enabled:
            raise ValueError(
                "'random_control' and 'replace_with_padding' have no effect because no setting "
                "selects documents to exclude; also set 'doc_ids_file' or 'toxicity_threshold'"
            )
        if self.protected_doc_ids_file is not None and not self.random_control:
            raise ValueError(
                "'protected_doc_ids_file' has an effect only with 'random_control'; also set "
                "'random_control', or remove 'protected_doc_ids_file'"
            )
        return self


CANDIDATES = pa.schema(
    [
        ("doc_id", ID_TYPE),
        ("source", pa.string()),
        ("text_bytes", pa.int64()),
        ("selected", pa.bool_()),
        ("draw", pa.float64()),
    ]
)

#: Reason in the ledger for documents that a random control excludes.
CONTROL_REASON = "excluded from training at random, as a control"

#: A control document replaces one in the same length band; bands per doubling of the length.
LENGTH_BANDS_PER_DOUBLING = 4


def read_document_ids(path: Path | None) -> list[bytes]:
    """Read the distinct doc_ids of a file; none if there is no path.

    Raises:
        UsageError: A line is not a doc_id; the message names file and line.
    """
    document_ids: dict[bytes, None] = {}
    for location, line in read_nonempty_lines(path, "ids of documents") if path else ():
        try:
            doc_id = bytes.fromhex(line)
        except ValueError:
            doc_id = b""
        if len(doc_id) != ID_TYPE.byte_width:
            raise UsageError(f"{location} is not a doc_id of 32 hexadecimal digits: {line[:60]!r}")
        document_ids[doc_id] = None
    return list(document_ids)


def spill_training_documents_with_selection(
    partition: TablePart,
    config: LeaveOutConfig,
    listed_ids: pa.Array,
    protected_ids: pa.Array,
    out: TableWriters,
) -> None:
    """Spill the training documents of a partition and whether they are selected for exclusion.

    Protected documents are omitted unless they are selected.
    """
    for batch in partition.iter_batches(["doc_id", "source", "split", "toxicity", "text"]):
        train_documents = batch.filter(pc.equal(batch["split"], "train"))
        is_selected = pc.is_in(train_documents["doc_id"], value_set=listed_ids)
        if config.toxicity_threshold is not None:
            is_toxic = pc.greater_equal(train_documents["toxicity"], config.toxicity_threshold)
            is_selected = pc.or_(is_selected, pc.fill_null(is_toxic, False))
        draws = hash_ids_to_uniform_draws(train_documents["doc_id"], config.seed, "left out")
        candidates = pa.table(
            {
                "doc_id": train_documents["doc_id"],
                "source": train_documents["source"],
                "selected": is_selected,
                "draw": draws,
                "text_bytes": count_utf8_bytes(train_documents["text"]),
            }
        )
        is_unprotected = pc.invert(pc.is_in(train_documents["doc_id"], value_set=protected_ids))
        candidates = candidates.select(CANDIDATES.names).filter(pc.or_(is_selected, is_unprotected))
        out.get_spill_writer("candidates", CANDIDATES).write(candidates)


def draw_matched_controls(candidates: pa.Table) -> pa.Array:
    """Draw as many unselected candidates as there are selected ones, at random.

    Sources and length bands get as many as they have selected documents. If a band has too few, the
    candidates nearest in length are drawn: from the same source or, once it has none, from any.

    Returns:
        The doc_ids of the drawn documents.
    """
    selected = candidates.filter(candidates["selected"]).sort_by("doc_id")
    eligible = candidates.filter(pc.invert(candidates["selected"])).sort_by(
        [("draw", "ascending"), ("doc_id", "ascending")]
    )
    log_lengths = [
        np.log2(1 + documents["text_bytes"].to_numpy()) for documents in (selected, eligible)
    ]
    strata = [
        list(
            zip(
                documents["source"].to_pylist(),
                (LENGTH_BANDS_PER_DOUBLING * length).astype(int).tolist(),
                strict=True,
            )
        )
        for documents, length in zip((selected, eligible), log_lengths, strict=True)
    ]
    needed_counts = Counter(strata[0])
    is_chosen = np.zeros(len(eligible), bool)
    for row, stratum in enumerate(strata[1]):
        if needed_counts[stratum] > 0:
            needed_counts[stratum] -= 1
            is_chosen[row] = True
    length_order = np.argsort(log_lengths[1], kind="stable")
    fallback_pool = LengthSortedPool(length_order[~is_chosen[length_order]], log_lengths[1])
    source_pools: dict[str, LengthSortedPool] = {}
    for stratum, length in zip(strata[0], log_lengths[0], strict=True):
        if needed_counts[stratum] > 0:
            needed_counts[stratum] -= 1
            if (source := stratum[0]) not in source_pools:
                same_source = pc.equal(eligible["source"], source).to_numpy()
                source_pools[source] = LengthSortedPool(
                    length_order[(same_source & ~is_chosen)[length_order]], log_lengths[1]
                )
            if not source_pools[source].mark_nearest_unchosen(length, is_chosen):
                fallback_pool.mark_nearest_unchosen(length, is_chosen)
    return eligible["doc_id"].filter(pa.array(is_chosen)).combine_chunks()


class LengthSortedPool:
    """Rows of documents, ordered by length and, for equal lengths, by draw."""

    def __init__(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        self.rows = array("q", rows.astype(np.int64).tobytes())
        self.lengths = array("d", lengths[rows].tobytes())

    def mark_nearest_unchosen(self, length: float, is_chosen: np.ndarray) -> bool:
        """Mark in ``is_chosen`` the nearest document in length; return False if all are chosen."""
        while self.rows:
            next_index = bisect_left(self.lengths, length)
            previous_index = bisect_left(self.lengths, self.lengths[max(0, next_index - 1)])
            _, row, index = min(
                (abs(self.lengths[index] - length), self.rows[index], index)
                for index in (previous_index, next_index)
                if index < len(self.rows)
            )
            del self.rows[index], self.lengths[index]
            if not is_chosen[row]:  # another pool may have chosen it
                is_chosen[row] = True
                return True
        return False


def write_remaining_documents_and_ledger(
    partition: TablePart, excluded_ids: pa.Array, reason: str, out: TableWriters
) -> None:
    """Write the remaining documents of a partition, and the ledger rows of the excluded ones."""
    for batch in partition.iter_batches():
        is_excluded = pc.is_in(batch["doc_id"], value_set=excluded_ids)
        out.get_table_writer("documents").write(batch.filter(pc.invert(is_excluded)))
        out.get_table_writer("ledger").write(
            build_ledger_table(build_removal_ledger_columns(reason, batch.filter(is_excluded)))
        )


@stage(
    name="leave_out",
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy"],
    external_digests=lambda config, secret_id: {
        name: digest
        for path in (config.doc_ids_file, config.protected_doc_ids_file)
        for name, digest in user_file_digest(path, "ids of documents").items()
    },
)
def leave_out_documents(documents: Table, config: LeaveOutConfig, context: StageContext) -> None:
    """Remove the configured documents, or their random controls.

    Raises:
        UsageError: No training document is selected.
    """
    listed_ids, protected_ids = (
        pa.array(read_document_ids(path), ID_TYPE)
        for path in (config.doc_ids_file, config.protected_doc_ids_file)
    )
    candidate_results = context.map_items(
        spill_training_documents_with_selection, documents.parts, config, listed_ids, protected_ids
    )
    candidates = concat_spilled_tables(candidate_results, "candidates", CANDIDATES)
    excluded_ids = candidates.filter(candidates["selected"])["doc_id"].combine_chunks()
    if not len(excluded_ids):
        raise UsageError(
            "leave_out selects no training documents from this corpus, so nothing would be "
            "excluded; correct leave_out.doc_ids_file or leave_out.toxicity_threshold"
        )
    reason = "excluded from training"
    if config.random_control:
        excluded_ids = draw_matched_controls(candidates)
        reason = CONTROL_REASON
    context.map_partitions(
        write_remaining_documents_and_ledger, documents.parts, excluded_ids, reason
    )
