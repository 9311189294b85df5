"""What is due at which step: the learning rate, and how far those of two trainings are one;
checkpoints and states."""

from __future__ import annotations

import math

from model.config import SCHEDULE, TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Rate of step ``step`` (from 1): linear warm-up, then cosine, linear, constant, or stable and
    decay.

    Warm-up reaches the full rate at step ``warmup``. Where that is not the last step, the last has
    ``min_lr_ratio`` of it, but for the constant schedule; stable and decay takes one step at least.
    """
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    start = settled(config)
    if step <= start:
        return config.learning_rate
    progress = (step - start) / max(1, config.steps - start)
    if config.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        share = 1 - progress
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * share)


def settled(config: TrainConfig) -> int:
    """The last step whose rate is the same however many steps there will be."""
    if config.schedule == "constant":
        return config.steps
    if config.schedule == "wsd":
        decay = max(1, round(config.decay_fraction * config.steps))
        return max(config.warmup, config.steps - decay)
    return config.warmup


def same_rates(one: TrainConfig, other: TrainConfig, step: int) -> bool:
    """Whether two trainings, alike but for their SCHEDULE, have the same rates until ``step``."""
    if all(getattr(one, name) == getattr(other, name) for name in SCHEDULE):
        return True
    return step <= min(settled(one), settled(other))


def checkpoint_is_due(config: TrainConfig, step: int) -> bool:
    power_of_two = step & (step - 1) == 0
    return step % config.checkpoint_every == 0 or (config.log_spaced and power_of_two)


def state_is_due(config: TrainConfig, step: int) -> bool:
    """Where it is asked for, and before the rate decays, for a longer training."""
    branch = config.schedule == "wsd" and step == settled(config)
    return branch or bool(config.state_every and step % config.state_every == 0)
