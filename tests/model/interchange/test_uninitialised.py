"""Models without weights: shapes, what is drawn for them, and what is imported for it."""

import subprocess
import sys

import pytest
import torch

from model.architecture import Transformer
from model.interchange.checkpoint import save_checkpoint
from model.interchange.uninitialised import make_uninitialised_model
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
def test_it_is_the_model_once_weights_are_there(changes):
    model = tiny(**changes)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    vacant = make_uninitialised_model(model.config)
    assert {name: value.shape for name, value in vacant.state_dict().items()} == shapes
    assert all(value.is_meta for value in vacant.state_dict().values())
    copy = make_uninitialised_model(model.config, "cpu").eval()
    copy.load_state_dict(model.state_dict())
    tied = [one.head.weight is one.embedding.weight for one in (copy, model)]
    assert tied[0] == tied[1]
    if model.encoder is None:
        ids = torch.arange(12)[None]
        assert torch.equal(logits(copy, ids), logits(model, ids))


def test_no_number_is_drawn():
    config = tiny().config
    before = torch.random.get_rng_state()
    make_uninitialised_model(config, "cpu")
    assert torch.equal(torch.random.get_rng_state(), before)
    drawn = Transformer(config)  # outside of it weights are drawn as ever
    assert 0.015 < float(drawn.embedding.weight.detach().std()) < 0.025


def test_who_opens_a_checkpoint_waits_for_no_compiler(tmp_path):
    save_checkpoint(
        tiny(), tmp_path / "made", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    program = (
        "import sys; from model.interchange.checkpoint import load_checkpoint; "
        "load_checkpoint(sys.argv[1]); "
        "sys.exit(any(m in sys.modules for m in ('torch._dynamo', 'sympy')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "made")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
