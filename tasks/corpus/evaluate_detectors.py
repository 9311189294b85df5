"""Measure recall and precision of the personal-data detectors on invented sentences.

``hallmark.tasks.measures.detector_examples`` invents the sentences; none of them enters the corpus.
The figures depend on code and config alone, so they are computed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from hallmark.tasks.contract import Row, StageContext, column, stage, table_schema
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig
from hallmark.tasks.measures.detector_examples import (
    EXAMPLES_PER_VARIANT,
    DetectorExample,
    generate_positive_and_negative_examples,
)
from hallmark.tasks.measures.personal.types import country_of_type, select_types_for_regions
from hallmark.tasks.measures.personal_data import find_spans_by_row
from hallmark.tasks.measures.statistics import wilson_interval

DETECTION = table_schema(
    "Recall and precision with which personal data is detected in invented sentences, by type of "
    "personal data.",
    column("type", pa.string(), "label", "type of personal data"),
    column(
        "country",
        pa.string(),
        "label",
        "country to which the type is specific (ISO 3166 code); empty if the type is not specific "
        "to a country",
    ),
    column(
        "planted_with_name",
        pa.int64(),
        "figure",
        "number of sentences that contain a value of this type with the name of the type next to "
        "it",
        unit="sentences",
    ),
    column(
        "detected_with_name",
        pa.int64(),
        "figure",
        "number of the sentences counted in `planted_with_name` in which the whole value was "
        "detected with the correct type",
        unit="sentences",
    ),
    column(
        "recall",
        pa.float64(),
        "figure",
        "share of the planted values that were detected: detected_with_name / planted_with_name",
        unit="share",
    ),
    column(
        "recall_low", pa.float64(), "figure", "lower end of the 95 % confidence interval (Wilson)"
    ),
    column(
        "recall_high", pa.float64(), "figure", "upper end of the 95 % confidence interval (Wilson)"
    ),
    column(
        "planted_without_name",
        pa.int64(),
        "figure",
        "number of sentences that contain a value of this type without the name of the type",
        unit="sentences",
    ),
    column(
        "detected_without_name",
        pa.int64(),
        "figure",
        "number of the sentences counted in `planted_without_name` in which the whole value was "
        "detected with the correct type",
        unit="sentences",
    ),
    column(
        "false_positives",
        pa.int64(),
        "figure",
        "number of spans that were wrongly reported as this type: in look-alikes, in texts with "
        "many unrelated digits, and in sentences with values of other types",
        unit="spans",
    ),
    column(
        "precision",
        pa.float64(),
        "figure",
        "number of correct spans divided by the number of all reported spans of this type; it "
        "depends on the number of look-alikes, which is roughly equal to the number of planted "
        "values",
        unit="share",
    ),
    column(
        "precision_low",
        pa.float64(),
        "figure",
        "lower end of the 95 % confidence interval (Wilson)",
    ),
    column(
        "precision_high",
        pa.float64(),
        "figure",
        "upper end of the 95 % confidence interval (Wilson)",
    ),
)


def build_detection_rows(
    planted_sentences: Iterable[DetectorExample], config: PersonalDataConfig
) -> list[Row]:
    """Run the detectors on the sentences and build the rows of DETECTION."""
    sentences = list(planted_sentences)
    texts = pa.array([sentence.text for sentence in sentences], pa.large_string())
    detected_spans = find_spans_by_row(texts, config.types, config.regions)
    count_by_type_and_outcome: Counter[tuple[str, str]] = Counter()
    for row, (data_type, text, value, has_name) in enumerate(sentences):
        if value:
            count_by_type_and_outcome[
                data_type, "planted_with_name" if has_name else "planted_without_name"
            ] += 1
        for span in detected_spans.get(row, ()):
            is_correct = span.type == data_type and text[span.start : span.end] == value
            count_name = "detected_with_name" if has_name else "detected_without_name"
            count_by_type_and_outcome[
                span.type, count_name if value and is_correct else "false_positives"
            ] += 1
    return [
        _build_detection_row(data_type, count_by_type_and_outcome)
        for data_type in select_types_for_regions(config.types, config.regions)
    ]


def _build_detection_row(
    data_type: str, count_by_type_and_outcome: Counter[tuple[str, str]]
) -> Row:
    count_names = (
        "planted_with_name",
        "detected_with_name",
        "planted_without_name",
        "detected_without_name",
        "false_positives",
    )
    row: dict[str, int] = {name: count_by_type_and_outcome[data_type, name] for name in count_names}
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
    libraries=["numpy", "phonenumbers", "python-stdnum", "scipy"],
)
def evaluate_detectors(config: PersonalDataConfig, context: StageContext) -> None:
    """Evaluate the detectors with the config of ``find_personal_data``."""
    types = select_types_for_regions(config.types, config.regions)
    rows = build_detection_rows(
        generate_positive_and_negative_examples(types, EXAMPLES_PER_VARIANT), config
    )
    context.get_table_writer("detector_accuracy").write(
        pa.Table.from_pylist(rows, schema=DETECTION)
    )
