"""Test that ``generate`` and ``audit`` load the same weights from a folder as transformers."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from hallmark.model.interchange.checkpoint import CheckpointError
from hallmark.model.interchange.transformers_checkpoint import import_transformers
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.contract import UsageError
from tests.model.oracles import logits
from tests.tasks.audits.conftest import train_bpe

EMBEDDINGS = {
    "gpt2": "transformer.wte.weight",
    "llama": "model.embed_tokens.weight",
    "bert": "bert.embeddings.word_embeddings.weight",
}


def make_config(kind, size):
    import transformers

    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 48}
        return transformers.GPT2Config(
            vocab_size=size, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False, **sizes
        )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "vocab_size": size, "max_position_embeddings": 48}
    return transformers.BertConfig(**sizes) if kind == "bert" else transformers.LlamaConfig(**sizes)


def save_random_model(kind, folder, seed=0, **save):
    """Save a random model; its output layer is not tied, except for BERT."""
    import transformers

    folder.mkdir(exist_ok=True)
    tokenizer = train_bpe(folder / "tokenizer.json", special=("<|mask|>",))
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        mask_token="<|mask|>",
    ).save_pretrained(folder)
    auto = (
        transformers.AutoModelForMaskedLM if kind == "bert" else (transformers.AutoModelForCausalLM)
    )
    torch.manual_seed(seed)
    model = auto.from_config(make_config(kind, tokenizer.get_vocab_size()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder, **save)
    return folder


def edit_config(folder, **changes):
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def edit_weights(folder, modify):
    path = folder / "model.safetensors"
    weights = load_file(path)
    modify(weights)
    save_file({k: v.contiguous() for k, v in weights.items()}, path, metadata={"format": "pt"})


@torch.no_grad()
def compute_all_logits(folder, kind):
    """Return the logits of transformers, of the audited model and of the imported model."""
    import transformers

    from hallmark.model.batch import Batch

    ids = torch.arange(2, 22)[None]
    auto = (
        transformers.AutoModelForMaskedLM if kind == "bert" else (transformers.AutoModelForCausalLM)
    )
    audited = open_audited_model(folder, device="cpu")
    imported = import_transformers(folder)
    imported_logits = (
        imported.compute_logits(imported(Batch(ids))) if kind == "bert" else logits(imported, ids)
    )
    reference = auto.from_pretrained(folder, dtype=torch.float32).eval()
    return [reference(ids).logits, audited.model(ids).logits, imported_logits]


def assert_same_logits(folder, kind):
    reference, audited, generated = compute_all_logits(folder, kind)
    torch.testing.assert_close(audited, reference, atol=1e-5, rtol=0)
    torch.testing.assert_close(generated, reference, atol=1e-4, rtol=0)
    return reference


def assert_refused(folder, match):
    for open_folder, error in (
        (import_transformers, CheckpointError),
        (open_audited_model, UsageError),
    ):
        with pytest.raises(error, match=match) as raised:
            open_folder(folder)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_a_single_file_is_preferred_to_shards(tmp_path, kind):
    """Shards may be missing, or belong to another model."""
    folder = save_random_model(kind, tmp_path / "a", max_shard_size="20KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1
    sharded = assert_same_logits(folder, kind)
    other_folder = save_random_model(kind, tmp_path / "b", seed=1)
    shutil.copy(other_folder / "model.safetensors", folder)
    single_file_logits = assert_same_logits(folder, kind)
    assert not torch.allclose(single_file_logits, sharded, atol=0.1)
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()
    torch.testing.assert_close(assert_same_logits(folder, kind), single_file_logits)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("tied", [True, ...])
def test_tied_output_weights_in_the_file_are_used(tmp_path, kind, tied):
    """Tied by the config or, for GPT-2, by default."""
    folder = save_random_model(kind, tmp_path / "a")
    untied_logits = assert_same_logits(folder, kind)
    edit_config(folder, tie_word_embeddings=tied)
    torch.testing.assert_close(assert_same_logits(folder, kind), untied_logits)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_tied_output_layer_replaces_the_embedding(tmp_path, kind):
    folder = save_random_model(kind, tmp_path / "a")
    edit_config(folder, tie_word_embeddings=True)
    edit_weights(folder, lambda weights: weights.pop(EMBEDDINGS[kind]))
    assert_same_logits(folder, kind)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_tied_output_layer_may_be_a_copy(tmp_path, kind):
    folder = save_random_model(kind, tmp_path / "a")
    edit_config(folder, tie_word_embeddings=True)
    edit_weights(folder, lambda w: w.update({"lm_head.weight": w[EMBEDDINGS[kind]].clone()}))
    assert_same_logits(folder, kind)
    edit_weights(folder, lambda w: w.pop("lm_head.weight"))
    assert_same_logits(folder, kind)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_missing_untied_output_layer_is_refused(tmp_path, kind):
    folder = save_random_model(kind, tmp_path / "a")
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    edit_config(folder, tie_word_embeddings=False)
    assert_refused(folder, "lm_head.weight")


@pytest.mark.parametrize("name", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
def test_untied_weights_that_must_be_tied_are_refused(tmp_path, name):
    folder = save_random_model("bert", tmp_path / "a")
    first = "cls.predictions.bias" if name.endswith("bias") else EMBEDDINGS["bert"]
    edit_weights(folder, lambda w: w.update({name: w[first].clone()}))
    assert_same_logits(folder, "bert")
    edit_weights(folder, lambda w: w.pop(first))
    assert_same_logits(folder, "bert")
    edit_weights(folder, lambda w: w.update({first: w[name] + 1}))
    with pytest.raises(
        CheckpointError, match=f"tensors {name} and {first} are tied in config.json, but"
    ):
        import_transformers(folder)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_other_file_formats_of_the_same_model(tmp_path, kind):
    folder = save_random_model(kind, tmp_path / "a")
    base = EMBEDDINGS[kind].partition(".")[0] + "."
    original_logits = assert_same_logits(folder, kind)

    def strip(weights):
        for name in [*weights]:
            weights[name.removeprefix(base)] = weights.pop(name)

    edit_weights(folder, strip)
    torch.testing.assert_close(assert_same_logits(folder, kind), original_logits)
    edit_weights(folder, lambda w: w.update({"score.weight": torch.ones(3)}))
    torch.testing.assert_close(assert_same_logits(folder, kind), original_logits)
    edit_weights(folder, lambda w: w.update({name: t.bfloat16() for name, t in w.items()}))
    assert_same_logits(folder, kind)
    (folder / "model.safetensors").rename(folder / "named.safetensors")
    save_random_model(kind, tmp_path / "b", seed=1)
    shutil.copy(tmp_path / "b" / "model.safetensors", folder)
    other_logits = assert_same_logits(folder, kind)
    edit_config(folder, transformers_weights="named.safetensors")
    assert not torch.allclose(assert_same_logits(folder, kind), other_logits, atol=0.1)


def test_weights_that_would_be_read_differently_are_refused(tmp_path):
    folder = save_random_model("llama", tmp_path / "a")
    (folder / "adapter_config.json").write_text("{}")
    assert_refused(folder, "contains an adapter")
    (folder / "adapter_config.json").unlink()
    edit_config(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(CheckpointError, match="quantised weights"):
        import_transformers(folder)
    edit_config(folder, quantization_config=...)
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(folder, lambda w: w.update({name: w[name].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=rf"{name} has type torch\.int8"):
        import_transformers(folder)


@pytest.mark.parametrize(
    "file_name", ["../b/model.safetensors", "/x.safetensors", ".x.safetensors"]
)
@pytest.mark.parametrize("named_by", ["index", "config"])
def test_weights_outside_of_the_folder_are_refused(tmp_path, file_name, named_by):
    """They would not be part of the folder's digest."""
    folder = save_random_model("llama", tmp_path / "a")
    save_random_model("llama", tmp_path / "b", seed=1)
    if named_by == "config":
        edit_config(folder, transformers_weights=file_name)
    else:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, file_name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_refused(folder, "is outside the folder")


@pytest.mark.parametrize(
    ("file_name", "message"),
    [
        ("other.safetensors", "no other.safetensors, although the transformers_weights key in"),
        ("pytorch_model.bin", "is not a safetensors file"),
        (["model.safetensors"], "must be a file name"),
        (7, "must be a file name"),
    ],
)
def test_a_wrong_name_of_weights_in_the_config_is_refused(tmp_path, file_name, message):
    folder = save_random_model("llama", tmp_path / "a")
    (folder / "pytorch_model.bin").write_bytes(b"")
    edit_config(folder, transformers_weights=file_name)
    with pytest.raises(CheckpointError, match=message):
        import_transformers(folder)
