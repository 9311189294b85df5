"""Place values on the axes of charts, and choose the ticks of an axis."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

#: Largest number of intervals between the ticks of an axis.
MAX_TICK_INTERVALS = 5

#: Steps between ticks, as multiples of a power of ten.
_TICK_STEPS = (1, 2, 2.5, 5, 10)

#: Free space between the labels of ticks.
_LABEL_GAP = 4.0

#: Estimated width of a letter in units of the font size; capital letters, m and w are wider.
_LETTER_WIDTH, _WIDE_LETTER_WIDTH = 0.58, 0.8

#: Larger values are drawn at the end of an axis, so that its range is a finite number.
_LARGEST_VALUE = 1e100


class Tick(NamedTuple):
    """A mark of an axis.

    Attributes:
        position: Its position in the chart.
        label: The text next to it.
    """

    position: float
    label: str


@dataclass(frozen=True)
class Axis:
    """An axis from ``start`` to ``end`` in the chart.

    Attributes:
        low: The value at the start; its decimal logarithm if the axis is logarithmic.
        high: The value at the end, likewise.
        start: The position of ``low``.
        end: The position of ``high``.
        is_log: Whether the axis is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    @classmethod
    def from_values(
        cls,
        values: Iterable[float | None],
        start: float,
        end: float,
        margin: float,
        *,
        is_log: bool = False,
    ) -> Axis:
        """Create an axis for all values that can be drawn.

        Args:
            values: The values; those that are None or infinite are skipped, and, on a logarithmic
                axis, those that are not positive.
            start: The position of the smallest value, before the margin is added.
            end: The position of the largest value.
            margin: The margin at both ends as a share of the range.
            is_log: Whether the axis is logarithmic.
        """
        finite_values = [
            value for value in values if value is not None and abs(value) < _LARGEST_VALUE
        ]
        if is_log:
            finite_values = [math.log10(value) for value in finite_values if value > 0]
        low, high = min(finite_values, default=0.0), max(finite_values, default=1.0)
        largest = max(abs(low), abs(high))
        if not high - low > 1e-9 * largest:  # all values are the same
            low, high = low - (0.05 * largest or 0.05), high + (0.05 * largest or 0.05)
        padding = margin * (high - low)
        return cls(low - padding, high + padding, start, end, is_log)

    def place(self, value: float) -> float:
        """Return the position of a value, or of the nearest value that the axis has."""
        if self.is_log:
            value = math.log10(value) if value > 0 else -math.inf
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def choose_ticks(self, measure_label: Callable[[str], float]) -> list[Tick]:
        """Return as many ticks as have space for their labels, but at least two if possible.

        Args:
            measure_label: Returns the length of a label along the axis.
        """
        choices = [ticks for ticks in self._list_tick_choices() if len(ticks) >= 2]
        fitting = (ticks for ticks in choices if _have_space(ticks, measure_label))
        return next(fitting, choices[-1] if choices else [])

    def _list_tick_choices(self) -> list[list[Tick]]:
        """Return possible ticks, the most first."""
        interval_counts = range(MAX_TICK_INTERVALS, 0, -1)
        if not self.is_log:
            return [self._place_round_values(self.low, self.high, n) for n in interval_counts]
        if self.high - self.low < 1:
            low, high = 10**self.low, 10**self.high
            return [self._place_round_values(low, high, n) for n in interval_counts]
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        return [
            *(self._place_decades(decades, multiples) for multiples in ((1, 2, 5), (1, 3))),
            *(self._place_decades(decades[::n], (1,)) for n in range(1, len(decades))),
        ]

    def _place_round_values(self, low: float, high: float, interval_count: int) -> list[Tick]:
        values = list_round_values(low, high, interval_count)
        labels = format_tick_values(values)
        return [Tick(self.place(value), label) for value, label in zip(values, labels, strict=True)]

    def _place_decades(self, decades: Iterable[int], multiples: Sequence[int]) -> list[Tick]:
        values = [multiple * 10.0**decade for decade in decades for multiple in multiples]
        return [
            Tick(self.place(value), f"{value:,.6g}")
            for value in values
            if self.low <= math.log10(value) <= self.high
        ]


def _have_space(ticks: Sequence[Tick], measure_label: Callable[[str], float]) -> bool:
    return all(
        abs(second.position - first.position)
        >= (measure_label(first.label) + measure_label(second.label)) / 2 + _LABEL_GAP
        for first, second in pairwise(ticks)
    )


def select_ticks_with_space(
    ticks: Sequence[Tick], measure_label: Callable[[str], float]
) -> list[Tick]:
    """Return the first and the last tick, and of the others those with space for their labels."""
    selected = [*ticks[:1]]
    for tick in ticks[1:-1]:
        if _have_space([selected[-1], tick, ticks[-1]], measure_label):
            selected.append(tick)
    return [*selected, *ticks[1:][-1:]]


def list_round_values(low: float, high: float, interval_count: int) -> list[float]:
    """Return the multiples of a round step from ``low`` to ``high``.

    Args:
        low: The smallest value; it may not be a multiple itself.
        high: The largest value, greater than ``low``.
        interval_count: Largest number of intervals between the multiples.
    """
    smallest_step = high / interval_count - low / interval_count
    power_of_ten = 10.0 ** math.floor(math.log10(smallest_step))
    step = next(
        multiple * power_of_ten
        for multiple in (*_TICK_STEPS, 20)  # in case of a rounding error
        if multiple * power_of_ten >= smallest_step
    )
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def format_tick_values(values: Sequence[float]) -> list[str]:
    """Format evenly spaced values with the same number of decimal places."""
    step = values[1] - values[0] if len(values) > 1 else 1.0
    decimals = next((n for n in range(7) if abs(step - round(step, n)) < 1e-6 * step), None)
    if decimals is None or max(map(abs, values), default=0) >= 1e9:
        labels = [f"{value:.4g}" for value in values]
    else:
        labels = [f"{value:,.{decimals}f}" for value in values]
    return [label.replace("-", "−", 1) if label.startswith("-") else label for label in labels]


def estimate_text_width(text: str, font_size: float) -> float:
    """Estimate the width of a text, which depends on the font that the browser chooses."""
    letters = sum(
        _WIDE_LETTER_WIDTH
        if character.isupper() or character in "mw"
        else _LETTER_WIDTH * count_columns(character)
        for character in text
    )
    return font_size * letters


def count_columns(character: str) -> int:
    """Return the number of columns of a monospaced font that a character takes."""
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
