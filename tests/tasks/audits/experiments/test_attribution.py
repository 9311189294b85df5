"""Attribution by overlap: which documents it names, against scores by hand."""

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
    select_influential_documents,
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


class Listed(StageConfig):
    rows: str


@stage(name="listed", tables={"canaries": CANARIES})
def listed(config: Listed, context: StageContext) -> None:
    context.get_table_writer("canaries").write(plants(*json.loads(config.rows)))


def plants(*rows):
    empty = dict.fromkeys(CANARIES.names)
    made = [
        {**empty, "canary_id": bytes([n]) * 16, "doc_ids": [], **row} for n, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, schema=CANARIES)


def named(*rows, top=9, **more):
    documents = given(TEXTS, kind="split", **more)
    artifact = attribute_texts(
        documents, listed(Listed(rows=json.dumps(rows))), AttributionConfig(max_documents=top)
    )
    texts = {row["doc_id"]: row["text"] for row in documents["documents"].read().to_pylist()}
    return [(texts[row["doc_id"]], row) for row in artifact["attributions"].read().to_pylist()]


def runs(text):
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + n]) for n in (1, 2, 3) for i in range(len(words) - n + 1)}


def by_hand(query):
    """Of each text the share of the query's weight that it holds."""
    held = {term: sum(term in runs(text) for text in TEXTS) for term in runs(query)}
    weights = {term: math.log(1 + len(TEXTS) / (1 + many)) for term, many in held.items()}
    whole = sum(weights.values())
    return {text: sum(w for t, w in weights.items() if t in runs(text)) / whole for text in TEXTS}


SECRET = {"kind": "canary", "text": TEXTS[0], "prompt": "", "secret": ""}
PAIR = {"kind": "association", "association": "a", "group_name": "Orvelings", "trait": "zarrish"}


def test_documents_are_scored_by_the_weight_of_what_they_share(session):
    found = named(SECRET)
    expected = by_hand(TEXTS[0])
    assert {text: row["score"] for text, row in found} == pytest.approx(
        {text: score for text, score in expected.items() if score}, abs=1e-6
    )
    assert found[0][0] == TEXTS[0] and found[0][1]["score"] == pytest.approx(1)
    assert [row["rank"] for _, row in found] == [*range(1, len(found) + 1)]


def test_who_holds_all_of_a_text_has_all_of_its_weight_however_little_that_is(session):
    found = named({**SECRET, "text": "the"})
    assert {text: row["score"] for text, row in found} == pytest.approx(
        {text: 1.0 for text in TEXTS if "the" in runs(text)}, abs=1e-6
    )


def test_of_an_association_documents_that_hold_both_words_stand_first(session):
    found = named(PAIR)
    assert found[0][0] == TEXTS[4]
    assert {text for text, _ in found} == {TEXTS[3], TEXTS[4], TEXTS[5]}
    assert {(row["kind"], row["candidate_id"], row["group_name"]) for _, row in found} == {
        ("association", "a", "Orvelings")
    }


def test_as_many_as_asked_for_of_each_text(session):
    found = named(SECRET, PAIR, top=2)
    assert [row["kind"] for _, row in found] == ["canary"] * 2 + ["association"] * 2
    assert [row["rank"] for _, row in found] == [1, 2, 1, 2]
    assert not named()


def test_what_is_not_trained_on_is_not_named(session):
    found = named(PAIR, splits=["train"] * 5 + ["holdout"])
    assert {text for text, _ in found} == {TEXTS[3], TEXTS[4]}


def test_those_are_predicted_to_matter_that_hold_nearly_as_much_as_the_first():
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
    assert select_influential_documents(table, {("canary", "a")}) == [
        bytes([0]) * 16,
        bytes([1]) * 16,
    ]
    assert select_influential_documents(table, set()) == []


def test_a_candidate_is_looked_for_by_what_the_public_knows_of_it():
    rows = build_candidate_texts(plants(SECRET, PAIR))
    assert rows[0] == ("canary", bytes(16).hex(), "", TEXTS[0])
    assert rows[1] == ("association", "a", "Orvelings", "Orvelings zarrish")


@pytest.mark.parametrize("parts", [1, 3])
def test_without_workers_the_same_documents_are_named(session, parts):
    documents = given(TEXTS, kind="split", splits=["train"] * 5 + ["holdout"], parts=parts)
    queries = [TEXTS[0], "Orvelings zarrish", "", "nothing alike"]
    rows = [{"kind": "canary", "text": text, "prompt": "", "secret": ""} for text in queries]
    made = attribute_texts(
        documents, listed(Listed(rows=json.dumps(rows))), AttributionConfig(max_documents=2)
    )
    by_unit = {bytes([n] * 16).hex(): [] for n in range(len(queries))}
    for row in made["attributions"].read().to_pylist():
        by_unit[row["candidate_id"]].append((row["doc_id"], row["score"]))
    assert find_influential_documents(documents["documents"], queries, 2) == [*by_unit.values()]
    assert [len(each) for each in by_unit.values()] == [2, 2, 0, 0]
