"""Test numbers and addresses next to marks and escapes, and other numbers that resemble them."""

import re
import time

import phonenumbers
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.personal.folding import FoldedText, fold_text, fold_text_column
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES
from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "CH", "PL", "SE", "RU", "CN", "JP", "IN", "BR")
VALUES = {
    "CARD": "4111 1111 1111 1111",
    "SSN": "536-90-4399",
    "IBAN": "DE89 3704 0044 0532 0130 00",
    "PHONE": "650-253-0000",
    "IP": "93.184.216.34",
    "EMAIL": "ann.lee@mail.example.org",
}
INTERNATIONAL = "+1 650 253 0000"


def list_spans(text, regions=("US",), types=PERSONAL_DATA_TYPES):
    spans = find_personal_data_spans(text, types, regions)
    assert find_spans_by_row(pa.array(["", text], pa.large_string()), types, regions) == (
        {1: spans} if spans else {}
    )
    return [(span.type, text[span.start : span.end]) for span in spans]


def list_values(text, regions=("US",), types=PERSONAL_DATA_TYPES):
    return [value for _, value in list_spans(text, regions, types)]


# Marks next to a value ---------------------------------------------------------------------------

MARKS = ["_{}_", "__{}__", "*{}*", "**{}**", "`{}`", "~~{}~~", "|{}|", "({})", "[{}]", "“{}”"]
MARKS += [
    "{}-",
    "{}--",
    "-{}",
    "--{}",
    "–{}",
    "{}–",
    "—{}—",
    "{}—I will",
    "paid—{}—A friend",
    "{}–A",
]
MARKS += ["{} -", "- {}", "/{}/", "{}…", "...{}", "..{}", "{}.", "{}:", "={}", "第{}号", "{}년"]
ESCAPES = [
    r"\n{}\n",
    r"a\t{}\t",
    r"\r\n{}",
    r"\\n{}",
    r"a\u00a0{}\u00a0b",
    r"\u0020{}",
    r"\u003c{}>",
]
ESCAPES += ["a%20{}%20b", "%0A{}", "%0D%0A{}%0D%0A", "%C2%A0{}", "%2520{}", "&nbsp;{}&nbsp;"]
ESCAPES += ["a&#160;{}", "q=%22{}%22", "x%3D{}%26y", r"\n\n\t{}", "%20%20{}"]


@pytest.mark.parametrize("around", [*MARKS, *ESCAPES])
@pytest.mark.parametrize(("data_type", "value"), VALUES.items(), ids=list(VALUES))
def test_a_value_is_found_next_to_marks_and_escapes(around, data_type, value):
    assert list_spans(around.replace("{}", value)) == [(data_type, value)]


@pytest.mark.parametrize("around", [*MARKS, *ESCAPES])
def test_an_international_number_is_found_next_to_marks_and_escapes(around):
    assert list_values(around.replace("{}", INTERNATIONAL)) == [INTERNATIONAL]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "pay%20DE89%203704%200044%200532%200130%2000%20now",
            "DE89%203704%200044%200532%200130%2000",
        ),
        ("?card=4111%201111%201111%201111&x=1", "4111%201111%201111%201111"),
        ("?phone=%2B16502530000&x", "%2B16502530000"),
        ("?tel=%2B1%20650%20253%200000", "%2B1%20650%20253%200000"),
        ("?tel=%28650%29%20253-0000", "%28650%29%20253-0000"),
        (r'{"tel": "650\u2013253\u20130000"}', r"650\u2013253\u20130000"),
        (r'{"phone": "650\u00a0253\u00a00000"}', r"650\u00a0253\u00a00000"),
        ("Phone&nbsp;650&nbsp;253&nbsp;0000", "650&nbsp;253&nbsp;0000"),
        (r"\nGB82WEST12345698765432", "GB82WEST12345698765432"),
        (r"\n2606:2800:220:1:248:1893:25c8:1946", "2606:2800:220:1:248:1893:25c8:1946"),
        (r'{"tel": "\u002b49\u00a030\u00a0901820"}', r"\u002b49\u00a030\u00a0901820"),
        (r"to:\nzoë@müller.example\n", "zoë@müller.example"),
        (
            r"form\u00a0" + "6011\u20099984\u20095491\u20097401" + r"\t",
            "6011\u20099984\u20095491\u20097401",
        ),
        (r"form%20" + "٦٥٠-٢٥٣-٠٠٠٠%20", "٦٥٠-٢٥٣-٠٠٠٠"),
        (r"to:\nann%40mail.example.org", "ann%40mail.example.org"),
    ],
)
def test_an_escaped_value_is_found_with_its_escapes(text, value):
    assert list_values(text) == [value]


def test_positions_are_converted_behind_several_escapes():
    text = r"a\u00a0650-253-0000 \n93.184.216.34%20ann@x.example &nbsp;4111 1111 1111 1111"
    assert list_values(text) == [
        "650-253-0000",
        "93.184.216.34",
        "ann@x.example",
        "4111 1111 1111 1111",
    ]
    folded = fold_text(r"x\n650253%201")
    assert folded == FoldedText("x\n650253 1", [2, 9], [1, 3])
    assert [folded.find_original_position(i) for i in (0, 1, 2, 8, 9, 10)] == [0, 1, 3, 9, 12, 13]
    assert fold_text("١ \\n") == FoldedText("1 \\n", [], [])


def test_only_escapes_next_to_values_are_decoded():
    for text in (r"a\nb", r"C:\new\table", "a%20b", "100%25", r"\d12", "x=%41b%2Fc", r"\u00e91 a"):
        assert fold_text(text) == FoldedText(text, [], [])


def test_a_column_is_folded_like_each_text():
    texts = ["", "a", r"\n650253000", "٣", "an\u200bn@x.example", "%20%20%2012345678 %40"]
    column, moved_texts = fold_text_column(pa.array(texts, pa.large_string()))
    folded = [fold_text(text) for text in texts]
    assert column.to_pylist() == [text.text for text in folded]
    assert moved_texts == {row: folded[row] for row in (2, 4, 5)}


INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"


@pytest.mark.parametrize("mark", INVISIBLE)
def test_invisible_marks_inside_an_address_belong_to_it(mark):
    address = VALUES["EMAIL"]
    for i in range(1, len(address)):
        value = address[:i] + mark + address[i:]
        assert list_spans(f"see {value} now") == [("EMAIL", value)]
    assert list_values(f"{mark}{address}{mark} now") == [address]
    assert list_values(f"联系{mark}{address}{mark}谢谢") == [address]
    assert list_values(f"a{mark}b 650-253-0000") == ["650-253-0000"]


# Telephone numbers -------------------------------------------------------------------------------

KINDS = (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE)
NATIONAL = phonenumbers.PhoneNumberFormat.NATIONAL
EXAMPLES = [
    (region, phonenumbers.format_number(number, NATIONAL), phonenumbers.format_number(number, 1))
    for region in (*SUPPORTED_COUNTRIES, "HK", "SG", "MY", "TW", "VN", "ID", "PH", "HU")
    for number in (phonenumbers.example_number_for_type(region, kind) for kind in KINDS)
]
assert all(international.startswith("+") for _, _, international in EXAMPLES)


@pytest.mark.parametrize("separator", ["", " ", ".", "-", "/", " / ", " - ", " . ", " – ", " — "])
def test_a_number_with_any_separators_is_found_after_a_word(separator):
    for region, national, _ in EXAMPLES:
        value = separator.join(re.findall(r"\d+", national))
        for text in (f"Tel.: {value}.", f"電話：{value}まで", f"telefon {value}, please"):
            assert list_values(text, (region,), ("PHONE",)) == [value], text


@pytest.mark.parametrize("separator", ["", " ", ".", "-", " / ", " - ", " – "])
def test_an_international_number_with_any_separators_is_found(separator):
    for _, national, international in EXAMPLES:
        groups = re.findall(r"\+?\d+", international)
        values = [separator.join(groups), f"({groups[0]}) {' '.join(groups[1:])}"]
        if re.match(r"\(?0[1-9]", national) and groups[0] not in ("+39", "+54", "+36"):
            values.append(f"{groups[0]} (0){' '.join(groups[1:])}")
        for value in values:
            assert list_values(f"Ask {value} today", (), ("PHONE",)) == [value]


def test_a_number_after_the_international_prefix_is_found():
    for region, _, international in EXAMPLES:
        value = "00" + international[1:]
        found = list_values(f"Ask {value} today", (region,), ("PHONE",))
        assert found == [value] or (found == [] and re.search(r"^00\d+-", value)), value
        digits = re.sub(r"\D", "", value)
        assert list_values(f"Tel: {digits}", (region,), ("PHONE",)) == [digits]


@pytest.mark.parametrize(
    ("text", "regions", "values"),
    [
        ("Ask +1.201-555-0123 or +1.2015550123", (), ["+1.201-555-0123", "+1.2015550123"]),
        ("01.23.45.67.89 or 06-12-34-56-78", ("FR",), ["01.23.45.67.89", "06-12-34-56-78"]),
        ("Tel. 32.12.34.56", ("DK",), ["32.12.34.56"]),
        ("Tel. 22.123.45.67", ("PL",), ["22.123.45.67"]),
        ("(0171) 1234567, (089)1234567", ("DE",), ["(0171) 1234567", "(089)1234567"]),
        ("030 / 12345678", ("DE",), ["030 / 12345678"]),
        ("Tel: +49 (0) 30 / 90 18 20", ("DE",), ["+49 (0) 30 / 90 18 20"]),
        ("650-253-0000/650-253-0001", ("US",), ["650-253-0000", "650-253-0001"]),
        ("650-253-0000 650-253-0001", ("US",), ["650-253-0000", "650-253-0001"]),
        ("(650) 253-0000 94043 Mountain View", ("US",), ["(650) 253-0000"]),
        ("06 12 34 56 78 06 12 34 56 79", ("FR",), ["06 12 34 56 78", "06 12 34 56 79"]),
        ("TEL03-1234-5678", ("JP",), ["03-1234-5678"]),
        ("03ー1234ー5678", ("JP",), ["03ー1234ー5678"]),
        ("phone_number_6502530000", ("US",), ["6502530000"]),
        ("+1 650 253 0000 2024", (), ["+1 650 253 0000"]),
        ("+44 20 7183 8750 10 Downing Street", (), ["+44 20 7183 8750"]),
        (
            "+1 650 253 0000 ext. 12, +16502530000x7",
            (),
            ["+1 650 253 0000 ext. 12", "+16502530000x7"],
        ),
        ("+ 49 30 901820", (), ["+ 49 30 901820"]),
        ("+16502530000is +1650253000012345678", (), []),
        ("phone 6502530000x12, 6502530001xyz", ("US",), ["6502530000x12"]),
        # Saint Helena and Niue have the shortest numbers.
        ("Ask +683 4002 or +290 8000", (), ["+683 4002", "+290 8000"]),
        # A part of a longer number that other marks than spaces and slashes separate.
        ("Tel. 212-253-0000-9-1", ("US",), []),
        ("Tel. 212-253-0000 9-1", ("US",), ["212-253-0000"]),
        # The number is in parentheses, not its area code.
        ("Tel. (6502530000)", ("US",), ["6502530000"]),
        ("Tel. (65025) 30000", ("US",), ["(65025) 30000"]),
    ],
)
def test_the_forms_of_telephone_numbers(text, regions, values):
    assert list_values(text, regions, ("PHONE",)) == values


@pytest.mark.parametrize(
    ("region", "form"),
    [
        ("US", "650 253 {:04}"),
        ("US", "650253{:04}"),
        ("FR", "06 12 34 {:02} 78"),
        ("GB", "020 7946 {:04}"),
        ("IT", "333 123 {:04}"),
        ("ES", "612 34 {:02} 11"),
        ("DE", "030 9018{:03}"),
    ],
)
def test_a_list_of_numbers_separated_by_spaces_is_split(region, form):
    for count in (2, 3, 8, 12, 40):
        values = [form.format(10 + i) for i in range(count)]
        assert list_values("Phone numbers: " + " ".join(values), (region,), ("PHONE",)) == values


def test_numbers_are_found_after_groups_that_are_no_number():
    text = "Tel. 650 253 0000 11 650 253 0001 99"
    assert list_values(text, types=("PHONE",)) == ["650 253 0000", "650 253 0001"]
    assert list_values("Tel. 11 650 253 0000", types=("PHONE",)) == []


OTHER_NUMBERS = [
    # quantities and prices after words that also have other meanings
    "mobile 1200 minutes for 29.90, mobile sales of 512 345 678 units",
    "mobile traffic grew to 612 345 678 visits, mobile users: 1 234 567",
    "Call of Duty sold 650 253 1000 copies, cell line 293 650 253 0000, ring size 6502530000",
    "Handy 512 345 678 €, Kom. 512 345 678 zł, celular 3 120 450 000 usuarios, mobile $6502530000",
    "téléphonie mobile : 612 345 678 abonnés, Telefónica reported 612345678 euros",
    "call 2019 2020 2021, Fax 2021/2022 123456, mobile 1999-2004 12, portable 512 345 678 bytes",
    "call 12345.67, mobile 1 234 567.89, handy: 123456, tel aviv 650 253 0000 people",
    # numbers of other things
    "CEP 01310-100, CEP: 01310100, cep 01310-100 São Paulo",
    "SKU 650-253-0000, P/N 650-253-0000, case 650-253-0000, tracking numbers 650-253-0000",
    "Order 650-253-0000, order numbers: 650-253-0000, customer no. 650-253-0000",
    "Kundennummer 030 901820, Kontonummer 030 901820, Aktenzeichen 030 901820",
    "call id 6502530000, call ID: 650-253-0000, library call number: 612 345 678",
    "phone model 6502530000, phone case 6502530000, mobile app id 6502530000",
    "iPhone 14 2022 128 256",
    "RFC 2356 3569, RFCs 2356, 3569 4567",
    # lists and tables
    "06 12 18 24 30, 02 04 06 08 10, 08 15 22 29, Lotto 01 12 23 34 45, 01-02-03-04-05",
    "open 0800 1200, Mon 0900 1730",
    "0069 0307 0301; 00CC; 0033 1234 5678",
    "+4953-09709, +550737-1313435, +40.712776 -74.005974, x[:] = 6 + 98172488, +12345.6789",
    "part no. 0049-3131-167, 004-3131-16, 00999 123 4567",
    "-2020-01-01 00:00:00, 11 020 7946 0018, 020 7946 0018 99",
]


@pytest.mark.parametrize("text", OTHER_NUMBERS)
@pytest.mark.parametrize("regions", [("US",), (*REGIONS, "HK", "SG")], ids=["US", "many"])
def test_other_numbers_are_no_telephone_numbers(text, regions):
    assert list_values(text, regions, ("PHONE",)) == []


@pytest.mark.parametrize(
    "text",
    ["mobile: 6502530000", "call us at 6502530000", "cell 6502530000", "Her mobile is 6502530000"],
)
def test_an_ambiguous_word_announces_a_number_that_follows_it_directly(text):
    assert list_values(text) == ["6502530000"]


def test_a_parenthesis_belongs_to_a_number_and_a_currency_excludes_one():
    assert list_values("phone (650) 253.0000 now", types=("PHONE",)) == ["(650) 253.0000"]
    assert list_values("mobile: EUR 6502530000, mobile: $6502530001", types=("PHONE",)) == []


def test_an_ambiguous_word_announces_a_number_that_no_quantity_can_be():
    assert list_values("call Ann's desk 02071838750", ("GB",)) == ["02071838750"]
    assert list_values("call Ann's desk 6502530000", types=("PHONE",)) == []
    assert list_values("call toll-free 8002530000", types=("PHONE",)) == ["8002530000"]


def test_candidates_after_a_word_take_little_time_in_ten_regions():
    """Each took up to 75 ms; allow 10 ms for any machine."""
    numbers = [
        f"tel {n % 97 + 3} {n % 89 + 11} {n * 7 % 9973} {n * 31 % 97} {n * 13 % 911} {n}"
        for n in range(1000, 1100)
    ]
    text = " ".join(numbers)
    find_personal_data_spans("tel 6502530000")
    start = time.process_time()
    find_personal_data_spans(text, ("PHONE",), REGIONS[:10])
    assert time.process_time() - start < 0.010 * len(numbers)


# IP addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '"version": "93.184.216.34"',
        "version='93.184.216.34'",
        "<version>93.184.216.34</version>",
        'AssemblyVersion("93.184.216.34")',
        "v1.2.3.4, v93.184.216.34, ver. 93.184.216.34, rev: 93.184.216.34, OID 93.184.216.34",
        "Chrome/120.0.6099.1, Chrome/93.184.216.34, foo-93.184.216.34, foo_v93.184.216.34-beta",
        '"version": "1.4.200.3", foo 1.4.200.3 released, updated to 1.4.200.3, SDK 33.0.1.2',
        "Firefox 115.0.2.99, OpenSSL 1.1.1.55, glibc 2.31.0.44, Kap. 12.3.44.5, 3.14.15.92",
        "numpy==93.184.216.34, numpy>=93.184.216.34, extras[x]==93.184.216.34, 93.184.216.34-rc1",
        "1.93.184.216.34, 93.184.216.34.1, 93.184.216.34-5, 01.23.45.67.89",
    ],
)
def test_a_version_is_no_ip_address(text):
    assert list_values(text, types=("IP",)) == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("93.184.216.34-93.184.216.99", ["93.184.216.34", "93.184.216.99"]),
        ("93.184.216.34–93.184.216.99,", ["93.184.216.34", "93.184.216.99"]),
        ("93.184.216.34 - 93.184.216.99", ["93.184.216.34", "93.184.216.99"]),
        ("allow 93.184.0.0-93.184.255.255;", ["93.184.0.0", "93.184.255.255"]),
        ("10.0.0.1-93.184.216.34", ["93.184.216.34"]),
        ("host 8.8.8.0-8.8.8.255", ["8.8.8.255"]),
        ("93.184.216.0/24", ["93.184.216.0"]),
        # private addresses, addresses of documentation, and versions
        ("10.0.0.1-10.0.0.254, 192.0.2.0/24, 192.0.2.10-192.0.2.20", []),
        ("1.0.0.32-1.0.0.45, v93.184.216.34-93.184.216.99, foo-93.184.216.34-93.184.216.99", []),
        ("93.184.216.34-93.184.216.99.1, 93.184.216.34-93.184.216.99-rc1", []),
        ("93.184.216.34-93.184.216, 999.184.216.34-999.184.216.99", []),
    ],
)
def test_the_ends_of_a_range_are_ip_addresses(text, values):
    assert list_values(text, types=("IP",)) == values


@pytest.mark.parametrize(
    "text",
    [
        "tel: 10.143.68.114/24, VoIP phone 192.168.87.75/24",
        "fax 172.19.12.226 to 172.19.53.31, phone 172.19.12.226",
        "Telefonanlage: 192.168.108.10 - 192.168.60.10",
        "phone: 192.168.57.222:5147, SIP phone 192.0.2.44:5060",
        "phone 93.184.216.34-93.184.216.99, phone: 93.184.216.34/24, phone: 32.12.34.56:5060",
        "telephone range 22.12.34.56–22.12.34.99, tel. 10.32.12.34",
    ],
)
def test_an_internet_address_after_a_word_for_a_telephone_is_no_number(text):
    assert list_values(text, (*SUPPORTED_COUNTRIES, "HK", "SG"), ("PHONE",)) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Tel. 32.12.34.56", "32.12.34.56"),
        ("Tel. 32.12.34.56/57", "32.12.34.56"),
        ("Tel. 32.12.34.56-", "32.12.34.56"),
    ],
)
def test_a_number_written_like_an_address_is_found_after_a_word(text, value):
    assert list_values(text, ("DK",), ("PHONE",)) == [value]


def test_an_ip_address_has_two_numbers_from_32_on_or_one_after_a_word_for_a_host():
    for address in ("93.32.1.2", "32.93.1.2"):
        assert list_values(f"see {address} now", types=("IP",)) == [address]
        assert list_values(f"see {address.replace('32', '31')} now", types=("IP",)) == []
    assert list_values("host 8.8.8.32, host 8.8.8.31", types=("IP",)) == ["8.8.8.32"]


def test_a_zero_as_second_number_is_usual_in_versions():
    assert list_values("see 93.1.184.34 or 93.0.184.34", types=("IP",)) == ["93.1.184.34"]
    assert list_values("host 93.0.184.34, host 93.0.0.0", types=("IP",)) == ["93.0.184.34"]


@pytest.mark.parametrize("word", ["prev", "srv", "dev:", "recv", "Nov", "ENV=", "出版", "review:"])
def test_a_word_that_ends_like_one_for_a_version_may_precede_an_ip_address(word):
    assert list_values(f"{word} 93.184.216.34") == ["93.184.216.34"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ip:2a00:1450:4001:81b::200e", ["2a00:1450:4001:81b::200e"]),
        ("2a00:1450:4001:81b::200e: up", ["2a00:1450:4001:81b::200e"]),
        ("2606:2800::/32", ["2606:2800::"]),
        ("fe80::2a00:1450:4001:81b", []),
        ("fd00:1:2a00:1450:4001:81b::1", []),
    ],
)
def test_an_ipv6_address_may_have_colons_next_to_it(text, values):
    assert list_values(text) == values


# Cards, accounts and national numbers ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2026 4111 1111 1111 1111", ["4111 1111 1111 1111"]),
        ("1 4111 1111 1111 1111, 100 4111 1111 1111 1111", ["4111 1111 1111 1111"] * 2),
        (
            "4111 1111 1111 1111 5555 5555 5555 4444",
            ["4111 1111 1111 1111", "5555 5555 5555 4444"],
        ),
        ("4111  1111  1111  1111", ["4111  1111  1111  1111"]),
        ("4111.1111.1111.1111 4111_1111_1111_1111", ["4111.1111.1111.1111", "4111_1111_1111_1111"]),
        (
            "VISA-4111 1111 1111 1111, VISA—4111111111111111—I",
            ["4111 1111 1111 1111", "4111111111111111"],
        ),
        ("1-4111 1111 1111 1111, 4111 1111 1111 1111-1", []),
        ("00af 4111 1111 1111 1111", []),
        ("4111 1111 1111 1111 3f00", []),
        ("00000010: 4111 1111 1111 1111", []),
        ("4111 1111 1111 1111 face the", []),
        ("4111 1111 1111 1111 fade-in", []),
        ("2026 4111 1111 1111 1112, 1.4111111111111111, 14111111111111111", []),
        ("4111 1111-1111 1111, 41111 1111 1111 1111", []),
    ],
)
def test_the_neighbours_of_a_card(text, values):
    assert list_values(text, types=("CARD",)) == values


@pytest.mark.parametrize(
    "value",
    [
        "BE68 5390 0754 7034",
        "DZ58 0002 1000 0111 3000 0005 70",
        "MA64 0115 1900 0001 2050 0053 4921",
        "SN08 SN01 0015 2000 0485 0000 3035",
        "CI93 CI00 8011 1301 1342 9120 0589",
        "IR58 0540 1051 8002 1273 1130 07",
    ],
)
def test_an_account_of_any_country_needs_check_digits_only(value):
    for form in (value, value.lower(), value.replace(" ", ""), value.replace(" ", "-")):
        assert list_spans(f"x {form} y") == [("IBAN", form)]
    wrong = value[:2] + str((int(value[2]) + 1) % 10) + value[3:]
    assert list_spans(wrong, (), ("IBAN",)) == []


#: Lengths of account numbers in countries that are not in the registry of SWIFT.
UNREGISTERED_LENGTHS = {
    **{"AO": 25, "BF": 28, "BJ": 28, "CF": 27, "CG": 27, "CI": 28, "CM": 27, "CV": 25, "DZ": 26},
    **{"GA": 27, "GQ": 27, "GW": 25, "IR": 26, "KM": 27, "MA": 28, "MG": 27, "ML": 28, "MZ": 25},
    **{"NE": 28, "SN": 28, "TD": 27, "TG": 28},
}


@pytest.mark.parametrize(("country", "length"), UNREGISTERED_LENGTHS.items())
def test_an_account_of_an_unregistered_country_has_a_fixed_length(country, length):
    for size in (length - 1, length, length + 1):
        account = ("1234567890" * 3)[: size - 4]
        digits = "".join(str(int(character, 36)) for character in f"{account}{country}00")
        number = f"{country}{98 - int(digits) % 97:02d}{account}"
        assert list_values(f"to {number} today", types=("IBAN",)) == [number] * (size == length)


@pytest.mark.parametrize("word", ["BIC", "bic:X", "EUR", "COBADEFF", "COBADEFFXXX"])
def test_a_word_may_follow_an_account_without_a_space(word):
    value = "DE89370400440532013000"
    assert list_values(value + word) == [value]


@pytest.mark.parametrize("rest", ["1", "X", "abcdef", "COBADEFFXX", "0BIC"])
def test_other_letters_and_digits_may_not_follow_an_account(rest):
    assert list_values("DE89370400440532013000" + rest, types=("IBAN",)) == []


def test_words_are_no_account_of_a_country_without_a_known_structure():
    assert list_values("as bf16 tanh quantizes badly near sa turation") == []


@pytest.mark.parametrize(
    ("region", "text", "value"),
    [
        ("IT", "rssmra85t10a562s", "rssmra85t10a562s"),
        ("ES", "dni 12345678z", "12345678z"),
        ("ES", "DNI_12345678Z", "12345678Z"),
        ("GB", "NI number ab123456c", "ab123456c"),
        ("FI", "131052-308t", "131052-308t"),
        ("IN", "PAN acupa1234r", "acupa1234r"),
        ("US", "SSN_536904399", "536904399"),
        ("US", "ssn 536-90-4399.Then", "536-90-4399"),
        ("US", "SSN—536-90-4399—I see", "536-90-4399"),
    ],
)
def test_a_national_number_may_be_in_lower_case(region, text, value):
    assert list_values(text, (region,)) == [value]


# E-mail addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "o'brien@mail.example.org",
        "o’brien@mail.example.org",
        "ann.o'neil+a=b@mail.example.org",
        "bounce+ann=corp.example@mail.example.org",
        "ann!x@mail.example.org",
        "ann#1@mail.example.org",
        "ann~x@mail.example.org",
        "ann^x@mail.example.org",
        "ann$x@mail.example.org",
        '"ann lee"@mail.example.org',
        '"ann \\"lee\\""@mail.example.org',
    ],
)
def test_a_local_part_may_contain_other_characters(address):
    for around in ("see {} there", "<{}>", "{}", "mailto:{}"):
        assert list_spans(around.replace("{}", address)) == [("EMAIL", address)]


@pytest.mark.parametrize(
    "local_part", ["ann=x", "ann&bob", "ann/dept", "a{x}b", "CAF=abc+def_12", "a|b", "a*b", "a?b_"]
)
def test_a_local_part_in_brackets_may_contain_all_characters(local_part):
    address = f"{local_part}@mail.example.org"
    for around in ("<{}>", "mailto:{}", '<a href="mailto:{}">'):
        assert list_values(around.replace("{}", address)) == [address]


@pytest.mark.parametrize("letter", ["\u04ff", "\u1e00", "\u1ffc"])
def test_an_address_may_contain_any_letter_of_scripts_that_use_spaces(letter):
    address = f"a{letter}n@x{letter}.example.org"
    assert list_values(f"see {address} there") == [address]


@pytest.mark.parametrize(("length", "is_found"), [(72, True), (73, False)])
def test_a_local_part_with_a_tag_may_have_72_characters(length, is_found):
    local_part = f"{'b' * 20}+{'c' * (length - 27)}=x.org"
    address = f"{local_part}@mail.example.org"
    assert list_values(f"see {address}") == [address if is_found else "x.org@mail.example.org"]


@pytest.mark.parametrize(
    "text", ["email={}", "?a=1&email={}&b=2", "x/{}", "$e={}", "#{}", "!{}", "he!!{}"]
)
def test_a_mark_before_an_address_does_not_belong_to_it(text):
    assert list_values(text.replace("{}", VALUES["EMAIL"])) == [VALUES["EMAIL"]]


# Properties --------------------------------------------------------------------------------------

surroundings = st.lists(
    st.sampled_from(
        [*"aZé漢字–—-_*`~.,:=@/%&?+()[]{}\"'\u00a0\u200b\t\n ", "9–5 ", "word ", r"\n"]
    ),
    max_size=20,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(
    surroundings,
    surroundings,
    st.sampled_from([*MARKS, *ESCAPES]),
    st.sampled_from([*VALUES.values(), INTERNATIONAL]),
)
def test_a_value_is_found_in_every_neighbourhood_in_any_text(before, after, around, value):
    prefix = f"{before} {around.partition('{}')[0]}"
    text = f"{prefix}{value}{around.partition('{}')[2]} {after}"
    spans = find_personal_data_spans(text)
    assert any(
        span.start <= len(prefix) and len(prefix) + len(value) <= span.end for span in spans
    ), text


PIECES = [INTERNATIONAL, "030 / 901820", "Tel. ", "2026 ", "\u200b", "%20", "%2B", "&nbsp;", "00"]
PIECES += [r"\n", r"\u00a0", *"١–a( 1_-./"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([*VALUES.values(), *PIECES]),
        max_size=12,
    ).map("".join)
)
def test_searching_one_text_and_a_batch_gives_the_same(text):
    regions = ("US", "DE", "FR")
    rows = find_spans_by_row(pa.array(["x", text], pa.large_string()), PERSONAL_DATA_TYPES, regions)
    assert rows.get(1, []) == find_personal_data_spans(text, PERSONAL_DATA_TYPES, regions)
