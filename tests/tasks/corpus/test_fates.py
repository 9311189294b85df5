"""Where documents went: places among ids, and who belongs to a group, against plain Python."""

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
    find_toxicity_threshold,
    iter_removal_masks,
    measure_removal_effects,
    select_example_rows,
)
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpora import given
from tests.tasks.corpus.test_finder import ToldConfig, told


@pytest.mark.parametrize("chunked", [False, True])
def test_places_are_those_among_the_sorted_ids(chunked):
    known = [bytes([n]) + bytes(15) for n in (3, 4, 200)] + [bytes([200]) + bytes(14) + b"\1"]
    asked = [known[2], bytes(16), known[3], None, b"\xff" * 16, known[0], bytes([4] * 16)]
    column = pa.array(asked, ID_TYPE)
    column = pa.chunked_array([column[:2], column[2:]]) if chunked else column
    places = DocIdIndex(pa.array(known, ID_TYPE)).find_positions(column)
    assert places.tolist() == [known.index(i) if i in known else -1 for i in asked]
    assert DocIdIndex(pa.array([], ID_TYPE)).find_positions(column).tolist() == [-1] * len(asked)


def test_the_groups_of_a_dimension_are_its_own_where_nobody_told_the_language(session):
    texts = ["A woman came.", "Two women left.", "Rain fell.", "A Muslim woman sang.", "Fog."]
    raw = given(texts, ["a", "b", "b", "b", "b"])
    found = compute_document_outcomes(
        {"ingest": raw, "identities": find_identities(raw, IdentitiesConfig())}
    )
    order = np.argsort(hash_to_ids(f"document {i}" for i in range(5)).to_pylist())
    own = {
        name: sorted(order[group.member_rows].tolist())
        for dimension in ("identity", "source", "length", "language")
        for name, group in found.find_groups(dimension, 1).items()
    }
    assert own == {
        "women": [0, 1, 3],
        "Muslims": [3],
        "a": [0],
        "b": [1, 2, 3, 4],
        "under 200 bytes": [0, 1, 2, 3, 4],
    }
    again = compute_document_outcomes(
        {"ingest": raw, "identities": find_identities(raw, IdentitiesConfig())}
    )
    assert [*again.find_groups("source", 2)] == ["b"] and [*again.find_groups("identity", 2)] == [
        "women"
    ]
    assert found.may_be_english.all() and found.has_signals.all()


def made_up(n, **known):
    """Documents that are clusters of their own and stayed, and of which nothing else is known."""
    nothing = {
        "removed_at": np.full(n, NOT_REMOVED),
        "reason_index": np.full(n, -1),
        "is_copy": np.zeros(n, bool),
        "duplicate_of": np.full(n, -1),
        "cluster_index": np.arange(n),
        "source_index": np.zeros(n, np.int64),
        "has_signals": np.ones(n, bool),
        "may_be_english": np.ones(n, bool),
    }
    made = {name: np.asarray(known.pop(name, values)) for name, values in nothing.items()}
    others = {"reasons": [], "causes": [], "group_members": {}} | known
    return DocumentOutcomes(doc_ids=hash_to_ids(map(str, range(n))), **made, **others)


def test_ratios_within_sources_are_of_all_but_sources():
    """Mantel & Haenszel by hand: 2 of 4 and 1 of 4 in one source, 6 of 6 and 3 of 6 in another."""
    hit = np.array([1, 1, 0, 0, 1, 0, 0, 0] + [1] * 6 + [1, 1, 1, 0, 0, 0], bool)
    group = np.array([1] * 4 + [0] * 4 + [1] * 6 + [0] * 6, bool)
    source = np.repeat([0, 1], [8, 12])
    groups = {
        ("identity", "they"): group,
        ("source", "a"): source == 0,
        ("source", "b"): source == 1,
    }
    found = made_up(20, group_members=groups, source_index=source)
    rows = {row["slice"]: row for row in build_rate_rows(found, hit, np.ones(20, bool), 2)}
    assert rows.keys() == {"they", "a", "b"}
    assert rows["they"]["source_adjusted_ratio"] == pytest.approx(
        (2 * 4 / 8 + 6 * 6 / 12) / (4 / 8 + 3 * 6 / 12)
    )
    assert rows["a"]["source_adjusted_ratio"] is rows["b"]["source_adjusted_ratio"] is None
    assert rows["a"]["rate_ratio"] == pytest.approx((3 / 8) / (9 / 12))
    assert (rows["they"]["removal_rate"], rows["they"]["other_removal_rate"]) == (0.8, 0.4)


def test_documents_in_other_languages_are_none_of_those_that_mentions_are_compared_with():
    hit = np.array([1, 0, 1, 0, 1, 1], bool)
    groups = {
        ("identity", "they"): np.array([1, 1, 0, 0, 0, 0], bool),
        ("length", "short"): np.array([1, 1, 0, 0, 0, 0], bool),
    }
    found = made_up(
        6,
        group_members=groups,
        may_be_english=[True] * 4 + [False] * 2,
        has_signals=[True] * 5 + [False],
    )
    rows = {row["slice"]: row for row in build_rate_rows(found, hit, np.ones(6, bool), 2)}
    assert {
        name: (row["other_documents"], row["other_removed_documents"]) for name, row in rows.items()
    } == {
        "they": (2, 1),
        "short": (3, 2),
    }
    assert not build_rate_rows(found, hit, np.ones(6, bool), 3)


def test_a_single_other_document_is_enough_to_compare_with_and_none_is_not():
    hit, risk = np.array([1, 0, 1], bool), np.ones(3, bool)
    groups = {("length", "two"): np.array([1, 1, 0], bool), ("length", "all"): risk}
    least = RemovalEffectsConfig(min_group_documents=2).min_group_documents
    [row] = build_rate_rows(made_up(3, group_members=groups), hit, risk, least)
    assert (row["slice"], row["documents"], row["other_documents"], row["rate_ratio"]) == (
        "two",
        2,
        1,
        0.5,
    )


def test_who_is_at_risk_of_a_rule_came_to_its_stage():
    """0 stayed, 1 left as a copy of 2, which left later; 3 is a copy of 1; 4 left for a rule."""
    rules = np.array([0, 0, 1, 0, 1], bool)
    no, yes = False, True
    left, copy, twin = [NOT_REMOVED, 1, 2, 0, 2], [no, yes, no, yes, no], [-1, 2, -1, 1, -1]
    cause = RemovalCause("select", "rude", 2, rules)
    found = made_up(5, removed_at=left, is_copy=copy, duplicate_of=twin, causes=[cause])
    assert found.final_original.tolist() == [0, 2, 2, 2, 4]
    assert found.is_lost_with_original.tolist() == copy
    told = {
        reason: (hit.tolist(), risk.tolist()) for _, reason, hit, risk in iter_removal_masks(found)
    }
    assert told == {
        "": ([no, yes, yes, yes, yes], [yes] * 5),
        "all except duplicates": ([no, no, yes, no, yes], [yes, no, yes, no, yes]),
        "kept copy removed later": ([no, yes, no, yes, no], [no, yes, no, yes, no]),
        "rude": (rules.tolist(), [yes, no, yes, no, yes]),
    }


def test_as_many_examples_are_named_as_were_asked_for():
    hit = np.array([1, 0, 1, 1, 1, 1], bool)
    groups = {("source", "a"): np.array([1, 1, 1, 1, 0, 0], bool), ("identity", "they"): hit}
    found = made_up(6, group_members=groups, causes=[RemovalCause("select", "rude", 0, hit)])
    for most, named in ((0, []), (2, [0, 2]), (9, [0, 2, 3])):
        rows = [
            *select_example_rows(
                found, [], RemovalEffectsConfig(examples_per_rule=most).examples_per_rule
            )
        ]
        assert [row["doc_id"] for row in rows] == [found.doc_ids[i].as_py() for i in named]
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
def test_the_limit_of_swaps_is_that_of_the_rule_over_toxicity(session, rules, limit):
    raw = given(["A letter."])
    said = {"told": told(raw, ToldConfig(language=("en",), toxicity=(0.1,)))}
    assert (
        find_toxicity_threshold({"kept": select_documents(raw, said, SelectConfig(rules=rules))})
        == limit
    )


def test_what_ingest_left_out_is_compared_by_source_and_by_nothing_else(session, tmp_path):
    """Counted by hand: what was never kept has no signals, and all of one source is blocked."""
    kinds = {"open": {}, "half": {"document_share": 0.5}, "shut": {}}
    sources, said = [], ("two women wrote home.", "rain fell all night.")
    for name, more in kinds.items():
        texts = ["." if n % 10 == 0 else f"{name} {n}: {said[n % 2]}" for n in range(60)]
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        (tmp_path / f"{name}.jsonl").write_text(lines)
        path = str(tmp_path / f"{name}.jsonl")
        sources.append({"kind": "jsonl", "name": name, "path": path, **more})
    config = IngestConfig(sources=sources, min_document_bytes=2, block={"sources": ["shut"]})
    made = {"ingest": ingest(config)}
    made["identities"] = find_identities(made["ingest"], IdentitiesConfig())
    kept = made["ingest"]["documents"].read()["source"].to_pylist()
    gone = made["ingest"]["ledger"].read().to_pylist()
    rows = (
        measure_removal_effects(made["ingest"], made, RemovalEffectsConfig(min_group_documents=5))[
            "removal_rates"
        ]
        .read()
        .to_pylist()
    )
    reasons = {"blocked source", "left out by weight", "too short"}
    assert {row["reason"] for row in rows if row["stage"] == "ingest"} == reasons
    for row in rows:
        if row["stage"] == "ingest" or (row["reason"] and row["dimension"] == "source"):
            assert row["dimension"] == "source"
            came = [*kept, *(r["source"] for r in gone)]
            lost = [
                r["source"] for r in gone if row["reason"] in (r["reason"], "all except duplicates")
            ]
            assert row["documents"] == came.count(row["slice"]) == 60
            assert row["removed_documents"] == lost.count(row["slice"])
            assert row["other_removed_documents"] == len(lost) - row["removed_documents"]
            assert row["low"] is not None
    [shut] = [r for r in rows if (r["reason"], r["slice"]) == ("all except duplicates", "shut")]
    assert (shut["removal_rate"], shut["verdict"]) == (1.0, "more")
    [women] = [r for r in rows if (r["reason"], r["slice"]) == ("all except duplicates", "women")]
    assert (
        women["documents"] + women["other_documents"] == len(kept)
        and women["removed_documents"] == 0
    )
