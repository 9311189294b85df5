"""What the commands share: their options, a Prefect server and a view for flows, the output."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

Set = Annotated[
    list[str] | None,
    Parameter(
        name="--set", negative="", help="Override a config value, e.g. pretrain.train.steps=100."
    ),
]
if TYPE_CHECKING:
    from flows.runs import Run
    from tasks.contract import HallmarkError

log = logging.getLogger("hallmark")


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """Of an option; "1.5" is not rounded."""
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"{tokens[0].value!r} is no whole number") from error


Whole = Annotated[int, Parameter(converter=_whole, negative="")]

InStore = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="The store, a folder, a URI or the .toml file of a config that names one, instead of "
        "the one that the config or HALLMARK_STORE names.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON to stdout.")]


def settle_prefect() -> None:
    """Settings of Prefect and its logging; before anything imports Prefect."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Prefect logs every failure with its traceback; ours is one sentence, said by ``main``.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "hallmark")
    os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
    # Of a server that is gone it would print each message that is lost.
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")


def _check_configured_server() -> None:
    from prefect.settings import PREFECT_API_URL

    from flows.deployments import HOW, server_answers
    from tasks.contract import HallmarkError

    url = PREFECT_API_URL.value() or ""
    if not server_answers(url):
        raise HallmarkError(
            f"no Prefect server answers at {url!r}, which PREFECT_API_URL or Prefect's profile "
            f"names; {HOW}; or unset it, then each command starts one of its own"
        )


@contextmanager
def ready(check: Callable[[], object]) -> Iterator[None]:
    """What a flow needs: a Prefect server, and a view of what its stages do.

    ``check`` raises for what is wrong with the command, before anything waits for Prefect.
    """
    from flows.server import LocalServer

    # It starts on another core while this process imports the same libraries.
    server = None if os.environ.get("PREFECT_API_URL") else LocalServer()
    try:
        check()
    except BaseException:
        if server:
            server.stop()
        raise
    if not (server and server.adopt()):
        server = None
        _check_configured_server()
    from flows import pipeline  # noqa: F401
    from flows.console import RunView
    from flows.recording import frontend
    from tasks.contract import STAGES

    with RunView() as frontend.watcher:
        if server:
            for stage in STAGES.values():  # every fingerprint asks for it; now, while one waits
                stage.code_digests()
            server.wait()
        yield


def execute(flow: str, as_json: bool, **parameters: Any) -> Run | None:
    """Run a flow with a progress view, and say where everything is. Returns the run where that was
    not said as JSON. GateError where its findings break its policy."""
    with ready(lambda: check(parameters)):
        done = run_flow(flow, parameters)
    if as_json:
        from flows.commands.removals import summarize_removals
        from flows.commands.status import status_of

        show(status_of(done) | {"removals": summarize_removals(done)}, True, str)
        check_findings(done)
        return None
    tell(flow, done)
    check_findings(done)
    return done


def execute_each(flow: str, as_json: bool, each: Mapping[str, Mapping[str, Any]]) -> None:
    """Run a flow several times, ``each`` by the name that it is told by, in order: one that fails
    keeps no other from running. As JSON a list. Raises the worst of what went wrong: what could
    not be done, else a GateError."""
    from flows.console import stderr
    from tasks.contract import HallmarkError, UsageError

    runs: list[Run] = []
    wrong: dict[str, HallmarkError] = {}
    with ready(lambda: check(*each.values())):
        for name, parameters in each.items():
            stderr.print(name, markup=False)
            try:
                runs.append(run_flow(flow, parameters))
                check_findings(runs[-1])
            except UsageError:
                raise
            except HallmarkError as error:
                wrong[name] = error
    if as_json:
        from flows.commands.status import status_of

        show([status_of(run) for run in runs], True, str)
    else:
        for run in runs:
            tell(flow, run)
    if wrong:
        raise worst(wrong)


def worst(wrong: Mapping[str, HallmarkError]) -> HallmarkError:
    """What went wrong with several, by name, as one error: of a gate only where that is all."""
    from tasks.contract import GateError, HallmarkError

    gates = all(isinstance(error, GateError) for error in wrong.values())
    told = "; ".join(f"{name}: {error}" for name, error in wrong.items())
    return (GateError if gates else HallmarkError)(told)


def check(*each: Mapping[str, Any]) -> None:
    """UsageError for whatever is wrong with the parameters of flows."""
    from flows.recording import settle

    settled = ("config", "overrides", "until", "checkpoint", "start", "store")
    for parameters in each:
        settle(**{name: value for name, value in parameters.items() if name in settled})


def run_flow(flow: str, parameters: Mapping[str, Any]) -> Run:
    from flows import pipeline

    return run_of(lambda: getattr(pipeline, flow)(**parameters))


def tell(flow: str, done: Run) -> None:
    """Say on stderr what a run did, on stdout where its page is."""
    from flows.commands.removals import render_removals, summarize_removals
    from flows.console import stderr

    stages = done.record["stages"]
    made = sum(not entry["cached"] for entry in stages)
    if flow in ("audit", "finetune"):
        did = {"audit": "audited", "finetune": "fine-tuned"}[flow]
        stderr.print(f"{did}: {done.record['checkpoint']}")
    stderr.print(f"run {done.id}: stages made: {made}, from the store: {len(stages) - made}")
    for line in render_removals(summarize_removals(done)):
        stderr.print(line, markup=False, soft_wrap=True)
    controls, failed = done.controls()
    if failed:
        names = ", ".join(dict.fromkeys(failed))
        stderr.print(
            f"{len(failed)} of {controls} controls failed ({names}): the model card says whether "
            f"audits are to blame, or the model is too weak to be asked"
        )
    if done.site:  # else why not has been said
        print(f"report: {done.site.parent / 'runs' / done.id / 'index.html'}")


def check_findings(run: Run) -> None:
    """HallmarkError where an audit of a run failed, GateError where its findings break its
    policy."""
    from flows.runs import same_store, store_uri
    from flows.tracing import full_name
    from tasks.audits.about import LEFT_OUT
    from tasks.contract import GateError, HallmarkError

    for audit, why in run.failures().items():
        raise HallmarkError(
            f"{audit} failed, all else is there and the model card says so; run again to try it "
            f"once more: {why}"
        )
    broken = run.broken()
    if not broken:
        return
    unshown = [row for row in broken if row["distance"] is None]
    told = [
        f"the policy is {how}: {_name_rules(rows)}"
        for how, rows in (
            ("broken", [row for row in broken if row["distance"] is not None]),
            ("not shown to hold", unshown),
        )
        if rows
    ]
    store = "" if same_store(run.store.uri, store_uri()) else f" --store {quote(run.store.uri)}"
    traced = [row for row in broken if row["value"] is not None
              and row["metric"] not in LEFT_OUT.get(row["audit"], ())]  # fmt: skip
    rows = [f"hallmark trace {run.id} {quote(full_name(row))}{store} shows the rows behind it; "
            for row in traced[:1]]  # fmt: skip
    raise GateError(
        f"{'; '.join(told)}; {''.join(rows)}every verdict stands on "
        f"the model card and in the table verdicts of run {run.id}"
    )


def _name_rules(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the first rules that are not passed, each with its finding and why."""
    from flows.tracing import full_name

    told = [f"{row['rule']} ({full_name(row)}: {row['why']})" for row in rows[:3]]
    more = f", and {len(rows) - len(told)} more" if len(rows) > len(told) else ""
    return "; ".join(told) + more


def run_of(flow: Callable[[], str]) -> Run:
    """The run that a flow made. Its end is what run.json says: Prefect tells its server of it too,
    which may be gone."""
    from flows.recording import frontend

    before = set(frontend.runs)
    try:
        return frontend.runs[flow()]
    except Exception as error:
        done = next((run for name, run in frontend.runs.items() if name not in before), None)
        if done is None or done.record["status"] != "completed":
            raise
        log.warning("Prefect's server has not heard of the end of run %s: %s", done.id, error)
        return done


def show(value: Any, as_json: bool, render: Callable[[Any], str]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False) if as_json else render(value))
