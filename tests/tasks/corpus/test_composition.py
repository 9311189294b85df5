"""Test the composition of a corpus against counts by plain Python."""

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
    DimensionContext,
    build_composition_rows,
    count_documents_by_dimension,
)
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.split import SplitConfig, split_corpus

PLAIN = "The boats came home late and nobody had seen the light on the hill that evening. "


def write_sources(folder):
    """Write one source with domains, dates and a licence, and one without any of these."""
    rng = random.Random(3)
    hosts = ["big.example"] * 9 + ["small.example", "other", "b.example", "a.example"]
    lines = []
    for number in range(60):
        row = {"text": f"{number} {PLAIN}" * rng.randrange(1, 9)}
        if number % 5:
            row |= {
                "url": f"https://{rng.choice(hosts)}/{number}",
                "date": f"{rng.randrange(1998, 2002)}-03-04",
            }
        lines.append(json.dumps(row))
    (folder / "web.jsonl").write_text("\n".join(lines))
    (folder / "bare.jsonl").write_text("\n".join(f'{{"text": "{n} {PLAIN}"}}' for n in range(9)))
    web_source = {
        "kind": "jsonl",
        "name": "web",
        "path": str(folder / "web.jsonl"),
        "licence": "CC0-1.0",
        "url_field": "url",
        "date_field": "date",
    }
    bare_source = {"kind": "jsonl", "name": "bare", "path": str(folder / "bare.jsonl")}
    return IngestConfig(sources=[web_source, bare_source], partition_bytes=4096)


def count_plainly(rows, max_values):
    """Return (documents, bytes) by (dimension, value, split)."""
    sizes = Counter()
    for row in rows:
        for dimension, value in row["dimensions"].items():
            sizes[dimension, value or "unknown"] += len(row["text"].encode())
    kept_values = set()
    for dimension in {d for d, _ in sizes}:
        ranked_values = [v for d, v in sizes if d == dimension and v not in ("unknown", "other")]
        ranked_values.sort(key=lambda value: (-sizes[dimension, value], value))
        kept_values |= {(dimension, value) for value in [*ranked_values[:max_values], "unknown"]}
    counts = defaultdict(lambda: (0, 0))
    for row in rows:
        for dimension, value in row["dimensions"].items():
            value = value or "unknown"
            value = value if (dimension, value) in kept_values else "other"
            for split in ("", row["split"]):
                documents, size = counts[dimension, value, split]
                size += len(row["text"].encode())
                counts[dimension, value, split] = documents + 1, size
    return dict(counts)


def classify_length(size):
    limits = {"under 200 bytes": 200, "200 to 999 bytes": 1000}
    return next((name for name, limit in limits.items() if size < limit), "1,000 bytes or more")


@pytest.mark.parametrize("max_values", [1, 2, 50])
def test_documents_are_counted_by_every_dimension(session, tmp_path, max_values):
    raw = ingest(write_sources(tmp_path))
    languages = identify_languages(raw, LanguageConfig())
    split_documents = split_corpus(raw, SplitConfig(validation_share=0.3, holdout_share=0.2))
    planted = plant_canaries(
        split_documents,
        PlantCanariesConfig(
            enabled=True,
            copy_counts=(0, 2),
            secrets_per_count=2,
            passages_per_count=0,
            records_per_count=0,
            associations_per_share=0,
        ),
    )
    config = ProfileConfig(max_composition_values=max_values, length_bounds_bytes=(200, 1000))
    profile = profile_corpus(planted, planted, {"ingest": raw, "language": languages}, {}, config)
    language_by_id = {r["doc_id"]: r["language"] for r in languages["signals"].read().to_pylist()}
    rows = planted["documents"].read().to_pylist()
    assert len(planted["documents"].parts) > 2
    for row in rows:
        row["dimensions"] = {
            "source": row["source"],
            "domain": row["domain"],
            "year": (row["date"] or "")[:4],
            "licence": {"web": "CC0-1.0"}.get(row["source"]),
            "language": language_by_id.get(row["doc_id"])
            or ("en" if row["source"].startswith("planted/") else None),
            "length": classify_length(len(row["text"].encode())),
        }
    composition = {
        (r["dimension"], r["value"], r["split"]): (r["documents"], r["bytes"], r["byte_share"])
        for r in profile["composition"].read().to_pylist()
    }
    expected = count_plainly(rows, max_values)
    assert {key: counts[:2] for key, counts in composition.items()} == expected
    for (dimension, value, split), (_, size, share) in composition.items():
        total_bytes = sum(
            b for (d, _, p), (_, b) in expected.items() if (d, p) == (dimension, split)
        )
        assert share == size / total_bytes, value
    assert ("domain", "unknown", "") in composition and ("domain", "other", "train") in composition


def test_no_counts_give_no_composition():
    assert build_composition_rows(COUNTS_SCHEMA.empty_table(), 5) == []


def test_without_the_stage_language_there_is_no_such_dimension():
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
    rows = pa.concat_tables(
        [*count_documents_by_dimension(batch, DimensionContext(pa.array([0]), None, {}, ()))]
    )
    row_by_dimension = {
        r["dimension"]: r for r in build_composition_rows(rows, 5) if r["split"] == ""
    }
    assert row_by_dimension.keys() == {"source", "domain", "licence", "length", "year"}
    assert (
        row_by_dimension["domain"]["value"] == "unknown"
        and row_by_dimension["domain"]["byte_share"] is None
    )


def test_planted_documents_have_the_language_in_which_they_are_composed():
    sources = ["s", "s", "planted/passage", "planted/record"]
    ids = hash_to_ids(["a", "b", "c", "d"])
    batch = pa.record_batch(
        fill_document_columns(
            {
                "doc_id": ids,
                "source": sources,
                "text": pa.array([""] * 4, pa.large_string()),
                "split": ["train"] * 4,
                "cluster": ids,
                "text_hash": ids,
            }
        ),
        schema=DOCUMENTS,
    )
    languages = pa.array(["de", None, None, "pcm"])
    context = DimensionContext(pa.array([1] * 4), languages, {}, ())
    rows = build_composition_rows(
        pa.concat_tables([*count_documents_by_dimension(batch, context)]), 5
    )
    documents_by_language = {
        row["value"]: row["documents"]
        for row in rows
        if row["dimension"] == "language" and row["split"] == ""
    }
    assert documents_by_language == {"de": 1, "unknown": 1, "en": 1, "pcm": 1}
