"""Scrubbing: masks, offsets, keyed hashes and accounts."""

import hashlib
import hmac
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.contract import Processes, Session, Store, Work, open_session, text_hashes
from tasks.corpus.scrub import Key, ScrubConfig, scrub, scrub_batch
from tasks.measures.personal_data import TYPES
from tests.tasks.corpora import given

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
    made = scrub(given(TEXTS), ScrubConfig())
    documents = made["documents"].read()
    assert documents["text"].to_pylist() == MASKED
    assert documents["text_hash"].combine_chunks().equals(text_hashes(documents["text"]))


def test_ledger_rows_name_the_characters_of_the_incoming_text(session):
    source = given(TEXTS)
    made = scrub(source, ScrubConfig())
    text_of = {row["doc_id"]: row["text"] for row in source["documents"].read().to_pylist()}
    values = []
    for row in made["ledger"].read().to_pylist():
        value = text_of[row["doc_id"]][row["start"] : row["end"]]
        values.append((row["reason"], value))
        assert row["action"] == "replaced"
        assert row["bytes_before"] == len(value.encode())
        assert row["bytes_after"] == len(f"<{row['reason']}>")
        key = bytes.fromhex((Path(session.store.uri) / "secret").read_text())
        assert row["digest"] == hmac.new(key, value.encode(), hashlib.sha256).digest()[:16]
    assert values == [
        ("EMAIL", "jane@corp.example"),
        ("IP", "93.184.216.34"),
        ("EMAIL", "jane@corp.example"),
        ("IBAN", "DE89370400440532013000"),
        ("CARD", "4111 1111 1111 1111"),
        ("PHONE", "+442083661177"),
    ]


def test_the_text_comes_back_from_the_masked_one_and_the_ledger(session):
    """No character but those of the spans has changed."""
    source = given(TEXTS)
    made = scrub(source, ScrubConfig())
    before = source["documents"].read().to_pylist()
    ledger = made["ledger"].read().to_pylist()
    for old, new in zip(before, made["documents"].read().to_pylist(), strict=True):
        text, shift = new["text"], 0
        for row in (r for r in ledger if r["doc_id"] == old["doc_id"]):
            start, mask = row["start"] + shift, f"<{row['reason']}>"
            assert text[start : start + len(mask)] == mask
            value = old["text"][row["start"] : row["end"]]
            text = text[:start] + value + text[start + len(mask) :]
        assert text == old["text"]


def test_the_accounts_hold_the_difference_in_bytes(session):
    made = scrub(given(TEXTS, sources=["a", "a", "b", "b"]), ScrubConfig())
    books = {(r["source"], r["unit"]): r for r in made["accounts"].read().to_pylist()}
    size = [sum(len(t.encode()) for t in texts[:2]) for texts in (TEXTS, MASKED)]
    book = books[("a", "bytes")]
    assert (book["in"], book["kept"], book["replaced"]) == (size[0], size[1], size[0] - size[1])
    assert books[("b", "rows")]["in"] == books[("b", "rows")]["kept"] == 2


def test_only_chosen_types_are_masked(session):
    made = scrub(given(TEXTS), ScrubConfig(types=("IP",)))
    texts = made["documents"].read()["text"].to_pylist()
    assert texts == [TEXTS[0].replace("93.184.216.34", "<IP>"), *TEXTS[1:]]


def test_masked_text_is_not_masked_again(session):
    once = scrub(given(TEXTS), ScrubConfig())
    twice = scrub(once, ScrubConfig())
    assert twice["ledger"].rows == 0
    assert twice["documents"].digest == once["documents"].digest


def test_output_does_not_depend_on_parts_workers_or_order(tmp_path):
    texts = [f"{i}: {TEXTS[i % 4 if i % 40 < 4 else 1]}" for i in range(20_000)]
    secret = (tmp_path / "one" / "secret", tmp_path / "two" / "secret")
    contents = []
    for path, mapper in zip(secret, (None, Processes(2)), strict=True):
        path.parent.mkdir()
        path.write_text("ab" * 32)
        session = Session(Store(path.parent), mapper) if mapper else Session(Store(path.parent))
        with open_session(session):
            made = scrub(given(texts, parts=4), ScrubConfig())
            contents.append(made.content)
            assert len(made["ledger"].parts) == 4
            in_parts = made["documents"].read(["doc_id", "text"]).to_pylist()
    assert contents[0] == contents[1]
    with open_session(Session(Store(tmp_path / "three"))):
        rows = scrub(given(texts), ScrubConfig())["documents"].read(["doc_id", "text"]).to_pylist()
        backwards = scrub(given(texts[::-1]), ScrubConfig())
        other = backwards["documents"].read(["text"])["text"].to_pylist()
    assert sorted(rows, key=lambda row: row["doc_id"]) == in_parts
    assert other[::-1] == [row["text"] for row in rows]


def test_batches_of_any_size_give_the_same_rows(session):
    batch = given(TEXTS * 3)["documents"].read().combine_chunks().to_batches()[0]
    key = Key(b"k")
    whole, ledger = scrub_batch(batch, ScrubConfig(), key)
    pieces = [scrub_batch(batch.slice(i, 5), ScrubConfig(), key) for i in range(0, 12, 5)]
    assert pa.concat_tables(pa.table(p[0]) for p in pieces).equals(pa.table(whole))
    assert [start for p in pieces for start in p[1]["start"]] == list(ledger["start"])


def test_another_secret_is_another_fingerprint_and_other_hashes(tmp_path):
    made = []
    for name in ("one", "two"):
        with open_session(Session(Store(tmp_path / name))):
            made.append(scrub(given(TEXTS), ScrubConfig()))
    assert made[0].fingerprint != made[1].fingerprint
    digests = [artifact["ledger"].read()["digest"].to_pylist() for artifact in made]
    assert not set(digests[0]) & set(digests[1])
    assert digests[0][0] == digests[0][2]  # the same address twice


def test_secret_and_personal_data_stay_out_of_sight(tmp_path):
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        made = scrub(given([TEXTS[3]] * 2), ScrubConfig())
    shown = [str(made.manifest), *(str(c.to_pylist()) for c in made["ledger"].read().columns)]
    for hidden in (store.secret.hex(), "4111 1111", "DE8937", "442083661177"):
        assert not any(hidden in text for text in shown)
    assert repr(Key(store.secret)) == str(Key(store.secret)) == "Key(...)"


def test_the_key_hashes_as_the_contract_does(tmp_path):
    work = Work(tmp_path, {}, secret=b"a secret")
    values = ["jane@corp.example", "漢字", "lone \ud800"]
    assert [Key(b"a secret").hash(v) for v in values] == work.keyed_hashes(values)


@pytest.mark.parametrize("values", [{"types": ("NAME",)}, {"regions": ("XX",)}])
def test_unknown_types_and_regions_are_refused(values):
    with pytest.raises(ValidationError):
        ScrubConfig(**values)
    assert ScrubConfig().types == TYPES
