"""The comparison of two runs has the numbers of the command and of the page of a training."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from hallmark.flows.checkpoint_comparison import report_run_comparison
from hallmark.flows.commands.compare import render_comparison
from hallmark.reports.page.figures import format_number
from hallmark.reports.run_comparison import (
    ComparedRun,
    RunComparison,
    SettingDifference,
    compare_runs,
    list_setting_differences,
    render_comparison_page,
    write_comparison_page,
)
from hallmark.reports.sections.checkpoint_comparison import (
    TrainingCheckpoint,
    describe_change,
    describe_verdict_counts,
    format_change,
    format_change_interval,
    format_p_value,
)
from hallmark.reports.sections.corpus_comparison import (
    ComparedFigure,
    build_difference_sort_key,
    compare_corpora,
    compute_difference_interval,
    format_compared_figure,
)
from hallmark.tasks.audits.audit_descriptions import AuditDescription
from hallmark.tasks.audits.judging.audit_comparison import (
    compare_audits,
    is_unchanged,
)
from hallmark.tasks.audits.judging.change_verdicts import build_change_sort_key
from hallmark.tasks.audits.judging.comparison import FindingComparison
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import HallmarkError, Session, Store, open_session
from tests.reports import artifacts, pages
from tests.reports.artifacts import HIDDEN, SCRIPT
from tests.reports.test_trajectory import FIRST, PART, WHOLE, FoundConfig, found, show

__all__ = ["show"]  # a fixture


@pytest.fixture
def own_session(tmp_path):
    """A store whose files a test may damage."""
    with open_session(Session(Store(tmp_path / "store"))) as session:
        yield session


def compared(name, audits=None, config=None, corpus=None):
    """One side of a comparison."""
    checkpoint = None if audits is None else TrainingCheckpoint(0, {f"run-{name}": audits})
    return ComparedRun(name, f"run-{name}", config or {}, checkpoint, corpus or {})


def audits_of(place, **more):
    """The audit of a checkpoint: the whole, a part, and a finding without units."""
    told = (("", WHOLE[place]), ("part=x", PART[place]), ("part=equal", FIRST))
    return {"audit_bias": found(FoundConfig(told=told, **more))}


def read_page(comparison, tmp_path):
    return pages.read(write_comparison_page(comparison, tmp_path / "page"))


def find_table(page, caption_column, *columns):
    return next(
        table for table in page.tables if table[0][: 1 + len(columns)] == [caption_column, *columns]
    )


# Findings ----------------------------------------------------------------------------------------


def test_command_page_and_trajectory_show_the_same_numbers(session, show, tmp_path):
    site = show({0: audits_of(0), 400: audits_of(2)})
    comparison = RunComparison.from_runs(compared("a", audits_of(0)), compared("b", audits_of(2)))
    report = report_run_comparison(comparison)
    row = next(row for row in report["rows"] if not row["slice"])
    (change,) = row["differences"]
    # Independent of the project: the paired t test of SciPy.
    test = stats.ttest_rel(WHOLE[2], WHOLE[0])
    assert change["value"] == pytest.approx(np.mean(WHOLE[2]) - np.mean(WHOLE[0]))
    assert (change["low"], change["high"]) == pytest.approx(
        tuple(test.confidence_interval(0.95)), rel=1e-3
    )
    # Two findings are tested: those that are equal in every pair need no correction.
    other = stats.ttest_rel(PART[2], PART[0])
    assert change["p"] == pytest.approx(test.pvalue, rel=1e-3)
    assert change["p_corrected"] == pytest.approx(
        max(2 * min(test.pvalue, other.pvalue), max(test.pvalue, other.pvalue)), rel=1e-3
    )
    cells = [
        format_change(change["value"], row["unit"]),
        format_change_interval(change, row["unit"]),
        format_p_value(change["p_corrected"]),
    ]
    values = [format_number(value, row["unit"]) for value in row["values"]]
    (summary, *_) = site.rows("finding")
    assert [summary[name] for name in ("change", "95 % interval", "p, corrected")] == cells
    assert [summary["first"], summary["last"], summary["verdict"]] == [*values, "worse"]
    page = read_page(comparison, tmp_path)
    header, *rows = find_table(page, "finding", "verdict")
    (shown,) = (dict(zip(header, line, strict=True)) for line in rows if line[0] == "Strength")
    assert [shown[name] for name in ("change", "95 % interval", "p, corrected")] == cells
    assert [shown["before"], shown["after"], shown["verdict"]] == [*values, "worse"]
    assert shown["pairs"] == f"{change['n']}" == "12"
    text = render_comparison(report)
    assert f"difference {describe_change(change, row['unit'])}: worse" in text
    assert f"bias.strength (Strength)  {values[0]}  {values[1]}" in text


def test_values_link_to_their_rows_where_these_are_shown(session, tmp_path):
    comparison = RunComparison.from_runs(compared("a", audits_of(0)), compared("b", audits_of(2)))

    def link_finding(checkpoint, audit, figure):
        run = checkpoint.find_newest_run(audit)
        return None if run == "run-a" else f"../{run}/{audit}/{figure.page_path}"

    page = pages.read(write_comparison_page(comparison, tmp_path, link_finding))
    mean = format_number(np.mean(WHOLE[2]), "nats")
    hrefs = {href for href, text in page.links if text == mean}
    assert len(hrefs) == 1 and hrefs.pop().startswith("../run-b/bias/rows/audit-bias.html#rows-")
    assert format_number(np.mean(WHOLE[0]), "nats") not in {text for _, text in page.links}


def test_what_changed_comes_first_and_equal_findings_are_hidden(session, tmp_path):
    told = [
        (("", values), ("part=x", FIRST), ("part=equal", FIRST)) for values in (FIRST, WHOLE[2])
    ]
    shifted = tuple(value + (-1) ** n * 0.3 for n, value in enumerate(FIRST))
    told[1] = (told[1][0], ("part=x", shifted), told[1][2])
    sides = [
        compared(name, {"audit_bias": found(FoundConfig(told=each))})
        for name, each in zip("ab", told, strict=True)
    ]
    comparison = RunComparison.from_runs(*sides)
    report = report_run_comparison(comparison)
    assert [row["verdicts"] for row in report["rows"]] == [
        ["worse"],
        ["no change shown"],
        ["no change shown"],
    ]
    assert [row["is_unchanged"] for row in report["rows"]] == [False, False, True]
    page = read_page(comparison, tmp_path)
    tables = [table for table in page.tables if table[0][:2] == ["finding", "verdict"]]
    assert [[row[0] for row in table[1:]] for table in tables] == [
        ["Strength"],
        ["Strength, part=x"] if tables[1][1][0] != "Strength" else ["Strength", "Strength, part=x"],
    ]
    text = " ".join(page.text.split())
    assert "Of 1 main finding, 1 got worse." in text
    assert "1 finding has the same value before and after (for example" in text
    command = render_comparison(report)
    assert (
        "1 finding has the same value for every checkpoint (for example, a baseline "
        "evaluated on the same text); --json lists all findings"
    ) in command
    assert command.index("what changed") < command.index("other findings")


def test_a_run_that_is_equal_shows_no_change(session, tmp_path):
    comparison = RunComparison.from_runs(
        compared("a", audits_of(0), {"seed": 1}), compared("b", audits_of(0), {"seed": 1})
    )
    text = " ".join(read_page(comparison, tmp_path).text.split())
    assert "The two runs have the same settings." in text
    assert "No finding shows a change." in text
    assert "3 findings have the same value before and after" in text


def test_audits_with_other_settings_are_refused_by_name(session, tmp_path):
    sides = [compared(f"{seed}", audits_of(0, seed=seed), {"seed": seed}) for seed in (1, 2)]
    comparison = RunComparison.from_runs(*sides)
    with pytest.raises(HallmarkError, match="bias: the settings differ: seed"):
        report_run_comparison(comparison)
    page = read_page(comparison, tmp_path)
    text = " ".join(page.text.split())
    assert "No audits can be compared; the reasons are below." in text
    assert ["Bias", "all findings", "the settings differ: seed"] in find_table(page, "audit")
    assert find_table(page, "setting")[1:] == [["seed", "1", "2"]]


def test_one_audit_that_cannot_be_compared_does_not_prevent_the_others(session, tmp_path):
    sides = [
        compared(
            name,
            audits_of(place)
            | {
                "audit_extraction": found(
                    FoundConfig(audit="extraction", seed=place, told=(("", WHOLE[0]),))
                )
            },
        )
        for name, place in (("a", 0), ("b", 2))
    ]
    comparison = RunComparison.from_runs(*sides)
    text = " ".join(read_page(comparison, tmp_path).text.split())
    assert "Not compared, for the reasons below: Training-data extraction." in text
    report = report_run_comparison(comparison)
    assert report["incomparable"] == {"extraction": "the settings differ: seed"}
    assert "extraction was not compared: the settings differ: seed" in render_comparison(report)


def test_an_audit_that_one_checkpoint_lacks_is_named(session, tmp_path):
    both = audits_of(0) | {
        "audit_toxicity": found(FoundConfig(audit="toxicity", told=(("", WHOLE[0]),)))
    }
    report = report_run_comparison(
        RunComparison.from_runs(compared("a", both), compared("b", audits_of(2)))
    )
    assert report["incomparable"] == {"toxicity": "step 0 has no results for the toxicity audit"}


@pytest.mark.parametrize("table", ["values", "findings"])
def test_a_damaged_table_is_said_and_hides_no_other_audit(own_session, tmp_path, table):
    damaged = found(FoundConfig(audit="toxicity", told=(("", WHOLE[2]),), seed=7))
    sides = [
        compared(name, audits_of(place) | {"audit_toxicity": audit})
        for name, place, audit in (
            ("a", 0, found(FoundConfig(audit="toxicity", told=(("", WHOLE[0]),), seed=7))),
            ("b", 2, damaged),
        )
    ]
    for part in damaged[table].parts:
        part.path.write_bytes(b"PAR1")
    comparison = RunComparison.from_runs(*sides)
    report = report_run_comparison(comparison)
    assert report["unreadable"] == ["toxicity"]
    assert report["incomparable"]["toxicity"].startswith("cannot be read: ")
    assert {row["audit"] for row in report["rows"]} == {"bias"}
    assert "Toxic continuations" in read_page(comparison, tmp_path).text


def test_a_new_audit_is_compared_without_another_edit(session, tmp_path, monkeypatch):
    description = AuditDescription(
        99, "Riddles", "Riddles are counted.", "No riddles.", risk="", question="Any riddles?"
    )
    monkeypatch.setitem(AUDIT_DESCRIPTIONS, "riddles", description)
    sides = [
        compared(name, {"audit_riddles": found(FoundConfig(audit="riddles", told=(("", values),)))})
        for name, values in (("a", WHOLE[0]), ("b", WHOLE[2]))
    ]
    comparison = RunComparison.from_runs(*sides)
    page = read_page(comparison, tmp_path)
    assert find_table(page, "finding", "verdict")[1][-1] == "Riddles"
    assert "Riddles are counted." in page.text
    assert "riddles.strength" in render_comparison(report_run_comparison(comparison))


def test_hostile_names_are_shown_as_text(session, tmp_path):
    told = ((f"part={SCRIPT}{HIDDEN}", WHOLE[0]),)
    sides = [
        compared(f"{name}{SCRIPT}", {"audit_bias": found(FoundConfig(told=told))}, config)
        for name, config in (("a", {"title": SCRIPT}), ("b", {"title": f"{HIDDEN}=1+1"}))
    ]
    html = render_comparison_page(compare_runs(*sides))
    assert SCRIPT not in html and HIDDEN not in html and "\u202e" not in html


def test_a_training_is_compared_with_its_first_checkpoint(session):
    checkpoints = [
        TrainingCheckpoint(step, {"r": audits_of(n)}) for n, step in enumerate((0, 1, 2))
    ]
    (audit,) = compare_audits(checkpoints)
    assert audit.checkpoint_index_pairs == [(0, 1), (0, 2)]
    (along,) = compare_audits(checkpoints, along_training=True)
    assert along.checkpoint_index_pairs == [(0, 2), (0, 1), (1, 2)]
    for name in ("value", "low", "high", "p", "n"):
        assert audit.comparisons[0].changes[1][name] == along.comparisons[0].changes[0][name]


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([], "there are no main findings"),
        (["worse"], "of 1 main finding, 1 got worse"),
        (["better", "better"], "of 2 main findings, 2 got better"),
        (
            ["worse", "changed", "no change shown"],
            "of 3 main findings, 1 got worse, 1 changed in a direction that is neither better "
            "nor worse, 1 shows no "
            "change",
        ),
        (["no change shown"] * 2, "of 2 main findings, none shows a change"),
        (
            ["no change shown", "no change shown", "not tested"],
            "of 3 main findings, none shows a change, 2 show no change, 1 was not tested or "
            "allows no conclusion",
        ),
        (
            ["not tested", "no conclusion"],
            "of 2 main findings, none shows a change, 2 were not tested or allow no conclusion",
        ),
    ],
)
def test_the_summary_counts_the_verdicts(verdicts, sentence):
    assert describe_verdict_counts(verdicts) == sentence


def test_changes_are_sorted_by_evidence_then_size():
    def key(verdict, **change):
        known = {"value": 1.0, "low": 0.5, "high": 1.5, "p_corrected": 0.01} | change
        return build_change_sort_key(verdict, known)

    ordered = [
        key("worse", p_corrected=0.001),
        key("better", p_corrected=0.01, low=0.9, high=1.1),
        key("worse", p_corrected=0.01),
        key("changed", p_corrected=0.01, low=None, high=None, value=0.5),
        key("no change shown", p_corrected=0.2),
        key("no change shown", p_corrected=0.3),
        build_change_sort_key("not tested", None),
    ]
    assert ordered == sorted(ordered)


def test_a_finding_is_unchanged_if_no_pair_differs():
    def finding(values, changes):
        return FindingComparison([{"value": value} for value in values], changes)

    assert is_unchanged(finding((1.0, 1.0), [{"same": True}]))
    assert not is_unchanged(finding((1.0, 1.0), [{"same": False}]))
    assert is_unchanged(finding((1.0, 1.0), [None]))
    assert not is_unchanged(finding((1.0, 2.0), [None]))
    assert not is_unchanged(finding((1.0, None), [None]))


# Settings ----------------------------------------------------------------------------------------


def test_settings_that_differ_are_listed_by_name():
    before = {"name": "a", "store": "x", "train": {"steps": 1, "seed": None}, "same": [1, 2]}
    after = {"name": "a", "store": "y", "train": {"steps": 2, "seed": 3}, "same": [1, 2]}
    assert list_setting_differences(before, after) == [
        SettingDifference("train.seed", "not set", "3"),
        SettingDifference("train.steps", "1", "2"),
    ]
    assert list_setting_differences(before, before) == []


def test_rules_are_compared_by_name_and_other_lists_as_a_whole():
    def settings(limit, *sources):
        rules = [{"name": "toxicity", "lt": limit}, {"name": "length", "lt": 5}]
        return {"select": {"rules": rules}, "sources": list(sources), "none": []}

    assert list_setting_differences(settings(0.8, "a"), settings(0.5, "a", "b")) == [
        SettingDifference("select.rules.toxicity.lt", "0.8", "0.5"),
        SettingDifference("sources", '["a"]', '["a", "b"]'),
    ]
    unnamed = {"rules": [{"name": "a", "lt": 1}, {"name": "a", "lt": 2}]}
    (difference,) = list_setting_differences(unnamed, {"rules": unnamed["rules"][::-1]})
    assert difference.setting == "rules" and json.loads(difference.before) == unnamed["rules"]


# Training data -----------------------------------------------------------------------------------


def build_corpora():
    """Build two corpora of different size."""
    histories = [artifacts.history(count) for count in (60, 40)]
    return [history | {"profile": artifacts.profiled(history)} for history in histories]


@pytest.fixture
def corpora(session):
    return build_corpora()


def test_corpora_are_compared_by_their_tables(corpora, tmp_path):
    tables = {table.title: table for table in compare_corpora(*corpora)[0]}
    sums = []
    for corpus in corpora:
        rows = corpus["profile"]["sources"].read().to_pylist()
        sums.append(sum(row["documents"] for row in rows))
    figures = {figure.name: figure for figure in tables["Documents by source"].figures}
    assert (figures["all sources",].before, figures["all sources",].after) == tuple(sums)
    removed = {}
    for place, corpus in enumerate(corpora):
        for row in corpus["profile"]["stage_accounts"].read().to_pylist():
            if row["unit"] == "rows":
                key = (row["stage"], "removed")
                removed.setdefault(key, [0, 0])[place] += row["removed_rows"]
    shown = {figure.name: figure for figure in tables["Documents removed by each stage"].figures}
    for key, (before, after) in removed.items():
        assert (shown[key].before, shown[key].after) == (before, after)
    rates = {figure.name: figure for figure in tables["Removal rates by group"].figures}
    for place, corpus in enumerate(corpora):
        for row in corpus["removal_effects"]["group_removals"].read().to_pylist():
            figure = rates[row["dimension"] or "all documents", row["slice"]]
            assert (figure.before, figure.after)[place] == row["removal_rate"]
    for table in tables.values():
        differences = [f for f in table.figures if f.difference is not None and not f.is_shown]
        sizes = [abs(figure.difference) for figure in differences]
        assert sizes == sorted(sizes, reverse=True)
    first, second = corpora
    comparison = RunComparison.from_runs(compared("a", corpus=first), compared("b", corpus=second))
    page = read_page(comparison, tmp_path)
    rows = find_table(page, "source", "before")[1:]
    assert rows[0] == ["all sources", f"{sums[0]}", f"{sums[1]}", f"−{sums[0] - sums[1]}"]
    text = " ".join(page.text.split())
    assert "Only training data is compared, because a was not audited." in text
    assert "no corpus has results from the evaluate_curation stage" in text
    report = report_run_comparison(comparison)
    assert report["rows"] == [] and report["training_data"][0]["title"] == "Documents by source"
    command = render_comparison(report)
    assert f"all sources  {sums[0]}  {sums[1]}  −{sums[0] - sums[1]}" in command


def test_equal_corpora_show_no_difference(corpora, tmp_path):
    comparison = RunComparison.from_runs(
        compared("a", corpus=corpora[0]), compared("b", corpus=corpora[0])
    )
    text = " ".join(read_page(comparison, tmp_path).text.split())
    assert "The training data does not differ." in text
    assert "No figure differs between the two corpora." in text
    assert report_run_comparison(comparison)["training_data"] == []


def test_missing_and_damaged_tables_of_a_corpus_are_said(own_session, tmp_path):
    first, second = build_corpora()
    del second["removal_effects"]
    for part in second["profile"]["sources"].parts:
        part.path.write_bytes(b"PAR1")
    _, missing = compare_corpora(first, second)
    reasons = dict(missing)
    assert reasons["Removal rates by group"] == (
        "only one corpus has results from the removal_effects stage"
    )
    assert reasons["Documents by source"].startswith("cannot be read: ")
    tables, missing = compare_corpora({}, {})
    assert tables == [] and len(missing) == 6
    text = read_page(RunComparison.from_runs(compared("a"), compared("b")), tmp_path).text
    assert "The corpora cannot be compared; the reasons are below." in " ".join(text.split())


def wilson(successes, count):
    interval = stats.binomtest(successes, count).proportion_ci(0.95, method="wilson")
    return successes / count, interval.low, interval.high


@pytest.mark.parametrize(
    ("first", "second", "interval"),
    [  # examples of Newcombe (1998), table II, method 10
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
    ],
)
def test_the_interval_of_a_difference_is_that_of_newcombe(first, second, interval):
    low, high = compute_difference_interval(wilson(*second), wilson(*first))
    assert (low, high) == pytest.approx(interval, abs=6e-5)
    assert compute_difference_interval((0.5, None, None), wilson(*first)) == (None, None)
    assert compute_difference_interval((None, None, None), wilson(*first)) == (None, None)


def test_differences_are_sorted_and_formatted():
    shown = ComparedFigure(("a",), 0.1, 0.15, 0.01, 0.09)
    larger = ComparedFigure(("b",), 0.1, 0.3, -0.1, 0.4)
    missing = ComparedFigure(("c",), None, 0.2)
    equal = ComparedFigure(("d",), 0.2, 0.2, -0.1, 0.1)
    ordered = sorted([equal, larger, missing, shown], key=build_difference_sort_key)
    assert ordered == [shown, missing, larger, equal]
    assert format_compared_figure(shown, "share") == ["10.0 %", "15.0 %", "+5.0", "1.0 to 9.0"]
    assert format_compared_figure(missing, "share") == ["–", "20.0 %", "–", "–"]
    count = ComparedFigure(("e",), 1200.0, 900.0)
    assert format_compared_figure(count, "documents") == ["1,200", "900", "−300", "–"]


def test_the_text_of_the_command_holds_no_invisible_characters():
    settings = [{"setting": f"a{HIDDEN}", "before": HIDDEN, "after": "\x1b[2J"}]
    checkpoints = [{"name": f"{name}\u202e"} for name in "ab"]
    table = {"title": "Documents", "unit": "documents"}
    table["rows"] = [{"name": [HIDDEN], "before": 1.0, "after": 2.0, "low": None, "high": None}]
    report = {"checkpoints": checkpoints, "incomparable": {}, "rows": [], "settings": settings}
    report |= {"training_data": [table], "training_data_not_compared": {"x": "\x1b"}}
    text = render_comparison(report)
    assert not re.search("[\u202e\u200b\x07\x1b]", text)
    assert text.count("+1") == 1
