"""Refer: how likely another model finds what the one under audit wrote.

What is likely to a model that was trained on other text is likely to everybody, and tells nothing
of this training. The reference has a tokenizer of its own, so it is asked about texts: each behind
the text of its item, from which the other went on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_tables import REFERENCE_SCORES
from hallmark.tasks.audits.inference import RespondConfig, open_cached_model
from hallmark.tasks.contract import (
    Artifact,
    SerialMapper,
    StageContext,
    TableWriters,
    UsageError,
    stage,
)

#: Texts between two moments from which a killed stage goes on.
TEXTS_PER_BATCH = 1024


@dataclass(frozen=True)
class ResponseBatch:
    """Responses that are read together; their places are all that a message may say."""

    first_index: int
    responses: pa.Table

    def __str__(self) -> str:
        return f"texts {self.first_index + 1:,} to {self.first_index + len(self.responses):,}"


def score_batch_with_reference(
    batch: ResponseBatch, reference_model: Artifact, device: str, out: TableWriters
) -> None:
    """Rows of REFERRED to responses with their ``prompt``."""
    model, response_rows = open_cached_model(reference_model, device), batch.responses
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
    """``reference_model``: a causal model; ``asked`` and ``answered``: of ``ask`` and ``respond``.
    What was written is read behind the text of its item; what was read for its sake alone, no other
    part, from its beginning, where the request says what of the corpus stands in it. Other texts
    have no row."""
    context.mapper = SerialMapper()
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
    response_rows = response_rows.append_column("was", is_generated).filter(pc.is_valid(texts))
    if (
        len(response_rows)
        and open_cached_model(reference_model, config.device).model_kind == "masked"
    ):
        raise UsageError(
            f"{reference_model.name} is a masked language model, and is no reference for "
            f"what another writes; name a causal one"
        )
    item_ids = _look_up_values(response_rows["request"], requests["request"], requests["item"])
    prompts = pc.if_else(
        response_rows["was"], _look_up_values(item_ids, items["item"], items["text"]), ""
    )
    response_rows = response_rows.append_column("prompt", prompts)
    bounds = [*range(0, len(response_rows), TEXTS_PER_BATCH), len(response_rows)]
    batches = [
        ResponseBatch(begin, response_rows.slice(begin, end - begin))
        for begin, end in pairwise(bounds)
    ]
    context.map_items(score_batch_with_reference, batches, reference_model, config.device)


def _look_up_values(keys: Any, known_keys: Any, values: Any) -> Any:
    """The value beside each key, where that first stands among others."""
    return values.take(pc.index_in(keys, value_set=known_keys.combine_chunks()))
