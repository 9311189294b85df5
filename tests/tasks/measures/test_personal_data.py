"""Test detectors: known values, text without personal data, and linear time."""

import ipaddress
import time

import phonenumbers
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.personal_data import (
    PERSONAL_DATA_TYPES,
    Span,
    find_personal_data_spans,
    find_spans_by_row,
    resolve_overlaps,
)

FILL = "abcdefghij" * 4


def list_spans(text, **more):
    return [
        (span.type, text[span.start : span.end]) for span in find_personal_data_spans(text, **more)
    ]


KNOWN = [
    # RFC 5322 and RFC 6531 addresses
    ("EMAIL", "john.doe@machine.example"),
    ("EMAIL", "o'brien+list@sub.example.co.uk"),
    ("EMAIL", "jörg@müller.example"),
    # Public addresses that route
    ("IP", "93.184.216.34"),
    ("IP", "2606:2800:220:1:248:1893:25c8:1946"),
    ("IP", "2001:4860:4860::8888"),
    # Test numbers that card issuers publish
    ("CARD", "4111 1111 1111 1111"),
    ("CARD", "5555555555554444"),
    ("CARD", "2223-0031-2200-3222"),
    ("CARD", "3782 822463 10005"),
    ("CARD", "6011111111111117"),
    ("CARD", "3056 930902 5904"),
    ("CARD", "3530111333300000"),
    ("CARD", "6200000000000005"),
    # Examples of the IBAN registry
    ("IBAN", "GB82 WEST 1234 5698 7654 32"),
    ("IBAN", "DE89370400440532013000"),
    ("IBAN", "NO93 8601 1117 947"),
    ("IBAN", "MT84MALT011000012345MTLCAST001S"),
    ("SSN", "536-90-4399"),
    ("PHONE", "+41 44 668 18 00"),
    ("PHONE", "+442083661177"),
    ("PHONE", "(650) 253-0000"),
    ("PHONE", "650-253-0000"),
    ("PHONE", "650.253.0000"),
    # Concatenated, so that secret scanners ignore this file
    ("SECRET", "AKIA" + "IOSFODNN7EXAMPLE"),
    ("SECRET", "ghp_" + FILL[:36]),
    ("SECRET", "glpat-" + FILL[:20]),
    ("SECRET", "xoxb-" + "123456789012-1234567890123-" + FILL[:24]),
    ("SECRET", "sk_live_" + FILL[:24]),
    ("SECRET", "npm_" + FILL[:36]),
    ("SECRET", "SG." + FILL[:22] + "." + (FILL + FILL)[:43]),
    ("SECRET", "sk-" + FILL[:20] + "T3BlbkFJ" + FILL[:20]),
    (
        "SECRET",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"
        ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    ),
    (
        "SECRET",
        "-----BEGIN RSA "
        + "PRIVATE KEY-----\n"
        + "TUlJRQ+/" * 20
        + "\n-----END RSA PRIVATE KEY-----",
    ),
]


@pytest.mark.parametrize("around", ["{}", "Größe 漢字 {} and so on.", "x: {}\n", "({}), <{}>"])
@pytest.mark.parametrize(
    ("kind", "value"), KNOWN, ids=[f"{k}-{i}" for i, (k, _) in enumerate(KNOWN)]
)
def test_known_values_are_found_completely(kind, value, around):
    text = around.replace("{}", value)
    assert list_spans(text) == [(kind, value)] * around.count("{}")


#: Sentences without spaces between words, adjacent to an address.
UNSPACED = [
    "发邮件至{}我们会在三个工作日之内尽快回复您的所有问题和建议谢谢",
    "地址{}的",
    "メールは{}までお願いします。",
    "อีเมล{}ครับ",
    "메일은{}으로",
    "请联系{}.我们会尽快回复您的所有问题.",
    "请看地址({})以及" + "很长的没有空格的文字" * 20,
]


@pytest.mark.parametrize("around", UNSPACED, ids=range(len(UNSPACED)))
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("EMAIL", "abc@example.com"),
        ("EMAIL", "o'brien+list.x@sub.example.co.uk"),
        ("EMAIL", "123456789@qq.example"),
        ("EMAIL", "nguyễn@thư.example"),
        ("IP", "93.184.216.34"),
        ("IP", "2606:2800:220:1:248:1893:25c8:1946"),
        ("SECRET", "amqp://app:" + "Zk3vQ9xw" + "@queue.example:5672"),
        ("SECRET", "amqp://app:" + "Zk3vQ9xw" + "@[2606:2800:220::1946]"),
    ],
)
def test_adjacent_text_without_spaces_is_not_part_of_a_value(kind, value, around):
    text = around.replace("{}", value)
    assert list_spans(text) == [(kind, value)]
    assert list_spans(text + around.replace("{}", "12")) == [(kind, value)]


@pytest.mark.parametrize(
    "value",
    [
        "用户@例子.公司",
        "用户1@例子.中国",
        "محمد.2@مثال.مصر",
        "δοκιμή@παράδειγμα.ελ",
        "john@例子.com",
        "john@東京tokyo.example",
        "jörg.weiß@bücher.example",
    ],
)
@pytest.mark.parametrize("around", ["{}", "x {} y", "({}), <{}>", "地址：{}。", "「{}」"])
def test_an_address_in_another_script_is_found_completely(value, around):
    assert list_spans(around.replace("{}", value)) == [("EMAIL", value)] * around.count("{}")


@pytest.mark.parametrize(
    "text",
    [
        "当前版本93.184.216.34已发布",
        "版本号:93.184.216.34",
        "バージョン93.184.216.34です",
        "图片image@2x.png在这里",
        "请用git@github.com:user/repo下载",
        "余额93.184.216.345元",
    ],
)
def test_text_without_spaces_causes_no_false_positives(text):
    assert list_spans(text) == []


def test_detect_secrets_confirms_our_examples():
    """An independent detector also recognises each of our examples as a secret."""
    from detect_secrets.plugins.aws import AWSKeyDetector
    from detect_secrets.plugins.github_token import GitHubTokenDetector
    from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
    from detect_secrets.plugins.jwt import JwtTokenDetector
    from detect_secrets.plugins.openai import OpenAIDetector
    from detect_secrets.plugins.private_key import PrivateKeyDetector
    from detect_secrets.plugins.sendgrid import SendGridDetector
    from detect_secrets.plugins.slack import SlackDetector
    from detect_secrets.plugins.stripe import StripeDetector

    plugins = [AWSKeyDetector(), GitHubTokenDetector(), GitLabTokenDetector(), JwtTokenDetector()]
    plugins += [OpenAIDetector(), PrivateKeyDetector(), SendGridDetector(), SlackDetector()]
    plugins += [StripeDetector()]
    ours = [value for kind, value in KNOWN if kind == "SECRET"]
    known = [p for p in plugins if any(any(p.analyze_string(value)) for value in ours)]
    assert [type(p).__name__ for p in known] == [type(p).__name__ for p in plugins]


@pytest.mark.parametrize(
    "text",
    [
        "version 93.184.216.34 and v93.184.216.34, package==93.184.216.34, Chrome/93.184.216.34",
        "version 1.2.3.4, section 3.2.1.4",
        "127.0.0.1 0.0.0.0 10.1.2.3 192.168.1.1 192.0.2.44 224.0.0.1 255.255.255.0",
        "2001:db8::1, ::1, fe80::1, a[::2], std::vector, 12:30:45, 00:1B:44:11:3A:B7",
        "999.999.999.999 1.2.3.4.5 93.184.216.345",
        "ISBN 978-0-13-110362-7, ISBN 0-306-40615-2, ISSN 2049-3630",
        "2021-03-04 10:11:12, 2021-03-04T10:11:12+01:00, 04/03/2021",
        "[4111111111111112, 4503599627370496, 9007199254740992]",
        "0.4111111111111111 41111111111111111111 x4111111111111111",
        "[[234 567 8901] [345 678 9012]] 234 567 8901 345",
        "3.141-592-6535 1.650-253-0000 1234-567-890-12",
        "GB82 WEST 1234 5698 7654 33, DE00370400440532013000",
        "000-12-3456, 666-12-3456, 912-34-5678, 123-00-4567, 123-45-0000",
        "@functools.cache a@b image@2x.png git@github.com:user/repo x@y.T dot@a.dtype",
        "+1 +2 +3 +4 +5 +6 +7 +8 +9, -35236450.6, +35236450.6",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709 550e8400-e29b-41d4-a716-446655440000",
        "-----BEGIN PRIVATE KEY----- and -----END PRIVATE KEY----- enclose a key",
        "task_list_of_names sk-learn AKIA eyJ npm_install SG.x",
    ],
)
def test_text_without_personal_data_has_no_spans(text):
    assert list_spans(text) == []


def test_capitals_after_an_iban_are_not_part_of_it():
    assert list_spans("IBAN GB82 WEST 1234 5698 7654 32 BANK PLC") == [
        ("IBAN", "GB82 WEST 1234 5698 7654 32")
    ]


def test_national_phone_numbers_need_their_region():
    text = "Call 020 7946 0018 or (020) 7946 0018."
    assert list_spans(text, regions=("GB",)) == [
        ("PHONE", "020 7946 0018"),
        ("PHONE", "(020) 7946 0018"),
    ]
    assert list_spans(text, regions=("US",)) == []
    assert list_spans("(650) 253-0000", regions=()) == []


@pytest.mark.parametrize("region", ["DE", "FR", "GB", "IN", "US"])
def test_example_numbers_of_a_country_are_found_in_international_form(region):
    for kind in (phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE):
        number = phonenumbers.example_number_for_type(region, kind)
        for form in (
            phonenumbers.PhoneNumberFormat.E164,
            phonenumbers.PhoneNumberFormat.INTERNATIONAL,
        ):
            value = phonenumbers.format_number(number, form)
            assert list_spans(f"Tel.: {value}.") == [("PHONE", value)]


@given(st.integers(0, 2**32 - 1))
def test_an_ip_address_is_found_if_it_is_global(number):
    address = ipaddress.ip_address(number)
    places = [int(place) for place in str(address).split(".")]
    routes = address.is_global and not address.is_multicast
    expected = routes and max(places) >= 32 and places[1:] != [0, 0, 0]
    assert list_spans(f"from {address}:80") == ([("IP", str(address))] if expected else [])


def test_the_longest_of_overlapping_spans_is_kept():
    spans = [Span("IP", 5, 12), Span("EMAIL", 0, 20), Span("PHONE", 18, 25), Span("CARD", 25, 30)]
    assert resolve_overlaps(spans) == [Span("EMAIL", 0, 20), Span("CARD", 25, 30)]
    assert resolve_overlaps([Span("IP", 0, 5), Span("CARD", 0, 5)]) == [Span("CARD", 0, 5)]
    assert resolve_overlaps([Span("IP", 0, 4), Span("CARD", 3, 8), Span("SSN", 7, 11)]) == [
        Span("CARD", 3, 8)
    ]
    assert list_spans("user@93.184.216.34.example.com") == [
        ("EMAIL", "user@93.184.216.34.example.com")
    ]


spans = st.builds(
    lambda kind, start, size: Span(kind, start, start + size),
    st.sampled_from(PERSONAL_DATA_TYPES),
    st.integers(0, 60),
    st.integers(1, 12),
)


@given(st.lists(spans, max_size=20), st.randoms())
def test_resolving_keeps_disjoint_spans_in_any_order(given_spans, shuffler):
    """Compare with a direct implementation: rank all, take each that overlaps none taken before."""
    expected = []
    for span in sorted(
        given_spans, key=lambda s: (s.start - s.end, PERSONAL_DATA_TYPES.index(s.type), s.start)
    ):
        if all(span.end <= other.start or other.end <= span.start for other in expected):
            expected.append(span)
    shuffler.shuffle(given_spans)
    assert resolve_overlaps(given_spans) == sorted(expected, key=lambda s: s.start)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([v for _, v in KNOWN] + ["漢字 ", " ", "é", "-", "1", "text\n"])))
def test_the_prefilters_lose_no_span(pieces):
    text = "".join(pieces)
    expected = find_personal_data_spans(text)
    assert find_spans_by_row(pa.array(["", text], pa.large_string())).get(1, []) == expected


HOSTILE = {
    "digits": "1",
    "dotted": "1.",
    "spaced": "1 ",
    "groups": "12-34 ",
    "letters": "a",
    "local parts": "a@",
    "domains": "a@" + "b." * 30,
    "domains abroad": "字@" + "字b." * 30,
    "unspaced local parts": "字a@",
    "unspaced": "字",
    "dotted letters": "a.",
    "accounts": "AA11" + "A" * 30 + "a ",
    "account words": "AA11 ",
    "cards": "4111 ",
    "plus": "+1 ",
    "tokens": "eyJaaaaaaaaaaa.",
    "token heads": "eyJ",
    "slack": "xoxb-1-1-1-1-",
    "keys": "-----BEGIN PRIVATE KEY-----",
    "hextets": "2001:",
    "white": " ",
    "escapes": r"\n",
    "escapes before digits": r"\n1",
    "encoded spaces": "1%20",
    "invisible marks": "a\u200b",
    "invisible marks before an address": "a\u200b@",
    "quoted local parts": '"a"@b.',
    "tagged local parts": "a+=@b.c",
    "telephone words": "tel 12 34 ",
    "prefixes": "0049 ",
    "plus signs": "+ 49 ",
    "separators": "1 / (2) - ",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=list(HOSTILE))
def test_adversarial_text_takes_linear_time(piece):
    """For 16 times the text, allow 64 times the time; quadratic time would be 256 times.

    CPU time of this process; the fastest of three runs and an allowance of 20 ms reduce noise.
    """

    def seconds(characters):
        texts = pa.array([piece * (characters // len(piece))], pa.large_string())
        times = []
        for _ in range(3):
            start = time.process_time()
            find_spans_by_row(texts)
            times.append(time.process_time() - start)
        return min(times)

    seconds(100)  # imports
    assert seconds(160_000) < 64 * seconds(10_000) + 0.02
