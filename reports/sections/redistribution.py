"""Say on the datasheet whether the corpus may be redistributed, and what licences are known.

The decision is a person's: the config states it. The share of documents with a known licence is
measured, and stands next to the decision.
"""

from __future__ import annotations

from hallmark.reports.page.document import (
    InlineContent,
    InlineElement,
    ShortFigure,
    UserStatement,
)
from hallmark.reports.page.figures import format_number
from hallmark.reports.sections.composition import has_canaries
from hallmark.reports.sections.corpus_breakdown import UNKNOWN_VALUE
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.tasks.contract import format_count
from hallmark.tasks.corpus.reading.metadata import LICENCE_FIELD

#: What the answer starts with, by the stated decision.
DECISION_SENTENCES = {
    "yes": "Yes.",
    "no": "No.",
    None: "No decision is specified. See the licences below.",
}


def describe_redistribution(
    corpus: CorpusFigures, decision: str | None, reason: str | None
) -> InlineContent:
    """Return whether the corpus may be redistributed, why, and how many licences are known.

    Args:
        corpus: The corpus and its profile.
        decision: "yes" or "no" as a person stated it; None without a statement.
        reason: The reason that the person stated.
    """
    content: list[InlineElement] = [DECISION_SENTENCES[decision], " "]
    if reason and reason.strip():
        content += [UserStatement(reason.strip()), " "]
    elif decision is not None:
        content.append("The config specifies no reason. ")
    return [*content, *describe_known_licences(corpus)]


def describe_known_licences(corpus: CorpusFigures) -> InlineContent:
    """Return for how many documents a licence is stated, by themselves or by their source."""
    document_count = sum(corpus.profile["sources"].read(["documents"])["documents"].to_pylist())
    if not document_count:
        return ["The corpus contains no documents."]
    unlicensed = corpus.book.add_computed_figure(
        "documents-without-licence",
        "number of documents for which no licence is stated",
        "documents",
        (PROFILE, "composition"),
        {"dimension": "licence", "value": UNKNOWN_VALUE, "split": ""},
        value_column="documents",
    )
    licensed_count = document_count - int(unlicensed.value or 0)
    origin = describe_licence_origin(corpus, licensed_count)
    if licensed_count == document_count:
        return [f"A licence is stated for every document, {origin}."]
    if not licensed_count:
        return ["No licence is stated for any of ", unlicensed, "."]
    content: list[InlineElement] = [
        f"A licence is stated for {format_count(licensed_count, 'document')} "
        f"({format_number(licensed_count / document_count, 'share')}), {origin}. "
        "No licence is stated for ",
        unlicensed,
    ]
    if has_canaries(corpus):
        planted = corpus.add_sum_figure(
            "canaries", "documents", "documents", "number of planted documents"
        )
        if planted.value == unlicensed.value:
            one = planted.value == 1
            content.append(", which was planted" if one else ", all of which were planted")
        else:
            verb = "was" if planted.value == 1 else "were"
            content += [", of which ", ShortFigure(planted), f" {verb} planted"]
    return [*content, "."]


def describe_licence_origin(corpus: CorpusFigures, licensed_count: int) -> str:
    """Return who states the licences: documents, their sources, or some of both."""
    own_count = sum(
        row["documents"]
        for row in corpus.profile["metadata_fields"].read(["field", "documents"]).to_pylist()
        if row["field"] == LICENCE_FIELD
    )
    if not own_count:
        return "by their sources" if licensed_count > 1 else "by its source"
    if own_count >= licensed_count:
        return "by the documents themselves" if licensed_count > 1 else "by the document itself"
    return f"by the document itself ({own_count:,}) or by its source"
