"""Test language detection on texts written for this test."""

from __future__ import annotations

import base64
import hashlib
import uuid

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.measures.languages import (
    LANGUAGES_BY_SCRIPT,
    UNDETERMINED,
    _list_segments,
    detect_languages,
    estimate_languages,
    mark_texts_in_scripts_of,
)

TEXTS = {
    "en": "A letter came this morning; nobody in the house knew who had written it.",
    "de": "Heute Morgen kam ein Brief, und niemand im Haus wusste, wer ihn geschrieben hatte.",
    "fr": "Une lettre est arrivée ce matin ; personne dans la maison ne savait qui l'avait écrite.",
    "es": "Esta mañana llegó una carta y nadie en la casa sabía quién la había escrito.",
    "tr": "Bu sabah bir mektup geldi; evde hiç kimse onu kimin yazdığını bilmiyordu.",
    "ru": "Сегодня утром пришло письмо, и никто в доме не знал, кто его написал.",
    "ar": "وصلت رسالة هذا الصباح ولم يعرف أحد في البيت من كتبها.",
    "zh": "今天早上来了一封信，家里没有人知道是谁写的。",
    "ja": "今朝、手紙が届きましたが、家の誰も差出人を知りませんでした。",
}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_languages_of_texts_are_detected_in_order(kind: pa.DataType) -> None:
    column = pa.array(["skipped", *TEXTS.values()], kind)[1:]  # A slice has an offset.
    assert detect_languages(column).to_pylist() == list(TEXTS)
    assert detect_languages(pa.chunked_array([column, column])).to_pylist() == [*TEXTS, *TEXTS]


def test_short_texts_are_undetermined() -> None:
    short = pa.array(["", " ", "ok", "No.", "12:30", "x = y"])
    assert set(detect_languages(short).to_pylist()) == {UNDETERMINED}
    assert detect_languages(pa.array([], pa.large_string())).type == pa.string()


def test_no_more_than_the_given_number_of_characters_is_read() -> None:
    long = "ж" * 50 + TEXTS["fr"] + "ж" * 50
    middle = long[(len(long) - 1) // 2]
    estimates = [estimate_languages(pa.array([text]), 1) for text in (long, middle, "ж")]
    assert estimates[0] == estimates[1] != estimates[2]
    assert estimate_languages(pa.array([TEXTS["fr"] * 9]), 400)[0].to_pylist() == ["fr"]


def make_text(language: str, characters: int) -> str:
    text = TEXTS[language] + " "
    return (text * (characters // len(text) + 1))[:characters]


MENU = (
    "Deutsch Français Español Italiano Português Nederlands Polski Čeština Magyar Română Türkçe "
    "Русский Українська 日本語 中文 한국어 العربية עברית हिन्दी ไทย\n"
)
HASHES = [hashlib.sha256(bytes([n])).hexdigest() for n in range(8)]
CODES = {
    "hashes": "\n".join(HASHES[:4]) + "\n",
    "capital hashes": "\n".join(HASHES[:4]).upper() + "\n",
    "sums": "".join(f"{digits[:32]}  {number}.bin\n" for number, digits in enumerate(HASHES)),
    "bytes": "\n".join(bytes.fromhex(digits).hex(" ") for digits in HASHES[:4]) + "\n",
    "numbers": " ".join(f"0x{digits[:8]}," for digits in HASHES * 2) + "\n",
    "dump": "".join(
        f"{16 * row:08x}: {bytes.fromhex(digits[:32]).hex(' ', 2)}\n"
        for row, digits in enumerate(HASHES)
    ),
    "Base64": base64.b64encode(bytes.fromhex("".join(HASHES))).decode() + "\n",
    "identifiers": "\n".join(str(uuid.UUID(digits[:32])) for digits in HASHES) + "\n",
    "quoted": " ".join(f"'{digits[:16]}'," for digits in HASHES * 2) + "\n",
    "colours": " ".join(f"#{digits[:6]};" for digits in HASHES * 3) + "\n",
    "addresses": "".join(f"%{digits[:2]}" for digits in HASHES * 20) + "\n",
    "rules": "#" * 70 + "\n" + "=" * 70 + "\n",
}
ADDRESSES = "https://example.org/" + "a" * 40 + " www.example.org/b?c=d e.f+g@example.org "


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize(
    "beginning",
    [
        *(
            "",
            MENU,
            ADDRESSES * 4,
            "1 2 3 4 5 6 7 8 9 " * 20,
            make_text("tr", 250),
            "= - * | " * 40,
        ),
        *(CODES[kind] * 2 for kind in CODES),
    ],
    ids=["none", "menu", "addresses", "digits", "turkish", "marks", *CODES],
)
@pytest.mark.parametrize("characters", [600, 900, 1500, 20_000])
def test_the_beginning_does_not_decide_for_the_text(language, beginning, characters) -> None:
    text = beginning + make_text(language, max(characters, 2 * len(beginning)))
    assert detect_languages(pa.array([text])).to_pylist() == [language]


@pytest.mark.parametrize("shares", [(0.3, 0.7), (0.7, 0.3)])
def test_the_language_of_most_segments_is_that_of_the_text(shares) -> None:
    text = make_text("fr", int(5000 * shares[0])) + make_text("en", int(5000 * shares[1]))
    (code,), (probability,) = estimate_languages(pa.array([text]))
    assert code.as_py() == ("fr" if shares[0] > 0.5 else "en")
    assert 0.5 < probability.as_py() <= 0.8


def test_two_segments_of_five_do_not_decide() -> None:
    text = "".join(make_text(language, 1000) for language in ("en", "en", "fr", "fr", "en"))
    (code,), (probability,) = estimate_languages(pa.array([text]))
    assert code.as_py() == "en" and 0.5 < probability.as_py() <= 0.6


def test_reading_stops_if_more_than_half_of_the_segments_are_in_one_language() -> None:
    text = "".join(make_text(language, 1000) for language in ("fr", "en", "en", "en", "fr"))
    (code,), (probability,) = estimate_languages(pa.array([text]))
    assert code.as_py() == "en" and probability.as_py() > 0.9


def test_a_text_in_three_languages_is_undetermined() -> None:
    text = "".join(make_text(language, 2000) for language in ("ru", "en", "zh"))
    (_,), (probability,) = estimate_languages(pa.array([text]))
    assert probability.as_py() < 0.5
    assert detect_languages(pa.array([text])).to_pylist() == [UNDETERMINED]


def test_segments_cover_a_text_evenly_with_the_middle_first() -> None:
    assert _list_segments("", 1000) == [""]
    assert _list_segments("a" * 599, 1000) == ["a" * 599]
    assert _list_segments("a" * 200 + "b" * 200 + "c" * 200, 1000) == [
        letter * 200 for letter in "bca"
    ]
    text = "".join(letter * 1000 for letter in "abcde")
    assert _list_segments(text, 1000) == [letter * 200 for letter in "cdbea"]
    assert _list_segments(text, 10) == ["c" * 10]
    assert [len(segment) for segment in _list_segments(text, 10**6)] == [1000] * 5
    assert [len(segment) for segment in _list_segments("a" * 999, 1000)] == [333] * 3


DISGUISES = {
    "full-width": lambda text: "".join(
        chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text
    ),
    "mathematical": lambda text: "".join(
        chr(0x1D41A + ord(c) - 97) if "a" <= c <= "z" else c for c in text
    ),
    "Cyrillic": lambda text: text.translate(str.maketrans("aeopcx", "аеорсх")),
    "invisible": lambda text: text.replace("e", "e\u200b"),
    "marked": lambda text: "".join(c + "\u0353" if c.isalpha() else c for c in text),
    "accented": lambda text: "".join(c + "\u0301\u0324" if c.isalpha() else c for c in text),
    "spaced": lambda text: "   ".join(" ".join(word) for word in text.split()),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_disguised_letters_do_not_change_the_language(disguise) -> None:
    text = DISGUISES[disguise](make_text("en", 700))
    assert detect_languages(pa.array([text, text[:150]])).to_pylist() == ["en", "en"]


@pytest.mark.parametrize(
    ("languages", "text", "expected"),
    [
        (("en",), "Y0u 1d10t", True),
        (("en",), "ёж", False),
        (("en",), "ёж ab", True),
        (("en",), "ёж a", False),
        (("en",), "12:30 🖕", True),
        (("en",), "", True),
        (("en",), DISGUISES["full-width"]("idiot"), True),
        (("en",), "іdіоt", True),
        (("ru",), "ёж", True),
        (("ru",), "idiot", False),
        (("ru", "en"), "idiot", True),
        (("sr",), "idiot", True),
        (("sr",), "ёж", True),
        (("ja",), "今朝、手紙が", True),
        (("zh",), "手ががが", False),
        (("la",), "idiot", True),
    ],
)
def test_texts_in_the_scripts_of_languages_are_marked(languages, text, expected) -> None:
    for kind in (pa.string(), pa.large_string()):
        marks = mark_texts_in_scripts_of(languages, pa.array([text, "ж", text], kind))
        assert [mark.as_py() for mark in marks][::2] == [expected, expected]


def test_each_script_of_a_language_is_known_to_the_matcher() -> None:
    known = {code for codes in LANGUAGES_BY_SCRIPT.values() for code in codes.split()}
    for code in known:
        assert mark_texts_in_scripts_of((code,), pa.array(["1"])).to_pylist() == [True]
    for code, text in TEXTS.items():
        assert mark_texts_in_scripts_of((code,), pa.array([text])).to_pylist() == [True]


@given(st.text(max_size=3000), st.integers(1, 3000))
def test_segments_are_parts_of_the_text(text: str, max_characters: int) -> None:
    segments = _list_segments(text, max_characters)
    assert all(segment in text for segment in segments)
    assert len(segments) in (1, 3, 5)
    total = sum(map(len, segments))
    assert min(len(text), max_characters) <= total < max_characters + 5 or total == len(text)


@pytest.mark.parametrize("language", ["en", "de", "ru", "zh"])
@pytest.mark.parametrize("kind", CODES)
def test_lines_of_codes_do_not_vote(language, kind) -> None:
    """Codes before, after and around a short text, and most of a long one."""
    code, text = CODES[kind], TEXTS[language]
    texts = [code + text, f"{text}\n{code}", f"{code}{text}\n{code}", code * 9 + text * 20]
    assert set(detect_languages(pa.array(texts)).to_pylist()) == {language}


@pytest.mark.parametrize("kind", [kind for kind in CODES if kind != "rules"])
def test_a_text_of_codes_has_no_language(kind) -> None:
    codes = detect_languages(pa.array([CODES[kind] * 3, CODES[kind] * 30]))
    assert pc.is_in(codes, pa.array([UNDETERMINED, "zxx"])).to_pylist() == [True, True]


@pytest.mark.parametrize(
    "word", ["year2023", "1234567", "dad", "covid-19", "ab12 cd34 ef56", "a-b-c-d"]
)
def test_words_with_digits_do_not_change_a_language(word) -> None:
    assert detect_languages(pa.array([f"{word} {TEXTS['fr']} {word}"])).to_pylist() == ["fr"]


@pytest.mark.parametrize(
    "address",
    ["https://strand.example/strand/abend", "www.strand.example/abend", "brief@abend.example"],
)
def test_each_kind_of_address_is_left_out(address) -> None:
    estimates = [
        estimate_languages(pa.array([text])) for text in (f"{address} {TEXTS['fr']}", TEXTS["fr"])
    ]
    assert estimates[0][0] == estimates[1][0]
    no_words = estimate_languages(pa.array([f"{address} " * 12]))
    assert no_words[0] == estimate_languages(pa.array([" "]))[0]
