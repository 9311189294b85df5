"""Compute log-probabilities, ranks and related statistics of given tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.cache import make_prefix_lm_lengths
from hallmark.model.decoding.context_windows import compute_default_stride, compute_window_start
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode
from hallmark.model.loss import choose_chunk_rows
from hallmark.model.padding import batch_indices_by_length, check_token_ids, pad_rows
from hallmark.model.special_tokens import PAD_ID, TokenIds

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of each predicted token of one sequence, (len(sequence) - 1,) each.

    Attributes:
        log_probs: log p of the token, in nats.
        mean_log_prob: mean of log p over the vocabulary under p itself (Min-K%++, Zhang et al.
            2024).
        std_log_prob: standard deviation of log p over the vocabulary under p itself.
        rank: number of allowed tokens that are more probable, or equally probable with a lower id.
            0 is the choice of greedy decoding; -1 means that the model gives no number.
    """

    log_probs: Float32
    mean_log_prob: Float32
    std_log_prob: Float32
    rank: NDArray[np.int32]

    def skip_first(self, count: int) -> TokenStatistics:
        """Return the statistics without the first ``count`` predicted tokens."""
        return TokenStatistics(
            self.log_probs[count:],
            self.mean_log_prob[count:],
            self.std_log_prob[count:],
            self.rank[count:],
        )


def compute_token_log_probs(
    model: Transformer,
    sequences: Sequence[TokenIds],
    *,
    batch_tokens: int = 16_384,
    stride: int | None = None,
    prefix_lm_prompt_lengths: Sequence[int] | None = None,
) -> list[Float32]:
    """Compute log p of each token after the first, in nats: entry i is log p(s[i+1] | s[...i]).

    Sequences longer than the context are scored in windows (see ``compute_window_start``).
    Sequences of fewer than two tokens give an empty array.

    Args:
        batch_tokens: most tokens per forward pass, padding included.
        stride: distance of the windows, by default half the context.
        prefix_lm_prompt_lengths: tokens of each sequence that are its prompt, by default only the
            first. Only a prefix LM uses them: it reads the prompt in both directions and does not
            predict it (NaN).
    """
    scan_options = batch_tokens, stride, prefix_lm_prompt_lengths
    return [
        log_prob_rows[0]
        for log_prob_rows in _reduce_token_logits(
            model, sequences, reduce_to_log_probs, 1, *scan_options
        )
    ]


def compute_token_statistics(
    model: Transformer,
    sequences: Sequence[TokenIds],
    *,
    batch_tokens: int = 16_384,
    stride: int | None = None,
    prefix_lm_prompt_lengths: Sequence[int] | None = None,
    unranked_tokens: Sequence[int] = (PAD_ID,),
) -> list[TokenStatistics]:
    """Compute log p and the statistics over the vocabulary; see ``compute_token_log_probs``.

    Args:
        unranked_tokens: tokens that ``generate`` never chooses: they are not counted in ranks.
    """
    reduce = partial(compute_log_prob_mean_std_rank, unranked_tokens=unranked_tokens)
    return to_token_statistics(
        _reduce_token_logits(
            model, sequences, reduce, 4, batch_tokens, stride, prefix_lm_prompt_lengths
        )
    )


def to_token_statistics(stacked_statistics: Sequence[Float32]) -> list[TokenStatistics]:
    """Convert the results of ``compute_log_prob_mean_std_rank``, (4, n) for each sequence."""
    ranks = [
        np.where(np.isnan(columns[0]), -1, columns[3]).astype(np.int32)
        for columns in stacked_statistics
    ]
    return [
        TokenStatistics(columns[0], columns[1], columns[2], rank)
        for columns, rank in zip(stacked_statistics, ranks, strict=True)
    ]


def compute_target_log_probs(
    model: Transformer,
    sources: Sequence[TokenIds],
    targets: Sequence[TokenIds],
    *,
    batch_tokens: int = 16_384,
) -> list[Float32]:
    """Compute log p of each token of a target after its first, given its source.

    Args:
        model: an encoder-decoder.
        sources: input of the encoder for each target.
        targets: texts to score, which begin with the start symbol.
        batch_tokens: most tokens of sources and targets per forward pass, padding included; a pair
            with more tokens is read alone.

    Raises:
        ValueError: A source or a target is longer than the context, or a source is empty.
    """
    stacked_log_probs = _reduce_target_logits(
        model, sources, targets, reduce_to_log_probs, 1, batch_tokens
    )
    return [log_prob_rows[0] for log_prob_rows in stacked_log_probs]


def compute_target_statistics(
    model: Transformer,
    sources: Sequence[TokenIds],
    targets: Sequence[TokenIds],
    *,
    batch_tokens: int = 16_384,
    unranked_tokens: Sequence[int] = (PAD_ID,),
) -> list[TokenStatistics]:
    """Compute log p and the statistics of ``compute_token_statistics``, given the sources."""
    reduce = partial(compute_log_prob_mean_std_rank, unranked_tokens=unranked_tokens)
    return to_token_statistics(
        _reduce_target_logits(model, sources, targets, reduce, 4, batch_tokens)
    )


@run_in_evaluation_mode
def _reduce_target_logits(
    model: Transformer,
    sources: Sequence[TokenIds],
    targets: Sequence[TokenIds],
    reduce: Callable[[Tensor, Tensor], Tensor],
    statistic_count: int,
    batch_tokens: int,
) -> list[Float32]:
    """Return (statistic_count, len(target) - 1) for each target; see ``_reduce_token_logits``."""
    if model.encoder is None or model.decoder is None:
        raise ValueError(
            "Only an encoder-decoder model can score target sequences conditional on their source "
            "sequences."
        )
    if len(sources) != len(targets) or not all(map(len, sources)):
        raise ValueError("Each target sequence needs one source sequence with at least one token.")
    for name, sequences in (("Source", sources), ("Target", targets)):
        for i, sequence in enumerate(sequences):
            check_token_ids(sequence, model.config.vocab_size, f"{name} {i}")
    device = model.embedding.weight.device
    results = [
        np.empty((statistic_count, max(0, len(target) - 1)), dtype=np.float32) for target in targets
    ]
    order = sorted(
        (i for i, target in enumerate(targets) if len(target) > 1),
        key=lambda i: (len(targets[i]), len(sources[i])),
    )
    chunk_size = choose_chunk_rows(model.config.vocab_size, device.type)
    while order:
        batch = [order.pop()]
        target_width, source_width = len(targets[batch[0]]), len(sources[batch[0]])
        while order:
            source_width = max(source_width, len(sources[order[-1]]))
            if (len(batch) + 1) * (target_width + source_width) > batch_tokens:
                break
            batch.append(order.pop())
        ids, attention_mask = pad_rows([targets[i] for i in batch], device)
        source, source_mask = pad_rows([sources[i] for i in batch], device)
        is_predicted = attention_mask[:, 1:]
        batch_states = model(Batch(ids[:, :-1], source=source, source_attention_mask=source_mask))
        hidden = batch_states[is_predicted]  # (n, d)
        chunks = [
            reduce(model.compute_logits(hidden_chunk).float(), target)
            for hidden_chunk, target in zip(
                hidden.split(chunk_size), ids[:, 1:][is_predicted].split(chunk_size), strict=True
            )
        ]
        values = torch.cat(chunks, 1).cpu().numpy()
        begin = 0
        for i in batch:
            count = results[i].shape[1]
            results[i][:] = values[:, begin : begin + count]
            begin += count
    return results


@run_in_evaluation_mode
def compute_next_log_probs(
    model: Transformer, prompts: Sequence[TokenIds], *, batch_tokens: int = 16_384
) -> Float32:
    """Compute log p of every token after each prompt, (prompts, V); prompts must not be empty."""
    if model.config.architecture != "decoder":
        raise ValueError("Only a decoder-only model can score text from left to right.")
    context = model.config.context
    result = np.empty((len(prompts), model.config.vocab_size), dtype=np.float32)
    windows = []
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"Prompt {i} is empty: begin it with the begin-of-text token.")
        start = compute_window_start(len(prompt), context, compute_default_stride(context))
        windows.append(_ScoringWindow(i, start, len(prompt), len(prompt)))
    for window_batch, ids in _batch_windows(model, prompts, windows, batch_tokens):
        prefix = make_prefix_lm_lengths(
            model, [window.last_predicted - window.start for window in window_batch]
        )
        hidden = model(Batch(ids[:, :-1], prefix=prefix))  # (B, T, d)
        last_positions = torch.tensor(
            [window.last_predicted - 1 - window.start for window in window_batch], device=ids.device
        )
        logits = model.compute_logits(
            hidden[torch.arange(len(window_batch), device=ids.device), last_positions]
        ).float()
        result[[window.sequence for window in window_batch]] = logits.log_softmax(-1).cpu().numpy()
    return result


@dataclass(frozen=True)
class _ScoringWindow:
    """A window: tokens start ... last_predicted - 1 predict first_predicted ... last_predicted."""

    sequence: int
    start: int
    first_predicted: int
    last_predicted: int

    @property
    def skipped_count(self) -> int:
        """Number of predictions that an earlier window has already made."""
        return self.first_predicted - 1 - self.start

    @property
    def predicted_count(self) -> int:
        return self.last_predicted - self.first_predicted + 1


class _WindowBatch(NamedTuple):
    """Windows that are read together.

    Attributes:
        windows: the windows, longest first.
        ids: their tokens, padded on the right, (B, width + 1).
    """

    windows: list[_ScoringWindow]
    ids: Tensor


def _iter_scoring_windows(
    sequence: int, length: int, context: int, stride: int
) -> Iterator[_ScoringWindow]:
    first_predicted = 1
    while first_predicted < length:
        start = compute_window_start(first_predicted, context, stride)
        last_predicted = min(start + context, length - 1)
        yield _ScoringWindow(sequence, start, first_predicted, last_predicted)
        first_predicted = last_predicted + 1


@run_in_evaluation_mode
def _reduce_token_logits(
    model: Transformer,
    sequences: Sequence[TokenIds],
    reduce: Callable[[Tensor, Tensor], Tensor],
    statistic_count: int,
    batch_tokens: int,
    stride: int | None,
    prefix_lm_prompt_lengths: Sequence[int] | None = None,
) -> list[Float32]:
    """Apply ``reduce`` (logits (n, V), targets (n,)) -> (statistics, n) to predicted tokens.

    Logits, in float32, exist for one chunk of tokens at a time, and not for padding.

    Returns:
        One (statistic_count, len(sequence) - 1) array per sequence.
    """
    if model.config.architecture != "decoder":
        raise ValueError("Only a decoder-only model can score text from left to right.")
    context = model.config.context
    stride = compute_default_stride(context) if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride must be between 1 and {context} (the context), not {stride}.")
    prefix_lm_prompt_lengths = (
        [min(1, len(tokens)) for tokens in sequences]
        if prefix_lm_prompt_lengths is None
        else prefix_lm_prompt_lengths
    )
    for i, (count, sequence) in enumerate(zip(prefix_lm_prompt_lengths, sequences, strict=True)):
        if not 0 <= count <= len(sequence):
            raise ValueError(
                f"The prompt of sequence {i} must have 0 to {len(sequence)} tokens (the sequence "
                f"length), not {count}."
            )
    results = [
        np.empty((statistic_count, max(0, len(tokens) - 1)), dtype=np.float32)
        for tokens in sequences
    ]
    windows = [
        window
        for i, tokens in enumerate(sequences)
        for window in _iter_scoring_windows(i, len(tokens), context, stride)
    ]
    for window_batch, ids in _batch_windows(model, sequences, windows, batch_tokens):
        is_new = np.zeros((len(window_batch), ids.shape[1] - 1), dtype=bool)
        for i, window in enumerate(window_batch):
            is_new[i, window.skipped_count : window.skipped_count + window.predicted_count] = True
        is_predicted = torch.from_numpy(is_new).to(ids.device)
        prefix_lengths = [
            min(
                max(0, prefix_lm_prompt_lengths[window.sequence] - window.start),
                window.last_predicted - window.start,
            )
            for window in window_batch
        ]
        prefix_tensor = (
            make_prefix_lm_lengths(model, prefix_lengths) if max(prefix_lengths) > 1 else None
        )
        hidden = model(Batch(ids[:, :-1], prefix=prefix_tensor))[is_predicted]  # (n, d)
        targets = ids[:, 1:][is_predicted]  # (n,)
        chunk_size = choose_chunk_rows(model.config.vocab_size, ids.device.type)
        chunks = [
            reduce(model.compute_logits(hidden_chunk).float(), target_chunk)
            for hidden_chunk, target_chunk in zip(
                hidden.split(chunk_size), targets.split(chunk_size), strict=True
            )
        ]
        values = torch.cat(chunks, 1).cpu().numpy()
        begin = 0
        for window in window_batch:
            results[window.sequence][:, window.first_predicted - 1 : window.last_predicted] = (
                values[:, begin : begin + window.predicted_count]
            )
            begin += window.predicted_count
    if model.objective == "prefix":
        for statistics, count in zip(results, prefix_lm_prompt_lengths, strict=True):
            statistics[:, : max(0, count - 1)] = np.nan
    return results


def _batch_windows(
    model: Transformer,
    sequences: Sequence[TokenIds],
    windows: list[_ScoringWindow],
    batch_tokens: int,
) -> Iterator[_WindowBatch]:
    """Yield batches of windows of similar length, longest first.

    Padding is on the right, where a causal model does not attend: no mask is needed.
    """
    for window_indices in batch_indices_by_length(
        [window.last_predicted - window.start for window in windows], batch_tokens
    ):
        window_batch = [windows[i] for i in window_indices]
        width = window_batch[0].last_predicted - window_batch[0].start
        tokens = np.full((len(window_batch), width + 1), PAD_ID, dtype=np.int64)
        for i, window in enumerate(window_batch):
            window_ids = sequences[window.sequence][window.start : window.last_predicted + 1]
            description = f"Sequence {window.sequence}"
            tokens[i, : len(window_ids)] = check_token_ids(
                window_ids, model.config.vocab_size, description
            )
        yield _WindowBatch(window_batch, torch.from_numpy(tokens).to(model.embedding.weight.device))


def gather_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute log p (...) of ``targets`` (...) from logits (..., V), without a second table.

    NaN if the logits are not a distribution: one is NaN or +inf, or all are -inf. A target whose
    own logit is -inf has log p -inf.
    """
    log_partition = logits.logsumexp(-1)
    target_logits = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return target_logits - log_partition + (log_partition - log_partition)  # inf - inf is NaN


def reduce_to_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute log p of the targets, (1, n), from logits (n, V); see ``gather_log_probs``."""
    return gather_log_probs(logits, targets).unsqueeze(0)


def compute_log_prob_mean_std_rank(
    logits: Tensor, targets: Tensor, unranked_tokens: Sequence[int] = ()
) -> Tensor:
    """Compute log p, mean, std and rank of ``TokenStatistics``, (4, n), from logits (n, V).

    Args:
        targets: (n,) token ids.
        unranked_tokens: tokens that are not counted in ranks.
    """
    log_probs = logits.log_softmax(1)  # (n, V)
    probabilities = log_probs.exp()
    target_log_probs = log_probs.gather(1, targets.unsqueeze(1))  # (n, 1)
    log_probs.masked_fill_(log_probs.isneginf(), 0.0)  # probability 0, but 0 * inf would be NaN
    mean = (probabilities * log_probs).sum(1, keepdim=True)
    variance = (probabilities * (log_probs - mean).square()).sum(1)
    target_logits = logits.gather(1, targets.unsqueeze(1))
    has_lower_id = torch.arange(logits.shape[1], device=logits.device) < targets.unsqueeze(1)
    ranks_higher = (logits > target_logits) | ((logits == target_logits) & has_lower_id)  # (n, V)
    ranks_higher[:, list(unranked_tokens)] = False
    rank = ranks_higher.sum(1)
    return torch.stack(
        (target_log_probs.squeeze(1), mean.squeeze(1), variance.sqrt(), rank.float())
    )
