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
from model.decoding.cache import prompt_lengths
from model.decoding.mode import asks
from model.rows import by_length, check_ids, padded
from model.tokens import Tokens
from model.training.data import batch_sequences
from model.training.optimise import clip


@dataclass(frozen=True)
class Span:
    """Tokens ``begin`` … ``end`` of a sequence, both of them in it; ``score`` is not normalised."""

    begin: int
    end: int
    score: float


class SpanReader(nn.Module):
    """Scores (B, T, 2) of each token as the first and as the last of the answer."""

    def __init__(self, body: Transformer) -> None:
        super().__init__()
        if body.config.architecture == "encoder_decoder":
            raise ValueError("Answer spans are read off one stack: an encoder or a decoder.")
        self.body = body
        weight = body.embedding.weight
        self.output = nn.Linear(body.config.d_model, 2, device=weight.device, dtype=weight.dtype)
        draws = torch.Generator(weight.device).manual_seed(0)
        nn.init.normal_(self.output.weight, std=0.02, generator=draws)
        nn.init.zeros_(self.output.bias)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """ids (B, T), padded to the right; ``real`` (B, T) bool says which are tokens."""
        batch = Batch(ids, keys=real, prefix=prompt_lengths(self.body, real.sum(1)))
        scores: Tensor = self.output(self.body.states(batch))
        return scores.float().masked_fill(~real.unsqueeze(-1), torch.finfo(torch.float32).min)


def best_spans(begins: Tensor, ends: Tensor, allowed: Tensor, longest: int) -> list[Span]:
    """Of each row of scores (B, T) the span i ≤ j of at most ``longest`` tokens with the largest
    begins_i + ends_j, both at tokens that are ``allowed`` (B, T), as those of the text, not of the
    question. Among equals the shortest, then the first. ValueError where a row allows nothing.
    """
    if longest < 1:
        raise ValueError(f"longest must be at least 1, not {longest}.")
    if not bool(allowed.any(1).all()):
        raise ValueError("A sequence has no token that an answer may begin or end at.")
    begins = begins.masked_fill(~allowed, -torch.inf)
    ends = ends.masked_fill(~allowed, -torch.inf)
    rows, width = begins.shape
    best = begins.new_full((rows,), -torch.inf)
    first, size = torch.zeros(2, rows, dtype=torch.int64, device=begins.device)
    for length in range(min(longest, width)):
        value, at = (begins[:, : width - length] + ends[:, length:]).max(1)
        first, size = torch.where(value > best, at, first), size.masked_fill(value > best, length)
        best = torch.maximum(best, value)
    cells = zip(first.tolist(), size.tolist(), best.tolist(), strict=True)
    return [Span(begin, begin + length, score) for begin, length, score in cells]


@asks
def find_spans(
    reader: SpanReader,
    sequences: Sequence[Tokens],
    allowed: Sequence[Sequence[bool]],
    *,
    longest: int = 30,
    batch_tokens: int = 16_384,
) -> list[Span]:
    """The best span of each sequence among its ``allowed`` tokens."""
    _check(reader, sequences)
    found: dict[int, Span] = {}
    for rows in by_length(list(map(len, sequences)), batch_tokens):
        ids, real = padded([sequences[i] for i in rows], reader.output.weight.device)
        may = torch.zeros_like(real)
        for line, i in enumerate(rows):
            marks = torch.tensor(list(allowed[i]), dtype=torch.bool, device=may.device)
            may[line, : len(sequences[i])] = marks
        scores = reader(ids, real)
        spans = best_spans(scores[..., 0], scores[..., 1], may, longest)
        found |= dict(zip(rows, spans, strict=True))
    return [found[i] for i in range(len(sequences))]


def fit_spans(
    reader: SpanReader,
    sequences: Sequence[Tokens],
    spans: Sequence[tuple[int, int]],
    *,
    steps: int,
    frozen: bool = False,
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
    _check(reader, sequences)
    if len(spans) != len(sequences) or not len(spans):
        raise ValueError(f"{len(sequences)} sequences need as many spans, not {len(spans)}.")
    for i, (begin, end) in enumerate(spans):
        if not 0 <= begin <= end < len(sequences[i]):
            raise ValueError(f"Span {i}, {begin} to {end}, is none of {len(sequences[i])} tokens.")
    device, count = reader.output.weight.device, len(sequences)
    answers = torch.tensor([list(span) for span in spans], device=device)
    learning = [p for p in reader.body.parameters() if p.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(not frozen)
    learnt = [parameter for parameter in reader.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=learning_rate, weight_decay=weight_decay)
    torch.manual_seed(seed)  # dropout
    reader.train()
    reader.body.train(not frozen)
    losses: list[float] = []
    for step in range(steps):
        rows = batch_sequences(seed, step + 1, batch_size, count).tolist()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - step / steps)
        scores = reader(*padded([sequences[i] for i in rows], device))  # (B, T, 2)
        loss = cross_entropy(scores, answers[rows])  # over T, for begin and end
        loss.backward()
        clip([optimizer], 1.0)
        optimizer.step()
        reader.zero_grad(set_to_none=True)
        losses.append(loss.item())
    reader.eval()
    for parameter in learning:
        parameter.requires_grad_(True)
    return losses


def _check(reader: SpanReader, sequences: Sequence[Tokens]) -> None:
    config = reader.body.config
    for i, sequence in enumerate(sequences):
        if not 0 < len(sequence) <= config.context:
            raise ValueError(
                f"Sequence {i} has {len(sequence)} tokens, not between 1 and {config.context}."
            )
        check_ids(sequence, config.vocab_size, f"Sequence {i}")
