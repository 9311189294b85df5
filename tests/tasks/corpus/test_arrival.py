"""Records that arrive in another order, or from other files, leave the same tables."""

import gzip
import json

import pytest

from hallmark.tasks.contract import Session, Store, open_session
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig

#: Of which file and place something was is their matter.
OF_FILES = {"origins", "quarantine"}


def line(text, **more):
    return json.dumps({"text": text, **more}) + "\n"


def made_of(folder, files, **settings):
    """The tables that ingest leaves of files with these bytes."""
    (folder / "in").mkdir(parents=True)
    for name, data in files.items():
        (folder / "in" / name).write_bytes(data.encode() if isinstance(data, str) else data)
    source = {"kind": "jsonl", "name": "s", "path": str(folder / "in")}
    source |= settings.pop("source", {})
    with open_session(Session(Store(folder / "store"))):
        return ingest(IngestConfig(sources=[source], **settings))


def digests(artifact):
    return {name: t.digest for name, t in artifact.tables.items() if name not in OF_FILES}


KEYED = {"source": {"key_field": "id"}}
CASES = {
    "what stands around records": (["﻿" + line("one"), line("two") + "\n\n", "\n"], {}),
    "a key and a text spelled in two ways": (
        ['{"id":1,"text":"x"}\n', line("x", id=1, more=7), line("another", id=2)],
        KEYED,
    ),
    "copies that are too short, spelled in two ways": (
        ['{"text":"x"}\n', line("x", more=7), line("long enough")],
        {"min_document_bytes": 5},
    ),
    "a key whose one text is blank": (
        [line("", id=1) + line("the text 1", id=1), line("", id=2), line("the text 2", id=2)],
        KEYED,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_files_in_another_order_leave_the_same_tables(tmp_path, case):
    contents, settings = CASES[case]
    found = []
    for number, order in enumerate((contents, contents[::-1])):
        files = {f"{place}.jsonl": data for place, data in enumerate(order)}
        found.append(digests(made_of(tmp_path / str(number), files, **settings)))
    assert found[0] == found[1]


def test_what_stands_around_records_is_one_row_a_kind_however_many_files_hold_it(tmp_path):
    lines = [line(f"text {number}") + "\n" for number in range(6)]
    one = made_of(tmp_path / "one", {"all.jsonl": "".join(lines)})
    packed = {
        f"{number}.jsonl.gz": gzip.compress(data.encode()) for number, data in enumerate(lines)
    }
    many = made_of(tmp_path / "many", packed)
    assert digests(one) == digests(many)
    rows = one["ledger"].read().to_pylist()
    assert [(row["reason"], row["bytes_before"]) for row in rows] == [
        ("byte order mark, header or blank lines", 6)
    ]


def test_of_two_records_with_one_key_the_one_that_is_removed_stands_behind(tmp_path):
    """The hashes of half of all texts are above that of the empty one."""
    rows = [line("", id=n) + line(f"text {n}", id=n) for n in range(60)]
    made = made_of(tmp_path, {"a.jsonl": "".join(rows)}, **KEYED)
    kept = [
        text for batch in made["documents"].iter_batches() for text in batch["text"].to_pylist()
    ]
    assert sorted(kept) == sorted(f"text {n}" for n in range(60))
    assert made["quarantine"].row_count == 60
