"""Predict the test split with a fine-tuned model, and compare its scores with a baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from hallmark.model.training.examples import build_pair_inputs
from hallmark.tasks.contract import column, table_schema
from hallmark.tasks.training.task_rows import (
    EncodedRows,
    Task,
    TaskRow,
    TaskRows,
    WordLabellingTask,
)
from hallmark.tasks.training.task_scores import (
    BAG_OF_WORDS_VERSION,
    LabelledWords,
    Score,
    assign_label_ids,
    compute_label_differences,
    compute_label_scores,
    compute_text_differences,
    compute_text_scores,
    predict_most_frequent_labels,
    predict_with_bag_of_words,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from hallmark.model.architecture import Transformer

PREDICTIONS = table_schema(
    "Predictions of the fine-tuned model on the test split, one row per text or word.",
    column("file_name", pa.string(), "label", "name of the data file"),
    column(
        "row_number",
        pa.int64(),
        "figure",
        "row number in the file, as in the `quarantine` table",
    ),
    column(
        "word_index",
        pa.int32(),
        "figure",
        "index of the word in the text, starting at 0; null if the task does not label words",
    ),
    column("gold", pa.large_string(), "corpus text", "correct label or target text from the file"),
    column(
        "label_id",
        pa.int32(),
        "id",
        "index of the correct label, as in the `scores` table; null if the task has no labels",
    ),
    column("predicted", pa.large_string(), "model text", "label or text that the model predicts"),
    column(
        "is_correct",
        pa.bool_(),
        "figure",
        "whether the prediction equals the correct label or text, ignoring leading and trailing "
        "white space",
    ),
    column("log_prob", pa.float64(), "figure", "log-probability of the prediction", unit="nats"),
    column(
        "precision",
        pa.string(),
        "label",
        "number format used in the model's computations: fp32 or bf16",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One row of PREDICTIONS; ``precision`` is set when the table is written."""

    file_name: str
    row_number: int
    word_index: int | None
    gold: str
    label_id: int | None = None
    predicted: str
    is_correct: bool
    log_prob: float
    precision: str = ""


class PredictedValue(NamedTuple):
    """A label or text that the model predicts, and its log-probability in nats."""

    value: str
    log_prob: float


def predict_texts(
    model: Transformer, tokenizer: Tokenizer, encoded: EncodedRows, max_tokens: int
) -> list[PredictedValue]:
    """Generate a text for each source greedily.

    A text has at most `max_tokens` tokens and fits into the context together with its prompt: as in
    training, the model always sees the whole source.

    Returns:
        The text for each example.
    """
    from hallmark.model.decoding.generation import generate

    if not encoded.examples:
        return []
    prompts_and_sources = [
        build_pair_inputs(example.ids, model.config.architecture) for example in encoded.examples
    ]
    prompts = [prompt for prompt, _ in prompts_and_sources]
    sources = [source for _, source in prompts_and_sources if source is not None] or None
    token_limits = [min(max_tokens, model.config.context - len(prompt)) for prompt in prompts]
    generated = generate(
        model,
        prompts,
        max_new_tokens=max(token_limits),
        temperature=0.0,
        sources=sources,
        batch_rows=64,
    )
    predictions = []
    for (continuation,), token_limit in zip(generated, token_limits, strict=True):
        token_ids = continuation.ids[:-1] if continuation.stopped else continuation.ids
        predicted_text = tokenizer.decode(token_ids[:token_limit], skip_special_tokens=True)
        log_prob = float(continuation.log_probs[:token_limit].sum(dtype="float64"))
        predictions.append(PredictedValue(predicted_text, log_prob))
    return predictions


def predict_labels(model: Transformer, encoded: EncodedRows) -> list[list[PredictedValue]]:
    """Predict the most likely label of each token that has one.

    Returns:
        For each example, the label of each such token.
    """
    from hallmark.model.probing.label_scores import compute_log_probs_at_labelled_tokens

    label_names = model.config.labels
    predictions = []
    for log_p in compute_log_probs_at_labelled_tokens(model, encoded.examples):
        best_labels = log_p.argmax(1)
        pairs = zip(best_labels, log_p.max(1), strict=True)
        predictions.append(
            [PredictedValue(label_names[i], float(log_prob)) for i, log_prob in pairs]
        )
    return predictions


class RowClusters(NamedTuple):
    """The clusters of n rows, which are resampled as a whole.

    Attributes:
        clusters: (n,) group or number of the row.
        unit: Plural name of the clusters: groups or texts.
    """

    clusters: list[str | int]
    unit: str


def assign_row_clusters(rows: Sequence[TaskRow]) -> RowClusters:
    """Return the cluster of each row.

    Rows of the same group are resampled together; a row without a group is its own cluster.
    """
    unit = "groups" if any(row.group for row in rows) else "texts"
    return RowClusters([row.group or i for i, row in enumerate(rows)], unit)


class TaskEvaluation(NamedTuple):
    """The predictions for the test split and their scores."""

    predictions: list[Prediction]
    scores: list[Score]


def evaluate_labels(
    model: Transformer, task: Task, rows: TaskRows, encoded_by_split: dict[str, EncodedRows]
) -> TaskEvaluation:
    """Predict labels for the test split and score them."""
    test_rows, train_rows = rows.select_split("test"), rows.select_split("train")
    encoded_test = encoded_by_split["test"]
    predicted_labels = predict_labels(model, encoded_test)
    row_clusters, cluster_unit = assign_row_clusters(test_rows)
    predictions, label_clusters = [], []
    for row, row_predictions, cluster in zip(
        test_rows, predicted_labels, row_clusters, strict=True
    ):
        for word_index, ((label, log_prob), gold_label) in enumerate(
            zip(row_predictions, row.gold, strict=False)
        ):
            stored_word_index = word_index if isinstance(task, WordLabellingTask) else None
            predictions.append(
                _build_prediction(row, stored_word_index, gold_label, label, log_prob)
            )
            label_clusters.append(cluster)
    gold_labels = [prediction.gold for prediction in predictions]
    label_names = model.config.labels
    label_ids = assign_label_ids(label_names, gold_labels)
    predictions = [
        replace(prediction, label_id=label_ids[prediction.gold]) for prediction in predictions
    ]
    model_labels = [prediction.predicted for prediction in predictions]
    if isinstance(task, WordLabellingTask):
        read_words = [
            row.texts[:word_count]
            for row, word_count in zip(test_rows, encoded_test.read_word_counts, strict=True)
        ]
        baseline_labels = predict_most_frequent_labels(
            [LabelledWords(row.texts, row.gold) for row in train_rows], read_words
        )
        baseline_name, scorer = "most frequent label of the word", ""
    else:
        baseline_labels = predict_with_bag_of_words(
            [example.ids for example in encoded_by_split["train"].examples],
            [row.gold[0] for row in train_rows],
            [example.ids for example in encoded_test.examples],
            model.config.vocab_size,
        )
        baseline_name, scorer = "bag of words", BAG_OF_WORDS_VERSION
    scores = [
        *compute_label_scores(
            "model",
            model_labels,
            gold_labels,
            label_clusters,
            label_names,
            cluster_unit=cluster_unit,
        ),
        *compute_label_scores(
            baseline_name,
            baseline_labels,
            gold_labels,
            label_clusters,
            label_names,
            scorer,
            cluster_unit,
        ),
        *compute_label_differences(
            baseline_name,
            model_labels,
            baseline_labels,
            gold_labels,
            label_clusters,
            label_names,
            cluster_unit,
        ),
    ]
    return TaskEvaluation(predictions, scores)


def evaluate_pairs(
    model: Transformer,
    tokenizer: Tokenizer,
    rows: TaskRows,
    encoded_by_split: dict[str, EncodedRows],
) -> TaskEvaluation:
    """Generate targets for the test split and score them."""
    test_rows = rows.select_split("test")
    max_tokens = 2 * max(len(example.targets) for example in encoded_by_split["train"].examples) + 8
    generated = predict_texts(model, tokenizer, encoded_by_split["test"], max_tokens)
    predictions = [
        _build_prediction(row, None, row.gold[0], *prediction)
        for row, prediction in zip(test_rows, generated, strict=True)
    ]
    gold_texts = [row.gold[0] for row in test_rows]
    source_texts = [row.texts[0] for row in test_rows]
    generated_texts = [prediction.value for prediction in generated]
    clusters, cluster_unit = assign_row_clusters(test_rows)
    scores = [
        *compute_text_scores("model", generated_texts, gold_texts, clusters, cluster_unit),
        *compute_text_scores("the source itself", source_texts, gold_texts, clusters, cluster_unit),
        *compute_text_differences(
            "the source itself", generated_texts, source_texts, gold_texts, clusters, cluster_unit
        ),
    ]
    return TaskEvaluation(predictions, scores)


def _build_prediction(
    row: TaskRow, word_index: int | None, gold: str, predicted: str, log_prob: float
) -> Prediction:
    return Prediction(
        file_name=row.file_name,
        row_number=row.row_number,
        word_index=word_index,
        gold=gold,
        predicted=predicted,
        is_correct=predicted.strip() == gold.strip(),
        log_prob=log_prob,
    )
