"""Fill gaps in a text with a masked language model (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode
from hallmark.model.padding import batch_indices_by_length, check_no_nan, check_token_ids, pad_rows
from hallmark.model.special_tokens import TokenIds

Float32 = NDArray[np.float32]


@run_in_evaluation_mode
def compute_mask_log_probs(
    model: Transformer, sequences: Sequence[TokenIds], mask_id: int, *, batch_tokens: int = 16_384
) -> list[Float32]:
    """Compute log p of every token at each mask of each sequence: (masks, V) for each sequence.

    The model reads the text on both sides. The masks of a sequence are predicted together, and none
    depends on the tokens that the others replace.

    Raises:
        ValueError: The model is not an encoder; a sequence has no mask or is longer than the
            context.
    """
    if model.config.architecture != "encoder":
        raise ValueError("Only an encoder-only model can predict masked tokens.")
    context, vocab_size = model.config.context, model.config.vocab_size
    check_token_ids([mask_id], vocab_size, "The mask")
    for i, sequence in enumerate(sequences):
        tokens = check_token_ids(sequence, vocab_size, f"Sequence {i}")
        if len(tokens) > context:
            raise ValueError(
                f"Sequence {i} has {len(tokens)} tokens, more than the context of {context} tokens."
            )
        if mask_id not in tokens:
            raise ValueError(
                f"Sequence {i} has no mask token (id {mask_id}): mask at least one token."
            )
    log_probs_by_sequence: dict[int, Float32] = {}
    for batch_indices in batch_indices_by_length(list(map(len, sequences)), batch_tokens):
        ids, attention_mask = pad_rows(
            [sequences[i] for i in batch_indices], model.embedding.weight.device
        )
        is_mask = ids == mask_id
        hidden = model(Batch(ids, attention_mask=attention_mask))[is_mask]
        logits = model.compute_logits(hidden).float()  # (masks, V)
        scores = check_no_nan(logits.log_softmax(-1)).cpu()
        counts: list[int] = is_mask.sum(1).tolist()
        for i, sequence_scores in zip(batch_indices, torch.split(scores, counts), strict=True):
            log_probs_by_sequence[i] = sequence_scores.numpy()
    return [log_probs_by_sequence[i] for i in range(len(sequences))]


class GapCounts(NamedTuple):
    """Numbers of gaps of each text.

    Attributes:
        restored: gaps that the model filled with the original token, (texts,).
        total: all gaps, (texts,).
    """

    restored: NDArray[np.int64]
    total: NDArray[np.int64]


def count_restored_gaps(
    model: Transformer,
    texts: Sequence[TokenIds],
    mask_id: int,
    *,
    gap_interval: int = 5,
    batch_tokens: int = 16_384,
) -> GapCounts:
    """Count the gaps of each text, and those that the model fills with the original token.

    This measures readability as Taylor (1953) does, who removed every fifth word. Gaps are the
    tokens at ``gap_interval``, 2 x ``gap_interval``, ... of a text, counted from 0; a text without
    gaps is not read.


    Raises:
        ValueError: ``gap_interval`` is less than 2, or a text contains the mask.
    """
    if gap_interval < 2:
        raise ValueError(
            f"gap_interval must be at least 2, not {gap_interval}, because the model needs text "
            "between the gaps."
        )
    gap_positions = [np.arange(gap_interval, len(text), gap_interval) for text in texts]
    texts_with_gaps = [i for i, positions in enumerate(gap_positions) if len(positions)]
    masked_texts = []
    for i in texts_with_gaps:
        masked_text = check_token_ids(texts[i], model.config.vocab_size, f"Sequence {i}")
        if mask_id in masked_text:
            raise ValueError(
                f"Sequence {i} already contains the mask token (id {mask_id}): remove the mask "
                "token first."
            )
        masked_text[gap_positions[i]] = mask_id
        masked_texts.append(masked_text.tolist())
    restored_counts = np.zeros(len(texts), dtype=np.int64)
    for i, scores in zip(
        texts_with_gaps,
        compute_mask_log_probs(model, masked_texts, mask_id, batch_tokens=batch_tokens),
        strict=True,
    ):
        restored_counts[i] = (scores.argmax(1) == np.array(texts[i])[gap_positions[i]]).sum()
    gap_counts = np.array([len(positions) for positions in gap_positions], dtype=np.int64)
    return GapCounts(restored_counts, gap_counts)
