"""Plan a run of any size: how long it takes on a number of hosts, with how much memory and disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hallmark.flows.commands.forecast_text import format_byte_count
from hallmark.flows.commands.options import (
    JsonOption,
    OverridesOption,
    StoreOption,
    print_result,
)
from hallmark.flows.console import format_duration
from hallmark.reports.page.figures import format_number
from hallmark.tasks.contract import UsageError, format_count

Report = dict[str, Any]

#: What the letter at the end of a number of tokens means.
MULTIPLIER_BY_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

#: The largest numbers that can be planned.
MAX_TOKENS, MAX_HOSTS, MAX_DEVICES, MAX_TFLOPS = 10**18, 10**6, 10**4, 10**6

#: Factor of extrapolation from which no decimals are shown.
MIN_ROUNDED_FACTOR = 10

#: Number of runs that are named.
MAX_LISTED_RUNS = 4


def plan(
    config: str = "demo",
    *,
    tokens: str,
    hosts: str = "1",
    devices_per_host: str = "1",
    device_tflops: str | None = None,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the time, memory and disk space that a run of any size needs on any number of hosts,
    using data from earlier runs.

    The costs per byte or document come from the telemetry of earlier runs of the same stages with
    the same settings. Ends with exit code 1 if a stage cannot process a corpus of this size.

    Parameters
    ----------
    config
        A .toml file, or the name of a config that comes with Hallmark.
    tokens
        Number of tokens that the model is trained on, each once, such as 1T, 1.5G or 300M.
    hosts
        Number of hosts, each with as many workers as the config sets.
    devices_per_host
        Number of devices, such as GPUs, that each host has for the training.
    device_tflops
        Peak speed of such a device in 10^12 operations per second. The time of the training is then
        computed from the FLOPs of the model, even if earlier runs measured it.
    """
    from hallmark.flows.forecast.scale_plan import plan_run

    report = plan_run(
        config,
        overrides or [],
        store,
        tokens=parse_amount("--tokens", tokens, MAX_TOKENS),
        hosts=parse_whole_number("--hosts", hosts, MAX_HOSTS),
        devices_per_host=parse_whole_number("--devices-per-host", devices_per_host, MAX_DEVICES),
        device_tflops=(
            None
            if device_tflops is None
            else parse_amount("--device-tflops", device_tflops, MAX_TFLOPS, suffixes=("",))
        ),
    )
    print_result(report, as_json, render_plan)
    if report["will_fail"]:
        raise SystemExit(1)


def parse_amount(
    option: str,
    text: str,
    largest: int,
    suffixes: tuple[str, ...] = (*MULTIPLIER_BY_SUFFIX,),
) -> float:
    """Parse a positive number, which may end with one of the suffixes.

    Raises:
        UsageError: It is no such number, or too large.
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([A-Z]?)", text, re.ASCII)
    if match is None or match[2] not in suffixes:
        example = ", such as 1T, 1.5G, 300M or 20K" if len(suffixes) > 1 else ", such as 989"
        raise UsageError(f"{option} is {text!r:.60}, but must be a positive number{example}")
    amount = float(match[1]) * MULTIPLIER_BY_SUFFIX[match[2]]
    if not 0 < amount <= largest:
        raise UsageError(f"{option} is {text!r:.60}, but must be above 0 and at most {largest:,}")
    return amount


def parse_whole_number(option: str, text: str, largest: int) -> int:
    """Parse a whole number from 1 to ``largest``; raise UsageError if it is none."""
    if not re.fullmatch(r"[0-9]{1,20}", text, re.ASCII) or not 1 <= int(text) <= largest:
        raise UsageError(
            f"{option} is {text!r:.60}, but must be a whole number from 1 to {largest:,}"
        )
    return int(text)


def render_plan(report: Report) -> str:
    """Format the report of ``plan_run`` for a terminal."""
    heading = (
        f"plan for {report['config']}: {format_count(round(report['tokens']), 'training token')} "
        f"on {format_count(report['hosts'], 'host')} with "
        f"{format_count(report['workers_per_host'], 'worker')} each\n"
        f"store {report['store']}\n{_render_runs(report['runs'])}"
    )
    blocks = [heading, _render_stages(report["stages"]), _render_corpus(report["corpus"])]
    blocks += [_render_training(report["training"])]
    blocks += [
        f"total time: about {_format_range(report['seconds'], format_duration)}, excluding the "
        "audits"
    ]
    warnings = [
        f"{'WILL FAIL' if warning['is_certain'] else 'warning'}: {warning['message']}"
        for warning in report["warnings"]
    ]
    return "\n\n".join([*blocks, *(["\n".join(warnings)] if warnings else [])])


def _render_runs(runs: list[Report]) -> str:
    hosts = {run["host"] for run in runs}
    sizes = [format_byte_count(runs[index]["text_bytes"]) for index in (0, -1)]
    size_range = sizes[0] if sizes[0] == sizes[1] else f"{sizes[0]} to {sizes[1]}"
    shown = ", ".join(run["run"] for run in runs[-MAX_LISTED_RUNS:])
    hidden_count = len(runs) - MAX_LISTED_RUNS
    return (
        f"unit costs measured in {format_count(len(runs), 'run')} on "
        f"{format_count(len(hosts), 'host')}, {size_range} of text: {shown}"
        + (f" and {hidden_count} smaller" if hidden_count > 0 else "")
    )


def _render_stages(stages: list[Report]) -> str:
    rows = [("stage", "time", "range", "in one process", "costs", "runs", "extrapolated")]
    for stage in stages:
        if stage["seconds"] is None:
            rows.append((stage["label"], "not measured", "", "", "", "0", ""))
            continue
        factor = stage["extrapolation_factor"]
        rows.append(
            (
                stage["label"],
                format_duration(stage["seconds"]["value"]),
                _format_bounds(stage["seconds"], format_duration),
                format_duration(stage["serial_seconds"]["value"]),
                f"per {stage['basis']}" + (", not linear" if stage["nonlinear_reason"] else ""),
                str(len(stage["runs"])),
                ""
                if stage["basis"] == "run"
                else f"{factor:,.{0 if factor >= MIN_ROUNDED_FACTOR else 1}f} times",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _render_corpus(corpus: Report) -> str:
    seconds, serial = corpus["seconds"]["value"], corpus["serial_seconds"]["value"]
    serial_share = format_number(serial / seconds, "share") if seconds else "0 %"
    temporary_bytes = format_byte_count(corpus["temporary_bytes"])
    return "\n".join(
        [
            f"corpus: {format_byte_count(corpus['text_bytes'])} of source text in about "
            f"{format_count(round(corpus['documents']), 'document')}",
            f"  time: about {_format_range(corpus['seconds'], format_duration)}, including "
            f"{format_duration(serial)} ({serial_share}) in a single process, which additional "
            "hosts do not speed up",
            "  processor time: about "
            f"{_format_range(corpus['processor_seconds'], format_duration)}",
            f"  memory: at most {format_byte_count(corpus['worker_memory_bytes'])} per worker (as "
            "measured, because the partition size stays the same); main process about "
            f"{_format_range(corpus['main_memory_bytes'], format_byte_count)}, by the end of "
            f"{corpus['main_memory_stage']}",
            f"  disk: artifacts about {_format_range(corpus['output_bytes'], format_byte_count)}, "
            f"temporary files about {temporary_bytes}",
        ]
    )


def _render_training(training: Report) -> str:
    speed = _format_range(training["tokens_per_second"], lambda value: f"{value:,.0f}")
    if training["basis"] == "measured":
        basis = (
            f"measured on {training['device']} in {format_count(len(training['runs']), 'run')}: "
            f"{', '.join(training['runs'][-MAX_LISTED_RUNS:])}"
        )
    else:
        utilisation = training["utilisation"]
        basis = (
            f"not measured: {training['flops_per_token']:.3g} FLOPs per token on a "
            f"{training['device_tflops']:g} TFLOP/s device ({training['device']}), with an assumed "
            f"utilisation of {utilisation['value']:.0%} ({utilisation['low']:.0%} to "
            f"{utilisation['high']:.0%})"
        )
    return "\n".join(
        [
            f"training: {format_count(training['parameters'], 'parameter')}, "
            f"{format_count(training['steps'], 'step')} on "
            f"{format_count(training['devices'], 'device')}",
            f"  time: about {_format_range(training['seconds'], format_duration)}",
            f"  speed: {speed} tokens per second per device; {basis}",
            f"  memory: {format_byte_count(training['memory_bytes'])} for weights, gradients and "
            "optimizer in each process, plus activations; disk: "
            f"{format_byte_count(training['checkpoint_bytes'])} per checkpoint",
        ]
    )


def _format_bounds(cost: Report, format_value: Callable[[float], str]) -> str:
    if cost["low"] is None:
        return "unknown"
    return f"{format_value(cost['low'])} to {format_value(cost['high'])}"


def _format_range(cost: Report, format_value: Callable[[float], str]) -> str:
    """Format a cost with its range, if it has one."""
    bounds = "" if cost["low"] is None else f" ({_format_bounds(cost, format_value)})"
    return f"{format_value(cost['value'])}{bounds}"
