"""The batches that examples make: what the model reads of them, and what it is to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from model.batch import Batch
from model.config import ModelConfig, Objective
from model.objectives import build_prefix_batch, build_seq2seq_batch
from model.padding import pad_rows
from model.special_tokens import END_OF_TEXT_ID
from model.training.examples import NO_LABEL, Example, build_pair_prompt


def build_pair_batch(examples: Sequence[Example], architecture: str) -> Batch:
    """Sources to targets: of an encoder-decoder as ``seq2seq``; of a decoder as a prefix LM, which
    sees the prompt of the source in full and predicts the target and the end token."""
    sources, targets = (
        [example.ids for example in examples],
        [example.targets for example in examples],
    )
    if architecture == "encoder_decoder":
        return build_seq2seq_batch(sources, targets)
    prompts = [build_pair_prompt(source) for source in sources]
    token_rows = [
        [*prompt, *target, END_OF_TEXT_ID] for prompt, target in zip(prompts, targets, strict=True)
    ]
    ids, _ = pad_rows(token_rows, torch.device("cpu"))
    prefix_lengths = np.array([len(prompt) for prompt in prompts])
    return build_prefix_batch(ids.numpy(), prefix_lengths)


def build_label_batch(
    examples: Sequence[Example], config: ModelConfig, is_bidirectional: bool
) -> Batch:
    """Texts to the labels of their tokens. ``both_ways``: a prefix LM reads all of a text so."""
    ids, attention_mask = pad_rows([example.ids for example in examples], torch.device("cpu"))
    labels = torch.full_like(ids, NO_LABEL)
    for label_row, example in zip(labels, examples, strict=True):
        label_row[: len(example.targets)] = torch.tensor(list(example.targets))
    first_sentence_lengths = torch.tensor(
        [example.first_sentence_length or len(example.ids) for example in examples]
    )
    positions = torch.arange(ids.shape[1])
    is_encoder = config.architecture == "encoder"
    return Batch(
        ids,
        targets=labels.clamp(min=0),
        weights=(labels != NO_LABEL).float(),
        attention_mask=attention_mask
        if is_encoder
        else None,  # padding stands where a decoder does not see it
        prefix=attention_mask.sum(1) if is_bidirectional else None,
        token_types=(positions >= first_sentence_lengths[:, None]).long()
        if config.token_types
        else None,
    )


def make_example_objective(
    config: ModelConfig, objective: Objective | None
) -> Callable[[Sequence[Example], int, int], Batch]:
    """The function (examples, key, first) -> Batch for a model: labels where it has some, else
    pairs. It draws nothing, and neither number counts."""
    if config.labels:
        return lambda examples, key, first_row: build_label_batch(
            examples, config, objective == "prefix"
        )
    return lambda examples, key, first_row: build_pair_batch(examples, config.architecture)
