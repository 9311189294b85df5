"""What is due at which step: the learning rate, and how far those of two trainings are one;
checkpoints and states."""

from __future__ import annotations

import math

from model.config import SCHEDULE_SETTINGS, TrainConfig


def compute_learning_rate(config: TrainConfig, step: int) -> float:
    """Rate of step ``step`` (from 1): linear warm-up, then cosine, linear, constant, or stable and
    decay.

    Warm-up reaches the full rate at step ``warmup``. Where that is not the last step, the last has
    ``min_lr_ratio`` of it, but for the constant schedule; stable and decay takes one step at least.
    """
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
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
    """The last step whose rate is the same however many steps there will be."""
    if config.schedule == "constant":
        return config.steps
    if config.schedule == "wsd":
        decay_steps = max(1, round(config.decay_fraction * config.steps))
        return max(config.warmup, config.steps - decay_steps)
    return config.warmup


def have_same_rates_until(config: TrainConfig, other_config: TrainConfig, step: int) -> bool:
    """Whether two trainings, alike but for their SCHEDULE, have the same rates until ``step``."""
    if all(getattr(config, name) == getattr(other_config, name) for name in SCHEDULE_SETTINGS):
        return True
    return step <= min(
        find_last_step_before_decay(config), find_last_step_before_decay(other_config)
    )


def is_checkpoint_due(config: TrainConfig, step: int) -> bool:
    is_power_of_two = step & (step - 1) == 0
    return step % config.checkpoint_every == 0 or (config.log_spaced and is_power_of_two)


def is_state_due(config: TrainConfig, step: int) -> bool:
    """Where it is asked for, and before the rate decays, for a longer training."""
    is_before_decay = config.schedule == "wsd" and step == find_last_step_before_decay(config)
    return is_before_decay or bool(config.state_every and step % config.state_every == 0)
