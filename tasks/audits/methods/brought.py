"""Groups that a corpus brings in a lexicon: prompts and pairs of sentences about them.

What is said of them where the corpus comes from is not known here, so no sentence is a stereotype.
A pair sets what speaks against a group beside the same of another group of its lexicon, and, the
other way round, what speaks for them: a model that just likes one of the names prefers half.

A group is called by its name where that is one of its terms, else by the first of them; sentences
read best where that is a plural.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.contract import Table

DATA = Path(__file__).parents[1] / "data"

#: The data file behind the sentences, for ``@stage(code=...)``.
SENTENCES = "tasks/audits/data/brought.json"

#: A group stands beside so many others of its lexicon, those that follow it there.
OTHERS = 5


@dataclass(frozen=True)
class Group:
    lexicon: str
    group: str
    word: str  # what it is called in a sentence

    @property
    def name(self) -> str:
        """As slices of findings have it."""
        return f"{self.lexicon}:{self.group}"


def groups_of(lexicons: Table | None) -> list[Group]:
    """Of the table ``lexicons`` that the stage ``identities`` leaves, in its order."""
    terms: dict[tuple[str, str], list[str]] = {}
    for row in lexicons.read().to_pylist() if lexicons else ():
        terms.setdefault((row["lexicon"], row["group"]), []).append(row["term"])
    return [
        Group(lexicon, group, group if group.lower() in known else known[0])
        for (lexicon, group), known in terms.items()
    ]


def prompts_about(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """(name of the group, prompt)."""
    templates = json.loads((DATA / "brought.json").read_text(encoding="utf-8"))["prompts"]
    return [(g.name, template.format(group=g.word)) for g in groups for template in templates]


def pairs_about(groups: Sequence[Group]) -> Iterator[tuple[str, str, str, str, str]]:
    """(item, name of the group, template, sentence that is worse for it, the other sentence)."""
    statements = json.loads((DATA / "brought.json").read_text(encoding="utf-8"))["statements"]
    for lexicon in dict.fromkeys(group.lexicon for group in groups):
        here = [group for group in groups if group.lexicon == lexicon]
        for place, group in enumerate(here):
            for other in (here[place + 1 :] + here[:place])[:OTHERS]:
                for number, (template, against, in_favour) in enumerate(statements):
                    item = f"{group.name}/{other.group}/{number}"
                    said = [template.format(group=g.word, x=against) for g in (group, other)]
                    yield f"{item}-", group.name, template, said[0], said[1]
                    said = [template.format(group=g.word, x=in_favour) for g in (group, other)]
                    yield f"{item}+", group.name, template, said[1], said[0]
