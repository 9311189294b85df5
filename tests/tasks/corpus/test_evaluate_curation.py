"""Evaluation of curation: detection rates of small cases, and a small town in the real stages."""

from collections import Counter

import pyarrow as pa
import pytest

from hallmark.tasks.contract import (
    ProcessMapper,
    Session,
    StageConfig,
    StageContext,
    Store,
    Table,
    column,
    get_current_session,
    open_session,
    stage,
)
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.evaluate_curation import CurationEvaluationConfig, evaluate_curation
from hallmark.tasks.corpus.find_personal_data import SecretKey
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.signals import build_signal_schema
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.corpus.town.documents import load_women_shares_by_occupation
from hallmark.tasks.corpus.town.recovery_rates import RecoveryEvaluator, compute_share_with_interval
from hallmark.tasks.measures.statistics import wilson_interval as closed_form
from tests.tasks.corpora import given, scrubbed

KEY = SecretKey(b"for tests")
NEUTRAL = (
    "The ducks left the mill pond early, and the ferry took nobody to the far bank that evening."
)
LONG = " ".join(f"word{i} stands beside word{i + 1} in this list." for i in range(30))


def run_stages(documents, action="remove"):
    """Run the stages that the evaluation covers."""
    artifacts = {"deduplicate": deduplicate(documents, {}, DeduplicateConfig())}
    artifacts["language"] = identify_languages(artifacts["deduplicate"], LanguageConfig())
    artifacts["deduplicate_near"] = deduplicate_near(
        artifacts["deduplicate"], {}, DeduplicateNearConfig()
    )
    artifacts["redact_spans"] = scrubbed(artifacts["deduplicate_near"])
    artifacts["score_toxicity"] = score_toxicity(
        artifacts["redact_spans"], None, ScoreToxicityConfig()
    )
    rules = SelectConfig(rules={"toxicity": {"lt": 0.8, "action": action}})
    scores = {"toxicity": artifacts["score_toxicity"]}
    artifacts["select_scored"] = select_documents(artifacts["redact_spans"], scores, rules)
    return artifacts


def make_truth(documents, properties_by_row):
    """Build the ground truth of all documents: nothing but the properties given by row."""
    rows = documents["documents"].read(["doc_id", "text"]).to_pylist()
    defaults = {
        "mentioned_groups": [],
        "rude_sentences": 0,
        "disguise": "",
        "has_rude_lookalike": False,
        "has_dialect": False,
        "has_unsafe_passage": False,
        "copy_kind": "",
        "original_doc_id": None,
        "similarity": None,
    }
    truth = {}
    for number, row in enumerate(rows):
        properties = dict(properties_by_row.get(number, {}))
        if "original_doc_id" in properties:
            properties["original_doc_id"] = rows[properties["original_doc_id"]]["doc_id"]
        properties |= {"doc_id": row["doc_id"], "characters": len(row["text"])}
        truth[row["doc_id"]] = defaults | properties
    return truth


def counts_by_key(rows):
    return {(r["stage"], r["target"], r["measure"]): (r["hits"], r["n"]) for r in rows}


def test_detection_rates_of_a_small_case_match_those_by_hand(session):
    """The ground truth deliberately contains properties that the stages cannot find."""
    secret = SecretKey(get_current_session().store.secret)
    texts = [
        f"First. {NEUTRAL} Write to jane@example.com today.",
        f"First. {NEUTRAL} Write to jane@example.com today.\n",  # an exact copy of 0
        LONG,
        LONG.replace("word29 stands", "word29 sits"),  # a near copy of 2
        LONG.replace("stands", "sits").replace("beside", "near"),  # a copy in the ground truth
        "You bloody idiot, you damned bloody idiot, go to hell.",  # rude, and removed
        f"{NEUTRAL} Rather rude, says the truth, and the filter sees nothing in it at all.",
        "Shut up, you stupid bastard.",  # removed, but not rude in the ground truth
        "The keeper of the lamp has an address now, it is mail@example.org, and we use it.",
        "Il pleut depuis trois jours sur la ville et personne ne sort de sa maison ce matin.",
    ]
    documents = given(texts, sources=["town"] * 9 + ["town"])
    truth = make_truth(
        documents,
        {
            1: {"copy_kind": "exact", "original_doc_id": 0},
            3: {"copy_kind": "near", "original_doc_id": 2, "similarity": 0.95},
            4: {"copy_kind": "near", "original_doc_id": 2, "similarity": 0.85},
            5: {"rude_sentences": 2},
            6: {"rude_sentences": 1, "has_dialect": True},
            7: {"has_rude_lookalike": True},
        },
    )
    doc_ids = list(truth)
    planted = [  # 1 is removed before the stage; the text of 6 does not contain the number
        {"doc_id": doc_ids[0], "type": "EMAIL", "span_hash": secret.hash_value("jane@example.com")},
        {"doc_id": doc_ids[1], "type": "EMAIL", "span_hash": secret.hash_value("jane@example.com")},
        {"doc_id": doc_ids[6], "type": "PHONE", "span_hash": secret.hash_value("+1 212 555 0142")},
    ]
    truth = {i: row | {"source": "town"} for i, row in truth.items()}
    evaluator = RecoveryEvaluator("town", 0.8, (60,), truth, planted, run_stages(documents))
    [missed] = evaluator.list_missed_documents()
    assert missed == {
        "doc_id": doc_ids[6],
        "source": "town",
        "stage": "select_scored",
        "rude_sentences": 1,
        "characters": len(texts[6]),
    }
    counts = counts_by_key(evaluator.evaluate_all_stages())
    assert counts["deduplicate", "exact copies", "recall"] == (1, 1)
    assert counts["deduplicate", "exact copies", "precision"] == (1, 1)
    assert counts["deduplicate_near", "near copies, similarity at least 0.8", "recall"] == (1, 2)
    assert counts["deduplicate_near", "near copies, similarity 0.8 to 0.9", "recall"] == (0, 1)
    assert counts["deduplicate_near", "near copies, similarity 0.9 to 1", "recall"] == (1, 1)
    assert counts["deduplicate_near", "near copies", "precision"] == (1, 1)
    hits, n = counts["language", "English", "recall"]
    assert n == 9 and hits < 9  # one is French
    assert counts["redact_spans", "EMAIL", "recall"] == (1, 1)
    assert counts["redact_spans", "EMAIL", "precision"] == (1, 2)  # nobody planted the other
    assert counts["redact_spans", "PHONE", "recall"] == (0, 1)
    assert counts["redact_spans", "PHONE", "precision"] == (0, 0)
    assert counts["redact_spans", "all types", "recall"] == (1, 2)
    # There are no rows for types that were neither planted nor found.
    assert {target for stage, target, _ in counts if stage == "redact_spans"} == {
        "EMAIL",
        "PHONE",
        "all types",
    }
    assert counts["select_scored", "rude speech", "recall"] == (1, 2)
    assert counts["select_scored", "rude speech, 0 to 60 characters", "recall"] == (1, 1)
    assert counts["select_scored", "rude speech, over 60 characters", "recall"] == (0, 1)
    assert counts["select_scored", "rude speech", "precision"] == (1, 2)
    assert counts["select_scored", "no rude speech", "false alarms"] == (1, 6)
    lookalikes = counts["select_scored", "no rude speech, words that look rude", "false alarms"]
    assert lookalikes == (1, 1)


PEOPLE_SIGNALS = build_signal_schema(
    "For tests.", column("identities", pa.list_(pa.string()), "label", "groups it mentions")
)


class PeopleConfig(StageConfig):
    mentioned: tuple[tuple[str, ...], ...]


@stage(name="peoples", tables={"signals": PEOPLE_SIGNALS})
def find_people(documents: Table, config: PeopleConfig, context: StageContext) -> None:
    groups = [list(names) for names in config.mentioned]
    doc_id = documents.read(["doc_id"])["doc_id"]
    context.get_table_writer("signals").write({"doc_id": doc_id, "identities": groups})


def test_mentions_of_peoples_are_compared_with_the_ground_truth(session):
    documents = given([NEUTRAL, LONG, "a", "b"], sources=["town"] * 4)
    properties = [
        {"mentioned_groups": ["Tamskers"]},
        {"mentioned_groups": ["Tamskers", "Ildriths"]},
        {},
        {},
    ]
    truth = make_truth(documents, dict(enumerate(properties)))
    mentioned = [("Tamskers", "women"), (), ("Tamskers",), ()]
    signals = find_people(documents, PeopleConfig(mentioned=mentioned))
    counts = counts_by_key(
        RecoveryEvaluator("town", 0.8, (), truth, [], {"who": signals}).evaluate_all_stages()
    )
    assert counts == {
        ("who", "Tamskers", "recall"): (1, 2),
        ("who", "Tamskers", "precision"): (1, 2),
        ("who", "Ildriths", "recall"): (0, 1),
        ("who", "Ildriths", "precision"): (0, 0),
    }
    # These signals come from another lexicon.
    other_signals = find_people(documents, PeopleConfig(mentioned=[("women",)] * 4))
    assert not list(
        RecoveryEvaluator("town", 0.8, (), truth, [], {"who": other_signals}).evaluate_all_stages()
    )


def test_copies_outside_the_ground_truth_count_against_precision(session):
    """Equal documents that the ground truth does not list as copies lower the precision."""
    documents = given([NEUTRAL, NEUTRAL, LONG, LONG], sources=["town"] * 4)
    truth = make_truth(documents, {1: {"copy_kind": "exact", "original_doc_id": 0}})
    counts = counts_by_key(
        RecoveryEvaluator("town", 0.8, (), truth, [], run_stages(documents)).evaluate_all_stages()
    )
    assert counts["deduplicate", "exact copies", "recall"] == (1, 1)
    assert counts["deduplicate", "exact copies", "precision"] == (1, 2)


def test_a_stage_is_evaluated_only_on_documents_that_reached_it(session):
    """The filter has not missed a rude document that was removed as a duplicate before."""
    rude = "You bloody idiot, you damned bloody idiot, go to hell."
    documents = given([rude, rude, NEUTRAL], sources=["town"] * 3)
    truth = make_truth(
        documents,
        {
            0: {"rude_sentences": 1},
            1: {"rude_sentences": 1, "copy_kind": "exact", "original_doc_id": 0},
        },
    )
    counts = counts_by_key(
        RecoveryEvaluator("town", 0.8, (), truth, [], run_stages(documents)).evaluate_all_stages()
    )
    assert counts["select_scored", "rude speech", "recall"] == (1, 1)


def test_a_rule_that_tags_is_evaluated_like_one_that_removes(session):
    texts = [
        "You bloody idiot, you damned bloody idiot, go to hell.",
        NEUTRAL,
        LONG,
        "Shut up, you stupid bastard.",
    ]
    documents = given(texts, sources=["town"] * 4)
    disguise = "in full-width letters"
    truth = make_truth(
        documents, {0: {"rude_sentences": 1}, 1: {"rude_sentences": 1, "disguise": disguise}}
    )
    counts_by_action = {}
    for action in ("remove", "tag"):
        artifacts = run_stages(documents, action)
        counts = counts_by_key(
            RecoveryEvaluator("town", 0.8, (60,), truth, [], artifacts).evaluate_all_stages()
        )
        counts_by_action[action] = {k: v for k, v in counts.items() if k[0] == "select_scored"}
    assert counts_by_action["tag"] == counts_by_action["remove"]
    assert counts_by_action["tag"]["select_scored", "rude speech", "recall"] == (1, 2)
    assert counts_by_action["tag"]["select_scored", f"rude speech, {disguise}", "recall"] == (0, 1)
    assert sum("letters" in target for _, target, _ in counts_by_action["tag"]) == 1
    assert counts_by_action["tag"]["select_scored", "no rude speech", "false alarms"] == (1, 2)


def test_documents_that_ingest_did_not_read_are_not_missed(session, tmp_path):
    """If ingest reads only part of a town, only that part is evaluated."""
    source = {"kind": "town", "documents": 60, "max_documents": 20}
    config = IngestConfig(sources=[source])
    artifacts = {"ingest": ingest(config)}
    artifacts["deduplicate"] = deduplicate(artifacts["ingest"], {}, DeduplicateConfig())
    artifacts["redact_spans"] = scrubbed(artifacts["deduplicate"])
    evaluation = evaluate_curation(artifacts, CurationEvaluationConfig())
    ingested_ids = {r["doc_id"] for r in artifacts["ingest"]["documents"].read().to_pylist()}
    assert 0 < len(ingested_ids) <= 20
    planted = [
        r
        for r in evaluation["planted_personal_data"].read().to_pylist()
        if r["doc_id"] in ingested_ids
    ]
    counts = {
        (r["target"], r["measure"]): (r["hits"], r["n"])
        for r in evaluation["detection_rates"].read().to_pylist()
        if r["stage"] == "redact_spans"
    }
    assert (
        counts["all types", "recall"][1]
        == len(planted)
        < evaluation["planted_personal_data"].row_count
    )


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (5, 5), (3, 7), (498, 500)])
def test_intervals_are_wilson_intervals(hits, n):
    row = compute_share_with_interval(hits, n)
    assert (row["low"], row["high"]) == pytest.approx(closed_form(hits, n))
    assert row["share"] == hits / n


def test_the_share_of_no_cases_is_null():
    assert compute_share_with_interval(0, 0) == {
        "hits": 0,
        "n": 0,
        "share": None,
        "low": None,
        "high": None,
    }


# A town ------------------------------------------------------------------------------------------

TOWN = {"kind": "town", "name": "here", "documents": 600, "seed": 8}


@pytest.fixture
def town(session):
    raw = ingest(IngestConfig(sources=[TOWN], partition_bytes=100_000))
    return raw, {"ingest": raw, **run_stages(raw)}


def evaluate(history):
    return evaluate_curation(history, CurationEvaluationConfig())


def test_the_ground_truth_of_a_town_matches_its_documents(town):
    raw, history = town
    evaluation = evaluate(history)
    texts = {r["doc_id"]: r["text"] for r in raw["documents"].read(["doc_id", "text"]).to_pylist()}
    truth = {r["doc_id"]: r for r in evaluation["ground_truth"].read().to_pylist()}
    assert truth.keys() == texts.keys()
    assert all(len(texts[i]) == row["characters"] for i, row in truth.items())
    copies = [r for r in truth.values() if r["copy_kind"]]
    assert copies and all(r["original_doc_id"] in truth for r in copies)
    for row in evaluation["planted_personal_data"].read().to_pylist():
        text = texts[row["doc_id"]]
        value = text[row["char_start"] : row["char_end"]]
        assert text.encode()[row["byte_start"] : row["byte_end"]].decode() == value
        assert SecretKey(get_current_session().store.secret).hash_value(value) == row["span_hash"]
    shares = {
        (r["property_name"], r["population"]): r
        for r in evaluation["property_shares"].read().to_pylist()
    }
    rude = [r for r in truth.values() if r["rude_sentences"] and not r["copy_kind"]]
    assert shares["rude speech", "originals"]["hits"] == len(rude)
    assert shares["rude speech", "originals"]["configured_share"] == 0.08
    counts = counts_by_key(evaluation["detection_rates"].read().to_pylist())
    assert (
        counts["redact_spans", "all types", "recall"][0]
        == counts["redact_spans", "all types", "recall"][1]
        > 20
    )
    hits, n = counts["deduplicate", "exact copies", "recall"]
    assert hits == n > 5
    hits, n = counts["select_scored", "rude speech", "recall"]
    missed = evaluation["missed_documents"].read().to_pylist()
    assert len({row["doc_id"] for row in missed}) == len(missed) == n - hits > 0
    assert [row["rude_sentences"] for row in missed] == sorted(
        (row["rude_sentences"] for row in missed), reverse=True
    )


def test_occupation_shares_match_the_ground_truth(session):
    """Each occupation of this town has one gender, except bakers."""
    women = dict.fromkeys(load_women_shares_by_occupation(), 0.0) | {
        "nurse": 1.0,
        "cooper": 1.0,
        "baker": 0.5,
    }
    raw = ingest(
        IngestConfig(sources=[TOWN | {"rates": {"women_by_occupation": women, "occupations": 0.8}}])
    )
    history = {"ingest": raw, "split": split_corpus(raw, SplitConfig())}
    planted = plant_canaries(history["split"], PlantCanariesConfig(enabled=False))
    config = ProfileConfig(occupation_window_words=20)  # longer than any sentence of the grammar
    history["profile"] = profile_corpus(planted, planted, history, {}, config)
    evaluation = evaluate(history)
    expected = Counter()
    for row in evaluation["ground_truth"].read().to_pylist():
        expected.update(zip(row["occupations"], row["occupation_genders"], strict=True))
    rows = {row["occupation"]: row for row in evaluation["occupation_shares"].read().to_pylist()}
    assert rows.keys() == load_women_shares_by_occupation().keys()
    for job, row in rows.items():
        expected_by_gender = {gender: expected[job, gender] for gender in ("women", "men")}
        expected_n = sum(expected_by_gender.values())
        if job in ("baker", "weaver"):  # "the bakers' union" and "the weavers' hall" count, too
            assert 0 <= row["n"] - expected_n < 0.3 * expected_n
        else:
            assert (row["hits"], row["n"]) == (expected_by_gender["women"], expected_n), job
        assert row["configured_share"] == women[job] and row["n"] > 10
        assert row["low"] <= row["share"] <= row["high"]
    assert 0 < rows["baker"]["share"] < 1 and rows["cooper"]["share"] == 1


def test_output_does_not_depend_on_workers(town, tmp_path):
    _, history = town
    contents = set()
    secret = get_current_session().store.secret
    for workers in (1, 2):
        store = Store(tmp_path / str(workers))
        store.set_secret_if_absent(secret)
        with open_session(Session(store, mapper=ProcessMapper(workers))):
            contents.add(evaluate(history).content_digest)
    assert len(contents) == 1


def test_without_a_town_the_tables_are_empty(session):
    evaluation = evaluate_curation({"given": given([NEUTRAL])}, CurationEvaluationConfig())
    assert all(table.row_count == 0 for table in evaluation.tables.values())


def test_two_towns_are_evaluated_separately(session):
    sources = [TOWN | {"name": "a", "documents": 60}, TOWN | {"name": "b", "documents": 70}]
    config = IngestConfig(sources=sources)
    evaluation = evaluate({"ingest": ingest(config)})
    shares = evaluation["property_shares"].read(["source", "property_name", "n"]).to_pylist()
    assert {r["source"]: r["n"] for r in shares if r["property_name"] == "exact copies"} == {
        "a": 60,
        "b": 70,
    }
    assert (
        isinstance(evaluation["ground_truth"].read(), pa.Table)
        and evaluation["ground_truth"].row_count == 130
    )
