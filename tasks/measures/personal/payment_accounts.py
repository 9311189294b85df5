"""Find payment cards and bank accounts by their format and check digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from hallmark.tasks.measures.personal.contact_details import WORD_CHARACTER, SpanIterator
from hallmark.tasks.measures.personal.folding import DASHES

#: Digits in the groups that are printed on cards, or without any separator.
_CARD_PATTERN = re.compile(
    rf"(?<!{WORD_CHARACTER})(?<![.+-])(?:"
    r"\d{4}([ -])\d{4}\1\d{4}\1\d{3,4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{14,19}"
    rf")(?!{WORD_CHARACTER}|-|\.\d)"
)
_FOUR_GROUPS_LENGTH = len("1234 5678 9012 3456")
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

    for match in _CARD_PATTERN.finditer(text):
        # The last three of 19 digits may be a security code or an amount.
        for length in {len(match[0]), _FOUR_GROUPS_LENGTH} if match[1] else {len(match[0])}:
            digits = match[0][:length].replace(" ", "").replace("-", "")
            if _ISSUER_PREFIXES.fullmatch(digits) and luhn.is_valid(digits):
                yield match.start(), match.start() + min(length, len(match[0]))


# People write an IBAN in groups of any size with one kind of separator; a line may end between two
# groups. The country determines the length.
_IBAN_SEPARATOR = rf"(?:[ \t./_{DASHES}-]|[ \t]{{0,2}}\r?\n[ \t]{{0,2}})?"


def _repeat_character(character: str, count: int) -> str:
    return rf"(?:{_IBAN_SEPARATOR}{character}){{{count}}}"


#: Countries by the beginning of their account numbers: three digits; four letters or digits, then
#: four digits; a letter, then five digits; anything else.
_COUNTRIES_WITH_DIGITS_FIRST = (
    "AD|AE|AL|AT|BA|BE|BI|BR|CH|CR|CY|CZ|DE|DJ|DK|EE|EG|ES|FI|FO|FR|GL|GR|HR|HU|"
    "IL|IS|KZ|LB|LI|LT|LU|LY|MC|ME|MK|MN|MR|NO|OM|PL|PT|RS|RU|SD|SE|SI|SK|SO|ST|"
    "TL|TN|TR|UA|VA|XK"
)
_COUNTRIES_WITH_BANK_CODE = "BG|BY|DO|FK|GB|GE|HN|IE|IQ|JO|MT|MU|NI|NL|SC|SV|VG|YE"
_COUNTRIES_WITH_CHECK_LETTER = "IT|SM"
_OTHER_COUNTRIES = "AZ|BH|GI|GT|KW|LC|LV|MD|PK|PS|QA|RO|SA"


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
        _match_start_of_iban(_OTHER_COUNTRIES, _repeat_character(_LETTER_OR_DIGIT, 13)),
    ]
)
#: The beginning of an IBAN, next to which the word "IBAN" may be; what follows is matched ahead
#: because it may contain the actual IBAN.
_IBAN_START = re.compile(
    r"(?<![A-Za-z0-9])(?:[Ii][Bb][Aa][Nn])?(?P<country>[A-Za-z][ -]?[A-Za-z])"
    rf"(?={_IBAN_SEPARATOR}\d)(?=(?P<rest>(?:{_IBAN_SEPARATOR}[A-Za-z0-9]){{13,32}}))"
)
_ALPHANUMERIC = re.compile(_LETTER_OR_DIGIT)


def find_ibans(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    from stdnum import iban

    for match in _IBAN_START.finditer(text):
        rest_length = _count_characters_after_country(
            match["country"][0].upper() + match["country"][-1].upper()
        )
        characters = list(_ALPHANUMERIC.finditer(match["rest"]))[:rest_length]
        if not rest_length or len(characters) < rest_length:
            continue
        start, end = match.start("country"), match.start("rest") + characters[-1].end()
        separators = re.sub(r"[A-Za-z0-9]|\s*\n\s*", "", text[start:end])
        if (
            len({*re.sub(f"[{DASHES}]", "-", separators)}) < 2
            and not _ALPHANUMERIC.match(text, end)
            and iban.is_valid("".join(_ALPHANUMERIC.findall(text[start:end])))
        ):
            yield start, end


@cache
def _count_characters_after_country(country: str) -> int:
    """Return the number of letters and digits after the country of an IBAN; 0 if it has none."""
    from stdnum import numdb

    (_, properties), *_ = numdb.get("iban").info(country)
    return 2 + sum(map(int, re.findall(r"\d+(?=!)", properties["bban"]))) if properties else 0
