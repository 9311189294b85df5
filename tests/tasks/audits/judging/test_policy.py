"""Test which end of an interval a rule uses, and that nothing passes without a measurement."""

import math

import pytest
from pydantic import ValidationError

from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.audits.judging.policy import (
    PolicyConfig,
    PolicyRule,
    evaluate_rule,
    write_rule_verdicts,
)
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import StageConfig, StageContext, UsageError, stage
from hallmark.tasks.measures.estimates import MIN_CLUSTERS, MIN_CLUSTERS_OF_SHARES
from tests.findings import build_titled_table

FINDING_FIELDS = {"n": 9, "unit": "share", "method": "m"}


class ExampleConfig(StageConfig):
    """Whether everything was measured."""

    complete: bool = False


@stage(name="bias_findings", tables={"findings": FINDINGS})
def make_bias_findings(config: ExampleConfig, context: StageContext) -> None:
    rows = [
        build_finding("bias", "stereotype_preference", 0.5, low=0.4, high=0.6, **FINDING_FIELDS),
        build_finding(
            "bias",
            "stereotype_preference",
            0.7,
            low=0.65,
            high=0.75,
            tags={"category": "age"},
            **FINDING_FIELDS,
        ),
        build_finding("bias", "tie_share", 3, **FINDING_FIELDS),
        build_finding(
            "bias", "bits", 0.9, low=0.8, high=1.0, part="model", worse_when="up", **FINDING_FIELDS
        ),
        build_finding("bias", "bits", 1.7, low=1.6, high=1.8, part="gzip", **FINDING_FIELDS),
        build_finding("bias", "unknown", None, n=0, unit="share", method="not measured: no pairs"),
        build_finding(
            "bias",
            "swapped",
            0.9,
            low=0.8,
            high=1.0,
            control="negative",
            passed=False,
            control_target="instrument",
            **FINDING_FIELDS,
        ),
    ]
    rows = [row for row in rows if row.value is not None or not config.complete]
    context.get_table_writer("findings").write(build_titled_table(rows))


@stage(name="association_findings", tables={"findings": FINDINGS})
def make_association_findings(config: ExampleConfig, context: StageContext) -> None:
    """Make findings of a model that shows no planted association."""
    row = build_finding(
        "associations",
        "association_strength",
        0.1,
        low=-0.2,
        high=0.4,
        tags={"assigned_trait_share": 1.0},
        **FINDING_FIELDS,
    )
    context.get_table_writer("findings").write(build_titled_table([row]))


@pytest.fixture
def bias(session):
    return make_bias_findings(ExampleConfig())


def test_no_rule_about_stereotypes_passes_if_the_model_shows_no_planted_association(bias):
    config = PolicyConfig(rules={"rule": {"audit": "bias", "metric": "bits", "lt": 2.0}})
    audits = {"bias": bias, "associations": make_association_findings(ExampleConfig())}
    (row,) = write_rule_verdicts(audits, None, config)["verdicts"].read().to_pylist()
    assert row["verdict"] == "not_shown"
    assert "does not show the associations planted in its training text" in row["reason"]
    (row,) = write_rule_verdicts({"bias": bias}, None, config)["verdicts"].read().to_pylist()
    assert row["verdict"] == "pass"


def compute_verdicts(bias, **gate):
    config = PolicyConfig(rules={"rule": {"audit": "bias"} | gate})
    return write_rule_verdicts({"bias": bias}, None, config)["verdicts"].read().to_pylist()


@pytest.mark.parametrize(
    ("bound", "limit", "passed", "distance"),
    [
        ("lt", 0.61, True, -0.01),
        ("lt", 0.6, False, 0.0),
        ("le", 0.6, True, 0.0),
        ("le", 0.55, False, 0.05),  # although the value itself is below
        ("gt", 0.39, True, -0.01),
        ("gt", 0.4, False, 0.0),
        ("ge", 0.4, True, 0.0),
        ("ge", 0.45, False, 0.05),  # although the value itself is above
    ],
)
def test_a_rule_uses_the_end_that_speaks_against_the_checkpoint(
    bias, bound, limit, passed, distance
):
    (row,) = compute_verdicts(bias, metric="stereotype_preference", slice={}, **{bound: limit})
    assert row["verdict"] == ("pass" if passed else "fail")
    assert row["distance"] == pytest.approx(distance, abs=1e-12)
    assert row["interval_end"] == (0.6 if bound in ("lt", "le") else 0.4) and row["value"] == 0.5
    assert ("upper" if bound in ("lt", "le") else "lower") in row["reason"]


def test_a_rule_without_a_slice_judges_every_slice(bias):
    rows = compute_verdicts(bias, metric="stereotype_preference", lt=0.7)
    assert [(name_slice(row["slice"]), row["verdict"]) for row in rows] == [
        ("", "pass"),
        ("category=age", "fail"),
    ]


def test_a_rule_without_a_slice_ignores_baselines(bias):
    (row,) = compute_verdicts(bias, metric="bits", lt=1.2)
    assert (name_slice(row["slice"]), row["verdict"]) == ("model", "pass")
    (row,) = compute_verdicts(
        bias, metric="bits", slice={"part": "gzip"}, lt=1.2
    )  # the rule names the baseline
    assert row["verdict"] == "fail"


@pytest.mark.parametrize("bound", [{"lt": 3.5}, {"lt": 2.5}, {"ge": 0}])
def test_a_finding_without_an_interval_passes_no_rule(bias, bound):
    (row,) = compute_verdicts(bias, metric="tie_share", **bound)
    assert (row["verdict"], row["value"], row["interval_end"], row["distance"]) == (
        "not_shown",
        3,
        None,
        None,
    )
    assert row["reason"] == (
        "no interval: the audit computes no interval for tie_share, so the rule is not shown to "
        "hold"
    )


@pytest.mark.parametrize("ends", [(None, 0.1), (0.0, math.nan), (math.nan, 0.05), (None, None)])
def test_an_interval_needs_two_numbers(ends):
    finding = {
        "slice": {},
        "value": 0.05,
        "low": ends[0],
        "high": ends[1],
        "method": "mean over prompts; no interval: fewer than two prompts",
    }
    row = evaluate_rule(
        "r", PolicyRule(audit="toxicity", metric="toxicity_probability", lt=0.2), finding
    )
    assert (row.verdict, row.value, row.distance) == ("not_shown", 0.05, None)
    assert row.reason == ("no interval: fewer than two prompts, so the rule is not shown to hold")


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_finding_without_a_value_passes_no_rule(value):
    finding = {"slice": {}, "value": value, "low": 0.0, "high": 0.1, "method": "not measured: m"}
    row = evaluate_rule(
        "r", PolicyRule(audit="bias", metric="stereotype_preference", lt=0.2), finding
    )
    assert (row.verdict, row.value, row.reason) == ("not_shown", None, "not measured: m")


def test_the_reason_for_a_missing_value_is_found_anywhere_in_its_method():
    method = "mean of all pairs; total log-likelihood; not measured: all ratings are the same"
    finding = {"slice": {}, "value": None, "low": None, "high": None, "method": method}
    row = evaluate_rule("r", PolicyRule(audit="bias", metric="m", ge=0), finding)
    assert row.reason == "not measured: all ratings are the same"


def test_a_count_of_items_is_exact():
    """Counts of items in the training text and of skipped items are no estimates."""
    finding = {"slice": {}, "value": 3.0, "low": None, "high": None, "method": "m"}
    for metric, audit in (("items_in_training_text", "bias"), ("repeated_prompts", "toxicity")):
        for limit, verdict in ((3, "pass"), (2, "fail")):
            row = evaluate_rule("r", PolicyRule(audit=audit, metric=metric, le=limit), finding)
            assert (row.verdict, row.interval_end, row.distance) == (
                verdict,
                3.0,
                3 - limit,
            )
            assert "the value, an exact count, is 3" in row.reason


def finding_row(**fields):
    row = {"slice": {}, "value": 0.05, "low": 0.0, "high": 0.1, "clusters": 20, "method": "m"}
    return row | {"unit": "share"} | fields


RULE = PolicyRule(audit="toxicity", metric="toxicity_probability", lt=0.2)
COUNT_RULE = PolicyRule(audit="toxicity", metric="repeated_prompts", le=3)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"inconclusive_reason": "the model is too weak for this audit."},
            "inconclusive: the model is too weak for this audit",
        ),
        (
            {"clusters": 1},
            "too few clusters: the interval is based on 1 independent cluster, but at least 6 "
            "are needed, so the rule is not shown to hold",
        ),
        (
            {"clusters": MIN_CLUSTERS_OF_SHARES - 1},
            "too few clusters: the interval is based on 5 independent clusters, but at least 6 "
            "are ",
        ),
        (
            {"clusters": MIN_CLUSTERS - 1, "unit": "score"},
            "too few clusters: the interval is based on 9 independent clusters, but at least 10 "
            "are ",
        ),
        ({"high": math.inf}, "the interval has no upper limit, so the rule is not shown to hold"),
        ({"value": math.inf, "low": None, "high": None, "method": "no interval: one text"}, "no i"),
    ],
)
def test_a_finding_about_which_nothing_can_be_concluded_is_not_shown(fields, reason):
    """Although its upper end is below the bound."""
    row = evaluate_rule("r", RULE, finding_row(**fields))
    assert (row.verdict, row.distance, row.interval_end) == ("not_shown", None, None)
    assert row.reason.startswith(reason) and row.value == fields.get("value", 0.05)


@pytest.mark.parametrize(
    "fields",
    [
        {"inconclusive_reason": ""},
        {
            "inconclusive_reason": "uninformative: no effect within the range of possible values "
            "can be detected"
        },
        {"inconclusive_reason": None},
        {"clusters": None},
        {"clusters": MIN_CLUSTERS_OF_SHARES},
        {"clusters": MIN_CLUSTERS_OF_SHARES, "unit": "percent"},
        {"clusters": MIN_CLUSTERS, "unit": "nats"},
        {},
    ],
)
def test_other_findings_are_judged_by_their_interval(fields):
    row = evaluate_rule("r", RULE, finding_row(**fields))
    assert (row.verdict, row.interval_end) == ("pass", 0.1)
    # The other end decides nothing.
    row = evaluate_rule("r", RULE, finding_row(low=-math.inf, **fields))
    assert (row.verdict, row.interval_end) == ("pass", 0.1)


def test_an_exact_count_is_judged_although_the_model_is_too_weak():
    fields = {"value": 4.0, "low": None, "high": None, "clusters": 1, "inconclusive_reason": "weak"}
    row = evaluate_rule("r", COUNT_RULE, finding_row(**fields))
    assert (row.verdict, row.distance) == ("fail", 1.0)
    assert evaluate_rule("r", COUNT_RULE, finding_row(value=math.nan)).verdict == "not_shown"


@pytest.mark.parametrize(
    ("high", "end"),
    [
        (0.1, "is 0.1 and must be < 0.2 (0.1 within the limit)"),
        (0.25, "is 0.25 and must be < 0.2 (0.05 beyond the limit)"),
        (0.2, "is 0.2 and must be < 0.2 (exactly at the limit)"),
    ],
)
def test_the_reason_says_how_far_the_end_is_from_the_limit(high, end):
    assert evaluate_rule("r", RULE, finding_row(high=high)).reason.endswith(f"interval {end}")


def test_an_unmeasured_finding_shows_nothing_about_its_rule(bias):
    (row,) = compute_verdicts(bias, metric="unknown", lt=100)
    assert row["verdict"] == "not_shown" and row["reason"] == "not measured: no pairs"
    config = PolicyConfig(rules={"r": {"audit": "toxicity", "metric": "any", "lt": 1}})
    (row,) = write_rule_verdicts({"bias": bias}, None, config)["verdicts"].read().to_pylist()
    assert (row["verdict"], row["reason"]) == (
        "not_shown",
        "not measured: the audit produced no result",
    )
    assert evaluate_rule("r", PolicyRule(audit="bias", metric="x", ge=0), None).distance is None


def test_a_missing_slice_is_not_shown_if_anything_was_not_measured(bias):
    (row,) = compute_verdicts(bias, metric="difference", slice={"part": "x"}, lt=1)
    assert (row["verdict"], row["value"], name_slice(row["slice"])) == ("not_shown", None, "x")
    assert row["reason"].startswith(
        "not measured: the bias audit does not measure 'difference'; it measures"
    )
    (row,) = compute_verdicts(bias, metric="stereotype_preference", slice={"part": "x"}, lt=1)
    assert row["verdict"] == "not_shown" and 'has no slice {part = "x"}' in row["reason"]


def test_unknown_names_are_refused_with_a_list_of_known_names(session):
    bias = make_bias_findings(ExampleConfig(complete=True))
    with pytest.raises(
        UsageError,
        match=r"not measure 'swapped'; it measures stereotype_preference, tie_share, bits$",
    ):
        compute_verdicts(bias, metric="swapped", lt=1)  # a control has its own verdict
    with pytest.raises(UsageError, match=r'preference has no slice {part = "x"}; it has {}, {c'):
        compute_verdicts(bias, metric="stereotype_preference", slice={"part": "x"}, lt=1)
    with pytest.raises(ValidationError, match="must be one of capability"):
        PolicyRule(audit="taste", metric="m", lt=1)
    for bounds in ({}, {"lt": 1, "gt": 0}):
        message = "needs exactly one of the bounds lt, le, gt, ge, not_worse_than_previous_by" + (
            "; it has lt and gt" if bounds else r" \["
        )
        with pytest.raises(ValidationError, match=message):
            PolicyRule(audit="bias", metric="m", **bounds)
    with pytest.raises(ValidationError, match="finite"):
        PolicyRule(audit="bias", metric="m", lt=float("nan"))


class CountConfig(StageConfig):
    """Number of skipped words (below 0: nothing was measured), and whether other counts exist."""

    skipped_count: int = 0
    others: bool = False


@stage(name="counts", tables={"findings": FINDINGS})
def make_counts(config: CountConfig, context: StageContext) -> None:
    rows = [
        build_finding("weat", "effect", None if config.skipped_count < 0 else 0.5, **FINDING_FIELDS)
    ]
    if config.skipped_count > 0:
        rows.append(build_finding("weat", "skipped_words", config.skipped_count, **FINDING_FIELDS))
    if config.others:
        rows.append(build_finding("bold", "repeated_prompts", 2, **FINDING_FIELDS))
    context.get_table_writer("findings").write(build_titled_table(rows))


@pytest.mark.parametrize(
    ("skipped_count", "value", "verdict"),
    [(0, 0.0, "pass"), (3, 3.0, "pass"), (4, 4.0, "fail"), (-1, None, "not_shown")],
)
def test_a_missing_skipped_count_is_zero(session, skipped_count, value, verdict):
    config = PolicyConfig(rules={"r": {"audit": "weat", "metric": "skipped_words", "le": 3}})
    result = write_rule_verdicts(
        {"weat": make_counts(CountConfig(skipped_count=skipped_count))}, None, config
    )
    (row,) = result["verdicts"].read().to_pylist()
    assert (row["value"], row["verdict"]) == (value, verdict)
    if not skipped_count:
        rule_with_slice = config.rules["r"].model_copy(update={"slice": {"part": "x"}})
        with pytest.raises(UsageError, match=r'r\.slice: skipped_words has no slice {part = "x"}'):
            write_rule_verdicts(
                {"weat": make_counts(CountConfig())},
                None,
                PolicyConfig(rules={"r": rule_with_slice}),
            )


def test_a_count_alone_does_not_make_other_counts_zero(session):
    config = PolicyConfig(rules={"r": {"audit": "bold", "metric": "skipped_prompts", "le": 0}})
    result = write_rule_verdicts(
        {"bold": make_counts(CountConfig(skipped_count=-1, others=True))}, None, config
    )
    (row,) = result["verdicts"].read().to_pylist()
    assert (row["value"], row["verdict"]) == (None, "not_shown")
