"""The artifacts of a corpus: one addition for most corpora, several for an extended one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hallmark.tasks.contract import Artifact


@dataclass(frozen=True)
class Corpus:
    """The artifacts of the additions of a corpus, oldest first.

    Attributes:
        additions: The artifacts of each addition by their labels in its run. A corpus that was
            never extended has one; the empty corpus has none.
    """

    additions: tuple[Mapping[str, Artifact], ...] = ()

    @property
    def latest(self) -> Mapping[str, Artifact]:
        """The artifacts of the latest addition; empty for the empty corpus."""
        return self.additions[-1] if self.additions else {}

    @property
    def documents(self) -> list[Artifact]:
        """The artifacts with the documents of all additions."""
        return self.collect("plant_canaries")

    def collect(self, label: str) -> list[Artifact]:
        """Return the artifact with this label of every addition."""
        return [addition[label] for addition in self.additions]

    def number_artifacts(self, *labels: str) -> dict[str, Artifact]:
        """Return these artifacts of every addition by "LABEL NUMBER", counted from 1."""
        return {
            f"{label} {number}": addition[label]
            for number, addition in enumerate(self.additions, 1)
            for label in labels
        }

    def add(self, artifacts: Mapping[str, Artifact]) -> Corpus:
        """Return the corpus with one more addition."""
        return Corpus((*self.additions, artifacts))

    def with_artifact(self, label: str, artifact: Artifact) -> Corpus:
        """Return the corpus with one more artifact in its latest addition."""
        return Corpus((*self.additions[:-1], {**self.latest, label: artifact}))

    def list_card_inputs(self, *earlier_labels: str) -> dict[str, Artifact]:
        """Return what a card reads: all of the latest addition, and these of the earlier ones."""
        earlier_corpus = Corpus(self.additions[:-1])
        return {**earlier_corpus.number_artifacts(*earlier_labels), **self.latest}


EMPTY_CORPUS = Corpus()
