"""Contamination: which documents hold text of the sets that models are measured with.

The sets are named in the config, so that a corpus and what was kept out of it are pinned together;
a rule over the signal ``contamination`` removes what holds any of it. Sets that come later can be
compared with the same function (``tasks/measures/overlap.py``), which changes no corpus; no audit
does so by itself.

Memory: 16 bytes for each word of the sets, in every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from hallmark.tasks.contract import (
    ID_TYPE,
    FileStamp,
    PathSafeName,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    UsageError,
    column,
    stage,
    stat_to_file_stamp,
    table_schema,
)
from hallmark.tasks.corpus.signals import build_signal_schema
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_isolating_failures,
)
from hallmark.tasks.measures.item_files import (
    check_file_exists,
    get_text_field,
    read_items,
    user_file_digest,
)
from hallmark.tasks.measures.overlap import OverlapIndex, build_overlap_index, find_overlaps


class EvaluationSet(StageConfig):
    """A set of items that the corpus shall not hold."""

    name: PathSafeName = Field(description="names the set in tables")
    path: Path = Field(description="a file of items: jsonl, csv or tsv, plain or packed by gzip")
    text_fields: tuple[str, ...] = Field(
        ("text",), min_length=1, description="the fields that hold text, each an item of its own"
    )


class ContaminationConfig(StageConfig):
    evaluation_sets: tuple[EvaluationSet, ...] = Field(
        default=(), description="sets whose items the corpus shall not hold"
    )
    ngram_size: int = Field(
        13,
        ge=1,
        le=100,
        description="so many consecutive words of an item are an overlap; of a shorter "
        "item, all of its words",
    )
    min_item_words: int = Field(
        4, ge=1, le=100, description="items with fewer words are not searched for, only counted"
    )

    @model_validator(mode="after")
    def _check_names_and_lengths(self) -> ContaminationConfig:
        set_names = [evaluation_set.name for evaluation_set in self.evaluation_sets]
        if len(set(set_names)) < len(set_names):
            raise ValueError("two sets have one name")
        if self.min_item_words > self.ngram_size:
            raise ValueError("min_item_words must not be above ngram_size")
        return self


SIGNALS = build_signal_schema(
    "How much of the sets to keep apart each document holds.",
    column(
        "contamination", pa.int32(), "figure", "items of the sets that it overlaps", unit="items"
    ),
)

OVERLAPS = table_schema(
    "Which item of which set overlaps which document.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column("evaluation_set", pa.string(), "label", "the set"),
    column("item_index", pa.int64(), "figure", "number of the item in its set, from 0"),
    partition_by=True,
)

SET_SUMMARIES = table_schema(
    "The sets that were looked for.",
    column("evaluation_set", pa.string(), "label", "the set"),
    column("items", pa.int64(), "figure", "its items", unit="items"),
    column(
        "skipped_items", pa.int64(), "figure", "of these too short to be looked for", unit="items"
    ),
    column(
        "overlapping_documents",
        pa.int64(),
        "figure",
        "documents that overlap any of it",
        unit="documents",
    ),
)


def load_sets(config: ContaminationConfig) -> dict[str, OverlapIndex]:
    """The items of each set, by its name. Raises UsageError with the place of what cannot be
    read."""
    for held in config.evaluation_sets:
        check_file_exists(held.path, f"items of {held.name}")
    return _load_sets(
        config, tuple(stat_to_file_stamp(held.path.stat()) for held in config.evaluation_sets)
    )


@lru_cache(maxsize=1)  # of all sets together, however many: each part looks for all of them
def _load_sets(
    config: ContaminationConfig, stamps: tuple[FileStamp, ...]
) -> dict[str, OverlapIndex]:
    """Read once in a process for as long as the files stay as they are."""
    return {
        held.name: _load_cached_index(held, config.ngram_size, config.min_item_words)
        for held in config.evaluation_sets
    }


def _load_cached_index(
    evaluation_set: EvaluationSet, ngram_size: int, min_words: int
) -> OverlapIndex:
    items = [
        _read_item_text(evaluation_set, location, item, field)
        for location, item in read_items(evaluation_set.path, f"items of {evaluation_set.name}")
        for field in evaluation_set.text_fields
    ]
    return build_overlap_index(items, ngram_size, min_words)


def _read_item_text(
    evaluation_set: EvaluationSet, location: str, item: dict[str, Any], field: str
) -> str:
    try:
        return get_text_field(location, item, field)
    except UsageError as error:
        raise UsageError(
            f"{error}; correct the file, or the text_fields of {evaluation_set.name!r} in "
            f"contamination.evaluation_sets"
        ) from error


def write_partition_overlaps(
    partition: TablePart, config: ContaminationConfig, out: TableWriters
) -> dict[str, Any]:
    """Returns how many documents of the part overlap each set, and those on which it failed."""
    indexes = load_sets(config)
    overlapping_documents = dict.fromkeys(indexes, 0)
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "text"]):
        overlaps_by_set, faults = run_isolating_failures(
            partial(find_batch_overlaps, indexes=indexes), batch
        )
        item_counts = np.zeros(len(batch), np.int32)
        overlap_tables = [pa.schema(OVERLAPS).empty_table()]
        for set_name, (batch_rows, item_numbers) in overlaps_by_set.items():
            item_counts += np.bincount(batch_rows, minlength=len(batch)).astype(np.int32)
            overlapping_documents[set_name] += len(np.unique(batch_rows))
            doc_ids = batch["doc_id"].take(pa.array(batch_rows))
            set_names = pa.array([set_name] * len(batch_rows), pa.string())
            overlap_tables.append(
                pa.table(
                    {"doc_id": doc_ids, "evaluation_set": set_names, "item_index": item_numbers}
                )
            )
        overlap_rows = pa.concat_tables(overlap_tables)
        out.get_table_writer("item_overlaps").write(
            overlap_rows.sort_by(
                [
                    ("doc_id", "ascending"),
                    ("evaluation_set", "ascending"),
                    ("item_index", "ascending"),
                ]
            )
        )
        signal_values = pa.array(item_counts, mask=np.isin(np.arange(len(batch)), faults.rows))
        out.get_table_writer("signals").write(
            {"doc_id": batch["doc_id"], "contamination": signal_values}
        )
        failures += list_failures_by_doc_id(batch, faults)
    return {"documents": overlapping_documents, "failed": failures}


def find_batch_overlaps(
    batch: pa.RecordBatch, indexes: Mapping[str, OverlapIndex]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        set_name: find_overlaps(batch["text"], item_index)
        for set_name, item_index in indexes.items()
    }


def _digest_evaluation_files(config: ContaminationConfig, secret_id: str = "") -> dict[str, str]:
    digests: dict[str, str] = {}
    for evaluation_set in config.evaluation_sets:
        digests |= user_file_digest(evaluation_set.path, f"items of {evaluation_set.name}")
    return digests


@stage(
    name="contamination",
    tables={"signals": SIGNALS, "item_overlaps": OVERLAPS, "evaluation_sets": SET_SUMMARIES},
    libraries=["numpy"],
    external_digests=_digest_evaluation_files,
    determinism="exact",
)
def find_contamination(
    documents: Table, config: ContaminationConfig, context: StageContext
) -> None:
    results = context.map_partitions(write_partition_overlaps, documents.parts, config)
    report_failures(
        context,
        [result.value["failed"] for result in results],
        documents.row_count,
        "the search for overlaps",
    )
    for name, item_index in load_sets(config).items():
        context.get_table_writer("evaluation_sets").write(
            {
                "evaluation_set": [name],
                "items": [item_index.item_count],
                "skipped_items": [item_index.short_item_count],
                "overlapping_documents": [
                    sum(result.value["documents"][name] for result in results)
                ],
            }
        )
