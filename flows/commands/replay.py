"""Run again from run.json into a fresh store, and judge each stage by its declared class."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from flows.commands.shared import InStore, Json, ready, run_of, show
from flows.growing import runs_of
from flows.runs import Record, Run, check_whole, find_artifact, open_run
from tasks.contract import DENIED, Artifact, Store, UsageError

Verdict = dict[str, Any]

#: The flows of ``flows.pipeline`` that make a corpus or a model.
REPLAYED = ("pipeline", "corpus", "pretrain", "finetune")


def replay(
    run: str = "latest", *, store: InStore = None, into: str | None = None, json_: Json = False
) -> None:
    """Run again from run.json into a fresh store and compare every hash.

    Parameters
    ----------
    run
        A run, or "latest": the newest that made a corpus.
    into
        The fresh store; by default a temporary folder, removed afterwards.
    """
    with ready(lambda: open_run(run, store, stage="ingest")):
        verdict = replay_run(open_run(run, store, stage="ingest"), into)
    show(verdict, json_, render)
    if not verdict["green"]:
        raise SystemExit(1)


def replay_run(run: Run, into: str | None = None) -> Verdict:
    """Execute a completed run anew and compare.

    ``exact`` stages must have the same content digest; ``machine`` stages must on the same
    machine and library versions, elsewhere they are compared but not held to it;
    ``statistical`` ones must have findings, or scores, within each other's intervals. A stage that
    was given other inputs than before (a card behind a training on a GPU) is held to nothing: those
    are judged where they were made.
    """
    if run.status != "completed":
        raise UsageError(f"run {run.id} is {run.status}; only a completed run can be replayed")
    _check_flow(run)
    before = run.artifacts  # all of them, or a HallmarkError now and not after the work
    needed = [artifact for each in runs_of(run)[:-1] for artifact in each.artifacts.values()]
    check_whole(f"run {run.id} cannot be replayed", [*needed, *before.values()])
    scratch = None
    if into is None:
        scratch = into = tempfile.mkdtemp(prefix="hallmark-replay-")
    fresh = Store(into)
    if fresh.children("artifacts"):
        raise UsageError(f"the store {into} is not fresh: it holds artifacts; give an empty one")
    place = str(fresh.root or fresh.uri)  # the same from whatever folder
    try:
        share_secret(run.store, fresh)
        fresh.put(DENIED, run.store.get(DENIED) or b'{"documents": {}, "unfinished": []}')
        again = run_of(lambda: _execute(run, place))
        after = again.artifacts
        rows = [_judge(name, made, after.get(name), run, again) for name, made in before.items()]
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return {
        "run": run.id,
        "replay": again.id,
        "store": None if scratch else into,
        "stages": rows,
        "green": all(
            row["verdict"] in ("equal", "within intervals", "other machine", "other inputs")
            for row in rows
        ),
    }


def _check_flow(run: Run) -> None:
    """UsageError for a run that is not replayed."""
    if run.flow == "audit":
        raise UsageError(
            f"run {run.id} audited {run.audited}; replay the run that trained it, or audit it again"
        )
    if run.flow == "prove":
        runs = ", ".join(f"{arm} {name}" for arm, name in run.record["arms"].items())
        raise UsageError(f"run {run.id} compared others; replay these ({runs}), and prove again")
    if run.flow not in REPLAYED:
        raise UsageError(
            f"run {run.id} is of the flow {run.flow!r:.40}, and only those of "
            f"{', '.join(REPLAYED)} are replayed; the command that made it is told by: "
            f"hallmark status {run.id}"
        )


def share_secret(store: Store, fresh: Store) -> None:
    """Ledgers hold hashes keyed by the store's secret: with another key none would be equal."""
    fresh.keep_secret(store.secret)
    if fresh.secret != store.secret:
        raise UsageError(
            f"the store {fresh.uri} is not fresh: it has a secret of its own; give an empty one"
        )


def _execute(run: Run, into: str) -> str:
    from flows import pipeline
    from tasks.corpus.plant import plant

    record: Record = run.record
    config = {**record["config"], "earlier": None}
    flow = getattr(pipeline, record["flow"])
    if record["flow"] == "finetune":
        base = run["finetune"].manifest["lineage"]["checkpoint"]
        if (found := run.store.find(*base.split("/"))) is None:
            raise UsageError(
                f"run {run.id} fine-tuned {base}, which the store {run.store.uri} does not hold; "
                f"fine-tune it again"
            )
        return str(flow(str(found.directory()), config=config, store=into))
    for earlier in runs_of(run)[:-1]:  # what it adds to is made again first
        before = {**earlier.record["config"], "earlier": config["earlier"]}
        with chdir(earlier.read_from):
            made = pipeline.pipeline(config=before, store=into, until=plant.name)
        config["earlier"] = str(made)
    more = {name: record[name] for name in ("until", "only") if record.get(name)}
    if "pretrain" in run.stages and (start := run["pretrain"].manifest["lineage"].get("start")):
        more["start"] = str(find_artifact(run.store, start).directory())
    with chdir(run.read_from):
        return str(flow(config=config, store=into, **more))


def _judge(label: str, before: Artifact, now: Artifact | None, run: Run, again: Run) -> Verdict:
    row = {"label": label, "determinism": before.manifest["determinism"]}
    row |= {"before": before.content, "now": now.content if now else None, "differs": []}
    if now is None:
        return row | {"verdict": "missing"}
    if before.content == now.content:
        return row | {"verdict": "equal"}
    row["differs"] = _differences(before, now)
    if row["determinism"] == "machine" and not _same_machine(run, again, before, now):
        return row | {"verdict": "other machine"}
    if row["determinism"] == "statistical":
        return row | {"verdict": "within intervals" if _agree(before, now) else "differs"}
    if before.manifest["parts"]["inputs"] != now.manifest["parts"]["inputs"]:
        return row | {"verdict": "other inputs"}
    return row | {"verdict": "differs"}


def _differences(before: Artifact, now: Artifact) -> list[str]:
    """Which tables and files differ, and what decided them differently."""
    found = []
    for group in ("tables", "files"):
        a, b = before.manifest[group], now.manifest[group]
        for name in sorted(a.keys() | b.keys()):
            if a.get(name, {}).get("sha256") != b.get(name, {}).get("sha256"):
                found.append(f"{group[:-1]} {name}")
    for part in ("code", "config", "libraries", "external"):
        a, b = before.manifest["parts"].get(part), now.manifest["parts"].get(part)
        if a != b:
            found.append(f"its {part} changed")
    return found


def _same_machine(run: Run, again: Run, before: Artifact, now: Artifact) -> bool:
    same = before.manifest["parts"]["libraries"] == now.manifest["parts"]["libraries"]
    return same and run.record["platform"] == again.record["platform"]


#: The tables of figures with intervals, and the columns that name a figure.
MEASURED = {"findings": ("audit", "metric", "slice"), "scores": ("system", "metric", "slice")}


def _agree(before: Artifact, now: Artifact) -> bool:
    """Whether the intervals of the same figures overlap."""
    if set(before.tables) != set(now.tables):
        return False
    table = next((name for name in MEASURED if name in before.tables), None)
    if table is None:
        return True
    keys = MEASURED[table]
    found = {tuple(r[k] for k in keys): r for r in now[table].read().to_pylist()}
    for row in before[table].read().to_pylist():
        other = found.get(tuple(row[k] for k in keys))
        if other is None or (row["value"] is None) != (other["value"] is None):
            return False
        if None in (row["low"], other["low"]):  # too little spread for an interval
            continue
        if row["high"] < other["low"] or other["high"] < row["low"]:
            return False
    return True


def render(verdict: Verdict) -> str:
    lines = [f"replay of {verdict['run']}"]
    for row in verdict["stages"]:
        more = f"  ({', '.join(row['differs'])})" if row["differs"] else ""
        lines.append(f"{row['label']:<20} {row['determinism']:<12} {row['verdict']}{more}")
    lines.append("green: every stage holds its class" if verdict["green"] else "NOT green")
    if verdict["store"]:
        lines.append(f"store of the replay: {Path(verdict['store'])}")
    return "\n".join(lines)
