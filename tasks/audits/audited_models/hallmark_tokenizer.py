"""Read the tokenizers and configs of Hallmark checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from hallmark.model.config import ModelConfig
from hallmark.model.interchange.checkpoint import (
    CheckpointError,
    read_model_config,
    read_training_objective,
    was_trained_on_pairs,
)
from hallmark.model.special_tokens import END_OF_TEXT_ID
from hallmark.tasks.audits.audited_models.audited_tokenizer import (
    AuditedTokenizer,
    EncodedWithSpans,
    TokenIds,
)
from hallmark.tasks.contract import UsageError


class HallmarkTokenizer(AuditedTokenizer):
    """Start every text after <|endoftext|>; the decoder of an encoder-decoder writes the text."""

    def __init__(
        self, config: ModelConfig, is_trained_on_pairs: bool, tokenizer: Tokenizer, name: str
    ) -> None:
        self.tokenizer, self.name = tokenizer, name
        self.context_length, self.vocab_size = config.context, config.vocab_size
        self.layer_count = config.n_layers
        self.bos_id, self.model_kind, self.opening_description = (
            END_OF_TEXT_ID,
            "causal",
            "after <|endoftext|>",
        )
        if config.architecture == "encoder":
            self.model_kind, self.mask_id = "masked", self.get_special_token_id("<|mask|>")
            self.opening_description = "after <|endoftext|>, with the tokens masked one at a time"
        elif config.architecture == "encoder_decoder" and not is_trained_on_pairs:
            self.opening_description = "written by the decoder in place of <|sentinel_0|>"

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def encode_with_char_spans(self, text: str) -> EncodedWithSpans:
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return EncodedWithSpans(encoding.ids, encoding.offsets)

    def get_token_name(self, token_id: int) -> str:
        return self.tokenizer.id_to_token(token_id) or ""

    def get_special_token_id(self, token: str) -> int:
        token_id: int | None = self.tokenizer.token_to_id(token)
        if token_id is None:
            raise UsageError(
                f"the tokenizer of {self.name} has no {token} token, so it was not trained for "
                "this objective"
            )
        return token_id


def open_hallmark_tokenizer(folder: Path, name: str) -> HallmarkTokenizer:
    """Open the tokenizer of a Hallmark checkpoint.

    Raises:
        UsageError: The checkpoint cannot be read, or is no language model.
    """
    try:
        config = read_model_config(folder)
        read_training_objective(folder, config.architecture)
        is_trained_on_pairs = was_trained_on_pairs(folder)
    except CheckpointError as error:
        raise UsageError(str(error).rstrip(".")) from error
    check_is_language_model(config, is_trained_on_pairs, name)
    return HallmarkTokenizer(config, is_trained_on_pairs, load_checkpoint_tokenizer(folder), name)


def check_is_language_model(
    config: ModelConfig, is_trained_on_pairs: bool, model_name: str
) -> None:
    """Raise UsageError if a model outputs labels, or was trained on pairs to answer sources."""
    if config.labels:
        raise UsageError(
            f"{model_name} outputs labels, not text; this command needs a language model"
        )
    if is_trained_on_pairs:
        raise UsageError(
            f"{model_name} was fine-tuned on source-target pairs, so it does not continue text; an "
            "audit needs a language model, so audit the checkpoint that it was fine-tuned from"
        )


def load_checkpoint_tokenizer(folder: Path) -> Tokenizer:
    """Load tokenizer.json of a checkpoint.

    Raises:
        UsageError: It cannot be read.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no more specific type
        message = " ".join(str(error).split())  # it quotes tokens, which may contain line breaks
        raise UsageError(
            f"{path} cannot be read as a tokenizer ({message:.200}), so {folder} is not a complete "
            "checkpoint"
        ) from error
    tokenizer.encode_special_tokens = True  # names of special tokens in a text are plain text
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
