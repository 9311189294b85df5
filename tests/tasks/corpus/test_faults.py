"""One bad document in each stage: a fault in the kernel for one text costs that document alone."""

import logging
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given as drawn
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
from hallmark.tasks.measures.failed_documents import run_isolating_failures
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
    "Notice 6: the  ferry leaves at 6 and comes back when it can.",
]


class Cannot(Exception):
    """What libraries raise."""


def broken(original, columns=True):
    """A kernel that cannot do its work where BAD is in its way."""

    def kernel(texts, *more, **options):
        values = texts.to_pylist() if columns else texts
        if any(BAD in value for value in values):
            raise Cannot("in words that hold " + BAD)
        return original(texts, *more, **options)

    return kernel


def breaks(monkeypatch, *places):
    for place in places:
        module, name = place.rsplit(".", 1)
        original = getattr(__import__(module, fromlist=[name]), name)
        monkeypatch.setattr(place, broken(original))


def note(artifact):
    return {r["metric"]: r["value"] for r in artifact.read_telemetry().to_pylist()}[
        "failed_documents"
    ]


def rows(artifact, table):
    return artifact[table].read().to_pylist()


def id_of(documents):
    table = documents["documents"].read(["doc_id", "text"])
    return table.filter(pc.equal(table["text"], BAD))["doc_id"][0].as_py()


def held_out(tmp_path):
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
        "hallmark.tasks.corpus.quality.compute_quality_signals",
    ),
    "identities": (
        find_identities,
        IdentitiesConfig(),
        "hallmark.tasks.corpus.identities.find_term_mentions",
    ),
    "contamination": (
        find_contamination,
        held_out,
        "hallmark.tasks.corpus.contamination.find_overlaps",
    ),
}


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("parts", [1, 4])
def test_its_signals_are_null_and_all_others_what_they_were(
    session, monkeypatch, tmp_path, caplog, name, parts
):
    made, config, place = SIGNALS[name]
    config = config(tmp_path) if callable(config) else config
    documents = given(TEXTS, parts=parts)
    # Whole first, of the same documents in an order of their own: another artifact.
    whole = {
        r["doc_id"]: r for r in rows(made(given(TEXTS, ["s"] * len(TEXTS)), config), "signals")
    }
    breaks(monkeypatch, place)
    with caplog.at_level(logging.WARNING, "hallmark"):
        told = made(documents, config)
    bad = id_of(documents)
    found = rows(told, "signals")
    assert [r["doc_id"] for r in found] == [r["doc_id"] for r in rows(documents, "documents")]
    (row,) = (r for r in found if r["doc_id"] == bad)
    assert {v for k, v in row.items() if k != "doc_id"} == {None}
    assert [r for r in found if r["doc_id"] != bad] == [
        whole[r["doc_id"]] for r in found if r["doc_id"] != bad
    ]
    assert note(told) == 1
    assert f"failed on 1 of {len(TEXTS)} documents, the first of them {bad.hex()}" in caplog.text
    assert "(failed: Cannot)" in caplog.text and BAD not in caplog.text
    # A rule calls it unknown, with a policy of its own.
    signal = {
        "language": {"any_of": ["en"]},
        "quality": {"signal": "word_count", "ge": 1},
        "identities": {"signal": "identity_mentions", "ge": 0},
        "contamination": {"le": 99},
    }[name]
    for unknown in ("keep", "remove"):
        rules = SelectConfig(rules={name: {**signal, "on_missing": unknown}})
        kept = [
            r["text"] for r in rows(select_documents(documents, {name: told}, rules), "documents")
        ]
        assert (BAD in kept) == (unknown == "keep")


def books(artifact):
    return {r["unit"]: r for r in rows(artifact, "accounts")}


def check_quarantined(before, made, reason):
    """It alone is in quarantine, with its reason, and the accounts hold it."""
    bad = id_of(before)
    here = [r for r in rows(made, "ledger") if r["action"] == "quarantined"]
    assert [(r["doc_id"], r["reason"], r["bytes_before"]) for r in here] == [
        (bad, reason, len(BAD.encode()))
    ]
    assert (books(made)["rows"]["quarantined"], books(made)["bytes"]["quarantined"]) == (
        1,
        len(BAD.encode()),
    )


@pytest.mark.parametrize("stage", ["exact", "near"])
@pytest.mark.parametrize("parts", [1, 4])
def test_what_cannot_be_compared_goes_to_quarantine(session, monkeypatch, stage, parts):
    documents = given([*TEXTS, BAD.upper(), ""], parts=parts)
    made, config, module = {
        "exact": (deduplicate, DeduplicateConfig(), "deduplicate"),
        "near": (deduplicate_near, DeduplicateNearConfig(), "deduplicate_near"),
    }[stage]
    breaks(monkeypatch, f"hallmark.tasks.corpus.{module}.normalise_texts")
    found = made(documents, {}, config)
    check_quarantined(documents, found, "failed: Cannot")
    signed = found["signatures"].read(["doc_id"])["doc_id"].to_pylist()
    assert signed == found["documents"].read(["doc_id"])["doc_id"].to_pylist()  # and not the bad
    gone = [r for r in rows(found, "ledger") if r["action"] == "removed"]
    assert len(gone) == 1  # the notice that stands there twice
    left = {r["text"] for r in rows(found, "documents")}
    assert BAD not in left and {BAD.upper(), ""} <= left
    assert len(left) == len(TEXTS) and note(found) == 1


@pytest.mark.parametrize("parts", [1, 4])
def test_what_cannot_be_looked_through_goes_to_quarantine_and_is_not_taken_for_clean(
    session, monkeypatch, parts
):
    documents = given(TEXTS, parts=parts)
    breaks(monkeypatch, "hallmark.tasks.corpus.find_personal_data.find_spans_by_row")
    found = find_personal_data(documents, PersonalDataConfig())
    made = redact_spans(documents, {"personal": found}, RedactSpansConfig())
    check_quarantined(documents, made, "UNREADABLE")
    texts = {r["text"] for r in rows(made, "documents")}
    assert BAD not in texts and len(texts) == len(TEXTS) - 1
    assert sum("<EMAIL>" in text for text in texts) == 9 and note(found) == 1


def test_a_check_of_a_library_that_fails_on_one_number_costs_its_document(session, monkeypatch):
    """stdnum itself is made to fail, on one account number of two."""
    from stdnum import iban

    valid = iban.is_valid

    def is_valid(number, *more):
        if number.startswith("DE"):
            raise RecursionError("maximum recursion depth exceeded")
        return valid(number, *more)

    monkeypatch.setattr(iban, "is_valid", is_valid)
    documents = given(["Pay to DE89370400440532013000.", "Pay to GB29NWBK60161331926819."])
    found = find_personal_data(documents, PersonalDataConfig())
    assert sorted(r["type"] for r in rows(found, "spans")) == ["IBAN", "UNREADABLE"]
    left = rows(redact_spans(documents, {"personal": found}, RedactSpansConfig()), "documents")
    assert [r["text"] for r in left] == ["Pay to <IBAN>."]


def test_the_profile_counts_it_but_none_of_its_words(session, monkeypatch):
    documents = given(TEXTS, splits=["train"] * len(TEXTS), kind="split")
    planted = plant_canaries(documents, PlantCanariesConfig())
    history = {
        "identities": find_identities(documents, IdentitiesConfig()),
        "plant_canaries": planted,
    }
    breaks(monkeypatch, "hallmark.tasks.corpus.profile.find_term_mentions")
    made = profile_corpus(planted, planted, history, {}, ProfileConfig())
    assert [r["documents"] for r in rows(made, "sources")] == [len(TEXTS)]
    women = [r for r in rows(made, "identities") if r["term"] == "women"]
    assert [r["documents"] for r in women] == [9] and note(made) == 1


def test_no_sentence_of_it_is_swapped(session, monkeypatch):
    documents = given([*TEXTS, "The women of the harbour. " + BAD])
    made = {
        "deduplicate": documents,
        "identities": find_identities(documents, IdentitiesConfig()),
        "language": identify_languages(documents, LanguageConfig()),
    }
    breaks(monkeypatch, "hallmark.tasks.corpus.group_effects.swaps.split_sentences")
    told = measure_removal_effects(documents, made, RemovalEffectsConfig())
    swapped = [r["doc_id"] for r in rows(told, "swap_scores") if r["origin"] == "corpus"]
    assert len(swapped) == 9 and note(told) == 1  # the other mentions nobody: it is not read


def test_the_tokenizer_is_measured_without_it(session, monkeypatch):
    splits = ["train"] * 4 + ["validation"] * (len(TEXTS) - 4)
    documents = given(TEXTS, splits=splits, kind="split")
    signals = find_identities(documents, IdentitiesConfig())
    before = train_tokenizer(documents, signals, TokenizerConfig(vocab_size=300))
    breaks(monkeypatch, "hallmark.tasks.training.train_tokenizer.detect_languages")
    # Another artifact of the same tokens.
    made = train_tokenizer(documents, signals, TokenizerConfig(vocab_size=301))
    was, now = (
        {(r["kind"], r["name"]): (r["documents"], r["bytes"]) for r in rows(a, "fertility")}
        for a in (before, made)
    )
    size = len(BAD.encode())
    (source,) = (key for key in was if key[0] == "source")
    assert now[source] == (was[source][0] - 1, was[source][1] - size)
    assert now["identity", "women"] == was["identity", "women"] == (5, now["identity", "women"][1])
    assert note(made) == 1


def test_what_the_tokenizer_fails_on_is_packed_nowhere(session, monkeypatch):
    splits = ["train"] * 12 + ["holdout"] * (len(TEXTS) - 12)
    documents = given(TEXTS, splits=splits, kind="split")
    tokenizer = train_tokenizer(documents, None, TokenizerConfig(vocab_size=300))
    breaks(monkeypatch, "hallmark.tasks.training.pack.encode_texts")
    packed = pack(documents, tokenizer, PackConfig(context=16))
    check_quarantined(documents, packed, "failed: Cannot")
    ids = {r["doc_id"] for r in rows(packed, "spans")}
    assert len(ids) == 11 and id_of(documents) not in ids and note(packed) == 1


def test_where_all_documents_fail_none_is_to_blame(session, monkeypatch):
    monkeypatch.setattr("tests.tasks.corpus.test_faults.BAD", "e")
    breaks(
        monkeypatch,
        "hallmark.tasks.corpus.language.estimate_languages",
        "hallmark.tasks.corpus.deduplicate.normalise_texts",
    )
    documents = given(TEXTS)
    for ask in (
        lambda: identify_languages(documents, LanguageConfig()),
        lambda: deduplicate(documents, {}, DeduplicateConfig()),
    ):
        with pytest.raises(HallmarkError, match=r"failed on all 18 documents, .* in no document"):
            ask()


def test_documents_that_cannot_be_compared_are_like_no_other(monkeypatch, tmp_path):
    """Nor like each other, among those that rules took."""
    texts = [
        "one " + BAD,
        "two " + BAD,
        "an ordinary text of some words",
        "and its copy",
        "and its copy",
    ]
    doc_id = pa.array([bytes([n]) * 16 for n in range(5)], ID_TYPE)
    gone = pa.table({"doc_id": doc_id, "action": ["removed"] * 5})
    batch = pa.record_batch({"doc_id": doc_id, "text": pa.array(texts, pa.large_string())})
    documents = SimpleNamespace(iter_batches=lambda names: [batch])
    breaks(monkeypatch, "hallmark.tasks.corpus.deduplicate_near.normalise_texts")
    config = DeduplicateNearConfig()
    parts = (documents, SimpleNamespace(read=lambda names: gone))
    done = StageContext(tmp_path, {}).map_items(
        removed_clusters.sketch_removed_documents, [parts], config
    )
    shelf = ShingleStore(concat_spilled_tables(done, "shingles", SHINGLES)["shingles"])
    assert removed_clusters.find_cluster_heads(
        concat_spilled_tables(done, "band_hashes", removed_clusters.BANDS_SCHEMA), shelf, config
    ).tolist() == [
        0,
        1,
        2,
        3,
        3,
    ]


@settings(deadline=None)
@drawn(st.lists(st.sampled_from("abX")), st.sampled_from([None, MemoryError, OSError, ImportError]))
def test_a_kernel_is_asked_again_without_what_it_fails_on(texts, other):
    def kernel(batch):
        found = batch["text"].to_pylist()
        if "X" in found:
            raise (other or ValueError)("X")
        return found

    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    if other and "X" in texts:  # of the machine: no document's fault
        with pytest.raises(other):
            run_isolating_failures(kernel, batch)
        return
    found, faults = run_isolating_failures(kernel, batch)
    assert found == ["" if text == "X" else text for text in texts]
    assert faults.rows.to_pylist() == [i for i, text in enumerate(texts) if text == "X"]
    assert set(faults.reasons.to_pylist()) <= {"failed: ValueError"}


def test_a_kernel_that_fails_on_no_document_alone_raises_what_it_raised():
    def kernel(batch):
        if len(batch) > 2:
            raise ValueError("too many together")
        return batch

    batch = pa.record_batch({"text": pa.array(["a", "b", "c"], pa.large_string())})
    with pytest.raises(ValueError, match="too many together"):
        run_isolating_failures(kernel, batch)
