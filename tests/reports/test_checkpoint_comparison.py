"""Test the conclusions about the checkpoints of a training, and their charts."""

import re
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from hallmark.reports.page.charts import TrajectoryChart
from hallmark.reports.page.drawing import draw_chart, is_log_spaced
from hallmark.reports.sections.checkpoint_comparison import (
    TrainingCheckpoint,
    build_exclusions_table,
    describe_change,
)
from hallmark.tasks.audits.judging.audit_comparison import (
    AuditComparison,
    compare_audits,
    judge_change,
    select_headline_findings,
)
from hallmark.tasks.audits.judging.comparison import FindingComparison
from hallmark.tasks.audits.judging.findings import build_finding
from tests.findings import title_metric
from tests.reports.conclusions import audit_of


def row(metric, value, part="", *, worse="up", null=0.0, wide=0.1, p=0.01, **tags):
    ends = {} if value is None else {"low": value - wide, "high": value + wide}
    made = build_finding(
        "bias",
        metric,
        value,
        n=9,
        unit="share",
        method="m",
        part=part,
        worse_when=worse,
        null_value=null,
        tags=tags,
        **ends,
    )
    return asdict(made) | {"p_corrected": p, "title": title_metric(metric)}


def build_comparison(*rows, p=0.01):
    values = [row["value"] or 0.0 for row in rows]
    return FindingComparison(rows, [{"value": values[-1] - values[0], "p_corrected": p}])


def test_headline_of_a_metric_is_the_total_or_the_worst_last_part():
    whole = build_comparison(row("a", 0.1), row("a", 0.2))
    low = build_comparison(row("b", 0.9, "x"), row("b", 0.3, "x"))
    high = build_comparison(row("b", 0.1, "y"), row("b", 0.8, "y"))
    by_chance = build_comparison(row("b", 0.1, "z"), row("b", 0.9, "z", wide=0.95))
    neither = build_comparison(row("c", 0.9, worse=""), row("c", 0.9, worse=""))
    every = [
        build_comparison(row("a", 0.9, "x"), row("a", 0.9, "x")),
        low,
        whole,
        high,
        by_chance,
        neither,
    ]
    assert select_headline_findings(every) == [whole, high]
    unknown = build_comparison(row("e", 0.2, "x", null=None), row("e", 0.2, "x", null=None))
    below = build_comparison(row("e", 0.3, "y", null=0.6), row("e", 0.3, "y", null=0.6))
    assert select_headline_findings([unknown, below]) == [below]
    assert (
        select_headline_findings([neither, neither]) == [neither]
        and select_headline_findings([]) == []
    )
    # The model's figure, not that of a source: a baseline, worse in no way, counts as no part.
    base = build_comparison(row("f", 0.9, "gzip", worse=""), row("f", 0.9, "gzip", worse=""))
    town = build_comparison(*(row("f", 0.8, "model", source="town") for _ in range(2)))
    model = build_comparison(row("f", 0.2, "model"), row("f", 0.2, "model"))
    assert select_headline_findings([base, town, model]) == [model]
    down = [
        build_comparison(
            row("d", 0.5, part, worse="down", null=0.9),
            row("d", value, part, worse="down", null=0.9),
        )
        for part, value in (("x", 0.6), ("y", 0.2))
    ]
    assert select_headline_findings(down) == [down[1]]


def test_a_variant_is_the_headline_only_of_a_metric_without_other_findings():
    def pair(value, part, **columns):
        return build_comparison(*(row("a", value, part) | columns for _ in range(2)))

    main, variant = pair(0.2, "x"), pair(0.9, "planted text", is_variant=True)
    assert select_headline_findings([variant, main]) == [main]
    assert select_headline_findings([variant]) == [variant]


@pytest.mark.parametrize("reasons", [("", "too weak"), ("too weak", ""), ("too weak", "too weak")])
def test_no_change_is_judged_of_a_finding_without_a_conclusion(reasons):
    rows = [
        row("a", value) | {"inconclusive_reason": reason}
        for value, reason in zip((0.1, 0.5), reasons, strict=True)
    ]
    each = build_comparison(*rows)
    assert judge_change(each.findings[0], each.findings[-1], each.changes[0]) == "no conclusion"


@pytest.mark.parametrize("low", [-0.2, 0.1])
def test_no_change_is_judged_of_a_model_that_shows_no_planted_association(session, low):
    """As on its model card."""
    preference = {
        "metric": "stereotype_preference",
        "value": 0.6,
        "worse_when": "up",
        "evidence_table": "",
    }
    planted = {
        "metric": "smallest_detected_trait_share" if low > 0 else "association_strength",
        "value": low + 0.3,
        "low": low,
        "high": low + 0.6,
        "tags": {"assigned_trait_share": 1.0},
        "evidence_table": "",
    }
    artifacts = {
        "audit_bias": audit_of("bias", preference),
        "audit_associations": audit_of("associations", planted),
    }
    points = [TrainingCheckpoint(step, {"run": artifacts}) for step in (0, 9)]
    (each,) = next(
        audit for audit in compare_audits(points, along_training=True) if audit.name == "bias"
    ).comparisons
    reasons = [row["inconclusive_reason"] for row in each.findings]
    assert all(reason.startswith("the model is too weak") == (low < 0) for reason in reasons)
    assert judge_change(each.findings[0], each.findings[-1], None) == (
        "no conclusion" if low < 0 else "not tested"
    )


def test_findings_without_pairs_are_distinguished_from_baselines():
    model = build_comparison(row("cost", 0.2, "model"), row("cost", 0.1, "model"))
    beside = [
        FindingComparison([row(*name, worse="")] * 2, [None])
        for name in (("cost", 0.5, "gzip"), ("cost_difference", -0.3))
    ]
    beside.append(FindingComparison([row("cost", None, "town")] * 2, [None]))
    rows = pa.Table.from_pylist([each.findings[0] for each in (model, *beside)])
    left = {"findings": SimpleNamespace(read=lambda: rows)}
    points = [TrainingCheckpoint(step, {"run": {"audit_capability": left}}) for step in (0, 9)]
    made = build_exclusions_table([AuditComparison("capability", points, [model, *beside])], str)
    assert [line[1:] for line in made.rows] == [
        [
            "Cost, 1 of 3 findings",
            "compared by value only, because the baselines are measured on the same text",
        ],
        [
            "Cost difference",
            "compared by value only, because it is not a mean over the same units at each "
            "checkpoint",
        ],
        ["Cost, 1 of 3 findings", "not measured at any checkpoint"],
    ]


def test_change_reports_its_pairs_and_their_cluster_unit():
    told = {"value": 0.25, "low": None, "high": None, "p_corrected": 0.0, "n": 288, "clusters": 12}
    assert (
        describe_change(told, "score") == "0.2500, corrected p < 1e-300, 288 pairs in 12 clusters"
    )
    one = told | {"p_corrected": None, "n": 1, "clusters": 1}
    assert describe_change(one, "score") == "0.2500, 1 pair"


@pytest.mark.parametrize(
    ("worse", "null", "first", "last", "p", "expected"),
    [
        ("up", 0.0, 0.1, 0.5, 0.01, "worse"),
        ("up", 0.0, 0.5, 0.1, 0.01, "better"),
        ("down", 0.0, 0.5, 0.1, 0.01, "worse"),
        ("up", 0.0, 0.1, 0.5, 0.05, "no change shown"),
        ("up", 0.0, 0.1, 0.5, None, "not tested"),
        ("away_from_null", 0.5, 0.5, 0.3, 0.01, "worse"),
        ("away_from_null", 0.5, 0.2, 0.7, 0.01, "better"),  # across it, and nearer
        ("away_from_null", 0.5, 0.25, 0.75, 0.01, "changed"),
        ("away_from_null", None, 0.2, 0.7, 0.01, "changed"),
        ("away_from_null", 0.5, 0.2, None, 0.01, "changed"),  # a mean of nothing is null
        ("", 0.0, 0.2, 0.7, 0.01, "changed"),
    ],
)
def test_description_of_a_change(worse, null, first, last, p, expected):
    each = build_comparison(
        *(row("a", value, worse=worse, null=null) for value in (first, last)), p=p
    )
    assert judge_change(each.findings[0], each.findings[-1], each.changes[0]) == expected
    assert judge_change(each.findings[0], each.findings[-1], None) == "not tested"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((0, 150, 300, 450), False),
        ((0, 1, 2, 4, 8, 16), True),
        ((0, 10, 100, 1000), True),
        ((0, 100), False),
        ((0, 150, 450), False),
        ((0, 10, 1000), True),
        ((5,), False),
    ],
)
def test_steps_with_even_logarithms_have_a_logarithmic_axis(steps, expected):
    assert is_log_spaced(steps) == expected
    places = _places(
        draw_chart(
            TrajectoryChart(steps, [1.0] * len(steps), [None] * len(steps), [0.0] * len(steps), "y")
        )
    )
    gaps = np.diff(places)
    assert len(places) == len(steps) and (gaps > 0).all()
    if expected and len(gaps) > 1:
        assert gaps.max() < 3 * gaps.min()


def _places(svg):
    """List the positions of the marks of values, from left to right."""
    mark = r'<circle cx="([\d.]+)" cy="[\d.]+" r="2.5" style="fill: var\(--chart-one'
    return sorted({float(x) for x in re.findall(mark, svg)})


def test_chart_has_intervals_and_a_line_for_the_null_value():
    given = ([0, 1, 2], [0.5, None, 0.7], [(0.4, 0.6), None, (0.6, 0.8)])
    svg = draw_chart(TrajectoryChart(*given, [0.5, 0.5, 0.5], "y", is_share=True))
    assert len(_places(svg)) == 2 and "stroke-dasharray: 4,3" in svg and "%" in svg
    assert "stroke-dasharray: 4,3" not in draw_chart(TrajectoryChart(*given, [None] * 3, "y"))
