"""Effects of removals: compare with counts by hand, on corpora with a known effect."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import (
    HallmarkError,
    ProcessMapper,
    Session,
    StageConfig,
    StageContext,
    Store,
    Table,
    TablePart,
    TableWriters,
    column,
    open_session,
    stage,
)
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.group_effects.document_outcomes import (
    NOT_REMOVED,
    compute_document_outcomes,
)
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.quality import QualityConfig, measure_quality
from hallmark.tasks.corpus.removal_effects import (
    RemovalEffectsConfig,
    build_rate_rows,
    choose_thresholds,
    classify_rate_difference,
    iter_removal_masks,
    measure_removal_effects,
)
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.signals import build_signal_schema
from tests.tasks.corpora import given

SENTENCES_WITHOUT_GROUP = [
    "The harbour was quiet in the morning.",
    "Rain fell on the orchard all night.",
    "The engine of the ferry was repaired.",
    "A lantern burned above the gate.",
]
SENTENCES_WITH_GROUP = [
    "The Muslim baker opened early.",
    "Two women repaired the ferry.",
    "A Black family moved in.",
]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with open_session(Session(Store(tmp_path_factory.mktemp("effects")))) as opened:
        yield opened


class RudeSignalsConfig(StageConfig):
    rate: float = 0.1
    muslim_factor: float = 1.0
    seed: int = 0


@stage(
    name="rude",
    tables={
        "signals": build_signal_schema("Made up.", column("rude", pa.float64(), "figure", "random"))
    },
)
def write_rude_signals(documents: Table, config: RudeSignalsConfig, context: StageContext) -> None:
    """Write a random signal, one draw per cluster, that exceeds 0.5 at the configured rate.

    Texts that mention Muslims have ``muslim_factor`` times that rate.
    """
    context.map_partitions(write_rude_partition, documents.parts, config)


def write_rude_partition(
    partition: TablePart, config: RudeSignalsConfig, out: TableWriters
) -> None:
    for batch in partition.iter_batches(["doc_id", "cluster", "text"]):
        values = []
        for row in batch.to_pylist():
            draw = np.random.default_rng([config.seed, *row["cluster"]]).random()
            rate = config.rate * (config.muslim_factor if "Muslim" in row["text"] else 1)
            values.append(1 - draw * 0.5 / rate)  # above 0.5 with probability ``rate``
        columns = {"doc_id": batch["doc_id"], "rude": pa.array(values, pa.float64())}
        out.get_table_writer("signals").write(columns)


def make_corpus(n=400, seed=0):
    rng = np.random.default_rng(seed)
    texts, clusters, sources = [], [], []
    for i in range(n):
        sentence = [*SENTENCES_WITHOUT_GROUP, *SENTENCES_WITH_GROUP][
            rng.integers(len(SENTENCES_WITHOUT_GROUP) + len(SENTENCES_WITH_GROUP))
        ]
        for copy in range(rng.integers(1, 4)):
            texts.append(f"{sentence} Note {i}, page {copy}.")
            clusters.append(f"cluster {i}")
            sources.append("letters" if i % 3 else "notices")
    texts += texts[:40]  # exact copies
    clusters += clusters[:40]
    sources += sources[:40]
    return texts, sources, clusters


def run_stages(n=400, parts=1, rules=None, seed=0, **rude_settings):
    texts, sources, clusters = make_corpus(n, seed)
    artifacts = {"ingest": given(texts, sources, clusters, parts=parts)}
    artifacts["deduplicate"] = deduplicate(artifacts["ingest"], {}, DeduplicateConfig())
    artifacts["language"] = identify_languages(artifacts["deduplicate"], LanguageConfig())
    artifacts["identities"] = find_identities(artifacts["deduplicate"], IdentitiesConfig())
    artifacts["rude"] = write_rude_signals(
        artifacts["deduplicate"], RudeSignalsConfig(seed=seed, **rude_settings)
    )
    signals = {name: artifacts[name] for name in ("language", "identities", "rude")}
    config = SelectConfig(rules=rules or {"rude": {"lt": 0.5}})
    artifacts["select"] = select_documents(artifacts["deduplicate"], signals, config)
    return artifacts


CONFIG = RemovalEffectsConfig(min_group_documents=5, max_sentences_per_group=3)


def measure_effects(artifacts, config=CONFIG):
    return measure_removal_effects(artifacts["deduplicate"], artifacts, config)


@pytest.fixture(scope="module")
def artifacts(session):
    return run_stages(
        muslim_factor=3.0, rules={"rude": {"lt": 0.5}, "rudest": {"signal": "rude", "lt": 0.9}}
    )


@pytest.fixture(scope="module")
def effects(artifacts):
    return measure_effects(artifacts)


def select_rows(artifact, table="removal_rates", **conditions):
    return [
        row
        for row in artifact[table].read().to_pylist()
        if all(row[name] == value for name, value in conditions.items())
    ]


def count_by_hand(artifacts):
    """Collect rows, groups and removals of all documents, ids by reason, and kept duplicates."""
    rows = {row["doc_id"]: row for row in artifacts["ingest"]["documents"].read().to_pylist()}
    groups = {
        r["doc_id"]: r["identities"] for r in artifacts["identities"]["signals"].read().to_pylist()
    }
    removal_by_id, kept_by_id, ids_by_reason = {}, {}, defaultdict(set)
    for label in ("deduplicate", "select"):
        for ledger_row in artifacts[label]["ledger"].read().to_pylist():
            if ledger_row["action"] == "removed":
                removal_by_id[ledger_row["doc_id"]] = (label, ledger_row["reason"])
                kept_by_id[ledger_row["doc_id"]] = ledger_row["matched_doc_id"]
            ids_by_reason[label, ledger_row["reason"]].add(ledger_row["doc_id"])
    groups_by_id = {i: set(groups[i if i in groups else kept_by_id[i]]) for i in rows}
    return rows, groups_by_id, removal_by_id, ids_by_reason, kept_by_id


def test_counts_match_those_by_hand(artifacts, effects):
    rows, groups_by_id, removal_by_id, ids_by_reason, _ = count_by_hand(artifacts)
    for stage_, reason in (
        ("select", "rude"),
        ("select", "rudest"),
        ("deduplicate", "exact duplicate"),
    ):
        removed_before = {
            i
            for i, (label, _) in removal_by_id.items()
            if label == "deduplicate" and stage_ == "select"
        }
        for name in ("Muslims", "women", "Black people"):
            [row] = select_rows(
                effects, stage=stage_, reason=reason, dimension="identity", slice=name
            )
            members = {i for i in rows if name in groups_by_id[i]} - removed_before
            other_ids = set(rows) - members - removed_before
            removed = ids_by_reason[stage_, reason]
            assert (row["documents"], row["removed_documents"]) == (
                len(members),
                len(members & removed),
            )
            assert (row["other_documents"], row["other_removed_documents"]) == (
                len(other_ids),
                len(other_ids & removed),
            )
            assert row["rate_ratio"] == pytest.approx(
                (len(members & removed) / len(members))
                / (len(other_ids & removed) / len(other_ids))
            )
            assert row["clusters"] == len({rows[i]["cluster"] for i in members})
        [row] = select_rows(
            effects, stage=stage_, reason=reason, dimension="source", slice="notices"
        )
        members = {i for i in rows if rows[i]["source"] == "notices"} - removed_before
        assert (row["documents"], row["removed_documents"]) == (
            len(members),
            len(members & removed),
        )


def test_rates_for_all_stages_with_and_without_duplicates(artifacts, effects):
    rows, groups_by_id, removal_by_id, _, _ = count_by_hand(artifacts)
    duplicates = {i for i, (label, _) in removal_by_id.items() if label == "deduplicate"}
    [row] = select_rows(
        effects, stage="", reason="all except duplicates", dimension="identity", slice="women"
    )
    members = {i for i in rows if "women" in groups_by_id[i]} - duplicates
    assert (row["documents"], row["removed_documents"]) == (
        len(members),
        len(members & removal_by_id.keys()),
    )
    [row] = select_rows(effects, stage="", reason="", dimension="identity", slice="women")
    members = {i for i in rows if "women" in groups_by_id[i]}
    assert (row["documents"], row["removed_documents"]) == (
        len(members),
        len(members & removal_by_id.keys()),
    )


def test_only_the_planted_effect_is_found(effects):
    row_by_group = {
        row["slice"]: row
        for row in select_rows(effects, stage="select", reason="rude", dimension="identity")
    }
    muslims = row_by_group["Muslims"]
    assert muslims["verdict"] == "more" and muslims["low"] < 3 < muslims["high"]
    assert all(row["verdict"] != "more" for name, row in row_by_group.items() if name != "Muslims")
    assert all(row["minimum_detectable_ratio"] > 1 for row in row_by_group.values())


def test_without_an_effect_few_corpora_show_a_difference(session):
    false_alarms = 0
    for seed in range(12):
        outcomes = compute_document_outcomes(run_stages(200, seed=seed + 1))
        [(*_, is_removed, at_risk)] = [
            mask for mask in iter_removal_masks(outcomes) if mask[1] == "rude"
        ]
        false_alarms += any(
            row["verdict"] != "not shown"
            for row in build_rate_rows(outcomes, is_removed, at_risk, 5)
        )
    assert false_alarms <= 3  # with 0.05 each, more have a probability of 0.003


def test_threshold_rates_match_those_by_hand(artifacts, effects):
    values = {r["doc_id"]: r["rude"] for r in artifacts["rude"]["signals"].read().to_pylist()}
    groups_by_id = count_by_hand(artifacts)[1]
    rows = select_rows(
        effects,
        "threshold_rates",
        stage="select",
        reason="rude",
        dimension="identity",
        slice="Muslims",
    )
    assert len(rows) > 4 and [row["is_rule_threshold"] for row in rows].count(True) == 1
    for row in rows:
        members = [v for i, v in values.items() if "Muslims" in groups_by_id[i]]
        assert row["documents"] == len(members)
        assert row["removed_documents"] == sum(v >= row["threshold"] for v in members)
    thresholds = [row["threshold"] for row in rows]
    assert thresholds == sorted(thresholds)


def test_chosen_thresholds_remove_the_configured_shares():
    values = np.arange(1000) / 1000
    assert [np.mean(values >= t) for t in choose_thresholds(values, "lt", 0.95, (0.1, 0.01))] == (
        pytest.approx([0.1, 0.05, 0.01], abs=2e-3)
    )
    assert [
        np.mean(values < t) for t in choose_thresholds(values, "ge", 0.5, (0.1,))
    ] == pytest.approx([0.1, 0.5], abs=2e-3)


def test_lost_duplicates_and_clusters_match_those_by_hand(artifacts, effects):
    rows, groups_by_id, removal_by_id, _, kept_by_id = count_by_hand(artifacts)
    lost = {
        i
        for i, (label, _) in removal_by_id.items()
        if label == "deduplicate" and removal_by_id.get(kept_by_id[i], ("",))[0] == "select"
    }
    assert len(lost) > 3
    kept_clusters = {rows[i]["cluster"] for i in rows if i not in removal_by_id}
    for name in ("Muslims", "women"):
        members = {i for i in lost if name in groups_by_id[i]}
        group_rows = select_rows(
            effects, "lost_duplicate_clusters", stage="", dimension="identity", slice=name
        )
        lost_clusters = {rows[i]["cluster"] for i in members} - kept_clusters
        assert [(r["lost_duplicates"], r["lost_clusters"]) for r in group_rows] == (
            [(len(members), len(lost_clusters))] if members else []
        )
    [total] = select_rows(effects, "lost_duplicate_clusters", stage="", dimension="")
    assert total["lost_duplicates"] == len(lost)
    assert total["lost_clusters"] == len({rows[i]["cluster"] for i in lost} - kept_clusters)
    [by_reason] = select_rows(
        effects,
        "lost_duplicate_clusters",
        stage="select",
        reason="rude",
        dimension="language",
        slice="en",
    )
    assert by_reason["lost_duplicates"] <= len(lost)


def test_examples_are_removed_documents_with_the_highest_ratio_first(artifacts, effects):
    ids_by_reason = count_by_hand(artifacts)[3]
    examples = select_rows(effects, "removed_examples", stage="select", reason="rude")
    assert {row["doc_id"] for row in examples} <= ids_by_reason["select", "rude"]
    sources = [row for row in examples if row["dimension"] == "source"]
    assert len(sources) == 6 and {row["slice"] for row in sources} == {"letters", "notices"}
    ratios = [row["rate_ratio"] or 0 for row in examples]
    assert ratios == sorted(ratios, reverse=True)
    assert not select_rows(effects, "removed_examples", stage="deduplicate")


def test_swap_differences_match_the_scores_of_their_sentences(effects):
    rows = effects["swap_scores"].read().to_pylist()
    summary = effects["swap_differences"].read().to_pylist()
    assert {row["origin"] for row in summary} == {"corpus", "templates"}
    for row in summary:
        differences = [
            r["other_score"] - r["score"]
            for r in rows
            if all(r[k] == row[k] for k in ("origin", "axis", "group_name", "other_group"))
        ]
        assert row["sentences"] == len(differences) and row["score_difference"] == pytest.approx(
            np.mean(differences)
        )
    corpus_rows = [r for r in rows if r["origin"] == "corpus" and r["group_name"] == "Muslims"]
    assert len({r["doc_id"] for r in corpus_rows}) <= 3  # max_sentences_per_group
    assert {r["group_name"]: r["mentions"] for r in effects["lexicon_accuracy"].read().to_pylist()}[
        ""
    ] > 200


def test_output_does_not_depend_on_partitions_or_workers(session):
    whole = measure_effects(run_stages(150))
    mapper, session.mapper = session.mapper, ProcessMapper(2)
    try:
        partitioned = measure_effects(run_stages(150, parts=4))
    finally:
        session.mapper = mapper
    for name in whole.tables:
        assert whole[name].read().equals(partitioned[name].read()), name
    assert whole["removal_rates"].row_count > 20


def test_removed_duplicates_have_the_groups_of_their_kept_copy(artifacts):
    outcomes = compute_document_outcomes(artifacts)
    assert outcomes.has_signals.all() and (outcomes.removed_at < NOT_REMOVED).sum() == len(
        count_by_hand(artifacts)[2]
    )
    duplicates = np.flatnonzero(outcomes.is_copy)
    assert len(duplicates) == 40
    is_muslim = outcomes.members_by_group["identity", "Muslims"]
    assert (is_muslim[duplicates] == is_muslim[outcomes.duplicate_of[duplicates]]).all()


def test_a_history_without_signals_or_documents_is_rejected(artifacts):
    with pytest.raises(
        HallmarkError, match="no stage in the history computed the signal 'identities'"
    ):
        compute_document_outcomes({"ingest": artifacts["ingest"]})
    with pytest.raises(HallmarkError, match="no stage in the history has a 'documents' table"):
        compute_document_outcomes({})


def test_a_corpus_without_removals_has_no_rates(session):
    artifacts = {"ingest": given(["one", "two"])}
    artifacts["language"] = identify_languages(artifacts["ingest"], LanguageConfig())
    artifacts["identities"] = find_identities(artifacts["ingest"], IdentitiesConfig())
    effects = measure_removal_effects(artifacts["ingest"], artifacts, CONFIG)
    assert effects["removal_rates"].row_count == 0
    assert effects["swap_differences"].row_count > 20  # from templates


def test_a_rule_about_labels_has_rates_but_no_threshold_rates(session):
    rules = {
        "language": {"any_of": ["en"]},
        "rude": {"lt": 0.5},
        "noted": {"signal": "rude", "lt": 0.9, "action": "tag"},
    }
    artifacts = run_stages(60, rules=rules)
    effects = measure_effects(artifacts)
    assert {row["reason"] for row in select_rows(effects, "threshold_rates")} == {"rude", "noted"}
    assert select_rows(effects, stage="select", reason="rude")


def test_tagged_documents_are_compared_by_group_and_count_as_kept(session):
    tagging = {"rude": {"lt": 0.5, "action": "tag"}, "rudest": {"signal": "rude", "lt": 0.9}}
    artifacts = run_stages(muslim_factor=3.0, rules=tagging)
    effects = measure_effects(artifacts)
    groups = {
        r["doc_id"]: r["identities"] for r in artifacts["identities"]["signals"].read().to_pylist()
    }
    tags_by_id = {
        r["doc_id"]: r["tags"] or [] for r in artifacts["select"]["documents"].read().to_pylist()
    }
    [tag_row] = select_rows(
        effects, stage="select", reason="rude", dimension="identity", slice="Muslims"
    )
    members = [doc_id for doc_id in tags_by_id if "Muslims" in (groups.get(doc_id) or ())]
    assert tag_row["documents"] == len(members) > 20
    assert (
        0
        < tag_row["removed_documents"]
        == sum("rude" in tags_by_id[doc_id] for doc_id in members)
        < len(members)
    )
    [removed_row] = select_rows(
        effects, stage="", reason="all except duplicates", dimension="identity", slice="Muslims"
    )
    [remover_row] = select_rows(
        effects, stage="select", reason="rudest", dimension="identity", slice="Muslims"
    )
    assert (
        removed_row["removed_documents"]
        <= remover_row["removed_documents"]
        < tag_row["removed_documents"] + remover_row["removed_documents"]
    )


def test_near_copies_removed_before_deduplication_count_as_one_cluster(session):
    """Thirty near copies that a rule removed are one observation."""
    page = " ".join(f"word{i}" for i in range(60))
    copies = [f"The Muslim baker opened early. {page} Page {i}." for i in range(30)]
    other_texts = [f"{base} Note {i}." for i in range(40) for base in SENTENCES_WITHOUT_GROUP]
    documents = given([*copies, *other_texts], parts=4)
    artifacts = {
        "ingest": documents,
        "deduplicate": deduplicate(documents, {}, DeduplicateConfig()),
    }
    artifacts["language"] = identify_languages(artifacts["deduplicate"], LanguageConfig())
    artifacts["identities"] = find_identities(artifacts["deduplicate"], IdentitiesConfig())
    artifacts["quality"] = measure_quality(artifacts["deduplicate"], QualityConfig())
    signals = {name: artifacts[name] for name in ("language", "identities", "quality")}
    rules = SelectConfig(rules={"long": {"signal": "word_count", "le": 30}})
    artifacts["select"] = select_documents(artifacts["deduplicate"], signals, rules)
    artifacts["deduplicate_near"] = deduplicate_near(
        artifacts["select"], {}, DeduplicateNearConfig()
    )
    [row] = select_rows(
        measure_effects(artifacts),
        stage="select",
        reason="long",
        dimension="identity",
        slice="Muslims",
    )
    assert (row["documents"], row["removed_documents"], row["clusters"]) == (30, 30, 1)
    assert row["verdict"] == "not shown"
    artifacts["deduplicate_near"] = deduplicate_near(
        artifacts["select"], {}, DeduplicateNearConfig(similarity_threshold=1, cluster_threshold=1)
    )
    [row] = select_rows(
        measure_effects(artifacts),
        stage="select",
        reason="long",
        dimension="identity",
        slice="Muslims",
    )
    assert row["clusters"] == 30 and row["verdict"] == "more"


def test_examples_of_groups_without_other_removals_come_first(session):
    """All documents of one source are removed and none of the other, so the ratio is infinite."""
    long_texts = [f"{' '.join(SENTENCES_WITHOUT_GROUP * 3)} Verse {i}." for i in range(20)]
    long_odd_texts = [f"{' '.join(f'zq{i}x{n}' for n in range(50))}" for i in range(10)]
    short_texts = [f"{SENTENCES_WITHOUT_GROUP[i % 4]} Note {i}." for i in range(20)]
    texts = [*long_texts, *long_odd_texts, *short_texts, *(f"zq{i}" for i in range(10))]
    artifacts = {"ingest": given(texts, ["lyrics"] * 30 + ["letters"] * 30)}
    artifacts["language"] = identify_languages(artifacts["ingest"], LanguageConfig())
    artifacts["identities"] = find_identities(artifacts["ingest"], IdentitiesConfig())
    artifacts["quality"] = measure_quality(artifacts["ingest"], QualityConfig())
    signals = {name: artifacts[name] for name in ("language", "identities", "quality")}
    rules = SelectConfig(rules={"long": {"signal": "word_count", "le": 30}})
    artifacts["select"] = select_documents(artifacts["ingest"], signals, rules)
    examples = select_rows(
        measure_removal_effects(artifacts["ingest"], artifacts, CONFIG),
        "removed_examples",
        stage="select",
        reason="long",
    )
    assert [row["no_other_removed"] for row in examples[:3]] == [True] * 3
    assert {row["slice"] for row in examples if row["no_other_removed"]} == {"lyrics"}
    other_ratios = [row["rate_ratio"] or 0 for row in examples if not row["no_other_removed"]]
    assert (
        other_ratios
        and max(other_ratios) > 0
        and other_ratios == sorted(other_ratios, reverse=True)
    )


def test_a_copy_of_an_earlier_document_is_not_lost(session):
    earlier_artifacts = {
        "ingest": given(["The women of the harbour wrote a long letter to the mayor today."])
    }
    earlier_artifacts["deduplicate"] = deduplicate(
        earlier_artifacts["ingest"], {}, DeduplicateConfig()
    )
    earlier_text = earlier_artifacts["ingest"]["documents"].read()["text"][0].as_py()
    # The first document has the id of the earlier one, too.
    texts = [earlier_text, f"{earlier_text} And more!", *SENTENCES_WITHOUT_GROUP]
    config = DeduplicateNearConfig(shingle_length=2, similarity_threshold=0.7)
    earlier_artifacts["near"] = deduplicate_near(earlier_artifacts["deduplicate"], {}, config)
    artifacts = {"ingest": given(texts, ["new"] * len(texts))}
    earlier_corpora = {"deduplicate 1": earlier_artifacts["deduplicate"]}
    artifacts["deduplicate"] = deduplicate(
        artifacts["ingest"], earlier_corpora, DeduplicateConfig()
    )
    artifacts["language"] = identify_languages(artifacts["deduplicate"], LanguageConfig())
    artifacts["identities"] = find_identities(artifacts["deduplicate"], IdentitiesConfig())
    earlier_near = {"deduplicate_near 1": earlier_artifacts["near"]}
    artifacts["deduplicate_near"] = deduplicate_near(artifacts["deduplicate"], earlier_near, config)
    outcomes = compute_document_outcomes(artifacts)
    is_removed = outcomes.removed_at < NOT_REMOVED
    assert is_removed.sum() == 2 and outcomes.is_copy.tolist() == is_removed.tolist()
    # The text is in the earlier corpus.
    assert not outcomes.is_lost_with_original.any()
    [(*_, removed_otherwise, _)] = [
        mask for mask in iter_removal_masks(outcomes) if mask[1] == "all except duplicates"
    ]
    assert not removed_otherwise.any()


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.0499, "more"), (0.05, "not shown"), (0.0501, "not shown"), (float("nan"), "not shown")],
)
def test_a_difference_is_reported_only_below_the_significance_level(p, expected):
    assert classify_rate_difference(p, 2.0, 1.0) == expected
    assert classify_rate_difference(p, 1.0, 2.0) == expected.replace("more", "less")
