"""Define the settings of a study and of its trials, and check that a study keeps its settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from pydantic import Field, ValidationError, model_validator

from hallmark.flows.config_errors import format_validation_error
from hallmark.flows.config_files import apply_override
from hallmark.flows.retry_settings import RetryConfig
from hallmark.flows.runs import open_store, read_all_runs
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.reports.study_card import StudyCardConfig
from hallmark.tasks.audits.audit_descriptions import AUDIT_BY_CANDIDATE_KIND, SIGNIFICANCE_LEVEL
from hallmark.tasks.audits.experiments.attribution import AttributionConfig
from hallmark.tasks.audits.inference import RespondConfig
from hallmark.tasks.audits.probes.associations import AssociationsConfig
from hallmark.tasks.audits.probes.counterfactual import CounterfactualConfig
from hallmark.tasks.audits.probes.extraction import ExtractionConfig
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.scoring import ScoreConfig
from hallmark.tasks.audits.tracing import TraceConfig
from hallmark.tasks.contract import (
    PathSafeName,
    StageConfig,
    Store,
    UsageError,
)
from hallmark.tasks.corpus.synthetic_corpus import SyntheticCorpusConfig
from hallmark.tasks.measures.canaries import max_reference_secrets
from hallmark.tasks.measures.sentence_frames import SENTENCE_FRAMES
from hallmark.tasks.training.pack import PackConfig
from hallmark.tasks.training.pretrain import PretrainConfig
from hallmark.tasks.training.train_tokenizer import TokenizerConfig

#: The probes that judge candidates.
STUDIED_PROBES = tuple(probe for probe in PROBES if probe.name in AUDIT_BY_CANDIDATE_KIND.values())

#: Settings that do not change the results of a study.
EXECUTION_SETTINGS = (
    "store",
    "parallel_trials",
    "workers",
    "mapper",
    "report_to",
    "reporters",
    "retry",
)

#: Settings that differ between the trials of a study.
TRIAL_SPECIFIC_SETTINGS = (
    "is_retrained",
    "synthetic_corpus.seed",
    "synthetic_corpus.has_effects",
    "pretrain.train.seed",
    *(f"audit_{probe.name}.seed" for probe in STUDIED_PROBES),
)


class FullAuditConfig(StageConfig):
    """Settings of the full audits, whose values on all items count as the true values."""

    grammar_sentences: int = Field(
        len(SENTENCE_FRAMES),
        ge=2,
        le=len(SENTENCE_FRAMES),
        description="number of sentence templates from the built-in grammar to use in the full "
        "audits",
    )
    reference_secrets_factor: int = Field(
        6,
        ge=1,
        le=1000,
        description="number of reference secrets in the full audits, as a multiple of "
        "audit_extraction.reference_secrets",
    )
    stride_tokens: int = Field(
        1,
        ge=1,
        description="distance in tokens between the starts of successive windows in a passage",
    )


class StudyConfig(StageConfig):
    """All settings of a study."""

    name: PathSafeName = Field(
        "study",
        description="name of the study; an unfinished study with the same name is continued",
    )
    store: str | None = Field(
        None,
        description="folder or object-store URI of the store; defaults to the HALLMARK_STORE "
        "environment variable, or to ./runs if the variable is not set",
    )
    workers: int = Field(
        1,
        ge=1,
        le=1,
        description="number of processes that compute the partitions of one trial in parallel",
    )
    mapper: str = Field(
        "processes",
        description="where the worker processes of each trial (synthetic corpus with its model) "
        "run; accepts the same values as the `mapper` setting of the 'run' command",
    )
    report_to: tuple[()] = Field(
        (), description="not available, because studies do not report to other systems"
    )
    reporters: None = Field(None, description="not available, because studies have no reporters")
    retry: RetryConfig = RetryConfig()
    trials_with_effects: int = Field(
        40,
        ge=1,
        le=10_000,
        description="number of trials in which effects are planted; a trial is a synthetic "
        "corpus with known effects, and a model trained on it",
    )
    trials_without_effects: int = Field(
        10,
        ge=0,
        le=10_000,
        description="number of additional trials in which no effects are planted",
    )
    retrained_trials: int = Field(
        3,
        ge=0,
        description="number of trials in which two more models are trained: one without the "
        "documents to which detected effects are attributed, and one without an "
        "equal number of randomly chosen documents",
    )
    is_retrained: bool = Field(
        False,
        description="whether this trial is one of the 'retrained_trials', in which two more models "
        "are trained; set by the study",
    )
    parallel_trials: int = Field(
        2, ge=1, le=256, description="number of trials that run in parallel"
    )
    seed: int = Field(
        0,
        ge=0,
        lt=1 << 31,
        description="seed from which the seeds of all trials, training runs and audits are derived",
    )
    synthetic_corpus: SyntheticCorpusConfig = SyntheticCorpusConfig()
    train_tokenizer: TokenizerConfig = TokenizerConfig(vocab_size=1024)
    pack: PackConfig = PackConfig(context=128)
    pretrain: PretrainConfig = PretrainConfig(
        model=ModelConfig(
            d_model=96,
            n_layers=4,
            n_heads=2,
            positions="rope",
            norm="rmsnorm",
            activation="swiglu",
            bias=False,
        ),
        train=TrainConfig(
            steps=400,
            batch_size=16,
            optimizer="muon",
            learning_rate=1e-2,
            warmup_steps=20,
            schedule="linear",
            min_lr_ratio=0.0,
            checkpoint_every=400,
            validate_every=400,
            threads=1,
        ),
    )
    respond: RespondConfig = RespondConfig()
    score: ScoreConfig = ScoreConfig()
    trace: TraceConfig = TraceConfig(enabled=False)
    audit_extraction: ExtractionConfig = ExtractionConfig(
        reference_secrets=1000,
        prefix_tokens=(16,),
        suffix_tokens=16,
        max_windows=8,
        documents_per_split=0,
    )
    audit_associations: AssociationsConfig = AssociationsConfig(unplanted_sentences=20)
    audit_counterfactual: CounterfactualConfig = CounterfactualConfig(
        grammar_prompts=20, builtin_groups=False, max_new_tokens=8, permutations=999
    )
    full_audits: FullAuditConfig = FullAuditConfig()
    attribute_texts: AttributionConfig = AttributionConfig()
    study_card: StudyCardConfig = StudyCardConfig()

    @model_validator(mode="after")
    def _check_reference_count(self) -> StudyConfig:
        """Check that there are enough possible secrets, before the first training."""
        requested_count = (
            self.full_audits.reference_secrets_factor * self.audit_extraction.reference_secrets
        )
        if requested_count > (
            available_count := max_reference_secrets(self.synthetic_corpus.secret_digits)
        ):
            raise ValueError(
                "full_audits.reference_secrets_factor times audit_extraction.reference_secrets is "
                f"{requested_count:,}, but with synthetic_corpus.secret_digits = "
                f"{self.synthetic_corpus.secret_digits} "
                f"there are only {available_count:,} reference secrets; lower one of the first two "
                "or raise synthetic_corpus.secret_digits"
            )
        secret_count = (
            len(self.synthetic_corpus.copy_counts) * self.synthetic_corpus.secrets_per_count
        )
        # The p of a secret is at least 1 / (references + 1), and is multiplied by the number of
        # secrets.
        if secret_count / (self.audit_extraction.reference_secrets + 1) >= SIGNIFICANCE_LEVEL:
            raise ValueError(
                f"audit_extraction.reference_secrets is {self.audit_extraction.reference_secrets:,}"
                f", so none of the {secret_count:,} secrets of a trial could be detected; raise it "
                f"to at least {round(secret_count / SIGNIFICANCE_LEVEL):,}"
            )
        return self


def parse_study_config(config_tree: Mapping[str, Any]) -> StudyConfig:
    """Parse the settings of a study.

    Raises:
        UsageError: If they are invalid.
    """
    try:
        return StudyConfig.model_validate(config_tree)
    except ValidationError as error:
        message = format_validation_error(error, dict(config_tree), tuple(config_tree), StudyConfig)
        raise UsageError(f"study: {message}") from error


def resolve_study_config_and_store(
    options: Mapping[str, Any], overrides: Sequence[str], store_name: str | None
) -> tuple[StudyConfig, Store]:
    """Resolve the settings of a study from options and overrides, and open its store.

    Options that are None keep their default.
    """
    config_tree = StudyConfig().model_dump(mode="json")
    for override in overrides:
        apply_override(config_tree, override)
    config_tree |= {name: value for name, value in options.items() if value is not None}
    config = parse_study_config(config_tree)
    return config, open_store(store_name or config.store)


def iter_trial_names_and_configs(config: StudyConfig) -> Iterator[tuple[str, StudyConfig]]:
    """Yield the name and the settings of each trial, which has its own seeds."""
    trial_names = [f"trial {number}" for number in range(1, config.trials_with_effects + 1)]
    trial_names += [
        f"trial {number} without effects" for number in range(1, config.trials_without_effects + 1)
    ]
    for name in trial_names:
        digest = blake2b(f"{config.seed}/{name}".encode(), digest_size=5).digest()
        seed = int.from_bytes(digest, "big")
        has_effects = not name.endswith("without effects")
        is_retrained = has_effects and int(name.split()[1]) <= config.retrained_trials
        synthetic_corpus = config.synthetic_corpus.model_copy(
            update={"seed": seed, "has_effects": has_effects}
        )
        train_config = replace(config.pretrain.train, seed=seed % (1 << 31))
        audit_configs = {
            f"audit_{probe.name}": getattr(config, f"audit_{probe.name}").model_copy(
                update={"seed": seed % (1 << 31)}
            )
            for probe in STUDIED_PROBES
        }
        pretrain_config = config.pretrain.model_copy(update={"train": train_config})
        trial_settings = {
            "synthetic_corpus": synthetic_corpus,
            "pretrain": pretrain_config,
            "is_retrained": is_retrained,
            **audit_configs,
        }
        trial_config = config.model_copy(update=trial_settings)
        yield name, trial_config


def expand_to_full_audits(config: StudyConfig) -> StudyConfig:
    """Return the settings with audits that use all items, or many times as many."""
    extraction, associations = config.audit_extraction, config.audit_associations
    full_audit = config.full_audits
    return config.model_copy(
        update={
            "audit_extraction": extraction.model_copy(
                update={
                    "reference_secrets": full_audit.reference_secrets_factor
                    * extraction.reference_secrets,
                    "max_windows": 100_000,
                    "stride_tokens": full_audit.stride_tokens,
                }
            ),
            "audit_associations": associations.model_copy(
                update={"unplanted_sentences": full_audit.grammar_sentences}
            ),
            "audit_counterfactual": config.audit_counterfactual.model_copy(
                # The least number: only the values of these audits are read, and not their p.
                update={"grammar_prompts": full_audit.grammar_sentences, "permutations": 99}
            ),
        }
    )


def list_changed_settings(config: StudyConfig, store: Store) -> list[str]:
    """List the settings that differ from those of the study with this name in the store."""
    earlier_runs = [
        run
        for run in read_all_runs(store)
        if run.flow == "study" and run.record["config_name"] == config.name
    ]
    if not earlier_runs:
        return []
    old_values, new_values = (
        dict(_iter_dotted_keys_and_values(tree))
        for tree in (
            earlier_runs[-1].record["config"],
            config.model_dump(mode="json"),
        )
    )
    return [
        f"{key} was {old_values.get(key)!r} and is now {new_values.get(key)!r}"
        for key in sorted({*old_values, *new_values})
        if key.partition(".")[0] not in EXECUTION_SETTINGS
        and old_values.get(key) != new_values.get(key)
    ]


def _iter_dotted_keys_and_values(
    tree: Mapping[str, Any], key_prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _iter_dotted_keys_and_values(value, f"{key_prefix}{name}.")
        else:
            yield f"{key_prefix}{name}", value


def build_study_command(config: Mapping[str, Any]) -> list[str]:
    """Build the command of a study, or of the study of a trial, with its non-default settings."""
    default_values = dict(_iter_dotted_keys_and_values(StudyConfig().model_dump(mode="json")))
    changed_values = {
        name: value
        for name, value in _iter_dotted_keys_and_values(config)
        if name.partition(".")[0] not in EXECUTION_SETTINGS
        and name not in TRIAL_SPECIFIC_SETTINGS
        and value != default_values.get(name)
    }
    return [
        "hallmark",
        "study",
        "--name",
        changed_values.pop("name", default_values["name"]),
        *(f"--set={name}={json.dumps(value)}" for name, value in changed_values.items()),
    ]


def check_settings_unchanged(config: StudyConfig, store: Store) -> None:
    """Raise UsageError if the study of this name was started with other settings."""
    if changed_settings := list_changed_settings(config, store):
        raise UsageError(
            f"the study {config.name!r} was started with other settings "
            f"({'; '.join(changed_settings[:3])}), so its earlier results could not be used; use "
            "those settings again, or choose another name with --name"
        )
