"""Relative paths of a run start from the folder in which it was started."""

import shlex
import subprocess

import pytest

from hallmark.flows.commands.status import build_status_report, render_status
from hallmark.flows.run_recording import start_run
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import Store
from hallmark.tasks.corpus.ingest import ingest

CONFIG = """
name = "mine"
[[ingest.sources]]
kind = "text"
name = "letters"
path = "letters"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config, its source and the store of its run."""
    home = tmp_path / "my home"
    (home / "letters").mkdir(parents=True)
    (home / "letters" / "a.txt").write_text("Dear Ottilie, the harbour is full of lamps.")
    (home / "my.toml").write_text(CONFIG)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HALLMARK_STORE", "runs")
    with start_run(RunRequest(flow="corpus", config="my.toml")) as run:
        ingest(run.config.ingest)
    monkeypatch.chdir(tmp_path)
    return home


def report_of(home):
    return build_status_report(open_run("latest", Store(home / "runs")))


def test_from_another_folder_nothing_is_stale(home):
    report = report_of(home)
    assert [stage["stale_reasons"] for stage in report["stages"]] == [[]]
    assert (
        f"relative paths are resolved against {home}, where the run was started"
        in render_status(report)
    )


def test_a_changed_input_is_stale_from_another_folder_too(home):
    (home / "letters" / "b.txt").write_text("Another letter.")
    report = report_of(home)
    assert [stage["stale_reasons"] for stage in report["stages"]] == [["external input: letters"]]
    command = render_status(report).rpartition("rerun stale stages with: ")[2]
    assert command == f"cd '{home}' && hallmark run '{home}/my.toml'"  # its store is ./runs there
    words = shlex.split(command)
    shown = subprocess.run(["sh", "-c", f"{shlex.join(words[:2])} && pwd"], capture_output=True)
    assert shown.stdout.decode().strip() == str(home)


def test_a_store_with_another_name_is_named_by_its_absolute_path(home, monkeypatch, tmp_path):
    monkeypatch.delenv("HALLMARK_STORE")
    (home / "runs").rename(home / "store")
    (home / "letters" / "b.txt").write_text("Another letter.")
    report = build_status_report(open_run("latest", Store("my home/store")))
    assert render_status(report).endswith(f"my.toml' --store '{home}/store'")


def test_no_folder_is_mentioned_in_the_folder_of_the_run(home, monkeypatch):
    monkeypatch.chdir(home)
    assert "relative paths" not in render_status(report_of(home))


def test_a_missing_folder_of_the_run_is_reported(home, tmp_path):
    home.rename(tmp_path / "moved")
    report = report_of(tmp_path / "moved")
    expected = f"resolved against the current folder, {tmp_path}, because {home}, where the run was"
    assert expected in render_status(report)


def test_a_run_without_a_recorded_folder_uses_the_current_one(home, monkeypatch):
    monkeypatch.chdir(home)
    run = open_run("latest", Store(home / "runs"))
    del run.record["folder"]
    report = build_status_report(run)
    assert not report["stages"][0]["stale_reasons"] and "relative paths" not in render_status(
        report
    )
