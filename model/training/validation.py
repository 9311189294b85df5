"""How well the model predicts held-out text: overall, by source and by identity group.

Bits per byte compare across tokenizers and groups, bits per token do not. Only tokens that spell
text count: the begin-of-text token of the next document has no bytes, and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from model.architecture import Transformer
from model.batch import Batch
from model.config import Objective
from model.keyed_randomness import Int64
from model.training.examples import ExampleRows
from model.training.packed_rows import PackedRows
from model.training.parallel import DistributedWorld

#: Stretches of the validation rows: positions start ... end - 1 of row ``sequence`` belong to the
#: group ``name`` of a ``kind``; a position may belong to several groups, or to none.
GROUPS_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("kind", pa.string()),  # "source" or "identity"
        ("name", pa.string()),
    ]
)

#: One row for each group of each validation; kind "all" is all of it.
VALIDATION_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # predicted, of those that spell text
        pa.field("bytes", pa.int64(), nullable=False),  # that they spell
        pa.field("bits_per_byte", pa.float64()),  # null where nothing was predicted
    ]
)

#: How far behind a position of the row stands the token that is predicted there. Span corruption
#: moves tokens to other sequences, whose positions are no longer the row's.
TARGET_OFFSETS: dict[Objective, int] = {"causal": 1, "prefix": 1, "mlm": 0}

Float64 = NDArray[np.float64]

#: Rows measured together. Objectives draw for them together, so the number is always the same,
#: whatever batch and processes training has.
ROWS_PER_BATCH = 16


@dataclass(frozen=True)
class ValidationResult:
    """bits_per_token: over everything the objective predicts; None where that is nothing."""

    bits_per_token: float | None
    table_rows: list[dict[str, Any]]  # MEASURED but for the step


def read_group_spans(path: str, packed_rows: PackedRows) -> pa.Table:
    """The table of GROUPS at ``path``; ValueError where it does not fit the rows."""
    try:
        table = pq.ParquetFile(path).read().select(GROUPS_SCHEMA.names).cast(GROUPS_SCHEMA)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"The groups {path} cannot be read: {error}.") from error
    row_count, context = packed_rows.ids.shape
    sequence, start, end = (table[name].to_numpy() for name in ("sequence", "start", "end"))
    is_valid = (
        (sequence >= 0) & (sequence < row_count) & (start >= 0) & (start <= end) & (end <= context)
    )
    if any(column.null_count for column in table.columns) or not is_valid.all():
        raise ValueError(
            f"The groups {path} name stretches outside the {row_count:,} validation rows of "
            f"{context}."
        )
    return table


class Validator:
    """Measures a model on some rows of the validation table, the same ones every time."""

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
        """lengths (V,): bytes that each token spells; of labels 0. sequences: how many rows, spread
        evenly over the table; 0: all. groups: path of a parquet file of GROUPS, for packed rows.
        shift: see SHIFT."""
        self.validation_rows, self.objective, self.token_byte_lengths, self.world = (
            validation_rows,
            objective,
            token_byte_lengths,
            world,
        )
        self.target_offset = target_offset
        self.row_indices = validation_rows.select_evenly_spaced(
            sequence_count or len(validation_rows)
        )
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
        columns = [table[name].to_numpy().astype(np.int64) for name in ("sequence", "start", "end")]
        self.spans = np.stack([*columns, group_per_span])[:, span_order]  # (4, spans), by sequence

    def measure_loss(self, model: Transformer) -> ValidationResult:
        """All processes call it, in step."""
        device = model.embedding.weight.device
        sums = np.zeros((len(self.groups) + 1, 3))  # nats, tokens, bytes; the last row is of all
        predicted_sums = np.zeros(2)  # nats, tokens of everything predicted
        for row_indices, is_counted in self._iter_row_batches():
            # Its own key, and so the same draws each time.
            batch = self.objective(
                self.validation_rows.read_rows(row_indices), int(row_indices[0]), 0
            ).with_predicted_positions()
            targets, batch_weights = batch.require_targets_and_weights()
            weights = batch_weights.double().numpy() * is_counted
            nats = (
                model.compute_token_losses(batch.to_device(device)).double().cpu().numpy() * weights
            )  # (B, T)
            predicted_sums += nats.sum(), weights.sum()
            byte_counts = self.token_byte_lengths[targets.numpy()]
            text_weights = weights * (byte_counts > 0)
            cells = np.stack(
                (nats * text_weights, text_weights, byte_counts * text_weights)
            )  # (3, B, T)
            sums[-1] += cells.sum((1, 2))
            if self.target_offset is not None and is_counted:
                sums[:-1] += self._sum_by_group(row_indices, cells, self.target_offset)
        all_sums = self.world.sum_on_cpu(
            torch.from_numpy(np.append(sums.ravel(), predicted_sums))
        ).numpy()
        total_nats, predicted_tokens = all_sums[-2:]
        bits_per_token = (
            float(total_nats / predicted_tokens / math.log(2)) if predicted_tokens else None
        )
        return ValidationResult(
            bits_per_token, list(self._iter_result_rows(all_sums[:-2].reshape(sums.shape)))
        )

    def _iter_row_batches(self) -> Iterator[tuple[Int64, bool]]:
        """Batches of rows for this process; all have as many, since they work in step. Where the
        batches run out, one is repeated and does not count (False)."""
        row_batches = [
            self.row_indices[i : i + ROWS_PER_BATCH]
            for i in range(0, len(self.row_indices), ROWS_PER_BATCH)
        ]
        process_count, rank = self.world.size, self.world.rank
        for round_index in range(-(-len(row_batches) // process_count)):
            batch_index = round_index * process_count + rank
            yield (
                row_batches[min(batch_index, len(row_batches) - 1)],
                batch_index < len(row_batches),
            )

    def _sum_by_group(self, row_indices: Int64, cells: Float64, target_offset: int) -> Float64:
        """Sums over the stretches in the rows ``index`` (ascending), (groups, 3)."""
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
        cumulative_sums = np.concatenate(
            (np.zeros((3, 1)), flat_cells.cumsum(1)), axis=1
        )  # (3, B * T + 1)
        begin_positions = batch_row * width + np.clip(start - target_offset, 0, width)
        end_positions = batch_row * width + np.clip(end - target_offset, 0, width)
        span_sums = (
            cumulative_sums[:, end_positions] - cumulative_sums[:, begin_positions]
        )  # (3, spans)
        group_count = len(self.groups)
        return np.stack(
            [np.bincount(group_per_span, sums_row, group_count) for sums_row in span_sums], axis=1
        )

    def _iter_result_rows(self, sums: Float64) -> Iterator[dict[str, Any]]:
        for (kind, name), (nats, tokens, byte_count) in zip(
            [("all", "all"), *self.groups], sums[[-1, *range(len(self.groups))]], strict=True
        ):
            yield {
                "kind": kind,
                "name": name,
                "tokens": round(tokens),
                "bytes": round(byte_count),
                "bits_per_byte": float(nats / byte_count / math.log(2)) if byte_count else None,
            }
