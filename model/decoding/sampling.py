"""Choose tokens from logits: filters, and draws that depend only on their key.

A draw is inverse-CDF sampling with one uniform number, which is a hash of (seed, prompt, sample
index, position). So a text does not depend on its batch, the order of the prompts, or the number of
samples, and a repeated prompt gives the same samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hallmark.model.keyed_randomness import UInt64, combine_into_key


@dataclass(frozen=True)
class TokenSampler:
    """Settings for choosing the next token; temperature 0 is greedy.

    The filters apply in the order repetition penalty, temperature, top-k, nucleus, min-p; each is
    off at its default.

    Attributes:
        temperature: divides the logits.
        top_k: keep only this many most probable tokens; 0 is off.
        top_p: keep the smallest set of tokens with at least this probability.
        min_p: keep tokens at least this many times as probable as the most probable.
        repetition_penalty: makes tokens of the history less probable.
        first_temperature: temperature of the first token, from which it falls in equal steps to
            ``temperature`` at token ``decay_tokens`` (Carlini et al. 2021).
        decay_tokens: number of tokens until ``temperature`` is reached.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    first_temperature: float | None = None
    decay_tokens: int = 20

    def __post_init__(self) -> None:
        for name in ("temperature", "first_temperature"):
            value = getattr(self, name)
            zero_alternative = "0 or " if name == "temperature" else ""
            if value is None or (zero_alternative and value == 0.0):
                continue
            if not 1e-4 <= value < float("inf"):
                raise ValueError(f"{name} must be {zero_alternative}at least 0.0001, not {value}.")
        if not isinstance(self.top_k, Integral) or self.top_k < 0:
            raise ValueError(
                f"top_k must be 0 (no limit) or a positive integer, not {self.top_k!r}."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}.")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must be between 0 and 1, not {self.min_p}.")
        if not 0.01 <= self.repetition_penalty <= 100.0:
            raise ValueError(
                f"repetition_penalty must be between 0.01 and 100, not {self.repetition_penalty}."
            )
        if self.first_temperature is not None and min(self.temperature, self.decay_tokens) <= 0:
            raise ValueError(
                "If first_temperature is set, temperature and decay_tokens must be above 0, not "
                f"{self.temperature} and {self.decay_tokens}."
            )

    def temperature_at(self, position: int) -> float:
        """Return the temperature of the new token at ``position`` (from 0)."""
        if self.first_temperature is None or position >= self.decay_tokens:
            return self.temperature
        remaining_share = 1.0 - position / self.decay_tokens
        return self.temperature + (self.first_temperature - self.temperature) * remaining_share

    def choose_tokens(
        self,
        logits: Tensor,
        keys: UInt64,
        position: int,
        history: Tensor | None = None,
        unpenalised_ids: Sequence[int] = (),
    ) -> Tensor:
        """Choose the next tokens.

        Args:
            logits: (N, V).
            keys: (N,) keys of the draws.
            position: number of the new token, from 0.
            history: (N, L) earlier tokens for the repetition penalty.
            unpenalised_ids: tokens that are not penalised: those that end a text. The same token
                begins the text, so it would never be chosen.

        Returns:
            (N,) token ids.
        """
        if history is not None:
            unpenalised_logits = logits[:, list(unpenalised_ids)]
            logits = penalise_repetition(logits, history, self.repetition_penalty)
            logits[:, list(unpenalised_ids)] = unpenalised_logits
        if self.temperature == 0.0:
            return select_most_probable(logits)
        logits = apply_temperature(logits, self.temperature_at(position))
        if self.top_k:
            logits = keep_top_k(logits, self.top_k)
        logits = keep_min_p(keep_nucleus(logits, self.top_p), self.min_p)
        return draw_tokens(logits, draw_uniforms(keys, position))


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature: below 1 sharpens, above 1 flattens the distribution."""
    return logits if temperature == 1.0 else logits / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most probable tokens (Fan et al. 2018) and ties; all others get -inf."""
    if k >= logits.shape[-1]:
        return logits
    lowest_kept = logits.topk(k, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < lowest_kept, -torch.inf)


def keep_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most probable tokens with mass at least p (Holtzman et al. 2020).

    Ties of the last token are also kept, so that the result does not depend on an order among
    equals.

    Args:
        logits: (N, V).
        top_p: the mass p.
    """
    if top_p >= 1.0:
        return logits
    ascending = _sort_ascending(logits)
    # Drop the least probable tokens up to a mass of 1 - p: the smallest set with mass p remains.
    is_dropped = ascending.softmax(-1).cumsum(-1) <= 1.0 - top_p
    dropped_count = is_dropped.sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    return logits.masked_fill(logits < ascending.gather(-1, dropped_count), -torch.inf)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keep tokens at least p times as probable as the most probable one (Nguyen et al. 2024)."""
    if min_p <= 0.0:
        return logits
    lowest_kept = logits.amax(-1, keepdim=True) + math.log(min_p)
    return logits.masked_fill(logits < lowest_kept, -torch.inf)


def penalise_repetition(logits: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens in the history by ``penalty``, and multiply negative ones.

    The penalty (Keskar et al. 2019) acts on unmodified logits, so it comes before other filters.

    Args:
        logits: (N, V).
        history: (N, L) token ids.
        penalty: 1 is off.
    """
    if penalty == 1.0:
        return logits
    history_logits = logits.gather(1, history)
    history_logits = torch.where(
        history_logits > 0, history_logits / penalty, history_logits * penalty
    )
    return logits.scatter(1, history, history_logits)


def select_most_probable(logits: Tensor) -> Tensor:
    """Return the first maximum of each row, (N,); numpy is ten times as fast on the CPU."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(np.argmax(logits.detach().numpy(), axis=-1))
    return logits.argmax(-1)


def _sort_ascending(logits: Tensor) -> Tensor:
    """Sort values in ascending order; numpy is about nine times as fast on the CPU."""
    if logits.device.type == "cpu":
        return torch.from_numpy(np.sort(logits.detach().numpy(), axis=-1))
    return logits.sort(dim=-1).values


def draw_tokens(logits: Tensor, uniforms: NDArray[np.float64]) -> Tensor:
    """Draw one token per row of logits (N, V) by inverse CDF; ``uniforms`` (N,) are in [0, 1)."""
    probabilities = logits.softmax(-1)
    # A GPU sums in parallel: in fp32 the running sum might decrease between two tokens.
    cdf = (probabilities.double() if probabilities.is_cuda else probabilities).cumsum(-1)  # (N, V)
    total = cdf[:, -1:].contiguous()
    uniform_column = torch.from_numpy(uniforms).to(cdf.device).unsqueeze(1)
    # Strictly below the total, so that rounding cannot select beyond the last possible token.
    point = torch.minimum(
        (uniform_column * total.double()).to(cdf.dtype), total.nextafter(torch.zeros_like(total))
    )
    # In a row of NaN no position matches, and the last token is returned.
    return torch.searchsorted(cdf, point, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


def make_draw_keys(seed: int, prompt: Sequence[int], sample_count: int) -> UInt64:
    """Make one 64-bit key for each sample of a prompt, (sample_count,)."""
    content = np.asarray(prompt, dtype="<i8").tobytes()
    prompt_key = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    return combine_into_key(seed, prompt_key, np.arange(sample_count, dtype=np.uint64))


def draw_uniforms(keys: UInt64, position: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1) with 53 bits, one per key, for the token at ``position``."""
    bits = combine_into_key(keys, position) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
