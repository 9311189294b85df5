"""Find payment cards and bank accounts by their format and check digits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hallmark.tasks.measures.personal.contact_details import WORD_CHARACTER, SpanIterator

#: Digits in the groups that are printed on cards, or without any separator.
_CARD_PATTERN = re.compile(
    rf"(?<!{WORD_CHARACTER})(?<![.+-])(?:"
    r"\d{4}([ -])\d{4}\1\d{4}\1\d{3,4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{14,19}"
    rf")(?!{WORD_CHARACTER}|-|\.\d)"
)
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
        digits = match[0].replace(" ", "").replace("-", "")
        if _ISSUER_PREFIXES.fullmatch(digits) and luhn.is_valid(digits):
            yield match.span()


_IBAN_PATTERN = re.compile(
    r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}"
    r"(?:[A-Z0-9]{11,30}|(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,4})?)(?![A-Za-z0-9])"
)


def find_ibans(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    from stdnum import iban

    for match in _IBAN_PATTERN.finditer(text):
        words = match[0].split(" ")
        while len("".join(words)) >= 15:  # Words in capitals may follow the number.
            if iban.is_valid("".join(words)):
                yield match.start(), match.start() + len(" ".join(words))
                break
            words.pop()
