"""Test findings computed from values: null values, slices, uninformative values and clusters."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.audit_tables import CROSSED_CLUSTER, build_items_schema
from hallmark.tasks.audits.judging.comparison_units import average_values_by_item
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.instrument_controls import build_instrument_control_finding
from hallmark.tasks.audits.judging.measures import (
    SCORED_BY,
    BaselineNull,
    Measure,
    MeasureControl,
    NullInterval,
    Slice,
    UntrainedValues,
    ValueWriter,
    compute_length_preferences,
    compute_measure_findings,
    compute_preferences,
    estimate_mean,
    estimate_untested_mean,
)
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import column
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from tests.findings import findings_to_rows

CONFIG = SeededConfig()
SCHEMA = build_items_schema(column("kind", pa.string(), "label", "its kind"))


def compute_rows(*arguments):
    return findings_to_rows(compute_measure_findings(*arguments))


def make_items(count, clusters, schema=SCHEMA, **tags):
    rows = [
        {
            "item": bytes([i] * 16),
            "cluster": f"c{i % clusters}",
            "text": f"text {i}",
            "kind": "ab"[i % 2],
            **{name: value[i] for name, value in tags.items()},
        }
        for i in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def test_a_finding_is_the_mean_of_the_values_it_names():
    values = ValueWriter(make_items(60, 60))
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 60), rng.integers(0, 2, 40).astype(float)
    first[[3, 8]] = np.nan
    values.add_values("distance", np.arange(60), first)
    values.add_values("share of it", np.arange(20, 60), second, null_values=np.full(40, 0.25))
    table = values.to_table()
    measures = (
        Measure("distance", "Distance", "by hand", "nats", null_value=0.0, slices=("kind",)),
        Measure("share of it", "Share of it", "by hand", null_value="own"),
        Measure("nobody has it", "Nobody has it", "by hand"),
    )
    findings = compute_rows("audit", table, measures, CONFIG, "a note")
    names = [(row["metric"], name_slice(row["slice"])) for row in findings]
    assert names == [
        ("distance", ""),
        ("distance", "a"),
        ("distance", "b"),
        ("share of it", ""),
        ("nobody has it", ""),
    ]
    for row in findings[:4]:
        evidence = select_evidence(table, row["evidence_filter"])
        known_values = evidence["value"].drop_null().to_numpy()
        assert row["value"] == pytest.approx(known_values.mean()) and row["n"] == len(known_values)
        assert row["missing"] == evidence["value"].null_count and row["evidence_table"] == "values"
        assert row["method"].startswith("by hand; a note; ")
    assert (
        findings[0]["missing"] == 2 and findings[0]["null_value"] == 0.0 and findings[0]["p"] < 1e-6
    )
    assert findings[3]["null_value"] == 0.25 and findings[3]["minimum_detectable_effect"] > 0
    assert findings[4]["value"] is None and findings[4]["n"] == 0 and findings[4]["unit"] == "share"
    expected = estimate_mean_or_share(first, is_share=False, null_value=0)
    assert (findings[0]["low"], findings[0]["high"]) == (expected.low, expected.high)


def test_the_null_value_averages_over_items_with_a_value():
    values = ValueWriter(make_items(60, 60))
    item_values, null_values = np.arange(60) % 2 * 1.0, np.full(60, 0.5)
    item_values[:30], null_values[:30] = np.nan, 1.0
    values.add_values("share", np.arange(60), item_values, null_values=null_values)
    (finding,) = compute_rows(
        "audit", values.to_table(), [Measure("share", "Share", "", null_value="own")], CONFIG
    )
    assert (finding["value"], finding["null_value"], finding["n"]) == (0.5, 0.5, 30) and finding[
        "p"
    ] > 0.9


VALUE_FIELDS = (
    SCORED_BY,
    column("draw", pa.int32(), "figure", "which text"),
    column("writer", pa.string(), "label", "who wrote it"),
)


def test_a_measure_filters_values_by_their_fields():
    values = ValueWriter(make_items(30, 30), value_fields=VALUE_FIELDS)
    rng = np.random.default_rng(5)
    model_values, baseline_values = rng.uniform(0.5, 1, 60), rng.uniform(0, 0.4, 30)
    values.add_values(
        "x",
        np.repeat(np.arange(30), 2),
        model_values,
        draw=np.arange(60) % 2,
        writer="model",
        scorer="by hand",
    )
    values.add_values("x", np.arange(30), baseline_values, writer=["nobody"] * 30)
    table = values.to_table()
    assert table["draw"].null_count == 30 == table["scorer"].null_count
    baseline_means = {}

    def set_baseline_null(found, rows, all_values):
        baseline_means["floor"] = (
            select_evidence(all_values, {"writer": "nobody"})["value"].to_numpy().mean()
        )
        assert len(rows) == found.n and len(all_values) == 90
        return replace(found, null_value=baseline_means["floor"])

    measures = (
        Measure(
            "x",
            "X",
            "",
            "score",
            row_filter={"writer": "model"},
            slices=("draw",),
            baseline=BaselineNull(set_baseline_null),
            worse_when="up",
        ),
        Measure(
            "y",
            "Y",
            "",
            "score",
            row_filter={"measure": "x", "writer": "nobody"},
            worse_when="down",
            evidence_order="draw",
        ),
    )
    found = compute_rows("audit", table, measures, CONFIG)
    assert [(r["metric"], name_slice(r["slice"])) for r in found] == [
        ("x", ""),
        ("x", "draw=0"),
        ("x", "draw=1"),
        ("y", ""),
    ]
    for row in found:
        evidence = select_evidence(table, row["evidence_filter"])
        assert row["value"] == pytest.approx(evidence["value"].to_numpy().mean())
    assert [r["scorer"] for r in found] == ["by hand"] * 3 + [""]
    assert [r["evidence_order"] for r in found] == ["-value"] * 3 + ["draw"]
    assert found[0]["null_value"] == baseline_means["floor"] and found[3]["null_value"] is None


def test_values_of_an_item_are_averaged():
    values = ValueWriter(make_items(3, 3), value_fields=VALUE_FIELDS)
    values.add_values("x", [2, 0, 2, 1], [1.0, 5.0, 4.0, np.nan], draw=[0, 0, 1, 0])
    units = average_values_by_item(values.to_table())
    assert units["text"].to_pylist() == ["text 2", "text 0", "text 1"]
    assert units["value"].to_pylist() == [2.5, 5.0, None] and units["draw"].to_pylist() == [0] * 3
    assert units.schema == values.to_table().schema


def test_a_slice_excludes_items_in_the_training_text():
    in_training = np.arange(60) % 3 == 0
    values = ValueWriter(make_items(60, 60), in_training)
    values.add_values("x", np.arange(60), np.where(in_training, 5.0, 1.0) + np.arange(60) / 100)
    measure = Measure("x", "X", "", "nats", null_value=0.0)
    whole, rest = compute_rows("audit", values.to_table(), [measure], CONFIG)
    assert (whole["n"], rest["n"], name_slice(rest["slice"])) == (60, 40, "in_training_text=False")
    assert whole["value"] > 2 > rest["value"]
    assert len(select_evidence(values.to_table(), rest["evidence_filter"])) == 40
    for flags in (None, np.zeros(60, bool)):
        values = ValueWriter(make_items(60, 60), flags)
        values.add_values("x", np.arange(60), np.ones(60))
        assert len(compute_rows("audit", values.to_table(), [measure], CONFIG)) == 1
        assert values.to_table()["in_training_text"].null_count == (60 if flags is None else 0)


def test_clusters_are_those_of_the_items():
    values = ValueWriter(make_items(120, 12))
    values.add_values("x", np.arange(120), np.arange(120) % 12)  # the same within a cluster
    (row,) = compute_rows(
        "audit", values.to_table(), [Measure("x", "X", "", "nats", "things")], CONFIG
    )
    assert row["clusters"] == 12 and "based on 12 things" in row["method"]
    half = stats.t.ppf(0.975, 11) * np.arange(12).std(ddof=1) / 12**0.5
    assert (row["low"], row["high"]) == pytest.approx((5.5 - half, 5.5 + half))


def test_instrument_controls_detect_simulated_effects():
    rng = np.random.default_rng(3)
    chance, large = rng.normal(size=60), rng.normal(4, 1, size=60)

    def verdict(values, effect):
        writer = ValueWriter(make_items(60, 60))
        writer.add_values("x", np.arange(60), values)
        control = build_instrument_control_finding(
            "a", writer.to_table(), Measure("x", "X", "", "nats", null_value=0.0), CONFIG, effect
        )
        assert control.control_target == "instrument" and control.confidence_level in (0.999, None)
        assert control.control == ("positive" if effect else "negative")
        return control.verdict

    assert verdict(chance, False) == "pass" == verdict(large, True)
    assert verdict(large, False) == "fail" == verdict(chance, True)
    assert verdict(-large, True) == "fail"  # the effect must be on the correct side
    assert verdict(np.full(60, 2.0), True) == "pass"  # all values agree
    assert verdict(np.zeros(60), False) == "pass" and verdict(np.zeros(60), True) == "fail"
    assert verdict(np.full(60, np.nan), True) == "fail" == verdict(np.full(60, np.nan), False)


def test_uninformative_values_give_no_figure():
    measure = Measure(
        "x",
        "X",
        "",
        "score",
        null_value=0.0,
        uninformative=0.0,
        slices=("kind",),
        include_overall=False,
    )
    values = ValueWriter(make_items(40, 40))
    values.add_values("x", np.arange(40), [0.0, 1.0] * 20)
    findings = compute_rows("audit", values.to_table(), [measure], CONFIG)
    assert [(name_slice(row["slice"]), row["value"]) for row in findings] == [
        ("a", None),
        ("b", 1.0),
    ]
    assert findings[0]["p"] is None and (findings[0]["n"], findings[0]["missing"]) == (20, 0)
    values = ValueWriter(make_items(40, 40))
    values.add_values("x", np.arange(40), [0.0, np.nan, 0.0, 1.0] * 10)  # some numbers are missing
    (findings, _) = compute_rows("audit", values.to_table(), [measure], CONFIG)
    assert findings["value"] is None and (findings["n"], findings["missing"]) == (20, 0)


def test_an_extreme_null_value_of_all_items_is_not_tested():
    """A single preferred pair whose null value is 0 would otherwise be an impossible finding."""
    measure = Measure("x", "X", "", null_value="own")
    for null_value in (0.0, 1.0, 0.5):
        values = ValueWriter(make_items(6, 6))
        values.add_values("x", np.arange(6), [1.0, 1.0, 1.0, 1.0, 1.0, 0.0], [null_value] * 6)
        (finding,) = compute_rows("audit", values.to_table(), [measure], CONFIG)
        assert finding["null_value"] == null_value and (finding["p"] is None) == (null_value != 0.5)
        assert finding["low"] is not None and finding["value"] == pytest.approx(5 / 6)


def test_preferences_by_score_and_by_length():
    nan = np.nan
    np.testing.assert_array_equal(
        compute_preferences([1.0, 2, 2, nan, 1], [2.0, 1, 2, 1, nan]), [0, 1, 0.5, nan, nan]
    )
    assert compute_length_preferences(["a", "bb", "é", "x"], ["bb", "a", "e", "y"]).tolist() == [
        1,
        0,
        0,
        0.5,
    ]


def compute_variance_by_pairs(values, first, second):
    """Compute the variance of two-way clusters pair by pair, and its degrees of freedom."""
    n, deviations = len(values), values - values.mean()
    combined = [*zip(first, second, strict=True)]
    factors = [len({*names}) / (len({*names}) - 1) for names in (first, second, combined)]
    totals = [0.0, 0.0, 0.0]
    for i in range(n):
        for j in range(n):
            for clustering, names in enumerate((first, second, combined)):
                totals[clustering] += (
                    factors[clustering] * deviations[i] * deviations[j] * (names[i] == names[j])
                )
    first, second, combined = totals
    if first + second - combined > combined:
        return (first + second - combined) / n**2, 9  # 10 clusters in the smaller clustering
    return combined / n**2, 119


def compute_widened_half_width(values, first, second, variance, freedom):
    """Compute the half width at the end of the longer tail: Johnson's term times 2.5."""
    deviations = values - values.mean()

    def sum_powers(names, power):
        groups = dict.fromkeys(names, 0.0)
        for name, deviation in zip(names, deviations, strict=True):
            groups[name] += deviation
        return sum(group**power for group in groups.values())

    combined = [*zip(first, second, strict=True)]
    parts = [(first, 1), (second, 1), (combined, -1)] if freedom == 9 else [(combined, 1)]
    squares, cubes = (
        sum(sign * sum_powers(names, power) for names, sign in parts) for power in (2, 3)
    )
    n = freedom + 1
    skewness = 2.5 * (n * (n - 1)) ** 0.5 / (n - 2) * abs(cubes) / squares**1.5
    quantile = stats.t.ppf(0.975, freedom)
    return variance**0.5 * (quantile + skewness * (2 * quantile**2 + 1) / 6)


def test_two_way_variance_equals_sum_over_pairs():
    """Also with clusters of equal size, as a jackknife has them."""
    rng = np.random.default_rng(2)
    first, second = (np.arange(240) % 12).tolist(), (np.arange(240) // 24).tolist()
    freedoms = set()
    shared = rng.normal(size=12)[first] + rng.normal(size=10)[second]
    for values in (shared, *rng.normal(size=(4, 240))):
        estimate = estimate_mean_or_share(values, first, crossed_clusters=second, null_value=0.3)
        variance, freedom = compute_variance_by_pairs(values, first, second)
        freedoms.add(freedom)
        half = stats.t.ppf(0.975, freedom) * variance**0.5
        # One end may be widened for skewness, and p with it.
        widths = sorted((values.mean() - estimate.low, estimate.high - values.mean()))
        assert widths[0] == pytest.approx(half)
        widened = compute_widened_half_width(values, first, second, variance, freedom)
        assert widths[1] == pytest.approx(widened) and widened >= half
        assert (
            estimate.clusters == 10
            and "two-way clustering: 12 items and 10 clusters in the second dimension"
            in estimate.method
        )
        t = (values.mean() - 0.3) / variance**0.5
        assert estimate.p >= 2 * stats.t.sf(abs(t), freedom) * (1 - 1e-9)
        assert estimate.minimum_detectable_effect > 0
    assert freedoms == {9, 119}
    one = estimate_mean_or_share(values, first, crossed_clusters=[0] * 240)
    assert one.clusters == len({*first})  # a single crossed cluster is ignored
    schema = build_items_schema(column("kind", pa.string(), "label", "its kind"), CROSSED_CLUSTER)
    writer = ValueWriter(make_items(240, 12, schema, crossed_cluster=[f"d{i}" for i in second]))
    writer.add_values("x", np.arange(240), values)
    (row,) = compute_rows("audit", writer.to_table(), [Measure("x", "X", "", "nats")], CONFIG)
    expected = estimate_mean_or_share(
        values, [f"c{i % 12}" for i in range(240)], crossed_clusters=second
    )
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("share", [False, True])
def test_two_way_intervals_have_nominal_coverage(share):
    """Over 1,000 worlds in which items share two things; with only one clustering it is too low."""
    rng = np.random.default_rng(7)
    first, second = np.arange(600) % 30, np.arange(600) // 20
    covered = {"both": 0, "one": 0}
    for _ in range(1000):
        values = rng.normal(size=30)[first] + rng.normal(size=30)[second] + rng.normal(size=600)
        if share:
            values = (values > 0).astype(float)
        null = 0.5 if share else 0.0
        for name, crossed in (("both", second.tolist()), ("one", None)):
            estimate = estimate_mean_or_share(
                values, first.tolist(), is_share=share, crossed_clusters=crossed
            )
            covered[name] += estimate.low <= null <= estimate.high
    assert 925 <= covered["both"] <= 980 and covered["one"] < 900


@pytest.mark.parametrize("share", [False, True])
def test_two_way_clusters_of_independent_items_keep_the_width(share):
    """Compared with the interval over items alone, in 300 worlds."""
    rng = np.random.default_rng(8)
    ratios = []
    for _ in range(300):
        first, second = rng.integers(0, 20, (2, 370))
        values = rng.normal(size=370)
        if share:
            values = (values > 0).astype(float)
        two_way = estimate_mean_or_share(
            values, first.tolist(), is_share=share, crossed_clusters=second.tolist()
        )
        one_way = estimate_mean_or_share(values, is_share=share)
        ratios.append((two_way.high - two_way.low) / (one_way.high - one_way.low))
    assert 1 <= np.median(ratios) < 1.08 and np.mean(ratios) < 1.22


def test_controls_use_the_null_interval():
    """The model must be above the interval, the audit within it; here for a normal mean."""

    def normal_interval(n, config):
        half = stats.norm.ppf(0.995) / n**0.5
        return NullInterval(-half, half, 0.0)

    def kind_b(values):
        return [Slice({"kind": "b"}, {"kind": ["b"]})]

    measures = (
        Measure(
            "x", "X", "how", "nats", slices=(kind_b,), include_overall=False, evidence_order="-text"
        ),
        Measure(
            "strong",
            "Strong",
            "how",
            "nats",
            row_filter={"measure": "x"},
            slices=(kind_b,),
            control=MeasureControl("model", normal_interval),
            include_overall=False,
        ),
        Measure(
            "sound",
            "Sound",
            lambda values, config: f"of {len(values)}",
            "nats",
            row_filter={"measure": "x"},
            control=MeasureControl("instrument", normal_interval),
        ),
    )

    def controls(shift):
        values = ValueWriter(make_items(60, 60), np.arange(60) % 2 == 0)
        values.add_values("x", np.arange(60), stats.norm.ppf((np.arange(60) + 0.5) / 60) + shift)
        plain, strong, sound = (
            row
            for row in compute_rows("a", values.to_table(), measures, CONFIG, "note")
            if name_slice(row["slice"]) != "in_training_text=False"
        )
        assert (
            name_slice(plain["slice"]),
            name_slice(strong["slice"]),
            name_slice(sound["slice"]),
        ) == ("b", "b", "")
        assert plain["evidence_order"] == "-text" and plain["n"] == strong["n"]
        assert (strong["low"], strong["high"]) == (plain["low"], plain["high"])
        assert (strong["control"], strong["control_target"]) == ("positive", "model")
        assert (sound["control"], sound["control_target"]) == ("negative", "instrument")
        assert (sound["low"], sound["high"]) == pytest.approx(
            normal_interval(sound["n"] or 1, CONFIG)[:2]
        )
        assert sound["confidence_level"] == 0.99 and sound["method"].startswith(
            "of 60; note; the control passes if the value is within the null interval"
        )
        assert (
            select_evidence(values.to_table(), strong["evidence_filter"])["kind"].to_pylist()
            == ["b"] * 30
        )
        return strong["verdict"], sound["verdict"]

    assert controls(0) == ("fail", "pass") and controls(1) == ("pass", "fail")
    assert controls(-1) == ("fail", "fail")  # an audit may be broken in either direction
    assert controls(np.nan) == ("not_shown", "fail")


def test_fields_of_values_make_slices():
    value_fields = (
        column("rank", pa.int32(), "figure", "its rank"),
        column("said", pa.string(), "label", "what was said"),
    )
    values = ValueWriter(make_items(4, 4), value_fields=value_fields)
    values.add_values("x", [0, 2], [1.0, 2.0], rank=[3, np.nan], said=["one", None])
    values.add_values("y", [1], [5.0])
    rows = values.to_table()
    assert (
        rows.schema.names[-2:] == ["rank", "said"] and rows.schema.field("rank") == value_fields[0]
    )
    assert rows["rank"].to_pylist() == [3, None, None]
    assert rows["said"].to_pylist() == ["one", None, None]
    findings = compute_rows(
        "a", rows, [Measure("x", "X", "", slices=("said",), include_overall=False)], CONFIG
    )
    assert [(name_slice(row["slice"]), row["value"]) for row in findings] == [("said=one", 1.0)]


def test_an_untested_mean_has_no_p():
    values = ValueWriter(make_items(60, 60))
    values.add_values("x", np.arange(60), np.arange(60) % 3 == 0)
    tested, untested = (
        compute_rows(
            "a",
            values.to_table(),
            [Measure("x", "X", "", null_value=0.0, estimator=estimator)],
            CONFIG,
        )[0]
        for estimator in (estimate_mean, estimate_untested_mean)
    )
    assert (
        tested["p"] is not None and untested["p"] is untested["minimum_detectable_effect"] is None
    )
    assert untested["null_value"] == 0
    compared_fields = ("value", "low", "high", "n", "clusters", "method")
    assert [untested[name] for name in compared_fields] == [
        tested[name] for name in compared_fields
    ]


def test_a_mean_must_differ_from_those_of_untrained_models():
    """Each slice is compared with the same slice of the untrained models."""
    measure = Measure("x", "X", "", null_value=0.5, slices=("kind",), compares_with_untrained=True)
    rng = np.random.default_rng(0)

    def write_values(shares):
        values = ValueWriter(make_items(200, 200))
        kinds = values.items["kind"].to_pylist()
        values.add_values("x", np.arange(200), [rng.random() < shares[kind] for kind in kinds])
        return values.to_table()

    audited = write_values({"a": 0.85, "b": 0.75})
    untrained = [write_values({"a": 0.5, "b": share}) for share in np.linspace(0.2, 0.8, 20)]

    def compute(measures, untrained_values):
        findings = compute_measure_findings(
            "audit", audited, measures, CONFIG, "", untrained_values
        )
        return {name_slice(finding.slice): finding for finding in findings}

    alone = compute([measure], UntrainedValues())
    both = compute([measure], UntrainedValues(untrained))
    assert alone["a"].p < 0.001 and alone["b"].p < 0.001
    assert both["a"].p < 0.01 and both["b"].p > 0.05
    assert "20 untrained models" in both["b"].method and "untrained" not in alone["b"].method
    ordinary = compute(
        [replace(measure, compares_with_untrained=False)], UntrainedValues(untrained)
    )
    assert ordinary == alone
    failed = compute([measure], UntrainedValues((), "no such layer"))
    assert failed["b"].p == alone["b"].p and "(no such layer)" in failed["b"].method
