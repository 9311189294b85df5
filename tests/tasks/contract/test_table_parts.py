"""Test tables in parts: locating documents, reading tables in parallel, repeated parts."""

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.contract import (
    HallmarkError,
    ProcessMapper,
    Session,
    Store,
    Table,
    accounts,
    align_parts,
    doc_id_to_part_index,
    open_session,
)
from hallmark.tasks.contract.artifact import ArtifactLocation
from tests.tasks.contract.stages import (
    FOUR_PARTS,
    CountConfig,
    DropConfig,
    LoggedConfig,
    MakeConfig,
    count,
    drop,
    logged,
    made_documents,
    make,
)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 12))
def test_part_number_is_the_leading_bits_of_the_id(doc_id, bits):
    leading = "".join(f"{byte:08b}" for byte in doc_id)[:bits]
    assert doc_id_to_part_index(doc_id, 2**bits) == int(leading or "0", 2)


@pytest.mark.parametrize("parts", [1, 4])
def test_parts_contain_their_id_ranges_in_order(session, parts):
    config = MakeConfig(documents=500, parts=parts)
    table = make(config)["documents"]
    assert (
        len(table.parts) == parts
        and sum(part.row_count for part in table.parts) == table.row_count == 500
    )
    for part in table.parts:
        found = part.read()["doc_id"].to_pylist()
        assert found == sorted(found) and {doc_id_to_part_index(i, parts) for i in found} <= {
            part.index
        }
    whole = table.read()
    assert whole.to_pylist() == made_documents(config).to_pylist()
    assert pa.Table.from_batches(table.iter_batches()).equals(whole)


@pytest.fixture
def opened_files(monkeypatch):
    """Record the names of the files of artifacts that are opened_files."""
    names = []
    fetch = ArtifactLocation.fetch_file

    def noted(self, entry):
        names.append(entry["name"])
        return fetch(self, entry)

    monkeypatch.setattr(ArtifactLocation, "fetch_file", noted)
    return names


def test_document_is_searched_only_in_its_part(session, opened_files):
    config = MakeConfig(documents=500, parts=8)
    table = make(config)["documents"]
    rows = {row["doc_id"]: row for row in made_documents(config).to_pylist()}
    for number in (0, 5):
        [doc_id, *_] = [i for i in rows if doc_id_to_part_index(i, 8) == number]
        opened_files.clear()
        assert table.find_document_rows([doc_id]).to_pylist() == [rows[doc_id]]
        assert set(opened_files) == {f"documents/{number:05d}.parquet"}
        assert table.find_document_rows([doc_id], ["text"]).to_pylist() == [
            {"text": rows[doc_id]["text"]}
        ]
    absent = bytes([255] * 16)
    opened_files.clear()
    assert table.find_document_rows([absent]).num_rows == 0
    assert set(opened_files) == {"documents/00007.parquet"}
    several = list(rows)[:3] + list(rows)[-3:]
    opened_files.clear()
    assert table.find_document_rows([*several, absent]).to_pylist() == [rows[i] for i in several]
    assert set(opened_files) == {"documents/00000.parquet", "documents/00007.parquet"}
    assert table.find_document_rows([]).schema == table.read().schema


@settings(max_examples=10, deadline=None)
@given(wanted=st.sets(st.integers(0, 99), max_size=20))
def test_find_rows_equals_filtering(tmp_path_factory, wanted):
    config = MakeConfig(documents=100, parts=16)  # some parts are empty or nearly so
    folder = tmp_path_factory.getbasetemp() / "finding"
    with open_session(Session(Store(folder))):
        table = make(config)["documents"]
    rows = table.read().to_pylist()
    chosen = [rows[place]["doc_id"] for place in wanted]
    expected = [row for row in rows if row["doc_id"] in set(chosen)]
    assert table.find_document_rows(chosen).to_pylist() == expected
    columns = table.find_document_rows(chosen, ["source", "text"])
    assert columns.to_pylist() == [{"source": r["source"], "text": r["text"]} for r in expected]


def test_tables_with_other_parts_are_refused(session):
    one, four = (make(MakeConfig(documents=50, parts=parts))["documents"] for parts in (1, 4))
    ledger = drop(four, DropConfig())["ledger"]
    pairs = align_parts(four, ledger)
    assert [(a.index, b.index, a.part_count, b.part_count) for a, b in pairs] == [
        (n, n, 4, 4) for n in range(4)
    ]
    sentence = (
        r"documents of make/\w+ \(4 parts\) and documents of make/\w+ \(1 parts\) have different"
    )
    with pytest.raises(HallmarkError, match=sentence):
        align_parts(four, one)


def test_document_tables_have_the_parts_of_documents_even_if_empty(session):
    made = drop(make(FOUR_PARTS), DropConfig(drop="no document says this", forget=True))
    assert [part.row_count for part in made["ledger"].parts] == [0] * 4
    assert len(made["documents"].parts) == 4
    assert len(made["accounts"].parts) == len(made["checksums"].parts) == 1


# What is done again --------------------------------------------------------------------------


def test_finished_parts_are_not_repeated_after_a_kill(tmp_path):
    store, work, log = (tmp_path / name for name in ("store", "work", "log"))
    command = [sys.executable, "-m", "tests.tasks.contract.stages", store, work, log]
    killed = subprocess.run(command, capture_output=True)
    assert killed.returncode == -9
    assert log.read_text().split() == ["0", "1", "2"]
    assert Store(store).list_artifacts("logged") == []
    subprocess.run(command, capture_output=True, check=True, input=b"\n")
    assert log.read_text().split() == ["0", "1", "2", "2", "3"]
    [raw], [made] = Store(store).list_artifacts("make"), Store(store).list_artifacts("logged")
    assert made["documents"].digest == raw["documents"].digest
    assert not any(work.glob("logged-*")), "the work area is removed at commit"


@pytest.mark.parametrize("workers", [0, 2])
def test_only_a_failed_part_is_retried(tmp_path, workers):
    session = Session(Store(tmp_path / "store"))
    session.mapper = ProcessMapper(workers) if workers else session.mapper
    log = tmp_path / "log"
    with open_session(session):
        raw = make(FOUR_PARTS)
        made = logged(raw, LoggedConfig(log=str(log), fault="fail once"))
    assert made["documents"].digest == raw["documents"].digest
    begun = log.read_text().split()
    assert begun.count("2") == 2
    if not workers:
        assert begun == ["0", "1", "2", "2", "3"]


def test_part_that_fails_twice_fails_the_stage_and_is_named(session, tmp_path):
    log = tmp_path / "log"
    config = LoggedConfig(log=str(log), fault="fail")
    sentence = r"stage logged: documents of make/\w+, part 3 of 4: the moon is full"
    with pytest.raises(HallmarkError, match=sentence):
        logged(make(FOUR_PARTS), config)
    assert log.read_text().split() == ["0", "1", "2", "2"]
    assert session.store.list_artifacts("logged") == []
    with pytest.raises(HallmarkError, match=sentence):  # another run goes on where this one ended
        logged(make(FOUR_PARTS), config)
    assert log.read_text().split() == ["0", "1", "2", "2", "2", "2"]


# Damage --------------------------------------------------------------------------------------


def test_flipped_byte_in_a_page_is_detected_by_reading(session):
    """The size is unchanged. Pages have their own checksums; reading computes no digest."""
    table = make(FOUR_PARTS)["documents"]
    part = table.parts[2]
    whole = part.path.read_bytes()
    texts = whole.index(b"PAR1") + len(whole) // 2  # in the pages of texts, before the footer
    for place in (texts, texts + 40):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        part.path.write_bytes(damaged)
        sentence = r"artifact make/\w+ is damaged: .*documents/00002\.parquet cannot be read"
        for read in (table.read, part.read, lambda: list(table.iter_batches())):
            with pytest.raises(HallmarkError, match=sentence):
                read()
        assert table.parts[1].read().num_rows > 0
    part.path.write_bytes(whole)
    table.read()


def test_flipped_byte_anywhere_is_detected_by_verification(session):
    artifact = make(MakeConfig(documents=20, parts=2))
    paths = [artifact.location.fetch_file(entry) for entry in artifact.iter_file_entries()]
    assert len(paths) == 3  # two parts and the telemetry
    for path in paths:
        whole = path.read_bytes()
        for place in {*range(0, len(whole), 97), len(whole) - 1}:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(HallmarkError, match=r"make/\w+ is damaged: .*SHA-256") as raised:
                artifact.verify_files()
            assert str(path) in str(raised.value)
        path.write_bytes(whole)
    artifact.verify_files()


# Tables of several artifacts ---------------------------------------------------------------------


def pieces():
    """Build two artifacts with different numbers of parts: 4 and 2."""
    return [make(FOUR_PARTS), drop(make(MakeConfig(documents=150, parts=2)), DropConfig())]


def test_table_of_several_artifacts_is_their_concatenation(session, opened_files):
    first, second = pieces()
    both = Table((first, second), "documents")
    tables = [piece["documents"] for piece in (first, second)]
    assert both.read().equals(pa.concat_tables([t.read() for t in tables]))
    assert pa.Table.from_batches(both.iter_batches()).equals(both.read())
    assert both.to_dataset().count_rows() == both.row_count == sum(t.row_count for t in tables)
    assert both.byte_size == sum(t.byte_size for t in tables)
    assert [str(part) for part in both.parts] == [str(p) for t in tables for p in t.parts]
    assert both.source_counts == accounts.merge_counts(
        part.entry["counts"] for table in tables for part in table.parts
    )
    wanted = [first["documents"].parts[2].read()["doc_id"][3].as_py(), b"unknown id 12345"]
    opened_files.clear()
    found = both.find_document_rows(wanted, ["text", "doc_id"])
    assert set(found["doc_id"].to_pylist()) == {wanted[0]}
    assert len(set(opened_files)) <= 4  # of each piece one part an id


def test_list_of_one_artifact_equals_the_artifact(session):
    one, other = pieces()
    alone = count(one, CountConfig())
    assert count([one], CountConfig()).fingerprint == alone.fingerprint
    assert alone.manifest["lineage"]["documents"] == f"{one.name}#documents"
    both, turned = count([one, other], CountConfig()), count([other, one], CountConfig())
    assert both["count"].read()["rows"].to_pylist() == [
        one["documents"].row_count + other["documents"].row_count
    ]
    assert len({alone.fingerprint, both.fingerprint, turned.fingerprint}) == 3
    assert both.manifest["lineage"]["documents"] == [f"{a.name}#documents" for a in (one, other)]


def test_accounts_of_a_stage_over_several_artifacts_balance(session):
    left = drop(pieces(), DropConfig(drop="7"))
    assert left["documents"].row_count + left["ledger"].row_count == sum(
        p["documents"].row_count for p in pieces()
    )


def test_output_for_several_artifacts_has_their_parts(session, opened_files):
    both = Table(tuple(pieces()), "documents")
    left = drop(pieces(), DropConfig(drop="7"))
    for table in (left["documents"], left["ledger"]):
        assert [len(part) for part in align_parts(both, table)] == [2] * 6
        ids = table.read()["doc_id"].to_pylist()  # some stand in both pieces
        for doc_id in {*ids}:
            opened_files.clear()
            assert table.find_document_rows([doc_id])["doc_id"].to_pylist() == [doc_id] * ids.count(
                doc_id
            )
            assert len(set(opened_files)) <= 2  # of each piece one part
        assert (
            sorted(table.find_document_rows([*{*ids}])["doc_id"].to_pylist()) == sorted(ids) != []
        )
    again = drop(left["documents"], DropConfig(drop="8"))
    assert len(align_parts(both, again["ledger"])) == 6


def test_tables_of_several_artifacts_are_read_in_parallel(session):
    one, other = pieces()
    pairs = align_parts(Table((one, other), "documents"), Table((one, other), "documents"))
    assert len(pairs) == 6 and all(str(a) == str(b) for a, b in pairs)
    three = make(MakeConfig(documents=3, parts=2))
    with pytest.raises(
        HallmarkError, match="have different partitions"
    ):  # six parts each, cut otherwise
        align_parts(Table((one, other), "documents"), Table((other, one), "documents"))
    with pytest.raises(HallmarkError, match="have different partitions"):
        align_parts(Table((one, other), "documents"), three["documents"])
