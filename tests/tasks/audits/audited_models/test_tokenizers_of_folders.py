"""Test tokenizers of unusual folders: more tokens than the model, or SentencePiece alone."""

import importlib
import io
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch

import hallmark
from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.audits.audited_models.transformers_tokenizer import (
    POSITIONS_COUNT_FROM_PADDING_ID,
)
from tests.tasks.audits.audited_models.random_models import BERT, LLAMA, save_model
from tests.tasks.audits.conftest import TEXTS


def test_a_special_token_beyond_the_embeddings_is_plain_text(tmp_path):
    """As the token for images of Gemma 3, which the text model does not know."""
    from tokenizers import AddedToken, Tokenizer

    folder = save_model(tmp_path, "LlamaForCausalLM", 0.2, **LLAMA)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known_count = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken("<image_soft_token>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    text = "We read <image_soft_token> it."
    for model in (open_audited_model(folder, device="cpu"), open_audited_tokenizer(folder)):
        assert model.vocab_size == known_count
        assert max(model.encode(text)) < known_count and model.decode(model.encode(text)) == text
    model = open_audited_model(folder, device="cpu")
    assert model.compute_log_likelihoods([text]).log_likelihoods[0] < 0


def test_sentencepiece_alone_is_read(tmp_path):
    import sentencepiece

    folder = save_model(tmp_path, "LlamaForCausalLM", 0.2, **LLAMA)
    model_file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model_file,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(model_file.getvalue())
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"unk_token": "<unk>"}))
    expected = sentencepiece.SentencePieceProcessor(model_proto=model_file.getvalue())
    model = open_audited_model(folder, device="cpu")
    assert model.encode(TEXTS[0]) == expected.encode(TEXTS[0])
    assert model.decode(model.encode(TEXTS[0])) == TEXTS[0]
    assert model.bos_id == 1


def test_packages_that_read_sentencepiece_files_are_dependencies():
    """transformers needs both, and requires neither."""
    project = Path(hallmark.__file__).parents[1] / "pyproject.toml"
    dependencies = tomllib.loads(project.read_text())["project"]["dependencies"]
    assert {"protobuf", "sentencepiece"} <= {re.split(r"[^\w-]", name)[0] for name in dependencies}


@pytest.mark.parametrize("pad_token_id", [0, 1, 5])
@pytest.mark.parametrize(
    "name",
    [
        "RobertaForMaskedLM",
        "XLMRobertaXLForMaskedLM",
        "MPNetForMaskedLM",
        "Data2VecTextForMaskedLM",
    ],
)
def test_positions_count_from_the_padding_id(tmp_path, name, pad_token_id):
    values = BERT | {"pad_token_id": pad_token_id, "max_position_embeddings": 32}
    folder = save_model(tmp_path, name, 0.2, **values)
    model = open_audited_model(folder, device="cpu")
    assert model.context_length == 32 - (1 if name.startswith("MPNet") else pad_token_id) - 1
    assert open_audited_tokenizer(folder).context_length == model.context_length
    long_text = [*range(7, 7 + 2 * model.context_length)]
    assert len(model.compute_log_probs([long_text])[0]) == len(long_text) - 1
    model.model(torch.full((1, model.context_length), 9))
    with pytest.raises((IndexError, RuntimeError)):
        model.model(torch.full((1, model.context_length + 1), 9))


WHISPER = {
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "max_target_positions": 24,
    "pad_token_id": 1,
}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("MptForCausalLM", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 24}),
        ("WhisperForCausalLM", WHISPER),
    ],
)
def test_other_settings_limit_the_context(tmp_path, name, values):
    """MPT computes its biases for max_seq_len positions, Whisper's decoder has its own setting."""
    model = open_audited_model(save_model(tmp_path, name, 0.2, **values), device="cpu")
    assert model.context_length == 24
    assert len(model.compute_log_probs([[*range(7, 67)]])[0]) == 59


def test_all_families_whose_positions_count_from_the_padding_id_are_listed():
    from transformers.models.auto import configuration_auto, modeling_auto

    declaration = re.compile(
        r"position_embeddings = nn\.Embedding\(\s*config\.max_position_embeddings,"
        r"\s*config\.hidden_size,\s*padding_idx"
    )
    families = {*modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES} | {
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    }
    found = set()
    for family in sorted(families):
        name = configuration_auto.model_type_to_module_name(family)
        package = importlib.import_module(f"transformers.models.{name}")
        for path in Path(package.__file__).parent.glob("modeling_*.py"):
            if declaration.search(path.read_text()):
                found.add(family)
    assert len(found) > 5 and found <= {*POSITIONS_COUNT_FROM_PADDING_ID}
