"""Reporters hear the whole run, change nothing, and can neither fail nor delay it."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from hallmark.flows.config import load_config
from hallmark.flows.reporter_settings import REQUIRED_SETTINGS, ReportersConfig
from hallmark.flows.reporters import reporting
from hallmark.flows.reporters.reporting import REPORTER_KINDS, check_reporters_installed
from hallmark.flows.run_recording import record_run
from hallmark.tasks.contract import Store, UsageError
from tests.flows.reporters.stages import raise_text
from tests.run_requests import resolve
from tests.tasks.contract.stages import CountConfig, MakeConfig, make

SETTINGS = {
    "tensorboard": "reporters.tensorboard.folder=OUT/events",
    "mlflow": "reporters.mlflow.uri=OUT/mlruns",
    "wandb": "reporters.wandb.folder=OUT/wandb",
    "prometheus": "reporters.prometheus.folder=OUT/metrics",
    "openlineage": "reporters.openlineage.uri=OUT/events.jsonl",
}


def test_each_system_needs_the_setting_that_says_where():
    assert REQUIRED_SETTINGS.keys() == REPORTER_KINDS.keys() == SETTINGS.keys()
    assert REQUIRED_SETTINGS.keys() == ReportersConfig.model_fields.keys()
    for name, setting in REQUIRED_SETTINGS.items():
        with pytest.raises(UsageError, match=rf"so reporters\.{name}\.{setting} must be set"):
            load_config("smoke", [f'report_to=["{name}"]'])
        load_config("smoke", [f'report_to=["{name}"]', SETTINGS[name]])


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ('report_to=["tensorboard", "tensorboard"]', "report_to lists 'tensorboard' twice"),
        ('report_to=["aim"]', "report_to.0: "),
        ("reporters.openlineage.uri=ftp://host/x", "must be a path, or an address"),
        ("reporters.openlineage.uri=kafka://host/x", "must be a path, or an address"),
        ("reporters.mlflow.uri=https://user:key@host/", "user name or a password"),
        ("reporters.mlflow.uri=http://[::1", "is not a valid address"),
        ('reporters.openlineage.namespace="a\\nb"', "printable characters"),
        ("reporters.wandb.mode=always", "reporters.wandb.mode"),
        ("reporters.aim.folder=x", "reporters.aim"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(override, problem):
    with pytest.raises(UsageError) as error:
        load_config("smoke", [SETTINGS["tensorboard"], override])
    assert problem in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_missing_library_is_one_sentence_with_the_command(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, REPORTER_KINDS[name].library, None)
    with pytest.raises(UsageError, match=rf"pip install .*\[{name}\]"):
        check_reporters_installed([name])
    overrides = [f"store={tmp_path / 'store'}", SETTINGS[name].replace("OUT", str(tmp_path))]
    with pytest.raises(UsageError, match=r"report_to needs the .* library, which"):
        resolve("smoke", [*overrides, f'report_to=["{name}"]'])
    assert resolve("smoke", overrides).config.report_to == ()


def test_the_settings_change_no_section_of_a_stage():
    settings = [f"report_to={[*SETTINGS]}", *SETTINGS.values()]
    changed = load_config("smoke", settings)
    plain = load_config("smoke")
    update = {"report_to": plain.report_to, "reporters": plain.reporters}
    assert changed != plain and changed.model_copy(update=update) == plain


@pytest.fixture
def config():
    return load_config("smoke", ['report_to=["tensorboard"]', SETTINGS["tensorboard"]])


def set_reporter(monkeypatch, reporter):
    monkeypatch.setattr(reporting, "create_reporter", lambda name, settings, run: reporter)


def list_warnings(caplog):
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("TensorBoard")]


def test_a_reporter_hears_the_run_its_stages_and_their_inputs(tmp_path, config, monkeypatch):
    heard = []
    set_reporter(monkeypatch, heard.append)
    store = Store(tmp_path)
    for _ in range(2):
        with record_run("corpus", config, store):
            make(MakeConfig(documents=3))
    with pytest.raises(ValueError), record_run("corpus", config, store):
        raise_text(CountConfig())
    stage_events = [event for event in heard if event.kind not in ("progress", "silence")]
    events = [(event.kind, event.label, event.description) for event in stage_events]
    assert events == [
        ("run_started", "", ""),
        ("start", "make", ""),
        ("done", "make", ""),
        ("run_ended", "", "completed"),
        ("run_started", "", ""),
        ("cached", "make", ""),
        ("run_ended", "", "completed"),
        ("run_started", "", ""),
        ("start", "raise_text", ""),
        ("failed", "raise_text", "ValueError"),
        ("run_ended", "", "failed"),
    ]


def test_a_reporter_that_fails_is_reported_once(tmp_path, config, monkeypatch, caplog):
    def refuse(event):
        raise ConnectionError(f"nobody answers to {event.kind}")

    set_reporter(monkeypatch, refuse)
    with record_run("corpus", config, Store(tmp_path)) as run:
        make(MakeConfig(documents=3))
    assert run.record["status"] == "completed"
    assert [
        record.getMessage() for record in caplog.records if "TensorBoard" in record.message
    ] == [
        "TensorBoard failed: ConnectionError: nobody answers to run_started; the run continues "
        "without it"
    ]


def test_a_reporter_that_hangs_delays_only_the_end_of_the_run(
    tmp_path, config, monkeypatch, caplog
):
    never = threading.Event()
    set_reporter(monkeypatch, lambda event: never.wait())
    monkeypatch.setattr(reporting, "DRAIN_SECONDS", 0.5)
    began = time.monotonic()
    with record_run("corpus", config, Store(tmp_path)) as run:
        make(MakeConfig(documents=3))
        seconds = time.monotonic() - began
    assert run.record["status"] == "completed"
    assert time.monotonic() - began < seconds + 10
    assert [
        record.getMessage() for record in caplog.records if "TensorBoard" in record.message
    ] == [
        "TensorBoard did not accept all events within 0.5 seconds after the end of the run; the "
        "remaining events are lost"
    ]
    never.set()
