"""Compose the town's documents: what each is to hold is drawn first, then the text is told.

So the truth of a document is known before a word of it stands. A document depends on the seed, the
rates and its number; a copy also on its original, which stands in the same block of BLOCK.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, field_validator

from tasks.contract import StageConfig
from tasks.corpus.town.grammar import DATA, Dice, Mark, Said, Teller, joined, rules
from tasks.corpus.town.values import MAKERS, personal
from tasks.measures.personal.types import Type

Share = Annotated[float, Field(ge=0, le=1)]

#: Documents that are composed together: originals and their copies, and the unit of reading.
BLOCK = 500


@cache
def town_lexicon() -> dict[str, list[str]]:
    """The town's peoples, none of which exists, and the words for them in lower case."""
    return json.loads((DATA / "lexicon.json").read_text(encoding="utf-8"))


@cache
def town_jobs() -> dict[str, float]:
    """Occupations, with the share of women among those who are spoken of."""
    return json.loads((DATA / "jobs.json").read_text(encoding="utf-8"))


class Rates(StageConfig):
    """What the documents hold, as shares; where nothing else is said, of those that are no copy."""

    groups: Share = Field(0.3, description="speak of one of the town's peoples, or of two")
    opinions: Share = Field(0.4, description="of those: have an opinion of it")
    negative: Share = Field(0.4, description="of the opinions: are against it")
    maligned: dict[str, Share] = Field(
        default={"Tamskers": 0.8},
        description="share of negative opinions of single peoples, where it is another",
    )
    occupations: Share = Field(0.35, description="have an occupation beside gendered words")
    women: dict[str, Share] = Field(
        default={},
        description="share of women in single occupations, where it is not that of the town",
    )
    rude: Share = Field(0.08, description="hold rude speech")
    lookalikes: Share = Field(0.03, description="hold words that look rude and are not")
    dialect: Share = Field(0.1, description="hold dialect")
    personal: Share = Field(0.1, description="hold personal data")
    unsafe: Share = Field(0.02, description="hold an unsafe passage, harmless in substance")
    exact: Share = Field(0.03, description="of all documents: are exact copies of another")
    near: Share = Field(0.06, description="of all documents: are near copies of another")

    @field_validator("maligned")
    @classmethod
    def _peoples(cls, shares: dict[str, float]) -> dict[str, float]:
        return _known(shares, town_lexicon(), "people")

    @field_validator("women")
    @classmethod
    def _occupations(cls, shares: dict[str, float]) -> dict[str, float]:
        return _known(shares, town_jobs(), "occupation")


def _known(shares: dict[str, float], names: Mapping[str, object], what: str) -> dict[str, float]:
    unknown = [name for name in shares if name not in names]
    if unknown:
        raise ValueError(f"the town has no {what} {unknown[0]!r}; it has {', '.join(names)}")
    return shares


@dataclass(frozen=True)
class Register:
    """A kind of text: how often, how many sentences, and what stands between them."""

    weight: int
    shortest: int
    longest: int
    between: str = " "
    first: str = " "  # behind the opening
    ordered: bool = False  # the sentences stand in the order of the rule


REGISTERS = {
    "chronicle": Register(12, 2, 20),
    "letter": Register(17, 2, 18),
    "notice": Register(13, 0, 7),
    "minutes": Register(10, 3, 20, "\n", "\n"),
    "talk": Register(14, 1, 20, "\n", "\n"),
    "recipe": Register(6, 4, 16, " ", "\n", ordered=True),
    "obituary": Register(6, 3, 15),
    "advert": Register(10, 0, 4),
    "essay": Register(8, 3, 15, " ", "\n"),
    "almanac": Register(5, 1, 12),
}

#: Kinds of text in which things are said; where a document holds several, all must agree.
FITS = {
    "groups": ("chronicle", "letter", "notice", "minutes", "talk", "obituary", "essay"),
    "occupations": ("chronicle", "letter", "notice", "minutes", "talk", "obituary", "essay"),
    "rude": ("chronicle", "letter", "notice", "minutes", "talk"),
    "dialect": ("chronicle", "letter", "minutes", "talk", "essay"),
    "personal": ("letter", "notice", "minutes", "talk", "advert"),
    "unsafe": ("chronicle", "letter", "talk", "recipe", "essay"),
}

Opinion = tuple[str, Literal["positive", "negative"]]
#: Gender as the groups of ``identities.json`` are called.
PRONOUNS = {"women": ("she", "her", "her"), "men": ("he", "his", "him")}


@dataclass(frozen=True)
class Truth:
    """What a document holds."""

    kind: str
    groups: tuple[str, ...] = ()
    opinions: tuple[Opinion, ...] = ()
    occupations: tuple[tuple[str, str], ...] = ()  # with the gender of the words beside it
    rude: int = 0  # sentences
    lookalike: bool = False
    dialect: bool = False
    unsafe: bool = False
    personal: tuple[Type, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A sentence with what stands before it; a plain one holds nothing that the truth tells of."""

    said: Said
    before: str = ""
    plain: bool = False


@dataclass(frozen=True)
class Document:
    """A document with its truth. ``copy`` is "", "exact" or "near"."""

    number: int
    truth: Truth
    pieces: tuple[Piece, ...]
    known: dict[str, str]
    copy: str = ""
    copy_of: int | None = None

    @property
    def whole(self) -> Said:
        parts: list[Said] = []
        for piece in self.pieces:
            before = "" if not parts or piece.said.text.startswith("\n") else piece.before
            parts += [Said(before), piece.said]
        return joined(parts)

    @property
    def text(self) -> str:
        return self.whole.text

    @property
    def spans(self) -> tuple[Mark, ...]:
        """Personal data, in characters of the text."""
        return self.whole.marks


# What a document is to hold ----------------------------------------------------------------------


def draw(dice: Dice, rates: Rates) -> Truth:
    """The truth of a document that is no copy."""
    groups: list[str] = []
    opinions: list[Opinion] = []
    if dice.chance(rates.groups):
        groups = dice.sample(list(town_lexicon()), 2 if dice.chance(0.15) else 1)
        if dice.chance(rates.opinions):
            against = rates.maligned.get(groups[0], rates.negative)
            opinions = [(groups[0], "negative" if dice.chance(against) else "positive")]
    occupations: list[tuple[str, str]] = []
    if dice.chance(rates.occupations):
        for job in dice.sample(list(town_jobs()), 2 if dice.chance(0.2) else 1):
            women = rates.women.get(job, town_jobs()[job])
            occupations.append((job, "women" if dice.chance(women) else "men"))
    rude = 1 + dice.below(4) if dice.chance(rates.rude) else 0
    lookalike, dialect = dice.chance(rates.lookalikes), dice.chance(rates.dialect)
    unsafe = dice.chance(rates.unsafe)
    types: list[Type] = []
    if dice.chance(rates.personal):
        types = dice.sample(list(MAKERS), 1 + dice.below(3))
    holds = {"groups": groups, "occupations": occupations, "rude": rude, "dialect": dialect,
             "personal": types, "unsafe": unsafe}  # fmt: skip
    kinds = [k for k in REGISTERS if all(k in FITS[name] for name, has in holds.items() if has)]
    weighted = [kind for kind in kinds for _ in range(REGISTERS[kind].weight)]
    return Truth(
        dice.pick(weighted), tuple(groups), tuple(opinions), tuple(occupations), rude, lookalike,
        dialect, unsafe, tuple(types),
    )  # fmt: skip


# How it is told ----------------------------------------------------------------------------------


def compose(number: int, seed: int, rates: Rates) -> Document:
    """A document that is no copy."""
    dice = Dice(seed, "document", number)
    truth = draw(dice, rates)
    teller = Teller(dice, _people(dice), personal)
    register = REGISTERS[truth.kind]
    span = register.longest - register.shortest + 1
    length = register.shortest + min(dice.below(span), dice.below(span))  # short ones are many
    lines = rules()[f"{truth.kind}.body"]
    chosen = dice.sample(range(len(lines)), length)
    if register.ordered:
        chosen.sort()
    body = [Piece(teller.tell(lines[place]), plain=True) for place in chosen]
    for said in _features(teller, truth):
        if truth.kind == "talk" and not said.text.startswith('"'):
            speaker = dice.pick([teller.known["first"], teller.known["friend"]])
            said = joined([Said(f"{speaker}: "), said])
        body.insert(dice.below(len(body) + 1), Piece(said))
    pieces = [Piece(teller.say(f"{truth.kind}.open")), *body]
    if length > 1 or dice.chance(0.5):
        pieces.append(Piece(teller.say(f"{truth.kind}.close")))
    return Document(number, truth, _set(pieces, register, dice), teller.known)


def _people(dice: Dice) -> dict[str, str]:
    """The words that a document knows: who writes, to whom, in which year."""
    gender = "women" if dice.chance(0.5) else "men"
    first, last = _name(dice, gender), _word(dice, "last")
    friend = _name(dice, "women" if dice.chance(0.5) else "men")
    he, his, him = PRONOUNS[gender]
    year = str(140 + dice.below(160))
    known = {"first": first, "last": last, "name": f"{first} {last}", "friend": friend}
    known |= {"year": year, "crop": _word(dice, "crop"), "month": _word(dice, "month")}
    return known | {"he": he, "his": his, "him": him}


def _name(dice: Dice, gender: str) -> str:
    return _word(dice, "first.f" if gender == "women" else "first.m")


def _word(dice: Dice, rule: str) -> str:
    """One of a rule's words: its lines have no slots."""
    (said,) = dice.pick(rules()[rule])
    assert isinstance(said, Said)
    return said.text


def _features(teller: Teller, truth: Truth) -> list[Said]:
    """The sentences that hold what the truth says."""
    dice, known = teller.dice, teller.known
    found: list[Said] = []
    for group in truth.groups:
        one, several = (word.capitalize() for word in town_lexicon()[group])
        known |= {"group": one, "groups": several}
        opinions = [sign for target, sign in truth.opinions if target == group]
        for sign in opinions:
            found.append(teller.say("praise" if sign == "positive" else "blame"))
        if not opinions or dice.chance(0.5):
            found.append(teller.say("group"))
    own = {name: known[name] for name in ("he", "his", "him")}
    for job, gender in truth.occupations:
        he, his, him = PRONOUNS[gender]
        worker = f"{_name(dice, gender)} {_word(dice, 'last')}"
        known |= {"job": job, "he": he, "his": his, "him": him, "worker": worker}
        found.append(teller.say("job"))
    known |= own
    found += [teller.tell(line) for line in dice.sample(rules()["rude"], truth.rude)]
    found += [teller.say("lookalike")] if truth.lookalike else []
    if truth.dialect:
        found += [teller.tell(line) for line in dice.sample(rules()["dialect"], 2 + dice.below(3))]
    found += [teller.say("unsafe")] if truth.unsafe else []
    return found + [teller.say(kind) for kind in truth.personal]


def _set(pieces: Sequence[Piece], register: Register, dice: Dice) -> tuple[Piece, ...]:
    """The pieces with their separators: a new paragraph every few sentences."""
    found = []
    run = 0
    for place, piece in enumerate(pieces):
        before = register.first if place == 1 else register.between
        run += 1
        if place > 1 and register.between == " " and run > 4 and dice.chance(0.35):
            before, run = "\n\n", 0
        found.append(Piece(piece.said, before, piece.plain))
    return tuple(found)


# Copies ------------------------------------------------------------------------------------------


def exact_copy(number: int, original: Document, seed: int) -> Document:
    """The same text, half of the time in another layout: with other white space."""
    dice = Dice(seed, "exact", number)
    pieces = original.pieces
    if dice.chance(0.5):
        space = dice.pick(["  ", "\n", "\n\n"])
        pieces = tuple(replace(piece, before=space) for piece in pieces)
    return replace(original, number=number, pieces=pieces, copy="exact", copy_of=original.number)


def near_copy(number: int, original: Document, seed: int) -> Document:
    """One to three plain sentences left out, exchanged or added; its truth is the original's."""
    dice = Dice(seed, "near", number)
    teller = Teller(dice, dict(original.known), personal)
    pieces = list(original.pieces)
    for _ in range(1 + dice.below(3)):
        place = dice.pick([i for i, piece in enumerate(pieces) if piece.plain])
        change = dice.below(3)
        if change == 0:
            del pieces[place]
            continue
        other = Piece(teller.say(f"{original.truth.kind}.body"), pieces[place].before, True)
        pieces[place : place + (change == 1)] = [other]
    made = replace(original, number=number, pieces=tuple(pieces), copy_of=original.number)
    same = made.text.split() == original.text.split()  # what was exchanged came back
    return replace(made, copy="exact" if same else "near")


#: A near copy is made of a document with at least so many plain sentences.
LONG = 6


def numbers(block: int, documents: int) -> range:
    """The numbers of the documents of a block, of a town of so many."""
    return range(block * BLOCK, min((block + 1) * BLOCK, documents))


def block(number: int, documents: int, seed: int, rates: Rates) -> list[Document]:
    """The documents of a block, of a town of so many: originals, and copies of some of them."""
    here = numbers(number, documents)
    dice = Dice(seed, "block", number)
    roles = {}
    for n in here:
        exact = dice.chance(rates.exact)
        near = dice.chance(rates.near / (1 - rates.exact)) if rates.exact < 1 else False
        roles[n] = "exact" if exact else "near" if near else ""
    made = {n: compose(n, seed, rates) for n in here if not roles[n]}
    long = [n for n, document in made.items() if sum(p.plain for p in document.pieces) >= LONG]
    near_of = dict(zip([n for n in here if roles[n] == "near"],
                       dice.sample(long, len(long)), strict=False))  # fmt: skip
    taken = set(near_of.values())
    others = [n for n in made if n not in taken]
    exact_of = dict(zip([n for n in here if roles[n] == "exact"],
                        dice.sample(others, len(others)), strict=False))  # fmt: skip
    for n in here:
        if n in near_of:
            made[n] = near_copy(n, made[near_of[n]], seed)
        elif n in exact_of:
            made[n] = exact_copy(n, made[exact_of[n]], seed)
        elif n not in made:  # there are not enough originals
            made[n] = compose(n, seed, rates)
    return [made[n] for n in here]


def similarity(left: str, right: str, words: int = 5) -> float:
    """Jaccard similarity of the sets of shingles of this many words, in lower case."""
    first, second = _shingles(left, words), _shingles(right, words)
    return len(first & second) / len(first | second)


def _shingles(text: str, words: int) -> set[tuple[str, ...]]:
    found = text.lower().split()
    return {tuple(found[i : i + words]) for i in range(max(1, len(found) - words + 1))}
