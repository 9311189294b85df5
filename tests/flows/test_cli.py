"""Usage errors are one sentence with place and remedy, and exit code 2."""

import contextlib
import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.study_kills import SMALL_TRIAL
from hallmark.flows.audit_selection import ALL_AUDITS
from hallmark.flows.cli import (
    COMMAND_ALIASES,
    COMMAND_GROUPS,
    INTERRUPTED_MESSAGE,
    _StderrLogHandler,
    app,
)
from hallmark.flows.commands.flow_execution import combine_errors
from hallmark.flows.commands.trace import render_finding_trace
from hallmark.tasks.contract import HallmarkError, PolicyViolationError
from tests.flows.conftest import Hallmark, run_in_this_process


@pytest.fixture
def hallmark(tmp_path):
    return Hallmark(tmp_path / "store")


#: Of a metric that no audit has.
RULE = "policy.rules.r={audit='bias', metric='stereotype_preferense', lt=1}"
#: About a slice that the settings rule out.
SLICE = (
    "policy.rules.s={audit='toxicity', metric='toxicity_probability', "
    "slice={prompt_subset='prompted', draw_count=26}, lt=1}"
)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["run", "nonsense"], 2, "there is no config 'nonsense'"),
        (["run", "missing.toml"], 2, "missing.toml: the file cannot be read"),
        (
            ["run", "smoke", "--set", "redact_spans.colour=1"],
            2,
            "redact_spans.colour: there is no such key",
        ),
        (["run", "smoke", "--set", "workers=0"], 2, "workers: must be greater than"),
        (["run", "smoke", "--set", "workers"], 2, "write the setting as section.key=value"),
        (["run", "smoke", "--set", "name.x=1"], 2, "'name' is a value, not a section"),
        (["run", "smoke", "--sett", "x"], 2, "--sett"),
        (["run", "smoke", "--until", "nowhere"], 2, "no stage 'nowhere'"),
        (["frobnicate"], 2, "frobnicate"),
        (["run", "smoke", "--set", "schedule=nonsense"], 2, "schedule: is not a cron expression"),
        (["run", "smoke", "--set", "name='a b'"], 2, "name: must have at most 200 characters"),
        (["run", "smoke", "--set", "split.validation_share=0"], 2, "split.validation_share: "),
        (["run", "smoke", "--set", "plant_canaries.seed=1e26"], 2, "plant_canaries.seed: "),
        (["run", "smoke", "--set", "pretrain.model.d_model=100000000000"], 2, "d_model must be"),
        (["run", "smoke", "--set", "select.rules.x.lt=1"], 2, "rules.x: there is no signal 'x'"),
        (["run", "smoke", "--dry-run", "--set", "select.rules.x.lt=1"], 2, "is no signal 'x'"),
        (
            ["run", "smoke", "--set", RULE],
            2,
            "rules.r.metric: the bias audit does not measure 'stereotype_preferen",
        ),
        (
            ["run", "smoke", "--dry-run", "--set", RULE],
            2,
            "'stereotype_preferense' (did you mean stereotype_preference?",
        ),
        (
            ["run", "smoke", "--set", SLICE],
            2,
            'no slice {prompt_subset = "prompted", draw_count = "26"} (did you mean {prompt',
        ),
        (["run", "smoke", "--dry-run", "--set", SLICE], 2, "rules.s.slice: toxicity_probability"),
        (["audit", "nowhere", "--set", SLICE], 2, "nowhere"),
        (
            ["run", "smoke", "--set", "respond.batch_size=4"],
            2,
            "respond: batch_size is 4, but this setting applies to Hugging Face models only",
        ),
        (
            ["run", "smoke", "--dry-run", "--set", "attention_maps.dtype='float16'"],
            2,
            "attention_maps: dtype is float16, but Hallmark checkpoints run in float32 or bfl",
        ),
        (["run", "smoke", "--set", "respond.dtype='int8'"], 2, "respond.dtype: "),
        (["run", "smoke", "--set", "respond.batch_size=0"], 2, "respond.batch_size: "),
        (["status"], 2, "there is no store at "),
        (["export-site"], 2, "there is no store at "),
        (["replay"], 2, "there is no store at "),
        (["audit", "~nobody-here/model"], 2, "whose home folder is unknown"),
        (["generate", "latest", "caf\udce9"], 2, "the prompt is not valid UTF-8"),
        (["run", "a\x1b[31m.toml"], 2, "a‹U+001B›[31m.toml: the file cannot be read"),
        (["audit", "@all"], 2, "checkpoint: must not be empty"),
        (["audit", "latest", "--only", "taste"], 2, "there is no audit 'taste'; choose from cap"),
        (["audit", "latest", "--only", ","], 2, "none is named; choose from capability"),
        (
            ["run", "smoke", "--only", "bias", "--only", "weat,toxicty"],
            2,
            "only 'bias,weat,toxicty': there is no audit 'toxicty' (did you mean toxicity?); "
            "choose from capability, toxicity",
        ),
        (["run", "smoke", "--skip", "capabilty", "--dry-run"], 2, "(did you mean capability?)"),
        (["run", "smoke", "--skip", ",".join(ALL_AUDITS)], 2, "excludes every audit"),
        (["audit", "latest", "--only", "bias", "--skip", "bias"], 2, "excludes every audit"),
        (
            ["run", "smoke", "--only", "bold,bbq"],
            2,
            "specify their paths with --set audit_bold.pro",
        ),
        (
            ["run", "smoke", "--until", "audit_toxicity", "--only", "bias"],
            2,
            "the run stops after audit_toxicity, before these audits: bias",
        ),
        (["status", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["batch", "--step", "1", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["replay", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["export-site", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["serve", "smoke"], 1, "prefect server start"),
        (
            ["serve", "smoke", "--only", "bias"],
            2,
            "--only requires --audit-checkpoints or --watch; add one of these options",
        ),
        (
            ["serve", "smoke", "--poll-seconds", "1"],
            2,
            "--poll-seconds sets the polling interval for --watch; add --watch FOLDER",
        ),
        (
            ["serve", "smoke", "--watch", ".", "--poll-seconds", "nan"],
            2,
            "--poll-seconds is nan; it must be between 0.5 and 3,600",
        ),
    ],
)
def test_wrong_usage_ends_with_one_sentence(hallmark, arguments, code, expected, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    done = hallmark(*arguments, code=code)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hallmark: ")
    assert expected in last
    assert not list((hallmark.store).glob("artifacts/*/*"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere", "there is no checkpoint 'nowhere'; specify a folder"),
        ("checkpoint/zzz", "has no checkpoint 'checkpoint/zzz'"),
        ("checkpoint/0123456789abcdef", "no checkpoint 'checkpoint/0123456789ab"),
        ("latest", "has trained a model yet; train one, or"),
        ("latest@all", "has trained a model yet; train one, or"),
    ],
)
def test_a_missing_checkpoint_is_reported(hallmark, name, expected):
    """Neither in the store nor without a store; a mistyped name does not create one."""
    nothing = (
        f"there is no checkpoint '{name.removesuffix('@all')}': it is not a folder, and there is"
    )
    for command in (["audit", name], ["run", "smoke", "--start-checkpoint", name]):
        if command[0] == "audit" or "@" not in name:
            assert nothing in hallmark(*command, code=2).stderr
            assert not hallmark.store.exists()
    hallmark.store.mkdir()
    assert expected in hallmark("audit", name, code=2).stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name = ", "is not valid TOML"),
        (f"a = {'[' * 50_000}", "is nested too deeply"),
        ('name = "x"\n', "ingest: is missing"),
        ('name = "x"\nunknown = 1\n[ingest]\n', "unknown: there is no such key"),
    ],
)
def test_a_broken_config_file_is_reported(hallmark, tmp_path, text, expected):
    (tmp_path / "my.toml").write_text(text)
    done = hallmark("run", str(tmp_path / "my.toml"), code=2)
    assert f"config {tmp_path}/my.toml" in done.stderr
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([PolicyViolationError], 3),
        ([PolicyViolationError, PolicyViolationError], 3),
        ([PolicyViolationError, HallmarkError], 3),
        ([HallmarkError, PolicyViolationError], 3),
        ([HallmarkError], 1),
    ],
)
def test_an_unmet_policy_outweighs_other_failures_among_several(errors, code):
    error = combine_errors({f"run@{n}": kind(f"no {n}") for n, kind in enumerate(errors)})
    assert error.exit_code == code
    assert str(error) == "; ".join(f"run@{n}: no {n}" for n in range(len(errors)))


def test_reading_commands_create_no_store(hallmark):
    for command in ("status", "export-site", "replay"):
        hallmark(command, code=2)
    assert not hallmark.store.exists()
    hallmark.store.mkdir()
    assert "has no runs; start one with: hallmark run" in hallmark("status", code=2).stderr


def test_a_damaged_newest_run_is_named_or_skipped_with_a_warning(hallmark):
    (hallmark.store / "runs" / "20990101-000000-aaaa").mkdir(parents=True)
    (hallmark.store / "runs" / "20990101-000000-aaaa" / "run.json").write_text("{")
    for command in (["status"], ["export-site"]):
        *_, last = hallmark(*command, code=1).stderr.splitlines()
        assert last.startswith("hallmark: run 20990101-000000-aaaa is damaged: its run.json in ")
        assert last.endswith("remove that folder (no artifact is lost) and run again")
    for command in (["batch", "--step", "1"], ["audit", "latest"], ["replay"]):
        message, last = hallmark(*command, code=2).stderr.splitlines()
        assert message.startswith("skipped: run 20990101-000000-aaaa is damaged: ")
        assert re.search("has the (pretrain|ingest) stage yet|has trained a model yet", last)


def test_an_unwritable_location_is_named(hallmark, tmp_path):
    (tmp_path / "file").write_text("in the way")
    hallmark = replace(hallmark, store=tmp_path / "file" / "store")
    done = hallmark("run", "smoke", "--until", "ingest", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert str(tmp_path / "file") in line


def test_a_folder_without_a_checkpoint_is_refused(hallmark, server, tmp_path):
    hallmark = replace(hallmark, server=server)
    (tmp_path / "empty").mkdir()
    done = hallmark("audit", str(tmp_path / "empty"), "--only", "bias", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert "the folder is empty; a checkpoint consists of config.json" in line
    (tmp_path / "empty" / "config.json").write_text("{")
    done = hallmark("audit", str(tmp_path / "empty"), "--only", "bias", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert "config.json is not valid JSON" in line


def test_a_failing_stage_prints_one_sentence(hallmark, server, tmp_path):
    hallmark = replace(hallmark, server=server)
    (tmp_path / "empty.jsonl").write_text("")
    source = f'kind = "jsonl"\nname = "s"\npath = "{tmp_path}/empty.jsonl"\n'
    (tmp_path / "my.toml").write_text(f'name = "my"\n[[ingest.sources]]\n{source}')
    done = hallmark("run", str(tmp_path / "my.toml"), code=1)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("hallmark: stage ingest: no documents could be read")
    assert "'empty.jsonl': the file is empty" in line
    assert not list(hallmark.store.glob("artifacts/*/*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_immediately_and_is_recorded(hallmark, number):
    """The whole process group gets Ctrl-C, as from a terminal, including Prefect's server."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hallmark.flows.cli", "run", "smoke"],
        env={**os.environ, "HALLMARK_STORE": str(hallmark.store)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A background shell starts its children with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not (parts := list(hallmark.store.glob("work/ingest-*/parts/*"))):
        assert process.poll() is None
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    _, stderr = process.communicate(
        timeout=30
    )  # Prefect by itself would wait for more than a minute
    assert parts
    assert process.returncode == (1 if number == signal.SIGINT else -number)
    assert "Error logging" not in stderr
    if number == signal.SIGINT:
        assert stderr.endswith(f"hallmark: {INTERRUPTED_MESSAGE}\n")
    assert "Traceback" not in stderr
    (record,) = hallmark.store.glob("runs/*/run.json")
    record = json.loads(record.read_text())
    reason = "stopped by SIGINT (Ctrl-C)" if number == signal.SIGINT else "stopped by SIGTERM"
    assert (record["status"], record["error"]) == ("cancelled", reason)
    assert record["ended"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_does_not_wait_for_its_trials(hallmark, how):
    """Its trials would train for days; their processes end with them."""
    settings = {
        **SMALL_TRIAL,
        "pretrain.train.steps": 10_000_000,
        "pretrain.train.checkpoint_every": 10_000_000,
        "pretrain.train.validate_every": 10_000_000,
    }
    process = start(
        hallmark,
        "study",
        "--trials-with-effects",
        "2",
        "--trials-without-effects",
        "0",
        *(f"--set={name}={json.dumps(value)}" for name, value in settings.items()),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 240
        while not (jobs := list(hallmark.store.glob("work/pretrain-*/job.json"))):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no trial reached its training"
            time.sleep(0.02)
        os.kill(process.pid, how)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode != 0 and "Traceback" not in stderr
        assert how != signal.SIGINT or stderr.endswith(f"hallmark: {INTERRUPTED_MESSAGE}\n")
        end = time.monotonic() + 30
        while any(job.as_posix() in command for job in jobs for command in commands()):
            assert time.monotonic() < end, "a trainer goes on"
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):  # a remaining process would train for days
            os.killpg(process.pid, signal.SIGKILL)


def commands():
    """Read the command lines of all processes."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield place.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def start(hallmark, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "hallmark.flows.cli", *arguments],
        env={**os.environ, "HALLMARK_STORE": str(hallmark.store)} | options.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.slow
def test_a_command_runs_without_standard_input(hallmark, tmp_path):
    """As under cron: descriptor 0 is free, so that another file could get it."""
    (tmp_path / "a.jsonl").write_text('{"text": "Hello."}\n')
    (tmp_path / "my.toml").write_text(
        'name = "my"\n[[ingest.sources]]\nkind = "jsonl"\nname = "s"\n'
        f'path = "{tmp_path}/a.jsonl"\n'
    )
    command = ("run", str(tmp_path / "my.toml"), "--until", "ingest")
    process = start(hallmark, *command, preexec_fn=lambda: os.close(0))
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr


@pytest.mark.slow
def test_sources_are_hashed_again_on_request(hallmark, tmp_path):
    """A digest that is wrong although nothing shows a change of the file."""
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "Hello."}\n')
    os.utime(source, (1e9, 1e9))
    (tmp_path / "my.toml").write_text(
        f'name = "my"\nstore = "{tmp_path}/runs"\n[[ingest.sources]]\nkind = "jsonl"\n'
        f'name = "s"\npath = "{source}"\n'
    )
    command = ("run", str(tmp_path / "my.toml"), "--until", "ingest", "--json")

    def run_and_get_fingerprint(*options):
        (stage,) = json.loads(hallmark(*command, *options).stdout)["stages"]
        return stage["fingerprint"]

    fingerprint = run_and_get_fingerprint()
    cache = tmp_path / "runs" / "work" / "digests.json"
    cached_digests = json.loads(cache.read_text())
    cached_digests[str(source)][2] = "0" * 64
    cache.write_text(json.dumps(cached_digests))
    assert run_and_get_fingerprint() != fingerprint
    assert run_and_get_fingerprint("--hash-sources") == fingerprint


UNANSWERED = (
    "no Prefect server responds at '{}', the address set in PREFECT_API_URL or in the Prefect "
    "profile"
)


def test_a_prefect_server_that_does_not_answer_is_named(hallmark):
    url = "http://127.0.0.1:9/api"
    (line,) = replace(hallmark, server=url)("run", "smoke", code=1).stderr.strip().splitlines()
    assert UNANSWERED.format(url) in line


def test_an_invalid_address_of_a_prefect_server_is_named(hallmark):
    """In a new process, because Prefect reads the setting when it is imported."""
    process = start(hallmark, "run", "smoke", env={"PREFECT_API_URL": "nonsense"})
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = stderr.strip().splitlines()
    assert UNANSWERED.format("nonsense") in line


def test_a_prefect_server_that_cannot_start_gives_the_reason(hallmark):
    process = start(hallmark, "run", "smoke", env={"PREFECT_HOME": os.devnull})
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    last = stderr.strip().splitlines()[-1]
    assert "PREFECT_HOME" in last and "Traceback" not in stderr and "Fatal" not in stderr


def test_a_closed_output_pipe_is_not_an_error(hallmark):
    process = start(hallmark, "doctor", "--json")
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""


def test_help_names_every_command(hallmark):
    text = hallmark("--help").stdout
    for command in (
        "run",
        "audit",
        "status",
        "export-site",
        "trace",
        "purge",
        "batch",
        "replay",
        "serve",
        "settings",
        "doctor",
        "--debug",
    ):
        assert command in text


COMMAND_DESCRIPTIONS = {
    name: description
    for group_commands in COMMAND_GROUPS.values()
    for name, description in group_commands.items()
}


@pytest.mark.parametrize("name", COMMAND_DESCRIPTIONS)
def test_overview_and_command_have_the_same_description(name):
    summary = inspect.getdoc(app[name].default_command).split("\n\n")[0]
    assert " ".join(summary.split()) == COMMAND_DESCRIPTIONS[name]


@pytest.mark.parametrize("name", COMMAND_DESCRIPTIONS)
def test_every_parameter_of_a_command_has_one_sentence_of_help(name):
    arguments = app[name].assemble_argument_collection(parse_docstring=True)
    assert arguments or name == "doctor"
    for argument in arguments:
        assert argument.parameter.help.endswith("."), argument.name


@pytest.mark.parametrize(("name", "alias"), COMMAND_ALIASES.items())
def test_an_alias_calls_the_same_command(name, alias):
    assert app[alias].default_command is app[name].default_command


def test_the_overview_shows_the_groups_with_their_descriptions(hallmark):
    text = " ".join(hallmark("--help").stdout.replace("│", " ").split())
    for title, description in COMMAND_GROUPS:
        assert title in text and description in text


def test_the_overview_imports_no_command():
    program = "import sys; from hallmark.flows.cli import main; main(['--help']); "
    program += "sys.exit(any(m in sys.modules for m in ('torch', 'prefect', 'pyarrow.dataset')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "Audit a checkpoint" in done.stdout, done.stderr


def test_a_warning_cannot_change_the_terminal(capsys):
    _StderrLogHandler().emit(logging.makeLogRecord({"msg": "skipped: \x1b[31mrun"}))
    assert capsys.readouterr().err == "skipped: ‹U+001B›[31mrun\n"


def test_names_from_user_files_cannot_change_the_terminal():
    numbers = dict.fromkeys(("value", "low", "high", "null_value"))
    finding = {
        "audit": "bbq",
        "metric": "accuracy",
        "title": "Accuracy",
        "slice": {"category": "\x1b[31mAge"},
        "n": 0,
        "method": "items of \x1b]0;a.csv",
        **numbers,
    }
    report = dict.fromkeys(
        ("evidence_table", "artifact", "is_overlap_unknown", "min_span_tokens", "row_order")
    ) | {"finding": finding}
    output = render_finding_trace(
        report | {"checkpoint": "m\x07", "row_count": 0, "worst_rows": []}
    )
    assert "\x1b" not in output and "\x07" not in output
    assert "bbq.accuracy[category=‹U+001B›[31mAge]" in output and "‹U+0007›" in output


def test_settings_are_printed_as_toml_or_json(hallmark):
    (row,) = [r for r in hallmark.json("settings", "split") if r["key"] == "validation_share"]
    assert row["default"] == 0.05 and "share of near-duplicate clusters" in row["meaning"]
    assert "choose a section" in hallmark("settings", "nowhere", code=2).stderr


def test_doctor_reports_the_machine_and_creates_no_store(hallmark):
    findings = hallmark.json("doctor")
    assert {f["check"] for f in findings} >= {"python", "device", "scorers", "prefect", "store"}
    assert all(f["is_ok"] for f in findings)
    assert f"{hallmark.store} can be created" in findings[-1]["message"]
    assert not hallmark.store.exists()
    hallmark.store.mkdir()
    assert f"{hallmark.store} is writable" in hallmark.json("doctor")[-1]["message"]


def test_debug_shows_the_traceback(hallmark):
    done = run_in_this_process(
        ("run", "nonsense", "--debug"), {"HALLMARK_STORE": str(hallmark.store)}
    )
    assert done.returncode == 2
    assert "Traceback" in done.stderr and "hallmark: there is no config 'nonsense'" in done.stderr
