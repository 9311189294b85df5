"""``gc`` removes what nothing needs and keeps everything else, also while a run goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from hallmark.flows import run_progress, store_use
from hallmark.flows.commands.du import render_usage
from hallmark.flows.commands.gc import build_report_fields, gc, render_garbage
from hallmark.flows.commands.verify import verify_store
from hallmark.flows.config import load_config
from hallmark.flows.run_recording import record_run
from hallmark.flows.runs import read_all_runs
from hallmark.flows.store_copy import copy_runs
from hallmark.flows.store_garbage import collect_garbage, measure_usage
from hallmark.flows.store_use import announce_use, list_uses, wait_for_exclusive_uses
from hallmark.reports.review.evidence_hash import compute_evidence_hash
from hallmark.reports.review.released_versions import record_released_version
from hallmark.reports.review.review_store import write_review
from hallmark.reports.review.statements import ReviewedCard, make_review
from hallmark.tasks.contract import (
    FETCH_USERS_FOLDER,
    HallmarkError,
    Session,
    Store,
    TemporaryError,
    UsageError,
    lease_folder,
    list_stored_areas,
    open_session,
    sha256_hex,
)
from tests.flows.reruns.test_purge import corpus
from tests.flows.small_runs import WeightsConfig, execute_small_run, train_small
from tests.tasks.contract.stages import MakeConfig, make

PROJECT_FOLDER = Path(__file__).parents[2]


#: Fetches an object in a process, and uses it until its standard input ends.
FETCH_SCRIPT = """
import sys
from pathlib import Path
from hallmark.tasks.contract import Store
Store("{}", Path("{}")).fetch_object("artifacts/make/0/file", "{}")
print("fetched", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["folder", "bucket"])
def store(request, tmp_path):
    if request.param == "folder":
        return Store(tmp_path / "store")
    request.getfixturevalue("bucket")
    return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")


@pytest.fixture
def folder_store(tmp_path):
    return Store(tmp_path / "store")


def list_artifact_names(store):
    return {
        f"{stage}/{name}"
        for stage in store.list_folder_names("artifacts")
        for name in store.list_folder_names(f"artifacts/{stage}")
    }


def make_orphan(store, documents=70):
    """Commit an artifact to which no run refers."""
    with open_session(Session(store)):
        return make(MakeConfig(documents=documents)).name


def list_garbage(report):
    return {(item.kind, item.name) for item in report.garbage}


def age(store, key_or_path, hours):
    """Let a file of a local store look as if nobody had written to it for some hours."""
    path = store.root_folder / key_or_path
    then = path.stat().st_mtime - timedelta(hours=hours).total_seconds()
    os.utime(path, (then, then))


def test_artifacts_that_no_run_needs_are_listed_and_then_removed(store):
    run = execute_small_run(store)
    orphan = make_orphan(store)
    store.put("artifacts/make/feedfeedfeedfeed/0a/half", b"1234")  # never committed
    store.put(f"artifacts/{run.stages['count']['artifact']}/0a/half", b"12")
    before = {*store.list_keys("")}
    listed = collect_garbage(store, delete=False)
    assert {*store.list_keys("")} - {"clock"} == before - {"clock"}
    # From object storage, the table of checkpoints is fetched, also by the collection itself.
    cache = {("cache", "work/fetched")} if store.root_folder is None else set()
    assert (
        list_garbage(listed)
        == {
            ("artifact", orphan),
            ("unfinished artifact", "make/feedfeedfeedfeed"),
            ("unused file", run.stages["count"]["artifact"]),
        }
        | cache
    )
    report = collect_garbage(store, delete=True)
    assert list_garbage(report) == list_garbage(listed) and report.byte_count == listed.byte_count
    assert list_garbage(collect_garbage(store, delete=True)) == cache
    assert len(list_artifact_names(store)) == 5 and list_uses(store) == []
    assert verify_store(store).damage_messages == []
    if store.root_folder is not None:
        assert not (store.root_folder / "artifacts" / "make" / "feedfeedfeedfeed").exists()
    text = render_garbage(build_report_fields(report))
    assert "artifacts that no run, review or release needs: 1 (" in text and "removed from" in text
    assert "use --delete to remove them" in render_garbage(build_report_fields(listed))
    if not cache:
        nothing = collect_garbage(store, delete=False)
        assert "nothing can be removed from" in render_garbage(build_report_fields(nothing))


def test_what_a_removed_run_alone_needed_is_removed(store):
    kept = execute_small_run(store)
    removed = execute_small_run(store, documents=40)
    store.delete([f"runs/{removed.id}/run.json"])
    if store.root_folder is not None:
        shutil.rmtree(store.root_folder / "runs" / removed.id)
    collect_garbage(store, delete=True)
    assert len(list_artifact_names(store)) == 5
    assert verify_store(store).damage_messages == []
    assert {entry["artifact"] for entry in kept.record["stages"]} <= list_artifact_names(store)


def test_what_a_signature_needs_is_kept_without_its_run(folder_store, reviewers, tmp_path):
    """The run was removed, but its card was reviewed and a checkpoint was released."""
    artifacts = corpus(folder_store, tmp_path)
    card, orphan = artifacts["datasheet"], make_orphan(folder_store)
    with open_session(Session(folder_store)):
        checkpoint = train_small(WeightsConfig())["checkpoints"].read()["artifact"].to_pylist()[0]
    listed = {name for _, name in list_garbage(collect_garbage(folder_store, delete=False))}
    assert {card.name, artifacts["ingest"].name, checkpoint, orphan} <= listed
    reviewed = ReviewedCard(
        kind="datasheet", run="gone", checkpoint=None, evidence_hash=compute_evidence_hash(card)
    )
    statement = make_review(
        reviewer="Ada", decision="approve", date="2026-11-29T10:00:00+00:00", card=reviewed
    ).to_statement()
    write_review(folder_store, statement, reviewers.sign("ada", statement))
    digest = folder_store.open_artifact(checkpoint).content_digest
    record_released_version(folder_store, name="x", version="1", run="gone", checkpoint=digest)
    collect_garbage(folder_store, delete=True)
    kept_names = list_artifact_names(folder_store)
    assert {card.name, checkpoint, artifacts["profile"].name, artifacts["ingest"].name} < kept_names
    assert not {orphan, artifacts["pack"].name} & kept_names
    assert compute_evidence_hash(folder_store.open_artifact(card.name)) == reviewed.evidence_hash
    assert len(folder_store.list_keys("reviews")) == 2
    assert verify_store(folder_store).damage_messages == []


def test_a_damaged_run_or_artifact_keeps_everything_committed(folder_store, capsys):
    run = execute_small_run(folder_store)
    orphan = make_orphan(folder_store)
    record = folder_store.root_folder / "runs" / run.id / "run.json"
    manifest = folder_store.root_folder / "artifacts" / run.stages["drop"]["artifact"]
    for path in (record, manifest / "manifest.json"):
        content = path.read_bytes()
        path.write_text("{")
        report = collect_garbage(folder_store, delete=True)
        assert report.garbage == [] and len(report.problems) == 1
        assert orphan in list_artifact_names(folder_store)
        with pytest.raises(SystemExit) as ended:
            gc(store=str(folder_store.root_folder))
        assert ended.value.code == 1
        assert "because damaged runs and artifacts may" in capsys.readouterr().out
        path.write_bytes(content)
    assert list_garbage(collect_garbage(folder_store, delete=True)) == {("artifact", orphan)}


# While others use the store -------------------------------------------------------------------


def test_a_run_that_goes_on_keeps_all_committed_artifacts(store):
    orphan = make_orphan(store)
    with record_run("corpus", load_config("smoke"), store) as run:
        store.put("artifacts/make/feedfeedfeedfeed/0a/half", b"1234")
        report = collect_garbage(store, delete=True)
        assert report.in_use_by == f"run {run.id} on {run.record['host']}"
        assert report.garbage == []
        assert "is using the store, so all committed" in render_garbage(build_report_fields(report))
        with open_session(Session(store)):
            assert make(MakeConfig(documents=70)).name == orphan  # reused
        make(MakeConfig(documents=70))
    assert ("unfinished artifact", "make/feedfeedfeedfeed") in list_garbage(
        collect_garbage(store, delete=True)
    )
    assert orphan in list_artifact_names(store)  # the run refers to it
    assert verify_store(store).damage_messages == []


def test_a_long_silent_file_is_removed_even_during_a_run(folder_store):
    key = "artifacts/make/feedfeedfeedfeed/0a/half"
    with record_run("corpus", load_config("smoke"), folder_store):
        folder_store.put(key, b"1234")
        age(folder_store, key, hours=100)
        assert collect_garbage(folder_store, delete=True).garbage == []
        age(folder_store, key, hours=100)
        assert list_garbage(collect_garbage(folder_store, delete=True)) == {
            ("unfinished artifact", "make/feedfeedfeedfeed")
        }


def test_a_run_that_cannot_be_read_for_a_moment_loses_nothing(store, tmp_path, monkeypatch):
    """Its first stages are committed, but their artifacts are not in run.json yet."""
    other_host = Store(store.uri, tmp_path / "other host")
    get, failures = Store.get, []
    with record_run("corpus", load_config("smoke"), other_host) as run:
        artifact = make_orphan(other_host)

        def fail_once(self, key):
            if key == f"runs/{run.id}/run.json" and not failures:
                failures.append(key)
                raise TemporaryError("the store does not answer")
            return get(self, key)

        monkeypatch.setattr(Store, "get", fail_once)
        report = collect_garbage(store, delete=True)
        assert failures and report.problems == ["the store does not answer"]
        assert artifact in list_artifact_names(store)


def test_a_copy_into_the_store_keeps_what_arrived(store, tmp_path):
    orphan = make_orphan(store)
    with announce_use(store, "copy"):
        report = collect_garbage(store, delete=True)
        assert report.in_use_by.startswith("hallmark push or pull (process ")
        assert orphan in list_artifact_names(store)
    assert collect_garbage(store, delete=True).in_use_by is None
    assert orphan not in list_artifact_names(store)


@pytest.mark.parametrize("kind", ["gc", "purge"])
def test_one_collection_or_purge_at_a_time(store, kind):
    orphan = make_orphan(store)
    with (
        announce_use(store, kind),
        pytest.raises(HallmarkError, match=rf"hallmark {kind} \(process \d+ on .* nothing was rem"),
    ):
        collect_garbage(store, delete=True)
    assert orphan in list_artifact_names(store)


def test_a_run_on_another_host_waits_for_a_collection(store, tmp_path, caplog):
    """The other host has another work folder, so that only the store can tell it."""
    other_host = Store(store.uri, tmp_path / "other host")
    started = threading.Event()

    def execute():
        with record_run("corpus", load_config("smoke"), other_host):
            started.set()

    thread = threading.Thread(target=execute)
    with announce_use(store, "gc"):
        thread.start()
        while "waiting for hallmark gc" not in caplog.text:
            assert thread.is_alive()
        assert not started.is_set()
    thread.join(timeout=60)
    assert started.is_set()


def test_a_run_that_waits_for_long_gives_signs_of_life(store, tmp_path, monkeypatch):
    """Else the next collection on another host would take it for a dead run."""
    other_host = Store(store.uri, tmp_path / "other host")
    monkeypatch.setattr(run_progress, "WRITE_INTERVAL_SECONDS", 0.0)
    put, written = Store.put, []

    def record_key(self, key, data):
        written.append(key.rsplit("/", 1)[-1])
        return put(self, key, data)

    monkeypatch.setattr(Store, "put", record_key)

    def execute():
        with record_run("corpus", load_config("smoke"), other_host):
            pass

    thread = threading.Thread(target=execute)
    with announce_use(store, "gc"):
        thread.start()
        while written.count("progress.json") < 3:
            assert thread.is_alive()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_the_announcement_of_a_killed_command_does_not_count(store, tmp_path, monkeypatch):
    code = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from hallmark.flows.store_use import announce_use\n"
        "from hallmark.tasks.contract import Store\n"
        "with announce_use(Store(sys.argv[1], Path(sys.argv[2])), 'gc'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, store.uri, str(store.work_folder)]
    assert subprocess.run(command, cwd=PROJECT_FOLDER).returncode == -signal.SIGKILL
    assert len(store.list_keys("store-use")) == 1
    assert list_uses(store) == []  # the lease on this machine says so at once
    other_host = Store(store.uri, tmp_path / "other host")
    assert [use.kind for use in list_uses(other_host)] == ["gc"]
    monkeypatch.setattr(store_use, "SILENCE_SECONDS", -1.0)
    assert list_uses(other_host) == []
    wait_for_exclusive_uses(other_host)


def test_hostile_announcements_are_ignored(store):
    good = {"kind": "gc", "host": "h", "pid": 3, "since": ""}
    contents = [b"", b"\xff", b"[]", b"{}", b"[" * 1000, b" " * 3000]
    contents += [json.dumps(good | {"kind": "rm"}).encode(), json.dumps({"kind": "gc"}).encode()]
    for number, content in enumerate(contents):
        store.put(f"store-use/{number:016x}.json", content)
    store.put("store-use/other.json", json.dumps(good).encode())
    assert list_uses(store) == []
    store.put("store-use/aaaaaaaaaaaaaaaa.json", json.dumps(good).encode())
    assert [str(use) for use in list_uses(store)] == ["hallmark gc (process 3 on h, since )"]


@pytest.mark.slow
def test_collections_in_a_loop_harm_no_run_of_another_host(store, tmp_path):
    """The other host has another work folder, so that only the store tells the two apart."""
    make_orphan(store, documents=20)  # the first run reuses it, unless it is removed before
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from hallmark.tasks.contract import Store\n"
        "from tests.flows.small_runs import execute_small_run\n"
        "for number in range(20, 26):\n"
        "    execute_small_run(Store(sys.argv[1], Path(sys.argv[2])), documents=number)\n"
    )
    command = [sys.executable, "-c", code, store.uri, str(tmp_path / "other host")]
    process = subprocess.Popen(command, cwd=PROJECT_FOLDER, stderr=subprocess.PIPE, text=True)
    reports = []
    while process.poll() is None:
        reports.append(collect_garbage(store, delete=True))
    removed = [(report.in_use_by, list_garbage(report)) for report in reports if report.garbage]
    assert process.returncode == 0, f"{process.stderr.read()}\nremoved: {removed}"
    assert len({report.in_use_by for report in reports} - {None}) >= 2
    assert [run.status for run in read_all_runs(store)] == ["completed"] * 6
    assert verify_store(store).damage_messages == []
    assert not {kind for kind, _ in list_garbage(collect_garbage(store, delete=True))} - {"cache"}


@pytest.mark.slow
def test_a_collection_that_was_killed_leaves_no_damage(folder_store, tmp_path):
    kept = execute_small_run(folder_store)
    for documents in range(100, 140):
        make_orphan(folder_store, documents)
    count_artifacts = len(list_artifact_names(folder_store))
    command = [sys.executable, "-m", "hallmark.flows.cli", "gc", "--delete", "--store", "store"]
    killed = 0
    for remaining in (35, 20, 5):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(list_artifact_names(folder_store)) > 5 + remaining:
            pass
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        assert verify_store(folder_store).damage_messages == []
    assert killed >= 2 and len(list_artifact_names(folder_store)) < count_artifacts
    collect_garbage(folder_store, delete=True)
    assert len(list_artifact_names(folder_store)) == 5
    assert {row["artifact"] for row in kept.record["stages"]} <= list_artifact_names(folder_store)
    assert collect_garbage(folder_store, delete=True).garbage == []


# Files of this machine ------------------------------------------------------------------------


def test_temporary_files_of_dead_writers_are_removed(folder_store):
    run = execute_small_run(folder_store)
    root = folder_store.root_folder
    temporary = [f"runs/{run.id}/run.json#1", "tmpabcd_123", "work/digests.a_b1"]
    for name in temporary:
        (root / name).write_bytes(b"123")
    (root / "work" / "purged-0123456789ab" / "x").mkdir(parents=True)
    (root / "work" / "copied-abcd_123" / "x").mkdir(parents=True)
    (root / "work" / "digests.json").write_text("{}")
    (root / "notes.txt").write_text("mine")
    report = collect_garbage(folder_store, delete=True)
    assert {kind for kind, _ in list_garbage(report)} == {"temporary file"}
    assert len(report.garbage) == 5
    assert not any((root / name).exists() for name in temporary)
    assert (root / "work" / "digests.json").exists() and (root / "notes.txt").exists()


def test_work_areas_are_kept_as_long_as_they_serve(folder_store):
    run = execute_small_run(folder_store)
    work = folder_store.work_folder
    pack = run.stages["make"]["artifact"]
    names = {
        "leased": "make-00000000000000aa",
        "recent": "make-00000000000000bb",
        "given up": "make-00000000000000cc",
        "committed": pack.replace("/", "-"),
        "training": "pretrain-00000000000000dd",
        "training of removed text": "pretrain-00000000000000ee",
        "killed run": "run-20260101-000000-abcd",
    }
    for name in names.values():
        (work / name / "parts").mkdir(parents=True)
        (work / name / "parts" / "0").write_bytes(b"12345")
        (work / name / "lease").touch()
    for name, artifact in (("training", pack), ("training of removed text", "pack/" + "0" * 16)):
        path = folder_store.root_folder / "artifacts" / artifact / "00.parquet"
        (work / names[name] / "job.json").write_text(json.dumps({"data": {"train": [str(path)]}}))
    for path in (work / names["given up"]).rglob("*"):
        age(folder_store, path, hours=200)
    with lease_folder(work / names["leased"]):
        report = collect_garbage(folder_store, delete=True)
    removed = {"given up", "committed", "training of removed text", "killed run"}
    assert {name for _, name in list_garbage(report)} == {f"work/{names[n]}" for n in removed}
    assert {n for n, name in names.items() if not (work / name).exists()} == removed
    collect_garbage(folder_store, delete=True, unfinished_hours=0)
    assert {path.name for path in work.glob("make-*")} == {names["leased"]} - {names["leased"]}


def put_states(store, area, fingerprints, holder=None):
    """Store a lease of a dead process that lists a state for each fingerprint, and another file."""
    works = {}
    for n, fingerprint in enumerate(fingerprints):
        folder = f"work-states/{area}/{n}"
        store.put(f"{folder}/file", b"weights")
        files = [{"path": "a", "key": f"{folder}/file", "size": 7, "sha256": "0" * 64}]
        index = json.dumps(files).encode()
        store.put(f"{folder}/index.json", index)
        state = {"step": n, "index_key": f"{folder}/index.json", "index_sha256": sha256_hex(index)}
        works[f"t-{n}"] = {"fingerprint": fingerprint, "inputs": ["pack/1"], "states": [state]}
    store.put(f"work-states/{area}/x/unlisted", b"half")
    record = {"number": 1, "token": "x", "holder": holder, "works": works}
    store.put(f"leases/{area}.json", json.dumps(record).encode())


def list_areas(store):
    return {area.name for area in list_stored_areas(store)}


@pytest.fixture
def bucket_store(bucket, tmp_path):
    return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")


def test_states_in_the_store_are_kept_as_long_as_they_serve(bucket_store, monkeypatch):
    run = execute_small_run(bucket_store)
    committed = run.stages["make"]["artifact"].removeprefix("make/")
    areas = {
        "ended": f"make-{'a' * 16}",
        "one ended": f"make-{'b' * 16}",
        "unfinished": f"make-{'c' * 16}",
        "leased": f"make-{'d' * 16}",
        "damaged": f"make-{'e' * 16}",
        "empty": f"make-{'f' * 16}",
    }
    put_states(bucket_store, areas["ended"], [committed])
    put_states(bucket_store, areas["one ended"], [committed, "0" * 64])
    put_states(bucket_store, areas["unfinished"], ["0" * 64])
    holder = {"host": "elsewhere", "pid": 1, "since": "now"}
    put_states(bucket_store, areas["leased"], [committed], holder)
    bucket_store.put(f"leases/{areas['damaged']}.json", b"{}")
    bucket_store.put(f"leases/{areas['empty']}.json", b'{"number": 1, "token": "x"}')

    with bucket_store.shared_lock():  # while somebody uses the store, nothing is removed
        assert collect_garbage(bucket_store, delete=True).garbage == []
    listed = collect_garbage(bucket_store, delete=False)
    report = collect_garbage(bucket_store, delete=True)
    assert list_garbage(report) == list_garbage(listed)
    cache = ("cache", "work/fetched")
    assert {kind for kind, _ in list_garbage(report) - {cache}} == {"training state"}
    assert list_areas(bucket_store) == {*areas.values()} - {areas["ended"], areas["empty"]}
    assert not bucket_store.list_keys(f"work-states/{areas['ended']}")
    for name in ("one ended", "unfinished"):
        keys = bucket_store.list_keys(f"work-states/{areas[name]}")
        assert keys and not any(key.endswith("unlisted") for key in keys)
    assert list_garbage(collect_garbage(bucket_store, delete=True)) <= {cache}

    # After a while, nobody continues; a lease that is renewed is that of a living process.
    collect_garbage(bucket_store, delete=True, unfinished_hours=0)
    assert list_areas(bucket_store) == {areas["leased"], areas["damaged"]}
    monkeypatch.setattr("hallmark.tasks.contract.stored_states.EXPIRY_SECONDS", -10)
    collect_garbage(bucket_store, delete=True, unfinished_hours=0)
    assert list_areas(bucket_store) == set()


def test_usage_includes_states_in_the_store(bucket_store):
    execute_small_run(bucket_store)
    put_states(bucket_store, f"make-{'a' * 16}", ["0" * 64])
    folders = {row.name: row.files for row in measure_usage(bucket_store).folders}
    assert (folders["work-states"], folders["leases"]) == (3, 1)


def test_caches_are_removed_if_nobody_uses_the_store(store):
    run = execute_small_run(store)
    (store.work_folder / "text_index-0123456789abcdef").mkdir()
    (store.work_folder / "text_index-0123456789abcdef" / "x").write_bytes(b"12345")
    with store.shared_lock():
        report = collect_garbage(store, delete=True)
        assert report.in_use_by == "another process on this machine" and report.garbage == []
    collect_garbage(store, delete=True)
    assert not [*store.work_folder.glob("text_index-*"), *store.work_folder.glob("fetched")]
    run["count"]["count"].read()  # fetched again


def test_lists_of_dead_processes_that_used_copies_are_removed(bucket, tmp_path):
    store = Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")
    store.put("artifacts/make/0/file", b"data")
    script = FETCH_SCRIPT.format(store.uri, store.work_folder, sha256_hex(b"data"))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"fetched\n"
    (list_path,) = (store.work_folder / FETCH_USERS_FOLDER).iterdir()
    collect_garbage(store, delete=True)
    assert list_path.is_file()
    process.kill()
    process.communicate()
    assert ("temporary file", list_path.name) in list_garbage(collect_garbage(store, delete=False))
    collect_garbage(store, delete=True)
    assert not list_path.exists()


def test_links_are_not_followed(folder_store, tmp_path):
    execute_small_run(folder_store)
    outside = tmp_path / "outside"
    (outside / "0a").mkdir(parents=True)
    (outside / "0a" / "mine").write_text("mine")
    (folder_store.root_folder / "artifacts" / "make" / "feedfeedfeedfeed").symlink_to(outside)
    (folder_store.work_folder / "make-feedfeedfeedfeed").symlink_to(outside)
    (folder_store.work_folder / "fetched").symlink_to(outside)
    assert collect_garbage(folder_store, delete=True, unfinished_hours=0).garbage == []
    assert (outside / "0a" / "mine").read_text() == "mine"


def test_wrong_hours_are_refused(folder_store):
    for hours in (-1.0, float("nan")):
        with pytest.raises(
            UsageError, match=r"--unfinished-hours is .*, but must be a non-negative number"
        ):
            gc(unfinished_hours=hours, store=str(folder_store.root_folder))


# What uses the space --------------------------------------------------------------------------


def test_usage_adds_up(store):
    first = execute_small_run(store)
    second = execute_small_run(store)  # everything is cached
    third = execute_small_run(store, documents=40)
    orphan = make_orphan(store)
    usage = measure_usage(store)
    sizes = store.list_object_sizes("")
    artifact_bytes = sum(size for key, size in sizes.items() if key.startswith("artifacts/"))
    orphan_bytes = sum(size for key, size in sizes.items() if f"/{orphan}/" in key)
    assert sum(row.bytes for row in usage.stages) == artifact_bytes
    assert usage.bytes == artifact_bytes + sum(row.bytes for row in usage.folders)
    assert usage.files == sum(row.files for row in (*usage.stages, *usage.folders))
    by_run = {row.run: row for row in usage.runs}
    assert [*by_run] == [first.id, second.id, third.id]
    assert by_run[first.id].bytes == by_run[second.id].bytes == usage.shared_bytes
    assert by_run[first.id].own_bytes == 0
    assert by_run[third.id].own_bytes == by_run[third.id].bytes
    assert usage.shared_bytes + by_run[third.id].bytes + orphan_bytes == artifact_bytes
    cached = sum(row.bytes for row in usage.folders if row.name == "work/fetched")
    assert usage.reclaimable_bytes == orphan_bytes + cached
    text = render_usage(json.loads(json.dumps(usage, default=vars)))
    assert "shared by several runs" in text and f"{first.id} " in text


def test_a_pushed_store_has_no_garbage(folder_store, tmp_path):
    run = execute_small_run(folder_store)
    target = Store(tmp_path / "target")
    copy_runs(folder_store, target, [run.id])
    assert collect_garbage(target, delete=True, unfinished_hours=0).garbage == []
