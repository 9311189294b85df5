"""Test that look-alikes of Latin letters are folded, and that other text stays as it is."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.measures.lookalikes import (
    _RARE_CHARACTER,
    RESEMBLING_LETTERS,
    _list_combining_marks,
    _load_close_lookalikes,
    _load_letter_variants,
    _load_lookalikes,
    fold_accents,
    fold_lookalikes,
    join_spaced_letters,
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
    "fo\u200dol": "fool",
    "fo\u200col": "fool",
    "f\u206fo\u2069ol": "fool",
    "f\u115fo\u1160o\u3164l\uffa0": "fool",  # fillers of Hangul
    "f\u0334o\u0335o\u0336l\u0337 i\u0338t": "fool it",  # struck through
    "ninelette ж а": "ninelette ж a",  # nine tenths of the other letters are Latin
    "fооl fοοl fօօl": "fool fool fool",  # Cyrillic, Greek, Armenian
    "уоu аrе а реасе": "you are a peace",  # whole words in a text that is mostly Latin
    "ІDІОТ ΙDIOT": "IDIOT IDIOT",
    "вitch ѕhіт": "bitch shit",  # look-alikes of small capitals
    "nаïvе": "naïve",
    "f\u0333o\u0339ol": "fool",  # underlined
    "Z\u0353a\u0353l\u0353g\u0353o\u0353": "Zalgo",
    "i\u0301d\u0353i\u0300\u0301o\u0308t": "idiot",  # accents among other marks
    "f\u0e47u\u0651c\ufe0fk\u20dd": "fuck",  # signs of other scripts, and a circle
    "а\u0353nd sо\u0353me more text": "and some more text",  # marks on look-alikes
    "cafe\u0301 na\u0308ive": "café näive",  # accents of two code points
    "a cafe\u0301 and a b\u0353lue house by the sea": "a café and a blue house by the sea",
    "fuскiпg stuкк fuckiηg drиnк": "fucking stukk fucking drunk",  # letters that resemble
    "пope": "nope",
    "workпкпк": "worknknk",  # half of the letters are Latin
    "Яush": "Rush",
    "ωork": "work",
}

UNCHANGED = [
    *TEXTS.values(),
    "",
    "naïve ſtraße ĳsje Łódź ışık ª º ǆep",
    "Cегодня Вася купил iPhone и USB-кабель.",  # a Latin C in a Russian word
    "Он не там, а тут: Windows и Linux, а не Mac.",
    "а сор",
    "eightlet ж а",
    "сор",
    "лю́ди ле́са",
    "ẹ̀tọ́ kọ̀ọ̀kan".replace("\u0300", "").replace("\u0301", ""),
    "кпкop",  # two of five letters are Latin
    "Яндекс",
    "пк",
    "fфф",
    "10² x⁰ μm ½ … 20 €",
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


@pytest.mark.parametrize(
    "characters",
    [
        "\xad\u180e\u200b\u200e\u200f",
        "\u202a\u202b\u202c\u202d\u202e",
        "".join(map(chr, range(0x2060, 0x2070))),
        "\ufeff\u115f\u1160\u3164\uffa0",
        "".join(map(chr, range(0x334, 0x339))),
    ],
)
def test_each_invisible_character_is_removed(characters):
    assert fold_lookalikes("".join(f"{character}x" for character in characters)) == "x" * len(
        characters
    )


@pytest.mark.parametrize("character", "\xae\u2010\u2029\u202f\u205f\u2070\ufefc\u1161\u3165\uff9f")
def test_neighbours_of_invisible_characters_are_kept(character):
    assert fold_lookalikes(f"fo{character}ol") == f"fo{character}ol"


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


def test_letters_that_only_resemble_are_no_lookalikes():
    assert not RESEMBLING_LETTERS.keys() & _load_lookalikes().keys()


def test_marks_of_a_language_that_uses_them_leave_its_accents():
    """Yoruba has marks that Unicode does not compose, on a tenth of its letters."""
    text = "Gbogbo ènìyàn ni a bí ní òmìnira; iyì àti ẹ̀tọ́ kọ̀ọ̀kan sì dọ́gba."
    assert fold_lookalikes(text) == (
        "Gbogbo ènìyàn ni a bí ní òmìnira; iyì àti ẹtọ kọọkan sì dọgba."
    )


def test_marks_on_a_fifth_of_the_letters_are_a_disguise():
    assert fold_lookalikes("f\u0353oöl x") == "fool x"
    assert fold_lookalikes("f\u0353oöl xy") == "foöl xy"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("You fückïng ïdïöt, you piece of shït", "You fucking idiot, you piece of shit"),
        ("FÜCK ÇÑ Ø ƒøøł ŧħïş À", "FUCK CN O fool this A"),
        ("aßhole ẞ ıdıot ǽ Æ œ Œ ſhit ªº", "asshole SS idiot ǽ AE oe OE shit ao"),
        ("ṩḥịṭ ẖ", "shit h"),
        ("сор ёж 今天 שלום", "сор ёж 今天 שלום"),
        ("fool", "fool"),
        ("", ""),
    ],
)
def test_accents_are_folded(text, folded):
    assert fold_accents(text) == folded


@given(st.text())
def test_folding_of_accents_is_idempotent(text):
    folded = fold_accents(text)
    assert fold_accents(folded) == folded


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("f u c k", "fuck"),
        ("f.u.c.k, y-o-u, s_h_i_t! a*s*s", "fuck, you, shit! ass"),
        ("Y o u   a r e   d u m b", "You   a re are   dumb"),
        ("what a f o o l you are", "what a fool afool you are"),
        ("I a m a b c", "I amabc Iamabc"),
        ("A.b.c", "Abc"),
        ("a-s-s", "ass"),
        ("x y", "x y"),
        ("x y z d2", "xyz d2"),
        ("2a b c", "2a b c"),
        ("f u-c k", "f u-c k"),
        ("f . u . c . k", "fuck"),
        ("f\u00a0u\u00a0c\u00a0k", "fuck"),
        ("f  u  c  k   y   o   u", "fuck   you"),
        ("f, u, c, k", "fuck"),
        ("f    u    c", "f    u    c"),
        ("f -- u -- c", "f -- u -- c"),
        ("f_o_o", "foo"),
        ("x_y_z1", "x_y_z1"),
        ("J. R. R. Tolkien, e.g. in the U.S.A.", "JRR. Tolkien, e.g. in the USA."),
        ("1 2 3 4", "1 2 3 4"),
        ("f\nu\nc", "f\nu\nc"),
        ("д у р а к", "дурак"),
        ("", ""),
    ],
)
def test_spaced_letters_are_joined(text, joined):
    assert join_spaced_letters(text) == joined


@given(words, st.sampled_from([*" .,*_|/~+=·•-\u00a0", " - ", ", ", "  ", "\t"]))
def test_a_spaced_word_is_joined(word, separator):
    text = f"the {separator.join(word + 'xy')}, there"
    assert word + "xy" in join_spaced_letters(text)


def test_each_character_that_may_be_folded_is_rare():
    """A text without rare characters is not searched for others."""
    for characters in (
        _load_letter_variants(),
        _load_lookalikes(),
        RESEMBLING_LETTERS,
        _list_combining_marks(),
        "\u200c\u200d",
    ):
        assert all(_RARE_CHARACTER.match(character) for character in characters)
