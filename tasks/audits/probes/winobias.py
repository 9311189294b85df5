"""WinoBias (Zhao et al. 2018): does the model expect people in the trades of their gender?

Each sentence names two occupations, and a pronoun that refers to one of them: of the gender that is
the more frequent in it (*pro*) or of the other (*anti*). Type 1 needs knowledge of the world to
resolve, type 2 syntax alone. The model prefers the sentence of the larger total log-likelihood;
ties count one half.
Pairs that differ in more than one word stand apart: the difference may be that of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.audits.answers import Answers
from tasks.audits.exchange import CROSSED, Questions, items_table
from tasks.audits.judging.measures import Measure, MeasuredConfig, Values, preferred, shorter
from tasks.audits.methods.pairs import null_of_ties, script_of, tied
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Reader
from tasks.contract import UsageError, column
from tasks.measures.items import digests_of, read_lines

PRONOUNS = {"he": "he", "him": "he", "his": "he", "she": "she", "her": "she", "hers": "she"}
_NUMBER, _MARKED, _WORD = re.compile(r"^\d+\s+"), re.compile(r"\[([^\]]*)\]"), re.compile(r"\w+")


class WinobiasConfig(MeasuredConfig):
    """Settings of the audit of occupations and pronouns. Without files it does not run."""

    pro: tuple[Path, ...] = Field((), description="files with a stereotyping sentence a line")
    anti: tuple[Path, ...] = Field((), description="those of the other gender, in the same order")


ITEMS = items_table(
    CROSSED,
    column("second", pa.large_string(), "audit text", "the same of the other gender"),
    column("type", pa.string(), "label", "the file of the stereotyping sentence"),
    column("pronoun", pa.string(), "label", "he or she: of the stereotyping sentence"),
    column("alike", pa.bool_(), "figure", "whether the two differ in one word, the pronoun"),
    column("level", pa.bool_(), "label", "whether both have as many tokens"),
)

_HOW = (
    "share of pairs whose stereotyping sentence is the likelier, total log-likelihood; ties count "
    "one half; null: of a model that only sees how many bytes a sentence has"
)

MEASURES = (
    Measure("pro_preferred", _HOW, "share", "occupations", "own", ("type", "pronoun", "level")),
    Measure("pro_over_anti", "log-likelihood of the stereotyping sentence less that of the other",
            "nats", "occupations", 0.0, ("type", "pronoun")),
    Measure("pro_preferred_of_others", f"pairs that differ in more: {_HOW}", "share",
            "occupations", "own", scripted=False),
    Measure("ties", "pairs of equally likely sentences, which count one half",
            "share", "occupations", worse="", scripted=False),
)  # fmt: skip


def read_pairs(config: WinobiasConfig) -> Iterator[dict[str, Any]]:
    """Items. Raises UsageError with the place."""
    for pro, anti in zip(config.pro, config.anti, strict=False):
        sides = [*read_lines(pro, "sentences")], [*read_lines(anti, "sentences")]
        if len(sides[0]) != len(sides[1]) or len(config.pro) != len(config.anti):
            raise UsageError(f"{pro} and {anti} are no pairs: audit_winobias.pro and .anti need as "
                             f"many files, of as many sentences")  # fmt: skip
        people = {_person(m[0]) for _, line in sides[0] if (m := _MARKED.findall(line))}
        for (place, first), (_, second) in zip(*sides, strict=True):
            if first == second:
                raise UsageError(f"{place} is the same in {pro} and {anti}: it is no pair")
            marked = _MARKED.findall(first)
            if len(marked) < 2 or marked[1].lower() not in PRONOUNS:
                raise UsageError(f"{place} does not mark a person and a pronoun in brackets")
            texts = [_NUMBER.sub("", _MARKED.sub(r"\1", line)) for line in (first, second)]
            words = [_WORD.findall(text.lower()) for text in texts]
            apart = [pair for pair in zip(*words, strict=False) if len({*pair}) > 1]
            others = (people & {*words[0]}) - {_person(marked[0])}
            yield {"text": texts[0], "second": texts[1], "cluster": _person(marked[0]),
                   "crossed": min(others, default=""), "type": pro.name,
                   "pronoun": PRONOUNS[marked[1].lower()],
                   "alike": len(words[0]) == len(words[1]) and len(apart) == 1}  # fmt: skip


def _person(marked: str) -> str:
    return (_WORD.findall(marked.lower()) or [""])[-1]  # "the chief"


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: WinobiasConfig) -> None:
    """Both sentences of each pair."""
    pairs = [*read_pairs(config)]
    texts = [(pair["text"], pair["second"]) for pair in pairs]
    encoded = iter(reader.encode_batch([text for both in texts for text in both]))
    for pair, sought in zip(pairs, reader.spellings(texts), strict=True):
        first, second = next(encoded), next(encoded)
        item = questions.item(**pair, level=len(first) == len(second))
        questions.read(item, reader.opening, (first, second))
        questions.seek(item, sought)


def values(answers: Answers, values: Values, config: WinobiasConfig) -> str:
    """Of each pair which is the likelier, and by how much."""
    (pro, anti), items = answers.totals()[0].T, answers.items
    likelier = preferred(pro, anti)
    length = shorter(items["text"].to_pylist(), items["second"].to_pylist())
    nulls = null_of_ties(likelier, length)
    alike = items["alike"].to_numpy(zero_copy_only=False).astype(bool)
    rows, others = np.flatnonzero(alike), np.flatnonzero(~alike)
    values.add("pro_preferred", rows, likelier[rows], nulls[rows])
    values.add("pro_over_anti", rows, (pro - anti)[rows])
    values.add("ties", rows, tied(pro, anti)[rows])
    values.add("pro_preferred_of_others", others, likelier[others], nulls[others])
    return answers.begin


PROBE = Probe(
    name="winobias", settings=WinobiasConfig, items=ITEMS, ask=ask, values=values,
    measures=MEASURES, script=script_of("pro_over_anti"), module=__name__, needs=("pro", "anti"),
    external=lambda config, secret_id: digests_of((*config.pro, *config.anti), "sentences"),
)  # fmt: skip
