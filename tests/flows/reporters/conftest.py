"""Give reporters enough time for all events, also on a busy machine."""

import pytest

from hallmark.flows.reporters import reporting


@pytest.fixture(autouse=True)
def wait_for_reporters(monkeypatch):
    monkeypatch.setattr(reporting, "DRAIN_SECONDS", 100.0)
