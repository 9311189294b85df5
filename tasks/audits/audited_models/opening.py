"""Open the model or the tokenizer of a checkpoint folder, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hallmark.model.config import Precision
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel, ModelDtype
from hallmark.tasks.audits.audited_models.audited_tokenizer import (
    AuditedTokenizer,
    read_checkpoint_config,
    resolve_checkpoint_folder,
)
from hallmark.tasks.contract import Artifact, UsageError, resolve_torch_device

#: Description of the setting dtype of each stage that opens an audited model.
DTYPE_DESCRIPTION = (
    "data type of the audited model: auto, float32, bfloat16 or float16 (only for Hugging Face "
    "models on a GPU); auto selects float32, with matrix products in bfloat16 on GPUs that "
    "support it"
)


def open_audited_model(
    checkpoint: Artifact | Path | str,
    device: str = "auto",
    *,
    dtype: ModelDtype = "auto",
    batch_size: int | None = None,
    allow_pairs: bool = False,
    untrained_seed: int | None = None,
    is_scaled_down: bool = False,
) -> AuditedModel:
    """Open the model of a checkpoint folder.

    Args:
        checkpoint: The checkpoint.
        device: The device; "auto": the GPU if there is one.
        dtype: The data type of the weights. A checkpoint of Hallmark keeps its weights in float32
            and multiplies matrices in this type.
        batch_size: Largest number of rows in one call of a Hugging Face model.
        allow_pairs: Whether to open a model that was trained on pairs.
        untrained_seed: If given, open the same model before any training, with weights drawn from
            this seed; those of the checkpoint are not read.
        is_scaled_down: Whether this untrained model has the small sizes of
            ``audited_models/small_configs.py``.

    Raises:
        UsageError: The folder holds no language model that can be loaded safely, or the model does
            not support the settings.
    """
    folder, name = resolve_checkpoint_folder(checkpoint)
    config = read_checkpoint_config(folder)
    check_inference_settings(device, dtype, batch_size, is_hallmark=is_hallmark_model(config))
    device = resolve_torch_device(device)
    precision: Precision = "auto"
    if is_hallmark_model(config):
        from hallmark.tasks.audits.audited_models.hallmark_model import open_hallmark_model

        model = open_hallmark_model(
            folder,
            name,
            device,
            allow_pairs=allow_pairs,
            untrained_seed=untrained_seed,
            is_scaled_down=is_scaled_down,
        )
        if dtype != "auto":
            precision = "bf16" if dtype == "bfloat16" else "fp32"
    else:
        from hallmark.tasks.audits.audited_models.transformers_model import open_transformers_model

        model = open_transformers_model(
            folder,
            config,
            name,
            device,
            weights_dtype="float32" if dtype == "auto" else dtype,
            untrained_seed=untrained_seed,
            is_scaled_down=is_scaled_down,
        )
        model.batch_size = batch_size
        if dtype != "auto":
            precision = "fp32"  # without autocast, the data type of the weights decides
    from hallmark.model.decoding.inference_mode import autocast_to_precision

    with autocast_to_precision(model.model, precision) as model.autocast_precision:
        pass
    model.precision = model.autocast_precision
    if model.weights_dtype != "float32":
        model.precision = "bf16" if model.weights_dtype == "bfloat16" else "fp16"
    return model


def iter_small_untrained_models(
    checkpoint: Artifact | Path | str, device: str, seeds: Iterable[int]
) -> Iterator[AuditedModel]:
    """Yield a small untrained model for each seed, in float32.

    The models are one object whose weights change, so that its tokenizer is loaded once.
    """
    audited_model: AuditedModel | None = None
    for seed in seeds:
        if audited_model is None:
            audited_model = open_audited_model(
                checkpoint, device, dtype="float32", untrained_seed=seed, is_scaled_down=True
            )
        else:
            audited_model.redraw_untrained_weights(seed)
        yield audited_model


def is_hallmark_checkpoint(checkpoint: Artifact | Path | str) -> bool:
    """Return whether a checkpoint holds a model of Hallmark, not one of Hugging Face."""
    return is_hallmark_model(read_checkpoint_config(resolve_checkpoint_folder(checkpoint).path))


def is_hallmark_model(checkpoint_config: dict[str, Any]) -> bool:
    """Return whether the config.json of a checkpoint is that of a model of Hallmark."""
    return checkpoint_config.get("model_type") == "hallmark"


def check_inference_settings(
    device: str, dtype: ModelDtype, batch_size: int | None, *, is_hallmark: bool
) -> None:
    """Check that a model supports its settings, before its weights are read.

    Args:
        device: As of ``open_audited_model``.
        dtype: As of ``open_audited_model``.
        batch_size: As of ``open_audited_model``.
        is_hallmark: Whether it is a model of Hallmark.

    Raises:
        UsageError: It does not support one of them.
    """
    if is_hallmark:
        if dtype == "float16":
            raise UsageError(
                "dtype is float16, but Hallmark checkpoints run in float32 or bfloat16; set "
                "dtype to one of these, or to auto"
            )
        if batch_size is not None:
            raise UsageError(
                f"batch_size is {batch_size}, but this setting applies to Hugging Face models "
                "only, because batches of Hallmark checkpoints are limited by their number of "
                "tokens; remove the setting"
            )
    elif dtype == "float16" and resolve_torch_device(device) == "cpu":
        raise UsageError(
            "dtype is float16, but the model would run on the CPU, where float16 is slow and not "
            "supported by all operations; set dtype to bfloat16 or float32, or use a GPU"
        )


def open_audited_tokenizer(checkpoint: Artifact | Path | str) -> AuditedTokenizer:
    """Open the tokenizer of a checkpoint folder, without reading its weights.

    Raises:
        UsageError: The folder holds no language model, or one that was trained on pairs.
    """
    folder, name = resolve_checkpoint_folder(checkpoint)
    config = read_checkpoint_config(folder)
    if is_hallmark_model(config):
        from hallmark.tasks.audits.audited_models.hallmark_tokenizer import open_hallmark_tokenizer

        return open_hallmark_tokenizer(folder, name)
    from hallmark.tasks.audits.audited_models.transformers_tokenizer import (
        open_transformers_tokenizer,
    )

    return open_transformers_tokenizer(folder, config, name)
