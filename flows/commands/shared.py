"""What the commands share: their options, a Prefect server and a view for flows, the output."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tasks.contract import HallmarkError

Set = Annotated[
    list[str] | None,
    Parameter(
        name="--set", negative="", help="Override a config value, e.g. pretrain.train.steps=100."
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON to stdout.")]


def settle_prefect() -> None:
    """Settings of Prefect and its logging; before anything imports Prefect."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Prefect logs every failure with its traceback; ours is one sentence, said by ``main``.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "hallmark")


def _check_configured_server() -> None:
    from prefect.settings import PREFECT_API_URL

    from flows.deployments import HOW, server_answers

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
    check()
    if not (server and server.adopt()):
        server = None
        _check_configured_server()
    from flows import pipeline  # noqa: F401
    from flows.console import RunView
    from flows.recording import frontend

    with RunView() as frontend.listener:
        if server:
            server.wait()
        yield


def execute(flow: str, as_json: bool, **parameters: Any) -> None:
    """Run a flow with a progress view, build the site, and say where everything is."""
    from flows.recording import settle

    settled = ("config", "overrides", "until", "checkpoint", "start")
    known = {k: v for k, v in parameters.items() if k in settled}
    with ready(lambda: settle(**known)):
        from flows import pipeline
        from flows.console import stderr
        from flows.recording import frontend

        done = frontend.runs[getattr(pipeline, flow)(**parameters)]
    index = site(done.store)
    if as_json:
        from flows.commands.status import status_of

        return show(status_of(done), True, str)
    stages = done.record["stages"]
    made = sum(not entry["cached"] for entry in stages)
    if flow == "audit":
        stderr.print(f"audited: {done.record['checkpoint']}")
    stderr.print(f"run {done.id}: stages made: {made}, from the store: {len(stages) - made}")
    controls, failed = done.controls()
    if failed:
        names = ", ".join(dict.fromkeys(failed))
        stderr.print(
            f"{len(failed)} of {controls} controls failed ({names}): do not rely on the figures of "
            f"those audits; the model card says more"
        )
    page = index.parent / "runs" / done.id / "index.html"
    print(f"report: {page}")


def site(store: Any, out: Path | None = None) -> Path:
    from flows.runs import all_runs
    from reports.site import build_site

    if out is None:
        out = Path("site") if store.root is None else store.root / "site"
    return build_site(store, [run.record | {"status": run.status} for run in all_runs(store)], out)


def show(value: Any, as_json: bool, render: Callable[[Any], str]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False) if as_json else render(value))
