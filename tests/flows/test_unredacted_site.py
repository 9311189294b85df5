"""A run says that it was revealed, before any unmasked page is written."""

import getpass
import json
import os

import pytest

from hallmark.flows.runs import Run
from hallmark.flows.unredacted_site import write_unredacted_site
from hallmark.tasks.contract import HallmarkError, Store, UsageError


@pytest.fixture
def run(tmp_path):
    entry = {
        "label": "datasheet",
        "stage": "datasheet",
        "fingerprint": "0" * 64,
        "content": "",
        "artifact": "datasheet/0000",
        "cached": False,
        "seconds": 1.0,
    }
    record = {
        "run": "20260101-100000-aaaa",
        "flow": "corpus",
        "config_name": "x",
        "config": {},
        "status": "completed",
        "started": "2026-01-01T10:00:00+00:00",
        "ended": None,
        "stages": [],
        "error": None,
        "host": "elsewhere",
        "pid": os.getpid(),
    }
    return Run(Store(tmp_path / "store"), record), entry


def noted(run):
    return json.loads(run.store.get(f"runs/{run.id}/run.json"))["reveals"]


def test_each_reveal_is_noted_with_who_when_and_where(run, tmp_path):
    run, _ = run
    page = write_unredacted_site(run)
    assert page == tmp_path / "store" / "site-revealed" / "runs" / run.id / "index.html"
    write_unredacted_site(run, tmp_path / "other")
    first, second = noted(run)
    assert first["revealed_by"] == getpass.getuser() and first["revealed_at"].startswith("20")
    assert first["folder"] == str(tmp_path / "store" / "site-revealed")
    assert second["folder"] == str(tmp_path / "other")


def test_a_reveal_that_fails_is_noted_too(run):
    run, entry = run
    run.record["stages"] = [entry]
    with pytest.raises(HallmarkError, match="does not hold datasheet/0000"):
        write_unredacted_site(run)
    assert len(noted(run)) == 1


def test_a_reveal_that_is_refused_is_not_noted(run, tmp_path):
    run, _ = run
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "index.html").touch()
    with pytest.raises(UsageError, match="holds something else"):
        write_unredacted_site(run, tmp_path / "public")
    assert run.store.get(f"runs/{run.id}/run.json") is None


@pytest.mark.parametrize("place", ["store/artifacts/x", "store/site/x", "elsewhere/runs/r/x"])
def test_unmasked_pages_stand_in_no_site_and_among_no_artifacts(run, tmp_path, place):
    run, _ = run
    for site in ("store/site", "elsewhere"):
        (tmp_path / site / "runs").mkdir(parents=True)
        (tmp_path / site / "index.html").touch()
    with pytest.raises(UsageError, match="give a folder outside of it"):
        write_unredacted_site(run, tmp_path / place)
    assert not (tmp_path / place).exists()


def test_a_run_that_still_works_is_not_revealed(run):
    run, _ = run
    run.record["status"] = "running"
    with pytest.raises(UsageError, match="still running"):
        write_unredacted_site(run)
    assert run.store.get(f"runs/{run.id}/run.json") is None
