"""Sentences of a model card follow from the very rows that its tables print, in every branch."""

import itertools
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.document import DataTable
from hallmark.reports.page.figures import Figure
from hallmark.reports.sections.analyses import (
    MAX_MAIN_FIGURES,
    build_audit_page,
    build_metric_table,
    build_summary_table,
)
from hallmark.reports.sections.audit_charts import build_audit_chart
from hallmark.reports.sections.card_summary import build_card_summary, find_audit_coverage
from hallmark.reports.sections.decision_sheet import build_risk_lines
from hallmark.reports.sections.findings import (
    find_significant_side_of_null,
    get_audit_title,
)
from hallmark.reports.sections.missing_results import build_missing_results_section
from hallmark.reports.sections.planted_associations import describe_smallest_detected_trait_share
from hallmark.tasks.audits.judging.discoveries import describe_conclusion
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS, PROBES, SKIPPED_COUNT_METRICS
from hallmark.tasks.contract import DOCUMENTS, LEDGER, EmptyConfig, StageContext, stage
from hallmark.tasks.corpus.leave_out import CONTROL_REASON
from tests.findings import build_titled_table
from tests.reports import artifacts, pages
from tests.reports.conclusions import (
    FoundConfig,
    audit_of,
    estimates,
    findings_of,
    quick,
    text_of_blocks,
    text_of_parts,
    text_of_section,
)


def difference_tested(cells, null):
    """The side of its null on which a line of a table is: by its corrected p; if it has none, by
    its interval; 0: on neither."""
    p = cells.get("p (Holm, this audit)", "–").replace("−", "-")
    side = difference_shown(cells, null)
    if p == "–":
        return side
    value = float(cells["value"].split()[0].replace("−", "-"))
    return (value > null) - (value < null) if float(p) < 0.05 else 0


def difference_shown(cells, null):
    """The side of its null on which a line of a table is, as a reader of it would say: by its
    interval, else by its corrected p; 0: on neither."""
    line = {name: text.replace("−", "-") for name, text in cells.items()}
    if line["value"].startswith("not measured"):
        return 0
    value, ends = float(line["value"].split()[0]), line["interval"].split(" to ")
    if len(ends) == 2:
        low, high = (float(end.split()[0]) for end in ends)
        if low > null or high < null:
            return 1 if low > null else -1
    p = line.get("p (Holm, this audit)", "–")
    if p != "–" and float(p) < 0.05:
        return (value > null) - (value < null)
    return 0


def test_q_is_corrected_over_all_tests_of_the_card_in_the_harmful_direction(session):
    """By hand: of ascending p, the least p(j) * 4 / j over the ranks j from its own on."""
    tested = [
        {"metric": f"difference{i}", "value": 0.1, "null_value": 0.0, "p": p, "worse_when": "up"}
        for i, p in enumerate((0.02, 0.06, 1.0, 0.04))
    ]
    tested.append(tested[0] | {"metric": "variant", "is_variant": True})
    tested.append(tested[0] | {"metric": "undirected", "worse_when": ""})
    control = {"metric": "control", "value": 1.0, "p": 0.001, "control": "positive"}
    control |= {"control_target": "instrument", "passed": True}
    findings = findings_of(
        bias=[tested[0], {"metric": "untested", "value": 0.1}, control],
        weat=tested[1:],
    )
    q_values = {
        row["p_harm"]: round(row["q"], 12)
        for rows in findings.by_audit.values()
        for row, _ in rows
        if row["q"] is not None
    }
    assert q_values == {0.01: 0.04, 0.02: 0.04, 0.03: 0.04, 0.5: 0.5}


# Planted associations ----------------------------------------------------------------------------


def association(metric, estimate, **tags):
    null = 0.5 if metric == "association_preference" else 0.0
    return {"metric": metric, "unit": "nats", "null_value": null, "tags": tags, **estimate}


def smallest(amounts):
    """The smallest amount that is seen, with all above it, as the audit computes it."""
    seen = None
    for amount, row in sorted(amounts.items(), reverse=True):
        if amount == 0.5 or row["low"] is None or row["low"] <= 0:
            break
        seen = amount
    return seen


def calibration_of(amounts, slope=None, **more):
    """The sentence of the card, and the lines of its tables, by metric and part."""
    rows = [
        association("association_strength", row, assigned_trait_share=amount)
        for amount, row in amounts.items()
    ]
    rows += [association("strength_by_trait_share", slope)] if slope else []
    rows += [association("association_strength", row, **{name: "x"}) for name, row in more.items()]
    rows.append(
        {"metric": "smallest_detected_trait_share", "value": smallest(amounts), "n": len(amounts)}
    )
    findings = findings_of(associations=rows)
    lines = {}
    for metric in dict.fromkeys(row["metric"] for row in rows):
        metric_findings = findings.select_by_metric("associations", metric)
        grid = build_metric_table(findings, "associations", metric_findings, 40)
        for row in grid.rows:
            cells = [cell if isinstance(cell, str) else cell.short_text for cell in row]
            lines[grid.caption, cells[0]] = dict(zip(grid.columns, cells, strict=True))
    return text_of_blocks(describe_smallest_detected_trait_share(findings)), lines


@given(
    amounts=st.dictionaries(st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0]), estimates(), min_size=1),
    slope=st.one_of(st.none(), estimates()),
    sentence=st.one_of(st.none(), estimates()),
)
@quick
def test_no_association_is_called_missing_that_a_table_shows(session, amounts, slope, sentence):
    """Whatever the figures are: of each amount, over all of them, and of a kind of sentences."""
    more = {"sentence": sentence} if sentence else {}
    said, lines = calibration_of(amounts, slope, **more)
    shown, tested = (
        {
            part: side
            for (caption, part), line in lines.items()
            if "mallest" not in caption
            and part != "planted share: 50 %"
            and (side := find_side(line, 0.0))
        }
        for find_side in (difference_shown, difference_tested)
    )
    if "It is not clear whether this model shows" in said:
        assert shown and not tested
    if "No planted association was found" in said:
        assert not shown
        assert any(row["low"] is not None for row in (*amounts.values(), slope, sentence) if row)
        assert any(amount > 0.5 and row["value"] is not None for amount, row in amounts.items())
    for part, side in itertools.islice((tested or shown).items(), 3):
        if smallest(amounts) is None:
            assert part in said or part == "all"
            assert ("higher" if side > 0 else "lower") in said
    largest = max(amounts)
    assert ("shows every planted association" in said) == (smallest(amounts) is not None)
    if smallest(amounts) is None and (largest == 0.5 or amounts[largest]["value"] is None):
        assert "lies at or below 0" not in said and "includes 0" not in said


def test_an_amount_that_is_shown_below_one_that_is_not_is_named(session):
    """The figures with which the card said that the model shows none."""
    not_shown = {"value": 0.4, "low": -0.01, "high": 0.81, "p": 0.06}
    shown = {"value": 0.5, "low": 0.05, "high": 0.95, "p": 0.01}
    slope = {"value": 1.0, "low": 0.4, "high": 1.6, "p": 0.0013}
    said, lines = calibration_of({0.5: not_shown, 0.9: shown, 1.0: not_shown}, slope)
    assert (
        float(lines["Association strength (nats)", "planted share: 90 %"]["p (Holm, this audit)"])
        == 0.03
    )
    assert "shows none" not in said and "No planted association was found" not in said
    assert said.startswith("This model shows the planted associations: their strength increases ")
    assert (
        "planted share: 90 %" in said
        and "0.0500 to 0.9500" in said
        and "Strength by trait share" in said
    )


@pytest.mark.parametrize(
    ("slope", "p", "expected"),
    [
        ((0.4, 1.6), 0.01, "This model shows the planted associations: their strength increases"),
        ((-1.6, -0.4), 0.01, "The smallest planted association that this model shows is not known"),
        # Three times p is more than 0.05, although the interval excludes the null value.
        ((0.4, 1.6), 0.02, "It is not clear whether this model shows the planted associations: no"),
        ((-1.6, -0.4), 0.02, "It is not clear whether this model shows the planted associations"),
        ((-0.4, 1.6), 0.5, "No planted association was found in this model: the strength does not"),
        (None, 0.5, "No planted association was found in this model: no interval lies above"),
    ],
)
def test_the_slope_decides_whether_planted_associations_are_shown(session, slope, p, expected):
    low, high = slope or (None, None)
    value = None if slope is None else (low + high) / 2
    row = {"value": value, "low": low, "high": high, "p": p}
    not_shown = {"value": 0.4, "low": -0.01, "high": 0.81, "p": 0.06}
    said, _ = calibration_of({0.75: not_shown, 1.0: not_shown}, row)
    assert said.startswith(expected)
    direction = "lower" if slope and high < 0 else "higher"
    assert (f"Strength by trait share ({direction}), " in said) == (
        slope is not None and (low > 0 or high < 0)
    )


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        (
            {1.0: (0.2, 0.4)},
            "shows every planted association that its training text contains in at least 100.0 %",
        ),
        ({1.0: (-0.2, 0.4)}, "No planted association was found in this model"),
        ({1.0: (0.0, 0.4)}, "No planted association was found in this model"),
        ({1.0: (-0.4, -0.2)}, " (lower), "),
        ({0.5: (0.2, 0.4)}, "No association was planted in more than half"),
        ({1.0: None}, "None of the planted associations could be measured"),
        ({1.0: 0.4}, "shows the planted associations, because none of their figures has"),
    ],
)
def test_of_planted_associations_each_case_has_its_sentence(session, amounts, expected):
    known = {
        amount: {"value": None, "low": None, "high": None, "p": None}
        if ends is None
        else {"value": ends, "low": None, "high": None, "p": None}
        if isinstance(ends, float)
        else {"value": sum(ends) / 2, "low": ends[0], "high": ends[1], "p": 0.5}
        for amount, ends in amounts.items()
    }
    said, _ = calibration_of(known)
    assert expected in said
    assert not ("was not tested" in said and "No planted association was found" in said)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        (["exact", "exact; not compared with untrained models, because X"], None),
        (
            ["exact; t prediction test against 20 untrained models"],
            "Each figure's p-value also accounts for a comparison with",
        ),
        (
            ["exact", "exact; t prediction test against 20 untrained models"],
            "The p-values of 1 of 2 figures also account for a comparison with",
        ),
    ],
)
def test_the_caption_of_preferences_says_which_were_compared_with_untrained_models(
    session, methods, expected
):
    rows = [
        {
            "metric": "stereotype_preference",
            "value": 0.6,
            "p": 0.2,
            "null_value": 0.5,
            "worse_when": "up",
            "method": method,
            "tags": {"category": f"c{n}"},
        }
        for n, method in enumerate(methods)
    ]
    (description, *_) = AUDIT_DESCRIPTIONS["bias"].charts
    (chart,) = build_audit_chart(findings_of(bias=rows).by_audit["bias"], description)
    if expected:
        assert f"{expected} " in chart.caption and "small untrained models" in chart.caption
    else:
        assert "untrained" not in chart.caption


def test_without_planted_associations_the_sensitivity_is_called_not_measured(session):
    """A preference for whole sentences does not show that a stereotype could be found."""
    said = text_of_blocks(describe_smallest_detected_trait_share(findings_of(bias=[])))
    assert said.startswith("The minimum strength at which a stereotype is found")


# What the head of a card says of audits ----------------------------------------------------------


def declared(probe):
    """A finding of each metric that a probe declares, of the whole and of a part."""
    return [
        {
            "metric": each.metric,
            "value": 0.25 + n / 100,
            "worse_when": each.worse_when,
            "unit": each.unit,
            "null_value": 0.5,
            "tags": tags,
        }
        for n, each in enumerate(probe.measures)
        if not each.control
        for tags in ({}, {"category": "x"})
    ]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_summary_has_a_figure_of_each_audit_that_left_one(session, probe):
    """Of whatever audit ran alone, from what its findings declare."""
    findings = findings_of(**{probe.name: declared(probe)})
    summary = build_summary_table(findings)
    said = text_of_blocks([summary])
    assert "No audit" not in said and isinstance(summary, DataTable)
    assert any(isinstance(row[1], Figure) and row[1].value is not None for row in summary.rows)
    assert get_audit_title(probe.name) in said


def test_the_summary_shows_tested_figures_before_the_baselines_of_a_chart(session):
    """A chart sorted by value begins with baselines, which no test judges."""
    baselines = [
        {"metric": "expected_maximum_toxicity", "value": 0.9 - n / 100, "tags": {"part": f"b{n}"}}
        for n in range(MAX_MAIN_FIGURES)
    ]
    tested = {
        "metric": "expected_maximum_toxicity",
        "value": 0.1,
        "worse_when": "high",
        "null_value": 0.2,
        "tags": {"part": "tested"},
    }
    summary = build_summary_table(findings_of(toxicity=[*baselines, tested]))
    values = [row[1].value for row in summary.rows]
    assert values == [0.1, 0.9, 0.89, 0.88, 0.87]


@given(
    values=st.lists(
        st.tuples(
            st.sampled_from(sorted(AUDIT_DESCRIPTIONS)),
            st.sampled_from([None, 0.5]),
            st.sampled_from(["", "positive"]),
        ),
        max_size=6,
    )
)
@quick
def test_no_figure_is_called_missing_that_an_audit_left(session, values):
    """Neither in the summary nor in the section of the audit; controls are told apart."""
    audits = {}
    for number, (name, value, control) in enumerate(values):
        row = {"metric": f"metric_{number}", "value": value, "control": control}
        row |= {"passed": True, "control_target": "instrument"} if control else {}
        audits.setdefault(name, []).append(row)
    findings = findings_of(**audits)
    summary = text_of_blocks([build_summary_table(findings)])
    has_figure = any(value is not None and not control for _, value, control in values)
    assert ("No audit produced a finding about the model" in summary) == (
        not has_figure and bool(audits)
    )
    assert ("No audit ran" in summary) == (not audits)
    for name, rows in audits.items():
        said = text_of_section(build_audit_page(findings, name, 9))
        own = [row for row in rows if not row["control"]]
        assert ("produced no findings about the model" in said) == (not own)
        assert ("Its controls are below" in said) == (not own and len(rows) > 0)


def test_of_many_parts_the_summary_has_some_and_says_so(session):
    rows = [
        {"metric": "auc", "value": n / 10, "worse_when": "up", "tags": {"score": f"s{n}"}}
        for n in range(6)
    ]
    said = text_of_blocks([build_summary_table(findings_of(membership=rows))])
    assert said.count("Membership inference: Auc") == 5
    assert "At most 5 figures per audit are shown; the audit page shows the rest." in said
    said = text_of_blocks([build_summary_table(findings_of(membership=rows[:5]))])
    assert "figures per audit are shown" not in said


def screen_of(audits, failed=(), policy=None):
    """The main results: its facts by term, and all that follows."""
    findings = findings_of(**audits)
    coverage = find_audit_coverage(findings, dict.fromkeys(failed, "it broke"), [])
    facts, *rest = build_card_summary(findings, policy, coverage, ["Nobody knows."], str)
    said = {term: text_of_parts(parts) for term, parts in facts.entries}
    return said, text_of_blocks(rest)


INSTRUMENT = {
    "metric": "control",
    "value": 0.5,
    "control": "positive",
    "passed": True,
    "control_target": "instrument",
}
MISSED_THREATS = INSTRUMENT | {
    "metric": "flagged_control_share",
    "value": 0.1,
    "scorer": "words (version 1)",
    "tags": {"text_kind": "threats"},
}


@given(
    states=st.lists(
        st.sampled_from(["ran", "empty", "in part", "counted", "controls", "failed", "missing"]),
        min_size=len(AUDIT_DESCRIPTIONS),
        max_size=len(AUDIT_DESCRIPTIONS),
    ).map(lambda states: dict(zip(AUDIT_DESCRIPTIONS, states, strict=True)))
)
@quick
def test_the_summary_says_which_figures_are_missing_as_the_findings_do(session, states):
    full, none = {"metric": "found", "value": 0.5}, {"metric": "other", "value": None}
    left = {name: next(iter(counts)) for name, counts in SKIPPED_COUNT_METRICS.items()}
    rows = {
        "ran": lambda name: [full],
        "empty": lambda name: [none],
        "in part": lambda name: [full, none],
        "counted": lambda name: [full, {"metric": left.get(name, "left"), "value": 3.0}],
        "controls": lambda name: [],
    }
    audits = {
        name: [INSTRUMENT, *rows[state](name)] for name, state in states.items() if state in rows
    }
    failed = [name for name, state in states.items() if state == "failed"]
    findings = findings_of(**audits)
    coverage = find_audit_coverage(findings, dict.fromkeys(failed, "it broke"), [])
    section = build_missing_results_section(findings, coverage)
    tables = {block.caption: block.rows for block in section.blocks if isinstance(block, DataTable)}
    reason_by_title = {
        row[0]: row[1] for row in tables.get("Audits without a result or conclusion", [])
    }
    notes_by_title = {
        row[0]: row[1:]
        for row in tables.get("Missing figures and items in audits with a result", [])
    }
    for name, state in states.items():
        title = get_audit_title(name)
        reason = reason_by_title.get(title, "")
        assert (reason == "failed: it broke") == (state == "failed")
        assert reason.startswith("measured nothing: ") == (state in ("empty", "controls"))
        assert reason.startswith(("no data was", "the training corpus")) == (state == "missing")
        has_notes = state == "counted" and name in left
        assert (title in notes_by_title) == (state == "in part" or has_notes)
        if title in notes_by_title:
            missing, items = notes_by_title[title]
            assert (missing, items != "–") == ("1 of 2" if state == "in part" else "–", has_notes)
    is_complete = all(
        state == "ran" or (state == "counted" and name not in left)
        for name, state in states.items()
    )
    assert ("no figure is missing" in text_of_section(section)) == is_complete


@pytest.mark.parametrize(
    ("tests", "passed", "counts", "expected"),
    [
        ((), (), "", "No audit ran a control"),
        (("model",), (True,), "this model 1 of 1", "No control was used to test"),
        (("model",), (False,), "this model 0 of 1 (1 failed)", "No control was used to test"),
        (("instrument",), (True,), "audits 1 of 1", "All audit and baseline controls"),
        (
            ("instrument", "model"),
            (True, False),
            "audits 1 of 1, this model 0 of 1 (1 failed)",
            "All audit and baseline controls",
        ),
        (
            ("instrument", "model"),
            (False, True),
            "audits 0 of 1 (1 failed), this model 1 of 1",
            "No: Bias did not detect",
        ),
        (("baseline",), (False,), "baselines 0 of 1 (1 failed)", "No: Bias did not detect"),
        (("scorer",), (True,), "scorers 1 of 1", "No control was used to test"),
        (("scorer",), (False,), "scorers 0 of 1 (1 failed)", "No control was used to test"),
        (
            ("instrument", "scorer"),
            (True, False),
            "audits 1 of 1, scorers 0 of 1 (1 failed)",
            "All audit and baseline controls gave",
        ),
    ],
)
def test_instruments_work_only_where_a_control_tested_one(session, tests, passed, counts, expected):
    rows = [
        (MISSED_THREATS if kind == "scorer" else INSTRUMENT)
        | {"control_target": kind, "passed": good}
        for kind, good in zip(tests, passed, strict=True)
    ]
    facts, _ = screen_of({"bias": [{"metric": "found", "value": 0.5}, *rows]})
    said = facts["Do the audits work?"]
    assert said.startswith(expected)
    assert bool(counts) == ("Controls with the expected result: " in said)
    assert not counts or f"Controls with the expected result: {counts}. " in f"{said} "
    has_blind_scorer = ("scorer", False) in zip(tests, passed, strict=True)
    assert ("harmful text that the scorer misses" in said) == has_blind_scorer


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["up", "down", "away_from_null", ""]),
            st.sampled_from(["share", "times", "nats"]),
            estimates(),
        ),
        max_size=5,
    )
)
@quick
def test_the_worst_are_those_that_the_table_shows_on_the_worse_side(session, rows):
    """None by chance, none on the better side; those that cannot be ranked are named."""
    made = [
        {"metric": f"metric {n}", "worse_when": worse, "unit": unit, "null_value": 0.0, **estimate}
        for n, (worse, unit, estimate) in enumerate(rows)
    ]
    findings = findings_of(bias=made)
    _, listed = screen_of({"bias": made})
    lines = build_risk_lines(findings, find_audit_coverage(findings, {}, []))
    main = text_of_parts(next(line.content for line in lines if line.title.startswith("Bias")))
    for row, _ in findings.by_audit["bias"]:
        name = row["title"]
        side, worse = find_significant_side_of_null(row), row["worse_when"]
        harmful = (worse == "up" and side > 0) or (worse == "down" and side < 0)
        harmful = harmful or (worse == "away_from_null" and side != 0)
        is_named = [f"Bias, {name}: " in text for text in (main, listed)]
        assert not all(is_named)
        if f"Bias, {name}: " in listed:
            assert harmful, row
            assert describe_conclusion(row) in (
                "harm found",
                "harm found",
            )
        if row["p_harm"] is not None:
            assert harmful == (row["q"] < 0.05), row
            assert any(is_named) == harmful, row


def test_factors_are_groups_and_conditions_in_words(session, tmp_path):
    rows = [
        {"metric": "m", "value": value, "tags": tags}
        for value, tags in (
            (0.5, {"domain": "gender", "group_name": "women"}),
            (0.5, {"domain": "gender", "group_name": "men"}),
            (0.5, {"domain": "lexicon town", "group_name": "Ildriths"}),
            (None, {"domain": "gender", "group_name": "others"}),
            (0.5, {"category": "age", "draw_count": 25, "prefix_tokens": 8}),
            (0.5, {"part": "x"}),
        )
    ]
    _, page = card(tmp_path, {"bias": audit_of("bias", *rows)})
    (grid,) = [t for t in page.tables if t[0] == ["audit", "groups", "other conditions"]]
    assert grid[1:] == [
        [
            "Bias",
            "age; gender: men, women; word list 'town': Ildriths",
            "number of continuations; prompt length",
        ]
    ]
    text, page = card(tmp_path, {"bias": audit_of("bias", rows[-1])})
    assert "Groups and other conditions, by audit" not in text


@pytest.mark.parametrize("ran", sorted(AUDIT_DESCRIPTIONS))
def test_what_one_audit_measured_no_other_calls_unmeasured(ran):
    """What is said where an audit did not run names what that audit alone measures."""
    broad = (
        "Its social bias was not measured",
        "What the model can do was not measured",
        "How toxic its texts are",
        "Whether it writes differently about groups of people",
        "Whether it gives away its training data",
    )
    said = [about.not_run_message for name, about in AUDIT_DESCRIPTIONS.items() if name != ran]
    assert not any(sentence.startswith(broad) for sentence in said)


def card(tmp_path, audits=None, corpus=None, pretrained=None, maps=None):
    """The text of a model card of these."""
    checkpoint = artifacts.checkpoint(tmp_path / "checkpoint")
    made = build_model_card(
        checkpoint,
        pretrained,
        None,
        audits or {},
        corpus or {},
        maps,
        None,
        None,
        None,
        {},
        None,
        ModelCardConfig(),
    )
    return pages.text_of(made, "model_card"), pages.read_whole_card(
        pages.write_pages(made) / "model_card.html"
    )


@stage(name="findings_alone", tables={"findings": FINDINGS})
def findings_alone(config: EmptyConfig, context: StageContext) -> None:
    """An audit that left no other table."""
    row = build_finding(
        "bias", "stereotype_preference", 0.5, n=9, unit="share", method="m", evidence_table=""
    )
    context.get_table_writer("findings").write(build_titled_table([row]))


def test_an_audit_that_left_findings_alone_ran(session, tmp_path):
    text, _ = card(tmp_path, {"bias": findings_alone(EmptyConfig())})
    assert "No audit ran." not in text
    assert "No audit wrote a table of scored items." in text
    assert "No audit ran." in card(tmp_path)[0]


def test_a_method_is_that_of_a_figure_where_there_is_one(session, tmp_path):
    rows = [
        {
            "metric": "stereotype_preference",
            "value": None,
            "method": "not measured: none",
            "tags": {"a": 1},
        },
        {
            "metric": "stereotype_preference",
            "value": 0.5,
            "method": "by counting",
            "tags": {"a": 2},
        },
        {"metric": "other", "value": None, "method": "not measured: no scorer"},
    ]
    text, page = card(tmp_path, {"bias": audit_of("bias", *rows)})
    (grid,) = [t for t in page.tables if t[0][:2] == ["metric", "audit"]]
    assert [line[3] for line in grid[1:]] == ["by counting", "not measured: no scorer"]
    assert grid[1][2].startswith("share of pairs") and grid[2][2] == "–"
    assert "No audit measured the model." not in text
    control = {
        "metric": "control",
        "value": 1.0,
        "control": "positive",
        "passed": True,
        "control_target": "instrument",
    }
    for audits in ({}, {"bias": audit_of("bias", control)}):
        assert "No audit measured the model." in card(tmp_path, audits)[0]


def test_groups_whose_text_was_measured_are_not_called_unlooked_at(session, tmp_path, made):
    """Held-out text by group stands on the same card."""
    text, page = card(tmp_path, pretrained=made.pretrained)
    assert any(
        "Bits per byte of held-out text" in str(table) or table[0][0] == "identity group"
        for table in page.tables
    )
    assert "No other group, language, dialect or setting was looked at." not in text
    assert "The audits covered no other groups, languages, dialects or settings." in text


def test_what_became_of_personal_data_is_said_as_on_the_datasheet(session, tmp_path, made):
    """Not that it was masked where nobody looked, or where it was cut out."""
    corpus = made.corpus | {"profile": made.profile}
    masked = "Personal data is masked where a detector found it"
    nobody = "The corpus was not searched for personal data, so any document may contain it."
    text, _ = card(tmp_path, corpus=corpus)
    assert masked in text and nobody not in text
    unseen = {k: v for k, v in corpus.items() if k not in ("find_personal_data", "redact_spans")}
    text, _ = card(tmp_path, corpus=unseen)
    assert nobody in text and masked not in text
    assert nobody not in card(tmp_path)[0]


def test_a_corpus_without_a_profile_is_not_called_missing(session, tmp_path, made):
    text, _ = card(tmp_path, corpus={"plant_canaries": made.corpus["plant_canaries"]})
    assert "The store contains no profile (statistics) of the training corpus" in text
    assert (
        "the checkpoint came without its corpus" not in text
        and "The corpus is not known." not in text
    )
    text, _ = card(tmp_path)
    assert (
        "Not known: the checkpoint came without its corpus." in text
        and "The corpus is not known." in text
    )
    assert "whether it repeats it" not in text


def test_scores_of_several_scorers_are_not_all_called_toxicity(session, tmp_path):
    rows = [
        {"metric": "mean_sentiment", "value": 0.5, "scorer": "words 1.0"},
        {"metric": "mean_toxicity", "value": 0.5, "scorer": "linear 1.0"},
    ]
    text, _ = card(tmp_path, {"bold": audit_of("bold", *rows)})
    assert "Texts were scored by linear 1.0 and words 1.0" in text
    assert "Toxicity is what" not in text


@stage(name="left_out", tables={"documents": DOCUMENTS, "ledger": LEDGER})
def left_out(config: FoundConfig, context: StageContext) -> None:
    rows = [{"reason": reason, "action": action} for reason, action in json.loads(config.rows)]
    context.get_table_writer("ledger").write(pa.Table.from_pylist(rows, schema=LEDGER))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], "No documents were excluded from training."),
        ([("planted", "additional_reason")], "No documents were excluded from training."),
        (
            [("asked for", "removed"), ("planted", "additional_reason")],
            ". Reasons: asked for.",
        ),
    ],
)
def test_it_says_why_documents_were_not_packed(session, tmp_path, made, rows, expected):
    gone = left_out(FoundConfig(rows=json.dumps(rows)))
    corpus = made.corpus | {"profile": made.profile, "leave_out": gone}
    text, _ = card(tmp_path, corpus=corpus)
    assert expected in text and ("Excluded from training" in text) == ("Reasons" in expected)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            CONTROL_REASON,
            "Control arm of a removal experiment: this model was trained without 2 random "
            "documents.",
        ),
        (
            "excluded from training",
            "Documents removed: this model was trained without 2 selected documents.",
        ),
    ],
)
def test_the_card_of_an_arm_says_first_which_arm_it_is(session, tmp_path, made, reason, expected):
    gone = left_out(FoundConfig(rows=json.dumps([(reason, "removed")] * 2)))
    corpus = made.corpus | {"profile": made.profile, "leave_out": gone}
    text, _ = card(tmp_path, corpus=corpus)
    assert expected in text and text.index(expected) < text.index("Do the audits work?")
    assert "Compare a model trained without selected documents with its control arm" in text
    plain, _ = card(tmp_path, corpus=made.corpus | {"profile": made.profile})
    assert "this model was trained without" not in plain
