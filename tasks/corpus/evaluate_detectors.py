"""Evaluate the detectors: how much of planted personal data they find, and what they take for it.

What is planted is invented, see ``tasks.measures.planted_personal``; none of it gets into the
corpus. The figures depend on code and config alone, so they are computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from tasks.contract import Work, column, stage, table
from tasks.corpus.find_personal_data import PersonalDataConfig
from tasks.measures.personal.types import country, sought
from tasks.measures.personal_data import find_all
from tasks.measures.planted_personal import PLANTED, Planted, plants

DETECTION = table(
    "How well personal data is found: counts over invented sentences, by type.",
    column("type", pa.string(), "label", "what was looked for"),
    column("country", pa.string(), "label", "ISO 3166; empty: of no country in particular"),
    column("planted", pa.int64(), "figure", "sentences with one, its name beside it",
           unit="sentences"),
    column("found", pa.int64(), "figure", "of which it was found, whole and as what it is",
           unit="sentences"),
    column("recall", pa.float64(), "figure", "found / planted", unit="share"),
    column("recall_low", pa.float64(), "figure", "lower end of its 95 % interval (Wilson)"),
    column("recall_high", pa.float64(), "figure", "upper end"),
    column("alone", pa.int64(), "figure", "sentences with one and no name beside it",
           unit="sentences"),
    column("alone_found", pa.int64(), "figure", "of which it was found", unit="sentences"),
    column("false", pa.int64(), "figure", "spans of this type where there is none, in look-alikes, "
           "in texts full of other digits, and in those of other types", unit="spans"),
    column("precision", pa.float64(), "figure", "true spans / all spans of this type; it depends "
           "on how many look-alikes there are, here about as many as planted", unit="share"),
    column("precision_low", pa.float64(), "figure", "lower end of its 95 % interval (Wilson)"),
    column("precision_high", pa.float64(), "figure", "upper end"),
)  # fmt: skip


def wilson(hits: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Interval of a share of n > 0, 95 % by default (Wilson 1927)."""
    share, denominator = hits / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def count(planted: Iterable[Planted], config: PersonalDataConfig) -> list[dict[str, object]]:
    """Rows of DETECTION."""
    sentences = list(planted)
    texts = pa.array([sentence.text for sentence in sentences], pa.large_string())
    found = find_all(texts, config.types, config.regions)
    counts: Counter[tuple[str, str]] = Counter()
    for row, (kind, text, value, named) in enumerate(sentences):
        if value:
            counts[kind, "planted" if named else "alone"] += 1
        for span in found.get(row, ()):
            right = bool(value) and (span.type, text[span.start : span.end]) == (kind, value)
            counts[span.type, ("found" if named else "alone_found") if right else "false"] += 1
    return [_row(kind, counts) for kind in sought(config.types, config.regions)]


def _row(kind: str, counts: Counter[tuple[str, str]]) -> dict[str, object]:
    names = ("planted", "found", "alone", "alone_found", "false")
    row: dict[str, int] = {name: counts[kind, name] for name in names}
    true = row["found"] + row["alone_found"]
    shares: dict[str, float | None] = {}
    for name, hits, n in (
        ("recall", row["found"], row["planted"]),
        ("precision", true, true + row["false"]),
    ):
        low, high = wilson(hits, n) if n else (None, None)
        shares |= {name: hits / n if n else None, f"{name}_low": low, f"{name}_high": high}
    return {"type": kind, "country": country(kind), **row, **shares}


@stage(tables={"detection": DETECTION}, libraries=["phonenumbers", "python-stdnum"])
def evaluate_detectors(config: PersonalDataConfig, work: Work) -> None:
    """``config``: that of ``find_personal_data``."""
    rows = count(plants(sought(config.types, config.regions), PLANTED), config)
    work.table("detection").write(pa.Table.from_pylist(rows, schema=DETECTION))
