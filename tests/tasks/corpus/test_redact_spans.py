"""Scrubbing: masks, offsets, keyed hashes and accounts."""

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
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, find_blank_texts, redact_spans
from hallmark.tasks.corpus.spans import SPANS
from hallmark.tasks.measures.normalised_words import normalise_texts
from tests.tasks.corpora import given, scrubbed

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


def test_spans_become_their_type_and_hashes_follow(session):
    made = scrubbed(given(TEXTS))
    documents = made["documents"].read()
    assert documents["text"].to_pylist() == MASKED
    assert documents["text_hash"].combine_chunks().equals(hash_texts(documents["text"]))


def test_ledger_rows_name_the_characters_of_the_incoming_text(session):
    source = given(TEXTS)
    made = scrubbed(source)
    text_of = {row["doc_id"]: row["text"] for row in source["documents"].read().to_pylist()}
    values = []
    for row in made["ledger"].read().to_pylist():
        value = text_of[row["doc_id"]][row["char_start"] : row["char_end"]]
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


def test_one_row_of_a_document_has_its_identity(session):
    source = given(TEXTS)
    before = source["documents"].read()
    doc_ids = before["doc_id"].to_pylist()
    of = dict(zip(doc_ids, hash_documents(before["doc_id"], before["text"]), strict=True))
    seen = []
    for row in scrubbed(source)["ledger"].read().to_pylist():
        assert row["document_hash"] == (None if row["doc_id"] in seen else of[row["doc_id"]])
        seen.append(row["doc_id"])
    assert len(seen) == 6 and len(set(seen)) == 2


def test_spans_are_those_of_their_documents_however_many_are_read_at_a_time(session):
    rows = (1, 4095, 4096, 9000)
    left, ledger = treated([LETTER] * 9002, tuple((row, 5, 9, "IP") for row in rows))
    masked = LETTER.replace("Zoë", "<IP>", 1)
    assert left == [masked if row in rows else LETTER for row in range(9002)]
    assert ledger == [(row, "replaced", "IP", 5, 8) for row in rows]


def test_the_text_comes_back_from_the_masked_one_and_the_ledger(session):
    """No character but those of the spans has changed."""
    source = given(TEXTS)
    made = scrubbed(source)
    before = source["documents"].read().to_pylist()
    ledger = made["ledger"].read().to_pylist()
    for old, new in zip(before, made["documents"].read().to_pylist(), strict=True):
        text, shift = new["text"], 0
        for row in (r for r in ledger if r["doc_id"] == old["doc_id"]):
            start, mask = row["char_start"] + shift, f"<{row['reason']}>"
            assert text[start : start + len(mask)] == mask
            value = old["text"][row["char_start"] : row["char_end"]]
            text = text[:start] + value + text[start + len(mask) :]
        assert text == old["text"]


def test_the_accounts_hold_the_difference_in_bytes(session):
    made = scrubbed(given(TEXTS, sources=["a", "a", "b", "b"]))
    books = {(r["source"], r["unit"]): r for r in made["accounts"].read().to_pylist()}
    size = [sum(len(t.encode()) for t in texts[:2]) for texts in (TEXTS, MASKED)]
    book = books[("a", "bytes")]
    assert (book["input"], book["kept"], book["replaced"]) == (size[0], size[1], size[0] - size[1])
    assert books[("b", "rows")]["input"] == books[("b", "rows")]["kept"] == 2


def test_only_chosen_types_are_masked(session):
    made = scrubbed(given(TEXTS), PersonalDataConfig(types=("IP",)))
    texts = made["documents"].read()["text"].to_pylist()
    assert texts == [TEXTS[0].replace("93.184.216.34", "<IP>"), *TEXTS[1:]]


def test_masked_text_is_not_masked_again(session):
    once = scrubbed(given(TEXTS))
    twice = scrubbed(once)
    assert twice["ledger"].row_count == 0
    assert twice["documents"].digest == once["documents"].digest


def test_output_does_not_depend_on_parts_workers_or_order(tmp_path):
    texts = [f"{i}: {TEXTS[i % 4 if i % 40 < 4 else 1]}" for i in range(20_000)]
    secret = (tmp_path / "one" / "secret", tmp_path / "two" / "secret")
    contents = []
    for path, mapper in zip(secret, (None, ProcessMapper(2)), strict=True):
        path.parent.mkdir()
        path.write_text("ab" * 32)
        session = Session(Store(path.parent), mapper) if mapper else Session(Store(path.parent))
        with open_session(session):
            made = scrubbed(given(texts, parts=4))
            contents.append(made.content_digest)
            assert len(made["ledger"].parts) == 4
            in_parts = made["documents"].read(["doc_id", "text"]).to_pylist()
    assert contents[0] == contents[1]
    with open_session(Session(Store(tmp_path / "three"))):
        rows = scrubbed(given(texts))["documents"].read(["doc_id", "text"]).to_pylist()
        backwards = scrubbed(given(texts[::-1]))
        other = backwards["documents"].read(["text"])["text"].to_pylist()
    assert sorted(rows, key=lambda row: row["doc_id"]) == in_parts
    assert other[::-1] == [row["text"] for row in rows]


def test_another_secret_is_another_fingerprint_and_other_hashes(tmp_path):
    made = []
    for name in ("one", "two"):
        with open_session(Session(Store(tmp_path / name))):
            made.append(scrubbed(given(TEXTS)))
    assert made[0].fingerprint != made[1].fingerprint
    digests = [artifact["ledger"].read()["span_hash"].to_pylist() for artifact in made]
    assert not set(digests[0]) & set(digests[1])
    assert digests[0][0] == digests[0][2]  # the same address twice


def test_secret_and_personal_data_stay_out_of_sight(tmp_path):
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        made = scrubbed(given([TEXTS[3]] * 2))
    shown = [str(made.manifest), *(str(c.to_pylist()) for c in made["ledger"].read().columns)]
    for hidden in (store.secret.hex(), "4111 1111", "DE8937", "442083661177"):
        assert not any(hidden in text for text in shown)


# Policies over spans of any finder ---------------------------------------------------------------


class MarkConfig(StageConfig):
    """(document, start, end, type) of each span, bytes of its text."""

    spans: tuple[tuple[int, int, int, str], ...]
    of_others: bool = False


@stage(name="mark", tables={"spans": SPANS})
def mark(documents: Table, config: MarkConfig, context: StageContext) -> None:
    ids = documents.read(["doc_id"])["doc_id"].to_pylist()
    if config.of_others:
        ids = [bytes(16)] * len(ids)
    none = pa.nulls(len(config.spans), pa.binary(16))
    context.get_table_writer("spans").write(
        {
            "doc_id": [ids[row] for row, *_ in config.spans],
            "byte_start": [start for _, start, *_ in config.spans],
            "byte_end": [end for *_, end, _ in config.spans],
            "type": [kind for *_, kind in config.spans],
            "span_hash": none,
            "score": [0.5] * len(none),
        }
    )


def treated(texts, *finders, **policies):
    """What is left, and the ledger in short, where finders marked spans of texts."""
    documents = given(texts)
    marked = {f"m{n}": mark(documents, MarkConfig(spans=f)) for n, f in enumerate(finders)}
    made = redact_spans(documents, marked, RedactSpansConfig(actions_by_type=policies))
    before = documents["documents"].read().to_pylist()
    place = {row["doc_id"]: number for number, row in enumerate(before)}
    ledger = [
        (place[r["doc_id"]], r["action"], r["reason"], r["char_start"], r["char_end"])
        for r in made["ledger"].read().to_pylist()
    ]
    return made["documents"].read()["text"].to_pylist(), ledger


LETTER = "Dear Zoë, call Zoë soon."  # ë is two bytes


def test_each_policy_does_what_it_says(session):
    spans = ((0, 5, 9, "EMAIL"), (1, 0, 4, "IP"), (1, 5, 9, "CARD"), (2, 16, 20, "REPEAT"))
    left, ledger = treated([LETTER] * 3, spans, CARD="keep", IP="drop", REPEAT="cut")
    assert left == ["Dear <EMAIL>, call Zoë soon.", "Dear Zoë, call  soon."]
    assert ledger == [
        (0, "replaced", "EMAIL", 5, 8),
        (1, "removed", "IP", None, None),
        (2, "removed_span", "REPEAT", 15, 18),
    ]


def test_a_document_is_dropped_once_and_every_further_type_said(session):
    spans = ((0, 0, 4, "IP"), (0, 5, 9, "CARD"), (0, 11, 15, "IP"), (0, 16, 20, "EMAIL"))
    left, ledger = treated([LETTER, LETTER], spans, IP="drop", CARD="drop")
    assert left == [LETTER]
    assert [row[1:3] for row in ledger] == [("removed", "IP"), ("additional_reason", "CARD")]
    both = ((0, 0, 1, "IP"), (0, 0, 1, "REPEAT"))  # dropped for one, and all of it cut for another
    left, ledger = treated([" ", LETTER], both, IP="drop", REPEAT="cut")
    assert (left, ledger) == ([LETTER], [(0, "removed", "IP", None, None)])


def test_a_document_that_nobody_could_look_through_goes_to_quarantine(session):
    spans = ((0, 0, len(LETTER.encode()), "UNREADABLE"), (0, 0, 4, "IP"), (1, 0, 4, "IP"))
    left, ledger = treated([LETTER, LETTER], spans, IP="keep")
    assert left == [LETTER]
    assert ledger == [(0, "quarantined", "UNREADABLE", None, None)]
    made = treated([LETTER, LETTER, "x"], spans, IP="drop")
    assert [row[:3] for row in made[1]] == [
        (0, "quarantined", "UNREADABLE"),
        (0, "additional_reason", "IP"),
        (1, "removed", "IP"),
    ]


def test_where_all_documents_are_dropped_the_stage_fails(session):
    spans = ((0, 0, 4, "IP"), (1, 0, 4, "IP"))
    with pytest.raises(
        HallmarkError, match="stage redact_spans: none of 2 documents is left: all hold"
    ):
        treated([LETTER, LETTER], spans, IP="drop")


def test_overlapping_spans_of_several_finders_are_one_and_nothing_of_them_stays(session):
    first = ((0, 5, 9, "EMAIL"), (0, 16, 20, "IP"))
    second = ((0, 0, 7, "REPEAT"), (0, 20, 25, "PHONE"))
    left, ledger = treated([LETTER], first, second, REPEAT="cut")
    assert left == [", call <IP><PHONE>."]
    assert [row[1:] for row in ledger] == [
        ("removed_span", "REPEAT", 0, 8),
        ("replaced", "IP", 15, 18),
        ("replaced", "PHONE", 18, 23),
    ]
    # What is kept does not hide what is not.
    assert treated([LETTER], first, second, REPEAT="keep")[0][0].startswith("Dear <EMAIL>, call")


def test_a_document_of_which_nothing_is_left_leaves_and_is_accounted_for(session):
    """White space is nothing, a mask is something, and what came in empty is not touched."""
    texts = ["é", "b", " éé\u00a0\n", "éé", "", " "]
    first = ((0, 0, 2, "REPEAT"), (2, 1, 3, "REPEAT"), (3, 0, 2, "REPEAT"), (3, 2, 4, "IP"))
    second = ((2, 3, 5, "EMAIL"),)
    left, ledger = treated(texts, first, second, REPEAT="cut", EMAIL="cut")
    assert left == ["b", "<IP>", "", " "]
    assert ledger == [
        (0, "removed", "empty after cut", None, None),
        (2, "removed", "empty after cut", None, None),
        (3, "removed_span", "REPEAT", 0, 1),
        (3, "replaced", "IP", 1, 2),
    ]
    documents = given(texts)
    marked = {"m": mark(documents, MarkConfig(spans=first[:1]))}
    made = redact_spans(documents, marked, RedactSpansConfig(actions_by_type={"REPEAT": "cut"}))
    books = {row["unit"]: row for row in made["accounts"].read().to_pylist()}
    assert (books["bytes"]["removed_rows"], books["bytes"]["removed_spans"]) == (2, 0)
    assert (books["rows"]["removed_rows"], books["rows"]["kept"]) == (1, 5)

    with pytest.raises(HallmarkError, match="are cut whole"):
        treated(["é"], ((0, 0, 2, "REPEAT"),), REPEAT="cut")


def test_nothing_left_is_what_the_search_for_copies_takes_for_empty():
    points = [chr(p) for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    texts = pa.array(points, pa.large_string())
    equal = np.flatnonzero(pc.equal(normalise_texts(texts), "").to_numpy(zero_copy_only=False))
    assert (
        find_blank_texts(pa.chunked_array([texts]), np.arange(len(texts))).tolist()
        == equal.tolist()
    )


def test_no_finder_and_no_span_change_nothing(session):
    assert treated([LETTER, ""]) == ([LETTER, ""], [])
    assert treated([LETTER, ""], ()) == ([LETTER, ""], [])


def test_accounts_tell_what_was_cut_from_what_was_masked(session):
    documents = given([LETTER, LETTER, LETTER])
    spans = ((0, 5, 9, "EMAIL"), (1, 0, 4, "IP"), (2, 16, 20, "REPEAT"))
    config = RedactSpansConfig(actions_by_type={"IP": "drop", "REPEAT": "cut"})
    made = redact_spans(documents, {"m": mark(documents, MarkConfig(spans=spans))}, config)
    books = {row["unit"]: row for row in made["accounts"].read().to_pylist()}
    size = len(LETTER.encode())
    assert (books["bytes"]["input"], books["bytes"]["removed_rows"]) == (3 * size, size)
    assert (books["bytes"]["removed_spans"], books["bytes"]["replaced"]) == (4, 4 - len("<EMAIL>"))
    assert (books["rows"]["input"], books["rows"]["kept"]) == (3, 2)


@pytest.mark.parametrize("place", [(0, 8, 10), (0, 5, 8), (0, 5, 99), (0, 9, 9), (0, -1, 3)])
def test_spans_that_do_not_fit_their_text_are_refused(session, place):
    with pytest.raises(HallmarkError, match="were found in other texts"):
        treated([LETTER], ((*place, "IP"),))


def test_spans_of_other_documents_are_refused(session):
    documents = given([LETTER])
    others = mark(documents, MarkConfig(spans=((0, 0, 4, "IP"),), of_others=True))
    with pytest.raises(HallmarkError, match="1 documents that are not in"):
        redact_spans(documents, {"m": others}, RedactSpansConfig())


def test_another_policy_finds_nothing_again(tmp_path):
    seen = []
    session = Session(Store(tmp_path), listener=lambda e: seen.append((e.kind, e.label)))
    with open_session(session):
        scrubbed(given(TEXTS))
        seen.clear()
        scrubbed(given(TEXTS), config=RedactSpansConfig(action="cut"))
    assert ("cached", "find_personal_data") in seen and ("done", "redact_spans") in seen


@pytest.mark.parametrize(
    "values",
    [
        {"actions_by_type": {"NAME": "mask"}},
        {"action": "hide"},
        {"actions_by_type": {"UNREADABLE": "keep"}},
    ],
)
def test_unknown_types_and_policies_are_refused(values):
    with pytest.raises(ValidationError):
        RedactSpansConfig(**values)
