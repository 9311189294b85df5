"""Failures of a kernel on one document: each stage loses only that document."""

import logging
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given as given_values
from hypothesis import settings
from hypothesis import strategies as st

from hallmark.tasks.contract import ID_TYPE, HallmarkError, StageContext, concat_spilled_tables
from hallmark.tasks.corpus.contamination import ContaminationConfig, find_contamination
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import (
    SHINGLES,
    DeduplicateNearConfig,
    ShingleStore,
    deduplicate_near,
)
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig, find_personal_data
from hallmark.tasks.corpus.group_effects import removed_clusters
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.quality import QualityConfig, measure_quality
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig, measure_removal_effects
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.measures.failed_documents import run_with_failing_texts_emptied
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.corpora import given

BAD = "The document that no library can read, whatever it is asked about it."
TEXTS = [
    *(
        f"Letter {n}: the women of the harbour wrote to jane{n}@corp.example on day {n * 7}."
        for n in range(9)
    ),
    BAD,
    *(f"Notice {n}: the ferry leaves at {n} and comes back when it can." for n in range(7)),
    "Notice 6: the ferry leaves at 6 and comes back when it can.\n",
]


class KernelError(Exception):
    """An error as raised by a library."""


def fail_on_bad(original, columns=True):
    """Wrap a kernel so that it fails on texts that contain BAD."""

    def kernel(texts, *more, **options):
        values = texts.to_pylist() if columns else texts
        if any(BAD in value for value in values):
            raise KernelError("in words that hold " + BAD)
        return original(texts, *more, **options)

    return kernel


def break_kernels(monkeypatch, *paths):
    for path in paths:
        module, name = path.rsplit(".", 1)
        original = getattr(__import__(module, fromlist=[name]), name)
        monkeypatch.setattr(path, fail_on_bad(original))


def count_failed(artifact):
    return {r["metric"]: r["value"] for r in artifact.read_telemetry().to_pylist()}[
        "failed_documents"
    ]


def read_rows(artifact, table):
    return artifact[table].read().to_pylist()


def find_bad_id(documents):
    table = documents["documents"].read(["doc_id", "text"])
    return table.filter(pc.equal(table["text"], BAD))["doc_id"][0].as_py()


def make_contamination_config(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text('{"text": "comes back when it can"}\n')
    return ContaminationConfig(evaluation_sets=[{"name": "held", "path": str(path)}])


SIGNALS = {
    "language": (
        identify_languages,
        LanguageConfig(),
        "hallmark.tasks.corpus.language.estimate_languages",
    ),
    "quality": (
        measure_quality,
        QualityConfig(),
        "hallmark.tasks.corpus.quality.compute_quality_table",
    ),
    "identities": (
        find_identities,
        IdentitiesConfig(),
        "hallmark.tasks.corpus.identities.find_term_mentions",
    ),
    "contamination": (
        find_contamination,
        make_contamination_config,
        "hallmark.tasks.corpus.contamination.find_overlaps",
    ),
}


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("parts", [1, 4])
def test_a_failing_document_has_null_signals_and_others_are_unchanged(
    session, monkeypatch, tmp_path, caplog, name, parts
):
    run_stage, config, path = SIGNALS[name]
    config = config(tmp_path) if callable(config) else config
    documents = given(TEXTS, parts=parts)
    # Compute the expected signals first, from another source, which makes another artifact.
    expected_by_id = {
        r["doc_id"]: r
        for r in read_rows(run_stage(given(TEXTS, ["s"] * len(TEXTS)), config), "signals")
    }
    break_kernels(monkeypatch, path)
    with caplog.at_level(logging.WARNING, "hallmark"):
        result = run_stage(documents, config)
    bad_id = find_bad_id(documents)
    signal_rows = read_rows(result, "signals")
    assert [r["doc_id"] for r in signal_rows] == [
        r["doc_id"] for r in read_rows(documents, "documents")
    ]
    (row,) = (r for r in signal_rows if r["doc_id"] == bad_id)
    assert {v for k, v in row.items() if k != "doc_id"} == {None}
    assert [r for r in signal_rows if r["doc_id"] != bad_id] == [
        expected_by_id[r["doc_id"]] for r in signal_rows if r["doc_id"] != bad_id
    ]
    assert count_failed(result) == 1
    assert f"failed on 1 of {len(TEXTS)} documents, starting with {bad_id.hex()}" in caplog.text
    assert "(failed: KernelError)" in caplog.text and BAD not in caplog.text
    # For a rule the value is missing, so on_missing applies.
    signal = {
        "language": {"any_of": ["en"]},
        "quality": {"signal": "word_count", "ge": 1},
        "identities": {"signal": "identity_mentions", "ge": 0},
        "contamination": {"le": 99},
    }[name]
    for on_missing in ("keep", "remove"):
        rules = SelectConfig(rules={name: {**signal, "on_missing": on_missing}})
        kept_texts = [
            r["text"]
            for r in read_rows(select_documents(documents, {name: result}, rules), "documents")
        ]
        assert (BAD in kept_texts) == (on_missing == "keep")


def accounts_by_unit(artifact):
    return {r["unit"]: r for r in read_rows(artifact, "accounts")}


def check_quarantined(documents, artifact, reason):
    """Expect only the failing document in quarantine, with its reason and in the accounts."""
    bad_id = find_bad_id(documents)
    quarantined = [r for r in read_rows(artifact, "ledger") if r["action"] == "quarantined"]
    assert [(r["doc_id"], r["reason"], r["bytes_before"]) for r in quarantined] == [
        (bad_id, reason, len(BAD.encode()))
    ]
    assert (
        accounts_by_unit(artifact)["rows"]["quarantined"],
        accounts_by_unit(artifact)["bytes"]["quarantined"],
    ) == (
        1,
        len(BAD.encode()),
    )


@pytest.mark.parametrize("stage", ["exact", "near"])
@pytest.mark.parametrize("parts", [1, 4])
def test_documents_that_cannot_be_compared_are_quarantined(session, monkeypatch, stage, parts):
    documents = given([*TEXTS, BAD.upper(), ""], parts=parts)
    run_stage, config, kernel = {
        "exact": (deduplicate, DeduplicateConfig(), "deduplicate.fold_invisible_differences"),
        "near": (deduplicate_near, DeduplicateNearConfig(), "deduplicate_near.normalise_texts"),
    }[stage]
    break_kernels(monkeypatch, f"hallmark.tasks.corpus.{kernel}")
    result = run_stage(documents, {}, config)
    check_quarantined(documents, result, "failed: KernelError")
    signature_ids = result["signatures"].read(["doc_id"])["doc_id"].to_pylist()
    # The failing document has no signature.
    assert signature_ids == result["documents"].read(["doc_id"])["doc_id"].to_pylist()
    removed = [r for r in read_rows(result, "ledger") if r["action"] == "removed"]
    assert len(removed) == 1  # the notice that occurs twice
    kept_texts = {r["text"] for r in read_rows(result, "documents")}
    assert BAD not in kept_texts and {BAD.upper(), ""} <= kept_texts
    assert len(kept_texts) == len(TEXTS) and count_failed(result) == 1


@pytest.mark.parametrize("parts", [1, 4])
def test_documents_that_cannot_be_searched_are_quarantined(session, monkeypatch, parts):
    documents = given(TEXTS, parts=parts)
    break_kernels(monkeypatch, "hallmark.tasks.corpus.find_personal_data.find_spans_by_row")
    spans = find_personal_data(documents, PersonalDataConfig())
    redacted = redact_spans(documents, {"personal": spans}, RedactSpansConfig())
    check_quarantined(documents, redacted, "UNREADABLE")
    texts = {r["text"] for r in read_rows(redacted, "documents")}
    assert BAD not in texts and len(texts) == len(TEXTS) - 1
    assert sum("<EMAIL>" in text for text in texts) == 9 and count_failed(spans) == 1


def test_a_library_error_on_one_number_quarantines_only_its_document(session, monkeypatch):
    """stdnum fails on one of two account numbers."""
    from stdnum import iban

    original = iban.is_valid

    def is_valid(number, **options):
        if number.startswith("DE"):
            raise RecursionError("maximum recursion depth exceeded")
        return original(number, **options)

    monkeypatch.setattr(iban, "is_valid", is_valid)
    documents = given(["Pay to DE89370400440532013000.", "Pay to GB29NWBK60161331926819."])
    spans = find_personal_data(documents, PersonalDataConfig())
    assert sorted(r["type"] for r in read_rows(spans, "spans")) == ["IBAN", "UNREADABLE"]
    kept = read_rows(redact_spans(documents, {"personal": spans}, RedactSpansConfig()), "documents")
    assert [r["text"] for r in kept] == ["Pay to <IBAN>."]


def test_the_profile_counts_a_failing_document_but_not_its_words(session, monkeypatch):
    documents = given(TEXTS, splits=["train"] * len(TEXTS), kind="split")
    planted = plant_canaries(documents, PlantCanariesConfig())
    history = {
        "identities": find_identities(documents, IdentitiesConfig()),
        "plant_canaries": planted,
    }
    break_kernels(monkeypatch, "hallmark.tasks.corpus.profile.find_term_mentions")
    profile = profile_corpus(planted, planted, history, {}, ProfileConfig())
    assert [r["documents"] for r in read_rows(profile, "sources")] == [len(TEXTS)]
    women_rows = [r for r in read_rows(profile, "identities") if r["term"] == "women"]
    assert [r["documents"] for r in women_rows] == [9] and count_failed(profile) == 1


def test_no_sentence_of_a_failing_document_is_swapped(session, monkeypatch):
    documents = given([*TEXTS, "The women of the harbour. " + BAD])
    history = {
        "deduplicate": documents,
        "identities": find_identities(documents, IdentitiesConfig()),
        "language": identify_languages(documents, LanguageConfig()),
    }
    break_kernels(
        monkeypatch, "hallmark.tasks.corpus.group_effects.group_sentences.split_into_sentences"
    )
    effects = measure_removal_effects(documents, history, RemovalEffectsConfig())
    swapped_ids = [
        r["doc_id"] for r in read_rows(effects, "swap_scores") if r["origin"] == "corpus"
    ]
    # The second bad document mentions no group, so its sentences are not split.
    assert len(swapped_ids) == 9 and count_failed(effects) == 1


def test_a_failing_document_is_missing_from_tokenizer_fertility(session, monkeypatch):
    splits = ["train"] * 4 + ["validation"] * (len(TEXTS) - 4)
    documents = given(TEXTS, splits=splits, kind="split")
    signals = find_identities(documents, IdentitiesConfig())
    before = train_tokenizer(documents, signals, TokenizerConfig(vocab_size=300))
    break_kernels(monkeypatch, "hallmark.tasks.training.train_tokenizer.detect_languages")
    # Another vocabulary size makes another artifact.
    after = train_tokenizer(documents, signals, TokenizerConfig(vocab_size=301))
    counts_before, counts_after = (
        {
            (r["kind"], r["name"]): (r["documents"], r["bytes"])
            for r in read_rows(artifact, "fertility")
        }
        for artifact in (before, after)
    )
    size = len(BAD.encode())
    (source,) = (key for key in counts_before if key[0] == "source")
    assert counts_after[source] == (counts_before[source][0] - 1, counts_before[source][1] - size)
    assert (
        counts_after["identity", "women"]
        == counts_before["identity", "women"]
        == (5, counts_after["identity", "women"][1])
    )
    assert count_failed(after) == 1


def test_documents_on_which_the_tokenizer_fails_are_not_packed(session, monkeypatch):
    splits = ["train"] * 12 + ["holdout"] * (len(TEXTS) - 12)
    documents = given(TEXTS, splits=splits, kind="split")
    tokenizer = train_tokenizer(documents, None, TokenizerConfig(vocab_size=300))
    break_kernels(monkeypatch, "hallmark.tasks.training.pack.encode_texts_with_char_positions")
    packed = pack(documents, tokenizer, PackConfig(context=16))
    check_quarantined(documents, packed, "failed: KernelError")
    packed_ids = {r["doc_id"] for r in read_rows(packed, "spans")}
    assert (
        len(packed_ids) == 11
        and find_bad_id(documents) not in packed_ids
        and count_failed(packed) == 1
    )


def test_the_stage_fails_if_all_documents_fail(session, monkeypatch):
    monkeypatch.setattr("tests.tasks.corpus.test_document_failures.BAD", "e")
    break_kernels(
        monkeypatch,
        "hallmark.tasks.corpus.language.estimate_languages",
        "hallmark.tasks.corpus.deduplicate.fold_invisible_differences",
    )
    documents = given(TEXTS)
    for run_stage in (
        lambda: identify_languages(documents, LanguageConfig()),
        lambda: deduplicate(documents, {}, DeduplicateConfig()),
    ):
        with pytest.raises(
            HallmarkError,
            match=r"failed on all 18 documents, .* documents are probably not the cause",
        ):
            run_stage()


def test_documents_without_shingles_match_no_other_document(monkeypatch, tmp_path):
    """Among documents that rules removed, two failing ones do not match each other either."""
    texts = [
        "one " + BAD,
        "two " + BAD,
        "an ordinary text of some words",
        "and its copy",
        "and its copy",
    ]
    doc_id = pa.array([bytes([n]) * 16 for n in range(5)], ID_TYPE)
    ledger = pa.table({"doc_id": doc_id, "action": ["removed"] * 5})
    batch = pa.record_batch({"doc_id": doc_id, "text": pa.array(texts, pa.large_string())})
    documents = SimpleNamespace(iter_batches=lambda names: [batch])
    break_kernels(monkeypatch, "hallmark.tasks.corpus.deduplicate_near.normalise_texts")
    config = DeduplicateNearConfig()
    parts = (documents, SimpleNamespace(read=lambda names: ledger))
    results = StageContext(tmp_path, {}).map_items(
        removed_clusters.sketch_removed_documents, [parts], config
    )
    shingle_store = ShingleStore(concat_spilled_tables(results, "shingles", SHINGLES)["shingles"])
    assert removed_clusters.find_cluster_heads(
        concat_spilled_tables(results, "band_hashes", removed_clusters.BANDS_SCHEMA),
        shingle_store,
        config,
    ).tolist() == [
        0,
        1,
        2,
        3,
        3,
    ]


@settings(deadline=None)
@given_values(
    st.lists(st.sampled_from("abX")), st.sampled_from([None, MemoryError, OSError, ImportError])
)
def test_a_kernel_runs_again_without_the_failing_documents(texts, machine_error):
    def kernel(batch):
        result = batch["text"].to_pylist()
        if "X" in result:
            raise (machine_error or ValueError)("X")
        return result

    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    if machine_error and "X" in texts:  # such errors are not caused by a document
        with pytest.raises(machine_error):
            run_with_failing_texts_emptied(kernel, batch)
        return
    result, faults = run_with_failing_texts_emptied(kernel, batch)
    assert result == ["" if text == "X" else text for text in texts]
    assert faults.rows.to_pylist() == [i for i, text in enumerate(texts) if text == "X"]
    assert set(faults.reasons.to_pylist()) <= {"failed: ValueError"}


def test_an_error_that_no_single_document_causes_is_raised():
    def kernel(batch):
        if len(batch) > 2:
            raise ValueError("too many together")
        return batch

    batch = pa.record_batch({"text": pa.array(["a", "b", "c"], pa.large_string())})
    with pytest.raises(ValueError, match="too many together"):
        run_with_failing_texts_emptied(kernel, batch)
