"""Score the texts of responses and items with the configured scorers.

Each scorer reads each distinct text once, for all its heads. The stage does not know the use of the
scores.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationInfo, field_validator

from hallmark.tasks.audits.audit_tables import CONTROL_SCORES, SCORERS, SCORES
from hallmark.tasks.audits.responses import join_texts_with_words_masked
from hallmark.tasks.contract import (
    Artifact,
    Mapper,
    SerialMapper,
    StageConfig,
    StageContext,
    Table,
    TableWriters,
    hash_texts,
    stage,
)
from hallmark.tasks.measures.scorer_controls import TESTED_HEADS, compose_control_texts
from hallmark.tasks.measures.scorers import (
    SCORER_CLASSES,
    AnyScorerConfig,
    Scorer,
    ScorerConfig,
    check_any_text_scored,
    open_scorer,
    scorer_versions,
)

#: Texts per batch: a killed stage resumes after the last complete batch.
TEXTS_PER_BATCH = 4096


class ScoreConfig(StageConfig):
    """Settings of the scorers of the audits."""

    scorer: ScorerConfig = Field(default=ScorerConfig(), description="the toxicity scorer")
    additional_scorers: tuple[AnyScorerConfig, ...] = Field(
        default=(SCORER_CLASSES["vader"].config_class.model_validate({"kind": "vader"}),),
        description="additional scorers, which can be toxicity scorers (their agreement with the "
        "main scorer is measured) or sentiment and regard scorers of the kinds 'vader' (VADER, the "
        "default), 'words' (a word list) and 'classifier'; scores are taken from the first scorer "
        "listed for each property",
    )

    @property
    def all_scorers(self) -> tuple[AnyScorerConfig, ...]:
        return (self.scorer, *self.additional_scorers)

    @field_validator("additional_scorers")
    @classmethod
    def _check_distinct(
        cls, additional_scorers: tuple[AnyScorerConfig, ...], info: ValidationInfo
    ) -> tuple[AnyScorerConfig, ...]:
        if len({info.data.get("scorer"), *additional_scorers}) <= len(additional_scorers):
            raise ValueError(
                "the same scorer is listed twice, so the audit would measure the scorer's "
                "agreement with itself; remove one of the two entries"
            )
        return additional_scorers

    def restrict_to_heads(self, heads: Collection[str]) -> ScoreConfig:
        """Return a copy without the additional scorers that have none of these heads."""
        relevant_scorers = tuple(
            additional_scorer
            for additional_scorer in self.additional_scorers
            if {*additional_scorer.heads} & {*heads}
        )
        return self.model_copy(update={"additional_scorers": relevant_scorers})


def format_scorer_name(scorer: Scorer) -> str:
    """Return the name and digest of a scorer, as findings show them."""
    return f"{scorer.name} ({scorer.digest[:12]})"


@dataclass(frozen=True)
class TextBatch:
    """Hold distinct texts to score together; messages show their positions, never the text."""

    scorer: AnyScorerConfig
    first_index: int
    texts: pa.Array

    def __str__(self) -> str:
        return f"texts {self.first_index + 1:,} to {self.first_index + len(self.texts):,}"


@dataclass(frozen=True)
class TestedScorer:
    """Hold a scorer that scores the texts with which it is tested."""

    scorer: AnyScorerConfig

    def __str__(self) -> str:
        return f"the test of the {self.scorer.kind} scorer"


class ScorerDescription(TypedDict):
    """Describe an opened scorer.

    Attributes:
        name: Its name.
        name_with_digest: The name as findings show it.
        heads: The properties that it scores.
        has_valid_scores: Whether no score of the texts with which it is tested was outside its
            range.
    """

    name: str
    name_with_digest: str
    heads: list[str]
    has_valid_scores: bool


class BatchOutcome(TypedDict):
    """Counts of the texts of a batch.

    Attributes:
        texts: Number of texts.
        scored: Number of texts that have a score.
        failure_reason: Reason why the scorer failed; empty if it did not.
    """

    texts: int
    scored: int
    failure_reason: str


def compute_score_columns(scorer: Scorer, texts: pa.Array) -> dict[str, pa.Array]:
    """Compute the columns of SCORES for distinct texts."""
    scores = scorer.score_by_head(texts.to_pylist())  # (n, columns)
    head_columns = [index for index, head in enumerate(scorer.columns) if head in scorer.heads]
    text_indices = np.repeat(np.arange(len(texts)), len(head_columns))
    return {
        "text_hash": hash_texts(texts).take(pa.array(text_indices)),
        "scorer": pa.array([format_scorer_name(scorer)] * len(text_indices), pa.string()),
        "head": pa.array([scorer.columns[n] for n in head_columns] * len(texts), pa.string()),
        "score": pa.array(scores[:, head_columns].reshape(-1), pa.float32(), from_pandas=True),
    }


class ControlScores(NamedTuple):
    """Hold the scores that a scorer gives to the texts with which it is tested.

    Attributes:
        table: Rows of CONTROL_SCORES; none for a scorer of other properties.
        are_valid: Whether no score was outside its range.
    """

    table: pa.Table
    are_valid: bool


@lru_cache(maxsize=16)
def score_control_texts(scorer: Scorer) -> ControlScores:
    """Score the texts with which a scorer is tested; once per opened scorer.

    If some scores are invalid, the others may be logits too, so all are missing.
    """
    head = next((head for head in TESTED_HEADS if head in scorer.heads), None)
    if head is None:
        return ControlScores(CONTROL_SCORES.empty_table(), True)
    control_texts = compose_control_texts(head)
    scorer.has_invalid_scores, scorer.failure_reason = False, ""
    scores = scorer.score_by_head([control.text for control in control_texts])[
        :, scorer.columns.index(head)
    ]
    are_valid = not scorer.has_invalid_scores
    if not are_valid:
        scores = np.full_like(scores, np.nan)
    is_harmful = np.array([control.is_harmful for control in control_texts])
    harmless_toxicity = scores if head == "toxicity" else np.zeros_like(scores)
    failure_reason = ""
    if np.isnan(scores).any():
        failure_reason = scorer.failure_reason or "it returned NaN"
    columns = {
        "scorer": [format_scorer_name(scorer)] * len(scores),
        "head": [head] * len(scores),
        "text_kind": [control.kind for control in control_texts],
        "pair": [control.pair for control in control_texts],
        "mentioned_group": [control.mentioned_group for control in control_texts],
        "text": [control.text for control in control_texts],
        "is_harmful": is_harmful,
        "score": pa.array(scores, from_pandas=True),
        "assumed_toxicity": pa.array(
            np.where(is_harmful, np.float32(1), harmless_toxicity), from_pandas=True
        ),
        "failure_reason": [failure_reason] * len(scores),
    }
    return ControlScores(pa.table(columns, schema=CONTROL_SCORES), are_valid)


def select_distinct_texts(texts: pa.ChunkedArray) -> pa.Array:
    """Return the distinct texts that have a visible character."""
    distinct_texts = texts.drop_null().unique()
    return distinct_texts.filter(pc.not_equal(pc.utf8_trim_whitespace(distinct_texts), ""))


def describe_scorer(tested: TestedScorer, out: TableWriters) -> ScorerDescription:
    """Open a scorer, test it, and spill rows of CONTROL_SCORES."""
    opened_scorer = open_scorer(tested.scorer)
    control_scores = score_control_texts(opened_scorer)
    out.get_spill_writer("control_scores", CONTROL_SCORES).write(control_scores.table)
    return {
        "name": opened_scorer.name,
        "name_with_digest": format_scorer_name(opened_scorer),
        "heads": [*opened_scorer.heads],
        "has_valid_scores": control_scores.are_valid,
    }


def score_text_batch(batch: TextBatch, out: TableWriters) -> BatchOutcome:
    """Write rows of SCORES for a batch."""
    scorer = open_scorer(batch.scorer)
    columns = compute_score_columns(scorer, batch.texts)
    out.get_table_writer("scores").write(columns)
    scored_texts = pc.unique(columns["text_hash"].filter(pc.is_valid(columns["score"])))
    return {
        "texts": len(batch.texts),
        "scored": len(scored_texts),
        "failure_reason": scorer.failure_reason,
    }


def compute_scorer_digests(config: ScoreConfig) -> dict[str, str]:
    """Return the digest of each external file and library that the scores depend on, by name."""
    additional_digests = {
        f"{name} {number}": digest
        for number, scorer in enumerate(config.additional_scorers, start=2)
        for name, digest in scorer_versions(scorer).items()
    }
    return scorer_versions(config.scorer) | additional_digests


@stage(
    name="score",
    tables={"scores": SCORES, "scorers": SCORERS, "control_scores": CONTROL_SCORES},
    extra_code=["tasks/measures/data/scorer_controls.json"],
    libraries=["numpy", "alt-profanity-check", "detoxify", "scikit-learn"],
    external_digests=lambda config, secret_id: compute_scorer_digests(config),
    determinism="machine",
    reads={"request_set": ("items", "requests")},
)
def score_texts(
    request_set: Artifact | None, responses: Table, config: ScoreConfig, context: StageContext
) -> None:
    """Score the responses, and the items if ``request_set`` is given.

    Texts without a visible character get no score and no row. Regard is scored on whole texts: the
    prefix and the continuation, with the masked words replaced. Each scorer also scores the texts
    with which it is tested; a scorer that gives invalid scores to them scores nothing else.
    """
    response_rows = responses.read(["request", "text"])
    item_texts = request_set["items"].read(["text"])["text"].chunks if request_set else ()
    distinct_texts = select_distinct_texts(
        pa.chunked_array([*item_texts, *response_rows["text"].chunks], pa.large_string())
    )
    full_texts = distinct_texts[:0]
    if request_set and any("regard" in scorer.heads for scorer in config.additional_scorers):
        requests = request_set["requests"].read(["request", "prefix_text", "masked_words"])
        full_texts = select_distinct_texts(
            pa.chunked_array([join_texts_with_words_masked(requests, response_rows)])
        )
    mapper = context.mapper
    descriptions: list[ScorerDescription] = []
    for scorer in config.all_scorers:
        placed_scorer = place_scorer(scorer, mapper, context)
        (test_result,) = context.map_items(describe_scorer, [TestedScorer(placed_scorer)])
        description: ScorerDescription = test_result.value
        descriptions.append(description)
        context.get_table_writer("control_scores").write(
            test_result.open_spilled_table("control_scores", CONTROL_SCORES)
        )
        if description["has_valid_scores"]:
            texts = full_texts if "regard" in scorer.heads else distinct_texts
            score_all_texts(placed_scorer, texts, description["name"], context)
    scorer_columns = {
        "scorer": [description["name_with_digest"] for description in descriptions],
        "heads": [description["heads"] for description in descriptions],
    }
    context.get_table_writer("scorers").write(pa.table(scorer_columns, schema=SCORERS))


def place_scorer(scorer: AnyScorerConfig, mapper: Mapper, context: StageContext) -> AnyScorerConfig:
    """Let the next items run where a scorer is opened once.

    Args:
        scorer: The config of the scorer.
        mapper: The mapper of the session.
        context: Receives the mapper of the next items.

    Returns:
        The config with the device of these items.
    """
    if not SCORER_CLASSES[scorer.kind].uses_device:
        context.mapper = SerialMapper()  # it is fast without workers
        return scorer
    context.mapper = mapper
    device = context.share_model_between_items(scorer.device)
    return scorer.model_copy(update={"device": device})


def score_all_texts(
    scorer: AnyScorerConfig, texts: pa.Array, scorer_name: str, context: StageContext
) -> None:
    """Score distinct texts in batches.

    Raises:
        HallmarkError: The scorer gave no text a score.
    """
    batches = [
        TextBatch(scorer, i, texts[i : i + TEXTS_PER_BATCH])
        for i in range(0, len(texts), TEXTS_PER_BATCH)
    ]
    outcomes = [result.value for result in context.map_items(score_text_batch, batches)]
    scored_count, text_count = (
        sum(outcome[key] for outcome in outcomes) for key in ("scored", "texts")
    )
    failure_reason = next(filter(None, (outcome["failure_reason"] for outcome in outcomes)), "")
    check_any_text_scored(scorer_name, scored_count, text_count, failure_reason)
