"""The command line. Heavy imports wait for the command that needs them."""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import sys
import traceback
from importlib.metadata import version

from cyclopts import App, CycloptsError

from hallmark.flows.commands.flow_execution import configure_prefect_environment

app = App(
    name="hallmark",
    help="Raw text to an audited language model, with evidence at every step. With --debug, "
    "which every command takes, an error shows its traceback.",
    version=lambda: version("hallmark"),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # ``main`` says what it means
)

#: The commands, each in a file of its own, which is imported when the command is called.
COMMAND_DESCRIPTIONS = {
    "run": "Run a config end to end: curate, train, audit, report.",
    "audit": "Audit a checkpoint and write its model card, without touching the corpus.",
    "compare": "Set the findings of audited checkpoints side by side; what they were asked alike "
    "is compared in pairs with the first.",
    "mitigate": "Train without the documents behind findings, or without toxic ones, beside a "
    "control that lacks as many others; audit both alike and compare them.",
    "prove": "Train anew without the documents behind findings, beside a control that lacks as "
    "many others and the whole corpus from other seeds; audit all alike and show what became of "
    "the findings.",
    "study": "Measure how often the audits are wrong, on invented worlds whose answers are sealed "
    "until the audits are done.",
    "generate": "Let a checkpoint write, by every decoding method side by side, with "
    "log-probabilities.",
    "finetune": "Train a checkpoint on pairs, or on texts or words with labels, score it and write "
    "its task card.",
    "runs": "List the runs of a store, the newest last: what each is of, how it ended, what its "
    "policy says.",
    "status": "Show a run's stages, artifacts, rows and accounts, and what is stale and why.",
    "report": "Build the site of all runs anew and print where RUN's cards are.",
    "trace": "Follow a document through a run, what each stage made of it, which steps read it; or "
    "a finding of an audit to its worst rows and the training documents behind them.",
    "purge": "Take a document's text out of the whole store, for good, and name the models that "
    "read it.",
    "batch": "Show which documents, and which characters of them, a training step saw.",
    "replay": "Run again from run.json into a fresh store and compare every hash.",
    "verify": "Read every file of a run, or of the whole store, and compare its SHA-256 with the "
    "manifest.",
    "settings": "List every setting of a config, with its default, what it may be and what it "
    "means.",
    "tables": "List every table of every stage: its columns with type, unit, kind and meaning.",
    "serve": "Register the pipeline (on the config's schedule) and the audit with a Prefect "
    "server.",
    "doctor": "Show what this machine has: device, scorers, Prefect server, store, disk.",
}

for command_name, description in COMMAND_DESCRIPTIONS.items():
    app.command(
        f"hallmark.flows.commands.{command_name}:{command_name}",
        name=command_name,
        help=description,
    )

INTERRUPTED_MESSAGE = "stopped; what was committed stays, run again to go on"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``hallmark``: 0 done, 1 failed, 2 wrong usage or config."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    configure_prefect_environment()
    atexit.register(gc.freeze)  # at the end a second would go into looking for cycles to free
    logger = logging.getLogger("hallmark")
    logger.addHandler(_StderrLogHandler(logging.DEBUG if debug else logging.WARNING))
    if debug:
        logger.setLevel(logging.DEBUG)
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except KeyboardInterrupt:
        _exit_with_error(INTERRUPTED_MESSAGE, 1)
    except CycloptsError as error:
        _exit_with_error(f"{' '.join(str(error).split())} See: hallmark --help", 2)
    except Exception as error:
        from hallmark.tasks.contract import HallmarkError  # it takes a while, and help needs none

        if isinstance(error, HallmarkError):
            if debug:
                traceback.print_exc()
            _exit_with_error(str(error), error.exit_code)
        if debug:
            raise
        if isinstance(error, BrokenPipeError):  # nobody reads on, as behind: | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None
        if isinstance(error, OSError) and error.errno:
            _exit_with_error(_describe_os_error(error), 1)
        _exit_with_error(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} "
            f"(the traceback: run again with --debug)",
            1,
        )


class _StderrLogHandler(logging.Handler):
    """Says them on stderr as it is at that moment: a progress bar puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        _print_to_stderr(self.format(record))


def _describe_os_error(error: OSError) -> str:
    file_name = f"{error.filename}" if error.filename else "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk for {file_name}; free some and run again: it goes on"
    reason = (error.strerror or type(error).__name__).lower()
    return f"{file_name} cannot be used ({reason}); put that right and run again: it goes on"


def _print_to_stderr(text: str) -> None:
    from hallmark.reports.page.redaction import (
        escape_invisible,
    )  # names out of files may hold what turns a terminal

    print(escape_invisible(text), file=sys.stderr)


def _exit_with_error(message: str, exit_code: int) -> None:
    _print_to_stderr(f"hallmark: {message}")
    raise SystemExit(exit_code)


if __name__ == "__main__":
    main()
