"""Artifacts and their tables as readers see them."""

import hashlib
import os

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.tasks.contract import (
    DOCUMENTS,
    HallmarkError,
    Table,
    artifact,
    external_files,
    folder_to_artifact,
)
from hallmark.tasks.contract.columns import describe_columns
from hallmark.tasks.contract.external_inputs import record_external_folder
from hallmark.tasks.contract.fingerprint import sha256_hex, to_canonical_json
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
    return hashlib.sha256(to_canonical_json(value)).hexdigest()


def test_names_of_artifacts_and_their_parts(session):
    made = make(FOUR_PARTS)
    assert made.name == f"make/{made.fingerprint[:16]}" and repr(made) == f"Artifact({made.name})"
    parts = made["documents"].parts
    assert [str(part) for part in parts] == [
        f"documents of {made.name}, part {number} of 4" for number in range(1, 5)
    ]
    assert repr(parts[0]) == f"Part({parts[0]})"
    assert [(part.index, part.part_count) for part in parts] == [(number, 4) for number in range(4)]
    assert made.tables.keys() == {"documents"} and made.tables["documents"].row_count == 200
    assert made.purge_time_by_doc_id == {}


def test_a_table_knows_its_columns_its_bytes_and_its_digest(session):
    made = drop(make(FOUR_PARTS), DropConfig())
    table = made["documents"]
    assert list(table.columns.values()) == describe_columns(DOCUMENTS)
    assert table.byte_size == sum(part.path.stat().st_size for part in table.parts)
    kinds = [[c.name, c.kind, c.judged_by] for c in describe_columns(DOCUMENTS)]
    hashes = [hashlib.sha256(part.path.read_bytes()).hexdigest() for part in table.parts]
    assert table.digest == digest({"parts": hashes, "columns": kinds})
    tables = {name: found.digest for name, found in made.tables.items()}
    assert made.content_digest == digest({"tables": tables, "files": {}})


def test_a_table_of_several_has_the_digest_of_theirs_and_the_columns_of_the_last(session):
    pieces = [make(MakeConfig(documents=n)) for n in (3, 5, 7)]
    for chosen in (pieces[:2], pieces):
        both = Table(tuple(chosen), "documents")
        assert both.digest == digest([piece["documents"].digest for piece in chosen])
        assert both.parts_per_segment == [len(p["documents"].parts) for p in chosen]
        assert both.row_count == sum(p["documents"].row_count for p in chosen)
    said = pieces[2].manifest["tables"]["documents"]["columns"]
    said[0]["meaning"] = "as it is said now"
    columns = Table(tuple(pieces), "documents").columns
    assert columns["doc_id"].meaning == "as it is said now"
    assert pieces[0]["documents"].columns["doc_id"].meaning != "as it is said now"


def test_a_batch_is_a_row_group_and_holds_the_columns_asked_for(session):
    table = make(MakeConfig(documents=9_000))["documents"]
    batches = list(table.iter_batches(["text", "source"]))
    assert [len(batch) for batch in batches] == [4096, 4096, 808]
    whole = table.read(["text", "source"])
    assert pa.Table.from_batches(batches).equals(whole)
    [part] = table.parts
    for min_bytes, row_counts in (
        (1, [4096, 4096, 808]),
        (batches[0].nbytes + 1, [8192, 808]),
        (1 << 40, [9000]),
    ):
        larger_batches = list(part.iter_batches(["text", "source"], min_bytes=min_bytes))
        assert [len(batch) for batch in larger_batches] == row_counts
        assert pa.Table.from_batches(larger_batches).equals(whole)
    assert set(whole.column_names) == {"text", "source"}
    assert part.read().equals(table.read()) and part.row_count == 9_000
    assert (
        part.read_empty_table(["text"]).schema == part.read(["text"]).schema
        and len(part.read_empty_table()) == 0
    )
    few = table.to_dataset().to_table(["doc_id"], filter=pc.field("source") == "odd")
    assert len(few) == 4_500
    frame = table.to_pandas()
    assert isinstance(frame["text"].dtype, pd.ArrowDtype) and list(frame["text"]) == (
        whole["text"].to_pylist()
    )


def test_of_an_artifact_only_what_is_read_counts(session):
    one, two = (drop(make(FOUR_PARTS), DropConfig(note=note)) for note in (0.0, 1.0))
    assert one.content_digest != two.content_digest
    kept, same = (made.select_contents(["documents", "none"]) for made in (one, two))
    assert (
        kept.content_digest
        == same.content_digest
        == digest({"tables": {"documents": one["documents"].digest}, "files": {}})
    )
    assert kept.tables.keys() == {"documents"} and "ledger" in one.tables
    with pytest.raises(
        HallmarkError, match=r"^this stage does not declare that it reads the 'ledger' table of"
    ):
        kept["ledger"]
    with pytest.raises(HallmarkError, match=r"no table 'other'; its tables are documents$"):
        kept["other"]
    number = keep_number(CountConfig())
    with pytest.raises(HallmarkError, match=r"no table 'x'; its tables are none$"):
        number["x"]
    assert number.select_contents(["x"]).manifest["files"] == {} and number.manifest["files"]
    by_pattern = number.select_contents(["*.txt"])
    assert by_pattern.fetch_file("number.txt").read_text() == "7"
    files = {"number.txt": hashlib.sha256(b"7").hexdigest()}
    assert by_pattern.content_digest == digest({"tables": {}, "files": files})
    assert number.select_contents(["*.TXT"]).manifest["files"] == {}


def test_files_are_found_by_name_and_all_lie_in_one_folder(session, tmp_path):
    number = keep_number(CountConfig())
    assert number.fetch_file("number.txt").read_text() == "7"
    assert number.fetch_directory() == number.fetch_file("number.txt").parent
    with pytest.raises(HallmarkError, match=r"has no file 'x'; its files are number.txt$"):
        number.fetch_file("x")
    counted = count(make(MakeConfig(documents=2)), CountConfig())
    with pytest.raises(HallmarkError, match=r"has no file 'x'; its files are none$"):
        counted.fetch_file("x")
    with pytest.raises(HallmarkError, match="has no files"):
        counted.fetch_directory()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "w.bin").write_bytes(b"1")
    (tmp_path / "deep" / ".hidden").mkdir()
    (tmp_path / "deep" / ".hidden" / "x").write_bytes(b"2")
    there = folder_to_artifact(tmp_path / "deep", "checkpoint")
    assert there.fetch_directory() == tmp_path / "deep" and there.stage == "checkpoint"
    assert there.manifest["files"] == {
        "er/w.bin": {"name": "er/w.bin", "size": 1, "sha256": sha256_hex(b"1")}
    }
    assert (
        there.content_digest
        == there.fingerprint
        == digest({"tables": {}, "files": {"er/w.bin": sha256_hex(b"1")}})
    )
    there.verify_files()


def test_a_file_changed_twice_within_one_tick_of_the_clock_is_read_again(session):
    """Times of files move in steps of some milliseconds: two contents can bear the same one."""
    made = keep_number(CountConfig())
    path = made.fetch_file("number.txt")
    written = path.stat()
    path.write_text("8")
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    with pytest.raises(HallmarkError, match="does not match the SHA-256 in its manifest"):
        made.fetch_file("number.txt")


def test_a_folder_of_somebody_else_is_read_once_for_all_who_name_it(tmp_path, monkeypatch):
    """Gigabytes, that a command names to several."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"1")
    os.utime(path, ns=(0, 10**18))
    monkeypatch.setattr(external_files, "TIMESTAMP_TICK_NS", 0)  # as if it was not changed just now
    read = []
    real = artifact.hash_file
    monkeypatch.setattr(artifact, "hash_file", lambda path: read.append(path) or real(path))
    first, again = (folder_to_artifact(tmp_path, "checkpoint") for _ in range(2))
    assert first.content_digest == again.content_digest and read == [path]
    (tmp_path / "other.bin").write_bytes(b"2")  # as unpacked: of the same size and time
    os.utime(tmp_path / "other.bin", ns=(0, 10**18))
    (tmp_path / "other.bin").replace(path)
    assert folder_to_artifact(
        tmp_path, "checkpoint"
    ).content_digest != first.content_digest and read == [path, path]


def test_each_file_of_a_folder_of_thousands_is_read_once(tmp_path, monkeypatch):
    """Whoever lists a folder again asks for its files in the same order: a memory with a limit
    would have pushed out each file before it is asked for."""
    names = [f"{number:04}.bin" for number in range(4_200)]
    for name in names:
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(
        external_files, "TIMESTAMP_TICK_NS", 0
    )  # as if they were not changed just now
    read = []
    real = artifact.hash_file
    monkeypatch.setattr(artifact, "hash_file", lambda path: read.append(path) or real(path))
    first = folder_to_artifact(tmp_path, "checkpoint")
    assert [path.name for path in read] == names
    again = folder_to_artifact(tmp_path, "checkpoint")
    record_external_folder(again)
    assert again.content_digest == first.content_digest and len(read) == len(names)
    (tmp_path / names[7]).write_text("other")
    assert folder_to_artifact(tmp_path, "checkpoint").content_digest != first.content_digest
    assert [path.name for path in read[len(names) :]] == [names[7]]


def test_a_file_that_is_gone_or_cut_is_named_with_its_size(session):
    made = make(MakeConfig(documents=5))
    [part] = made["documents"].parts
    path, whole = part.path, part.path.read_bytes()
    path.write_bytes(whole[:-1])
    sizes = rf"{len(whole) - 1:,} bytes instead of {len(whole):,}"
    with pytest.raises(HallmarkError, match=f"has {sizes}; remove the artifact's folder"):
        part.read()
    path.unlink()
    with pytest.raises(HallmarkError, match=r"is missing; remove the artifact's folder"):
        made["documents"].find_document_rows([bytes(16)])
