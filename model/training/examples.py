"""Examples of a task on disk: pairs of a source and a target, and texts with labels.

They lie in an Arrow file that is mapped, so that memory does not grow with their number. Which of
them a step sees is the same function of (seed, step) as for packed rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from model.config import Architecture, ModelConfig
from model.draws import Int64, combine, permute
from model.interchange.files import atomic_file
from model.tokens import END_OF_TEXT, Tokens
from model.training.data import PackedRows, materialise

#: Stands at a token that is asked for no label.
UNASKED = -1

EXAMPLES = pa.schema(
    [
        ("ids", pa.large_list(pa.int32())),
        ("answers", pa.large_list(pa.int32())),
        ("first", pa.int32()),
    ]
)


class Example(NamedTuple):
    """ids: what is read. answers: of a pair the target's tokens; else the label of each token of
    ``ids``, or UNASKED. first: how many tokens are of the first sentence, where there are two."""

    ids: Tokens
    answers: Tokens
    first: int = 0


# Layout ----------------------------------------------------------------------------------------


def cut_pair(source: Tokens, target: Tokens, config: ModelConfig) -> tuple[Tokens, Tokens]:
    """Source and target, cut at their ends to what the context holds.

    An encoder-decoder has a context for each. A decoder reads both in one row between begin and end
    tokens: there the source keeps three quarters of it, and the target what is left. What is kept
    of a source depends on no target, so that it is the same where that is to be written.
    """
    context = config.context
    if config.architecture == "encoder_decoder":
        return source[:context], target[: context - 1]  # the decoder's begin token
    room = context - 3  # a begin token before either, an end token behind the target
    if room < 2:
        raise ValueError(f"A context of {context} tokens has no room for a pair: it takes 5.")
    source = source[: 3 * room // 4]
    return source, target[: room - len(source)]


def prompt_of(source: Tokens) -> list[int]:
    """What a decoder reads of a pair before it writes the target."""
    return [END_OF_TEXT, *source, END_OF_TEXT]


def asked(source: Tokens, architecture: Architecture) -> tuple[list[int], list[int] | None]:
    """How a model of pairs is asked for a target, as it was trained: what the decoder reads first,
    and the encoder, where there is one."""
    if architecture == "encoder_decoder":
        return [END_OF_TEXT], list(source) or [END_OF_TEXT]
    return prompt_of(source), None


# On disk ---------------------------------------------------------------------------------------


def write_examples(path: Path, examples: Iterable[Example]) -> None:
    """Write the file that ``ExampleRows`` maps; it appears whole or not at all."""
    rows = list(examples)
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(EXAMPLES)]
    table = pa.table(columns, schema=EXAMPLES)
    with atomic_file(path) as temporary, pa.ipc.new_file(str(temporary), EXAMPLES) as writer:
        writer.write_table(table)


class ExampleRows:
    """Examples, mapped from a file; for the trainer what ``PackedRows`` is."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        """ValueError where the file holds no examples, or none that this model can learn from."""
        self.path = path
        try:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all()
            self._ids, self._answers = (_Ragged(table[name]) for name in ("ids", "answers"))
            self.first = table["first"].to_numpy().astype(np.int64)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not a file of examples: {error}.") from error
        if not len(table):
            raise ValueError(f"{path} holds no examples: there is nothing to learn from.")
        self._check(config)
        pair = 0 if config.labels else 1
        self.lengths = self._ids.lengths + pair * self._answers.lengths  # (n,) tokens
        self._walked: tuple[object, Int64] = None, np.zeros(1, np.int64)

    def _check(self, config: ModelConfig) -> None:
        read, asked = self._ids.lengths, self._answers.lengths
        for values, low, high in ((self._ids.values, 0, config.vocab_size),
                                  (self._answers.values, UNASKED, config.outputs)):  # fmt: skip
            if len(values) and not low <= int(values.min()) <= int(values.max()) < high:
                raise ValueError(
                    f"{self.path} holds numbers from {values.min()} to {values.max()} where the "
                    f"model has {high}: was it made for another model?"
                )
        if config.labels:
            fits = (read > 0) & (read <= config.context) & (read == asked)
        elif config.architecture == "encoder_decoder":
            fits = (read <= config.context) & (asked < config.context)
        else:
            fits = read + asked + 3 <= config.context
        if not fits.all():
            row = int(np.argmin(fits))
            raise ValueError(
                f"{self.path}: example {row} has {read[row]} tokens and {asked[row]} answers, "
                f"which a context of {config.context} does not hold."
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def __len__(self) -> int:
        return len(self.first)

    def rows(self, index: Int64) -> list[Example]:
        """The examples of these numbers."""
        return [Example(self._ids[i], self._answers[i], int(self.first[i])) for i in index]

    def spread(self, count: int) -> Int64:
        """The numbers of at most ``count`` examples, evenly spread over all."""
        n = len(self)
        return np.linspace(0, n - 1, min(n, count)).round().astype(np.int64)

    def tokens(self, index: Int64) -> int:
        """How many tokens these examples have."""
        return int(self.lengths[index].sum())

    def read(self, seed: int, steps: int, batch: int) -> int:
        """How many tokens the first ``steps`` steps read."""
        epoch, rest = divmod(steps * batch, len(self))
        if self._walked[0] != (seed, epoch):
            order = permute(np.arange(len(self)), len(self), combine(seed, epoch))
            sums = np.concatenate(([0], np.cumsum(self.lengths[order])))
            self._walked = (seed, epoch), sums
        return epoch * int(self.lengths.sum()) + int(self._walked[1][rest])


def open_rows(
    source: str | Sequence[str], copy: Path, config: ModelConfig, examples: bool
) -> PackedRows | ExampleRows:
    """The rows that a job names: packed ones, copied to ``copy`` first, or ``examples``."""
    if not examples:
        return materialise(source, copy, config.context, config.vocab_size)
    if not isinstance(source, str):
        raise ValueError("Examples stand in one file: give its path, not several.")
    return ExampleRows(Path(source), config)


class _Ragged:
    """A column of lists of integers, without a copy where it stands in one piece."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        whole = column.combine_chunks()
        if whole.null_count or not pa.types.is_large_list(whole.type):
            raise ValueError("its columns are no lists of tokens")
        self.values: NDArray[np.int32] = whole.values.to_numpy()
        self.offsets: Int64 = whole.offsets.to_numpy()
        self.lengths: Int64 = np.diff(self.offsets)

    def __getitem__(self, row: int) -> list[int]:
        return self.values[self.offsets[row] : self.offsets[row + 1]].tolist()  # type: ignore[no-any-return]
