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
from model.training.parallel import full_tensor


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov, Hutter 2019), or Muon for the blocks' matrices beside AdamW for the rest.

    Weight decay applies to matrices, not to biases and norms.
    """
    parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    muon: list[nn.Parameter] = []
    if config.optimizer == "muon":
        muon = [p for n, p in parameters if p.ndim == 2 and ".blocks." in n]
    taken = {id(p) for p in muon}
    rest = [p for _, p in parameters if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            fused=True,
        )
    ]
    if muon:
        held = fused(model)
        matrices = [(p, held.get(p, [len(p)])) for p in muon]
        optimizers.append(
            Muon(matrices, config.learning_rate, config.weight_decay, config.momentum)
        )
    return optimizers


def fused(model: nn.Module) -> dict[Tensor, list[int]]:
    """The matrices that hold several, with the rows of each: queries, keys and values; the gate and
    the value of SwiGLU."""
    found = {}
    for module in model.modules():
        if isinstance(module, Attention):
            width = module.kv_heads * module.head_dim
            found[module.qkv.weight] = [module.heads * module.head_dim, width, width]
        elif isinstance(module, FeedForward):
            width = module.down.in_features
            found[module.up.weight] = [width] * (module.up.out_features // width)
    return found


def set_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


@dataclass
class SpikeGuard:
    """Tells steps that diverge: a value that is not finite, or a gradient's norm out of line.

    ``mean`` is the exponential mean (decay 0.95) of the norms of the steps taken, ``taken`` how
    many they are, ``skipped`` how many diverged one behind the other until now. All three belong
    to the training state. The first 20 steps are never out of line.
    """

    mean: float = 0.0
    taken: int = 0
    skipped: int = 0

    def diverged(self, loss: float, norm: float, factor: float) -> bool:
        """Whether this step is to be stopped at or skipped; if not, its norm counts from now on.

        ``factor``: how many times the mean is out of line; 0: none.
        """
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite or (factor and self.taken >= 20 and norm > factor * self.mean):
            self.skipped += 1
            return True
        self.mean = 0.95 * self.mean + 0.05 * norm if self.taken else norm
        self.taken, self.skipped = self.taken + 1, 0
        return False


def clip(optimizers: Iterable[torch.optim.Optimizer], limit: float) -> Tensor:
    """Have the next step see gradients of a global norm of at most ``limit``; returns the norm.

    Fused AdamW divides them as it reads them, as it does in mixed precision: once less through all
    of the memory, 0.98 of a step's time on the CPU. It goes on to, until this is called for other
    gradients: call it before every step. Others' gradients, and shards, are scaled here.
    """
    learnt = [(o, [p for g in o.param_groups for p in g["params"] if p.grad is not None])
              for o in optimizers]  # fmt: skip
    norm: Tensor = nn.utils.get_total_norm([p.grad for _, ps in learnt for p in ps], foreach=True)
    for optimizer, parameters in learnt:
        if all(group.get("fused") for group in optimizer.param_groups) and type(norm) is Tensor:
            above = ((norm + 1e-6) / limit).clamp(min=1).float()
            optimizer.grad_scale = above  # type: ignore[attr-defined]
        else:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm, foreach=True)
    return full_tensor(norm)  # of shards it is one itself
