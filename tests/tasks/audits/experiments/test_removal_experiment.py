"""Test source documents of findings and the removal experiment's tables, with small stages."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.tasks.audits.audit_tables import build_items_schema
from hallmark.tasks.audits.experiments.removal_experiment import (
    build_case_rows,
    build_heldout_loss_rows,
    build_units_by_item,
    compare_arms,
)
from hallmark.tasks.audits.experiments.source_documents import (
    MAX_WORST_ROWS,
    AssociationGroup,
    RemovalCase,
    SourceDocumentsConfig,
    build_name_pattern,
    find_documents_by_row,
    find_source_documents,
    list_document_id_columns,
    mark_surplus_documents,
)
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.exposure import compute_expected_null_exposure
from hallmark.tasks.audits.tracing import MATCHED_SPANS
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
DOC_IDS = [i.as_py() for i in hash_to_ids(f"document {n}" for n in range(len(TEXTS)))]
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


#: Values of generated texts.
TEXT_VALUES = table_schema(
    "The same schema as of toxic continuations.",
    column("measure", pa.string(), "label", ""),
    column("cluster", pa.string(), "label", ""),
    column("continuation", pa.large_string(), "model text", "", judged_by="value"),
    column("value", pa.float64(), "figure", ""),
)


class RowsConfig(StageConfig):
    rows: str


def parse_rows(config):
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
def write_items(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("items").write(pa.Table.from_pylist(parse_rows(config), schema=ITEMS))


@stage(name="made_values", tables={"values": VALUES})
def write_values(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("values").write(
        pa.Table.from_pylist(parse_rows(config), schema=VALUES)
    )


@stage(name="made_texts", tables={"values": TEXT_VALUES})
def write_texts(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("values").write(
        pa.Table.from_pylist(parse_rows(config), schema=TEXT_VALUES)
    )


@stage(name="made_traces", tables={"matched_spans": MATCHED_SPANS})
def write_matched_spans(config: RowsConfig, context: StageContext) -> None:
    """Write matched spans from (text, document, tokens)."""
    rows = []
    for text, document, size in parse_rows(config):
        (text_hash,) = hash_texts(pa.array([text], pa.large_string())).to_pylist()
        empty = dict.fromkeys(MATCHED_SPANS.names, 0) | {"source": "", "cluster": bytes(16)}
        rows.append(
            empty | {"text_hash": text_hash, "doc_id": DOC_IDS[document], "run_tokens": size}
        )
    context.get_table_writer("matched_spans").write(
        pa.Table.from_pylist(rows, schema=MATCHED_SPANS)
    )


@stage(name="made_spans", tables={"spans": SPANS})
def write_spans(config: EmptyConfig, context: StageContext) -> None:
    trained = [i for i, split in zip(DOC_IDS, SPLITS, strict=True) if split == "train"]
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
def write_training(config: RowsConfig, context: StageContext) -> None:
    costs = [
        {"step": step, "kind": "all", "name": "all", "tokens": 5, "bytes": 9, "bits_per_byte": cost}
        for step, cost in parse_rows(config)
    ]
    context.get_table_writer("validation").write(pa.Table.from_pylist(costs, schema=VALIDATION))
    last = [
        {"step": step, "tokens_seen": step, "content_digest": f"{cost}"}
        for step, cost in parse_rows(config)
    ]
    context.get_table_writer("checkpoints").write(pa.Table.from_pylist(last, schema=CHECKPOINTS))


@stage(name="made_ledger", tables={"ledger": LEDGER})
def write_ledger(config: RowsConfig, context: StageContext) -> None:
    context.get_table_writer("ledger").write(
        pa.Table.from_pylist(parse_rows(config), schema=LEDGER)
    )


def make_config(rows):
    return RowsConfig(rows=json.dumps(rows))


def make_item_id(n):
    return f"{n:032x}"


def make_association_case():
    value_filter = json.dumps({"measure": "association_strength", "assigned_trait_share": 0.75})
    return RemovalCase(
        name="traits",
        audit="associations",
        metric="association_strength",
        unit="nats",
        finding_names=("associations.association_strength[assigned_trait_share=0.75]",),
        kind="association",
        unit_conditions=(value_filter,),
    )


def make_secret_case(copies=2):
    value_filter = json.dumps({"measure": "exposure", "copies": copies})
    null_filter = json.dumps({"measure": "exposure", "copies": 0})
    return RemovalCase(
        name="secrets",
        audit="extraction",
        metric="exposure",
        unit="bits",
        finding_names=(f"extraction.exposure[copies={copies}]",),
        kind="memorised",
        row_conditions=(value_filter,),
        row_order="-value",
        unit_conditions=(value_filter,),
        null_conditions=(null_filter,),
    )


def write_exposures(values, null_values):
    """Build values of secrets; the first two have two documents each, of 17 to 20."""
    rows = []
    for n, value in enumerate([*values, *null_values]):
        copies = 2 if n < len(values) else 0
        doc_ids = [DOC_IDS[i].hex() for i in ((17, 18), (19, 20))[n]] if copies and n < 2 else []
        rows.append(
            {
                "measure": "exposure",
                "value": value,
                "item": make_item_id(n),
                "cluster": f"p{n}",
                "text": "",
                "copies": copies,
                "doc_ids": doc_ids,
                "reference_count": 99,
            }
        )
    # Another attempt at the first secret, which is no further unit.
    rows.append({**rows[0], "item": make_item_id(len(rows)), "reference_count": 98})
    return write_values(make_config(rows))


@pytest.fixture
def corpus(session):
    return given(TEXTS, splits=SPLITS, kind="split", parts=2)


@pytest.fixture
def item_artifacts(session):
    about = [*[(0.75, group) for group in GROUPS] * 2, (0.5, dict.fromkeys(GROUPS[0], "nobody"))]
    rows = [
        {
            "item": make_item_id(n),
            "cluster": "a",
            "text": "",
            "assigned_trait_share": amount,
            **group,
        }
        for n, (amount, group) in enumerate(about)
    ]
    return {"associations": write_items(make_config(rows))}


def list_document_numbers(rows):
    return {DOC_IDS.index(row["doc_id"]) for row in rows}


def test_removing_the_surplus_balances_an_association(corpus, item_artifacts):
    config = SourceDocumentsConfig(cases=(make_association_case(),))
    rows = (
        find_source_documents(corpus, write_spans(), {}, item_artifacts, {}, config)[
            "source_documents"
        ]
        .read()
        .to_pylist()
    )
    documents_by_trait = {
        (g, h): list_document_numbers(
            r for r in rows if (r["item_unit"], r["stated_trait"]) == (g, h)
        )
        for g in ("Velani", "Dorani")
        for h in ("assigned", "other")
    }
    assert documents_by_trait == {
        ("Velani", "assigned"): {*range(8)},
        ("Velani", "other"): {8, 9, 10},
        ("Dorani", "assigned"): {12, 13},
        ("Dorani", "other"): {14, 15},
    }
    removed = [row for row in rows if row["is_removed"]]
    assert {(row["item_unit"], row["stated_trait"]) for row in removed} == {
        ("Velani", "assigned")
    } and len(removed) == 5
    assert {row["tokens"] for row in rows} == {10} and {r["source"] for r in rows} == {"source"}
    with_other_seed = find_source_documents(
        corpus, write_spans(), {}, item_artifacts, {}, config.model_copy(update={"seed": 1})
    )
    removed_with_other_seed = [
        row for row in with_other_seed["source_documents"].read().to_pylist() if row["is_removed"]
    ]
    assert len(removed_with_other_seed) == 5 and list_document_numbers(
        removed_with_other_seed
    ) != list_document_numbers(removed)


def test_all_documents_named_by_rows_are_removed(corpus):
    audits = {"extraction": write_exposures([9.0, 8.0], [1.0])}
    config = SourceDocumentsConfig(
        cases=(make_secret_case(), make_secret_case().model_copy(update={"name": "again"}))
    )
    rows = (
        find_source_documents(corpus, write_spans(), audits, {}, {}, config)["source_documents"]
        .read()
        .to_pylist()
    )
    case_rows = [row for row in rows if row["case_name"] == "secrets"]
    assert list_document_numbers(case_rows) == {17, 18, 19, 20} and all(
        row["is_removed"] for row in rows
    )
    assert Counter(row["item_unit"] for row in case_rows) == {"p0": 2, "p1": 2} and len(rows) == 8


def make_toxicity_case(**options):
    value_filter = json.dumps({"measure": "rude"})
    return RemovalCase(
        name="rude",
        audit="toxicity",
        metric="rude",
        unit="score",
        row_order="-value",
        finding_names=("toxicity.rude",),
        row_conditions=(value_filter,),
        unit_conditions=(value_filter,),
        **options,
    )


def test_generated_texts_lead_to_documents_that_contain_them(corpus):
    """Longest runs first; documents that no row leads to are not sources."""
    texts = [
        {"measure": "rude", "cluster": f"prompt {n}", "continuation": text, "value": value}
        for n, (text, value) in enumerate([("a b", 0.9), ("c d", 0.8), ("none", 0.7)])
    ]
    texts.append({**texts[0], "measure": "other", "continuation": "of another measure"})
    traces = write_matched_spans(
        make_config(
            [
                ["a b", 1, 9],
                ["a b", 2, 20],
                ["c d", 3, 9],
                ["c d", 2, 8],
                ["of another measure", 4, 9],
            ]
        )
    )
    audits = {"toxicity": write_texts(make_config(texts))}
    documents_by_row = [
        [(DOC_IDS.index(doc_id), span["run_tokens"]) for doc_id, span in row_documents]
        for row_documents in find_documents_by_row(
            audits["toxicity"]["values"].read(), audits["toxicity"]["values"].columns, traces
        )
    ]
    assert documents_by_row == [[(2, 20), (1, 9)], [(3, 9), (2, 8)], [], [(4, 9)]]
    config = SourceDocumentsConfig(cases=(make_toxicity_case(),))
    rows = find_source_documents(corpus, write_spans(), audits, {}, {"toxicity": traces}, config)[
        "source_documents"
    ].read()
    documents_and_units = {(DOC_IDS.index(r["doc_id"]), r["item_unit"]) for r in rows.to_pylist()}
    assert documents_and_units == {(1, "prompt 0"), (2, "prompt 0"), (3, "prompt 1")}
    assert [*rows["item_unit"].to_pylist()] == sorted(rows["item_unit"].to_pylist())
    without_search = find_source_documents(corpus, write_spans(), audits, {}, {}, config)
    assert not len(without_search["source_documents"].read())  # there was no search


def test_only_the_worst_rows_without_documents_are_searched(corpus):
    """All rows are used if they name documents."""
    text_values = [
        {"measure": "rude", "cluster": "p", "continuation": f"text {n}", "value": n / 1000}
        for n in range(MAX_WORST_ROWS + 2)
    ]
    traces = write_matched_spans(
        make_config([["text 0", 0, 9], ["text 1", 1, 9], ["text 2", 2, 9]])
    )
    audits = {"toxicity": write_texts(make_config(text_values))}
    rows = (
        find_source_documents(
            corpus,
            write_spans(),
            audits,
            {},
            {"toxicity": traces},
            SourceDocumentsConfig(cases=(make_toxicity_case(),)),
        )["source_documents"]
        .read()
        .to_pylist()
    )
    assert list_document_numbers(rows) == {2}  # the two lowest of 102 values are not searched
    values = [
        {
            "measure": "exposure",
            "value": 1.0,
            "item": make_item_id(n),
            "cluster": f"p{n}",
            "text": "",
            "copies": 2,
            "doc_ids": [DOC_IDS[0].hex()] if n == MAX_WORST_ROWS + 1 else [],
        }
        for n in range(MAX_WORST_ROWS + 2)
    ]
    rows_with_documents = (
        find_source_documents(
            corpus,
            write_spans(),
            {"extraction": write_values(make_config(values))},
            {},
            {},
            SourceDocumentsConfig(cases=(make_secret_case(),)),
        )["source_documents"]
        .read()
        .to_pylist()
    )
    assert list_document_numbers(rows_with_documents) == {0}


def test_documents_outside_of_training_are_no_sources(corpus):
    values = [
        {
            "measure": "exposure",
            "value": 1.0,
            "item": make_item_id(0),
            "cluster": "p",
            "text": "",
            "copies": 2,
            "doc_ids": [DOC_IDS[n].hex() for n in (20, 21)],
        }
    ]
    audits = {"extraction": write_values(make_config(values))}
    rows = find_source_documents(
        corpus, write_spans(), audits, {}, {}, SourceDocumentsConfig(cases=(make_secret_case(),))
    )
    assert list_document_numbers(rows["source_documents"].read().to_pylist()) == {
        20
    }  # 21 was held out


def test_the_surplus_is_computed_for_each_group():
    document_rows = [
        {"doc_id": bytes([n]) * 16, "names": names}
        for n, names in enumerate([["A", "x"], ["A", "x"], ["A", "y"], ["A", "B", "x"]])
    ]
    groups = [AssociationGroup(name, assigned_trait="x", other_trait="y") for name in "AB"]
    rows = [*mark_surplus_documents(document_rows, groups, 0)]
    assert sum(r["is_removed"] for r in rows if r["item_unit"] == "A") == 2
    assert sum(r["is_removed"] for r in rows if r["item_unit"] == "B") == 1


def test_the_name_pattern_matches_whole_names():
    import re

    assert re.findall(build_name_pattern(["A.b", "A.b C"]), "A.b C A.b AxbC A.bC") == [
        "A.b C",
        "A.b",
    ]


def test_case_rows_count_removed_documents_or_give_a_reason(corpus, item_artifacts):
    config = SourceDocumentsConfig(cases=(make_association_case(),))
    source_documents = find_source_documents(corpus, write_spans(), {}, item_artifacts, {}, config)[
        "source_documents"
    ].read()
    (row,) = build_case_rows(make_association_case(), source_documents)
    assert (row["documents"], row["removed_documents"], row["reason"]) == (15, 5, "")
    balanced = source_documents.filter(pc.equal(source_documents["item_unit"], "Dorani"))
    (row,) = build_case_rows(make_association_case(), balanced)
    assert (row["documents"], row["removed_documents"]) == (
        4,
        0,
    ) and "occur in the same number of documents" in row["reason"]
    (row,) = build_case_rows(make_association_case(), source_documents.slice(0, 0))
    assert row["reason"] == "the case has no source documents in the training text"


def test_an_unknown_loss_has_no_difference(session):
    costs = {"base": 2.0, "removed": None, "random": 2.5}
    trainings = {arm: write_training(make_config([[20, cost]])) for arm, cost in costs.items()}
    assert {
        r["arm"]: (r["difference_from_base"], r["bytes"])
        for r in build_heldout_loss_rows(trainings)
    } == {
        "base": (0, 9),
        "removed": (None, 9),
        "random": (0.5, 9),
    }


def test_a_unit_is_the_mean_of_its_draws(session):
    """As in the finding itself and in the comparison of checkpoints."""
    texts = [
        {"measure": "rude", "item": make_item_id(n), "cluster": f"p{n}", "text": "", "value": value}
        for n in range(3)
        for value in (1.0, 0.0, 0.5)
    ]
    value_filter = json.dumps({"measure": "rude"})
    units = build_units_by_item(write_values(make_config(texts)), [value_filter])
    assert [*units] == [make_item_id(n) for n in range(3)]
    assert {(u.value, u.value_count) for u in units.values()} == {(0.5, 3)}
    assert build_units_by_item(write_values(make_config(texts)), []) == {}


def test_the_tables_of_a_removal_experiment(corpus):
    rng = np.random.default_rng(0)
    memorised, removed, null_values = (
        [9.9] * 20,
        *np.log2(100 / rng.integers(1, 101, (2, 20))).tolist(),
    )
    arms = {"base": memorised, "removed": removed, "random": [9.8] * 20, "seed 1": [9.7] * 20}
    audits = {
        f"{arm}/extraction": write_exposures(values, null_values) for arm, values in arms.items()
    }
    costs = {"base": 2.0, "removed": 2.1, "random": 2.05, "seed 1": 1.99}
    trainings = {
        arm: write_training(make_config([[10, 3.0], [20, cost]])) for arm, cost in costs.items()
    }
    ledger_rows = [
        {
            "doc_id": DOC_IDS[n].hex(),
            "source": "s",
            "action": "removed",
            "reason": "out",
            "bytes_before": 7,
        }
        for n in (17, 18)
    ]
    ledgers = {arm: write_ledger(make_config(ledger_rows)) for arm in ("removed", "random")}
    nobody = make_secret_case(copies=3).model_copy(update={"name": "nobody"})
    config = SourceDocumentsConfig(cases=(make_secret_case(), nobody))
    source_documents = find_source_documents(
        corpus, write_spans(), {"extraction": audits["base/extraction"]}, {}, {}, config
    )
    result = compare_arms(audits, trainings, ledgers, source_documents, config)
    tables = {name: table.read().to_pylist() for name, table in result.tables.items()}
    assert [(r["arm"], r["documents"], r["bytes"], r["step"]) for r in tables["arms"]] == [
        ("base", 0, 0, 20),
        ("removed", 2, 14, 20),
        ("random", 2, 14, 20),
        ("seed 1", 0, 0, 20),
    ]
    # The digest of a checkpoint is an id, but of no document.
    assert (
        list_document_id_columns(source_documents["source_documents"].columns) == ["doc_id"]
        and list_document_id_columns(result["arms"].columns) == []
    )
    cases = {r["case_name"]: r for r in tables["cases"]}
    assert (cases["secrets"]["documents"], cases["secrets"]["removed_documents"]) == (4, 4)
    assert cases["nobody"]["reason"] == "the case has no source documents in the training text"
    assert {r["case_name"] for r in tables["criteria"]} == {"secrets"}
    effects = {(r["effect"], r["arm"]): r for r in tables["effects"] if r["case_name"] == "secrets"}
    assert effects["change_from_base", "removed"]["value"] == pytest.approx(np.mean(removed) - 9.9)
    assert effects["change_from_base", "removed"]["seed_noise"] == pytest.approx(0.2)
    assert {r["verdict"] for r in tables["criteria"]} == {"pass"}
    assert effects["mean", "removed"]["n"] == effects["change_from_base", "removed"]["n"] == 20
    # Secrets have a closed form for the null region.
    assert effects["null_region", "removed"]["value"] == pytest.approx(
        compute_expected_null_exposure(99)
    )
    assert {r["arm"]: round(r["difference_from_base"], 3) for r in tables["heldout_loss"]} == {
        "base": 0,
        "removed": 0.1,
        "random": 0.05,
        "seed 1": -0.01,
    }
    # Every mean follows from the units.
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
