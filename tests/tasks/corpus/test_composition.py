"""What a corpus is composed of, against counts by plain Python."""

import json
import random
from collections import Counter, defaultdict

import pyarrow as pa
import pytest

from hallmark.tasks.contract import DOCUMENTS, fill_document_columns, hash_to_ids
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.profiles.composition import (
    COUNTS_SCHEMA,
    build_composition_rows,
    count_documents_by_dimension,
)
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.split import SplitConfig, split_corpus

PLAIN = "The boats came home late and nobody had seen the light on the hill that evening. "


def written(folder):
    """A jsonl source with domains and dates, one that declares nothing, and a licence for one."""
    dice = random.Random(3)
    hosts = ["big.example"] * 9 + ["small.example", "other", "b.example", "a.example"]
    lines = []
    for number in range(60):
        row = {"text": f"{number} {PLAIN}" * dice.randrange(1, 9)}
        if number % 5:
            row |= {
                "url": f"https://{dice.choice(hosts)}/{number}",
                "date": f"{dice.randrange(1998, 2002)}-03-04",
            }
        lines.append(json.dumps(row))
    (folder / "web.jsonl").write_text("\n".join(lines))
    (folder / "bare.jsonl").write_text("\n".join(f'{{"text": "{n} {PLAIN}"}}' for n in range(9)))
    web = {
        "kind": "jsonl",
        "name": "web",
        "path": str(folder / "web.jsonl"),
        "licence": "CC0-1.0",
        "url_field": "url",
        "date_field": "date",
    }
    bare = {"kind": "jsonl", "name": "bare", "path": str(folder / "bare.jsonl")}
    return IngestConfig(sources=[web, bare], partition_bytes=4096)


def by_hand(rows, most):
    """(dimension, value, split): (documents, bytes), with the dimensions of each of the rows."""
    sizes = Counter()
    for row in rows:
        for dimension, value in row["of"].items():
            sizes[dimension, value or "unknown"] += len(row["text"].encode())
    kept = set()
    for dimension in {d for d, _ in sizes}:
        named = [v for d, v in sizes if d == dimension and v not in ("unknown", "other")]
        named.sort(key=lambda value: (-sizes[dimension, value], value))
        kept |= {(dimension, value) for value in [*named[:most], "unknown"]}
    found = defaultdict(lambda: (0, 0))
    for row in rows:
        for dimension, value in row["of"].items():
            value = value or "unknown"
            value = value if (dimension, value) in kept else "other"
            for part in ("", row["split"]):
                documents, size = found[dimension, value, part]
                size += len(row["text"].encode())
                found[dimension, value, part] = documents + 1, size
    return dict(found)


def length(size):
    edges = {"under 200 bytes": 200, "200 to 999 bytes": 1000}
    return next((name for name, edge in edges.items() if size < edge), "1,000 bytes or more")


@pytest.mark.parametrize("most", [1, 2, 50])
def test_a_corpus_is_counted_by_all_that_is_known_of_it(session, tmp_path, most):
    raw = ingest(written(tmp_path))
    spoken = identify_languages(raw, LanguageConfig())
    parted = split_corpus(raw, SplitConfig(validation_share=0.3, holdout_share=0.2))
    planted = plant_canaries(
        parted,
        PlantCanariesConfig(
            enabled=True,
            copy_counts=(0, 2),
            secrets_per_count=2,
            passages_per_count=0,
            records_per_count=0,
            associations_per_share=0,
        ),
    )
    config = ProfileConfig(max_composition_values=most, length_bounds_bytes=(200, 1000))
    made = profile_corpus(planted, planted, {"ingest": raw, "language": spoken}, {}, config)
    told = {r["doc_id"]: r["language"] for r in spoken["signals"].read().to_pylist()}
    rows = planted["documents"].read().to_pylist()
    assert len(planted["documents"].parts) > 2
    for row in rows:
        row["of"] = {
            "source": row["source"],
            "domain": row["domain"],
            "year": (row["date"] or "")[:4],
            "licence": {"web": "CC0-1.0"}.get(row["source"]),
            "language": told.get(row["doc_id"]),
            "length": length(len(row["text"].encode())),
        }
    found = {
        (r["dimension"], r["value"], r["split"]): (r["documents"], r["bytes"], r["byte_share"])
        for r in made["composition"].read().to_pylist()
    }
    expected = by_hand(rows, most)
    assert {key: counts[:2] for key, counts in found.items()} == expected
    for (dimension, value, part), (_, size, share) in found.items():
        whole = sum(b for (d, _, p), (_, b) in expected.items() if (d, p) == (dimension, part))
        assert share == size / whole, value
    assert ("domain", "unknown", "") in found and ("domain", "other", "train") in found


def test_nothing_is_composed_of_nothing():
    assert build_composition_rows(COUNTS_SCHEMA.empty_table(), 5) == []


def test_without_the_stage_language_nothing_is_said_of_it():
    batch = pa.record_batch(
        fill_document_columns(
            {
                "doc_id": hash_to_ids(["a"]),
                "source": ["s"],
                "text": pa.array([""], pa.large_string()),
                "split": ["train"],
                "cluster": hash_to_ids(["a"]),
                "text_hash": hash_to_ids(["a"]),
            }
        ),
        schema=DOCUMENTS,
    )
    rows = pa.concat_tables([*count_documents_by_dimension(batch, pa.array([0]), None, {}, ())])
    made = {r["dimension"]: r for r in build_composition_rows(rows, 5) if r["split"] == ""}
    assert made.keys() == {"source", "domain", "licence", "length", "year"}
    assert made["domain"]["value"] == "unknown" and made["domain"]["byte_share"] is None
