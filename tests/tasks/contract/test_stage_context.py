"""Test a work area without a stage: progress, files of items, retries, and resumption."""

import errno
import hmac
import json
import time
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError, StageContext, column, table_schema
from hallmark.tasks.contract.mappers import ProcessMapper
from hallmark.tasks.contract.stage_context import (
    Stopwatch,
    concat_spilled_tables,
    get_process_name,
)
from tests.tasks.contract.stages import COUNT

NOTES = pa.schema([("note", pa.string())])
CUT = table_schema(
    "Cut alike.", column("doc_id", pa.binary(16), "id", "a document"), partition_by_doc_id=True
)


def spell(word, times, out):
    if word == "nothing":
        return None
    out.get_table_writer("count").write({"rows": [len(word)] * times})
    out.get_spill_writer("notes", NOTES).write({"note": [word]})
    if times > 1:
        out.get_spill_writer("extra", NOTES).write({"note": [word[::-1]]})
    return {"word": word}


def test_files_of_items_are_read_in_order_of_items(tmp_path):
    work = StageContext(tmp_path, {"count": COUNT})
    done = work.map_items(spell, ["one", "nothing", "three"], 1)
    assert [d.value for d in done] == [{"word": "one"}, None, {"word": "three"}]
    assert [d.spill_names for d in done] == [["notes"], [], ["notes"]]
    assert [list(d.parts) for d in done] == [["count"], [], ["count"]]
    assert concat_spilled_tables(done, "notes", NOTES)["note"].to_pylist() == ["one", "three"]
    assert done[1].open_spilled_table("notes", NOTES).equals(NOTES.empty_table())
    assert concat_spilled_tables([], "notes", NOTES).schema == NOTES
    assert [d.spill_names for d in work.map_items(spell, ["two"], 2)] == [["extra", "notes"]]
    entry = work.assemble_tables(["count"])["count"]
    assert [part["rows"] for part in entry["parts"]] == [1, 1, 2] and entry["rows"] == 4
    rows = [
        pq.read_table(work.output_folder / part["name"])["rows"].to_pylist()
        for part in entry["parts"]
    ]
    assert rows == [[3], [5], [3, 3]]


def test_unwritten_table_is_one_part_without_rows(tmp_path):
    work = StageContext(tmp_path, {"count": COUNT, "cut": CUT})
    work.map_partitions(spell, ["one", "nothing"], 1)
    made = work.assemble_tables(["count", "cut"])
    assert [part["rows"] for part in made["count"]["parts"]] == [1]
    assert [part["rows"] for part in made["cut"]["parts"]] == [0, 0]
    empty = StageContext(tmp_path / "other", {"count": COUNT})
    empty.map_items(spell, ["nothing"], 1)
    [part] = empty.assemble_tables(["count"])["count"]["parts"]
    assert part["rows"] == 0 and pq.read_table(empty.output_folder / part["name"]).schema == COUNT


def test_rows_of_the_stage_follow_rows_of_items(tmp_path):
    work = StageContext(tmp_path, {"count": COUNT})
    work.get_table_writer("count").write({"rows": [7]})
    work.map_items(spell, ["one"], 1)
    parts = work.assemble_tables(["count"])["count"]["parts"]
    assert [pq.read_table(work.output_folder / p["name"])["rows"].to_pylist() for p in parts] == [
        [3],
        [7],
    ]
    with pytest.raises(HallmarkError, match="does not declare a table 'other'"):
        work.get_table_writer("other")


def test_progress_includes_items_of_an_earlier_attempt(tmp_path):
    told = []

    def tell(*said):
        told.append(said)

    StageContext(tmp_path, {"count": COUNT}).map_items(spell, ["a", "b"], 1)
    StageContext(tmp_path, {"count": COUNT}, on_progress=tell).map_items(
        spell, ["a", "b", "c", "d"], 1
    )
    assert told[0] == (2, 4, "spell") and told[-1] == (4, 4, "spell")
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)
    assert {(3, 4, "spell"), (4, 4, "spell")} <= {*told} and all(done <= 4 for done, *_ in told)


def test_incomplete_item_is_repeated(tmp_path):
    first = StageContext(tmp_path, {"count": COUNT}).map_items(spell, ["a", "b"], 1)
    assert all(done.is_complete() for done in first)
    first[1].table_path("count").unlink()  # a commit that was killed moves parts away
    assert not first[1].is_complete()
    again = StageContext(tmp_path, {"count": COUNT})
    assert all(done.is_complete() for done in again.map_items(spell, ["a", "b"], 1))
    assert sorted(p.name for p in (tmp_path / "parts" / "0-spell").iterdir()) == ["00000", "00001"]


@pytest.mark.parametrize("said", [b"", b'{"value": 2, "par', b"\0" * 60, b"\xff", b"[]", b"{}"])
def test_item_with_unreadable_result_is_repeated(tmp_path, said):
    """A power cut can have this effect: files of a work area are not synchronised to the disk."""
    first = StageContext(tmp_path, {"count": COUNT}).map_items(spell, ["a", "b"], 1)
    (first[1].folder / "done.json").write_bytes(said)
    again = StageContext(tmp_path, {"count": COUNT}).map_items(spell, ["a", "b"], 1)
    assert [done.value for done in again] == [done.value for done in first]
    assert all(done.is_complete() for done in again)


@pytest.mark.parametrize("name", ["count.parquet", "notes.arrow"])
def test_item_with_shortened_file_is_repeated(tmp_path, name):
    first = StageContext(tmp_path, {"count": COUNT}).map_items(spell, ["a", "b"], 2)
    path = first[1].folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert first[0].is_complete() and not first[1].is_complete()
    StageContext(tmp_path, {"count": COUNT}).map_items(spell, ["a", "b"], 2)
    assert path.read_bytes() == whole and first[1].is_complete()


class Flaky:
    """Fails a number of times with the same error."""

    def __init__(self, error, times):
        self.error, self.count_item_occurrences, self.has_content = error, times, 0

    def __call__(self, item, out):
        self.has_content += 1
        if self.has_content <= self.count_item_occurrences:
            raise self.error
        return item

    __name__ = "flaky"


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_item_is_retried_as_often_as_allowed(tmp_path, retries):
    """All tries are in this process, so that they can be counted."""
    for name, times in (("a", retries), ("b", retries + 1)):
        work = StageContext(tmp_path / name, {"count": COUNT}, max_retries=retries)
        flaky = Flaky(ValueError("x\ny"), times)
        if times <= retries:
            assert [done.value for done in work.map_items(flaky, ["it"])] == ["it"]
        else:
            with pytest.raises(HallmarkError, match=r"^it: x$"):
                work.map_items(flaky, ["it"])
        assert flaky.has_content == retries + 1
    work = StageContext(tmp_path / "c", {"count": COUNT}, max_retries=retries)
    with pytest.raises(HallmarkError, match=r"^it: ValueError$"):
        work.map_items(Flaky(ValueError(), retries + 1), ["it"])


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_each_item_has_its_own_retries(tmp_path, retries):
    """A failed item uses up no retries of the items after it."""
    begun = Counter()

    def flaky(item, out):
        begun[item] += 1
        if item != "b" and begun[item] <= retries:
            raise ValueError("once more")
        return item

    work = StageContext(tmp_path, {"count": COUNT}, max_retries=retries)
    assert [done.value for done in work.map_items(flaky, ["a", "b", "c", "d"])] == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert begun == {"a": retries + 1, "b": 1, "c": retries + 1, "d": retries + 1}


def test_listener_may_fail_at_the_last_item(tmp_path):
    """No item remains that could be retried."""
    told = []

    def listen(done, total, what):
        told.append(done)
        if told == [0, 1, 2]:
            raise ValueError("not heard")

    work = StageContext(tmp_path, {"count": COUNT}, on_progress=listen)
    assert len(work.map_items(spell, ["a", "b"], 2)) == 2 and told == [0, 1, 2, 2]


@pytest.mark.parametrize(
    "error",
    [HallmarkError("say this"), OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota")],
)
def test_error_that_a_retry_cannot_fix_is_raised_at_once(tmp_path, error):
    work = StageContext(tmp_path, {"count": COUNT}, max_retries=3)
    flaky = Flaky(error, 9)
    with pytest.raises(type(error)) as raised:
        work.map_items(flaky, ["it"])
    assert flaky.has_content == 1 and raised.value is error
    work = StageContext(tmp_path / "other", {"count": COUNT})
    denied = Flaky(PermissionError(errno.EACCES, "denied"), 1)
    assert [d.value for d in work.map_items(denied, ["it"])] == ["it"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "^it: MemoryError$"),
        (pa.ArrowMemoryError("malloc of size 7 failed"), "^it: malloc of size 7 failed$"),
    ],
)
def test_item_that_lacks_memory_is_not_retried(tmp_path, error, says):
    flaky = Flaky(error, 9)
    with pytest.raises(MemoryError, match=says):
        StageContext(tmp_path, {"count": COUNT}, max_retries=3).map_items(flaky, ["it"])
    assert flaky.has_content == 1


def test_hashes_are_keyed_by_the_secret(tmp_path):
    work = StageContext(tmp_path, {}, secret=b"k")
    expected = [hmac.new(b"k", v.encode(), "sha256").digest()[:16] for v in ("a", "é")]
    assert work.hash_with_secret(["a", "é"]) == expected
    assert work.hash_with_secret([]) == []
    assert StageContext(tmp_path, {}, secret=b"l").hash_with_secret(["a"]) != expected[:1]


def test_files_and_measurements(tmp_path):
    work = StageContext(tmp_path, {})
    work.prepare_output_path("deep/er/x.txt").write_text("7")
    assert (work.output_folder / "deep" / "er" / "x.txt").read_text() == "7"
    work.record_measurement("n", 3, "rows")
    assert work.measurements == [{"metric": "n", "value": 3.0, "unit": "rows"}]
    assert work.purged_ids == frozenset()


def test_result_of_an_item_is_a_json_value(tmp_path):
    [done] = StageContext(tmp_path, {"count": COUNT}).map_items(spell, ["one"], 1)
    said = json.loads((done.folder / "done.json").read_text())
    size = done.spill_path("notes").stat().st_size
    usage = said.pop("usage")
    assert said == {"value": {"word": "one"}, "parts": done.parts, "spilled": {"notes": size}}
    assert usage == done.usage and usage["process"] == get_process_name()
    assert usage["cpu_seconds"] >= 0 and usage["peak_memory"] > 1


def work_for(seconds, out):
    """Take processor time, and write two notes."""
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass
    out.get_spill_writer("notes", NOTES).write({"note": ["a", "b"]})


def test_usage_of_items_in_this_process(tmp_path):
    work = StageContext(tmp_path, {})
    results = work.map_items(work_for, [0.02, 0.03])
    first = replace(work.parallel_usage)
    assert first.parallel_seconds >= 0.05 and first.worker_seconds == first.parallel_seconds
    assert first.worker_cpu_seconds == 0  # the main process's processor time includes them
    assert first.worker_peak_memory == max(done.usage["peak_memory"] for done in results)
    assert (first.parallel_items, first.reused_items) == (2, 0)
    assert first.temporary_bytes == sum(done.spilled["notes"] for done in results)
    work.map_items(work_for, [0.01])
    both = work.parallel_usage
    assert both.parallel_seconds >= first.parallel_seconds + 0.01 and both.parallel_items == 2


def test_usage_of_items_in_other_processes(tmp_path):
    with ProcessMapper(2) as mapper:
        work = StageContext(tmp_path, {}, mapper)
        results = work.map_items(work_for, [0.3] * 6)
    usage = work.parallel_usage
    processes = {done.usage["process"] for done in results}
    assert get_process_name() not in processes and 1 <= len(processes) <= 2
    assert usage.worker_cpu_seconds >= 6 * 0.3
    assert usage.worker_seconds == pytest.approx(len(processes) * usage.parallel_seconds)
    assert usage.worker_seconds >= 6 * 0.3


def test_items_of_an_earlier_attempt_count_as_reused(tmp_path):
    StageContext(tmp_path, {}).map_items(work_for, [0.05] * 3)
    again = StageContext(tmp_path, {})
    again.map_items(work_for, [0.05] * 3)
    usage = again.parallel_usage
    assert (usage.reused_items, usage.parallel_items) == (3, 3)
    assert usage.worker_seconds == 0 and usage.worker_peak_memory == 0


def test_clock_starts_when_it_is_created():
    clock = Stopwatch()
    first, second = clock.read_wall_and_cpu_seconds(), clock.read_wall_and_cpu_seconds()
    assert 0 <= first[0] <= second[0] < 60 and 0 <= first[1] <= second[1] < 60
