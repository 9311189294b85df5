"""Check prompts, and read them into the rows of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.cache import (
    KeyValueCache,
    LayerCache,
    compute_hidden_states_with_cache,
    make_prefix_lm_lengths,
)
from hallmark.model.padding import check_token_ids, pad_rows
from hallmark.model.special_tokens import TokenIds


def check_prompts(
    model: Transformer,
    prompts: Sequence[TokenIds],
    sources: Sequence[TokenIds] | None,
    max_new_tokens: int,
) -> None:
    """Raise ValueError if the model cannot continue these prompts."""
    if model.decoder is None or (sources is None) != (model.encoder is None):
        raise ValueError(
            "Text can be generated only by a decoder-only model without source sequences, or by "
            "an encoder-decoder model with one source sequence per prompt."
        )
    for i, prompt in enumerate(prompts):
        if not len(check_token_ids(prompt, model.config.vocab_size, f"Prompt {i}")):
            raise ValueError(f"Prompt {i} is empty: begin it with the begin-of-text token.")
    if sources is None:
        return
    context = model.config.context
    if len(sources) != len(prompts):
        raise ValueError(
            f"Expected one source sequence per prompt, but got {len(sources)} for {len(prompts)} "
            "prompts."
        )
    for i, source in enumerate(sources):
        if not 0 < len(source) <= context:
            raise ValueError(f"Source {i} must have 1 to {context} tokens, not {len(source)}.")
        check_token_ids(source, model.config.vocab_size, f"Source {i}")
    # Only decoder-only models continue beyond the context, in windows.
    check_prompts_fit_context(model, prompts, max_new_tokens)


def check_prompts_fit_context(
    model: Transformer, prompts: Sequence[TokenIds], max_new_tokens: int
) -> None:
    """Raise ValueError if a prompt and its new tokens exceed the context."""
    context = model.config.context
    for i, prompt in enumerate(prompts):
        if len(prompt) + max_new_tokens > context:
            raise ValueError(
                f"Prompt {i} has {len(prompt)} tokens, and with {max_new_tokens} new tokens it "
                f"exceeds the context of {context} tokens: shorten the prompt, or reduce "
                "max_new_tokens."
            )


@dataclass(frozen=True)
class PromptWindow:
    """The part of a text that the model reads to continue it.

    Attributes:
        tokens: tokens of the window.
        prompt_length: how many of the first tokens belong to the prompt.
    """

    tokens: TokenIds
    prompt_length: int


def prefill_windows(
    model: Transformer,
    windows: Sequence[PromptWindow],
    cache: KeyValueCache,
    sources: Sequence[TokenIds] | None = None,
) -> Tensor:
    """Read each window into its row of the cache, from the first slot on, and the sources if any.

    Returns:
        Logits (n, V) float32 of the token after each window.
    """
    whole_batch = [slice(0, len(windows))]
    row_groups = _slice_into_similar_lengths(windows) if sources is None else whole_batch
    logits = []
    for row_slice in row_groups:
        ids, _ = pad_rows(
            [window.tokens for window in windows[row_slice]], model.embedding.weight.device
        )
        prefix_lengths = make_prefix_lm_lengths(
            model, [window.prompt_length for window in windows[row_slice]]
        )
        batch = Batch(ids, prefix=prefix_lengths)
        if sources is not None:
            source, source_mask = pad_rows(sources, ids.device)
            batch = replace(batch, source=source, source_attention_mask=source_mask)
        layer_views = [
            LayerCache(layer.keys[row_slice], layer.values[row_slice]) for layer in cache.layers
        ]
        group_cache = KeyValueCache(layer_views, ids.shape[1], slice(0, ids.shape[1]))
        hidden = compute_hidden_states_with_cache(model, batch, group_cache)  # (n, T, d)
        cache.source_keys_values = group_cache.source_keys_values
        cache.source_attention_mask = group_cache.source_attention_mask
        last_positions = torch.tensor(
            [len(window.tokens) - 1 for window in windows[row_slice]], device=ids.device
        )
        row_indices = torch.arange(len(last_positions), device=ids.device)
        logits.append(model.compute_logits(hidden[row_indices, last_positions]).float())
    return torch.cat(logits)


def _slice_into_similar_lengths(windows: Sequence[PromptWindow]) -> list[slice]:
    """Group neighbouring rows of similar length, so that little padding is read.

    The rows should be in the order of their lengths.
    """
    groups = [slice(0, 0)]
    for i, window in enumerate(windows):
        group_length = len(windows[groups[-1].start].tokens)
        if not group_length <= len(window.tokens) <= 8 + 1.25 * group_length:
            groups.append(slice(i, i))
        groups[-1] = slice(groups[-1].start, i + 1)
    return groups
