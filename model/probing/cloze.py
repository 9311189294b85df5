"""Gaps in a text: what a masked language model puts in them (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.mode import asks
from model.rows import by_length, check_ids, check_numbers, padded
from model.tokens import Tokens

Float32 = NDArray[np.float32]


@asks
def mask_log_probs(
    model: Transformer, sequences: Sequence[Tokens], mask: int, *, batch_tokens: int = 16_384
) -> list[Float32]:
    """log p of every token at each ``mask`` of each sequence, given both sides: (masks, V) each.

    Several masks of a sequence are asked for at once: none sees what the others hide.

    Raises:
        ValueError: the model is no encoder; a sequence has no mask or is longer than the context.
    """
    if model.config.architecture != "encoder":
        raise ValueError("The distribution at a mask needs an encoder-only model.")
    context, vocabulary = model.config.context, model.config.vocab_size
    check_ids([mask], vocabulary, "The mask")
    for i, sequence in enumerate(sequences):
        tokens = check_ids(sequence, vocabulary, f"Sequence {i}")
        if len(tokens) > context:
            raise ValueError(
                f"Sequence {i} has {len(tokens)} tokens, more than the context {context}."
            )
        if mask not in tokens:
            raise ValueError(
                f"Sequence {i} holds no mask, which is token {mask}: nothing is asked."
            )
    found: dict[int, Float32] = {}
    for rows in by_length(list(map(len, sequences)), batch_tokens):
        ids, real = padded([sequences[i] for i in rows], model.embedding.weight.device)
        at = ids == mask
        logits = model.logits(model(Batch(ids, keys=real))[at]).float()  # (masks, V)
        scores = check_numbers(logits.log_softmax(-1)).cpu()
        counts: list[int] = at.sum(1).tolist()
        for i, part in zip(rows, torch.split(scores, counts), strict=True):
            found[i] = part.numpy()
    return [found[i] for i in range(len(sequences))]


def cloze(
    model: Transformer,
    texts: Sequence[Tokens],
    mask: int,
    *,
    every: int = 5,
    batch_tokens: int = 16_384,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many gaps of each text the model fills with the token that stood there, and how many
    there are: readability as Taylor (1953) measures it, with every fifth word left out.

    Gaps are the tokens ``every``, 2 x ``every`` … of a text, counted from 0; a text without any is
    not asked for.
    """
    if every < 2:
        raise ValueError(f"every must be at least 2, not {every}: something must be left to read.")
    gaps = [np.arange(every, len(text), every) for text in texts]
    asked = [i for i, places in enumerate(gaps) if len(places)]
    lines = []
    for i in asked:
        line = check_ids(texts[i], model.config.vocab_size, f"Sequence {i}")
        if mask in line:
            raise ValueError(f"Sequence {i} holds the mask already, token {mask}.")
        line[gaps[i]] = mask
        lines.append(line.tolist())
    restored = np.zeros(len(texts), dtype=np.int64)
    for i, scores in zip(asked, mask_log_probs(model, lines, mask, batch_tokens=batch_tokens),
                         strict=True):  # fmt: skip
        restored[i] = (scores.argmax(1) == np.array(texts[i])[gaps[i]]).sum()
    return restored, np.array([len(places) for places in gaps], dtype=np.int64)
