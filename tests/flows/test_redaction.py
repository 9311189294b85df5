"""What a purge leaves of pages and rows that quote a document."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.purging import Purge
from flows.redaction import Quotations, emptied, hashes_of, without_quotations
from reports.page.document import Document, Paragraph, Section
from reports.page.evidence import publish
from reports.page.figures import FIGURES, Book
from reports.page.masking import OFFENSIVE, Masker
from reports.page.rendering import escape
from reports.sections.corpus_figures import masker_of
from tasks.audits.exchange import REQUESTS, RESPONSES
from tasks.contract import (
    DOCUMENTS,
    ID,
    Artifact,
    NoConfig,
    Session,
    Store,
    Work,
    as_documents,
    described,
    ids,
    open_session,
    stage,
    text_hashes,
)
from tasks.corpus.deduplicate import SIGNATURES as EXACT
from tasks.corpus.deduplicate_near import SIGNATURES as NEAR
from tasks.corpus.find_personal_data import LOOKED_FOR
from tasks.measures.words import normalise
from tests.tasks.corpora import given

SECRET = "The violet submarine of Aunt Ottilie sank on a Thursday, quite without regret."
OTHER = "Eleven marmots signed the treaty of Obersilzbach in invisible green ink."


def test_quotations_are_those_that_share_twenty_letters():
    purged = ["Ärger mit <b>der</b> Post &amp; dem Zoll in Bern", "short one"]
    found = Quotations(purged)
    shares = "x Ärger,  MIT <b>der</b>\nPost &amp"
    near = "Ärger mit <b>der Zoll in"  # 17 letters, and 8
    texts = [shares, near, "", "short one!", "a short one", purged[0], "Zoll in Bern"]
    assert found.within(texts).tolist() == [True, False, False, True, False, True, False]
    assert not Quotations(["yes", ""])


def test_pages_lose_what_they_quote_and_nothing_else():
    found = Quotations([SECRET])
    page = f'<h1>Rows</h1><td title="{SECRET[:40]}">one</td><td>{SECRET[5:60]}</td><p>kept</p>'
    cleaned = without_quotations(page, found)
    assert cleaned == ('<h1>Rows</h1><td title="[purged]">one</td><td>[purged]</td><p>kept</p>')
    assert without_quotations("<p>kept</p>", found) is None
    spread = "<p>" + "</i><i>".join(SECRET.split()) + "</p><h1>Title</h1>"
    assert "Ottilie" not in without_quotations(spread, found)
    lines = f"# Title\n| {SECRET} |\nkept\n"
    assert without_quotations(lines, found, markup=False) == "# Title\n[purged]\nkept\n"


@pytest.mark.parametrize(
    "text",
    [
        "\u00ad".join(SECRET),
        "\u200c".join(f"می{n}خواهم" for n in range(10)),
        SECRET.replace(" ", "\u3164"),  # a letter, for Unicode
        SECRET.replace("a", "a\U000e0101"),
        "Jane Roe, Elm Street 5, +44 20 7946 0018, jane.roe@corp.example, born 1 May",
        "Jane Roe, of Hull, NINO AB123456C, the 1st of May",
        "Ask +44 20 7946 0018 or jane.roe@corp.example, or nobody, for all we care",
    ],
    ids=range(7),
)
@pytest.mark.parametrize("markup", [True, False])
def test_pages_lose_what_they_show_masked_and_written_out(text, markup):
    masker = Masker(["Elm Street 5"], regions=["GB"])
    found = Quotations([text], maskers=[Masker(), masker])
    for mask in (masker, Masker()):
        shown = mask.shown(text, "corpus text", 0.0)
        page = f"<td>{shown}</td><td>kept</td>" if markup else f"| {escape(shown)} |\nkept\n"
        cleaned = without_quotations(page, found, markup)
        assert cleaned == ("<td>[purged]</td><td>kept</td>" if markup else "[purged]\nkept\n")


def test_marks_are_no_quotation():
    """A purged text of nothing but what is masked leaves the pages of others alone."""
    purged = "+44 20 7946 0018, jane.roe@corp.example \u00ad\u00ad\u00ad\u00ad\u00ad\u00ad"
    found = Quotations([purged], maskers=[Masker()])
    other = "Call +44 20 7946 0991\u00ad\u00ad\u00ad\u00ad\u00ad\u00ad or john.doe@corp.example"
    page = f"<td>{Masker().shown(other, 'corpus text', 0.0)}</td>"
    assert "phone masked" in page and without_quotations(page, found) is None
    assert found.within([purged]) == [True]


@stage(tables={"regions": LOOKED_FOR})
def looked_for(documents: Artifact, config: NoConfig, work: Work) -> None:
    work.table("regions").write({"region": ["GB"]})


@stage(tables={"figures": FIGURES})
def card(documents: Artifact, looked: Artifact, config: NoConfig, work: Work) -> None:
    """A page that shows the documents."""
    history = {"split": documents, "find_personal_data": looked}
    book = Book(history)
    source = ("split", "documents")
    rows = book.figure("n", "documents", "documents", source, aggregate="count")
    document = Document("A title", "Datasheet", [], [Section("Rows", [Paragraph([rows])])])
    publish(document, book, work, "card", history, masker_of(history, OFFENSIVE), 9)


def test_what_a_purge_takes_from_a_page_is_found_as_the_card_shows_it(tmp_path):
    """Masked as its corpus says, and with unseen characters written out."""
    purged = f"Jane Roe of Hull,\u00ad (020) 8366 1177,\u00ad the 1st of May, {OTHER[:9]}"
    with open_session(Session(Store(tmp_path))):
        documents = given([purged, OTHER], kind="scored", toxicity=[0.0, 0.0])
        looked = looked_for(documents)
        made = card(documents, looked)
    rows = documents["documents"].read(["doc_id", "text"]).to_pylist()
    gone = {row["doc_id"] for row in rows if row["text"] == purged}
    ((_, page),) = Purge.of(gone, [documents, looked, made]).rewritings(made, False)
    assert "Hull" not in page and "1st of May" not in page and OTHER in page


def described_by(schema):
    return {column.name: column for column in described(schema)}


def test_a_near_copy_named_after_it_keeps_its_text():
    """The cluster of others is the id of the document that goes."""
    texts = pa.array([SECRET, OTHER], pa.large_string())
    keys, hashes = ids(["gone", "stays"]), text_hashes(texts)
    made = as_documents({"doc_id": keys, "source": ["s", "s"], "cluster": keys.take([0, 0]),
                         "text": texts, "text_hash": hashes})  # fmt: skip
    rows = pa.table(made, schema=DOCUMENTS)
    left = emptied(rows, described_by(DOCUMENTS), keys[:1], hashes[:1], None)
    assert left["text"].to_pylist() == ["", OTHER]
    assert left["text_hash"].to_pylist() == [bytes(16), hashes[1].as_py()]


def test_nothing_of_its_signature_is_left():
    keys = ids(["gone", "stays"])
    for schema, name, values, gone in (
        (NEAR, "bands", [[1, 2], [1, 3]], []),
        (
            EXACT,
            "exact",
            ids(normalise(pa.array([SECRET, OTHER], pa.large_string())).to_pylist()),
            bytes(16),
        ),
    ):
        made = {"doc_id": keys, "entered": keys, "cluster": keys.take([0, 0])}
        rows = pa.table(made | {name: values}, schema=schema)
        documents = {
            "doc_id": keys[:1],
            "text": pa.array([SECRET], pa.large_string()),
            "text_hash": ids(["text"]),
        }
        found = hashes_of(pa.table(documents))
        left = emptied(rows, described_by(schema), keys[:1], pa.array(found, ID), None)
        assert left[name].to_pylist() == [gone, rows[name][1].as_py()]
        assert left.drop_columns(name).equals(rows.drop_columns(name))


def stored(rows):
    """As a store has them: parquet gives the items of lists another name."""
    file = io.BytesIO()
    pq.write_table(rows, file)
    return pq.read_table(file)


def test_what_a_model_is_asked_about_a_document_goes_with_it():
    """By the documents that a request names, and by what it quotes; in every list of tokens."""
    gone, kept = ids(["gone"])[0].as_py(), ids(["kept"])[0].as_py()
    asked = [
        {"doc_ids": [kept, gone], "text": None},
        {"doc_ids": [kept], "text": OTHER},
        {"doc_ids": [kept], "text": f"so: {SECRET[3:50]}"},
        {"doc_ids": None, "text": None},
    ]
    tokens = {"context": [5, 6], "targets": [[7, 8], [9]], "kind": "read"}
    rows = stored(pa.Table.from_pylist([tokens | row for row in asked], schema=REQUESTS))
    columns, none = described_by(REQUESTS), pa.array([], ID)
    left = emptied(rows, columns, pa.array([gone], ID), none, Quotations([SECRET]))
    assert left["context"].to_pylist() == [[], [5, 6], [], [5, 6]]
    assert left["targets"].to_pylist() == [[], [[7, 8], [9]], [], [[7, 8], [9]]]
    assert left["text"].to_pylist() == [None, OTHER, "", None]
    assert emptied(left, columns, pa.array([gone], ID), none, Quotations([SECRET])) is None


def test_what_a_model_wrote_goes_with_its_tokens():
    """Whoever has the tokenizer reads them."""
    tokens = [[5, 6, 7], [8, 9], []]
    made = pa.table(
        {"request": ids("abc"), "draw": [0, 0, 0], "ids": tokens, "stop": ["end"] * 3,
         "text": [f"so: {SECRET[3:50]}", OTHER, None], "log_p": [[-1.0], [-2.0], [-3.0]],
         **dict.fromkeys(("rank", "mean", "std", "lower_log_p"), [None] * 3)},
        schema=RESPONSES,
    )  # fmt: skip
    rows = stored(made)
    columns, none = described_by(RESPONSES), pa.array([], ID)
    left = emptied(rows, columns, none, none, Quotations([SECRET]))
    assert left["text"].to_pylist() == ["", OTHER, None]
    assert left["ids"].to_pylist() == [[], [8, 9], []]
    assert left.drop_columns(["text", "ids"]).equals(rows.drop_columns(["text", "ids"]))
    assert emptied(left, columns, none, none, Quotations([SECRET])) is None
