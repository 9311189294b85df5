"""Pairs of sentences, and what is made of them: scrambled, swapped, scored by length alone."""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.audits.measures import preferred


@dataclass(frozen=True)
class Pair:
    """``first`` is the sentence that stereotypes more, is worse for a group, or well-formed."""

    item: str
    category: str
    template: str
    first: str
    second: str


@dataclass(frozen=True)
class Scores:
    """Log-likelihoods (pairs, 2) in nats and the tokens they were summed over."""

    values: np.ndarray
    tokens: np.ndarray

    @property
    def difference(self) -> np.ndarray:
        return self.values[:, 0] - self.values[:, 1]

    @property
    def alike(self) -> np.ndarray:
        """Whether both were scored over as many tokens, (pairs,) bool."""
        return np.asarray(self.tokens[:, 0] == self.tokens[:, 1])

    @property
    def preferred(self) -> np.ndarray:
        """1 where the first sentence is the more likely, as ``measures.preferred``."""
        return preferred(self.values[:, 0], self.values[:, 1])


def shared_places(first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
    """Positions of the tokens that two sequences have in common."""
    matcher = difflib.SequenceMatcher(None, first, second)
    same = [code for code in matcher.get_opcodes() if code[0] == "equal"]
    return (
        [i for _, a, b, _, _ in same for i in range(a, b)],
        [i for _, _, _, a, b in same for i in range(a, b)],
    )


def uniform_bytes(pairs: Sequence[Pair]) -> Scores:
    """Scores of a model to which every byte is equally likely: all it sees is length."""
    size = np.array([[len(p.first.encode()), len(p.second.encode())] for p in pairs])
    return Scores(-np.log(256) * size, size)


def scramble(pairs: Sequence[Pair], seed: int = 0) -> list[Pair]:
    """Each first sentence beside its own words in another order, first and last word in place so
    that tokens stay the same. Sentences with nothing to shuffle are left out."""
    made = []
    for pair in pairs:
        words = pair.first.split(" ")
        inner = words[1:-1]
        if len(set(inner)) < 2:
            continue
        coin = random.Random(f"{seed}/{pair.item}/{pair.first}")
        shuffled = list(inner)
        while shuffled == inner:
            shuffled.sort(key=lambda _: coin.random())
        second = " ".join([words[0], *shuffled, words[-1]])
        made.append(Pair(pair.item, pair.category, pair.template, pair.first, second))
    return made


def swap(pairs: Sequence[Pair], scores: Scores, seed: int) -> tuple[list[Pair], Scores]:
    """The pairs with their sides swapped where a seeded coin says so."""
    coins = np.random.default_rng(seed).integers(2, size=len(pairs)).astype(bool)
    swapped = [
        Pair(p.item, p.category, p.template, p.second, p.first) if coin else p
        for p, coin in zip(pairs, coins, strict=True)
    ]
    flip = coins[:, None]
    values = np.where(flip, scores.values[:, ::-1], scores.values)
    return swapped, Scores(values, np.where(flip, scores.tokens[:, ::-1], scores.tokens))
