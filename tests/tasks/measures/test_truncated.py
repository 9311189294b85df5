"""Values that the end or the beginning of a text cuts off: what of them is hidden."""

import time

import pytest

from tasks.measures.personal.truncated import REACH, find_truncated
from tests.tasks.measures.test_personal_data import KNOWN


def clear(text, regions=("US",)):
    """The characters that stay."""
    hidden = {i for _, a, b in find_truncated(text, regions) for i in range(a, b)}
    return "".join(c for i, c in enumerate(text) if i not in hidden)


#: Letters and digits of each type that a cut may leave, where nothing announces the value. Of an
#: address it is what precedes the "@": a word as any other.
ALLOWED = {"EMAIL": 11, "CARD": 6, "IBAN": 7, "PHONE": 6, "SSN": 5, "IP": 8, "SECRET": 18}


@pytest.mark.parametrize(("kind", "value"), KNOWN)
def test_of_a_value_that_the_end_cuts_off_only_its_first_characters_stay(kind, value):
    for size in range(1, len(value)):
        text = f"so {value[:size]}"
        left = clear(text).removeprefix("so ")
        assert sum(map(str.isalnum, left)) <= ALLOWED[kind], text


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("Write to jane.roe@", "Write to "),
        ("Write to jane.roe@corp.ex", "Write to "),
        ("E-mail: jane.ro", "E-mail: "),
        ("mailto:jane", "mailto:"),
        ("call +44 20 79", "call "),
        ("call 555-", "call "),
        ("Tel. 030 12", "Tel. "),
        ("ring (650) 2", "ring "),
        ("it was 4111 111", "it was "),
        ("it was 411111", "it was 411111"),
        ("card number 4111", "card number "),
        ("IBAN DE8", "IBAN "),
        ("to DE89 3704 00", "to "),
        ("SSN 536-9", "SSN "),
        ("social security number: 536", "social security number: "),
        ("at 93.184.21", "at 93.184.21"),
        ("at 93.184.216.3", "at "),
        ("AKIAQYLP", ""),
        ("use ghp_ab", "use "),
        ("password = hunt", "password = "),
        ('"api_key": "x9', '"api_key": "'),
        ("token: Zq7X", "token: "),
        ("postgres://jane:hunt", ""),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\nBgkq", ""),
        ("BgkqhkiG\n-----END PRIVATE KEY-----\nso", "\nso"),
        ("@corp.example said so", " said so"),
        ("1 1111 1111 1111, today", ", today"),
        ("00 0532 0130 00 it is", " it is"),
        ("946 0018 it is", " it is"),
    ],
)
def test_parts_that_a_word_or_a_form_announces(text, stays):
    assert clear(text) == stays


@pytest.mark.parametrize(
    "text",
    [
        "In the year 2026",
        "from 1914 to 1918",
        "pages 12-15",
        "version 3.11.4",
        "10.0.0.",
        "so",
        "",
        " \n",
        "the secret: patience",
        "password = ${PASS",
        "http://localhost:8080",
        "at 10:30",
        "a total of 1,234,567",
        "3.1415",
        "see section 4.2.1",
        "costs 300",
        "@",
        "SW12 9AB",
        "2026-11-28",
        "12 apples and 300 pears",
        "127.0.0.1",
    ],
)
def test_what_is_no_part_of_anything_stays(text):
    assert clear(text) == text
    assert clear(f"{text}. ") == f"{text}. "


def test_inside_a_text_nothing_is_a_part():
    for _, value in KNOWN:
        text = f"so {value[: len(value) // 2]} it is, as we said"
        assert clear(text) == text or "KEY" in value


def test_positions_are_those_of_the_text_in_any_script():
    assert clear("لا " * 300 + "jane@corp") == "لا " * 300
    assert clear("数" * 500 + "４１１１ １１１１ １") == "数" * 500


def test_the_work_does_not_grow_with_the_text():
    for unit in (
        "a",
        "a.b",
        "1 ",
        "12-",
        "@:",
        "A1 ",
        ":",
        "eyJ",
        "key = ",
        "-----BEGIN ",
        "mail ",
    ):
        start = time.process_time()
        list(find_truncated(unit * (200_000 // len(unit)), ["US"]))
        assert time.process_time() - start < 0.5, unit
    assert REACH < 1000


@pytest.mark.parametrize(
    "text", ["We flew over Turkey: Ankara-Istanbul", "She ordered whiskey = Jameson"]
)
def test_a_word_that_ends_in_key_announces_no_secret(text):
    assert [*find_truncated(text, regions=["US"])] == []


@pytest.mark.parametrize("name", ["key", "api_key", "API-KEY", "apikey", "secretkey", "accesskey"])
def test_a_word_for_a_key_announces_one(name):
    assert [*find_truncated(f"the {name} = 9f8Ab2", regions=["US"])]
