"""Prepare what the page of a run shows, on the site and in the application.

The page shows the run's stages in groups, under titles in words where one is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from hallmark.reports.sections.stage_titles import CORPUS_STAGE_TITLES
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import format_count

#: The titles of the stages that train a model, by label.
TRAINING_STAGE_TITLES = {
    "train_tokenizer": "tokenizer training",
    "pack": "packing into training sequences",
    "pretrain": "model training",
    "finetune": "model fine-tuning",
}

#: The titles of the stages about a model that belong to no single audit, by label.
MODEL_STAGE_TITLES = {
    "capability_baselines": "Capability: baselines",
    "attention_maps": "model attention",
    "score_samples": "generated-sample scores",
    "missing_audits": "audits without a result",
    "error_rates": "audit error rates",
    "compare_with_previous": "comparison with the previous release",
    "policy": "policy verdicts",
}

#: The titles of the cards, by label.
CARD_TITLES = {
    "datasheet": "datasheet",
    "model_card": "model card",
    "task_card": "task card",
    "study_card": "study card",
    "removal_experiment_card": "removal experiment card",
}

#: The titles of the steps of an audit, by the end of the label.
AUDIT_STEP_TITLES = {
    "build_requests": "prompts",
    "respond": "model responses",
    "score": "response scores",
    "trace": "training text search",
    "respond_untrained": "responses from an untrained model",
    "respond_untrained_models": "responses from untrained models",
    "score_untrained": "untrained-model scores",
    "build_requests_reference": "prompts for the reference model",
    "respond_reference": "reference model responses",
    "score_reference": "reference model scores",
    "score_with_reference": "scores from the reference model",
}

STAGE_TITLES = {
    **CORPUS_STAGE_TITLES,
    **TRAINING_STAGE_TITLES,
    **MODEL_STAGE_TITLES,
    **CARD_TITLES,
}

#: The parts of a run in the order of its page; the last has the stages without a title.
GROUPS = CORPUS_GROUP, TRAINING_GROUP, AUDIT_GROUP, CARD_GROUP, OTHER_GROUP = (
    "Corpus",
    "Training",
    "Audits",
    "Cards",
    "Other stages",
)

StageT = TypeVar("StageT")


@dataclass(frozen=True)
class TitledStage(Generic[StageT]):
    """A stage with its title.

    Attributes:
        title: The title in words; empty if none is known.
        stage: The stage.
    """

    title: str
    stage: StageT


@dataclass(frozen=True)
class StageGroup(Generic[StageT]):
    """The stages of one part of a run.

    Attributes:
        title: The name of the part.
        description: How many stages it has, and how many of them were computed.
        stages: The stages in the order in which they ran.
    """

    title: str
    description: str
    stages: list[TitledStage[StageT]]


def find_stage_title(label: str) -> str:
    """Return the title of a stage in words; empty if none is known."""
    return STAGE_TITLES.get(label) or _find_audit_step_title(label)


def _find_audit_step_title(label: str) -> str:
    """Return the title of an audit and of its step; empty if the label is not that of a step."""
    for audit, description in AUDIT_DESCRIPTIONS.items():
        if label == f"audit_{audit}":
            return f"{description.title}: findings"
        step_title = AUDIT_STEP_TITLES.get(label.removeprefix(f"{audit}_"))
        if label.startswith(f"{audit}_") and step_title:
            return f"{description.title}: {step_title}"
    return ""


def find_stage_group(label: str) -> str:
    """Return the part of a run to which a stage belongs."""
    for group, titles in (
        (CORPUS_GROUP, CORPUS_STAGE_TITLES),
        (TRAINING_GROUP, TRAINING_STAGE_TITLES),
        (CARD_GROUP, CARD_TITLES),
    ):
        if label in titles:
            return group
    return AUDIT_GROUP if find_stage_title(label) else OTHER_GROUP


def group_stages(
    stages: Iterable[StageT], get_entry: Callable[[StageT], Mapping[str, Any]]
) -> list[StageGroup[StageT]]:
    """Group stages by the part of the run to which they belong.

    Args:
        stages: The stages.
        get_entry: Returns the record of a stage in run.json.
    """
    stages_by_group: dict[str, list[StageT]] = {group: [] for group in GROUPS}
    for stage in stages:
        stages_by_group[find_stage_group(get_entry(stage)["label"])].append(stage)
    return [
        StageGroup(
            group,
            describe_stage_counts([get_entry(stage) for stage in group_members]),
            [
                TitledStage(find_stage_title(get_entry(stage)["label"]), stage)
                for stage in group_members
            ],
        )
        for group, group_members in stages_by_group.items()
        if group_members
    ]


def describe_stage_counts(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return how many stages there are, and how many were computed in how much time."""
    entries = [*entries]
    computed_entries = [entry for entry in entries if not entry["cached"]]
    count_text = format_count(len(entries), "stage")
    if not computed_entries:
        return f"{count_text}, {'cached' if len(entries) == 1 else 'all cached'}"
    seconds = sum(entry["seconds"] for entry in computed_entries)
    return f"{count_text}, {len(computed_entries)} computed in {format_seconds(seconds)}"


def describe_duration(record: Mapping[str, Any]) -> str:
    """Return how long a run took; empty if it has no end, or if a time cannot be read."""
    try:
        started, ended = (datetime.fromisoformat(record[name]) for name in ("started", "ended"))
        return format_seconds((ended - started).total_seconds())
    except (KeyError, TypeError, ValueError):
        return ""


def format_seconds(seconds: float) -> str:
    """Format a duration in words, in the two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} seconds"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return " ".join([format_count(hours, "hour"), format_count(minute, "minute")])
    if minutes:
        return " ".join([format_count(minutes, "minute"), format_count(second, "second")])
    return format_count(second, "second")
