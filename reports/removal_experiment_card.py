"""Build the card of a removal experiment.

It shows each finding with its source documents, the effect of their removal in each arm, and the
effect on held-out loss.
"""

from __future__ import annotations

from pydantic import Field

from hallmark.reports.page.evidence_pages import write_card_files
from hallmark.reports.page.figures import FIGURES, FigureBook
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, Redactor
from hallmark.reports.page.rendering import RENDERING_LIBRARIES, TEMPLATE_FILES
from hallmark.reports.sections.corpus_figures import CARD_TABLES, build_corpus_redactor
from hallmark.reports.sections.removal_experiment import RemovalReport
from hallmark.tasks.audits.registry import compute_descriptions_digest
from hallmark.tasks.contract import Artifact, StageConfig, StageContext, stage


class RemovalExperimentCardConfig(StageConfig):
    """Settings of the card of a removal experiment."""

    title: str = Field("Untitled model", description="name of the model")
    max_evidence_rows: int = Field(
        200,
        ge=1,
        le=5000,
        description=(
            "maximum number of rows shown on an evidence page, which lists the rows that a "
            "figure is computed from"
        ),
    )
    max_table_rows: int = Field(
        40,
        ge=1,
        le=1000,
        description=(
            "maximum number of rows in each table of the card, except for rows about groups of "
            "people, which are all shown"
        ),
    )


@stage(
    name="removal_experiment_card",
    tables={"figures": FIGURES},
    extra_code=TEMPLATE_FILES,
    libraries=RENDERING_LIBRARIES,
    external_digests=compute_descriptions_digest,
    reads={"corpus_artifacts": CARD_TABLES},
)
def build_removal_experiment_card(
    arm_comparison: Artifact,
    source_documents: Artifact,
    corpus_artifacts: dict[str, Artifact],
    config: RemovalExperimentCardConfig,
    context: StageContext,
) -> None:
    """Build the card as a stage.

    Args:
        arm_comparison: The output of ``compare_arms``.
        source_documents: The output of ``find_source_documents``.
        corpus_artifacts: The artifacts of the corpus stages by label, for redaction and documents.
        config: The settings.
        context: The context of the stage.
    """
    write_removal_experiment_card(
        arm_comparison,
        source_documents,
        corpus_artifacts,
        config,
        context,
        build_corpus_redactor(corpus_artifacts, OFFENSIVE_TOXICITY),
    )


def write_removal_experiment_card(
    arm_comparison: Artifact,
    source_documents: Artifact,
    corpus_artifacts: dict[str, Artifact],
    config: RemovalExperimentCardConfig,
    context: StageContext,
    redactor: Redactor,
) -> None:
    """Write the card with the given redactor."""
    book = FigureBook({"compare_arms": arm_comparison, "find_source_documents": source_documents})
    document = RemovalReport(book, redactor, config.title, config.max_table_rows).build_document()
    write_card_files(
        document,
        book,
        context,
        "removal_experiment_card",
        corpus_artifacts,
        redactor,
        config.max_evidence_rows,
    )
