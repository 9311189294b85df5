"""Collect what experiment trackers (MLflow, Weights & Biases) receive about a run.

They receive the settings and figures of trainings, the key figures of the model card, the duration
and rows of each stage, and the verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hallmark.flows.run_outcome import read_run_verdict
from hallmark.reports.exports.exported_card import load_exported_card
from hallmark.tasks.contract import Event

if TYPE_CHECKING:
    from hallmark.flows.runs import Run

#: The sections of a config whose settings are sent; others may contain text.
TRACKED_SECTIONS = ("pack", "pretrain")

MAX_NAME_CHARACTERS = 200


def to_metric_name(name: str) -> str:
    """Replace the characters that a tracker refuses in names."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", name)[:MAX_NAME_CHARACTERS]


def collect_tags(run: Run) -> dict[str, str]:
    """Return what identifies a run."""
    return {
        "hallmark.run": run.id,
        "hallmark.flow": run.flow,
        "hallmark.config": run.record["config_name"],
        "hallmark.store": run.store.compute_secret_id()[:8],
    }


def collect_training_settings(run: Run) -> dict[str, Any]:
    """Return the settings of the training by their full names."""
    config: Mapping[str, Any] = run.record["config"]
    return {
        name: value
        for section in TRACKED_SECTIONS
        if isinstance(config.get(section), Mapping)
        for name, value in _iter_settings(config[section], section)
    }


def _iter_settings(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _iter_settings(value, f"{prefix}.{name}")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}.{name}", value


def collect_step_figures(event: Event) -> dict[str, float]:
    """Return the figures of an event of kind ``figures`` that are numbers, as "STAGE/NAME"."""
    return {
        to_metric_name(f"{event.label}/{name}"): value
        for name, value in event.metrics.items()
        if math.isfinite(value)
    }


def collect_stage_figures(event: Event) -> dict[str, float]:
    """Return the duration and the rows of a stage that is done."""
    assert event.artifact is not None
    rows = sum(table.row_count for table in event.artifact.tables.values())
    figures = {"seconds": event.seconds, "rows": float(rows)}
    return {to_metric_name(f"{event.label}/{name}"): value for name, value in figures.items()}


def collect_key_figures(run: Run) -> dict[str, float]:
    """Return the main results of the audits, as the model card shows them; none without a card."""
    if "model_card" not in run.stages:
        return {}
    card = load_exported_card(run.store, run["model_card"])
    return {
        to_metric_name(f"card/{figure.id}"): figure.value
        for figure in card.list_cited_figures("metrics_measures")
        if figure.value is not None and math.isfinite(figure.value)
    }


def find_verdict(run: Run) -> str | None:
    """Return the verdict on a run that completed, None for another one."""
    return read_run_verdict(run) if run.record["status"] == "completed" else None
