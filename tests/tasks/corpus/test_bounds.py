"""Sources of a served deployment, whose files must lie inside the declared roots."""

import gzip
import json
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import (
    HallmarkError,
    SerialMapper,
    Session,
    Store,
    UsageError,
    open_session,
    stat_to_file_stamp,
)
from hallmark.tasks.contract.allowed_roots import ROOTS_ENVIRONMENT_VARIABLE
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.inputs import IngestConfig, list_inputs, read_input_records

SECRET = "The secret of outside."


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A root with a corpus of each kind, and a secret outside of it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    row = {"text": "Words of the corpus."}
    for name in ("jsonl", "csv", "parquet", "text", "zipped", "datasets"):
        (root / name).mkdir(parents=True)
    for folder in ("jsonl", "datasets"):
        (root / folder / "a.jsonl").write_text(json.dumps(row))
    (root / "csv" / "a.csv").write_text("text\nWords of the corpus.\n")
    (root / "text" / "a.txt").write_text(row["text"])
    pq.write_table(pa.table({"text": [row["text"]]}), root / "parquet" / "a.parquet")
    (root / "zipped" / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    outside.mkdir()
    (outside / "a.jsonl").write_text(json.dumps({"text": SECRET}))
    (outside / "a.csv").write_text(f"text\n{SECRET}\n")
    (outside / "a.txt").write_text(SECRET)
    pq.write_table(pa.table({"text": [SECRET]}), outside / "a.parquet")
    (outside / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": SECRET}).encode()))
    declared = {"folders": [os.path.realpath(root)], "uris": []}
    monkeypatch.setenv(ROOTS_ENVIRONMENT_VARIABLE, json.dumps(declared))
    return tmp_path


def config_of(kind, path):
    return IngestConfig(sources=[{"kind": kind, "name": "s", "path": str(path)}])


KINDS = {
    "jsonl": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
    "text": "text",
    "zipped": "jsonl",
    "datasets": "datasets",
}


@pytest.mark.parametrize("folder", KINDS)
def test_what_lies_inside_is_read(place, folder):
    config = config_of(KINDS[folder], place / "root" / folder)
    (part,) = list_inputs(config)
    (record,) = read_input_records(part, config, ReadCounts())
    assert record.text.strip() == "Words of the corpus."


@pytest.mark.parametrize("folder", [name for name in KINDS if name != "datasets"])
def test_a_file_that_is_exchanged_for_a_link_is_not_read(place, folder):
    """Even where its size and times are those of the file that was found."""
    config = config_of(KINDS[folder], place / "root" / folder)
    (part,) = list_inputs(config)
    (file,) = (place / "root" / folder).iterdir()
    other = place / "outside" / file.name
    other.write_bytes(other.read_bytes()[: part.size_bytes].ljust(part.size_bytes))
    file.unlink()
    file.symlink_to(other)
    part = replace(part, version_tag=" ".join(map(str, stat_to_file_stamp(other.stat())[:3])))
    with pytest.raises(UsageError, match=r"^source 's': .* leads outside the roots"):
        list(read_input_records(part, config, ReadCounts()))


def test_a_data_set_that_names_files_outside_is_refused(place):
    (place / "root" / "datasets" / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files: {place}/outside/a.jsonl\n---\n"
    )
    config = config_of("datasets", place / "root" / "datasets")
    (part,) = list_inputs(config)
    with pytest.raises(HallmarkError, match="leads outside the roots"):
        list(read_input_records(part, config, ReadCounts()))


def test_a_stage_refuses_a_source_outside_before_it_reads_it(place):
    store = Store(place / "root" / "store")
    with open_session(Session(store, SerialMapper())):
        for path in (place / "outside", place / "root" / ".." / "outside" / "*.txt"):
            with pytest.raises(UsageError, match=r"^ingest\.sources\.0\.path: .* leads outside"):
                ingest(config_of("text", path))
        assert ingest(config_of("text", place / "root" / "text"))["documents"].row_count == 1
    assert store.list_folder_names("artifacts/ingest") and SECRET.encode() not in b"".join(
        path.read_bytes() for path in store.root_folder.rglob("*") if path.is_file()
    )
