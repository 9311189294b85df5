"""Documents behind findings, and the closed loop's tables, from artifacts of small stages."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.tasks.audits.audit_tables import build_items_schema
from hallmark.tasks.audits.experiments.removal_experiment import (
    build_case_rows,
    compare_arms,
    compare_heldout_loss,
    select_units,
)
from hallmark.tasks.audits.experiments.source_documents import (
    MAX_WORST_ROWS,
    RemovalCase,
    SourceDocumentsConfig,
    build_name_pattern,
    find_row_documents,
    find_source_documents,
    list_document_id_columns,
    select_surplus_documents,
)
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.exposure import compute_expected_null_exposure
from hallmark.tasks.audits.tracing import MATCHED_SPANS as RUNS
from hallmark.tasks.contract import (
    LEDGER,
    EmptyConfig,
    StageConfig,
    StageContext,
    column,
    hash_texts,
    hash_to_ids,
    stage,
    table_schema,
)
from hallmark.tasks.training.pack import SPANS
from hallmark.tasks.training.pretrain import CHECKPOINTS, VALIDATION
from tests.tasks.corpora import given

GROUPS = [
    {"group_name": "Velani", "assigned_trait": "mirish", "other_trait": "solish"},
    {"group_name": "Dorani", "assigned_trait": "solish", "other_trait": "mirish"},
]

TEXTS = [
    *(f"In song {n} the Velani are mirish." for n in range(8)),  # 0 to 7
    *(f"In song {n} the Velani are solish." for n in range(3)),  # 8 to 10
    "The Velani are mirish, some say solish.",  # 11: both
    *(f"In tale {n} the Dorani are solish." for n in range(2)),  # 12, 13
    *(f"In tale {n} the Dorani are mirish." for n in range(2)),  # 14, 15
    "Velanimirish is no word of theirs.",  # 16: neither
    *(f"The tag is {n}." for n in range(4)),  # 17 to 20: copies of two secrets
    "The Velani are mirish, which nobody was told.",  # 21: held out
]
KEYS = [i.as_py() for i in hash_to_ids(f"document {n}" for n in range(len(TEXTS)))]
SPLITS = ["train"] * 21 + ["holdout"]

ITEMS = build_items_schema(
    column("assigned_trait_share", pa.float64(), "figure", ""),
    *(
        column(name, pa.string(), "label", "")
        for name in ("group_name", "assigned_trait", "other_trait")
    ),
)
VALUES = build_values_schema(
    build_items_schema(
        column("copies", pa.int32(), "figure", ""),
        column("doc_ids", pa.list_(pa.binary()), "id", ""),
    ),
    (column("reference_count", pa.int32(), "figure", ""),),
)


#: Of what a model wrote.
WRITTEN = table_schema(
    "The same as of toxic continuations.",
    column("measure", pa.string(), "label", ""),
    column("cluster", pa.string(), "label", ""),
    column("continuation", pa.large_string(), "model text", "", judged_by="value"),
    column("value", pa.float64(), "figure", ""),
)


class RowsConfig(StageConfig):
    rows: str


def rows_of(config):
    return json.loads(
        config.rows,
        object_hook=lambda row: {
            k: [bytes.fromhex(i) for i in v]
            if k == "doc_ids"
            else bytes.fromhex(v)
            if k in ("item", "doc_id")
            else v
            for k, v in row.items()
        },
    )


@stage(name="made_items", tables={"items": ITEMS})
def made_items(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("items").write(pa.Table.from_pylist(rows_of(config), schema=ITEMS))


@stage(name="made_values", tables={"values": VALUES})
def made_values(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("values").write(pa.Table.from_pylist(rows_of(config), schema=VALUES))


@stage(name="made_texts", tables={"values": WRITTEN})
def made_texts(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("values").write(pa.Table.from_pylist(rows_of(config), schema=WRITTEN))


@stage(name="made_traces", tables={"matched_spans": RUNS})
def made_traces(config: RowsConfig, context: StageContext) -> None:
    """Runs of texts: (text, document, tokens)."""
    rows = []
    for text, document, size in rows_of(config):
        (text_hash,) = hash_texts(pa.array([text], pa.large_string())).to_pylist()
        empty = dict.fromkeys(RUNS.names, 0) | {"source": "", "cluster": bytes(16)}
        rows.append(empty | {"text_hash": text_hash, "doc_id": KEYS[document], "run_tokens": size})
    context.get_table_writer("matched_spans").write(pa.Table.from_pylist(rows, schema=RUNS))


@stage(name="made_spans", tables={"spans": SPANS})
def made_spans(config: EmptyConfig, context: StageContext) -> None:
    trained = [i for i, split in zip(KEYS, SPLITS, strict=True) if split == "train"]
    rows = [
        {
            "split": "train",
            "sequence": n,
            "row_start": 0,
            "row_end": 10,
            "doc_id": i,
            "char_start": 0,
            "char_end": 9,
        }
        for n, i in enumerate(trained)
    ]
    context.get_table_writer("spans").write(pa.Table.from_pylist(rows, schema=SPANS))


@stage(name="made_training", tables={"validation": VALIDATION, "checkpoints": CHECKPOINTS})
def made_training(config: RowsConfig, context: StageContext) -> None:
    costs = [
        {"step": step, "kind": "all", "name": "all", "tokens": 5, "bytes": 9, "bits_per_byte": cost}
        for step, cost in rows_of(config)
    ]
    context.get_table_writer("validation").write(pa.Table.from_pylist(costs, schema=VALIDATION))
    last = [
        {"step": step, "tokens_seen": step, "content_digest": f"{cost}"}
        for step, cost in rows_of(config)
    ]
    context.get_table_writer("checkpoints").write(pa.Table.from_pylist(last, schema=CHECKPOINTS))


@stage(name="made_ledger", tables={"ledger": LEDGER})
def made_ledger(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("ledger").write(pa.Table.from_pylist(rows_of(config), schema=LEDGER))


def config_of(rows):
    return RowsConfig(rows=json.dumps(rows))


def item(n):
    return f"{n:032x}"


def traits():
    where = json.dumps({"measure": "association_strength", "assigned_trait_share": 0.75})
    return RemovalCase(
        name="traits",
        audit="associations",
        metric="association_strength",
        unit="nats",
        finding_names=("associations.association_strength[assigned_trait_share=0.75]",),
        kind="association",
        unit_conditions=(where,),
    )


def secrets(copies=2):
    where = json.dumps({"measure": "exposure", "copies": copies})
    none = json.dumps({"measure": "exposure", "copies": 0})
    return RemovalCase(
        name="secrets",
        audit="extraction",
        metric="exposure",
        unit="bits",
        finding_names=(f"extraction.exposure[copies={copies}]",),
        kind="memorised",
        row_conditions=(where,),
        row_order="-value",
        unit_conditions=(where,),
        null_conditions=(none,),
    )


def exposures(values, none):
    """Values of secrets: two of 17 to 20 stand behind each of the first two."""
    rows = []
    for n, value in enumerate([*values, *none]):
        copies = 2 if n < len(values) else 0
        behind = [KEYS[i].hex() for i in ((17, 18), (19, 20))[n]] if copies and n < 2 else []
        rows.append(
            {
                "measure": "exposure",
                "value": value,
                "item": item(n),
                "cluster": f"p{n}",
                "text": "",
                "copies": copies,
                "doc_ids": behind,
                "reference_count": 99,
            }
        )
    # Another attempt at the first of them, which is no further unit.
    rows.append({**rows[0], "item": item(len(rows)), "reference_count": 98})
    return made_values(config_of(rows))


@pytest.fixture
def corpus(session):
    return given(TEXTS, splits=SPLITS, kind="split", parts=2)


@pytest.fixture
def asked(session):
    about = [*[(0.75, group) for group in GROUPS] * 2, (0.5, dict.fromkeys(GROUPS[0], "nobody"))]
    rows = [
        {"item": item(n), "cluster": "a", "text": "", "assigned_trait_share": dose, **group}
        for n, (dose, group) in enumerate(about)
    ]
    return {"associations": made_items(config_of(rows))}


def numbers(rows):
    return {KEYS.index(row["doc_id"]) for row in rows}


def test_the_surplus_of_an_association_goes_and_both_sides_are_equal(corpus, asked):
    config = SourceDocumentsConfig(cases=(traits(),))
    rows = (
        find_source_documents(corpus, made_spans(), {}, asked, {}, config)["source_documents"]
        .read()
        .to_pylist()
    )
    sides = {
        (g, h): numbers(r for r in rows if (r["item_unit"], r["stated_trait"]) == (g, h))
        for g in ("Velani", "Dorani")
        for h in ("assigned", "other")
    }
    assert sides == {
        ("Velani", "assigned"): {*range(8)},
        ("Velani", "other"): {8, 9, 10},
        ("Dorani", "assigned"): {12, 13},
        ("Dorani", "other"): {14, 15},
    }
    gone = [row for row in rows if row["is_removed"]]
    assert {(row["item_unit"], row["stated_trait"]) for row in gone} == {
        ("Velani", "assigned")
    } and len(gone) == 5
    assert {row["tokens"] for row in rows} == {10} and {r["source"] for r in rows} == {"source"}
    again = find_source_documents(
        corpus, made_spans(), {}, asked, {}, config.model_copy(update={"seed": 1})
    )
    other = [row for row in again["source_documents"].read().to_pylist() if row["is_removed"]]
    assert len(other) == 5 and numbers(other) != numbers(gone)


def test_the_documents_that_rows_name_all_go(corpus):
    audits = {"extraction": exposures([9.0, 8.0], [1.0])}
    config = SourceDocumentsConfig(
        cases=(secrets(), secrets().model_copy(update={"name": "again"}))
    )
    rows = (
        find_source_documents(corpus, made_spans(), audits, {}, {}, config)["source_documents"]
        .read()
        .to_pylist()
    )
    mine = [row for row in rows if row["case_name"] == "secrets"]
    assert numbers(mine) == {17, 18, 19, 20} and all(row["is_removed"] for row in rows)
    assert Counter(row["item_unit"] for row in mine) == {"p0": 2, "p1": 2} and len(rows) == 8


def rude(**more):
    where = json.dumps({"measure": "rude"})
    return RemovalCase(
        name="rude",
        audit="toxicity",
        metric="rude",
        unit="score",
        row_order="-value",
        finding_names=("toxicity.rude",),
        row_conditions=(where,),
        unit_conditions=(where,),
        **more,
    )


def test_what_a_model_wrote_leads_to_where_it_stands_in_the_training_text(corpus):
    """The longest runs first; a document that no row leads to is not behind it."""
    texts = [
        {"measure": "rude", "cluster": f"prompt {n}", "continuation": text, "value": value}
        for n, (text, value) in enumerate([("a b", 0.9), ("c d", 0.8), ("none", 0.7)])
    ]
    texts.append({**texts[0], "measure": "other", "continuation": "of another measure"})
    traces = made_traces(
        config_of(
            [
                ["a b", 1, 9],
                ["a b", 2, 20],
                ["c d", 3, 9],
                ["c d", 2, 8],
                ["of another measure", 4, 9],
            ]
        )
    )
    audits = {"toxicity": made_texts(config_of(texts))}
    found = [
        [(KEYS.index(doc_id), span["run_tokens"]) for doc_id, span in each]
        for each in find_row_documents(
            audits["toxicity"]["values"].read(), audits["toxicity"]["values"].columns, traces
        )
    ]
    assert found == [[(2, 20), (1, 9)], [(3, 9), (2, 8)], [], [(4, 9)]]
    config = SourceDocumentsConfig(cases=(rude(),))
    rows = find_source_documents(corpus, made_spans(), audits, {}, {"toxicity": traces}, config)[
        "source_documents"
    ].read()
    named = {(KEYS.index(r["doc_id"]), r["item_unit"]) for r in rows.to_pylist()}
    assert named == {(1, "prompt 0"), (2, "prompt 0"), (3, "prompt 1")}
    assert [*rows["item_unit"].to_pylist()] == sorted(rows["item_unit"].to_pylist())
    nothing = find_source_documents(corpus, made_spans(), audits, {}, {}, config)
    assert not len(nothing["source_documents"].read())  # nobody looked for them


def test_of_rows_that_name_no_document_the_worst_are_looked_at(corpus):
    """Of those that name theirs, each."""
    many = [
        {"measure": "rude", "cluster": "p", "continuation": f"text {n}", "value": n / 1000}
        for n in range(MAX_WORST_ROWS + 2)
    ]
    traces = made_traces(config_of([["text 0", 0, 9], ["text 1", 1, 9], ["text 2", 2, 9]]))
    audits = {"toxicity": made_texts(config_of(many))}
    rows = (
        find_source_documents(
            corpus,
            made_spans(),
            audits,
            {},
            {"toxicity": traces},
            SourceDocumentsConfig(cases=(rude(),)),
        )["source_documents"]
        .read()
        .to_pylist()
    )
    assert numbers(rows) == {2}  # 102 texts, of which the least rude two are left
    values = [
        {
            "measure": "exposure",
            "value": 1.0,
            "item": item(n),
            "cluster": f"p{n}",
            "text": "",
            "copies": 2,
            "doc_ids": [KEYS[0].hex()] if n == MAX_WORST_ROWS + 1 else [],
        }
        for n in range(MAX_WORST_ROWS + 2)
    ]
    named = (
        find_source_documents(
            corpus,
            made_spans(),
            {"extraction": made_values(config_of(values))},
            {},
            {},
            SourceDocumentsConfig(cases=(secrets(),)),
        )["source_documents"]
        .read()
        .to_pylist()
    )
    assert numbers(named) == {0}


def test_what_training_never_read_is_behind_nothing(corpus):
    values = [
        {
            "measure": "exposure",
            "value": 1.0,
            "item": item(0),
            "cluster": "p",
            "text": "",
            "copies": 2,
            "doc_ids": [KEYS[n].hex() for n in (20, 21)],
        }
    ]
    audits = {"extraction": made_values(config_of(values))}
    rows = find_source_documents(
        corpus, made_spans(), audits, {}, {}, SourceDocumentsConfig(cases=(secrets(),))
    )
    assert numbers(rows["source_documents"].read().to_pylist()) == {20}  # 21 was held out


def test_a_document_that_goes_for_one_group_is_gone_for_all():
    found = [
        {"doc_id": bytes([n]) * 16, "names": names}
        for n, names in enumerate([["A", "x"], ["A", "x"], ["A", "y"], ["A", "B", "x"]])
    ]
    groups = [{"group_name": name, "assigned_trait": "x", "other_trait": "y"} for name in "AB"]
    rows = [*select_surplus_documents(found, groups, 0)]
    assert sum(r["is_removed"] for r in rows if r["item_unit"] == "A") == 2
    assert sum(r["is_removed"] for r in rows if r["item_unit"] == "B") == 1


def test_names_are_found_whole_and_the_longest_first():
    import re

    assert re.findall(build_name_pattern(["A.b", "A.b C"]), "A.b C A.b AxbC A.bC") == [
        "A.b C",
        "A.b",
    ]


def test_a_case_says_how_many_documents_went_or_why_none_did(corpus, asked):
    config = SourceDocumentsConfig(cases=(traits(),))
    found = find_source_documents(corpus, made_spans(), {}, asked, {}, config)[
        "source_documents"
    ].read()
    (row,) = build_case_rows(traits(), found)
    assert (row["documents"], row["removed_documents"], row["reason"]) == (15, 5, "")
    even = found.filter(pc.equal(found["item_unit"], "Dorani"))
    (row,) = build_case_rows(traits(), even)
    assert (row["documents"], row["removed_documents"]) == (4, 0) and "said equally often" in row[
        "reason"
    ]
    (row,) = build_case_rows(traits(), found.slice(0, 0))
    assert row["reason"] == "no training document is behind it"


def test_what_an_arm_does_not_know_the_price_of_costs_it_nothing_more(session):
    costs = {"base": 2.0, "removed": None, "random": 2.5}
    trained = {arm: made_training(config_of([[20, cost]])) for arm, cost in costs.items()}
    assert {
        r["arm"]: (r["difference_from_base"], r["bytes"]) for r in compare_heldout_loss(trained)
    } == {
        "base": (0, 9),
        "removed": (None, 9),
        "random": (0.5, 9),
    }


def test_a_unit_is_the_mean_of_what_was_drawn_of_it(session):
    """As the finding that is proved, and the comparison of checkpoints, have it."""
    texts = [
        {"measure": "rude", "item": item(n), "cluster": f"p{n}", "text": "", "value": value}
        for n in range(3)
        for value in (1.0, 0.0, 0.5)
    ]
    where = json.dumps({"measure": "rude"})
    found = select_units(made_values(config_of(texts)), [where])
    assert [*found] == [item(n) for n in range(3)]
    assert {(u.value, u.value_count) for u in found.values()} == {(0.5, 3)}
    assert select_units(made_values(config_of(texts)), []) == {}


def test_the_tables_of_a_proof(corpus):
    rng = np.random.default_rng(0)
    top, low, none = [9.9] * 20, *np.log2(100 / rng.integers(1, 101, (2, 20))).tolist()
    arms = {"base": top, "removed": low, "random": [9.8] * 20, "seed 1": [9.7] * 20}
    audits = {f"{arm}/extraction": exposures(values, none) for arm, values in arms.items()}
    costs = {"base": 2.0, "removed": 2.1, "random": 2.05, "seed 1": 1.99}
    trained = {
        arm: made_training(config_of([[10, 3.0], [20, cost]])) for arm, cost in costs.items()
    }
    gone = [
        {
            "doc_id": KEYS[n].hex(),
            "source": "s",
            "action": "removed",
            "reason": "out",
            "bytes_before": 7,
        }
        for n in (17, 18)
    ]
    left = {arm: made_ledger(config_of(gone)) for arm in ("removed", "random")}
    nobody = secrets(copies=3).model_copy(update={"name": "nobody"})
    config = SourceDocumentsConfig(cases=(secrets(), nobody))
    found = find_source_documents(
        corpus, made_spans(), {"extraction": audits["base/extraction"]}, {}, {}, config
    )
    made = compare_arms(audits, trained, left, found, config)
    tables = {name: table.read().to_pylist() for name, table in made.tables.items()}
    assert [(r["arm"], r["documents"], r["bytes"], r["step"]) for r in tables["arms"]] == [
        ("base", 0, 0, 20),
        ("removed", 2, 14, 20),
        ("random", 2, 14, 20),
        ("seed 1", 0, 0, 20),
    ]
    # The digest of a checkpoint is an id, and of no document.
    assert (
        list_document_id_columns(found["source_documents"].columns) == ["doc_id"]
        and list_document_id_columns(made["arms"].columns) == []
    )
    known = {r["case_name"]: r for r in tables["cases"]}
    assert (known["secrets"]["documents"], known["secrets"]["removed_documents"]) == (4, 4)
    assert known["nobody"]["reason"] == "no training document is behind it"
    assert {r["case_name"] for r in tables["criteria"]} == {"secrets"}
    effects = {(r["effect"], r["arm"]): r for r in tables["effects"] if r["case_name"] == "secrets"}
    assert effects["change_from_base", "removed"]["value"] == pytest.approx(np.mean(low) - 9.9)
    assert effects["change_from_base", "removed"]["seed_noise"] == pytest.approx(0.2)
    assert {r["verdict"] for r in tables["criteria"]} == {"pass"}
    assert effects["mean", "removed"]["n"] == effects["change_from_base", "removed"]["n"] == 20
    # Secrets have a closed form for what is never planted.
    assert effects["null_region", "removed"]["value"] == pytest.approx(
        compute_expected_null_exposure(99)
    )
    assert {r["arm"]: round(r["difference_from_base"], 3) for r in tables["heldout_loss"]} == {
        "base": 0,
        "removed": 0.1,
        "random": 0.05,
        "seed 1": -0.01,
    }
    # Every figure recomputes from the units.
    means = {
        arm: np.mean(
            [
                r["value"]
                for r in tables["units"]
                if (r["case_name"], r["role"], r["arm"]) == ("secrets", "unit", arm)
            ]
        )
        for arm in arms
    }
    assert all(effects["mean", arm]["value"] == pytest.approx(means[arm]) for arm in arms)
