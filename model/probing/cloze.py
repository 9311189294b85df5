"""Gaps in a text: what a masked language model puts in them (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.inference_mode import run_in_evaluation_mode
from model.padding import batch_indices_by_length, check_no_nan, check_token_ids, pad_rows
from model.special_tokens import TokenIds

Float32 = NDArray[np.float32]


@run_in_evaluation_mode
def compute_mask_log_probs(
    model: Transformer, sequences: Sequence[TokenIds], mask_id: int, *, batch_tokens: int = 16_384
) -> list[Float32]:
    """log p of every token at each ``mask`` of each sequence, given both sides: (masks, V) each.

    Several masks of a sequence are asked for at once: none sees what the others hide.

    Raises:
        ValueError: the model is no encoder; a sequence has no mask or is longer than the context.
    """
    if model.config.architecture != "encoder":
        raise ValueError("The distribution at a mask needs an encoder-only model.")
    context, vocab_size = model.config.context, model.config.vocab_size
    check_token_ids([mask_id], vocab_size, "The mask")
    for i, sequence in enumerate(sequences):
        tokens = check_token_ids(sequence, vocab_size, f"Sequence {i}")
        if len(tokens) > context:
            raise ValueError(
                f"Sequence {i} has {len(tokens)} tokens, more than the context {context}."
            )
        if mask_id not in tokens:
            raise ValueError(
                f"Sequence {i} holds no mask, which is token {mask_id}: nothing is asked."
            )
    log_probs_by_sequence: dict[int, Float32] = {}
    for batch_indices in batch_indices_by_length(list(map(len, sequences)), batch_tokens):
        ids, attention_mask = pad_rows(
            [sequences[i] for i in batch_indices], model.embedding.weight.device
        )
        is_mask = ids == mask_id
        logits = model.compute_logits(
            model(Batch(ids, attention_mask=attention_mask))[is_mask]
        ).float()  # (masks, V)
        scores = check_no_nan(logits.log_softmax(-1)).cpu()
        counts: list[int] = is_mask.sum(1).tolist()
        for i, sequence_scores in zip(batch_indices, torch.split(scores, counts), strict=True):
            log_probs_by_sequence[i] = sequence_scores.numpy()
    return [log_probs_by_sequence[i] for i in range(len(sequences))]


def count_restored_gaps(
    model: Transformer,
    texts: Sequence[TokenIds],
    mask_id: int,
    *,
    gap_interval: int = 5,
    batch_tokens: int = 16_384,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many gaps of each text the model fills with the token that stood there, and how many
    there are: readability as Taylor (1953) measures it, with every fifth word left out.

    Gaps are the tokens ``every``, 2 x ``every`` … of a text, counted from 0; a text without any is
    not asked for.
    """
    if gap_interval < 2:
        raise ValueError(
            f"every must be at least 2, not {gap_interval}: something must be left to read."
        )
    gap_positions = [np.arange(gap_interval, len(text), gap_interval) for text in texts]
    texts_with_gaps = [i for i, positions in enumerate(gap_positions) if len(positions)]
    masked_texts = []
    for i in texts_with_gaps:
        masked_text = check_token_ids(texts[i], model.config.vocab_size, f"Sequence {i}")
        if mask_id in masked_text:
            raise ValueError(f"Sequence {i} holds the mask already, token {mask_id}.")
        masked_text[gap_positions[i]] = mask_id
        masked_texts.append(masked_text.tolist())
    restored_counts = np.zeros(len(texts), dtype=np.int64)
    for i, scores in zip(
        texts_with_gaps,
        compute_mask_log_probs(model, masked_texts, mask_id, batch_tokens=batch_tokens),
        strict=True,
    ):
        restored_counts[i] = (scores.argmax(1) == np.array(texts[i])[gap_positions[i]]).sum()
    return restored_counts, np.array(
        [len(positions) for positions in gap_positions], dtype=np.int64
    )
