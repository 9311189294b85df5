"""Checkpoints: the same logits after loading, older formats, and damaged folders."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from hallmark.model.config import ARCHITECTURE_BY_OBJECTIVE
from hallmark.model.interchange.checkpoint import (
    CheckpointError,
    load_checkpoint,
    read_model_config,
    save_checkpoint,
)
from tests.model.oracles import logits, tiny, write_tokenizer


@pytest.fixture
def saved(tmp_path):
    model = tiny()
    folder = tmp_path / "checkpoint"
    save_checkpoint(model, folder, tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61))
    return model, folder


@pytest.mark.parametrize("tied", [True, False])
def test_a_loaded_checkpoint_has_the_same_logits(tmp_path, tied):
    model = tiny(tie_embeddings=tied)
    save_checkpoint(
        model, tmp_path / "c", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    loaded = load_checkpoint(tmp_path / "c")
    ids = torch.randint(0, 61, (2, 9))
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert not loaded.training
    assert loaded.count_parameters_by_group() == model.count_parameters_by_group()
    assert (loaded.head.weight is loaded.embedding.weight) == tied
    assert (tmp_path / "c" / "tokenizer.json").read_bytes() == (tmp_path / "tok.json").read_bytes()


def test_a_checkpoint_has_three_files_and_its_config(saved):
    model, folder = saved
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "hallmark"
    assert read_model_config(folder) == model.config


def test_checkpoints_of_one_training_differ_only_in_their_weights(saved, tmp_path):
    model, folder = saved
    with torch.no_grad():
        model.embedding.weight += 1
    save_checkpoint(model, tmp_path / "later", tokenizer_path=folder / "tokenizer.json")
    same = {
        path.name: path.read_bytes() == (tmp_path / "later" / path.name).read_bytes()
        for path in folder.iterdir()
    }
    assert same == {"config.json": True, "tokenizer.json": True, "model.safetensors": False}


@pytest.mark.parametrize(
    ("architecture", "objectives"),
    [("decoder", ("causal", "prefix")), ("encoder_decoder", ("span_corruption", "seq2seq"))],
)
def test_an_older_checkpoint_without_objective_is_refused(tmp_path, architecture, objectives):
    save_checkpoint(
        tiny(architecture=architecture),
        tmp_path / "c",
        tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61),
    )
    path = tmp_path / "c" / "config.json"
    config = json.loads(path.read_text())
    assert config.pop("objective") == objectives[0]
    for name in objectives:
        path.write_text(json.dumps(config | {"objective": name}))
        assert load_checkpoint(tmp_path / "c").objective == name
    path.write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match="does not specify the model's training objective"
    ) as error:
        load_checkpoint(tmp_path / "c")
    assert all(f'"objective": "{name}"' in str(error.value) for name in objectives)


@pytest.mark.parametrize(("objective", "older"), [("prefix", False), ("seq2seq", True)])
def test_a_checkpoint_records_whether_it_was_trained_on_pairs(tmp_path, objective, older):
    """In older checkpoints only the objective seq2seq implies it."""
    model = tiny(architecture=ARCHITECTURE_BY_OBJECTIVE[objective])
    model.objective = objective
    for pairs in (True, False):
        model.is_trained_on_pairs = pairs
        folder = tmp_path / str(pairs)
        save_checkpoint(model, folder, tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61))
        assert load_checkpoint(folder).is_trained_on_pairs == (pairs or objective == "seq2seq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pairs": "no"}))
    with pytest.raises(
        CheckpointError, match="the 'pairs' setting must be true or false, not 'no'"
    ):
        load_checkpoint(folder)
    del config["pairs"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_checkpoint(folder).is_trained_on_pairs == older
    del config["objective"]  # pairs alone imply the objective
    (folder / "config.json").write_text(json.dumps(config | {"pairs": True}))
    assert (load_checkpoint(folder).objective, load_checkpoint(folder).is_trained_on_pairs) == (
        objective,
        True,
    )


@pytest.mark.parametrize("objective", ["causal", "prefix"])
def test_a_checkpoint_records_its_objective(tmp_path, objective):
    model = tiny()
    model.objective = objective
    save_checkpoint(
        model, tmp_path / "c", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    assert load_checkpoint(tmp_path / "c").objective == objective
    assert load_checkpoint(tmp_path / "c", objective="causal").objective == "causal"


def test_an_older_decoder_needs_its_objective_added_or_given(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    del config["objective"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match='add "objective": "causal" to the file, or') as error:
        load_checkpoint(folder)
    assert "\n" not in str(error.value)
    # A following training names its objective.
    assert load_checkpoint(folder, objective="prefix").objective == "prefix"


def test_an_older_encoder_needs_no_objective(tmp_path):
    model = tiny(architecture="encoder")
    save_checkpoint(
        model, tmp_path / "c", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    damage_config(objective=None)(tmp_path / "c")
    assert load_checkpoint(tmp_path / "c").objective is None


def test_an_older_model_with_sinusoids_keeps_its_logits(tmp_path):
    """It was trained before embeddings were multiplied by sqrt(d), and does not record that."""
    model = tiny(positions="sinusoidal", scale_embeddings=False)
    save_checkpoint(
        model, tmp_path / "c", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    del config["model"]["scale_embeddings"]
    (tmp_path / "c" / "config.json").write_text(json.dumps(config))
    ids = torch.randint(0, 61, (2, 9))
    assert torch.equal(logits(load_checkpoint(tmp_path / "c"), ids), logits(model, ids))


def damage_truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_header(folder):
    header = json.dumps({"a": {"dtype": "\x1b[2J\n\r" + "a" * 9000}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def damage_config(**changes):
    def damage(folder):
        config = json.loads((folder / "config.json").read_text())
        for key, value in changes.items():
            target = config if key in config else config["model"]
            target[key] = value
        (folder / "config.json").write_text(json.dumps(config))

    return damage


DAMAGES = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "truncated": (damage_truncate, "truncated"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "truncated"),
    "hostile header": (damage_header, r"unknown variant `\\x1b\[2J\\n\\raaa"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "config too deep": (lambda f: (f / "config.json").write_text("[" * 10**5), "not valid JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "type None"),
    "other model": (damage_config(model_type="gpt2"), "type 'gpt2'"),
    "other format": (damage_config(format=99), "format 99"),
    "unknown key": (damage_config(colour="red"), "no setting 'colour'"),
    "other objective": (
        damage_config(objective="mlm"),
        "objective 'mlm', but the decoder architecture requires",
    ),
    "no objective": (
        damage_config(objective=None),
        "does not specify the model's training objective",
    ),
    "indivisible": (damage_config(n_heads=5), "not divisible"),
    "wider": (damage_config(d_model=64), "does not match its config"),
    "deeper": (damage_config(n_layers=3), "is missing in the file, but the config requires"),
    "encoder": (damage_config(architecture="encoder"), "the config from another model"),
    "other vocabulary": (damage_config(vocab_size=60), "61 tokens"),
    "tokenizer torn": (lambda f: (f / "tokenizer.json").write_text("{"), "not a tokenizer"),
    "no folder": (shutil.rmtree, "not a folder"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_in_one_sentence(saved, name):
    _, folder = saved
    damage, word = DAMAGES[name]
    damage(folder)
    with pytest.raises(CheckpointError, match=word) as error:
        load_checkpoint(folder)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_a_failed_save_leaves_no_files(tmp_path):
    with pytest.raises(OSError):
        save_checkpoint(tiny(), tmp_path / "c", tokenizer_path=tmp_path / "no-tokenizer.json")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_checkpoint_is_never_overwritten(saved, tmp_path):
    _, folder = saved
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(OSError):
        save_checkpoint(tiny(d_model=64), folder, tokenizer_path=tmp_path / "tok.json")
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_message_with_a_long_value_is_cut_in_the_middle():
    assert str(CheckpointError("a" * 1000)) == "a" * 1000
    message = str(CheckpointError("FILE: " + "x" * 100_000 + "; remedy"))
    assert len(message) < 1010
    assert message.startswith("FILE: xxx") and " … " in message and message.endswith("; remedy")
