"""Test where values are on an axis, and which ticks an axis has."""

import math
from itertools import pairwise

import pytest

from hallmark.reports.page import charts
from hallmark.reports.page.axes import (
    Axis,
    Tick,
    estimate_text_width,
    format_tick_values,
    list_round_values,
    select_ticks_with_space,
)
from hallmark.reports.page.drawing import draw_chart

INFINITE, UNKNOWN = math.inf, math.nan


def measure_letters(label):
    return 5.0 * len(label)


def test_values_are_placed_in_proportion():
    axis = Axis.from_values([10, None, 20, UNKNOWN, INFINITE], 100, 200, 0)
    assert [axis.place(value) for value in (10, 15, 20)] == [100, 150, 200]
    assert [axis.place(value) for value in (-INFINITE, 0, 99, INFINITE)] == [100, 100, 200, 200]
    assert Axis.from_values([10, 20], 100, 200, 0.5).place(10) == pytest.approx(125)


def test_a_vertical_axis_goes_up():
    assert Axis.from_values([0, 4], 80, 0, 0).place(1) == 60


def test_ratios_are_placed_by_their_logarithms():
    axis = Axis.from_values([0.01, 100, 0, -1], 0, 40, 0, is_log=True)
    assert [axis.place(value) for value in (0.01, 1, 10)] == [0, 20, 30]
    assert axis.place(0) == axis.place(-1) == 0


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [1e300, 2.0], [UNKNOWN], [1e-320, 2e-320]])
@pytest.mark.parametrize("is_log", [False, True])
def test_every_axis_has_a_length_and_ticks(values, is_log):
    axis = Axis.from_values(values, 0, 250, 0.05, is_log=is_log)
    assert axis.low < axis.high
    for label in (tick.label for tick in axis.choose_ticks(measure_letters)):
        assert len(label) < 20


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 12, 3, [0, 5, 10]),
        (0.02, 0.11, 5, [0.02, 0.04, 0.06, 0.08, 0.1]),
        (1000, 11_000, 4, [2500, 5000, 7500, 10_000]),
    ],
)
def test_ticks_are_at_round_values(low, high, count, expected):
    assert list_round_values(low, high, count) == pytest.approx(expected)


def test_labels_of_ticks_have_equal_decimal_places():
    assert format_tick_values([-2.5, 0.0, 2.5]) == ["−2.5", "0.0", "2.5"]
    assert format_tick_values([1000, 2000]) == ["1,000", "2,000"]
    assert format_tick_values([0.0, 1e-9]) == ["0", "1e-09"]
    assert format_tick_values([2e12, 4e12]) == ["2e+12", "4e+12"]


@pytest.mark.parametrize("width", [60, 100, 250])
@pytest.mark.parametrize("values", [(0, 1), (0, 123_456), (-0.001, 0.002), (3, 3.1)])
def test_labels_do_not_overlap(width, values):
    ticks = Axis.from_values(values, 0, width, 0.05).choose_ticks(measure_letters)
    assert 2 <= len(ticks) <= 6
    if width > 60:
        for first, second in pairwise(ticks):
            lengths = measure_letters(first.label), measure_letters(second.label)
            assert second.position - first.position >= sum(lengths) / 2


def test_the_first_and_the_last_step_have_labels():
    ticks = [Tick(10.0 * number, f"{number:,}000") for number in range(30)]
    selected = select_ticks_with_space(ticks, measure_letters)
    assert selected[0] == ticks[0] and selected[-1] == ticks[-1]
    assert all(second.position - first.position >= 20 for first, second in pairwise(selected))
    assert select_ticks_with_space(ticks[:1], measure_letters) == ticks[:1]
    assert select_ticks_with_space([], measure_letters) == []


def test_wide_letters_take_more_space():
    widths = [estimate_text_width(text, 10) for text in ("in", "mw", "IN", "中文")]
    assert widths == sorted(widths) and widths[0] < widths[1]


@pytest.mark.parametrize(
    "drawing",
    [
        charts.BarChart([], [], "n"),
        charts.BarChart(["a", "b"], [-5, UNKNOWN], "n"),
        charts.LineChart([], "step", "loss"),
        charts.LineChart([charts.Curve("a", [1, 2, 3], [5, UNKNOWN, INFINITE])], "step", "loss"),
        charts.IntervalChart(["a"], [UNKNOWN], [(UNKNOWN, 1)], "n", null_values=[UNKNOWN]),
        charts.IntervalChart(["a"], [1e300], [(-INFINITE, INFINITE)], "n"),
        charts.IntervalChart(["a"], [0.0], [(0.0, INFINITE)], "n", 1, is_ratio=True),
        charts.IntervalChart(["", "文" * 99], [1, 2], [None, None], "n"),
        charts.TrajectoryChart([0, 1], [UNKNOWN, 1e300], [None, (0, INFINITE)], [UNKNOWN, 0], "t"),
    ],
)
def test_unusual_values_are_drawn_inside_the_chart(drawing):
    svg = draw_chart(drawing)
    assert "nan" not in svg and "inf" not in svg


def test_a_curve_has_a_gap_where_it_has_no_value():
    curve = charts.Curve("a", [1, 2, 3, 4, 5], [5, 4, UNKNOWN, 3, 2])
    whole = curve._replace(y_values=[5, 4, 3.5, 3, 2])
    gap_count, whole_count = (
        draw_chart(charts.LineChart([each], "step", "loss")).count("stroke-width: 1.3")
        for each in (curve, whole)
    )
    assert gap_count == whole_count + 1
