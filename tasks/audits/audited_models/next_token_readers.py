"""Read prompts and one token after another with a model of transformers.

Most models keep keys and values of the tokens that they have read in a cache. Others have none, or
one whose rows cannot be copied. They read whole sequences again for each token, which is slower.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hallmark.model.padding import check_no_nan

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from hallmark.tasks.audits.audited_models.audited_tokenizer import TokenIds


class NextTokenReader(Protocol):
    """Reads sequences of one length, and then one more token of each at a time."""

    def read_prompts(self) -> Tensor:
        """Read the prompts, and return the logits (B, V), float32, of the tokens after them."""

    def read_next_token_logits(self, parent_rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Return the logits (n, V), float32, after n sequences.

        Sequence i extends row ``parent_rows[i]`` of the last result by ``tokens[i]``.
        """


def accepts_last_logits_only(model: PreTrainedModel) -> bool:
    """Return whether a model can compute logits at the last position only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


class CachedReader:
    """Reads each token once; the cache has a row for each sequence."""

    cache: Cache

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> None:
        self.model, self.prompts = model, prompts
        self.options: dict[str, Any] = (
            {"logits_to_keep": 1} if accepts_last_logits_only(model) else {}
        )

    def read_prompts(self) -> Tensor:
        return self._read(torch.tensor([*map(list, self.prompts)], device=self.model.device))

    def read_next_token_logits(self, parent_rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        self.select_rows(parent_rows)
        token_ids = torch.tensor([*tokens], device=self.model.device)[:, None]
        return self._read(token_ids, past_key_values=self.cache)

    def select_rows(self, parent_rows: Sequence[int]) -> None:
        """Replace the rows of the cache by copies of ``parent_rows``."""
        if [*parent_rows] != [*range(self.row_count)]:
            self.cache.reorder_cache(torch.tensor([*parent_rows], device=self.model.device))

    def _read(self, token_ids: Tensor, **options: Any) -> Tensor:
        output = self.model(input_ids=token_ids, use_cache=True, **self.options, **options)
        self.cache, self.row_count = output.past_key_values, len(token_ids)
        logits: Tensor = output.logits[:, -1].float()
        return logits


class WholeSequenceReader:
    """Reads every sequence from its beginning for each token."""

    def __init__(
        self,
        compute_logits: Callable[[Tensor, Tensor], Tensor],
        iter_batch_indices: Callable[[Sequence[int]], Iterable[list[int]]],
        device: torch.device,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        """Keep the prompts.

        Args:
            compute_logits: Computes logits (B, T, V), float32, from ids (B, T) and a mask of real
                tokens (B, T), bool.
            iter_batch_indices: Yields the indices of rows that may share a batch, from the lengths
                of all rows.
            device: The device of the model.
            prompts: Token ids of prompts of one length.
        """
        self.compute_logits, self.iter_batch_indices = compute_logits, iter_batch_indices
        self.device = device
        self.sequences: list[TokenIds] = [[*prompt] for prompt in prompts]

    def read_prompts(self) -> Tensor:
        token_ids = torch.tensor(self.sequences, device=self.device)
        last_logits: list[Tensor] = [torch.empty(0)] * len(token_ids)
        for batch in self.iter_batch_indices([token_ids.shape[1]] * len(token_ids)):
            batch_ids = token_ids[batch]
            logits = self.compute_logits(batch_ids, torch.ones_like(batch_ids, dtype=torch.bool))
            for row, row_logits in zip(batch, logits[:, -1].clone(), strict=True):
                last_logits[row] = row_logits
        return torch.stack(last_logits)

    def read_next_token_logits(self, parent_rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        self.sequences = [
            [*self.sequences[row], token] for row, token in zip(parent_rows, tokens, strict=True)
        ]
        return self.read_prompts()


class BeamScorer:
    """Compute log probabilities for ``run_beam_search`` after prompts of one length."""

    def __init__(self, reader: NextTokenReader) -> None:
        self.reader = reader

    def score_first_tokens(self) -> Tensor:
        return check_no_nan(self.reader.read_prompts().log_softmax(-1))  # (B, V)

    def score_next_tokens(self, parent_rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        return check_no_nan(self.reader.read_next_token_logits(parent_rows, tokens).log_softmax(-1))
