"""What a machine can do, measured before training begins."""

import platform
import subprocess
import sys

import pytest
import torch

from model.training import hardware

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (1e12, [1024] * 3),  # all agree
        (4e9, [1024] * 2),  # half a second each: a second holds two
        (1e9, [256] * 3),  # a large one would take two seconds
        (1e7, [256]),
    ],
)
def test_the_ceiling_of_a_slow_processor_takes_a_second_to_measure(monkeypatch, rate, expected):
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
        ([30, 10, 20, 10.05, 11, 10.09, 9], 6),  # three within a hundredth of the least
        ([20, 20.3, 20.3, 10, 10.2, 10.3, 10.4, 10.5, 10.6, 9.5, 1], 10),  # no three
        ([20, 20, 10, 10, 9, 20, 9.05, 9.05], 8),  # the first two agreed, and were slow
    ],
)
def test_the_ceiling_is_measured_until_three_agree(monkeypatch, milliseconds, used):
    times, large = iter(milliseconds), []

    def product(matrix):
        if len(matrix) == 256:
            return 1e-6
        large.append(next(times) / 1000)
        return large[-1]

    monkeypatch.setattr(hardware, "_time_square_product", product)
    found = hardware.measure_matmul_flops_per_second(CPU, torch.float32)
    assert found == pytest.approx(2 * 1024**3 / min(large))
    assert len(large) == used


def test_the_ceiling_is_that_of_a_product(monkeypatch):
    """Real ones: the best that was seen, and training's own draws are as they were."""
    before = torch.get_rng_state()
    seen = []
    real = hardware._time_square_product

    def product(matrix):
        seen.append((len(matrix), real(matrix)))
        return seen[-1][1]

    monkeypatch.setattr(hardware, "_time_square_product", product)
    found = hardware.measure_matmul_flops_per_second(CPU, torch.float32)
    assert found == max(2 * size**3 / seconds for size, seconds in seen[3:])
    assert torch.equal(torch.get_rng_state(), before)


FAULTS = """
import sys, torch, resource
from model.training.hardware import retain_freed_memory
if sys.argv[1] == "kept":
    retain_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.ones(40 << 18)  # freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_that_was_freed_is_used_again_without_asking_the_system():
    """40 MiB are 10,240 pages, and 40 times as many if they come from the system each time. Where a
    block is kept, one that is aligned otherwise may still want room of its own now and then."""
    found = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, how], capture_output=True, check=True, text=True
            ).stdout
        )
        for how in ("given back", "kept")
    }
    assert found["given back"] > 0.9 * 40 * 10240  # else there is nothing to keep
    assert found["kept"] < 0.5 * 40 * 10240
