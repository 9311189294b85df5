"""Give a trained model another output layer, as the start of fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, config_to_dict

#: Settings in which a fine-tuned model may differ from the model it started from.
TASK_SPECIFIC_SETTINGS = {
    "labels",
    "tie_embeddings",
    "head_transform",
    "head_bias",
    "token_types",
    "dropout",
    "attention_dropout",
}

OUTPUT_LAYER_PREFIXES = ("head.", "transform.")


def make_classifier_config(
    config: ModelConfig, labels: tuple[str, ...], *, per_sequence: bool, sentence_count: int
) -> ModelConfig:
    """Return the config of a classifier of whole sequences (``per_sequence``) or of tokens.

    Each follows an architecture of transformers: an encoder classifies sequences by their first
    token, through BERT's pooler (Devlin et al. 2019), a decoder by their last token, without a
    bias.
    """
    is_encoder = config.architecture == "encoder"
    token_types = config.token_types
    if is_encoder and sentence_count > 1:
        token_types = max(token_types, sentence_count)
    return replace(
        config,
        labels=labels,
        tie_embeddings=False,
        head_transform=is_encoder and per_sequence,
        head_bias=is_encoder or not per_sequence,
        token_types=token_types,
    )


def copy_model_with_task_settings(
    model: Transformer, config: ModelConfig, model_name: str = "The model"
) -> Transformer:
    """Build a new model of ``config`` with the weights of ``model``.

    The two configs may differ only in TASK_SPECIFIC_SETTINGS. If the labels differ, the output
    layer is new. New embeddings of token types begin at 0, where they have no effect.

    Raises:
        ValueError: Another setting differs; ``model_name`` names the model in the message.
    """
    old_settings, new_settings = config_to_dict(model.config), config_to_dict(config)
    for key in sorted(old_settings.keys() - TASK_SPECIFIC_SETTINGS):
        if old_settings[key] != new_settings[key]:
            raise ValueError(
                f"{model_name} has {key} = {old_settings[key]}, but the job has {key} = "
                f"{new_settings[key]}. Fine-tuning cannot change {key}; set it to "
                f"{old_settings[key]}."
            )
    adapted_model = Transformer(config)
    dropped_prefixes = OUTPUT_LAYER_PREFIXES if config.labels != model.config.labels else ()
    weights = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(dropped_prefixes)
    }
    if config.token_types != model.config.token_types:
        type_table = adapted_model.type_embedding.weight.detach().zero_()
        copied_rows = weights.pop("type_embedding.weight", type_table[:0])
        type_table[: len(copied_rows)] = copied_rows
    adapted_model.load_state_dict(weights, strict=False)
    return adapted_model


def freeze_all_but_output_layer(model: Transformer) -> None:
    """Train only the output layer, on the features of a frozen body."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(OUTPUT_LAYER_PREFIXES))


def is_body_trainable(model: Transformer) -> bool:
    """Whether any parameter outside the output layer is trained."""
    return any(
        parameter.requires_grad and not name.startswith(OUTPUT_LAYER_PREFIXES)
        for name, parameter in model.named_parameters()
    )
