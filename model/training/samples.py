"""Generate sample texts during training, for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import Precision
from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.inference_mode import autocast_to_precision
from hallmark.model.special_tokens import END_OF_TEXT_ID

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLES_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("sample_id", pa.int64(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),  # input of the encoder, else empty
        pa.field("text", pa.string(), nullable=False),
        pa.field("precision", pa.string(), nullable=False),  # of the generation
    ]
)


def generate_sample_rows(
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    decoder_sample_count: int,
    max_tokens: int,
    seed: int,
    encoder_sources: Batch | None,
    precision: Precision = "auto",
) -> list[dict[str, Any]]:
    """Generate texts of at most ``max_tokens`` tokens.

    A decoder generates ``decoder_sample_count`` texts, each from the begin-of-text token. An
    encoder-decoder generates one text from each of the sources of the batch ``encoder_sources``; of
    a packed row it takes the longest document. The draws depend only on the seed, so
    that steps can be compared.

    Returns:
        Rows of ``SAMPLES_SCHEMA`` without the step.
    """
    prompts, sources, samples_per_prompt = [[END_OF_TEXT_ID]], None, decoder_sample_count
    if model.encoder is not None:
        assert (
            encoder_sources is not None
            and encoder_sources.source is not None
            and encoder_sources.source_attention_mask is not None
        )
        segments = encoder_sources.source_segments
        if segments is None:  # each row is one pair
            segments = torch.zeros_like(encoder_sources.source)
        source_rows = zip(
            encoder_sources.source, encoder_sources.source_attention_mask, segments, strict=True
        )
        # The longest document of each row.
        sources = [
            ids[attention_mask & (row_segments == row_segments[attention_mask].mode()[0])].tolist()
            for ids, attention_mask, row_segments in source_rows
        ]
        prompts, samples_per_prompt = prompts * len(sources), 1
    max_new_tokens = min(max_tokens, model.config.context - 1)
    if not max_new_tokens:
        return []  # with a context of one token, nothing fits after the prompt
    generation_options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "samples": samples_per_prompt,
        "seed": seed,
    }
    with autocast_to_precision(model, precision) as used_precision:
        continuations = generate(model, prompts, sources=sources, **generation_options)
    generated_ids = [
        continuation.ids[:-1] if continuation.stopped else continuation.ids
        for prompt_continuations in continuations
        for continuation in prompt_continuations
    ]
    prompt_ids = sources or [[]] * len(generated_ids)
    return [
        {
            "sample_id": i,
            "prompt": _decode_ids(tokenizer, source),
            "text": _decode_ids(tokenizer, ids),
            "precision": used_precision,
        }
        for i, (source, ids) in enumerate(zip(prompt_ids, generated_ids, strict=True))
    ]


def _decode_ids(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))
