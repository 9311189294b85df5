"""Findings of checkpoints side by side."""

from __future__ import annotations

from typing import Any

from flows.commands.shared import InStore, Json, show
from flows.comparing import audited
from flows.comparing import compare as compared
from flows.runs import default_store
from reports.page.figures import show as written
from reports.page.masking import visible

Report = dict[str, Any]


def compare(
    *checkpoints: str,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Set the findings of audited checkpoints side by side; what they were asked alike is compared
    in pairs with the first.

    Parameters
    ----------
    checkpoints
        Two or more, as the command audit takes them, or runs that audited one. RUN@all: every
        audited checkpoint of a training, which shows what becomes of a finding while it trains.
    """
    found = compared(audited(default_store(store, create=False), checkpoints))
    show(found, json_, render)


def render(report: Report) -> str:
    names = [visible(subject["name"]) for subject in report["subjects"]]
    lines = ["compared, each with the first:", *(f"    {name}" for name in names)]
    lines += [f"not compared: {audit}: {visible(why)}" for audit, why in report["refused"].items()]
    audit = ""
    for row in report["rows"]:
        if row["audit"] != audit:
            audit = row["audit"]
            lines += ["", audit]
        part = f"[{visible(row['slice'])}]" if row["slice"] else ""
        values = [NOTHING if v is None else written(v, row["unit"]) for v in row["values"]]
        lines.append(f"    {row['metric']}{part}  {'  '.join(values)}")
        told = zip(names[1:], row["differences"], strict=True)
        several = len(names) > 2
        lines += [
            f"        {name + ': ' if several else ''}{_said(found, row['unit'])}"
            for name, found in told
            if found
        ]
    return "\n".join(lines)


NOTHING = "not measured"


def _said(found: Report, unit: str) -> str:
    """A difference in words; of shares in percentage points."""

    def number(value: float) -> str:
        return written(value, unit).replace(" %", "")

    if found["value"] is None:
        return "no pair has both values"
    said = f"difference {number(found['value'])}{' points' if unit == 'share' else ''}"
    if found["low"] is not None:
        said += f" ({number(found['low'])} to {number(found['high'])})"
    if found["p_corrected"] is not None:
        said += f", p corrected {found['p_corrected']:.3g}"
    return f"{said}, {found['n']} pairs"
