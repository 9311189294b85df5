"""The corpus depends on the texts alone: not on files, their names and order, or on workers."""

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import Mapper, ProcessMapper, Session, Store, make_mapper, open_session
from hallmark.tasks.corpus.contamination import ContaminationConfig, find_contamination
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig, find_personal_data
from hallmark.tasks.corpus.find_repeats import RepeatsConfig, find_repeats
from hallmark.tasks.corpus.find_toxic_spans import FindToxicSpansConfig, find_toxic_spans
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.quality import QualityConfig, measure_quality
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.redact_spans import (
    CutRepeatsConfig,
    CutToxicConfig,
    RedactSpansConfig,
    redact_spans,
)
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig, measure_removal_effects
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer

SECRET = b"one secret for all stores here"


def texts():
    """Three hundred of some hundred bytes, with copies, near copies, addresses, people and
    rudeness."""
    draw = random.Random(7)
    words = [f"w{number:x}" for number in range(400)]
    found = [" ".join(draw.choices(words, k=draw.randint(60, 110))) for _ in range(240)]
    found += draw.choices(found, k=25)
    found += [f"{text} and more" for text in draw.choices(found, k=20)]
    found += [
        f"Letter {n}: write to jane{n % 3}@corp.example, " + found[n][:200] for n in range(10)
    ]
    found[:60] = [
        f"The {('women', 'Muslims')[n % 2]} say {text}" for n, text in enumerate(found[:60])
    ]
    return [*found, *["You are a damned stupid idiot."] * 5]


def write(folder, kind):
    """The same texts in files of one kind, however named, in whatever order."""
    folder.mkdir(parents=True)
    rows = [{"text": text} for text in texts()]
    if kind != "jsonl":
        random.Random(kind).shuffle(rows)
    lines = [json.dumps(row) + "\n" for row in rows]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "t.parquet", row_group_size=70)
    elif kind == "split":
        for number, name in enumerate(("z", "b/a", "b/c", "a", "0")):
            path = folder / f"{name}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(lines[number::5]))
    elif kind == "gz":
        for name, some in (("y", lines[:100]), ("x", lines[100:])):
            (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(some).encode()))
    else:
        (folder / "all.jsonl").write_text("".join(lines))
    return {"kind": "parquet" if kind == "parquet" else "jsonl", "name": "s", "path": str(folder)}


def curate(source, threshold=0.7, quantiles=(0.0, 0.5, 1.0), part_bytes=16_000, whole=True):
    """The stages of the corpus, as the pipeline strings them together; ``whole``: with those that
    need no other input but take longest."""
    made = {"ingest": ingest(IngestConfig(sources=[source], partition_bytes=part_bytes))}
    made["deduplicate"] = deduplicate(made["ingest"], {}, DeduplicateConfig())
    made["language"] = spoken = identify_languages(made["deduplicate"], LanguageConfig())
    made["quality"] = figures = measure_quality(made["deduplicate"], QualityConfig())
    made["identities"] = mentioned = find_identities(made["deduplicate"], IdentitiesConfig())
    signals = {"language": spoken, "quality": figures, "identities": mentioned}
    made["select"] = chosen = select_documents(made["deduplicate"], signals, SelectConfig())
    made["deduplicate_near"] = apart = deduplicate_near(chosen, {}, DeduplicateNearConfig())
    made["find_repeats"] = found = find_repeats(
        apart, {}, RepeatsConfig(enabled=True, min_bytes=100)
    )
    cut_repeats = redact_spans.with_label("cut_repeats")
    made["cut_repeats"] = apart = cut_repeats(apart, {"repeats": found}, CutRepeatsConfig())
    made["find_personal_data"] = found = find_personal_data(apart, PersonalDataConfig())
    made["redact_spans"] = redact_spans(apart, {"personal": found}, RedactSpansConfig())
    again = deduplicate.with_label("deduplicate_redacted")
    made["deduplicate_redacted"] = masked = again(made["redact_spans"], {}, DeduplicateConfig())
    made["score_toxicity"] = scores = score_toxicity(masked, spoken, ScoreToxicityConfig())
    config = SelectConfig(rules={"toxicity": {"lt": threshold}})
    made["contamination"] = shared = find_contamination(masked, ContaminationConfig())
    signals = {"toxicity": scores, "contamination": shared}
    made["select_scored"] = kept = select_documents.with_label("select_scored")(
        masked, signals, config
    )
    made["find_toxic_spans"] = found = find_toxic_spans(
        kept, scores, FindToxicSpansConfig(enabled=True, toxicity_threshold=0.02)
    )
    made["cut_toxic"] = kept = redact_spans.with_label("cut_toxic")(
        kept, {"toxic": found}, CutToxicConfig()
    )
    made["split"] = parted = split_corpus(kept, SplitConfig())
    planting = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 2),
        secrets_per_count=3,
        passages_per_count=2,
        records_per_count=2,
        associations_per_share=0,
    )
    made["plant_canaries"] = planted = plant_canaries(parted, planting)
    history = dict(made)
    config = ProfileConfig(quantiles=quantiles)
    made["profile"] = profile_corpus(planted, planted, history, {}, config)
    if whole:
        made["removal_effects"] = measure_removal_effects(
            masked, history, RemovalEffectsConfig(max_sentences_per_group=5)
        )
        vocabulary = TokenizerConfig(vocab_size=400)
        made["train_tokenizer"] = tokenizer = train_tokenizer(planted, mentioned, vocabulary)
        made["pack"] = pack(planted, tokenizer, PackConfig(context=64))
    return made


def run(store: Path | Store, source: dict, mapper: Mapper | None = None, **settings):
    """What the stages left, and which of them ran."""
    seen = []

    def listen(event):
        if event.kind == "done":
            seen.append(event.label)

    opened = store if isinstance(store, Store) else Store(store)
    opened.set_secret_if_absent(SECRET)
    session = Session(opened, listener=listen)
    session.mapper = mapper or session.mapper
    with open_session(session):
        return curate(source, **settings), seen


def contents(made, raw=True):
    """What each stage left; of ingest all tables but those that say where documents are from.
    Without ``raw`` nothing that names the kind of the files or counts their raw bytes."""
    found = {label: a.content_digest for label, a in made.items() if label != "ingest"}
    found |= {f"ingest {name}": t.digest for name, t in made["ingest"].tables.items()}
    unlike = {"ingest origins", "ingest quarantine"}
    unlike |= set() if raw else {"ingest accounts", "ingest sources", "profile"}
    return {name: content for name, content in found.items() if name not in unlike}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    source = write(folder / "in", "jsonl")
    made, seen = run(folder / "store", source)
    return folder, source, made, seen


def test_the_corpus_is_one_worth_the_name(first):
    _, _, made, seen = first
    assert seen == list(made)
    assert len(made["ingest"]["documents"].parts) >= 8
    for label in (
        "deduplicate",
        "deduplicate_near",
        "cut_repeats",
        "redact_spans",
        "select_scored",
        "cut_toxic",
        "plant_canaries",
    ):
        assert made[label]["ledger"].row_count > 0
    for label, name in (("removal_effects", "removal_rates"), ("pack", "train")):
        assert made[label][name].row_count > 0
    assert made["ingest"]["documents"].row_count == 300


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("split", 0),
        ("gz", 0),
        ("parquet", 0),
        pytest.param("split", 2, marks=pytest.mark.slow),
        pytest.param("gz", 7, marks=pytest.mark.slow),
    ],
)
def test_files_their_names_their_order_and_workers_do_not_matter(first, tmp_path, kind, workers):
    mapper = ProcessMapper(workers) if workers else None
    whole = (kind, workers) in (("split", 0), ("gz", 7))
    made, _ = run(tmp_path / "store", write(tmp_path / "in", kind), mapper, whole=whole)
    raw = kind != "parquet"  # whose rows are of other raw bytes
    assert contents(made, raw).items() <= contents(first[2], raw).items()


def test_into_how_many_parts_documents_are_cut_does_not_matter(first, tmp_path):
    made, _ = run(tmp_path / "store", first[1], part_bytes=80_000, whole=False)
    for label, artifact in made.items():
        if "documents" in artifact.tables:
            here, there = artifact["documents"], first[2][label]["documents"]
            assert len(here.parts) < len(there.parts)
            assert here.read().sort_by("doc_id") == there.read().sort_by("doc_id"), label


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_corpus_made_on_ray_is_the_same(first, tmp_path, workers):
    source = write(tmp_path / "in", "gz")
    mapper = make_mapper("ray", workers)
    made, _ = run(tmp_path / "store", source, mapper, whole=workers == 2)
    assert contents(made).items() <= contents(first[2]).items()


def test_a_corpus_in_a_bucket_is_the_same(first, tmp_path, bucket):
    store = Store("s3://hallmark/corpus", tmp_path / "work")
    made, _ = run(store, write(tmp_path / "in", "split"), whole=False)
    assert contents(made).items() <= contents(first[2]).items()


def test_a_renamed_file_reruns_ingest_and_nothing_else(first):
    folder, source, made, _ = first
    (folder / "in/all.jsonl").rename(folder / "in/renamed.jsonl")
    again, seen = run(folder / "store", source)
    assert seen == ["ingest"]
    assert again["profile"].fingerprint == made["profile"].fingerprint
    assert again["ingest"]["origins"].digest != made["ingest"]["origins"].digest
    (folder / "in/renamed.jsonl").rename(folder / "in/all.jsonl")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The ledger holds the threshold, and the profile counts reasons out of it.
        ({"threshold": 0.71}, ["select_scored", "profile", "removal_effects"]),
        ({"quantiles": (0.0, 1.0)}, ["profile"]),
    ],
)
def test_a_setting_that_removes_no_other_document_reruns_what_reads_its_ledger(
    first, settings, expected
):
    folder, source, made, _ = first
    again, seen = run(folder / "store", source, **settings)
    assert seen == expected
    rerun = set(expected)
    assert {k: v for k, v in contents(again).items() if k not in rerun} == {
        k: v for k, v in contents(made).items() if k not in rerun
    }
    assert again["select_scored"]["documents"].digest == made["select_scored"]["documents"].digest
