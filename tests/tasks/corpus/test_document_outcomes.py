"""Test outcomes of documents: positions among ids and members of groups, against plain Python."""

import json

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import ID_TYPE, hash_to_ids
from hallmark.tasks.corpus.group_effects.document_outcomes import (
    NOT_REMOVED,
    DocIdIndex,
    DocumentOutcomes,
    RemovalCause,
    compute_document_outcomes,
)
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.removal_effects import (
    RemovalEffectsConfig,
    build_rate_rows,
    build_removed_example_rows,
    find_toxicity_threshold_or_default,
    iter_removal_masks,
    measure_removal_effects,
)
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpora import given
from tests.tasks.corpus.test_curation_truth import SetSignalsConfig, set_signals


@pytest.mark.parametrize("chunked", [False, True])
def test_positions_are_those_among_the_sorted_ids(chunked):
    sorted_ids = [bytes([n]) + bytes(15) for n in (3, 4, 200)] + [bytes([200]) + bytes(14) + b"\1"]
    wanted_ids = [
        sorted_ids[2],
        bytes(16),
        sorted_ids[3],
        None,
        b"\xff" * 16,
        sorted_ids[0],
        bytes([4] * 16),
    ]
    column = pa.array(wanted_ids, ID_TYPE)
    column = pa.chunked_array([column[:2], column[2:]]) if chunked else column
    positions = DocIdIndex(pa.array(sorted_ids, ID_TYPE)).find_positions(column)
    assert positions.tolist() == [
        sorted_ids.index(i) if i in sorted_ids else -1 for i in wanted_ids
    ]
    assert DocIdIndex(pa.array([], ID_TYPE)).find_positions(column).tolist() == [-1] * len(
        wanted_ids
    )


def test_groups_belong_to_their_dimension_without_a_language_stage(session):
    texts = ["A woman came.", "Two women left.", "Rain fell.", "A Muslim woman sang.", "Fog."]
    raw = given(texts, ["a", "b", "b", "b", "b"])
    outcomes = compute_document_outcomes(
        {"ingest": raw, "identities": find_identities(raw, IdentitiesConfig())}
    )
    order = np.argsort(hash_to_ids(f"document {i}" for i in range(5)).to_pylist())
    members_by_group = {
        name: sorted(order[group.member_rows].tolist())
        for dimension in ("identity", "source", "length", "language")
        for name, group in outcomes.find_groups_by_name(dimension, 1).items()
    }
    assert members_by_group == {
        "women": [0, 1, 3],
        "Muslims": [3],
        "a": [0],
        "b": [1, 2, 3, 4],
        "under 200 bytes": [0, 1, 2, 3, 4],
    }
    other_outcomes = compute_document_outcomes(
        {"ingest": raw, "identities": find_identities(raw, IdentitiesConfig())}
    )
    assert [*other_outcomes.find_groups_by_name("source", 2)] == ["b"] and [
        *other_outcomes.find_groups_by_name("identity", 2)
    ] == ["women"]
    assert outcomes.may_be_english.all() and outcomes.has_signals.all()


def make_outcomes(n, **changes):
    """Make outcomes of kept documents in clusters of their own, with these changes."""
    defaults = {
        "removed_at": np.full(n, NOT_REMOVED),
        "reason_index": np.full(n, -1),
        "is_quarantined": np.zeros(n, bool),
        "is_copy": np.zeros(n, bool),
        "duplicate_of": np.full(n, -1),
        "cluster_index": np.arange(n),
        "source_index": np.zeros(n, np.int64),
        "has_signals": np.ones(n, bool),
        "may_be_english": np.ones(n, bool),
    }
    arrays = {name: np.asarray(changes.pop(name, values)) for name, values in defaults.items()}
    other_fields = {"reasons": [], "causes": [], "members_by_group": {}} | changes
    return DocumentOutcomes(doc_ids=hash_to_ids(map(str, range(n))), **arrays, **other_fields)


def test_source_adjusted_ratios_exist_for_all_dimensions_except_source():
    """Mantel-Haenszel by hand: 2 of 4 and 1 of 4 in one source, 6 of 6 and 3 of 6 in another."""
    hit = np.array([1, 1, 0, 0, 1, 0, 0, 0] + [1] * 6 + [1, 1, 1, 0, 0, 0], bool)
    group = np.array([1] * 4 + [0] * 4 + [1] * 6 + [0] * 6, bool)
    source = np.repeat([0, 1], [8, 12])
    groups = {
        ("identity", "they"): group,
        ("source", "a"): source == 0,
        ("source", "b"): source == 1,
    }
    outcomes = make_outcomes(20, members_by_group=groups, source_index=source)
    rows = {row["slice"]: row for row in build_rate_rows(outcomes, hit, np.ones(20, bool), 2)}
    assert rows.keys() == {"they", "a", "b"}
    assert rows["they"]["source_adjusted_ratio"] == pytest.approx(
        (2 * 4 / 8 + 6 * 6 / 12) / (4 / 8 + 3 * 6 / 12)
    )
    assert rows["a"]["source_adjusted_ratio"] is rows["b"]["source_adjusted_ratio"] is None
    assert rows["a"]["rate_ratio"] == pytest.approx((3 / 8) / (9 / 12))
    assert (rows["they"]["removal_rate"], rows["they"]["other_removal_rate"]) == (0.8, 0.4)


def test_groups_by_mention_are_not_compared_with_other_languages():
    hit = np.array([1, 0, 1, 0, 1, 1], bool)
    groups = {
        ("identity", "they"): np.array([1, 1, 0, 0, 0, 0], bool),
        ("length", "short"): np.array([1, 1, 0, 0, 0, 0], bool),
    }
    outcomes = make_outcomes(
        6,
        members_by_group=groups,
        may_be_english=[True] * 4 + [False] * 2,
        has_signals=[True] * 5 + [False],
    )
    rows = {row["slice"]: row for row in build_rate_rows(outcomes, hit, np.ones(6, bool), 2)}
    assert {
        name: (row["other_documents"], row["other_removed_documents"]) for name, row in rows.items()
    } == {
        "they": (2, 1),
        "short": (3, 2),
    }
    assert not build_rate_rows(outcomes, hit, np.ones(6, bool), 3)


def test_one_other_document_is_enough_for_a_comparison():
    hit, risk = np.array([1, 0, 1], bool), np.ones(3, bool)
    groups = {("length", "two"): np.array([1, 1, 0], bool), ("length", "all"): risk}
    min_documents = RemovalEffectsConfig(min_group_documents=2).min_group_documents
    [row] = build_rate_rows(make_outcomes(3, members_by_group=groups), hit, risk, min_documents)
    assert (row["slice"], row["documents"], row["other_documents"], row["rate_ratio"]) == (
        "two",
        2,
        1,
        0.5,
    )


def test_documents_at_risk_of_a_rule_reached_its_stage():
    """0 was kept; 1 is a copy of 2, and 3 of 1; 2 was removed later, and 4 by a rule."""
    rules = np.array([0, 0, 1, 0, 1], bool)
    no, yes = False, True
    removed_at = [NOT_REMOVED, 1, 2, 0, 2]
    is_copy = [no, yes, no, yes, no]
    duplicate_of = [-1, 2, -1, 1, -1]
    cause = RemovalCause("select", "rude", 2, rules)
    outcomes = make_outcomes(
        5, removed_at=removed_at, is_copy=is_copy, duplicate_of=duplicate_of, causes=[cause]
    )
    assert outcomes.final_original.tolist() == [0, 2, 2, 2, 4]
    assert outcomes.is_lost_with_original.tolist() == is_copy
    masks = {
        reason: (hit.tolist(), risk.tolist())
        for _, reason, hit, risk in iter_removal_masks(outcomes)
    }
    assert masks == {
        "": ([no, yes, yes, yes, yes], [yes] * 5),
        "all except duplicates": ([no, no, yes, no, yes], [yes, no, yes, no, yes]),
        "kept copy removed later": ([no, yes, no, yes, no], [no, yes, no, yes, no]),
        "rude": (rules.tolist(), [yes, no, yes, no, yes]),
    }


def test_the_number_of_examples_is_as_configured():
    hit = np.array([1, 0, 1, 1, 1, 1], bool)
    groups = {("source", "a"): np.array([1, 1, 1, 1, 0, 0], bool), ("identity", "they"): hit}
    outcomes = make_outcomes(
        6, members_by_group=groups, causes=[RemovalCause("select", "rude", 0, hit)]
    )
    for example_count, positions in ((0, []), (2, [0, 2]), (9, [0, 2, 3])):
        rows = [
            *build_removed_example_rows(
                outcomes,
                [],
                RemovalEffectsConfig(examples_per_rule=example_count).examples_per_rule,
            )
        ]
        assert [row["doc_id"] for row in rows] == [outcomes.doc_ids[i].as_py() for i in positions]
        assert all(
            (row["slice"], row["rate_ratio"], row["no_other_removed"]) == ("a", None, False)
            for row in rows
        )


@pytest.mark.parametrize(
    ("rules", "limit"),
    [
        ({"toxicity": {"lt": 0.8}}, 0.8),
        ({"rude": {"signal": "toxicity", "le": 0.7}}, 0.7),
        ({"toxicity": {"lt": 0.8, "action": "tag"}}, 0.8),
        ({"language": {"any_of": ["en"]}}, 0.5),
        (
            {"mark": {"signal": "toxicity", "lt": 0.5, "action": "tag"}, "toxicity": {"lt": 0.8}},
            0.8,
        ),
    ],
)
def test_the_threshold_of_swaps_is_that_of_the_toxicity_rule(session, rules, limit):
    raw = given(["A letter."])
    signals = {"set_signals": set_signals(raw, SetSignalsConfig(language=("en",), toxicity=(0.1,)))}
    assert (
        find_toxicity_threshold_or_default(
            {"kept": select_documents(raw, signals, SelectConfig(rules=rules))}
        )
        == limit
    )


def test_documents_refused_by_ingest_are_compared_only_by_source(session, tmp_path):
    """Counted by hand: refused documents have no signals, and one source is blocked completely."""
    kinds = {"open": {}, "half": {"document_share": 0.5}, "shut": {}}
    sources, sentences = [], ("two women wrote home.", "rain fell all night.")
    for name, settings in kinds.items():
        texts = ["." if n % 10 == 0 else f"{name} {n}: {sentences[n % 2]}" for n in range(60)]
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        (tmp_path / f"{name}.jsonl").write_text(lines)
        path = str(tmp_path / f"{name}.jsonl")
        sources.append({"kind": "jsonl", "name": name, "path": path, **settings})
    config = IngestConfig(sources=sources, min_document_bytes=2, block={"sources": ["shut"]})
    artifacts = {"ingest": ingest(config)}
    artifacts["identities"] = find_identities(artifacts["ingest"], IdentitiesConfig())
    kept_sources = artifacts["ingest"]["documents"].read()["source"].to_pylist()
    removed_rows = artifacts["ingest"]["ledger"].read().to_pylist()
    rows = (
        measure_removal_effects(
            artifacts["ingest"], artifacts, RemovalEffectsConfig(min_group_documents=5)
        )["removal_rates"]
        .read()
        .to_pylist()
    )
    reasons = {"blocked source", "excluded by document_share", "too short"}
    assert {row["reason"] for row in rows if row["stage"] == "ingest"} == reasons
    for row in rows:
        if row["stage"] == "ingest" or (row["reason"] and row["dimension"] == "source"):
            assert row["dimension"] == "source"
            all_sources = [*kept_sources, *(r["source"] for r in removed_rows)]
            removed_sources = [
                r["source"]
                for r in removed_rows
                if row["reason"] in (r["reason"], "all except duplicates")
            ]
            assert row["documents"] == all_sources.count(row["slice"]) == 60
            assert row["removed_documents"] == removed_sources.count(row["slice"])
            assert row["other_removed_documents"] == len(removed_sources) - row["removed_documents"]
            assert row["low"] is not None
    [blocked_row] = [
        r for r in rows if (r["reason"], r["slice"]) == ("all except duplicates", "shut")
    ]
    assert (blocked_row["removal_rate"], blocked_row["verdict"]) == (1.0, "more")
    [women_row] = [
        r for r in rows if (r["reason"], r["slice"]) == ("all except duplicates", "women")
    ]
    assert (
        women_row["documents"] + women_row["other_documents"] == len(kept_sources)
        and women_row["removed_documents"] == 0
    )
