"""Pairs of sentences, and what is made of them."""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence
from dataclasses import dataclass


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
