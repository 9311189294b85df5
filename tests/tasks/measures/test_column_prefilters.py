"""Test that a column search finds what the search of a single text finds.

A column is first searched for expressions that every text with a value must match. These tests
generate the values that a detector finds, and the ways in which people write them.
"""

import random
import re
import sys

import phonenumbers
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum import luhn, numdb
from stdnum.iso7064 import mod_97_10

from hallmark.tasks.measures.personal import payment_accounts, program_options
from hallmark.tasks.measures.personal.national_ids import NATIONAL_ID_FORMATS, NationalIdFormat
from hallmark.tasks.measures.personal.phone_words import LOWER_CASE_PHONE_WORD
from hallmark.tasks.measures.personal.secrets import CREDENTIAL_NAMES_IN_OTHER_LANGUAGES
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES
from hallmark.tasks.measures.personal.vendor_keys import VENDOR_KEY_FORMATS
from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

#: Random characters, concatenated, so that secret scanners ignore this file.
PASSWORD = "hT7kLm9" + "wQz2xB4"
PHONE_REGIONS = sorted(phonenumbers.SUPPORTED_REGIONS)


def count_texts_with_spans(texts, regions=("US",), types=PERSONAL_DATA_TYPES):
    """Check that both searches find the same spans, and count the texts with any."""
    expected = [find_personal_data_spans(text, types, regions) for text in texts]
    rows = find_spans_by_row(pa.array(texts, pa.large_string()), types, regions)
    missed = [text for i, text in enumerate(texts) if rows.get(i, []) != expected[i]]
    assert missed == []
    return sum(map(bool, expected))


# Cases -------------------------------------------------------------------------------------------

CASES = [
    ("DE", "Büro (033203) 22334 heute"),
    ("IN", "Office (074104) 10123."),
    ("JP", "Office 09802-2-7656."),
    ("KR", "Office 050-96572-5003."),
    ("DE", "see 04905 56 in the list"),
    ("DE", "0049  – 30 123456 is it"),
    ("DE", "0049- – 30 22732152 is"),
    ("DE", "0049/ – 30 – 22730 is it"),
    ("MN", "Утас 99112233 гэж бичнэ"),
    ("MN", "УТАС: 7011-1234 гэж бичнэ"),
    ("AM", "Հեռ. 077123456 է իմ"),
    ("AM", "ՀԵՌ. 077 12 34 56 է իմ"),
    ("GE", "ᲢᲔᲚ: 555123456 is x"),
    ("IS", "SÍMİ 5512345 is it"),
    ("US", "Ⱥtel 4155552671 is it"),
    ("US", "telȾ 4155552671 is it"),
    ("IT", "codice fiscale RııMRI85T10A562X ok"),
    ("US", "IBAN AO37AB1110123456789012345 ok"),
    ("US", f"The credentİal: {PASSWORD} was used here and more text follows."),
    ("US", f"CREDENTİAL={PASSWORD} and more"),
    ("US", f"authorİzation: Basic {PASSWORD * 2} follows and more words"),
    ("US", f"IDENTİFIED BY '{PASSWORD}' more"),
    ("US", f"https://a.org/x?sİg={PASSWORD * 2} more"),
    ("US", f"a, sİgnature={PASSWORD * 2} more"),
    *(("US", f"mysql {blank}-p{PASSWORD} db") for blank in "\u2028\u2029\x85\r\x0b\x0c\x1c\x1f"),
]


@pytest.mark.parametrize(("region", "text"), CASES)
def test_a_value_in_an_unusual_form_is_found_in_a_column(region, text):
    assert count_texts_with_spans([text], (region,)) == 1


# Telephone numbers -------------------------------------------------------------------------------


def list_valid_numbers(region, rng, count):
    """List valid numbers of each kind of a region: the example, and others of the same length."""
    for kind in range(11):
        example = phonenumbers.example_number_for_type(region, kind)
        if example is None:
            continue
        yield example
        for _ in range(count):
            digits = list(str(example.national_number))
            for i in rng.sample(range(len(digits)), rng.randrange(min(len(digits), 7))):
                digits[i] = rng.choice("0123456789")
            number = phonenumbers.PhoneNumber(
                country_code=example.country_code,
                national_number=int("".join(digits)),
                italian_leading_zero=example.italian_leading_zero,
            )
            if phonenumbers.is_valid_number(number):
                yield number


def write_number(number, rng):
    """Write a number as phonenumbers does, perhaps with other separators."""
    form = rng.choice([0, 1, 2, 2, 2])
    written = phonenumbers.format_number(number, form)
    if form < 2:
        written = re.sub(r"^\+", rng.choice(["+", "+", "00"]), written)
    separator = rng.choice(
        [None, None, None, "-", " ", ".", "/", " / ", " – ", " - ", "  – ", ") "]
    )
    if separator:
        written = re.sub(r"(?<=\d)[ .()/-]+(?=\d)", separator, written)
    if rng.random() < 0.3:
        written = re.sub(r"^(0?\d+)[ -]", r"(\1) ", written)
    return written


@pytest.mark.parametrize("part", range(4))
def test_telephone_numbers_of_all_regions_are_found_in_a_column(part):
    rng = random.Random(part)
    count = 0
    for region in PHONE_REGIONS[part::4]:
        texts = [
            f"{rng.choice(['see ', 'x: ', '', 'Tel. ', '('])}{write_number(number, rng)}"
            f"{rng.choice([' in the list', '.', ' ok', '', ')'])}"
            for number in list_valid_numbers(region, rng, 4)
        ]
        count += count_texts_with_spans(texts, (region,), ("PHONE",))
    assert count > 600


def list_characters_by_lower_case():
    """List the characters of each lower case; İ and ı are an i."""
    characters = {"i": ["ı"]}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        lower_case = character.replace("İ", "i").lower()
        characters.setdefault(lower_case, []).append(character)
    return characters


CHARACTERS_BY_LOWER_CASE = list_characters_by_lower_case()


def write_in_any_case(word, rng):
    return "".join(rng.choice(CHARACTERS_BY_LOWER_CASE.get(c.lower(), [c])) for c in word)


#: The words for a telephone, without the conditions on the characters next to short words.
PHONE_WORDS = re.sub(r"\(\?<?!\[.*?\]\w*\)", "", LOWER_CASE_PHONE_WORD)
BESIDE_WORD = "x  -é\u023a\u023eİKſ字\u0307\n٣"


@settings(max_examples=1500)
@given(
    st.from_regex(rf"(?:{PHONE_WORDS})", fullmatch=True),
    st.sampled_from(["", *BESIDE_WORD]),
    st.sampled_from(["", *BESIDE_WORD, ": ", " number is "]),
    st.integers(),
)
def test_a_word_for_a_telephone_in_any_case_announces_a_number_in_a_column(
    word, before, after, seed
):
    word = write_in_any_case(word, random.Random(seed))
    count_texts_with_spans([f"{before}{word}{after}4155552671 ok"], types=("PHONE",))


def test_every_word_for_a_telephone_in_capitals_announces_a_number_in_a_column():
    words = [w for w in PHONE_WORDS.split("|") if not re.search(r"[][()?]", w)]
    texts = [f"{write(w)}: 4155552671 ok" for w in words for write in (str.upper, str.title)]
    assert count_texts_with_spans(texts, types=("PHONE",)) >= len(texts) - 4


# Accounts and cards ------------------------------------------------------------------------------

CHARACTERS_BY_KIND = {"n": "0123456789", "a": "ABCDEFGHKXYZ", "c": "0123456789ABCXYZ"}
REGISTERED_COUNTRIES = [
    (f"{a}{b}", properties["bban"])
    for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for b in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for _, properties in numdb.get("iban").info(f"{a}{b}")[:1]
    if properties
]
#: Countries that are not registered have two letters after the check digits, or only digits.
OTHER_COUNTRIES = [
    (country, structure.format(length - 4) if "a" in structure else structure.format(length - 2))
    for country, length in payment_accounts._UNREGISTERED_LENGTHS.items()
    for structure in ("{}!n", "2!a{}!n")
]


@pytest.mark.parametrize("separator", ["", " ", "  ", "-", ".", "/", "\t", "\n", " \r\n "])
def test_accounts_of_all_countries_are_found_in_a_column(separator):
    rng = random.Random(separator)
    texts = []
    for country, structure in (REGISTERED_COUNTRIES + OTHER_COUNTRIES) * 4:
        account = "".join(
            rng.choice(CHARACTERS_BY_KIND[kind])
            for length, kind in re.findall(r"(\d+)!([nac])", structure)
            for _ in range(int(length))
        )
        check_digits = mod_97_10.calc_check_digits(f"{account}{country}")
        value = f"{country}{check_digits}{account}"
        size = rng.choice([1, 2, 3, 4, 4, 4, 5])
        groups = [value[i : i + size] for i in range(0, len(value), size)]
        written = separator.join(groups)
        if rng.random() < 0.3:
            written = written.lower()
        texts.append(
            f"{rng.choice(['', 'x ', 'iban', 'IBAN: '])}{written}{rng.choice(['', ' x', '.'])}"
        )
    assert count_texts_with_spans(texts, types=("IBAN",)) > 0.4 * len(texts)


def test_payment_cards_of_all_groupings_are_found_in_a_column():
    rng = random.Random(0)
    texts = []
    for _ in range(2000):
        prefix, length = rng.choice(
            [("4", 16), ("4", 19), ("51", 16), ("37", 15), ("6011", 16), ("3056", 14), ("62", 17)]
        )
        digits = prefix + "".join(rng.choices("0123456789", k=length - len(prefix) - 1))
        digits += luhn.calc_check_digit(digits)
        separator = rng.choice(["", " ", "  ", "   ", ".", "_", "-"])
        sizes = rng.choice([(4, 4, 4, 4, 3), (4, 6, 5)])
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        groups = [digits[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        texts.append(f"{rng.choice(['', 'x ', '漢'])}{separator.join(filter(None, groups))}")
    assert count_texts_with_spans(texts, types=("CARD",)) > 500


# National numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("id_format", NATIONAL_ID_FORMATS, ids=lambda f: f.type)
def test_national_numbers_of_every_form_are_found_in_a_column(id_format, monkeypatch):
    monkeypatch.setattr(NationalIdFormat, "_is_valid_number", lambda self, number: True)
    monkeypatch.setattr(NationalIdFormat, "_has_context_word", lambda self, text, match: True)

    @settings(max_examples=60, database=None)
    @given(
        st.from_regex(id_format.pattern.replace("_", "[ ./-]?"), fullmatch=True),
        st.sampled_from(["", "x ", "漢", "("]),
        st.integers(),
    )
    def check(number, before, seed):
        texts = [f"{before}{number} y", f"{before}{write_in_any_case(number, random.Random(seed))}"]
        assert count_texts_with_spans(texts, SUPPORTED_COUNTRIES, (id_format.type,))

    check()


# Credentials -------------------------------------------------------------------------------------

ENGLISH_NAMES = ["api key", "token", "secret", "password", "passw0rd", "passwd", "pass phrase"]
ENGLISH_NAMES += ["passcode", "pass-word", "requirepass", "userpass", "pass", "pwd", "psk", "pw"]
ENGLISH_NAMES += ["credential", "bearer", "auth", "authorization", "?sig", ", signature"]
AFTER_NAME = [
    "=",
    ": ",
    '="',
    "='",
    "\t",
    " is ",
    "：",
    "%3D",
    "2: ",
    "_prod = ",
    "s: ",
    "Id = ",
    "> ",
]
AFTER_NAME += [",x\n", "|x|\n|", ", b) VALUES ('", "\n", "\u2028= ", " '"]


@pytest.mark.parametrize("write", [str, str.upper, str.title, write_in_any_case])
def test_credentials_after_names_in_any_case_are_found_in_a_column(write):
    rng = random.Random(0)
    arguments = (rng,) if write is write_in_any_case else ()
    names = [*ENGLISH_NAMES, "identified by", *CREDENTIAL_NAMES_IN_OTHER_LANGUAGES]
    texts = [
        f"{before}{write(name, *arguments)}{after}{PASSWORD}{end}"
        for name in names
        for after in AFTER_NAME
        for before in ("", "x,", "db_")
        for end in ("", "'", '"\n')
    ]
    assert count_texts_with_spans(texts, types=("SECRET",)) > 0.2 * len(texts)


WHITE_SPACE = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()]


def test_options_of_programs_are_found_in_a_column_after_any_white_space():
    programs = ["mysql", "sshpass", "mongo", "rar", "zip", "sqlcmd", "redis-cli", "ldapsearch"]
    programs += ["smbclient", "openssl", "keytool", "docker login", "curl"]
    options = [*{name for name, _ in program_options._PROGRAMS_BY_OPTION}, "U u%", "u ann:"]
    texts = [
        f"{program} {blank}-{option}{separator}{quote}{PASSWORD}{quote}"
        for program in programs
        for option in options
        for separator in ("", " ", "=")
        for quote in ("", "'")
        for blank in WHITE_SPACE
    ]
    assert count_texts_with_spans(texts, types=("SECRET",)) > 0.05 * len(texts)


@settings(max_examples=400)
@given(
    st.sampled_from(VENDOR_KEY_FORMATS).flatmap(
        lambda f: st.from_regex(f.complete_pattern, fullmatch=True)
    ),
    st.sampled_from(["", "x ", "漢", "="]),
    st.sampled_from(["", " x", "漢", "."]),
)
def test_keys_of_vendors_are_found_in_a_column(key, before, after):
    assert count_texts_with_spans([f"{before}{key}{after}"], types=("SECRET",)) == 1


URL_CHARACTERS = st.text(st.sampled_from([*"aZ09_.:/@%-'\"<\u2028\x85\x0bé字 "]), max_size=40)


@settings(max_examples=400)
@given(
    URL_CHARACTERS,
    URL_CHARACTERS,
    st.sampled_from(["", PASSWORD, f"u:{PASSWORD}", PASSWORD * 2]),
    st.sampled_from(["http", "postgres", "a+b", "漢http"]),
)
def test_credentials_in_urls_are_found_in_a_column(before, after, user, scheme):
    texts = [f"{scheme}://{before}{user}@{after}", f"{scheme}://{user}@{after}"]
    count_texts_with_spans(texts, types=("SECRET",))


# Addresses ---------------------------------------------------------------------------------------


@settings(max_examples=600)
@given(
    st.one_of(
        st.emails(),
        st.from_regex(r"[^\s@]{1,4}(?:@|%40|＠)(?:[\w-]{1,4}\.){1,3}\w{2,4}", fullmatch=True),
        st.from_regex(r"\d{1,3}(?:\.\d{1,3}){3}", fullmatch=True),
        st.ip_addresses().map(str),
        st.from_regex(r"(?:2606|2a00|3fff)(?::{1,2}[0-9A-Fa-f]{1,4}){1,7}", fullmatch=True),
    ),
    st.sampled_from(["", "x ", "漢", "<", "\u200b"]),
    st.sampled_from(["", " x", "漢", ">", ".", "\u200b"]),
)
def test_addresses_are_found_in_a_column(address, before, after):
    count_texts_with_spans([f"{before}{address}{after}"], types=("EMAIL", "IP"))
