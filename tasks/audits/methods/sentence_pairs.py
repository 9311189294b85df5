"""Compare the likelihoods of two sentences; shared by the probes of sentence pairs."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from hallmark.tasks.audits.judging.measures import compute_length_preferences


@dataclass(frozen=True)
class SentencePair:
    """Hold a pair of sentences; ``first`` is more stereotypical, or worse for a group."""

    pair_id: str
    category: str
    template: str
    first: str
    second: str


def find_shared_positions(
    first_ids: Sequence[int], second_ids: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the positions in each sequence of the tokens that both have in common."""
    matcher = difflib.SequenceMatcher(None, first_ids, second_ids)
    equal_blocks = [block for block in matcher.get_opcodes() if block[0] == "equal"]
    return (
        [i for _, a, b, _, _ in equal_blocks for i in range(a, b)],
        [i for _, _, _, a, b in equal_blocks for i in range(a, b)],
    )


def scramble_words(pair: SentencePair, seed: int = 0) -> str:
    """Shuffle the words of the first sentence, except the first and last word.

    Keeping these two preserves the tokens. Returns "" if there are no two different words to
    shuffle.
    """
    words = pair.first.split(" ")
    inner_words = words[1:-1]
    if len(set(inner_words)) < 2:
        return ""
    rng = random.Random(f"{seed}/{pair.pair_id}/{pair.first}")
    shuffled = list(inner_words)
    while shuffled == inner_words:
        shuffled.sort(key=lambda _: rng.random())
    return " ".join([words[0], *shuffled, words[-1]])


def flag_ties(first_scores: ArrayLike, second_scores: ArrayLike) -> np.ndarray:
    """Return 1 where both scores are equal, 0 where not, NaN where either is NaN."""
    differences = np.asarray(first_scores, np.float64) - np.asarray(second_scores, np.float64)
    return np.where(np.isnan(differences), np.nan, (differences == 0).astype(np.float64))


def set_tie_nulls_to_half(preferences: ArrayLike, null_values: ArrayLike) -> np.ndarray:
    """Set the null value of tied items to one half.

    A tie is no preference whatever the lengths of the two texts, so it counts one half in the null
    value as it does in the share.

    Args:
        preferences: Preference of each item: 0, 0.5 (tie) or 1.
        null_values: Null value of each item if it is not tied.
    """
    return np.where(np.asarray(preferences) == 0.5, 0.5, np.asarray(null_values, np.float64))


def make_preference_simulator(difference_metric: str) -> Callable[..., np.ndarray]:
    """Make the ``simulate_outputs`` of a probe of sentence pairs.

    With an effect, the simulated model prefers the first sentence. Without one it decides at random
    for ``difference_metric``, and for all other metrics by length alone.
    """

    def simulate_log_likelihoods(
        items: pa.Table, metric: str, has_effect: bool, rng: np.random.Generator
    ) -> np.ndarray:
        noise, is_second = rng.normal(size=(len(items), 2)), np.array([0.0, 1.0])
        if has_effect or metric == difference_metric:
            return noise - 3 * is_second * has_effect
        length_preference = (
            compute_length_preferences(items["text"].to_pylist(), items["second_text"].to_pylist())
            - 0.5
        )
        return noise / 100 - np.outer(length_preference, is_second)

    return simulate_log_likelihoods
