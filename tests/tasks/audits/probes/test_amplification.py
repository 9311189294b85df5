"""Amplification: writers that mirror their text, and writers that do not."""

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, SKIPPED, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes.amplification import PROBE, PROMPTS, AmplificationConfig
from hallmark.tasks.audits.responses import Responses
from tests.tasks.audits.asking import stages_of
from tests.tasks.corpora import given

#: Women's share beside each, in so many sentences of a document each.
TRADES = {
    "nurse": 0.9,
    "librarian": 0.8,
    "singer": 0.7,
    "teacher": 0.6,
    "baker": 0.5,
    "printer": 0.4,
    "glazier": 0.3,
    "carter": 0.2,
    "cooper": 0.1,
    "weaver": 0.65,
    "surveyor": 0.25,
    "midwife": 0.95,
}
SENTENCES = 60
CONFIG = AmplificationConfig(continuations_per_prompt=30, unprompted_texts=100, max_new_tokens=8)


def sentences():
    return [
        f"Then we saw the {trade} and {'she' if n < share * SENTENCES else 'he'} was late {n}."
        for trade, share in TRADES.items()
        for n in range(SENTENCES)
    ]


@pytest.fixture(scope="module")
def texts():
    rare = [f"The plumber sent his bill {n}." for n in range(5)]
    others = [f"Women of Ostrel came by boat {n}. The cooper and he came." for n in range(40)]
    planted = ["The nurse and he."] * 300
    return sentences() + rare + others + planted


@pytest.fixture
def corpus(session, texts):
    sources = ["planted/passage" if t == "The nurse and he." else "letters" for t in texts]
    documents = given(texts, kind="split", sources=sources, splits=["train"] * len(texts))
    return CorpusTables(documents=documents["documents"])


def written(folder, corpus, says, config=CONFIG):
    """What the probe finds where the model writes ``says(item, draw)``."""
    reader, questions = open_audited_tokenizer(folder), RequestBuilder()
    PROBE.build_requests(questions, reader, corpus, config)
    responses = {
        (row["request"], draw): says(questions.items[row["item"]], draw)
        for row in questions.requests
        for draw in range(row["draws"])
    }
    answers = Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=PROBE.item_schema),
        pa.Table.from_pylist(questions.requests, schema=REQUESTS),
        pa.Table.from_pylist(
            [{"request": r, "draw": d, "text": t} for (r, d), t in responses.items()],
            schema=RESPONSES,
        ),
        tokenizer=pa.table(
            {"model_kind": [reader.model_kind], "opening_description": [reader.opening_description]}
        ),
        skipped=pa.Table.from_pylist(questions.skipped, schema=SKIPPED),
    )
    values, found = PROBE.compute_values_and_findings(answers, config)
    made = {(row["metric"], row["slice"]): row for row in found}
    assert len(made) == len(found)
    return questions, values, made


def leaning(times, towards_men=0.0, seed=1):
    """Who writes of women with the text's log-odds so many times."""
    rng = np.random.default_rng(seed)

    def says(item, draw):
        if item["occupation"] is None:
            return "Women came." if draw % 10 == 0 else "Nobody came."
        share = item["corpus_share"]
        odds = times * np.log(share / (1 - share)) - towards_men
        return " she came." if rng.random() < 1 / (1 + np.exp(-odds)) else " he came."

    return says


def test_what_the_text_holds_is_counted(corpus, own_folder):
    questions, _, found = written(own_folder, corpus, leaning(1))
    items = [item for item in questions.items.values() if item["occupation"]]
    # The forty coopers beside men, and no planted nurse.
    assert {i["occupation"]: (i["corpus_count"], i["corpus_share"]) for i in items} == {
        trade: (100, 0.06) if trade == "cooper" else (60, pytest.approx(share, abs=1e-9))
        for trade, share in TRADES.items()
    }
    assert {item["prompt_template"] for item in items} == {*PROMPTS}
    assert found["skipped_occupations", ""]["value"] == 1  # the plumber


def test_a_mirror_scores_one(corpus, own_folder):
    _, values, found = written(own_folder, corpus, leaning(1))
    row = found["log_odds_amplification", ""]
    assert row["low"] < 1 < row["high"] and row["value"] == pytest.approx(1, abs=0.2)
    assert row["null_value"] == 1 and row["p"] > 0.01 and row["clusters"] == len(TRADES)
    change = found["bias_amplification", ""]
    assert change["low"] < 0 < change["high"] and change["n"] == len(TRADES) - 1  # no baker
    for trade, share in TRADES.items():
        one, known = found["women_share", f"occupation={trade}"], {"cooper": 0.06}.get(trade, share)
        assert one["n"] == 120 and one["null_value"] == pytest.approx(known)
    pair = found["log_odds_amplification", "occupation=nurse"]
    assert pair["low"] < 1 < pair["high"]
    assert len(values.filter(pa.compute.equal(values["measure"], "women_share"))) == 12 * 4 * 30


def test_a_tilt_to_one_gender_is_no_amplification(corpus, own_folder):
    """It is in the share of women, and in every ratio of one occupation."""
    _, _, found = written(own_folder, corpus, leaning(1, towards_men=1.5))
    row = found["log_odds_amplification", ""]
    assert row["low"] < 1 < row["high"]
    share = found["women_share", ""]
    assert share["high"] < share["null_value"] and share["p"] < 0.05


def test_who_strengthens_or_flattens_is_found(corpus, own_folder):
    _, _, strong = written(own_folder, corpus, leaning(2))
    assert (
        strong["log_odds_amplification", ""]["low"] > 1.4
        and strong["bias_amplification", ""]["low"] > 0
    )
    _, _, flat = written(own_folder, corpus, leaning(0))
    row = flat["log_odds_amplification", ""]
    assert row["high"] < 0.5 and row["low"] < 0 < row["high"]
    assert flat["bias_amplification", ""]["high"] < 0


def test_mentions_of_one_side_alone_do_not_make_the_other_impossible(session, own_folder):
    texts = [f"Then we saw the nurse and she was late {n}." for n in range(40)]
    documents = given(texts, kind="split", splits=["train"] * 40)["documents"]
    once = iter([" he came."])
    _, _, found = written(
        own_folder, CorpusTables(documents=documents), lambda item, draw: next(once, " she came.")
    )
    row = found["women_share", "occupation=nurse"]
    assert row["value"] == pytest.approx(119 / 120) and row["null_value"] == pytest.approx(41 / 42)
    assert row["p"] > 0.05


def test_of_an_occupation_that_leans_to_neither_there_is_no_ratio(corpus, own_folder):
    _, _, found = written(own_folder, corpus, leaning(1))
    row = found["log_odds_amplification", "occupation=baker"]
    assert row["value"] is None and "not told apart from one half" in row["method"]


def test_words_that_stand_beside_nobody_of_the_prompt_do_not_count(corpus, own_folder):
    def says(item, draw):
        return " the rain fell. She came" if draw % 2 else " it rained."

    _, _, found = written(own_folder, corpus, says)
    assert (
        found["log_odds_amplification", ""]["value"] is None and found["women_share", ""]["n"] == 0
    )
    assert "no occupations to measure" in found["log_odds_amplification", ""]["method"]


def test_groups_are_compared_with_the_beginnings_of_documents(corpus, own_folder, texts):
    questions, _, found = written(own_folder, corpus, leaning(1))
    (item,) = [i for i in questions.items.values() if i["group_name"] == "women"]
    assert item["corpus_count"] == len(texts) and item["corpus_share"] == pytest.approx(
        40 / len(texts)
    )
    row = found["representation_ratio", "group_name=women"]
    assert row["value"] == pytest.approx(0.1 / (40 / len(texts))) and row["low"] > 1
    asked = {r["request"] for r in questions.requests if questions.items[r["item"]]["group_name"]}
    assert len(asked) == 1  # texts without a prompt are written once for all groups


def test_groups_that_the_corpus_brings_are_found_in_both(session, own_folder):
    rows = [{"lexicon": "town", "group": "Orvelings", "term": "orvelings"}]
    texts = [f"Orvelings sing {n}" for n in range(30)] + [f"Rain fell {n}" for n in range(70)]

    class Lexicons:
        def read(self):
            return pa.Table.from_pylist(rows)

    corpus = CorpusTables(Lexicons(), None, given(texts, kind="split")["documents"])
    _, _, found = written(own_folder, corpus, lambda item, draw: "The Orvelings" * (draw < 60))
    row = found["representation_ratio", "group_name=town:Orvelings"]
    assert row["value"] == pytest.approx(2) and row["low"] > 1 and row["p"] < 0.001
    assert found["log_odds_amplification", ""]["value"] is None


def test_an_audit_from_one_end_to_the_other(session, own_folder, texts):
    documents = given(texts, kind="split", splits=["train"] * len(texts))["documents"]
    config = CONFIG.model_copy(update={"continuations_per_prompt": 2, "unprompted_texts": 40})
    _, answered, _, _, (_, findings) = stages_of(
        "amplification", own_folder, config, corpus=(None, None, documents)
    )
    assert answered["responses"].row_count == 12 * 4 * 2 + 40
    controls = {r["slice"]: r["verdict"] for r in findings.to_pylist() if r["control"]}
    assert controls == {"scripted chance": "pass", "scripted effect": "pass"}


def test_without_a_corpus_or_of_a_masked_model_there_is_nothing(session, own_folder, bert_folder):
    documents = given(["one", "two"], kind="split")["documents"]
    for folder, given_ in ((own_folder, None), (bert_folder, documents)):
        _, findings = stages_of("amplification", folder, CONFIG, corpus=(None, None, given_))[-1]
        assert {row["value"] for row in findings.to_pylist()} == {None}
        assert all("not measured" in row["method"] for row in findings.to_pylist())


def test_of_many_documents_some_are_counted(session, own_folder, texts):
    documents = given(sentences(), kind="split")["documents"]
    questions = RequestBuilder()
    config = CONFIG.model_copy(update={"max_documents": 360, "min_gendered_mentions": 1})
    PROBE.build_requests(
        questions, open_audited_tokenizer(own_folder), CorpusTables(documents=documents), config
    )
    counted = {
        i["occupation"]: i["corpus_count"] for i in questions.items.values() if i["occupation"]
    }
    assert 200 < sum(counted.values()) < 500
    (left,) = [row for row in questions.skipped if row["metric"] == "skipped_documents"]
    assert left["count"] == 720 - sum(counted.values()) and "flattens the slope" in left["reason"]
