"""Checkpoints of ``transformers``: GPT-2 and Llama, written and read, where the mathematics match.

One table of names serves both directions. Only safetensors and JSON are touched.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.architecture import Transformer
from model.checkpoint import TOKENIZER, WEIGHTS, CheckpointError
from model.config import ModelConfig
from model.files import whole_folder

Family = Literal["gpt2", "llama"]
GPT2_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}

# Our name, their names; several are ours one upon the other. "T": they store the transpose.
GPT2_LAYER = {
    "attention_norm": ("ln_1", ""),
    "attention.qkv": ("attn.c_attn", "T"),
    "attention.out": ("attn.c_proj", "T"),
    "feed_forward_norm": ("ln_2", ""),
    "feed_forward.up": ("mlp.c_fc", "T"),
    "feed_forward.down": ("mlp.c_proj", "T"),
}
LLAMA_LAYER = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "feed_forward.up": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down": ("mlp.down_proj",),
}
Entry = tuple[str, tuple[str, ...], bool]  # our tensor, their tensors, transposed


def names(config: ModelConfig, family: Family) -> list[Entry]:
    """Every tensor of the model under both names."""
    table: list[Entry] = []
    if family == "gpt2":
        table.append(("embedding.weight", ("transformer.wte.weight",), False))
        table.append(("position_embedding.weight", ("transformer.wpe.weight",), False))
        for i in range(config.n_layers):
            for ours, (theirs, turn) in GPT2_LAYER.items():
                for kind in ("weight", "bias"):
                    name = f"transformer.h.{i}.{theirs}.{kind}"
                    turned = turn == "T" and kind == "weight"
                    table.append((f"decoder.blocks.{i}.{ours}.{kind}", (name,), turned))
        for kind in ("weight", "bias"):
            table.append((f"decoder.norm.{kind}", (f"transformer.ln_f.{kind}",), False))
    else:
        table.append(("embedding.weight", ("model.embed_tokens.weight",), False))
        for i in range(config.n_layers):
            for ours, several in LLAMA_LAYER.items():
                parts = tuple(f"model.layers.{i}.{part}.weight" for part in several)
                table.append((f"decoder.blocks.{i}.{ours}.weight", parts, False))
        table.append(("decoder.norm.weight", ("model.norm.weight",), False))
    if not config.tie_embeddings:
        table.append(("head.weight", ("lm_head.weight",), False))
    return table


def family_of(config: ModelConfig) -> Family:
    """The family whose mathematics a config's are; ValueError where there is none."""
    c = config
    if c.architecture == "decoder" and c.norm_position == "pre":
        kinds = (c.norm, c.positions, c.bias)
        if kinds == ("layernorm", "learned", True) and c.activation in GPT2_ACTIVATIONS:
            if c.kv_heads == c.n_heads:
                return "gpt2"
        elif kinds == ("rmsnorm", "rope", False) and c.activation == "swiglu":
            return "llama"
    raise ValueError(
        "transformers has no architecture for this config: GPT-2 needs a pre-norm decoder with "
        "layer norm, learned positions and biases; Llama one with RMS norm, rope and SwiGLU, "
        "without biases."
    )


def export_transformers(model: Transformer, folder: str | Path, *, tokenizer: str | Path) -> None:
    """Write a folder that ``AutoModelForCausalLM.from_pretrained`` loads, with equal logits."""
    config = model.config
    family = family_of(config)
    ours = model.state_dict()
    theirs: dict[str, Tensor] = {}
    for name, parts, turned in names(config, family):
        pieces = ours[name].split(_sizes(config, parts), 0) if len(parts) > 1 else (ours[name],)
        for part, piece in zip(parts, pieces, strict=True):
            # Cloned: a slice would be saved with the whole it is cut from.
            theirs[part] = (piece.t() if turned else piece).contiguous().clone()
    with whole_folder(Path(folder)) as temporary:
        save_file(theirs, temporary / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(_their_config(config, family), indent=2)
        (temporary / "config.json").write_text(text + "\n", encoding="utf-8")
        shutil.copyfile(tokenizer, temporary / TOKENIZER)


def import_transformers(folder: str | Path, device: str | torch.device = "cpu") -> Transformer:
    """The model of a GPT-2 or Llama folder, in fp32 and evaluation mode. Raises CheckpointError."""
    folder = Path(folder)
    config = _our_config(folder)
    model = Transformer(config)
    theirs = _read_weights(folder)
    ours: dict[str, Tensor] = {}
    prefix = "" if any(name.startswith(("transformer.", "model.")) for name in theirs) else "bare"
    for name, parts, turned in names(config, family_of(config)):
        found = [theirs.get(p.split(".", 1)[1] if prefix else p) for p in parts]
        if any(tensor is None for tensor in found):
            raise CheckpointError(
                f"{folder} has no tensor {parts[0]}: it is not a whole checkpoint."
            )
        pieces = [tensor.float() for tensor in found if tensor is not None]
        whole = pieces[0].t() if turned else torch.cat(pieces, 0)
        if whole.shape != model.state_dict()[name].shape:
            raise CheckpointError(
                f"{folder}: {parts[0]} has shape {tuple(whole.shape)}, its config says "
                f"{tuple(model.state_dict()[name].shape)}."
            )
        ours[name] = whole.contiguous()
    if config.tie_embeddings:
        ours["head.weight"] = ours["embedding.weight"]
    model.load_state_dict(ours)
    return model.to(device).eval()


def _sizes(config: ModelConfig, parts: tuple[str, ...]) -> list[int]:
    if len(parts) == 3:  # queries, keys, values
        width = config.kv_heads * config.head_dim
        return [config.d_model, width, width]
    return [config.hidden, config.hidden]  # gate, up


def _their_config(config: ModelConfig, family: Family) -> dict[str, Any]:
    common = {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "dtype": "float32",
    }
    if family == "gpt2":
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": config.context,
            "n_embd": config.d_model,
            "n_layer": config.n_layers,
            "n_head": config.n_heads,
            "n_inner": config.hidden,
            "activation_function": GPT2_ACTIVATIONS[config.activation],
            "layer_norm_epsilon": config.norm_eps,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": 0.0,
            **common,
        }
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
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
        "attention_bias": False,
        "mlp_bias": False,
        **common,
    }


def _our_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        kind = values["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is not the config of a model: {error!r}.") from error
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(f"{path} describes {kind!r}; GPT-2 and Llama can be read.")
    try:
        config = _from_gpt2(values) if kind == "gpt2" else _from_llama(values)
    except KeyError as error:
        raise CheckpointError(f"{path} has no key {error}.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    return config


def _from_gpt2(values: dict[str, Any]) -> ModelConfig:
    activations = {theirs: ours for ours, theirs in GPT2_ACTIVATIONS.items()}
    name = values.get("activation_function", "gelu_new")
    if name not in activations:
        raise ValueError(f"the activation {name!r} is not known.")
    if values.get("scale_attn_by_inverse_layer_idx") or not values.get("scale_attn_weights", True):
        raise ValueError("its attention is scaled in another way.")
    return ModelConfig(
        vocab_size=values["vocab_size"],
        context=values["n_positions"],
        d_model=values["n_embd"],
        n_layers=values["n_layer"],
        n_heads=values["n_head"],
        d_ff=values.get("n_inner"),
        activation=activations[name],  # type: ignore[arg-type]
        tie_embeddings=values.get("tie_word_embeddings", True),
        norm_eps=values.get("layer_norm_epsilon", 1e-5),
    )


def _from_llama(values: dict[str, Any]) -> ModelConfig:
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError("its rotary positions are scaled, which is not supported.")
    if values.get("attention_bias") or values.get("mlp_bias"):
        raise ValueError("its matrices have biases, which is not supported.")
    d_model, heads = values["hidden_size"], values["num_attention_heads"]
    if (values.get("head_dim") or d_model // heads) * heads != d_model:
        raise ValueError("its heads together are not as wide as the model.")
    if values.get("hidden_act", "silu") != "silu":
        raise ValueError(f"the activation {values['hidden_act']!r} is not SwiGLU's.")
    return ModelConfig(
        vocab_size=values["vocab_size"],
        context=values["max_position_embeddings"],
        d_model=d_model,
        n_layers=values["num_hidden_layers"],
        n_heads=heads,
        n_kv_heads=values.get("num_key_value_heads"),
        d_ff=values["intermediate_size"],
        norm="rmsnorm",
        positions="rope",
        activation="swiglu",
        bias=False,
        tie_embeddings=values.get("tie_word_embeddings", False),
        rope_theta=float(rope.get("rope_theta", values.get("rope_theta", 10_000.0))),
        norm_eps=values.get("rms_norm_eps", 1e-6),
    )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of one model.safetensors, or of the shards its index lists."""
    index = folder / "model.safetensors.index.json"
    try:
        files = [WEIGHTS]
        if index.is_file():
            files = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        weights: dict[str, Tensor] = {}
        for name in files:
            if Path(name).name != name:
                raise CheckpointError(f"{index} points outside its folder, at {name!r}.")
            weights.update(load_file(folder / name))
        return weights
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"The weights in {folder} cannot be read: {error}.") from error
