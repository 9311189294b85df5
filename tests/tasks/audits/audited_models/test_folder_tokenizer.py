"""Test the tokenizers of Hugging Face folders against their own tokenizer.json."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.audits.audited_models.transformers_tokenizer import (
    count_layers,
    load_transformers_tokenizer,
)
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.conftest import TEXTS

TEXT = "The nurse, aged 1999, said: 2023, 650841823 and 36510241999."

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SPECIAL = tuple(NAMES.values())


def train_unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=[*SPECIAL],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, TEXT] * 20, trainer)
    return tokenizer


def train_digits(special=SPECIAL):
    """Train byte-level BPE that splits numbers into groups of three digits."""
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+"), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, "2023 1999 1024 365 650841823 "] * 20, trainer)
    return tokenizer


def write_folder(folder, tokenizer=None, **files):
    """Write a folder with tokenizer.json and JSON files by name."""
    folder.mkdir(exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize(
    ("train", "model_type", "tokenizer_class"),
    [
        (train_unigram, "qwen2", "TokenizersBackend"),
        (train_unigram, "qwen3_5", "PreTrainedTokenizerFast"),
        (train_digits, "gpt2", "GPT2Tokenizer"),
        (train_digits, "qwen2", "Qwen2Tokenizer"),
        (train_digits, "llama", "LlamaTokenizerFast"),
        (train_digits, "roberta", "RobertaTokenizer"),
        (train_unigram, "bert", "BertTokenizer"),
        (train_unigram, "gpt2", None),
    ],
)
def test_ids_equal_those_of_tokenizer_json(tmp_path, train, model_type, tokenizer_class):
    """transformers#45920, #44462: AutoTokenizer rebuilds some with the usual class of the model."""
    backend = train()
    settings = NAMES | ({"tokenizer_class": tokenizer_class} if tokenizer_class else {})
    folder = write_folder(
        tmp_path / "model",
        backend,
        config={"model_type": model_type},
        tokenizer_config=settings,
    )
    tokenizer = load_transformers_tokenizer(folder)
    ids = backend.encode(TEXT, add_special_tokens=False).ids
    assert encode(tokenizer, TEXT) == ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == backend.decode(ids)
    assert {name: getattr(tokenizer, name) for name in NAMES} == NAMES
    assert len(tokenizer) == backend.get_vocab_size()


def test_names_of_special_tokens_in_a_text_are_plain_text(tmp_path):
    """Also if tokenizer.json does not mark them as special."""
    backend = train_digits(special=["<s>"])
    backend.add_tokens(["<|im_end|>", "<|image|>"])
    settings = {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}}
    settings["additional_special_tokens"] = ["<|image|>"]
    folder = write_folder(tmp_path / "model", backend, tokenizer_config=settings)
    tokenizer = load_transformers_tokenizer(folder)
    special = [backend.token_to_id(token) for token in ("<s>", "<|im_end|>", "<|image|>")]
    text = "a<s>b<|im_end|>c<|image|>d"
    ids = encode(tokenizer, text)
    assert not {*special} & {*ids}
    assert tokenizer.decode([*special, *ids, *special], skip_special_tokens=True) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (special[0], special[1])


def test_a_token_outside_of_the_vocabulary_is_not_added(tmp_path):
    """GPT-2's class expects <|endoftext|>, which would be a new id beyond the vocabulary."""
    folder = write_folder(tmp_path / "model", train_digits(), config={"model_type": "gpt2"})
    tokenizer = load_transformers_tokenizer(folder)
    assert tokenizer.bos_token is tokenizer.eos_token is tokenizer.pad_token is None
    assert "<|endoftext|>" not in tokenizer.get_vocab()


@pytest.mark.parametrize("file", ["config", "generation_config"])
def test_config_ids_name_the_special_tokens(tmp_path, file):
    files = {"config": {"model_type": "gpt2"}}
    files[file] = {"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": [900, 1]}
    tokenizer = load_transformers_tokenizer(
        write_folder(tmp_path / "model", train_digits(), **files)
    )
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


@pytest.mark.parametrize("token_id", [50256, 100, -1, None, "0", True])
def test_config_ids_of_ordinary_tokens_are_not_used(tmp_path, token_id):
    """The id 100 is an ordinary byte."""
    config = {"model_type": "gpt2", "bos_token_id": token_id}
    tokenizer = load_transformers_tokenizer(
        write_folder(tmp_path / "model", train_digits(), config=config)
    )
    assert tokenizer.bos_token is None


def test_a_token_that_is_set_to_null_stays_null(tmp_path):
    """Qwen2's tokenizer_config.json sets it to null, although config.json has a bos_token_id."""
    folder = write_folder(
        tmp_path / "model",
        train_digits(),
        config={"model_type": "qwen2", "bos_token_id": 0},
        tokenizer_config={"bos_token": None, "eos_token": "</s>"},
    )
    tokenizer = load_transformers_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (None, "</s>")


def test_declared_tokens_outside_of_the_vocabulary_are_not_used(tmp_path):
    folder = write_folder(
        tmp_path / "model",
        train_digits(),
        config={"model_type": "gpt2", "bos_token_id": 0},
        tokenizer_config={"bos_token": "<|begin|>", "eos_token": "<|end|>"},
        special_tokens_map={"pad_token": "<pad>"},
    )
    tokenizer = load_transformers_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", None)
    assert tokenizer.pad_token == "<pad>"


def test_default_tokens_of_a_class_are_used_if_in_the_vocabulary(tmp_path):
    """The tokenizer_config.json of bert-base-uncased names none."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = train_digits(special=special)
    tokenizer = load_transformers_tokenizer(
        write_folder(tmp_path / "a", backend, config={"model_type": "bert"})
    )
    special_tokens = (
        tokenizer.pad_token,
        tokenizer.unk_token,
        tokenizer.cls_token,
        tokenizer.sep_token,
    )
    assert [*special_tokens, tokenizer.mask_token] == special
    backend = train_digits(special=special[:4])
    tokenizer = load_transformers_tokenizer(
        write_folder(tmp_path / "b", backend, config={"model_type": "bert"})
    )
    assert tokenizer.cls_token == "[CLS]" and tokenizer.mask_token is None


def test_tokens_outside_of_vocab_json_are_not_used(tmp_path):
    folder = write_folder(tmp_path / "model", config={"model_type": "gpt2", "bos_token_id": 0})
    train_digits().model.save(str(folder))
    assert not (folder / "tokenizer.json").exists()
    tokenizer = load_transformers_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<s>", 0)
    assert tokenizer.eos_token is None
    added = len(json.loads((folder / "vocab.json").read_text()))
    write_folder(folder, added_tokens={"<|endoftext|>": added})
    assert load_transformers_tokenizer(folder).eos_token_id == added


def test_tokens_outside_of_vocab_txt_are_not_used(tmp_path):
    folder = write_folder(tmp_path / "model", config={"model_type": "bert"})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abc"]))
    tokenizer = load_transformers_tokenizer(folder)
    assert tokenizer.cls_token == "[CLS]" and tokenizer.mask_token is None
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abc", "[MASK]"])
    )
    assert load_transformers_tokenizer(folder).mask_token_id == 7


def save_gpt2(folder, vocab_size):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    ids = {"bos_token_id": 0, "eos_token_id": 1}
    GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **sizes, **ids)).save_pretrained(folder)


def test_texts_begin_with_a_token_of_the_vocabulary(tmp_path):
    """transformers would add a token whose row of a padded embedding was never trained."""
    backend = train_digits()
    folder = write_folder(tmp_path / "model", backend)
    save_gpt2(folder, backend.get_vocab_size() + 40)
    for opened in (open_audited_tokenizer(folder), open_audited_model(folder, device="cpu")):
        assert (opened.bos_id, opened.opening_description) == (0, "after <s>")


def test_an_unused_special_token_may_lack_an_embedding(tmp_path):
    """As in Gemma 3 and CodeLlama: its name in a text is plain text, so its id never occurs."""
    backend = train_digits()
    size = backend.get_vocab_size()
    backend.add_special_tokens(["<image_soft_token>"])
    folder = write_folder(tmp_path / "model", backend, tokenizer_config=NAMES)
    save_gpt2(folder, size)
    model = open_audited_model(folder, device="cpu")
    totals, _ = model.compute_log_likelihoods(["An <image_soft_token> here."])
    assert totals[0] < 0
    write_folder(folder, tokenizer_config=NAMES | {"bos_token": "<image_soft_token>"})
    for open_folder in (open_audited_tokenizer, open_audited_model):
        with pytest.raises(
            UsageError, match=f"ids up to {size}, but the model's vocabulary has only {size}"
        ):
            open_folder(folder)


@pytest.mark.parametrize(("denied", "expected"), [(False, "<fill>"), (True, None)])
def test_padding_in_tokenizer_json_names_the_pad_token(tmp_path, denied, expected):
    tokenizer = train_digits(special=("<s>", "</s>", "<fill>"))
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("<fill>"), pad_token="<fill>")
    settings = {"pad_token": None} if denied else {}
    write_folder(tmp_path, tokenizer, config={"model_type": "gpt2"}, tokenizer_config=settings)
    loaded = load_transformers_tokenizer(tmp_path)
    assert loaded.pad_token == expected
    assert len({len(ids) for ids in loaded(["one", "one two three"])["input_ids"]}) == 2


def test_a_decoder_has_its_own_number_of_layers():
    from transformers import BartConfig

    config = BartConfig(encoder_layers=3, decoder_layers=1, is_encoder_decoder=False)
    assert count_layers(config) == 1
    assert count_layers(BartConfig(encoder_layers=3, decoder_layers=1)) == 3
