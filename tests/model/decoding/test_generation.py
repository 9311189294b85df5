"""Generation and sampling against the naive generator, their definitions and transformers."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from hallmark.model import kernels
from hallmark.model.decoding import decode_steps
from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.sampling import (
    TokenSampler,
    apply_temperature,
    draw_tokens,
    draw_uniforms,
    keep_min_p,
    keep_nucleus,
    keep_top_k,
    make_draw_keys,
    penalise_repetition,
)
from hallmark.model.kernels import HAS_ONEDNN
from tests.model.oracles import logits, naive_generate, tiny

VARIANTS = [
    {},
    {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "n_kv_heads": 2},
    {"norm_position": "post", "positions": "sinusoidal"},
]
PROMPTS = [[0], [0, 5, 9], [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 3, 2, 8], [4] * 16, list(range(2, 45))]


@pytest.mark.parametrize("changes", VARIANTS)
def test_greedy_equals_the_naive_generator_beyond_the_context(changes):
    model = tiny(**changes)
    got = generate(model, PROMPTS, max_new_tokens=30, temperature=0.0, stop=(), forbid=())
    for prompt, (one,) in zip(PROMPTS, got, strict=True):
        ids, scores = naive_generate(model, prompt, 30, lambda log_p, _: int(log_p.argmax()))
        assert one.ids == ids and not one.stopped
        np.testing.assert_allclose(one.log_probs, scores, atol=1e-4)


@pytest.mark.parametrize("changes", VARIANTS)
def test_sampling_equals_the_naive_generator_with_the_same_draws(changes):
    model = tiny(**changes)
    got = generate(
        model,
        PROMPTS,
        max_new_tokens=20,
        samples=3,
        seed=5,
        temperature=0.8,
        top_k=20,
        top_p=0.9,
        stop=(),
    )
    for prompt, samples in zip(PROMPTS, got, strict=True):
        keys = make_draw_keys(5, prompt, 3)
        for s, one in enumerate(samples):

            def choose(log_p, t, key=keys[s : s + 1]):
                scores = log_p.clone()
                scores[1] = -torch.inf  # padding is forbidden
                order = scores.argsort(descending=True)
                p = (scores[order[:20]] / 0.8).softmax(-1)
                kept = int((p.cumsum(-1) < 0.9).sum()) + 1
                allowed = set(order[:kept].tolist())
                final = torch.tensor(
                    [x if i in allowed else -torch.inf for i, x in enumerate(scores.tolist())]
                )
                p = (final / 0.8).softmax(-1).double().numpy()
                return int(
                    np.searchsorted(p.cumsum(), draw_uniforms(key, t)[0] * p.sum(), side="right")
                )

            ids, scores = naive_generate(model, prompt, 20, choose)
            assert one.ids == ids
            np.testing.assert_allclose(one.log_probs, scores, atol=1e-4)


def test_text_does_not_depend_on_batch_order_or_number_of_samples():
    model = tiny()
    settings = {"max_new_tokens": 12, "seed": 1, "top_p": 0.95}
    together = generate(model, PROMPTS, samples=4, **settings)
    for i, prompt in enumerate(PROMPTS):
        alone = generate(model, [prompt], samples=2, batch_rows=1, **settings)[0]
        assert [c.ids for c in alone] == [c.ids for c in together[i][:2]]
    backwards = generate(model, PROMPTS[::-1], samples=4, batch_rows=7, **settings)[::-1]
    assert [[c.ids for c in p] for p in backwards] == [[c.ids for c in p] for p in together]


def test_samples_and_seeds_differ():
    model = tiny()
    texts = [
        tuple(c.ids)
        for seed in (0, 1)
        for c in generate(model, [[0, 5]], max_new_tokens=12, samples=8, seed=seed)[0]
    ]
    assert len(set(texts)) == 16


def test_a_stop_token_ends_only_its_row():
    model = tiny()
    got = generate(model, PROMPTS, max_new_tokens=25, samples=6, seed=3, stop=(7, 11))
    free = generate(model, PROMPTS, max_new_tokens=25, samples=6, seed=3, stop=())
    stopped = 0
    for one, unstopped in zip(chain(*got), chain(*free), strict=True):
        ends = [i for i, t in enumerate(unstopped.ids) if t in (7, 11)]
        want = unstopped.ids[: ends[0] + 1] if ends else unstopped.ids
        assert one.ids == want and one.stopped == bool(ends)
        assert len(one.log_probs) == len(one.ids)
        stopped += one.stopped
    assert 0 < stopped < 30  # both cases occur


def test_forbidden_tokens_are_never_drawn():
    model = tiny()
    allowed = {3, 4, 5}
    got = generate(
        model, [[0]], max_new_tokens=50, forbid=[t for t in range(61) if t not in allowed]
    )
    assert set(got[0][0].ids) == allowed


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0, -1.0]])
    n = 20_000
    tokens = draw_tokens(logits.expand(n, -1), draw_uniforms(make_draw_keys(0, [0], n), 0)).numpy()
    p = logits.softmax(-1)[0].numpy()
    observed = np.bincount(tokens, minlength=5)
    assert observed[2] == 0
    keep = p > 0
    chi_square = ((observed - n * p)[keep] ** 2 / (n * p[keep])).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_extreme_uniforms_never_select_an_impossible_token():
    logits = torch.full((2, 1000), -torch.inf)
    logits[:, 10:20] = torch.randn(2, 10)
    tokens = draw_tokens(logits, np.array([0.0, 1 - 2.0**-53]))
    assert tokens.min() >= 10 and tokens.max() < 20


def test_top_k_and_nucleus_keep_the_textbook_sets():
    logits = torch.tensor([[0.5, 0.1, 0.25, 0.15], [0.05, 0.9, 0.03, 0.02]]).log()
    assert (keep_top_k(logits, 2) > -torch.inf).tolist() == [
        [True, False, True, False],
        [True, True, False, False],
    ]
    assert (keep_nucleus(logits, 0.7) > -torch.inf).tolist() == [
        [True, False, True, False],
        [False, True, False, False],
    ]
    assert torch.equal(keep_nucleus(logits, 1.0), logits)
    assert torch.equal(keep_top_k(logits, 9), logits)
    equals = torch.tensor([[2.0, 1.0, 2.0, -1.0]])  # as probable as the most probable: kept
    assert (keep_min_p(equals, 1.0) > -torch.inf).tolist() == [[True, False, True, False]]


def test_nucleus_equals_its_definition_on_random_rows():
    torch.manual_seed(0)
    logits = torch.randn(50, 200) * 3
    kept = keep_nucleus(logits, 0.8) > -torch.inf
    for row, mask in zip(logits, kept, strict=True):
        p, order = row.softmax(-1).sort(descending=True)
        size = next(n for n in range(1, 201) if p[:n].sum() >= 0.8)
        assert set(mask.nonzero().flatten().tolist()) == set(order[:size].tolist())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x, _: apply_temperature(x, 0.7), lambda p: p.TemperatureLogitsWarper(0.7)),
        (lambda x, _: keep_top_k(x, 7), lambda p: p.TopKLogitsWarper(7)),
        (lambda x, _: keep_nucleus(x, 0.8), lambda p: p.TopPLogitsWarper(0.8)),
        (lambda x, _: keep_min_p(x, 0.1), lambda p: p.MinPLogitsWarper(0.1)),
        (
            lambda x, history: penalise_repetition(x, history, 1.3),
            lambda p: p.RepetitionPenaltyLogitsProcessor(1.3),
        ),
    ],
)
def test_filters_equal_those_of_transformers(ours, theirs):
    processors = pytest.importorskip("transformers.generation.logits_process")
    torch.manual_seed(0)
    logits, history = torch.randn(40, 61) * 3, torch.randint(0, 61, (40, 9))
    expected = theirs(processors)(history, logits.clone())
    torch.testing.assert_close(ours(logits, history), expected)


def test_repetition_is_penalised_independently_of_the_batch():
    model = tiny()
    settings = {"max_new_tokens": 25, "temperature": 0.0, "stop": ()}
    plain = generate(model, PROMPTS, **settings)
    penalised = generate(model, PROMPTS, repetition_penalty=5.0, **settings)
    for prompt, (one,), (other,) in zip(PROMPTS, plain, penalised, strict=True):
        assert len(set(other.ids)) > len(set(one.ids))
        alone = generate(model, [prompt], repetition_penalty=5.0, **settings)
        assert alone[0][0].ids == other.ids


def test_end_tokens_are_not_penalised():
    """The end token also begins each text, so it is in every history."""
    model = tiny(head_bias=True)
    with torch.no_grad():
        model.head.bias[:2] += 2  # make the end token and the padding of histories probable
    prompts = [p for a in range(2, 12) for p in ([0, a, 20], [0, a, 30, 15 + a])]
    settings = {"max_new_tokens": 12, "temperature": 0.0, "forbid": ()}
    texts = generate(model, prompts, repetition_penalty=3.0, stop=(0,), **settings)
    for prompt, (text,) in zip(prompts, texts, strict=True):
        tokens = list(prompt)
        for token in text.ids:
            scores = logits(model, torch.tensor([tokens[-16:]]))[0, -1].tolist()
            for earlier in set(tokens) - {0}:
                scores[earlier] *= 1 / 3 if scores[earlier] > 0 else 3
            assert token == int(np.argmax(scores))
            tokens.append(token)
    assert 0 < sum(text.stopped for (text,) in texts) < len(prompts)


def test_temperature_decays_to_its_final_value():
    choice = TokenSampler(1.0, first_temperature=10.0, decay_tokens=20)
    temperatures = [choice.temperature_at(t) for t in range(40)]
    assert temperatures[0] == 10.0 and temperatures[20:] == [1.0] * 20
    assert np.diff(temperatures[:21]) == pytest.approx([-0.45] * 20)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"prompts": [[0], []]}, "Prompt 1 is empty"),
        ({"prompts": [[0, 61]]}, "Token id 61"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 0.0, "samples": 2}, "greedy decoding"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        (
            {"temperature": 0.0, "first_temperature": 10.0},
            "If first_temperature is set, temperature",
        ),
        ({"max_new_tokens": 0}, "at least 1"),
    ],
)
def test_invalid_input_is_refused(changes, word):
    settings = {"prompts": [[0]], "max_new_tokens": 3, **changes}
    with pytest.raises(ValueError, match=word):
        generate(tiny(), settings.pop("prompts"), **settings)


def test_stopped_rows_do_not_change_the_others():
    """Most rows stop early, at different steps; the others continue for long."""
    model = tiny()
    settings = {"max_new_tokens": 30, "seed": 2, "stop": tuple(range(2, 12)), "temperature": 1.5}
    together = generate(model, PROMPTS, samples=8, **settings)
    lengths = {len(one.ids) for one in chain.from_iterable(together)}
    assert len(lengths) > 6
    for prompt, samples in zip(PROMPTS, together, strict=True):
        (alone,) = generate(model, [prompt], samples=8, batch_rows=1, **settings)
        assert [one.ids for one in alone] == [one.ids for one in samples]
        for one, other in zip(alone, samples, strict=True):
            np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 1e-40}, "at least 0.0001"),
        ({"first_temperature": float("nan")}, "at least 0.0001"),
        ({"forbid": range(61)}, "every token in the vocabulary"),
        ({"forbid": [61]}, "Token id 61"),
        ({"forbid": [-1]}, "Token id -1"),
        ({"forbid": [1.5]}, "forbid is not a list of token ids"),
        ({"stop": (999,), "repetition_penalty": 1.2}, "Token id 999"),
        ({"stop": (999,)}, "Token id 999"),
        ({"stop": ["x"]}, "stop is not a list of token ids"),
        ({"top_k": 2.5}, "top_k must be 0 .* or a positive integer, not 2.5"),
    ],
)
def test_invalid_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        generate(tiny(), [[0]], max_new_tokens=2, **settings)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_weights_are_refused(temperature):
    model = tiny()
    with torch.no_grad():
        model.embedding.weight[5] = torch.nan
    with pytest.raises(ValueError, match="not numbers"):
        generate(model, PROMPTS, max_new_tokens=3, temperature=temperature)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_greedy_chooses_the_most_probable_token_in_every_precision(dtype):
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[0, 7:9] = 9.0  # a tie: the first is chosen
    chosen = TokenSampler(temperature=0.0).choose_tokens(logits, np.zeros(6, np.uint64), 0)
    assert chosen[0] == 7 and (logits.gather(1, chosen[:, None]).squeeze(1) == logits.amax(1)).all()


@pytest.mark.parametrize("prompt", [[0.5, 3.9], [[1], [2]], ["a"], [2**70], [1, None], 5])
def test_prompts_must_be_lists_of_ids(prompt):
    with pytest.raises(ValueError, match="Prompt 0 is not a list of token ids"):
        generate(tiny(), [prompt], max_new_tokens=2)


def test_packed_weights_do_not_change_texts_and_belong_to_one_call(monkeypatch):
    """Rows stop early, so that later steps have fewer rows; weights change between the calls."""
    packed_stores, model = [], tiny(d_model=64, n_heads=4, context=64)
    reuse_packed_weights = kernels.reuse_packed_weights
    monkeypatch.setattr(
        kernels,
        "reuse_packed_weights",
        lambda packed: packed_stores.append(packed) or reuse_packed_weights(packed),
    )
    prompts = [[1 + i % 59, 2, 3 + i % 7] for i in range(96)]
    default_min_steps = decode_steps.MIN_STEPS_TO_PACK
    for _ in range(2):
        texts = []
        for min_steps in (default_min_steps, 1000):
            monkeypatch.setattr(decode_steps, "MIN_STEPS_TO_PACK", min_steps)
            texts.append(generate(model, prompts, max_new_tokens=40, stop=range(4), seed=3))
        for (one,), (other,) in zip(*texts, strict=True):
            assert one.ids == other.ids
            np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=1e-4, atol=1e-5)
        assert len({len(one.ids) for (one,) in texts[0]}) > 5
        with torch.no_grad():
            model.decoder.blocks[0].feed_forward.up.weight.mul_(-1)
    stores = {id(packed): packed for packed in packed_stores}.values()
    assert len(stores) > 2 and any(stores) == HAS_ONEDNN


@pytest.mark.parametrize("sharded", [False, True])
def test_weights_are_not_packed_for_few_steps_or_sharded_models(monkeypatch, sharded):
    """Weights gathered for a step reuse the memory of the step before."""
    monkeypatch.setattr(kernels, "reuse_packed_weights", None)
    model = tiny(d_model=64, n_heads=4, context=64)
    if sharded:
        model.unshard = lambda: None
    steps = decode_steps.MIN_STEPS_TO_PACK * (2 if sharded else 1)
    generate(model, [[1, 2]] * 96, max_new_tokens=steps, stop=())
