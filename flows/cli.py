"""Define the ``hallmark`` command line and turn errors into one sentence and an exit code.

Each command lives in its own file in ``flows/commands`` and is imported only when it is called, so
that ``hallmark --help`` starts fast.
"""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import sys
import traceback
from importlib.metadata import version

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from hallmark.flows.commands.flow_execution import configure_prefect_environment
from hallmark.flows.json_logging import (
    LOG_FORMAT_VARIABLE,
    LOG_FORMATS,
    JsonLogHandler,
    install_json_log,
    is_json_log,
)
from hallmark.flows.notices import NOTICE

app = App(
    name="hallmark",
    help="Train a language model from raw text and audit it, with evidence for every step. Every "
    "command accepts --debug, which shows error tracebacks, and --log-format json, which writes "
    "progress, logs and errors to stderr as one JSON object per line.",
    version=lambda: version("hallmark"),
    help_format="markdown",
    # Values are texts as a person wrote them: a remark that begins with "[" is no JSON.
    default_parameter=Parameter(json_list=False, json_dict=False),
    suppress_keyboard_interrupt=False,  # ``main`` reports an interruption itself
)

#: The groups of ``hallmark --help``: title, description, and each command with its description.
COMMAND_GROUPS: dict[tuple[str, str], dict[str, str]] = {
    (
        "Train and audit",
        "Train a model from text, adapt a trained model to a task, or audit a model.",
    ): {
        "init": "Write a commented config and a file for your answers to the card questions.",
        "run": "Run a config from end to end: curate the text, train, audit and report.",
        "plan": "Estimate the time, memory and disk space that a run of any size needs on any "
        "number of hosts, using data from earlier runs.",
        "join-training": "Join the training of a run that was started on another host.",
        "audit": "Audit a checkpoint and write its model card, without rebuilding the corpus.",
        "finetune": "Fine-tune a checkpoint on labelled data or text pairs, score it and write "
        "its task card.",
        "generate": "Generate text from a checkpoint with every decoding method and show "
        "log-probabilities.",
    },
    (
        "Look at results",
        "List runs, compare their findings and open their cards.",
    ): {
        "runs": "List the runs in a store, newest last, with each run's outcome and policy "
        "verdict.",
        "status": "Show a run's stages and artifacts, how many rows each stage kept and "
        "removed, and which stages are out of date.",
        "view": "Show the runs in a store and their cards in a browser, trace texts, and review "
        "cards.",
        "export-site": "Write a static website of all runs and print the path of RUN's page, which "
        "links to its cards.",
        "export-cards": "Export RUN's cards as Hugging Face cards, Croissant, CycloneDX "
        "ML-BOM and JSON.",
        "compare": "Compare two runs, checkpoints or datasheets, or all audited checkpoints of a "
        "training run.",
        "findings": "List a run's findings, largest risk first, with conclusions, "
        "verdicts and the values expected under the null hypothesis.",
        "trace": "Follow a document through all stages of a run, trace a finding to its worst rows "
        "and to training documents with the same text, or trace any text to training documents "
        "that contain spans of it.",
    },
    (
        "Review and release",
        "Use a card to decide whether a model may be used, sign the decision, and release the "
        "model.",
    ): {
        "review": "Show the reviews of RUN's cards and whether each card is approved, or "
        "write a review.",
        "release": "Write a checkpoint with its approved cards and signed reviews to a folder "
        "that can be verified elsewhere.",
        "verify-release": "Verify a release's files, signatures and card approvals without access "
        "to the store.",
    },
    (
        "Corpus and privacy",
        "Find out what a model was trained on, and remove documents permanently.",
    ): {
        "batch": "Show the documents, and the characters within them, that a training step read.",
        "purge": "Permanently remove a document's text from the whole store, and list the models "
        "that were trained on it.",
    },
    (
        "Experiments",
        "Determine what causes a finding, and measure how reliable the audits are.",
    ): {
        "mitigate": "Train a model without toxic documents or documents to which findings were "
        "traced, and compare it with a control model trained without an equal number of randomly "
        "chosen documents.",
        "prove": "Test whether findings disappear when the documents to which they were traced "
        "are removed; random removals and retraining with other seeds serve as controls.",
        "study": "Measure audit error rates on synthetic corpora with known effects; the list of "
        "effects stays sealed until the audits have ended.",
    },
    (
        "Operations",
        "Check stores and reproducibility, look up settings, and schedule runs.",
    ): {
        "replay": "Repeat a run from its run.json in a new store, and compare each artifact's hash "
        "with the original.",
        "verify": "Read every file of a run or the whole store, and compare its SHA-256 hash "
        "with the manifest.",
        "push": "Copy runs to another store with everything they refer to: artifacts, checkpoints, "
        "reviews, releases and purge records.",
        "pull": "Copy runs from another store with everything they refer to: artifacts, "
        "checkpoints, reviews, releases and purge records.",
        "du": "Show how a store's space is used: artifacts by stage, runs, shared artifacts, other "
        "folders, and what gc can remove.",
        "gc": "Remove what no run, review or release needs: artifacts, unfinished files of dead "
        "processes, and caches.",
        "settings": "List config settings with their defaults, allowed values and meanings.",
        "tables": "List each stage's tables and their columns, with type, unit, kind and meaning.",
        "serve": "Register the pipeline (with the schedule from the config) and the audit as "
        "deployments on a Prefect server.",
        "doctor": "Check this machine: libraries, device, scorers, Prefect server, store and disk.",
    },
}

#: Second names of commands.
COMMAND_ALIASES = {"mitigate": "ablate", "study": "calibrate"}

#: Usage lines of commands with several arguments of a kind.
COMMAND_USAGES = {
    "push": "Usage: hallmark push [OPTIONS] RUN... DESTINATION",
    "pull": "Usage: hallmark pull [OPTIONS] RUN... SOURCE",
    "replay": "Usage: hallmark replay [OPTIONS] [RUN...]",
}

for group_number, ((title, group_description), group_commands) in enumerate(COMMAND_GROUPS.items()):
    command_group = Group(title, help=group_description, sort_key=group_number)
    for command_name, description in group_commands.items():
        function_name = command_name.replace("-", "_")
        app.command(
            f"hallmark.flows.commands.{function_name}:{function_name}",
            name=command_name,
            alias=COMMAND_ALIASES.get(command_name),
            help=description,
            usage=COMMAND_USAGES.get(command_name),
            group=command_group,
        )

INTERRUPTED_MESSAGE = "stopped; committed results are kept; run the command again to continue"

#: Numbers of new objects, and of collections of younger ones, after which Python's collector runs.
#: With its defaults it takes a tenth of the time of ``hallmark export-site``.
GARBAGE_COLLECTION_THRESHOLDS = (50_000, 50, 100)


def main(arguments: list[str] | None = None) -> None:
    """Run the ``hallmark`` command line.

    Args:
        arguments: The arguments after the program's name; by default those of this process.

    Raises:
        SystemExit: With 1 if the command failed, 2 if the usage or the config is wrong, 3 if the
            findings fail the policy, 141 if the reader of stdout went away.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    arguments = _apply_log_format(arguments)
    configure_prefect_environment()
    # Most objects live to the end of a command, so the collector seldom finds anything.
    gc.set_threshold(*GARBAGE_COLLECTION_THRESHOLDS)
    atexit.register(gc.freeze)  # saves the second that a last garbage collection takes
    logger = logging.getLogger("hallmark")
    level = logging.DEBUG if debug else NOTICE
    logger.addHandler(
        JsonLogHandler(install_json_log(), level) if is_json_log() else _StderrLogHandler(level)
    )
    logger.setLevel(level)
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except KeyboardInterrupt:
        _exit_with_error(INTERRUPTED_MESSAGE, 1)
    except CycloptsError as error:
        message = " ".join(str(error).split()).rstrip(".")
        if type(error) is UnusedCliTokensError:
            message = f"Unexpected argument: {' '.join(error.unused_tokens or [])}"
        _exit_with_error(f"{message}. See: hallmark --help", 2)
    except Exception as error:
        from hallmark.tasks.contract import HallmarkError  # slow to import, and help needs none

        if isinstance(error, HallmarkError):
            if debug:
                traceback.print_exc()
            _exit_with_error(str(error), error.exit_code)
        if debug:
            raise
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None
        if isinstance(error, OSError) and error.errno:
            if error.errno == errno.ENAMETOOLONG:
                name = f"{error.filename or 'a name'}"
                _exit_with_error(
                    f"{name:.60}… is too long for a file name; specify a shorter name", 2
                )
            _exit_with_error(_describe_os_error(error), 1)
        _exit_with_error(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} "
            "(run again with --debug to see the traceback)",
            1,
        )


def _apply_log_format(arguments: list[str]) -> list[str]:
    """Set the format of logs that --log-format names, and return the other arguments."""
    remaining: list[str] = []
    iterator = iter(arguments)
    for argument in iterator:
        name, separator, value = argument.partition("=")
        if name != "--log-format":
            remaining.append(argument)
            continue
        log_format = value if separator else next(iterator, "")
        if log_format not in LOG_FORMATS:
            _exit_with_error(f"--log-format {log_format}: choose text or json", 2)
        os.environ[LOG_FORMAT_VARIABLE] = log_format
    return remaining


class _StderrLogHandler(logging.Handler):
    """Print log records to the current ``sys.stderr``, which a progress bar may have replaced.

    A command may resolve a name several times, but each notice about it is printed once.
    """

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.printed_notices: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno == NOTICE:
            if text in self.printed_notices:
                return
            self.printed_notices.add(text)
        _print_to_stderr(text)


def _describe_os_error(error: OSError) -> str:
    file_name = f"{error.filename}" if error.filename else "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full, so {file_name} was not written; free some space and run the "
            "command again"
        )
    reason = (error.strerror or type(error).__name__).lower()
    return (
        f"{file_name} cannot be read or written ({reason}); fix the problem and run the "
        "command again to continue"
    )


def _print_to_stderr(text: str) -> None:
    # Names from files may contain control characters that change a terminal.
    from hallmark.reports.page.redaction import escape_invisible

    print(escape_invisible(text), file=sys.stderr)


def _exit_with_error(message: str, exit_code: int) -> None:
    if is_json_log():
        install_json_log().write("ERROR", message, exit_code=exit_code)
    else:
        _print_to_stderr(f"hallmark: {message}")
    raise SystemExit(exit_code)


if __name__ == "__main__":
    main()
