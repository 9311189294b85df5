"""Find documents that contain text of the evaluation sets that models are measured with.

The config names the sets, so the corpus records what was kept out of it. A ``select`` rule over the
signal ``contamination`` removes the documents. ``tasks/measures/overlap.py`` can compare later sets
with a finished corpus; no audit does so by itself.

Memory: 16 bytes per word of the sets, in every worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

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
    format_count,
    format_existing_fields_suffix,
    stage,
    stat_to_file_stamp,
    table_schema,
)
from hallmark.tasks.corpus.signals import build_signal_schema
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_with_failing_texts_emptied,
)
from hallmark.tasks.measures.item_files import (
    check_file_exists,
    get_text_list_field,
    read_items,
    user_file_digest,
)
from hallmark.tasks.measures.overlap import OverlapIndex, build_overlap_index, find_overlaps

log = logging.getLogger("hallmark")


class EvaluationSet(StageConfig):
    """An evaluation set whose items must not occur in the corpus."""

    name: PathSafeName = Field(description="name that identifies the evaluation set in the tables")
    path: Path = Field(
        description="file that contains the evaluation set's items in jsonl, csv or tsv format, "
        "optionally compressed with gzip"
    )
    text_fields: tuple[str, ...] = Field(
        ("text",),
        min_length=1,
        description="fields that contain text or a list of texts, such as the answer choices; "
        "the first field is the question. A text with fewer than `contamination.ngram_size` "
        "words is searched for only together with the question, and only if the question has at "
        "least four words (in Chinese, six content characters)",
    )


class ContaminationConfig(StageConfig):
    """Settings of the search for evaluation items in the corpus."""

    evaluation_sets: tuple[EvaluationSet, ...] = Field(
        default=(), description="evaluation sets whose items must not occur in the corpus"
    )
    ngram_size: int = Field(
        13,
        ge=1,
        le=100,
        description="minimum number of consecutive words that a document and an item must share to "
        "overlap; items with fewer words are counted but not searched for. In scripts "
        "without spaces between words, two characters (Chinese, Japanese) or three letters "
        "(other scripts, such as Thai) are treated as one word",
    )

    @model_validator(mode="after")
    def _check_names(self) -> ContaminationConfig:
        set_names = [evaluation_set.name for evaluation_set in self.evaluation_sets]
        if len(set(set_names)) < len(set_names):
            raise ValueError("two evaluation sets have the same name; rename one of them")
        return self


SIGNALS = build_signal_schema(
    "Number of evaluation items that overlap with each document. An item is a record of an "
    "evaluation set, such as a question with its answer choices.",
    column(
        "contamination",
        pa.int32(),
        "figure",
        "number of evaluation items that overlap with the document",
        unit="items",
    ),
)

OVERLAPS = table_schema(
    "Overlapping documents and evaluation items, one row per pair.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column("evaluation_set", pa.string(), "label", "evaluation set name"),
    column(
        "item_index", pa.int64(), "figure", "index of the item in its evaluation set, starting at 0"
    ),
    partition_by_doc_id=True,
)

SET_SUMMARIES = table_schema(
    "Evaluation sets whose items were searched for in the documents, one row per set.",
    column("evaluation_set", pa.string(), "label", "evaluation set name"),
    column("items", pa.int64(), "figure", "number of items in the set", unit="items"),
    column(
        "skipped_items",
        pa.int64(),
        "figure",
        "number of items that were not searched for because they are too short: either all texts "
        "of the item together have fewer than `contamination.ngram_size` words, or each text has, "
        "and the question has fewer than four words (in Chinese, six content characters)",
        unit="items",
    ),
    column(
        "short_texts",
        pa.int64(),
        "figure",
        "number of texts with fewer than `contamination.ngram_size` words; they were searched "
        "for only together with their item's question, and only if the question has at least "
        "four words (in Chinese, six content characters)",
        unit="texts",
    ),
    column(
        "empty_fields",
        pa.int64(),
        "figure",
        "number of fields that were skipped because they contain no text",
        unit="fields",
    ),
    column(
        "overlapping_documents",
        pa.int64(),
        "figure",
        "number of documents that overlap with at least one item in the set",
        unit="documents",
    ),
)


class SetIndex(NamedTuple):
    """The items of an evaluation set, ready to be searched for."""

    overlaps: OverlapIndex
    """The n-grams of the items."""
    empty_field_count: int
    """Number of fields without text."""


def check_evaluation_sets(config: ContaminationConfig) -> None:
    """Read all evaluation sets, so that errors are found before any stage runs.

    Warns of sets of which no item is long enough to be searched for.

    Raises:
        UsageError: A file cannot be read; the message names the file and the place in it.
    """
    for name, (overlap_index, _) in load_indexes_by_evaluation_set(config).items():
        if overlap_index.skipped_item_count == overlap_index.item_count:
            log.warning(
                "contamination: none of the %s in the evaluation set %r can be searched for, "
                "because each has fewer than %d words, or has only short choices and a question "
                "with fewer than four words; add the question field to 'text_fields', or lower "
                "contamination.ngram_size",
                format_count(overlap_index.item_count, "item"),
                name,
                config.ngram_size,
            )


def load_indexes_by_evaluation_set(config: ContaminationConfig) -> dict[str, SetIndex]:
    """Load the index of each evaluation set, by name of the set.

    Raises:
        UsageError: A file cannot be read; the message names the file and the place in it.
    """
    sets = config.evaluation_sets
    for evaluation_set in sets:
        check_file_exists(evaluation_set.path, f"items of {evaluation_set.name}")
    file_stamps = tuple(stat_to_file_stamp(evaluation_set.path.stat()) for evaluation_set in sets)
    return _load_cached_indexes_by_evaluation_set(config, file_stamps)


@lru_cache(maxsize=1)  # one entry holds all sets, because every partition needs all of them
def _load_cached_indexes_by_evaluation_set(
    config: ContaminationConfig, file_stamps: tuple[FileStamp, ...]
) -> dict[str, SetIndex]:
    """Load all sets once per process; changed files have other stamps and are read again."""
    return {
        evaluation_set.name: _build_set_index(evaluation_set, config.ngram_size)
        for evaluation_set in config.evaluation_sets
    }


def _build_set_index(evaluation_set: EvaluationSet, ngram_size: int) -> SetIndex:
    items = []
    empty_counts = dict.fromkeys(evaluation_set.text_fields, 0)
    first_item: dict[str, Any] | None = None
    for location, item in read_items(evaluation_set.path, f"items of {evaluation_set.name}"):
        first_item = first_item or item
        texts_by_field = {
            field: _read_field_texts(evaluation_set, location, item, field)
            for field in evaluation_set.text_fields
        }
        for field, texts in texts_by_field.items():
            empty_counts[field] += not texts
        items.append(_arrange_item_texts([*texts_by_field.values()]))
    for field, empty_count in empty_counts.items():
        if empty_count == len(items):
            hint = format_existing_fields_suffix(field, first_item or {}, "fields")
            raise UsageError(
                f"{evaluation_set.path} has no text in {field!r}{hint}; "
                f"{_advise_on_fields(evaluation_set)}"
            )
    return SetIndex(build_overlap_index(items, ngram_size), sum(empty_counts.values()))


def _arrange_item_texts(texts_of_fields: Sequence[Sequence[str]]) -> list[str]:
    """Return all texts of an item, with the question first; it is "" if there is none.

    The question is the text of the first field. A list of texts is no question.
    """
    question = texts_of_fields[0] if len(texts_of_fields[0]) == 1 else [""]
    other_fields = texts_of_fields[1:] if question is texts_of_fields[0] else texts_of_fields
    return [*question, *(text for texts in other_fields for text in texts)]


def _read_field_texts(
    evaluation_set: EvaluationSet, location: str, item: dict[str, Any], field: str
) -> list[str]:
    try:
        return get_text_list_field(location, item, field)
    except UsageError as error:
        raise UsageError(f"{error}; {_advise_on_fields(evaluation_set)}") from error


def _advise_on_fields(evaluation_set: EvaluationSet) -> str:
    return (
        f"correct the file, or the 'text_fields' setting of {evaluation_set.name!r} in "
        "contamination.evaluation_sets"
    )


class OverlapCounts(TypedDict):
    """Summarise the search in a partition."""

    overlapping_documents: dict[str, int]
    """Number of documents that overlap at least one item, by evaluation set name."""
    failed: FailureList
    """Documents for which the search for overlaps failed."""


def write_partition_overlaps(
    partition: TablePart, config: ContaminationConfig, out: TableWriters
) -> OverlapCounts:
    """Write the signals and overlaps of a partition."""
    index_by_evaluation_set = {
        name: set_index.overlaps
        for name, set_index in load_indexes_by_evaluation_set(config).items()
    }
    overlapping_documents = dict.fromkeys(index_by_evaluation_set, 0)
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "text"]):
        overlaps_by_set, faults = run_with_failing_texts_emptied(
            partial(
                find_overlaps_by_evaluation_set, index_by_evaluation_set=index_by_evaluation_set
            ),
            batch,
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
    return {"overlapping_documents": overlapping_documents, "failed": failures}


class BatchOverlaps(NamedTuple):
    """Hold the pairs of a document and an item that overlap."""

    batch_rows: np.ndarray
    """Row number of the document in the batch; shape (m,)."""
    item_indices: np.ndarray
    """Index of the item in its evaluation set; shape (m,)."""


def find_overlaps_by_evaluation_set(
    batch: pa.RecordBatch, index_by_evaluation_set: Mapping[str, OverlapIndex]
) -> dict[str, BatchOverlaps]:
    """Find the overlaps of a batch with each evaluation set."""
    return {
        set_name: BatchOverlaps(*find_overlaps(batch["text"], item_index))
        for set_name, item_index in index_by_evaluation_set.items()
    }


def _digest_evaluation_files(config: ContaminationConfig, _secret_id: str = "") -> dict[str, str]:
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
    """Search the documents for items of the configured evaluation sets."""
    results = context.map_partitions(write_partition_overlaps, documents.parts, config)
    report_failures(
        context,
        [result.value["failed"] for result in results],
        documents.row_count,
        "the search for overlaps",
    )
    for name, (overlap_index, empty_field_count) in load_indexes_by_evaluation_set(config).items():
        context.get_table_writer("evaluation_sets").write(
            {
                "evaluation_set": [name],
                "items": [overlap_index.item_count],
                "skipped_items": [overlap_index.skipped_item_count],
                "short_texts": [overlap_index.short_text_count],
                "empty_fields": [empty_field_count],
                "overlapping_documents": [
                    sum(result.value["overlapping_documents"][name] for result in results)
                ],
            }
        )
