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


def make_texts():
    """Make 300 texts of some hundred bytes: copies, near copies, addresses, groups, rude texts."""
    rng = random.Random(7)
    words = [f"w{number:x}" for number in range(400)]
    documents = [" ".join(rng.choices(words, k=rng.randint(60, 110))) for _ in range(240)]
    documents += rng.choices(documents, k=25)
    documents += [f"{text} and more" for text in rng.choices(documents, k=20)]
    documents += [
        f"Letter {n}: write to jane{n % 3}@corp.example, " + documents[n][:200] for n in range(10)
    ]
    documents[:60] = [
        f"The {('women', 'Muslims')[n % 2]} say {text}" for n, text in enumerate(documents[:60])
    ]
    return [*documents, *["You are a damned stupid idiot."] * 5]


def write_files(folder, kind):
    """Write the texts to files; each kind has its own format, file names and order."""
    folder.mkdir(parents=True)
    rows = [{"text": text} for text in make_texts()]
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
        for name, file_lines in (("y", lines[:100]), ("x", lines[100:])):
            (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(file_lines).encode()))
    else:
        (folder / "all.jsonl").write_text("".join(lines))
    return {"kind": "parquet" if kind == "parquet" else "jsonl", "name": "s", "path": str(folder)}


def run_stages(
    source, threshold=0.7, quantiles=(0.0, 0.5, 1.0), part_bytes=16_000, with_training=True
):
    """Run all stages of the corpus as the pipeline does.

    ``with_training`` adds removal effects, tokenizer and packing, which take longest.
    """
    artifacts = {"ingest": ingest(IngestConfig(sources=[source], partition_bytes=part_bytes))}
    artifacts["deduplicate"] = deduplicate(artifacts["ingest"], {}, DeduplicateConfig())
    artifacts["language"] = languages = identify_languages(
        artifacts["deduplicate"], LanguageConfig()
    )
    artifacts["quality"] = quality = measure_quality(artifacts["deduplicate"], QualityConfig())
    artifacts["identities"] = identities = find_identities(
        artifacts["deduplicate"], IdentitiesConfig()
    )
    signals = {"language": languages, "quality": quality, "identities": identities}
    artifacts["select"] = selected = select_documents(
        artifacts["deduplicate"], signals, SelectConfig()
    )
    artifacts["deduplicate_near"] = documents = deduplicate_near(
        selected, {}, DeduplicateNearConfig()
    )
    artifacts["find_repeats"] = spans = find_repeats(
        documents, {}, RepeatsConfig(enabled=True, min_bytes=100)
    )
    cut_repeats = redact_spans.with_label("cut_repeats")
    artifacts["cut_repeats"] = documents = cut_repeats(
        documents, {"repeats": spans}, CutRepeatsConfig()
    )
    artifacts["find_personal_data"] = spans = find_personal_data(documents, PersonalDataConfig())
    artifacts["redact_spans"] = redact_spans(documents, {"personal": spans}, RedactSpansConfig())
    deduplicate_redacted = deduplicate.with_label("deduplicate_redacted")
    artifacts["deduplicate_redacted"] = redacted = deduplicate_redacted(
        artifacts["redact_spans"], {}, DeduplicateConfig()
    )
    artifacts["score_toxicity"] = scores = score_toxicity(
        redacted, languages, ScoreToxicityConfig()
    )
    config = SelectConfig(rules={"toxicity": {"lt": threshold}})
    artifacts["contamination"] = contamination = find_contamination(redacted, ContaminationConfig())
    signals = {"toxicity": scores, "contamination": contamination}
    artifacts["select_scored"] = selected = select_documents.with_label("select_scored")(
        redacted, signals, config
    )
    artifacts["find_toxic_spans"] = spans = find_toxic_spans(
        selected, scores, FindToxicSpansConfig(enabled=True, toxicity_threshold=0.02)
    )
    artifacts["cut_toxic"] = selected = redact_spans.with_label("cut_toxic")(
        selected, {"toxic": spans}, CutToxicConfig()
    )
    artifacts["split"] = split_artifact = split_corpus(selected, SplitConfig())
    planting_config = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 2),
        secrets_per_count=3,
        passages_per_count=2,
        records_per_count=2,
        associations_per_share=0,
    )
    artifacts["plant_canaries"] = planted = plant_canaries(split_artifact, planting_config)
    history = dict(artifacts)
    config = ProfileConfig(quantiles=quantiles)
    artifacts["profile"] = profile_corpus(planted, planted, history, {}, config)
    if with_training:
        artifacts["removal_effects"] = measure_removal_effects(
            redacted, history, RemovalEffectsConfig(max_sentences_per_group=5)
        )
        tokenizer_config = TokenizerConfig(vocab_size=400)
        artifacts["train_tokenizer"] = tokenizer = train_tokenizer(
            planted, identities, tokenizer_config
        )
        artifacts["pack"] = pack(planted, tokenizer, PackConfig(context=64))
    return artifacts


def run_in_store(store: Path | Store, source: dict, mapper: Mapper | None = None, **settings):
    """Run all stages in a store; return their artifacts and the labels of those that ran."""
    labels = []

    def listen(event):
        if event.kind == "done":
            labels.append(event.label)

    opened_store = store if isinstance(store, Store) else Store(store)
    opened_store.set_secret_if_absent(SECRET)
    session = Session(opened_store, listener=listen)
    session.mapper = mapper or session.mapper
    with open_session(session):
        return run_stages(source, **settings), labels


def collect_digests(artifacts, with_raw_bytes=True):
    """Collect the digests of all artifacts, and of the tables of ingest that name no files.

    Without raw bytes, tables that name the kind of the files or count their bytes are excluded.
    """
    digests = {
        label: artifact.content_digest for label, artifact in artifacts.items() if label != "ingest"
    }
    digests |= {
        f"ingest {name}": table.digest for name, table in artifacts["ingest"].tables.items()
    }
    excluded = {"ingest origins", "ingest quarantine"}
    excluded |= set() if with_raw_bytes else {"ingest accounts", "ingest sources", "profile"}
    return {name: digest for name, digest in digests.items() if name not in excluded}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    source = write_files(folder / "in", "jsonl")
    artifacts, labels = run_in_store(folder / "store", source)
    return folder, source, artifacts, labels


def test_the_reference_corpus_exercises_every_stage(reference):
    _, _, artifacts, labels = reference
    assert labels == list(artifacts)
    assert len(artifacts["ingest"]["documents"].parts) >= 8
    for label in (
        "deduplicate",
        "deduplicate_near",
        "cut_repeats",
        "redact_spans",
        "select_scored",
        "cut_toxic",
        "plant_canaries",
    ):
        assert artifacts[label]["ledger"].row_count > 0
    for label, name in (("removal_effects", "removal_rates"), ("pack", "train")):
        assert artifacts[label][name].row_count > 0
    assert artifacts["ingest"]["documents"].row_count == 300


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
def test_files_names_order_and_workers_do_not_matter(reference, tmp_path, kind, workers):
    mapper = ProcessMapper(workers) if workers else None
    with_training = (kind, workers) in (("split", 0), ("gz", 7))
    artifacts, _ = run_in_store(
        tmp_path / "store", write_files(tmp_path / "in", kind), mapper, with_training=with_training
    )
    with_raw_bytes = kind != "parquet"  # its rows have other raw bytes
    assert (
        collect_digests(artifacts, with_raw_bytes).items()
        <= collect_digests(reference[2], with_raw_bytes).items()
    )


def test_the_number_of_partitions_does_not_matter(reference, tmp_path):
    artifacts, _ = run_in_store(
        tmp_path / "store", reference[1], part_bytes=80_000, with_training=False
    )
    for label, artifact in artifacts.items():
        if "documents" in artifact.tables:
            table, reference_table = artifact["documents"], reference[2][label]["documents"]
            assert len(table.parts) < len(reference_table.parts)
            assert table.read().sort_by("doc_id") == reference_table.read().sort_by("doc_id"), label


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_corpus_computed_on_ray_is_the_same(reference, tmp_path, workers):
    source = write_files(tmp_path / "in", "gz")
    mapper = make_mapper("ray", workers)
    artifacts, _ = run_in_store(tmp_path / "store", source, mapper, with_training=workers == 2)
    assert collect_digests(artifacts).items() <= collect_digests(reference[2]).items()


def test_a_corpus_in_a_bucket_is_the_same(reference, tmp_path, bucket):
    store = Store("s3://hallmark/corpus", tmp_path / "work")
    artifacts, _ = run_in_store(store, write_files(tmp_path / "in", "split"), with_training=False)
    assert collect_digests(artifacts).items() <= collect_digests(reference[2]).items()


def test_a_renamed_file_reruns_only_ingest(reference):
    folder, source, artifacts, _ = reference
    (folder / "in/all.jsonl").rename(folder / "in/renamed.jsonl")
    rerun_artifacts, labels = run_in_store(folder / "store", source)
    assert labels == ["ingest"]
    assert rerun_artifacts["profile"].fingerprint == artifacts["profile"].fingerprint
    assert rerun_artifacts["ingest"]["origins"].digest != artifacts["ingest"]["origins"].digest
    (folder / "in/renamed.jsonl").rename(folder / "in/all.jsonl")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The ledger contains the threshold, and the profile counts the reasons in it.
        ({"threshold": 0.71}, ["select_scored", "profile", "removal_effects"]),
        ({"quantiles": (0.0, 1.0)}, ["profile"]),
    ],
)
def test_a_setting_that_removes_no_other_document_reruns_only_dependent_stages(
    reference, settings, expected
):
    folder, source, artifacts, _ = reference
    rerun_artifacts, labels = run_in_store(folder / "store", source, **settings)
    assert labels == expected
    rerun_labels = set(expected)
    assert {k: v for k, v in collect_digests(rerun_artifacts).items() if k not in rerun_labels} == {
        k: v for k, v in collect_digests(artifacts).items() if k not in rerun_labels
    }
    assert (
        rerun_artifacts["select_scored"]["documents"].digest
        == artifacts["select_scored"]["documents"].digest
    )
