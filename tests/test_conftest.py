"""The rule of tests/conftest.py that an unexpected skip fails in CI."""

from types import SimpleNamespace

import pytest

from tests.conftest import EXPECTED_SKIPS, pytest_runtest_makereport


def skip_in_hook(reason):
    """Skip for this reason, hand the skip to the hook, and return what the hook reports."""
    call = SimpleNamespace(excinfo=None)
    try:
        pytest.skip(reason)
    except pytest.skip.Exception:
        call.excinfo = pytest.ExceptionInfo.from_current()
    pytest_runtest_makereport(None, call)
    return call.excinfo


def test_an_unexpected_skip_fails_in_ci_with_its_place(monkeypatch):
    monkeypatch.setenv("CI", "1")
    failure = skip_in_hook("no reason at all")
    assert failure.errisinstance(AssertionError)
    assert "unexpected skip in CI: no reason at all" in str(failure.getrepr())
    assert "pytest.skip(reason)" in str(failure.getrepr(chain=True))


@pytest.mark.parametrize(("ci", "reason"), [("1", EXPECTED_SKIPS[0]), ("", "no reason at all")])
def test_other_skips_stay_skips(monkeypatch, ci, reason):
    monkeypatch.setenv("CI", ci)
    assert skip_in_hook(reason).errisinstance(pytest.skip.Exception)
