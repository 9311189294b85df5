"""Tiny audited models: a Hallmark checkpoint, and a GPT-2 and a BERT of transformers."""

import json

import pytest

TEXTS = [
    "The nurse said that she would be late.",
    "The engineer said that he would be early, as always.",
    "Numbers: 0 1 2 3 4 5 6 7 8 9 10 11 12 and so on.",
    "We read the documentation, line by line; it was long.",
]


def train_bpe(path, vocab=400, special=()):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>", "<|pad|>", *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    tokenizer.save(str(path))
    return tokenizer


def make_own(base, special=(), objective=None, pairs=False, **model_config):
    """Save a random Hallmark checkpoint with weights large enough for clear preferences."""
    import torch

    from hallmark.model.architecture import Transformer
    from hallmark.model.config import ModelConfig
    from hallmark.model.interchange.checkpoint import save_checkpoint

    tokenizer = train_bpe(base / "tokenizer.json", special=special)
    torch.manual_seed(1)
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        context=48,
        d_model=32,
        **{"n_layers": 2, "n_heads": 2, **model_config},
    )
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)
    model.objective, model.is_trained_on_pairs = objective or model.objective, pairs
    save_checkpoint(model, base / "checkpoint", tokenizer_path=base / "tokenizer.json")
    return base / "checkpoint"


@pytest.fixture(scope="session")
def own_folder(tmp_path_factory):
    return make_own(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    """Write a random GPT-2 like transformers does."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("hf") / "gpt2-tiny"
    folder.mkdir()
    tokenizer = train_bpe(folder / "tokenizer.json")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )
    wrapped.save_pretrained(folder)
    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=48,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.2,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """Write a random BERT with a word-piece tokenizer."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder = tmp_path_factory.mktemp("hf") / "bert-tiny"
    folder.mkdir()
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(TEXTS * 20, vocab_size=300, show_progress=False)
    tokenizer.save_model(str(folder))
    wrapped = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    wrapped.save_pretrained(folder)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(wrapped),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def edited(tmp_path):
    """Copy a folder, and remove and change some of its files."""
    import shutil

    def make(folder, *, without=(), config=None):
        target = tmp_path / "edited"
        shutil.copytree(folder, target)
        for name in without:
            (target / name).unlink()
        if config:
            values = json.loads((target / "config.json").read_text())
            (target / "config.json").write_text(json.dumps(values | config))
        return target

    return make
