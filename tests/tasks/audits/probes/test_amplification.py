"""Test the probe amplification on simulated models that mirror their training text or do not."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import ttest_1samp

from hallmark.tasks.audits.audit_tables import RESPONSES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import estimate_measure
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes.amplification import PROBE, PROMPTS, AmplificationConfig
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from tests.builders import item_rows, row_dicts
from tests.findings import findings_to_rows
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.corpora import given

#: Share of women near each occupation, in SENTENCES documents of one sentence each.
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


def build_occupation_texts():
    return [
        f"Then we saw the {trade} and {'she' if n < share * SENTENCES else 'he'} was late {n}."
        for trade, share in TRADES.items()
        for n in range(SENTENCES)
    ]


@pytest.fixture(scope="module")
def texts():
    rare = [f"The plumber sent his bill {n}." for n in range(5)]
    women_texts = [f"Women of Ostrel came by boat {n}. The cooper and he came." for n in range(40)]
    planted = ["The nurse and he."] * 300
    return build_occupation_texts() + rare + women_texts + planted


@pytest.fixture
def corpus(session, texts):
    sources = ["planted/passage" if t == "The nurse and he." else "letters" for t in texts]
    documents = given(texts, kind="split", sources=sources, splits=["train"] * len(texts))
    return CorpusTables(documents=documents["documents"])


def run_probe(folder, corpus, write_text, config=CONFIG):
    """Compute the findings if the model writes ``write_text(item, draw)``."""
    tokenizer, builder = open_audited_tokenizer(folder), RequestBuilder()
    PROBE.build_requests(builder, tokenizer, corpus, config)
    texts = [
        {"request": row["request"], "draw": draw}
        | {"text": write_text(item_rows(builder)[row["item"]], draw)}
        for row in {row["request"]: row for row in row_dicts(builder.requests)}.values()
        for draw in range(row["draws"])
    ]
    responses = Responses(
        builder.build_items_table(PROBE.item_schema),
        builder.build_requests_table(),
        pa.Table.from_pylist(texts, schema=RESPONSES),
        tokenizer=pa.table(
            {
                "model_kind": [tokenizer.model_kind],
                "opening_description": [tokenizer.opening_description],
            }
        ),
        skipped=builder.build_skipped_table(),
    )
    values, found = PROBE.compute_values_and_findings(responses, config)
    rows = findings_to_rows(found)
    findings = {(row["metric"], name_slice(row["slice"])): row for row in rows}
    assert len(findings) == len(rows)
    return builder, values, findings


def make_writer(factor, towards_men=0.0, seed=1):
    """Make a writer whose log-odds of women are those of the text times a factor."""
    rng = np.random.default_rng(seed)

    def write_text(item, draw):
        if item["occupation"] is None:
            return "Women came." if draw % 10 == 0 else "Nobody came."
        share = item["corpus_share"]
        log_odds = factor * np.log(share / (1 - share)) - towards_men
        return " she came." if rng.random() < 1 / (1 + np.exp(-log_odds)) else " he came."

    return write_text


def test_gendered_mentions_of_the_training_text_are_counted(corpus, own_folder):
    builder, _, findings = run_probe(own_folder, corpus, make_writer(1))
    items = [item for item in item_rows(builder).values() if item["occupation"]]
    # The 40 extra coopers are near men; planted nurses are not counted.
    assert {i["occupation"]: (i["corpus_count"], i["corpus_share"]) for i in items} == {
        trade: (100, 0.06) if trade == "cooper" else (60, pytest.approx(share, abs=1e-9))
        for trade, share in TRADES.items()
    }
    assert {item["prompt_template"] for item in items} == {*PROMPTS}
    assert findings["skipped_occupations", ""]["value"] == 1  # the plumber


def test_a_model_that_mirrors_its_text_has_amplification_one(corpus, own_folder):
    _, values, findings = run_probe(own_folder, corpus, make_writer(1))
    row = findings["log_odds_amplification", ""]
    assert row["low"] < 1 < row["high"] and row["value"] == pytest.approx(1, abs=0.2)
    assert row["null_value"] == 1 and row["p"] > 0.01 and row["clusters"] == len(TRADES)
    change = findings["bias_amplification", ""]
    assert change["low"] < 0 < change["high"]
    # No gender leads among bakers, who have a share of one half: they count as 0.
    assert change["n"] == len(TRADES)
    changes = values.filter(pa.compute.equal(values["measure"], "bias_amplification")).to_pylist()
    assert [row["value"] for row in changes if row["occupation"] == "baker"] == [0]
    for trade, share in TRADES.items():
        row = findings["women_share", f"occupation={trade}"]
        assert row["n"] == 120
        assert row["null_value"] == pytest.approx(0.06 if trade == "cooper" else share)
    row = findings["log_odds_amplification", "occupation=nurse"]
    assert row["low"] < 1 < row["high"]
    assert len(values.filter(pa.compute.equal(values["measure"], "women_share"))) == 12 * 4 * 30


def test_a_preference_for_one_gender_is_no_amplification(corpus, own_folder):
    """It changes the share of women, and the ratio of each single occupation."""
    _, _, findings = run_probe(own_folder, corpus, make_writer(1, towards_men=2.5))
    row = findings["log_odds_amplification", ""]
    assert row["low"] < 1 < row["high"]
    share = findings["women_share", ""]
    assert share["high"] < share["null_value"] and share["p"] < 0.05


def test_the_share_of_women_is_compared_with_the_text_within_each_occupation(corpus, own_folder):
    """Occupations differ far more from each other than the model does from its text."""
    _, values, findings = run_probe(own_folder, corpus, make_writer(1, towards_men=0.6))
    row = findings["women_share", ""]
    rows = values.filter(pa.compute.equal(values["measure"], "women_share")).to_pylist()
    differences = [
        np.mean([r["value"] - r["null_value"] for r in rows if r["occupation"] == trade])
        for trade in TRADES
    ]
    oracle = ttest_1samp(differences, 0).confidence_interval()
    assert row["value"] == pytest.approx(np.mean([r["value"] for r in rows]))
    assert row["low"] - row["null_value"] == pytest.approx(oracle.low, abs=0.02)
    assert row["high"] - row["null_value"] == pytest.approx(oracle.high, abs=0.02)
    assert row["high"] < row["null_value"] and row["p"] < 0.01
    assert "differences from the share in the training text" in row["method"]


def test_the_share_of_women_of_few_occupations_has_no_interval(corpus, own_folder):
    _, values, _ = run_probe(own_folder, corpus, make_writer(1))
    few = values.filter(pa.compute.is_in(values["occupation"], pa.array([*TRADES][:3])))
    (measure,) = [m for m in PROBE.measures if m.metric == "women_share"]
    estimate = estimate_measure(select_evidence(few, measure.value_filter), measure, CONFIG)
    assert np.isnan([estimate.low, estimate.high, estimate.p]).all()
    assert 0 < estimate.value < 1 and "no interval: fewer than 6 occupations" in estimate.method


def test_stronger_and_absent_associations_are_detected(corpus, own_folder):
    _, _, strong = run_probe(own_folder, corpus, make_writer(2))
    assert strong["log_odds_amplification", ""]["low"] > 1.4
    assert strong["bias_amplification", ""]["low"] > 0
    _, _, flat = run_probe(own_folder, corpus, make_writer(0))
    row = flat["log_odds_amplification", ""]
    assert row["high"] < 0.5 and row["low"] < 0 < row["high"]
    assert row["unit"] == "log-odds per log-odds"  # a slope may be negative, a multiple may not
    assert flat["bias_amplification", ""]["high"] < 0


def test_mentions_of_one_gender_do_not_make_the_other_impossible(session, own_folder):
    texts = [f"Then we saw the nurse and she was late {n}." for n in range(40)]
    documents = given(texts, kind="split", splits=["train"] * 40)["documents"]
    one_man = iter([" he came."])
    _, _, findings = run_probe(
        own_folder,
        CorpusTables(documents=documents),
        lambda item, draw: next(one_man, " she came."),
    )
    row = findings["women_share", "occupation=nurse"]
    assert row["value"] == pytest.approx(119 / 120) and row["null_value"] == pytest.approx(41 / 42)
    assert row["p"] > 0.05


def test_an_occupation_with_equal_shares_has_no_ratio(corpus, own_folder):
    _, _, findings = run_probe(own_folder, corpus, make_writer(1))
    row = findings["log_odds_amplification", "occupation=baker"]
    assert row["value"] is None
    assert "does not differ significantly from one half" in row["method"]


def test_words_in_other_sentences_than_the_occupation_do_not_count(corpus, own_folder):
    def write_text(item, draw):
        return " the rain fell. She came" if draw % 2 else " it rained."

    _, _, findings = run_probe(own_folder, corpus, write_text)
    assert findings["log_odds_amplification", ""]["value"] is None
    assert findings["women_share", ""]["n"] == 0
    assert "no occupations to measure" in findings["log_odds_amplification", ""]["method"]


def test_groups_are_compared_with_the_beginnings_of_documents(corpus, own_folder, texts):
    builder, _, findings = run_probe(own_folder, corpus, make_writer(1))
    (item,) = [i for i in item_rows(builder).values() if i["group_name"] == "women"]
    assert item["corpus_count"] == len(texts)
    assert item["corpus_share"] == pytest.approx(40 / len(texts))
    row = findings["representation_ratio", "group_name=women"]
    assert row["value"] == pytest.approx(0.1 / (40 / len(texts))) and row["low"] > 1
    requests = {
        r["request"]
        for r in row_dicts(builder.requests)
        if item_rows(builder)[r["item"]]["group_name"]
    }
    assert len(requests) == 1  # texts without a prompt are written once for all groups


def test_user_supplied_groups_are_found_in_both_texts(session, own_folder):
    rows = [{"lexicon": "town", "group_name": "Orvelings", "term": "orvelings"}]
    texts = [f"Orvelings sing {n}" for n in range(30)] + [f"Rain fell {n}" for n in range(70)]

    class Lexicons:
        def read(self):
            return pa.Table.from_pylist(rows)

    corpus = CorpusTables(Lexicons(), None, given(texts, kind="split")["documents"])
    _, _, findings = run_probe(own_folder, corpus, lambda item, draw: "The Orvelings" * (draw < 60))
    row = findings["representation_ratio", "group_name=town:Orvelings"]
    assert row["value"] == pytest.approx(2) and row["low"] > 1 and row["p"] < 0.001
    assert findings["log_odds_amplification", ""]["value"] is None


def test_all_stages_run_with_a_small_model(session, own_folder, texts):
    documents = given(texts, kind="split", splits=["train"] * len(texts))["documents"]
    config = CONFIG.model_copy(update={"continuations_per_prompt": 2, "unprompted_texts": 40})
    _, response_set, _, _, (_, findings) = run_audit_stages(
        "amplification", own_folder, config, corpus=(None, None, documents)
    )
    assert response_set["responses"].row_count == 12 * 4 * 2 + 40
    controls = {name_slice(r["slice"]): r["verdict"] for r in findings.to_pylist() if r["control"]}
    assert controls == {"scripted chance": "pass", "scripted effect": "pass"}


def test_nothing_is_measured_without_a_corpus_or_of_a_masked_model(
    session, own_folder, bert_folder
):
    documents = given(["one", "two"], kind="split")["documents"]
    for folder, corpus in (
        (own_folder, (None, None, None)),
        (bert_folder, (None, None, documents)),
    ):
        _, findings = run_audit_stages("amplification", folder, CONFIG, corpus=corpus)[-1]
        assert {row["value"] for row in findings.to_pylist()} == {None}
        assert all("not measured" in row["method"] for row in findings.to_pylist())


def test_a_sample_of_many_documents_is_counted(session, own_folder):
    documents = given(build_occupation_texts(), kind="split")["documents"]
    builder = RequestBuilder()
    config = CONFIG.model_copy(update={"max_documents": 360, "min_gendered_mentions": 1})
    PROBE.build_requests(
        builder, open_audited_tokenizer(own_folder), CorpusTables(documents=documents), config
    )
    counts = {
        i["occupation"]: i["corpus_count"] for i in item_rows(builder).values() if i["occupation"]
    }
    assert 200 < sum(counts.values()) < 500
    (skipped,) = [row for row in row_dicts(builder.skipped) if row["metric"] == "skipped_documents"]
    assert skipped["count"] == 720 - sum(counts.values())
    assert (
        "the shares of women in the training text are estimated from a sample" in skipped["reason"]
    )
