"""Build the model card of a checkpoint, after Mitchell et al. (2019).

The source is "Model Cards for Model Reporting". The checkpoint may be ours, with its training and
corpus, or may come without both; the card then states what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from hallmark.reports.forms.answers_file import ModelCardAnswers
from hallmark.reports.forms.questions import QUESTION_FILES
from hallmark.reports.page.answers import ANSWERS, Answer
from hallmark.reports.page.card_tables import (
    CARD_TABLE_SCHEMAS,
    CardContent,
    write_card_tables,
)
from hallmark.reports.page.document import (
    METRICS_PAGE,
    RISK_ORDER_TITLE,
    Block,
    BulletList,
    Callout,
    Code,
    DataTable,
    DecisionSheet,
    DefinitionEntry,
    DefinitionList,
    Details,
    Document,
    InlineContent,
    InlineElement,
    Paragraph,
    Section,
    format_user_statement,
)
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, REDACTION_LIBRARIES, Redactor
from hallmark.reports.sections.analyses import (
    build_analyses_section,
    build_summary_table,
    select_first_findings,
)
from hallmark.reports.sections.attention import build_attention_section
from hallmark.reports.sections.card_summary import (
    INTERVAL_NOTE,
    build_card_summary,
    collect_controls,
    describe_measurement_limits,
    find_audit_coverage,
    list_failed_self_checks,
)
from hallmark.reports.sections.checkpoint import (
    describe_inference_settings,
    describe_parameter_counts,
    read_config_settings,
)
from hallmark.reports.sections.composition import (
    build_canaries_section,
    build_canary_callout,
    build_sources_section,
)
from hallmark.reports.sections.corpus_figures import (
    CARD_TABLES,
    PROFILE,
    CorpusFigures,
    build_corpus_redactor,
)
from hallmark.reports.sections.decision_sheet import (
    MAIN_RESULTS_TITLE,
    NOT_MEASURED_LINK,
    AuditCoverage,
    build_decision_sheet,
    describe_risk_order,
)
from hallmark.reports.sections.error_rates import (
    ERROR_RATES,
    ErrorRates,
    describe_missing_error_rates,
)
from hallmark.reports.sections.findings import (
    Findings,
    get_audit_title,
    list_conditions,
    list_measured_groups,
)
from hallmark.reports.sections.form_answers import build_form_section
from hallmark.reports.sections.missing_results import build_missing_results_section
from hallmark.reports.sections.model_card_answers import (
    ModelCardMeasurements,
    build_model_card_answers,
    describe_training_date,
)
from hallmark.reports.sections.personal_data import describe_personal_data_treatment
from hallmark.reports.sections.release_changes import COMPARISON, build_changes_entry
from hallmark.reports.sections.tokenizer import build_tokenizer_section
from hallmark.reports.sections.training import (
    EARLIER_TRAINING_NOTE,
    build_samples_section,
    build_training_section,
    get_start_checkpoint_name,
)
from hallmark.reports.sections.training_coverage import (
    build_coverage_table,
    build_training_arm_callout,
    describe_excluded_documents,
    describe_training_coverage,
)
from hallmark.tasks.audits.judging.policy_outcome import judge_policy
from hallmark.tasks.audits.judging.scorer_controls import remove_scorer_limits
from hallmark.tasks.audits.judging.training_exposure import find_last_checkpoint_step
from hallmark.tasks.audits.missing_audits import FAILED, SKIPPED_BY_USER
from hallmark.tasks.audits.registry import compute_descriptions_digest
from hallmark.tasks.contract import Artifact, Row, StageConfig, StageContext, stage, table_to_rows

#: Tables of audits that hold no rows of what was scored.
TABLES_WITHOUT_SCORED_ROWS = ("findings", "accounts", "training_sizes", "model")


class ModelCardConfig(StageConfig):
    """Facts about the model that only a person knows; missing ones are "not stated"."""

    title: str | None = Field(None, description="model name; defaults to the config name")
    developers: str | None = Field(None, description="developers of the model")
    version: str | None = Field(None, description="version of the model")
    date: str | None = Field(
        None, description="training date, if it differs from the checkpoint date"
    )
    licence: str | None = Field(None, description="licence for the weights")
    citation: str | None = Field(None, description="how to cite the model")
    contact: str | None = Field(None, description="contact for questions and complaints")
    intended_use: str | None = Field(None, description="intended uses of the model")
    intended_users: str | None = Field(None, description="intended users of the model")
    out_of_scope: str | None = Field(None, description="uses for which the model is not intended")
    ethics: str | None = Field(None, description="ethical considerations beyond the measurements")
    caveats: str | None = Field(None, description="recommendations beyond the measurements")
    max_table_rows: int = Field(
        40,
        ge=1,
        le=1000,
        description=(
            "maximum number of rows in each card table; rows about groups of people are always "
            "shown"
        ),
    )
    redaction_threshold: float = Field(
        OFFENSIVE_TOXICITY,
        ge=0,
        le=1,
        description="minimum toxicity score at which pages hide a text",
    )
    answers: ModelCardAnswers = Field(
        {},
        description="answers given by a person, keyed by question id and read from answers.file",
    )


def _get_stated(text: str | None) -> InlineContent:
    """Return what a person stated; nothing if that is missing."""
    return format_user_statement(text) if text and text.strip() else []


def build_model_card_redactor(inputs: Mapping[str, Any], config: ModelCardConfig) -> Redactor:
    return build_corpus_redactor(inputs["corpus_artifacts"], config.redaction_threshold)


@dataclass
class ModelCardBuilder:
    """Builds the sections of a model card and adds their figures to the book.

    The attributes are the inputs of ``build_model_card``, the findings of its audits, and the book.
    """

    book: FigureBook
    checkpoint: Artifact
    training_run: Artifact | None
    tokenizer: Artifact | None
    findings: Findings
    corpus_artifacts: dict[str, Artifact]
    attention_maps: Artifact | None
    scored_samples: Artifact | None
    policy_verdicts: Artifact | None
    missing_audits: Artifact | None
    error_rates: dict[str, Artifact]
    previous_comparison: Artifact | None
    redactor: Redactor
    config: ModelCardConfig

    def build_lead(self) -> list[Block]:
        """Build the first screen: what a reviewer decides from."""
        blocks: list[Block] = []
        if "leave_out" in self.corpus_artifacts:
            blocks += build_training_arm_callout(self.corpus_artifacts["leave_out"])
        return [*blocks, self.build_decision_sheet()]

    def build_decision_sheet(self) -> DecisionSheet:
        """Build the status, the identity, the risks, and what is not known."""
        verdicts = (
            []
            if self.policy_verdicts is None
            else table_to_rows(self.policy_verdicts["verdicts"].read())
        )
        controls = collect_controls(self.findings)
        config = self.config
        identity: list[DefinitionEntry] = [
            ("Version", _get_stated(config.version)),
            ("Checkpoint", [Code(self.checkpoint.content_digest[:16])]),
            ("Owner", _get_stated(config.developers)),
            ("Licence", _get_stated(config.licence)),
            ("Contact", _get_stated(config.contact)),
            ("Intended use", _get_stated(config.intended_use)),
        ]
        return build_decision_sheet(
            self.findings,
            judge_policy(verdicts),
            self.find_audit_coverage(),
            list_failed_self_checks(controls),
            identity,
            [
                ("Limits", describe_measurement_limits(self.findings, controls)),
                build_changes_entry(self.book, self.previous_comparison, self.findings),
            ],
            verdicts,
        )

    def find_audit_coverage(self) -> AuditCoverage:
        """Return the audits without a figure."""
        return find_audit_coverage(
            self.findings,
            self._read_failure_reason_by_audit(),
            self._list_audits_skipped_by_user(),
        )

    def build_summary_section(self) -> Section:
        """Build the section on controls, policy, further harms and main results."""
        blocks = build_card_summary(
            self.findings,
            self.policy_verdicts,
            self.find_audit_coverage(),
            self.describe_training_text_read(),
            self.redactor.redact_full_text,
        )
        if self.corpus_figures:
            blocks.append(build_canary_callout(self.corpus_figures))
        elif not self.corpus_artifacts:
            blocks.append(
                Callout(
                    "note",
                    [
                        "The checkpoint came without its training corpus, so its training "
                        "documents are not known."
                    ],
                )
            )
        summary = build_summary_table(self.findings)
        blocks.append(
            Details("Main figures from all audits", [summary])
            if isinstance(summary, DataTable)
            else summary
        )
        return Section(MAIN_RESULTS_TITLE, blocks)

    def describe_training_text_read(self) -> InlineContent:
        """Return how much of the training text the model has seen, as far as it is known."""
        step = find_last_checkpoint_step(self.training_run, self.checkpoint)
        if step is not None:
            return describe_training_coverage(
                self.book, step, get_start_checkpoint_name(self.checkpoint)
            )
        if corpus_figures := self.corpus_figures:
            document_count = corpus_figures.add_sum_figure(
                "sources",
                "documents",
                "documents",
                "number of documents for training",
                split="train",
            )
            return [
                "A corpus of ",
                document_count,
                "; it is not recorded how much of each document the model read.",
            ]
        if self.corpus_artifacts:
            return ["Not known: the store contains no profile (statistics) of the corpus."]
        return ["Not known: the checkpoint came without its corpus."]

    def _read_missing_audits(self) -> list[Row]:
        """Return the rows of the ``missing_audits`` table: audits that failed or were skipped."""
        if self.missing_audits is None:
            return []
        rows: list[Row] = self.missing_audits["missing_audits"].read().to_pylist()
        return rows

    def _read_failure_reason_by_audit(self) -> dict[str, str]:
        """Return the redacted reason of each failed audit."""
        return {
            row["audit"]: self.redactor.redact_full_text(row["reason"])
            for row in self._read_missing_audits()
            if row["outcome"] == FAILED
        }

    def _list_audits_skipped_by_user(self) -> list[str]:
        """Return the names of the audits that the user skipped."""
        return [
            row["audit"] for row in self._read_missing_audits() if row["outcome"] == SKIPPED_BY_USER
        ]

    def build_details_section(self) -> Section:
        """Build the section on the checkpoint: identity, architecture, tokenizer and training."""
        config = self.config
        section = Section("Model details")
        entries: list[DefinitionEntry] = [
            ("Developed by", format_user_statement(config.developers)),
            ("Version", format_user_statement(config.version)),
            ("Date", _get_stated(config.date) or describe_training_date(self.checkpoint).content),
            ("Licence", format_user_statement(config.licence)),
            ("Citation", format_user_statement(config.citation)),
            ("Contact", format_user_statement(config.contact)),
            ("Checkpoint, content digest", [Code(self.checkpoint.content_digest)]),
            ("Parameters", describe_parameter_counts(self.book, self.checkpoint)),
            (
                "Precision used in the audits",
                [describe_inference_settings(self.findings.audit_artifacts)],
            ),
        ]
        section.add_blocks(DefinitionList(entries))
        config_settings = read_config_settings(self.checkpoint)
        if config_settings:
            # Shortened after redaction: otherwise part of a divided secret would be shown.
            setting_rows: list[list[InlineElement]] = [
                [setting, Code(self.redactor.redact_full_text(value)[:120])]
                for setting, value in config_settings
            ]
            rows = setting_rows[: config.max_table_rows]
            sha256 = self.checkpoint.manifest["files"]["config.json"]["sha256"]
            note = f"The values are from the checkpoint's config.json (SHA-256 {sha256})."
            note += " Settings without a value are omitted."
            if len(config_settings) > len(rows):
                note = (
                    f"The table shows the first {len(rows)} of {len(config_settings)} settings. "
                    f"{note}"
                )
            table = DataTable("Architecture", ["setting", "value"], rows, note=note)
            section.add_blocks(Details("Model architecture", [table]))
        else:
            section.add_blocks(Paragraph(["The checkpoint has no config.json."]))
        is_continued = get_start_checkpoint_name(self.checkpoint) is not None
        tokenizer_section = build_tokenizer_section(
            self.book, self.checkpoint, self.tokenizer, is_continued, config.max_table_rows
        )
        training_section = build_training_section(
            self.book, self.training_run, self.checkpoint, config.max_table_rows
        )
        training_section.sections = [
            build_samples_section(self.book, self.scored_samples, self.redactor)
        ]
        section.sections = [
            replace(
                tokenizer_section,
                page="tokenizer",
                answer=["How the tokenizer splits text, and the number of bytes per token."],
            ),
            replace(
                training_section,
                page="training-run",
                answer=[
                    "Training loss, checkpoints, training settings and samples of generated text."
                ],
            ),
        ]
        return section

    def build_intended_use_section(self) -> Section:
        config = self.config
        entries = [
            ("Intended use", format_user_statement(config.intended_use)),
            ("Intended users", format_user_statement(config.intended_users)),
            ("Out of scope", format_user_statement(config.out_of_scope)),
        ]
        return Section("Intended use", [DefinitionList(entries)])

    def build_factors_section(self) -> Section:
        """Build the table of groups of people and of conditions with figures of their own."""
        section = Section("Factors")
        rows: list[list[InlineElement]] = []
        for audit, audit_findings in self.findings.by_audit.items():
            measured_rows = [
                row
                for row, figure in audit_findings
                if not row["control"] and figure.value is not None
            ]
            groups, conditions = list_measured_groups(measured_rows), list_conditions(measured_rows)
            if groups or conditions:
                cells = ["; ".join(groups) or "–", "; ".join(conditions) or "–"]
                rows.append([get_audit_title(audit), *cells])
        if rows:
            columns = ["audit", "groups", "other conditions"]
            note = "The audit pages show the figures for all groups and conditions."
            table = DataTable("Measured groups and conditions", columns, rows, note=note)
            section.add_blocks(Details("Groups and other conditions, by audit", [table]))
        section.add_blocks(
            Paragraph(
                [
                    "The audits covered no other groups, languages, dialects or settings. How the "
                    "model treats groups that are not listed here is not known."
                ]
            )
        )
        return section

    def build_metrics_section(self) -> Section:
        """Build the table of the method of each metric."""
        answer = "How each metric is defined and measured."
        section = Section("Metrics", [Paragraph([answer])], page=METRICS_PAGE, answer=[answer])
        rows: list[list[InlineElement]] = []
        for audit in self.findings.by_audit:
            scorer_controls = self.findings.list_scorer_controls(audit)
            first_findings = select_first_findings(self.findings, audit, self.config.max_table_rows)
            rows += [
                [
                    first.row["title"],
                    get_audit_title(audit),
                    self.findings.get_metric_definition(audit, metric) or "–",
                    remove_scorer_limits(first.row["method"], scorer_controls),
                ]
                for metric, first in first_findings.items()
            ]
        if rows:
            columns = ["metric", "audit", "what it is", "method used for the first figure"]
            note = "Each audit's page describes the audit's limits and what its scorers often miss."
            section.add_blocks(DataTable("How each metric was measured", columns, rows, note=note))
        else:
            section.add_blocks(Paragraph(["No audit measured the model."]))
        section.sections.append(Section(RISK_ORDER_TITLE, [Paragraph([describe_risk_order()])]))
        return section

    def build_evaluation_data_section(self) -> Section:
        """Build the table of the number of rows in each table of the audits."""
        section = Section("Evaluation data")
        rows: list[list[InlineElement]] = []
        for audit, artifact in self.findings.audit_artifacts.items():
            for table in sorted(artifact.tables):
                if table not in TABLES_WITHOUT_SCORED_ROWS:
                    figure = self.book.add_computed_figure(
                        f"{audit}-{table}-rows",
                        f"number of rows in the {table} table of the {audit} audit",
                        "rows",
                        (f"audit_{audit}", table),
                        aggregate="count",
                    )
                    rows.append([get_audit_title(audit), Code(table), figure])
        if rows:
            columns = ["audit", "table", "rows"]
            note = (
                "Depending on the audit, a row is a prompt with its continuation, a pair of "
                "texts, or a token sequence."
            )
            items_table = DataTable("Scored items", columns, rows, frozenset({2}), note)
            section.add_blocks(Details("Number of scored items by audit", [items_table]))
        elif self.findings.audit_artifacts:
            message = "No audit wrote a table of scored items."
            section.add_blocks(Paragraph([message]))
        else:
            section.add_blocks(Paragraph(["No audit ran."]))
        return section

    @property
    def corpus_figures(self) -> CorpusFigures | None:
        """Return the figures of the training corpus; None where its profile is not known."""
        if PROFILE not in self.corpus_artifacts:
            return None
        return CorpusFigures(self.book, self.corpus_artifacts, self.config.max_table_rows)

    def build_training_data_section(self) -> Section:
        """Build the section on the training corpus and on how much of it the model has seen."""
        section = Section("Training data")
        corpus_figures = self.corpus_figures
        if corpus_figures is None:
            message = (
                "The corpus is not known."
                if not self.corpus_artifacts
                else (
                    "The store contains no profile (statistics) of the training corpus. The "
                    "audits nevertheless used documents from the corpus."
                )
            )
            section.add_blocks(Paragraph([message]))
            return section
        split_condition = {"split": "train"}
        document_count, byte_count = (
            corpus_figures.add_sum_figure(
                "sources", column, unit, f"number of {unit} for training", **split_condition
            )
            for column, unit in (("documents", "documents"), ("bytes", "bytes of text"))
        )
        section.add_blocks(
            Paragraph(
                [
                    "Prepared for training: ",
                    document_count,
                    " with ",
                    byte_count,
                    ". For details, see the corpus datasheet.",
                ]
            )
        )
        source_section = Section(
            "Training data sources",
            page="training-data",
            answer=[
                "How much of each source the model has read, and which documents were planted."
            ],
        )
        step = find_last_checkpoint_step(self.training_run, self.checkpoint)
        if self.training_run is not None and step is not None:
            source_section.add_blocks(
                build_coverage_table(self.book, self.training_run, step, self.config.max_table_rows)
            )
        if "leave_out" in self.corpus_artifacts:
            section.add_blocks(
                describe_excluded_documents(self.book, self.corpus_artifacts["leave_out"])
            )
        start_checkpoint = get_start_checkpoint_name(self.checkpoint)
        if start_checkpoint is not None:
            section.add_blocks(
                Paragraph(
                    [
                        "Training continued from ",
                        Code(start_checkpoint),
                        f". {EARLIER_TRAINING_NOTE}",
                    ]
                )
            )
        source_section.sections = [
            build_sources_section(corpus_figures, **split_condition),
            build_canaries_section(corpus_figures),
        ]
        section.sections = [source_section]
        return section

    def build_attention_section(self) -> Section:
        """Build the section on attention maps; it has a page of its own if there are any."""
        section = build_attention_section(self.book, self.attention_maps, self.redactor)
        if self.attention_maps is None:
            return section
        answer = "Words to which the model attends while it reads the configured texts."
        return replace(section, page="attention", answer=[answer])

    def build_ethics_section(self) -> Section:
        """Build the section on offensive text, redaction and personal data."""
        items: list[InlineContent] = [["The toxicity and bias audits use offensive texts."]]
        if self.redactor.notice:
            items.append(["Nothing is masked on these pages."])
        else:
            items += [
                [
                    "Generated text and corpus text are shown only if their toxicity scores are "
                    "low; sentences from the bias audit are shown as written."
                ],
                [
                    "Personal data that a detector finds is masked on every page. Planted secrets "
                    "are invented; they are masked until a reader reveals them."
                ],
            ]
        if self.corpus_artifacts:
            corpus_figures = CorpusFigures(
                self.book, self.corpus_artifacts, self.config.max_table_rows
            )
            subject = "Personal data in the training text"
            items.append([describe_personal_data_treatment(corpus_figures, subject)])
        facts = DefinitionList(
            [("Stated by the developers", format_user_statement(self.config.ethics))]
        )
        return Section("Ethical considerations", [facts, BulletList(items)])

    def build_caveats_section(self) -> Section:
        """Build the section on scorers, intervals and error rates."""
        scorers = sorted(
            {
                finding_row["scorer"]
                for rows in self.findings.by_audit.values()
                for finding_row, _ in rows
            }
            - {""}
        )
        items: list[InlineContent] = [["For missing results, see “", NOT_MEASURED_LINK, "”."]]
        if scorers:
            items.append(
                [
                    f"Texts were scored by {' and '.join(scorers)}. Figures derived from scores "
                    "include scorer errors; do not compare them with figures from other scorers."
                ]
            )
        items.append([INTERVAL_NOTE])
        items += describe_missing_error_rates(self.error_rates, self.findings.by_audit)
        facts = DefinitionList(
            [("Stated by the developers", format_user_statement(self.config.caveats))]
        )
        return Section("Caveats and recommendations", [facts, BulletList(items)])

    def get_error_rates_by_audit(self) -> dict[str, ErrorRates]:
        """Return the error rates of each audit that a study measured in this version."""
        if not self.error_rates:
            return {}
        return dict.fromkeys(
            self.error_rates, ErrorRates(self.book, self.book.artifacts[ERROR_RATES])
        )

    def build_answers(self) -> list[Answer]:
        """Answer all questions; the figures of the other sections must be in the book."""
        measurements = ModelCardMeasurements(
            self.book,
            self.findings,
            self.find_audit_coverage(),
            self.checkpoint,
            self.training_run,
            self.corpus_figures,
        )
        return build_model_card_answers(measurements, self.config.model_dump(), self.config.answers)

    def build_document(self) -> Document:
        """Build the card without the answers to the questions of its form."""
        return Document(
            self.config.title or "Untitled model",
            "Model card",
            self.build_lead(),
            [
                self.build_summary_section(),
                build_missing_results_section(self.findings, self.find_audit_coverage()),
                self.build_details_section(),
                self.build_intended_use_section(),
                self.build_factors_section(),
                self.build_metrics_section(),
                self.build_evaluation_data_section(),
                self.build_training_data_section(),
                build_analyses_section(
                    self.findings,
                    self.config.max_table_rows,
                    self.get_error_rates_by_audit(),
                ),
                self.build_attention_section(),
                self.build_ethics_section(),
                self.build_caveats_section(),
            ],
        )


def label_model_card_inputs(inputs: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return the inputs that have rows for figures, by the label that figures name."""
    artifacts = {
        "checkpoint": inputs["checkpoint"],
        **inputs["corpus_artifacts"],
        **{f"audit_{audit}": artifact for audit, artifact in inputs["audits"].items()},
        "pretrain": inputs["training_run"],
        "train_tokenizer": inputs["tokenizer"],
        "attention_maps": inputs["attention_maps"],
        "score_samples": inputs["scored_samples"],
        ERROR_RATES: next(iter(inputs["error_rates"].values()), None),
        COMPARISON: inputs["previous_comparison"],
    }
    return {label: artifact for label, artifact in artifacts.items() if artifact is not None}


def compose_model_card(
    inputs: Mapping[str, Any], config: ModelCardConfig, redactor: Redactor
) -> CardContent:
    """Compose the card; ``inputs`` are those of the stage, by name."""
    book = FigureBook(label_model_card_inputs(inputs))
    builder = ModelCardBuilder(
        book=book,
        findings=Findings(book, inputs["audits"]),
        redactor=redactor,
        config=config,
        **{name: value for name, value in inputs.items() if name != "audits"},
    )
    document = builder.build_document()
    answers = builder.build_answers()
    document.sections = [*document.sections, build_form_section("model_card", answers)]
    return CardContent(
        "model_card",
        document,
        book,
        inputs["corpus_artifacts"],
        redactor,
        answers=[answer.to_row() for answer in answers],
    )


@stage(
    name="model_card",
    tables={**CARD_TABLE_SCHEMAS, "answers": ANSWERS},
    extra_code=(QUESTION_FILES["model_card"],),
    libraries=(*REDACTION_LIBRARIES, "scipy"),
    external_digests=compute_descriptions_digest,
    reads={"corpus_artifacts": CARD_TABLES},
)
def build_model_card(
    checkpoint: Artifact,
    training_run: Artifact | None,
    tokenizer: Artifact | None,
    audits: dict[str, Artifact],
    corpus_artifacts: dict[str, Artifact],
    attention_maps: Artifact | None,
    scored_samples: Artifact | None,
    policy_verdicts: Artifact | None,
    missing_audits: Artifact | None,
    error_rates: dict[str, Artifact],
    previous_comparison: Artifact | None,
    config: ModelCardConfig,
    context: StageContext,
) -> None:
    """Build the card as a stage.

    Args:
        checkpoint: The checkpoint that the card is about.
        training_run: The output of ``pretrain``; that of ``reconstruct_reads`` while the training
            has not ended; None for a checkpoint without a training log.
        tokenizer: The output of ``train_tokenizer``, if known.
        audits: The outputs of the audits by name, such as "bias".
        corpus_artifacts: The artifacts of the corpus stages by label; empty if unknown.
        attention_maps: The output of ``attention_maps``, if it ran.
        scored_samples: The output of ``score_samples``, if it ran.
        policy_verdicts: The verdicts of the policy on the findings, if one is configured.
        missing_audits: The audits that failed or that the user skipped, if any.
        error_rates: By audit that a study measured in this version, the output of the study.
        previous_comparison: The changes since the previous release, if there is one.
        config: The settings.
        context: The context of the stage.
    """
    inputs = {
        "checkpoint": checkpoint,
        "training_run": training_run,
        "tokenizer": tokenizer,
        "audits": audits,
        "corpus_artifacts": corpus_artifacts,
        "attention_maps": attention_maps,
        "scored_samples": scored_samples,
        "policy_verdicts": policy_verdicts,
        "missing_audits": missing_audits,
        "error_rates": error_rates,
        "previous_comparison": previous_comparison,
    }
    redactor = build_model_card_redactor(inputs, config)
    write_card_tables(compose_model_card(inputs, config, redactor), context)
