"""Find payment cards and bank accounts by their format and check digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from hallmark.tasks.measures.personal.contact_details import WORD_CHARACTER, SpanIterator
from hallmark.tasks.measures.personal.folding import DASHES

#: Digits in the groups that are printed on cards, or without any separator. They are matched ahead
#: of the position, because a year or a number may precede a card.
_CARD_PATTERN = re.compile(
    rf"(?<!{WORD_CHARACTER})(?<!\d[.+-])(?=[2-6])(?=("
    r"(?P<four>\d{4}(?P<separator>[ ]{1,3}|[._-])\d{4}(?P=separator)\d{4}(?P=separator)\d{3,4})"
    r"(?:(?P=separator)\d{3})?|\d{4}(?P<separator_of_three>[ ]{1,3}|[._-])\d{6}"
    r"(?P=separator_of_three)\d{4,5}|\d{14,19}"
    rf")(?!{WORD_CHARACTER}|-\d|\.\d))"
)
#: What all texts with a card number match.
CARD_PATTERN = r"\d{4}[ ._-]{0,3}\d{4,6}[ ._-]{0,3}\d{4,5}"
#: Bytes in hexadecimal form next to a candidate: a group with a letter, or an address.
_HEXADECIMAL_BEFORE = re.compile(
    r"(?:(?<![0-9A-Za-z])(?=[0-9]{0,3}[a-f])[0-9a-f]{4} |(?<![0-9A-Za-z])[0-9a-f]{7,8}:? {1,2})\Z"
)
_HEXADECIMAL_AFTER = re.compile(r" (?=[0-9]{0,3}[a-f])[0-9a-f]{4}(?![0-9A-Za-z])")
#: First digits and lengths by issuer (ISO/IEC 7812 ranges as the issuers publish them): Visa,
#: Mastercard, American Express, Discover, Diners Club, JCB, UnionPay.
_ISSUER_PREFIXES = re.compile(
    r"4(?:\d{15}|\d{18})"
    r"|(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}"
    r"|3[47]\d{13}"
    r"|(?:6011|64[4-9]\d|65\d{2})\d{12}"
    r"|3(?:0[0-5]|[68]\d)\d{11}"
    r"|35(?:2[89]|[3-8]\d)\d{12}"
    r"|62\d{14,17}"
)


def find_payment_cards(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    from stdnum import luhn

    previous_end = 0
    for match in _CARD_PATTERN.finditer(text):
        if match.start() < previous_end:
            continue
        # The last three of 19 digits may be a security code or an amount.
        for end in dict.fromkeys(filter(lambda end: end >= 0, (match.end(1), match.end("four")))):
            digits = re.sub("[ ._-]", "", text[match.start() : end])
            if (
                _ISSUER_PREFIXES.fullmatch(digits)
                and luhn.is_valid(digits)
                and not _HEXADECIMAL_BEFORE.search(text, max(0, match.start() - 10), match.start())
                and not _HEXADECIMAL_AFTER.match(text, end)
            ):
                previous_end = end
                yield match.start(), end


# People write an IBAN in groups of any size with one kind of separator; a line may end between two
# groups. The country determines the length.
_IBAN_SEPARATOR = rf"(?:[ ]{{1,3}}|[\t./_{DASHES}-]|[ \t]{{0,2}}\r?\n[ \t]{{0,2}})?"


def _repeat_character(character: str, count: int) -> str:
    return rf"(?:{_IBAN_SEPARATOR}{character}){{{count}}}"


#: Countries by the beginning of their account numbers: three digits; four letters or digits, then
#: four digits; a letter, then five digits; anything else.
_COUNTRIES_WITH_DIGITS_FIRST = (
    "AD|AE|AL|AT|BA|BE|BI|BR|CH|CR|CY|CZ|DE|DJ|DK|EE|EG|ES|FI|FO|FR|GL|GR|HR|HU|IL|IS|KZ|LB|LI|LT|"
    "LU|LY|MC|ME|MK|MN|MR|NO|OM|PL|PT|RS|RU|SD|SE|SI|SK|SO|ST|TL|TN|TR|UA|VA|XK"
)
_COUNTRIES_WITH_BANK_CODE = "BG|BY|DO|FK|GB|GE|HN|IE|IQ|JO|MT|MU|NI|NL|SC|SV|VG|YE"
_COUNTRIES_WITH_CHECK_LETTER = "IT|SM"
_OTHER_COUNTRIES = "AZ|BH|GI|GT|KW|LC|LV|MD|PK|PS|QA|RO|SA"
#: Letters and digits after the country code in countries that write accounts like an IBAN but are
#: not in the registry of SWIFT (List of countries of the European Committee for Banking Standards).
#: The account number begins with two letters or digits, and digits follow.
_UNREGISTERED_LENGTHS = {
    **{"AO": 23, "BF": 26, "BJ": 26, "CF": 25, "CG": 25, "CI": 26, "CM": 25, "CV": 23, "DZ": 24},
    **{"GA": 25, "GQ": 25, "GW": 23, "IR": 24, "KM": 25, "MA": 26, "MG": 25, "ML": 26, "MZ": 23},
    **{"NE": 26, "SN": 26, "TD": 25, "TG": 26},
}


def _match_start_of_iban(countries: str, account_number: str) -> str:
    """Return the pattern of a country, which a space may split, and of the digits after it."""
    split_countries = re.sub("([A-Z])([A-Z])", "\\1[ -]?\\2", countries)
    check_digits = _repeat_character(r"\d", 2)
    return rf"(?:^|[^A-Za-z0-9]|(?i:iban))(?i:{split_countries}){check_digits}{account_number}"


_LETTER_OR_DIGIT = "[A-Za-z0-9]"
#: What all texts with an IBAN match: a country, check digits, and enough of the account number to
#: exclude sentences such as "by 2021 the ...".
IBAN_PATTERN = "|".join(
    [
        _match_start_of_iban(
            _COUNTRIES_WITH_DIGITS_FIRST,
            _repeat_character(r"\d", 3) + _repeat_character(_LETTER_OR_DIGIT, 6),
        ),
        _match_start_of_iban(
            _COUNTRIES_WITH_BANK_CODE,
            _repeat_character(_LETTER_OR_DIGIT, 4) + _repeat_character(r"\d", 4),
        ),
        _match_start_of_iban(
            _COUNTRIES_WITH_CHECK_LETTER,
            _repeat_character("[A-Za-z]", 1) + _repeat_character(r"\d", 5),
        ),
        _match_start_of_iban(
            "|".join(_UNREGISTERED_LENGTHS),
            _repeat_character(_LETTER_OR_DIGIT, 2) + _repeat_character(r"\d", 8),
        ),
        _match_start_of_iban(_OTHER_COUNTRIES, _repeat_character(_LETTER_OR_DIGIT, 13)),
    ]
)
#: The country of an IBAN, next to which the word "IBAN" may be.
_IBAN_START = re.compile(
    r"(?<![A-Za-z0-9])(?:[Ii][Bb][Aa][Nn])?(?P<country>[A-Za-z][ -]?[A-Za-z])"
    rf"(?={_IBAN_SEPARATOR}\d)"
)
_ALPHANUMERIC = re.compile(_LETTER_OR_DIGIT)


#: A digit, or letters that do not belong to words which are written next to an account.
_REST_OF_LONGER_WORD = re.compile(
    r"\d|(?!(?i:bic|swift|eur|usd|chf|gbp|[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?(?![A-Za-z0-9])))[A-Za-z]"
)


def find_ibans(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    for match in _IBAN_START.finditer(text):
        rest_length = _count_characters_after_country(
            match["country"][0].upper() + match["country"][-1].upper()
        )
        rest = _compile_rest_of_iban(rest_length).match(text, match.end()) if rest_length else None
        if rest is None:
            continue
        start, end = match.start("country"), rest.end()
        separators = re.sub(r"[A-Za-z0-9]|\s*\n\s*", "", text[start:end])
        if (
            len({*re.sub(f"[{DASHES}]", "-", separators)}) < 2
            and not _REST_OF_LONGER_WORD.match(text, end)
            and _has_valid_check_digits("".join(_ALPHANUMERIC.findall(text[start:end])))
        ):
            yield start, end


@cache
def _compile_rest_of_iban(length: int) -> re.Pattern[str]:
    """Compile what follows the country of an IBAN: letters and digits, in any groups."""
    return re.compile(_repeat_character(_LETTER_OR_DIGIT, length))


def _has_valid_check_digits(number: str) -> bool:
    """Return whether the check digits are right, and the structure if its country is registered.

    Check digits of the bank, inside the account number, are not considered.
    """
    from stdnum import iban
    from stdnum.iso7064 import mod_97_10

    number = number.upper()
    if number[:2] in _UNREGISTERED_LENGTHS:
        has_structure = re.fullmatch(r"[A-Z]{2}\d{2}(?:[A-Z]{2})?\d+", number)
        return has_structure is not None and mod_97_10.is_valid(number[4:] + number[:4])
    return iban.is_valid(number, check_country=False)


@cache
def _count_characters_after_country(country: str) -> int:
    """Return the number of letters and digits after the country of an IBAN; 0 if it has none."""
    from stdnum import numdb

    if country in _UNREGISTERED_LENGTHS:
        return _UNREGISTERED_LENGTHS[country]
    (_, properties), *_ = numdb.get("iban").info(country)
    return 2 + sum(map(int, re.findall(r"\d+(?=!)", properties["bban"]))) if properties else 0
