"""Report the composition of a corpus on the datasheet.

The subsections cover additions, sources, lengths, personal data, offensive text, mentions of people
and planted documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.compute as pc

from hallmark.reports.page.document import (
    Block,
    Callout,
    Code,
    DataTable,
    InlineContent,
    InlineElement,
    Paragraph,
    Section,
    format_user_statement,
)
from hallmark.reports.page.figures import Figure
from hallmark.reports.sections.corpus_breakdown import (
    PLANTED_SOURCE_PREFIX,
    build_breakdown_section,
    build_occupations_section,
    describe_planted_mentions,
)
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.reports.sections.group_sentiment import build_group_sentiment_section
from hallmark.reports.sections.metadata import build_metadata_section, describe_document_licences
from hallmark.reports.sections.personal_data import build_personal_data_section
from hallmark.tasks.contract import Row, format_count

#: How many sources without a stated licence a sentence names.
MAX_NAMED_SOURCES = 5


def build_canary_callout(corpus: CorpusFigures) -> Callout:
    """Build the note on documents that were planted to measure memorisation."""
    if not has_canaries(corpus):
        return Callout("note", ["Nothing was planted in this corpus."])
    document_count = corpus.add_sum_figure(
        "canaries", "documents", "documents", "number of planted documents"
    )
    is_grown = len(list_plant_canaries_labels(corpus)) > 1
    withheld = None if is_grown else add_withheld_documents_figure(corpus)
    withheld_clause: list[InlineElement] = []
    if withheld is not None:
        verb = "was" if withheld.value == 1 else "were"
        withheld_clause = ["; ", withheld, f" {verb} withheld for planting"]
    return Callout(
        "note",
        [
            document_count,
            ", synthetic or repeated, were deliberately planted to measure memorisation",
            *withheld_clause,
            ". Remove planted documents before reusing the corpus; their sources begin with ",
            Code(PLANTED_SOURCE_PREFIX),
            ".",
        ],
    )


def add_withheld_documents_figure(corpus: CorpusFigures) -> Figure | None:
    """Add the number of documents that the last addition withheld for planting; None if none."""
    rows = corpus.profile["ledger_summary"].read(["stage", "action", "rows"]).to_pylist()
    if not any(
        row["rows"]
        for row in rows
        if (row["stage"], row["action"]) == ("plant_canaries", "removed")
    ):
        return None
    return corpus.add_sum_figure(
        "ledger_summary",
        "rows",
        "documents",
        "number of documents withheld for planting",
        stage="plant_canaries",
        action="removed",
    )


def has_canaries(corpus: CorpusFigures) -> bool:
    """Return whether any document was planted; canaries with 0 copies do not count."""
    document_counts = corpus.profile["canaries"].read(["documents"])["documents"]
    return bool(pc.sum(document_counts).as_py())


def build_composition_section(corpus: CorpusFigures, stated_licence: str | None = None) -> Section:
    """Build the section on the composition.

    Args:
        corpus: The corpus and its profile.
        stated_licence: The licence that a person stated for the whole corpus.
    """
    declared_licences = [
        row["licence"] for row in _read_source_declarations(corpus) if row["licence"]
    ]
    return Section(
        "Composition",
        [Paragraph(["Each instance is one document, consisting of a text and its source."])],
        [
            *build_additions_section(corpus),
            build_sources_section(corpus),
            build_breakdown_section(corpus, stated_licence, declared_licences),
            build_metadata_section(corpus, has_declared_licences=bool(declared_licences)),
            build_lengths_section(corpus),
            build_personal_data_section(corpus),
            build_toxicity_section(corpus),
            build_identity_mentions_section(corpus),
            build_group_sentiment_section(corpus),
            build_occupations_section(corpus),
            build_canaries_section(corpus),
        ],
    )


def list_plant_canaries_labels(corpus: CorpusFigures) -> list[str]:
    """Return the label of ``plant_canaries`` for each addition, oldest first.

    A corpus that did not grow has one label.
    """
    return [
        label
        for label, artifact in corpus.stage_artifacts.items()
        if artifact.stage == "plant_canaries"
    ]


#: The figures that cover only the last addition of a corpus that grew.
LAST_ADDITION_SCOPE = (
    "removal rates by group, document counts per stage, removals by reason, quarantine, personal "
    "data, toxicity, published quality rules, near-duplicates, and recovery of known effects"
)


def build_growth_callout(corpus: CorpusFigures) -> list[Callout]:
    """Return a note on which figures cover all additions; nothing if the corpus did not grow."""
    addition_labels = list_plant_canaries_labels(corpus)
    if len(addition_labels) < 2:
        return []
    addition_count = len(addition_labels)
    return [
        Callout(
            "note",
            [
                f"This corpus was extended: it has {addition_count - 1} earlier "
                f"addition{'s' * (addition_count > 2)} and a last addition with ",
                add_kept_figure_of_addition(corpus, addition_count, addition_labels[-1], "rows"),
                ". Documents, sources, lengths and groups describe the whole corpus. These "
                f"sections describe only the last addition: {LAST_ADDITION_SCOPE}.",
            ],
        )
    ]


def add_kept_figure_of_addition(
    corpus: CorpusFigures, addition_number: int, stage_label: str, unit: str
) -> Figure:
    """Add the number of documents or bytes that an addition kept."""
    figure_id, unit_label = (
        f"addition-{addition_number}-{unit}",
        {"rows": "documents", "bytes": "bytes"}[unit],
    )
    return corpus.book.figures.get(figure_id) or corpus.book.add_computed_figure(
        figure_id,
        f"number of {unit_label} in corpus addition {addition_number}",
        unit_label,
        (stage_label, "accounts"),
        {"unit": unit},
        value_column="kept",
    )


def build_additions_section(corpus: CorpusFigures) -> Iterator[Section]:
    """Yield the section on additions, with one row for each; nothing if the corpus did not grow."""
    addition_labels = list_plant_canaries_labels(corpus)
    if len(addition_labels) < 2:
        return
    rows: list[list[InlineElement]] = []
    for number, label in enumerate(addition_labels, 1):
        cells = [
            add_kept_figure_of_addition(corpus, number, label, unit) for unit in ("rows", "bytes")
        ]
        rows.append([str(number), Code(corpus.stage_artifacts[label].name), *cells])
    explanation = (
        "The corpus was extended: the last run added documents and left those from earlier runs "
        "unchanged. It compared the new documents with all earlier ones and removed exact copies "
        "and near-duplicates of earlier documents. These sections describe only the last "
        f"addition: {LAST_ADDITION_SCOPE}. All other sections describe the whole corpus."
    )
    columns = ["addition", "artifact", "documents", "bytes"]
    yield Section(
        "Additions",
        [
            Paragraph([explanation]),
            DataTable("Additions, oldest first", columns, rows, frozenset({2, 3})),
        ],
    )


def build_sources_section(corpus: CorpusFigures, **split_condition: str) -> Section:
    """Build the table of documents by source, over all splits or over the given ``split``."""
    source_names, note = corpus.select_heaviest_values_or_all_identities(
        "sources", "source", "bytes"
    )
    columns = [c for c in corpus.profile["sources"].columns.values() if c.type == "int64"]
    rows: list[list[InlineElement]] = []
    for name in source_names:
        cells = [
            corpus.add_sum_figure(
                "sources",
                column.name,
                column.unit,
                f"{column.name.replace('_', ' ')} of {name}",
                source=name,
                **split_condition,
            )
            for column in columns
        ]
        rows.append([name, *cells])
    title = "".join(
        ["Documents by source", *(f", {name} split" for name in split_condition.values())]
    )
    headings = ["source", *(column.name.replace("_", " ") for column in columns)]
    grid = DataTable(title, headings, rows, frozenset(range(1, len(headings))), note)
    blocks = [grid if rows else Paragraph(["The corpus is empty."])]
    return Section("Sources", [*blocks, *_build_declarations_table(corpus)])


def _read_source_declarations(corpus: CorpusFigures) -> list[Row]:
    """Return the distinct rows of the tables ``sources`` of ingest; additions may repeat them."""
    ingest_artifacts = [
        artifact
        for artifact in corpus.stage_artifacts.values()
        if artifact.stage == "ingest" and "sources" in artifact.tables
    ]
    declarations = [
        row for artifact in ingest_artifacts for row in artifact["sources"].read().to_pylist()
    ]
    return list({tuple(row.values()): row for row in declarations}.values())


def _build_declarations_table(corpus: CorpusFigures) -> Iterator[DataTable]:
    """Yield the table of licence, origin and dates of all sources, if the config states any."""
    rows: list[list[InlineElement]] = []
    is_any_stated = False
    for row in _read_source_declarations(corpus):
        collection_period = " to ".join(
            date for date in (row["collected_from"], row["collected_to"]) if date
        )
        declared_values = (row["licence"], row["origin"], collection_period)
        is_any_stated = is_any_stated or any(declared_values)
        rows.append(
            [row["source"], *(value or "not stated in the config" for value in declared_values)]
        )
    max_rows = corpus.max_rows
    note = (
        f"The table shows the first {max_rows} of {len(rows):,} sources; the ingest stage's "
        "sources table lists all of them."
    )
    if is_any_stated:
        columns = ["source", "licence", "origin", "collected"]
        yield DataTable(
            "Source declarations",
            columns,
            rows[:max_rows],
            frozenset(),
            note if len(rows) > max_rows else "",
        )


def describe_licences(corpus: CorpusFigures, stated_licence: str | None) -> InlineContent:
    """Return the licences of the documents, then the one of the whole corpus or of the sources.

    The statement for the whole corpus takes precedence over those of the sources.
    """
    document_licences = describe_document_licences(corpus)
    declared_licences = describe_declared_licences(
        corpus,
        stated_licence,
        "Licences according to the config: " if document_licences else "",
    )
    return [*document_licences, *declared_licences]


def describe_declared_licences(
    corpus: CorpusFigures, stated_licence: str | None, label: str
) -> InlineContent:
    """Return the licence of the whole corpus or those of the sources, and what is not stated.

    Args:
        corpus: The figures of the corpus.
        stated_licence: The licence that a person stated for the whole corpus.
        label: What precedes that licence.
    """
    sources_by_licence: dict[str, list[str]] = {}
    for row in _read_source_declarations(corpus):
        sources_by_licence.setdefault(row["licence"] or "", []).append(row["source"])
    unlicensed_sources = sources_by_licence.pop("", [])
    if not sources_by_licence:
        return [label, *format_user_statement(stated_licence)]
    licence_texts = [
        f"{licence} ({', '.join(source_names)})"
        for licence, source_names in sources_by_licence.items()
    ]
    content: list[InlineElement] = [f"Declared by the sources: {'; '.join(licence_texts)}."]
    if stated_licence and stated_licence.strip():
        content = [label, *format_user_statement(stated_licence)]
    if unlicensed_sources:
        separator = " " if str(content[-1]).endswith((".", "!", "?")) else ". "
        content.append(f"{separator}{_describe_sources_without_licence(unlicensed_sources)}")
    return content


def _describe_sources_without_licence(sources: Sequence[str]) -> str:
    """Name the sources whose licence the config does not state; the table of sources has all."""
    names = ", ".join(sources[:MAX_NAMED_SOURCES])
    other_count = len(sources) - MAX_NAMED_SOURCES
    others = f" and {format_count(other_count, 'other source')}" if other_count > 0 else ""
    return f"The config specifies no licence for {names}{others}."


def build_lengths_section(corpus: CorpusFigures) -> Section:
    caption, empty_message = "Bytes per document", "The corpus contains no documents."
    return build_quantiles_section(
        corpus, "Lengths", "lengths", "bytes", "bytes", caption, empty_message
    )


def build_quantiles_section(
    corpus: CorpusFigures,
    title: str,
    table: str,
    column: str,
    unit: str,
    caption: str,
    empty_message: str,
    **figure_fields: Any,
) -> Section:
    """Build the table of quantiles of a column over all sources.

    Args:
        corpus: The corpus and its profile.
        title: The title of the section.
        table: The table of the profile.
        column: The column with the values.
        unit: The unit of the values.
        caption: The caption of the table.
        empty_message: The text shown if the table has no quantile.
        figure_fields: Further fields of the figures.
    """
    quantile_rows = corpus.profile[table].read(["source", "quantile"])
    quantile_levels = quantile_rows.filter(pc.equal(quantile_rows["source"], ""))[
        "quantile"
    ].to_pylist()
    if not quantile_levels:
        return Section(title, [Paragraph([empty_message])])
    cells = [
        corpus.book.add_computed_figure(
            f"{table}-{q}",
            f"{caption.lower()}, quantile {q:g}",
            unit,
            (PROFILE, table),
            {"source": "", "quantile": q},
            aggregate="last",
            value_column=column,
            **figure_fields,
        )
        for q in quantile_levels
    ]
    rows: list[list[InlineElement]] = [
        [f"{_format_quantile_level(q)}", cell]
        for q, cell in zip(quantile_levels, cells, strict=True)
    ]
    return Section(title, [DataTable(caption, ["quantile", unit], rows, frozenset({1}))])


def build_toxicity_section(corpus: CorpusFigures) -> Section:
    """Build the section on toxicity scores before the filter, their coverage and the scorer."""
    scorer = format_toxicity_scorer_with_digest(corpus)
    section = build_quantiles_section(
        corpus,
        "Offensive text",
        "toxicity",
        "score",
        "score",
        "Document toxicity before filtering",
        "No document has a toxicity score.",
        scorer=scorer,
    )
    section.blocks[:0] = describe_toxicity_windows(corpus)
    if corpus.profile["toxicity_status"].row_count:
        section.add_blocks(
            build_toxicity_status_table(corpus),
            Paragraph(
                [
                    "The scorer reads only text in languages that it supports. If a document has "
                    "no score, its toxicity is unknown, neither high nor low. A rule removes "
                    "documents without a score only if it is configured to; the recorded reason "
                    "is then the rule's name followed by “unknown”. The scorer is "
                    f"{scorer or 'not known'}. A score is an estimate: scorers are known to rate "
                    "harmless text as toxic when it is written in certain dialects or mentions "
                    "minorities."
                ]
            ),
        )
    section.add_blocks(*describe_scorer_cascade(corpus))
    return section


def describe_toxicity_windows(corpus: CorpusFigures) -> list[Block]:
    """Return how the toxicity of a long document is computed; nothing if none was scored."""
    config = next(
        (
            artifact.manifest["parts"]["config"]
            for artifact in corpus.stage_artifacts.values()
            if artifact.stage == "score_toxicity"
        ),
        None,
    )
    if config is None:
        return []
    has_span_removal = "cut_toxic" in corpus.stage_artifacts
    return [
        Paragraph(
            [
                "A document's toxicity is the highest score among its windows of up to "
                f"{config['window_characters']:,} characters, not the mean score, so "
                "a single insult can give a long document a high score. The scored text is the "
                "text that the filter read"
                + (", before cut_toxic removed windows from it." if has_span_removal else ".")
            ]
        )
    ]


#: Description of each status of toxicity scoring.
TOXICITY_STATUS_LABELS = {
    "scored": "scored",
    "other language": "in languages that the scorer does not support",
    "undetermined language": "in an undetermined language and a script that the scorer does not "
    "support",
    "cleared": "judged harmless by the cheap scorer and therefore not scored",
    "empty": "without visible characters",
    "failed": "on which the scorer failed",
}


def build_toxicity_status_table(corpus: CorpusFigures) -> DataTable:
    """Build the table of documents by scoring status and by the rule that removed them."""
    status_rows = corpus.profile["toxicity_status"].read(["status", "reason"])
    status_reason_pairs = {(row["status"], row["reason"]) for row in status_rows.to_pylist()}
    rows: list[list[InlineElement]] = []
    for status, reason in sorted(
        status_reason_pairs, key=lambda pair: ([*TOXICITY_STATUS_LABELS].index(pair[0]), pair[1])
    ):
        conditions = {"status": status, "reason": reason}
        outcome = f"removed: {reason}" if reason else "kept"
        label = f"number of documents {TOXICITY_STATUS_LABELS[status]}, {outcome}"
        document_count = corpus.add_sum_figure(
            "toxicity_status", "documents", "documents", label, **conditions
        )
        rows.append([TOXICITY_STATUS_LABELS[status], outcome, document_count])
    columns = ["documents", "outcome", "number"]
    return DataTable("Documents with and without a toxicity score", columns, rows, frozenset({2}))


def describe_scorer_cascade(corpus: CorpusFigures) -> list[Paragraph]:
    """Return how many documents the cheap scorer cleared and may have missed.

    Without a cascade of scorers the list is empty.
    """
    stage_label = next(
        (
            history_label
            for history_label, artifact in corpus.stage_artifacts.items()
            if artifact.stage == "score_toxicity"
        ),
        "",
    )
    cascade_table = (
        corpus.stage_artifacts[stage_label].tables.get("cascade") if stage_label else None
    )
    if cascade_table is None or not cascade_table.row_count:
        return []
    row = cascade_table.read().to_pylist()[0]

    def add_cascade_figure(
        column: str, description: str, unit: str = "documents", **figure_fields: Any
    ) -> Figure:
        return corpus.book.add_computed_figure(
            f"cascade-{column}",
            description,
            unit,
            (stage_label, "cascade"),
            aggregate="last",
            value_column=column,
            **figure_fields,
        )

    method = "one-sided Clopper-Pearson bound for documents selected by a hash of their ids"
    return [
        Paragraph(
            [
                "Of the documents without a score, ",
                add_cascade_figure(
                    "cleared_documents", "number of documents judged harmless by the cheap scorer"
                ),
                f" were passed by {row['cheap_scorer']}, which scored them below "
                f"{row['clears_below']:g}. To check this, both scorers read ",
                add_cascade_figure(
                    "sampled_documents",
                    "number of documents sampled to measure the cascade's recall",
                ),
                ", of which ",
                add_cascade_figure(
                    "toxic_documents",
                    "number of sampled documents at or above the toxicity threshold",
                ),
                f" were toxic (scores of {row['toxicity_threshold']:g} or above); the cheap "
                f"scorer would have passed ",
                add_cascade_figure(
                    "missed_documents",
                    "number of sampled toxic documents that the cheap scorer would have passed",
                ),
                (
                    " of these. The cascade (the cheap scorer followed by the full scorer) "
                    "therefore finds at least "
                ),
                add_cascade_figure(
                    "recall_lower_bound",
                    "lower bound on the cascade's recall",
                    "share",
                    n=row["toxic_documents"],
                    method=method,
                ),
                f" of the toxic documents (estimate at {100 * row['confidence_level']:g} % "
                f"confidence; required: {100 * row['min_recall']:g} %).",
            ]
        )
    ]


def format_toxicity_scorer_with_digest(corpus: CorpusFigures) -> str | None:
    """Return name and digest of the toxicity scorer; None if none ran."""
    for artifact in corpus.stage_artifacts.values():
        if artifact.stage == "score_toxicity":
            external_digests = artifact.manifest["parts"]["external"]
            return f"{external_digests['scorer']} ({external_digests['digest'][:12]})"
    return None


def build_identity_mentions_section(corpus: CorpusFigures) -> Section:
    """Build the table of mentions of each group of people."""
    groups, note = corpus.select_heaviest_values_or_all_identities(
        "identities", "group_name", "mentions"
    )
    rows: list[list[InlineElement]] = [
        [
            group,
            corpus.add_sum_figure(
                "identities",
                "mentions",
                "mentions",
                f"number of mentions, {group}",
                group_name=group,
            ),
            corpus.book.add_computed_figure(
                f"identities-terms-{group}",
                f"number of terms found, {group}",
                "terms",
                (PROFILE, "identities"),
                {"group_name": group},
                aggregate="distinct",
                value_column="term",
            ),
        ]
        for group in groups
    ]
    section = Section("Mentions of people")
    if not rows:
        section.add_blocks(Paragraph(["The corpus contains none of the listed identity terms."]))
        return section
    columns = ["group", "mentions", "terms found"]
    section.add_blocks(
        DataTable("Identity terms in the text", columns, rows, frozenset({1, 2}), note),
        Paragraph(
            [
                "Mentions are counted by matching whole words from a short list of English words.",
                describe_planted_mentions(
                    corpus.profile["identities"].read(["source", "mentions"]).to_pylist()
                ),
            ]
        ),
    )
    return section


def build_canaries_section(corpus: CorpusFigures) -> Section:
    """Build the table of planted documents by kind and number of copies."""
    section = Section("Planted documents")
    table = corpus.profile["canaries"].read(["kind", "copies"])
    rows = []
    for row in table.to_pylist():
        conditions = {"kind": row["kind"], "copies": row["copies"]}
        label = f"{row['kind']} with {format_count(row['copies'], 'copy', 'copies')}"
        rows.append(
            [
                row["kind"],
                str(row["copies"]),
                corpus.add_sum_figure(
                    "canaries", "canaries", "canaries", f"number of canaries, {label}", **conditions
                ),
                corpus.add_sum_figure(
                    "canaries",
                    "documents",
                    "documents",
                    f"number of documents, {label}",
                    **conditions,
                ),
                corpus.add_sum_figure(
                    "canaries", "bytes", "bytes", f"number of bytes, {label}", **conditions
                ),
            ]
        )
    if rows:
        columns = ["kind", "copies of each", "texts", "documents", "bytes"]
        section.add_blocks(
            Paragraph(
                [
                    "The secrets, records and associations are invented; the passages were taken "
                    "from the corpus. The number of copies of each text was assigned at random. "
                    "Texts with 0 copies were never planted and serve as controls. However, an "
                    "excerpt of such a passage can occur in another document, where the model can "
                    "read it during training. An association is a sentence that attributes an "
                    "invented trait to an invented group; the planted share determines how often "
                    "sentences about "
                    "the group state this trait."
                ]
            ),
            DataTable("Planted texts", columns, rows, frozenset({1, 2, 3, 4})),
        )
    else:
        section.add_blocks(Paragraph(["None."]))
    return section


def _format_quantile_level(level: float) -> str:
    return {0.0: "smallest", 0.5: "median", 1.0: "largest"}.get(level, f"{100 * level:g} %")
