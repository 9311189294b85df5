"""Findings of checkpoints side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.commands.shared import InStore, Json, show
from flows.comparing import audited, trajectory
from flows.comparing import compare as compared
from flows.runs import default_store
from reports.page.figures import show as written
from reports.page.masking import visible
from reports.sections.course import said

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
    place = default_store(store, create=False)
    found = compared(audited(place, checkpoints))
    pages = [page for name in checkpoints if (page := trajectory(place, name))]
    show(found, json_, lambda report: "\n".join([render(report), *_charts(pages)]))


def _charts(pages: Sequence[Path]) -> list[str]:
    return ["", *(f"charts: {page}" for page in pages)] if pages else []


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
            f"        {name + ': ' if several else ''}{difference(found, row['unit'])}"
            for name, found in told
            if found
        ]
    return "\n".join(lines)


NOTHING = "not measured"


def difference(found: Report, unit: str) -> str:
    """A difference in words; of shares in percentage points."""
    words = said(found, unit)
    return words if found["value"] is None else f"difference {words}"
