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
from model.decoding.cache import Cache, new_cache
from model.decoding.choice import Choice, draw_keys
from model.decoding.mode import asks
from model.decoding.prompts import Window, check_prompts, read_windows
from model.decoding.stepping import Step, make_step
from model.decoding.windows import default_stride, window_start
from model.rows import check_ids, check_numbers
from model.tokens import PAD

#: Rows that have stopped leave the cache, which is copied for it, when this share is still going.
WORTH_MOVING = 0.75


@dataclass(frozen=True)
class Continuation:
    """What the model wrote after a prompt.

    ids end with the stop token if one was drawn (``stopped``). log_probs: of each id under the
    model itself, temperature 1 and no filter, in nats.
    """

    ids: list[int]
    log_probs: NDArray[np.float32]
    stopped: bool


@asks
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
    forbid: Collection[int] = (PAD,),
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
    choice = Choice(
        temperature, top_k, top_p, min_p, repetition_penalty, first_temperature, decay_tokens
    )
    if max_new_tokens < 1 or samples < 1 or batch_rows < 1:
        raise ValueError("max_new_tokens, samples and batch_rows must be at least 1.")
    if temperature == 0.0 and samples > 1:
        raise ValueError("Greedy decoding (temperature 0) gives one text: samples must be 1.")
    check_prompts(model, prompts, sources, max_new_tokens)
    for name, ids in (("stop", stop), ("forbid", forbid)):
        check_ids(list(ids), model.config.vocab_size, name)
    if len(set(forbid)) == model.config.vocab_size:
        raise ValueError("forbid names every token, and leaves none to write.")
    results: list[list[Continuation]] = [[] for _ in prompts]
    # Like lengths together, so that short prompts do not wait for long ones.
    jobs = [
        (p, s)
        for p in sorted(range(len(prompts)), key=lambda p: len(prompts[p]))
        for s in range(samples)
    ]
    for begin in range(0, len(jobs), batch_rows):
        part = jobs[begin : begin + batch_rows]
        rows = _Rows(model, prompts, part, max_new_tokens, seed, sources)
        rows.run(choice, list(stop), list(forbid))
        for (p, _), continuation in zip(part, rows.continuations(), strict=True):
            results[p].append(continuation)
    return results


class _Rows:
    """Continuations (prompt, sample) that are decoded together."""

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        jobs: Sequence[tuple[int, int]],
        max_new_tokens: int,
        seed: int,
        sources: Sequence[Sequence[int]] | None,
    ) -> None:
        self.model, self.max_new = model, max_new_tokens
        self.device = model.embedding.weight.device
        self.context = model.config.context
        self.stride = default_stride(self.context)
        self.unique = list(dict.fromkeys(p for p, _ in jobs))
        self.prompts = [prompts[p] for p in self.unique]
        self.sources = [sources[p] for p in self.unique] if sources is not None else None
        place = {p: i for i, p in enumerate(self.unique)}
        self.owner = np.array([place[p] for p, _ in jobs])  # (N,) into self.prompts
        given = {
            p: prompts[p] if sources is None else [*sources[p], -1, *prompts[p]] for p in place
        }
        all_keys = {
            p: draw_keys(seed, given[p], 1 + max(s for q, s in jobs if q == p)) for p in place
        }
        self.keys = np.array([all_keys[p][s] for p, s in jobs], dtype=np.uint64)
        self.prompt_lengths = np.array([len(prompts[p]) for p, _ in jobs])
        width = int(self.prompt_lengths.max()) + max_new_tokens
        self.tokens = np.full((len(jobs), width), PAD, dtype=np.int64)  # history, prompt first
        for row, (p, _) in enumerate(jobs):
            self.tokens[row, : len(prompts[p])] = prompts[p]
        self.log_probs = np.zeros((len(jobs), max_new_tokens), dtype=np.float32)
        self.counts = np.zeros(len(jobs), dtype=np.int64)
        self.stopped = np.zeros(len(jobs), dtype=bool)

    def run(self, choice: Choice, stop: list[int], forbid: list[int]) -> None:
        rows = np.arange(len(self.tokens))  # of the cache: also those that have stopped since
        starts = self._starts(self.prompt_lengths)
        logits, cache = self._read_prompts()
        step = make_step(self.model, self.max_new - 1)
        never = torch.tensor(forbid, dtype=torch.int64, device=self.device)
        for t in range(self.max_new):
            chosen, log_probs = self._choose(logits, rows, t, choice, stop, never)
            going = ~self.stopped[rows]
            written = rows[going]
            self.tokens[written, self.prompt_lengths[written] + t] = chosen[going]
            self.log_probs[written, t] = log_probs[going]
            self.counts[written] = t + 1
            self.stopped[written] = np.isin(chosen[going], stop)
            going = ~self.stopped[rows]
            if t + 1 == self.max_new or not going.any():
                return
            if going.mean() <= WORTH_MOVING:
                rows = rows[going]
                cache.select(torch.from_numpy(np.flatnonzero(going)).to(self.device))
                step = make_step(self.model, self.max_new - t - 1)
            logits = self._advance(rows, starts, cache, step)

    def _choose(
        self,
        logits: Tensor,
        rows: NDArray[np.int64],
        t: int,
        choice: Choice,
        stop: list[int],
        never: Tensor,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The next token of each row, and its log-probability under the model itself, (n,)."""
        model_says = logits[:, never]
        logits[:, never] = -torch.inf  # in place, for there are many
        history = self._history(rows) if choice.repetition_penalty != 1.0 else None
        chosen = choice.choose(logits, self.keys[rows], t, history, stop)  # (n,)
        logits[:, never] = model_says
        log_probs = -cross_entropy(logits, chosen, reduction="none")
        return chosen.cpu().numpy(), check_numbers(log_probs.cpu()).numpy()

    def continuations(self) -> list[Continuation]:
        rows = []
        for i, (length, count) in enumerate(zip(self.prompt_lengths, self.counts, strict=True)):
            ids = self.tokens[i, length : length + count].tolist()
            rows.append(Continuation(ids, self.log_probs[i, :count].copy(), bool(self.stopped[i])))
        return rows

    def _history(self, rows: NDArray[np.int64]) -> Tensor:
        """Prompt and text so far of each row, filled up with its own first token, (n, L)."""
        lengths = self.prompt_lengths[rows] + self.counts[rows]
        tokens = self.tokens[rows, : lengths.max()]
        tokens = np.where(np.arange(lengths.max()) < lengths[:, None], tokens, tokens[:, :1])
        return torch.from_numpy(tokens).to(self.device)

    def _starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([window_start(int(n), self.context, self.stride) for n in lengths])

    def _read_prompts(self) -> tuple[Tensor, Cache]:
        """Logits after each row's prompt (N, V), and the cache; each prompt is read once."""
        lengths = np.array([len(p) for p in self.prompts])
        starts = self._starts(lengths)
        windows = [Window(p[s:], len(p) - s) for p, s in zip(self.prompts, starts, strict=True)]
        capacity = min(self.context, max(len(w.tokens) for w in windows) + self.max_new)
        cache = new_cache(self.model, len(windows), capacity)
        logits = read_windows(self.model, windows, cache, self.sources)
        owner = torch.from_numpy(self.owner).to(self.device)
        if len(self.owner) > len(self.prompts):
            cache.select(owner)
            logits = logits[owner]
        return logits, cache

    def _advance(
        self, rows: NDArray[np.int64], starts: NDArray[np.int64], cache: Cache, step: Step
    ) -> Tensor:
        """Feed the newest token of each row; logits (n, V). A row that has stopped stays where it
        is, and what is computed for it is not looked at."""
        lengths = self.prompt_lengths[rows] + self.counts[rows]
        moved = self._starts(lengths) != starts[rows]  # rows that begin a new window
        if moved.any():
            starts[rows] = self._starts(lengths)
        positions = lengths - 1 - starts[rows]  # (n,) the newest token's, in its window
        newest = self.tokens[rows, lengths - 1]
        cache.length = int(positions.max()) + 1
        same = bool((positions == positions[0]).all())
        slots = torch.from_numpy(positions).to(self.device)
        cache.slots = slice(int(positions[0]), int(positions[0]) + 1) if same else slots
        logits = step(torch.from_numpy(newest).to(self.device), slots, cache)
        if moved.any():
            self._move(np.flatnonzero(moved), rows, starts, cache, logits)
        return logits

    def _move(
        self,
        moved: NDArray[np.int64],
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        cache: Cache,
        logits: Tensor,
    ) -> None:
        """Read the new windows of the rows ``moved`` into the cache; their logits change too."""
        lengths = self.prompt_lengths[rows] + self.counts[rows]
        begins, prompts = starts[rows[moved]], self.prompt_lengths[rows[moved]]
        windows = [
            Window(self.tokens[row, start:end].tolist(), max(0, prompt - start))
            for row, start, end, prompt in zip(
                rows[moved], begins, lengths[moved], prompts, strict=True
            )
        ]
        part = new_cache(self.model, len(windows), cache.layers[0].keys.shape[2])
        index = torch.from_numpy(moved).to(self.device)
        logits[index] = read_windows(self.model, windows, part)
        for layer, new in zip(cache.layers, part.layers, strict=True):
            layer.keys[index] = new.keys
            layer.values[index] = new.values
