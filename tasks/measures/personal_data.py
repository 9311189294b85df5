"""Find spans of personal data and secrets in texts, by type.

Every detector is a regular expression that finds candidates and, for most types, a check by a
library: check digits (python-stdnum), address ranges (ipaddress), numbering plans (phonenumbers).
The expressions start only where a run of their characters starts and have bounded repetition, so
that the time is linear in the length of the text. All read the text with digits and separators of
any script converted to ASCII and escapes next to values decoded (`personal.folding`).

Not reported: addresses that belong to nobody (127.0.0.1, 10.0.0.0/8, the documentation ranges),
four-part version numbers, digits that no numbering plan or checksum confirms, and digits of a
format shared with many other numbers if no keyword is nearby (`personal.national_ids`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.measures.personal.contact_details import (
    SpanIterator,
    TooManyCandidatesError,
    find_email_addresses,
    find_ip_addresses,
)
from hallmark.tasks.measures.personal.folding import FoldedText, fold_text, fold_text_column
from hallmark.tasks.measures.personal.national_ids import NATIONAL_ID_FORMATS
from hallmark.tasks.measures.personal.payment_accounts import (
    CARD_PATTERN,
    IBAN_PATTERN,
    find_ibans,
    find_payment_cards,
)
from hallmark.tasks.measures.personal.phone_numbers import (
    ANNOUNCED_PHONE_PATTERN,
    PHONE_PATTERN,
    find_announced_phone_numbers,
    find_phone_numbers,
)
from hallmark.tasks.measures.personal.secrets import (
    CONNECTION_PREFILTER,
    CREDENTIAL_NAME_PREFILTER,
    OTHER_CREDENTIAL_NAME_PREFILTER,
    VENDOR_KEY_PREFILTER,
    find_assigned_credentials,
    find_connection_credentials,
    find_credentials_named_in_other_languages,
    find_vendor_and_private_keys,
)
from hallmark.tasks.measures.personal.types import (
    PERSONAL_DATA_TYPES,
    UNREADABLE,
    PersonalDataType,
    Span,
    select_types_for_regions,
)

#: Countries whose national ids and phone numbers are detected unless a config names others.
DEFAULT_REGIONS = ("US",)


class Detector(NamedTuple):
    """A detector of one type; a type can have several.

    Attributes:
        type: The type of the spans.
        find_spans: Find the spans in a folded text, for the given regions.
        prefilter: RE2 expression that every text with such a span matches; it is applied to whole
            columns in linear time, and other texts are skipped.
        first_prefilter: What a column is searched for first, once for all detectors that share it.
    """

    type: PersonalDataType
    find_spans: Callable[[str, Sequence[str]], SpanIterator]
    prefilter: str
    first_prefilter: Literal["six digits", "words", "values", "none"]


#: Six digits with at most four separators or letters between neighbours.
_SIX_DIGITS = "[0-9](?:[ ./():A-Za-z+_\u2013\u2014-]{0,4}[0-9]){5}"

# The first prefilters "words" and "values" are the joined prefilters of their detectors, because
# one search for several expressions is faster than one for each. A joined expression has a state
# for each combination of the states of its parts, so too many or too different ones are slower.
_DETECTORS = (
    Detector("SECRET", find_vendor_and_private_keys, VENDOR_KEY_PREFILTER, "words"),
    Detector("SECRET", find_connection_credentials, CONNECTION_PREFILTER, "values"),
    Detector("SECRET", find_assigned_credentials, CREDENTIAL_NAME_PREFILTER, "words"),
    Detector(
        "SECRET",
        find_credentials_named_in_other_languages,
        OTHER_CREDENTIAL_NAME_PREFILTER,
        "words",
    ),
    Detector("EMAIL", find_email_addresses, r"[^\s@](?:@|%40)[^\s@]+\.", "values"),
    Detector("IBAN", find_ibans, IBAN_PATTERN, "values"),
    Detector("CARD", find_payment_cards, CARD_PATTERN, "six digits"),
    *(
        Detector(
            n.type,
            n.find_spans,
            n.prefilter_pattern,
            "six digits" if n.requires_six_digits else "none",
        )
        for n in NATIONAL_ID_FORMATS
    ),
    Detector("PHONE", find_phone_numbers, PHONE_PATTERN, "six digits"),
    Detector("PHONE", find_announced_phone_numbers, ANNOUNCED_PHONE_PATTERN, "six digits"),
    Detector(
        "IP",
        find_ip_addresses,
        r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|[23][0-9A-Fa-f]{3}:[0-9A-Fa-f]*:",
        "values",
    ),
)


def find_personal_data_spans(
    text: str,
    types: Sequence[PersonalDataType] = PERSONAL_DATA_TYPES,
    regions: Sequence[str] = DEFAULT_REGIONS,
) -> list[Span]:
    """Find the spans of a text, sorted and without overlaps.

    A text with too many candidates gets a single UNREADABLE span over all of it.
    """
    folded = fold_text(text)
    try:
        spans = resolve_overlaps(
            [
                Span(detector.type, start, end)
                for detector in _select_detectors(tuple(types), tuple(regions))
                for start, end in detector.find_spans(folded.text, regions)
            ]
        )
        return _find_original_spans(spans, folded)
    except TooManyCandidatesError:
        return [Span(UNREADABLE, 0, len(text))]


def find_spans_by_row(
    texts: pa.Array,
    types: Sequence[PersonalDataType] = PERSONAL_DATA_TYPES,
    regions: Sequence[str] = DEFAULT_REGIONS,
) -> dict[int, list[Span]]:
    """Find the spans of each text of a column, like `find_personal_data_spans`.

    Returns:
        Spans by row number; rows without spans are absent.
    """
    original_texts = texts
    texts, moved_texts = fold_text_column(texts)
    detectors = _select_detectors(tuple(types), tuple(regions))
    columns = {
        name: _take_matching_rows(texts, _build_first_prefilter(name, detectors))
        for name in {detector.first_prefilter for detector in detectors}
    }
    spans_by_row: dict[int, list[Span]] = {}
    unread_rows = set()
    for detector in detectors:
        rows, column = columns[detector.first_prefilter]
        if not len(column):
            continue
        is_candidate = pc.match_substring_regex(column, detector.prefilter)
        candidates = zip(
            rows.filter(is_candidate).to_pylist(),
            column.filter(is_candidate).to_pylist(),
            strict=True,
        )
        for row, text in candidates:
            try:
                spans = [Span(detector.type, *span) for span in detector.find_spans(text, regions)]
            except TooManyCandidatesError:
                unread_rows.add(row)
                continue
            if spans:
                spans_by_row.setdefault(row, []).extend(spans)
    resolved = {row: resolve_overlaps(spans) for row, spans in spans_by_row.items()}
    for row in moved_texts.keys() & resolved.keys():
        resolved[row] = _find_original_spans(resolved[row], moved_texts[row])
    for row in unread_rows:
        resolved[row] = [Span(UNREADABLE, 0, len(original_texts[row].as_py()))]
    return {row: resolved[row] for row in sorted(resolved)}


def _build_first_prefilter(name: str, detectors: Sequence[Detector]) -> str:
    """Build the expression of a first prefilter for some of the detectors; empty for all rows."""
    if name == "none":
        return ""
    if name == "six digits":
        return _SIX_DIGITS
    return "|".join(
        f"(?:{detector.prefilter})" for detector in detectors if detector.first_prefilter == name
    )


def _take_matching_rows(texts: pa.Array, prefilter: str) -> tuple[pa.Array, pa.Array]:
    """Return the row numbers of the texts that match an expression, and these texts."""
    if not prefilter:
        return pa.array(range(len(texts)), pa.int64()), texts
    is_match = pc.match_substring_regex(texts, prefilter)
    return pc.indices_nonzero(is_match).cast(pa.int64()), texts.filter(is_match)


def _find_original_spans(spans: list[Span], folded: FoldedText) -> list[Span]:
    """Convert spans of a folded text to those of the original text."""
    position = folded.find_original_position
    return [Span(span.type, position(span.start), position(span.end)) for span in spans]


@cache
def _select_detectors(
    types: tuple[PersonalDataType, ...], regions: tuple[str, ...]
) -> list[Detector]:
    selected_types = select_types_for_regions(types, regions)
    return [detector for detector in _DETECTORS if detector.type in selected_types]


def resolve_overlaps(spans: Sequence[Span]) -> list[Span]:
    """Keep the longest of overlapping spans; of equally long ones the one listed first by type."""
    if len(spans) == 1:
        return list(spans)
    resolved: list[Span] = []
    overlapping: list[Span] = []  # A chain: each span overlaps an earlier one.
    overlap_end = 0
    for span in sorted(spans, key=lambda span: span.start):
        if span.start >= overlap_end:
            resolved += _keep_longest_spans(overlapping)
            overlapping = []
        overlapping.append(span)
        overlap_end = max(overlap_end, span.end)
    return resolved + _keep_longest_spans(overlapping)


def _keep_longest_spans(overlapping: list[Span]) -> list[Span]:
    if len(overlapping) == 1:
        return overlapping
    disjoint: list[Span] = []  # Sorted by start and, because disjoint, also by end.
    for span in sorted(
        overlapping, key=lambda s: (s.start - s.end, PERSONAL_DATA_TYPES.index(s.type), s.start)
    ):
        position = bisect_left(disjoint, span.start, key=lambda kept_span: kept_span.start)
        before_ends = position == 0 or disjoint[position - 1].end <= span.start
        after_starts = position == len(disjoint) or disjoint[position].start >= span.end
        if before_ends and after_starts:
            disjoint.insert(position, span)
    return disjoint
