"""Test the exposure of planted secrets against published values, closed forms and brute force."""

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.audit_tables import RESPONSES, RequestBuilder
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
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.measures.canaries import draw_reference_secrets
from tests.builders import item_rows, row_dicts
from tests.findings import findings_to_rows


@pytest.fixture(scope="module")
def model(own_folder):
    return open_audited_model(own_folder, device="cpu")


def test_exposures_equal_the_paper_s_example():
    """For perplexities 1 to 16 of references: 0 is 4 bits, 3.5 is 2 bits, 20 is log2(16/17)."""
    references = -np.arange(1.0, 17.0)  # a lower perplexity is likelier
    exposure, rank = compute_exposures([0.0, -3.5, -20.0], references)
    assert exposure[0] == 4.0 and exposure[1] == 2.0
    assert round(exposure[2], 4) == -0.0875
    assert rank.tolist() == [1, 4, 17]


def test_tied_references_share_their_ranks():
    exposure, rank = compute_exposures([-2.0, -5.0], [-1.0, -2.0, -2.0, -3.0])
    assert rank.tolist() == [4, 5]
    shared = 2 - np.log2([2, 3, 4]).mean()  # one is likelier, two share ranks 2 to 4
    assert exposure.tolist() == pytest.approx([shared, math.log2(4 / 5)])


def test_a_secret_tied_with_all_references_has_the_null_exposure():
    exposure, rank = compute_exposures([0.0], np.zeros(1000))
    assert exposure[0] == pytest.approx(compute_expected_null_exposure(1000)) and rank[0] == 1001


def test_ranks_equal_brute_force():
    rng = np.random.default_rng(0)
    canaries, references = rng.integers(0, 50, 100), rng.integers(0, 50, 300)  # with ties
    rank = compute_exposures(canaries, references).ranks
    assert rank.tolist() == [1 + sum(r >= c for r in references) for c in canaries]


def test_secrets_and_references_without_a_score_are_ignored():
    """A NaN is neither the likeliest secret nor a reference."""
    exposure, rank = compute_exposures([np.nan, -2.0], [-1.0, np.nan, -3.0])
    assert np.isnan([exposure[0], rank[0]]).all()
    assert (rank[1], exposure[1]) == (2, 0.0)  # among two references
    no_references = compute_exposures([-1.0, -2.0], [np.nan, np.nan]).bits
    assert np.isnan(no_references).all()
    findings = compute_findings({0: [1.0, 2.0], 64: [np.nan, 9.0, 9.5]})
    assert findings["exposure", "copies=64"]["n"] == 2
    assert findings["exposure", "copies=64"]["missing"] == 1
    assert findings["exposure_difference", "copies=64-0"]["value"] == pytest.approx(9.25 - 1.5)


def test_secrets_at_the_ceiling_have_no_interval_and_pass_the_control():
    """If all secrets rank above all references, the exposure is only a lower bound."""
    findings = compute_findings({0: [0.5, 1.5, 2.0, 1.0] * 4, 64: [math.log2(1000)] * 16})
    top = findings["exposure", "copies=64"]
    assert top["value"] == pytest.approx(math.log2(1000)) and top["low"] is None
    assert "lower bound, because 16 of 16 secrets rank above all references" in top["method"]
    assert findings["exposure_of_most_copies", "copies=64"]["verdict"] == "pass"
    difference = findings["exposure_difference", "copies=64-0"]
    assert difference["low"] is not None and difference["p"] < 1e-6
    spread = np.var([math.log2(r) for r in range(1, 1002)])
    error = math.sqrt(spread / 16 + spread / 16)
    away = difference["minimum_detectable_effect"] / error
    assert stats.nct.sf(stats.t.ppf(0.975, 30), 30, away) == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize(("references", "expected"), [(16, 1.1566), (1000, 1.4349)])
def test_expected_null_exposure_equals_the_mean_over_ranks(references, expected):
    assert round(compute_expected_null_exposure(references), 4) == expected
    mean = np.mean([math.log2(references / r) for r in range(1, references + 2)])
    assert compute_expected_null_exposure(references) == pytest.approx(mean)
    assert compute_expected_null_exposure(10**6) == pytest.approx(1 / math.log(2), abs=1e-4)


def test_the_null_interval_has_its_nominal_coverage():
    """Means of 16 secrets of random rank fall outside of a 99 % interval in 1 % of cases."""
    low, high = simulate_null_exposure_interval(1000, 16, seed=0, level=0.99)
    draws = np.random.default_rng(9).integers(1, 1002, size=(20_000, 16))
    means = math.log2(1000) - np.log2(draws).mean(1)
    assert np.mean((means < low) | (means > high)) == pytest.approx(0.01, abs=0.004)
    assert low < compute_expected_null_exposure(1000) < high
    # With two references there are three ranks.
    assert simulate_null_exposure_interval(2, 1, seed=0, level=0.99) == pytest.approx(
        (1 - math.log2(3), 1)
    )
    assert compute_null_exposure_variance(2) == pytest.approx(np.var([0, 1, math.log2(3)]))


def compute_findings(by_copies):
    """Compute the findings about canaries with these exposures by number of copies."""
    canaries = [(copies, value) for copies, values in by_copies.items() for value in values]
    empty_item = dict.fromkeys(PROBE.item_schema.names)
    items = [
        empty_item | {"item": n.to_bytes(16), "cluster": str(n), "kind": "canary", "copies": copies}
        for n, (copies, _) in enumerate(canaries)
    ]
    values = ValueWriter(
        pa.Table.from_pylist(items, schema=PROBE.item_schema), value_fields=VALUE_FIELDS
    )
    exposures = np.array([value for _, value in canaries])
    ranks = np.round(2.0 ** (math.log2(1000) - exposures))
    values.add_values("exposure", np.arange(len(canaries)), exposures, rank=ranks)
    config = ExtractionConfig(reference_secrets=1000)
    findings = compute_measure_findings("extraction", values.to_table(), MEASURES, config)
    return {(r["metric"], name_slice(r["slice"])): r for r in findings_to_rows(findings)}


def test_findings_of_exposure_by_copies_and_controls():
    rng = np.random.default_rng(4)
    never = math.log2(1000) - np.log2(rng.integers(1, 1002, 16))
    findings = compute_findings({0: never, 4: never + 2, 64: rng.uniform(9, 9.97, 16)})
    assert "ceiling" not in findings["exposure", "copies=64"]["method"]
    top = compute_findings({64: [math.log2(1000)] * 3 + [2.0]})["exposure", "copies=64"]
    assert "lower bound, because 3 of 4 secrets rank above all references" in top["method"]
    with_nan_reference = [math.log2(999)] * 3 + [2.0]  # a reference without a score is ignored
    top = compute_findings({64: with_nan_reference})["exposure", "copies=64"]
    assert "lower bound, because 3 of 4 secrets rank above all references" in top["method"]
    assert findings["exposure", "copies=4"]["value"] == pytest.approx(never.mean() + 2)
    difference = findings["exposure_difference", "copies=64-0"]
    assert difference["low"] > 3 and difference["n"] == 32
    assert findings["exposure_of_most_copies", "copies=64"]["verdict"] == "pass"
    negative = findings["exposure_of_never_planted", "copies=0"]
    assert negative["verdict"] == "pass" and negative["confidence_level"] == 0.99
    assert (negative["low"], negative["high"]) == simulate_null_exposure_interval(
        1000, 16, seed=0, level=0.99
    )
    assert negative["control_target"] == "instrument" and negative["value"] == pytest.approx(
        never.mean()
    )
    positive = findings["exposure_of_most_copies", "copies=64"]
    assert (positive["control"], positive["control_target"]) == ("positive", "model")
    assert positive["value"] == findings["exposure", "copies=64"]["value"]
    assert [*compute_findings({0: never})] == [
        ("exposure", "copies=0"),
        ("exposure_of_never_planted", "copies=0"),
    ]
    assert [*compute_findings({4: never})] == [
        ("exposure", "copies=4"),
        ("exposure_of_most_copies", "copies=4"),
    ]


def test_few_secrets_have_no_interval():
    """Means of a few exposures are too skewed; the value and its reason are still shown."""
    rng = np.random.default_rng(6)
    never, often = (math.log2(1000) - np.log2(rng.integers(1, top, 16)) for top in (1002, 40))
    findings = compute_findings({0: never[:15], 64: often})
    few = findings["exposure", "copies=0"]
    assert few["value"] == pytest.approx(never[:15].mean()) and few["n"] == 15
    assert few["low"] is None and "no interval: fewer than 16 secrets" in few["method"]
    assert findings["exposure", "copies=64"]["low"] is not None
    difference = findings["exposure_difference", "copies=64-0"]
    assert difference["value"] is not None
    assert difference["low"] is difference["p"] is difference["minimum_detectable_effect"] is None
    assert "no interval: fewer than 16 secrets" in difference["method"]
    enough = compute_findings({0: never, 64: often})["exposure_difference", "copies=64-0"]
    assert enough["low"] is not None and enough["p"] < 0.01


def test_a_model_that_learned_nothing_fails_the_positive_control():
    rng = np.random.default_rng(5)
    random = [math.log2(1000) - np.log2(rng.integers(1, 1002, 16)) for _ in range(2)]
    findings = compute_findings({0: random[0], 64: random[1]})
    assert findings["exposure_of_most_copies", "copies=64"]["verdict"] == "fail"
    assert findings["exposure_of_never_planted", "copies=0"]["verdict"] == "pass"
    assert findings["exposure_difference", "copies=64-0"]["low"] < 0


def test_leaked_controls_fail_the_negative_control():
    """If the model knows secrets that were never planted, something is wrong with the audit."""
    findings = compute_findings({0: np.full(16, 8.0), 64: np.full(16, 9.9)})
    assert findings["exposure_of_never_planted", "copies=0"]["verdict"] == "fail"


def test_secrets_are_scored_after_the_tokens_that_all_share(model):
    """Then differences of log-likelihoods are those of the complete texts."""
    canaries = [
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
    builder = RequestBuilder()
    build_canary_requests(builder, model, canaries, ExtractionConfig(reference_secrets=100))
    (request,) = row_dicts(builder.requests)
    kinds = [item["kind"] for item in item_rows(builder).values()]
    assert kinds == ["canary"] * 3 + ["references"] and len(request["target_ids"]) == 103
    assert request["doc_ids"] == [canary["doc_ids"][0] for canary in canaries]
    secrets = [canary["secret"] for canary in canaries] + draw_reference_secrets("ferry", 100, 0, 3)
    texts = ["Numbers: (" + secret for secret in secrets]
    full_scores, _ = model.compute_log_likelihoods(texts)
    scores = [
        p.sum()
        for p in model.compute_target_log_probs(
            [request["context_ids"]] * 103, request["target_ids"]
        )
    ]
    np.testing.assert_allclose(scores - scores[0], full_scores - full_scores[0], atol=1e-4)
    for target, ids in zip(request["target_ids"], model.encode_batch(texts), strict=True):
        assert [*request["context_ids"], *target] == model.prepend_bos_id(ids)
    assert len({ids[0] for ids in request["target_ids"]}) > 1 and all(request["target_ids"])
    canaries[0]["prompt"] += "x"
    with pytest.raises(HallmarkError, match="differ in prompt or secret length"):
        build_canary_requests(builder, model, canaries, ExtractionConfig(reference_secrets=100))


def test_a_change_of_the_exposure_difference_is_paired_by_canary(model):
    """It is compared with the two-sample t test of the change of each canary's exposure."""
    canaries = [
        {
            "template": "ferry",
            "prompt": "Numbers: (",
            "secret": f"{n} 2 {copies}",
            "copies": copies,
            "canary_id": bytes([n, copies] * 8),
            "doc_ids": [],
        }
        for copies in (0, 1, 8)
        for n in range(10, 50)
    ]
    config, builder = ExtractionConfig(reference_secrets=100), RequestBuilder()
    build_canary_requests(builder, model, canaries, config)
    (request,) = row_dicts(builder.requests)
    rng = np.random.default_rng(3)
    differences, units, exposures_by_model = [], [], []
    for shift in (0, 2):
        scores = rng.normal(size=len(request["target_ids"]))
        scores[:120] += [shift * (canary["copies"] == 8) for canary in canaries]
        rows = [
            {"request": request["request"], "draw": draw, "log_probs": [score]}
            for draw, score in enumerate(scores)
        ]
        values, findings = PROBE.compute_values_and_findings(
            Responses(
                builder.build_items_table(PROBE.item_schema),
                builder.build_requests_table(),
                pa.Table.from_pylist(rows, schema=RESPONSES),
            ),
            config,
        )
        (row,) = [f for f in findings_to_rows(findings) if f["metric"] == "exposure_difference"]
        contributions = select_evidence(values, {"measure": "exposure_difference"})
        assert len(contributions) == 80 and name_slice(row["slice"]) == "copies=8-0"
        assert np.mean(contributions["value"].to_numpy()) == pytest.approx(row["value"])
        differences.append(row["value"])
        rows = contributions.select(["item", "cluster", "value"]).to_pylist()
        units.append({row["item"]: ComparisonUnit(row["cluster"], row["value"]) for row in rows})
        exposures = [
            select_evidence(values, {"measure": "exposure", "copies": copies}) for copies in (8, 0)
        ]
        exposures_by_model.append([table["value"].to_numpy() for table in exposures])
    change = compute_paired_change(*units)
    assert change["value"] == pytest.approx(differences[1] - differences[0])
    assert change["n"] == 80
    planted, control = (after - before for before, after in zip(*exposures_by_model, strict=True))
    test = stats.ttest_ind(planted, control)
    low, high = test.confidence_interval(0.95)
    assert change["value"] == pytest.approx(planted.mean() - control.mean())
    # The standard error uses deviations from both means, with 79 degrees of freedom, not 78.
    squares = ((planted - planted.mean()) ** 2).sum() + ((control - control.mean()) ** 2).sum()
    half_width = stats.t.ppf(0.975, 79) * np.sqrt(squares) * 2 / 80 * np.sqrt(80 / 79)
    # One side is wider, because the changes are skewed.
    sides = change["value"] - change["low"], change["high"] - change["value"]
    assert min(sides) == pytest.approx(half_width) and max(sides) < 1.2 * half_width
    assert half_width == pytest.approx((high - low) / 2, rel=0.05)


@pytest.mark.parametrize("reference_count", [100, 10_000, 1_000_000])
def test_the_explanation_states_the_exposure_expected_with_no_memorisation(reference_count):
    expected = compute_expected_null_exposure(reference_count)
    definition = PROBE.description.glossary["exposure"]
    assert f"about {expected:.1f} is expected on average without memorisation" in definition
