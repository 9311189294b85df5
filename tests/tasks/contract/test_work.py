"""A work area without a stage: what is told, what is left, what is found again."""

import errno
import hmac
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.contract import HallmarkError, Work, column, table
from tasks.contract.work import Clock, together
from tests.tasks.contract.stages import COUNT

NOTES = pa.schema([("note", pa.string())])
CUT = table("Cut alike.", column("doc_id", pa.binary(16), "id", "a document"), cut=True)


def spell(word, times, out):
    if word == "nothing":
        return None
    out.table("count").write({"rows": [len(word)] * times})
    out.spill("notes", NOTES).write({"note": [word]})
    if times > 1:
        out.spill("extra", NOTES).write({"note": [word[::-1]]})
    return {"word": word}


def test_what_items_left_is_found_in_their_order(tmp_path):
    work = Work(tmp_path, {"count": COUNT})
    done = work.map(spell, ["one", "nothing", "three"], 1)
    assert [d.value for d in done] == [{"word": "one"}, None, {"word": "three"}]
    assert [d.spills for d in done] == [["notes"], [], ["notes"]]
    assert [list(d.parts) for d in done] == [["count"], [], ["count"]]
    assert together(done, "notes", NOTES)["note"].to_pylist() == ["one", "three"]
    assert done[1].mapped("notes", NOTES).equals(NOTES.empty_table())
    assert together([], "notes", NOTES).schema == NOTES
    assert [d.spills for d in work.map(spell, ["two"], 2)] == [["extra", "notes"]]
    entry = work.assemble(["count"])["count"]
    assert [part["rows"] for part in entry["parts"]] == [1, 1, 2] and entry["rows"] == 4
    rows = [pq.read_table(work.out / part["name"])["rows"].to_pylist() for part in entry["parts"]]
    assert rows == [[3], [5], [3, 3]]


def test_a_table_that_nobody_wrote_is_one_part_without_rows(tmp_path):
    work = Work(tmp_path, {"count": COUNT, "cut": CUT})
    work.parts(spell, ["one", "nothing"], 1)
    made = work.assemble(["count", "cut"])
    assert [part["rows"] for part in made["count"]["parts"]] == [1]
    assert [part["rows"] for part in made["cut"]["parts"]] == [0, 0]
    empty = Work(tmp_path / "other", {"count": COUNT})
    empty.map(spell, ["nothing"], 1)
    [part] = empty.assemble(["count"])["count"]["parts"]
    assert part["rows"] == 0 and pq.read_table(empty.out / part["name"]).schema == COUNT


def test_rows_written_here_stand_behind_those_of_items(tmp_path):
    work = Work(tmp_path, {"count": COUNT})
    work.table("count").write({"rows": [7]})
    work.map(spell, ["one"], 1)
    parts = work.assemble(["count"])["count"]["parts"]
    assert [pq.read_table(work.out / p["name"])["rows"].to_pylist() for p in parts] == [[3], [7]]
    with pytest.raises(HallmarkError, match="declares no table 'other'"):
        work.table("other")


def test_progress_counts_what_is_done_also_from_an_earlier_attempt(tmp_path):
    told = []

    def tell(*said):
        told.append(said)

    Work(tmp_path, {"count": COUNT}).map(spell, ["a", "b"], 1)
    Work(tmp_path, {"count": COUNT}, on_progress=tell).map(spell, ["a", "b", "c", "d"], 1)
    assert told[0] == (2, 4, "spell") and told[-1] == (4, 4, "spell")
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)
    assert {(3, 4, "spell"), (4, 4, "spell")} <= {*told} and all(done <= 4 for done, *_ in told)


def test_what_is_no_longer_whole_is_done_again(tmp_path):
    first = Work(tmp_path, {"count": COUNT}).map(spell, ["a", "b"], 1)
    assert all(done.whole() for done in first)
    first[1].path("count").unlink()  # a commit that was killed moves parts away
    assert not first[1].whole()
    again = Work(tmp_path, {"count": COUNT})
    assert all(done.whole() for done in again.map(spell, ["a", "b"], 1))
    assert sorted(p.name for p in (tmp_path / "parts" / "0-spell").iterdir()) == ["00000", "00001"]


@pytest.mark.parametrize("said", [b"", b'{"value": 2, "par', b"\0" * 60, b"\xff", b"[]", b"{}"])
def test_an_item_is_done_again_where_what_it_said_cannot_be_read(tmp_path, said):
    """As a power cut leaves files: nothing in a work area is forced to the disk."""
    first = Work(tmp_path, {"count": COUNT}).map(spell, ["a", "b"], 1)
    (first[1].folder / "done.json").write_bytes(said)
    again = Work(tmp_path, {"count": COUNT}).map(spell, ["a", "b"], 1)
    assert [done.value for done in again] == [done.value for done in first]
    assert all(done.whole() for done in again)


@pytest.mark.parametrize("name", ["count.parquet", "notes.arrow"])
def test_an_item_is_done_again_where_a_file_of_it_is_not_as_long_as_it_was(tmp_path, name):
    first = Work(tmp_path, {"count": COUNT}).map(spell, ["a", "b"], 2)
    path = first[1].folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert first[0].whole() and not first[1].whole()
    Work(tmp_path, {"count": COUNT}).map(spell, ["a", "b"], 2)
    assert path.read_bytes() == whole and first[1].whole()


class Flaky:
    """Fails so many times, each time with this error."""

    def __init__(self, error, times):
        self.error, self.times, self.begun = error, times, 0

    def __call__(self, item, out):
        self.begun += 1
        if self.begun <= self.times:
            raise self.error
        return item

    __name__ = "flaky"


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_an_item_is_tried_again_so_many_times(tmp_path, retries):
    """Each try is made by this process, so that it can be counted."""
    for name, times in (("a", retries), ("b", retries + 1)):
        work = Work(tmp_path / name, {"count": COUNT}, retries=retries)
        flaky = Flaky(ValueError("x\ny"), times)
        if times <= retries:
            assert [done.value for done in work.map(flaky, ["it"])] == ["it"]
        else:
            with pytest.raises(HallmarkError, match=r"^it: x$"):
                work.map(flaky, ["it"])
        assert flaky.begun == retries + 1
    work = Work(tmp_path / "c", {"count": COUNT}, retries=retries)
    with pytest.raises(HallmarkError, match=r"^it: ValueError$"):
        work.map(Flaky(ValueError(), retries + 1), ["it"])


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_each_item_has_its_own_tries(tmp_path, retries):
    """One that fails costs those behind it none of theirs."""
    begun = Counter()

    def flaky(item, out):
        begun[item] += 1
        if item != "b" and begun[item] <= retries:
            raise ValueError("once more")
        return item

    work = Work(tmp_path, {"count": COUNT}, retries=retries)
    assert [done.value for done in work.map(flaky, ["a", "b", "c", "d"])] == ["a", "b", "c", "d"]
    assert begun == {"a": retries + 1, "b": 1, "c": retries + 1, "d": retries + 1}


def test_who_is_told_of_the_last_item_may_fail(tmp_path):
    """Then nothing is left to try again."""
    told = []

    def listen(done, total, what):
        told.append(done)
        if told == [0, 1, 2]:
            raise ValueError("not heard")

    work = Work(tmp_path, {"count": COUNT}, on_progress=listen)
    assert len(work.map(spell, ["a", "b"], 2)) == 2 and told == [0, 1, 2, 2]


@pytest.mark.parametrize(
    "error",
    [HallmarkError("say this"), OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota")],
)
def test_what_no_second_try_can_mend_is_raised_at_once(tmp_path, error):
    work = Work(tmp_path, {"count": COUNT}, retries=3)
    flaky = Flaky(error, 9)
    with pytest.raises(type(error)) as raised:
        work.map(flaky, ["it"])
    assert flaky.begun == 1 and raised.value is error
    work = Work(tmp_path / "other", {"count": COUNT})
    denied = Flaky(PermissionError(errno.EACCES, "denied"), 1)
    assert [d.value for d in work.map(denied, ["it"])] == ["it"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "^it: MemoryError$"),
        (pa.ArrowMemoryError("malloc of size 7 failed"), "^it: malloc of size 7 failed$"),
    ],
)
def test_for_want_of_memory_an_item_is_not_tried_again(tmp_path, error, says):
    flaky = Flaky(error, 9)
    with pytest.raises(MemoryError, match=says):
        Work(tmp_path, {"count": COUNT}, retries=3).map(flaky, ["it"])
    assert flaky.begun == 1


def test_hashes_are_keyed_by_the_secret(tmp_path):
    work = Work(tmp_path, {}, secret=b"k")
    expected = [hmac.new(b"k", v.encode(), "sha256").digest()[:16] for v in ("a", "é")]
    assert work.keyed_hashes(["a", "é"]) == expected
    assert work.keyed_hashes([]) == []
    assert Work(tmp_path, {}, secret=b"l").keyed_hashes(["a"]) != expected[:1]


def test_files_and_measurements(tmp_path):
    work = Work(tmp_path, {})
    work.file("deep/er/x.txt").write_text("7")
    assert (work.out / "deep" / "er" / "x.txt").read_text() == "7"
    work.measure("n", 3, "rows")
    assert work.measurements == [{"metric": "n", "value": 3.0, "unit": "rows"}]
    assert work.denied == frozenset()


def test_what_is_done_is_a_json_value(tmp_path):
    [done] = Work(tmp_path, {"count": COUNT}).map(spell, ["one"], 1)
    said = json.loads((done.folder / "done.json").read_text())
    size = done.spill("notes").stat().st_size
    assert said == {"value": {"word": "one"}, "parts": done.parts, "spilled": {"notes": size}}


def test_a_clock_counts_from_when_it_was_made():
    clock = Clock()
    first, second = clock.read(), clock.read()
    assert 0 <= first[0] <= second[0] < 60 and 0 <= first[1] <= second[1] < 60
