"""Define the transformer (Vaswani et al. 2017): feed-forward layer, block, stack and whole model.

Shapes: B sequences, T tokens, d model size, H heads, D head size, V vocabulary.
A decoder-only model is one causal stack and an encoder-only model one bidirectional stack. An
encoder-decoder has both; its decoder has cross-attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hallmark.model.attention import Attention
from hallmark.model.batch import Batch
from hallmark.model.config import ARCHITECTURE_BY_OBJECTIVE, ModelConfig, Objective
from hallmark.model.kernels import Linear
from hallmark.model.loss import compute_token_cross_entropy, sum_linear_cross_entropy
from hallmark.model.masks import AttentionMask, MaskSpec
from hallmark.model.positions import RotaryCosSin, compute_rotary_cos_sin, compute_sinusoids

#: Every activation except SwiGLU, which takes two inputs.
ACTIVATION_MODULES: dict[str, nn.Module] = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}


class FeedForward(nn.Module):
    """Compute activation(x W1 + b1) W2 + b2 at each position, or SwiGLU: (silu(x Wg) * x W1) W2."""

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
            activated = F.silu(gate) * value
        else:
            activated = self.activate(h)
        output: Tensor = self.down(activated)
        return output


def make_norm_layer(config: ModelConfig) -> nn.Module:
    """Build layer norm, gamma (x - mean) / std + beta, or RMS norm, gamma x / rms.

    RMS norm: Zhang & Sennrich 2019.
    """
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


class Block(nn.Module):
    """Apply self-attention, optional cross-attention and feed-forward, each with residual and norm.

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
        """Transform x (B, T, d) to (B, T, d).

        Args:
            x: hidden states, (B, T, d).
            mask: which positions of x may attend to which.
            rotation: cosines and sines of rotary positions, if the model uses them.
            memory: output of the encoder, (B, Tk, d), for cross-attention.
            memory_mask: which positions of ``memory`` may be attended to.
        """
        x = self.add_residual(x, self.attention_norm, lambda h: self.attention(h, mask, rotation))
        if memory is not None:
            x = self.add_residual(
                x, self.cross_norm, lambda h: self.cross(h, memory_mask, None, memory)
            )
        return self.add_residual(x, self.feed_forward_norm, self.feed_forward)

    def add_residual(
        self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Add the sublayer's output to x, with the norm before the sublayer or after the sum."""
        total: Tensor
        if self.is_pre_norm:
            total = x + self.dropout(sublayer(norm(x)))
        else:
            total = norm(x + self.dropout(sublayer(x)))
        return total


class Stack(nn.Module):
    """Apply the blocks in sequence; with pre-norm, a final norm follows."""

    def __init__(self, config: ModelConfig, *, causal: bool, has_cross_attention: bool) -> None:
        super().__init__()
        self.causal = causal
        # FlexAttention's kernel needs heads of size 16 or more, and no dropout.
        self.supports_flex_attention = config.head_dim >= 16 and not config.attention_dropout
        self.recompute = False  # save only each block's input for the backward pass
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
        """Transform x (B, T, d) to (B, T, d); build the kernel masks once for all layers.

        Args:
            x: embedded tokens, (B, T, d).
            mask: which positions of x may attend to which.
            rotation: cosines and sines of rotary positions, if the model uses them.
            memory: output of the encoder, (B, Tk, d), for cross-attention.
            memory_mask: which positions of ``memory`` may be attended to.
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


class EmbeddedTokens(NamedTuple):
    """Input of the first block.

    Attributes:
        states: sums of the embeddings, (B, T, d).
        rotation: rotation of queries and keys if positions are rotary, else None.
    """

    states: Tensor
    rotation: RotaryCosSin | None


class Transformer(nn.Module):
    """A transformer: embeddings, one or two stacks, and the output layer.

    Attributes:
        config: sizes and kinds of the layers.
        encoder: bidirectional stack, or None for a decoder-only model.
        decoder: causal stack, or None for an encoder-only model.
        transform: layers between the last state and the output layer, often the identity.
        head: output layer; shares the embedding's weight if embeddings are tied.
        cross_entropy: function that computes the loss from hidden states and targets.
        objective: objective of the training; a prefix LM reads its prompts bidirectionally.
        is_trained_on_pairs: True if the model learned source-target pairs. It then maps a source to
            a target, and does not continue a text.
    """

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
        self.objective: Objective | None = next(trainable_objectives)
        self.is_trained_on_pairs = False
        initialise_weights(self)

    def forward(self, batch: Batch) -> Tensor:
        """Compute the output layer's input, (B, T, d), from the last states."""
        hidden: Tensor = self.transform(self.compute_hidden_states(batch))
        if self.config.labels:  # like BERT's classifiers
            hidden = self.dropout(hidden)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Score the next tokens, or the labels: logits (..., V) from ``hidden`` (..., d)."""
        return self.head(hidden)[..., : self.config.output_size]  # type: ignore[no-any-return]

    def compute_loss_sum(self, batch: Batch, z_loss: float = 0.0) -> Tensor:
        """Sum weight x cross-entropy over the batch, in nats.

        Args:
            batch: tokens with targets and weights.
            z_loss: weight of the squared log-partition, see
                ``model.loss.sum_linear_cross_entropy``.

        Raises:
            ValueError: The batch has no targets or no weights.
        """
        hidden = self(batch)  # first: a sharded model then gathers the output layer's weights
        hidden, *targets_and_weights = map(
            batch.select_predicted, (hidden, *batch.require_targets_and_weights())
        )
        output_weights = self.head.weight, self.head.bias
        return self.cross_entropy(
            hidden, *output_weights, *targets_and_weights, z_loss, self.config.output_size
        )

    @torch.no_grad()
    def compute_token_losses(self, batch: Batch) -> Tensor:
        """Compute the unweighted cross-entropy of each target in nats, without gradients.

        Returns:
            (B, T) float32; 0 at positions outside ``batch.predicted_positions``.

        Raises:
            ValueError: The batch has no targets or no weights.
        """
        hidden = self(batch)
        targets, _ = batch.require_targets_and_weights()
        predicted_losses = compute_token_cross_entropy(
            batch.select_predicted(hidden),
            self.head.weight,
            self.head.bias,
            batch.select_predicted(targets),
            self.config.output_size,
        )
        if batch.predicted_positions is None:
            return predicted_losses
        all_losses = predicted_losses.new_zeros(targets.numel()).scatter_(
            0, batch.predicted_positions, predicted_losses
        )
        return all_losses.view(targets.shape)

    def compute_hidden_states(self, batch: Batch) -> Tensor:
        """Compute the states of the last layer, (B, T, d)."""
        if self.decoder is None:
            return self._run_stack(self.encoder, batch)
        if self.encoder is None and batch.source is None:
            return self._run_stack(self.decoder, batch)
        segments = {"segments": batch.segments, "key_segments": batch.source_segments}
        memory_mask = MaskSpec(False, key_mask=batch.source_attention_mask, **segments)
        return self._run_stack(self.decoder, batch, self.encode_source(batch), memory_mask)

    def encode_source(self, batch: Batch) -> Tensor:
        """Compute the encoder's states of ``batch.source``, (B, S, d).

        Raises:
            ValueError: The model has no encoder, or the batch has no source.
        """
        if self.encoder is None:
            raise ValueError(
                "A decoder-only model has no encoder, so it cannot read a source sequence: omit "
                "the source."
            )
        if batch.source is None:
            raise ValueError(
                "An encoder-decoder model needs a source sequence, but the batch has none."
            )
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
        # Padding follows the text, so no real token of a causal stack attends to it. Without a
        # padding mask, attention can use the kernel's own causal path.
        attention_mask = None if stack.causal else batch.attention_mask
        mask = MaskSpec(stack.causal, batch.prefix, attention_mask, batch.segments)
        return stack(x, mask, rotation, memory, memory_mask)  # type: ignore[no-any-return]

    def embed_tokens(
        self, ids: Tensor, positions: Tensor | None, token_types: Tensor | None = None
    ) -> EmbeddedTokens:
        """Embed tokens and compute the rotation of their positions.

        Args:
            ids: token ids, (B, T).
            positions: (B, T) or (1, T); None means 0 ... T-1.
            token_types: (B, T) for models with type embeddings; None means 0 everywhere.


        Raises:
            ValueError: ``positions`` is None and the sequence exceeds the context.
        """
        if positions is None:
            if ids.shape[1] > self.config.context:
                raise ValueError(
                    f"A sequence of {ids.shape[1]} tokens exceeds the context of "
                    f"{self.config.context} tokens: truncate it, or score it in windows."
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
        return EmbeddedTokens(self.dropout(self.embedding_norm(x)), rotation)

    def count_parameters_by_group(self) -> dict[str, int]:
        """Count the parameters by group, and their ``total``. A tied head counts 0."""
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
    """Initialise all weights as in GPT-2 (Radford et al. 2019).

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
        residual_weights = [
            parameter
            for name, parameter in stack.named_parameters()
            if name.endswith(("out.weight", "down.weight"))
        ]
        for weight in residual_weights:
            nn.init.normal_(weight, std=0.02 / math.sqrt(len(residual_weights)))
