"""Write and read checkpoints of ``transformers``: GPT-2, Llama, BERT and Marian.

A converted model gives the same logits. Only safetensors and JSON files are read and written.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig
from hallmark.model.interchange.atomic_files import write_folder_atomically, write_safetensors
from hallmark.model.interchange.checkpoint import (
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    CheckpointError,
    load_matching_tokenizer,
)
from hallmark.model.interchange.classifier_families import CLASSIFIER_FAMILIES
from hallmark.model.interchange.model_families import (
    MARIAN_BIAS,
    MODEL_FAMILIES,
    TIED_TENSOR_NAMES,
    TYPE_EMBEDDINGS,
)
from hallmark.model.interchange.tensor_mappings import ModelFamily
from hallmark.model.interchange.uninitialised import make_uninitialised_model
from hallmark.model.interchange.weight_files import list_weight_files
from hallmark.model.special_tokens import END_OF_TEXT_ID

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def find_matching_family(config: ModelConfig) -> ModelFamily:
    """Return the family that computes the same as a config; ValueError if there is none."""
    candidates = CLASSIFIER_FAMILIES if config.labels else list(MODEL_FAMILIES.values())
    architecture_families = [
        family
        for family in candidates
        if config.architecture in family.supported_settings["architecture"]
    ]
    for family in architecture_families:
        if not family.describe_unsupported_settings(config):
            return family
    reasons = [
        f"for {family.model_class}, {', and '.join(family.describe_unsupported_settings(config))}"
        for family in architecture_families
    ]
    raise ValueError(
        "No model class in the transformers library computes the same outputs as a model with "
        f"this config: {'; '.join(reasons)}."
    )


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|pad|>",
}


def export_transformers(
    model: Transformer, folder: str | Path, *, tokenizer_path: str | Path
) -> None:
    """Write a folder that transformers' auto classes load, with equal logits.

    Raises:
        ValueError: No family computes the same as the model.
        CheckpointError: The tokenizer does not belong to the model.
    """
    config = model.config
    if model.objective == "prefix":
        raise ValueError(
            "The transformers library has no architecture with the attention mask of a prefix "
            "language model, so this model cannot be exported."
        )
    tokenizer = load_matching_tokenizer(Path(tokenizer_path), config.vocab_size)
    if config.architecture != "encoder_decoder":  # whose sources begin with no such token
        _prepend_begin_token_when_encoding(tokenizer)
    family = find_matching_family(config)
    own_tensors = model.state_dict()
    embedding_rows = own_tensors["embedding.weight"][: config.vocab_size]  # without the padding
    own_tensors["embedding.weight"] = embedding_rows
    for name in own_tensors.keys() & {"head.weight", "head.bias"}:
        own_tensors[name] = own_tensors[name][: config.output_size]
    transformers_tensors: dict[str, Tensor] = {}
    for mapping in family.list_tensor_mappings(config):
        tensor = _permute_residual_dimensions(
            mapping.own_name,
            own_tensors[mapping.own_name],
            config,
            to_halved_sinusoids=family.has_halved_sinusoids,
        )
        part_count = len(mapping.transformers_names)
        pieces = (
            tensor.split(_compute_fused_part_sizes(config, part_count), 0)
            if part_count > 1
            else (tensor,)
        )
        for tensor_name, piece in zip(mapping.transformers_names, pieces, strict=True):
            # Cloned, since a slice would be saved with the whole tensor.
            piece = piece.t() if mapping.is_transposed else piece
            transformers_tensors[tensor_name] = piece.contiguous().clone()
    if family.base_prefix == "bert." and not config.token_types:
        transformers_tensors[TYPE_EMBEDDINGS] = torch.zeros(1, config.d_model)
    if family is MODEL_FAMILIES["marian"]:
        transformers_tensors[MARIAN_BIAS] = transformers_tensors[MARIAN_BIAS].unsqueeze(0)
    common_settings = {
        "architectures": [family.model_class],
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "dtype": "float32",
    }
    with write_folder_atomically(Path(folder)) as temporary:
        write_safetensors(transformers_tensors, temporary / WEIGHTS_FILE)
        text = json.dumps(family.to_transformers_config(config) | common_settings, indent=2)
        (temporary / "config.json").write_text(text + "\n", encoding="utf-8")
        tokenizer.save(str(temporary / TOKENIZER_FILE))
        # Without this file AutoTokenizer uses the family's usual class, with other ids.
        text = json.dumps(TOKENIZER_CONFIG, indent=2)
        (temporary / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _prepend_begin_token_when_encoding(tokenizer: Tokenizer) -> None:
    """Let every encoded text begin with the token that begins every training document.

    Otherwise transformers' pipelines, which add what the tokenizer adds, misread the model.
    """
    from tokenizers.processors import Sequence, TemplateProcessing

    begin_token = tokenizer.id_to_token(END_OF_TEXT_ID)
    template = TemplateProcessing(
        single=f"{begin_token} $A",
        pair=f"{begin_token} $A $B:1",
        special_tokens=[(begin_token, END_OF_TEXT_ID)],
    )
    processors = [tokenizer.post_processor, template] if tokenizer.post_processor else [template]
    tokenizer.post_processor = Sequence(processors)


def import_transformers(folder: str | Path, device: str | torch.device = "cpu") -> Transformer:
    """Load the model of a transformers folder, in fp32 and evaluation mode.

    Raises:
        CheckpointError: The folder cannot be read as one of the families.
    """
    folder = Path(folder)
    family, config, config_values = _read_transformers_config(folder)
    weights = _load_all_weights(folder, config_values)
    weights = _drop_integer_buffers(folder, weights, family, config)
    try:
        transformers_tensors = _convert_to_fp32_with_full_names(weights, family, config)
        if config.tie_embeddings:
            transformers_tensors = _add_missing_tied_tensors(family, transformers_tensors)
            config = _untie_if_weights_differ(folder, family, config, transformers_tensors)
        own_tensors = _to_own_tensors(folder, family, config, transformers_tensors)
    except (RuntimeError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"{folder}: the shape of a tensor does not match the folder's config.json: "
            f"{str(error).splitlines()[0]}."
        ) from error
    model = make_uninitialised_model(config, device)
    if config.tie_embeddings:
        own_tensors["head.weight"] = own_tensors["embedding.weight"]
    model.load_state_dict(own_tensors)
    if family is MODEL_FAMILIES["marian"]:  # Marian models are trained to translate
        model.objective, model.is_trained_on_pairs = "seq2seq", True
    return model.eval()


def _to_own_tensors(
    folder: Path, family: ModelFamily, config: ModelConfig, transformers_tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Convert transformers' tensors to this program's, and check their shapes."""
    expected_tensors = make_uninitialised_model(config).state_dict()
    own_tensors: dict[str, Tensor] = {}
    for mapping in family.list_tensor_mappings(config):
        source_tensors = [
            transformers_tensors[tensor_name]
            for tensor_name in mapping.transformers_names
            if tensor_name in transformers_tensors
        ]
        if len(source_tensors) < len(mapping.transformers_names):
            raise CheckpointError(
                f"{folder} has no tensor {mapping.transformers_names[0]}: the checkpoint is "
                "incomplete."
            )
        tensor = source_tensors[0].t() if mapping.is_transposed else torch.cat(source_tensors, 0)
        expected_shape = expected_tensors[mapping.own_name].shape
        if tensor.shape != expected_shape:
            raise CheckpointError(
                f"{folder}: {mapping.transformers_names[0]} has shape {tuple(tensor.shape)}, but "
                f"config.json requires {tuple(expected_shape)}."
            )
        if family.has_halved_sinusoids:
            tensor = _permute_residual_dimensions(
                mapping.own_name, tensor, config, to_halved_sinusoids=False
            )
        own_tensors[mapping.own_name] = tensor.contiguous()
    return own_tensors


def _convert_to_fp32_with_full_names(
    transformers_tensors: dict[str, Tensor], family: ModelFamily, config: ModelConfig
) -> dict[str, Tensor]:
    """Convert transformers' tensors to fp32 with full names.

    A single BERT type embedding is added to the positions, where this program has no types.
    """
    lacks_prefix = not any(name.startswith(family.base_prefix) for name in transformers_tensors)
    full_names = {
        tensor_name
        for mapping in family.list_tensor_mappings(config)
        for tensor_name in mapping.transformers_names
    }
    full_names.update(*TIED_TENSOR_NAMES[family.model_class].values())
    transformers_tensors = {
        (family.base_prefix if lacks_prefix and name not in full_names else "")
        + name: tensor.float()
        for name, tensor in transformers_tensors.items()
    }
    if (
        family.base_prefix == "bert."
        and TYPE_EMBEDDINGS in transformers_tensors
        and not config.token_types
    ):
        positions = "bert.embeddings.position_embeddings.weight"
        type_embeddings = transformers_tensors[TYPE_EMBEDDINGS]
        if type_embeddings.ndim != 2 or type_embeddings.shape[1] != config.d_model:
            raise TypeError(f"{TYPE_EMBEDDINGS} has shape {tuple(type_embeddings.shape)}")
        if positions in transformers_tensors:
            transformers_tensors[positions] = transformers_tensors[positions] + type_embeddings[0]
    if family is MODEL_FAMILIES["marian"] and "model.shared.weight" in transformers_tensors:
        shared = transformers_tensors["model.shared.weight"]
        bias = transformers_tensors.get(MARIAN_BIAS, torch.zeros(1, len(shared)))
        transformers_tensors[MARIAN_BIAS] = bias.flatten()
    return transformers_tensors


def _permute_residual_dimensions(
    tensor_name: str, tensor: Tensor, config: ModelConfig, *, to_halved_sinusoids: bool
) -> Tensor:
    """Permute the residual stream's dimensions in a tensor of an encoder-decoder.

    With ``to_halved_sinusoids`` from this program's order, alternating sines and cosines, to first
    all sines, then all cosines; otherwise back.
    """
    if config.architecture != "encoder_decoder" or tensor_name == "head.bias":
        return tensor
    order = torch.arange(config.d_model).view(-1, 2).t().flatten()  # 0, 2, 4, … 1, 3, 5, …
    order = order if to_halved_sinusoids else order.argsort()
    writes_residual = tensor_name.endswith(("out.weight", "down.weight", "out.bias", "down.bias"))
    if writes_residual or "norm" in tensor_name:
        return tensor[order]
    return tensor if tensor_name.endswith("bias") else tensor[:, order]  # reads the residual stream


def _compute_fused_part_sizes(config: ModelConfig, part_count: int) -> list[int]:
    if part_count == 3:  # queries, keys, values
        kv_width = config.kv_head_count * config.head_dim
        return [config.query_width, kv_width, kv_width]
    return [config.feed_forward_width, config.feed_forward_width]  # gate, up


class _TransformersConfig(NamedTuple):
    """The config.json of a transformers folder.

    Attributes:
        family: family that the model belongs to.
        config: this program's config of the model.
        values: content of the file.
    """

    family: ModelFamily
    config: ModelConfig
    values: dict[str, Any]


def _read_transformers_config(folder: Path) -> _TransformersConfig:
    path = folder / "config.json"
    try:
        config_values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        model_type = config_values["model_type"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as a model config: {error!r}.") from error
    if not isinstance(model_type, str) or model_type not in MODEL_FAMILIES:
        raise CheckpointError(
            f"{path} describes a model of type {model_type!r}, but only "
            f"{', '.join(MODEL_FAMILIES)} can be read."
        )
    classifier_classes = {family.model_class for family in CLASSIFIER_FAMILIES}
    if config_values.get("architectures") in [[name] for name in classifier_classes]:
        raise CheckpointError(
            f"{path} describes a classifier, but only language models can be read."
        )
    try:
        return _TransformersConfig(
            MODEL_FAMILIES[model_type],
            MODEL_FAMILIES[model_type].from_transformers_config(config_values),
            config_values,
        )
    except KeyError as error:
        raise CheckpointError(f"{path} has no key {error}.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    except (TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} contains a value of the wrong type: {error}.") from error


def _load_all_weights(folder: Path, config_values: dict[str, Any]) -> dict[str, Tensor]:
    """Load all tensors of a folder with this config.json."""
    if config_values.get("quantization_config"):
        raise CheckpointError(
            f"{folder} has quantised weights (quantization_config in its config.json): convert "
            "them to floating-point numbers first."
        )
    weights: dict[str, Tensor] = {}
    try:
        for path in list_weight_files(folder, config_values):
            weights.update(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"The weights in {folder} cannot be read: {error}.") from error
    return weights


def _drop_integer_buffers(
    folder: Path, weights: dict[str, Tensor], family: ModelFamily, config: ModelConfig
) -> dict[str, Tensor]:
    """Drop integer tensors that are not weights, such as masks and positions.

    Raises:
        CheckpointError: A weight does not have a float type.
    """
    weight_names = {
        tensor_name
        for mapping in family.list_tensor_mappings(config)
        for tensor_name in mapping.transformers_names
    }
    weight_names.update(*TIED_TENSOR_NAMES[family.model_class].values())
    for name, tensor in weights.items():
        if not tensor.is_floating_point() and not weight_names.isdisjoint(
            (name, family.base_prefix + name)
        ):
            raise CheckpointError(
                f"{folder}: the tensor {name} has type {tensor.dtype} because it is quantised: "
                "convert the weights to floating-point numbers first."
            )
    return {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}


def _add_missing_tied_tensors(
    family: ModelFamily, transformers_tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors, with one that is missing replaced by a tensor that is tied to it."""
    added_tensors = {
        source_name: transformers_tensors[tied_name]
        for source_name, tied_names in TIED_TENSOR_NAMES[family.model_class].items()
        for tied_name in reversed(tied_names)
        if source_name not in transformers_tensors and tied_name in transformers_tensors
    }
    return transformers_tensors | added_tensors


def _untie_if_weights_differ(
    folder: Path, family: ModelFamily, config: ModelConfig, transformers_tensors: dict[str, Tensor]
) -> ModelConfig:
    """Return the config, with an untied output layer if tensors that it ties differ.

    A folder may tie two tensors and contain both; transformers then keeps both.

    Raises:
        CheckpointError: They differ in a family that supports only tied output layers.
    """
    for source_name, tied_names in TIED_TENSOR_NAMES[family.model_class].items():
        for tied_name in (name for name in tied_names if name in transformers_tensors):
            if not torch.equal(transformers_tensors[source_name], transformers_tensors[tied_name]):
                if "tie_embeddings" in family.supported_settings:
                    raise CheckpointError(
                        f"{folder}: the tensors {tied_name} and {source_name} are tied in "
                        "config.json, but have different values, which is not supported."
                    )
                config = replace(config, tie_embeddings=False)
    return config
