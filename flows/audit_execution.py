"""Run the audits of a checkpoint, one step for all probes at a time.

So a model is loaded only once, and the terminal shows one line per step.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hallmark.flows.checkpoint_resolution import find_checkpoint_in_folder
from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.audited_models.opening import (
    check_inference_settings,
    is_hallmark_checkpoint,
    open_audited_tokenizer,
)
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, REQUEST_STAGES
from hallmark.tasks.audits.inference import respond, respond_untrained, respond_untrained_models
from hallmark.tasks.audits.probe import CorpusTables, Probe
from hallmark.tasks.audits.reference_scoring import score_with_reference
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.scoring import score_texts
from hallmark.tasks.audits.tracing import trace_training_text
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Stage,
    StageConfig,
    UsageError,
    explain_relative_path,
    iter_config_paths,
)
from hallmark.tasks.measures.scorers import check_scorer_files

#: The requests or the findings of audits, by the name of the audit.
RequestsByAudit = dict[str, Artifact]
FindingsByAudit = dict[str, Artifact]

log = logging.getLogger("hallmark")

#: An absolute path on this machine, with the name of the file or folder as its group.
_LOCAL_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/;,:'\"()]+/)+([^\s/;,:'\"()]+)")

#: The stages that all probes share, by the name of their step.
SHARED_STAGES = {
    "respond": respond,
    "respond_untrained": respond_untrained,
    "respond_untrained_models": respond_untrained_models,
    "score": score_texts,
    "score_untrained": score_texts,
    "trace": trace_training_text,
    "score_with_reference": score_with_reference,
    "respond_reference": respond,
    "score_reference": score_texts,
}


@dataclass(frozen=True)
class TrainingInputs:
    """The artifacts of the trainings of a checkpoint, as for the ``trace`` stage; None if unknown.

    Attributes:
        checkpoints: The last checkpoint of each training, newest first.
        training_runs: The artifact of each training.
        packed_corpora: The packed rows that each training read.
        documents: The documents of all corpora in these rows, with their canaries.
    """

    checkpoints: Mapping[str, Artifact] | None = None
    training_runs: Mapping[str, Artifact] | None = None
    packed_corpora: Mapping[str, Artifact] | None = None
    documents: Sequence[Artifact] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether texts can be traced to training documents."""
        return self.packed_corpora is not None and self.documents is not None


@dataclass
class ProbeAudits:
    """The audits of several probes, one step of all of them at a time.

    So a model is opened once for all probes, and the terminal has one line for each step. A probe
    that fails is skipped in all later steps; the others continue.

    Attributes:
        probes: The probes to run.
        checkpoint: The model to audit.
        config: A config with the sections of the audits and of these probes.
        lexicons: The artifact with the user's lexicons, if there is a corpus.
        documents: The artifacts with the documents of the corpus, if there is one.
        canaries: The artifacts with the canaries of the corpus; by default ``documents``.
        training: The artifacts of the trainings of the checkpoint, as far as they are known.
        label_prefix: Prefix of the stages' labels, for a run that audits several models.
        artifacts: The artifacts of all steps so far, by label.
        errors: Why probes failed, by their names.
    """

    probes: Sequence[Probe]
    checkpoint: Artifact
    config: Any
    lexicons: Artifact | None = None
    documents: Sequence[Artifact] | None = None
    canaries: Sequence[Artifact] | None = None
    training: TrainingInputs = TrainingInputs()
    label_prefix: str = ""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def build_requests(self) -> RequestsByAudit:
        """Build what each probe asks a model, and return it by the probe's name."""
        # A reference model that is missing must be refused before a model is asked anything.
        self.reference_models = {
            probe.name: resolve_reference_model(probe, self.config) for probe in self.probes
        }
        corpus_tables = {
            "lexicons": self.lexicons,
            "canaries": self.documents if self.canaries is None else self.canaries,
            "documents": self.documents,
        }
        for probe in self.probes:
            with record_failure(self.errors, probe.name):
                stage = self._label_stage(REQUEST_STAGES[probe.name], probe, "build_requests")
                probe_tables = {
                    name: table if name in probe.corpus_tables else None
                    for name, table in corpus_tables.items()
                }
                self.artifacts[f"{probe.name}_build_requests"] = stage(
                    checkpoint=self.checkpoint,
                    **probe_tables,
                    config=get_step_settings(self.config, probe),
                )
        return {
            probe.name: artifact
            for probe in self.probes
            if (artifact := self._find_artifact(probe, "build_requests"))
        }

    def run(self) -> FindingsByAudit:
        """Ask the model, score and trace its answers, and return the findings of each probe."""
        steps: dict[str, Callable[[Probe], Artifact | None]] = {
            "respond": self._collect_responses,
            "respond_untrained": self._collect_untrained_responses,
            "respond_untrained_models": self._collect_responses_of_untrained_models,
            "score": self._score_responses,
            "score_untrained": self._score_untrained_responses,
            "trace": self._trace_responses,
            "score_with_reference": self._score_with_reference_model,
            "build_requests_reference": self._build_reference_requests,
            "respond_reference": self._collect_reference_responses,
            "score_reference": self._score_reference_responses,
        }
        for step, run_step in steps.items():
            for probe in self._list_running_probes():
                with record_failure(self.errors, probe.name):
                    if artifact := run_step(probe):
                        self.artifacts[f"{probe.name}_{step}"] = artifact
        findings: dict[str, Artifact] = {}
        for probe in self._list_running_probes():
            with record_failure(self.errors, probe.name):
                findings[probe.name] = self._compute_findings(probe)
        return findings

    def _list_running_probes(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.name not in self.errors]

    def _find_artifact(self, probe: Probe, step: str) -> Artifact | None:
        return self.artifacts.get(f"{probe.name}_{step}")

    def _label_stage(self, stage: Stage, probe: Probe, step: str) -> Stage:
        return stage.with_label(f"{self.label_prefix}{probe.name}_{step}", step)

    def _collect_responses(self, probe: Probe) -> Artifact:
        return self._label_stage(respond, probe, "respond")(
            checkpoint=self.checkpoint,
            requests=self._find_artifact(probe, "build_requests"),
            config=get_step_settings(self.config, probe, "respond"),
        )

    def _collect_untrained_responses(self, probe: Probe) -> Artifact | None:
        if not probe.steps.needs_untrained_baseline(get_step_settings(self.config, probe)):
            return None
        return self._label_stage(respond_untrained, probe, "respond_untrained")(
            checkpoint=self.checkpoint,
            requests=self._find_artifact(probe, "build_requests"),
            config=get_step_settings(self.config, probe, "respond_untrained"),
        )

    def _collect_responses_of_untrained_models(self, probe: Probe) -> Artifact | None:
        if not probe.compares_with_untrained_models:
            return None
        return self._label_stage(respond_untrained_models, probe, "respond_untrained_models")(
            checkpoint=self.checkpoint,
            requests=self._find_artifact(probe, "build_requests"),
            config=get_step_settings(self.config, probe, "respond_untrained_models"),
        )

    def _score_responses(self, probe: Probe) -> Artifact | None:
        if not probe.steps.uses_scorers:
            return None
        return self._label_stage(score_texts, probe, "score")(
            request_set=self._find_artifact(probe, "build_requests"),
            responses=self._find_artifact(probe, "respond"),
            config=get_step_settings(self.config, probe, "score"),
        )

    def _score_untrained_responses(self, probe: Probe) -> Artifact | None:
        untrained_responses = self._find_artifact(probe, "respond_untrained")
        if untrained_responses is None:
            return None
        return self._label_stage(score_texts, probe, "score_untrained")(
            request_set=None,
            responses=untrained_responses,
            config=get_step_settings(self.config, probe, "score_untrained"),
        )

    def _trace_responses(self, probe: Probe) -> Artifact | None:
        settings = get_step_settings(self.config, probe, "trace")
        if not (
            probe.steps.searches_training_text and settings.enabled and self.training.is_complete
        ):
            return None
        return self._label_stage(trace_training_text, probe, "trace")(
            request_set=self._find_artifact(probe, "build_requests"),
            response_set=self._find_artifact(probe, "respond"),
            checkpoints=self.training.checkpoints,
            training_runs=self.training.training_runs,
            packed_corpora=self.training.packed_corpora,
            documents=self.training.documents,
            canaries=self.training.documents,
            config=settings,
        )

    def _score_with_reference_model(self, probe: Probe) -> Artifact | None:
        reference_model = self.reference_models[probe.name]
        if reference_model is None or probe.steps.reference_answers_requests:
            return None
        return self._label_stage(score_with_reference, probe, "score_with_reference")(
            reference_model=reference_model,
            request_set=self._find_artifact(probe, "build_requests"),
            response_set=self._find_artifact(probe, "respond"),
            config=get_step_settings(self.config, probe, "score_with_reference"),
        )

    def _build_reference_requests(self, probe: Probe) -> Artifact | None:
        """Build the requests in the tokens of the reference model; it needs no corpus for that."""
        reference_model = self.reference_models[probe.name]
        if reference_model is None or not probe.steps.reference_answers_requests:
            return None
        request_stage = REQUEST_STAGES[probe.name]
        step = "build_requests_reference"
        return self._label_stage(request_stage, probe, step)(
            checkpoint=reference_model,
            lexicons=self.lexicons if "lexicons" in probe.corpus_tables else None,
            canaries=None,
            documents=None,
            config=get_step_settings(self.config, probe),
        )

    def _collect_reference_responses(self, probe: Probe) -> Artifact | None:
        requests = self._find_artifact(probe, "build_requests_reference")
        if requests is None:
            return None
        return self._label_stage(respond, probe, "respond_reference")(
            checkpoint=self.reference_models[probe.name],
            requests=requests,
            config=get_step_settings(self.config, probe, "respond_reference"),
        )

    def _score_reference_responses(self, probe: Probe) -> Artifact | None:
        responses = self._find_artifact(probe, "respond_reference")
        if responses is None:
            return None
        return self._label_stage(score_texts, probe, "score_reference")(
            request_set=None,
            responses=responses,
            config=get_step_settings(self.config, probe, "score_reference"),
        )

    def _collect_reference_answers(self, probe: Probe) -> dict[str, Artifact] | None:
        """Return requests, responses and scores of the reference model, if it answered."""
        answers = {
            name: self._find_artifact(probe, f"{step}_reference")
            for name, step in (
                ("requests", "build_requests"),
                ("responses", "respond"),
                ("scores", "score"),
            )
        }
        known_answers = {name: artifact for name, artifact in answers.items() if artifact}
        return known_answers if len(known_answers) == len(answers) else None

    def _compute_findings(self, probe: Probe) -> Artifact:
        label = f"{self.label_prefix}audit_{probe.name}"
        stage = FINDINGS_STAGES[probe.name].with_label(label, "compute_findings")
        reads_training = probe.step_dependent
        return stage(
            request_set=self._find_artifact(probe, "build_requests"),
            response_set=self._find_artifact(probe, "respond"),
            score_set=self._find_artifact(probe, "score"),
            checkpoints=self.training.checkpoints if reads_training else None,
            training_runs=self.training.training_runs if reads_training else None,
            untrained_responses=self._find_artifact(probe, "respond_untrained"),
            untrained_scores=self._find_artifact(probe, "score_untrained"),
            training_overlap=self._find_artifact(probe, "trace"),
            reference_scores=self._find_artifact(probe, "score_with_reference"),
            untrained_models=self._find_artifact(probe, "respond_untrained_models"),
            reference_answers=self._collect_reference_answers(probe),
            config=get_step_settings(self.config, probe),
        )


def list_probes_with_user_files(config: Any, audit_names: Sequence[str]) -> list[Probe]:
    """Return the named audits that will run and whose settings name files of the user."""
    return [
        probe
        for probe in PROBES
        if probe.name in audit_names
        and not probe.find_missing_settings(settings := get_step_settings(config, probe))
        and any(iter_config_paths(settings))
    ]


def check_user_files_exist(config: Any, audit_names: Sequence[str]) -> None:
    """Check that the files and folders that audits name exist, before anything is trained.

    Args:
        config: The config of the run.
        audit_names: The audits that the run will reach.

    Raises:
        UsageError: If one does not exist.
    """
    probes = list_probes_with_user_files(config, audit_names)
    sections = [f"audit_{probe.name}" for probe in probes]
    if any(probe.steps.uses_scorers for probe in PROBES if probe.name in audit_names):
        sections.append("score")
    for section in sections:
        for config_path in iter_config_paths(getattr(config, section), section):
            if not os.path.exists(config_path.path):
                raise UsageError(
                    f"{config_path.setting}: there is no file or folder {config_path.path!r}"
                    f"{explain_relative_path(config_path.path)}; correct the path or remove the "
                    "setting"
                )
    check_scorers_of_audits(config, audit_names)
    for probe in probes:
        resolve_reference_model(probe, config)


def check_scorers_of_audits(config: Any, audit_names: Sequence[str]) -> None:
    """Check the word lists of the scorers that audits use, before a model is asked anything.

    Raises:
        UsageError: If one cannot be used.
    """
    for probe in PROBES:
        if probe.name in audit_names and probe.steps.uses_scorers:
            for scorer in get_step_settings(config, probe, "score").all_scorers:
                check_scorer_files(scorer)


def check_user_audit_items(config: Any, tokenizer: Artifact, audit_names: Sequence[str]) -> None:
    """Check that the user's files for audits are usable, before a model is trained.

    Args:
        config: The config of the run.
        tokenizer: The tokenizer of the model, or the checkpoint from which training starts.
        audit_names: The audits that the run will reach.

    Raises:
        UsageError: The error that the audit would otherwise raise after the training.
    """
    probes = list_probes_with_user_files(config, audit_names)
    if not probes:
        return
    audited_tokenizer = open_tokenizer_of_model(config, tokenizer)
    for probe in probes:
        if "canaries" in probe.corpus_tables:  # its items come from the corpus, not from a file
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
        except HallmarkError as error:  # the card reports it, if the audit fails as well
            log.warning("audit_%s: %s", probe.name, error)


def open_tokenizer_of_model(config: Any, tokenizer: Artifact) -> AuditedTokenizer:
    """Open the tokenizer of a model that will be trained, as the audits will read it.

    Args:
        config: The config of the run.
        tokenizer: The tokenizer of the model, or the checkpoint from which training starts.
    """
    from hallmark.tasks.audits.audited_models.hallmark_tokenizer import (
        HallmarkTokenizer,
        load_checkpoint_tokenizer,
    )

    if tokenizer.stage == "checkpoint":
        return open_audited_tokenizer(tokenizer)
    opened_tokenizer = load_checkpoint_tokenizer(tokenizer.fetch_file("tokenizer.json").parent)
    model_config = replace(
        config.pretrain.model,
        vocab_size=opened_tokenizer.get_vocab_size(),
        context=config.pack.context,
    )
    return HallmarkTokenizer(model_config, False, opened_tokenizer, "the model to be trained")


def map_step_labels_to_stage_names(probes: Sequence[Probe]) -> dict[str, str]:
    """Map the label of each step of these probes in a run to the name of its stage."""
    return {
        f"{probe.name}_{step}": stage.name
        for probe in probes
        for step, stage in {
            "build_requests": REQUEST_STAGES[probe.name],
            "build_requests_reference": REQUEST_STAGES[probe.name],
            **SHARED_STAGES,
        }.items()
    }


def resolve_reference_model(probe: Probe, config: Any) -> Artifact | None:
    """Open the model that the audited one is compared with, or return None without one.

    Raises:
        UsageError: If the config names a folder that does not exist, or a model that does not
            support the settings of ``respond``.
    """
    reference_folder = probe.steps.reference_folder(get_step_settings(config, probe))
    if reference_folder is None:
        return None
    setting, respond_config = f"audit_{probe.name}.reference_model_folder", config.respond
    resolved = find_checkpoint_in_folder(str(reference_folder))
    if resolved is None:
        raise UsageError(
            f"{setting}: there is no folder {reference_folder}; "
            "correct the path or remove the setting"
        )
    try:
        check_inference_settings(
            respond_config.device,
            respond_config.dtype,
            respond_config.batch_size,
            is_hallmark=is_hallmark_checkpoint(resolved.checkpoint),
        )
    except UsageError as error:
        raise UsageError(f"{setting}: {error}") from error
    if probe.steps.reference_answers_requests:
        tokenizer = open_audited_tokenizer(resolved.checkpoint)
        if tokenizer.model_kind == "masked":
            raise UsageError(
                f"{setting}: {reference_folder} is a masked language model and cannot generate "
                "text; specify a causal language model"
            )
    return resolved.checkpoint


def get_step_settings(config: Any, probe: Probe, step: str = "compute_findings") -> Any:
    """Return the settings of a step of a probe: its own, or those that all probes share."""
    if step in ("score", "score_untrained", "score_reference"):
        return config.score.restrict_to_heads(probe.steps.scorer_heads)
    if step in (
        "respond",
        "respond_untrained",
        "respond_untrained_models",
        "respond_reference",
        "score_with_reference",
    ):
        return config.respond
    return config.trace if step == "trace" else getattr(config, f"audit_{probe.name}")


def map_labels_to_settings(config: Any) -> dict[str, StageConfig]:
    """Map the label of each stage of a run to its settings in this config."""
    sections = dict(config)
    # These stages use the section of another stage.
    if "find_personal_data" in sections:
        sections["evaluate_detectors"] = sections["find_personal_data"]
    if "deduplicate_near" in sections:
        sections["evaluate_near_duplicates"] = sections["deduplicate_near"]
    if "audit_capability" in sections:
        sections["capability_baselines"] = sections["audit_capability"].baselines_config
    if "identities" in sections:
        sections["record_lexicons"] = sections["identities"].lexicons_config
    if "policy" in sections:
        sections["policy"] = sections["policy"].rules_config
    return sections | {
        f"{probe.name}_{step}": get_step_settings(config, probe, step)
        for probe in PROBES
        if f"audit_{probe.name}" in sections
        for step in ("build_requests", "build_requests_reference", *SHARED_STAGES)
    }


@contextmanager
def record_failure(failure_reason_by_part: dict[str, str], part_name: str) -> Iterator[None]:
    """Record a HallmarkError instead of ending the run, so that the card can report it.

    A UsageError still ends the run, because the command or the config must be corrected.
    """
    try:
        yield
    except UsageError:
        raise
    except HallmarkError as error:
        failure_reason_by_part[part_name] = format_failure_reason(error)
        log.warning("%s failed: %s", part_name, error)


def format_failure_reason(error: HallmarkError) -> str:
    """Return what a card says of an error: what happened, without remedies and local folders.

    Readers of a card cannot run anything again, and the same failure on another machine must give
    the same card.
    """
    what_happened = str(error).partition("; ")[0]
    return _LOCAL_PATH.sub(r"\1", what_happened)
