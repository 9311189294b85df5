"""Test which declared encodings are replaced by the detected one, and that right ones are not."""

import time

import pytest

from hallmark.tasks.corpus.reading.charsets import (
    LATIN_ENCODINGS,
    OTHER_ENCODINGS,
    find_contradicting_encoding,
)
from hallmark.tasks.corpus.reading.web_pages import decode_page, detect_encodings

RUSSIAN = "Совет собрался во вторник вечером, чтобы обсудить новый мост. Жители были против."
GREEK = "Το συμβούλιο συνεδρίασε την Τρίτη το βράδυ για να συζητήσει τη νέα γέφυρα."
HEBREW = "המועצה התכנסה ביום שלישי בערב כדי לדון בגשר החדש מעל הנהר."
ARABIC = "اجتمع المجلس مساء الثلاثاء لمناقشة الجسر الجديد فوق النهر."
THAI = "สภาประชุมกันเมื่อเย็นวันอังคารเพื่อหารือเรื่องสะพานใหม่ข้ามแม่น้ำ"
GERMAN = (
    "Der Stadtrat traf sich am Dienstagabend, um über die neue Brücke zu sprechen. Einige Bürger "
    "für größere Züge, mehrere Fußgänger dagegen: Für Händler wäre die Überquerung überflüssig, "
    "die Läden müssten später öffnen und früher schließen."
)
FRENCH = "Élu à l'été, il a été à l'école où l'on a créé dès février un théâtre, déjà fêté à Nîmes."
POLISH = (
    "Rada zebrała się we wtorek wieczorem, żeby omówić nowy most. Są też zażółcone gęśle jaźni."
)
VIETNAMESE = "Hoài đông hôm qua là môt ngày dài, và chúng tôi đã ðên đây rât muôn."
TEXTS = {
    "cp1251": RUSSIAN,
    "koi8-r": RUSSIAN,
    "iso8859-5": RUSSIAN,
    "cp1253": GREEK,
    "cp1255": HEBREW,
    "cp1256": ARABIC,
    "cp874": THAI,
    "cp1252": GERMAN,
    "iso8859-15": FRENCH,
    "cp1250": POLISH,
    "iso8859-2": POLISH,
    "cp1258": VIETNAMESE,
}
CHARSETS = ["iso-8859-1", "windows-1250", "iso-8859-2", "windows-1251", "koi8-r", "windows-1253"]


def decode(text, encoding, charset):
    data = f"<html><body><p>{text}</p></body></html>".encode(encoding, "ignore")
    return decode_page(data, charset, is_html=True).text.split("<p>")[1].split("</p>")[0]


@pytest.mark.parametrize("encoding", ["cp1251", "koi8-r", "cp1253", "cp1255", "cp1256", "cp874"])
@pytest.mark.parametrize("charset", ["iso-8859-1", "windows-1250", "iso-8859-15", "us-ascii"])
def test_other_scripts_that_declare_a_latin_encoding_are_read(encoding, charset):
    assert decode(TEXTS[encoding], encoding, charset) == TEXTS[encoding]


@pytest.mark.parametrize("charset", ["windows-1251", "koi8-r", "windows-1253", "iso-8859-8"])
def test_latin_text_that_declares_another_script_is_read(charset):
    assert decode(GERMAN, "cp1252", charset) == GERMAN


@pytest.mark.parametrize(
    ("encoding", "charset"),
    [("koi8-r", "windows-1251"), ("cp1251", "koi8-r"), ("koi8-r", "windows-1253")],
)
def test_inverted_capitals_show_another_cyrillic_encoding(encoding, charset):
    assert decode(RUSSIAN, encoding, charset) == RUSSIAN


@pytest.mark.parametrize("encoding", TEXTS)
def test_a_right_declaration_is_believed(encoding):
    text = TEXTS[encoding].encode(encoding, "ignore").decode(encoding)
    names = {"cp874": "windows-874", "koi8-r": "koi8-r"}
    charset = names.get(encoding, encoding.replace("cp", "windows-").replace("iso8859", "iso-8859"))
    for changed in (text, text.upper(), text.title(), " ".join(text.split()[:2]), text * 9):
        data = changed.encode(encoding, "ignore")
        expected = data.decode(encoding)
        assert decode(expected, encoding, charset) == expected


@pytest.mark.parametrize(
    ("text", "encoding", "declared", "found"),
    [
        (RUSSIAN, "cp1251", "cp1252", "cp1251"),
        (RUSSIAN, "cp1251", "gb18030", ""),  # an encoding of several bytes
        (RUSSIAN, "cp1251", "utf-8", ""),
        (RUSSIAN, "cp1251", "cp1251", ""),
        (RUSSIAN[:20], "cp1251", "cp1252", ""),  # 17 letters
        (RUSSIAN[:24], "cp1251", "cp1252", "cp1251"),  # 21 letters
        (HEBREW, "cp1255", "cp1251", ""),
        (POLISH, "iso8859-2", "cp1252", ""),
        (RUSSIAN.lower(), "koi8-r", "cp1251", ""),
        (RUSSIAN.upper(), "cp1251", "cp1251", ""),
        (f"{RUSSIAN} " * 2000, "cp1251", "cp1252", "cp1251"),
        ("a" * 100_000 + RUSSIAN, "cp1251", "cp1252", ""),  # behind the examined bytes
    ],
)
def test_only_evidence_makes_a_declaration_wrong(text, encoding, declared, found):
    data = text.encode(encoding)
    assert find_contradicting_encoding(data, declared, detect_encodings) == found


@pytest.mark.parametrize(
    ("detected", "found"), [("cp1251", "cp1251"), ("cp1250", ""), ("utf-8", "")]
)
def test_a_detected_encoding_must_explain_the_evidence(detected, found):
    data = RUSSIAN.encode("cp1251")
    assert find_contradicting_encoding(data, "cp1252", lambda _: [detected]) == found


def test_a_detected_encoding_without_control_characters_is_needed():
    data = RUSSIAN.encode("cp1251") + b"\x98"
    assert find_contradicting_encoding(data, "cp1252", lambda _: ["cp1251"]) == ""
    assert find_contradicting_encoding(data, "cp1252", lambda _: ["iso8859-5"]) == ""
    assert find_contradicting_encoding(data, "cp1252", lambda _: ["koi8-r"]) == "koi8-r"
    assert find_contradicting_encoding(data, "cp1252", lambda _: []) == ""


def test_shares_decide():
    """Words in which a half of the letters, or most of them, are outside ASCII."""
    latin = b"\xe9e " * 30
    assert find_contradicting_encoding(latin, "cp1251", lambda _: ["cp1252"]) == "cp1252"
    more = b"\xe9\xe9\xe9ee " * 30
    assert find_contradicting_encoding(more, "cp1251", lambda _: ["cp1252"]) == ""
    other = b"\xe9\xe9\xe9\xe9e " * 30
    assert find_contradicting_encoding(other, "cp1252", lambda _: ["cp1251"]) == "cp1251"
    assert find_contradicting_encoding(more, "cp1252", lambda _: ["cp1251"]) == ""
    assert find_contradicting_encoding(latin[:60], "cp1251", lambda _: ["cp1252"]) == "cp1252"
    assert find_contradicting_encoding(latin[:57], "cp1251", lambda _: ["cp1252"]) == ""


LATIN_NUMBERS, OTHER_NUMBERS = (2, 3, 4, 10, 13, 14, 15, 16), (5, 6, 7, 8)


@pytest.mark.parametrize("number", LATIN_NUMBERS)
def test_every_latin_part_of_iso_8859_may_be_declared_wrongly(number):
    russian = RUSSIAN.encode("cp1251")
    assert find_contradicting_encoding(russian, f"iso8859-{number}", lambda _: ["cp1251"])
    assert {name for name in LATIN_ENCODINGS if name.startswith("iso")} == {
        f"iso8859-{latin_number}" for latin_number in LATIN_NUMBERS
    }


@pytest.mark.parametrize("number", OTHER_NUMBERS)
def test_every_other_part_of_iso_8859_may_be_declared_wrongly(number):
    german = GERMAN.encode("cp1252")
    assert find_contradicting_encoding(german, f"iso8859-{number}", lambda _: ["cp1252"])
    assert {name for name in OTHER_ENCODINGS if name.startswith("iso")} == {
        f"iso8859-{other_number}" for other_number in OTHER_NUMBERS
    }


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Мост мОСТ рЕКА", "koi8-r"),
        ("Мост Река мОСТ", ""),
        ("Мост мОСТ", ""),
        ("моСТ реКА", ""),
        ("МОст мОСТ", "koi8-r"),
    ],
)
def test_more_inverted_than_usual_words_show_another_encoding(words, found):
    data = f"{words} {'и ' * 20}".encode("cp1251")
    assert find_contradicting_encoding(data, "cp1251", lambda _: ["koi8-r"]) == found


def test_letters_without_blanks_take_linear_time():
    data = b"a" * 100_000
    start = time.process_time()
    assert find_contradicting_encoding(data, "cp1252", lambda _: ["cp1251"]) == ""
    assert time.process_time() - start < 5
