"""Personal data and secrets in text: where they stand, by type.

Every detector is a regular expression that finds candidates and, where the type has one, a
check by a library: check digits (python-stdnum), address ranges (ipaddress), numbering plans
(phonenumbers). The expressions start only where a run of their characters starts and repeat a
bounded number of times, so that the work grows with the length of the text and no faster. All read
the text with digits and separators of any script in ASCII (``personal.folding``).

What is deliberately left alone: addresses that belong to nobody (127.0.0.1, 10.0.0.0/8, the
documentation ranges), four-part version numbers, and digits that no plan or checksum confirms, or
that many other numbers look like where no word near by says what they are (``personal.national``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tasks.measures.personal.accounts import find_cards, find_ibans
from tasks.measures.personal.contact import Found, TooMuch, find_emails, find_ips, find_phones
from tasks.measures.personal.folding import fold, fold_all
from tasks.measures.personal.national import NUMBERS
from tasks.measures.personal.secrets import find_assigned, find_connections, find_keys
from tasks.measures.personal.types import TYPES, UNREAD, Type, sought

#: Countries whose national numbers are looked for unless a config names others.
REGIONS = ("US",)


class Span(NamedTuple):
    """Characters ``start`` to ``end`` of a text, which are of this type."""

    type: Type
    start: int
    end: int


class Detector(NamedTuple):
    """What finds one type; of some types there are several. ``prefilter`` is a linear-time
    expression (RE2) that reads whole columns; texts without it are not looked at again.
    ``numeric``: what it finds has six digits close together at least."""

    type: Type
    find: Callable[[str, Sequence[str]], Found]
    prefilter: str
    numeric: bool = True


#: Six digits with at most two separators or capitals between one and the next.
_NUMERIC = r"\d(?:[ ./():A-Z+-]{0,2}\d){5}"

_DETECTORS = (
    Detector(
        "SECRET",
        find_keys,
        r"A[KSBC][IC]A[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_|gl(?:pat|dt|ft|soat|rt)-"
        r"|xox[abeoprs]-|[sr]k_live_|T3BlbkFJ|AIza|hf_[A-Za-z]{34}|npm_[A-Za-z0-9]{36}"
        r"|pypi-AgEI|SG\.|eyJ[A-Za-z0-9_-]{10}|PRIVATE KEY|sk-ant-|GOCSPX-|dop_v1_"
        r"|shp(?:at|ca|pa|ss)_|dapi[0-9a-f]{32}|\d:AA",
        numeric=False,
    ),
    Detector("SECRET", find_connections, r"://[^\s:/@]{0,64}:[^\s/@]{3,128}@", numeric=False),
    Detector(
        "SECRET",
        find_assigned,
        r"(?i:key|token|secret|passwo?r?d|pwd|passphrase|credentials?)[\"'`]?[ \t]{0,3}:?[:=]",
        numeric=False,
    ),
    Detector("EMAIL", find_emails, r"[^\s@]@[^\s@]+\.", numeric=False),
    Detector("IBAN", find_ibans, r"[A-Z]{2}\d{2} ?[A-Z0-9]{4} ?[A-Z0-9]{4}", numeric=False),
    Detector("CARD", find_cards, r"\d{4}[ -]?\d{4,6}[ -]?\d{4,5}"),
    *(Detector(n.type, n.find, n.prefilter, n.numeric) for n in NUMBERS),
    Detector(
        "PHONE",
        find_phones,
        r"\+[1-9][ ().-]{0,2}\d|\(\d{2,5}\)|\d{2,5}[-. ]\d{2,4}[-. ]\d{2,4}",
    ),
    Detector(
        "IP",
        find_ips,
        r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|[23][0-9A-Fa-f]{3}:[0-9A-Fa-f]*:",
        numeric=False,
    ),
)


def find(text: str, types: Sequence[Type] = TYPES, regions: Sequence[str] = REGIONS) -> list[Span]:
    """The spans of a text, in order, none of which overlap; one UNREAD over all of a text that has
    too many candidates."""
    folded = fold(text)
    try:
        return resolve(
            [
                Span(detector.type, start, end)
                for detector in _chosen(tuple(types), tuple(regions))
                for start, end in detector.find(folded, regions)
            ]
        )
    except TooMuch:
        return [Span(UNREAD, 0, len(text))]


def find_all(
    texts: pa.Array, types: Sequence[Type] = TYPES, regions: Sequence[str] = REGIONS
) -> dict[int, list[Span]]:
    """The spans of each text of a column that has any, by its row, as ``find`` finds them."""
    texts = fold_all(texts)
    every = pa.array(range(len(texts)), pa.int64())
    numeric = pc.indices_nonzero(pc.match_substring_regex(texts, _NUMERIC)).cast(pa.int64())
    columns = {True: (numeric, texts.take(numeric)), False: (every, texts)}
    found: dict[int, list[Span]] = {}
    unread = set()
    for detector in _chosen(tuple(types), tuple(regions)):
        rows, column = columns[detector.numeric]
        if not len(column):
            continue
        matched = pc.match_substring_regex(column, detector.prefilter)
        candidates = zip(rows.filter(matched).to_pylist(), column.filter(matched), strict=True)
        for row, text in candidates:
            try:
                spans = [
                    Span(detector.type, *span) for span in detector.find(text.as_py(), regions)
                ]
            except TooMuch:
                unread.add(row)
                continue
            if spans:
                found.setdefault(row, []).extend(spans)
    for row in unread:
        found[row] = [Span(UNREAD, 0, len(texts[row].as_py()))]
    return {row: resolve(found[row]) for row in sorted(found)}


@cache
def _chosen(types: tuple[Type, ...], regions: tuple[str, ...]) -> list[Detector]:
    wanted = sought(types, regions)
    return [detector for detector in _DETECTORS if detector.type in wanted]


def resolve(spans: Sequence[Span]) -> list[Span]:
    """Of spans that overlap the longest stays, of equally long ones the type first in TYPES."""
    kept: list[Span] = []
    chain: list[Span] = []  # spans each of which overlaps one before it
    reach = 0
    for span in sorted(spans, key=lambda span: span.start):
        if span.start >= reach:
            kept += _longest(chain)
            chain = []
        chain.append(span)
        reach = max(reach, span.end)
    return kept + _longest(chain)


def _longest(chain: list[Span]) -> list[Span]:
    if len(chain) == 1:
        return chain
    kept: list[Span] = []  # by start; disjoint, so by end as well
    for span in sorted(chain, key=lambda s: (s.start - s.end, TYPES.index(s.type), s.start)):
        place = bisect_left(kept, span.start, key=lambda other: other.start)
        before_ends = place == 0 or kept[place - 1].end <= span.start
        after_starts = place == len(kept) or kept[place].start >= span.end
        if before_ends and after_starts:
            kept.insert(place, span)
    return kept
