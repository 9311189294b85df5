"""Membership inference: scores by hand, members told apart where they can be, and nowhere else."""

import zlib

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from tasks.audits.probes.membership import (
    SCORES,
    MembershipConfig,
    controls,
    scores_of,
    told_apart,
)
from tasks.measures.estimates import auc
from tests.tasks.audits.asking import stages_of
from tests.tasks.corpora import given

CONFIG = MembershipConfig(documents=20, tokens=8)


@pytest.fixture
def documents(session):
    texts = [
        f"Document {n} speaks of the harbour, of lamps and of boat {n * 7}." for n in range(60)
    ]
    splits = ["train" if n % 2 else "holdout" for n in range(60)]
    return given([*texts, "x", "y"], splits=[*splits, "train", "holdout"], kind="split")[
        "documents"
    ]


def test_scores_are_those_of_their_papers():
    log_p = [-1.0, -2.0, -8.0, -4.0, -0.5]
    mean, std = [-3.0] * 5, [2.0, 1.0, 4.0, 2.0, 1.0]
    found = scores_of(log_p, mean, std, "some text", -20.0)
    assert found["loss"] == pytest.approx(-3.1)
    assert found["zlib"] == pytest.approx(-15.5 / len(zlib.compress(b"some text")))
    assert found["lower"] == pytest.approx(-15.5 / 20)  # 0.775 of what the lower case costs
    assert found["min-k"] == -8.0  # the lowest of five
    assert found["min-k++"] == pytest.approx(-5 / 4)
    ten = scores_of([-float(i) for i in range(10)], [0.0] * 10, [1.0] * 10, "t", -1.0)
    assert ten["min-k"] == ten["min-k++"] == pytest.approx(-8.5)
    one = scores_of([-1.0], [0.0], [0.0], "t", 0.0)  # no spread, nothing in lower case
    assert one["min-k"] == -1.0 and np.isnan(one["min-k++"]) and np.isnan(one["lower"])
    none = scores_of([float("nan"), -1.0], [0.0] * 2, [1.0] * 2, "t", -1.0)
    assert np.isnan(none["loss"])


def test_every_document_is_read_over_as_many_tokens(documents, own_folder):
    asked, _, _, _, (rows, findings) = stages_of(
        "membership", own_folder, CONFIG, corpus=(None, None, documents)
    )
    samples = rows.to_pylist()
    assert sum(r["member"] for r in samples) == 20 == sum(not r["member"] for r in samples)
    splits = dict(zip(*(documents.read()[n].to_pylist() for n in ("doc_id", "split")), strict=True))
    assert all({splits[i] for i in r["doc_ids"]} == {"train" if r["member"] else "holdout"}
               for r in samples)  # fmt: skip
    requests = [r for r in asked["requests"].read().to_pylist() if not r["part"]]
    assert {len(r["targets"][0]) for r in requests} == {8} and all(r["moments"] for r in requests)
    assert all(r[score] is not None for r in samples for score in SCORES)
    made = {(r["metric"], r["slice"]): r for r in findings.to_pylist()}
    for score in SCORES:
        row = made["auc", f"document, score={score}"]
        inside, outside = ([r[score] for r in samples if r["member"] == m] for m in (True, False))
        test = stats.mannwhitneyu(inside, outside)
        assert row["value"] == pytest.approx(test.statistic / (20 * 20))
        assert row["null"] == 0.5 and row["low"] < row["value"] < row["high"]
    assert not any(metric.startswith("true_positives") for metric, _ in made)  # too few others
    verdicts = [r["verdict"] for r in findings.to_pylist() if r["control"]]
    assert verdicts == ["pass", "pass"]


def row(member, value, kind="document"):
    return {"kind": kind, "member": member, **dict.fromkeys(SCORES, value)}


def test_true_positives_need_enough_others():
    rng = np.random.default_rng(0)
    rows = [row(True, v) for v in rng.normal(2, 1, 50)]
    rows += [row(False, v) for v in rng.normal(0, 1, 400)]
    found = {(r["metric"], r["slice"]): r for r in told_apart(rows, "document", "documents", "how")}
    hits = found["true_positives_at_0.01", "document, score=loss"]
    others = sorted(r["loss"] for r in rows if not r["member"])
    bound = others[396]  # three of 400 exceed it; a hundredth would be four
    assert hits["value"] == np.mean([r["loss"] > bound for r in rows if r["member"]])
    assert ("true_positives_at_0.001", "document, score=loss") not in found
    assert found["auc", "document, score=loss"]["p"] < 1e-6


def test_controls_can_fail(monkeypatch):
    rng = np.random.default_rng(1)
    rows = [row(bool(n % 2), v) for n, v in enumerate(rng.normal(size=200))]

    def verdicts():
        return [r["verdict"] for r in controls(rows, CONFIG)]

    assert verdicts() == ["pass", "pass"]
    import tasks.audits.probes.membership as module

    real = module.auc
    monkeypatch.setattr(module, "auc", lambda a, b, **o: real(np.array(a) + 9, b, **o))
    negative, _ = verdicts()
    monkeypatch.setattr(module, "auc", lambda a, b, **o: real(b, b, **o))
    _, positive = verdicts()
    assert negative == positive == "fail"


def test_of_passages_those_without_copies_are_no_members(own_folder, session):
    from tasks.corpus.plant import PlantConfig, plant

    texts = [f"Passage {n}: " + " ".join(f"word{n * i}" for i in range(60)) for n in range(30)]
    config = PlantConfig(enabled=True, counts=(0, 2), canaries=0, records=0, passages=6,
                         associations=0)  # fmt: skip
    made = plant(given(texts, kind="split"), config)
    corpus = (None, made["plants"], None)
    rows, findings = stages_of("membership", own_folder, CONFIG, corpus=corpus)[-1]
    assert [(r["kind"], r["member"], r["copies"]) for r in rows.to_pylist()].count(
        ("passage", False, 0)
    ) == 6
    assert {r["slice"].split(",")[0] for r in findings.to_pylist()} == {"passage"}


def test_without_a_corpus_nothing_is_measured(own_folder, session):
    rows, findings = stages_of("membership", own_folder, CONFIG)[-1]
    (only,) = findings.to_pylist()
    assert (
        len(rows) == 0 and only["value"] is None and "not measured: no documents" in only["method"]
    )


# The area under the curve ------------------------------------------------------------------------


def test_the_area_is_the_share_of_pairs():
    assert auc([2, 3], [1, 3]).value == 0.625
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 30), rng.integers(0, 4, 20)
    by_hand = np.mean([(x > y) + (x == y) / 2 for x in a for y in b])
    found = auc([*a.astype(float), np.nan], b)
    assert found.value == pytest.approx(by_hand) and found.missing == 1 and found.n == 50
    test = stats.mannwhitneyu(rng.normal(size=30), rng.normal(size=20), method="asymptotic",
                              use_continuity=False)  # fmt: skip
    rng = np.random.default_rng(0)
    rng.integers(0, 5, 30), rng.integers(0, 4, 20)
    assert auc(rng.normal(size=30), rng.normal(size=20)).p == pytest.approx(test.pvalue)


@pytest.mark.parametrize(("m", "n", "shift"), [(20, 20, 0.0), (100, 100, 0.0), (50, 200, 0.7)])
def test_the_interval_covers_as_often_as_it_says(m, n, shift):
    rng = np.random.default_rng(3)
    true = stats.norm.cdf(shift / 2**0.5)
    covered = 0
    for _ in range(1000):
        found = auc(rng.normal(shift, 1, m), rng.normal(0, 1, n))
        covered += found.low <= true <= found.high
    assert 0.925 <= covered / 1000 <= 0.972


def test_the_smallest_effect_is_found_with_its_power():
    rng = np.random.default_rng(4)
    smallest = auc(rng.normal(size=100), rng.normal(size=100)).smallest
    shift = stats.norm.ppf(0.5 + smallest) * 2**0.5
    found = [auc(rng.normal(shift, 1, 100), rng.normal(size=100)).p < 0.05 for _ in range(2000)]
    assert 0.76 <= np.mean(found) <= 0.84


def test_what_has_no_area_or_no_interval_says_why():
    assert np.isnan(auc([], [1.0]).value) and "of one kind" in auc([], [1.0]).method
    apart = auc([2.0, 3.0], [0.0, 1.0])
    assert apart.value == 1 and np.isnan(apart.low) and apart.p < 0.2
    assert np.isnan(auc([1.0], [0.0, 2.0]).low)
    assert pa.scalar(auc([1.0, 2.0], [1.0, 2.0]).value).as_py() == 0.5
