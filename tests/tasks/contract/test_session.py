"""Sessions: which one a stage finds, and whom a watcher tells."""

import contextvars
import logging
import threading

import pytest

from hallmark.tasks.contract import (
    BackgroundListener,
    Event,
    HallmarkError,
    Session,
    Store,
    get_current_session,
    open_session,
)
from tests.tasks.contract.stages import MakeConfig, make


def test_the_innermost_session_is_found_and_none_outside(tmp_path):
    """In a context of its own: fixtures of other tests hold sessions open."""
    contextvars.Context().run(_innermost, tmp_path)


def _innermost(tmp_path):
    outer, inner = (Session(Store(tmp_path / name)) for name in ("outer", "inner"))
    with pytest.raises(HallmarkError, match="a stage was called outside a session"):
        get_current_session()
    with open_session(outer) as opened:
        assert opened is outer is get_current_session()
        with pytest.raises(KeyError), open_session(inner):
            assert get_current_session() is inner
            raise KeyError
        assert get_current_session() is outer
    with pytest.raises(HallmarkError, match="outside a session"):
        make(MakeConfig(documents=1))


def test_a_session_holds_its_store_and_a_plan_does_not(tmp_path):
    store = Store(tmp_path)
    asked = []

    def plan(stage, inputs, config):
        asked.append((stage.run_label, inputs, config.documents))
        return "a forecast"

    with open_session(Session(store)), store.try_exclusive_lock() as free:
        assert not free
    with open_session(Session(store, plan_stage=plan)):
        with store.try_exclusive_lock() as free:
            assert free
        assert make.with_label("first")(MakeConfig(documents=3)) == "a forecast"
    assert asked == [("first", (), 3)]
    assert store.list_artifacts("make") == []


def test_of_progress_that_waits_the_newest_is_heard_and_all_that_stands_between():
    heard = []
    watch = BackgroundListener(
        lambda event: heard.append((event.kind, event.completed)), "a late one", drain_timeout=30
    )
    for kind, done in (
        ("progress", 1),
        ("progress", 2),
        ("child", 0),
        ("progress", 3),
        ("progress", 4),
        ("done", 0),
    ):
        watch(Event(kind, "make", completed=done))
    with watch:
        pass
    assert heard == [("progress", 4), ("child", 0), ("done", 0)]


def test_what_was_said_is_heard_before_the_watcher_ends(caplog):
    heard, here = [], threading.get_ident()

    def hear(event):
        heard.append((event.label, threading.get_ident() == here))
        raise ValueError(f"cannot show {event.label}\nat all")

    with (
        caplog.at_level(logging.WARNING),
        BackgroundListener(hear, "the page", drain_timeout=30) as watch,
    ):
        for label in "abc":
            watch(Event("done", label))
    assert heard == [("a", False), ("b", False), ("c", False)]
    assert [record.getMessage() for record in caplog.records] == [
        "the page failed: ValueError: cannot show a; the run continues without it"
    ]
    assert not watch.thread.is_alive()
