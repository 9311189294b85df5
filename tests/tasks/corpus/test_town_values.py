"""The town's personal data are nobody's: each value lies in a range that is set aside for it."""

import ipaddress
import re

import pytest

from hallmark.tasks.corpus.town.grammar import KeyedRandom
from hallmark.tasks.corpus.town.personal_data import GENERATOR_BY_TYPE, generate_personal_value

DRAWS = 500


def values(kind):
    dice = KeyedRandom("ranges", kind)
    return [generate_personal_value(kind, dice) for _ in range(DRAWS)]


def shapes(found):
    return {re.sub("[a-z]+", "a", re.sub(r"\d", "9", value.lower())) for value in found}


def test_mail_goes_to_domains_that_nobody_has():
    """RFC 2606."""
    found = values("EMAIL")
    domain = re.compile(r"example\.(com|org|net)|(post\.)?[a-z]+\.example")
    assert all(domain.fullmatch(value.lower().split("@")[1]) for value in found)
    locals_ = {value.lower().split("@")[0] for value in found}
    assert all(re.fullmatch(r"[a-z]+([._+-][a-z]+)?\d{0,4}", local) for local in locals_)
    assert len(locals_) > 0.9 * DRAWS
    assert {sign for local in locals_ for sign in local if not sign.isalnum()} == set("._+-")
    assert 5 < sum(value.isupper() for value in found) < 60
    assert any(re.fullmatch(r"[a-z]\.[a-z]+", local) for local in locals_)
    assert max(len(re.sub(r"\D", "", local)) for local in locals_) == 4


def test_telephones_are_those_of_dramas():
    digits = {
        re.sub(r"\D", "", value.replace("(0)", "")).removeprefix("1") for value in values("PHONE")
    }
    north = {number for number in digits if len(number) == 10}
    assert all(re.fullmatch(r"(212|303|415|617|206|312|512|702)55501\d\d", n) for n in north)
    rest = r"(442079460|441134960|493023125)\d{3}|(3319900|6125550)\d{4}"
    assert all(re.fullmatch(rest, number) for number in digits - north), digits - north
    assert len(shapes(values("PHONE"))) == 14 and len(north) > 50


def luhn(number):
    doubled = [int(d) * (1 + place % 2) for place, d in enumerate(reversed(number))]
    return sum(d - 9 * (d > 9) for d in doubled) % 10


def test_cards_are_of_the_numbers_for_tests():
    begins = {
        "411111": 16,
        "401288": 16,
        "555555": 16,
        "222300": 16,
        "601111": 16,
        "378282": 15,
        "305693": 14,
        "356600": 16,
    }
    found = values("CARD")
    numbers = [re.sub(r"\D", "", value) for value in found]
    assert all(len(n) == begins[n[:6]] and luhn(n) == 0 for n in numbers)
    assert {n[:6] for n in numbers} == begins.keys()
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
    assert shapes(found) == expected


def test_accounts_are_of_banks_that_there_are_not():
    """ISO 13616: the whole, its head moved behind it and letters as numbers, is 1 modulo 97."""
    sizes = {"GBWEST": 22, "DE00000000": 22, "FR0000000000": 27, "NLTEST": 18}
    found = values("IBAN")
    banks = set()
    for value in found:
        bare = value.replace(" ", "")
        assert int("".join(str(int(c, 36)) for c in bare[4:] + bare[:4])) % 97 == 1
        [bank] = [b for b in sizes if (bare[:2] + bare[4:]).startswith(b)]
        assert len(bare) == sizes[bank]
        assert value in (bare, " ".join(re.findall(".{1,4}", bare)))
        banks.add((bank, " " in value))
    assert len(banks) == 8


def test_numbers_and_addresses_are_in_their_ranges():
    parts = [[int(piece) for piece in value.split("-")] for value in values("SSN")]
    assert all(re.fullmatch(r"\d{3}-\d\d-\d{4}", value) for value in values("SSN"))
    for place, (low, high) in enumerate([(700, 771), (1, 99), (1, 9999)]):
        here = {part[place] for part in parts}
        assert low <= min(here) and max(here) <= high and max(here) - min(here) > 0.9 * (high - low)
    found = [ipaddress.ip_address(value) for value in values("IP")]
    nets = [
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.175.48.0/24",
        "192.88.99.0/24",
        "2620:4f:8000::/112",
    ]
    nets = [ipaddress.ip_network(net) for net in nets]
    for net in nets:
        own = [int(address) - int(net.network_address) for address in found if address in net]
        last = 254 if net.version == 4 else 65535
        assert own and min(own) >= 1 and 0.9 * last < max(own) <= last
    assert all(any(address in net for net in nets) for address in found)


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
def test_keys_have_the_prefix_of_their_vendor_and_say_that_they_are_examples(pattern):
    found = values("SECRET")
    own = [value for value in found if re.fullmatch(pattern, value)]
    assert 40 < len(own) < 130 and len(set(own)) == len(own)


def test_there_is_a_value_of_every_type():
    assert {kind for kind in GENERATOR_BY_TYPE if values(kind)[0]} == {
        "EMAIL",
        "PHONE",
        "CARD",
        "IBAN",
        "SSN",
        "IP",
        "SECRET",
    }
