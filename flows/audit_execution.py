"""What the probes of an examination run through, one step of all of them at a time: so a model is
opened once, and the terminal has a line a step."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hallmark.flows.checkpoint_resolution import find_checkpoint_in_folder
from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, PROBES, REQUEST_STAGES
from hallmark.tasks.audits.inference import respond, respond_untrained
from hallmark.tasks.audits.probe import CorpusTables, Probe
from hallmark.tasks.audits.reference_scoring import score_with_reference
from hallmark.tasks.audits.scoring import score_texts
from hallmark.tasks.audits.tracing import trace_training_text
from hallmark.tasks.contract import Artifact, HallmarkError, UsageError, iter_config_paths

log = logging.getLogger("hallmark")

#: The stages that serve all probes, by the step that each is of a probe.
SHARED_STAGES = {
    "respond": respond,
    "respond_untrained": respond_untrained,
    "score": score_texts,
    "score_untrained": score_texts,
    "trace": trace_training_text,
    "score_with_reference": score_with_reference,
}

#: What a step leaves of a probe; None: nothing.
ProbeStep = Callable[[Probe], Artifact | None]


def run_probe_audits(
    probes: Sequence[Probe],
    checkpoint: Artifact,
    corpus_tables: Mapping[str, Any],
    training_inputs: Sequence[Any],
    config: Any,
    artifacts: dict[str, Artifact],
    errors: dict[str, str],
    label_prefix: str = "",
    check_requests: Callable[[dict[str, Artifact]], None] = lambda asked: None,
) -> dict[str, Artifact]:
    """The findings of each probe. What leads to them goes to ``made``; why one has none, to
    ``failed``. ``tables``: those of the corpus that probes ask about; ``read``: the checkpoints
    that trainings left, these and the rows that they read, as ``origin.trainings`` has them, and
    documents and plants in them; ``config``: one with the sections of examining
    and of these probes; ``called``: what the names of the stages begin
    with, where a run examines twice; ``check``: called with what each probe asks, by its name,
    before a model is asked anything; what it raises ends the run."""

    reference_models = {
        probe.name: resolve_reference_model(probe, get_step_settings(config, probe))
        for probe in probes
    }

    def get_step_artifact(probe: Probe, step: str) -> Artifact | None:
        return artifacts.get(f"{probe.name}_{step}")

    def build_requests(probe: Probe) -> Artifact:
        table_artifacts = [
            corpus_tables[name] if name in probe.corpus_tables else None for name in corpus_tables
        ]
        stage = REQUEST_STAGES[probe.name].with_label(
            f"{label_prefix}{probe.name}_build_requests", "build_requests"
        )
        return stage(checkpoint, *table_artifacts, get_step_settings(config, probe))

    def collect_responses(probe: Probe) -> Artifact:
        stage = respond.with_label(f"{label_prefix}{probe.name}_respond", "respond")
        return stage(
            checkpoint,
            get_step_artifact(probe, "build_requests"),
            get_step_settings(config, probe, "respond"),
        )

    def collect_untrained_responses(probe: Probe) -> Artifact | None:
        stage = respond_untrained.with_label(
            f"{label_prefix}{probe.name}_respond_untrained", "respond_untrained"
        )
        needs_baseline = probe.needs_untrained_baseline(get_step_settings(config, probe))
        settings = get_step_settings(config, probe, "respond_untrained")
        return (
            stage(checkpoint, get_step_artifact(probe, "build_requests"), settings)
            if needs_baseline
            else None
        )

    def score_responses(probe: Probe) -> Artifact | None:
        stage = score_texts.with_label(f"{label_prefix}{probe.name}_score", "score")
        score_config = get_step_settings(config, probe, "score")
        return (
            stage(
                get_step_artifact(probe, "build_requests"),
                get_step_artifact(probe, "respond"),
                score_config,
            )
            if probe.uses_scorers
            else None
        )

    def score_untrained_responses(probe: Probe) -> Artifact | None:
        stage = score_texts.with_label(
            f"{label_prefix}{probe.name}_score_untrained", "score_untrained"
        )
        untrained_responses = get_step_artifact(probe, "respond_untrained")
        score_config = get_step_settings(config, probe, "score_untrained")
        return stage(None, untrained_responses, score_config) if untrained_responses else None

    def trace_responses(probe: Probe) -> Artifact | None:
        settings = get_step_settings(config, probe, "trace")
        is_traceable = settings.enabled and all(
            training_input is not None for training_input in training_inputs
        )
        if not (probe.searches_training_text and is_traceable):
            return None
        stage = trace_training_text.with_label(f"{label_prefix}{probe.name}_trace", "trace")
        return stage(
            get_step_artifact(probe, "build_requests"),
            get_step_artifact(probe, "respond"),
            *training_inputs,
            settings,
        )

    def score_with_reference_model(probe: Probe) -> Artifact | None:
        stage = score_with_reference.with_label(
            f"{label_prefix}{probe.name}_score_with_reference", "score_with_reference"
        )
        request_and_response_sets = (
            get_step_artifact(probe, "build_requests"),
            get_step_artifact(probe, "respond"),
        )
        reference_model = reference_models[probe.name]
        return (
            stage(
                reference_model,
                *request_and_response_sets,
                get_step_settings(config, probe, "score_with_reference"),
            )
            if reference_model
            else None
        )

    def compute_probe_findings(probe: Probe) -> Artifact:
        training_artifacts = training_inputs[:2] if probe.step_dependent else (None, None)
        audit_inputs = (
            get_step_artifact(probe, step) for step in ("build_requests", "respond", "score")
        )
        comparison_inputs = (
            get_step_artifact(probe, step)
            for step in ("respond_untrained", "score_untrained", "trace", "score_with_reference")
        )
        stage = FINDINGS_STAGES[probe.name].with_label(
            f"{label_prefix}audit_{probe.name}", "compute_findings"
        )
        return stage(
            *audit_inputs, *training_artifacts, *comparison_inputs, get_step_settings(config, probe)
        )

    step_functions: dict[str, ProbeStep] = {
        "build_requests": build_requests,
        "respond": collect_responses,
        "respond_untrained": collect_untrained_responses,
        "score": score_responses,
        "score_untrained": score_untrained_responses,
        "trace": trace_responses,
        "score_with_reference": score_with_reference_model,
    }
    for step, run_step in step_functions.items():
        for probe in (probe for probe in probes if probe.name not in errors):
            with capture_failure(errors, probe.name):
                output = run_step(probe)
                artifacts |= {f"{probe.name}_{step}": output} if output else {}
        if step == "build_requests":
            request_sets = (
                (probe.name, get_step_artifact(probe, "build_requests")) for probe in probes
            )
            check_requests({name: artifact for name, artifact in request_sets if artifact})
    findings: dict[str, Artifact] = {}
    for probe in (probe for probe in probes if probe.name not in errors):
        with capture_failure(errors, probe.name):
            findings[probe.name] = compute_probe_findings(probe)
    return findings


def list_probes_with_user_files(config: Any, audit_names: Sequence[str]) -> list[Probe]:
    """The audits among ``only`` that run and whose settings name files of the user."""
    return [
        probe
        for probe in PROBES
        if probe.name in audit_names
        and not probe.find_missing_settings(settings := get_step_settings(config, probe))
        and any(iter_config_paths(settings))
    ]


def check_user_files_exist(config: Any, audit_names: Sequence[str]) -> None:
    """Refuse audits that name a file or folder that does not exist, before anything is trained.

    Args:
        config: The config of the run.
        only: Names of the audits that it comes to.
    """
    probes = list_probes_with_user_files(config, audit_names)
    sections = [f"audit_{probe.name}" for probe in probes]
    if any(probe.uses_scorers for probe in PROBES if probe.name in audit_names):
        sections.append("score")
    for section in sections:
        for config_path in iter_config_paths(getattr(config, section), section):
            if not os.path.exists(config_path.path):
                raise UsageError(
                    f"{config_path.setting}: there is no file or folder "
                    f"{config_path.path!r}; correct the "
                    f"path, or leave the setting out"
                )
    for probe in probes:
        resolve_reference_model(probe, get_step_settings(config, probe))


def check_user_audit_items(config: Any, tokenizer: Artifact, audit_names: Sequence[str]) -> None:
    """Refuse audits whose files do not hold what they ask about, before a model is trained.

    Args:
        config: The config of the run.
        tokenizer: The tokenizer of the model, or the checkpoint from which training goes on.
        only: Names of the audits that it comes to.

    Raises:
        UsageError: As the audit would raise it after the training.
    """
    probes = list_probes_with_user_files(config, audit_names)
    if not probes:
        return
    from hallmark.tasks.audits.audited_models.hallmark_tokenizer import (
        HallmarkTokenizer,
        load_checkpoint_tokenizer,
    )

    audited_tokenizer: AuditedTokenizer
    if tokenizer.stage == "checkpoint":
        audited_tokenizer = open_audited_tokenizer(tokenizer)
    else:
        opened_tokenizer = load_checkpoint_tokenizer(tokenizer.fetch_file("tokenizer.json").parent)
        model_sizes = {
            "vocab_size": opened_tokenizer.get_vocab_size(),
            "context": config.pack.context,
        }
        model_config = replace(config.pretrain.model, **model_sizes)
        audited_tokenizer = HallmarkTokenizer(
            model_config, False, opened_tokenizer, "the model to be trained"
        )
    for probe in probes:
        if "canaries" in probe.corpus_tables:  # it asks about the corpus; its folder is a model
            continue
        try:
            probe.build_requests(
                RequestBuilder(),
                audited_tokenizer,
                CorpusTables(),
                get_step_settings(config, probe),
            )
        except UsageError as error:
            raise UsageError(f"audit_{probe.name}: {error}") from error
        except HallmarkError as error:  # the card says it, if it is still so
            log.warning("audit_%s: %s", probe.name, error)


def map_step_labels_to_stages(probes: Sequence[Probe]) -> dict[str, str]:
    """What a run calls each stage of these probes, and the stage that it is."""
    return {
        f"{probe.name}_{step}": stage.name
        for probe in probes
        for step, stage in {"build_requests": REQUEST_STAGES[probe.name], **SHARED_STAGES}.items()
    }


def resolve_reference_model(probe: Probe, settings: Any) -> Artifact | None:
    """The model that reads what another wrote, where the settings name one."""
    reference_folder = probe.reference_folder(settings)
    resolved = find_checkpoint_in_folder(str(reference_folder)) if reference_folder else None
    if reference_folder and resolved is None:
        raise UsageError(
            f"audit_{probe.name}.reference_model_folder: there is no folder {reference_folder}"
        )
    return resolved.checkpoint if resolved else None


def get_step_settings(config: Any, probe: Probe, step: str = "compute_findings") -> Any:
    """What a step of a probe runs with: its own settings, or those that probes share."""
    if step in ("score", "score_untrained"):
        return config.score.restrict_to_heads(probe.scorer_heads)
    if step in ("respond", "respond_untrained", "score_with_reference"):
        return config.respond
    return config.trace if step == "trace" else getattr(config, f"audit_{probe.name}")


def map_labels_to_settings(config: Any) -> dict[str, Any]:
    """What each stage of a run with this config runs with, by what the run calls it."""
    sections = dict(config)
    # These take theirs from the section of another stage.
    if "find_personal_data" in sections:
        sections["evaluate_detectors"] = sections["find_personal_data"]
    if "audit_capability" in sections:
        sections["capability_baselines"] = sections["audit_capability"].baselines_config
    return sections | {
        f"{probe.name}_{step}": get_step_settings(config, probe, step)
        for probe in PROBES
        if f"audit_{probe.name}" in sections
        for step in ("build_requests", *SHARED_STAGES)
    }


@contextmanager
def capture_failure(errors: dict[str, str], part_name: str) -> Iterator[None]:
    """What goes wrong within is a line of the card, and no end of the run; but what is wrong with
    the command or the config is."""
    try:
        yield
    except UsageError:
        raise
    except HallmarkError as error:
        errors[part_name] = str(error)
        log.warning("%s failed: %s", part_name, error)
