"""Read the tokenizers and configs of Hugging Face folders, without running code of the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hallmark.model.interchange.checkpoint import CheckpointError, check_no_lfs_pointer
from hallmark.tasks.audits.audited_models.audited_tokenizer import (
    AuditedTokenizer,
    EncodedWithSpans,
    ModelKind,
    TokenIds,
)
from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.measures import folder_tokenizer
from hallmark.tasks.measures.folder_tokenizer import LOCAL_ONLY_OPTIONS
from hallmark.tasks.measures.transformers_logging import silence_transformers_output

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

#: Maximum context length, also for models whose config names no limit.
MAX_CONTEXT_LENGTH = 4096

#: Settings that limit the length of a sequence; each family of models has one of them.
POSITION_LIMIT_SETTINGS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions"),
)

#: A folder without any of these has no vocabulary; transformers would create an empty one.
VOCABULARY_FILES = (
    *("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "tekken.json"),
    *("spiece.model", "spm.model", "sentencepiece.bpe.model"),
)


#: Model types whose first position is the padding id plus one, as in RoBERTa.
POSITIONS_COUNT_FROM_PADDING_ID = (
    *("camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)

#: Classes that are used for both causal and masked models.
CAUSAL_OR_MASKED_CLASSES = ("XLMWithLMHeadModel", "FlaubertWithLMHeadModel")


def count_layers(config: PretrainedConfig) -> int | None:
    """Count the blocks whose states are read; None if config.json does not say.

    A decoder from an encoder-decoder family, such as Bart, has ``decoder_layers``;
    ``num_hidden_layers`` is then the depth of the encoder.
    """
    if not getattr(config, "is_encoder_decoder", False):
        depth = getattr(config, "decoder_layers", None)
        if isinstance(depth, int):
            return depth
    return getattr(config, "num_hidden_layers", None)


class TransformersTokenizer(AuditedTokenizer):
    """Choose the special tokens around texts.

    A causal model's begin-of-text token is the tokenizer's bos, else its eos. Texts of a masked
    model are between the tokenizer's opening and closing tokens.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        model_kind: ModelKind,
        vocab_size: int,
    ) -> None:
        self.tokenizer, self.name, self.vocab_size = tokenizer, name, vocab_size
        position_limits = [getattr(config, key, None) for key in POSITION_LIMIT_SETTINGS]
        position_limit = min(
            [n for n in position_limits if isinstance(n, int) and n > 0], default=MAX_CONTEXT_LENGTH
        )
        model_type = getattr(config, "model_type", "")
        if model_type in POSITIONS_COUNT_FROM_PADDING_ID:
            # MPNet counts from 1, whatever its padding id is.
            padding_id = 1 if model_type == "mpnet" else getattr(config, "pad_token_id", None) or 0
            position_limit -= padding_id + 1
        self.context_length = min(position_limit, MAX_CONTEXT_LENGTH)
        self.layer_count = count_layers(config)
        tokenizer_bos_id, tokenizer_eos_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        if model_kind == "masked":
            cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
            self.model_kind = "masked"
            self.bos_id = tokenizer_bos_id if cls_id is None else cls_id
            self.closing_id = tokenizer_eos_id if sep_id is None else sep_id
            self.mask_id = tokenizer.mask_token_id
            if self.mask_id is None:
                raise UsageError(
                    f"the tokenizer of {name} has no mask token, so the model cannot be "
                    "audited as a masked language model"
                )
            self.opening_description = (
                "between the tokenizer's opening and closing tokens, with the text's tokens masked "
                "one at a time"
            )
            _check_vocabulary_size(
                tokenizer,
                name,
                vocab_size,
                inserted_ids=(self.bos_id, self.closing_id, self.mask_id),
            )
            return
        self.model_kind, self.bos_id = (
            "causal",
            tokenizer_eos_id if tokenizer_bos_id is None else tokenizer_bos_id,
        )
        _check_vocabulary_size(tokenizer, name, vocab_size, inserted_ids=(self.bos_id,))
        if self.bos_id is None:
            self.opening_description = (
                "no begin-of-text token, so the first token of each text is not scored"
            )
        else:
            self.opening_description = f"after {tokenizer.convert_ids_to_tokens(self.bos_id)}"

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        if not texts:
            return []
        token_ids: list[TokenIds] = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            split_special_tokens=True,  # names of special tokens in a text are plain text
            verbose=False,
        )["input_ids"]
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def encode_with_char_spans(self, text: str) -> EncodedWithSpans:
        if not self.tokenizer.is_fast:
            raise HallmarkError(
                f"the tokenizer of {self.name} does not report which characters each token covers"
            )
        encoding = self.tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            split_special_tokens=True,
            verbose=False,
        )
        return EncodedWithSpans(
            encoding["input_ids"],
            [(int(start), int(end)) for start, end in encoding["offset_mapping"]],
        )

    def get_token_name(self, token_id: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(token_id))


def _check_vocabulary_size(
    tokenizer: PreTrainedTokenizerBase,
    model_name: str,
    vocab_size: int,
    inserted_ids: tuple[int | None, ...],
) -> None:
    """Check that the model knows every token id that a text can have.

    Args:
        tokenizer: Its tokenizer.
        model_name: Its name in messages.
        vocab_size: Number of tokens that the model knows, 0 if its config does not say.
        inserted_ids: Ids of special tokens that are inserted into texts. The model need not know
            other special tokens, because their names in a text are plain text.

    Raises:
        UsageError: The tokenizer has an id that the model does not know.
    """
    used_ids = {token_id for token_id in inserted_ids if token_id is not None}
    token_ids = {*tokenizer.get_vocab().values()} - get_special_token_ids(tokenizer) | used_ids
    largest_id = max(token_ids, default=-1)
    if largest_id < 0 or 0 < vocab_size <= largest_id:
        raise UsageError(
            f"the tokenizer of {model_name} has token ids up to {largest_id}, but the model's "
            f"vocabulary has only {vocab_size} tokens; provide a checkpoint with the tokenizer "
            "used to train it"
        )


def get_special_token_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of special added tokens, which no text is encoded to."""
    return {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}


def open_transformers_tokenizer(
    folder: Path, config: dict[str, Any], name: str
) -> TransformersTokenizer:
    """Open the tokenizer of a causal or masked language model.

    Raises:
        UsageError: The folder holds no such model, tokenizer or config.
    """
    import transformers

    model_kind, tokenizer = detect_model_kind(folder, config), load_transformers_tokenizer(folder)
    try:
        with silence_transformers_output():
            model_config = transformers.AutoConfig.from_pretrained(folder, **LOCAL_ONLY_OPTIONS)
    except Exception as error:
        raise UsageError(
            f"the config in {folder} cannot be read: {get_first_error_line(error)}"
        ) from error
    return TransformersTokenizer(
        model_config, tokenizer, name, model_kind, int(getattr(model_config, "vocab_size", 0))
    )


def load_transformers_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder.

    Raises:
        UsageError: There is none, or it cannot be loaded.
    """
    vocabulary_files = [folder / name for name in VOCABULARY_FILES if (folder / name).is_file()]
    if not vocabulary_files:
        raise UsageError(
            f"{folder} has no tokenizer, because it contains none of the files "
            f"{', '.join(VOCABULARY_FILES)}"
        )
    try:
        for path in vocabulary_files:
            check_no_lfs_pointer(path)
        with silence_transformers_output():
            return folder_tokenizer.load_tokenizer(folder)
    except CheckpointError as error:
        raise UsageError(str(error).rstrip(".")) from error
    except Exception as error:
        raise UsageError(
            f"the tokenizer in {folder} cannot be loaded: {get_first_error_line(error)}"
        ) from error


def detect_model_kind(folder: Path, config: dict[str, Any]) -> ModelKind:
    """Return the kind of a language model, by the architectures that config.json names.

    The classes of XLM and FlauBERT are used for both kinds; ``causal`` in their config decides.
    """
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not isinstance(config.get("model_type"), str):
        raise UsageError(
            f"{folder}/config.json does not describe a model, because it has no model_type"
        )
    for architecture in map(str, architectures):
        if architecture.endswith(("MaskedLM", "ForPreTraining")):
            return "masked"
        if architecture in CAUSAL_OR_MASKED_CLASSES:
            return "causal" if config.get("causal") is True else "masked"
        if architecture.endswith(("CausalLM", "LMHeadModel", "BertGenerationDecoder")):
            return "causal"
    raise UsageError(
        f"{folder} is neither a causal nor a masked language model: its config.json specifies the "
        f"architectures {str(architectures)[:100]}"
    )


def get_first_error_line(error: BaseException) -> str:
    """Return the message of a library's error in one line."""
    message = " ".join(str(error).split())
    return message[:300] or type(error).__name__
