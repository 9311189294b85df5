"""Say on the datasheet what was not measured of a corpus."""

from __future__ import annotations

from hallmark.reports.sections.corpus_figures import SCORE_FILTER, CorpusFigures
from hallmark.reports.sections.curation_effects import EFFECTS
from hallmark.reports.sections.curation_evaluation import list_filter_error_rows

#: What each stage measures, by the name of the stage.
PROPERTY_BY_STAGE = {
    "language": "languages",
    "score_toxicity": "toxicity",
    "find_personal_data": "personal data",
    "evaluate_detectors": "personal-data search accuracy",
    "identities": "mentions of groups of people",
    EFFECTS: "removal rates by group",
}

#: What no stage measures.
NEVER_MEASURED = (
    "source representativeness",
    "truthfulness of the texts",
)


def describe_unmeasured_properties(corpus: CorpusFigures) -> str:
    """Return a sentence that lists what was not measured."""
    *first_properties, last_property = [*list_unmeasured_properties(corpus), *NEVER_MEASURED]
    return f"No corpus stage measured {', '.join(first_properties)} or {last_property}."


def list_unmeasured_properties(corpus: CorpusFigures) -> list[str]:
    """Return what the stages of this corpus could have measured and did not."""
    stages = {artifact.stage for artifact in corpus.stage_artifacts.values()}
    properties = [name for stage, name in PROPERTY_BY_STAGE.items() if stage not in stages]
    if SCORE_FILTER in corpus.stage_artifacts and not list_filter_error_rows(corpus):
        properties.append("toxicity filter error rates")
    if not _has_searched_evaluation_items(corpus):
        properties.append("overlap with evaluation sets")
    return properties


def _has_searched_evaluation_items(corpus: CorpusFigures) -> bool:
    """Return whether the corpus was searched for an item of an evaluation set."""
    return any(
        row["items"] > row["skipped_items"]
        for artifact in corpus.stage_artifacts.values()
        if "evaluation_sets" in artifact.tables
        for row in artifact["evaluation_sets"].read(["items", "skipped_items"]).to_pylist()
    )
