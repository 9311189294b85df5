"""Generate sentences from a seeded grammar, together with labels for several tasks.

The labels are a translation into a toy language with another word order, a summary of a story, the
part of speech of each word, and which of two animals is bigger. Words such as *guard* are both noun
and verb, so that a word alone does not determine its part of speech. Only the word order
distinguishes the agent from the patient, so that a bag of words does not determine them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

#: Nouns with their translations, from the smallest to the biggest animal.
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
RANK_BY_NOUN = {noun: rank for rank, noun in enumerate(NOUNS)}


#: A word and its part of speech.
TaggedWord = tuple[str, str]


@dataclass(frozen=True)
class Phrase:
    """A noun phrase."""

    definite: bool
    adjective: str | None
    noun: str

    def tag_words(self) -> list[TaggedWord]:
        adjectives = [(self.adjective, "ADJ")] if self.adjective else []
        return [("the" if self.definite else "a", "DET"), *adjectives, (self.noun, "NOUN")]

    def translate(self, case_ending: str) -> list[str]:
        """Return the noun with its ending, then the adjective, then *li* if it is definite."""
        adjectives = [ADJECTIVES[self.adjective]] if self.adjective else []
        return [NOUNS[self.noun] + case_ending, *adjectives, *(["li"] if self.definite else [])]


@dataclass(frozen=True)
class Sentence:
    """A sentence in which an agent does something to a patient, perhaps at a place."""

    agent: Phrase
    verb: str
    patient: Phrase
    place: str | None

    def tag_words(self) -> list[TaggedWord]:
        place = [("in", "ADP"), ("the", "DET"), (self.place, "NOUN")] if self.place else []
        return [*self.agent.tag_words(), (self.verb, "VERB"), *self.patient.tag_words(), *place]

    def to_text(self) -> str:
        return " ".join(word for word, _ in self.tag_words())

    def translate(self) -> str:
        """Translate the sentence: the place is first, the verb last.

        *The cat sees a duck in the garden* becomes *florne miru li vakota keta*.
        """
        place = [PLACES[self.place]] if self.place else []
        return " ".join(
            [*place, *self.agent.translate(""), *self.patient.translate("ta"), VERBS[self.verb]]
        )

    def name_bigger_role(self) -> str:
        """Return "agent" or "patient", depending on which animal is bigger."""
        return (
            "agent"
            if RANK_BY_NOUN[self.agent.noun] > RANK_BY_NOUN[self.patient.noun]
            else "patient"
        )


def generate_phrase(rng: random.Random, noun: str) -> Phrase:
    adjective = rng.choice(list(ADJECTIVES)) if rng.random() < 0.4 else None
    return Phrase(rng.random() < 0.5, adjective, noun)


def generate_sentence(rng: random.Random) -> Sentence:
    agent, patient = rng.sample(list(NOUNS), 2)
    place = rng.choice(list(PLACES)) if rng.random() < 0.4 else None
    return Sentence(
        generate_phrase(rng, agent),
        rng.choice(list(VERBS)),
        generate_phrase(rng, patient),
        place,
    )


def generate_sentences(count: int, seed: int) -> list[Sentence]:
    """Generate distinct sentences."""
    rng = random.Random(seed)
    sentences: dict[str, Sentence] = {}
    while len(sentences) < count:
        sentence = generate_sentence(rng)
        sentences[sentence.to_text()] = sentence
    return list(sentences.values())


class Story(NamedTuple):
    """A story of three sentences about one animal, and a summary of what it does."""

    text: str
    summary: str


def generate_story(rng: random.Random) -> Story:
    parts = [generate_sentence(rng) for _ in range(3)]
    agent = parts[0].agent
    sentences = [parts[0].to_text()]
    for part in parts[1:]:
        after_agent = [word for word, _ in part.tag_words()][len(part.agent.tag_words()) :]
        sentences.append(" ".join(["it", *after_agent]))
    actions = [f"{part.verb} {part.patient.noun}" for part in parts]
    return Story(" . ".join(sentences) + " .", f"{agent.noun} {', '.join(actions)}")


def generate_stories(count: int, seed: int) -> list[Story]:
    """Generate distinct stories."""
    rng = random.Random(seed)
    stories: dict[str, Story] = {}
    while len(stories) < count:
        story = generate_story(rng)
        stories[story.text] = story
    return list(stories.values())
