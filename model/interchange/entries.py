"""How one of our models is written as an architecture of ``transformers``, and read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from model.config import Activation, ModelConfig

ACTIVATIONS: dict[Activation, str] = {
    "gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu",
    "sigmoid": "sigmoid", "tanh": "tanh",
}  # fmt: skip
OURS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"swish": "silu"}


@dataclass(frozen=True)
class Entry:
    """One of our tensors and theirs; several of theirs are ours, one upon the other. ``turned``:
    they store the transpose."""

    ours: str
    theirs: tuple[str, ...]
    turned: bool = False


@dataclass(frozen=True)
class Family:
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
    base: str
    needs: dict[str, tuple[Any, ...]]
    entries: Callable[[ModelConfig], list[Entry]]
    written: Callable[[ModelConfig], dict[str, Any]]
    read: Callable[[dict[str, Any]], ModelConfig]
    halves: bool = False
    grouped: bool = False

    def lacks(self, config: ModelConfig) -> list[str]:
        """What keeps a config from being one of theirs, setting by setting."""
        lacking = [
            f"{key} {' or '.join(map(str, allowed))} (it is {getattr(config, key)})"
            for key, allowed in self.needs.items()
            if getattr(config, key) not in allowed
        ]
        if not self.grouped and config.kv_heads != config.n_heads:
            lacking.append(f"n_kv_heads {config.n_heads} (it is {config.kv_heads})")
        if not self.grouped and config.heads_width != config.d_model:
            lacking.append(f"n_heads x d_head {config.d_model} (it is {config.heads_width})")
        return lacking


def layers(
    table: Mapping[str, tuple[str, ...]],
    count: int,
    ours: str,
    theirs: str,
    kinds: Iterable[str] = ("weight", "bias"),
    turned: Callable[[str], bool] = lambda name: False,
) -> list[Entry]:
    """Entries of ``count`` layers: ours and theirs say what stands before a layer's number."""
    return [
        Entry(
            f"{ours}.{i}.{name}.{kind}",
            tuple(f"{theirs}.{i}.{part}.{kind}" for part in parts),
            kind == "weight" and turned(name),
        )
        for i in range(count)
        for name, parts in table.items()
        for kind in kinds
    ]


def both(ours: str, theirs: str) -> list[Entry]:
    return [Entry(f"{ours}.{kind}", (f"{theirs}.{kind}",)) for kind in ("weight", "bias")]


def head(config: ModelConfig) -> list[Entry]:
    return [] if config.tie_embeddings else [Entry("head.weight", ("lm_head.weight",))]


def activation(name: str) -> Activation:
    if name not in OURS:
        raise ValueError(f"the activation {name!r} is not known.")
    return OURS[name]
