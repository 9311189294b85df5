"""How well a task is done: figures with their intervals, and what a simple method reaches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.contract import column, table
from tasks.measures.estimates import estimate

Float64 = NDArray[np.float64]
Row = dict[str, Any]

RESAMPLES = 1000

SCORES = table(
    "How well the test split was done, by the model and by what it is compared with.",
    column("system", pa.string(), "label", "who was scored: the model, or a simple method; or "
           "model minus a simple method: how far the model is above it"),
    column("metric", pa.string(), "label", "what was measured"),
    column("slice", pa.string(), "corpus text", "empty for all rows, else the label"),
    column("label", pa.int32(), "id", "number of that label, from 0, as in the model's config.json;"
           " those that the model does not have stand behind; null for all rows"),
    column("value", pa.float64(), "figure", "the figure, in its unit; null without test rows"),
    column("low", pa.float64(), "figure", "lower end of the 95 % interval, in the same unit"),
    column("high", pa.float64(), "figure", "upper end"),
    column("n", pa.int64(), "figure", "units that were scored: texts, or words"),
    column("unit", pa.string(), "label", "unit of the value: share, or score from 0 to 100; of a "
           "difference points, of 100"),
    column("method", pa.string(), "project text", "what the interval rests on"),
    column("scorer", pa.string(), "label", "library and version, where one measured"),
)  # fmt: skip


def score(
    system: str, metric: str, value: float, low: float, high: float, n: int, method: str,
    *, slice: str = "", label: int | None = None, unit: str = "share", scorer: str = "",
) -> Row:  # fmt: skip
    def known(number: float) -> float | None:
        return None if np.isnan(number) else float(number)

    return {
        "system": system, "metric": metric, "slice": slice, "label": label,
        "value": known(value), "low": known(low), "high": known(high), "n": n, "unit": unit,
        "method": method, "scorer": scorer,
    }  # fmt: skip


# Written texts -------------------------------------------------------------------------------


def text_scores(
    system: str,
    written: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any] | None = None,
    unit: str = "texts",
) -> Iterator[Row]:
    """Exact match, chrF (Popović 2015) and BLEU (Papineni et al. 2002) of texts, one reference
    each. ``clusters``: of each text what it is resampled with, else itself; ``unit``: what these
    are."""
    exact = [a.strip() == b.strip() for a, b in zip(written, gold, strict=True)]
    found = estimate(exact, clusters, share=True, unit=unit)
    yield score(system, "exact match", found.value, found.low, found.high, found.n, found.method)
    if not gold:
        return
    for metric in text_metrics():
        counts = text_counts(metric, written, gold, clusters)
        whole, draws = text_score(metric, counts.sum(0)), drawn_scores(metric, resampled(counts))
        low, high, how = quantiles(draws, len(counts), unit)
        yield score(
            system, whole.name, whole.score, low, high, len(gold), how,
            unit="score, 0 to 100", scorer=f"sacrebleu {metric.get_signature()}",
        )  # fmt: skip


def text_metrics() -> tuple[Any, Any]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(), BLEU()


def text_counts(
    metric: Any, written: Sequence[str], gold: Sequence[str], clusters: Sequence[Any] | None
) -> Float64:
    """What sacrebleu's own paired tests add up: n-grams, that make a score in sum, by cluster:
    (clusters, k). Its bootstrap's interval leaves the scale, and fails where a draw has none."""
    counts = np.asarray(metric._extract_corpus_statistics(written, [list(gold)]), float)
    cluster = numbers_of(range(len(counts)) if clusters is None else clusters)
    sums = np.zeros((int(cluster.max()) + 1, counts.shape[1]))
    np.add.at(sums, cluster, counts)
    return sums


def text_score(metric: Any, counts: Float64) -> Any:
    return metric._compute_score_from_stats(list(counts))


def drawn_scores(metric: Any, sums: Float64) -> Float64:
    """The score of each of resampled sums: (R,) of (R, k)."""
    return np.array([text_score(metric, each).score for each in sums], float)


# Labels --------------------------------------------------------------------------------------


def numbered(labels: Sequence[str], gold: Sequence[str]) -> dict[str, int]:
    """The number of each label: those of the model as it counts them, then what else is gold."""
    return {name: i for i, name in enumerate([*labels, *sorted(set(gold) - set(labels))])}


def label_scores(
    system: str,
    given: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any],
    labels: Sequence[str],
    scorer: str = "",
    unit: str = "texts",
) -> Iterator[Row]:
    """Accuracy, F1 of each label and their mean over those that occur, macro-F1. ``clusters``: of
    each label what it is resampled with, its text or its group; ``unit``: what these are;
    ``labels``: those of the model."""
    right = [a == b for a, b in zip(given, gold, strict=True)]
    found = estimate(right, clusters, share=True, unit=unit)
    yield score(
        system, "accuracy", found.value, found.low, found.high, found.n, found.method, scorer=scorer
    )
    if not gold:
        return
    number = numbered(labels, gold)
    counts = label_counts(given, gold, clusters, number)
    whole = f1(counts.sum(0))
    draws = f1(resampled(counts))  # (R, labels)
    macro = np.nanmean(draws, axis=1)
    for name, i, value, drawn, n in (
        ("", None, np.nanmean(whole), macro, len(gold)),
        *((label, i, whole[i], draws[:, i], int(counts[:, :, i].sum(0)[[0, 2]].sum()))
          for label, i in number.items()),
    ):  # fmt: skip
        low, high, how = quantiles(drawn, len(counts), unit)
        metric = "macro-F1" if i is None else "F1"
        yield score(system, metric, value, low, high, n, how, slice=name, label=i, scorer=scorer)


def label_counts(
    given: Sequence[str], gold: Sequence[str], clusters: Sequence[Any], number: dict[str, int]
) -> Float64:
    """``outcomes`` of labels by name."""
    right, told = (np.array([number[name] for name in each]) for each in (gold, given))
    return outcomes(right, told, numbers_of(clusters), len(number))


def numbers_of(clusters: Sequence[Any]) -> NDArray[np.int64]:
    """The clusters as numbers, from 0 without a gap."""
    return np.unique(np.asarray(clusters), return_inverse=True)[1]


def quantiles(draws: Float64, clusters: int, unit: str) -> tuple[float, float, str]:
    """The ends of the 95 % interval that resampled figures, (R,), give, and what it rests on."""
    seen = draws[~np.isnan(draws)]
    if not len(seen):
        return np.nan, np.nan, "no test row has the label, and none was given it"
    low, high = np.quantile(seen, [0.025, 0.975])
    if low == high:  # all right, say: a bootstrap would claim certainty
        return np.nan, np.nan, f"no interval: {clusters} {unit} without spread"
    return low, high, f"percentile bootstrap over {clusters} {unit}, {RESAMPLES} resamples"


def outcomes(
    gold: NDArray[np.int64], given: NDArray[np.int64], cluster: NDArray[np.int64], labels: int
) -> Float64:
    """Of each cluster and label how often it was found, wrongly given, and missed: (clusters, 3,
    labels)."""
    counts = np.zeros((int(cluster.max()) + 1, 3, labels))
    right = gold == given
    np.add.at(counts, (cluster[right], 0, gold[right]), 1)
    np.add.at(counts, (cluster[~right], 1, given[~right]), 1)
    np.add.at(counts, (cluster[~right], 2, gold[~right]), 1)
    return counts


def f1(counts: Float64) -> Float64:
    """2 found / (2 found + wrongly given + missed), NaN where a label does not occur: (..., labels)
    of (..., 3, labels)."""
    found, wrong, missed = np.moveaxis(counts, -2, 0)
    with np.errstate(invalid="ignore"):
        return 2 * found / (2 * found + wrong + missed)


def resampled(counts: Float64, seed: int = 0) -> Float64:
    """Sums over as many clusters, drawn with replacement, RESAMPLES times: (R, 3, labels)."""
    random, n = np.random.default_rng(seed), len(counts)
    flat = counts.reshape(n, -1)
    sums = np.empty((RESAMPLES, flat.shape[1]))
    for draw in range(RESAMPLES):
        sums[draw] = np.bincount(random.integers(n, size=n), minlength=n) @ flat
    return sums.reshape(RESAMPLES, *counts.shape[1:])


# The model beside a simple method, on the same texts -------------------------------------------

#: The unit of differences of shares and of scores: of 100.
POINTS = "points"

#: What an interval of a difference is of.
ON_THE_SAME = "of the difference on the same texts"


def share_difference(
    system: str,
    metric: str,
    ours: Sequence[bool],
    theirs: Sequence[bool],
    clusters: Sequence[Any] | None,
    unit: str,
) -> Row:
    """Of answers that are right or wrong, in percentage points. Differences lie from -1 to 1, and
    are put to where shares lie: so that they have an interval without any spread, too."""
    apart = (np.asarray(ours, float) - np.asarray(theirs, float) + 1) / 2
    found = estimate(apart, clusters, share=True, unit=unit)
    value, low, high = (100 * (2 * x - 1) for x in (found.value, found.low, found.high))
    how = f"{found.method}, {ON_THE_SAME}"
    return score(system, metric, value, low, high, found.n, how, unit=POINTS)


def label_differences(
    other: str,
    given: Sequence[str],
    simple: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any],
    labels: Sequence[str],
    unit: str = "texts",
) -> Iterator[Row]:
    """How far the labels ``given`` by the model are above those of the ``simple`` method ``other``:
    clusters are drawn for both at once. The rest as in ``label_scores``."""
    system = f"model minus {other}"
    ours, theirs = ([a == b for a, b in zip(each, gold, strict=True)] for each in (given, simple))
    yield share_difference(system, "accuracy", ours, theirs, clusters, unit)
    if not gold:
        return
    number = numbered(labels, gold)
    both = [label_counts(each, gold, clusters, number) for each in (given, simple)]
    counts = np.stack(both, axis=1)  # (clusters, 2, 3, labels)

    def difference(sums: Float64) -> Float64:
        macro = np.nanmean(f1(sums), axis=-1)
        return 100 * np.asarray(macro[..., 0] - macro[..., 1])

    low, high, how = quantiles(difference(resampled(counts)), len(counts), unit)
    value = float(difference(counts.sum(0)))
    how = f"{how}, {ON_THE_SAME}"
    yield score(system, "macro-F1", value, low, high, len(gold), how, unit=POINTS)


def text_differences(
    other: str,
    written: Sequence[str],
    simple: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any] | None = None,
    unit: str = "texts",
) -> Iterator[Row]:
    """How far the texts ``written`` by the model are above the ``simple`` ones of ``other``. The
    rest as in ``text_scores``."""
    system = f"model minus {other}"
    ours, theirs = (
        [a.strip() == b.strip() for a, b in zip(each, gold, strict=True)]
        for each in (written, simple)
    )
    yield share_difference(system, "exact match", ours, theirs, clusters, unit)
    if not gold:
        return
    for metric in text_metrics():
        both = [text_counts(metric, each, gold, clusters) for each in (written, simple)]
        whole, base = (text_score(metric, counts.sum(0)) for counts in both)
        drawn = np.moveaxis(resampled(np.stack(both, axis=1)), 1, 0)  # (2, R, k)
        draws = np.subtract(*(drawn_scores(metric, sums) for sums in drawn))
        low, high, how = quantiles(draws, len(both[0]), unit)
        yield score(
            system, whole.name, whole.score - base.score, low, high, len(gold),
            f"{how}, {ON_THE_SAME}", unit=POINTS,
            scorer=f"sacrebleu {metric.get_signature()}",
        )  # fmt: skip


# What a simple method reaches ----------------------------------------------------------------


def bag_of_words(
    train: Sequence[Sequence[int]], labels: Sequence[str], test: Sequence[Sequence[int]], width: int
) -> list[str]:
    """The labels that logistic regression over counts of tokens (of ``width``) gives."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    def counts(texts: Sequence[Sequence[int]]) -> csr_matrix:
        starts = np.concatenate(([0], np.cumsum([len(text) for text in texts])))
        tokens = np.fromiter((token for text in texts for token in text), np.int64)
        matrix = csr_matrix((np.ones(len(tokens)), tokens, starts), shape=(len(texts), width))
        matrix.sum_duplicates()
        return matrix

    if not test:
        return []
    learnt = LogisticRegression(max_iter=1000).fit(counts(train), list(labels))
    return [str(label) for label in learnt.predict(counts(test))]


BAG_OF_WORDS = f"LogisticRegression of scikit-learn {version('scikit-learn')}"


def most_frequent(
    train: Sequence[tuple[Sequence[str], Sequence[str]]], test: Sequence[Sequence[str]]
) -> list[str]:
    """Of each word of the texts the label it has most often in training, of an unknown one the most
    frequent of all."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for words, labels in train:
        for word, label in zip(words, labels, strict=True):
            counts[word][label] += 1
        overall.update(labels)

    def commonest(counter: Counter[str]) -> str:
        return min(counter, key=lambda label: (-counter[label], label))

    best = {word: commonest(counter) for word, counter in counts.items()}
    default = commonest(overall)
    return [best.get(word, default) for words in test for word in words]
