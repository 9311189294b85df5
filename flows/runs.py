"""Runs, living or past: what a flow executed, and which artifact served each stage.

``run.json`` is the lock file of a run: config, stages, fingerprints and content digests.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contract import Artifact, HallmarkError, Store, UsageError, external

if TYPE_CHECKING:
    import pyarrow as pa

    from flows.config import Config

Record = dict[str, Any]

log = logging.getLogger("hallmark")

#: Keys of every run.json.
RECORD = {"run", "flow", "config_name", "config_file", "overrides", "config", "checkpoint",
          "status", "started", "ended", "host", "pid", "platform", "stages", "error"}  # fmt: skip


def default_store(config_store: str | None = None, create: bool = True) -> Store:
    """The store of a config, else of HALLMARK_STORE, else ./runs."""
    return Store(store_uri(config_store), create=create)


def store_uri(config_store: str | None = None) -> str:
    return config_store or os.environ.get("HALLMARK_STORE") or "runs"


class Run:
    """One execution of a flow, living or past."""

    def __init__(self, store: Store, record: Record) -> None:
        self.store, self.record = store, record

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.status})"

    @property
    def id(self) -> str:
        return self.record["run"]

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
        findings of all audits); where their columns differ, ``stage`` must say which.
        """
        import pyarrow as pa

        if stage is not None:
            return self[stage][name].read()
        found = {label: a[name] for label, a in self.artifacts.items() if name in a.tables}
        if not found:
            raise HallmarkError(f"no stage of run {self.id} left a table {name!r}")
        tables = {label: table.read() for label, table in found.items()}
        if len(tables) == 1:
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
        return pa.concat_tables(stacked)

    def checkpoints(self, pretrained: Artifact | None = None) -> list[Artifact]:
        """The checkpoints of the run's training, oldest first."""
        pretrained = pretrained or self["pretrain"]
        names = pretrained["checkpoints"].read(["artifact"])["artifact"].to_pylist()
        return [find_artifact(self.store, name) for name in names]

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

    def subject(self, text: str) -> Subject:
        return resolve(self.store, text)


def find_artifact(store: Store, name: str) -> Artifact:
    """The artifact of a name such as "pack/0123456789abcdef"."""
    stage, _, digest = name.partition("#")[0].partition("/")
    found = store.find(stage, digest) if digest else None
    if found is None:
        raise HallmarkError(
            f"the store {store.uri} holds no artifact {name}; run again to rebuild it"
        )
    return found


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
            raise UsageError(f"no run in the store {store.uri} has the stage {stage} yet")
        return there[-1]
    matches = ids[-1:] if name == "latest" else [i for i in ids if i.startswith(name)]
    if name in ids:
        matches = [name]
    if len(matches) != 1:
        has = "it holds none; start one with: hallmark run" if not ids else f"newest: {ids[-1]}"
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
    except ValueError:
        record = None
    if not _is_record(record) or record["run"] != name:
        raise HallmarkError(
            f"run {name} is damaged: its run.json in {store.uri}/runs/{name} is missing or not "
            f"whole; remove that folder (no artifact is lost) and run again"
        )
    return record


def _is_record(record: Any) -> bool:
    """Whether it has all keys of a run.json, of the types that readers rely on."""
    if not isinstance(record, dict) or not record.keys() >= RECORD:
        return False
    texts = [record[key] for key in ("run", "flow", "config_name", "status", "host")]
    maybe = [record[key] for key in ("config_file", "checkpoint", "started", "ended", "error")]
    lists = [record["stages"], record["overrides"]]
    return (
        all(isinstance(text, str) for text in texts)
        and all(text is None or isinstance(text, str) for text in maybe)
        and all(isinstance(items, list) for items in lists)
        and isinstance(record["config"], dict)
        and isinstance(record["pid"], int)
        and all(map(_is_entry, record["stages"]))
    )


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(k), str) for k in ("label", "stage", "artifact", "content"))
        and re.fullmatch(r"\w+/[0-9a-f]+", entry["artifact"]) is not None
        and isinstance(entry.get("cached"), bool)
        and isinstance(entry.get("seconds"), int | float)
    )


def all_runs(store: Store) -> list[Run]:
    """All runs that can be read, oldest first."""
    runs = []
    for name in run_ids(store):
        try:
            runs.append(Run(store, _read(store, name)))
        except HallmarkError as error:
            log.warning("left out: %s", error)
    return runs


# What an audit examines ----------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A checkpoint, and what the store knows of its making."""

    checkpoint: Artifact
    pretrained: Artifact | None = None
    corpus: dict[str, Artifact] | None = None
    run: Run | None = None

    @property
    def name(self) -> str:
        """RUN@STEP where the store knows them, else the name of the artifact or the folder."""
        trained = self.run.stages.get("pretrain", {}) if self.run else {}
        if self.run and self.pretrained and trained.get("artifact") == self.pretrained.name:
            for row in self.pretrained["checkpoints"].read(["step", "artifact"]).to_pylist():
                if row["artifact"] == self.checkpoint.name:
                    return f"{self.run.id}@{row['step']}"
        return self.checkpoint.name


def resolve(store: Store, text: str) -> Subject:
    """The checkpoint that a command names.

    RUN or RUN@STEP (RUN may be "latest"), the name of an artifact ("checkpoint/0123…"), or a
    folder: of a checkpoint in the store, or of any Hugging Face model.
    """
    if not text.strip():
        raise UsageError(
            "the name of the checkpoint is empty; give RUN@STEP, checkpoint/… or a folder"
        )
    path = Path(text).expanduser()
    if text.startswith("checkpoint/") and not path.exists():
        return _ours(store, find_artifact(store, text))
    if path.is_dir():
        for folder in (path.resolve(), path.resolve().parent):
            if (folder / "manifest.json").exists() and folder.parent.name == "checkpoint":
                home = Store(folder.parents[2])
                return _ours(home, find_artifact(home, f"checkpoint/{folder.name}"))
        if not any(path.iterdir()):
            raise UsageError(
                f"{text}: the folder is empty; a checkpoint holds config.json, model.safetensors "
                f"and its tokenizer"
            )
        return Subject(external(path.resolve(), "checkpoint"))
    if path.exists():
        raise UsageError(f"{text}: is a file; give the folder of a checkpoint")
    name, _, step = text.partition("@")
    if "/" in name or (name != "latest" and not any(i.startswith(name) for i in run_ids(store))):
        raise UsageError(
            f"there is no checkpoint {text!r}; give a folder, RUN, RUN@STEP (latest@0) or the name "
            f"of an artifact (checkpoint/…); a model of the Hugging Face hub must be a folder "
            f"first: hf download NAME --local-dir FOLDER"
        )
    runs = [run for run in all_runs(store) if "pretrain" in run.stages]
    if name != "latest":
        runs = [open_run(name, store)]
    if not runs or "pretrain" not in runs[-1].stages:
        raise UsageError(f"{text}: that run has trained no model yet; see: hallmark status")
    run = runs[-1]
    table = run["pretrain"]["checkpoints"].read(["step", "artifact"]).to_pylist()
    wanted = [row for row in table if not step or str(row["step"]) == step]
    if not wanted:
        steps = ", ".join(str(row["step"]) for row in table)
        raise UsageError(f"run {run.id} has no checkpoint of step {step}; it has: {steps}")
    return _ours(store, find_artifact(store, wanted[-1]["artifact"]))


def _ours(store: Store, checkpoint: Artifact) -> Subject:
    """Walk back from a checkpoint to its training, its corpus and the run that made them."""
    pretrained = store.find("pretrain", checkpoint.manifest["parts"]["parent"])
    packed = find_artifact(store, checkpoint.manifest["lineage"]["packed"])
    planted = find_artifact(store, packed.manifest["lineage"]["documents"])
    for run in reversed(all_runs(store)):
        if run.stages.get("plant", {}).get("artifact") == planted.name:
            corpus = {k: a for k, a in run.artifacts.items() if not _after_corpus(k)}
            return Subject(checkpoint, pretrained, corpus, run)
    return Subject(checkpoint, pretrained, {"plant": planted})


def _after_corpus(label: str) -> bool:
    later = ("train_tokenizer", "pack", "pretrain", "attention_maps", "model_card")
    return label in later or label.startswith("audit_")
