"""Score texts with transformers: split into windows, and batch windows of similar length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hallmark.tasks.contract import HallmarkError, resolve_torch_device
from hallmark.tasks.measures.batch_effects import (
    SAMPLE_LENGTH,
    Batching,
    SequencePair,
    choose_batching,
    choose_pad_token_id,
    group_batchable_rows,
)
from hallmark.tasks.measures.scorers.base import Scorer, TextsByColumns

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Token ids of a part of a text.
Window = tuple[int, ...]


class _TextWindows(NamedTuple):
    """The windows of texts; a window that occurs several times is listed once."""

    distinct_windows: list[Window]
    window_indices: list[int]
    """Index in `distinct_windows` of each window of each text."""
    text_indices: list[int]
    """Index of the text of each window of each text."""


class TransformerScorer(Scorer):
    """A scorer that runs a sequence classifier; long texts are split into overlapping windows."""

    uses_device = True

    _score_columns: list[int]  # Columns of `columns` that the network fills.

    def _attach_network(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        device: str,
        window_tokens: int,
        batch_tokens: int | None,
        torch_dtype: dtype,
    ) -> None:
        """Move a network to its device and choose how to batch.

        Args:
            model: Sequence classifier of transformers.
            tokenizer: Its tokenizer.
            device: Name of the device.
            window_tokens: Maximum number of tokens per window; the network's own limit may be
                lower.
            batch_tokens: Maximum number of tokens per batch, padding included; None chooses by
                device.
            torch_dtype: Number format of weights and arithmetic.

        Raises:
            HallmarkError: A weight is NaN or infinite.
        """
        device = resolve_torch_device(device)
        # A CPU is as fast with 512 tokens as with 8,192, and small batches need less padding. A
        # GPU needs large batches.
        self.batch_tokens = batch_tokens or (16_384 if device != "cpu" else 1024)
        # Batching is chosen in float32: in bf16, rounding makes all batches differ.
        self._model, self._tokenizer = model.eval().to(device).float(), tokenizer
        for name, weights in self._model.named_parameters():
            if not weights.isfinite().all():
                raise HallmarkError(
                    f"the scorer {self.name} is damaged: it has NaN or infinite weights, for "
                    f"example {name}; use another scorer"
                )
        max_positions = getattr(model.config, "max_position_embeddings", 512)
        # RoBERTa-like models reserve two positions.
        max_positions -= 2 if "roberta" in model.config.model_type else 0
        self._max_window_tokens = min(window_tokens, max_positions)
        vocab_size = getattr(model.config, "vocab_size", len(tokenizer))
        self._pad_token_id = choose_pad_token_id(model.config, tokenizer, vocab_size)
        self._batching = self._choose_batching()
        self._model.to(torch_dtype)

    def _choose_batching(self) -> Batching:
        """Choose which windows the network can read together."""
        length = min(SAMPLE_LENGTH, self._max_window_tokens)
        vocabulary_ids = {*self._tokenizer.get_vocab().values()}
        ordinary_ids = sorted(vocabulary_ids - {*self._tokenizer.all_special_ids})
        if not ordinary_ids or length < 4:
            return "equal length"
        sample = SequencePair(ordinary_ids, length)
        try:
            return choose_batching(
                lambda rows: [*self._compute_logits([*map(tuple, rows)])], sample
            )
        except Exception:  # The network fails on single rows: each text will report its own error.
            return "any length"

    def _score_distinct_texts(self, texts: list[str]) -> TextsByColumns:
        text_windows = self._split_into_distinct_windows(texts)
        windows = text_windows.distinct_windows
        window_scores = np.full((len(windows), len(self.columns)), np.nan, np.float32)
        lengths = np.array([len(window) for window in windows], np.int64)
        for batch in self._batch_windows(lengths):
            scores = self._apply_isolating_failures(
                self._score_windows, [windows[i] for i in batch]
            )
            for window_index, score_row in zip(batch, scores, strict=True):
                if score_row is not None:
                    window_scores[window_index, self._score_columns] = score_row
        if not self.failure_reason and np.isnan(window_scores[:, self._score_columns]).any():
            self.failure_reason = "the network returned NaN or infinity"
        return self._aggregate_window_scores(
            window_scores[text_windows.window_indices], text_windows.text_indices, len(texts)
        )

    def _batch_windows(self, window_lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the windows of each batch, (b,) indices; all windows of a batch can share it."""
        for group in map(np.array, group_batchable_rows(window_lengths.tolist(), self._batching)):
            yield from (
                group[batch] for batch in batch_by_length(window_lengths[group], self.batch_tokens)
            )

    @abstractmethod
    def _logits_to_score_columns(self, logits: Tensor) -> Tensor:
        """Convert logits, (windows, labels), to scores, (windows, `_score_columns`)."""

    @abstractmethod
    def _aggregate_window_scores(
        self, window_scores: np.ndarray, text_indices: list[int], text_count: int
    ) -> TextsByColumns:
        """Combine the scores of windows into scores of texts.

        Args:
            window_scores: (windows, columns), NaN where a window failed.
            text_indices: The text to which each window belongs.
            text_count: Number of texts.

        Returns:
            (text_count, columns) float32.
        """

    def _split_into_distinct_windows(self, texts: list[str]) -> _TextWindows:
        """Split texts into windows of token ids that overlap by a quarter."""
        index_by_window: dict[Window, int] = {}
        window_indices, text_indices = [], []
        for text_index, windows in enumerate(
            self._apply_isolating_failures(self._tokenize_into_windows, texts)
        ):
            for window in windows or ():
                window_indices.append(index_by_window.setdefault(window, len(index_by_window)))
                text_indices.append(text_index)
        return _TextWindows(list(index_by_window), window_indices, text_indices)

    def _tokenize_into_windows(self, texts: list[str]) -> list[list[Window]]:
        """Return the windows of each text."""
        special_count = self._tokenizer.num_special_tokens_to_add()
        encoded = self._tokenizer(
            texts,
            truncation=True,
            max_length=self._max_window_tokens,
            stride=(self._max_window_tokens - special_count) // 4,
            return_overflowing_tokens=True,
        )
        windows: list[list[Window]] = [[] for _ in texts]
        for text_index, token_ids in zip(
            encoded["overflow_to_sample_mapping"], encoded["input_ids"], strict=True
        ):
            if len(token_ids) > special_count:
                windows[text_index].append(tuple(token_ids))
        return windows

    def _score_windows(self, windows: list[Window]) -> np.ndarray:
        """Return the scores of windows, (n, `_score_columns`) float32; NaN if not finite."""
        scores = self._logits_to_score_columns(self._compute_logits(windows)).cpu().numpy()
        return np.where(np.isfinite(scores), scores, np.nan)

    def _compute_logits(self, windows: list[Window]) -> Tensor:
        """Return the logits of windows, (n, labels) float32."""
        import torch

        lengths = np.array([len(window) for window in windows])
        attention_mask = np.arange(lengths.max()) < lengths[:, None]  # (n, longest)
        token_ids = np.full(attention_mask.shape, self._pad_token_id, np.int64)
        token_ids[attention_mask] = np.concatenate(windows)
        inputs = {"input_ids": token_ids, "attention_mask": attention_mask.astype(np.int64)}
        device = self._model.device
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}
            logits: Tensor = self._model(**tensors)[0].float()
        return logits


def batch_by_length(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Yield batches of windows of similar length, so that little padding is needed.

    Args:
        lengths: (n,) tokens per window, all above 0.
        max_tokens: Maximum number of tokens per batch, padding included; a batch has at least one
            window, however long.

    Returns:
        Indices of the windows of each batch.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        candidates = order[start : start + max(1, max_tokens // lengths[order[start]])]
        padded_tokens = lengths[candidates] * np.arange(1, len(candidates) + 1)
        batch_size = max(1, int(np.searchsorted(padded_tokens, max_tokens, side="right")))
        yield candidates[:batch_size]
        start += batch_size
