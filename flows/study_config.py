"""A study's settings: all that its worlds are made from, and whether it may go on with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from pydantic import Field, ValidationError, model_validator

from hallmark.flows.config_errors import format_validation_error
from hallmark.flows.config_files import apply_override
from hallmark.flows.runs import open_store, read_all_runs
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.reports.study_card import StudyCardConfig
from hallmark.tasks.audits.audit_descriptions import AUDIT_BY_CANDIDATE_KIND
from hallmark.tasks.audits.catalogue import PROBES
from hallmark.tasks.audits.experiments.attribution import AttributionConfig
from hallmark.tasks.audits.inference import RespondConfig
from hallmark.tasks.audits.probes.associations import AssociationsConfig
from hallmark.tasks.audits.probes.counterfactual import CounterfactualConfig
from hallmark.tasks.audits.probes.extraction import ExtractionConfig
from hallmark.tasks.audits.scoring import ScoreConfig
from hallmark.tasks.audits.tracing import TraceConfig
from hallmark.tasks.contract import (
    PathSafeName,
    StageConfig,
    Store,
    UsageError,
)
from hallmark.tasks.corpus.synthetic_world import SyntheticWorldConfig
from hallmark.tasks.measures.canaries import max_reference_secrets
from hallmark.tasks.measures.sentence_frames import SENTENCE_FRAMES
from hallmark.tasks.training.pack import PackConfig
from hallmark.tasks.training.pretrain import PretrainConfig
from hallmark.tasks.training.train_tokenizer import TokenizerConfig

#: The probes that judge candidates.
STUDIED_PROBES = tuple(probe for probe in PROBES if probe.name in AUDIT_BY_CANDIDATE_KIND.values())

#: What of a study's settings decides nothing that it finds.
EXECUTION_SETTINGS = ("store", "parallel_worlds", "workers", "mapper", "tensorboard")

#: What each world has of its own.
WORLD_SPECIFIC_SETTINGS = (
    "is_retrained",
    "world.seed",
    "world.has_effects",
    "pretrain.train.seed",
    *(f"audit_{probe.name}.seed" for probe in STUDIED_PROBES),
)


class FullAuditConfig(StageConfig):
    """What the audits look at once more, for the figure that an interval should cover."""

    grammar_sentences: int = Field(
        len(SENTENCE_FRAMES),
        ge=2,
        le=len(SENTENCE_FRAMES),
        description="sentences of the grammar that audits use",
    )
    reference_secrets_factor: int = Field(
        20,
        ge=1,
        le=1000,
        description="factor by which audit_extraction.reference_secrets is multiplied",
    )
    stride_tokens: int = Field(
        1, ge=1, description="tokens from the beginning of one window of a passage to the next"
    )


class StudyConfig(StageConfig):
    """Everything a study is made from."""

    name: PathSafeName = Field(
        "study", description="names the study; its runs go on under this name"
    )
    store: str | None = Field(None, description="folder or object-store URI; else HALLMARK_STORE")
    workers: int = Field(1, ge=1, le=1, description="processes that work on the parts of a world")
    mapper: str = Field("processes", description="where parts are worked on")
    tensorboard: None = Field(None, description="no event files are written of a study")
    worlds_with_effects: int = Field(
        40, ge=1, le=10_000, description="number of worlds with effects"
    )
    worlds_without_effects: int = Field(
        10, ge=0, le=10_000, description="number of further worlds without effects"
    )
    retrained_worlds: int = Field(
        3,
        ge=0,
        description="worlds on which two further models are trained, to see what becomes "
        "of findings without the documents that attribution names, and without as many others",
    )
    is_retrained: bool = Field(
        False, description="whether further models are trained in this world; the study sets it"
    )
    parallel_worlds: int = Field(2, ge=1, le=256, description="worlds that run in parallel")
    seed: int = Field(0, ge=0, lt=1 << 31, description="of all worlds, trainings and audits")
    world: SyntheticWorldConfig = SyntheticWorldConfig()
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
        reference_secrets=300,
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
        """There are so many secrets: a study would know it behind its first training."""
        requested_count = (
            self.full_audits.reference_secrets_factor * self.audit_extraction.reference_secrets
        )
        if requested_count > (available_count := max_reference_secrets(self.world.secret_digits)):
            raise ValueError(
                f"full_audits.reference_secrets_factor times "
                f"audit_extraction.reference_secrets are "
                f"{requested_count:,}, and of "
                f"{self.world.secret_digits} digits (world.secret_digits) at most "
                f"{available_count:,} "
                f"references can be had"
            )
        return self


def parse_study_config(config_tree: Mapping[str, Any]) -> StudyConfig:
    """The settings of a study. UsageError for what is wrong with them."""
    try:
        return StudyConfig.model_validate(config_tree)
    except ValidationError as error:
        message = format_validation_error(error, dict(config_tree), tuple(config_tree), StudyConfig)
        raise UsageError(f"study: {message}") from error


def resolve_study_arguments(
    options: Mapping[str, Any], overrides: Sequence[str], store_name: str | None
) -> tuple[StudyConfig, Store]:
    """The settings that a command asks for, and the store."""
    config_tree = StudyConfig().model_dump(mode="json")
    for override in overrides:
        apply_override(config_tree, override)
    config_tree |= {name: value for name, value in options.items() if value is not None}
    config = parse_study_config(config_tree)
    return config, open_store(store_name or config.store)


def iter_world_configs(config: StudyConfig) -> Iterator[tuple[str, StudyConfig]]:
    """Each world's name and settings: those of the study with seeds of its own."""
    world_names = [f"world {number}" for number in range(1, config.worlds_with_effects + 1)]
    world_names += [
        f"world {number} without effects" for number in range(1, config.worlds_without_effects + 1)
    ]
    for name in world_names:
        digest = blake2b(f"{config.seed}/{name}".encode(), digest_size=5).digest()
        seed = int.from_bytes(digest, "big")
        has_effects = not name.endswith("without effects")
        is_retrained = has_effects and int(name.split()[1]) <= config.retrained_worlds
        synthetic_world = config.world.model_copy(update={"seed": seed, "has_effects": has_effects})
        train_config = replace(config.pretrain.train, seed=seed % (1 << 31))
        audit_configs = {
            f"audit_{probe.name}": getattr(config, f"audit_{probe.name}").model_copy(
                update={"seed": seed % (1 << 31)}
            )
            for probe in STUDIED_PROBES
        }
        pretrain_config = config.pretrain.model_copy(update={"train": train_config})
        world_settings = {
            "world": synthetic_world,
            "pretrain": pretrain_config,
            "is_retrained": is_retrained,
            **audit_configs,
        }
        world_config = config.model_copy(update=world_settings)
        yield name, world_config


def expand_to_full_audits(config: StudyConfig) -> StudyConfig:
    """The same with audits that look at all items, or at many times as many."""
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
                update={"grammar_prompts": full_audit.grammar_sentences}
            ),
        }
    )


def list_changed_settings(config: StudyConfig, store: Store) -> list[str]:
    """In what the settings differ from those of the study of this name in the store."""
    earlier_runs = [
        run
        for run in read_all_runs(store)
        if run.flow == "study" and run.record["config_name"] == config.name
    ]
    if not earlier_runs:
        return []
    old_values, new_values = (
        dict(_flatten_tree(tree))
        for tree in (
            earlier_runs[-1].record["config"],
            config.model_dump(mode="json"),
        )
    )
    return [
        f"{key} is {new_values.get(key)!r}, and was {old_values.get(key)!r}"
        for key in sorted({*old_values, *new_values})
        if key.partition(".")[0] not in EXECUTION_SETTINGS
        and old_values.get(key) != new_values.get(key)
    ]


def _flatten_tree(tree: Mapping[str, Any], key_prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten_tree(value, f"{key_prefix}{name}.")
        else:
            yield f"{key_prefix}{name}", value


def build_study_command(config: Mapping[str, Any]) -> list[str]:
    """The command of a study, or of that which a world is of, with what is not so by default."""
    default_values = dict(_flatten_tree(StudyConfig().model_dump(mode="json")))
    changed_values = {
        name: value
        for name, value in _flatten_tree(config)
        if name.partition(".")[0] not in EXECUTION_SETTINGS
        and name not in WORLD_SPECIFIC_SETTINGS
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
    """UsageError where the study of this name was begun with other settings."""
    if changed_settings := list_changed_settings(config, store):
        raise UsageError(
            f"the study {config.name!r} was begun with other settings "
            f"({'; '.join(changed_settings[:3])}): "
            f"what it found before would not count; go on with those, or give it another --name"
        )
