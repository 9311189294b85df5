"""Prove findings: their documents removed, trained anew, and what became of the findings."""

from __future__ import annotations

from contextlib import chdir
from typing import Any

from flows.commands.shared import InStore, Json, Whole, ready, run_of, show
from flows.mitigating import left_out
from flows.proving import (
    audits_of,
    base_of,
    behind_of,
    check_alike,
    check_findings,
    outcome,
    plan,
    removal_of,
    settings,
)
from flows.runs import Run, default_store
from reports.page.figures import show as written
from reports.page.masking import visible
from reports.sections.closed_loop import in_points
from tasks.audits.proofs.arms import BASE
from tasks.contract import UsageError

Report = dict[str, Any]


def prove(
    run: str,
    *findings: str,
    seeds: Whole = 3,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Train anew without the documents behind findings, beside a control that lacks as many others
    and the whole corpus from other seeds; audit all alike and show what became of the findings.

    Parameters
    ----------
    run
        A run that trained and audited a model, or "latest": the newest that did.
    findings
        As the command trace takes them. By default those on planted secrets and passages with the
        most copies, at least 16 of each, and on associations planted at 60 to 90 %.
    seeds
        Other seeds that the whole corpus is trained with: an effect counts only where it is larger
        than these trainings differ by themselves.
    """
    place = default_store(store, create=False)
    base = base_of(place, run)
    audits = audits_of(findings)
    check_findings(base, findings)
    if seeds < 0:
        raise UsageError(f"--seeds is {seeds}: give the number of other seeds, 0 for none")
    uri = place.uri if place.root is None else str(place.root.resolve())
    config = base.record["config"] | {"store": uri}
    shared: dict[str, Any] = {"config": config, "start": base.record["checkpoint"], "store": uri}
    folder = left_out(place).resolve()
    from flows.recording import settle

    with ready(lambda: settle(**shared, overrides=())), chdir(base.read_from):
        from flows import pipeline

        def trained(overrides: list[str]) -> Run:
            """Whatever of it is there comes from the store."""
            return run_of(
                lambda: pipeline.pipeline(
                    overrides=overrides, until=f"audit_{audits[-1]}", only=audits, **shared
                )
            )

        runs = {BASE: trained([])}
        check_alike(runs, audits)
        cases = plan(runs[BASE], findings)
        removal = removal_of(runs[BASE], traced(runs[BASE], cases), folder)
        for arm, overrides in settings(base, removal, seeds).items():
            runs[arm] = trained(overrides)
        check_alike(runs, audits)
        names = {arm: each.id for arm, each in runs.items()}
        given = cases.model_dump(mode="json")
        done = run_of(lambda: pipeline.prove(config, names, given, store=uri))
    report = outcome(done)
    if done.site:
        report["page"] = str(done.site.parent / "runs" / done.id / "proof_card" / "proof_card.html")
    show(report, json_, render)


def traced(base: Run, cases: Any) -> Any:
    """The documents behind the cases, a table; made here, for the arms are made from it."""
    from flows.recording import frontend
    from tasks.audits.proofs.behind import behind
    from tasks.contract import Session, make_mapper, open_session

    mapper = make_mapper(base.config.mapper, base.config.workers)
    with open_session(Session(base.store, mapper, frontend.watcher)):
        return behind(*behind_of(base, cases), cases)["behind"]


#: What the rows of effects are called.
SAID = {
    "value": "{arm}",
    "nothing": "{arm}, where there is nothing to find",
    "region": "99 % null region",
    "before": "effect before",
    "left": "left after removal",
    "change": "{arm} less base",
    "against": "random less removed",
    "explained": "share explained",
}


def render(report: Report) -> str:
    lines = [f"{report['base']}: what became of its findings"]
    for arm in report["arms"]:
        lines.append(f"    {arm['arm']}: run {report['runs'][arm['arm']]}, without "
                     f"{arm['documents']:,} documents, {arm['bytes']:,} bytes")  # fmt: skip
    for case in dict.fromkeys(row["case"] for row in report["cases"]):
        mine = [row for row in report["cases"] if row["case"] == case]
        told = f"{mine[0]['documents']:,} documents behind it, {mine[0]['removed']:,} removed"
        why = f"; {mine[0]['why']}" if mine[0]["why"] else ""
        lines += ["", f"{visible(case)}: {told}{why}"]
        for row in (in_points(row) for row in report["effects"] if row["case"] == case):
            value, low, high = (
                "–" if row[n] is None else written(row[n], row["unit"])
                for n in ("value", "low", "high")
            )
            name = SAID[row["what"]].format(arm=row["arm"])
            noise = f"  {row['verdict']}" * bool(row["verdict"])
            lines.append(f"    {name:<44} {value:>9}  ({low} to {high}), n = {row['n']}{noise}")
        for row in (in_points(row) for row in report["lines"] if row["case"] == case):
            value, bound = (
                "–" if row[n] is None else written(row[n], row["unit"]) for n in ("value", "bound")
            )
            verdict = row["verdict"] or "not known"
            lines.append(f"    {verdict:<9} {row['line']}: {value}, {row['must']} {bound}")
    lines += ["", "bits per byte of held-out text"]
    for kind, name in dict.fromkeys((row["kind"], row["name"]) for row in report["price"]):
        known = {r["arm"]: r for r in report["price"] if (r["kind"], r["name"]) == (kind, name)}
        told = ", ".join(f"{arm} {r['bits_per_byte']:.4f}" for arm, r in known.items()
                         if r["bits_per_byte"] is not None)  # fmt: skip
        size = max(r["bytes"] for r in known.values())
        lines.append(f"    {visible(f'{kind} {name}')}, {size:,} bytes: "
                     f"{told or 'nothing was predicted'}")  # fmt: skip
    return "\n".join([*lines, "", f"page: {report['page']}"])
