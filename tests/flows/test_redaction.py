"""What a purge leaves of pages and rows that quote a document."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from flows.redaction import Quotations, emptied, hashes_of, without_quotations
from tasks.audits.exchange import REQUESTS, RESPONSES
from tasks.contract import DOCUMENTS, ID, as_documents, described, ids, text_hashes
from tasks.corpus.deduplicate import SIGNATURES as EXACT
from tasks.corpus.deduplicate_near import SIGNATURES as NEAR
from tasks.measures.words import normalise

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
