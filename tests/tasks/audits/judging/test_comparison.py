"""Test paired comparisons of two audits: differences, intervals and reasons for incomparability."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.audit_tables import build_items_schema
from hallmark.tasks.audits.judging.comparison import (
    compare_findings,
    compute_paired_change,
    explain_incomparability,
)
from hallmark.tasks.audits.judging.comparison_units import (
    AREA_UNIT,
    ComparisonUnit,
    build_auc_units,
)
from hallmark.tasks.audits.judging.findings import FINDINGS, build_findings_table
from hallmark.tasks.audits.judging.measures import (
    Measure,
    ValueWriter,
    build_values_schema,
    compute_measure_findings,
    estimate_mean,
)
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.contract import Artifact, StageConfig, StageContext, stage
from hallmark.tasks.measures.estimates import scale_estimate


def test_pairs_need_the_same_units_on_both_sides():
    """A difference over the common units alone would contradict the two values."""
    first = {
        "a": ComparisonUnit("x", 1.0),
        "b": ComparisonUnit("x", 2.0),
        "c": ComparisonUnit("y", 3.0),
        "d": ComparisonUnit("z", float("nan")),
    }
    second = {
        "a": ComparisonUnit("x", 2.0),
        "b": ComparisonUnit("x", 4.0),
        "c": ComparisonUnit("y", 4.0),
        "d": ComparisonUnit("z", 1.0),
    }
    change = compute_paired_change(first, second)
    assert change["value"] == pytest.approx(4 / 3) and change["n"] == 3 and change["missing"] == 1
    assert change["clusters"] == 2
    assert compute_paired_change(first, second | {"e": ComparisonUnit("w", 9.0)}) is None
    assert compute_paired_change(first | {"e": ComparisonUnit("w", 9.0)}, second) is None
    assert (
        compute_paired_change(first, {"q": ComparisonUnit("x", 1.0)}) is None
        and compute_paired_change(first, None) is None
    )
    unchanged = compute_paired_change(first, first)
    assert unchanged["value"] == 0.0 and unchanged["low"] is None
    assert (change["low"], change["p"]) == (None, None)
    assert change["method"] == "no interval: fewer than 10 clusters of pairs"
    many = [
        {k: ComparisonUnit(f"{k // 2}", float(k % factor)) for k in range(24)} for factor in (3, 5)
    ]
    change = compute_paired_change(*many)
    assert change["clusters"] == 12 and change["low"] < change["value"] < change["high"]
    assert np.isfinite(change["p"])


ITEMS = build_items_schema()


class ExampleConfig(StageConfig):
    """How many of forty values are 1, which also decides a file's digest; and a precision."""

    ones: int = 0
    precision: str = "fp32"


def compute_file_digests(config, secret_id):
    return {"words": "ab" if config.ones < 20 else "cd", "ratings 1": f"of {config.ones}"}


@stage(
    name="example_audit",
    tables={"values": build_values_schema(ITEMS), "findings": FINDINGS},
    external_digests=compute_file_digests,
)
def make_audit(config: ExampleConfig, context: StageContext) -> None:
    """Write findings: the share of ones, ten times that share, and a constant baseline."""
    rows = [{"item": bytes([n] * 16), "cluster": str(n), "text": ""} for n in range(40)]
    values = ValueWriter(pa.Table.from_pylist(rows, schema=ITEMS))

    def estimate_ten_times(values, measure, config, level):
        return scale_estimate(estimate_mean(values, measure, config, level), 10.0)

    measures = (
        Measure("share", "Share", ""),
        Measure("representation", "Representation", "", "times", estimator=estimate_ten_times),
        Measure("baseline", "Baseline", ""),
    )
    for measure in measures:
        ones = 7 if measure.metric == "baseline" else config.ones
        values.add_values(measure.metric, range(40), np.arange(40) < ones)
    context.get_table_writer("values").write(values.to_table())
    findings = compute_measure_findings("audit", values.to_table(), measures, SeededConfig())
    context.get_table_writer("findings").write(
        build_findings_table(
            findings, {measure.metric: measure.title for measure in measures}, config.precision
        )
    )


def test_a_finding_that_is_no_mean_has_no_difference(session):
    share, ratio, _ = compare_findings(
        [make_audit(ExampleConfig(ones=4)), make_audit(ExampleConfig(ones=12))], [(0, 1)]
    )
    assert share.changes[0]["value"] == pytest.approx(0.2) and share.changes[0]["n"] == 40
    assert [row["value"] for row in ratio.findings] == pytest.approx([1.0, 3.0])
    assert ratio.changes == [None]


def test_unchanged_findings_correct_no_p(session):
    """A baseline does not depend on the checkpoint, so it must not weaken the other tests."""
    share, _, baseline = compare_findings(
        [make_audit(ExampleConfig(ones=4)), make_audit(ExampleConfig(ones=12))], [(0, 1)]
    )
    (same,) = baseline.changes
    assert (same["value"], same["p"], same["p_corrected"]) == (0.0, 1.0, 1.0)
    assert same["n"] == 40 and same["same"] and not share.changes[0]["same"]
    assert "on the same side" not in same["method"]
    assert 0 < share.changes[0]["p_corrected"] == share.changes[0]["p"] < 0.05


class AuditedExample(NamedTuple):
    name: str
    judged: Any

    def find_artifact(self, audit, stage):
        return self.judged if stage == "audit" else None


def test_audits_with_different_judging_files_are_not_compared(session):
    audit_of_4, audit_of_12, audit_of_30 = (
        AuditedExample(str(n), make_audit(ExampleConfig(ones=n))) for n in (4, 12, 30)
    )
    assert (
        explain_incomparability("audit", [audit_of_4, audit_of_12]) == "the settings differ: ones"
    )
    reason = explain_incomparability("audit", [audit_of_4, audit_of_30])
    assert reason == "the settings differ: ones, the content of the files used to judge responses"


def test_audits_in_different_precisions_are_not_compared(session):
    single, half = (
        AuditedExample(name, make_audit(ExampleConfig(precision=name))) for name in ("fp32", "bf16")
    )
    assert (
        explain_incomparability("audit", [single, half])
        == "the models ran at different precisions (respond.dtype): fp32 and bf16"
    )
    assert explain_incomparability("audit", [half, half]) == ""


class StageArtifacts(NamedTuple):
    """A checkpoint with its artifacts by stage."""

    name: str
    parts: dict[str, Any]

    def find_artifact(self, audit, stage):
        return self.parts.get(stage)


class ReferenceResponses(NamedTuple):
    manifest: Any
    model: Any

    def __getitem__(self, table):
        return {"model": self.model}[table]

    def find_input_name(self, name):
        return self.manifest["lineage"][name]


def make_artifact(config, **lineage):
    manifest = {"stage": "respond", "fingerprint": "0" * 64, "parts": {"config": config}}
    return Artifact(manifest | {"lineage": lineage}, None, "folder")


def test_audits_with_different_traces_or_references_are_not_compared(session):
    audit_artifacts = {"audit": make_audit(ExampleConfig())}
    checkpoints = [
        StageArtifacts(
            str(n),
            audit_artifacts
            | {"trace": make_artifact({"min_span_tokens": min_tokens, "max_spans_per_text": n})},
        )
        for n, min_tokens in enumerate((2, 8, 8))
    ]
    assert (
        explain_incomparability("audit", checkpoints[:2])
        == "the settings differ: trace.min_span_tokens"
    )
    # The number of recorded spans affects no finding.
    assert explain_incomparability("audit", checkpoints[1:]) == ""
    reference_checkpoints = [
        StageArtifacts(
            name,
            audit_artifacts
            | {"score_with_reference": make_artifact({}, reference_model=f"checkpoint/{name}")},
        )
        for name in ("a", "b", "b")
    ]
    reason = "the reference models differ: checkpoint/a and checkpoint/b"
    assert (
        explain_incomparability("audit", reference_checkpoints[:2]) == reason
        and explain_incomparability("audit", reference_checkpoints[1:]) == ""
    )


def test_audits_with_different_reference_texts_are_not_compared(session):
    """The toxicity of a model is compared with that of texts by a reference model."""
    audit_artifacts = {"audit": make_audit(ExampleConfig())}

    def make_checkpoint(name, model, precision="fp32"):
        table = pa.table({"dtype": ["float32"], "precision": [precision], "batch_size": [None]})
        reference = make_artifact({}, checkpoint=f"checkpoint/{model}")
        reference = ReferenceResponses(reference.manifest, SimpleNamespace(read=lambda: table))
        return StageArtifacts(name, audit_artifacts | {"respond_reference": reference})

    none = StageArtifacts("run 0", audit_artifacts)
    first, same, other = (make_checkpoint(f"run {n}", model) for n, model in enumerate("aab", 1))
    half = make_checkpoint("run 4", "a", "bf16")
    assert explain_incomparability("audit", [first, same]) == ""
    assert explain_incomparability("audit", [none, none]) == ""
    assert (
        explain_incomparability("audit", [first, other])
        == "the reference models differ: checkpoint/a and checkpoint/b"
    )
    for pair in ([none, first], [first, none]):
        assert explain_incomparability("audit", pair) == (
            "run 1 is compared with a reference model, but run 0 is not "
            "(audit_audit.reference_model_folder)"
        )
    assert explain_incomparability("audit", [same, half]) == (
        "the reference models ran at different precisions (respond.dtype): float32/fp32 and "
        "float32/bf16"
    )


def compare_random_units(draw, n, clusters, crossed=None):
    """Compare the units of two random checkpoints."""
    crossed = [None] * n if crossed is None else crossed
    sides = [
        dict(zip(range(n), map(ComparisonUnit, clusters, draw(), crossed), strict=True))
        for _ in range(2)
    ]
    return compute_paired_change(*sides, "share")


def test_a_difference_of_shares_stays_in_range():
    """One checkpoint prefers all items, the other nearly none."""
    first = {item: ComparisonUnit(str(item), float(item == 0)) for item in range(30)}
    second = {item: ComparisonUnit(str(item), 1.0) for item in range(30)}
    change = compute_paired_change(first, second, "share")
    assert change["value"] == pytest.approx(29 / 30)
    assert -1 <= change["low"] < change["value"] < change["high"] <= 1
    assert change["p"] < 1e-6
    percent = [
        {i: ComparisonUnit(u.cluster, 100 * u.value) for i, u in s.items()} for s in (first, second)
    ]
    percent_change = compute_paired_change(*percent, "percent")
    assert [
        percent_change[end] for end in ("value", "low", "high", "minimum_detectable_effect")
    ] == pytest.approx(
        [100 * change[end] for end in ("value", "low", "high", "minimum_detectable_effect")]
    )
    assert percent_change["p"] == change["p"]
    # With many pairs the interval is the usual one.
    rng = np.random.default_rng(0)
    sides = rng.integers(2, size=(2, 4000)).astype(float)
    units = [{i: ComparisonUnit(str(i), v) for i, v in enumerate(side)} for side in sides]
    low, high = stats.ttest_1samp(sides[1] - sides[0], 0).confidence_interval()
    change = compute_paired_change(*units, "share")
    assert (change["low"], change["high"]) == pytest.approx((low, high), abs=1e-4)
    # Values outside [0, 1] are compared like any mean, even if their unit is a share.
    moved = [{i: ComparisonUnit(u.cluster, 3 * u.value) for i, u in side.items()} for side in units]
    assert compute_paired_change(*moved, "share")["method"].startswith("Student's t")


def test_a_small_p_is_not_zero():
    """100 pairs differ by five deviations or more, so p is below 1e-40 before Holm's correction."""
    rng = np.random.default_rng(0)
    first, second = (
        {k: ComparisonUnit(k, float(v)) for k, v in enumerate(rng.normal(mean, 0.05, 100))}
        for mean in (0.2, 0.7)
    )
    t = stats.ttest_rel(
        [unit.value for unit in second.values()], [unit.value for unit in first.values()]
    )
    assert 0 < t.pvalue < 1e-40
    for unit in ("score", "share"):
        assert 0 < compute_paired_change(first, second, unit)["p"] < 1e-12
    assert compute_paired_change(first, second, "score")["p"] == pytest.approx(t.pvalue, rel=1e-6)


def test_rounding_errors_are_no_difference():
    first = {k: ComparisonUnit(str(k), 0.3) for k in range(60)}
    change = compute_paired_change(first, {**first, 7: ComparisonUnit("7", 0.1 + 0.2)}, "score")
    assert (change["value"], change["p"], change["same"]) == (0.0, 1.0, True)


def test_units_with_different_weights_are_not_compared():
    first = {k: ComparisonUnit(str(k), 0.3 * k, weight=1.0 + k) for k in range(9)}
    second = {k: unit._replace(value=unit.value + k) for k, unit in first.items()}
    change = compute_paired_change(first, second, "bits")
    assert change["value"] == pytest.approx(np.average(range(9), weights=range(1, 10)))
    assert (
        compute_paired_change(first, {**second, 3: second[3]._replace(weight=5.0)}, "bits") is None
    )


def test_crossed_clusters_are_both_used():
    """A clustering by pronoun or occupation alone makes the difference look too certain."""
    rng = np.random.default_rng(1)
    rows, columns = (each.ravel().astype(str).tolist() for each in np.indices((14, 12)))
    indices = np.array(rows, int), np.array(columns, int)

    def draw():
        common = rng.normal(size=14)[indices[0]] + 2 * rng.normal(size=12)[indices[1]]
        return (common + rng.normal(size=168) < 0) * 1.0

    covered = {"two": 0, "one": 0}
    for _ in range(100):
        for name, crossed in (("two", columns), ("one", None)):
            change = compare_random_units(draw, 168, rows, crossed)
            covered[name] += change["low"] <= 0 <= change["high"]
    assert covered["two"] >= 90 and covered["one"] < 85
    assert "two-way clustering" in compare_random_units(draw, 168, rows, columns)["method"]


def test_means_of_different_numbers_of_texts_are_not_compared():
    """If texts are selected by their content, each side selects different ones."""
    one = {"a": ComparisonUnit("x", 0.5, None, 2), "b": ComparisonUnit("y", 1.0, None, 3)}
    assert compute_paired_change(one, one)["value"] == 0
    assert compute_paired_change(one, {**one, "b": ComparisonUnit("y", 1.0, None, 2)}) is None


def make_auc_units(scores, is_member):
    rows = {
        "item": range(len(is_member)),
        "cluster": map(str, range(len(is_member))),
        "is_member": is_member,
        "value": scores,
    }
    return build_auc_units(pa.table({name: list(each) for name, each in rows.items()}))


def test_areas_under_curves_are_compared_as_delong_does():
    """Two models read the same documents; the shares of pairs are counted one by one."""
    rng = np.random.default_rng(2)
    m, n = 90, 130
    is_member = np.arange(m + n) < m
    shared = rng.normal(size=m + n)
    scores = [shared + rng.normal(size=m + n) + shift * is_member for shift in (0.2, 0.8)]
    ranked = [np.array([[(x > y) + (x == y) / 2 for y in s[m:]] for x in s[:m]]) for s in scores]
    by_member, by_other = (ranked[1].mean(axis) - ranked[0].mean(axis) for axis in (1, 0))
    variances = by_member.var(ddof=1) / m, by_other.var(ddof=1) / n
    first, second = (make_auc_units(s, is_member) for s in scores)
    assert [first[i].value for i in range(m)] == pytest.approx(ranked[0].mean(1))
    change = compute_paired_change(first, second, AREA_UNIT)
    assert change["value"] == pytest.approx(ranked[1].mean() - ranked[0].mean())
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / (m - 1) + variances[1] ** 2 / (n - 1))
    half = stats.t.ppf(0.975, freedom) * sum(variances) ** 0.5
    assert (change["high"] - change["low"]) / 2 == pytest.approx(half)
    assert change["n"] == m + n and change["p"] < 0.05 and not change["same"]
    assert compute_paired_change(first, first, AREA_UNIT)["same"]
    # A change of the other documents changes each placement; one kind alone has no area.
    fewer = make_auc_units(np.where(np.arange(m + n) == 3, np.nan, scores[1]), is_member)
    assert len(fewer) == m + n - 1 and compute_paired_change(first, fewer, AREA_UNIT) is None
    moved = make_auc_units(np.where(np.arange(m + n) == 4, np.nan, scores[0]), is_member)
    assert len(moved) == len(fewer) and compute_paired_change(moved, fewer, AREA_UNIT) is None
    assert (
        make_auc_units(scores[0][:m], is_member[:m])
        == {}
        == make_auc_units(scores[0][m:], is_member[m:])
    )
    swapped = make_auc_units(scores[1], ~is_member)
    assert compute_paired_change(first, swapped, AREA_UNIT) is None


def test_areas_of_few_documents():
    """Four members are too few for an interval.

    If all pairs change equally there is no spread, and the smaller kind gives p. No end of an
    interval is outside the range of a difference of areas.
    """
    other_scores, is_member = np.arange(20.0), np.arange(24) < 4
    four_members = [
        make_auc_units([*member_scores, *other_scores], is_member)
        for member_scores in ([-1.0, 3, 0, 1], [30.0, 9, 14, 5])
    ]
    change = compute_paired_change(*four_members, AREA_UNIT)
    assert (
        change["value"] > 0.5
        and (change["low"], change["p"], change["minimum_detectable_effect"]) == (None,) * 3
    )
    assert "fewer than 5" in change["method"]
    separated = [
        make_auc_units([member_scores] * 6 + [1.0] * 9, np.arange(15) < 6)
        for member_scores in (0.0, 2.0)
    ]
    change = compute_paired_change(*separated, AREA_UNIT)
    assert (change["value"], change["low"], change["p"]) == (1.0, None, 2**-5)
    nearly_separated = [
        make_auc_units([*member_scores, 5.0, 6, 7, 8, 9], np.arange(10) < 5)
        for member_scores in ([0.0, 1, 2, 3, 4], [7.5, 20, 21, 22, 23])
    ]
    change = compute_paired_change(*nearly_separated, AREA_UNIT)
    assert (
        change["high"] == 1.0 > change["value"] and (change["minimum_detectable_effect"] or 0) <= 1
    )


@pytest.mark.parametrize(("m", "n"), [(30, 30), (40, 160), (32, 8), (10, 190), (100, 5)])
def test_intervals_of_area_differences_have_nominal_coverage(m, n):
    rng = np.random.default_rng(3)
    is_member, covered = np.arange(m + n) < m, 0
    for _ in range(1000):
        shared = rng.normal(size=m + n) + 0.5 * is_member
        change = compute_paired_change(
            *(make_auc_units(shared + rng.normal(size=m + n), is_member) for _ in range(2)),
            AREA_UNIT,
        )
        covered += change["low"] <= 0 <= change["high"]
    assert 925 <= covered <= 980
