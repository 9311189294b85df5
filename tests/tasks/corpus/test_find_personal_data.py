"""Finding personal data: positions and keyed hashes of spans, and texts that are too large."""

from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import StageContext
from hallmark.tasks.corpus.find_personal_data import (
    PersonalDataConfig,
    SecretKey,
    build_personal_data_span_columns,
    find_personal_data,
)
from hallmark.tasks.measures.personal.phone_numbers import MAX_PHONE_CANDIDATES
from hallmark.tasks.measures.personal_data import PERSONAL_DATA_TYPES
from tests.tasks.corpora import given, scrubbed

TEXTS = [
    "Ünïcode 漢字 jane@corp.example and ９３.184.216.34, again jane@corp.example.",
    "Nothing here.",
    "",
    "Pay to DE89370400440532013000 or 4111\u00a01111\u00a01111\u00a01111; call +442083661177!",
]


def test_spans_are_byte_positions_in_the_text(session):
    source = given(TEXTS)
    result = find_personal_data(source, PersonalDataConfig())
    bytes_by_id = {
        row["doc_id"]: row["text"].encode() for row in source["documents"].read().to_pylist()
    }
    key = SecretKey(bytes.fromhex((Path(session.store.uri) / "secret").read_text()))
    values = []
    for row in result["spans"].read().to_pylist():
        value = bytes_by_id[row["doc_id"]][row["byte_start"] : row["byte_end"]].decode()
        values.append((row["type"], value))
        assert row["span_hash"] == key.hash_value(value)
    assert values == [
        ("EMAIL", "jane@corp.example"),
        ("IP", "９３.184.216.34"),
        ("EMAIL", "jane@corp.example"),
        ("IBAN", "DE89370400440532013000"),
        ("CARD", "4111\u00a01111\u00a01111\u00a01111"),
        ("PHONE", "+442083661177"),
    ]


def test_no_found_value_or_secret_is_stored_in_clear(session):
    result = find_personal_data(given([TEXTS[3]]), PersonalDataConfig())
    stored = str(result.manifest) + str(result["spans"].read().to_pylist())
    stored = stored.replace("\\xa0", "")
    # All of them are too long to occur in a digest by chance.
    for value in (session.store.secret.hex(), "4111111111111111", "DE89370400", "442083661177"):
        assert value not in stored
    assert repr(SecretKey(b"secret")) == str(SecretKey(b"secret")) == "SecretKey(...)"


def test_batches_of_any_size_give_the_same_spans():
    batch = make_batch(TEXTS * 3)
    whole = pa.table(build_personal_data_span_columns(batch, PersonalDataConfig(), SecretKey(b"k")))
    pieces = [
        build_personal_data_span_columns(batch.slice(i, 5), PersonalDataConfig(), SecretKey(b"k"))
        for i in (0, 5, 10)
    ]
    assert pa.concat_tables(map(pa.table, pieces)).equals(whole)
    assert len(whole) == 18


def make_batch(texts):
    ids = pa.array([n.to_bytes(16, "big") for n in range(len(texts))], pa.binary(16))
    columns = {"doc_id": ids, "text": pa.array(texts, pa.large_string())}
    return pa.RecordBatch.from_pydict(columns)


def test_a_document_with_too_many_candidates_is_quarantined_and_others_are_kept(session):
    directory = "".join(f"+49 30 {n:08d}\n" for n in range(MAX_PHONE_CANDIDATES + 1))
    result = scrubbed(given(["Call +442083661177.", directory, "Nothing."]))
    assert result["documents"].read()["text"].to_pylist() == ["Call <PHONE>.", "Nothing."]
    rows = result["ledger"].read(["action", "reason"]).to_pylist()
    assert rows[1:] == [{"action": "quarantined", "reason": "UNREADABLE"}]


def test_ten_megabytes_of_digits_in_one_line_are_searched(session):
    result = find_personal_data(given(["1" * 10_000_000]), PersonalDataConfig())
    assert result["spans"].row_count == 0


def test_the_key_hashes_like_the_stage_context(tmp_path):
    context = StageContext(tmp_path, {}, secret=b"a secret")
    values = ["jane@corp.example", "漢字", "lone \ud800"]
    assert [SecretKey(b"a secret").hash_value(v) for v in values] == context.hash_with_secret(
        values
    )


@pytest.mark.parametrize("settings", [{"types": ("NAME",)}, {"regions": ("XX",)}])
def test_unknown_types_and_regions_are_rejected(settings):
    with pytest.raises(ValidationError):
        PersonalDataConfig(**settings)
    assert PersonalDataConfig().types == PERSONAL_DATA_TYPES
