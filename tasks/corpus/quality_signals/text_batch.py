"""Store a batch of texts as one array of code points, with words, lines and paragraphs as spans.

So a figure that needs every character is computed for all texts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.measures.normalised_words import mix_hashes

#: Classes of characters, as bits. WORD_CHARACTER: neither white space nor punctuation.
#: SENTENCE_END: ends a sentence in any script; ENGLISH_END_MARK: in English. CLOSING_MARK: may
#: follow such a mark.
(
    WHITE_SPACE,
    LINE_BREAK,
    ALPHABETIC,
    WORD_CHARACTER,
    SENTENCE_END,
    ENGLISH_END_MARK,
    CLOSING_MARK,
    ASCII_CAPITAL,
) = (1 << bit for bit in range(8))

#: White space and line ends of Python's ``str.split`` and ``str.splitlines``.
SPACE_CHARACTERS = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680" + "".join(
    map(chr, range(0x2000, 0x200B))
)
SPACE_CHARACTERS += "\u2028\u2029\u202f\u205f\u3000"
BREAK_CHARACTERS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"

_TERMINAL_CODE_POINTS = """
21 2e 3f 589 61d 61e 61f 6d4 700 701 702 7f9 837 839 83d 83e 964 965 104a 104b 1362 1367 1368 166e
1735 1736 17d4 17d5 17d6 17d9 17da 1803 1809 1944 1945 1aa8 1aa9 1aaa 1aab 1b5a 1b5b 1b5e 1b5f
1b7d 1b7e 1c3b 1c3c 1c7e 1c7f 203c 203d 2047 2048 2049 2e2e 2e3c 2e53 2e54 3002 a4ff a60e a60f
a6f3 a6f7 a876 a877 a8ce a8cf a92f a9c8 a9c9 aa5d aa5e aa5f aaf0 aaf1 abeb fe52 fe56 fe57 ff01
ff0e ff1f ff61 10a56 10a57 10f55 10f56 10f57 10f58 10f59 10f86 10f87 10f88 10f89 11047 11048 110be
110bf 110c0 110c1 11141 11142 11143 111c5 111c6 111cd 111de 111df 11238 11239 1123b 1123c 112a9
1144b 1144c 115c2 115c3 115c9 115ca 115cb 115cc 115cd 115ce 115cf 115d0 115d1 115d2 115d3 115d4
115d5 115d6 115d7 11641 11642 1173c 1173d 1173e 11944 11946 11a42 11a43 11a9b 11a9c 11c41 11c42
11ef7 11ef8 11f43 11f44 16a6e 16a6f 16af5 16b37 16b38 16b44 16e98 1bc9f 1da88
"""
#: Sentence ends of all scripts: Unicode's Sentence_Terminal, as in the FineWeb filter.
TERMINAL_CHARACTERS = "".join(chr(int(point, 16)) for point in _TERMINAL_CODE_POINTS.split())

#: Characters that alone do not form a word, as in datatrove; the papers do not define words. Emoji
#: and bullets are not included.
PUNCTUATION_CHARACTERS = (
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, [*range(9), 11, 12, *range(13, 32), *range(127, 160)]))
    + TERMINAL_CHARACTERS
)


#: A random odd number.
HASH_BASE = np.uint64(0xD1342543DE82EF95)


@cache
def _build_character_classes() -> np.ndarray:
    """Build the class bits of each code point, (0x110000,) uint8."""
    class_bits = np.zeros(0x110000, np.uint8)
    code_points = np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x110000)]).astype("<u4")
    # Bytes of each code point in UTF-8; surrogates are excluded.
    utf8_sizes = np.ones(len(code_points), np.int8)
    for size_boundary in (0x80, 0x800, 0x10000):
        utf8_sizes += code_points >= size_boundary
    offsets = np.zeros(len(code_points) + 1, np.int32)
    np.cumsum(utf8_sizes, out=offsets[1:])
    utf8_buffer = pa.py_buffer(code_points.tobytes().decode("utf-32-le").encode())
    characters = pa.StringArray.from_buffers(len(code_points), pa.py_buffer(offsets), utf8_buffer)
    class_bits[code_points[pc.utf8_is_alpha(characters).to_numpy(zero_copy_only=False)]] = (
        ALPHABETIC
    )
    class_bits |= WORD_CHARACTER
    for bit, class_characters in (
        (WHITE_SPACE, SPACE_CHARACTERS),
        (LINE_BREAK, BREAK_CHARACTERS),
        (SENTENCE_END, TERMINAL_CHARACTERS),
        (ENGLISH_END_MARK, ".?!"),
        (CLOSING_MARK, "\"')]”’"),
        (ASCII_CAPITAL, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    ):
        class_bits[[ord(character) for character in class_characters]] |= bit
    for character in SPACE_CHARACTERS + PUNCTUATION_CHARACTERS:
        class_bits[ord(character)] &= 0xFF ^ WORD_CHARACTER
    return class_bits


class Runs(NamedTuple):
    """Hold where k runs start and end."""

    starts: np.ndarray
    """Shape (k,)."""
    ends: np.ndarray
    """Exclusive ends; shape (k,)."""


def find_true_runs(mask: np.ndarray) -> Runs:
    """Find the runs of True; the last value must be False."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if len(mask) and mask[0]:
        edges = np.concatenate([[0], edges])
    return Runs(edges[::2], edges[1::2])


@dataclass(frozen=True)
class TextSpans:
    """Hold spans of texts in order: (m,) starts and ends in characters.

    Text i has the spans ``offsets[i]:offsets[i + 1]``.
    """

    starts: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray  # (n + 1,)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> np.ndarray:
        lengths: np.ndarray = self.ends - self.starts
        return lengths

    @cached_property
    def counts_by_text(self) -> np.ndarray:
        """Return the number of spans of each text, (n,)."""
        return np.diff(self.offsets)

    @cached_property
    def text_numbers(self) -> np.ndarray:
        """Return the number of the text of each span, (m,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts_by_text)

    def sum_by_text(self, values: np.ndarray) -> np.ndarray:
        """Sum the values of the spans of each text, (n,) int64."""
        if values.dtype == bool:
            return np.diff(np.searchsorted(np.flatnonzero(values), self.offsets))
        cumulative = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.diff(cumulative[self.offsets])


class WordRanges(NamedTuple):
    """Hold the range of the words in each of m spans."""

    first_words: np.ndarray
    """Index of the first word; shape (m,)."""
    end_words: np.ndarray
    """Index of the first word after the span; shape (m,)."""


class PrefixHashes(NamedTuple):
    """Hold what is needed to hash any span of a batch."""

    prefix_sums: np.ndarray
    """Polynomial hash of all characters before each position; uint64, shape (characters + 1,)."""
    powers: np.ndarray
    """Powers of HASH_BASE; uint64, shape (characters + 1,)."""


@dataclass(frozen=True)
class TextBatch:
    """Hold n concatenated texts, with a line feed after each that belongs to no text.

    Text i is ``code_points[starts[i]:ends[i]]``.
    """

    code_points: np.ndarray  # (characters + n,) uint32
    starts: np.ndarray  # (n,) int64
    ends: np.ndarray  # (n,) int64

    @staticmethod
    def from_column(text_column: pa.Array) -> TextBatch:
        """Convert an Arrow column of strings without nulls."""
        text_column = text_column.cast(pa.large_string())
        ends = np.cumsum(pc.utf8_length(text_column).to_numpy() + 1) - 1
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        separator, line_feed = (pa.scalar(value, pa.large_string()) for value in ("", "\n"))
        terminated = pc.binary_join_element_wise(text_column, separator, line_feed)
        _, offsets, buffer = terminated.buffers()
        start_byte, end_byte = np.frombuffer(offsets, np.int64)[
            [terminated.offset, terminated.offset + len(terminated)]
        ]
        utf8_bytes = memoryview(buffer or b"")[start_byte:end_byte]
        return TextBatch(
            np.frombuffer(str(utf8_bytes, "utf-8").encode("utf-32-le"), "<u4"), starts, ends
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of characters of each text, (n,)."""
        lengths: np.ndarray = self.ends - self.starts
        return lengths

    @cached_property
    def character_classes(self) -> np.ndarray:
        """Return the class bits of each character, (characters + n,) uint8."""
        classes: np.ndarray = _build_character_classes()[self.code_points]
        return classes

    def count_positions_by_text(self, positions: np.ndarray) -> np.ndarray:
        """Count the ascending positions that are in each text, (n,)."""
        return np.searchsorted(positions, self.ends) - np.searchsorted(positions, self.starts)

    def make_spans(self, starts: np.ndarray, ends: np.ndarray) -> TextSpans:
        """Assign spans, which are in order, to the texts that contain them."""
        offsets = np.append(np.searchsorted(starts, self.starts), len(starts))
        return TextSpans(starts, ends, offsets)

    @cached_property
    def words(self) -> TextSpans:
        """Return the words: runs without white space, as in ``str.split``."""
        return self.make_spans(*find_true_runs((self.character_classes & WHITE_SPACE) == 0))

    @cached_property
    def word_classes(self) -> np.ndarray:
        """Return the union of the class bits of the characters of each word, (words,) uint8."""
        if not len(self.words):
            return np.zeros(0, np.uint8)
        return np.bitwise_or.reduceat(self.character_classes, self.words.starts)

    @cached_property
    def lines(self) -> TextSpans:
        """Return the lines as ``str.splitlines`` does.

        It splits at other line ends than line feeds, too, and finds no line after the last end.
        """
        is_break = (self.character_classes & LINE_BREAK) != 0
        is_crlf = (self.code_points[:-1] == ord("\r")) & (self.code_points[1:] == ord("\n"))
        # the line feed after a text does not belong to it
        is_crlf[self.ends[self.ends > 0] - 1] = False
        is_break[:-1] &= ~is_crlf
        is_break[self.ends] = True
        ends = np.flatnonzero(is_break)
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        is_text_end = np.zeros(len(self.code_points), bool)
        is_text_end[self.ends] = True
        is_line = ~is_text_end[ends] | (starts < ends)
        starts, ends = starts[is_line], ends[is_line]
        is_nonempty = ends > starts
        ends = ends - (is_nonempty & ~is_text_end[ends] & np.append(False, is_crlf)[ends])
        return self.make_spans(starts, ends)

    @cached_property
    def _line_feed_runs(self) -> Runs:
        is_line_feed = self.code_points == ord("\n")
        is_line_feed[self.ends] = False
        return find_true_runs(is_line_feed)

    @cached_property
    def line_blocks(self) -> TextSpans:
        r"""Return the spans between runs of line feeds, as ``re.split("\\n+", text)`` does.

        Empty spans at the beginning and the end are included.
        """
        return self._split_at_separators(*self._line_feed_runs, self.starts, self.ends)

    @cached_property
    def paragraphs(self) -> TextSpans:
        """Return the spans between runs of two or more line feeds.

        White space at the ends of a text is excluded; each text has at least one paragraph.
        """
        words = self.words
        has_words = words.counts_by_text > 0
        starts, ends = self.ends.copy(), self.ends.copy()
        starts[has_words] = words.starts[words.offsets[:-1][has_words]]
        ends[has_words] = words.ends[words.offsets[1:][has_words] - 1]
        run_starts, run_ends = self._line_feed_runs
        text_numbers = np.searchsorted(self.starts, run_starts, side="right") - 1
        is_separator = (
            (run_ends - run_starts > 1)
            & (run_starts >= starts[text_numbers])
            & (run_ends <= ends[text_numbers])
        )
        return self._split_at_separators(
            run_starts[is_separator], run_ends[is_separator], starts, ends
        )

    def _split_at_separators(
        self,
        separator_starts: np.ndarray,
        separator_ends: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
    ) -> TextSpans:
        """Split the texts from starts to ends at the separators, which are in order."""
        starts = np.sort(np.concatenate([starts, separator_ends]), kind="stable")
        return self.make_spans(
            starts, np.sort(np.concatenate([separator_starts, ends]), kind="stable")
        )

    def find_word_ranges(self, spans: TextSpans) -> WordRanges:
        """Find the words in each span; no word crosses the ends of a span."""
        word_starts = self.words.starts
        return WordRanges(
            np.searchsorted(word_starts, spans.starts), np.searchsorted(word_starts, spans.ends)
        )

    @cached_property
    def _prefix_hashes(self) -> PrefixHashes:
        powers = np.full(len(self.code_points) + 1, HASH_BASE)
        powers[0] = 1
        powers = np.cumprod(powers)  # overflow is intended
        prefix_sums = np.zeros(len(powers), np.uint64)
        np.cumsum(self.code_points * powers[:-1], out=prefix_sums[1:])
        return PrefixHashes(prefix_sums, powers)

    def hash_spans(self, spans: TextSpans) -> np.ndarray:
        """Hash spans, (m,) uint64, for comparisons within this batch.

        Hashes are polynomials in HASH_BASE modulo 2^64, multiplied up to the same power, so that
        equal spans have equal hashes at any position. They are not safe against deliberate
        collisions, but a collision only makes a document look repetitive, which its author can do
        without one.
        """
        prefix_sums, powers = self._prefix_hashes
        span_sums = (prefix_sums[spans.ends] - prefix_sums[spans.starts]) * powers[
            len(self.code_points) - spans.starts
        ]
        return mix_hashes(span_sums, spans.lengths.astype(np.uint64))

    @cached_property
    def word_hashes(self) -> np.ndarray:
        return self.hash_spans(self.words)

    def hash_word(self, word: str) -> np.uint64:
        """Return the hash that this word has in this batch."""
        polynomial, base = 0, int(HASH_BASE)
        for position, character in enumerate(word):
            polynomial += ord(character) * pow(base, len(self.code_points) + position, 1 << 64)
        polynomial_hash = np.array([polynomial % (1 << 64)], np.uint64)
        word_hash: np.uint64 = mix_hashes(polynomial_hash, np.array([len(word)], np.uint64))[0]
        return word_hash


def divide_or_null(numerator: np.ndarray, denominator: np.ndarray) -> pa.Array:
    """Divide, (n,) float64; null where the denominator is not positive."""
    is_positive = denominator > 0
    quotient = numerator / np.where(is_positive, denominator, 1)
    return pa.array(quotient, mask=~is_positive)
