"""Test national telephone numbers of many countries, and other numbers that resemble them."""

import json
import random
import re
from pathlib import Path

import phonenumbers
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.personal import phone_numbers
from hallmark.tasks.measures.personal.phone_words import LOWER_CASE_PHONE_WORD, PHONE_WORD
from hallmark.tasks.measures.personal.types import SUPPORTED_COUNTRIES
from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

CASES = Path(__file__).parents[2] / "cases" / "corpus"
REGIONS = (*SUPPORTED_COUNTRIES, "HK", "SG", "MY", "TW", "VN", "ID", "PH", "HU", "SK", "LV")
#: A word for a telephone in a language of the country, if it is not one of "Tel", "Phone".
WORDS = {
    **dict.fromkeys(["AT", "DE", "CH", "CZ", "HR", "HU", "NO"], "Telefon"),
    **dict.fromkeys(["PL", "RO", "SE", "SI", "SK", "TR"], "Telefon"),
    **dict.fromkeys(["AR", "CL", "ES", "MX"], "Teléfono"),
    **dict.fromkeys(["BR", "PT"], "Telefone"),
    **dict.fromkeys(["BG", "RU", "UA"], "Телефон"),
    **dict.fromkeys(["HK", "JP", "TW"], "電話"),
    **{"BE": "Telefoon", "CN": "电话", "DK": "Tlf.", "FI": "Puhelin", "FR": "Téléphone"},
    **{"GR": "Τηλέφωνο", "ID": "Telepon", "IL": "טלפון", "IN": "फ़ोन", "IS": "Sími"},
    **{"IT": "Telefono", "KR": "전화", "LT": "Telefonas", "LV": "Tālrunis", "NL": "Telefoon"},
    **{"TH": "โทร", "VN": "Điện thoại"},
}


def list_phones(text, regions):
    spans = find_personal_data_spans(text, ("PHONE",), regions)
    return [text[span.start : span.end] for span in spans]


def list_examples():
    for region in REGIONS:
        for kind in (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE):
            number = phonenumbers.example_number_for_type(region, kind)
            yield (
                region,
                phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL),
            )


def test_reported_numbers_are_found():
    lines = (CASES / "phones/us.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert [list_phones(text, ("US",)) for text in texts] == [
        ["1 (212) 555-0143"],
        ["650-253-0000", "650-253-0001"],
        ["6502530000"],
        ["650-253-0000"],
        ["212-555-0143x12"],
        ["650/253-0000"],
        ["650-253-0000"],
    ]


def test_a_number_may_begin_inside_digits_with_two_separators():
    assert list_phones("0170.66.0086.-1-612-879-6242 x12)", ("US",)) == ["1-612-879-6242 x12"]
    assert list_phones("020008-027--124-285-0455 ", ("DE", "IN")) == ["124-285-0455"]
    for number_text in ("020008-027-124-285-0455", "0170.66.0086.612-879-6242"):
        assert list_phones(number_text, ("US",)) == []


@pytest.mark.parametrize("region", REGIONS)
def test_example_numbers_are_found_after_a_word_in_the_language_of_the_country(region):
    for value in (value for r, value in list_examples() if r == region):
        forms = [value, re.sub(r"\D", "", value), "-".join(re.findall(r"\d+", value))]
        for form in forms:
            text = f"{WORDS.get(region, 'Tel')}: {form}"
            assert list_phones(text, (region,)) == [form]


def test_three_quarters_of_separated_example_numbers_are_found_without_a_word():
    """The others have groups of three or two groups, as other numbers do."""
    examples = list(list_examples())
    missed = {
        region
        for region, value in examples
        if list_phones(f"Ask Ann, {value}, today", (region,)) != [value]
    }
    assert missed == {"AR", "CL", "CZ", "EE", "IS", "LV", "PL", "PT"}
    found = [list_phones(f"Ask Ann, {value}, today", (region,)) for region, value in examples]
    assert sum(map(bool, found)) >= 0.85 * len(examples)


#: Texts without telephone numbers; "#" is any digit, "*" a digit from 1 to 9.
OTHER_NUMBERS = [
    "version 1.2#.3##.4###, v2.1#.#.####-rc1, gcc 12.2.0-14+deb12u1",
    "10.0.0.1-10.0.0.2##, 192.168.1.1# to 192.168.1.1##, 172.16.0.1-172.31.255.254",
    "2024-01-0* 1#:2#:3#, 2024-01-0*T1#:2#:3#.###Z, [0*/Mar/2021:10:1#:2# +0000]",
    "20240*1#1#2#3#, 20240*1# 1#2#3#, 17########, 17########.######, 17###########",
    "Fri Apr 0* 16:46:0* 2001, 0*.0*.20## 1#:2#, 0*/0*/20## 1#:2#, 01-0*-20##",
    "Order 4#######, order no. 0## ######, Order #1##-####-####, Bestellnummer 0### ######",
    "Rechnung Nr. 20##-#####, invoice 6### ####, PO 45########",
    "SKU 0##-####-##, ISBN 978-0-1##-#####-#, ISSN 0###-####, EAN 40###########",
    "call to foo at 2024-01-0* 1#:2#:3#, called 1####### times, call 17######## done",
    "the phone app 10.0.0.1-10.0.0.9 and mobile version 1.2#.3##.4###",
    "mobile phones sold in 2019: 1 ### ### ###, telephone exchanges of 19##-19##",
    "call (CVE-20##-1####), fax (closes: #8#####), fax order 4711-0815",
    "about *## ### ### people, rows 12 34 56 78 90 12, UCAC 2### 1###, 1800-2100 metres",
    "0## 1### 2### 3### 4###, 0.1#### 0.2####, seed=0*######, 0x0#### 0x1####",
    "it called.\n\n8 (800) ###",
]


@pytest.mark.parametrize("template", OTHER_NUMBERS)
def test_other_numbers_are_no_telephone_numbers_of_any_region(template):
    rng = random.Random(template)
    for _ in range(20):
        text = re.sub(r"\*", lambda _: rng.choice("123456789"), template)
        text = re.sub(r"(?<!\s)#|(?<=0)#", lambda _: rng.choice("0123456789"), text)
        assert list_phones(text, REGIONS) == [], text


@pytest.mark.parametrize(
    ("text", "regions", "values"),
    [
        (
            "Tel. 030 654321 030 123456 or 030 123457",
            ("DE",),
            ["030 654321", "030 123456", "030 123457"],
        ),
        ("Telefon: 030/123456, Fax: 030/123457-0", ("DE",), ["030/123456", "030/123457-0"]),
        ("030/123456 and 030 123456", ("DE",), ["030/123456", "030 123456"]),
        ("Call 24 hours: 0800 1234567", ("DE",), ["0800 1234567"]),
        ("TEL-650-253-0000, phone #6502530000", ("US",), ["650-253-0000", "6502530000"]),
        ("my phone number is 6502530000", ("US",), ["6502530000"]),
        ("phone: 650-253-0000 ext. 12", ("US",), ["650-253-0000 ext. 12"]),
        ("phone: x6502530000, 6502530000x", ("US",), []),
        ("Telefon 512 345 678, od 512 345 679", ("PL",), ["512 345 678", "512 345 679"]),
        ("Telefon " + "x" * 20 + " 512 345 678", ("PL",), []),
        ("6123 4567 is her number", ("SG",), ["6123 4567"]),
        ("6123 4567 and 12", ("SG",), []),
        ("from 2010 2011", ("HK",), []),
        ("32 12 34 56", ("DK",), ["32 12 34 56"]),
        ("1, 32 12 34 56", ("DK",), []),
        ("9 06 12 34 56 78, room", ("FR",), []),
        (" 06 12 34 56 78, room 9", ("FR",), ["06 12 34 56 78"]),
        ("phone 6502530000", (), []),
        ("phone 131234", ("AU",), ["131234"]),
        ("call\n\n6502530000", ("US",), []),
        ("Phone 650-253-0000—ask", ("US",), ["650-253-0000"]),
        # Where the national prefix is optional, numbers are written with it and without it.
        ("Ask Ann, 011 2345-6789, today", ("AR",), ["011 2345-6789"]),
        ("Ask Ann, 11 2345-6789, today", ("AR",), ["11 2345-6789"]),
        ("Ask Ann, 8 (912) 345-67-89, today", ("RU",), ["8 (912) 345-67-89"]),
        ("Ask Ann, 912 345-67-89, today", ("RU",), ["912 345-67-89"]),
        ("Ask Ann, 0501 234 56 78, today", ("TR",), ["0501 234 56 78"]),
        ("Ask Ann, 501 234 56 78, today", ("TR",), ["501 234 56 78"]),
        ("Ask Ann, (11) 2345-6789, today", ("BR",), ["(11) 2345-6789"]),
        ("Ask Ann, 11 2345-6789, today", ("BR",), []),
    ],
)
def test_the_limits_of_telephone_numbers(text, regions, values):
    assert list_phones(text, regions) == values


@pytest.mark.parametrize(
    ("region", "text"),
    [
        ("US", "contact {}"),
        ("US", "Contact: {}"),
        ("US", "contact no. {}"),
        ("US", "Contact number is {}"),
        ("US", "reach me at {}"),
        ("US", "Text us at {} today"),
        ("US", "hotline {}"),
        ("US", "24-hour hotline: {}"),
        ("DE", "Kontakt: {}"),
        ("DE", "erreichbar unter {}"),
        ("DE", "Sie erreichen uns unter {}"),
        ("FR", "joignable au {}"),
        ("FR", "nous joindre au {}"),
        ("IT", "contattateci al {}"),
        ("PL", "kontakt {}"),
        ("CN", "请拨打{}"),
        ("JP", "連絡先：{}"),
    ],
)
def test_an_unseparated_number_is_found_after_a_word_for_a_contact(region, text):
    number = phonenumbers.example_number_for_type(region, phonenumbers.PhoneNumberType.MOBILE)
    form = phonenumbers.PhoneNumberFormat.NATIONAL
    digits = re.sub(r"\D", "", phonenumbers.format_number(number, form))
    assert list_phones(text.format(digits), (region,)) == [digits]


@pytest.mark.parametrize(
    "text",
    [
        "contact lenses sold: 6502530000, contacts: 6502530000 rows",
        "in contact with 6502530000 people, eye contact for 6502530000 ms",
        "contact id 6502530000, contact #830982, contact form 2024-01-02 10:11:12",
        "contact: order no. 6502530000, Kontaktformular Rechnung Nr. 6502530000",
        "Kontaktlinsen 6502530000 Stück, sie erreichten 6502530000 Euro",
        "text me 6502530000 times, reach us by 2019 2020 2021",
    ],
)
def test_other_numbers_after_a_word_for_a_contact_are_no_telephone_numbers(text):
    assert list_phones(text, ("US", "DE")) == []


@pytest.mark.parametrize(("gap", "there"), [(1, True), (12, True), (13, False)])
def test_a_further_number_must_be_near_the_announced_one(gap, there):
    text = "phone 6502530000" + " " * (gap - 1) + ";6502530001"
    assert list_phones(text, ("US",)) == ["6502530000", "6502530001"][: 1 + there]


def test_the_word_for_a_telephone_is_the_same_for_columns_and_texts():
    samples = [
        "tel 1",
        "TEL. 1",
        "hotel 1",
        "telly 1",
        "Handynummer 1",
        "Ｔ 1",
        "電話1",
        "called 1",
    ]
    samples += [f"{word} 1" for word in WORDS.values()]
    for sample in samples:
        in_text = bool(re.search(LOWER_CASE_PHONE_WORD, sample.lower()))
        assert in_text == bool(re.search(PHONE_WORD, sample)), sample
        assert in_text == (sample not in ("hotel 1", "telly 1", "Ｔ 1", "called 1")), sample


EXAMPLES = list(list_examples())


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(EXAMPLES),
    st.text(st.characters(blacklist_categories=["Nd", "Cs"]), max_size=30),
    st.text(st.characters(blacklist_categories=["Nd", "Cs"]), max_size=30),
)
def test_an_announced_number_is_found_in_any_text(example, before, after):
    region, value = example
    text = f"{before} Tel: {value} {after}"
    start = len(before) + 6
    spans = find_personal_data_spans(text, ("PHONE",), (region,))
    assert any(span.start <= start and start + len(value) <= span.end for span in spans)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [value for _, value in EXAMPLES] + ["Tel: ", "電話", " ", ", ", "x", "\n", "-"]
        ),
        max_size=10,
    )
)
def test_one_text_and_a_column_have_the_same_numbers(pieces):
    text, regions = "".join(pieces), ("US", "DE", "JP", "DK")
    rows = find_spans_by_row(pa.array([text], pa.large_string()), ("PHONE",), regions)
    assert rows.get(0, []) == find_personal_data_spans(text, ("PHONE",), regions)


def test_numbers_of_all_countries_that_are_found_in_a_text_are_found_in_a_column():
    """All kinds of numbers that `phonenumbers` has examples of, such as premium-rate numbers."""
    count = 0
    for region in sorted(phonenumbers.SUPPORTED_REGIONS):
        examples = (phonenumbers.example_number_for_type(region, kind) for kind in range(11))
        form = phonenumbers.PhoneNumberFormat.NATIONAL
        texts = [
            f"x, {phonenumbers.format_number(number, form)}, y" for number in examples if number
        ]
        rows = find_spans_by_row(pa.array(texts, pa.large_string()), ("PHONE",), (region,))
        expected = [find_personal_data_spans(text, ("PHONE",), (region,)) for text in texts]
        assert [rows.get(i, []) for i in range(len(texts))] == expected
        count += sum(map(bool, expected))
    assert count > 900


@pytest.mark.parametrize("word", ["recall", "excel", "hotel"])
@pytest.mark.parametrize("distance", range(30, 45))
def test_the_end_of_a_longer_word_is_no_word_for_a_telephone(word, distance):
    text = f"{word} {'the owners must write to the same ' * 2}"[: len(word) + distance - 1]
    text += " 650 253 0000"
    spans = find_personal_data_spans(text)
    assert not spans
    assert spans == find_spans_by_row(pa.array([text], pa.large_string())).get(0, [])


def list_digits_like_numbers(region, rng, count):
    """List digits of numbers of a region, some wrong, with the prefixes that people dial."""
    examples = [phonenumbers.example_number_for_type(region, kind) for kind in range(11)]
    numbers = [phonenumbers.national_significant_number(e) for e in examples if e]
    country_code = str(phonenumbers.country_code_for_region(region))
    trunk_prefix = phonenumbers.ndd_prefix_for_region(region, True) or "0"
    prefixes = ["", trunk_prefix, country_code, country_code + trunk_prefix, f"00{country_code}"]
    for _ in range(count):
        digits = list(rng.choice(numbers))
        for i in rng.sample(range(len(digits)), rng.randrange(5)):
            digits[i] = rng.choice("0123456789")
        yield rng.choice(prefixes) + "".join(digits)


@pytest.mark.parametrize("part", range(4))
def test_all_valid_numbers_have_the_digits_that_are_checked(part):
    """The detector does not check digits that no number of a region has."""
    rng = random.Random(part)
    count = 0
    for region in sorted(phonenumbers.SUPPORTED_REGIONS)[part::4]:
        for digits in list_digits_like_numbers(region, rng, 40):
            matcher = phonenumbers.PhoneNumberMatcher(digits, region, phonenumbers.Leniency.VALID)
            if any((hit.start, hit.end) == (0, len(digits)) for hit in matcher):
                count += 1
                expression = phone_numbers._compile_digits_of_number(region)
                assert expression.fullmatch(digits), (region, digits)
    assert count > 500


@pytest.mark.parametrize("word", ["SERIAL", "ſerial", "Tıcket", "SİZE", "order no.", "Ref."])
def test_a_word_for_another_number_counts_in_any_case(word):
    assert list_phones(f"{word} 650-253-0000", ("US",)) == []
    assert list_phones(f"{word}x 650-253-0000", ("US",)) == ["650-253-0000"]
