"""What GPT-2, Llama, BERT and Marian call our tensors and settings in ``transformers``.

One table of names a family serves both directions; configs are translated key by key.
"""

from __future__ import annotations

from typing import Any

from model.config import ModelConfig
from model.interchange.entries import ACTIVATIONS, Entry, Family, activation, both, head, layers

# GPT-2 ---------------------------------------------------------------------------------------

GPT2_LAYER = {
    "attention_norm": ("ln_1",),
    "attention.qkv": ("attn.c_attn",),
    "attention.out": ("attn.c_proj",),
    "feed_forward_norm": ("ln_2",),
    "feed_forward.up": ("mlp.c_fc",),
    "feed_forward.down": ("mlp.c_proj",),
}


def gpt2_body(config: ModelConfig) -> list[Entry]:
    return [
        Entry("embedding.weight", ("transformer.wte.weight",)),
        Entry("position_embedding.weight", ("transformer.wpe.weight",)),
        *layers(GPT2_LAYER, config.n_layers, "decoder.blocks", "transformer.h",
                 turned=lambda name: not name.endswith("norm")),
        *both("decoder.norm", "transformer.ln_f"),
    ]  # fmt: skip


def gpt2_written(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_positions": config.context,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.hidden,
        "activation_function": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


def gpt2_read(values: dict[str, Any]) -> ModelConfig:
    if values.get("scale_attn_by_inverse_layer_idx") or not values.get("scale_attn_weights", True):
        raise ValueError("its attention is scaled in another way.")
    return ModelConfig(
        vocab_size=values["vocab_size"],
        context=values["n_positions"],
        d_model=values["n_embd"],
        n_layers=values["n_layer"],
        n_heads=values["n_head"],
        d_ff=values.get("n_inner"),
        activation=activation(values.get("activation_function", "gelu_new")),
        tie_embeddings=values.get("tie_word_embeddings", True),
        norm_eps=values.get("layer_norm_epsilon", 1e-5),
    )


# Llama ---------------------------------------------------------------------------------------

LLAMA_LAYER = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "feed_forward.up": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down": ("mlp.down_proj",),
}


def llama_body(config: ModelConfig) -> list[Entry]:
    return [
        Entry("embedding.weight", ("model.embed_tokens.weight",)),
        *layers(LLAMA_LAYER, config.n_layers, "decoder.blocks", "model.layers", ("weight",)),
        Entry("decoder.norm.weight", ("model.norm.weight",)),
    ]


def llama_written(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "max_position_embeddings": config.context,
        "hidden_size": config.d_model,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_dropout": config.attention_dropout,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _size_of_heads(values: dict[str, Any]) -> int | None:
    """None where they are together as wide as the model."""
    size, together = values.get("head_dim"), values["hidden_size"]
    return None if (size or 0) * values["num_attention_heads"] == together else size


def llama_read(values: dict[str, Any]) -> ModelConfig:
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError("its rotary positions are scaled, which is not supported.")
    if values.get("attention_bias") or values.get("mlp_bias"):
        raise ValueError("its matrices have biases, which is not supported.")
    if values.get("hidden_act", "silu") != "silu":
        raise ValueError(f"the activation {values['hidden_act']!r} is not SwiGLU's.")
    return ModelConfig(
        vocab_size=values["vocab_size"],
        context=values["max_position_embeddings"],
        d_model=values["hidden_size"],
        n_layers=values["num_hidden_layers"],
        n_heads=values["num_attention_heads"],
        n_kv_heads=values.get("num_key_value_heads"),
        d_head=_size_of_heads(values),
        d_ff=values["intermediate_size"],
        norm="rmsnorm",
        positions="rope",
        activation="swiglu",
        bias=False,
        tie_embeddings=values.get("tie_word_embeddings", False),
        rope_theta=float(rope.get("rope_theta", values.get("rope_theta", 10_000.0))),
        norm_eps=values.get("rms_norm_eps", 1e-6),
    )


# BERT ----------------------------------------------------------------------------------------

_SELF = "attention.self"
BERT_LAYER = {
    "attention.qkv": (f"{_SELF}.query", f"{_SELF}.key", f"{_SELF}.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
#: Where theirs has one type, and ours none, it goes into the positions.
TYPE_EMBEDDINGS = "bert.embeddings.token_type_embeddings.weight"


def bert_body(config: ModelConfig) -> list[Entry]:
    types = [Entry("type_embedding.weight", (TYPE_EMBEDDINGS,))] if config.token_types else []
    return [
        *types,
        Entry("embedding.weight", ("bert.embeddings.word_embeddings.weight",)),
        Entry("position_embedding.weight", ("bert.embeddings.position_embeddings.weight",)),
        *both("embedding_norm", "bert.embeddings.LayerNorm"),
        *layers(BERT_LAYER, config.n_layers, "encoder.blocks", "bert.encoder.layer"),
    ]


def _bert_entries(config: ModelConfig) -> list[Entry]:
    return [
        *bert_body(config),
        *both("transform.0", "cls.predictions.transform.dense"),
        *both("transform.2", "cls.predictions.transform.LayerNorm"),
        Entry("head.bias", ("cls.predictions.bias",)),
    ]


def bert_written(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "max_position_embeddings": config.context,
        "hidden_size": config.d_model,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "hidden_act": ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "type_vocab_size": max(1, config.token_types),
    }


def bert_read(values: dict[str, Any]) -> ModelConfig:
    if values.get("position_embedding_type", "absolute") != "absolute" or values.get("is_decoder"):
        raise ValueError("its positions are not absolute, or it is a decoder: not supported.")
    if not values.get("tie_word_embeddings", True):
        raise ValueError("its output layer is not tied to the embeddings, which is not supported.")
    types = values.get("type_vocab_size", 2)
    return ModelConfig(
        vocab_size=values["vocab_size"],
        context=values["max_position_embeddings"],
        d_model=values["hidden_size"],
        n_layers=values["num_hidden_layers"],
        n_heads=values["num_attention_heads"],
        d_ff=values["intermediate_size"],
        architecture="encoder",
        norm_position="post",
        activation=activation(values.get("hidden_act", "gelu")),
        norm_eps=values.get("layer_norm_eps", 1e-12),
        embedding_norm=True,
        head_transform=True,
        head_bias=True,
        token_types=types if types > 1 else 0,
    )


# Marian --------------------------------------------------------------------------------------

MARIAN_LAYER = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "feed_forward.up": ("fc1",),
    "feed_forward.down": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}
MARIAN_CROSS = {
    "cross.qkv": ("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": ("encoder_attn.out_proj",),
    "cross_norm": ("encoder_attn_layer_norm",),
}
MARIAN_BIAS = "final_logits_bias"  # (1, V)


def _marian_entries(config: ModelConfig) -> list[Entry]:
    count = config.n_layers
    return [
        Entry("embedding.weight", ("model.shared.weight",)),
        *layers(MARIAN_LAYER, count, "encoder.blocks", "model.encoder.layers"),
        *layers(MARIAN_LAYER | MARIAN_CROSS, count, "decoder.blocks", "model.decoder.layers"),
        Entry("head.bias", (MARIAN_BIAS,)),
        *head(config),
    ]


def _marian_written(config: ModelConfig) -> dict[str, Any]:
    stacks = {
        f"{stack}_{key}": value
        for stack in ("encoder", "decoder")
        for key, value in (
            ("layers", config.n_layers),
            ("attention_heads", config.n_heads),
            ("ffn_dim", config.hidden),
        )
    }
    return {
        "model_type": "marian",
        "max_position_embeddings": config.context,
        "d_model": config.d_model,
        "activation_function": ACTIVATIONS[config.activation],
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
        **stacks,
    }


def _marian_read(values: dict[str, Any]) -> ModelConfig:
    for key in ("layers", "attention_heads", "ffn_dim"):
        if values[f"encoder_{key}"] != values[f"decoder_{key}"]:
            raise ValueError(f"encoder and decoder differ in {key}, which is not supported.")
    if not values.get("share_encoder_decoder_embeddings", True):
        raise ValueError("encoder and decoder have their own embeddings, which is not supported.")
    if not values.get("tie_word_embeddings", True):
        raise ValueError("its output layer is not tied to the embeddings, which is not supported.")
    if (values.get("decoder_vocab_size") or values["vocab_size"]) != values["vocab_size"]:
        raise ValueError("encoder and decoder have other vocabularies, which is not supported.")
    if not values.get("static_position_embeddings", True):
        raise ValueError("its positions are learned, which is not supported.")
    return ModelConfig(
        vocab_size=values["vocab_size"],
        context=values["max_position_embeddings"],
        d_model=values["d_model"],
        n_layers=values["encoder_layers"],
        n_heads=values["encoder_attention_heads"],
        d_ff=values["encoder_ffn_dim"],
        architecture="encoder_decoder",
        norm_position="post",
        positions="sinusoidal",
        activation=activation(values.get("activation_function", "gelu")),
        scale_embeddings=bool(values.get("scale_embedding", False)),
        head_bias=True,
    )


WORDS = {"labels": ((),)}
UNSCALED = {"scale_embeddings": (None, False)}
PLAIN_HEAD = {
    "embedding_norm": (False,), "head_transform": (False,), "head_bias": (False,), **UNSCALED,
    **WORDS,
}  # fmt: skip
GPT2_NEEDS = {
    "architecture": ("decoder",), "norm_position": ("pre",), "norm": ("layernorm",),
    "positions": ("learned",), "bias": (True,), "activation": tuple(ACTIVATIONS), **PLAIN_HEAD,
}  # fmt: skip
LLAMA_NEEDS = {
    "architecture": ("decoder",), "norm_position": ("pre",), "norm": ("rmsnorm",),
    "positions": ("rope",), "bias": (False,), "activation": ("swiglu",), **PLAIN_HEAD,
}  # fmt: skip
BERT_NEEDS = {
    "architecture": ("encoder",), "norm_position": ("post",), "norm": ("layernorm",),
    "positions": ("learned",), "bias": (True,), "activation": tuple(ACTIVATIONS),
    "embedding_norm": (True,), "head_transform": (True,), "head_bias": (True,),
    "tie_embeddings": (True,), **UNSCALED, **WORDS,
}  # fmt: skip
MARIAN_NEEDS = {
    "architecture": ("encoder_decoder",), "norm_position": ("post",), "norm": ("layernorm",),
    "positions": ("sinusoidal",), "bias": (True,), "activation": tuple(ACTIVATIONS),
    "norm_eps": (1e-5,),  # theirs cannot be set
    "embedding_norm": (False,), "head_transform": (False,), "head_bias": (True,),
    "tie_embeddings": (True,),
}  # fmt: skip

FAMILIES = {
    "gpt2": Family("GPT2LMHeadModel", "transformer.", GPT2_NEEDS,
                   lambda config: [*gpt2_body(config), *head(config)], gpt2_written, gpt2_read),
    "llama": Family("LlamaForCausalLM", "model.", LLAMA_NEEDS,
                    lambda config: [*llama_body(config), *head(config)], llama_written,
                    llama_read, grouped=True),
    "bert": Family("BertForMaskedLM", "bert.", BERT_NEEDS, _bert_entries, bert_written,
                   bert_read),
    "marian": Family("MarianMTModel", "model.", MARIAN_NEEDS, _marian_entries, _marian_written,
                     _marian_read, halves=True),
}  # fmt: skip

#: By the class of a model, the tensors that its config ties to another, where it ties any.
TIED: dict[str, dict[str, tuple[str, ...]]] = {
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
