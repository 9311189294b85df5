"""Draw charts as SVG for pages: reproducible bytes, no scripts, colours from the style sheet.

The charts are small enough for a telephone, and every number is also in a table nearby. An SVG has
no ids, so a page can have several.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeGuard
from xml.sax.saxutils import escape

from hallmark.reports.page.axes import (
    Axis,
    Tick,
    count_columns,
    estimate_text_width,
    select_ticks_with_space,
)
from hallmark.reports.page.charts import (
    BarChart,
    Drawing,
    IntervalChart,
    LineChart,
    ShadedText,
    TrajectoryChart,
)
from hallmark.reports.page.redaction import escape_invisible

#: Colours of the style sheet of pages.
TEXT_COLOUR = "var(--chart-ink)"
GRID_COLOUR = "var(--chart-faint)"
FIRST_COLOUR = "var(--chart-one)"
SECOND_COLOUR = "var(--chart-two)"
MUTED_COLOUR = "var(--chart-three)"

_FONT_FAMILY = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
_MONOSPACE_FAMILY = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

#: Width of a chart, about 375 pixels on a page, and the size of its letters.
CHART_WIDTH, FONT_SIZE = 280.8, 9.0

#: How far the middle of a line of letters is above its baseline.
_HALF_LETTER = 3.2

_DASHES = "4,3"

#: Space above the plot, to its right, and below it for the ticks and for the name of the axis.
_TOP, _RIGHT, _TICKS_BELOW, _NAME_BELOW = 6.0, 14.0, 14.0, 16.0

#: Largest share of the width that the labels of rows take; longer labels are condensed.
_MAX_LABEL_SHARE = 0.55


class _Canvas:
    """The elements of an SVG, in drawing order."""

    def __init__(self) -> None:
        self.elements: list[str] = []

    def add_line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        width: float,
        dashes: str = "",
    ) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f"fill: none; stroke: {colour}; stroke-width: {width:g}"
        if dashes:
            style += f"; stroke-dasharray: {dashes}"
        self.elements.append(f'<path d="M{path}" style="{style}"/>')

    def add_point(self, x: float, y: float, colour: str, radius: float = 2.5) -> None:
        self.elements.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" style="fill: {colour}"/>'
        )

    def add_bar(self, left: float, right: float, top: float, height: float, colour: str) -> None:
        self.elements.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{height:.1f}" style="fill: {colour}"/>'
        )

    def add_text(
        self,
        text: str,
        x: float,
        y: float,
        anchor: str = "start",
        *,
        max_width: float = math.inf,
        is_vertical: bool = False,
    ) -> None:
        """Add a text around the height ``y``, condensed if it is wider than ``max_width``."""
        attributes = f' text-anchor="{anchor}"' if anchor != "start" else ""
        attributes += f' x="{x:.1f}" y="{y + _HALF_LETTER:.1f}"'
        if estimate_text_width(text, FONT_SIZE) > max_width:
            attributes += f' textLength="{max_width:.1f}" lengthAdjust="spacingAndGlyphs"'
        if is_vertical:
            attributes += f' transform="rotate(-90 {x:.1f} {y:.1f})"'
        self.elements.append(f"<text{attributes}>{escape(text)}</text>")

    def to_svg(self, height: float) -> str:
        style = f"fill: {TEXT_COLOUR}; font: {FONT_SIZE:g}px {_FONT_FAMILY}"
        return "\n".join(
            [
                '<svg xmlns="http://www.w3.org/2000/svg" '
                f'viewBox="0 0 {CHART_WIDTH} {height:.1f}" style="{style}">',
                *self.elements,
                "</svg>\n",
            ]
        )


def _shorten_chart_label(text: str, max_characters: int = 28) -> str:
    """Format a label from data on one line.

    A long label loses its middle, since many labels differ only at the end.
    """
    text = " ".join(escape_invisible(text).split())
    if len(text) > max_characters:
        tail_length = max_characters // 2
        text = f"{text[: max_characters - tail_length - 1]}…{text[-tail_length:]}"
    return text


def _wrap_chart_label(text: str, line_characters: int = 26) -> list[str]:
    """Format the label of a row on at most two lines, shortened if it is longer."""
    lines = textwrap.wrap(escape_invisible(text), line_characters)
    return lines if 1 <= len(lines) <= 2 else [_shorten_chart_label(text)]


def draw_chart(drawing: Drawing) -> str:
    """Draw a chart as SVG for a page."""
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


def _is_number(value: float | None) -> TypeGuard[float]:
    """Return whether a value can be drawn; an infinite one is drawn at the end of its axis."""
    return value is not None and not math.isnan(value)


def _measure_label(label: str) -> float:
    return estimate_text_width(label, FONT_SIZE)


def _measure_label_height(label: str) -> float:
    return FONT_SIZE


def _draw_horizontal_axis(
    canvas: _Canvas,
    ticks: Iterable[Tick],
    axis: Axis,
    top: float,
    bottom: float,
    name: str,
    *,
    has_grid: bool = True,
) -> None:
    """Draw the lower axis of a plot from ``top`` to ``bottom``, its ticks, and its name."""
    for position, label in ticks:
        if has_grid:
            canvas.add_line([(position, top), (position, bottom)], GRID_COLOUR, 0.4)
        canvas.add_line([(position, bottom), (position, bottom + 3)], GRID_COLOUR, 0.8)
        canvas.add_text(label, position, bottom + 9, "middle")
    canvas.add_line([(axis.start, bottom), (axis.end, bottom)], GRID_COLOUR, 0.8)
    name_height = bottom + _TICKS_BELOW + _NAME_BELOW / 2
    canvas.add_text(_shorten_chart_label(name, 60), CHART_WIDTH / 2, name_height, "middle")


def _draw_vertical_axis(
    canvas: _Canvas, ticks: Iterable[Tick], axis: Axis, left: float, right: float
) -> None:
    """Draw the left axis of a plot from ``left`` to ``right``, and its ticks."""
    for position, label in ticks:
        canvas.add_line([(left, position), (right, position)], GRID_COLOUR, 0.4)
        canvas.add_text(label, left - 4, position, "end")
    canvas.add_line([(left, axis.start), (left, axis.end)], GRID_COLOUR, 0.8)


def _draw_row_labels(canvas: _Canvas, labels: Sequence[Sequence[str]], row_height: float) -> float:
    """Draw the labels of rows and the line to their right, where the plot begins.

    Returns:
        The position of the line.
    """
    label_widths = [_measure_label(line) for lines in labels for line in lines]
    max_width = min(max(label_widths, default=0.0), _MAX_LABEL_SHARE * CHART_WIDTH)
    for number, lines in enumerate(labels):
        middle = _TOP + (number + 0.5) * row_height
        for line_number, line in enumerate(lines):
            offset = (line_number - (len(lines) - 1) / 2) * (FONT_SIZE + 1)
            canvas.add_text(line, max_width + 2, middle + offset, "end", max_width=max_width)
    left, bottom = max_width + 8, _TOP + row_height * len(labels)
    canvas.add_line([(left, _TOP), (left, bottom)], GRID_COLOUR, 0.8)
    return left


def _draw_line_chart(chart: LineChart) -> str:
    canvas, height, top = _Canvas(), 194.4, 18.0
    bottom = height - _TICKS_BELOW - _NAME_BELOW
    y_values = [y for curve in chart.curves for y in curve.y_values]
    y_axis = Axis.from_values(y_values, bottom, top, 0.05)
    y_ticks = y_axis.choose_ticks(_measure_label_height)
    left = 20 + max((_measure_label(label) for _, label in y_ticks), default=0.0)
    x_values = [x for curve in chart.curves for x in curve.x_values]
    x_axis = Axis.from_values(x_values, left, CHART_WIDTH - _RIGHT, 0.04)
    x_ticks = x_axis.choose_ticks(_measure_label)
    _draw_horizontal_axis(canvas, x_ticks, x_axis, top, bottom, chart.x_label, has_grid=False)
    _draw_vertical_axis(canvas, y_ticks, y_axis, left, CHART_WIDTH - _RIGHT)
    y_name = _shorten_chart_label(chart.y_label, 60)
    canvas.add_text(y_name, 6, (top + bottom) / 2, "middle", is_vertical=True)
    legend_start = left
    for curve, colour in zip(chart.curves, (FIRST_COLOUR, SECOND_COLOUR), strict=False):
        points = [
            (x_axis.place(x), y_axis.place(y)) if math.isfinite(x) and math.isfinite(y) else None
            for x, y in zip(curve.x_values, curve.y_values, strict=True)
        ]
        # A curve has a gap where its value is not finite.
        for is_gap, run in groupby(points, lambda point: point is None):
            if not is_gap:
                canvas.add_line([point for point in run if point is not None], colour, 1.3)
        has_points = colour == SECOND_COLOUR
        for point in points if has_points else ():
            if point is not None:
                canvas.add_point(*point, colour, 1.5)
        name = _shorten_chart_label(curve.name)
        canvas.add_line([(legend_start, 8), (legend_start + 14, 8)], colour, 1.3)
        if has_points:
            canvas.add_point(legend_start + 7, 8, colour, 1.5)
        canvas.add_text(name, legend_start + 18, 8)
        legend_start += 30 + _measure_label(name)
    return canvas.to_svg(height)


def _draw_bar_chart(chart: BarChart) -> str:
    canvas, row_height = _Canvas(), 21.6
    bottom = _TOP + row_height * len(chart.labels)
    left = _draw_row_labels(
        canvas, [[_shorten_chart_label(label)] for label in chart.labels], row_height
    )
    value_texts = [
        f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}" for value in chart.values
    ]
    text_width = max(map(_measure_label, value_texts), default=0.0)
    axis = Axis.from_values([0.0, *chart.values], left, CHART_WIDTH - _RIGHT - text_width, 0)
    ticks = axis.choose_ticks(_measure_label)
    _draw_horizontal_axis(canvas, ticks, axis, _TOP, bottom, chart.x_label)
    for number, (value, text) in enumerate(zip(chart.values, value_texts, strict=True)):
        is_first = number == 0 or not chart.highlight_first
        colour = FIRST_COLOUR if is_first else MUTED_COLOUR
        middle = _TOP + (number + 0.5) * row_height
        if _is_number(value):
            start, end = sorted((axis.place(0), axis.place(value)))
            canvas.add_bar(start, end, middle - 0.31 * row_height, 0.62 * row_height, colour)
            canvas.add_text(text, end + 4, middle)
    return canvas.to_svg(bottom + _TICKS_BELOW + _NAME_BELOW)


def _draw_interval_chart(chart: IntervalChart) -> str:
    canvas = _Canvas()
    labels = [*map(_wrap_chart_label, chart.labels)]
    row_height = 26.0 if any(len(lines) > 1 for lines in labels) else 20.2
    bottom = _TOP + row_height * len(labels)
    left = _draw_row_labels(canvas, labels, row_height)
    null_values = [*chart.null_values] or [None] * len(labels)
    all_values = [*chart.values, *null_values, chart.reference_value]
    all_values += [end for bounds in chart.interval_bounds if bounds for end in bounds]
    right = CHART_WIDTH - _RIGHT
    axis = Axis.from_values(all_values, left, right, 0.06, is_log=chart.is_ratio)
    ticks = axis.choose_ticks(_measure_label)
    _draw_horizontal_axis(canvas, ticks, axis, _TOP, bottom, chart.x_label)
    if chart.reference_value is not None:
        x = axis.place(chart.reference_value)
        canvas.add_line([(x, _TOP), (x, bottom)], SECOND_COLOUR, 1, _DASHES)
    for number, (value, bounds, null_value) in enumerate(
        zip(chart.values, chart.interval_bounds, null_values, strict=True)
    ):
        middle = _TOP + (number + 0.5) * row_height
        if bounds is not None and all(map(_is_number, bounds)):
            canvas.add_line([(axis.place(end), middle) for end in bounds], FIRST_COLOUR, 1.6)
        if _is_number(value):
            canvas.add_point(axis.place(value), middle, FIRST_COLOUR)
        if _is_number(null_value):
            x = axis.place(null_value)
            canvas.add_line([(x, middle - 4.5), (x, middle + 4.5)], SECOND_COLOUR, 1.6)
    return canvas.to_svg(bottom + _TICKS_BELOW + _NAME_BELOW)


def _draw_trajectory_chart(chart: TrajectoryChart) -> str:
    canvas, height, top = _Canvas(), 165.6, 20.0
    bottom = height - _TICKS_BELOW - _NAME_BELOW
    all_values = [*chart.values, *chart.null_values]
    all_values += [end for bounds in chart.interval_bounds if bounds for end in bounds]
    scale, unit = (100, " %") if chart.is_share else (1, "")
    scaled_values = [None if value is None else scale * value for value in all_values]
    y_axis = Axis.from_values(scaled_values, bottom, top, 0.05)
    y_ticks = [
        Tick(position, label + unit)
        for position, label in y_axis.choose_ticks(_measure_label_height)
    ]
    left = 8 + max((_measure_label(label) for _, label in y_ticks), default=0.0)
    right = CHART_WIDTH - _RIGHT
    x_by_step = _place_steps(chart.steps, left, right)
    x_axis = Axis(0, 1, left, right)
    all_ticks = [Tick(x, f"{step:,}") for step, x in sorted(x_by_step.items())]
    x_ticks = select_ticks_with_space(all_ticks, _measure_label)
    _draw_horizontal_axis(canvas, x_ticks, x_axis, top, bottom, "step", has_grid=False)
    _draw_vertical_axis(canvas, y_ticks, y_axis, left, right)
    # The title is above: the vertical axis is too short for a long label.
    canvas.add_text(_shorten_chart_label(chart.title, 56), left, 8, max_width=right - left)
    null_points = [
        (x_by_step[step], y_axis.place(scale * value))
        for step, value in zip(chart.steps, chart.null_values, strict=True)
        if _is_number(value)
    ]
    if null_points:
        canvas.add_line(null_points, SECOND_COLOUR, 1, _DASHES)
    points = [
        (x_by_step[step], y_axis.place(scale * value))
        for step, value in zip(chart.steps, chart.values, strict=True)
        if _is_number(value)
    ]
    if points:
        canvas.add_line(points, FIRST_COLOUR, 0.8)
    for step, bounds in zip(chart.steps, chart.interval_bounds, strict=True):
        if bounds is not None and all(map(_is_number, bounds)):
            ends = [(x_by_step[step], y_axis.place(scale * end)) for end in bounds]
            canvas.add_line(ends, FIRST_COLOUR, 1.6)
    for x, y in points:
        canvas.add_point(x, y, FIRST_COLOUR)
    return canvas.to_svg(height)


def _place_steps(steps: Sequence[int], left: float, right: float) -> dict[int, float]:
    """Return the position of each training step, on a logarithmic axis if that is more even."""
    values: list[float] = [*steps]
    is_log = is_log_spaced(steps)
    if is_log:
        # 0 is drawn one multiplicative step before the first step.
        first_step, second_step = sorted(step for step in steps if step > 0)[:2]
        values = [step or first_step * first_step / second_step for step in steps]
    axis = Axis.from_values(values, left, right, 0.06, is_log=is_log)
    return {step: axis.place(value) for step, value in zip(steps, values, strict=True)}


def is_log_spaced(steps: Sequence[int]) -> bool:
    """Return whether steps are more evenly spaced on a logarithmic axis than on a linear one."""
    import numpy as np

    positive_steps = np.array(sorted(step for step in steps if step > 0), np.float64)
    if len(positive_steps) < 3:  # one gap has no variation: its size decides
        return len(positive_steps) == 2 and bool(positive_steps[1] >= 10 * positive_steps[0])
    gap_arrays = np.diff(positive_steps), np.diff(np.log(positive_steps))
    linear_variation, log_variation = (float(np.std(gap) / np.mean(gap)) for gap in gap_arrays)
    return log_variation < linear_variation


def _draw_shaded_text(chart: ShadedText) -> str:
    letter_width, line_height, left_margin = 6.0, 16.0, 38.0
    visible_tokens = [escape_invisible(token) for token in chart.tokens]
    token_widths = [letter_width * sum(map(count_columns, token)) for token in visible_tokens]
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
                > CHART_WIDTH
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
    svg_header = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {y + 6:.1f}">'
    return "\n".join([svg_header, *svg_elements, "</svg>\n"])


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
    font_family = _FONT_FAMILY
    fit_attributes = ""
    if width is not None:  # keeps the text in its box, whatever font the browser uses
        font_family = _MONOSPACE_FAMILY
        fit_attributes = f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
    style = f"fill: {colour}; font: {font_size}px {font_family}; white-space: pre"
    return f'<text x="{x:.1f}" y="{y:.1f}"{fit_attributes} style="{style}">{escape(text)}</text>'
