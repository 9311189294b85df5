"""Build the card of a removal experiment.

It shows each finding with its source documents, the effect of their removal in each arm, and the
effect on held-out loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from hallmark.reports.page.card_tables import (
    CARD_TABLE_SCHEMAS,
    CardContent,
    write_card_tables,
)
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, REDACTION_LIBRARIES, Redactor
from hallmark.reports.sections.corpus_figures import CARD_TABLES, build_corpus_redactor
from hallmark.reports.sections.removal_experiment import RemovalReport
from hallmark.tasks.audits.registry import compute_descriptions_digest
from hallmark.tasks.contract import Artifact, StageConfig, StageContext, stage


class RemovalExperimentCardConfig(StageConfig):
    """Settings of the card of a removal experiment."""

    title: str = Field("Untitled model", description="model name")
    max_table_rows: int = Field(
        40,
        ge=1,
        le=1000,
        description=(
            "maximum number of rows in each card table; rows about groups of people are always "
            "shown"
        ),
    )


def label_removal_experiment_inputs(inputs: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return the inputs that have rows for figures, by the label that figures name."""
    return {
        "compare_arms": inputs["arm_comparison"],
        "find_source_documents": inputs["source_documents"],
    }


def build_removal_experiment_redactor(
    inputs: Mapping[str, Any], config: RemovalExperimentCardConfig
) -> Redactor:
    return build_corpus_redactor(inputs["corpus_artifacts"], OFFENSIVE_TOXICITY)


def compose_removal_experiment_card(
    inputs: Mapping[str, Any], config: RemovalExperimentCardConfig, redactor: Redactor
) -> CardContent:
    """Compose the card; ``inputs`` are those of the stage, by name."""
    book = FigureBook(label_removal_experiment_inputs(inputs))
    document = RemovalReport(book, redactor, config.title, config.max_table_rows).build_document()
    return CardContent(
        "removal_experiment_card", document, book, inputs["corpus_artifacts"], redactor
    )


@stage(
    name="removal_experiment_card",
    tables=CARD_TABLE_SCHEMAS,
    libraries=REDACTION_LIBRARIES,
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
    inputs = {
        "arm_comparison": arm_comparison,
        "source_documents": source_documents,
        "corpus_artifacts": corpus_artifacts,
    }
    redactor = build_removal_experiment_redactor(inputs, config)
    write_card_tables(compose_removal_experiment_card(inputs, config, redactor), context)
