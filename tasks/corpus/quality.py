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

from tasks.contract import Part, StageConfig, Table, Tables, Work, column, stage
from tasks.corpus.figures import c4, fineweb, gopher
from tasks.corpus.figures.texts import Texts
from tasks.corpus.signals import signals, write_signals
from tasks.measures.faults import Noted, Unfit, tell
from tasks.measures.machine import memory


class QualityConfig(StageConfig):
    stop_words: tuple[Annotated[str, Field(pattern=r"^\S+$")], ...] = Field(
        ("the", "be", "to", "of", "and", "that", "have", "with"),
        description="words of which text has some: Gopher's, which are English",
    )
    short_line: int = Field(30, ge=0, description="characters to which a line is short: FineWeb's")


def _share(name: str, meaning: str) -> pa.Field:
    return column(name, pa.float64(), "figure", meaning, unit="share")


def _count(name: str, meaning: str, unit: str) -> pa.Field:
    return column(name, pa.int64(), "figure", meaning, unit=unit)


CHARACTERS = "of the characters, those in"
LINE = "of the characters in lines, those that C4 takes with lines"

SIGNALS = signals(
    "Figures of each document's text that published rules of quality look at; null where there is "
    "nothing that a share could be of, as in an empty text.",
    _count("words", "parts between white space that are not punctuation alone", "words"),
    column("word_length", pa.float64(), "figure", "mean length of these", unit="characters"),
    column("hashes_per_word", pa.float64(), "figure", "hash signs (#) to parts between white space",
           unit="ratio"),
    column("ellipses_per_word", pa.float64(), "figure", "ellipses (... or …) to parts between "
           "white space", unit="ratio"),
    _share("bullet_lines", "of the lines, those that begin with • or -"),
    _share("ellipsis_lines", "of the lines, those that end with an ellipsis"),
    _share("alphabetic_words", "of the parts between white space, those with a letter"),
    _count("stop_words", "how many different ones of the stop words occur", "words"),
    _share("duplicate_lines", "of the lines, those that stood in the text before"),
    _share("duplicate_lines_characters", f"{CHARACTERS} lines that stood in the text before"),
    _share("duplicate_paragraphs", "of the paragraphs, those that stood in the text before"),
    _share("duplicate_paragraphs_characters", f"{CHARACTERS} paragraphs that stood there before"),
    *(_share(f"top_{n}gram", f"{CHARACTERS} the most frequent {n} words in a row")
      for n in gopher.TOP),
    *(_share(f"duplicate_{n}grams", f"{CHARACTERS} {n} words in a row that stood there before")
      for n in gopher.REPEATED),
    _share("c4_long_words", f"{LINE} for a word of more than {c4.LONG_WORD:,} characters"),
    _share("c4_no_terminal", f"{LINE} that do not end with a full stop, ?, ! or a quotation mark"),
    _share("c4_few_words", f"{LINE} of fewer than {c4.FEW_WORDS} words"),
    _share("c4_javascript", f'{LINE} that have the word "javascript"'),
    _share("c4_policy", f"{LINE} about cookies, privacy or terms of use"),
    _share("c4_taken", f"{LINE} of any of these kinds: the first counts, and they add up to this"),
    _count("c4_lorem_ipsum", 'lines with "lorem ipsum" that were not taken before', "lines"),
    _count("c4_curly_brackets", "lines with { that were not taken before", "lines"),
    _count("c4_sentences", "sentences in lines that are left, an estimate: a mark and white space "
           "part them", "sentences"),
    _share("terminal_lines", "of the lines that are not blank, those that end a sentence, in any "
           "script"),
    _share("short_lines", "of the lines that are not blank, the short ones"),
    _share("duplicate_characters", "of the characters but line feeds, those in lines not blank "
           "that stood in the text before"),
    column("feeds_per_word", pa.float64(), "figure", "line feeds to parts between white space",
           unit="ratio"),
)  # fmt: skip


#: Bytes of memory that the figures of one document take at most, by character of its text: a letter
#: a line takes 143, prose 60.
HELD = 145

#: How the reason begins for which a document has no figures on this machine.
TOO_LITTLE = "too little memory"

#: Bytes of text worked on at a time, so that what is held of them stays in the processor's cache.
BLOCK = 1 << 19


def blocks(column: pa.Array) -> Iterator[pa.Array]:
    """Pieces of a column of texts of about BLOCK bytes, or of one text."""
    ends = np.cumsum(pc.binary_length(column).to_numpy(), dtype=np.int64)
    start = 0
    while start < len(column):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK, side="right")))
        yield column[start:stop]
        start = stop


def check_memory(characters: int, there: int) -> None:
    """Unfit where a document of so many characters takes more memory than is there: whoever took
    it all the same would be killed, and say nothing."""
    needed = HELD * characters
    if needed > there:
        raise Unfit(
            f"{TOO_LITTLE}: the figures of its {characters:,} characters take {needed / 1e9:.1f} "
            f"GB, and this machine has {there / 1e9:.1f} GB; lower ingest.max_document_bytes, or "
            f"run on a larger one"
        )


def figures(column: pa.Array, config: QualityConfig) -> pa.Table:
    """The signals of a column of texts without nulls, a row each."""
    schema = pa.schema([(field.name, field.type) for field in SIGNALS][1:])
    found = [schema.empty_table()]
    for block in blocks(column):
        if len(block) == 1:
            check_memory(pc.utf8_length(block)[0].as_py(), memory())
        texts = Texts.of(block)
        columns = {
            **gopher.quality(texts, config.stop_words),
            **gopher.repetition(texts),
            **c4.c4(block, texts),
            **fineweb.fineweb(texts, config.short_line),
        }
        found.append(pa.table(columns, schema=schema))
    return pa.concat_tables(found)


def quality_part(part: Part, config: QualityConfig, out: Tables) -> Noted:
    return write_signals(part, partial(told, config=config), out)


def told(batch: pa.RecordBatch, config: QualityConfig) -> dict[str, pa.Array]:
    rows = figures(batch["text"], config).combine_chunks()
    return {name: rows[name].combine_chunks() for name in rows.column_names}


@stage(tables={"signals": SIGNALS}, libraries=["numpy", "pyarrow"])
def quality(documents: Table, config: QualityConfig, work: Work) -> None:
    """Holds a batch of a part at a time, and of one document up to 145 bytes a character. One for
    which this machine has too little memory has no figures, as others on which it fails, and is
    told with the remedy; on a larger machine it has."""
    done = work.parts(quality_part, documents.parts, config)
    failed = [part.value for part in done]
    if any(why.startswith(TOO_LITTLE) for part in failed for _, why in part):
        work.determinism = "machine"
    tell(work, failed, documents.rows, "the measurement of quality")
