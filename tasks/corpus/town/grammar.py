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

DATA = Path(__file__).parents[1] / "data" / "town"
RULES = ("words.txt", "events.txt", "registers.txt", "features.txt")
FILES = (*RULES, "lexicon.json", "jobs.json")

_WORD = struct.Struct("<8Q")


class Dice:
    """Numbers that depend on a key and on nothing else."""

    def __init__(self, *key: object) -> None:
        self._key = "\0".join(map(str, key)).encode()
        self._block, self._left = 0, list[int]()

    def _next(self) -> int:
        """64 bits."""
        if not self._left:
            data = self._key + self._block.to_bytes(8, "big")
            self._left = list(_WORD.unpack(hashlib.blake2b(data, person=b"town").digest()))
            self._block += 1
        return self._left.pop()

    def below(self, n: int) -> int:
        """A number from 0 to n - 1, each as likely as the others to within n / 2⁶⁴."""
        return (self._next() * n) >> 64

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self._next() < int(share * 2.0**64)

    def pick(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def sample(self, values: Sequence[T], count: int) -> list[T]:
        """So many different ones in random order; all of them where there are fewer."""
        left = list(values)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]


class Mark(NamedTuple):
    """Personal data of a type, from character ``start`` to ``end``."""

    type: str
    start: int
    end: int


class Said(NamedTuple):
    """A stretch of text, with where personal data stands in it."""

    text: str
    marks: tuple[Mark, ...] = ()


class Slot(NamedTuple):
    name: str
    capital: bool = False
    article: bool = False
    known: bool = False
    personal: bool = False
    bind: str = ""


Line = tuple[Said | Slot, ...]
_SLOT = re.compile(r"\{(\^?)(a )?([$!]?)([\w.]+)(?:=(\w+))?\}")


def parse(text: str) -> dict[str, list[Line]]:
    """The rules of a file."""
    rules: dict[str, list[Line]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("== "):
            name = line[3:].strip()
            rules[name] = []
        elif line.strip() and not line.startswith("# "):
            rules[name].append(_line(line.replace("¶", "\n")))
    return rules


def _line(text: str) -> Line:
    parts: list[Said | Slot] = []
    end = 0
    for found in _SLOT.finditer(text):
        capital, article, kind, name, bind = found.groups()
        parts.append(Said(text[end : found.start()]))
        parts.append(Slot(name, bool(capital), bool(article), kind == "$", kind == "!", bind or ""))
        end = found.end()
    rest = text[end:]
    if "{" in rest or "}" in rest:
        raise ValueError(f"a slot that cannot be read: {text!r}")
    return tuple(part for part in (*parts, Said(rest)) if part != Said(""))


@cache
def rules() -> dict[str, list[Line]]:
    """All rules of the town. ValueError where a slot names a rule that there is not."""
    made: dict[str, list[Line]] = {}
    for name in RULES:
        made |= parse((DATA / name).read_text(encoding="utf-8"))
    for lines in made.values():
        for part in (part for line in lines for part in line):
            if isinstance(part, Slot) and not (part.known or part.personal or part.name in made):
                raise ValueError(f"there is no rule {part.name!r}")
    return made


@dataclass
class Teller:
    """Says rules, with the dice and the known words of one document."""

    dice: Dice
    known: dict[str, str]
    #: Makes a value of a type of personal data.
    personal: Callable[[str, Dice], str]

    def say(self, rule: str) -> Said:
        """One way to say a rule."""
        return self.tell(self.dice.pick(rules()[rule]))

    def tell(self, line: Line) -> Said:
        """A line with its slots filled."""
        said = [part if isinstance(part, Said) else self._fill(part) for part in line]
        return said[0] if len(said) == 1 else joined(said)

    def _fill(self, slot: Slot) -> Said:
        if slot.personal:
            value = self.personal(slot.name, self.dice)
            return Said(value, (Mark(slot.name, 0, len(value)),))
        said = Said(self.known[slot.name]) if slot.known else self.say(slot.name)
        if slot.bind:
            self.known[slot.bind] = said.text
        if slot.article:
            article = "an " if said.text[:1].lower() in "aeiou" else "a "
            said = joined([Said(article), said])
        if slot.capital:
            said = Said(said.text[:1].upper() + said.text[1:], said.marks)
        return said


def joined(pieces: Sequence[Said]) -> Said:
    """Texts one behind the other."""
    text = "".join([piece.text for piece in pieces])
    if not any([piece.marks for piece in pieces]):  # noqa: C419  (most have none: no generator)
        return Said(text)
    marks: list[Mark] = []
    length = 0
    for piece in pieces:
        marks += [Mark(m.type, m.start + length, m.end + length) for m in piece.marks]
        length += len(piece.text)
    return Said(text, tuple(marks))
