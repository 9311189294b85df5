"""BOLD (Dhamala et al. 2021): what the model writes behind the beginnings of articles about people.

Beginnings of sentences from Wikipedia, by domain (gender, race, religion …), group, and whom or
what the article is about. Without the white space at their end, which 23,674 of the 23,679 have and
a tokenizer makes a token of; prompts that stand there several times are asked once. Of each group
at most ``per_group`` are asked, those with the least hashes.

Prompts about one name are a cluster. Groups are of different people, so what is written about them
differs for many reasons: a difference says what readers meet, not that the group is its cause.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from tasks.audits.exchange import Questions, hash_of
from tasks.audits.methods.groups import (
    ITEMS,
    TOLD,
    Comparison,
    GroupsConfig,
    Prompt,
    ask_about,
)
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Reader
from tasks.contract import UsageError
from tasks.measures.items import check_file, digests_of, open_text


class BoldConfig(GroupsConfig):
    """Settings of the audit of texts about people by group. Without files it does not run."""

    prompts: tuple[Path, ...] = Field(
        (), description="files of BOLD, one a domain: JSON, group: {name: [prompts]}; plain or .gz"
    )
    per_group: int = Field(
        100,
        ge=2,
        le=1_000_000,
        description="prompts asked of each group, at most: a choice by hash",
    )


def read_bold(path: Path) -> Iterator[Prompt]:
    """The prompts of a file, also those of white space. Raises UsageError with the place."""
    check_file(path, "prompts")
    try:
        with open_text(path, "prompts", encoding="utf-8") as file:
            said = json.load(file)
    except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is no JSON in UTF-8: {str(error)[:200]}") from error
    domain = path.name.partition(".")[0].removeprefix("bold_").removesuffix("_prompt")
    for group, names in _named(path, said, "groups").items():
        for name, prompts in _named(f"{path}, group {group[:60]!r}", names, "names").items():
            place = f"{path}, group {group[:60]!r}, {name[:60]!r}"
            if not isinstance(prompts, list):
                raise UsageError(f"{place} has no list of prompts")
            for prompt in prompts:
                if not isinstance(prompt, str) or not _encodes(prompt):
                    raise UsageError(f"{place}: {repr(prompt)[:60]} is no text")
                yield Prompt(domain, group, name, prompt.rstrip())


def _named(place: Any, said: Any, what: str) -> dict[str, Any]:
    if not isinstance(said, dict) or not said:
        raise UsageError(f"{place} is no JSON object of {what}: give a file of BOLD")
    for name in said:
        if not name.isprintable() or not name.strip():
            raise UsageError(f"{place}: {name!r:.60} is no name that can be printed")
    return said


def _encodes(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def chosen(config: BoldConfig) -> tuple[list[Prompt], dict[str, int]]:
    """The prompts that are asked, and how many of the files are not, or not again, by reason."""
    said = [prompt for path in config.prompts for prompt in read_bold(path)]
    texts = [prompt for prompt in said if prompt.text]
    if not texts:
        raise UsageError("the files that audit_bold.prompts names hold no prompt")
    groups: dict[tuple[str, str], dict[str, Prompt]] = {}
    for prompt in texts:
        groups.setdefault((prompt.domain, prompt.group), {}).setdefault(prompt.text, prompt)
    asked = [
        prompt
        for found in groups.values()
        for prompt in sorted(found.values(), key=lambda p: hash_of(p.text))[: config.per_group]
    ]
    left = {
        "empty_prompts": len(said) - len(texts),
        "repeated_prompts": len(texts) - len({prompt.text for prompt in texts}),
        "prompts_left_out": sum(map(len, groups.values())) - len(asked),
    }
    return asked, left


_WHY = {
    "empty_prompts": "nothing but white space; not asked",
    "repeated_prompts": "prompts of the files that stand there before; each is asked once",
    "prompts_left_out": "beyond per_group of a group, those with the least hashes; not asked",
}


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: BoldConfig) -> None:
    """The prompts of each group."""
    prompts, left = chosen(config)
    ask_about(questions, reader, prompts, config)
    for part, count in left.items():
        if count:
            questions.skip(part, _WHY[part], count)


BESIDE = Comparison("bold", "names", False, ("toxicity", "sentiment"))

PROBE = Probe(
    name="bold", settings=BoldConfig, items=ITEMS, told=TOLD, ask=ask,
    values=BESIDE.values, measures=BESIDE.measures, derived=BESIDE.derived, also=BESIDE.also,
    without_interval=BESIDE.without_interval,
    module=__name__, needs=("prompts",), scored=True, heads=("toxicity", "sentiment"),
    external=lambda config, secret_id: digests_of(config.prompts, "prompts"),
)  # fmt: skip
