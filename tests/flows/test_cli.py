"""Errors of usage are one sentence with the place and the remedy, and exit code 2."""

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

from benchmarks.study_kills import SMALL
from hallmark.flows.cli import COMMAND_DESCRIPTIONS, INTERRUPTED_MESSAGE, _StderrLogHandler, app
from hallmark.flows.commands.flow_execution import combine_errors
from hallmark.flows.commands.trace import render_finding_trace
from hallmark.tasks.contract import HallmarkError, PolicyViolationError
from tests.flows.conftest import Hallmark, here


@pytest.fixture
def hallmark(tmp_path):
    return Hallmark(tmp_path / "store")


#: Of a metric that no audit has.
RULE = "policy.rules.r={audit='bias', metric='stereotype_preferense', lt=1}"
#: About a slice that the settings rule out.
SLICE = (
    "policy.rules.s={audit='toxicity', metric='toxicity_probability', "
    "slice='prompted, draw_count=26', lt=1}"
)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "nonsense"], 2, "there is no config 'nonsense'"),
        (["run", "missing.toml"], 2, "missing.toml: cannot be read"),
        (
            ["run", "smoke", "--set", "redact_spans.colour=1"],
            2,
            "redact_spans.colour: there is no such key",
        ),
        (["run", "smoke", "--set", "workers=0"], 2, "workers: must be greater than"),
        (["run", "smoke", "--set", "workers"], 2, "write it as section.key=value"),
        (["run", "smoke", "--set", "name.x=1"], 2, "'name' is a value, not a section"),
        (["run", "smoke", "--sett", "x"], 2, "--sett"),
        (["run", "smoke", "--until", "nowhere"], 2, "no stage 'nowhere'"),
        (["frobnicate"], 2, "frobnicate"),
        (["run", "smoke", "--set", "schedule=nonsense"], 2, "schedule: is no cron expression"),
        (["run", "smoke", "--set", "name='a b'"], 2, "name: must be at most 200 letters"),
        (["run", "smoke", "--set", "split.validation_share=0"], 2, "split.validation_share: "),
        (["run", "smoke", "--set", "plant_canaries.seed=1e26"], 2, "plant_canaries.seed: "),
        (["run", "smoke", "--set", "pretrain.model.d_model=100000000000"], 2, "d_model must be"),
        (["run", "smoke", "--set", "select.rules.x.lt=1"], 2, "rules.x: there is no signal 'x'"),
        (["run", "smoke", "--dry-run", "--set", "select.rules.x.lt=1"], 2, "is no signal 'x'"),
        (
            ["run", "smoke", "--set", RULE],
            2,
            "rules.r.metric: the audit bias measures no 'stereotype_preferen",
        ),
        (
            ["run", "smoke", "--dry-run", "--set", RULE],
            2,
            "'stereotype_preferense' (did you mean stereotype_preference?",
        ),
        (
            ["run", "smoke", "--set", SLICE],
            2,
            "no slice 'prompted, draw_count=26' (did you mean prompted, ",
        ),
        (["run", "smoke", "--dry-run", "--set", SLICE], 2, "rules.s.slice: toxicity_probability"),
        (["audit", "nowhere", "--set", SLICE], 2, "nowhere"),
        (["status"], 2, "there is no store at "),
        (["report"], 2, "there is no store at "),
        (["replay"], 2, "there is no store at "),
        (["audit", "~nobody-here/model"], 2, "whose home folder is not known"),
        (["generate", "latest", "caf\udce9"], 2, "the prompt is no UTF-8"),
        (["run", "a\x1b[31m.toml"], 2, "a‹U+001B›[31m.toml: cannot be read"),
        (["audit", "@all"], 2, "the name of the checkpoint is empty"),
        (["audit", "latest", "--only", "taste"], 2, "there is no audit 'taste'; choose from cap"),
        (["audit", "latest", "--only", ","], 2, "none is named; choose from capability"),
        (["status", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["batch", "--step", "1", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["replay", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["report", "--store", "no/such"], 2, "no/such, which does not exist"),
        (["serve", "smoke"], 1, "prefect server start"),
    ],
)
def test_wrong_usage(hallmark, arguments, code, words, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    done = hallmark(*arguments, code=code)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hallmark: ")
    assert words in last
    assert not list((hallmark.store).glob("artifacts/*/*"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "there is no checkpoint 'nowhere'; give a folder"),
        ("checkpoint/zzz", "holds no checkpoint 'checkpoint/zzz'"),
        ("checkpoint/0123456789abcdef", "no checkpoint 'checkpoint/0123456789ab"),
        ("latest", "has trained a model yet; train one there, or"),
        ("latest@all", "has trained a model yet; train one there, or"),
    ],
)
def test_a_checkpoint_that_is_not_there(hallmark, name, words):
    """Neither in the store nor where no store is, which a name typed wrongly does not make."""
    nothing = f"there is no checkpoint '{name.removesuffix('@all')}': it is no folder, and there is"
    for command in (["audit", name], ["run", "smoke", "--start", name]):
        if command[0] == "audit" or "@" not in name:
            assert nothing in hallmark(*command, code=2).stderr
            assert not hallmark.store.exists()
    hallmark.store.mkdir()
    assert words in hallmark("audit", name, code=2).stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not valid TOML"),
        (f"a = {'[' * 50_000}", "is nested too deeply"),
        ('name = "x"\n', "ingest: is missing"),
        ('name = "x"\nunknown = 1\n[ingest]\n', "unknown: there is no such key"),
    ],
)
def test_a_broken_config_file(hallmark, tmp_path, text, words):
    (tmp_path / "my.toml").write_text(text)
    done = hallmark("run", str(tmp_path / "my.toml"), code=2)
    assert f"config {tmp_path}/my.toml" in done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([PolicyViolationError], 3),
        ([PolicyViolationError, PolicyViolationError], 3),
        ([PolicyViolationError, HallmarkError], 1),
    ],
)
def test_of_several_audits_what_failed_is_worse_than_a_broken_policy(errors, code):
    error = combine_errors({f"run@{n}": kind(f"no {n}") for n, kind in enumerate(errors)})
    assert error.exit_code == code
    assert str(error) == "; ".join(f"run@{n}: no {n}" for n in range(len(errors)))


def test_reading_leaves_no_store_behind(hallmark):
    for command in ("status", "report", "replay"):
        hallmark(command, code=2)
    assert not hallmark.store.exists()
    hallmark.store.mkdir()
    assert "holds none; start one with: hallmark run" in hallmark("status", code=2).stderr


def test_a_damaged_newest_run_is_named_or_left_out_with_a_warning(hallmark):
    (hallmark.store / "runs" / "20990101-000000-aaaa").mkdir(parents=True)
    (hallmark.store / "runs" / "20990101-000000-aaaa" / "run.json").write_text("{")
    for command in (["status"], ["report"]):
        *_, last = hallmark(*command, code=1).stderr.splitlines()
        assert last.startswith("hallmark: run 20990101-000000-aaaa is damaged: its run.json in ")
        assert last.endswith("remove that folder (no artifact is lost) and run again")
    for command in (["batch", "--step", "1"], ["audit", "latest"], ["replay"]):
        told, last = hallmark(*command, code=2).stderr.splitlines()
        assert told.startswith("left out: run 20990101-000000-aaaa is damaged: ")
        assert re.search("has the stage (pretrain|ingest) yet|has trained a model yet", last)


def test_a_place_that_cannot_be_written_is_named(hallmark, tmp_path):
    (tmp_path / "file").write_text("in the way")
    hallmark = replace(hallmark, store=tmp_path / "file" / "store")
    done = hallmark("run", "smoke", "--until", "ingest", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert str(tmp_path / "file") in line


def test_a_folder_that_is_no_checkpoint(hallmark, server, tmp_path):
    hallmark = replace(hallmark, server=server)
    (tmp_path / "empty").mkdir()
    done = hallmark("audit", str(tmp_path / "empty"), "--only", "bias", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert "the folder is empty; a checkpoint holds config.json" in line
    (tmp_path / "empty" / "config.json").write_text("{")
    done = hallmark("audit", str(tmp_path / "empty"), "--only", "bias", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert "config.json is not valid JSON" in line


def test_a_stage_that_fails_says_one_sentence(hallmark, server, tmp_path):
    hallmark = replace(hallmark, server=server)
    (tmp_path / "empty.jsonl").write_text("")
    source = f'kind = "jsonl"\nname = "s"\npath = "{tmp_path}/empty.jsonl"\n'
    (tmp_path / "my.toml").write_text(f'name = "my"\n[[ingest.sources]]\n{source}')
    done = hallmark("run", str(tmp_path / "my.toml"), code=1)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("hallmark: stage ingest: no document could be read")
    assert "'empty.jsonl': the file is empty" in line
    assert not list(hallmark.store.glob("artifacts/*/*"))


def test_ctrl_c_ends_at_once_with_one_sentence(hallmark):
    """The whole process group gets the signal, as from a terminal: Prefect's server too."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hallmark.flows.cli", "run", "smoke"],
        env={**os.environ, "HALLMARK_STORE": str(hallmark.store)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell in the background leaves SIGINT ignored to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list(hallmark.store.glob("work/ingest-*/parts/*")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)  # Prefect alone waits for over a minute
    assert process.returncode == 1
    assert "Error logging" not in stderr
    assert stderr.endswith("hallmark: stopped; what was committed stays, run again to go on\n")
    assert "Traceback" not in stderr
    (record,) = hallmark.store.glob("runs/*/run.json")
    record = json.loads(record.read_text())
    assert (record["status"], record["error"]) == ("failed", "stopped")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_study_that_is_stopped_waits_for_no_world(hallmark, how):
    """Its worlds would train for days. What they started ends with them."""
    settings = {
        **SMALL,
        "pretrain.train.steps": 10_000_000,
        "pretrain.train.checkpoint_every": 10_000_000,
        "pretrain.train.validate_every": 10_000_000,
    }
    process = start(
        hallmark,
        "study",
        "--worlds-with-effects",
        "2",
        "--worlds-without-effects",
        "0",
        *(f"--set={name}={json.dumps(value)}" for name, value in settings.items()),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        while not (jobs := list(hallmark.store.glob("work/pretrain-*/job.json"))):
            assert process.poll() is None, process.communicate()
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
        with contextlib.suppress(ProcessLookupError):  # what did not end would train for days
            os.killpg(process.pid, signal.SIGKILL)


def commands():
    """The command lines of all processes."""
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
    """As cron and daemons start it: descriptor 0 is free, and something else would get it."""
    (tmp_path / "a.jsonl").write_text('{"text": "Hello."}\n')
    (tmp_path / "my.toml").write_text(
        'name = "my"\n[[ingest.sources]]\nkind = "jsonl"\nname = "s"\n'
        f'path = "{tmp_path}/a.jsonl"\n'
    )
    command = ("run", str(tmp_path / "my.toml"), "--until", "ingest")
    process = start(hallmark, *command, preexec_fn=lambda: os.close(0))
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr


UNANSWERED = "no Prefect server answers at '{}', which PREFECT_API_URL"


def test_a_prefect_server_that_does_not_answer_is_named(hallmark):
    url = "http://127.0.0.1:9/api"
    (line,) = replace(hallmark, server=url)("run", "smoke", code=1).stderr.strip().splitlines()
    assert UNANSWERED.format(url) in line


def test_what_is_no_address_of_a_prefect_server_is_named(hallmark):
    """In a process of its own: Prefect reads it when it is imported."""
    process = start(hallmark, "run", "smoke", env={"PREFECT_API_URL": "nonsense"})
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = stderr.strip().splitlines()
    assert UNANSWERED.format("nonsense") in line


def test_a_prefect_that_cannot_start_says_why(hallmark):
    process = start(hallmark, "run", "smoke", env={"PREFECT_HOME": os.devnull})
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    last = stderr.strip().splitlines()[-1]
    assert "PREFECT_HOME" in last and "Traceback" not in stderr and "Fatal" not in stderr


def test_a_reader_that_goes_away_is_no_error(hallmark):
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
        "report",
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


@pytest.mark.parametrize("name", COMMAND_DESCRIPTIONS)
def test_the_overview_says_of_a_command_what_the_command_says(name):
    said = inspect.getdoc(app[name].default_command).split("\n\n")[0]
    assert " ".join(said.split()) == COMMAND_DESCRIPTIONS[name]


def test_the_overview_waits_for_no_command():
    program = "import sys; from hallmark.flows.cli import main; main(['--help']); "
    program += "sys.exit(any(m in sys.modules for m in ('torch', 'prefect', 'pyarrow.dataset')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "Audit a checkpoint" in done.stdout, done.stderr


def test_a_warning_does_not_turn_the_terminal(capsys):
    _StderrLogHandler().emit(logging.makeLogRecord({"msg": "left out: \x1b[31mrun"}))
    assert capsys.readouterr().err == "left out: ‹U+001B›[31mrun\n"


def test_names_out_of_files_of_users_do_not_turn_a_terminal():
    numbers = dict.fromkeys(("value", "low", "high", "null_value"))
    finding = {
        "audit": "bbq",
        "metric": "accuracy",
        "slice": "category=\x1b[31mAge",
        "n": 0,
        "method": "items of \x1b]0;a.csv",
        **numbers,
    }
    report = dict.fromkeys(
        ("evidence_table", "artifact", "is_overlap_unknown", "min_span_tokens")
    ) | {"finding": finding}
    said = render_finding_trace(report | {"checkpoint": "m\x07", "row_count": 0, "worst_rows": []})
    assert "\x1b" not in said and "\x07" not in said
    assert "bbq.accuracy[category=‹U+001B›[31mAge]" in said and "‹U+0007›" in said


def test_settings(hallmark):
    (row,) = [r for r in hallmark.json("settings", "split") if r["key"] == "validation_share"]
    assert row["default"] == 0.05 and "share of the clusters" in row["meaning"]
    assert "choose one of" in hallmark("settings", "nowhere", code=2).stderr


def test_doctor(hallmark):
    findings = hallmark.json("doctor")
    assert {f["check"] for f in findings} >= {"python", "device", "scorers", "prefect", "store"}
    assert all(f["is_ok"] for f in findings)
    assert f"{hallmark.store} can be made" in findings[-1]["message"]
    assert not hallmark.store.exists()
    hallmark.store.mkdir()
    assert f"{hallmark.store} can be written" in hallmark.json("doctor")[-1]["message"]


def test_debug_shows_the_traceback(hallmark):
    done = here(("run", "nonsense", "--debug"), {"HALLMARK_STORE": str(hallmark.store)})
    assert done.returncode == 2
    assert "Traceback" in done.stderr and "hallmark: there is no config 'nonsense'" in done.stderr
