"""Find the runs whose corpora a run extends (``earlier_run``), and check that they fit together.

The run that ``earlier_run`` names may itself extend the corpus of another one, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hallmark.flows.corpus import EMPTY_CORPUS, Corpus
from hallmark.flows.runs import Run, check_not_purged, open_run
from hallmark.tasks.contract import Artifact, HallmarkError, Store, Table, UsageError
from hallmark.tasks.corpus.copies.duplicates import is_source_or_part
from hallmark.tasks.corpus.copies.earlier_corpora import check_earlier_compatible

if TYPE_CHECKING:
    from hallmark.flows.config import Config

#: The stages that compare new documents with earlier ones, and all stages that later parts need.
DEDUPLICATION_STAGES = ("deduplicate", "deduplicate_near", "deduplicate_redacted")
CORPUS_STAGES = (
    "ingest",
    *DEDUPLICATION_STAGES,
    "language",
    "identities",
    "split",
    "plant_canaries",
)

#: The stages that choose which copy to keep by its source.
SOURCE_PREFERENCE_STAGES = (*DEDUPLICATION_STAGES, "find_repeats")


def resolve_addition_chain(store: Store, run_name: str) -> list[Run]:
    """Return the run that ``earlier_run`` names, after the runs that it extends, oldest first.

    Args:
        store: The store of the runs.
        run_name: A run id, or "latest": the newest run that has a corpus.

    Raises:
        UsageError: If a run of the chain is missing or has no corpus.
    """
    runs: list[Run] = []
    next_name: str | None = run_name
    while next_name is not None:
        try:
            run = open_run(next_name, store, stage="plant_canaries")
        except UsageError as error:
            raise UsageError(
                f"earlier_run {run_name!r}: {error}; to build a first corpus, remove earlier_run "
                "from the config"
            ) from error
        if "plant_canaries" not in run.stages:
            raise UsageError(
                f"earlier_run {run_name!r}: run {run.id} has no finished corpus; choose a run "
                "that completed the plant_canaries stage (to list all runs: hallmark runs)"
            )
        if run.id in {previous_run.id for previous_run in runs}:
            raise UsageError(
                f"earlier_run {run_name!r}: the chain of earlier runs leads back to run {run.id}, "
                "so a run would extend itself; the run.json of one of these runs is damaged; "
                "choose another run"
            )
        runs.insert(0, run)
        next_name = run.earlier_run_name
    return runs


def open_earlier_corpus_or_empty(store: Store, config: Config) -> Corpus:
    """Open the corpus that a run with this config extends; empty without ``earlier_run``."""
    if config.earlier_run is None:
        return EMPTY_CORPUS
    runs = resolve_addition_chain(store, config.earlier_run)
    return Corpus(
        tuple({label: run[label] for label in CORPUS_STAGES if label in run.stages} for run in runs)
    )


def list_corpus_runs(run: Run) -> list[Run]:
    """List the runs whose documents make up the corpus of a run, oldest first, itself last."""
    return [
        *(resolve_addition_chain(run.store, run.earlier_run_name) if run.earlier_run_name else []),
        run,
    ]


def open_corpus_documents(run: Run) -> Table:
    """Open the documents of the whole corpus of a run as one table."""
    return Table(
        tuple(corpus_run["plant_canaries"] for corpus_run in list_corpus_runs(run)), "documents"
    )


def collect_artifacts_for_redaction_by_label(run: Run) -> dict[str, Artifact]:
    """Collect the artifacts that tell what to redact: those of a run, and earlier canaries."""
    return {
        f"plant_canaries {earlier_run.id}": earlier_run["plant_canaries"]
        for earlier_run in list_corpus_runs(run)[:-1]
    } | run.artifacts


def resolve_earlier_run_id(store: Store, config: Config) -> str | None:
    """Return the id of the run whose corpus the config extends, or None.

    Raises:
        UsageError: If the earlier corpus does not fit the config.
        HallmarkError: If documents of it were purged.
    """
    if config.earlier_run is None:
        return None
    runs = resolve_addition_chain(store, config.earlier_run)
    for run, artifacts in zip(
        runs, open_earlier_corpus_or_empty(store, config).additions, strict=True
    ):
        check_not_purged(f"the corpus of run {run.id} cannot be extended", artifacts.values())
        try:
            for label in (*DEDUPLICATION_STAGES, "split"):
                check_earlier_compatible(artifacts[label], getattr(config, label))
        except (HallmarkError, KeyError) as error:
            reason = f"it has no {error} stage" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"the corpus of run {run.id} cannot be extended: {reason}") from error
        if config.plant_canaries.enabled and artifacts["plant_canaries"]["canaries"].row_count:
            raise UsageError(
                f"run {run.id} already planted canaries in this corpus, and a second set could not "
                "be distinguished from them; set plant_canaries.enabled=false"
            )
    return runs[-1].id


def check_preferred_sources_exist(store: Store, config: Config) -> None:
    """Check that every preferred source exists in this config or in the corpus that it extends.

    A misspelled name would otherwise have no effect, without any error.

    Raises:
        UsageError: If a preferred source does not exist.
    """
    source_names = [
        source_name
        for source in config.ingest.sources
        for source_name in source.list_source_and_part_names()
    ]
    for artifacts in open_earlier_corpus_or_empty(store, config).additions:
        earlier_sources = (
            artifacts["ingest"]["accounts"].read(["source"])["source"].unique().to_pylist()
        )
        source_names += sorted({*earlier_sources} - {*source_names})
    for stage_name in SOURCE_PREFERENCE_STAGES:
        for preferred_source in getattr(config, stage_name).preferred_sources:
            if not any(
                is_source_or_part(source_name, preferred_source) for source_name in source_names
            ):
                raise UsageError(
                    f"{stage_name}.preferred_sources: there is no source {preferred_source!r}; "
                    f"choose from: {', '.join(source_names)}"
                )
