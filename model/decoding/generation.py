"""Generate continuations with one batched decoder and a cache of keys and values.

Rows of a batch are aligned to the left: a token's slot in the cache is its position, so prompts of
different lengths need no padding mask and have the positions that they would have alone. Each
prompt is read once, however many samples are drawn. A sequence that outgrows the context continues
in windows, by the rule of ``context_windows.compute_window_start``, as in scoring.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from hallmark.model.architecture import Transformer
from hallmark.model.decoding.cache import KeyValueCache, allocate_cache
from hallmark.model.decoding.context_windows import compute_default_stride, compute_window_start
from hallmark.model.decoding.decode_steps import DecodeStep, make_decode_step
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode
from hallmark.model.decoding.prompts import PromptWindow, check_prompts, prefill_windows
from hallmark.model.decoding.sampling import TokenSampler, make_draw_keys
from hallmark.model.padding import check_no_nan, check_token_ids
from hallmark.model.special_tokens import PAD_ID

#: Stopped rows are removed from the cache, by copying it, when at most this share is active.
COMPACTION_THRESHOLD = 0.75


@dataclass(frozen=True)
class Continuation:
    """A generated continuation of a prompt.

    Attributes:
        ids: generated tokens, with the stop token if one was drawn.
        log_probs: log-probability of each id under the model itself (temperature 1, no filter), in
            nats.
        stopped: whether a stop token was drawn.
    """

    ids: list[int]
    log_probs: NDArray[np.float32]
    stopped: bool


@run_in_evaluation_mode
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    first_temperature: float | None = None,
    decay_tokens: int = 20,
    samples: int = 1,
    seed: int = 0,
    stop: Collection[int] = (0,),
    forbid: Collection[int] = (PAD_ID,),
    batch_rows: int = 512,
    sources: Sequence[Sequence[int]] | None = None,
) -> list[list[Continuation]]:
    """Continue each prompt ``samples`` times; result [prompt][sample].

    The parameters from ``temperature`` to ``decay_tokens`` are those of ``TokenSampler``.

    Args:
        max_new_tokens: most tokens per continuation.
        samples: continuations of each prompt.
        seed: key of the draws.
        stop: token ids that end a continuation.
        forbid: token ids that are never chosen.
        batch_rows: most continuations decoded together.
        sources: inputs of the encoder of an encoder-decoder, one for each prompt; the prompts are
            then the first tokens of the decoder, at least the start symbol.

    Raises:
        ValueError: A prompt is empty, an id is outside the vocabulary, or a setting is out of
            range.
    """
    sampler = TokenSampler(
        temperature, top_k, top_p, min_p, repetition_penalty, first_temperature, decay_tokens
    )
    if max_new_tokens < 1 or samples < 1 or batch_rows < 1:
        raise ValueError(
            "max_new_tokens, samples and batch_rows must be at least 1, not "
            f"{max_new_tokens}, {samples} and {batch_rows}."
        )
    if temperature == 0.0 and samples > 1:
        raise ValueError(
            "With temperature 0 (greedy decoding), all samples of a prompt would be identical: set "
            "samples to 1, or increase temperature."
        )
    check_prompts(model, prompts, sources, max_new_tokens)
    for name, ids in (("stop", stop), ("forbid", forbid)):
        check_token_ids(list(ids), model.config.vocab_size, name)
    if len(set(forbid)) == model.config.vocab_size:
        raise ValueError(
            "The forbid argument contains every token in the vocabulary, so no text can be "
            "generated: allow at least one token."
        )
    results: list[list[Continuation]] = [[] for _ in prompts]
    # Group prompts of similar length, so that short prompts do not wait for long ones.
    order = sorted(range(len(prompts)), key=lambda prompt_index: len(prompts[prompt_index]))
    prompt_samples = [
        _PromptSample(prompt_index, sample_index)
        for prompt_index in order
        for sample_index in range(samples)
    ]
    for begin in range(0, len(prompt_samples), batch_rows):
        batch_jobs = prompt_samples[begin : begin + batch_rows]
        decoding_batch = _DecodingBatch(model, prompts, batch_jobs, max_new_tokens, seed, sources)
        decoding_batch.decode(sampler, list(stop), list(forbid))
        for (prompt_index, _), continuation in zip(
            batch_jobs, decoding_batch.to_continuations(), strict=True
        ):
            results[prompt_index].append(continuation)
    return results


class _PromptSample(NamedTuple):
    """One of the continuations to generate.

    Attributes:
        prompt_index: index of the prompt.
        sample_index: index of the sample within its prompt, starting at 0.
    """

    prompt_index: int
    sample_index: int


class _ChosenTokens(NamedTuple):
    """The next token of each row.

    Attributes:
        ids: token ids, (n,).
        log_probs: their log-probabilities under the model itself, (n,).
    """

    ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class _PrefilledPrompts(NamedTuple):
    """What the model has read before the first step.

    Attributes:
        logits: logits of the token after each row's prompt, (N, V).
        cache: keys and values of the prompts, one row for each continuation.
    """

    logits: Tensor
    cache: KeyValueCache


class _DecodingBatch:
    """Continuations (prompt, sample) that are decoded together."""

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        prompt_samples: Sequence[_PromptSample],
        max_new_tokens: int,
        seed: int,
        sources: Sequence[Sequence[int]] | None,
    ) -> None:
        self.model, self.max_new_tokens = model, max_new_tokens
        self.device = model.embedding.weight.device
        self.context = model.config.context
        self.stride = compute_default_stride(self.context)
        index_per_row = [prompt_index for prompt_index, _ in prompt_samples]
        self.prompt_indices = list(dict.fromkeys(index_per_row))
        self.prompts = [prompts[prompt_index] for prompt_index in self.prompt_indices]
        self.sources = None
        if sources is not None:
            self.sources = [sources[prompt_index] for prompt_index in self.prompt_indices]
        prompt_positions = {prompt_index: i for i, prompt_index in enumerate(self.prompt_indices)}
        # (N,) indices into self.prompts
        self.prompt_positions = np.array([prompt_positions[index] for index in index_per_row])
        sample_counts: dict[int, int] = {}
        for prompt_index, sample_index in prompt_samples:
            previous_count = sample_counts.get(prompt_index, 0)
            sample_counts[prompt_index] = max(previous_count, sample_index + 1)
        keys_by_prompt = {}
        for prompt_index, sample_count in sample_counts.items():
            key_tokens = prompts[prompt_index]
            if sources is not None:
                key_tokens = [*sources[prompt_index], -1, *key_tokens]
            keys_by_prompt[prompt_index] = make_draw_keys(seed, key_tokens, sample_count)
        draw_keys = [
            keys_by_prompt[prompt_index][sample_index]
            for prompt_index, sample_index in prompt_samples
        ]
        self.draw_keys = np.array(draw_keys, dtype=np.uint64)
        self.prompt_lengths = np.array([len(prompts[index]) for index in index_per_row])
        width = int(self.prompt_lengths.max()) + max_new_tokens
        # The prompt and the tokens after it.
        self.tokens = np.full((len(prompt_samples), width), PAD_ID, dtype=np.int64)
        for row, (prompt_index, _) in enumerate(prompt_samples):
            self.tokens[row, : len(prompts[prompt_index])] = prompts[prompt_index]
        self.log_probs = np.zeros((len(prompt_samples), max_new_tokens), dtype=np.float32)
        self.generated_counts = np.zeros(len(prompt_samples), dtype=np.int64)
        self.stopped = np.zeros(len(prompt_samples), dtype=bool)

    def decode(self, sampler: TokenSampler, stop: list[int], forbid: list[int]) -> None:
        # Rows of the cache, including those that have stopped since it was last compacted.
        active_rows = np.arange(len(self.tokens))
        window_starts = self._compute_window_starts(self.prompt_lengths)
        logits, cache = self._prefill_prompts()
        decode_step = make_decode_step(self.model, self.max_new_tokens - 1)
        forbidden_ids = torch.tensor(forbid, dtype=torch.int64, device=self.device)
        for position in range(self.max_new_tokens):
            token_ids, log_probs = self._choose_tokens(
                logits, active_rows, position, sampler, stop, forbidden_ids
            )
            is_active = ~self.stopped[active_rows]
            unfinished_rows = active_rows[is_active]
            newest_positions = self.prompt_lengths[unfinished_rows] + position
            self.tokens[unfinished_rows, newest_positions] = token_ids[is_active]
            self.log_probs[unfinished_rows, position] = log_probs[is_active]
            self.generated_counts[unfinished_rows] = position + 1
            self.stopped[unfinished_rows] = np.isin(token_ids[is_active], stop)
            is_active = ~self.stopped[active_rows]
            if position + 1 == self.max_new_tokens or not is_active.any():
                return
            if is_active.mean() <= COMPACTION_THRESHOLD:
                active_rows = active_rows[is_active]
                cache.select_rows(torch.from_numpy(np.flatnonzero(is_active)).to(self.device))
                decode_step = make_decode_step(self.model, self.max_new_tokens - position - 1)
            logits = self._feed_newest_tokens(active_rows, window_starts, cache, decode_step)

    def _choose_tokens(
        self,
        logits: Tensor,
        row_indices: NDArray[np.int64],
        position: int,
        sampler: TokenSampler,
        unpenalised_ids: list[int],
        forbidden_ids: Tensor,
    ) -> _ChosenTokens:
        """Choose the next token of each row."""
        forbidden_logits = logits[:, forbidden_ids]
        logits[:, forbidden_ids] = -torch.inf  # in place, because the logits are large
        history = None
        if sampler.repetition_penalty != 1.0:
            history = self._build_token_history(row_indices)
        keys = self.draw_keys[row_indices]
        token_ids = sampler.choose_tokens(logits, keys, position, history, unpenalised_ids)  # (n,)
        logits[:, forbidden_ids] = forbidden_logits
        log_probs = -cross_entropy(logits, token_ids, reduction="none")
        return _ChosenTokens(token_ids.cpu().numpy(), check_no_nan(log_probs.cpu()).numpy())

    def to_continuations(self) -> list[Continuation]:
        continuations = []
        for i, (length, count) in enumerate(
            zip(self.prompt_lengths, self.generated_counts, strict=True)
        ):
            ids = self.tokens[i, length : length + count].tolist()
            continuations.append(
                Continuation(ids, self.log_probs[i, :count].copy(), bool(self.stopped[i]))
            )
        return continuations

    def _build_token_history(self, row_indices: NDArray[np.int64]) -> Tensor:
        """Return prompt and text so far of each row, padded with the row's first token, (n, L)."""
        lengths = self.prompt_lengths[row_indices] + self.generated_counts[row_indices]
        tokens = self.tokens[row_indices, : lengths.max()]
        tokens = np.where(np.arange(lengths.max()) < lengths[:, None], tokens, tokens[:, :1])
        return torch.from_numpy(tokens).to(self.device)

    def _compute_window_starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(
            [compute_window_start(int(length), self.context, self.stride) for length in lengths]
        )

    def _prefill_prompts(self) -> _PrefilledPrompts:
        """Read each prompt once, into a cache with a row for each continuation."""
        lengths = np.array([len(prompt) for prompt in self.prompts])
        window_starts = self._compute_window_starts(lengths)
        windows = [
            PromptWindow(prompt[start:], len(prompt) - start)
            for prompt, start in zip(self.prompts, window_starts, strict=True)
        ]
        capacity = min(
            self.context, max(len(window.tokens) for window in windows) + self.max_new_tokens
        )
        cache = allocate_cache(self.model, len(windows), capacity)
        logits = prefill_windows(self.model, windows, cache, self.sources)
        prompt_positions = torch.from_numpy(self.prompt_positions).to(self.device)
        if len(self.prompt_positions) > len(self.prompts):
            cache.select_rows(prompt_positions)
            logits = logits[prompt_positions]
        return _PrefilledPrompts(logits, cache)

    def _feed_newest_tokens(
        self,
        row_indices: NDArray[np.int64],
        window_starts: NDArray[np.int64],
        cache: KeyValueCache,
        decode_step: DecodeStep,
    ) -> Tensor:
        """Feed the newest token of each row, and return the logits (n, V).

        Rows that have stopped keep their position, and their logits are ignored.
        """
        lengths = self.prompt_lengths[row_indices] + self.generated_counts[row_indices]
        new_window_starts = self._compute_window_starts(lengths)
        has_new_window = new_window_starts != window_starts[row_indices]
        if has_new_window.any():
            window_starts[row_indices] = new_window_starts
        # (n,) position of the newest token in its window
        positions = lengths - 1 - window_starts[row_indices]
        newest = self.tokens[row_indices, lengths - 1]
        cache.filled_length = int(positions.max()) + 1
        same_position = bool((positions == positions[0]).all())
        slots = torch.from_numpy(positions).to(self.device)
        cache.slots = slice(int(positions[0]), int(positions[0]) + 1) if same_position else slots
        logits = decode_step(torch.from_numpy(newest).to(self.device), slots, cache)
        if has_new_window.any():
            self._prefill_new_windows(
                np.flatnonzero(has_new_window), row_indices, window_starts, cache, logits
            )
        return logits

    def _prefill_new_windows(
        self,
        moved_indices: NDArray[np.int64],
        row_indices: NDArray[np.int64],
        window_starts: NDArray[np.int64],
        cache: KeyValueCache,
        logits: Tensor,
    ) -> None:
        """Read the new windows of ``moved_indices`` into the cache, and update their logits."""
        lengths = self.prompt_lengths[row_indices] + self.generated_counts[row_indices]
        moved_rows = row_indices[moved_indices]
        windows = [
            PromptWindow(self.tokens[row, start:end].tolist(), max(0, prompt_length - start))
            for row, start, end, prompt_length in zip(
                moved_rows,
                window_starts[moved_rows],
                lengths[moved_indices],
                self.prompt_lengths[moved_rows],
                strict=True,
            )
        ]
        window_cache = allocate_cache(self.model, len(windows), cache.layers[0].keys.shape[2])
        cache_rows = torch.from_numpy(moved_indices).to(self.device)
        logits[cache_rows] = prefill_windows(self.model, windows, window_cache)
        for layer, new_layer in zip(cache.layers, window_cache.layers, strict=True):
            layer.keys[cache_rows] = new_layer.keys
            layer.values[cache_rows] = new_layer.values
