"""Evaluate the detectors: how much of planted personal data they find, and what they take for it.

What is planted is invented, see ``hallmark.tasks.measures.detector_examples``; none of it gets into
the corpus. The figures depend on code and config alone, so they are computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from hallmark.tasks.contract import StageContext, column, stage, table_schema
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig
from hallmark.tasks.measures.detector_examples import (
    EXAMPLES_PER_TYPE,
    DetectorExample,
    generate_detector_examples,
)
from hallmark.tasks.measures.personal.types import country_of_type, select_types_for_regions
from hallmark.tasks.measures.personal_data import find_spans_by_row

DETECTION = table_schema(
    "How well personal data is found: counts over invented sentences, by type.",
    column("type", pa.string(), "label", "what was looked for"),
    column("country", pa.string(), "label", "ISO 3166; empty: of no country in particular"),
    column(
        "planted_with_name",
        pa.int64(),
        "figure",
        "sentences with one, its name beside it",
        unit="sentences",
    ),
    column(
        "detected_with_name",
        pa.int64(),
        "figure",
        "of which it was found, whole and as what it is",
        unit="sentences",
    ),
    column(
        "recall", pa.float64(), "figure", "detected_with_name / planted_with_name", unit="share"
    ),
    column("recall_low", pa.float64(), "figure", "lower end of its 95 % interval (Wilson)"),
    column("recall_high", pa.float64(), "figure", "upper end"),
    column(
        "planted_without_name",
        pa.int64(),
        "figure",
        "sentences with one and no name beside it",
        unit="sentences",
    ),
    column(
        "detected_without_name", pa.int64(), "figure", "of which it was found", unit="sentences"
    ),
    column(
        "false_positives",
        pa.int64(),
        "figure",
        "spans of this type where there is none, in look-alikes, "
        "in texts full of other digits, and in those of other types",
        unit="spans",
    ),
    column(
        "precision",
        pa.float64(),
        "figure",
        "true spans / all spans of this type; it depends "
        "on how many look-alikes there are, here about as many as planted",
        unit="share",
    ),
    column("precision_low", pa.float64(), "figure", "lower end of its 95 % interval (Wilson)"),
    column("precision_high", pa.float64(), "figure", "upper end"),
)


def wilson_interval(
    successes: int, trials: int, z: float = 1.959963984540054
) -> tuple[float, float]:
    """Interval of a share of n > 0, 95 % by default (Wilson 1927)."""
    share, denominator = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def count_detections(
    planted_sentences: Iterable[DetectorExample], config: PersonalDataConfig
) -> list[dict[str, object]]:
    """Rows of DETECTION."""
    sentences = list(planted_sentences)
    texts = pa.array([sentence.text for sentence in sentences], pa.large_string())
    detected_spans = find_spans_by_row(texts, config.types, config.regions)
    counts: Counter[tuple[str, str]] = Counter()
    for row, (data_type, text, value, has_name) in enumerate(sentences):
        if value:
            counts[data_type, "planted_with_name" if has_name else "planted_without_name"] += 1
        for span in detected_spans.get(row, ()):
            is_match = bool(value) and (span.type, text[span.start : span.end]) == (
                data_type,
                value,
            )
            counts[
                span.type,
                ("detected_with_name" if has_name else "detected_without_name")
                if is_match
                else "false_positives",
            ] += 1
    return [
        _build_detection_row(data_type, counts)
        for data_type in select_types_for_regions(config.types, config.regions)
    ]


def _build_detection_row(data_type: str, counts: Counter[tuple[str, str]]) -> dict[str, object]:
    count_names = (
        "planted_with_name",
        "detected_with_name",
        "planted_without_name",
        "detected_without_name",
        "false_positives",
    )
    row: dict[str, int] = {name: counts[data_type, name] for name in count_names}
    true_positives = row["detected_with_name"] + row["detected_without_name"]
    shares: dict[str, float | None] = {}
    for name, hits, n in (
        ("recall", row["detected_with_name"], row["planted_with_name"]),
        ("precision", true_positives, true_positives + row["false_positives"]),
    ):
        low, high = wilson_interval(hits, n) if n else (None, None)
        shares |= {name: hits / n if n else None, f"{name}_low": low, f"{name}_high": high}
    return {"type": data_type, "country": country_of_type(data_type), **row, **shares}


@stage(
    name="evaluate_detectors",
    tables={"detector_accuracy": DETECTION},
    libraries=["phonenumbers", "python-stdnum"],
)
def evaluate_detectors(config: PersonalDataConfig, context: StageContext) -> None:
    """``config``: that of ``find_personal_data``."""
    rows = count_detections(
        generate_detector_examples(
            select_types_for_regions(config.types, config.regions), EXAMPLES_PER_TYPE
        ),
        config,
    )
    context.get_table_writer("detector_accuracy").write(
        pa.Table.from_pylist(rows, schema=DETECTION)
    )
