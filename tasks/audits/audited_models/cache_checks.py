"""Check on opening whether a causal model of transformers gives the same scores with its cache.

Architectures keep what they have read in different ways: keys and values, states of a fixed size,
states inside the model, or nothing. A cache is used only if the model, continued in copied rows,
gives the logits of whole sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from hallmark.tasks.measures.batch_effects import ROUNDING_TOLERANCE, max_relative_difference

if TYPE_CHECKING:
    from torch import Tensor

    from hallmark.tasks.audits.audited_models.audited_tokenizer import TokenIds
    from hallmark.tasks.audits.audited_models.next_token_readers import NextTokenReader
    from hallmark.tasks.measures.batch_effects import SequencePair

    #: Computes logits (targets, T, V) of targets after contexts of one length, from contexts, the
    #: index of the context of each target, and targets.
    ComputeTargetLogits = Callable[[list[TokenIds], list[int], list[TokenIds]], Tensor]


class OpenReader(Protocol):
    """Opens a reader of prompts of one length, with the cache or without."""

    def __call__(
        self, prompts: Sequence[Sequence[int]], *, uses_cache: bool
    ) -> NextTokenReader: ...


#: Rows that continue two contexts: each row names its context, or its row after the last step.
COPIED_ROWS = ([1, 0, 1], [0, 1, 2], [2, 0])


@torch.inference_mode()
def can_read_next_tokens_with_cache(
    open_reader: OpenReader, sequence_pairs: Sequence[SequencePair]
) -> bool:
    """Return whether one token after another gives the same logits with the cache.

    False also if the model has no cache, or there is no sequence to check.
    """

    def differs(sequence_pair: SequencePair) -> bool:
        contexts, continuation = _split_into_contexts(sequence_pair)
        cached, whole = (open_reader(contexts, uses_cache=uses) for uses in (True, False))
        logits = [(cached.read_prompts(), whole.read_prompts())]
        for step, parent_rows in enumerate(COPIED_ROWS):
            tokens = [continuation[(step + row) % len(continuation)] for row in parent_rows]
            logits.append(
                (
                    cached.read_next_token_logits(parent_rows, tokens),
                    whole.read_next_token_logits(parent_rows, tokens),
                )
            )
        return any(
            max_relative_difference(expected, found) > ROUNDING_TOLERANCE
            for found, expected in logits
        )

    return _is_exact_in_a_sample(differs, sequence_pairs)


@torch.inference_mode()
def can_read_targets_with_cache(
    compute_target_logits: ComputeTargetLogits,
    open_reader: OpenReader,
    sequence_pairs: Sequence[SequencePair],
) -> bool:
    """Return whether several tokens after a shared context give the same logits with the cache."""

    def differs(sequence_pair: SequencePair) -> bool:
        contexts, continuation = _split_into_contexts(sequence_pair)
        context_indices, lengths = [1, 0, 1], [3, 2, 1]
        targets = [continuation[:length] for length in lengths]
        logits = compute_target_logits(contexts, context_indices, targets)
        return any(
            max_relative_difference(
                open_reader(
                    [[*contexts[index], *targets[row][:position]]], uses_cache=False
                ).read_prompts(),
                logits[row, None, position],
            )
            > ROUNDING_TOLERANCE
            for row, index in enumerate(context_indices)
            for position in range(lengths[row])
        )

    return _is_exact_in_a_sample(differs, sequence_pairs)


def _split_into_contexts(sequence_pair: SequencePair) -> tuple[list[TokenIds], TokenIds]:
    """Split a pair into two different contexts of one length, and tokens that continue them."""
    context_length = len(sequence_pair.shared_prefix)
    contexts = [sequence_pair.shared_prefix, sequence_pair.second[-context_length:]]
    return contexts, sequence_pair.first[context_length:]


def _is_exact_in_a_sample(
    differs: Callable[[SequencePair], bool], sequence_pairs: Sequence[SequencePair]
) -> bool:
    """Return whether a sample shows no difference; rounding can choose another expert in one."""
    try:
        return any(not differs(sequence_pair) for sequence_pair in sequence_pairs)
    except Exception:  # code of many architectures, some without a cache
        return False
