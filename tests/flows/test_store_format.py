"""Every command refuses a store of a format that it does not read, and so for each run."""

import json

import pytest

from hallmark.flows.cli import COMMAND_GROUPS
from hallmark.flows.runs import RUN_FORMAT, open_run, open_store, read_runs_and_problems
from hallmark.flows.store_copy import copy_runs
from hallmark.flows.store_garbage import collect_garbage
from hallmark.tasks.contract import STORE_FORMAT, HallmarkError, Store
from hallmark.tasks.contract.manifests import LAYOUT_VERSION
from hallmark.tasks.contract.object_store import ObjectStore
from hallmark.tasks.contract.store_format import STORE_FORMAT_KEY
from tests.flows.conftest import Hallmark
from tests.flows.small_runs import execute_small_run, read_record
from tests.tasks.contract.test_untrusted_names import damage

#: Commands that use no store.
COMMANDS_WITHOUT_STORE = {"init", "settings", "tables", "verify-release"}

#: The arguments of every other command; STORE and EMPTY are replaced by folders.
ARGUMENTS_BY_COMMAND = {
    "run": ["smoke", "--until", "ingest"],
    "join-training": ["latest"],
    "audit": ["latest"],
    "finetune": ["latest", "--config", "smoke"],
    "generate": ["latest", "a prompt"],
    "runs": [],
    "status": [],
    "view": [],
    "export-site": [],
    "export-cards": ["--output", "EMPTY"],
    "compare": ["a", "b"],
    "findings": [],
    "trace": ["--text", "a text"],
    "review": [],
    "release": ["latest", "EMPTY"],
    "batch": ["--step", "1"],
    "purge": ["00" * 16],
    "mitigate": ["latest"],
    "prove": ["latest"],
    "study": ["--store", "STORE"],
    "replay": [],
    "verify": [],
    "push": ["latest", "EMPTY"],
    "pull": ["latest", "STORE", "--store", "EMPTY"],
    "plan": ["smoke", "--tokens", "1M", "--hosts", "1"],
    "du": [],
    "gc": ["--delete"],
    "serve": ["smoke"],
    "doctor": [],
}


def snapshot(folder):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (folder, *folder.rglob("*"))
    }


@pytest.fixture
def newer(tmp_path):
    """A store with a run, of the next format."""
    store = Store(tmp_path / "newer")
    execute_small_run(store)
    store.put(STORE_FORMAT_KEY, json.dumps({"format": STORE_FORMAT + 1}).encode())
    return store


def test_every_command_refuses_a_newer_store_and_writes_nothing(newer, tmp_path, server):
    commands = {name for group in COMMAND_GROUPS.values() for name in group}
    assert commands - COMMANDS_WITHOUT_STORE == set(ARGUMENTS_BY_COMMAND)
    hallmark = Hallmark(newer.root_folder, server)
    places = {"STORE": str(newer.root_folder), "EMPTY": str(tmp_path / "new")}
    before = snapshot(newer.root_folder)
    sentence = f"has format {STORE_FORMAT + 1}, but this version of Hallmark reads format"
    for command, arguments in ARGUMENTS_BY_COMMAND.items():
        arguments = [places.get(argument, argument) for argument in arguments]
        done = hallmark(command, *arguments, code=1)
        assert sentence in done.stdout + done.stderr, command
        assert snapshot(newer.root_folder) == before, command
        assert not (tmp_path / "new" / "artifacts").exists()


def test_a_store_from_the_time_before_versions_is_read_and_then_records_its_format(tmp_path):
    store = Store(tmp_path / "store")
    run = execute_small_run(store)
    assert json.loads(store.get(STORE_FORMAT_KEY)) == {"format": STORE_FORMAT}
    store.delete([STORE_FORMAT_KEY])
    record = read_record(store, run)
    assert record.pop("format") == RUN_FORMAT
    store.put(f"runs/{run.id}/run.json", json.dumps(record).encode())

    reopened = open_store(str(store.root_folder), create=False)
    assert open_run(run.id, reopened).artifacts.keys() == run.artifacts.keys()
    assert store.get(STORE_FORMAT_KEY) is None  # commands that only read write nothing
    again = execute_small_run(store)
    assert all(entry["cached"] for entry in again.stages.values())
    assert store.get(STORE_FORMAT_KEY) is not None


def test_a_copy_records_the_format_and_refuses_a_newer_one(tmp_path):
    source, target = Store(tmp_path / "source"), Store(tmp_path / "target")
    run = execute_small_run(source)
    target.put(STORE_FORMAT_KEY, b'{"format": 7}')
    with pytest.raises(HallmarkError, match="target has format 7"):
        copy_runs(source, target, [run.id])
    assert target.list_keys("") == [STORE_FORMAT_KEY]
    target.delete([STORE_FORMAT_KEY])
    copy_runs(source, target, [run.id])
    assert target.get(STORE_FORMAT_KEY) == source.get(STORE_FORMAT_KEY)


@pytest.mark.parametrize("version", [RUN_FORMAT + 1, 0, True, "1", None, 1.5, [1]])
def test_a_run_of_another_format_is_refused_with_both_versions(tmp_path, version):
    store = Store(tmp_path / "store")
    run, other = execute_small_run(store), execute_small_run(store, 31)
    changed = {"format": version, "run": run.id}  # a newer format may lack all other keys
    store.put(f"runs/{run.id}/run.json", json.dumps(changed).encode())
    with pytest.raises(HallmarkError) as raised:
        open_run(run.id, store)
    assert str(raised.value) == (
        f"run {run.id}: its run.json has format {version!r}, but this version of Hallmark reads "
        f"format {RUN_FORMAT}; use the version of Hallmark that wrote it, or remove the folder "
        f"{store.uri}/runs/{run.id} (no artifact is lost) and run again"
    )
    runs, problems = read_runs_and_problems(store)
    assert [each.id for each in runs] == [other.id]
    assert problems == [f"skipped: {raised.value}"]
    # What it needs is unknown, so nothing that was committed is removed.
    report = collect_garbage(store, delete=True)
    assert report.problems == [str(raised.value)] or str(raised.value) in report.problems[0]
    assert len(store.list_folder_names("artifacts")) == 5


def test_an_artifact_of_another_layout_names_both_versions(session):
    from tests.tasks.contract.stages import MakeConfig, make

    artifact = make(MakeConfig(documents=5))
    damage(session, artifact, lambda manifest: manifest.update(layout=LAYOUT_VERSION + 1))
    with pytest.raises(
        HallmarkError, match=r"its layout version is 3, but .* reads layout version 2;"
    ):
        session.store.find_artifact("make", artifact.fingerprint)


def test_opening_a_remote_store_costs_one_request(bucket, tmp_path, monkeypatch):
    address = f"s3://hallmark/{tmp_path.name}"
    monkeypatch.setattr("hallmark.tasks.contract.store_format._check_times", {})
    execute_small_run(Store(address, tmp_path / "work"))
    monkeypatch.setattr("hallmark.tasks.contract.store_format._check_times", {})
    requests, send = [], ObjectStore._send_with_retries
    monkeypatch.setattr(
        ObjectStore,
        "_send_with_retries",
        lambda self, request: requests.append(request) or send(self, request),
    )
    open_store(address, create=False)
    open_store(address, create=False)
    assert len(requests) == 1
