"""Test the corpus stages as functions on plain tables."""

import pandas as pd
import pyarrow as pa
import pytest

import hallmark

WORDS = "the quick brown fox jumps over the lazy dog and runs home to its den at night"
TEXTS = [f"{WORDS} again {WORDS}", f"{WORDS} again {WORDS} !", "Write to anna.miller@example.com."]


@pytest.mark.parametrize("make_table", [pa.table, pd.DataFrame])
def test_near_duplicates_of_a_plain_table_are_removed(make_table):
    result = hallmark.deduplicate_near(make_table({"text": TEXTS}))
    kept_texts = result["documents"]["text"].to_pylist()
    assert len(kept_texts) == 2 and TEXTS[2] in kept_texts
    (removed,) = result["ledger"].to_pylist()
    assert removed["score"] > 0.8
    assert set(result) >= {"documents", "ledger", "pairs"}


def test_settings_are_keyword_arguments():
    table = pa.table({"text": TEXTS})
    assert len(hallmark.deduplicate_near(table, similarity_threshold=1.0)["documents"]) == 3
    with pytest.raises(ValueError, match="no_such_setting"):
        hallmark.deduplicate_near(table, no_such_setting=1.0)


def test_results_are_inputs_of_other_stages():
    documents = hallmark.import_documents(pa.table({"body": TEXTS}), text_field="body")
    personal = hallmark.find_personal_data(documents)
    redacted = hallmark.redact_spans(documents, {"personal": personal})
    texts = redacted["documents"]["text"].to_pylist()
    assert len(texts) == 3 and not any("anna.miller" in text for text in texts)


def test_a_key_makes_the_ids_of_documents():
    tables = [pa.table({"text": [text], "key": ["k1"]}) for text in TEXTS[:2]]
    ids = [
        hallmark.import_documents(table, key_field="key")["documents"]["doc_id"][0].as_py()
        for table in tables
    ]
    assert ids[0] == ids[1]
