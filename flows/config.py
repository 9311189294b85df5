"""Define the config of a run: one frozen, typed tree with a section for every stage.

A config is a TOML file, or the name of one in ``flows/configs``. Unknown keys and values out of
range are errors that name the key. The sections are the config classes of the stages; the keys at
the root (name, store, workers, mapper, schedule ...) change no artifact, except ``earlier_run``,
and ``name``, which is the title of cards that have none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from hallmark.flows.config_errors import format_validation_error
from hallmark.flows.config_files import (
    apply_override,
    get_config_folder,
    insert_policy_rules,
    read_config_tree,
    rebase_path,
)
from hallmark.flows.config_secrets import check_no_secrets, check_no_secrets_in_overrides
from hallmark.flows.credentials import Credentials
from hallmark.flows.reporter_settings import (
    ReporterName,
    ReportersConfig,
    check_reporter_settings,
)
from hallmark.flows.retry_settings import RetryConfig
from hallmark.model.config import ARCHITECTURE_BY_OBJECTIVE, count_corrupted_spans
from hallmark.reports.datasheet import DatasheetConfig
from hallmark.reports.forms.answers_file import AnswersConfig, read_answers_file
from hallmark.reports.model_card import ModelCardConfig
from hallmark.reports.task_card import TaskCardConfig
from hallmark.tasks.audits.ability.attention_maps import AttentionMapsConfig
from hallmark.tasks.audits.ability.capability import CapabilityConfig
from hallmark.tasks.audits.inference import RespondConfig
from hallmark.tasks.audits.judging.policy import PolicyConfig
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.sample_scoring import ScoreSamplesConfig
from hallmark.tasks.audits.scoring import ScoreConfig
from hallmark.tasks.audits.tracing import TraceConfig
from hallmark.tasks.contract import (
    ExternalMarker,
    PathSafeName,
    StageConfig,
    UsageError,
    format_closest_name_hint,
    iter_config_paths,
)
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
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.town_source import list_town_sources
from hallmark.tasks.corpus.redact_spans import CutRepeatsConfig, CutToxicConfig, RedactSpansConfig
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig
from hallmark.tasks.corpus.score_toxicity import SIGNALS as TOXICITY_SIGNALS
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig
from hallmark.tasks.corpus.select import SelectConfig, SelectionRule, describe_rule_mismatch
from hallmark.tasks.corpus.signals import get_types_by_signal
from hallmark.tasks.corpus.split import SplitConfig
from hallmark.tasks.corpus.toxicity.actions import choose_default_action
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES
from hallmark.tasks.measures.scorers import TOXICITY_HEADS, ScorerConfig
from hallmark.tasks.training.finetune import FinetuneConfig
from hallmark.tasks.training.pack import PackConfig
from hallmark.tasks.training.pretrain import PretrainConfig
from hallmark.tasks.training.train_tokenizer import OBJECTIVES_WITH_SPECIAL_TOKENS, TokenizerConfig

#: What is no stage. Only ``earlier_run``, ``name`` as a title, and ``answers`` change artifacts.
ROOT_KEYS = (
    "name",
    "store",
    "workers",
    "mapper",
    "schedule",
    "earlier_run",
    "report_to",
    "reporters",
    "credentials",
    "retry",
    "answers",
)

#: The types of spans that each use of ``redact_spans`` receives.
SPAN_TYPES_BY_STAGE = {
    "redact_spans": PERSONAL_DATA_TYPES,
    "cut_repeats": ("REPEAT",),
    "cut_toxic": ("TOXIC",),
}

#: The signals that each use of ``select`` receives, by the stage that computes them.
SIGNALS_BY_STAGE = {
    "select": {
        "language": LANGUAGE_SIGNALS,
        "quality": QUALITY_SIGNALS,
        "identities": IDENTITY_SIGNALS,
    },
    "select_scored": {"score_toxicity": TOXICITY_SIGNALS, "contamination": CONTAMINATION_SIGNALS},
}


#: The rules of ``select_scored`` if a config names none.
DEFAULT_SCORED_RULES = SelectConfig(
    rules=(SelectionRule(name="toxicity", lt=0.8), SelectionRule(name="contamination", lt=1))
)


def fill_default_toxicity_actions(select_config: SelectConfig, scorer_kind: str) -> SelectConfig:
    """Set the action of rules over a toxicity score that name none, by the kind of scorer."""
    default = choose_default_action(scorer_kind)
    rules = tuple(
        rule.model_copy(update={"action": default})
        if rule.signal in TOXICITY_HEADS and "action" not in rule.model_fields_set
        else rule
        for rule in select_config.rules
    )
    return select_config.model_copy(update={"rules": rules})


class PreAuditConfig(StageConfig):
    """All sections of a config up to the audits of the probes."""

    name: PathSafeName = Field(description="name of the config, shown with each of its runs")
    store: Annotated[str, ExternalMarker(recursive=False)] | None = Field(
        None,
        description="folder or object-store URI of the store; defaults to the HALLMARK_STORE "
        "environment variable, or to ./runs if the variable is not set",
    )
    workers: int = Field(
        2,
        ge=1,
        le=256,
        description="number of processes that compute partitions of the corpus in parallel",
    )
    mapper: Literal["processes", "ray"] = Field(
        "processes",
        description="where the workers run: as processes on this machine, or on Ray (on the "
        "cluster at the address in the RAY_ADDRESS environment variable, or on this machine if the "
        "variable is not set)",
    )
    schedule: str | None = Field(
        None,
        description="schedule of the deployment that hallmark serve registers, as a cron "
        "expression, e.g. '0 3 * * *'",
    )
    earlier_run: str | None = Field(
        None,
        min_length=1,
        description="id of the run whose corpus this run extends, or 'latest' for the newest run "
        "that has a corpus",
    )
    report_to: tuple[ReporterName, ...] = Field(
        (),
        description="systems to which a run reports its stages and metrics; configured in the "
        "reporters section",
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
            "default": fill_default_toxicity_actions(
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
    answers: AnswersConfig = AnswersConfig()
    datasheet: DatasheetConfig = Field(DatasheetConfig(), validate_default=True)
    leave_out: LeaveOutConfig = LeaveOutConfig()
    train_tokenizer: TokenizerConfig = TokenizerConfig()
    pack: PackConfig = PackConfig()
    pretrain: PretrainConfig = PretrainConfig()
    finetune: FinetuneConfig | None = Field(
        None, description="settings of the hallmark finetune command; ignored by other commands"
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


class Config(ConfigWithProbes):
    """The complete config of a run."""

    model_config = ConfigDict(hide_input_in_errors=True)

    policy: PolicyConfig = PolicyConfig()
    attention_maps: AttentionMapsConfig = AttentionMapsConfig()
    score_samples: ScoreSamplesConfig = ScoreSamplesConfig()
    model_card: ModelCardConfig = Field(ModelCardConfig(), validate_default=True)
    reporters: ReportersConfig = ReportersConfig()
    credentials: Credentials = Field(
        {}, description="sources of library credentials, by credential name"
    )
    retry: RetryConfig = RetryConfig()

    @field_validator("datasheet", "model_card")
    @classmethod
    def _fill_default_title(
        cls, card_config: DatasheetConfig | ModelCardConfig, validation_info: ValidationInfo
    ) -> DatasheetConfig | ModelCardConfig:
        # The name is absent if it is invalid itself.
        name = validation_info.data.get("name")
        if name is None or card_config.title is not None:
            return card_config
        return card_config.model_copy(update={"title": name})

    @field_validator("select_scored")
    @classmethod
    def _fill_default_rule_actions(
        cls, select_config: SelectConfig, validation_info: ValidationInfo
    ) -> SelectConfig:
        # The section is absent if it is invalid itself.
        toxicity_config = validation_info.data.get("score_toxicity")
        return (
            fill_default_toxicity_actions(select_config, toxicity_config.scorer.kind)
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
                f"train_tokenizer.objective is {tokenizer_objective}, but pretrain.train.objective "
                f"is {objective}; the objectives need different special tokens, so set both to "
                "the same value"
            )
        model_architecture, required_architecture = (
            self.pretrain.model.architecture,
            ARCHITECTURE_BY_OBJECTIVE[objective],
        )
        if model_architecture != required_architecture:
            raise ValueError(
                f"pretrain.train.objective {objective} requires the {required_architecture} "
                f"architecture, but pretrain.model.architecture is {model_architecture}; change "
                "one of them"
            )
        hidden_spans, sentinels = (
            count_corrupted_spans(self.pack.context),
            self.train_tokenizer.sentinels,
        )
        if objective == "span_corruption" and hidden_spans > sentinels:
            raise ValueError(
                f"train_tokenizer.sentinels is {sentinels}, but the objective 'span_corruption' "
                f"hides {hidden_spans} spans in a sequence of pack.context = {self.pack.context} "
                "tokens, and each span needs a sentinel token; set train_tokenizer.sentinels to "
                f"{hidden_spans}"
            )
        return self

    @model_validator(mode="after")
    def _check_rule_signals_exist(self) -> Config:
        """Check that the signals of all rules exist, before a run computes them."""
        problems = [
            f"{section}.rules.{rule.name}: {problem}"
            for section, signals_by_stage in SIGNALS_BY_STAGE.items()
            for rule in getattr(self, section).rules
            if (
                problem := describe_rule_mismatch(
                    rule, get_types_by_signal(*signals_by_stage.values())
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
                "leave_out and earlier_run cannot be combined, because leave_out removes only "
                "documents that this run adds to the earlier run's corpus; remove one of the two "
                "settings"
            )
        return self

    @model_validator(mode="after")
    def _check_contamination_has_rule(self) -> Config:
        rules = self.select_scored.rules
        if self.contamination.evaluation_sets and all(
            rule.signal != "contamination" for rule in rules
        ):
            raise ValueError(
                "contamination.evaluation_sets is set, but no select_scored rule uses the "
                "'contamination' signal; rules in the config replace the default rules, so add "
                "[select_scored.rules.contamination] with lt = 1"
            )
        return self

    @model_validator(mode="after")
    def _check_rules_fit_cascade(self) -> Config:
        """Check that toxicity rules use the threshold for which the cascade's recall is measured.

        Documents that the cascade clears have no score, so other rules would not apply to them.
        """
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
                    f"select_scored.rules.{rule.name} cannot be combined with "
                    "score_toxicity.cascade, because the cascade leaves some documents unscored "
                    "and its recall is measured only at its own threshold; in the rule, set "
                    f"'signal' to 'toxicity' and 'lt' to {cascade.toxicity_threshold:g}, and "
                    "remove all other bounds and 'on_missing'; or remove the cascade"
                )
        toxic_windows = self.find_toxic_spans
        if toxic_windows.enabled and toxic_windows.toxicity_threshold != cascade.toxicity_threshold:
            raise ValueError(
                f"find_toxic_spans.toxicity_threshold is {toxic_windows.toxicity_threshold:g}, but "
                "the cascade's recall is measured only at "
                f"score_toxicity.cascade.toxicity_threshold = {cascade.toxicity_threshold:g}; set "
                "both to the same value"
            )
        return self

    @model_validator(mode="after")
    def _check_span_actions(self) -> Config:
        """Refuse actions and bounds that look like a protection but never take effect.

        These are actions for types of spans that a stage never receives, and a toxicity rule that
        removes every document in which toxic windows could be cut.
        """
        for section, span_types in SPAN_TYPES_BY_STAGE.items():
            for span_type in getattr(self, section).actions_by_type:
                if span_type not in span_types:
                    responsible_section = next(
                        section_name
                        for section_name, handled_types in SPAN_TYPES_BY_STAGE.items()
                        if span_type in handled_types
                    )
                    raise ValueError(
                        f"{section}.actions_by_type.{span_type}: {section} receives no spans of "
                        f"this type; set the action in {responsible_section}.actions_by_type"
                    )
        min_score = self.find_toxic_spans.toxicity_threshold
        for rule in self.select_scored.rules if self.find_toxic_spans.enabled else ():
            bound = min(threshold for threshold in (rule.lt, rule.le, 2.0) if threshold is not None)
            if (rule.signal, rule.action) == ("toxicity", "remove") and bound <= min_score:
                raise ValueError(
                    f"find_toxic_spans.toxicity_threshold is {min_score:g}, and "
                    f"select_scored.rules.{rule.name} removes every document that contains a "
                    "window with this score, so no window would ever be cut; lower the threshold, "
                    "or change the rule's bound or action"
                )
        return self

    @model_validator(mode="after")
    def _check_traced_run_length(self) -> Config:
        min_span_tokens = self.trace.min_span_tokens
        min_verbatim_tokens: int = getattr(self, "audit_extraction_attack").min_verbatim_tokens  # noqa: B009
        if min_verbatim_tokens < min_span_tokens:
            raise ValueError(
                f"audit_extraction_attack.min_verbatim_tokens is {min_verbatim_tokens}, but the "
                "'trace' stage ignores matches shorter than trace.min_span_tokens = "
                f"{min_span_tokens} tokens; set min_verbatim_tokens to {min_span_tokens} or more"
            )
        return self

    @model_validator(mode="after")
    def _check_retried_stages_exist(self) -> Config:
        sections = [name for name in type(self).model_fields if name not in ROOT_KEYS]
        for name in self.retry.stages:
            if name not in sections:
                raise ValueError(
                    f"retry.stages.{name}: there is no stage {name!r}"
                    f"{format_closest_name_hint(name, sections)}"
                )
        return self

    @model_validator(mode="after")
    def _check_reporters(self) -> Config:
        check_reporter_settings(self.report_to, self.reporters)
        return self

    @field_validator("schedule")
    @classmethod
    def _check_cron_schedule(cls, schedule: str | None) -> str | None:
        if schedule is not None:
            from prefect.client.schemas.schedules import CronSchedule

            try:
                CronSchedule(cron=schedule)
            except ValueError as error:
                raise ValueError("is not a cron expression such as '0 3 * * *'") from error
        return schedule


#: The sections of a config, each of which is a stage, in their order.
STAGE_SECTIONS = tuple(name for name in Config.model_fields if name not in ROOT_KEYS)


def get_skip_reason_by_stage(config: Config) -> dict[str, str]:
    """Return the stages that a run of this config does not have, with the reason for each."""
    reason = "fine-tuning has its own command: hallmark finetune CHECKPOINT --config FILE"
    reasons = {"finetune": reason, "task_card": reason}
    reason = "every audit has a stage of this kind; specify an audit instead, such as audit_bias"
    reasons |= {"respond": reason, "score": reason, "trace": reason}
    for probe in PROBES:
        stage_name = f"audit_{probe.name}"
        if missing_settings := probe.find_missing_settings(getattr(config, stage_name)):
            setting_names = " and ".join(f"{stage_name}.{setting}" for setting in missing_settings)
            reasons[stage_name] = (
                f"the audit needs files that you must provide; set {setting_names}"
            )
    if not config.policy.rules:
        reasons["policy"] = (
            "the config has no policy rules; add a [policy.rules.NAME] section for each rule, or "
            "set policy.file"
        )
    if not config.find_repeats.enabled:
        reason = "the search for repeats is disabled; set find_repeats.enabled=true"
        reasons |= {"find_repeats": reason, "cut_repeats": reason}
    if not config.find_toxic_spans.enabled:
        reason = "the search for toxic windows is disabled; set find_toxic_spans.enabled=true"
        reasons |= {"find_toxic_spans": reason, "cut_toxic": reason}
    if not config.leave_out.enabled:
        reasons["leave_out"] = (
            "no documents are excluded; set leave_out.doc_ids_file or leave_out.toxicity_threshold"
        )
    if not list_town_sources(config.ingest.sources):
        reasons["evaluate_curation"] = (
            "this config has no source of the 'town' kind, the only kind for which the correct "
            "curation result is known"
        )
    return reasons


def load_config(
    config: str | Mapping[str, Any], overrides: Sequence[str] = (), source_file: str | None = None
) -> Config:
    """Read a config and apply overrides such as ``pretrain.train.steps=100``.

    Args:
        config: A path, a name in ``flows/configs``, or a tree such as the one that a run recorded.
            Relative paths in a file start at its folder, all others at the working directory.
        overrides: Settings as ``key=value``.
        source_file: Where a tree is from, for errors.

    Raises:
        UsageError: If the config is invalid or contains a credential; names the file, the key and
            the problem.
    """
    if isinstance(config, str):
        config_tree, source = read_tree_with_rebased_paths(config, overrides), config
    else:
        config_tree, source = deepcopy(dict(config)), source_file or "of the run"
    check_no_secrets_in_overrides(overrides)
    for override in overrides:
        apply_override(config_tree, override)
    insert_policy_rules(config_tree)
    if isinstance(config, str) or source_file:  # a recorded config can be changed no more
        check_no_secrets(config_tree, "", f"config {source}")
    try:
        return Config.model_validate(config_tree)
    except ValidationError as error:
        raise UsageError(
            f"config {source}: {format_validation_error(error, config_tree, ROOT_KEYS, Config)}"
        ) from error


def read_answers(config: Config) -> Config:
    """Read the answers file of a config into the sections of the cards.

    Returns:
        A config that names no answers file, so that a repeated run has the same answers.

    Raises:
        UsageError: The file cannot be used.
    """
    if config.answers.file is None:
        return config
    answers_by_form = read_answers_file(config.answers.file)
    for answers in answers_by_form.values():
        check_no_secrets(answers, "", f"answers file {config.answers.file}")
    card_sections: dict[str, Any] = {
        form: getattr(config, form).model_copy(update={"answers": answers})
        for form, answers in answers_by_form.items()
    }
    return config.model_copy(update={"answers": AnswersConfig(), **card_sections})


def read_tree_with_rebased_paths(
    config: str, overrides: Sequence[str] = (), recorded_tree: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read the tree of a config, with relative paths that start at the working directory.

    Args:
        config: A path, or a name in ``flows/configs``. Relative paths start at the file's folder.
        overrides: Settings that will replace those of the config.
        recorded_tree: A tree that will fill the sections that the config lacks.
    """
    config_tree, folder = read_config_tree(config), get_config_folder(config)
    if folder is None:
        return config_tree
    return rebase_config_paths(config_tree, folder, overrides, recorded_tree)


def rebase_config_paths(
    config_tree: Mapping[str, Any],
    folder: str,
    overrides: Sequence[str] = (),
    recorded_tree: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Rebase the relative paths of a tree from a folder to the working directory.

    Returns:
        A changed copy; an unchanged one if the tree is invalid, which ``load_config`` reports.
    """
    rebased_tree = deepcopy(dict(config_tree))
    if folder == os.getcwd():
        return rebased_tree
    complete_tree = fill_missing_sections(deepcopy(rebased_tree), recorded_tree or {})
    for override in overrides:
        apply_override(complete_tree, override)
    try:
        config = Config.model_validate(complete_tree)
    except ValidationError:
        return rebased_tree
    overridden_keys = [override.partition("=")[0].strip() for override in overrides]
    for config_path in iter_config_paths(config):
        is_overridden = any(
            f"{config_path.setting}.".startswith(f"{key}.") for key in overridden_keys
        )
        *parent_keys, key = config_path.setting.split(".")
        node: Any = rebased_tree
        for parent_key in parent_keys:
            node = _get_member(node, parent_key)
        path, marker = _get_member(node, key), config_path.marker
        if is_overridden or not isinstance(path, str) or path in marker.built_in_names:
            continue
        local_path = rebase_path(path, folder)
        if marker.allows_hub_id and not os.path.exists(local_path):
            continue
        node[int(key) if isinstance(node, list) else key] = local_path
    return rebased_tree


def _get_member(node: Any, key: str) -> Any:
    """Return a member of a table or list of a config; None if there is none."""
    if isinstance(node, list):
        return node[int(key)] if key.isdecimal() and int(key) < len(node) else None
    return node.get(key) if isinstance(node, Mapping) else None


def fill_missing_sections(
    config_tree: Mapping[str, Any], recorded_tree: Mapping[str, Any]
) -> dict[str, Any]:
    """Fill the sections that a tree lacks from the recorded one, unless it describes a corpus."""
    return dict(config_tree) if "ingest" in config_tree else {**recorded_tree, **config_tree}
