"""Plan a training of any length: steps, time on a number of devices, and memory.

The speed of a device is that of runs that trained the same model. Without one it is computed from
the model's FLOPs, an assumed peak speed, and an assumed share of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hallmark.flows.config import Config
from hallmark.flows.forecast.problems import ForecastProblem
from hallmark.flows.forecast.training_costs import (
    BYTES_PER_NUMBER,
    build_model_config,
    count_parameters_by_group,
    estimate_memory_bytes_by_use,
)
from hallmark.flows.forecast.unit_costs import CostRange
from hallmark.flows.runs import Run
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.tasks.contract import HallmarkError

#: Peak speed of the device that is assumed without a measurement: NVIDIA H100 SXM, dense bf16.
ASSUMED_DEVICE_TFLOPS = 989.0

#: Model FLOPs utilisation that is assumed without a measurement, and its range. Published trainings
#: of large models reach 30 % to 55 % (PaLM 46 %, Llama 3 38 % to 43 %).
ASSUMED_UTILISATION = CostRange(0.4, 0.3, 0.5)


class SpeedMeasurement(NamedTuple):
    """The speed of the steps of a run.

    Attributes:
        run: The id of the run.
        device: "cpu" or "cuda".
        tokens_per_second: Tokens per second and device at each step but the first.
    """

    run: str
    device: str
    tokens_per_second: list[float]


@dataclass(frozen=True)
class TrainingPlan:
    """What a training is expected to take.

    Attributes:
        parameters: Number of parameters of the model.
        steps: Number of steps in which the model reads all tokens once.
        devices: Number of devices.
        basis: "measured" or "computed": where the speed comes from.
        device: The device whose speed this is.
        runs: The runs that measured it.
        tokens_per_second: Tokens per second and device.
        flops_per_token: Floating-point operations per token.
        device_tflops, utilisation: The assumed peak speed and the share of it; None if the speed
            was measured.
        seconds: Expected time.
        memory_bytes: Computed bytes of weights, gradients and optimizer states in each process.
        checkpoint_bytes: Size of the weights of a checkpoint.
    """

    parameters: int
    steps: int
    devices: int
    basis: str
    device: str
    runs: tuple[str, ...]
    tokens_per_second: CostRange
    flops_per_token: float
    device_tflops: float | None
    utilisation: CostRange | None
    seconds: CostRange
    memory_bytes: int
    checkpoint_bytes: int


def plan_training(
    config: Config,
    runs: Sequence[Run],
    tokens: float,
    *,
    devices: int,
    device_tflops: float | None,
) -> TrainingPlan:
    """Plan the training of the config's model on a number of tokens, each read once.

    Args:
        config: The config.
        runs: The runs of the store.
        tokens: Number of tokens.
        devices: Number of devices on all hosts.
        device_tflops: Peak speed of a device; the speed is then computed even if it was measured.
    """
    context = config.pack.context
    model_config = build_model_config(
        config.pretrain.model, config.train_tokenizer.vocab_size, context
    )
    parameter_counts = count_parameters_by_group(model_config)
    flops_per_token = count_flops_per_token(model_config)
    measurements = [] if device_tflops is not None else read_training_speeds(config, runs)
    utilisation: CostRange | None = None
    if measurements:
        basis, device = "measured", measurements[0].device
        speeds = [speed for row in measurements for speed in row.tokens_per_second]
        low, middle, high = map(float, np.quantile(speeds, [0.1, 0.5, 0.9]))
        tokens_per_second = CostRange(middle, low, high)
    else:
        basis, utilisation = "computed", ASSUMED_UTILISATION
        device = "NVIDIA H100" if device_tflops is None else "device"
        device_tflops = ASSUMED_DEVICE_TFLOPS if device_tflops is None else device_tflops
        tokens_per_second = ASSUMED_UTILISATION.scale(device_tflops * 1e12 / flops_per_token)
    assert tokens_per_second.low and tokens_per_second.high
    return TrainingPlan(
        parameter_counts["total"],
        math.ceil(tokens / (config.pretrain.train.batch_size * context)),
        devices,
        basis,
        device,
        tuple(row.run for row in measurements),
        tokens_per_second,
        flops_per_token,
        device_tflops,
        utilisation,
        CostRange(
            tokens / devices / tokens_per_second.value,
            tokens / devices / tokens_per_second.high,
            tokens / devices / tokens_per_second.low,
        ),
        estimate_memory_bytes_by_use(parameter_counts, config.pretrain.train)["total"],
        BYTES_PER_NUMBER * parameter_counts["total"],
    )


def count_flops_per_token(model_config: ModelConfig) -> float:
    """Count the operations of a training step per token; the model is not allocated.

    For an encoder this counts the output layer for every token, which is too much.
    """
    from hallmark.model.interchange.uninitialised import make_uninitialised_model
    from hallmark.model.objectives import build_causal_batch
    from hallmark.model.special_tokens import PAD_ID
    from hallmark.model.training.flops import count_training_flops

    token_rows = np.full((1, model_config.context), PAD_ID + 1, np.int64)
    flops = count_training_flops(
        make_uninitialised_model(model_config), build_causal_batch(token_rows)
    )
    return flops / model_config.context


def read_training_speeds(config: Config, runs: Sequence[Run]) -> list[SpeedMeasurement]:
    """Read the speed of the runs that trained the same model, on GPUs if there are any.

    Damaged or missing artifacts are skipped.
    """
    measurements = []
    for run in runs:
        entry = run.stages.get("pretrain")
        if entry is None or entry["cached"]:
            continue
        with suppress(HallmarkError, ValueError, TypeError):  # damaged settings
            measurement = _read_training_speed(config, run)
            measurements += [measurement] if measurement else []
    on_gpus = [row for row in measurements if row.device != "cpu"]
    return on_gpus or measurements


def _read_training_speed(config: Config, run: Run) -> SpeedMeasurement | None:
    """Read the speed of a run; None if it trained another model or measured nothing."""
    training = run["pretrain"]
    recorded = run.record["config"]
    expected_settings: dict[tuple[str, str], Any] = {
        ("pretrain", "model"): config.pretrain.model_dump(mode="json")["model"],
        ("pack", "context"): config.pack.context,
        ("train_tokenizer", "vocab_size"): config.train_tokenizer.vocab_size,
    }
    for (section, name), expected in expected_settings.items():
        section_settings = recorded.get(section)
        if not isinstance(section_settings, dict) or section_settings.get(name) != expected:
            return None
    if "speed" not in training.manifest["telemetry"]:
        return None
    settings = {
        row["setting"]: row["value"]
        for row in training["settings"].read(["setting", "value"]).to_pylist()
    }
    processes = math.prod(
        max(1, int(json.loads(settings.get(name, "1")))) for name in ("processes", "hosts")
    )
    device = str(json.loads(settings.get("device", '"cpu"')))
    speeds = training.read_telemetry("speed")["tokens_per_second"].to_pylist()[1:]
    # The first step allocates and compiles.
    usable_speeds = [speed / processes for speed in speeds if speed and 0 < speed < math.inf]
    return SpeedMeasurement(run.id, device, usable_speeds) if usable_speeds else None


def find_training_gaps(
    training: TrainingPlan, train_config: TrainConfig
) -> Iterator[ForecastProblem]:
    """Yield what is assumed about the training, and what its config does not fit."""
    if training.basis == "computed":
        yield ForecastProblem(
            "no run trained a model of this size, so the training time is derived from the "
            "number of FLOPs; first train for a few steps on this type of device"
            if training.device == "NVIDIA H100"
            else "the training time is derived from the number of FLOPs, not from a measurement"
        )
    if training.devices > 1:
        yield ForecastProblem(
            f"training is assumed to be {training.devices:,} times as fast on {training.devices:,} "
            "devices, because the time needed to exchange gradients was not measured"
        )
    if train_config.steps != training.steps:
        yield ForecastProblem(
            f"pretrain.train.steps is {train_config.steps:,}, but {training.steps:,} steps are "
            "needed to read all tokens once"
        )
