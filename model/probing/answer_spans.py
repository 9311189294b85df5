"""Find answer spans: where the answer to a question begins and ends in a text.

As in Devlin et al. 2019, section 4.2, there is a vector S for the beginning and a vector E for the
end: the score of tokens i ... j is S·h_i + E·h_j, with the states h of an encoder or a decoder. An
encoder and a prefix LM read the text in both directions, other decoders only to the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.cache import make_prefix_lm_lengths
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode
from hallmark.model.padding import batch_indices_by_length, check_token_ids, pad_rows
from hallmark.model.special_tokens import TokenIds
from hallmark.model.training.optimizers import clip_gradients
from hallmark.model.training.packed_rows import select_batch_rows


@dataclass(frozen=True)
class AnswerSpan:
    """Tokens ``begin`` ... ``end`` of a sequence, inclusive; ``score`` is not normalised."""

    begin: int
    end: int
    score: float


class AnswerSpanModel(nn.Module):
    """Scores each token as the first and as the last token of the answer, (B, T, 2)."""

    def __init__(self, body: Transformer) -> None:
        super().__init__()
        if body.config.architecture == "encoder_decoder":
            raise ValueError(
                "To find answer spans, a model must have the 'encoder' or 'decoder' architecture, "
                "not 'encoder_decoder'."
            )
        self.body = body
        weight = body.embedding.weight
        self.output = nn.Linear(body.config.d_model, 2, device=weight.device, dtype=weight.dtype)
        rng = torch.Generator(weight.device).manual_seed(0)
        nn.init.normal_(self.output.weight, std=0.02, generator=rng)
        nn.init.zeros_(self.output.bias)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Score right-padded ids (B, T); ``attention_mask`` (B, T) is True at real tokens."""
        prefix = make_prefix_lm_lengths(self.body, attention_mask.sum(1))
        batch = Batch(ids, attention_mask=attention_mask, prefix=prefix)
        scores: Tensor = self.output(self.body.compute_hidden_states(batch))
        lowest_score = torch.finfo(torch.float32).min
        return scores.float().masked_fill(~attention_mask.unsqueeze(-1), lowest_score)


def select_best_spans(
    begin_scores: Tensor, end_scores: Tensor, is_allowed: Tensor, max_length: int
) -> list[AnswerSpan]:
    """Select the span i <= j with the largest begin_scores[i] + end_scores[j] of each row.

    Among equal scores the shortest span is selected, then the first.

    Args:
        begin_scores: (B, T).
        end_scores: (B, T).
        is_allowed: (B, T), tokens at which an answer may begin or end: those of the text, not of
            the question.
        max_length: most tokens of a span.

    Raises:
        ValueError: ``max_length`` is less than 1, or a row has no allowed token.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, not {max_length}.")
    if not bool(is_allowed.any(1).all()):
        raise ValueError(
            "A sequence has no token at which an answer can begin or end: allow at least one token."
        )
    begin_scores = begin_scores.masked_fill(~is_allowed, -torch.inf)
    end_scores = end_scores.masked_fill(~is_allowed, -torch.inf)
    rows, width = begin_scores.shape
    best_score = begin_scores.new_full((rows,), -torch.inf)
    best_begin, best_extra_tokens = torch.zeros(
        2, rows, dtype=torch.int64, device=begin_scores.device
    )
    for length in range(min(max_length, width)):
        span_scores = begin_scores[:, : width - length] + end_scores[:, length:]
        span_score, begin_index = span_scores.max(1)
        is_better = span_score > best_score
        best_begin = torch.where(is_better, begin_index, best_begin)
        best_extra_tokens = best_extra_tokens.masked_fill(is_better, length)
        best_score = torch.maximum(best_score, span_score)
    span_values = zip(
        best_begin.tolist(), best_extra_tokens.tolist(), best_score.tolist(), strict=True
    )
    return [AnswerSpan(begin, begin + length, score) for begin, length, score in span_values]


@run_in_evaluation_mode
def find_answer_spans(
    span_model: AnswerSpanModel,
    sequences: Sequence[TokenIds],
    is_allowed: Sequence[Sequence[bool]],
    *,
    max_length: int = 30,
    batch_tokens: int = 16_384,
) -> list[AnswerSpan]:
    """Find the best span of each sequence among its allowed tokens; see ``select_best_spans``."""
    _check_sequences(span_model, sequences)
    spans_by_sequence: dict[int, AnswerSpan] = {}
    for batch_indices in batch_indices_by_length(list(map(len, sequences)), batch_tokens):
        ids, attention_mask = pad_rows(
            [sequences[i] for i in batch_indices], span_model.output.weight.device
        )
        allowed_mask = torch.zeros_like(attention_mask)
        for row, i in enumerate(batch_indices):
            allowed_tokens = torch.tensor(
                list(is_allowed[i]), dtype=torch.bool, device=allowed_mask.device
            )
            allowed_mask[row, : len(sequences[i])] = allowed_tokens
        scores = span_model(ids, attention_mask)
        spans = select_best_spans(scores[..., 0], scores[..., 1], allowed_mask, max_length)
        spans_by_sequence |= dict(zip(batch_indices, spans, strict=True))
    return [spans_by_sequence[i] for i in range(len(sequences))]


def train_span_model(
    span_model: AnswerSpanModel,
    sequences: Sequence[TokenIds],
    spans: Sequence[tuple[int, int]],
    *,
    steps: int,
    freeze_body: bool = False,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    seed: int = 0,
) -> list[float]:
    """Train on answer spans (begin, end), inclusive; return the loss of each step in nats.

    The loss is the mean of the two cross-entropies of beginning and end over the tokens of a
    sequence. ``freeze_body`` trains only the two vectors. The sequences of a step are a function of
    (seed, step). The learning rate falls to 0 in equal steps.

    Raises:
        ValueError: There is not one span for each sequence, or a span is outside its sequence.
    """
    _check_sequences(span_model, sequences)
    if len(spans) != len(sequences) or not len(spans):
        raise ValueError(
            "Expected at least one sequence and one answer span per sequence, but got "
            f"{len(spans)} for {len(sequences)} sequences."
        )
    for i, (begin, end) in enumerate(spans):
        if not 0 <= begin <= end < len(sequences[i]):
            raise ValueError(
                f"Answer span {i} (tokens {begin} to {end}) is not inside its sequence of "
                f"{len(sequences[i])} tokens."
            )
    device, count = span_model.output.weight.device, len(sequences)
    target_spans = torch.tensor([list(span) for span in spans], device=device)
    body_parameters = [
        parameter for parameter in span_model.body.parameters() if parameter.requires_grad
    ]
    for parameter in body_parameters:
        parameter.requires_grad_(not freeze_body)
    trainable_parameters = [
        parameter for parameter in span_model.parameters() if parameter.requires_grad
    ]
    optimizer = torch.optim.AdamW(trainable_parameters, lr=learning_rate, weight_decay=weight_decay)
    torch.manual_seed(seed)  # dropout
    span_model.train()
    span_model.body.train(not freeze_body)
    losses: list[float] = []
    for step in range(steps):
        rows = select_batch_rows(seed, step + 1, batch_size, count).tolist()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - step / steps)
        scores = span_model(*pad_rows([sequences[i] for i in rows], device))  # (B, T, 2)
        loss = cross_entropy(scores, target_spans[rows])  # over T, for begin and end
        loss.backward()
        clip_gradients([optimizer], 1.0)
        optimizer.step()
        span_model.zero_grad(set_to_none=True)
        losses.append(loss.item())
    span_model.eval()
    for parameter in body_parameters:
        parameter.requires_grad_(True)
    return losses


def _check_sequences(span_model: AnswerSpanModel, sequences: Sequence[TokenIds]) -> None:
    config = span_model.body.config
    for i, sequence in enumerate(sequences):
        if not 0 < len(sequence) <= config.context:
            raise ValueError(
                f"Sequence {i} must have 1 to {config.context} tokens, not {len(sequence)}."
            )
        check_token_ids(sequence, config.vocab_size, f"Sequence {i}")
