"""The charts of a card as data; ``drawing.py`` draws them when a page is rendered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hallmark.reports.page.redaction import RedactFunction


class Curve(NamedTuple):
    """A curve of a line chart.

    Attributes:
        name: Its name in the legend.
        x_values: Its horizontal positions.
        y_values: Its value at each position.
    """

    name: str
    x_values: Sequence[float]
    y_values: Sequence[float]


class ShadedRow(NamedTuple):
    """A row of a text with shaded tokens.

    Attributes:
        label: The label to the left of the text.
        shares: The shade of each token as a share of the strongest shade; None is drawn grey.
    """

    label: str
    shares: Sequence[float | None]


@dataclass(frozen=True)
class LineChart:
    """At most two curves; the second has markers."""

    curves: Sequence[Curve]
    x_label: str
    y_label: str

    def redact_labels(self, redact: RedactFunction) -> LineChart:
        curves = [curve._replace(name=redact(curve.name)) for curve in self.curves]
        return replace(self, curves=curves)


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars with their values, the first on top."""

    labels: Sequence[str]
    values: Sequence[float]
    x_label: str
    highlight_first: bool = False

    def redact_labels(self, redact: RedactFunction) -> BarChart:
        return replace(self, labels=[*map(redact, self.labels)])


@dataclass(frozen=True)
class IntervalChart:
    """Points with their confidence intervals, one per row.

    Attributes:
        labels: The label of each row.
        values: The value of each row.
        interval_bounds: The interval of each row; None without one.
        x_label: The label of the horizontal axis.
        reference_value: Where a dashed line is drawn; None for no line.
        is_ratio: Whether values are ratios, which have a logarithmic axis.
        null_values: The value of each row that is expected with no effect, drawn as a mark; None
            for no mark. Empty if no row has one.
    """

    labels: Sequence[str]
    values: Sequence[float]
    interval_bounds: Sequence[tuple[float, float] | None]
    x_label: str
    reference_value: float | None = None
    is_ratio: bool = False
    null_values: Sequence[float | None] = ()

    def redact_labels(self, redact: RedactFunction) -> IntervalChart:
        return replace(self, labels=[*map(redact, self.labels)])


@dataclass(frozen=True)
class TrajectoryChart:
    """A value with its interval at each training step, and its null value as a dashed line.

    Attributes:
        steps: The training steps.
        values: The value at each step; steps without a value are skipped.
        interval_bounds: The interval at each step.
        null_values: The null value at each step.
        title: The title, above the axes.
        is_share: Whether values are shares, shown in per cent.
    """

    steps: Sequence[int]
    values: Sequence[float | None]
    interval_bounds: Sequence[tuple[float, float] | None]
    null_values: Sequence[float | None]
    title: str
    is_share: bool = False

    def redact_labels(self, redact: RedactFunction) -> TrajectoryChart:
        return replace(self, title=redact(self.title))


@dataclass(frozen=True)
class ShadedText:
    """A text drawn once per row, each token shaded by its share of the strongest shade, 0 to 1.

    Attributes:
        tokens: The tokens of the text, already redacted.
        query_position: The token that is framed.
        shaded_rows: The rows, each with the share of every token.
    """

    tokens: Sequence[str]
    query_position: int
    shaded_rows: Sequence[ShadedRow]

    def redact_labels(self, redact: RedactFunction) -> ShadedText:
        return self


#: What a chart shows.
Drawing = LineChart | BarChart | IntervalChart | TrajectoryChart | ShadedText
