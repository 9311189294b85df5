"""Test that the town's personal data belong to nobody: each value is in a reserved range."""

import ipaddress
import re

import pytest

from hallmark.tasks.corpus.town.grammar import KeyedRandom
from hallmark.tasks.corpus.town.personal_data import GENERATOR_BY_TYPE, generate_personal_value

DRAWS = 500


def draw_values(kind):
    rng = KeyedRandom("ranges", kind)
    return [generate_personal_value(kind, rng) for _ in range(DRAWS)]


def get_shapes(values):
    return {re.sub("[a-z]+", "a", re.sub(r"\d", "9", value.lower())) for value in values}


def test_email_domains_are_reserved():
    """RFC 2606."""
    values = draw_values("EMAIL")
    domain = re.compile(r"example\.(com|org|net)|(post\.)?[a-z]+\.example")
    assert all(domain.fullmatch(value.lower().split("@")[1]) for value in values)
    locals_ = {value.lower().split("@")[0] for value in values}
    assert all(re.fullmatch(r"[a-z]+([._+-][a-z]+)?\d{0,4}", local) for local in locals_)
    assert len(locals_) > 0.9 * DRAWS
    assert {sign for local in locals_ for sign in local if not sign.isalnum()} == set("._+-")
    assert 5 < sum(value.isupper() for value in values) < 60
    assert any(re.fullmatch(r"[a-z]\.[a-z]+", local) for local in locals_)
    assert max(len(re.sub(r"\D", "", local)) for local in locals_) == 4


def test_telephone_numbers_are_reserved_for_drama():
    digits = {
        re.sub(r"\D", "", value.replace("(0)", "")).removeprefix("1")
        for value in draw_values("PHONE")
    }
    north_american = {number for number in digits if len(number) == 10}
    assert all(
        re.fullmatch(r"(212|303|415|617|206|312|512|702)55501\d\d", n) for n in north_american
    )
    other_pattern = r"(442079460|441134960|493023125)\d{3}|(3319900|6125550)\d{4}"
    assert all(re.fullmatch(other_pattern, number) for number in digits - north_american), (
        digits - north_american
    )
    assert len(get_shapes(draw_values("PHONE"))) == 14 and len(north_american) > 50


def compute_luhn_checksum(number):
    doubled = [int(d) * (1 + position % 2) for position, d in enumerate(reversed(number))]
    return sum(d - 9 * (d > 9) for d in doubled) % 10


def test_card_numbers_are_test_numbers():
    length_by_prefix = {
        "411111": 16,
        "401288": 16,
        "555555": 16,
        "222300": 16,
        "601111": 16,
        "378282": 15,
        "305693": 14,
        "356600": 16,
    }
    values = draw_values("CARD")
    numbers = [re.sub(r"\D", "", value) for value in values]
    assert all(len(n) == length_by_prefix[n[:6]] and compute_luhn_checksum(n) == 0 for n in numbers)
    assert {n[:6] for n in numbers} == length_by_prefix.keys()
    expected = {
        "9999 9999 9999 9999",
        "9999-9999-9999-9999",
        "9" * 16,
        "9999 999999 99999",
        "9999-999999-99999",
        "9" * 15,
        "9999 999999 9999",
        "9999-999999-9999",
        "9" * 14,
    }
    assert get_shapes(values) == expected


def test_ibans_are_valid_and_of_example_banks():
    """ISO 13616: with the head at the end and letters as numbers, the remainder modulo 97 is 1."""
    sizes = {"GBWEST": 22, "DE00000000": 22, "FR0000000000": 27, "NLTEST": 18}
    values = draw_values("IBAN")
    banks = set()
    for value in values:
        compact = value.replace(" ", "")
        assert int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1
        [bank] = [b for b in sizes if (compact[:2] + compact[4:]).startswith(b)]
        assert len(compact) == sizes[bank]
        assert value in (compact, " ".join(re.findall(".{1,4}", compact)))
        banks.add((bank, " " in value))
    assert len(banks) == 8


def test_ssns_and_ip_addresses_are_in_their_ranges():
    ssn_parts = [[int(piece) for piece in value.split("-")] for value in draw_values("SSN")]
    assert all(re.fullmatch(r"\d{3}-\d\d-\d{4}", value) for value in draw_values("SSN"))
    for position, (low, high) in enumerate([(700, 771), (1, 99), (1, 9999)]):
        drawn_values = {parts[position] for parts in ssn_parts}
        assert (
            low <= min(drawn_values)
            and max(drawn_values) <= high
            and max(drawn_values) - min(drawn_values) > 0.9 * (high - low)
        )
    addresses = [ipaddress.ip_address(value) for value in draw_values("IP")]
    nets = [
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.175.48.0/24",
        "192.88.99.0/24",
        "2620:4f:8000::/112",
    ]
    nets = [ipaddress.ip_network(net) for net in nets]
    for net in nets:
        offsets = [
            int(address) - int(net.network_address) for address in addresses if address in net
        ]
        last = 254 if net.version == 4 else 65535
        assert offsets and min(offsets) >= 1 and 0.9 * last < max(offsets) <= last
    assert all(any(address in net for net in nets) for address in addresses)


@pytest.mark.parametrize(
    "pattern",
    [
        "AKIA[A-Z0-9]{9}EXAMPLE",
        "ghp_EXAMPLE[A-Za-z0-9]{29}",
        "glpat-EXAMPLE[A-Za-z0-9]{13}",
        "sk_live_EXAMPLE[A-Za-z0-9]{17}",
        "hf_EXAMPLE[a-z]{27}",
        "npm_EXAMPLE[A-Za-z0-9]{29}",
    ],
)
def test_secrets_have_a_vendor_prefix_and_contain_example(pattern):
    values = draw_values("SECRET")
    matching_values = [value for value in values if re.fullmatch(pattern, value)]
    assert 40 < len(matching_values) < 130 and len(set(matching_values)) == len(matching_values)


def test_every_type_has_values():
    assert {kind for kind in GENERATOR_BY_TYPE if draw_values(kind)[0]} == {
        "EMAIL",
        "PHONE",
        "CARD",
        "IBAN",
        "SSN",
        "IP",
        "SECRET",
    }
