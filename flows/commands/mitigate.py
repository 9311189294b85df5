"""Train a model without the documents behind a harm, beside a control."""

from __future__ import annotations

from contextlib import chdir
from typing import Annotated, Any

from cyclopts import Parameter

from flows.commands.compare import render as render_comparison
from flows.commands.shared import InStore, Json, Set, Whole, ready, run_of, show
from flows.comparing import by
from flows.mitigating import ARMS, behind, known, left_out, outcome, settings, write_list
from flows.runs import default_store
from reports.page.masking import visible
from tasks.contract import UsageError

Report = dict[str, Any]


def mitigate(
    checkpoint: str,
    *findings: str,
    toxicity: float | None = None,
    rows: Whole = 100,
    steps: Whole | None = None,
    anew: Annotated[bool, Parameter(negative="")] = False,
    set_: Set = None,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Train without the documents behind findings, or without toxic ones, beside a control that
    lacks as many others; audit both alike and compare them.

    Parameters
    ----------
    checkpoint
        A checkpoint of a run of this store, as the command audit takes it. Relative paths, those
        of --set too, start where that run was started.
    findings
        As the command trace takes them: the documents behind their worst rows are left out, with
        their near copies.
    toxicity
        Leave out documents that the corpus's scorer gave at least this score, too.
    rows
        How many of the worst rows of each finding.
    steps
        Of the training of each arm; by default those of the checkpoint's run.
    anew
        Train from the beginning, not on from the checkpoint.
    """
    place = default_store(store, create=False)
    subject = known(place, checkpoint)
    if not findings and toxicity is None:
        raise UsageError("nothing says what to leave out: name findings, or give --toxicity")
    if rows < 1:
        raise UsageError(f"--rows is {rows}: of a finding at least its worst row is needed")
    assert subject.run is not None
    listed = (write_list(behind(place, checkpoint, findings, rows), left_out(place))
              if findings else None)  # fmt: skip
    # Before the arms: "latest" is one of them, then.
    start = None if anew else by(place, checkpoint)
    uri = place.uri if place.root is None else str(place.root.resolve())
    shared: dict[str, Any] = {
        "config": subject.run.record["config"] | {"store": uri},
        "start": None if anew else subject.name,
        "store": uri,
    }
    arms = [[*(set_ or []), *settings(arm, listed, toxicity, steps)] for arm in ARMS]
    from flows.recording import settle

    with (
        chdir(subject.run.read_from),
        ready(lambda: [settle(overrides=arm, **shared) for arm in arms]),
    ):
        from flows import pipeline

        runs = [run_of(lambda arm=arm: pipeline.pipeline(overrides=arm, **shared))  # type: ignore[misc]
                for arm in arms]  # fmt: skip
    found = outcome(runs, start) | {"documents": str(listed) if listed else None}
    show(found, json_, render)


def render(report: Report) -> str:
    control, without = report["left_out"]
    lines = ["bits per byte of held-out text: control, without"]
    for row in report["price"]:
        one, other = row["values"]
        if None not in (one, other):
            name = visible(f"{row['kind']} {row['name']}".strip())
            lines.append(f"    {name}  {one:.4f}  {other:.4f}  ({other - one:+.4f}), "
                         f"{row['bytes']:,} bytes")  # fmt: skip
    lines += ["", f"left out: {without:,} documents; of the control {control:,} others"]
    if control < without:
        lines.append("the control lacks fewer: no more others were left")
    if report["documents"]:
        lines.append(f"those behind findings are listed in {report['documents']}")
    # What it was all about is read last: the comparison is long.
    return "\n".join([render_comparison(report), "", *lines])
