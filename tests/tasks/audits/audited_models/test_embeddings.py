"""Embeddings and likeliest completions against transformers itself and the slow way."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from hallmark.model.decoding.activations import compute_contextual_embeddings
from hallmark.tasks.audits.audit_tables import (
    EMBEDDINGS,
    REQUESTS,
    RESPONSES,
    RequestBuilder,
    build_items_schema,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.inference import generate_response_rows
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.conftest import make_own

SENTENCES = ["The nurse said that she would be late.", "Numbers: 0 1 2", "We read it."]


@pytest.fixture(params=["own", "gpt2", "bert"])
def subject(request):
    return open_audited_model(request.getfixturevalue(f"{request.param}_folder"), device="cpu")


def alone(subject, ids, layer):
    """The states of one sequence, by itself."""
    if not hasattr(subject.model, "get_input_embeddings"):
        return compute_contextual_embeddings(subject.model, [ids], layer=layer)[0]
    with torch.inference_mode():
        read = subject.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return read.hidden_states[layer][0].numpy()


@pytest.mark.parametrize("layer", [1, 2, -1, -2])
def test_embeddings_are_means_of_hidden_states(subject, layer):
    ids = [subject.prepend_bos_id(subject.encode(text)) for text in SENTENCES]
    places = [[1, 2, 3], [2], [*range(len(ids[2]))]]
    found = subject.compute_mean_hidden_states(ids, places, layer)
    expected = [alone(subject, one, layer)[at].mean(0) for one, at in zip(ids, places, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_input_embeddings_know_no_places(subject):
    ids = subject.encode(SENTENCES[0])
    found = subject.compute_mean_hidden_states(
        [ids, ids[::-1], ids[:1]], [[0, 1], [-1, -2], [0]], 0
    )
    np.testing.assert_array_equal(found[0], found[1])
    state = subject.model.state_dict()
    named = ("wte.weight", "word_embeddings.weight")
    (name,) = (n for n in state if n.endswith(named) or n == "embedding.weight")
    np.testing.assert_allclose(found[2], state[name][ids[0]].numpy())


@pytest.mark.parametrize("layer", [3, -3])
def test_a_layer_that_is_not_there_is_refused(subject, layer):
    with pytest.raises(UsageError, match=f"has no layer {layer}; choose one from -2"):
        subject.compute_mean_hidden_states([[1, 2]], [[0]], layer)


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
    subject = open_audited_model(make_own(tmp_path, special, **kind), device="cpu")
    ids = subject.prepend_bos_id(subject.encode(SENTENCES[0]))
    one, other = (
        subject.compute_mean_hidden_states([ids, [*ids[:3], 7]], [[1], [1]], layer)
        for layer in (0, -2)
    )
    assert one.shape == other.shape == (2, 32) and (one[0] == one[1]).all()
    assert not np.allclose(other[0], other[1])  # what stands behind is seen


@pytest.mark.parametrize("length", [1, 6])
def test_completions_of_a_causal_model_are_transformers_beams(gpt2_folder, length):
    subject = open_audited_model(gpt2_folder, device="cpu")
    prompts = [subject.prepend_bos_id(subject.encode(text)) for text in SENTENCES]
    found = subject.generate_completions(
        prompts, [[]] * 3, completion_count=4, max_new_tokens=length
    )
    for prompt, made in zip(prompts, found, strict=True):
        expected = subject.model.generate(
            torch.tensor([prompt]),
            max_new_tokens=length,
            num_beams=4,
            num_return_sequences=4,
            do_sample=False,
            pad_token_id=1,
        )
        lines = [[t for t in row[len(prompt) :] if t not in (0, 1)] for row in expected.tolist()]
        assert [w.token_ids for w in made] == lines
        said = subject.compute_target_log_probs([prompt] * 4, lines)
        for written, values in zip(made, said, strict=True):
            np.testing.assert_allclose(written.log_probs, values, atol=1e-4)


def test_completions_of_our_own_are_the_likeliest_tokens(own_folder):
    subject = open_audited_model(own_folder, device="cpu")
    prompt = subject.prepend_bos_id(subject.encode(SENTENCES[1]))
    (made,) = subject.generate_completions([prompt], [[]], completion_count=5, max_new_tokens=1)
    every = [[token] for token in range(subject.vocab_size)]
    log_p = np.concatenate(subject.compute_target_log_probs([prompt] * len(every), every))
    log_p[1] = -np.inf  # padding is never written
    best = np.argsort(-log_p)[:5]
    assert [w.token_ids if not w.has_ended else [0] for w in made] == [[token] for token in best]


def test_completions_of_a_masked_model_stand_between(bert_folder):
    subject = open_audited_model(bert_folder, device="cpu")
    before, after = (subject.encode(text) for text in ("The nurse said that", "would be late."))
    made, other = subject.generate_completions(
        [before] * 2, [after, []], completion_count=5, max_new_tokens=1
    )
    every = [[*before, token, *after] for token in range(subject.vocab_size)]
    log_p = np.concatenate(subject.compute_masked_log_probs(every, [[len(before)]] * len(every)))
    best = np.argsort(-log_p)[:5]
    assert [written.token_ids for written in made] == [[token] for token in best]
    np.testing.assert_allclose([w.log_probs[0] for w in made], log_p[best], atol=1e-5)
    assert [w.token_ids for w in made] != [w.token_ids for w in other]
    (long,) = subject.generate_completions(
        [before * 30], [after * 30], completion_count=1, max_new_tokens=1
    )
    assert len(long) == 1  # of more than it can see, its surroundings


def test_answers_of_both_kinds_stand_beside_their_items(gpt2_folder):
    questions = RequestBuilder()
    nurse, count = (questions.add_item(text) for text in SENTENCES[:2])
    for item, layer, part in ((nurse, 0, "input"), (nurse, -1, "inner"), (count, -1, "inner")):
        questions.request_embeddings(
            item, [[5, 6, 7], [5, 8]], [[0, 2], [1]], layer=layer, part=part
        )
    questions.request_completions(count, [0, 9], [3], count=3, max_new_tokens=4)
    table = pa.Table.from_pylist(questions.requests, schema=REQUESTS)
    subject = open_audited_model(gpt2_folder, device="cpu")
    rows = [
        row
        for layer in (0, -1)
        for row in generate_response_rows(
            subject, [r for r in table.to_pylist() if r["layer"] == layer]
        )
    ]
    written = [
        *generate_response_rows(subject, [r for r in table.to_pylist() if r["kind"] == "complete"])
    ]
    answers = Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=build_items_schema()),
        table,
        pa.Table.from_pylist(written, schema=RESPONSES),
        embeddings=pa.Table.from_pylist(rows, schema=EMBEDDINGS),
    )
    inner = answers.collect_embeddings("inner")
    assert inner.shape == (2, 2, 32) and (inner[0] == inner[1]).all()
    np.testing.assert_allclose(inner[0, 1], alone(subject, [5, 8], -1)[1], atol=1e-4)
    assert np.isnan(answers.collect_embeddings("input")[1]).all()
    assert answers.collect_embeddings("none").shape[0] == 2
    assert len(answers.select_part()) == 3 and answers.select_part()["text"].null_count == 0
