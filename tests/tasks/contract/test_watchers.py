"""Test that a listener of a stage can neither fail nor delay it."""

import logging
import threading
import time

import httpx
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

import hallmark.tasks.contract.prefect_reporter
from hallmark.tasks.contract import (
    BackgroundListener,
    Event,
    Session,
    StageContext,
    Store,
    open_session,
    stage,
)
from hallmark.tasks.contract.session import MAX_PENDING_METRIC_EVENTS
from tests.tasks.contract.stages import CountConfig, MakeConfig, make


def build_progress_event(done):
    return Event("progress", "make", None, 0.0, done, 10)


def collect_late_events(events):
    """Return the events that a listener gets that is blocked at its first event."""
    heard, go_on, first = [], threading.Event(), threading.Event()

    def hear(event):
        heard.append((event.kind, event.completed))
        first.set()
        go_on.wait()

    with BackgroundListener(hear, "a slow one", drain_timeout=30) as watch:
        watch(Event("start", "make"))
        assert first.wait(30)
        for event in events:
            watch(event)
        go_on.set()
    return heard


def test_listener_gets_all_events_in_order_except_old_progress():
    events = [build_progress_event(done) for done in range(1, 11)]
    heard = collect_late_events([*events, Event("done", "make")])
    assert heard == [("start", 0), ("progress", 10), ("done", 0)]


def test_metrics_are_delivered_when_progress_is_dropped():
    both = [
        (build_progress_event(done), Event("figures", "make", completed=done))
        for done in range(1, 4)
    ]
    heard = collect_late_events([event for pair in both for event in pair])
    assert heard == [("start", 0), ("progress", 3), *[("figures", done) for done in (1, 2, 3)]]


def test_listener_is_told_of_silence():
    heard, twice = [], threading.Event()

    def hear(event):
        heard.append(event.kind)
        if heard.count("silence") == 2:
            twice.set()

    with BackgroundListener(hear, "the terminal", drain_timeout=30, idle_interval=0.01) as watch:
        watch(Event("start", "make"))
        assert twice.wait(30)
    assert heard[0] == "start" and set(heard[1:]) == {"silence"}


def test_listener_that_raises_is_reported_once(session, caplog):
    heard = []

    def hear(event):
        heard.append(event)
        raise ConnectionError("nobody answers\nat all")

    with BackgroundListener(hear, "the page", drain_timeout=30) as watch:
        session.listener = watch
        artifact = make(MakeConfig(documents=3))
    assert artifact["documents"].row_count == 3
    assert [event.kind for event in heard if event.kind != "progress"] == ["start", "done"]
    [told] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert told.getMessage() == (
        "the page failed: ConnectionError: nobody answers; the run continues without it"
    )


def test_listener_that_hangs_is_abandoned(session):
    never = threading.Event()
    with BackgroundListener(lambda event: never.wait(), "the page", drain_timeout=0.2) as watch:
        session.listener = watch
        began = time.monotonic()
        make(MakeConfig(documents=3))
        for done in range(50_000):
            watch(build_progress_event(done))
            watch(Event("figures", "make", completed=done, metrics={"loss": 1.0}))
        assert len(watch.pending_events) <= MAX_PENDING_METRIC_EVENTS + 3
    assert time.monotonic() - began < 20
    never.set()


# In Prefect ----------------------------------------------------------------------------------


@stage(name="slow")
def slow(config: CountConfig, context: StageContext) -> None:
    """Run long enough for a progress bar."""
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        context.report_progress(1, 3, "half way")
        time.sleep(0.01)


@pytest.fixture
def prefect(server):
    with temporary_settings({PREFECT_API_URL: server}):
        yield


def run_slow(store):
    """Run the stage in a flow; return its artifact and the seconds of the flow's body."""

    @flow
    def once():
        began = time.monotonic()
        with open_session(Session(Store(store))):
            return slow(CountConfig()), time.monotonic() - began

    return once()


PAGES = ("create_progress_artifact", "create_markdown_artifact")


def test_prefect_shows_progress_and_artifact(prefect, tmp_path):
    artifact, _ = run_slow(tmp_path)
    newest_last = {"sort": "UPDATED_DESC"}
    found = httpx.post(f"{PREFECT_API_URL.value()}/artifacts/filter", json=newest_last).json()
    pages = {page["key"]: page for page in reversed(found)}
    assert pages["slow"]["data"] == 100.0 and pages["slow"]["task_run_id"]
    assert artifact.name in pages["stage-slow"]["data"]


@pytest.mark.parametrize("broken", PAGES)
def test_refusing_server_fails_no_stage(prefect, tmp_path, monkeypatch, caplog, broken):
    def refuse(*_, **__):
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(hallmark.tasks.contract.prefect_reporter, broken, refuse)
    artifact, _ = run_slow(tmp_path)
    assert artifact.stage == "slow"
    told = [r.getMessage() for r in caplog.records if "the Prefect page for slow" in r.getMessage()]
    assert told == [
        "the Prefect page for slow failed: ConnectionError: the server is gone; "
        "the run continues without it"
    ]


@pytest.mark.parametrize("broken", PAGES)
def test_silent_server_delays_no_stage(prefect, tmp_path, monkeypatch, broken):
    never = threading.Event()
    monkeypatch.setattr(
        hallmark.tasks.contract.prefect_reporter, broken, lambda *_, **__: never.wait()
    )
    artifact, seconds = run_slow(tmp_path)
    assert artifact.stage == "slow"
    assert seconds < 1.5 + 1.0 + 2.0  # its work, the watcher's patience, and Prefect's own time
    never.set()
