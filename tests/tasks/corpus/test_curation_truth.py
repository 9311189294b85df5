"""Test the comparison of stages with a town's truth: limits of classes, and effects of rules."""

import pyarrow as pa

from hallmark.tasks.contract import StageConfig, StageContext, Table, column, stage
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.signals import build_signal_schema
from hallmark.tasks.corpus.town.recovery_rates import RecoveryEvaluator
from tests.tasks.corpora import given
from tests.tasks.corpus.test_evaluate_curation import counts_by_key as shares
from tests.tasks.corpus.test_evaluate_curation import make_truth as truth_of


class SetSignalsConfig(StageConfig):
    language: tuple[str | None, ...]
    toxicity: tuple[float, ...]


@stage(
    name="set_signals",
    tables={
        "signals": build_signal_schema(
            "Signals given in the config.",
            column("language", pa.string(), "label", "given language"),
            column("toxicity", pa.float64(), "figure", "given toxicity"),
        )
    },
)
def set_signals(documents: Table, config: SetSignalsConfig, context: StageContext) -> None:
    columns = {"language": list(config.language), "toxicity": list(config.toxicity)}
    doc_id = documents.read(["doc_id"])["doc_id"]
    context.get_table_writer("signals").write({"doc_id": doc_id, **columns})


def make_evaluator(documents, truth_fields, history, lengths=()):
    truth = truth_of(documents, dict(enumerate(truth_fields)))
    return RecoveryEvaluator("town", 0.8, lengths, truth, [], history)


def test_near_copies_are_grouped_by_similarity(session):
    similar = [0.3, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0]
    documents = given([f"number {i}" for i in range(11)], ["town"] * 11)
    truth_fields = [{"copy_kind": "near", "original_doc_id": 10, "similarity": s} for s in similar]
    near = deduplicate_near(documents, {}, DeduplicateNearConfig())
    rates = shares(make_evaluator(documents, truth_fields, {"near": near}).evaluate_all_stages())
    assert rates.pop(("near", "near copies", "precision")) == (0, 0)
    assert {
        target.removeprefix("near copies, similarity "): n
        for (_, target, _), (_, n) in rates.items()
    } == {
        "at least 0.8": 3,
        "0 to 0.5": 1,
        "0.5 to 0.6": 2,
        "0.6 to 0.7": 2,
        "0.7 to 0.8": 2,
        "0.8 to 0.9": 1,
        "0.9 to 1": 2,
    }


def test_recall_of_languages_is_counted_from_the_signals(session):
    texts = ["x" * 99, "x" * 100, "x" * 20, "x" * 500]
    documents = given(texts, ["town"] * 4)
    truth_fields = [{}, {"has_dialect": True}, {"has_dialect": True}, {}]
    signals = set_signals(
        documents, SetSignalsConfig(language=("en", "fr", "en", None), toxicity=(0,) * 4)
    )
    assert shares(
        make_evaluator(documents, truth_fields, {"language": signals}).evaluate_all_stages()
    ) == {
        ("language", "English", "recall"): (2, 4),
        ("language", "English, dialect", "recall"): (1, 2),
        ("language", "English, shorter than 100 characters", "recall"): (2, 2),
    }


def test_a_rule_is_measured_by_what_it_removed_or_would_have_removed(session):
    """Tagging rules over toxicity are not measured if another such rule removes.

    Rules over other signals are never measured.
    """
    sizes = [60, 61, 200, 201, 30, 40, 50, 10]
    documents = given([f"{i}" * size for i, size in enumerate(sizes)], ["town"] * 7 + ["elsewhere"])
    truth_fields = [
        {"rude_sentences": 1},
        {"rude_sentences": 2},
        {"rude_sentences": 1},
        {"rude_sentences": 1},
        {"has_dialect": True},
        {"has_unsafe_passage": True},
        {"has_rude_lookalike": True, "mentioned_groups": ["Tamskers"]},
    ]
    toxicity = (0.9, 0.9, 0.5, 0.8, 0.9, 0.2, 0.1, 0.9)
    language = ("en", "fr", "fr", "en", "en", "en", "en", "en")
    signals = set_signals(documents, SetSignalsConfig(language=language, toxicity=toxicity))
    rules = {
        "language": {"any_of": ["en"]},
        "rude": {"signal": "toxicity", "lt": 0.8},
        "mild": {"signal": "toxicity", "lt": 0.15, "action": "tag"},
    }
    removing_selection = select_documents(
        documents, {"set_signals": signals}, SelectConfig(rules=rules)
    )
    tagging_config = SelectConfig(rules={"language": rules["language"], "mild": rules["mild"]})
    tagging_selection = select_documents(documents, {"set_signals": signals}, tagging_config)
    truth = truth_of(documents, dict(enumerate(truth_fields)))
    del truth[[*truth][7]]  # of another source
    history = {"kept": removing_selection, "other": tagging_selection}
    rates = shares(
        RecoveryEvaluator("town", 0.8, (200, 60), truth, [], history).evaluate_all_stages()
    )
    assert {stage for stage, _, _ in rates} == {"kept", "other"}
    assert rates["other", "no rude speech", "false alarms"] == (1, 2)
    kept_shares = {key[1:]: share for key, share in rates.items() if key[0] == "kept"}
    assert kept_shares == {
        ("rude speech", "recall"): (3, 4),  # another rule removed one of them first
        ("rude speech, 0 to 60 characters", "recall"): (1, 1),
        ("rude speech, 60 to 200 characters", "recall"): (1, 2),
        ("rude speech, over 200 characters", "recall"): (1, 1),
        ("rude speech", "precision"): (3, 4),
        ("no rude speech", "false alarms"): (1, 3),
        ("no rude speech, dialect", "false alarms"): (1, 1),
        ("no rude speech, words that look rude", "false alarms"): (0, 1),
        ("no rude speech, an unsafe passage", "false alarms"): (0, 1),
        ("no rude speech, a mention of the town's peoples", "false alarms"): (0, 1),
    }
