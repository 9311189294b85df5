"""A run's relative paths start from the folder it was started in, wherever its status is asked."""

import shlex
import subprocess

import pytest

from hallmark.flows.commands.status import build_status_report, render_status
from hallmark.flows.run_recording import start_run
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
    """The folder of a run that read what lies beside its config, with its store in it."""
    home = tmp_path / "my home"
    (home / "letters").mkdir(parents=True)
    (home / "letters" / "a.txt").write_text("Dear Ottilie, the harbour is full of lamps.")
    (home / "my.toml").write_text(CONFIG)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HALLMARK_STORE", "runs")
    with start_run("corpus", "my.toml", ()) as run:
        ingest(run.config.ingest)
    monkeypatch.chdir(tmp_path)
    return home


def report_of(home):
    return build_status_report(open_run("latest", Store(home / "runs")))


def test_from_another_folder_nothing_is_stale(home):
    report = report_of(home)
    assert [stage["stale_reasons"] for stage in report["stages"]] == [[]]
    assert f"relative paths start from {home}, where the run was started" in render_status(report)


def test_a_changed_input_is_stale_from_there_too_and_runs_again_from_its_folder(home):
    (home / "letters" / "b.txt").write_text("Another letter.")
    report = report_of(home)
    assert [stage["stale_reasons"] for stage in report["stages"]] == [["outside: letters"]]
    command = render_status(report).rpartition("again with: ")[2]
    assert command == f"cd '{home}' && hallmark run '{home}/my.toml'"  # its store is ./runs there
    words = shlex.split(command)
    shown = subprocess.run(["sh", "-c", f"{shlex.join(words[:2])} && pwd"], capture_output=True)
    assert shown.stdout.decode().strip() == str(home)


def test_a_store_of_another_name_is_named_by_its_whole_path(home, monkeypatch, tmp_path):
    monkeypatch.delenv("HALLMARK_STORE")
    (home / "runs").rename(home / "store")
    (home / "letters" / "b.txt").write_text("Another letter.")
    report = build_status_report(open_run("latest", Store("my home/store")))
    assert render_status(report).endswith(f"my.toml' --store '{home}/store'")


def test_in_its_own_folder_no_other_is_spoken_of(home, monkeypatch):
    monkeypatch.chdir(home)
    assert "relative paths" not in render_status(report_of(home))


def test_where_that_folder_is_gone_it_is_said_what_the_inputs_are_compared_with(home, tmp_path):
    home.rename(tmp_path / "moved")
    report = report_of(tmp_path / "moved")
    said = f"relative paths start from here, {tmp_path}: {home}, where the run was started, is no"
    assert said in render_status(report)


def test_a_run_of_which_no_folder_is_known_is_compared_with_what_is_here(home, monkeypatch):
    monkeypatch.chdir(home)
    run = open_run("latest", Store(home / "runs"))
    del run.record["folder"]
    report = build_status_report(run)
    assert not report["stages"][0]["stale_reasons"] and "relative paths" not in render_status(
        report
    )
