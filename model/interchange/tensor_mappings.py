"""How one of our models is written as an architecture of ``transformers``, and read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from model.config import Activation, ModelConfig

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
    """One of our tensors and theirs; several of theirs are ours, one upon the other. ``turned``:
    they store the transpose."""

    own_name: str
    transformers_names: tuple[str, ...]
    is_transposed: bool = False


@dataclass(frozen=True)
class ModelFamily:
    """An architecture of transformers whose mathematics are ours.

    model_class    of the model with its output layer
    base           what the names of the model below the output layer begin with
    needs          settings of ours that can be written as one of theirs, by their keys
    grouped        whether it has grouped-query heads, and heads of any size
    entries        all tensors of a model
    written, read  configs, ours to theirs and back; ``read`` raises ValueError or KeyError
    halves         their sinusoids lie in halves, sines then cosines, ours alternate: the residual
                   stream's dimensions are permuted
    """

    model_class: str
    base_prefix: str
    supported_settings: dict[str, tuple[Any, ...]]
    list_tensor_mappings: Callable[[ModelConfig], list[TensorMapping]]
    to_transformers_config: Callable[[ModelConfig], dict[str, Any]]
    from_transformers_config: Callable[[dict[str, Any]], ModelConfig]
    has_halved_sinusoids: bool = False
    supports_grouped_heads: bool = False

    def list_unsupported_settings(self, config: ModelConfig) -> list[str]:
        """What keeps a config from being one of theirs, setting by setting."""
        reasons = [
            f"{key} {' or '.join(map(str, allowed))} (it is {getattr(config, key)})"
            for key, allowed in self.supported_settings.items()
            if getattr(config, key) not in allowed
        ]
        if not self.supports_grouped_heads and config.kv_head_count != config.n_heads:
            reasons.append(f"n_kv_heads {config.n_heads} (it is {config.kv_head_count})")
        if not self.supports_grouped_heads and config.query_width != config.d_model:
            reasons.append(f"n_heads x d_head {config.d_model} (it is {config.query_width})")
        return reasons


def map_layers(
    parts_by_name: Mapping[str, tuple[str, ...]],
    count: int,
    own_prefix: str,
    transformers_prefix: str,
    kinds: Iterable[str] = ("weight", "bias"),
    is_transposed: Callable[[str], bool] = lambda name: False,
) -> list[TensorMapping]:
    """Entries of ``count`` layers: ours and theirs say what stands before a layer's number."""
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
        for name, transformers_parts in parts_by_name.items()
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
        raise ValueError(f"the activation {transformers_name!r} is not known.")
    return OWN_ACTIVATIONS[transformers_name]
