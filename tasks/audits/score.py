"""Score: ask scorers about texts, those that a model wrote and those of the items.

Each distinct text is scored once, by all heads. Nothing here knows what the scores are for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.audits.exchange import SCORER, SCORES
from tasks.contract import InProcess, StageConfig, Table, Tables, Work, stage, text_hashes
from tasks.measures.scorers import HEADS, Scorer, ScorerConfig, open_scorer, scorer_digest

#: Texts between two moments from which a killed stage goes on.
STEP = 4096


class ScoreConfig(StageConfig):
    """Settings of the scorer of the audits."""

    scorer: ScorerConfig = Field(default=ScorerConfig(), description="who scores")


def scorer_name(scorer: Scorer) -> str:
    """Name and digest, as they stand in findings."""
    return f"{scorer.name} ({scorer.digest[:12]})"


@dataclass(frozen=True)
class Texts:
    """Distinct texts that are scored together; their order is all that a message may say."""

    first: int
    texts: pa.Array

    def __str__(self) -> str:
        return f"texts {self.first + 1:,} to {self.first + len(self.texts):,}"


def score_texts(item: Texts, config: ScorerConfig, out: Tables) -> None:
    """Rows of SCORES for distinct texts."""
    scorer, texts = open_scorer(config), item.texts
    scores = scorer.score_heads(texts.to_pylist())  # (n, heads)
    heads = [number for number, head in enumerate(HEADS) if head in scorer.heads]
    repeated = np.repeat(np.arange(len(texts)), len(heads))
    out.table("scores").write(
        {
            "text": text_hashes(texts).take(pa.array(repeated)),
            "scorer": pa.array([scorer_name(scorer)] * len(repeated), pa.string()),
            "head": pa.array([HEADS[n] for n in heads] * len(texts), pa.string()),
            "score": pa.array(scores[:, heads].reshape(-1), pa.float32(), from_pandas=True),
        }
    )


@stage(
    tables={"scores": SCORES, "scorer": SCORER},
    libraries=["numpy", "alt-profanity-check", "detoxify", "scikit-learn"],
    external=lambda config, secret_id: scorer_digest(config.scorer),
    determinism="machine",
)
def score(items: Table | None, responses: Table, config: ScoreConfig, work: Work) -> None:
    """``items`` and ``responses``: of ``ask``, where they are to be scored, and of ``respond``. A
    text without a visible character has no score, and no row."""
    work.mapper = InProcess()  # a scorer is opened once, and uses every processor
    texts = pa.chunked_array(
        [
            *(items.read(["text"])["text"].chunks if items else ()),
            *responses.read(["text"])["text"].chunks,
        ],
        pa.large_string(),
    )
    texts = texts.drop_null().unique()
    texts = texts.filter(pc.not_equal(pc.utf8_trim_whitespace(texts), ""))
    steps = [Texts(i, texts[i : i + STEP]) for i in range(0, len(texts), STEP)]
    work.map(score_texts, steps, config.scorer)
    name = scorer_name(open_scorer(config.scorer))
    work.table("scorer").write(pa.table({"scorer": [name]}, schema=SCORER))
