"""transformers' GPT-2 and Llama as oracles of the architecture, both ways."""

from __future__ import annotations

import json

import pytest
import torch

from model.beam import ModelScorer, beam_search
from model.checkpoint import CheckpointError
from model.convert import export_transformers, import_transformers
from model.decode import generate
from tests.model.oracles import tiny, write_tokenizer

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
}


@pytest.fixture(params=FAMILIES)
def pair(request, tmp_path):
    """Our model and the same one as transformers loads it."""
    model = tiny(**FAMILIES[request.param])
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer=tokenizer)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    return model, theirs.eval(), tmp_path / "theirs"


@torch.no_grad()
def test_logits_equal_those_of_transformers_and_come_back(pair):
    model, theirs, folder = pair
    ids = torch.randint(0, 61, (3, 16), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids).logits
    torch.testing.assert_close(model(ids), expected, atol=1e-4, rtol=0)
    back = import_transformers(folder)
    assert torch.equal(back(ids), model(ids))


@torch.no_grad()
def test_a_folder_that_transformers_wrote_is_read(pair, tmp_path):
    _, theirs, _ = pair
    theirs.save_pretrained(tmp_path / "written", max_shard_size="20KB")
    assert len(list((tmp_path / "written").glob("*.safetensors"))) > 1
    ids = torch.randint(0, 61, (2, 10), generator=torch.Generator().manual_seed(2))
    ours = import_transformers(tmp_path / "written")
    torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-4, rtol=0)


def test_greedy_text_equals_generate(pair):
    model, theirs, _ = pair
    for prompt in ([0, 5, 9], [7]):
        ours = generate(model, [prompt], max_new_tokens=10, temperature=0.0, forbid=())[0][0].ids
        ids = torch.tensor([prompt])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False
        )
        assert ours == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("normalisation", ["none", "mean"])
def test_beams_equal_generate_under_its_stopping_rule(pair, normalisation):
    model, theirs, _ = pair
    with torch.no_grad():  # make the end symbol likely, so that hypotheses do complete
        for owner in (model.embedding.weight, theirs.get_input_embeddings().weight):
            owner[0] *= 2.0
    for prompt in ([0, 5, 9], [7], [3, 3, 8, 2]):
        for width in (2, 4):
            ours = beam_search(
                ModelScorer(model, prompt, max_new_tokens=9),
                width=width,
                max_new_tokens=9,
                end=0,
                normalisation=normalisation,
                stopping="transformers",
            )
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


def test_a_config_without_a_counterpart_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no architecture"):
        export_transformers(
            tiny(positions="sinusoidal"),
            tmp_path / "c",
            tokenizer=write_tokenizer(tmp_path / "tok.json", 61),
        )


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "bert"}, "'bert'"),
        ({"n_head": 5}, "not divisible"),
        ({"activation_function": "mish"}, "mish"),
        ({"n_layer": 3}, "no tensor"),
        ({"n_inner": 64}, "shape"),
    ],
)
def test_folders_that_do_not_fit_are_refused(tmp_path, changes, word):
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(tiny(), tmp_path / "c", tokenizer=tokenizer)
    path = tmp_path / "c" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=word):
        import_transformers(tmp_path / "c")


def test_truncated_weights_are_refused(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(tiny(), tmp_path / "c", tokenizer=tokenizer)
    path = tmp_path / "c" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="cannot be read"):
        import_transformers(tmp_path / "c")
