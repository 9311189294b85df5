"""Draw the loss of a training by step, as an SVG that the page contains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

#: Sizes in pixels: the plot with its margins, and the most points of a curve.
WIDTH, HEIGHT = 720, 300
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 56, 12, 12, 36
MAX_POINTS = 600
#: A step or loss above the first number is not drawn; a file that anyone can write may contain it.
#: A smaller range than the second one has no ticks of its own.
MAX_DRAWN_VALUE, MIN_SPAN = 1e15, 1e-12


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its place in pixels and its text."""

    position: float
    text: str


@dataclass(frozen=True)
class LossCurve:
    """A loss curve in pixels.

    Attributes:
        training: The points of the training loss, as SVG takes them; empty without any.
        validation: The points of the validation loss.
        step_ticks: The ticks of the horizontal axis.
        loss_ticks: The ticks of the vertical axis.
        last_step: The last step.
        last_loss: The training loss of the last step.
        last_validation_loss: The last validation loss; None without one.
    """

    training: str
    validation: str
    step_ticks: Sequence[Tick]
    loss_ticks: Sequence[Tick]
    last_step: int
    last_loss: float
    last_validation_loss: float | None
    width: int = WIDTH
    height: int = HEIGHT
    bottom: int = HEIGHT - MARGIN_BOTTOM
    left: int = MARGIN_LEFT
    right: int = WIDTH - MARGIN_RIGHT
    top: int = MARGIN_TOP


def draw_loss_curve(training: Iterable[Point], validation: Iterable[Point]) -> LossCurve | None:
    """Draw the losses of a training; None if no loss is known.

    Args:
        training: Pairs of a step and its training loss in nats per token.
        validation: Pairs of a step and the validation loss in nats per token.
    """
    training_points = [*filter(_is_drawable, training)]
    validation_points = [*filter(_is_drawable, validation)]
    if not training_points:
        return None
    points = [*training_points, *validation_points]
    last_step = max(step for step, _ in points)
    lowest, highest = min(loss for _, loss in points), max(loss for _, loss in points)
    loss_ticks = choose_ticks(lowest, highest)
    step_ticks = choose_ticks(0, last_step)
    low, high = min(lowest, loss_ticks[0]), max(highest, loss_ticks[-1])

    def scale_step(step: float) -> float:
        return MARGIN_LEFT + (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) * step / max(last_step, 1)

    def scale_loss(loss: float) -> float:
        share = (loss - low) / ((high - low) or 1)
        return HEIGHT - MARGIN_BOTTOM - (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM) * share

    def format_points(curve: Sequence[Point]) -> str:
        return " ".join(
            f"{scale_step(step):.1f},{scale_loss(loss):.1f}" for step, loss in thin_points(curve)
        )

    return LossCurve(
        format_points(training_points),
        format_points(validation_points),
        [Tick(scale_step(step), f"{step:,.0f}") for step in step_ticks if step <= last_step],
        [Tick(scale_loss(loss), f"{loss:g}") for loss in loss_ticks],
        int(last_step),
        training_points[-1][1],
        validation_points[-1][1] if validation_points else None,
    )


def thin_points(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most about ``MAX_POINTS`` of the points, evenly, with the last."""
    stride = -(-len(points) // MAX_POINTS)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def choose_ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers that cover a range."""
    span = next(span for span in (high - low, abs(high), 1.0) if span > MIN_SPAN)
    magnitude = 10 ** math.floor(math.log10(span / 4))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= span / 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _is_drawable(point: Point) -> bool:
    return all(value is not None and abs(value) <= MAX_DRAWN_VALUE for value in point)
