"""Test how the numbers are drawn and written on which the detectors are evaluated."""

import random
import re
import string
from collections import Counter
from datetime import datetime
from ipaddress import ip_address

import phonenumbers
import pytest
from stdnum import iban

from hallmark.tasks.measures.detector_examples import (
    NEGATIVE_TEMPLATES,
    NON_ASCII_DIGITS,
    UNCHECKED_GENERATORS,
    _apply_format,
    _can_fill_format,
    _draw_credential_assignment,
    _draw_formatted_number,
    _draw_national_phone_number,
    _randomise_script,
    generate_positive_and_negative_examples,
)
from hallmark.tasks.measures.synthetic_identifiers import (
    IDENTIFIER_SPECS,
    IdentifierSpec,
    _make_lettered_generator,
    checksum_validator,
    draw_valid_numbers,
    make_template_generator,
)


def draw_many(draw, n=300):
    rng = random.Random(3)
    return [draw(rng) for _ in range(n)]


def test_templates_are_filled_character_by_character():
    for number in draw_many(make_template_generator("a#*@-#")):
        assert re.fullmatch(r"a\d[1-9][A-Z]-\d", number)
    seen = [
        {number[place] for number in draw_many(make_template_generator("#*@"), 2000)}
        for place in range(3)
    ]
    assert seen == [{*string.digits}, {*string.digits[1:]}, {*string.ascii_uppercase}]
    assert draw_many(make_template_generator("no place"), 2) == ["no place"] * 2


@pytest.mark.parametrize(("template", "form"), [("D", "%y%m%d"), ("E", "%d%m%y"), ("F", "%Y%m%d")])
def test_dates_are_valid(template, form):
    values = [
        datetime.strptime(number, form)
        for number in draw_many(make_template_generator(template), 3000)
    ]
    assert {day.month for day in values} == {*range(1, 13)}
    assert {day.day for day in values} == {*range(1, 29)}
    years = {day.year % 100 for day in values}
    assert years == {*range(31, 100)}
    if template == "F":
        assert {day.year for day in values} == {*range(1931, 2000)}


def test_letters_are_drawn_from_their_alphabet():
    assert {n[0] for n in draw_many(_make_lettered_generator("a#b", a="XY", b="7"))} == {"X", "Y"}
    assert all(
        re.fullmatch(r"[XY]\d7", n)
        for n in draw_many(_make_lettered_generator("a#b", a="XY", b="7"))
    )


#: Minimum share of valid numbers; by chance it would be 0.01. In Norway a check digit of ten modulo
#: 11 is invalid, and some numbers are out of use.
COMPUTED = {
    "IBAN": 1,
    "BE_NN": 0.95,
    "FR_NIR": 0.95,
    "BR_CPF": 1,
    "RU_INN": 1,
    "TR_TCKN": 1,
    "NO_FNR": 0.6,
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_computed_check_digits_are_right(kind):
    right = checksum_validator(IDENTIFIER_SPECS[kind])
    assert sum(map(right, draw_many(IDENTIFIER_SPECS[kind].draw_number))) >= 300 * COMPUTED[kind]


def test_ibans_have_the_length_of_their_country():
    values = draw_many(IDENTIFIER_SPECS["IBAN"].draw_number)
    assert {(n[:2], len(n)) for n in values} == {("DE", 22), ("GB", 22), ("NL", 18)}
    assert all(map(iban.is_valid, values)) and all(n[4:8] == "NWBK" for n in values if "GB" in n)


def test_a_german_tax_id_has_one_digit_twice_and_one_missing():
    for number in draw_many(IDENTIFIER_SPECS["DE_IDNR"].draw_number):
        assert sorted(Counter(number[:10]).values()) == [1] * 8 + [2] and len(number) == 11
    assert {number[10] for number in draw_many(IDENTIFIER_SPECS["DE_IDNR"].draw_number)} == {
        *string.digits
    }


@pytest.mark.parametrize("kind", IDENTIFIER_SPECS)
def test_valid_numbers_fit_a_format(kind):
    numbers = draw_valid_numbers(IDENTIFIER_SPECS[kind])
    assert len(numbers) == 25 and numbers == draw_valid_numbers(IDENTIFIER_SPECS[kind])
    assert all(map(checksum_validator(IDENTIFIER_SPECS[kind]), numbers))
    for number in numbers:
        assert any(_can_fill_format(number, form) for form in IDENTIFIER_SPECS[kind].formats)


def test_a_format_is_filled_and_cut_after_the_last_character():
    assert _apply_format("1234", "##-##") == "12-34"
    assert _apply_format("123456", "## ## ## ##") == "12 34 56"
    assert (
        _can_fill_format("1234", "##-##")
        and not _can_fill_format("123", "##-##")
        and not _can_fill_format("12345", "##-##")
    )
    long = "#### " * 8
    assert _can_fill_format("1" * 22, long) and _can_fill_format("1" * 18, long)
    assert _can_fill_format("1" * 32, long) and not _can_fill_format("1" * 33, long)
    assert (
        not _can_fill_format("1" * 19, "#" * 20)
        and _can_fill_format("1" * 20, "#" * 20)
        and _can_fill_format("1" * 19, "#" * 21)
    )


def test_some_numbers_have_other_scripts_or_separators():
    rng = random.Random(5)
    values = Counter()
    for _ in range(4000):
        value = _randomise_script("12 3-4", rng)
        if value[0] != "1":
            [script] = [s for s in NON_ASCII_DIGITS if s[1] == value[0]]
            assert value == f"{script[1]}{script[2]} {script[3]}-{script[4]}"
            values["script"] += 1
        elif value != "12 3-4":
            assert re.fullmatch("12[\u00a0\u2009\u202f]3[\u2010\u2011\u2013]4", value)
            values["separators"] += 1
    assert values["script"] / 4000 == pytest.approx(0.10, abs=0.02)
    assert values["separators"] / 4000 == pytest.approx(0.15, abs=0.02)


def test_a_look_alike_differs_only_in_digits_after_the_first_two():
    kind = IDENTIFIER_SPECS["GB_NHS"]
    plain = IdentifierSpec(
        kind.draw_number, kind.checksum_module, ("##########",), kind.context_words
    )
    rng = random.Random(1)
    wrong = [_draw_formatted_number(plain, rng, invalid=True) for _ in range(60)]
    ascii_only = [n for n in wrong if n.isascii()]
    assert len(ascii_only) > 40 and not any(map(checksum_validator(kind), ascii_only))
    starts = {number[:2] for number in draw_valid_numbers(plain)}
    assert all(number[:2] in starts for number in ascii_only)


def test_each_type_has_as_many_examples_with_as_without_context():
    made = list(generate_positive_and_negative_examples(("SSN", "EMAIL", "IN_PAN"), 12))
    counted = Counter((p.type, bool(p.value), p.has_context_word) for p in made)
    assert counted == {
        ("SSN", True, True): 12,
        ("SSN", True, False): 12,
        ("SSN", False, True): 12,
        ("EMAIL", True, True): 12,
        ("EMAIL", True, False): 12,
        ("IN_PAN", True, True): 12,
        ("IN_PAN", True, False): 12,
        ("", False, False): 36,
    }
    for detector_example in made:
        assert (
            detector_example.text.count(detector_example.value) == 1
            if detector_example.value
            else True
        )
        names = (
            IDENTIFIER_SPECS[detector_example.type].context_words
            if detector_example.type in IDENTIFIER_SPECS
            else ()
        )
        if detector_example.type in UNCHECKED_GENERATORS:
            names = UNCHECKED_GENERATORS[detector_example.type][1]
        if detector_example.value:
            assert (
                any(name in detector_example.text for name in names)
                == detector_example.has_context_word
            )
    negative_texts = [p.text for p in made if not p.type]
    for number, text in enumerate(negative_texts):
        form = re.escape(NEGATIVE_TEMPLATES[number % len(NEGATIVE_TEMPLATES)])
        form = form.replace(re.escape("#"), r"\d").replace(re.escape("*"), "[1-9]")
        assert re.fullmatch(form, text)


AREA = "(?:212|415|650|312)"
LOCAL = r"(?:2[2-9]\d|[3-8]\d\d)"
FORMS = {
    "EMAIL": {r"[\w.'+!-]+?[1-9]\d{0,2}@[\w-]+\.(?:com|org|co\.uk|example|de)"},
    "PHONE": {
        rf"\+1 {AREA} {LOCAL} \d{{4}}",
        rf"\+1-{AREA}-{LOCAL}-\d{{4}}",
        rf"\+1{AREA}{LOCAL}\d{{4}}",
        r"\+44 20 7[1-9]\d\d \d{4}",
        r"\+49 30 [2-9]\d{5}",
        r"\+33 1 42 \d\d \d\d 11",
    },
    "SECRET": {
        "AKIA[A-Z0-9]{16}",
        "ghp_[A-Za-z0-9]{36}",
        "sk_live_[A-Za-z0-9]{24}",
        "AIza[A-Za-z0-9]{35}",
        r"xoxb-\d{12}-[A-Za-z0-9]{24}",
        "glpat-[A-Za-z0-9]{20}",
        r"SG\.[A-Za-z0-9]{22}\.[A-Za-z0-9]{43}",
        r"postgres://app:[A-Za-z0-9]{12}@db\.internal:5432",
        r"amqp://[A-Za-z0-9]{6}:[A-Za-z0-9]{16}@queue\.example",
    },
}


@pytest.mark.parametrize("kind", FORMS)
def test_unchecked_types_are_drawn_in_every_format(kind):
    values = draw_many(UNCHECKED_GENERATORS[kind][0], 400)
    matched = [{form for form in FORMS[kind] if re.fullmatch(form, value)} for value in values]
    assert all(matched), values[matched.index(set())]
    assert set().union(*matched) == FORMS[kind]


@pytest.mark.parametrize("region", ["AT", "BR", "DE", "HK", "JP", "US"])
def test_national_telephone_numbers_are_valid_and_vary(region):
    values = draw_many(lambda rng: _draw_national_phone_number(region, rng), 100)
    numbers = [phonenumbers.parse(value, region) for value in values]
    assert all(phonenumbers.is_valid_number_for_region(number, region) for number in numbers)
    form = phonenumbers.PhoneNumberFormat.NATIONAL
    assert values == [phonenumbers.format_number(number, form) for number in numbers]
    assert len({*values}) > 50
    kinds = {phonenumbers.number_type(number) for number in numbers}
    assert len(kinds) == (1 if region == "US" else 2)  # There, mobile numbers are no different.


def test_credentials_are_assigned_in_every_form():
    values = draw_many(_draw_credential_assignment, 400)
    assert {len(value) for _, value in values} == {20, 32, 40}
    assert all(re.fullmatch("[A-Za-z0-9]+", value) for _, value in values)
    assert {text.replace(value, "") for text, value in values} == {
        'api_key = ""',
        "SECRET_TOKEN=",
        "password: ''",
        '"authToken": ""',
        'os.environ["API_KEY_PROD"] = ""',
        "**Password:** ",
        "<password></password>",
        "| token |  |",
        "Authorization: Bearer ",
        "curl -u ann: https://example.com",
    }


def test_ip_addresses_are_global_and_of_both_versions():
    values = [ip_address(value) for value in draw_many(UNCHECKED_GENERATORS["IP"][0], 2000)]
    assert all(address.is_global for address in values)
    assert sum(a.version == 6 for a in values) / 2000 == pytest.approx(0.2, abs=0.04)
    assert all(max(a.packed[1:]) >= 32 and a.packed[3] for a in values if a.version == 4)
