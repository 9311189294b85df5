"""Test what a run reports about delimited files: their formats, and those without a column."""

import gzip
import logging

import pytest

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig


def ingest_files(folder, files, kind="csv", **settings):
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    source = {"kind": kind, "name": "s", "path": str(folder), **settings}
    return ingest(IngestConfig(sources=[source]))


def test_the_formats_of_files_are_counted(tmp_path, session, caplog):
    files = {
        "a.csv": b"id,text\n1,a\n",
        "b.csv": b"id;text\n1;b\n",
        "c.csv": b"id,text\n1,c\n",
        "d.csv": b"id;text\n1;d\n",
        "e.csv": b"id,text\r1,'it''s, yes'\r",
        "f.csv": b"id,text\r\n1,f\r\n",
    }
    artifact = ingest_files(tmp_path / "in", files)
    assert artifact["documents"].row_count == 6
    formats = artifact["file_formats"].read().to_pylist()
    assert [(row["file_format"], row["files"], row["file_name"]) for row in formats] == [
        ("delimiter ',', quotes \"'\" doubled, line endings CR, with header", 1, "e.csv"),
        ("delimiter ',', quotes '\"' doubled, line endings CRLF, with header", 1, "f.csv"),
        ("delimiter ',', quotes '\"' doubled, line endings LF, with header", 2, "a.csv"),
        ("delimiter ';', quotes '\"' doubled, line endings LF, with header", 2, "b.csv"),
    ]
    assert {row["source"] for row in formats} == {"s"}
    assert [record.getMessage() for record in caplog.records] == [
        "source 's': 1 file is read with delimiter ',', quotes \"'\" doubled, line endings CR, "
        "with header; the first is 'e.csv'",
        "source 's': 2 files are read with delimiter ';', quotes '\"' doubled, line endings LF, "
        "with header; the first is 'b.csv'",
    ]


def test_unusual_encodings_and_compressions_are_counted(tmp_path, session, caplog):
    files = {
        "a.csv": "id,text\n1,ä\n".encode("utf-16"),
        "b.csv.gz": "id,text\n2,ö\n".encode(),
        "c.csv.bz2": gzip.compress("id,text\n3,ü\n".encode("utf-32")),
    }
    artifact = ingest_files(tmp_path / "in", files)
    assert sorted(artifact["documents"].read()["text"].to_pylist()) == ["ä", "ö", "ü"]
    dialect = "delimiter ',', quotes '\"' doubled, line endings LF, with header"
    formats = artifact["file_formats"].read().to_pylist()
    assert [(row["file_format"], row["files"], row["file_name"]) for row in formats] == [
        (f"UTF-16, {dialect}", 1, "a.csv"),
        (f"UTF-32, compression .gz despite the extension .bz2, {dialect}", 1, "c.csv.bz2"),
        (f"no compression despite the extension .gz, {dialect}", 1, "b.csv.gz"),
    ]
    assert caplog.records[0].getMessage() == (
        f"source 's': 1 file is read with UTF-16, {dialect}; the first is 'a.csv'"
    )
    text_files = {"a.txt": "ä".encode("utf-16"), "b.txt": "ö".encode()}
    artifact = ingest_files(tmp_path / "text", text_files, "text")
    (row,) = artifact["file_formats"].read().to_pylist()
    assert (row["file_format"], row["files"], row["file_name"]) == ("UTF-16", 1, "a.txt")


def test_other_files_have_no_format(tmp_path, session, caplog):
    artifact = ingest_files(tmp_path / "in", {"a.jsonl": b'{"text": "a"}\n'}, "jsonl")
    assert artifact["file_formats"].row_count == 0 and caplog.records == []
    artifact = ingest_files(tmp_path / "tsv", {"a.tsv": b"text\na\n"}, "tsv")
    assert artifact["file_formats"].row_count == 1 and caplog.records == []


def test_files_that_lack_a_column_are_named_with_their_columns(tmp_path, session, caplog):
    files = {"a.csv": b"id,text\n1,a\n", "b.csv": b"id,txt\n1,b\n", "c.csv": b"id;body\n1;c\n"}
    caplog.set_level(logging.WARNING)
    artifact = ingest_files(tmp_path / "in", files)
    assert artifact["documents"].row_count == 1 and artifact["quarantine"].row_count == 2
    message = caplog.records[-1].getMessage()
    assert message == (
        "source 's': 1 record in each of 2 files is in quarantine because of a missing column; in "
        "'b.csv', column 'text' is missing; its columns are 'id', 'txt' (did you mean txt?); "
        "correct the record, or correct 'kind' and the field names of its source; if a CSV or TSV "
        "file has no header, set 'column_names'"
    )
    caplog.clear()
    ingest_files(tmp_path / "one", {"a.csv": files["a.csv"], "c.csv": files["c.csv"]})
    assert (
        caplog.records[-1]
        .getMessage()
        .startswith(
            "source 's': 1 record in 1 file is in quarantine because of a missing column; in "
            "'c.csv', column 'text' is missing; its columns are 'id', 'body'; correct"
        )
    )


def test_records_without_a_column_are_counted_apart_from_files(tmp_path, session, caplog):
    lines = b'{"text": "a"}\n{"txt": "b"}\n{"txt": "c"}\n'
    caplog.set_level(logging.WARNING)
    artifact = ingest_files(tmp_path / "in", {"a.jsonl": lines}, "jsonl")
    assert artifact["quarantine"].row_count == 2
    sentence = "source 's': 2 records in 1 file are in quarantine because of a missing column; in "
    assert caplog.records[-1].getMessage().startswith(f"{sentence}'a.jsonl', ")


@pytest.mark.parametrize(
    ("data", "settings", "found"),
    [
        (b"id;text\n1;a\n", {"delimiter": ","}, "'id;text'"),
        (b"'id','text'\n'1','a'\n", {"quote": '"'}, "\"'id'\", \"'text'\""),
    ],
)
def test_an_error_names_the_format_that_the_config_excludes(
    tmp_path, session, data, settings, found
):
    with pytest.raises(HallmarkError) as raised:
        ingest_files(tmp_path / "in", {"a.csv": data}, **settings)
    message = str(raised.value)
    assert f"column 'text' is missing; its columns are {found} (" in message
    assert ", the file has the column)" in message and "(with delimiter " in message


def test_an_error_about_a_file_without_header_names_the_setting(tmp_path, session):
    with pytest.raises(HallmarkError) as raised:
        ingest_files(tmp_path / "in", {"a.csv": b'0,"A letter."\n1,"Another."\n'})
    message = str(raised.value)
    assert "column 'text' is missing; its columns are '0', 'A letter.'; correct" in message
    assert message.endswith("if a CSV or TSV file has no header, set 'column_names'")
    assert "(with delimiter" not in message
