"""The readers of our own checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from model.config import ModelConfig
from model.interchange.checkpoint import CheckpointError, read_config, read_objective, read_pairs
from model.tokens import END_OF_TEXT
from tasks.audits.subjects.reader import Ids, Reader
from tasks.contract import UsageError


class OwnReader(Reader):
    """Every text stands behind <|endoftext|>; an encoder-decoder's is written by its decoder."""

    def __init__(self, config: ModelConfig, pairs: bool, tokenizer: Tokenizer, name: str) -> None:
        self.tokenizer, self.name = tokenizer, name
        self.context, self.vocab_size = config.context, config.vocab_size
        self.layers = config.n_layers
        self.bos, self.kind, self.begin = END_OF_TEXT, "causal", "behind <|endoftext|>"
        if config.architecture == "encoder":
            self.kind, self.mask = "masked", self.special("<|mask|>")
            self.begin = "behind <|endoftext|>, masked one at a time"
        elif config.architecture == "encoder_decoder" and not pairs:
            self.begin = "written by the decoder for <|sentinel_0|>"

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        batch = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def encode_with_places(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def token_name(self, token: int) -> str:
        return self.tokenizer.id_to_token(token) or ""

    def special(self, token: str) -> int:
        number: int | None = self.tokenizer.token_to_id(token)
        if number is None:
            raise UsageError(f"the tokenizer of {self.name} has no token {token}: it was not "
                             f"trained for this objective")  # fmt: skip
        return number


def open_own_reader(folder: Path, name: str) -> OwnReader:
    """Of a checkpoint of model/. Raises UsageError, one sentence."""
    try:
        config = read_config(folder)
        read_objective(folder, config.architecture)
        pairs = read_pairs(folder)
    except CheckpointError as error:
        raise UsageError(str(error).rstrip(".")) from error
    check_language(config, pairs, name)
    return OwnReader(config, pairs, open_tokenizer(folder), name)


def check_language(config: ModelConfig, pairs: bool, name: str) -> None:
    """UsageError where a model gives labels, or answers sources, and goes on with no text."""
    if config.labels:
        raise UsageError(f"{name} gives labels and no text: what is asked needs a language model")
    if pairs:
        raise UsageError(
            f"{name} was fine-tuned on pairs: it answers a source and goes on with no text, and an "
            f"audit needs a language model; audit the checkpoint that it was made of"
        )


def open_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what tokenizers raises has no other type
        raise UsageError(f"{path} cannot be read as a tokenizer ({error}): {folder} is not a whole "
                         f"checkpoint") from error  # fmt: skip
    tokenizer.encode_special_tokens = True  # their names inside a text are plain text
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
