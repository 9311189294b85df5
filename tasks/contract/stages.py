"""Define the ``stage`` decorator, which adds caching, commit, accounting and Prefect to a function.

    @stage(name="deduplicate", tables={"documents": DOCUMENTS, "ledger": LEDGER})
    def deduplicate(
        documents: Table, config: DeduplicateConfig, context: StageContext
    ) -> None: ...

The parameters before ``config`` are the inputs. A parameter annotated ``Table`` receives the table
of that name from the given artifact. Only that table's digest enters the fingerprint, so a changed
ledger does not rerun later stages. Given several artifacts (a grown corpus), the parameter receives
their tables concatenated in order. A parameter annotated ``Artifact`` receives a whole artifact;
one annotated ``dict[str, Artifact]`` receives any number of artifacts.

A call is a task run inside a Prefect flow and a plain call elsewhere. Both need an open
``Session``. Tests can call the undecorated function as
``deduplicate.body(documents, config, context)``.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hallmark.tasks.contract.allowed_roots import check_config_paths
from hallmark.tasks.contract.artifact import Artifact, Table
from hallmark.tasks.contract.commit import commit_child_artifact, commit_stage_output
from hallmark.tasks.contract.errors import (
    HallmarkError,
    TemporaryError,
    get_first_error_line,
)
from hallmark.tasks.contract.external_inputs import monitor_external_inputs
from hallmark.tasks.contract.inputs import iter_artifacts, iter_inputs
from hallmark.tasks.contract.lease import LeaseHolder, clear_or_remove_folder
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
from hallmark.tasks.contract.stage_context import ProgressCallback, StageContext, Stopwatch
from hallmark.tasks.contract.store_lease import StoreLease
from hallmark.tasks.contract.stored_states import StoredStates
from hallmark.tasks.contract.tombstones import read_purged_ids

log = logging.getLogger("hallmark")

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

#: All imported stages, by name.
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
    """Decorate a function as a stage.

    Args:
        name: Name of the stage in stores, manifests and configs. It stays the same when the
            function is renamed.
        tables: Schemas of the tables that the stage writes. If they include ``documents`` and
            ``ledger`` and the stage has a ``documents`` input, the contract adds and checks
            ``accounts`` and ``checksums``. A stage that counts differently declares and writes
            ``accounts`` itself.
        telemetry_tables: Schemas of tables that depend on the machine; they are not part of the
            content digest.
        extra_code: Code that decides the output and that the function does not reach by name: data
            files ("tasks/measures/data/identities.json"), modules that run in another process
            ("hallmark.model.training.run"), and values that the function receives
            ("hallmark.tasks.audits.probes.bias:PROBE").
        libraries: Distributions whose version decides the output; pyarrow is always included.
        external_digests: Function of (config, secret_id) that returns digests of everything read
            from outside the store: corpus files, scorer weights, the secret.
        determinism: Whether a repeated run gives the same bytes on any machine ("exact"), the same
            bytes on this machine ("machine"), or figures within their intervals ("statistical").
        reads: For inputs that are artifacts, by input name: the names of tables and patterns of
            files that the stage reads. Other contents do not enter the fingerprint.
        resources: Processors, memory and GPUs that one item of the stage's work needs.
        is_entry_point: Whether documents enter the store in this stage. The stage must leave out
            the documents in ``context.purged_ids``, and their list enters the fingerprint.
        resume_key: Function of the config that returns the settings that decide whether a run can
            resume from the work of another. Runs that agree in them share a work area, one run at
            a time, and find in it what earlier runs preserved, except finished items: each run
            computes its own. If the artifact then depends on more than one config, the stage
            must say so in ``context.determinism``.
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
        """Return the stage under another name, for a run that uses the stage twice.

        Args:
            label: Name of the stage in the run.
            phase: Name of a group of consecutive stages, reported in events.
        """
        return replace(self, label=label, phase=phase)

    def __call__(
        self, *inputs: Any, config: StageConfig | None = None, **named_inputs: Any
    ) -> Artifact:
        """Run the stage, or return its stored output.

        Args:
            inputs: The inputs in the order of the function's parameters; the last one may be the
                config.
            config: The settings; None means ``EmptyConfig``.
            named_inputs: Inputs by the names of the function's parameters.

        Raises:
            LastStageReached: The session ends after this stage.
        """
        if config is None and inputs and isinstance(inputs[-1], StageConfig):
            *remaining_inputs, config = inputs
            inputs = tuple(remaining_inputs)
        ordered_inputs = self.order_inputs(inputs, named_inputs)
        session = get_current_session()
        if session.plan_stage:
            artifact: Artifact = session.plan_stage(self, ordered_inputs, config or EmptyConfig())
        else:
            bound_stage = BoundStage.from_inputs(
                self, ordered_inputs, config or EmptyConfig(), session
            )
            artifact = (
                _run_as_prefect_task(bound_stage)
                if _is_in_prefect_flow()
                else bound_stage.run_or_load().artifact
            )
        if session.last_stage == self.run_label:
            raise LastStageReached(self.run_label)
        return artifact


class StageOutput(NamedTuple):
    """The artifact of a stage, computed or loaded."""

    artifact: Artifact
    was_stored: bool
    """Whether the artifact was already in the store."""


class _CommittedOutput(NamedTuple):
    """The artifact that an execution committed, and what remains of its work area."""

    artifact: Artifact
    preserved_names: set[str]
    """Names of files and folders in the work area that must be kept for later runs."""


@dataclass(frozen=True)
class BoundStage(StageCall):
    """A stage with its inputs and settings, ready to run."""

    def run_or_load(self, on_progress: ProgressCallback | None = None) -> StageOutput:
        """Return the stored artifact, or run the stage to compute it."""
        listener = self.session.listener
        stored_artifact = self.find_and_check_stored_artifact()
        if stored_artifact is None:
            store = self.session.store
            with (
                store.lease_work_area(
                    self.stage.name, self.work_area_id, self._report_wait
                ) as work_area,
                store.lease_for_all_hosts(work_area, self._report_wait) as lease,
            ):
                # Another run may have committed it while this one waited for the lease.
                stored_artifact = self.find_and_check_stored_artifact()
                if stored_artifact is None:
                    self._check_inputs_not_purged()
                    stopwatch = Stopwatch()
                    listener(self._make_event("start", inputs=self._list_inputs()))
                    try:
                        committed = self._execute_and_commit(
                            work_area, lease, stopwatch, on_progress
                        )
                    except BaseException as error:
                        listener(self._make_event("failed", description=type(error).__name__))
                        raise
                    listener(
                        self._make_event(
                            "done",
                            artifact=committed.artifact,
                            seconds=stopwatch.read_wall_and_cpu_seconds()[0],
                        )
                    )
                clear_or_remove_folder(
                    work_area,
                    committed.preserved_names if stored_artifact is None else os.listdir(work_area),
                )
            if stored_artifact is None:
                return StageOutput(committed.artifact, was_stored=False)
        listener(self._make_event("cached", artifact=stored_artifact, inputs=self._list_inputs()))
        return StageOutput(stored_artifact, was_stored=True)

    def _list_inputs(self) -> tuple[Artifact | Table, ...]:
        return tuple(iter_inputs(self.arguments.values()))

    def _report_wait(self, holder: LeaseHolder) -> None:
        log.warning(
            "stage %s is waiting for %s, which is computing the same artifact", self.label, holder
        )

    def _make_event(self, kind: EventKind, **event_fields: Any) -> Event:
        return Event(kind, self.label, phase=self.stage.phase, **event_fields)

    def _check_inputs_not_purged(self) -> None:
        """Raise HallmarkError if the stage counts documents and an input lacks purged ones."""
        if "accounts" not in self.stage.collect_table_schemas():
            return
        for artifact in iter_artifacts(self.arguments.values()):
            if artifact.purge_time_by_doc_id:
                raise HallmarkError(
                    f"stage {self.label}: {artifact.name} no longer contains the text of document "
                    f"{min(artifact.purge_time_by_doc_id)}, which was purged; run again from "
                    "ingest, which excludes the document (if the artifact belongs to an earlier "
                    "corpus, rebuild that corpus first)"
                )

    def _execute_and_commit(
        self,
        work_area: Path,
        lease: StoreLease | None,
        stopwatch: Stopwatch,
        on_progress: ProgressCallback | None,
    ) -> _CommittedOutput:
        """Run the body in a work area and commit its output."""

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
        stale_folders = ["out", "tables"]  # written by an earlier attempt
        if self.stage.resume_key:
            stale_folders.append("parts")  # a run with other settings may have written them
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
            find_stop_reason=self.session.find_stop_reason,
        )
        if lease is not None:
            context.stored_states = StoredStates(
                self.session.store,
                lease,
                work_area=work_area,
                fingerprint=self.fingerprint,
                inputs={artifact.name for artifact in iter_artifacts(self.arguments.values())},
            )
        context.commit_child_artifact = input_monitor.guard_commit(
            functools.partial(self._commit_child_artifact, context)
        )
        if self.stage.is_entry_point:
            context.purged_ids = read_purged_ids(self.session.store)
        try:
            check_config_paths(self.config, self.label)
            input_monitor.run_body_and_check_unchanged(
                self.stage.body, **self.arguments, config=self.config, context=context
            )
            check_config_paths(self.config, self.label)  # a link may have been exchanged meanwhile
            if lease is not None:
                lease.renew()
            artifact = commit_stage_output(self, context, stopwatch)
            if context.stored_states is not None:
                context.stored_states.remove()
            return _CommittedOutput(artifact, context.preserved_names)
        except HallmarkError as error:
            if str(error).startswith("stage "):
                raise
            raise type(error)(f"stage {self.label}: {error}") from error
        except MemoryError as error:
            raise HallmarkError(
                f"stage {self.label}: out of memory ({get_first_error_line(error)}); run again "
                "with fewer workers or on a machine with more memory; finished work is kept"
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise HallmarkError(
                    f"stage {self.label}: no space left on the disk that holds "
                    f"{self.session.store.uri}; free some space and run again to resume from the "
                    "last commit"
                ) from error
            self._verify_input_files()
            raise
        except Exception:
            self._verify_input_files()
            raise
        finally:
            if context.stored_states is not None:
                context.stored_states.close()
            context.close_quietly()

    def _verify_input_files(self) -> None:
        """Raise HallmarkError if an input is damaged, to explain an otherwise unexplained error.

        This reads all bytes of the inputs, which would cost too much on every run.
        """
        try:
            for artifact in iter_artifacts(self.arguments.values()):
                artifact.verify_files()
        except HallmarkError as error:
            raise HallmarkError(f"stage {self.label}: {error}") from error

    def _commit_child_artifact(
        self,
        context: StageContext,
        stage_name: str,
        identifying_values: Mapping[str, Any],
        folder: Path,
    ) -> Artifact:
        child = commit_child_artifact(self, context, stage_name, identifying_values, folder)
        self.session.listener(
            self._make_event("child", artifact=child.artifact, was_stored=child.was_stored)
        )
        return child.artifact


def _is_in_prefect_flow() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def _run_as_prefect_task(bound_stage: BoundStage) -> Artifact:
    """Run a stage as a Prefect task; Prefect shows cache hits, but the store is the only cache."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE
    from prefect.states import Completed

    from hallmark.tasks.contract.prefect_reporter import PrefectStageReporter

    policy = bound_stage.session.get_retry_policy(bound_stage.label, bound_stage.stage.name)

    def should_retry(_task: Any, task_run: Any, state: Any) -> bool:
        try:
            state.result()
        except Exception as error:
            # Other HallmarkErrors say what the user must change, so a retry cannot help.
            if isinstance(error, HallmarkError) and not isinstance(error, TemporaryError):
                return False
            sentence = f": {error}" if isinstance(error, TemporaryError) else ""
            log.warning(
                "stage %s failed with %s%s; attempt %d of %d starts in %g seconds",
                bound_stage.label,
                type(error).__name__,
                sentence,
                task_run.run_count + 1,
                policy.count + 1,
                policy.delay_seconds,
            )
            return True
        return False

    @task(
        name=bound_stage.stage.name,
        task_run_name=f"{bound_stage.label} {bound_stage.fingerprint[:8]}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=policy.count,
        retry_delay_seconds=policy.delay_seconds,
        retry_condition_fn=should_retry,
    )
    def run_or_load_stage() -> Any:
        with BackgroundListener(
            PrefectStageReporter(bound_stage.label), f"the Prefect page for {bound_stage.label}"
        ) as reporter:
            artifact, was_stored = bound_stage.run_or_load(
                lambda *progress_fields: reporter(
                    Event("progress", bound_stage.label, None, 0.0, *progress_fields)
                )
            )
            if not was_stored:
                reporter(Event("done", bound_stage.label, artifact))
        if was_stored:
            return Completed(
                name="Cached", message=f"{artifact.name} was already in the store", data=artifact
            )
        return artifact

    state = run_or_load_stage(return_state=True)
    artifact = state.result()
    assert isinstance(artifact, Artifact)
    return artifact
