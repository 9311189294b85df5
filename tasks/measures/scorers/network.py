"""Transformers as scorers: a network kept busy, over distinct windows in batches of like length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from tasks.contract import HallmarkError, torch_device
from tasks.measures.batch_effects import (
    LENGTH,
    Batching,
    Sample,
    choose_batching,
    choose_pad,
    group_rows,
)
from tasks.measures.scorers.base import Scorer


class Network(Scorer):
    """A classifier of texts. Long ones are read in windows that overlap by a quarter."""

    _places: list[int]  # of what it gives, in ``columns``

    def _begin(
        self, model: Any, tokenizer: Any, device: str, window: int, budget: int | None, dtype: Any
    ) -> None:
        """Take a network into use; ``window`` and ``budget`` in tokens."""
        device = torch_device(device)
        # A processor is as fast with 512 tokens as with 8,192; the smaller a batch, the less of it
        # is padding. A GPU needs many to be busy.
        self.batch_tokens = budget or (16_384 if device != "cpu" else 1024)
        # In float32 first: in bf16 every batch differs from every other by rounding.
        self._model, self._tokenizer = model.eval().to(device).float(), tokenizer
        for name, weights in self._model.named_parameters():
            if not weights.isfinite().all():
                raise HallmarkError(
                    f"the scorer {self.name} has weights that are not numbers (NaN or infinite), "
                    f"among them {name}: it is damaged; use another scorer"
                )
        positions = getattr(model.config, "max_position_embeddings", 512)
        # RoBERTa-like models keep two positions for themselves.
        positions -= 2 if "roberta" in model.config.model_type else 0
        self._length = min(window, positions)
        vocab_size = getattr(model.config, "vocab_size", len(tokenizer))
        self._pad = choose_pad(model.config, tokenizer, vocab_size)
        self._batching = self._choose_batching()
        self._model.to(dtype)

    def _choose_batching(self) -> Batching:
        """Choose which windows the network can read together."""
        length = min(LENGTH, self._length)
        known = {*self._tokenizer.get_vocab().values()}
        ordinary = sorted(known - {*self._tokenizer.all_special_ids})
        if not ordinary or length < 4:
            return "equal length"
        sample = Sample(ordinary, length)
        try:
            return choose_batching(lambda rows: [*self._logits([*map(tuple, rows)])], sample)
        except Exception:  # it cannot read a single row: each text will fail with its own error
            return "any length"

    def _score(self, texts: list[str]) -> np.ndarray:
        windows, number, owner = self._windows(texts)
        found = np.full((len(windows), len(self.columns)), np.nan, np.float32)
        lengths = np.array([len(window) for window in windows], np.int64)
        for batch in self._batches(lengths):
            scores = self._each(self._forward, [windows[i] for i in batch])
            for place, row in zip(batch, scores, strict=True):
                if row is not None:
                    found[place, self._places] = row
        if not self.failure and np.isnan(found[:, self._places]).any():
            self.failure = "the network gives no number"
        return self._of_windows(found[number], owner, len(texts))

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Which windows go together, of those that can be read together."""
        for group in map(np.array, group_rows(lengths.tolist(), self._batching)):
            yield from (group[batch] for batch in batches(lengths[group], self.batch_tokens))

    @abstractmethod
    def _scores(self, logits: Any) -> Any:
        """Of the network's logits, (windows, its columns), those of ``_places``."""

    @abstractmethod
    def _of_windows(self, scores: np.ndarray, owner: list[int], count: int) -> np.ndarray:
        """Scores of ``count`` texts, (count, columns), from those of their windows, (windows,
        columns), NaN where one failed, and the number of the text that each is of."""

    def _windows(self, texts: list[str]) -> tuple[list[tuple[int, ...]], list[int], list[int]]:
        """Distinct windows of token ids that overlap by a quarter; the number of a window in them,
        and the text it is of, for each window of the texts."""
        found: dict[tuple[int, ...], int] = {}
        number, owner = [], []
        for text, windows in enumerate(self._each(self._encoded, texts)):
            for window in windows or ():
                number.append(found.setdefault(window, len(found)))
                owner.append(text)
        return list(found), number, owner

    def _encoded(self, texts: list[str]) -> list[list[tuple[int, ...]]]:
        special = self._tokenizer.num_special_tokens_to_add()
        encoded = self._tokenizer(
            texts,
            truncation=True,
            max_length=self._length,
            stride=(self._length - special) // 4,
            return_overflowing_tokens=True,
        )
        windows: list[list[tuple[int, ...]]] = [[] for _ in texts]
        for owner, ids in zip(
            encoded["overflow_to_sample_mapping"], encoded["input_ids"], strict=True
        ):
            if len(ids) > special:
                windows[owner].append(tuple(ids))
        return windows

    def _forward(self, windows: list[tuple[int, ...]]) -> np.ndarray:
        """Scores of windows, (n, places) float32; NaN where the network gives no number."""
        scores = self._scores(self._logits(windows)).cpu().numpy()
        return np.where(np.isfinite(scores), scores, np.nan)

    def _logits(self, windows: list[tuple[int, ...]]) -> Any:
        """Logits of windows, (n, labels) float32."""
        import torch

        lengths = np.array([len(window) for window in windows])
        there = np.arange(lengths.max()) < lengths[:, None]  # (n, longest)
        ids = np.full(there.shape, self._pad, np.int64)
        ids[there] = np.concatenate(windows)
        inputs = {"input_ids": ids, "attention_mask": there.astype(np.int64)}
        device = self._model.device
        with torch.inference_mode():
            given = {name: torch.from_numpy(a).to(device) for name, a in inputs.items()}
            return self._model(**given)[0].float()


def batches(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Which windows go together: of like length, so that little is padded, and at most ``budget``
    tokens, the padding counted, or one window. lengths: (n,), all above 0."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        ahead = order[start : start + max(1, budget // lengths[order[start]])]
        cost = lengths[ahead] * np.arange(1, len(ahead) + 1)
        count = max(1, int(np.searchsorted(cost, budget, side="right")))
        yield ahead[:count]
        start += count
