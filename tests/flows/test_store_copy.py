"""Push and pull move a run with all it refers to, and undo no purge."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.lossy_proxy import LossyProxy
from hallmark.flows.commands.purge import purge_document
from hallmark.flows.commands.push import render_copy, split_runs_and_store
from hallmark.flows.commands.verify import verify_run, verify_store
from hallmark.flows.document_purge import record_purged_documents
from hallmark.flows.runs import open_run
from hallmark.flows.store_copy import _StoreCopy, copy_runs, open_target_store
from hallmark.flows.store_references import ArtifactGraph
from hallmark.flows.store_use import announce_use, list_uses
from hallmark.tasks.contract import (
    HallmarkError,
    Store,
    UsageError,
    compute_content_digest,
    read_purged_documents,
)
from hallmark.tasks.contract.fingerprint import read_installed_version
from tests.flows.small_runs import execute_small_run, read_record
from tests.tasks.contract.test_equivalent_versions import NEWER, install, make_record

PROJECT_FOLDER = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path):
    return Store(tmp_path / "source")


@pytest.fixture(params=["folder", "bucket"])
def target(request, tmp_path):
    if request.param == "folder":
        return Store(tmp_path / "target")
    request.getfixturevalue("bucket")
    return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work of target")


def list_content(store):
    """Return the content of the store by key, apart from the order of runs and work areas."""
    return {
        key: store.get(key)
        for key in store.list_keys("")
        if not key.startswith(("run-order/", "work/", "clock", "site/"))
    }


def find_manifest(store, stage):
    [path] = store.root_folder.glob(f"artifacts/{stage}/*/manifest.json")
    return path


def change_manifest(store, stage, change):
    path = find_manifest(store, stage)
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_run_arrives_with_all_it_refers_to_and_returns(source, target, tmp_path):
    run = execute_small_run(source)
    report = copy_runs(source, target, ["latest"])
    assert (report.runs, report.copied_artifacts, report.present_artifacts) == ([run.id], 5, 0)
    assert list_content(target) == list_content(source)
    assert target.secret == source.secret and not report.has_other_secret
    verification = verify_run(target, run.id)
    assert verification.damage_messages == [] and verification.artifact_count == 5
    assert list_uses(target) == [] and target.list_keys("store-use") == []

    repeated = copy_runs(source, target, [run.id[:15]])
    assert (repeated.copied_artifacts, repeated.present_artifacts) == (0, 5)
    assert repeated.copied_files == repeated.copied_bytes == 0

    back = Store(tmp_path / "back")
    assert copy_runs(target, back, ["latest"]).copied_files == report.copied_files > 5
    assert list_content(back) == list_content(source)
    assert not [path for path in back.work_folder.rglob("*") if path.is_file()]
    assert not list(target.work_folder.glob("copied-*"))


def test_a_second_run_sends_only_what_is_missing(source, target):
    first = execute_small_run(source)
    copy_runs(source, target, [first.id])
    second = execute_small_run(source, documents=40)
    report = copy_runs(source, target, [first.id, second.id])
    assert report.present_artifacts == 5 and report.copied_artifacts == 5
    assert list_content(target) == list_content(source)


def test_lost_and_incomplete_files_of_the_target_are_sent_again(source, target):
    run = execute_small_run(source)
    copy_runs(source, target, [run.id])
    [key] = [key for key in target.list_keys("artifacts/checkpoint") if key.endswith(".bin")]
    for damage in (lambda: target.delete([key]), lambda: target.put(key, b"cut")):
        damage()
        assert verify_run(target, run.id).damage_messages
        assert copy_runs(source, target, [run.id]).copied_files == 1
        assert verify_run(target, run.id).damage_messages == []


def test_runs_that_a_run_names_come_first(source, target):
    earlier, previous, arm = (execute_small_run(source, documents=n) for n in (10, 20, 25))
    run = execute_small_run(source, arms={"control": arm.id}, checkpoint=f"{previous.id}@7")
    record = read_record(source, run)
    record["config"] |= {"earlier_run": earlier.id}
    source.put(f"runs/{run.id}/run.json", json.dumps(record).encode())
    report = copy_runs(source, target, [run.id])
    assert {*report.runs} == {earlier.id, previous.id, arm.id, run.id}
    assert report.runs[-1] == run.id
    assert {*target.list_folder_names("runs")} == {*report.runs}


def test_a_record_that_changed_is_replaced_but_never_by_an_older_one(source, target):
    run = execute_small_run(source)
    complete = read_record(source, run)
    key = f"runs/{run.id}/run.json"
    unfinished = complete | {"status": "failed", "stages": complete["stages"][:2]}
    source.put(key, json.dumps(unfinished).encode())
    copy_runs(source, target, [run.id])
    assert open_run(run.id, target).status == "failed"
    source.put(key, json.dumps(complete).encode())
    copy_runs(source, target, [run.id])
    assert open_run(run.id, target).status == "completed"
    source.put(key, json.dumps(unfinished).encode())
    copy_runs(source, target, [run.id])
    assert open_run(run.id, target).status == "completed"
    source.put(key, json.dumps(complete | {"started": "2020-01-01T00:00:00+00:00"}).encode())
    with pytest.raises(
        HallmarkError, match=f"has a different run with the id {run.id}, so nothing"
    ):
        copy_runs(source, target, [run.id])


def test_a_store_with_another_secret_keeps_it(source, target):
    execute_small_run(source)
    own_secret = target.secret
    report = copy_runs(source, target, ["latest"])
    assert report.has_other_secret and target.secret == own_secret
    assert "have different secrets" in render_copy(asdict(report))


def test_equal_versions_arrive_with_the_artifacts_that_depend_on_them(
    source, target, tmp_path, monkeypatch
):
    record = make_record()
    source.put(record.key, record.to_json())
    execute_small_run(source)  # with the installed version
    assert copy_runs(source, target, ["latest"]).equivalent_versions == []

    install(monkeypatch, tmp_path / "site", "pyarrow", NEWER)
    execute_small_run(source, 31)
    report = copy_runs(source, target, ["latest"])
    assert report.equivalent_versions == [str(record)]
    output = render_copy(asdict(report))
    assert f"now also treated as equivalent in {target.uri}: {record}" in output
    assert target.get(record.key) == source.get(record.key)
    again = execute_small_run(target, 31)
    assert all(entry["cached"] for entry in again.stages.values())
    read_installed_version.cache_clear()


# Purges ---------------------------------------------------------------------------------------

DOC_ID = "ab" * 16


def get_doc_id(store, run):
    rows = open_run(run.id, store)["drop"]["documents"].read(["doc_id", "text"]).to_pylist()
    return rows[0]["doc_id"].hex(), rows[0]["text"].encode()


def list_tables_with(store, text):
    """List the tables of a store that contain a text."""
    return [
        artifact.name
        for stage in store.list_folder_names("artifacts")
        for artifact in store.list_artifacts(stage)
        for table in artifact.tables.values()
        if text in str(table.read().to_pylist()).encode()
    ]


def test_a_purged_run_arrives_without_the_document_and_with_its_record(source, target):
    run = execute_small_run(source)
    doc_id, text = get_doc_id(source, run)
    purge_document(source, doc_id)
    report = copy_runs(source, target, [run.id])
    assert report.purged_documents == [doc_id]
    assert f"now also recorded as purged in {target.uri}: {doc_id}" in render_copy(asdict(report))
    assert read_purged_documents(target) == read_purged_documents(source)
    assert list_tables_with(target, text) == []
    assert open_run(run.id, target)["drop"].purge_time_by_doc_id.keys() == {doc_id}
    assert verify_run(target, run.id).damage_messages == []
    assert copy_runs(source, target, [run.id]).purged_documents == []


def test_a_document_purged_in_the_target_does_not_come_back(source, target):
    first = execute_small_run(source)
    doc_id, text = get_doc_id(source, first)
    copy_runs(source, target, [first.id])
    purge_document(target, doc_id)
    # What the target has already is not sent again.
    assert copy_runs(source, target, [first.id]).copied_files == 0
    second = execute_small_run(source, documents=31)  # contains the document, too
    message = f"document {doc_id} was purged in the store .*, and the copy would restore it"
    with pytest.raises(HallmarkError, match=message):
        copy_runs(source, target, [second.id])
    assert list_tables_with(target, text) == []
    assert target.list_folder_names("runs") == [first.id]
    # Once it is purged in the source as well, the run can be copied.
    purge_document(source, doc_id)
    copy_runs(source, target, [second.id])
    assert list_tables_with(target, text) == []
    assert verify_store(target).damage_messages == []


def test_a_document_purged_in_the_source_must_first_be_purged_in_the_target(source, target):
    run = execute_small_run(source)
    copy_runs(source, target, [run.id])
    doc_id, _ = get_doc_id(source, run)
    purge_document(source, doc_id)
    message = f"still contains it in the store .*; purge it there first: hallmark purge {doc_id}"
    with pytest.raises(HallmarkError, match=message):
        copy_runs(source, target, [run.id])
    purge_document(target, doc_id)
    assert copy_runs(source, target, [run.id]).copied_files == 0


def test_purges_of_other_runs_of_the_target_count_as_unfinished(source, target):
    execute_small_run(target, documents=50)
    run = execute_small_run(source)
    doc_id, text = get_doc_id(source, run)
    purge_document(source, doc_id)
    copy_runs(source, target, [run.id])
    assert read_purged_documents(target)["unfinished"] == [doc_id]
    assert list_tables_with(target, text)
    purge_document(target, doc_id)
    assert list_tables_with(target, text) == []
    assert read_purged_documents(target)["unfinished"] == []


def test_what_an_interrupted_purge_left_behind_is_not_copied(source, target):
    run = execute_small_run(source)
    doc_id, _ = get_doc_id(source, run)
    record_purged_documents(source, {bytes.fromhex(doc_id)}, is_unfinished=True)
    with pytest.raises(HallmarkError, match=f"{doc_id} is recorded .* the purge was not completed"):
        copy_runs(source, target, [run.id])
    assert target.list_folder_names("artifacts") == []
    purge_document(source, doc_id)
    copy_runs(source, target, [run.id])
    assert read_purged_documents(target)["unfinished"] == []


def test_a_purge_during_the_copy_leaves_no_run(source, target, monkeypatch):
    run = execute_small_run(source)
    copy_artifact = _StoreCopy._copy_artifact

    def copy_and_purge(self, artifact):
        copy_artifact(self, artifact)
        record_purged_documents(source, {bytes.fromhex(DOC_ID)}, is_unfinished=False)

    monkeypatch.setattr(_StoreCopy, "_copy_artifact", copy_and_purge)
    with pytest.raises(HallmarkError, match=r"were purged in the store .* during the copy, so no"):
        copy_runs(source, target, [run.id])
    assert target.list_folder_names("runs") == []


def test_a_purge_is_refused_while_a_copy_uses_the_store(source):
    run = execute_small_run(source)
    doc_id, text = get_doc_id(source, run)
    with (
        announce_use(source, "copy"),
        pytest.raises(
            HallmarkError, match=r"hallmark push or pull \(process .* is using the store"
        ),
    ):
        purge_document(source, doc_id)
    assert list_tables_with(source, text)
    purge_document(source, doc_id)


# Wrong use ------------------------------------------------------------------------------------


def test_wrong_use_is_one_sentence(source, tmp_path):
    run = execute_small_run(source)
    with pytest.raises(UsageError, match="are the same store; specify two stores"):
        copy_runs(source, Store(f"file://{source.root_folder}/"), [run.id])
    with pytest.raises(UsageError, match="has no run named 'x'"):
        copy_runs(source, Store(tmp_path / "target"), ["x"])
    for arguments in ((), ("latest",)):
        with pytest.raises(UsageError, match="example: hallmark pull latest s3://bucket/prefix"):
            split_runs_and_store("pull", "source", arguments)
    assert split_runs_and_store("push", "destination", ("a", "b", "c")) == (("a", "b"), "c")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letters.txt").write_text("Dear all")
    with pytest.raises(UsageError, match="is not a store: it contains files"):
        open_target_store(str(tmp_path / "other"))
    assert open_target_store(str(tmp_path / "new")).root_folder == tmp_path / "new"
    source.put(f"runs/{run.id}/progress.json", b"{}")
    record = read_record(source, run) | {"status": "running", "host": "elsewhere"}
    source.put(f"runs/{run.id}/run.json", json.dumps(record).encode())
    with pytest.raises(UsageError, match="is running on elsewhere, so it cannot be copied yet"):
        copy_runs(source, Store(tmp_path / "target"), [run.id])


@pytest.mark.usefixtures("bucket")
def test_a_missing_bucket_is_one_sentence(source, tmp_path):
    execute_small_run(source)
    with pytest.raises(HallmarkError, match="its bucket does not exist; create the bucket"):
        copy_runs(source, Store("s3://nowhere/x", tmp_path / "work"), ["latest"])


def test_a_copy_waits_for_a_purge_and_a_collection(source, tmp_path):
    """The purge ends while the copy waits, in another process."""
    run = execute_small_run(source)
    target = Store(tmp_path / "target")
    environment = {**os.environ, "HALLMARK_STORE": str(source.root_folder)}
    with announce_use(target, "gc"):
        command = [sys.executable, "-m", "hallmark.flows.cli", "push", run.id, "target"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        )
        line = process.stderr.readline()
        assert line.startswith("waiting for hallmark gc (process "), line
        assert list_content(target).keys() <= {*target.list_keys("store-use")}
    process.communicate(timeout=60)
    assert process.returncode == 0 and verify_run(target, run.id).damage_messages == []


# Damaged and hostile sources ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda m: m.update(fingerprint="feed" * 16),
            "two artifacts with different fingerprints share the folder",
        ),
        (lambda m: m.update(stage="drop"), "its manifest.json describes drop/"),
        (lambda m: m.update(lineage={"x": "../../etc/passwd"}), "is incomplete or invalid"),
        (lambda m: m.update(content="0" * 64), "is incomplete or invalid"),
        (
            lambda m: m["tables"]["documents"]["parts"][0].update(path="../../../outside"),
            "is incomplete or invalid",
        ),
        (
            lambda m: m["tables"]["documents"]["parts"][0].update(path="manifest.json"),
            "lists a file with the path 'manifest.json'",
        ),
        (
            lambda m: m["tables"]["documents"]["parts"][0].update(path="tombstones.json/x"),
            "lists a file with the path 'tombstones.json/x'",
        ),
        (
            lambda m: m["tables"]["documents"]["parts"][0].update(path="0/gone"),
            "is damaged: .* is missing",
        ),
    ],
)
def test_a_hostile_manifest_is_one_sentence_and_no_run_arrives(source, tmp_path, damage, message):
    run = execute_small_run(source)
    change_manifest(source, "make", damage)
    target = Store(tmp_path / "target")
    with pytest.raises(HallmarkError, match=message):
        copy_runs(source, target, [run.id])
    assert target.list_folder_names("runs") == []
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}


def test_a_cycle_in_a_lineage_ends(source, target):
    run = execute_small_run(source)
    count_name = open_run(run.id, source)["count"].name

    def point_to_its_user(manifest):
        manifest["lineage"] = {"documents": f"{count_name}#count"}

    change_manifest(source, "make", point_to_its_user)
    assert copy_runs(source, target, [run.id]).copied_artifacts == 5
    assert verify_run(target, run.id).damage_messages == []


def test_an_artifact_that_names_itself_is_not_copied(source, target):
    run = execute_small_run(source)

    def point_to_itself(manifest):
        manifest["lineage"] = {"itself": f"make/{manifest['fingerprint'][:16]}"}

    change_manifest(source, "make", point_to_itself)
    with pytest.raises(HallmarkError, match=r"lineage\.itself refers to the artifact itself"):
        copy_runs(source, target, [run.id])
    assert target.list_folder_names("runs") == []


def test_what_a_run_needs_must_be_in_the_source(source, target):
    run = execute_small_run(source)
    shutil.rmtree(find_manifest(source, "checkpoint").parent)
    with pytest.raises(
        HallmarkError, match=r"does not contain the artifact checkpoint/.* that a run refers to"
    ):
        copy_runs(source, target, [run.id])
    assert target.list_folder_names("runs") == []


def test_an_input_outside_the_store_is_named(source, target):
    run = execute_small_run(source)
    change_manifest(source, "make", lambda m: m.update(lineage={"x": "folder/0123456789abcdef"}))
    report = copy_runs(source, target, [run.id])
    assert report.missing_inputs == ["folder/0123456789abcdef"]
    output = render_copy(asdict(report))
    assert f"they are missing from {source.uri}: folder/0123456789abcdef" in output


def test_a_damaged_file_of_the_source_is_not_sent(source, target):
    run = execute_small_run(source)
    [path] = source.root_folder.glob("artifacts/checkpoint/*/*/model.bin")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(HallmarkError, match=r"model\.bin does not match the SHA-256"):
        copy_runs(source, target, [run.id])
    assert target.list_folder_names("runs") == []


def test_a_file_that_is_cut_in_transit_does_not_arrive(source, target, monkeypatch):
    run = execute_small_run(source)
    put = type(target).put

    def cut(store, key, data):
        if isinstance(data, Path) and key.endswith("model.bin"):
            data = data.read_bytes()[:-10]
        put(store, key, data)

    monkeypatch.setattr(type(target), "put", cut)
    with pytest.raises(HallmarkError, match=r"model\.bin changed during the copy \(its SHA-256"):
        copy_runs(source, target, [run.id])
    assert target.list_folder_names("runs") == []
    monkeypatch.undo()
    copy_runs(source, target, [run.id])
    assert verify_store(target).damage_messages == []


def test_an_artifact_with_other_content_is_never_mixed(source, target):
    """Another machine computed other weights under the same fingerprint."""
    run = execute_small_run(source)
    copy_runs(source, target, [run.id])
    target.delete([f"runs/{run.id}/run.json"])

    def change_weights(manifest):
        manifest["files"]["model.bin"]["sha256"] = "0" * 64
        manifest["content"] = compute_content_digest(manifest["tables"], manifest["files"])

    change_manifest(source, "checkpoint", change_weights)
    with pytest.raises(HallmarkError, match=r"with different content \(results can"):
        copy_runs(source, target, [run.id])
    assert target.get(f"runs/{run.id}/run.json") is None


def test_a_damaged_review_stops_the_copy(source, target):
    execute_small_run(source)
    source.put(f"reviews/{'0' * 32}.json", b"{}")
    with pytest.raises(HallmarkError, match="is damaged and may be a rejection"):
        copy_runs(source, target, ["latest"])


@pytest.mark.parametrize("run_id", ["a b", "x.y", "é" * 101])
def test_a_hostile_run_id_is_refused(source, target, run_id):
    run = execute_small_run(source)
    record = read_record(source, run) | {"run": run_id}
    source.put(f"runs/{run_id}/run.json", json.dumps(record).encode())
    with pytest.raises(HallmarkError, match="is not a valid run id, so nothing was copied"):
        copy_runs(source, target, [run_id])


def test_each_artifact_is_read_once(source, monkeypatch):
    run = execute_small_run(source)
    graph, reads = ArtifactGraph(source), []
    read = ArtifactGraph._read
    monkeypatch.setattr(
        ArtifactGraph, "_read", lambda self, name: reads.append(name) or read(self, name)
    )
    names = [entry["artifact"] for entry in run.record["stages"]]
    assert len(graph.collect(names)) == len(graph.collect(names)) == 5
    assert len(reads) == 5


@pytest.mark.parametrize("fault", ["lost", "truncate"])
@pytest.mark.slow
@pytest.mark.usefixtures("bucket")
def test_a_copy_survives_the_loss_of_every_first_reply(source, tmp_path, monkeypatch, fault):
    run = execute_small_run(source)
    uri = f"s3://hallmark/{tmp_path.name}-lossy"

    def choose_fault(request):
        return None if request.attempt else fault

    with LossyProxy(os.environ["AWS_ENDPOINT_URL"], choose_fault) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        remote = Store(uri, tmp_path / "work")
        copy_runs(source, remote, [run.id])
        back = Store(tmp_path / "back")
        copy_runs(Store(uri, tmp_path / "other work"), back, [run.id])
        assert proxy.faults
    assert list_content(back) == list_content(source)


# Kills ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_push_that_was_killed_is_completed_by_the_next_one(source, tmp_path):
    runs = [execute_small_run(source, documents=n) for n in range(20, 32)]
    target, chooser = Store(tmp_path / "target"), random.Random(70)
    command = [sys.executable, "-m", "hallmark.flows.cli", "push", *(run.id for run in runs)]
    environment = {**os.environ, "HALLMARK_STORE": str(source.root_folder)}
    killed = 0
    for _ in range(6):
        wanted = chooser.randrange(1, 200)  # of 220 files
        process = subprocess.Popen(
            [*command, "target"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while process.poll() is None and len(target.list_stored_files("artifacts")) < wanted:
            assert time.monotonic() < deadline
        process.kill()
        killed += process.wait() == -9
        for run_id in target.list_folder_names("runs"):  # a run that arrived is complete
            assert verify_run(target, run_id).damage_messages == []
        shutil.rmtree(target.root_folder / "runs", ignore_errors=True)
        if chooser.random() < 0.3:
            shutil.rmtree(target.root_folder / "artifacts", ignore_errors=True)
    assert killed >= 3
    subprocess.run([*command, "target"], cwd=tmp_path, env=environment, check=True)
    assert list_uses(target) == []
    for key in target.list_keys("store-use"):
        target.delete([key])
    assert list_content(target) == list_content(source)
    assert verify_store(target).damage_messages == []


# The real thing -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("bucket")
def test_a_run_in_object_storage_is_cached_verified_and_pulled(apart, tmp_path, monkeypatch):
    """Push the smoke run to a bucket, run it again there, and pull it into a new folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket_uri = f"s3://hallmark/{tmp_path.name}"
    report = apart.json("push", "latest", bucket_uri)
    assert report["runs"] == [apart.first] and report["missing_inputs"] == []
    verification = apart.json("verify", apart.first, "--store", bucket_uri)
    assert verification["damage_messages"] == []
    assert verification["artifact_count"] == report["copied_artifacts"]
    repeated = apart.json("run", "smoke", "--store", bucket_uri)
    stages = json.loads(Store(bucket_uri).get(f"runs/{repeated['run']}/run.json"))["stages"]
    assert [entry["label"] for entry in stages if not entry["cached"]] == []
    pulled = str(tmp_path / "pulled")
    assert (
        "2 runs copied"
        in apart("pull", apart.first, repeated["run"], bucket_uri, "--store", pulled).stdout
    )
    assert apart.json("verify", "--store", pulled)["damage_messages"] == []
    stores = str(apart.store), pulled
    original, copied = [apart("findings", apart.first, "--store", name).stdout for name in stores]
    assert original == copied
