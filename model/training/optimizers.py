"""Optimizers, and the guard against steps that diverge."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.architecture import FeedForward
from model.attention import Attention
from model.config import TrainConfig
from model.training.muon import Muon
from model.training.parallel import gather_full_tensor


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov, Hutter 2019), or Muon for the blocks' matrices beside AdamW for the rest.

    Weight decay applies to matrices, not to biases and norms.
    """
    parameters = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    muon_parameters: list[nn.Parameter] = []
    if config.optimizer == "muon":
        muon_parameters = [
            parameter
            for name, parameter in parameters
            if parameter.ndim == 2 and ".blocks." in name
        ]
    muon_ids = {id(parameter) for parameter in muon_parameters}
    adamw_parameters = [parameter for _, parameter in parameters if id(parameter) not in muon_ids]
    groups = [
        {
            "params": [parameter for parameter in adamw_parameters if parameter.ndim >= 2],
            "weight_decay": config.weight_decay,
        },
        {
            "params": [parameter for parameter in adamw_parameters if parameter.ndim < 2],
            "weight_decay": 0.0,
        },
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            fused=True,
        )
    ]
    if muon_parameters:
        fused_rows = find_fused_matrices(model)
        matrices = [
            (parameter, fused_rows.get(parameter, [len(parameter)]))
            for parameter in muon_parameters
        ]
        optimizers.append(
            Muon(matrices, config.learning_rate, config.weight_decay, config.momentum)
        )
    return optimizers


def find_fused_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """The matrices that hold several, with the rows of each: queries, keys and values; the gate and
    the value of SwiGLU."""
    row_counts = {}
    for module in model.modules():
        if isinstance(module, Attention):
            width = module.kv_heads * module.head_dim
            row_counts[module.qkv.weight] = [module.heads * module.head_dim, width, width]
        elif isinstance(module, FeedForward):
            width = module.down.in_features
            row_counts[module.up.weight] = [width] * (module.up.out_features // width)
    return row_counts


def set_learning_rate(optimizers: Iterable[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


@dataclass
class SpikeGuard:
    """Tells steps that diverge: a value that is not finite, or a gradient's norm out of line.

    ``mean`` is the exponential mean (decay 0.95) of the norms of the steps taken, ``taken`` how
    many they are, ``skipped`` how many diverged one behind the other until now. All three belong
    to the training state. The first 20 steps are never out of line.
    """

    mean_norm: float = 0.0
    normal_steps: int = 0
    divergent_steps: int = 0

    def detect_divergence(self, loss: float, grad_norm: float, spike_factor: float) -> bool:
        """Whether this step is to be stopped at or skipped; if not, its norm counts from now on.

        ``factor``: how many times the mean is out of line; 0: none.
        """
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if not is_finite or (
            spike_factor and self.normal_steps >= 20 and grad_norm > spike_factor * self.mean_norm
        ):
            self.divergent_steps += 1
            return True
        self.mean_norm = (
            0.95 * self.mean_norm + 0.05 * grad_norm if self.normal_steps else grad_norm
        )
        self.normal_steps, self.divergent_steps = self.normal_steps + 1, 0
        return False


def clip_gradients(optimizers: Iterable[torch.optim.Optimizer], max_norm: float) -> Tensor:
    """Have the next step see gradients of a global norm of at most ``limit``; returns the norm.

    Fused AdamW divides them as it reads them, as it does in mixed precision: once less through all
    of the memory, 0.98 of a step's time on the CPU. It goes on to, until this is called for other
    gradients: call it before every step. Others' gradients, and shards, are scaled here.
    """
    parameters_by_optimizer = [
        (
            optimizer,
            [
                parameter
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            ],
        )
        for optimizer in optimizers
    ]
    norm: Tensor = nn.utils.get_total_norm(
        [parameter.grad for _, parameters in parameters_by_optimizer for parameter in parameters],
        foreach=True,
    )
    for optimizer, parameters in parameters_by_optimizer:
        if all(group.get("fused") for group in optimizer.param_groups) and type(norm) is Tensor:
            grad_divisor = ((norm + 1e-6) / max_norm).clamp(min=1).float()
            optimizer.grad_scale = grad_divisor  # type: ignore[attr-defined]
        else:
            nn.utils.clip_grads_with_norm_(parameters, max_norm, norm, foreach=True)
    return gather_full_tensor(norm)  # of shards it is one itself
