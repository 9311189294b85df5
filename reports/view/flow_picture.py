"""Lay out the stages of a run and their inputs as a picture: a graph from top to bottom.

An edge leads from a stage to each stage that reads its output. An edge is omitted if a longer path
of edges connects its two stages, as for the stages of the corpus that a model card reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hallmark.reports.purge_notices import iter_artifact_names

#: Sizes in pixels: a box, the gaps between boxes, and the margin around the picture.
BOX_HEIGHT, CHARACTER_WIDTH, BOX_PADDING = 26, 7.3, 16
GAP_X, GAP_Y, MARGIN = 14, 30, 12

#: Most boxes next to each other; the stages of a wider layer continue below.
MAX_BOXES_PER_ROW = 6


@dataclass(frozen=True)
class FlowStage:
    """A stage of a flow.

    Attributes:
        label: Its label.
        artifact_names: The names of its artifact and of those that it committed meanwhile.
        lineage: The names of its inputs, as in the manifest; None if it cannot be read.
        is_cached: Whether its artifact was reused.
    """

    label: str
    artifact_names: Collection[str]
    lineage: Any
    is_cached: bool


@dataclass(frozen=True)
class FlowBox:
    """A stage in the picture: its box in pixels."""

    stage: FlowStage
    x: float
    y: float
    width: float

    @property
    def center(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True)
class FlowPicture:
    """The boxes and the edges of a picture.

    Attributes:
        width: The width in pixels.
        height: The height in pixels.
        boxes: One for each stage.
        edges: The path of each edge, as SVG takes it.
    """

    width: float
    height: float
    boxes: Sequence[FlowBox]
    edges: Sequence[str]


def draw_flow_picture(stages: Sequence[FlowStage]) -> FlowPicture:
    """Lay out the stages of a run, in the order in which they ended."""
    inputs_by_label = remove_implied_edges(find_inputs_by_label(stages))
    rows = _arrange_rows(stages, inputs_by_label)
    row_widths = [
        sum(_compute_box_width(stage) for stage in row) + GAP_X * (len(row) - 1) for row in rows
    ]
    width = max(row_widths, default=0)
    boxes: dict[str, FlowBox] = {}
    for row_index, (row, row_width) in enumerate(zip(rows, row_widths, strict=True)):
        x = MARGIN + (width - row_width) / 2
        for stage in row:
            y = MARGIN + row_index * (BOX_HEIGHT + GAP_Y)
            boxes[stage.label] = FlowBox(stage, x, y, _compute_box_width(stage))
            x += boxes[stage.label].width + GAP_X
    edges = [
        _format_edge(boxes[input_label], boxes[label])
        for label, input_labels in inputs_by_label.items()
        for input_label in sorted(input_labels)
    ]
    height = 2 * MARGIN + len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    return FlowPicture(width + 2 * MARGIN, max(height, 0), list(boxes.values()), edges)


def find_inputs_by_label(stages: Sequence[FlowStage]) -> dict[str, set[str]]:
    """Return the labels of the stages whose output each stage reads.

    A stage reads only from stages that ended before it, so that the graph has no cycle.
    """
    labels_by_artifact: dict[str, str] = {}
    inputs_by_label: dict[str, set[str]] = {}
    for stage in stages:
        names = {name.partition("#")[0] for name in iter_artifact_names(stage.lineage)}
        inputs_by_label[stage.label] = {
            labels_by_artifact[name] for name in names if name in labels_by_artifact
        }
        labels_by_artifact |= dict.fromkeys(stage.artifact_names, stage.label)
    return inputs_by_label


def remove_implied_edges(inputs_by_label: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Remove the edges between stages that a longer path connects.

    Args:
        inputs_by_label: The inputs of each stage; stages come after their inputs.
    """
    ancestors_by_label: dict[str, set[str]] = {}
    for label, input_labels in inputs_by_label.items():
        ancestors_by_label[label] = input_labels.union(
            *(ancestors_by_label[input_label] for input_label in input_labels)
        )
    return {
        label: input_labels
        - set[str]().union(*(ancestors_by_label[input_label] for input_label in input_labels))
        for label, input_labels in inputs_by_label.items()
    }


def _arrange_rows(
    stages: Sequence[FlowStage], inputs_by_label: Mapping[str, set[str]]
) -> list[list[FlowStage]]:
    """Arrange stages in rows, each below its inputs and near the middle of them."""
    layers: list[list[FlowStage]] = []
    layer_by_label: dict[str, int] = {}
    for stage in stages:
        layer = max((layer_by_label[i] + 1 for i in inputs_by_label[stage.label]), default=0)
        layer_by_label[stage.label] = layer
        layers += [[] for _ in range(layer + 1 - len(layers))]
        layers[layer].append(stage)
    position_by_label: dict[str, float] = {}
    rows = []
    for layer_stages in layers:

        def compute_mean_position(stage: FlowStage) -> float:
            positions = [position_by_label[i] for i in inputs_by_label[stage.label]]
            return sum(positions) / len(positions) if positions else 0.5

        layer_stages.sort(key=compute_mean_position)
        for index, stage in enumerate(layer_stages):
            position_by_label[stage.label] = (index + 0.5) / len(layer_stages)
        row_count = -(-len(layer_stages) // MAX_BOXES_PER_ROW)
        rows += [layer_stages[index::row_count] for index in range(row_count)]
    return rows


def _compute_box_width(stage: FlowStage) -> float:
    return len(stage.label) * CHARACTER_WIDTH + BOX_PADDING


def _format_edge(upper: FlowBox, lower: FlowBox) -> str:
    start_y, end_y = upper.y + BOX_HEIGHT, lower.y
    middle = (start_y + end_y) / 2
    return (
        f"M{upper.center:.0f} {start_y:.0f}C{upper.center:.0f} {middle:.0f} "
        f"{lower.center:.0f} {middle:.0f} {lower.center:.0f} {end_y:.0f}"
    )
