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
from model.decoding.cache import make_prefix_lengths
from model.decoding.inference_mode import run_in_evaluation_mode
from model.padding import batch_indices_by_length, check_token_ids, pad_rows
from model.reference import use_reference_kernels

Float32 = NDArray[np.float32]


@run_in_evaluation_mode
def compute_contextual_embeddings(
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
    layer_count = model.config.n_layers
    if layer not in range(-layer_count - 1, layer_count + 1):
        raise ValueError(
            f"layer must be between {-layer_count - 1} and {layer_count}, not {layer}."
        )
    results = [np.empty((0, model.config.d_model), dtype=np.float32) for _ in sequences]
    tokens = [
        check_token_ids(sequence, model.config.vocab_size, f"Sequence {i}").tolist()
        for i, sequence in enumerate(sequences)
    ]
    for batch_indices in batch_indices_by_length(list(map(len, tokens)), batch_tokens):
        ids, attention_mask = pad_rows(
            [tokens[i] for i in batch_indices], model.embedding.weight.device
        )
        states = (
            compute_layer_states(model, ids, attention_mask)[layer].float().cpu().numpy()
        )  # (B, T, d)
        for i, sequence_states in zip(batch_indices, states, strict=True):
            results[i] = sequence_states[: len(tokens[i])].copy()
    return results


def compute_layer_states(model: Transformer, ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
    """The embeddings and what each block makes of them, (B, T, d) each, in the stack that reads
    texts ``ids`` (B, T), padded to the right where not ``real``: the encoder where there is one."""
    stack = model.encoder or model.decoder
    assert stack is not None
    with record_layer_states(stack) as layers:
        if model.encoder is not None and model.decoder is not None:
            model.encode_source(Batch(ids, source=ids, source_attention_mask=attention_mask))
        else:
            model.compute_hidden_states(
                Batch(
                    ids,
                    attention_mask=attention_mask,
                    prefix=make_prefix_lengths(model, attention_mask.sum(1)),
                )
            )
    return layers


@contextmanager
def record_layer_states(stack: Stack) -> Iterator[list[Tensor]]:
    """Within, gives the states (B, T, d) that go through the stack: the embeddings, then what each
    block makes of them."""
    layer_states: list[Tensor] = []
    first_block = stack.blocks[0]
    hooks = [
        first_block.register_forward_pre_hook(lambda _, inputs: layer_states.append(inputs[0]))
    ]
    for block in stack.blocks:
        hooks.append(
            block.register_forward_hook(
                lambda *hook_arguments: layer_states.append(hook_arguments[-1])
            )
        )
    try:
        yield layer_states
    finally:
        for hook in hooks:
            hook.remove()


@run_in_evaluation_mode
def extract_attention_weights(
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
    is_encoder_decoder = model.encoder is not None and model.decoder is not None
    if source is not None and not is_encoder_decoder:
        raise ValueError("Only an encoder-decoder reads a source.")
    device, inputs = model.embedding.weight.device, []
    for name, ids in (("The sequence", sequence), ("The source", source)):
        if ids is not None and not len(ids):
            raise ValueError(f"{name} is empty: there is nothing to attend to.")
        tokens = check_token_ids(sequence if ids is None else ids, model.config.vocab_size, name)
        inputs.append(torch.from_numpy(tokens[None]).to(device))  # (1, T)
    prefix_lengths = make_prefix_lengths(model, [len(sequence)])
    with use_reference_kernels(model) as weights_by_module:
        model.compute_hidden_states(
            Batch(
                inputs[0], source=inputs[1] if is_encoder_decoder else None, prefix=prefix_lengths
            )
        )
    modules_by_stack: dict[str, list[torch.nn.Module]] = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None:
            modules_by_stack[name] = [block.get_submodule("attention") for block in stack.blocks]
    if is_encoder_decoder and model.decoder is not None:
        modules_by_stack["cross"] = [block.get_submodule("cross") for block in model.decoder.blocks]
    return {
        stack: [weights_by_module[layer][0].float().cpu().numpy() for layer in attentions]
        for stack, attentions in modules_by_stack.items()
    }
