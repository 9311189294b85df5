"""Each sentence on a removal experiment is true of the figures on both sides of its branch."""

import pytest

from hallmark.reports.page.document import Callout, DataTable
from hallmark.reports.sections.removal_experiment import (
    RemovalCase,
    replace_unit_of_share_difference,
)
from hallmark.reports.sections.training_arms import _format_row_limit_note
from tests.reports.conclusions import text_of_blocks, text_of_parts, text_of_section
from tests.reports.test_comparison_conclusions import effect, loop

NONE = (None, None, None)
REACHED = {
    "verdict": "pass",
    "criterion": "l",
    "value": 1.0,
    "unit": "bits",
    "comparison": "above",
    "bound": 0,
}
MISSED, UNKNOWN = REACHED | {"verdict": "fail"}, REACHED | {"verdict": "", "value": None}


def row(what, value, low, high, **more):
    return effect(what, {"value": value, "low": low, "high": high}) | more


def case_of(*rows, criteria=(), kind="memorised", **case_row):
    about = {"kind": kind, "reason": "", "finding": "f", **case_row}
    about = {"documents": 3, "removed_documents": 3} | about
    effects = {(each["effect"], each["arm"]): each for each in rows}
    return RemovalCase("X", "x", [about], effects, list(criteria))


def verdict_of(change=(-3.0, -4.0, -2.0), left=(0.1, -0.5, 0.5), before=(4.0, 3.0, 5.0), **more):
    """What is said of a case with these figures: value, low, high of each."""
    criteria, case_row = more.pop("criteria", ()), more.pop("case_row", {})
    named = {"change_from_base": change, "effect_after": left, "effect_before": before}
    rows = [row(what, *each) for what, each in named.items() if each is not None]
    if change is not None:
        rows[0] |= more
    rows.append(row("mean", 5.0, None, None))  # which has the unit
    case = case_of(*rows, criteria=criteria, **case_row)
    return text_of_parts(loop().describe_case_verdict(case))


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"case_row": {"reason": "nobody knows"}}, "X: nothing was removed, because nobody knows."),
        ({"change": None}, "X: the effect of the removal could not be measured."),
        ({"change": NONE}, "X: the effect of the removal could not be measured."),
        (
            {"verdict": "within noise", "seed_noise": 5.0},
            "X was not shown to disappear: its change of −3.000 (−4.000 to −2.000) is not "
            "larger than the difference between training runs with different seeds, 5.000, or is "
            "too uncertain.",
        ),
        # Without units in which there is nothing to find.
        ({"left": None}, "X changed by −3.000 (−4.000 to −2.000)."),
        ({"left": NONE}, "X changed by −3.000 (−4.000 to −2.000)."),
        ({"left": None, "change": (3.0, 2.0, 4.0)}, "X changed by 3.000 (2.000 to 4.000)."),
        (
            {"left": None, "change": (-1.0, -2.0, 0.0)},
            "X was not shown to change; its measured change is −1.000 (−2.000 to 0.000).",
        ),
        (
            {"left": None, "change": (1.0, 0.0, 2.0)},
            "X was not shown to change; its measured change is 1.000 (0.000 to 2.000).",
        ),
        (
            {"left": None, "change": (-1.0, None, None)},
            "X was not shown to change; its measured change is −1.000 (–).",
        ),
        # It did not fall.
        ({"change": (3.0, 2.0, 4.0)}, "X did not disappear: it rose by 3.000 (2.000 to 4.000)."),
        (
            {"change": (2.0, 0.0, 4.0)},
            "X was not shown to disappear: its change of 2.000 (0.000 to 4.000) may be zero.",
        ),
        (
            {"change": (-2.0, -4.0, 0.0)},
            "X was not shown to disappear: its change of −2.000 (−4.000 to 0.000) may be zero.",
        ),
        (
            {"change": (-2.0, None, None)},
            "X was not shown to disappear: its change of −2.000 (–) has no interval.",
        ),
        # It fell, but from where?
        (
            {"before": (0.0, -1.0, 1.0)},
            "X changed by −3.000, although, before the removal, it was not above the value for "
            "texts that were never planted.",
        ),
        (
            {"before": (-1.0, -2.0, 0.0)},
            "X changed by −3.000, although, before the removal, it was not above the value for "
            "texts that were never planted.",
        ),
        (
            {"before": NONE},
            "X changed by −3.000, but its difference from the value for texts that were never "
            "planted was not measured.",
        ),
        (
            {"before": None},
            "X changed by −3.000, but its difference from the value for texts that were never "
            "planted was not measured.",
        ),
        # What is left of it.
        (
            {},
            "X disappeared: before the removal, it was 4.000 bits above the value for texts "
            "that were never planted; after the removal, the difference is 0.1000 (−0.5000 to "
            "0.5000); the remaining effect may be zero.",
        ),
        (
            {"left": (0.5, 0.0, 1.0)},
            "X disappeared: before the removal, it was 4.000 bits above the value for texts "
            "that were never planted; after the removal, the difference is 0.5000 (0.000 to "
            "1.000); the remaining effect may be zero.",
        ),
        (
            {"left": (-0.5, -1.0, -0.1)},
            "X disappeared: before the removal, it was 4.000 bits above the value for texts "
            "that were never planted; after the removal, the difference is −0.5000 (−1.000 to "
            "−0.1000); it is below the value for texts that were never planted.",
        ),
        (
            {"criteria": [REACHED, MISSED]},
            "X fell: before the removal, it was 4.000 bits above the value for texts that were "
            "never planted; after the removal, the difference is 0.1000 (−0.5000 to 0.5000); "
            "the remaining effect may be zero; not all criteria are met.",
        ),
        (
            {"left": (1.0, -2.0, 4.0)},
            "X fell: before the removal, it was 4.000 bits above the value for texts that were "
            "never planted; after the removal, the difference is 1.000 (−2.000 to 4.000); the "
            "remaining effect may be zero, or as large as before the removal.",
        ),
        (
            {"left": (1.0, None, None)},
            "X fell: before the removal, it was 4.000 bits above the value for texts that were "
            "never planted; after the removal, the difference is 1.000 (–); the remaining "
            "effect has no interval.",
        ),
        (
            {"left": (1.0, 0.5, 3.99)},
            "X partly disappeared: before the removal, it was 4.000 bits above the value for "
            "texts that were never planted; after the removal, the difference is 1.000 (0.5000 "
            "to 3.990).",
        ),
        (  # those never planted fell, too
            {"left": (5.0, 3.0, 7.0)},
            "X fell: before the removal, it was 4.000 bits above the value for texts that were "
            "never planted; after the removal, the difference is 5.000 (3.000 to 7.000); the "
            "remaining effect may be as large as before the removal.",
        ),
        (
            {"left": (2.0, 1.0, 4.0)},
            "X fell: before the removal, it was 4.000 bits above the value for texts that were "
            "never planted; after the removal, the difference is 2.000 (1.000 to 4.000); the "
            "remaining effect may be as large as before the removal.",
        ),
    ],
)
def test_what_became_of_a_finding_follows_from_its_effects(session, figures, said):
    assert verdict_of(**figures) == said


@pytest.mark.parametrize(("kind", "null"), [("memorised", "never planted"), ("other", "no effect")])
def test_units_are_named_by_their_kind(session, kind, null):
    assert case_of(kind=kind).null_label == null


@pytest.mark.parametrize(
    ("criteria", "summary", "look"),
    [
        ([REACHED], "1 of 1 criterion is met.", "good"),
        ([MISSED], "0 of 1 criterion is met.", "bad"),
        ([REACHED, UNKNOWN], "1 of 2 criteria are met.", "bad"),
        ([REACHED] * 2, "2 of 2 criteria are met.", "good"),
        ([], "There are no criteria to check, because ", "note"),
    ],
)
def test_lines_that_are_reached_are_counted(session, criteria, summary, look):
    page = loop()
    case = case_of(row("change_from_base", -3.0, -4.0, -2.0), criteria=criteria)
    first, *others = page.build_overview_blocks([case])
    assert isinstance(first, Callout) and first.kind == look
    assert text_of_parts(first.content).startswith(summary)
    text = text_of_blocks(others)
    assert ("Not met: X, l: " in text) == (MISSED in criteria)
    assert ("Not known: X, l: " in text) == (UNKNOWN in criteria)
    assert ("(must be above 0.000)." in text) == (MISSED in criteria or UNKNOWN in criteria)


@pytest.mark.parametrize(("bound", "said"), [(0.25, "above 0.2500"), (None, "above not known")])
def test_a_bound_that_is_not_known_is_said_to_be(session, bound, said):
    assert loop().format_bound(REACHED | {"bound": bound}) == said


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], True), ([None], True), ([None, None], True), ([None, 0.0], False), ([0.5], False)],
)
@pytest.mark.parametrize("why", ["", "no training document is behind it"])
def test_a_section_says_that_nothing_was_measured_only_where_nothing_was(
    session, values, expected, why
):
    """A mean of 0 was measured. Whether documents were removed is another question."""
    arms = ("base", "removed")
    rows = [row("mean", each, None, None, arm=arm) for arm, each in zip(arms, values, strict=False)]
    section = loop().build_case_section(case_of(*rows, reason=why))
    text = text_of_section(section)
    assert ("No units were measured for this finding." in text) == expected
    assert ("Each arm" in text) == (not expected)
    assert ("Nothing was removed: no training document is behind it." in text) == bool(why)
    assert ("the finding were removed" in text) == (not why)
    assert "Criteria" not in text


@pytest.mark.parametrize(
    ("kind", "documents", "removed", "start"),
    [
        ("memorised", 3, 3, "All source documents for the finding were removed: "),
        ("memorised", 3, 2, "Source documents for the finding: "),
        (
            "other",
            3,
            3,
            (
                "The training documents listed in the finding's rows (if none are listed, the "
                "source documents"
            ),
        ),
        ("association", 3, 1, "Training documents that mention either group with its"),
    ],
)
def test_documents_are_all_said_to_be_removed_only_where_they_were(
    session, kind, documents, removed, start
):
    case = case_of(kind=kind, documents=documents, removed_documents=removed)
    text = text_of_parts(loop().describe_source_documents(case))
    assert text.startswith(start)
    assert ("Only some were removed" in text) == (kind == "memorised" and removed < documents)


@pytest.mark.parametrize(
    ("ends", "nothing", "caption"),
    [
        ((0.4, 0.6), None, "Mean of each arm, with its interval."),
        ((None, None), None, "Mean of each arm; no interval is available."),
        (
            (0.4, 0.6),
            0.0,
            "Mean of each arm, with its interval. The dashed line is the mean of texts that were "
            "never planted, in the “without the documents” arm.",
        ),
    ],
)
def test_the_caption_of_the_arms_names_what_is_drawn(session, ends, nothing, caption):
    rows = [row("mean", 0.5, *ends, arm="base"), row("mean", None, None, None, arm="removed")]
    rows += [] if nothing is None else [row("null_mean", nothing, None, None)]
    chart = loop().build_arm_chart(case_of(*rows))
    assert chart.caption == caption
    text = "".join(chart.alt_text)
    interval = "0.4000 to 0.6000" if ends[0] else "–"
    assert f"X: all documents 0.5000 ({interval})" in text
    assert "without the documents" not in text  # what was not measured is not drawn
    assert ("never planted 0.000 (–)" in text) == (nothing is not None)


@pytest.mark.parametrize(
    ("n", "clusters", "said"), [(9, 9, "9"), (9, None, "9"), (1234, 56, "1,234 in 56")]
)
def test_units_that_share_something_are_counted_with_their_clusters(session, n, clusters, said):
    table = loop().build_arm_table(case_of(row("mean", 1.0, None, None, n=n, clusters=clusters)))
    assert table.rows[0][3] == said


@pytest.mark.parametrize("kind", ["memorised", "association"])
@pytest.mark.parametrize("has_region", [True, False])
def test_the_note_below_the_arms_is_about_what_they_have(session, kind, has_region):
    rows = [row("mean", 1.0, None, None)]
    if has_region and kind == "memorised":  # no other kind has one
        rows.append(row("null_region", 2.0, 1.0, 3.0, method="20 secrets"))
    note = loop().build_arm_table(case_of(*rows, kind=kind)).note
    assert ("99 % null region" in note) == (kind == "memorised" and has_region)
    assert ("is 1.000 to 3.000: 20 secrets." in note) == (kind == "memorised" and has_region)
    assert ("n shows the number of sentences and the number of group pairs" in note) == (
        kind == "association"
    )


@pytest.mark.parametrize(
    ("verdict", "cell"), [("", "–"), ("beyond noise",) * 2, ("within noise",) * 2]
)
def test_a_change_says_whether_it_is_beyond_the_noise(session, verdict, cell):
    rows = [
        row("change_from_base", -3.0, -4.0, -2.0, verdict=verdict),
        row("random_minus_removed", 3.0, None, None, arm="random"),
    ]
    table = loop().build_changes_table(case_of(*rows))
    assert isinstance(table, DataTable)
    assert [each[0] for each in table.rows] == [
        "without the documents minus all documents",
        "without random documents minus without the documents",
    ]
    assert table.rows[0][2:] == ["−4.000 to −2.000", "9", cell] and table.rows[1][2] == "–"


@pytest.mark.parametrize(
    ("about", "unit"),
    [
        ({"effect": "mean"}, "share"),
        ({"effect": "null_mean"}, "share"),
        ({"effect": "null_region"}, "share"),
        ({"effect": "change_from_base"}, "difference of shares"),
        ({"effect": "effect_before"}, "difference of shares"),
        ({"criterion": "mean after removal (limit: lower end"}, "share"),
        (
            {
                "criterion": "lower end of the confidence interval for the decrease in the mean "
                "after removal"
            },
            "difference of shares",
        ),
    ],
)
def test_only_differences_of_shares_are_in_points(about, unit):
    assert replace_unit_of_share_difference(about | {"unit": "share"})["unit"] == unit
    assert replace_unit_of_share_difference(about | {"unit": "bits"})["unit"] == "bits"


@pytest.mark.parametrize(
    ("shown", "total", "said"),
    [
        (0, 0, ""),
        (2, 2, ""),
        (2, 3, " The table shows 2 of 3 rows: the first; the t table lists all of them."),
    ],
)
def test_only_a_table_that_is_cut_says_where_all_rows_are(shown, total, said):
    assert _format_row_limit_note(shown, total, "rows: the first", "t") == said
