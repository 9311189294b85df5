"""The corpus that a run adds to: that of an earlier run, which may have added to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hallmark.flows.corpus import EMPTY_CORPUS, Corpus
from hallmark.flows.runs import Run, check_not_purged, open_run
from hallmark.tasks.contract import Artifact, HallmarkError, Store, Table, UsageError
from hallmark.tasks.corpus.copies.duplicates import is_source_or_part
from hallmark.tasks.corpus.copies.earlier_corpora import check_earlier_compatible

if TYPE_CHECKING:
    from hallmark.flows.config import Config

#: The stages that an addition is compared with, and those that make up the corpus and its profile.
DEDUPLICATION_STAGES = ("deduplicate", "deduplicate_near", "deduplicate_redacted")
CORPUS_STAGES = (
    "ingest",
    *DEDUPLICATION_STAGES,
    "language",
    "identities",
    "split",
    "plant_canaries",
)

#: The stages that choose between copies by their sources.
SOURCE_PREFERENCE_STAGES = (*DEDUPLICATION_STAGES, "find_repeats")


def resolve_addition_chain(store: Store, run_name: str) -> list[Run]:
    """The run that ``earlier_run`` names, behind those that it adds to itself, oldest first.

    "latest" is the newest run that has a corpus. UsageError where there is none.
    """
    runs: list[Run] = []
    next_name: str | None = run_name
    while next_name is not None:
        try:
            run = open_run(next_name, store, stage="plant_canaries")
        except UsageError as error:
            raise UsageError(
                f"earlier_run {run_name!r}: {error}; the config of the first corpus has no "
                f"earlier_run"
            ) from error
        if "plant_canaries" not in run.stages:
            raise UsageError(
                f"earlier_run {run_name!r}: run {run.id} has no finished corpus; name one that "
                f"came as far "
                f"as the stage plant_canaries; the first page of the site lists the runs"
            )
        if run.id in {previous_run.id for previous_run in runs}:
            raise UsageError(f"earlier_run {run_name!r}: run {run.id} is said to add to itself")
        runs.insert(0, run)
        next_name = run.earlier_run_name
    return runs


def open_earlier_corpus(store: Store, config: Config) -> Corpus:
    """Open the corpus that a run with this config adds to; most runs add to none."""
    if config.earlier_run is None:
        return EMPTY_CORPUS
    runs = resolve_addition_chain(store, config.earlier_run)
    return Corpus(
        tuple({label: run[label] for label in CORPUS_STAGES if label in run.stages} for run in runs)
    )


def list_corpus_runs(run: Run) -> list[Run]:
    """The runs whose additions make up the corpus of a run, oldest first, itself last."""
    return [
        *(resolve_addition_chain(run.store, run.earlier_run_name) if run.earlier_run_name else []),
        run,
    ]


def open_corpus_documents(run: Run) -> Table:
    """The documents of the corpus of a run."""
    return Table(
        tuple(corpus_run["plant_canaries"] for corpus_run in list_corpus_runs(run)), "documents"
    )


def collect_redaction_artifacts(run: Run) -> dict[str, Artifact]:
    """The artifacts of a run, and what was planted in the corpus that it adds to."""
    return {
        f"plant_canaries {earlier_run.id}": earlier_run["plant_canaries"]
        for earlier_run in list_corpus_runs(run)[:-1]
    } | run.artifacts


def resolve_earlier_run_id(store: Store, config: Config) -> str | None:
    """The id of the run that the config adds to.

    UsageError where it cannot: the earlier corpus does not go together with the config, or is no
    longer whole.
    """
    if config.earlier_run is None:
        return None
    runs = resolve_addition_chain(store, config.earlier_run)
    for run, artifacts in zip(runs, open_earlier_corpus(store, config).additions, strict=True):
        check_not_purged(f"the corpus of run {run.id} cannot be added to", artifacts.values())
        try:
            for label in (*DEDUPLICATION_STAGES, "split"):
                check_earlier_compatible(artifacts[label], getattr(config, label))
        except (HallmarkError, KeyError) as error:
            reason = f"it has no stage {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"the corpus of run {run.id} cannot be added to: {reason}") from error
        if config.plant_canaries.enabled and artifacts["plant_canaries"]["canaries"].row_count:
            raise UsageError(
                f"run {run.id} planted in this corpus already, and what is planted again could not "
                f"be told apart; plant nothing more: --set plant_canaries.enabled=false"
            )
    return runs[-1].id


def check_preferred_sources_exist(store: Store, config: Config) -> None:
    """UsageError where a source is preferred that is none of those read here or in the corpus that
    is added to: of a name misspelled nothing would be seen, and length and id decide."""
    source_names = [
        source_name for source in config.ingest.sources for source_name in source.list_names()
    ]
    for artifacts in open_earlier_corpus(store, config).additions:
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
                    f"{stage_name}.preferred_sources names {preferred_source!r}, which no "
                    f"source is called; name one of {', '.join(source_names)}"
                )
