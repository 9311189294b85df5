"""Pages of rows: which documents and texts stand on them, and which do not."""

import pyarrow as pa
import pytest

from reports.page.evidence import Corpus, render_rows
from reports.page.figures import Book
from reports.page.masking import Masker
from tasks.contract import NoConfig, Work, column, ids, stage, table
from tasks.corpus.score_toxicity import SIGNALS
from tests.reports import pages
from tests.reports.artifacts import UNJUDGED
from tests.tasks.corpora import given

TWIN, FAR, NEAR, ALONE = ids(["twin", "far", "near", "alone"]).to_pylist()
TEXT = "The harbour was quiet and\nthe boats lay still."


def corpus(scores):
    texts = {TWIN: TEXT, FAR: " ".join(TEXT.split()), NEAR: f"{TEXT} {UNJUDGED}", ALONE: TEXT}
    found = {i: {"source": "a", "stage": "ingest", "text": text} for i, text in texts.items()}
    return Corpus({}, Masker(), found, scores)


def test_a_document_is_shown_with_its_score_alone():
    assert corpus({TWIN: 0.25}).excerpt(TWIN, set())["text"] == TEXT
    assert corpus({TWIN: 0.75}).excerpt(TWIN, set())["text"].startswith("███ ███████ ███")
    assert corpus({}).excerpt(TWIN, {TWIN}) == {
        "id": TWIN.hex(), "source": "a", "stage": "ingest", "score": "–",
        "text": f"[not shown: not scored, {len(TEXT)} characters]",
    }  # fmt: skip


def test_a_copy_word_for_word_is_judged_by_the_one_beside_it_and_no_other_is():
    known = corpus({TWIN: 0.25})
    assert known.excerpt(FAR, {FAR, TWIN})["score"] == "0.250"
    assert known.excerpt(FAR, {FAR, TWIN})["text"].startswith("The harbour")
    assert "not scored" in known.excerpt(NEAR, {NEAR, TWIN})["text"]  # it says more
    assert "not scored" in known.excerpt(ALONE, {ALONE})["text"]  # the rows do not say so


@stage(tables={"signals": SIGNALS})
def failed_scores(config: NoConfig, work: Work) -> None:
    """Of three documents one has a score; of the others all windows failed, null and NaN alike."""
    names = ids(f"document {i}" for i in range(3))
    none = {name: pa.nulls(3) for name in SIGNALS.names}
    toxicity = [0.25, None, float("nan")]
    work.table("signals").write({**none, "doc_id": names, "toxicity": toxicity})


def test_a_score_that_failed_is_none(session):
    history = {"ingest": given(["one", "two", "three"]), "score_toxicity": failed_scores()}
    known = Corpus(history, Masker())
    first, second, third = ids(f"document {i}" for i in range(3)).to_pylist()
    known.look_up({first, second, third})
    assert known.excerpt(first, set())["text"] == "one"
    assert "not scored" in known.excerpt(second, set())["text"]
    assert "not scored" in known.excerpt(third, set())["text"]


KINDS = table(
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


@stage(tables={"rows": KINDS})
def of_each_kind(config: NoConfig, work: Work) -> None:
    for score in (0.25, 0.75, None, float("nan")):
        row = {name: ["words here"] for name in KINDS.names} | {"score": [score], "number": [42]}
        work.table("rows").write(row | {"secret": [b"words here"]})


def test_what_is_said_of_rows_is_masked_too(session):
    book = Book({"of_each_kind": of_each_kind()})
    where = {"said": "no date: call +44 20 7946 0018", "label": ["a", "b"] * 900}
    figure = book.figure(
        "x", "of jane.roe@corp.example", "rows", ("of_each_kind", "rows"), where, aggregate="count"
    )
    evidence = figure.evidence
    rest = [evidence.head(9), [], Masker()]
    page = render_rows(evidence, [figure], *rest, card="a.html", kind="Card")
    assert "7946 0018" not in page and "jane.roe" not in page
    said = pages.Page(page).text
    assert said.count("no date: call [phone masked]") == 2  # the condition, and the Python line
    assert said.count("&#39;a&#39;, &#39;b&#39;") + said.count("'a', 'b'") >= 900  # nothing is cut


OPEN, BLOCKS = "words here", "█████ ████ [masked: scored 0.75, 10 characters]"
UNSCORED, PERSONAL = (
    "[not shown: not scored, 10 characters]", "[not shown: may hold personal data, 10 characters]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("place", "asked", "judged"),
    [(0, OPEN, OPEN), (1, BLOCKS, BLOCKS), (2, OPEN, UNSCORED), (3, OPEN, UNSCORED)],
)
def test_a_cell_is_shown_as_its_column_allows(session, place, asked, judged):
    evidence = Book({"of_each_kind": of_each_kind()}).evidence("of_each_kind", "rows")
    html = render_rows(evidence, [], evidence.head(9), [], Masker(), card="a.html", kind="Card")
    head, *rows = pages.Page(html).tables[0]
    shown = dict(zip(head, rows[place], strict=True))
    assert [shown[name] for name in ("id", "label", "said")] == [OPEN] * 3
    assert (shown["asked"], shown["judged"], shown["unjudged"]) == (asked, judged, UNSCORED)
    assert shown["secret"] == shown["unsaid"] == PERSONAL
    assert "42" not in shown["number"] and "not shown" in shown["number"]
    assert 'title="a score (score)"' in html
