"""Removals by group: recount everything with pandas from documents, signals and ledgers."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from hallmark.tasks.contract import (
    LEDGER,
    EmptyConfig,
    Session,
    StageContext,
    Store,
    Table,
    open_session,
    stage,
)
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.group_effects.document_outcomes import NOT_REMOVED, Group
from hallmark.tasks.corpus.group_effects.group_removals import (
    GROUP_REMOVAL_TABLES,
    build_group_removal_reason_rows,
    build_group_removal_rows,
)
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.quality import QualityConfig, measure_quality
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig, measure_removal_effects
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpus.test_document_outcomes import make_outcomes

#: Names of groups in a lexicon that the user supplies, with their terms.
HOSTILE = {
    "<script>alert(1)</script>": ["bakers", "baker"],
    "=HYPERLINK(1) | **x**": ["lantern", "lanterns"],
    "unseen": ["zzyzx", "zzyzxes"],
}
SOURCES = ("letters", "notices", "web/a", "web/b")
PEOPLE = [
    "The Muslim baker opened early.",
    "Two women repaired the ferry, and a man paid them.",
    "A Black family moved in.",
    "Rain fell on the orchard all night.",
    "The engine of the ferry was repaired.",
    "A lantern burned above the gate.",
]
GERMAN = "Der Hafen war am Morgen still, und niemand reparierte die alte Maschine der Fähre. Women."


@stage(name="damaged", tables={"ledger": LEDGER})
def quarantine_some(documents: Table, config: EmptyConfig, context: StageContext) -> None:
    """Quarantine each document whose id ends in a low byte, like a stage that failed on it."""
    for row in documents.read(["doc_id", "source"]).to_pylist():
        if row["doc_id"][-1] < 12:
            ledger_row = {name: [None] for name in LEDGER.names}
            ledger_row |= {name: [value] for name, value in row.items()}
            ledger_row |= {"action": ["quarantined"], "reason": ["unreadable"]}
            context.get_table_writer("ledger").write(ledger_row)


def write_sources(folder):
    """Write sources with exact copies, near copies, empty texts and records that are no JSON."""
    random = np.random.default_rng(5)
    texts = []
    for number in range(420):
        base = PEOPLE[random.integers(len(PEOPLE))]
        filler = " ".join(f"word{number}x{n}" for n in range(random.integers(5, 60)))
        texts.append(f"{base} {filler}.")
        if random.random() < 0.2:
            texts.append(texts[-1])
        if random.random() < 0.2:
            texts.append(f"{texts[-1]} Again.")
    texts += [f"{GERMAN} Nummer {number}." for number in range(20)]
    texts += ["", " ", ""]
    order = random.permutation(len(texts))
    sources = []
    for index, name in enumerate(SOURCES):
        chosen = [texts[i] for i in order if i % len(SOURCES) == index or i % 7 == index]
        lines = [json.dumps({"text": text}) for text in chosen] + ["{no json"] * index
        path = folder / f"{index}.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        sources.append({"kind": "jsonl", "name": name, "path": str(path)})
    return sources


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with open_session(Session(Store(tmp_path_factory.mktemp("removals")))) as opened:
        yield opened


@pytest.fixture(scope="module")
def artifacts(session, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    sources = write_sources(folder)
    (folder / "trades.json").write_text(json.dumps(HOSTILE))
    history = {"ingest": ingest(IngestConfig(sources=sources))}
    history["deduplicate"] = kept = deduplicate(history["ingest"], {}, DeduplicateConfig())
    history["language"] = identify_languages(kept, LanguageConfig())
    history["quality"] = measure_quality(kept, QualityConfig())
    history["identities"] = find_identities(
        kept, IdentitiesConfig(lexicons=[folder / "trades.json"])
    )
    signals = {name: history[name] for name in ("language", "quality", "identities")}
    rules = {"long": {"signal": "word_count", "le": 55}, "short": {"signal": "word_count", "ge": 9}}
    history["select"] = select_documents(kept, signals, SelectConfig(rules=rules))
    history["deduplicate_near"] = deduplicate_near(history["select"], {}, DeduplicateNearConfig())
    history["damaged"] = quarantine_some(history["deduplicate_near"])
    return history


@pytest.fixture(scope="module")
def effects(artifacts):
    config = RemovalEffectsConfig(documents_per_group=0, max_sentences_per_group=0)
    return measure_removal_effects(artifacts["deduplicate"], artifacts, config)


@pytest.fixture(scope="module")
def rows(effects):
    return effects["group_removals"].read().to_pandas()


@pytest.fixture(scope="module")
def recount(artifacts):
    """Read one row per document with its outcome and groups, by pandas alone."""

    def read(label, table, *columns):
        frame = artifacts[label][table].read([*columns]).to_pandas()
        for name in {"doc_id", "matched_doc_id"} & {*columns}:  # numpy would drop a last zero byte
            frame[name] = frame[name].map(bytes.hex, na_action="ignore")
        return frame

    documents = read("ingest", "documents", "doc_id", "source")
    refused = read("ingest", "ledger", "source", "action", "reason")
    refused = refused[refused["action"] == "removed"].assign(stage="ingest")
    ledgers = [
        read(label, "ledger", "doc_id", "action", "reason", "score", "matched_doc_id").assign(
            stage=label
        )
        for label in ("deduplicate", "select", "deduplicate_near", "damaged")
    ]
    ledger = pd.concat(ledgers).query("action in ('removed', 'quarantined')")
    assert not ledger["doc_id"].duplicated().any()
    documents = documents.merge(ledger, on="doc_id", how="left")
    for name in ("identities", "dialects", "length_class"):
        documents = documents.merge(
            read("identities", "signals", "doc_id", name), on="doc_id", how="left"
        )
    documents = documents.merge(
        read("language", "signals", "doc_id", "language"), on="doc_id", how="left"
    ).set_index("doc_id")
    # The chain of copies ends at the document whose signals and outcome count.
    original = {
        doc_id: match for doc_id, match in documents["matched_doc_id"].items() if pd.notna(match)
    }

    def find_original(doc_id):
        while doc_id in original:
            doc_id = original[doc_id]
        return doc_id

    exact = documents["reason"] == "exact duplicate"
    first = [find_original(doc_id) for doc_id in documents.index]
    for name in ("identities", "dialects", "length_class", "language"):
        own = documents[name]
        documents[name] = own.where(~exact, own.reindex(documents["matched_doc_id"]).to_numpy())
    documents["is_copy"] = documents["matched_doc_id"].notna()
    documents["is_lost"] = documents.loc[first, "stage"].notna().to_numpy()
    refused["is_copy"], refused["is_lost"] = False, True
    everything = pd.concat([documents.reset_index(), refused], ignore_index=True)
    everything["is_removed"] = everything["stage"].notna()
    return everything


def select_members(recount, dimension, name):
    """Return the masks of the group and of all documents it is compared among."""
    is_known = recount["length_class"].notna()
    if not dimension:
        return recount["source"].notna(), recount["source"].notna()
    if dimension == "source":
        return recount["source"] == name, recount["source"].notna()
    if dimension == "length":
        return recount["length_class"] == name, is_known
    language = recount["language"].fillna("undetermined")
    if dimension == "language":
        return (language == name) & is_known, is_known
    at_risk = is_known & language.isin(["en", "undetermined"])
    column = {"identity": "identities", "dialect": "dialects"}[dimension]
    mentions = [isinstance(names, np.ndarray) and name in names for names in recount[column]]
    return pd.Series(mentions) & at_risk, at_risk


def test_every_count_equals_that_of_pandas(recount, rows):
    assert len(rows) > 40 and recount["is_copy"].sum() > 50
    for row in rows.to_dict("records"):
        is_member, at_risk = select_members(recount, row["dimension"], row["slice"])
        inside, outside = recount[is_member], recount[at_risk & ~is_member]
        expected = {
            "documents": len(inside),
            "kept_documents": (~inside["is_removed"]).sum(),
            "removed_documents": inside["is_removed"].sum(),
            "duplicate_documents": inside["is_copy"].sum(),
            "unique_documents": (~inside["is_copy"]).sum(),
            "lost_documents": inside["is_lost"].sum(),
            "other_documents": len(outside),
            "other_removed_documents": outside["is_removed"].sum(),
            "other_lost_documents": outside["is_lost"].sum(),
        }
        assert {name: row[name] for name in expected} == expected, row["slice"]
        for rate, data, column in (
            ("removal_rate", inside, "is_removed"),
            ("lost_rate", inside, "is_lost"),
            ("other_removal_rate", outside, "is_removed"),
            ("other_lost_rate", outside, "is_lost"),
        ):
            assert row[rate] == pytest.approx(data[column].astype(float).mean(), nan_ok=True)


def test_documents_are_kept_removed_or_quarantined_and_nothing_else(artifacts, effects, rows):
    reasons = effects["group_removals_by_reason"].read().to_pandas()
    assert {*reasons["stage"]} == {"ingest", *("deduplicate", "select", "deduplicate_near")} | {
        "damaged"
    }
    assert {*reasons[reasons["stage"] == "damaged"]["action"]} == {"quarantined"}
    sums = reasons.groupby(["dimension", "slice"])[["documents", "other_documents"]].sum()
    for row in rows.to_dict("records"):
        by_reason, others = sums.loc[(row["dimension"], row["slice"])]
        assert row["documents"] == row["kept_documents"] + by_reason
        assert row["removed_documents"] == by_reason
        assert row["other_removed_documents"] == others
    everything = rows[rows["dimension"] == ""].iloc[0]
    # What ingest read is what is kept at the end, what each stage took, and what was unreadable.
    records = sum(
        row["input"]
        for row in artifacts["ingest"]["accounts"].read().to_pylist()
        if row["unit"] == "rows"
    )
    assert everything["unreadable_records"] == 1 + 2 + 3
    assert records == everything["documents"] + everything["unreadable_records"]
    kept = artifacts["deduplicate_near"]["documents"].row_count
    assert everything["kept_documents"] == kept - artifacts["damaged"]["ledger"].row_count


def test_reasons_equal_those_of_pandas(recount, effects):
    for row in effects["group_removals_by_reason"].read().to_pylist():
        is_member, at_risk = select_members(recount, row["dimension"], row["slice"])
        has_reason = (
            (recount["stage"] == row["stage"])
            & (recount["reason"] == row["reason"])
            & (recount["action"] == row["action"])
        )
        assert row["documents"] == (is_member & has_reason).sum()
        assert row["other_documents"] == (at_risk & ~is_member & has_reason).sum()


def test_ratios_are_adjusted_for_source_except_those_of_sources(recount, rows):
    compared = 0
    for row in rows[rows["dimension"] != ""].to_dict("records"):
        is_member, at_risk = select_members(recount, row["dimension"], row["slice"])
        for prefix, column in (("", "is_removed"), ("lost_", "is_lost")):
            numerator = denominator = 0.0
            strata = [at_risk]
            if row["dimension"] != "source":
                strata = [at_risk & (recount["source"] == name) for name in SOURCES]
            for stratum in strata:
                inside, outside = recount[stratum & is_member], recount[stratum & ~is_member]
                if len(inside) and len(outside):
                    total = len(inside) + len(outside)
                    numerator += inside[column].sum() * len(outside) / total
                    denominator += outside[column].sum() * len(inside) / total
            ratio = row[f"{prefix}adjusted_ratio"]
            if denominator:
                assert ratio == pytest.approx(numerator / denominator), row["slice"]
                assert row[f"{prefix}adjusted_low"] <= ratio
                compared += 1
            else:
                assert np.isnan(ratio)
    assert compared > 20


def test_the_false_discovery_rate_is_that_of_all_comparisons_together(rows):
    p = pd.concat([rows["p"], rows["lost_p"]]).dropna()
    q = pd.concat([rows["q"], rows["lost_q"]]).dropna()
    assert len(p) == len(q) > 20
    assert q.to_numpy() == pytest.approx(scipy.stats.false_discovery_control(p.to_numpy()))
    for prefix in ("", "lost_"):
        for row in rows.to_dict("records"):
            if np.isnan(row[f"{prefix}p"]):
                expected = "not compared"
            elif row[f"{prefix}q"] >= 0.05:
                expected = "not shown"
            else:
                expected = "less" if row[f"{prefix}adjusted_ratio"] < 1 else "more"
            assert row[f"{prefix}verdict"] == expected
    assert {*rows["verdict"]} >= {"not compared", "not shown"}
    assert {"more", "less"} & {*rows["verdict"], *rows["lost_verdict"]}


def test_every_group_of_the_lexicons_has_a_row_and_names_are_stored_as_they_are(rows):
    empty = rows[(rows["dimension"] == "identity") & (rows["documents"] == 0)]
    assert {"Jews", "poor people"} <= {*empty["slice"]} and len(empty) >= 20
    assert empty[["removal_rate", "adjusted_ratio", "removal_rate_low", "p"]].isna().all(None)
    assert {*empty["verdict"]} == {"not compared"}
    assert {*rows[rows["dimension"] == "source"]["slice"]} == {*SOURCES}
    counts = rows.set_index("slice")["documents"].to_dict()
    script, formula, unseen = HOSTILE
    assert counts[script] > 20 and counts[formula] > 20 and counts[unseen] == 0


def test_a_group_in_another_language_is_not_counted_as_mentioned(recount, rows):
    germans = recount[recount["language"] == "de"]
    assert len(germans) > 10
    [women] = rows[rows["slice"] == "women"].to_dict("records")
    [german] = rows[rows["slice"] == "de"].to_dict("records")
    assert women["documents"] < sum(
        isinstance(names, np.ndarray) and "women" in names for names in recount["identities"]
    )
    assert german["documents"] == len(germans)


# Outcomes by hand --------------------------------------------------------------------------------


def build_rows(outcomes, searched=()):
    searched_groups = [Group(*pair) for pair in searched]
    table = GROUP_REMOVAL_TABLES["group_removals"]
    rows = build_group_removal_rows(outcomes, searched_groups, {})
    assert all(row.keys() <= {*table.names} for row in rows)
    return {row["slice"]: row for row in rows}


def test_a_group_of_which_every_document_was_removed():
    removed_at = np.where(np.arange(100) < 20, 1, NOT_REMOVED)
    groups = {Group("identity", "they"): np.arange(100) < 20}
    row = build_rows(make_outcomes(100, removed_at=removed_at, members_by_group=groups))["they"]
    assert (row["removal_rate"], row["other_removal_rate"]) == (1.0, 0.0)
    assert row["kept_documents"] == 0 and row["removal_rate_high"] == 1.0
    assert row["adjusted_ratio"] is row["adjusted_high"] is row["rate_ratio"] is None
    assert row["adjusted_low"] > 1 and row["verdict"] == "more"


def test_a_corpus_of_which_every_document_was_removed():
    groups = {Group("identity", "they"): np.arange(100) < 20}
    rows = build_rows(make_outcomes(100, removed_at=np.zeros(100, int), members_by_group=groups))
    assert rows[""]["removal_rate"] == rows["they"]["removal_rate"] == 1.0
    assert rows["they"]["adjusted_ratio"] == 1 and rows["they"]["verdict"] == "not shown"


def test_a_corpus_without_documents_or_removals():
    rows = build_rows(make_outcomes(0), [("identity", "they")])
    assert rows.keys() == {"", "they"}
    for row in rows.values():
        assert row["documents"] == row["removed_documents"] == 0 and row["removal_rate"] is None
    groups = {Group("identity", "they"): np.arange(9) < 2}
    outcomes = make_outcomes(9, members_by_group=groups)
    row = build_rows(outcomes)["they"]
    assert (row["removal_rate"], row["p"], row["verdict"]) == (0.0, None, "not compared")
    assert row["removal_rate_low"] == 0 and 0 < row["removal_rate_high"] < 1
    assert [*build_group_removal_reason_rows(outcomes, [])] == []


def test_with_one_source_the_adjusted_ratio_is_the_plain_one():
    removed_at = np.where(np.arange(300) % 7 == 0, 1, NOT_REMOVED)
    groups = {
        Group("identity", "they"): np.arange(300) % 5 == 0,
        Group("source", "letters"): np.ones(300, bool),
    }
    rows = build_rows(make_outcomes(300, removed_at=removed_at, members_by_group=groups))
    assert rows["they"]["adjusted_ratio"] == pytest.approx(rows["they"]["rate_ratio"])
    # There is nothing to compare the only source with.
    assert rows["letters"]["other_documents"] == 0 and rows["letters"]["p"] is None
    assert rows["letters"]["other_removal_rate"] is None


def test_a_group_with_a_source_for_itself_is_not_compared_within_sources():
    removed_at = np.where(np.arange(100) % 3 == 0, 1, NOT_REMOVED)
    is_member = np.arange(100) < 30
    outcomes = make_outcomes(
        100,
        removed_at=removed_at,
        source_index=np.where(is_member, 0, 1),
        members_by_group={Group("identity", "they"): is_member},
    )
    row = build_rows(outcomes)["they"]
    assert row["adjusted_ratio"] is row["adjusted_low"] is row["p"] is None
    assert row["verdict"] == "not compared" and row["rate_ratio"] > 0


def test_a_duplicate_of_a_kept_document_is_removed_but_its_text_is_not_lost():
    """Document 1 copies 0 (kept); 3 copies 2, which a rule removed; 4 copies an earlier corpus."""
    outcomes = make_outcomes(
        6,
        removed_at=[NOT_REMOVED, 0, 1, 0, 0, NOT_REMOVED],
        is_copy=[False, True, False, True, True, False],
        duplicate_of=[-1, 0, -1, 2, -1, -1],
    )
    [row] = build_rows(outcomes).values()
    assert row["removed_documents"] == 4 and row["duplicate_documents"] == 3
    assert row["unique_documents"] == 3 and row["lost_documents"] == 2
    assert outcomes.is_text_lost.tolist() == [False, False, True, True, False, False]


def test_groups_with_equal_counts_have_equal_rows():
    is_first, is_second = np.arange(400) % 4 == 0, np.arange(400) % 4 == 1
    removed_at = np.where(np.arange(400) % 20 < 2, 1, NOT_REMOVED)
    groups = {Group("identity", "a"): is_first, Group("identity", "b"): is_second}
    rows = build_rows(make_outcomes(400, removed_at=removed_at, members_by_group=groups))
    assert rows["a"] | {"slice": ""} == rows["b"] | {"slice": ""}
