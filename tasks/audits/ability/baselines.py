"""What a language model is measured against: n-gram models and gzip over the same text.

The n-gram models are interpolated modified Kneser-Ney (Chen & Goodman 1999, section 3; counts at
the beginning of documents as in Heafield et al. 2013). They predict each token of a document, and
its end, from up to order - 1 tokens that never reach beyond the document's beginning.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Documents = Sequence[Sequence[int]]

#: Discounts of n-grams that occur once, twice, more often, where a corpus is too small to
#: estimate them (the fallback of KenLM).
FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Order:
    """The n-grams of one length k, numbered in the order of their keys.

    key      (n,) number of the (k-1)-gram in front * width + the last token; sorted
    share    (n,) what the n-gram has of its context after the discount
    backoff  (contexts,) what the context leaves to the shorter one
    """

    key: Int64
    share: Float64
    backoff: Float64

    def find(self, key: Int64) -> Int64:
        """Number of each n-gram, -1 where it was never seen."""
        if not len(self.key):
            return np.full(len(key), -1, np.int64)
        place = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        return np.where(self.key[place] == key, place, -1)


class NgramModel:
    """An interpolated modified Kneser-Ney model over the token ids 0 ... vocab_size - 1.

    vocab_size + 1 events are predicted: every token, and the end of the document.
    Memory: about 100 bytes a training token while it counts, 16 bytes a distinct n-gram after.
    """

    def __init__(self, documents: Documents, order: int, vocab_size: int) -> None:
        if order < 1 or not len(documents):
            raise ValueError("an n-gram model needs an order of at least 1 and some documents")
        self.order, self.vocab_size = order, vocab_size
        self.end, self.begin, self.width = vocab_size, vocab_size + 1, vocab_size + 2
        tokens, depth, _ = self._flatten(documents, end=True)
        self.orders: list[Order] = []
        contexts = 1
        number, key, _ = self._number(tokens, np.zeros_like(tokens), depth >= 0)
        for k in range(1, order + 1):
            if k == order:
                counts = np.bincount(number[depth >= max(1, k - 1)], minlength=len(key))
                self.orders.append(_smoothed(key, counts, contexts, self.width))
                return
            longer, longer_key, longer_first = self._number(tokens, _before(number), depth >= k)
            # Lower orders count the different tokens in front of an n-gram, not the n-gram ...
            counts = np.bincount(number[longer_first], minlength=len(key))
            if k > 1:  # ... but nothing ever stands in front of a document's beginning.
                counts += np.bincount(number[depth == k - 1], minlength=len(key))
            self.orders.append(_smoothed(key, counts, contexts, self.width))
            # Texts too short for this order leave no context: one that nobody asks for stands in.
            contexts, number, key = max(1, len(key)), longer, longer_key

    def _flatten(self, documents: Documents, end: bool) -> tuple[Int64, Int64, Int64]:
        """Tokens of all documents behind their beginnings, each token's place in its document,
        and the document's number; all (tokens,)."""
        sizes = np.array([len(d) + 1 + end for d in documents], np.int64)
        tokens = np.full(int(sizes.sum()), self.end, np.int64)
        starts = np.cumsum(sizes) - sizes
        inside = np.ones(len(tokens), bool)
        inside[starts] = False
        if end:
            inside[starts + sizes - 1] = False
        tokens[starts] = self.begin
        tokens[inside] = np.fromiter(chain.from_iterable(documents), np.int64, int(inside.sum()))
        document = np.repeat(np.arange(len(sizes)), sizes)
        return tokens, np.arange(len(tokens)) - starts[document], document

    def _number(
        self, tokens: Int64, context: Int64, inside: NDArray[np.bool_]
    ) -> tuple[Int64, Int64, Int64]:
        """Number the n-grams that end at the positions ``inside``: the number at each position
        (-1 elsewhere), and each n-gram's key and first position."""
        places = np.flatnonzero(inside)
        keys = context[places] * self.width + tokens[places]
        key, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        number = np.full(len(tokens), -1, np.int64)
        number[places] = inverse
        return number, key, places[first]

    def probabilities(self, documents: Documents, *, end: bool = False) -> Float64:
        """p of every token of the documents (and of each document's end), in their order."""
        tokens, depth, _ = self._flatten(documents, end)
        p = np.full(len(tokens), 1 / (self.vocab_size + 1))
        context = np.zeros_like(tokens)
        for k, order in enumerate(self.orders, start=1):
            known = (depth >= k - 1) & (context >= 0)
            number = np.where(known, order.find(context * self.width + tokens), -1)
            share = np.zeros_like(p)
            share[number >= 0] = order.share[number[number >= 0]]
            p = np.where(known, share + order.backoff[context] * p, p)
            context = _before(number)
        return p[depth > 0]

    def bits(self, documents: Documents) -> Float64:
        """Bits that the tokens of each document cost, (documents,)."""
        sizes = np.array([len(d) for d in documents], np.int64)
        cost = -np.log2(self.probabilities(documents))
        document = np.repeat(np.arange(len(sizes)), sizes)
        return np.bincount(document, cost, minlength=len(sizes)).astype(np.float64)


def _before(number: Int64) -> Int64:
    """At each position the number that stands just before it."""
    return np.concatenate([np.array([-1], np.int64), number[:-1]])


def _smoothed(key: Int64, counts: Int64, contexts: int, width: int) -> Order:
    """Discount the counts (Chen & Goodman 1999, equations 26 to 28)."""
    discount = np.array([0.0, *discounts(counts)])[np.minimum(counts, 3)]
    context = key // width
    total = np.bincount(context, counts, minlength=contexts)
    left = np.bincount(context, discount, minlength=contexts)
    seen = total > 0
    backoff = np.divide(left, total, out=np.ones(contexts), where=seen)
    share = np.divide(counts - discount, total[context], out=np.zeros(len(key)),
                      where=seen[context])  # fmt: skip
    return Order(key, share, backoff)


def discounts(counts: Int64) -> tuple[float, float, float]:
    """D1, D2, D3+ from the counts of counts (Chen & Goodman 1999, equation 26)."""
    n1, n2, n3, n4 = (float((counts == j).sum()) for j in (1, 2, 3, 4))
    if not n1 or not n2 or not n3:
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    usable = all(0 < d <= j for j, d in enumerate(found, start=1))
    return found if usable else FALLBACK


# Compression ---------------------------------------------------------------------------------


def gzip_bits(texts: Sequence[bytes]) -> int:
    """Bits of ``gzip -9`` over the texts, one behind the other, header and trailer included."""
    return 8 * len(gzip.compress(b"".join(texts), 9, mtime=0))


def gzip_bits_per_byte(texts: Sequence[bytes], groups: int = 20) -> tuple[float, float, int]:
    """Bits per byte of gzip -9, its jackknife standard error and the number of groups left out.

    A bootstrap would hand gzip copies of documents to find. The delete-a-group jackknife
    (Efron & Tibshirani 1993, section 11.5) leaves a group of documents out at a time. The error
    is NaN with fewer than two groups.
    """
    size = sum(map(len, texts))
    groups = min(groups, len(texts))
    if not size:
        return np.nan, np.nan, 0
    value = gzip_bits(texts) / size
    if groups < 2:
        return value, np.nan, groups
    rates = []
    for group in range(groups):
        rest = [text for i, text in enumerate(texts) if i % groups != group]
        rates.append(gzip_bits(rest) / max(1, sum(map(len, rest))))
    spread = np.square(np.array(rates) - np.mean(rates)).sum()
    return value, float(np.sqrt((groups - 1) / groups * spread)), groups
