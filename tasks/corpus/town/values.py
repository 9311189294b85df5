"""Personal data of nobody, in the formats in which people write it.

Where a range is set aside for fiction, examples or tests, values come from it: domains of RFC 2606,
telephone numbers of the regulators' lists for drama, the issuers' test numbers, the example bank of
the IBAN registry, Internet addresses of special purposes. Where the reserved range is one that no
detector takes for real (the documentation addresses, the numbers of social security in
advertisements), a valid value stands that was drawn by lot, and may belong to somebody by chance.
"""

from __future__ import annotations

from collections.abc import Callable

from tasks.corpus.town.grammar import Dice
from tasks.measures.personal.types import Type

_DIGITS = "0123456789"
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_TOKEN = _LOWER.upper() + _LOWER + _DIGITS
_SYLLABLES = "bel dra fen gor hal jas kel lum mir nor oth pel quin ras sil tor ul ven wim zar"


def personal(kind: str, dice: Dice) -> str:
    """A value of this type of ``tasks.measures.personal_data``."""
    return MAKERS[kind](dice)  # type: ignore[index]


def _string(dice: Dice, letters: str, length: int) -> str:
    return "".join(dice.pick(letters) for _ in range(length))


def _word(dice: Dice) -> str:
    return "".join(dice.sample(_SYLLABLES.split(), 2))


def email(dice: Dice) -> str:
    first, last = _word(dice), _word(dice)
    local = dice.pick(
        [f"{first}.{last}", f"{first}_{last}{dice.below(100)}", f"{first[0]}.{last}",
         f"{first}+{last}", f"{first}-{last}", f"{last}{dice.below(10_000)}"]
    )  # fmt: skip
    domain = dice.pick(["example.com", "example.org", "example.net", f"{_word(dice)}.example",
                        f"post.{_word(dice)}.example"])  # fmt: skip
    made = f"{local}@{domain}"
    return made.upper() if dice.chance(0.05) else made


#: Set aside for drama: North America 555-0100 to 0199; Ofcom, London and Leeds; ARCEP, Paris;
#: Bundesnetzagentur, Berlin; ACMA, Sydney. "#" is a digit.
_PHONES = (
    "({area}) 555-01##", "{area}-555-01##", "{area}.555.01##", "+1 {area} 555 01##",
    "+1-{area}-555-01##", "+1 ({area}) 555-01##", "+44 20 7946 0###", "+44 (0)20 7946 0###",
    "+442079460###", "+44 113 496 0###", "+33 1 99 00 ## ##", "+33199 00####", "+49 30 23125 ###",
    "+61 2 5550 ####",
)  # fmt: skip
_AREAS = ("212", "303", "415", "617", "206", "312", "512", "702")


def phone(dice: Dice) -> str:
    form = dice.pick(_PHONES).format(area=dice.pick(_AREAS))
    return "".join(dice.pick(_DIGITS) if c == "#" else c for c in form)


#: Beginnings of the issuers' published test numbers, with the lengths of the groups.
_CARDS = (
    ("411111", (4, 4, 4, 4)), ("401288", (4, 4, 4, 4)), ("555555", (4, 4, 4, 4)),
    ("222300", (4, 4, 4, 4)), ("601111", (4, 4, 4, 4)), ("378282", (4, 6, 5)),
    ("305693", (4, 6, 4)), ("356600", (4, 4, 4, 4)),
)  # fmt: skip


def card(dice: Dice) -> str:
    from stdnum import luhn

    begin, groups = dice.pick(_CARDS)
    digits = begin + _string(dice, _DIGITS, sum(groups) - len(begin) - 1)
    digits += luhn.calc_check_digit(digits)
    separator = dice.pick(["", " ", " ", "-"])
    pieces = []
    for length in groups:
        pieces.append(digits[:length])
        digits = digits[length:]
    return separator.join(pieces)


#: Country, bank (the registry's example, or one that is given to nobody) and digits behind it.
_IBANS = (("GB", "WEST", 14), ("DE", "00000000", 10), ("FR", "0000000000", 13), ("NL", "TEST", 10))


def iban(dice: Dice) -> str:
    from stdnum import iban as standard

    country, bank, length = dice.pick(_IBANS)
    rest = bank + _string(dice, _DIGITS, length)
    made = f"{country}{standard.calc_check_digits(f'{country}00{rest}')}{rest}"
    if dice.chance(0.5):
        return made
    return " ".join(made[i : i + 4] for i in range(0, len(made), 4))


def ssn(dice: Dice) -> str:
    area, group, serial = 700 + dice.below(72), 1 + dice.below(99), 1 + dice.below(9999)
    return f"{area:03d}-{group:02d}-{serial:04d}"


#: Global addresses of special purposes (RFC 7534, 7535, 7450, 7526), which are no person's.
_NETWORKS = ("192.31.196.", "192.52.193.", "192.175.48.", "192.88.99.")


def ip(dice: Dice) -> str:
    if dice.chance(0.25):
        return f"2620:4f:8000::{dice.below(65535) + 1:x}"
    return f"{dice.pick(_NETWORKS)}{1 + dice.below(254)}"


def secret(dice: Dice) -> str:
    """With a vendor's prefix; EXAMPLE stands in most of them, as in the vendors' own examples."""
    upper = _LOWER.upper() + _DIGITS
    return dice.pick([
        lambda: f"AKIA{_string(dice, upper, 9)}EXAMPLE",
        lambda: f"ghp_EXAMPLE{_string(dice, _TOKEN, 29)}",
        lambda: f"glpat-EXAMPLE{_string(dice, _TOKEN, 13)}",
        lambda: f"sk_live_EXAMPLE{_string(dice, _TOKEN, 17)}",
        lambda: f"hf_EXAMPLE{_string(dice, _LOWER, 27)}",
        lambda: f"npm_EXAMPLE{_string(dice, _TOKEN, 29)}",
    ])()  # fmt: skip


MAKERS: dict[Type, Callable[[Dice], str]] = {
    "EMAIL": email, "PHONE": phone, "CARD": card, "IBAN": iban, "SSN": ssn, "IP": ip,
    "SECRET": secret,
}  # fmt: skip
