"""Score a task's predictions with intervals, and compare them with a simple baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hallmark.tasks.contract import column, table_schema
from hallmark.tasks.measures.estimates import estimate_mean_or_share

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Score as SacrebleuScore
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

Float64 = NDArray[np.float64]

RESAMPLE_COUNT = 1000

#: The title of each metric on cards.
METRIC_TITLES = {
    "accuracy": "Accuracy",
    "macro-F1": "Macro-averaged F1",
    "F1": "F1",
    "exact match": "Exact match",
    "chrF2": "chrF2",
    "BLEU": "BLEU",
}

SCORES = table_schema(
    "Scores of the fine-tuned model and of a simple baseline on the test split.",
    column(
        "system",
        pa.string(),
        "label",
        "what the value describes: the model, the named baseline, or the difference between the "
        "model and the baseline",
    ),
    column("metric", pa.string(), "label", "metric name"),
    column("title", pa.string(), "label", "title of the metric, as shown on cards"),
    column(
        "slice",
        pa.string(),
        "corpus text",
        "label for which the metric is computed; empty if the metric is computed for all labels "
        "together",
    ),
    column(
        "label_id",
        pa.int32(),
        "id",
        "index of the label in the model's config.json, starting at 0; labels unknown to the "
        "model are numbered after the model's labels; null if the metric is computed for all "
        "labels together",
    ),
    column(
        "value",
        pa.float64(),
        "figure",
        "metric value; null if the test split has no rows for it",
    ),
    column(
        "low",
        pa.float64(),
        "figure",
        "lower end of the 95 % confidence interval, in the same unit as the value",
    ),
    column(
        "high",
        pa.float64(),
        "figure",
        "upper end of the 95 % confidence interval, in the same unit as the value",
    ),
    column("n", pa.int64(), "figure", "number of scored texts or words"),
    column(
        "unit",
        pa.string(),
        "label",
        "unit of the value: share (from 0 to 1), or score (from 0 to 100); differences are in "
        "points (hundredths of the range)",
    ),
    column("method", pa.string(), "project text", "how the interval was computed"),
    column(
        "scorer",
        pa.string(),
        "label",
        "name and version of the library that computed the value; empty if no library was used",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Score:
    """One row of SCORES."""

    system: str
    metric: str
    title: str
    slice: str = ""
    label_id: int | None = None
    value: float | None
    low: float | None
    high: float | None
    n: int
    unit: str = "share"
    method: str
    scorer: str = ""


def build_score(
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
) -> Score:
    """Build a score; NaN becomes None."""

    def nan_to_none(number: float) -> float | None:
        return None if np.isnan(number) else float(number)

    return Score(
        system=system,
        metric=metric,
        title=METRIC_TITLES[metric],
        slice=slice_name,
        label_id=label_id,
        value=nan_to_none(value),
        low=nan_to_none(low),
        high=nan_to_none(high),
        n=n,
        unit=unit,
        method=method,
        scorer=scorer,
    )


# Generated texts -----------------------------------------------------------------------------


def compute_text_scores(
    system: str,
    generated: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any] | None = None,
    cluster_unit: str = "texts",
) -> Iterator[Score]:
    """Compute exact match, chrF (Popović 2015) and BLEU (Papineni et al. 2002) with one reference.

    Args:
        system: Name of the system that is scored.
        generated: (n,) texts of the system.
        gold: (n,) references.
        clusters: (n,) clusters that are resampled; None makes each text its own cluster.
        cluster_unit: Plural name of the clusters.
    """
    is_exact = [
        text.strip() == gold_text.strip() for text, gold_text in zip(generated, gold, strict=True)
    ]
    match_rate = estimate_mean_or_share(is_exact, clusters, is_share=True, unit=cluster_unit)
    yield build_score(
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
    for metric in build_text_metrics():
        cluster_counts = count_ngrams_by_cluster(metric, generated, gold, clusters)
        overall_score = compute_metric_score(metric, cluster_counts.sum(0))
        resampled_scores = compute_resampled_scores(metric, bootstrap_cluster_sums(cluster_counts))
        low, high, interval_method = compute_bootstrap_interval(
            resampled_scores, len(cluster_counts), cluster_unit
        )
        yield build_score(
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


def build_text_metrics() -> tuple[CHRF, BLEU]:
    """Build the metrics of generated texts."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(), BLEU()


def count_ngrams_by_cluster(
    metric: CHRF | BLEU,
    generated: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any] | None,
) -> Float64:
    """Count the n-grams that sacrebleu sums up to a score, by cluster: (clusters, k).

    These counts are also what sacrebleu's paired tests use. Its own bootstrap is not used, because
    its intervals can leave the scale, and it fails if a resample has no n-grams.
    """
    counts = np.asarray(metric._extract_corpus_statistics(generated, [list(gold)]), float)
    cluster_indices = clusters_to_indices(range(len(counts)) if clusters is None else clusters)
    sums = np.zeros((int(cluster_indices.max()) + 1, counts.shape[1]))
    np.add.at(sums, cluster_indices, counts)
    return sums


def compute_metric_score(metric: CHRF | BLEU, counts: Float64) -> SacrebleuScore:
    return metric._compute_score_from_stats(list(counts))


def compute_resampled_scores(metric: CHRF | BLEU, resampled_counts: Float64) -> Float64:
    """Compute the score of each resample, (R,), from its counts, (R, k)."""
    return np.array(
        [compute_metric_score(metric, counts).score for counts in resampled_counts], float
    )


# Labels --------------------------------------------------------------------------------------


def assign_label_ids(labels: Sequence[str], gold: Sequence[str]) -> dict[str, int]:
    """Number the labels: those of the model in its order, then other gold labels."""
    return {name: i for i, name in enumerate([*labels, *sorted(set(gold) - set(labels))])}


def compute_label_scores(
    system: str,
    predicted: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any],
    model_labels: Sequence[str],
    scorer: str = "",
    cluster_unit: str = "texts",
) -> Iterator[Score]:
    """Compute accuracy, the F1 of each label, and macro-F1, their mean over labels that occur.

    Args:
        system: Name of the system that is scored.
        predicted: (n,) predicted labels.
        gold: (n,) correct labels.
        clusters: (n,) clusters that are resampled: the text or the group of each label.
        model_labels: Labels of the model.
        scorer: Library and version of the baseline.
        cluster_unit: Plural name of the clusters.
    """
    is_correct = [
        predicted_label == gold_label
        for predicted_label, gold_label in zip(predicted, gold, strict=True)
    ]
    accuracy = estimate_mean_or_share(is_correct, clusters, is_share=True, unit=cluster_unit)
    yield build_score(
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
    label_ids = assign_label_ids(model_labels, gold)
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
        yield build_score(
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
    id_by_label: dict[str, int],
) -> Float64:
    """Count outcomes like `count_outcomes_by_cluster`, for labels given by name."""
    gold_ids, predicted_ids = (
        np.array([id_by_label[name] for name in labels]) for labels in (gold, predicted)
    )
    return count_outcomes_by_cluster(
        gold_ids, predicted_ids, clusters_to_indices(clusters), len(id_by_label)
    )


def clusters_to_indices(clusters: Sequence[Any]) -> NDArray[np.int64]:
    """Number the clusters from 0 without gaps."""
    return np.unique(np.asarray(clusters), return_inverse=True)[1]


class BootstrapInterval(NamedTuple):
    """A 95 % interval.

    Attributes:
        low: Lower end; NaN without an interval.
        high: Upper end; NaN without an interval.
        method: How it was computed, or why there is none.
    """

    low: float
    high: float
    method: str


def compute_bootstrap_interval(
    resampled_values: Float64, cluster_count: int, cluster_unit: str
) -> BootstrapInterval:
    """Compute the interval from resampled values, (R,)."""
    defined_values = resampled_values[~np.isnan(resampled_values)]
    if not len(defined_values):
        reason = "no interval: no test row has this label as its correct or predicted label"
        return BootstrapInterval(np.nan, np.nan, reason)
    low, high = np.quantile(defined_values, [0.025, 0.975])
    if low == high:  # For example if all are correct; the interval would falsely claim certainty.
        method = (
            f"no interval: all bootstrap resamples of {cluster_count} {cluster_unit} give the "
            "same value"
        )
        return BootstrapInterval(np.nan, np.nan, method)
    method = f"percentile bootstrap over {cluster_count} {cluster_unit}, {RESAMPLE_COUNT} resamples"
    return BootstrapInterval(low, high, method)


def count_outcomes_by_cluster(
    gold_ids: NDArray[np.int64],
    predicted_ids: NDArray[np.int64],
    cluster_indices: NDArray[np.int64],
    label_count: int,
) -> Float64:
    """Count true positives, false positives and false negatives: (clusters, 3, labels)."""
    counts = np.zeros((int(cluster_indices.max()) + 1, 3, label_count))
    is_correct = gold_ids == predicted_ids
    np.add.at(counts, (cluster_indices[is_correct], 0, gold_ids[is_correct]), 1)
    np.add.at(counts, (cluster_indices[~is_correct], 1, predicted_ids[~is_correct]), 1)
    np.add.at(counts, (cluster_indices[~is_correct], 2, gold_ids[~is_correct]), 1)
    return counts


def compute_f1(outcome_counts: Float64) -> Float64:
    """Compute F1 as 2 TP / (2 TP + FP + FN), (..., labels), from outcomes (..., 3, labels).

    NaN for a label that does not occur.
    """
    true_positives, false_positives, false_negatives = np.moveaxis(outcome_counts, -2, 0)
    with np.errstate(invalid="ignore"):
        f1: Float64 = 2 * true_positives / (2 * true_positives + false_positives + false_negatives)
        return f1


def bootstrap_cluster_sums(counts: Float64, seed: int = 0) -> Float64:
    """Sum the counts of clusters drawn with replacement, RESAMPLE_COUNT times: (R, ...)."""
    generator, cluster_count = np.random.default_rng(seed), len(counts)
    flat_counts = counts.reshape(cluster_count, -1)
    sums = np.empty((RESAMPLE_COUNT, flat_counts.shape[1]))
    for draw in range(RESAMPLE_COUNT):
        drawn_clusters = generator.integers(cluster_count, size=cluster_count)
        sums[draw] = np.bincount(drawn_clusters, minlength=cluster_count) @ flat_counts
    return sums.reshape(RESAMPLE_COUNT, *counts.shape[1:])


# Differences between the model and a baseline on the same texts --------------------------------

#: Unit of differences of shares and of scores, of 100.
POINTS_UNIT = "points"

#: Suffix of the method of a difference.
PAIRED_DIFFERENCE_NOTE = (
    "computed from the differences between the model and the baseline on the same texts"
)


def build_share_difference_score(
    system: str,
    metric: str,
    model_correct: Sequence[bool],
    baseline_correct: Sequence[bool],
    clusters: Sequence[Any] | None,
    cluster_unit: str,
) -> Score:
    """Build the score row of a difference of two shares, in percentage points.

    The differences of items, from -1 to 1, are scaled to shares, which have an interval even if all
    are equal.
    """
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
    return build_score(
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
) -> Iterator[Score]:
    """Compute how far the accuracy and the macro-F1 of the model exceed those of a baseline.

    Clusters are drawn for both at once. Other arguments are as in `compute_label_scores`.

    Args:
        baseline_name: Name of the baseline.
        predicted: (n,) labels predicted by the model.
        baseline_predicted: (n,) labels predicted by the baseline.
        gold: (n,) correct labels.
        clusters: (n,) clusters.
        model_labels: Labels of the model.
        cluster_unit: Plural name of the clusters.
    """
    system = f"model minus {baseline_name}"
    model_correct, baseline_correct = (
        [
            system_label == gold_label
            for system_label, gold_label in zip(system_labels, gold, strict=True)
        ]
        for system_labels in (predicted, baseline_predicted)
    )
    yield build_share_difference_score(
        system, "accuracy", model_correct, baseline_correct, clusters, cluster_unit
    )
    if not gold:
        return
    label_ids = assign_label_ids(model_labels, gold)
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
    yield build_score(system, "macro-F1", value, low, high, len(gold), method, unit=POINTS_UNIT)


def compute_text_differences(
    baseline_name: str,
    generated: Sequence[str],
    baseline_texts: Sequence[str],
    gold: Sequence[str],
    clusters: Sequence[Any] | None = None,
    cluster_unit: str = "texts",
) -> Iterator[Score]:
    """Compute how far the scores of the model's texts exceed those of a baseline's texts.

    Clusters are drawn for both at once.

    Args:
        baseline_name: Name of the baseline.
        generated: (n,) texts of the model.
        baseline_texts: (n,) texts of the baseline.
        gold: (n,) references.
        clusters: (n,) clusters; None makes each text its own cluster.
        cluster_unit: Plural name of the clusters.
    """
    system = f"model minus {baseline_name}"
    model_correct, baseline_correct = (
        [
            text.strip() == gold_text.strip()
            for text, gold_text in zip(system_texts, gold, strict=True)
        ]
        for system_texts in (generated, baseline_texts)
    )
    yield build_share_difference_score(
        system, "exact match", model_correct, baseline_correct, clusters, cluster_unit
    )
    if not gold:
        return
    for metric in build_text_metrics():
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
        yield build_score(
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


# Baselines -----------------------------------------------------------------------------------


def predict_with_bag_of_words(
    train_ids: Sequence[Sequence[int]],
    train_labels: Sequence[str],
    test_ids: Sequence[Sequence[int]],
    vocab_size: int,
) -> list[str]:
    """Predict labels by logistic regression over counts of token ids below `vocab_size`."""
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


class LabelledWords(NamedTuple):
    """The words of a text, and the label of each."""

    words: Sequence[str]
    labels: Sequence[str]


def predict_most_frequent_labels(
    train_texts: Sequence[LabelledWords], test_texts: Sequence[Sequence[str]]
) -> list[str]:
    """Predict each word's most frequent training label, or, if unknown, that of all words.

    Args:
        train_texts: Labelled texts.
        test_texts: The words of each text.

    Returns:
        The labels of all words of all test texts, one after the other.
    """
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
