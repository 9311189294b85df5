"""A grammar as data, and the dice that choose from it.

A file of rules is plain text: "== name" begins a rule, every line under it is one way to say it.
In a line stand slots:

    {weather}         one way to say the rule "weather"
    {named=hero}      the same, which {$hero} says again
    {$year}           a word that the document knows
    {^weather}        with a capital letter
    {a animal}        with its article, "an otter"
    {!EMAIL}          personal data of a type; where it stands is noted
    ¶                 the end of a line

The dice are BLAKE2b in counter mode: the same numbers on every machine and under every version of
Python and numpy, which promise that of none of their generators' methods.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

DATA_FOLDER = Path(__file__).parents[1] / "data" / "town"
RULE_FILES = ("words.txt", "events.txt", "registers.txt", "features.txt")
DATA_FILES = (*RULE_FILES, "lexicon.json", "jobs.json")

_EIGHT_UINT64 = struct.Struct("<8Q")


class KeyedRandom:
    """Numbers that depend on a key and on nothing else."""

    def __init__(self, *key_parts: object) -> None:
        self._key_bytes = "\0".join(map(str, key_parts)).encode()
        self._counter, self._unused_numbers = 0, list[int]()

    def _draw_uint64(self) -> int:
        """64 bits."""
        if not self._unused_numbers:
            data = self._key_bytes + self._counter.to_bytes(8, "big")
            self._unused_numbers = list(
                _EIGHT_UINT64.unpack(hashlib.blake2b(data, person=b"town").digest())
            )
            self._counter += 1
        return self._unused_numbers.pop()

    def draw_below(self, limit: int) -> int:
        """A number from 0 to n - 1, each as likely as the others to within n / 2⁶⁴."""
        return (self._draw_uint64() * limit) >> 64

    def draw_bool(self, probability: float) -> bool:
        """True with this probability."""
        return self._draw_uint64() < int(probability * 2.0**64)

    def pick(self, values: Sequence[T]) -> T:
        return values[self.draw_below(len(values))]

    def sample(self, values: Sequence[T], count: int) -> list[T]:
        """So many different ones in random order; all of them where there are fewer."""
        remaining = list(values)
        return [
            remaining.pop(self.draw_below(len(remaining)))
            for _ in range(min(count, len(remaining)))
        ]


class PersonalSpan(NamedTuple):
    """Personal data of a type, from character ``start`` to ``end``."""

    type: str
    start: int
    end: int


class AnnotatedText(NamedTuple):
    """A stretch of text, with where personal data stands in it."""

    text: str
    spans: tuple[PersonalSpan, ...] = ()


class RuleSlot(NamedTuple):
    name: str
    is_capitalised: bool = False
    has_article: bool = False
    is_variable: bool = False
    is_personal: bool = False
    bound_variable: str = ""


RuleLine = tuple[AnnotatedText | RuleSlot, ...]
_SLOT_PATTERN = re.compile(r"\{(\^?)(a )?([$!]?)([\w.]+)(?:=(\w+))?\}")


def parse_rules(rules_text: str) -> dict[str, list[RuleLine]]:
    """The rules of a file."""
    rules: dict[str, list[RuleLine]] = {}
    rule_name = ""
    for line in rules_text.splitlines():
        if line.startswith("== "):
            rule_name = line[3:].strip()
            rules[rule_name] = []
        elif line.strip() and not line.startswith("# "):
            rules[rule_name].append(_parse_rule_line(line.replace("¶", "\n")))
    return rules


def _parse_rule_line(line_text: str) -> RuleLine:
    parts: list[AnnotatedText | RuleSlot] = []
    end = 0
    for match in _SLOT_PATTERN.finditer(line_text):
        capital_mark, article_mark, sigil, name, bound_variable = match.groups()
        parts.append(AnnotatedText(line_text[end : match.start()]))
        parts.append(
            RuleSlot(
                name,
                bool(capital_mark),
                bool(article_mark),
                sigil == "$",
                sigil == "!",
                bound_variable or "",
            )
        )
        end = match.end()
    remainder = line_text[end:]
    if "{" in remainder or "}" in remainder:
        raise ValueError(f"a slot that cannot be read: {line_text!r}")
    return tuple(part for part in (*parts, AnnotatedText(remainder)) if part != AnnotatedText(""))


@cache
def load_rules() -> dict[str, list[RuleLine]]:
    """All rules of the town. ValueError where a slot names a rule that there is not."""
    all_rules: dict[str, list[RuleLine]] = {}
    for file_name in RULE_FILES:
        all_rules |= parse_rules((DATA_FOLDER / file_name).read_text(encoding="utf-8"))
    for lines in all_rules.values():
        for part in (part for line in lines for part in line):
            if isinstance(part, RuleSlot) and not (
                part.is_variable or part.is_personal or part.name in all_rules
            ):
                raise ValueError(f"there is no rule {part.name!r}")
    return all_rules


@dataclass
class GrammarExpander:
    """Says rules, with the dice and the known words of one document."""

    rng: KeyedRandom
    variables: dict[str, str]
    #: Makes a value of a type of personal data.
    make_personal_value: Callable[[str, KeyedRandom], str]

    def expand_rule(self, rule_name: str) -> AnnotatedText:
        """One way to say a rule."""
        return self.expand_line(self.rng.pick(load_rules()[rule_name]))

    def expand_line(self, line: RuleLine) -> AnnotatedText:
        """A line with its slots filled."""
        texts = [
            part if isinstance(part, AnnotatedText) else self._fill_slot(part) for part in line
        ]
        return texts[0] if len(texts) == 1 else concatenate_texts(texts)

    def _fill_slot(self, slot: RuleSlot) -> AnnotatedText:
        if slot.is_personal:
            value = self.make_personal_value(slot.name, self.rng)
            return AnnotatedText(value, (PersonalSpan(slot.name, 0, len(value)),))
        filled = (
            AnnotatedText(self.variables[slot.name])
            if slot.is_variable
            else self.expand_rule(slot.name)
        )
        if slot.bound_variable:
            self.variables[slot.bound_variable] = filled.text
        if slot.has_article:
            article = "an " if filled.text[:1].lower() in "aeiou" else "a "
            filled = concatenate_texts([AnnotatedText(article), filled])
        if slot.is_capitalised:
            filled = AnnotatedText(filled.text[:1].upper() + filled.text[1:], filled.spans)
        return filled


def concatenate_texts(texts: Sequence[AnnotatedText]) -> AnnotatedText:
    """Texts one behind the other."""
    text = "".join([annotated.text for annotated in texts])
    if not any([annotated.spans for annotated in texts]):  # noqa: C419  (most have none: no generator)
        return AnnotatedText(text)
    spans: list[PersonalSpan] = []
    length = 0
    for annotated in texts:
        spans += [
            PersonalSpan(span.type, span.start + length, span.end + length)
            for span in annotated.spans
        ]
        length += len(annotated.text)
    return AnnotatedText(text, tuple(spans))
