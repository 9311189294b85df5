"""Cases: a generated text next to the training document it came from, redacted and escaped."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from hallmark.reports.artifact_lookup import find_training_trace
from hallmark.reports.page import evidence_pages
from hallmark.reports.page.cases import (
    CONTEXT_CHARACTERS,
    Case,
    CaseDocument,
    CaseText,
    SelectedRows,
    build_cases,
    describe_copied_span,
    has_cases,
    read_cases,
)
from hallmark.reports.page.evidence_pages import (
    find_unreadable_rows,
    iterate_evidence_pages,
    render_cases,
)
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.planted_secrets import PlantedSecret
from hallmark.reports.page.redaction import MarkedPart, PassthroughRedactor, Redactor
from hallmark.tasks.audits.audit_descriptions import GENERATED_PERSONAL_TEXT
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.audits.tracing import MATCHED_SPANS
from hallmark.tasks.contract import (
    CANARIES,
    ID_TYPE,
    Artifact,
    EmptyConfig,
    HallmarkError,
    Session,
    StageConfig,
    StageContext,
    Store,
    column,
    describe_columns,
    hash_texts,
    hash_to_ids,
    open_session,
    stage,
    table_schema,
)
from tests.findings import build_titled_table
from tests.forged_tables import forge_table
from tests.reports import pages
from tests.reports.test_evidence import Scores, scored
from tests.tasks.corpora import given

PROMPT = "The harbour board regrets that "
COPIED = "a drake got into the old kiln and could not be got out"
DOCUMENT = f"{PROMPT}{COPIED} until noon. The bridge stays shut."

CONTINUED = table_schema(
    "Texts of documents that a model continued.",
    column("value", pa.float64(), "figure", "value"),
    column("text", pa.large_string(), "corpus text", "the prompt"),
    column("secret", pa.large_string(), "personal", "the text that follows the prompt"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the documents"),
    column("canary_id", ID_TYPE, "id", "the planted text"),
    column("target_tokens", pa.int32(), "figure", "tokens to reproduce"),
    column("leading_correct_tokens", pa.int32(), "figure", "correct tokens"),
    column("kind", pa.string(), "label", "kind"),
    column("measure", pa.string(), "label", "measure"),
    column(GENERATED_PERSONAL_TEXT, pa.large_string(), "personal", "text with an identifier"),
)

WRITTEN = table_schema(
    "Texts that a model wrote.",
    column("text", pa.string(), "audit text", "the prompt"),
    column("continuation", pa.large_string(), "model text", "the text", judged_by="toxicity"),
    column("toxicity", pa.float32(), "figure", "toxicity", unit="score"),
    column("draw", pa.int32(), "figure", "number of the draw"),
)


class RowsConfig(StageConfig):
    rows: str  # JSON


@stage(name="continued", tables={"values": CONTINUED})
def continued(config: RowsConfig, context: StageContext) -> None:
    empty = dict.fromkeys(CONTINUED.names)
    rows = [empty | row for row in json.loads(config.rows)]
    for row in rows:
        row["doc_ids"] = [bytes.fromhex(i) for i in row["doc_ids"] or ()]
        row["canary_id"] = bytes.fromhex(row["canary_id"]) if row["canary_id"] else None
    context.get_table_writer("values").write(pa.Table.from_pylist(rows, schema=CONTINUED))


@stage(name="traced", tables={"matched_spans": MATCHED_SPANS})
def traced(config: RowsConfig, context: StageContext) -> None:
    [hashes, ids] = [hash_texts(pa.array([COPIED])), hash_to_ids(["document 0"])]
    span = dict.fromkeys(MATCHED_SPANS.names) | {"run_tokens": 5, "text_start": 0}
    span |= json.loads(config.rows)
    span |= {"text_hash": hashes[0].as_py(), "doc_id": ids[0].as_py()}
    context.get_table_writer("matched_spans").write(
        pa.Table.from_pylist([span], schema=MATCHED_SPANS)
    )


@stage(name="written", tables={"values": WRITTEN})
def written(training_overlap: Artifact, config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("values").write(
        pa.Table.from_pylist(json.loads(config.rows), schema=WRITTEN)
    )


@stage(name="planted", tables={"canaries": CANARIES})
def planted_canaries(config: RowsConfig, context: StageContext) -> None:
    rows = json.loads(config.rows)
    for row in rows:
        row["canary_id"] = bytes.fromhex(row["canary_id"])
        row["doc_ids"] = [bytes.fromhex(i) for i in row["doc_ids"]]
    empty = dict.fromkeys(CANARIES.names)
    context.get_table_writer("canaries").write(
        pa.Table.from_pylist([empty | row for row in rows], schema=CANARIES)
    )


def planted(*rows: dict[str, Any]) -> Artifact:
    """Return what the stage plant_canaries would have written."""
    artifact = planted_canaries(RowsConfig(rows=json.dumps(rows)))
    return replace(artifact, manifest={**artifact.manifest, "stage": "plant_canaries"})


def doc_id(number: int) -> str:
    return str(hash_to_ids([f"document {number}"])[0].as_py().hex())


def corpus_of(texts: list[str], scores: list[float | None]) -> dict[str, Artifact]:
    return {"ingest": given(texts), "score_toxicity": scored(Scores(scores=tuple(scores)))}


def continued_cases(
    corpus: dict[str, Artifact], redactor: Redactor | None = None, **row: Any
) -> list[Case]:
    rows = json.dumps([{"doc_ids": [doc_id(0)], **row}])
    book = FigureBook({"audit": continued(RowsConfig(rows=rows))})
    evidence = book.get_evidence("audit", "values")
    content = pages.content_of(book, redactor or Redactor(), corpus)
    return read_cases(content, evidence.id)


def plain(text: CaseText) -> str:
    return "".join(part.text for part in text.parts)


def marked(parts: Any) -> list[str]:
    return [part.text for part in parts if part.is_marked]


def test_a_memorised_text_stands_next_to_its_document(session):
    corpus = corpus_of([DOCUMENT], [0.1])
    row = {"text": PROMPT, "secret": COPIED, "target_tokens": 9, "leading_correct_tokens": 9}
    [case] = continued_cases(corpus, value=1.0, kind="train", **row)
    prompt, answer = case.texts
    assert (prompt.title, plain(prompt)) == ("Prompt", PROMPT)
    assert answer.title == "Generated text, identical to the document text"
    assert answer.parts == [MarkedPart(COPIED, True)]
    [document] = case.documents
    assert plain(document.text) == DOCUMENT and marked(document.text.parts) == [COPIED]
    assert (document.id, document.source, document.score) == (doc_id(0), "source", "0.100")
    assert case.document_count == 1
    assert [(fact.name, fact.text) for fact in case.facts] == [("value", "1"), ("kind", "train")]


@pytest.mark.parametrize(
    ("correct", "title"),
    [
        (3, "Document text after the prompt; the model reproduces 3 of 9 tokens"),
        (None, "Document text after the prompt"),
    ],
)
def test_a_text_that_was_not_reproduced_is_not_called_generated(session, correct, title):
    row = {"text": PROMPT, "secret": COPIED, "target_tokens": 9}
    [case] = continued_cases(corpus_of([DOCUMENT], [0.1]), leading_correct_tokens=correct, **row)
    assert case.texts[1].title == title


@pytest.mark.parametrize(
    ("row", "titles"),
    [
        ({"text": PROMPT, "secret": COPIED}, ["Prompt", "Document text after the prompt"]),
        ({"secret": COPIED}, ["Document text"]),
        (
            {"text": PROMPT, "secret": COPIED, "measure": "unprompted_identifier_share"},
            ["Preceding document text, not given to the model", "Document text"],
        ),
        ({GENERATED_PERSONAL_TEXT: COPIED}, ["Generated text"]),
        ({"text": PROMPT, GENERATED_PERSONAL_TEXT: COPIED}, ["Prompt", "Generated text"]),
    ],
)
def test_a_text_without_a_prompt_is_not_said_to_follow_one(session, row, titles):
    [case] = continued_cases(corpus_of([DOCUMENT], [0.1]), **row)
    assert [text.title for text in case.texts] == titles


@pytest.mark.parametrize(
    ("score", "start"),
    [(None, "[not shown: no toxicity score"), (0.9, "███ ███████ █████")],
)
def test_of_a_document_that_is_not_harmless_no_text_is_shown(session, score, start):
    [case] = continued_cases(corpus_of([DOCUMENT], [score]), text=PROMPT, secret=COPIED)
    assert [text.is_hidden for text in (*case.texts, case.documents[0].text)] == [True] * 3
    assert plain(case.texts[0]).startswith(start)
    assert not any(word in repr(case) for word in ("harbour", "drake", "bridge"))


def test_a_personal_text_that_stands_in_no_document_of_the_row_is_hidden(session):
    [case] = continued_cases(corpus_of([DOCUMENT], [0.1]), text="Elsewhere ", secret="a heron")
    assert [text.is_hidden for text in case.texts] == [True, True]
    assert "heron" not in repr(case) and "Elsewhere" not in repr(case)


def test_a_long_document_is_shown_around_the_span_and_redacted_before_it_is_cut(session):
    mail = "jane.roe@corp.example"
    for distance in range(CONTEXT_CHARACTERS - len(mail), CONTEXT_CHARACTERS + 2):
        before = f"{'word ' * 400}{mail}".ljust(2000 + len(mail) + distance)[:-1] + " "
        text = f"{before}{COPIED} and {'so on ' * 200}"
        [case] = continued_cases(corpus_of([text], [0.1]), text="", secret=COPIED)
        [document] = case.documents
        shown = plain(document.text)
        assert marked(document.text.parts) == [COPIED]
        assert shown.startswith("… ") and shown.endswith(" …") and len(shown) < 800
        assert not any(piece in shown for piece in ("jane", "roe", "@", "corp", "example"))


def test_planted_secrets_open_with_a_click_and_real_personal_data_never_do(session):
    secret, mail = "4 8 2 9 1 3 0 5 7", "jane.roe@corp.example"
    record = "quin.tor4104@example.org"
    text = f"Tag #{secret}, of {record}; ask {mail} now."
    canary = {"canary_id": doc_id(7), "kind": "canary", "text": text, "doc_ids": [doc_id(0)]}
    corpus = {
        "ingest": given([text]),
        "plant_canaries": planted(canary),
    }
    redactor = Redactor([PlantedSecret(secret, "Tag #", ","), PlantedSecret(record)])
    [case] = continued_cases(corpus, redactor, text="Tag #", secret=secret)
    answer, document = case.texts[1], case.documents[0].text
    assert plain(answer) == "[planted secret masked]" and answer.parts[0].is_marked
    assert answer.revealed_parts == [MarkedPart(secret, True)]
    assert not any(word in plain(document) for word in (secret, "quin", "jane"))
    revealed = "".join(part.text for part in document.revealed_parts)
    assert revealed == f"Tag #{secret}, of {record}; ask [email masked] now."
    html = str(render_cases([case]))
    assert secret in html and secret not in pages.without_revealed_secrets(html)


def test_the_text_of_a_planted_text_without_copies_is_known_to_be_invented(session):
    canary = {"canary_id": doc_id(7), "kind": "record", "text": "Tag #5, blue.", "doc_ids": []}
    corpus = {"plant_canaries": planted(canary)}
    row = {"text": "Tag #", "secret": "5, blue", "doc_ids": [], "canary_id": doc_id(7)}
    [case] = continued_cases(corpus, **row)
    assert [plain(text) for text in case.texts] == ["Tag #", "5, blue"]
    canary["kind"] = "passage"  # a document of the corpus, which nobody scored
    corpus = {"plant_canaries": planted(canary)}
    [case] = continued_cases(corpus, **row)
    assert all(text.is_hidden for text in case.texts)


def test_without_redaction_everything_is_shown(session):
    [case] = continued_cases(
        corpus_of([DOCUMENT], [0.9]), PassthroughRedactor(), text=PROMPT, secret=COPIED
    )
    assert [plain(text) for text in case.texts] == [PROMPT, COPIED]
    assert plain(case.documents[0].text) == DOCUMENT


def written_content(rows: list[dict[str, Any]], texts: list[str], **span: int) -> Any:
    trace = traced(RowsConfig(rows=json.dumps(span)))
    audit = written(trace, RowsConfig(rows=json.dumps(rows)))
    book = FigureBook({"audit": audit})
    book.add_computed_figure("n", "texts", "texts", ("audit", "values"), aggregate="count")
    return pages.content_of(book, Redactor(), corpus_of(texts, [0.1] * len(texts)))


def test_spans_of_a_trace_are_highlighted_in_both_texts(session):
    row = {"text": "Say", "continuation": COPIED, "toxicity": 0.2, "draw": 3}
    start = DOCUMENT.index(COPIED)
    span = {"char_start": start, "char_end": start + 20, "first_step": 41, "times_read": 2}
    content = written_content([row, {**row, "continuation": "another"}], [DOCUMENT], **span)
    [evidence_id] = content.book.evidence_by_id
    case, other = read_cases(content, evidence_id)
    assert marked(case.texts[1].parts) == marked(case.documents[0].text.parts) == [COPIED[:20]]
    assert (case.documents[0].first_step, case.documents[0].times_read) == (41, 2)
    assert other.documents == [] and other.document_count == 0
    assert case.shares_spans
    assert [(fact.name, fact.text) for fact in case.facts] == [
        ("toxicity", "0.2"),
        ("longest copied span", "5 tokens, in at least 1 training document"),
    ]
    assert [fact.name for fact in other.facts] == ["toxicity"]
    assert [(fact.name, fact.text) for fact in case.details] == [("draw", "3")]
    [second] = read_cases(content, evidence_id, offset=1, limit=5)
    assert second == other and second.number == 2
    html = str(render_cases([case]))
    copied = f"<i>[shared: </i>{COPIED[:20]}<i>]</i>"
    assert html.count(f"<mark>{copied}</mark>") == 2
    reads = "first read in training step 41, read completely 2 times"
    assert f"this whole document, without its copies: {reads}" in html


@pytest.fixture
def own_session(tmp_path):
    """Open a session with a store whose files a test may change."""
    with open_session(Session(Store(tmp_path / "own"))) as opened:
        yield opened


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("documents", "text", ""),
        ("signals", "toxicity", 0.5),
        ("matched_spans", "run_tokens", 77),
    ],
)
def test_rows_of_a_forged_table_are_shown_in_no_case(own_session, table, column, value):
    row = {"text": "Say", "continuation": COPIED, "toxicity": 0.2}
    content = written_content([row], [DOCUMENT], char_start=0, char_end=4, first_step=41)
    [(evidence_id, evidence)] = content.book.evidence_by_id.items()
    assert read_cases(content, evidence_id)[0].documents
    [page] = iterate_evidence_pages(content)
    assert page.problems == [] and find_unreadable_rows(content) == {}
    trace = find_training_trace(evidence.artifact)
    artifacts = [a for a in (trace, *content.corpus_artifacts.values()) if a is not None]
    [artifact] = [artifact for artifact in artifacts if table in artifact.tables]
    forge_table(artifact[table], column, value)
    with pytest.raises(HallmarkError, match=f"{artifact.name} is damaged: .* the SHA-256"):
        read_cases(content, evidence_id)
    [page] = iterate_evidence_pages(content)
    [reason] = page.problems
    assert "does not match the SHA-256" in reason and "Rows that are not available" in page.text
    assert find_unreadable_rows(content) == {evidence_id: reason}


def test_unreadable_rows_are_found_without_rendering(own_session, monkeypatch):
    row = {"text": "Say", "continuation": COPIED, "toxicity": 0.2}
    content = written_content([row], [DOCUMENT], char_start=0, char_end=4, first_step=41)
    for name in ("render_cases", "render_plain_rows"):
        monkeypatch.delattr(evidence_pages, name)
    assert find_unreadable_rows(content) == {}


def test_a_forged_title_of_a_measure_is_not_shown(own_session):
    audit = measured()
    book = FigureBook({"audit": audit})
    evidence = book.get_evidence("audit", "values")
    content = pages.content_of(book, Redactor())
    assert read_cases(content, evidence.id)
    forge_table(audit["findings"], "title", "")
    with pytest.raises(HallmarkError, match="does not match the SHA-256"):
        read_cases(content, evidence.id)


def test_only_the_selections_with_a_damaged_document_are_not_shown(own_session):
    rows = json.dumps([{"doc_ids": [doc_id(0)]}])
    named, unnamed = RowsConfig(rows=rows), RowsConfig(rows=json.dumps([{"text": "a"}]))
    book = FigureBook({"first": continued(named), "second": continued(unnamed)})
    for stage_name in ("first", "second"):
        book.add_computed_figure(
            f"n_{stage_name}", "texts", "texts", (stage_name, "values"), aggregate="count"
        )
    content = pages.content_of(book, Redactor(), corpus_of([DOCUMENT], [0.1]))
    forge_table(content.corpus_artifacts["ingest"]["documents"], "text", "")
    first, second = iterate_evidence_pages(content)
    assert (len(first.problems), len(second.problems)) == (1, 0)


def matched(tokens: int, document: str, *, start: int = 0, text: str = "t") -> dict[str, Any]:
    return {"run_tokens": tokens, "text_start": start, "doc_id": document, "text_hash": text}


@pytest.mark.parametrize(
    ("spans", "limit", "said"),
    [
        ([], 5, ""),
        ([matched(9, "a")], 5, "9 tokens, in 1 training document"),
        ([matched(9, "a")], 1, "9 tokens, in at least 1 training document"),
        ([matched(9, "a")], 0, "9 tokens, in at least 1 training document"),
        (
            [matched(9, "a"), matched(9, "a"), matched(9, "b")],
            5,
            "9 tokens, in 2 training documents",
        ),
        ([matched(9, "a"), matched(9, "b")], 2, "9 tokens, in at least 2 training documents"),
        ([matched(9, "a"), matched(8, "b")], 2, "9 tokens, in 1 training document"),
        ([matched(9, "a"), matched(9, "b", start=20)], 5, "9 tokens, in 1 training document"),
        ([matched(9, "a"), matched(9, "b", text="u")], 5, "9 tokens, in 1 training document"),
    ],
)
def test_a_copied_span_says_in_how_many_documents_it_occurs(spans, limit, said):
    assert describe_copied_span(spans, limit) == said


def test_a_span_beyond_the_end_of_its_document_marks_nothing(session):
    row = {"text": "Say", "continuation": COPIED, "toxicity": 0.2, "draw": 3}
    for bounds in ((9000, 9010), (50, 4)):
        span = {"char_start": bounds[0], "char_end": bounds[1], "first_step": 1, "times_read": 1}
        content = written_content([row], [DOCUMENT], **span)
        [case] = read_cases(content, next(iter(content.book.evidence_by_id)))
        assert marked(case.texts[1].parts) == marked(case.documents[0].text.parts) == []
        assert plain(case.documents[0].text).startswith(PROMPT)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</p></article><h1>x",
    "abc\u202edef\u2066",
    "nul\x00byte\x1b[31m",
    "w" * 10_000,
    "{{ 7 * 7 }} {% raw %}",
    "=cmd|' /C calc'!A0",
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_inert_in_every_place(session, hostile):
    text = f"before {hostile} after"
    rows = [{"text": text, "continuation": text, "toxicity": 0.1, "draw": 1}]
    span = {"char_start": 0, "char_end": 3, "first_step": 1, "times_read": 1}
    content = written_content(rows, [text], **span)
    [page] = iterate_evidence_pages(content)
    parsed = pages.Page(page.text)
    assert not {"script", "img"} & parsed.tags and "article" in parsed.tags
    assert not any(c in page.text for c in "\u202e\u2066\x00\x1b")
    assert len(page.text) < 40_000
    if hostile.isprintable() and len(hostile) < 99:
        assert hostile in parsed.text
    [case] = continued_cases(corpus_of([text], [0.1]), text="before ", secret=f"{hostile} after")
    parsed = pages.Page(f"<!doctype html><main>{render_cases([case])}</main>")
    assert not {"script", "img", "h1"} & parsed.tags
    assert not any(c in parsed.text for c in "\u202e\u2066\x00\x1b")


@pytest.mark.parametrize(
    ("kind", "data_type", "is_case"),
    [
        ("model text", pa.string(), True),
        ("corpus text", pa.large_string(), True),
        ("audit text", pa.string(), True),
        ("personal", pa.large_string(), True),
        ("personal", pa.string(), False),
        ("project text", pa.string(), False),
        ("label", pa.string(), False),
        ("figure", pa.float64(), False),
        ("id", ID_TYPE, False),
    ],
)
def test_a_table_has_cases_if_it_has_a_text(kind, data_type, is_case):
    schema = table_schema("Rows.", column("name", data_type, kind, "a column"))
    assert has_cases({c.name: c for c in describe_columns(schema)}) is is_case


def test_a_table_has_cases_if_its_rows_name_a_document():
    for name, is_case in (("doc_id", True), ("item", False)):
        schema = table_schema("Rows.", column(name, ID_TYPE, "id", "an id"))
        assert has_cases({c.name: c for c in describe_columns(schema)}) is is_case


@stage(
    name="pairs",
    tables={
        "values": table_schema(
            "Pairs.",
            column("text", pa.string(), "audit text", "a sentence"),
            column("second_text", pa.string(), "audit text", "the same of another group"),
            column("category", pa.string(), "label", "category"),
            column("value", pa.float64(), "figure", "value"),
        )
    },
)
def pairs(config: EmptyConfig, context: StageContext) -> None:
    rows = {"text": ["He sang."], "second_text": ["She sang."], "category": ["g"], "value": [0.5]}
    context.get_table_writer("values").write(rows)


def test_a_bias_pair_shows_both_texts_and_leaves_out_what_the_condition_says(session):
    book = FigureBook({"audit": pairs()})
    for conditions, facts in (({}, ["category", "value"]), ({"category": "g"}, ["value"])):
        evidence = book.get_evidence("audit", "values", conditions)
        rows = SelectedRows(evidence, evidence.read_first_rows(9))
        [[case]] = build_cases(pages.content_of(book, Redactor()), [rows])
        assert [(t.title, plain(t)) for t in case.texts] == [
            ("Text", "He sang."),
            ("Second text", "She sang."),
        ]
        assert [fact.name for fact in case.facts] == facts and case.documents == []


MEASURED = table_schema(
    "Values of several measures.",
    column("text", pa.string(), "audit text", "a text"),
    column("measure", pa.string(), "label", "name of the measure"),
    column("times_read", pa.int64(), "figure", "reads", unit="times"),
    column("value", pa.float64(), "figure", "value"),
)


@stage(name="measured", tables={"values": MEASURED, "findings": FINDINGS})
def measured(config: EmptyConfig, context: StageContext) -> None:
    names = ["longest_run_tokens", "exposure", "zlib_ratio", "stereotype_preference"]
    values = pa.table(
        {
            "text": ["The bridge stays shut."] * len(names),
            "measure": names,
            "times_read": [61] * len(names),
            "value": [21.0, 1.5, 0.7, 1.0],
        },
        MEASURED,
    )
    context.get_table_writer("values").write(values)
    options: dict[str, Any] = {"n": 1, "method": "counted", "evidence_filter": {}}
    rows = [
        build_finding("extraction", "exposure", 1.5, unit="bits", **options),
        build_finding("bias", "stereotype_preference", 1.0, unit="share", **options),
    ]
    context.get_table_writer("findings").write(build_titled_table(rows))


def test_a_value_has_the_title_and_the_unit_of_its_measure(session):
    book = FigureBook({"audit": measured()})
    evidence = book.get_evidence("audit", "values")
    rows = SelectedRows(evidence, evidence.read_first_rows(9))
    [cases] = build_cases(pages.content_of(book, Redactor()), [rows])
    assert [[(fact.name, fact.text) for fact in case.facts] for case in cases] == [
        [("longest run", "21 tokens")],
        [("Exposure", "1.5 bits")],
        [("zlib ratio", "0.7")],
        [("Stereotype preference", "1")],  # a share is of all rows
    ]
    assert [(fact.name, fact.text) for fact in cases[0].details] == [
        ("number of times the model read this text during training, summed over all copies", "61")
    ]


@pytest.mark.parametrize(
    ("first_step", "times_read", "sentence"),
    [
        (None, None, ""),
        (251, 0, "first read in training step 251, not yet read to its end"),
        (1251, 1, "first read in training step 1,251, read completely 1 time"),
        (251, None, "first read in training step 251"),
        (None, 0, "not read in training"),
        (None, 2, "read completely 2 times"),
    ],
)
def test_a_document_says_how_often_it_was_read_without_its_copies(first_step, times_read, sentence):
    text = CaseText("Document", [MarkedPart("A text.", False)])
    document = CaseDocument("00", "news", "", "ingest", "train", "", first_step, times_read, text)
    page = str(render_cases([Case(1, [], [], [document], 1, [])]))
    subject = " · this whole document, without its copies: " if sentence else ""
    assert f"last stage ingest{subject}{sentence}</p>" in page


@pytest.mark.parametrize(
    ("document_count", "shares_spans", "sentence"),
    [
        (1, True, None),
        (1, False, None),
        (5, False, "1 of 5 documents; documents with the same text are shown once."),
        (
            1200,
            True,
            "1 of 1,200 training documents that share a span with this text, either the longest "
            "one or a shorter one; documents with the same text are shown once.",
        ),
    ],
)
def test_a_case_says_of_how_many_documents_it_shows_some(document_count, shares_spans, sentence):
    text = CaseText("Document", [MarkedPart("A text.", False)])
    document = CaseDocument("00", "news", "", "ingest", "train", "", None, None, text)
    page = str(render_cases([Case(1, [], [], [document], document_count, [], shares_spans)]))
    assert ("are shown once" in page) == (sentence is not None)
    assert sentence is None or f'<p class="under">{sentence}</p>' in page
