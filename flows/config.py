"""The config of a run: one frozen, typed tree, a section for every stage.

A config is a TOML file, or the name of one in ``flows/configs``. Unknown keys and values out
of range are refused with the place. The sections are the stages' own config classes; what
stands at the root (name, store, workers, mapper, schedule) decides no artifact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from flows.mistakes import brought_up, sentence
from flows.trees import read, set_value
from model.config import OBJECTIVES, span_count
from reports.datasheet import DatasheetConfig
from reports.model_card import ModelCardConfig
from reports.task_card import TaskCardConfig
from tasks.audits.ability.attention_maps import AttentionMapsConfig
from tasks.audits.ability.capability import CapabilityConfig
from tasks.audits.catalogue import PROBES
from tasks.audits.judging.policy import PolicyConfig
from tasks.audits.respond import RespondConfig
from tasks.audits.score import ScoreConfig
from tasks.audits.score_samples import ScoreSamplesConfig
from tasks.audits.trace import TraceConfig
from tasks.contract import External, PlainName, StageConfig, UsageError
from tasks.corpus.contamination import SIGNALS as CONTAMINATION
from tasks.corpus.contamination import ContaminationConfig
from tasks.corpus.deduplicate import DeduplicateConfig
from tasks.corpus.deduplicate_near import DeduplicateNearConfig
from tasks.corpus.effects import EffectsConfig
from tasks.corpus.find_personal_data import PersonalDataConfig
from tasks.corpus.find_repeats import RepeatsConfig
from tasks.corpus.find_toxic import FindToxicConfig
from tasks.corpus.identities import SIGNALS as IDENTITIES
from tasks.corpus.identities import IdentitiesConfig
from tasks.corpus.language import SIGNALS as LANGUAGE
from tasks.corpus.language import LanguageConfig
from tasks.corpus.leave_out import LeaveOutConfig
from tasks.corpus.plant import PlantConfig
from tasks.corpus.profile import ProfileConfig
from tasks.corpus.quality import SIGNALS as QUALITY
from tasks.corpus.quality import QualityConfig
from tasks.corpus.reading.inputs import IngestConfig, towns_of
from tasks.corpus.recovery import RecoveryConfig
from tasks.corpus.score_toxicity import SIGNALS as TOXICITY
from tasks.corpus.score_toxicity import ScoreToxicityConfig
from tasks.corpus.scrub import CutRepeatsConfig, CutToxicConfig, ScrubConfig
from tasks.corpus.select import Rule, SelectConfig, misfit
from tasks.corpus.signals import kinds_of
from tasks.corpus.split import SplitConfig
from tasks.corpus.toxicity.actions import default_action
from tasks.measures.personal.types import TYPES as PERSONAL
from tasks.measures.scorers import HEADS, ScorerConfig
from tasks.training.finetune import FinetuneConfig
from tasks.training.pack import PackConfig
from tasks.training.pretrain import PretrainConfig
from tasks.training.train_tokenizer import OF_OBJECTIVE, TokenizerConfig

#: What stands beside the sections; it decides no artifact, but for the corpus that is added to.
ROOT_KEYS = ("name", "store", "workers", "mapper", "schedule", "earlier", "tensorboard")

#: The types of spans that each use of ``scrub`` is given.
TREATED = {"scrub": PERSONAL, "cut_repeats": ("REPEAT",), "cut_toxic": ("TOXIC",)}

#: Whose signals each use of ``select`` is given.
MEASURED = {
    "select": {"language": LANGUAGE, "quality": QUALITY, "identities": IDENTITIES},
    "select_scored": {"score_toxicity": TOXICITY, "contamination": CONTAMINATION},
}


#: The rules of ``select_scored`` where a config names none.
SCORED_RULES = SelectConfig(rules=(Rule(name="toxicity", lt=0.8), Rule(name="contamination", lt=1)))


def with_default_actions(config: SelectConfig, scorer_kind: str) -> SelectConfig:
    """Set the action of each rule over a toxicity score that names none, by the scorer's kind."""
    action = default_action(scorer_kind)
    rules = tuple(
        rule.model_copy(update={"action": action})
        if rule.signal in HEADS and "action" not in rule.model_fields_set
        else rule
        for rule in config.rules
    )
    return config.model_copy(update={"rules": rules})


class Before(StageConfig):
    """What a config says up to the probes."""

    name: PlainName = Field(description="names the runs made with this config")
    store: Annotated[str, External(whole=False)] | None = Field(
        None, description="folder or object-store URI; else HALLMARK_STORE"
    )
    workers: int = Field(2, ge=1, le=256, description="processes that work on parts")
    mapper: Literal["processes", "ray"] = Field(
        "processes",
        description="where parts are worked on: processes of this machine, or Ray (the cluster "
        "that RAY_ADDRESS names, else one on this machine)",
    )
    schedule: str | None = Field(None, description="cron of the deployment, e.g. '0 3 * * *'")
    earlier: str | None = Field(
        None,
        min_length=1,
        description="run whose corpus this one adds to, or latest: the newest that has one",
    )
    tensorboard: Annotated[str, External(whole=False)] | None = Field(
        None,
        min_length=1,
        description="folder for TensorBoard's event files of the training, written while it runs, "
        "in a folder for each run",
    )

    ingest: IngestConfig
    deduplicate: DeduplicateConfig = DeduplicateConfig()
    language: LanguageConfig = LanguageConfig()
    quality: QualityConfig = QualityConfig()
    identities: IdentitiesConfig = IdentitiesConfig()
    select: SelectConfig = SelectConfig()
    deduplicate_near: DeduplicateNearConfig = DeduplicateNearConfig()
    find_repeats: RepeatsConfig = RepeatsConfig()
    cut_repeats: CutRepeatsConfig = CutRepeatsConfig()
    find_personal_data: PersonalDataConfig = PersonalDataConfig()
    scrub: ScrubConfig = ScrubConfig()
    deduplicate_masked: DeduplicateConfig = DeduplicateConfig()
    score_toxicity: ScoreToxicityConfig = ScoreToxicityConfig()
    contamination: ContaminationConfig = ContaminationConfig()
    select_scored: SelectConfig = Field(
        default=SCORED_RULES,
        validate_default=True,
        json_schema_extra={
            "default": with_default_actions(SCORED_RULES, ScorerConfig().kind).model_dump(
                mode="json"
            )
        },
    )
    find_toxic: FindToxicConfig = FindToxicConfig()
    cut_toxic: CutToxicConfig = CutToxicConfig()
    split: SplitConfig = SplitConfig()
    plant: PlantConfig = PlantConfig()
    profile: ProfileConfig = ProfileConfig()
    effects: EffectsConfig = EffectsConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    datasheet: DatasheetConfig = DatasheetConfig()
    leave_out: LeaveOutConfig = LeaveOutConfig()
    train_tokenizer: TokenizerConfig = TokenizerConfig()
    pack: PackConfig = PackConfig()
    pretrain: PretrainConfig = PretrainConfig()
    finetune: FinetuneConfig | None = Field(
        None, description="of a run of its own, by the command finetune"
    )
    task_card: TaskCardConfig = TaskCardConfig()
    respond: RespondConfig = RespondConfig()
    score: ScoreConfig = ScoreConfig()
    trace: TraceConfig = TraceConfig()
    audit_capability: CapabilityConfig = CapabilityConfig()


_sections: Any = {f"audit_{probe.name}": (probe.settings, probe.settings()) for probe in PROBES}
Probing = create_model("Probing", __base__=Before, **_sections)


class Config(Probing):  # type: ignore[misc, valid-type]
    """Everything a run is made from."""

    policy: PolicyConfig = PolicyConfig()
    attention_maps: AttentionMapsConfig = AttentionMapsConfig()
    score_samples: ScoreSamplesConfig = ScoreSamplesConfig()
    model_card: ModelCardConfig = ModelCardConfig()

    @field_validator("select_scored")
    @classmethod
    def _set_default_actions(cls, config: SelectConfig, info: ValidationInfo) -> SelectConfig:
        scoring = info.data.get("score_toxicity")  # absent where it is invalid itself
        return with_default_actions(config, scoring.scorer.kind) if scoring else config

    @model_validator(mode="after")
    def _tokens_for_the_objective(self) -> Config:
        wanted, made = self.pretrain.train.objective, self.train_tokenizer.objective
        if made != wanted and {made, wanted} & OF_OBJECTIVE:
            raise ValueError(
                f"train_tokenizer.objective is {made}, pretrain.train.objective {wanted}: they "
                f"have tokens of their own, set both to the same"
            )
        trained, architecture = self.pretrain.model.architecture, OBJECTIVES[wanted]
        if trained != architecture:
            raise ValueError(
                f"pretrain.train.objective {wanted} trains the architecture {architecture}, and "
                f"pretrain.model.architecture is {trained}: set one of them to fit the other"
            )
        spans, sentinels = span_count(self.pack.context), self.train_tokenizer.sentinels
        if wanted == "span_corruption" and spans > sentinels:
            raise ValueError(
                f"train_tokenizer.sentinels is {sentinels}, and of pack.context = "
                f"{self.pack.context} tokens span_corruption hides {spans} spans: set it to {spans}"
            )
        return self

    @model_validator(mode="after")
    def _signals_that_are_there(self) -> Config:
        """What a rule looks at is known before anything is measured."""
        wrong = [
            f"{section}.rules.{rule.name}: {why}"
            for section, stages in MEASURED.items()
            for rule in getattr(self, section).rules
            if (why := misfit(rule, kinds_of(*stages.values())))
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @model_validator(mode="after")
    def _whole_corpora(self) -> Config:
        if self.leave_out.enabled and self.earlier is not None:
            raise ValueError(
                "leave_out takes documents out of the corpus of one run, and earlier adds to "
                "that of another: run the addition first, or do without one of them"
            )
        return self

    @model_validator(mode="after")
    def _a_rule_for_the_sets(self) -> Config:
        rules = self.select_scored.rules
        if self.contamination.sets and all(rule.signal != "contamination" for rule in rules):
            raise ValueError(
                "contamination.sets are looked for, and no rule of select_scored looks at what is "
                "found: rules that a config names stand in place of the default ones; add "
                "[select_scored.rules.contamination] with lt = 1"
            )
        return self

    @model_validator(mode="after")
    def _rules_of_the_cascade(self) -> Config:
        """What a cascade clears has no score: only under the bound for which its recall is measured
        may a rule keep that."""
        cascade = self.score_toxicity.cascade
        if cascade is None:
            return self
        for rule in self.select_scored.rules:
            fits = Rule(name=rule.name, signal="toxicity", lt=cascade.threshold, action=rule.action,
                        share=rule.share)  # fmt: skip
            if rule.signal in HEADS and rule != fits:
                raise ValueError(
                    f"select_scored.rules.{rule.name}: documents that score_toxicity.cascade "
                    f"clears have no score, and what it misses is measured at its threshold "
                    f"alone; with it, rules may say toxicity lt = {cascade.threshold:g}, and "
                    f"nothing of other heads, bounds or the unknown"
                )
        windows = self.find_toxic
        if windows.enabled and windows.least != cascade.threshold:
            raise ValueError(
                f"find_toxic.least is {windows.least:g}: what score_toxicity.cascade misses is "
                f"measured at its threshold alone; set it to {cascade.threshold:g}"
            )
        return self

    @model_validator(mode="after")
    def _spans_that_are_there(self) -> Config:
        """A policy for what a stage is never given, or a bound that leaves nothing to find, would
        pass for a protection that is none."""
        for section, types in TREATED.items():
            for name in getattr(self, section).policies:
                if name not in types:
                    other = next(label for label, known in TREATED.items() if name in known)
                    raise ValueError(
                        f"{section}.policies.{name}: nobody finds {name} for {section}; it is "
                        f"{other} that treats it"
                    )
        least = self.find_toxic.least
        for rule in self.select_scored.rules if self.find_toxic.enabled else ():
            bound = min(x for x in (rule.lt, rule.le, 2.0) if x is not None)
            if (rule.signal, rule.action) == ("toxicity", "remove") and bound <= least:
                raise ValueError(
                    f"find_toxic.least is {least:g}, and select_scored.rules.{rule.name} takes "
                    f"documents with such a window whole: nothing would be left to cut; lower the "
                    f"first, or give the rule another bound or action"
                )
        return self

    @model_validator(mode="after")
    def _runs_that_are_told(self) -> Config:
        least = self.trace.least
        wanted: int = getattr(self, "audit_extraction_attack").verbatim  # noqa: B009
        if wanted < least:
            raise ValueError(
                f"audit_extraction_attack.verbatim is {wanted}, and of runs shorter than "
                f"trace.least = {least} tokens nobody tells: set it to {least} or more"
            )
        return self

    @field_validator("schedule")
    @classmethod
    def _is_cron(cls, schedule: str | None) -> str | None:
        if schedule is not None:
            from prefect.client.schemas.schedules import CronSchedule

            try:
                CronSchedule(cron=schedule)
            except ValueError as error:
                raise ValueError("is no cron expression such as '0 3 * * *'") from error
        return schedule


def left_out(config: Config) -> dict[str, str]:
    """The stages that a config does without, and why."""
    why = "it is of a run of its own: hallmark finetune CHECKPOINT --config FILE"
    found = {"finetune": why, "task_card": why}
    why = "every audit has its own; stop after the audit"
    found |= {"respond": why, "score": why, "trace": why}
    for probe in PROBES:
        label = f"audit_{probe.name}"
        if missing := probe.lacks(getattr(config, label)):
            named = " and ".join(f"{label}.{name}" for name in missing)
            found[label] = f"it needs files of yours; set {named}"
    if not config.policy.rules:
        found["policy"] = "it has no rules; write [policy.rules.NAME], one a rule"
    if not config.find_repeats.enabled:
        why = "nothing looks for repeats; set find_repeats.enabled=true"
        found |= {"find_repeats": why, "cut_repeats": why}
    if not config.find_toxic.enabled:
        why = "nothing looks for toxic windows; set find_toxic.enabled=true"
        found |= {"find_toxic": why, "cut_toxic": why}
    if not config.leave_out.enabled:
        found["leave_out"] = "nothing is left out; set leave_out.documents or leave_out.toxicity"
    if not towns_of(config.ingest):
        found["recovery"] = "none of its sources is a town, whose truth is known"
    return found


def load(
    config: str | Mapping[str, Any], overrides: Sequence[str] = (), file: str | None = None
) -> Config:
    """Read a config and apply overrides such as ``pretrain.train.steps=100``.

    ``config`` is a path, a name in ``flows/configs``, or the tree that a run recorded; ``file``
    says where a tree is from otherwise: what stands there is of today. Raises UsageError with the
    file, the key and what is wrong with it.
    """
    if isinstance(config, str):
        tree, where = read(config), config
    else:
        tree, where = (deepcopy(dict(config)), file) if file else (brought_up(config), "of the run")
    for override in overrides:
        set_value(tree, override)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UsageError(f"config {where}: {sentence(error, tree, ROOT_KEYS, Config)}") from error


def laid_over(tree: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """A tree that says nothing of a corpus, with what it leaves out from ``under``, which a run
    recorded."""
    return dict(tree) if "ingest" in tree else {**brought_up(under), **tree}
