"""Test attention maps of all architectures and of unusual texts."""

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from pydantic import ValidationError

from hallmark.model.decoding.activations import extract_attention_weights
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.tasks.audits.ability.attention_maps import (
    AttentionMapsConfig,
    AttentionText,
    attention_maps,
)
from hallmark.tasks.contract import folder_to_artifact
from tests.tasks.audits.conftest import bert_folder, gpt2_folder, make_own  # noqa: F401

NURSE = AttentionText(text="The nurse said that she would be late.", word="she")
STACKS = {
    "decoder": {"decoder"},
    "encoder": {"encoder"},
    "encoder_decoder": {"encoder", "decoder", "cross"},
}


def make_checkpoint(folder, architecture="decoder"):
    special = ["<|mask|>", "<|sentinel_0|>", "<|sentinel_1|>"]
    return make_own(folder, special, architecture=architecture, n_kv_heads=1)


def compute_maps(folder, *texts, **settings):
    config = AttentionMapsConfig(texts=texts or (NURSE,), device="cpu", **settings)
    return attention_maps(folder_to_artifact(folder, "checkpoint"), config)


def read_tables(artifact):
    return [artifact[name].read().to_pandas() for name in ("texts", "tokens", "weights")]


@pytest.mark.parametrize("architecture", STACKS)
def test_tables_hold_the_weights_of_every_head(session, tmp_path, architecture):
    folder = make_checkpoint(tmp_path, architecture)
    texts, tokens, weights = read_tables(
        compute_maps(folder, NURSE, AttentionText(text="Numbers: 0 1 2"))
    )
    model = load_checkpoint(folder)
    assert set(weights["stack"]) == STACKS[architecture]
    for number in (1, 2):
        token_rows = tokens[tokens["text_id"] == number]
        ids = token_rows["token_id"].tolist()
        n = len(ids)
        assert token_rows["position"].tolist() == list(range(n))
        text_weights = weights[weights["text_id"] == number]
        for stack, layers in extract_attention_weights(model, ids).items():
            rows = text_weights[text_weights["stack"] == stack].sort_values(
                ["layer", "head", "query_position", "key_position"]
            )
            expected = np.stack(layers)
            assert expected.shape == (2, 2, n, n) and len(rows) == expected.size
            np.testing.assert_array_equal(
                rows["weight"].to_numpy().reshape(expected.shape), expected
            )
            for column in ("layer", "head"):
                assert set(rows[column]) == {1, 2}
            for column in ("query_position", "key_position"):
                assert set(rows[column]) == set(range(n))
    sums = weights.groupby(["text_id", "stack", "layer", "head", "query_position"])["weight"].sum()
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    ahead = weights[
        (weights["stack"] == "decoder") & (weights["key_position"] > weights["query_position"])
    ]
    assert (ahead["weight"] == 0).all()
    assert texts["omitted_tokens"].tolist() == [0, 0] and texts["note"].tolist() == ["", ""]


def test_tokens_have_character_spans_and_the_word_is_found(session, tmp_path):
    text = "it sits, and it fits: été 😀"
    attention_texts = [
        AttentionText(text=text, word=word) for word in ("it", "fits", "its", "😀", None)
    ]
    texts, tokens, _ = read_tables(compute_maps(make_checkpoint(tmp_path), *attention_texts))
    first = tokens[tokens["text_id"] == 1].to_dict("records")
    assert first[0]["token"] == "<|endoftext|>" and np.isnan(first[0]["char_start"])
    for row in first[1:]:
        assert row["token"] == text[int(row["char_start"]) : int(row["char_end"])]
    covered = {int(c) for row in first[1:] for c in (row["char_start"], row["char_end"] - 1)}
    assert {0, len(text) - 1} <= covered
    query_rows = {
        row["text_id"]: tokens[
            (tokens["text_id"] == row["text_id"]) & (tokens["position"] == row["query_position"])
        ]
        for row in texts.to_dict("records")
    }
    ends = [int(query_rows[number]["char_end"].iloc[0]) for number in range(1, 6)]
    expected_prefixes = ["it", "it sits, and it fits", "it sits", text, text]
    # "its" occurs only within another word.
    assert ends == [len(part) for part in expected_prefixes]


@pytest.mark.parametrize(
    ("name", "stack"), [("gpt2_folder", "decoder"), ("bert_folder", "encoder")]
)
@torch.no_grad()
def test_weights_equal_those_of_transformers(session, request, name, stack):
    import transformers

    folder = request.getfixturevalue(name)
    artifact = compute_maps(folder)
    _, tokens, weights = read_tables(artifact)
    kind = "CausalLM" if stack == "decoder" else "MaskedLM"
    auto = getattr(transformers, f"AutoModelFor{kind}")
    model = auto.from_pretrained(folder, attn_implementation="eager").eval()
    ids = tokens["token_id"].tolist()
    if stack == "encoder":  # between [CLS] and [SEP]
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert ids == tokenizer(NURSE.text)["input_ids"]
    layers = model(torch.tensor([ids]), output_attentions=True).attentions
    expected = np.stack([layer[0] for layer in layers])
    assert set(weights["stack"]) == {stack}
    np.testing.assert_allclose(weights["weight"].to_numpy(), expected.ravel(), atol=1e-6)
    query = artifact["texts"].read()["query_position"][0].as_py()
    assert tokens["token"][query].strip() == "she"


def test_a_model_without_attention_weights_leaves_a_note(session, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = make_own(tmp_path).parent / "tokenizer.json"
    folder = tmp_path / "mamba"
    config = transformers.MambaConfig(
        vocab_size=400, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    transformers.MambaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    artifact = compute_maps(folder)
    assert artifact["weights"].row_count == artifact["tokens"].row_count == 0
    [row] = artifact["texts"].read().to_pylist()
    assert "does not return attention weights" in row["note"] and row["query_position"] is None


def test_long_texts_are_truncated_with_a_note(session, tmp_path):
    folder = make_checkpoint(tmp_path)  # its context length is 48
    long_text = "0 1 2 3 4 5 6 7 8 9 10 11 12 " * 20
    attention_texts = (
        AttentionText(text=f"{long_text} she", word="she"),
        AttentionText(text=long_text.strip(), word="3"),
    )
    texts, tokens, _ = read_tables(compute_maps(folder, *attention_texts, max_tokens=256))
    assert (tokens.groupby("text_id").size() == 48).all()
    assert (texts["omitted_tokens"] > 200).all()
    assert "was not read" in texts["note"][0] and texts["note"][1] == ""
    assert texts["query_position"][0] == 47 and texts["query_position"][1] < 20
    assert (
        read_tables(compute_maps(folder, *attention_texts, max_tokens=7))[1]
        .groupby("text_id")
        .size()
        == 7
    ).all()


def test_the_names_of_special_tokens_are_plain_text(session, tmp_path):
    attention_text = AttentionText(text="<|endoftext|><|pad|>", word="pad")
    _, tokens, _ = read_tables(compute_maps(make_checkpoint(tmp_path), attention_text))
    assert (tokens["token_id"] == 0).sum() == 1 and (tokens["token_id"] == 1).sum() == 0
    assert "".join(tokens["token"][1:]) == attention_text.text


@pytest.mark.parametrize(
    ("text_config", "words"),
    [
        ({"text": ""}, "is empty"),
        ({"text": " \n"}, "is empty"),
        ({"text": "half \ud800"}, "unicode"),
        ({"text": "x" * 2001}, "2000"),
        ({"text": "a b", "word": "c"}, "does not occur"),
        ({"text": "a b", "word": ""}, "is empty"),
        ({"text": "a b", "wrod": "a"}, "Extra"),
    ],
)
def test_texts_that_cannot_be_shown_are_refused(text_config, words):
    with pytest.raises(ValidationError, match=words):
        AttentionMapsConfig(texts=[text_config])


def test_no_text_leaves_empty_tables(session, tmp_path):
    config = AttentionMapsConfig(texts=())
    artifact = attention_maps(folder_to_artifact(make_checkpoint(tmp_path), "checkpoint"), config)
    assert [artifact[name].row_count for name in ("texts", "tokens", "weights")] == [0, 0, 0]


def test_the_same_checkpoint_gives_the_same_tables(session, tmp_path):
    folder = make_checkpoint(tmp_path)
    first, again = compute_maps(folder, NURSE), compute_maps(folder, NURSE, max_tokens=65)
    assert first.fingerprint != again.fingerprint and first.content_digest == again.content_digest
    assert pc.max(first["weights"].read()["weight"]).as_py() <= 1
