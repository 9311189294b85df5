"""Find telephone numbers: international ones, and national ones of the configured regions.

`phonenumbers` decides; it reads about 0.1 MB/s, so it only gets candidates. A
national number needs a word for a telephone before it, or it is written as is usual in its country
and unlike other numbers: 512 345 678 is a number of people as often as one of a telephone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

from hallmark.tasks.measures.personal.contact_details import (
    WORD_CHARACTER,
    SpanIterator,
    TooManyCandidatesError,
    is_global_ip_address,
)
from hallmark.tasks.measures.personal.phone_words import (
    LAST_WORD_BEFORE_NUMBER,
    LOWER_CASE_AMBIGUOUS_PHONE_WORD,
    LOWER_CASE_PHONE_WORD,
    PHONE_WORD,
)

#: Separators between two digits of a number: up to two, or a slash, hyphen, dash or point with
#: spaces, and perhaps a parenthesis.
_SEPARATORS = "(?:[ ()./-]{0,2}| [/.\u2013\u2014-] [(]?|[)] [/.\u2013\u2014-] )"
#: A plus sign and 7 to 20 digits. A search that begins with a literal character is fast.
_INTERNATIONAL_PHONE = re.compile(
    rf"\+(?<!{WORD_CHARACTER}\+)(?<!\+\+)(?<!\d\.\+)(?: (?=[1-9]\d{{0,2}}[ ()./-]))?"
    rf"[1-9](?:{_SEPARATORS}\d){{6,19}}"
)
#: The international prefix of most countries instead of a plus sign, before separated digits.
_INTERNATIONAL_PREFIX_PHONE = re.compile(
    rf"00(?<!{WORD_CHARACTER}00)(?<![+./:-]00)(?<!\d 00)[1-9]\d{{0,2}}[ ./-]"
    rf"(?:{_SEPARATORS}\d){{6,19}}"
)
_EXTENSION = r"(?:,? ?(?:x|ext\.?|extension) ?\d{1,6})?"
#: Characters of an extension, and of what may not follow a number.
_MAX_CHARACTERS_AFTER_RUN = 24
#: Six or more digits with separators.
_DIGIT_RUN = re.compile(rf"\d(?:{_SEPARATORS}\d){{5,}}")
#: A run inside which no number can begin, because none begins after a digit and a point or hyphen
#: (see `_START_OF_NUMBER`), and a parenthesis before it is not closed.
_RUN_OF_ONE_NUMBER = re.compile(r"\d+(?:[.-]\d+)+")
#: What may not be adjacent to a number without a word for a telephone: parts of dates, versions,
#: tables and longer numbers.
_START_OF_NUMBER = (
    rf"(?<!{WORD_CHARACTER})(?<!\d[.:-])(?:(?<!\d/)|(?<=\d{{4}}/))(?<![A-Za-z]-)(?<!\+)"
)
_END_OF_NUMBER = rf"(?!{WORD_CHARACTER}|-\d|[.:]\d|/\d{{1,3}}(?![\d-]))"
#: Forms that are usual in several countries: an area code in parentheses; three, three and four
#: digits; a leading zero and a space or slash.
_COMMON_FORMS = (
    r"(?:1[-. ]?)?\(\d{2,5}\)[ -]?\d{2,4}(?:[-. ]\d{2,4}){1,3}",
    r"\(0[1-9]\d{1,4}\) ?\d{5,8}",
    r"(?:1-)?\d{3}(?P<separator>[-.])\d{3}(?P=separator)\d{4}",
    r"\d{3}/\d{3}-\d{4}",
    r"(?=[\d.-]* )0[1-9]\d{0,3}[-. ]\d{2,4}(?:[-. ]\d{2,4}){1,3}",
    r"0[1-9]\d{0,4}(?: | ?/ ?)(?=(?:[ -]?\d){5})\d{3,9}(?:[ -]\d{2,6}){0,3}",
    r"0[1-9]\d{0,4} / \d{2}(?:[ -]\d{2}){2,3}",
    r"0[1-9](?P<mark>[.-])\d{2}(?:(?P=mark)\d{2}){3}",
)
#: A number of a form that other numbers seldom have: a list of numbers may follow and precede it.
_DISTINCTIVE_NUMBER = re.compile(r"(?:1[-. ]?)?\(\d.*|(?:1-)?\d{3}-\d{3}-\d{4}.*")
#: Words before numbers that are written like those of telephones.
_OTHER_NUMBER_WORD_PATTERN = (
    r"(?<![A-Za-z\u00c0-\u04ff])(?:order|invoice|ticket|serial|part|item|version|isbn|issn|ean|"
    r"account|reference|ref|sku|p/n|pn|case|tracking|model|imei|imsi|iccid|id|uuid|customer|client|"
    r"size|lot|batch|zip|plz|postcode|call n(?:o|umber)|rfcs?|doi|pmid|gtin|upc|siren|siret|"
    r"bestell\w*|auftrag\w*|rechnung\w*|artikel\w*|kunden\w*|konto\w*|aktenzeichen|vorgang\w*|"
    r"commande|facture|pedido|factura|ordine|fattura|"
    r"заказ\w*|订单\w*|注文\w*)s?[\W\d_]{0,4}(?:(?:no|nr|numbers?|nummer|num|n[ºo°]|id)\W{0,3})?$"
    r"|(?<![A-Za-z])rfcs?(?:[ ,;]{1,2}\d{3,4})*[ ,;]{1,2}$"
)
_OTHER_NUMBER_WORD = re.compile(_OTHER_NUMBER_WORD_PATTERN, re.IGNORECASE)
#: The same in lower case, which takes a third of the time.
_LOWER_CASE_OTHER_NUMBER_WORD = re.compile(_OTHER_NUMBER_WORD_PATTERN)
#: Words and signs after a quantity, and before it.
_UNIT_AFTER = re.compile(
    r"(?i)\s?(?:[€£¥₽₹°]|%(?![0-9A-F]{2})|\$(?!\w)|元|円|원|(?:eur|euros?|usd|dollars?|gbp|pounds?|zł|złot\w*|pln|kč|"
    r"czk|руб\w*|kr|sek|nok|dkk|chf|units?|copies|users?|people|visits?|visitors|minutes?|mins?|"
    r"seconds?|bytes?|[kmg]i?b|subscribers?|customers?|times|rows?|stück|einwohner|nutzer|kunden|"
    r"abonnés?|habitants|usuarios|personas|clientes|persone|km|million\w*|mio)(?!\w))"
)
_CURRENCY_BEFORE = re.compile(r"(?i)(?:[$€£¥₽₹]|(?<![a-z])(?:eur|usd|gbp|chf|pln))\s?$")
#: Number of characters on both sides of a number that may be part of a list or table.
_ISOLATION = 20
#: Maximum number of candidates per text; each takes about 0.1 ms per region.
MAX_PHONE_CANDIDATES = 20_000
#: Number of characters before a number that are searched for a word for a telephone.
WORD_DISTANCE = 40
#: Maximum distance of a further number from one that a word announces: "Tel. 123456 or 123457".
_FURTHER_NUMBER_DISTANCE = 12

#: What all texts with a number match: the digits of every number, also an international one, are
#: such a run.
PHONE_PATTERN = _DIGIT_RUN.pattern
#: What all texts with a number after a word for a telephone match. The search does not count the
#: characters between them, because it would need a state for each count.
ANNOUNCED_PHONE_PATTERN = rf"{PHONE_WORD}[^\d]*\d"
_PHONE_WORD = re.compile(LOWER_CASE_PHONE_WORD)


def find_phone_numbers(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    """Yield the spans of international numbers, and of national ones in their country's form.

    Raises:
        TooManyCandidatesError: The text has more than MAX_PHONE_CANDIDATES candidates.
    """
    candidate_count = 0
    for pattern in (_INTERNATIONAL_PHONE, _INTERNATIONAL_PREFIX_PHONE):
        for match in pattern.finditer(text):
            candidate_count = _count_candidate(candidate_count)
            length = _measure_international_number(match[0])
            preceding_text = text[max(0, match.start() - 24) : match.start()]
            if match[0][0] == "0" and _has_other_number_word(preceding_text):
                continue
            if length and _is_followed_by_no_number(text, match.start() + length, match.end()):
                start = match.start()
                is_country_in_parentheses = text[start - 1 : start] == "(" and (
                    _COUNTRY_IN_PARENTHESES.match(text, start) is not None
                )
                yield start - is_country_in_parentheses, _skip_extension(text, start + length)
    if not regions:
        return
    form = _compile_national_forms(tuple(regions))
    previous_end = -1
    for run in _DIGIT_RUN.finditer(text):
        if run[0].isdigit():  # Without a separator, the form is that of any number.
            continue
        for match in _iterate_forms(text, run, form):
            if _is_number_of_another_kind(text, match) or _is_number_of_table(
                text, match, form, previous_end
            ):
                continue
            candidate_count = _count_candidate(candidate_count)
            # A part of the candidate would be a short number by chance.
            spans = _find_national_phone_spans(match[0], tuple(regions))
            if spans and spans[0][0] <= 1 and spans[-1][1] == len(match[0]):
                previous_end = match.end()
                yield match.start() + spans[0][0], match.end()


def find_announced_phone_numbers(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    """Yield the spans of national numbers in any form that follow a word for a telephone.

    Raises:
        TooManyCandidatesError: The text has more than MAX_PHONE_CANDIDATES candidates.
    """
    candidate_count = 0
    previous_end = announced_end = 0
    for run in _DIGIT_RUN.finditer(text) if regions else ():
        is_further = 0 < announced_end >= run.start() - _FURTHER_NUMBER_DISTANCE
        gap = text[max(previous_end, run.start() - WORD_DISTANCE) : run.start()]
        gap = gap.rpartition("\n\n")[2]  # A word of another paragraph announces nothing.
        # With the character before the gap, which may belong to a longer word.
        gap_start = run.start() - len(gap)
        context = text[max(gap_start - 1, 0) : run.start()].lower()
        previous_end = run.end()
        if not (is_further or _PHONE_WORD.search(context, min(gap_start, 1))) or (
            _is_other_number(text, run, gap, is_further=is_further)
            or not _may_begin_number(text, run.start(), gap)
        ):
            continue
        candidate_count = _count_candidate(candidate_count)
        for number_start, number_end in _split_into_numbers(run[0], tuple(regions)):
            start, end = run.start() + number_start, run.start() + number_end
            end = _skip_extension(text, end)
            if not _WORD_CHARACTER.match(text, end):
                announced_end = end
                is_area_code_in_parentheses = (
                    text[start - 1 : start] == "(" and ")" in text[start:end]
                )
                yield start - is_area_code_in_parentheses, end


def _iterate_forms(text: str, run: re.Match[str], form: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield the numbers of a form that begin in a run of digits, or at a parenthesis before it."""
    end = run.end() + _MAX_CHARACTERS_AFTER_RUN
    if _RUN_OF_ONE_NUMBER.fullmatch(run[0]):
        match = form.match(text, run.start(), end)
        if match:
            yield match
        return
    for match in form.finditer(text, max(0, run.start() - 1), end):
        if match.start() > run.end():
            break
        yield match


def _count_candidate(candidate_count: int) -> int:
    if candidate_count >= MAX_PHONE_CANDIDATES:
        raise TooManyCandidatesError
    return candidate_count + 1


_COUNTRY_IN_PARENTHESES = re.compile(r"\+\d{1,4}\)")
_EXTENSION_AFTER_NUMBER = re.compile(_EXTENSION + f"(?!{WORD_CHARACTER})")
_WORD_CHARACTER = re.compile(WORD_CHARACTER)


def _skip_extension(text: str, end: int) -> int:
    """Return the end of the extension after a number, or of the number if it has none."""
    extension = _EXTENSION_AFTER_NUMBER.match(text, end)
    return extension.end() if extension else end


def _may_begin_number(text: str, start: int, gap: str) -> bool:
    """Return whether no letter is adjacent to the start of a number, except of a word before it."""
    return (
        start == 0
        or not _WORD_CHARACTER.match(text, start - 1)
        or _PHONE_WORD_AT_END.search(gap.lower()) is not None
    )


def _is_quantity(text: str, start: int, end: int) -> bool:
    """Return whether a unit or currency is written next to a number."""
    return (
        _UNIT_AFTER.match(text, end) is not None
        or _CURRENCY_BEFORE.search(text, max(0, start - 5), start) is not None
    )


def _is_number_of_another_kind(text: str, candidate: re.Match[str]) -> bool:
    """Return whether a candidate without a word for a telephone is a date, an order or the like."""
    number, start = candidate[0], candidate.start()
    return (
        _is_ambiguous(text, candidate)
        or _OTHER_NUMBER.fullmatch(number) is not None
        or _ADDRESS_OR_VERSION.fullmatch(number) is not None
        or _has_other_number_word(text[max(0, start - 24) : start])
        or (_DISTINCTIVE_NUMBER.fullmatch(number) is None and _is_quantity(text, *candidate.span()))
    )


def _has_other_number_word(preceding_text: str) -> bool:
    """Return whether a word for another number is at the end of a text, in any case."""
    if preceding_text.isascii():
        return _LOWER_CASE_OTHER_NUMBER_WORD.search(preceding_text.lower()) is not None
    return _OTHER_NUMBER_WORD.search(preceding_text) is not None


def _is_number_of_table(
    text: str, candidate: re.Match[str], form: re.Pattern[str], previous_end: int
) -> bool:
    """Return whether digits precede or follow that are no telephone numbers of the same form."""
    if _DISTINCTIVE_NUMBER.fullmatch(candidate[0]):
        return False
    start, end = candidate.span()
    is_preceded = start > 1 and text[start - 1] == " " and text[start - 2].isdigit()
    is_followed = text[end : end + 1] == " " and text[end + 1 : end + 2].isdigit()
    return (is_preceded and previous_end != start - 1) or (
        is_followed and form.match(text, end + 1) is None
    )


#: Dates, years, prices, hours, and times in seconds or milliseconds since 1970.
_OTHER_NUMBER = re.compile(
    r"(?:19|20)\d\d([-./]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?!\d).*"
    r"|\d{1,2}[./-]\d{1,2}[./-](?:19|20)\d\d(?!\d).*"
    r"|1[4-9]\d{8}(?:\d{3})?"
    r"|(?:19|20)\d\d[ /-]{1,3}(?:19|20)\d\d(?!\d).*"  # years
    r"|[1-9]\d*\.\d{1,2}|[1-9]\d{0,2}(?:[ .]\d{3})+\.\d{2}"  # prices
    r"|[01]\d[0-5]0 [012]\d[0-5]0"  # hours
)
_ADDRESS_OR_VERSION = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d).*|(?:\d\.|\d{2,}\.\d\.).*")


_ADDRESS = re.compile(r"((?:\d{1,3}\.){3}\d{1,3})(?!\.?\d)")
#: The size of a network, the end of a range, or a port after an address.
_AFTER_ADDRESS = re.compile(
    r"/(?:[89]|[12]\d|3[0-2])(?!\d)|\s?[-\u2013]\s?(?:\d{1,3}\.){3}\d|:\d{2,5}(?!\d)"
)


def _is_internet_address(number: str, following_text: str) -> bool:
    """Return whether digits are a private address, or one with a network, a range or a port.

    Global addresses and telephone numbers may be written alike: "32.12.34.56".
    """
    address = _ADDRESS.match(number)
    if address is None or any(int(part) > 255 for part in address[1].split(".")):
        return False
    is_private = number[0] != "0" and not is_global_ip_address(address[1])
    return is_private or bool(_AFTER_ADDRESS.match(number + following_text, address.end()))


#: What makes the following digits part of an identifier or a time: "CVE-2023-1981", "#830982",
#: "16:26:02 1999".
_IDENTIFIER_SIGN = re.compile(r"\+$|(?<![A-Za-z])[A-Za-z]{1,20}[-_]$|#$|\d:$")
#: A number without separators, or with groups of three digits as in large numbers.
_NUMBER_IN_GROUPS_OF_THREE = re.compile(r"[1-9]\d*|[1-9]\d{0,2}(?:[ .]\d{3})+")
_PHONE_WORD_AT_END = re.compile(
    rf"(?:{LOWER_CASE_PHONE_WORD})[^\W\d_]{{0,12}}(?:[_ ]?(?:no|nr|number))?[\W_]{{0,3}}$"
)
#: A word for a telephone with at most four words between it and the number.
_PHONE_WORD_NEAR_END = re.compile(
    rf"(?:{LOWER_CASE_PHONE_WORD})[^\W\d]*\W{{0,4}}(?:[^\W\d]{{1,12}}\W{{1,3}}){{0,4}}[^\W\d]{{0,4}}$"
)
#: A word that only announces a number that is adjacent or follows a word such as "number".
_AMBIGUOUS_PHONE_WORD = re.compile(rf"(?:{LOWER_CASE_AMBIGUOUS_PHONE_WORD})")
_LAST_WORD_BEFORE_NUMBER = re.compile(rf"(?:[:=#]|{LAST_WORD_BEFORE_NUMBER})\W{{0,4}}$")
#: Names of firms, places and things that contain a word for a telephone.
_NAME_LIKE_PHONE_WORD = re.compile(
    r"tel[eé]f[oó]nica|telekom\w*|tel[ -]aviv|iphone|phone (?:case|bill)"
    r"|(?:eye|in) contact|contact lens\w*|kontaktlinse\w*"
)
_POSTCODE_AFTER_WORD = re.compile(r"(?<!\w)cep\W{0,3}$")


def _is_other_number(text: str, run: re.Match[str], gap: str, *, is_further: bool) -> bool:
    """Return whether digits are a date, a time, an IP address, a version, a price or an identifier.

    Args:
        text: The text.
        run: The digits in it, with their separators.
        gap: The text before the digits in which a word for a telephone may be.
        is_further: Whether they follow a number that a word announces.
    """
    gap, number = gap.lower(), run[0]
    is_adjacent = _PHONE_WORD_AT_END.search(gap) is not None
    is_certain = is_adjacent and not _AMBIGUOUS_PHONE_WORD.search(gap)
    if _OTHER_NUMBER.fullmatch(number) or _has_other_number_word(gap):
        return True
    if not is_certain and _ADDRESS_OR_VERSION.fullmatch(number):
        return True
    if _is_internet_address(number, text[run.end() : run.end() + 6]):
        return True
    if _POSTCODE_AFTER_WORD.search(gap) and re.fullmatch(r"\d{5}-?\d{3}", number):
        return True
    if not is_certain and _is_quantity(text, *run.span()):
        return True
    if is_further or (is_adjacent and not _NAME_LIKE_PHONE_WORD.search(gap)):
        return False
    gap = _NAME_LIKE_PHONE_WORD.sub("", gap)
    if _IDENTIFIER_SIGN.search(gap):
        return True
    if _NUMBER_IN_GROUPS_OF_THREE.fullmatch(number) and not _PHONE_WORD_NEAR_END.search(gap):
        return True
    if number[0] == "0":  # No quantity begins with a zero.
        return False
    other_words = _AMBIGUOUS_PHONE_WORD.sub(" ", gap)
    return not (_PHONE_WORD.search(other_words) or _LAST_WORD_BEFORE_NUMBER.search(gap))


def _is_ambiguous(text: str, candidate: re.Match[str]) -> bool:
    """Return whether other numbers are often written like a candidate.

    Unless it begins with a zero or a parenthesis or has the form of North America: a year and
    groups of three, as in large numbers, always; two groups of four and groups of two, as in lists
    and tables, if further digits are near. Ascending groups of two are drawn numbers of a lottery.
    """
    number = candidate[0]
    if "(" in number:
        return False
    groups = re.findall(r"\d+", number)
    separators = set(re.sub(r"\d", "", number))
    if len(groups) > 3 and {len(group) for group in groups} == {2} and len(separators) == 1:
        values = [int(group) for group in groups]
        if values[-1] <= 59 and all(a < b for a, b in pairwise(values)):
            return True
    if number[0] == "0" or re.match(r"(?:1-)?\d{3}[-./]", number):
        return False
    if re.match(r"(?:19|20)\d\d(?!\d)", number) or {len(group) for group in groups[1:]} == {3}:
        return True
    before = text[max(0, candidate.start() - _ISOLATION) : candidate.start()]
    after = text[candidate.end() : candidate.end() + _ISOLATION]
    is_list_like = len(groups) == 2 or {len(group) for group in groups} == {2}
    return is_list_like and re.search(r"\d", before + after) is not None


@cache
def _compile_national_forms(regions: tuple[str, ...]) -> re.Pattern[str]:
    """Compile the forms of national numbers: the common ones and those of the regions."""
    forms = [*_COMMON_FORMS, *sorted({form for region in regions for form in _list_forms(region)})]
    number = rf"(?=[(\d])(?:{'|'.join(forms)}){_EXTENSION}"
    return re.compile(_START_OF_NUMBER + number + _END_OF_NUMBER)


def _list_forms(region: str) -> Iterator[str]:
    """List the forms in which phonenumbers writes national numbers of a region, as patterns."""
    from phonenumbers import PhoneMetadata

    metadata = PhoneMetadata.metadata_for_region(region)
    for number_format in metadata.number_format if metadata else ():
        pattern, form = number_format.pattern or "", number_format.format or ""
        groups = re.findall(r"\(((?:[^()]|\(\?:[^()]*\))*)\)", pattern)
        prefix_rule = number_format.national_prefix_formatting_rule
        written_forms = [form]
        if prefix_rule:
            first = re.findall(r"\\\d", form)[0]
            written_forms = [form.replace(first, prefix_rule.replace("\\1", first))]
            if number_format.national_prefix_optional_when_formatting:
                written_forms.append(form)
        for written_form in written_forms:
            # Other numbers often have one group of digits or two.
            if len(groups) < 2 or (
                len(groups) == 2
                and not (groups == [r"\d{4}", r"\d{4}"] and " " in written_form)
                and not re.match(r"0.* |.*\(", written_form)
            ):
                continue
            yield "".join(
                f"(?:{groups[int(piece[1:]) - 1]})" if piece[:1] == "\\" else re.escape(piece)
                for piece in re.split(r"(\\\d)", written_form)
            )


#: A signed decimal number, and coordinates in ISO 6709, such as "+4953-09709".
_SIGNED_NUMBER = re.compile(
    r"\+(?:\d{4,}\.\d+|\d{1,3}\.\d{1,7})(?![\d.-])|\+\d{4}-\d{5}(?!\d)|\+\d{6}-\d{7}(?!\d)"
)


#: Code points and addresses in hexadecimal form.
_GROUPS_OF_FOUR = re.compile(r"00\d\d 0\d{3}(?: \d{4})+")


@lru_cache(maxsize=4096)
def _measure_international_number(text: str) -> int:
    """Return the number of characters of the longest international number that a text begins with.

    A space may separate the number from others. The result is 0 if there is no number.
    """
    from phonenumbers import (
        COUNTRY_CODE_TO_REGION_CODE,
        NumberParseException,
        is_valid_number,
        parse,
    )

    if _SIGNED_NUMBER.match(text) or _GROUPS_OF_FOUR.fullmatch(text):
        return 0
    prefix = re.match(r"00(\d+)", text)
    if prefix and int(prefix[1]) not in COUNTRY_CODE_TO_REGION_CODE:
        return 0
    # From the longest part on, because a check takes longer than all else.
    for end in reversed([group.end() for group in re.finditer(r"\d+", text)]):
        digits = re.sub(r"\D", "", text[:end])
        is_end = end == len(text) or text[end] in " /"
        if is_end and 7 <= len(digits) <= 17:
            number = digits.removeprefix("00") if text[0] == "0" else digits
            try:
                if is_valid_number(parse(f"+{number}")):
                    return end
            except NumberParseException:
                continue
    return 0


def _is_followed_by_no_number(text: str, end: int, candidate_end: int) -> bool:
    """Return whether a number ends where it was cut, and not inside a word or a decimal number."""
    return end < candidate_end or not _REST_OF_LONGER_NUMBER.match(text, end)


_REST_OF_LONGER_NUMBER = re.compile(rf"(?!{_EXTENSION}(?!{WORD_CHARACTER})){WORD_CHARACTER}|\.\d")


@lru_cache(maxsize=4096)
def _find_national_phone_spans(text: str, regions: tuple[str, ...]) -> list[tuple[int, int]]:
    """Find the numbers of the region whose numbers contain most of the text.

    Regions without a number that ends at the end of the text may be left out. The digits must be
    grouped as is usual in the region.
    """
    from phonenumbers import Leniency, PhoneNumberMatcher

    longest_spans: list[tuple[int, int]] = []
    groups = re.findall(r"\d+", text)
    digit_count = sum(map(len, groups))
    has_extension = "x" in text
    endings = ["".join(groups[first:]) for first in range(len(groups))]
    for region in _select_regions_by_length(digit_count, regions, may_have_extension=True):
        is_match = _compile_digits_of_number(region).fullmatch
        if not has_extension and not any(map(is_match, endings)):
            continue
        matcher = PhoneNumberMatcher(text, region, Leniency.STRICT_GROUPING)
        spans = [(hit.start, hit.end) for hit in matcher]
        if _count_characters(spans) > _count_characters(longest_spans):
            longest_spans = spans
        if _count_characters(spans) == len(text):
            break
    return longest_spans


def _count_characters(spans: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


_MIN_DIGITS, _MAX_DIGITS = 5, 17
#: A group of digits, and the separators before it.
_GROUP = re.compile(r"(\D*)(\d+)")


@lru_cache(maxsize=4096)
def _split_into_numbers(run: str, regions: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Split digits into the numbers of the regions that contain most of them, from the start on.

    Numbers may have any grouping; a space or slash separates one from the next. Groups that are in
    no number may follow the first number. The way with the fewest numbers is taken.
    """
    digits = re.sub(r"\D", "", run)
    if len(digits) <= _MAX_DIGITS and _is_valid_national_number(digits, regions):
        return ((0, len(run)),)
    groups = list(_GROUP.finditer(run))
    can_end_before = [" " in group[1] or "/" in group[1] for group in groups] + [True]
    #: By number of groups: the best split of them.
    splits = {0: _Split(0, ())}
    for first in range(len(groups)):
        split = splits.get(first)
        if split is None:
            continue
        if split.numbers:
            _keep_better_split(splits, first + 1, split)
        digits = ""
        for last in range(first, len(groups)):
            digits += groups[last][2]
            if len(digits) > _MAX_DIGITS:
                break
            start, end = groups[first].start(2), groups[last].end(2)
            if not can_end_before[last + 1] or len(digits) < _MIN_DIGITS or end - start < 6:
                continue
            if _is_valid_national_number(digits, regions):
                longer_split = _Split(
                    split.digit_count + len(digits), (*split.numbers, (start, end))
                )
                _keep_better_split(splits, last + 1, longer_split)
    return max(splits.values(), key=lambda split: split.rank).numbers


class _Split(NamedTuple):
    """Numbers in a run of digits, and how many digits they have together."""

    digit_count: int
    numbers: tuple[tuple[int, int], ...]

    @property
    def rank(self) -> tuple[int, int]:
        """Order of splits: more digits are better, and fewer numbers of the same digits."""
        return self.digit_count, -len(self.numbers)


def _keep_better_split(splits: dict[int, _Split], group_count: int, split: _Split) -> None:
    known_split = splits.get(group_count)
    if known_split is None or split.rank > known_split.rank:
        splits[group_count] = split


@lru_cache(maxsize=65_536)
def _is_valid_national_number(digits: str, regions: tuple[str, ...]) -> bool:
    """Return whether digits without separators are a number of one of the regions."""
    from phonenumbers import Leniency, PhoneNumberMatcher

    if len(digits) < 9 and "12345678".startswith(digits):  # A placeholder.
        return False
    candidates: list[tuple[str, str | None]] = [
        (digits, region)
        for region in _select_regions_by_length(len(digits), regions)
        if _compile_digits_of_number(region).fullmatch(digits)
    ]
    if digits.startswith("00"):
        candidates.append((f"+{digits[2:]}", None))
    for text, region in candidates:
        hit = next(iter(PhoneNumberMatcher(text, region, Leniency.VALID)), None)
        if hit is not None and (hit.start, hit.end) == (0, len(text)):
            return True
    return False


@cache
def _compile_digits_of_number(region: str) -> re.Pattern[str]:
    """Compile an expression that the digits of all valid numbers of a region match.

    Most other digits do not match it, which is much faster to find out than by a check.
    """
    from phonenumbers import (
        PhoneMetadata,
        country_code_for_region,
        region_codes_for_country_code,
    )

    country_code = country_code_for_region(region)
    # A number may belong to any region with the same country code. What precedes it is as in the
    # region or in the first of them.
    regions = (region, *region_codes_for_country_code(country_code))
    all_metadata = [
        metadata for name in regions if (metadata := PhoneMetadata.metadata_for_region(name))
    ]
    if any(metadata.national_prefix_transform_rule for metadata in all_metadata[:2]):
        return re.compile(".*")  # The valid number has other digits than the written one.
    prefixes = {metadata.national_prefix_for_parsing or "" for metadata in all_metadata[:2]}
    prefix = f"(?:{'|'.join(sorted(prefixes))})?"
    numbers = {
        metadata.general_desc.national_number_pattern or ""
        for metadata in all_metadata
        if metadata.general_desc
    }
    return re.compile(
        f"(?:{all_metadata[0].international_prefix or ''}).*"
        f"|(?:{country_code}{prefix})?{prefix}(?:{'|'.join(sorted(numbers))})"
    )


@cache
def _select_regions_by_length(
    digit_count: int, regions: tuple[str, ...], *, may_have_extension: bool = False
) -> list[str]:
    """Select the regions whose numbers can have as many digits, with a prefix and carrier code."""
    from phonenumbers import PhoneMetadata

    selected = []
    for region in regions:
        metadata = PhoneMetadata.metadata_for_region(region)
        if metadata is None or metadata.general_desc is None:
            continue
        prefix = metadata.national_prefix_for_parsing or ""
        # An expression with alternatives or groups may match a carrier code.
        max_prefix = len(prefix) if prefix.isdigit() else 5 if prefix else 0
        lengths = metadata.general_desc.possible_length
        max_digits = max(lengths) + max_prefix + 6 * may_have_extension
        if min(lengths) <= digit_count <= max_digits:
            selected.append(region)
    return selected
