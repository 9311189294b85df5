"""run.json records an unredacted site before any of its pages is written."""

import getpass
import json
import os

import pytest

from hallmark.flows.run_liveness import lease_run
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
    return json.loads(run.store.get(f"runs/{run.id}/run.json"))["unredacted_sites"]


def test_each_unredacted_site_is_recorded_with_user_time_and_folder(run, tmp_path):
    run, _ = run
    page = write_unredacted_site(run)
    assert page == tmp_path / "store" / "site-unredacted" / "runs" / run.id / "index.html"
    write_unredacted_site(run, tmp_path / "other")
    first, second = noted(run)
    assert first["written_by"] == getpass.getuser() and first["written_at"].startswith("20")
    assert first["folder"] == str(tmp_path / "store" / "site-unredacted")
    assert second["folder"] == str(tmp_path / "other")


def test_a_failed_unredacted_site_is_recorded_too(run):
    run, entry = run
    run.record["stages"] = [entry]
    with pytest.raises(HallmarkError, match="datasheet/0000, which the card requires, is missing"):
        write_unredacted_site(run)
    assert len(noted(run)) == 1


def test_a_refused_unredacted_site_is_not_recorded(run, tmp_path):
    run, _ = run
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "index.html").touch()
    with pytest.raises(UsageError, match="contains other files"):
        write_unredacted_site(run, tmp_path / "public")
    assert run.store.get(f"runs/{run.id}/run.json") is None


@pytest.mark.parametrize("place", ["store/artifacts/x", "store/site/x", "elsewhere/runs/r/x"])
def test_unredacted_pages_are_outside_sites_and_artifacts(run, tmp_path, place):
    run, _ = run
    for site in ("store/site", "elsewhere"):
        (tmp_path / site / "runs").mkdir(parents=True)
        (tmp_path / site / "index.html").touch()
    with pytest.raises(UsageError, match="choose a folder outside it"):
        write_unredacted_site(run, tmp_path / place)
    assert not (tmp_path / place).exists()


def test_a_running_run_gets_no_unredacted_site(run):
    run, _ = run
    run.record["status"] = "running"
    with lease_run(run.store, run.id), pytest.raises(UsageError, match="still running"):
        write_unredacted_site(run)
    assert run.store.get(f"runs/{run.id}/run.json") is None
