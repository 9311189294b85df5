"""Test that look-alikes of Latin letters are folded, and that other text stays as it is."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.measures.lookalikes import (
    _load_close_lookalikes,
    _load_letter_variants,
    _load_lookalikes,
    fold_lookalikes,
)
from tests.tasks.measures.test_languages import TEXTS

FOLDED = {
    "ｆｏｏｌ， ｙｏｕ！": "fool， you！",  # full-width
    "𝐟𝐨𝐨𝐥 𝓯𝓸𝓸𝓵 𝕗𝕠𝕠𝕝 𝖋𝖔𝖔𝖑 𝚏𝚘𝚘𝚕 ℱ": "fool fool fool fool fool F",  # mathematical
    "ⓕⓞⓞⓛ ⒡⒪⒪⒧ 🄵🄾🄾🄻 🅕🅞🅞🅛 🅵🅾🅾🅻": "fool fool FOOL FOOL FOOL",  # enclosed
    "ꜰᴏᴏʟ ᶠᵒᵒˡ": "fool fool",  # small capitals, superscripts
    "ﬀ oﬃce": "ff office",  # ligatures
    "f\u00ado\u200bo\u2060l f\u202eo\u2066o\ufeffl": "fool fool",  # invisible characters
    "f\u200do\u200col": "fool",  # joiners
    "f\u0334o\u0335o\u0336l\u0337 i\u0338t": "fool it",  # struck through
    "ninelette ж а": "ninelette ж a",  # nine tenths of the other letters are Latin
    "fооl fοοl fօօl": "fool fool fool",  # Cyrillic, Greek, Armenian
    "уоu аrе а реасе": "you are a peace",  # whole words in a text that is mostly Latin
    "ІDІОТ ΙDIOT": "IDIOT IDIOT",
    "вitch ѕhіт": "bitch shit",  # look-alikes of small capitals
    "nаïvе": "naïve",
}

UNCHANGED = [
    *TEXTS.values(),
    "",
    "naïve ſtraße ĳsje Łódź ışık ª º ǆep",
    "Cегодня Вася купил iPhone и USB-кабель.",  # a Latin C in a Russian word
    "Он не там, а тут: Windows и Linux, а не Mac.",
    "а сор",
    "eightlet ж а",
    "f\u0333o\u0339ol",
    "сор",
    "10² μm ½ … 20 €",
    "می\u200cخواهم",
    "क्\u200dष",
    "👩\u200d💻 ❤\ufe0f",
    "今天 T恤 卡拉OK",
]


@pytest.mark.parametrize(("text", "folded"), FOLDED.items())
def test_variants_and_lookalikes_are_folded(text, folded):
    assert fold_lookalikes(text) == folded
    assert fold_lookalikes(folded) == folded


@pytest.mark.parametrize("text", UNCHANGED)
def test_other_text_is_unchanged(text):
    assert fold_lookalikes(text) == text


@given(st.text())
def test_folding_is_idempotent_and_leaves_ascii(text):
    folded = fold_lookalikes(text)
    assert fold_lookalikes(folded) == folded
    assert [c for c in folded if c.isspace()] == [c for c in text if c.isspace()]


words = st.text(string.ascii_letters, min_size=2, max_size=12)


@given(st.lists(words, min_size=1, max_size=8), st.data())
def test_a_disguised_text_is_folded_to_the_text(plain_words, data):
    """Any letter may be replaced by a variant; of each word one letter stays as it is."""
    disguises = {
        letter: [
            letter,
            *(c for c, variant in _load_letter_variants().items() if variant == letter),
        ]
        for letter in string.ascii_letters
    }
    for c, letter in _load_lookalikes().items():
        disguises[letter].append(c)
    disguised = [
        word[0] + "".join(data.draw(st.sampled_from(disguises[letter])) for letter in word[1:])
        for word in plain_words
    ]
    assert fold_lookalikes(" ".join(disguised)) == " ".join(plain_words)


def test_each_lookalike_is_a_letter_that_becomes_one_ascii_letter():
    for characters in (_load_lookalikes(), _load_close_lookalikes()):
        assert len(characters) > 300
        for character, letter in characters.items():
            assert character.isalpha() and not character.isascii()
            assert letter in string.ascii_letters
    assert _load_close_lookalikes().items() <= _load_lookalikes().items()
