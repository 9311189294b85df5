"""What a run would do, stage by stage, without doing it: a session's plan in place of its stages.

Where all inputs of a stage are known, so is its fingerprint, and the store is asked for it. Else an
``Unknown`` stands for what the stage would leave, and goes through the pipeline in its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tasks.contract import Artifact, Call, HallmarkError, Session, Stage, StageConfig, Store
from tasks.corpus.reading.inputs import IngestConfig
from tasks.corpus.reading.streaming import DatasetsSource
from tasks.measures.scorers import ScorerConfig, needs_download

WAS_TRIED = "measured: the whole corpus went through it, in a temporary store"


class ReadOnly(Store):
    """A store that is only looked at: what would write to it is an error of ours.

    Its secret is made up where it has none; nothing is in it then that could depend on it.
    """

    def put(self, key: str, data: bytes | Path) -> NoReturn:
        raise AssertionError(f"a forecast must not write {key}")

    create = put  # type: ignore[assignment]

    def delete(self, keys: list[str]) -> NoReturn:
        raise AssertionError(f"a forecast must not remove {keys}")

    @property
    def secret(self) -> bytes:
        return bytes(32) if self.get("secret") is None else super().secret


@dataclass(frozen=True)
class Unknown:
    """Stands for an artifact that is not there yet, with whose content nobody can reckon."""

    label: str
    store: None = None  # as that of a folder of somebody else: nothing leads on from it


@dataclass
class Row:
    """What a run would do with a stage.

    state: "store" (it is there), "run", "unknown", "fails", or "waits" for one that fails.
    """

    label: str
    stage: str
    state: str
    why: str = ""
    artifact: str | None = None
    seconds: float | None = None
    rests_on: str = ""  # what the seconds are known from

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Plan:
    """Called in place of every stage; ``rows`` say what each would do, ``known`` what they leave.

    With a ``trial`` session the stages named in ``tried`` run there when the store lacks what they
    would leave, on the real inputs: then their content is known, and what comes behind them, too.
    """

    def __init__(
        self, store: Store, trial: Session | None = None, tried: Sequence[str] = ()
    ) -> None:
        self.session = Session(store)
        self.trial, self.tried = trial, tried
        self.rows: list[Row] = []
        self.known: dict[str, Artifact] = {}

    def __call__(
        self, stage: Stage, inputs: Sequence[Any], config: StageConfig
    ) -> Artifact | Unknown:
        row = Row(stage.title, stage.name, "run")
        self.rows.append(row)
        waits = list(dict.fromkeys(unknown.label for unknown in _unknown(inputs)))
        if waits:
            row.state, row.why = self._waiting(waits)
            return Unknown(row.label)
        outside = _out_of_reach(config)
        if outside:
            row.state, row.why = "unknown", outside
            return Unknown(row.label)
        try:
            call = Call.of(stage, inputs, config, self.session)
            found = call.find()
            if found is None:
                row.why = _difference(call)
                found = self._try(call, row)
            else:
                row.state, row.artifact = "store", found.name
        except HallmarkError as error:
            found = None
            row.state, row.why = "fails", str(error)
            if isinstance(config, IngestConfig) and _on_the_hub(config):
                row.state, row.why = "unknown", f"cannot be known without the hub: {error}"
            elif not row.why.startswith("stage "):
                row.why = f"stage {row.label}: {error}"
        if found is None:
            return Unknown(row.label)
        self.known[row.label] = found
        return found

    def _waiting(self, waits: Sequence[str]) -> tuple[str, str]:
        """State and reason of a stage whose inputs are not all known."""
        before = {row.label: row for row in self.rows}
        for row in (before[label] for label in waits):
            if row.state == "fails":
                return "waits", f"cannot begin: {row.label} fails"
            if row.state == "waits":
                return row.state, row.why
        more = f" and {len(waits) - 3} more" if len(waits) > 3 else ""
        return "run", f"its inputs would be made anew: {', '.join(waits[:3])}{more}"

    def _try(self, call: Call, row: Row) -> Artifact | None:
        if self.trial is None or row.label not in self.tried:
            return None
        start = time.perf_counter()
        made, _ = replace(call, session=self.trial).run()
        row.seconds, row.rests_on = time.perf_counter() - start, WAS_TRIED
        return made

    @property
    def failures(self) -> list[str]:
        return [row.why for row in self.rows if row.state == "fails"]


def _unknown(values: Iterable[Any]) -> Iterator[Unknown]:
    for value in values:
        if isinstance(value, Mapping):
            yield from _unknown(value.values())
        elif isinstance(value, list):
            yield from _unknown(value)
        elif isinstance(value, Unknown):
            yield value


def _on_the_hub(config: IngestConfig) -> bool:
    return any(isinstance(s, DatasetsSource) and not s.local for s in config.sources)


def _out_of_reach(config: StageConfig) -> str:
    """What would have to be downloaded before the fingerprint is known, if anything."""
    cascade = getattr(config, "cascade", None)
    asked = (getattr(config, "scorer", None), getattr(cascade, "cheap", None))
    for scorer in (*asked, *getattr(config, "also", ())):
        if isinstance(scorer, ScorerConfig) and scorer.sha256 is None and needs_download(scorer):
            return (
                f"the weights of Detoxify's model {scorer.model} are not on this machine; the run "
                f"downloads them"
            )
    return ""


def _difference(call: Call) -> str:
    """How a stage differs from the newest artifact of the same stage in the store."""
    newest = newest_of(call.session.store, call.stage.name)
    if newest is None:
        return "not in the store, nor any other of this stage"
    before = newest.manifest["parts"]
    names = {"external": "outside", "code": "code", "config": "config", "libraries": "libraries",
             "inputs": "inputs"}  # fmt: skip
    changed = [
        f"{said}: {', '.join(keys[:4])}" + ("…" if len(keys) > 4 else "")
        for part, said in names.items()
        if (keys := _changed(before.get(part, {}), call.parts[part]))
    ]
    return f"not in the store; unlike the newest there: {'; '.join(changed)}"


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))


def newest_of(store: Store, stage: str) -> Artifact | None:
    """The artifact of a stage that was made last; damaged ones and those of other layouts count
    as not there."""
    found = []
    for name in store.children(f"artifacts/{stage}"):
        try:
            artifact = store.find(stage, name)
        except HallmarkError:
            continue
        if artifact:
            found.append(artifact)
    return max(found, key=lambda artifact: artifact.manifest.get("created", ""), default=None)
