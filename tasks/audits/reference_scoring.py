"""Score with a reference model: the likelihood of responses under a model of other training text.

Text that is probable under such a model tells nothing about this training. The reference has its
own tokenizer, so it reads texts, not token ids: each response after the text of its item.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_tables import REFERENCE_SCORES
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.inference import RespondConfig, open_cached_model
from hallmark.tasks.contract import (
    Artifact,
    StageContext,
    TableWriters,
    UsageError,
    stage,
)

#: Texts per batch: a killed stage resumes after the last complete batch.
TEXTS_PER_BATCH = 1024


@dataclass(frozen=True)
class ResponseBatch:
    """Hold responses that are scored together; messages show their positions, never their text."""

    first_index: int
    responses: pa.Table

    def __str__(self) -> str:
        return f"texts {self.first_index + 1:,} to {self.first_index + len(self.responses):,}"


def score_batch_with_reference(
    batch: ResponseBatch, reference_model: Artifact, config: RespondConfig, out: TableWriters
) -> None:
    """Write rows of REFERENCE_SCORES for responses with the ``prompt`` column."""
    model, response_rows = open_cached_model(reference_model, config), batch.responses
    log_likelihoods, token_counts = model.compute_log_likelihoods(
        *(response_rows[name].to_pylist() for name in ("text", "prompt"))
    )
    known_likelihoods = np.where(
        (token_counts > 0) & np.isfinite(log_likelihoods), log_likelihoods, np.nan
    )
    score_columns = {
        "request": response_rows["request"],
        "draw": response_rows["draw"],
        "reference_log_likelihood": pa.array(known_likelihoods, from_pandas=True),
    }
    out.get_table_writer("reference_scores").write(pa.table(score_columns, schema=REFERENCE_SCORES))


@stage(
    name="score_with_reference",
    tables={"reference_scores": REFERENCE_SCORES},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
    reads={"request_set": ("items", "requests"), "response_set": ("responses",)},
)
def score_with_reference(
    reference_model: Artifact,
    request_set: Artifact,
    response_set: Artifact,
    config: RespondConfig,
    context: StageContext,
) -> None:
    """Score the responses with the causal model ``reference_model``.

    A generated text is scored after the text of its item. For a target, the ``source_text`` of its
    request is scored from its beginning, if the request is in the main part. Other responses get no
    row.
    """
    device = context.share_model_between_items(config.device)
    request_columns = ["request", "item", "part", "source_text"]
    requests, items = request_set["requests"].read(request_columns), request_set["items"].read()
    response_rows = response_set["responses"].read(["request", "draw", "text"])
    is_generated = pc.is_valid(response_rows["text"])
    texts = pc.if_else(pc.equal(requests["part"], ""), requests["source_text"], None)
    source_texts = _look_up_values(response_rows["request"], requests["request"], texts)
    text_index = response_rows.schema.get_field_index("text")
    texts = pc.if_else(is_generated, response_rows["text"], source_texts)
    response_rows = response_rows.set_column(
        text_index, response_rows.schema.field(text_index), texts
    )
    response_rows = response_rows.append_column("is_generated", is_generated).filter(
        pc.is_valid(texts)
    )
    if len(response_rows) and open_audited_tokenizer(reference_model).model_kind == "masked":
        raise UsageError(
            f"{reference_model.name} is a masked language model and cannot score generated "
            "text; specify a causal language model as the reference"
        )
    item_ids = _look_up_values(response_rows["request"], requests["request"], requests["item"])
    prompts = pc.if_else(
        response_rows["is_generated"],
        _look_up_values(item_ids, items["item"], items["text"]),
        "",
    )
    response_rows = response_rows.append_column("prompt", prompts)
    bounds = [*range(0, len(response_rows), TEXTS_PER_BATCH), len(response_rows)]
    batches = [
        ResponseBatch(begin, response_rows.slice(begin, end - begin))
        for begin, end in pairwise(bounds)
    ]
    context.map_items(
        score_batch_with_reference,
        batches,
        reference_model,
        config.model_copy(update={"device": device}),
    )


def _look_up_values(
    keys: pa.ChunkedArray, known_keys: pa.ChunkedArray, values: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Return the value of each key, from its first row in ``known_keys``; null: unknown key."""
    return values.take(pc.index_in(keys, value_set=known_keys.combine_chunks()))
