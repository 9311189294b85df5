"""The kernel in C for a step's attention, beside the formula in double precision."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

import numpy as np
import pytest
import torch

from model import plain
from model.decoding import native, stepping
from model.decoding.generate import generate
from tests.model.decoding.test_generate import PROMPTS, VARIANTS
from tests.model.oracles import tiny


def _made() -> bool:
    with suppress(RuntimeError):
        return bool(native.step_attention(8))
    return False


needs_kernel = pytest.mark.skipif(not _made(), reason="needs a C compiler with OpenMP")

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


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(8, 8, 32), (4, 2, 64), (6, 1, 16), (2, 2, 7), (1, 1, 1), (3, 3, 100), (1, 1, 256)],
)
def test_it_computes_the_formula_and_keeps_the_new_token(
    monkeypatch, heads, kv_heads, size, threads
):
    monkeypatch.setattr(native, "FEW", 0)
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


@needs_kernel
def test_queries_that_lie_otherwise_are_read_as_what_they_are():
    """Turned by rotation they lie by themselves; or heads may lie apart."""
    given = case(4, 2, 32)
    expected = native.step_attention(32)(*given, SLOTS)
    for which in range(3):
        x = given[which]
        for other in (x.contiguous(), x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)):
            parts = [*given[:which], other, *given[which + 1 :]]
            assert torch.equal(native.step_attention(32)(*parts, SLOTS), expected)
    twice = SLOTS.repeat_interleave(2).view(-1, 2)[:, 0]  # slots that lie apart
    assert torch.equal(native.step_attention(32)(*given, twice), expected)


@needs_kernel
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_scores_far_apart_weigh_as_they_should(size):
    """At 1e4 one token has all the weight, and all others come to nothing."""
    q, *others = case(2, 2, 32)
    expected = formula(q * size, *others)
    found = native.step_attention(32)(q * size, *others, SLOTS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@needs_kernel
def test_many_tokens_that_weigh_little_weigh_much_together():
    """Four thousand of e^-16 each, whose value is 1, beside one whose value is 0."""
    keys, values = torch.full((1, 1, 4001, 1), -16.0), torch.ones(1, 1, 4001, 1)
    one, nothing = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    found = native.step_attention(1)(one, nothing, nothing, keys, values, torch.tensor([4000]))
    expected = 4000 * np.exp(-16) / (4000 * np.exp(-16) + 1)
    np.testing.assert_allclose(found.item(), expected, rtol=1e-5)


@needs_kernel
@pytest.mark.parametrize("slot", [-1, 200])
def test_a_slot_that_the_cache_has_not_is_refused_and_nothing_written(slot):
    given = case(2, 2, 32)
    before, slots = given[3].clone(), SLOTS.clone()
    slots[2] = slot
    with pytest.raises(IndexError, match="has 200 slots"):
        native.step_attention(32)(*given, slots)
    assert torch.equal(given[3][2], before[2])


@needs_kernel
def test_what_the_kernel_would_read_as_something_else_is_refused():
    q, k, v, keys, values = case(2, 2, 32)
    attend = native.step_attention(32)
    bad = [(q.double(), k, v, keys, values, SLOTS), (q, k, v, keys[:, :, :199], values, SLOTS),
           (q, k, v, keys, values, SLOTS.int())]  # fmt: skip
    for given in bad:
        with pytest.raises(ValueError, match="float32, with a cache in one piece"):
            attend(*given)


@needs_kernel
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_and_in_its_row(number):
    q, k, v, keys, values = case(2, 2, 32)
    expected = native.step_attention(32)(q, k, v, keys, values, SLOTS)
    keys[3, 1, 10] = number
    found = native.step_attention(32)(q, k, v, keys, values, SLOTS)
    assert found[3, 1].isnan().all()
    expected[3, 1] = found[3, 1]
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@needs_kernel
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


@needs_kernel
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


def test_it_is_for_float32_on_the_cpu_and_where_no_other_kernel_is_asked_for(monkeypatch):
    monkeypatch.setattr(stepping, "step_attention", None)  # asked for, it would fail
    how = {"max_new_tokens": 5, "temperature": 0.0, "stop": (), "compiled": True}
    assert generate(tiny().double(), PROMPTS, **how)
    with torch.autocast("cpu", torch.bfloat16):
        assert generate(tiny(), PROMPTS, **how)
    model = tiny()
    with plain.plain(model):
        assert generate(model, PROMPTS, **how)
    assert generate(model, PROMPTS, **{**how, "max_new_tokens": 1})  # no step is made


def program(folder, text):
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        (None, "no-such-compiler is no C compiler: name one that knows OpenMP in CC"),
        ("printf 'a word\\nerror: \\374 -fopenmp\\n' >&2; exit 1", "error: \ufffd -fopenmp:"),
        ("exit 1", "failed: code 1: name"),
        ("exit 0", "made nothing in TMPDIR that loads"),
    ],
)  # fmt: skip
def test_without_a_kernel_one_sentence_says_what_to_do(monkeypatch, tmp_path, compiler, says):
    native.step_attention.cache_clear()
    name = program(tmp_path, compiler) if compiler else "no-such-compiler"
    monkeypatch.setenv("CC", f"{name} -m64")
    with pytest.raises(RuntimeError, match="leave out compiled") as error:
        generate(tiny(), PROMPTS, max_new_tokens=3, compiled=True)
    assert says in str(error.value)


@needs_kernel
@pytest.mark.parametrize("compiler", ["", "cc -g0"])
def test_a_compiler_may_have_arguments_and_warn_in_any_letters(monkeypatch, tmp_path, compiler):
    native.step_attention.cache_clear()
    warns = program(tmp_path, "printf '\\374' >&2; exec cc \"$@\"")
    for name in (compiler, f"{warns} -g0"):
        monkeypatch.setenv("CC", name)
        assert native.step_attention(8)


def test_no_place_for_the_kernel_is_one_sentence(monkeypatch):
    native.step_attention.cache_clear()
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(RuntimeError, match="look at TMPDIR, or leave out compiled"):
        native.step_attention(8)
