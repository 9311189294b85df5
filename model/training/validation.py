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
from model.draws import Int64
from model.training.data import PackedRows
from model.training.examples import ExampleRows
from model.training.parallel import World

#: Stretches of the validation rows: positions start ... end - 1 of row ``sequence`` belong to the
#: group ``name`` of a ``kind``; a position may belong to several groups, or to none.
GROUPS = pa.schema(
    [
        ("sequence", pa.int64()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("kind", pa.string()),  # "source" or "identity"
        ("name", pa.string()),
    ]
)

#: One row for each group of each validation; kind "all" is all of it.
MEASURED = pa.schema(
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
SHIFT: dict[Objective, int] = {"causal": 1, "prefix": 1, "mlm": 0}

Float64 = NDArray[np.float64]

#: Rows measured together. Objectives draw for them together, so the number is always the same,
#: whatever batch and processes training has.
ROWS = 16


@dataclass(frozen=True)
class Measured:
    """bits_per_token: over everything the objective predicts; None where that is nothing."""

    bits_per_token: float | None
    rows: list[dict[str, Any]]  # MEASURED but for the step


def read_groups(path: str, rows: PackedRows) -> pa.Table:
    """The table of GROUPS at ``path``; ValueError where it does not fit the rows."""
    try:
        table = pq.ParquetFile(path).read().select(GROUPS.names).cast(GROUPS)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"The groups {path} cannot be read: {error}.") from error
    n, context = rows.ids.shape
    sequence, start, end = (table[name].to_numpy() for name in ("sequence", "start", "end"))
    fits = (sequence >= 0) & (sequence < n) & (start >= 0) & (start <= end) & (end <= context)
    if any(column.null_count for column in table.columns) or not fits.all():
        raise ValueError(
            f"The groups {path} name stretches outside the {n:,} validation rows of {context}."
        )
    return table


class Validator:
    """Measures a model on some rows of the validation table, the same ones every time."""

    def __init__(
        self,
        rows: PackedRows | ExampleRows,
        objective: Callable[[Any, int, int], Batch],
        lengths: NDArray[np.int32],
        *,
        sequences: int,
        shift: int | None,
        groups: str | None,
        world: World,
    ) -> None:
        """lengths (V,): bytes that each token spells; of labels 0. sequences: how many rows, spread
        evenly over the table; 0: all. groups: path of a parquet file of GROUPS, for packed rows.
        shift: see SHIFT."""
        self.rows, self.objective, self.lengths, self.world = rows, objective, lengths, world
        self.shift = shift
        self.chosen = rows.spread(sequences or len(rows))
        table = GROUPS.empty_table()
        if groups is not None and shift is not None and isinstance(rows, PackedRows):
            table = read_groups(groups, rows)
        keys = table.select(["kind", "name"]).group_by(["kind", "name"]).aggregate([])
        keys = keys.sort_by([("kind", "descending"), ("name", "ascending")])
        self.groups = list(zip(keys["kind"].to_pylist(), keys["name"].to_pylist(), strict=True))
        number = {group: i for i, group in enumerate(self.groups)}
        pairs = zip(table["kind"].to_pylist(), table["name"].to_pylist(), strict=True)
        owner = np.array([number[pair] for pair in pairs], dtype=np.int64)
        order = np.argsort(table["sequence"].to_numpy(), kind="stable")
        columns = [table[name].to_numpy().astype(np.int64) for name in ("sequence", "start", "end")]
        self.spans = np.stack([*columns, owner])[:, order]  # (4, spans), by sequence

    def measure(self, model: Transformer) -> Measured:
        """All processes call it, in step."""
        device = model.embedding.weight.device
        sums = np.zeros((len(self.groups) + 1, 3))  # nats, tokens, bytes; the last row is of all
        predicted = np.zeros(2)  # nats, tokens of everything predicted
        for index, real in self._turns():
            # Its own key, and so the same draws each time.
            batch = self.objective(self.rows.rows(index), int(index[0]), 0).sparse()
            targets, scale = batch.answers()
            weights = scale.double().numpy() * real
            nats = model.token_losses(batch.to(device)).double().cpu().numpy() * weights  # (B, T)
            predicted += nats.sum(), weights.sum()
            size = self.lengths[targets.numpy()]
            spells = weights * (size > 0)
            cells = np.stack((nats * spells, spells, size * spells))  # (3, B, T)
            sums[-1] += cells.sum((1, 2))
            if self.shift is not None and real:
                sums[:-1] += self._by_group(index, cells, self.shift)
        both = self.world.sum(torch.from_numpy(np.append(sums.ravel(), predicted))).numpy()
        total, tokens = both[-2:]
        bits = float(total / tokens / math.log(2)) if tokens else None
        return Measured(bits, list(self._table(both[:-2].reshape(sums.shape))))

    def _turns(self) -> Iterator[tuple[Int64, bool]]:
        """Batches of rows for this process; all have as many, since they work in step. Where the
        batches run out, one is repeated and does not count (False)."""
        parts = [self.chosen[i : i + ROWS] for i in range(0, len(self.chosen), ROWS)]
        size, rank = self.world.size, self.world.rank
        for turn in range(-(-len(parts) // size)):
            number = turn * size + rank
            yield parts[min(number, len(parts) - 1)], number < len(parts)

    def _by_group(self, index: Int64, cells: Float64, shift: int) -> Float64:
        """Sums over the stretches in the rows ``index`` (ascending), (groups, 3)."""
        first, last = np.searchsorted(self.spans[0], [index[0], index[-1] + 1])
        sequence, start, end, owner = self.spans[:, first:last]
        inside = np.isin(sequence, index)
        sequence, start, end, owner = (x[inside] for x in (sequence, start, end, owner))
        line = np.searchsorted(index, sequence)
        width = cells.shape[2]
        flat = cells.reshape(3, -1)
        total = np.concatenate((np.zeros((3, 1)), flat.cumsum(1)), axis=1)  # (3, B * T + 1)
        begin = line * width + np.clip(start - shift, 0, width)
        stop = line * width + np.clip(end - shift, 0, width)
        found = total[:, stop] - total[:, begin]  # (3, spans)
        groups = len(self.groups)
        return np.stack([np.bincount(owner, row, groups) for row in found], axis=1)

    def _table(self, sums: Float64) -> Iterator[dict[str, Any]]:
        for (kind, name), (nats, tokens, size) in zip(
            [("all", "all"), *self.groups], sums[[-1, *range(len(self.groups))]], strict=True
        ):
            yield {
                "kind": kind,
                "name": name,
                "tokens": round(tokens),
                "bytes": round(size),
                "bits_per_byte": float(nats / size / math.log(2)) if size else None,
            }
