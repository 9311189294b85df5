"""Build prompts and pairs of sentences about the groups of a user's lexicon.

The stereotypes about these groups are not known, so the sentences are generic. One pair compares a
negative statement about a group with the same statement about another group of its lexicon; its
counterpart does so for a positive statement, in the opposite order. A model that only prefers one
of the names therefore prefers half of the pairs.

Sentences use the name of a group if it is one of its terms, otherwise its first term. They read
best with a plural.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hallmark.tasks.audits.methods.sentence_pairs import SentencePair
from hallmark.tasks.contract import Table

DATA_FOLDER = Path(__file__).parents[1] / "data"

#: Data file of the templates, for ``Probe.data_files``.
SENTENCES_FILE = "tasks/audits/data/user_lexicons.json"

#: Number of other groups that a group is compared with: those that follow it in its lexicon.
MAX_COMPARED_GROUPS = 5


@dataclass(frozen=True)
class LexiconGroup:
    """Hold a group of a lexicon.

    Attributes:
        lexicon: Name of the lexicon.
        group: Name of the group in the lexicon.
        display_word: The group's name in a sentence.
    """

    lexicon: str
    group: str
    display_word: str

    @property
    def name(self) -> str:
        """The group's name in slices of findings."""
        return f"{self.lexicon}:{self.group}"


def read_lexicon_groups(lexicons: Table | None) -> list[LexiconGroup]:
    """Read the groups from the ``lexicons`` table of the ``identities`` stage, in its order."""
    terms: dict[tuple[str, str], list[str]] = {}
    for row in lexicons.read().to_pylist() if lexicons else ():
        terms.setdefault((row["lexicon"], row["group_name"]), []).append(row["term"])
    return [
        LexiconGroup(lexicon, group, group if group.lower() in group_terms else group_terms[0])
        for (lexicon, group), group_terms in terms.items()
    ]


class LexiconPrompt(NamedTuple):
    """Hold a prompt about a group; ``group_name`` is ``LexiconGroup.name``."""

    group_name: str
    text: str


def build_group_prompts(groups: Sequence[LexiconGroup]) -> list[LexiconPrompt]:
    """Build the prompts about each group."""
    data = json.loads((DATA_FOLDER / "user_lexicons.json").read_text(encoding="utf-8"))
    templates = data["prompts"]
    return [
        LexiconPrompt(lexicon_group.name, template.format(group=lexicon_group.display_word))
        for lexicon_group in groups
        for template in templates
    ]


def build_group_pairs(groups: Sequence[LexiconGroup]) -> Iterator[SentencePair]:
    """Yield the pairs of sentences about each group.

    The category of a pair is the name of the group; its first sentence is worse for the group.
    """
    data = json.loads((DATA_FOLDER / "user_lexicons.json").read_text(encoding="utf-8"))
    statements = data["statements"]
    for lexicon in dict.fromkeys(group.lexicon for group in groups):
        lexicon_groups = [group for group in groups if group.lexicon == lexicon]
        for position, group in enumerate(lexicon_groups):
            other_groups = lexicon_groups[position + 1 :] + lexicon_groups[:position]
            for other_group in other_groups[:MAX_COMPARED_GROUPS]:
                for statement_index, (template, negative, positive) in enumerate(statements):
                    item = f"{group.name}/{other_group.group}/{statement_index}"
                    sentences = [
                        template.format(group=lexicon_group.display_word, x=negative)
                        for lexicon_group in (group, other_group)
                    ]
                    yield SentencePair(f"{item}-", group.name, template, *sentences)
                    sentences = [
                        template.format(group=lexicon_group.display_word, x=positive)
                        for lexicon_group in (group, other_group)
                    ]
                    yield SentencePair(f"{item}+", group.name, template, *sentences[::-1])
