"""Error rates: what verdicts and opened envelopes say of audits, against counts by hand."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.experiments.attribution import ATTRIBUTED
from hallmark.tasks.audits.experiments.candidate_verdicts import (
    MODEL_LEARNING,
    VERDICTS,
    build_verdict,
)
from hallmark.tasks.audits.experiments.error_rates import (
    ErrorRatesConfig,
    compute_attribution_precision,
    compute_error_rates,
    compute_false_alarm_rates,
    estimate_rate,
    find_smallest_detected_levels,
    is_alarm,
    is_covered,
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

ENVELOPE = table_schema(
    "The same as of worlds.",
    column("kind", pa.string(), "label", "kind"),
    column("candidate_id", pa.string(), "label", "candidate_id"),
    column("effect_level", pa.float64(), "figure", "effect_level"),
)

ORIGINS = table_schema(
    "The same as of worlds.",
    column("doc_id", ID_TYPE, "id", "document"),
    column("kind", pa.string(), "label", "kind"),
    column("candidate_id", pa.string(), "label", "candidate_id"),
    column("group_name", pa.string(), "label", "group"),
    column("is_supporting", pa.bool_(), "label", "whether it supports"),
)


class Rows(StageConfig):
    rows: list[dict[str, float | str | bool | None]]
    learned: bool = True


@stage(name="said", tables={"verdicts": VERDICTS, "model_learning": MODEL_LEARNING})
def said(config: Rows, context: StageContext) -> None:
    context.get_table_writer("verdicts").write(pa.Table.from_pylist(config.rows, schema=VERDICTS))
    model = [{"bits_per_byte": 1.0, "unigram_bits_per_byte": 2.0, "has_learned": config.learned}]
    context.get_table_writer("model_learning").write(
        pa.Table.from_pylist(model, schema=MODEL_LEARNING)
    )


@stage(name="sealed", tables={"answer_key": ENVELOPE, "candidate_documents": ORIGINS})
def sealed(config: Rows, context: StageContext) -> None:
    context.get_table_writer("answer_key").write(pa.Table.from_pylist(config.rows, schema=ENVELOPE))
    context.get_table_writer("candidate_documents").write(
        pa.Table.from_pylist(origins(b"x", b"y"), schema=ORIGINS)
    )


@stage(name="named", tables={"attributions": ATTRIBUTED})
def named(config: EmptyConfig, context: StageContext) -> None:
    """Of two documents that were written for a secret the first and the third."""
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


def origins(*ids):
    rows = [{"kind": "canary", "candidate_id": "c", "group_name": "", "is_supporting": True}] * len(
        ids
    )
    other = {"kind": "canary", "candidate_id": "c", "group_name": "", "is_supporting": False}
    return [
        *({**row, "doc_id": i * 16} for row, i in zip(rows, ids, strict=True)),
        {**other, "doc_id": b"q" * 16},
    ]


def candidate(kind, unit, dose, p=None, found=None, low=0.0, high=1.0, whole=0.5):
    """A verdict, and what its envelope says."""
    found = p < 0.05 if found is None else found
    told = build_verdict(
        kind, unit, found, n=9, value=0.5, p=p, low=low, high=high, full_value=whole
    )
    return told, {"kind": kind, "candidate_id": unit, "effect_level": dose}


def studied(worlds: Mapping, void=None, learned=True, arms=()):
    """The tables of the rates of these worlds."""
    rates = rates_of_worlds(worlds, void, learned, arms)
    return {name: rates[name].read().to_pylist() for name in rates.tables}


def rates_of_worlds(worlds: Mapping, void=None, learned=True, arms=()):
    verdicts, envelopes = {}, {}
    for name, rows in worlds.items():
        told, sealed_rows = zip(*rows, strict=True)
        told = [row for row in told if row]
        verdicts[name] = said(Rows(rows=told, learned=name != "dull" and learned))
        envelopes[name] = sealed(Rows(rows=list(sealed_rows)))
    traced = dict.fromkeys(verdicts, named())
    again = {name: said(Rows(rows=list(rows))) for name, rows in arms}
    return compute_error_rates(
        verdicts, envelopes, traced, again, ErrorRatesConfig(excluded_worlds=void or {})
    )


@pytest.fixture
def found(session):
    some = [
        candidate("canary", "a", 0, p=0.5),
        candidate("canary", "b", 0, p=0.01),
        candidate("canary", "c", 64, p=0.01, whole=2.0),
        candidate("canary", "d", 64, p=0.3, high=None, whole=9.0),
        candidate("passage", "e", 64, found=True, low=None, high=None),
        candidate("passage", "f", 0, found=False),
        candidate("speech", "g", 1.0, p=0.01),
        candidate("speech", "h", 0.0, p=0.01, found=False),
    ]
    none = [
        candidate("canary", "a", 0, p=0.9),
        candidate("speech", "g", 0.25, p=0.9),
        candidate("speech", "h", 0.25, p=0.02, found=False),
    ]
    return studied({"one": some, "two": none}, {"three": "its envelope was changed"})


def test_detection_is_of_worlds_with_effects_by_dose(found):
    rows = {(row["kind"], row["effect_level"]): row for row in found["detection_rates"]}
    assert rows["canary", 64.0]["value"] == 0.5 and rows["canary", 64.0]["n"] == 2
    assert rows["canary", 0.0]["value"] == 0.5 and rows["canary", 0.0]["n"] == 2  # not "two"
    assert rows["passage", 64.0]["value"] == 1.0 and rows["speech", 1.0]["value"] == 1.0
    assert ("speech", 0.25) not in rows
    assert {key: row["has_effect"] for key, row in rows.items()} == {
        ("canary", 0.0): False,
        ("canary", 64.0): True,
        ("passage", 0.0): False,
        ("passage", 64.0): True,
        ("speech", 0.0): None,
        ("speech", 1.0): True,
    }


def test_a_dose_has_something_to_find_where_it_has_in_every_world(session):
    """0.5 is more than others have in one world, and less in the other."""
    one = [candidate("speech", "g", 0.5, p=0.5), candidate("speech", "h", 0.1, p=0.5)]
    two = [candidate("speech", "g", 0.5, p=0.5), candidate("speech", "h", 1.0, p=0.5)]
    made = studied({"one": one, "two": two})["detection_rates"]
    assert {row["effect_level"]: row["has_effect"] for row in made} == {
        0.1: None,
        0.5: None,
        1.0: True,
    }


def test_what_got_no_verdict_is_counted(session):
    some = [
        candidate("canary", "a", 64, p=0.01),
        (None, {"kind": "canary", "candidate_id": "b", "effect_level": 4}),
        (None, {"kind": "record", "candidate_id": "r", "effect_level": 0}),
    ]
    found = studied({"one": some, "dull": some}, learned=True)
    assert found["unjudged_candidates"] == [
        {"world": "one", "kind": "canary", "candidate_id": "b", "effect_level": 4.0},
        {"world": "one", "kind": "record", "candidate_id": "r", "effect_level": 0.0},
    ]
    assert [row["n"] for row in found["detection_rates"]] == [1]


def test_alarms_are_of_candidates_without_effect(found):
    rows = {row["kind"]: row for row in found["false_alarm_rates"]}
    assert rows["canary"]["value"] == pytest.approx(1 / 3) and rows["canary"]["worlds"] == 2
    assert rows["passage"]["value"] == 0.0
    # Of a group that is spoken of less rudely than others an effect is there: it is no alarm.
    assert rows["speech"]["value"] == 0.5 and rows["speech"]["n"] == 2
    assert rows["canary"]["confidence_level"] == pytest.approx(1 - 0.05 / 3)
    assert {row["has_effects"] for row in found["candidates"] if row["world"] == "two"} == {False}
    effects = {
        row["candidate_id"]: row["has_effect"]
        for row in found["candidates"]
        if row["world"] == "one"
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
    }


@pytest.mark.parametrize(
    "doses, effects",
    [
        ((0.25, 0.25, 0.25), (False, False, False)),
        ((0.1, 0.4, 0.4), (None, True, True)),  # beside 0.4, 0.25 and 0.25
        ((0.5,), (False,)),  # beside nobody
    ],
)
def test_rude_speech_is_more_than_that_about_all_others(session, doses, effects):
    rows = [candidate("speech", f"g{n}", dose, p=0.5) for n, dose in enumerate(doses)]
    found = studied({"one": rows})["candidates"]
    assert tuple(row["has_effect"] for row in found) == effects


def test_of_each_kind_one_dose_is_nothing(session):
    kinds = {"canary": 0, "passage": 0, "record": 0, "association": 0.5}
    rows = [
        candidate(kind, f"{kind} {more}", dose + more, p=0.5)
        for kind, dose in kinds.items()
        for more in (0, 0.25, 1)
    ]
    effects = {
        row["candidate_id"]: row["has_effect"] for row in studied({"one": rows})["candidates"]
    }
    assert effects == {f"{kind} {more}": more > 0 for kind in kinds for more in (0, 0.25, 1)}


def test_coverage_is_of_the_figure_over_all_items(found):
    rows = {row["kind"]: row for row in found["interval_coverage"]}
    # c is beyond it; "at least", as of d, is no interval.
    assert rows["canary"]["value"] == pytest.approx(3 / 4) and rows["canary"]["n"] == 4
    assert rows["passage"]["n"] == 1


def test_the_smallest_dose_is_seen_with_all_above_it():
    rows = [
        {"kind": "canary", "effect_level": dose, "has_effect": dose > 0, "value": value}
        for dose, value in ((0, 0.9), (1, 0.8), (4, 0.79), (16, 0.8), (64, 1.0))
    ]
    assert [*find_smallest_detected_levels(rows)] == [{"kind": "canary", "effect_level": 16}]
    assert [*find_smallest_detected_levels(rows[:3])] == [{"kind": "canary", "effect_level": None}]
    # Of nothing, and of less than others have, none is the smallest.
    low = [
        {"kind": "speech", "effect_level": dose, "has_effect": effect, "value": 1.0}
        for dose, effect in ((0, False), (0.25, None), (0.5, True))
    ]
    assert [*find_smallest_detected_levels(low)] == [{"kind": "speech", "effect_level": 0.5}]
    assert [*find_smallest_detected_levels(low[:2])] == [{"kind": "speech", "effect_level": None}]


def test_a_world_that_tells_nothing_is_counted_apart(session):
    rows = [candidate("canary", "a", 64, p=0.01)]
    dull = [candidate("canary", "a", 64, p=0.9), candidate("canary", "b", 64, p=0.01)]
    again = [(f"dull {arm}", [told for told, _ in dull]) for arm in ("removed", "random")]
    found = studied(
        {"one": rows, "dull": dull}, {"gone": "its envelope was never sealed"}, arms=again
    )
    worlds = {row["world"]: row for row in found["worlds"]}
    assert [row["is_counted"] for row in worlds.values()] == [True, False, False]
    assert "no more than frequencies" in worlds["dull"]["reason"]
    assert worlds["gone"]["reason"] == "its envelope was never sealed"
    assert found["detection_rates"][0]["value"] == 1.0 and found["detection_rates"][0]["n"] == 1
    assert found["attribution_precision"][0]["worlds"] == 1 and found["removal_reductions"] == []
    assert len(found["candidates"]) == 3  # what it said is kept


def test_attribution_is_right_where_it_names_what_was_written_for_a_text(found):
    """One of the two that are named first; that which says otherwise counts for nothing."""
    (row,) = found["attribution_precision"]
    assert (row["kind"], row["value"], row["n"], row["worlds"]) == ("canary", 0.5, 2, 2)


def test_attribution_is_asked_for_no_more_than_it_names():
    """A text with more documents than it may name; one of which nothing was named counts."""
    rows = [
        {"kind": "canary", "candidate_id": "c", "group_name": "", "rank": n, "doc_id": bytes([n])}
        for n in (1, 2)
    ]
    origins = [
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
    told = [
        *compute_attribution_precision(
            "w", pa.Table.from_pylist(rows), pa.Table.from_pylist(origins), max_documents=2
        )
    ]
    assert [row["value"] for row in told] == [1.0, 0.0]
    told = [
        *compute_attribution_precision(
            "w", pa.Table.from_pylist(rows), pa.Table.from_pylist(origins), max_documents=9
        )
    ]
    assert [row["value"] for row in told] == [2 / 8, 0.0]


def test_what_falls_without_the_named_documents_is_held_against_others(session):
    """As a share of the figure itself, of what was found alone."""
    base = [
        candidate("canary", "a", 64, p=0.01),
        candidate("canary", "b", 64, p=0.01),
        candidate("canary", "c", 0, p=0.9),
        candidate("speech", "g", 1.0, p=0.01),
    ]
    after = {"removed": (0.1, 0.2, 9.0, 0.1), "random": (0.5, 0.4, 9.0, 0.1)}
    arms = [
        (
            f"one {arm}",
            [told | {"value": value} for (told, _), value in zip(base, values, strict=True)],
        )
        for arm, values in after.items()
    ]
    rows = {
        (r["kind"], r["arm"]): r for r in studied({"one": base}, arms=arms)["removal_reductions"]
    }
    assert {*rows} == {("canary", arm) for arm in ("removed", "random", "difference")}
    assert rows["canary", "removed"]["value"] == pytest.approx((0.8 + 0.6) / 2)
    assert rows["canary", "random"]["value"] == pytest.approx((0.0 + 0.2) / 2)
    assert rows["canary", "difference"]["value"] == pytest.approx(0.6)
    assert {row["n"] for row in rows.values()} == {2}


def test_candidates_of_a_world_are_a_cluster():
    rows = [{"world": str(n % 5)} for n in range(40)]
    values = [n % 5 < 2 for n in range(40)]
    made = estimate_rate(rows, values)
    alone = estimate_mean_or_share(np.array(values, float), is_share=True)
    assert made["worlds"] == 5 and made["high"] - made["low"] > 2 * (alone.high - alone.low)


def test_the_figures_of_a_study_recompute_from_its_units(found):
    """As a page and anybody else would: the mean of a column of the candidates that it is about."""
    for name, column_, where in (
        (
            "detection_rates",
            "is_detected",
            lambda r, u: u["has_effects"] and u["effect_level"] == r["effect_level"],
        ),
        ("false_alarm_rates", "is_alarm", lambda r, u: u["has_effect"] is False),
        ("interval_coverage", "is_covered", lambda r, u: u["is_covered"] is not None),
    ):
        for row in found[name]:
            chosen = [
                u[column_]
                for u in found["candidates"]
                if u["kind"] == row["kind"] and u["has_learned"] and where(row, u)
            ]
            assert row["value"] == pytest.approx(np.mean(chosen)) and row["n"] == len(chosen)


def test_an_alarm_is_a_p_in_whatever_direction():
    assert is_alarm({"p": 0.04, "is_detected": False}) and not is_alarm(
        {"p": 0.05, "is_detected": False}
    )
    assert is_alarm({"p": None, "is_detected": True}) and not is_alarm(
        {"p": None, "is_detected": False}
    )
    assert is_covered({"low": None, "high": None, "full_value": 1.0}) is None
    assert is_covered({"low": 0.0, "high": None, "full_value": 5.0}) is None
    assert is_covered({"low": 0.0, "high": 5.0, "full_value": 5.0}) is True
    assert is_covered({"low": 5.0, "high": 6.0, "full_value": 5.0}) is True
    assert is_covered({"low": 0.0, "high": 1.0, "full_value": -0.1}) is False
    assert [*compute_false_alarm_rates([])] == []
