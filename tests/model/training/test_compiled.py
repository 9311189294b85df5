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
    assert not choose_compile(None, CPU, unmeasured=False)
    assert choose_compile(True, CPU, unmeasured=True)


@pytest.mark.parametrize("triton", [True, False])
def test_on_a_gpu_it_is_compiled_where_triton_is_there_and_its_gain_is_known(monkeypatch, triton):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: triton)
    gpu = torch.device("cuda")
    assert choose_compile(None, gpu, unmeasured=False) == triton
    assert not choose_compile(None, gpu, unmeasured=True)
    assert not choose_compile(False, gpu, unmeasured=False)
    assert choose_compile(True, gpu, unmeasured=True)


@pytest.fixture
def graphs(monkeypatch):
    """The sizes that each graph was compiled for; torch's eager backend runs them, which needs no
    C++ compiler and no minute."""
    found = []

    def backend(graph, inputs):
        found.append([tuple(i.shape) for i in inputs if isinstance(i, torch.Tensor)])
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda m, options=None, **given: compile_(m, backend=backend, **given)
    )
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def test_training_compiles_for_its_few_shapes_and_validation_not_at_all(graphs):
    """Of a second size of batches torch would make the size a variable of slower graphs."""
    model, plain = tiny().train(), tiny().train()
    loss = World().wrap(model, "ddp", compiled=True, z_loss=0.0, few_shapes=True)
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


def test_batches_of_many_lengths_share_a_graph(graphs):
    """Whose lengths are variables: else each length costs its own, until torch gives up."""
    model = tiny().train()
    loss = World().wrap(model, "ddp", compiled=True, z_loss=0.0, few_shapes=False)
    rows = toy_rows(4, 16, 61).astype(np.int64)
    for length in (7, 9):  # the second tells torch that they differ
        loss(causal(rows[:, :length])).backward()
    known = len(graphs)
    for length in (8, 11, 13, 16):
        loss(causal(rows[:, :length])).backward()
    assert len(graphs) == known
