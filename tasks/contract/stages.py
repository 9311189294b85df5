"""The stage contract: caching, commit, accounting and Prefect, so that stage bodies need none.

    @stage(tables={"documents": DOCUMENTS, "ledger": LEDGER})
    def deduplicate(documents: Table, config: DeduplicateConfig, work: Work) -> None: ...

The parameters before ``config`` are the inputs. One annotated ``Table`` reads the table of
that name of the artifact it is given, and only that table's digest counts: a ledger that
changes reruns nothing behind it. One annotated ``Artifact`` reads the whole artifact; a
``dict[str, Artifact]`` any number of them.

Inside a Prefect flow a call is a task run; outside of one it is a plain call. Both need a
``Session``. ``deduplicate.body(documents, config, work)`` is the bare function, for tests.
"""

from __future__ import annotations

import errno
import functools
import inspect
import platform
import shutil
import socket
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tasks.contract import accounts
from tasks.contract.closure import code_digests
from tasks.contract.columns import column, meaning, table, to_json
from tasks.contract.errors import HallmarkError
from tasks.contract.fingerprint import fingerprint, library_versions
from tasks.contract.session import Event, Finished, Session, current_session, open_session
from tasks.contract.settings import NoConfig, StageConfig
from tasks.contract.store import Artifact, Manifest, Table, content_digest, describe
from tasks.contract.tables import LEDGER, TableWriter
from tasks.contract.work import Clock, Work

__all__ = [
    "STAGES", "Event", "Finished", "Session", "Stage", "current_session", "open_session", "stage",
]  # fmt: skip

Determinism = Literal["exact", "machine", "statistical"]

TELEMETRY = table(
    "What the stage cost on this machine; no part of its content.",
    column("metric", pa.string(), "label", "what was measured or noted"),
    column("value", pa.float64(), "figure", "the measurement, in the unit beside it"),
    column("unit", pa.string(), "label", "unit of the value"),
    column("note", pa.string(), "label", "a name instead of a value: host, platform, Python"),
)


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
) -> Callable[[Callable[..., None]], Stage]:
    """Make a stage of a function.

    tables       schemas of the tables it leaves. With ``documents`` and ``ledger`` among them
                 and a ``documents`` input, the contract adds and checks ``accounts``; a stage
                 that counts otherwise declares and writes ``accounts`` itself.
    telemetry    schemas of tables that depend on the machine, no part of the content digest
    code         what decides the output beside the stage's module and all that it imports: data
                 files ("tasks/measures/data/identities.json") and modules that run in another
                 process ("model.training.train")
    libraries    distributions whose version decides the output (pyarrow always does)
    external     called with (config, secret_id) for digests of what comes from outside the
                 store: corpus files, scorer weights, the secret
    """

    def wrap(body: Callable[..., None]) -> Stage:
        made = Stage(body, dict(tables or {}), dict(telemetry or {}), tuple(code),
                     tuple(libraries), external, determinism)  # fmt: skip
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
    label: str = ""

    @property
    def name(self) -> str:
        return self.body.__name__

    def named(self, label: str) -> Stage:
        """The same stage under another name in a run, where a run uses it twice."""
        return replace(self, label=label)

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

    def code_digests(self) -> dict[str, str]:
        own = Path(inspect.getsourcefile(self.body) or "")  # may lie outside of this project
        return code_digests(self.body.__module__, own, self.code)

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
        call = Call.of(self, inputs, config or NoConfig(), session)
        artifact = _as_prefect_task(call) if _in_flow() else call.run()[0]
        if session.until == call.label:
            raise Finished(call.label)
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

    @classmethod
    def of(cls, stage: Stage, inputs: Sequence[Any], config: StageConfig, session: Session) -> Call:
        if len(inputs) != len(stage.inputs):
            raise TypeError(f"{stage.name} takes {stage.inputs}, got {len(inputs)} inputs")
        arguments: dict[str, Any] = {}
        digests: dict[str, Any] = {}
        lineage: dict[str, Any] = {}
        for name, given in zip(stage.inputs, inputs, strict=True):
            wants_table = stage.parameters[name] in (Table, Table | None)
            value = given[name] if wants_table and isinstance(given, Artifact) else given
            arguments[name] = value
            digests[name], lineage[name] = _digests(value)
        parts = {
            "stage": stage.name,
            "code": stage.code_digests(),
            "config": config.model_dump(mode="json"),
            "inputs": digests,
            "libraries": stage.library_versions(),
            "external": (
                stage.external(config, session.store.secret_id()) if stage.external else {}
            ),
        }
        return cls(stage, arguments, config, session, parts, fingerprint(parts), lineage)

    @property
    def label(self) -> str:
        return self.stage.label or self.stage.name

    def find(self) -> Artifact | None:
        return self.session.store.find(self.stage.name, self.fingerprint)

    def run(self, progress: Callable[[int, int, str], None] | None = None) -> tuple[Artifact, bool]:
        """The artifact, and whether it was there already."""
        listener = self.session.listener
        found = self.find()
        if found is None:
            with self.session.store.lease(self.stage.name, self.fingerprint) as area:
                found = self.find()  # another run may have committed it while we waited
                if found is None:
                    clock = Clock()
                    listener(Event("start", self.label))
                    made = self._execute(area, clock, progress)
                    listener(Event("done", self.label, made, clock.read()[0]))
                shutil.rmtree(area, ignore_errors=True)
            if found is None:
                return made, False
        listener(Event("cached", self.label, found))
        return found, True

    def _execute(
        self, area: Path, clock: Clock, progress: Callable[[int, int, str], None] | None
    ) -> Artifact:
        def report(done: int, total: int, what: str) -> None:
            self.session.listener(Event("progress", self.label, None, 0.0, done, total, what))
            if progress:
                progress(done, total, what)

        shutil.rmtree(area / "out", ignore_errors=True)
        schemas = {**self.stage.tables, **self.stage.telemetry}
        if self.stage.conserves:
            schemas["accounts"] = accounts.ACCOUNTS
        schemas["telemetry"] = TELEMETRY
        work = Work(area, schemas, self.session.mapper, self.session.store.secret, report,
                    functools.partial(self._commit_child))  # fmt: skip
        try:
            self.stage.body(**self.arguments, config=self.config, work=work)
            return self._commit(work, clock)
        except HallmarkError as error:
            if str(error).startswith("stage "):
                raise
            raise type(error)(f"stage {self.label}: {error}") from error
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
            for artifact in _artifacts(self.arguments.values()):
                artifact.verify()
        except HallmarkError as error:
            raise HallmarkError(f"stage {self.label}: {error}") from error

    def _commit(self, work: Work, clock: Clock) -> Artifact:
        for name in self.stage.tables:  # a table nobody wrote to is an empty table
            work.table(name)
        self._balance(work)
        wall, cpu = clock.read()
        work.measure("seconds", wall, "s")
        work.measure("cpu_seconds", cpu, "s")
        work.measure("peak_memory", _peak_memory(), "MiB")
        notes = {"host": socket.gethostname(), "platform": platform.platform()}
        notes["python"] = platform.python_version()
        rows = [{**m, "note": None} for m in work.measurements]
        rows += [{"metric": k, "value": None, "unit": None, "note": v} for k, v in notes.items()]
        work.table("telemetry").write(pa.Table.from_pylist(rows, schema=TELEMETRY))
        work.close()
        return self.session.store.commit(work.folder, self._manifest(work))

    def _balance(self, work: Work) -> None:
        """Write the accounts where the contract keeps them, and check them wherever they are."""
        if self.stage.conserves:
            for name in ("documents", "ledger"):
                work.table(name).close()
            ledger = work.table("ledger")
            if ledger.schema != LEDGER:
                raise TypeError(f"{self.stage.name}: its ledger does not have the LEDGER schema")
            entered = self.arguments["documents"].counts  # none: an empty table
            books = accounts.balance(
                entered,
                work.table("documents").counts.to_json(),
                ledger.counts.to_json(),
            )
            work.table("accounts").write(pa.Table.from_pylist(books, schema=accounts.ACCOUNTS))
        if "accounts" in work.written:
            writer = work.written["accounts"]
            writer.close()
            import pyarrow.parquet as pq

            accounts.check(self.label, pq.read_table(writer.path).to_pylist())

    def _manifest(self, work: Work) -> Manifest:
        apart = {*self.stage.telemetry, "telemetry"}
        tables: dict[str, Any] = {}
        telemetry: dict[str, Any] = {}
        for name, writer in sorted(work.written.items()):
            entry = {**describe(work.folder, f"{name}.parquet"), **_shape(writer)}
            (telemetry if name in apart else tables)[name] = entry
        known = {f"{name}.parquet" for name in work.written}
        files = {
            str(path.relative_to(work.folder)): describe(
                work.folder, str(path.relative_to(work.folder))
            )
            for path in sorted(work.folder.rglob("*"))
            if path.is_file() and path.name not in known
        }
        return self._header(tables, files) | {"telemetry": telemetry}

    def _header(self, tables: dict[str, Any], files: dict[str, Any]) -> Manifest:
        return {
            "stage": self.stage.name,
            "fingerprint": self.fingerprint,
            "content": content_digest(tables, files),
            "determinism": self.stage.determinism,
            "tables": tables,
            "files": files,
            "parts": self.parts,
            "lineage": self.lineage,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _commit_child(self, name: str, key: Mapping[str, Any], folder: Path) -> Artifact:
        """Commit a folder as an artifact of its own while this stage goes on (a checkpoint)."""
        parts = {"stage": name, "parent": self.fingerprint, "key": dict(key)}
        digest = fingerprint(parts)
        found = self.session.store.find(name, digest)
        if found is None:
            paths = sorted(p for p in folder.rglob("*") if p.is_file())
            names = [str(path.relative_to(folder)) for path in paths]
            files = {n: describe(folder, n) for n in names}
            manifest = self._header({}, files) | {"telemetry": {}, "stage": name}
            manifest |= {"fingerprint": digest, "parts": parts}
            found = self.session.store.commit(folder, manifest)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        self.session.listener(Event("child", self.label, found))
        return found


def _shape(writer: TableWriter) -> dict[str, Any]:
    counts = writer.counts.to_json()
    said = {"columns": to_json(writer.described), "meaning": meaning(writer.described)}
    return {"rows": writer.rows} | said | ({"counts": counts} if counts else {})


def _digests(value: Any) -> tuple[Any, Any]:
    """What counts of an input, and where it came from."""
    if value is None:
        return None, None
    if isinstance(value, Table):
        return value.digest, f"{value.artifact.name}#{value.name}"
    if isinstance(value, Artifact):
        return value.content, value.name
    if isinstance(value, Mapping):
        pairs = {key: _digests(item) for key, item in value.items()}
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
    raise TypeError(f"a stage reads tables and artifacts, not {type(value).__name__}")


def _artifacts(values: Iterable[Any]) -> Iterator[Artifact]:
    for value in values:
        if isinstance(value, Mapping):
            yield from _artifacts(value.values())
        elif value is not None:
            yield value.artifact if isinstance(value, Table) else value


def _peak_memory() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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

    from tasks.contract.prefect_ui import UiProgress, publish

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
        with UiProgress(call.label) as progress:
            artifact, cached = call.run(progress)
        if cached:
            return Completed(name="Cached", message=f"{artifact.name} was there", data=artifact)
        publish(call.label, artifact)
        return artifact

    state = run(return_state=True)
    artifact = state.result()
    assert isinstance(artifact, Artifact)
    return artifact
