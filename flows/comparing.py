"""Findings of several checkpoints side by side, what was asked of all of them compared in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.origin import resolve
from flows.runs import Run, all_runs, open_run
from flows.site import home
from reports.trajectory import Training, page_of
from tasks.audits.about import AUDITS
from tasks.audits.judging.comparison import Compared, compared, label, unlike
from tasks.contract import Artifact, HallmarkError, Store, UsageError

Row = dict[str, Any]

#: Stands behind a run for all checkpoints of its training.
ALL = "@all"


@dataclass(frozen=True)
class Audited:
    """A checkpoint, the run that audited it, and ``earlier`` ones, the newest first."""

    name: str
    run: Run
    earlier: Sequence[Run] = ()

    def made(self, audit: str) -> Run | None:
        """The newest run that made this audit."""
        runs = (self.run, *self.earlier)
        return next((run for run in runs if label(audit, "audit") in run.stages), None)

    def part(self, audit: str, stage: str) -> Artifact | None:
        """Of that run."""
        run = self.made(audit)
        return run[label(audit, stage)] if run and label(audit, stage) in run.stages else None


def audited(store: Store, names: Sequence[str]) -> list[Audited]:
    """The checkpoints that are named, each with the newest run that audited it. UsageError where
    one was never audited, or there is nothing to compare it with."""
    found: list[Audited] = []
    if not names:
        raise UsageError("nothing to compare: name two checkpoints, or RUN@all")
    for name in names:
        if name.endswith(ALL):
            each = [by(store, checkpoint) for checkpoint in checkpoints(store, name)]
            found += [one for one in each if one is not None]
            if not any(each):
                raise UsageError(f"{name}: no checkpoint of that run was audited")
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


def checkpoints(store: Store, name: str) -> list[str]:
    """The checkpoints of a training, RUN@all, as RUN@STEP. UsageError where there is none."""
    training = open_run(name.removesuffix(ALL), store, stage="pretrain")
    if "pretrain" not in training.stages:
        raise UsageError(f"{name}: run {training.id} has trained no model")
    steps = training["pretrain"]["checkpoints"].read(["step"])["step"].to_pylist()
    return [f"{training.id}@{step}" for step in steps]


def by(store: Store, name: str) -> Audited | None:
    """The runs that audited a checkpoint; where an audit's run is named, that alone."""
    runs = all_runs(store)
    called = [run for run in runs if run.id.startswith(name)]
    if len(called) == 1 and called[0].flow == "audit":
        return Audited(str(called[0].record["checkpoint"]), called[0])
    subject = resolve(store, name)  # also refuses what is no name, or that of several
    found = audits_of(runs).get(subject.checkpoint.name)
    return Audited(subject.name, found[0], found[1:]) if found else None


def audits_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Of each checkpoint the runs that audited it, the newest first; those whose card is gone count
    as none."""
    found: dict[str, list[Run]] = {}
    for run in reversed(runs):
        with suppress(HallmarkError):
            if "model_card" in run.stages:
                checkpoint = run["model_card"].manifest["lineage"]["checkpoint"]
                found.setdefault(checkpoint, []).append(run)
    return found


def trajectory(store: Store, name: str) -> Path | None:
    """The page of the site about the checkpoints of a training, RUN@all; None where there is none
    yet, and for any other name."""
    if not name.endswith(ALL):
        return None
    training = open_run(name.removesuffix(ALL), store, stage="pretrain")
    made = training.stages["pretrain"]["artifact"]
    first = next(run for run in all_runs(store)
                 if run.stages.get("pretrain", {}).get("artifact") == made)  # fmt: skip
    page = home(store) / page_of(first.id)
    return page if page.exists() else None


def trainings(runs: Sequence[Run]) -> list[Training]:
    """The trainings with several audited checkpoints, of all runs of a store, the oldest first."""
    audits = audits_of(runs)
    by_training: dict[str, list[Run]] = {}
    for run in runs:
        if "pretrain" in run.stages:
            by_training.setdefault(run.stages["pretrain"]["artifact"], []).append(run)
    made = []
    for those in by_training.values():
        with suppress(HallmarkError):  # what it trained is gone
            rows = those[0]["pretrain"]["checkpoints"].read(["step", "artifact"]).to_pylist()
            found = {r["step"]: tuple(run.id for run in audits[r["artifact"]])
                     for r in rows if r["artifact"] in audits}  # fmt: skip
            if len(found) > 1:
                leading = {run.id for run in those}.union(*found.values())
                made.append(Training(those[0].id, frozenset(leading), found))
    return made


def compare(subjects: Sequence[Audited]) -> Row:
    """The findings of all, and what each differs in from the first, in pairs of what both were
    asked. HallmarkError where nothing can be compared, with the reasons."""
    rows: list[Row] = []
    refused: dict[str, str] = {}
    pairs = [(0, other) for other in range(1, len(subjects))]
    for audit in AUDITS:
        there = [subject.part(audit, "audit") for subject in subjects]
        if not any(there):
            continue
        why = unlike(audit, subjects)
        if why:
            refused[audit] = why
        else:
            found = compared([artifact for artifact in there if artifact], pairs)
            rows += [_row(audit, each) for each in found]
            if not found:
                refused[audit] = "they have no finding in common"
    if not rows:
        told = "; ".join(f"{audit}: {why}" for audit, why in refused.items())
        raise HallmarkError(f"nothing can be compared: {told or 'no audit ran on any of them'}")
    return {
        "subjects": [{"name": s.name, "run": s.run.id} for s in subjects],
        "refused": refused,
        "rows": rows,
    }


def _row(audit: str, each: Compared) -> Row:
    names = ("metric", "slice", "unit", "scorer", "worse")
    return {
        "audit": audit,
        **{name: each.found[0][name] for name in names},
        "values": [row["value"] for row in each.found],
        "ends": [(row["low"], row["high"]) for row in each.found],
        "differences": each.changes,
    }
