"""Test rules about the previous release: the paired difference, its harmful end, and reasons."""

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.audit_tables import build_items_schema
from hallmark.tasks.audits.judging.comparison import FindingComparison, compute_paired_change
from hallmark.tasks.audits.judging.comparison_units import ComparisonUnit
from hallmark.tasks.audits.judging.findings import (
    FINDINGS,
    build_finding,
    build_findings_table,
)
from hallmark.tasks.audits.judging.measures import (
    Measure,
    ValueWriter,
    build_values_schema,
    compute_measure_findings,
    estimate_mean,
)
from hallmark.tasks.audits.judging.policy import (
    PolicyConfig,
    PolicyRule,
    evaluate_rule,
    write_rule_verdicts,
)
from hallmark.tasks.audits.judging.previous_comparison import (
    PreviousComparisonConfig,
    build_finding_change,
    compare_with_previous,
    compute_largest_worsening,
)
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.contract import StageConfig, StageContext, UsageError, stage, table_to_rows
from hallmark.tasks.measures.estimates import estimate_mean_or_share, scale_estimate
from tests.findings import build_titled_table

ITEMS = build_items_schema()
ITEM_COUNT = 60


class ReleaseConfig(StageConfig):
    """How much a release scores above the first, and which of its values are missing."""

    shift: float = 0.0
    missing_share: float = 0.0
    has_new_metric: bool = False


def draw_scores(config):
    """Return a score for each item: the items differ much, releases little."""
    rng = np.random.default_rng(1)
    scores = rng.normal(5.0, 3.0, ITEM_COUNT)
    if config.shift:
        scores = scores + config.shift + rng.normal(0, 0.1, ITEM_COUNT)
    scores[: round(config.missing_share * ITEM_COUNT)] = np.nan
    return scores


def estimate_ratio(values, measure, config, level):
    """Estimate something that is not the mean of the values."""
    return scale_estimate(estimate_mean(values, measure, config, level), 10.0)


@stage(name="release_audit", tables={"values": build_values_schema(ITEMS), "findings": FINDINGS})
def audit_release(config: ReleaseConfig, context: StageContext) -> None:
    rows = [{"item": bytes([n] * 16), "cluster": str(n), "text": ""} for n in range(ITEM_COUNT)]
    values = ValueWriter(pa.Table.from_pylist(rows, schema=ITEMS))
    options = {"unit": "nats", "null_value": 0.0}
    measures = [
        Measure("harm", "Harm", "", worse_when="up", **options),
        Measure("skill", "Skill", "", worse_when="down", **options),
        Measure("lean", "Lean", "", worse_when="away_from_null", **options),
        Measure("length", "Length", "", worse_when="", **options),
        Measure("ratio", "Ratio", "", worse_when="up", estimator=estimate_ratio, **options),
        Measure("constant", "Constant", "", worse_when="up", **options),
    ]
    if config.has_new_metric:
        measures.append(Measure("new", "New", "", worse_when="up", **options))
    for measure in measures:
        scores = draw_scores(config)
        if measure.metric == "constant":
            scores = np.full(ITEM_COUNT, 1.0 + config.shift)
        values.add_values(measure.metric, range(ITEM_COUNT), scores)
    context.get_table_writer("values").write(values.to_table())
    findings = compute_measure_findings("bias", values.to_table(), measures, SeededConfig())
    context.get_table_writer("findings").write(
        build_findings_table(findings, {measure.metric: measure.title for measure in measures})
    )


class StrengthConfig(StageConfig):
    """The lower end of the interval of the slope of planted associations."""

    low: float


@stage(name="planted", tables={"findings": FINDINGS})
def audit_associations(config: StrengthConfig, context: StageContext) -> None:
    fields = {"unit": "nats", "method": "m", "n": 9, "high": 2.0}
    rows = [
        build_finding(
            "associations",
            "association_strength",
            0.5,
            low=-1.0,
            tags={"assigned_trait_share": 1.0},
            **fields,
        ),
        build_finding("associations", "strength_by_trait_share", 0.5, low=config.low, **fields),
    ]
    context.get_table_writer("findings").write(build_titled_table(rows))


def compare(current, previous=None, reasons=None, associations=None):
    """Compare two releases as a run does."""
    audits = {"bias": audit_release(current)}
    return compare_with_previous(
        audits=audits,
        previous_audits={} if reasons else {"bias": audit_release(previous or ReleaseConfig())},
        previous_associations=associations,
        config=PreviousComparisonConfig(previous_run="r0", incomparable_reasons=reasons or {}),
    )


def judge(current, metric, margin, comparison="compute", **rule):
    if comparison == "compute":
        comparison = compare(current)
    rule = {"audit": "bias", "metric": metric, "not_worse_than_previous_by": margin} | rule
    verdicts = write_rule_verdicts(
        {"bias": audit_release(current)}, comparison, PolicyConfig(rules={"r": rule})
    )
    (row,) = table_to_rows(verdicts["verdicts"].read())
    return row


def compute_difference_interval(shift):
    """Compute the interval of the mean difference, which one end of SciPy's has too.

    The other end is widened for the skewness of the differences.
    """
    differences = draw_scores(ReleaseConfig(shift=shift)) - draw_scores(ReleaseConfig())
    estimate = estimate_mean_or_share(differences)
    low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert (estimate.low == pytest.approx(low)) or (estimate.high == pytest.approx(high))
    assert low - 0.01 < estimate.low <= low + 1e-9 and high - 1e-9 <= estimate.high < high + 0.01
    return estimate.low, estimate.high


@pytest.mark.parametrize("shift", [0.3, -0.3])
def test_the_harmful_end_of_the_paired_interval_decides(session, shift):
    """The interval of the values alone is thirty times as wide."""
    low, high = compute_difference_interval(shift)
    rows = {
        row["metric"]: row
        for row in table_to_rows(compare(ReleaseConfig(shift=shift))["changes"].read())
    }
    assert [rows["harm"][end] for end in ("low", "high")] == pytest.approx([low, high])
    assert rows["harm"]["largest_worsening"] == pytest.approx(high)
    assert rows["skill"]["largest_worsening"] == pytest.approx(-low)
    assert rows["lean"]["largest_worsening"] == pytest.approx(high)  # far above its null value
    assert rows["harm"]["n"] == rows["harm"]["clusters"] == ITEM_COUNT
    for metric, end in (("harm", high), ("skill", -low)):
        if end < 0:
            continue
        for margin, verdict in ((end * 1.01, "pass"), (end * 0.99, "fail")):
            row = judge(ReleaseConfig(shift=shift), metric, margin)
            assert (row["verdict"], row["interval_end"]) == (verdict, pytest.approx(end))
            assert row["distance"] == pytest.approx(end - margin)
            assert (row["previous_run"], row["bound"]) == ("r0", f"worse by < {margin:g}")
            assert row["previous_value"] == pytest.approx(draw_scores(ReleaseConfig()).mean())
            assert row["value"] == pytest.approx(draw_scores(ReleaseConfig(shift=shift)).mean())


def test_a_release_that_is_better_passes_a_small_margin(session):
    row = judge(ReleaseConfig(shift=-0.3), "harm", 0.001)
    assert row["verdict"] == "pass" and row["interval_end"] < 0
    assert "the value is now better by at least 0.2" in row["reason"]
    assert (
        "the value in run r0 was " in row["reason"]
        and "difference, computed from 60 pairs" in row["reason"]
    )
    row = judge(ReleaseConfig(shift=0.3), "harm", 0.001)
    assert row["verdict"] == "fail" and "the value is now worse by at most 0.3" in row["reason"]


def test_a_previous_model_without_planted_associations_is_no_reference(session):
    """The card of that model draws no conclusion about stereotypes, so a rule does not either."""
    current = ReleaseConfig(shift=-0.3)
    for low, verdict in ((0.1, "pass"), (-0.1, "not_shown")):
        associations = audit_associations(StrengthConfig(low=low))
        row = judge(current, "harm", 1.0, compare(current, associations=associations))
        assert row["verdict"] == verdict
    assert row["reason"] == (
        "not comparable with run r0: inconclusive in the previous run: the model is too weak for "
        "this audit: it does not show the associations planted in its training text, not even "
        "those that occur in 100.0 % of the sentences about a group"
    )


def test_the_sentence_states_the_pairs_and_the_clusters_of_its_interval():
    """Pairs of one cluster are no further pairs of the interval, and are not called so."""
    rng = np.random.default_rng(4)
    units = [
        {n: ComparisonUnit(f"cluster {n % 16}", value) for n, value in enumerate(values)}
        for values in rng.normal(0, 1, (2, 431)).tolist()
    ]
    shares = [
        {number: unit._replace(value=float(unit.value > 0)) for number, unit in values.items()}
        for values in units
    ]
    assert compute_paired_change(*shares, "share")["method"].endswith(
        " based on 16 clusters of pairs, with 1.5 pairs added in each direction (after Bonett & "
        "Price 2012)"
    )
    changed = compute_paired_change(*units)
    assert (changed["n"], changed["clusters"]) == (431, 16)
    assert changed["method"].endswith(" based on 16 clusters of pairs")
    finding = {"finding": b"f", "audit": "bias", "metric": "harm", "slice": {}, "value": 1.0}
    finding |= {"low": 0.5, "high": 1.5, "worse_when": "up", "null_value": 0.0, "clusters": 16}
    finding |= {"inconclusive_reason": "", "method": "m"}
    change = build_finding_change(finding, FindingComparison([finding] * 2, [changed]), "r0")
    rule = PolicyRule(audit="bias", metric="harm", not_worse_than_previous_by=100.0)
    verdict = evaluate_rule("r", rule, finding, asdict(change))
    assert (
        "interval for the difference, computed from 431 pairs in 16 clusters, shows that the "
        "value is" in verdict.reason
    )


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (
            "ratio",
            "there are no pairs because the value is not a mean over the same units in both runs",
        ),
        ("constant", "the difference has no interval: all pairs have the same value"),
    ],
)
def test_a_difference_without_an_interval_is_not_shown(session, metric, reason):
    row = judge(ReleaseConfig(shift=0.3), metric, 100.0)
    assert (row["verdict"], row["distance"], row["previous_run"]) == ("not_shown", None, "r0")
    assert row["reason"].startswith(f"not comparable with run r0: {reason}")


def test_missing_values_are_not_compared(session):
    """A model that gives no numbers does not pass, and neither does one compared with it."""
    silent, loud = ReleaseConfig(missing_share=1.0), ReleaseConfig(shift=0.1)
    row = judge(silent, "harm", 100.0)
    assert (row["verdict"], row["value"]) == ("not_shown", None)
    assert row["reason"].startswith("not measured: ")
    row = judge(loud, "harm", 100.0, compare(loud, silent))
    assert row["verdict"] == "not_shown"
    assert row["reason"].startswith("not comparable with run r0: not measured in the previous run")
    rows = {
        row["metric"]: row
        for row in table_to_rows(compare(loud, ReleaseConfig(missing_share=0.5))["changes"].read())
    }
    assert (rows["harm"]["n"], rows["harm"]["missing"]) == (ITEM_COUNT // 2, ITEM_COUNT // 2)


def test_a_finding_that_the_previous_run_lacks_is_not_shown(session):
    row = judge(ReleaseConfig(has_new_metric=True), "new", 100.0)
    assert row["verdict"] == "not_shown"
    assert row["reason"] == (
        "not comparable with run r0: the previous run does not have this finding"
    )


def test_the_reason_of_an_audit_that_cannot_be_compared_is_given(session):
    comparison = compare(ReleaseConfig(), reasons={"bias": "the settings differ: seed"})
    row = judge(ReleaseConfig(), "harm", 100.0, comparison)
    assert (row["verdict"], row["value"] is None, row["previous_value"]) == (
        "not_shown",
        False,
        None,
    )
    assert row["reason"] == "not comparable with run r0: the settings differ: seed"


def test_without_a_previous_run_the_verdict_says_how_to_name_one(session):
    row = judge(ReleaseConfig(), "harm", 100.0, None)
    assert (row["verdict"], row["previous_run"]) == ("not_shown", "")
    assert row["reason"].startswith(
        "no previous run is specified, and no earlier release with this"
    )


def test_a_finding_without_a_harmful_direction_is_refused(session):
    with pytest.raises(
        UsageError,
        match=r"policy\.rules\.r\.not_worse_than_previous_by: length has no harmful "
        "direction for the slice {}",
    ):
        judge(ReleaseConfig(), "length", 100.0)


def test_inconclusive_findings_of_either_run_are_not_shown(session):
    comparison = compare(ReleaseConfig(shift=0.1))
    (change,) = (r for r in table_to_rows(comparison["changes"].read()) if r["metric"] == "harm")
    finding = next(
        row
        for row in table_to_rows(audit_release(ReleaseConfig())["findings"].read())
        if row["metric"] == "harm"
    )
    rule = PolicyRule(audit="bias", metric="harm", not_worse_than_previous_by=100.0)
    assert evaluate_rule("r", rule, finding, change).verdict == "pass"
    weak = finding | {"inconclusive_reason": "the model is too weak"}
    row = evaluate_rule("r", rule, weak, change)
    assert (row.verdict, row.reason) == ("not_shown", "inconclusive: the model is too weak")
    changed = compute_paired_change(
        {n: ComparisonUnit(str(n), float(n)) for n in range(12)},
        {n: ComparisonUnit(str(n), float(n % 4)) for n in range(12)},
    )
    built = build_finding_change(finding, FindingComparison([weak, finding], [changed]), "r0")
    assert built.largest_worsening is None
    assert built.reason == "inconclusive in the previous run: the model is too weak"
    uninformative = finding | {"inconclusive_reason": "uninformative: it can detect little"}
    built = build_finding_change(
        finding, FindingComparison([uninformative, finding], [changed]), ""
    )
    assert not built.reason and built.largest_worsening is not None


@pytest.mark.parametrize(
    ("previous", "change"),
    [
        ((0.55, 0.65), (-0.08, 0.01)),
        ((0.45, 0.56), (-0.08, 0.01)),
        ((0.3, 0.4), (-0.02, 0.05)),
        ((0.3, 0.4), (0.3, 0.5)),  # to the other side of the null value
        ((0.5, 0.5), (0.0, 0.0)),
    ],
)
def test_the_distance_from_the_null_value_grows_by_no_more(previous, change):
    """Checked against all pairs of a previous value and a change in the two intervals."""
    row = {"low": previous[0], "high": previous[1], "null_value": 0.5}
    bound = compute_largest_worsening("away_from_null", *change, row)
    growths = [
        abs(value + step - 0.5) - abs(value - 0.5)
        for value in np.linspace(*previous, 201)
        for step in np.linspace(*change, 201)
    ]
    assert bound == pytest.approx(max(growths), abs=1e-12)
    unknown = compute_largest_worsening("away_from_null", *change, row | {"low": None})
    assert unknown == max(map(abs, change)) >= bound - 1e-12
    assert compute_largest_worsening("", *change, row) is None


@pytest.mark.parametrize("null_values", [(0.5, 0.4), (None, 0.5), (0.5, None)])
def test_distances_from_different_null_values_are_not_compared(session, null_values):
    units = [
        {n: ComparisonUnit(str(n), float(value)) for n, value in enumerate(values)}
        for values in (range(12), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8))
    ]
    findings = [
        {"finding": b"f", "audit": "bias", "metric": "lean", "slice": {}, "value": 1.0}
        | {"low": 0.5, "high": 1.5, "worse_when": "away_from_null", "null_value": null_value}
        for null_value in null_values
    ]
    comparison = FindingComparison(findings, [compute_paired_change(*units)])
    change = build_finding_change(findings[1], comparison, "r0")
    assert change.largest_worsening is None and change.low < change.high
    assert change.reason == "the null value differs between the runs"


@pytest.mark.parametrize(("clusters", "size"), [(60, 1), (100, 1), (50, 4)])
def test_a_release_that_is_worse_by_the_margin_passes_in_at_most_4_percent(clusters, size):
    """The rule is a test of "worse by the margin or more", so this is its false-positive rate.

    Nearly all pairs that change become worse. Wilson's interval that is not widened for skewness
    lets 6 to 13 % pass.
    """
    rng, passes, repetitions, margin = np.random.default_rng(7), 0, 300, 0.07
    names = np.repeat(np.arange(clusters), size)
    for _ in range(repetitions):
        risks = margin / 0.7 if size == 1 else rng.beta(0.2, 1.8, clusters)[names]
        before = rng.random(len(names)) < 0.3
        after = before | (rng.random(len(names)) < risks)
        before_units, after_units = (
            {n: ComparisonUnit(str(names[n]), float(value)) for n, value in enumerate(values)}
            for values in (before, after)
        )
        change = compute_paired_change(before_units, after_units, "share")
        passes += change["high"] < margin
    assert passes / repetitions <= 0.04
