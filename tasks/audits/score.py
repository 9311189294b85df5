"""Score: ask scorers about texts, those that a model wrote and those of the items.

Each scorer reads each distinct text once, for all its heads. Nothing here knows what the scores are
for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationInfo, field_validator

from tasks.audits.answers import whole_texts
from tasks.audits.exchange import SCORER, SCORES
from tasks.contract import (
    Artifact,
    InProcess,
    StageConfig,
    Table,
    Tables,
    Work,
    stage,
    text_hashes,
)
from tasks.measures.scorers import (
    AnyScorer,
    Scorer,
    ScorerConfig,
    check_some_scored,
    open_scorer,
    scorer_digest,
)

#: Texts between two moments from which a killed stage goes on.
STEP = 4096


class ScoreConfig(StageConfig):
    """Settings of the scorers of the audits."""

    scorer: ScorerConfig = Field(default=ScorerConfig(), description="who scores toxicity")
    also: tuple[AnyScorer, ...] = Field(
        default=(),
        description="further scorers: another of toxicity, to agree with the first or not; of kind "
        "words or classifier, sentiment and regard, which are not measured without",
    )

    @property
    def scorers(self) -> tuple[AnyScorer, ...]:
        return (self.scorer, *self.also)

    @field_validator("also")
    @classmethod
    def _distinct(cls, also: tuple[AnyScorer, ...], info: ValidationInfo) -> tuple[AnyScorer, ...]:
        if len({info.data.get("scorer"), *also}) <= len(also):
            raise ValueError("the same scorer is named twice: it agrees with itself")
        return also

    def of(self, heads: Collection[str]) -> ScoreConfig:
        """Without further scorers that have none of these heads: they need not be asked."""
        wanted = tuple(one for one in self.also if {*one.heads} & {*heads})
        return self.model_copy(update={"also": wanted})


def scorer_name(scorer: Scorer) -> str:
    """Name and digest, as they stand in findings."""
    return f"{scorer.name} ({scorer.digest[:12]})"


@dataclass(frozen=True)
class Texts:
    """Distinct texts that are scored together; their order is all that a message may say."""

    scorer: AnyScorer
    first: int
    texts: pa.Array

    def __str__(self) -> str:
        return f"texts {self.first + 1:,} to {self.first + len(self.texts):,}"


def columns_of(scorer: Scorer, texts: pa.Array) -> dict[str, pa.Array]:
    """Columns of SCORES for distinct texts."""
    scores = scorer.score_heads(texts.to_pylist())  # (n, columns)
    heads = [number for number, head in enumerate(scorer.columns) if head in scorer.heads]
    repeated = np.repeat(np.arange(len(texts)), len(heads))
    return {
        "text": text_hashes(texts).take(pa.array(repeated)),
        "scorer": pa.array([scorer_name(scorer)] * len(repeated), pa.string()),
        "head": pa.array([scorer.columns[n] for n in heads] * len(texts), pa.string()),
        "score": pa.array(scores[:, heads].reshape(-1), pa.float32(), from_pandas=True),
    }


def distinct(texts: pa.ChunkedArray) -> pa.Array:
    """Those with a visible character, each once."""
    once = texts.drop_null().unique()
    return once.filter(pc.not_equal(pc.utf8_trim_whitespace(once), ""))


def score_texts(item: Texts, out: Tables) -> dict[str, Any]:
    """Write rows of SCORES for distinct texts; how many have a score, and why others have none."""
    scorer = open_scorer(item.scorer)
    columns = columns_of(scorer, item.texts)
    out.table("scores").write(columns)
    known = pc.unique(columns["text"].filter(pc.is_valid(columns["score"])))
    return {"texts": len(item.texts), "scored": len(known), "why": scorer.failure}


def digests_of(config: ScoreConfig) -> dict[str, str]:
    """What decides the scores and comes from outside the store."""
    further = {
        f"{name} {number}": value
        for number, scorer in enumerate(config.also, start=2)
        for name, value in scorer_digest(scorer).items()
    }
    return scorer_digest(config.scorer) | further


@stage(
    tables={"scores": SCORES, "scorer": SCORER},
    libraries=["numpy", "alt-profanity-check", "detoxify", "scikit-learn"],
    external=lambda config, secret_id: digests_of(config),
    determinism="machine",
    reads={"asked": ("items", "requests")},
)
def score(asked: Artifact | None, responses: Table, config: ScoreConfig, work: Work) -> None:
    """``asked``: what ``ask`` left, where items are to be scored; ``responses``: of ``respond``. A
    text without a visible character has no score, and no row. Regard is of whole texts."""
    work.mapper = InProcess()  # a scorer is opened once, and uses every processor
    written = responses.read(["request", "text"])
    items = asked["items"].read(["text"])["text"].chunks if asked else ()
    texts = distinct(pa.chunked_array([*items, *written["text"].chunks], pa.large_string()))
    whole = texts[:0]
    if asked and any("regard" in scorer.heads for scorer in config.also):
        requests = asked["requests"].read(["request", "before", "masked"])
        whole = distinct(pa.chunked_array([whole_texts(requests, written)]))
    steps = [
        Texts(scorer, i, read[i : i + STEP])
        for scorer in config.scorers
        for read in [whole if "regard" in scorer.heads else texts]
        for i in range(0, len(read), STEP)
    ]
    done = work.map(score_texts, steps)
    for scorer in config.scorers:
        values = [
            part.value for step, part in zip(steps, done, strict=True) if step.scorer == scorer
        ]
        scored, given = (sum(value[name] for value in values) for name in ("scored", "texts"))
        why = next((value["why"] for value in values if value["why"]), "")
        check_some_scored(open_scorer(scorer).name, scored, given, why)
    asking = [open_scorer(scorer) for scorer in config.scorers]
    rows = {"scorer": [*map(scorer_name, asking)], "heads": [[*one.heads] for one in asking]}
    work.table("scorer").write(pa.table(rows, schema=SCORER))
