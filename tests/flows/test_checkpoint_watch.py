"""Watched folders: which checkpoints are complete, what is refused, and what is requested once."""

import json
import logging
import os
import shutil
import threading

import numpy as np
import pytest
from safetensors.numpy import save_file

from hallmark.flows import checkpoint_sources
from hallmark.flows.checkpoint_completeness import find_missing_part
from hallmark.flows.checkpoint_resolution import get_permanent_name, resolve_checkpoint
from hallmark.flows.checkpoint_sources import list_checkpoint, list_checkpoints
from hallmark.flows.checkpoint_versions import (
    MAX_UNUSED_COPIES,
    CheckpointVersion,
    copy_checkpoint,
    hash_checkpoint,
    hold_checkpoint_copy,
    open_checkpoint_version,
    shorten_version_name,
)
from hallmark.flows.checkpoint_watch import (
    AuditRequester,
    CheckpointWatcher,
    resolve_watched_locations,
    watch_checkpoints,
)
from hallmark.flows.deployment_checks import check_checkpoint_allowed
from hallmark.flows.run_request import RunRequest
from hallmark.flows.store_garbage import collect_garbage
from hallmark.tasks.contract import (
    AllowedRoots,
    FileChangedError,
    HallmarkError,
    Store,
    UsageError,
    folder_to_artifact,
)
from hallmark.tasks.contract.allowed_roots import ROOTS_ENVIRONMENT_VARIABLE


class RecordingRequester(AuditRequester):
    """Record the versions instead of asking Prefect's server, which slow tests do."""

    def __init__(self, store):
        super().__init__(store, RunRequest(flow="audit", checkpoint="latest"))
        self.versions = []
        self.is_server_away = False

    def request_audit(self, version):
        if self.is_server_away:
            return None
        self.versions.append(version)
        return "flow-run"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A watched folder; the allowed roots are this folder and the store."""
    folder = tmp_path / "watched"
    folder.mkdir()
    roots = AllowedRoots.from_names([str(folder), str(tmp_path / "store")])
    declared = {"folders": roots.folders, "uris": roots.uris}
    monkeypatch.setenv(ROOTS_ENVIRONMENT_VARIABLE, json.dumps(declared))
    return folder


@pytest.fixture
def watcher(store, folder):
    return CheckpointWatcher(RecordingRequester(store), str(folder), report_seconds=0)


def write_checkpoint(folder, value=1.0, shards=1):
    """Write what a trainer writes: a model, a tokenizer and the state of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "optimizer.pt").write_bytes(b"a pickle")
    if shards == 1:
        save_file({"weight": np.full(4, value)}, folder / "model.safetensors")
        return folder
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_file({f"weight{number}": np.full(4, value)}, folder / name)
        weight_map[f"weight{number}"] = name
    index = {"metadata": {"total_size": 32 * shards}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def poll(watcher, times=2):
    for _ in range(times):
        watcher.poll()
    return watcher.requester.versions


def read_problem(folder):
    return find_missing_part(list_checkpoint(str(folder)))


# Completeness --------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_is_complete_at_its_last_byte(folder, shards):
    """Write each file of a checkpoint last, byte by byte."""
    complete = write_checkpoint(folder / "complete", shards=shards)
    names = sorted(path.name for path in complete.iterdir() if path.suffix != ".pt")
    assert read_problem(complete) is None
    for last_name in names:
        partial = folder / "partial"
        shutil.copytree(complete, partial)
        content = (partial / last_name).read_bytes()
        (partial / last_name).unlink()
        assert read_problem(partial) is not None
        for length in range(0, len(content), max(1, len(content) // 40)):
            (partial / last_name).write_bytes(content[:length])
            # A tokenizer states no length; two polls must have seen the same one.
            assert read_problem(partial) is not None or last_name == "tokenizer.json"
        (partial / last_name).write_bytes(content)
        assert read_problem(partial) is None
        shutil.rmtree(partial)


def write(name, content):
    def change(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def remove(*names):
    def change(folder):
        for name in names:
            (folder / name).unlink()

    return change


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def header(text, length=None):
    content = text.encode()
    return (len(content) if length is None else length).to_bytes(8, "little") + content


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (remove("config.json"), "the folder has no config.json"),
        (write("config.json", "{"), "config.json is not valid JSON"),
        (write("config.json", "[" * 100_000), "config.json is not valid JSON"),
        (write("config.json", "[]"), "config.json is not a JSON object"),
        (write("config.json", " " * (11 << 20)), "config.json is larger than 10,485,760 bytes"),
        (
            write("config.json", '{"transformers_weights": 3}'),
            "transformers_weights in config.json is not a file name",
        ),
        (
            write("config.json", '{"transformers_weights": "../model.safetensors"}'),
            "../model.safetensors, a safetensors file listed in config.json, is missing",
        ),
        (
            write("config.json", '{"transformers_weights": "a.index.json"}'),
            "a.index.json, which config.json references, is missing",
        ),
        (
            remove("model.safetensors"),
            "the folder has neither model.safetensors nor model.safetensors.index.json",
        ),
        (
            only_pickle,
            "the weights are only in pytorch_model.bin, a file that can execute code when loaded; "
            "save them as model.safetensors",
        ),
        (remove("tokenizer.json"), "the folder has no tokenizer"),
        (
            write("adapter_config.json", "{}"),
            "the folder contains an adapter without its base model; merge the adapter into the "
            "base model",
        ),
        (
            write("model.safetensors.tmp", ""),
            "the temporary file model.safetensors.tmp is still being written or was left behind",
        ),
        (
            write(".tmp-config.json", ""),
            "the temporary file .tmp-config.json is still being written or was left behind",
        ),
        (
            write(".model.safetensors.AbC123", ""),
            "the temporary file .model.safetensors.AbC123 is still being written or was left "
            "behind",
        ),
        (
            write("model.safetensors", b"1234567"),
            "model.safetensors is shorter than its declared header",
        ),
        (
            write("model.safetensors", header("{}", 1 << 63)),
            "model.safetensors is shorter than its declared header",
        ),
        (
            write("model.safetensors", header("[1]")),
            "model.safetensors does not have a valid safetensors header",
        ),
        (
            write("model.safetensors", header('{"w": {"data_offsets": [0, 1e999]}}')),
            "model.safetensors does not have a valid safetensors header",
        ),
        (
            write("model.safetensors", header('{"w": {"data_offsets": [0, 9999999999999999]}}')),
            "the header of model.safetensors declares more than 1,125,899,906,842,624 bytes",
        ),
        (
            write("model.safetensors", header('{"w": {"data_offsets": [0, 8]}}') + b"1234"),
            "model.safetensors has 43 bytes, but its header declares 47",
        ),
    ],
)
def test_what_is_missing_is_named(folder, change, problem):
    checkpoint = write_checkpoint(folder / "checkpoint-1")
    change(checkpoint)
    assert read_problem(checkpoint) == problem


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        ({}, "model.safetensors.index.json lists no weights"),
        (
            {"weight0": 3},
            "model.safetensors.index.json contains a file name that is not a string",
        ),
        (
            {"weight0": "optimizer.pt"},
            "optimizer.pt, a safetensors file listed in model.safetensors.index.json, is missing",
        ),
        (
            {"weight9": "model-00001-of-00002.safetensors"},
            "model-00001-of-00002.safetensors does not contain the weights weight9",
        ),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_named(folder, weight_map, problem):
    checkpoint = write_checkpoint(folder / "checkpoint-1", shards=2)
    index = json.dumps({"weight_map": weight_map})
    (checkpoint / "model.safetensors.index.json").write_text(index)
    assert read_problem(checkpoint) == problem


def test_damaged_files_give_a_sentence_or_are_complete(folder):
    """Whatever the bytes are, the watch gets an answer."""
    checkpoint = write_checkpoint(folder / "checkpoint-1", shards=2)
    random = np.random.default_rng(7)
    paths = [path for path in sorted(checkpoint.iterdir()) if path.suffix != ".pt"]
    contents = {path: path.read_bytes() for path in paths}
    answers = set()
    for number in range(300):
        path = paths[number % len(paths)]
        damaged = bytearray(contents[path])
        for position in random.integers(0, len(damaged), size=random.integers(1, 6)):
            damaged[position] = random.integers(0, 256)
        path.write_bytes(damaged)
        answer = read_problem(checkpoint)
        assert answer is None or (answer.isprintable() and len(answer) < 400)
        answers.add(answer)
        path.write_bytes(contents[path])
    assert len(answers) > 10


def test_an_index_of_an_older_save_is_not_read(folder):
    checkpoint = write_checkpoint(folder / "checkpoint-1", shards=2)
    write_checkpoint(checkpoint)
    (checkpoint / "model-00001-of-00002.safetensors").unlink()
    assert read_problem(checkpoint) is None


# The watch -----------------------------------------------------------------------------------


def test_each_version_is_requested_once(watcher, folder, store, capsys):
    checkpoint = write_checkpoint(folder / "run" / "checkpoint-1")
    assert poll(watcher, 1) == []  # nobody knows yet whether it is stable
    [first] = poll(watcher, 3)
    digest = hash_checkpoint(list_checkpoint(str(checkpoint)))
    assert first == CheckpointVersion(str(checkpoint), digest)
    write_checkpoint(checkpoint, value=2.0)  # replaced in place
    [_, second] = poll(watcher, 3)
    assert second.location == first.location and second.digest != first.digest
    write_checkpoint(folder / "copy-of-the-first", value=1.0)
    write_checkpoint(checkpoint, value=1.0)  # replaced by what it was before
    assert len(poll(watcher, 3)) == 2
    again = CheckpointWatcher(RecordingRequester(store), str(folder))  # after a restart
    assert poll(again, 3) == []
    assert capsys.readouterr().out.splitlines() == [
        f"requested an audit of the checkpoint {version.short_name}" for version in (first, second)
    ]


def test_a_checkpoint_that_changes_waits_until_two_polls_saw_the_same(watcher, folder):
    checkpoint = write_checkpoint(folder / "checkpoint-1")
    for number in range(4):
        write_checkpoint(checkpoint, value=float(number))
        assert poll(watcher, 1) == []
    assert len(poll(watcher, 1)) == 1


def test_the_state_of_a_training_makes_no_version(watcher, folder):
    """Trainers write the optimizer and their logs after the model, or next to a final model."""
    output = write_checkpoint(folder / "output")
    poll(watcher)
    (output / "optimizer.pt").write_bytes(b"a larger pickle")
    (output / "scheduler.pt").write_bytes(b"")
    (output / "trainer_state.json").write_text("{}")
    (output / "runs").mkdir()
    (output / "runs" / "events.out.tfevents.1").write_text("log")
    write_checkpoint(output / "checkpoint-2", value=2.0)
    versions = poll(watcher, 3)
    assert [version.location for version in versions] == [
        str(output),
        str(output / "checkpoint-2"),
    ]
    artifact = open_checkpoint_version(watcher.requester.store, versions[0])
    assert sorted(artifact.manifest["files"]) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_a_request_is_repeated_while_the_server_is_away(watcher, folder):
    write_checkpoint(folder / "checkpoint-1")
    watcher.requester.is_server_away = True
    assert poll(watcher, 5) == []
    watcher.requester.is_server_away = False
    assert len(poll(watcher, 3)) == 1


def make_pipe(checkpoint, outside):
    os.mkfifo(checkpoint / "tokenizer.model")


def make_link(checkpoint, outside):
    (outside / "secret.json").write_text("{}")
    (checkpoint / "vocab.json").symlink_to(outside / "secret.json")


def make_loose_link(checkpoint, outside):
    (checkpoint / "vocab.json").symlink_to(checkpoint / "nothing")


def make_linked_folder(checkpoint, outside):
    (checkpoint / "templates").symlink_to(outside)


def make_many_files(checkpoint, outside):
    for number in range(60):
        (checkpoint / f"{number}.json").touch()


def make_pickle(checkpoint, outside):
    only_pickle(checkpoint)


def make_nested_folders(checkpoint, outside):
    for number in range(40):
        (checkpoint / "templates" / f"{number}").mkdir(parents=True)
        (checkpoint / "templates" / f"{number}" / "a.jinja").touch()


def make_unprintable_name(checkpoint, outside):
    (checkpoint / "vocab\n.json").touch()


def make_other_encoding(checkpoint, outside):
    with open(os.fsencode(checkpoint) + b"/vocab\xff.json", "wb"):
        pass


HOSTILE = {
    make_pipe: "{0}/tokenizer.model is a named pipe, but a checkpoint can contain only files",
    make_link: "checkpoint: '{0}/vocab.json' leads outside the allowed roots",
    make_loose_link: "{0}/vocab.json is a broken link",
    make_linked_folder: "checkpoint: '{0}/templates' leads outside the allowed roots",
    make_many_files: "{0} has more than 50 files",
    make_pickle: "the weights are only in pytorch_model.bin",
    make_nested_folders: "{0} has more than 50 files",
    make_unprintable_name: "the name vocab\\n.json contains control characters or is not valid",
    make_other_encoding: "the name vocab\\udcff.json contains control characters or is not valid",
}


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_a_hostile_folder_gives_one_sentence_and_the_watch_goes_on(
    change, watcher, folder, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(checkpoint_sources, "MAX_FILES", 50)
    hostile = write_checkpoint(folder / "hostile")
    outside = tmp_path / "outside"
    outside.mkdir()
    change(hostile, outside)
    with caplog.at_level(logging.WARNING, "hallmark"):
        assert poll(watcher, 5) == []
    [message] = caplog.messages
    assert message.startswith(f"{hostile} was not audited: {HOSTILE[change].format(hostile)}")
    assert message.endswith("; it will be audited once the problem has been fixed")
    good = write_checkpoint(folder / "good", value=3.0)
    assert [version.location for version in poll(watcher, 3)] == [str(good)]
    shutil.rmtree(hostile)
    write_checkpoint(hostile, value=4.0)
    assert len(poll(watcher, 3)) == 2 and len(caplog.messages) == 1


def test_a_name_that_is_not_text_gives_one_sentence(watcher, folder, caplog):
    write_checkpoint(folder / "checkpoint\n1")
    with caplog.at_level(logging.WARNING, "hallmark"):
        assert poll(watcher, 3) == []
    [message] = caplog.messages
    name = f"{folder}/checkpoint\\n1"
    assert message.startswith(f"{name} was not audited: the name {name} contains control")


def test_a_store_in_a_checkpoint_is_not_part_of_it(watcher, folder, store):
    checkpoint = write_checkpoint(folder / "checkpoint-1")
    [version] = poll(watcher)
    manifest = checkpoint / "store" / "artifacts" / "a" / "b" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    assert poll(watcher, 3) == [version]
    assert open_checkpoint_version(store, version).content_digest == version.digest


def test_a_checkpoint_that_does_not_fit_the_disk_is_not_read(watcher, folder, caplog):
    checkpoint = write_checkpoint(folder / "checkpoint-1")
    os.truncate(checkpoint / "tokenizer.json", 1 << 43)  # without data, so it uses no space
    with caplog.at_level(logging.WARNING, "hallmark"):
        assert poll(watcher, 3) == []
    [message] = caplog.messages
    assert "bytes, but " in message
    assert " does not have enough free space for a copy; free some space there" in message
    (checkpoint / "tokenizer.json").write_text("{}")
    assert len(poll(watcher, 3)) == 1


def test_a_changed_copy_is_refused(watcher, folder, store):
    write_checkpoint(folder / "checkpoint-1")
    [version] = poll(watcher)
    (store.work_folder / "checkpoints" / version.digest / "config.json").write_text("[]")
    with pytest.raises(HallmarkError, match="was changed after it was copied; remove this folder"):
        open_checkpoint_version(store, version)


def test_a_watched_folder_that_is_removed_gives_one_sentence(watcher, folder, caplog):
    folder.rmdir()
    with caplog.at_level(logging.WARNING, "hallmark"):
        assert poll(watcher, 3) == []
    [message] = caplog.messages
    assert message == (
        f"--watch {folder}: there is no folder {folder}; create it; watching continues"
    )
    write_checkpoint(folder / "checkpoint-1")
    assert len(poll(watcher)) == 1
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING, "hallmark"):
        poll(watcher)
    assert caplog.messages == [message] * 2  # once for each time


def test_a_problem_is_reported_only_after_a_pause(watcher, folder, caplog):
    """A trainer that pauses between two files is not reported."""
    watcher.report_seconds = 30
    checkpoint = write_checkpoint(folder / "checkpoint-1")
    (checkpoint / "tokenizer.json").unlink()
    with caplog.at_level(logging.WARNING, "hallmark"):
        assert poll(watcher, 3) == []
    assert not caplog.messages
    (checkpoint / "tokenizer.json").write_text("{}")
    assert len(poll(watcher)) == 1


def test_hidden_and_temporary_folders_and_stores_are_not_searched(watcher, folder):
    for name in (".cache", "tmp-checkpoint-1", "checkpoint-1.tmp", "a/b/c/d"):
        write_checkpoint(folder / name)
    write_checkpoint(folder / "store" / "artifacts" / "checkpoint" / "1")
    (folder / "store" / "artifacts" / "checkpoint" / "1" / "manifest.json").write_text("{}")
    assert poll(watcher, 3) == []


def test_too_many_folders_are_a_problem(folder, monkeypatch):
    monkeypatch.setattr(checkpoint_sources, "MAX_FOLDERS", 3)
    for name in "abc":
        (folder / name).mkdir()
    with pytest.raises(HallmarkError, match="has more than 3 folders; watch one of its subfolders"):
        list_checkpoints(str(folder))


def test_a_file_that_changes_while_it_is_read_makes_no_version(watcher, folder, store):
    checkpoint = write_checkpoint(folder / "checkpoint-1")
    listing = list_checkpoint(str(checkpoint))
    write_checkpoint(checkpoint, value=2.0)
    with pytest.raises(FileChangedError, match="changed while it was being read"):
        hash_checkpoint(listing)
    with pytest.raises(FileChangedError), copy_checkpoint(store, listing):
        pass
    assert [path.name for path in (store.work_folder / "checkpoints").iterdir()] == ["lock"]


def test_two_watchers_at_once_record_one_request(folder, store, capsys):
    watchers = [CheckpointWatcher(RecordingRequester(store), str(folder)) for _ in range(2)]
    write_checkpoint(folder / "checkpoint-1")
    for watcher in watchers:
        watcher.poll()
    threads = [threading.Thread(target=watcher.poll) for watcher in watchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.list_keys("watched")) == 1
    # Prefect's server gives both the same flow run; only one of them says so.
    assert capsys.readouterr().out.count("requested an audit") == 1


def test_the_thread_survives_an_unexpected_error(watcher, folder, monkeypatch, caplog):
    was_called, is_repeated = threading.Event(), threading.Event()

    def fail():
        if was_called.is_set():
            is_repeated.set()
        was_called.set()
        raise ValueError("unexpected")

    monkeypatch.setattr(watcher, "poll", fail)
    with watch_checkpoints([watcher], 0.01):
        assert is_repeated.wait(10)
    assert f"an error occurred while watching {folder}; watching continues" in caplog.messages


def test_the_watched_folder_must_exist_inside_the_roots(folder, tmp_path):
    assert resolve_watched_locations([f"{folder}/", str(folder)]) == [str(folder)]
    with pytest.raises(UsageError, match=r"--watch .*/nothing: there is no such folder; create it"):
        resolve_watched_locations([str(folder / "nothing")])
    (folder / "link").symlink_to(tmp_path)
    for outside in (str(tmp_path), str(folder / "link"), "s3://bucket/folder"):
        with pytest.raises(UsageError, match=r"^--watch: .* outside the allowed roots"):
            resolve_watched_locations([outside])


# Versions ------------------------------------------------------------------------------------


def test_the_name_of_a_version(folder, monkeypatch):
    digest = "0123456789abcdef" * 4
    version = CheckpointVersion.parse(f"s3://bucket/model@{digest}")
    assert version == CheckpointVersion("s3://bucket/model", digest)
    assert version.short_name == "s3://bucket/model@0123456789ab"
    assert version.artifact_name == "checkpoint/0123456789abcdef"
    monkeypatch.chdir(folder)
    relative = CheckpointVersion.parse("model@0123456789ab")
    assert relative == CheckpointVersion(str(folder / "model"), "0123456789ab")
    (folder / "model@0123456789ab").mkdir()
    for name in ("model@0123456789ab", "latest@450", "latest", "checkpoint/0123", "model@0123XY"):
        assert CheckpointVersion.parse(name) is None
        assert shorten_version_name(name) == name


def test_a_version_is_opened_from_its_copy_after_it_was_replaced(folder, store):
    checkpoint = write_checkpoint(folder / "checkpoint-1")
    with copy_checkpoint(store, list_checkpoint(str(checkpoint))) as digest:
        pass
    version = CheckpointVersion(str(checkpoint), digest)
    write_checkpoint(checkpoint, value=2.0)
    artifact = open_checkpoint_version(store, version)
    assert artifact.content_digest == digest
    resolved = resolve_checkpoint(store, version.short_name)
    assert resolved.checkpoint.name == version.artifact_name
    assert get_permanent_name(store, resolved, version.short_name) == version.name
    with hold_checkpoint_copy(store, version.name):
        assert open_checkpoint_version(store, version).content_digest == digest
    sentence = rf"{version.short_name} cannot be opened: {checkpoint} was replaced and is now "
    with pytest.raises(UsageError, match=sentence):
        open_checkpoint_version(store, version)
    shutil.rmtree(checkpoint)
    with pytest.raises(UsageError, match="there is no folder"):
        open_checkpoint_version(store, version)


def test_a_copy_is_made_again_if_its_version_is_still_there(folder, store):
    checkpoint = write_checkpoint(folder / "checkpoint-1", shards=2)
    digest = hash_checkpoint(list_checkpoint(str(checkpoint)))
    version = CheckpointVersion(str(checkpoint), digest)
    with hold_checkpoint_copy(store, version.name):
        [copy] = [path for path in (store.work_folder / "checkpoints").iterdir() if path.is_dir()]
        assert folder_to_artifact(copy, "checkpoint").content_digest == digest
        with hold_checkpoint_copy(store, version.name):
            pass
        assert copy.exists()  # the first user still has it
    assert not copy.exists()


def test_few_unused_copies_are_kept(folder, store):
    copies = store.work_folder / "checkpoints"
    names = []
    for number in range(MAX_UNUSED_COPIES + 2):
        checkpoint = write_checkpoint(folder / "checkpoint-1", value=float(number))
        with copy_checkpoint(store, list_checkpoint(str(checkpoint))) as digest:
            pass
        os.utime(copies / digest, (number, number))
        names.append(digest)
    assert {path.name for path in copies.iterdir()} == {"lock", *names[-MAX_UNUSED_COPIES:]}
    (copies / "tmp0123").mkdir()  # a process was killed
    checkpoint = write_checkpoint(folder / "checkpoint-1", value=99.0)
    with copy_checkpoint(store, list_checkpoint(str(checkpoint))) as digest:
        pass
    assert {path.name for path in copies.iterdir()} == {"lock", *names[-2:], digest}
    collect_garbage(store, delete=True)
    assert not copies.exists()


def test_a_version_outside_the_roots_is_refused(folder, store, tmp_path):
    outside = write_checkpoint(tmp_path / "outside")
    digest = "0" * 64
    for location in (outside, folder / "link"):
        if location != outside:
            location.symlink_to(outside)
        name = f"{location}@{digest}"
        with pytest.raises(UsageError, match="leads outside the allowed roots"):
            check_checkpoint_allowed(name)
        with pytest.raises(UsageError, match="leads outside the allowed roots"):
            resolve_checkpoint(store, name)


# Buckets -------------------------------------------------------------------------------------


@pytest.fixture
def upload(bucket, tmp_path, monkeypatch, request):
    """Upload the files of a folder below a watched prefix of this test."""
    prefix = f"watched-{abs(hash(request.node.name))}"
    declared = {"folders": [str(tmp_path / "store")], "uris": [f"s3://hallmark/{prefix}"]}
    monkeypatch.setenv(ROOTS_ENVIRONMENT_VARIABLE, json.dumps(declared))

    def upload(folder, name, file_names=None):
        for path in sorted(folder.iterdir()):
            if file_names is None or path.name in file_names:
                key = f"{prefix}/{name}/{path.name}"
                bucket.put_object(Bucket="hallmark", Key=key, Body=path.read_bytes())

    upload.uri = f"s3://hallmark/{prefix}"
    return upload


def test_each_version_in_a_bucket_is_requested_once(upload, store, tmp_path, monkeypatch):
    requester = RecordingRequester(store)
    watcher = CheckpointWatcher(requester, upload.uri, report_seconds=0)
    checkpoint = write_checkpoint(tmp_path / "checkpoint-1", shards=2)
    upload(checkpoint, "run/checkpoint-1", {"config.json", "model.safetensors.index.json"})
    upload(checkpoint, "run/checkpoint-1", {"model-00001-of-00002.safetensors", "optimizer.pt"})
    assert poll(watcher, 3) == []
    upload(checkpoint, "run/checkpoint-1", {"model-00002-of-00002.safetensors", "tokenizer.json"})
    assert poll(watcher, 1) == []
    [first] = poll(watcher, 3)
    (checkpoint / "optimizer.pt").unlink()
    digest = folder_to_artifact(checkpoint, "checkpoint").content_digest
    assert first == CheckpointVersion(f"{upload.uri}/run/checkpoint-1", digest)
    [copy] = [path for path in (store.work_folder / "checkpoints").iterdir() if path.is_dir()]
    assert copy.name == digest

    write_checkpoint(checkpoint, value=2.0, shards=2)
    upload(checkpoint, "run/checkpoint-1")
    [_, second] = poll(watcher, 3)
    assert second.location == first.location and second.digest != first.digest
    upload(checkpoint, "copy")
    assert len(poll(watcher, 3)) == 2

    # After a restart, nothing is read again.
    monkeypatch.setattr(checkpoint_sources.CheckpointListing, "iter_chunks", None)
    again = CheckpointWatcher(RecordingRequester(store), upload.uri, report_seconds=0)
    assert poll(again, 3) == []
    assert len(store.list_keys("watched")) == 2 + 3  # two versions, three listings


def test_the_version_of_a_bucket_is_copied_again_for_its_audit(upload, store, tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint-1")
    upload(checkpoint, "checkpoint-1")
    (checkpoint / "optimizer.pt").unlink()
    artifact = folder_to_artifact(checkpoint, "checkpoint")
    name = f"{upload.uri}/checkpoint-1@{artifact.content_digest}"
    with hold_checkpoint_copy(store, name):
        resolved = resolve_checkpoint(store, name)
        assert resolved.checkpoint.content_digest == artifact.content_digest
        assert get_permanent_name(store, resolved, name) == name
    write_checkpoint(checkpoint, value=2.0)
    upload(checkpoint, "checkpoint-1")
    with pytest.raises(UsageError, match="was replaced and is now version"):
        resolve_checkpoint(store, name)
    with pytest.raises(UsageError, match="outside the allowed roots"):
        resolve_checkpoint(store, name.replace("s3://hallmark", "s3://other"))


def test_an_object_that_is_replaced_while_it_is_read_makes_no_version(upload, store, tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint-1")
    upload(checkpoint, "checkpoint-1")
    [listing] = list_checkpoints(upload.uri)
    write_checkpoint(checkpoint, value=2.0)
    upload(checkpoint, "checkpoint-1")
    with pytest.raises(FileChangedError, match="changed while it was being read"):
        hash_checkpoint(listing)


def test_hostile_keys_of_a_bucket_give_one_sentence(upload, bucket, store, tmp_path, caplog):
    checkpoint = write_checkpoint(tmp_path / "checkpoint-1")
    upload(checkpoint, "with%20percent")
    upload(checkpoint, ".hidden")
    watchers = [
        CheckpointWatcher(RecordingRequester(store), uri, report_seconds=0)
        for uri in ("s3://nothing/x", upload.uri)
    ]
    with caplog.at_level(logging.WARNING, "hallmark"):
        assert [poll(watcher, 4) for watcher in watchers] == [[], []]
    refused, percent = caplog.messages
    assert refused.startswith("--watch s3://nothing/x: checkpoint: 's3://nothing/x' leads outside")
    assert percent.startswith(
        f"{upload.uri}/with%20percent was not audited: the name {upload.uri}/with%20"
    )
    assert "contains characters that URI parsers may decode" in percent


def test_a_bucket_that_is_missing_or_too_large_gives_one_sentence(
    upload, store, tmp_path, monkeypatch, caplog
):
    declared = {"folders": [], "uris": [upload.uri, "s3://nothing"]}
    monkeypatch.setenv(ROOTS_ENVIRONMENT_VARIABLE, json.dumps(declared))
    monkeypatch.setattr(checkpoint_sources, "MAX_OBJECTS", 3)
    upload(write_checkpoint(tmp_path / "checkpoint-1"), "checkpoint-1")
    for uri in (upload.uri, "s3://nothing/x"):
        watcher = CheckpointWatcher(RecordingRequester(store), uri)
        with caplog.at_level(logging.WARNING, "hallmark"):
            assert poll(watcher, 3) == []
    large, missing = caplog.messages
    assert "has more than 3 objects; watch a longer prefix; watching continues" in large
    assert missing == (
        "--watch s3://nothing/x: s3://nothing/x cannot be read: the bucket does not exist; "
        "watching continues"
    )
