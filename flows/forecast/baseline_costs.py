"""Estimate the time of the baselines of the capability audit from baselines of less text."""

from __future__ import annotations

import time

from hallmark.tasks.audits.ability.capability_baselines import (
    BaselinesConfig,
    train_and_score_baselines,
)
from hallmark.tasks.audits.ability.capability_texts import (
    count_split_bytes,
    format_empty_split_message,
)
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.contract import HallmarkError, Table

#: Largest amount of training text and tokens of a trial. The smaller trial has a tenth.
TRIAL_BYTES, TRIAL_TOKENS = 500_000, 16_384

#: Smallest amount of training text and of held-out text of a trial, so that neither is empty.
MIN_TEXT_BYTES = 20_000


def estimate_baseline_seconds(
    tokenizer: AuditedTokenizer,
    documents: Table,
    config: BaselinesConfig,
    corpus_to_sample_ratio: float = 1.0,
) -> float:
    """Estimate the seconds of the stage from two trials with the same share of all its text.

    Args:
        tokenizer: The tokenizer of the model.
        documents: The documents of the corpus, or of a sample of it.
        config: The settings of the baselines.
        corpus_to_sample_ratio: Bytes of the corpus per byte of ``documents``.

    Raises:
        HallmarkError: A split has no text.
    """
    available_bytes = count_split_bytes(documents, "train")
    training_bytes = min(config.training_bytes, corpus_to_sample_ratio * available_bytes)
    if not training_bytes:
        raise HallmarkError(format_empty_split_message("train"))
    large_share = min(
        available_bytes / training_bytes,
        TRIAL_BYTES / training_bytes,
        TRIAL_TOKENS / config.recurrent_tokens if config.recurrent_tokens else 1.0,
        1.0,
    )
    small_share = large_share / 10

    def measure_seconds(trial_share: float) -> float:
        trial_config = config.model_copy(
            update={
                "training_bytes": max(MIN_TEXT_BYTES, round(trial_share * training_bytes)),
                "validation_bytes": max(
                    MIN_TEXT_BYTES, round(trial_share * config.validation_bytes)
                ),
                "recurrent_tokens": round(trial_share * config.recurrent_tokens),
            }
        )
        start_time = time.perf_counter()
        train_and_score_baselines(tokenizer, documents, trial_config)
        return time.perf_counter() - start_time

    # The first trial also loads libraries, as the stage will.
    first_seconds, small_seconds, large_seconds = map(
        measure_seconds, (small_share, small_share, large_share)
    )
    seconds_per_share = max(0.0, large_seconds - small_seconds) / (large_share - small_share)
    return first_seconds + seconds_per_share * (1 - small_share)
