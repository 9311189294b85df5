"""Test which parts of values are found at the ends of a text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.measures.personal.truncated_values import (
    SEARCHED_CHARACTERS,
    find_truncated_values,
    may_have_truncated_values,
)
from hallmark.tasks.measures.personal_data import find_personal_data_spans
from tests.tasks.measures.test_personal_data import KNOWN


def remove_found_values(text, regions=("US",)):
    """Return the text without the characters of the spans found."""
    spans = [*find_truncated_values(text, regions)]
    assert not spans or may_have_truncated_values([text, ""]).tolist() == [True, False]
    hidden = {i for _, a, b in spans for i in range(a, b)}
    return "".join(c for i, c in enumerate(text) if i not in hidden)


#: Maximum number of letters and digits of a truncated value that are not found without a context
#: word. For an e-mail address it is the part before the "@", which looks like any word.
ALLOWED = {"EMAIL": 11, "CARD": 6, "IBAN": 7, "PHONE": 6, "SSN": 5, "IP": 8, "SECRET": 18}


@pytest.mark.parametrize(("kind", "value"), KNOWN)
def test_a_value_cut_off_at_the_end_shows_only_its_first_characters(kind, value):
    for size in range(1, len(value)):
        text = f"so {value[:size]}"
        remaining = remove_found_values(text).removeprefix("so ")
        assert sum(map(str.isalnum, remaining)) <= ALLOWED[kind], text


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
        ("to DE89 3704 0044 ", "to  "),
        ("to DE89-3704-00", "to "),
        ("to DE89-3704-0044-", "to "),
        ("iban de89 37", "iban "),
        ("iban: de89-3704-00", "iban: "),
        ("SSN 536-9", "SSN "),
        ("social security number: 536", "social security number: "),
        ("at 93.184.21", "at 93.184.21"),
        ("at 93.184.216.3", "at "),
        ("AKIAQYLP", ""),
        ("use ghp_ab", "use "),
        ("password = hunt", "password = "),
        ('"api_key": "x9', '"api_key": "'),
        ("token: Zq7X", "token: "),
        ('x["API_KEY"] = "x9', 'x["API_KEY"] = "'),
        ("SECRET_KEY_ID=x9", "SECRET_KEY_ID="),
        ("**Password:** Zq7X", "**Password:** "),
        ("Passwort: Zq7X", "Passwort: "),
        ("密码: Zq7X", "密码: "),
        ("postgres://jane:hunt", ""),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\nBgkq", ""),
        ("BgkqhkiG\n-----END PRIVATE KEY-----\nso", "\nso"),
        ("@corp.example said so", " said so"),
        ("1 1111 1111 1111, today", ", today"),
        ("00 0532 0130 00 it is", " it is"),
        ("946 0018 it is", " it is"),
    ],
)
def test_parts_with_a_context_word_or_a_typical_format_are_found(text, stays):
    assert remove_found_values(text) == stays


def test_words_for_numbers_of_a_country_count_in_its_region():
    for regions, stays in ((("PL",), "PESEL "), (("US",), "PESEL 44051"), ((), "PESEL 44051")):
        assert remove_found_values("PESEL 44051", regions) == stays


@pytest.mark.parametrize(
    "text",
    [
        "In the year 2026",
        "the iban is a number",
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
        "IN EAST ASIA",
        "ASIANS",
        "she passed the ACCA",
    ],
)
def test_text_without_parts_of_values_is_unchanged(text):
    assert remove_found_values(text) == text
    assert remove_found_values(f"{text}. ") == f"{text}. "


#: Punctuation that may follow a truncated value at the end of a text.
CLOSERS = ['"', "'", "`", ")", "]", "}", ">", ".", ",", ";", "…", "*", '",', '"]}', "`**.", "...."]


@pytest.mark.parametrize("closer", CLOSERS)
@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("use ghp_ab", "use "),
        ("the key is AKIAQYLP", "the key is "),
        ("sk_live_4eC39", ""),
        ("password = hunt", "password = "),
        ('"api_key": "x9', '"api_key": "'),
        ("token: Zq7X", "token: "),
        ("postgres://jane:hunt", ""),
    ],
)
def test_a_few_closing_characters_may_follow_a_secret(text, stays, closer):
    assert remove_found_values(f"{text}{closer}").rstrip("\"'`)]}>.,;…*") == stays.rstrip('"')


def test_many_closing_characters_end_a_value():
    assert remove_found_values('use ghp_ab")))))') == 'use ghp_ab")))))'


#: Truncated keys that are too long to be a coincidence.
CUT_SHORT = [
    "AKIA" + "QYLP3J7ZK2",
    "ghp_" + "aB3dE6gH9k",
    "github_pat_" + "11ABCDEFG0aB3d_x",
    "glpat-" + "x7Yz-kL2mN",
    "xoxb-" + "123456789012-1234",
    "sk_live_" + "4eC39HqLyjW",
    "sk-" + "proj-aB3dE6gH9k",
    "sk-ant-" + "api03-aB3dE6gH",
    "AIza" + "SyB3dE6gH9kL",
    "hf_" + "aBcDEfGhIjKL",
    "npm_" + "aB3dE6gH9k",
    "pypi-AgE" + "IcHlwaS5vcmc",
    "SG." + "aB3dE6gH9k.xYz",
    "GOCSPX-" + "aB3dE6gH9k",
    "dop_v1_" + "a1b2c3d4e5",
    "shpat_" + "a1b2c3d4e5",
    "dapi" + "a1b2c3d4e5",
    "123456789:AA" + "aB3dE6gH9k",
    "eyJ" + "hbGciOiJIUzI1NiJ9.eyJz",
    "sk_test_" + "4eC39HqLyjW",
    "whsec_" + "aB3dE6gH9k",
    "xapp-" + "1-A01B2C3D4E5",
    "ya29." + "aB3dE6gH9k",
    "gsk_" + "aB3dE6gH9k",
    "nvapi-" + "aB3dE6gH9k",
    "dckr_pat_" + "aB3dE6gH9k",
    "SK" + "a1b2c3d4e5f6",
    "key-" + "a1b2c3d4e5f6",
    "sq0atp-" + "aB3dE6gH9k",
    "EAAC" + "aB3dE6gH9k",
    "LTAI" + "aB3dE6gH9k",
    "ATATT3" + "aB3dE6gH9k",
    "glsa_" + "aB3dE6gH9k",
    "hvs." + "aB3dE6gH9k",
]


#: Prefixes that are words or parts of them, with the characters that must follow at the end.
SHORTEST_ENDS = [
    ("AKIA", "QYL"),
    ("sk-", "aB3dE6gH"),
    ("SG.", "aB3d"),
    ("key-", "a1b2c3d4"),
    ("SK", "a1b2c3d4"),
    ("dapi", "a1b2"),
    ("eyJ", "hbGc"),
]


@pytest.mark.parametrize(("prefix", "characters"), SHORTEST_ENDS)
def test_a_prefix_that_may_be_a_word_needs_characters_at_the_end(prefix, characters):
    assert remove_found_values(f"use {prefix}{characters}") == "use "
    shorter = f"use {prefix}{characters[:-1]}"
    assert remove_found_values(shorter) == shorter


@pytest.mark.parametrize("value", CUT_SHORT)
def test_a_key_with_a_vendor_prefix_is_found_at_the_end(value):
    assert remove_found_values(f"use {value}") == "use "


@pytest.mark.parametrize("value", CUT_SHORT)
@pytest.mark.parametrize(
    "around", ["{} it is, as we said", "So {}, and so on.", '("{}", 1) stands there', "用{}的人"]
)
def test_a_key_with_a_vendor_prefix_is_found_anywhere(value, around):
    before, after = around.split("{}")
    assert remove_found_values(around.replace("{}", value)) == before + after
    assert not [
        *find_personal_data_spans(around.replace("{}", value), types=["SECRET"])
    ]  # The detectors of complete values ignore it.


@pytest.mark.parametrize(
    "text",
    [
        "ghp_ab1 is too short to be one",
        "the prefix sk_live_ is theirs, ghp_ is not",
        "sk-circle12 and sk-fading-circle12 are classes of a style sheet",
        "scikit-learn, or sk-learn-0-24-2, is a library",
        "hf_hub_download and hf_transfer2 load files",
        "npm_config_user_agent and npm_lifecycle are variables",
        "the dapifunction and AKIAS are none",
        "ASIA and ASIA2024 are none",
        "in Kuala SG.Lumpur it rained, and SG.2024.report.pdf says so",
        "task-4eC39HqLyjW is no key of theirs",
        "at 10:AA it began",
    ],
)
def test_a_prefix_alone_is_not_found(text):
    assert remove_found_values(text) == text


def test_other_parts_inside_a_text_are_not_found():
    for _, value in KNOWN:
        text = f"so {value[: len(value) // 2]} it is, as we said"
        # A vendor's prefix and eight more characters with a digit are found anywhere.
        long_enough = value.startswith(("xoxb-", "eyJ", "sk-"))
        assert remove_found_values(text) == text or "KEY" in value or long_enough


@pytest.mark.parametrize(
    "text",
    [
        "see http://localhost:8080/index.html",
        "_http://localhost:8080_",
        "http://[::1]:8080",
        "http://localhost:PORT",
        "http://localhost:$PORT",
        "http://localhost:{port}",
        "Please call 2 10",
        "Call 9 1 1",
    ],
)
@pytest.mark.parametrize("closer", ["", ".", '"', "`)", ",…"])
def test_ports_and_few_digits_are_not_found(text, closer):
    assert remove_found_values(text + closer) == text + closer


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("Please call 555 2", "Please call "),
        ("call 0 30 1", "call "),
        ("Tlf. or tel 22 33", "Tlf. or tel "),
        ("call +1 2", "call "),
        ("fax: (650", "fax: "),
        ("ftp://jane:8080_x", ""),
        ("ftp://jane:port_9", ""),
    ],
)
def test_short_numbers_and_passwords_are_found(text, stays):
    assert remove_found_values(text) == stays


def test_positions_are_correct_in_any_script():
    assert remove_found_values("لا " * 300 + "jane@corp") == "لا " * 300
    assert remove_found_values("数" * 500 + "４１１１ １１１１ １") == "数" * 500


def test_only_the_ends_of_a_long_text_take_time():
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
        "ghp_",
        ".eyJ",
        " sk-aaaaaaaa",
        "SG.a",
        "eyJaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ",
        "1" * 9 + ":AA",
        "hf_aA",
    ):
        start = time.process_time()
        list(find_truncated_values(unit * (200_000 // len(unit)), ["US"]))
        assert time.process_time() - start < 0.5, unit
    assert SEARCHED_CHARACTERS < 1000


@pytest.mark.parametrize(
    "text", ["We flew over Turkey: Ankara-Istanbul", "She ordered whiskey = Jameson"]
)
def test_a_word_that_ends_in_key_announces_no_secret(text):
    assert [*find_truncated_values(text, regions=["US"])] == []


@pytest.mark.parametrize("name", ["key", "api_key", "API-KEY", "apikey", "secretkey", "accesskey"])
def test_a_word_for_a_key_announces_a_secret(name):
    assert [*find_truncated_values(f"the {name} = 9f8Ab2", regions=["US"])]


PARTS = (
    "key",
    "PASS\u017fWORD",
    "to\u212aen",
    "parolan\u0131z",
    "\u015e\u0130FRE",
    "\u03ba\u03c9\u03b4\u03b9\u03ba\u03cc\u03c2",
    "_id",
    '"]*`',
    ": ",
    " = ",
    "9f8Ab2Xy",
    "sk-",
    "eyJhbG",
    "AKIA",
    "AIza",
    "xoxb-",
    "SG.",
    "EMA\u0131L",
    "mail:",
    "@",
    "iban DE",
    "+1 ",
    "415 555",
    "\u0664\u0661\u0665\uff15",
    "192.0.2.",
    "\u2013",
    "://u:",
    "-----BEGIN PRIVATE KEY-----",
    "\n",
    "\u3000",
    "\u200b",
    " the lamp ",
)


@given(parts=st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=7))
def test_the_search_of_a_column_misses_no_text_with_a_value(parts):
    text = "".join(parts)
    if [*find_truncated_values(text, regions=["US"])]:
        assert may_have_truncated_values([text]).all()


def test_most_texts_are_no_candidates():
    texts = [
        "The lamp is lit.",
        "He said: a turkey is no monkey; 3 of 4 of us agree.",
        "",
        "Tokens",
    ]
    assert not may_have_truncated_values(texts).any()
