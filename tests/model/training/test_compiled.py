"""Compiled training, rehearsed on the CPU: whether it compiles, and that it does so once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.objectives import causal
from model.training.machine import choose_compile
from model.training.parallel import World
from tests.model.oracles import tiny, toy_rows

CPU = torch.device("cpu")


def test_nothing_is_compiled_on_the_cpu_unless_it_is_asked_for():
    assert not choose_compile(None, CPU, one_shape=True)
    assert choose_compile(True, CPU, one_shape=True)
    assert not choose_compile(False, torch.device("cuda"), one_shape=True)
    assert not choose_compile(None, torch.device("cuda"), one_shape=False)


@pytest.fixture
def graphs(monkeypatch):
    """The sizes that each graph was compiled for; torch's eager backend runs them, which needs no
    C++ compiler and no minute."""
    found = []

    def backend(graph, inputs):
        found.append([tuple(i.shape) for i in inputs if isinstance(i, torch.Tensor)])
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda m, **given: compile_(m, backend=backend, **given))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def test_training_compiles_for_its_one_shape_and_validation_not_at_all(graphs):
    """Of a second size of batches torch would make the size a variable of slower graphs."""
    model, plain = tiny().train(), tiny().train()
    loss = World().wrap(model, "ddp", compiled=True, z_loss=0.0)
    rows = toy_rows(16, 16, 61).astype(np.int64)
    small, large = causal(rows[:4]), causal(rows)
    loss(small).backward()
    first = len(graphs)
    assert first
    model.eval()
    model.token_losses(large)  # the raw model: no graph
    model.train()
    for _ in range(2):
        loss(small).backward()
    assert len(graphs) == first
    for _ in range(3):
        plain.loss(small).backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4)
    loss(large)
    assert len(graphs) > first
    assert all(isinstance(n, int) for sizes in graphs for shape in sizes for n in shape)
