"""Report which personal data was searched for and found, and how the policies treated it.

The rows come from ``find_personal_data``, ``redact_spans`` and ``evaluate_detectors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hallmark.reports.page.document import (
    Block,
    DataTable,
    InlineElement,
    Link,
    Paragraph,
    Section,
)
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.reports.sections.curation_evaluation import RECOVERY_TITLE, list_personal_data_rates
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, UNREADABLE

FIND_PERSONAL_DATA, REDACT_SPANS = "find_personal_data", "redact_spans"

#: For each policy: what happens to a span, the actions in the ledger, and what their rows count.
POLICY_OUTCOMES: Mapping[str, tuple[str, list[str], str]] = {
    "mask": ("masked", ["replaced"], "spans"),
    "cut": ("cut out", ["removed_span"], "spans"),
    "drop": ("removed with its document", ["removed", "additional_reason"], "documents"),
    "keep": ("kept unchanged", [], ""),
}


def has_personal_data_search(corpus: CorpusFigures) -> bool:
    """Return whether the corpus stages searched for personal data and applied a policy to it."""
    return FIND_PERSONAL_DATA in corpus.stage_artifacts and REDACT_SPANS in corpus.stage_artifacts


def describe_searched_documents(corpus: CorpusFigures) -> list[InlineElement]:
    """Name the documents that were searched for personal data: those that masking received.

    The search and the masking read the same documents, which earlier stages had kept.
    """
    searched = corpus.book.add_computed_figure(
        f"flow-{REDACT_SPANS}-rows-input",
        f"{REDACT_SPANS}: input",
        "documents",
        (PROFILE, "stage_accounts"),
        {"stage": REDACT_SPANS, "unit": "rows"},
        value_column="input",
    )
    return [searched, f" that earlier stages had kept (input to {REDACT_SPANS})"]


def get_personal_data_policy(corpus: CorpusFigures, data_type: str = "") -> str:
    """Return the configured policy for a type, or the default policy if no type is given."""
    config = corpus.stage_artifacts[REDACT_SPANS].manifest["parts"]["config"]
    return str(config.get("actions_by_type", {}).get(data_type, config.get("action", "mask")))


def describe_personal_data_treatment(corpus: CorpusFigures, subject: str = "Personal data") -> str:
    """Return a sentence for users of the corpus on how personal data was treated."""
    if not has_personal_data_search(corpus):
        return "The corpus was not searched for personal data, so any document may contain it."
    default_treatment = POLICY_OUTCOMES[get_personal_data_policy(corpus)][0]
    other_treatments = [
        f"{data_type}: {POLICY_OUTCOMES[get_personal_data_policy(corpus, data_type)][0]}"
        for data_type in PERSONAL_DATA_TYPES
        if get_personal_data_policy(corpus, data_type) != get_personal_data_policy(corpus)
    ]
    exceptions = f" ({', '.join(other_treatments)})" if other_treatments else ""
    return (
        f"{subject} is {default_treatment} where a detector found it{exceptions}; undetected "
        "personal data may remain."
    )


def build_personal_data_section(corpus: CorpusFigures) -> Section:
    """Build the section on personal data: types found, treatment, and accuracy of the detectors."""
    section = Section("Personal data")
    if not has_personal_data_search(corpus):
        section.add_blocks(Paragraph(["This corpus was not searched for personal data."]))
        return section
    searched_documents = describe_searched_documents(corpus)
    section.add_blocks(Paragraph(["The detectors searched the ", *searched_documents, "."]))
    detected_types = set(
        corpus.stage_artifacts[FIND_PERSONAL_DATA]["spans"]
        .read(["type"])["type"]
        .unique()
        .to_pylist()
    )
    rows = [
        build_personal_data_row(corpus, data_type)
        for data_type in PERSONAL_DATA_TYPES
        if data_type in detected_types
    ]
    if rows:
        columns = ["type", "spans found", "in documents", "treatment", "number"]
        note = (
            "Masked or cut data is counted in spans; removed data is counted in documents. "
            "Overlapping spans are treated as one. No spans are masked or cut in removed "
            "documents. A document that would be empty after cutting is also removed."
        )
        section.add_blocks(
            DataTable("Personal data found", columns, rows, frozenset({1, 2, 4}), note)
        )
    else:
        section.add_blocks(Paragraph(["The detectors found no personal data."]))
    if UNREADABLE in detected_types:
        unread_count = corpus.book.add_computed_figure(
            "personal-unread",
            "number of documents that could not be searched",
            "documents",
            (REDACT_SPANS, "ledger"),
            {"action": "quarantined", "reason": UNREADABLE},
            aggregate="count",
        )
        section.add_blocks(
            Paragraph([unread_count, " could not be searched and were quarantined."])
        )
    section.add_blocks(
        Paragraph(
            [
                "The detectors use patterns, check digits and numbering plans. They do not find "
                "names, addresses or other data without a fixed format, so the counts are lower "
                "bounds."
            ]
        )
    )
    if "evaluate_detectors" in corpus.stage_artifacts:
        section.add_blocks(*build_detector_accuracy_table(corpus, "evaluate_detectors"))
    return section


def build_personal_data_row(corpus: CorpusFigures, data_type: str) -> list[InlineElement]:
    """Build the table row of one type: spans found, documents, treatment and number treated."""
    span_source, conditions = (FIND_PERSONAL_DATA, "spans"), {"type": data_type}
    treatment, ledger_actions, unit = POLICY_OUTCOMES[get_personal_data_policy(corpus, data_type)]
    treated_count: InlineElement = "all"
    if ledger_actions:
        ledger_conditions = {"action": ledger_actions, "reason": data_type}
        treated_count = corpus.book.add_computed_figure(
            f"personal-{data_type}-treated",
            f"{data_type}: {unit} {treatment}",
            unit,
            (REDACT_SPANS, "ledger"),
            ledger_conditions,
            aggregate="count",
        )
    return [
        data_type,
        corpus.book.add_computed_figure(
            f"personal-{data_type}-spans",
            f"{data_type}: number of spans found",
            "spans",
            span_source,
            conditions,
            aggregate="count",
        ),
        corpus.book.add_computed_figure(
            f"personal-{data_type}-documents",
            f"number of documents with {data_type}",
            "documents",
            span_source,
            conditions,
            aggregate="distinct",
            value_column="doc_id",
        ),
        treatment,
        treated_count,
    ]


def build_detector_accuracy_table(corpus: CorpusFigures, stage_label: str) -> list[Block]:
    """Build the table of recall and precision of the detectors on invented sentences."""
    source = (stage_label, "detector_accuracy")
    rows: list[list[InlineElement]] = []
    for detection_row in (
        corpus.stage_artifacts[stage_label]["detector_accuracy"].read().to_pylist()
    ):
        data_type, country = detection_row["type"], detection_row["country"]
        conditions = {"type": data_type, "country": country}
        label = data_type
        if data_type == "PHONE":
            label = f"PHONE, national ({country})" if country else "PHONE, international"
        figure_id = (
            f"detection-{data_type}-{country}"
            if label != data_type and country
            else (f"detection-{data_type}")
        )
        shares = [
            corpus.book.add_computed_figure(
                f"{figure_id}-{metric}",
                f"{label}: {metric}",
                "share",
                source,
                conditions,
                aggregate="last",
                value_column=metric,
                low=detection_row[f"{metric}_low"],
                high=detection_row[f"{metric}_high"],
                confidence_level=0.95,
                n=sample_size,
                missing_reason="nothing was found",
                method="Wilson interval with invented sentences as units",
            )
            for metric, sample_size in (
                ("recall", detection_row["planted_with_name"]),
                ("precision", _count_claimed_spans(detection_row)),
            )
        ]
        nameless_recall = corpus.book.add_computed_figure(
            f"{figure_id}-alone",
            f"{label}: share of numbers found when their type is not named nearby",
            "share",
            source,
            conditions,
            aggregate="ratio",
            value_column="detected_without_name/planted_without_name",
            n=detection_row["planted_without_name"],
        )
        recall, precision = shares
        rows.append(
            [
                label,
                recall,
                recall.interval_or_dash,
                nameless_recall,
                precision,
                precision.interval_or_dash,
            ]
        )
    columns = ["type", "recall", "95 % interval", "without its name", "precision", "95 % interval"]
    note = (
        "Accuracy was measured on test cases, not on this corpus. The test cases are invented "
        "numbers in various formats and scripts, in sentences with or without the name of the "
        "number type (such as “account number”) next to the number. Many numbers can be "
        "recognised only by the name of their type. National telephone numbers are written in the "
        "format of their country; those next to the name of their type are also written without "
        "separators. Precision is computed as if look-alikes were as frequent as genuine numbers. "
        "A look-alike is, for example, a number with wrong check digits. The number of "
        "look-alikes in the corpus is not known."
    )
    blocks: list[Block] = [
        DataTable("Detection accuracy on test cases", columns, rows, frozenset(range(1, 6)), note)
    ]
    if list_personal_data_rates(corpus):
        blocks.append(
            Paragraph(
                [
                    "For the share of planted personal data found in the documents of this "
                    "corpus, see ",
                    Link(RECOVERY_TITLE, "recovery.html"),
                    ".",
                ]
            )
        )
    return blocks


def _count_claimed_spans(detection_row: dict[str, Any]) -> int:
    span_count: int = (
        detection_row["detected_with_name"]
        + detection_row["detected_without_name"]
        + detection_row["false_positives"]
    )
    return span_count
