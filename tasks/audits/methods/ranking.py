"""Which of many texts that a model wrote does it know from its training? An attacker who has the
model and no corpus ranks them (Carlini et al. 2021, "Extracting training data"), by scores of which
the higher is the more like training text:

perplexity  mean log-likelihood of its tokens
reference   log-likelihood over that under another model: what is likely to everybody counts less
zlib        log-likelihood over the bytes that zlib makes of it: what repeats itself counts less
lower       log-likelihood over that of the same text in lower case
window      the highest mean log-likelihood of so many tokens in a row
min-k++     mean of the lowest 20 % of the log-likelihoods, each less the mean over the vocabulary,
            in its standard deviations (Zhang et al. 2025)

The ratios have the text's own log-likelihood above, so that a text which is certain stands first.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.audits.judging.findings import measured
from tasks.audits.methods.instruments import CONTROL_LEVEL
from tasks.measures.estimates import Estimate, estimate
from tasks.measures.statistics import Float64

SCORES = ("perplexity", "reference", "zlib", "lower", "window", "min-k++")

#: Share of the tokens that count for min-k++.
LOWEST = 0.2

Bools = NDArray[np.bool_]


def scores_of(drawn: pa.Table, window: int) -> dict[str, Float64]:
    """The scores of each text, (n,) each, NaN where a model gave no number. ``drawn``: columns
    text, log_p, lower_log_p, mean and std of RESPONSES, and reference of REFERRED."""
    owner, log_p = flat(drawn["log_p"])
    counts = np.bincount(owner, minlength=len(drawn))
    total = np.bincount(owner, log_p, minlength=len(drawn))
    lower = np.bincount(*flat(drawn["lower_log_p"]), minlength=len(drawn))
    size = [len(zlib.compress(text.encode())) for text in drawn["text"].to_pylist()]
    mean, std = (flat(drawn[name])[1] for name in ("mean", "std"))
    other = drawn["reference"].to_numpy(zero_copy_only=False).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        made = {
            "perplexity": total / counts,
            "reference": -total / other,
            "zlib": total / np.array(size, np.float64),
            "lower": -total / lower,
            "window": likeliest_window(owner, log_p, counts, window),
            "min-k++": lowest_mean(owner, (log_p - mean) / std, counts),
        }
    some = counts > 0
    return {
        name: np.where(np.isfinite(values) & some, values, np.nan) for name, values in made.items()
    }


def flat(lists: pa.ChunkedArray) -> tuple[NDArray[np.int64], Float64]:
    """The row of each number in a column of lists, and the numbers."""
    whole = lists.combine_chunks()
    counts = pc.fill_null(pc.list_value_length(whole), 0).to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(whole)), counts.astype(np.int64))
    return owner, whole.flatten().to_numpy(zero_copy_only=False).astype(np.float64)


def likeliest_window(
    owner: NDArray[np.int64], values: Float64, counts: NDArray[np.int64], size: int
) -> Float64:
    """The highest mean of ``size`` values in a row of each text; of a shorter one, its mean. One
    with a value that is no number has none."""
    first = np.cumsum(counts) - counts
    whole = np.bincount(owner, values, minlength=len(counts))
    known = np.where(np.isfinite(values), values, 0.0)
    ends = np.concatenate([[0.0], np.cumsum(known)])
    take = np.minimum(size, counts)  # tokens of each text's windows
    at = np.arange(len(values))
    inside = at + take[owner] <= (first + counts)[owner]
    means = (ends[at[inside] + take[owner][inside]] - ends[at[inside]]) / take[owner][inside]
    best = np.full(len(counts), -np.inf)
    np.maximum.at(best, owner[inside], means)
    return np.where(np.isfinite(whole), best, np.nan)


def lowest_mean(owner: NDArray[np.int64], values: Float64, counts: NDArray[np.int64]) -> Float64:
    """The mean of the lowest values of each text, LOWEST of them, at least one."""
    order = np.lexsort((values, owner))
    few = np.maximum(1, (LOWEST * counts).astype(np.int64))
    place = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = place < few[owner]
    sums = np.bincount(owner[chosen], values[order][chosen], minlength=len(counts))
    unknown = np.bincount(owner, np.isnan(values), minlength=len(counts)) > 0
    return np.where((counts == 0) | unknown, np.nan, sums / few)


#: Texts that are compared with all before them at a time.
_BLOCK = 512


def first_of_alike(texts: Sequence[Sequence[int]]) -> Bools:
    """Whether each text, as token ids, is no near-duplicate of one before it: shares less than half
    of its trigrams with each of those that are kept, as multisets. One of less than three tokens is
    not kept. Memory: some 100 bytes a token, and the pairs of a block that share a trigram."""
    from scipy.sparse import csr_array

    lengths = np.array([len(text) for text in texts], np.int64)
    tokens = np.fromiter(chain.from_iterable(texts), np.int64, lengths.sum())
    owner = np.repeat(np.arange(len(texts)), lengths)
    if len(tokens) < 3:
        return np.zeros(len(texts), bool)
    inside = owner[:-2] == owner[2:]
    packed = tokens[:-2] << 42 | tokens[1:-1] << 21 | tokens[2:]  # no vocabulary has 2**21 tokens
    trigram = np.unique(packed[inside], return_inverse=True)[1]
    owner = owner[:-2][inside]
    # Of multisets: the second time that a trigram stands in a text is an element of its own.
    order = np.lexsort((trigram, owner))
    row, trigram = owner[order], trigram[order]
    begins = np.flatnonzero(np.append(True, (row[1:] != row[:-1]) | (trigram[1:] != trigram[:-1])))
    begins = begins[: len(order)]
    times = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    several = trigram * (1 + times.max(initial=0)) + times
    element = np.unique(several, return_inverse=True)[1]
    shape = len(texts), int(element.max(initial=-1)) + 1
    holds = csr_array((np.ones(len(element), np.int32), (row, element)), shape=shape)
    sizes = np.bincount(owner, minlength=len(texts))
    kept, across = sizes > 0, holds.T.tocsr()
    for begin in range(0, len(texts), _BLOCK):
        shared = (holds[begin : begin + _BLOCK] @ across).tocoo()
        left, right = shared.row + begin, shared.col
        alike = (right < left) & (2 * shared.data >= sizes[left])
        order = np.lexsort((right[alike], left[alike]))
        for text, before in zip(left[alike][order].tolist(), right[alike][order].tolist(),
                                strict=True):  # fmt: skip
            kept[text] &= not kept[before]
    return kept


def ranked(drawn: pa.Table, kept: Bools, window: int) -> dict[str, Float64]:
    """The scores of those texts that are kept, NaN of others."""
    found = scores_of(drawn, window)
    return {score: np.where(kept, values, np.nan) for score, values in found.items()}


def weights_of(scores: Float64, first: int) -> Float64:
    """How much of each text is among the ``first`` by score, (n,): 1, 0, or, where texts tie for
    the last places, the share of them that fits. One without a score is not among them."""
    known = scores[~np.isnan(scores)]
    if not len(known) or first < 1:
        return np.zeros(len(scores))
    bound = np.sort(known)[::-1][min(first, len(known)) - 1]
    with np.errstate(invalid="ignore"):
        above, tied = scores > bound, scores == bound
    return above + tied * ((min(first, len(known)) - above.sum()) / tied.sum())


def places_of(scores: Float64) -> NDArray[np.int64]:
    """Place of each text by score, from 1, equal ones alike; 0: it has no score."""
    known = np.sort(scores[~np.isnan(scores)])
    places = len(known) - np.searchsorted(known, scores, "right") + 1
    return np.where(np.isnan(scores), 0, places)


def precision(scores: Float64, hits: Bools, first: int, level: float = 0.95) -> Estimate:
    """The share of hits among the ``first`` of a ranking, null that among all, p that of as many
    drawn by lot (hypergeometric). Where texts tie for the last places it need be no whole number of
    hits: its interval has those of both numbers beside it."""
    scores, hits, missing = _known(scores, hits)
    weights, first = weights_of(scores, first), min(first, len(scores))
    whole = weights == 1
    tied = hits[(weights > 0) & ~whole]
    places = np.concatenate([hits[whole], np.full(first - whole.sum(), tied.mean() if len(tied)
                                                  else np.nan)]).astype(np.float64)  # fmt: skip
    base = float(hits.mean()) if len(hits) else np.nan
    found = estimate(places, null=base, share=True, level=level, unit="texts")
    if first > 1 and tied.any() and not tied.all():  # their mean in the last places varies less
        count = float(places.sum())
        ends = [
            estimate(np.arange(first) < many, null=base, share=True, level=level, unit="texts")
            for many in (np.floor(count + 1e-9), np.ceil(count - 1e-9))
        ]
        near = ends[int(found.value < 0.5)]  # never the one whose texts are all alike
        found = replace(
            near, value=found.value, low=ends[0].low, high=ends[1].high,
            method=f"{near.method}, of which the last {first - whole.sum()} tie with others",
        )  # fmt: skip
    p = by_lot(len(scores), int(hits.sum()), first, float(places.sum())) if first else np.nan
    return replace(found, p=p, missing=missing)


def recall(scores: Float64, hits: Bools, first: int, level: float = 0.95) -> Estimate:
    """The share of the hits that is among the ``first`` of a ranking. Its p would be that of
    precision, and is not told twice."""
    scores, hits, _ = _known(scores, hits)
    null = min(first, len(scores)) / max(1, len(scores))
    found = estimate(weights_of(scores, first)[hits], null=null, share=True, level=level,
                     unit="texts")  # fmt: skip
    return replace(found, p=np.nan)


def _known(scores: Float64, hits: Bools) -> tuple[Float64, Bools, int]:
    """Those that have a score, and how many have none."""
    known = ~np.isnan(scores)
    return scores[known], hits[known], int((~known).sum())


def by_lot(texts: int, hits: int, first: int, found: float) -> float:
    """Two-sided p of so many hits among the first: of all numbers that are no likelier by lot; of
    a fraction, where texts tie, the likelier of its neighbours."""
    from scipy.stats import hypergeom

    every = hypergeom.pmf(np.arange(first + 1), texts, hits, first)
    likely = max(every[int(np.floor(found + 1e-9))], every[int(np.ceil(found - 1e-9))])
    return float(min(1.0, every[every <= likely * (1 + 1e-7)].sum()))


#: Of the scripted control: texts, tokens of each, share of hits.
SCRIPTED, LENGTH, HITS = 400, 40, 0.2


def scripted(effect: bool, rng: np.random.Generator) -> tuple[pa.Table, Bools]:
    """What a script wrote, with the columns of responses that are ranked, and which of it is
    training text: that is likelier to it token by token, or not."""
    hits = rng.random(SCRIPTED) < HITS
    made = {
        name: rng.normal(mean, 1.0, (SCRIPTED, LENGTH))
        for name, mean in (("log_p", -4.0), ("lower_log_p", -6.0), ("mean", -9.0))
    }
    made["log_p"] += 2.0 * (hits & effect)[:, None]
    made["std"] = np.full((SCRIPTED, LENGTH), 2.0)
    words = rng.integers(0, 1000, (SCRIPTED, LENGTH))
    return pa.table(
        {
            "ids": words.tolist(),
            "text": [" ".join(map(str, row)) for row in words],
            "reference": rng.normal(-6.0 * LENGTH, LENGTH**0.5, SCRIPTED),
            **{name: values.tolist() for name, values in made.items()},
        }
    ), hits


def instruments(window: int, seed: int) -> list[dict[str, Any]]:
    """Verdicts on a script in place of the model, through the same ranking: the worst score where
    there is something to find, and the one furthest from lots where there is nothing."""
    made = []
    for effect in (False, True):
        drawn, hits = scripted(effect, np.random.default_rng(seed))
        scores = ranked(drawn, first_of_alike(drawn["ids"].to_pylist()), window)
        every = [precision(each, hits, SCRIPTED // 4, CONTROL_LEVEL) for each in scores.values()]
        if effect:
            worst = min(every, key=lambda found: found.value)
            passed = worst.value > worst.null and worst.p < 1 - CONTROL_LEVEL
            how = "training text is likelier token by token; passes where p is below 0.001"
        else:
            worst = max(every, key=lambda found: abs(found.value - found.null))
            passed = worst.low <= worst.null <= worst.high
            how = "nothing tells training text; passes where the 99.9 % interval covers lots"
        made.append(
            measured("extraction_attack", "precision", worst, unit="share", level=CONTROL_LEVEL,
                     part=f"scripted {'effect' if effect else 'chance'}", table="",
                     how=f"a script in place of the model, the worst score of all; {how}",
                     control="positive" if effect else "negative", passed=bool(passed),
                     tests="instrument")
        )  # fmt: skip
    return made
