"""Checkpoints of ``transformers``: GPT-2, Llama, BERT and Marian, written and read.

Where the mathematics match, logits are equal. Only safetensors and JSON are touched.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from model.architecture import Transformer
from model.config import ModelConfig
from model.interchange.checkpoint import TOKENIZER, WEIGHTS, CheckpointError, check_tokenizer
from model.interchange.entries import Family
from model.interchange.families import FAMILIES, MARIAN_BIAS, TIED, TYPE_EMBEDDINGS
from model.interchange.files import atomic_folder, save_tensors
from model.interchange.labellers import LABELLERS
from model.interchange.unset import unset
from model.interchange.weights import list_weight_files


def family_of(config: ModelConfig) -> Family:
    """The family whose mathematics a config's are; ValueError where there is none."""
    known = LABELLERS if config.labels else list(FAMILIES.values())
    near = [family for family in known if config.architecture in family.needs["architecture"]]
    for family in near:
        if not family.lacks(config):
            return family
    lacking = [f"{family.model_class} needs {', '.join(family.lacks(config))}" for family in near]
    raise ValueError(f"transformers has no architecture for this config: {'; '.join(lacking)}.")


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|pad|>",
}


def export_transformers(model: Transformer, folder: str | Path, *, tokenizer: str | Path) -> None:
    """Write a folder that transformers' auto classes load, with equal logits.

    Raises ValueError where no family has the model's mathematics, CheckpointError where the
    tokenizer is not the model's.
    """
    config = model.config
    if model.objective == "prefix":
        raise ValueError("transformers has no architecture for a prefix LM's mask.")
    check_tokenizer(Path(tokenizer), config.vocab_size)
    family = family_of(config)
    ours = model.state_dict()
    ours["embedding.weight"] = ours["embedding.weight"][: config.vocab_size]  # without the padding
    for name in ours.keys() & {"head.weight", "head.bias"}:
        ours[name] = ours[name][: config.outputs]
    theirs: dict[str, Tensor] = {}
    for entry in family.entries(config):
        tensor = _permuted(entry.ours, ours[entry.ours], config, to_halves=family.halves)
        parts = len(entry.theirs)
        pieces = tensor.split(_sizes(config, parts), 0) if parts > 1 else (tensor,)
        for part, piece in zip(entry.theirs, pieces, strict=True):
            # Cloned: a slice would be saved with the whole it is cut from.
            theirs[part] = (piece.t() if entry.turned else piece).contiguous().clone()
    if family.base == "bert." and not config.token_types:
        theirs[TYPE_EMBEDDINGS] = torch.zeros(1, config.d_model)
    if family is FAMILIES["marian"]:
        theirs[MARIAN_BIAS] = theirs[MARIAN_BIAS].unsqueeze(0)
    common = {
        "architectures": [family.model_class],
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "dtype": "float32",
    }
    with atomic_folder(Path(folder)) as temporary:
        save_tensors(theirs, temporary / WEIGHTS)
        text = json.dumps(family.written(config) | common, indent=2)
        (temporary / "config.json").write_text(text + "\n", encoding="utf-8")
        shutil.copyfile(tokenizer, temporary / TOKENIZER)
        # Without it AutoTokenizer takes the class that is usual for the family, and other ids.
        text = json.dumps(TOKENIZER_CONFIG, indent=2)
        (temporary / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def import_transformers(folder: str | Path, device: str | torch.device = "cpu") -> Transformer:
    """The model of a folder of one of the families, in fp32 and evaluation mode.

    Raises CheckpointError.
    """
    folder = Path(folder)
    family, config, values = _read_config(folder)
    weights = _read_weights(folder, values)
    weights = _without_buffers(folder, weights, family, config)
    try:
        theirs = _prepared(weights, family, config)
        config = _settle_ties(folder, family, config, theirs)
        ours = _translated(folder, family, config, theirs)
    except (RuntimeError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"{folder}: a tensor does not have the shape that its config.json says: "
            f"{str(error).splitlines()[0]}."
        ) from error
    model = unset(config, device)
    if config.tie_embeddings:
        ours["head.weight"] = ours["embedding.weight"]
    model.load_state_dict(ours)
    if family is FAMILIES["marian"]:  # of translation
        model.objective, model.pairs = "seq2seq", True
    return model.eval()


def _translated(
    folder: Path, family: Family, config: ModelConfig, theirs: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Our tensors of theirs, each of the shape that the config asks for."""
    expected = unset(config).state_dict()
    ours: dict[str, Tensor] = {}
    for entry in family.entries(config):
        found = [theirs[part] for part in entry.theirs if part in theirs]
        if len(found) < len(entry.theirs):
            raise CheckpointError(
                f"{folder} has no tensor {entry.theirs[0]}: it is not a whole checkpoint."
            )
        tensor = found[0].t() if entry.turned else torch.cat(found, 0)
        if tensor.shape != expected[entry.ours].shape:
            raise CheckpointError(
                f"{folder}: {entry.theirs[0]} has shape {tuple(tensor.shape)}, its config says "
                f"{tuple(expected[entry.ours].shape)}."
            )
        tensor = _permuted(entry.ours, tensor, config, to_halves=False) if family.halves else tensor
        ours[entry.ours] = tensor.contiguous()
    return ours


def _prepared(theirs: dict[str, Tensor], family: Family, config: ModelConfig) -> dict[str, Tensor]:
    """Their tensors in fp32 under full names, with what ours has no place for folded in."""
    bare = not any(name.startswith(family.base) for name in theirs)
    whole = {part for entry in family.entries(config) for part in entry.theirs}
    whole.update(*TIED[family.model_class].values())
    theirs = {
        (family.base if bare and name not in whole else "") + name: tensor.float()
        for name, tensor in theirs.items()
    }
    if family.base == "bert." and TYPE_EMBEDDINGS in theirs and not config.token_types:
        positions = "bert.embeddings.position_embeddings.weight"
        types = theirs[TYPE_EMBEDDINGS]
        if types.ndim != 2 or types.shape[1] != config.d_model:
            raise TypeError(f"{TYPE_EMBEDDINGS} has the shape {tuple(types.shape)}")
        if positions in theirs:
            theirs[positions] = theirs[positions] + types[0]
    if family is FAMILIES["marian"] and "model.shared.weight" in theirs:
        shared = theirs["model.shared.weight"]
        bias = theirs.get(MARIAN_BIAS, torch.zeros(1, len(shared)))
        theirs[MARIAN_BIAS] = bias.flatten()
    return theirs


def _permuted(name: str, tensor: Tensor, config: ModelConfig, *, to_halves: bool) -> Tensor:
    """A tensor of an encoder-decoder with the residual stream's dimensions in another order: from
    ours, sine and cosine in turn, to halves, or (``to_halves`` false) back."""
    if config.architecture != "encoder_decoder" or name == "head.bias":
        return tensor
    order = torch.arange(config.d_model).view(-1, 2).t().flatten()  # 0, 2, 4, … 1, 3, 5, …
    order = order if to_halves else order.argsort()
    writes = name.endswith(("out.weight", "down.weight", "out.bias", "down.bias"))
    if writes or "norm" in name:
        return tensor[order]
    return tensor if name.endswith("bias") else tensor[:, order]  # reads the stream


def _sizes(config: ModelConfig, parts: int) -> list[int]:
    if parts == 3:  # queries, keys, values
        width = config.kv_heads * config.head_dim
        return [config.heads_width, width, width]
    return [config.hidden, config.hidden]  # gate, up


def _read_config(folder: Path) -> tuple[Family, ModelConfig, dict[str, Any]]:
    path = folder / "config.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind = values["model_type"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is not the config of a model: {error!r}.") from error
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(f"{path} describes {kind!r}; {', '.join(FAMILIES)} can be read.")
    of_labels = {family.model_class for family in LABELLERS}
    if values.get("architectures") in [[name] for name in of_labels]:
        raise CheckpointError(f"{path} describes a model that gives labels, no language model.")
    try:
        return FAMILIES[kind], FAMILIES[kind].read(values), values
    except KeyError as error:
        raise CheckpointError(f"{path} has no key {error}.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    except (TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} has a value of the wrong type: {error}.") from error


def _read_weights(folder: Path, values: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors of a folder with this config.json."""
    if values.get("quantization_config"):
        raise CheckpointError(
            f"{folder} has quantised weights (quantization_config in its config.json): save them "
            f"as floats first."
        )
    weights: dict[str, Tensor] = {}
    try:
        for path in list_weight_files(folder, values):
            weights.update(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"The weights in {folder} cannot be read: {error}.") from error
    return weights


def _without_buffers(
    folder: Path, weights: dict[str, Tensor], family: Family, config: ModelConfig
) -> dict[str, Tensor]:
    """Leave out tensors of integers that are no weights, such as masks and positions.

    Raises:
        CheckpointError: A weight is not of a float type.
    """
    names = {part for entry in family.entries(config) for part in entry.theirs}
    names.update(*TIED[family.model_class].values())
    for name, tensor in weights.items():
        if not tensor.is_floating_point() and not names.isdisjoint((name, family.base + name)):
            raise CheckpointError(
                f"{folder}: {name} has type {tensor.dtype}, not a float type: its weights are "
                f"quantised."
            )
    return {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}


def _settle_ties(
    folder: Path, family: Family, config: ModelConfig, theirs: dict[str, Tensor]
) -> ModelConfig:
    """The config with its output layer tied or not, as transformers ties what it has loaded.

    A folder may say that two tensors are one and hold both. Where they differ, transformers keeps
    both; where only the second is there, it is taken for the first.
    """
    if not config.tie_embeddings:
        return config
    for first, others in TIED[family.model_class].items():
        for other in (name for name in others if name in theirs):
            if first not in theirs:
                theirs[first] = theirs[other]
            elif not torch.equal(theirs[first], theirs[other]):
                if "tie_embeddings" in family.needs:
                    raise CheckpointError(
                        f"{folder}: {other} is another tensor than {first}, to which its config "
                        f"ties it, which is not supported."
                    )
                config = replace(config, tie_embeddings=False)
    return config
