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

from hallmark.flows.config_errors import format_validation_error
from hallmark.flows.config_files import apply_override, read_config_tree
from hallmark.model.config import ARCHITECTURE_BY_OBJECTIVE, count_corrupted_spans
from hallmark.reports.datasheet import DatasheetConfig
from hallmark.reports.model_card import ModelCardConfig
from hallmark.reports.task_card import TaskCardConfig
from hallmark.tasks.audits.ability.attention_maps import AttentionMapsConfig
from hallmark.tasks.audits.ability.capability import CapabilityConfig
from hallmark.tasks.audits.catalogue import PROBES
from hallmark.tasks.audits.inference import RespondConfig
from hallmark.tasks.audits.judging.policy import PolicyConfig
from hallmark.tasks.audits.sample_scoring import ScoreSamplesConfig
from hallmark.tasks.audits.scoring import ScoreConfig
from hallmark.tasks.audits.tracing import TraceConfig
from hallmark.tasks.contract import ExternalMarker, PathSafeName, StageConfig, UsageError
from hallmark.tasks.corpus.contamination import SIGNALS as CONTAMINATION_SIGNALS
from hallmark.tasks.corpus.contamination import ContaminationConfig
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig
from hallmark.tasks.corpus.evaluate_curation import CurationEvaluationConfig
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig
from hallmark.tasks.corpus.find_repeats import RepeatsConfig
from hallmark.tasks.corpus.find_toxic_spans import FindToxicSpansConfig
from hallmark.tasks.corpus.identities import SIGNALS as IDENTITY_SIGNALS
from hallmark.tasks.corpus.identities import IdentitiesConfig
from hallmark.tasks.corpus.language import SIGNALS as LANGUAGE_SIGNALS
from hallmark.tasks.corpus.language import LanguageConfig
from hallmark.tasks.corpus.leave_out import LeaveOutConfig
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig
from hallmark.tasks.corpus.profile import ProfileConfig
from hallmark.tasks.corpus.quality import SIGNALS as QUALITY_SIGNALS
from hallmark.tasks.corpus.quality import QualityConfig
from hallmark.tasks.corpus.reading.inputs import IngestConfig, list_town_sources
from hallmark.tasks.corpus.redact_spans import CutRepeatsConfig, CutToxicConfig, RedactSpansConfig
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig
from hallmark.tasks.corpus.score_toxicity import SIGNALS as TOXICITY_SIGNALS
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig
from hallmark.tasks.corpus.select import SelectConfig, SelectionRule, describe_rule_mismatch
from hallmark.tasks.corpus.signals import get_signal_types
from hallmark.tasks.corpus.split import SplitConfig
from hallmark.tasks.corpus.toxicity.actions import choose_default_action
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES
from hallmark.tasks.measures.scorers import TOXICITY_HEADS, ScorerConfig
from hallmark.tasks.training.finetune import FinetuneConfig
from hallmark.tasks.training.pack import PackConfig
from hallmark.tasks.training.pretrain import PretrainConfig
from hallmark.tasks.training.train_tokenizer import OBJECTIVES_WITH_SPECIAL_TOKENS, TokenizerConfig

#: What stands beside the sections; it decides no artifact, but for the corpus that is added to.
ROOT_KEYS = ("name", "store", "workers", "mapper", "schedule", "earlier_run", "tensorboard")

#: The types of spans that each use of ``redact_spans`` is given.
SPAN_TYPES_BY_STAGE = {
    "redact_spans": PERSONAL_DATA_TYPES,
    "cut_repeats": ("REPEAT",),
    "cut_toxic": ("TOXIC",),
}

#: Whose signals each use of ``select`` is given.
SIGNALS_BY_STAGE = {
    "select": {
        "language": LANGUAGE_SIGNALS,
        "quality": QUALITY_SIGNALS,
        "identities": IDENTITY_SIGNALS,
    },
    "select_scored": {"score_toxicity": TOXICITY_SIGNALS, "contamination": CONTAMINATION_SIGNALS},
}


#: The rules of ``select_scored`` where a config names none.
DEFAULT_SCORED_RULES = SelectConfig(
    rules=(SelectionRule(name="toxicity", lt=0.8), SelectionRule(name="contamination", lt=1))
)


def fill_default_rule_actions(select_config: SelectConfig, scorer_kind: str) -> SelectConfig:
    """Set the action of each rule over a toxicity score that names none, by the scorer's kind."""
    default = choose_default_action(scorer_kind)
    rules = tuple(
        rule.model_copy(update={"action": default})
        if rule.signal in TOXICITY_HEADS and "action" not in rule.model_fields_set
        else rule
        for rule in select_config.rules
    )
    return select_config.model_copy(update={"rules": rules})


class PreAuditConfig(StageConfig):
    """What a config says up to the probes."""

    name: PathSafeName = Field(description="names the runs made with this config")
    store: Annotated[str, ExternalMarker(recursive=False)] | None = Field(
        None, description="folder or object-store URI; else HALLMARK_STORE"
    )
    workers: int = Field(2, ge=1, le=256, description="processes that work on parts")
    mapper: Literal["processes", "ray"] = Field(
        "processes",
        description="where parts are worked on: processes of this machine, or Ray (the cluster "
        "that RAY_ADDRESS names, else one on this machine)",
    )
    schedule: str | None = Field(None, description="cron of the deployment, e.g. '0 3 * * *'")
    earlier_run: str | None = Field(
        None,
        min_length=1,
        description="run whose corpus this one adds to, or latest: the newest that has one",
    )
    tensorboard: Annotated[str, ExternalMarker(recursive=False)] | None = Field(
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
    redact_spans: RedactSpansConfig = RedactSpansConfig()
    deduplicate_redacted: DeduplicateConfig = DeduplicateConfig()
    score_toxicity: ScoreToxicityConfig = ScoreToxicityConfig()
    contamination: ContaminationConfig = ContaminationConfig()
    select_scored: SelectConfig = Field(
        default=DEFAULT_SCORED_RULES,
        validate_default=True,
        json_schema_extra={
            "default": fill_default_rule_actions(
                DEFAULT_SCORED_RULES, ScorerConfig().kind
            ).model_dump(mode="json")
        },
    )
    find_toxic_spans: FindToxicSpansConfig = FindToxicSpansConfig()
    cut_toxic: CutToxicConfig = CutToxicConfig()
    split: SplitConfig = SplitConfig()
    plant_canaries: PlantCanariesConfig = PlantCanariesConfig()
    profile: ProfileConfig = ProfileConfig()
    removal_effects: RemovalEffectsConfig = RemovalEffectsConfig()
    evaluate_curation: CurationEvaluationConfig = CurationEvaluationConfig()
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


_audit_sections: Any = {
    f"audit_{probe.name}": (probe.config_class, probe.config_class()) for probe in PROBES
}
ConfigWithProbes = create_model("Probing", __base__=PreAuditConfig, **_audit_sections)


class Config(ConfigWithProbes):  # type: ignore[misc, valid-type]
    """Everything a run is made from."""

    policy: PolicyConfig = PolicyConfig()
    attention_maps: AttentionMapsConfig = AttentionMapsConfig()
    score_samples: ScoreSamplesConfig = ScoreSamplesConfig()
    model_card: ModelCardConfig = ModelCardConfig()

    @field_validator("select_scored")
    @classmethod
    def _fill_default_rule_actions(
        cls, select_config: SelectConfig, validation_info: ValidationInfo
    ) -> SelectConfig:
        toxicity_config = validation_info.data.get(
            "score_toxicity"
        )  # absent where it is invalid itself
        return (
            fill_default_rule_actions(select_config, toxicity_config.scorer.kind)
            if toxicity_config
            else select_config
        )

    @model_validator(mode="after")
    def _check_objective_is_consistent(self) -> Config:
        objective, tokenizer_objective = (
            self.pretrain.train.objective,
            self.train_tokenizer.objective,
        )
        if (
            tokenizer_objective != objective
            and {tokenizer_objective, objective} & OBJECTIVES_WITH_SPECIAL_TOKENS
        ):
            raise ValueError(
                f"train_tokenizer.objective is {tokenizer_objective}, "
                f"pretrain.train.objective {objective}: they "
                f"have tokens of their own, set both to the same"
            )
        model_architecture, required_architecture = (
            self.pretrain.model.architecture,
            ARCHITECTURE_BY_OBJECTIVE[objective],
        )
        if model_architecture != required_architecture:
            raise ValueError(
                f"pretrain.train.objective {objective} trains the architecture "
                f"{required_architecture}, and "
                f"pretrain.model.architecture is {model_architecture}: set one of them to "
                f"fit the other"
            )
        hidden_spans, sentinels = (
            count_corrupted_spans(self.pack.context),
            self.train_tokenizer.sentinels,
        )
        if objective == "span_corruption" and hidden_spans > sentinels:
            raise ValueError(
                f"train_tokenizer.sentinels is {sentinels}, and of pack.context = "
                f"{self.pack.context} tokens span_corruption hides {hidden_spans} spans: set "
                f"it to {hidden_spans}"
            )
        return self

    @model_validator(mode="after")
    def _check_rule_signals_exist(self) -> Config:
        """What a rule looks at is known before anything is measured."""
        problems = [
            f"{section}.rules.{rule.name}: {problem}"
            for section, signals_by_stage in SIGNALS_BY_STAGE.items()
            for rule in getattr(self, section).rules
            if (
                problem := describe_rule_mismatch(
                    rule, get_signal_types(*signals_by_stage.values())
                )
            )
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="after")
    def _check_no_exclusion_in_addition(self) -> Config:
        if self.leave_out.enabled and self.earlier_run is not None:
            raise ValueError(
                "leave_out takes documents out of the corpus of one run, and earlier_run adds to "
                "that of another: run the addition first, or do without one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_contamination_has_rule(self) -> Config:
        rules = self.select_scored.rules
        if self.contamination.evaluation_sets and all(
            rule.signal != "contamination" for rule in rules
        ):
            raise ValueError(
                "contamination.evaluation_sets are looked for, and no rule of select_scored looks "
                "at what is found: rules that a config names stand in place of the default ones; "
                "add [select_scored.rules.contamination] with lt = 1"
            )
        return self

    @model_validator(mode="after")
    def _check_rules_fit_cascade(self) -> Config:
        """What a cascade clears has no score: only under the bound for which its recall is measured
        may a rule keep that."""
        cascade = self.score_toxicity.cascade
        if cascade is None:
            return self
        for rule in self.select_scored.rules:
            allowed_rule = SelectionRule(
                name=rule.name,
                signal="toxicity",
                lt=cascade.toxicity_threshold,
                action=rule.action,
                kept_share=rule.kept_share,
            )
            if rule.signal in TOXICITY_HEADS and rule != allowed_rule:
                raise ValueError(
                    f"select_scored.rules.{rule.name}: documents that score_toxicity.cascade "
                    f"clears have no score, and what it misses is measured at its threshold "
                    f"alone; with it, rules may say toxicity lt = "
                    f"{cascade.toxicity_threshold:g}, and "
                    f"nothing of other heads, bounds or the unknown"
                )
        toxic_windows = self.find_toxic_spans
        if toxic_windows.enabled and toxic_windows.toxicity_threshold != cascade.toxicity_threshold:
            raise ValueError(
                f"find_toxic_spans.toxicity_threshold is {toxic_windows.toxicity_threshold:g}, but "
                f"what score_toxicity.cascade misses is measured at its threshold alone; set it "
                f"to {cascade.toxicity_threshold:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_span_actions(self) -> Config:
        """An action for what a stage is never given, or a bound that leaves nothing to find, would
        pass for a protection that is none."""
        for section, span_types in SPAN_TYPES_BY_STAGE.items():
            for span_type in getattr(self, section).actions_by_type:
                if span_type not in span_types:
                    responsible_section = next(
                        section_name
                        for section_name, handled_types in SPAN_TYPES_BY_STAGE.items()
                        if span_type in handled_types
                    )
                    raise ValueError(
                        f"{section}.actions_by_type.{span_type}: nobody finds {span_type} for "
                        f"{section}; it is "
                        f"{responsible_section} that treats it"
                    )
        min_score = self.find_toxic_spans.toxicity_threshold
        for rule in self.select_scored.rules if self.find_toxic_spans.enabled else ():
            bound = min(threshold for threshold in (rule.lt, rule.le, 2.0) if threshold is not None)
            if (rule.signal, rule.action) == ("toxicity", "remove") and bound <= min_score:
                raise ValueError(
                    f"find_toxic_spans.toxicity_threshold is {min_score:g}, and "
                    f"select_scored.rules.{rule.name} "
                    f"takes documents with such a window whole: nothing would be left to cut; "
                    f"lower the first, or give the rule another bound or action"
                )
        return self

    @model_validator(mode="after")
    def _check_traced_run_length(self) -> Config:
        min_span_tokens = self.trace.min_span_tokens
        min_verbatim_tokens: int = getattr(self, "audit_extraction_attack").min_verbatim_tokens  # noqa: B009
        if min_verbatim_tokens < min_span_tokens:
            raise ValueError(
                f"audit_extraction_attack.min_verbatim_tokens is {min_verbatim_tokens}, and of "
                f"runs shorter than "
                f"trace.min_span_tokens = {min_span_tokens} tokens nobody tells: set it to "
                f"{min_span_tokens} or more"
            )
        return self

    @field_validator("schedule")
    @classmethod
    def _check_cron_schedule(cls, schedule: str | None) -> str | None:
        if schedule is not None:
            from prefect.client.schemas.schedules import CronSchedule

            try:
                CronSchedule(cron=schedule)
            except ValueError as error:
                raise ValueError("is no cron expression such as '0 3 * * *'") from error
        return schedule


def explain_skipped_stages(config: Config) -> dict[str, str]:
    """The stages that a config does without, and why."""
    reason = "it is of a run of its own: hallmark finetune CHECKPOINT --config FILE"
    reasons = {"finetune": reason, "task_card": reason}
    reason = "every audit has its own; stop after the audit"
    reasons |= {"respond": reason, "score": reason, "trace": reason}
    for probe in PROBES:
        stage_name = f"audit_{probe.name}"
        if missing_settings := probe.find_missing_settings(getattr(config, stage_name)):
            setting_names = " and ".join(f"{stage_name}.{setting}" for setting in missing_settings)
            reasons[stage_name] = f"it needs files of yours; set {setting_names}"
    if not config.policy.rules:
        reasons["policy"] = "it has no rules; write [policy.rules.NAME], one a rule"
    if not config.find_repeats.enabled:
        reason = "nothing looks for repeats; set find_repeats.enabled=true"
        reasons |= {"find_repeats": reason, "cut_repeats": reason}
    if not config.find_toxic_spans.enabled:
        reason = "nothing looks for toxic windows; set find_toxic_spans.enabled=true"
        reasons |= {"find_toxic_spans": reason, "cut_toxic": reason}
    if not config.leave_out.enabled:
        reasons["leave_out"] = (
            "nothing is left out; set leave_out.doc_ids_file or leave_out.toxicity_threshold"
        )
    if not list_town_sources(config.ingest):
        reasons["evaluate_curation"] = "none of its sources is a town, whose truth is known"
    return reasons


def load_config(
    config: str | Mapping[str, Any], overrides: Sequence[str] = (), source_file: str | None = None
) -> Config:
    """Read a config and apply overrides such as ``pretrain.train.steps=100``.

    ``config`` is a path, a name in ``flows/configs``, or the tree that a run recorded;
    ``source_file`` says where a tree is from otherwise. Raises UsageError with the
    file, the key and what is wrong with it.
    """
    if isinstance(config, str):
        config_tree, source = read_config_tree(config), config
    else:
        config_tree, source = deepcopy(dict(config)), source_file or "of the run"
    for override in overrides:
        apply_override(config_tree, override)
    try:
        return Config.model_validate(config_tree)
    except ValidationError as error:
        raise UsageError(
            f"config {source}: {format_validation_error(error, config_tree, ROOT_KEYS, Config)}"
        ) from error


def fill_missing_sections(
    config_tree: Mapping[str, Any], recorded_tree: Mapping[str, Any]
) -> dict[str, Any]:
    """A tree that says nothing of a corpus, with what it leaves out from ``under``, which a run
    recorded."""
    return dict(config_tree) if "ingest" in config_tree else {**recorded_tree, **config_tree}
