"""Plan a run of any size (``hallmark plan``): time, memory and disk of each stage.

The stages of a config cost what the runs of a store measured (``unit_costs.py``), at the sizes that
follow from the number of training tokens. Items of a stage are divided among the workers of all
hosts; what only the main process does takes as long with any number of hosts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from hallmark.flows.config import Config, load_config, read_answers
from hallmark.flows.corpus import EMPTY_CORPUS
from hallmark.flows.curation import curate_corpus
from hallmark.flows.forecast.corpus_estimates import count_packed_tokens
from hallmark.flows.forecast.problems import ForecastProblem
from hallmark.flows.forecast.stage_plan import UnknownArtifact
from hallmark.flows.forecast.training_plan import find_training_gaps, plan_training
from hallmark.flows.forecast.unit_costs import (
    CONSTANT_STAGES,
    CostRange,
    StageCosts,
    StageMeasurement,
    measure_stage,
    read_corpus_size,
)
from hallmark.flows.runs import Run, open_store, read_all_runs
from hallmark.flows.training import train_model
from hallmark.tasks.contract import (
    HallmarkError,
    LastStageReached,
    Session,
    Stage,
    StageConfig,
    Store,
    UsageError,
    format_count,
    open_session,
)
from hallmark.tasks.corpus.find_repeats import check_memory
from hallmark.tasks.measures.machine import total_memory_bytes

Report = dict[str, Any]

#: The last stage before the training.
LAST_CORPUS_STAGE = "pack"

#: Text in bytes that a run should have before anything is extrapolated from it.
MIN_MEASURED_BYTES = 1_000_000_000

#: The stages whose time can grow faster than the corpus, with the reason.
NONLINEAR_STAGES = {
    "deduplicate_near": "the number of document pairs to compare can grow faster than the corpus",
    "find_repeats": "the whole corpus is searched at once in the memory of a single host",
}

#: The setting of a stage that may differ between a measured run and the planned one.
SOURCES_SETTING = ("ingest", "sources")

#: Extrapolation beyond the largest measured corpus that is not worth a warning.
MAX_SAFE_FACTOR = 10.0


@dataclass(frozen=True)
class CorpusStage:
    """A stage of a config before the training.

    Attributes:
        label: The label of the stage in a run.
        name: The name of the stage, which two labels may share.
        settings: The settings on which its unit costs may depend.
    """

    label: str
    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class PlannedStage:
    """What a stage is expected to take; the costs are None if no run measured the stage.

    Attributes:
        label: The label of the stage in a run.
        basis: "byte", "document" or "run": what the costs grow with.
        runs: The runs from which the costs were extrapolated, smallest first.
        documents, text_bytes: Expected size of the corpus that the stage reads.
        largest_measured_bytes: The largest corpus that a run measured.
        extrapolation_factor: How many times larger the planned corpus is.
        seconds: Expected time.
        serial_seconds: The part of it that does not get shorter with more hosts.
        used_workers: Number of workers that have work.
        processor_seconds: Processor time of all processes.
        main_memory_bytes: Peak memory of the main process.
        worker_memory_bytes: Largest measured peak memory of a worker.
        output_bytes: Size of the artifact.
        temporary_bytes: Size of the files that are removed when the stage ends.
        growth_exponent: Power of the bytes with which the measured time grew; None if unknown.
        nonlinear_reason: Why its time may not grow in proportion; "" if it should.
    """

    label: str
    basis: str | None = None
    runs: tuple[str, ...] = ()
    documents: float = 0.0
    text_bytes: float = 0.0
    largest_measured_bytes: int = 0
    extrapolation_factor: float = 1.0
    seconds: CostRange | None = None
    serial_seconds: CostRange | None = None
    used_workers: int = 0
    processor_seconds: CostRange | None = None
    main_memory_bytes: CostRange | None = None
    worker_memory_bytes: float = 0.0
    output_bytes: CostRange | None = None
    temporary_bytes: CostRange | None = None
    growth_exponent: float | None = None
    nonlinear_reason: str = ""


def plan_run(
    config_name: str,
    overrides: Sequence[str] = (),
    store: str | None = None,
    *,
    tokens: float,
    hosts: int = 1,
    devices_per_host: int = 1,
    device_tflops: float | None = None,
) -> Report:
    """Plan a run and return the report as a JSON value.

    Args:
        config_name: A config file, or the name of a bundled config.
        overrides: Overrides of the config.
        store: The store with the measured runs; None for that of the config.
        tokens: Number of tokens that the model is trained on, each read once.
        hosts: Number of hosts, each with the workers of the config.
        devices_per_host: Number of devices for the training on each host.
        device_tflops: Peak speed of such a device; None for that of ``training_plan``.

    Raises:
        UsageError: An argument is wrong, or no run measured the stages of the config.
    """
    config = read_answers(load_config(config_name, overrides))
    opened_store = open_store(store or config.store, create=False)
    stages = list_corpus_stages(config, opened_store)
    runs = [run for run in read_all_runs(opened_store) if run.stages]
    measurements = read_stage_measurements(runs, stages)
    sizes_per_token = read_sizes_per_token(runs, [stage.label for stage in stages], config.name)
    measuring_command = f"hallmark run {quote(config_name)} --until {LAST_CORPUS_STAGE}"
    if not any(measurements.values()) or not sizes_per_token:
        raise UsageError(
            f"no run in the store {opened_store.uri} measured the stages of the config "
            f"{config_name!r:.80} up to {LAST_CORPUS_STAGE}; first run the config on at least 1 GB "
            f"of text: {measuring_command}"
        )
    workers = hosts * config.workers
    planned = [
        plan_stage(
            stage.label,
            measurements[stage.label],
            documents=tokens * sizes_per_token[stage.label][0],
            text_bytes=tokens * sizes_per_token[stage.label][1],
            workers=workers,
        )
        for stage in stages
    ]
    training = plan_training(
        config, runs, tokens, devices=hosts * devices_per_host, device_tflops=device_tflops
    )
    problems = [
        *find_memory_problems(planned),
        *find_measurement_gaps(planned, measuring_command),
        *find_scaling_limits(config, hosts),
        *find_training_gaps(training, config.pretrain.train),
    ]
    return {
        "config": config_name,
        "store": opened_store.uri,
        "tokens": tokens,
        "hosts": hosts,
        "workers_per_host": config.workers,
        "runs": summarize_runs(measurements),
        "stages": [asdict(stage) for stage in planned],
        "corpus": summarize_corpus(planned),
        "training": asdict(training),
        "seconds": asdict(sum_ranges([*(row.seconds for row in planned), training.seconds])),
        "warnings": [problem.to_dict() for problem in problems],
        "will_fail": any(problem.is_certain for problem in problems),
    }


def list_corpus_stages(config: Config, store: Store) -> list[CorpusStage]:
    """List the stages that a run of a config executes before the training, in their order."""
    stages: list[CorpusStage] = []

    def record_stage(stage: Stage, inputs: Sequence[Any], config: StageConfig) -> UnknownArtifact:
        settings = select_cost_settings(stage.run_label, config.model_dump(mode="json"))
        stages.append(CorpusStage(stage.run_label, stage.name, settings))
        return UnknownArtifact(stage.run_label)

    session = Session(store, last_stage=LAST_CORPUS_STAGE, plan_stage=record_stage)
    with open_session(session), suppress(LastStageReached):
        train_model(config, curate_corpus(config, EMPTY_CORPUS))
    return stages


def select_cost_settings(label: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a stage on which its unit costs may depend."""
    if label in CONSTANT_STAGES:
        return {}
    return {name: value for name, value in settings.items() if (label, name) != SOURCES_SETTING}


def read_stage_measurements(
    runs: Sequence[Run], stages: Sequence[CorpusStage]
) -> dict[str, list[StageMeasurement]]:
    """Read what the runs measured of stages, by label; damaged or missing artifacts are skipped.

    Only runs that computed a stage with the same settings count. A stage that no run computed,
    because its input was that of the same stage under another label, has the measurements of that.
    """
    measurements: dict[str, list[StageMeasurement]] = {stage.label: [] for stage in stages}
    for run in runs:
        for stage in stages:
            entry = run.stages.get(stage.label)
            if entry is None or entry["cached"]:
                continue
            with suppress(HallmarkError):
                artifact = run[stage.label]
                settings = artifact.manifest["parts"].get("config", {})
                if select_cost_settings(stage.label, settings) == stage.settings:
                    measurement = measure_stage(run, stage.label, artifact)
                    measurements[stage.label] += [measurement] if measurement else []
    return {
        stage.label: measurements[stage.label]
        or [
            measurement
            for other in stages
            if (other.name, other.settings) == (stage.name, stage.settings)
            for measurement in measurements[other.label]
        ]
        for stage in stages
    }


def read_sizes_per_token(
    runs: Sequence[Run], labels: Sequence[str], config_name: str
) -> dict[str, tuple[float, float]]:
    """Read how many documents and bytes each stage reads per training token.

    Those of the largest run count, of runs of this config if there are any, because the share of
    duplicates depends on the size of the corpus. A stage that the run did not have is assumed to
    read what the stage before it read.

    Returns:
        Documents and bytes per token by label; empty if no run packed a corpus.
    """
    candidates = [run for run in runs if run.stages.keys() >= {"ingest", LAST_CORPUS_STAGE}]
    runs_of_config = [run for run in candidates if run.record["config_name"] == config_name]
    largest_bytes, sizes_per_token = 0, {}
    for run in runs_of_config or candidates:
        with suppress(HallmarkError):
            _, ingested_bytes = size = read_corpus_size(run.store, run["ingest"])
            packed = run[LAST_CORPUS_STAGE]
            tokens = count_packed_tokens(packed, "train", packed.get_setting("context"))
            if ingested_bytes <= largest_bytes or not tokens:
                continue
            sizes = {}
            for label in labels:
                stage_size = (
                    read_corpus_size(run.store, run[label]) if label in run.stages else size
                )
                size = stage_size if stage_size[1] else size
                sizes[label] = (stage_size[0] / tokens, stage_size[1] / tokens)
            largest_bytes, sizes_per_token = ingested_bytes, sizes
    return sizes_per_token


def plan_stage(
    label: str,
    measurements: Sequence[StageMeasurement],
    *,
    documents: float,
    text_bytes: float,
    workers: int,
) -> PlannedStage:
    """Plan a stage from its measurements.

    Args:
        label: The label of the stage.
        measurements: What the runs measured.
        documents: Number of documents that the stage will read.
        text_bytes: Bytes of their text.
        workers: Number of workers on all hosts.
    """
    reason = NONLINEAR_STAGES.get(label, "")
    if not measurements:
        return PlannedStage(
            label, documents=documents, text_bytes=text_bytes, nonlinear_reason=reason
        )
    costs = StageCosts.fit(measurements)
    size = costs.choose_size(documents, text_bytes)
    largest = costs.largest_measurement
    factor = text_bytes / largest.text_bytes if costs.basis != "run" else 1.0
    predicted = {name: fit.predict(size) for name, fit in costs.fits.items()}
    # A larger corpus has more partitions of the same size, so more items.
    used_workers = max(1, min(workers, math.floor(largest.parallel_items * max(1.0, factor))))
    seconds = predicted["serial_seconds"] + predicted["worker_seconds"].scale(1 / used_workers)
    exponent = costs.measure_growth_exponent()
    if reason and exponent is not None and exponent > 1 and seconds.high is not None and factor > 1:
        growth = factor ** (exponent - 1)
        seconds = CostRange(seconds.value, seconds.low, max(seconds.high, seconds.value * growth))
    return PlannedStage(
        label,
        costs.basis,
        tuple(row.run for row in costs.measurements),
        documents,
        text_bytes,
        largest.text_bytes,
        factor,
        seconds,
        predicted["serial_seconds"],
        used_workers,
        predicted["processor_seconds"],
        predicted["main_memory_bytes"],
        max(row.worker_memory_bytes for row in measurements),
        predicted["output_bytes"],
        predicted["temporary_bytes"],
        exponent,
        reason,
    )


def sum_ranges(ranges: Sequence[CostRange | None]) -> CostRange:
    """Add up the costs that are known."""
    return sum((cost for cost in ranges if cost is not None), CostRange(0.0))


def summarize_runs(measurements: Mapping[str, Sequence[StageMeasurement]]) -> list[Report]:
    """List the measured runs, smallest first: id, host, bytes of text and number of stages."""
    rows: dict[str, Report] = {}
    for measurement in (row for stage_rows in measurements.values() for row in stage_rows):
        row = rows.setdefault(
            measurement.run,
            {"run": measurement.run, "host": measurement.host, "text_bytes": 0, "stages": 0},
        )
        row["text_bytes"] = max(row["text_bytes"], measurement.text_bytes)
        row["stages"] += 1
    return sorted(rows.values(), key=lambda row: (row["text_bytes"], row["run"]))


def summarize_corpus(stages: Sequence[PlannedStage]) -> Report:
    """Add up what the stages take; peaks of memory and temporary files are the largest ones."""
    largest_main_memory = max(
        stages, key=lambda stage: stage.main_memory_bytes.value if stage.main_memory_bytes else 0.0
    )
    return {
        "documents": stages[0].documents,
        "text_bytes": stages[0].text_bytes,
        "seconds": asdict(sum_ranges([stage.seconds for stage in stages])),
        "serial_seconds": asdict(sum_ranges([stage.serial_seconds for stage in stages])),
        "processor_seconds": asdict(sum_ranges([stage.processor_seconds for stage in stages])),
        "output_bytes": asdict(sum_ranges([stage.output_bytes for stage in stages])),
        "temporary_bytes": max(
            stage.temporary_bytes.value for stage in stages if stage.temporary_bytes
        ),
        "main_memory_bytes": asdict(largest_main_memory.main_memory_bytes or CostRange(0.0)),
        "main_memory_stage": largest_main_memory.label,
        "worker_memory_bytes": max(stage.worker_memory_bytes for stage in stages),
    }


def find_memory_problems(stages: Sequence[PlannedStage]) -> Iterator[ForecastProblem]:
    """Yield the stages that need more memory than a host like this machine has."""
    memory = total_memory_bytes()
    for stage in stages:
        if stage.label == "find_repeats":
            try:
                check_memory(math.ceil(stage.text_bytes), memory)
            except HallmarkError as error:
                yield ForecastProblem(f"stage find_repeats: {error}", is_certain=True)
    largest = max(
        (stage for stage in stages if stage.main_memory_bytes),
        key=lambda stage: stage.main_memory_bytes.value if stage.main_memory_bytes else 0.0,
    )
    if largest.main_memory_bytes and largest.main_memory_bytes.value > memory:
        yield ForecastProblem(
            f"the main process needs about {largest.main_memory_bytes.value / 1e9:,.0f} GB of "
            f"memory by the end of {largest.label}, but this machine has {memory / 1e9:,.1f} GB; "
            "start the run on a host with more memory, or split the corpus"
        )


def find_measurement_gaps(
    stages: Sequence[PlannedStage], measuring_command: str
) -> Iterator[ForecastProblem]:
    """Yield what was not measured, or at sizes far below the planned one."""
    unmeasured = [stage.label for stage in stages if not stage.runs]
    if unmeasured:
        yield ForecastProblem(
            f"no run measured {', '.join(unmeasured)} with the settings of this config, so the "
            f"estimates do not include {'it' if len(unmeasured) == 1 else 'them'}; run the config: "
            f"{measuring_command}"
        )
    growing = [stage for stage in stages if stage.basis in ("byte", "document")]
    if growing:
        farthest = max(growing, key=lambda stage: stage.extrapolation_factor)
        if farthest.extrapolation_factor > MAX_SAFE_FACTOR:
            yield ForecastProblem(
                f"the plan extrapolates by a factor of {farthest.extrapolation_factor:,.0f}: the "
                f"largest run that measured {farthest.label} read "
                f"{farthest.largest_measured_bytes / 1e6:,.1f} MB of text"
            )
        if min(stage.largest_measured_bytes for stage in growing) < MIN_MEASURED_BYTES:
            yield ForecastProblem(
                "the measured runs are too small for reliable estimates; run the config on at "
                f"least 1 GB of text: {measuring_command}"
            )
        single = [stage.label for stage in growing if stage.seconds and stage.seconds.low is None]
        if single:
            yield ForecastProblem(
                f"only one run measured {', '.join(single)}, so these times have no range, "
                "and fixed costs are scaled in proportion to the size; also run the config at a "
                "second size"
            )
    for stage in growing:
        if stage.nonlinear_reason:
            growth = (
                "its growth was not measured, because the runs have nearly the same size"
                if stage.growth_exponent is None
                else "between the largest two sizes, its time grew in proportion to the text size "
                f"to the power of {stage.growth_exponent:.2f}"
            )
            yield ForecastProblem(
                f"the time needed for {stage.label} may not grow in proportion to the text: "
                f"{stage.nonlinear_reason}; {growth}"
            )


def find_scaling_limits(config: Config, hosts: int) -> Iterator[ForecastProblem]:
    """Yield what several hosts need, and what of them was not measured."""
    if hosts == 1:
        return
    if config.mapper != "ray":
        yield ForecastProblem(
            f"mapper is {config.mapper}, which uses one host; set mapper to ray to use "
            f"{format_count(hosts, 'host')}"
        )
    yield ForecastProblem(
        "all measured runs used a single host, so the speed of a shared file system and network "
        "was not measured"
    )
