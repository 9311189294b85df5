"""The transformer (Vaswani et al. 2017): attention, block, stack, and the model made of stacks.

Shapes: B sequences, T tokens, d model size, H heads, D head size, V vocabulary.
A decoder-only model is one causal stack, an encoder-only model one bidirectional stack, an
encoder-decoder both, the second with cross-attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.attention import Attention, Cache, Call, LayerCache, Mask, Rotation, Trace
from model.config import ModelConfig
from model.loss import linear_cross_entropy, token_cross_entropy
from model.masks import MaskSpec
from model.positions import rotary, sinusoids

#: All but SwiGLU, which is no function of one input.
ACTIVATIONS: dict[str, nn.Module] = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
}


class FeedForward(nn.Module):
    """Position-wise: activation(x W1 + b1) W2 + b2, or SwiGLU, (silu(x Wg) * x W1) W2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activate = ACTIVATIONS.get(config.activation)
        gates = 2 if config.activation == "swiglu" else 1
        self.up = nn.Linear(config.d_model, gates * config.hidden, bias=config.bias)
        self.down = nn.Linear(config.hidden, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)  # (B, T, d_ff), twice as wide for SwiGLU: gate, then value
        if self.activate is None:
            gate, value = h.chunk(2, dim=-1)
            return self.down(F.silu(gate) * value)
        return self.down(self.activate(h))


def make_norm(config: ModelConfig) -> nn.Module:
    """Layer norm, gamma (x - mean) / std + beta, or RMS norm, gamma x / rms.

    RMS norm: Zhang, Sennrich 2019.
    """
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


class Block(nn.Module):
    """Self-attention, cross-attention where asked for, feed-forward; each with residual and norm.

    Post-norm is the original, norm(x + sublayer(x)); pre-norm is x + sublayer(norm(x)).
    """

    def __init__(self, config: ModelConfig, cross: bool) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.attention_norm, self.attention = make_norm(config), Attention(config)
        if cross:
            self.cross_norm, self.cross = make_norm(config), Attention(config)
        self.feed_forward_norm, self.feed_forward = make_norm(config), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        call: Call,
        cache: LayerCache | None = None,
        memory: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        h = self.attention(self.attention_norm(x) if self.pre else x, call, cache)
        x = self._add(x, h, self.attention_norm)
        if memory is not None:
            h = self.cross(self.cross_norm(x) if self.pre else x, call, memory=memory)
            x = self._add(x, h, self.cross_norm)
        h = self.feed_forward(self.feed_forward_norm(x) if self.pre else x)
        return self._add(x, h, self.feed_forward_norm)

    def _add(self, x: Tensor, sublayer: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(sublayer)
        return x if self.pre else norm(x)


class Stack(nn.Module):
    """Blocks, one over the other; with pre-norm a last norm on top."""

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool) -> None:
        super().__init__()
        self.causal, self.head_dim = causal, config.head_dim
        self.recompute = False  # keep a block's input for the backward pass, not what is inside
        self.blocks = nn.ModuleList(Block(config, cross) for _ in range(config.n_layers))
        self.norm = make_norm(config) if config.norm_position == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: MaskSpec,
        *,
        rotation: Rotation | None = None,
        memory: Tensor | None = None,
        memory_keys: Tensor | None = None,
        cache: Cache | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, T, d) to (B, T, d); the masks are lowered once for all layers.

        ``memory`` (B, Tk, d) is the encoder's output and ``memory_keys`` the padding mask of its
        source; with a cache that already holds them neither is given.
        """
        tokens = x.shape[1]
        length = tokens if cache is None else cache.length
        plain = mask.only_causal and length == tokens
        blockwise = cache is None and trace is None and mask.is_blockwise(tokens, self.head_dim)
        lowered: Mask = None
        if x.is_cuda and blockwise:
            lowered = mask.blocks(x.shape[0], tokens, x.device)
        elif not plain:
            lowered = mask.dense(tokens, length, x.device)
        memories: Sequence[Tensor | tuple[Tensor, Tensor] | None] = [memory] * len(self.blocks)
        if cache is not None:
            if memory is not None:
                cache.memory = [cast(Block, b).cross.project_memory(memory) for b in self.blocks]
                cache.memory_keys = memory_keys
            memories, memory_keys = cache.memory or memories, cache.memory_keys
        crossed = None if memory_keys is None else memory_keys[:, None, None]  # (B, 1, 1, Tk)
        slots = None if cache is None else cache.slots
        call = Call(plain, lowered, crossed, rotation, slots, length, trace)
        again = self.recompute and torch.is_grad_enabled() and trace is None
        for i, block in enumerate(self.blocks):
            if trace is not None:
                trace.hidden.append(x.detach())
            run = partial(checkpoint, block, use_reentrant=False) if again else block
            x = run(x, call, None if cache is None else cache.layers[i], memories[i])
        if trace is not None:
            trace.hidden.append(x.detach())
        return self.norm(x)


class Transformer(nn.Module):
    """Embeddings, one or two stacks, and the output layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        has_encoder = config.architecture != "decoder"
        has_decoder = config.architecture != "encoder"
        self.encoder = Stack(config, causal=False, cross=False) if has_encoder else None
        self.decoder = Stack(config, causal=True, cross=has_encoder) if has_decoder else None
        self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.transform: nn.Module = nn.Identity()
        if config.head_transform:
            matrix = nn.Linear(config.d_model, config.d_model, bias=config.bias)
            kind = ACTIVATIONS[config.activation]
            self.transform = nn.Sequential(matrix, kind, make_norm(config))
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=config.head_bias)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        initialise(self)

    def forward(
        self,
        ids: Tensor,
        *,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
        z_loss: float = 0.0,
        **inputs: Any,
    ) -> Tensor:
        """Logits (B, T, V); or, given targets and weights (B, T), the summed loss in nats; or,
        given targets alone, the nats of each, (B, T), which have no gradient."""
        hidden = self.hidden(ids, **inputs)
        if targets is None:
            logits: Tensor = self.head(hidden)
            return logits
        output = self.head.weight, self.head.bias
        if weights is None:
            return token_cross_entropy(hidden, *output, targets)
        return linear_cross_entropy(hidden, *output, targets, weights, z_loss)

    def hidden(self, ids: Tensor, **inputs: Any) -> Tensor:
        """What the output layer reads, (B, T, d): the states, transformed where it does that."""
        return self.transform(self.states(ids, **inputs))  # type: ignore[no-any-return]

    def states(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        keys: Tensor | None = None,
        source: Tensor | None = None,
        source_keys: Tensor | None = None,
        cache: Cache | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """States of the last layer, (B, T, d).

        ids, source: (B, T) token ids; the source feeds the encoder of an encoder-decoder.
        positions, segments, prefix, keys: see MaskSpec; positions default to 0 ... T-1.
        """
        memory = None
        if source is not None:
            memory = self.encode(source, keys=source_keys)
        elif self.config.architecture == "encoder_decoder" and not (cache and cache.memory):
            raise ValueError("An encoder-decoder needs a source.")
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        mask = _mask(stack.causal, positions, cache, prefix=prefix, keys=keys, segments=segments)
        beside = {"memory": memory, "memory_keys": source_keys, "cache": cache, "trace": trace}
        return self._run(stack, ids, mask, positions, **beside)

    def encode(
        self, source: Tensor, *, keys: Tensor | None = None, trace: Trace | None = None
    ) -> Tensor:
        """The encoder's states of a source (B, T), of which ``keys`` marks the real tokens."""
        if self.encoder is None:
            raise ValueError("A decoder-only model reads no source: it has no encoder.")
        return self._run(self.encoder, source, MaskSpec(keys=keys), trace=trace)

    def _run(
        self,
        stack: Stack,
        ids: Tensor,
        mask: MaskSpec,
        positions: Tensor | None = None,
        **beside: Any,
    ) -> Tensor:
        """Embeddings and ``stack``, which is given what stands ``beside``."""
        if positions is None:
            if ids.shape[1] > self.config.context:
                raise ValueError(
                    f"A sequence of {ids.shape[1]} tokens exceeds the context of "
                    f"{self.config.context}: cut it, or score it in windows."
                )
            positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)  # (1, T)
        x = self.embedding(ids)
        rotation = None
        if self.config.positions == "learned":
            x = x + self.position_embedding(positions)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoids(positions, self.config.d_model).to(x.dtype)
        else:
            rotation = rotary(positions, self.config.head_dim, self.config.rope_theta)
        x = self.dropout(self.embedding_norm(x))
        return stack(x, mask, rotation=rotation, **beside)  # type: ignore[no-any-return]

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for ``batch`` sequences of up to ``capacity`` tokens."""
        assert self.decoder is not None
        shape = (batch, self.config.kv_heads, capacity, self.config.head_dim)
        weight = self.embedding.weight
        layers = [
            LayerCache(weight.new_zeros(shape), weight.new_zeros(shape))
            for _ in self.decoder.blocks
        ]
        return Cache(layers, 0, slice(0, 0))

    def parameter_count(self) -> dict[str, int]:
        """Parameters by group; the groups add up to ``total``. A tied head counts 0."""
        groups = dict.fromkeys(
            ("embedding", "positions", "attention", "feed_forward", "norms", "head"), 0
        )
        for name, parameter in self.named_parameters():  # shared parameters appear once
            groups[_group(name)] += parameter.numel()
        groups["total"] = sum(groups.values())
        assert groups["total"] == sum(p.numel() for p in self.parameters())
        return groups

    def flops_per_token(self, context: int) -> int:
        """Floating-point operations of a training step per token: 6N + 12LdT.

        N leaves out the positions, and the token embedding unless it is also the output layer;
        attention is counted in full, not halved for causality (PaLM, appendix B).
        """
        count = self.parameter_count()
        n = count["total"] - count["positions"]
        if not self.config.tie_embeddings:
            n -= count["embedding"]
        attentions = sum(isinstance(module, Attention) for module in self.modules())
        return 6 * n + 12 * attentions * self.config.d_model * context


def _mask(
    causal: bool, positions: Tensor | None, cache: Cache | None, **parts: Tensor | None
) -> MaskSpec:
    """The mask of a call; with a cache it says where among the cached keys the queries stand."""
    if cache is None or (isinstance(cache.slots, slice) and cache.slots.start == 0):
        return MaskSpec(causal, **parts)
    if isinstance(cache.slots, slice) and cache.slots.stop - cache.slots.start == 1:
        return MaskSpec(False, **parts)  # the newest of all rows alike: everything is visible
    return MaskSpec(causal, query_positions=positions, **parts)


def _group(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "position_embedding":
        return "positions"
    if parts[0] in ("embedding", "head", "transform"):
        return parts[0].replace("transform", "head")
    if any(part.endswith("norm") for part in parts):
        return "norms"
    return "feed_forward" if "feed_forward" in parts else "attention"


def initialise(model: Transformer) -> None:
    """All weights, as in GPT-2 (Radford et al. 2019).

    Matrices and embeddings are normal with standard deviation 0.02, biases 0, norms 1. The two or
    three matrices of a block that write to the residual stream are scaled down by the square root
    of their number in the whole stack, so that the stream's variance does not grow with depth.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for stack in (model.encoder, model.decoder):
        if stack is None:
            continue
        writers = [
            w for n, w in stack.named_parameters() if n.endswith(("out.weight", "down.weight"))
        ]
        for weight in writers:
            nn.init.normal_(weight, std=0.02 / math.sqrt(len(writers)))
