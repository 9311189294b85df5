"""Compiled training, rehearsed on the CPU: whether it compiles, and that it does so once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.objectives import build_causal_batch
from model.training.hardware import should_compile
from model.training.parallel import DistributedWorld
from tests.model.oracles import tiny, toy_rows

CPU = torch.device("cpu")


def test_nothing_is_compiled_on_the_cpu_unless_it_is_asked_for():
    assert not should_compile(None, CPU, is_unmeasured=False)
    assert should_compile(True, CPU, is_unmeasured=True)


@pytest.mark.parametrize("triton", [True, False])
def test_on_a_gpu_it_is_compiled_where_triton_is_there_and_its_gain_is_known(monkeypatch, triton):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: triton)
    gpu = torch.device("cuda")
    assert should_compile(None, gpu, is_unmeasured=False) == triton
    assert not should_compile(None, gpu, is_unmeasured=True)
    assert not should_compile(False, gpu, is_unmeasured=False)
    assert should_compile(True, gpu, is_unmeasured=True)


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
    loss = DistributedWorld().wrap_loss(
        model, "ddp", is_compiled=True, z_loss=0.0, has_few_shapes=True
    )
    rows = toy_rows(16, 16, 61).astype(np.int64)
    small, large = build_causal_batch(rows[:4]), build_causal_batch(rows)
    loss(small).backward()
    first = len(graphs)
    assert first
    model.eval()
    model.compute_token_losses(large)  # the raw model: no graph
    model.train()
    for _ in range(2):
        loss(small).backward()
    assert len(graphs) == first
    for _ in range(3):
        plain.compute_loss_sum(small).backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4)
    loss(large)
    assert len(graphs) > first
    assert all(isinstance(n, int) for sizes in graphs for shape in sizes for n in shape)


def test_batches_of_many_lengths_share_a_graph(graphs):
    """Whose lengths are variables: else each length costs its own, until torch gives up."""
    model = tiny().train()
    loss = DistributedWorld().wrap_loss(
        model, "ddp", is_compiled=True, z_loss=0.0, has_few_shapes=False
    )
    rows = toy_rows(4, 16, 61).astype(np.int64)
    for length in (7, 9):  # the second tells torch that they differ
        loss(build_causal_batch(rows[:, :length])).backward()
    known = len(graphs)
    for length in (8, 11, 13, 16):
        loss(build_causal_batch(rows[:, :length])).backward()
    assert len(graphs) == known
