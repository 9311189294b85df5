"""Build the optimizers, clip gradients, and detect divergent steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hallmark.model.architecture import FeedForward
from hallmark.model.attention import Attention
from hallmark.model.config import TrainConfig
from hallmark.model.training.muon import Muon
from hallmark.model.training.parallel import gather_full_tensor


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Build AdamW (Loshchilov & Hutter 2019), or Muon for blocks' matrices and AdamW for the rest.

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
        fused_rows = get_fused_row_counts_by_weight(model)
        row_counts_by_weight: dict[Tensor, Sequence[int]] = {
            parameter: fused_rows.get(parameter, [len(parameter)]) for parameter in muon_parameters
        }
        optimizers.append(
            Muon(row_counts_by_weight, config.learning_rate, config.weight_decay, config.momentum)
        )
    return optimizers


def get_fused_row_counts_by_weight(model: nn.Module) -> dict[Tensor, list[int]]:
    """Return the row counts of the matrices that are fused in one parameter.

    These are queries, keys and values, and the gate and value of SwiGLU.
    """
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
    """Detects divergent steps: a value is not finite, or the gradient norm is too large.

    The state of the training includes all attributes. The first 20 steps cannot be too large.

    Attributes:
        mean_norm: exponential mean (decay 0.95) of the gradient norms of normal steps.
        normal_steps: number of normal steps.
        divergent_steps: number of consecutive divergent steps until now.
    """

    mean_norm: float = 0.0
    normal_steps: int = 0
    divergent_steps: int = 0

    def update_and_detect_divergence(
        self, loss: float, grad_norm: float, spike_factor: float
    ) -> bool:
        """Return whether the step diverged; if not, include its norm in the mean.

        Args:
            loss: loss of the step.
            grad_norm: gradient norm of the step.
            spike_factor: the step diverged if the norm is more than this many times the mean; 0
                disables this.
        """
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        can_spike = bool(spike_factor) and self.normal_steps >= 20
        if not is_finite or (can_spike and grad_norm > spike_factor * self.mean_norm):
            self.divergent_steps += 1
            return True
        self.mean_norm = (
            0.95 * self.mean_norm + 0.05 * grad_norm if self.normal_steps else grad_norm
        )
        self.normal_steps, self.divergent_steps = self.normal_steps + 1, 0
        return False


def clip_gradients(optimizers: Iterable[torch.optim.Optimizer], max_norm: float) -> Tensor:
    """Scale the next step's gradients to a global norm of at most ``max_norm``; return the norm.

    Fused AdamW divides the gradients while reading them, as in mixed precision. This saves one pass
    through memory, and a step takes 0.98 of its time on the CPU. The divisor stays set, so this
    must be called before every step. Gradients of other optimizers, and sharded ones, are scaled
    here.
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
    return gather_full_tensor(norm)  # a DTensor if parameters are sharded
