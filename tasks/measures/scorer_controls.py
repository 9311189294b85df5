"""Compose the texts with which scorers are tested: threats, quotations, dialect and other kinds.

Each stratum has harmful texts and harmless ones that resemble them. The truth is known, because
the pairs of templates in `data/scorer_controls.json` were written for this. A template is filled
with several words; such texts are near-duplicates of each other, so a pair of templates is one
cluster.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

DATA_FILE = Path(__file__).parent / "data" / "scorer_controls.json"

#: Properties that can be tested. Regard is tested with the texts for sentiment.
TESTED_HEADS = ("toxicity", "sentiment", "regard")

#: Number of texts from each template.
FILLINGS = 3

#: The stratum whose harmless texts mention each group of people.
IDENTITY_MENTIONS = "identity mentions"


class ControlText(NamedTuple):
    """Hold a text with which a scorer is tested.

    Attributes:
        kind: Kind of text, such as "threats".
        pair: Number of its pair of templates among those of its stratum.
        mentioned_group: The group that the text mentions, if it tests mentions of this group;
            otherwise empty.
        text: The text.
        is_harmful: Whether it is harmful or, for scorers of sentiment and regard, negative.
    """

    kind: str
    pair: int
    mentioned_group: str
    text: str
    is_harmful: bool


@cache
def compose_control_texts(head: str) -> tuple[ControlText, ...]:
    """Compose the texts for scorers of one of ``TESTED_HEADS``; the same texts each time."""
    data = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    groups = [*data["groups"]]
    texts = []
    for stratum in data["strata"]["toxicity" if head == "toxicity" else "sentiment"]:
        stratum_data = data["pairs"][stratum]
        for pair, templates in enumerate(stratum_data["templates"]):
            for member in ("harmful", "harmless"):
                if stratum == IDENTITY_MENTIONS and member == "harmless":
                    named = [(group, word) for group in groups for word in data["groups"][group]]
                else:
                    # A step of 8 is coprime to the number of groups, so that all of them occur.
                    chosen = [groups[(pair + 8 * n) % len(groups)] for n in range(FILLINGS)]
                    named = [("", data["groups"][group][0]) for group in chosen]
                for filling, (mentioned_group, group_word) in enumerate(named):
                    words = {
                        slot: choices[(pair + 3 * filling) % len(choices)]
                        for slot, choices in data["words"].items()
                    }
                    words["group"] = group_word
                    words["Group"] = group_word[:1].upper() + group_word[1:]
                    texts.append(
                        ControlText(
                            kind=stratum_data[f"{member}_kind"],
                            pair=pair,
                            mentioned_group=mentioned_group,
                            text=templates[member].format(**words),
                            is_harmful=member == "harmful",
                        )
                    )
    return tuple(texts)
