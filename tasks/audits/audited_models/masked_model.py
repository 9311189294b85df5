"""Audit masked language models by pseudo-log-likelihoods (Salazar et al. 2020)."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hallmark.model.decoding.token_scores import gather_log_probs
from hallmark.model.padding import check_no_nan
from hallmark.tasks.audits.audited_models.audited_model import (
    MAX_LOGITS,
    AuditedModel,
    Float32,
    ScoredContinuation,
    run_in_model_precision,
)

#: Maximum number of tokens of a padded batch.
MAX_BATCH_TOKENS = 1 << 12


def batch_indices_of_similar_length(
    lengths: Sequence[int], vocab_size: int, max_rows: int | None = None
) -> Iterator[list[int]]:
    """Yield indices of rows of similar length, longest first.

    A padded batch is within MAX_LOGITS and MAX_BATCH_TOKENS: with a small vocabulary the states of
    the tokens need more memory than the logits.
    """
    indices = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    max_tokens = min(MAX_BATCH_TOKENS, MAX_LOGITS // vocab_size)
    while indices:
        batch_size = max(1, max_tokens // max(1, lengths[indices[0]]))
        batch_size = min(batch_size, max_rows or batch_size)
        yield indices[:batch_size]
        indices = indices[batch_size:]


class MaskedModel(AuditedModel):
    """A model that sees both sides, with an opening and a closing token around each sequence.

    Attributes:
        closing_id: The closing token; None if the tokenizer has none.
        mask_id: The token that masks another.
    """

    model_kind = "masked"
    min_saved_tokens = sys.maxsize  # a masked model cannot share the reading of a context
    closing_id: int | None
    mask_id: int

    @abstractmethod
    def compute_logits_at(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[int]
    ) -> Tensor:
        """Compute logits (B, V), float32, at one position of each row of token ids."""

    def iter_batch_indices(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield indices of rows that may share a batch, longest first."""
        return batch_indices_of_similar_length(lengths, self.vocab_size, self.batch_size)

    def compute_log_probs(
        self,
        sequences: Sequence[Sequence[int]],
        prefix_lm_prompt_lengths: Sequence[int] | None = None,
    ) -> list[Float32]:
        opening_tokens = 0 if self.bos_id is None else 1
        positions = [list(range(1, len(sequence))) for sequence in sequences]
        content_ids = [list(sequence[opening_tokens:]) for sequence in sequences]
        return self.compute_masked_log_probs(
            content_ids,
            [
                [position - opening_tokens for position in sequence_positions]
                for sequence_positions in positions
            ],
        )

    @run_in_model_precision
    @torch.inference_mode()
    def compute_masked_log_probs(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]
    ) -> list[Float32]:
        """Compute log probabilities of the tokens at ``positions``, each masked by itself.

        Sequences are given without special tokens. If a sequence is longer than the context, the
        model reads the window around the position.
        """
        opening_ids = [] if self.bos_id is None else [self.bos_id]
        closing_ids = [] if self.closing_id is None else [self.closing_id]
        max_content_tokens = self.context_length - len(opening_ids) - len(closing_ids)
        log_probs = [np.empty(len(p), dtype=np.float32) for p in positions]
        masked_tokens = [
            (sequence_index, position_index, position)
            for sequence_index, sequence_positions in enumerate(positions)
            for position_index, position in enumerate(sequence_positions)
        ]
        opening_and_closing = len(opening_ids) + len(closing_ids)
        for batch in self.iter_batch_indices(
            [
                opening_and_closing + min(len(sequences[i]), max_content_tokens)
                for i, _, _ in masked_tokens
            ]
        ):
            masked_sequences, mask_positions = [], []
            for sequence_index, _, position in (masked_tokens[i] for i in batch):
                sequence = sequences[sequence_index]
                window_start = max(
                    0, min(position - max_content_tokens // 2, len(sequence) - max_content_tokens)
                )
                window_ids = [
                    *opening_ids,
                    *sequence[window_start : window_start + max_content_tokens],
                    *closing_ids,
                ]
                mask_positions.append(len(opening_ids) + position - window_start)
                window_ids[mask_positions[-1]] = self.mask_id
                masked_sequences.append(window_ids)
            logits = self.compute_logits_at(masked_sequences, mask_positions)
            target_ids = torch.tensor(
                [sequences[masked_tokens[i][0]][masked_tokens[i][2]] for i in batch],
                device=logits.device,
            )
            target_log_probs = check_no_nan(gather_log_probs(logits, target_ids))
            for i, log_prob in zip(batch, target_log_probs.tolist(), strict=True):
                log_probs[masked_tokens[i][0]][masked_tokens[i][1]] = log_prob
        return log_probs

    @run_in_model_precision
    @torch.inference_mode()
    def generate_completions(
        self,
        contexts: Sequence[Sequence[int]],
        suffixes: Sequence[Sequence[int]],
        *,
        completion_count: int,
        max_new_tokens: int,
    ) -> list[list[ScoredContinuation]]:
        opening_ids = [] if self.bos_id is None else [self.bos_id]
        closing_ids = [] if self.closing_id is None else [self.closing_id]
        max_content_tokens = self.context_length - len(opening_ids) - len(closing_ids) - 1
        masked_sequences, mask_positions = [], []
        for context, suffix in zip(contexts, suffixes, strict=True):
            left_ids = list(context)[
                -max(1, max_content_tokens - min(len(suffix), max_content_tokens // 2)) :
            ]
            right_ids = list(suffix)[: max_content_tokens - len(left_ids)]
            masked_sequences.append(
                [*opening_ids, *left_ids, self.mask_id, *right_ids, *closing_ids]
            )
            mask_positions.append(len(opening_ids) + len(left_ids))
        completions: list[list[ScoredContinuation]] = [[] for _ in masked_sequences]
        for batch in self.iter_batch_indices([*map(len, masked_sequences)]):
            logits = self.compute_logits_at(
                [masked_sequences[i] for i in batch], [mask_positions[i] for i in batch]
            )
            best_tokens = check_no_nan(logits.log_softmax(-1)).topk(
                min(completion_count, logits.shape[1])
            )
            for i, *candidates in zip(
                batch, best_tokens.indices.tolist(), best_tokens.values.cpu().numpy(), strict=True
            ):
                completions[i] = [
                    ScoredContinuation([token_id], log_prob[None], False)
                    for token_id, log_prob in zip(*candidates, strict=True)
                ]
        return completions
