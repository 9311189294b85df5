"""Inside the model: what each head attends to while a sequence is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model.architecture import Transformer
from model.attention import Trace
from model.decoding.score import check_ids


@torch.inference_mode()
def attention_weights(
    model: Transformer, sequence: Sequence[int]
) -> dict[str, list[NDArray[np.float32]]]:
    """Attention weights by stack, one (H, T, T) per layer: heads, queries, keys.

    A row sums to 1 over its keys; in a decoder it is 0 behind its query. The stacks are those that
    the model has: "encoder", "decoder", and of an encoder-decoder "cross" too. There the encoder
    reads the sequence, and the decoder the same sequence as its target. An empty sequence and one
    longer than the context are a ValueError.
    """
    if not len(sequence):
        raise ValueError("An empty sequence has nothing to attend to.")
    tokens = check_ids(sequence, model.config.vocab_size, "The sequence")
    ids = torch.from_numpy(tokens[None]).to(model.embedding.weight.device)  # (1, T)
    found: dict[str, list[torch.Tensor]] = {}
    if model.encoder is not None:
        trace = Trace()
        model.encode(ids, trace=trace)
        found["encoder"] = trace.attention
    if model.decoder is not None:
        trace = Trace()
        model.states(ids, source=None if model.encoder is None else ids, trace=trace)
        found["decoder"] = trace.attention
        if trace.cross:
            found["cross"] = trace.cross
    return {
        stack: [layer[0].float().cpu().numpy() for layer in layers]
        for stack, layers in found.items()
    }
