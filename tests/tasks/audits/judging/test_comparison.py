"""Pairs of the units of two audits: what one has more than the other, and how sure that is."""

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
    SeededConfig,
    ValueWriter,
    build_values_schema,
    compute_measure_findings,
    estimate_mean,
)
from hallmark.tasks.contract import StageConfig, StageContext, stage
from hallmark.tasks.measures.estimates import scale_estimate


def test_pairs_need_the_same_units_on_both_sides():
    """A difference over the common units alone would contradict the values beside it."""
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
    found = compute_paired_change(first, second)
    assert found["value"] == pytest.approx(4 / 3) and found["n"] == 3 and found["missing"] == 1
    assert found["clusters"] == 2
    assert compute_paired_change(first, second | {"e": ComparisonUnit("w", 9.0)}) is None
    assert compute_paired_change(first | {"e": ComparisonUnit("w", 9.0)}, second) is None
    assert (
        compute_paired_change(first, {"q": ComparisonUnit("x", 1.0)}) is None
        and compute_paired_change(first, None) is None
    )
    same = compute_paired_change(first, first)
    assert same["value"] == 0.0 and same["low"] is None
    assert np.isfinite(found["p"])


ITEMS = build_items_schema()


class Told(StageConfig):
    """How many of forty are 1, and the file that says so."""

    ones: int = 0


def _file(config, secret_id):
    return {"words": "ab" if config.ones < 20 else "cd", "ratings 1": f"of {config.ones}"}


@stage(
    name="told",
    tables={"values": build_values_schema(ITEMS), "findings": FINDINGS},
    external_digests=_file,
)
def told(config: Told, context: StageContext) -> None:
    """The share of ones, how many times 0.1 that is, and what a baseline has, always the same."""
    rows = [{"item": bytes([n] * 16), "cluster": str(n), "text": ""} for n in range(40)]
    values = ValueWriter(pa.Table.from_pylist(rows, schema=ITEMS))

    def times(values, measure, config, level):
        return scale_estimate(estimate_mean(values, measure, config, level), 10.0)

    measures = (
        Measure("share", ""),
        Measure("representation", "", "times", estimator=times),
        Measure("baseline", ""),
    )
    for measure in measures:
        ones = 7 if measure.metric == "baseline" else config.ones
        values.add_values(measure.metric, range(40), np.arange(40) < ones)
    context.get_table_writer("values").write(values.to_table())
    found = compute_measure_findings("audit", values.to_table(), measures, SeededConfig())
    context.get_table_writer("findings").write(build_findings_table(found))


def test_what_is_no_mean_of_its_values_has_no_difference(session):
    share, ratio, _ = compare_findings([told(Told(ones=4)), told(Told(ones=12))], [(0, 1)])
    assert share.changes[0]["value"] == pytest.approx(0.2) and share.changes[0]["n"] == 40
    assert [row["value"] for row in ratio.findings] == pytest.approx([1.0, 3.0])
    assert ratio.changes == [None]


def test_what_is_the_same_in_both_corrects_no_p(session):
    """A baseline hangs on no checkpoint: with twice as many of them as little would be found."""
    share, _, baseline = compare_findings([told(Told(ones=4)), told(Told(ones=12))], [(0, 1)])
    (same,) = baseline.changes
    assert (same["value"], same["p"], same["p_corrected"]) == (0.0, 1.0, 1.0)
    assert same["n"] == 40 and same["same"] and not share.changes[0]["same"]
    assert "on one side" not in same["method"]
    assert 0 < share.changes[0]["p_corrected"] == share.changes[0]["p"] < 0.05


class Subject(NamedTuple):
    name: str
    judged: Any

    def find_artifact(self, audit, stage):
        return self.judged if stage == "audit" else None


def test_what_was_judged_by_other_files_is_not_compared(session):
    few, more, many = (Subject(str(n), told(Told(ones=n))) for n in (4, 12, 30))
    assert explain_incomparability("audit", [few, more]) == "its settings differ: ones"
    said = explain_incomparability("audit", [few, many])
    assert said == "its settings differ: ones, what is in the files that judge"


class Parts(NamedTuple):
    """A checkpoint by what it left, each with what its stage ran with."""

    name: str
    parts: dict[str, Any]

    def find_artifact(self, audit, stage):
        return self.parts.get(stage)


def left(config, **lineage):
    return SimpleNamespace(manifest={"parts": {"config": config}, "lineage": lineage})


def test_what_was_traced_otherwise_or_beside_another_reference_is_not_compared():
    judged = {"audit": left({})}
    sides = [
        Parts(str(n), judged | {"trace": left({"min_span_tokens": least, "max_spans_per_text": n})})
        for n, least in enumerate((2, 8, 8))
    ]
    assert (
        explain_incomparability("audit", sides[:2]) == "its settings differ: trace.min_span_tokens"
    )
    assert (
        explain_incomparability("audit", sides[1:]) == ""
    )  # how many places are kept decides no finding
    others = [
        Parts(name, judged | {"reference": left({}, reference=f"checkpoint/{name}")})
        for name in ("a", "b", "b")
    ]
    said = "another model is the reference: checkpoint/a, checkpoint/b"
    assert (
        explain_incomparability("audit", others[:2]) == said
        and explain_incomparability("audit", others[1:]) == ""
    )


def both(draw, n, clusters, crossed=None):
    """Units of two checkpoints."""
    crossed = [None] * n if crossed is None else crossed
    sides = [
        dict(zip(range(n), map(ComparisonUnit, clusters, draw(), crossed), strict=True))
        for _ in range(2)
    ]
    return compute_paired_change(*sides, "share")


def test_a_difference_of_shares_is_one():
    """One checkpoint prefers all, the other nearly none."""
    first = {item: ComparisonUnit(str(item), float(item == 0)) for item in range(30)}
    second = {item: ComparisonUnit(str(item), 1.0) for item in range(30)}
    found = compute_paired_change(first, second, "share")
    assert found["value"] == pytest.approx(29 / 30)
    assert -1 <= found["low"] < found["value"] < found["high"] <= 1
    assert found["p"] < 1e-6
    percent = [
        {i: ComparisonUnit(u.cluster, 100 * u.value) for i, u in s.items()} for s in (first, second)
    ]
    hundred = compute_paired_change(*percent, "percent")
    assert [
        hundred[end] for end in ("value", "low", "high", "minimum_detectable_effect")
    ] == pytest.approx(
        [100 * found[end] for end in ("value", "low", "high", "minimum_detectable_effect")]
    )
    assert hundred["p"] == found["p"]
    # Of many pairs as good as the usual one.
    rng = np.random.default_rng(0)
    sides = rng.integers(2, size=(2, 4000)).astype(float)
    units = [{i: ComparisonUnit(str(i), v) for i, v in enumerate(side)} for side in sides]
    low, high = stats.ttest_1samp(sides[1] - sides[0], 0).confidence_interval()
    found = compute_paired_change(*units, "share")
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-4)
    # What is called a share but lies elsewhere is compared as any mean.
    moved = [{i: ComparisonUnit(u.cluster, 3 * u.value) for i, u in side.items()} for side in units]
    assert compute_paired_change(*moved, "share")["method"].startswith("Student's t")


def test_a_p_is_never_zero_however_small():
    """Of 100 pairs that differ by five deviations or more: below 1e-40, and Holm's rule multiplies
    what is left of it."""
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


def test_what_rounding_leaves_is_no_difference_and_has_no_p():
    first = {k: ComparisonUnit(str(k), 0.3) for k in range(60)}
    found = compute_paired_change(first, {**first, 7: ComparisonUnit("7", 0.1 + 0.2)}, "score")
    assert (found["value"], found["p"], found["same"]) == (0.0, 1.0, True)


def test_units_of_other_weights_are_no_pairs():
    first = {k: ComparisonUnit(str(k), 0.3 * k, weight=1.0 + k) for k in range(9)}
    second = {k: unit._replace(value=unit.value + k) for k, unit in first.items()}
    found = compute_paired_change(first, second, "bits")
    assert found["value"] == pytest.approx(np.average(range(9), weights=range(1, 10)))
    assert (
        compute_paired_change(first, {**second, 3: second[3]._replace(weight=5.0)}, "bits") is None
    )


def test_units_that_share_two_things_are_compared_by_both():
    """What a pronoun and an occupation do to a difference: seen as one of them alone it seems
    surer than it is."""
    rng = np.random.default_rng(1)
    rows, columns = (each.ravel().astype(str).tolist() for each in np.indices((14, 12)))
    place = np.array(rows, int), np.array(columns, int)

    def draw():
        common = rng.normal(size=14)[place[0]] + 2 * rng.normal(size=12)[place[1]]
        return (common + rng.normal(size=168) < 0) * 1.0

    covered = {"two": 0, "one": 0}
    for _ in range(100):
        for name, crossed in (("two", columns), ("one", None)):
            found = both(draw, 168, rows, crossed)
            covered[name] += found["low"] <= 0 <= found["high"]
    assert covered["two"] >= 90 and covered["one"] < 85
    assert "two-way clusters" in both(draw, 168, rows, columns)["method"]


def test_means_of_other_numbers_of_texts_are_no_pairs():
    """Of texts that are chosen by what they are each side has others."""
    one = {"a": ComparisonUnit("x", 0.5, None, 2), "b": ComparisonUnit("y", 1.0, None, 3)}
    assert compute_paired_change(one, one)["value"] == 0
    assert compute_paired_change(one, {**one, "b": ComparisonUnit("y", 1.0, None, 2)}) is None


def areas(scores, member):
    rows = {
        "item": range(len(member)),
        "cluster": map(str, range(len(member))),
        "is_member": member,
        "value": scores,
    }
    return build_auc_units(pa.table({name: list(each) for name, each in rows.items()}))


def test_areas_under_curves_are_compared_as_delong_does():
    """Of two models that read the same documents, with the shares of pairs counted one by one."""
    rng = np.random.default_rng(2)
    m, n = 90, 130
    member = np.arange(m + n) < m
    shared = rng.normal(size=m + n)
    scores = [shared + rng.normal(size=m + n) + shift * member for shift in (0.2, 0.8)]
    ranked = [np.array([[(x > y) + (x == y) / 2 for y in s[m:]] for x in s[:m]]) for s in scores]
    by_member, by_other = (ranked[1].mean(axis) - ranked[0].mean(axis) for axis in (1, 0))
    parts = by_member.var(ddof=1) / m, by_other.var(ddof=1) / n
    first, second = (areas(s, member) for s in scores)
    assert [first[i].value for i in range(m)] == pytest.approx(ranked[0].mean(1))
    found = compute_paired_change(first, second, AREA_UNIT)
    assert found["value"] == pytest.approx(ranked[1].mean() - ranked[0].mean())
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (m - 1) + parts[1] ** 2 / (n - 1))
    half = stats.t.ppf(0.975, freedom) * sum(parts) ** 0.5
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half)
    assert found["n"] == m + n and found["p"] < 0.05 and not found["same"]
    assert compute_paired_change(first, first, AREA_UNIT)["same"]
    # Among others each counts otherwise, and among its own kind alone there is no area.
    fewer = areas(np.where(np.arange(m + n) == 3, np.nan, scores[1]), member)
    assert len(fewer) == m + n - 1 and compute_paired_change(first, fewer, AREA_UNIT) is None
    moved = areas(np.where(np.arange(m + n) == 4, np.nan, scores[0]), member)
    assert len(moved) == len(fewer) and compute_paired_change(moved, fewer, AREA_UNIT) is None
    assert areas(scores[0][:m], member[:m]) == {} == areas(scores[0][m:], member[m:])
    turned = areas(scores[1], ~member)
    assert compute_paired_change(first, turned, AREA_UNIT) is None


def test_areas_of_few_show_what_they_can():
    """Four members tell too little; where all moved alike there is no spread, and the fewer of the
    two kinds say how sure that is; and no end is beyond what a difference of areas can be."""
    others, member = np.arange(20.0), np.arange(24) < 4
    four = [areas([*at, *others], member) for at in ([-1.0, 3, 0, 1], [30.0, 9, 14, 5])]
    found = compute_paired_change(*four, AREA_UNIT)
    assert (
        found["value"] > 0.5
        and (found["low"], found["p"], found["minimum_detectable_effect"]) == (None,) * 3
    )
    assert "fewer than 5" in found["method"]
    apart = [areas([at] * 6 + [1.0] * 9, np.arange(15) < 6) for at in (0.0, 2.0)]
    found = compute_paired_change(*apart, AREA_UNIT)
    assert (found["value"], found["low"], found["p"]) == (1.0, None, 2**-5)
    most = [
        areas([*at, 5.0, 6, 7, 8, 9], np.arange(10) < 5)
        for at in ([0.0, 1, 2, 3, 4], [7.5, 20, 21, 22, 23])
    ]
    found = compute_paired_change(*most, AREA_UNIT)
    assert found["high"] == 1.0 > found["value"] and (found["minimum_detectable_effect"] or 0) <= 1


@pytest.mark.parametrize(("m", "n"), [(30, 30), (40, 160), (32, 8), (10, 190), (100, 5)])
def test_the_difference_of_two_areas_is_covered_as_often_as_is_said(m, n):
    rng = np.random.default_rng(3)
    member, covered = np.arange(m + n) < m, 0
    for _ in range(1000):
        shared = rng.normal(size=m + n) + 0.5 * member
        found = compute_paired_change(
            *(areas(shared + rng.normal(size=m + n), member) for _ in range(2)), AREA_UNIT
        )
        covered += found["low"] <= 0 <= found["high"]
    assert 925 <= covered <= 980
