"""What a name such as RUN@STEP stands for: a checkpoint, and what the store knows of its making."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from flows.growing import Earlier
from flows.requests import check_checkpoint, check_store
from flows.runs import ARTIFACT, Run, all_runs, find_artifact, open_run, run_ids
from tasks.contract import Artifact, Store, UsageError, external

#: The stages that leave checkpoints.
TRAINED = ("pretrain", "finetune")

#: The stages that may be the first behind those of the corpus.
AFTER = ("train_tokenizer", "pack")


@dataclass(frozen=True)
class Subject:
    """A checkpoint, and what the store knows of its making."""

    checkpoint: Artifact
    pretrained: Artifact | None = None
    corpus: dict[str, Artifact] | None = None
    run: Run | None = None
    earlier: Earlier = ()

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

    RUN or RUN@STEP (RUN may be "latest", the newest that pretrained a model), the name of an
    artifact ("checkpoint/0123…"), or a folder: of a checkpoint in the store, or of any Hugging Face
    model.
    """
    subject = resolve_folder(text)
    if subject is not None:
        return subject
    if text.startswith("checkpoint/"):
        named = store.find(*text.split("/")) if ARTIFACT.fullmatch(text) else None
        if named is None:
            raise UsageError(
                f"the store {store.uri} holds no checkpoint {text!r}; name one of its runs, "
                f"RUN@STEP, or another store with --store"
            )
        return _ours(store, named)
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
    trained = [label for label in TRAINED if runs and label in runs[-1].stages]
    if not runs:
        raise UsageError(
            f"{text}: no run of the store {store.uri} has trained a model yet; train one there, or "
            f"name another store with --store"
        )
    if not trained:
        raise UsageError(f"{text}: that run has trained no model yet; see: hallmark status")
    run = runs[-1]
    table = run[trained[0]]["checkpoints"].read(["step", "artifact"]).to_pylist()
    wanted = [row for row in table if not step or str(row["step"]) == step]
    if not wanted:
        steps = ", ".join(str(row["step"]) for row in table)
        raise UsageError(f"run {run.id} has no checkpoint of step {step}; it has: {steps}")
    its = run if trained[0] == "pretrain" else None
    return _ours(store, find_artifact(store, wanted[-1]["artifact"]), its)


class Trainings(NamedTuple):
    """A training and those that it went on from, the newest first: the checkpoint that each left,
    what it left beside, and what it read."""

    checkpoints: dict[str, Artifact]
    pretrained: dict[str, Artifact]
    packed: dict[str, Artifact]

    def planted(self, known: Sequence[Artifact]) -> list[Artifact]:
        """The corpora that they read, but for those that are ``known``."""
        found: dict[str, Artifact] = {}
        for name, pretrained in self.pretrained.items():
            assert pretrained.store is not None
            subject = _ours(pretrained.store, self.checkpoints[name])
            made = [*subject.earlier, subject.corpus or {}]
            found |= {each["plant"].name: each["plant"] for each in made if "plant" in each}
        return [found[name] for name in sorted(found.keys() - {each.name for each in known})]


def trainings(checkpoint: Artifact, pretrained: Artifact | None) -> Trainings | None:
    """How a checkpoint was trained; None where the store does not know all of it."""
    made = Trainings({}, {}, {})
    while pretrained is not None and pretrained.store is not None:
        store, number = pretrained.store, str(len(made.pretrained))
        lineage = pretrained.manifest["lineage"]
        packed = store.find(*lineage["packed"].split("/"))
        if packed is None:
            return None
        made.checkpoints[number], made.pretrained[number] = checkpoint, pretrained
        made.packed[number] = packed
        if lineage["start"] is None:
            return made
        start = store.find(*lineage["start"].split("/"))
        if start is None:
            return None
        checkpoint = start
        pretrained = store.find("pretrain", start.manifest["parts"]["parent"])
    return None


def lasting(store: Store, subject: Subject, text: str) -> str:
    """What names a checkpoint in this store tomorrow, too: its name there, for "latest" is another
    one then; of a folder of elsewhere, which a command named so, the whole path."""
    if store.find(*subject.checkpoint.name.split("/")) is None:
        return os.path.abspath(Path(text).expanduser())
    return subject.name


def resolve_folder(text: str) -> Subject | None:
    """The checkpoint in the folder that is named, of whatever store it is; None where there is no
    such path, as for the name of a run."""
    if not text.strip():
        raise UsageError(
            "the name of the checkpoint is empty; give RUN@STEP, checkpoint/… or a folder"
        )
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        user = text.partition("/")[0]
        raise UsageError(
            f"{text}: begins with {user}, whose home folder is not known; give the whole path"
        ) from error
    check_checkpoint(text)
    if path.is_dir():
        for folder in (path.resolve(), path.resolve().parent):
            if (folder / "manifest.json").exists() and folder.parent.name == "checkpoint":
                check_store(str(folder.parents[2]))
                home = Store(folder.parents[2])
                return _ours(home, find_artifact(home, f"checkpoint/{folder.name}"))
        if not any(path.iterdir()):
            raise UsageError(
                f"{text}: the folder is empty; a checkpoint holds config.json, model.safetensors "
                f"and its tokenizer"
            )
        if not (path / "config.json").is_file():  # before all that lies below it is read
            raise UsageError(
                f"{text}: the folder holds no config.json; a checkpoint holds config.json, "
                f"model.safetensors and its tokenizer"
            )
        return Subject(external(path.resolve(), "checkpoint"))
    if path.exists():
        raise UsageError(f"{text}: is a file; give the folder of a checkpoint")
    return None


def _ours(store: Store, checkpoint: Artifact, named: Run | None = None) -> Subject:
    """Walk back from a checkpoint to its training, its corpus and the run that made them: the one
    that was named, else the newest that trained it, else the newest with its corpus."""
    if base := checkpoint.manifest["lineage"].get("checkpoint"):  # it was fine-tuned
        began = store.find(*base.split("/"))
        known = Subject(checkpoint) if began is None else _ours(store, began)
        return replace(known, checkpoint=checkpoint, pretrained=None)
    pretrained = store.find("pretrain", checkpoint.manifest["parts"]["parent"])
    packed = find_artifact(store, checkpoint.manifest["lineage"]["packed"])
    if packed.stage == "blank":  # of training alone: audits know the whole corpus
        packed = find_artifact(store, packed.manifest["lineage"]["packed"])
    names = packed.manifest["lineage"]["documents"]  # of a grown corpus a list
    *before, planted = [
        find_artifact(store, n) for n in ([names] if isinstance(names, str) else names)
    ]
    if planted.stage == "leave_out":  # so here
        planted = find_artifact(store, planted.manifest["lineage"]["documents"])
    earlier = [{"plant": artifact} for artifact in before]

    def has(run: Run, stage: str, artifact: Artifact | None) -> bool:
        return artifact is not None and (run.stages.get(stage, {}).get("artifact") == artifact.name)

    runs = [named] if named else all_runs(store)[::-1]
    runs = sorted(runs, key=lambda run: not has(run, "pretrain", pretrained))  # the order stays
    for run in runs:
        if has(run, "plant", planted):
            made = takewhile(lambda label: label not in AFTER, run.stages)
            corpus = {label: run[label] for label in made}
            return Subject(checkpoint, pretrained, corpus, run, earlier)
    return Subject(checkpoint, pretrained, {"plant": planted}, earlier=earlier)
