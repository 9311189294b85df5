"""Test models of transformers without a usable cache: they read whole sequences."""

import numpy as np
import pytest
import torch

from hallmark.model.decoding.beam_search import run_beam_search
from hallmark.tasks.audits.audited_models.cache_checks import (
    can_read_next_tokens_with_cache,
    can_read_targets_with_cache,
)
from hallmark.tasks.audits.audited_models.next_token_readers import (
    BeamScorer,
    CachedReader,
    WholeSequenceReader,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.measures.batch_effects import SequencePair
from tests.tasks.audits.audited_models.random_models import BERT, LLAMA, MAMBA, MIXTRAL, save_model

HYBRID = LLAMA | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
MODELS = {
    "MambaForCausalLM": MAMBA,
    "OpenAIGPTLMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "RwkvForCausalLM": {"hidden_size": 32, "num_hidden_layers": 2, "context_length": 128},
    "RecurrentGemmaForCausalLM": LLAMA
    | {"num_hidden_layers": 3, "attention_window_size": 16, "lru_width": 32},
    "BambaForCausalLM": HYBRID
    | {"attn_layer_indices": [1], "mamba_expand": 2, "attn_rotary_emb": 4},
    "FalconH1ForCausalLM": HYBRID | {"mamba_d_ssm": 64},
    "JambaForCausalLM": BERT
    | {"num_key_value_heads": 2, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
    | {"mamba_d_state": 4, "use_mamba_kernels": False},
    "LlamaForCausalLM": LLAMA,
    "MixtralForCausalLM": MIXTRAL,
}
CONTEXT = "The nurse said that she was late and that he was not, as always."


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    folder = save_model(
        tmp_path_factory.mktemp("model"), request.param, 0.2, **MODELS[request.param]
    )
    return open_audited_model(folder, device="cpu")


def compute_plain_log_probs(model, ids):
    """Compute log p of every next token by a plain forward pass, (length, V)."""
    with torch.inference_mode():
        return model.model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)


def test_targets_after_shared_contexts_equal_a_plain_forward_pass(model):
    contexts = [model.prepend_bos_id(model.encode(t)) for t in (CONTEXT, "We read " + CONTEXT[:-5])]
    pairs = [
        (context, model.encode(t)) for context in contexts for t in (" 0", " 1 2 3", " so on.")
    ]
    log_probs = model.compute_target_log_probs(*zip(*pairs, strict=True))
    for (context, target), scores in zip(pairs, log_probs, strict=True):
        plain = compute_plain_log_probs(model, [*context, *target])[len(context) - 1 : -1]
        expected = plain.gather(1, torch.tensor(target)[:, None])[:, 0]
        np.testing.assert_allclose(scores, expected.numpy(), atol=1e-4)


def test_greedy_continuations_equal_plain_forward_passes(model):
    prompts = [model.prepend_bos_id(model.encode(t)) for t in (CONTEXT, "We read it", "Numbers: 0")]
    continuations = model.generate_continuations(prompts, max_new_tokens=5, temperature=0)
    for prompt, (continuation,) in zip(prompts, continuations, strict=True):
        ids = [*prompt]
        for token, log_prob in zip(continuation.token_ids, continuation.log_probs, strict=True):
            plain = compute_plain_log_probs(model, ids)[-1]
            assert token == plain.argmax().item()
            assert log_prob == pytest.approx(plain[token].item(), abs=1e-4)
            ids.append(token)
        if continuation.has_ended:
            assert compute_plain_log_probs(model, ids)[-1].argmax().item() in model.stop_ids


def test_samples_are_scored_by_the_model(model):
    prompt = model.prepend_bos_id(model.encode(CONTEXT))
    options = {"max_new_tokens": 4, "samples": 3, "seed": 1}
    (row,) = model.generate_continuations([prompt], **options)
    for continuation in row:
        plain = compute_plain_log_probs(model, [*prompt, *continuation.token_ids])[
            len(prompt) - 1 : -1
        ]
        token_ids = torch.tensor(continuation.token_ids, dtype=torch.int64)
        expected = plain.gather(1, token_ids[:, None])[:, 0].numpy()
        np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4)


def test_completions_equal_a_beam_search_over_whole_sequences(model):
    prompt = model.prepend_bos_id(model.encode(CONTEXT))
    reader = WholeSequenceReader(
        model._compute_logits, model.iter_batch_indices, model.device, [prompt]
    )
    with torch.inference_mode():
        (expected,) = run_beam_search(
            BeamScorer(reader),
            width=3,
            stop=model.stop_ids,
            max_new_tokens=3,
            normalisation="mean",
            stopping="transformers",
        )
    (completions,) = model.generate_completions(
        [prompt], [[]], completion_count=3, max_new_tokens=3
    )
    assert [c.token_ids for c in completions] == [
        [*h.ids[: len(h.ids) - h.complete]] for h in expected
    ]


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "JambaForCausalLM", "FalconH1ForCausalLM"])
def test_a_cache_is_used_where_it_gives_the_same_scores(tmp_path, name):
    assert open_audited_model(
        save_model(tmp_path, name, 0.2, **MODELS[name]), device="cpu"
    ).uses_cache


@pytest.mark.parametrize("name", ["MambaForCausalLM", "OpenAIGPTLMHeadModel", "RwkvForCausalLM"])
def test_models_without_a_cache_read_whole_sequences(tmp_path, name):
    model = open_audited_model(save_model(tmp_path, name, 0.2, **MODELS[name]), device="cpu")
    assert not model.uses_cache and model.min_saved_tokens > 10**9


class ToyCache:
    """Sums the embeddings of what each row has read."""

    def __init__(self, sums):
        self.sums = sums

    def reorder_cache(self, rows):
        self.sums = self.sums[rows]


class ToyModel(torch.nn.Module):
    """Gives logits from the sum of all tokens; its cache can lose what it has read."""

    device = torch.device("cpu")

    def __init__(self, fault=""):
        super().__init__()
        self.table = torch.randn(100, 16, generator=torch.Generator().manual_seed(1))
        self.fault = fault

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=True):
        states = self.table[input_ids].cumsum(1)
        if past_key_values is not None and self.fault != "forgets":
            states = states + past_key_values.sums[:, None]
        if past_key_values is not None and self.fault == "late":
            states[:, 1:] -= past_key_values.sums[:, None]
        if self.fault == "rows" and past_key_values is not None:
            states = states.flip(0)
        cache = None if self.fault == "none" else ToyCache(states[:, -1])
        return type("Output", (), {"logits": states, "past_key_values": cache})


@pytest.mark.parametrize(
    ("fault", "is_exact", "reads_targets"),
    [
        ("", True, True),
        ("forgets", False, False),
        ("rows", False, False),
        ("none", False, False),
        ("late", True, False),  # one token after another, but not several
    ],
)
def test_a_cache_that_gives_other_scores_is_not_used(fault, is_exact, reads_targets):
    model = ToyModel(fault)

    def compute_logits(token_ids, is_real):
        return model(token_ids, use_cache=False).logits

    def open_reader(prompts, *, uses_cache):
        if uses_cache:
            return CachedReader(model, prompts)
        return WholeSequenceReader(
            compute_logits, lambda n: [[*range(len(n))]], model.device, prompts
        )

    def compute_target_logits(contexts, context_indices, targets):
        reader = CachedReader(model, contexts)
        first = reader.read_prompts()[context_indices, None]
        reader.select_rows(context_indices)
        ids = torch.tensor([[*t, 0, 0][:2] for t in targets])
        later = model(ids, past_key_values=reader.cache).logits
        return torch.cat([first, later], 1)

    pairs = [SequencePair(range(100), seed=seed) for seed in range(2)]
    assert can_read_next_tokens_with_cache(open_reader, pairs) == is_exact
    assert can_read_targets_with_cache(compute_target_logits, open_reader, pairs) == reads_targets
    assert not can_read_next_tokens_with_cache(open_reader, [])
