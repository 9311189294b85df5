"""Answer the questions of the datasheet from the figures of the corpus and from the config.

An answer cites the figures that support it. Where the corpus stages measured nothing, the question
is left to a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hallmark.reports.page.answers import Answer, MeasuredAnswer, combine_answers
from hallmark.reports.page.document import InlineContent, InlineElement, ShortFigure
from hallmark.reports.page.figures import Figure
from hallmark.reports.sections.composition import (
    add_withheld_documents_figure,
    has_canaries,
    list_plant_canaries_labels,
)
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.reports.sections.group_removals import (
    describe_differences,
    read_group_removals,
)
from hallmark.reports.sections.metadata import describe_document_licences
from hallmark.reports.sections.personal_data import (
    describe_personal_data_treatment,
    describe_searched_documents,
    has_personal_data_search,
)
from hallmark.reports.sections.preprocessing import describe_toxicity_actions

#: The setting of the datasheet that answers a question, by question id.
SETTING_BY_QUESTION = {
    "motivation_purpose": "motivation",
    "motivation_creators": "creators",
    "motivation_funding": "funding",
    "collection_acquisition": "collection",
    "collection_directness": "collection",
    "collection_notification": "consent",
    "collection_consent": "consent",
    "uses_other_tasks": "intended_uses",
    "uses_to_avoid": "uses_to_avoid",
    "distribution_third_parties": "distribution",
    "distribution_method": "distribution",
    "distribution_date": "distribution",
    "distribution_licence": "licence",
    "distribution_third_party_restrictions": "licence",
    "maintenance_maintainer": "maintenance",
    "maintenance_contact": "contact",
    "maintenance_updates": "maintenance",
}

#: Questions whose figures cover only the last addition of a corpus that grew.
LAST_ADDITION_QUESTIONS = (
    "composition_sample",
    "composition_labels",
    "composition_missing_information",
    "composition_relationships",
    "composition_errors",
    "composition_confidential",
    "composition_offensive",
    "composition_individuals",
    "composition_sensitive",
    "collection_mechanisms",
    "collection_sampling",
    "preprocessing_steps",
    "preprocessing_raw_data",
    "uses_impact",
)

#: The stage that reads the sources, and the one that plants documents and withholds others.
INGEST, PLANTING = "ingest", "plant_canaries"

#: Largest number of sources that an answer names.
MAX_SOURCES = 5


def build_datasheet_answers(
    corpus: CorpusFigures, settings: Mapping[str, Any], human_answers: Mapping[str, str]
) -> list[Answer]:
    """Answer every question of the datasheet.

    Args:
        corpus: The corpus and its profile; figures that the card has are used again.
        settings: The settings of the datasheet by name.
        human_answers: The answers of a person, by question id.
    """
    declared = {question: settings[name] for question, name in SETTING_BY_QUESTION.items()}
    declared["collection_timeframe"] = _describe_collection_dates(corpus)
    return combine_answers(
        "datasheet", DatasheetMeasurements(corpus).answer_questions(), declared, human_answers
    )


def read_source_declarations(corpus: CorpusFigures) -> list[dict[str, Any]]:
    """Read the rows about the sources from the stages that read them."""
    return [
        row
        for artifact in corpus.stage_artifacts.values()
        if artifact.stage == "ingest"
        for row in artifact["sources"].read().to_pylist()
    ]


def _describe_collection_dates(corpus: CorpusFigures) -> str:
    """Return the dates between which sources were collected, as the config states them."""
    periods = {
        row["source"]: " to ".join(
            filter(None, (row.get("collected_from"), row.get("collected_to")))
        )
        for row in read_source_declarations(corpus)
    }
    return "; ".join(f"{source}: {period}" for source, period in periods.items() if period)


def add_removed_documents_figure(corpus: CorpusFigures, **conditions: Any) -> Figure:
    """Add the number of documents that curation removed, without those withheld for planting."""
    stages = corpus.list_distinct_values("stage_accounts", "stage")
    values = [str(value) for value in conditions.values()]
    return corpus.book.add_computed_figure(
        "-".join(["curation-removed", *values]),
        ", ".join(["number of documents that curation removed", *values]),
        "documents",
        (PROFILE, "ledger_summary"),
        {"stage": [stage for stage in stages if stage != PLANTING], "action": "removed"}
        | conditions,
        value_column="rows",
    )


class DatasheetMeasurements:
    """Answers questions from figures of a corpus, and adds figures that the card lacks.

    Args:
        corpus: The corpus and its profile.
    """

    def __init__(self, corpus: CorpusFigures) -> None:
        self.corpus = corpus
        self.documents = self._sum(
            "sources", "documents", "documents", "number of documents in the corpus"
        )

    def answer_questions(self) -> dict[str, MeasuredAnswer]:
        """Return what was measured, by question id."""
        contents: dict[str, InlineContent] = {
            "composition_instances": self.describe_instances(),
            "composition_count": self.describe_count(),
            "composition_sample": self.describe_selection(),
            "composition_data": self.describe_data(),
            "composition_labels": self.describe_labels(),
            "composition_missing_information": self.describe_missing_information(),
            "composition_relationships": self.describe_relationships(),
            "composition_splits": self.describe_splits(),
            "composition_errors": self.describe_errors(),
            "composition_external_resources": self.describe_external_resources(),
            "composition_confidential": self.describe_confidential_data(),
            "composition_offensive": self.describe_offensive_text(),
            "composition_subpopulations": self.describe_subpopulations(),
            "composition_individuals": self.describe_individuals(),
            "composition_sensitive": self.describe_sensitive_data(),
            "collection_mechanisms": self.describe_mechanisms(),
            "collection_sampling": self.describe_sampling(),
            "preprocessing_steps": self.describe_steps(),
            "preprocessing_raw_data": self.describe_raw_data(),
            "preprocessing_software": self.describe_software(),
            "uses_impact": self.describe_impact(),
            "distribution_licence": describe_document_licences(self.corpus),
            "distribution_third_party_restrictions": describe_document_licences(self.corpus),
        }
        is_grown = len(list_plant_canaries_labels(self.corpus)) > 1
        return {
            name: MeasuredAnswer(
                ["The last addition to the corpus: ", *content]
                if content and is_grown and name in LAST_ADDITION_QUESTIONS
                else content
            )
            for name, content in contents.items()
        }

    # Figures -------------------------------------------------------------------------------------

    def _sum(self, table: str, column: str, unit: str, label: str, **conditions: Any) -> Figure:
        """Return the sum of a column of the profile over the rows that meet conditions."""
        return self.corpus.add_sum_figure(table, column, unit, label, **conditions)

    def _read_quantile(self, table: str, column: str, label: str, quantile: float) -> Figure | None:
        """Return a quantile over all sources; None if the table does not have it."""
        conditions = {"source": "", "quantile": quantile}
        if conditions not in self.corpus.profile[table].read([*conditions]).to_pylist():
            return None
        return self.corpus.book.add_computed_figure(
            f"{table}-{quantile}",
            f"{label}, quantile {quantile:g}",
            column,
            (PROFILE, table),
            conditions,
            aggregate="last",
            value_column=column,
        )

    def _count_documents_of_stage(self, stage: str, term: str) -> Figure:
        """Return a term of the account of a stage, in documents."""
        return self.corpus.book.add_computed_figure(
            f"flow-{stage}-rows-{term}",
            f"{stage}: {term.replace('_', ' ')}",
            "documents",
            (PROFILE, "stage_accounts"),
            {"stage": stage, "unit": "rows"},
            value_column=term,
        )

    def _list_stages(self) -> list[str]:
        return self.corpus.list_distinct_values("stage_accounts", "stage")

    def _list_values_by_count(self, table: str, column: str, count_column: str) -> list[str]:
        """Return the values of a column of the profile, the most frequent first."""
        totals: dict[str, int] = {}
        for row in self.corpus.profile[table].read([column, count_column]).to_pylist():
            totals[row[column]] = totals.get(row[column], 0) + (row[count_column] or 0)
        return sorted(totals, key=lambda value: (-totals[value], value))

    # Composition ---------------------------------------------------------------------------------

    def describe_instances(self) -> InlineContent:
        """Return that instances are documents, and how many each source has."""
        sources = self._list_values_by_count("sources", "source", "documents")
        shown_sources = sources[:MAX_SOURCES]
        counts = [
            (
                name,
                self._sum(
                    "sources", "documents", "documents", f"documents from {name}", source=name
                ),
            )
            for name in shown_sources
        ]
        more = len(sources) - len(shown_sources)
        return [
            "Each instance is a document, consisting of one text and the name of its source. "
            "Total: ",
            ShortFigure(self.documents),
            ". By source: " if counts else ".",
            *_list_counts(counts),
            f"; and {more} smaller sources." if more else "." if counts else "",
        ]

    def describe_count(self) -> InlineContent:
        size = self._sum("sources", "bytes", "bytes of text", "size of the corpus")
        return [self.documents, " with ", size, "."]

    def describe_selection(self) -> InlineContent:
        """Return how much of what was read the corpus contains."""
        if INGEST not in self._list_stages():
            return []
        return [
            "It is a selection. Hallmark read ",
            ShortFigure(self._count_documents_of_stage(INGEST, "input")),
            " records and removed ",
            ShortFigure(add_removed_documents_figure(self.corpus)),
            " of them, either by rules or as copies. ",
            *self._describe_planting(),
            "Whether the sources are samples of larger "
            "sets, and whether they are representative, was not measured.",
        ]

    def _describe_planting(self) -> InlineContent:
        """Return how many documents planting added and withheld; empty if it added none."""
        accounts = self.corpus.profile["stage_accounts"].read(["stage", "added"]).to_pylist()
        if not any(row["added"] for row in accounts if row["stage"] == PLANTING):
            return []
        planted = ShortFigure(self._count_documents_of_stage(PLANTING, "added"))
        withheld = add_withheld_documents_figure(self.corpus)
        if withheld is None:
            return ["It added ", planted, " planted documents. "]
        return [
            "It withheld ",
            withheld,
            " for planting and added ",
            planted,
            " planted documents. ",
        ]

    def describe_data(self) -> InlineContent:
        """Return that an instance is raw text, its median length, and its metadata."""
        content: list[InlineElement] = [
            "Each of the ",
            self.documents,
            " consists of raw Unicode text and the name of its source.",
        ]
        if median := self._read_quantile("lengths", "bytes", "bytes per document", 0.5):
            content += [" The median length is ", median, "."]
        fields = self._list_values_by_count("metadata_fields", "field", "documents")[:MAX_SOURCES]
        counts = [
            (
                name,
                self._sum(
                    "metadata_fields",
                    "documents",
                    "documents",
                    f"number of documents with {name}",
                    field=name,
                ),
            )
            for name in fields
        ]
        if counts:
            content += [" Metadata fields: ", *_list_counts(counts), "."]
        return content

    def describe_labels(self) -> InlineContent:
        """Return that documents have no labels, and how many have a toxicity score."""
        content: list[InlineElement] = [
            "No. None of the ",
            self.documents,
            " has a task label or target.",
        ]
        if self.corpus.profile["toxicity_status"].row_count:
            scored = self._sum(
                "toxicity_status",
                "documents",
                "documents",
                "number of documents scored, kept",
                status="scored",
                reason="",
            )
            content += [
                " Curation adds computed values; for example, ",
                ShortFigure(scored),
                " kept documents have a toxicity score. These values are estimates.",
            ]
        return content

    def describe_missing_information(self) -> InlineContent:
        """Return how many spans were masked or cut."""
        masked, cut = (
            self._sum(
                "ledger_summary",
                "rows",
                "spans",
                f"number of spans that were {label}",
                action=action,
            )
            for action, label in (("replaced", "replaced"), ("removed_span", "cut"))
        )
        return [
            "Curation replaced ",
            masked,
            " (such as personal data) with placeholders and cut ",
            cut,
            " (such as repeated passages or file headers). The stage ledgers list each span and "
            "the reason.",
        ]

    def _has_search_for_near_copies(self) -> bool:
        return any("pairs" in found.tables for found in self.corpus.stage_artifacts.values())

    def describe_relationships(self) -> InlineContent:
        """Return how many pairs of similar documents are recorded; nothing without a search."""
        if not self._has_search_for_near_copies():
            return []
        pairs = self._sum("duplicates", "pairs", "pairs", "number of pairs of similar documents")
        return [
            "Pairs of similar documents are recorded with their similarity: ",
            pairs,
            ". No other relationship is recorded.",
        ]

    def describe_splits(self) -> InlineContent:
        splits = self.corpus.list_distinct_values("sources", "split")
        counts = [
            (
                name,
                self._sum(
                    "sources", "documents", "documents", f"number of documents, {name}", split=name
                ),
            )
            for name in splits
        ]
        if not counts:
            return []
        return [
            "Yes: ",
            *_list_counts(counts),
            ". Similar documents are in the same split. The model is trained on the train split "
            "and checked on the validation split during training. Holdout documents are never "
            "trained on; audits of memorisation use them for comparison.",
        ]

    def describe_errors(self) -> InlineContent:
        """Return what could not be read, and the copies that were removed."""
        unreadable = self._sum("errors", "records", "records", "number of records in quarantine")
        exact = add_removed_documents_figure(self.corpus, reason="exact duplicate")
        content: list[InlineElement] = [
            "Records that could not be read: ",
            ShortFigure(unreadable),
            ". Redundancies: curation removed ",
            ShortFigure(exact),
            " exact copies of documents",
        ]
        if self._has_search_for_near_copies():
            near = add_removed_documents_figure(self.corpus, reason="near duplicate")
            pairs = self._sum(
                "duplicates", "pairs", "pairs", "number of pairs of similar documents"
            )
            content += [
                " and ",
                ShortFigure(near),
                " near-duplicates; of the ",
                pairs,
                " of similar documents that it found, curation kept those below the threshold",
            ]
        else:
            content.append("; the corpus was not searched for near-duplicates")
        return [
            *content,
            ". Noise: filters and scorers make errors; this card reports their error rates where "
            "they are known.",
        ]

    def describe_external_resources(self) -> InlineContent:
        return [
            "The corpus is self-contained: the store holds the text of all ",
            self.documents,
            ". Links in the text are not followed.",
        ]

    def describe_confidential_data(self) -> InlineContent:
        """Return how many passwords and keys were found; nothing without a search."""
        if not has_personal_data_search(self.corpus):
            return []
        credentials = self._sum(
            "personal_data", "spans", "spans", "number of passwords and keys found", type="SECRET"
        )
        return [
            "Detectors searched the ",
            *describe_searched_documents(self.corpus),
            ". They found ",
            credentials,
            " with passwords or keys. Hallmark does not recognise other confidential text.",
        ]

    def describe_offensive_text(self) -> InlineContent:
        """Return the highest toxicity score and what rules did; nothing without scores."""
        label = "document toxicity before filtering"
        highest, median = (
            self._read_quantile("toxicity", "score", label, quantile) for quantile in (1.0, 0.5)
        )
        if highest is None or median is None:
            return []
        actions = [
            element
            for action in describe_toxicity_actions(self.corpus)
            for element in [" ", *action]
        ]
        return [
            "Document toxicity scores before filtering: highest ",
            ShortFigure(highest),
            ", median ",
            ShortFigure(median),
            "." if actions else ". No rule uses the score.",
            *actions,
            " Scorers make errors, so offensive text may remain.",
        ]

    def describe_subpopulations(self) -> InlineContent:
        """Return how often each group of people is mentioned; all groups are named."""
        groups = self._list_values_by_count("identities", "group_name", "mentions")
        counts = [
            (
                name,
                self._sum(
                    "identities",
                    "mentions",
                    "mentions",
                    f"number of mentions, {name}",
                    group_name=name,
                ),
            )
            for name in groups
        ]
        if not counts:
            return []
        return [
            "Documents are not assigned to groups of people. Mentions of groups are found with a "
            "list of English words: ",
            *_list_counts(counts),
            ". A mention does not indicate who wrote the text.",
        ]

    def describe_individuals(self) -> InlineContent:
        """Return how much personal data was found and how it was treated."""
        if not has_personal_data_search(self.corpus):
            return []
        spans = self._sum("personal_data", "spans", "spans", "number of personal-data spans found")
        return [
            "Possibly. Detectors searched the ",
            *describe_searched_documents(self.corpus),
            ". They found ",
            spans,
            f" of personal data. {describe_personal_data_treatment(self.corpus)} Names and "
            "addresses are not detected.",
        ]

    def describe_sensitive_data(self) -> InlineContent:
        """Return the types of personal data that were found, and mentions of groups."""
        if not has_personal_data_search(self.corpus):
            return []
        types = self._list_values_by_count("personal_data", "type", "spans")
        counts = [
            (
                name,
                self._sum(
                    "personal_data", "spans", "spans", f"number of spans of {name}", type=name
                ),
            )
            for name in types
        ]
        return [
            "Detectors searched the ",
            *describe_searched_documents(self.corpus),
            ". They found: ",
            *(_list_counts(counts) or ["no personal data"]),
            ". ",
            *self._describe_mentioned_groups(),
            " Health conditions, political opinions and criminal history were not searched for.",
        ]

    def _describe_mentioned_groups(self) -> InlineContent:
        """Name the groups of people that texts mention, the most frequent first."""
        groups = self._list_values_by_count("identities", "group_name", "mentions")
        if not groups:
            return ["No document mentions a group of people from the word list."]
        mentions = self._sum(
            "identities", "mentions", "mentions", "number of mentions of groups of people"
        )
        return [
            f"Documents mention these groups of people: {'; '.join(groups)} (",
            mentions,
            ").",
        ]

    # Collection and preprocessing ----------------------------------------------------------------

    def describe_mechanisms(self) -> InlineContent:
        """Return the kinds of sources, and how many records the readers read."""
        kinds = dict.fromkeys(row["kind"] for row in read_source_declarations(self.corpus))
        if INGEST not in self._list_stages() or not kinds:
            return []
        return [
            "Software collected the data. Hallmark's readers (for these source types: "
            f"{', '.join(kinds)}) read ",
            ShortFigure(self._count_documents_of_stage(INGEST, "input")),
            " records; ",
            ShortFigure(self._count_documents_of_stage(INGEST, "quarantined")),
            " of them could not be read. Each stage verifies that its counts add up.",
        ]

    def _list_removals_by_stage(self) -> list[InlineElement]:
        """Return the number of documents that each stage removed; stages without are omitted.

        Documents withheld for planting are not treated as removed, here as in the removal rates.
        """
        counts = [
            (stage, self._count_documents_of_stage(stage, "removed_rows"))
            for stage in self._list_stages()
            if stage != PLANTING
        ]
        return _list_counts([(stage, figure) for stage, figure in counts if figure.value])

    def describe_sampling(self) -> InlineContent:
        """Return that documents are not drawn at random, and how many each stage removed."""
        if not (stages := self._list_stages()):
            return []
        content: list[InlineElement] = [
            "Documents were selected by rules and by a search for copies, not by random sampling. "
            "Documents removed, by stage: ",
            *(self._list_removals_by_stage() or ["none"]),
            ".",
        ]
        if PLANTING in stages:
            withheld = self._count_documents_of_stage(PLANTING, "removed_rows")
            if withheld.value:
                content += [" Withheld at random for planting: ", withheld, "."]
        return content

    def describe_steps(self) -> InlineContent:
        """Return which stages removed documents, and how many spans were changed."""
        if not self._list_stages():
            return []
        return [
            "Yes. Documents removed, by stage: ",
            *(self._list_removals_by_stage() or ["none"]),
            ". ",
            *self.describe_missing_information(),
        ]

    def describe_raw_data(self) -> InlineContent:
        if INGEST not in self._list_stages():
            return []
        return [
            "Yes. The store keeps the text of ",
            self._count_documents_of_stage(INGEST, "kept"),
            " as it was read, in the ingest stage's documents table.",
        ]

    def describe_software(self) -> InlineContent:
        stage_count = self.corpus.book.add_computed_figure(
            "stage-count",
            "number of stages that change the corpus",
            "stages",
            (PROFILE, "stage_accounts"),
            aggregate="distinct",
            value_column="stage",
        )
        if not stage_count.value:
            return []
        return [
            "Yes, Hallmark. Each of the ",
            stage_count,
            " that change the corpus records its code digest, its settings and its library "
            "versions.",
        ]

    # Uses ----------------------------------------------------------------------------------------

    def describe_impact(self) -> InlineContent:
        """Return what planted documents, personal data and removals mean for users."""
        content: list[InlineElement] = []
        if has_canaries(self.corpus):
            planted = self._sum("canaries", "documents", "documents", "number of planted documents")
            content += [planted, " were planted; remove them before you reuse the corpus. "]
        if rows := read_group_removals(self.corpus):
            content += [
                " ",
                *describe_differences(self.corpus, rows),
                " ",
            ]
        if not content:
            return []
        return [*content, describe_personal_data_treatment(self.corpus)]


def _list_counts(counts: Sequence[tuple[str, Figure]]) -> list[InlineElement]:
    """Return names with their numbers, separated by semicolons, since names contain commas."""
    content: list[InlineElement] = []
    for number, (name, figure) in enumerate(counts):
        content += [f"{'; ' if number else ''}{name} ", ShortFigure(figure)]
    return content
