"""Test national numbers: published examples, wrong check digits, context words, other scripts."""

import time
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum.it import codicefiscale

from hallmark.tasks.measures.personal.folding import (
    fold_digits_and_separators,
    fold_text,
    fold_text_column,
)
from hallmark.tasks.measures.personal.national_ids import NATIONAL_ID_FORMATS
from hallmark.tasks.measures.personal.types import (
    PERSONAL_DATA_TYPES,
    SUPPORTED_COUNTRIES,
    country_of_type,
)
from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

#: Context word, example published by an authority or by python-stdnum, and whether the example is
#: found without the word.
PUBLISHED = {
    "SSN": ("SSN", "536-90-4399", True),
    "US_ITIN": ("ITIN", "912-90-3456", True),
    "AR_CUIT": ("CUIT", "20-05536168-2", True),
    "AT_VNR": ("SV-Nummer", "1237 010180", False),
    "AU_TFN": ("TFN", "123 456 782", False),
    "BE_NN": ("rijksregisternummer", "85.07.30-033.28", True),
    "BG_EGN": ("ЕГН", "7523169263", False),
    "BR_CPF": ("CPF", "390.533.447-05", True),
    "CA_SIN": ("SIN", "123-456-782", False),
    "CH_AHV": ("AHV-Nummer", "756.9217.0769.85", True),
    "CL_RUT": ("RUT", "12.531.909-2", True),
    "CN_RIC": ("身份证", "360426199101010071", True),
    "CZ_RC": ("rodné číslo", "710319/2745", True),
    "DE_IDNR": ("Steuer-ID", "36 574 261 809", False),
    "DK_CPR": ("CPR-nr.", "211062-5629", False),
    "EE_IK": ("isikukood", "36805280109", False),
    "ES_DNI": ("DNI", "54362315K", False),
    "ES_NIE": ("NIE", "X2482300W", False),
    "FI_HETU": ("henkilötunnus", "131052-308T", True),
    "FR_NIR": ("NIR", "2 95 10 99 126 111 93", True),
    "GB_NHS": ("NHS number", "943 476 5870", False),
    "GB_NINO": ("NI number", "AB123456C", False),
    "GR_AMKA": ("ΑΜΚΑ", "01013099997", False),
    "HR_OIB": ("OIB", "33392005961", False),
    "IE_PPS": ("PPSN", "6433435F", False),
    "IL_ID": ("תעודת זהות", "039337423", False),
    "IN_AADHAAR": ("आधार", "2341 2341 2346", False),
    "IN_PAN": ("PAN", "ACUPA7085R", False),
    "IS_KENNITALA": ("kennitala", "120174-3399", True),
    "IT_CF": ("codice fiscale", "RCCMNL83S18D969H", True),
    "JP_MYNUMBER": ("マイナンバー", "6214 9832 0257", False),
    "KR_RRN": ("주민등록번호", "971013-9019902", True),
    "LT_AK": ("asmens kodas", "33309240064", False),
    "MX_CURP": ("CURP", "BOXW310820HNERXN09", True),
    "NL_BSN": ("BSN", "1112.22.333", False),
    "NO_FNR": ("fødselsnummer", "151086 95088", True),
    "NZ_IRD": ("IRD number", "49-091-850", False),
    "PL_PESEL": ("PESEL", "44051401359", False),
    "PT_NIF": ("contribuinte", "123 456 789", False),
    "RO_CNP": ("CNP", "1630615123457", False),
    "RU_INN": ("ИНН", "500100732259", False),
    "SE_PNR": ("personnummer", "880320-0016", True),
    "SI_EMSO": ("EMŠO", "0101006500006", False),
    "TH_PIN": ("บัตรประชาชน", "1-2345-45678-78-1", True),
    "TR_TCKN": ("TC kimlik no", "17291716060", False),
    "UA_RNTRC": ("РНОКПП", "1759013776", False),
    "ZA_ID": ("ID number", "8001015009087", False),
}
#: Types without check digits.
UNCHECKED = {"GB_NINO", "IN_PAN", "DK_CPR", "SSN", "US_ITIN"}


def list_spans(text, regions=SUPPORTED_COUNTRIES):
    return [
        (span.type, text[span.start : span.end])
        for span in find_personal_data_spans(text, PERSONAL_DATA_TYPES, regions)
    ]


def test_every_national_type_has_a_published_number():
    assert (
        PUBLISHED.keys()
        == {n.type for n in NATIONAL_ID_FORMATS}
        == {k for k in PERSONAL_DATA_TYPES if country_of_type(k)}
    )


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_number_is_found_with_its_word_and_region(kind):
    word, number, alone = PUBLISHED[kind]
    for text in (f"{word}: {number}.", f"Größe, {word} {number}, 漢字", f"{number} ({word})"):
        assert list_spans(text) == [(kind, number)]
        assert list_spans(text, [country_of_type(kind)]) == [(kind, number)]
    others = [c for c in SUPPORTED_COUNTRIES if c != country_of_type(kind)]
    assert kind not in dict(list_spans(f"{word}: {number}", others))
    assert ((kind, number) in list_spans(f"see {number} below")) == alone


@pytest.mark.parametrize("kind", sorted(PUBLISHED.keys() - UNCHECKED))
def test_numbers_with_wrong_check_digits_are_not_found(kind):
    """A check digit modulo ten or eleven accepts at most a tenth of wrong numbers."""
    word, number, _ = PUBLISHED[kind]
    places = [i for i, c in enumerate(number) if c.isdigit()]
    changed = [
        number[:i] + str((int(number[i]) + step) % 10) + number[i + 1 :]
        for i in places
        for step in (1, 3, 7)
    ]
    kept = [n for n in changed if (kind, n) in list_spans(f"{word}: {n}")]
    assert len(kept) <= len(changed) / 6, kept


@pytest.mark.parametrize("zero", ["٠", "०", "０", "๐", "𝟎"])
def test_digits_and_separators_of_any_script_are_recognised(zero):
    for number, kind in (
        ("4111 1111-1111 1111", None),
        ("4111 1111 1111 1111", "CARD"),
        ("93.184.216.34", "IP"),
        ("+442083661177", "PHONE"),
        ("536-90-4399", "SSN"),
        ("390.533.447-05", "BR_CPF"),
    ):
        written = "".join(chr(ord(zero) + int(c)) if c.isdigit() else c for c in number)
        for space, dash in ((" ", "-"), ("\u00a0", "\u2011"), ("\u202f", "–"), ("\u3000", "－")):
            value = written.replace(" ", space).replace("-", dash)
            text = f"漢字 {value} é"
            assert list_spans(text) == ([(kind, value)] if kind else [])
            assert find_spans_by_row(
                pa.array([text], pa.large_string()), PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES
            ).get(0, []) == (
                find_personal_data_spans(text, PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES)
            )


@given(st.text())
def test_folding_keeps_positions(text):
    folded = fold_digits_and_separators(text)
    assert len(folded) == len(text)
    for before, after in zip(text, folded, strict=True):
        if unicodedata.category(before) == "Nd":
            assert after == str(unicodedata.decimal(before))
        elif before.isascii():
            assert after == before
    assert fold_digits_and_separators(folded) == folded


def test_published_numbers_are_found_in_columns():
    """Also an Italian number with letters in place of digits, as used to avoid duplicates."""
    lettered = "RCCMNL" + "UPSMUDVSV"
    texts = [f"{word}: {number}." for word, number, _ in PUBLISHED.values()]
    texts.append(f"cf {lettered}{codicefiscale.calc_check_digit(lettered)}")
    assert ("IT_CF", texts[-1][3:]) in list_spans(texts[-1])
    assert find_spans_by_row(
        pa.array(texts, pa.large_string()), PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES
    ) == {
        row: find_personal_data_spans(text, PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES)
        for row, text in enumerate(texts)
    }


PIECES = [n for _, n, _ in PUBLISHED.values()] + [w for w, *_ in PUBLISHED.values()]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*PIECES, " ", "：", "٣", "–", "1", "A", "\u00a0", "漢"]), max_size=9)
)
def test_the_prefilters_lose_no_span(pieces):
    text = "".join(pieces)
    texts = pa.array(["", text], pa.large_string())
    assert find_spans_by_row(texts, PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES).get(
        1, []
    ) == find_personal_data_spans(text, PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES)
    assert fold_text_column(texts)[0][1].as_py() == fold_text(text).text


@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "12 ",
        "1-2-",
        "AB12",
        "RCCMNL83S18D969",
        "７",
        "1.",
        "ID 1",
        "key=",
        "key: a1B",
        "://a:",
        "x://a:bcd@",
        "=aB1",
        "+1 2",
        "٣–",
    ],
)
def test_adversarial_text_takes_linear_time(piece):
    def seconds(characters):
        texts = pa.array([piece * (characters // len(piece))], pa.large_string())
        start = time.process_time()
        find_spans_by_row(texts, PERSONAL_DATA_TYPES, ["US", "GB", "IT", "DE", "NO"])
        return time.process_time() - start

    seconds(100)  # imports
    # For 16 times the text, allow 64 times the time; quadratic time would be 256 times.
    assert min(seconds(80_000), seconds(80_000)) < 64 * min(seconds(5_000), seconds(5_000)) + 0.05


SECRETS = [
    ('api_key = "q8Zp2LxT9vB4nM7wK1sD"', "q8Zp2LxT9vB4nM7wK1sD"),
    ("AWS_SECRET_TOKEN=wJalrXUtnFEMIK7MDENGbPxRfiCY", "wJalrXUtnFEMIK7MDENGbPxRfiCY"),
    ('"password": "tR4!vq9Zk2"', "tR4!vq9Zk2"),
    (
        "see postgres://app:Zk29vqTr4@db.internal:5432/x",
        "postgres://app:Zk29vqTr4@db.internal:5432",
    ),
    ("GOCSPX-" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7c", None),
]


@pytest.mark.parametrize(("text", "value"), SECRETS)
def test_credentials_are_found(text, value):
    assert list_spans(text) == [("SECRET", value or text)]


@pytest.mark.parametrize(
    "text",
    [
        'api_key = "YOUR_API_KEY_GOES_HERE"',
        "password = getpass.getpass()",
        "token = tokenizer.encode(text)",
        'key = "some/path/to/a/file.txt"',
        "keyboard: qwertyuiopasdfgh",
        "postgres://user:password@localhost/db",
        "https://example.com:8080/path@2x.png",
        "password: $ecretFromTheEnvironment1",
        "sort(key=lambda pair: pair.second)",
    ],
)
def test_placeholders_of_credentials_are_not_found(text):
    assert list_spans(text) == []


def test_a_word_that_is_cut_by_the_distance_is_no_word_for_a_number():
    """The end of "APESEL" is 80 characters before the number."""
    for distance, found in ((70, True), (75, True)):
        text = "PESEL" + " " * distance + "44051401359"
        assert bool(find_personal_data_spans(text, regions=("PL",))) == found
        assert not find_personal_data_spans("A" + text, regions=("PL",))


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("PESEL" + " " * 75 + "44051401359", True),
        ("PESEL" + " " * 76 + "44051401359", False),
        ("44051401359" + " " * 25 + "PESEL", True),
        ("44051401359" + " " * 26 + "PESEL", False),
    ],
)
def test_a_word_for_a_number_is_at_most_80_characters_before_or_30_after_it(text, is_found):
    assert bool(find_personal_data_spans(text, regions=("PL",))) == is_found


@pytest.mark.parametrize(
    ("number", "is_found"),
    [("AB 11 11 11 C", False), ("AB 11 11 12 C", True), ("AB 12 34 56 C", True)],
)
def test_a_number_of_one_repeated_digit_is_a_placeholder(number, is_found):
    text = f"National insurance number: {number}"
    assert list_spans(text, ["GB"]) == [("GB_NINO", number)] * is_found


def test_five_equal_digits_are_no_placeholder():
    assert list_spans("RSSMRA11A11H1LMT", ["IT"]) == [("IT_CF", "RSSMRA11A11H1LMT")]


@pytest.mark.parametrize(
    ("text", "card"),
    [
        ("card 4111 1111 1111 1111 123, thanks", "4111 1111 1111 1111"),
        ("card 4111-1111-1111-1111-123", "4111-1111-1111-1111"),
        ("paid 5555 5555 5555 4444 999 EUR", "5555 5555 5555 4444"),
        ("card 4111 1111 1111 1112 123", None),
        ("card 3782 822463 10005", "3782 822463 10005"),
    ],
)
def test_a_card_is_found_before_a_security_code_or_an_amount(text, card):
    spans = find_personal_data_spans(text)
    assert [text[span.start : span.end] for span in spans] == ([card] if card else [])
