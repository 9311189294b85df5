"""Provide baselines for language models: n-gram models and gzip over the same text.

The n-gram models are interpolated modified Kneser-Ney (Chen & Goodman 1999, section 3; counts at
the beginning of documents as in Heafield et al. 2013). They predict each token of a document, and
its end, from up to order - 1 preceding tokens of the same document.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
TokenizedDocuments = Sequence[Sequence[int]]


class Discounts(NamedTuple):
    """Hold how much is subtracted from the counts of n-grams.

    Attributes:
        once: From n-grams that occur once.
        twice: From n-grams that occur twice.
        more: From n-grams that occur more often.
    """

    once: float
    twice: float
    more: float


#: Discounts if a corpus is too small to estimate them (those of KenLM).
FALLBACK_DISCOUNTS = Discounts(0.5, 1.0, 1.5)


class FlatTokens(NamedTuple):
    """Hold the tokens of concatenated documents, each array (tokens,).

    Attributes:
        tokens: The tokens, with a begin token before each document.
        positions: Position of each token in its document; 0: the begin token.
    """

    tokens: Int64
    positions: Int64


class NumberedNgrams(NamedTuple):
    """Hold the n-grams of one length in some tokens.

    Attributes:
        ngram_ids: Number of the n-gram that ends at each position, (tokens,); -1: none.
        ngram_keys: Key of each n-gram, see ``NgramOrder``, (n,).
        first_positions: First position where each n-gram ends, (n,).
    """

    ngram_ids: Int64
    ngram_keys: Int64
    first_positions: Int64


class GzipRate(NamedTuple):
    """Hold the bits per byte of gzip.

    Attributes:
        bits_per_byte: The estimate; NaN without bytes.
        standard_error: Of the jackknife; NaN with fewer than two groups.
        group_count: Number of groups of the jackknife.
    """

    bits_per_byte: float
    standard_error: float
    group_count: int


@dataclass(frozen=True)
class NgramOrder:
    """Hold the n-grams of one length k, numbered in the order of their keys.

    Attributes:
        ngram_keys: Number of the preceding (k-1)-gram * key_base + last token, (n,), sorted.
        discounted_probs: Probability of the last token after the discount, (n,).
        backoff_weights: Probability mass that each context gives to the shorter one, (contexts,).
    """

    ngram_keys: Int64
    discounted_probs: Float64
    backoff_weights: Float64

    def find_ngram_ids(self, keys: Int64) -> Int64:
        """Return the number of each n-gram, -1 if it was never seen."""
        if not len(self.ngram_keys):
            return np.full(len(keys), -1, np.int64)
        positions = np.minimum(np.searchsorted(self.ngram_keys, keys), len(self.ngram_keys) - 1)
        return np.where(self.ngram_keys[positions] == keys, positions, -1)


class NgramModel:
    """An interpolated modified Kneser-Ney model over the token ids 0 ... vocab_size - 1.

    It predicts vocab_size + 1 events: every token, and the end of the document. Memory: about 100
    bytes per training token while counting, then 16 bytes per distinct n-gram.
    """

    def __init__(self, documents: TokenizedDocuments, order: int, vocab_size: int) -> None:
        if order < 1 or not len(documents):
            raise ValueError(
                "an n-gram model needs an order of at least 1 and at least one training document"
            )
        self.order, self.vocab_size = order, vocab_size
        self.end_token, self.begin_token, self.key_base = vocab_size, vocab_size + 1, vocab_size + 2
        tokens, document_positions = self._flatten_documents(documents, with_end=True)
        self.orders: list[NgramOrder] = []
        context_count = 1
        ngrams = self._number_ngrams(tokens, np.zeros_like(tokens), document_positions >= 0)
        for k in range(1, order + 1):
            if k == order:
                counts = np.bincount(
                    ngrams.ngram_ids[document_positions >= max(1, k - 1)],
                    minlength=len(ngrams.ngram_keys),
                )
                self.orders.append(
                    _build_smoothed_order(ngrams.ngram_keys, counts, context_count, self.key_base)
                )
                return
            longer_ngrams = self._number_ngrams(
                tokens, _shift_by_one_position(ngrams.ngram_ids), document_positions >= k
            )
            # Lower orders count the distinct tokens that precede an n-gram, not the n-gram ...
            counts = np.bincount(
                ngrams.ngram_ids[longer_ngrams.first_positions], minlength=len(ngrams.ngram_keys)
            )
            if k > 1:  # ... but nothing precedes the beginning of a document.
                counts += np.bincount(
                    ngrams.ngram_ids[document_positions == k - 1], minlength=len(ngrams.ngram_keys)
                )
            self.orders.append(
                _build_smoothed_order(ngrams.ngram_keys, counts, context_count, self.key_base)
            )
            # If all texts are too short for this order, one unused context avoids empty arrays.
            context_count, ngrams = max(1, len(ngrams.ngram_keys)), longer_ngrams

    def _flatten_documents(self, documents: TokenizedDocuments, *, with_end: bool) -> FlatTokens:
        """Concatenate all documents, each after a begin token; ``with_end`` adds an end token."""
        sizes = np.array([len(d) + 1 + with_end for d in documents], np.int64)
        tokens = np.full(int(sizes.sum()), self.end_token, np.int64)
        starts = np.cumsum(sizes) - sizes
        is_document_token = np.ones(len(tokens), bool)
        is_document_token[starts] = False
        if with_end:
            is_document_token[starts + sizes - 1] = False
        tokens[starts] = self.begin_token
        tokens[is_document_token] = np.fromiter(
            chain.from_iterable(documents), np.int64, int(is_document_token.sum())
        )
        document_indices = np.repeat(np.arange(len(sizes)), sizes)
        return FlatTokens(tokens, np.arange(len(tokens)) - starts[document_indices])

    def _number_ngrams(
        self, tokens: Int64, context_ids: Int64, is_ngram_end: NDArray[np.bool_]
    ) -> NumberedNgrams:
        """Number the n-grams that end at the positions ``is_ngram_end``."""
        positions = np.flatnonzero(is_ngram_end)
        keys = context_ids[positions] * self.key_base + tokens[positions]
        unique_keys, first_indices, inverse = np.unique(
            keys, return_index=True, return_inverse=True
        )
        ngram_ids = np.full(len(tokens), -1, np.int64)
        ngram_ids[positions] = inverse
        return NumberedNgrams(ngram_ids, unique_keys, positions[first_indices])

    def compute_token_probs(
        self, documents: TokenizedDocuments, *, with_end: bool = False
    ) -> Float64:
        """Compute the probability of every token (and of each document's end), in order."""
        tokens, document_positions = self._flatten_documents(documents, with_end=with_end)
        p = np.full(len(tokens), 1 / (self.vocab_size + 1))
        context_ids = np.zeros_like(tokens)
        for order_length, ngram_order in enumerate(self.orders, start=1):
            has_context = (document_positions >= order_length - 1) & (context_ids >= 0)
            ngram_ids = np.where(
                has_context, ngram_order.find_ngram_ids(context_ids * self.key_base + tokens), -1
            )
            discounted_probs = np.zeros_like(p)
            discounted_probs[ngram_ids >= 0] = ngram_order.discounted_probs[
                ngram_ids[ngram_ids >= 0]
            ]
            p = np.where(
                has_context, discounted_probs + ngram_order.backoff_weights[context_ids] * p, p
            )
            context_ids = _shift_by_one_position(ngram_ids)
        return p[document_positions > 0]

    def compute_document_bits(self, documents: TokenizedDocuments) -> Float64:
        """Compute the bits of the tokens of each document, (documents,)."""
        token_counts = np.array([len(d) for d in documents], np.int64)
        token_bits = -np.log2(self.compute_token_probs(documents))
        document_indices = np.repeat(np.arange(len(token_counts)), token_counts)
        return np.bincount(document_indices, token_bits, minlength=len(token_counts)).astype(
            np.float64
        )


def _shift_by_one_position(ngram_ids: Int64) -> Int64:
    """Move each number one position to the right."""
    return np.concatenate([np.array([-1], np.int64), ngram_ids[:-1]])


def _build_smoothed_order(
    ngram_keys: Int64, counts: Int64, context_count: int, key_base: int
) -> NgramOrder:
    """Discount the counts (Chen & Goodman 1999, equations 26 to 28)."""
    ngram_discounts = np.array([0.0, *estimate_kneser_ney_discounts(counts)])[np.minimum(counts, 3)]
    context_ids = ngram_keys // key_base
    context_totals = np.bincount(context_ids, counts, minlength=context_count)
    discounted_mass = np.bincount(context_ids, ngram_discounts, minlength=context_count)
    has_counts = context_totals > 0
    backoff_weights = np.divide(
        discounted_mass, context_totals, out=np.ones(context_count), where=has_counts
    )
    discounted_probs = np.divide(
        counts - ngram_discounts,
        context_totals[context_ids],
        out=np.zeros(len(ngram_keys)),
        where=has_counts[context_ids],
    )
    return NgramOrder(ngram_keys, discounted_probs, backoff_weights)


def estimate_kneser_ney_discounts(counts: Int64) -> Discounts:
    """Estimate D1, D2, D3+ from the counts of counts (Chen & Goodman 1999, equation 26)."""
    n1, n2, n3, n4 = (float((counts == j).sum()) for j in (1, 2, 3, 4))
    if not n1 or not n2 or not n3:
        return FALLBACK_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    estimates = Discounts(1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    is_valid = all(0 < d <= j for j, d in enumerate(estimates, start=1))
    return estimates if is_valid else FALLBACK_DISCOUNTS


def count_gzip_bits(texts: Sequence[bytes]) -> int:
    """Count the bits of ``gzip -9`` over the concatenated texts, header and trailer included."""
    return 8 * len(gzip.compress(b"".join(texts), 9, mtime=0))


def estimate_gzip_bits_per_byte(texts: Sequence[bytes], group_count: int = 20) -> GzipRate:
    """Estimate the bits per byte of gzip -9, with a delete-a-group jackknife.

    A bootstrap would repeat documents, which gzip compresses too well. The jackknife (Efron &
    Tibshirani 1993, section 11.5) omits one group of documents at a time.
    """
    byte_count = sum(map(len, texts))
    group_count = min(group_count, len(texts))
    if not byte_count:
        return GzipRate(np.nan, np.nan, 0)
    bits_per_byte = count_gzip_bits(texts) / byte_count
    if group_count < 2:
        return GzipRate(bits_per_byte, np.nan, group_count)
    jackknife_rates = []
    for omitted_group in range(group_count):
        remaining_texts = [text for i, text in enumerate(texts) if i % group_count != omitted_group]
        jackknife_rates.append(
            count_gzip_bits(remaining_texts) / max(1, sum(map(len, remaining_texts)))
        )
    squared_deviations = np.square(np.array(jackknife_rates) - np.mean(jackknife_rates)).sum()
    return GzipRate(
        bits_per_byte,
        float(np.sqrt((group_count - 1) / group_count * squared_deviations)),
        group_count,
    )
