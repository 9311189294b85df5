"""Tasks as word prediction: how likely a model finds each answer, spelled out, behind a question.

Without examples (zero-shot) the question is the prompt; with k of them (k-shot, Brown et al. 2020)
they stand before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.architecture import Transformer
from model.decoding.score import target_log_probs, token_log_probs
from model.tokens import END_OF_TEXT, Tokens

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Prompt:
    """ids: what the model reads before the answer. shots: how many examples stand in it, and how
    many had no room (``cut``)."""

    ids: list[int]
    shots: int
    cut: int


def with_examples(
    examples: Sequence[Tokens],
    question: Tokens,
    *,
    room: int,
    begin: Sequence[int] = (END_OF_TEXT,),
) -> Prompt:
    """The question behind as many examples, each with its answer, as fit into ``room`` tokens.

    The rule: examples are left out whole, those first that stand farthest from the question, until
    the rest fits. ``begin`` stands before all. ``room`` is the context less the longest answer.
    ValueError where not even the question fits.
    """
    used = len(begin) + len(question)
    if used > room:
        raise ValueError(
            f"The question takes {used} tokens with what begins it, and there is room for {room}: "
            f"shorten it, or its answers."
        )
    shots = 0
    while shots < len(examples) and used + len(examples[-1 - shots]) <= room:
        used += len(examples[-1 - shots])
        shots += 1
    near = examples[len(examples) - shots :]
    ids = [*begin, *(token for example in near for token in example), *question]
    return Prompt(ids, shots, len(examples) - shots)


def answer_log_probs(
    model: Transformer,
    prompts: Sequence[Tokens],
    answers: Sequence[Sequence[Tokens]],
    *,
    batch_tokens: int = 16_384,
) -> list[Float64]:
    """log p of each answer of each prompt, (answers,), in nats: the sum over its tokens.

    A decoder reads the prompt and scores what stands behind it; a prefix LM reads the prompt in
    both directions. An encoder-decoder reads the prompt as its source, and answers behind the
    start symbol. To ask whether an answer ends there, end it with the end symbol. Divide by the
    number of tokens or of bytes to compare answers of unlike length.

    Raises:
        ValueError: a prompt or an answer is empty; both together exceed the context.
    """
    if len(prompts) != len(answers):
        raise ValueError(
            f"{len(prompts)} prompts need as many lists of answers, not {len(answers)}."
        )
    context = model.config.context
    pairs = [(p, answer) for p, several in enumerate(answers) for answer in several]
    for p, answer in pairs:
        if not len(prompts[p]) or not len(answer):
            raise ValueError(f"Prompt {p} or one of its answers is empty.")
        longest = len(answer) + (len(prompts[p]) if model.encoder is None else 0)
        if max(longest, len(prompts[p])) > context:
            raise ValueError(
                f"Prompt {p} and an answer take {longest} tokens, more than the context {context}: "
                f"leave out examples (see with_examples)."
            )
    behind = [prompts[p] for p, _ in pairs]
    if model.encoder is None:
        texts = [[*prompt, *answer] for prompt, (_, answer) in zip(behind, pairs, strict=True)]
        given = list(map(len, behind))
        scores = token_log_probs(model, texts, batch_tokens=batch_tokens, given=given)
        scores = [line[begin - 1 :] for line, begin in zip(scores, given, strict=True)]
    else:
        targets = [[END_OF_TEXT, *answer] for _, answer in pairs]
        scores = target_log_probs(model, behind, targets, batch_tokens=batch_tokens)
    totals = iter([line.sum(dtype=np.float64) for line in scores])
    return [np.array([next(totals) for _ in several], dtype=np.float64) for several in answers]
