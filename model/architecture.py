"""The transformer (Vaswani et al. 2017): feed-forward, block, stack, and the model made of stacks.

Shapes: B sequences, T tokens, d model size, H heads, D head size, V vocabulary.
A decoder-only model is one causal stack, an encoder-only model one bidirectional stack, an
encoder-decoder both, the second with cross-attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.attention import Attention
from model.batch import Batch
from model.config import OBJECTIVES, ModelConfig, Objective
from model.kernels import Linear
from model.loss import linear_cross_entropy, token_cross_entropy
from model.masks import Mask, MaskSpec
from model.positions import Rotation, rotary, sinusoids

#: All but SwiGLU, which is no function of one input.
ACTIVATIONS: dict[str, nn.Module] = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}


class FeedForward(nn.Module):
    """Position-wise: activation(x W1 + b1) W2 + b2, or SwiGLU, (silu(x Wg) * x W1) W2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activate = ACTIVATIONS.get(config.activation)
        gates = 2 if config.activation == "swiglu" else 1
        self.up = Linear(config.d_model, gates * config.hidden, bias=config.bias)
        self.down = Linear(config.hidden, config.d_model, bias=config.bias)

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
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        rotation: Rotation | None = None,
        memory: Tensor | None = None,
        real: Mask = None,
    ) -> Tensor:
        """x (B, T, d) to (B, T, d); ``memory`` (B, Tk, d) is the encoder's output, ``real`` what
        of it may be seen."""
        x = self.residual(x, self.attention_norm, lambda h: self.attention(h, mask, rotation))
        if memory is not None:
            x = self.residual(x, self.cross_norm, lambda h: self.cross(h, real, None, memory))
        return self.residual(x, self.feed_forward_norm, self.feed_forward)

    def residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the sublayer makes of x, added to it, with the norm where the config wants it."""
        if self.pre:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Blocks, one over the other; with pre-norm a last norm on top."""

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool) -> None:
        super().__init__()
        self.causal = causal
        # What FlexAttention's kernel takes: heads of 16 and more, without dropout.
        self.blocks_fit = config.head_dim >= 16 and not config.attention_dropout
        self.recompute = False  # keep a block's input for the backward pass, not what is inside
        self.blocks = nn.ModuleList(Block(config, cross) for _ in range(config.n_layers))
        self.norm = make_norm(config) if config.norm_position == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: MaskSpec,
        rotation: Rotation | None = None,
        memory: Tensor | None = None,
        memory_mask: MaskSpec | None = None,
    ) -> Tensor:
        """x (B, T, d) to (B, T, d); the masks are lowered once for all layers.

        ``memory`` (B, Tk, d) is the encoder's output, ``memory_mask`` what may be seen of it.
        """
        lowered = mask.lower(x, x, self.blocks_fit)
        real: Mask = None
        if memory is not None and memory_mask is not None:
            real = memory_mask.lower(x, memory, self.blocks_fit)
        for block in self.blocks:
            run: Callable[..., Tensor] = block
            if self.recompute and torch.is_grad_enabled():
                run = partial(checkpoint, block, use_reentrant=False)
            x = run(x, lowered, rotation, memory, real)
        return self.norm(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Embeddings, one or two stacks, and the output layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.table_size, config.d_model)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context, config.d_model)
        if config.token_types:
            self.type_embedding = nn.Embedding(config.token_types, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        has_encoder = config.architecture != "decoder"
        has_decoder = config.architecture != "encoder"
        self.encoder = Stack(config, causal=False, cross=False) if has_encoder else None
        self.decoder = Stack(config, causal=True, cross=has_encoder) if has_decoder else None
        self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.transform: nn.Module = nn.Identity()
        if config.head_transform:
            matrix = Linear(config.d_model, config.d_model, bias=config.bias)
            kind = nn.Tanh() if config.labels else ACTIVATIONS[config.activation]
            norm = [] if config.labels else [make_norm(config)]
            self.transform = nn.Sequential(matrix, kind, *norm)
        outputs = len(config.labels) or config.table_size
        self.head = Linear(config.d_model, outputs, bias=config.head_bias)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.cross_entropy: Callable[..., Tensor] = linear_cross_entropy
        named = (name for name, trained in OBJECTIVES.items() if trained == config.architecture)
        self.objective: Objective | None = next(named)  # a prefix LM's prompts are read both ways
        self.pairs = False  # trained on pairs, it answers a source and goes on with no text
        initialise(self)

    def forward(self, batch: Batch) -> Tensor:
        """What the output layer reads, (B, T, d): the states, transformed where it does that."""
        hidden = self.transform(self.states(batch))
        return self.dropout(hidden) if self.config.labels else hidden  # as BERT's classifiers

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer: scores of the next token, or of labels, (..., V), from ``hidden``
        (..., d)."""
        return self.head(hidden)[..., : self.config.outputs]  # type: ignore[no-any-return]

    def loss(self, batch: Batch, z_loss: float = 0.0) -> Tensor:
        """Sum over the batch of weight x cross-entropy, in nats; ``z_loss``: see the loss."""
        hidden = self(batch)  # first: of a sharded model it gathers what the output layer needs
        hidden, *answers = map(batch.where_predicted, (hidden, *batch.answers()))
        output = self.head.weight, self.head.bias
        return self.cross_entropy(hidden, *output, *answers, z_loss, self.config.outputs)

    @torch.no_grad()
    def token_losses(self, batch: Batch) -> Tensor:
        """The cross-entropy of each target, (B, T), in nats, unweighted and without gradient; 0
        where none is predicted."""
        hidden, (targets, _) = self(batch), batch.answers()
        asked, answers = batch.where_predicted(hidden), batch.where_predicted(targets)
        output = self.head.weight, self.head.bias
        found = token_cross_entropy(asked, *output, answers, self.config.outputs)
        if batch.predicted is None:
            return found
        everywhere = found.new_zeros(targets.numel()).scatter_(0, batch.predicted, found)
        return everywhere.view(targets.shape)

    def states(self, batch: Batch) -> Tensor:
        """States of the last layer, (B, T, d)."""
        if self.decoder is None:
            return self._read(self.encoder, batch)
        if self.encoder is None and batch.source is None:
            return self._read(self.decoder, batch)
        segments = {"segments": batch.segments, "key_segments": batch.source_segments}
        seen = MaskSpec(False, keys=batch.source_keys, **segments)
        return self._read(self.decoder, batch, self.encode(batch), seen)

    def encode(self, batch: Batch) -> Tensor:
        """The encoder's states of the batch's source, (B, S, d)."""
        if self.encoder is None:
            raise ValueError("A decoder-only model reads no source: it has no encoder.")
        if batch.source is None:
            raise ValueError("An encoder-decoder needs a source.")
        given = {"segments": batch.source_segments, "positions": batch.source_positions}
        return self._read(self.encoder, Batch(batch.source, keys=batch.source_keys, **given))

    def _read(
        self, stack: Stack | None, batch: Batch, memory: Tensor | None = None,
        memory_mask: MaskSpec | None = None,
    ) -> Tensor:  # fmt: skip
        assert stack is not None
        x, rotation = self.embed(batch.ids, batch.positions, batch.token_types)
        # Padding stands behind the text, where no real token of a causal stack looks: without a
        # mask of its own attention keeps the kernel that is causal by itself.
        keys = None if stack.causal else batch.keys
        mask = MaskSpec(stack.causal, batch.prefix, keys, batch.segments)
        return stack(x, mask, rotation, memory, memory_mask)  # type: ignore[no-any-return]

    def embed(
        self, ids: Tensor, positions: Tensor | None, token_types: Tensor | None = None
    ) -> tuple[Tensor, Rotation | None]:
        """Embeddings (B, T, d) of tokens at ``positions``, by default 0 ... T-1, and the rotation
        of queries and keys, where positions are rotary."""
        if positions is None:
            if ids.shape[1] > self.config.context:
                raise ValueError(
                    f"A sequence of {ids.shape[1]} tokens exceeds the context of "
                    f"{self.config.context}: cut it, or score it in windows."
                )
            positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)  # (1, T)
        x = self.embedding(ids)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        rotation = None
        if self.config.positions == "learned":
            x = x + self.position_embedding(positions)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoids(positions, self.config.d_model).to(x.dtype)
        else:
            rotation = rotary(positions, self.config.head_dim, self.config.rope_theta)
        if self.config.token_types:
            types = torch.zeros_like(ids) if token_types is None else token_types
            x = x + self.type_embedding(types)
        return self.dropout(self.embedding_norm(x)), rotation

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


def _group(name: str) -> str:
    parts = name.split(".")
    if parts[0] in ("position_embedding", "type_embedding"):
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
    for stack in filter(None, (model.encoder, model.decoder)):
        named = stack.named_parameters()
        writers = [w for n, w in named if n.endswith(("out.weight", "down.weight"))]
        for weight in writers:
            nn.init.normal_(weight, std=0.02 / math.sqrt(len(writers)))
