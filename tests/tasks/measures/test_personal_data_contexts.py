"""Test that values are found next to any mark, inside URLs and assignments, and in any grouping."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum import iban, numdb

from hallmark.tasks.measures.personal.payment_accounts import (
    IBAN_PATTERN,
    _count_characters_after_country,
)
from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

CASES = Path(__file__).parents[2] / "cases" / "corpus"
#: Random letters, concatenated, so that secret scanners ignore this file.
TOKEN = "Jqhr0kWsRpcE5cw7" + "Wxu8dSbRDE28jhYQ"
IBAN = "DE89370400440532013000"


def list_values(text, types=("SECRET", "EMAIL", "IBAN"), regions=("US",)):
    return [text[span.start : span.end] for span in find_personal_data_spans(text, types, regions)]


def read_case(name):
    return [json.loads(line)["text"] for line in (CASES / name).read_text("utf-8").splitlines()]


# E-mail addresses --------------------------------------------------------------------------------


def test_reported_addresses_are_found_whatever_the_document_contains():
    texts = read_case("emails/dash_and_fold.jsonl")
    assert [list_values(text) for text in texts] == [
        ["ann@mail.example.org"],
        ["ann@mail.example.org"],
        ["bob@mail.example.org"],
        ["cy@mail.example.org"],
    ]


#: Dashes, hyphens and marks of Markdown.
MARKS = ["—", "–", "―", "−", "-", "--", "_", "__", "*", "**", "***", "~~", "`", "|", "\\_", "> "]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("elsewhere", ["", "Open 9–5, 20 €. ", "１２ "])
@pytest.mark.parametrize(
    "address", ["ann@mail.example.org", "y@a-b.xn--p1ai", "jörg@müller.example"]
)
def test_an_address_is_found_between_marks(mark, elsewhere, address):
    for text in (f"{elsewhere}{mark}{address}{mark}", f"{elsewhere}{mark}{address}{mark} she said"):
        assert list_values(text) == [address]
    assert list_values(f"{elsewhere}see {address}{mark}") == [address]
    if mark.strip("-_"):  # A hyphen or underscore between letters may belong to the address.
        assert list_values(f"{elsewhere}she{mark}{address}") == [address]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ann@mail.example.org-she answers", ["ann@mail.example.org"]),
        ("ann@mail.example.org_x", ["ann@mail.example.org"]),
        ("x@пример.xn--p1ai, z@a.XN--FIQS8S.", ["x@пример.xn--p1ai", "z@a.XN--FIQS8S"]),
        ("foo@bar.baz-qux.com", ["foo@bar.baz-qux.com"]),
        ("jean‑luc@x.example", ["jean‑luc@x.example"]),
        (
            "https://h.example/?to=ann%40x.example&cc=b%40y.example",
            ["ann%40x.example", "b%40y.example"],
        ),
        ("a.b@x.example—c@y.example", ["a.b@x.example", "c@y.example"]),
        # Code multiplies matrices with "@".
        ("q@self.weight_ih, x@self.to_out, x@y.T", []),
    ],
)
def test_the_limits_of_an_address(text, values):
    assert list_values(text) == values


# Secrets -----------------------------------------------------------------------------------------


def test_reported_secrets_are_found():
    for text in read_case("secrets/behind_colon_or_equals.jsonl"):
        assert list_values(text) == [TOKEN]


@pytest.mark.parametrize(
    "template",
    [
        "https://h.example/cb?access_token={}&x=1",
        "https://h.example/cb?x=1&amp;api_key={}&amp;y=2",
        "https://h.example/r?to=https%3A%2F%2Fh.example%2F%3Faccess_token%3D{}%26x%3D1",
        "//registry.example/:_authToken={}",
        "docker build --build-arg=API_KEY={} .",
        "docker run -e DB_PASSWORD={} image",
        "java -Dtoken={} -jar a.jar",
        "tool --api-key {} --verbose",
        "tool --token   '{}'",
        "a=b&api_key={}",
        "a: b: c=token={}",
        "secret: https://h.example/?access_token={}",
        "token_key=id&secret={}",
        "key=key=key={}",
        'env="API_KEY={}"',
        r"body='{{\"token\": \"{}\"}}'",
        "Authorization: Bearer {}",
        "<password>{}</password>",
        "Server=db;Password={};Pooling=1",
    ],
)
def test_a_secret_is_found_in_a_url_an_option_or_another_assignment(template):
    assert list_values(template.format(TOKEN)) == [TOKEN]


def test_encoded_characters_belong_to_a_secret():
    value = "ab%2B" + TOKEN + "%3D%3D"
    assert list_values(f"https://h.example/?token={value}&y=2") == [value]


@pytest.mark.parametrize(
    "text",
    [
        "https://h.example/?token=none&key=id&page=2",
        "tool --token FILE --key-file /etc/ssl/private/server.pem",
        "the bearer of good tidings, Bearer authentication",
        "--------- token ---------",
        "a key=lambda pair: pair[1] and secret=get_secret_value(name)",
        "<key>Delete</key>",
    ],
)
def test_assignments_of_other_values_are_no_secrets(text):
    assert list_values(text) == []


# IBANs -------------------------------------------------------------------------------------------


def test_reported_ibans_are_found():
    assert [list_values(text) for text in read_case("iban/written_otherwise.jsonl")] == [
        ["DE89-3704-0044-0532-0130-00"],
        ["de89370400440532013000"],
        [IBAN],
        ["DE89 3704 0044\n0532 0130 00"],
        ["DE89 3704 0044 0532 0130 00"],
    ]


@pytest.mark.parametrize("separator", [" ", "-", "–", ".", "/", "_", "\u00a0", "\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 10, 30])
@pytest.mark.parametrize("number", [IBAN, "GB82WEST12345698765432", "NO9386011117947"])
def test_an_iban_is_found_in_groups_of_any_size(separator, size, number):
    if size == 1 and separator not in " -":
        return  # Only a space or a hyphen may split the country.
    value = separator.join(number[i : i + size] for i in range(0, len(number), size))
    for text in (value, value.lower(), f"IBAN: {value}.", f"_{value}_", f"账号{value}的"):
        found = list_values(text)
        assert [v.upper() for v in found] == [value.upper()], text


@pytest.mark.parametrize(
    "text",
    [
        "DE89 3704-0044 0532-0130 00",  # two kinds of separators
        "DE89 3704 0044 0532 0130 001",
        "DE89 3704 0044 0532 0130 01",
        "xDE89370400440532013000",
        "by 2021 the year, it 12 345 678, at 12 of 34 and no 93 8601 left",
    ],
)
def test_other_groups_are_no_iban(text):
    assert list_values(text) == []


def test_the_beginning_of_an_iban_may_precede_another():
    assert list_values(f"de 12 {IBAN} {IBAN} at 10") == [IBAN, IBAN]


def list_structures():
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for country in (a + b for a in letters for b in letters):
        (_, properties), *_ = numdb.get("iban").info(country)
        if properties:
            yield country, properties["bban"]


@pytest.mark.parametrize(("country", "structure"), list(list_structures()))
def test_every_country_with_ibans_passes_the_prefilter(country, structure):
    filler = {"n": "1", "a": "Q", "c": "x"}
    account = "".join(
        int(count) * filler[kind] for count, kind in re.findall(r"(\d+)!(.)", structure)
    )
    number = country + iban.calc_check_digits(f"{country}00{account}") + account
    assert _count_characters_after_country(country) == len(number) - 2
    texts = pa.array(["x", f"see {number}", f"iban{number.lower()}"], pa.large_string())
    assert pc.match_substring_regex(texts, IBAN_PATTERN).to_pylist() == [False, True, True]


def test_letters_that_are_no_country_have_no_ibans():
    assert _count_characters_after_country("ZZ") == 0


# Properties --------------------------------------------------------------------------------------

VALUES = {
    "EMAIL": "ann.lee@mail.example.org",
    "IBAN": "GB82 WEST 1234 5698 7654 32",
    "SECRET": "ghp_" + TOKEN[:4] + TOKEN,
}
#: Text of letters of several scripts, digits, dashes, spaces and marks, which ends with a space.
surroundings = st.lists(
    st.sampled_from(
        [*"aZé漢字１٣–—-_*`~.,:=@/%&?+()[]{}\"'\u00a0\u200b\t\n 9", "9–5 ", "key=", "IBAN ", "A–B"]
    ),
    max_size=30,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(surroundings, surroundings, st.sampled_from(sorted(VALUES)))
def test_a_known_value_is_found_in_any_text(before, after, data_type):
    value = VALUES[data_type]
    text = f"{before} {value} {after}"
    position = len(before) + 1
    assert any(
        span.start <= position and position + len(value) <= span.end
        for span in find_personal_data_spans(text)
    )


PIECES = [TOKEN, "token=", "650-253-0000", "1.2.43.99", "tel", "+44 20 7946 0018"]
PIECES += [*"–—９٣\u00a0-_9Aa \n"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from([*VALUES.values(), *PIECES]),
            max_size=12,
        ).map("".join),
        max_size=5,
    )
)
def test_searching_one_text_and_a_batch_gives_the_same(texts):
    rows = find_spans_by_row(pa.array(texts, pa.large_string()))
    assert [rows.get(i, []) for i in range(len(texts))] == [
        find_personal_data_spans(text) for text in texts
    ]
