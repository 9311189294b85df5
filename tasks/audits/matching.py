"""Where texts stand word for word in a corpus: runs of tokens, found while the corpus streams by.

The texts are indexed, all their windows of so many tokens, by a rolling hash (Karp & Rabin 1987);
windows of the corpus are looked up and compared. Windows side by side in both are a longer run.

Memory: some 50 bytes a token of the texts, 16 MB, and what is found in a batch of the corpus;
nothing grows with the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.draws import combine

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

#: Base of the hash, odd so that it has an inverse modulo 2**64.
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))

#: Bits of the table that a window must pass before it is looked up.
_SIEVE = 24

#: Pairs of windows that are held at once; and those of a single one that are all followed.
_PAIRS, _OFTEN = 1 << 22, 1 << 16


@dataclass(frozen=True)
class Runs:
    """Runs that stand in a text and in a row of the corpus and can be no longer, each (n,):
    number of the text, first token there, row, first token there, tokens."""

    text: Int64
    start: Int64
    row: Int64
    place: Int64
    size: Int64


class Windows:
    """The windows of ``size`` tokens of some texts. Of one that stands at so many places of them
    and of the rows that more than _OFTEN pairs are the same, as a lone word over and over, only
    the first ``common`` places in the texts are followed."""

    def __init__(self, texts: Sequence[Sequence[int]], size: int, common: int = 1 << 8) -> None:
        if size < 2:
            raise ValueError(f"windows of {size} tokens tell nothing; they need two")
        lengths = np.array([len(text) for text in texts], np.int64)
        self.size, self.first = size, np.concatenate([[0], np.cumsum(lengths)])
        self.tokens = np.fromiter((i for text in texts for i in text), np.int32, self.first[-1])
        self.owner = np.repeat(np.arange(len(texts)), lengths)
        hashes = hashes_of(self.tokens[None], size)[0]
        # A window that reaches into the next text is none.
        at = np.flatnonzero(self.owner[: len(hashes)] == self.owner[size - 1 :][: len(hashes)])
        order = at[np.argsort(hashes[at], kind="stable")]
        self.known, begin, counts = np.unique(hashes[order], return_index=True, return_counts=True)
        self.places, self.begin, self.counts, self.common = order, begin, counts, common
        self.sieve = np.zeros(1 << _SIEVE, bool)
        self.sieve[self.known >> np.uint64(64 - _SIEVE)] = True

    def found(self, rows: Int32) -> tuple[Int64, Int64]:
        """Windows of rows (n, width) whose hash is known: place in the flat rows, and number in
        ``known``."""
        if rows.shape[1] < self.size or not len(self.known):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        hashes = hashes_of(rows, self.size)  # (n, width - size + 1)
        there = np.flatnonzero(self.sieve[hashes.reshape(-1) >> np.uint64(64 - _SIEVE)])
        passed = hashes.reshape(-1)[there]
        number = np.searchsorted(self.known, passed)
        number = np.minimum(number, len(self.known) - 1)
        right = self.known[number] == passed
        wide = hashes.shape[1]
        place = there[right] // wide * rows.shape[1] + there[right] % wide
        return place, number[right]

    def pairs(self, rows: Int32) -> Iterator[tuple[Int64, Int64]]:
        """Places in the flat rows, and in the texts, at which the same tokens begin."""
        place, number = self.found(rows)
        many = self.counts[number]
        often = many * np.bincount(number, minlength=1)[number] > _OFTEN
        many = np.where(often, np.minimum(many, self.common), many)
        before = np.cumsum(many)
        cuts = np.searchsorted(before, np.arange(_PAIRS, [*before, 0][-1], _PAIRS))
        for some in np.split(np.arange(len(place)), cuts):
            yield self._same(rows, place[some], number[some], many[some])

    def _same(self, rows: Int32, place: Int64, number: Int64, many: Int64) -> tuple[Int64, Int64]:
        """Places in the rows and in the texts, of each window the first so ``many``, where windows
        of equal hash are the same."""
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        theirs = self.places[np.repeat(self.begin[number], many) + within]
        ours, flat = np.repeat(place, many), rows.reshape(-1)
        for step in range(self.size):  # hashes may agree by chance
            same = flat[ours + step] == self.tokens[theirs + step]
            ours, theirs = ours[same], theirs[same]
        return ours, theirs

    def runs(self, rows: Int32) -> Runs:
        """What stands in rows (n, width) and in the texts: the longest runs, each within one row
        and one text."""
        pairs = [*self.pairs(rows)]
        place = np.concatenate([p for p, _ in pairs]) if pairs else np.empty(0, np.int64)
        theirs = np.concatenate([t for _, t in pairs]) if pairs else np.empty(0, np.int64)
        order = np.lexsort((place, place - theirs))
        place, theirs = place[order], theirs[order]
        # Side by side in both: neither rows nor texts have a window at their last tokens.
        new = np.ones(len(place), bool)
        new[1:] = (np.diff(place) != 1) | (np.diff(theirs) != 1)
        head = np.flatnonzero(new)
        size = np.diff([*head, len(place)]) + self.size - 1
        text = self.owner[theirs[head]]
        row, at = np.divmod(place[head], rows.shape[1])
        return Runs(text, theirs[head] - self.first[text], row, at, size.astype(np.int64))

    def cover(self, rows: Int32, covered: NDArray[np.bool_]) -> None:
        """Mark in ``covered`` (tokens of the texts, one behind the other) what stands in these rows
        in a window: of windows that are common, too."""
        place, number = self.found(rows)
        number, first = np.unique(number, return_index=True)
        _, theirs = self._same(rows, place[first], number, self.counts[number])
        for step in range(self.size):
            covered[theirs + step] = True


def hashes_of(rows: Int32, size: int) -> UInt64:
    """The hash of each window of rows (n, width): (n, width - size + 1), sum of h(token) b**(size -
    place) modulo 2**64."""
    n, width = rows.shape
    if width < size:
        return np.empty((n, 0), np.uint64)
    power, inverse = np.ones(width + 1, np.uint64), np.ones(width + 1, np.uint64)
    power[1:], inverse[1:] = _BASE, _INVERSE
    power, inverse = np.cumprod(power), np.cumprod(inverse)
    mixed = combine(0, rows.astype(np.uint64))  # so that near ids have far hashes
    sums = np.zeros((n, width + 1), np.uint64)
    np.cumsum(mixed * inverse[1:], axis=1, out=sums[:, 1:])
    return ((sums[:, size:] - sums[:, :-size]) * power[size:]).astype(np.uint64)
