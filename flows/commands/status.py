"""Where a run stands: stages, artifacts, rows, accounts; what is stale and why."""

from __future__ import annotations

import os
import shlex
from contextlib import chdir
from pathlib import Path
from typing import Any

from flows.commands.shared import InStore, Json, show
from flows.config import laid_over, load
from flows.runs import Run, open_run, same_store, store_uri
from flows.trees import overridden, read
from reports.purged import named_in
from tasks.contract import CHANGING, STAGES, TERMS, Artifact, HallmarkError, StageConfig

Report = dict[str, Any]


def status(run: str = "latest", *, store: InStore = None, json_: Json = False) -> None:
    """Show a run's stages, artifacts, rows and accounts, and what is stale and why."""
    show(status_of(open_run(run, store)), json_, render)


def status_of(run: Run) -> Report:
    """A JSON value; ``stale`` lists the reasons why a stage would run again today."""
    here, read_from = os.getcwd(), run.read_from
    with chdir(read_from):
        folder = run.record.get("folder")
        return _report(run) | {"folder": folder, "here": here, "read_from": read_from}


def _report(run: Run) -> Report:
    from flows import pipeline, study_config, studying  # noqa: F401  (registers every stage)
    from flows.examining import settings_by_label

    config, problem = _config_today(run)
    settings = settings_by_label(config) if config else {}
    stages: list[Report] = []
    stale: dict[str, str] = {}  # artifact -> label of a stage that would run again
    for label, entry in run.stages.items():
        try:
            artifact = run[label]
            holdings = _holdings(artifact)
            reasons = _stale(artifact, settings.get(label), run, stale)
        except HallmarkError as error:  # removed or damaged: the rest is still worth a look
            holdings, reasons = _holdings(None), [str(error)]
        if reasons:
            stale[entry["artifact"]] = label
        stages.append({**entry, **holdings, "stale": reasons})
    if run.flow in STUDY and problem is None:
        again = study_config.command_of(run.record["config"])
    else:
        again = None
    kept = ("run", "flow", "config_name", "config_file", "overrides", "checkpoint", "until",
            "only", "findings", "seeds", "started", "ended", "error")  # fmt: skip
    report = {key: run.record.get(key) for key in kept}
    report |= {"status": run.status, "store": run.store.uri, "config_problem": problem}
    named = getattr(config, "store", None) if report["config_file"] else None
    named = named or overridden("store", run.record["overrides"])
    place = str(run.store.root or run.store.uri)
    report["store_must_be_named"] = not same_store(store_uri(named), place)
    return report | {"study": again, "stages": stages}


def _config_today(run: Run) -> tuple[StageConfig | None, str | None]:
    """The config that the same command would use now; the very same where it names no file."""
    if run.flow in STUDY:
        from flows.study_config import settled

        try:
            return settled(run.record["config"]), None
        except HallmarkError as error:
            return None, str(error)
    file = run.record["config_file"]
    if file and ".." in Path(file).parts:  # no run of ours names one so
        return None, f"run.json names {file!r}, which leads out of the folder and is not read"
    try:
        if not file:
            return load(run.record["config"]), None
        tree = laid_over(read(file), run.record["config"])
        return load(tree, run.record["overrides"], file), None
    except HallmarkError as error:
        return None, str(error)


def _holdings(artifact: Artifact | None) -> Report:
    if artifact is None:
        lost: Report = {"determinism": None, "tables": {}, "files": [], "accounts": []}
        lost["purged"] = []
        return lost | {"accounts_total": {}, "balanced": False}
    books = artifact["accounts"].read().to_pylist() if "accounts" in artifact.tables else []
    totals: dict[str, dict[str, int]] = {}
    for book in books:
        total = totals.setdefault(book["unit"], dict.fromkeys(TERMS, 0))
        for term in TERMS:
            total[term] += book[term]
    return {
        "determinism": artifact.manifest["determinism"],
        "tables": {name: table.rows for name, table in artifact.tables.items()},
        "files": sorted(artifact.manifest["files"]),
        "purged": sorted(artifact.purged),
        "accounts": books,
        "accounts_total": totals,
        "balanced": all(
            t["in"] + t["added"] == sum(t[term] for term in TERMS[2:])
            for t in (*books, *totals.values())
        ),
    }


def _stale(
    artifact: Artifact, config: StageConfig | None, run: Run, stale: dict[str, str]
) -> list[str]:
    stage = STAGES.get(artifact.stage)
    if stage is None:
        return [f"there is no stage {artifact.stage!r} any more"]
    code, libraries, settings, external = (artifact.manifest["parts"].get(k, {}) for k in CHANGING)
    reasons = [f"code: {name}" for name in _changed(code, stage.code_digests())]
    versions = stage.library_versions()
    for name in _changed(libraries, versions):
        reasons.append(f"library: {name} {libraries.get(name)} → {versions.get(name)}")
    if config is not None:
        now = config.model_dump(mode="json")
        reasons += [f"config: {key}" for key in _changed(settings, now)]
        try:
            outside = stage.outside(config, run.store)
            reasons += [f"outside: {name}" for name in _changed(external, outside)]
        except (HallmarkError, OSError) as error:
            reasons.append(f"outside: {error}")
    for source in named_in(artifact.manifest["lineage"]):
        if source.partition("#")[0] in stale:
            reasons.append(f"may change with {stale[source.partition('#')[0]]}")
    return reasons


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))


#: Flows that are about a checkpoint; a study, and each of its worlds.
ABOUT, STUDY = ("audit", "finetune", "prove"), ("study", "world")


def render(report: Report) -> str:
    """The report as text for a terminal."""
    of = f"{report['checkpoint']}, " if report["flow"] in ABOUT else ""
    lines = [
        f"run {report['run']}  {report['flow']} of {of}config {report['config_name']}: "
        f"{report['status']}" + (f" ({report['error']})" if report["error"] else ""),
        f"store {report['store']}",
    ]
    if report["read_from"] != report["here"]:
        lines.append(f"relative paths start from {report['folder']}, where the run was started")
    elif report["folder"] not in (None, report["here"]):
        lines.append(
            f"relative paths start from here, {report['here']}: {report['folder']}, where the run "
            f"was started, is no folder any more"
        )
    lines.append("")
    width = max((len(stage["label"]) for stage in report["stages"]), default=5)
    for stage in report["stages"]:
        when = "cached" if stage["cached"] else f"{stage['seconds']:.1f} s"
        lines.append(f"{stage['label']:<{width}}  {when:>8}  {stage['artifact']}")
        held = [f"{name} {rows:,}" for name, rows in stage["tables"].items()] + stage["files"]
        lines.append(f"{'':<{width}}            {', '.join(_short(held))}")
        for unit, terms in stage["accounts_total"].items():
            shown = ", ".join(f"{t.replace('_', ' ')} {n:,}" for t, n in terms.items() if n)
            verdict = "balanced" if stage["balanced"] else "NOT BALANCED"
            raw = "raw " if stage["stage"] == "ingest" and unit == "bytes" else ""
            lines.append(f"{'':<{width}}            {raw}{unit}: {shown or 'nothing'} ({verdict})")
        if gone := stage["purged"]:
            lines.append(f"{'':<{width}}            purged: {', '.join(_short(gone, 2))}")
        lines += [f"{'':<{width}}            stale: {reason}" for reason in stage["stale"]]
    return "\n".join([*lines, "", _ending(report)])


def _ending(report: Report) -> str:
    """What to do next."""
    stale = any(stage["stale"] for stage in report["stages"])
    if report["config_problem"]:
        return (
            f"its config can no longer be read ({report['config_problem']}), so changed settings "
            f"are not seen"
        )
    if report["status"] == "running":
        return "still running"
    if report["status"] != "completed":
        return f"it goes on with: {_command(report)}"
    return f"stale stages run again with: {_command(report)}" if stale else "nothing is stale"


def _command(report: Report) -> str:
    """The command that made the run."""
    words = ["hallmark", "run", report["config_file"] or report["config_name"]]
    if report["flow"] in ("audit", "finetune"):
        words = ["hallmark", report["flow"], report["checkpoint"]]
        words += ["--only", ",".join(report["only"])] if report["only"] else []
        words += ["--config", report["config_file"]] if report["config_file"] else []
    if report["flow"] == "prove":
        base = (report["checkpoint"] or "latest").partition("@")[0]
        words = ["hallmark", "prove", base, *(report["findings"] or ())]
        words += ["--seeds", f"{report['seeds']}"] if report["seeds"] is not None else []
    if report.get("study"):
        words = report["study"]
    for override in report["overrides"]:
        words += ["--set", override]
    elsewhere, store = report["read_from"] != report["here"], report["store"]
    if elsewhere and "://" not in store:
        store = os.path.abspath(store)
    words += ["--store", store] if report["store_must_be_named"] else []
    words += ["--until", report["until"]] if report["until"] else []
    started = report["flow"] == "pipeline" and report["checkpoint"]
    words += ["--start", report["checkpoint"]] if started else []
    return f"cd {shlex.quote(report['read_from'])} && " * elsewhere + shlex.join(words)


def _short(names: list[str], most: int = 8) -> list[str]:
    return names if len(names) <= most else [*names[:most], f"and {len(names) - most} more"]
