"""Test that folders which cannot be audited are refused with a sentence that says what to do."""

import shutil

import pytest

from hallmark.model.interchange.checkpoint import CheckpointError, load_checkpoint
from hallmark.model.interchange.transformers_checkpoint import import_transformers
from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.contract import UsageError

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4665076f5b1fd7a8c5e9f1d8a5f2c7b8e6f3b4a5c6d7e8f90a1b2c3d4e5f6071\nsize 548105171\n"
)


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder", "bert_folder"])
def test_git_lfs_pointers_in_place_of_weights_are_named(request, edited, folder):
    path = edited(request.getfixturevalue(folder))
    (path / "model.safetensors").write_text(POINTER)
    message = r"model\.safetensors is a Git LFS pointer.*run `git lfs pull`"
    with pytest.raises(UsageError, match=message) as caught:
        open_audited_model(path, device="cpu")
    assert "\n" not in str(caught.value) and not str(caught.value).endswith(".")
    with pytest.raises(CheckpointError, match=message):
        (load_checkpoint if folder == "own_folder" else import_transformers)(path)


def test_git_lfs_pointers_in_place_of_shards_are_named(edited, gpt2_folder):
    path = edited(gpt2_folder)
    (path / "model.safetensors").rename(path / "model-00001-of-00001.safetensors")
    index = '{"weight_map": {"transformer.wte.weight": "model-00001-of-00001.safetensors"}}'
    (path / "model.safetensors.index.json").write_text(index)
    (path / "model-00001-of-00001.safetensors").write_text(POINTER)
    with pytest.raises(UsageError, match=r"00001\.safetensors is a Git LFS pointer"):
        open_audited_model(path, device="cpu")


def test_git_lfs_pointers_in_place_of_a_tokenizer_are_named(edited, gpt2_folder):
    path = edited(gpt2_folder)
    (path / "tokenizer.json").write_text(POINTER)
    for open_folder in (open_audited_model, open_audited_tokenizer):
        with pytest.raises(UsageError, match=r"tokenizer\.json is a Git LFS pointer"):
            open_folder(path)


def test_an_adapter_next_to_base_weights_is_refused(edited, gpt2_folder):
    """transformers would load the base model alone, or with the adapter if peft is installed."""
    path = edited(gpt2_folder)
    (path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    shutil.copy(path / "model.safetensors", path / "adapter_model.safetensors")
    message = r"contains an adapter .* merge the adapter into its base model.*without the adapter"
    with pytest.raises(UsageError, match=message):
        open_audited_model(path, device="cpu")


def test_an_adapter_without_its_base_model_is_named(edited, gpt2_folder):
    path = edited(gpt2_folder, without=["config.json"])
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for open_folder in (open_audited_model, open_audited_tokenizer):
        with pytest.raises(UsageError, match="contains an adapter without its base model; merge"):
            open_folder(path)
