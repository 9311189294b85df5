"""Generate personal data of nobody, in the formats that people use.

Values come from ranges reserved for fiction, examples or tests, where such ranges exist: domains of
RFC 2606, the regulators' telephone numbers for drama, the card issuers' test numbers, the example
bank of the IBAN registry, and special-purpose Internet addresses. Detectors ignore some reserved
ranges (documentation addresses, social security numbers from advertisements). For those types a
random valid value is used, which may belong to somebody by chance.
"""

from __future__ import annotations

from collections.abc import Callable

from hallmark.tasks.corpus.town.grammar import KeyedRandom
from hallmark.tasks.measures.personal.types import PersonalDataType

_DIGITS = "0123456789"
_LOWERCASE = "abcdefghijklmnopqrstuvwxyz"
_ALPHANUMERIC = _LOWERCASE.upper() + _LOWERCASE + _DIGITS
_SYLLABLES = "bel dra fen gor hal jas kel lum mir nor oth pel quin ras sil tor ul ven wim zar"


def generate_personal_value(data_type: str, rng: KeyedRandom) -> str:
    """Generate a value of this personal data type."""
    return GENERATOR_BY_TYPE[data_type](rng)  # type: ignore[index]


def _draw_string(rng: KeyedRandom, alphabet: str, length: int) -> str:
    return "".join(rng.pick(alphabet) for _ in range(length))


def _draw_invented_word(rng: KeyedRandom) -> str:
    return "".join(rng.sample(_SYLLABLES.split(), 2))


def generate_email(rng: KeyedRandom) -> str:
    first_name, last_name = _draw_invented_word(rng), _draw_invented_word(rng)
    local_part = rng.pick(
        [
            f"{first_name}.{last_name}",
            f"{first_name}_{last_name}{rng.draw_below(100)}",
            f"{first_name[0]}.{last_name}",
            f"{first_name}+{last_name}",
            f"{first_name}-{last_name}",
            f"{last_name}{rng.draw_below(10_000)}",
        ]
    )
    domain = rng.pick(
        [
            "example.com",
            "example.org",
            "example.net",
            f"{_draw_invented_word(rng)}.example",
            f"post.{_draw_invented_word(rng)}.example",
        ]
    )
    address = f"{local_part}@{domain}"
    return address.upper() if rng.draw_bool(0.05) else address


#: Reserved for drama: North America 555-0100 to 0199; Ofcom, London and Leeds; ARCEP, Paris;
#: Bundesnetzagentur, Berlin; ACMA, Sydney. "#" is a digit.
_PHONE_TEMPLATES = (
    "({area}) 555-01##",
    "{area}-555-01##",
    "{area}.555.01##",
    "+1 {area} 555 01##",
    "+1-{area}-555-01##",
    "+1 ({area}) 555-01##",
    "+44 20 7946 0###",
    "+44 (0)20 7946 0###",
    "+442079460###",
    "+44 113 496 0###",
    "+33 1 99 00 ## ##",
    "+33199 00####",
    "+49 30 23125 ###",
    "+61 2 5550 ####",
)
_AREA_CODES = ("212", "303", "415", "617", "206", "312", "512", "702")


def generate_phone_number(rng: KeyedRandom) -> str:
    template = rng.pick(_PHONE_TEMPLATES).format(area=rng.pick(_AREA_CODES))
    return "".join(rng.pick(_DIGITS) if character == "#" else character for character in template)


#: Prefixes of the issuers' published test numbers, with the lengths of the digit groups.
_CARD_PREFIXES = (
    ("411111", (4, 4, 4, 4)),
    ("401288", (4, 4, 4, 4)),
    ("555555", (4, 4, 4, 4)),
    ("222300", (4, 4, 4, 4)),
    ("601111", (4, 4, 4, 4)),
    ("378282", (4, 6, 5)),
    ("305693", (4, 6, 4)),
    ("356600", (4, 4, 4, 4)),
)


def generate_card_number(rng: KeyedRandom) -> str:
    from stdnum import luhn

    prefix, group_lengths = rng.pick(_CARD_PREFIXES)
    digits = prefix + _draw_string(rng, _DIGITS, sum(group_lengths) - len(prefix) - 1)
    digits += luhn.calc_check_digit(digits)
    separator = rng.pick(["", " ", " ", "-"])
    digit_groups = []
    for length in group_lengths:
        digit_groups.append(digits[:length])
        digits = digits[length:]
    return separator.join(digit_groups)


#: Country, bank (the registry's example or an unassigned one) and number of digits after it.
_IBAN_BANKS = (
    ("GB", "WEST", 14),
    ("DE", "00000000", 10),
    ("FR", "0000000000", 13),
    ("NL", "TEST", 10),
)


def generate_iban(rng: KeyedRandom) -> str:
    from stdnum import iban as standard

    country, bank, length = rng.pick(_IBAN_BANKS)
    account = bank + _draw_string(rng, _DIGITS, length)
    compact = f"{country}{standard.calc_check_digits(f'{country}00{account}')}{account}"
    if rng.draw_bool(0.5):
        return compact
    return " ".join(compact[i : i + 4] for i in range(0, len(compact), 4))


def generate_ssn(rng: KeyedRandom) -> str:
    area, group, serial = 700 + rng.draw_below(72), 1 + rng.draw_below(99), 1 + rng.draw_below(9999)
    return f"{area:03d}-{group:02d}-{serial:04d}"


#: Global special-purpose addresses (RFC 7534, 7535, 7450, 7526) that belong to no person.
_IPV4_PREFIXES = ("192.31.196.", "192.52.193.", "192.175.48.", "192.88.99.")


def generate_ip_address(rng: KeyedRandom) -> str:
    if rng.draw_bool(0.25):
        return f"2620:4f:8000::{rng.draw_below(65535) + 1:x}"
    return f"{rng.pick(_IPV4_PREFIXES)}{1 + rng.draw_below(254)}"


def generate_secret(rng: KeyedRandom) -> str:
    """Generate a secret with a vendor's prefix; most contain EXAMPLE, as vendors' examples do."""
    uppercase_alphanumeric = _LOWERCASE.upper() + _DIGITS
    generators: list[Callable[[], str]] = [
        lambda: f"AKIA{_draw_string(rng, uppercase_alphanumeric, 9)}EXAMPLE",
        lambda: f"ghp_EXAMPLE{_draw_string(rng, _ALPHANUMERIC, 29)}",
        lambda: f"glpat-EXAMPLE{_draw_string(rng, _ALPHANUMERIC, 13)}",
        lambda: f"sk_live_EXAMPLE{_draw_string(rng, _ALPHANUMERIC, 17)}",
        lambda: f"hf_EXAMPLE{_draw_string(rng, _LOWERCASE, 27)}",
        lambda: f"npm_EXAMPLE{_draw_string(rng, _ALPHANUMERIC, 29)}",
    ]
    return rng.pick(generators)()


GENERATOR_BY_TYPE: dict[PersonalDataType, Callable[[KeyedRandom], str]] = {
    "EMAIL": generate_email,
    "PHONE": generate_phone_number,
    "CARD": generate_card_number,
    "IBAN": generate_iban,
    "SSN": generate_ssn,
    "IP": generate_ip_address,
    "SECRET": generate_secret,
}
