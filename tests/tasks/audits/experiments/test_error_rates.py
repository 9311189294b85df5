"""Test error rates from verdicts and opened answer keys, against counts by hand."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.experiments.attribution import ATTRIBUTED
from hallmark.tasks.audits.experiments.candidate_verdicts import (
    AUDIT_SETTINGS,
    MODEL_LEARNING,
    VERDICTS,
    build_verdict_row,
)
from hallmark.tasks.audits.experiments.error_rates import (
    ErrorRatesConfig,
    compute_attribution_precision_by_text,
    compute_error_rates,
    compute_false_alarm_rates_by_kind,
    covers_full_value,
    estimate_rate_with_trial_clusters,
    find_smallest_detected_level_by_kind,
)
from hallmark.tasks.contract import (
    ID_TYPE,
    EmptyConfig,
    StageConfig,
    StageContext,
    column,
    stage,
    table_schema,
)
from hallmark.tasks.measures.estimates import estimate_mean_or_share

ANSWER_KEY = table_schema(
    "The same schema as in trials.",
    column("kind", pa.string(), "label", "kind"),
    column("candidate_id", pa.string(), "label", "candidate_id"),
    column("effect_level", pa.float64(), "figure", "effect_level"),
)

CANDIDATE_DOCUMENTS = table_schema(
    "The same schema as in trials.",
    column("doc_id", ID_TYPE, "id", "document"),
    column("kind", pa.string(), "label", "kind"),
    column("candidate_id", pa.string(), "label", "candidate_id"),
    column("group_name", pa.string(), "label", "group"),
    column("is_supporting", pa.bool_(), "label", "whether it supports"),
)


class RowsConfig(StageConfig):
    rows: list[dict[str, float | str | bool | None]]
    learned: bool = True


@stage(
    name="example_verdicts",
    tables={
        "verdicts": VERDICTS,
        "model_learning": MODEL_LEARNING,
        "audit_settings": AUDIT_SETTINGS,
    },
)
def write_verdicts(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("verdicts").write(pa.Table.from_pylist(config.rows, schema=VERDICTS))
    context.get_table_writer("audit_settings").write(
        pa.Table.from_pylist(
            [{"audit": "extraction", "setting": "max_windows", "value": "8"}], schema=AUDIT_SETTINGS
        )
    )
    model = [{"bits_per_byte": 1.0, "unigram_bits_per_byte": 2.0, "has_learned": config.learned}]
    context.get_table_writer("model_learning").write(
        pa.Table.from_pylist(model, schema=MODEL_LEARNING)
    )


@stage(
    name="example_answer_key",
    tables={"answer_key": ANSWER_KEY, "candidate_documents": CANDIDATE_DOCUMENTS},
)
def write_answer_key(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("answer_key").write(
        pa.Table.from_pylist(config.rows, schema=ANSWER_KEY)
    )
    context.get_table_writer("candidate_documents").write(
        pa.Table.from_pylist(build_candidate_documents(b"x", b"y"), schema=CANDIDATE_DOCUMENTS)
    )


@stage(name="example_attributions", tables={"attributions": ATTRIBUTED})
def write_attributions(config: EmptyConfig, context: StageContext) -> None:
    """Name the first and the third document, of which both were written for a secret."""
    rows = [
        {
            "kind": "canary",
            "candidate_id": "c",
            "group_name": "",
            "rank": place,
            "doc_id": doc_id * 16,
            "score": 1.0,
        }
        for place, doc_id in ((1, b"x"), (2, b"q"), (3, b"y"))
    ]
    context.get_table_writer("attributions").write(pa.Table.from_pylist(rows, schema=ATTRIBUTED))


def build_candidate_documents(*ids):
    rows = [{"kind": "canary", "candidate_id": "c", "group_name": "", "is_supporting": True}] * len(
        ids
    )
    other = {"kind": "canary", "candidate_id": "c", "group_name": "", "is_supporting": False}
    return [
        *({**row, "doc_id": i * 16} for row, i in zip(rows, ids, strict=True)),
        {**other, "doc_id": b"q" * 16},
    ]


def candidate(
    kind, unit, amount, p=None, is_detected=None, low=0.0, high=1.0, whole=0.5, value=0.5
):
    """Build a verdict and the row of its answer key."""
    is_detected = p < 0.05 if is_detected is None else is_detected
    verdict = build_verdict_row(
        kind, unit, is_detected, n=9, value=value, p=p, low=low, high=high, full_value=whole
    )
    return verdict, {"kind": kind, "candidate_id": unit, "effect_level": amount}


def compute_rate_tables(trials: Mapping, void=None, learned=True, arms=()):
    """Compute the tables of the error rates of these trials."""
    rates = rates_of_trials(trials, void, learned, arms)
    return {name: rates[name].read().to_pylist() for name in rates.tables}


def rates_of_trials(trials: Mapping, void=None, learned=True, arms=()):
    verdicts, answer_keys = {}, {}
    for name, rows in trials.items():
        verdict_rows, sealed_rows = zip(*rows, strict=True)
        verdict_rows = [row for row in verdict_rows if row]
        verdicts[name] = write_verdicts(
            RowsConfig(rows=verdict_rows, learned=name != "dull" and learned)
        )
        answer_keys[name] = write_answer_key(RowsConfig(rows=list(sealed_rows)))
    attributions = dict.fromkeys(verdicts, write_attributions())
    retrained = {name: write_verdicts(RowsConfig(rows=list(rows))) for name, rows in arms}
    return compute_error_rates(
        verdicts, answer_keys, attributions, retrained, ErrorRatesConfig(excluded_trials=void or {})
    )


@pytest.fixture
def rate_tables(session):
    some = [
        candidate("canary", "a", 0, p=0.5),
        candidate("canary", "b", 0, p=0.01),
        candidate("canary", "c", 64, p=0.01, whole=2.0),
        candidate("canary", "d", 64, p=0.3, high=None, whole=9.0),
        candidate("passage", "e", 64, is_detected=True, low=None, high=None),
        candidate("passage", "f", 0, is_detected=False),
        candidate("speech", "g", 1.0, p=0.01),
        candidate("speech", "h", 0.0, p=0.01, is_detected=False),
        candidate("sentiment", "j", 1.0, p=0.01),
        candidate("sentiment", "k", 0.0, p=0.9),
    ]
    none = [
        candidate("canary", "a", 0, p=0.9),
        candidate("speech", "g", 0.25, p=0.9),
        candidate("speech", "h", 0.25, p=0.02, is_detected=False),
        candidate("speech", "i", 0.25, p=0.9, is_detected=True),
        candidate("sentiment", "j", 0.65, p=0.001),
        candidate("sentiment", "k", 0.65, p=0.9),
    ]
    return compute_rate_tables({"one": some, "two": none}, {"three": "its answer key was changed"})


def test_detection_rates_use_trials_with_effects(rate_tables):
    rows = {(row["kind"], row["effect_level"]): row for row in rate_tables["detection_rates"]}
    assert rows["canary", 64.0]["value"] == 0.5 and rows["canary", 64.0]["n"] == 2
    assert rows["canary", 0.0]["value"] == 0.5 and rows["canary", 0.0]["n"] == 2  # without "two"
    assert rows["passage", 64.0]["value"] == 1.0 and rows["speech", 1.0]["value"] == 1.0
    assert ("speech", 0.25) not in rows
    assert {key: row["has_effect"] for key, row in rows.items()} == {
        ("canary", 0.0): False,
        ("canary", 64.0): True,
        ("passage", 0.0): False,
        ("passage", 64.0): True,
        ("speech", 0.0): None,
        ("speech", 1.0): True,
        ("sentiment", 0.0): None,
        ("sentiment", 1.0): True,
    }


def test_a_level_has_an_effect_if_it_has_one_in_every_trial(session):
    """0.5 is more than in other groups of one trial, and less in the other trial."""
    one = [candidate("speech", "g", 0.5, p=0.5), candidate("speech", "h", 0.1, p=0.5)]
    two = [candidate("speech", "g", 0.5, p=0.5), candidate("speech", "h", 1.0, p=0.5)]
    detection_rates = compute_rate_tables({"one": one, "two": two})["detection_rates"]
    assert {row["effect_level"]: row["has_effect"] for row in detection_rates} == {
        0.1: None,
        0.5: None,
        1.0: True,
    }


def test_unjudged_candidates_are_listed(session):
    candidates = [
        candidate("canary", "a", 64, p=0.01),
        (None, {"kind": "canary", "candidate_id": "b", "effect_level": 4}),
        (None, {"kind": "record", "candidate_id": "r", "effect_level": 0}),
    ]
    rate_tables = compute_rate_tables({"one": candidates, "dull": candidates}, learned=True)
    assert rate_tables["unjudged_candidates"] == [
        {"trial": "one", "kind": "canary", "candidate_id": "b", "effect_level": 4.0},
        {"trial": "one", "kind": "record", "candidate_id": "r", "effect_level": 0.0},
    ]
    assert [row["n"] for row in rate_tables["detection_rates"]] == [1]


def test_false_alarm_rates_use_candidates_without_effect(rate_tables):
    rows = {row["kind"]: row for row in rate_tables["false_alarm_rates"]}
    assert rows["canary"]["value"] == pytest.approx(1 / 3) and rows["canary"]["trials"] == 2
    assert rows["passage"]["value"] == 0.0
    # A group with less toxic text than others has an effect, so it is no false alarm. An alarm is a
    # detection, whatever p is.
    assert rows["speech"]["value"] == pytest.approx(1 / 3) and rows["speech"]["n"] == 3
    assert rows["sentiment"]["value"] == 0.5 and rows["sentiment"]["n"] == 2
    assert rows["canary"]["confidence_level"] == pytest.approx(1 - 0.05 / 4)
    assert {row["has_effects"] for row in rate_tables["candidates"] if row["trial"] == "two"} == {
        False
    }
    effects = {
        row["candidate_id"]: row["has_effect"]
        for row in rate_tables["candidates"]
        if row["trial"] == "one"
    }
    assert effects == {
        "a": False,
        "b": False,
        "c": True,
        "d": True,
        "e": True,
        "f": False,
        "g": True,
        "h": None,
        "j": True,
        "k": None,
    }


@pytest.mark.parametrize(
    "amounts, effects",
    [
        ((0.25, 0.25, 0.25), (False, False, False)),
        ((0.1, 0.4, 0.4), (None, True, True)),  # others: 0.4, 0.25 and 0.25
        ((0.5,), (False,)),  # no others
    ],
)
@pytest.mark.parametrize("kind", ["speech", "sentiment"])
def test_a_group_has_an_effect_if_above_the_mean_of_others(session, kind, amounts, effects):
    other = {"speech": "sentiment", "sentiment": "speech"}[kind]
    rows = [candidate(kind, f"g{n}", amount, p=0.5) for n, amount in enumerate(amounts)]
    rows += [(None, {"kind": other, "candidate_id": "x", "effect_level": 0.9})]  # no other group
    rate_tables = compute_rate_tables({"one": rows})["candidates"]
    assert tuple(row["has_effect"] for row in rate_tables) == effects


def test_each_kind_has_a_level_without_effect(session):
    kinds = {"canary": 0, "passage": 0, "record": 0, "association": 0.5}
    rows = [
        candidate(kind, f"{kind} {more}", amount + more, p=0.5)
        for kind, amount in kinds.items()
        for more in (0, 0.25, 1)
    ]
    effects = {
        row["candidate_id"]: row["has_effect"]
        for row in compute_rate_tables({"one": rows})["candidates"]
    }
    assert effects == {f"{kind} {more}": more > 0 for kind in kinds for more in (0, 0.25, 1)}


def test_coverage_compares_with_the_figure_over_all_items(rate_tables):
    rows = {row["kind"]: row for row in rate_tables["interval_coverage"]}
    # c is outside its interval; d has no upper end and is not counted.
    assert rows["canary"]["value"] == pytest.approx(3 / 4) and rows["canary"]["n"] == 4
    assert rows["passage"]["n"] == 1


def test_all_levels_above_the_smallest_are_detected():
    rows = [
        {"kind": "canary", "effect_level": amount, "has_effect": amount > 0, "value": value}
        for amount, value in ((0, 0.9), (1, 0.8), (4, 0.79), (16, 0.8), (64, 1.0))
    ]
    assert [*find_smallest_detected_level_by_kind(rows)] == [{"kind": "canary", "effect_level": 16}]
    assert [*find_smallest_detected_level_by_kind(rows[:3])] == [
        {"kind": "canary", "effect_level": None}
    ]
    # A level without an effect, or with less than others have, is not the smallest.
    low = [
        {"kind": "speech", "effect_level": amount, "has_effect": effect, "value": 1.0}
        for amount, effect in ((0, False), (0.25, None), (0.5, True))
    ]
    assert [*find_smallest_detected_level_by_kind(low)] == [{"kind": "speech", "effect_level": 0.5}]
    assert [*find_smallest_detected_level_by_kind(low[:2])] == [
        {"kind": "speech", "effect_level": None}
    ]


def test_trials_without_learning_or_answer_key_are_excluded(session):
    rows = [candidate("canary", "a", 64, p=0.01)]
    dull = [candidate("canary", "a", 64, p=0.9), candidate("canary", "b", 64, p=0.01)]
    retrained = [(f"dull {arm}", [verdict for verdict, _ in dull]) for arm in ("removed", "random")]
    rate_tables = compute_rate_tables(
        {"one": rows, "dull": dull}, {"gone": "its answer key was never sealed"}, arms=retrained
    )
    trials = {row["trial"]: row for row in rate_tables["trials"]}
    assert [row["is_counted"] for row in trials.values()] == [True, False, False]
    assert "only token frequencies" in trials["dull"]["reason"]
    assert trials["gone"]["reason"] == "its answer key was never sealed"
    assert (
        rate_tables["detection_rates"][0]["value"] == 1.0
        and rate_tables["detection_rates"][0]["n"] == 1
    )
    assert (
        rate_tables["attribution_precision"][0]["trials"] == 1
        and rate_tables["removal_reductions"] == []
    )
    assert len(rate_tables["candidates"]) == 3  # candidates of excluded trials are kept


def test_attribution_is_correct_for_documents_of_the_text(rate_tables):
    """One of two top documents is correct; a document that contradicts the text does not count."""
    (row,) = rate_tables["attribution_precision"]
    assert (row["kind"], row["value"], row["n"], row["trials"]) == ("canary", 0.5, 2, 2)


def test_precision_is_limited_to_max_documents():
    """A text has more documents than may be named; a text without named documents counts as 0."""
    rows = [
        {"kind": "canary", "candidate_id": "c", "group_name": "", "rank": n, "doc_id": bytes([n])}
        for n in (1, 2)
    ]
    build_candidate_documents = [
        {
            "kind": "canary",
            "candidate_id": unit,
            "group_name": "",
            "is_supporting": True,
            "doc_id": bytes([n]),
        }
        for unit in ("c", "d")
        for n in range(1, 9)
    ]
    precision_rows = [
        *compute_attribution_precision_by_text(
            "w",
            pa.Table.from_pylist(rows),
            pa.Table.from_pylist(build_candidate_documents),
            max_documents_per_text=2,
        )
    ]
    assert [row["value"] for row in precision_rows] == [1.0, 0.0]
    precision_rows = [
        *compute_attribution_precision_by_text(
            "w",
            pa.Table.from_pylist(rows),
            pa.Table.from_pylist(build_candidate_documents),
            max_documents_per_text=9,
        )
    ]
    assert [row["value"] for row in precision_rows] == [2 / 8, 0.0]


def test_reductions_compare_removed_with_random_documents(session):
    """In the unit of the figure, and only for detected candidates.

    A figure close to 0 that falls below 0 does not count as a decrease of many times itself.
    """
    base = [
        candidate("canary", "a", 64, p=0.01),
        candidate("canary", "b", 64, p=0.01),
        candidate("canary", "c", 0, p=0.9),
        candidate("speech", "g", 1.0, p=0.01),
        candidate("association", "x", 0.9, p=0.01, value=0.01),
    ]
    values_by_arm = {"removed": (0.1, 0.2, 9.0, 0.1, -0.5), "random": (0.5, 0.4, 9.0, 0.1, 0.01)}
    arms = [
        (
            f"one {arm}",
            [verdict | {"value": value} for (verdict, _), value in zip(base, values, strict=True)],
        )
        for arm, values in values_by_arm.items()
    ]
    rows = {
        (r["kind"], r["arm"]): r
        for r in compute_rate_tables({"one": base}, arms=arms)["removal_reductions"]
    }
    assert {*rows} == {
        (kind, arm)
        for kind in ("canary", "association")
        for arm in ("removed", "random", "difference")
    }
    assert rows["canary", "removed"]["value"] == pytest.approx((0.4 + 0.3) / 2)
    assert rows["canary", "random"]["value"] == pytest.approx((0.0 + 0.1) / 2)
    assert rows["canary", "difference"]["value"] == pytest.approx(0.3)
    assert rows["association", "removed"]["value"] == pytest.approx(0.51)
    assert {(kind, row["n"], row["unit"]) for (kind, _), row in rows.items()} == {
        ("canary", 2, "bits"),
        ("association", 1, "nats"),
    }


def test_candidates_of_a_trial_are_a_cluster():
    rows = [{"trial": str(n % 8)} for n in range(40)]
    values = [n % 8 < 4 for n in range(40)]
    rate = estimate_rate_with_trial_clusters(rows, values)
    unclustered = estimate_mean_or_share(np.array(values, float), is_share=True)
    assert rate["trials"] == 8 and rate["high"] - rate["low"] > 2 * (
        unclustered.high - unclustered.low
    )
    few = estimate_rate_with_trial_clusters(rows[:4] * 2, [True, False, True, False] * 2)
    assert few["value"] == 0.5 and few["method"] == "no interval: fewer than 6 trials"
    assert few["low"] is few["high"] is None
    # One candidate of each trial is an independent unit, whose interval is exact.
    single = estimate_rate_with_trial_clusters(rows[:4], [True, False, True, False])
    exact = stats.binomtest(2, 4).proportion_ci()
    assert (single["low"], single["high"]) == pytest.approx((exact.low, exact.high))


def test_rates_follow_from_the_table_of_candidates(rate_tables):
    """Each is the mean of a column of the candidates that it is about."""
    for name, column_, selects in (
        (
            "detection_rates",
            "is_detected",
            lambda r, u: u["has_effects"] and u["effect_level"] == r["effect_level"],
        ),
        ("false_alarm_rates", "is_detected", lambda r, u: u["has_effect"] is False),
        ("interval_coverage", "is_covered", lambda r, u: u["is_covered"] is not None),
    ):
        for row in rate_tables[name]:
            selected_values = [
                u[column_]
                for u in rate_tables["candidates"]
                if u["kind"] == row["kind"] and u["has_learned"] and selects(row, u)
            ]
            assert row["value"] == pytest.approx(np.mean(selected_values)) and row["n"] == len(
                selected_values
            )


def test_coverage_needs_an_interval_with_two_ends():
    assert covers_full_value({"low": None, "high": None, "full_value": 1.0}) is None
    assert covers_full_value({"low": 0.0, "high": None, "full_value": 5.0}) is None
    assert covers_full_value({"low": 0.0, "high": 5.0, "full_value": 5.0}) is True
    assert covers_full_value({"low": 5.0, "high": 6.0, "full_value": 5.0}) is True
    assert covers_full_value({"low": 0.0, "high": 1.0, "full_value": -0.1}) is False
    assert [*compute_false_alarm_rates_by_kind([])] == []
