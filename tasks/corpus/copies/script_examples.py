"""Invent texts in many scripts, and near-duplicates of them, to measure the search for these.

A text is made of random words, drawn with the frequencies of Zipf's law from an invented vocabulary
of its script. Words are separated as in that script: by spaces, by the tsheg of Tibetan, or not at
all. The texts mean nothing; only their letters, their words and the borders between words matter to
the search.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

PAIRS_PER_SCRIPT = 40
VOCABULARY_SIZE = 800

#: Zero-width space; some texts have it between words, where others have nothing.
ZERO_WIDTH_SPACE = "\u200b"


@dataclass(frozen=True)
class Script:
    """Describe how texts of a script are written.

    Attributes:
        initials: Letters or syllables with which a syllable begins.
        finals: Vowel signs or letters that follow; "" means none.
        word_separator: What stands between two words.
        sentence_end: What stands at the end of a sentence.
    """

    initials: str
    finals: tuple[str, ...]
    word_separator: str = " "
    sentence_end: str = ". "


def _list_characters(first: int, last: int) -> str:
    return "".join(map(chr, range(first, last + 1)))


#: The scripts of the table, by name. Korean, Chinese and Japanese stand for their mixed scripts.
SCRIPTS = {
    "Latin": Script("bcdfghjklmnprstvwz", ("a", "e", "i", "o", "u", "ä", "é", "an", "er", "ing")),
    "Greek": Script(_list_characters(0x3B2, 0x3C1), ("α", "ε", "η", "ι", "ο", "ου", "ας")),
    "Cyrillic": Script(_list_characters(0x43A, 0x444), ("а", "е", "и", "о", "у", "ый", "ов")),
    "Arabic": Script(_list_characters(0x628, 0x63A), ("", "ا", "و", "ي", "ين")),
    "Hebrew": Script(_list_characters(0x5D0, 0x5E8), ("", "ו", "י", "ים")),
    "Devanagari": Script(
        _list_characters(0x915, 0x939), ("", "ा", "ि", "ी", "े", "ो", "्य"), " ", "। "
    ),
    "Bengali": Script(_list_characters(0x995, 0x9A8), ("", "া", "ি", "ে", "ো"), " ", "। "),
    "Tamil": Script("கஙசஞடணதநபமயரலவழளறன", ("", "ா", "ி", "ு", "ை", "்")),
    "Ethiopic": Script(_list_characters(0x1208, 0x1246), ("", "ን", "ት"), " ", "። "),
    "Korean": Script(_list_characters(0xAC00, 0xACFF), ("", "는", "다", "의")),
    "Chinese": Script(_list_characters(0x4E00, 0x50FF), ("",), "", "。"),
    "Japanese": Script(
        _list_characters(0x5200, 0x53FF), ("", "の", "は", "です", "カー"), "", "。"
    ),
    "Thai": Script(_list_characters(0xE01, 0xE2E), ("า", "ี", "ุ้", "ัน", "่อง"), "", " "),
    "Lao": Script("ກຂຄງຈຊຍດຕຖທນບປຜຝພຟມຢຣລວສຫອຮ", ("າ", "ີ", "ຸ", "ັນ", "່ອງ"), "", " "),
    "Khmer": Script(_list_characters(0x1780, 0x17A2), ("", "ា", "ិ", "ុ", "្រី", "ាំ"), "", "។ "),
    "Burmese": Script(_list_characters(0x1000, 0x1020), ("", "ာ", "ိ", "ု", "ျ", "န်"), "", "။ "),
    "Tibetan": Script(
        _list_characters(0xF40, 0xF42) + "ངཅཆཇཉཏཐདནཔཕབམཙཚཛཞཟའཡརལཤསཧ",
        ("", "ི", "ུ", "ེ", "ོ", "ང", "ྱ"),
        "་",
        "།",
    ),
}


class NearCopy(NamedTuple):
    """Hold an invented text and a near-duplicate of it."""

    script_name: str
    original: str
    copy: str


#: A sentence, as words.
_Sentence = list[str]


class _TextWriter:
    """Compose sentences of a script and join them to texts."""

    def __init__(self, script: Script, rng: random.Random) -> None:
        self.script, self.rng = script, rng
        words: dict[str, None] = {}  # ordered, so that the draw does not depend on hash values
        while len(words) < VOCABULARY_SIZE:
            words[self._compose_word()] = None
        self.words = list(words)
        self.cumulative_weights = list(
            accumulate(1 / rank for rank in range(1, VOCABULARY_SIZE + 1))
        )

    def _compose_word(self) -> str:
        return "".join(
            self.rng.choice(self.script.initials) + self.rng.choice(self.script.finals)
            for _ in range(self.rng.randint(1, 3))
        )

    def draw_words(self, count: int) -> list[str]:
        return self.rng.choices(self.words, cum_weights=self.cumulative_weights, k=count)

    def compose_sentence(self) -> _Sentence:
        return self.draw_words(self.rng.randint(8, 16))

    def join_sentences(self, sentences: list[_Sentence]) -> str:
        return "".join(
            self.script.word_separator.join(words) + self.script.sentence_end for words in sentences
        ).strip()


def _replace_sentence(writer: _TextWriter, sentences: list[_Sentence]) -> str:
    place = writer.rng.randrange(len(sentences))
    return writer.join_sentences(
        [*sentences[:place], writer.compose_sentence(), *sentences[place + 1 :]]
    )


def _replace_words(writer: _TextWriter, sentences: list[_Sentence]) -> str:
    """Replace one word of 100, but at least one."""
    copied = [list(words) for words in sentences]
    places = [(i, j) for i, words in enumerate(copied) for j in range(len(words))]
    for i, j in writer.rng.sample(places, max(1, round(len(places) / 100))):
        copied[i][j] = writer.rng.choice([word for word in writer.words if word != copied[i][j]])
    return writer.join_sentences(copied)


def _change_layout(writer: _TextWriter, sentences: list[_Sentence]) -> str:
    """Break the line after one word of five; without spaces, or put a zero-width space there."""
    separator = writer.script.word_separator
    breaks = ["\n"] if separator == " " else [f"{separator}\n", f"{separator}{ZERO_WIDTH_SPACE}"]
    text = ""
    for words in sentences:
        for word in words[:-1]:
            is_changed = writer.rng.random() < 0.2
            text += word + (writer.rng.choice(breaks) if is_changed else separator)
        text += words[-1] + writer.script.sentence_end
    return text.strip()


#: How a near-duplicate differs from its original, by the name of the change.
CHANGES = {
    "a sentence replaced": _replace_sentence,
    "words replaced": _replace_words,
    "layout changed": _change_layout,
}


def invent_near_copies(change: str, pairs_per_script: int = PAIRS_PER_SCRIPT) -> Iterator[NearCopy]:
    """Invent texts of 16 to 20 sentences in each script, with a near-duplicate of each.

    Args:
        change: A key of CHANGES.
        pairs_per_script: Number of texts in each script.
    """
    for script_name, script in SCRIPTS.items():
        writer = _TextWriter(script, random.Random(f"{script_name}, {change}"))
        for _ in range(pairs_per_script):
            sentences = [writer.compose_sentence() for _ in range(writer.rng.randint(16, 20))]
            yield NearCopy(
                script_name, writer.join_sentences(sentences), CHANGES[change](writer, sentences)
            )
