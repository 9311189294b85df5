"""Run again from run.json into an empty store, and compare each stage as its class demands.

The class of a stage is the determinism that it declares: exact, machine or statistical.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Annotated, Any, TypedDict

from cyclopts import Parameter

from hallmark.flows.commands.flow_execution import call_flow_and_get_run, start_prefect_and_progress
from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.corpus_additions import list_corpus_runs
from hallmark.flows.replay_report import ArtifactComparison, ReplayReport
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import (
    Record,
    Run,
    check_not_purged,
    find_artifact,
    open_run,
    open_store,
)
from hallmark.flows.version_declarations import (
    VersionChange,
    build_provisional_records,
    declare_equivalent_versions,
    find_version_changes,
)
from hallmark.tasks.audits.judging.previous_comparison import compare_with_previous
from hallmark.tasks.contract import (
    EQUIVALENT_VERSIONS_FOLDER,
    PURGED_DOCUMENTS_FILE,
    Artifact,
    EquivalentVersion,
    HallmarkError,
    Store,
    UsageError,
)


class ReplayResult(TypedDict):
    """The result of the command."""

    replays: list[ReplayReport]
    passed: bool
    declared: list[dict[str, Any]]
    """The versions of libraries that were declared equal, as the store records them."""


#: The flows of ``hallmark.flows.pipeline`` that produce a corpus or a model.
REPLAYABLE_FLOWS = ("pipeline", "corpus", "pretrain", "finetune")

#: Verdicts on stages that differ for a known reason and so do not fail the replay.
UNJUDGED_VERDICTS = ("other machine", "other inputs")


def replay(
    *runs: str,
    declare_equivalent: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    target_store: str | None = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a run from its run.json in a new store, and compare each artifact's hash with the
    original.

    Ends with exit code 1 if a stage differs.

    Parameters
    ----------
    runs
        Ids of runs, or "latest": the newest run that produced a corpus; by default latest.
    declare_equivalent
        Declare the installed patch releases of libraries equal to those that the runs used, if
        every stage of each replay has the same content. The store then reuses the artifacts of
        the earlier versions. It needs at least two runs of different configs.
    target_store
        An empty store for the results of one run; by default a temporary folder, deleted
        afterwards.
    """

    def open_runs() -> list[Run]:
        names = runs or ("latest",)
        if target_store is not None and len(names) > 1:
            raise UsageError(
                f"--target-store accepts only one run, but {len(names)} runs were specified; "
                "replay each run with its own store, or remove the option"
            )
        opened_runs = [open_run(name, store, stage="ingest") for name in names]
        return [*{run.id: run for run in opened_runs}.values()]

    def find_changes() -> list[VersionChange]:
        return find_version_changes(open_runs()) if declare_equivalent else []

    def check_arguments() -> None:
        open_runs()
        find_changes()

    with start_prefect_and_progress(check_arguments):
        opened_runs, changes = open_runs(), find_changes()
        records = build_provisional_records(opened_runs, changes)
        reports = [replay_run(run, target_store, records) for run in opened_runs]
    result: ReplayResult = {
        "replays": reports,
        "passed": all(report["passed"] for report in reports),
        "declared": [],
    }
    problem = None
    if declare_equivalent:
        try:
            records = declare_equivalent_versions(opened_runs, changes, reports)
            result["declared"] = [record.model_dump() for record in records]
        except HallmarkError as error:
            problem = error
    print_result(result, as_json, render_replays)
    if problem is not None:
        raise problem
    if not result["passed"]:
        raise SystemExit(1)


def replay_run(
    run: Run,
    target_uri: str | None = None,
    provisional_records: Sequence[EquivalentVersion] = (),
) -> ReplayReport:
    """Execute a completed run again and compare every stage.

    ``exact`` stages must have the same content digest. ``machine`` stages must have it on the same
    machine with the same library versions; a difference elsewhere does not fail the replay.
    ``statistical`` stages must have findings, or scores, whose intervals overlap. A stage whose
    inputs differ (such as the card of a model that was trained on a GPU) does not fail the replay
    either, because its inputs are compared themselves.

    Args:
        run: The run to replay.
        target_uri: An empty store; None for a temporary folder.
        provisional_records: Versions that count as equal in that store, besides those of the store
            of the run.

    Raises:
        UsageError: If the run cannot be replayed or the target store is not empty.
    """
    if run.status != "completed":
        raise UsageError(f"run {run.id} is {run.status}; only completed runs can be replayed")
    _check_flow_is_replayable(run)
    original_artifacts = run.artifacts  # opened first, so that a missing one fails before the work
    earlier_artifacts = [
        artifact
        for earlier_run in list_corpus_runs(run)[:-1]
        for artifact in earlier_run.artifacts.values()
    ]
    check_not_purged(
        f"run {run.id} cannot be replayed", [*earlier_artifacts, *original_artifacts.values()]
    )
    temporary_folder = None
    if target_uri is None:
        temporary_folder = target_uri = tempfile.mkdtemp(prefix="hallmark-replay-")
    target_store = open_store(target_uri)
    if target_store.list_folder_names("artifacts"):
        raise UsageError(
            f"the store {target_uri} already contains artifacts; choose an empty store with "
            "--target-store"
        )
    target_location = str(target_store.root_folder or target_store.uri)  # absolute
    try:
        copy_store_secret(run.store, target_store)
        copy_equivalent_versions(run.store, target_store, provisional_records)
        target_store.put(
            PURGED_DOCUMENTS_FILE,
            run.store.get(PURGED_DOCUMENTS_FILE) or b'{"documents": {}, "unfinished": []}',
        )
        replayed_run = call_flow_and_get_run(lambda: _rerun_flow_and_get_id(run, target_location))
        replayed_artifacts = replayed_run.artifacts
        stage_verdicts = [
            _compare_artifacts(label, original, replayed_artifacts.get(label), run, replayed_run)
            for label, original in original_artifacts.items()
        ]
    finally:
        if temporary_folder is not None:
            shutil.rmtree(temporary_folder, ignore_errors=True)
    return {
        "run": run.id,
        "replay": replayed_run.id,
        "store": None if temporary_folder else target_uri,
        "stages": stage_verdicts,
        "passed": all(
            row["verdict"] in ("equal", "within intervals", *UNJUDGED_VERDICTS)
            for row in stage_verdicts
        ),
    }


def _check_flow_is_replayable(run: Run) -> None:
    """Raise UsageError if runs of this flow cannot be replayed."""
    if run.flow == "audit":
        raise UsageError(
            f"run {run.id} only audited {run.audited_checkpoint}; replay the run that trained the "
            "checkpoint, or audit the checkpoint again"
        )
    if run.flow == "prove":
        arm_runs = ", ".join(f"{arm} {run_id}" for arm, run_id in run.record["arms"].items())
        raise UsageError(
            f"run {run.id} compared other runs; replay those runs ({arm_runs}), then run hallmark "
            "prove again"
        )
    if run.flow not in REPLAYABLE_FLOWS:
        raise UsageError(
            f"run {run.id} was started by the {run.flow!r:.40} flow, but only runs of these flows "
            f"can be replayed: {', '.join(REPLAYABLE_FLOWS)}; hallmark status {run.id} shows the "
            "command that started it"
        )


def copy_store_secret(source_store: Store, target_store: Store) -> None:
    """Copy the secret of a store, which keys the hashes in ledgers, so that these can be equal.

    Raises:
        UsageError: If the target store has another secret.
    """
    target_store.set_secret_if_absent(source_store.secret)
    if target_store.secret != source_store.secret:
        raise UsageError(
            f"the store {target_store.uri} already has a secret key for the hashes in its ledgers, "
            "so the hashes would differ; choose an empty store with --target-store"
        )


def copy_equivalent_versions(
    source_store: Store, target_store: Store, provisional_records: Sequence[EquivalentVersion]
) -> None:
    """Copy the records of equal versions, so that fingerprints are those of the run, and add some.

    Nothing is reused because of them, since the target store has no artifacts.
    """
    for key in source_store.list_keys(EQUIVALENT_VERSIONS_FOLDER):
        target_store.put(key, source_store.get(key) or b"")
    for record in provisional_records:
        target_store.put(record.key, record.to_json())


def _rerun_flow_and_get_id(run: Run, target_uri: str) -> str:
    from hallmark.flows.flow_registry import get_flow
    from hallmark.tasks.corpus.plant_canaries import plant_canaries

    def execute(request: RunRequest) -> str:
        run_id: str = get_flow(request.flow)(**request.parameters)
        return run_id

    record: Record = run.record
    if run.request is None:
        raise UsageError(
            f"the run.json of run {run.id} contains no request, so the run cannot be repeated; run "
            "its config again"
        )
    # The new store lacks the run that audited the previous release.
    policy = {**run.get_settings("policy"), "previous": None}
    config = {**record["config"], "earlier_run": None, "policy": policy}
    request = run.request.with_changes(config=config, overrides=(), store=target_uri)
    if request.flow == "finetune":
        checkpoint_name = run["finetune"].get_input_name("checkpoint")
        if (checkpoint := run.store.find_artifact(*checkpoint_name.split("/"))) is None:
            raise UsageError(
                f"run {run.id} fine-tuned {checkpoint_name}, which is not in the store "
                f"{run.store.uri}; fine-tune the model again"
            )
        return execute(request.with_changes(checkpoint=str(checkpoint.fetch_directory())))
    for earlier_run in list_corpus_runs(run)[:-1]:  # first rebuild the corpora that it extends
        earlier_config = {**earlier_run.record["config"], "earlier_run": config["earlier_run"]}
        with chdir(earlier_run.working_folder):
            earlier_request = RunRequest(
                flow="pipeline",
                config=earlier_config,
                store=target_uri,
                until=plant_canaries.name,
            )
            config["earlier_run"] = execute(earlier_request)
    if "pretrain" in run.stages and (
        start_name := run["pretrain"].find_input_name("start_checkpoint")
    ):
        start_folder = str(find_artifact(run.store, start_name).fetch_directory())
        request = request.with_changes(start=start_folder)
    with chdir(run.working_folder):
        return execute(request.with_changes(config=config))


def _compare_artifacts(
    label: str, original: Artifact, replayed: Artifact | None, run: Run, replayed_run: Run
) -> ArtifactComparison:
    verdict = _judge_replayed_artifact(original, replayed, run, replayed_run)
    return {
        "label": label,
        "determinism": original.manifest["determinism"],
        "original_digest": original.content_digest,
        "replayed_digest": replayed.content_digest if replayed else None,
        "differences": _list_differences(original, replayed)
        if replayed and verdict != "equal"
        else [],
        "verdict": verdict,
    }


def _judge_replayed_artifact(
    original: Artifact, replayed: Artifact | None, run: Run, replayed_run: Run
) -> str:
    if replayed is None:
        # The new store lacks the previous release, so nothing is compared with it.
        return "other inputs" if original.stage == compare_with_previous.name else "missing"
    if original.content_digest == replayed.content_digest:
        return "equal"
    determinism = original.manifest["determinism"]
    if determinism == "machine" and not _has_same_libraries_and_platform(
        run, replayed_run, original, replayed
    ):
        return "other machine"
    if determinism == "statistical":
        return "within intervals" if _has_overlapping_intervals(original, replayed) else "differs"
    if original.manifest["parts"]["inputs"] != replayed.manifest["parts"]["inputs"]:
        return "other inputs"
    return "differs"


def _list_differences(original: Artifact, replayed: Artifact) -> list[str]:
    """List the tables and files that differ, and which parts of the fingerprint changed."""
    differences = []
    for group in ("tables", "files"):
        original_entries, replayed_entries = original.manifest[group], replayed.manifest[group]
        for name in sorted(original_entries.keys() | replayed_entries.keys()):
            if original_entries.get(name, {}).get("sha256") != replayed_entries.get(name, {}).get(
                "sha256"
            ):
                differences.append(f"{group[:-1]} {name}")
    for part in ("code", "config", "libraries", "external"):
        original_entries, replayed_entries = (
            original.manifest["parts"].get(part),
            replayed.manifest["parts"].get(part),
        )
        if original_entries != replayed_entries:
            differences.append(f"{part} changed")
    return differences


def _has_same_libraries_and_platform(
    run: Run, replayed_run: Run, original: Artifact, replayed: Artifact
) -> bool:
    if original.manifest["parts"]["libraries"] != replayed.manifest["parts"]["libraries"]:
        return False
    return bool(run.record["platform"] == replayed_run.record["platform"])


#: Tables with intervals, and the columns that identify a row in them.
FIGURE_KEY_COLUMNS = {
    "findings": ("finding",),
    "scores": ("system", "metric", "slice"),
}


def _has_overlapping_intervals(original: Artifact, replayed: Artifact) -> bool:
    """Return whether the same rows exist in both and their intervals overlap."""
    if set(original.tables) != set(replayed.tables):
        return False
    table_name = next((name for name in FIGURE_KEY_COLUMNS if name in original.tables), None)
    if table_name is None:
        return True
    key_columns = FIGURE_KEY_COLUMNS[table_name]
    replayed_rows = {
        tuple(row[key] for key in key_columns): row
        for row in replayed[table_name].read().to_pylist()
    }
    for row in original[table_name].read().to_pylist():
        replayed_row = replayed_rows.get(tuple(row[key] for key in key_columns))
        if replayed_row is None or (row["value"] is None) != (replayed_row["value"] is None):
            return False
        if None in (row["low"], replayed_row["low"]):  # no interval to compare
            continue
        if row["high"] < replayed_row["low"] or replayed_row["high"] < row["low"]:
            return False
    return True


def render_replays(result: ReplayResult) -> str:
    lines = [render_replay(report) for report in result["replays"]]
    lines += [
        f"declared: {EquivalentVersion.model_validate(record)}" for record in result["declared"]
    ]
    return "\n".join(lines)


def render_replay(report: ReplayReport) -> str:
    lines = [f"replay of {report['run']}"]
    for row in report["stages"]:
        details = f"  ({', '.join(row['differences'])})" if row["differences"] else ""
        lines.append(f"{row['label']:<20} {row['determinism']:<12} {row['verdict']}{details}")
    unjudged = [row["label"] for row in report["stages"] if row["verdict"] in UNJUDGED_VERDICTS]
    summary = "passed: every stage is as reproducible as its determinism class requires"
    if unjudged:
        summary += f"; not judged: {', '.join(unjudged)}"
    lines.append(
        summary
        if report["passed"]
        else "FAILED: some stages are missing or have results that differ from the original run"
    )
    if report["store"]:
        lines.append(f"replay store: {Path(report['store'])}")
    return "\n".join(lines)
