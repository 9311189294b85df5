"""Prepare a run: resolve its config and store, open its session, and keep run.json up to date.

run.json is rewritten after every stage, so that it shows how far a killed run got.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hallmark.flows.checkpoint_resolution import find_checkpoint_in_folder, resolve_checkpoint
from hallmark.flows.config_secrets import check_no_secrets, check_no_secrets_in_overrides
from hallmark.flows.corpus_additions import check_preferred_sources_exist, resolve_earlier_run_id
from hallmark.flows.credentials import (
    export_credentials,
    export_credentials_of_tree,
    redactor,
)
from hallmark.flows.deployment_checks import (
    check_checkpoint_allowed,
    check_settings_allowed,
    check_store_allowed,
)
from hallmark.flows.prefect_server import wait_for_prefect_server
from hallmark.flows.reporters.reporting import check_reporters_installed, open_reporters
from hallmark.flows.run_liveness import lease_run
from hallmark.flows.run_order import assign_run_number
from hallmark.flows.run_progress import RENEWAL_SECONDS, RunProgressListener
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import (
    RUN_FORMAT,
    Record,
    Run,
    check_not_purged,
    find_artifact,
    open_store,
    resolve_store_uri,
)
from hallmark.flows.site import try_build_site
from hallmark.flows.store_concurrency import occupy_store
from hallmark.flows.store_use import wait_for_exclusive_uses
from hallmark.flows.training_stop import TrainingStopReader
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Store,
    UsageError,
    format_closest_name_hint,
    format_current_time,
    make_circular_lineage_error,
    record_store_format,
)
from hallmark.tasks.corpus.reading.file_digests import forget_file_digests

if TYPE_CHECKING:
    from hallmark.flows.config import Config
    from hallmark.flows.reporter_settings import ReporterName, ReportersConfig
    from hallmark.flows.retry_settings import RetryConfig
    from hallmark.tasks.contract import Event


@dataclass
class Frontend:
    """The callbacks through which runs of this process report.

    The command line and served deployments set them.
    """

    on_event: Callable[[Event], None] = lambda event: None
    #: Called with a run that starts.
    on_run_start: Callable[[Run], None] = lambda run: None
    #: Called with a run that ended, also with an error.
    on_run_end: Callable[[Run], None] = lambda run: None
    #: Called with the name of a trial of a study and its outcome.
    on_trial_outcome: Callable[[str, Any], None] = lambda trial, outcome: None
    runs_by_id: dict[str, Run] = field(default_factory=dict)
    #: Seconds to wait at the end of a run for a Prefect server that does not answer. 0 for the
    #: server of one command, which nobody restarts.
    server_wait_seconds: float = 300.0


frontend = Frontend()

#: The sections and settings that every flow uses.
SETTINGS_OF_ALL_FLOWS = (
    "name",
    "store",
    "workers",
    "mapper",
    "report_to",
    "reporters",
    "credentials",
    "retry",
)

#: The sections and settings that a flow on an existing checkpoint uses; the flow ``audit`` also
#: uses the sections of all audits.
SETTINGS_BY_CHECKPOINT_FLOW = {
    "audit": (
        *SETTINGS_OF_ALL_FLOWS,
        "identities.lexicons",
        "respond",
        "score",
        "trace",
        "policy",
        "attention_maps",
        "score_samples",
        "answers",
        "model_card",
    ),
    "finetune": (
        *SETTINGS_OF_ALL_FLOWS,
        "finetune",
        "task_card",
    ),
}


def generate_flow_run_name() -> str:
    """Generate the id of a run, also the name of its Prefect flow run.

    Ids sort by time: date and second, then the fraction of the second in 1/65,536.
    """
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{(now.microsecond << 16) // 1_000_000:04x}"


class SessionSettings(Protocol):
    """The part of a config that a session needs."""

    @property
    def name(self) -> str: ...
    @property
    def mapper(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def report_to(self) -> Sequence[ReporterName]: ...
    @property
    def reporters(self) -> ReportersConfig | None: ...
    @property
    def retry(self) -> RetryConfig: ...
    def model_dump(self, *, mode: str) -> Record: ...


class ResolvedRequest(NamedTuple):
    """The config and the store that a request means.

    Attributes:
        config: The config.
        config_file: The file or the name of the config, None if it was given as a tree.
        store: The opened store.
    """

    config: Config
    config_file: str | None
    store: Store


def resolve_request(request: RunRequest) -> ResolvedRequest:
    """Resolve and check a request, before its first stage.

    Without a config, a checkpoint gets that of its run (one without a run: the demo's settings
    without its descriptions). If a config for a checkpoint describes no corpus, its missing
    sections come from the checkpoint's run.

    Raises:
        UsageError: If a parameter of the request is wrong.
    """
    from hallmark.flows.config import (
        fill_missing_sections,
        load_config,
        read_answers,
        read_tree_with_rebased_paths,
    )
    from hallmark.flows.config_files import find_text_override, get_config_folder, read_config_tree
    from hallmark.flows.policy_rule_checks import check_policy_rules
    from hallmark.flows.previous_release import pin_previous_run

    config, overrides, store = request.config, request.overrides, request.store
    until, checkpoint, start = request.until, request.checkpoint, request.start
    check_no_secrets_in_overrides(overrides)
    check_no_secrets({"config": config, "checkpoint": checkpoint, "start": start}, "")
    check_overrides_used(request.flow, overrides)
    if config is None and checkpoint is None:
        config = "demo"
    for setting, name in (("checkpoint", checkpoint), ("start", start)):
        if name is not None:
            check_checkpoint_allowed(name, setting)
    checkpoint_names = [
        name
        for name in (checkpoint, start)
        if name is not None and not find_checkpoint_in_folder(name)
    ]
    config_file = config if isinstance(config, str) else None
    if config_file and config_file.endswith(".toml"):
        config_file = os.path.abspath(config_file)  # run.json may be read in another folder
    requested_stores = (
        config.get("store") if isinstance(config, dict) else None,
        find_text_override("store", overrides),
    )
    for name in requested_stores:
        if isinstance(name, str):
            check_store_allowed(name)
    recorded_config = None
    if checkpoint is not None:
        config_tree: dict[str, Any] = (
            read_config_tree(config) if isinstance(config, str) else config
        ) or {}
        if "ingest" not in config_tree:
            export_credentials_of_tree(config_tree, overrides)
            store = (
                store
                or find_text_override("store", overrides)
                or resolve_store_uri(
                    config_file if get_config_folder(config_file) else config_tree.get("store")
                )
            )
            recorded_tree = _read_config_tree_for_checkpoint(
                _open_store(store, checkpoint_names), checkpoint
            )
            if isinstance(config, str):
                config_tree = read_tree_with_rebased_paths(config, overrides, recorded_tree)
            recorded_config, config = (
                load_config(recorded_tree),
                fill_missing_sections(config_tree, recorded_tree),
            )
    assert config is not None
    settings = load_config(config, overrides, config_file)
    check_settings_allowed(settings, recorded_config)
    export_credentials(settings.credentials)
    settings = read_answers(settings)
    check_last_stage(until, settings)
    store_name = store or settings.store
    check_store_allowed(store_name)
    check_policy_rules(settings, resolve_store_uri(store_name))
    if checkpoint is None and start is None:
        check_weat_layer(settings)
    check_reporters_installed(settings.report_to)
    opened_store = _open_store(store_name, checkpoint_names)
    settings = settings.model_copy(
        update={"policy": pin_previous_run(opened_store, settings.policy)}
    )
    if checkpoint is not None:
        resolve_checkpoint(opened_store, checkpoint)
    else:  # record the id, because "latest" changes
        settings = settings.model_copy(
            update={"earlier_run": resolve_earlier_run_id(opened_store, settings)}
        )
        if config_file:  # a recorded tree passed this check when it was new
            check_preferred_sources_exist(opened_store, settings)
    if start is not None:
        check_start_checkpoint(start, settings, until, opened_store)
    return ResolvedRequest(settings, config_file, opened_store)


def _open_store(store_name: str | None, checkpoint_names: Sequence[str]) -> Store:
    """Open the store of a flow, and create it if it is missing.

    It is not created if checkpoints are looked up in it, because a mistyped name would leave an
    empty store.
    """
    check_store_allowed(store_name)
    try:
        return open_store(store_name, create=not checkpoint_names)
    except UsageError as error:
        if not checkpoint_names:
            raise
        raise UsageError(
            f"there is no checkpoint {checkpoint_names[0]!r}: it is not a folder, and {error}"
        ) from error


def check_last_stage(last_stage: str | None, settings: Config) -> None:
    """Check that a run of this config has the stage after which it should stop.

    Raises:
        UsageError: If there is no such stage, or this config skips it.
    """
    from hallmark.flows.config import STAGE_SECTIONS, get_skip_reason_by_stage

    if last_stage is not None and (reason := get_skip_reason_by_stage(settings).get(last_stage)):
        raise UsageError(f"this config has no stage {last_stage!r} to stop after: {reason}")

    if last_stage is not None and last_stage not in STAGE_SECTIONS:
        raise UsageError(
            f"there is no stage {last_stage!r} to stop after"
            f"{format_closest_name_hint(last_stage, STAGE_SECTIONS)}; "
            f"choose one of: {', '.join(STAGE_SECTIONS)}"
        )


def check_overrides_used(flow_name: str, overrides: Sequence[str]) -> None:
    """Check that a flow on an existing checkpoint uses the settings that overrides change.

    Raises:
        UsageError: If it does not use one of them.
    """
    from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS

    if flow_name not in SETTINGS_BY_CHECKPOINT_FLOW:
        return
    used_settings = [*SETTINGS_BY_CHECKPOINT_FLOW[flow_name]]
    if flow_name == "audit":
        used_settings += [f"audit_{audit}" for audit in AUDIT_DESCRIPTIONS]
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(
            f"{key}.".startswith(f"{setting}.") or f"{setting}.".startswith(f"{key}.")
            for setting in used_settings
        ):
            raise UsageError(
                f"--set {override}: {flow_name} builds no corpus and pretrains no model, so it "
                "does not use this setting; remove the setting, or use one of those that apply: "
                f"{', '.join(used_settings)}"
            )


def check_weat_layer(settings: Config) -> None:
    """Raise UsageError if audit_weat.layer is a layer that the model will not have."""
    layer: int | None = getattr(settings, "audit_weat").layer  # noqa: B009
    depth = settings.pretrain.model.n_layers
    if layer is not None and not -depth <= layer <= depth:
        raise UsageError(
            f"audit_weat.layer is {layer}, but pretrain.model.n_layers is {depth}; choose a layer "
            f"from 1 to {depth}, or from -1 (the last) to -{depth}, or remove the setting"
        )


def _read_config_tree_for_checkpoint(store: Store, checkpoint_name: str) -> dict[str, Any]:
    """Read the config with which a checkpoint is audited by default."""
    from hallmark.flows.config import load_config, rebase_config_paths

    source_run = resolve_checkpoint(store, checkpoint_name).source_run
    if source_run is not None:
        config_record: dict[str, Any] = rebase_config_paths(
            source_run.record["config"], source_run.working_folder
        )
        return config_record
    config = load_config("demo").model_dump(mode="json")
    title = f"Audit of {Path(checkpoint_name).name or checkpoint_name}"
    return config | {
        "name": "audit",
        "identities": {},
        "datasheet": {},
        "model_card": {"title": title},
    }


def check_start_checkpoint(
    checkpoint_name: str, settings: Config, last_stage: str | None, store: Store
) -> Artifact:
    """Resolve the checkpoint from which training continues, before the corpus is built.

    Raises:
        UsageError: If training cannot continue from it with these settings.
        HallmarkError: If documents that it was trained on were purged.
    """
    from hallmark.tasks.training.pretrain import read_start_model_settings

    if last_stage == "train_tokenizer":
        raise UsageError(
            "a run that continues from a checkpoint uses the checkpoint's tokenizer and has no "
            "train_tokenizer stage; stop after another stage"
        )
    checkpoint = resolve_checkpoint(store, checkpoint_name).checkpoint
    check_not_purged(
        f"training cannot continue from {checkpoint_name}", _iter_packed_corpora(store, checkpoint)
    )
    try:
        read_start_model_settings(checkpoint, settings.pretrain, {"context": settings.pack.context})
    except HallmarkError as error:
        raise UsageError(f"--start-checkpoint {checkpoint_name}: {error}") from error
    return checkpoint


def _iter_packed_corpora(store: Store, checkpoint: Artifact) -> Iterator[Artifact]:
    """Yield the packed corpora of a checkpoint and of the checkpoints that it continues."""
    visited_names = set[str]()
    while packed_name := checkpoint.find_input_name("packed_corpus"):
        if checkpoint.name in visited_names:
            raise make_circular_lineage_error(checkpoint.name)
        visited_names.add(checkpoint.name)
        yield find_artifact(store, packed_name)
        start_name = checkpoint.find_input_name("start_checkpoint")
        if start_name is None:
            return
        checkpoint = find_artifact(store, start_name)


@contextmanager
def start_run(request: RunRequest) -> Iterator[Run]:
    """Resolve a request, open a session, and keep run.json up to date.

    The site is rebuilt at the end.
    """
    settings, config_file, opened_store = resolve_request(request)
    if config_file:
        request = request.with_changes(config=config_file)
    if request.hash_sources:
        forget_file_digests(opened_store)
    with (
        occupy_store(opened_store),
        record_run(request.flow, settings, opened_store, request) as run,
    ):
        yield run
    run.site_index = try_build_site(opened_store)


@contextmanager
def record_run(
    flow_name: str,
    settings: SessionSettings,
    store: Store,
    request: RunRequest | None = None,
) -> Iterator[Run]:
    """Open a session for a flow, and keep its run.json up to date.

    Args:
        flow_name: The flow.
        settings: The config.
        store: The store.
        request: What was asked for; None for flows that only a command of their own starts.
    """
    from prefect.context import FlowRunContext
    from prefect.runtime import flow_run

    from hallmark.flows.checkpoint_events import CheckpointAnnouncer
    from hallmark.tasks.contract import (
        BackgroundListener,
        Event,
        LastStageReached,
        Session,
        make_mapper,
        open_session,
    )

    record_store_format(store)
    record: Record = {
        "format": RUN_FORMAT,
        "run": flow_run.name or generate_flow_run_name(),
        "flow": flow_name,
        "config_name": settings.name,
        "request": request.to_record() if request else None,
        "config": settings.model_dump(mode="json"),
        "folder": os.getcwd(),  # relative paths start from it
        "checkpoint": request and (request.checkpoint or request.start),
        "status": "running",
        "started": format_current_time(),
        "ended": None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": describe_machine(),
        "checkpoints": [],
        "stages": [],
        "error": None,
    }
    run = frontend.runs_by_id[record["run"]] = Run(store, record)

    progress_listener = RunProgressListener(store, run.id)
    listeners = [
        BackgroundListener(frontend.on_event, "the terminal", idle_interval=5.0),
        BackgroundListener(progress_listener, "the progress file", idle_interval=RENEWAL_SECONDS),
    ]
    if FlowRunContext.get() is not None:
        listeners.append(BackgroundListener(CheckpointAnnouncer(run), "Prefect's event"))

    def handle_event(event: Event) -> None:
        if event.kind in ("done", "cached") and event.artifact:
            record["stages"].append(_build_stage_entry(event, event.artifact))
            run.save()
        if event.kind == "child" and event.artifact:
            # Others can audit the checkpoint by its step while training continues.
            entry = _build_checkpoint_entry(event.label, event.artifact)
            if entry not in record["checkpoints"]:  # a repeated stage commits it again
                record["checkpoints"].append(entry)
                run.save()
        for listener in listeners:
            listener(event)
        report(event)

    mapper = make_mapper(settings.mapper, settings.workers)
    with ExitStack() as signs_of_life:
        signs_of_life.enter_context(lease_run(store, run.id))
        signs_of_life.callback(progress_listener.remove_file)  # after run.json records the end
        progress_listener.write_file()
        run.save()
        assign_run_number(store, run.id)  # now others list the run, and read its run.json
        # A run that waits for long stays alive for other hosts.
        wait_for_exclusive_uses(store, lambda: progress_listener(Event("silence", "")))
        frontend.on_run_start(run)
        signs_of_life.callback(frontend.on_run_end, run)
        report = signs_of_life.enter_context(
            open_reporters(settings.report_to, settings.reporters, run)
        )
        try:
            with ExitStack() as stack:
                for listener in listeners:
                    stack.enter_context(listener)
                session = Session(
                    store,
                    mapper,
                    handle_event,
                    request.until if request else None,
                    find_stop_reason=TrainingStopReader(store, run.id).find_stop_reason,
                    get_retry_policy=settings.retry.get_policy,
                )
                stack.enter_context(open_session(session))
                yield run
        except LastStageReached:  # the run is complete
            pass
        except BaseException as error:
            with suppress(HallmarkError, OSError):  # on a full disk, report the first error
                _record_error(run, error)
            if isinstance(error, Exception):
                _wait_for_prefect_server(run)
            raise
        run.update_record(status="completed", ended=format_current_time(), error=None)
    _wait_for_prefect_server(run)


def _record_error(run: Run, error: BaseException) -> None:
    """Record in run.json that an error ended a run, unless its end is recorded already."""
    from prefect.exceptions import Pause, TerminationSignal

    if run.record["status"] != "running":  # recorded by ``Run.record_stop``
        return
    match error:
        case KeyboardInterrupt():
            status, reason = "cancelled", "stopped by SIGINT (Ctrl-C)"
        case TerminationSignal():
            status, reason = "cancelled", f"stopped by {signal.Signals(error.signal).name}"
        case Pause():
            from hallmark.flows.dead_run_automation import emit_suspended_event

            status, reason = (
                "interrupted",
                "paused in Prefect, which will continue it as another run",
            )
            emit_suspended_event()
        case _:
            status, reason = "failed", redactor.redact(str(error).split("\n")[0])
    run.update_record(status=status, ended=format_current_time(), error=reason)


def _wait_for_prefect_server(run: Run) -> None:
    """Wait for a server that does not answer, so that Prefect can report how a flow run ended."""
    from prefect.runtime import flow_run

    if flow_run.id is not None and not wait_for_prefect_server(
        run.id, run.record["status"], frontend.server_wait_seconds
    ):
        frontend.server_wait_seconds = 0.0  # the next run of this process does not wait again


def _build_stage_entry(event: Event, artifact: Artifact) -> Record:
    return {
        "label": event.label,
        "stage": artifact.stage,
        "fingerprint": artifact.fingerprint,
        "content": artifact.content_digest,
        "artifact": artifact.name,
        "cached": event.kind == "cached",
        "seconds": round(event.seconds, 3),
    }


def _build_checkpoint_entry(label: str, artifact: Artifact) -> Record:
    return {
        "label": label,
        "step": artifact.training_step,
        "artifact": artifact.name,
    }


def describe_machine() -> str:
    """Describe what determines the last bits of floating-point results on this machine.

    These are the system, the processor, the usable cores, and the number of threads if the
    environment limits it.
    """
    processor = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model_names = {
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        }
        processor = ", ".join(sorted(model_names)) or processor
    core_count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    # OMP_NUM_THREADS may list a number for each nesting level; the first one applies here.
    thread_settings = (
        os.environ.get(f"{name}_NUM_THREADS", "").partition(",")[0] for name in ("OMP", "MKL")
    )
    thread_limits = [
        count
        for count in map(int, filter(str.isdecimal, thread_settings))
        if 0 < count < (core_count or 1)
    ]
    threads_text = f", threads: {min(thread_limits)}" if thread_limits else ""
    return f"{platform.platform()}, {processor}, {core_count} cores{threads_text}"
