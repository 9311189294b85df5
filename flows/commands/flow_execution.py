"""Run flows from commands: with a Prefect server, a progress display and a summary."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hallmark.flows.commands.options import print_result

if TYPE_CHECKING:
    from hallmark.flows.run_request import RunRequest
    from hallmark.flows.runs import Run
    from hallmark.tasks.contract import HallmarkError

log = logging.getLogger("hallmark")


def configure_prefect_environment() -> None:
    """Set Prefect's defaults for telemetry and logging; call this before Prefect is imported."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # The commands show their progress themselves.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "hallmark")
    os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")


def _check_prefect_server_answers() -> None:
    from prefect.settings import PREFECT_API_URL

    from hallmark.flows.prefect_server import START_SERVER_HINT, is_prefect_server_reachable
    from hallmark.tasks.contract import HallmarkError

    server_url = PREFECT_API_URL.value() or ""
    if not is_prefect_server_reachable(server_url):
        raise HallmarkError(
            f"no Prefect server responds at {server_url!r}, the address set in PREFECT_API_URL "
            f"or in the Prefect profile; {START_SERVER_HINT}; or unset the address, so that each "
            "command starts its own server"
        )


@contextmanager
def start_prefect_and_progress(check_arguments: Callable[[], object]) -> Iterator[None]:
    """Provide a Prefect server and a progress display while flows run.

    Args:
        check_arguments: Raises for wrong arguments of the command, before anything waits for
            Prefect.
    """
    from hallmark.flows.local_prefect_server import LocalPrefectServer

    # The server starts on another core while this process imports the same libraries.
    server = None if os.environ.get("PREFECT_API_URL") else LocalPrefectServer()
    try:
        check_arguments()
    except BaseException:
        if server:
            server.stop()
        raise
    if not (server and server.connect_prefect_or_stop()):
        server = None
        _check_prefect_server_answers()
    from hallmark.flows import pipeline  # noqa: F401  (imports every stage of a run)
    from hallmark.flows.console import RunProgressDisplay
    from hallmark.flows.json_logging import (
        JsonEventLog,
        install_json_log,
        is_json_log,
        log_run_end,
        log_run_start,
    )
    from hallmark.flows.prefect_logging import print_prefect_warnings_as_lines
    from hallmark.flows.run_recording import frontend
    from hallmark.tasks.contract import STAGES

    print_prefect_warnings_as_lines()
    if is_json_log():
        frontend.on_run_start, frontend.on_run_end = log_run_start, log_run_end
        display: Any = nullcontext(JsonEventLog(install_json_log()))
    else:
        display = RunProgressDisplay()
    with display as frontend.on_event:
        if server:
            frontend.server_wait_seconds = 0.0
            for stage in STAGES.values():  # cached for all fingerprints, while the server starts
                stage.compute_code_digests()
            server.wait_until_ready()
        yield


def run_request_and_print_result(request: RunRequest, as_json: bool) -> Run | None:
    """Run what was asked for with a progress display, and print the result.

    Args:
        request: What was asked for.
        as_json: Whether to print the status and the removals as JSON instead of a summary.

    Returns:
        The run, or None if it was printed as JSON.

    Raises:
        PolicyViolationError: If the findings fail the policy, or are not shown to pass it.
        HallmarkError: If an audit failed.
    """
    with start_prefect_and_progress(lambda: check_requests(request)):
        run = run_request(request)
    from hallmark.flows.run_outcome import check_audits_and_policy

    if as_json:
        from hallmark.flows.commands.removal_summary import summarize_removals
        from hallmark.flows.commands.status import build_status_report

        print_result(
            build_status_report(run) | {"removals": summarize_removals(run) or {}}, True, str
        )
        check_audits_and_policy(run)
        return None
    print_run_summary(run)
    check_audits_and_policy(run)
    return run


def run_requests_and_print_results(
    requests_by_name: Mapping[str, RunRequest], as_json: bool
) -> None:
    """Run several requests, in order; one that fails does not stop the others.

    Args:
        requests_by_name: Each request, by the name to print for it.
        as_json: Whether to print the list of statuses as JSON instead of summaries.

    Raises:
        PolicyViolationError: If the policy of one of the executions is not met.
        HallmarkError: If one of the executions failed.
    """
    from hallmark.flows.console import stderr
    from hallmark.tasks.contract import HallmarkError, UsageError

    runs: list[Run] = []
    errors_by_name: dict[str, HallmarkError] = {}
    with start_prefect_and_progress(lambda: check_requests(*requests_by_name.values())):
        from hallmark.flows.run_outcome import check_audits_and_policy

        for name, request in requests_by_name.items():
            stderr.print(name, markup=False)
            try:
                runs.append(run_request(request))
                check_audits_and_policy(runs[-1])
            except UsageError:
                raise
            except HallmarkError as error:
                errors_by_name[name] = error
    if as_json:
        from hallmark.flows.commands.status import build_status_report

        print_result([build_status_report(run) for run in runs], True, str)
    else:
        for run in runs:
            print_run_summary(run)
    if errors_by_name:
        raise combine_errors(errors_by_name)


def combine_errors(errors_by_name: Mapping[str, HallmarkError]) -> HallmarkError:
    """Combine errors into one, a PolicyViolationError if one of them is."""
    from hallmark.tasks.contract import HallmarkError, PolicyViolationError

    has_policy_violation = any(
        isinstance(error, PolicyViolationError) for error in errors_by_name.values()
    )
    message = "; ".join(f"{name}: {error}" for name, error in errors_by_name.items())
    return (PolicyViolationError if has_policy_violation else HallmarkError)(message)


def check_requests(*requests: RunRequest) -> None:
    """Raise UsageError if a parameter of any of the requests is wrong, or has no effect."""
    from hallmark.flows.run_recording import resolve_request

    for request in requests:
        resolve_request(request)


def run_request(request: RunRequest) -> Run:
    """Run what was asked for, and return its run as ``call_flow_and_get_run`` does."""
    from hallmark.flows.flow_registry import get_flow

    return call_flow_and_get_run(lambda: get_flow(request.flow)(**request.parameters))


def print_run_summary(run: Run) -> None:
    """Print what a run did to stderr, and the path of its page to stdout."""
    from hallmark.flows.commands.removal_summary import render_removals, summarize_removals
    from hallmark.flows.console import stderr
    from hallmark.reports.sections.card_summary import (
        describe_empty_audits_and_item_notes,
        list_titles_of_weak_audits,
        summarize_control_results,
    )
    from hallmark.tasks.audits.judging.discoveries import read_card_findings
    from hallmark.tasks.contract import format_count

    stages = run.record["stages"]
    computed_count = sum(not entry["cached"] for entry in stages)
    if run.flow in ("audit", "finetune"):
        verb = {"audit": "audited", "finetune": "fine-tuned"}[run.flow]
        stderr.print(f"{verb}: {run.record['checkpoint']}", markup=False)
    stderr.print(
        f"run {run.id}: {format_count(computed_count, 'stage')} computed, "
        f"{len(stages) - computed_count} cached"
    )
    for line in render_removals(summarize_removals(run)):
        stderr.print(line, markup=False, soft_wrap=True)
    controls = run.list_controls()
    has_unexpected_result = any(row["verdict"] != "pass" for _, row in controls)
    findings = read_card_findings(
        {
            label.removeprefix("audit_"): run[label]
            for label in run.stages
            if label.startswith("audit_")
        }
    )
    weak_audits = list_titles_of_weak_audits(findings, controls)
    if has_unexpected_result or weak_audits:
        line = summarize_control_results(controls, weak_audits)
        stderr.print(line, markup=False, soft_wrap=True)
    for line in describe_empty_audits_and_item_notes(findings):
        stderr.print(line, markup=False, soft_wrap=True)
    for line in render_passed_rules(run.list_verdicts()):
        stderr.print(line, markup=False, soft_wrap=True)
    if run.page:  # otherwise a warning has said why there is no site
        print(f"report: {run.page}")


def render_passed_rules(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a line for each rule of a policy that all its findings pass."""
    from hallmark.flows.finding_trace import format_finding_name
    from hallmark.tasks.audits.judging.policy_outcome import judge_policy
    from hallmark.tasks.contract import format_count

    lines = []
    for rule in judge_policy(verdicts).passed_rules:
        rows = [row for row in verdicts if row["rule"] == rule]
        nearest = max(rows, key=lambda row: row["distance"])
        name = format_finding_name(nearest)
        findings = (
            f"{format_count(len(rows), 'finding')} (closest to failing: {name})"
            if len(rows) > 1
            else name
        )
        lines.append(f"policy rule {rule} passed for {findings}: {nearest['reason']}")
    return lines


def call_flow_and_get_run(call_flow: Callable[[], str]) -> Run:
    """Call a flow and return its run.

    A run that run.json calls completed is returned even if its flow failed because an audit failed
    or the policy is not met (``check_audits_and_policy`` raises that error again), or because
    Prefect cannot report the end of the run to a server that is gone.
    """
    from hallmark.flows.prefect_server import discard_unsent_events
    from hallmark.flows.run_recording import frontend
    from hallmark.tasks.contract import HallmarkError

    earlier_run_ids = set(frontend.runs_by_id)
    try:
        return frontend.runs_by_id[call_flow()]
    except Exception as error:
        discard_unsent_events()
        new_run = next(
            (run for run_id, run in frontend.runs_by_id.items() if run_id not in earlier_run_ids),
            None,
        )
        if new_run is None or new_run.record["status"] != "completed":
            raise
        if not isinstance(error, HallmarkError):
            log.warning(
                "run %s is recorded as completed in the store, but Prefect was not notified and "
                "may show it as Running or Failed: %s",
                new_run.id,
                str(error).split("\n")[0] or type(error).__name__,
            )
        return new_run
