"""A study's settings: all that its worlds are made from, and whether it may go on with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from pydantic import Field, ValidationError, model_validator

from flows.mistakes import brought_up, sentence
from flows.runs import all_runs, default_store
from flows.trees import set_value
from model.config import ModelConfig, TrainConfig
from reports.study_card import StudyCardConfig
from tasks.audits.about import JUDGED
from tasks.audits.catalogue import PROBES
from tasks.audits.probes.associations import AssociationsConfig
from tasks.audits.probes.counterfactual import CounterfactualConfig
from tasks.audits.probes.extraction import ExtractionConfig
from tasks.audits.proofs.attribution import AttributionConfig
from tasks.audits.respond import RespondConfig
from tasks.audits.score import ScoreConfig
from tasks.audits.trace import TraceConfig
from tasks.contract import (
    PlainName,
    StageConfig,
    Store,
    UsageError,
)
from tasks.corpus.world import WorldConfig
from tasks.measures.canaries import number_of_references
from tasks.measures.frames import FRAMES
from tasks.training.pack import PackConfig
from tasks.training.pretrain import PretrainConfig
from tasks.training.train_tokenizer import TokenizerConfig

#: The probes that judge candidates.
STUDIED = tuple(probe for probe in PROBES if probe.name in JUDGED.values())

#: What of a study's settings decides nothing that it finds.
HOW = ("store", "at_once", "workers", "mapper", "tensorboard")

#: What each world has of its own.
OF_A_WORLD = ("retrain", "world.seed", "world.effects", "pretrain.train.seed",
              *(f"audit_{probe.name}.seed" for probe in STUDIED))  # fmt: skip


class WholeConfig(StageConfig):
    """What the audits look at once more, for the figure that an interval should cover."""

    frames: int = Field(len(FRAMES), ge=2, le=len(FRAMES), description="sentences of the grammar")
    references: int = Field(20, ge=1, le=1000, description="times as many references")
    stride: int = Field(1, ge=1, description="tokens from one place of a passage to the next")


class StudyConfig(StageConfig):
    """Everything a study is made from."""

    name: PlainName = Field("study", description="names the study; its runs go on under this name")
    store: str | None = Field(None, description="folder or object-store URI; else HALLMARK_STORE")
    workers: int = Field(1, ge=1, le=1, description="processes that work on the parts of a world")
    mapper: str = Field("processes", description="where parts are worked on")
    tensorboard: None = Field(None, description="no event files are written of a study")
    worlds: int = Field(40, ge=1, le=10_000, description="worlds with effects")
    without: int = Field(10, ge=0, le=10_000, description="further worlds without any")
    retrained: int = Field(
        3, ge=0, description="worlds on which two further models are trained, to see what becomes "
        "of findings without the documents that attribution names, and without as many others"
    )  # fmt: skip
    retrain: bool = Field(False, description="whether that is done in this world: set by the study")
    at_once: int = Field(2, ge=1, le=256, description="worlds that are worked on at a time")
    seed: int = Field(0, ge=0, lt=1 << 31, description="of all worlds, trainings and audits")
    world: WorldConfig = WorldConfig()
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
            warmup=20,
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
        references=300, prefix=(16,), tokens=16, windows=8, documents=0
    )
    audit_associations: AssociationsConfig = AssociationsConfig(others=20)
    audit_counterfactual: CounterfactualConfig = CounterfactualConfig(
        frames=20, own_groups=False, tokens=8, permutations=999
    )
    whole: WholeConfig = WholeConfig()
    attribute: AttributionConfig = AttributionConfig()
    study_card: StudyCardConfig = StudyCardConfig()

    @model_validator(mode="after")
    def _references(self) -> StudyConfig:
        """There are so many secrets: a study would know it behind its first training."""
        many = self.whole.references * self.audit_extraction.references
        if many > (most := number_of_references(self.world.digits)):
            raise ValueError(
                f"whole.references times audit_extraction.references are {many:,}, and of "
                f"{self.world.digits} digits (world.digits) at most {most:,} references can be had"
            )
        return self


def settled(tree: Mapping[str, Any]) -> StudyConfig:
    """The settings of a study. UsageError for what is wrong with them."""
    try:
        return StudyConfig.model_validate(tree)
    except ValidationError as error:
        said = sentence(error, dict(tree), tuple(tree), StudyConfig)
        raise UsageError(f"study: {said}") from error


def asked(
    given: Mapping[str, Any], overrides: Sequence[str], store: str | None
) -> tuple[StudyConfig, Store]:
    """The settings that a command asks for, and the store."""
    tree = StudyConfig().model_dump(mode="json")
    for override in overrides:
        set_value(tree, override)
    tree |= {name: value for name, value in given.items() if value is not None}
    config = settled(tree)
    return config, default_store(store or config.store)


def numbers(config: StudyConfig) -> Iterator[tuple[str, StudyConfig]]:
    """Each world's name and settings: those of the study with seeds of its own."""
    names = [f"world {number}" for number in range(1, config.worlds + 1)]
    names += [f"world {number} without effects" for number in range(1, config.without + 1)]
    for name in names:
        digest = blake2b(f"{config.seed}/{name}".encode(), digest_size=5).digest()
        seed = int.from_bytes(digest, "big")
        effects = not name.endswith("without effects")
        again = effects and int(name.split()[1]) <= config.retrained
        world = config.world.model_copy(update={"seed": seed, "effects": effects})
        train = replace(config.pretrain.train, seed=seed % (1 << 31))
        audits = {
            f"audit_{probe.name}": getattr(config, f"audit_{probe.name}").model_copy(
                update={"seed": seed % (1 << 31)}
            )
            for probe in STUDIED
        }
        pretraining = config.pretrain.model_copy(update={"train": train})
        own = {"world": world, "pretrain": pretraining, "retrain": again, **audits}
        made = config.model_copy(update=own)
        yield name, made


def whole_of(config: StudyConfig) -> StudyConfig:
    """The same with audits that look at all items, or at many times as many."""
    extraction, associations = config.audit_extraction, config.audit_associations
    whole = config.whole
    return config.model_copy(
        update={
            "audit_extraction": extraction.model_copy(
                update={
                    "references": whole.references * extraction.references,
                    "windows": 100_000,
                    "stride": whole.stride,
                }
            ),
            "audit_associations": associations.model_copy(update={"others": whole.frames}),
            "audit_counterfactual": config.audit_counterfactual.model_copy(
                update={"frames": whole.frames}
            ),
        }
    )


def difference(config: StudyConfig, store: Store) -> list[str]:
    """In what the settings differ from those of the study of this name in the store."""
    before = [r for r in all_runs(store) if r.flow == "study" and
              r.record["config_name"] == config.name]  # fmt: skip
    if not before:
        return []
    was, now = (dict(_flat(tree)) for tree in
                (brought_up(before[-1].record["config"]),
                 config.model_dump(mode="json")))  # fmt: skip
    return [f"{key} is {now.get(key)!r}, and was {was.get(key)!r}" for key in sorted({*was, *now})
            if key.partition(".")[0] not in HOW and was.get(key) != now.get(key)]  # fmt: skip


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def command_of(config: Mapping[str, Any]) -> list[str]:
    """The command of a study, or of that which a world is of, with what is not so by default."""
    usual = dict(_flat(StudyConfig().model_dump(mode="json")))
    own = {
        name: value
        for name, value in _flat(brought_up(config))
        if name.partition(".")[0] not in HOW and name not in OF_A_WORLD and value != usual.get(name)
    }
    return ["hallmark", "study", "--name", own.pop("name", usual["name"]),
            *(f"--set={name}={json.dumps(value)}" for name, value in own.items())]  # fmt: skip


def check(config: StudyConfig, store: Store) -> None:
    """UsageError where the study of this name was begun with other settings."""
    if changed := difference(config, store):
        raise UsageError(
            f"the study {config.name!r} was begun with other settings ({'; '.join(changed[:3])}): "
            f"what it found before would not count; go on with those, or give it another --name"
        )
