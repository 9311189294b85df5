"""What ``generate`` and ``audit`` load from one folder: the weights that transformers loads."""

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


def config_of(kind, size):
    import transformers

    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 48}
        return transformers.GPT2Config(
            vocab_size=size, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False, **sizes
        )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "vocab_size": size, "max_position_embeddings": 48}
    return transformers.BertConfig(**sizes) if kind == "bert" else transformers.LlamaConfig(**sizes)


def make(kind, folder, seed=0, **save):
    """A folder of a random model whose output layer is its own, but for BERT."""
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
    model = auto.from_config(config_of(kind, tokenizer.get_vocab_size()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder, **save)
    return folder


def edit(folder, **changes):
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def change(folder, act):
    path = folder / "model.safetensors"
    weights = load_file(path)
    act(weights)
    save_file({k: v.contiguous() for k, v in weights.items()}, path, metadata={"format": "pt"})


@torch.no_grad()
def all_logits(folder, kind):
    """Logits of transformers itself, of what ``audit`` loads and of what ``generate`` loads."""
    import transformers

    from hallmark.model.batch import Batch

    ids = torch.arange(2, 22)[None]
    auto = (
        transformers.AutoModelForMaskedLM if kind == "bert" else (transformers.AutoModelForCausalLM)
    )
    subject = open_audited_model(folder, device="cpu")
    ours = import_transformers(folder)
    mine = ours.compute_logits(ours(Batch(ids))) if kind == "bert" else logits(ours, ids)
    reference = auto.from_pretrained(folder, dtype=torch.float32).eval()
    return [reference(ids).logits, subject.model(ids).logits, mine]


def check_same(folder, kind):
    reference, audited, generated = all_logits(folder, kind)
    torch.testing.assert_close(audited, reference, atol=1e-5, rtol=0)
    torch.testing.assert_close(generated, reference, atol=1e-4, rtol=0)
    return reference


def refused(folder, match):
    for opens, error in ((import_transformers, CheckpointError), (open_audited_model, UsageError)):
        with pytest.raises(error, match=match) as raised:
            opens(folder)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_one_file_comes_before_shards(tmp_path, kind):
    """An index of shards that are gone, and of shards of another model that are still there."""
    folder = make(kind, tmp_path / "a", max_shard_size="20KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1
    sharded = check_same(folder, kind)
    other = make(kind, tmp_path / "b", seed=1)
    shutil.copy(other / "model.safetensors", folder)
    both = check_same(folder, kind)
    assert not torch.allclose(both, sharded, atol=0.1)
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()
    torch.testing.assert_close(check_same(folder, kind), both)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("said", [True, ...])
def test_a_tied_output_layer_with_weights_of_its_own(tmp_path, kind, said):
    """By the config or, of GPT-2, by what it leaves out."""
    folder = make(kind, tmp_path / "a")
    before = check_same(folder, kind)
    edit(folder, tie_word_embeddings=said)
    torch.testing.assert_close(check_same(folder, kind), before)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_tied_output_layer_alone_is_the_embedding(tmp_path, kind):
    folder = make(kind, tmp_path / "a")
    edit(folder, tie_word_embeddings=True)
    change(folder, lambda weights: weights.pop(EMBEDDINGS[kind]))
    check_same(folder, kind)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_tied_output_layer_that_is_a_copy(tmp_path, kind):
    folder = make(kind, tmp_path / "a")
    edit(folder, tie_word_embeddings=True)
    change(folder, lambda w: w.update({"lm_head.weight": w[EMBEDDINGS[kind]].clone()}))
    check_same(folder, kind)
    change(folder, lambda w: w.pop("lm_head.weight"))
    check_same(folder, kind)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_an_output_layer_of_its_own_that_is_missing_is_refused(tmp_path, kind):
    folder = make(kind, tmp_path / "a")
    change(folder, lambda weights: weights.pop("lm_head.weight"))
    edit(folder, tie_word_embeddings=False)
    refused(folder, "lm_head.weight")


@pytest.mark.parametrize("name", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
def test_what_ours_must_tie_is_refused_where_it_is_not(tmp_path, name):
    folder = make("bert", tmp_path / "a")
    first = "cls.predictions.bias" if name.endswith("bias") else EMBEDDINGS["bert"]
    change(folder, lambda w: w.update({name: w[first].clone()}))
    check_same(folder, "bert")
    change(folder, lambda w: w.pop(first))
    check_same(folder, "bert")
    change(folder, lambda w: w.update({first: w[name] + 1}))
    with pytest.raises(CheckpointError, match=f"{name} differs from {first}"):
        import_transformers(folder)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_other_ways_of_writing_the_same_model(tmp_path, kind):
    folder = make(kind, tmp_path / "a")
    base = EMBEDDINGS[kind].partition(".")[0] + "."
    before = check_same(folder, kind)

    def strip(weights):
        for name in [*weights]:
            weights[name.removeprefix(base)] = weights.pop(name)

    change(folder, strip)
    torch.testing.assert_close(check_same(folder, kind), before)
    change(folder, lambda w: w.update({"score.weight": torch.ones(3)}))
    torch.testing.assert_close(check_same(folder, kind), before)
    change(folder, lambda w: w.update({name: t.bfloat16() for name, t in w.items()}))
    check_same(folder, kind)
    (folder / "model.safetensors").rename(folder / "named.safetensors")
    make(kind, tmp_path / "b", seed=1)
    shutil.copy(tmp_path / "b" / "model.safetensors", folder)
    other = check_same(folder, kind)
    edit(folder, transformers_weights="named.safetensors")
    assert not torch.allclose(check_same(folder, kind), other, atol=0.1)


def test_weights_that_one_of_both_would_read_otherwise_are_refused(tmp_path):
    folder = make("llama", tmp_path / "a")
    (folder / "adapter_config.json").write_text("{}")
    refused(folder, "contains an adapter")
    (folder / "adapter_config.json").unlink()
    edit(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(CheckpointError, match="quantised weights"):
        import_transformers(folder)
    edit(folder, quantization_config=...)
    name = "model.layers.0.mlp.up_proj.weight"
    change(folder, lambda w: w.update({name: w[name].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=rf"{name} has type torch\.int8"):
        import_transformers(folder)


@pytest.mark.parametrize("where", ["../b/model.safetensors", "/x.safetensors", ".x.safetensors"])
@pytest.mark.parametrize("named", ["index", "config"])
def test_weights_outside_of_the_folder_are_refused(tmp_path, where, named):
    """Their digest would not be the folder's."""
    folder = make("llama", tmp_path / "a")
    make("llama", tmp_path / "b", seed=1)
    if named == "config":
        edit(folder, transformers_weights=where)
    else:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, where)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "is not inside its folder")


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("other.safetensors", "no other.safetensors, which transformers_weights in its config"),
        ("pytorch_model.bin", "is not a safetensors file"),
        (["model.safetensors"], "must be the name of a file"),
        (7, "must be the name of a file"),
    ],
)
def test_a_wrong_name_of_weights_in_the_config_is_refused(tmp_path, named, why):
    folder = make("llama", tmp_path / "a")
    (folder / "pytorch_model.bin").write_bytes(b"")
    edit(folder, transformers_weights=named)
    with pytest.raises(CheckpointError, match=why):
        import_transformers(folder)
