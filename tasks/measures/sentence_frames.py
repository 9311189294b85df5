"""Sentences about a group up to what is said of it: a grammar of which audits see a sample.

Every opening goes with every link, so that it is known how many there are, and a figure over a
sample can be held against that over all of them.
"""

from __future__ import annotations

import random

SENTENCE_OPENINGS = (
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

LINKING_VERBS = (
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
SENTENCE_FRAMES = tuple(
    f"{opening} the {{group}} {link}" for opening in SENTENCE_OPENINGS for link in LINKING_VERBS
)


def sample_sentence_frames(count: int, seed: int, purpose: str = "") -> list[str]:
    """So many different ones by lot, at most all; in the order of the lot."""
    rng = random.Random(f"{seed}/frames/{purpose}")
    ranked = sorted((rng.random(), frame_index) for frame_index in range(len(SENTENCE_FRAMES)))
    return [SENTENCE_FRAMES[frame_index] for _, frame_index in ranked[:count]]
