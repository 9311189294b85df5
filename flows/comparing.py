"""Findings of several checkpoints side by side, what was asked of all of them compared in pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc

from flows.origin import resolve
from flows.runs import Run, all_runs, open_run
from tasks.audits.about import AUDITS
from tasks.audits.exchange import SETTINGS
from tasks.audits.findings import evidence
from tasks.contract import Artifact, HallmarkError, Store, UsageError
from tasks.measures.corrections import holm
from tasks.measures.estimates import Estimate, estimate

Row = dict[str, Any]

#: Stands behind a run for all checkpoints of its training.
ALL = "@all"


@dataclass(frozen=True)
class Audited:
    """A checkpoint, and the run that audited it."""

    name: str
    run: Run

    def part(self, audit: str, stage: str) -> Artifact | None:
        label = f"audit_{audit}" if stage == "audit" else f"{audit}_{stage}"
        return self.run[label] if label in self.run.stages else None


def audited(store: Store, names: Sequence[str]) -> list[Audited]:
    """The checkpoints that are named, each with the newest run that audited it. UsageError where
    one was never audited, or there is nothing to compare it with."""
    found: list[Audited] = []
    if not names:
        raise UsageError("nothing to compare: name two checkpoints, or RUN@all")
    for name in names:
        if name.endswith(ALL):
            training = open_run(name.removesuffix(ALL), store, stage="pretrain")
            if "pretrain" not in training.stages:
                raise UsageError(f"{name}: run {training.id} has trained no model")
            steps = training["pretrain"]["checkpoints"].read(["step"])["step"].to_pylist()
            each = [by(store, f"{training.id}@{step}") for step in steps]
            found += [one for one in each if one is not None]
            if not any(each):
                raise UsageError(f"{name}: no checkpoint of run {training.id} was audited")
        else:
            one = by(store, name)
            if one is None:
                raise UsageError(f"{name} was not audited in this store yet; run: hallmark audit "
                                 f"{name}")  # fmt: skip
            found.append(one)
    if len(found) < 2:
        raise UsageError(
            f"{' '.join(names)}: one audited checkpoint has nothing to be compared with; audit "
            f"another of the training first: hallmark audit RUN@STEP"
        )
    return found


def by(store: Store, name: str) -> Audited | None:
    """The newest run that audited a checkpoint; where an audit's run is named, that."""
    runs = all_runs(store)
    called = [run for run in runs if run.id.startswith(name)]
    if len(called) == 1 and called[0].flow == "audit":
        return Audited(str(called[0].record["checkpoint"]), called[0])
    subject = resolve(store, name)  # also refuses what is no name, or that of several
    for run in reversed(runs):
        card = run.stages.get("model_card")
        if card and run["model_card"].manifest["lineage"]["checkpoint"] == subject.checkpoint.name:
            return Audited(subject.name, run)
    return None


def compare(subjects: Sequence[Audited]) -> Row:
    """The findings of all, and what each differs in from the first, in pairs of what both were
    asked. HallmarkError where nothing can be compared, with the reasons."""
    rows: list[Row] = []
    refused: dict[str, str] = {}
    for audit in AUDITS:
        there = [subject.part(audit, "audit") for subject in subjects]
        if not any(there):
            continue
        why = unlike(audit, subjects)
        if why:
            refused[audit] = why
        else:
            rows += compared(audit, [artifact for artifact in there if artifact])
    if not rows:
        told = "; ".join(f"{audit}: {why}" for audit, why in refused.items())
        raise HallmarkError(f"nothing can be compared: {told or 'no audit ran on any of them'}")
    return {
        "subjects": [{"name": s.name, "run": s.run.id} for s in subjects],
        "refused": refused,
        "rows": rows,
    }


def unlike(audit: str, subjects: Sequence[Audited]) -> str:
    """Why an audit of these cannot be compared; empty where it can."""
    for first, second in pairwise(subjects):
        pairs = {
            stage: (first.part(audit, stage), second.part(audit, stage))
            for stage in ("audit", "ask", "score")
        }
        one, other = pairs["audit"]
        if one is None or other is None:
            return f"{(second if one else first).name} has no such audit"
        if changed := settings_apart(one, other):
            return f"its settings differ: {', '.join(changed)}"
        one, other = pairs["ask"]
        if one and other and one["items"].digest != other["items"].digest:
            return "other items were asked about"
        if one and other and drawn(one) != drawn(other):
            return "texts were drawn otherwise, or with another seed"
        one, other = pairs["score"]
        if one and other:
            names = [a["scorer"].read()["scorer"].to_pylist() for a in (one, other)]
            if names[0] != names[1]:
                return f"scored by {names[0][0]} and by {names[1][0]}"
    return ""


def settings_apart(one: Artifact, other: Artifact) -> list[str]:
    """Settings that differ. Where files are is none: what was in them is known by the items."""
    left, right = (artifact.manifest["parts"]["config"] for artifact in (one, other))
    return [
        name
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
        and not any(isinstance(side.get(name), str | list) for side in (left, right))
    ]


def drawn(asked: Artifact) -> set[tuple[Any, ...]]:
    rows = asked["requests"].read(list(SETTINGS)).group_by(list(SETTINGS)).aggregate([])
    return {tuple(row[name] for name in SETTINGS) for row in rows.to_pylist()}


def compared(audit: str, artifacts: Sequence[Artifact]) -> Iterator[Row]:
    """One row a finding that all have, with the differences to the first, whose p are corrected for
    all that the audit compares."""
    tables = [
        {(r["metric"], r["slice"]): r for r in a["findings"].read().to_pylist() if not r["control"]}
        for a in artifacts
    ]
    units = [Units(artifact) for artifact in artifacts]
    rows: list[Row] = []
    for key, first in tables[0].items():
        others = [table.get(key) for table in tables[1:]]
        if any(other is None for other in others):
            continue
        mine = units[0].of(first)
        differences = [
            None if mine is None or other is None else paired(mine, unit.of(other))
            for unit, other in zip(units[1:], others, strict=True)
        ]
        rows.append(
            {"audit": audit, "metric": key[0], "slice": key[1], "unit": first["unit"],
             "scorer": first["scorer"], "worse": first["worse"],
             "values": [first["value"], *(other["value"] for other in others if other)],
             "ends": [(r["low"], r["high"]) for r in (first, *others) if r],
             "differences": differences}
        )  # fmt: skip
    tested = [d for row in rows for d in row["differences"] if d and d["p"] is not None]
    for found, p in zip(tested, holm([d["p"] for d in tested]), strict=True):
        found["p_corrected"] = p
    yield from rows


class Units:
    """What the findings of an audit are means of."""

    def __init__(self, artifact: Artifact) -> None:
        self.values = artifact["values"].read() if "values" in artifact.tables else None

    def of(self, finding: Row) -> dict[Any, tuple[str, float]] | None:
        """Cluster and value by unit; None where the finding is no mean of units."""
        if self.values is None:
            return None
        if "slice" in self.values.column_names:
            named = {name: finding[name] for name in ("metric", "slice")}
            rows = evidence(self.values, named)
        else:
            where = json.loads(finding["where"])
            if finding["table"] != "values" or where.get("measure") != finding["metric"]:
                return None
            rows = evidence(self.values, where)
        if not len(rows):
            return None
        columns = (rows[name].to_pylist() for name in ("item", "cluster"))
        values = pc.fill_null(rows["value"], float("nan")).to_pylist()
        return {
            item: (cluster, value) for item, cluster, value in zip(*columns, values, strict=True)
        }


def paired(
    first: dict[Any, tuple[str, float]], second: dict[Any, tuple[str, float]] | None
) -> Row | None:
    """What the second has more than the first, over the units of both."""
    both = [item for item in first if second and item in second]
    if not both or second is None:
        return None
    found: Estimate = estimate(
        [second[item][1] - first[item][1] for item in both],
        [first[item][0] for item in both],
        null=0.0,
        unit="pairs",
    )
    made = {
        "value": found.value, "low": found.low, "high": found.high, "p": found.p,
        "smallest_effect": found.smallest,
    }  # fmt: skip
    # What rounding leaves of equal values is no difference.
    known = {
        name: None if np.isnan(value) else float(value) if abs(value) > 1e-12 else 0.0
        for name, value in made.items()
    }
    return known | {"p_corrected": None, "n": found.n, "clusters": found.clusters,
                    "missing": found.missing, "method": found.method}  # fmt: skip
