"""Numbers as they are shown, and Markdown that shows text instead of obeying it."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.reports.page import charts
from hallmark.reports.page.card_pages import render_card_page, write_card_pages
from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.document import (
    BulletList,
    Callout,
    Chart,
    Code,
    DataTable,
    DefinitionList,
    Details,
    Document,
    Link,
    Paragraph,
    Section,
)
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.figures import Figure, FigureBook, format_number
from hallmark.reports.page.redaction import Redactor, escape_invisible
from hallmark.reports.page.rendering import _compact_css, render_html, render_markdown
from hallmark.tasks.contract import HallmarkError
from tests.reports import pages


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12345, "documents", "12,345"),
        (0, "documents", "0"),
        (-3, "bytes", "−3"),
        (0.5, "share", "50.0 %"),
        (0, "share", "0.0 %"),
        (0.00512, "share", "0.51 %"),
        (0.0000012, "share", "0.00012 %"),
        (-0.000028, "share", "−0.0028 %"),
        (0.0000000012, "share", "1.2e−07 %"),
        (0.9999996, "share", "99.99996 %"),
        (1 - 1e-15, "share", "100.0 %"),
        (9999 / 10000, "share", "99.99 %"),
        (-0.9996, "share", "−99.96 %"),
        (0.9994, "share", "99.9 %"),
        (1, "share", "100.0 %"),
        (1.0002, "share", "100.0 %"),
        (-0.0, "share", "0.0 %"),
        (-0.0, "times", "0.000"),
        (-0.0, "documents", "0"),
        (1.0, "bits", "1.000"),
        (1.0, "log-odds per log-odds", "1.000"),
        (3.14159, "bits", "3.142"),
        (12.3456, "bits", "12.35"),
        (0.01234, "score", "0.0123"),
        (0.00001234, "score", "1.234e−05"),
        (-0.5, "bits", "−0.5000"),
        (1234567.5, "bits", "1.235e+06"),
        (float("nan"), "bits", "not a number"),
        (float("-inf"), "bits", "−∞"),
    ],
)
def test_numbers_are_shown_for_reading(value, unit, text):
    assert format_number(value, unit) == text


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[a](javascript:alert(1))",
    "![a](http://evil.example/a.png)",
    "<http://evil.example>",
    "[a]: http://evil.example",
    "a | b | c",
    "`code` ``more``",
    "# heading",
    "- item",
    "+ item",
    "1. item",
    "1) item",
    "> quote",
    "---",
    "===",
    "***",
    "&lt;b&gt; &#60;",
    "\\",
    "a\n\nb",
    "    code",
    "|---|",
    "~~~",
    "www.evil.example http://evil.example a@evil.example",
    "$x$",
    "`",
    "``",
    " ` ",
]


def document(text: str) -> Document:
    grid = DataTable(text, [text, "b"], [[text, Code(text)], ["x", text]], frozenset({1}), text)
    blocks = [Paragraph([text]), BulletList([[text]]), Callout("note", [text]), grid]
    return Document(
        text, "Datasheet", [DefinitionList([(text, [text])])], [Section("A section", blocks)]
    )


def words(text: str) -> str:
    """A text as it is shown, white space aside."""
    return "".join(escape_invisible(text).split())


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_by_both_renderers(text):
    check(text)


@given(st.text(alphabet="<>[]()!`*_#|~\\&;:/.-+=1 \nahtpw@$\"'{}^", min_size=1, max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_text_is_shown_by_both_renderers(text):
    check(text)


def check(text: str) -> None:
    if not text.strip():
        return
    made = document(text)
    markdown = pages.render(render_markdown(made))
    html = pages.Page(render_html(made))
    for page in (markdown, html):
        assert not {"script", "img", "iframe", "em", "del"} & page.tags
        assert len(page.tables) == 1
        cells = [[words(cell) for cell in row] for row in page.tables[0]]
        assert cells == [[words(text), "b"], [words(text)] * 2, ["x", words(text)]]
        assert words(page.text).count(words(text)) >= 8
    assert markdown.links == []
    assert markdown.headings == [1, 2]
    assert all(href.startswith("#") for href, _ in html.links)


def test_a_link_within_the_page_is_text_in_markdown():
    """Markdown does not define the ids of headings, so such a link would lead nowhere."""
    links = [Link("Details", "#not-measured"), " and ", Link("Sources", "composition.html")]
    made = Document("T", "Model card", [Paragraph(links)], [])
    assert "Details and [Sources](composition.md)" in render_markdown(made)
    html = pages.Page(render_html(made))
    assert ("#not-measured", "Details") in html.links


def test_linkifying_renderers_find_nothing_to_link():
    text = render_markdown(document("www.evil.example http://evil.example ftp://evil.example"))
    outside = text.replace("`www.evil.example http://evil.example ftp://evil.example`", "")
    assert "www.evil" not in outside
    assert re.search(r"(?<!\\)://", outside) is None


def test_labels_of_rows_are_wrapped_and_longer_ones_lose_their_middle():
    labels = [f"a group whose name is long, {who}" for who in ("men", "women")]
    svg = draw_chart(charts.IntervalChart(labels, [0.1, 0.2], [None, None], "share"))
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)<", svg))
    assert "…" not in shown and all(label in shown for label in labels)
    labels = [f"a group whose name is {'very ' * 9}long, {who}" for who in ("men", "women")]
    svg = draw_chart(charts.IntervalChart(labels, [0.1, 0.2], [None, None], "share"))
    shown = re.findall(r">([^<>]*…[^<>]*)<", svg)
    assert len({*shown}) == 2 and all(len(label) == 28 for label in shown)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.9, 1.2), (0.5, 3), (0.2, 8), (0.1, 12), (0.04, 70), (0.004, 20_000), (1e-5, 4e7)],
)
def test_tick_labels_of_a_ratio_axis_do_not_overlap(low, high):
    chart = charts.IntervalChart(
        ["mention lesbian, gay and bisexual people"], [1.0], [(low, high)], "ratio", is_ratio=True
    )
    ticks = re.findall(r'middle[^>"]*" x="([\d.]+)"[^>]*>([\d.,e+-]+)<', draw_chart(chart))
    places = sorted((float(x), 2.8 * len(label)) for x, label in ticks)
    assert 2 <= len(places) <= 8
    for (left, half), (right, other_half) in pairwise(places):
        assert left + half < right - other_half, ticks


def test_charts_are_the_same_bytes_each_time_and_do_not_obey_labels():
    def draw() -> list[str]:
        labels = ["<b>&amp;</b>", "$x^2$", "a" * 99, "\u202eb"]
        drawings = [
            charts.BarChart(labels, [1, 2.5, 3, 1e6], "documents"),
            charts.IntervalChart(
                labels, [0.1, 0.2, 0.3, 0.4], [(0, 1), None, (0.2, 0.4), (0, 1)], "share", 0.5
            ),
            charts.LineChart(
                [charts.Curve("a", [1, 2], [3, 4]), charts.Curve("b", [1], [2])], "step", "loss"
            ),
        ]
        return [*map(draw_chart, drawings)]

    once, twice = draw(), draw()
    assert once == twice
    for svg in once:
        assert "<b>" not in svg and "\u202e" not in svg and "<metadata" not in svg
        assert "var(--chart-one)" in svg and "<style" not in svg
        assert "id=" not in svg  # a page may have several charts
    assert "$x^2$" in once[0] and "&lt;b&gt;&amp;amp;" in once[0]


def test_a_section_can_have_a_page_of_its_own(session, tmp_path):
    chart = Chart("bars", charts.BarChart(["a"], [1.0], "n"), ["One bar."], "Bars.")
    details = Details("More", [Paragraph(["Hidden at first."])])
    own = Section("Bias", [chart, details], [Section("Method")], "audit-bias", ["No bias found."])
    made = Document("A model", "Model card", [], [Section("Audits", [], [own, Section("Other")])])
    content = CardContent("model_card", made, FigureBook({}), {}, Redactor())
    write_card_pages(content, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "model_card.html",
        "model_card.md",
        "audit-bias.html",
        "audit-bias.md",
    }
    card, page = (pages.read(tmp_path / f"{name}.html") for name in ("model_card", "audit-bias"))
    assert ("audit-bias.html", "Bias") in card.links and "No bias found." in card.text
    assert "Hidden at first." not in card.text and "svg" not in card.tags
    assert ("model_card.html", "Model card") in page.links
    assert {"details", "summary", "svg"} <= page.tags and page.headings == [1, 2]
    assert pages.broken_links(tmp_path) == [] and page.alts == ["One bar."]
    markdown = pages.render((tmp_path / "audit-bias.md").read_text())
    assert ("model_card.md", "A model") in markdown.links
    assert "**More**\n\nHidden at first." in (tmp_path / "audit-bias.md").read_text()
    for name, path in (("", "model_card.html"), ("audit-bias", "audit-bias.html")):
        assert render_card_page(content, name) == (tmp_path / path).read_text()
    with pytest.raises(HallmarkError, match="the model card has no page 'audit-x'"):
        render_card_page(content, "audit-x")


def test_links_of_figures_lead_where_the_caller_says(session):
    figure = Figure("bias", "Bias", 0.5, "share", "e", "value", "mean")
    own = Section("Bias", [Paragraph([figure])], [], "audit-bias", [figure])
    made = Document("A model", "Model card", [Paragraph([figure])], [own])
    content = CardContent("model_card", made, FigureBook({}), {}, Redactor())
    for page, count in (("", 2), ("audit-bias", 1)):
        html = pages.Page(render_card_page(content, page, lambda figure: f"/e/{figure.id}"))
        assert [href for href, _ in html.figures] == ["/e/bias"] * count


def test_each_row_of_an_interval_chart_can_have_its_own_null_value():
    def draw(null_values):
        labels, values, bounds = ["a", "b"], [0.1, 0.2], [(0.0, 0.3), None]
        return draw_chart(
            charts.IntervalChart(labels, values, bounds, "share", null_values=null_values)
        )

    counts = [
        draw(null_values).count("--chart-two") for null_values in ((), [0.1, None], [0.1, 0.3])
    ]
    assert counts[0] == 0 < counts[1] < counts[2]


def test_a_compact_style_sheet_has_the_same_rules():
    style = (
        "/* a\n b */\na { b: c, d;\n  e: 1px 2px; }\n@media (f: g) { ul li:hover > p { h: i } }\n"
    )
    compact = "a{b:c,d;e:1px 2px;}@media (f:g){ul li:hover > p{h:i}}"
    assert _compact_css(style) == compact
