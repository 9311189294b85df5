import os

import pytest

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

#: Skips that are expected; in CI any other fails the run.
EXPECTED_SKIPS = ("this machine has a CUDA device", "shared data folder is absent")


def pytest_runtest_makereport(item, call):
    """In CI an unexpected skip is a failure."""
    if os.environ.get("CI") and call.excinfo and call.excinfo.errisinstance(pytest.skip.Exception):
        reason = str(call.excinfo.value)
        if not any(expected in reason for expected in EXPECTED_SKIPS):
            call.excinfo = pytest.ExceptionInfo.from_exception(
                AssertionError(f"unexpected skip in CI: {reason}")
            )


@pytest.fixture
def session(tmp_path):
    """A session over a fresh store."""
    from tasks.stage import Session, open_session
    from tasks.store import Store

    with open_session(Session(Store(tmp_path / "store"))) as opened:
        yield opened
