"""What the commands share: their options, a Prefect server and a view for flows, the output."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Any

from hallmark.flows.commands.options import print_result

if TYPE_CHECKING:
    from hallmark.flows.runs import Run
    from hallmark.tasks.contract import HallmarkError

log = logging.getLogger("hallmark")


def configure_prefect_environment() -> None:
    """Settings of Prefect and its logging; before anything imports Prefect."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Prefect logs every failure with its traceback; ours is one sentence, said by ``main``.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "hallmark")
    os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
    # Of a server that is gone it would print each message that is lost.
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")


def _check_prefect_server_answers() -> None:
    from prefect.settings import PREFECT_API_URL

    from hallmark.flows.deployments import START_SERVER_HINT, is_prefect_server_reachable
    from hallmark.tasks.contract import HallmarkError

    server_url = PREFECT_API_URL.value() or ""
    if not is_prefect_server_reachable(server_url):
        raise HallmarkError(
            f"no Prefect server answers at {server_url!r}, which PREFECT_API_URL or "
            f"Prefect's profile "
            f"names; {START_SERVER_HINT}; or unset it, then each command starts one of its own"
        )


@contextmanager
def start_prefect_and_progress(check_arguments: Callable[[], object]) -> Iterator[None]:
    """What a flow needs: a Prefect server, and a view of what its stages do.

    ``check`` raises for what is wrong with the command, before anything waits for Prefect.
    """
    from hallmark.flows.local_prefect_server import LocalPrefectServer

    # It starts on another core while this process imports the same libraries.
    server = None if os.environ.get("PREFECT_API_URL") else LocalPrefectServer()
    try:
        check_arguments()
    except BaseException:
        if server:
            server.stop()
        raise
    if not (server and server.connect_prefect()):
        server = None
        _check_prefect_server_answers()
    from hallmark.flows import pipeline  # noqa: F401  (imports every stage of a run)
    from hallmark.flows.console import RunProgressDisplay
    from hallmark.flows.run_recording import frontend
    from hallmark.tasks.contract import STAGES

    with RunProgressDisplay() as frontend.on_event:
        if server:
            for stage in STAGES.values():  # every fingerprint asks for it; now, while one waits
                stage.compute_code_digests()
            server.wait_until_ready()
        yield


def run_flow_and_report(flow_name: str, as_json: bool, **flow_parameters: Any) -> Run | None:
    """Run a flow with a progress view, and say where everything is. Returns the run where that was
    not said as JSON. GateError where its findings break its policy."""
    with start_prefect_and_progress(lambda: check_flow_parameters(flow_parameters)):
        run = run_flow_by_name(flow_name, flow_parameters)
    if as_json:
        from hallmark.flows.commands.removal_summary import summarize_removals
        from hallmark.flows.commands.status import build_status_report

        print_result(build_status_report(run) | {"removals": summarize_removals(run)}, True, str)
        check_audits_and_policy(run)
        return None
    print_run_summary(flow_name, run)
    check_audits_and_policy(run)
    return run


def run_flow_for_each(
    flow_name: str, as_json: bool, parameters_by_name: Mapping[str, Mapping[str, Any]]
) -> None:
    """Run a flow several times, ``each`` by the name that it is told by, in order: one that fails
    keeps no other from running. As JSON a list. Raises the worst of what went wrong: what could
    not be done, else a GateError."""
    from hallmark.flows.console import stderr
    from hallmark.tasks.contract import HallmarkError, UsageError

    runs: list[Run] = []
    errors_by_name: dict[str, HallmarkError] = {}
    with start_prefect_and_progress(lambda: check_flow_parameters(*parameters_by_name.values())):
        for name, parameters in parameters_by_name.items():
            stderr.print(name, markup=False)
            try:
                runs.append(run_flow_by_name(flow_name, parameters))
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
            print_run_summary(flow_name, run)
    if errors_by_name:
        raise combine_errors(errors_by_name)


def combine_errors(errors_by_name: Mapping[str, HallmarkError]) -> HallmarkError:
    """What went wrong with several, by name, as one error: of a gate only where that is all."""
    from hallmark.tasks.contract import HallmarkError, PolicyViolationError

    are_policy_violations = all(
        isinstance(error, PolicyViolationError) for error in errors_by_name.values()
    )
    message = "; ".join(f"{name}: {error}" for name, error in errors_by_name.items())
    return (PolicyViolationError if are_policy_violations else HallmarkError)(message)


def check_flow_parameters(*parameter_sets: Mapping[str, Any]) -> None:
    """UsageError for whatever is wrong with the parameters of flows."""
    from hallmark.flows.run_recording import resolve_flow_arguments

    checked_names = ("config", "overrides", "until", "checkpoint", "start", "store")
    for parameters in parameter_sets:
        resolve_flow_arguments(
            **{name: value for name, value in parameters.items() if name in checked_names}
        )


def run_flow_by_name(flow_name: str, parameters: Mapping[str, Any]) -> Run:
    from hallmark.flows.flow_registry import get_flow

    return call_flow_and_get_run(lambda: get_flow(flow_name)(**parameters))


def print_run_summary(flow_name: str, run: Run) -> None:
    """Say on stderr what a run did, on stdout where its page is."""
    from hallmark.flows.commands.removal_summary import render_removals, summarize_removals
    from hallmark.flows.console import stderr
    from hallmark.reports.page.figures import format_count

    stages = run.record["stages"]
    computed_count = sum(not entry["cached"] for entry in stages)
    if flow_name in ("audit", "finetune"):
        verb = {"audit": "audited", "finetune": "fine-tuned"}[flow_name]
        stderr.print(f"{verb}: {run.record['checkpoint']}")
    stderr.print(
        f"run {run.id}: stages made: {computed_count}, from the store: "
        f"{len(stages) - computed_count}"
    )
    for line in render_removals(summarize_removals(run)):
        stderr.print(line, markup=False, soft_wrap=True)
    control_count, failed_controls = run.summarize_controls()
    if failed_controls:
        names = ", ".join(dict.fromkeys(failed_controls))
        stderr.print(
            f"{len(failed_controls)} of {format_count(control_count, 'control')} failed ({names}): "
            f"the model "
            f"card says whether "
            f"audits are to blame, or the model is too weak to be asked"
        )
    if run.site_index:  # else why not has been said
        print(f"report: {run.site_index.parent / 'runs' / run.id / 'index.html'}")


def check_audits_and_policy(run: Run) -> None:
    """HallmarkError where an audit of a run failed, GateError where its findings break its
    policy."""
    from hallmark.flows.finding_trace import format_finding_name
    from hallmark.flows.runs import is_same_store, resolve_store_uri
    from hallmark.tasks.audits.audit_descriptions import SKIPPED_COUNT_METRICS
    from hallmark.tasks.contract import HallmarkError, PolicyViolationError

    for audit, reason in run.read_audit_failures().items():
        raise HallmarkError(
            f"{audit} failed, all else is there and the model card says so; run again to try it "
            f"once more: {reason}"
        )
    failed_rules = run.list_unpassed_verdicts()
    if not failed_rules:
        return
    undetermined_rules = [row for row in failed_rules if row["distance"] is None]
    messages = [
        f"the policy is {outcome}: {_format_failed_rules(rows)}"
        for outcome, rows in (
            ("broken", [row for row in failed_rules if row["distance"] is not None]),
            ("not shown to hold", undetermined_rules),
        )
        if rows
    ]
    store_option = (
        ""
        if is_same_store(run.store.uri, resolve_store_uri())
        else f" --store {quote(run.store.uri)}"
    )
    traceable_rules = [
        row
        for row in failed_rules
        if row["value"] is not None
        and row["metric"] not in SKIPPED_COUNT_METRICS.get(row["audit"], ())
    ]
    rows = [
        f"hallmark trace {run.id} {quote(format_finding_name(row))}{store_option} shows the "
        f"rows behind it; "
        for row in traceable_rules[:1]
    ]
    raise PolicyViolationError(
        f"{'; '.join(messages)}; {''.join(rows)}every verdict stands on "
        f"the model card and in the table verdicts of run {run.id}"
    )


def _format_failed_rules(failed_rules: Sequence[Mapping[str, Any]]) -> str:
    """Name the first rules that are not passed, each with its finding and why."""
    from hallmark.flows.finding_trace import format_finding_name

    descriptions = [
        f"{row['rule']} ({format_finding_name(row)}: {row['reason']})" for row in failed_rules[:3]
    ]
    remainder = (
        f", and {len(failed_rules) - len(descriptions)} more"
        if len(failed_rules) > len(descriptions)
        else ""
    )
    return "; ".join(descriptions) + remainder


def call_flow_and_get_run(call_flow: Callable[[], str]) -> Run:
    """The run that a flow made. Its end is what run.json says: Prefect tells its server of it too,
    which may be gone."""
    from hallmark.flows.run_recording import frontend

    earlier_run_ids = set(frontend.runs_by_id)
    try:
        return frontend.runs_by_id[call_flow()]
    except Exception as error:
        new_run = next(
            (run for run_id, run in frontend.runs_by_id.items() if run_id not in earlier_run_ids),
            None,
        )
        if new_run is None or new_run.record["status"] != "completed":
            raise
        log.warning("Prefect's server has not heard of the end of run %s: %s", new_run.id, error)
        return new_run
