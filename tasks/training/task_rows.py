"""The rows of a task: what stands in a table, checked, split, and made into examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from hallmark.model.config import ModelConfig
from hallmark.model.special_tokens import END_OF_TEXT_ID
from hallmark.model.training.examples import NO_LABEL, Example, truncate_pair
from hallmark.tasks.contract import (
    ExternalPath,
    HallmarkError,
    Seed,
    StageConfig,
    expand_home,
    hash_to_ids,
)
from hallmark.tasks.training.pack import compute_shuffle_keys
from hallmark.tasks.training.table_files import read_table_rows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Split = Literal["train", "validation", "test"]

#: Characters of a value; a longer one is quarantined.
MAX_VALUE_CHARACTERS = 1 << 20
#: Different labels; where there are more, the column is hardly one of labels.
MAX_LABELS = 4096


class PairsTask(StageConfig):
    """A source and its target: translation, summarisation, questions and answers."""

    kind: Literal["pairs"] = "pairs"
    source_column: str = Field("source", description="column that the model reads")
    target_column: str = Field("target", description="column that the model writes")

    @property
    def columns(self) -> list[str]:
        return [self.source_column, self.target_column]


class ClassificationTask(StageConfig):
    """Texts, or pairs of sentences, each with a label."""

    kind: Literal["classification"] = "classification"
    text_column: str = Field("text", description="column of the text")
    second_text_column: str | None = Field(
        None, description="column of the second sentence of a pair"
    )
    label_column: str = Field("label", description="column of the label")

    @property
    def columns(self) -> list[str]:
        return [
            self.text_column,
            *([self.second_text_column] if self.second_text_column else []),
            self.label_column,
        ]


class WordLabellingTask(StageConfig):
    """Texts whose words have a label each; both columns hold lists, or words between blanks."""

    kind: Literal["labelling"] = "labelling"
    words_column: str = Field("words", description="column of the words of a text")
    labels_column: str = Field("labels", description="column of their labels, as many")

    @property
    def columns(self) -> list[str]:
        return [self.words_column, self.labels_column]


Task = Annotated[PairsTask | ClassificationTask | WordLabellingTask, Field(discriminator="kind")]


class TaskDataConfig(StageConfig):
    """Where the rows are. Without a file of its own, a split is a share of ``path``, drawn by a
    hash of (seed, group): of what stands in the ``group_column``, else of the text itself, so that
    equal texts are on one side."""

    path: ExternalPath = Field(min_length=1, description="parquet, csv, tsv or jsonl file")
    validation_path: ExternalPath | None = Field(None, description="file of the validation split")
    test_path: ExternalPath | None = Field(None, description="file of the test split")
    validation_share: float = Field(0.1, ge=0, lt=1, description="share of the validation split")
    test_share: float = Field(0.2, ge=0, lt=1, description="share of the test split")
    group_column: str | None = Field(
        None,
        description="column whose rows stay together, in splits and intervals: author, document",
    )
    seed: Seed = Field(0, description="names the split")

    @model_validator(mode="after")
    def _check_training_share(self) -> TaskDataConfig:
        if sum(self.split_shares) >= 1:
            raise ValueError(
                f"validation_share {self.validation_share} and test_share {self.test_share} leave "
                f"nothing to train on"
            )
        return self

    @property
    def split_shares(self) -> tuple[float, float]:
        """Of ``path``: that of the test split and that of the validation split."""
        return (
            0.0 if self.test_path else self.test_share,
            0.0 if self.validation_path else self.validation_share,
        )

    @property
    def split_paths(self) -> dict[str, Path]:
        """The files, by the split that all of their rows are of; "" where it is drawn."""
        optional_paths = {"": self.path, "validation": self.validation_path, "test": self.test_path}
        return {split: expand_home(path) for split, path in optional_paths.items() if path}


class TaskRow(NamedTuple):
    """texts: one, or two sentences, or words. gold: a target, a label, or the words' labels.
    group: what stands in the ``group_column``, empty where none is named."""

    file_name: str
    row_number: int
    split: str
    texts: list[str]
    gold: list[str]
    group: str = ""


@dataclass
class TaskRows:
    """``kept``: the rows that can be used; ``bad``: file, row and reason of the others."""

    usable_rows: list[TaskRow] = field(default_factory=list)
    rejected_rows: list[tuple[str, int, str]] = field(default_factory=list)

    def select_split(self, split: str) -> list[TaskRow]:
        return [row for row in self.usable_rows if row.split == split]


class UnusableRowError(Exception):
    """Why a row cannot be used."""


# From a table --------------------------------------------------------------------------------


def read_task_rows(task: Task, data_config: TaskDataConfig) -> TaskRows:
    """All rows of the data, in the order of the files. They are held in memory."""
    task_rows = TaskRows()
    columns = [*task.columns, *([data_config.group_column] if data_config.group_column else [])]
    for split, path in data_config.split_paths.items():
        for row_number, values, error in read_table_rows(path, columns):
            try:
                if error:
                    raise UnusableRowError(error)
                texts, gold = parse_row_values(task, values)
                group = parse_text(values[-1], "group") if data_config.group_column else ""
                task_rows.usable_rows.append(
                    TaskRow(path.name, row_number, split, texts, gold, group)
                )
            except UnusableRowError as reason:
                task_rows.rejected_rows.append((path.name, row_number, str(reason)))
    drawn_splits = assign_splits(
        [row.group or "\0".join(row.texts) for row in task_rows.usable_rows], data_config
    )
    task_rows.usable_rows = [
        row._replace(split=row.split or drawn_split)
        for row, drawn_split in zip(task_rows.usable_rows, drawn_splits, strict=True)
    ]
    return task_rows


def assign_splits(groups: Sequence[str], data_config: TaskDataConfig) -> list[Split]:
    """The split of each row, by the hash of its group."""
    hash_positions = (
        compute_shuffle_keys(hash_to_ids(groups), data_config.seed) / 2.0**64
    )  # uniform over [0, 1)
    test_share, validation_share = data_config.split_shares
    split_names: list[Split] = ["test", "validation", "train"]
    return [
        split_names[split_index]
        for split_index in np.searchsorted(
            [test_share, test_share + validation_share], hash_positions, side="right"
        )
    ]


def parse_row_values(task: Task, values: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Texts and gold of a row's values. Raises Unusable."""
    if isinstance(task, PairsTask):
        return [parse_text(values[0], "source")], [parse_text(values[1], "target")]
    if isinstance(task, ClassificationTask):
        texts = [parse_text(values[0], "text")]
        if task.second_text_column:
            texts.append(parse_text(values[1], "second sentence"))
        return texts, [parse_label(values[len(texts)])]
    words, labels = parse_list(values[0], "words"), parse_list(values[1], "labels")
    if len(words) != len(labels):
        raise UnusableRowError(f"{len(words)} words and {len(labels)} labels")
    return [parse_text(word, "word") for word in words], [parse_label(label) for label in labels]


def parse_text(value: Any, value_name: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UnusableRowError(f"no {value_name}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise UnusableRowError(f"the {value_name} is no text")
    if len(value) > MAX_VALUE_CHARACTERS:
        raise UnusableRowError(
            f"the {value_name} has more than {MAX_VALUE_CHARACTERS:,} characters"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnusableRowError(f"the {value_name} is not UTF-8") from None
    return value


def parse_label(value: Any) -> str:
    return parse_text(str(value).lower() if isinstance(value, bool) else value, "label").strip()


def parse_list(value: Any, value_name: str) -> list[Any]:
    if isinstance(value, str):
        value = value.split()
    if value is None or value == []:
        raise UnusableRowError(f"no {value_name}")
    if not isinstance(value, list):
        raise UnusableRowError(f"the {value_name} are no list")
    return value


def collect_labels(rows: Sequence[TaskRow]) -> tuple[str, ...]:
    """The labels of the training rows, in order. HallmarkError where they are no set to learn."""
    labels = sorted({label for row in rows for label in row.gold})
    if len(labels) < 2:
        raise HallmarkError(
            f"all training rows have the label {labels[0]!r}: there is nothing to tell "
            f"apart; bring "
            f"rows with another, or loosen the split (finetune.data)"
        )
    if len(labels) > MAX_LABELS:
        raise HallmarkError(
            f"the training rows have {len(labels):,} different labels, more than {MAX_LABELS:,}: "
            f"does finetune.task name the column of the labels?"
        )
    return tuple(labels)


# To examples ---------------------------------------------------------------------------------


@dataclass
class EncodedRows:
    """An example of each row; ``cut``: whether the context holds less than all of it; ``read``: of
    labelled words those that are read."""

    examples: list[Example]
    is_truncated: list[bool]
    read_word_counts: list[int]


def encode_rows(
    rows: Sequence[TaskRow],
    task: Task,
    tokenizer: Tokenizer,
    model_config: ModelConfig,
    unknown_label: int,
) -> EncodedRows:
    """Rows to examples. ``unknown`` stands for a label that the model does not have: UNASKED where
    it is to be left out, else any, so that the model is asked for one."""
    label_names = {label for row in rows for label in row.gold}
    label_ids = dict.fromkeys(label_names, unknown_label) | {
        name: i for i, name in enumerate(model_config.labels)
    }
    if isinstance(task, WordLabellingTask):
        return _encode_word_labels(rows, tokenizer, model_config, label_ids)
    token_lists = _iter_token_ids(tokenizer, [text for row in rows for text in row.texts])
    tokenized_texts = [[next(token_lists) for _ in row.texts] for row in rows]
    encoded = EncodedRows([], [], [0] * len(rows))
    if isinstance(task, PairsTask):
        targets = _iter_token_ids(tokenizer, [row.gold[0] for row in rows])
        for [source], target in zip(tokenized_texts, targets, strict=True):
            truncated_pair = truncate_pair(source, target, model_config)
            encoded.examples.append(Example(*truncated_pair))
            encoded.is_truncated.append(sum(map(len, truncated_pair)) < len(source) + len(target))
        return encoded
    label_position = 0 if model_config.architecture == "encoder" else -1
    for row, sentences in zip(rows, tokenized_texts, strict=True):
        token_ids, first_length = join_sentences(sentences, model_config.context)
        answers = [NO_LABEL] * len(token_ids)
        answers[label_position] = label_ids[row.gold[0]]
        encoded.examples.append(Example(token_ids, answers, first_length))
        encoded.is_truncated.append(len(token_ids) < sum(map(len, sentences)) + len(sentences))
    return encoded


def join_sentences(
    sentences: Sequence[Sequence[int]], context_length: int
) -> tuple[list[int], int]:
    """Sentences behind a begin token each, and how many of the tokens are the first's. What the
    context does not hold goes from the end of the longer one, token by token (Devlin et al.)."""
    lengths = [len(sentence) for sentence in sentences]
    while sum(lengths) + len(lengths) > context_length and any(lengths):
        longest_index = max(range(len(lengths)), key=lambda i: lengths[i])
        other_max_length = max(
            (length for i, length in enumerate(lengths) if i != longest_index), default=0
        )
        excess = sum(lengths) + len(lengths) - context_length
        lengths[longest_index] -= min(excess, max(1, lengths[longest_index] - other_max_length))
    sentence_parts = [
        [END_OF_TEXT_ID, *ids[:length]] for ids, length in zip(sentences, lengths, strict=True)
    ]
    return [token for part in sentence_parts for token in part], len(sentence_parts[0])


def _encode_word_labels(
    rows: Sequence[TaskRow],
    tokenizer: Tokenizer,
    model_config: ModelConfig,
    label_ids: dict[str, int],
) -> EncodedRows:
    """A word's label is asked for at its first token of an encoder (Devlin et al. 2019), at its
    last of a decoder, which has not read it before."""
    token_lists = _iter_token_ids(
        tokenizer, [f" {word_ids}" for row in rows for word_ids in row.texts]
    )
    encoded = EncodedRows([], [], [])
    is_encoder = model_config.architecture == "encoder"
    for row in rows:
        token_ids, answers, read_word_count = [END_OF_TEXT_ID], [NO_LABEL], 0
        for label in row.gold:
            word_ids = next(token_lists)
            if read_word_count < 0 or len(token_ids) + len(word_ids) > model_config.context:
                read_word_count = (
                    read_word_count if read_word_count < 0 else -read_word_count - 1
                )  # the rest is not read
                continue
            word_answers = [NO_LABEL] * len(word_ids)
            word_answers[0 if is_encoder else -1] = label_ids[label]
            token_ids, answers, read_word_count = (
                token_ids + list(word_ids),
                answers + word_answers,
                read_word_count + 1,
            )
        encoded.examples.append(Example(token_ids, answers))
        encoded.is_truncated.append(read_word_count < 0)
        encoded.read_word_counts.append(
            -read_word_count - 1 if read_word_count < 0 else read_word_count
        )
    return encoded


def _iter_token_ids(tokenizer: Tokenizer, texts: list[str]) -> Iterator[list[int]]:
    for start in range(0, len(texts), 1024):
        batch = texts[start : start + 1024]
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids


# Counts --------------------------------------------------------------------------------------


def count_rows_by_outcome(
    rows: TaskRows, encoded: dict[str, EncodedRows], labels: Sequence[str]
) -> list[tuple[Any, ...]]:
    """(split, what, rows) of all that was read, left out, cut or is unlike the training rows."""
    counts: list[tuple[Any, ...]] = []
    train_texts = {"\0".join(row.texts) for row in rows.select_split("train")}
    for split, encoded_split in encoded.items():
        split_rows = rows.select_split(split)
        counts += [
            (split, "used", len(split_rows)),
            (split, "cut to the context", sum(encoded_split.is_truncated)),
        ]
        if split == "train":
            continue
        repeated_text_count = sum("\0".join(row.texts) in train_texts for row in split_rows)
        counts.append((split, "text also in train", repeated_text_count))
        if labels:
            unseen_label_count = sum(
                any(label not in labels for label in row.gold) for row in split_rows
            )
            counts.append((split, "a label never seen in train", unseen_label_count))
    rejection_counts = Counter(reason for _, _, reason in rows.rejected_rows)
    return counts + [
        ("", f"quarantined: {reason}", rejection_count)
        for reason, rejection_count in sorted(rejection_counts.items())
    ]
