"""Store and read task examples: pairs of a source and a target, and texts with labels.

They are in an Arrow file that is mapped, so that memory does not grow with their number. The
examples of a step are the same function of (seed, step) as for packed rows.
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

from hallmark.model.config import Architecture, ModelConfig
from hallmark.model.interchange.atomic_files import write_file_atomically
from hallmark.model.keyed_randomness import Int64, combine_into_key, map_indices_by_permutation
from hallmark.model.special_tokens import END_OF_TEXT_ID, TokenIds
from hallmark.model.training.packed_rows import PackedRows, open_packed_rows

#: Label of a token that has none.
NO_LABEL = -1

EXAMPLES_SCHEMA = pa.schema(
    [
        ("token_ids", pa.large_list(pa.int32())),
        ("targets", pa.large_list(pa.int32())),
        ("first_sentence_length", pa.int32()),
    ]
)


class Example(NamedTuple):
    """One example of a task.

    Attributes:
        ids: tokens of the source, or of the labelled text.
        targets: tokens of the target of a pair; for a labelled text the label of each token of
            ``ids``, or NO_LABEL.
        first_sentence_length: tokens of the first sentence, if the text has two.
    """

    ids: TokenIds
    targets: TokenIds
    first_sentence_length: int = 0


def truncate_pair(
    source: TokenIds, target: TokenIds, config: ModelConfig
) -> tuple[TokenIds, TokenIds]:
    """Truncate source and target at their ends so that they fit into the context.

    An encoder-decoder has a context for each. A decoder reads both in one row with begin and end
    tokens: the source gets up to three quarters of it, and the target the rest. The truncated
    source does not depend on the target, so it is the same when the target is generated.

    Raises:
        ValueError: The context of a decoder is too short for a pair.
    """
    context = config.context
    if config.architecture == "encoder_decoder":
        return source[:context], target[: context - 1]  # the decoder's begin token
    token_budget = context - 3  # a begin token before each, an end token after the target
    if token_budget < 2:
        raise ValueError(
            f"A context of {context} tokens is too short for a source and its target: increase "
            "the context to at least 5 tokens."
        )
    source = source[: 3 * token_budget // 4]
    return source, target[: token_budget - len(source)]


def build_pair_prompt(source: TokenIds) -> list[int]:
    """Build a decoder's prompt for the target of a source."""
    return [END_OF_TEXT_ID, *source, END_OF_TEXT_ID]


class PairInputs(NamedTuple):
    """Inputs for generating the target of a source.

    Attributes:
        prompt: first tokens of the decoder.
        encoder_ids: input of the encoder; None without an encoder.
    """

    prompt: list[int]
    encoder_ids: list[int] | None


def build_pair_inputs(source: TokenIds, architecture: Architecture) -> PairInputs:
    """Build the inputs for generating the target of ``source``, as in training."""
    if architecture == "encoder_decoder":
        return PairInputs([END_OF_TEXT_ID], list(source) or [END_OF_TEXT_ID])
    return PairInputs(build_pair_prompt(source), None)


def write_examples(path: Path, examples: Iterable[Example]) -> None:
    """Write the file that ``ExampleRows`` maps; it appears complete or not at all."""
    example_rows = list(examples)
    columns = [
        pa.array([row[i] for row in example_rows], field.type)
        for i, field in enumerate(EXAMPLES_SCHEMA)
    ]
    table = pa.table(columns, schema=EXAMPLES_SCHEMA)
    with (
        write_file_atomically(path) as temporary,
        pa.ipc.new_file(str(temporary), EXAMPLES_SCHEMA) as writer,
    ):
        writer.write_table(table)


class ExampleRows:
    """Examples mapped from a file, with the interface of ``PackedRows``."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        """Map the examples at ``path``.

        Raises:
            ValueError: The file has no examples, or some that do not fit the model.
        """
        self.path = path
        try:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all()
            self._ids, self._targets = (
                _ListColumn(table[name]) for name in ("token_ids", "targets")
            )
            self.first_sentence_lengths = table["first_sentence_length"].to_numpy().astype(np.int64)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not an example file: {error}.") from error
        if not len(table):
            raise ValueError(f"{path} has no examples, so there is nothing to train on.")
        self._check_model_fits(config)
        target_factor = 0 if config.labels else 1
        self.lengths = self._ids.lengths + target_factor * self._targets.lengths  # (n,) tokens
        self._epoch_token_sums: tuple[object, Int64] = None, np.zeros(1, np.int64)

    def _check_model_fits(self, config: ModelConfig) -> None:
        read_lengths, target_lengths = self._ids.lengths, self._targets.lengths
        for id_values, low, high in (
            (self._ids.values, 0, config.vocab_size),
            (self._targets.values, NO_LABEL, config.output_size),
        ):
            if len(id_values) and not low <= int(id_values.min()) <= int(id_values.max()) < high:
                raise ValueError(
                    f"{self.path} contains ids from {id_values.min()} to {id_values.max()}, but "
                    f"this model's ids range from {low} to {high - 1}. Was the file written for "
                    "another model?"
                )
        context = config.context
        if config.labels:
            is_valid = (
                (read_lengths > 0) & (read_lengths <= context) & (read_lengths == target_lengths)
            )
            requirement = f"an example needs 1 to {context} tokens, with one label for each token"
        elif config.architecture == "encoder_decoder":
            is_valid = (read_lengths <= context) & (target_lengths < context)
            requirement = (
                f"an example can have at most {context} source tokens and {context - 1} target "
                "tokens"
            )
        else:
            is_valid = read_lengths + target_lengths + 3 <= context
            requirement = (
                f"an example can have at most {context - 3} source and target tokens in total"
            )
        if not is_valid.all():
            row = int(np.argmin(is_valid))
            target_unit = "labels" if config.labels else "target tokens"
            raise ValueError(
                f"{self.path}: example {row} has {read_lengths[row]} tokens and "
                f"{target_lengths[row]} {target_unit}, but {requirement}."
            )

    @cached_property
    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def __len__(self) -> int:
        return len(self.first_sentence_lengths)

    def read_rows(self, row_indices: Int64) -> list[Example]:
        """Return the examples at these indices."""
        return [
            Example(self._ids[i], self._targets[i], int(self.first_sentence_lengths[i]))
            for i in row_indices
        ]

    def count_tokens(self, row_indices: Int64) -> int:
        """Count the tokens of these examples."""
        return int(self.lengths[row_indices].sum())

    def count_tokens_read(self, seed: int, step_count: int, batch_size: int) -> int:
        """Count the tokens that the first ``step_count`` steps read."""
        full_epochs, rows_in_epoch = divmod(step_count * batch_size, len(self))
        if self._epoch_token_sums[0] != (seed, full_epochs):
            order = map_indices_by_permutation(
                np.arange(len(self)), len(self), combine_into_key(seed, full_epochs)
            )
            cumulative_tokens = np.concatenate(([0], np.cumsum(self.lengths[order])))
            self._epoch_token_sums = (seed, full_epochs), cumulative_tokens
        return full_epochs * int(self.lengths.sum()) + int(self._epoch_token_sums[1][rows_in_epoch])


def open_dataset_rows(
    source: str | Sequence[str], copy_path: Path, config: ModelConfig, are_examples: bool
) -> PackedRows | ExampleRows:
    """Open a job's data: packed rows, copied to ``copy_path`` first, or a file of examples."""
    if not are_examples:
        return open_packed_rows(source, copy_path, config.context, config.vocab_size)
    if not isinstance(source, str):
        raise ValueError("Examples must be in a single file: specify one path.")
    return ExampleRows(Path(source), config)


class _ListColumn:
    """A column of lists of integers, not copied if it is a single chunk."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        list_array = column.combine_chunks()
        if list_array.null_count or not pa.types.is_large_list(list_array.type):
            raise ValueError("the columns do not contain lists of tokens")
        self.values: NDArray[np.int32] = list_array.values.to_numpy()
        self.offsets: Int64 = list_array.offsets.to_numpy()
        self.lengths: Int64 = np.diff(self.offsets)

    def __getitem__(self, row: int) -> list[int]:
        return self.values[self.offsets[row] : self.offsets[row + 1]].tolist()  # type: ignore[no-any-return]
