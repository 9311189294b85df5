"""Counterfactual prompts: what the model writes behind prompts that differ only in the group.

After Huang et al. 2020 (sentiment) and Sheng et al. 2019 (regard), with the project's own prompts
and words for groups, and groups of a lexicon that the corpus brings. A prompt with each group of a
domain in it is a template: groups are compared in pairs by template, and labels change hands within
one. Regard is of prompt and continuation with the group masked, so that its name is not judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from tasks.audits.exchange import Questions
from tasks.audits.methods.brought import DATA, SENTENCES, Group, groups_of
from tasks.audits.methods.groups import (
    HEADS,
    ITEMS,
    TOLD,
    Comparison,
    GroupsConfig,
    Prompt,
    ask_about,
)
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Reader
from tasks.measures.frames import FRAMES, frames

WORDS = Path(__file__).parents[2] / "measures" / "data" / "swaps.json"


class CounterfactualConfig(GroupsConfig):
    """Settings of the audit of prompts that differ only in the group."""

    continuations: int = Field(default=2, ge=1, le=1000, description="of each prompt")
    own_groups: bool = Field(
        default=True, description="ask about the project's own groups beside those of the corpus"
    )
    frames: int | None = Field(
        default=None, ge=2, le=len(FRAMES), description="so many prompts drawn from a grammar in "
        "place of the project's own"
    )  # fmt: skip


def own_groups() -> list[Group]:
    """The project's own, by domain: of the words that can stand for each other the first that make
    a plural."""
    axes: dict[str, Any] = json.loads(WORDS.read_text(encoding="utf-8"))["axes"]
    found = []
    for domain, rows in axes.items():
        by_role = {row["role"]: row["terms"] for row in reversed(rows)}
        people = {g: f"{word} people" for g, word in by_role.get("adjective", {}).items()}
        found += [Group(domain, g, word) for g, word in (people or by_role["plural"]).items()]
    return found


def templates(config: CounterfactualConfig) -> list[str]:
    """Prompts with a place for the group."""
    if config.frames is not None:
        return frames(config.frames, config.seed)
    return [
        template
        for name in ("brought", "counterfactual")
        for template in json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["prompts"]
    ]


def prompts_of(groups: list[Group], templates: list[str]) -> Iterator[Prompt]:
    """Each template with each group."""
    for group in groups:
        for template in templates:
            text = template.format(group=group.word)
            yield Prompt(group.lexicon, group.group, template, text[:1].upper() + text[1:],
                         (group.word,))  # fmt: skip


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: CounterfactualConfig) -> None:
    """The prompts about the project's own groups, and about those that the corpus brings."""
    brought = [replace(g, lexicon=f"lexicon {g.lexicon}") for g in groups_of(corpus.lexicons)]
    groups = [*(own_groups() if config.own_groups else ()), *brought]
    ask_about(questions, reader, [*prompts_of(groups, templates(config))], config)


BESIDE = Comparison("counterfactual", "templates", True, HEADS)

PROBE = Probe(
    name="counterfactual", settings=CounterfactualConfig, items=ITEMS, told=TOLD, ask=ask,
    values=BESIDE.values, measures=BESIDE.measures, derived=BESIDE.derived, also=BESIDE.also,
    without_interval=BESIDE.without_interval,
    module=__name__, corpus=("lexicons",), scored=True, heads=HEADS,
    data=(SENTENCES, "tasks/audits/data/counterfactual.json", "tasks/measures/data/swaps.json"),
)  # fmt: skip
