"""From a trained model to one with another output layer: what fine-tuning begins with."""

from __future__ import annotations

from dataclasses import replace

from model.architecture import Transformer
from model.config import ModelConfig, config_to_dict

#: What a fine-tuned model may have otherwise than the one it began as.
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
    """The config of a model that gives labels, ``of_sequences`` or to each token.

    As there is for each an architecture of transformers: whole sequences are read off an encoder's
    first token through BERT's pooler (Devlin et al. 2019), off a decoder's last without a bias.
    """
    is_encoder = config.architecture == "encoder"
    token_types = (
        max(config.token_types, sentence_count)
        if is_encoder and sentence_count > 1
        else config.token_types
    )
    return replace(
        config,
        labels=labels,
        tie_embeddings=False,
        head_transform=is_encoder and per_sequence,
        head_bias=is_encoder or not per_sequence,
        token_types=token_types,
    )


def adapt_model_to_config(
    model: Transformer, config: ModelConfig, model_name: str = "The model"
) -> Transformer:
    """A model of ``config`` with the weights of ``model``; where it gives other labels, its output
    layer is new. New embeddings of token types begin at 0, where they change nothing.

    ValueError, which calls the model ``name``, where more than the task differs.
    """
    old_settings, new_settings = config_to_dict(model.config), config_to_dict(config)
    for key in sorted(old_settings.keys() - TASK_SPECIFIC_SETTINGS):
        if old_settings[key] != new_settings[key]:
            raise ValueError(
                f"{model_name} is of another model than the job asks: its {key} is "
                f"{old_settings[key]}, not "
                f"{new_settings[key]}."
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
    """Let only the output layer learn: the features are a frozen model's."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(OUTPUT_LAYER_PREFIXES))


def is_body_trainable(model: Transformer) -> bool:
    """Whether more than the output layer does."""
    return any(
        parameter.requires_grad and not name.startswith(OUTPUT_LAYER_PREFIXES)
        for name, parameter in model.named_parameters()
    )
