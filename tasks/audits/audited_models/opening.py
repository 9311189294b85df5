"""Open the model or the tokenizer of a checkpoint folder, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

from hallmark.model.config import Precision
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.audited_tokenizer import (
    AuditedTokenizer,
    read_checkpoint_config,
    resolve_checkpoint_folder,
)
from hallmark.tasks.contract import Artifact, resolve_torch_device


def open_audited_model(
    checkpoint: Artifact | Path | str,
    device: str = "auto",
    *,
    precision: Precision = "auto",
    allow_pairs: bool = False,
    untrained_seed: int | None = None,
) -> AuditedModel:
    """The model of a checkpoint folder, on a device ("auto": the GPU where there is one), in a
    precision ("auto": bf16 on a GPU that has it). With a seed: the same model before any training,
    with weights drawn from it; those of the checkpoint are not looked at.

    Raises UsageError, one sentence, where the folder holds no model that can be loaded safely, or
    none of language: of labels, or, unless ``pairs`` asks for it, one that answers sources.
    """
    folder, name = resolve_checkpoint_folder(checkpoint)
    config = read_checkpoint_config(folder)
    device = resolve_torch_device(device)
    if config.get("model_type") == "hallmark":
        from hallmark.tasks.audits.audited_models.hallmark_model import open_hallmark_model

        model = open_hallmark_model(
            folder, name, device, allow_pairs=allow_pairs, untrained_seed=untrained_seed
        )
    else:
        from hallmark.tasks.audits.audited_models.transformers_model import open_transformers_model

        model = open_transformers_model(folder, config, name, device, untrained_seed=untrained_seed)
    from hallmark.model.decoding.inference_mode import autocast_to_precision

    with autocast_to_precision(model.model, precision) as model.precision:
        return model


def open_audited_tokenizer(checkpoint: Artifact | Path | str) -> AuditedTokenizer:
    """The reader of a checkpoint folder, whose weights are not looked at.

    Raises UsageError, one sentence, where the folder holds no language model, or one that answers
    sources.
    """
    folder, name = resolve_checkpoint_folder(checkpoint)
    config = read_checkpoint_config(folder)
    if config.get("model_type") == "hallmark":
        from hallmark.tasks.audits.audited_models.hallmark_tokenizer import open_hallmark_tokenizer

        return open_hallmark_tokenizer(folder, name)
    from hallmark.tasks.audits.audited_models.transformers_tokenizer import (
        open_transformers_tokenizer,
    )

    return open_transformers_tokenizer(folder, config, name)
