"""What a machine can do, measured before training begins."""

import pytest
import torch

from model.training import machine

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (1e12, [1024] * 10),
        (4e9, [1024] * 2),  # half a second each: a second holds two
        (1e9, [256] * 10),  # a large one would take two seconds
        (1e7, [256]),
    ],
)
def test_the_ceiling_of_a_slow_processor_takes_a_second_to_measure(monkeypatch, rate, expected):
    sizes = []

    def product(size, *_):
        sizes.append(size)
        return 2 * size**3 / rate

    monkeypatch.setattr(machine, "_product", product)
    assert machine.matmul_ceiling(CPU, torch.bfloat16) == pytest.approx(rate)
    assert sizes == [256] * 3 + expected


def test_the_ceiling_is_that_of_a_product(monkeypatch):
    """Real ones: the best that was seen, and training's own draws are as they were."""
    before = torch.get_rng_state()
    seen = []
    real = machine._product

    def product(size, *how):
        seen.append((size, real(size, *how)))
        return seen[-1][1]

    monkeypatch.setattr(machine, "_product", product)
    found = machine.matmul_ceiling(CPU, torch.float32)
    assert found == max(2 * size**3 / seconds for size, seconds in seen[3:])
    assert torch.equal(torch.get_rng_state(), before)
