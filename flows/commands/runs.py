"""The runs of a store: what each executed, how it ended, whether its findings break its policy."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from flows.commands.shared import InStore, Json, show
from flows.runs import WORLD, Run, all_runs, default_store
from tasks.contract import HallmarkError

Flow = Literal["pipeline", "audit", "finetune", "prove", "study", "world"]
Status = Literal["completed", "failed", "running", "interrupted"]

Row = dict[str, Any]

#: What a row of the list begins with, as it stands in run.json.
KEPT = ("run", "flow", "config_name", "checkpoint", "started", "ended", "error")


def runs(
    *,
    flow: Flow | None = None,
    config: str | None = None,
    status: Status | None = None,
    broken: Annotated[bool, Parameter(negative="")] = False,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """List the runs of a store, the newest last: what each is of, how it ended, what its policy
    says.

    Parameters
    ----------
    flow
        Only runs of this flow. The worlds of studies are listed where asked for so.
    config
        Only runs of the config of this name.
    status
        Only runs that stand so.
    broken
        Only runs whose findings break their policy.
    """
    show(list_runs(store, flow, config, status, broken), json_, render)


def list_runs(
    store: str | None = None,
    flow: Flow | None = None,
    config: str | None = None,
    status: Status | None = None,
    broken: bool = False,
) -> list[Row]:
    """A JSON value, a row a run, oldest first: KEPT of run.json and ``status``; ``stages``, and how
    many of these were ``made`` by the run; ``broken``, the rules of its policy that are, None where
    the verdicts cannot be read; ``left_out``, of training: documents, or others as a control."""
    found = all_runs(default_store(store, create=False), worlds=flow == WORLD)
    rows = [
        _row(run)
        for run in found
        if flow in (None, run.flow)
        and config in (None, run.record["config_name"])
        and status in (None, run.status)
    ]
    return [row for row in rows if row["broken"] or not broken]


def _row(run: Run) -> Row:
    broken: list[str] | None
    try:
        broken = list(dict.fromkeys(row["rule"] for row in run.broken()))
    except HallmarkError:  # its artifact was removed or is damaged: ``status`` says so
        broken = None
    stages = run.record["stages"]
    made = sum(not entry["cached"] for entry in stages)
    kept = {name: run.record[name] for name in KEPT}
    return kept | {"status": run.status, "stages": len(stages), "made": made, "broken": broken,
                   "left_out": _left_out(run)}  # fmt: skip


def _left_out(run: Run) -> str:
    """Which arm of a mitigation or a proof a training is."""
    chosen = (run.record.get("config") or {}).get("leave_out") or {}
    named = chosen.get("documents") is not None or chosen.get("toxicity") is not None
    if run.flow != "pipeline" or not named:
        return ""
    return "control" if chosen.get("control") else "documents"


def render(rows: list[Row]) -> str:
    """The list as text for a terminal."""
    if not rows:
        return "no such run"
    head = ("run", "of", "config", "began", "took", "stages made", "ended")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _cells(row: Row) -> tuple[str, ...]:
    about = f"{row['flow']} of {row['checkpoint']}" if row["checkpoint"] else row["flow"]
    about += {"": "", "control": ", control", "documents": ", documents left out"}[row["left_out"]]
    ended = row["status"]
    if row["broken"]:
        ended += f", policy broken: {', '.join(row['broken'])}"
    began, took = _times(row)
    made = f"{row['made']} of {row['stages']}"
    return row["run"], about, row["config_name"], began, took, made, ended


def _times(row: Row) -> tuple[str, str]:
    """When it began, and how long it took; empty where a record does not say."""
    try:
        began = datetime.fromisoformat(row["started"] or "")
    except ValueError:
        return "", ""
    said = f"{began:%Y-%m-%d %H:%M}"
    try:
        took = datetime.fromisoformat(row["ended"] or "") - began
    except (ValueError, TypeError):  # TypeError: one of the two has no zone
        return said, ""
    return said, f"{took.total_seconds():,.0f} s"
