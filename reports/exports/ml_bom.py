"""Write the bill of materials of the model: an ML-BOM of CycloneDX 1.6.

The model is the subject, with its model card; its corpus is a component of the type data.
"""

from __future__ import annotations

import uuid
from importlib.metadata import version
from typing import Any

from hallmark.reports.exports.exported_card import ExportedCard
from hallmark.reports.page.figures import Figure

SPEC_VERSION = "1.6"

#: Name space of the serial numbers, which follow from the evidence hash of the card.
SERIAL_NUMBER_SPACE = uuid.UUID("6f3f0a5e-0c53-5c1a-9d2b-3a3f1f0f7a51")

#: Largest number of characters of a version in the schema.
MAX_VERSION_LENGTH = 1024

MODEL_REFERENCE, CORPUS_REFERENCE = "model", "corpus"


def build_ml_bom(card: ExportedCard, datasheet: ExportedCard | None) -> dict[str, Any]:
    """Return the bill of materials as JSON values; unanswered fields are omitted.

    Args:
        card: The model card.
        datasheet: The datasheet of the training corpus, if it is known.
    """
    model = {
        "type": "machine-learning-model",
        "bom-ref": MODEL_REFERENCE,
        "name": card.title,
        "version": _shorten(card.get_statement("details_version"), MAX_VERSION_LENGTH),
        "description": card.get_answer("details_type", "details_training"),
        "publisher": card.get_statement("details_developer"),
        "licenses": _build_licences(card.get_statement("details_licence")),
        "modelCard": _build_model_card(card, has_corpus=datasheet is not None),
        "properties": _build_properties(card),
    }
    bom = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": uuid.uuid5(SERIAL_NUMBER_SPACE, card.evidence_hash).urn,
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": "hallmark", "version": version("hallmark")}
                ]
            },
            "component": _drop_empty(model),
        },
    }
    if datasheet is None:
        return bom
    return bom | {
        "components": [_build_corpus(datasheet)],
        "dependencies": [
            {"ref": MODEL_REFERENCE, "dependsOn": [CORPUS_REFERENCE]},
            {"ref": CORPUS_REFERENCE},
        ],
    }


def _build_model_card(card: ExportedCard, *, has_corpus: bool) -> dict[str, Any]:
    figures = card.list_cited_figures(
        "metrics_measures", "analyses_unitary", "analyses_intersectional"
    )
    considerations = {
        "users": card.list_answers("use_primary_users"),
        "useCases": card.list_answers("use_primary_uses", "use_out_of_scope"),
        "technicalLimitations": card.list_answers("caveats_recommendations", "factors_evaluation"),
        "ethicalConsiderations": [
            _drop_empty({"name": risk, "mitigationStrategy": card.get_answer("ethics_mitigations")})
            for risk in card.list_answers("ethics_risks", "ethics_data", "ethics_human_life")
        ],
    }
    return _drop_empty(
        {
            "modelParameters": {
                "task": "language modelling",
                **({"datasets": [{"ref": CORPUS_REFERENCE}]} if has_corpus else {}),
            },
            "quantitativeAnalysis": _drop_empty(
                {"performanceMetrics": [_build_metric(figure) for figure in figures]}
            ),
            "considerations": _drop_empty(considerations),
        }
    )


def _build_metric(figure: Figure) -> dict[str, Any]:
    """Return a figure as a metric; the schema wants numbers as texts."""
    metric: dict[str, Any] = {"type": figure.label, "value": f"{figure.value!r}"}
    if figure.low is not None and figure.high is not None:
        metric["confidenceInterval"] = {
            "lowerBound": f"{figure.low!r}",
            "upperBound": f"{figure.high!r}",
        }
    return metric


def _build_corpus(datasheet: ExportedCard) -> dict[str, Any]:
    owner = datasheet.get_statement("motivation_creators")
    data = {
        "type": "dataset",
        "name": datasheet.title,
        "description": datasheet.get_answer("composition_instances", "composition_count"),
        "sensitiveData": datasheet.list_answers(
            "composition_individuals", "composition_sensitive", "composition_offensive"
        ),
        "governance": {"owners": [{"organization": {"name": owner}}]} if owner else {},
    }
    return _drop_empty(
        {
            "type": "data",
            "bom-ref": CORPUS_REFERENCE,
            "name": datasheet.title,
            "description": datasheet.get_answer("motivation_purpose"),
            "licenses": _build_licences(datasheet.get_statement("distribution_licence")),
            "data": [_drop_empty(data)],
            "properties": _build_properties(datasheet),
        }
    )


def _build_licences(licence: str) -> list[dict[str, Any]]:
    return [{"license": {"name": licence}}] if licence else []


def _build_properties(card: ExportedCard) -> list[dict[str, str]]:
    properties = {
        "hallmark:artifact": card.artifact_name,
        "hallmark:evidence-hash": card.evidence_hash,
        "hallmark:checkpoint-content-digest": card.checkpoint,
    }
    return [{"name": name, "value": value} for name, value in properties.items() if value]


def _shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def _drop_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
