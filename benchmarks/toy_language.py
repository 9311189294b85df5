"""Invented sentences from a seeded grammar, with what they mean: a translation into a toy language
of another word order, a summary of a story, the part of speech of each word, and who is the bigger.

Words such as *guard* are noun and verb, so that a word alone does not say what it is; who does what
to whom is said by the order alone, so that a bag of words does not know it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Nouns, the smallest first.
NOUNS = {
    "ant": "timi",
    "mouse": "pini",
    "fish": "sulo",
    "duck": "vako",
    "cat": "miru",
    "fox": "talo",
    "guard": "hobe",
    "deer": "lanu",
    "horse": "roga",
    "bear": "buva",
}
VERBS = {
    "sees": "keta",
    "likes": "momi",
    "guard": "zido",
    "hears": "nalu",
    "fish": "peko",
    "follows": "wera",
    "duck": "josu",
    "finds": "fida",
}
ADJECTIVES = {"old": "gra", "young": "ipi", "red": "rosa", "blue": "bela", "quiet": "shu"}
PLACES = {"garden": "florne", "river": "akvane", "forest": "silne", "town": "urbne"}
SIZE = {noun: size for size, noun in enumerate(NOUNS)}


@dataclass(frozen=True)
class Phrase:
    definite: bool
    adjective: str | None
    noun: str

    def words(self) -> list[tuple[str, str]]:
        """Each word with its part of speech."""
        middle = [(self.adjective, "ADJ")] if self.adjective else []
        return [("the" if self.definite else "a", "DET"), *middle, (self.noun, "NOUN")]

    def toy(self, case: str) -> list[str]:
        """The noun with its case's ending, then the adjective, then *li* where it is definite."""
        adjective = [ADJECTIVES[self.adjective]] if self.adjective else []
        return [NOUNS[self.noun] + case, *adjective, *(["li"] if self.definite else [])]


@dataclass(frozen=True)
class Sentence:
    agent: Phrase
    verb: str
    patient: Phrase
    place: str | None

    def words(self) -> list[tuple[str, str]]:
        where = [("in", "ADP"), ("the", "DET"), (self.place, "NOUN")] if self.place else []
        return [*self.agent.words(), (self.verb, "VERB"), *self.patient.words(), *where]

    def text(self) -> str:
        return " ".join(word for word, _ in self.words())

    def toy(self) -> str:
        """The place first, the verb last: *in the garden the cat sees a duck* has become *florne
        miru li vakota keta*."""
        where = [PLACES[self.place]] if self.place else []
        return " ".join([*where, *self.agent.toy(""), *self.patient.toy("ta"), VERBS[self.verb]])

    def bigger(self) -> str:
        """Which of the two is the bigger one."""
        return "agent" if SIZE[self.agent.noun] > SIZE[self.patient.noun] else "patient"


def phrase(draw: random.Random, noun: str) -> Phrase:
    adjective = draw.choice(list(ADJECTIVES)) if draw.random() < 0.4 else None
    return Phrase(draw.random() < 0.5, adjective, noun)


def sentence(draw: random.Random) -> Sentence:
    agent, patient = draw.sample(list(NOUNS), 2)
    place = draw.choice(list(PLACES)) if draw.random() < 0.4 else None
    return Sentence(phrase(draw, agent), draw.choice(list(VERBS)), phrase(draw, patient), place)


def sentences(count: int, seed: int) -> list[Sentence]:
    """Different sentences."""
    draw = random.Random(seed)
    found: dict[str, Sentence] = {}
    while len(found) < count:
        made = sentence(draw)
        found[made.text()] = made
    return list(found.values())


def story(draw: random.Random) -> tuple[str, str]:
    """A story of three sentences about one animal, and its summary: who, and what it does."""
    parts = [sentence(draw) for _ in range(3)]
    agent = parts[0].agent
    told = [parts[0].text()]
    for part in parts[1:]:
        rest = [word for word, _ in part.words()][len(part.agent.words()) :]
        told.append(" ".join(["it", *rest]))
    does = [f"{part.verb} {part.patient.noun}" for part in parts]
    return " . ".join(told) + " .", f"{agent.noun} {', '.join(does)}"


def stories(count: int, seed: int) -> list[tuple[str, str]]:
    """Different stories with their summaries."""
    draw = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        text, summary = story(draw)
        found[text] = summary
    return list(found.items())
