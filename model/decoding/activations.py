"""Extract activations: the state of each token at each layer, and the attention of each head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hallmark.model.architecture import Stack, Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.cache import make_prefix_lm_lengths
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode
from hallmark.model.padding import batch_indices_by_length, check_token_ids, pad_rows
from hallmark.model.reference_kernels import use_reference_kernels

Float32 = NDArray[np.float32]
#: For "encoder", "decoder" and "cross": the weights (H, Tq, Tk) of each layer.
AttentionWeightsByStack = dict[str, list[Float32]]


@run_in_evaluation_mode
def compute_contextual_embeddings(
    model: Transformer,
    sequences: Sequence[Sequence[int]],
    *,
    layer: int = -1,
    batch_tokens: int = 16_384,
) -> list[Float32]:
    """Compute the contextual embeddings of each token at a layer, (len(sequence), d) each.

    Encoders and prefix LMs read the text in both directions, other decoders only to the left.

    Args:
        model: for an encoder-decoder, its encoder is used.
        sequences: token ids of each text.
        layer: 0 is the input embedding, 1 the first block's output, -1 the last block's.
        batch_tokens: most tokens per forward pass, padding included.

    Raises:
        ValueError: A sequence is longer than the context, or the layer does not exist.
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
        layer_states = compute_layer_states(model, ids, attention_mask)[layer]
        states = layer_states.float().cpu().numpy()  # (B, T, d)
        for i, sequence_states in zip(batch_indices, states, strict=True):
            results[i] = sequence_states[: len(tokens[i])].copy()
    return results


def compute_layer_states(model: Transformer, ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
    """Compute the embeddings and the output of each block, (B, T, d) each.

    The states are those of the encoder, or of the decoder of a decoder-only model.

    Args:
        ids: (B, T), padded on the right.
        attention_mask: (B, T) bool, True at real tokens.
    """
    stack = model.encoder or model.decoder
    assert stack is not None
    with record_layer_states(stack) as layers:
        if model.encoder is not None and model.decoder is not None:
            model.encode_source(Batch(ids, source=ids, source_attention_mask=attention_mask))
        else:
            prefix = make_prefix_lm_lengths(model, attention_mask.sum(1))
            model.compute_hidden_states(Batch(ids, attention_mask=attention_mask, prefix=prefix))
    return layers


@contextmanager
def record_layer_states(stack: Stack) -> Iterator[list[Tensor]]:
    """Within the context, record the input of the stack and the output of each block, (B, T, d)."""
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
) -> AttentionWeightsByStack:
    """Extract the attention weights of each stack, one (H, Tq, Tk) per layer.

    Rows sum to 1 over the keys. In a decoder the weights of later keys are 0, except in a prefix
    LM, which reads the whole sequence in both directions.

    Args:
        sequence: the text; for an encoder-decoder the target, which begins with the start symbol.
        source: input of the encoder of an encoder-decoder; None means the sequence.

    Returns:
        Weights by stack: "encoder" and "decoder" if the model has them, and "cross", from target to
        source, for an encoder-decoder.

    Raises:
        ValueError: The sequence or the source is empty or longer than the context, or a source is
            given to a model of one stack.
    """
    is_encoder_decoder = model.encoder is not None and model.decoder is not None
    if source is not None and not is_encoder_decoder:
        raise ValueError(
            "This model is not an encoder-decoder model, so it cannot read a source sequence: omit "
            "the source sequence."
        )
    device, inputs = model.embedding.weight.device, []
    for name, ids in (("The sequence", sequence), ("The source", source)):
        if ids is not None and not len(ids):
            raise ValueError(f"{name} is empty: provide at least one token.")
        tokens = check_token_ids(sequence if ids is None else ids, model.config.vocab_size, name)
        inputs.append(torch.from_numpy(tokens[None]).to(device))  # (1, T)
    prefix_lengths = make_prefix_lm_lengths(model, [len(sequence)])
    with use_reference_kernels(model) as weights_by_module:
        source_ids = inputs[1] if is_encoder_decoder else None
        model.compute_hidden_states(Batch(inputs[0], source=source_ids, prefix=prefix_lengths))
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
