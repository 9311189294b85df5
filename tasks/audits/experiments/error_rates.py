"""Compute the error rates of the audits from verdicts on sealed trials and their answer keys.

Detection: the share of candidates with an effect that was detected, by effect level. False alarms:
the share of candidates without an effect that was detected. Coverage: how often the 95 % intervals
cover the figure of the same model over all items. Candidates of one trial share its model, so
intervals are over trials. A trial is excluded if its model learned nothing, or if its answer key is
missing or not the one that was sealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from hallmark.tasks.audits.audit_descriptions import (
    AUDIT_BY_CANDIDATE_KIND,
    METRIC_BY_GROUP_KIND,
    NO_EFFECT_AMOUNTS,
)
from hallmark.tasks.audits.experiments.attribution import CandidateKey
from hallmark.tasks.audits.experiments.candidate_verdicts import (
    AUDIT_SETTINGS,
    CANDIDATE_KIND,
    VERDICTS,
)
from hallmark.tasks.contract import (
    Artifact,
    Row,
    StageConfig,
    StageContext,
    column,
    stage,
    table_schema,
)
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share

#: An effect level is detected if at least this share of its candidates is.
DETECTION_THRESHOLD = 0.8


class ErrorRatesConfig(StageConfig):
    """Settings of the error rates."""

    excluded_trials: dict[str, str] = Field(
        default={},
        description="trials to exclude from the rates: an object that maps trial names to reasons "
        "for exclusion",
    )
    max_documents: int = Field(
        default=128, ge=1, description="maximum number of documents to which a text is attributed"
    )


EFFECT_LEVEL = column(
    "effect_level",
    pa.float64(),
    "figure",
    "effect level: share of sentences (for the kinds association, speech and sentiment) or number "
    "of copies (for other kinds)",
)

CANDIDATES = table_schema(
    "Audit verdict and ground truth for each candidate (possible effect) in each trial (synthetic "
    "corpus with known effects).",
    column("trial", pa.string(), "label", "the trial"),
    column("has_effects", pa.bool_(), "label", "whether the trial contains any effects"),
    column(
        "has_learned",
        pa.bool_(),
        "label",
        "whether the trial's model learned more than token frequencies",
    ),
    EFFECT_LEVEL,
    column(
        "has_effect",
        pa.bool_(),
        "label",
        "whether there is an effect to detect; null if the effect is negative (a lower value than "
        "in other groups), because the audit does not test for negative effects",
    ),
    column(
        "is_covered",
        pa.bool_(),
        "label",
        "whether the 95 % interval covers the value measured on all items; null if there is no "
        "two-sided interval",
    ),
    *(VERDICTS.field(name) for name in VERDICTS.names),
)


def make_rate_schema(
    description: str,
    *key_columns: pa.Field,
    value_description: str = ("estimated share; null if there are no cases to estimate it from"),
    unit: str = "share",
) -> pa.Schema:
    """Make the schema of a table of rates, by kind of candidate and the key columns."""
    return table_schema(
        description,
        CANDIDATE_KIND,
        *key_columns,
        column(
            "value",
            pa.float64(),
            "figure",
            value_description,
            unit=unit,
        ),
        column(
            "low",
            pa.float64(),
            "figure",
            "lower end of the interval for the value, computed with trials as clusters",
        ),
        column("high", pa.float64(), "figure", "upper end of the interval for the value"),
        column("confidence_level", pa.float64(), "figure", "level of the interval", unit="share"),
        column("n", pa.int64(), "figure", "number of candidates"),
        column("trials", pa.int64(), "figure", "number of trials that include these candidates"),
        column("method", pa.string(), "project text", "how the interval was computed"),
    )


DETECTION_RATES = make_rate_schema(
    "Detection rate at each effect level.",
    EFFECT_LEVEL,
    column(
        "has_effect",
        pa.bool_(),
        "label",
        "whether there is an effect to detect at this level; null if the effect is negative (a "
        "lower value than in other groups) in at least one trial",
    ),
)
UNJUDGED = table_schema(
    "Candidates without a verdict, which are excluded from all rates.",
    column("trial", pa.string(), "label", "the trial"),
    CANDIDATE_KIND,
    column("candidate_id", pa.string(), "label", "the candidate"),
    EFFECT_LEVEL,
)
FALSE_ALARM_RATES = make_rate_schema(
    "False alarm rate: share of candidates without an effect for which the audit claims an effect, "
    "using the same rule as in the table of detection rates."
)
INTERVAL_COVERAGE = make_rate_schema(
    "Share of the 95 % intervals that cover the value measured on all items."
)

SMALLEST_DETECTED = table_schema(
    "Smallest effect level at which at least 80 % of effects are detected, provided that this "
    "also holds at every higher level.",
    CANDIDATE_KIND,
    column(
        "effect_level",
        pa.float64(),
        "figure",
        "smallest detected level: share of sentences (for the kinds association, speech and "
        "sentiment) or number of copies (for other kinds); null if no level meets the condition",
    ),
)

ATTRIBUTION_PRECISION = make_rate_schema(
    "Attribution precision for a text planted in n training documents: share of these documents "
    "among the n documents ranked highest by attribution. All texts have equal weight."
)

#: Units of the measured values of candidates that are detected by likelihoods.
VALUE_UNITS = {"canary": "bits", "passage": "share", "record": "share", "association": "nats"}

REMOVAL_REDUCTIONS = make_rate_schema(
    "Decrease in the measured values of detected candidates (value before minus value after) when "
    "models are retrained without the attributed documents.",
    column(
        "arm",
        pa.string(),
        "label",
        "retrained model: removed (trained without the attributed documents), random (trained "
        "without an equal number of other documents, chosen at random), or difference (removed "
        "minus random)",
    ),
    column("unit", pa.string(), "label", "unit of the measured values"),
    value_description="mean decrease; null if there are no cases to estimate it from",
    unit="",
)

TRIALS = table_schema(
    "Synthetic corpora with known effects (trials), and whether each trial is included in the "
    "rates.",
    column("trial", pa.string(), "label", "the trial"),
    column("is_counted", pa.bool_(), "label", "whether the trial is included in the rates"),
    column(
        "reason",
        pa.string(),
        "project text",
        "reason why the trial is excluded; empty if it is included",
    ),
    column(
        "bits_per_byte",
        pa.float64(),
        "figure",
        "held-out loss of the trial model",
        unit="bits per byte",
    ),
    column(
        "unigram_bits_per_byte",
        pa.float64(),
        "figure",
        "held-out loss of a model that knows only token frequencies",
        unit="bits per byte",
    ),
)

#: Retrained models: without the attributed documents, or without the same number of others.
ARMS = ("removed", "random")


def read_effect_level_by_candidate(answer_key: pa.Table) -> dict[CandidateKey, float]:
    """Read the effect level of each candidate in an answer key."""
    return {
        CandidateKey(row["kind"], row["candidate_id"]): row["effect_level"]
        for row in answer_key.to_pylist()
    }


def build_candidate_rows(trial: str, verdicts: Artifact, answer_key: pa.Table) -> list[Row]:
    """Build rows of CANDIDATES from the verdicts of a trial and its opened answer key."""
    (model,) = verdicts["model_learning"].read().to_pylist()
    level_by_candidate = read_effect_level_by_candidate(answer_key)
    levels_by_group_kind = {
        kind: [level for candidate, level in level_by_candidate.items() if candidate.kind == kind]
        for kind in METRIC_BY_GROUP_KIND
    }
    has_effects = any(len({*levels}) > 1 for levels in levels_by_group_kind.values()) or any(
        effect_level != NO_EFFECT_AMOUNTS[candidate.kind]
        for candidate, effect_level in level_by_candidate.items()
        if candidate.kind not in METRIC_BY_GROUP_KIND
    )
    rows = []
    for row in verdicts["verdicts"].read().to_pylist():
        effect_level = level_by_candidate[CandidateKey(row["kind"], row["candidate_id"])]
        has_effect: bool | None = (
            compares_worse_than_others(effect_level, levels_by_group_kind[row["kind"]])
            if row["kind"] in METRIC_BY_GROUP_KIND
            else effect_level != NO_EFFECT_AMOUNTS[row["kind"]]
        )
        trial_fields = {
            "trial": trial,
            "has_effects": has_effects,
            "has_learned": model["has_learned"],
            "effect_level": effect_level,
        }
        judged_fields = {"has_effect": has_effect, "is_covered": covers_full_value(row)}
        rows.append(row | trial_fields | judged_fields)
    return rows


def compares_worse_than_others(effect_level: float, levels: Sequence[float]) -> bool | None:
    """Return whether a group has more rude or negative sentences than the mean of the others.

    Args:
        effect_level: The share of the group.
        levels: The shares of all groups of its kind, with its own.

    Returns:
        None if it has fewer.
    """
    mean_of_others = (
        (sum(levels) - effect_level) / (len(levels) - 1) if len(levels) > 1 else effect_level
    )
    if np.isclose(effect_level, mean_of_others):
        return False
    return True if effect_level > mean_of_others else None


def build_unjudged_candidate_rows(
    trial: str, verdicts: pa.Table, answer_key: pa.Table
) -> list[Row]:
    """Build the rows of UNJUDGED of a trial: candidates of the answer key without a verdict."""
    judged_candidates = {
        CandidateKey(row["kind"], row["candidate_id"]) for row in verdicts.to_pylist()
    }
    return [
        {
            "trial": trial,
            "kind": candidate.kind,
            "candidate_id": candidate.candidate_id,
            "effect_level": effect_level,
        }
        for candidate, effect_level in read_effect_level_by_candidate(answer_key).items()
        if candidate not in judged_candidates
    ]


def covers_full_value(verdict: Mapping[str, Any]) -> bool | None:
    """Return whether the interval covers the value of all items; None without two ends."""
    if None in (verdict["low"], verdict["high"], verdict["full_value"]):
        return None
    return bool(verdict["low"] <= verdict["full_value"] <= verdict["high"])


def estimate_rate_with_trial_clusters(
    candidate_rows: Sequence[Mapping[str, Any]],
    values: Sequence[float],
    confidence_level: float = 0.95,
    is_share: bool = True,
) -> Row:
    """Estimate a rate over candidates, with each trial as a cluster.

    Returns:
        Those columns of a table of rates that hold the estimate.
    """
    rate: Estimate = estimate_mean_or_share(
        np.array(values, np.float64),
        [row["trial"] for row in candidate_rows],
        is_share=is_share,
        confidence_level=confidence_level,
        unit="trials",
    )
    figures = {"value": rate.value, "low": rate.low, "high": rate.high}
    known_figures = {name: None if np.isnan(value) else value for name, value in figures.items()}
    trials = len({row["trial"] for row in candidate_rows})
    return {
        **known_figures,
        "confidence_level": confidence_level,
        "n": rate.n,
        "trials": trials,
        "method": rate.method,
    }


def list_candidate_kinds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the kinds of candidates that rows are about."""
    return [kind for kind in AUDIT_BY_CANDIDATE_KIND if any(row["kind"] == kind for row in rows)]


def compute_detection_rates_by_kind_and_level(
    candidate_rows: Sequence[Mapping[str, Any]],
) -> Iterator[Row]:
    """Yield rows of DETECTION_RATES: for each kind and effect level, level 0 included.

    Only trials with effects count.
    """
    for kind in list_candidate_kinds(candidate_rows):
        kind_rows = [row for row in candidate_rows if row["kind"] == kind and row["has_effects"]]
        for effect_level in sorted({row["effect_level"] for row in kind_rows}):
            level_rows = [row for row in kind_rows if row["effect_level"] == effect_level]
            detections = [row["is_detected"] for row in level_rows]
            effects = {row["has_effect"] for row in level_rows}
            effect = effects.pop() if len(effects) == 1 else None
            yield {
                "kind": kind,
                "effect_level": effect_level,
                "has_effect": effect,
                **estimate_rate_with_trial_clusters(level_rows, detections),
            }


def compute_false_alarm_rates_by_kind(
    candidate_rows: Sequence[Mapping[str, Any]],
) -> Iterator[Row]:
    """Yield rows of FALSE_ALARM_RATES; the intervals hold for all kinds jointly (Bonferroni)."""
    kinds = list_candidate_kinds(candidate_rows)
    for kind in kinds:
        rows = [row for row in candidate_rows if row["kind"] == kind and row["has_effect"] is False]
        if rows:
            level = 1 - 0.05 / len(kinds)
            yield {
                "kind": kind,
                **estimate_rate_with_trial_clusters(
                    rows, [row["is_detected"] for row in rows], level
                ),
            }


def compute_interval_coverage_by_kind(
    candidate_rows: Sequence[Mapping[str, Any]],
) -> Iterator[Row]:
    """Yield rows of INTERVAL_COVERAGE."""
    for kind in list_candidate_kinds(candidate_rows):
        rows = [
            row for row in candidate_rows if row["kind"] == kind and row["is_covered"] is not None
        ]
        if rows:
            yield {
                "kind": kind,
                **estimate_rate_with_trial_clusters(rows, [row["is_covered"] for row in rows]),
            }


def find_smallest_detected_level_by_kind(
    detection_rows: Sequence[Mapping[str, Any]],
) -> Iterator[Row]:
    """Yield rows of SMALLEST_DETECTED from rows of DETECTION_RATES."""
    for kind in dict.fromkeys(row["kind"] for row in detection_rows):
        smallest_level = None
        for row in reversed([row for row in detection_rows if row["kind"] == kind]):
            if not row["has_effect"] or row["value"] is None or row["value"] < DETECTION_THRESHOLD:
                break
            smallest_level = row["effect_level"]
        yield {"kind": kind, "effect_level": smallest_level}


def compute_attribution_precision_by_text(
    trial: str, attributions: pa.Table, candidate_documents: pa.Table, max_documents_per_text: int
) -> Iterator[Row]:
    """Yield the precision of attribution for each text that documents were written for.

    A row has trial, kind and value. The precision is measured among as many top documents as were
    written, at most ``max_documents_per_text``.
    """
    true_documents: dict[tuple[str, str, str], set[bytes]] = {}
    for row in candidate_documents.filter(candidate_documents["is_supporting"]).to_pylist():
        true_documents.setdefault((row["kind"], row["candidate_id"], row["group_name"]), set()).add(
            row["doc_id"]
        )
    attributed_documents: dict[tuple[str, str, str], list[bytes]] = {}
    for row in attributions.sort_by("rank").to_pylist():
        attributed_documents.setdefault(
            (row["kind"], row["candidate_id"], row["group_name"]), []
        ).append(row["doc_id"])
    for text_key, expected_ids in true_documents.items():
        inspected_count = min(len(expected_ids), max_documents_per_text)
        correct_ids = expected_ids & {*attributed_documents.get(text_key, [])[:inspected_count]}
        yield {"trial": trial, "kind": text_key[0], "value": len(correct_ids) / inspected_count}


def summarize_attribution_precision_by_kind(rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield rows of ATTRIBUTION_PRECISION from the precision for each text."""
    for kind in list_candidate_kinds(rows):
        kind_rows = [row for row in rows if row["kind"] == kind]
        yield {
            "kind": kind,
            **estimate_rate_with_trial_clusters(kind_rows, [row["value"] for row in kind_rows]),
        }


def compute_reductions_of_detected_values_by_arm(
    trial: str, base_verdicts: pa.Table, verdicts_by_arm: Mapping[str, pa.Table]
) -> Iterator[Row]:
    """Yield the decrease of each detected candidate's figure in each arm, in the unit of the kind.

    A row has trial, kind, arm and value; the arm "difference" is removed minus random. Only
    candidates that are detected by likelihoods count, not groups. Decreases are not divided by the
    figure before: it may be close to 0, and a figure may fall below 0.
    """
    base_rows = {(row["kind"], row["candidate_id"]): row for row in base_verdicts.to_pylist()}
    values_by_arm = {
        arm: {(row["kind"], row["candidate_id"]): row["value"] for row in arm_table.to_pylist()}
        for arm, arm_table in verdicts_by_arm.items()
    }
    for candidate_key, row in base_rows.items():
        arm_values = [values_by_arm[arm].get(candidate_key) for arm in ARMS]
        if (
            candidate_key[0] in VALUE_UNITS
            and row["is_detected"]
            and row["value"] is not None
            and None not in arm_values
        ):
            removed_reduction, random_reduction = (
                row["value"] - value for value in arm_values if value is not None
            )
            reductions = {
                "removed": removed_reduction,
                "random": random_reduction,
                "difference": removed_reduction - random_reduction,
            }
            yield from (
                {"trial": trial, "kind": candidate_key[0], "arm": arm, "value": value}
                for arm, value in reductions.items()
            )


def summarize_value_reductions_by_kind_and_arm(rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield rows of REMOVAL_REDUCTIONS: means over candidates, with each trial as a cluster."""
    for kind in list_candidate_kinds(rows):
        for arm in (*ARMS, "difference"):
            arm_rows = [row for row in rows if (row["kind"], row["arm"]) == (kind, arm)]
            yield {
                "kind": kind,
                "arm": arm,
                "unit": VALUE_UNITS[kind],
                **estimate_rate_with_trial_clusters(
                    arm_rows, [row["value"] for row in arm_rows], is_share=False
                ),
            }


@stage(
    name="error_rates",
    tables={
        "candidates": CANDIDATES,
        "detection_rates": DETECTION_RATES,
        "false_alarm_rates": FALSE_ALARM_RATES,
        "interval_coverage": INTERVAL_COVERAGE,
        "smallest_detected": SMALLEST_DETECTED,
        "trials": TRIALS,
        "unjudged_candidates": UNJUDGED,
        "attribution_precision": ATTRIBUTION_PRECISION,
        "removal_reductions": REMOVAL_REDUCTIONS,
        "audit_settings": AUDIT_SETTINGS,
    },
    libraries=["numpy", "scipy"],
    reads={
        "verdicts": ("verdicts", "model_learning", "audit_settings"),
        "answer_keys": ("answer_key", "candidate_documents"),
        "attributions": ("attributions",),
        "retrained_verdicts": ("verdicts",),
    },
)
def compute_error_rates(
    verdicts: Mapping[str, Artifact],
    answer_keys: Mapping[str, Artifact],
    attributions: Mapping[str, Artifact],
    retrained_verdicts: Mapping[str, Artifact],
    config: ErrorRatesConfig,
    context: StageContext,
) -> None:
    """Compute the error rates of the trials that are not excluded.

    Args:
        verdicts: Verdicts of each trial.
        answer_keys: Opened answer key of each trial.
        attributions: Attributions of each trial.
        retrained_verdicts: Verdicts on retrained models, by "trial arm".
        config: Settings.
        context: Context of the stage.
    """
    candidate_rows: list[Row] = []
    trial_rows: list[Row] = []
    precision_rows: list[Row] = []
    reduction_rows: list[Row] = []
    unjudged_rows: list[Row] = []
    for trial, artifact in verdicts.items():
        answer_key = answer_keys[trial]["answer_key"].read()
        rows = build_candidate_rows(trial, artifact, answer_key)
        (model,) = artifact["model_learning"].read().to_pylist()
        reason = "" if model["has_learned"] else "the trial model learned only token frequencies"
        figures = {
            table_name: model[table_name]
            for table_name in ("bits_per_byte", "unigram_bits_per_byte")
        }
        trial_rows.append({"trial": trial, "is_counted": not reason, "reason": reason, **figures})
        candidate_rows += rows
        if reason:
            continue
        origins = answer_keys[trial]["candidate_documents"].read()
        arm_verdicts = {
            arm: retrained_verdicts[f"{trial} {arm}"]["verdicts"].read()
            for arm in ARMS
            if f"{trial} {arm}" in retrained_verdicts
        }
        reduction_rows += (
            compute_reductions_of_detected_values_by_arm(
                trial, artifact["verdicts"].read(), arm_verdicts
            )
            if arm_verdicts
            else []
        )
        attributions_table = attributions[trial]["attributions"].read()
        precision_rows += compute_attribution_precision_by_text(
            trial, attributions_table, origins, config.max_documents
        )
        unjudged_rows += build_unjudged_candidate_rows(
            trial, artifact["verdicts"].read(), answer_key
        )
    trial_rows += [
        {"trial": trial, "is_counted": False, "reason": reason}
        for trial, reason in config.excluded_trials.items()
    ]
    learned_rows = [row for row in candidate_rows if row["has_learned"]]
    detection_rows = [*compute_detection_rates_by_kind_and_level(learned_rows)]
    context.get_table_writer("candidates").write(
        pa.Table.from_pylist(candidate_rows, schema=CANDIDATES)
    )
    settings_by_trial = [
        artifact["audit_settings"].read().to_pylist() for artifact in verdicts.values()
    ]
    for table_name, schema, table_rows in (
        # The trials of a study differ only in their seeds, which the table does not have.
        ("audit_settings", AUDIT_SETTINGS, settings_by_trial[0] if settings_by_trial else []),
        ("detection_rates", DETECTION_RATES, detection_rows),
        (
            "false_alarm_rates",
            FALSE_ALARM_RATES,
            [*compute_false_alarm_rates_by_kind(learned_rows)],
        ),
        (
            "interval_coverage",
            INTERVAL_COVERAGE,
            [*compute_interval_coverage_by_kind(learned_rows)],
        ),
        (
            "smallest_detected",
            SMALLEST_DETECTED,
            [*find_smallest_detected_level_by_kind(detection_rows)],
        ),
        (
            "attribution_precision",
            ATTRIBUTION_PRECISION,
            [*summarize_attribution_precision_by_kind(precision_rows)],
        ),
        (
            "removal_reductions",
            REMOVAL_REDUCTIONS,
            [*summarize_value_reductions_by_kind_and_arm(reduction_rows)],
        ),
        ("trials", TRIALS, trial_rows),
        ("unjudged_candidates", UNJUDGED, unjudged_rows),
    ):
        context.get_table_writer(table_name).write(pa.Table.from_pylist(table_rows, schema=schema))
