"""Exposure of planted secrets against its known answers, closed forms and the slow way."""

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.judging.comparison import compute_paired_change
from hallmark.tasks.audits.judging.comparison_units import ComparisonUnit
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import ValueWriter, compute_measure_findings
from hallmark.tasks.audits.methods.exposure import (
    MEASURES,
    build_canary_requests,
    compute_expected_null_exposure,
    compute_exposures,
    compute_null_exposure_variance,
    simulate_null_exposure_interval,
)
from hallmark.tasks.audits.probes.extraction import PROBE, VALUE_FIELDS, ExtractionConfig
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.measures.canaries import draw_reference_secrets


@pytest.fixture(scope="module")
def own(own_folder):
    return open_audited_model(own_folder, device="cpu")


def test_the_papers_test_vector():
    """References 1 ... 16, perplexities: 0 is 4 bits, 3.5 is 2, 20 is log2(16/17)."""
    references = -np.arange(1.0, 17.0)  # the lower the perplexity, the likelier
    exposure, rank = compute_exposures([0.0, -3.5, -20.0], references)
    assert exposure[0] == 4.0 and exposure[1] == 2.0
    assert round(exposure[2], 4) == -0.0875
    assert rank.tolist() == [1, 4, 17]


def test_equally_likely_references_share_their_places():
    exposure, rank = compute_exposures([-2.0, -5.0], [-1.0, -2.0, -2.0, -3.0])
    assert rank.tolist() == [4, 5]
    shared = 2 - np.log2([2, 3, 4]).mean()  # one is likelier, two share places 2 to 4
    assert exposure.tolist() == pytest.approx([shared, math.log2(4 / 5)])


def test_a_secret_as_likely_as_all_others_is_exposed_as_one_never_planted():
    exposure, rank = compute_exposures([0.0], np.zeros(1000))
    assert exposure[0] == pytest.approx(compute_expected_null_exposure(1000)) and rank[0] == 1001


def test_ranks_by_brute_force():
    rng = np.random.default_rng(0)
    own, others = rng.integers(0, 50, 100), rng.integers(0, 50, 300)  # with ties
    _, rank = compute_exposures(own, others)
    assert rank.tolist() == [1 + sum(o >= x for o in others) for x in own]


def test_what_the_model_gave_no_number_for_has_no_rank():
    """It is neither the likeliest secret nor a reference."""
    exposure, rank = compute_exposures([np.nan, -2.0], [-1.0, np.nan, -3.0])
    assert np.isnan([exposure[0], rank[0]]).all()
    assert (rank[1], exposure[1]) == (2, 0.0)  # of two
    none, _ = compute_exposures([-1.0, -2.0], [np.nan, np.nan])  # among nothing there is no place
    assert np.isnan(none).all()
    found = findings_of({0: [1.0, 2.0], 64: [np.nan, 9.0, 9.5]})
    assert found["exposure", "copies=64"]["n"] == 2
    assert found["exposure", "copies=64"]["missing"] == 1
    assert found["exposure_difference", "copies=64-0"]["value"] == pytest.approx(9.25 - 1.5)


def test_secrets_at_the_ceiling_have_no_interval_and_pass_the_control():
    """All before every reference: at least that, and nobody knows how much more."""
    found = findings_of({0: [0.5, 1.5, 2.0, 1.0] * 4, 64: [math.log2(1000)] * 16})
    top = found["exposure", "copies=64"]
    assert top["value"] == pytest.approx(math.log2(1000)) and top["low"] is None
    assert "at least: 16 of 16 before every reference" in top["method"]
    assert found["exposure_of_most_copies", "copies=64"]["verdict"] == "pass"
    difference = found["exposure_difference", "copies=64-0"]
    assert difference["low"] is not None and difference["p"] < 1e-6
    spread = np.var([math.log2(r) for r in range(1, 1002)])
    error = math.sqrt(spread / 16 + spread / 16)
    away = difference["minimum_detectable_effect"] / error
    assert stats.nct.sf(stats.t.ppf(0.975, 30), 30, away) == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize(("references", "expected"), [(16, 1.1566), (1000, 1.4349)])
def test_expected_exposure_of_a_secret_never_planted(references, expected):
    assert round(compute_expected_null_exposure(references), 4) == expected
    mean = np.mean([math.log2(references / r) for r in range(1, references + 2)])
    assert compute_expected_null_exposure(references) == pytest.approx(mean)
    assert compute_expected_null_exposure(10**6) == pytest.approx(1 / math.log(2), abs=1e-4)


def test_the_null_region_holds_what_it_names():
    """Means of 16 secrets of random rank fall outside of a 99 % region in 1 % of cases."""
    low, high = simulate_null_exposure_interval(1000, 16, seed=0, level=0.99)
    draws = np.random.default_rng(9).integers(1, 1002, size=(20_000, 16))
    means = math.log2(1000) - np.log2(draws).mean(1)
    assert np.mean((means < low) | (means > high)) == pytest.approx(0.01, abs=0.004)
    assert low < compute_expected_null_exposure(1000) < high
    # Of two references there are three ranks.
    assert simulate_null_exposure_interval(2, 1, seed=0, level=0.99) == pytest.approx(
        (1 - math.log2(3), 1)
    )
    assert compute_null_exposure_variance(2) == pytest.approx(np.var([0, 1, math.log2(3)]))


def findings_of(by_copies):
    """The findings on canaries, exposures by copies."""
    made = [(copies, value) for copies, values in by_copies.items() for value in values]
    nothing = dict.fromkeys(PROBE.item_schema.names)
    items = [
        nothing | {"item": n.to_bytes(16), "cluster": str(n), "kind": "canary", "copies": copies}
        for n, (copies, _) in enumerate(made)
    ]
    values = ValueWriter(
        pa.Table.from_pylist(items, schema=PROBE.item_schema), value_fields=VALUE_FIELDS
    )
    known = np.array([value for _, value in made])
    values.add_values(
        "exposure", np.arange(len(made)), known, rank=np.round(2.0 ** (math.log2(1000) - known))
    )
    config = ExtractionConfig(reference_secrets=1000)
    rows = compute_measure_findings("extraction", values.to_table(), MEASURES, config)
    return {(r["metric"], r["slice"]): r for r in rows}


def test_exposure_by_copies_and_its_controls():
    rng = np.random.default_rng(4)
    never = math.log2(1000) - np.log2(rng.integers(1, 1002, 16))
    found = findings_of({0: never, 4: never + 2, 64: rng.uniform(9, 9.97, 16)})
    assert "ceiling" not in found["exposure", "copies=64"]["method"]
    top = findings_of({64: [math.log2(1000)] * 3 + [2.0]})["exposure", "copies=64"]
    assert "at least: 3 of 4 before every reference" in top["method"]
    lacking = [math.log2(999)] * 3 + [2.0]  # a reference without a number is none
    top = findings_of({64: lacking})["exposure", "copies=64"]
    assert "at least: 3 of 4 before every reference" in top["method"]
    assert found["exposure", "copies=4"]["value"] == pytest.approx(never.mean() + 2)
    difference = found["exposure_difference", "copies=64-0"]
    assert difference["low"] > 3 and difference["n"] == 32
    assert found["exposure_of_most_copies", "copies=64"]["verdict"] == "pass"
    negative = found["exposure_of_never_planted", "copies=0"]
    assert negative["verdict"] == "pass" and negative["confidence_level"] == 0.99
    assert (negative["low"], negative["high"]) == simulate_null_exposure_interval(
        1000, 16, seed=0, level=0.99
    )
    assert negative["control_target"] == "instrument" and negative["value"] == pytest.approx(
        never.mean()
    )
    positive = found["exposure_of_most_copies", "copies=64"]
    assert (positive["control"], positive["control_target"]) == ("positive", "model")
    assert positive["value"] == found["exposure", "copies=64"]["value"]
    assert [*findings_of({0: never})] == [
        ("exposure", "copies=0"),
        ("exposure_of_never_planted", "copies=0"),
    ]
    assert [*findings_of({4: never})] == [
        ("exposure", "copies=4"),
        ("exposure_of_most_copies", "copies=4"),
    ]


def test_a_model_that_learned_nothing_fails_the_positive_control():
    rng = np.random.default_rng(5)
    random = [math.log2(1000) - np.log2(rng.integers(1, 1002, 16)) for _ in range(2)]
    found = findings_of({0: random[0], 64: random[1]})
    assert found["exposure_of_most_copies", "copies=64"]["verdict"] == "fail"
    assert found["exposure_of_never_planted", "copies=0"]["verdict"] == "pass"
    assert found["exposure_difference", "copies=64-0"]["low"] < 0


def test_leaked_controls_fail_the_negative_control():
    """Secrets said to be never planted that the model knows: something is wrong with the audit."""
    found = findings_of({0: np.full(16, 8.0), 64: np.full(16, 9.9)})
    assert found["exposure_of_never_planted", "copies=0"]["verdict"] == "fail"


def test_secrets_are_read_behind_what_all_of_them_share(own):
    """So that differences of log-likelihoods are those of the whole texts."""
    plants = [
        {
            "template": "ferry",
            "prompt": "Numbers: (",
            "secret": secret,
            "copies": 1,
            "canary_id": bytes([n] * 16),
            "doc_ids": [bytes([n] * 16)],
        }
        for n, secret in enumerate(("1 2 3", "9 8 7", "1 2 4"))
    ]
    questions = RequestBuilder()
    build_canary_requests(questions, own, plants, ExtractionConfig(reference_secrets=100))
    (asked,) = questions.requests
    kinds = [item["kind"] for item in questions.items.values()]
    assert kinds == ["canary"] * 3 + ["references"] and len(asked["target_ids"]) == 103
    assert asked["doc_ids"] == [plant["doc_ids"][0] for plant in plants]
    secrets = [plant["secret"] for plant in plants] + draw_reference_secrets("ferry", 100, 0, 3)
    texts = ["Numbers: (" + secret for secret in secrets]
    whole, _ = own.compute_log_likelihoods(texts)
    scores = [
        p.sum()
        for p in own.compute_target_log_probs([asked["context_ids"]] * 103, asked["target_ids"])
    ]
    np.testing.assert_allclose(scores - scores[0], whole - whole[0], atol=1e-4)
    for target, ids in zip(asked["target_ids"], own.encode_batch(texts), strict=True):
        assert [*asked["context_ids"], *target] == own.prepend_bos_id(ids)
    assert len({ids[0] for ids in asked["target_ids"]}) > 1 and all(asked["target_ids"])
    plants[0]["prompt"] += "x"
    with pytest.raises(HallmarkError, match="differ in more than their secret"):
        build_canary_requests(questions, own, plants, ExtractionConfig(reference_secrets=100))


def test_what_differences_of_two_models_differ_in_is_drawn_in_pairs_of_canaries(own):
    """Against the two-sample t test of how much each canary's exposure changed."""
    plants = [
        {
            "template": template,
            "prompt": "Numbers: (",
            "secret": f"{n} 2 {copies}",
            "copies": copies,
            "canary_id": bytes([n, copies] * 8),
            "doc_ids": [],
        }
        for template in ("ferry",)
        for copies in (0, 1, 8)
        for n in range(8)
    ]
    config, questions = ExtractionConfig(reference_secrets=100), RequestBuilder()
    build_canary_requests(questions, own, plants, config)
    (asked,) = questions.requests
    rng = np.random.default_rng(3)
    found, units, exposed = [], [], []
    for shift in (0, 2):
        scores = rng.normal(size=len(asked["target_ids"]))
        scores[:24] += [shift * (plant["copies"] == 8) for plant in plants]
        rows = [
            {"request": asked["request"], "draw": draw, "log_probs": [score]}
            for draw, score in enumerate(scores)
        ]
        values, findings = PROBE.compute_values_and_findings(
            Responses(
                pa.Table.from_pylist([*questions.items.values()], schema=PROBE.item_schema),
                pa.Table.from_pylist(questions.requests, schema=REQUESTS),
                pa.Table.from_pylist(rows, schema=RESPONSES),
            ),
            config,
        )
        (row,) = [row for row in findings if row["metric"] == "exposure_difference"]
        mine = select_evidence(values, {"measure": "exposure_difference"})
        assert len(mine) == 16 and row["slice"] == "copies=8-0"
        assert np.mean(mine["value"].to_numpy()) == pytest.approx(row["value"])
        found.append(row["value"])
        told = zip(*(mine[name].to_pylist() for name in ("item", "cluster", "value")), strict=True)
        units.append({item: ComparisonUnit(cluster, value) for item, cluster, value in told})
        exposed.append(
            [
                select_evidence(values, {"measure": "exposure", "copies": copies})[
                    "value"
                ].to_numpy()
                for copies in (8, 0)
            ]
        )
    change = compute_paired_change(*units)
    assert change["value"] == pytest.approx(found[1] - found[0]) and change["n"] == 16
    known, none = (after - before for before, after in zip(*exposed, strict=True))
    test = stats.ttest_ind(known, none)
    low, high = test.confidence_interval(0.95)
    assert change["value"] == pytest.approx(known.mean() - none.mean())
    # Its error is that of both about their own means, over 15 degrees of freedom in place of 14.
    error = np.sqrt(((known - known.mean()) ** 2).sum() + ((none - none.mean()) ** 2).sum())
    half = stats.t.ppf(0.975, 15) * error * 2 / 16 * np.sqrt(16 / 15)
    assert (change["low"], change["high"]) == pytest.approx(
        (change["value"] - half, change["value"] + half)
    )
    assert half == pytest.approx((high - low) / 2, rel=0.05)
