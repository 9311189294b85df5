"""The site is replaced completely or not at all."""

import os
import threading

import pytest

import hallmark.flows.site
from hallmark.flows.run_recording import start_run
from hallmark.flows.run_request import RunRequest
from hallmark.flows.site import (
    build_store_site,
    replace_site_folder,
    try_build_site,
    try_exchange_folders,
)
from hallmark.tasks.contract import Store, UsageError


def write(folder, text):
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "page.html").write_text(text)
    (folder / "index.html").write_text(text)


def texts(folder):
    return {path.read_text() for path in folder.rglob("*.html")}


@pytest.fixture
def site(tmp_path):
    with replace_site_folder(tmp_path / "site") as new:
        write(new, "old")
    return tmp_path / "site"


@pytest.fixture(params=["exchanged", "renamed"])
def way(request, monkeypatch):
    """With and without support of the system for exchanging folders."""
    if request.param == "renamed":
        monkeypatch.setattr(hallmark.flows.site, "try_exchange_folders", lambda one, other: False)


def test_a_new_site_replaces_the_old_one(way, site):
    with replace_site_folder(site) as new:
        write(new, "new")
        (new / "index.html").rename(new / "start.html")
        assert texts(site) == {"old"}
        (new / "start.html").rename(new / "index.html")
    assert texts(site) == {"new"}
    assert os.listdir(site.parent) == ["site"]


def test_a_failed_build_keeps_the_old_site(way, site):
    with pytest.raises(ValueError, match="half way"), replace_site_folder(site) as new:
        write(new, "half")
        raise ValueError("half way")
    assert texts(site) == {"old"}
    assert os.listdir(site.parent) == ["site"]


def test_the_old_site_is_restored_if_it_cannot_be_replaced(site, monkeypatch):
    monkeypatch.setattr(hallmark.flows.site, "try_exchange_folders", lambda one, other: False)
    with pytest.raises(FileNotFoundError), replace_site_folder(site) as new:
        new.rmdir()
    assert texts(site) == {"old"}
    assert os.listdir(site.parent) == ["site"]


def test_a_reader_always_finds_a_complete_page(site):
    over, seen = threading.Event(), []

    def read():
        while not over.is_set():
            try:
                seen.append((site / "index.html").read_text())
            except OSError as error:
                seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        with replace_site_folder(site) as new:
            write(new, f"{number}")
    over.set()
    reader.join()
    assert {"old", *map(str, range(50))} >= set(seen) != set()


def test_folders_are_exchanged_or_false_is_returned(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    done = try_exchange_folders(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path / "a") == (["b"] if done else ["a"])
    assert not try_exchange_folders(tmp_path / "a", tmp_path / "nowhere")


def test_the_files_of_a_killed_build_are_removed(site):
    left = site.with_name(".site-new-0123abcd")
    write_into = left / "runs"
    write_into.mkdir(parents=True)
    with replace_site_folder(site) as new:
        write(new, "new")
    assert os.listdir(site.parent) == ["site"]


@pytest.mark.parametrize("name", ["notes.txt", "runs/a/run.json"])
def test_a_folder_with_other_files_is_not_replaced(tmp_path, name):
    mine = tmp_path / "mine"
    (mine / name).parent.mkdir(parents=True)
    (mine / name).write_text("mine")
    (mine / "index.html").write_text("mine")
    with pytest.raises(UsageError, match="contains files that are not part of a site"):
        build_store_site(Store(tmp_path / "store"), mine)
    assert (mine / name).read_text() == "mine"


def test_a_failed_site_does_not_fail_the_run(tmp_path, caplog):
    """As on a server: without the command line."""
    store = Store(tmp_path / "store")
    (tmp_path / "store" / "site").write_text("in the way")
    with start_run(RunRequest(flow="pipeline", config="smoke", store=store.uri)) as run:
        pass
    assert run.record["status"] == "completed" and run.site_index is None
    assert "the site could not be built" in caplog.text and "hallmark export-site" in caplog.text
    (tmp_path / "store" / "site").unlink()
    with start_run(RunRequest(flow="pipeline", config="smoke", store=store.uri)) as second:
        pass
    assert second.site_index is not None and second.id in second.site_index.read_text()
    assert (second.site_index.parent / "runs" / run.id / "index.html").exists()
    assert try_build_site(store) == second.site_index
