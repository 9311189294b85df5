"""Test that records in another order, or in other files, give the same tables."""

import gzip
import json

import pytest

from hallmark.tasks.contract import Session, Store, open_session
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig

#: Tables that name files and positions.
TABLES_ABOUT_FILES = {"origins", "quarantine"}


def make_line(text, **other_fields):
    return json.dumps({"text": text, **other_fields}) + "\n"


def ingest_files(folder, files, **settings):
    """Ingest files with these contents."""
    (folder / "in").mkdir(parents=True)
    for name, data in files.items():
        (folder / "in" / name).write_bytes(data.encode() if isinstance(data, str) else data)
    source = {"kind": "jsonl", "name": "s", "path": str(folder / "in")}
    source |= settings.pop("source", {})
    with open_session(Session(Store(folder / "store"))):
        return ingest(IngestConfig(sources=[source], **settings))


def get_digests(artifact):
    return {name: t.digest for name, t in artifact.tables.items() if name not in TABLES_ABOUT_FILES}


KEYED = {"source": {"key_field": "id"}}
CASES = {
    "bytes between records": (["﻿" + make_line("one"), make_line("two") + "\n\n", "\n"], {}),
    "a key and a text written in two ways": (
        ['{"id":1,"text":"x"}\n', make_line("x", id=1, more=7), make_line("another", id=2)],
        KEYED,
    ),
    "short copies written in two ways": (
        ['{"text":"x"}\n', make_line("x", more=7), make_line("long enough")],
        {"min_document_bytes": 5},
    ),
    "a key with a blank and a good text": (
        [
            make_line("", id=1) + make_line("the text 1", id=1),
            make_line("", id=2),
            make_line("the text 2", id=2),
        ],
        KEYED,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_files_in_another_order_give_the_same_tables(tmp_path, case):
    contents, settings = CASES[case]
    digests_by_order = []
    for number, order in enumerate((contents, contents[::-1])):
        files = {f"{place}.jsonl": data for place, data in enumerate(order)}
        digests_by_order.append(
            get_digests(ingest_files(tmp_path / str(number), files, **settings))
        )
    assert digests_by_order[0] == digests_by_order[1]


def test_bytes_between_records_give_one_row_per_kind_for_any_number_of_files(tmp_path):
    lines = [make_line(f"text {number}") + "\n" for number in range(6)]
    one_file = ingest_files(tmp_path / "one", {"all.jsonl": "".join(lines)})
    packed = {
        f"{number}.jsonl.gz": gzip.compress(data.encode()) for number, data in enumerate(lines)
    }
    many_files = ingest_files(tmp_path / "many", packed)
    assert get_digests(one_file) == get_digests(many_files)
    rows = one_file["ledger"].read().to_pylist()
    assert [(row["reason"], row["bytes_before"]) for row in rows] == [
        ("byte order mark, header or blank lines", 6)
    ]


def test_a_removed_record_sorts_after_a_kept_one_with_the_same_key(tmp_path):
    """About half of all texts have a hash above that of the empty text."""
    rows = [make_line("", id=n) + make_line(f"text {n}", id=n) for n in range(60)]
    artifact = ingest_files(tmp_path, {"a.jsonl": "".join(rows)}, **KEYED)
    kept_texts = [
        text for batch in artifact["documents"].iter_batches() for text in batch["text"].to_pylist()
    ]
    assert sorted(kept_texts) == sorted(f"text {n}" for n in range(60))
    assert artifact["quarantine"].row_count == 60
