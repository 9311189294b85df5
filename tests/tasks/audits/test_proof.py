"""Documents behind findings, and the closed loop's tables, from artifacts of small stages."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from tasks.audits.behind import BehindConfig, Case, behind, pattern_of, surplus
from tasks.audits.exchange import items_table
from tasks.audits.measures import values_table
from tasks.audits.proof import proof
from tasks.contract import LEDGER, NoConfig, StageConfig, Work, column, ids, stage
from tasks.training.pack import SPANS
from tasks.training.pretrain import CHECKPOINTS, VALIDATION
from tests.tasks.corpora import given

GROUPS = [{"group": "Velani", "own": "mirish", "other": "solish"},
          {"group": "Dorani", "own": "solish", "other": "mirish"}]  # fmt: skip

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
KEYS = [i.as_py() for i in ids(f"document {n}" for n in range(len(TEXTS)))]
SPLITS = ["train"] * 21 + ["holdout"]

ITEMS = items_table(
    column("dose", pa.float64(), "figure", ""),
    *(column(name, pa.string(), "label", "") for name in ("group", "own", "other")),
)
VALUES = values_table(items_table(column("copies", pa.int32(), "figure", ""),
                                  column("doc_ids", pa.list_(pa.binary()), "id", "")))  # fmt: skip


class RowsConfig(StageConfig):
    rows: str


def rows_of(config):
    return json.loads(config.rows, object_hook=lambda row: {
        k: [bytes.fromhex(i) for i in v] if k == "doc_ids" else
        bytes.fromhex(v) if k in ("item", "doc_id") else v for k, v in row.items()})  # fmt: skip


@stage(tables={"items": ITEMS})
def made_items(config: RowsConfig, work: Work) -> None:
    work.table("items").write(pa.Table.from_pylist(rows_of(config), schema=ITEMS))


@stage(tables={"values": VALUES})
def made_values(config: RowsConfig, work: Work) -> None:
    work.table("values").write(pa.Table.from_pylist(rows_of(config), schema=VALUES))


@stage(tables={"spans": SPANS})
def made_spans(config: NoConfig, work: Work) -> None:
    trained = [i for i, split in zip(KEYS, SPLITS, strict=True) if split == "train"]
    rows = [{"split": "train", "sequence": n, "start": 0, "end": 10, "doc_id": i,
             "char_start": 0, "char_end": 9} for n, i in enumerate(trained)]  # fmt: skip
    work.table("spans").write(pa.Table.from_pylist(rows, schema=SPANS))


@stage(tables={"validation": VALIDATION, "checkpoints": CHECKPOINTS})
def made_training(config: RowsConfig, work: Work) -> None:
    costs = [{"step": step, "kind": "all", "name": "all", "tokens": 5, "bytes": 9,
              "bits_per_byte": cost} for step, cost in rows_of(config)]  # fmt: skip
    work.table("validation").write(pa.Table.from_pylist(costs, schema=VALIDATION))
    last = [{"step": step, "tokens": step, "content": f"{cost}"} for step, cost in rows_of(config)]
    work.table("checkpoints").write(pa.Table.from_pylist(last, schema=CHECKPOINTS))


@stage(tables={"ledger": LEDGER})
def made_ledger(config: RowsConfig, work: Work) -> None:
    work.table("ledger").write(pa.Table.from_pylist(rows_of(config), schema=LEDGER))


def config_of(rows):
    return RowsConfig(rows=json.dumps(rows))


def item(n):
    return f"{n:032x}"


def traits():
    where = json.dumps({"measure": "association_strength", "dose": 0.75})
    return Case(name="traits", audit="associations", metric="association_strength", unit="nats",
                findings=("associations.association_strength[dose=0.75]",), kind="association",
                units=(where,))  # fmt: skip


def secrets(copies=2):
    where = json.dumps({"measure": "exposure", "copies": copies})
    none = json.dumps({"measure": "exposure", "copies": 0})
    return Case(name="secrets", audit="extraction", metric="exposure", unit="bits",
                findings=(f"extraction.exposure[copies={copies}]",), kind="memorised",
                rows=(where,), order="-value", units=(where,), nothing=(none,))  # fmt: skip


def exposures(values, none):
    """Values of secrets: two of 17 to 20 stand behind each of the first two."""
    rows = []
    for n, value in enumerate([*values, *none]):
        copies = 2 if n < len(values) else 0
        behind = [KEYS[i].hex() for i in ((17, 18), (19, 20))[n]] if copies and n < 2 else []
        rows.append({"measure": "exposure", "value": value, "item": item(n), "cluster": f"p{n}",
                     "text": "", "copies": copies, "doc_ids": behind})  # fmt: skip
    return made_values(config_of(rows))


@pytest.fixture
def corpus(session):
    return given(TEXTS, splits=SPLITS, kind="split", parts=2)


@pytest.fixture
def asked(session):
    about = [*[(0.75, group) for group in GROUPS] * 2, (0.5, dict.fromkeys(GROUPS[0], "nobody"))]
    rows = [{"item": item(n), "cluster": "a", "text": "", "dose": dose, **group}
            for n, (dose, group) in enumerate(about)]  # fmt: skip
    return {"associations": made_items(config_of(rows))}


def numbers(rows):
    return {KEYS.index(row["doc_id"]) for row in rows}


def test_the_surplus_of_an_association_goes_and_both_sides_are_equal(corpus, asked):
    config = BehindConfig(cases=(traits(),))
    rows = behind(corpus, made_spans(), {}, asked, {}, config)["behind"].read().to_pylist()
    sides = {(g, h): numbers(r for r in rows if (r["unit"], r["holds"]) == (g, h))
             for g in ("Velani", "Dorani") for h in ("own", "other")}  # fmt: skip
    assert sides == {("Velani", "own"): {*range(8)}, ("Velani", "other"): {8, 9, 10},
                     ("Dorani", "own"): {12, 13}, ("Dorani", "other"): {14, 15}}  # fmt: skip
    gone = [row for row in rows if row["removed"]]
    assert {(row["unit"], row["holds"]) for row in gone} == {("Velani", "own")} and len(gone) == 5
    assert {row["tokens"] for row in rows} == {10} and {r["source"] for r in rows} == {"source"}
    again = behind(corpus, made_spans(), {}, asked, {}, config.model_copy(update={"seed": 1}))
    other = [row for row in again["behind"].read().to_pylist() if row["removed"]]
    assert len(other) == 5 and numbers(other) != numbers(gone)


def test_the_documents_that_rows_name_all_go(corpus):
    audits = {"extraction": exposures([9.0, 8.0], [1.0])}
    config = BehindConfig(cases=(secrets(), secrets().model_copy(update={"name": "again"})))
    rows = behind(corpus, made_spans(), audits, {}, {}, config)["behind"].read().to_pylist()
    mine = [row for row in rows if row["case"] == "secrets"]
    assert numbers(mine) == {17, 18, 19, 20} and all(row["removed"] for row in rows)
    assert Counter(row["unit"] for row in mine) == {"p0": 2, "p1": 2} and len(rows) == 8


def test_a_document_that_goes_for_one_group_is_gone_for_all():
    found = [{"doc_id": bytes([n]) * 16, "names": names} for n, names in enumerate(
        [["A", "x"], ["A", "x"], ["A", "y"], ["A", "B", "x"]])]  # fmt: skip
    groups = [{"group": "A", "own": "x", "other": "y"}, {"group": "B", "own": "x", "other": "y"}]
    rows = [*surplus(found, groups, 0)]
    assert sum(r["removed"] for r in rows if r["unit"] == "A") == 2
    assert sum(r["removed"] for r in rows if r["unit"] == "B") == 1


def test_names_are_found_whole_and_the_longest_first():
    import re

    assert re.findall(pattern_of(["A.b", "A.b C"]), "A.b C A.b AxbC A.bC") == ["A.b C", "A.b"]


def test_the_tables_of_a_proof(corpus):
    rng = np.random.default_rng(0)
    top, low = [9.9] * 20, [*rng.random(20)]
    none = [*rng.random(20)]
    arms = {"base": top, "removed": low, "random": [9.8] * 20, "seed 1": [9.7] * 20}
    audits = {f"{arm}/extraction": exposures(values, none) for arm, values in arms.items()}
    costs = {"base": 2.0, "removed": 2.1, "random": 2.05, "seed 1": 1.99}
    trained = {arm: made_training(config_of([[10, 3.0], [20, cost]]))
               for arm, cost in costs.items()}  # fmt: skip
    gone = [{"doc_id": KEYS[n].hex(), "source": "s", "action": "removed", "reason": "out",
             "bytes_before": 7} for n in (17, 18)]  # fmt: skip
    left = {arm: made_ledger(config_of(gone)) for arm in ("removed", "random")}
    nobody = secrets(copies=3).model_copy(update={"name": "nobody"})
    config = BehindConfig(cases=(secrets(), nobody))
    found = behind(corpus, made_spans(), {"extraction": audits["base/extraction"]}, {}, {}, config)
    made = proof(audits, trained, left, found, config)
    tables = {name: table.read().to_pylist() for name, table in made.tables.items()}
    assert [(r["arm"], r["documents"], r["bytes"], r["step"]) for r in tables["arms"]] == [
        ("base", 0, 0, 20), ("removed", 2, 14, 20), ("random", 2, 14, 20), ("seed 1", 0, 0, 20)
    ]  # fmt: skip
    known = {r["case"]: r for r in tables["cases"]}
    assert (known["secrets"]["documents"], known["secrets"]["removed"]) == (4, 4)
    assert known["nobody"]["why"] == "no training document is behind it"
    assert {r["case"] for r in tables["lines"]} == {"secrets"}
    effects = {(r["what"], r["arm"]): r for r in tables["effects"] if r["case"] == "secrets"}
    assert effects["change", "removed"]["value"] == pytest.approx(np.mean(low) - 9.9)
    assert effects["change", "removed"]["noise"] == pytest.approx(0.2)
    assert {r["verdict"] for r in tables["lines"]} == {"pass"}
    assert {r["arm"]: round(r["more"], 3) for r in tables["price"]} == {
        "base": 0, "removed": 0.1, "random": 0.05, "seed 1": -0.01
    }  # fmt: skip
    # Every figure recomputes from the units.
    means = {arm: np.mean([r["value"] for r in tables["units"] if (r["case"], r["role"], r["arm"])
                           == ("secrets", "unit", arm)]) for arm in arms}  # fmt: skip
    assert all(effects["value", arm]["value"] == pytest.approx(means[arm]) for arm in arms)
