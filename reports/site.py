"""The site over the runs of a store: static pages with relative links that open from disk.

<out>/index.html                        all runs, the newest first
<out>/runs/<run id>/index.html          one run: its stages, their tables, their accounts
<out>/runs/<run id>/datasheet/          the card of its corpus, copied from its artifact
<out>/runs/<run id>/model_card/         the card of its model
<out>/runs/<run id>/task_card/          the card of a model that it fine-tuned
<out>/runs/<run id>/study_card/         the card of a study of the audits
<out>/runs/<run id>/proof_card/         what became of findings without their documents
<out>/runs/<run id>/trajectory/         the checkpoints that it trained, where several were audited
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from reports.index import KEY_FIGURES, told_of_run
from reports.page.masking import Masker, Say
from reports.page.rendering import LIBRARIES, TEMPLATES, environment
from reports.purged import Told, mark, notice, purged_from, told_of
from reports.purged import find as find_named
from reports.sections.course import Point
from reports.tables import write_tables
from reports.trajectory import FOLDER, PAGE, Training
from reports.trajectory import write as write_trajectory
from tasks.contract import (
    TERMS,
    Artifact,
    HallmarkError,
    Store,
    canonical,
    code_digests,
    library_versions,
    sha256,
)

CARDS = {"datasheet": "Datasheet", "model_card": "Model card", "task_card": "Task card",
         "study_card": "Study", "proof_card": "Proof"}  # fmt: skip

Record = Mapping[str, Any]
#: Whether a folder of the site is taken from the one before; called with what it is made of.
Take = Callable[[Path, str], bool]

#: In such a folder the digest of that.
MADE_OF = ".made_of"


#: Tables that the site reads.
SHOWN = ("accounts", "figures", "findings", "checkpoints")


def build_site(
    store: Store,
    run_records: Sequence[Record],
    out: Path,
    tables: Sequence[Record] = (),
    trainings: Sequence[Training] = (),
    before: Path | None = None,
) -> Path:
    """Write the site of the given runs and return its index page; with ``tables``, the rows of
    ``hallmark tables``, a page of them too. ``trainings``: those with several audited checkpoints.
    ``before``: a site of the store as it was; what it has of cards and trajectories that are made
    of the same is taken from it.

    A page or a card that is there already is replaced; runs whose artifacts are gone keep
    their page, which says so. A run that made nothing stands under the one it repeats.
    """
    runs: list[dict[str, Any]] = []
    mask = cache(lambda regions: Masker(regions=regions).whole)
    # Runs share most of their artifacts: each is looked up and read once.
    find = cache(lambda label, name: _find(store, label, name))
    copies: dict[str, Path] = {}
    stage = cache(lambda label, name: _stage(find(label, name)))
    purged = cache(lambda label, name: _purged(store, find(label, name), traced))
    left = {
        record["run"]: {e["label"]: find(e["label"], e["artifact"]) for e in record["stages"]}
        for record in run_records
    }
    traced = {a.name: told_of(a) for each in left.values() for a in each.values() if a is not None}
    gone = {
        record["run"]: {e["label"]: purged(e["label"], e["artifact"]) for e in record["stages"]}
        for record in run_records
    }
    take = partial(_take, before, out)
    trajectories = _trajectories(trainings, left, gone, out, take)
    for record in sorted(run_records, key=lambda r: (r["started"], r["run"]), reverse=True):
        folder = out / "runs" / _name(record["run"])
        folder.mkdir(parents=True, exist_ok=True)
        entries = [(entry["label"], entry["artifact"]) for entry in record["stages"]]
        artifacts = left[record["run"]]
        cards = _copy_cards(artifacts, folder, copies, gone[record["run"]], take)
        cards |= trajectories.get(record["run"], {})
        every = frozenset[str]().union(*gone[record["run"]].values())
        stages = [
            {"entry": entry, **stage(*key)}
            for entry, key in zip(record["stages"], entries, strict=True)
        ]
        say = mask(_regions(record.get("config")))
        # An error may name a file, or quote a value.
        texts = {name: say(record.get(name) or "") for name in ("error", "checkpoint")}
        told = told_of_run(artifacts, say)
        _write(folder / "index.html", "site_run.html", run=record, stages=stages, cards=cards,
               config=_config(record.get("config"), say), purged=notice(every),
               broken=told["broken"], **texts)  # fmt: skip
        made = sum(not entry["cached"] for entry in record["stages"])
        runs.append({"record": record, "cards": cards, "made": made, "purged": len(every)} | told)
    index = out / "index.html"
    if tables:
        write_tables(tables, out)
    _write(index, "site_index.html", runs=_rows(runs), key_figures=list(KEY_FIGURES.values()),
           tables=bool(tables))  # fmt: skip
    return index


def _trajectories(
    trainings: Sequence[Training],
    left: Mapping[str, Mapping[str, Artifact | None]],
    gone: Mapping[str, Mapping[str, frozenset[str]]],
    out: Path,
    take: Take,
) -> dict[str, dict[str, str]]:
    """Write the pages of trainings; returns by run the page that its own leads to, with its title.

    By run and label: what was ``left``, and the documents that are ``gone`` from it.
    """
    found: dict[str, dict[str, str]] = {}
    for training in trainings:
        folder = out / "runs" / _name(training.run)
        points = [
            Point(step, {run: left[run] for run in runs})
            for step, runs in sorted(training.audits.items())
        ]
        history = {label: a for label, a in left[training.run].items() if a is not None}
        cards = [gone[run].get("model_card", ()) for point in points for run in point.runs]
        every = frozenset[str]().union(*cards)
        told = [[p.step, [[run, _states(left[run])] for run in p.runs]] for p in points]
        made_of = _made_of(training.run, told, _states(history), sorted(every))
        if not take(folder / FOLDER, made_of):
            whole = write_trajectory(training.run, points, history, folder)
            if every:
                mark(folder / FOLDER, notice(every))
            if whole:  # what could not be read may be mended, and is the same then
                (folder / FOLDER / MADE_OF).write_text(made_of)
        for run in training.runs:
            home = "" if run == training.run else f"../{quote(training.run)}/"
            found[run] = {f"{home}{FOLDER}/{PAGE}": "Trajectory"}
    return found


def _rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of the index; each has under ``repeats`` the records of those that repeat it."""
    rows: list[dict[str, Any]] = []
    for run in reversed(runs):  # the oldest first
        served = _artifacts(run)
        repeated = None
        if served and not run["made"] and run["record"]["status"] == "completed":
            ended = (row for row in reversed(rows) if row["record"]["status"] == "completed")
            repeated = next((row for row in ended if served <= _artifacts(row)), None)
        if repeated is None:
            rows.append(run | {"repeats": []})
        else:
            repeated["repeats"].append(run["record"])
    return rows[::-1]


def _artifacts(run: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(entry["label"], entry["artifact"]) for entry in run["record"]["stages"]}


def _name(run: str) -> str:
    """A run's id as the name of a folder; ids come from a file and are not trusted."""
    if not run or run != Path(run).name or run in (".", ".."):
        raise HallmarkError(f"run.json names a run {run!r:.80}, which cannot be a folder's name")
    return run


def _find(store: Store, label: str, name: str) -> Artifact | None:
    """The artifact, or None where it is gone or damaged: one such must not hide all other runs."""
    try:
        artifact = find_named(store, name)
        if artifact is not None:
            for file in artifact.manifest["files"] if label in CARDS else []:
                artifact.path(file)
            for table in SHOWN:
                if table in artifact.tables:
                    artifact[table].read()
    except HallmarkError:
        return None
    return artifact


def _purged(store: Store, artifact: Artifact | None, told: dict[str, Told]) -> frozenset[str]:
    """The documents that were purged from an artifact, or from what a card was made of."""
    if artifact is None:
        return frozenset()
    of_card = artifact.stage in CARDS
    return purged_from(store, artifact, told) if of_card else frozenset(artifact.purged)


def _copy_cards(
    artifacts: Mapping[str, Artifact | None],
    folder: Path,
    copies: dict[str, Path],
    purged: Mapping[str, frozenset[str]],
    take: Take,
) -> dict[str, str]:
    """Copy the files of the cards; returns their titles by their pages. They tell which documents
    were ``purged`` from what they were made of.

    ``copies`` are the cards that the site holds already, by their artifacts: runs that share a
    card share its files, hundreds of them, under names of their own.
    """
    found = {}
    for label, title in CARDS.items():
        artifact = artifacts.get(label)
        if artifact is None:
            continue
        target = folder / label
        shutil.rmtree(target, ignore_errors=True)
        made_of = _made_of(_states({label: artifact}), sorted(purged[label]))
        if artifact.name in copies:
            shutil.copytree(copies[artifact.name], target, copy_function=_link)
        elif take(target, made_of):
            copies[artifact.name] = target
        else:
            copies[artifact.name] = target
            for entry in artifact.manifest["files"].values():
                path = target / entry["name"]
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(artifact.path(entry["name"]), path)
            _way_back(target / f"{label}.html")
            if purged[label]:
                mark(target, notice(purged[label]))
            (target / MADE_OF).write_text(made_of)
        found[f"{label}/{label}.html"] = title
    return found


def _take(before: Path | None, out: Path, folder: Path, made_of: str) -> bool:
    """Give the files of a folder of the site ``before`` second names, if it is made of the same."""
    if before is None:
        return False
    old = before / folder.relative_to(out)
    try:
        if (old / MADE_OF).read_text() != made_of:
            return False
        shutil.copytree(old, folder, copy_function=_link)
    except (OSError, UnicodeDecodeError):  # there is none, or it was changed
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def _made_of(*things: Any) -> str:
    """A digest of what decides a folder: what it tells of, and the code and libraries of pages."""
    return sha256(canonical([_code(), library_versions(LIBRARIES), *things]))


@cache
def _code() -> dict[str, str]:
    pages = [f"reports/page/templates/site_{name}.html" for name in ("trajectory", "pairs")]
    return code_digests("reports.site", Path(__file__), (*TEMPLATES, *pages))


def _states(artifacts: Mapping[str, Artifact | None]) -> dict[str, Any]:
    """What artifacts hold; of files also since a document was purged from them."""
    return {
        label: a and [a.name, a.content, a.purged, [e["sha256"] for e in a.entries()]]
        for label, a in artifacts.items()
    }


def _way_back(page: Path) -> None:
    """Lead from a card to its run and to all runs: the card itself knows no site."""
    kind, text = '<p class="kind">', page.read_text(encoding="utf-8")
    way = '<a href="../../../index.html">Runs</a> · <a href="../index.html">Its run</a> · '
    page.write_text(text.replace(kind, kind + way, 1), encoding="utf-8")


def _link(file: str, name: str) -> None:
    """A second name for a file; where the file system has none, a copy."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)


def _stage(artifact: Artifact | None) -> dict[str, Any]:
    tables: list[tuple[str, int]] = []
    accounts: list[dict[str, Any]] = []
    files: list[tuple[str, int]] = []
    if artifact is not None:
        tables = [(name, table.rows) for name, table in artifact.tables.items()]
        files = _files(artifact)
        if "accounts" in artifact.tables:
            accounts = _accounts(artifact["accounts"].read())
    return {
        "found": artifact is not None,
        "tables": tables,
        "files": files,
        "accounts": accounts,
    }


def _files(artifact: Artifact) -> list[tuple[str, int]]:
    """Number of files by folder, single files by their names."""
    counts: dict[str, int] = {}
    for name in artifact.manifest["files"]:
        top = name.split("/")[0] + "/" if "/" in name else name
        counts[top] = counts.get(top, 0) + 1
    return sorted(counts.items())


def _accounts(table: pa.Table) -> list[dict[str, Any]]:
    """The accounts over all sources, one line a unit."""
    sums = table.group_by("unit").aggregate([(term, "sum") for term in TERMS])
    rows = sums.sort_by([("unit", "descending")]).to_pylist()
    return [{"unit": r["unit"], "terms": [r[f"{term}_sum"] for term in TERMS]} for r in rows]


def _write(path: Path, template: str, **values: Any) -> None:
    values |= {"terms": [term.replace("_", " ") for term in TERMS]}
    html = environment().get_template(template).render(**values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def _config(config: Any, say: Say) -> str:
    """A run's config as it may be shown: of what a person states for a card, all."""
    names = sorted(config) if isinstance(config, Mapping) else []
    if not names:
        return say(_pretty(config)) if config else ""
    parts = {name: _pretty({name: config[name]})[2:-2] for name in names}
    shown = [text if name in CARDS else say(text) for name, text in parts.items()]
    return "{\n" + ",\n".join(shown) + "\n}"


def _regions(config: Any) -> frozenset[str]:
    """The countries whose numbers a run's corpus was searched for: its page shows none of them."""
    try:
        found = config["find_personal_data"]["regions"]
        return frozenset([found] if isinstance(found, str) else map(str, found))
    except (LookupError, TypeError):  # of no corpus, or written by somebody else
        return frozenset()


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
