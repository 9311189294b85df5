"""Test language detection on texts written for this test."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hallmark.tasks.measures.languages import UNDETERMINED, detect_languages, estimate_languages

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


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    long = TEXTS["fr"] * 100 + TEXTS["ru"] * 1000
    assert detect_languages(pa.array([long])).to_pylist() == ["fr"]
    codes, _ = estimate_languages(pa.array([long, "ж" + long, "ж", ""]), 1)
    assert codes[0] == codes[3] != codes[1] == codes[2]  # With one character and with none.
