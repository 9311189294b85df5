"""List the files that ``hallmark export-cards`` writes."""

from __future__ import annotations

import json
from typing import Any

from hallmark.reports.exports.croissant import build_croissant
from hallmark.reports.exports.exported_card import ExportedCard, build_figures_json
from hallmark.reports.exports.hugging_face import build_dataset_readme, build_model_readme
from hallmark.reports.exports.ml_bom import build_ml_bom


def build_export_files(
    model_card: ExportedCard | None, datasheet: ExportedCard | None
) -> dict[str, str]:
    """Return the texts of all files by their paths.

    Args:
        model_card: The model card, if there is one.
        datasheet: The datasheet, if there is one.
    """
    files: dict[str, str] = {}
    cards: dict[str, ExportedCard] = {}
    if model_card is not None:
        cards["model_card"] = model_card
        files["model/README.md"] = build_model_readme(model_card, datasheet)
        files["model/ml-bom.cdx.json"] = _format_json(build_ml_bom(model_card, datasheet))
    if datasheet is not None:
        cards["datasheet"] = datasheet
        files["dataset/README.md"] = build_dataset_readme(datasheet)
        files["dataset/croissant.json"] = _format_json(build_croissant(datasheet))
    files["figures.json"] = _format_json(build_figures_json(cards))
    return files


def _format_json(value: Any) -> str:
    """Format a value as JSON that can also stand in a script element of HTML, as JSON-LD does."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c") + "\n"
