"""Charts as SVG files: the same bytes each time, no script, and colours for light and dark.

The pictures are small, so that they can be read on a telephone, and never the only place of a
number: each stands beside a table. matplotlib draws them, except for shaded text.
"""

from __future__ import annotations

import functools
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.sax.saxutils import escape

from reports.page.masking import Say, visible

#: Colours are drawn as these marks and become CSS variables, with the light one as fallback.
_COLOURS = {
    "#010203": ("ink", "#24292f", "#e6e6e3"),
    "#010204": ("faint", "#c9cdd2", "#4a4f57"),
    "#010205": ("one", "#0b5cad", "#6cb2ff"),
    "#010206": ("two", "#b4470f", "#ff9d5c"),
    "#010207": ("three", "#6b7280", "#a3aab5"),
}
INK, FAINT, ONE, TWO, THREE = _COLOURS

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hallmark",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "Segoe UI", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


class _Canvas:
    """A figure being drawn, and its SVG once the block is left."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes
        self.svg = ""


@contextmanager
def _canvas(height: float) -> Iterator[_Canvas]:
    """Axes of 3.9 inches (about 375 pixels) by ``height``."""
    import logging

    import matplotlib
    from matplotlib.figure import Figure

    # Fonts are named in the SVG and chosen by the browser; those here only measure the text.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.9, height), layout="constrained")
        canvas = _Canvas(figure.add_subplot())
        yield canvas
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        canvas.svg = _themed(file.getvalue())


def _themed(svg: str) -> str:
    for mark, (name, light, _) in _COLOURS.items():
        svg = re.sub(rf"(fill|stroke): {mark}\b", rf"\1: {light}; \1: var(--{name})", svg)
    light, dark = (
        "".join(f"--{colour[0]}:{colour[i]};" for colour in _COLOURS.values()) for i in (1, 2)
    )
    style = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*", "", svg, count=2, flags=re.DOTALL)
    return re.sub(r"(<svg\b[^>]*>)", rf"\1<style>{style}</style>", svg, count=1)


@functools.cache
def _plain(text: str, limit: int = 28) -> str:
    """A label from data: no mathematics, one line. Long ones lose their middle, since many differ
    in their ends alone."""
    text = " ".join(visible(text).split())
    if len(text) > limit:
        end = limit // 2
        text = f"{text[: limit - end - 1]}…{text[-end:]}"
    return text.replace("$", r"\$")


def line(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    say: Say = visible,
) -> str:
    """Curves: (name, x, y) each; the second with marks."""
    with _canvas(2.7) as canvas:
        axes = canvas.axes
        for (name, x, y), colour in zip(series, (ONE, TWO), strict=False):
            mark = {"marker": "o", "markersize": 3} if colour == TWO else {}
            axes.plot(x, y, color=colour, linewidth=1.3, label=_plain(say(name)), **mark)
        axes.grid(axis="y")
        axes.set_xlabel(_plain(x_label, 60))
        axes.set_ylabel(_plain(y_label, 60))
        axes.legend(loc="upper right")
    return canvas.svg


def bars(
    labels: Sequence[str],
    values: Sequence[float],
    x_label: str,
    first_is_ours: bool = False,
    say: Say = visible,
) -> str:
    """Horizontal bars with their numbers, the first on top."""
    with _canvas(0.75 + 0.3 * len(labels)) as canvas:
        axes = canvas.axes
        places = range(len(labels))
        colours = [ONE if i == 0 or not first_is_ours else THREE for i in places]
        axes.barh(places, values, color=colours, height=0.62)
        for place, value in zip(places, values, strict=True):
            text = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
            axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center")
        axes.set_yticks(places, [_plain(say(label)) for label in labels])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.margins(x=0.16)
        axes.set_xlabel(_plain(x_label, 60))
        axes.xaxis.set_major_locator(_few_ticks())
        axes.grid(axis="x")
    return canvas.svg


def intervals(
    labels: Sequence[str],
    values: Sequence[float],
    ends: Sequence[tuple[float, float] | None],
    x_label: str,
    reference: float | None = None,
    say: Say = visible,
) -> str:
    """Dots with their confidence intervals, one a line; ``reference`` is drawn as a line."""
    with _canvas(0.75 + 0.28 * len(labels)) as canvas:
        axes = canvas.axes
        for place, (value, end) in enumerate(zip(values, ends, strict=True)):
            if end is not None:
                axes.plot(end, (place, place), color=ONE, linewidth=1.6, solid_capstyle="butt")
            axes.plot([value], [place], "o", color=ONE, markersize=5)
        if reference is not None:
            axes.axvline(reference, color=TWO, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(labels)), [_plain(say(label)) for label in labels])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.margins(x=0.06)
        axes.set_xlabel(_plain(x_label, 60))
        axes.xaxis.set_major_locator(_few_ticks())
        axes.grid(axis="x")
    return canvas.svg


def course(
    steps: Sequence[int],
    values: Sequence[float | None],
    ends: Sequence[tuple[float, float] | None],
    nulls: Sequence[float | None],
    title: str,
    share: bool = False,
) -> str:
    """A value with its interval at each step of a training, and what it is where there is nothing
    to find as a line. Steps without a value are left out; ``share``: in per cent."""
    with _canvas(2.3) as canvas:
        axes = canvas.axes
        known = [(x, y, end) for x, y, end in zip(steps, values, ends, strict=True)
                 if y is not None]  # fmt: skip
        axes.plot([x for x, _, _ in known], [y for _, y, _ in known], color=ONE, linewidth=0.8)
        for x, y, end in known:
            if end is not None:
                axes.plot((x, x), end, color=ONE, linewidth=1.6, solid_capstyle="butt")
            axes.plot([x], [y], "o", color=ONE, markersize=5)
        there = [(x, null) for x, null in zip(steps, nulls, strict=True) if null is not None]
        if there:
            dashed: Any = {"color": TWO, "linewidth": 1, "linestyle": (0, (4, 3))}
            axes.plot(*zip(*there, strict=True), **dashed)
        if even_in_logs(steps):  # 0 is as far from the first as that from the second
            first, second = sorted(step for step in steps if step > 0)[:2]
            axes.set_xscale("symlog", linthresh=first, base=second / first)
        axes.set_xticks(*_labelled(steps), minor=False)
        axes.set_xticks([], minor=True)
        axes.margins(x=0.06)
        axes.set_xlabel("step")
        # Above, for along a low axis few letters have room.
        axes.set_title(_plain(title, 56), loc="left", fontsize=9)
        axes.yaxis.set_major_locator(_few_ticks())
        if share:
            from matplotlib.ticker import FuncFormatter

            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
        axes.grid(axis="y")
    return canvas.svg


def even_in_logs(steps: Sequence[int]) -> bool:
    """Whether steps lie more evenly on a logarithmic axis than on a linear one."""
    import numpy as np

    above = np.array(sorted(step for step in steps if step > 0), np.float64)
    if len(above) < 3:  # of two only their distance tells
        return len(above) == 2 and bool(above[1] >= 10 * above[0])
    gaps = np.diff(above), np.diff(np.log(above))
    linear, logs = (float(np.std(gap) / np.mean(gap)) for gap in gaps)
    return logs < linear


def _labelled(steps: Sequence[int], most: int = 7) -> tuple[list[int], list[str]]:
    """Of many steps some, the first and the last among them."""
    apart = max(1, -(-(len(steps) - 1) // (most - 1)))
    chosen = [*steps[:-1:apart], steps[-1]]
    return chosen, [f"{step:,}" for step in chosen]


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)


def shades(
    tokens: Sequence[str], query: int, lines: Sequence[tuple[str, Sequence[float | None]]]
) -> str:
    """A text once a line, each token shaded by its share of the strongest shade, 0 to 1.

    ``lines``: (name, shares). The token at ``query`` is framed; one without a share is grey.
    """
    letter, high, left, width = 6.0, 16.0, 38.0, 280.8
    shown = [visible(token) for token in tokens]
    boxes = [letter * sum(map(_columns, token)) for token in shown]
    shapes: list[str] = []
    y = 0.0
    for name, shares in lines:
        x, y = left, y + high + (3 if shapes else 0)
        shapes.append(_svg_text(name, 0, y, None, INK, 8.5))
        for position, (token, share, box) in enumerate(zip(shown, shares, boxes, strict=True)):
            if x > left and x + max(box, _word(shown, boxes, position)) > width:
                x, y = left, y + high
            frame = f"; stroke: {TWO}; stroke-width: 1.4" if position == query else ""
            shapes.append(
                f'<rect x="{x + 0.4:.1f}" y="{y - 11.2:.1f}" width="{box - 0.8:.1f}" height="14.4" '
                # Half at most: the letters must stay legible on it.
                f'rx="2" style="fill: {ONE}; fill-opacity: {0.5 * (share or 0):.3f}{frame}"/>'
            )
            ink = THREE if share is None else INK
            shapes.append(_svg_text(token, x, y, box, ink, 10))
            x += box
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 6:.1f}">'
    return _themed("\n".join([head, *shapes, "</svg>\n"]))


def _word(tokens: Sequence[str], boxes: Sequence[float], position: int) -> float:
    """Width of the word that begins at a token with a blank in front; 0 where none begins, and
    of a word that fits no line."""
    if tokens[position][:1] != " ":
        return 0.0
    end = position + 1
    while end < len(tokens) and tokens[end][:1] != " ":
        end += 1
    width = sum(boxes[position:end])
    return width if width < 150 else 0.0


def _svg_text(text: str, x: float, y: float, box: float | None, ink: str, size: float) -> str:
    face = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
    fit = ""
    if box is not None:  # a browser with another font keeps to the box too
        face = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
        fit = f' textLength="{box:.1f}" lengthAdjust="spacingAndGlyphs"'
    style = f"fill: {ink}; font: {size}px {face}; white-space: pre"
    return f'<text x="{x:.1f}" y="{y:.1f}"{fit} style="{style}">{escape(text)}</text>'


def _columns(character: str) -> int:
    """Columns of a fixed-width face that a character takes."""
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
