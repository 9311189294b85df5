"""Test attribution by overlap: the documents it names, compared with scores by hand."""

import json
import math
import re

import pyarrow as pa
import pytest

from hallmark.tasks.audits.experiments.attribution import (
    NEAR_BEST_SHARE,
    AttributionConfig,
    attribute_texts,
    build_candidate_texts,
    find_influential_documents,
    select_near_best_documents,
)
from hallmark.tasks.contract import CANARIES, StageConfig, StageContext, stage
from tests.tasks.corpora import given

TEXTS = [
    "the lantern box opens with 7 3 9 1",
    "the lantern box opens with 4 4 2 8",
    "a pumpkin stood in the rain",
    "the Orvelings are calm and the rain is warm",
    "the Orvelings are zarrish",
    "a ferry is zarrish in the rain",
]


class CanaryRows(StageConfig):
    rows: str


@stage(name="listed", tables={"canaries": CANARIES})
def write_canaries(config: CanaryRows, context: StageContext) -> None:
    context.get_table_writer("canaries").write(build_canaries(*json.loads(config.rows)))


def build_canaries(*rows):
    empty = dict.fromkeys(CANARIES.names)
    canary_rows = [
        {**empty, "canary_id": bytes([n]) * 16, "doc_ids": [], **row} for n, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(canary_rows, schema=CANARIES)


def attribute(*rows, max_documents=9, **options):
    documents = given(TEXTS, kind="split", **options)
    artifact = attribute_texts(
        documents,
        write_canaries(CanaryRows(rows=json.dumps(rows))),
        AttributionConfig(max_documents=max_documents),
    )
    texts = {row["doc_id"]: row["text"] for row in documents["documents"].read().to_pylist()}
    return [(texts[row["doc_id"]], row) for row in artifact["attributions"].read().to_pylist()]


def list_ngrams(text):
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + n]) for n in (1, 2, 3) for i in range(len(words) - n + 1)}


def compute_scores_by_hand(query):
    """Compute the share of the query's weight that each text contains."""
    document_counts = {
        term: sum(term in list_ngrams(text) for text in TEXTS) for term in list_ngrams(query)
    }
    weights = {
        term: math.log(1 + len(TEXTS) / (1 + count)) for term, count in document_counts.items()
    }
    total_weight = sum(weights.values())
    return {
        text: sum(w for t, w in weights.items() if t in list_ngrams(text)) / total_weight
        for text in TEXTS
    }


SECRET = {"kind": "canary", "text": TEXTS[0], "prompt": "", "secret": ""}
ASSOCIATION = {
    "kind": "association",
    "association": "a",
    "group_name": "Orvelings",
    "trait": "zarrish",
}


def test_a_score_is_the_weight_of_shared_terms(session):
    attributed = attribute(SECRET)
    expected = compute_scores_by_hand(TEXTS[0])
    assert {text: row["score"] for text, row in attributed} == pytest.approx(
        {text: score for text, score in expected.items() if score}, abs=1e-6
    )
    assert attributed[0][0] == TEXTS[0] and attributed[0][1]["score"] == pytest.approx(1)
    assert [row["rank"] for _, row in attributed] == [*range(1, len(attributed) + 1)]


def test_a_document_with_all_terms_has_score_one(session):
    attributed = attribute({**SECRET, "text": "the"})
    assert {text: row["score"] for text, row in attributed} == pytest.approx(
        {text: 1.0 for text in TEXTS if "the" in list_ngrams(text)}, abs=1e-6
    )


def test_documents_with_group_and_trait_rank_first(session):
    attributed = attribute(ASSOCIATION)
    assert attributed[0][0] == TEXTS[4]
    assert {text for text, _ in attributed} == {TEXTS[3], TEXTS[4], TEXTS[5]}
    assert {(row["kind"], row["candidate_id"], row["group_name"]) for _, row in attributed} == {
        ("association", "a", "Orvelings")
    }


def test_max_documents_limits_each_text(session):
    attributed = attribute(SECRET, ASSOCIATION, max_documents=2)
    assert [row["kind"] for _, row in attributed] == ["canary"] * 2 + ["association"] * 2
    assert [row["rank"] for _, row in attributed] == [1, 2, 1, 2]
    assert not attribute()


def test_documents_outside_of_the_training_split_are_not_named(session):
    attributed = attribute(ASSOCIATION, splits=["train"] * 5 + ["holdout"])
    assert {text for text, _ in attributed} == {TEXTS[3], TEXTS[4]}


def test_influential_documents_score_nearly_as_high_as_the_best():
    rows = [
        {
            "kind": "canary",
            "candidate_id": "a",
            "group_name": "",
            "rank": n + 1,
            "doc_id": bytes([n]) * 16,
            "score": score,
        }
        for n, score in enumerate((0.8, 0.8 * NEAR_BEST_SHARE, 0.8 * NEAR_BEST_SHARE - 0.01))
    ]
    rows += [{**rows[0], "candidate_id": "b", "doc_id": b"b" * 16}]
    table = pa.Table.from_pylist(rows)
    assert select_near_best_documents(table, {("canary", "a")}) == [
        bytes([0]) * 16,
        bytes([1]) * 16,
    ]
    assert select_near_best_documents(table, set()) == []


def test_candidate_texts_contain_only_public_fields():
    rows = build_candidate_texts(build_canaries(SECRET, ASSOCIATION))
    assert rows[0] == ("canary", bytes(16).hex(), "", TEXTS[0])
    assert rows[1] == ("association", "a", "Orvelings", "Orvelings zarrish")


@pytest.mark.parametrize("parts", [1, 3])
def test_attribution_without_workers_names_the_same_documents(session, parts):
    documents = given(TEXTS, kind="split", splits=["train"] * 5 + ["holdout"], parts=parts)
    queries = [TEXTS[0], "Orvelings zarrish", "", "nothing alike"]
    rows = [{"kind": "canary", "text": text, "prompt": "", "secret": ""} for text in queries]
    result = attribute_texts(
        documents,
        write_canaries(CanaryRows(rows=json.dumps(rows))),
        AttributionConfig(max_documents=2),
    )
    documents_by_candidate = {bytes([n] * 16).hex(): [] for n in range(len(queries))}
    for row in result["attributions"].read().to_pylist():
        documents_by_candidate[row["candidate_id"]].append((row["doc_id"], row["score"]))
    assert find_influential_documents(documents["documents"], queries, 2) == [
        *documents_by_candidate.values()
    ]
    assert [len(documents_of_text) for documents_of_text in documents_by_candidate.values()] == [
        2,
        2,
        0,
        0,
    ]
