"""Describe how a model is written as an architecture of ``transformers``, and read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hallmark.model.config import Activation, ModelConfig

TRANSFORMERS_ACTIVATIONS: dict[Activation, str] = {
    "gelu_tanh": "gelu_new",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}
OWN_ACTIVATIONS = {
    transformers_name: own_name for own_name, transformers_name in TRANSFORMERS_ACTIVATIONS.items()
} | {"swish": "silu"}


@dataclass(frozen=True)
class TensorMapping:
    """One of this program's tensors and its counterparts in transformers.

    Attributes:
        own_name: name of this program's tensor.
        transformers_names: names in transformers; several tensors are concatenated along dimension
            0.
        is_transposed: whether transformers stores the transpose.
    """

    own_name: str
    transformers_names: tuple[str, ...]
    is_transposed: bool = False


@dataclass(frozen=True)
class ModelFamily:
    """An architecture of transformers that computes the same as this program's models.

    Attributes:
        model_class: class of the model with its output layer.
        base_prefix: prefix of the names of all tensors below the output layer.
        supported_settings: allowed values of this program's settings, by name.
        list_tensor_mappings: lists all tensors of a model.
        to_transformers_config: converts a config to transformers.
        from_transformers_config: converts a config from transformers; raises ValueError or
            KeyError.
        has_halved_sinusoids: whether transformers' sinusoids are first all sines, then all cosines,
            while this program alternates them. The dimensions of the residual stream are permuted.
        supports_grouped_heads: whether key-value heads can be shared, and heads can have any size.
    """

    model_class: str
    base_prefix: str
    supported_settings: dict[str, tuple[Any, ...]]
    list_tensor_mappings: Callable[[ModelConfig], list[TensorMapping]]
    to_transformers_config: Callable[[ModelConfig], dict[str, Any]]
    from_transformers_config: Callable[[dict[str, Any]], ModelConfig]
    has_halved_sinusoids: bool = False
    supports_grouped_heads: bool = False

    def describe_unsupported_settings(self, config: ModelConfig) -> list[str]:
        """Describe each setting that the architecture does not support, and its supported values.

        Returns:
            Texts such as "norm must be layernorm, but is rmsnorm"; empty if all are supported.
        """
        reasons = [
            f"{key} must be {' or '.join(map(str, allowed))}, but is {getattr(config, key)}"
            for key, allowed in self.supported_settings.items()
            if getattr(config, key) not in allowed
        ]
        if not self.supports_grouped_heads and config.kv_head_count != config.n_heads:
            reasons.append(
                f"n_kv_heads must equal n_heads ({config.n_heads}), but is {config.kv_head_count}"
            )
        if not self.supports_grouped_heads and config.query_width != config.d_model:
            reasons.append(
                f"n_heads x d_head must equal d_model ({config.d_model}), but is "
                f"{config.query_width}"
            )
        return reasons


def map_layers(
    transformers_parts_by_own_part: Mapping[str, tuple[str, ...]],
    count: int,
    own_prefix: str,
    transformers_prefix: str,
    kinds: Iterable[str] = ("weight", "bias"),
    is_transposed: Callable[[str], bool] = lambda name: False,
) -> list[TensorMapping]:
    """Map the tensors of ``count`` layers.

    Args:
        transformers_parts_by_own_part: this program's name of each part of a layer, and the names
            of its counterparts in transformers.
        count: number of layers.
        own_prefix: this program's name up to the layer's number.
        transformers_prefix: transformers' name up to the layer's number.
        kinds: which of weight and bias the parts have.
        is_transposed: whether transformers stores the transpose of a part's weight.
    """
    return [
        TensorMapping(
            f"{own_prefix}.{i}.{name}.{kind}",
            tuple(
                f"{transformers_prefix}.{i}.{transformers_part}.{kind}"
                for transformers_part in transformers_parts
            ),
            kind == "weight" and is_transposed(name),
        )
        for i in range(count)
        for name, transformers_parts in transformers_parts_by_own_part.items()
        for kind in kinds
    ]


def map_weight_and_bias(own_prefix: str, transformers_prefix: str) -> list[TensorMapping]:
    return [
        TensorMapping(f"{own_prefix}.{kind}", (f"{transformers_prefix}.{kind}",))
        for kind in ("weight", "bias")
    ]


def map_untied_head(config: ModelConfig) -> list[TensorMapping]:
    return [] if config.tie_embeddings else [TensorMapping("head.weight", ("lm_head.weight",))]


def parse_activation(transformers_name: str) -> Activation:
    if transformers_name not in OWN_ACTIVATIONS:
        raise ValueError(
            f"the activation {transformers_name!r} is not supported; the supported activations are "
            f"{', '.join(OWN_ACTIVATIONS)}."
        )
    return OWN_ACTIVATIONS[transformers_name]
