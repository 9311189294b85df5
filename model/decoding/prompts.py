"""Prompts: what may be asked for, and how they are read into the rows of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.cache import Cache, LayerCache, prompt_lengths, read
from model.rows import check_ids, padded
from model.tokens import Tokens


def check_prompts(
    model: Transformer,
    prompts: Sequence[Tokens],
    sources: Sequence[Tokens] | None,
    max_new_tokens: int,
) -> None:
    """ValueError, one sentence, where the model cannot go on with these prompts."""
    if model.decoder is None or (sources is None) != (model.encoder is None):
        raise ValueError(
            "Writing needs a decoder: a decoder-only model without sources, or an encoder-decoder "
            "with one source for each prompt."
        )
    for i, prompt in enumerate(prompts):
        if not len(check_ids(prompt, model.config.vocab_size, f"Prompt {i}")):
            raise ValueError(f"Prompt {i} is empty: begin it with the begin-of-text token.")
    if sources is None:
        return
    context = model.config.context
    if len(sources) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many sources, not {len(sources)}.")
    for i, source in enumerate(sources):
        if not 0 < len(source) <= context:
            raise ValueError(f"Source {i} has {len(source)} tokens, not between 1 and {context}.")
        check_ids(source, model.config.vocab_size, f"Source {i}")
    check_fit(model, prompts, max_new_tokens)  # windows are for decoders alone


def check_fit(model: Transformer, prompts: Sequence[Tokens], max_new_tokens: int) -> None:
    """ValueError where a prompt and what is to be written behind it exceed the context."""
    context = model.config.context
    for i, prompt in enumerate(prompts):
        if len(prompt) + max_new_tokens > context:
            raise ValueError(
                f"Prompt {i} and {max_new_tokens} new tokens make {len(prompt) + max_new_tokens}, "
                f"more than the context of {context}: lower max_new_tokens or cut the prompt."
            )


@dataclass(frozen=True)
class Window:
    """What the model sees of a text that it goes on with: ``tokens``, of which the first ``given``
    are of its prompt."""

    tokens: Tokens
    given: int


def read_windows(
    model: Transformer,
    windows: Sequence[Window],
    cache: Cache,
    sources: Sequence[Tokens] | None = None,
) -> Tensor:
    """Read each window into its row of the cache, from the first slot on, and the sources with
    them; logits (n, V) float32 of the token behind each."""
    together = [slice(0, len(windows))] if sources is not None else _alike(windows)
    logits = []
    for rows in together:
        ids, _ = padded([window.tokens for window in windows[rows]], model.embedding.weight.device)
        given = prompt_lengths(model, [window.given for window in windows[rows]])
        batch = Batch(ids, prefix=given)
        if sources is not None:
            source, keys = padded(sources, ids.device)
            batch = replace(batch, source=source, source_keys=keys)
        views = [LayerCache(layer.keys[rows], layer.values[rows]) for layer in cache.layers]
        part = Cache(views, ids.shape[1], slice(0, ids.shape[1]))
        hidden = read(model, batch, part)  # (n, T, d)
        cache.memory, cache.memory_keys = part.memory, part.memory_keys
        ends = torch.tensor([len(w.tokens) - 1 for w in windows[rows]], device=ids.device)
        lines = torch.arange(len(ends), device=ids.device)
        logits.append(model.logits(hidden[lines, ends]).float())
    return torch.cat(logits)


def _alike(windows: Sequence[Window]) -> list[slice]:
    """Rows to read together: neighbours of like length, so that little of what is read is
    padding. They should stand in the order of their lengths."""
    groups = [slice(0, 0)]
    for i, window in enumerate(windows):
        first = len(windows[groups[-1].start].tokens)
        if not first <= len(window.tokens) <= 8 + 1.25 * first:
            groups.append(slice(i, i))
        groups[-1] = slice(groups[-1].start, i + 1)
    return groups
