"""The readers of Hugging Face folders: what their tokenizer and config.json tell.

No code of the folder is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.audits.subjects.reader import Ids, Reader
from tasks.contract import HallmarkError, UsageError
from tasks.measures import folder_tokenizer
from tasks.measures.folder_tokenizer import LOCAL
from tasks.measures.quiet import quiet_transformers

#: Longest window for models whose config names no limit, and for those whose limit is longer.
LONGEST = 4096

#: A folder without any of these has no vocabulary; transformers makes up an empty one in silence.
VOCABULARIES = (
    *("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "tekken.json"),
    *("spiece.model", "spm.model", "sentencepiece.bpe.model"),
)


#: Classes of causal and of masked models.
EITHER_KIND = ("XLMWithLMHeadModel", "FlaubertWithLMHeadModel")


def count_layers(config: Any) -> int | None:
    """Count the blocks whose states are read; None where config.json does not say.

    A decoder of a family with an encoder, such as Bart, has ``decoder_layers``;
    ``num_hidden_layers`` is then the depth of the encoder.
    """
    if not getattr(config, "is_encoder_decoder", False):
        depth = getattr(config, "decoder_layers", None)
        if isinstance(depth, int):
            return depth
    return getattr(config, "num_hidden_layers", None)


class TransformersReader(Reader):
    """A causal one's begin-of-text token is the tokenizer's bos, else its eos; a masked one's texts
    stand between the tokenizer's opening and closing token."""

    def __init__(self, config: Any, tokenizer: Any, name: str, kind: str, vocab_size: int) -> None:
        self.tokenizer, self.name, self.vocab_size = tokenizer, name, vocab_size
        limits = [getattr(config, key, None) for key in ("max_position_embeddings", "n_positions")]
        limit = min([n for n in limits if isinstance(n, int) and n > 0], default=LONGEST)
        if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
            limit -= 2  # its positions count from the padding id
        self.context = min(limit, LONGEST)
        self.layers = count_layers(config)
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        if kind == "masked":
            opening, closing = tokenizer.cls_token_id, tokenizer.sep_token_id
            self.kind = "masked"
            self.bos = bos if opening is None else opening
            self.end = eos if closing is None else closing
            self.mask = tokenizer.mask_token_id
            if self.mask is None:
                raise UsageError(f"the tokenizer of {name} has no mask token: it cannot be scored")
            self.begin = "between the tokenizer's opening and closing token, masked one at a time"
            _check_vocabulary(tokenizer, name, vocab_size, special=(self.bos, self.end, self.mask))
            return
        self.kind, self.bos = "causal", eos if bos is None else bos
        _check_vocabulary(tokenizer, name, vocab_size, special=(self.bos,))
        if self.bos is None:
            self.begin = "no begin-of-text token: the first token of a text is not scored"
        else:
            self.begin = f"behind {tokenizer.convert_ids_to_tokens(self.bos)}"

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        return self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            split_special_tokens=True,  # their names inside a text are plain text
            verbose=False,
        )["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def encode_with_places(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        if not self.tokenizer.is_fast:
            raise HallmarkError(f"the tokenizer of {self.name} does not say which characters a "
                                f"token stands for")  # fmt: skip
        made = self.tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            split_special_tokens=True,
            verbose=False,
        )
        return made["input_ids"], [(int(a), int(b)) for a, b in made["offset_mapping"]]

    def token_name(self, token: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(token))


def _check_vocabulary(
    tokenizer: Any, name: str, vocab_size: int, special: tuple[int | None, ...]
) -> None:
    """Check that the model knows every token id that a text can have.

    Args:
        tokenizer: its tokenizer.
        name: how messages call the model.
        vocab_size: how many tokens the model knows, 0 if its config does not say.
        special: the ids of the special tokens that are put into texts. Others may be unknown to the
            model: the name of a special token in a text is plain text.
    """
    used = {token for token in special if token is not None}
    ids = {*tokenizer.get_vocab().values()} - special_ids(tokenizer) | used
    largest = max(ids, default=-1)
    if largest < 0 or 0 < vocab_size <= largest:
        raise UsageError(
            f"the tokenizer of {name} has token ids up to {largest}, the model knows "
            f"{vocab_size} tokens: they do not belong together"
        )


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of added tokens that are special, which no text is encoded to."""
    return {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}


def open_transformers_reader(folder: Path, config: dict[str, Any], name: str) -> TransformersReader:
    """Of a causal or masked LM folder. Raises UsageError, one sentence."""
    import transformers

    kind, tokenizer = kind_of(folder, config), load_tokenizer(folder)
    try:
        with quiet_transformers():
            known = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
    except Exception as error:
        raise UsageError(f"{folder} holds no config that can be read: {said(error)}") from error
    return TransformersReader(known, tokenizer, name, kind, int(getattr(known, "vocab_size", 0)))


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder. Raises UsageError, one sentence."""
    if not any((folder / file).is_file() for file in VOCABULARIES):
        raise UsageError(f"{folder} holds no tokenizer: none of {', '.join(VOCABULARIES)}")
    try:
        with quiet_transformers():
            return folder_tokenizer.load_tokenizer(folder)
    except Exception as error:
        raise UsageError(
            f"{folder} holds no tokenizer that can be loaded: {said(error)}"
        ) from error


def kind_of(folder: Path, config: dict[str, Any]) -> str:
    """ "causal" or "masked", by the architectures that config.json names.

    The classes of XLM and FlauBERT are for both kinds; ``causal`` in their config says which it is.
    """
    names = config.get("architectures") or []
    if not isinstance(names, list) or not isinstance(config.get("model_type"), str):
        raise UsageError(f"{folder}/config.json does not describe a model: it has no model_type")
    for architecture in map(str, names):
        if architecture.endswith(("MaskedLM", "ForPreTraining")):
            return "masked"
        if architecture in EITHER_KIND:
            return "causal" if config.get("causal") is True else "masked"
        if architecture.endswith(("CausalLM", "LMHeadModel")):
            return "causal"
    raise UsageError(
        f"{folder} holds neither a causal nor a masked language model: its config.json names "
        f"the architectures {str(names)[:100]}"
    )


def said(error: BaseException) -> str:
    """What an error of a library says, in a line."""
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
