"""Artifacts and their tables as readers see them."""

import hashlib
import os

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tasks.contract import DOCUMENTS, HallmarkError, Table, artifact, external
from tasks.contract.columns import described
from tasks.contract.fingerprint import canonical, sha256
from tasks.contract.watching import watch_folder
from tests.tasks.contract.stages import (
    FOUR_PARTS,
    CountConfig,
    DropConfig,
    MakeConfig,
    count,
    drop,
    keep_number,
    make,
)


def digest(value):
    return hashlib.sha256(canonical(value)).hexdigest()


def test_names_of_artifacts_and_their_parts(session):
    made = make(FOUR_PARTS)
    assert made.name == f"make/{made.fingerprint[:16]}" and repr(made) == f"Artifact({made.name})"
    parts = made["documents"].parts
    assert [str(part) for part in parts] == [
        f"documents of {made.name}, part {number} of 4" for number in range(1, 5)
    ]
    assert repr(parts[0]) == f"Part({parts[0]})"
    assert [(part.number, part.of) for part in parts] == [(number, 4) for number in range(4)]
    assert made.tables.keys() == {"documents"} and made.tables["documents"].rows == 200
    assert made.purged == {}


def test_a_table_knows_its_columns_its_bytes_and_its_digest(session):
    made = drop(make(FOUR_PARTS), DropConfig())
    table = made["documents"]
    assert list(table.columns.values()) == described(DOCUMENTS)
    assert table.size == sum(part.path.stat().st_size for part in table.parts)
    kinds = [[c.name, c.kind, c.judged_by] for c in described(DOCUMENTS)]
    hashes = [hashlib.sha256(part.path.read_bytes()).hexdigest() for part in table.parts]
    assert table.digest == digest({"parts": hashes, "columns": kinds})
    tables = {name: found.digest for name, found in made.tables.items()}
    assert made.content == digest({"tables": tables, "files": {}})


def test_a_table_of_several_has_the_digest_of_theirs_and_the_columns_of_the_last(session):
    pieces = [make(MakeConfig(documents=n)) for n in (3, 5, 7)]
    for chosen in (pieces[:2], pieces):
        both = Table(tuple(chosen), "documents")
        assert both.digest == digest([piece["documents"].digest for piece in chosen])
        assert both.pieces == [len(p["documents"].parts) for p in chosen]
        assert both.rows == sum(p["documents"].rows for p in chosen)
    said = pieces[2].manifest["tables"]["documents"]["columns"]
    said[0]["meaning"] = "as it is said now"
    columns = Table(tuple(pieces), "documents").columns
    assert columns["doc_id"].meaning == "as it is said now"
    assert pieces[0]["documents"].columns["doc_id"].meaning != "as it is said now"


def test_a_batch_is_a_row_group_and_holds_the_columns_asked_for(session):
    table = make(MakeConfig(documents=9_000))["documents"]
    batches = list(table.batches(["text", "source"]))
    assert [len(batch) for batch in batches] == [4096, 4096, 808]
    whole = table.read(["text", "source"])
    assert pa.Table.from_batches(batches).equals(whole)
    assert set(whole.column_names) == {"text", "source"}
    [part] = table.parts
    assert part.read().equals(table.read()) and part.rows == 9_000
    assert part.empty(["text"]).schema == part.read(["text"]).schema and len(part.empty()) == 0
    few = table.dataset().to_table(["doc_id"], filter=pc.field("source") == "odd")
    assert len(few) == 4_500
    frame = table.to_pandas()
    assert isinstance(frame["text"].dtype, pd.ArrowDtype) and list(frame["text"]) == (
        whole["text"].to_pylist()
    )


def test_of_an_artifact_only_what_is_read_counts(session):
    one, two = (drop(make(FOUR_PARTS), DropConfig(note=note)) for note in (0.0, 1.0))
    assert one.content != two.content
    kept, same = (made.only(["documents", "none"]) for made in (one, two))
    assert (
        kept.content
        == same.content
        == digest({"tables": {"documents": one["documents"].digest}, "files": {}})
    )
    assert kept.tables.keys() == {"documents"} and "ledger" in one.tables
    with pytest.raises(HallmarkError, match=r"no table 'ledger'; its tables: documents$"):
        kept["ledger"]
    number = keep_number(CountConfig())
    with pytest.raises(HallmarkError, match=r"no table 'x'; its tables: none$"):
        number["x"]
    assert number.only(["x"]).manifest["files"] == {} and number.manifest["files"]
    by_pattern = number.only(["*.txt"])
    assert by_pattern.path("number.txt").read_text() == "7"
    files = {"number.txt": hashlib.sha256(b"7").hexdigest()}
    assert by_pattern.content == digest({"tables": {}, "files": files})
    assert number.only(["*.TXT"]).manifest["files"] == {}


def test_files_are_found_by_name_and_all_lie_in_one_folder(session, tmp_path):
    number = keep_number(CountConfig())
    assert number.path("number.txt").read_text() == "7"
    assert number.directory() == number.path("number.txt").parent
    with pytest.raises(HallmarkError, match=r"has no file 'x'; its files: number.txt$"):
        number.path("x")
    counted = count(make(MakeConfig(documents=2)), CountConfig())
    with pytest.raises(HallmarkError, match=r"has no file 'x'; its files: none$"):
        counted.path("x")
    with pytest.raises(HallmarkError, match="holds no files"):
        counted.directory()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "w.bin").write_bytes(b"1")
    (tmp_path / "deep" / ".hidden").mkdir()
    (tmp_path / "deep" / ".hidden" / "x").write_bytes(b"2")
    there = external(tmp_path / "deep", "checkpoint")
    assert there.directory() == tmp_path / "deep" and there.stage == "checkpoint"
    assert there.manifest["files"] == {
        "er/w.bin": {"name": "er/w.bin", "size": 1, "sha256": sha256(b"1")}
    }
    assert (
        there.content
        == there.fingerprint
        == digest({"tables": {}, "files": {"er/w.bin": sha256(b"1")}})
    )
    there.verify()


def test_a_file_changed_twice_within_one_tick_of_the_clock_is_read_again(session):
    """Times of files move in steps of some milliseconds: two contents can bear the same one."""
    made = keep_number(CountConfig())
    path = made.path("number.txt")
    written = path.stat()
    path.write_text("8")
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    with pytest.raises(HallmarkError, match="does not have the SHA-256 of its manifest"):
        made.path("number.txt")


def test_a_folder_of_somebody_else_is_read_once_for_all_who_name_it(tmp_path, monkeypatch):
    """Gigabytes, that a command names to several."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"1")
    os.utime(path, ns=(0, 10**18))
    monkeypatch.setattr(artifact, "TICK", 0)  # as if it was not changed just now
    read = []
    real = artifact.file_digest
    monkeypatch.setattr(artifact, "file_digest", lambda path: read.append(path) or real(path))
    first, again = (external(tmp_path, "checkpoint") for _ in range(2))
    assert first.content == again.content and read == [path]
    (tmp_path / "other.bin").write_bytes(b"2")  # as unpacked: of the same size and time
    os.utime(tmp_path / "other.bin", ns=(0, 10**18))
    (tmp_path / "other.bin").replace(path)
    assert external(tmp_path, "checkpoint").content != first.content and read == [path, path]


def test_each_file_of_a_folder_of_thousands_is_read_once(tmp_path, monkeypatch):
    """Whoever lists a folder again asks for its files in the same order: a memory with a limit
    would have pushed out each file before it is asked for."""
    names = [f"{number:04}.bin" for number in range(4_200)]
    for name in names:
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(artifact, "TICK", 0)  # as if they were not changed just now
    read = []
    real = artifact.file_digest
    monkeypatch.setattr(artifact, "file_digest", lambda path: read.append(path) or real(path))
    first = external(tmp_path, "checkpoint")
    assert [path.name for path in read] == names
    again = external(tmp_path, "checkpoint")
    watch_folder(again)
    assert again.content == first.content and len(read) == len(names)
    (tmp_path / names[7]).write_text("other")
    assert external(tmp_path, "checkpoint").content != first.content
    assert [path.name for path in read[len(names) :]] == [names[7]]


def test_a_file_that_is_gone_or_cut_is_named_with_its_size(session):
    made = make(MakeConfig(documents=5))
    [part] = made["documents"].parts
    path, whole = part.path, part.path.read_bytes()
    path.write_bytes(whole[:-1])
    sentence = rf"has {len(whole) - 1} bytes instead of {len(whole)}; remove the artifact's folder"
    with pytest.raises(HallmarkError, match=sentence):
        part.read()
    path.unlink()
    with pytest.raises(HallmarkError, match=r"is missing; remove the artifact's folder"):
        made["documents"].find([bytes(16)])
