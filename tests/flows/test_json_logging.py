"""With --log-format json, stderr contains one JSON object per line and nothing else."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading

import pytest

from hallmark.flows import json_logging
from hallmark.flows.config import load_config
from hallmark.flows.json_logging import (
    JsonEventLog,
    JsonLog,
    JsonLogHandler,
    JsonStderr,
    install_json_log,
    log_run_end,
    log_run_start,
)
from hallmark.flows.prefect_logging import print_prefect_warnings_as_lines
from hallmark.flows.run_recording import frontend, record_run
from hallmark.tasks.contract import Event, Store
from tests.tasks.contract.stages import MakeConfig, make


@pytest.fixture
def log():
    return JsonLog(io.StringIO())


def read(log):
    """Read the records of a log; each must have the time, the level and a message."""
    records = [json.loads(line) for line in log.stream.getvalue().splitlines()]
    assert all({"time", "level", "message"} <= record.keys() for record in records)
    return records


def test_a_message_is_one_line_whatever_it_contains(log):
    message = 'two\nlines\r\n\u2028"quoted" \x1b[31m \u202e \ud800 é'
    logger = logging.Logger("hallmark.test")
    logger.addHandler(JsonLogHandler(log))
    logger.warning("about %s", message)
    assert log.stream.getvalue().count("\n") == 1 and log.stream.getvalue().isascii()
    [record] = read(log)
    assert record["message"].startswith("about two\nlines") and record["message"].endswith(" é")
    assert "\x1b" not in record["message"] and "\u202e" not in record["message"]
    assert (record["level"], record["logger"]) == ("WARNING", "hallmark.test")


def test_an_error_has_its_class_and_sentence(log):
    logger = logging.Logger("x")
    logger.addHandler(JsonLogHandler(log))
    try:
        raise ValueError("no\nvalue")
    except ValueError:
        logger.exception("failed")
    [record] = read(log)
    assert (record["error"], record["message"]) == ("ValueError: no\nvalue", "failed")


def test_printed_lines_become_records(log):
    stderr = JsonStderr(log)
    print("one\ntwo", "words", file=stderr)
    stderr.write("\n  \nthr")
    stderr.write("ee\nrest")
    assert [record["message"] for record in read(log)] == ["one", "two words", "three"]
    stderr.write_incomplete_lines()
    stderr.write_incomplete_lines()
    assert [record["message"] for record in read(log)][3:] == ["rest"]


def test_each_thread_prints_lines_of_its_own(log):
    stderr = JsonStderr(log)
    stderr.write("begun ")
    other_thread = threading.Thread(target=print, args=("other",), kwargs={"file": stderr})
    other_thread.start()
    other_thread.join()
    stderr.write("here\n")
    assert [record["message"] for record in read(log)] == ["other", "begun here"]


def test_records_of_threads_do_not_mix(log):
    stderr = JsonStderr(log)

    def write():
        for number in range(200):
            log.write("INFO", f"record {number}")
            print(f"printed {number}", file=stderr)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(log)) == 4 * 200 * 2


def test_events_have_the_fields_of_their_kind(log, monkeypatch):
    hear = JsonEventLog(log)
    hear(Event("start", "pretrain"))
    hear(Event("progress", "pretrain", completed=1, total=9))
    monkeypatch.setattr(json_logging, "PROGRESS_SECONDS", 0.0)
    hear(Event("progress", "pretrain", completed=2, total=0, description="fast"))
    hear(Event("figures", "pretrain", completed=2, metrics={"loss": 4.5, "mfu": float("nan")}))
    record = logging.makeLogRecord({"msg": "inside", "name": "hallmark.x"})
    JsonLogHandler(log).handle(record)
    hear(Event("silence", ""))
    hear(Event("failed", "pretrain", description="ValueError"))
    log.write("INFO", "outside")
    fields = [
        {name: value for name, value in record.items() if name not in ("time", "message", "level")}
        for record in read(log)
    ]
    assert fields == [
        {"stage": "pretrain", "event": "start"},
        {"stage": "pretrain", "event": "progress", "completed": 2, "description": "fast"},
        {
            "stage": "pretrain",
            "event": "figures",
            "step": 2,
            "figures": {"loss": 4.5, "mfu": None},
        },
        {"stage": "pretrain", "logger": "hallmark.x"},
        {"stage": "pretrain", "event": "failed", "error": "ValueError"},
        {},
    ]


def test_a_run_and_its_stages_are_recorded(tmp_path, log, monkeypatch):
    monkeypatch.setattr(json_logging, "install_json_log", lambda: log)
    monkeypatch.setattr(frontend, "on_event", JsonEventLog(log))
    monkeypatch.setattr(frontend, "on_run_start", log_run_start)
    monkeypatch.setattr(frontend, "on_run_end", log_run_end)
    store = Store(tmp_path)
    for error in (None, ValueError("a\nreason")):
        try:
            with record_run("corpus", load_config("smoke"), store) as run:
                made = make(MakeConfig(documents=3))
                if error:
                    raise error
        except ValueError:
            pass
    events = [
        (record["event"], record.get("stage"), record["level"])
        for record in read(log)
        if record["event"] != "progress"
    ]
    assert events == [
        ("run_started", None, "INFO"),
        ("start", "make", "INFO"),
        ("done", "make", "INFO"),
        ("run_ended", None, "INFO"),
        ("run_started", None, "INFO"),
        ("cached", "make", "INFO"),
        ("run_ended", None, "ERROR"),
    ]
    records = read(log)
    done = next(record for record in records if record["event"] == "done")
    assert (done["artifact"], done["rows"]) == (made.name, {"documents": 3})
    assert records[-1]["run"] == run.id and records[-1]["status"] == "failed"
    assert records[-1]["reason"] == "a" and records[0]["run"] != run.id


def test_prefects_warnings_are_records(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv(json_logging.LOG_FORMAT_VARIABLE, "json")
    from prefect.logging.handlers import PrefectConsoleHandler

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [PrefectConsoleHandler(level=logging.WARNING)])
    print_prefect_warnings_as_lines()
    logging.getLogger("prefect.events").warning("lost\nthe connection")
    logging.getLogger("prefect.events").warning("lost\nthe connection")  # printed once a minute
    logging.getLogger("hallmark").warning("printed by main")
    # Threads that earlier tests started may print records, too.
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    printed = [(each["level"], each["message"]) for each in records if "logger" in each]
    assert printed.count(("WARNING", "lost\nthe connection")) == 1
    assert ("WARNING", "printed by main") not in printed
    assert install_json_log().stream is stream


def run_command(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "hallmark.flows.cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize("option", [("--log-format", "json"), ("--log-format=json",), ()])
def test_the_error_of_a_command_is_a_record_with_its_exit_code(tmp_path, option):
    store = str(tmp_path / "none")
    environment = {} if option else {json_logging.LOG_FORMAT_VARIABLE: "json"}
    done, [record] = run_command("status", "x\ny", "--store", store, *option, **environment)
    assert done.returncode == record["exit_code"] == 2 and record["level"] == "ERROR"
    assert "none" in record["message"] and done.stdout == ""


def test_a_process_of_a_served_run_writes_records():
    program = (
        "import logging\n"
        "from hallmark.flows import deployment_entrypoint as entrypoint\n"
        "entrypoint._print_line('run x was refused')\n"
        "logging.getLogger('hallmark').warning('of hallmark')\n"
        "logging.getLogger('prefect.flow_runs').error('Finished in state Failed()')\n"
        "print(entrypoint.frontend.on_run_start.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            json_logging.LOG_FORMAT_VARIABLE: "json",
            "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    records = [json.loads(line) for line in done.stderr.splitlines()]
    messages = [(record["level"], record["message"]) for record in records]
    assert messages == [("INFO", "run x was refused"), ("WARNING", "of hallmark")]
    assert done.stdout == "log_run_start\n"


def test_another_format_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "hallmark.flows.cli", "runs", "--log-format", "xml"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == "hallmark: --log-format xml: choose text or json\n"


@pytest.mark.slow
def test_a_whole_run_writes_nothing_but_records(tmp_path):
    config = tmp_path / "notes.toml"
    (tmp_path / "notes.txt").write_text("Some words of a text.\n" * 20)
    config.write_text(
        'name = "notes"\n[[ingest.sources]]\nkind = "text"\nname = "notes"\npath = "notes.txt"\n'
    )
    options = ["--store", str(tmp_path / "store"), "--until", "split", "--log-format", "json"]
    done, records = run_command("run", str(config), *options)
    assert done.returncode == 0, done.stderr
    events = [record["event"] for record in records if "event" in record]
    assert events[0] == "run_started" and events[-1] == "run_ended"
    assert {record["run"] for record in records if "event" in record} == {records[-1]["run"]}
    stages = [record["stage"] for record in records if record.get("event") == "done"]
    assert stages[0] == "ingest" and stages[-1] == "split"
    assert all("Some words" not in json.dumps(record) for record in records)
