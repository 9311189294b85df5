"""Read the rows of a task from a user's files, validate them, split them and encode them."""

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
    format_count,
    hash_to_ids,
)
from hallmark.tasks.training.pack import compute_shuffle_keys
from hallmark.tasks.training.table_files import read_table_rows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Split = Literal["train", "validation", "test"]

#: Maximum number of characters of a value; a row with a longer one is quarantined.
MAX_VALUE_CHARACTERS = 1 << 20
#: Maximum number of distinct labels; a column with more is probably not a column of labels.
MAX_LABELS = 4096


class PairsTask(StageConfig):
    """Generate a target from a source: translation, summarisation, question answering."""

    kind: Literal["pairs"] = "pairs"
    source_column: str = Field(
        "source",
        description="name of the column with the source text, which is the model input",
    )
    target_column: str = Field(
        "target",
        description="name of the column with the target text, which the model learns to generate",
    )

    @property
    def columns(self) -> list[str]:
        return [self.source_column, self.target_column]


class ClassificationTask(StageConfig):
    """Predict the label of a text or of a pair of sentences."""

    kind: Literal["classification"] = "classification"
    text_column: str = Field("text", description="name of the column with the text")
    second_text_column: str | None = Field(
        None,
        description="name of the column with the second sentence, if the model classifies "
        "sentence pairs",
    )
    label_column: str = Field("label", description="name of the column with the label")

    @property
    def columns(self) -> list[str]:
        return [
            self.text_column,
            *([self.second_text_column] if self.second_text_column else []),
            self.label_column,
        ]


class WordLabellingTask(StageConfig):
    """Predict a label for each word; both columns have lists, or words separated by spaces."""

    kind: Literal["labelling"] = "labelling"
    words_column: str = Field("words", description="name of the column with the words of a text")
    labels_column: str = Field(
        "labels", description="name of the column with the labels of the words, one label per word"
    )

    @property
    def columns(self) -> list[str]:
        return [self.words_column, self.labels_column]


Task = Annotated[PairsTask | ClassificationTask | WordLabellingTask, Field(discriminator="kind")]


class SplitShares(NamedTuple):
    """Shares of the rows that are assigned to the test and the validation split."""

    test: float
    validation: float


class TaskDataConfig(StageConfig):
    """Name the files with the rows, and choose how rows are split.

    A split without its own file is a share of `path`, selected by a hash of (seed, group). The
    group is the value of `group_column`, or the text itself, so that equal texts are in the same
    split.
    """

    path: ExternalPath = Field(
        min_length=1, description="parquet, csv, tsv or jsonl file with the rows"
    )
    validation_path: ExternalPath | None = Field(
        None, description="file with the rows of the validation split"
    )
    test_path: ExternalPath | None = Field(None, description="file with the rows of the test split")
    validation_share: float = Field(
        0.1, ge=0, lt=1, description="share of rows assigned to the validation split"
    )
    test_share: float = Field(
        0.2, ge=0, lt=1, description="share of rows assigned to the test split"
    )
    group_column: str | None = Field(
        None,
        description="name of the column that identifies the group to which a row belongs, such "
        "as the text's author or document; rows in the same group are assigned to the same split "
        "and are resampled together to compute confidence intervals",
    )
    seed: Seed = Field(0, description="random seed for the split")

    @model_validator(mode="after")
    def _check_training_share(self) -> TaskDataConfig:
        if sum(self.split_shares) >= 1:
            raise ValueError(
                "no rows remain for training, because the sum of 'validation_share' "
                f"({self.validation_share}) and 'test_share' ({self.test_share}) is not below 1; "
                "lower one of them"
            )
        return self

    @property
    def split_shares(self) -> SplitShares:
        """Shares of `path` for the test and the validation split; 0 if the split has a file."""
        return SplitShares(
            test=0.0 if self.test_path else self.test_share,
            validation=0.0 if self.validation_path else self.validation_share,
        )

    @property
    def path_by_split(self) -> dict[str, Path]:
        """Files by the split of all their rows; "" for `path`, whose rows are assigned by hash."""
        optional_paths = {"": self.path, "validation": self.validation_path, "test": self.test_path}
        return {split: expand_home(path) for split, path in optional_paths.items() if path}


class TaskRow(NamedTuple):
    """A row of a user's file.

    Attributes:
        file_name: Name of the file.
        row_number: Number of the row in the file.
        split: train, validation or test.
        texts: One text, two sentences, or the words of a text.
        gold: The target, the label, or the labels of the words.
        group: Value of `group_column`; empty if there is no such column.
    """

    file_name: str
    row_number: int
    split: str
    texts: list[str]
    gold: list[str]
    group: str = ""


class RejectedRow(NamedTuple):
    """A row of a user's file that cannot be used; a row of the `quarantine` table."""

    file_name: str
    row_number: int
    reason: str


@dataclass
class TaskRows:
    """Rows of the user's files.

    Attributes:
        usable_rows: Rows that can be used.
        rejected_rows: All other rows.
    """

    usable_rows: list[TaskRow] = field(default_factory=list)
    rejected_rows: list[RejectedRow] = field(default_factory=list)

    def select_split(self, split: str) -> list[TaskRow]:
        return [row for row in self.usable_rows if row.split == split]


class UnusableRowError(Exception):
    """Report why a row cannot be used."""


# From a table --------------------------------------------------------------------------------


def read_task_rows(task: Task, data_config: TaskDataConfig) -> TaskRows:
    """Read all rows into memory, in the order of the files."""
    task_rows = TaskRows()
    columns = [*task.columns, *([data_config.group_column] if data_config.group_column else [])]
    for split, path in data_config.path_by_split.items():
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
                task_rows.rejected_rows.append(RejectedRow(path.name, row_number, str(reason)))
    drawn_splits = assign_splits(
        [row.group or "\0".join(row.texts) for row in task_rows.usable_rows], data_config
    )
    task_rows.usable_rows = [
        row._replace(split=row.split or drawn_split)
        for row, drawn_split in zip(task_rows.usable_rows, drawn_splits, strict=True)
    ]
    return task_rows


def assign_splits(groups: Sequence[str], data_config: TaskDataConfig) -> list[Split]:
    """Assign each row to a split by the hash of its group."""
    # Uniform in [0, 1).
    hash_positions = compute_shuffle_keys(hash_to_ids(groups), data_config.seed) / 2.0**64
    test_share, validation_share = data_config.split_shares
    split_names: list[Split] = ["test", "validation", "train"]
    split_bounds = [test_share, test_share + validation_share]
    split_indices = np.searchsorted(split_bounds, hash_positions, side="right")
    return [split_names[split_index] for split_index in split_indices]


class ParsedValues(NamedTuple):
    """The values of a row, as in TaskRow."""

    texts: list[str]
    gold: list[str]


def parse_row_values(task: Task, values: Sequence[Any]) -> ParsedValues:
    """Parse the values of a row; raise UnusableRowError if that fails."""
    if isinstance(task, PairsTask):
        return ParsedValues([parse_text(values[0], "source")], [parse_text(values[1], "target")])
    if isinstance(task, ClassificationTask):
        texts = [parse_text(values[0], "text")]
        if task.second_text_column:
            texts.append(parse_text(values[1], "second sentence"))
        return ParsedValues(texts, [parse_label(values[len(texts)])])
    words, labels = parse_list(values[0], "words"), parse_list(values[1], "labels")
    if len(words) != len(labels):
        raise UnusableRowError(
            f"the row has {format_count(len(words), 'word')} but "
            f"{format_count(len(labels), 'label')}"
        )
    return ParsedValues(
        [parse_text(word, "word") for word in words], [parse_label(label) for label in labels]
    )


def parse_text(value: Any, value_name: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UnusableRowError(f"no {value_name}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise UnusableRowError(f"the {value_name} is not text")
    if len(value) > MAX_VALUE_CHARACTERS:
        raise UnusableRowError(
            f"the {value_name} has more than {MAX_VALUE_CHARACTERS:,} characters"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnusableRowError(f"the {value_name} cannot be encoded as UTF-8") from None
    return value


def parse_label(value: Any) -> str:
    return parse_text(str(value).lower() if isinstance(value, bool) else value, "label").strip()


def parse_list(value: Any, value_name: str) -> list[Any]:
    if isinstance(value, str):
        value = value.split()
    if value is None or value == []:
        raise UnusableRowError(f"no {value_name}")
    if not isinstance(value, list):
        raise UnusableRowError(f"the {value_name} are not a list")
    return value


def collect_labels(rows: Sequence[TaskRow]) -> tuple[str, ...]:
    """Return the distinct labels of the training rows, sorted.

    Raises:
        HallmarkError: There is only one label, or more than MAX_LABELS.
    """
    labels = sorted({label for row in rows for label in row.gold})
    if len(labels) < 2:
        raise HallmarkError(
            f"all training rows have the label {labels[0]!r}, so the model cannot learn to "
            "distinguish labels; add rows with other labels, or change the split in finetune.data"
        )
    if len(labels) > MAX_LABELS:
        raise HallmarkError(
            f"the training rows have {len(labels):,} different labels, but at most {MAX_LABELS:,} "
            "are supported; check that finetune.task specifies the column that contains the labels"
        )
    return tuple(labels)


# To examples ---------------------------------------------------------------------------------


@dataclass
class EncodedRows:
    """Encoded rows.

    Attributes:
        examples: An example for each row.
        is_truncated: Whether the row does not fit into the context.
        read_word_counts: Number of labelled words that fit; 0 for other tasks.
    """

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
    """Encode rows as examples.

    Args:
        rows: The rows.
        task: The task.
        tokenizer: The tokenizer.
        model_config: Settings of the model, including its labels.
        unknown_label: Number for labels that the model does not have: NO_LABEL to ignore them, or
            any other to request a prediction.
    """
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


class JoinedSentences(NamedTuple):
    """The tokens of one or two sentences.

    Attributes:
        token_ids: All tokens.
        first_length: Number of tokens of the first sentence.
    """

    token_ids: list[int]
    first_length: int


def join_sentences(sentences: Sequence[Sequence[int]], context_length: int) -> JoinedSentences:
    """Join sentences with a begin token before each.

    If they do not fit into the context, the longer one is truncated token by token (Devlin et al.
    2019).
    """
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
    token_ids = [token for part in sentence_parts for token in part]
    return JoinedSentences(token_ids, len(sentence_parts[0]))


def _encode_word_labels(
    rows: Sequence[TaskRow],
    tokenizer: Tokenizer,
    model_config: ModelConfig,
    id_by_label: dict[str, int],
) -> EncodedRows:
    """Encode rows with a label at one token of each word.

    An encoder predicts it at the word's first token (Devlin et al. 2019), a decoder at its last,
    because it has not read the whole word before. Words that do not fit into the context are
    dropped.
    """
    token_lists = _iter_token_ids(tokenizer, [f" {word}" for row in rows for word in row.texts])
    encoded = EncodedRows([], [], [])
    is_encoder = model_config.architecture == "encoder"
    for row in rows:
        token_ids, answers, read_word_count, is_truncated = [END_OF_TEXT_ID], [NO_LABEL], 0, False
        for label in row.gold:
            word_ids = next(token_lists)
            is_truncated |= len(token_ids) + len(word_ids) > model_config.context
            if is_truncated:
                continue
            word_answers = [NO_LABEL] * len(word_ids)
            word_answers[0 if is_encoder else -1] = id_by_label[label]
            token_ids += word_ids
            answers += word_answers
            read_word_count += 1
        encoded.examples.append(Example(token_ids, answers))
        encoded.is_truncated.append(is_truncated)
        encoded.read_word_counts.append(read_word_count)
    return encoded


def _iter_token_ids(tokenizer: Tokenizer, texts: list[str]) -> Iterator[list[int]]:
    for start in range(0, len(texts), 1024):
        batch = texts[start : start + 1024]
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids


# Counts --------------------------------------------------------------------------------------


class OutcomeCount(NamedTuple):
    """A row of the `outcome_counts` table."""

    split: str
    outcome: str
    row_count: int


def count_rows_by_outcome(
    rows: TaskRows, encoded_by_split: dict[str, EncodedRows], labels: Sequence[str]
) -> list[OutcomeCount]:
    """Count rows by split and outcome; outcomes include comparisons with the train split."""
    counts: list[OutcomeCount] = []
    train_texts = {"\0".join(row.texts) for row in rows.select_split("train")}
    for split, encoded_split in encoded_by_split.items():
        split_rows = rows.select_split(split)
        counts += [
            OutcomeCount(split, "used", len(split_rows)),
            OutcomeCount(split, "cut to the context", sum(encoded_split.is_truncated)),
        ]
        if split == "train":
            continue
        repeated_text_count = sum("\0".join(row.texts) in train_texts for row in split_rows)
        counts.append(OutcomeCount(split, "text also in train", repeated_text_count))
        if labels:
            unseen_label_count = sum(
                any(label not in labels for label in row.gold) for row in split_rows
            )
            counts.append(OutcomeCount(split, "a label never seen in train", unseen_label_count))
    rejection_counts = Counter(row.reason for row in rows.rejected_rows)
    return counts + [
        OutcomeCount("", f"quarantined: {reason}", rejection_count)
        for reason, rejection_count in sorted(rejection_counts.items())
    ]
