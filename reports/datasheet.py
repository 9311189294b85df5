"""Build the datasheet of a corpus, after Gebru et al., "Datasheets for Datasets" (2021).

Tables of the corpus stages answer what they can. What only a person knows comes from the config,
and is "not stated" where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hallmark.reports.forms.answers_file import DatasheetAnswers
from hallmark.reports.forms.questions import QUESTION_FILES
from hallmark.reports.page.answers import ANSWERS, Answer
from hallmark.reports.page.card_tables import (
    CARD_TABLE_SCHEMAS,
    CardContent,
    write_card_tables,
)
from hallmark.reports.page.document import (
    Block,
    BulletList,
    Code,
    DataTable,
    DefinitionEntry,
    DefinitionList,
    Document,
    InlineContent,
    InlineElement,
    Link,
    Paragraph,
    Section,
    format_user_statement,
)
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, REDACTION_LIBRARIES, Redactor
from hallmark.reports.sections.composition import (
    build_canary_callout,
    build_composition_section,
    build_growth_callout,
    describe_licences,
    has_canaries,
)
from hallmark.reports.sections.corpus_figures import (
    CARD_TABLES,
    PROFILE,
    CorpusFigures,
    build_corpus_redactor,
)
from hallmark.reports.sections.curation_evaluation import build_curation_evaluation_sections
from hallmark.reports.sections.datasheet_answers import (
    build_datasheet_answers,
    read_source_declarations,
)
from hallmark.reports.sections.filter_errors import summarize_filter_errors
from hallmark.reports.sections.form_answers import build_form_section
from hallmark.reports.sections.group_removals import (
    REMOVAL_RATES_TITLE,
    build_group_removal_answer,
    build_group_removal_section,
)
from hallmark.reports.sections.personal_data import describe_personal_data_treatment
from hallmark.reports.sections.preprocessing import (
    build_preprocessing_section,
    describe_toxicity_actions,
)
from hallmark.reports.sections.redistribution import describe_redistribution
from hallmark.reports.sections.stage_titles import name_corpus_stage
from hallmark.reports.sections.unmeasured import describe_unmeasured_properties
from hallmark.tasks.contract import Artifact, StageConfig, StageContext, format_count, stage


class DatasheetConfig(StageConfig):
    """Facts about the corpus that only a person knows; missing ones are "not stated".

    Raises:
        ValueError: If a reason is stated without the decision that it explains.
    """

    title: str | None = Field(None, description="corpus name; defaults to the config name")
    motivation: str | None = Field(None, description="purpose of the corpus")
    creators: str | None = Field(
        None, description="creators of the corpus, and the party on whose behalf they created it"
    )
    funding: str | None = Field(None, description="funders of the corpus")
    collection: str | None = Field(
        None, description="how, when and from whom the texts were collected"
    )
    consent: str | None = Field(
        None, description="whether the authors of the texts know about the corpus and consent to it"
    )
    licence: str | None = Field(None, description="licences for the texts and the corpus")
    intended_uses: str | None = Field(None, description="intended uses of the corpus")
    uses_to_avoid: str | None = Field(None, description="uses for which the corpus is not intended")
    distribution: str | None = Field(
        None, description="whether, to whom, how and when the corpus is distributed"
    )
    maintenance: str | None = Field(
        None, description="maintainers of the corpus, and how it is updated and corrected"
    )
    contact: str | None = Field(None, description="contact for questions and complaints")
    redistribution: Literal["yes", "no"] | None = Field(
        None, description='whether the corpus may be redistributed: "yes" or "no"'
    )
    redistribution_reason: str | None = Field(
        None, description="reason why the corpus may or may not be redistributed"
    )
    max_table_rows: int = Field(
        30,
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
    answers: DatasheetAnswers = Field(
        {},
        description="answers given by a person, keyed by question id and read from answers.file",
    )

    @model_validator(mode="after")
    def _check_redistribution(self) -> Self:
        if self.redistribution_reason and self.redistribution is None:
            raise ValueError(
                "redistribution_reason is set, but redistribution is not; set redistribution to "
                '"yes" or "no"'
            )
        return self


@dataclass
class DatasheetBuilder:
    """Builds the sections of a datasheet and adds their figures to the book.

    Attributes:
        corpus_figures: The figures of the corpus.
        redactor: Redacts errors of records in quarantine.
        config: The settings.
    """

    corpus_figures: CorpusFigures
    redactor: Redactor
    config: DatasheetConfig

    def build_lead(self) -> list[Block]:
        """Build the first screen: size, removal rates, planted documents and licences."""
        document_count = self.corpus_figures.add_sum_figure(
            "sources", "documents", "documents", "number of documents in the corpus"
        )
        corpus_size = self.corpus_figures.add_sum_figure(
            "sources", "bytes", "bytes of text", "size of the corpus"
        )
        splits = self.corpus_figures.list_distinct_values("sources", "split")
        filter_descriptions = describe_toxicity_actions(self.corpus_figures)
        if filter_descriptions:
            errors = summarize_filter_errors(self.corpus_figures, REMOVAL_RATES_TITLE)
            filter_descriptions[-1] = [*filter_descriptions[-1], " ", *errors]
        return [
            Paragraph(["The corpus contains ", document_count, " with ", corpus_size, "."]),
            *build_growth_callout(self.corpus_figures),
            *build_group_removal_answer(self.corpus_figures),
            build_canary_callout(self.corpus_figures),
            DefinitionList(
                [
                    (
                        "Redistribution",
                        describe_redistribution(
                            self.corpus_figures,
                            self.config.redistribution,
                            self.config.redistribution_reason,
                        ),
                    ),
                    ("Licences", describe_licences(self.corpus_figures, self.config.licence)),
                    (
                        "Contents",
                        [
                            "See “",
                            Link("Composition", "composition.html"),
                            "” for sources, languages, licences and lengths. Split sizes: ",
                            *self.format_split_counts(splits),
                        ],
                    ),
                    *(("Toxicity filter", description) for description in filter_descriptions),
                    ("Not measured", [describe_unmeasured_properties(self.corpus_figures)]),
                    ("Contact", format_user_statement(self.config.contact)),
                ]
            ),
        ]

    def format_split_counts(self, splits: Sequence[str]) -> InlineContent:
        """Return the number of documents of each split."""
        content: list[InlineElement] = []
        for split in splits:
            figure = self.corpus_figures.add_sum_figure(
                "sources", "documents", "documents", f"number of documents, {split}", split=split
            )
            content += [", " if content else "", f"{split} ", figure]
        return content or ["none"]

    def build_motivation_section(self) -> Section:
        entries = [
            (
                "For what purpose was the corpus created?",
                format_user_statement(self.config.motivation),
            ),
            ("Who created the corpus?", format_user_statement(self.config.creators)),
            ("Who funded the corpus?", format_user_statement(self.config.funding)),
        ]
        return Section("Motivation", [DefinitionList(entries)])

    def build_collection_section(self) -> Section:
        """Build the section on collection, with records and documents in quarantine."""
        section = Section(
            "Collection process",
            [
                DefinitionList(
                    [
                        (
                            "How and when were the texts collected?",
                            format_user_statement(self.config.collection),
                        ),
                        (
                            (
                                "Do the authors of the texts know about the corpus, and have they "
                                "consented to it?"
                            ),
                            format_user_statement(self.config.consent),
                        ),
                    ]
                )
            ],
        )
        errors, note = self.corpus_figures.select_heaviest_values_or_all_identities(
            "errors", "error", "records"
        )
        quarantine_rows: list[list[InlineElement]] = [
            [
                self.redactor.redact_by_kind(error, "project text"),
                self.corpus_figures.add_sum_figure(
                    "errors", "records", "records", "number of records in quarantine", error=error
                ),
                self.corpus_figures.add_sum_figure(
                    "errors", "raw_bytes", "bytes", "number of bytes in quarantine", error=error
                ),
            ]
            for error in errors
        ]
        if quarantine_rows:
            columns = ["reason the record could not be read", "records", "raw bytes"]
            section.add_blocks(
                DataTable("Quarantine", columns, quarantine_rows, frozenset({1, 2}), note)
            )
        ledger_reasons = (
            self.corpus_figures.profile["ledger_summary"]
            .read(["stage", "action", "rows"])
            .to_pylist()
        )
        later_quarantines = [
            row
            for row in ledger_reasons
            if row["action"] == "quarantined" and row["stage"] != "ingest"
        ]
        if not quarantine_rows:
            sentence_end = "." if later_quarantines else "; the quarantine is empty."
            section.add_blocks(Paragraph([f"Every record could be read{sentence_end}"]))
        if later_quarantines:
            stage_names = ", ".join(
                dict.fromkeys(name_corpus_stage(row["stage"]) for row in later_quarantines)
            )
            quarantined_rows = sum(row["rows"] for row in later_quarantines)
            message = (
                f"Later stages also quarantined documents ({quarantined_rows:,} ledger rows, "
                f"written by {stage_names})."
            )
            section.add_blocks(Paragraph([message]))
        unread_file_count = sum(
            row["unread_files"] for row in read_source_declarations(self.corpus_figures)
        )
        if unread_file_count:
            files = format_count(unread_file_count, "file")
            verb = "was" if unread_file_count == 1 else "were"
            section.add_blocks(Paragraph([f"{files} in the source folders {verb} not read."]))
        return section

    def build_uses_section(self) -> Section:
        """Build the section on uses, with warnings about planted documents and personal data."""
        entries = [
            (
                "What should the corpus be used for?",
                format_user_statement(self.config.intended_uses),
            ),
            (
                "What should the corpus not be used for?",
                format_user_statement(self.config.uses_to_avoid),
            ),
        ]
        canary_warning = (
            "Until the planted documents are removed, the corpus is unsuitable for other uses."
        )
        derived_statements = [[canary_warning]] if has_canaries(self.corpus_figures) else []
        derived_statements.append([describe_personal_data_treatment(self.corpus_figures)])
        return Section("Uses", [DefinitionList(entries), BulletList(derived_statements)])

    def build_distribution_section(self) -> Section:
        entries = [
            (
                "To whom is the corpus distributed, and how?",
                format_user_statement(self.config.distribution),
            ),
            ("Under which licences?", describe_licences(self.corpus_figures, self.config.licence)),
        ]
        licence_note = (
            "The “licence” metadata field contains a document's licence. If the field is missing, "
            "the licence that the config specifies for the source applies. Hallmark does not "
            "search the text for licences."
        )
        return Section("Distribution", [DefinitionList(entries), Paragraph([licence_note])])

    def build_maintenance_section(self) -> Section:
        entries: list[DefinitionEntry] = [
            ("Who maintains the corpus?", format_user_statement(self.config.maintenance)),
            ("Contact", format_user_statement(self.config.contact)),
            (
                "Which data does this card describe?",
                [
                    "The profile with content digest ",
                    Code(self.corpus_figures.profile.content_digest),
                ],
            ),
        ]
        return Section("Maintenance", [DefinitionList(entries)])

    def build_answers(self) -> list[Answer]:
        """Answer all questions; the figures of the other sections must be in the book."""
        return build_datasheet_answers(
            self.corpus_figures, self.config.model_dump(), self.config.answers
        )

    def build_document(self) -> Document:
        """Build the datasheet without the answers to the questions of its form."""
        return Document(
            self.config.title or "Untitled corpus",
            "Datasheet",
            self.build_lead(),
            [
                build_group_removal_section(self.corpus_figures),
                self.build_motivation_section(),
                replace(
                    build_composition_section(self.corpus_figures, self.config.licence),
                    page="composition",
                    answer=[
                        "Description of the documents: sources, languages, licences, lengths, "
                        "personal data, toxicity, and mentions of groups of people."
                    ],
                ),
                self.build_collection_section(),
                replace(
                    build_preprocessing_section(self.corpus_figures),
                    page="preprocessing",
                    answer=["Number of documents removed or changed by each stage and rule."],
                ),
                *(
                    replace(
                        section,
                        page="recovery",
                        answer=[
                            "How accurately the stages recovered effects that were known in "
                            "advance."
                        ],
                    )
                    for section in build_curation_evaluation_sections(self.corpus_figures)
                ),
                self.build_uses_section(),
                self.build_distribution_section(),
                self.build_maintenance_section(),
            ],
        )


def label_datasheet_inputs(inputs: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return the inputs that have rows for figures, by the label that figures name."""
    return {**inputs["corpus_artifacts"], PROFILE: inputs["profile"]}


def build_datasheet_redactor(inputs: Mapping[str, Any], config: DatasheetConfig) -> Redactor:
    return build_corpus_redactor(inputs["corpus_artifacts"], config.redaction_threshold)


def compose_datasheet(
    inputs: Mapping[str, Any], config: DatasheetConfig, redactor: Redactor
) -> CardContent:
    """Compose the card; ``inputs`` are those of the stage, by name."""
    corpus_artifacts = inputs["corpus_artifacts"]
    book = FigureBook(label_datasheet_inputs(inputs))
    builder = DatasheetBuilder(
        CorpusFigures(book, corpus_artifacts, config.max_table_rows, redactor), redactor, config
    )
    document = builder.build_document()
    answers = builder.build_answers()
    document.sections = [*document.sections, build_form_section("datasheet", answers)]
    return CardContent(
        "datasheet",
        document,
        book,
        corpus_artifacts,
        redactor,
        answers=[answer.to_row() for answer in answers],
    )


@stage(
    name="datasheet",
    tables={**CARD_TABLE_SCHEMAS, "answers": ANSWERS},
    extra_code=(QUESTION_FILES["datasheet"],),
    libraries=REDACTION_LIBRARIES,
    reads={"corpus_artifacts": CARD_TABLES},
)
def build_datasheet(
    profile: Artifact,
    corpus_artifacts: dict[str, Artifact],
    config: DatasheetConfig,
    context: StageContext,
) -> None:
    """Build the datasheet as a stage.

    Args:
        profile: The output of ``profile``.
        corpus_artifacts: The artifacts of the corpus stages by label, in the order they ran.
        config: The settings.
        context: The context of the stage.
    """
    inputs = {"profile": profile, "corpus_artifacts": corpus_artifacts}
    redactor = build_datasheet_redactor(inputs, config)
    write_card_tables(compose_datasheet(inputs, config, redactor), context)
