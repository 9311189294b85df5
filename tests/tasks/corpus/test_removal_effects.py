"""Who was taken: every figure against a count by hand, on corpora with a known effect."""

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

ORDINARY = [
    "The harbour was quiet in the morning.",
    "Rain fell on the orchard all night.",
    "The engine of the ferry was repaired.",
    "A lantern burned above the gate.",
]
NAMED = [
    "The Muslim baker opened early.",
    "Two women repaired the ferry.",
    "A Black family moved in.",
]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with open_session(Session(Store(tmp_path_factory.mktemp("effects")))) as opened:
        yield opened


class RudeConfig(StageConfig):
    odds: float = 0.1
    ratio: float = 1.0
    seed: int = 0


@stage(
    name="rude",
    tables={
        "signals": build_signal_schema("Made up.", column("rude", pa.float64(), "figure", "by lot"))
    },
)
def rude(documents: Table, config: RudeConfig, context: StageContext) -> None:
    """A signal of one lot a cluster: its odds to be high are ``ratio`` times with Muslims."""
    context.map_partitions(rude_part, documents.parts, config)


def rude_part(part: TablePart, config: RudeConfig, out: TableWriters) -> None:
    for batch in part.iter_batches(["doc_id", "cluster", "text"]):
        values = []
        for row in batch.to_pylist():
            lot = np.random.default_rng([config.seed, *row["cluster"]]).random()
            odds = config.odds * (config.ratio if "Muslim" in row["text"] else 1)
            values.append(1 - lot * 0.5 / odds)  # above 0.5 with these odds
        columns = {"doc_id": batch["doc_id"], "rude": pa.array(values, pa.float64())}
        out.get_table_writer("signals").write(columns)


def corpus(n=400, seed=0):
    random = np.random.default_rng(seed)
    texts, clusters, sources = [], [], []
    for i in range(n):
        base = [*ORDINARY, *NAMED][random.integers(len(ORDINARY) + len(NAMED))]
        for copy in range(random.integers(1, 4)):
            texts.append(f"{base} Note {i}, page {copy}.")
            clusters.append(f"cluster {i}")
            sources.append("letters" if i % 3 else "notices")
    texts += texts[:40]  # exact copies
    clusters += clusters[:40]
    sources += sources[:40]
    return texts, sources, clusters


def curated(n=400, parts=1, rules=None, seed=0, **odds):
    texts, sources, clusters = corpus(n, seed)
    made = {"ingest": given(texts, sources, clusters, parts=parts)}
    made["deduplicate"] = deduplicate(made["ingest"], {}, DeduplicateConfig())
    made["language"] = identify_languages(made["deduplicate"], LanguageConfig())
    made["identities"] = find_identities(made["deduplicate"], IdentitiesConfig())
    made["rude"] = rude(made["deduplicate"], RudeConfig(seed=seed, **odds))
    told = {name: made[name] for name in ("language", "identities", "rude")}
    config = SelectConfig(rules=rules or {"rude": {"lt": 0.5}})
    made["select"] = select_documents(made["deduplicate"], told, config)
    return made


CONFIG = RemovalEffectsConfig(min_group_documents=5, max_sentences_per_group=3)


def measure(made, config=CONFIG):
    return measure_removal_effects(made["deduplicate"], made, config)


@pytest.fixture(scope="module")
def made(session):
    return curated(ratio=3.0, rules={"rude": {"lt": 0.5}, "rudest": {"signal": "rude", "lt": 0.9}})


@pytest.fixture(scope="module")
def measured(made):
    return measure(made)


def rows_of(artifact, table="removal_rates", **where):
    return [
        row
        for row in artifact[table].read().to_pylist()
        if all(row[name] == value for name, value in where.items())
    ]


def by_hand(made):
    """For each document of ingest: its groups, source, stage at which it left, and reason."""
    rows = {row["doc_id"]: row for row in made["ingest"]["documents"].read().to_pylist()}
    groups = {
        r["doc_id"]: r["identities"] for r in made["identities"]["signals"].read().to_pylist()
    }
    gone, twins, also = {}, {}, defaultdict(set)
    for label in ("deduplicate", "select"):
        for entry in made[label]["ledger"].read().to_pylist():
            if entry["action"] == "removed":
                gone[entry["doc_id"]] = (label, entry["reason"])
                twins[entry["doc_id"]] = entry["matched_doc_id"]
            also[label, entry["reason"]].add(entry["doc_id"])
    named = {i: set(groups[i if i in groups else twins[i]]) for i in rows}
    return rows, named, gone, also, twins


def test_counts_equal_those_by_hand(made, measured):
    rows, named, gone, also, _ = by_hand(made)
    for stage_, reason in (
        ("select", "rude"),
        ("select", "rudest"),
        ("deduplicate", "exact duplicate"),
    ):
        before = {
            i for i, (label, _) in gone.items() if label == "deduplicate" and stage_ == "select"
        }
        for name in ("Muslims", "women", "Black people"):
            [row] = rows_of(measured, stage=stage_, reason=reason, dimension="identity", slice=name)
            own = {i for i in rows if name in named[i]} - before
            others = set(rows) - own - before
            hit = also[stage_, reason]
            assert (row["documents"], row["removed_documents"]) == (len(own), len(own & hit))
            assert (row["other_documents"], row["other_removed_documents"]) == (
                len(others),
                len(others & hit),
            )
            assert row["rate_ratio"] == pytest.approx(
                (len(own & hit) / len(own)) / (len(others & hit) / len(others))
            )
            assert row["clusters"] == len({rows[i]["cluster"] for i in own})
        [row] = rows_of(measured, stage=stage_, reason=reason, dimension="source", slice="notices")
        own = {i for i in rows if rows[i]["source"] == "notices"} - before
        assert (row["documents"], row["removed_documents"]) == (len(own), len(own & hit))


def test_what_was_struck_out_leaves_copies_aside(made, measured):
    rows, named, gone, _, _ = by_hand(made)
    copies = {i for i, (label, _) in gone.items() if label == "deduplicate"}
    [row] = rows_of(
        measured, stage="", reason="all except duplicates", dimension="identity", slice="women"
    )
    own = {i for i in rows if "women" in named[i]} - copies
    assert (row["documents"], row["removed_documents"]) == (len(own), len(own & gone.keys()))
    [row] = rows_of(measured, stage="", reason="", dimension="identity", slice="women")
    own = {i for i in rows if "women" in named[i]}
    assert (row["documents"], row["removed_documents"]) == (len(own), len(own & gone.keys()))


def test_a_planted_ratio_is_found_and_no_other(measured):
    rows = {
        row["slice"]: row
        for row in rows_of(measured, stage="select", reason="rude", dimension="identity")
    }
    muslims = rows["Muslims"]
    assert muslims["verdict"] == "more" and muslims["low"] < 3 < muslims["high"]
    assert all(row["verdict"] != "more" for name, row in rows.items() if name != "Muslims")
    assert all(row["minimum_detectable_ratio"] > 1 for row in rows.values())


def test_without_an_effect_few_corpora_show_one(session):
    wrong = 0
    for seed in range(12):
        found = compute_document_outcomes(curated(200, seed=seed + 1))
        [(*_, hit, risk)] = [o for o in iter_removal_masks(found) if o[1] == "rude"]
        wrong += any(row["verdict"] != "not shown" for row in build_rate_rows(found, hit, risk, 5))
    assert wrong <= 3  # 0.05 each: more has a chance of 0.003


def test_thresholds_run_over_the_signal(made, measured):
    values = {r["doc_id"]: r["rude"] for r in made["rude"]["signals"].read().to_pylist()}
    named = by_hand(made)[1]
    found = rows_of(
        measured,
        "threshold_rates",
        stage="select",
        reason="rude",
        dimension="identity",
        slice="Muslims",
    )
    assert len(found) > 4 and [row["is_rule_threshold"] for row in found].count(True) == 1
    for row in found:
        own = [v for i, v in values.items() if "Muslims" in named[i]]
        assert row["documents"] == len(own)
        assert row["removed_documents"] == sum(v >= row["threshold"] for v in own)
    limits = [row["threshold"] for row in found]
    assert limits == sorted(limits)


def test_the_range_of_a_rule_takes_the_shares_asked_for():
    values = np.arange(1000) / 1000
    assert [np.mean(values >= t) for t in choose_thresholds(values, "lt", 0.95, (0.1, 0.01))] == (
        pytest.approx([0.1, 0.05, 0.01], abs=2e-3)
    )
    assert [
        np.mean(values < t) for t in choose_thresholds(values, "ge", 0.5, (0.1,))
    ] == pytest.approx([0.1, 0.5], abs=2e-3)


def test_copies_whose_keeper_left_are_counted_with_their_clusters(made, measured):
    rows, named, gone, _, twins = by_hand(made)
    lost = {
        i
        for i, (label, _) in gone.items()
        if label == "deduplicate" and gone.get(twins[i], ("",))[0] == "select"
    }
    assert len(lost) > 3
    stayed = {rows[i]["cluster"] for i in rows if i not in gone}
    for name in ("Muslims", "women"):
        own = {i for i in lost if name in named[i]}
        found = rows_of(
            measured, "lost_duplicate_clusters", stage="", dimension="identity", slice=name
        )
        whole = {rows[i]["cluster"] for i in own} - stayed
        assert [(r["lost_duplicates"], r["lost_clusters"]) for r in found] == (
            [(len(own), len(whole))] if own else []
        )
    [every] = rows_of(measured, "lost_duplicate_clusters", stage="", dimension="")
    assert every["lost_duplicates"] == len(lost)
    assert every["lost_clusters"] == len({rows[i]["cluster"] for i in lost} - stayed)
    [by_reason] = rows_of(
        measured,
        "lost_duplicate_clusters",
        stage="select",
        reason="rude",
        dimension="language",
        slice="en",
    )
    assert by_reason["lost_duplicates"] <= len(lost)


def test_examples_are_documents_that_the_rule_took_highest_ratio_first(made, measured):
    also = by_hand(made)[3]
    found = rows_of(measured, "removed_examples", stage="select", reason="rude")
    assert {row["doc_id"] for row in found} <= also["select", "rude"]
    sources = [row for row in found if row["dimension"] == "source"]
    assert len(sources) == 6 and {row["slice"] for row in sources} == {"letters", "notices"}
    ratios = [row["rate_ratio"] or 0 for row in found]
    assert ratios == sorted(ratios, reverse=True)
    assert not rows_of(measured, "removed_examples", stage="deduplicate")


def test_swaps_rest_on_their_sentences(measured):
    rows = measured["swap_scores"].read().to_pylist()
    summary = measured["swap_differences"].read().to_pylist()
    assert {row["origin"] for row in summary} == {"corpus", "templates"}
    for row in summary:
        own = [
            r["other_score"] - r["score"]
            for r in rows
            if all(r[k] == row[k] for k in ("origin", "axis", "group_name", "other_group"))
        ]
        assert row["sentences"] == len(own) and row["score_difference"] == pytest.approx(
            np.mean(own)
        )
    corpus_rows = [r for r in rows if r["origin"] == "corpus" and r["group_name"] == "Muslims"]
    assert len({r["doc_id"] for r in corpus_rows}) <= 3  # as many sentences as the config says
    assert {
        r["group_name"]: r["mentions"] for r in measured["lexicon_accuracy"].read().to_pylist()
    }[""] > 200


def test_parts_and_workers_change_nothing(session):
    one = measure(curated(150))
    mapper, session.mapper = session.mapper, ProcessMapper(2)
    try:
        four = measure(curated(150, parts=4))
    finally:
        session.mapper = mapper
    for name in one.tables:
        assert one[name].read().equals(four[name].read()), name
    assert one["removal_rates"].row_count > 20


def test_who_left_before_there_were_signals_has_those_of_the_twin(made):
    found = compute_document_outcomes(made)
    assert found.has_signals.all() and (found.removed_at < NOT_REMOVED).sum() == len(
        by_hand(made)[2]
    )
    copy = np.flatnonzero(found.is_copy)
    assert len(copy) == 40
    muslims = found.group_members["identity", "Muslims"]
    assert (muslims[copy] == muslims[found.duplicate_of[copy]]).all()


def test_a_history_without_signals_is_named(made):
    with pytest.raises(HallmarkError, match="no stage of the history said whom"):
        compute_document_outcomes({"ingest": made["ingest"]})
    with pytest.raises(HallmarkError, match="no stage of the history left documents"):
        compute_document_outcomes({})


def test_an_empty_corpus_has_no_rates(session):
    made = {"ingest": given(["one", "two"])}
    made["language"] = identify_languages(made["ingest"], LanguageConfig())
    made["identities"] = find_identities(made["ingest"], IdentitiesConfig())
    found = measure_removal_effects(made["ingest"], made, CONFIG)
    assert (
        found["removal_rates"].row_count == 0 and found["swap_differences"].row_count > 20
    )  # those of templates


def test_a_rule_about_labels_has_rates_and_no_range(session):
    rules = {
        "language": {"any_of": ["en"]},
        "rude": {"lt": 0.5},
        "noted": {"signal": "rude", "lt": 0.9, "action": "tag"},
    }
    made = curated(60, rules=rules)
    found = measure(made)
    assert {row["reason"] for row in rows_of(found, "threshold_rates")} == {"rude", "noted"}
    assert rows_of(found, stage="select", reason="rude")


def test_tagged_documents_are_compared_by_group_and_count_as_kept(session):
    tagging = {"rude": {"lt": 0.5, "action": "tag"}, "rudest": {"signal": "rude", "lt": 0.9}}
    made = curated(ratio=3.0, rules=tagging)
    found = measure(made)
    groups = {
        r["doc_id"]: r["identities"] for r in made["identities"]["signals"].read().to_pylist()
    }
    kept = {r["doc_id"]: r["tags"] or [] for r in made["select"]["documents"].read().to_pylist()}
    [row] = rows_of(found, stage="select", reason="rude", dimension="identity", slice="Muslims")
    own = [doc_id for doc_id in kept if "Muslims" in (groups.get(doc_id) or ())]
    assert row["documents"] == len(own) > 20
    assert 0 < row["removed_documents"] == sum("rude" in kept[doc_id] for doc_id in own) < len(own)
    [struck] = rows_of(
        found, stage="", reason="all except duplicates", dimension="identity", slice="Muslims"
    )
    [only] = rows_of(found, stage="select", reason="rudest", dimension="identity", slice="Muslims")
    assert (
        struck["removed_documents"]
        <= only["removed_documents"]
        < row["removed_documents"] + only["removed_documents"]
    )


def test_what_a_rule_took_before_near_copies_were_looked_for_counts_by_its_clusters(session):
    """Thirty near copies that a rule took are one observation."""
    page = " ".join(f"word{i}" for i in range(60))
    copies = [f"The Muslim baker opened early. {page} Page {i}." for i in range(30)]
    others = [f"{base} Note {i}." for i in range(40) for base in ORDINARY]
    raw = given([*copies, *others], parts=4)
    made = {"ingest": raw, "deduplicate": deduplicate(raw, {}, DeduplicateConfig())}
    made["language"] = identify_languages(made["deduplicate"], LanguageConfig())
    made["identities"] = find_identities(made["deduplicate"], IdentitiesConfig())
    made["quality"] = measure_quality(made["deduplicate"], QualityConfig())
    told = {name: made[name] for name in ("language", "identities", "quality")}
    rules = SelectConfig(rules={"long": {"signal": "word_count", "le": 30}})
    made["select"] = select_documents(made["deduplicate"], told, rules)
    made["deduplicate_near"] = deduplicate_near(made["select"], {}, DeduplicateNearConfig())
    [row] = rows_of(
        measure(made), stage="select", reason="long", dimension="identity", slice="Muslims"
    )
    assert (row["documents"], row["removed_documents"], row["clusters"]) == (30, 30, 1)
    assert row["verdict"] == "not shown"
    made["deduplicate_near"] = deduplicate_near(
        made["select"], {}, DeduplicateNearConfig(similarity_threshold=1, cluster_threshold=1)
    )
    [row] = rows_of(
        measure(made), stage="select", reason="long", dimension="identity", slice="Muslims"
    )
    assert row["clusters"] == 30 and row["verdict"] == "more"


def test_where_none_of_the_others_was_taken_examples_come_first(session):
    """A ratio without end is above all others: all of one source left, of the other none."""
    long = [f"{' '.join(ORDINARY * 3)} Verse {i}." for i in range(20)]
    odd = [f"{' '.join(f'zq{i}x{n}' for n in range(50))}" for i in range(10)]
    short = [f"{ORDINARY[i % 4]} Note {i}." for i in range(20)]
    texts = [*long, *odd, *short, *(f"zq{i}" for i in range(10))]
    made = {"ingest": given(texts, ["lyrics"] * 30 + ["letters"] * 30)}
    made["language"] = identify_languages(made["ingest"], LanguageConfig())
    made["identities"] = find_identities(made["ingest"], IdentitiesConfig())
    made["quality"] = measure_quality(made["ingest"], QualityConfig())
    told = {name: made[name] for name in ("language", "identities", "quality")}
    rules = SelectConfig(rules={"long": {"signal": "word_count", "le": 30}})
    made["select"] = select_documents(made["ingest"], told, rules)
    found = rows_of(
        measure_removal_effects(made["ingest"], made, CONFIG),
        "removed_examples",
        stage="select",
        reason="long",
    )
    assert [row["no_other_removed"] for row in found[:3]] == [True] * 3
    assert {row["slice"] for row in found if row["no_other_removed"]} == {"lyrics"}
    rest = [row["rate_ratio"] or 0 for row in found if not row["no_other_removed"]]
    assert rest and max(rest) > 0 and rest == sorted(rest, reverse=True)


def test_a_copy_of_an_earlier_document_was_struck_out_by_nobody(session):
    before = {"ingest": given(["The women of the harbour wrote a long letter to the mayor today."])}
    before["deduplicate"] = deduplicate(before["ingest"], {}, DeduplicateConfig())
    old = before["ingest"]["documents"].read()["text"][0].as_py()
    texts = [old, f"{old} And more!", *ORDINARY]  # the first has its id, too
    config = DeduplicateNearConfig(shingle_length=2, similarity_threshold=0.7)
    before["near"] = deduplicate_near(before["deduplicate"], {}, config)
    made = {"ingest": given(texts, ["new"] * len(texts))}
    earlier = {"deduplicate 1": before["deduplicate"]}
    made["deduplicate"] = deduplicate(made["ingest"], earlier, DeduplicateConfig())
    made["language"] = identify_languages(made["deduplicate"], LanguageConfig())
    made["identities"] = find_identities(made["deduplicate"], IdentitiesConfig())
    near = {"deduplicate_near 1": before["near"]}
    made["deduplicate_near"] = deduplicate_near(made["deduplicate"], near, config)
    found = compute_document_outcomes(made)
    gone = found.removed_at < NOT_REMOVED
    assert gone.sum() == 2 and found.is_copy.tolist() == gone.tolist()
    assert not found.is_lost_with_original.any()  # the text is in the corpus that this one adds to
    [(*_, struck, _)] = [o for o in iter_removal_masks(found) if o[1] == "all except duplicates"]
    assert not struck.any()


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.0499, "more"), (0.05, "not shown"), (0.0501, "not shown"), (float("nan"), "not shown")],
)
def test_a_difference_is_shown_below_the_limit_alone(p, expected):
    assert classify_rate_difference(p, 2.0, 1.0) == expected
    assert classify_rate_difference(p, 1.0, 2.0) == expected.replace("more", "less")
