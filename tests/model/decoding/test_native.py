"""The kernel in C for a step's attention, beside the formula in double precision."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from model import plain
from model.decoding import native, stepping
from model.decoding.generate import generate
from tests.model.decoding.test_generate import PROMPTS, VARIANTS
from tests.model.oracles import tiny

#: A row with its own token alone; blocks that are full, begun and nearly full.
SLOTS = torch.tensor([0, 5, 63, 64, 65, 127, 128, 199])


def case(heads, kv_heads, size, capacity=200):
    """(q, k, v, keys, values): q, k and v as they are cut from one product, a row apart."""
    torch.manual_seed(heads + size)
    rows = len(SLOTS)
    together = torch.randn(rows, 1, (heads + 2 * kv_heads) * size)
    parts = together.unflatten(-1, (-1, size)).split((heads, kv_heads, kv_heads), dim=2)
    kept = [torch.randn(rows, kv_heads, capacity, size) for _ in range(2)]
    return *(part.transpose(1, 2) for part in parts), *kept


def formula(q, k, v, keys, values):
    """Row by row, over what is filled, in double precision; keys and values are changed."""
    out = []
    for row, slot in enumerate(SLOTS.tolist()):
        keys[row, :, slot], values[row, :, slot] = k[row, :, 0], v[row, :, 0]
        filled = (x[row : row + 1, :, : slot + 1].double() for x in (keys, values))
        out.append(plain.attention(q[row : row + 1].double(), *filled))
    return torch.cat(out)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(8, 8, 32), (4, 2, 64), (6, 1, 16), (2, 2, 7), (3, 3, 128)]
)
def test_it_computes_the_formula_and_keeps_the_new_token(heads, kv_heads, size, threads):
    given = case(heads, kv_heads, size)
    kept = [x.clone() for x in given[3:]]
    expected = formula(*given[:3], *kept)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = native.step_attention(size)(*given, SLOTS)
    finally:
        torch.set_num_threads(before)
    assert found.shape == given[0].shape
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(given[3], kept[0]) and torch.equal(given[4], kept[1])


def test_queries_that_lie_otherwise_are_read_as_what_they_are():
    """Turned by rotation they lie by themselves; or heads may lie apart."""
    given = case(4, 2, 32)
    expected = native.step_attention(32)(*given, SLOTS)
    alone = [x.contiguous() for x in given[:3]]
    apart = [x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3) for x in given[:3]]
    for parts in (alone, apart):
        assert torch.equal(native.step_attention(32)(*parts, *given[3:], SLOTS), expected)


@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_scores_far_apart_weigh_as_they_should(size):
    """At 1e4 one token has all the weight, and all others come to nothing."""
    q, *others = case(2, 2, 32)
    expected = formula(q * size, *others)
    found = native.step_attention(32)(q * size, *others, SLOTS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_and_in_its_row(number):
    q, k, v, keys, values = case(2, 2, 32)
    expected = native.step_attention(32)(q, k, v, keys, values, SLOTS)
    keys[3, 1, 10] = number
    found = native.step_attention(32)(q, k, v, keys, values, SLOTS)
    assert found[3, 1].isnan().all()
    expected[3, 1] = found[3, 1]
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("changes", VARIANTS)
def test_compiled_steps_write_what_plain_steps_write(monkeypatch, changes, temperature):
    """Rows stop on the way, and go on beyond the context in windows."""
    model = tiny(**changes)
    settings = {"max_new_tokens": 40, "seed": 4, "stop": (2, 3), "temperature": temperature}
    eager = generate(model, PROMPTS, **settings)
    asked = []
    made = native.step_attention(model.config.head_dim)

    def counted(*given):
        asked.append(len(given[0]))
        return made(*given)

    monkeypatch.setattr(stepping, "step_attention", lambda _: counted)
    compiled = generate(model, PROMPTS, compiled=True, **settings)
    for one, other in zip(chain.from_iterable(eager), chain.from_iterable(compiled), strict=True):
        assert one.ids == other.ids and one.stopped == other.stopped
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
    assert len(asked) >= model.config.n_layers * (max(len(o.ids) for (o,) in eager) - 1)


def test_an_encoder_decoder_and_a_prefix_model_write_the_same():
    model = tiny(architecture="encoder_decoder")
    sources = [[5, 6, 7, 8], [9], [10, 11]]
    how = {"max_new_tokens": 9, "temperature": 0.0, "sources": sources, "stop": ()}
    one, other = (generate(model, [[0]] * 3, compiled=c, **how) for c in (False, True))
    assert [r[0].ids for r in one] == [r[0].ids for r in other]
    model = tiny()
    model.objective = "prefix"
    how = {"max_new_tokens": 12, "temperature": 0.0, "stop": ()}
    one, other = (generate(model, PROMPTS, compiled=c, **how) for c in (False, True))
    assert [r[0].ids for r in one] == [r[0].ids for r in other]


def test_it_is_for_float32_on_the_cpu_and_otherwise_steps_are_plain(monkeypatch):
    monkeypatch.setattr(stepping, "step_attention", None)  # asked for, it would fail
    how = {"max_new_tokens": 5, "temperature": 0.0}
    double = tiny().double()
    assert generate(double, PROMPTS, compiled=True, **how)
    with torch.autocast("cpu", torch.bfloat16):
        assert generate(tiny(), PROMPTS, compiled=True, **how)


@pytest.mark.parametrize(
    ("compiler", "word"),
    [("no-such-compiler", "none was found"), ("false", "failed"), ("true", "failed")],
)
def test_without_a_compiler_one_sentence_says_what_to_do(monkeypatch, compiler, word):
    native.step_attention.cache_clear()
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(RuntimeError, match=f"{word}: install gcc, or leave out compiled"):
        generate(tiny(), PROMPTS, max_new_tokens=3, compiled=True)
