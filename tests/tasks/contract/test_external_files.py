"""Files outside the store that change while a stage reads them: nothing of it is kept."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

from hallmark.tasks.contract import (
    Artifact,
    FileChangedError,
    HallmarkError,
    Session,
    StageConfig,
    StageContext,
    Store,
    TableWriters,
    folder_to_artifact,
    hash_file,
    open_session,
    stage,
)
from hallmark.tasks.contract.external_files import ExternalFiles, read_file_state

LINES = pa.schema([("line", pa.string())])


class ReadConfig(StageConfig):
    path: Path
    items: int = 3


def read_line(number: int, path: Path, out: TableWriters) -> None:
    out.get_table_writer("lines").write({"line": [path.read_text()]})


@stage(
    name="read_file",
    tables={"lines": LINES},
    external_digests=lambda config, secret_id: {"words": hash_file(config.path)},
)
def read_file(config: ReadConfig, context: StageContext) -> None:
    context.map_items(read_line, range(config.items), config.path)


@stage(name="read_folder", tables={"lines": LINES}, reads={"model": ("*.txt",)})
def read_folder(model: Artifact, config: ReadConfig, context: StageContext) -> None:
    context.map_items(read_line, range(config.items), Path(model.folder) / "a.txt")


@stage(name="read_whole_folder", tables={"lines": LINES})
def read_whole_folder(model: Artifact, config: ReadConfig, context: StageContext) -> None:
    context.map_items(read_line, range(config.items), Path(model.folder) / "a.txt")


def rewrite(path):
    """In place, with the old time of content."""
    before = path.stat()
    path.write_text("new")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path):
    other = path.with_name("other")
    shutil.copy2(path, other)
    other.write_text("new")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def swap_folder(path):
    shutil.copytree(path.parent, path.parent.with_name("copy"))
    rewrite(path.parent.with_name("copy") / path.name)
    path.parent.rename(path.parent.with_name("away"))
    path.parent.with_name("copy").rename(path.parent)


def swap_folder_back(path):
    path.parent.rename(path.parent.with_name("copy"))
    path.parent.with_name("away").rename(path.parent)


WAYS = {"rewritten": rewrite, "replaced": replace, "another folder": swap_folder}


@pytest.fixture
def text(tmp_path):
    (tmp_path / "models" / "model").mkdir(parents=True)
    path = tmp_path / "models" / "model" / "a.txt"
    path.write_text("old")
    os.utime(path, ns=(0, 10**18))
    return path


def when(session, kind, done, act):
    """Call ``act`` once, at the first event of a kind with so many items done."""
    acted = []

    def listen(event):
        if event.kind == kind and event.completed == done and not acted:
            acted.append(event)
            act()

    session.listener = listen
    return acted


def run(name, text):
    if name == "read_file":
        return read_file(ReadConfig(path=text))
    config = ReadConfig(path=Path("a.txt"))
    folder = folder_to_artifact(text.parent, "checkpoint")
    return {"read_folder": read_folder, "read_whole_folder": read_whole_folder}[name](
        folder, config
    )


def lines(artifact):
    return artifact["lines"].read()["line"].to_pylist()


@pytest.mark.parametrize("name", ["read_file", "read_folder", "read_whole_folder"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("event", [("start", 0), ("progress", 0), ("progress", 2)])
def test_what_was_read_of_a_changed_file_is_not_stored(session, text, name, way, event):
    acted = when(session, *event, lambda: WAYS[way](text))
    with pytest.raises(FileChangedError, match=rf"^stage {name}: .*nothing was stored") as raised:
        run(name, text)
    assert acted and str(text.parent) in str(raised.value) and "\n" not in str(raised.value)
    assert "remove" not in str(raised.value)
    assert session.store.list_artifacts(name) == []
    assert lines(run(name, text)) == ["new"] * 3


@pytest.mark.parametrize("name", ["read_file", "read_folder"])
def test_a_folder_that_is_swapped_and_swapped_back_is_noticed(session, text, name):
    """At the end all files have the digests of the beginning, and others were read between."""

    def act(event):
        if event.kind == "progress" and event.completed == 0:
            swap_folder(text)
        if event.kind == "progress" and event.completed == 2:
            swap_folder_back(text)

    session.listener = act
    with pytest.raises(FileChangedError, match="changed while it was being read"):
        run(name, text)
    session.listener = lambda event: None
    assert text.read_text() == "old" and session.store.list_artifacts(name) == []
    assert lines(run(name, text)) == ["old"] * 3


def test_a_folder_above_that_is_swapped_and_swapped_back_is_noticed(session, text):
    models, away = text.parents[1], text.parents[1].with_name("away")

    def act(event):
        if event.kind == "progress" and event.completed == 0:
            shutil.copytree(models, models.with_name("copy"))
            models.rename(away)
            models.with_name("copy").rename(models)
        if event.kind == "progress" and event.completed == 2:
            models.rename(models.with_name("copy"))
            away.rename(models)

    session.listener = act
    with pytest.raises(FileChangedError, match="changed while it was being read"):
        run("read_file", text)


def test_a_link_that_names_another_folder_for_a_while_is_noticed(session, text):
    link, other = text.parents[1] / "latest", text.parents[1] / "other"
    shutil.copytree(text.parent, other)
    link.symlink_to(text.parent)

    def point(target):
        link.with_name("next").symlink_to(target)
        link.with_name("next").replace(link)

    def act(event):
        if event.kind == "progress" and event.completed in (0, 2):
            point(other if event.completed == 0 else text.parent)

    session.listener = act
    with pytest.raises(FileChangedError, match=r"latest.* changed while it was being read"):
        read_file(ReadConfig(path=link / "a.txt"))


def test_what_a_killed_attempt_read_of_another_file_is_not_taken_up(session, text):
    """Parts that are done survive a kill, and the file may be put back before the next attempt."""

    class Killed(BaseException):
        pass

    def act(event):
        if event.kind == "progress" and event.completed == 0:
            swap_folder(text)
        if event.kind == "progress" and event.completed == 2:
            raise Killed

    session.listener = act
    with pytest.raises(Killed):
        run("read_file", text)
    assert [*session.store.work_folder.rglob("done.json")]
    swap_folder_back(text)
    session.listener = lambda event: None
    assert lines(run("read_file", text)) == ["old"] * 3


def test_what_a_killed_attempt_read_of_the_same_file_is_taken_up(session, text):
    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    when(session, "progress", 2, kill)
    with pytest.raises(Killed):
        run("read_file", text)
    done = [*session.store.work_folder.rglob("done.json")]
    assert len(done) == 2
    kept = {path: path.stat().st_ino for path in done}
    seen = []
    session.listener = lambda event: (
        seen.append(event.completed) if event.kind == "progress" else None
    )
    (area,) = (path.parent for path in session.store.work_folder.rglob("external.json"))
    assert json.loads((area / "external.json").read_bytes())
    assert lines(run("read_file", text)) == ["old"] * 3
    assert seen[0] == 2 and len(kept) == 2 and not area.exists()


def test_files_that_do_not_count_may_change(session, text):
    """Of a folder only what a stage declares that it reads; the store may lie inside of it."""
    (text.parent / "weights.bin").write_bytes(b"1")
    when(session, "progress", 0, lambda: (text.parent / "weights.bin").write_bytes(b"2"))
    assert lines(run("read_folder", text)) == ["old"] * 3
    with open_session(Session(Store(text.parent / "runs"))):
        for _ in range(2):
            assert lines(run("read_whole_folder", text)) == ["old"] * 3


def test_a_file_that_is_added_counts(session, text):
    """A reader may take it: a tokenizer's settings, or weights in one file beside shards."""
    when(session, "progress", 0, lambda: (text.parent / "b.txt").write_text("more"))
    with pytest.raises(FileChangedError, match=r"b\.txt changed while it was being read"):
        run("read_folder", text)


def test_an_error_that_a_changed_file_explains_says_so(session, text):
    when(session, "progress", 0, text.unlink)
    with pytest.raises(
        HallmarkError,
        match=r"a\.txt disappeared while it was being read; nothing was stored; restore the file",
    ):
        run("read_file", text)


def test_a_folder_that_changed_before_a_stage_begins_is_refused(session, text):
    folder = folder_to_artifact(text.parent, "checkpoint")
    rewrite(text)
    with pytest.raises(HallmarkError, match=r"^stage read_folder: .*a\.txt does not match the SHA"):
        read_folder(folder, ReadConfig(path=Path("a.txt")))
    text.write_text("longer")
    with pytest.raises(HallmarkError, match="has 6 bytes instead of 3: it changed") as raised:
        folder.fetch_file("a.txt")
    assert "remove" not in str(raised.value) and str(text.parent) in str(raised.value)


def test_the_state_of_files_is_written_and_read(text):
    files = ExternalFiles()
    with files.record_hashed_files():
        hash_file(text)
    again = ExternalFiles.from_json(json.loads(json.dumps(files.to_json())))
    assert again.file_states == files.file_states and again.describe_first_change() is None
    rewrite(text)
    assert (
        "a.txt changed" in again.describe_first_change()
        and "a.txt changed" in files.describe_first_change()
    )
    with pytest.raises(FileChangedError):
        again.check_unchanged()


METADATA = (
    r"^stage {}: {} was renamed or replaced, or its permissions, owner or links changed while it "
    r"was being read, so the stage may have read different content; nothing was stored; run "
    r"again when no other process is changing it$"
)


def swap_file_for_a_while(path):
    path.rename(path.with_name("away"))
    path.write_text("new")
    path.unlink()
    path.with_name("away").rename(path)


#: What changes the metadata of a file alone.
METADATA_CHANGES = {
    "permissions": lambda path: path.chmod(0o600),
    "permissions that stay": lambda path: path.chmod(path.stat().st_mode),
    "hard link": lambda path: os.link(path, path.parents[1] / "second"),
    "swapped": swap_file_for_a_while,
}


def later(act, *arguments):
    """Call ``act`` when the clock of the file system has another time than when files were made."""
    time.sleep(0.02)
    act(*arguments)


@pytest.mark.parametrize("name", ["read_file", "read_folder", "read_whole_folder"])
@pytest.mark.parametrize("way", METADATA_CHANGES)
def test_a_file_whose_metadata_alone_change_is_named_so(session, text, name, way):
    """It may have been another file for a while, so nothing is stored; it has its old content."""
    acted = when(session, "progress", 1, lambda: later(METADATA_CHANGES[way], text))
    with pytest.raises(FileChangedError, match=METADATA.format(name, re.escape(str(text)))):
        run(name, text)
    assert acted and session.store.list_artifacts(name) == []
    assert lines(run(name, text)) == ["old"] * 3


@pytest.mark.parametrize("name", ["read_file", "read_folder"])
@pytest.mark.parametrize("above", [0, 1])
def test_a_folder_whose_metadata_alone_change_is_named_as_a_folder(session, text, name, above):
    folder = text.parents[above]
    acted = when(session, "progress", 1, lambda: later(folder.chmod, 0o700))
    where = f"the folder {re.escape(str(folder))}"
    with pytest.raises(FileChangedError, match=METADATA.format(name, where)):
        run(name, text)
    assert acted and session.store.list_artifacts(name) == []
    assert lines(run(name, text)) == ["old"] * 3


def test_a_link_that_is_renamed_and_renamed_back_is_named_as_a_link(session, text):
    link = text.parents[1] / "latest"
    link.symlink_to(text.parent)

    def swap():
        time.sleep(0.02)
        link.rename(link.with_name("away"))
        link.with_name("away").rename(link)

    when(session, "progress", 1, swap)
    where = f"the link {re.escape(str(link))}"
    with pytest.raises(FileChangedError, match=METADATA.format("read_file", where)):
        read_file(ReadConfig(path=link / "a.txt"))


def test_new_content_with_the_old_time_of_content_is_a_change(text):
    """Size and inode are the same as well: only the digest tells."""
    files = ExternalFiles()
    with files.record_hashed_files():
        hash_file(text)
    rewrite(text)
    assert re.search(
        r"a\.txt changed while it was being read; nothing", files.describe_first_change()
    )


def test_a_pipe_in_the_place_of_an_empty_file_is_not_waited_for(text):
    text.write_bytes(b"")
    os.utime(text, ns=(0, 10**18))
    files = ExternalFiles()
    with files.record_hashed_files():
        hash_file(text)
    for _ in range(20):  # a file system may give the pipe the inode of the file
        text.unlink()
        os.mkfifo(text)
        os.utime(text, ns=(0, 10**18))
        assert "a.txt changed while it was being read" in files.describe_first_change()


@pytest.mark.parametrize("gone", ["a.txt", "model", "models"])
def test_a_path_that_vanishes_after_its_digest_was_taken_is_named(text, gone):
    state = read_file_state(text)
    whole = next(path for path in (text, *text.parents) if path.name == gone)
    whole.rename(whole.with_name("away"))
    with pytest.raises(
        FileChangedError,
        match=r"a\.txt disappeared while it was being read; nothing was stored; restore the file",
    ):
        ExternalFiles().add_file(text, state)


def test_a_folder_above_that_becomes_a_file_is_missing(text):
    files = ExternalFiles()
    with files.record_hashed_files():
        hash_file(text)
    text.parent.rename(text.parent.with_name("away"))
    text.parent.write_text("")
    assert "a.txt disappeared while it was being read" in files.describe_first_change()
    with pytest.raises(FileChangedError, match="disappeared while it was being read"):
        ExternalFiles().add_file(text, files.file_states[str(text)])


@pytest.mark.parametrize("kind", ["directory_times", "link_stamps"])
def test_a_folder_or_link_that_vanishes_is_named(text, kind):
    """Also one that is looked at after its files were there."""
    gone = text.parent / "gone"
    files = ExternalFiles(
        **{kind: {str(gone): (1, 2, 3, 4)[: 2 if kind == "directory_times" else 4]}}
    )
    assert files.describe_first_change().startswith(
        f"{gone} disappeared while it was being read; nothing was stored; restore the file"
    )


def test_a_path_that_may_not_be_looked_at_any_more_is_no_missing_one(text):
    """Root may look at all: a link to itself is what it cannot follow either."""
    files = ExternalFiles()
    with files.record_hashed_files():
        hash_file(text)
    text.unlink()
    text.symlink_to(text)
    said = files.describe_first_change()
    assert said.startswith(f"{text} was readable before, but cannot be read now (")
    assert "\n" not in said and said.endswith(
        "; nothing was stored; make it readable and run again"
    )


@pytest.mark.parametrize("gone", ["a.txt", "model"])
def test_a_model_folder_that_vanishes_before_a_stage_begins_is_named(session, text, gone):
    folder = folder_to_artifact(text.parent, "checkpoint")
    whole = next(path for path in (text, *text.parents) if path.name == gone)
    whole.rename(whole.with_name("away"))
    with pytest.raises(FileChangedError, match=r"^stage read_folder: .*a\.txt is missing"):
        read_folder(folder, ReadConfig(path=Path("a.txt")))
