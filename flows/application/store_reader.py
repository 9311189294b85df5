"""Read the runs and cards of a store for the pages of the application, and keep some in memory.

Artifacts never change, apart from purges. What is kept is therefore identified by the contents of
the artifacts, the purges of the store, and the times at which local files changed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from hallmark.flows.run_order import list_run_ids
from hallmark.flows.runs import (
    Record,
    Run,
    open_run,
    read_run_record,
)
from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.card_links import (
    DATASHEET,
    MODEL_CARD,
    CardLink,
    find_related_cards,
    identify_corpus,
)
from hallmark.reports.cards import CARD_KINDS, find_page_inputs, read_card
from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.purge_notices import (
    collect_purged_document_ids,
    format_purge_notice,
)
from hallmark.reports.run_summary import RunSummary, summarize_run
from hallmark.tasks.contract import (
    ARTIFACT_NAME_PATTERN,
    PURGED_DOCUMENTS_FILE,
    Artifact,
    HallmarkError,
    Store,
    UsageError,
    map_store_reads,
    stat_to_file_stamp,
)

Value = TypeVar("Value")

#: How many cards and summaries of runs are kept in memory.
MAX_CARDS, MAX_SUMMARIES = 8, 1000


class RecentValues(Generic[Value]):
    """Keep the values that were used last.

    Two threads may compute the same value at the same time; neither waits for the other.
    """

    def __init__(self, max_values: int) -> None:
        self.max_values = max_values
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key; it is computed if it is not in memory."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = compute()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self.max_values:
                self._values.popitem(last=False)
        return value


@dataclass(frozen=True)
class CardView:
    """A card and what its pages add.

    Attributes:
        run: The run.
        artifact: The artifact of the card.
        content: Its content.
        purge_notice: The notice about purged documents; empty without any.
        key: Identifies the content.
    """

    run: Run
    artifact: Artifact
    content: CardContent
    purge_notice: str
    key: Hashable


@dataclass(frozen=True)
class ListedRun:
    """A run in the list of runs.

    Attributes:
        run: The run.
        summary: Its model, controls, key figures and policy.
        cards: The titles of its cards, by the name of the stage.
        computed_count: The number of stages that were computed and not cached.
    """

    run: Run
    summary: RunSummary
    cards: Mapping[str, str]
    computed_count: int


class StoreReader:
    """Reads a store for the application."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cards: RecentValues[tuple[CardContent, str]] = RecentValues(MAX_CARDS)
        self._summaries: RecentValues[RunSummary] = RecentValues(MAX_SUMMARIES)
        self._corpora: RecentValues[str | None] = RecentValues(MAX_SUMMARIES)
        self._input_names: RecentValues[tuple[str, ...]] = RecentValues(MAX_SUMMARIES)
        self._redactor = Redactor()

    def read_runs(self) -> tuple[list[Run], list[str]]:
        """Read all runs, newest first, and the sentences about those that are damaged."""
        runs: list[Run] = []
        problems = []
        run_ids = list_run_ids(self.store)[::-1]
        for outcome in map_store_reads(self.store, self._try_open_run, run_ids):
            if isinstance(outcome, Run):
                runs.append(outcome)
            else:
                problems.append(outcome)
        return runs, problems

    def _try_open_run(self, run_id: str) -> Run | str:
        try:
            return self._redact_run(Run(self.store, read_run_record(self.store, run_id)))
        except HallmarkError as error:
            return str(error)

    def open_run(self, name: str) -> Run:
        """Open a run by its id, the start of its id, or "latest".

        Raises:
            UsageError: If there is no such run.
            HallmarkError: If it is damaged.
        """
        return self._redact_run(open_run(name, self.store))

    def _redact_run(self, run: Run) -> Run:
        """Redact the texts of a run that pages show and search, and return the run."""
        redact = self._redactor.redact_full_text
        record = run.current_record  # a later check of its status would read the texts again
        shown_texts: Record = {
            name: redact(record[name]) for name in ("flow", "config_name", "status")
        }
        for name in ("started", "ended"):
            time = record[name]
            shown_texts[name] = time if time is None or _is_time(time) else redact(time)
        run.record = record | shown_texts
        return run

    def list_runs(self, runs: list[Run]) -> list[ListedRun]:
        """Summarize runs for the list."""
        return map_store_reads(self.store, self._summarize, runs)

    def _summarize(self, run: Run) -> ListedRun:
        cards = {label: kind.title for label, kind in CARD_KINDS.items() if label in run.stages}
        entries = run.stages
        # Runs that computed nothing new have the same summary.
        key = tuple(
            (label, entry["artifact"], entry["content"], self._stamp_manifest(entry["artifact"]))
            for label, entry in entries.items()
        )
        summary = self._summaries.get(key, lambda: self._read_summary(run))
        computed_count = sum(not entry["cached"] for entry in entries.values())
        return ListedRun(run, summary, cards, computed_count)

    def _read_summary(self, run: Run) -> RunSummary:
        summarized = ("model_card", "task_card", "policy", "pretrain")
        artifacts = {
            label: find_artifact_by_name(self.store, entry["artifact"])
            for label, entry in run.stages.items()
            if label in summarized or label.startswith("audit_")
        }
        return summarize_run(artifacts, Redactor().redact_full_text)

    def check_card(self, run: Run, card: str) -> None:
        """Raise UsageError unless a run has a card of this name; name its cards."""
        if card not in CARD_KINDS or card not in run.stages:
            cards = ", ".join(label for label in CARD_KINDS if label in run.stages) or "none"
            raise UsageError(f"run {run.id} has no card {card!r:.80}; its cards: {cards}")

    def open_card(self, run: Run, card: str, *, reads_rows: bool = False) -> CardView:
        """Read a card of a run.

        Args:
            run: The run.
            card: The name of the card.
            reads_rows: Whether the rows of its figures are read, which are in other artifacts.

        Raises:
            UsageError: If the run has no such card.
            HallmarkError: If the card is damaged.
        """
        self.check_card(run, card)
        artifact = run[card]
        if artifact.stage != card:
            raise HallmarkError(
                f"{run.stages[card]['artifact']} is damaged: its manifest.json in "
                f"{self.store.uri}/{artifact.folder} specifies another stage "
                f"({artifact.stage!r:.80}); remove this folder and run again to rebuild the card"
            )
        key = self._identify_contents(artifact)
        if reads_rows:
            input_names = self._input_names.get(
                key, lambda: tuple(sorted(find_page_inputs(self.store, artifact)))
            )
            key = (key, self.identify_files(input_names))
        content, purge_notice = self._cards.get(key, lambda: self._read_card(artifact))
        return CardView(run, artifact, content, purge_notice, key)

    def find_related_cards(self, view: CardView) -> list[CardLink]:
        """Find the datasheet of a model card's corpus, or the model cards of a corpus."""
        runs = self.read_runs()[0] if view.content.name in (DATASHEET, MODEL_CARD) else []
        names_by_run = {
            run.id: {
                label: run.stages[label]["artifact"]
                for label in (DATASHEET, MODEL_CARD)
                if label in run.stages
            }
            for run in runs
        }
        return find_related_cards(
            view.run.id, view.content.name, names_by_run, self._identify_corpus
        )

    def _identify_corpus(self, card_name: str) -> str | None:
        return self._corpora.get(card_name, lambda: identify_corpus(self.store, card_name))

    def _identify_contents(self, artifact: Artifact) -> Hashable:
        """Return what identifies the contents of an artifact.

        Raises:
            HallmarkError: If one of its files is missing or has another size.
        """
        entries = [*artifact.iter_file_entries()]
        artifact.location.check_file_sizes(entries)
        stamps: tuple[Any, ...] = ()
        if self.store.root_folder is not None:
            paths = [artifact.location.fetch_file(entry) for entry in entries]
            stamps = tuple(stat_to_file_stamp(path.stat()) for path in paths)
        purges = self.store.get(PURGED_DOCUMENTS_FILE)
        return artifact.name, artifact.content_digest, purges, stamps

    def identify_files(self, artifact_names: Iterable[str]) -> Hashable:
        """Return what changes as soon as a file of an artifact is changed, removed or restored.

        In object storage only purges are noticed.
        """
        purges, root_folder = self.store.get(PURGED_DOCUMENTS_FILE), self.store.root_folder
        if root_folder is None:
            return purges
        # The names come from files, which are not trusted.
        folders = [
            root_folder / self.store.format_artifact_folder(*name.split("/"))
            for name in sorted(set(artifact_names))
            if ARTIFACT_NAME_PATTERN.fullmatch(name)
        ]
        return purges, *(stamp for folder in folders for stamp in _iter_file_stamps(folder))

    def _stamp_manifest(self, artifact_name: str) -> Hashable:
        if self.store.root_folder is None:
            return None
        folder = self.store.format_artifact_folder(*artifact_name.split("/"))
        return _stamp_file(self.store.root_folder / folder / "manifest.json")

    def _read_card(self, artifact: Artifact) -> tuple[CardContent, str]:
        purged_ids = collect_purged_document_ids(self.store, artifact)
        return read_card(self.store, artifact), format_purge_notice(purged_ids)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _iter_file_stamps(folder: Path) -> Iterator[Hashable]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            yield str(path), _stamp_file(path)


def _stamp_file(path: Path) -> Hashable:
    with suppress(OSError):
        return stat_to_file_stamp(path.stat())
    return None
