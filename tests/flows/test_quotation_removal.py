"""A purge removes quotations of a document from pages and rows, and nothing else."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.flows.document_purge import DocumentPurge
from hallmark.flows.quotation_removal import (
    QuotationFinder,
    compute_document_hashes,
    remove_document_content,
)
from hallmark.reports.page.card_tables import (
    CARD_TABLE_SCHEMAS,
    PURGED_BLOCK,
    CardContent,
    read_document,
    write_card_tables,
)
from hallmark.reports.page.document import DataTable, Document, Paragraph, Section
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, Redactor
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES
from hallmark.tasks.contract import (
    DOCUMENTS,
    ID_TYPE,
    Artifact,
    EmptyConfig,
    Session,
    StageContext,
    Store,
    describe_columns,
    fill_document_columns,
    hash_texts,
    hash_to_ids,
    open_session,
    stage,
)
from hallmark.tasks.corpus.copies.text_equality import fold_invisible_differences
from hallmark.tasks.corpus.deduplicate import SIGNATURES as EXACT
from hallmark.tasks.corpus.deduplicate_near import SIGNATURES as NEAR
from hallmark.tasks.corpus.find_personal_data import SEARCHED_REGIONS
from tests.tasks.corpora import given

SECRET = "The violet submarine of Aunt Ottilie sank on a Thursday, quite without regret."
OTHER = "Eleven marmots signed the treaty of Obersilzbach in invisible green ink."


def test_texts_that_share_twenty_letters_are_quotations():
    purged = ["Ärger mit <b>der</b> Post &amp; dem Zoll in Bern", "short one"]
    found = QuotationFinder(purged)
    shares = "x Ärger,  MIT <b>der</b>\nPost &amp"
    near = "Ärger mit <b>der Zoll in"  # 17 letters, and 8
    texts = [shares, near, "", "short one!", "a short one", purged[0], "Zoll in Bern"]
    assert found.find_quoting_texts(texts).tolist() == [
        True,
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert not QuotationFinder(["yes", ""])


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
def test_redacted_and_escaped_quotations_are_found_in_cards(text):
    masker = Redactor(["Elm Street 5"], phone_regions=["GB"])
    found = QuotationFinder([text], redactors=[Redactor(), masker])
    for mask in (masker, Redactor()):
        shown = mask.redact_by_kind(text, "corpus text", 0.0)
        contents = [{"content": ["kept", shown]}, {"content": ["kept", {"code": "x"}]}]
        stored = pa.chunked_array([[*map(json.dumps, contents), "", None]])
        flags = found.find_quoting_values(stored, are_json=True)
        assert flags.to_pylist()[:3] == [True, False, False]


def test_redaction_marks_are_not_quotations():
    """A purged text that is entirely redacted does not match other pages."""
    purged = "+44 20 7946 0018, jane.roe@corp.example \u00ad\u00ad\u00ad\u00ad\u00ad\u00ad"
    found = QuotationFinder([purged], redactors=[Redactor()])
    other = "Call +44 20 7946 0991\u00ad\u00ad\u00ad\u00ad\u00ad\u00ad or john.doe@corp.example"
    shown = Redactor().redact_by_kind(other, "corpus text", 0.0)
    assert "phone masked" in shown
    assert found.find_quoting_texts([shown, purged]).tolist() == [False, True]


@stage(name="looked_for", tables={"regions": SEARCHED_REGIONS})
def looked_for(documents: Artifact, config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("regions").write({"region": ["GB"]})


@stage(name="card", tables=CARD_TABLE_SCHEMAS)
def card(documents: Artifact, looked: Artifact, config: EmptyConfig, context: StageContext) -> None:
    """Write a card that shows the documents."""
    history = {"split": documents, "find_personal_data": looked}
    redactor = build_corpus_redactor(history, OFFENSIVE_TOXICITY)
    texts = documents["documents"].read(["text"])["text"].to_pylist()
    shown_texts = [redactor.redact_by_kind(text, "corpus text", 0.0) for text in texts]
    blocks = [DataTable("Texts", ["text"], [[text]]) for text in shown_texts]
    document = Document("A title", "Datasheet", [], [Section("Rows", blocks)])
    write_card_tables(
        CardContent("card", document, FigureBook(history), history, redactor), context
    )


def test_a_purge_finds_text_as_the_card_shows_it(tmp_path):
    """Redacted with the regions of its corpus, and with invisible characters escaped."""
    purged = f"Jane Roe\nof Hull,\u00ad (020) 8366 1177,\u00ad the 1st\tof May, {OTHER[:9]}"
    with open_session(Session(Store(tmp_path))):
        documents = given([purged, OTHER], kind="scored", toxicity=[0.0, 0.0])
        looked = looked_for(documents)
        made = card(documents, looked)
    rows = documents["documents"].read(["doc_id", "text"]).to_pylist()
    gone = {row["doc_id"] for row in rows if row["text"] == purged}
    ((_, rewritten),) = DocumentPurge.from_doc_ids(gone, [documents, looked, made]).iter_rewrites(
        made, False
    )
    contents = "".join(rewritten["content"].to_pylist())
    assert "Hull" not in contents and "May" not in contents and OTHER in contents
    shown = read_document(rewritten.to_pylist(), {}).sections[0].blocks
    assert [type(block) for block in shown if block == PURGED_BLOCK] == [Paragraph]
    assert len(shown) == 2


def described_by(schema):
    return {column.name: column for column in describe_columns(schema)}


def test_a_near_duplicate_in_its_cluster_keeps_its_text():
    """The cluster of other documents is named after the purged one."""
    texts = pa.array([SECRET, OTHER], pa.large_string())
    keys, hashes = hash_to_ids(["gone", "stays"]), hash_texts(texts)
    made = fill_document_columns(
        {
            "doc_id": keys,
            "source": ["s", "s"],
            "cluster": keys.take([0, 0]),
            "text": texts,
            "text_hash": hashes,
            "metadata": [{"author": "Jane Roe"}, {"author": "John Doe"}],
        }
    )
    rows = pa.table(made, schema=DOCUMENTS)
    left = remove_document_content(rows, described_by(DOCUMENTS), keys[:1], hashes[:1], None)
    assert left["text"].to_pylist() == ["", OTHER]
    assert left["text_hash"].to_pylist() == [bytes(16), hashes[1].as_py()]
    assert left["metadata"].to_pylist() == [[], [("author", "John Doe")]]
    again = remove_document_content(left, described_by(DOCUMENTS), keys[:1], hashes[:1], None)
    assert again is None


def test_the_signature_is_removed():
    keys = hash_to_ids(["gone", "stays"])
    for schema, name, values, gone in (
        (NEAR, "band_hashes", [[1, 2], [1, 3]], []),
        (
            EXACT,
            "folded_text_hash",
            hash_to_ids(
                fold_invisible_differences(pa.array([SECRET, OTHER], pa.large_string())).to_pylist()
            ),
            bytes(16),
        ),
    ):
        made = {"doc_id": keys, "incoming_cluster": keys, "cluster": keys.take([0, 0])}
        rows = pa.table(made | {name: values}, schema=schema)
        documents = {
            "doc_id": keys[:1],
            "text": pa.array([SECRET], pa.large_string()),
            "text_hash": hash_to_ids(["text"]),
        }
        found = compute_document_hashes(pa.table(documents))
        left = remove_document_content(
            rows, described_by(schema), keys[:1], pa.array(found, ID_TYPE), None
        )
        assert left[name].to_pylist() == [gone, rows[name][1].as_py()]
        assert left.drop_columns(name).equals(rows.drop_columns(name))


def stored(rows):
    """As read from a store, where parquet names list items differently."""
    file = io.BytesIO()
    pq.write_table(rows, file)
    return pq.read_table(file)


def test_requests_about_a_document_are_removed():
    """Requests are matched by the documents that they name or quote, in every list of tokens."""
    gone, kept = hash_to_ids(["gone"])[0].as_py(), hash_to_ids(["kept"])[0].as_py()
    asked = [
        {"doc_ids": [kept, gone], "source_text": None},
        {"doc_ids": [kept], "source_text": OTHER},
        {"doc_ids": [kept], "source_text": f"so: {SECRET[3:50]}"},
        {"doc_ids": None, "source_text": None},
    ]
    tokens = {"context_ids": [5, 6], "target_ids": [[7, 8], [9]], "kind": "score"}
    rows = stored(pa.Table.from_pylist([tokens | row for row in asked], schema=REQUESTS))
    columns, none = described_by(REQUESTS), pa.array([], ID_TYPE)
    left = remove_document_content(
        rows, columns, pa.array([gone], ID_TYPE), none, QuotationFinder([SECRET])
    )
    assert left["context_ids"].to_pylist() == [[], [5, 6], [], [5, 6]]
    assert left["target_ids"].to_pylist() == [[], [[7, 8], [9]], [], [[7, 8], [9]]]
    assert left["source_text"].to_pylist() == [None, OTHER, "", None]
    assert (
        remove_document_content(
            left, columns, pa.array([gone], ID_TYPE), none, QuotationFinder([SECRET])
        )
        is None
    )


def test_model_text_is_removed_with_its_tokens():
    """The tokenizer can decode them."""
    tokens = [[5, 6, 7], [8, 9], []]
    made = pa.table(
        {
            "request": hash_to_ids("abc"),
            "draw": [0, 0, 0],
            "token_ids": tokens,
            "stop_reason": ["end"] * 3,
            "text": [f"so: {SECRET[3:50]}", OTHER, None],
            "log_probs": [[-1.0], [-2.0], [-3.0]],
            **dict.fromkeys(
                ("ranks", "vocabulary_mean", "vocabulary_std", "lowercase_log_probs"), [None] * 3
            ),
        },
        schema=RESPONSES,
    )
    rows = stored(made)
    columns, none = described_by(RESPONSES), pa.array([], ID_TYPE)
    left = remove_document_content(rows, columns, none, none, QuotationFinder([SECRET]))
    assert left["text"].to_pylist() == ["", OTHER, None]
    assert left["token_ids"].to_pylist() == [[], [8, 9], []]
    assert left.drop_columns(["text", "token_ids"]).equals(rows.drop_columns(["text", "token_ids"]))
    assert remove_document_content(left, columns, none, none, QuotationFinder([SECRET])) is None
