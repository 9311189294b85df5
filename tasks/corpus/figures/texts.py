"""Texts of a batch as one array of code points, with their words, lines and paragraphs as spans.

What a figure needs of every character is so looked up and added up for all texts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: What a character is, as bits. WORDY: neither white space nor punctuation. TERMINAL: ends a
#: sentence, in any script; MARK: it does in English; CLOSING: may stand behind such a mark.
#: CAPITAL: of ASCII.
SPACE, BREAK, ALPHABETIC, WORDY, TERMINAL, MARK, CLOSING, CAPITAL = (1 << bit for bit in range(8))

#: White space and the ends of lines, as Python's ``str.split`` and ``str.splitlines`` have them.
SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
SPACES += "\u2028\u2029\u202f\u205f\u3000"
BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"

_TERMINALS = """
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
#: What ends a sentence, in any script: Unicode's Sentence_Terminal, as the FineWeb filter has it.
TERMINALS = "".join(chr(int(point, 16)) for point in _TERMINALS.split())

#: Of these alone no word is made, as datatrove has them: the papers do not say what a word is.
#: Emoji and bullets are not among them.
PUNCTUATION = (
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, [*range(9), 11, 12, *range(13, 32), *range(127, 160)]))
    + TERMINALS
)


#: An odd number without pattern.
BASE = np.uint64(0xD1342543DE82EF95)


@cache
def _classes() -> np.ndarray:
    """(0x110000,) uint8: the bits of each code point."""
    table = np.zeros(0x110000, np.uint8)
    known = np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x110000)]).astype("<u4")
    size = np.ones(len(known), np.int8)  # bytes of each in UTF-8; there are no surrogates
    for first in (0x80, 0x800, 0x10000):
        size += known >= first
    ends = np.zeros(len(known) + 1, np.int32)
    np.cumsum(size, out=ends[1:])
    letters = pa.py_buffer(known.tobytes().decode("utf-32-le").encode())
    characters = pa.StringArray.from_buffers(len(known), pa.py_buffer(ends), letters)
    table[known[pc.utf8_is_alpha(characters).to_numpy(zero_copy_only=False)]] = ALPHABETIC
    table |= WORDY
    for bit, given in (
        (SPACE, SPACES), (BREAK, BREAKS), (TERMINAL, TERMINALS), (MARK, ".?!"),
        (CLOSING, "\"')]”’"), (CAPITAL, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    ):  # fmt: skip
        table[[ord(character) for character in given]] |= bit
    for character in SPACES + PUNCTUATION:
        table[ord(character)] &= 0xFF ^ WORDY
    return table


def runs(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the runs of True; the last is False."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if len(mask) and mask[0]:
        edges = np.concatenate([[0], edges])
    return edges[::2], edges[1::2]


def mixed(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Fold one array of uint64 into another; the order of folding counts."""
    folded = (left ^ right) * np.uint64(0x9E3779B97F4A7C15)  # wraps
    return folded ^ (folded >> np.uint64(32))


@dataclass(frozen=True)
class Spans:
    """Pieces of texts, in their order: (m,) starts and ends in characters.

    Those of text i are the pieces ``first[i]:first[i + 1]``.
    """

    starts: np.ndarray
    ends: np.ndarray
    first: np.ndarray  # (n + 1,)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.ends - self.starts

    @cached_property
    def counts(self) -> np.ndarray:
        """(n,) how many pieces a text has."""
        return np.diff(self.first)

    @cached_property
    def of(self) -> np.ndarray:
        """(m,) number of the text that each is a piece of."""
        return np.repeat(np.arange(len(self.first) - 1), self.counts)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(n,) int64: a value of each piece added up by text."""
        if values.dtype == bool:
            return np.diff(np.searchsorted(np.flatnonzero(values), self.first))
        total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.diff(total[self.first])


@dataclass(frozen=True)
class Texts:
    """n texts behind one another, a line feed behind each that belongs to none.

    Text i is ``points[starts[i]:ends[i]]``.
    """

    points: np.ndarray  # (characters + n,) uint32
    starts: np.ndarray  # (n,) int64
    ends: np.ndarray  # (n,) int64

    @staticmethod
    def of(column: pa.Array) -> Texts:
        """Of an Arrow column of strings without nulls."""
        column = column.cast(pa.large_string())
        ends = np.cumsum(pc.utf8_length(column).to_numpy() + 1) - 1
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        none, feed = (pa.scalar(value, pa.large_string()) for value in ("", "\n"))
        ended = pc.binary_join_element_wise(column, none, feed)
        _, offsets, buffer = ended.buffers()
        first, last = np.frombuffer(offsets, np.int64)[[ended.offset, ended.offset + len(ended)]]
        data = memoryview(buffer or b"")[first:last]
        return Texts(np.frombuffer(str(data, "utf-8").encode("utf-32-le"), "<u4"), starts, ends)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> np.ndarray:
        """(n,) characters."""
        return self.ends - self.starts

    @cached_property
    def classes(self) -> np.ndarray:
        """(characters + n,) uint8: what each character is."""
        return _classes()[self.points]

    def counts(self, places: np.ndarray) -> np.ndarray:
        """(n,) how many of these places, ascending, are in each text."""
        return np.searchsorted(places, self.ends) - np.searchsorted(places, self.starts)

    def spans(self, starts: np.ndarray, ends: np.ndarray) -> Spans:
        first = np.append(np.searchsorted(starts, self.starts), len(starts))
        return Spans(starts, ends, first)

    @cached_property
    def words(self) -> Spans:
        """Runs of characters without white space between, as ``str.split`` has them."""
        return self.spans(*runs((self.classes & SPACE) == 0))

    @cached_property
    def kinds(self) -> np.ndarray:
        """(words,) uint8: the bits of all characters of a word together, but SPACE and BREAK."""
        if not len(self.words):
            return np.zeros(0, np.uint8)
        return np.bitwise_or.reduceat(self.classes, self.words.starts)

    @cached_property
    def lines(self) -> Spans:
        """As ``str.splitlines`` has them: also at other ends of lines than a line feed, and none
        behind the last."""
        breaks = (self.classes & BREAK) != 0
        pair = (self.points[:-1] == ord("\r")) & (self.points[1:] == ord("\n"))
        pair[self.ends[self.ends > 0] - 1] = False  # what follows is no part of the text
        breaks[:-1] &= ~pair
        breaks[self.ends] = True
        ends = np.flatnonzero(breaks)
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        after = np.zeros(len(self.points), bool)
        after[self.ends] = True
        there = ~after[ends] | (starts < ends)
        starts, ends = starts[there], ends[there]
        inner = ends > starts
        ends = ends - (inner & ~after[ends] & np.append(False, pair)[ends])
        return self.spans(starts, ends)

    @cached_property
    def _feeds(self) -> tuple[np.ndarray, np.ndarray]:
        feeds = self.points == ord("\n")
        feeds[self.ends] = False
        return runs(feeds)

    @cached_property
    def blocks(self) -> Spans:
        """Between one line feed or more, as ``re.split("\\n+", text)`` has them: also what is empty
        at the beginning and the end."""
        return self._between(*self._feeds, self.starts, self.ends)

    @cached_property
    def paragraphs(self) -> Spans:
        """Between two line feeds or more, white space at the ends left out; at least one a text."""
        words = self.words
        some = words.counts > 0
        starts, ends = self.ends.copy(), self.ends.copy()
        starts[some] = words.starts[words.first[:-1][some]]
        ends[some] = words.ends[words.first[1:][some] - 1]
        left, right = self._feeds
        text = np.searchsorted(self.starts, left, side="right") - 1
        inside = (right - left > 1) & (left >= starts[text]) & (right <= ends[text])
        return self._between(left[inside], right[inside], starts, ends)

    def _between(
        self, left: np.ndarray, right: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> Spans:
        """What separators, from left to right, part the texts from starts to ends into."""
        starts = np.sort(np.concatenate([starts, right]), kind="stable")
        return self.spans(starts, np.sort(np.concatenate([left, ends]), kind="stable"))

    def words_in(self, spans: Spans) -> tuple[np.ndarray, np.ndarray]:
        """(m,) first and end of the words in each span; no word lies across its ends."""
        starts = self.words.starts
        return np.searchsorted(starts, spans.starts), np.searchsorted(starts, spans.ends)

    @cached_property
    def _prefixes(self) -> tuple[np.ndarray, np.ndarray]:
        powers = np.full(len(self.points) + 1, BASE)
        powers[0] = 1
        powers = np.cumprod(powers)  # wraps
        total = np.zeros(len(powers), np.uint64)
        np.cumsum(self.points * powers[:-1], out=total[1:])
        return total, powers

    def hashes(self, spans: Spans) -> np.ndarray:
        """(m,) uint64, to be compared within these texts: polynomials in BASE modulo 2^64.

        All are multiplied up to one power, so that equal spans have equal hashes wherever they
        stand. Whoever makes two texts collide makes his own document count as one that repeats
        itself, which is easier had.
        """
        total, powers = self._prefixes
        sums = (total[spans.ends] - total[spans.starts]) * powers[len(self.points) - spans.starts]
        return mixed(sums, spans.lengths.astype(np.uint64))

    @cached_property
    def word_hashes(self) -> np.ndarray:
        return self.hashes(self.words)

    def word_hash(self, word: str) -> np.uint64:
        """The hash that a word of these texts has if it is this one."""
        total, base = 0, int(BASE)
        for place, character in enumerate(word):
            total += ord(character) * pow(base, len(self.points) + place, 1 << 64)
        hashed = np.array([total % (1 << 64)], np.uint64)
        return mixed(hashed, np.array([len(word)], np.uint64))[0]


def share(part: np.ndarray, whole: np.ndarray) -> pa.Array:
    """(n,) float64: part / whole, null where the whole is nothing."""
    known = whole > 0
    quotient = part / np.where(known, whole, 1)
    return pa.array(quotient, mask=~known)
