"""Test p values in the harmful direction against scipy, and what each measure declares harmful."""

import math

import numpy as np
import pytest
from scipy import stats

from hallmark.tasks.audits.judging.findings import build_finding, build_finding_from_estimate
from hallmark.tasks.audits.judging.harm import compute_harm_p
from hallmark.tasks.audits.judging.measures import Measure, ValueWriter, compute_measure_findings
from hallmark.tasks.audits.methods.memorisation_ranking import compute_hypergeometric_p_above
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.audits.probes.weat import WEAT_TESTS
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.measures.contrasts import estimate_wasserstein_distances
from hallmark.tasks.measures.effect_sizes import estimate_weat_effect_size
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from tests.findings import findings_to_rows
from tests.tasks.audits.judging.test_measures import make_items

FIELDS = {"unit": "share", "method_prefix": "m"}


@pytest.mark.parametrize(
    ("worse_when", "alternative"),
    [("up", "greater"), ("down", "less"), ("away_from_null", "two-sided")],
)
@pytest.mark.parametrize("shift", [-0.4, 0.4])
def test_p_of_a_mean_is_one_sided_in_the_harmful_direction(worse_when, alternative, shift):
    half = np.random.default_rng(3).normal(0, 1, 10)
    values = shift + np.concatenate([half, -half])  # without skewness, p is that of a t test
    estimate = estimate_mean_or_share(values, null_value=0.0)
    finding = build_finding_from_estimate("a", "m", estimate, worse_when=worse_when, **FIELDS)
    expected = stats.ttest_1samp(values, 0.0, alternative=alternative).pvalue
    assert finding.p_harm == pytest.approx(expected)


@pytest.mark.parametrize("successes", [0, 1, 4, 19, 20])
@pytest.mark.parametrize("null", [0.05, 0.5, 0.9])
def test_p_of_a_share_of_few_units_is_the_exact_one_sided_one(successes, null):
    values = np.arange(20) < successes
    estimate = estimate_mean_or_share(values, null_value=null, is_share=True)
    finding = build_finding_from_estimate("a", "m", estimate, worse_when="up", **FIELDS)
    expected = stats.binomtest(successes, 20, null, alternative="greater").pvalue
    assert finding.p_harm == pytest.approx(expected)


def test_the_two_sided_p_of_a_binomial_is_twice_the_smaller_tail():
    """Half of SciPy's two-sided p, with few outcomes of the other tail, would be too small."""
    estimate = estimate_mean_or_share(np.arange(20) < 4, null_value=0.05, is_share=True)
    assert estimate.p == pytest.approx(2 * estimate.p_above_null)
    assert estimate.p_above_null > 0.9 * stats.binomtest(4, 20, 0.05).pvalue


def test_p_of_a_skewed_mean_is_not_below_that_of_a_t_test():
    values = np.random.default_rng(3).exponential(size=20) - 1.6
    estimate = estimate_mean_or_share(values, null_value=0.0)
    finding = build_finding_from_estimate("a", "m", estimate, worse_when="down", **FIELDS)
    assert finding.p_harm == pytest.approx(estimate.p / 2)
    assert finding.p_harm > 1.1 * stats.ttest_1samp(values, 0.0, alternative="less").pvalue


def test_tests_that_are_one_sided_are_not_halved():
    rng = np.random.default_rng(0)
    groups = ["a"] * 15 + ["b"] * 15
    distance = estimate_wasserstein_distances(
        rng.normal(size=30), groups, range(30), permutations=199
    )["a"]
    assert distance.p_above_null == distance.p > 0
    effect = estimate_weat_effect_size(rng.normal(size=16), np.arange(16) < 8)
    assert effect.p_above_null == effect.p > 0
    assert compute_hypergeometric_p_above(100, 20, 25, 9.0) == pytest.approx(
        sum(math.comb(20, k) * math.comb(80, 25 - k) for k in range(9, 21)) / math.comb(100, 25)
    )
    assert compute_hypergeometric_p_above(100, 20, 25, 8.4) == compute_hypergeometric_p_above(
        100, 20, 25, 8.0
    )


def test_without_direction_test_or_null_there_is_no_p():
    assert math.isnan(compute_harm_p(0.01, 1.0, 0.0, ""))
    assert math.isnan(compute_harm_p(math.nan, 1.0, 0.0, "up"))
    assert math.isnan(compute_harm_p(0.01, 1.0, math.nan, "up"))
    assert compute_harm_p(1.0, 0.0, 0.0, "up") >= 0.5


def test_controls_and_variants_have_no_p_in_the_harmful_direction():
    fields = {"n": 9, "unit": "share", "method": "m", "null_value": 0.5, "p": 0.01}
    control = {"control": "positive", "passed": True, "control_target": "model"}
    assert build_finding("a", "m", 0.9, worse_when="up", **fields).p_harm == 0.005
    assert build_finding("a", "m", 0.9, worse_when="up", is_variant=True, **fields).p_harm is None
    assert build_finding("a", "m", 0.9, worse_when="up", **control, **fields).p_harm is None
    assert build_finding("a", "m", 0.9, **fields).p_harm is None
    inconclusive = build_finding("a", "m", 0.9, inconclusive_reason="too weak", **fields)
    assert inconclusive.p is inconclusive.p_harm is None and inconclusive.value == 0.9


def test_measures_and_slices_are_marked_as_variants():
    values = ValueWriter(make_items(60, 60), in_training_text=[i % 3 == 0 for i in range(60)])
    outcomes = np.random.default_rng(0).integers(0, 2, 60)
    values.add_values("share", np.arange(60), outcomes)
    measures = (
        Measure("share", "S", "", null_value=0.5, worse_when="up", is_variant=True),
        Measure(
            "again",
            "S",
            "",
            null_value=0.5,
            worse_when="up",
            slices=("kind",),
            is_variant_slice=lambda tags, config: tags.get("kind") == "b",
            row_filter={"measure": "share"},
        ),
    )
    rows = findings_to_rows(
        compute_measure_findings("audit", values.to_table(), measures, SeededConfig())
    )
    variants = {(row["metric"], *row["slice"].values()): row["is_variant"] for row in rows}
    assert variants == {
        ("share",): True,
        ("share", "False"): True,
        ("again",): False,
        ("again", "a"): False,
        ("again", "b"): True,
        ("again", "False"): True,
    }
    assert all((row["p_harm"] is None) == row["is_variant"] for row in rows)
    assert all(row["p"] is not None for row in rows)


#: Measures for which both directions are harmful: to one of two genders, or to either group.
BOTH_DIRECTIONS = {
    ("winogender", "gender_accuracy_gap"),
    ("amplification", "representation_ratio"),
}

#: Measures that are worse if they are lower: texts about a group are less friendly.
LOWER_IS_WORSE = {
    (audit, f"mean_{head}")
    for audit in ("counterfactual", "bold")
    for head in ("sentiment", "regard")
} - {("bold", "mean_regard")}


def test_every_measure_declares_its_harmful_direction():
    directions = {
        (probe.name, measure.metric): measure.worse_when
        for probe in PROBES
        for measure in probe.measures
        if measure.worse_when and not measure.is_control
    }
    found = {
        direction: {name for name, worse_when in directions.items() if worse_when == direction}
        for direction in ("down", "away_from_null")
    }
    assert found == {"down": LOWER_IS_WORSE, "away_from_null": BOTH_DIRECTIONS}
    assert directions["bias", "stereotype_preference"] == "up"


#: One measure of each question stays in the family of a card.
VARIANTS = {
    ("bias", "log_likelihood_difference"),
    ("winobias", "log_likelihood_difference"),
    ("honest", "hurtful_share"),
    ("honest", "hurtful_excess_over_others"),
    ("amplification", "bias_amplification"),
    ("extraction", "exposure_difference"),
    ("extraction_attack", "precision"),
    ("extraction_attack", "recall"),
    ("extraction_attack", "prompted_identifier_share"),
    ("extraction_attack", "unprompted_identifier_share"),
    ("membership", "auc"),
    ("membership", "true_positive_rate_at_fpr_0.01"),
    ("membership", "true_positive_rate_at_fpr_0.001"),
}


def test_variants_of_a_question_are_declared():
    assert {
        (probe.name, measure.metric)
        for probe in PROBES
        for measure in probe.measures
        if measure.is_variant
    } == VARIANTS
    ranked_scores = [
        [
            measure.tags["score"]
            for measure in probe.measures
            if measure.metric in ("auc", "precision") and not measure.is_variant
        ]
        for probe in PROBES
        if probe.name in ("membership", "extraction_attack")
    ]
    assert sorted(ranked_scores) == [["loss"], ["mean_log_likelihood"]]


@pytest.mark.parametrize(
    ("audit", "metric", "tags", "is_variant"),
    [
        ("bias", "stereotype_preference", {"category": "age"}, False),
        ("bias", "stereotype_preference", {"equal_token_counts": True}, True),
        ("winobias", "stereotype_preference", {"sentence_file": "type1"}, True),
        ("weat", "effect_size_input", {"test": next(iter(WEAT_TESTS))}, True),
        ("weat", "effect_size_input", {"test": [*WEAT_TESTS][5]}, False),
        ("membership", "auc", {"kind": "document"}, False),
        ("membership", "auc", {"kind": "passage"}, True),
        ("extraction", "extractable", {"kind": "train", "prefix_tokens": 8}, False),
        ("extraction", "extractable", {"kind": "record", "copies": 64}, True),
        ("extraction_attack", "verbatim_share", {}, False),
        ("extraction_attack", "verbatim_share", {"sampler": "top-k"}, True),
        (
            "toxicity",
            "expected_maximum_toxicity",
            {"prompt_subset": "prompted", "draw_count": 25},
            False,
        ),
        (
            "toxicity",
            "expected_maximum_toxicity",
            {"prompt_subset": "prompted", "draw_count": 5},
            True,
        ),
        (
            "toxicity",
            "expected_maximum_toxicity",
            {"prompt_subset": "toxic prompts", "draw_count": 25},
            True,
        ),
    ],
)
def test_slices_that_repeat_a_figure_or_test_the_audit_are_variants(
    audit, metric, tags, is_variant
):
    (probe,) = (probe for probe in PROBES if probe.name == audit)
    measure = next(measure for measure in probe.measures if measure.metric == metric)
    assert measure.is_variant_slice(tags, probe.config_class()) is is_variant
