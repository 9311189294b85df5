"""Pairs of sentences, and what is made of them: which is the likelier, and by how much."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from tasks.audits.judging.measures import shorter


@dataclass(frozen=True)
class Pair:
    """``first`` is the sentence that stereotypes more, or is worse for a group."""

    item: str
    category: str
    template: str
    first: str
    second: str


def shared_places(first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
    """Positions of the tokens that two sequences have in common."""
    matcher = difflib.SequenceMatcher(None, first, second)
    same = [code for code in matcher.get_opcodes() if code[0] == "equal"]
    return (
        [i for _, a, b, _, _ in same for i in range(a, b)],
        [i for _, _, _, a, b in same for i in range(a, b)],
    )


def scramble(pair: Pair, seed: int = 0) -> str:
    """The words of the first sentence in another order, first and last word in place so that tokens
    stay the same; empty where there is nothing to shuffle."""
    words = pair.first.split(" ")
    inner = words[1:-1]
    if len(set(inner)) < 2:
        return ""
    coin = random.Random(f"{seed}/{pair.item}/{pair.first}")
    shuffled = list(inner)
    while shuffled == inner:
        shuffled.sort(key=lambda _: coin.random())
    return " ".join([words[0], *shuffled, words[-1]])


def tied(first: ArrayLike, second: ArrayLike) -> np.ndarray:
    """1 where both are as likely, 0 where not; NaN where either is."""
    apart = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    return np.where(np.isnan(apart), np.nan, (apart == 0).astype(np.float64))


def null_of_ties(preference: ArrayLike, null: ArrayLike) -> np.ndarray:
    """Set the null value of tied items to one half.

    A tie is no preference, whatever the lengths of the two texts are, so it counts one half in the
    null value as it does in the share.

    Args:
        preference: What ``preferred`` gives.
        null: The null value of each item where it is decided.
    """
    return np.where(np.asarray(preference) == 0.5, 0.5, np.asarray(null, np.float64))


def script_of(difference: str) -> Callable[..., np.ndarray]:
    """The script, see ``Probe``, of who prefers what stereotypes, or goes by chance; of all metrics
    but ``difference``, which is one of log-likelihoods, by length."""

    def script(items: pa.Table, metric: str, effect: bool, rng: np.random.Generator) -> np.ndarray:
        noise, other = rng.normal(size=(len(items), 2)), np.array([0.0, 1.0])
        if effect or metric == difference:
            return noise - 3 * other * effect
        length = shorter(items["text"].to_pylist(), items["second"].to_pylist()) - 0.5
        return noise / 100 - np.outer(length, other)

    return script
