"""Check on opening which tokens a Hugging Face model sees, and which rows its batches may hold.

config.json names a causal or a masked model, but its class may attend otherwise: a BERT whose LM
head is not a decoder sees both sides. So the model is tested in a few forward passes on short
sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from hallmark.model.padding import pad_rows
from hallmark.tasks.audits.audited_models.audited_model import MAX_LOGITS
from hallmark.tasks.audits.audited_models.transformers_tokenizer import get_special_token_ids
from hallmark.tasks.contract import UsageError
from hallmark.tasks.measures.batch_effects import (
    ROUNDING_TOLERANCE,
    SAMPLE_LENGTH,
    Batching,
    SequencePair,
    choose_batching,
    choose_pad_token_id,
    max_relative_difference,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from hallmark.tasks.audits.audited_models.audited_tokenizer import (
        AuditedTokenizer,
        ModelKind,
    )
    from hallmark.tasks.measures.batch_effects import Forward

#: The smallest difference of logits, relative to the largest logit, that shows attention to another
#: token for sequences of one length. Rounding is smaller: 0 where rows are multiplied alike, at
#: most 3e-6 where experts sum in another order. Attention has 1e-3 or more, even at initial weights
#: with a standard deviation of 0.02.
MIN_VISIBLE_DIFFERENCE = 3e-5


#: Parameters times tokens of a sequence that is cheap to read: about a second on two cores.
MAX_CHECK_COST = 20_000_000_000


def check_transformers_attention_and_choose_batching(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    audited_tokenizer: AuditedTokenizer,
    compute_logits: Callable[[Tensor, Tensor], Tensor],
) -> Batching:
    """Check a model of transformers as ``check_attention_and_choose_batching`` does.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        audited_tokenizer: The same tokenizer with facts about the model.
        compute_logits: Computes logits (B, T, V), float32, from ids (B, T) and a mask of real
            tokens (B, T), bool.

    Returns:
        Which rows the model can read in one batch.
    """
    pad_id = choose_pad_token_id(model.config, tokenizer, audited_tokenizer.vocab_size)

    @torch.inference_mode()
    def compute_row_logits(sequences: list[list[int]]) -> list[Tensor]:
        logits = compute_logits(*pad_rows(sequences, model.device, pad_id))
        return [
            row_logits[: len(sequence)]
            for row_logits, sequence in zip(logits, sequences, strict=True)
        ]

    return check_attention_and_choose_batching(
        compute_row_logits,
        audited_tokenizer.model_kind,
        audited_tokenizer.name,
        build_check_sequences(model, tokenizer, audited_tokenizer),
    )


def build_check_sequences(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    audited_tokenizer: AuditedTokenizer,
) -> list[SequencePair]:
    """Build the sequences that show how a model attends; see ``build_sequence_pairs``."""
    vocab_size = audited_tokenizer.vocab_size
    ordinary_ids = {*tokenizer.get_vocab().values()} - get_special_token_ids(tokenizer)
    return build_sequence_pairs(
        sorted(token_id for token_id in ordinary_ids if token_id < vocab_size),
        config=model.config,
        context_length=audited_tokenizer.context_length,
        max_check_length=min(
            1100, MAX_LOGITS // (2 * vocab_size), MAX_CHECK_COST // model.num_parameters()
        ),
    )


def build_sequence_pairs(
    ordinary_token_ids: Sequence[int],
    *,
    config: PretrainedConfig,
    context_length: int,
    max_check_length: int,
) -> list[SequencePair]:
    """Build two pairs of sequences, which are longer than the windows of attention.

    Experts are chosen by small differences, so only an effect in both pairs counts.

    Args:
        ordinary_token_ids: Ids of tokens that are not special.
        config: The config of the model, for the windows of its attention.
        context_length: The longest sequence that it reads, in tokens.
        max_check_length: The longest sequence that is cheap to read, in tokens.

    Returns:
        The pairs; none if the model cannot read four tokens, or has no ordinary tokens.
    """
    length = _choose_check_length(config, context_length, max_check_length)
    if length < 4 or not ordinary_token_ids:
        return []
    return [SequencePair(ordinary_token_ids, length, seed) for seed in range(2)]


def check_attention_and_choose_batching(
    compute_logits: Forward,
    model_kind: ModelKind,
    model_name: str,
    sequence_pairs: Sequence[SequencePair],
) -> Batching:
    """Check that a model sees the tokens that its kind should see.

    Args:
        compute_logits: Computes its logits.
        model_kind: How it will be scored.
        model_name: Its name in messages.
        sequence_pairs: Sequences of ``build_sequence_pairs``.

    Returns:
        Which rows it can read in one batch. Weights that are not numbers are not detected here.

    Raises:
        UsageError: It is to be scored as causal but sees later tokens, or as masked but sees only
            earlier ones.
    """
    if not sequence_pairs:
        return "equal length"
    try:
        sees_later_tokens = all(
            _logits_depend_on_end(compute_logits, sequence_pair) for sequence_pair in sequence_pairs
        )
        sees_earlier_tokens = (
            sees_later_tokens
            or model_kind == "causal"
            or _logits_depend_on_beginning(compute_logits, sequence_pairs[0])
        )
        depends_on_length = model_kind == "causal" and all(
            _logits_depend_on_length(compute_logits, sequence_pair)
            for sequence_pair in sequence_pairs
        )
    except Exception:  # code of many architectures; a model that cannot be read fails in its audit
        return "equal length"
    if model_kind == "causal" and (sees_later_tokens or depends_on_length):
        raise UsageError(
            f"{model_name} cannot be audited as a causal model: its config.json declares it as "
            "causal, but it can also see the text after a token when scoring that token; audit "
            "another model or, if config.json is wrong, correct is_decoder, is_causal or "
            "use_bidirectional_attention"
        )
    if model_kind == "masked" and sees_earlier_tokens and not sees_later_tokens:
        raise UsageError(
            f"{model_name} cannot be audited as a masked model: its config.json declares it as "
            "masked, but it can see only the text before a token when scoring that token; audit "
            "another model or, if config.json is wrong, correct is_decoder or is_causal"
        )
    return choose_batching(compute_logits, sequence_pairs[0])


def _choose_check_length(config: PretrainedConfig, context_length: int, max_length: int) -> int:
    """Choose a length longer than the windows of attention, unless that is too expensive."""
    settings = vars(config.get_text_config())
    window_settings = [
        name for name in settings if "window" in name or name == "attention_chunk_size"
    ]
    lengths = [2 * settings[name] + 9 for name in window_settings if type(settings[name]) is int]
    check_length: int = min(
        context_length,
        max([SAMPLE_LENGTH, *(length for length in lengths if length <= max_length)]),
    )
    return check_length


def _logits_depend_on_end(compute_logits: Forward, sequence_pair: SequencePair) -> bool:
    """Return whether logits before the position where two sequences differ are different.

    Both sequences are rows of one batch, so that the multiplications are the same.
    """
    shared_length = len(sequence_pair.shared_prefix)
    first_logits, second_logits = compute_logits([sequence_pair.first, sequence_pair.second])
    return (
        max_relative_difference(first_logits[:shared_length], second_logits[:shared_length])
        > MIN_VISIBLE_DIFFERENCE
    )


def _logits_depend_on_beginning(compute_logits: Forward, sequence_pair: SequencePair) -> bool:
    """Return whether logits at the end of a sequence differ if its beginning differs."""
    suffix_length = len(sequence_pair.first) - len(sequence_pair.shared_prefix)
    shared_ids = sequence_pair.shared_prefix[-suffix_length:]
    first_logits, second_logits = compute_logits(
        [
            [*sequence_pair.first[-suffix_length:], *shared_ids],
            [*sequence_pair.second[-suffix_length:], *shared_ids],
        ]
    )
    return (
        max_relative_difference(first_logits[suffix_length:], second_logits[suffix_length:])
        > MIN_VISIBLE_DIFFERENCE
    )


def _logits_depend_on_length(compute_logits: Forward, sequence_pair: SequencePair) -> bool:
    """Return whether logits differ if a sequence is continued."""
    prefix_logits, full_logits = (
        compute_logits([sequence_pair.shared_prefix])[0],
        compute_logits([sequence_pair.first])[0],
    )
    return (
        max_relative_difference(prefix_logits, full_logits[: len(prefix_logits)])
        > ROUNDING_TOLERANCE
    )
