"""Measurements of the machine before training, and memory of the allocator."""

import platform
import subprocess
import sys

import pytest
import torch

from hallmark.model.training import hardware

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (1e12, [1024] * 3),  # all agree
        (4e9, [1024] * 2),  # half a second each: two fit into a second
        (1e9, [256] * 3),  # a large product would take two seconds
        (1e7, [256]),
    ],
)
def test_measuring_a_slow_processor_takes_a_second(monkeypatch, rate, expected):
    sizes = []

    def product(matrix):
        sizes.append(len(matrix))
        return 2 * len(matrix) ** 3 / rate

    monkeypatch.setattr(hardware, "_time_square_product", product)
    assert hardware.measure_matmul_flops_per_second(CPU, torch.bfloat16) == pytest.approx(rate)
    assert sizes == [256] * 3 + expected


@pytest.mark.parametrize(
    ("milliseconds", "used"),
    [
        ([30, 10, 20, 10.05, 11, 10.09, 9], 6),  # three within 1 % of the shortest
        ([20, 20.3, 20.3, 10, 10.2, 10.3, 10.4, 10.5, 10.6, 9.5, 1], 10),  # no three agree
        ([20, 20, 10, 10, 9, 20, 9.05, 9.05], 8),  # the first two agreed, and were slow
    ],
)
def test_measuring_stops_when_three_times_agree(monkeypatch, milliseconds, used):
    times, large = iter(milliseconds), []

    def product(matrix):
        if len(matrix) == 256:
            return 1e-6
        large.append(next(times) / 1000)
        return large[-1]

    monkeypatch.setattr(hardware, "_time_square_product", product)
    measured = hardware.measure_matmul_flops_per_second(CPU, torch.float32)
    assert measured == pytest.approx(2 * 1024**3 / min(large))
    assert len(large) == used


def test_measured_speed_is_that_of_the_fastest_product(monkeypatch):
    """With real products, and without changing training's random generator."""
    before = torch.get_rng_state()
    timed_products = []
    time_square_product = hardware._time_square_product

    def product(matrix):
        timed_products.append((len(matrix), time_square_product(matrix)))
        return timed_products[-1][1]

    monkeypatch.setattr(hardware, "_time_square_product", product)
    measured = hardware.measure_matmul_flops_per_second(CPU, torch.float32)
    assert measured == max(2 * size**3 / seconds for size, seconds in timed_products[3:])
    assert torch.equal(torch.get_rng_state(), before)


FAULTS = """
import sys, torch, resource
from hallmark.model.training.hardware import retain_freed_memory
if sys.argv[1] == "kept":
    retain_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.ones(40 << 18)  # freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_reused_without_the_system():
    """40 MiB are 10,240 pages, and 40 times as many if they come from the system each time.

    Even with retained memory, a block with another alignment may sometimes need new memory.
    """
    faults = {}
    for mode in ("given back", "kept"):
        command = [sys.executable, "-c", FAULTS, mode]
        result = subprocess.run(command, capture_output=True, check=True, text=True)
        faults[mode] = int(result.stdout)
    assert faults["given back"] > 0.9 * 40 * 10240  # else there is nothing to retain
    assert faults["kept"] < 0.5 * 40 * 10240
