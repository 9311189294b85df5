"""Products of matrices by the kernel that is fastest for them, against ones in fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from model import kernels, reference
from model.kernels import CPU_ONEDNN_PRODUCT, HAS_ONEDNN, apply_linear, multiply_transposed
from tests.model.oracles import drawn, logits, tiny

needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="needs AVX-512 and oneDNN")
#: Leading sizes of x, its last, rows of the weight.
SHAPES = [((8, 64), 96, 256), ((700,), 48, 33), ((3, 5, 7), 129, 515), ((2, 3), 4, 5)]


def by_onednn(y):
    return "hallmark" in str(y.grad_fn)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_and_its_gradients_are_those_of_fp64(shape, bias):
    leading, inputs, outputs = shape
    given = [drawn(*leading, inputs), drawn(outputs, inputs, seed=1)] + [drawn(outputs)] * bias
    up = drawn(*leading, outputs)
    fast = [tensor.clone().requires_grad_() for tensor in given]
    slow = [tensor.double().requires_grad_() for tensor in given]
    y, expected = apply_linear(*fast), F.linear(*slow)
    large = fast[0].numel() * outputs >= CPU_ONEDNN_PRODUCT
    assert by_onednn(y) == (HAS_ONEDNN and large)
    y.backward(up)
    expected.backward(up.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-3)


def test_gradients_of_what_is_asked_alone():
    x, weight = drawn(64, 256), drawn(256, 256, seed=1)
    for of_x, of_weight in ((True, False), (False, True)):
        one, other = x.clone().requires_grad_(of_x), weight.clone().requires_grad_(of_weight)
        apply_linear(one, other).sum().backward()  # the gradient is one number, expanded
        if of_x:
            torch.testing.assert_close(one.grad, weight.sum(0).expand(64, 256))
        if of_weight:
            torch.testing.assert_close(other.grad, x.sum(0).expand(256, 256))


def test_rows_of_a_weight_and_turned_or_repeated_matrices():
    """As attention takes queries from the matrix of three, and the loss turns the embeddings."""
    x, weight = drawn(32, 192), drawn(768, 192, seed=1)
    for one, other in (
        (x, weight[192:576]),
        (x.repeat(1, 4), weight.t()),
        (drawn(192, 32).t(), weight),
        (x[:1].expand(64, 192), weight),
        (x[::2], weight),
    ):
        torch.testing.assert_close(
            apply_linear(one, other), F.linear(one, other), rtol=1e-4, atol=1e-4
        )


@needs_onednn
def test_it_does_not_depend_on_the_number_of_threads():
    """What is resumed with another number goes on to the bit."""
    given, threads = [drawn(512, 256), drawn(1024, 256, seed=1)], torch.get_num_threads()
    found = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            x, weight = (tensor.clone().requires_grad_() for tensor in given)
            y = apply_linear(x, weight)
            y.sin().sum().backward()
            found.append((y, x.grad, weight.grad))
    finally:
        torch.set_num_threads(threads)
    assert by_onednn(found[0][0])
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_multiplied_as_ever(dtype):
    x, weight = drawn(64, 256).to(dtype).requires_grad_(), drawn(256, 256, seed=1).to(dtype)
    y = apply_linear(x, weight)
    assert y.dtype == dtype and not by_onednn(y)
    assert torch.equal(y, F.linear(x, weight))


def test_autocast_reaches_it():
    x, weight = drawn(64, 256), drawn(256, 256, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        assert apply_linear(x, weight).dtype == torch.bfloat16


def test_one_row_alone_is_a_row():
    x, weight = drawn(512), drawn(4096, 512, seed=1)
    torch.testing.assert_close(apply_linear(x, weight), weight @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 128])
def test_without_gradient_it_is_in_the_memory_given_or_in_its_own(rows):
    x, weight = drawn(rows, 128), drawn(256, 128)
    out = torch.empty(rows, 256)
    found = multiply_transposed(x, weight, out)
    torch.testing.assert_close(found, x @ weight.t(), rtol=1e-4, atol=1e-4)
    own = HAS_ONEDNN and x.numel() * 256 >= CPU_ONEDNN_PRODUCT
    assert (found.data_ptr() == out.data_ptr()) == (not own)


@needs_onednn
def test_it_is_an_operation_that_compilers_can_trace():
    given = drawn(3, 64, 256).requires_grad_(), drawn(256, 256, seed=1).requires_grad_()
    torch.library.opcheck(kernels._multiply_as_custom_op, (*given, None))
    traced = torch.compile(apply_linear, backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(*given), apply_linear(*given))


@needs_onednn
def test_its_operations_are_counted_as_those_of_the_formula():
    counts = []
    for product in (apply_linear, F.linear):
        x, weight = drawn(5, 64, 256).requires_grad_(), drawn(512, 256).requires_grad_()
        with FlopCounterMode(display=False) as counter:
            product(x, weight).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts == [3 * 2 * 5 * 64 * 256 * 512] * 2


@needs_onednn
def test_one_program_serves_few_rows_and_many():
    made = []

    def backend(graph, _):
        made.append(graph)
        return graph.forward

    traced, weight = torch.compile(apply_linear, backend=backend, dynamic=True), drawn(768, 256)
    for rows in (3, 5, 64, 4096):
        x = drawn(rows, 256)
        torch.testing.assert_close(traced(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4)
    assert len(made) == 1


def test_the_model_multiplies_by_it_and_plainly_by_the_formula(monkeypatch):
    calls = []
    monkeypatch.setattr(
        kernels, "apply_linear", lambda *given: calls.append(given) or F.linear(*given)
    )
    model, ids = tiny(), torch.tensor([[0, 7, 9, 30]])
    layers = [module for module in model.modules() if isinstance(module, kernels.Linear)]
    fast = logits(model, ids)
    assert len(calls) == len(layers) == 4 * model.config.n_layers + 1
    with reference.use_reference_kernels(model):
        torch.testing.assert_close(logits(model, ids), fast)
        assert {layer.kernel for layer in layers} == {F.linear}
    assert len(calls) == len(layers) and {layer.kernel for layer in layers} == {
        kernels.apply_linear
    }


@needs_onednn
def test_where_no_gradient_is_asked_for_the_product_is_the_same_to_the_bit():
    x, weight, bias = drawn(64, 256), drawn(768, 256).requires_grad_(), drawn(768)
    learning = apply_linear(x, weight, bias)
    with torch.no_grad():
        asked = apply_linear(x, weight, bias)
    assert learning.requires_grad and not asked.requires_grad
    assert torch.equal(asked, learning)


@needs_onednn
@pytest.mark.parametrize("rows", [1, 2, 16, 64, 1000])
@pytest.mark.parametrize("laid_out_for", [16, 64])
def test_weights_laid_out_once_serve_any_number_of_rows(rows, laid_out_for):
    """Also parts of a weight, of which two begin at the same place."""
    weight, bias, packed = drawn(8192, 256, seed=1), drawn(8192), {}
    with torch.inference_mode(), kernels.reuse_packed_weights(packed):
        for part in (weight, weight[:4096], weight[4096:]):
            for x in (drawn(laid_out_for, 256), drawn(rows, 256, seed=2)):
                found = apply_linear(x, part, bias[: len(part)])
                torch.testing.assert_close(
                    found, F.linear(x, part, bias[: len(part)]), rtol=1e-4, atol=1e-4
                )
    assert len(packed) == 3


@needs_onednn
def test_weights_are_laid_out_within_alone_and_each_once():
    x, weights, packed = drawn(64, 256), [drawn(512, 256, seed=seed) for seed in (1, 2)], {}
    with torch.inference_mode():
        apply_linear(x, weights[0])
        assert not packed
        with kernels.reuse_packed_weights(packed):
            for _ in range(3):
                for weight in weights:
                    apply_linear(x, weight)
        kept = [pair[0] for pair in packed.values()]
        assert len(kept) == 2 and all(map(torch.equal, kept, weights))
        weights[0].mul_(2)  # what was laid out is of before
        expected = x @ weights[0].t()
        torch.testing.assert_close(apply_linear(x, weights[0]), expected, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_a_weight_that_was_made_for_one_product_is_not_taken_for_the_next():
    """The next would lie where it lay."""
    x = drawn(64, 256)
    with torch.inference_mode(), kernels.reuse_packed_weights({}):
        for seed in range(1, 6):
            weight = drawn(512, 256, seed=seed)
            torch.testing.assert_close(
                apply_linear(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4
            )
            del weight


@needs_onednn
def test_what_lies_ready_is_taken_for_nothing_else():
    """A square weight turned lies at the same place; gradients and bf16 are computed as ever."""
    x, weight = drawn(4096, 64), drawn(64, 64, seed=1)
    with kernels.reuse_packed_weights({}):
        with torch.no_grad():
            for matrix in (weight, weight.t(), weight):
                torch.testing.assert_close(
                    apply_linear(x, matrix), x @ matrix.t(), rtol=1e-4, atol=1e-4
                )
        assert apply_linear(x, weight.requires_grad_()).requires_grad
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert apply_linear(x, weight).dtype == torch.bfloat16
