"""Scale configs down, for small untrained models with the architecture of an audited model.

The scores of such models show what an audit reports if there is nothing to find. Width and depth
are reduced, so that many models cost less than the audited one. The weights are drawn with a
standard deviation that grows as the width falls, so that hidden states and logits vary as much as
at full width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hallmark.model.config import ModelConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: Sizes of the small models.
SMALL_WIDTH, SMALL_LAYER_COUNT, SMALL_HEAD_COUNT = 64, 2, 2

#: Settings of transformers' configs by what they size.
WIDTH_SETTINGS = (
    *("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size"),
    *("word_embed_proj_dim", "d_embed"),
)
LAYER_SETTINGS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("decoder_layers", "encoder_layers"),
)
HEAD_SETTINGS = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads"),
    *("decoder_attention_heads", "encoder_attention_heads"),
)
KEY_VALUE_HEAD_SETTINGS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HEAD_WIDTH_SETTINGS = ("head_dim", "d_kv", "attention_head_size")
INNER_WIDTH_SETTINGS = (
    *("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "ffn_hidden_size"),
    *("decoder_ffn_dim", "encoder_ffn_dim", "moe_intermediate_size"),
)


def scale_down_hallmark_config(config: ModelConfig) -> ModelConfig:
    """Return the config of a small model of the same architecture."""
    config = replace(config, n_layers=min(config.n_layers, SMALL_LAYER_COUNT), dropout=0.0)
    if config.d_model <= SMALL_WIDTH:
        return config
    inner_width = config.d_ff and max(1, config.d_ff * SMALL_WIDTH // config.d_model)
    is_grouped = config.kv_head_count < config.n_heads
    return replace(
        config,
        d_model=SMALL_WIDTH,
        n_heads=SMALL_HEAD_COUNT,
        n_kv_heads=1 if is_grouped else None,
        d_head=None,
        d_ff=inner_width,
    )


def scale_down_transformers_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the config of a small model of the same class and vocabulary.

    Settings that no list of this module names keep their values, so some architectures cannot be
    built from it.
    """
    settings: dict[str, Any] = config.to_dict()
    widths = [settings[name] for name in WIDTH_SETTINGS if isinstance(settings.get(name), int)]
    width = max(widths, default=SMALL_WIDTH)

    def is_positive_integer(name: str) -> bool:
        return type(settings.get(name)) is int and settings[name] > 0

    for name in filter(is_positive_integer, LAYER_SETTINGS):
        settings[name] = min(settings[name], SMALL_LAYER_COUNT)
    if isinstance(settings.get("layer_types"), list):
        settings["layer_types"] = settings["layer_types"][:SMALL_LAYER_COUNT]
    if width > SMALL_WIDTH:
        head_count = max(
            (settings[name] for name in HEAD_SETTINGS if is_positive_integer(name)), default=1
        )
        for name in filter(is_positive_integer, KEY_VALUE_HEAD_SETTINGS):
            settings[name] = SMALL_HEAD_COUNT if settings[name] == head_count else 1
        for name in filter(is_positive_integer, HEAD_SETTINGS):
            settings[name] = SMALL_HEAD_COUNT
        for name in filter(is_positive_integer, HEAD_WIDTH_SETTINGS):
            settings[name] = SMALL_WIDTH // SMALL_HEAD_COUNT
        for name in filter(is_positive_integer, (*WIDTH_SETTINGS, *INNER_WIDTH_SETTINGS)):
            settings[name] = max(1, min(settings[name], settings[name] * SMALL_WIDTH // width))
        if isinstance(settings.get("initializer_range"), float):
            settings["initializer_range"] *= (width / SMALL_WIDTH) ** 0.5
    return type(config).from_dict(settings)
