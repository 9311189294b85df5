"""From a trained model to one with another output layer: what fine-tuning begins with."""

from __future__ import annotations

from dataclasses import replace

from model.architecture import Transformer
from model.config import ModelConfig, to_dict

#: What a fine-tuned model may have otherwise than the one it began as.
OF_THE_TASK = {
    "labels", "tie_embeddings", "head_transform", "head_bias", "token_types", "dropout",
    "attention_dropout",
}  # fmt: skip

OUTPUT = ("head.", "transform.")


def for_labels(
    config: ModelConfig, labels: tuple[str, ...], *, of_sequences: bool, sentences: int
) -> ModelConfig:
    """The config of a model that gives labels, ``of_sequences`` or to each token.

    As there is for each an architecture of transformers: whole sequences are read off an encoder's
    first token through BERT's pooler (Devlin et al. 2019), off a decoder's last without a bias.
    """
    encoder = config.architecture == "encoder"
    types = max(config.token_types, sentences) if encoder and sentences > 1 else config.token_types
    return replace(
        config,
        labels=labels,
        tie_embeddings=False,
        head_transform=encoder and of_sequences,
        head_bias=encoder or not of_sequences,
        token_types=types,
    )


def adapted(model: Transformer, config: ModelConfig, name: str = "The model") -> Transformer:
    """A model of ``config`` with the weights of ``model``; where it gives other labels, its output
    layer is new. New embeddings of token types begin at 0, where they change nothing.

    ValueError, which calls the model ``name``, where more than the task differs.
    """
    old, new = to_dict(model.config), to_dict(config)
    for key in sorted(old.keys() - OF_THE_TASK):
        if old[key] != new[key]:
            raise ValueError(
                f"{name} is of another model than the job asks: its {key} is {old[key]}, not "
                f"{new[key]}."
            )
    made = Transformer(config)
    anew = OUTPUT if config.labels != model.config.labels else ()
    weights = {n: t for n, t in model.state_dict().items() if not n.startswith(anew)}
    if config.token_types != model.config.token_types:
        table = made.type_embedding.weight.detach().zero_()
        kept = weights.pop("type_embedding.weight", table[:0])
        table[: len(kept)] = kept
    made.load_state_dict(weights, strict=False)
    return made


def freeze_body(model: Transformer) -> None:
    """Let only the output layer learn: the features are a frozen model's."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(OUTPUT))


def body_learns(model: Transformer) -> bool:
    """Whether more than the output layer does."""
    return any(p.requires_grad and not n.startswith(OUTPUT) for n, p in model.named_parameters())
