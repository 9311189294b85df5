"""Test the accounts by identity: faults that they detect, and their checksums."""

import hashlib
from collections import defaultdict

import pytest

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from tests.tasks.contract.stages import DropConfig, FaultConfig, MakeConfig, drop, faulty, make
from tests.tasks.corpora import given, scrubbed

MODULUS = 2**128

WRONG_TEXTS = [
    "two texts are swapped",
    "one document is lost and another doubled",
    "a text is changed",
    "a text is changed, and the ledger names another document",
    "a text is changed, and the ledger does not say what it was",
    "two ids are swapped",
]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("fault", WRONG_TEXTS)
def test_changed_texts_without_ledger_rows_are_refused(session, fault, parts):
    raw = make(MakeConfig(documents=400, parts=parts))
    sentence = r"stage faulty: the checksums for source 'even' do not add up: .* nothing was"
    with pytest.raises(HallmarkError, match=sentence):
        faulty(raw, FaultConfig(fault=fault))
    assert session.store.list_artifacts("faulty") == []


@pytest.mark.parametrize("parts", [1, 4])
def test_changed_source_is_refused(session, parts):
    raw = make(MakeConfig(documents=400, parts=parts))
    with pytest.raises(HallmarkError, match="the bytes for source 'even' do not add up"):
        faulty(raw, FaultConfig(fault="a document goes to another source"))
    with pytest.raises(HallmarkError, match="for source 'even' do not add up"):
        faulty(raw, FaultConfig(fault="two documents change places between sources"))
    assert session.store.list_artifacts("faulty") == []


@pytest.mark.parametrize("parts", [1, 4])
def test_changes_in_the_ledger_are_accepted(session, parts):
    raw = make(MakeConfig(documents=400, parts=parts))
    same = faulty(raw, FaultConfig(fault="nothing"))
    assert same["documents"].digest == raw["documents"].digest
    changed = faulty(raw, FaultConfig(fault="a text is changed, and the ledger says so"))
    assert changed["documents"].digest != raw["documents"].digest
    assert changed["ledger"].row_count == parts
    assert checksums(changed) == compute_checksums_in_python(raw, changed)


# The oracle ----------------------------------------------------------------------------------


def identity(row):
    digest = hashlib.blake2b(row["doc_id"] + row["text"].encode(), digest_size=16).digest()
    return int.from_bytes(digest, "big")


def checksums(artifact):
    return {
        row["source"]: {k: int.from_bytes(v, "big") for k, v in row.items() if k != "source"}
        for row in artifact["checksums"].read().to_pylist()
    }


TERM = {"removed": "removed_rows", "removed_span": "removed_spans", "replaced": "replaced"}


def compute_checksums_in_python(before, after):
    """Compute the checksums from all rows, with Python's integers and sets."""
    terms = ("input", "added", "kept", "removed_rows", "removed_spans", "quarantined", "replaced")
    sums = defaultdict(lambda: dict.fromkeys(terms, 0))
    entered = {row["doc_id"]: row for row in before["documents"].read().to_pylist()}
    left = {row["doc_id"]: row for row in after["documents"].read().to_pylist()}
    for row in entered.values():
        sums[row["source"]]["input"] += identity(row)
    changed = set()
    for row in after["ledger"].read().to_pylist():
        if row["action"] == "added":
            sums[row["source"]]["added"] += identity(left[row["doc_id"]])
        elif row["action"] == "removed" or row["doc_id"] not in changed:
            sums[row["source"]][TERM[row["action"]]] += identity(entered[row["doc_id"]])
        if row["action"] in ("replaced", "removed_span"):
            changed.add(row["doc_id"])
    for doc_id, row in left.items():
        if doc_id not in changed:
            sums[row["source"]]["kept"] += identity(row)
    return {s: {k: v % MODULUS for k, v in of.items()} for s, of in sums.items()}


@pytest.mark.parametrize("parts", [1, 4])
def test_checksums_of_removed_replaced_and_added_documents(session, parts):
    raw = make(MakeConfig(documents=600, parts=parts))
    dropped = drop(raw, DropConfig())
    assert checksums(dropped) == compute_checksums_in_python(raw, dropped)
    texts = [f"Letter {i} from {'jane@corp.example ' * (i % 3)}" + "word " * 60 for i in range(90)]
    sources = [("books", "web")[i % 2] for i in range(90)]
    before = given(texts, sources=sources, kind="split", parts=parts)
    planted = plant_canaries(
        before,
        PlantCanariesConfig(
            enabled=True,
            copy_counts=(0, 2),
            secrets_per_count=3,
            passages_per_count=2,
            records_per_count=2,
        ),
    )
    assert checksums(planted) == compute_checksums_in_python(before, planted)
    assert sum(row["added"] > 0 for row in checksums(planted).values()) == 4
    before = given(texts, sources=sources, parts=parts)
    masked = scrubbed(before)
    found = checksums(masked)
    assert found == compute_checksums_in_python(before, masked)
    assert all(row["replaced"] for row in found.values())
    assert masked["ledger"].row_count == 90  # a third once, a third twice
