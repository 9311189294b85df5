"""Score answers as word prediction: how probable is each answer, as text, after a question?

Without examples (zero-shot) the question is the prompt. With k examples (k-shot, Brown et al. 2020)
they precede the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hallmark.model.architecture import Transformer
from hallmark.model.decoding.token_scores import compute_target_log_probs, compute_token_log_probs
from hallmark.model.special_tokens import END_OF_TEXT_ID, TokenIds

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class FewShotPrompt:
    """A question with examples.

    Attributes:
        ids: tokens that the model reads before the answer.
        shot_count: number of examples in the prompt.
        dropped_count: number of examples that did not fit.
    """

    ids: list[int]
    shot_count: int
    dropped_count: int


def build_few_shot_prompt(
    examples: Sequence[TokenIds],
    question: TokenIds,
    *,
    max_tokens: int,
    begin_ids: Sequence[int] = (END_OF_TEXT_ID,),
) -> FewShotPrompt:
    """Build the prompt from the question and as many examples with answers as fit.

    Whole examples are dropped, those farthest from the question first, until the rest fits.

    Args:
        examples: examples with their answers; the last ones are nearest to the question.
        question: the question.
        max_tokens: the context minus the longest answer.
        begin_ids: tokens at the start of the prompt.

    Raises:
        ValueError: The question alone does not fit.
    """
    token_count = len(begin_ids) + len(question)
    if token_count > max_tokens:
        raise ValueError(
            f"The question and the start of the prompt have {token_count} tokens in total, but "
            f"only {max_tokens} tokens fit: shorten the question or its longest answer."
        )
    shot_count = 0
    while shot_count < len(examples) and token_count + len(examples[-1 - shot_count]) <= max_tokens:
        token_count += len(examples[-1 - shot_count])
        shot_count += 1
    used_examples = examples[len(examples) - shot_count :]
    ids = [*begin_ids, *(token for example in used_examples for token in example), *question]
    return FewShotPrompt(ids, shot_count, len(examples) - shot_count)


def compute_answer_log_probs(
    model: Transformer,
    prompts: Sequence[TokenIds],
    answers: Sequence[Sequence[TokenIds]],
    *,
    batch_tokens: int = 16_384,
) -> list[Float64]:
    """Compute log p of each answer of each prompt, (answers,), in nats: the sum over its tokens.

    A decoder reads the prompt and scores the answer after it; a prefix LM reads the prompt in both
    directions. An encoder-decoder reads the prompt as its source, and answers after the start
    symbol. To score also that an answer ends, end it with the end symbol. To compare answers of
    different lengths, divide by the number of tokens or bytes.

    Raises:
        ValueError: A prompt or an answer is empty, or both together exceed the context.
    """
    if len(prompts) != len(answers):
        raise ValueError(
            f"Expected one list of answers per prompt, but got {len(answers)} for {len(prompts)} "
            "prompts."
        )
    context = model.config.context
    pairs = [
        (prompt_index, answer)
        for prompt_index, prompt_answers in enumerate(answers)
        for answer in prompt_answers
    ]
    for prompt_index, answer in pairs:
        if not len(prompts[prompt_index]) or not len(answer):
            raise ValueError(f"Prompt {prompt_index} or one of its answers is empty.")
        longest = len(answer) + (len(prompts[prompt_index]) if model.encoder is None else 0)
        if max(longest, len(prompts[prompt_index])) > context:
            raise ValueError(
                f"Prompt {prompt_index} and one of its answers exceed the context of {context} "
                "tokens: use fewer examples in the prompt (see build_few_shot_prompt)."
            )
    prompt_per_answer = [prompts[prompt_index] for prompt_index, _ in pairs]
    if model.encoder is None:
        texts = [
            [*prompt, *answer] for prompt, (_, answer) in zip(prompt_per_answer, pairs, strict=True)
        ]
        prompt_lengths = list(map(len, prompt_per_answer))
        scores = compute_token_log_probs(
            model, texts, batch_tokens=batch_tokens, prefix_lm_prompt_lengths=prompt_lengths
        )
        scores = [
            log_probs[prompt_length - 1 :]
            for log_probs, prompt_length in zip(scores, prompt_lengths, strict=True)
        ]
    else:
        targets = [[END_OF_TEXT_ID, *answer] for _, answer in pairs]
        scores = compute_target_log_probs(
            model, prompt_per_answer, targets, batch_tokens=batch_tokens
        )
    totals = iter([log_probs.sum(dtype=np.float64) for log_probs in scores])
    return [
        np.array([next(totals) for _ in prompt_answers], dtype=np.float64)
        for prompt_answers in answers
    ]
