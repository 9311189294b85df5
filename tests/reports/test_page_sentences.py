"""Sentences on figures, their evidence, charts and trajectories follow from what they are about."""

import re
from dataclasses import replace
from html import unescape
from types import SimpleNamespace
from typing import get_args

import pyarrow as pa
import pytest

from hallmark.reports.page.document import Paragraph
from hallmark.reports.page.evidence_pages import (
    ShownSelection,
    describe_computation,
    describe_conditions,
    render_evidence_page,
    render_plain_rows,
)
from hallmark.reports.page.figures import (
    AggregateKind,
    Figure,
    FigureBook,
)
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.page.table_cells import value_to_cell
from hallmark.reports.sections.attention import _format_attention_caption
from hallmark.reports.sections.audit_charts import build_audit_chart
from hallmark.reports.sections.checkpoint_comparison import (
    TrainingCheckpoint,
    build_exclusions_table,
    describe_change,
    explain_part_selection,
    format_change_interval,
    format_change_unit_suffix,
    format_p_value,
)
from hallmark.reports.sections.training import build_loss_chart
from hallmark.reports.trajectory import describe_trajectory_chart, explain_missing_change
from hallmark.tasks.audits.judging.audit_comparison import (
    AuditComparison,
)
from hallmark.tasks.audits.judging.comparison import FindingComparison
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import (
    Column,
    EmptyConfig,
    StageContext,
    column,
    format_all,
    format_count,
    stage,
    table_schema,
)
from tests.reports import pages
from tests.reports.conclusions import findings_of
from tests.reports.test_checkpoint_comparison import row as finding_row

# Figures -----------------------------------------------------------------------------------------


def figure(value=0.5, unit="share", **more):
    return Figure("i", "l", value, unit, "rows", "value", "mean", **more)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (figure(), "50.0 %"),
        (figure(3.0, "documents"), "3 documents"),
        (figure(1.0, "documents"), "1 document"),
        (figure(1.0, "copies"), "1 copy"),
        (figure(1.0, "people named"), "1 person named"),
        (figure(1.0, "tokens a second"), "1 token a second"),
        (figure(1.0, "s"), "1 s"),
        (figure(1.0, "bits"), "1.000 bits"),
        (figure(0.25, "bits"), "0.2500 bits"),
        (figure(0.25, "score"), "0.2500"),
        (figure(0.25, "difference of shares"), "25.0 points"),
        (figure(n=1234), "50.0 % (n = 1,234)"),
        (figure(n=0), "50.0 % (n = 0)"),
        (figure(low=0.25, high=0.75), "50.0 % (interval 25.0 % to 75.0 %)"),
        (figure(low=0.25), "50.0 %"),
        (figure(high=0.75), "50.0 %"),
        (
            figure(low=0.25, high=0.75, confidence_level=0.95, n=9, scorer="linear 1.0"),
            "50.0 % (95 % interval 25.0 % to 75.0 %, n = 9, scorer linear 1.0)",
        ),
        (figure(0.0, low=0.0, high=0.0), "0.0 % (interval 0.0 % to 0.0 %)"),
        (figure(None), "not measured (no reason is given)"),
        (figure(None, method="how"), "not measured (how)"),
        (figure(None, method="how", missing_reason="why"), "not measured (why)"),
        (figure(None, missing_text="none", missing_reason="why", n=3), "none (why, n = 3)"),
    ],
)
def test_a_figure_says_what_is_known_of_it(made, said):
    assert made.full_text == said


@pytest.mark.parametrize(
    ("made", "value", "interval"),
    [
        (figure(low=0.0, high=1.0), "50.0 %", "0.0 % to 100.0 %"),
        (figure(0.0, low=0.0), "0.0 %", "–"),
        (figure(None, high=1.0), "not measured", "–"),
        (figure(None, missing_text="none"), "none", "–"),
        (figure(3.0, "documents"), "3", "–"),
    ],
)
def test_a_cell_has_the_value_and_another_the_interval(made, value, interval):
    assert (made.short_text, made.interval_or_dash) == (value, interval)


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_a_noun_agrees_with_its_count(count, said):
    assert format_count(count, "row") == said
    assert format_count(count, "copy", "copies").endswith("copy" if count == 1 else "copies")
    assert format_all(count, "row") == ("the only row" if count == 1 else f"all {said}")


@pytest.mark.parametrize(
    ("aggregate", "value_column", "said"),
    [
        ("count", "", "the number of rows"),
        ("sum", "bytes", "the sum of bytes"),
        ("mean", "value", "the mean of value"),
        ("ratio", "a/b", "the sum of a divided by the sum of b"),
        ("ratio", "a+b/c", "the sum of a and b divided by the sum of c"),
        ("min", "loss", "the smallest loss"),
        ("max", "loss", "the largest loss"),
        ("last", "loss", "the last loss"),
        ("distinct", "doc_id", "the number of distinct values of doc_id"),
        ("finding", "", "computed by the audit"),
    ],
)
def test_how_rows_make_a_figure_is_said_of_each_way(aggregate, value_column, said):
    assert aggregate in get_args(AggregateKind)
    made = replace(figure(), aggregate=aggregate, value_column=value_column)
    assert describe_computation(made) == said
    explained = describe_computation(replace(made, method="95 % CI: t"))
    assert explained == ("95 % CI: t" if aggregate == "finding" else f"{said}; 95 % CI: t")


# Pages of rows -----------------------------------------------------------------------------------


@stage(
    name="three_rows",
    tables={
        "values": table_schema(
            "Rows.",
            column("item", pa.string(), "label", "item"),
            column("harm", pa.float64(), "figure", "value"),
        )
    },
)
def three_rows(config: EmptyConfig, context: StageContext) -> None:
    rows = {"item": ["b", "a", "c"], "harm": [1.0, 3.0, 2.0]}
    context.get_table_writer("values").write(rows)


def rows_page(order="", limit=9, conditions=None):
    """The text of a page of rows, and their items in the order in which it shows them."""
    book = FigureBook({"audit": three_rows(EmptyConfig())})
    evidence = book.get_evidence("audit", "values", conditions, row_order=order)
    first_rows = evidence.read_first_rows(limit)
    rows = render_plain_rows(evidence, first_rows, Redactor())
    selection = ShownSelection(evidence, [figure()], rows, len(first_rows))
    html = render_evidence_page(pages.content_of(book, Redactor()), [selection])
    page = pages.Page(html)
    items = [row[0] for row in page.tables[0][1:]] if page.tables else []
    text = unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.S)))
    return " ".join(text.split()), items


@pytest.mark.parametrize(
    ("order", "limit", "said", "items"),
    [
        ("", 3, "3 rows.", "bac"),
        ("", 2, "3 rows, of which the first 2 are shown.", "ba"),
        ("-harm", 3, "3 rows, ordered by harm, the worst first.", "acb"),
        ("-harm", 1, "3 rows, of which the worst is shown, ordered by harm, the worst first.", "a"),
        (
            "harm",
            2,
            "3 rows, of which the worst 2 are shown, ordered by harm, the worst first.",
            "bc",
        ),
        # So that the two of a pair stand together; none is worse than another.
        ("item", 3, "3 rows, ordered by item.", "abc"),
        ("item", 2, "3 rows, of which the first 2 are shown, ordered by item.", "ab"),
    ],
)
def test_a_page_of_rows_says_which_it_shows_and_in_which_order(session, order, limit, said, items):
    text, shown = rows_page(order, limit)
    assert said in text and "".join(shown) == items
    assert " all rows " in text and "No row meets" not in text


@pytest.mark.parametrize(("item", "found"), [("a", True), ("z", False)])
def test_a_page_without_rows_says_that_none_meets_the_conditions(session, item, found):
    text, shown = rows_page(conditions={"item": item})
    assert ("No row meets these conditions." in text) == (not found) and bool(shown) == found
    assert f" item: {item} " in text and "all rows" not in text and ("1 row." in text) == found


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({}, "all rows"),
        ({"group_name": "women", "draw_count": 25}, "group name: women; draw count: 25"),
        (
            {"measure": "longest_run_tokens", "topic": "a_b"},
            "measure: longest run tokens; topic: a_b",
        ),
        ({"copies": None, "topic": ""}, "no copies; no topic"),
        ({"is_harmful": False, "is_distinct": True}, "is harmful: no; is distinct: yes"),
        ({"tokens": {"ge": 1, "lt": 5}}, "tokens: at least 1; tokens: less than 5"),
        ({"action": ["removed", "tagged"]}, "action: removed or tagged"),
        ({"n": [*range(9)]}, "n: 0 or 1 or 2 or 3 or 4 or 5 or 6 or 7 … (9 in total)"),
    ],
)
def test_conditions_are_said_in_words(conditions, said):
    assert describe_conditions(conditions) == said


@pytest.mark.parametrize(
    ("value", "text", "ids"),
    [
        (None, "–", 0),
        (True, "yes", 0),
        (False, "no", 0),
        (0, "0", 0),
        (0.0, "0", 0),
        (float("nan"), "nan", 0),
        ([b"x"] * 3, "", 3),
        ([b"x"] * 4, " … (4 in total)", 3),
        ([("part", "scripted"), ("copies", "64")], "part: scripted, copies: 64", 0),
        (["a"] * 16, ", ".join("a" * 16), 0),
        (["a"] * 17, ", ".join("a" * 16) + " … (17 in total)", 0),
    ],
)
def test_a_cell_says_how_much_it_leaves_out(value, text, ids):
    cell = value_to_cell(Column("c", "", "label"), value, None, Redactor())
    assert (cell.text, len(cell.ids)) == (text, ids)


@pytest.mark.parametrize(("length", "said"), [(10, ""), (11, "… [11 characters in total]")])
def test_a_text_that_is_cut_says_how_long_it_is(length, said):
    text = Redactor().redact_by_kind("a" * length, "label", max_characters=10)
    assert text == "a" * 10 + said


@pytest.mark.parametrize(
    ("score", "start"),
    [
        (None, "[not shown: no toxicity score, "),
        (float("nan"), "[not shown: no toxicity score, "),
        (0.0, "words"),
        (0.4999, "words"),
        (0.5, "█████ [masked: toxicity score 0.50, "),
    ],
)
def test_text_of_a_model_is_shown_below_the_threshold_alone(score, start):
    assert Redactor().redact_by_kind("words", "model text", score).startswith(start)


# Changes and trajectories ------------------------------------------------------------------------


def change(**more):
    found = {"value": 0.25, "low": 0.0, "high": 0.5, "p_corrected": 0.04, "n": 9, "clusters": 9}
    return found | more


@pytest.mark.parametrize(
    ("found", "unit", "said"),
    [
        (change(value=None), "share", "no pair has two measured values"),
        (change(), "share", "25.0 points (0.0 to 50.0), corrected p = 0.04, 9 pairs"),
        (change(value=-0.25), "bits", "−0.2500 (0.000 to 0.5000), corrected p = 0.04, 9 pairs"),
        (change(low=None, high=None), "share", "25.0 points, corrected p = 0.04, 9 pairs"),
        (change(p_corrected=None), "share", "25.0 points (0.0 to 50.0), 9 pairs"),
        (change(p_corrected=0.0), "", "0.2500 (0.000 to 0.5000), corrected p < 1e-300, 9 pairs"),
        (change(n=1, clusters=1, p_corrected=None), "", "0.2500 (0.000 to 0.5000), 1 pair"),
        (
            change(clusters=1, p_corrected=None),
            "",
            "0.2500 (0.000 to 0.5000), 9 pairs in 1 cluster",
        ),
        (
            change(clusters=8, p_corrected=None),
            "",
            "0.2500 (0.000 to 0.5000), 9 pairs in 8 clusters",
        ),
    ],
)
def test_a_change_in_words_has_what_is_known_of_it(found, unit, said):
    assert describe_change(found, unit) == said


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "< 0.0001"),
        (9.9e-5, "< 0.0001"),
        (1e-4, "1.000e−04"),
    ],
)
def test_a_p_that_is_too_small_to_be_told_is_a_bound(p, said):
    assert format_p_value(p) == said


@pytest.mark.parametrize(
    ("unit", "suffix"), [("share", " (points)"), ("bits", " (bits)"), ("", ""), ("score", "")]
)
def test_a_change_of_shares_is_in_points(unit, suffix):
    assert format_change_unit_suffix(unit) == suffix
    assert format_change_interval({"low": None, "high": 0.5}, unit) == "–"


@pytest.mark.parametrize(
    ("found", "caveat", "correction"),
    [(None, False, False), (change(p_corrected=None), True, False), (change(), True, True)],
)
def test_the_p_of_a_chosen_part_is_spoken_of_where_there_is_one(found, caveat, correction):
    parts = [FindingComparison([finding_row("a", 0.5, name)] * 2, [found]) for name in "xy"]
    text = explain_part_selection(parts[0], parts, "step 9")
    assert text.startswith(
        "This is the most harmful of 2 findings of this metric at step 9. "
    ) and text.endswith(".")
    assert ("Some of its change may be due to this selection" in text) == caveat
    assert ("Its p-value is corrected for all of these findings" in text) == correction


@pytest.mark.parametrize(
    ("values", "measured"),
    [((None, None), False), ((None, 0.0), True), ((0.5, None), True), ((0.5, 0.5), True)],
)
def test_what_was_measured_nowhere_is_not_said_to_lack_units(values, measured):
    comparison = FindingComparison([finding_row("a", value) for value in values], [None])
    text = explain_missing_change(comparison)
    assert text.startswith("not paired" if measured else "it was not measured at any of these")


@pytest.mark.parametrize(
    ("figures", "intervals"),
    [
        ([figure(low=0.4, high=0.6), figure()], True),
        ([figure(0.0, low=0.0, high=0.1), figure()], True),
        ([figure(), figure(low=0.4)], False),
        ([figure(None, low=0.4, high=0.6)], False),  # not drawn
    ],
)
@pytest.mark.parametrize(
    ("nulls", "dashed"),
    [((None, None), False), ((0.5, None), False), ((0.5, 0.5), True), ((0.0, 0.0), True)],
)
def test_the_caption_of_a_trajectory_names_what_is_drawn(figures, intervals, nulls, dashed):
    text = describe_trajectory_chart("Strength", figures, nulls)
    start = "Strength by training step"
    assert text.startswith(f"{start}, with intervals." if intervals else f"{start}; no interval is")
    assert ("The dashed line is the value expected with no effect." in text) == dashed


class Audited:
    """Stands for an audit with these findings."""

    def __init__(self, *rows):
        self.rows = rows

    def __getitem__(self, table):
        return self

    def read(self):
        return self

    def to_pylist(self, **options):
        return [row | {"control": ""} for row in self.rows]


def comparison_of(*rows_by_step, changes=()):
    audits = [Audited(*rows) for rows in rows_by_step]
    checkpoints = [
        TrainingCheckpoint(step, {"run": {"audit_bias": audit}})
        for step, audit in enumerate(audits)
    ]
    shared = [
        FindingComparison(found, [change])
        for found, change in zip(zip(*rows_by_step, strict=False), changes, strict=False)
    ]
    return AuditComparison("bias", checkpoints, shared)


@pytest.mark.parametrize(
    ("audit", "said"),
    [
        (comparison_of([], []), "The audits of these checkpoints produced no findings."),
        (
            comparison_of([finding_row("a", 0.5)], [finding_row("a", 0.6)], changes=[change()]),
            "Every finding was computed at every checkpoint, so all comparisons are paired.",
        ),
    ],
)
def test_all_findings_are_compared_only_where_there_are_any(audit, said):
    assert build_exclusions_table([audit], str) == Paragraph([said])


@pytest.mark.parametrize(
    ("first", "last", "row"),
    [
        ([], [("a", 0.5, "")], ["A", "not found at step 0"]),
        ([], [("a", 0.5, "x")], ["A, x", "not found at step 0"]),
        ([("a", 0.5, "x"), ("a", 0.5, "y")], [], ["A, 2 parts", "not found at step 1"]),
        ([("a", None, "")], [("a", None, "")], ["A", "not measured at any checkpoint"]),
        (
            [("a", None, "")],
            [("a", 0.5, "")],
            [
                "A",
                "compared by value only, because it is not a mean over the same units at each "
                "checkpoint",
            ],
        ),
    ],
)
def test_why_a_finding_is_not_compared_follows_from_its_rows(first, last, row):
    rows = [[finding_row(*each) for each in found] for found in (first, last)]
    audit = comparison_of(*rows, changes=[None])
    assert [each[1:] for each in build_exclusions_table([audit], str).rows] == [row]


# Captions of charts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"model": 2.0, "gzip": 3.0}, ""),
        ({"model": 2.0, "gzip": None}, " No baseline was measured."),
        ({"model": None, "gzip": 3.0}, " The model was not measured."),
        ({"gzip": 3.0, "bigram": 3.5}, " The model was not measured."),
    ],
)
def test_the_caption_of_bits_per_byte_names_what_is_drawn(session, measured, said):
    rows = [
        {"metric": "bits_per_byte", "unit": "bits", "part": part, "value": value}
        for part, value in measured.items()
    ]
    (chart,) = build_bits_chart(rows)
    assert chart.caption == f"Bits per byte of held-out text for the model and its baselines.{said}"


def test_without_a_figure_there_is_no_chart(session):
    rows = [{"metric": "bits_per_byte", "unit": "bits", "part": "model", "value": None}]
    assert build_bits_chart(rows) == []


def build_bits_chart(rows):
    """Build the first chart that the audit of capability declares."""
    findings = findings_of(capability=rows).by_audit["capability"]
    return build_audit_chart(findings, AUDIT_DESCRIPTIONS["capability"].charts[0])


def view(**more):
    values = {
        "text_number": 1,
        "tokens": ["a", "b"],
        "stack": "decoder",
        "query_position": 1,
        "shown_layers": [1, 2],
        "weights_by_layer": {1: None, 2: None},
        "attendable_token_count": 2,
        "largest_word_weight": 0.5,
        "head_count": 3,
    }
    return SimpleNamespace(**values | more)


@pytest.mark.parametrize(
    ("changes", "text_row", "present", "absent"),
    [
        ({}, {}, "in every layer of the decoder, averaged over 3 heads", "Grey tokens"),
        ({"shown_layers": [1]}, {}, "in 1 of 2 layers of the decoder", "every layer"),
        ({"head_count": 1}, {}, "averaged over its one head", "1 heads"),
        ({"attendable_token_count": 1}, {}, "Grey tokens come later", "not read"),
        (
            {},
            {"omitted_tokens": 1},
            "The last token of the text was not read.",
            "tokens of the text",
        ),
        (
            {},
            {"omitted_tokens": 1234},
            "The last 1,234 tokens of the text were not read.",
            "was not",
        ),
        ({}, {"note": "it was cut"}, "it was cut.", "Grey tokens"),
    ],
)
def test_the_caption_of_attention_follows_from_the_picture(changes, text_row, present, absent):
    row = {"omitted_tokens": 0, "note": ""} | text_row
    text = _format_attention_caption(view(**changes), row, Redactor())
    assert present in text and absent not in text


class Log:
    """Stands for a training with these losses."""

    def __init__(self, losses, checkpoints=0):
        self.tables = {
            "log": pa.table(
                {
                    "step": list(range(1, len(losses) + 1)),
                    "loss": pa.array(losses, pa.float64()),
                    "validation_loss": pa.nulls(len(losses), pa.float64()),
                }
            )
        }
        self.row_count = checkpoints

    def __getitem__(self, table):
        return self

    def read(self, columns):
        return self.tables["log"].select(columns)


@pytest.mark.parametrize(
    ("losses", "alt"),
    [
        ([3.0, 2.0], "falls from 3.00 to 2.00 nats per token in 2 steps."),
        ([2.0, 3.0], "goes from 2.00 to 3.00 nats per token in 2 steps."),
        ([2.004, 2.0], "goes from 2.00 to 2.00 nats per token in 2 steps."),  # as it is written
    ],
)
def test_a_loss_falls_only_where_its_last_figure_is_lower(losses, alt):
    [chart] = build_loss_chart(Log(losses))
    assert chart.alt_text == f"The training loss {alt}"


@pytest.mark.parametrize(("steps", "mean_of"), [(200, 1), (201, 2), (1000, 5)])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_smoothed_loss_says_so(steps, mean_of, checkpoints):
    [chart] = build_loss_chart(Log([2.0] * steps, checkpoints))
    smoothing = f"Each point on the training curve is the mean of up to {mean_of} steps."
    assert (smoothing in chart.caption) == (mean_of > 1)
    assert ("The table lists the losses at the checkpoints." in chart.caption) == bool(checkpoints)
    assert build_loss_chart(Log([None] * steps, checkpoints)) == []
