"""Map tensors and settings to those of GPT-2, Llama, BERT and Marian in ``transformers``.

One table of names for each family serves both directions; configs are translated key by key.
"""

from __future__ import annotations

from typing import Any

from hallmark.model.config import ModelConfig
from hallmark.model.interchange.tensor_mappings import (
    TRANSFORMERS_ACTIVATIONS,
    ModelFamily,
    TensorMapping,
    map_layers,
    map_untied_head,
    map_weight_and_bias,
    parse_activation,
)

# GPT-2 ---------------------------------------------------------------------------------------

GPT2_LAYER_NAMES = {
    "attention_norm": ("ln_1",),
    "attention.qkv": ("attn.c_attn",),
    "attention.out": ("attn.c_proj",),
    "feed_forward_norm": ("ln_2",),
    "feed_forward.up": ("mlp.c_fc",),
    "feed_forward.down": ("mlp.c_proj",),
}


def map_gpt2_body(config: ModelConfig) -> list[TensorMapping]:
    return [
        TensorMapping("embedding.weight", ("transformer.wte.weight",)),
        TensorMapping("position_embedding.weight", ("transformer.wpe.weight",)),
        *map_layers(
            GPT2_LAYER_NAMES,
            config.n_layers,
            "decoder.blocks",
            "transformer.h",
            is_transposed=lambda name: not name.endswith("norm"),
        ),
        *map_weight_and_bias("decoder.norm", "transformer.ln_f"),
    ]


def make_gpt2_config_values(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_positions": config.context,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.feed_forward_width,
        "activation_function": TRANSFORMERS_ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


def parse_gpt2_config(config_values: dict[str, Any]) -> ModelConfig:
    if config_values.get("scale_attn_by_inverse_layer_idx") or not config_values.get(
        "scale_attn_weights", True
    ):
        raise ValueError("the model uses an unsupported scaling of attention weights.")
    return ModelConfig(
        vocab_size=config_values["vocab_size"],
        context=config_values["n_positions"],
        d_model=config_values["n_embd"],
        n_layers=config_values["n_layer"],
        n_heads=config_values["n_head"],
        d_ff=config_values.get("n_inner"),
        activation=parse_activation(config_values.get("activation_function", "gelu_new")),
        tie_embeddings=config_values.get("tie_word_embeddings", True),
        norm_eps=config_values.get("layer_norm_epsilon", 1e-5),
    )


# Llama ---------------------------------------------------------------------------------------

LLAMA_LAYER_NAMES = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "feed_forward.up": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down": ("mlp.down_proj",),
}


def map_llama_body(config: ModelConfig) -> list[TensorMapping]:
    return [
        TensorMapping("embedding.weight", ("model.embed_tokens.weight",)),
        *map_layers(
            LLAMA_LAYER_NAMES, config.n_layers, "decoder.blocks", "model.layers", ("weight",)
        ),
        TensorMapping("decoder.norm.weight", ("model.norm.weight",)),
    ]


def make_llama_config_values(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "max_position_embeddings": config.context,
        "hidden_size": config.d_model,
        "intermediate_size": config.feed_forward_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_head_count,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_dropout": config.attention_dropout,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _parse_llama_head_size(config_values: dict[str, Any]) -> int | None:
    """Return the head size, or None if all heads together are as wide as the model."""
    head_size, model_width = config_values.get("head_dim"), config_values["hidden_size"]
    if (head_size or 0) * config_values["num_attention_heads"] == model_width:
        return None
    return head_size


def parse_llama_config(config_values: dict[str, Any]) -> ModelConfig:
    rope = config_values.get("rope_parameters") or config_values.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError("scaled rotary positions are not supported.")
    if config_values.get("attention_bias") or config_values.get("mlp_bias"):
        raise ValueError("linear layers with biases are not supported.")
    if config_values.get("hidden_act", "silu") != "silu":
        raise ValueError(
            f"the activation {config_values['hidden_act']!r} is not supported: it must be silu."
        )
    return ModelConfig(
        vocab_size=config_values["vocab_size"],
        context=config_values["max_position_embeddings"],
        d_model=config_values["hidden_size"],
        n_layers=config_values["num_hidden_layers"],
        n_heads=config_values["num_attention_heads"],
        n_kv_heads=config_values.get("num_key_value_heads"),
        d_head=_parse_llama_head_size(config_values),
        d_ff=config_values["intermediate_size"],
        norm="rmsnorm",
        positions="rope",
        activation="swiglu",
        bias=False,
        tie_embeddings=config_values.get("tie_word_embeddings", False),
        rope_theta=float(rope.get("rope_theta", config_values.get("rope_theta", 10_000.0))),
        norm_eps=config_values.get("rms_norm_eps", 1e-6),
    )


# BERT ----------------------------------------------------------------------------------------

_BERT_SELF_ATTENTION = "attention.self"
BERT_LAYER_NAMES = {
    "attention.qkv": (
        f"{_BERT_SELF_ATTENTION}.query",
        f"{_BERT_SELF_ATTENTION}.key",
        f"{_BERT_SELF_ATTENTION}.value",
    ),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
#: If transformers has one type and this program none, it is added to the positions.
TYPE_EMBEDDINGS = "bert.embeddings.token_type_embeddings.weight"


def map_bert_body(config: ModelConfig) -> list[TensorMapping]:
    type_mappings = (
        [TensorMapping("type_embedding.weight", (TYPE_EMBEDDINGS,))] if config.token_types else []
    )
    return [
        *type_mappings,
        TensorMapping("embedding.weight", ("bert.embeddings.word_embeddings.weight",)),
        TensorMapping("position_embedding.weight", ("bert.embeddings.position_embeddings.weight",)),
        *map_weight_and_bias("embedding_norm", "bert.embeddings.LayerNorm"),
        *map_layers(BERT_LAYER_NAMES, config.n_layers, "encoder.blocks", "bert.encoder.layer"),
    ]


def _map_bert_tensors(config: ModelConfig) -> list[TensorMapping]:
    return [
        *map_bert_body(config),
        *map_weight_and_bias("transform.0", "cls.predictions.transform.dense"),
        *map_weight_and_bias("transform.2", "cls.predictions.transform.LayerNorm"),
        TensorMapping("head.bias", ("cls.predictions.bias",)),
    ]


def make_bert_config_values(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "max_position_embeddings": config.context,
        "hidden_size": config.d_model,
        "intermediate_size": config.feed_forward_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "hidden_act": TRANSFORMERS_ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "type_vocab_size": max(1, config.token_types),
    }


def parse_bert_config(config_values: dict[str, Any]) -> ModelConfig:
    if config_values.get("position_embedding_type", "absolute") != "absolute" or config_values.get(
        "is_decoder"
    ):
        raise ValueError("only BERT encoders with absolute positions are supported.")
    if not config_values.get("tie_word_embeddings", True):
        raise ValueError(
            "models whose output layer is not tied to the embeddings are not supported."
        )
    type_count = config_values.get("type_vocab_size", 2)
    return ModelConfig(
        vocab_size=config_values["vocab_size"],
        context=config_values["max_position_embeddings"],
        d_model=config_values["hidden_size"],
        n_layers=config_values["num_hidden_layers"],
        n_heads=config_values["num_attention_heads"],
        d_ff=config_values["intermediate_size"],
        architecture="encoder",
        norm_position="post",
        activation=parse_activation(config_values.get("hidden_act", "gelu")),
        norm_eps=config_values.get("layer_norm_eps", 1e-12),
        embedding_norm=True,
        head_transform=True,
        head_bias=True,
        token_types=type_count if type_count > 1 else 0,
    )


# Marian --------------------------------------------------------------------------------------

MARIAN_LAYER_NAMES = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "feed_forward.up": ("fc1",),
    "feed_forward.down": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}
MARIAN_CROSS_ATTENTION_NAMES = {
    "cross.qkv": ("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": ("encoder_attn.out_proj",),
    "cross_norm": ("encoder_attn_layer_norm",),
}
MARIAN_BIAS = "final_logits_bias"  # (1, V)


def _map_marian_tensors(config: ModelConfig) -> list[TensorMapping]:
    layer_count = config.n_layers
    return [
        TensorMapping("embedding.weight", ("model.shared.weight",)),
        *map_layers(MARIAN_LAYER_NAMES, layer_count, "encoder.blocks", "model.encoder.layers"),
        *map_layers(
            MARIAN_LAYER_NAMES | MARIAN_CROSS_ATTENTION_NAMES,
            layer_count,
            "decoder.blocks",
            "model.decoder.layers",
        ),
        TensorMapping("head.bias", (MARIAN_BIAS,)),
        *map_untied_head(config),
    ]


def _make_marian_config_values(config: ModelConfig) -> dict[str, Any]:
    stack_settings = {
        f"{stack}_{key}": value
        for stack in ("encoder", "decoder")
        for key, value in (
            ("layers", config.n_layers),
            ("attention_heads", config.n_heads),
            ("ffn_dim", config.feed_forward_width),
        )
    }
    return {
        "model_type": "marian",
        "max_position_embeddings": config.context,
        "d_model": config.d_model,
        "activation_function": TRANSFORMERS_ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "scale_embedding": config.embedding_scale != 1.0,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "decoder_vocab_size": config.vocab_size,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
        **stack_settings,
    }


def _parse_marian_config(config_values: dict[str, Any]) -> ModelConfig:
    for key in ("layers", "attention_heads", "ffn_dim"):
        if config_values[f"encoder_{key}"] != config_values[f"decoder_{key}"]:
            raise ValueError(
                f"models whose encoder and decoder differ in {key!r} are not supported."
            )
    if not config_values.get("share_encoder_decoder_embeddings", True):
        raise ValueError(
            "models whose encoder and decoder do not share embeddings are not supported."
        )
    if not config_values.get("tie_word_embeddings", True):
        raise ValueError(
            "models whose output layer is not tied to the embeddings are not supported."
        )
    if (config_values.get("decoder_vocab_size") or config_values["vocab_size"]) != config_values[
        "vocab_size"
    ]:
        raise ValueError(
            "models whose encoder and decoder have different vocabularies are not supported."
        )
    if not config_values.get("static_position_embeddings", True):
        raise ValueError("learned positions are not supported.")
    return ModelConfig(
        vocab_size=config_values["vocab_size"],
        context=config_values["max_position_embeddings"],
        d_model=config_values["d_model"],
        n_layers=config_values["encoder_layers"],
        n_heads=config_values["encoder_attention_heads"],
        d_ff=config_values["encoder_ffn_dim"],
        architecture="encoder_decoder",
        norm_position="post",
        positions="sinusoidal",
        activation=parse_activation(config_values.get("activation_function", "gelu")),
        scale_embeddings=bool(config_values.get("scale_embedding", False)),
        head_bias=True,
    )


NO_LABELS = {"labels": ((),)}
UNSCALED_EMBEDDINGS = {"scale_embeddings": (None, False)}
PLAIN_HEAD_SETTINGS = {
    "embedding_norm": (False,),
    "head_transform": (False,),
    "head_bias": (False,),
    **UNSCALED_EMBEDDINGS,
    **NO_LABELS,
}
GPT2_SUPPORTED_SETTINGS = {
    "architecture": ("decoder",),
    "norm_position": ("pre",),
    "norm": ("layernorm",),
    "positions": ("learned",),
    "bias": (True,),
    "activation": tuple(TRANSFORMERS_ACTIVATIONS),
    **PLAIN_HEAD_SETTINGS,
}
LLAMA_SUPPORTED_SETTINGS = {
    "architecture": ("decoder",),
    "norm_position": ("pre",),
    "norm": ("rmsnorm",),
    "positions": ("rope",),
    "bias": (False,),
    "activation": ("swiglu",),
    **PLAIN_HEAD_SETTINGS,
}
BERT_SUPPORTED_SETTINGS = {
    "architecture": ("encoder",),
    "norm_position": ("post",),
    "norm": ("layernorm",),
    "positions": ("learned",),
    "bias": (True,),
    "activation": tuple(TRANSFORMERS_ACTIVATIONS),
    "embedding_norm": (True,),
    "head_transform": (True,),
    "head_bias": (True,),
    "tie_embeddings": (True,),
    **UNSCALED_EMBEDDINGS,
    **NO_LABELS,
}
MARIAN_SUPPORTED_SETTINGS = {
    "architecture": ("encoder_decoder",),
    "norm_position": ("post",),
    "norm": ("layernorm",),
    "positions": ("sinusoidal",),
    "bias": (True,),
    "activation": tuple(TRANSFORMERS_ACTIVATIONS),
    "norm_eps": (1e-5,),  # fixed in transformers
    "embedding_norm": (False,),
    "head_transform": (False,),
    "head_bias": (True,),
    "tie_embeddings": (True,),
}

MODEL_FAMILIES = {
    "gpt2": ModelFamily(
        "GPT2LMHeadModel",
        "transformer.",
        GPT2_SUPPORTED_SETTINGS,
        lambda config: [*map_gpt2_body(config), *map_untied_head(config)],
        make_gpt2_config_values,
        parse_gpt2_config,
    ),
    "llama": ModelFamily(
        "LlamaForCausalLM",
        "model.",
        LLAMA_SUPPORTED_SETTINGS,
        lambda config: [*map_llama_body(config), *map_untied_head(config)],
        make_llama_config_values,
        parse_llama_config,
        supports_grouped_heads=True,
    ),
    "bert": ModelFamily(
        "BertForMaskedLM",
        "bert.",
        BERT_SUPPORTED_SETTINGS,
        _map_bert_tensors,
        make_bert_config_values,
        parse_bert_config,
    ),
    "marian": ModelFamily(
        "MarianMTModel",
        "model.",
        MARIAN_SUPPORTED_SETTINGS,
        _map_marian_tensors,
        _make_marian_config_values,
        _parse_marian_config,
        has_halved_sinusoids=True,
    ),
}

#: By model class: the tensors that can be tied, and the tensors that are tied to them.
TIED_TENSOR_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "GPT2LMHeadModel": {"transformer.wte.weight": ("lm_head.weight",)},
    "LlamaForCausalLM": {"model.embed_tokens.weight": ("lm_head.weight",)},
    "BertForMaskedLM": {
        "bert.embeddings.word_embeddings.weight": ("cls.predictions.decoder.weight",),
        "cls.predictions.bias": ("cls.predictions.decoder.bias",),
    },
    "MarianMTModel": {
        "model.shared.weight": (
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        )
    },
}
