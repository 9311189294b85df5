"""Cases of rows: which texts and documents they show, and which not."""

import pyarrow as pa
import pytest

from hallmark.reports.page.cases import SelectedRows, build_cases
from hallmark.reports.page.document_lookup import DocumentLookup
from hallmark.reports.page.evidence_pages import iterate_evidence_pages
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.contract import (
    EmptyConfig,
    StageConfig,
    StageContext,
    column,
    hash_to_ids,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.score_toxicity import SIGNALS
from tests.reports import pages
from tests.tasks.corpora import given


class Scores(StageConfig):
    scores: tuple[float | None, ...]


@stage(name="scored", tables={"signals": SIGNALS})
def scored(config: Scores, context: StageContext) -> None:
    """The scores of the first documents; NaN and null alike: all windows failed."""
    count = len(config.scores)
    names = hash_to_ids(f"document {i}" for i in range(count))
    none = {name: pa.nulls(count) for name in SIGNALS.names}
    context.get_table_writer("signals").write(
        {**none, "doc_id": names, "toxicity": list(config.scores)}
    )


def look_up(texts, scores):
    """What is known of documents with these texts and scores."""
    corpus = {"ingest": given(texts), "score_toxicity": scored(Scores(scores=scores))}
    lookup = DocumentLookup(corpus, Redactor())
    ids = hash_to_ids(f"document {i}" for i in range(len(texts))).to_pylist()
    documents = lookup.read_documents({*ids})
    return [documents[i] for i in ids]


def test_a_score_that_failed_is_none(session):
    first, second, third = look_up(["one", "two", "three"], [0.25, None, float("nan")])
    assert (first.toxicity, second.toxicity, third.toxicity) == (0.25, None, None)
    assert {document.kind for document in (first, second, third)} == {"corpus text"}


def test_a_copy_word_for_word_has_the_score_of_the_other_and_no_other_has(session):
    text = "The harbour was quiet and\nthe boats lay still."
    copies = look_up([text, " ".join(text.split()), f"{text} And more."], [0.25, None, None])
    assert [copy.toxicity for copy in copies] == [0.25, 0.25, None]


KINDS = table_schema(
    "A column of each kind, and one that says nothing.",
    column("id", pa.string(), "id", "an id"),
    column("label", pa.string(), "label", "a label"),
    column("said", pa.string(), "project text", "a sentence of ours"),
    column("asked", pa.string(), "audit text", "of an audit", judged_by="score"),
    column("unjudged", pa.string(), "corpus text", "never scored"),
    column("judged", pa.string(), "model text", "scored", judged_by="score"),
    column("secret", pa.binary(), "personal", "in clear"),
    column("score", pa.float32(), "figure", "a score", unit="score"),
    pa.field("unsaid", pa.string()),
    pa.field("number", pa.int64()),
)


@stage(name="of_each_kind", tables={"rows": KINDS})
def of_each_kind(config: EmptyConfig, context: StageContext) -> None:
    for score in (0.25, 0.75, None, float("nan")):
        row = {name: ["words here"] for name in KINDS.names} | {"score": [score], "number": [42]}
        context.get_table_writer("rows").write(row | {"secret": [b"words here"]})


def test_what_is_said_of_rows_is_masked_too(session):
    book = FigureBook({"of_each_kind": of_each_kind()})
    where = {"said": "no date: call +44 20 7946 0018", "label": ["a", "b"] * 900}
    book.add_computed_figure(
        "x", "of jane.roe@corp.example", "rows", ("of_each_kind", "rows"), where, aggregate="count"
    )
    [(path, page, _)] = iterate_evidence_pages(pages.content_of(book, Redactor()))
    assert path == "rows/of-each-kind.html"
    assert "7946 0018" not in page and "jane.roe" not in page
    said = pages.Page(page).text
    # The condition, and the Python line.
    assert said.count("no date: call [phone masked]") == 2
    assert said.count("'a', 'b'") >= 900  # nothing is cut


OPEN, BLOCKS = "words here", "█████ ████ [masked: toxicity score 0.75, 10 characters]"
UNSCORED, PERSONAL = (
    "[not shown: no toxicity score, 10 characters]",
    "[not shown: may contain personal data, 10 characters]",
)


@pytest.mark.parametrize(
    ("place", "asked", "judged"),
    [(0, OPEN, OPEN), (1, BLOCKS, BLOCKS), (2, OPEN, UNSCORED), (3, OPEN, UNSCORED)],
)
def test_a_text_is_shown_as_its_column_allows(session, place, asked, judged):
    book = FigureBook({"of_each_kind": of_each_kind()})
    evidence = book.get_evidence("of_each_kind", "rows")
    rows = SelectedRows(evidence, evidence.read_first_rows(9))
    [cases] = build_cases(pages.content_of(book, Redactor()), [rows])
    texts = {
        text.title: ("".join(part.text for part in text.parts), text.is_hidden)
        for text in cases[place].texts
    }
    assert texts["Asked"] == (asked, asked != OPEN)
    assert texts["Generated text"] == (judged, judged != OPEN)
    assert texts["Unjudged"] == (UNSCORED, True)
    values = {fact.name: fact.text for fact in (*cases[place].facts, *cases[place].details)}
    assert [values[name] for name in ("id", "label", "said")] == [OPEN] * 3
    assert values["secret"] == values["unsaid"] == PERSONAL
    assert "42" not in values["number"] and "not shown" in values["number"]
