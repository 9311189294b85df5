"""Redaction: masks, positions, keyed hashes, actions and accounts."""

import hashlib
import hmac
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import (
    HallmarkError,
    ProcessMapper,
    Session,
    StageConfig,
    StageContext,
    Store,
    Table,
    hash_documents,
    hash_texts,
    open_session,
    stage,
)
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans, select_blank_rows
from hallmark.tasks.corpus.spans import SPANS
from hallmark.tasks.measures.normalised_words import normalise_texts
from tests.tasks.corpora import given, scrubbed
from tests.tasks.corpus.test_sketches import INVISIBLE_CHARACTERS

TEXTS = [
    "Ünïcode 漢字 jane@corp.example and 93.184.216.34, again jane@corp.example.",
    "Nothing here.",
    "",
    "Pay to DE89370400440532013000 or 4111 1111 1111 1111; call +442083661177!",
]
MASKED = [
    "Ünïcode 漢字 <EMAIL> and <IP>, again <EMAIL>.",
    "Nothing here.",
    "",
    "Pay to <IBAN> or <CARD>; call <PHONE>!",
]


def test_spans_are_masked_and_text_hashes_updated(session):
    result = scrubbed(given(TEXTS))
    documents = result["documents"].read()
    assert documents["text"].to_pylist() == MASKED
    assert documents["text_hash"].combine_chunks().equals(hash_texts(documents["text"]))


def test_ledger_positions_refer_to_the_original_text(session):
    source = given(TEXTS)
    result = scrubbed(source)
    text_by_id = {row["doc_id"]: row["text"] for row in source["documents"].read().to_pylist()}
    values = []
    for row in result["ledger"].read().to_pylist():
        value = text_by_id[row["doc_id"]][row["char_start"] : row["char_end"]]
        values.append((row["reason"], value))
        assert row["action"] == "replaced"
        assert row["bytes_before"] == len(value.encode())
        assert row["bytes_after"] == len(f"<{row['reason']}>")
        key = bytes.fromhex((Path(session.store.uri) / "secret").read_text())
        assert row["span_hash"] == hmac.new(key, value.encode(), hashlib.sha256).digest()[:16]
    assert values == [
        ("EMAIL", "jane@corp.example"),
        ("IP", "93.184.216.34"),
        ("EMAIL", "jane@corp.example"),
        ("IBAN", "DE89370400440532013000"),
        ("CARD", "4111 1111 1111 1111"),
        ("PHONE", "+442083661177"),
    ]


def test_one_ledger_row_of_each_document_has_its_hash(session):
    source = given(TEXTS)
    before = source["documents"].read()
    doc_ids = before["doc_id"].to_pylist()
    hash_by_id = dict(zip(doc_ids, hash_documents(before["doc_id"], before["text"]), strict=True))
    seen_ids = []
    for row in scrubbed(source)["ledger"].read().to_pylist():
        assert row["document_hash"] == (
            None if row["doc_id"] in seen_ids else hash_by_id[row["doc_id"]]
        )
        seen_ids.append(row["doc_id"])
    assert len(seen_ids) == 6 and len(set(seen_ids)) == 2


def test_spans_are_applied_to_their_documents_across_batches(session):
    rows = (1, 4095, 4096, 9000)
    texts, ledger = redact_marked([LETTER] * 9002, tuple((row, 5, 9, "IP") for row in rows))
    masked = LETTER.replace("Zoë", "<IP>", 1)
    assert texts == [masked if row in rows else LETTER for row in range(9002)]
    assert ledger == [(row, "replaced", "IP", 5, 8) for row in rows]


def test_the_original_text_can_be_restored_from_the_spans(session):
    """Redaction changes no characters outside the spans."""
    source = given(TEXTS)
    result = scrubbed(source)
    before = source["documents"].read().to_pylist()
    ledger = result["ledger"].read().to_pylist()
    for old, new in zip(before, result["documents"].read().to_pylist(), strict=True):
        text, shift = new["text"], 0
        for row in (r for r in ledger if r["doc_id"] == old["doc_id"]):
            start, mask = row["char_start"] + shift, f"<{row['reason']}>"
            assert text[start : start + len(mask)] == mask
            value = old["text"][row["char_start"] : row["char_end"]]
            text = text[:start] + value + text[start + len(mask) :]
        assert text == old["text"]


def test_accounts_record_the_difference_in_bytes(session):
    result = scrubbed(given(TEXTS, sources=["a", "a", "b", "b"]))
    accounts = {(r["source"], r["unit"]): r for r in result["accounts"].read().to_pylist()}
    sizes = [sum(len(t.encode()) for t in texts[:2]) for texts in (TEXTS, MASKED)]
    account = accounts[("a", "bytes")]
    assert (account["input"], account["kept"], account["replaced"]) == (
        sizes[0],
        sizes[1],
        sizes[0] - sizes[1],
    )
    assert accounts[("b", "rows")]["input"] == accounts[("b", "rows")]["kept"] == 2


def test_only_configured_types_are_masked(session):
    result = scrubbed(given(TEXTS), PersonalDataConfig(types=("IP",)))
    texts = result["documents"].read()["text"].to_pylist()
    assert texts == [TEXTS[0].replace("93.184.216.34", "<IP>"), *TEXTS[1:]]


def test_masked_text_is_not_masked_again(session):
    once = scrubbed(given(TEXTS))
    twice = scrubbed(once)
    assert twice["ledger"].row_count == 0
    assert twice["documents"].digest == once["documents"].digest


def test_output_does_not_depend_on_partitions_workers_or_order(tmp_path):
    texts = [f"{i}: {TEXTS[i % 4 if i % 40 < 4 else 1]}" for i in range(20_000)]
    secret_files = (tmp_path / "one" / "secret", tmp_path / "two" / "secret")
    digests = []
    for path, mapper in zip(secret_files, (None, ProcessMapper(2)), strict=True):
        path.parent.mkdir()
        path.write_text("ab" * 32)
        session = Session(Store(path.parent), mapper) if mapper else Session(Store(path.parent))
        with open_session(session):
            result = scrubbed(given(texts, parts=4))
            digests.append(result.content_digest)
            assert len(result["ledger"].parts) == 4
            partitioned_rows = result["documents"].read(["doc_id", "text"]).to_pylist()
    assert digests[0] == digests[1]
    with open_session(Session(Store(tmp_path / "three"))):
        rows = scrubbed(given(texts))["documents"].read(["doc_id", "text"]).to_pylist()
        reversed_result = scrubbed(given(texts[::-1]))
        reversed_texts = reversed_result["documents"].read(["text"])["text"].to_pylist()
    assert sorted(rows, key=lambda row: row["doc_id"]) == partitioned_rows
    assert reversed_texts[::-1] == [row["text"] for row in rows]


def test_another_secret_changes_the_fingerprint_and_the_hashes(tmp_path):
    results = []
    for name in ("one", "two"):
        with open_session(Session(Store(tmp_path / name))):
            results.append(scrubbed(given(TEXTS)))
    assert results[0].fingerprint != results[1].fingerprint
    hashes = [artifact["ledger"].read()["span_hash"].to_pylist() for artifact in results]
    assert not set(hashes[0]) & set(hashes[1])
    assert hashes[0][0] == hashes[0][2]  # the same address twice


def test_secret_and_personal_data_are_not_stored_in_clear(tmp_path):
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        result = scrubbed(given([TEXTS[3]] * 2))
    stored = [str(result.manifest), *(str(c.to_pylist()) for c in result["ledger"].read().columns)]
    for value in (store.secret.hex(), "4111 1111", "DE8937", "442083661177"):
        assert not any(value in text for text in stored)


# Actions on spans of any stage -------------------------------------------------------------------


class MarkSpansConfig(StageConfig):
    """(document, start, end, type) of each span, bytes of its text."""

    spans: tuple[tuple[int, int, int, str], ...]
    use_other_ids: bool = False


@stage(name="mark", tables={"spans": SPANS})
def mark_spans(documents: Table, config: MarkSpansConfig, context: StageContext) -> None:
    doc_ids = documents.read(["doc_id"])["doc_id"].to_pylist()
    if config.use_other_ids:
        doc_ids = [bytes(16)] * len(doc_ids)
    no_hashes = pa.nulls(len(config.spans), pa.binary(16))
    context.get_table_writer("spans").write(
        {
            "doc_id": [doc_ids[row] for row, *_ in config.spans],
            "byte_start": [start for _, start, *_ in config.spans],
            "byte_end": [end for *_, end, _ in config.spans],
            "type": [span_type for *_, span_type in config.spans],
            "span_hash": no_hashes,
            "score": [0.5] * len(no_hashes),
        }
    )


def redact_marked(texts, *spans_by_finder, **actions):
    """Redact the given spans of texts; return the kept texts and the main columns of the ledger."""
    documents = given(texts)
    artifacts = {
        f"m{n}": mark_spans(documents, MarkSpansConfig(spans=spans))
        for n, spans in enumerate(spans_by_finder)
    }
    result = redact_spans(documents, artifacts, RedactSpansConfig(actions_by_type=actions))
    rows = documents["documents"].read().to_pylist()
    row_by_id = {row["doc_id"]: number for number, row in enumerate(rows)}
    ledger = [
        (row_by_id[r["doc_id"]], r["action"], r["reason"], r["char_start"], r["char_end"])
        for r in result["ledger"].read().to_pylist()
    ]
    return result["documents"].read()["text"].to_pylist(), ledger


LETTER = "Dear Zoë, call Zoë soon."  # ë is two bytes


def test_each_action_is_applied(session):
    spans = ((0, 5, 9, "EMAIL"), (1, 0, 4, "IP"), (1, 5, 9, "CARD"), (2, 16, 20, "REPEAT"))
    texts, ledger = redact_marked([LETTER] * 3, spans, CARD="keep", IP="drop", REPEAT="cut")
    assert texts == ["Dear <EMAIL>, call Zoë soon.", "Dear Zoë, call  soon."]
    assert ledger == [
        (0, "replaced", "EMAIL", 5, 8),
        (1, "removed", "IP", None, None),
        (2, "removed_span", "REPEAT", 15, 18),
    ]


def test_a_document_is_dropped_once_and_further_types_are_additional_reasons(session):
    spans = ((0, 0, 4, "IP"), (0, 5, 9, "CARD"), (0, 11, 15, "IP"), (0, 16, 20, "EMAIL"))
    texts, ledger = redact_marked([LETTER, LETTER], spans, IP="drop", CARD="drop")
    assert texts == [LETTER]
    assert [row[1:3] for row in ledger] == [("removed", "IP"), ("additional_reason", "CARD")]
    # One span drops the document, another would cut its whole text.
    both_actions = ((0, 0, 1, "IP"), (0, 0, 1, "REPEAT"))
    texts, ledger = redact_marked([" ", LETTER], both_actions, IP="drop", REPEAT="cut")
    assert (texts, ledger) == ([LETTER], [(0, "removed", "IP", None, None)])


def test_an_unreadable_document_is_quarantined(session):
    spans = ((0, 0, len(LETTER.encode()), "UNREADABLE"), (0, 0, 4, "IP"), (1, 0, 4, "IP"))
    kept, ledger = redact_marked([LETTER, LETTER], spans, IP="keep")
    assert kept == [LETTER]
    assert ledger == [(0, "quarantined", "UNREADABLE", None, None)]
    result = redact_marked([LETTER, LETTER, "x"], spans, IP="drop")
    assert [row[:3] for row in result[1]] == [
        (0, "quarantined", "UNREADABLE"),
        (0, "additional_reason", "IP"),
        (1, "removed", "IP"),
    ]


def test_the_stage_fails_if_all_documents_are_dropped(session):
    spans = ((0, 0, 4, "IP"), (1, 0, 4, "IP"))
    with pytest.raises(
        HallmarkError,
        match="stage redact_spans: none of the 2 documents remains: each document contains",
    ):
        redact_marked([LETTER, LETTER], spans, IP="drop")


def test_overlapping_spans_of_several_stages_are_merged(session):
    first = ((0, 5, 9, "EMAIL"), (0, 16, 20, "IP"))
    second = ((0, 0, 7, "REPEAT"), (0, 20, 25, "PHONE"))
    kept, ledger = redact_marked([LETTER], first, second, REPEAT="cut")
    assert kept == [", call <IP><PHONE>."]
    assert [row[1:] for row in ledger] == [
        ("removed_span", "REPEAT", 0, 8),
        ("replaced", "IP", 15, 18),
        ("replaced", "PHONE", 18, 23),
    ]
    # A kept span does not protect an overlapping span that is masked.
    assert redact_marked([LETTER], first, second, REPEAT="keep")[0][0].startswith(
        "Dear <EMAIL>, call"
    )


def test_an_emptied_document_is_removed_and_accounted_for(session):
    """White space counts as empty, a mask does not; texts that were empty before are kept."""
    texts = ["é", "b", " éé\u00a0\n", "éé", "", " "]
    first = ((0, 0, 2, "REPEAT"), (2, 1, 3, "REPEAT"), (3, 0, 2, "REPEAT"), (3, 2, 4, "IP"))
    second = ((2, 3, 5, "EMAIL"),)
    kept, ledger = redact_marked(texts, first, second, REPEAT="cut", EMAIL="cut")
    assert kept == ["b", "<IP>", "", " "]
    assert ledger == [
        (0, "removed", "empty after cut", None, None),
        (2, "removed", "empty after cut", None, None),
        (3, "removed_span", "REPEAT", 0, 1),
        (3, "replaced", "IP", 1, 2),
    ]
    documents = given(texts)
    artifacts = {"m": mark_spans(documents, MarkSpansConfig(spans=first[:1]))}
    result = redact_spans(
        documents, artifacts, RedactSpansConfig(actions_by_type={"REPEAT": "cut"})
    )
    accounts = {row["unit"]: row for row in result["accounts"].read().to_pylist()}
    assert (accounts["bytes"]["removed_rows"], accounts["bytes"]["removed_spans"]) == (2, 0)
    assert (accounts["rows"]["removed_rows"], accounts["rows"]["kept"]) == (1, 5)

    with pytest.raises(HallmarkError, match="consists of spans with the action 'cut'"):
        redact_marked(["é"], ((0, 0, 2, "REPEAT"),), REPEAT="cut")


def test_blank_texts_are_those_that_normalise_to_the_empty_text():
    """Except invisible characters: a text of these is not blank."""
    characters = [
        chr(p)
        for p in range(0x110000)
        if not 0xD800 <= p < 0xE000 and chr(p) not in INVISIBLE_CHARACTERS
    ]
    texts = pa.array(characters, pa.large_string())
    empty_rows = np.flatnonzero(pc.equal(normalise_texts(texts), "").to_numpy(zero_copy_only=False))
    assert (
        select_blank_rows(pa.chunked_array([texts]), np.arange(len(texts))).tolist()
        == empty_rows.tolist()
    )


def test_without_spans_nothing_changes(session):
    assert redact_marked([LETTER, ""]) == ([LETTER, ""], [])
    assert redact_marked([LETTER, ""], ()) == ([LETTER, ""], [])


def test_accounts_distinguish_cut_and_masked_bytes(session):
    documents = given([LETTER, LETTER, LETTER])
    spans = ((0, 5, 9, "EMAIL"), (1, 0, 4, "IP"), (2, 16, 20, "REPEAT"))
    config = RedactSpansConfig(actions_by_type={"IP": "drop", "REPEAT": "cut"})
    result = redact_spans(
        documents, {"m": mark_spans(documents, MarkSpansConfig(spans=spans))}, config
    )
    accounts = {row["unit"]: row for row in result["accounts"].read().to_pylist()}
    size = len(LETTER.encode())
    assert (accounts["bytes"]["input"], accounts["bytes"]["removed_rows"]) == (3 * size, size)
    assert (accounts["bytes"]["removed_spans"], accounts["bytes"]["replaced"]) == (
        4,
        4 - len("<EMAIL>"),
    )
    assert (accounts["rows"]["input"], accounts["rows"]["kept"]) == (3, 2)


@pytest.mark.parametrize("position", [(0, 8, 10), (0, 5, 8), (0, 5, 99), (0, 9, 9), (0, -1, 3)])
def test_spans_that_do_not_fit_their_text_are_rejected(session, position):
    with pytest.raises(HallmarkError, match="were computed from different texts"):
        redact_marked([LETTER], ((*position, "IP"),))


def test_spans_of_other_documents_are_rejected(session):
    documents = given([LETTER])
    other_spans = mark_spans(
        documents, MarkSpansConfig(spans=((0, 0, 4, "IP"),), use_other_ids=True)
    )
    with pytest.raises(HallmarkError, match="1 spans in documents that are not in"):
        redact_spans(documents, {"m": other_spans}, RedactSpansConfig())


def test_another_action_does_not_search_again(tmp_path):
    events = []
    session = Session(Store(tmp_path), listener=lambda e: events.append((e.kind, e.label)))
    with open_session(session):
        scrubbed(given(TEXTS))
        events.clear()
        scrubbed(given(TEXTS), config=RedactSpansConfig(action="cut"))
    assert ("cached", "find_personal_data") in events and ("done", "redact_spans") in events


@pytest.mark.parametrize(
    "settings",
    [
        {"actions_by_type": {"NAME": "mask"}},
        {"action": "hide"},
        {"actions_by_type": {"UNREADABLE": "keep"}},
    ],
)
def test_unknown_types_and_actions_are_rejected(settings):
    with pytest.raises(ValidationError):
        RedactSpansConfig(**settings)
