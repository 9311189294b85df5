"""Show the stages, artifacts and row counts of a run, and which stages are out of date."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hallmark.flows.audit_selection import format_selection_options
from hallmark.flows.commands.options import (
    JsonOption,
    StoreOption,
    format_single_line,
    print_result,
)
from hallmark.flows.commands.runs import (
    describe_current_stage,
    format_outcome,
    read_failed_audits,
    read_policy_fields,
)
from hallmark.flows.config import (
    fill_missing_sections,
    load_config,
    read_answers,
    read_tree_with_rebased_paths,
)
from hallmark.flows.config_files import find_text_override
from hallmark.flows.forecast.stage_plan import find_changed_keys
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import Run, is_same_store, open_run, resolve_store_uri
from hallmark.reports.purge_notices import iter_artifact_names
from hallmark.tasks.contract import (
    ACCOUNT_TERMS,
    STAGES,
    STALENESS_COMPONENTS,
    Artifact,
    EquivalentVersions,
    HallmarkError,
    StageConfig,
    map_store_reads,
)

Report = dict[str, Any]


def status(run: str = "latest", *, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a run's stages and artifacts, how many rows each stage kept and removed, and which
    stages are out of date.

    Parameters
    ----------
    run
        A run id, the start of one, or "latest": the newest run.
    """
    print_result(build_status_report(open_run(run, store)), as_json, render_status)


def build_status_report(run: Run) -> Report:
    """Build the report as a JSON value.

    ``stale_reasons`` of a stage lists why it would run again today.
    """
    current_folder, base_folder = os.getcwd(), run.working_folder
    with chdir(base_folder):
        recorded_folder = run.record.get("folder")
        return _build_report_without_folders(run) | {
            "folder": recorded_folder,
            "current_folder": current_folder,
            "base_folder": base_folder,
        }


def _build_report_without_folders(run: Run) -> Report:
    from hallmark.flows import study_config
    from hallmark.flows.audit_execution import map_labels_to_settings
    from hallmark.flows.flow_registry import register_all_stages

    register_all_stages()

    current = _load_current_config(run)
    settings_by_stage = map_labels_to_settings(current.config) if current.config else {}
    stages: list[Report] = []
    # The label of a stage that would run again, by artifact name.
    stale_label_by_artifact: dict[str, str] = {}
    equivalent_versions = EquivalentVersions(run.store)
    opened_stages = map_store_reads(run.store, partial(_open_stage, run), run.stages)
    for (label, entry), opened_stage in zip(run.stages.items(), opened_stages, strict=True):
        try:
            reasons = _find_stale_reasons(
                opened_stage.get_artifact(),
                settings_by_stage.get(label),
                run,
                equivalent_versions,
                stale_label_by_artifact,
            )
            contents = opened_stage.contents
        except HallmarkError as error:  # removed or damaged; still report the other stages
            contents, reasons = _describe_artifact_contents(None), [str(error)]
        if reasons:
            stale_label_by_artifact[entry["artifact"]] = label
        stages.append({**entry, **contents, "stale_reasons": reasons})
    if run.flow in STUDY_FLOWS and current.problem is None:
        study_command = study_config.build_study_command(run.record["config"])
    else:
        study_command = None
    record_keys = (
        "run",
        "flow",
        "config_name",
        "request",
        "checkpoint",
        "findings",
        "seeds",
        "started",
        "ended",
        "error",
    )
    record = run.current_record
    report = {key: record.get(key) for key in (*record_keys, "status")}
    report |= {"store": run.store.uri, "config_problem": current.problem}
    report["equivalent_versions"] = [
        str(record) for record in equivalent_versions.list_installed_records()
    ]
    configured_store = getattr(current.config, "store", None) if run.config_file else None
    overrides = run.request.overrides if run.request else ()
    configured_store = configured_store or find_text_override("store", overrides)
    store_location = str(run.store.root_folder or run.store.uri)
    report["store_must_be_named"] = not is_same_store(
        resolve_store_uri(configured_store), store_location
    )
    report |= read_policy_fields(run)
    report |= {
        "failed_audits": read_failed_audits(run),
        "current_stage": describe_current_stage(run),
        "checkpoints": _list_checkpoints(run),
    }
    return report | {"study_command": study_command, "stages": stages}


@dataclass(frozen=True)
class OpenedStage:
    """The artifact of a stage, or why it cannot be read.

    Attributes:
        contents: What the report says about the artifact.
        artifact: The artifact, or the error.
    """

    contents: Report
    artifact: Artifact | HallmarkError

    def get_artifact(self) -> Artifact:
        """Return the artifact; raise HallmarkError if it is missing or damaged."""
        if isinstance(self.artifact, HallmarkError):
            raise self.artifact
        return self.artifact


def _open_stage(run: Run, label: str) -> OpenedStage:
    try:
        artifact = run[label]
        return OpenedStage(_describe_artifact_contents(artifact), artifact)
    except HallmarkError as error:
        return OpenedStage(_describe_artifact_contents(None), error)


def _list_checkpoints(run: Run) -> list[Report]:
    """List the checkpoints of a training, also while it continues; none if it was removed."""
    try:
        return run.list_committed_checkpoints()
    except HallmarkError:
        return []


class CurrentConfig(NamedTuple):
    """Hold the config that the command of a run would use today.

    Attributes:
        config: The config; None if it cannot be read.
        problem: Why it cannot be read; None if it can.
    """

    config: StageConfig | None
    problem: str | None


def _load_current_config(run: Run) -> CurrentConfig:
    """Load the config that the command of the run would use today.

    It is the recorded config if the run was not started from a config file.
    """
    if run.flow in STUDY_FLOWS:
        from hallmark.flows.study_config import parse_study_config

        try:
            return CurrentConfig(parse_study_config(run.record["config"]), None)
        except HallmarkError as error:
            return CurrentConfig(None, str(error))
    config_file = run.config_file
    if config_file and ".." in Path(config_file).parts:  # Hallmark never records such a path
        return CurrentConfig(
            None,
            f"run.json refers to {config_file!r}, but Hallmark does not read paths that contain "
            "'..'",
        )
    try:
        if not config_file or run.request is None:
            return CurrentConfig(load_config(run.record["config"]), None)
        overrides, recorded_tree = run.request.overrides, run.record["config"]
        config_tree = read_tree_with_rebased_paths(config_file, overrides, recorded_tree)
        config_tree = fill_missing_sections(config_tree, recorded_tree)
        config = load_config(config_tree, overrides, config_file)
        return CurrentConfig(read_answers(config), None)
    except HallmarkError as error:
        return CurrentConfig(None, str(error))


def _describe_artifact_contents(artifact: Artifact | None) -> Report:
    if artifact is None:
        empty_contents: Report = {"determinism": None, "tables": {}, "files": [], "accounts": []}
        empty_contents["purged"] = []
        return empty_contents | {"accounts_total": {}, "balanced": False}
    account_rows = artifact["accounts"].read().to_pylist() if "accounts" in artifact.tables else []
    totals: dict[str, dict[str, int]] = {}
    for account_row in account_rows:
        total = totals.setdefault(account_row["unit"], dict.fromkeys(ACCOUNT_TERMS, 0))
        for term in ACCOUNT_TERMS:
            total[term] += account_row[term]
    return {
        "determinism": artifact.manifest["determinism"],
        "tables": {name: table.row_count for name, table in artifact.tables.items()},
        "files": sorted(artifact.manifest["files"]),
        "purged": sorted(artifact.purge_time_by_doc_id),
        "accounts": account_rows,
        "accounts_total": totals,
        "balanced": all(
            term_counts["input"] + term_counts["added"]
            == sum(term_counts[term] for term in ACCOUNT_TERMS[2:])
            for term_counts in (*account_rows, *totals.values())
        ),
    }


def _find_stale_reasons(
    artifact: Artifact,
    config: StageConfig | None,
    run: Run,
    equivalent_versions: EquivalentVersions,
    stale_label_by_artifact: dict[str, str],
) -> list[str]:
    stage = STAGES.get(artifact.stage)
    if stage is None:
        return [f"the {artifact.stage!r} stage no longer exists"]
    code_digests, libraries, recorded_settings, recorded_digests = (
        artifact.manifest["parts"].get(component, {}) for component in STALENESS_COMPONENTS
    )
    reasons = [
        f"code: {name}" for name in find_changed_keys(code_digests, stage.compute_code_digests())
    ]
    library_versions = stage.read_library_versions()
    counted_versions = [
        equivalent_versions.replace_library_versions(versions, stage.name)
        for versions in (libraries, library_versions)
    ]
    for name in find_changed_keys(*counted_versions):
        reasons.append(f"library: {name} {libraries.get(name)} → {library_versions.get(name)}")
    if config is not None:
        current_settings = config.model_dump(mode="json")
        reasons += [
            f"config: {key}" for key in find_changed_keys(recorded_settings, current_settings)
        ]
        try:
            current_digests = stage.compute_external_digests(config, run.store)
            counted_digests = [
                equivalent_versions.replace_external_versions(digests, stage.name)
                for digests in (recorded_digests, current_digests)
            ]
            reasons += [f"external input: {name}" for name in find_changed_keys(*counted_digests)]
        except (HallmarkError, OSError) as error:
            reasons.append(f"external input: {error}")
    for input_name in iter_artifact_names(artifact.manifest["lineage"]):
        if stale_label := stale_label_by_artifact.get(input_name.partition("#")[0]):
            reasons.append(f"the input {stale_label} is stale")
    return reasons


#: Number of characters of a line of the report; a longer one is no name that Hallmark gave.
MAX_LINE_CHARACTERS = 10_000

#: Number of checkpoints whose steps are shown, the newest.
MAX_SHOWN_STEPS = 8

#: Flows that take a checkpoint; and the flow of a study with that of each of its trials.
CHECKPOINT_FLOWS, STUDY_FLOWS = ("audit", "finetune", "prove"), ("study", "trial")


def render_status(report: Report) -> str:
    """The report as text for a terminal."""
    checkpoint_prefix = f"{report['checkpoint']}, " if report["flow"] in CHECKPOINT_FLOWS else ""
    lines = [
        f"run {report['run']}  {report['flow']} of {checkpoint_prefix}config "
        f"{report['config_name']}: {format_outcome(report)}",
        f"store {report['store']}",
    ]
    if report["base_folder"] != report["current_folder"]:
        lines.append(
            f"relative paths are resolved against {report['folder']}, where the run was started"
        )
    elif report["folder"] not in (None, report["current_folder"]):
        lines.append(
            f"relative paths are resolved against the current folder, {report['current_folder']}, "
            f"because {report['folder']}, where the run was started, no longer exists"
        )
    lines.append("")
    width = max((len(stage["label"]) for stage in report["stages"]), default=5)
    for stage in report["stages"]:
        timing = "cached" if stage["cached"] else f"{stage['seconds']:.1f} s"
        lines.append(f"{stage['label']:<{width}}  {timing:>8}  {stage['artifact']}")
        contents = [f"{name} {rows:,}" for name, rows in stage["tables"].items()] + stage["files"]
        lines.append(f"{'':<{width}}            {', '.join(_truncate_names(contents))}")
        for unit, terms in stage["accounts_total"].items():
            formatted_terms = ", ".join(
                f"{term.replace('_', ' ')} {amount:,}" for term, amount in terms.items() if amount
            )
            verdict = "balanced" if stage["balanced"] else "NOT BALANCED"
            raw_prefix = "raw " if stage["stage"] == "ingest" and unit == "bytes" else ""
            lines.append(
                f"{'':<{width}}            {raw_prefix}{unit}: "
                f"{formatted_terms or 'nothing'} ({verdict})"
            )
        if purged_ids := stage["purged"]:
            lines.append(
                f"{'':<{width}}            purged: {', '.join(_truncate_names(purged_ids, 2))}"
            )
        lines += [f"{'':<{width}}            stale: {reason}" for reason in stage["stale_reasons"]]
    lines += [f"equal versions: {sentence}" for sentence in report["equivalent_versions"]]
    if checkpoints := report["checkpoints"]:
        lines += ["", _describe_checkpoints(report, [entry["step"] for entry in checkpoints])]
    lines += ["", _describe_next_step(report)]
    return "\n".join(format_single_line(line, MAX_LINE_CHARACTERS) for line in lines)


def _describe_checkpoints(report: Report, steps: Sequence[int]) -> str:
    """Name the steps of the checkpoints, and the command that audits the last one."""
    step_list = ", ".join(map(str, steps[-MAX_SHOWN_STEPS:]))
    label = "checkpoint at step" if len(steps) == 1 else "checkpoints at steps"
    if len(steps) > MAX_SHOWN_STEPS:
        label = f"{len(steps)} checkpoints, the last {MAX_SHOWN_STEPS} at steps"
    arguments = ["hallmark", "audit", f"{report['run']}@{steps[-1]}"]
    arguments += ["--store", report["store"]] if report["store_must_be_named"] else []
    return f"{label} {step_list}; audit one with: {shlex.join(arguments)}"


def _describe_next_step(report: Report) -> str:
    """Return one sentence that says what to do next."""
    has_stale_stages = any(stage["stale_reasons"] for stage in report["stages"])
    if report["config_problem"]:
        return (
            f"the run's config can no longer be read ({report['config_problem']}), so changed "
            "settings are not reported"
        )
    if report["status"] == "running":
        return "still running"
    experiment_arm = (report["request"] or {}).get("experiment_arm")
    if experiment_arm and (report["status"] != "completed" or has_stale_stages):
        return f"this run is the {experiment_arm}; repeat that command to continue the run"
    if report["status"] != "completed":
        return f"continue with: {_format_rerun_command(report)}"
    return (
        f"rerun stale stages with: {_format_rerun_command(report)}"
        if has_stale_stages
        else "all stages are up to date"
    )


def _format_rerun_command(report: Report) -> str:
    """Return the shell command that started the run."""
    request = RunRequest.from_record(report["request"]) if report["request"] else None
    if report.get("study_command"):
        arguments = report["study_command"]
    elif report["flow"] == "prove":
        base_run_id = (report["checkpoint"] or "latest").partition("@")[0]
        arguments = ["hallmark", "prove", base_run_id, *(report["findings"] or ())]
        arguments += ["--extra-seeds", f"{report['seeds']}"] if report["seeds"] is not None else []
    elif request is None:
        arguments = ["hallmark", "run", report["config_name"]]
    else:
        arguments = _format_request(request, report)
    needs_chdir, store = report["base_folder"] != report["current_folder"], report["store"]
    if needs_chdir and "://" not in store:
        store = os.path.abspath(store)
    arguments += ["--store", store] if report["store_must_be_named"] else []
    command = shlex.join(arguments)
    return f"cd {shlex.quote(report['base_folder'])} && {command}" if needs_chdir else command


def _format_request(request: RunRequest, report: Report) -> list[str]:
    """Return the command that makes a request, without its store.

    It names the checkpoint that the run used, because "latest" may mean another one today.
    """
    config_name = request.config if isinstance(request.config, str) else None
    if request.checkpoint is not None:
        arguments = ["hallmark", request.flow, report["checkpoint"]]
        arguments += format_selection_options(request.audits)
        arguments += ["--config", config_name] if config_name else []
    else:
        arguments = ["hallmark", "run", config_name or report["config_name"]]
        arguments += format_selection_options(request.audits)
    for override in request.overrides:
        arguments += ["--set", override]
    arguments += ["--until", request.until] if request.until else []
    arguments += ["--start-checkpoint", report["checkpoint"]] if request.start else []
    arguments += ["--hash-sources"] if request.hash_sources else []
    return arguments


def _truncate_names(names: list[str], limit: int = 8) -> list[str]:
    return names if len(names) <= limit else [*names[:limit], f"and {len(names) - limit} more"]
