"""Test sources of a served deployment, whose files must lie inside the declared roots."""

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

SECRET = "A secret outside the root."


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Create a root with a corpus of each kind, and secrets outside the root."""
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


def make_config(kind, path):
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
def test_files_inside_the_root_are_read(folders, folder):
    config = make_config(KINDS[folder], folders / "root" / folder)
    (file_input,) = list_inputs(config)
    (record,) = read_input_records(file_input, config, ReadCounts())
    assert record.text.strip() == "Words of the corpus."


@pytest.mark.parametrize("folder", [name for name in KINDS if name != "datasets"])
def test_a_file_that_is_replaced_by_a_link_is_not_read(folders, folder):
    """It is not read even if size and times are those of the listed file."""
    config = make_config(KINDS[folder], folders / "root" / folder)
    (file_input,) = list_inputs(config)
    (file,) = (folders / "root" / folder).iterdir()
    outside_file = folders / "outside" / file.name
    outside_file.write_bytes(
        outside_file.read_bytes()[: file_input.size_bytes].ljust(file_input.size_bytes)
    )
    file.unlink()
    file.symlink_to(outside_file)
    file_input = replace(
        file_input, version_tag=" ".join(map(str, stat_to_file_stamp(outside_file.stat())[:3]))
    )
    with pytest.raises(UsageError, match=r"^source 's': .* leads outside the allowed roots"):
        list(read_input_records(file_input, config, ReadCounts()))


def test_a_data_set_that_names_files_outside_is_refused(folders):
    (folders / "root" / "datasets" / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files: {folders}/outside/a.jsonl\n---\n"
    )
    config = make_config("datasets", folders / "root" / "datasets")
    (file_input,) = list_inputs(config)
    with pytest.raises(HallmarkError, match="leads outside the allowed roots"):
        list(read_input_records(file_input, config, ReadCounts()))


def test_a_stage_refuses_a_source_outside_the_root_without_reading_it(folders):
    store = Store(folders / "root" / "store")
    with open_session(Session(store, SerialMapper())):
        for path in (folders / "outside", folders / "root" / ".." / "outside" / "*.txt"):
            with pytest.raises(UsageError, match=r"^ingest\.sources\.0\.path: .* leads outside"):
                ingest(make_config("text", path))
        assert ingest(make_config("text", folders / "root" / "text"))["documents"].row_count == 1
    assert store.list_folder_names("artifacts/ingest") and SECRET.encode() not in b"".join(
        path.read_bytes() for path in store.root_folder.rglob("*") if path.is_file()
    )
