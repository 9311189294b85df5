"""Test embeddings and completions against transformers and against single sequences."""

import numpy as np
import pytest
import torch

from hallmark.model.decoding.activations import compute_contextual_embeddings
from hallmark.tasks.audits.audit_tables import (
    EMBEDDINGS,
    RESPONSES,
    RequestBuilder,
    build_items_schema,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.inference import generate_responses
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import UsageError, rows_to_table
from tests.tasks.audits.conftest import make_own

SENTENCES = ["The nurse said that she would be late.", "Numbers: 0 1 2", "We read it."]


@pytest.fixture(params=["own", "gpt2", "bert"])
def model(request):
    return open_audited_model(request.getfixturevalue(f"{request.param}_folder"), device="cpu")


def compute_states_alone(model, ids, layer):
    """Compute the states of one sequence alone."""
    if not hasattr(model.model, "get_input_embeddings"):
        return compute_contextual_embeddings(model.model, [ids], layer=layer)[0]
    with torch.inference_mode():
        output = model.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return output.hidden_states[layer][0].numpy()


@pytest.mark.parametrize("layer", [1, 2, -1, -2])
def test_embeddings_are_means_of_hidden_states(model, layer):
    ids = [model.prepend_bos_id(model.encode(text)) for text in SENTENCES]
    positions = [[1, 2, 3], [2], [*range(len(ids[2]))]]
    embeddings = model.compute_mean_hidden_states(ids, positions, layer)
    expected = [
        compute_states_alone(model, sequence, layer)[sequence_positions].mean(0)
        for sequence, sequence_positions in zip(ids, positions, strict=True)
    ]
    np.testing.assert_allclose(embeddings, expected, atol=1e-4)


def test_input_embeddings_do_not_depend_on_positions(model):
    ids = model.encode(SENTENCES[0])
    embeddings = model.compute_mean_hidden_states(
        [ids, ids[::-1], ids[:1]], [[0, 1], [-1, -2], [0]], 0
    )
    np.testing.assert_array_equal(embeddings[0], embeddings[1])
    state = model.model.state_dict()
    suffixes = ("wte.weight", "word_embeddings.weight")
    (name,) = (n for n in state if n.endswith(suffixes) or n == "embedding.weight")
    np.testing.assert_allclose(embeddings[2], state[name][ids[0]].numpy())


@pytest.mark.parametrize("layer", [3, -3])
def test_a_missing_layer_is_refused(model, layer):
    with pytest.raises(UsageError, match=f"layer {layer} does not exist; choose a layer from -2"):
        model.compute_mean_hidden_states([[1, 2]], [[0]], layer)


@pytest.mark.parametrize(
    "kind",
    [
        {"architecture": "encoder", "objective": "mlm"},
        {"architecture": "encoder_decoder", "objective": "span_corruption"},
        {"architecture": "decoder", "objective": "prefix"},
    ],
)
def test_every_kind_of_model_has_embeddings(tmp_path, kind):
    special = ["<|mask|>", "<|sentinel_0|>", "<|sentinel_1|>"]
    model = open_audited_model(make_own(tmp_path, special, **kind), device="cpu")
    ids = model.prepend_bos_id(model.encode(SENTENCES[0]))
    input_embeddings, hidden_embeddings = (
        model.compute_mean_hidden_states([ids, [*ids[:3], 7]], [[1], [1]], layer)
        for layer in (0, -2)
    )
    assert (
        input_embeddings.shape == hidden_embeddings.shape == (2, 32)
        and (input_embeddings[0] == input_embeddings[1]).all()
    )
    assert not np.allclose(
        hidden_embeddings[0], hidden_embeddings[1]
    )  # later tokens change the state


@pytest.mark.parametrize("length", [1, 6])
def test_completions_equal_transformers_beam_search(gpt2_folder, length):
    model = open_audited_model(gpt2_folder, device="cpu")
    prompts = [model.prepend_bos_id(model.encode(text)) for text in SENTENCES]
    completions = model.generate_completions(
        prompts, [[]] * 3, completion_count=4, max_new_tokens=length
    )
    for prompt, row_completions in zip(prompts, completions, strict=True):
        expected = model.model.generate(
            torch.tensor([prompt]),
            max_new_tokens=length,
            num_beams=4,
            num_return_sequences=4,
            do_sample=False,
            pad_token_id=1,
        )
        lines = [[t for t in row[len(prompt) :] if t not in (0, 1)] for row in expected.tolist()]
        assert [w.token_ids for w in row_completions] == lines
        log_probs = model.compute_target_log_probs([prompt] * 4, lines)
        for completion, values in zip(row_completions, log_probs, strict=True):
            np.testing.assert_allclose(completion.log_probs, values, atol=1e-4)


def test_completions_of_one_token_are_the_most_probable_ones(own_folder):
    model = open_audited_model(own_folder, device="cpu")
    prompt = model.prepend_bos_id(model.encode(SENTENCES[1]))
    (completions,) = model.generate_completions(
        [prompt], [[]], completion_count=5, max_new_tokens=1
    )
    all_tokens = [[token] for token in range(model.vocab_size)]
    log_p = np.concatenate(model.compute_target_log_probs([prompt] * len(all_tokens), all_tokens))
    log_p[1] = -np.inf  # padding is never written
    best = np.argsort(-log_p)[:5]
    assert [w.token_ids if not w.has_ended else [0] for w in completions] == [
        [token] for token in best
    ]


def test_completions_of_a_masked_model_use_both_sides(bert_folder):
    model = open_audited_model(bert_folder, device="cpu")
    before, after = (model.encode(text) for text in ("The nurse said that", "would be late."))
    completions, without_suffix = model.generate_completions(
        [before] * 2, [after, []], completion_count=5, max_new_tokens=1
    )
    all_sequences = [[*before, token, *after] for token in range(model.vocab_size)]
    log_p = np.concatenate(
        model.compute_masked_log_probs(all_sequences, [[len(before)]] * len(all_sequences))
    )
    best = np.argsort(-log_p)[:5]
    assert [completion.token_ids for completion in completions] == [[token] for token in best]
    np.testing.assert_allclose([w.log_probs[0] for w in completions], log_p[best], atol=1e-5)
    assert [w.token_ids for w in completions] != [w.token_ids for w in without_suffix]
    (long_completions,) = model.generate_completions(
        [before * 30], [after * 30], completion_count=1, max_new_tokens=1
    )
    assert len(long_completions) == 1  # the model reads the nearest context


def test_embeddings_and_completions_are_joined_with_items(gpt2_folder):
    builder = RequestBuilder()
    nurse, count = (builder.add_item(text) for text in SENTENCES[:2])
    for item, layer, part in ((nurse, 0, "input"), (nurse, -1, "inner"), (count, -1, "inner")):
        builder.request_embeddings(item, [[5, 6, 7], [5, 8]], [[0, 2], [1]], layer=layer, part=part)
    builder.request_completions(count, [0, 9], [3], count=3, max_new_tokens=4)
    table = builder.build_requests_table()
    model = open_audited_model(gpt2_folder, device="cpu")
    embeddings = [
        embedding
        for layer in (0, -1)
        for embedding in generate_responses(
            model, [r for r in table.to_pylist() if r["layer"] == layer]
        )
    ]
    completions = [
        *generate_responses(model, [r for r in table.to_pylist() if r["kind"] == "complete"])
    ]
    responses = Responses(
        builder.build_items_table(build_items_schema()),
        table,
        rows_to_table(completions, RESPONSES),
        embeddings=rows_to_table(embeddings, EMBEDDINGS),
    )
    embeddings = responses.collect_embeddings("inner")
    assert embeddings.shape == (2, 2, 32) and (embeddings[0] == embeddings[1]).all()
    np.testing.assert_allclose(
        embeddings[0, 1], compute_states_alone(model, [5, 8], -1)[1], atol=1e-4
    )
    assert np.isnan(responses.collect_embeddings("input")[1]).all()
    assert responses.collect_embeddings("none").shape[0] == 2
    assert len(responses.select_part()) == 3 and responses.select_part()["text"].null_count == 0
