"""The corpus that a run adds to: that of an earlier run, which may have added to another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.runs import Run, check_whole, open_run
from tasks.contract import Artifact, HallmarkError, Store, Table, UsageError
from tasks.corpus.copies.duplicates import belongs
from tasks.corpus.copies.earlier import check_alike

if TYPE_CHECKING:
    from flows.config import Config

#: The additions of a corpus, oldest first: of each its artifacts by label.
Earlier = Sequence[dict[str, Artifact]]

#: The stages that an addition is compared with, and those that make up the corpus and its profile.
COMPARED = ("deduplicate", "deduplicate_near", "deduplicate_masked")
READ = ("ingest", *COMPARED, "language", "identities", "split", "plant")

#: The stages that choose between copies by their sources.
CHOOSING = (*COMPARED, "find_repeats")


def chain(store: Store, name: str) -> list[Run]:
    """The run that ``earlier`` names, behind those that it adds to itself, oldest first.

    "latest" is the newest run that has a corpus. UsageError where there is none.
    """
    runs: list[Run] = []
    wanted: str | None = name
    while wanted is not None:
        try:
            run = open_run(wanted, store, stage="plant")
        except UsageError as error:
            raise UsageError(
                f"earlier {name!r}: {error}; the config of the first corpus has no earlier"
            ) from error
        if "plant" not in run.stages:
            raise UsageError(
                f"earlier {name!r}: run {run.id} has no finished corpus; name one that came as far "
                f"as the stage plant; the first page of the site lists the runs"
            )
        if run.id in {known.id for known in runs}:
            raise UsageError(f"earlier {name!r}: run {run.id} is said to add to itself")
        runs.insert(0, run)
        wanted = run.earlier
    return runs


def earlier_of(store: Store, config: Config) -> Earlier:
    """The additions before that of a run with this config, none for most."""
    if config.earlier is None:
        return []
    runs = chain(store, config.earlier)
    return [{label: run[label] for label in READ if label in run.stages} for run in runs]


def runs_of(run: Run) -> list[Run]:
    """The runs whose additions make up the corpus of a run, oldest first, itself last."""
    return [*(chain(run.store, run.earlier) if run.earlier else []), run]


def documents_of(run: Run) -> Table:
    """The documents of the corpus of a run."""
    return Table(tuple(each["plant"] for each in runs_of(run)), "documents")


def masking_of(run: Run) -> dict[str, Artifact]:
    """The artifacts of a run, and what was planted in the corpus that it adds to."""
    return {f"plant {r.id}": r["plant"] for r in runs_of(run)[:-1]} | run.artifacts


def check_earlier(store: Store, config: Config) -> str | None:
    """The id of the run that the config adds to.

    UsageError where it cannot: the earlier corpus does not go together with the config, or is no
    longer whole.
    """
    if config.earlier is None:
        return None
    runs = chain(store, config.earlier)
    for run, made in zip(runs, earlier_of(store, config), strict=True):
        check_whole(f"the corpus of run {run.id} cannot be added to", made.values())
        try:
            for label in (*COMPARED, "split"):
                check_alike(made[label], getattr(config, label))
        except (HallmarkError, KeyError) as error:
            why = f"it has no stage {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"the corpus of run {run.id} cannot be added to: {why}") from error
        if config.plant.enabled and made["plant"]["plants"].rows:
            raise UsageError(
                f"run {run.id} planted in this corpus already, and what is planted again could not "
                f"be told apart; plant nothing more: --set plant.enabled=false"
            )
    return runs[-1].id


def check_preferred(store: Store, config: Config) -> None:
    """UsageError where a source is preferred that is none of those read here or in the corpus that
    is added to: of a name misspelled nothing would be seen, and length and id decide."""
    names = [name for source in config.ingest.sources for name in source.names()]
    for made in earlier_of(store, config):
        found = made["ingest"]["accounts"].read(["source"])["source"].unique().to_pylist()
        names += sorted({*found} - {*names})
    for section in CHOOSING:
        for wanted in getattr(config, section).prefer:
            if not any(belongs(name, wanted) for name in names):
                raise UsageError(
                    f"{section}.prefer names {wanted!r}, which no source is called; name one of "
                    f"{', '.join(names)}"
                )
