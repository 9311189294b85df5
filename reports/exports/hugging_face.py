"""Write the model card and the dataset card of the Hugging Face Hub: README.md with metadata.

The metadata in YAML has evaluation results, licence, languages and size; the text has every
question of the form with its answer.
"""

from __future__ import annotations

import bisect
import re
from itertools import groupby

from huggingface_hub import DatasetCardData, EvalResult, ModelCardData

from hallmark.reports.exports.exported_card import ExportedCard, format_answer
from hallmark.reports.forms.questions import FORM_TITLES, FormName
from hallmark.reports.page.answers import content_to_text
from hallmark.reports.page.document import DecisionSheet, InlineContent
from hallmark.reports.page.rendering import NOT_STATED, escape_markdown

#: Licences that the Hub knows by these ids; it shows any other one by its name.
KNOWN_LICENCES = frozenset(
    {
        "agpl-3.0",
        "apache-2.0",
        "bsd-2-clause",
        "bsd-3-clause",
        "cc-by-4.0",
        "cc-by-nc-4.0",
        "cc-by-nc-sa-4.0",
        "cc-by-sa-4.0",
        "cc0-1.0",
        "gpl-2.0",
        "gpl-3.0",
        "lgpl-3.0",
        "mit",
        "mpl-2.0",
        "odc-by",
        "openrail",
        "unlicense",
    }
)

#: The size categories of the Hub, and the smallest number of documents of all but the first.
SIZE_BOUNDS = [10**exponent for exponent in range(3, 13)]
SIZE_CATEGORIES = (
    "n<1K",
    "1K<n<10K",
    "10K<n<100K",
    "100K<n<1M",
    "1M<n<10M",
    "10M<n<100M",
    "100M<n<1B",
    "1B<n<10B",
    "10B<n<100B",
    "100B<n<1T",
    "n>1T",
)

#: Smallest share of the text of a language that the metadata name. Short texts are often mistaken
#: for other languages.
MIN_LANGUAGE_SHARE = 0.01

#: Codes of ISO 639 for no language and an undetermined one.
NO_LANGUAGES = ("zxx", "und", "mul", "mis")


def describe_licence(licence: str) -> dict[str, str]:
    """Return the metadata of a licence: its id on the Hub, or "other" and its name."""
    if not licence:
        return {}
    licence_id = "-".join(licence.lower().split())
    if licence_id in KNOWN_LICENCES:
        return {"license": licence_id}
    return {"license": "other", "license_name": licence}


def choose_size_category(document_count: float) -> str:
    """Return the size category of the Hub for a number of documents."""
    return SIZE_CATEGORIES[bisect.bisect_right(SIZE_BOUNDS, document_count)]


def build_evaluation_results(card: ExportedCard) -> list[EvalResult]:
    """Return the main results of the audits; controls and secondary figures are omitted."""
    return [
        EvalResult(
            task_type="other",
            task_name="Hallmark audit",
            dataset_type=audit,
            dataset_name=audit,
            metric_type=figure.id,
            metric_value=figure.value,
            metric_name=figure.label,
            metric_args={
                "unit": figure.unit,
                "low": figure.low,
                "high": figure.high,
                "confidence_level": figure.confidence_level,
                "n": figure.n,
            },
        )
        for figure in card.list_cited_figures("metrics_measures")
        for audit in [str(card.evidence[figure.evidence_id]["stage"])]
    ]


def build_model_metadata(card: ExportedCard, datasheet: ExportedCard | None) -> ModelCardData:
    """Return the metadata of the model card."""
    title = " ".join(card.title.split())
    return ModelCardData(
        model_name=title,
        eval_results=build_evaluation_results(card) or None,
        language=(datasheet and list_languages(datasheet)) or None,
        tags=["hallmark"],
        **describe_licence(card.get_statement("details_licence")),
    )


def build_dataset_metadata(datasheet: ExportedCard) -> DatasetCardData:
    """Return the metadata of the dataset card."""
    documents = next(iter(datasheet.list_cited_figures("composition_count")), None)
    return DatasetCardData(
        pretty_name=" ".join(datasheet.title.split()),
        language=list_languages(datasheet) or None,
        size_categories=[choose_size_category((documents and documents.value) or 0)],
        tags=["hallmark"],
        **describe_licence(datasheet.get_statement("distribution_licence")),
    )


def list_languages(datasheet: ExportedCard) -> list[str]:
    """Return the codes of the languages that make up a noticeable share of the text."""
    languages = set()
    for figure in datasheet.figures.values():
        evidence = datasheet.evidence[figure.evidence_id]
        is_share_of_language = (
            evidence["evidence_table"] == "composition"
            and evidence["conditions"].get("dimension") == "language"
            and figure.value_column == "byte_share"
        )
        if is_share_of_language and (figure.value or 0) >= MIN_LANGUAGE_SHARE:
            languages.add(str(evidence["conditions"]["value"]))
    return sorted(
        language
        for language in languages
        if re.fullmatch(r"[a-z]{2,3}", language) and language not in NO_LANGUAGES
    )


def build_model_readme(card: ExportedCard, datasheet: ExportedCard | None) -> str:
    """Return README.md of a model."""
    return _join_readme(build_model_metadata(card, datasheet).to_yaml(), "model_card", card)


def build_dataset_readme(datasheet: ExportedCard) -> str:
    """Return README.md of a dataset."""
    return _join_readme(build_dataset_metadata(datasheet).to_yaml(), "datasheet", datasheet)


def _join_readme(metadata: str, form: FormName, card: ExportedCard) -> str:
    parts = [f"# {escape_markdown(card.title)}"]
    if card.decision_sheet is not None:
        parts += format_decision_sheet(card.decision_sheet)
    parts.append(
        f"The questions are from {escape_markdown(FORM_TITLES[form])}. Evidence for measured "
        f"answers is in figures.json. The card's evidence hash is {card.evidence_hash}."
    )
    for section, rows in groupby(card.answers.values(), key=lambda row: row.section):
        parts.append(f"## {escape_markdown(section)}")
        for row in rows:
            parts.append(f"**{escape_markdown(row.question)}**")
            parts.append(_format_paragraphs(f"Answer: {format_answer(row) or 'none'}"))
    return f"---\n{metadata}\n---\n\n" + "\n\n".join(parts) + "\n"


def _format_paragraphs(text: str) -> str:
    """Return a text as Markdown that keeps its line breaks and paragraphs."""
    paragraphs = [
        "\\\n".join(_escape_line(line) for line in paragraph.splitlines() if line.strip())
        for paragraph in re.split(r"\n\s*\n", text.strip())
    ]
    return "\n\n".join(paragraphs)


def _escape_line(line: str) -> str:
    """Escape a line so that Markdown reads it as text: no list, heading or rule begins with it."""
    text = escape_markdown(line.strip())
    return re.sub(r"^(\d+(?=[.)])|(?=[-+=]))", r"\1\\", text)


def format_decision_sheet(sheet: DecisionSheet) -> list[str]:
    """Return status, identity and risks as Markdown without links to pages."""
    status = f"**Status: {escape_markdown(sheet.status)}.** {_to_markdown(sheet.explanation)}"
    identity = "\n".join(
        f"- {escape_markdown(term)}: {_to_markdown(content) or NOT_STATED}"
        for term, content in sheet.identity
    )
    risks = "\n".join(
        f"- {escape_markdown(risk.title)} ({risk.state}): {_to_markdown(risk.content)}"
        for risk in sheet.risks
    )
    return [part for part in (status, identity, risks) if part]


def _to_markdown(content: InlineContent) -> str:
    return escape_markdown(content_to_text(content))
