"""The site is replaced at once or not at all."""

import os
import threading

import pytest

import hallmark.flows.site
from hallmark.flows.run_recording import start_run
from hallmark.flows.site import (
    build_store_site,
    exchange_folders,
    replace_site_folder,
    try_build_site,
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
    """With the system's exchange of two folders, and as where it has none."""
    if request.param == "renamed":
        monkeypatch.setattr(hallmark.flows.site, "exchange_folders", lambda one, other: False)


def test_a_new_site_takes_the_place_of_the_old_one(way, site):
    with replace_site_folder(site) as new:
        write(new, "new")
        (new / "index.html").rename(new / "start.html")
        assert texts(site) == {"old"}
        (new / "start.html").rename(new / "index.html")
    assert texts(site) == {"new"}
    assert os.listdir(site.parent) == ["site"]


def test_a_build_that_fails_leaves_the_old_site(way, site):
    with pytest.raises(ValueError, match="half way"), replace_site_folder(site) as new:
        write(new, "half")
        raise ValueError("half way")
    assert texts(site) == {"old"}
    assert os.listdir(site.parent) == ["site"]


def test_the_old_site_comes_back_where_the_new_one_cannot_take_its_place(site, monkeypatch):
    monkeypatch.setattr(hallmark.flows.site, "exchange_folders", lambda one, other: False)
    with pytest.raises(FileNotFoundError), replace_site_folder(site) as new:
        new.rmdir()
    assert texts(site) == {"old"}
    assert os.listdir(site.parent) == ["site"]


def test_a_reader_always_finds_a_whole_page(site):
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


def test_the_system_exchanges_folders_or_says_no(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    done = exchange_folders(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path / "a") == (["b"] if done else ["a"])
    assert not exchange_folders(tmp_path / "a", tmp_path / "nowhere")


def test_what_a_killed_build_left_is_removed(site):
    left = site.with_name(".site-new-0123abcd")
    write_into = left / "runs"
    write_into.mkdir(parents=True)
    with replace_site_folder(site) as new:
        write(new, "new")
    assert os.listdir(site.parent) == ["site"]


@pytest.mark.parametrize("name", ["notes.txt", "runs/a/run.json"])
def test_a_folder_with_other_things_is_not_replaced(tmp_path, name):
    mine = tmp_path / "mine"
    (mine / name).parent.mkdir(parents=True)
    (mine / name).write_text("mine")
    (mine / "index.html").write_text("mine")
    with pytest.raises(UsageError, match="holds other things than a site"):
        build_store_site(Store(tmp_path / "store"), mine)
    assert (mine / name).read_text() == "mine"


def test_a_site_that_cannot_be_built_fails_no_run(tmp_path, caplog):
    """As a server runs it: through the flow's own record, without the command line."""
    store = Store(tmp_path / "store")
    (tmp_path / "store" / "site").write_text("in the way")
    with start_run("pipeline", "smoke", [], store=store.uri) as run:
        pass
    assert run.record["status"] == "completed" and run.site_index is None
    assert "the site could not be built" in caplog.text and "hallmark report" in caplog.text
    (tmp_path / "store" / "site").unlink()
    with start_run("pipeline", "smoke", [], store=store.uri) as second:
        pass
    assert second.site_index is not None and second.id in second.site_index.read_text()
    assert (second.site_index.parent / "runs" / run.id / "index.html").exists()
    assert try_build_site(store) == second.site_index
