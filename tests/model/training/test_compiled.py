"""Compiled training on the CPU: whether it compiles, and how often."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.hardware import should_compile
from hallmark.model.training.parallel import DistributedWorld
from tests.model.oracles import tiny, toy_rows

CPU = torch.device("cpu")


def test_the_cpu_compiles_only_if_configured():
    assert not should_compile(None, CPU, skip_by_default=False)
    assert should_compile(True, CPU, skip_by_default=True)


@pytest.mark.parametrize("triton", [True, False])
def test_a_gpu_compiles_by_default_if_triton_is_installed_and_the_gain_is_known(
    monkeypatch, triton
):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: triton)
    gpu = torch.device("cuda")
    assert should_compile(None, gpu, skip_by_default=False) == triton
    assert not should_compile(None, gpu, skip_by_default=True)
    assert not should_compile(False, gpu, skip_by_default=False)
    assert should_compile(True, gpu, skip_by_default=True)


@pytest.fixture
def graphs(monkeypatch):
    """Record the input sizes of each compiled graph.

    The graphs run eagerly, which needs no C++ compiler and little time.
    """
    input_sizes = []

    def backend(graph, inputs):
        input_sizes.append([tuple(i.shape) for i in inputs if isinstance(i, torch.Tensor)])
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda m, options=None, **options_: compile_(m, backend=backend, **options_),
    )
    torch._dynamo.reset()
    yield input_sizes
    torch._dynamo.reset()


def test_training_compiles_for_each_shape_and_validation_does_not_compile(graphs):
    """With dynamic shapes, torch would compile slower graphs for a second batch size."""
    model, plain = tiny().train(), tiny().train()
    loss = DistributedWorld().shard_model_and_wrap_loss(
        model, "ddp", is_compiled=True, z_loss=0.0, has_few_shapes=True
    )
    rows = toy_rows(16, 16, 61).astype(np.int64)
    small, large = build_causal_batch(rows[:4]), build_causal_batch(rows)
    loss(small).backward()
    graph_count = len(graphs)
    assert graph_count
    model.eval()
    model.compute_token_losses(large)  # the model itself is not compiled
    model.train()
    for _ in range(2):
        loss(small).backward()
    assert len(graphs) == graph_count
    for _ in range(3):
        plain.compute_loss_sum(small).backward()
    for compiled_parameter, plain_parameter in zip(
        model.parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(
            compiled_parameter.grad, plain_parameter.grad, atol=1e-5, rtol=1e-4
        )
    loss(large)
    assert len(graphs) > graph_count
    assert all(isinstance(n, int) for sizes in graphs for shape in sizes for n in shape)


def test_batches_of_many_lengths_share_a_graph_with_variable_lengths(graphs):
    """Otherwise each length would be compiled, until torch gives up."""
    model = tiny().train()
    loss = DistributedWorld().shard_model_and_wrap_loss(
        model, "ddp", is_compiled=True, z_loss=0.0, has_few_shapes=False
    )
    rows = toy_rows(4, 16, 61).astype(np.int64)
    for length in (7, 9):  # the second length makes torch treat lengths as variables
        loss(build_causal_batch(rows[:, :length])).backward()
    graph_count = len(graphs)
    for length in (8, 11, 13, 16):
        loss(build_causal_batch(rows[:, :length])).backward()
    assert len(graphs) == graph_count
