"""The command line. Heavy imports wait for the command that needs them."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from tasks.contract import HallmarkError, UsageError

app = App(
    name="hallmark",
    help="Raw text to an audited language model, with evidence at every step. With --debug, "
    "which every command takes, an error shows its traceback.",
    version=lambda: version("hallmark"),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # ``main`` says what it means
)

STOPPED = "stopped; what was committed stays, run again to go on"

Set = Annotated[
    list[str] | None,
    Parameter(
        name="--set", negative="", help="Override a config value, e.g. pretrain.train.steps=100."
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON to stdout.")]


@app.command
def run(
    config: str = "demo",
    *,
    set_: Set = None,
    until: str | None = None,
    start: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json_: Json = False,
) -> None:
    """Run a config end to end: curate, train, audit, report.

    Parameters
    ----------
    config
        A .toml file or the name of a config that comes with Hallmark.
    until
        Stop behind this stage.
    start
        Go on from this checkpoint of ours (RUN@STEP, "checkpoint/…" or a folder) on the config's
        corpus, with the checkpoint's tokenizer.
    dry_run
        Run nothing and write nothing: say what would run, what it would come to (size of corpus
        and model, epochs, memory, time) and what it would fail of.
    """
    if dry_run:
        from flows.commands.dry_run import render
        from flows.forecast import forecast

        report = forecast(config, set_ or [], until, start)
        _show(report, json_, render)
        if report["will_fail"]:
            raise SystemExit(1)
        return
    _execute("pipeline", json_, config=config, overrides=set_ or [], until=until, start=start)


@app.command
def audit(
    checkpoint: str,
    *,
    only: str = "capability,toxicity,bias,extraction",
    config: str | None = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Audit a checkpoint and write its model card, without touching the corpus.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0"), an artifact ("checkpoint/…"), or a folder: one of ours or a
        Hugging Face causal or masked language model.
    only
        Which audits, separated by commas.
    config
        Where the audits' settings come from; by default the config of the checkpoint's run.
    """
    from flows.pipeline import AUDITS

    chosen = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in AUDITS]
    if unknown or not chosen:
        raise UsageError(f"--only {only!r}: choose from {', '.join(AUDITS)}")
    _execute(
        "audit", json_, checkpoint=checkpoint, config=config, overrides=set_ or [], only=chosen
    )


@app.command
def status(run: str = "latest", *, json_: Json = False) -> None:
    """Show a run's stages, artifacts, rows and accounts, and what is stale and why."""
    from flows.commands.status import render, status_of
    from flows.runs import open_run

    _show(status_of(open_run(run)), json_, render)


@app.command
def report(run: str = "latest", *, out: Path | None = None, json_: Json = False) -> None:
    """Build the site of all runs and print where RUN's cards are.

    Parameters
    ----------
    out
        The folder of the site; by default "site" inside a local store.
    """
    from flows.runs import open_run

    chosen = open_run(run)
    index = _site(chosen.store, out)
    pages = {"index": str(index), "run": str(index.parent / "runs" / chosen.id / "index.html")}
    _show(pages, json_, lambda pages: "\n".join(f"{k}: {v}" for k, v in pages.items()))


@app.command
def batch(run: str = "latest", *, step: int, json_: Json = False) -> None:
    """Show which documents, and which characters of them, a training step saw.

    Parameters
    ----------
    step
        The optimizer step, from 1.
    """
    from flows.commands.batch import batch_of, render
    from flows.runs import open_run

    _show(batch_of(open_run(run, stage="pretrain"), step), json_, render)


@app.command
def replay(run: str = "latest", *, store: str | None = None, json_: Json = False) -> None:
    """Run again from run.json into a fresh store and compare every hash.

    Parameters
    ----------
    store
        The fresh store; by default a temporary folder, removed afterwards.
    """
    from flows.runs import open_run

    with _ready(lambda: open_run(run)):
        from flows.commands.replay import render, replay_run

        verdict = replay_run(open_run(run), store)
    _show(verdict, json_, render)
    if not verdict["green"]:
        raise SystemExit(1)


@app.command
def settings(section: str | None = None, *, json_: Json = False) -> None:
    """List every setting of a config, with its default, what it may be and what it means.

    Parameters
    ----------
    section
        Only this section, such as pretrain.train.
    """
    from flows.commands.settings import render
    from flows.commands.settings import settings as list_settings

    _show(list_settings(section), json_, render)


@app.command
def serve(config: str = "demo", *, set_: Set = None) -> None:
    """Register the pipeline (on the config's schedule) and the audit with a Prefect server.

    Parameters
    ----------
    config
        The config that the pipeline's deployment runs.
    """
    from flows.deployments import serve_deployments

    serve_deployments(config, set_ or [])


@app.command
def doctor(*, json_: Json = False) -> None:
    """Show what this machine has: device, scorers, Prefect server, store, disk."""
    from flows.commands.doctor import examine_machine, render

    findings = examine_machine()
    _show(findings, json_, render)
    if not all(f["ok"] for f in findings):
        raise SystemExit(1)


# What the commands share ---------------------------------------------------------------------


def _settle_prefect() -> None:
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
def _ready(check: Callable[[], object]) -> Iterator[None]:
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


def _execute(flow: str, as_json: bool, **parameters: Any) -> None:
    """Run a flow with a progress view, build the site, and say where everything is."""
    from flows.recording import settle

    settled = ("config", "overrides", "until", "checkpoint", "start")
    known = {k: v for k, v in parameters.items() if k in settled}
    with _ready(lambda: settle(**known)):
        from flows import pipeline
        from flows.console import stderr
        from flows.recording import frontend

        done = frontend.runs[getattr(pipeline, flow)(**parameters)]
    index = _site(done.store)
    if as_json:
        from flows.commands.status import status_of

        return _show(status_of(done), True, str)
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


def _site(store: Any, out: Path | None = None) -> Path:
    from flows.runs import all_runs
    from reports.site import build_site

    if out is None:
        out = Path("site") if store.root is None else store.root / "site"
    return build_site(store, [run.record | {"status": run.status} for run in all_runs(store)], out)


def _show(value: Any, as_json: bool, render: Callable[[Any], str]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False) if as_json else render(value))


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``hallmark``: 0 done, 1 failed, 2 wrong usage or config, 3 a gate failed."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    _settle_prefect()
    if debug:
        logging.getLogger("hallmark").addHandler(logging.StreamHandler())
        logging.getLogger("hallmark").setLevel(logging.DEBUG)
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except KeyboardInterrupt:
        _fail(STOPPED, 1)
    except CycloptsError as error:
        _fail(f"{' '.join(str(error).split())} See: hallmark --help", 2)
    except HallmarkError as error:
        if debug:
            traceback.print_exc()
        _fail(str(error), error.exit_code)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError):  # nobody reads on, as behind: | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None
        if isinstance(error, OSError) and error.errno:
            _fail(_about_files(error), 1)
        _fail(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} "
            f"(the traceback: run again with --debug)",
            1,
        )


def _about_files(error: OSError) -> str:
    place = f"{error.filename}" if error.filename else "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk for {place}; free some and run again: it goes on"
    why = (error.strerror or type(error).__name__).lower()
    return f"{place} cannot be used ({why}); put that right and run again: it goes on"


def _fail(sentence: str, code: int) -> None:
    print(f"hallmark: {sentence}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
