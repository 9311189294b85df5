"""Quality: the figures that the published rules of Gopher, C4 and FineWeb look at.

The rules themselves are presets of ``select``. All were made for English, and for scripts that part
words by white space: of other texts the figures are right, but the bounds mean little.
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
    column,
    stage,
)
from hallmark.tasks.corpus.quality_signals import c4, fineweb, gopher
from hallmark.tasks.corpus.quality_signals.text_batch import TextBatch
from hallmark.tasks.corpus.signals import build_signal_schema, write_signals
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    UnprocessableDocumentError,
    report_failures,
)
from hallmark.tasks.measures.machine import total_memory_bytes


class QualityConfig(StageConfig):
    stop_words: tuple[Annotated[str, Field(pattern=r"^\S+$")], ...] = Field(
        ("the", "be", "to", "of", "and", "that", "have", "with"),
        description="words of which text has some: Gopher's, which are English",
    )
    short_line_characters: int = Field(
        30,
        ge=0,
        description="a line of at most so many characters is short; the default is FineWeb's",
    )


def _build_share_column(name: str, meaning: str) -> pa.Field:
    return column(name, pa.float64(), "figure", meaning, unit="share")


def _build_count_column(name: str, meaning: str, unit: str) -> pa.Field:
    return column(name, pa.int64(), "figure", meaning, unit=unit)


CHARACTERS_PREFIX = "of the characters, those in"
C4_LINES_PREFIX = "of the characters in lines, those that C4 takes with lines"

SIGNALS = build_signal_schema(
    "Figures of each document's text that published rules of quality look at; null where there is "
    "nothing that a share could be of, as in an empty text.",
    _build_count_column(
        "word_count", "parts between white space that are not punctuation alone", "words"
    ),
    column("mean_word_length", pa.float64(), "figure", "mean length of these", unit="characters"),
    column(
        "hash_signs_per_word",
        pa.float64(),
        "figure",
        "hash signs (#) to parts between white space",
        unit="ratio",
    ),
    column(
        "ellipses_per_word",
        pa.float64(),
        "figure",
        "ellipses (... or …) to parts between white space",
        unit="ratio",
    ),
    _build_share_column("bullet_lines", "of the lines, those that begin with • or -"),
    _build_share_column("ellipsis_lines", "of the lines, those that end with an ellipsis"),
    _build_share_column(
        "alphabetic_words", "of the parts between white space, those with a letter"
    ),
    _build_count_column(
        "stop_word_count", "how many different ones of the stop words occur", "words"
    ),
    _build_share_column("duplicate_lines", "of the lines, those that stood in the text before"),
    _build_share_column(
        "duplicate_lines_characters", f"{CHARACTERS_PREFIX} lines that stood in the text before"
    ),
    _build_share_column(
        "duplicate_paragraphs", "of the paragraphs, those that stood in the text before"
    ),
    _build_share_column(
        "duplicate_paragraphs_characters", f"{CHARACTERS_PREFIX} paragraphs that stood there before"
    ),
    *(
        _build_share_column(
            f"top_{n}gram", f"{CHARACTERS_PREFIX} the most frequent {n} words in a row"
        )
        for n in gopher.TOP_NGRAM_SIZES
    ),
    *(
        _build_share_column(
            f"duplicate_{n}grams", f"{CHARACTERS_PREFIX} {n} words in a row that stood there before"
        )
        for n in gopher.DUPLICATE_NGRAM_SIZES
    ),
    _build_share_column(
        "c4_long_words",
        f"{C4_LINES_PREFIX} for a word of more than {c4.MAX_WORD_LENGTH:,} characters",
    ),
    _build_share_column(
        "c4_no_terminal_mark",
        f"{C4_LINES_PREFIX} that do not end with a full stop, ?, ! or a quotation mark",
    ),
    _build_share_column(
        "c4_few_words", f"{C4_LINES_PREFIX} of fewer than {c4.MIN_LINE_WORDS} words"
    ),
    _build_share_column("c4_javascript", f'{C4_LINES_PREFIX} that have the word "javascript"'),
    _build_share_column("c4_policy", f"{C4_LINES_PREFIX} about cookies, privacy or terms of use"),
    _build_share_column(
        "c4_removed_characters",
        f"{C4_LINES_PREFIX} of any of these kinds: the first counts, and they add up to this",
    ),
    _build_count_column(
        "c4_lorem_ipsum", 'lines with "lorem ipsum" that were not taken before', "lines"
    ),
    _build_count_column("c4_curly_brackets", "lines with { that were not taken before", "lines"),
    _build_count_column(
        "c4_sentences",
        "sentences in lines that are left, an estimate: a mark and white space part them",
        "sentences",
    ),
    _build_share_column(
        "terminal_lines",
        "of the lines that are not blank, those that end a sentence, in any script",
    ),
    _build_share_column("short_lines", "of the lines that are not blank, the short ones"),
    _build_share_column(
        "duplicate_characters",
        "of the characters but line feeds, those in lines not blank that stood in the text before",
    ),
    column(
        "line_feeds_per_word",
        pa.float64(),
        "figure",
        "line feeds to parts between white space",
        unit="ratio",
    ),
)


#: Bytes of memory that the figures of one document take at most, by character of its text: a letter
#: a line takes 143, prose 60.
MEMORY_BYTES_PER_CHARACTER = 145

#: How the reason begins for which a document has no figures on this machine.
TOO_LITTLE_MEMORY = "too little memory"

#: Bytes of text worked on at a time, so that what is held of them stays in the processor's cache.
BLOCK_BYTES = 1 << 19


def split_into_blocks(texts: pa.Array) -> Iterator[pa.Array]:
    """Pieces of a column of texts of about BLOCK bytes, or of one text."""
    ends = np.cumsum(pc.binary_length(texts).to_numpy(), dtype=np.int64)
    start = 0
    while start < len(texts):
        previous_end = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, previous_end + BLOCK_BYTES, side="right")))
        yield texts[start:stop]
        start = stop


def check_memory(characters: int, available_bytes: int) -> None:
    """Unfit where a document of so many characters takes more memory than is there: whoever took
    it all the same would be killed, and say nothing."""
    needed_bytes = MEMORY_BYTES_PER_CHARACTER * characters
    if needed_bytes > available_bytes:
        raise UnprocessableDocumentError(
            f"{TOO_LITTLE_MEMORY}: the figures of its {characters:,} characters take "
            f"{needed_bytes / 1e9:.1f} "
            f"GB, and this machine has {available_bytes / 1e9:.1f} GB; lower "
            f"ingest.max_document_bytes, or "
            f"run on a larger one"
        )


def compute_quality_signals(texts: pa.Array, config: QualityConfig) -> pa.Table:
    """The signals of a column of texts without nulls, a row each."""
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
    return write_signals(partition, partial(compute_batch_signals, config=config), out)


def compute_batch_signals(batch: pa.RecordBatch, config: QualityConfig) -> dict[str, pa.Array]:
    signal_table = compute_quality_signals(batch["text"], config).combine_chunks()
    return {name: signal_table[name].combine_chunks() for name in signal_table.column_names}


@stage(name="quality", tables={"signals": SIGNALS}, libraries=["numpy", "pyarrow"])
def measure_quality(documents: Table, config: QualityConfig, context: StageContext) -> None:
    """Holds a batch of a part at a time, and of one document up to 145 bytes a character. One for
    which this machine has too little memory has no figures, as others on which it fails, and is
    told with the remedy; on a larger machine it has."""
    results = context.map_partitions(write_quality_signals, documents.parts, config)
    failures = [part.value for part in results]
    if any(reason.startswith(TOO_LITTLE_MEMORY) for part in failures for _, reason in part):
        context.determinism = "machine"
    report_failures(context, failures, documents.row_count, "the measurement of quality")
