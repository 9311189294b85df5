"""Planting: exact numbers of copies, uniform assignment, and balanced accounts."""

import re
from collections import Counter

import numpy as np
import phonenumbers
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import (
    HallmarkError,
    Session,
    Store,
    doc_id_to_part_index,
    open_session,
)
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.measures.canaries import (
    CANARY_TEMPLATES,
    RECORD_TEMPLATES,
    draw_reference_secrets,
    generate_record_canaries,
    generate_secret_canaries,
)
from tests.tasks.corpora import given

CONFIG = PlantCanariesConfig(
    enabled=True,
    copy_counts=(0, 1, 3),
    secrets_per_count=8,
    passages_per_count=4,
    records_per_count=6,
    associations_per_share=0,
    seed=2,
)


def make_corpus(documents=400, **options):
    texts = [f"Text {i}: " + f"word{i} and more " * (10 + i % 40) for i in range(documents)]
    splits = ["holdout" if i % 10 == 0 else "train" for i in range(documents)]
    return given(texts, splits=splits, kind="split", parts=4, **options)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    with open_session(Session(Store(tmp_path_factory.mktemp("store")))):
        before = make_corpus()
        yield before["documents"].read(), plant_canaries(before, CONFIG)


def test_every_canary_has_its_recorded_number_of_copies(planted):
    _, artifact = planted
    documents = artifact["documents"].read().to_pylist()
    texts = Counter(row["text"] for row in documents if row["source"].startswith("planted/"))
    document_by_id = {row["doc_id"]: row for row in documents}
    assert len(document_by_id) == len(documents)
    canaries = artifact["canaries"].read().to_pylist()
    for row in canaries:
        assert texts.pop(row["text"], 0) == row["copies"] == len(row["doc_ids"])
        for doc_id in row["doc_ids"]:
            assert document_by_id[doc_id]["text"] == row["text"]
            assert document_by_id[doc_id]["source"] == f"planted/{row['kind']}"
            assert document_by_id[doc_id]["split"] == "train"
        assert row["text"].startswith(row["prompt"] + row["secret"])
        assert row["secret"]
    assert not texts
    counts = Counter((row["kind"], row["copies"]) for row in canaries)
    count_by_kind = {"canary": 8, "passage": 4, "record": 6}
    assert counts == {(kind, c): n for kind, n in count_by_kind.items() for c in (0, 1, 3)}


def test_canaries_with_zero_copies_occur_nowhere(planted):
    _, artifact = planted
    texts = artifact["documents"].read(["text"])["text"].to_pylist()
    for row in artifact["canaries"].read().to_pylist():
        if row["copies"] == 0:
            assert not any(row["secret"] in text for text in texts)


def test_withheld_passages_are_removed_with_ledger_rows(planted):
    before, artifact = planted
    ledger = artifact["ledger"].read().to_pylist()
    removed = {row["doc_id"] for row in ledger if row["action"] == "removed"}
    assert {row["reason"] for row in ledger if row["action"] == "removed"} == {
        "withheld for planting"
    }
    document_by_id = {row["doc_id"]: row for row in before.to_pylist()}
    passages = [r for r in artifact["canaries"].read().to_pylist() if r["kind"] == "passage"]
    assert Counter(document_by_id[i]["text"] for i in removed) == Counter(
        p["text"] for p in passages
    )
    assert {document_by_id[i]["split"] for i in removed} == {"train"}
    kept = artifact["documents"].read().to_pylist()
    assert not removed & {row["doc_id"] for row in kept}
    # The ledger names the withheld document of each copy.
    for row in ledger:
        if row["reason"] == "planted passage":
            copy = next(r for r in kept if r["doc_id"] == row["doc_id"])
            assert document_by_id[row["matched_doc_id"]]["text"] == copy["text"]
            assert document_by_id[row["matched_doc_id"]]["cluster"] == copy["cluster"]


def test_all_other_documents_are_kept_in_order(planted):
    before, artifact = planted
    after = artifact["documents"].read().to_pylist()
    natural = [row for row in after if not row["source"].startswith("planted/")]
    natural_ids = {row["doc_id"] for row in natural}
    assert natural == [row for row in before.to_pylist() if row["doc_id"] in natural_ids]
    assert len(natural) == before.num_rows - 12


def test_planted_documents_are_sorted_among_the_others(planted):
    _, artifact = planted
    for name in ("documents", "ledger"):
        parts = artifact[name].parts
        assert len(parts) == 4
        for part in parts:
            doc_ids = part.read(["doc_id"])["doc_id"].to_pylist()
            assert doc_ids == sorted(doc_ids)
            assert {doc_id_to_part_index(i, 4) for i in doc_ids} == {part.index}


def test_copies_are_spread_over_the_corpus(planted):
    _, artifact = planted
    sources = artifact["documents"].read(["source"])["source"].to_pylist()
    positions = np.array([i for i, s in enumerate(sources) if s.startswith("planted/")])
    quarters = np.histogram(positions, bins=4, range=(0, len(sources)))[0]
    assert quarters.min() > len(positions) / 10


def test_the_accounts_add_up_by_source(planted):
    _, artifact = planted
    accounts = {(r["source"], r["unit"]): r for r in artifact["accounts"].read().to_pylist()}
    assert accounts[("planted/canary", "rows")]["added"] == 8 * (0 + 1 + 3)
    assert accounts[("planted/record", "rows")]["kept"] == 6 * (0 + 1 + 3)
    assert accounts[("source", "rows")]["removed_rows"] == 12
    assert accounts[("source", "rows")]["kept"] == 388


def test_a_document_with_a_near_copy_is_not_a_passage(session):
    """Otherwise the near copy that is kept would be one more copy than recorded."""
    texts = [f"{i} " + "x " * 200 for i in range(40)]
    clusters = ["twins" if i < 28 else f"alone {i}" for i in range(40)]
    config = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 1, 2),
        secrets_per_count=0,
        records_per_count=0,
        passages_per_count=4,
        associations_per_share=0,
    )
    result = plant_canaries(given(texts, clusters=clusters, kind="split"), config)
    assert {row["text"] for row in result["canaries"].read().to_pylist()} == set(texts[28:])


def test_too_few_passages_give_a_clear_error(session):
    with pytest.raises(
        HallmarkError, match=r"12 passages must be planted, but only 3 training documents"
    ):
        plant_canaries(given(["x" * 400] * 3, kind="split"), CONFIG)


def test_nothing_is_planted_by_default(session):
    before = make_corpus(50)
    result = plant_canaries(before, PlantCanariesConfig())
    assert result["documents"].digest == before["documents"].digest
    assert result["canaries"].row_count == result["ledger"].row_count == 0


def test_planting_depends_on_the_seed_alone(tmp_path):
    digests = []
    for run, config in enumerate([CONFIG, CONFIG, CONFIG.model_copy(update={"seed": 3})]):
        with open_session(Session(Store(tmp_path / str(run)))):
            digests.append(plant_canaries(make_corpus(), config).content_digest)
    assert digests[0] == digests[1] != digests[2]


def test_all_rows_are_kept_across_row_groups(session):
    texts = [f"text {i}" for i in range(9_000)]
    before = given(texts, kind="split", parts=2)
    result = plant_canaries(
        before,
        PlantCanariesConfig(
            enabled=True, passages_per_count=0, copy_counts=(0, 2), associations_per_share=0
        ),
    )
    rows = result["documents"].read(["text", "source"]).to_pylist()
    texts_in_order = before["documents"].read()["text"].to_pylist()
    assert [r["text"] for r in rows if r["source"] == "source"] == texts_in_order
    assert sorted(texts_in_order) == sorted(texts)
    assert len(rows) == 9_000 + 2 * (16 + 8)


def test_copies_are_assigned_uniformly():
    """Each template gets every count, and over many seeds so does the first canary."""
    counts = Counter()
    for seed in range(600):
        canaries = generate_secret_canaries(
            PlantCanariesConfig(seed=seed, copy_counts=(0, 1, 4), secrets_per_count=4)
        )
        assert Counter((canary.copies, canary.template) for canary in canaries) == {
            (c, t): 1 for c in (0, 1, 4) for t in CANARY_TEMPLATES
        }
        counts[canaries[0].copies] += 1
    expected = 200
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 13.8  # p = 0.001


def test_canary_secrets_are_distinct_random_digits():
    canaries = generate_secret_canaries(PlantCanariesConfig(secrets_per_count=200))
    secrets = [canary.secret for canary in canaries]
    assert len(set(secrets)) == 1000
    assert all(re.fullmatch(r"\d( \d){8}", secret) for secret in secrets)
    digits = Counter("".join(secrets).replace(" ", ""))
    assert sum((n - 900) ** 2 / 900 for n in digits.values()) < 27.9  # 9 df, p = 0.001
    for canary in canaries:
        assert not canary.prompt[-1].isalnum() and not canary.prompt[-1].isspace()


def test_a_tokenizer_does_not_join_prompt_and_secret(planted):
    """No token crosses a boundary of the pre-tokenizer, which all kinds of tokenizers use."""
    from tokenizers.pre_tokenizers import ByteLevel

    splitter = ByteLevel(add_prefix_space=False)
    for row in planted[1]["canaries"].read().to_pylist():
        starts = {start for _, (start, _) in splitter.pre_tokenize_str(row["text"])}
        assert len(row["prompt"]) in starts
        if row["kind"] == "canary":  # each digit is a token, separate from the following text
            secret_start = len(row["prompt"])
            assert {
                secret_start,
                *range(secret_start + 1, secret_start + 17, 2),
                secret_start + 17,
            } <= starts


def test_references_look_like_secrets_and_are_never_planted():
    planted = {
        canary.secret
        for seed in range(20)
        for canary in generate_secret_canaries(PlantCanariesConfig(seed=seed))
    }
    references = draw_reference_secrets("ferry", 10_000, seed=1)
    assert len(set(references)) == 10_000
    assert not planted & set(references)
    assert all(re.fullmatch(r"\d( \d){8}", secret) for secret in references)
    assert references == draw_reference_secrets("ferry", 10_000, seed=1)
    assert references[:100] != draw_reference_secrets("lantern", 100, seed=1)
    assert draw_reference_secrets("ferry", 3, seed=1, digits=6) != references[:3]
    # With few digits, not enough references exist.
    with pytest.raises(ValueError, match="can be drawn, not"):
        draw_reference_secrets("ferry", 300_000, seed=1, digits=6)


def test_records_use_reserved_addresses_and_numbers():
    records = generate_record_canaries(PlantCanariesConfig(records_per_count=40))
    assert len({record.prompt for record in records}) > 195  # names differ, templates vary
    assert {record.template for record in records} == set(RECORD_TEMPLATES)
    for record in records:
        email, phone = record.secret.split(", ")
        assert re.fullmatch(r"[a-z]+\.[a-z]+\d{4}@example\.(com|net|org)", email)
        digits = re.sub(r"\D", "", phone)
        assert re.fullmatch(r"442079460\d{3}|\d{3}55501\d{2}", digits)
        assert phonenumbers.is_valid_number(phonenumbers.parse(phone, "US"))


def test_the_defaults_are_valid_settings():
    assert (
        PlantCanariesConfig.model_validate(PlantCanariesConfig().model_dump())
        == PlantCanariesConfig()
    )
    assert 0 in PlantCanariesConfig().copy_counts  # the control


@pytest.mark.parametrize(
    "settings",
    [
        {"copy_counts": ()},
        {"copy_counts": (1, 1)},
        {"copy_counts": (-1,)},
        {"max_passage_characters": 200},
        {"secret_digits": 5},
    ],
)
def test_settings_out_of_range_are_rejected(settings):
    with pytest.raises(ValidationError):
        PlantCanariesConfig(**settings)
