"""The closed loop: findings, the documents behind them, and what trainings without these do.

See ``behind`` for the documents, ``arms`` for the arms and what is made of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.judging.findings import evidence
from tasks.audits.judging.units import Unit, units_in
from tasks.audits.proofs.arms import BASE, Measured, Row, effects, lines
from tasks.audits.proofs.behind import BehindConfig, Case
from tasks.contract import Artifact, Table, Work, column, stage, table

_CASE = column("case", pa.string(), "label", "the findings")
_ARM = column("arm", pa.string(), "label", "base, removed, random, or another seed")

ARMS = table(
    "The trainings that are compared.",
    _ARM,
    column("step", pa.int64(), "figure", "optimizer step of its last checkpoint"),
    column("checkpoint", pa.string(), "id", "content digest of that checkpoint"),
    column("documents", pa.int64(), "figure", "training documents left out", unit="documents"),
    column("bytes", pa.int64(), "figure", "bytes of text left out", unit="bytes"),
)
SOURCES = table(
    "What was left out, by source.",
    _ARM,
    column("source", pa.string(), "label", "the source"),
    column("documents", pa.int64(), "figure", "training documents left out", unit="documents"),
    column("bytes", pa.int64(), "figure", "bytes of text left out", unit="bytes"),
)
CASES = table(
    "The findings that were traced.",
    _CASE,
    column("kind", pa.string(), "label", "memorised, association or other"),
    column("finding", pa.string(), "label", "a finding, as the command trace takes it"),
    column("documents", pa.int64(), "figure", "training documents behind the case",
           unit="documents"),
    column("removed", pa.int64(), "figure", "those of them that were removed", unit="documents"),
    column("why", pa.string(), "project text", "where nothing was removed, why"),
)  # fmt: skip
UNITS = table(
    "What was measured of each arm, a row a unit.",
    _CASE,
    column("role", pa.string(), "label", "unit: of the findings; nothing: in which there is "
           "nothing to find"),
    _ARM,
    column("item", pa.string(), "id", "the unit; of one name, in two arms, they are a pair"),
    column("cluster", pa.string(), "label", "units that share something"),
    column("value", pa.float64(), "figure", "null: the model gave no number"),
)  # fmt: skip
EFFECTS = table(
    "What is made of the units.",
    _CASE,
    column("what", pa.string(), "label", "value: mean of the units; nothing: of those in which "
           "there is nothing to find; region: where the mean lies with probability 0.99 if it is "
           "one of these; before, left: the difference of the two; change: to the base, in pairs; "
           "against: what the random arm has more than the removed one, in pairs; explained: the "
           "share of the effect before that the removal takes away"),
    _ARM,
    column("value", pa.float64(), "figure", "the figure; null: it could not be measured"),
    column("low", pa.float64(), "figure", "lower end of its interval"),
    column("high", pa.float64(), "figure", "upper end"),
    column("level", pa.float64(), "figure", "level of the interval", unit="share"),
    column("n", pa.int64(), "figure", "units, or pairs of them"),
    column("clusters", pa.int64(), "figure", "units that share nothing with each other"),
    column("unit", pa.string(), "label", "unit of the figure"),
    column("method", pa.string(), "project text", "how it was measured"),
    column("noise", pa.float64(), "figure", "largest distance of another seed from the base; null: "
           "none was trained, or it is one of these"),
    column("verdict", pa.string(), "label", "beyond noise: the end of the interval that is nearest "
           "to 0 is further from it than the noise; within noise; empty: not compared"),
)  # fmt: skip
LINES = table(
    "What the closed loop must reach.",
    _CASE,
    column("line", pa.string(), "label", "what is compared"),
    column("value", pa.float64(), "figure", "the figure; null: it could not be measured"),
    column("must", pa.string(), "label", "at least, at most, above or below"),
    column("bound", pa.float64(), "figure", "the bound; null: not known"),
    column("unit", pa.string(), "label", "unit of both"),
    column("verdict", pa.string(), "label", "pass, fail, or empty where either is not known"),
)
PRICE = table(
    "What the held-out text costs the last checkpoint of each arm.",
    column("kind", pa.string(), "label", "all, source or identity"),
    column("name", pa.string(), "label", "the source, or the group that documents mention"),
    _ARM,
    column("bytes", pa.int64(), "figure", "bytes that were predicted", unit="bytes"),
    column("bits_per_byte", pa.float64(), "figure", "null: nothing was predicted",
           unit="bits per byte"),
    column("more", pa.float64(), "figure", "than the base", unit="bits per byte"),
)  # fmt: skip

#: Between the arm and the audit in the names of what the stage is given.
OF = "/"


def units_of(audit: Artifact, conditions: Sequence[str]) -> dict[str, Unit]:
    """The units that any of the conditions selects."""
    if not conditions:
        return {}
    values = audit["values"].read()
    found = units_in(pa.concat_tables([evidence(values, where) for where in conditions]))
    return {
        _named(item): unit._replace(cluster=_named(unit.cluster)) for item, unit in found.items()
    }


def _named(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def one_each(units: Mapping[str, Unit]) -> dict[str, Unit]:
    """A unit a cluster, with the mean of what is known of its units."""
    found: dict[str, list[float]] = {}
    for unit in units.values():
        found.setdefault(unit.cluster, []).append(unit.value)
    known = {cluster: [v for v in values if not np.isnan(v)] for cluster, values in found.items()}
    return {cluster: Unit(cluster, float(np.mean(values)) if values else float("nan"))
            for cluster, values in known.items()}  # fmt: skip


def measured_of(case: Case, audits: Mapping[str, Artifact], seed: int) -> Measured:
    """The units of a case in every arm; ``audits`` by arm. Of memorised text a unit is a secret or
    a passage, all attempts at it together."""
    each = one_each if case.kind == "memorised" else dict
    units = {arm: each(units_of(audit, case.units)) for arm, audit in audits.items()}
    nothing = {arm: each(units_of(audit, case.nothing)) for arm, audit in audits.items()}
    references = 0
    values = audits[BASE]["values"]
    if case.metric == "exposure" and "references" in values.columns:
        known = values.read(["references"])["references"]
        references = int(pc.max(known).as_py() or 0)
    return Measured(case, units, nothing, references, seed)


def unit_rows(found: Measured) -> list[Row]:
    return [
        {"case": found.case.name, "role": role, "arm": arm, "item": item, "cluster": unit.cluster,
         "value": None if np.isnan(unit.value) else unit.value}
        for role, sides in (("unit", found.units), ("nothing", found.nothing))
        for arm, units in sides.items()
        for item, unit in units.items()
    ]  # fmt: skip


def case_rows(case: Case, behind: pa.Table) -> list[Row]:
    """Rows of CASES: a row a finding."""
    mine = behind.filter(pc.equal(behind["case"], case.name))
    gone = mine.filter(mine["removed"])
    counts = [pc.count_distinct(each["doc_id"]).as_py() for each in (mine, gone)]
    why = ""
    if not counts[1]:
        sides = Counter(zip(mine["unit"].to_pylist(), mine["holds"].to_pylist(), strict=True))
        if not counts[0]:
            why = "no training document is behind it"
        elif all(sides[unit, "own"] == sides[unit, "other"] for unit, _ in [*sides]):
            why = "both traits are said equally often: there is no surplus"
        else:
            why = "none of the surplus was trained on"
    return [{"case": case.name, "kind": case.kind, "finding": name, "documents": counts[0],
             "removed": counts[1], "why": why} for name in case.findings]  # fmt: skip


def left_out(arm: str, ledger: Artifact | None) -> list[Row]:
    """Rows of SOURCES of an arm."""
    if ledger is None:
        return []
    rows = ledger["ledger"].read(["source", "bytes_before"])
    sums = rows.group_by("source").aggregate([("bytes_before", "count"), ("bytes_before", "sum")])
    return [
        {"arm": arm, "source": row["source"], "documents": row["bytes_before_count"],
         "bytes": row["bytes_before_sum"]}
        for row in sums.sort_by("source").to_pylist()
    ]  # fmt: skip


def last_costs(trained: Artifact) -> dict[tuple[str, str], Row]:
    """What held-out text cost at the last validation of a training: its rows by kind and name."""
    rows = trained["validation"].read().to_pylist()
    last = max((row["step"] for row in rows), default=0)
    return {(row["kind"], row["name"]): row for row in rows if row["step"] == last}


def price(trained: Mapping[str, Artifact]) -> list[Row]:
    """Rows of PRICE."""
    costs = {arm: last_costs(artifact) for arm, artifact in trained.items()}
    made = []
    for (kind, name), base in costs[BASE].items():
        for arm, known in costs.items():
            row = known.get((kind, name), {})
            ours, cost = base["bits_per_byte"], row.get("bits_per_byte")
            more = None if ours is None or cost is None else cost - ours
            made.append({"kind": kind, "name": name, "arm": arm, "bytes": row.get("bytes", 0),
                         "bits_per_byte": cost, "more": more})  # fmt: skip
    return made


@stage(
    tables={"arms": ARMS, "sources": SOURCES, "cases": CASES, "units": UNITS, "effects": EFFECTS,
            "lines": LINES, "price": PRICE},
    libraries=["numpy", "scipy"],
    reads={"audits": ("values",), "trained": ("validation", "checkpoints"),
           "left": ("ledger",)},
)  # fmt: skip
def proof(
    audits: dict[str, Artifact],
    trained: dict[str, Artifact],
    left: dict[str, Artifact],
    behind: Table,
    config: BehindConfig,
    work: Work,
) -> None:
    """``audits`` by arm and audit ("removed/extraction"), ``trained`` and what was ``left`` out by
    arm."""
    traced = behind.read()
    cases = [row for case in config.cases for row in case_rows(case, traced)]
    with_documents = {row["case"] for row in cases if row["removed"]}
    tables: dict[str, list[Row]] = {name: [] for name in ("units", "effects", "lines")}
    for case in config.cases:
        mine = {name.split(OF)[0]: audit for name, audit in audits.items()
                if name.split(OF)[1] == case.audit}  # fmt: skip
        found = measured_of(case, mine, config.seed)
        tables["units"] += unit_rows(found)
        made = effects(found)
        tables["effects"] += made
        if case.name in with_documents:
            tables["lines"] += lines(case, made)
    tables["cases"], tables["price"] = cases, price(trained)
    tables["sources"] = [row for arm in trained for row in left_out(arm, left.get(arm))]
    for arm, artifact in trained.items():
        last = artifact["checkpoints"].read(["step", "content"]).sort_by("step").to_pylist()[-1]
        gone = [row for row in tables["sources"] if row["arm"] == arm]
        tables.setdefault("arms", []).append(
            {"arm": arm, "step": last["step"], "checkpoint": last["content"],
             "documents": sum(row["documents"] for row in gone),
             "bytes": sum(row["bytes"] for row in gone)}
        )  # fmt: skip
    for name, rows in tables.items():
        work.table(name).write(pa.Table.from_pylist(rows, schema=work.schemas[name]))
