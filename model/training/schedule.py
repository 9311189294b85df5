"""Compute what is due at a step: the learning rate, checkpoints and states.

It also determines until which step two trainings have the same learning rates.
"""

from __future__ import annotations

import math

from hallmark.model.config import SCHEDULE_SETTINGS, TrainConfig


def compute_learning_rate(config: TrainConfig, step: int) -> float:
    """Compute the learning rate of step ``step`` (from 1).

    A linear warm-up reaches the full rate at step ``warmup_steps``; then the rate follows a cosine,
    a line, a constant, or is stable and then decays for at least one step. Except for the constant
    schedule, the last step has ``min_lr_ratio`` of the full rate, unless it belongs to the warm-up.
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    decay_start = find_last_step_before_decay(config)
    if step <= decay_start:
        return config.learning_rate
    progress = (step - decay_start) / max(1, config.steps - decay_start)
    if config.schedule == "cosine":
        decay_factor = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        decay_factor = 1 - progress
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * decay_factor)


def find_last_step_before_decay(config: TrainConfig) -> int:
    """Return the last step whose rate does not depend on the number of steps that follow."""
    if config.schedule == "constant":
        return config.steps
    if config.schedule == "wsd":
        decay_steps = max(1, round(config.decay_fraction * config.steps))
        return max(config.warmup_steps, config.steps - decay_steps)
    return config.warmup_steps


def have_same_rates_until(config: TrainConfig, other_config: TrainConfig, step: int) -> bool:
    """Whether configs that differ only in SCHEDULE_SETTINGS have equal rates until ``step``."""
    if all(getattr(config, name) == getattr(other_config, name) for name in SCHEDULE_SETTINGS):
        return True
    return step <= min(
        find_last_step_before_decay(config), find_last_step_before_decay(other_config)
    )


def is_checkpoint_due(config: TrainConfig, step: int) -> bool:
    is_power_of_two = step & (step - 1) == 0
    return step % config.checkpoint_every == 0 or (
        config.log_spaced_checkpoints and is_power_of_two
    )


def is_state_due(config: TrainConfig, step: int) -> bool:
    """Whether to save a state: as configured, and before the rate decays, for a longer training."""
    is_before_decay = config.schedule == "wsd" and step == find_last_step_before_decay(config)
    return is_before_decay or bool(config.state_every and step % config.state_every == 0)
