"""Report the errors of the toxicity filter: what it misses and removes wrongly, by group of people.

Recall and false alarms come from ``evaluate_curation``, which knows the content of an invented
town; the shift by identity comes from sentences in which ``removal_effects`` swaps the group.
"""

from __future__ import annotations

from hallmark.reports.page.document import InlineElement, Link, Paragraph, Section, ShortFigure
from hallmark.reports.page.figures import format_number, slugify
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.curation_effects import describe_largest_swap_difference
from hallmark.reports.sections.curation_evaluation import (
    CURATION_EVALUATION,
    add_detection_rate_figure,
    build_detection_rate_table,
    list_filter_error_rows,
)
from hallmark.tasks.contract import Row

#: The title of the section, and the one if no source has known content.
SECTION_TITLE = "Toxicity filter error rates"
TITLE_WITHOUT_RATES = "Toxicity filter: error rates not measured"


def build_filter_error_section(corpus: CorpusFigures) -> Section:
    """Build the section: recall and false alarms, then the largest shift by identity."""
    rows = list_filter_error_rows(corpus)
    section = Section(get_filter_error_title(corpus))
    outcome = corpus.describe_toxicity_outcome()
    for source in dict.fromkeys(row["source"] for row in rows):
        source_rows = [row for row in rows if row["source"] == source]
        if sentence := describe_filter_errors(corpus, source, source_rows):
            section.add_blocks(Paragraph([*sentence, *describe_missed_documents(corpus, source)]))
        section.add_blocks(
            build_detection_rate_table(
                corpus,
                f"Documents from the “{source}” source that the toxicity filter {outcome}",
                source_rows,
            )
        )
    if not rows:
        section.add_blocks(
            Paragraph(
                [
                    "The toxicity filter's recall and false alarms were not measured: "
                    f"{explain_missing_rates(corpus)}. The “Controls” page of a model card lists "
                    "what an audit's scorer misses and wrongly flags, at a threshold that may "
                    "differ from the filter's."
                ]
            )
        )
    section.add_blocks(*map(Paragraph, describe_largest_swap_difference(corpus)))
    return section


def get_filter_error_title(corpus: CorpusFigures) -> str:
    """Return the title of the section, which promises no error rates if there are none."""
    has_rates = any(row["n"] for row in list_filter_error_rows(corpus))
    return SECTION_TITLE if has_rates else TITLE_WITHOUT_RATES


def summarize_filter_errors(corpus: CorpusFigures, parent_title: str) -> list[InlineElement]:
    """Return the shares of documents with and without rude speech that the filter acted on.

    They are without intervals, which the section has; the first screen names the shares alone and
    links to the section.

    Args:
        corpus: The figures of the corpus.
        parent_title: The title of the section that contains the one on errors.
    """
    rows = [row for row in list_filter_error_rows(corpus) if row["n"]]
    content: list[InlineElement] = []
    for source in dict.fromkeys(row["source"] for row in rows):
        share_by_key = {
            (row["target"], row["measure"]): ShortFigure(add_detection_rate_figure(corpus, row))
            for row in rows
            if row["source"] == source
        }
        recall = share_by_key.get(("rude speech", "recall"))
        false_alarms = share_by_key.get(("no rude speech", "false alarms"))
        clauses: list[InlineElement] = []
        if recall is not None:
            clauses += [recall, " of the documents with rude speech"]
        if false_alarms is not None:
            documents = "those" if clauses else "the documents"
            clauses += [" and " if clauses else "", false_alarms]
            clauses.append(f" of {documents} without rude speech")
        if clauses:
            separator = " " if content else ""
            introduction = (
                f"{separator}In the invented documents from the “{source}” source, the toxicity "
                f"filter {corpus.describe_toxicity_outcome()} "
            )
            content += [introduction, *clauses, "."]
    title = get_filter_error_title(corpus)
    link = Link(title, f"#{slugify(parent_title)}-{slugify(title)}")
    if content:
        return [*content, " See “", link, "”."]
    return ["See “", link, "”."]


def explain_missing_rates(corpus: CorpusFigures) -> str:
    """Return why the error rates of the toxicity filter are unknown."""
    if not corpus.list_toxicity_actions():
        return "no rule uses a toxicity score"
    return "the sources do not specify which documents are toxic"


def describe_missed_documents(corpus: CorpusFigures, source: str) -> list[InlineElement]:
    """Return how many documents the filter missed, with a link to them."""
    figure = corpus.book.add_computed_figure(
        f"missed-documents-{source}",
        f"documents from {source} with rude speech that the toxicity filter missed",
        "documents",
        (CURATION_EVALUATION, "missed_documents"),
        {"source": source},
        aggregate="count",
    )
    return [" The filter missed ", ShortFigure(figure), " of the documents with rude speech."]


def describe_filter_errors(
    corpus: CorpusFigures, source: str, rows: list[Row]
) -> list[InlineElement]:
    """Return recall and false alarms of a source in a sentence; empty without either."""
    clauses: list[list[InlineElement]] = []
    for target, measure, documents in (
        ("rude speech", "recall", "with rude speech (recall{})"),
        ("no rude speech", "false alarms", "without rude speech (false alarms{})"),
    ):
        for row in rows:
            if (row["target"], row["measure"]) == (target, measure) and row["n"]:
                interval = ""
                if row["low"] is not None:
                    low, high = (format_number(row[end], "share") for end in ("low", "high"))
                    interval = f"; 95 % interval {low} to {high}, n = {row['n']:,}"
                figure = add_detection_rate_figure(corpus, row)
                clauses.append(
                    [ShortFigure(figure), f" of the documents {documents.format(interval)}"]
                )
    if not clauses:
        return []
    joined = clauses[0] if len(clauses) == 1 else [*clauses[0], " and ", *clauses[1]]
    return [
        f"In the invented documents from the “{source}” source, whose content is known, the "
        f"toxicity filter {corpus.describe_toxicity_outcome()} ",
        *joined,
        ".",
    ]
