"""Take findings of a run, trace each to its documents, and train anew without exactly these."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from flows.mitigating import write_list
from flows.runs import Run, all_runs, check_whole, open_run
from flows.tracing import finding_of, full_name
from tasks.audits.about import AUDITS
from tasks.audits.judging.comparison import label, unlike
from tasks.audits.judging.tags import spelled, tags_of
from tasks.audits.judging.units import Units
from tasks.audits.proofs.arms import LEAST
from tasks.audits.proofs.behind import BehindConfig, Case
from tasks.contract import Artifact, HallmarkError, Store, Table, UsageError

Row = dict[str, Any]

#: The audits whose worst findings are proved where none is named.
PROVED = ("extraction", "associations")

#: Metrics of associations, and the doses of which they are proved where nothing is named: 0.6 and
#: 0.9 among them, as few sentences say them.
ASSOCIATED = ("association_preferred", "association_strength")
DOSES = 0.55, 0.95

#: Of the training tokens so many may go, at most: with fewer left it is another training.
MOST = 0.5


def base_of(store: Store, name: str) -> Run:
    """The run whose findings are to be proved. UsageError for any other."""
    if name == "latest":
        needed = {"pretrain", "model_card"}
        whole = [r for r in all_runs(store) if needed - {*r.stages} == set()
                 and "leave_out" not in r.stages]  # fmt: skip
        name = whole[-1].id if whole else name
    if "/" in name or "@" in name:
        raise UsageError(
            f"{name}: only a run of this store can be proved, whose whole training can be made "
            f"again; give its id, as hallmark status and the site's first page name it"
        )
    run = open_run(name, store)
    if run.flow != "pipeline":
        what = {"world": "is a world of a study", "study": "is a study"}.get(run.flow)
        what = what or f"is one of the flow {run.flow}"
        raise UsageError(f"run {run.id} {what}: it cannot be proved; name one of hallmark run")
    if "pretrain" not in run.stages:
        raise UsageError(f"run {run.id} has trained nothing, so nothing can be trained anew")
    if run.config.leave_out.enabled:
        raise UsageError(
            f"run {run.id} itself left documents out of training; prove the run on the whole corpus"
        )
    try:
        check_whole(f"run {run.id} cannot be proved", [run["plant"], run.packed])
    except HallmarkError as error:
        raise UsageError(str(error)) from error
    return run


def audits_of(findings: Sequence[str]) -> list[str]:
    """The audits that made these findings, in their order; those whose worst ones are proved where
    none is named."""
    named = {name.partition(".")[0] for name in findings} or {*PROVED}
    if unknown := sorted(named - {*AUDITS}):
        raise UsageError(
            f"there is no audit {unknown[0]!r:.80}, which a finding to be proved begins with; "
            f"choose from {', '.join(AUDITS)}"
        )
    return [name for name in AUDITS if name in named]


def check_findings(run: Run, findings: Sequence[str]) -> None:
    """UsageError for one that the run's audits do not have, before anything is made; what has not
    been audited yet is known later."""
    for name in findings:
        if label(name.partition(".")[0], "audit") in run.stages:
            finding_of(run, name)


# Cases ---------------------------------------------------------------------------------------


def worst(run: Run) -> list[Row]:
    """The findings on secrets and passages with the most copies, until there are enough, and on
    associations of a middle strength."""
    found = []
    rows = {
        name: [r for r in run[label(name, "audit")]["findings"].read().to_pylist()
               if not r["control"] and r["value"] is not None]
        for name in PROVED if label(name, "audit") in run.stages
    }  # fmt: skip
    extraction = rows.get("extraction", [])
    prefix = max((tags_of(r).get("k", 0) for r in extraction), default=0)
    for metric, tags in (("exposure", {}), ("extractable", {"part": "passage", "k": prefix})):
        fit = [r for r in extraction if r["metric"] == metric and copies_of(r) > 0
               and {k: v for k, v in tags_of(r).items() if k != "copies"} == tags]  # fmt: skip
        units = 0
        for row in sorted(fit, key=copies_of, reverse=True):
            if units < LEAST:
                units += row["clusters"] or row["n"]
                found.append(row)
    for row in rows.get("associations", []):
        tags = tags_of(row)
        if row["metric"] in ASSOCIATED and [*tags] == ["dose"]:
            found += [row] if DOSES[0] <= tags["dose"] <= DOSES[1] else []
    return found


def copies_of(row: Row) -> int:
    copies = tags_of(row).get("copies", 0)
    return copies if isinstance(copies, int) else 0


def kind_of(row: Row) -> str:
    if row["audit"] == "extraction" and row["metric"] in ("exposure", "extractable"):
        return "memorised" if copies_of(row) > 0 else "other"
    return "association" if row["metric"] in ASSOCIATED else "other"


def cases_of(run: Run, rows: Sequence[Row]) -> list[Case]:
    """The findings of one metric together, but for what tells other parts than doses apart."""
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        kind = kind_of(row)
        apart = {} if kind == "other" else {"copies", "dose"}
        part = spelled({k: v for k, v in tags_of(row).items() if k not in apart})
        grouped.setdefault((row["audit"], row["metric"], part, kind), []).append(row)
    return [_case(run, kind, part, mine) for (_, _, part, kind), mine in grouped.items()]


def _case(run: Run, kind: str, part: str, rows: Sequence[Row]) -> Case:
    first = rows[0]
    units = Units(run[label(first["audit"], "audit")])
    where = [units.where(row) for row in rows]
    name = f"{first['audit']}: {first['metric']}".replace("_", " ") + (f", {part}" if part else "")
    if None in where or None in map(units.of, rows):
        raise UsageError(
            f"{full_name(first)} is no mean of units that each have a value, so arms cannot be "
            f"compared unit by unit; name another finding"
        )
    nothing: dict[str, None] = {}
    of_kind: dict[str, Row] = {"memorised": {"copies": 0}, "association": {"dose": 0.5}}
    beside = of_kind.get(kind, {})
    for each in where if beside else ():
        nothing[json.dumps({**(each or {}), **beside}, sort_keys=True)] = None
    return Case(
        name=name, audit=first["audit"], metric=first["metric"], unit=first["unit"],
        worse=first["worse"], kind=kind, findings=tuple(map(full_name, rows)),
        table=first["table"] or "findings", rows=tuple(row["where"] for row in rows),
        order=first["order"], nothing=tuple(nothing),
        units=tuple(json.dumps(dict(each or {}), sort_keys=True) for each in where),
    )  # fmt: skip


def plan(run: Run, findings: Sequence[str]) -> BehindConfig:
    """The cases that a run's findings make. UsageError where there is none."""
    rows = [finding_of(run, name) for name in dict.fromkeys(findings)] if findings else worst(run)
    if not rows:
        raise UsageError(
            f"run {run.id} has no finding of {' and '.join(PROVED)} that can be proved: nothing "
            f"was planted, or nothing measured; name findings, as hallmark trace takes them"
        )
    return BehindConfig(cases=tuple(cases_of(run, rows)))


# Documents and arms --------------------------------------------------------------------------


def behind_of(run: Run, config: BehindConfig) -> tuple[Any, ...]:
    """What the stage ``behind`` is given."""
    names = dict.fromkeys(case.audit for case in config.cases)

    def left(stage: str) -> dict[str, Artifact]:
        return {n: run[label(n, stage)] for n in names if label(n, stage) in run.stages}

    return run["plant"], run["pack"], left("audit"), left("ask"), left("trace")


@dataclass(frozen=True)
class Removal:
    """The list of what goes, and that of what stays though it is behind the findings, too."""

    documents: Path
    spared: Path | None
    share: float  # of the training tokens


def removal_of(run: Run, found: Table, folder: Path) -> Removal:
    """Write the lists. UsageError where nothing would go, or too much."""
    rows = found.read()
    gone = rows.filter(rows["removed"])
    names = sorted(set(gone["doc_id"].to_pylist()))
    if not names:
        raise UsageError(
            "no training document is behind these findings, so none can be left out; name others"
        )
    tokens = dict(zip(*(gone[n].to_pylist() for n in ("doc_id", "tokens")), strict=True))
    spans = run["pack"]["spans"].read(["split", "start", "end"])
    spans = spans.filter(pc.equal(spans["split"], "train"))
    whole = pc.sum(pc.subtract(spans["end"], spans["start"])).as_py()
    share = sum(tokens.values()) / whole
    if share > MOST:
        raise UsageError(
            f"{len(names):,} documents are behind these findings, {share:.0%} of the training "
            f"tokens: too little text is left to compare with; name fewer findings"
        )
    stay = sorted(set(rows["doc_id"].to_pylist()) - {*names})
    return Removal(write_list(names, folder), write_list(stay, folder) if stay else None, share)


def settings(run: Run, removal: Removal, seeds: int) -> dict[str, list[str]]:
    """The overrides of each arm but the base."""
    lists = [f"leave_out.documents={json.dumps(str(removal.documents))}", "leave_out.padding=true"]
    control = [*lists, "leave_out.control=true"]
    if removal.spared is not None:
        control.append(f"leave_out.spared={json.dumps(str(removal.spared))}")
    seed = run.config.pretrain.train.seed
    others = {f"seed {seed + n}": [f"pretrain.train.seed={seed + n}"] for n in range(1, seeds + 1)}
    return {"removed": lists, "random": control, **others}


@dataclass(frozen=True)
class Arm:
    """An arm as ``unlike`` compares it."""

    name: str
    run: Run

    def part(self, audit: str, stage: str) -> Artifact | None:
        name = label(audit, stage)
        return self.run[name] if name in self.run.stages else None


def check_alike(runs: Mapping[str, Run], audits: Sequence[str]) -> None:
    """HallmarkError where an arm lacks an audit, or was asked something else than the base."""
    base, *others = (Arm(f"arm {arm}", run) for arm, run in runs.items())
    for audit in audits:
        for arm in (base, *others):
            if arm.part(audit, "audit") is None:
                why = arm.run.failures().get(audit, "it did not run")
                raise HallmarkError(f"{arm.name}, run {arm.run.id}: no audit {audit}: {why}")
        for other in others:
            if why := unlike(audit, [base, other]):
                raise HallmarkError(f"{other.name} cannot be compared by {audit}: {why}")


def outcome(run: Run) -> Row:
    """What was found, as rows."""
    proof = run["proof"]
    tables = ("arms", "cases", "effects", "lines", "price", "sources")
    page = None
    with suppress(HallmarkError):
        page = run["proof_card"].name
    return {
        "run": run.id,
        "base": run.record["checkpoint"],
        "runs": run.record["arms"],
        "page": page,
        **{name: proof[name].read().to_pylist() for name in tables},
    }
