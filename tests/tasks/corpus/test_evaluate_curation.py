"""Recovery: shares of hand-made cases, and a small town through the real stages."""

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
from hallmark.tasks.corpus.town.documents import load_town_occupations
from hallmark.tasks.corpus.town.recovery_rates import RecoveryEvaluator, compute_share_with_interval
from hallmark.tasks.measures.statistics import wilson_interval as closed_form
from tests.tasks.corpora import given, scrubbed

KEY = SecretKey(b"for tests")
CALM = "The ducks left the mill pond early, and the ferry took nobody to the far bank that evening."
LONG = " ".join(f"word{i} stands beside word{i + 1} in this list." for i in range(30))


def stages(documents, action="remove"):
    """The real stages, as far as recovery looks at them."""
    made = {"deduplicate": deduplicate(documents, {}, DeduplicateConfig())}
    made["language"] = identify_languages(made["deduplicate"], LanguageConfig())
    made["deduplicate_near"] = deduplicate_near(made["deduplicate"], {}, DeduplicateNearConfig())
    made["redact_spans"] = scrubbed(made["deduplicate_near"])
    made["score_toxicity"] = score_toxicity(made["redact_spans"], None, ScoreToxicityConfig())
    rules = SelectConfig(rules={"toxicity": {"lt": 0.8, "action": action}})
    scores = {"toxicity": made["score_toxicity"]}
    made["select_scored"] = select_documents(made["redact_spans"], scores, rules)
    return made


def truth_of(documents, said):
    """Rows of truth for all documents: what they hold unless ``said`` by number."""
    rows = documents["documents"].read(["doc_id", "text"]).to_pylist()
    nothing = {
        "mentioned_groups": [],
        "rude_sentences": 0,
        "has_rude_lookalike": False,
        "has_dialect": False,
        "has_unsafe_passage": False,
        "copy_kind": "",
        "original_doc_id": None,
        "similarity": None,
    }
    made = {}
    for number, row in enumerate(rows):
        own = dict(said.get(number, {}))
        if "original_doc_id" in own:
            own["original_doc_id"] = rows[own["original_doc_id"]]["doc_id"]
        own |= {"doc_id": row["doc_id"], "characters": len(row["text"])}
        made[row["doc_id"]] = nothing | own
    return made


def shares(found):
    return {(r["stage"], r["target"], r["measure"]): (r["hits"], r["n"]) for r in found}


def test_the_figures_of_a_hand_made_case(session):
    """Every figure by hand; the truth says on purpose what the stages cannot have found."""
    secret = SecretKey(get_current_session().store.secret)
    texts = [
        f"First. {CALM} Write to jane@example.com today.",
        f"First. {CALM}  WRITE to jane@example.com today.",  # an exact copy of 0
        LONG,
        LONG.replace("word29 stands", "word29 sits"),  # a near copy of 2
        LONG.replace("stands", "sits").replace("beside", "near"),  # a copy, says the truth
        "You bloody idiot, you damned bloody idiot, go to hell.",  # rude, and removed
        f"{CALM} Rather rude, says the truth, and the filter sees nothing in it at all.",
        "Shut up, you stupid bastard.",  # removed, and the truth says it is civil
        "The keeper of the lamp has an address now, it is mail@example.org, and we use it.",
        "Il pleut depuis trois jours sur la ville et personne ne sort de sa maison ce matin.",
    ]
    documents = given(texts, sources=["town"] * 9 + ["town"])
    truth = truth_of(
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
    of = list(truth)
    planted = [  # in 0 and 1, of which one came to the stage; and a number that nobody finds
        {"doc_id": of[0], "type": "EMAIL", "span_hash": secret.hash_value("jane@example.com")},
        {"doc_id": of[1], "type": "EMAIL", "span_hash": secret.hash_value("jane@example.com")},
        {"doc_id": of[6], "type": "PHONE", "span_hash": secret.hash_value("+1 212 555 0142")},
    ]
    found = shares(
        RecoveryEvaluator(
            "town", 0.8, (60,), truth, planted, stages(documents)
        ).evaluate_all_stages()
    )
    assert found["deduplicate", "exact copies", "recall"] == (1, 1)
    assert found["deduplicate", "exact copies", "precision"] == (1, 1)
    assert found["deduplicate_near", "near copies, similarity from 0.8", "recall"] == (1, 2)
    assert found["deduplicate_near", "near copies, similarity 0.8 to 0.9", "recall"] == (0, 1)
    assert found["deduplicate_near", "near copies, similarity 0.9 to 1", "recall"] == (1, 1)
    assert found["deduplicate_near", "near copies", "precision"] == (1, 1)
    hits, n = found["language", "English", "recall"]
    assert n == 9 and hits < 9  # one is French
    assert found["redact_spans", "EMAIL", "recall"] == (1, 1)
    assert found["redact_spans", "EMAIL", "precision"] == (1, 2)  # nobody planted the other
    assert found["redact_spans", "PHONE", "recall"] == (0, 1)
    assert found["redact_spans", "PHONE", "precision"] == (0, 0)
    assert found["redact_spans", "all types", "recall"] == (1, 2)
    # Of types of which nothing was planted or found nothing is told.
    assert {what for stage, what, _ in found if stage == "redact_spans"} == {
        "EMAIL",
        "PHONE",
        "all types",
    }
    assert found["select_scored", "rude speech", "recall"] == (1, 2)
    assert found["select_scored", "rude speech, 0 to 60 characters", "recall"] == (1, 1)
    assert found["select_scored", "rude speech, over 60 characters", "recall"] == (0, 1)
    assert found["select_scored", "rude speech", "precision"] == (1, 2)
    assert found["select_scored", "no rude speech", "false alarms"] == (1, 6)
    looks = found["select_scored", "no rude speech, words that look rude", "false alarms"]
    assert looks == (1, 1)


PEOPLES = build_signal_schema(
    "For tests.", column("identities", pa.list_(pa.string()), "label", "groups it mentions")
)


class PeoplesConfig(StageConfig):
    found: tuple[tuple[str, ...], ...]


@stage(name="peoples", tables={"signals": PEOPLES})
def peoples(documents: Table, config: PeoplesConfig, context: StageContext) -> None:
    found = [list(groups) for groups in config.found]
    doc_id = documents.read(["doc_id"])["doc_id"]
    context.get_table_writer("signals").write({"doc_id": doc_id, "identities": found})


def test_mentions_of_peoples_are_compared_with_the_truth(session):
    documents = given([CALM, LONG, "a", "b"], sources=["town"] * 4)
    said = [
        {"mentioned_groups": ["Tamskers"]},
        {"mentioned_groups": ["Tamskers", "Ildriths"]},
        {},
        {},
    ]
    truth = truth_of(documents, dict(enumerate(said)))
    found = [("Tamskers", "women"), (), ("Tamskers",), ()]
    made = peoples(documents, PeoplesConfig(found=found))
    shown = shares(
        RecoveryEvaluator("town", 0.8, (), truth, [], {"who": made}).evaluate_all_stages()
    )
    assert shown == {
        ("who", "Tamskers", "recall"): (1, 2),
        ("who", "Tamskers", "precision"): (1, 2),
        ("who", "Ildriths", "recall"): (0, 1),
        ("who", "Ildriths", "precision"): (0, 0),
    }
    without = peoples(documents, PeoplesConfig(found=[("women",)] * 4))  # by another lexicon
    assert not list(
        RecoveryEvaluator("town", 0.8, (), truth, [], {"who": without}).evaluate_all_stages()
    )


def test_a_copy_of_another_document_is_no_right_answer(session):
    """Twins that the truth knows nothing of count against precision."""
    documents = given([CALM, CALM, LONG, LONG], sources=["town"] * 4)
    truth = truth_of(documents, {1: {"copy_kind": "exact", "original_doc_id": 0}})
    found = shares(
        RecoveryEvaluator("town", 0.8, (), truth, [], stages(documents)).evaluate_all_stages()
    )
    assert found["deduplicate", "exact copies", "recall"] == (1, 1)
    assert found["deduplicate", "exact copies", "precision"] == (1, 2)


def test_a_stage_answers_for_what_came_to_it(session):
    """A rude document that left as a duplicate is none that the filter missed."""
    rude = "You bloody idiot, you damned bloody idiot, go to hell."
    documents = given([rude, rude, CALM], sources=["town"] * 3)
    truth = truth_of(
        documents,
        {
            0: {"rude_sentences": 1},
            1: {"rude_sentences": 1, "copy_kind": "exact", "original_doc_id": 0},
        },
    )
    found = shares(
        RecoveryEvaluator("town", 0.8, (), truth, [], stages(documents)).evaluate_all_stages()
    )
    assert found["select_scored", "rude speech", "recall"] == (1, 1)


def test_a_rule_that_tags_is_measured_as_one_that_removes(session):
    texts = [
        "You bloody idiot, you damned bloody idiot, go to hell.",
        CALM,
        LONG,
        "Shut up, you stupid bastard.",
    ]
    documents = given(texts, sources=["town"] * 4)
    truth = truth_of(documents, {0: {"rude_sentences": 1}, 1: {"rude_sentences": 1}})
    figures = {}
    for action in ("remove", "tag"):
        made = stages(documents, action)
        found = shares(RecoveryEvaluator("town", 0.8, (60,), truth, [], made).evaluate_all_stages())
        figures[action] = {k: v for k, v in found.items() if k[0] == "select_scored"}
    assert figures["tag"] == figures["remove"]
    assert figures["tag"]["select_scored", "rude speech", "recall"] == (1, 2)
    assert figures["tag"]["select_scored", "no rude speech", "false alarms"] == (1, 2)


def test_what_was_never_read_is_missed_by_nobody(session, tmp_path):
    """Of a town with a weight or a cap only what ingest let in counts."""
    source = {"kind": "town", "documents": 60, "max_documents": 20}
    config = IngestConfig(sources=[source])
    made = {"ingest": ingest(config)}
    made["deduplicate"] = deduplicate(made["ingest"], {}, DeduplicateConfig())
    made["redact_spans"] = scrubbed(made["deduplicate"])
    told = evaluate_curation(made, CurationEvaluationConfig())
    read = {r["doc_id"] for r in made["ingest"]["documents"].read().to_pylist()}
    assert 0 < len(read) <= 20
    planted = [r for r in told["planted_personal_data"].read().to_pylist() if r["doc_id"] in read]
    found = {
        (r["target"], r["measure"]): (r["hits"], r["n"])
        for r in told["detection_rates"].read().to_pylist()
        if r["stage"] == "redact_spans"
    }
    assert found["all types", "recall"][1] == len(planted) < told["planted_personal_data"].row_count


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (5, 5), (3, 7), (498, 500)])
def test_intervals_are_wilsons(hits, n):
    row = compute_share_with_interval(hits, n)
    assert (row["low"], row["high"]) == pytest.approx(closed_form(hits, n))
    assert row["share"] == hits / n


def test_nothing_to_count_is_no_share():
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
    return raw, {"ingest": raw, **stages(raw)}


def recovered(history):
    return evaluate_curation(history, CurationEvaluationConfig())


def test_the_truth_of_a_town_is_joined_by_id(town):
    raw, history = town
    made = recovered(history)
    texts = {r["doc_id"]: r["text"] for r in raw["documents"].read(["doc_id", "text"]).to_pylist()}
    truth = {r["doc_id"]: r for r in made["ground_truth"].read().to_pylist()}
    assert truth.keys() == texts.keys()
    assert all(len(texts[i]) == row["characters"] for i, row in truth.items())
    copies = [r for r in truth.values() if r["copy_kind"]]
    assert copies and all(r["original_doc_id"] in truth for r in copies)
    for row in made["planted_personal_data"].read().to_pylist():
        text = texts[row["doc_id"]]
        value = text[row["char_start"] : row["char_end"]]
        assert text.encode()[row["byte_start"] : row["byte_end"]].decode() == value
        assert SecretKey(get_current_session().store.secret).hash_value(value) == row["span_hash"]
    rates = {
        (r["property_name"], r["population"]): r for r in made["property_shares"].read().to_pylist()
    }
    rude = [r for r in truth.values() if r["rude_sentences"] and not r["copy_kind"]]
    assert rates["rude speech", "originals"]["hits"] == len(rude)
    assert rates["rude speech", "originals"]["configured_share"] == 0.08
    found = shares(made["detection_rates"].read().to_pylist())
    assert (
        found["redact_spans", "all types", "recall"][0]
        == found["redact_spans", "all types", "recall"][1]
        > 20
    )
    hits, n = found["deduplicate", "exact copies", "recall"]
    assert hits == n > 5


def test_women_beside_occupations_are_those_of_the_truth(session):
    """A town whose jobs are of one gender each, but for the bakers."""
    women = dict.fromkeys(load_town_occupations(), 0.0) | {
        "nurse": 1.0,
        "cooper": 1.0,
        "baker": 0.5,
    }
    raw = ingest(
        IngestConfig(sources=[TOWN | {"rates": {"women_by_occupation": women, "occupations": 0.8}}])
    )
    history = {"ingest": raw, "split": split_corpus(raw, SplitConfig())}
    planted = plant_canaries(history["split"], PlantCanariesConfig(enabled=False))
    config = ProfileConfig(
        occupation_window_words=20
    )  # as far as any sentence of the grammar reaches
    history["profile"] = profile_corpus(planted, planted, history, {}, config)
    made = recovered(history)
    expected = Counter()
    for row in made["ground_truth"].read().to_pylist():
        expected.update(zip(row["occupations"], row["occupation_genders"], strict=True))
    rows = {row["occupation"]: row for row in made["occupation_shares"].read().to_pylist()}
    assert rows.keys() == load_town_occupations().keys()
    for job, row in rows.items():
        count = {gender: expected[job, gender] for gender in ("women", "men")}
        told = (row["hits"], row["n"]), (count["women"], sum(count.values()))
        if job in ("baker", "weaver"):  # people write to the bakers' union and sit in the weavers'
            assert 0 <= told[0][1] - told[1][1] < 0.3 * told[1][1]  # hall: these are beside, too
        else:
            assert told[0] == told[1], job
        assert row["configured_share"] == women[job] and row["n"] > 10
        assert row["low"] <= row["share"] <= row["high"]
    assert 0 < rows["baker"]["share"] < 1 and rows["cooper"]["share"] == 1


def test_it_is_the_same_for_any_workers(town, tmp_path):
    _, history = town
    contents = set()
    secret = get_current_session().store.secret
    for workers in (1, 2):
        store = Store(tmp_path / str(workers))
        store.set_secret_if_absent(secret)
        with open_session(Session(store, mapper=ProcessMapper(workers))):
            contents.add(recovered(history).content_digest)
    assert len(contents) == 1


def test_without_a_town_there_is_nothing_to_say(session):
    made = evaluate_curation({"given": given([CALM])}, CurationEvaluationConfig())
    assert all(table.row_count == 0 for table in made.tables.values())


def test_two_towns_are_told_apart(session):
    sources = [TOWN | {"name": "a", "documents": 60}, TOWN | {"name": "b", "documents": 70}]
    config = IngestConfig(sources=sources)
    made = recovered({"ingest": ingest(config)})
    rates = made["property_shares"].read(["source", "property_name", "n"]).to_pylist()
    assert {r["source"]: r["n"] for r in rates if r["property_name"] == "exact copies"} == {
        "a": 60,
        "b": 70,
    }
    assert (
        isinstance(made["ground_truth"].read(), pa.Table) and made["ground_truth"].row_count == 130
    )
