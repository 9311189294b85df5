"""How well a task is done: figures with their intervals, and what a simple method reaches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hallmark.tasks.contract import column, table_schema
from hallmark.tasks.measures.estimates import estimate_mean_or_share

Float64 = NDArray[np.float64]
ScoreRow = dict[str, Any]

RESAMPLE_COUNT = 1000

SCORES = table_schema(
    "How well the test split was done, by the model and by what it is compared with.",
    column(
        "system",
        pa.string(),
        "label",
        "who was scored: the model, or a simple method; or "
        "model minus a simple method: how far the model is above it",
    ),
    column("metric", pa.string(), "label", "what was measured"),
    column("slice", pa.string(), "corpus text", "empty for all rows, else the label"),
    column(
        "label_id",
        pa.int32(),
        "id",
        "number of that label, from 0, as in the model's config.json;"
        " those that the model does not have stand behind; null for all rows",
    ),
    column("value", pa.float64(), "figure", "the figure, in its unit; null without test rows"),
    column("low", pa.float64(), "figure", "lower end of the 95 % interval, in the same unit"),
    column("high", pa.float64(), "figure", "upper end"),
    column("n", pa.int64(), "figure", "units that were scored: texts, or words"),
    column(
        "unit",
        pa.string(),
        "label",
        "unit of the value: share, or score from 0 to 100; of a difference points, of 100",
    ),
    column("method", pa.string(), "project text", "what the interval rests on"),
    column("scorer", pa.string(), "label", "library and version, where one measured"),
)


def build_score_row(
    system: str,
    metric: str,
    value: float,
    low: float,
    high: float,
    n: int,
    method: str,
    *,
    slice_name: str = "",
    label_id: int | None = None,
    unit: str = "share",
    scorer: str = "",
) -> ScoreRow:
    def nan_to_none(number: float) -> float | None:
        return None if np.isnan(number) else float(number)

    return {
        "system": system,
        "metric": metric,
        "slice": slice_name,
        "label_id": label_id,
        "value": nan_to_none(value),
        "low": nan_to_none(low),
        "high": nan_to_none(high),
        "n": n,
        "unit": unit,
        "method": method,
        "scorer": scorer,
    }


# Written texts -------------------------------------------------------------------------------


def compute_text_scores(
    system: str,
    generated: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any] | None = None,
    cluster_unit: str = "texts",
) -> Iterator[ScoreRow]:
    """Exact match, chrF (Popović 2015) and BLEU (Papineni et al. 2002) of texts, one reference
    each. ``clusters``: of each text what it is resampled with, else itself; ``unit``: what these
    are."""
    is_exact = [
        text.strip() == gold_text.strip() for text, gold_text in zip(generated, gold, strict=True)
    ]
    match_rate = estimate_mean_or_share(is_exact, clusters, is_share=True, unit=cluster_unit)
    yield build_score_row(
        system,
        "exact match",
        match_rate.value,
        match_rate.low,
        match_rate.high,
        match_rate.n,
        match_rate.method,
    )
    if not gold:
        return
    for metric in make_text_metrics():
        cluster_counts = count_ngrams_by_cluster(metric, generated, gold, clusters)
        overall_score, resampled_scores = (
            compute_metric_score(metric, cluster_counts.sum(0)),
            compute_resampled_scores(metric, bootstrap_cluster_sums(cluster_counts)),
        )
        low, high, interval_method = compute_bootstrap_interval(
            resampled_scores, len(cluster_counts), cluster_unit
        )
        yield build_score_row(
            system,
            overall_score.name,
            overall_score.score,
            low,
            high,
            len(gold),
            interval_method,
            unit="score, 0 to 100",
            scorer=f"sacrebleu {metric.get_signature()}",
        )


def make_text_metrics() -> tuple[Any, Any]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(), BLEU()


def count_ngrams_by_cluster(
    metric: Any, generated: Sequence[str], gold: Sequence[str], clusters: Sequence[Any] | None
) -> Float64:
    """What sacrebleu's own paired tests add up: n-grams, that make a score in sum, by cluster:
    (clusters, k). Its bootstrap's interval leaves the scale, and fails where a draw has none."""
    counts = np.asarray(metric._extract_corpus_statistics(generated, [list(gold)]), float)
    cluster_indices = clusters_to_indices(range(len(counts)) if clusters is None else clusters)
    sums = np.zeros((int(cluster_indices.max()) + 1, counts.shape[1]))
    np.add.at(sums, cluster_indices, counts)
    return sums


def compute_metric_score(metric: Any, counts: Float64) -> Any:
    return metric._compute_score_from_stats(list(counts))


def compute_resampled_scores(metric: Any, resampled_counts: Float64) -> Float64:
    """The score of each of resampled sums: (R,) of (R, k)."""
    return np.array(
        [compute_metric_score(metric, counts).score for counts in resampled_counts], float
    )


# Labels --------------------------------------------------------------------------------------


def number_labels(labels: Sequence[str], gold: Sequence[str]) -> dict[str, int]:
    """The number of each label: those of the model as it counts them, then what else is gold."""
    return {name: i for i, name in enumerate([*labels, *sorted(set(gold) - set(labels))])}


def compute_label_scores(
    system: str,
    predicted: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any],
    model_labels: Sequence[str],
    scorer: str = "",
    cluster_unit: str = "texts",
) -> Iterator[ScoreRow]:
    """Accuracy, F1 of each label and their mean over those that occur, macro-F1. ``clusters``: of
    each label what it is resampled with, its text or its group; ``unit``: what these are;
    ``labels``: those of the model."""
    is_correct = [
        predicted_label == gold_label
        for predicted_label, gold_label in zip(predicted, gold, strict=True)
    ]
    accuracy = estimate_mean_or_share(is_correct, clusters, is_share=True, unit=cluster_unit)
    yield build_score_row(
        system,
        "accuracy",
        accuracy.value,
        accuracy.low,
        accuracy.high,
        accuracy.n,
        accuracy.method,
        scorer=scorer,
    )
    if not gold:
        return
    label_ids = number_labels(model_labels, gold)
    outcome_counts = count_label_outcomes(predicted, gold, clusters, label_ids)
    f1_by_label = compute_f1(outcome_counts.sum(0))
    resampled_f1 = compute_f1(bootstrap_cluster_sums(outcome_counts))  # (R, labels)
    resampled_macro_f1 = np.nanmean(resampled_f1, axis=1)
    for label_name, label_id, value, resampled_values, gold_count in (
        ("", None, np.nanmean(f1_by_label), resampled_macro_f1, len(gold)),
        *(
            (
                label,
                label_id,
                f1_by_label[label_id],
                resampled_f1[:, label_id],
                int(outcome_counts[:, :, label_id].sum(0)[[0, 2]].sum()),
            )
            for label, label_id in label_ids.items()
        ),
    ):
        low, high, interval_method = compute_bootstrap_interval(
            resampled_values, len(outcome_counts), cluster_unit
        )
        metric = "macro-F1" if label_id is None else "F1"
        yield build_score_row(
            system,
            metric,
            value,
            low,
            high,
            gold_count,
            interval_method,
            slice_name=label_name,
            label_id=label_id,
            scorer=scorer,
        )


def count_label_outcomes(
    predicted: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any],
    label_ids: dict[str, int],
) -> Float64:
    """``outcomes`` of labels by name."""
    gold_ids, predicted_ids = (
        np.array([label_ids[name] for name in labels]) for labels in (gold, predicted)
    )
    return count_outcomes_by_cluster(
        gold_ids, predicted_ids, clusters_to_indices(clusters), len(label_ids)
    )


def clusters_to_indices(clusters: Sequence[Any]) -> NDArray[np.int64]:
    """The clusters as numbers, from 0 without a gap."""
    return np.unique(np.asarray(clusters), return_inverse=True)[1]


def compute_bootstrap_interval(
    resampled_values: Float64, cluster_count: int, cluster_unit: str
) -> tuple[float, float, str]:
    """The ends of the 95 % interval that resampled figures, (R,), give, and what it rests on."""
    defined_values = resampled_values[~np.isnan(resampled_values)]
    if not len(defined_values):
        return np.nan, np.nan, "no test row has the label, and none was given it"
    low, high = np.quantile(defined_values, [0.025, 0.975])
    if low == high:  # all right, say: a bootstrap would claim certainty
        return np.nan, np.nan, f"no interval: {cluster_count} {cluster_unit} without spread"
    return (
        low,
        high,
        f"percentile bootstrap over {cluster_count} {cluster_unit}, {RESAMPLE_COUNT} resamples",
    )


def count_outcomes_by_cluster(
    gold_ids: NDArray[np.int64],
    predicted_ids: NDArray[np.int64],
    cluster_indices: NDArray[np.int64],
    label_count: int,
) -> Float64:
    """Of each cluster and label how often it was found, wrongly given, and missed: (clusters, 3,
    labels)."""
    counts = np.zeros((int(cluster_indices.max()) + 1, 3, label_count))
    is_correct = gold_ids == predicted_ids
    np.add.at(counts, (cluster_indices[is_correct], 0, gold_ids[is_correct]), 1)
    np.add.at(counts, (cluster_indices[~is_correct], 1, predicted_ids[~is_correct]), 1)
    np.add.at(counts, (cluster_indices[~is_correct], 2, gold_ids[~is_correct]), 1)
    return counts


def compute_f1(outcome_counts: Float64) -> Float64:
    """2 found / (2 found + wrongly given + missed), NaN where a label does not occur: (..., labels)
    of (..., 3, labels)."""
    true_positives, false_positives, false_negatives = np.moveaxis(outcome_counts, -2, 0)
    with np.errstate(invalid="ignore"):
        return 2 * true_positives / (2 * true_positives + false_positives + false_negatives)


def bootstrap_cluster_sums(counts: Float64, seed: int = 0) -> Float64:
    """Sums over as many clusters, drawn with replacement, RESAMPLES times: (R, 3, labels)."""
    generator, cluster_count = np.random.default_rng(seed), len(counts)
    flat_counts = counts.reshape(cluster_count, -1)
    sums = np.empty((RESAMPLE_COUNT, flat_counts.shape[1]))
    for draw in range(RESAMPLE_COUNT):
        sums[draw] = (
            np.bincount(
                generator.integers(cluster_count, size=cluster_count), minlength=cluster_count
            )
            @ flat_counts
        )
    return sums.reshape(RESAMPLE_COUNT, *counts.shape[1:])


# The model beside a simple method, on the same texts -------------------------------------------

#: The unit of differences of shares and of scores: of 100.
POINTS_UNIT = "points"

#: What an interval of a difference is of.
PAIRED_DIFFERENCE_NOTE = "of the difference on the same texts"


def build_share_difference_row(
    system: str,
    metric: str,
    model_correct: Sequence[bool],
    baseline_correct: Sequence[bool],
    clusters: Sequence[Any] | None,
    cluster_unit: str,
) -> ScoreRow:
    """Of answers that are right or wrong, in percentage points. Differences lie from -1 to 1, and
    are put to where shares lie: so that they have an interval without any spread, too."""
    scaled_differences = (
        np.asarray(model_correct, float) - np.asarray(baseline_correct, float) + 1
    ) / 2
    mean_difference = estimate_mean_or_share(
        scaled_differences, clusters, is_share=True, unit=cluster_unit
    )
    value, low, high = (
        100 * (2 * scaled - 1)
        for scaled in (mean_difference.value, mean_difference.low, mean_difference.high)
    )
    method = f"{mean_difference.method}, {PAIRED_DIFFERENCE_NOTE}"
    return build_score_row(
        system, metric, value, low, high, mean_difference.n, method, unit=POINTS_UNIT
    )


def compute_label_differences(
    baseline_name: str,
    predicted: Sequence[str],
    baseline_predicted: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any],
    model_labels: Sequence[str],
    cluster_unit: str = "texts",
) -> Iterator[ScoreRow]:
    """How far the labels ``given`` by the model are above those of the ``simple`` method ``other``:
    clusters are drawn for both at once. The rest as in ``label_scores``."""
    system = f"model minus {baseline_name}"
    model_correct, baseline_correct = (
        [
            system_label == gold_label
            for system_label, gold_label in zip(system_labels, gold, strict=True)
        ]
        for system_labels in (predicted, baseline_predicted)
    )
    yield build_share_difference_row(
        system, "accuracy", model_correct, baseline_correct, clusters, cluster_unit
    )
    if not gold:
        return
    label_ids = number_labels(model_labels, gold)
    outcome_counts = [
        count_label_outcomes(system_labels, gold, clusters, label_ids)
        for system_labels in (predicted, baseline_predicted)
    ]
    paired_counts = np.stack(outcome_counts, axis=1)  # (clusters, 2, 3, labels)

    def compute_macro_f1_difference(outcome_sums: Float64) -> Float64:
        macro_f1 = np.nanmean(compute_f1(outcome_sums), axis=-1)
        return 100 * np.asarray(macro_f1[..., 0] - macro_f1[..., 1])

    low, high, method = compute_bootstrap_interval(
        compute_macro_f1_difference(bootstrap_cluster_sums(paired_counts)),
        len(paired_counts),
        cluster_unit,
    )
    value = float(compute_macro_f1_difference(paired_counts.sum(0)))
    method = f"{method}, {PAIRED_DIFFERENCE_NOTE}"
    yield build_score_row(system, "macro-F1", value, low, high, len(gold), method, unit=POINTS_UNIT)


def compute_text_differences(
    baseline_name: str,
    generated: Sequence[str],
    baseline_texts: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any] | None = None,
    cluster_unit: str = "texts",
) -> Iterator[ScoreRow]:
    """How far the texts ``written`` by the model are above the ``simple`` ones of ``other``. The
    rest as in ``text_scores``."""
    system = f"model minus {baseline_name}"
    model_correct, baseline_correct = (
        [
            text.strip() == gold_text.strip()
            for text, gold_text in zip(system_texts, gold, strict=True)
        ]
        for system_texts in (generated, baseline_texts)
    )
    yield build_share_difference_row(
        system, "exact match", model_correct, baseline_correct, clusters, cluster_unit
    )
    if not gold:
        return
    for metric in make_text_metrics():
        cluster_counts = [
            count_ngrams_by_cluster(metric, system_texts, gold, clusters)
            for system_texts in (generated, baseline_texts)
        ]
        model_score, baseline_score = (
            compute_metric_score(metric, counts.sum(0)) for counts in cluster_counts
        )
        resampled_counts = np.moveaxis(
            bootstrap_cluster_sums(np.stack(cluster_counts, axis=1)), 1, 0
        )  # (2, R, k)
        score_differences = np.subtract(
            *(compute_resampled_scores(metric, system_counts) for system_counts in resampled_counts)
        )
        low, high, method = compute_bootstrap_interval(
            score_differences, len(cluster_counts[0]), cluster_unit
        )
        yield build_score_row(
            system,
            model_score.name,
            model_score.score - baseline_score.score,
            low,
            high,
            len(gold),
            f"{method}, {PAIRED_DIFFERENCE_NOTE}",
            unit=POINTS_UNIT,
            scorer=f"sacrebleu {metric.get_signature()}",
        )


# What a simple method reaches ----------------------------------------------------------------


def predict_with_bag_of_words(
    train_ids: Sequence[Sequence[int]],
    train_labels: Sequence[str],
    test_ids: Sequence[Sequence[int]],
    vocab_size: int,
) -> list[str]:
    """The labels that logistic regression over counts of tokens (of ``width``) gives."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    def build_count_matrix(token_sequences: Sequence[Sequence[int]]) -> csr_matrix:
        row_offsets = np.concatenate(([0], np.cumsum([len(text) for text in token_sequences])))
        token_ids = np.fromiter((token for text in token_sequences for token in text), np.int64)
        matrix = csr_matrix(
            (np.ones(len(token_ids)), token_ids, row_offsets),
            shape=(len(token_sequences), vocab_size),
        )
        matrix.sum_duplicates()
        return matrix

    if not test_ids:
        return []
    classifier = LogisticRegression(max_iter=1000).fit(
        build_count_matrix(train_ids), list(train_labels)
    )
    return [str(label) for label in classifier.predict(build_count_matrix(test_ids))]


BAG_OF_WORDS_VERSION = f"LogisticRegression of scikit-learn {version('scikit-learn')}"


def predict_most_frequent_labels(
    train_texts: Sequence[tuple[Sequence[str], Sequence[str]]], test_texts: Sequence[Sequence[str]]
) -> list[str]:
    """Of each word of the texts the label it has most often in training, of an unknown one the most
    frequent of all."""
    counts_by_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    overall_counts: Counter[str] = Counter()
    for words, labels in train_texts:
        for word, label in zip(words, labels, strict=True):
            counts_by_word[word][label] += 1
        overall_counts.update(labels)

    def most_common_label(label_counter: Counter[str]) -> str:
        return min(label_counter, key=lambda label: (-label_counter[label], label))

    label_by_word = {word: most_common_label(counter) for word, counter in counts_by_word.items()}
    default_label = most_common_label(overall_counts)
    return [label_by_word.get(word, default_label) for words in test_texts for word in words]
