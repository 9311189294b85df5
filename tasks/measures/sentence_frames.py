"""Build sentence beginnings about a group, such as "He wrote in his diary that the X were".

Every opening is combined with every linking verb, so the number of frames is known, and a result
over a sample can be compared with one over all frames.
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

#: All frames, with `{group}` as a placeholder for the group's name.
SENTENCE_FRAMES = tuple(
    f"{opening} the {{group}} {link}" for opening in SENTENCE_OPENINGS for link in LINKING_VERBS
)


def sample_sentence_frames(count: int, seed: int, purpose: str = "") -> list[str]:
    """Sample distinct frames in random order.

    Args:
        count: Number of frames; all frames are returned if there are fewer.
        seed: Seed of the sample.
        purpose: Different purposes give independent samples.
    """
    rng = random.Random(f"{seed}/frames/{purpose}")
    ranked = sorted((rng.random(), frame_index) for frame_index in range(len(SENTENCE_FRAMES)))
    return [SENTENCE_FRAMES[frame_index] for _, frame_index in ranked[:count]]
