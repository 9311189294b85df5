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
    "Recall and precision of personal data detection in invented sentences, per type of personal "
    "data and, for telephone numbers, per country.",
    column("type", pa.string(), "label", "type of personal data"),
    column(
        "country",
        pa.string(),
        "label",
        "country (ISO 3166 code) to which the type of personal data or the national telephone "
        "number format belongs; empty if the values are not specific to a country, such as "
        "telephone numbers in international format",
    ),
    column(
        "planted_with_name",
        pa.int64(),
        "figure",
        "number of sentences that contain a value of this type with the type's name next to it",
        unit="sentences",
    ),
    column(
        "detected_with_name",
        pa.int64(),
        "figure",
        "number of `planted_with_name` sentences in which the whole value was detected with the "
        "correct type",
        unit="sentences",
    ),
    column(
        "recall",
        pa.float64(),
        "figure",
        "recall for values planted next to their type's name: detected_with_name / "
        "planted_with_name",
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
        "number of sentences that contain a value of this type without the type's name",
        unit="sentences",
    ),
    column(
        "detected_without_name",
        pa.int64(),
        "figure",
        "number of `planted_without_name` sentences in which the whole value was detected with "
        "the correct type",
        unit="sentences",
    ),
    column(
        "false_positives",
        pa.int64(),
        "figure",
        "number of spans wrongly reported as this type in look-alikes, in texts with many "
        "unrelated digits, and in sentences with values of other types. Wrongly reported "
        "telephone numbers are counted in the row without a country unless the sentence contains "
        "a national telephone number",
        unit="spans",
    ),
    column(
        "precision",
        pa.float64(),
        "figure",
        "number of correct spans divided by the total number of spans reported as this type; the "
        "ratio depends on the number of look-alikes, which is roughly equal to the number of "
        "planted values",
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
    counts: Counter[tuple[str, str, str]] = Counter()
    for row, example in enumerate(sentences):
        name = "with_name" if example.has_context_word else "without_name"
        if example.value:
            country = _get_country(example.type, example)
            counts[example.type, country, f"planted_{name}"] += 1
        for span in detected_spans.get(row, ()):
            is_correct = span.type == example.type and (
                example.text[span.start : span.end] == example.value
            )
            outcome = f"detected_{name}" if example.value and is_correct else "false_positives"
            counts[span.type, _get_country(span.type, example), outcome] += 1
    types_and_countries = [
        (data_type, country)
        for data_type in select_types_for_regions(config.types, config.regions)
        for country in (
            ("", *sorted(set(config.regions)))
            if data_type == "PHONE"
            else (country_of_type(data_type),)
        )
    ]
    return [
        _build_detection_row(data_type, country, counts)
        for data_type, country in types_and_countries
    ]


def _get_country(span_type: str, example: DetectorExample) -> str:
    """Return the country of the row of DETECTION that counts a span of an example."""
    return example.region if span_type == example.type == "PHONE" else country_of_type(span_type)


def _build_detection_row(
    data_type: str, country: str, counts: Counter[tuple[str, str, str]]
) -> Row:
    count_names = (
        "planted_with_name",
        "detected_with_name",
        "planted_without_name",
        "detected_without_name",
        "false_positives",
    )
    row: dict[str, int] = {name: counts[data_type, country, name] for name in count_names}
    true_positives = row["detected_with_name"] + row["detected_without_name"]
    shares: dict[str, float | None] = {}
    for name, hits, n in (
        ("recall", row["detected_with_name"], row["planted_with_name"]),
        ("precision", true_positives, true_positives + row["false_positives"]),
    ):
        low, high = wilson_interval(hits, n) if n else (None, None)
        shares |= {name: hits / n if n else None, f"{name}_low": low, f"{name}_high": high}
    return {"type": data_type, "country": country, **row, **shares}


@stage(
    name="evaluate_detectors",
    tables={"detector_accuracy": DETECTION},
    libraries=["numpy", "phonenumbers", "python-stdnum", "scipy"],
)
def evaluate_detectors(config: PersonalDataConfig, context: StageContext) -> None:
    """Evaluate the detectors with the config of ``find_personal_data``."""
    types = select_types_for_regions(config.types, config.regions)
    rows = build_detection_rows(
        generate_positive_and_negative_examples(
            types, EXAMPLES_PER_VARIANT, regions=sorted(set(config.regions))
        ),
        config,
    )
    context.get_table_writer("detector_accuracy").write(
        pa.Table.from_pylist(rows, schema=DETECTION)
    )
