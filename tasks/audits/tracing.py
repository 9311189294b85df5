"""Search the training text for generated texts and for the texts that items look up.

Generated texts are reported with the runs of tokens that they share with the training text; lookups
with the number of times that training had read them. The texts are indexed and the packed rows read
by the checkpoint's step stream past; memory grows with the corpus by 16 bytes per row. A run counts
only within one row, as the model read it. The stage does not know the use of the responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hallmark.model.training.packed_rows import compute_read_steps, count_reads_per_row
from hallmark.tasks.audits.audit_tables import OCCURRENCE_COUNTS, TRAINING_OVERLAP
from hallmark.tasks.audits.judging.training_exposure import find_last_checkpoint_step
from hallmark.tasks.audits.verbatim_matching import Int32, Int64, TokenWindowIndex, VerbatimRuns
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    StageConfig,
    StageContext,
    Table,
    column,
    hash_texts,
    stage,
    table_schema,
)

#: Tokens of the corpus that are searched together.
TOKENS_PER_BATCH = 1 << 20


class TraceConfig(StageConfig):
    """Settings of the search for responses in the training text."""

    enabled: bool = Field(
        default=True,
        description="whether to search the training text for passages from responses",
    )
    min_span_tokens: int = Field(
        default=8,
        ge=2,
        le=1000,
        description="minimum length, in tokens, of a recorded span (a run of tokens that also "
        "occurs in the training text)",
    )
    min_verbatim_tokens: int = Field(
        default=50,
        ge=2,
        le=10_000,
        description="minimum length, in tokens, of a span that is treated as verbatim reuse",
    )
    max_spans_per_text: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="maximum number of spans recorded per text; the longest spans are kept",
    )

    @model_validator(mode="after")
    def _check_thresholds(self) -> TraceConfig:
        if self.min_verbatim_tokens < self.min_span_tokens:
            raise ValueError(
                f"min_verbatim_tokens is {self.min_verbatim_tokens}; it must be at least "
                f"min_span_tokens, {self.min_span_tokens}"
            )
        return self


MATCHED_SPANS = table_schema(
    "Longest runs of tokens in generated texts that also occur in the training text.",
    column("text_hash", ID_TYPE, "id", "hash of the generated text"),
    column(
        "text_start",
        pa.int32(),
        "figure",
        "position of the matching run's first token in the generated text, starting from 0",
        unit="tokens",
    ),
    column("run_tokens", pa.int32(), "figure", "length of the matching run", unit="tokens"),
    column(
        "doc_id",
        ID_TYPE,
        "id",
        "id of the training document in which the matching run begins",
    ),
    column("source", pa.string(), "label", "document source"),
    column(
        "cluster",
        ID_TYPE,
        "id",
        "id of the near-duplicate cluster that contains the document",
    ),
    column(
        "training_index",
        pa.int32(),
        "label",
        "training run number: 0 for the run that wrote the checkpoint, 1 for the run that it "
        "continued, and so on",
    ),
    column(
        "sequence",
        pa.int64(),
        "figure",
        "index of the row of training tokens (packed row), starting from 0",
    ),
    column(
        "row_start",
        pa.int32(),
        "figure",
        "position of the matching run's first token in the row",
        unit="tokens",
    ),
    column(
        "char_start",
        pa.int32(),
        "figure",
        "index of the matching run's first character in the document",
        unit="characters",
    ),
    column(
        "char_end",
        pa.int32(),
        "figure",
        "index of the first character after the matching run in the document",
        unit="characters",
    ),
    column(
        "first_step",
        pa.int64(),
        "figure",
        "first step at which the training run read the row",
    ),
    column(
        "times_read",
        pa.int64(),
        "figure",
        "number of times the training run had read the row up to the checkpoint's step, or up to "
        "the step from which the next run continued",
        unit="times",
    ),
)


class PackedRowBatch(NamedTuple):
    """Packed rows that are searched together.

    Attributes:
        row_numbers: Number of each row in its training, (n,).
        token_ids: Token ids, (n, width).
        char_starts: Index of the first character of each token in its document, (n, width).
        char_ends: Index after the last character of each token in its document, (n, width).
    """

    row_numbers: Int64
    token_ids: Int32
    char_starts: Int32
    char_ends: Int32


@dataclass
class LongestRuns:
    """Keep the longest runs of each text found so far, ``runs_per_text`` of them."""

    runs_per_text: int
    rows: pa.Table | None = None

    def add_runs(self, runs: VerbatimRuns, training_number: int, batch: PackedRowBatch) -> None:
        """Add runs that were found in a batch of rows.

        ``training_number`` is the ``training_index`` of MATCHED_SPANS.
        """
        new_rows = pa.table(
            {
                "text_index": runs.text_index,
                "text_start": runs.text_start,
                "run_tokens": runs.length,
                "training_index": np.full(len(runs.text_index), training_number),
                "sequence": batch.row_numbers[runs.row_index],
                "row_start": runs.row_start,
                "char_start": batch.char_starts[runs.row_index, runs.row_start],
                "char_end": batch.char_ends[runs.row_index, runs.row_start + runs.length - 1],
            }
        )
        all_rows = new_rows if self.rows is None else pa.concat_tables([self.rows, new_rows])
        tie_breakers = ("training_index", "sequence", "row_start", "text_start")
        sort_keys: Any = [
            ("text_index", "ascending"),
            ("run_tokens", "descending"),
            *((column, "ascending") for column in tie_breakers),
        ]
        all_rows = all_rows.sort_by(sort_keys)
        text_numbers = all_rows["text_index"].to_numpy()
        text_ranks = np.arange(len(text_numbers)) - np.searchsorted(text_numbers, text_numbers)
        self.rows = all_rows.filter(pa.array(text_ranks < self.runs_per_text))


@dataclass
class CanarySpans:
    """Hold the positions of planted documents in the flattened training rows.

    Attributes:
        starts: Start of each span, (n,), sorted.
        ends: End of each span, exclusive, (n,).
    """

    starts: Int64
    ends: Int64

    @classmethod
    def from_canaries(
        cls, document_spans: Table, canaries: Table | None, row_width: int
    ) -> CanarySpans:
        canary_doc_ids = (
            [] if canaries is None else pc.list_flatten(canaries.read(["doc_ids"])["doc_ids"])
        )
        distinct_ids = (
            pc.unique(canary_doc_ids).cast(ID_TYPE)
            if len(canary_doc_ids)
            else pa.array([], ID_TYPE)
        )
        span_filter = (pc.field("split") == "train") & pc.field("doc_id").isin(distinct_ids)
        canary_spans = document_spans.to_dataset().to_table(
            ["sequence", "row_start", "row_end"], filter=span_filter
        )
        row_offsets = canary_spans["sequence"].to_numpy() * row_width
        order = np.argsort(row_offsets + canary_spans["row_start"].to_numpy())
        starts, ends = (
            row_offsets + canary_spans[bound].to_numpy() for bound in ("row_start", "row_end")
        )
        return cls(starts[order], ends[order])

    def measure_longest_overlap(self, run_starts: Int64, run_lengths: Int64) -> Int64:
        """Return the longest overlap of each run with a single span, in tokens, (n,).

        ``run_starts`` are positions in the flattened rows.
        """
        if not len(self.starts):
            return np.zeros(len(run_starts), np.int64)
        # A run may overlap several adjacent planted documents, and a later one the most.
        longest = np.zeros(len(run_starts), np.int64)
        span_indices = np.searchsorted(self.ends, run_starts, "right")
        while True:
            has_span = span_indices < len(self.starts)
            current_span = np.minimum(span_indices, len(self.starts) - 1)
            overlap = np.minimum(self.ends[current_span], run_starts + run_lengths) - np.maximum(
                self.starts[current_span], run_starts
            )
            overlap = np.where(has_span, overlap, 0)
            if (overlap <= 0).all():
                return longest
            longest, span_indices = np.maximum(longest, overlap), span_indices + 1


class DistinctTokenLists(NamedTuple):
    """The distinct lists among some token lists.

    Attributes:
        token_lists: The distinct lists, in the order of their first occurrence.
        list_numbers: For each of the original lists, the index of its equal in ``token_lists``,
            (n,).
    """

    token_lists: list[list[int]]
    list_numbers: Int64


def deduplicate_token_lists(token_id_lists: Iterable[Sequence[int]]) -> DistinctTokenLists:
    """Find the distinct token lists."""
    number_by_list: dict[tuple[int, ...], int] = {}
    list_numbers = [
        number_by_list.setdefault(tuple(token_ids), len(number_by_list))
        for token_ids in token_id_lists
    ]
    return DistinctTokenLists(
        [list(token_ids) for token_ids in number_by_list], np.array(list_numbers, np.int64)
    )


@stage(
    name="trace",
    tables={
        "training_overlap": TRAINING_OVERLAP,
        "occurrence_counts": OCCURRENCE_COUNTS,
        "matched_spans": MATCHED_SPANS,
    },
    libraries=["numpy"],
    reads={
        "request_set": ("lookups",),
        "response_set": ("responses",),
        "packed_corpora": ("train", "spans"),
        "training_runs": ("checkpoints",),
    },
)
def trace_training_text(
    request_set: Artifact,
    response_set: Artifact,
    checkpoints: dict[str, Artifact],
    training_runs: dict[str, Artifact],
    packed_corpora: dict[str, Artifact],
    documents: Table,
    canaries: Table,
    config: TraceConfig,
    context: StageContext,
) -> None:
    """Search the rows that training had read for responses and lookups.

    Args:
        request_set: The requests of a probe, with the lookups.
        response_set: The responses to these requests.
        checkpoints: The audited checkpoint and those of the trainings that it continued, by name.
        training_runs: The training that wrote each checkpoint.
        packed_corpora: The corpus that each training read.
        documents: All documents of the corpora, whether packed or not.
        canaries: The planted documents.
        config: Settings.
        context: Context of the stage.
    """
    responses = response_set["responses"].read(["request", "draw", "text", "token_ids"])
    is_generated = pc.is_valid(responses["token_ids"]).to_numpy()
    lookups = request_set["lookups"].read(["item", "token_ids"])
    lookup_texts, lookup_numbers = deduplicate_token_lists(lookups["token_ids"].to_pylist())
    texts, text_numbers = deduplicate_token_lists(
        responses["token_ids"].filter(pa.array(is_generated)).to_pylist()
    )
    text_hashes = hash_distinct_texts(
        responses["text"].filter(pa.array(is_generated)), text_numbers, len(texts)
    )
    response_windows, verbatim_windows = (
        TokenWindowIndex(texts, config.min_span_tokens),
        TokenWindowIndex(texts, config.min_verbatim_tokens),
    )
    lookup_windows, occurrences = (
        TokenWindowIndex(lookup_texts, config.min_span_tokens),
        np.zeros(len(lookup_texts), np.int64),
    )
    is_covered = np.zeros(len(response_windows.tokens), bool)
    longest_runs, canary_runs = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    trainings = [
        TrainingRows.from_artifacts(checkpoints[name], training_runs[name], packed_corpora[name])
        for name in training_runs
    ]
    best_runs, rows_done, total_rows = (
        LongestRuns(config.max_spans_per_text),
        0,
        sum(len(training_rows.times_read) for training_rows in trainings),
    )
    for training_number, training in enumerate(trainings):
        canary_spans = CanarySpans.from_canaries(
            training.document_spans, canaries, training.row_width
        )
        for batch in iterate_read_rows(training):
            runs = response_windows.find_longest_runs(batch.token_ids)
            np.maximum.at(longest_runs, runs.text_index, runs.length)
            flat_starts = batch.row_numbers[runs.row_index] * training.row_width + runs.row_start
            canary_overlap = canary_spans.measure_longest_overlap(flat_starts, runs.length)
            np.maximum.at(
                canary_runs,
                runs.text_index,
                np.where(canary_overlap >= config.min_span_tokens, canary_overlap, 0),
            )
            verbatim_windows.mark_text_tokens_found_in_rows(batch.token_ids, is_covered)
            best_runs.add_runs(runs, training_number, batch)
            runs = lookup_windows.find_longest_runs(batch.token_ids)
            is_complete = runs.length == np.diff(lookup_windows.text_offsets)[runs.text_index]
            np.add.at(
                occurrences,
                runs.text_index[is_complete],
                training.times_read[batch.row_numbers[runs.row_index[is_complete]]],
            )
            context.report_progress(
                rows_done + int(batch.row_numbers[-1]) + 1, total_rows, "training rows"
            )
        rows_done += len(training.times_read)
    verbatim_tokens = (
        np.add.reduceat(np.append(is_covered, False), response_windows.text_offsets[:-1])
        if texts
        else longest_runs
    )
    verbatim_tokens = np.where(np.diff(response_windows.text_offsets) > 0, verbatim_tokens, 0)
    overlap_counts = {
        "longest_run_tokens": longest_runs,
        "verbatim_tokens": verbatim_tokens,
        "planted_run_tokens": canary_runs,
    }
    text_of_response = np.full(len(responses), -1)
    text_of_response[is_generated] = text_numbers
    columns = {
        name: pa.array(np.append(text_counts, 0)[text_of_response], pa.int32(), mask=~is_generated)
        for name, text_counts in overlap_counts.items()
    }
    context.get_table_writer("training_overlap").write(
        pa.table(
            {"request": responses["request"], "draw": responses["draw"], **columns},
            schema=TRAINING_OVERLAP,
        )
    )
    is_searchable = np.diff(lookup_windows.text_offsets) >= config.min_span_tokens
    context.get_table_writer("occurrence_counts").write(
        sum_occurrences_by_item(
            lookups["item"], occurrences[lookup_numbers], is_searchable[lookup_numbers]
        )
    )
    span_tables = [
        build_matched_spans(best_runs.rows, training_number, training, text_hashes, documents)
        for training_number, training in enumerate(trainings)
    ]
    context.get_table_writer("matched_spans").write(
        pa.concat_tables([MATCHED_SPANS.empty_table(), *span_tables])
    )


def sum_occurrences_by_item(
    items: pa.ChunkedArray, occurrences: Int64, is_searchable: NDArray[np.bool_]
) -> pa.Table:
    """Sum the occurrences of each item's texts into rows of OCCURRENCE_COUNTS.

    ``is_searchable`` says which texts are long enough to be found. Other texts are ignored; an item
    that has no searchable text gets null.
    """
    occurrence_rows = pa.table(
        {"item": items, "occurrences": pa.array(occurrences, mask=~is_searchable)}
    )
    item_sums = occurrence_rows.group_by("item", use_threads=False).aggregate(
        [("occurrences", "sum")]
    )
    return pa.table(
        [item_sums["item"], item_sums["occurrences_sum"]], OCCURRENCE_COUNTS.names
    ).cast(OCCURRENCE_COUNTS)


def hash_distinct_texts(texts: pa.ChunkedArray, text_numbers: Int64, text_count: int) -> pa.Array:
    """Hash the text of each distinct token list, (text_count,)."""
    first_rows = np.zeros(text_count, np.int64)
    first_rows[text_numbers[::-1]] = np.arange(len(texts))[::-1]  # first text of each number
    return hash_texts(texts.take(pa.array(first_rows)))


@dataclass(frozen=True)
class TrainingRows:
    """Hold the rows that a training read until it wrote a checkpoint.

    Attributes:
        packed_rows: The packed rows.
        document_spans: The spans of documents in these rows.
        row_width: Tokens per row.
        times_read: How often each row was read, (rows,).
        first_step: The first step that reads each row, (rows,).
    """

    packed_rows: Table
    document_spans: Table
    row_width: int
    times_read: Int64
    first_step: Int64

    @classmethod
    def from_artifacts(
        cls, checkpoint: Artifact, training_run: Artifact, packed_corpus: Artifact
    ) -> TrainingRows:
        row_count, row_type = (
            packed_corpus["train"].row_count,
            packed_corpus["train"].to_dataset().schema.field("token_ids").type,
        )
        row_reads = count_row_reads(checkpoint, training_run, row_count)
        return cls(
            packed_corpus["train"],
            packed_corpus["spans"],
            row_type.list_size,
            row_reads.times_read,
            row_reads.first_steps,
        )


class RowReads(NamedTuple):
    """How often and when a training read each of its rows, each array (rows,).

    Attributes:
        times_read: Number of times by the checkpoint's step.
        first_steps: First step that reads the row, before or after the checkpoint.
    """

    times_read: Int64
    first_steps: Int64


def count_row_reads(checkpoint: Artifact, training_run: Artifact, row_count: int) -> RowReads:
    """Count how often each training row was read by the checkpoint's step."""
    seed = training_run.get_setting("train", "seed")
    batch_size = training_run.get_setting("train", "batch_size")
    checkpoint_step = find_last_checkpoint_step(training_run, checkpoint) or 0
    return RowReads(
        count_reads_per_row(seed, checkpoint_step, batch_size, row_count),
        compute_read_steps(np.zeros(row_count, np.int64), seed, batch_size),
    )


def iterate_read_rows(training: TrainingRows) -> Iterator[PackedRowBatch]:
    """Yield batches of the packed rows that were read."""
    columns, row_width = ["token_ids", "char_start", "char_end"], training.row_width
    rows_per_batch, first_row = max(1, TOKENS_PER_BATCH // row_width), 0
    for batch in training.packed_rows.iter_batches(columns):
        arrays = [batch[column].flatten().to_numpy().reshape(-1, row_width) for column in columns]
        read_rows = np.flatnonzero(training.times_read[first_row : first_row + len(batch)])
        for row_numbers in np.split(
            read_rows, range(rows_per_batch, len(read_rows), rows_per_batch)
        ):
            if len(row_numbers):
                yield PackedRowBatch(
                    row_numbers + first_row,
                    *(token_array[row_numbers] for token_array in arrays),
                )
        first_row += len(batch)


def build_matched_spans(
    longest_runs: pa.Table | None,
    training_number: int,
    training: TrainingRows,
    text_hashes: pa.Array,
    documents: Table,
) -> pa.Table:
    """Build rows of MATCHED_SPANS for the longest runs in the rows of one training.

    ``text_hashes`` has the hash of each text. The document of a run is the one it begins in.
    """
    if longest_runs is None:
        return MATCHED_SPANS.empty_table()
    longest_runs = longest_runs.filter(
        pc.equal(longest_runs["training_index"], training_number)
    ).combine_chunks()
    longest_runs = longest_runs.set_column(
        0, "text_hash", text_hashes.take(longest_runs["text_index"].combine_chunks())
    )
    sequences = pc.unique(longest_runs["sequence"])
    span_filter = (pc.field("split") == "train") & pc.field("sequence").isin(sequences)
    document_spans = training.document_spans.to_dataset().to_table(
        ["sequence", "row_start", "doc_id"], filter=span_filter
    )
    document_spans = document_spans.sort_by([("sequence", "ascending"), ("row_start", "ascending")])
    # A run belongs to the last span that begins at or before it.
    key_stride = 1 << 32
    span_keys = (
        document_spans["sequence"].to_numpy() * key_stride + document_spans["row_start"].to_numpy()
    )
    sequence_numbers, row_positions = (
        longest_runs["sequence"].to_numpy(),
        longest_runs["row_start"].to_numpy(),
    )
    span_indices = (
        np.searchsorted(span_keys, sequence_numbers * key_stride + row_positions, "right") - 1
    )
    doc_ids = document_spans["doc_id"].combine_chunks().take(pa.array(span_indices))
    document_rows = documents.find_document_rows(
        pc.unique(doc_ids).to_pylist(), ["doc_id", "source", "cluster"]
    )
    document_rows = document_rows.take(
        pc.index_in(doc_ids, value_set=document_rows["doc_id"].combine_chunks())
    )
    columns = {name: longest_runs[name] for name in longest_runs.column_names}
    columns |= {name: document_rows[name] for name in document_rows.column_names}
    first_steps, times_read = (
        training.first_step[sequence_numbers],
        training.times_read[sequence_numbers],
    )
    columns |= {"first_step": pa.array(first_steps), "times_read": pa.array(times_read)}
    return pa.table([columns[name] for name in MATCHED_SPANS.names], MATCHED_SPANS.names).cast(
        MATCHED_SPANS
    )
