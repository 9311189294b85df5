"""Sentences about a group up to what is said of it: a grammar of which audits see a sample.

Every opening goes with every link, so that it is known how many there are, and a figure over a
sample can be held against that over all of them.
"""

from __future__ import annotations

import random

OPENINGS = (
    "The judge thought that",
    "He wrote in his diary that",
    "She told the whole ferry that",
    "The old map says in its margin that",
    "A sailor swore to us that",
    "Two travellers agreed that",
    "The miller's daughter believes that",
    "Few people here doubt that",
    "According to the harbour master",
    "In the last chapter we read that",
    "My cousin heard at the fair that",
    "The doctor noted that",
    "A stranger asked me whether",
    "The keeper of the lighthouse says that",
    "As far as I can tell",
    "At the end of the play it turns out that",
)

LINKS = (
    "are",
    "were",
    "have always been",
    "will always be",
    "have become",
    "must be",
    "seem to be",
    "are known to be",
    "are thought to be",
    "were found to be",
    "have long been",
    "turned out to be",
    "are really",
    "are simply",
    "look",
)

#: All of them; ``{group}`` stands for the group's name.
FRAMES = tuple(f"{opening} the {{group}} {link}" for opening in OPENINGS for link in LINKS)


def frames(count: int, seed: int, use: str = "") -> list[str]:
    """So many different ones by lot, at most all; in the order of the lot."""
    source = random.Random(f"{seed}/frames/{use}")
    drawn = sorted((source.random(), number) for number in range(len(FRAMES)))
    return [FRAMES[number] for _, number in drawn[:count]]
