"""The artifacts of a corpus: one addition for most corpora, several for an extended one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hallmark.tasks.contract import Artifact

#: Artifacts by the label of their stage in a run.
ArtifactsByLabel = dict[str, Artifact]


@dataclass(frozen=True)
class Corpus:
    """The artifacts of the additions of a corpus, oldest first.

    Attributes:
        additions: The artifacts of each addition by their labels in its run. A corpus that was
            never extended has one; the empty corpus has none.
    """

    additions: tuple[Mapping[str, Artifact], ...] = ()

    @property
    def latest_addition(self) -> Mapping[str, Artifact]:
        """The artifacts of the latest addition; empty for the empty corpus."""
        return self.additions[-1] if self.additions else {}

    @property
    def documents(self) -> list[Artifact]:
        """The artifacts with the documents of all additions."""
        return self.collect_from_all_additions("plant_canaries")

    def collect_from_all_additions(self, label: str) -> list[Artifact]:
        """Return the artifact with this label of every addition."""
        return [addition[label] for addition in self.additions]

    def collect_by_numbered_label(self, *labels: str) -> ArtifactsByLabel:
        """Return these artifacts of every addition by "LABEL NUMBER", counted from 1."""
        return {
            f"{label} {number}": addition[label]
            for number, addition in enumerate(self.additions, 1)
            for label in labels
        }

    def with_addition(self, artifacts: Mapping[str, Artifact]) -> Corpus:
        """Return the corpus with one more addition."""
        return Corpus((*self.additions, artifacts))

    def with_artifact(self, label: str, artifact: Artifact) -> Corpus:
        """Return the corpus with one more artifact in its latest addition."""
        return Corpus((*self.additions[:-1], {**self.latest_addition, label: artifact}))

    def collect_card_inputs(self, *earlier_labels: str) -> ArtifactsByLabel:
        """Return what a card reads: all of the latest addition, and these of the earlier ones."""
        earlier_corpus = Corpus(self.additions[:-1])
        return {**earlier_corpus.collect_by_numbered_label(*earlier_labels), **self.latest_addition}


EMPTY_CORPUS = Corpus()
