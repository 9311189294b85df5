"""What the index of the site says of a run: its model, its controls, its key figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reports.model_card import ModelCardConfig
from reports.page.figures import show
from reports.page.masking import Say
from tasks.contract import Artifact, HallmarkError

#: Figures of a model card that the index shows, by the start of their ids.
KEY_FIGURES = {
    "capability-bits-per-byte-model": "bits per byte",
    "bias-preference": "stereotype preferred",
    "extraction-exposure-difference": "exposure difference",
}

UNTITLED = ModelCardConfig().title


def told_of_run(artifacts: Mapping[str, Artifact | None], say: Say) -> dict[str, Any]:
    """What the index says of a run's model and audits; nothing where a manifest was changed."""
    try:
        return {
            "model": _model(artifacts, say),
            "controls": _controls(artifacts),
            "figures": _key_figures(artifacts.get("model_card")),
            "broken": _broken(artifacts, say),
        }
    except (HallmarkError, LookupError, TypeError, AttributeError):
        nothing = {"model": Model(), "controls": Controls(0, 0, ()), "broken": []}
        return nothing | {"figures": _key_figures(None)}


def _broken(artifacts: Mapping[str, Artifact | None], say: Say) -> list[str]:
    """The rules of its policy that its findings break."""
    policy = artifacts.get("policy")
    rows = policy["verdicts"].read(["rule", "verdict"]).to_pylist() if policy is not None else []
    return list(dict.fromkeys(say(row["rule"]) for row in rows if row["verdict"] != "pass"))


@dataclass(frozen=True)
class Model:
    """What the index says of a run's model, as far as it is known."""

    title: str | None = None  # where there is a card
    parameters: int | None = None
    step: int | None = None


def _model(artifacts: Mapping[str, Artifact | None], say: Say) -> Model:
    card = artifacts.get("model_card") or artifacts.get("task_card")
    pretrained = artifacts.get("pretrain")
    if card is not None:
        rows = card["figures"].read(["id", "value"]).to_pylist()
        found = {row["id"]: row["value"] for row in rows}
        sizes = [value for name, value in found.items() if name.startswith("parameters-")]
        title = card.manifest["parts"]["config"].get("title")
        return Model(
            title="untitled" if title in (None, UNTITLED) else say(title),
            parameters=int(sum(sizes)) if sizes else None,
            step=trained_step(card),
        )
    if pretrained is not None:
        return Model(step=pc.max(pretrained["checkpoints"].read(["step"])["step"]).as_py())
    return Model()


def trained_step(card: Artifact) -> int | None:
    """The training step of the checkpoint that a card is about; None for one from elsewhere."""
    stage, _, digest = card.manifest["lineage"]["checkpoint"].partition("/")
    try:
        checkpoint = card.store.find(stage, digest) if card.store and digest else None
        return None if checkpoint is None else checkpoint.manifest["parts"]["key"]["step"]
    except (HallmarkError, KeyError):
        return None


@dataclass(frozen=True)
class Controls:
    """How many controls the audits of a run carry, and the audits of those that failed."""

    carried: int
    failed: int
    audits: tuple[str, ...]


def _controls(artifacts: Mapping[str, Artifact | None]) -> Controls:
    carried, failed = 0, []
    for label, artifact in artifacts.items():
        if label.startswith("audit_") and artifact is not None:
            rows = artifact["findings"].read(["control", "verdict"]).to_pylist()
            verdicts = [row["verdict"] for row in rows if row["control"]]
            carried += len(verdicts)
            failed += [label.removeprefix("audit_") for v in verdicts if v != "pass"]
    return Controls(carried, len(failed), tuple(dict.fromkeys(failed)))


@dataclass(frozen=True)
class KeyFigure:
    """A figure of a model card; ``said`` are its interval, n and scorer, as far as it has them."""

    name: str
    value: str = "–"
    said: tuple[str, ...] = ()
    page: str = ""


def _key_figures(card: Artifact | None) -> list[KeyFigure]:
    table = None if card is None else card["figures"].read()
    return [key_figure(table, start, name) for start, name in KEY_FIGURES.items()]


def key_figure(table: pa.Table | None, start: str, name: str) -> KeyFigure:
    if table is None:
        return KeyFigure(name)
    # "bias-preference" alone, but "extraction-exposure-difference-copies-64-0".
    match = table.filter(pc.equal(table["id"], start))
    if not len(match):
        match = table.filter(pc.starts_with(table["id"], start + "-copies"))
    row = next(iter(match.slice(0, 1).to_pylist()), None)
    if row is None or row["value"] is None:
        return KeyFigure(name)
    unit, said = row["unit"], []
    if row["low"] is not None and row["high"] is not None:
        level = "interval" if row["level"] is None else f"{100 * row['level']:g} %:"
        said.append(f"{level} {show(row['low'], unit)} to {show(row['high'], unit)}")
    if row["n"] is not None:
        said.append(f"n = {row['n']:,}")
    if row["scorer"]:
        said.append(f"scorer {row['scorer']}")
    return KeyFigure(name, show(row["value"], unit), tuple(said), f"model_card/{row['page']}")
