"""Build batches from task examples: the tokens that the model reads, and its targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig, Objective
from hallmark.model.objectives import build_prefix_batch, build_seq2seq_batch
from hallmark.model.padding import pad_rows
from hallmark.model.special_tokens import END_OF_TEXT_ID
from hallmark.model.training.examples import NO_LABEL, Example, build_pair_prompt


def build_pair_batch(examples: Sequence[Example], architecture: str) -> Batch:
    """Build a batch of sources and targets.

    An encoder-decoder reads them as in ``build_seq2seq_batch``. A decoder reads them as a prefix
    LM: it attends fully to the prompt of the source, and predicts the target and the end token.
    """
    sources = [example.ids for example in examples]
    targets = [example.targets for example in examples]
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
    """Build a batch of texts and the labels of their tokens.

    Args:
        examples: labelled texts.
        config: config of the model.
        is_bidirectional: whether a prefix LM attends to the whole text in both directions.
    """
    ids, attention_mask = pad_rows([example.ids for example in examples], torch.device("cpu"))
    labels = torch.full_like(ids, NO_LABEL)
    for label_row, example in zip(labels, examples, strict=True):
        label_row[: len(example.targets)] = torch.tensor(list(example.targets))
    first_sentence_lengths = torch.tensor(
        [example.first_sentence_length or len(example.ids) for example in examples]
    )
    positions = torch.arange(ids.shape[1])
    token_types = (positions >= first_sentence_lengths[:, None]).long()
    is_encoder = config.architecture == "encoder"
    return Batch(
        ids,
        targets=labels.clamp(min=0),
        weights=(labels != NO_LABEL).float(),
        # A decoder needs no mask: padding follows the text, where it does not attend.
        attention_mask=attention_mask if is_encoder else None,
        prefix=attention_mask.sum(1) if is_bidirectional else None,
        token_types=token_types if config.token_types else None,
    )


def make_example_objective(
    config: ModelConfig, objective: Objective | None
) -> Callable[[Sequence[Example], int, int], Batch]:
    """Return the function (examples, key, first_row) -> Batch of a model.

    Models with labels get labelled texts, others pairs. The function draws nothing: ``key`` and
    ``first_row`` have no effect.
    """
    if config.labels:
        return lambda examples, key, first_row: build_label_batch(
            examples, config, objective == "prefix"
        )
    return lambda examples, key, first_row: build_pair_batch(examples, config.architecture)
