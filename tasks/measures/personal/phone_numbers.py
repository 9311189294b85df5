"""Find telephone numbers: international ones, and national ones of the configured regions.

`phonenumbers.PhoneNumberMatcher` decides; it reads about 0.1 MB/s, so it only gets candidates. A
national number needs a word for a telephone before it, or it is written as is usual in its country
and unlike other numbers: 512 345 678 is a number of people as often as one of a telephone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from hallmark.tasks.measures.personal.contact_details import (
    WORD_CHARACTER,
    SpanIterator,
    TooManyCandidatesError,
)
from hallmark.tasks.measures.personal.phone_words import LOWER_CASE_PHONE_WORD, PHONE_WORD

_INTERNATIONAL_PHONE = re.compile(
    rf"(?<!{WORD_CHARACTER})(?<![+.])\+[1-9](?:[ ().-]{{0,2}}\d){{6,14}}(?!{WORD_CHARACTER}|\.\d)"
)
_EXTENSION = r"(?:,? ?(?:x|ext\.?|extension) ?\d{1,6})?"
#: Characters of an extension, and of what may not follow a number.
_MAX_CHARACTERS_AFTER_RUN = 24
#: Six or more digits with up to two separators between neighbours.
_DIGIT_RUN = re.compile(r"\d(?:[ ()./-]{0,2}\d){5,}")
#: What may not be adjacent to a number without a word for a telephone: parts of dates, versions,
#: tables and longer numbers.
_START_OF_NUMBER = rf"(?<!{WORD_CHARACTER})(?<![.+/-])(?<!\d[ :])"
_END_OF_NUMBER = rf"(?!{WORD_CHARACTER}|[/-]|\.\d| \d)"
#: Forms that are usual in several countries: an area code in parentheses; three, three and four
#: digits; a leading zero and a space or slash.
_COMMON_FORMS = (
    r"(?:1[-. ]?)?\(\d{2,5}\)[ -]?\d{2,4}(?:[-. ]\d{2,4}){1,3}",
    r"(?:1-)?\d{3}(?P<separator>[-.])\d{3}(?P=separator)\d{4}",
    r"\d{3}/\d{3}-\d{4}",
    r"(?=[\d.-]* )0[1-9]\d{0,3}[-. ]\d{2,4}(?:[-. ]\d{2,4}){1,3}",
    r"0[1-9]\d{0,4}(?: | ?/ ?)(?=(?:[ -]?\d){5})\d{3,9}(?:[ -]\d{2,6}){0,3}",
)
#: Words before numbers that are written like those of telephones.
_OTHER_NUMBER_WORD = re.compile(
    r"(?i)(?:order|invoice|ticket|serial|part|item|version|isbn|issn|ean|account|reference|ref|"
    r"bestell\w*|auftrag\w*|rechnung\w*|artikel\w*|commande|facture|pedido|factura|ordine|fattura|"
    r"заказ\w*|订单\w*|注文\w*)[\W\d_]{0,4}(?:(?:no|nr|number|nummer|num|n[ºo°]|id)\W{0,3})?$"
)
#: Number of characters on both sides of a number that may be part of a list or table.
_ISOLATION = 20
#: Maximum number of candidates per text; each takes about 0.1 ms per region.
MAX_PHONE_CANDIDATES = 20_000
#: Number of characters before a number that are searched for a word for a telephone.
WORD_DISTANCE = 40
#: Maximum distance of a further number from one that a word announces: "Tel. 123456 or 123457".
_FURTHER_NUMBER_DISTANCE = 12

#: What all texts with a number after a word for a telephone match.
ANNOUNCED_PHONE_PATTERN = rf"{PHONE_WORD}[^\d]{{0,{WORD_DISTANCE}}}\d"
_PHONE_WORD = re.compile(LOWER_CASE_PHONE_WORD)


def find_phone_numbers(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    """Yield the spans of international numbers, and of national ones in their country's form.

    Raises:
        TooManyCandidatesError: The text has more than MAX_PHONE_CANDIDATES candidates.
    """
    candidate_count = 0
    for match in _INTERNATIONAL_PHONE.finditer(text):
        candidate_count = _count_candidate(candidate_count)
        for start, end in _find_international_phone_spans(match[0]):
            yield match.start() + start, match.start() + end
    if not regions:
        return
    form = _compile_national_forms(tuple(regions))
    for run in _DIGIT_RUN.finditer(text):
        if run[0].isdigit():  # Without a separator, the form is that of any number.
            continue
        start = max(0, run.start() - 1)  # A parenthesis may precede.
        for match in form.finditer(text, start, run.end() + _MAX_CHARACTERS_AFTER_RUN):
            if match.start() > run.end():
                break
            preceding_text = text[max(0, match.start() - 24) : match.start()]
            if (
                _is_ambiguous(text, match)
                or _OTHER_NUMBER.fullmatch(match[0])
                or _OTHER_NUMBER_WORD.search(preceding_text)
            ):
                continue
            candidate_count = _count_candidate(candidate_count)
            # A part of the candidate would be a short number by chance.
            spans = _find_national_phone_spans(match[0], tuple(regions))
            if spans and spans[0][0] <= 1 and spans[-1][1] == len(match[0]):
                yield match.start() + spans[0][0], match.end()


def find_announced_phone_numbers(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    """Yield the spans of national numbers in any form that follow a word for a telephone.

    Raises:
        TooManyCandidatesError: The text has more than MAX_PHONE_CANDIDATES candidates.
    """
    candidate_count = 0
    previous_end = announced_end = 0
    for run in _DIGIT_RUN.finditer(text) if regions else ():
        gap = text[max(previous_end, run.start() - WORD_DISTANCE) : run.start()]
        gap = gap.rpartition("\n\n")[2]  # A word of another paragraph announces nothing.
        # With the character before the gap, which may belong to a longer word.
        gap_start = run.start() - len(gap)
        context = text[max(gap_start - 1, 0) : run.start()].lower()
        is_further = 0 < announced_end >= run.start() - _FURTHER_NUMBER_DISTANCE
        previous_end = run.end()
        if not (is_further or _PHONE_WORD.search(context, min(gap_start, 1))) or (
            _is_other_number(gap, run[0], is_further=is_further)
        ):
            continue
        candidate_count = _count_candidate(candidate_count)
        start = run.start() - gap.endswith("(")
        extension = _EXTENSION_AFTER_NUMBER.match(text, run.end())
        end = extension.end() if extension else run.end()
        for hit_start, hit_end in _find_announced_phone_spans(text[start:end], tuple(regions)):
            is_long = hit_end - hit_start >= 6  # A shorter part would be a number by chance.
            if is_long and _is_whole_number(text, start + hit_start, start + hit_end):
                announced_end = start + hit_end
                yield start + hit_start, start + hit_end


def _count_candidate(candidate_count: int) -> int:
    if candidate_count >= MAX_PHONE_CANDIDATES:
        raise TooManyCandidatesError
    return candidate_count + 1


_EXTENSION_AFTER_NUMBER = re.compile(_EXTENSION)
_WORD_CHARACTER = re.compile(WORD_CHARACTER)


def _is_whole_number(text: str, start: int, end: int) -> bool:
    """Return whether no letter or digit is adjacent to a number."""
    return not (
        _WORD_CHARACTER.match(text, end) or (start and _WORD_CHARACTER.match(text, start - 1))
    )


#: Dates, IP addresses, and times in seconds or milliseconds since 1970.
_OTHER_NUMBER = re.compile(
    r"(?:19|20)\d\d([-./]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?!\d).*"
    r"|\d{1,2}[./-]\d{1,2}[./-](?:19|20)\d\d(?!\d).*"
    r"|(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d).*"
    r"|1[4-9]\d{8}(?:\d{3})?"
    r"|(?:\d\.|\d{2,}\.\d\.).*"
)


#: What makes the following digits part of an identifier or a time: "CVE-2023-1981", "#830982",
#: "16:26:02 1999".
_IDENTIFIER_SIGN = re.compile(r"\+$|(?<![A-Za-z])[A-Za-z]{1,20}[-_]$|#$|\d:$")
#: A number without separators, or with groups of three digits as in large numbers.
_NUMBER_IN_GROUPS_OF_THREE = re.compile(r"[1-9]\d*|[1-9]\d{0,2}(?:[ .]\d{3})+")
_PHONE_WORD_AT_END = re.compile(rf"(?:{LOWER_CASE_PHONE_WORD})\W{{0,3}}$")
#: A word for a telephone with at most four words between it and the number.
_PHONE_WORD_NEAR_END = re.compile(
    rf"(?:{LOWER_CASE_PHONE_WORD})[^\W\d]*\W{{0,4}}(?:[^\W\d]{{1,12}}\W{{1,3}}){{0,4}}[^\W\d]{{0,4}}$"
)


def _is_other_number(gap: str, run: str, *, is_further: bool) -> bool:
    """Return whether digits are a date, a time, an IP address, a version or an identifier.

    Args:
        gap: The text before the digits.
        run: The digits, with their separators.
        is_further: Whether they follow a number that a word announces.
    """
    gap = gap.lower()
    if _OTHER_NUMBER.fullmatch(run) or _OTHER_NUMBER_WORD.search(gap):
        return True
    if _IDENTIFIER_SIGN.search(gap):
        return not _PHONE_WORD_AT_END.search(gap)
    return (
        _NUMBER_IN_GROUPS_OF_THREE.fullmatch(run) is not None
        and not is_further
        and not _PHONE_WORD_NEAR_END.search(gap)
    )


def _is_ambiguous(text: str, candidate: re.Match[str]) -> bool:
    """Return whether other numbers are often written like a candidate.

    Unless it begins with a zero or a parenthesis or has the form of North America: a year and
    groups of three, as in large numbers, always; two groups of four and groups of two, as in lists
    and tables, if further digits are near.
    """
    number = candidate[0]
    if number[0] == "0" or "(" in number or re.match(r"(?:1-)?\d{3}[-./]", number):
        return False
    groups = re.findall(r"\d+", number)
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


@lru_cache(maxsize=4096)
def _find_international_phone_spans(text: str) -> list[tuple[int, int]]:
    from phonenumbers import Leniency, PhoneNumberMatcher

    if text.count(".") == 1:  # A signed decimal number.
        return []
    return [(hit.start, hit.end) for hit in PhoneNumberMatcher(text, None, Leniency.VALID)]


@lru_cache(maxsize=4096)
def _find_national_phone_spans(
    text: str, regions: tuple[str, ...], *, strict: bool = True
) -> list[tuple[int, int]]:
    """Find the numbers of the region whose numbers contain most of the text.

    Args:
        strict: Whether the digits must be grouped as is usual in the region.
    """
    from phonenumbers import Leniency, PhoneNumberMatcher

    leniency = Leniency.STRICT_GROUPING if strict else Leniency.VALID
    longest_spans: list[tuple[int, int]] = []
    for region in regions:
        spans = [(hit.start, hit.end) for hit in PhoneNumberMatcher(text, region, leniency)]
        if _count_characters(spans) > _count_characters(longest_spans):
            longest_spans = spans
        if _count_characters(spans) == len(text):
            break
    return longest_spans


def _count_characters(spans: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


@lru_cache(maxsize=4096)
def _find_announced_phone_spans(text: str, regions: tuple[str, ...]) -> list[tuple[int, int]]:
    """Find numbers in any grouping; spaces may separate several."""
    spans = _find_valid_phone_spans(text, regions)
    if spans:
        return spans
    # All digits together are no number: split them at the space with which most are in numbers.
    splits = []
    for space in [match.start() for match in re.finditer(" ", text)][:8]:
        spans_before = _find_valid_phone_spans(text[:space], regions)
        if spans_before:
            rest = _find_announced_phone_spans(text[space + 1 :], regions)
            splits.append(
                spans_before + [(space + 1 + start, space + 1 + end) for start, end in rest]
            )
    return max(splits, key=_count_characters, default=[])


def _find_valid_phone_spans(text: str, regions: tuple[str, ...]) -> list[tuple[int, int]]:
    """Find numbers with the usual grouping, or in any grouping if they contain more of the text."""
    spans = _find_national_phone_spans(text, regions)
    if _count_characters(spans) == len(text):
        return spans
    other_spans = _find_national_phone_spans(text, regions, strict=False)
    return max(spans, other_spans, key=_count_characters)
