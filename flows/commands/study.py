"""Measure the audits themselves: their error rates on worlds with sealed answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flows.commands.shared import InStore, Json, Set, Whole, ready, run_of, show

if TYPE_CHECKING:
    from flows.runs import Run
    from flows.studying import Outcome

Report = dict[str, Any]


def study(
    *,
    name: str = "study",
    worlds: Whole | None = None,
    without: Whole | None = None,
    at_once: Whole | None = None,
    set_: Set = None,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Measure how often the audits are wrong, on invented worlds whose answers are sealed until the
    audits are done.

    Parameters
    ----------
    name
        Of the study. One of this name that is not done goes on; its settings stay as they are.
    worlds
        With effects, by default 40.
    without
        Further worlds without any, by default 10.
    at_once
        Worlds that are worked on at a time, a thread each, by default 2.
    """
    from flows.study_config import asked, check

    given = {"name": name, "worlds": worlds, "without": without, "at_once": at_once}
    settings, place = asked(given, set_ or [], store)
    began = time.monotonic()
    told: list[str] = []

    def say(world: str, done: Outcome) -> None:
        from flows.console import stderr

        told.append(world)
        of, spent = settings.worlds + settings.without, time.monotonic() - began
        what = f"void: {done.why}" if done.run is None else f"run {done.run}"
        stderr.print(f"{world} of {of}, after {spent:,.0f} s: {what}", markup=False)

    with ready(lambda: check(settings, place)):
        from flows import studying
        from flows.recording import frontend

        frontend.say = say
        begun(settings)
        run = run_of(lambda: studying.study(settings.model_dump(mode="json"), place.uri))
    show(report(run), json_, render)


def begun(settings: Any) -> None:
    """Say what is to come: a world takes minutes."""
    from flows.console import stderr

    worlds = settings.worlds + settings.without
    stderr.print(f"{worlds} worlds, {settings.at_once} at a time; each is told when it is done")


def report(run: Run) -> Report:
    """What a study found, from its tables."""
    rates = run["error_rates"]
    names = ("worlds", "detection", "alarms", "calibration", "smallest", "precision", "removed")
    return {"run": run.id, **{name: rates[name].read().to_pylist() for name in names}}


def render(found: Report) -> str:
    counted = sum(row["counts"] for row in found["worlds"])
    lines = [f"{counted} of {len(found['worlds'])} worlds count"]
    lines += [f"    {row['world']}: {row['why']}" for row in found["worlds"] if not row["counts"]]
    for title, name in (
        ("effects found, by dose", "detection"),
        ("claimed where there is none (nominal 5 %)", "alarms"),
        ("intervals that cover the true figure (nominal 95 %)", "calibration"),
        ("documents named by attribution that were written for a text", "precision"),
    ):
        lines += ["", title]
        for row in found[name]:
            dose = f" {row['dose']:g}" if "dose" in row else ""
            lines.append(f"    {row['kind'] + dose:<18} {rate(row)}, n {row['n']:,}")
    if found["removed"]:
        lines += ["", "by how much figures fall without the documents that attribution names"]
    for row in found["removed"]:
        lines.append(f"    {row['kind'] + ' ' + row['arm']:<21} {rate(row)}, n {row['n']:,}")
    lines += ["", "smallest dose found, as all above it, in at least 80 % of cases"]
    for row in found["smallest"]:
        lines.append(f"    {row['kind']:<18} {'none' if row['dose'] is None else row['dose']:}")
    return "\n".join(lines)


def rate(row: Report) -> str:
    if row["value"] is None:
        return "not measured"
    ends = "" if row["low"] is None else f" ({row['low']:.1%} to {row['high']:.1%})"
    return f"{row['value']:.1%}{ends}"
