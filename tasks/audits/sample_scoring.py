"""Score the texts that the model wrote during training, so that cards can show harmless ones.

Cards use no scorer: every text that they show was scored by a stage, also these samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import StageConfig, StageContext, Table, column, stage, table_schema
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer, scorer_versions


class ScoreSamplesConfig(StageConfig):
    """Settings of the scorer of texts that the model wrote during training."""

    scorer: ScorerConfig = Field(default=ScorerConfig(), description="the toxicity scorer")


SAMPLES = table_schema(
    "Texts generated during training, with their scores.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("sample_id", pa.int64(), "id", "sample index within the step"),
    column(
        "prompt",
        pa.string(),
        "corpus text",
        "encoder input of an encoder-decoder model; empty for other models",
        judged_by="prompt_toxicity",
    ),
    column("text", pa.string(), "model text", "the generated text", judged_by="toxicity"),
    column("precision", pa.string(), "label", "model precision: fp32, or bf16 on a GPU"),
    column(
        "prompt_toxicity",
        pa.float32(),
        "figure",
        "toxicity of the prompt; null if the prompt is empty or the scorer failed",
        unit="score",
    ),
    column(
        "toxicity",
        pa.float32(),
        "figure",
        "toxicity of the text; null if the text is empty or the scorer failed",
        unit="score",
    ),
)


@stage(
    name="score_samples",
    tables={"samples": SAMPLES},
    libraries=["numpy"],
    external_digests=lambda config, secret_id: scorer_versions(config.scorer),
    determinism="machine",
)
def score_samples(samples: Table, config: ScoreSamplesConfig, context: StageContext) -> None:
    scorer = open_scorer(config.scorer)

    def score_batch(texts: Sequence[str]) -> pa.Array:
        return pa.array(scorer.score_toxicity(texts), pa.float32(), from_pandas=True)  # NaN: null

    for batch in samples.iter_batches():
        scores = {
            name: score_batch(batch[text_column].to_pylist())
            for name, text_column in (("prompt_toxicity", "prompt"), ("toxicity", "text"))
        }
        context.get_table_writer("samples").write(
            {name: batch[name] for name in batch.schema.names} | scores
        )
