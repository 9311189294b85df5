"""Test the stage contract, point by point."""

import errno
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import (
    HallmarkError,
    LastStageReached,
    ProcessMapper,
    SerialMapper,
    Session,
    StageContext,
    Store,
    open_session,
)
from tests.tasks.contract.stages import (
    COUNT,
    CountConfig,
    DropConfig,
    MakeConfig,
    count,
    die_once,
    double,
    drop,
    fail,
    keep_number,
    make,
    miscount,
)


def events(session):
    """Record which stages are computed and which are cached."""
    seen = []
    session.listener = lambda event: seen.append((event.kind, event.label))
    return seen


def select_results(seen):
    return [pair for pair in seen if pair[0] in ("done", "cached")]


def test_artifact_is_computed_once_and_then_cached(session):
    seen = events(session)
    first = make(MakeConfig())
    second = make(MakeConfig())
    other = make(MakeConfig(documents=3))
    assert select_results(seen) == [("done", "make"), ("cached", "make"), ("done", "make")]
    assert first.manifest == second.manifest
    assert other["documents"].row_count == 3


def test_fingerprint_depends_only_on_tables_that_are_read(session):
    """A changed threshold that removes the same documents reruns only its own stage."""
    seen = events(session)
    raw = make(MakeConfig())
    count(drop(raw, DropConfig(note=0.1)), CountConfig())
    count(drop(raw, DropConfig(note=0.2)), CountConfig())
    count(drop(raw, DropConfig(drop="999")), CountConfig())
    assert select_results(seen)[1:] == [
        ("done", "drop"),
        ("done", "count"),
        ("done", "drop"),
        ("cached", "count"),
        ("done", "drop"),
        ("done", "count"),
    ]


def test_fingerprint_depends_on_libraries_code_and_external_content(session):
    seen = events(session)
    count_with = replace(count, libraries=("numpy",))
    count_from = replace(count, external_digests=lambda config, secret: {"file": "abc"})
    count_like = replace(count, extra_code=("hallmark.tasks.measures.languages",))
    raw = make(MakeConfig(documents=5))
    for stage in (count, count_with, count_from, count_like, count):
        stage(raw, CountConfig())
    assert [kind for kind, _ in select_results(seen)] == ["done"] * 5 + ["cached"]


def test_accounts_balance_by_source_in_rows_and_bytes(session):
    raw = make(MakeConfig())
    books = drop(raw, DropConfig())["accounts"].read().to_pylist()
    texts = {0: [], 1: []}
    for i in range(10_000):
        texts[i % 2].append(f"wörd {i}")
    for book in books:
        mine = texts[0 if book["source"] == "even" else 1]
        size = (lambda t: len(t.encode())) if book["unit"] == "bytes" else (lambda t: 1)
        assert book["input"] == sum(size(t) for t in mine)
        assert book["removed_rows"] == sum(size(t) for t in mine if "77" in t) > 0
        assert book["kept"] == sum(size(t) for t in mine if "77" not in t)
    assert len(books) == 4


def test_document_lost_without_ledger_row_fails_the_stage(session):
    raw = make(MakeConfig())
    with pytest.raises(HallmarkError, match=r"stage drop: the bytes for source 'even' do not"):
        drop(raw, DropConfig(forget=True))
    assert session.store.list_artifacts("drop") == []


def test_accounts_that_a_stage_computes_itself_are_checked(session):
    with pytest.raises(HallmarkError, match=r"\+1 unaccounted"):
        miscount(CountConfig())


def test_output_is_equal_for_any_number_of_workers(tmp_path):
    digests = set()
    for name, mapper in (
        ("one", SerialMapper()),
        ("two", ProcessMapper(2)),
        ("three", ProcessMapper(3)),
    ):
        with open_session(Session(Store(tmp_path / name), mapper)):
            digests.add(drop(make(MakeConfig(parts=4)), DropConfig()).content_digest)
    assert len(digests) == 1


def test_session_ends_after_its_last_stage(session):
    session.last_stage = "second"
    raw = make.with_label("first")(MakeConfig(documents=2))
    with pytest.raises(LastStageReached):
        drop.with_label("second")(raw, DropConfig())


def test_killed_worker_is_replaced_and_only_its_shard_is_repeated(tmp_path):
    work = StageContext(tmp_path, {"count": COUNT}, ProcessMapper(2))
    with work.mapper:
        parts = work.map_items(die_once, ["a", "victim", "ccc"], str(tmp_path / "flag"))
    rows = [pq.read_table(done.table_path("count"))["rows"].to_pylist() for done in parts]
    assert rows == [[1], [6], [3]]


def test_shard_that_fails_twice_fails_the_stage_and_is_named(tmp_path):
    work = StageContext(tmp_path, {"count": COUNT})
    with pytest.raises(HallmarkError, match=r"records of x\.csv: cannot read records"):
        work.map_items(fail, ["records of x.csv"])


def test_finished_shards_are_not_repeated(tmp_path):
    first = StageContext(tmp_path, {"count": COUNT})
    first.map_items(die_once, ["a", "bb"], str(tmp_path / "flag"))
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("count.parquet")}
    again = StageContext(tmp_path, {"count": COUNT})
    parts = again.map_items(die_once, ["a", "bb", "ccc"], str(tmp_path / "flag"))
    assert len(parts) == 3
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps


@pytest.mark.parametrize("column", ["missing", "unknown"])
def test_undeclared_columns_are_refused(tmp_path, column):
    work = StageContext(tmp_path, {"count": COUNT})
    columns = {} if column == "missing" else {"rows": [1], "more": [2]}
    with pytest.raises(HallmarkError, match=f"{column} columns \\['(rows|more)'\\]"):
        work.get_table_writer("count").write(columns)


# Processes that die or race ------------------------------------------------------------------


def start(store: Path, context: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tasks.contract.stages", str(store), str(context)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_kill_before_commit_writes_no_artifact_and_rerun_completes_it(tmp_path):
    process = start(tmp_path / "store", tmp_path / "work")
    assert process.stdout.readline() == "running\n"
    process.kill()
    process.wait()
    store = Store(tmp_path / "store")
    assert store.list_artifacts("slow_commit") == []
    out, _ = start(tmp_path / "store", tmp_path / "work").communicate("\n")
    [artifact] = store.list_artifacts("slow_commit")
    artifact.verify_files()
    assert out.splitlines()[-1] == artifact.manifest["files"]["big.bin"]["path"]
    assert not any((tmp_path / "work").rglob("big.bin")), "the work area is removed at commit"


def test_one_of_two_runs_on_two_machines_commits_and_both_continue(tmp_path):
    """The work areas differ, so that no lease separates them, as on two hosts with one store."""
    store = tmp_path / "store"
    racers = [start(store, tmp_path / "w1"), start(store, tmp_path / "w2")]
    assert [r.stdout.readline() for r in racers] == ["running\n"] * 2
    results = [r.communicate("\n")[0].strip() for r in racers]
    assert [r.returncode for r in racers] == [0, 0]
    assert results[0] == results[1]
    assert len(list(store.rglob("big.bin"))) == 1, "the loser's data are removed"


def test_second_of_two_runs_on_one_machine_waits_and_uses_the_artifact(tmp_path):
    store, work = tmp_path / "store", tmp_path / "work"
    first = start(store, work)
    assert first.stdout.readline() == "running\n"
    second = start(store, work)
    first_out = first.communicate("\n")[0].strip()
    second_out = second.communicate("\n")[0].strip()
    assert first_out == second_out, "the second never said 'running'"


def test_data_of_a_killed_commit_are_removed_by_the_next(tmp_path):
    orphan = tmp_path / "store" / Store.format_artifact_folder("x", "f" * 64) / "deadbeef"
    start(tmp_path / "store", tmp_path / "work").communicate("\n")
    [artifact] = Store(tmp_path / "store").list_artifacts("slow_commit")
    home = tmp_path / "store" / artifact.folder
    orphan = home / "deadbeef"
    orphan.mkdir()
    (home / "manifest.json").unlink()
    start(tmp_path / "store", tmp_path / "work").communicate("\n")
    assert not orphan.exists()


# Damage and full disks -----------------------------------------------------------------------


def test_damaged_artifact_is_named_with_remedy(session):
    artifact = make(MakeConfig(documents=10))
    path = artifact["documents"].parts[0].path
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(HallmarkError, match="does not match the SHA-256 in its manifest"):
        artifact.verify_files()
    path.write_bytes(data[:-1])
    with pytest.raises(HallmarkError, match=r"make/\w+ is damaged: .* remove the artifact"):
        artifact["documents"].read()


def test_damaged_manifest_is_named_with_remedy(session):
    path = Path(session.store.root_folder, make(MakeConfig(documents=10)).folder, "manifest.json")
    for text in (path.read_bytes()[:100], b"", b"{}", b"[1]", b"\xff"):
        path.write_bytes(text)
        with pytest.raises(HallmarkError, match=r"make/\w+ is damaged: its manifest.* remove"):
            make(MakeConfig(documents=10))


def test_damaged_input_is_reported_by_the_stage_that_reads_it(session):
    raw = make(MakeConfig(documents=10))
    path = raw["documents"].parts[0].path
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(HallmarkError, match=r"stage drop: .* make/\w+ is damaged: .* be read"):
        drop(raw, DropConfig())
    file = keep_number(CountConfig())
    file.fetch_file("number.txt").write_text("x")
    with pytest.raises(HallmarkError, match=r"stage double: .* keep_number/\w+ is .* SHA-256"):
        double(file, CountConfig())


def test_full_disk_is_reported_and_commits_nothing(small_disk):
    with open_session(Session(Store(small_disk / "store"))) as session:
        raw = make(MakeConfig(documents=10))
        (small_disk / "filler").write_bytes(b"x" * (900 << 10))
        with pytest.raises(HallmarkError, match=r"stage make: no space left on .*small"):
            make(MakeConfig(documents=200_000))
        assert [a.name for a in session.store.list_artifacts("make")] == [raw.name]
        with pytest.raises(OSError, match="No space left"):
            session.store.put("runs/x/run.json", b"x" * (200 << 10))
        assert session.store.get("runs/x/run.json") is None
        (small_disk / "filler").unlink()
        assert make(MakeConfig(documents=11))["documents"].row_count == 11


def test_full_disk_of_a_separate_work_area_is_reported(small_disk, tmp_path):
    with open_session(Session(Store(small_disk / "store", tmp_path / "work"))) as session:
        (small_disk / "filler").write_bytes(b"x" * (900 << 10))
        with pytest.raises(HallmarkError, match=r"stage make: no space left on .*small"):
            make(MakeConfig(documents=200_000))
        assert not session.store.list_artifacts("make")
        assert not [*small_disk.glob("store/artifacts/make/*/*")]  # no half of it takes the room
        (small_disk / "filler").unlink()
        made = make(MakeConfig(documents=11))
        made.verify_files()
        assert made["documents"].row_count == 11


def test_other_system_errors_keep_their_type(session, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", "/somewhere")

    monkeypatch.setattr("hallmark.tasks.contract.store.Store.commit", refuse)
    with pytest.raises(PermissionError):
        make(MakeConfig(documents=1))


def test_content_digest_ignores_telemetry(tmp_path):
    contents = []
    for name in ("a", "b"):
        with open_session(Session(Store(tmp_path / name))):
            artifact = make(MakeConfig(documents=5))
        seconds = artifact.read_telemetry().to_pydict()
        assert "host" in seconds["metric"] and "seconds" in seconds["metric"]
        contents.append(artifact.content_digest)
    assert contents[0] == contents[1]
    assert isinstance(artifact["documents"].read(), pa.Table)
