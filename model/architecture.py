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
from model.config import ARCHITECTURE_BY_OBJECTIVE, ModelConfig, Objective
from model.kernels import Linear
from model.loss import compute_token_cross_entropy, sum_linear_cross_entropy
from model.masks import AttentionMask, MaskSpec
from model.positions import RotaryCosSin, compute_rotary_cos_sin, compute_sinusoids

#: All but SwiGLU, which is no function of one input.
ACTIVATION_MODULES: dict[str, nn.Module] = {
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
        self.activate = ACTIVATION_MODULES.get(config.activation)
        projection_count = 2 if config.activation == "swiglu" else 1
        self.up = Linear(
            config.d_model, projection_count * config.feed_forward_width, bias=config.bias
        )
        self.down = Linear(config.feed_forward_width, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)  # (B, T, d_ff), twice as wide for SwiGLU: gate, then value
        if self.activate is None:
            gate, value = h.chunk(2, dim=-1)
            return self.down(F.silu(gate) * value)
        return self.down(self.activate(h))


def make_norm_layer(config: ModelConfig) -> nn.Module:
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

    def __init__(self, config: ModelConfig, has_cross_attention: bool) -> None:
        super().__init__()
        self.is_pre_norm = config.norm_position == "pre"
        self.attention_norm, self.attention = make_norm_layer(config), Attention(config)
        if has_cross_attention:
            self.cross_norm, self.cross = make_norm_layer(config), Attention(config)
        self.feed_forward_norm, self.feed_forward = make_norm_layer(config), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        rotation: RotaryCosSin | None = None,
        memory: Tensor | None = None,
        memory_mask: AttentionMask = None,
    ) -> Tensor:
        """x (B, T, d) to (B, T, d); ``memory`` (B, Tk, d) is the encoder's output, ``real`` what
        of it may be seen."""
        x = self.add_residual(x, self.attention_norm, lambda h: self.attention(h, mask, rotation))
        if memory is not None:
            x = self.add_residual(
                x, self.cross_norm, lambda h: self.cross(h, memory_mask, None, memory)
            )
        return self.add_residual(x, self.feed_forward_norm, self.feed_forward)

    def add_residual(
        self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """What the sublayer makes of x, added to it, with the norm where the config wants it."""
        if self.is_pre_norm:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Blocks, one over the other; with pre-norm a last norm on top."""

    def __init__(self, config: ModelConfig, *, causal: bool, has_cross_attention: bool) -> None:
        super().__init__()
        self.causal = causal
        # What FlexAttention's kernel takes: heads of 16 and more, without dropout.
        self.supports_flex_attention = config.head_dim >= 16 and not config.attention_dropout
        self.recompute = False  # keep a block's input for the backward pass, not what is inside
        self.blocks = nn.ModuleList(
            Block(config, has_cross_attention) for _ in range(config.n_layers)
        )
        self.norm = make_norm_layer(config) if config.norm_position == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: MaskSpec,
        rotation: RotaryCosSin | None = None,
        memory: Tensor | None = None,
        memory_mask: MaskSpec | None = None,
    ) -> Tensor:
        """x (B, T, d) to (B, T, d); the masks are lowered once for all layers.

        ``memory`` (B, Tk, d) is the encoder's output, ``memory_mask`` what may be seen of it.
        """
        attention_mask = mask.to_kernel_mask(x, x, self.supports_flex_attention)
        cross_mask: AttentionMask = None
        if memory is not None and memory_mask is not None:
            cross_mask = memory_mask.to_kernel_mask(x, memory, self.supports_flex_attention)
        for block in self.blocks:
            run_block: Callable[..., Tensor] = block
            if self.recompute and torch.is_grad_enabled():
                run_block = partial(checkpoint, block, use_reentrant=False)
            x = run_block(x, attention_mask, rotation, memory, cross_mask)
        return self.norm(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Embeddings, one or two stacks, and the output layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context, config.d_model)
        if config.token_types:
            self.type_embedding = nn.Embedding(config.token_types, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        has_encoder = config.architecture != "decoder"
        has_decoder = config.architecture != "encoder"
        self.encoder = (
            Stack(config, causal=False, has_cross_attention=False) if has_encoder else None
        )
        self.decoder = (
            Stack(config, causal=True, has_cross_attention=has_encoder) if has_decoder else None
        )
        self.embedding_norm = make_norm_layer(config) if config.embedding_norm else nn.Identity()
        self.transform: nn.Module = nn.Identity()
        if config.head_transform:
            matrix = Linear(config.d_model, config.d_model, bias=config.bias)
            activation = nn.Tanh() if config.labels else ACTIVATION_MODULES[config.activation]
            norm = [] if config.labels else [make_norm_layer(config)]
            self.transform = nn.Sequential(matrix, activation, *norm)
        outputs = len(config.labels) or config.padded_vocab_size
        self.head = Linear(config.d_model, outputs, bias=config.head_bias)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.cross_entropy: Callable[..., Tensor] = sum_linear_cross_entropy
        trainable_objectives = (
            name
            for name, architecture in ARCHITECTURE_BY_OBJECTIVE.items()
            if architecture == config.architecture
        )
        self.objective: Objective | None = next(
            trainable_objectives
        )  # a prefix LM's prompts are read both ways
        self.is_trained_on_pairs = (
            False  # trained on pairs, it answers a source and goes on with no text
        )
        initialise_weights(self)

    def forward(self, batch: Batch) -> Tensor:
        """What the output layer reads, (B, T, d): the states, transformed where it does that."""
        hidden = self.transform(self.compute_hidden_states(batch))
        return self.dropout(hidden) if self.config.labels else hidden  # as BERT's classifiers

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """The output layer: scores of the next token, or of labels, (..., V), from ``hidden``
        (..., d)."""
        return self.head(hidden)[..., : self.config.output_size]  # type: ignore[no-any-return]

    def compute_loss_sum(self, batch: Batch, z_loss: float = 0.0) -> Tensor:
        """Sum over the batch of weight x cross-entropy, in nats; ``z_loss``: see the loss."""
        hidden = self(batch)  # first: of a sharded model it gathers what the output layer needs
        hidden, *targets_and_weights = map(
            batch.select_predicted, (hidden, *batch.require_targets_and_weights())
        )
        output_weights = self.head.weight, self.head.bias
        return self.cross_entropy(
            hidden, *output_weights, *targets_and_weights, z_loss, self.config.output_size
        )

    @torch.no_grad()
    def compute_token_losses(self, batch: Batch) -> Tensor:
        """The cross-entropy of each target, (B, T), in nats, unweighted and without gradient; 0
        where none is predicted."""
        hidden, (targets, _) = self(batch), batch.require_targets_and_weights()
        predicted_hidden, predicted_targets = (
            batch.select_predicted(hidden),
            batch.select_predicted(targets),
        )
        output_weights = self.head.weight, self.head.bias
        predicted_losses = compute_token_cross_entropy(
            predicted_hidden, *output_weights, predicted_targets, self.config.output_size
        )
        if batch.predicted_positions is None:
            return predicted_losses
        all_losses = predicted_losses.new_zeros(targets.numel()).scatter_(
            0, batch.predicted_positions, predicted_losses
        )
        return all_losses.view(targets.shape)

    def compute_hidden_states(self, batch: Batch) -> Tensor:
        """States of the last layer, (B, T, d)."""
        if self.decoder is None:
            return self._run_stack(self.encoder, batch)
        if self.encoder is None and batch.source is None:
            return self._run_stack(self.decoder, batch)
        segments = {"segments": batch.segments, "key_segments": batch.source_segments}
        memory_mask = MaskSpec(False, key_mask=batch.source_attention_mask, **segments)
        return self._run_stack(self.decoder, batch, self.encode_source(batch), memory_mask)

    def encode_source(self, batch: Batch) -> Tensor:
        """The encoder's states of the batch's source, (B, S, d)."""
        if self.encoder is None:
            raise ValueError("A decoder-only model reads no source: it has no encoder.")
        if batch.source is None:
            raise ValueError("An encoder-decoder needs a source.")
        source_layout = {"segments": batch.source_segments, "positions": batch.source_positions}
        return self._run_stack(
            self.encoder,
            Batch(batch.source, attention_mask=batch.source_attention_mask, **source_layout),
        )

    def _run_stack(
        self,
        stack: Stack | None,
        batch: Batch,
        memory: Tensor | None = None,
        memory_mask: MaskSpec | None = None,
    ) -> Tensor:
        assert stack is not None
        x, rotation = self.embed_tokens(batch.ids, batch.positions, batch.token_types)
        # Padding stands behind the text, where no real token of a causal stack looks: without a
        # mask of its own attention keeps the kernel that is causal by itself.
        attention_mask = None if stack.causal else batch.attention_mask
        mask = MaskSpec(stack.causal, batch.prefix, attention_mask, batch.segments)
        return stack(x, mask, rotation, memory, memory_mask)  # type: ignore[no-any-return]

    def embed_tokens(
        self, ids: Tensor, positions: Tensor | None, token_types: Tensor | None = None
    ) -> tuple[Tensor, RotaryCosSin | None]:
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
            x = x + compute_sinusoids(positions, self.config.d_model).to(x.dtype)
        else:
            rotation = compute_rotary_cos_sin(
                positions, self.config.head_dim, self.config.rope_theta
            )
        if self.config.token_types:
            types = torch.zeros_like(ids) if token_types is None else token_types
            x = x + self.type_embedding(types)
        return self.dropout(self.embedding_norm(x)), rotation

    def count_parameters(self) -> dict[str, int]:
        """Parameters by group; the groups add up to ``total``. A tied head counts 0."""
        counts_by_group = dict.fromkeys(
            ("embedding", "positions", "attention", "feed_forward", "norms", "head"), 0
        )
        for name, parameter in self.named_parameters():  # shared parameters appear once
            counts_by_group[_get_parameter_group(name)] += parameter.numel()
        counts_by_group["total"] = sum(counts_by_group.values())
        assert counts_by_group["total"] == sum(p.numel() for p in self.parameters())
        return counts_by_group


def _get_parameter_group(parameter_name: str) -> str:
    parts = parameter_name.split(".")
    if parts[0] in ("position_embedding", "type_embedding"):
        return "positions"
    if parts[0] in ("embedding", "head", "transform"):
        return parts[0].replace("transform", "head")
    if any(part.endswith("norm") for part in parts):
        return "norms"
    return "feed_forward" if "feed_forward" in parts else "attention"


def initialise_weights(model: Transformer) -> None:
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
        named_parameters = stack.named_parameters()
        residual_weights = [
            parameter
            for name, parameter in named_parameters
            if name.endswith(("out.weight", "down.weight"))
        ]
        for weight in residual_weights:
            nn.init.normal_(weight, std=0.02 / math.sqrt(len(residual_weights)))
