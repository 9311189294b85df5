"""Runs, living or past: what a flow executed, and which artifact served each stage.

``run.json`` is the lock file of a run: config, stages, fingerprints and content digests.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contract import Artifact, HallmarkError, Store, UsageError, current_session

if TYPE_CHECKING:
    import pyarrow as pa

    from flows.config import Config

Record = dict[str, Any]

log = logging.getLogger("hallmark")

#: Keys of every run.json.
RECORD = {"run", "flow", "config_name", "config_file", "overrides", "config", "checkpoint",
          "status", "started", "ended", "host", "pid", "platform", "stages", "error"}  # fmt: skip

#: The flow that a world of a study is a run of.
WORLD = "world"

#: Names that a file gives, and that become parts of paths: none leads out of its folder.
NAME = re.compile(r"\w+")
ARTIFACT = re.compile(r"\w+/[0-9a-f]+")


def store_uri(named: str | None = None) -> str:
    """Where the store is: as named by --store or a config, else by HALLMARK_STORE, else ./runs.

    ``named`` is a folder, a URI, or a config's file, which may name one.
    """
    if named and named.endswith(".toml"):
        from flows.trees import read

        file, named = named, read(named).get("store")
        if not isinstance(named, str | None):
            raise UsageError(f"config {file}: store: is no text (given: {named!r})")
    return named or os.environ.get("HALLMARK_STORE") or "runs"


def same_store(uri: str, other: str) -> bool:
    def place(uri: str) -> str:
        path = uri.removeprefix("file://")
        return path if "://" in path else str(Path(path).absolute())

    return place(uri) == place(other)


def default_store(named: str | None = None, create: bool = True) -> Store:
    return Store(store_uri(named), create=create)


class Run:
    """One execution of a flow, living or past."""

    def __init__(self, store: Store, record: Record) -> None:
        self.store, self.record = store, record
        #: Index page of the site that was built behind a living run.
        self.site: Path | None = None

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.status})"

    def save(self) -> None:
        """Write run.json."""
        text = json.dumps(self.record, indent=1)
        self.store.put(f"runs/{self.id}/run.json", text.encode())

    def tell(self, **more: Any) -> None:
        """Write at once what else it is of: a kill in its first stage leaves its command whole."""
        self.record |= more
        self.save()

    @property
    def id(self) -> str:
        return self.record["run"]

    @property
    def flow(self) -> str:
        return str(self.record["flow"])

    @property
    def status(self) -> str:
        """completed, failed, running, or interrupted: said to run by a process that is gone."""
        status = self.record["status"]
        if status == "running" and self.record["host"] == socket.gethostname():
            try:
                os.kill(self.record["pid"], 0)
            except ProcessLookupError:
                return "interrupted"
            except PermissionError:
                pass
        return status

    @property
    def config(self) -> Config:
        from flows.config import load

        return load(self.record["config"])

    @property
    def read_from(self) -> str:
        """Where its relative paths start: the ``folder`` it was started in, or, where that is gone
        or not known, the one that this process is in."""
        folder = self.record.get("folder")
        return folder if folder and os.path.isdir(folder) else os.getcwd()

    @property
    def earlier(self) -> str | None:
        """The run to whose corpus this one adds."""
        found = self.record["config"].get("earlier")
        return found if isinstance(found, str) else None

    @property
    def stages(self) -> dict[str, Record]:
        """The entry of each stage by its label, in the order in which they ended."""
        return {entry["label"]: entry for entry in self.record["stages"]}

    def __getitem__(self, label: str) -> Artifact:
        """The artifact that served a stage of this run."""
        if label not in self.stages:
            has = ", ".join(self.stages) or "none yet"
            raise HallmarkError(f"run {self.id} has no stage {label!r}; its stages: {has}")
        return find_artifact(self.store, self.stages[label]["artifact"])

    @property
    def artifacts(self) -> dict[str, Artifact]:
        return {label: self[label] for label in self.stages}

    def table(self, name: str, stage: str | None = None) -> pa.Table:
        """A table of this run, in memory; ``.to_pandas()`` makes a data frame of it.

        Tables of that name in several stages are stacked behind a column ``stage`` (the
        findings of all audits, which also say of which run and checkpoint they are, so that those
        of several runs can be stacked); where their columns differ, ``stage`` must say which.
        """
        import pyarrow as pa

        if stage is not None:
            return self[stage][name].read()
        found = {label: a[name] for label, a in self.artifacts.items() if name in a.tables}
        if not found:
            raise HallmarkError(f"no stage of run {self.id} left a table {name!r}")
        tables = {label: table.read() for label, table in found.items()}
        if len(tables) == 1 and name != "findings":
            return next(iter(tables.values()))
        schemas = [table.schema.remove_metadata() for table in tables.values()]
        if any(schema != schemas[0] for schema in schemas):
            raise HallmarkError(
                f"the tables {name!r} of run {self.id} differ between stages; say which: "
                + ", ".join(f"table({name!r}, stage={label!r})" for label in found)
            )
        stacked = [
            table.add_column(0, "stage", pa.array([label] * len(table), pa.string()))
            for label, table in tables.items()
        ]
        whole = pa.concat_tables(stacked)
        for column, value in (("checkpoint", self.audited), ("run", self.id)):
            if name == "findings":
                told = pa.array([value] * len(whole), pa.string())
                whole = whole.add_column(0, column, told)
        return whole

    @property
    def audited(self) -> str:
        """The checkpoint that its findings are about: RUN@STEP, or where another model is."""
        if "pretrain" not in self.stages:
            return str(self.record["checkpoint"] or "")
        steps = self["pretrain"]["checkpoints"].read(["step"])["step"].to_pylist()
        return f"{self.id}@{max(steps)}"

    @property
    def packed(self) -> Artifact:
        """The sequences that its training read."""
        return self["blank" if "blank" in self.stages else "pack"]

    def checkpoints(self, pretrained: Artifact | None = None) -> list[Artifact]:
        """The checkpoints of the run's training, oldest first."""
        pretrained = pretrained or self["pretrain"]
        names = pretrained["checkpoints"].read(["artifact"])["artifact"].to_pylist()
        return [find_artifact(self.store, name) for name in names]

    def last_checkpoint(self, pretrained: Artifact) -> Artifact:
        """The last checkpoint of a training that this session ran or found in the store.

        Checks that the files of all its checkpoints are there: each is an artifact of its own,
        which the training only names.
        """
        checkpoints = self.checkpoints(pretrained)
        current_session().check_files(checkpoints)
        return checkpoints[-1]

    def controls(self) -> tuple[int, list[str]]:
        """How many controls its audits carry, and the label of the audit for each that failed."""
        found = 0
        failed = []
        for label in self.stages:
            if label.startswith("audit_"):
                rows = self[label]["findings"].read(["control", "verdict"]).to_pylist()
                found += sum(bool(row["control"]) for row in rows)
                failed += [label for r in rows if r["control"] and r["verdict"] != "pass"]
        return found, failed

    def broken(self) -> list[dict[str, Any]]:
        """The verdicts of its policy that are not passed."""
        if "policy" not in self.stages:
            return []
        rows = self["policy"]["verdicts"].read().to_pylist()
        return [row for row in rows if row["verdict"] != "pass"]

    def failures(self) -> dict[str, str]:
        """What of its examination could not be made, and why."""
        if "failures" not in self.stages:
            return {}
        rows = self["failures"]["failures"].read().to_pylist()
        return {row["audit"]: row["why"] for row in rows}


def find_artifact(store: Store, name: str) -> Artifact:
    """The artifact of a name such as "pack/0123456789abcdef"."""
    name = name.partition("#")[0]
    if not ARTIFACT.fullmatch(name):
        raise HallmarkError(f"{name!r} is no name of an artifact; one is stage/0123456789abcdef")
    found = store.find(*name.split("/"))
    if found is None:
        raise HallmarkError(
            f"the store {store.uri} holds no artifact {name}; run again to rebuild it"
        )
    return found


def check_whole(cannot: str, artifacts: Iterable[Artifact]) -> None:
    """HallmarkError, which begins with what ``cannot`` be done, where it takes a purged text."""
    for artifact in artifacts:
        for doc_id, when in sorted(artifact.purged.items()):
            more = f" and {len(artifact.purged) - 1} more" if len(artifact.purged) > 1 else ""
            raise HallmarkError(
                f"{cannot}: it needs the document {doc_id}{more}, purged on {when[:10]} from "
                f"{artifact.name}; run the config again: that makes a corpus without it"
            )


# Past runs -----------------------------------------------------------------------------------


def run_ids(store: Store) -> list[str]:
    """Ids of all runs, oldest first."""
    return store.children("runs")


def open_run(
    name: str = "latest", store: Store | str | None = None, *, stage: str | None = None
) -> Run:
    """A past run by its id, the start of its id, or "latest"; with ``stage`` that is the newest
    run that has got that far.

    >>> run = open_run("latest")                    # doctest: +SKIP
    >>> run.table("findings").to_pandas()           # doctest: +SKIP
    """
    store = store if isinstance(store, Store) else default_store(store, create=False)
    ids = run_ids(store)
    if stage is not None and name == "latest":
        there = [run for run in all_runs(store) if stage in run.stages]
        if not there:
            raise UsageError(
                f"no run in the store {store.uri} has the stage {stage} yet; make one first: "
                f"hallmark run CONFIG"
            )
        return there[-1]
    matches = [i for i in ids if i.startswith(name)]
    if name in ids:
        matches = [name]
    if name == "latest" or len(matches) != 1:
        newest = [*islice((i for i in reversed(ids) if not _of_study(store, i)), 1)]
        matches = newest if name == "latest" else matches
    if len(matches) != 1:
        has = f"newest: {newest[0]}" if newest else "it holds none; start one with: hallmark run"
        what = "no run" if not matches else f"{len(matches)} runs"
        raise UsageError(f"the store {store.uri} has {what} called {name!r}; {has}")
    return Run(store, _read(store, matches[0]))


def open_artifact(name: str, store: Store | str | None = None) -> Artifact:
    """An artifact by its name, as cards, run.json and ``hallmark status`` give it.

    >>> open_artifact("scrub/0123456789abcdef")["documents"].to_pandas()    # doctest: +SKIP
    """
    store = store if isinstance(store, Store) else default_store(store, create=False)
    return find_artifact(store, name)


def _read(store: Store, name: str) -> Record:
    try:
        record = json.loads(store.get(f"runs/{name}/run.json") or b"")
    except (ValueError, RecursionError):
        record = None
    if not _is_record(record) or record["run"] != name:
        raise HallmarkError(
            f"run {name} is damaged: its run.json in {store.uri}/runs/{name} is missing or not "
            f"whole; remove that folder (no artifact is lost) and run again"
        )
    return record


def _of_study(store: Store, name: str) -> bool:
    """Whether a run is a world of a study, of which there are many: who wants one names it."""
    try:
        return bool(_read(store, name)["flow"] == WORLD)
    except HallmarkError:  # whoever opens it is told
        return False


def _is_record(record: Any) -> bool:
    """Whether it has all keys of a run.json, of the types that readers rely on."""
    if not isinstance(record, dict) or not record.keys() >= RECORD:
        return False
    texts = [record[key] for key in ("run", "flow", "config_name", "status", "host")]
    maybe = [record[key] for key in ("config_file", "checkpoint", "started", "ended", "error")]
    maybe += [record.get("until"), record.get("folder")]
    lists = [record["overrides"], record.get("only") or [], record.get("findings") or []]
    arms = record.get("arms", {})
    return (
        all(isinstance(text, str) for text in texts)
        and all(text is None or isinstance(text, str) for text in maybe)
        and (record["checkpoint"] is not None or record["flow"] not in ("audit", "finetune"))
        and all(map(_is_texts, lists))
        and isinstance(arms, dict)
        and _is_texts([*arms.values()])
        and isinstance(record.get("seeds"), int | None)
        and isinstance(record["config"], dict)
        and isinstance(record.get("revealed", []), list)
        and isinstance(record["pid"], int)
        and 0 < record["pid"] < 2**31
        and isinstance(record["stages"], list)
        and all(map(_is_entry, record["stages"]))
    )


def _is_texts(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, str) for item in items)


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(k), str) for k in ("label", "stage", "artifact", "content"))
        and all(NAME.fullmatch(entry[k]) for k in ("label", "stage"))
        and ARTIFACT.fullmatch(entry["artifact"]) is not None
        and isinstance(entry.get("cached"), bool)
        and isinstance(entry.get("seconds"), int | float)
    )


def all_runs(store: Store, worlds: bool = False) -> list[Run]:
    """All runs that can be read, oldest first; without ``worlds`` but for those of studies."""
    runs = []
    for name in run_ids(store):
        try:
            runs.append(Run(store, _read(store, name)))
        except HallmarkError as error:
            log.warning("left out: %s", error)
    return [run for run in runs if worlds or run.flow != WORLD]
