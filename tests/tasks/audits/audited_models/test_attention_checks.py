"""Test the checks of what a model attends to, and of batches whose rows affect each other."""

import numpy as np
import pytest
import torch

from hallmark.tasks.audits.audited_models.attention_checks import (
    build_sequence_pairs,
    check_attention_and_choose_batching,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.measures.batch_effects import (
    SequencePair,
    choose_batching,
    group_batchable_rows,
)
from tests.tasks.audits.audited_models.random_models import (
    BERT,
    FUNNEL,
    GEMMA3,
    LLAMA,
    MAMBA,
    MIXTRAL,
    PROPHETNET,
    XLM,
    XLNET,
    save_model,
)

SENTENCES = [
    "The nurse said that she would be late, as always, and the engineer that he would be early.",
    "We read it.",
    "Numbers: 0 1 2 3 4 5",
]


@pytest.mark.parametrize("deviation", [None, 0.02, 0.3])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("BertLMHeadModel", BERT),
        ("XLNetLMHeadModel", XLNET),
        ("LlamaForCausalLM", LLAMA | {"is_causal": False}),
        ("Gemma3ForCausalLM", GEMMA3 | {"use_bidirectional_attention": True, "sliding_window": 8}),
        ("Gemma3ForCausalLM", GEMMA3 | {"use_bidirectional_attention": True}),
        ("ProphetNetForCausalLM", PROPHETNET),
    ],
)
def test_a_model_that_sees_later_tokens_is_not_causal(tmp_path, name, values, deviation):
    folder = save_model(tmp_path, name, deviation, **values)
    with pytest.raises(UsageError, match="it can also see the text after a token") as caught:
        open_audited_model(folder, device="cpu")
    assert "\n" not in str(caught.value) and folder.name in str(caught.value)


@pytest.mark.parametrize("deviation", [None, 0.3])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("BertLMHeadModel", BERT | {"is_decoder": True}),
        ("BertGenerationDecoder", BERT | {"is_decoder": True}),
        ("LlamaForCausalLM", LLAMA),
        ("Gemma3ForCausalLM", GEMMA3 | {"sliding_window": 8}),
        ("MambaForCausalLM", MAMBA),
        ("MixtralForCausalLM", MIXTRAL),
        ("XLMWithLMHeadModel", XLM | {"causal": True}),
    ],
)
def test_causal_models_are_opened_as_causal(tmp_path, name, values, deviation):
    folder = save_model(tmp_path, name, deviation, **values)
    model = open_audited_model(folder, device="cpu")
    assert (model.model_kind, model.batching) == ("causal", "any length")
    lines = [model.prepend_bos_id(ids) for ids in model.encode_batch(SENTENCES)]
    for line, scores in zip(lines, model.compute_log_probs(lines), strict=True):
        with torch.inference_mode():
            logits = model.model(torch.tensor([line]), use_cache=False).logits[0, :-1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(line[1:])[:, None])[:, 0]
        np.testing.assert_allclose(scores, expected.numpy(), atol=1e-4)
    assert open_audited_model(folder, device="cpu", untrained_seed=0).batching == "any length"


def test_a_masked_xlm_is_opened_as_masked(tmp_path):
    model = open_audited_model(save_model(tmp_path, "XLMWithLMHeadModel", 0.3, **XLM), device="cpu")
    line = [*model.prepend_bos_id(model.encode(SENTENCES[0])), model.closing_id]
    masked = [*line[:5], model.mask_id, *line[6:]]
    with torch.inference_mode():
        expected = model.model(torch.tensor([masked])).logits[0, 5].log_softmax(-1)[line[5]]
    assert model.model_kind == "masked"
    assert model.compute_log_probs([line[:-1]])[0][4] == pytest.approx(expected.item(), abs=1e-4)


def test_a_masked_model_that_sees_only_earlier_tokens_is_refused(tmp_path):
    folder = save_model(tmp_path, "BertForMaskedLM", **BERT, is_decoder=True)
    with pytest.raises(UsageError, match="it can see only the text before a token"):
        open_audited_model(folder, device="cpu")


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM"])
def test_nan_weights_are_not_reported_as_attention(tmp_path, name):
    values = LLAMA if name.startswith("Llama") else BERT
    folder = save_model(tmp_path, name, float("nan"), **values)
    try:
        open_audited_model(folder, device="cpu").compute_log_probs([[5, 6, 7]])
    except HallmarkError as error:
        assert "scores of a token" not in str(error)


def test_the_untrained_model_has_the_precision_of_the_trained_one(tmp_path):
    """config.json has the precision of stored weights, not the one they are used in."""
    folder = save_model(tmp_path, "LlamaForCausalLM", **LLAMA, dtype="bfloat16")
    for seed in (None, 0):
        assert (
            open_audited_model(folder, device="cpu", untrained_seed=seed).model.dtype
            == torch.float32
        )


# Toy models compute logits (length, V) of each row from the tokens that each token sees.


def toy_forward(sees, scale=1.0, offset=0.0, noise=0.0):
    """Make a forward pass in which token i sums embeddings of the tokens j with ``sees(i, j)``."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(100, 16, generator=generator)

    def forward(rows):
        logits_by_row = []
        for row in rows:
            place = torch.arange(len(row))
            weights = sees(place[:, None], place[None, :]).float()
            states = table[row] + weights @ table[row] / weights.sum(1, keepdim=True).clamp_min(1)
            logits = states * scale + offset
            logits_by_row.append(logits + noise * torch.randn(logits.shape, generator=generator))
        return logits_by_row

    return forward


class WindowConfig:
    """A config with an attention window."""

    sliding_window = 64

    def __init__(self):
        self.sliding_window = 64

    def get_text_config(self):
        return self


def check_toy_model(forward, kind="causal", context=512, longest=1024):
    return check_attention_and_choose_batching(
        forward,
        kind,
        "toy",
        build_sequence_pairs(
            range(100),
            config=WindowConfig(),
            context_length=context,
            max_check_length=longest,
        ),
    )


ATTENTION_TO_LATER_TOKENS = {
    "all": lambda i, j: i == i + 0 * j,
    "the next token": lambda i, j: j <= i + 1,
    "blocks of 32": lambda i, j: j // 32 <= i // 32,
    "blocks of 8": lambda i, j: j // 8 <= i // 8,
    "only beyond a window": lambda i, j: (j <= i) | (j > i + 64),
    "a window of both sides": lambda i, j: (i - j).abs() <= 3,
}


@pytest.mark.parametrize("sees", ATTENTION_TO_LATER_TOKENS.values(), ids=ATTENTION_TO_LATER_TOKENS)
@pytest.mark.parametrize(
    "numbers", [{}, {"scale": 1e-4}, {"scale": 1e3}, {"offset": 20.0}, {"noise": 1e-6}]
)
def test_any_attention_to_later_tokens_is_detected(sees, numbers):
    with pytest.raises(UsageError, match="also see the text after"):
        check_toy_model(toy_forward(sees, **numbers))


@pytest.mark.parametrize("context", [1, 3, 5, 20, 512])
@pytest.mark.parametrize(
    "numbers", [{}, {"scale": 1e-4}, {"scale": 0.0}, {"offset": 1e4}, {"noise": 1e-5}]
)
def test_rounding_is_not_mistaken_for_attention(numbers, context):
    check_toy_model(toy_forward(lambda i, j: j <= i, **numbers), context=context)


def test_another_expert_is_not_mistaken_for_attention():
    """In a mixture of experts, rounding can rarely choose another expert for one token."""
    causal, calls = toy_forward(lambda i, j: j <= i), []

    def forward(rows):
        calls.append(rows)
        logits = causal(rows)
        if len(calls) == 1:
            logits[0][7] += 1.0
        return logits

    assert check_toy_model(forward) == "any length" and len(calls) > 1


def test_an_unreadable_model_fails_later():
    def forward(rows):
        raise RuntimeError("no such kernel")

    assert check_toy_model(forward) == "equal length"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("MobileBertForMaskedLM", BERT | {"embedding_size": 32, "intra_bottleneck_size": 32}),
        ("ConvBertForMaskedLM", BERT | {"embedding_size": 32}),
        ("FNetForMaskedLM", BERT | {"tpu_short_seq_length": 128}),
        ("FunnelForMaskedLM", FUNNEL),
        ("NystromformerForMaskedLM", BERT),
    ],
)
def test_masked_scores_do_not_change_with_the_other_rows(tmp_path, name, values):
    model = open_audited_model(save_model(tmp_path, name, 0.3, **values), device="cpu")
    assert (model.model_kind, model.batching) == ("masked", "equal length")
    lines = [model.prepend_bos_id(ids) for ids in model.encode_batch(SENTENCES)]
    together = model.compute_log_probs(lines)
    for line, scores in zip(lines, together, strict=True):
        np.testing.assert_allclose(model.compute_log_probs([line])[0], scores, atol=1e-3)
    best = model.generate_completions(lines, [[]] * 3, completion_count=3, max_new_tokens=1)
    for line, row in zip(lines, best, strict=True):
        (completions_alone,) = model.generate_completions(
            [line], [[]], completion_count=3, max_new_tokens=1
        )
        assert [w.token_ids for w in row] == [w.token_ids for w in completions_alone]


@pytest.mark.parametrize(
    "name", ["MobileBertForMaskedLM", "ConvBertForMaskedLM", "FNetForMaskedLM"]
)
def test_embeddings_do_not_change_with_the_other_rows(tmp_path, name):
    values = BERT | {"embedding_size": 32} if name != "FNetForMaskedLM" else BERT
    if name.startswith("Mobile"):
        values = values | {"intra_bottleneck_size": 32}
    model = open_audited_model(save_model(tmp_path, name, 0.1, **values), device="cpu")
    lines = [model.prepend_bos_id(ids) for ids in model.encode_batch(SENTENCES)]
    together = model.compute_hidden_states(lines, -1)
    for line, states in zip(lines, together, strict=True):
        states_alone = model.compute_hidden_states([line], -1)[0]
        np.testing.assert_allclose(
            states, states_alone, rtol=1e-3, atol=1e-4 * np.abs(states_alone).max()
        )


def test_rows_without_effects_on_each_other_may_have_any_length(bert_folder, gpt2_folder):
    for folder in (bert_folder, gpt2_folder):
        assert open_audited_model(folder, device="cpu").batching == "any length"


def test_rows_are_padded_with_the_pad_token_of_the_model(tmp_path):
    folder = save_model(tmp_path, "BertForMaskedLM", **BERT | {"pad_token_id": 7})
    assert open_audited_model(folder, device="cpu").pad_id == 7


def test_embeddings_of_layers_without_attention(tmp_path):
    """Caches of layers without attention have no length."""
    values = BERT | {
        "num_key_value_heads": 2,
        "num_experts": 2,
        "attn_layer_period": 4,
        "attn_layer_offset": 1,
    }
    mamba = {"mamba_d_state": 4, "use_mamba_kernels": False, "pad_token_id": 1}
    folder = save_model(tmp_path, "JambaForCausalLM", 0.1, **values | mamba)
    states = open_audited_model(folder, device="cpu").compute_hidden_states([[5, 6, 7], [8, 9]], -1)
    assert [s.shape for s in states] == [(3, 32), (2, 32)]


def test_rows_with_effects_on_each_other_are_separated():
    def padded_sum(rows):
        """Add the mean over the padded length to each row."""
        longest = max(map(len, rows))
        return [torch.tensor(row)[:, None] + torch.tensor(row).sum() / longest for row in rows]

    def batch_sum(rows):
        return [torch.tensor(row)[:, None] + float(sum(map(sum, rows))) for row in rows]

    def failing(rows):
        if len(rows) > 1:
            raise RuntimeError("one row only")
        return padded_sum(rows)

    sample = SequencePair(range(100))
    assert choose_batching(padded_sum, sample) == "equal length"
    assert choose_batching(batch_sum, sample) == choose_batching(failing, sample) == "one row"
    assert choose_batching(toy_forward(lambda i, j: j <= i), sample) == "any length"


def test_groups_contain_each_row_once():
    lengths = [3, 5, 3, 1, 5, 9]
    assert [*group_batchable_rows(lengths, "any length")] == [[5, 1, 4, 0, 2, 3]]
    assert [*group_batchable_rows(lengths, "equal length")] == [[5], [1, 4], [0, 2], [3]]
    assert [*group_batchable_rows(lengths, "one row")] == [[5], [1], [4], [0], [2], [3]]
    assert not [*group_batchable_rows([], "any length"), *group_batchable_rows([], "equal length")]
