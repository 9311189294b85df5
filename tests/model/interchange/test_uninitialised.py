"""Uninitialised models: their shapes, and that nothing is drawn or imported for them."""

import subprocess
import sys

import pytest
import torch

from hallmark.model.architecture import Transformer
from hallmark.model.interchange.checkpoint import save_checkpoint
from hallmark.model.interchange.uninitialised import make_uninitialised_model
from tests.model.oracles import logits, tiny, write_tokenizer

KINDS = [
    {},
    {"positions": "sinusoidal", "norm_position": "post", "tie_embeddings": False},
    {
        "architecture": "encoder_decoder",
        "positions": "rope",
        "norm": "rmsnorm",
        "activation": "swiglu",
        "bias": False,
    },
]


@pytest.mark.parametrize("changes", KINDS)
def test_an_uninitialised_model_equals_the_model_once_weights_are_loaded(changes):
    model = tiny(**changes)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    meta_model = make_uninitialised_model(model.config)
    assert {name: value.shape for name, value in meta_model.state_dict().items()} == shapes
    assert all(value.is_meta for value in meta_model.state_dict().values())
    copy = make_uninitialised_model(model.config, "cpu").eval()
    copy.load_state_dict(model.state_dict())
    tied = [one.head.weight is one.embedding.weight for one in (copy, model)]
    assert tied[0] == tied[1]
    if model.encoder is None:
        ids = torch.arange(12)[None]
        assert torch.equal(logits(copy, ids), logits(model, ids))


def test_no_random_number_is_drawn():
    config = tiny().config
    before = torch.random.get_rng_state()
    make_uninitialised_model(config, "cpu")
    assert torch.equal(torch.random.get_rng_state(), before)
    initialised = Transformer(config)  # other models are initialised as usual
    assert 0.015 < float(initialised.embedding.weight.detach().std()) < 0.025


def test_loading_a_checkpoint_imports_no_compiler(tmp_path):
    save_checkpoint(
        tiny(), tmp_path / "made", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    program = (
        "import sys; from hallmark.model.interchange.checkpoint import load_checkpoint; "
        "load_checkpoint(sys.argv[1]); "
        "sys.exit(any(m in sys.modules for m in ('torch._dynamo', 'sympy')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "made")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
