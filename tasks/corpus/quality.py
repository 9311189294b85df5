"""Compute the quality signals that the published rules of Gopher, C4 and FineWeb use.

The rules themselves are presets of ``select``. They were designed for English and for scripts that
separate words by white space: for other texts the signals are correct, but the bounds mean little.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from hallmark.tasks.contract import (
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    stage,
)
from hallmark.tasks.corpus.quality_signals import c4, fineweb, gopher
from hallmark.tasks.corpus.quality_signals.text_batch import TextBatch
from hallmark.tasks.corpus.signals import build_signal_schema, write_signals
from hallmark.tasks.corpus.table_columns import (
    make_count_column,
    make_float_column,
    make_share_column,
)
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    UnprocessableDocumentError,
    report_failures,
)
from hallmark.tasks.measures.machine import total_memory_bytes


class QualityConfig(StageConfig):
    """Settings of the quality signals."""

    stop_words: tuple[Annotated[str, Field(pattern=r"^\S+$")], ...] = Field(
        ("the", "be", "to", "of", "and", "that", "have", "with"),
        description="frequent words expected in ordinary text; the default is the English list "
        "that was used to filter Gopher's training data",
    )
    short_line_characters: int = Field(
        30,
        ge=0,
        description="maximum length, in characters, of a short line; the default is the value "
        "used for the FineWeb dataset",
    )


REMOVED_BY_C4 = "share of characters that the C4 rules would remove as part of"

SIGNALS = build_signal_schema(
    "Quality signals for each document. A share is null if its denominator is 0, for example "
    "because the text is empty. A token is a run of characters without white space.",
    make_count_column(
        "word_count", "number of tokens that do not consist only of punctuation", "words"
    ),
    make_float_column(
        "mean_word_length", "mean length of the words counted in `word_count`", "characters"
    ),
    make_float_column("hash_signs_per_word", "number of hash signs (#) per token", "ratio"),
    make_float_column("ellipses_per_word", "number of ellipses (... or …) per token", "ratio"),
    make_share_column("bullet_lines", "share of lines that begin with • or -"),
    make_share_column("ellipsis_lines", "share of lines that end with an ellipsis"),
    make_share_column("alphabetic_words", "share of tokens that contain a letter"),
    make_count_column("stop_word_count", "number of distinct stop words in the text", "words"),
    make_share_column("duplicate_lines", "share of lines that are identical to an earlier line"),
    make_share_column(
        "duplicate_lines_characters",
        "share of characters in lines identical to an earlier line",
    ),
    make_share_column(
        "duplicate_paragraphs", "share of paragraphs that are identical to an earlier paragraph"
    ),
    make_share_column(
        "duplicate_paragraphs_characters",
        "share of characters in paragraphs identical to an earlier paragraph",
    ),
    *(
        make_share_column(
            f"top_{n}gram",
            f"share of characters in occurrences of the most frequent {n}-word sequence",
        )
        for n in gopher.TOP_NGRAM_SIZES
    ),
    *(
        make_share_column(
            f"duplicate_{n}grams",
            f"share of characters in {n}-word sequences that occurred earlier in the text",
        )
        for n in gopher.DUPLICATE_NGRAM_SIZES
    ),
    make_share_column(
        "c4_long_words",
        f"{REMOVED_BY_C4} lines that contain a word of more than {c4.MAX_WORD_LENGTH:,} characters",
    ),
    make_share_column(
        "c4_no_terminal_mark",
        f"{REMOVED_BY_C4} lines that do not end with a full stop, ?, ! or a quotation mark",
    ),
    make_share_column(
        "c4_few_words", f"{REMOVED_BY_C4} lines with fewer than {c4.MIN_LINE_WORDS} words"
    ),
    make_share_column("c4_javascript", f'{REMOVED_BY_C4} lines that contain the word "javascript"'),
    make_share_column("c4_policy", f"{REMOVED_BY_C4} lines about cookies, privacy or terms of use"),
    make_share_column(
        "c4_removed_characters",
        "share of characters that the C4 dataset's five line rules would remove; each line is "
        "counted only for the first rule that removes it, so the shares for the five rules add up "
        "to this share",
    ),
    make_count_column(
        "c4_lorem_ipsum",
        'number of lines that the C4 rules keep and that contain "lorem ipsum"',
        "lines",
    ),
    make_count_column(
        "c4_curly_brackets",
        "number of lines kept by the C4 rules that contain the character {",
        "lines",
    ),
    make_count_column(
        "c4_sentences",
        "estimated number of sentences in the lines that the C4 rules keep; a sentence is "
        "assumed to end at a punctuation mark that is followed by white space",
        "sentences",
    ),
    make_share_column(
        "terminal_lines",
        "share of non-blank lines that end with sentence-final punctuation in any script",
    ),
    make_share_column(
        "short_lines",
        "share of non-blank lines that are at most `short_line_characters` characters long",
    ),
    make_share_column(
        "duplicate_characters",
        "share of characters in non-blank lines identical to an earlier line; line feeds are not "
        "counted",
    ),
    make_float_column("line_feeds_per_word", "number of line feeds per token", "ratio"),
)


#: Most bytes of memory per character of a document: a text with one letter per line needs 143,
#: prose 60.
MEMORY_BYTES_PER_CHARACTER = 145

#: Beginning of the reason why a document has no signals on this machine.
TOO_LITTLE_MEMORY = "too little memory"

#: Bytes of text that are processed at once, so that the intermediate arrays fit the CPU cache.
BLOCK_BYTES = 1 << 19


def split_into_blocks(texts: pa.Array) -> Iterator[pa.Array]:
    """Split a column of texts into slices of at most BLOCK_BYTES, or of one longer text."""
    ends = np.cumsum(pc.binary_length(texts).to_numpy(), dtype=np.int64)
    start = 0
    while start < len(texts):
        previous_end = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, previous_end + BLOCK_BYTES, side="right")))
        yield texts[start:stop]
        start = stop


def check_memory(characters: int, available_bytes: int) -> None:
    """Raise UnprocessableDocumentError if a document needs more memory than this machine has.

    Without this check the system would kill the worker without a message.
    """
    needed_bytes = MEMORY_BYTES_PER_CHARACTER * characters
    if needed_bytes > available_bytes:
        raise UnprocessableDocumentError(
            f"{TOO_LITTLE_MEMORY}: computing the quality signals of this document ({characters:,} "
            f"characters) needs {needed_bytes / 1e9:.1f} GB, but this machine has "
            f"{available_bytes / 1e9:.1f} GB; lower ingest.max_document_bytes, or run on a "
            "machine with more memory"
        )


def compute_quality_table(texts: pa.Array, config: QualityConfig) -> pa.Table:
    """Compute the signals of a column of texts without nulls, one row per text."""
    schema = pa.schema([(field.name, field.type) for field in SIGNALS][1:])
    block_tables = [schema.empty_table()]
    for block in split_into_blocks(texts):
        if len(block) == 1:
            check_memory(pc.utf8_length(block)[0].as_py(), total_memory_bytes())
        parsed_texts = TextBatch.from_column(block)
        columns = {
            **gopher.compute_gopher_quality_signals(parsed_texts, config.stop_words),
            **gopher.compute_gopher_repetition_signals(parsed_texts),
            **c4.compute_c4_signals(block, parsed_texts),
            **fineweb.compute_fineweb_signals(parsed_texts, config.short_line_characters),
        }
        block_tables.append(pa.table(columns, schema=schema))
    return pa.concat_tables(block_tables)


def write_quality_signals(
    partition: TablePart, config: QualityConfig, out: TableWriters
) -> FailureList:
    """Write the signals of a partition; return the documents on which that failed."""
    return write_signals(partition, partial(compute_quality_columns, config=config), out)


def compute_quality_columns(batch: pa.RecordBatch, config: QualityConfig) -> dict[str, pa.Array]:
    """Compute the signals of a batch of documents, by name."""
    signal_table = compute_quality_table(batch["text"], config).combine_chunks()
    return {name: signal_table[name].combine_chunks() for name in signal_table.column_names}


@stage(name="quality", tables={"signals": SIGNALS}, libraries=["numpy", "pyarrow"])
def measure_quality(documents: Table, config: QualityConfig, context: StageContext) -> None:
    """Compute the quality signals of all documents.

    Documents that need more memory than this machine has get null signals, as do others on which
    the computation fails. The result then depends on the machine.

    Memory: one batch per worker, and up to 145 bytes per character of a single document.
    """
    results = context.map_partitions(write_quality_signals, documents.parts, config)
    failures = [part.value for part in results]
    if any(reason.startswith(TOO_LITTLE_MEMORY) for part in failures for _, reason in part):
        context.determinism = "machine"
    report_failures(context, failures, documents.row_count, "the computation of quality signals")
