"""Measure what a stage costs per byte or per document, from the runs of a store.

A run that computed a stage is one measurement: its telemetry, and the documents and bytes that the
stage read. A line through the measurements separates the fixed part of each cost from the part
that grows with the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from hallmark.flows.forecast.corpus_estimates import count_documents_and_bytes_by_source
from hallmark.flows.runs import Run, find_artifact
from hallmark.tasks.contract import Artifact, Store

Basis = Literal["byte", "document", "run"]

#: The costs of a stage that grow with the corpus.
COSTS = (
    "serial_seconds",  # only the main process works
    "worker_seconds",  # items run, times the number of workers
    "processor_seconds",  # of the main process and of the workers
    "main_memory_bytes",  # peak memory of the main process
    "output_bytes",
    "temporary_bytes",
)

#: The stages whose costs do not depend on the amount of text that they read.
CONSTANT_STAGES = {"datasheet"}

#: Sizes that differ by a smaller factor do not show which part of a cost is fixed.
MIN_SIZE_RATIO = 1.5

#: A cost is taken per document only if this reduces the deviations of the fit by this factor.
MAX_DEVIATION_RATIO = 0.8

BYTES_PER_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class CostRange:
    """An estimated cost with the lowest and highest value; these are None without a spread."""

    value: float
    low: float | None = None
    high: float | None = None

    def __add__(self, other: CostRange) -> CostRange:
        """Add two costs; one without a spread counts with its value if the other one has one."""
        if self.low is None and other.low is None:
            return CostRange(self.value + other.value)
        return CostRange(
            self.value + other.value,
            _first_known(self.low, self.value) + _first_known(other.low, other.value),
            _first_known(self.high, self.value) + _first_known(other.high, other.value),
        )

    def scale(self, factor: float) -> CostRange:
        """Multiply all values."""
        return CostRange(
            self.value * factor,
            None if self.low is None else self.low * factor,
            None if self.high is None else self.high * factor,
        )


def _first_known(value: float | None, default: float) -> float:
    return default if value is None else value


@dataclass(frozen=True)
class FittedCost:
    """A line through the measurements of a cost.

    Attributes:
        fixed: The cost that does not depend on the size.
        per_unit: The cost per byte or document.
        low_per_unit, high_per_unit: The lowest and highest measured one; None without a spread.
        deviation: Mean squared difference between measurements and line, as shares of the larger
            of the two.
    """

    fixed: float
    per_unit: float
    low_per_unit: float | None
    high_per_unit: float | None
    deviation: float

    def predict(self, size: float) -> CostRange:
        """Predict the cost at a size in bytes or documents."""
        low, high = (
            None if unit_cost is None else self.fixed + unit_cost * size
            for unit_cost in (self.low_per_unit, self.high_per_unit)
        )
        return CostRange(self.fixed + self.per_unit * size, low, high)


def fit_cost(sizes: Sequence[float], costs: Sequence[float]) -> FittedCost:
    """Fit a line with a fixed part and a unit cost, neither of them negative.

    With sizes that hardly differ, or costs that do not grow with them, the line goes through the
    origin: the measurements show no fixed part, and the unit cost includes it. The range of the
    unit cost is that of the slopes between two measurements, and its upper end includes the cost
    per unit of the largest measurement.

    Args:
        sizes: Positive sizes of the measurements, (n,), n at least 1.
        costs: Their costs, (n,).
    """
    unit_costs = [cost / size for size, cost in zip(sizes, costs, strict=True)]
    if max(sizes) < MIN_SIZE_RATIO * min(sizes):
        fixed, per_unit, spread = 0.0, median(unit_costs), unit_costs
    else:
        fixed, per_unit = _fit_nonnegative_line(sizes, costs)
        points = sorted(zip(sizes, costs, strict=True))
        spread = [
            max(0.0, (cost - smaller_cost) / (size - smaller_size))
            for index, (size, cost) in enumerate(points)
            for smaller_size, smaller_cost in points[:index]
            if size >= MIN_SIZE_RATIO * smaller_size
        ]
        spread += [per_unit, points[-1][1] / points[-1][0]]
    fitted_costs = [fixed + per_unit * size for size in sizes]
    deviation = sum(
        ((cost - fitted) / max(cost, fitted)) ** 2
        for cost, fitted in zip(costs, fitted_costs, strict=True)
        if cost or fitted
    ) / len(sizes)
    if len(sizes) == 1:
        return FittedCost(fixed, per_unit, None, None, deviation)
    return FittedCost(fixed, per_unit, min(spread), max(spread), deviation)


def _fit_nonnegative_line(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Fit fixed part and slope by least squares, each measurement weighted by 1 / size²."""
    weights = [1 / size**2 for size in sizes]
    total = sum(weights)
    mean_size = sum(w * size for w, size in zip(weights, sizes, strict=True)) / total
    mean_cost = sum(w * cost for w, cost in zip(weights, costs, strict=True)) / total
    points = list(zip(weights, sizes, costs, strict=True))
    slope = sum(w * (size - mean_size) * (cost - mean_cost) for w, size, cost in points) / sum(
        w * (size - mean_size) ** 2 for w, size, _ in points
    )
    fixed = mean_cost - slope * mean_size
    if slope <= 0 or fixed < 0:
        return 0.0, sum(costs) / sum(sizes)
    return fixed, slope


@dataclass(frozen=True)
class StageMeasurement:
    """What a run measured of a stage.

    Attributes:
        run: The id of the run.
        host: The name of the host.
        documents, text_bytes: What the stage read; 0 if its cost does not depend on the corpus.
        costs: The ``COSTS``.
        worker_memory_bytes: Largest peak memory of a worker; 0 if nothing ran in workers.
        parallel_items: Number of items that could run at the same time.
    """

    run: str
    host: str
    documents: int
    text_bytes: int
    costs: Mapping[str, float]
    worker_memory_bytes: float
    parallel_items: float

    @property
    def seconds(self) -> float:
        """The seconds that the stage would take with one worker."""
        return self.costs["serial_seconds"] + self.costs["worker_seconds"]


@dataclass(frozen=True)
class StageCosts:
    """The costs of a stage, fitted over its measurements.

    Attributes:
        measurements: The measurements, smallest corpus first.
        basis: Whether costs grow with bytes or documents, or are the same for each run.
        fits: The fit of each cost.
    """

    measurements: tuple[StageMeasurement, ...]
    basis: Basis
    fits: Mapping[str, FittedCost]

    @classmethod
    def fit(cls, measurements: Sequence[StageMeasurement]) -> StageCosts:
        """Fit all costs, per byte or per document: what fits the seconds better."""
        measurements = sorted(measurements, key=lambda row: (row.text_bytes, row.run))
        if not all(row.documents and row.text_bytes for row in measurements):
            return cls._fit_with_sizes(measurements, "run", lambda row: 1.0)
        by_bytes = cls._fit_with_sizes(measurements, "byte", lambda row: row.text_bytes)
        by_documents = cls._fit_with_sizes(measurements, "document", lambda row: row.documents)
        seconds = [row.seconds for row in measurements]
        deviation_by_bytes = fit_cost([row.text_bytes for row in measurements], seconds).deviation
        deviation = fit_cost([row.documents for row in measurements], seconds).deviation
        is_better = deviation < MAX_DEVIATION_RATIO * deviation_by_bytes
        return by_documents if is_better else by_bytes

    @classmethod
    def _fit_with_sizes(
        cls,
        measurements: Sequence[StageMeasurement],
        basis: Basis,
        get_size: Callable[[StageMeasurement], float],
    ) -> StageCosts:
        sizes = [get_size(row) for row in measurements]
        fits = {name: fit_cost(sizes, [row.costs[name] for row in measurements]) for name in COSTS}
        return cls(tuple(measurements), basis, fits)

    @property
    def largest_measurement(self) -> StageMeasurement:
        return self.measurements[-1]

    def choose_size(self, documents: float, text_bytes: float) -> float:
        """Return the size on which the costs depend."""
        return {"byte": text_bytes, "document": documents, "run": 1.0}[self.basis]

    def measure_growth_exponent(self) -> float | None:
        """Return the power of the bytes with which the seconds grow between the largest two sizes.

        1 means that they grow in proportion. None if all sizes are nearly equal.
        """
        largest = self.largest_measurement
        smaller = [
            row
            for row in self.measurements
            if row.text_bytes and largest.text_bytes >= MIN_SIZE_RATIO * row.text_bytes
        ]
        if not smaller or not smaller[-1].seconds or not largest.seconds:
            return None
        size_ratio = largest.text_bytes / smaller[-1].text_bytes
        return math.log(largest.seconds / smaller[-1].seconds) / math.log(size_ratio)


def read_corpus_size(store: Store, artifact: Artifact) -> tuple[int, int]:
    """Read how many documents and bytes of text a stage read; (0, 0) if it reads no corpus.

    For the first stage, which reads no artifact, these are the documents that it wrote.

    Raises:
        HallmarkError: The manifest is damaged, or an input is missing.
    """
    names: list[str] = []
    if artifact.lineage.get("documents"):
        names = artifact.list_input_names("documents")
    elif artifact.lineage.get("corpus_artifacts"):
        names = [artifact.get_input_names_by_key("corpus_artifacts").get("ingest", "")]
    inputs = [find_artifact(store, name) for name in names if name]
    read_artifacts = inputs if artifact.lineage else [artifact]
    counts = [
        count
        for read_artifact in read_artifacts
        if "documents" in read_artifact.tables
        for count in count_documents_and_bytes_by_source(read_artifact["documents"]).values()
    ]
    return sum(documents for documents, _ in counts), sum(size for _, size in counts)


def measure_stage(run: Run, label: str, artifact: Artifact) -> StageMeasurement | None:
    """Read what a run that computed a stage measured; None if this was not all of its work.

    Raises:
        HallmarkError: The artifact is damaged.
    """
    if "telemetry" not in artifact.manifest["telemetry"]:
        return None
    values: dict[str, Any] = {}
    host = ""
    for row in artifact.read_telemetry().to_pylist():
        values[row["metric"]] = row["value"]
        host = row["note"] if row["metric"] == "host" else host
    measured = {
        name: values.get(name)
        for name in (
            "cpu_seconds",
            "peak_memory",
            "parallel_seconds",
            "worker_seconds",
            "worker_cpu_seconds",
            "worker_peak_memory",
            "parallel_items",
            "temporary_bytes",
        )
    }
    is_measured = all(
        isinstance(value, float) and 0 <= value < math.inf for value in measured.values()
    )
    # An interrupted attempt computed a part of the items, whose time is not known.
    if not is_measured or values.get("reused_items") != 0:
        return None
    documents, text_bytes = (
        (0, 0) if label in CONSTANT_STAGES else read_corpus_size(run.store, artifact)
    )
    return StageMeasurement(
        run.id,
        str(host)[:100],
        documents,
        text_bytes,
        {
            "serial_seconds": max(0.0, run.stages[label]["seconds"] - values["parallel_seconds"]),
            "worker_seconds": values["worker_seconds"],
            "processor_seconds": values["cpu_seconds"] + values["worker_cpu_seconds"],
            "main_memory_bytes": values["peak_memory"] * BYTES_PER_MEBIBYTE,
            "output_bytes": float(sum(entry["size"] for entry in artifact.iter_file_entries())),
            "temporary_bytes": values["temporary_bytes"],
        },
        values["worker_peak_memory"] * BYTES_PER_MEBIBYTE,
        values["parallel_items"],
    )
