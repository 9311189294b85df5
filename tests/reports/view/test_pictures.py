"""The flow of a run and the loss of a training as pictures."""

import re

import pytest

from hallmark.reports.view.flow_picture import (
    BOX_HEIGHT,
    MAX_BOXES_PER_ROW,
    FlowStage,
    draw_flow_picture,
    find_inputs_by_label,
    remove_implied_edges,
)
from hallmark.reports.view.loss_curve import (
    HEIGHT,
    MAX_POINTS,
    WIDTH,
    choose_ticks,
    draw_loss_curve,
)


def make_stage(label, *inputs, also=()):
    lineage = {"inputs": [f"{name}/0#documents" for name in inputs], "none": None}
    return FlowStage(label, [f"{label}/0", *also], lineage, False)


def test_inputs_are_found_in_lineages():
    stages = [
        make_stage("ingest"),
        make_stage("pretrain", "ingest", also=["checkpoint/0"]),
        make_stage("audit", "checkpoint", "ingest", "unknown"),
        FlowStage("damaged", ["damaged/0"], None, True),
    ]
    inputs = find_inputs_by_label(stages)
    assert inputs == {
        "ingest": set(),
        "pretrain": {"ingest"},
        "audit": {"pretrain", "ingest"},
        "damaged": set(),
    }
    # The audit reads the corpus, too, but the path through the training says so.
    assert remove_implied_edges(inputs)["audit"] == {"pretrain"}


def test_boxes_do_not_overlap_and_lie_below_their_inputs():
    stages = [make_stage("ingest"), *(make_stage(f"audit_{n:02}", "ingest") for n in range(20))]
    stages.append(make_stage("card", *(f"audit_{n:02}" for n in range(20))))
    picture = draw_flow_picture(stages)
    boxes = {box.stage.label: box for box in picture.boxes}
    assert boxes.keys() == {stage.label for stage in stages} and len(picture.edges) == 40
    for box in boxes.values():
        assert box.x >= 0 and box.x + box.width <= picture.width
        assert box.y >= 0 and box.y + BOX_HEIGHT <= picture.height
        row = [other for other in boxes.values() if other.y == box.y]
        assert len(row) <= MAX_BOXES_PER_ROW
        assert all(o is box or o.x >= box.x + box.width or o.x + o.width <= box.x for o in row)
    assert boxes["ingest"].y < boxes["audit_00"].y < boxes["card"].y


def test_a_run_without_stages_has_an_empty_picture():
    assert draw_flow_picture([]).boxes == []


def read_points(text):
    return [tuple(map(float, point.split(","))) for point in text.split()]


def test_a_curve_lies_within_the_plot_and_falls_with_the_loss():
    losses = [(step, 8.0 / step) for step in range(1, 2001)]
    curve = draw_loss_curve(losses, [(1000, 1.5), (2000, 1.25), (500, None)])
    points = read_points(curve.training)
    assert len(points) <= MAX_POINTS + 1
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert [y for _, y in points] == sorted(y for _, y in points)  # downwards
    assert len(read_points(curve.validation)) == 2
    assert (curve.last_step, curve.last_loss, curve.last_validation_loss) == (2000, 0.004, 1.25)


def test_missing_losses_are_left_out():
    assert draw_loss_curve([], [(1, 2.0)]) is None
    assert draw_loss_curve([(1, None), (2, float("nan")), (3, float("inf"))], []) is None
    assert draw_loss_curve([(1, 1e300), (10**400, 2.0), (3, 10**400)], []) is None
    curve = draw_loss_curve([(1, 2.0)], [])
    assert curve.validation == "" and curve.last_validation_loss is None
    assert re.fullmatch(r"[\d.]+,[\d.]+", curve.training)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        *((0, 450), (1.7, 8.4), (2, 2), (0, 0), (-0.3, 0.2), (0, 1e7), (2.4012, 2.4019)),
        *((0, 5e-324), (5e-324, 5e-324), (-1e-300, 0), (-1e15, 1e15)),
    ],
)
def test_ticks_cover_the_range(low, high):
    ticks = choose_ticks(low, high)
    assert ticks == sorted(set(ticks)) and 1 <= len(ticks) <= 8
    assert ticks[0] <= low and ticks[-1] >= high
