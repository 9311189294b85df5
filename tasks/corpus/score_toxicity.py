"""Score the toxicity of documents in windows, with all heads of a scorer.

Scoring and selecting are separate stages, so another bound in ``select_scored`` needs no new
scores. Long documents are scored in windows, because one insult in a long text hardly changes the
score of the whole.

The scorer only sees texts in languages that it supports: an English word list finds profanity in
harmless German text. A text whose language is undetermined is scored if its letters are in the
script of such a language. Other documents have no score, and neither do those on which the scorer
fails; the stage fails only if the scorer fails on all texts. With a cascade, a cheap scorer clears
documents first (see ``toxicity/cascade.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from hallmark.tasks.contract import (
    HallmarkError,
    ItemResult,
    Mapper,
    SerialMapper,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    align_parts,
    column,
    concat_spilled_tables,
    format_all,
    lookup_column_by_doc_id,
    stage,
)
from hallmark.tasks.corpus.signals import build_signal_schema
from hallmark.tasks.corpus.split import hash_ids_to_uniform_draws
from hallmark.tasks.corpus.toxicity.cascade import (
    CASCADE_TABLE,
    SAMPLE_TABLE,
    CascadeConfig,
    CascadeRecall,
    build_cascade_columns,
    check_cascade_recall,
    find_max_sample_draw,
    measure_cascade_recall,
)
from hallmark.tasks.corpus.toxicity.windows import (
    WINDOW_SCORES,
    build_head_columns,
    build_window_score_columns,
    compute_highest_score_columns,
)
from hallmark.tasks.measures.languages import NO_LANGUAGE, mark_texts_in_scripts_of
from hallmark.tasks.measures.scorers import (
    ScorerConfig,
    VersionByKey,
    open_scorer,
    scorer_languages,
    scorer_versions,
)


class ScoreToxicityConfig(StageConfig):
    """Choose which scorer scores which documents, and in which windows."""

    scorer: ScorerConfig = Field(
        default=ScorerConfig(), description="scorer that computes the toxicity scores"
    )
    window_characters: int = Field(
        default=1000, ge=100, le=1_000_000, description="maximum window length, in characters"
    )
    scored_languages: tuple[str, ...] = Field(
        default=(),
        description="languages (ISO 639 codes) whose documents are scored; if empty, all "
        "languages that the scorer supports. A document in an undetermined language is scored if "
        "at least half of its letters are in a script used by these languages",
    )
    cascade: CascadeConfig | None = Field(
        default=None,
        description="settings of a cheap scorer that scores all documents first, so that the "
        "main scorer needs to score only documents that may be toxic",
    )

    @model_validator(mode="after")
    def _check_distinct_scorers(self) -> ScoreToxicityConfig:
        if self.cascade and self.cascade.cheap_scorer == self.scorer:
            raise ValueError(
                "'cascade.cheap_scorer' is the same as 'scorer', but a cascade needs two "
                "different scorers; change one of them"
            )
        return self


SIGNALS = build_signal_schema(
    "Toxicity scores for each document, with one column per category (scorer output). Scores are "
    "null for a category that the scorer does not provide.",
    *build_head_columns(
        "highest score among the document's windows before the `cut_toxic` stage removes any; "
        "null if the document has no score (see `toxicity_status` for the reason)"
    ),
    column(
        "toxicity_status",
        pa.string(),
        "label",
        "whether the document has a score, and if not, the reason. scored: it has a score; "
        "other language: the scorer does not support the language of the document; undetermined "
        "language: the language could not be determined, and most letters are in a script that "
        "the scorer does not support; cleared: the cheap scorer of the cascade classified the "
        "document as harmless; empty: the text contains no visible characters; failed: the "
        "scorer failed on the text",
    ),
)

#: Values of ``toxicity_status``.
TOXICITY_STATUSES = (
    "scored",
    "other language",
    "undetermined language",
    "cleared",
    "empty",
    "failed",
)

#: Sampling draw and cheap score of each document; ``asked``: whether the scorer would score it.
CASCADE_DRAWS = pa.schema(
    [("draw", pa.float64()), ("asked", pa.bool_()), ("cheap_score", pa.float32())]
)


def mark_undetermined_languages(languages: pa.Array) -> np.ndarray:
    """Return which documents are in no determined language, (n,) bool.

    Args:
        languages: Language of each document; null if undetermined.
    """
    is_undetermined = pc.equal(pc.fill_null(languages, NO_LANGUAGE), NO_LANGUAGE)
    return is_undetermined.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def mark_scorable_texts(
    languages: pa.Array, texts: pa.Array, supported_languages: tuple[str, ...]
) -> np.ndarray:
    """Return which documents a scorer can score, (n,) bool.

    These are the documents in a supported language, and those in no determined language whose
    letters are in the script of a supported one.

    Args:
        languages: Language of each document; null if undetermined.
        supported_languages: Languages that the scorer supports.
    """
    is_supported = pc.is_in(languages, value_set=pa.array(supported_languages, pa.string()))
    is_scorable: np.ndarray = np.array(is_supported)
    is_undetermined = mark_undetermined_languages(languages) & ~is_scorable
    is_scorable[is_undetermined] = mark_texts_in_scripts_of(
        supported_languages, texts.filter(pa.array(is_undetermined))
    )
    return is_scorable


@dataclass(frozen=True)
class ScoringPartition:
    """A partition of the documents with its languages and the results of the cascade so far.

    Attributes:
        languages: Signals of the ``language`` stage; None if there are none.
        draws: Result of ``spill_draws_and_cheap_scores``; None without a cascade.
        sample: Result of ``spill_sample_scores``; None without a cascade.
    """

    documents: TablePart
    languages: TablePart | None
    draws: ItemResult | None = None
    sample: ItemResult | None = None

    def __str__(self) -> str:
        return str(self.documents)


class ScoringBatch(NamedTuple):
    """Hold a batch of n documents and which of them can be scored."""

    documents: pa.RecordBatch
    """With doc_id and text."""
    is_scorable: np.ndarray
    """Whether the scorer can score the document; shape (n,)."""
    is_cheaply_scorable: np.ndarray
    """Whether both scorers of a cascade can score the document; shape (n,)."""
    is_undetermined: np.ndarray
    """Whether the document is in no determined language; shape (n,)."""


def iter_scoring_batches(
    partition: ScoringPartition, config: ScoreToxicityConfig
) -> Iterator[ScoringBatch]:
    """Yield the documents of a partition in batches."""
    language_sets = [config.scored_languages or scorer_languages(config.scorer)]
    language_sets += [scorer_languages(config.cascade.cheap_scorer)] if config.cascade else []
    languages = pa.nulls(0)
    if partition.languages:
        languages = lookup_column_by_doc_id(
            partition.languages, "language", partition.documents
        ).combine_chunks()
    start = 0
    for batch in partition.documents.iter_batches(["doc_id", "text"]):
        scorable_masks = [np.ones(len(batch), bool) for _ in language_sets]
        is_undetermined = np.zeros(len(batch), bool)
        if partition.languages:
            batch_languages = languages[start : start + len(batch)]
            scorable_masks = [
                mark_scorable_texts(batch_languages, batch["text"], supported_languages)
                for supported_languages in language_sets
            ]
            is_undetermined = mark_undetermined_languages(batch_languages)
        start += len(batch)
        yield ScoringBatch(
            documents=batch,
            is_scorable=scorable_masks[0],
            is_cheaply_scorable=np.logical_and.reduce(scorable_masks),
            is_undetermined=is_undetermined,
        )


class PartitionScoreSummary(TypedDict):
    """Summarise the scores of a partition."""

    counts: dict[str, int]
    """Number of ``windows``, of ``unscored_windows``, and of documents with each status."""
    failure_reason: str
    """Why the scorer failed, or ""."""


def write_partition_scores(
    partition: ScoringPartition, max_draw: float, config: ScoreToxicityConfig, out: TableWriters
) -> PartitionScoreSummary:
    """Score the documents of a partition that the cascade has neither cleared nor sampled.

    Args:
        max_draw: Documents with a draw up to this are in the sample of the cascade; their scores
            are copied. -1 without a cascade.
    """
    counts = Counter(dict.fromkeys(("windows", "unscored_windows", *TOXICITY_STATUSES), 0))
    cascade_draws = (
        partition.draws.open_spilled_table("draws", CASCADE_DRAWS) if partition.draws else None
    )
    sample_windows = (
        partition.sample.open_spilled_table("windows", WINDOW_SCORES)
        if partition.sample
        else WINDOW_SCORES.empty_table()
    )
    start = 0
    for batch, is_scorable, _, is_undetermined in iter_scoring_batches(partition, config):
        is_sampled = is_cleared = np.zeros(len(batch), bool)
        if cascade_draws is not None and config.cascade:
            batch_draws = cascade_draws.slice(start, len(batch))
            is_sampled = is_scorable & (batch_draws["draw"].to_numpy() <= max_draw)
            is_below_bound = (
                batch_draws["cheap_score"].to_numpy().astype(np.float64)
                < config.cascade.clears_below
            )
            is_cleared = is_scorable & ~is_sampled & is_below_bound
        start += len(batch)
        window_columns = build_window_score_columns(
            batch, is_scorable & ~is_sampled & ~is_cleared, config.window_characters, config.scorer
        )
        if is_sampled.any():
            window_columns = replace_windows_of_sampled_documents(
                window_columns, sample_windows, batch["doc_id"], is_sampled
            )
        document_scores = compute_highest_score_columns(window_columns)
        document_statuses = assign_statuses(
            batch["text"], document_scores["toxicity"], is_scorable, is_cleared, is_undetermined
        )
        out.get_table_writer("windows").write(window_columns)
        out.get_table_writer("signals").write(
            {**document_scores, "toxicity_status": pa.array(document_statuses, pa.string())}
        )
        counts.update(document_statuses.tolist())
        counts["windows"] += len(window_columns["toxicity"])
        counts["unscored_windows"] += window_columns["toxicity"].null_count
    return {
        "counts": dict(counts),
        "failure_reason": open_scorer(config.scorer).failure_reason,
    }


def replace_windows_of_sampled_documents(
    window_columns: Mapping[str, pa.Array],
    sample_windows: pa.Table,
    doc_ids: pa.Array,
    is_sampled: np.ndarray,
) -> dict[str, pa.Array]:
    """Replace the windows of sampled documents by those that were scored for the sample.

    Args:
        window_columns: Columns of WINDOW_SCORES of all documents.
        sample_windows: WINDOW_SCORES of the sampled documents, among others.
        doc_ids: The documents, (n,).
        is_sampled: Which documents are in the sample, (n,) bool.

    Returns:
        Columns of WINDOW_SCORES, in the order of ``doc_ids``.
    """
    scored_windows = pa.table(dict(window_columns), schema=sample_windows.schema)
    sampled_ids = doc_ids.filter(pa.array(is_sampled))
    unsampled_windows = scored_windows.filter(
        pc.invert(pc.is_in(scored_windows["doc_id"], value_set=sampled_ids))
    )
    all_windows = pa.concat_tables(
        [
            unsampled_windows,
            sample_windows.filter(pc.is_in(sample_windows["doc_id"], value_set=sampled_ids)),
        ]
    )
    document_rows = pc.index_in(all_windows["doc_id"], value_set=doc_ids).to_numpy()
    order = np.lexsort((all_windows["window_index"].to_numpy(), document_rows))
    all_windows = all_windows.take(pa.array(order)).combine_chunks()
    return {name: all_windows[name].combine_chunks() for name in all_windows.schema.names}


def assign_statuses(
    texts: pa.Array,
    toxicity: pa.Array,
    is_scorable: np.ndarray,
    is_cleared: np.ndarray,
    is_undetermined: np.ndarray,
) -> np.ndarray:
    """Return the TOXICITY_STATUSES of each document, (n,) of str."""
    is_missing = toxicity.is_null().to_numpy(zero_copy_only=False) & is_scorable & ~is_cleared
    is_empty = np.zeros(len(is_scorable), bool)
    is_empty[is_missing] = [
        not text.strip() for text in texts.filter(pa.array(is_missing)).to_pylist()
    ]
    return np.select(
        [~is_scorable & ~is_undetermined, ~is_scorable, is_cleared, is_empty, is_missing],
        TOXICITY_STATUSES[1:],
        TOXICITY_STATUSES[0],
    )


# The cascade -----------------------------------------------------------------------------------


def spill_draws_and_cheap_scores(
    partition: ScoringPartition, config: ScoreToxicityConfig, out: TableWriters
) -> None:
    """Spill CASCADE_DRAWS of a partition: the draw and the cheap score of each document."""
    assert config.cascade
    for batch, is_scorable, is_cheaply_scorable, _ in iter_scoring_batches(partition, config):
        cheap_scores = compute_highest_score_columns(
            build_window_score_columns(
                batch, is_cheaply_scorable, config.window_characters, config.cascade.cheap_scorer
            )
        )
        draws = hash_ids_to_uniform_draws(batch["doc_id"], config.cascade.seed, "cascade")
        columns = {
            "draw": pa.array(draws),
            "asked": pa.array(is_scorable),
            "cheap_score": cheap_scores["toxicity"],
        }
        out.get_spill_writer("draws", CASCADE_DRAWS).write(columns)


def spill_sample_scores(
    partition: ScoringPartition, max_draw: float, config: ScoreToxicityConfig, out: TableWriters
) -> str:
    """Spill the scores of the sample: the scorable documents with a draw up to ``max_draw``.

    Returns:
        Why the scorer failed on a text, or "".
    """
    assert config.cascade and partition.draws
    cascade_draws = partition.draws.open_spilled_table("draws", CASCADE_DRAWS)
    start = 0
    for batch, is_scorable, _, _ in iter_scoring_batches(partition, config):
        batch_draws = cascade_draws.slice(start, len(batch))
        start += len(batch)
        is_sampled = is_scorable & (batch_draws["draw"].to_numpy() <= max_draw)
        if not is_sampled.any():
            continue
        sampled_batch = batch.filter(pa.array(is_sampled))
        window_columns = build_window_score_columns(
            sampled_batch,
            np.ones(len(sampled_batch), bool),
            config.window_characters,
            config.scorer,
        )
        out.get_spill_writer("windows", WINDOW_SCORES).write(window_columns)
        cheap_scores = batch_draws["cheap_score"].filter(pa.array(is_sampled)).combine_chunks()
        is_below_bound = (
            cheap_scores.to_numpy(zero_copy_only=False).astype(np.float64)
            < config.cascade.clears_below
        )
        document_scores = compute_highest_score_columns(window_columns)
        sample_columns = {
            "doc_id": document_scores["doc_id"],
            "cheap_score": cheap_scores,
            "toxicity": document_scores["toxicity"],
        }
        out.get_spill_writer("sample", SAMPLE_TABLE).write(
            {**sample_columns, "would_be_cleared": pa.array(is_below_bound)}
        )
    return open_scorer(config.scorer).failure_reason


class CascadeResult(NamedTuple):
    """Hold the result of the first two steps of a cascade."""

    partitions: list[ScoringPartition]
    """The partitions, with the draws and the sample of each."""
    max_draw: float
    """Highest random number that was drawn for a document of the sample."""
    recall: CascadeRecall


def run_cascade(
    partitions: list[ScoringPartition], config: ScoreToxicityConfig, context: StageContext
) -> CascadeResult:
    """Score all documents with the cheap scorer and measure the cascade on a sample.

    Memory: 9 bytes per document.

    Raises:
        HallmarkError: The sample does not show the required recall.
    """
    assert config.cascade
    cheap_results = context.map_items(spill_draws_and_cheap_scores, partitions, config)
    draws = concat_spilled_tables(cheap_results, "draws", CASCADE_DRAWS)
    context.mapper = choose_mapper(config.scorer, context.mapper)
    max_draw = find_max_sample_draw(
        draws["draw"].to_numpy()[draws["asked"].to_numpy()], config.cascade.sample_size
    )
    partitions = [
        replace(partition, draws=result)
        for partition, result in zip(partitions, cheap_results, strict=True)
    ]
    sample_results = context.map_items(spill_sample_scores, partitions, max_draw, config)
    sample = concat_spilled_tables(sample_results, "sample", SAMPLE_TABLE)
    context.get_table_writer("sample").write(sample)
    unscored_count = sample["toxicity"].null_count
    check_any_scored(
        len(sample) - unscored_count,
        unscored_count,
        [result.value for result in sample_results],
        config,
    )
    recall = measure_cascade_recall(
        sample, pc.sum(draws["asked"]).as_py() or 0, config.cascade.toxicity_threshold
    )
    check_cascade_recall(recall, config.cascade)
    partitions = [
        replace(partition, sample=result)
        for partition, result in zip(partitions, sample_results, strict=True)
    ]
    return CascadeResult(partitions, max_draw, recall)


# The stage -------------------------------------------------------------------------------------


def choose_mapper(scorer: ScorerConfig, default_mapper: Mapper) -> Mapper:
    """Return a serial mapper for neural scorers, which use all cores or the one device."""
    return default_mapper if scorer.kind == "linear" else SerialMapper()


def check_any_scored(
    scored_count: int,
    failed_count: int,
    failure_messages: Iterable[str],
    config: ScoreToxicityConfig,
) -> None:
    """Raise HallmarkError if the scorer failed on all texts; the messages are those of the parts.

    Without any message nothing is raised.
    """
    if failed_count and not scored_count and (message := next(filter(None, failure_messages), "")):
        raise HallmarkError(
            f"the scorer {open_scorer(config.scorer).name} failed on "
            f"{format_all(failed_count, 'text')} that it had to score ({message}); set "
            'score_toxicity.scorer.device = "cpu" or score_toxicity.scorer.precision = '
            '"fp32", or use another scorer'
        )


def read_versions_of_scorers(config: ScoreToxicityConfig) -> VersionByKey:
    """Return the versions of the scorer and, under "cheap …", of the cheap one of a cascade."""
    scorer_digests = scorer_versions(config.scorer)
    if config.cascade:
        cheap_digests = scorer_versions(config.cascade.cheap_scorer)
        scorer_digests |= {f"cheap {name}": value for name, value in cheap_digests.items()}
    return scorer_digests


@stage(
    name="score_toxicity",
    tables={
        "windows": WINDOW_SCORES,
        "signals": SIGNALS,
        "cascade": CASCADE_TABLE,
        "sample": SAMPLE_TABLE,
    },
    libraries=["confusable-homoglyphs", "numpy", "scipy"],
    external_digests=lambda config, secret_id: read_versions_of_scorers(config),
    determinism="machine",
)
def score_toxicity(
    documents: Table, signals: Table | None, config: ScoreToxicityConfig, context: StageContext
) -> None:
    """Score all documents.

    Args:
        signals: Signals of the ``language`` stage; without them documents of all languages are
            scored.
    """
    partition_pairs = (
        align_parts(documents, signals) if signals else [(part, None) for part in documents.parts]
    )
    partitions = [ScoringPartition(*pair) for pair in partition_pairs]
    max_draw, recall = -1.0, None
    context.mapper = choose_mapper(
        config.cascade.cheap_scorer if config.cascade else config.scorer, context.mapper
    )
    if config.cascade:
        partitions, max_draw, recall = run_cascade(partitions, config, context)
    results = context.map_partitions(write_partition_scores, partitions, max_draw, config)
    totals: Counter[str] = Counter()
    for part in results:
        totals.update(part.value["counts"])
    failure_reasons = [part.value["failure_reason"] for part in results]
    check_any_scored(totals["scored"], totals["failed"], failure_reasons, config)
    if config.cascade and recall:
        context.get_table_writer("cascade").write(
            build_cascade_columns(recall, config.cascade, totals["cleared"])
        )
    for name in ("windows", "unscored_windows"):
        context.record_measurement(name, totals[name], "windows")
    for status in TOXICITY_STATUSES[1:]:
        metric = f"{status.replace(' ', '_')}_documents"
        context.record_measurement(metric, totals[status], "documents")
