"""Documents left out of training, and as many others as a control."""

import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import ID_TYPE, UsageError, hash_to_ids
from hallmark.tasks.corpus.leave_out import (
    CANDIDATES,
    LENGTH_BANDS_PER_DOUBLING,
    LeaveOutConfig,
    draw_matched_controls,
    leave_out_documents,
    read_document_ids,
)
from tests.tasks.corpora import given

SOURCES = ["a" if n % 3 else "b" for n in range(90)]
SPLITS = ["holdout" if n % 10 == 0 else "train" for n in range(90)]
TOXICITY = [n / 100 if n % 7 else None for n in range(90)]
KEYS = [i.as_py() for i in hash_to_ids(f"document {n}" for n in range(90))]


@pytest.fixture
def documents(session):
    return given(
        [f"text {n}" for n in range(90)],
        sources=SOURCES,
        splits=SPLITS,
        toxicity=TOXICITY,
        kind="split",
        parts=3,
    )


def listed(tmp_path, numbers):
    path = tmp_path / "ids.txt"
    path.write_text("".join(f"{KEYS[n].hex()}\n" for n in numbers))
    return path


def gone(made):
    kept = set(made["documents"].read(["doc_id"])["doc_id"].to_pylist())
    return {n for n, key in enumerate(KEYS) if key not in kept}


def test_what_is_listed_leaves_training_and_has_a_ledger_row(documents, tmp_path):
    wanted = {1, 2, 31, 62, 10}  # 10 was held out: it is trained on by nobody
    made = leave_out_documents(documents, LeaveOutConfig(doc_ids_file=listed(tmp_path, wanted)))
    assert gone(made) == {1, 2, 31, 62}
    ledger = made["ledger"].read().to_pylist()
    assert {row["doc_id"] for row in ledger} == {KEYS[n] for n in (1, 2, 31, 62)}
    assert {(row["action"], row["reason"]) for row in ledger} == {
        ("removed", "left out of training")
    }
    before = documents["documents"].read().to_pylist()
    after = made["documents"].read().to_pylist()
    assert [row for row in before if row["doc_id"] not in {r["doc_id"] for r in ledger}] == after


def test_what_is_toxic_leaves_and_what_has_no_score_stays(documents, tmp_path):
    made = leave_out_documents(documents, LeaveOutConfig(toxicity_threshold=0.8))
    expected = {n for n in range(80, 90) if n % 7 and SPLITS[n] == "train"}
    assert gone(made) == expected
    both = LeaveOutConfig(toxicity_threshold=0.8, doc_ids_file=listed(tmp_path, [5]))
    assert gone(leave_out_documents(documents, both)) == expected | {5}


def test_a_control_lacks_as_many_others_of_the_same_sources(documents, tmp_path):
    wanted = {1, 2, 4, 33, 36, 62}
    path = listed(tmp_path, wanted)
    made = leave_out_documents(documents, LeaveOutConfig(doc_ids_file=path, random_control=True))
    left = gone(made)
    assert not left & wanted and len(left) == len(wanted)
    assert all(SPLITS[n] == "train" for n in left)
    assert Counter(SOURCES[n] for n in left) == Counter(SOURCES[n] for n in wanted)
    again = leave_out_documents(
        documents, LeaveOutConfig(doc_ids_file=path, random_control=True, seed=1)
    )
    assert gone(again) != left
    assert {row["reason"] for row in made["ledger"].read().to_pylist()} == {
        "excluded from training at random, as a control"
    }


def test_a_control_lacks_documents_of_about_the_same_length(session, tmp_path):
    """Half of each source are ten times as long: as many long ones leave as were wanted."""
    sizes = [(20 if n % 4 < 2 else 200) + n % 3 for n in range(90)]
    documents = given(
        [f"{n:03d}".ljust(size, "x") for n, size in enumerate(sizes)],
        sources=SOURCES,
        splits=["train"] * 90,
        kind="split",
        parts=3,
    )
    wanted = {2, 3, 6, 7, 9, 17}
    path, spared = listed(tmp_path, wanted), tmp_path / "spared.txt"
    config = LeaveOutConfig(doc_ids_file=path, random_control=True)
    first = gone(leave_out_documents(documents, config))
    for chosen in (first, wanted):
        assert sum(sizes[n] > 100 for n in chosen) == 4
    assert Counter(SOURCES[n] for n in first) == Counter(SOURCES[n] for n in wanted)
    spared.write_text("".join(f"{KEYS[n].hex()}\n" for n in sorted(first)))
    second = gone(
        leave_out_documents(documents, config.model_copy(update={"protected_doc_ids_file": spared}))
    )
    assert len(second) == 6 and not second & (first | wanted)
    # Where no other is as long, the nearest in length of the same source.
    longest = max((n for n in range(90) if SOURCES[n] == "a"), key=lambda n: (sizes[n], n))
    rest = [n for n in range(90) if sizes[n] > 100 and n != longest and SOURCES[n] == "a"]
    spared.write_text("".join(f"{KEYS[n].hex()}\n" for n in rest))
    only = LeaveOutConfig(
        doc_ids_file=listed(tmp_path, [longest]), random_control=True, protected_doc_ids_file=spared
    )
    (last,) = gone(leave_out_documents(documents, only))
    assert SOURCES[last] == "a" and sizes[last] == max(
        size for n, size in enumerate(sizes) if SOURCES[n] == "a" and size < 100
    )


def test_where_a_source_has_too_few_others_the_lot_takes_of_any(documents, tmp_path):
    most = [n for n in range(90) if SOURCES[n] == "b" and SPLITS[n] == "train"][:-2]
    made = leave_out_documents(
        documents, LeaveOutConfig(doc_ids_file=listed(tmp_path, most), random_control=True)
    )
    left = gone(made)
    assert len(left) == len(most) and not left & {*most}
    assert Counter(SOURCES[n] for n in left)["b"] == 2


def test_bad_input_is_one_sentence(documents, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_text(f"{KEYS[0].hex()}\nnonsense\n")
    with pytest.raises(UsageError, match=r"bad.txt, line 2 is no doc_id: 'nonsense'"):
        read_document_ids(bad)
    with pytest.raises(UsageError, match="nothing would be left out"):
        leave_out_documents(documents, LeaveOutConfig(doc_ids_file=listed(tmp_path, [10])))
    with pytest.raises(UsageError, match="there is no file"):
        leave_out_documents(documents, LeaveOutConfig(doc_ids_file=tmp_path / "none.txt"))
    with pytest.raises(ValidationError, match="what it is a control of"):
        LeaveOutConfig(random_control=True)
    with pytest.raises(ValidationError, match="what it replaces"):
        LeaveOutConfig(replace_with_padding=True)
    with pytest.raises(ValidationError, match="what a control does not take"):
        LeaveOutConfig(toxicity_threshold=0.5, protected_doc_ids_file=bad)
    assert not LeaveOutConfig().enabled and LeaveOutConfig(toxicity_threshold=0.0).enabled


def candidates(wanted, others, sources, sizes, chance):
    """So many wanted documents and so many others, of these ``sizes``."""
    many = wanted + others
    return (
        pa.table(
            [
                pa.array(hash_to_ids(str(n) for n in range(many)), ID_TYPE),
                chance.choice(sources, many),
                np.arange(many) < wanted,
                chance.random(many),
                sizes(many),
            ],
            names=["doc_id", "source", "selected", "draw", "text_bytes"],
        )
        .select(CANDIDATES.names)
        .cast(CANDIDATES)
    )


def by_hand(rows):
    """The control, each document of it looked for among all."""
    wanted = sorted((r for r in rows if r["selected"]), key=lambda r: r["doc_id"])
    free = sorted((r for r in rows if not r["selected"]), key=lambda r: (r["draw"], r["doc_id"]))

    def length(row):
        return np.log2(1 + row["text_bytes"])

    def key(row):
        return row["source"], int(LENGTH_BANDS_PER_DOUBLING * length(row))

    found, missing = [], []
    for row in wanted:
        need = [r for r in wanted if key(r) == key(row)]
        like = [r for r in free if key(r) == key(row)][: len(need)]
        found += [r for r in like if r not in found]
        missing += [row] if need.index(row) < len(need) - len(like) else []
    free = [r for r in free if r not in found]
    for row in missing[: len(free)]:
        own = [r for r in free if r["source"] == row["source"]] or free
        nearest = min(own, key=lambda r: abs(length(r) - length(row)))
        found.append(nearest)
        free.remove(nearest)
    return {r["doc_id"] for r in found}


@pytest.mark.parametrize("seed", range(10))
def test_a_control_is_the_nearest_in_length(seed):
    chance = np.random.default_rng(seed)
    rows = candidates(20, 25, ["a", "b", "c"], lambda n: 2 ** chance.integers(3, 9, n), chance)
    assert {*draw_matched_controls(rows).to_pylist()} == by_hand(rows.to_pylist())


def test_a_control_that_lacks_long_documents_takes_little_time():
    chance = np.random.default_rng(0)
    rows = candidates(
        8000,
        120_000,
        ["web"],
        lambda n: np.where(
            np.arange(n) < 8000, chance.integers(50_000, 60_000, n), chance.integers(100, 2000, n)
        ),
        chance,
    )
    start = time.process_time()
    assert len({*draw_matched_controls(rows).to_pylist()}) == 8000
    assert time.process_time() - start < 2
