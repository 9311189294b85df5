"""What a model writes while it is trained, to be read by people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from model.architecture import Transformer
from model.batch import Batch
from model.config import Precision
from model.decoding.generate import generate
from model.decoding.mode import computing
from model.tokens import END_OF_TEXT

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLES = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("sample", pa.int64(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),  # what an encoder read, else empty
        pa.field("text", pa.string(), nullable=False),
        pa.field("precision", pa.string(), nullable=False),  # in which it was written
    ]
)


def write_samples(
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    count: int,
    tokens: int,
    seed: int,
    batch: Batch | None,
    precision: Precision = "auto",
) -> list[dict[str, Any]]:
    """Rows of SAMPLES but for the step: texts of at most ``tokens`` tokens.

    A decoder begins at the begin-of-text token; an encoder-decoder answers the sources of
    ``batch``, of packed rows the longest of each. The draws depend on the seed alone, so that steps
    compare.
    """
    prompts, sources, samples = [[END_OF_TEXT]], None, count
    if model.encoder is not None:
        assert batch is not None and batch.source is not None and batch.source_keys is not None
        segments = batch.source_segments
        if segments is None:  # a pair has a row to itself
            segments = torch.zeros_like(batch.source)
        rows = zip(batch.source, batch.source_keys, segments, strict=True)
        # Of the documents in a row the longest.
        sources = [ids[real & (own == own[real].mode()[0])].tolist() for ids, real, own in rows]
        prompts, samples = prompts * len(sources), 1
    most = min(tokens, model.config.context - 1)
    if not most:
        return []  # a context of one token has no room for a second
    how: dict[str, Any] = {"max_new_tokens": most, "samples": samples, "seed": seed}
    with computing(model, precision) as used:
        made = generate(model, prompts, sources=sources, **how)
    written = [text.ids[:-1] if text.stopped else text.ids for texts in made for text in texts]
    asked = sources or [[]] * len(written)
    return [
        {"sample": i, "prompt": _spell(tokenizer, source), "text": _spell(tokenizer, ids),
         "precision": used}
        for i, (source, ids) in enumerate(zip(asked, written, strict=True))
    ]  # fmt: skip


def _spell(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))
