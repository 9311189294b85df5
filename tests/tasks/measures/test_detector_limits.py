"""Test the limits of detectors: distances of context words, lengths, numbers of candidates."""

import unicodedata

import pyarrow as pa
import pytest
from stdnum import iban

from hallmark.tasks.measures.personal.folding import fold_digits_and_separators, fold_text_column
from hallmark.tasks.measures.personal.types import (
    PERSONAL_DATA_TYPES,
    SUPPORTED_COUNTRIES,
    country_of_type,
    select_types_for_regions,
)
from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row


def list_spans(text, regions=("US",), types=PERSONAL_DATA_TYPES):
    return [
        (span.type, text[span.start : span.end])
        for span in find_personal_data_spans(text, types, regions)
    ]


@pytest.mark.parametrize(("gap", "there"), [(0, True), (35, True), (36, False)])
def test_a_word_for_a_telephone_must_be_within_forty_characters_before(gap, there):
    text = "phone" + " " * gap + " 650 253 0000"[1 if gap else 0 :]
    assert list_spans(text) == ([("PHONE", "650 253 0000")] if there else [])
    assert list_spans("650 253 0000 phone") == []


def test_phone_numbers_without_a_context_word_need_a_typical_format():
    for text in ("(650) 253-0000", "650-253-0000", "650.253.0000", "1-650-253-0000"):
        assert list_spans(text) == [("PHONE", text)]
    for text in ("650-253.0000", "650 253 0000", "6502530000", "2-650-253-0000", "1 650 253 0000"):
        assert list_spans(text) == []
    assert list_spans("020 7946 0018", ["GB"]) == [("PHONE", "020 7946 0018")]
    assert list_spans("020-7946-0018", ["GB"]) == []
    assert list_spans("tel 020-7946-0018", ["FR", "GB"]) == [("PHONE", "020-7946-0018")]


@pytest.mark.parametrize("numbers", [3, 4])
def test_a_text_with_too_many_candidates_is_unreadable(monkeypatch, numbers):
    monkeypatch.setattr("hallmark.tasks.measures.personal.phone_numbers.MAX_PHONE_CANDIDATES", 3)
    phones = ["+442083661177", "650-253-0000", "+41 44 668 18 00", "(650) 253-0000"][:numbers]
    text = " and ".join(phones)
    expected = [("PHONE", phone) for phone in phones] if numbers == 3 else [("UNREADABLE", text)]
    assert list_spans(text) == expected
    texts = pa.array(["no", text, "x@corp.example " + text], pa.large_string())
    rows = find_spans_by_row(texts)
    assert [(span.type, text[span.start : span.end]) for span in rows[1]] == expected
    assert rows[2] == find_personal_data_spans(texts[2].as_py()) and 0 not in rows


def test_the_local_part_has_at_most_64_characters():
    for size, there in ((64, True), (65, False)):
        address = "a" * size + "@corp.example"
        assert list_spans(address) == ([("EMAIL", address)] if there else [])
    two = "a" * 60 + "@corp.example,b@corp.example"
    assert list_spans(two) == [("EMAIL", piece) for piece in two.split(",")]


@pytest.mark.parametrize("gap", [1, 3, 4])
def test_a_version_number_follows_its_word_directly(gap):
    text = "version" + " " * gap + "93.184.216.34"
    assert list_spans(text) == ([] if gap < 4 else [("IP", "93.184.216.34")])


def test_an_ip_address_needs_two_numbers_of_at_least_32_or_a_word_for_a_host():
    assert list_spans("1.2.31.32") == [] and list_spans("1.2.32.32") == [("IP", "1.2.32.32")]
    assert list_spans("93.0.40.1") == [] and list_spans("93.1.40.1") == [("IP", "93.1.40.1")]
    for sign in ("ip {}", "from: {}", "//{}/", "{}:80", "{}/24", "{} - -"):
        for value, there in (("1.2.3.31", False), ("1.2.3.32", True), ("93.0.0.0", False)):
            text = sign.replace("{}", value)
            assert list_spans(text) == ([("IP", value)] if there else []), text
    assert list_spans("256.1.1.1") == [] and list_spans("2606:2800::1") == [("IP", "2606:2800::1")]
    assert list_spans("2001:db8::1") == []  # Reserved for documentation.


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("PESEL" + " " * 75 + "44051401359", True),
        ("PESEL" + " " * 76 + "44051401359", False),
        ("44051401359" + " " * 25 + "PESEL", True),
        ("44051401359" + " " * 26 + "PESEL", False),
        ("APESEL 44051401359", False),
        ("44051401359", False),
    ],
)
def test_a_context_word_must_be_within_80_characters_before_or_30_after(text, there):
    assert list_spans(text, ["PL"]) == ([("PL_PESEL", "44051401359")] if there else [])


def test_a_repeated_digit_is_no_number():
    from stdnum.nl import bsn

    assert not bsn.is_valid("000000000")
    assert list_spans("NHS number 000 000 0000", ["GB"]) == []
    assert list_spans("4444 4444 4444 4448") == [("CARD", "4444 4444 4444 4448")]
    assert list_spans("BSN 111111110", ["NL"]) == [("NL_BSN", "111111110")]
    for size in range(13, 20):
        assert list_spans(" ".join(digit * size for digit in "0123456789")) == []
    assert list_spans("individual number 0000 0000 0000", ["JP"]) == []
    assert list_spans("NINO AB 11 11 11 C", ["GB"]) == []
    assert list_spans("PAN ACUPA1111R", ["IN"]) == [
        ("IN_PAN", "ACUPA1111R")
    ]  # Four equal digits are allowed.


def test_an_iban_ends_where_its_check_digits_are_right():
    for value in ("NO9386011117947", "NO93 8601 1117 947"):
        assert list_spans(f"{value} AB12 CDEF"[: len(value) + 5]) == [("IBAN", value)]
        assert list_spans(value[:-1]) == []
    assert list_spans("NO93 8601 1117 947 THE END") == [("IBAN", "NO93 8601 1117 947")]


def test_card_numbers_have_the_length_of_their_issuer():
    for value in ("4111111111111111", "378282246310005", "30569309025904", "6200000000000005"):
        assert list_spans(value) == [("CARD", value)]
    for value in ("4111111111111112", "9999999999999995", "4111 11111111 1111", "378282246310004"):
        assert list_spans(value) == []


# Types and folding -------------------------------------------------------------------------------


def test_types_are_selected_by_region():
    assert (
        country_of_type("SSN"),
        country_of_type("US_ITIN"),
        country_of_type("IP"),
        country_of_type("GB_NHS"),
    ) == (
        "US",
        "US",
        "",
        "GB",
    )
    assert select_types_for_regions(PERSONAL_DATA_TYPES, ()) == (
        "SECRET",
        "EMAIL",
        "IBAN",
        "CARD",
        "PHONE",
        "IP",
    )
    assert select_types_for_regions(("IP", "SSN", "US_ITIN", "GB_NHS"), ("US",)) == (
        "IP",
        "SSN",
        "US_ITIN",
    )
    assert "" not in SUPPORTED_COUNTRIES and {"US", "GB", "ZA"} <= {*SUPPORTED_COUNTRIES}
    assert list_spans("SSN 536-90-4399 x@corp.example", ["US"], ("SSN",)) == [
        ("SSN", "536-90-4399")
    ]


DASHES = "\u2012\u2013\u2014\u2015\u2212\u2e3a\u2e3b\u301c\u3030\u30a0\ufe31\ufe32\ufe58"
UNSEEN = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"


def test_every_unicode_character_is_folded_by_its_category():
    every, meant = [chr(code) for code in range(0x110000)], []
    for character in every:
        kind = unicodedata.category(character)
        if 0xFF01 <= ord(character) <= 0xFF5E:
            expected = unicodedata.normalize("NFKC", character)
        elif kind == "Nd":
            expected = str(unicodedata.digit(character))
        elif kind == "Zs" or character in UNSEEN:
            expected = " "
        elif kind == "Pd" and character not in DASHES:
            expected = "-"
        else:
            expected = "/" if character in "\u2044\u2215" else character
        meant.append(expected)
    folded = [*fold_digits_and_separators("".join(every))]
    assert [
        hex(n) for n, pair in enumerate(zip(folded, meant, strict=True)) if len({*pair}) > 1
    ] == []


@pytest.mark.parametrize("dash", DASHES)
def test_a_dash_becomes_a_hyphen_only_between_parts_of_a_number(dash):
    for text in ("1{}2", "A{}2", "1{}(2)", "(1){}2", "12{}A", "12{}AB ", "1{}2{}3"):
        assert fold_digits_and_separators(text.replace("{}", dash)) == text.replace("{}", "-")
    for text in ("a{}2", "1{}b", "1{}Ask", "1{}ASK", "1 {} 2", "{}2", "1{}", "org{}she", "1{}é"):
        text = text.replace("{}", dash)
        assert fold_digits_and_separators(text) == text


def test_a_column_is_folded_like_each_of_its_texts():
    texts = [
        "plain",
        "a – b",
        "1–2",
        "x\u00a07",
        "٣",
        "Ａ",
        "",
        "–A",
        ")\u00a0(",
        "é\u00a0ü",
        "٣–A",
    ]
    column, moved_texts = fold_text_column(pa.array(texts, pa.large_string()))
    whole = column.to_pylist()
    assert moved_texts == {}
    assert whole == [
        "plain",
        "a – b",
        "1-2",
        "x 7",
        "3",
        "A",
        "",
        "–A",
        ") (",
        "é ü",
        "3-A",
    ]
    assert whole == [fold_digits_and_separators(text) for text in texts]
    assert fold_text_column(pa.array(["é"], pa.large_string()))[0].to_pylist() == ["é"]
    assert fold_text_column(pa.array([], pa.large_string()))[0].to_pylist() == []


#: An account number of Qatar, whose format allows letters in place of digits.
LETTERED = "DOHA" + "ABCDEFGHIJKLMNOPQRSTU"


@pytest.mark.parametrize(
    "value",
    [
        "1.2.43.99",
        "amqp://app:Zkq-vQxw@queue.example",
        "x@corp.example",
        'key = "bXdYfZhW"',
        f"QA{iban.calc_check_digits('QA00' + LETTERED)}{LETTERED}",
        "AKIA" + "IOSFODNN" + "7EXAMPLE",
    ],
)
def test_values_with_few_digits_are_found_in_columns(value):
    expected = find_personal_data_spans(f"see {value} there")
    assert expected
    assert find_spans_by_row(pa.array(["", f"see {value} there"], pa.large_string())) == {
        1: expected
    }
