"""Test the metadata of documents: from the fields of records through all stages to the profile."""

import csv
import datetime
import json
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import DOCUMENTS, METADATA_TYPE, Table, count_metadata_bytes
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.profiles.metadata_counts import MAX_DISTINCT_VALUES, MetadataCounts
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.metadata import (
    MAX_METADATA_FIELDS,
    MAX_VALUE_CHARACTERS,
    normalise_metadata,
)
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from tests.tasks.corpora import scrubbed

ROWS = [
    {"text": "one", "license": "CC0-1.0", "by": "Ann", "stars": 3},
    {"text": "two", "license": " MIT ", "by": None, "stars": 0},
    {"text": "three", "license": "", "by": "Åse", "stars": None},
]
EXPECTED = {
    "one": {"licence": "CC0-1.0", "author": "Ann", "stars": "3"},
    "two": {"licence": "MIT", "stars": "0"},
    "three": {"author": "Åse"},
}
FIELDS = {"licence": "license", "author": "by", "stars": "stars"}


def write_source(folder, kind, rows, **settings):
    path = folder / f"a.{kind}"
    names = list(rows[0])
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
            writer.writerows([names, *([row[name] for name in names] for row in rows)])
    else:
        path = path / "train.parquet" if kind == "datasets" else path
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)
        path = path.parent if kind == "datasets" else path
    return {"kind": kind, "name": "s", "path": str(path), "metadata_fields": FIELDS, **settings}


def get_metadata(artifact):
    rows = artifact["documents"].read(["text", "metadata"]).to_pylist()
    return {row["text"]: dict(row["metadata"] or ()) for row in rows}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet", "datasets"])
def test_every_container_gives_metadata(tmp_path, session, kind):
    artifact = ingest(IngestConfig(sources=[write_source(tmp_path, kind, ROWS)]))
    assert get_metadata(artifact) == EXPECTED
    assert artifact["sources"].read()["unreadable_values"].to_pylist() == [0]
    metadata = artifact["documents"].read()["metadata"]
    assert metadata.type == METADATA_TYPE == DOCUMENTS.field("metadata").type
    names = [[name for name, _ in fields] for fields in metadata.to_pylist()]
    assert names == [sorted(each) for each in names]


def test_documents_without_metadata_have_null(tmp_path, session):
    source = write_source(tmp_path, "jsonl", ROWS) | {"metadata_fields": {}}
    metadata = ingest(IngestConfig(sources=[source]))["documents"].read()["metadata"]
    assert metadata.null_count == len(ROWS)


def test_a_package_gives_its_licence(session):
    source = {"kind": "documentation", "packages": ["networkx"]}
    found = get_metadata(ingest(IngestConfig(sources=[source])))
    assert {fields["licence"] for fields in found.values()} == {"BSD-3-Clause"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("  ", None),
        (float("nan"), None),
        (True, "true"),
        (0, "0"),
        (1.5, "1.5"),
        (datetime.date(2020, 2, 29), "2020-02-29"),
        ("x" * MAX_VALUE_CHARACTERS, "x" * MAX_VALUE_CHARACTERS),
    ],
)
def test_values_become_text(value, expected):
    assert normalise_metadata({"a": value}) == ({} if expected is None else {"a": expected}, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", "x" * (MAX_VALUE_CHARACTERS + 1)),
        ("a", "\ud800"),
        pytest.param("a", 10**5000, id="digits"),
        ("a", ["CC0"]),
        ("a", {"b": "c"}),
        ("a" * 65, "x"),
        ("", "x"),
        ("a\n", "x"),
        ("<b>", "x"),
    ],
)
def test_what_exceeds_a_limit_is_not_carried_and_counted(name, value):
    assert normalise_metadata({name: value, "ok": "1"}) == ({"ok": "1"}, 1)


def test_only_so_many_fields_are_carried():
    fields = {f"f{number:03d}": "x" for number in range(MAX_METADATA_FIELDS + 5)}
    kept, rejected_count = normalise_metadata(fields)
    assert (list(kept), rejected_count) == (sorted(fields)[:MAX_METADATA_FIELDS], 5)
    fields = {f"f{number}": "x" for number in range(MAX_METADATA_FIELDS + 1)}
    with pytest.raises(ValidationError, match="at most 32"):
        IngestConfig(
            sources=[{"kind": "jsonl", "name": "s", "path": "a", "metadata_fields": fields}]
        )
    with pytest.raises(ValidationError, match="pattern"):
        source = {"kind": "jsonl", "name": "s", "path": "a", "metadata_fields": {"<b>": "x"}}
        IngestConfig(sources=[source])


def test_hostile_values_keep_their_documents(tmp_path, session):
    """The text is kept, the value is missing, and the ``sources`` table counts it."""
    rows = [{"text": str(n), "license": "x" * 10**n, "by": [1], "stars": "\0"} for n in range(5)]
    artifact = ingest(IngestConfig(sources=[write_source(tmp_path, "jsonl", rows)]))
    assert {n: len(f.get("licence", "")) for n, f in get_metadata(artifact).items()} == {
        "0": 1,
        "1": 10,
        "2": 100,
        "3": 1000,
        "4": 0,
    }
    assert artifact["sources"].read()["unreadable_values"].to_pylist() == [6]
    assert artifact["quarantine"].row_count == 0


def test_copies_are_ordered_by_metadata_and_not_by_arrival(tmp_path, session):
    rows = [{"text": "same", "license": f"L{n}", "by": None, "stars": None} for n in range(8)]
    tables = []
    for order in (rows, rows[::-1]):
        config = IngestConfig(sources=[write_source(tmp_path, "jsonl", order)])
        documents = ingest(config)["documents"].read(["doc_id", "metadata"])
        tables.append(documents.to_pylist())
    assert tables[0] == tables[1] and len({str(row) for row in tables[0]}) == 8


def test_metadata_counts_for_the_size_of_partitions(tmp_path, session):
    """Else short texts with long metadata would make partitions of any size."""
    rows = [{"text": f"t{n}", "license": "x" * 900, "by": None, "stars": n} for n in range(64)]
    source = write_source(tmp_path, "jsonl", rows)
    artifact = ingest(IngestConfig(sources=[source], partition_bytes=8192))
    assert len(artifact["documents"].parts) == 8


def test_bytes_of_metadata_count_each_row_of_a_slice():
    metadata = pa.array([{"a": "bc"}, None, {}, {"d": "ü", "e": "f"}], METADATA_TYPE)
    assert count_metadata_bytes(metadata).tolist() == [3, 0, 0, 5]
    assert count_metadata_bytes(metadata[2:]).tolist() == [0, 5]
    assert count_metadata_bytes(pa.chunked_array([metadata[3:], metadata[:1]])).tolist() == [5, 3]
    assert count_metadata_bytes(metadata[:0]).tolist() == []


def write_corpus(folder, count=400):
    rng = random.Random(7)
    rows = []
    for number in range(count):
        words = " ".join(rng.choice(["boat", "hill", "light", "evening"]) for _ in range(30))
        rows.append(
            {
                "text": f"Letter {number}: {words}",
                "license": rng.choice(["CC0-1.0", "MIT", "MIT", None]),
                "by": f"author {number % 97}",
                "stars": number,
            }
        )
    rows[5]["license"] = "rare"
    return rows, write_source(folder, "jsonl", [*rows, *rows[:20]], licence="declared")


@pytest.fixture
def corpus(session, tmp_path):
    rows, source = write_corpus(tmp_path)
    raw = ingest(IngestConfig(sources=[source], partition_bytes=4096))
    stages = {"ingest": raw}
    stages["deduplicate"] = deduplicate(raw, {}, DeduplicateConfig())
    stages["language"] = identify_languages(stages["deduplicate"], LanguageConfig())
    stages["select"] = select_documents(
        stages["deduplicate"], {"language": stages["language"]}, SelectConfig()
    )
    stages["deduplicate_near"] = deduplicate_near(stages["select"], {}, DeduplicateNearConfig())
    stages["redact_spans"] = scrubbed(stages["deduplicate_near"])
    stages["split"] = split_corpus(stages["redact_spans"], SplitConfig())
    stages["plant_canaries"] = plant_canaries(stages["split"], PlantCanariesConfig())
    return rows, stages


def test_every_stage_carries_the_column(corpus):
    rows, stages = corpus
    by_text = {row["text"]: row for row in rows}
    for name, artifact in stages.items():
        if "documents" not in artifact.tables:
            continue
        found = get_metadata(artifact)
        checked = 0
        for text, metadata in found.items():
            if text in by_text:
                row, checked = by_text[text], checked + 1
                expected = {n: str(row[f]) for n, f in FIELDS.items() if row[f] is not None}
                assert metadata == expected, name
        assert checked > 300, name


def test_the_profile_counts_fields_and_values(corpus):
    _, stages = corpus
    planted = stages["plant_canaries"]
    profile = profile_corpus(planted, planted, stages, {}, ProfileConfig(max_composition_values=3))
    carried = list(get_metadata(planted).values())
    fields = {r["field"]: r for r in profile["metadata_fields"].read().to_pylist()}
    for name in FIELDS:
        values = [metadata[name] for metadata in carried if name in metadata]
        assert fields[name]["documents"] == len(values)
        assert fields[name]["distinct_values"] == len(set(values))
    counts = {
        name: {
            r["value"]: r["documents"]
            for r in profile["metadata_values"].read().to_pylist()
            if r["field"] == name
        }
        for name in FIELDS
    }
    licences = Counter(m["licence"] for m in carried if "licence" in m)
    assert counts["licence"] == dict(licences) and counts["licence"]["rare"] == 1
    # No author has ten documents, and every document has its own number of stars.
    assert counts["author"] == {} and counts["stars"] == {}
    composition = {
        r["value"]: r["documents"]
        for r in profile["composition"].read().to_pylist()
        if r["dimension"] == "licence" and r["split"] == ""
    }
    without = len(carried) - sum(licences.values())
    del licences["rare"]  # the fourth by bytes
    assert composition == dict(licences) | {"declared": without, "other": 1}


def count_in_batches(batches):
    counts = [
        MetadataCounts.from_documents(pa.array([{"a": v} for v in batch], METADATA_TYPE))
        for batch in batches
    ]
    merged = MetadataCounts.merge([])
    for count in counts:
        merged = MetadataCounts.merge([merged, count])
    return merged


def test_values_of_free_text_are_not_counted_however_the_corpus_is_divided():
    values = [str(n) for n in range(MAX_DISTINCT_VALUES + 1)] * 2
    for batch_size in (100, 1001, 5000):
        batches = [values[i : i + batch_size] for i in range(0, len(values), batch_size)]
        counts = count_in_batches(batches)
        assert len(counts.values) == 0
        assert counts.build_field_rows().to_pylist() == [
            {"field": "a", "documents": len(values), "distinct_values": None}
        ]
    assert len(count_in_batches([values[:-1][:MAX_DISTINCT_VALUES]]).values) == MAX_DISTINCT_VALUES


def test_the_most_frequent_values_are_kept_in_their_order():
    values = ["x"] * 30 + ["y"] * 20 + ["z"] * 20 + ["rare"] * 9
    rows = count_in_batches([values]).build_value_rows(2).to_pylist()
    assert [(row["value"], row["documents"]) for row in rows] == [("x", 30), ("y", 20)]
    rows = count_in_batches([values]).build_value_rows(9).to_pylist()
    assert [row["value"] for row in rows] == ["x", "y", "z"]


def test_additions_to_a_corpus_keep_their_metadata(session, tmp_path):
    """A copy of an earlier document is removed with its metadata; the profile covers both."""
    stages = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        texts = [f"Letter {n} of the harbour master." for n in range(12)]
        rows = [
            {"text": text if number == 0 or n == 0 else f"{text} Again.", "license": f"L{number}"}
            for n, text in enumerate(texts)
        ]
        rows = [row | {"by": None, "stars": None} for row in rows]
        raw = ingest(IngestConfig(sources=[write_source(folder, "jsonl", rows)]))
        earlier = {"0": stages[0]["deduplicate"]} if stages else {}
        unique = deduplicate(raw, earlier, DeduplicateConfig())
        split_documents = split_corpus(unique, SplitConfig())
        planted = plant_canaries(split_documents, PlantCanariesConfig())
        stages.append({"ingest": raw, "deduplicate": unique, "plant_canaries": planted})
    documents = Table(tuple(addition["plant_canaries"] for addition in stages), "documents")
    first, last = stages
    profile = profile_corpus(
        documents, last["plant_canaries"], last, {"1:ingest": first["ingest"]}, ProfileConfig()
    )
    rows = profile["metadata_values"].read().to_pylist()
    assert {row["value"]: row["documents"] for row in rows} == {"L0": 12, "L1": 11}
