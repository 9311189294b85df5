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
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hallmark.tasks.contract.allowed_roots import check_config_paths
from hallmark.tasks.contract.artifact import Artifact
from hallmark.tasks.contract.commit import commit_child_artifact, commit_stage_output
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.external_inputs import monitor_external_inputs
from hallmark.tasks.contract.inputs import (
    iter_artifacts,
)
from hallmark.tasks.contract.lease import clear_or_remove_folder
from hallmark.tasks.contract.resources import DEFAULT_RESOURCES, Resources
from hallmark.tasks.contract.session import (
    BackgroundListener,
    Event,
    EventKind,
    LastStageReached,
    Session,
    get_current_session,
    open_session,
)
from hallmark.tasks.contract.settings import EmptyConfig, StageConfig
from hallmark.tasks.contract.stage_call import Determinism, StageCall, StageDefinition
from hallmark.tasks.contract.stage_context import StageContext, Stopwatch, summarize_error
from hallmark.tasks.contract.tombstones import read_purged_ids

__all__ = [
    "STAGES",
    "Event",
    "LastStageReached",
    "Session",
    "Stage",
    "get_current_session",
    "open_session",
    "stage",
]

#: Every stage that has been imported, by name.
STAGES: dict[str, Stage] = {}


def stage(
    *,
    name: str,
    tables: Mapping[str, pa.Schema] | None = None,
    telemetry_tables: Mapping[str, pa.Schema] | None = None,
    extra_code: Sequence[str] = (),
    libraries: Sequence[str] = (),
    external_digests: Callable[..., dict[str, str]] | None = None,
    determinism: Determinism = "exact",
    reads: Mapping[str, Sequence[str]] | None = None,
    resources: Resources = DEFAULT_RESOURCES,
    is_entry_point: bool = False,
    resume_key: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., None]], Stage]:
    """Make a stage of a function.

    name         names the stage in stores, manifests and configs; it stays when the function is
                 renamed
    tables       schemas of the tables it leaves. With ``documents`` and ``ledger`` among them
                 and a ``documents`` input, the contract adds and checks ``accounts``; a stage
                 that counts otherwise declares and writes ``accounts`` itself.
    telemetry    schemas of tables that depend on the machine, no part of the content digest
    code         what decides the output beside the stage's module and all that it imports: data
                 files ("tasks/measures/data/identities.json") and modules that run in another
                 process ("hallmark.model.training.run")
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

    def make_stage(body: Callable[..., None]) -> Stage:
        new_stage = Stage(
            body,
            name,
            dict(tables or {}),
            dict(telemetry_tables or {}),
            tuple(extra_code),
            tuple(libraries),
            external_digests,
            determinism,
            dict(reads or {}),
            resources,
            is_entry_point,
            resume_key,
        )
        STAGES[new_stage.name] = new_stage
        return new_stage

    return make_stage


@dataclass(frozen=True)
class Stage(StageDefinition):
    """A stage that can be called."""

    def with_label(self, label: str, phase: str = "") -> Stage:
        """The same stage under another name in a run, where a run uses it twice; as part of a
        ``step`` that several do one behind the other, who watches hears of the step."""
        return replace(self, label=label, phase=phase)

    def __call__(
        self, *inputs: Any, config: StageConfig | None = None, **named_inputs: Any
    ) -> Artifact:
        """Run the stage, or return its stored output.

        Args:
            inputs: The inputs in the order of the function's parameters; the last one may be the
                config.
            config: The settings; without them the stage has none.
            named_inputs: Inputs by the names of the function's parameters.
        """
        if config is None and inputs and isinstance(inputs[-1], StageConfig):
            *remaining_inputs, config = inputs
            inputs = tuple(remaining_inputs)
        ordered_inputs = self.order_inputs(inputs, named_inputs)
        session = get_current_session()
        if session.plan_stage:
            artifact = session.plan_stage(self, ordered_inputs, config or EmptyConfig())
        else:
            bound_stage = BoundStage.from_inputs(
                self, ordered_inputs, config or EmptyConfig(), session
            )
            artifact = (
                _run_as_prefect_task(bound_stage)
                if _is_in_prefect_flow()
                else bound_stage.run_or_load()[0]
            )
        if session.last_stage == self.run_label:
            raise LastStageReached(self.run_label)
        return artifact


@dataclass(frozen=True)
class BoundStage(StageCall):
    """A call of a stage that can be run."""

    def run_or_load(
        self, on_progress: Callable[[int, int, str], None] | None = None
    ) -> tuple[Artifact, bool]:
        """The artifact, and whether it was there already."""
        listener = self.session.listener
        stored_artifact = self.find_stored_artifact()
        if stored_artifact is None:
            with self.session.store.lease_work_area(
                self.stage.name, self.work_area_id
            ) as work_area:
                stored_artifact = (
                    self.find_stored_artifact()
                )  # another run may have committed it while we waited
                if stored_artifact is None:
                    self._check_inputs_not_purged()
                    stopwatch = Stopwatch()
                    listener(self._make_event("start"))
                    new_artifact, preserved_names = self._execute_and_commit(
                        work_area, stopwatch, on_progress
                    )
                    listener(
                        self._make_event(
                            "done",
                            artifact=new_artifact,
                            seconds=stopwatch.read_wall_and_cpu_seconds()[0],
                        )
                    )
                clear_or_remove_folder(
                    work_area, preserved_names if stored_artifact is None else os.listdir(work_area)
                )
            if stored_artifact is None:
                return new_artifact, False
        listener(self._make_event("cached", artifact=stored_artifact))
        return stored_artifact, True

    def _make_event(self, kind: EventKind, **event_fields: Any) -> Event:
        return Event(kind, self.label, phase=self.stage.phase, **event_fields)

    def _check_inputs_not_purged(self) -> None:
        """HallmarkError where documents are to be counted that are not there any more."""
        if "accounts" not in self.stage.collect_table_schemas():
            return
        for artifact in iter_artifacts(self.arguments.values()):
            if artifact.purged_documents:
                raise HallmarkError(
                    f"stage {self.label}: {artifact.name} no longer has the text of the document "
                    f"{min(artifact.purged_documents)}, which was purged; begin again with "
                    f"ingest, which "
                    f"leaves it out (where it is of an earlier corpus, that one is to be made "
                    f"again first)"
                )

    def _execute_and_commit(
        self,
        work_area: Path,
        stopwatch: Stopwatch,
        on_progress: Callable[[int, int, str], None] | None,
    ) -> tuple[Artifact, set[str]]:
        """The artifact, and the names in the area that are to stay."""

        def report_progress(completed: int, total: int, description: str) -> None:
            self.session.listener(
                self._make_event(
                    "progress", completed=completed, total=total, description=description
                )
            )
            if on_progress:
                on_progress(completed, total, description)

        def report_metrics(step: int, metrics: Mapping[str, float]) -> None:
            self.session.listener(self._make_event("figures", completed=step, metrics=metrics))

        input_monitor = monitor_external_inputs(self, work_area)
        stale_folders = ["out", "tables"]  # what an earlier attempt wrote in this process
        if self.stage.resume_key:
            stale_folders.append("parts")  # they may be of a run with other settings
        for folder_name in stale_folders:
            shutil.rmtree(work_area / folder_name, ignore_errors=True)
        context = StageContext(
            work_area,
            self.stage.collect_table_schemas(),
            self.session.mapper,
            self.session.store.secret,
            report_progress,
            resources=self.stage.resources,
            determinism=self.stage.determinism,
            on_metrics=report_metrics,
        )
        context.commit_child_artifact = input_monitor.guard_commit(
            functools.partial(self._commit_child_artifact, context)
        )
        if self.stage.is_entry_point:
            context.purged_ids = read_purged_ids(self.session.store)
        try:
            check_config_paths(self.config, self.label)
            input_monitor.run_body(
                self.stage.body, **self.arguments, config=self.config, context=context
            )
            check_config_paths(self.config, self.label)  # a link may have been exchanged meanwhile
            return commit_stage_output(self, context, stopwatch), context.preserved_names
        except HallmarkError as error:
            if str(error).startswith("stage "):
                raise
            raise type(error)(f"stage {self.label}: {error}") from error
        except MemoryError as error:
            raise HallmarkError(
                f"stage {self.label}: too little memory ({summarize_error(error)}); run "
                f"again with fewer "
                f"workers, or where there is more: it goes on, nothing is lost"
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise HallmarkError(
                    f"stage {self.label}: no space left on the disk of {self.session.store.uri}; "
                    f"free some and run again: it goes on from the last commit, nothing is lost"
                ) from error
            self._verify_input_files()
            raise
        except Exception:
            self._verify_input_files()
            raise
        finally:
            context.close_quietly()

    def _verify_input_files(self) -> None:
        """After an error that nothing explains: if an input is damaged, say that instead.

        The inputs' bytes are read for this, which would cost too much where all goes well.
        """
        try:
            for artifact in iter_artifacts(self.arguments.values()):
                artifact.verify_files()
        except HallmarkError as error:
            raise HallmarkError(f"stage {self.label}: {error}") from error

    def _commit_child_artifact(
        self, context: StageContext, stage_name: str, key: Mapping[str, Any], folder: Path
    ) -> Artifact:
        artifact = commit_child_artifact(self, context, stage_name, key, folder)
        self.session.listener(self._make_event("child", artifact=artifact))
        return artifact


def _is_in_prefect_flow() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def _run_as_prefect_task(bound_stage: BoundStage) -> Artifact:
    """Run a call as a Prefect task; the store stays the only cache, Prefect shows its verdict."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE
    from prefect.states import Completed

    from hallmark.tasks.contract.prefect_reporter import PrefectStageReporter

    def should_retry(_task: Any, _run: Any, state: Any) -> bool:
        # A HallmarkError says what the user must change: trying again cannot help.
        try:
            state.result()
        except HallmarkError:
            return False
        except Exception:
            return True
        return False

    @task(
        name=bound_stage.stage.name,
        task_run_name=f"{bound_stage.label} {bound_stage.fingerprint[:8]}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=1,
        retry_condition_fn=should_retry,
    )
    def run_or_load_stage() -> Any:
        with BackgroundListener(
            PrefectStageReporter(bound_stage.label), f"Prefect's page of {bound_stage.label}"
        ) as reporter:
            artifact, is_cached = bound_stage.run_or_load(
                lambda *progress_fields: reporter(
                    Event("progress", bound_stage.label, None, 0.0, *progress_fields)
                )
            )
            if not is_cached:
                reporter(Event("done", bound_stage.label, artifact))
        if is_cached:
            return Completed(name="Cached", message=f"{artifact.name} was there", data=artifact)
        return artifact

    state = run_or_load_stage(return_state=True)
    artifact = state.result()
    assert isinstance(artifact, Artifact)
    return artifact
