"""Inside the model: the state of each token at each layer, and what each head attends to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.architecture import Stack, Transformer
from model.batch import Batch
from model.decoding.cache import prompt_lengths
from model.decoding.mode import asks
from model.plain import plain
from model.rows import by_length, check_ids, padded

Float32 = NDArray[np.float32]


@asks
def embeddings(
    model: Transformer,
    sequences: Sequence[Sequence[int]],
    *,
    layer: int = -1,
    batch_tokens: int = 16_384,
) -> list[Float32]:
    """Contextual embeddings of each token at a layer, (len(sequence), d) each.

    ``layer`` 0 is the input embedding, 1 the first block's output, -1 the last block's. An encoder
    sees both sides, also that of an encoder-decoder, and a prefix LM, which reads all that it is
    given so; other decoders see the left alone. A sequence longer than the context is a ValueError,
    and so is a layer that is not there.
    """
    last = model.config.n_layers
    if layer not in range(-last - 1, last + 1):
        raise ValueError(f"layer must be between {-last - 1} and {last}, not {layer}.")
    results = [np.empty((0, model.config.d_model), dtype=np.float32) for _ in sequences]
    tokens = [
        check_ids(sequence, model.config.vocab_size, f"Sequence {i}").tolist()
        for i, sequence in enumerate(sequences)
    ]
    for rows in by_length(list(map(len, tokens)), batch_tokens):
        ids, real = padded([tokens[i] for i in rows], model.embedding.weight.device)
        states = states_of_layers(model, ids, real)[layer].float().cpu().numpy()  # (B, T, d)
        for i, state in zip(rows, states, strict=True):
            results[i] = state[: len(tokens[i])].copy()
    return results


def states_of_layers(model: Transformer, ids: Tensor, real: Tensor) -> list[Tensor]:
    """The embeddings and what each block makes of them, (B, T, d) each, in the stack that reads
    texts ``ids`` (B, T), padded to the right where not ``real``: the encoder where there is one."""
    stack = model.encoder or model.decoder
    assert stack is not None
    with watched(stack) as layers:
        if model.encoder is not None and model.decoder is not None:
            model.encode(Batch(ids, source=ids, source_keys=real))
        else:
            model.states(Batch(ids, keys=real, prefix=prompt_lengths(model, real.sum(1))))
    return layers


@contextmanager
def watched(stack: Stack) -> Iterator[list[Tensor]]:
    """Within, gives the states (B, T, d) that go through the stack: the embeddings, then what each
    block makes of them."""
    layers: list[Tensor] = []
    first = stack.blocks[0]
    hooks = [first.register_forward_pre_hook(lambda _, inputs: layers.append(inputs[0]))]
    for block in stack.blocks:
        hooks.append(block.register_forward_hook(lambda *made: layers.append(made[-1])))
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()


@asks
def attention_weights(
    model: Transformer, sequence: Sequence[int], *, source: Sequence[int] | None = None
) -> dict[str, list[Float32]]:
    """Attention weights by stack, one (H, Tq, Tk) per layer: heads, queries, keys.

    A row sums to 1 over its keys; in a decoder it is 0 behind its query, but for a prefix LM, which
    reads all that it is given in both directions. The stacks are those that
    the model has: "encoder", "decoder", and of an encoder-decoder "cross" too, from the target to
    its source. There the encoder reads ``source``, and the decoder the sequence as its target,
    which begins with the start symbol; without a source both read the sequence. What is empty or
    longer than the context is a ValueError, and a source that nothing reads.
    """
    both = model.encoder is not None and model.decoder is not None
    if source is not None and not both:
        raise ValueError("Only an encoder-decoder reads a source.")
    device, rows = model.embedding.weight.device, []
    for name, given in (("The sequence", sequence), ("The source", source)):
        if given is not None and not len(given):
            raise ValueError(f"{name} is empty: there is nothing to attend to.")
        tokens = check_ids(sequence if given is None else given, model.config.vocab_size, name)
        rows.append(torch.from_numpy(tokens[None]).to(device))  # (1, T)
    prompt = prompt_lengths(model, [len(sequence)])
    with plain(model) as seen:
        model.states(Batch(rows[0], source=rows[1] if both else None, prefix=prompt))
    layers: dict[str, list[torch.nn.Module]] = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None:
            layers[name] = [block.get_submodule("attention") for block in stack.blocks]
    if both and model.decoder is not None:
        layers["cross"] = [block.get_submodule("cross") for block in model.decoder.blocks]
    return {
        stack: [seen[layer][0].float().cpu().numpy() for layer in attentions]
        for stack, attentions in layers.items()
    }
