"""Measure how well the model predicts held-out text: overall, by source and by identity group.

Bits per byte can be compared between tokenizers and groups, bits per token cannot. Only tokens that
spell text count: the begin-of-text token of the next document has no bytes and is excluded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import Objective
from hallmark.model.keyed_randomness import Int64
from hallmark.model.training.examples import ExampleRows
from hallmark.model.training.packed_rows import PackedRows, select_evenly_spaced_rows
from hallmark.model.training.parallel import DistributedWorld

#: Spans of the validation rows: positions row_start ... row_end - 1 of row ``sequence`` belong to
#: the group ``name`` of a ``kind``. A position may belong to several groups, or to none.
GROUPS_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("row_start", pa.int32()),
        ("row_end", pa.int32()),
        ("kind", pa.string()),  # "source" or "identity"
        ("name", pa.string()),
    ]
)

#: One row for each group of each validation; kind "all" is the whole text.
VALIDATION_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # predicted tokens that spell text
        pa.field("bytes", pa.int64(), nullable=False),  # bytes of these tokens
        pa.field("bits_per_byte", pa.float64()),  # null if nothing was predicted
    ]
)

#: Distance from a position of the row to the token that is predicted there. Span corruption has
#: none, because it moves tokens to other sequences with other positions.
TARGET_OFFSETS: dict[Objective, int] = {"causal": 1, "prefix": 1, "mlm": 0}

Float64 = NDArray[np.float64]

#: Rows measured together. An objective's draws depend on it, so it is independent of the batch size
#: and the processes of the training.
ROWS_PER_BATCH = 16


class GroupRow(TypedDict):
    """Validation loss of a group of sequences, a row of VALIDATION_SCHEMA without the step."""

    kind: str
    name: str
    tokens: int
    bytes: int
    bits_per_byte: float | None


@dataclass(frozen=True)
class ValidationResult:
    """Result of a validation.

    Attributes:
        bits_per_token: over all tokens that the objective predicts; None if there are none.
        table_rows: rows of VALIDATION_SCHEMA without the step.
    """

    bits_per_token: float | None
    table_rows: list[GroupRow]


class _RowBatch(NamedTuple):
    """Rows that one process measures together.

    Attributes:
        row_indices: indices of the validation rows.
        is_counted: False if another process counts the same rows.
    """

    row_indices: Int64
    is_counted: bool


def read_group_spans(path: str, packed_rows: PackedRows) -> pa.Table:
    """Read the table of GROUPS_SCHEMA at ``path``.

    Raises:
        ValueError: It is unreadable, or has spans outside the rows.
    """
    try:
        table = pq.ParquetFile(path).read().select(GROUPS_SCHEMA.names).cast(GROUPS_SCHEMA)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"The group table {path} cannot be read: {error}.") from error
    row_count, context = packed_rows.ids.shape
    sequence, start, end = (table[name].to_numpy() for name in ("sequence", "row_start", "row_end"))
    is_valid = (
        (sequence >= 0) & (sequence < row_count) & (start >= 0) & (start <= end) & (end <= context)
    )
    if any(column.null_count for column in table.columns) or not is_valid.all():
        raise ValueError(
            f"The group table {path} has missing values or spans outside the {row_count:,} "
            f"validation rows of {context} tokens: create a table for these validation rows."
        )
    return table


class Validator:
    """Measures a model on a fixed selection of validation rows."""

    def __init__(
        self,
        validation_rows: PackedRows | ExampleRows,
        objective: Callable[[Any, int, int], Batch],
        token_byte_lengths: NDArray[np.int32],
        *,
        sequence_count: int,
        target_offset: int | None,
        groups_path: str | None,
        world: DistributedWorld,
    ) -> None:
        """Select the rows and read the groups.

        Args:
            validation_rows: rows to select from.
            objective: builds a batch from rows, a key and the number of the first row.
            token_byte_lengths: (V,) bytes of each token; 0 for labels.
            sequence_count: number of rows, evenly spread; 0 means all.
            target_offset: see TARGET_OFFSETS.
            groups_path: parquet file of GROUPS_SCHEMA for packed rows, or None.
            world: the processes that measure together.
        """
        self.validation_rows = validation_rows
        self.objective = objective
        self.token_byte_lengths = token_byte_lengths
        self.world = world
        self.target_offset = target_offset
        row_count = len(validation_rows)
        self.row_indices = select_evenly_spaced_rows(row_count, sequence_count or row_count)
        table = GROUPS_SCHEMA.empty_table()
        if (
            groups_path is not None
            and target_offset is not None
            and isinstance(validation_rows, PackedRows)
        ):
            table = read_group_spans(groups_path, validation_rows)
        group_table = table.select(["kind", "name"]).group_by(["kind", "name"]).aggregate([])
        group_table = group_table.sort_by([("kind", "descending"), ("name", "ascending")])
        self.groups = list(
            zip(group_table["kind"].to_pylist(), group_table["name"].to_pylist(), strict=True)
        )
        group_index = {group: i for i, group in enumerate(self.groups)}
        pairs = zip(table["kind"].to_pylist(), table["name"].to_pylist(), strict=True)
        group_per_span = np.array([group_index[pair] for pair in pairs], dtype=np.int64)
        span_order = np.argsort(table["sequence"].to_numpy(), kind="stable")
        columns = [
            table[name].to_numpy().astype(np.int64) for name in ("sequence", "row_start", "row_end")
        ]
        self.spans = np.stack([*columns, group_per_span])[:, span_order]  # (4, spans), by sequence

    def measure_loss(self, model: Transformer) -> ValidationResult:
        """Measure the loss of the model. All processes must call it at the same step."""
        device = model.embedding.weight.device
        sums = np.zeros((len(self.groups) + 1, 3))  # nats, tokens, bytes; the last row is the total
        predicted_sums = np.zeros(2)  # nats, tokens of everything predicted
        for row_indices, is_counted in self._iter_row_batches():
            # The key is the first row, so that the draws are the same at each validation.
            rows = self.validation_rows.read_rows(row_indices)
            batch = self.objective(rows, int(row_indices[0]), 0).with_predicted_positions()
            targets, batch_weights = batch.require_targets_and_weights()
            weights = batch_weights.double().numpy() * is_counted
            token_losses = model.compute_token_losses(batch.to_device(device))
            nats = token_losses.double().cpu().numpy() * weights  # (B, T)
            predicted_sums += nats.sum(), weights.sum()
            byte_counts = self.token_byte_lengths[targets.numpy()]
            text_weights = weights * (byte_counts > 0)
            # (3, B, T)
            cells = np.stack((nats * text_weights, text_weights, byte_counts * text_weights))
            sums[-1] += cells.sum((1, 2))
            if self.target_offset is not None and is_counted:
                sums[:-1] += self._sum_by_group(row_indices, cells, self.target_offset)
        process_sums = torch.from_numpy(np.append(sums.ravel(), predicted_sums))
        all_sums = self.world.sum_on_cpu(process_sums).numpy()
        total_nats, predicted_tokens = all_sums[-2:]
        bits_per_token = None
        if predicted_tokens:
            bits_per_token = float(total_nats / predicted_tokens / math.log(2))
        table_rows = self._build_group_rows(all_sums[:-2].reshape(sums.shape))
        return ValidationResult(bits_per_token, table_rows)

    def _iter_row_batches(self) -> Iterator[_RowBatch]:
        """Yield the batches of rows of this process.

        All processes get the same number of batches, since they work in step; if too few remain,
        the last one is repeated and does not count.
        """
        row_batches = [
            self.row_indices[i : i + ROWS_PER_BATCH]
            for i in range(0, len(self.row_indices), ROWS_PER_BATCH)
        ]
        process_count, rank = self.world.size, self.world.rank
        for round_index in range(-(-len(row_batches) // process_count)):
            batch_index = round_index * process_count + rank
            yield _RowBatch(
                row_batches[min(batch_index, len(row_batches) - 1)],
                batch_index < len(row_batches),
            )

    def _sum_by_group(self, row_indices: Int64, cells: Float64, target_offset: int) -> Float64:
        """Sum ``cells`` over each group's spans in the (ascending) ``row_indices``: (groups, 3)."""
        first_span, last_span = np.searchsorted(
            self.spans[0], [row_indices[0], row_indices[-1] + 1]
        )
        sequence, start, end, group_per_span = self.spans[:, first_span:last_span]
        is_in_batch = np.isin(sequence, row_indices)
        sequence, start, end, group_per_span = (
            column[is_in_batch] for column in (sequence, start, end, group_per_span)
        )
        batch_row = np.searchsorted(row_indices, sequence)
        width = cells.shape[2]
        flat_cells = cells.reshape(3, -1)
        cumulative_sums = np.concatenate((np.zeros((3, 1)), flat_cells.cumsum(1)), axis=1)
        begin_positions = batch_row * width + np.clip(start - target_offset, 0, width)
        end_positions = batch_row * width + np.clip(end - target_offset, 0, width)
        # (3, spans)
        span_sums = cumulative_sums[:, end_positions] - cumulative_sums[:, begin_positions]
        group_count = len(self.groups)
        return np.stack(
            [np.bincount(group_per_span, sums_row, group_count) for sums_row in span_sums], axis=1
        )

    def _build_group_rows(self, sums_by_group: Float64) -> list[GroupRow]:
        """Build a row for all tokens and one for each group, from their nats, tokens and bytes."""
        group_rows: list[GroupRow] = []
        for (kind, name), (nats, tokens, byte_count) in zip(
            [("all", "all"), *self.groups],
            sums_by_group[[-1, *range(len(self.groups))]],
            strict=True,
        ):
            bits_per_byte = float(nats / byte_count / math.log(2)) if byte_count else None
            group_rows.append(
                {
                    "kind": kind,
                    "name": name,
                    "tokens": round(tokens),
                    "bytes": round(byte_count),
                    "bits_per_byte": bits_per_byte,
                }
            )
        return group_rows
