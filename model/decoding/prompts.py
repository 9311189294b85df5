"""Prompts: what may be asked for, and how they are read into the rows of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.cache import KeyValueCache, LayerCache, forward_with_cache, make_prefix_lengths
from model.padding import check_token_ids, pad_rows
from model.special_tokens import TokenIds


def check_prompts(
    model: Transformer,
    prompts: Sequence[TokenIds],
    sources: Sequence[TokenIds] | None,
    max_new_tokens: int,
) -> None:
    """ValueError, one sentence, where the model cannot go on with these prompts."""
    if model.decoder is None or (sources is None) != (model.encoder is None):
        raise ValueError(
            "Writing needs a decoder: a decoder-only model without sources, or an encoder-decoder "
            "with one source for each prompt."
        )
    for i, prompt in enumerate(prompts):
        if not len(check_token_ids(prompt, model.config.vocab_size, f"Prompt {i}")):
            raise ValueError(f"Prompt {i} is empty: begin it with the begin-of-text token.")
    if sources is None:
        return
    context = model.config.context
    if len(sources) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many sources, not {len(sources)}.")
    for i, source in enumerate(sources):
        if not 0 < len(source) <= context:
            raise ValueError(f"Source {i} has {len(source)} tokens, not between 1 and {context}.")
        check_token_ids(source, model.config.vocab_size, f"Source {i}")
    check_prompts_fit_context(model, prompts, max_new_tokens)  # windows are for decoders alone


def check_prompts_fit_context(
    model: Transformer, prompts: Sequence[TokenIds], max_new_tokens: int
) -> None:
    """ValueError where a prompt and what is to be written behind it exceed the context."""
    context = model.config.context
    for i, prompt in enumerate(prompts):
        if len(prompt) + max_new_tokens > context:
            raise ValueError(
                f"Prompt {i} and {max_new_tokens} new tokens make {len(prompt) + max_new_tokens}, "
                f"more than the context of {context}: lower max_new_tokens or cut the prompt."
            )


@dataclass(frozen=True)
class PromptWindow:
    """What the model sees of a text that it goes on with: ``tokens``, of which the first ``given``
    are of its prompt."""

    tokens: TokenIds
    prompt_length: int


def prefill_windows(
    model: Transformer,
    windows: Sequence[PromptWindow],
    cache: KeyValueCache,
    sources: Sequence[TokenIds] | None = None,
) -> Tensor:
    """Read each window into its row of the cache, from the first slot on, and the sources with
    them; logits (n, V) float32 of the token behind each."""
    row_groups = (
        [slice(0, len(windows))] if sources is not None else _group_similar_lengths(windows)
    )
    logits = []
    for row_slice in row_groups:
        ids, _ = pad_rows(
            [window.tokens for window in windows[row_slice]], model.embedding.weight.device
        )
        prefix_lengths = make_prefix_lengths(
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
        hidden = forward_with_cache(model, batch, group_cache)  # (n, T, d)
        cache.source_keys_values, cache.source_attention_mask = (
            group_cache.source_keys_values,
            group_cache.source_attention_mask,
        )
        last_positions = torch.tensor(
            [len(window.tokens) - 1 for window in windows[row_slice]], device=ids.device
        )
        row_indices = torch.arange(len(last_positions), device=ids.device)
        logits.append(model.compute_logits(hidden[row_indices, last_positions]).float())
    return torch.cat(logits)


def _group_similar_lengths(windows: Sequence[PromptWindow]) -> list[slice]:
    """Rows to read together: neighbours of like length, so that little of what is read is
    padding. They should stand in the order of their lengths."""
    groups = [slice(0, 0)]
    for i, window in enumerate(windows):
        group_length = len(windows[groups[-1].start].tokens)
        if not group_length <= len(window.tokens) <= 8 + 1.25 * group_length:
            groups.append(slice(i, i))
        groups[-1] = slice(groups[-1].start, i + 1)
    return groups
