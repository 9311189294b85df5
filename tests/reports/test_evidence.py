"""Pages of rows: which documents and texts stand on them, and which do not."""

import pyarrow as pa
import pytest

from hallmark.reports.page.evidence_pages import (
    DocumentExcerpt,
    DocumentLookup,
    render_evidence_page,
)
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.contract import (
    EmptyConfig,
    StageContext,
    column,
    hash_to_ids,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.score_toxicity import SIGNALS
from tests.reports import pages
from tests.reports.artifacts import UNJUDGED
from tests.tasks.corpora import given

TWIN, FAR, NEAR, ALONE = hash_to_ids(["twin", "far", "near", "alone"]).to_pylist()
TEXT = "The harbour was quiet and\nthe boats lay still."


def corpus(scores):
    texts = {TWIN: TEXT, FAR: " ".join(TEXT.split()), NEAR: f"{TEXT} {UNJUDGED}", ALONE: TEXT}
    found = {i: {"source": "a", "stage": "ingest", "text": text} for i, text in texts.items()}
    return DocumentLookup({}, Redactor(), found, scores)


def test_a_document_is_shown_with_its_score_alone():
    assert corpus({TWIN: 0.25}).build_excerpt(TWIN, set()).text == TEXT
    assert corpus({TWIN: 0.75}).build_excerpt(TWIN, set()).text.startswith("███ ███████ ███")
    assert corpus({}).build_excerpt(TWIN, {TWIN}) == DocumentExcerpt(
        id=TWIN.hex(),
        source="a",
        stage="ingest",
        score="–",
        text=f"[not shown: no toxicity score, {len(TEXT)} characters]",
    )


def test_a_copy_word_for_word_is_judged_by_the_one_beside_it_and_no_other_is():
    known = corpus({TWIN: 0.25})
    assert known.build_excerpt(FAR, {FAR, TWIN}).score == "0.250"
    assert known.build_excerpt(FAR, {FAR, TWIN}).text.startswith("The harbour")
    assert "no toxicity score" in known.build_excerpt(NEAR, {NEAR, TWIN}).text  # it says more
    assert "no toxicity score" in known.build_excerpt(ALONE, {ALONE}).text  # the rows do not say so


@stage(name="failed_scores", tables={"signals": SIGNALS})
def failed_scores(config: EmptyConfig, context: StageContext) -> None:
    """Of three documents one has a score; of the others all windows failed, null and NaN alike."""
    names = hash_to_ids(f"document {i}" for i in range(3))
    none = {name: pa.nulls(3) for name in SIGNALS.names}
    toxicity = [0.25, None, float("nan")]
    context.get_table_writer("signals").write({**none, "doc_id": names, "toxicity": toxicity})


def test_a_score_that_failed_is_none(session):
    history = {"ingest": given(["one", "two", "three"]), "score_toxicity": failed_scores()}
    known = DocumentLookup(history, Redactor())
    first, second, third = hash_to_ids(f"document {i}" for i in range(3)).to_pylist()
    known.load_documents({first, second, third})
    assert known.build_excerpt(first, set()).text == "one"
    assert "no toxicity score" in known.build_excerpt(second, set()).text
    assert "no toxicity score" in known.build_excerpt(third, set()).text


KINDS = table_schema(
    "A column of each kind, and one that says nothing.",
    column("id", pa.string(), "id", "an id"),
    column("label", pa.string(), "label", "a label"),
    column("said", pa.string(), "project text", "a sentence of ours"),
    column("asked", pa.string(), "audit text", "of an audit", judged_by="score"),
    column("unjudged", pa.string(), "model text", "never scored"),
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
    figure = book.add_computed_figure(
        "x", "of jane.roe@corp.example", "rows", ("of_each_kind", "rows"), where, aggregate="count"
    )
    evidence = book.evidence_by_id[figure.evidence_id]
    rest = [evidence.read_first_rows(9), [], Redactor()]
    page = render_evidence_page(evidence, [figure], *rest, card_path="a.html", card_kind="Card")
    assert "7946 0018" not in page and "jane.roe" not in page
    said = pages.Page(page).text
    assert said.count("no date: call [phone masked]") == 2  # the condition, and the Python line
    assert said.count("&#39;a&#39;, &#39;b&#39;") + said.count("'a', 'b'") >= 900  # nothing is cut


OPEN, BLOCKS = "words here", "█████ ████ [masked: scored 0.75, 10 characters]"
UNSCORED, PERSONAL = (
    "[not shown: no toxicity score, 10 characters]",
    "[not shown: may contain personal data, 10 characters]",
)


@pytest.mark.parametrize(
    ("place", "asked", "judged"),
    [(0, OPEN, OPEN), (1, BLOCKS, BLOCKS), (2, OPEN, UNSCORED), (3, OPEN, UNSCORED)],
)
def test_a_cell_is_shown_as_its_column_allows(session, place, asked, judged):
    evidence = FigureBook({"of_each_kind": of_each_kind()}).get_evidence("of_each_kind", "rows")
    html = render_evidence_page(
        evidence,
        [],
        evidence.read_first_rows(9),
        [],
        Redactor(),
        card_path="a.html",
        card_kind="Card",
    )
    head, *rows = pages.Page(html).tables[0]
    shown = dict(zip(head, rows[place], strict=True))
    assert [shown[name] for name in ("id", "label", "said")] == [OPEN] * 3
    assert (shown["asked"], shown["judged"], shown["unjudged"]) == (asked, judged, UNSCORED)
    assert shown["secret"] == shown["unsaid"] == PERSONAL
    assert "42" not in shown["number"] and "not shown" in shown["number"]
    assert 'title="a score (score)"' in html
