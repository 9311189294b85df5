"""The batches that examples make: what the model reads of them, and what it is to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from model.batch import Batch
from model.config import ModelConfig, Objective
from model.objectives import prefix, seq2seq
from model.rows import padded
from model.tokens import END_OF_TEXT
from model.training.examples import UNASKED, Example, prompt_of


def pairs(examples: Sequence[Example], architecture: str) -> Batch:
    """Sources to targets: of an encoder-decoder as ``seq2seq``; of a decoder as a prefix LM, which
    sees the prompt of the source in full and predicts the target and the end token."""
    sources, targets = [e.ids for e in examples], [e.answers for e in examples]
    if architecture == "encoder_decoder":
        return seq2seq(sources, targets)
    prompts = [prompt_of(source) for source in sources]
    rows = [[*p, *t, END_OF_TEXT] for p, t in zip(prompts, targets, strict=True)]
    ids, _ = padded(rows, torch.device("cpu"))
    given = np.array([len(prompt) for prompt in prompts])
    return prefix(ids.numpy(), given)


def labelled(examples: Sequence[Example], config: ModelConfig, both_ways: bool) -> Batch:
    """Texts to the labels of their tokens. ``both_ways``: a prefix LM reads all of a text so."""
    ids, real = padded([e.ids for e in examples], torch.device("cpu"))
    answers = torch.full_like(ids, UNASKED)
    for line, example in zip(answers, examples, strict=True):
        line[: len(example.answers)] = torch.tensor(list(example.answers))
    first = torch.tensor([example.first or len(example.ids) for example in examples])
    place = torch.arange(ids.shape[1])
    encoder = config.architecture == "encoder"
    return Batch(
        ids,
        targets=answers.clamp(min=0),
        weights=(answers != UNASKED).float(),
        keys=real if encoder else None,  # padding stands where a decoder does not see it
        prefix=real.sum(1) if both_ways else None,
        token_types=(place >= first[:, None]).long() if config.token_types else None,
    )


def make_task(
    config: ModelConfig, objective: Objective | None
) -> Callable[[Sequence[Example], int, int], Batch]:
    """The function (examples, key, first) -> Batch for a model: labels where it has some, else
    pairs. It draws nothing, and neither number counts."""
    if config.labels:
        return lambda examples, key, first: labelled(examples, config, objective == "prefix")
    return lambda examples, key, first: pairs(examples, config.architecture)
