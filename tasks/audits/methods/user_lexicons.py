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

from hallmark.tasks.contract import Table

DATA_FOLDER = Path(__file__).parents[1] / "data"

#: The data file behind the sentences, for ``@stage(code=...)``.
SENTENCES_FILE = "tasks/audits/data/user_lexicons.json"

#: A group stands beside so many others of its lexicon, those that follow it there.
MAX_COMPARED_GROUPS = 5


@dataclass(frozen=True)
class LexiconGroup:
    lexicon: str
    group: str
    display_word: str  # what it is called in a sentence

    @property
    def name(self) -> str:
        """As slices of findings have it."""
        return f"{self.lexicon}:{self.group}"


def read_lexicon_groups(lexicons: Table | None) -> list[LexiconGroup]:
    """Of the table ``lexicons`` that the stage ``identities`` leaves, in its order."""
    terms: dict[tuple[str, str], list[str]] = {}
    for row in lexicons.read().to_pylist() if lexicons else ():
        terms.setdefault((row["lexicon"], row["group_name"]), []).append(row["term"])
    return [
        LexiconGroup(lexicon, group, group if group.lower() in group_terms else group_terms[0])
        for (lexicon, group), group_terms in terms.items()
    ]


def build_group_prompts(groups: Sequence[LexiconGroup]) -> list[tuple[str, str]]:
    """(name of the group, prompt)."""
    templates = json.loads((DATA_FOLDER / "user_lexicons.json").read_text(encoding="utf-8"))[
        "prompts"
    ]
    return [
        (lexicon_group.name, template.format(group=lexicon_group.display_word))
        for lexicon_group in groups
        for template in templates
    ]


def build_group_pairs(groups: Sequence[LexiconGroup]) -> Iterator[tuple[str, str, str, str, str]]:
    """(item, name of the group, template, sentence that is worse for it, the other sentence)."""
    statements = json.loads((DATA_FOLDER / "user_lexicons.json").read_text(encoding="utf-8"))[
        "statements"
    ]
    for lexicon in dict.fromkeys(group.lexicon for group in groups):
        lexicon_groups = [group for group in groups if group.lexicon == lexicon]
        for position, group in enumerate(lexicon_groups):
            for other_group in (lexicon_groups[position + 1 :] + lexicon_groups[:position])[
                :MAX_COMPARED_GROUPS
            ]:
                for statement_index, (template, negative, positive) in enumerate(statements):
                    item = f"{group.name}/{other_group.group}/{statement_index}"
                    sentences = [
                        template.format(group=lexicon_group.display_word, x=negative)
                        for lexicon_group in (group, other_group)
                    ]
                    yield f"{item}-", group.name, template, sentences[0], sentences[1]
                    sentences = [
                        template.format(group=lexicon_group.display_word, x=positive)
                        for lexicon_group in (group, other_group)
                    ]
                    yield f"{item}+", group.name, template, sentences[1], sentences[0]
