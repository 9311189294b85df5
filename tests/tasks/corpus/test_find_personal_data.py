"""Finding personal data: where spans stand, their keyed hashes, texts too much to look through."""

from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import StageContext
from hallmark.tasks.corpus.find_personal_data import (
    PersonalDataConfig,
    SecretKey,
    find_personal_data,
    find_personal_data_in_batch,
)
from hallmark.tasks.measures.personal.contact_details import MAX_PHONE_CANDIDATES
from hallmark.tasks.measures.personal_data import PERSONAL_DATA_TYPES
from tests.tasks.corpora import given, scrubbed

TEXTS = [
    "Ünïcode 漢字 jane@corp.example and ９３.184.216.34, again jane@corp.example.",
    "Nothing here.",
    "",
    "Pay to DE89370400440532013000 or 4111\u00a01111\u00a01111\u00a01111; call +442083661177!",
]


def test_spans_are_bytes_of_the_text(session):
    source = given(TEXTS)
    made = find_personal_data(source, PersonalDataConfig())
    text_of = {
        row["doc_id"]: row["text"].encode() for row in source["documents"].read().to_pylist()
    }
    key = SecretKey(bytes.fromhex((Path(session.store.uri) / "secret").read_text()))
    found = []
    for row in made["spans"].read().to_pylist():
        value = text_of[row["doc_id"]][row["byte_start"] : row["byte_end"]].decode()
        found.append((row["type"], value))
        assert row["span_hash"] == key.hash_value(value)
    assert found == [
        ("EMAIL", "jane@corp.example"),
        ("IP", "９３.184.216.34"),
        ("EMAIL", "jane@corp.example"),
        ("IBAN", "DE89370400440532013000"),
        ("CARD", "4111\u00a01111\u00a01111\u00a01111"),
        ("PHONE", "+442083661177"),
    ]


def test_nothing_found_stands_in_clear(session):
    made = find_personal_data(given([TEXTS[3]]), PersonalDataConfig())
    shown = str(made.manifest) + str(made["spans"].read().to_pylist())
    shown = shown.replace("\\xa0", "")
    # Long enough to stand in no digest by chance.
    for hidden in (session.store.secret.hex(), "4111111111111111", "DE89370400", "442083661177"):
        assert hidden not in shown
    assert repr(SecretKey(b"secret")) == str(SecretKey(b"secret")) == "Key(...)"


def test_batches_of_any_size_give_the_same_rows():
    batch = given_batch(TEXTS * 3)
    whole = pa.table(find_personal_data_in_batch(batch, PersonalDataConfig(), SecretKey(b"k")))
    pieces = [
        find_personal_data_in_batch(batch.slice(i, 5), PersonalDataConfig(), SecretKey(b"k"))
        for i in (0, 5, 10)
    ]
    assert pa.concat_tables(map(pa.table, pieces)).equals(whole)
    assert len(whole) == 18


def given_batch(texts):
    ids = pa.array([n.to_bytes(16, "big") for n in range(len(texts))], pa.binary(16))
    columns = {"doc_id": ids, "text": pa.array(texts, pa.large_string())}
    return pa.RecordBatch.from_pydict(columns)


def test_a_document_with_too_many_candidates_leaves_and_the_others_stay(session):
    directory = "".join(f"+49 30 {n:08d}\n" for n in range(MAX_PHONE_CANDIDATES + 1))
    made = scrubbed(given(["Call +442083661177.", directory, "Nothing."]))
    assert made["documents"].read()["text"].to_pylist() == ["Call <PHONE>.", "Nothing."]
    rows = made["ledger"].read(["action", "reason"]).to_pylist()
    assert rows[1:] == [{"action": "quarantined", "reason": "UNREADABLE"}]


def test_ten_megabytes_of_digits_in_one_line_are_read(session):
    made = find_personal_data(given(["1" * 10_000_000]), PersonalDataConfig())
    assert made["spans"].row_count == 0


def test_the_key_hashes_as_the_contract_does(tmp_path):
    work = StageContext(tmp_path, {}, secret=b"a secret")
    values = ["jane@corp.example", "漢字", "lone \ud800"]
    assert [SecretKey(b"a secret").hash_value(v) for v in values] == work.hash_with_secret(values)


@pytest.mark.parametrize("values", [{"types": ("NAME",)}, {"regions": ("XX",)}])
def test_unknown_types_and_regions_are_refused(values):
    with pytest.raises(ValidationError):
        PersonalDataConfig(**values)
    assert PersonalDataConfig().types == PERSONAL_DATA_TYPES
