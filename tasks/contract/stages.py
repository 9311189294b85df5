"""The stage contract: caching, commit, accounting and Prefect, so that stage bodies need none.

    @stage(tables={"documents": DOCUMENTS, "ledger": LEDGER})
    def deduplicate(documents: Table, config: DeduplicateConfig, work: Work) -> None: ...

The parameters before ``config`` are the inputs. One annotated ``Table`` reads the table of
that name of the artifact it is given, and only that table's digest counts: a ledger that
changes reruns nothing behind it. Given several artifacts it reads their tables one behind the other
(a grown corpus; of one alone it is the same). One annotated ``Artifact`` reads the whole artifact;
a ``dict[str, Artifact]`` any number of them.

Inside a Prefect flow a call is a task run; outside of one it is a plain call. Both need a
``Session``. ``deduplicate.body(documents, config, work)`` is the bare function, for tests.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import shutil
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tasks.contract.accounts import ACCOUNTS, CHECKSUMS
from tasks.contract.artifact import Artifact, Table
from tasks.contract.closure import code_digests
from tasks.contract.commit import TELEMETRY, commit, commit_child
from tasks.contract.errors import HallmarkError
from tasks.contract.external_files import ExternalFiles
from tasks.contract.fingerprint import fingerprint, library_versions
from tasks.contract.inputs import artifacts_of, digests_of, only, table_of
from tasks.contract.lease import clear
from tasks.contract.mappers import ONE, Needs
from tasks.contract.roots import check_config
from tasks.contract.session import (
    Event,
    Finished,
    Kind,
    Session,
    Watcher,
    current_session,
    open_session,
)
from tasks.contract.settings import NoConfig, StageConfig
from tasks.contract.store import Store
from tasks.contract.tombstones import denied, denied_digest
from tasks.contract.watching import watch_outside
from tasks.contract.work import Clock, Work, reason

__all__ = [
    "STAGES", "Event", "Finished", "Session", "Stage", "current_session", "open_session", "stage",
]  # fmt: skip

Determinism = Literal["exact", "machine", "statistical"]

#: Every stage that has been imported, by name.
STAGES: dict[str, Stage] = {}


def stage(
    *,
    tables: Mapping[str, pa.Schema] | None = None,
    telemetry: Mapping[str, pa.Schema] | None = None,
    code: Sequence[str] = (),
    libraries: Sequence[str] = (),
    external: Callable[..., dict[str, str]] | None = None,
    determinism: Determinism = "exact",
    reads: Mapping[str, Sequence[str]] | None = None,
    needs: Needs = ONE,
    admits: bool = False,
    goes_on: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., None]], Stage]:
    """Make a stage of a function.

    tables       schemas of the tables it leaves. With ``documents`` and ``ledger`` among them
                 and a ``documents`` input, the contract adds and checks ``accounts``; a stage
                 that counts otherwise declares and writes ``accounts`` itself.
    telemetry    schemas of tables that depend on the machine, no part of the content digest
    code         what decides the output beside the stage's module and all that it imports: data
                 files ("tasks/measures/data/identities.json") and modules that run in another
                 process ("model.training.run")
    libraries    distributions whose version decides the output (pyarrow always does)
    external     called with (config, secret_id) for digests of what comes from outside the
                 store: corpus files, scorer weights, the secret
    reads        of inputs that are artifacts: the tables it reads, and patterns of the files, so
                 that others do not count
    needs        what one item of its work needs: processors, memory, a GPU
    admits       documents enter the store here: ``work.denied`` must not, and their list counts
    goes_on      called with the config for what of it decides whether a run can go on from what
                 another one left: runs that differ in nothing else share a work area, one at a
                 time, and find in it what the others left, but for parts that are done: each does
                 its own. Such a stage says so where its artifact is of more than one config
                 (``work.determinism``)
    """

    def wrap(body: Callable[..., None]) -> Stage:
        made = Stage(body, dict(tables or {}), dict(telemetry or {}), tuple(code),
                     tuple(libraries), external, determinism, dict(reads or {}), needs,
                     admits, goes_on)  # fmt: skip
        STAGES[made.name] = made
        return made

    return wrap


@dataclass(frozen=True)
class Stage:
    body: Callable[..., None]
    tables: dict[str, pa.Schema]
    telemetry: dict[str, pa.Schema]
    code: tuple[str, ...]
    libraries: tuple[str, ...]
    external: Callable[..., dict[str, str]] | None
    determinism: Determinism
    reads: dict[str, Sequence[str]]
    needs: Needs
    admits: bool = False
    goes_on: Callable[..., Any] | None = None
    label: str = ""
    step: str = ""

    @property
    def name(self) -> str:
        return self.body.__name__

    @property
    def title(self) -> str:
        """What a run calls it."""
        return self.label or self.name

    def named(self, label: str, step: str = "") -> Stage:
        """The same stage under another name in a run, where a run uses it twice; as part of a
        ``step`` that several do one behind the other, who watches hears of the step."""
        return replace(self, label=label, step=step)

    @functools.cached_property
    def parameters(self) -> dict[str, Any]:
        hints = typing.get_type_hints(self.body)
        return {name: hints[name] for name in inspect.signature(self.body).parameters}

    @property
    def inputs(self) -> list[str]:
        return [name for name in self.parameters if name not in ("config", "work")]

    @property
    def conserves(self) -> bool:
        return {"documents", "ledger"} <= set(self.tables) and "documents" in self.inputs

    def schemas(self) -> dict[str, pa.Schema]:
        """Of all tables that it leaves, those of the contract among them."""
        books = {"accounts": ACCOUNTS, "checksums": CHECKSUMS} if self.conserves else {}
        return {**self.tables, **self.telemetry, **books, "telemetry": TELEMETRY}

    def code_digests(self) -> dict[str, str]:
        own = Path(inspect.getsourcefile(self.body) or "")  # may lie outside of this project
        return code_digests(self.body.__module__, own, self.code)

    def outside(self, config: StageConfig, store: Store) -> dict[str, str]:
        """Digests of what comes from outside the store, and of what must not come in again."""
        check_config(config, self.title)
        found = self.external(config, store.secret_id()) if self.external else {}
        return found | (denied_digest(store) if self.admits else {})

    def library_versions(self) -> dict[str, str]:
        return library_versions(sorted({"pyarrow", *self.libraries}))

    def __call__(self, *inputs: Any, config: StageConfig | None = None) -> Artifact:
        """Run the stage, or find what it would leave in the store.

        The last positional argument may be the config.
        """
        if config is None and inputs and isinstance(inputs[-1], StageConfig):
            *rest, config = inputs
            inputs = tuple(rest)
        session = current_session()
        if session.plan:
            artifact = session.plan(self, inputs, config or NoConfig())
        else:
            call = Call.of(self, inputs, config or NoConfig(), session)
            artifact = _as_prefect_task(call) if _in_flow() else call.run()[0]
        if session.until == self.title:
            raise Finished(self.title)
        return artifact


@dataclass(frozen=True)
class Call:
    """One stage with its inputs bound: it knows its fingerprint before it runs."""

    stage: Stage
    arguments: dict[str, Any]
    config: StageConfig
    session: Session
    parts: dict[str, Any]
    fingerprint: str
    lineage: dict[str, Any]
    outside: ExternalFiles = field(default_factory=ExternalFiles)
    """Files that ``Stage.external`` took digests of, as they were then."""

    @classmethod
    def of(cls, stage: Stage, inputs: Sequence[Any], config: StageConfig, session: Session) -> Call:
        if len(inputs) != len(stage.inputs):
            raise TypeError(f"{stage.name} takes {stage.inputs}, got {len(inputs)} inputs")
        arguments: dict[str, Any] = {}
        digests: dict[str, Any] = {}
        lineage: dict[str, Any] = {}
        for name, given in zip(stage.inputs, inputs, strict=True):
            wants_table = stage.parameters[name] in (Table, Table | None)
            value = table_of(given, name) if wants_table else given
            if name in stage.reads:
                value = only(value, stage.reads[name])
            arguments[name] = value
            digests[name], lineage[name] = digests_of(value)
        outside = ExternalFiles()
        with outside.record():
            external = stage.outside(config, session.store)
        parts = {
            "stage": stage.name,
            "code": stage.code_digests(),
            "config": config.model_dump(mode="json"),
            "inputs": digests,
            "libraries": stage.library_versions(),
            "external": external,
        }
        return cls(stage, arguments, config, session, parts, fingerprint(parts), lineage, outside)

    @property
    def label(self) -> str:
        return self.stage.title

    @property
    def area(self) -> str:
        """What names its work area: the fingerprint, or one that runs with other settings share."""
        if self.stage.goes_on is None:
            return self.fingerprint
        return fingerprint({**self.parts, "config": self.stage.goes_on(self.config)})

    def find(self) -> Artifact | None:
        """The stored output, if any.

        Raises:
            HallmarkError: A file of the output, or of an input from which it was made, is missing
                from the store or has another size.
        """
        found = self.session.store.find(self.stage.name, self.fingerprint)
        if found is not None:
            try:
                self.session.check_files([*artifacts_of(self.arguments.values()), found])
            except HallmarkError as error:
                raise HallmarkError(f"stage {self.label}: {error}") from error
        return found

    def run(self, progress: Callable[[int, int, str], None] | None = None) -> tuple[Artifact, bool]:
        """The artifact, and whether it was there already."""
        listener = self.session.listener
        found = self.find()
        if found is None:
            with self.session.store.lease(self.stage.name, self.area) as area:
                found = self.find()  # another run may have committed it while we waited
                if found is None:
                    self._check_inputs()
                    clock = Clock()
                    listener(self._event("start"))
                    made, kept = self._execute(area, clock, progress)
                    listener(self._event("done", artifact=made, seconds=clock.read()[0]))
                clear(area, kept if found is None else os.listdir(area))
            if found is None:
                return made, False
        listener(self._event("cached", artifact=found))
        return found, True

    def _event(self, kind: Kind, **told: Any) -> Event:
        return Event(kind, self.label, step=self.stage.step, **told)

    def _check_inputs(self) -> None:
        """HallmarkError where documents are to be counted that are not there any more."""
        if "accounts" not in self.stage.schemas():
            return
        for artifact in artifacts_of(self.arguments.values()):
            if artifact.purged:
                raise HallmarkError(
                    f"stage {self.label}: {artifact.name} no longer has the text of the document "
                    f"{min(artifact.purged)}, which was purged; begin again with ingest, which "
                    f"leaves it out (where it is of an earlier corpus, that one is to be made "
                    f"again first)"
                )

    def _execute(
        self, area: Path, clock: Clock, progress: Callable[[int, int, str], None] | None
    ) -> tuple[Artifact, set[str]]:
        """The artifact, and the names in the area that are to stay."""

        def report(done: int, total: int, what: str) -> None:
            self.session.listener(self._event("progress", done=done, total=total, what=what))
            if progress:
                progress(done, total, what)

        def show(step: int, figures: Mapping[str, float]) -> None:
            self.session.listener(self._event("figures", done=step, figures=figures))

        watch = watch_outside(self, area)
        stale = ["out", "tables"]  # what an earlier attempt wrote in this process
        if self.stage.goes_on:
            stale.append("parts")  # they may be of a run with other settings
        for name in stale:
            shutil.rmtree(area / name, ignore_errors=True)
        work = Work(area, self.stage.schemas(), self.session.mapper, self.session.store.secret,
                    report, needs=self.stage.needs, determinism=self.stage.determinism,
                    on_figures=show)  # fmt: skip
        work.commit_child = watch.guard(functools.partial(self._commit_child, work))
        if self.stage.admits:
            work.denied = denied(self.session.store)
        try:
            check_config(self.config, self.label)
            watch.run(self.stage.body, **self.arguments, config=self.config, work=work)
            check_config(self.config, self.label)  # a link may have been exchanged meanwhile
            return commit(self, work, clock), work.kept
        except HallmarkError as error:
            if str(error).startswith("stage "):
                raise
            raise type(error)(f"stage {self.label}: {error}") from error
        except MemoryError as error:
            raise HallmarkError(
                f"stage {self.label}: too little memory ({reason(error)}); run again with fewer "
                f"workers, or where there is more: it goes on, nothing is lost"
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise HallmarkError(
                    f"stage {self.label}: no space left on the disk of {self.session.store.uri}; "
                    f"free some and run again: it goes on from the last commit, nothing is lost"
                ) from error
            self._verify_inputs()
            raise
        except Exception:
            self._verify_inputs()
            raise
        finally:
            work.abandon()

    def _verify_inputs(self) -> None:
        """After an error that nothing explains: if an input is damaged, say that instead.

        The inputs' bytes are read for this, which would cost too much where all goes well.
        """
        try:
            for artifact in artifacts_of(self.arguments.values()):
                artifact.verify()
        except HallmarkError as error:
            raise HallmarkError(f"stage {self.label}: {error}") from error

    def _commit_child(
        self, work: Work, name: str, key: Mapping[str, Any], folder: Path
    ) -> Artifact:
        found = commit_child(self, work, name, key, folder)
        self.session.listener(self._event("child", artifact=found))
        return found


def _in_flow() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def _as_prefect_task(call: Call) -> Artifact:
    """Run a call as a Prefect task; the store stays the only cache, Prefect shows its verdict."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE
    from prefect.states import Completed

    from tasks.contract.prefect_ui import StagePage

    def unexpected(_task: Any, _run: Any, state: Any) -> bool:
        # A HallmarkError says what the user must change: trying again cannot help.
        try:
            state.result()
        except HallmarkError:
            return False
        except Exception:
            return True
        return False

    @task(
        name=call.stage.name,
        task_run_name=f"{call.label} {call.fingerprint[:8]}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=1,
        retry_condition_fn=unexpected,
    )
    def run() -> Any:
        with Watcher(StagePage(call.label), f"Prefect's page of {call.label}") as page:
            artifact, cached = call.run(
                lambda *told: page(Event("progress", call.label, None, 0.0, *told))
            )
            if not cached:
                page(Event("done", call.label, artifact))
        if cached:
            return Completed(name="Cached", message=f"{artifact.name} was there", data=artifact)
        return artifact

    state = run(return_state=True)
    artifact = state.result()
    assert isinstance(artifact, Artifact)
    return artifact
