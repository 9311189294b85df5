"""The rows of a task: what stands in a table, checked, split, and made into examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from model.config import ModelConfig
from model.tokens import END_OF_TEXT
from model.training.examples import UNASKED, Example, cut_pair
from tasks.contract import ExternalPath, HallmarkError, Seed, StageConfig, expanded, ids
from tasks.training.pack import shuffle_keys
from tasks.training.tabular import read_rows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Split = Literal["train", "validation", "test"]

#: Characters of a value; a longer one is quarantined.
LONGEST = 1 << 20
#: Different labels; where there are more, the column is hardly one of labels.
MOST_LABELS = 4096


class Pairs(StageConfig):
    """A source and its target: translation, summarisation, questions and answers."""

    kind: Literal["pairs"] = "pairs"
    source: str = Field("source", description="column of what is read")
    target: str = Field("target", description="column of what is to be written")

    @property
    def columns(self) -> list[str]:
        return [self.source, self.target]


class Classification(StageConfig):
    """Texts, or pairs of sentences, each with a label."""

    kind: Literal["classification"] = "classification"
    text: str = Field("text", description="column of the text")
    second: str | None = Field(None, description="column of the second sentence of a pair")
    label: str = Field("label", description="column of the label")

    @property
    def columns(self) -> list[str]:
        return [self.text, *([self.second] if self.second else []), self.label]


class Labelling(StageConfig):
    """Texts whose words have a label each; both columns hold lists, or words between blanks."""

    kind: Literal["labelling"] = "labelling"
    words: str = Field("words", description="column of the words of a text")
    labels: str = Field("labels", description="column of their labels, as many")

    @property
    def columns(self) -> list[str]:
        return [self.words, self.labels]


Task = Annotated[Pairs | Classification | Labelling, Field(discriminator="kind")]


class DataConfig(StageConfig):
    """Where the rows are. Without a file of its own, a split is a share of ``path``, drawn by a
    hash of (seed, group): of what stands in the column ``group``, else of the text itself, so that
    equal texts are on one side."""

    path: ExternalPath = Field(min_length=1, description="parquet, csv, tsv or jsonl file")
    validation_path: ExternalPath | None = Field(None, description="file of the validation split")
    test_path: ExternalPath | None = Field(None, description="file of the test split")
    validation: float = Field(0.1, ge=0, lt=1, description="share of the validation split")
    test: float = Field(0.2, ge=0, lt=1, description="share of the test split")
    group: str | None = Field(
        None,
        description="column whose rows stay together, in splits and intervals: author, document",
    )
    seed: Seed = Field(0, description="names the split")

    @model_validator(mode="after")
    def _some_for_training(self) -> DataConfig:
        if sum(self.shares) >= 1:
            raise ValueError(
                f"validation {self.validation} and test {self.test} leave nothing to train on"
            )
        return self

    @property
    def shares(self) -> tuple[float, float]:
        """Of ``path``: that of the test split and that of the validation split."""
        return (0.0 if self.test_path else self.test,
                0.0 if self.validation_path else self.validation)  # fmt: skip

    @property
    def paths(self) -> dict[str, Path]:
        """The files, by the split that all of their rows are of; "" where it is drawn."""
        named = {"": self.path, "validation": self.validation_path, "test": self.test_path}
        return {split: expanded(path) for split, path in named.items() if path}


class Row(NamedTuple):
    """texts: one, or two sentences, or words. gold: a target, a label, or the words' labels.
    group: what stands in the column ``group``, empty where none is named."""

    file: str
    number: int
    split: str
    texts: list[str]
    gold: list[str]
    group: str = ""


@dataclass
class Rows:
    """``kept``: the rows that can be used; ``bad``: file, row and reason of the others."""

    kept: list[Row] = field(default_factory=list)
    bad: list[tuple[str, int, str]] = field(default_factory=list)

    def of(self, split: str) -> list[Row]:
        return [row for row in self.kept if row.split == split]


class Unusable(Exception):
    """Why a row cannot be used."""


# From a table --------------------------------------------------------------------------------


def read_task(task: Task, data: DataConfig) -> Rows:
    """All rows of the data, in the order of the files. They are held in memory."""
    found = Rows()
    columns = [*task.columns, *([data.group] if data.group else [])]
    for split, path in data.paths.items():
        for number, values, error in read_rows(path, columns):
            try:
                if error:
                    raise Unusable(error)
                texts, gold = parse(task, values)
                group = text_of(values[-1], "group") if data.group else ""
                found.kept.append(Row(path.name, number, split, texts, gold, group))
            except Unusable as reason:
                found.bad.append((path.name, number, str(reason)))
    drawn = draw([row.group or "\0".join(row.texts) for row in found.kept], data)
    found.kept = [
        row._replace(split=row.split or name) for row, name in zip(found.kept, drawn, strict=True)
    ]
    return found


def draw(groups: Sequence[str], data: DataConfig) -> list[Split]:
    """The split of each row, by the hash of its group."""
    place = shuffle_keys(ids(groups), data.seed) / 2.0**64  # uniform over [0, 1)
    test, validation = data.shares
    names: list[Split] = ["test", "validation", "train"]
    return [names[i] for i in np.searchsorted([test, test + validation], place, side="right")]


def parse(task: Task, values: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Texts and gold of a row's values. Raises Unusable."""
    if isinstance(task, Pairs):
        return [text_of(values[0], "source")], [text_of(values[1], "target")]
    if isinstance(task, Classification):
        texts = [text_of(values[0], "text")]
        if task.second:
            texts.append(text_of(values[1], "second sentence"))
        return texts, [label_of(values[len(texts)])]
    words, labels = list_of(values[0], "words"), list_of(values[1], "labels")
    if len(words) != len(labels):
        raise Unusable(f"{len(words)} words and {len(labels)} labels")
    return [text_of(word, "word") for word in words], [label_of(label) for label in labels]


def text_of(value: Any, what: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise Unusable(f"no {what}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise Unusable(f"the {what} is no text")
    if len(value) > LONGEST:
        raise Unusable(f"the {what} has more than {LONGEST:,} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unusable(f"the {what} is not UTF-8") from None
    return value


def label_of(value: Any) -> str:
    return text_of(str(value).lower() if isinstance(value, bool) else value, "label").strip()


def list_of(value: Any, what: str) -> list[Any]:
    if isinstance(value, str):
        value = value.split()
    if value is None or value == []:
        raise Unusable(f"no {what}")
    if not isinstance(value, list):
        raise Unusable(f"the {what} are no list")
    return value


def labels_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The labels of the training rows, in order. HallmarkError where they are no set to learn."""
    found = sorted({label for row in rows for label in row.gold})
    if len(found) < 2:
        raise HallmarkError(
            f"all training rows have the label {found[0]!r}: there is nothing to tell apart; bring "
            f"rows with another, or loosen the split (finetune.data)"
        )
    if len(found) > MOST_LABELS:
        raise HallmarkError(
            f"the training rows have {len(found):,} different labels, more than {MOST_LABELS:,}: "
            f"does finetune.task name the column of the labels?"
        )
    return tuple(found)


# To examples ---------------------------------------------------------------------------------


@dataclass
class Encoded:
    """An example of each row; ``cut``: whether the context holds less than all of it; ``read``: of
    labelled words those that are read."""

    examples: list[Example]
    cut: list[bool]
    read: list[int]


def encode(
    rows: Sequence[Row], task: Task, tokenizer: Tokenizer, config: ModelConfig, unknown: int
) -> Encoded:
    """Rows to examples. ``unknown`` stands for a label that the model does not have: UNASKED where
    it is to be left out, else any, so that the model is asked for one."""
    names = {label for row in rows for label in row.gold}
    number = dict.fromkeys(names, unknown) | {name: i for i, name in enumerate(config.labels)}
    if isinstance(task, Labelling):
        return _encode_words(rows, tokenizer, config, number)
    tokens = _tokens(tokenizer, [text for row in rows for text in row.texts])
    texts = [[next(tokens) for _ in row.texts] for row in rows]
    done = Encoded([], [], [0] * len(rows))
    if isinstance(task, Pairs):
        targets = _tokens(tokenizer, [row.gold[0] for row in rows])
        for [source], target in zip(texts, targets, strict=True):
            kept = cut_pair(source, target, config)
            done.examples.append(Example(*kept))
            done.cut.append(sum(map(len, kept)) < len(source) + len(target))
        return done
    at = 0 if config.architecture == "encoder" else -1
    for row, sentences in zip(rows, texts, strict=True):
        whole, first = joined(sentences, config.context)
        answers = [UNASKED] * len(whole)
        answers[at] = number[row.gold[0]]
        done.examples.append(Example(whole, answers, first))
        done.cut.append(len(whole) < sum(map(len, sentences)) + len(sentences))
    return done


def joined(sentences: Sequence[Sequence[int]], context: int) -> tuple[list[int], int]:
    """Sentences behind a begin token each, and how many of the tokens are the first's. What the
    context does not hold goes from the end of the longer one, token by token (Devlin et al.)."""
    lengths = [len(sentence) for sentence in sentences]
    while sum(lengths) + len(lengths) > context and any(lengths):
        longest = max(range(len(lengths)), key=lambda i: lengths[i])
        others = max((n for i, n in enumerate(lengths) if i != longest), default=0)
        over = sum(lengths) + len(lengths) - context
        lengths[longest] -= min(over, max(1, lengths[longest] - others))
    parts = [[END_OF_TEXT, *s[:n]] for s, n in zip(sentences, lengths, strict=True)]
    return [token for part in parts for token in part], len(parts[0])


def _encode_words(
    rows: Sequence[Row], tokenizer: Tokenizer, config: ModelConfig, number: dict[str, int]
) -> Encoded:
    """A word's label is asked for at its first token of an encoder (Devlin et al. 2019), at its
    last of a decoder, which has not read it before."""
    tokens = _tokens(tokenizer, [f" {word}" for row in rows for word in row.texts])
    done = Encoded([], [], [])
    encoder = config.architecture == "encoder"
    for row in rows:
        ids_, answers, read = [END_OF_TEXT], [UNASKED], 0
        for label in row.gold:
            word = next(tokens)
            if read < 0 or len(ids_) + len(word) > config.context:
                read = read if read < 0 else -read - 1  # the rest is not read
                continue
            asked = [UNASKED] * len(word)
            asked[0 if encoder else -1] = number[label]
            ids_, answers, read = ids_ + list(word), answers + asked, read + 1
        done.examples.append(Example(ids_, answers))
        done.cut.append(read < 0)
        done.read.append(-read - 1 if read < 0 else read)
    return done


def _tokens(tokenizer: Tokenizer, texts: list[str]) -> Iterator[list[int]]:
    for start in range(0, len(texts), 1024):
        batch = texts[start : start + 1024]
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids


# Counts --------------------------------------------------------------------------------------


def count(rows: Rows, encoded: dict[str, Encoded], labels: Sequence[str]) -> list[tuple[Any, ...]]:
    """(split, what, rows) of all that was read, left out, cut or is unlike the training rows."""
    found: list[tuple[Any, ...]] = []
    known = {"\0".join(row.texts) for row in rows.of("train")}
    for split, done in encoded.items():
        mine = rows.of(split)
        found += [(split, "used", len(mine)), (split, "cut to the context", sum(done.cut))]
        if split == "train":
            continue
        again = sum("\0".join(row.texts) in known for row in mine)
        found.append((split, "text also in train", again))
        if labels:
            unseen = sum(any(label not in labels for label in row.gold) for row in mine)
            found.append((split, "a label never seen in train", unseen))
    bad = Counter(reason for _, _, reason in rows.bad)
    return found + [("", f"quarantined: {reason}", n) for reason, n in sorted(bad.items())]
