"""Generation: one batched decoder with a cache of keys and values.

Rows of a batch are aligned to the left: a token's slot in the cache is its position, so prompts of
different lengths need no padding mask and get the positions they would have alone. Each prompt
is read once, however many samples are drawn from it.

A sequence that outgrows the context goes on in windows, by the rule of ``windows.window_start``:
the generator sees what the scorer would see.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.architecture import Transformer
from model.decoding.cache import KeyValueCache, allocate_cache
from model.decoding.context_windows import compute_default_stride, compute_window_start
from model.decoding.decode_steps import DecodeStep, make_decode_step
from model.decoding.inference_mode import run_in_evaluation_mode
from model.decoding.prompts import PromptWindow, check_prompts, prefill_windows
from model.decoding.sampling import TokenSampler, make_draw_keys
from model.padding import check_no_nan, check_token_ids
from model.special_tokens import PAD_ID

#: Rows that have stopped leave the cache, which is copied for it, when this share is still going.
COMPACTION_THRESHOLD = 0.75


@dataclass(frozen=True)
class Continuation:
    """What the model wrote after a prompt.

    ids end with the stop token if one was drawn (``stopped``). log_probs: of each id under the
    model itself, temperature 1 and no filter, in nats.
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

    How tokens are chosen, from ``temperature`` to ``decay_tokens``: see Choice.

    Args:
        max_new_tokens: most tokens per continuation.
        stop: token ids that end a continuation.
        forbid: token ids that are never chosen.
        batch_rows: most continuations decoded together.
        sources: what the encoder of an encoder-decoder reads for each prompt; its prompts are
            what the decoder has written already, at least the start symbol.

    Raises:
        ValueError: an empty prompt, an id outside the vocabulary, a setting out of range.
    """
    sampler = TokenSampler(
        temperature, top_k, top_p, min_p, repetition_penalty, first_temperature, decay_tokens
    )
    if max_new_tokens < 1 or samples < 1 or batch_rows < 1:
        raise ValueError("max_new_tokens, samples and batch_rows must be at least 1.")
    if temperature == 0.0 and samples > 1:
        raise ValueError("Greedy decoding (temperature 0) gives one text: samples must be 1.")
    check_prompts(model, prompts, sources, max_new_tokens)
    for name, ids in (("stop", stop), ("forbid", forbid)):
        check_token_ids(list(ids), model.config.vocab_size, name)
    if len(set(forbid)) == model.config.vocab_size:
        raise ValueError("forbid names every token, and leaves none to write.")
    results: list[list[Continuation]] = [[] for _ in prompts]
    # Like lengths together, so that short prompts do not wait for long ones.
    prompt_samples = [
        (prompt_index, sample_index)
        for prompt_index in sorted(
            range(len(prompts)), key=lambda prompt_index: len(prompts[prompt_index])
        )
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


class _DecodingBatch:
    """Continuations (prompt, sample) that are decoded together."""

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        prompt_samples: Sequence[tuple[int, int]],
        max_new_tokens: int,
        seed: int,
        sources: Sequence[Sequence[int]] | None,
    ) -> None:
        self.model, self.max_new_tokens = model, max_new_tokens
        self.device = model.embedding.weight.device
        self.context = model.config.context
        self.stride = compute_default_stride(self.context)
        self.prompt_indices = list(
            dict.fromkeys(prompt_index for prompt_index, _ in prompt_samples)
        )
        self.prompts = [prompts[prompt_index] for prompt_index in self.prompt_indices]
        self.sources = (
            [sources[prompt_index] for prompt_index in self.prompt_indices]
            if sources is not None
            else None
        )
        prompt_positions = {prompt_index: i for i, prompt_index in enumerate(self.prompt_indices)}
        self.prompt_positions = np.array(
            [prompt_positions[prompt_index] for prompt_index, _ in prompt_samples]
        )  # (N,) into self.prompts
        key_tokens = {
            prompt_index: prompts[prompt_index]
            if sources is None
            else [*sources[prompt_index], -1, *prompts[prompt_index]]
            for prompt_index in prompt_positions
        }
        keys_by_prompt = {
            prompt_index: make_draw_keys(
                seed,
                key_tokens[prompt_index],
                1
                + max(
                    sample_index
                    for other_index, sample_index in prompt_samples
                    if other_index == prompt_index
                ),
            )
            for prompt_index in prompt_positions
        }
        self.draw_keys = np.array(
            [
                keys_by_prompt[prompt_index][sample_index]
                for prompt_index, sample_index in prompt_samples
            ],
            dtype=np.uint64,
        )
        self.prompt_lengths = np.array(
            [len(prompts[prompt_index]) for prompt_index, _ in prompt_samples]
        )
        width = int(self.prompt_lengths.max()) + max_new_tokens
        self.tokens = np.full(
            (len(prompt_samples), width), PAD_ID, dtype=np.int64
        )  # history, prompt first
        for row, (prompt_index, _) in enumerate(prompt_samples):
            self.tokens[row, : len(prompts[prompt_index])] = prompts[prompt_index]
        self.log_probs = np.zeros((len(prompt_samples), max_new_tokens), dtype=np.float32)
        self.generated_counts = np.zeros(len(prompt_samples), dtype=np.int64)
        self.stopped = np.zeros(len(prompt_samples), dtype=bool)

    def decode(self, sampler: TokenSampler, stop: list[int], forbid: list[int]) -> None:
        active_rows = np.arange(
            len(self.tokens)
        )  # of the cache: also those that have stopped since
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
            self.tokens[unfinished_rows, self.prompt_lengths[unfinished_rows] + position] = (
                token_ids[is_active]
            )
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
        stop: list[int],
        forbidden_ids: Tensor,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The next token of each row, and its log-probability under the model itself, (n,)."""
        forbidden_logits = logits[:, forbidden_ids]
        logits[:, forbidden_ids] = -torch.inf  # in place, for there are many
        history = (
            self._build_token_history(row_indices) if sampler.repetition_penalty != 1.0 else None
        )
        token_ids = sampler.choose_tokens(
            logits, self.draw_keys[row_indices], position, history, stop
        )  # (n,)
        logits[:, forbidden_ids] = forbidden_logits
        log_probs = -cross_entropy(logits, token_ids, reduction="none")
        return token_ids.cpu().numpy(), check_no_nan(log_probs.cpu()).numpy()

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
        """Prompt and text so far of each row, filled up with its own first token, (n, L)."""
        lengths = self.prompt_lengths[row_indices] + self.generated_counts[row_indices]
        tokens = self.tokens[row_indices, : lengths.max()]
        tokens = np.where(np.arange(lengths.max()) < lengths[:, None], tokens, tokens[:, :1])
        return torch.from_numpy(tokens).to(self.device)

    def _compute_window_starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(
            [compute_window_start(int(length), self.context, self.stride) for length in lengths]
        )

    def _prefill_prompts(self) -> tuple[Tensor, KeyValueCache]:
        """Logits after each row's prompt (N, V), and the cache; each prompt is read once."""
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
        return logits, cache

    def _feed_newest_tokens(
        self,
        row_indices: NDArray[np.int64],
        window_starts: NDArray[np.int64],
        cache: KeyValueCache,
        decode_step: DecodeStep,
    ) -> Tensor:
        """Feed the newest token of each row; logits (n, V). A row that has stopped stays where it
        is, and what is computed for it is not looked at."""
        lengths = self.prompt_lengths[row_indices] + self.generated_counts[row_indices]
        has_new_window = (
            self._compute_window_starts(lengths) != window_starts[row_indices]
        )  # rows that begin a new window
        if has_new_window.any():
            window_starts[row_indices] = self._compute_window_starts(lengths)
        positions = (
            lengths - 1 - window_starts[row_indices]
        )  # (n,) the newest token's, in its window
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
        """Read the new windows of the rows ``moved`` into the cache; their logits change too."""
        lengths = self.prompt_lengths[row_indices] + self.generated_counts[row_indices]
        new_starts, moved_prompt_lengths = (
            window_starts[row_indices[moved_indices]],
            self.prompt_lengths[row_indices[moved_indices]],
        )
        windows = [
            PromptWindow(self.tokens[row, start:end].tolist(), max(0, prompt_length - start))
            for row, start, end, prompt_length in zip(
                row_indices[moved_indices],
                new_starts,
                lengths[moved_indices],
                moved_prompt_lengths,
                strict=True,
            )
        ]
        window_cache = allocate_cache(self.model, len(windows), cache.layers[0].keys.shape[2])
        cache_rows = torch.from_numpy(moved_indices).to(self.device)
        logits[cache_rows] = prefill_windows(self.model, windows, window_cache)
        for layer, new_layer in zip(cache.layers, window_cache.layers, strict=True):
            layer.keys[cache_rows] = new_layer.keys
            layer.values[cache_rows] = new_layer.values
