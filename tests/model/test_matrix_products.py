"""Matrix products by the fastest kernel, against products in fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from hallmark.model import kernels
from hallmark.model.kernels import CPU_ONEDNN_PRODUCT, HAS_ONEDNN, apply_linear, multiply_transposed
from hallmark.model.reference_kernels import use_reference_kernels
from tests.model.oracles import logits, random_tensor, tiny

needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="needs AVX-512 and oneDNN")
#: Leading sizes of x, its last size, rows of the weight.
SHAPES = [((8, 64), 96, 256), ((700,), 48, 33), ((3, 5, 7), 129, 515), ((2, 3), 4, 5)]


def was_computed_by_onednn(y):
    return "hallmark" in str(y.grad_fn)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_and_gradients_agree_with_fp64(shape, bias):
    leading, inputs, outputs = shape
    inputs_and_parameters = [
        random_tensor(*leading, inputs),
        random_tensor(outputs, inputs, seed=1),
    ] + [random_tensor(outputs)] * bias
    up = random_tensor(*leading, outputs)
    fast = [tensor.clone().requires_grad_() for tensor in inputs_and_parameters]
    slow = [tensor.double().requires_grad_() for tensor in inputs_and_parameters]
    y, expected = apply_linear(*fast), F.linear(*slow)
    large = fast[0].numel() * outputs >= CPU_ONEDNN_PRODUCT
    assert was_computed_by_onednn(y) == (HAS_ONEDNN and large)
    y.backward(up)
    expected.backward(up.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-3)


def test_only_requested_gradients_are_computed():
    x, weight = random_tensor(64, 256), random_tensor(256, 256, seed=1)
    for of_x, of_weight in ((True, False), (False, True)):
        one, other = x.clone().requires_grad_(of_x), weight.clone().requires_grad_(of_weight)
        apply_linear(one, other).sum().backward()  # the gradient is one number, expanded
        if of_x:
            torch.testing.assert_close(one.grad, weight.sum(0).expand(64, 256))
        if of_weight:
            torch.testing.assert_close(other.grad, x.sum(0).expand(256, 256))


def test_slices_transposes_and_expanded_matrices_are_multiplied_correctly():
    """Attention slices the fused matrix for queries, and the loss transposes the embeddings."""
    x, weight = random_tensor(32, 192), random_tensor(768, 192, seed=1)
    for one, other in (
        (x, weight[192:576]),
        (x.repeat(1, 4), weight.t()),
        (random_tensor(192, 32).t(), weight),
        (x[:1].expand(64, 192), weight),
        (x[::2], weight),
    ):
        torch.testing.assert_close(
            apply_linear(one, other), F.linear(one, other), rtol=1e-4, atol=1e-4
        )


@needs_onednn
def test_products_do_not_depend_on_the_number_of_threads():
    """A training resumed with another number of threads gives the same bits."""
    factors, threads = (
        [random_tensor(512, 256), random_tensor(1024, 256, seed=1)],
        torch.get_num_threads(),
    )
    results = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            x, weight = (tensor.clone().requires_grad_() for tensor in factors)
            y = apply_linear(x, weight)
            y.sin().sum().backward()
            results.append((y, x.grad, weight.grad))
    finally:
        torch.set_num_threads(threads)
    assert was_computed_by_onednn(results[0][0])
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_use_the_default_kernel(dtype):
    x, weight = (
        random_tensor(64, 256).to(dtype).requires_grad_(),
        random_tensor(256, 256, seed=1).to(dtype),
    )
    y = apply_linear(x, weight)
    assert y.dtype == dtype and not was_computed_by_onednn(y)
    assert torch.equal(y, F.linear(x, weight))


def test_autocast_applies_to_products():
    x, weight = random_tensor(64, 256), random_tensor(256, 256, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        assert apply_linear(x, weight).dtype == torch.bfloat16


def test_a_vector_is_multiplied_like_a_row():
    x, weight = random_tensor(512), random_tensor(4096, 512, seed=1)
    torch.testing.assert_close(apply_linear(x, weight), weight @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 128])
def test_multiply_transposed_uses_the_given_memory_unless_onednn_computes_it(rows):
    x, weight = random_tensor(rows, 128), random_tensor(256, 128)
    out = torch.empty(rows, 256)
    product = multiply_transposed(x, weight, out)
    torch.testing.assert_close(product, x @ weight.t(), rtol=1e-4, atol=1e-4)
    uses_own_memory = HAS_ONEDNN and x.numel() * 256 >= CPU_ONEDNN_PRODUCT
    assert (product.data_ptr() == out.data_ptr()) == (not uses_own_memory)


@needs_onednn
def test_compilers_can_trace_the_custom_operation():
    factors = (
        random_tensor(3, 64, 256).requires_grad_(),
        random_tensor(256, 256, seed=1).requires_grad_(),
    )
    torch.library.opcheck(kernels._multiply_as_custom_op, (*factors, None))
    traced = torch.compile(apply_linear, backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(*factors), apply_linear(*factors))


@needs_onednn
def test_flops_of_the_custom_operation_equal_those_of_the_formula():
    counts = []
    for product in (apply_linear, F.linear):
        x, weight = (
            random_tensor(5, 64, 256).requires_grad_(),
            random_tensor(512, 256).requires_grad_(),
        )
        with FlopCounterMode(display=False) as counter:
            product(x, weight).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts == [3 * 2 * 5 * 64 * 256 * 512] * 2


@needs_onednn
def test_one_compiled_program_serves_any_number_of_rows():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    traced, weight = (
        torch.compile(apply_linear, backend=backend, dynamic=True),
        random_tensor(768, 256),
    )
    for rows in (3, 5, 64, 4096):
        x = random_tensor(rows, 256)
        torch.testing.assert_close(traced(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1


def test_the_model_uses_apply_linear_and_the_reference_f_linear(monkeypatch):
    calls = []
    monkeypatch.setattr(
        kernels, "apply_linear", lambda *arguments: calls.append(arguments) or F.linear(*arguments)
    )
    model, ids = tiny(), torch.tensor([[0, 7, 9, 30]])
    layers = [module for module in model.modules() if isinstance(module, kernels.Linear)]
    fast = logits(model, ids)
    assert len(calls) == len(layers) == 4 * model.config.n_layers + 1
    with use_reference_kernels(model):
        torch.testing.assert_close(logits(model, ids), fast)
        assert {layer.kernel for layer in layers} == {F.linear}
    assert len(calls) == len(layers) and {layer.kernel for layer in layers} == {
        kernels.apply_linear
    }


@needs_onednn
def test_products_without_gradients_are_bitwise_equal():
    x, weight, bias = (
        random_tensor(64, 256),
        random_tensor(768, 256).requires_grad_(),
        random_tensor(768),
    )
    with_gradient = apply_linear(x, weight, bias)
    with torch.no_grad():
        without_gradient = apply_linear(x, weight, bias)
    assert with_gradient.requires_grad and not without_gradient.requires_grad
    assert torch.equal(without_gradient, with_gradient)


@needs_onednn
@pytest.mark.parametrize("rows", [1, 2, 16, 64, 1000])
@pytest.mark.parametrize("packed_for", [16, 64])
def test_packed_weights_serve_any_number_of_rows(rows, packed_for):
    """This includes slices of a weight, two of which begin at the same address."""
    weight, bias, packed = random_tensor(8192, 256, seed=1), random_tensor(8192), {}
    with torch.inference_mode(), kernels.reuse_packed_weights(packed):
        for part in (weight, weight[:4096], weight[4096:]):
            for x in (random_tensor(packed_for, 256), random_tensor(rows, 256, seed=2)):
                product = apply_linear(x, part, bias[: len(part)])
                torch.testing.assert_close(
                    product, F.linear(x, part, bias[: len(part)]), rtol=1e-4, atol=1e-4
                )
    assert len(packed) == 3


@needs_onednn
def test_weights_are_packed_once_and_only_within_the_context():
    x, weights, packed = (
        random_tensor(64, 256),
        [random_tensor(512, 256, seed=seed) for seed in (1, 2)],
        {},
    )
    with torch.inference_mode():
        apply_linear(x, weights[0])
        assert not packed
        with kernels.reuse_packed_weights(packed):
            for _ in range(3):
                for weight in weights:
                    apply_linear(x, weight)
        kept = [pair[0] for pair in packed.values()]
        assert len(kept) == 2 and all(map(torch.equal, kept, weights))
        weights[0].mul_(2)  # the packed weights are from before
        expected = x @ weights[0].t()
        torch.testing.assert_close(apply_linear(x, weights[0]), expected, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_a_temporary_weight_is_not_mistaken_for_the_next_one():
    """The next weight would have the same address."""
    x = random_tensor(64, 256)
    with torch.inference_mode(), kernels.reuse_packed_weights({}):
        for seed in range(1, 6):
            weight = random_tensor(512, 256, seed=seed)
            torch.testing.assert_close(
                apply_linear(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4
            )
            del weight


@needs_onednn
def test_packed_weights_are_used_for_no_other_product():
    """A transposed square weight has the same address; gradients and bf16 use other kernels."""
    x, weight = random_tensor(4096, 64), random_tensor(64, 64, seed=1)
    with kernels.reuse_packed_weights({}):
        with torch.no_grad():
            for matrix in (weight, weight.t(), weight):
                torch.testing.assert_close(
                    apply_linear(x, matrix), x @ matrix.t(), rtol=1e-4, atol=1e-4
                )
        assert apply_linear(x, weight.requires_grad_()).requires_grad
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert apply_linear(x, weight).dtype == torch.bfloat16
