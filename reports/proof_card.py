"""The page of the closed loop: finding, documents, what their removal did in each arm, and its
price in bits per byte."""

from __future__ import annotations

from pydantic import Field

from reports.page.evidence import publish
from reports.page.figures import FIGURES, Book
from reports.page.masking import OFFENSIVE, Masker
from reports.page.rendering import LIBRARIES, TEMPLATES
from reports.sections.closed_loop import ClosedLoop
from reports.sections.corpus_figures import READ, masker_of
from tasks.contract import Artifact, StageConfig, Work, stage


class ProofCardConfig(StageConfig):
    title: str = Field("Untitled model", description="the name of the model")
    rows_shown: int = Field(200, ge=1, le=5000, description="rows on a page of evidence")
    lines_shown: int = Field(
        40, ge=1, le=1000, description="lines of a table; groups of people always have theirs"
    )


@stage(
    tables={"figures": FIGURES},
    code=TEMPLATES,
    libraries=LIBRARIES,
    reads={"corpus": READ},
)
def proof_card(
    proof: Artifact,
    behind: Artifact,
    corpus: dict[str, Artifact],
    config: ProofCardConfig,
    work: Work,
) -> None:
    """``corpus``: the corpus stages by label, for what must be masked and for the documents."""
    write(proof, behind, corpus, config, work, masker_of(corpus, OFFENSIVE))


def write(
    proof: Artifact,
    behind: Artifact,
    corpus: dict[str, Artifact],
    config: ProofCardConfig,
    work: Work,
    masker: Masker,
) -> None:
    """The stage's work, with any masker."""
    book = Book({"proof": proof, "behind": behind})
    document = ClosedLoop(book, masker, config.title, config.lines_shown).document()
    publish(document, book, work, "proof_card", corpus, masker, config.rows_shown)
