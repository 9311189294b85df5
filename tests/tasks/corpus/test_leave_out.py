"""Documents excluded from training, and the same number of random documents as a control."""

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


def write_id_list(tmp_path, numbers):
    path = tmp_path / "ids.txt"
    path.write_text("".join(f"{KEYS[n].hex()}\n" for n in numbers))
    return path


def removed_rows(result):
    kept_ids = set(result["documents"].read(["doc_id"])["doc_id"].to_pylist())
    return {n for n, key in enumerate(KEYS) if key not in kept_ids}


def test_listed_training_documents_are_removed_with_a_ledger_row(documents, tmp_path):
    listed = {1, 2, 31, 62, 10}  # 10 is in the holdout, so it is not a training document
    result = leave_out_documents(
        documents, LeaveOutConfig(doc_ids_file=write_id_list(tmp_path, listed))
    )
    assert removed_rows(result) == {1, 2, 31, 62}
    ledger = result["ledger"].read().to_pylist()
    assert {row["doc_id"] for row in ledger} == {KEYS[n] for n in (1, 2, 31, 62)}
    assert {(row["action"], row["reason"]) for row in ledger} == {
        ("removed", "excluded from training")
    }
    before = documents["documents"].read().to_pylist()
    after = result["documents"].read().to_pylist()
    assert [row for row in before if row["doc_id"] not in {r["doc_id"] for r in ledger}] == after


def test_toxic_documents_are_removed_and_unscored_ones_are_kept(documents, tmp_path):
    result = leave_out_documents(documents, LeaveOutConfig(toxicity_threshold=0.8))
    expected = {n for n in range(80, 90) if n % 7 and SPLITS[n] == "train"}
    assert removed_rows(result) == expected
    both = LeaveOutConfig(toxicity_threshold=0.8, doc_ids_file=write_id_list(tmp_path, [5]))
    assert removed_rows(leave_out_documents(documents, both)) == expected | {5}


def test_a_control_removes_as_many_others_of_the_same_sources(documents, tmp_path):
    listed = {1, 2, 4, 33, 36, 62}
    path = write_id_list(tmp_path, listed)
    result = leave_out_documents(documents, LeaveOutConfig(doc_ids_file=path, random_control=True))
    removed = removed_rows(result)
    assert not removed & listed and len(removed) == len(listed)
    assert all(SPLITS[n] == "train" for n in removed)
    assert Counter(SOURCES[n] for n in removed) == Counter(SOURCES[n] for n in listed)
    other = leave_out_documents(
        documents, LeaveOutConfig(doc_ids_file=path, random_control=True, seed=1)
    )
    assert removed_rows(other) != removed
    assert {row["reason"] for row in result["ledger"].read().to_pylist()} == {
        "excluded from training at random, as a control"
    }


def test_a_control_removes_documents_of_similar_length(session, tmp_path):
    """Half of each source is ten times as long; as many long ones are removed as are listed."""
    sizes = [(20 if n % 4 < 2 else 200) + n % 3 for n in range(90)]
    documents = given(
        [f"{n:03d}".ljust(size, "x") for n, size in enumerate(sizes)],
        sources=SOURCES,
        splits=["train"] * 90,
        kind="split",
        parts=3,
    )
    listed = {2, 3, 6, 7, 9, 17}
    path, protected_path = write_id_list(tmp_path, listed), tmp_path / "spared.txt"
    config = LeaveOutConfig(doc_ids_file=path, random_control=True)
    first = removed_rows(leave_out_documents(documents, config))
    for rows in (first, listed):
        assert sum(sizes[n] > 100 for n in rows) == 4
    assert Counter(SOURCES[n] for n in first) == Counter(SOURCES[n] for n in listed)
    protected_path.write_text("".join(f"{KEYS[n].hex()}\n" for n in sorted(first)))
    second = removed_rows(
        leave_out_documents(
            documents, config.model_copy(update={"protected_doc_ids_file": protected_path})
        )
    )
    assert len(second) == 6 and not second & (first | listed)
    # If no other document is as long, the nearest in length of the same source is removed.
    longest = max((n for n in range(90) if SOURCES[n] == "a"), key=lambda n: (sizes[n], n))
    rest = [n for n in range(90) if sizes[n] > 100 and n != longest and SOURCES[n] == "a"]
    protected_path.write_text("".join(f"{KEYS[n].hex()}\n" for n in rest))
    config_with_one = LeaveOutConfig(
        doc_ids_file=write_id_list(tmp_path, [longest]),
        random_control=True,
        protected_doc_ids_file=protected_path,
    )
    (last,) = removed_rows(leave_out_documents(documents, config_with_one))
    assert SOURCES[last] == "a" and sizes[last] == max(
        size for n, size in enumerate(sizes) if SOURCES[n] == "a" and size < 100
    )


def test_a_control_takes_other_sources_if_one_has_too_few_documents(documents, tmp_path):
    listed = [n for n in range(90) if SOURCES[n] == "b" and SPLITS[n] == "train"][:-2]
    result = leave_out_documents(
        documents, LeaveOutConfig(doc_ids_file=write_id_list(tmp_path, listed), random_control=True)
    )
    removed = removed_rows(result)
    assert len(removed) == len(listed) and not removed & {*listed}
    assert Counter(SOURCES[n] for n in removed)["b"] == 2


def test_bad_input_gives_a_clear_error(documents, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_text(f"{KEYS[0].hex()}\nnonsense\n")
    with pytest.raises(
        UsageError, match=r"bad.txt, line 2 is not a doc_id of 32 hexadecimal digits: 'nonsense'"
    ):
        read_document_ids(bad)
    with pytest.raises(UsageError, match="nothing would be excluded"):
        leave_out_documents(documents, LeaveOutConfig(doc_ids_file=write_id_list(tmp_path, [10])))
    with pytest.raises(UsageError, match="there is no file"):
        leave_out_documents(documents, LeaveOutConfig(doc_ids_file=tmp_path / "none.txt"))
    with pytest.raises(ValidationError, match="no setting selects documents to exclude"):
        LeaveOutConfig(random_control=True)
    with pytest.raises(ValidationError, match="no setting selects documents to exclude"):
        LeaveOutConfig(replace_with_padding=True)
    with pytest.raises(ValidationError, match="has an effect only with 'random_control'"):
        LeaveOutConfig(toxicity_threshold=0.5, protected_doc_ids_file=bad)
    assert not LeaveOutConfig().enabled and LeaveOutConfig(toxicity_threshold=0.0).enabled


def make_candidates(selected, eligible, sources, sizes, rng):
    """Make rows of CANDIDATES; ``sizes(n)`` returns the bytes of n documents."""
    count = selected + eligible
    return (
        pa.table(
            [
                pa.array(hash_to_ids(str(n) for n in range(count)), ID_TYPE),
                rng.choice(sources, count),
                np.arange(count) < selected,
                rng.random(count),
                sizes(count),
            ],
            names=["doc_id", "source", "selected", "draw", "text_bytes"],
        )
        .select(CANDIDATES.names)
        .cast(CANDIDATES)
    )


def draw_by_brute_force(rows):
    """Draw the control by searching all documents for each selected one."""
    selected = sorted((row for row in rows if row["selected"]), key=lambda row: row["doc_id"])
    eligible = sorted(
        (row for row in rows if not row["selected"]), key=lambda row: (row["draw"], row["doc_id"])
    )

    def length(row):
        return np.log2(1 + row["text_bytes"])

    def stratum(row):
        return row["source"], int(LENGTH_BANDS_PER_DOUBLING * length(row))

    drawn, missing = [], []
    for candidate in selected:
        peers = [row for row in selected if stratum(row) == stratum(candidate)]
        matching = [row for row in eligible if stratum(row) == stratum(candidate)][: len(peers)]
        drawn += [row for row in matching if row not in drawn]
        missing += [candidate] if peers.index(candidate) < len(peers) - len(matching) else []
    eligible = [row for row in eligible if row not in drawn]
    for candidate in missing[: len(eligible)]:
        pool = [row for row in eligible if row["source"] == candidate["source"]] or eligible
        nearest = min(pool, key=lambda row: abs(length(row) - length(candidate)))
        drawn.append(nearest)
        eligible.remove(nearest)
    return {row["doc_id"] for row in drawn}


@pytest.mark.parametrize("seed", range(10))
def test_controls_match_brute_force(seed):
    rng = np.random.default_rng(seed)
    rows = make_candidates(20, 25, ["a", "b", "c"], lambda n: 2 ** rng.integers(3, 9, n), rng)
    assert {*draw_matched_controls(rows).to_pylist()} == draw_by_brute_force(rows.to_pylist())


def test_drawing_controls_is_fast_if_lengths_do_not_match():
    rng = np.random.default_rng(0)
    rows = make_candidates(
        8000,
        120_000,
        ["web"],
        lambda n: np.where(
            np.arange(n) < 8000, rng.integers(50_000, 60_000, n), rng.integers(100, 2000, n)
        ),
        rng,
    )
    start = time.process_time()
    assert len({*draw_matched_controls(rows).to_pylist()}) == 8000
    assert time.process_time() - start < 2
