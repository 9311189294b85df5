"""Draw charts as SVG for pages: reproducible bytes, no scripts, colours from the style sheet.

The charts are small enough for a telephone, and every number is also in a table nearby. Matplotlib
draws all of them, apart from shaded text.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import textwrap
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

from hallmark.reports.page.charts import (
    BarChart,
    Drawing,
    IntervalChart,
    LineChart,
    ShadedText,
    TrajectoryChart,
)
from hallmark.reports.page.redaction import escape_invisible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Locator, MaxNLocator

#: Placeholder colours, and the variables of ``style.css`` that they become.
_THEME_COLOURS = {
    "#010203": "chart-ink",
    "#010204": "chart-faint",
    "#010205": "chart-one",
    "#010206": "chart-two",
    "#010207": "chart-three",
}
TEXT_COLOUR, GRID_COLOUR, FIRST_COLOUR, SECOND_COLOUR, MUTED_COLOUR = _THEME_COLOURS

_MATPLOTLIB_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hallmark",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "Segoe UI", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9,
    "text.color": TEXT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.edgecolor": GRID_COLOUR,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": GRID_COLOUR,
    "ytick.color": GRID_COLOUR,
    "xtick.labelcolor": TEXT_COLOUR,
    "ytick.labelcolor": TEXT_COLOUR,
    "grid.color": GRID_COLOUR,
    "grid.linewidth": 0.4,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


class _ChartCanvas:
    """Axes to draw on, and the SVG once the context ends."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.svg = ""


@contextmanager
def _open_chart_canvas(height_inches: float) -> Iterator[_ChartCanvas]:
    """Open axes of 3.9 inches (about 375 pixels) by ``height_inches``."""
    import logging

    import matplotlib
    from matplotlib.figure import Figure

    # The browser chooses the fonts that the SVG names; local fonts only measure the text.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with matplotlib.rc_context(_MATPLOTLIB_STYLE):
        figure = Figure(figsize=(3.9, height_inches), layout="constrained")
        canvas = _ChartCanvas(figure.add_subplot())
        yield canvas
        svg_buffer = io.StringIO()
        figure.savefig(svg_buffer, format="svg", transparent=True, metadata={"Date": None})
        canvas.svg = _apply_theme_colours(svg_buffer.getvalue())


def _apply_theme_colours(svg: str) -> str:
    for placeholder, variable in _THEME_COLOURS.items():
        svg = re.sub(rf"(fill|stroke): {placeholder}\b", rf"\1: var(--{variable})", svg)
    # The style sheet of the page applies, so the drawing brings none of its own.
    svg = re.sub(r"<metadata>.*?</metadata>|<style\b.*?</style>", "", svg, flags=re.DOTALL)
    return re.sub(r"<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*", "", svg, count=2, flags=re.DOTALL)


def _rename_ids(svg: str, prefix: str) -> str:
    """Return an SVG whose referenced ids begin with a prefix, without all other ids."""
    referenced_ids = {*re.findall(r'href="#([^"]*)"', svg), *re.findall(r"url\(#([^)]*)\)", svg)}

    def rename(match: re.Match[str]) -> str:
        return f' id="{prefix}-{match[1]}"' if match[1] in referenced_ids else ""

    svg = re.sub(r' id="([^"]*)"', rename, svg)
    return re.sub(r'(href="|url\()#', rf"\1#{prefix}-", svg)


@functools.cache
def _shorten_chart_label(text: str, max_characters: int = 28) -> str:
    """Format a label from data for Matplotlib: one line, no mathematics.

    A long label loses its middle, since many labels differ only at the end.
    """
    text = " ".join(escape_invisible(text).split())
    if len(text) > max_characters:
        tail_length = max_characters // 2
        text = f"{text[: max_characters - tail_length - 1]}…{text[-tail_length:]}"
    return text.replace("$", r"\$")


def _wrap_chart_label(text: str, line_characters: int = 26) -> str:
    """Format the label of a row for Matplotlib on at most two lines, shortened if it is longer."""
    lines = textwrap.wrap(escape_invisible(text), line_characters)
    if len(lines) > 2:
        return _shorten_chart_label(text)
    return "\n".join(lines).replace("$", r"\$")


class AxisTicks(NamedTuple):
    """Marks of an axis.

    Attributes:
        positions: Their positions.
        labels: The text at each position.
    """

    positions: list[int]
    labels: list[str]


#: The style of Matplotlib is global, so threads draw one after the other.
_DRAWING_LOCK = threading.Lock()


def draw_chart(drawing: Drawing, name: str = "") -> str:
    """Draw a chart as SVG for a page.

    Args:
        drawing: What to draw.
        name: A name that no other chart of the page has; the ids of the SVG begin with it.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    with _DRAWING_LOCK:
        svg = _draw(drawing)
    return _rename_ids(svg, f"chart-{digest}")


def _draw(drawing: Drawing) -> str:
    match drawing:
        case LineChart():
            return _draw_line_chart(drawing)
        case BarChart():
            return _draw_bar_chart(drawing)
        case IntervalChart():
            return _draw_interval_chart(drawing)
        case TrajectoryChart():
            return _draw_trajectory_chart(drawing)
        case ShadedText():
            return _draw_shaded_text(drawing)


def _draw_line_chart(chart: LineChart) -> str:
    with _open_chart_canvas(2.7) as canvas:
        axes = canvas.axes
        for curve, colour in zip(chart.curves, (FIRST_COLOUR, SECOND_COLOUR), strict=False):
            marker_style: dict[str, Any] = (
                {"marker": "o", "markersize": 3} if colour == SECOND_COLOUR else {}
            )
            axes.plot(
                curve.x_values,
                curve.y_values,
                color=colour,
                linewidth=1.3,
                label=_shorten_chart_label(curve.name),
                **marker_style,
            )
        axes.grid(axis="y")
        axes.set_xlabel(_shorten_chart_label(chart.x_label, 60))
        axes.set_ylabel(_shorten_chart_label(chart.y_label, 60))
        axes.legend(loc="upper right")
    return canvas.svg


def _draw_bar_chart(chart: BarChart) -> str:
    with _open_chart_canvas(0.75 + 0.3 * len(chart.labels)) as canvas:
        axes = canvas.axes
        positions = range(len(chart.labels))
        colours = [
            FIRST_COLOUR if i == 0 or not chart.highlight_first else MUTED_COLOUR for i in positions
        ]
        axes.barh(positions, chart.values, color=colours, height=0.62)
        for position, value in zip(positions, chart.values, strict=True):
            text = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
            axes.annotate(text, (value, position), (4, 0), textcoords="offset points", va="center")
        axes.set_yticks(positions, [*map(_shorten_chart_label, chart.labels)])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.margins(x=0.16)
        _set_centred_label(axes, chart.x_label)
        axes.xaxis.set_major_locator(_make_tick_locator())
        axes.grid(axis="x")
    return canvas.svg


def _draw_interval_chart(chart: IntervalChart) -> str:
    labels = [*map(_wrap_chart_label, chart.labels)]
    row_height = 0.36 if any("\n" in label for label in labels) else 0.28
    with _open_chart_canvas(0.75 + row_height * len(labels)) as canvas:
        axes = canvas.axes
        bounds_by_position = {
            position: bounds
            for position, bounds in enumerate(chart.interval_bounds)
            if bounds is not None
        }
        axes.hlines(
            [*bounds_by_position],
            [low for low, _ in bounds_by_position.values()],
            [high for _, high in bounds_by_position.values()],
            color=FIRST_COLOUR,
            linewidth=1.6,
        )
        axes.plot(chart.values, range(len(chart.values)), "o", color=FIRST_COLOUR, markersize=5)
        null_by_position = {
            position: null_value
            for position, null_value in enumerate(chart.null_values)
            if null_value is not None
        }
        if null_by_position:
            axes.plot(
                [*null_by_position.values()],
                [*null_by_position],
                "|",
                color=SECOND_COLOUR,
                markersize=9,
                markeredgewidth=1.6,
            )
        if chart.reference_value is not None:
            axes.axvline(
                chart.reference_value, color=SECOND_COLOUR, linewidth=1, linestyle=(0, (4, 3))
            )
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.margins(x=0.06)
        _set_centred_label(axes, chart.x_label)
        if chart.is_ratio:
            from matplotlib.ticker import FuncFormatter

            axes.set_xscale("log")
            axes.xaxis.set_major_locator(_make_ratio_tick_locator(*axes.get_xlim()))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.6g}"))
            axes.set_xticks([], minor=True)
        else:
            axes.xaxis.set_major_locator(_make_tick_locator())
        axes.grid(axis="x")
    return canvas.svg


def _set_centred_label(axes: Axes, label: str) -> None:
    """Label the horizontal axis below the middle of the chart, however long the row names are."""
    axes.figure.supxlabel(_shorten_chart_label(label, 60), fontsize=9)


def _draw_trajectory_chart(chart: TrajectoryChart) -> str:
    with _open_chart_canvas(2.3) as canvas:
        axes = canvas.axes
        measured_points = [
            (x, y, bounds)
            for x, y, bounds in zip(chart.steps, chart.values, chart.interval_bounds, strict=True)
            if y is not None
        ]
        axes.plot(
            [x for x, _, _ in measured_points],
            [y for _, y, _ in measured_points],
            color=FIRST_COLOUR,
            linewidth=0.8,
        )
        for x, y, bounds in measured_points:
            if bounds is not None:
                axes.plot((x, x), bounds, color=FIRST_COLOUR, linewidth=1.6, solid_capstyle="butt")
            axes.plot([x], [y], "o", color=FIRST_COLOUR, markersize=5)
        null_points = [
            (x, null_value)
            for x, null_value in zip(chart.steps, chart.null_values, strict=True)
            if null_value is not None
        ]
        if null_points:
            dashed_style: Any = {
                "color": SECOND_COLOUR,
                "linewidth": 1,
                "linestyle": (0, (4, 3)),
            }
            axes.plot(*zip(*null_points, strict=True), **dashed_style)
        if is_log_spaced(chart.steps):
            # 0 is drawn one multiplicative step before the first step.
            first_step, second_step = sorted(step for step in chart.steps if step > 0)[:2]
            axes.set_xscale("symlog", linthresh=first_step, base=second_step / first_step)
        axes.set_xticks(*_select_step_ticks(chart.steps), minor=False)
        axes.set_xticks([], minor=True)
        axes.margins(x=0.06)
        axes.set_xlabel("step")
        # The title is above: the vertical axis is too short for a long label.
        axes.set_title(_shorten_chart_label(chart.title, 56), loc="left", fontsize=9)
        axes.yaxis.set_major_locator(_make_tick_locator())
        if chart.is_share:
            from matplotlib.ticker import FuncFormatter

            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
        axes.grid(axis="y")
    return canvas.svg


def _draw_shaded_text(chart: ShadedText) -> str:
    letter_width, line_height, left_margin, total_width = 6.0, 16.0, 38.0, 280.8
    visible_tokens = [escape_invisible(token) for token in chart.tokens]
    token_widths = [
        letter_width * sum(map(_count_monospace_columns, token)) for token in visible_tokens
    ]
    svg_elements: list[str] = []
    y = 0.0
    for row_label, token_shares in chart.shaded_rows:
        x, y = left_margin, y + line_height + (3 if svg_elements else 0)
        svg_elements.append(_build_svg_text(row_label, 0, y, None, TEXT_COLOUR, 8.5))
        for position, (token, share, token_width) in enumerate(
            zip(visible_tokens, token_shares, token_widths, strict=True)
        ):
            if (
                x > left_margin
                and x
                + max(token_width, _measure_word_width(visible_tokens, token_widths, position))
                > total_width
            ):
                x, y = left_margin, y + line_height
            frame_style = (
                f"; stroke: {SECOND_COLOUR}; stroke-width: 1.4"
                if position == chart.query_position
                else ""
            )
            svg_elements.append(
                f'<rect x="{x + 0.4:.1f}" y="{y - 11.2:.1f}" width="{token_width - 0.8:.1f}" '
                f'height="14.4" '
                # At most half opaque, so that the letters stay legible.
                f'rx="2" style="fill: {FIRST_COLOUR}; fill-opacity: '
                f'{0.5 * (share or 0):.3f}{frame_style}"/>'
            )
            text_colour = MUTED_COLOUR if share is None else TEXT_COLOUR
            svg_elements.append(_build_svg_text(token, x, y, token_width, text_colour, 10))
            x += token_width
    svg_header = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {y + 6:.1f}">'
    return _apply_theme_colours("\n".join([svg_header, *svg_elements, "</svg>\n"]))


def is_log_spaced(steps: Sequence[int]) -> bool:
    """Return whether steps are more evenly spaced on a logarithmic axis than on a linear one."""
    import numpy as np

    positive_steps = np.array(sorted(step for step in steps if step > 0), np.float64)
    if len(positive_steps) < 3:  # one gap has no variation: its size decides
        return len(positive_steps) == 2 and bool(positive_steps[1] >= 10 * positive_steps[0])
    gap_arrays = np.diff(positive_steps), np.diff(np.log(positive_steps))
    linear_variation, log_variation = (float(np.std(gap) / np.mean(gap)) for gap in gap_arrays)
    return log_variation < linear_variation


def _select_step_ticks(steps: Sequence[int], max_ticks: int = 7) -> AxisTicks:
    """Select at most about ``max_ticks`` steps, always with the first and the last."""
    stride = max(1, -(-(len(steps) - 1) // (max_ticks - 1)))
    selected_steps = [*steps[:-1:stride], steps[-1]]
    return AxisTicks(selected_steps, [f"{step:,}" for step in selected_steps])


def _make_tick_locator() -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)


def _make_ratio_tick_locator(low: float, high: float) -> Locator:
    """Return a locator of few ticks: the labels of rows leave half of the width for the axis."""
    from matplotlib.ticker import LogLocator

    if high < 4 * low:
        return _make_tick_locator()
    multiples = (1, 2, 5) if high < 30 * low else (1, 3) if high < 300 * low else (1,)
    return LogLocator(10, multiples, numticks=5)


def _measure_word_width(
    tokens: Sequence[str], token_widths: Sequence[float], position: int
) -> float:
    """Return the width of the word that begins at a token with a leading space.

    Returns:
        0 if no word begins there, or if the word is too long for a line.
    """
    if tokens[position][:1] != " ":
        return 0.0
    end = position + 1
    while end < len(tokens) and tokens[end][:1] != " ":
        end += 1
    width = sum(token_widths[position:end])
    return width if width < 150 else 0.0


def _build_svg_text(
    text: str, x: float, y: float, width: float | None, colour: str, font_size: float
) -> str:
    font_family = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
    fit_attributes = ""
    if width is not None:  # keeps the text in its box, whatever font the browser uses
        font_family = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
        fit_attributes = f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
    style = f"fill: {colour}; font: {font_size}px {font_family}; white-space: pre"
    return f'<text x="{x:.1f}" y="{y:.1f}"{fit_attributes} style="{style}">{escape(text)}</text>'


def _count_monospace_columns(character: str) -> int:
    """Return the number of monospace columns that a character takes."""
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
