"""Answer spans: where in a text the answer to a question begins and ends (Devlin et al. 2019, 4.2).

A vector for the beginning and one for the end, S and E: the score of tokens i … j is
S·h_i + E·h_j, over the states h of an encoder, or of a decoder, which sees the left alone, but for
a prefix LM, which reads the text in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.cache import make_prefix_lengths
from model.decoding.inference_mode import run_in_evaluation_mode
from model.padding import batch_indices_by_length, check_token_ids, pad_rows
from model.special_tokens import TokenIds
from model.training.optimizers import clip_gradients
from model.training.packed_rows import select_batch_rows


@dataclass(frozen=True)
class AnswerSpan:
    """Tokens ``begin`` … ``end`` of a sequence, both of them in it; ``score`` is not normalised."""

    begin: int
    end: int
    score: float


class AnswerSpanModel(nn.Module):
    """Scores (B, T, 2) of each token as the first and as the last of the answer."""

    def __init__(self, body: Transformer) -> None:
        super().__init__()
        if body.config.architecture == "encoder_decoder":
            raise ValueError("Answer spans are read off one stack: an encoder or a decoder.")
        self.body = body
        weight = body.embedding.weight
        self.output = nn.Linear(body.config.d_model, 2, device=weight.device, dtype=weight.dtype)
        rng = torch.Generator(weight.device).manual_seed(0)
        nn.init.normal_(self.output.weight, std=0.02, generator=rng)
        nn.init.zeros_(self.output.bias)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        """ids (B, T), padded to the right; ``real`` (B, T) bool says which are tokens."""
        batch = Batch(
            ids,
            attention_mask=attention_mask,
            prefix=make_prefix_lengths(self.body, attention_mask.sum(1)),
        )
        scores: Tensor = self.output(self.body.compute_hidden_states(batch))
        return scores.float().masked_fill(
            ~attention_mask.unsqueeze(-1), torch.finfo(torch.float32).min
        )


def select_best_spans(
    begin_scores: Tensor, end_scores: Tensor, is_allowed: Tensor, max_length: int
) -> list[AnswerSpan]:
    """Of each row of scores (B, T) the span i ≤ j of at most ``longest`` tokens with the largest
    begins_i + ends_j, both at tokens that are ``allowed`` (B, T), as those of the text, not of the
    question. Among equals the shortest, then the first. ValueError where a row allows nothing.
    """
    if max_length < 1:
        raise ValueError(f"longest must be at least 1, not {max_length}.")
    if not bool(is_allowed.any(1).all()):
        raise ValueError("A sequence has no token that an answer may begin or end at.")
    begin_scores = begin_scores.masked_fill(~is_allowed, -torch.inf)
    end_scores = end_scores.masked_fill(~is_allowed, -torch.inf)
    rows, width = begin_scores.shape
    best_score = begin_scores.new_full((rows,), -torch.inf)
    best_begin, best_extra_tokens = torch.zeros(
        2, rows, dtype=torch.int64, device=begin_scores.device
    )
    for length in range(min(max_length, width)):
        span_score, begin_index = (begin_scores[:, : width - length] + end_scores[:, length:]).max(
            1
        )
        best_begin, best_extra_tokens = (
            torch.where(span_score > best_score, begin_index, best_begin),
            best_extra_tokens.masked_fill(span_score > best_score, length),
        )
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
    """The best span of each sequence among its ``allowed`` tokens."""
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
    """Train the reader on spans (begin, end), both inside; the loss of each step, in nats.

    The loss is the mean of two cross-entropies over the tokens of a sequence, of the beginning and
    of the end. ``frozen`` trains the two vectors alone. Which sequences a step sees is a function
    of (seed, step). The rate falls to 0 in equal steps.
    """
    _check_sequences(span_model, sequences)
    if len(spans) != len(sequences) or not len(spans):
        raise ValueError(f"{len(sequences)} sequences need as many spans, not {len(spans)}.")
    for i, (begin, end) in enumerate(spans):
        if not 0 <= begin <= end < len(sequences[i]):
            raise ValueError(f"Span {i}, {begin} to {end}, is none of {len(sequences[i])} tokens.")
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
                f"Sequence {i} has {len(sequence)} tokens, not between 1 and {config.context}."
            )
        check_token_ids(sequence, config.vocab_size, f"Sequence {i}")
