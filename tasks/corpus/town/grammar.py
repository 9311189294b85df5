"""Expand a grammar that is stored as data, with reproducible random choices.

A file of rules is plain text. "== name" begins a rule, and each line below it is one alternative. A
line may have slots:

- {weather}: one alternative of the rule "weather"
- {named=hero}: the same, stored for reuse as {$hero}
- {$year}: a variable of the document
- {^weather}: with a capital letter
- {a animal}: with its article, "an otter"
- {!EMAIL}: personal data of a type; its position is recorded
- ¶: the end of a line

Random numbers come from BLAKE2b in counter mode, because these are the same on every machine and
under every version of Python and numpy. Their own generators do not guarantee that for any method.
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
    """Generate random numbers that depend only on a key."""

    def __init__(self, *key_parts: object) -> None:
        self._key_bytes = "\0".join(map(str, key_parts)).encode()
        self._counter, self._unused_numbers = 0, list[int]()

    def _draw_uint64(self) -> int:
        if not self._unused_numbers:
            data = self._key_bytes + self._counter.to_bytes(8, "big")
            self._unused_numbers = list(
                _EIGHT_UINT64.unpack(hashlib.blake2b(data, person=b"town").digest())
            )
            self._counter += 1
        return self._unused_numbers.pop()

    def draw_below(self, limit: int) -> int:
        """Draw from 0 to limit - 1, uniformly to within limit / 2⁶⁴."""
        return (self._draw_uint64() * limit) >> 64

    def draw_bool(self, probability: float) -> bool:
        """Draw True with this probability."""
        return self._draw_uint64() < int(probability * 2.0**64)

    def pick(self, values: Sequence[T]) -> T:
        return values[self.draw_below(len(values))]

    def sample(self, values: Sequence[T], count: int) -> list[T]:
        """Draw different values in random order; all of them if there are fewer than ``count``."""
        remaining = list(values)
        return [
            remaining.pop(self.draw_below(len(remaining)))
            for _ in range(min(count, len(remaining)))
        ]


class PersonalSpan(NamedTuple):
    """Mark personal data of a type, from character ``start`` to before ``end``."""

    type: str
    start: int
    end: int


class AnnotatedText(NamedTuple):
    """Hold a text with the spans of personal data in it."""

    text: str
    spans: tuple[PersonalSpan, ...] = ()


class RuleSlot(NamedTuple):
    """Hold a parsed slot of a rule line."""

    name: str
    is_capitalised: bool = False
    has_article: bool = False
    is_variable: bool = False
    is_personal: bool = False
    bound_variable: str = ""


RuleLine = tuple[AnnotatedText | RuleSlot, ...]
_SLOT_PATTERN = re.compile(r"\{(\^?)(a )?([$!]?)([\w.]+)(?:=(\w+))?\}")


def parse_lines_by_rule(rules_text: str) -> dict[str, list[RuleLine]]:
    """Parse the rules of a file."""
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
        raise ValueError(f"a slot in line {line_text!r} of a rule is invalid; correct the braces")
    return tuple(part for part in (*parts, AnnotatedText(remainder)) if part != AnnotatedText(""))


@cache
def load_lines_by_rule() -> dict[str, list[RuleLine]]:
    """Load all rules of the town.

    Raises:
        ValueError: if a slot names a rule that does not exist.
    """
    all_rules: dict[str, list[RuleLine]] = {}
    for file_name in RULE_FILES:
        all_rules |= parse_lines_by_rule((DATA_FOLDER / file_name).read_text(encoding="utf-8"))
    for lines in all_rules.values():
        for part in (part for line in lines for part in line):
            if isinstance(part, RuleSlot) and not (
                part.is_variable or part.is_personal or part.name in all_rules
            ):
                raise ValueError(f"a slot refers to the rule {part.name!r}, which does not exist")
    return all_rules


@dataclass
class GrammarExpander:
    """Expand rules with the random numbers and variables of one document."""

    rng: KeyedRandom
    variables: dict[str, str]
    #: Generates a value of a type of personal data.
    make_personal_value: Callable[[str, KeyedRandom], str]

    def expand_rule(self, rule_name: str) -> AnnotatedText:
        """Expand a random alternative of a rule."""
        return self.expand_line(self.rng.pick(load_lines_by_rule()[rule_name]))

    def expand_line(self, line: RuleLine) -> AnnotatedText:
        """Fill the slots of a line."""
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
    """Concatenate texts and shift their spans."""
    text = "".join([annotated.text for annotated in texts])
    if not any([annotated.spans for annotated in texts]):  # noqa: C419  (a list is faster)
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
