"""GPT-2, Llama, BERT and Marian of transformers against the same models here."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from hallmark.model.decoding.beam_search import decode_with_beam_search
from hallmark.model.decoding.generation import generate
from hallmark.model.interchange.checkpoint import CheckpointError
from hallmark.model.interchange.transformers_checkpoint import (
    export_transformers,
    import_transformers,
)
from tests.model.oracles import logits, tiny, write_tokenizer

transformers = pytest.importorskip("transformers")

FAMILIES = {
    "gpt2": {"activation": "gelu_tanh"},
    "gpt2 with gelu, untied": {"activation": "gelu", "tie_embeddings": False, "d_ff": 50},
    "llama": {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False},
    "llama, grouped queries, untied": {
        "norm": "rmsnorm",
        "positions": "rope",
        "activation": "swiglu",
        "bias": False,
        "n_kv_heads": 2,
        "tie_embeddings": False,
        "rope_theta": 500.0,
        "norm_eps": 1e-6,
    },
    "llama, narrow heads": {
        "norm": "rmsnorm",
        "positions": "rope",
        "activation": "swiglu",
        "bias": False,
        "d_head": 6,
    },
}


@pytest.fixture(params=FAMILIES)
def pair(request, tmp_path):
    """Return a model, the same model loaded by transformers, and its folder."""
    model = tiny(**FAMILIES[request.param])
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer_path=tokenizer)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    return model, theirs.eval(), tmp_path / "theirs"


@torch.no_grad()
def test_logits_equal_transformers_after_export_and_import(pair):
    model, theirs, folder = pair
    ids = torch.randint(0, 61, (3, 16), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids).logits
    torch.testing.assert_close(logits(model, ids), expected, atol=1e-4, rtol=0)
    back = import_transformers(folder)
    assert torch.equal(logits(back, ids), logits(model, ids))


@torch.no_grad()
def test_a_folder_written_by_transformers_can_be_read(pair, tmp_path):
    _, theirs, _ = pair
    theirs.save_pretrained(tmp_path / "written", max_shard_size="20KB")
    assert len(list((tmp_path / "written").glob("*.safetensors"))) > 1
    ids = torch.randint(0, 61, (2, 10), generator=torch.Generator().manual_seed(2))
    ours = import_transformers(tmp_path / "written")
    torch.testing.assert_close(logits(ours, ids), theirs(ids).logits, atol=1e-4, rtol=0)


def test_greedy_text_equals_transformers(pair):
    model, theirs, _ = pair
    for prompt in ([0, 5, 9], [7]):
        ours = generate(model, [prompt], max_new_tokens=10, temperature=0.0, forbid=())[0][0].ids
        ids = torch.tensor([prompt])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False
        )
        assert ours == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("normalisation", ["none", "mean"])
def test_beams_equal_transformers_under_its_stopping_rule(pair, normalisation):
    model, theirs, _ = pair
    with torch.no_grad():  # make the end symbol probable, so that hypotheses complete
        for owner in (model.embedding.weight, theirs.get_input_embeddings().weight):
            owner[0] *= 2.0
    prompts = [[0, 5, 9], [7], [3, 3, 8, 2]]
    for width in (2, 4):
        together = decode_with_beam_search(
            model,
            prompts,
            width=width,
            max_new_tokens=9,
            normalisation=normalisation,
            stopping="transformers",
            forbid=(),
        )
        for prompt, ours in zip(prompts, together, strict=True):
            ids = torch.tensor([prompt])
            expected = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=9,
                num_beams=width,
                num_return_sequences=width,
                length_penalty={"none": 0.0, "mean": 1.0}[normalisation],
                early_stopping=False,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
            )
            rows = [row[len(prompt) :].tolist() for row in expected.sequences]
            rows = [row[: row.index(0) + 1] if 0 in row else row for row in rows]
            scores = expected.sequences_scores.tolist()
            assert [h.score for h in ours] == pytest.approx(scores, abs=1e-4)
            assert [list(h.ids) for h in ours] == rows


BERT = {
    "architecture": "encoder",
    "norm_position": "post",
    "embedding_norm": True,
    "head_transform": True,
    "head_bias": True,
    "norm_eps": 1e-12,
}
MARIAN = {
    "architecture": "encoder_decoder",
    "norm_position": "post",
    "positions": "sinusoidal",
    "head_bias": True,
    "activation": "silu",
}


def export_random_model(config, tmp_path):
    """Export a model with random weights; return it and its folder."""
    model = tiny(**config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    export_transformers(
        model, tmp_path / "c", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    return model, tmp_path / "c"


def make_random_ids(*shape, seed=1):
    return torch.randint(2, 61, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_an_encoder_equals_bert_after_export_and_import(tmp_path):
    model, folder = export_random_model(BERT, tmp_path)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids, real = make_random_ids(3, 12), torch.arange(12) < torch.tensor([[12], [7], [3]])
    expected = theirs(ids, attention_mask=real.long()).logits
    ours = logits(model, ids, attention_mask=real)
    torch.testing.assert_close(ours[real], expected[real], atol=1e-4, rtol=0)
    assert torch.equal(logits(import_transformers(folder), ids), logits(model, ids))


@torch.no_grad()
def test_a_bert_written_by_transformers_can_be_read(tmp_path):
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.BertConfig(
        vocab_size=61,
        num_attention_heads=4,
        max_position_embeddings=20,
        initializer_range=0.3,
        **sizes,
    )
    theirs = transformers.BertForMaskedLM(config).eval()
    theirs.cls.predictions.bias.normal_()
    theirs.save_pretrained(tmp_path / "bert")
    assert theirs.bert.embeddings.token_type_embeddings.weight.abs().sum() > 0
    ids = make_random_ids(2, 15)
    ours = import_transformers(tmp_path / "bert")
    torch.testing.assert_close(logits(ours, ids), theirs(ids).logits, atol=1e-4, rtol=0)


@torch.no_grad()
def test_an_encoder_decoder_equals_marian_after_export_and_import(tmp_path):
    model, folder = export_random_model(MARIAN, tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    source, keys = make_random_ids(3, 9), torch.arange(9) < torch.tensor([[9], [5], [2]])
    ids = make_random_ids(3, 7, seed=2)
    expected = theirs(input_ids=source, attention_mask=keys.long(), decoder_input_ids=ids).logits
    ours = logits(model, ids, source=source, source_attention_mask=keys)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    back = import_transformers(folder)
    assert (back.objective, back.is_trained_on_pairs) == ("seq2seq", True)
    assert torch.equal(logits(back, ids, source=source, source_attention_mask=keys), ours)


@torch.no_grad()
@pytest.mark.parametrize("scaled", [True, False])
def test_a_marian_written_by_transformers_can_be_read(tmp_path, scaled):
    torch.manual_seed(6)
    stacks = {
        f"{stack}_{key}": value
        for stack in ("encoder", "decoder")
        for key, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 40))
    }
    config = transformers.MarianConfig(
        vocab_size=61,
        d_model=32,
        max_position_embeddings=20,
        scale_embedding=scaled,
        activation_function="swish",
        pad_token_id=1,
        eos_token_id=0,
        decoder_start_token_id=0,
        init_std=0.3,
        **stacks,
    )
    theirs = transformers.MarianMTModel(config).eval()
    theirs.final_logits_bias.normal_()
    theirs.save_pretrained(tmp_path / "marian")
    source, ids = make_random_ids(2, 11), make_random_ids(2, 6, seed=3)
    expected = theirs(input_ids=source, decoder_input_ids=ids).logits
    ours = import_transformers(tmp_path / "marian")
    torch.testing.assert_close(logits(ours, ids, source=source), expected, atol=1e-4, rtol=0)


def test_translations_equal_transformers(tmp_path):
    model, folder = export_random_model(MARIAN, tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with torch.no_grad():
        for bias in (model.head.bias, theirs.final_logits_bias.view(-1)):
            bias[0] += 1.5  # make the end symbol probable, so that hypotheses complete
    sources = [make_random_ids(n, seed=n).tolist() for n in (8, 3, 5)]
    together = generate(
        model, [[0]] * 3, sources=sources, max_new_tokens=9, temperature=0.0, forbid=()
    )
    searched = decode_with_beam_search(
        model,
        [[0]] * 3,
        sources=sources,
        width=3,
        max_new_tokens=9,
        normalisation="mean",
        stopping="transformers",
        forbid=(),
    )
    for source, (ours,), hypotheses in zip(sources, together, searched, strict=True):
        options = {"do_sample": False, "max_new_tokens": 9}
        ids = torch.tensor([source])
        greedy = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert ours.ids == greedy[0, 1:].tolist()
        expected = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=3,
            num_return_sequences=3,
            length_penalty=1.0,
            early_stopping=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        rows = [row[1:].tolist() for row in expected.sequences]
        rows = [row[: row.index(0) + 1] if 0 in row else row for row in rows]
        assert [list(h.ids) for h in hypotheses] == rows
        scores = expected.sequences_scores.tolist()
        assert [h.score for h in hypotheses] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": "sinusoidal"}, r"positions must be learned, but is sinusoidal;"),
        (
            {"norm": "rmsnorm", "positions": "rope", "bias": False},
            r"for LlamaForCausalLM, activation must be swiglu, but is gelu\.",
        ),
        ({"scale_embeddings": True}, r"scale_embeddings must be None or False, but is True;"),
        (
            {"d_head": 6},
            r"for GPT2LMHeadModel, n_heads x d_head must equal d_model \(32\), but is 24;",
        ),
        ({"n_kv_heads": 1}, r"for GPT2LMHeadModel, n_kv_heads must equal n_heads \(4\), but is 1;"),
        ({"architecture": "encoder", "embedding_norm": True}, "norm_position must be post, but is"),
    ],
)
def test_a_config_without_counterpart_is_refused_with_reasons(tmp_path, changes, words):
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    with pytest.raises(ValueError, match=words):
        export_transformers(tiny(**changes), tmp_path / "c", tokenizer_path=tokenizer)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "t5"}, "'t5'"),
        ({"n_head": 5}, "not divisible"),
        ({"activation_function": "mish"}, "mish"),
        ({"n_layer": 3}, "no tensor"),
        ({"n_inner": 64}, "shape"),
    ],
)
def test_inconsistent_configs_are_refused(tmp_path, changes, word):
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(tiny(), tmp_path / "c", tokenizer_path=tokenizer)
    path = tmp_path / "c" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=word):
        import_transformers(tmp_path / "c")


def test_truncated_weights_are_refused(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(tiny(), tmp_path / "c", tokenizer_path=tokenizer)
    path = tmp_path / "c" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="cannot be read"):
        import_transformers(tmp_path / "c")


@pytest.mark.parametrize(
    ("config", "changes", "word"),
    [
        (BERT, {"tie_word_embeddings": False}, "not tied"),
        (BERT, {"hidden_act": []}, "wrong type"),
        (BERT, {"max_position_embeddings": 17}, "shape"),
        (MARIAN, {"tie_word_embeddings": False}, "not tied"),
        (MARIAN, {"decoder_vocab_size": 9}, "different vocabularies"),
        (MARIAN, {"static_position_embeddings": False}, "learned positions are not supported"),
        (FAMILIES["llama"], {"rope_parameters": 5}, "wrong type"),
        (FAMILIES["llama"], {"num_attention_heads": None}, "wrong type"),
        (FAMILIES["gpt2"], {"model_type": []}, "can be read"),
        (FAMILIES["gpt2"], {"vocab_size": 2**24, "n_embd": 2**17}, "shape"),
    ],
)
def test_unsupported_configs_are_refused(tmp_path, config, changes, word):
    _, folder = export_random_model(config, tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=word):
        import_transformers(folder)


def test_a_deeply_nested_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[" * 10**5)
    with pytest.raises(CheckpointError, match="cannot be read as a model config"):
        import_transformers(tmp_path)


@pytest.mark.parametrize(
    "index", ["[" * 10**5, "[]", "null", '{"weight_map": []}', '{"weight_map": {"a": 3}}']
)
def test_a_damaged_index_is_refused(tmp_path, index):
    _, folder = export_random_model(FAMILIES["gpt2"], tmp_path)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"cannot be read|is outside the folder"):
        import_transformers(folder)


@pytest.mark.parametrize("config", [FAMILIES["gpt2"], FAMILIES["llama"], BERT, MARIAN])
def test_tensors_of_another_shape_are_refused(tmp_path, config):
    from safetensors.torch import load_file, save_file

    _, folder = export_random_model(config, tmp_path)
    weights = load_file(folder / "model.safetensors")
    for name in list(weights)[:12]:
        for wrong in (torch.zeros(()), torch.zeros(3), torch.zeros(2, 3, 4)):
            save_file({**weights, name: wrong}, folder / "model.safetensors")
            with pytest.raises(CheckpointError):
                import_transformers(folder)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int64])
def test_buffers_saved_by_older_versions_are_ignored(tmp_path, kind):
    """GPT-2's masks and BERT's positions are not weights, whatever their type."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    before = import_transformers(tmp_path).state_dict()
    weights = load_file(path)
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16).to(kind)
    save_file(weights, path, metadata={"format": "pt"})
    after = import_transformers(tmp_path).state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    weights["transformer.h.0.attn.c_attn.weight"] = torch.ones(8, 24).to(kind)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"c_attn\.weight has type .* because it is quantised"
    ):
        import_transformers(tmp_path)
