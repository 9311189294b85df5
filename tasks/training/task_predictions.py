"""What a fine-tuned model gives for the rows of the test split, and how well that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from model.training.examples import asked
from tasks.contract import column, table
from tasks.training.task_rows import Encoded, Labelling, Row, Rows, Task
from tasks.training.task_scores import (
    BAG_OF_WORDS,
    bag_of_words,
    label_differences,
    label_scores,
    most_frequent,
    numbered,
    text_differences,
    text_scores,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from model.architecture import Transformer

PREDICTIONS = table(
    "What the model gives for the rows of the test split.",
    column("file", pa.string(), "label", "name of the file"),
    column("row", pa.int64(), "figure", "number of the row in it, as in quarantine"),
    column("word", pa.int32(), "figure", "number of the word, from 0, where words have labels"),
    column("gold", pa.large_string(), "corpus text", "what stands in the table"),
    column("label", pa.int32(), "id", "of a label its number, as in scores"),
    column("predicted", pa.large_string(), "model text", "what the model gives"),
    column("right", pa.bool_(), "figure", "whether that is the same, blanks at the ends aside"),
    column("log_prob", pa.float64(), "figure", "its log-probability", unit="nats"),
    column("precision", pa.string(), "label", "what the model computed in: fp32 or bf16"),
)


def predict_texts(
    model: Transformer, tokenizer: Tokenizer, done: Encoded, longest: int
) -> list[tuple[str, Any]]:
    """What the model writes for each source, greedily, and its log-probability. It writes at most
    ``longest`` tokens, or what the context holds with its prompt: as in training it never goes on
    with a part of the source out of sight."""
    from model.decoding.generate import generate

    if not done.examples:
        return []
    given = [asked(example.ids, model.config.architecture) for example in done.examples]
    prompts = [prompt for prompt, _ in given]
    sources = [source for _, source in given if source is not None] or None
    rooms = [min(longest, model.config.context - len(prompt)) for prompt in prompts]
    found = generate(
        model, prompts, max_new_tokens=max(rooms), temperature=0.0, sources=sources, batch_rows=64
    )
    written = []
    for (text,), room in zip(found, rooms, strict=True):
        ids = text.ids[:-1] if text.stopped else text.ids
        spelled = tokenizer.decode(ids[:room], skip_special_tokens=True)
        written.append((spelled, float(text.log_probs[:room].sum(dtype="float64"))))
    return written


def predict_labels(model: Transformer, done: Encoded) -> list[list[tuple[str, Any]]]:
    """Of each text the likeliest label of each token that was asked for one, and its
    log-probability."""
    from model.probing.labels import label_log_probs

    names = model.config.labels
    found = []
    for log_p in label_log_probs(model, done.examples):
        best = log_p.argmax(1)
        pairs = zip(best, log_p.max(1), strict=True)
        found.append([(names[i], float(value)) for i, value in pairs])
    return found


def clusters(rows: Sequence[Row]) -> tuple[list[Any], str]:
    """What each row is resampled with, and what that is called: the rows of its group, else the row
    alone."""
    unit = "groups" if any(row.group for row in rows) else "texts"
    return [row.group or i for i, row in enumerate(rows)], unit


def judge_labels(
    model: Transformer, task: Task, rows: Rows, encoded: dict[str, Encoded]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of PREDICTIONS and of SCORES for labels."""
    test, train, done = rows.of("test"), rows.of("train"), encoded["test"]
    given = predict_labels(model, done)
    own, unit = clusters(test)
    predictions, drawn = [], []  # drawn: the cluster of each label
    for row, labels, cluster in zip(test, given, own, strict=True):
        for word, ((label, log_prob), right) in enumerate(zip(labels, row.gold, strict=False)):
            number = word if isinstance(task, Labelling) else None
            predictions.append(_prediction(row, number, right, label, log_prob))
            drawn.append(cluster)
    gold = [prediction["gold"] for prediction in predictions]
    names = model.config.labels
    numbers = numbered(names, gold)
    predictions = [row | {"label": numbers[row["gold"]]} for row in predictions]
    scored = [prediction["predicted"] for prediction in predictions]
    if isinstance(task, Labelling):
        read = [row.texts[:n] for row, n in zip(test, done.read, strict=True)]
        simple = most_frequent([(row.texts, row.gold) for row in train], read)
        other, scorer = "most frequent label of the word", ""
    else:
        simple = bag_of_words(
            [example.ids for example in encoded["train"].examples],
            [row.gold[0] for row in train],
            [example.ids for example in done.examples],
            model.config.vocab_size,
        )
        other, scorer = "bag of words", BAG_OF_WORDS
    scores = [
        *label_scores("model", scored, gold, drawn, names, unit=unit),
        *label_scores(other, simple, gold, drawn, names, scorer, unit),
        *label_differences(other, scored, simple, gold, drawn, names, unit),
    ]
    return predictions, scores


def judge_pairs(
    model: Transformer, tokenizer: Tokenizer, rows: Rows, encoded: dict[str, Encoded]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of PREDICTIONS and of SCORES for pairs."""
    test = rows.of("test")
    longest = 2 * max(len(example.answers) for example in encoded["train"].examples) + 8
    written = predict_texts(model, tokenizer, encoded["test"], longest)
    predictions = [
        _prediction(row, None, row.gold[0], *found)
        for row, found in zip(test, written, strict=True)
    ]
    gold, sources = [row.gold[0] for row in test], [row.texts[0] for row in test]
    texts, drawn = [text for text, _ in written], clusters(test)
    scores = [
        *text_scores("model", texts, gold, *drawn),
        *text_scores("the source itself", sources, gold, *drawn),
        *text_differences("the source itself", texts, sources, gold, *drawn),
    ]
    return predictions, scores


def _prediction(
    row: Row, word: int | None, gold: str, predicted: str, log_prob: float
) -> dict[str, Any]:
    return {
        "file": row.file, "row": row.number, "word": word, "gold": gold, "label": None,
        "predicted": predicted, "right": predicted.strip() == gold.strip(), "log_prob": log_prob,
    }  # fmt: skip
