"""Implement Muon (Jordan et al. 2024): momentum with every singular value brought near 1.

torch's own Muon works matrix by matrix, treats a fused matrix as one, and computes in bf16
everywhere, which takes eight to ten times as long as fp32 on processors without bf16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hallmark.model.precision import choose_dtype

#: Jordan's quintic; five iterations map singular values from (0.002, 1] to 0.68 ... 1.13.
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ITERATIONS = 5


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Map each matrix U S V^T to approximately U V^T by Newton-Schulz iterations in ``dtype``.

    The resulting singular values are only roughly 1, so bf16 is exact enough.

    Args:
        matrices: (n, rows, columns).
        dtype: precision of the products.
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.to(dtype)
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # all singular values are at most 1
    for _ in range(NEWTON_SCHULZ_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Optimizer for the matrices of hidden layers.

    Each parameter comes with the row counts of the matrices fused in it: queries, keys and values
    in (384, 128) are three matrices of (128, 128), and each is made orthogonal separately. The
    momentum is Nesterov's. Updates are scaled by 0.2 sqrt(max(rows, columns)), the size of AdamW's,
    so that learning rate and weight decay mean the same for both (Liu et al. 2025).
    """

    def __init__(
        self,
        row_counts_by_weight: Mapping[Tensor, Sequence[int]],
        learning_rate: float,
        weight_decay: float,
        momentum: float,
    ) -> None:
        self.row_counts = {
            weight: list(row_counts) for weight, row_counts in row_counts_by_weight.items()
        }
        defaults = {"lr": learning_rate, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(list(row_counts_by_weight), defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            # Group by shape: matrices of one shape share a batch of products.
            parts_by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                momentum_buffer = state["momentum_buffer"].lerp_(
                    parameter.grad, 1 - group["momentum"]
                )
                nesterov_update = parameter.grad.lerp(momentum_buffer, group["momentum"])
                row_counts = self.row_counts[parameter]
                for part in zip(
                    parameter.split(row_counts), nesterov_update.split(row_counts), strict=True
                ):
                    parts_by_shape.setdefault(part[0].shape, []).append(part)
            for shape, parts in parts_by_shape.items():
                step_size = group["lr"] * 0.2 * math.sqrt(max(shape))
                stacked_updates = torch.stack([update for _, update in parts])
                updates = orthogonalise(
                    stacked_updates, choose_dtype("auto", stacked_updates.device)
                )
                for (weights, _), update in zip(parts, updates, strict=True):
                    weights.mul_(1 - group["lr"] * group["weight_decay"]).add_(
                        update, alpha=-step_size
                    )
