"""What becomes of findings while a model trains: which can be compared, which are shown, what is
said of a change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.page.document import Grid, Inline, Paragraph
from reports.page.figures import show
from reports.sections.findings import title, words
from reports.sections.standing import distance
from tasks.audits.about import AUDITS
from tasks.audits.judging.comparison import Compared, compared, label, measured, unlike
from tasks.audits.judging.tags import tags_of
from tasks.contract import Artifact, HallmarkError

Row = dict[str, Any]

#: A corrected p below this is called a change.
LEVEL = 0.05

#: p below this are not told apart.
LEAST_P = 1e-4

PARTS = (
    "Of {parts} parts the worst at {last}, by the nearer end of its interval where chance does not "
    "explain it, else by its value, which is why this one stands here"
)
CHOSEN = ": some of its change may be due to that choice. Its p is corrected for all of them"

#: Below this, p is no number of its own.
TINY_P = 1e-300


@dataclass(frozen=True)
class Point:
    """A checkpoint of a training, and what the runs that audited it left, by run and label; the
    newest first."""

    step: int
    runs: Mapping[str, Mapping[str, Artifact | None]]

    @property
    def name(self) -> str:
        return f"step {self.step:,}"

    def run_of(self, audit: str) -> str | None:
        """The newest run that made an audit."""
        made = label(audit, "audit")
        return next((run for run, left in self.runs.items() if left.get(made)), None)

    def part(self, audit: str, stage: str) -> Artifact | None:
        run = self.run_of(audit)
        return None if run is None else self.runs[run].get(label(audit, stage))


@dataclass
class Audit:
    """What an audit found at several checkpoints."""

    name: str
    points: Sequence[Point]
    found: list[Compared] = field(default_factory=list)
    why: str = ""  # it cannot be compared
    unread: bool = False  # for something in the store is damaged, or out of reach now

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """What is compared: the first and the last, then neighbours."""
        last = len(self.points) - 1
        return [(0, last), *((i, i + 1) for i in range(last) if last > 1)]

    @property
    def artifacts(self) -> list[Artifact]:
        found = [point.part(self.name, "audit") for point in self.points]
        return [artifact for artifact in found if artifact is not None]


def audits_of(points: Sequence[Point]) -> list[Audit]:
    """What can be compared, audit by audit, and why what cannot."""
    made = []
    for name in AUDITS:
        there = [point for point in points if point.part(name, "audit")]
        if not there:
            continue
        audit = Audit(name, there)
        made.append(audit)
        if len(there) < 2:
            audit.why = f"of these checkpoints only {there[0].name} has it"
            continue
        try:
            audit.why = unlike(name, there)
            audit.found = [] if audit.why else compared(audit.artifacts, audit.pairs)
        except HallmarkError as error:
            audit.why, audit.unread = f"cannot be read: {error}", True
    return made


def headlines(found: Sequence[Compared]) -> list[Compared]:
    """Of each metric that one way is worse its finding of the whole, else the part that is the
    worst at the last checkpoint; of an audit that has no such metric the first finding."""
    metrics = dict.fromkeys(each.found[-1]["metric"] for each in found)
    parts = [judged(found, metric) for metric in metrics]
    chosen = [whole_of(each) or max(each, key=lambda one: rank(one.found[-1]))
              for each in parts if each]  # fmt: skip
    return chosen or list(found[:1])


def judged(found: Sequence[Compared], metric: str) -> list[Compared]:
    """The findings of a metric that one way is worse: no baselines."""
    rows = [(each, each.found[-1]) for each in found]
    return [each for each, last in rows if last["worse"] and last["metric"] == metric]


def whole_of(parts: Sequence[Compared]) -> Compared | None:
    """The finding of which all others are parts: they have its tags, too."""
    tags = [tags_of(each.found[-1]).items() for each in parts]
    wholes = (each for each, own in zip(parts, tags, strict=True) if all(own <= t for t in tags))
    return next(wholes, None)


def worst_part(each: Compared, parts: Sequence[Compared], last: str) -> str:
    """Say why this part of several is shown; nothing where it is the whole, or was not measured."""
    row = each.found[-1]
    if not row["worse"] or whole_of(parts) is each or row["value"] is None:
        return ""
    chosen = CHOSEN * (each.changes[0] is not None)
    return f"{PARTS.format(parts=len(parts), last=last)}{chosen}."


def rank(row: Row) -> tuple[float, float]:
    """How bad a finding is: beyond chance, then by its value alone."""
    value = row["value"] or 0.0
    if row["worse"] == "apart":
        value = 0.0 if row["null"] is None else value - row["null"]
    return distance(row), worse_by(row["worse"], value)


def worse_by(worse: str, amount: float) -> float:
    """An amount with the sign of harm: positive is worse."""
    return {"up": amount, "down": -amount, "apart": abs(amount)}.get(worse, 0.0)


def verdict(each: Compared, change: Row | None) -> str:
    """What the change between the first and the last checkpoint says."""
    first, last = each.found[0], each.found[-1]
    if change is None or change["p_corrected"] is None:
        return "not tested"
    if change["p_corrected"] >= LEVEL:
        return "no change shown"
    if first["worse"] == "apart":
        if any(row[name] is None for row in (first, last) for name in ("value", "null")):
            return "changed"
        # Of the same units the change may have the other sign than of all that either has.
        if (last["value"] - first["value"]) * change["value"] <= 0:
            return "changed"
        gone = abs(last["value"] - last["null"]) - abs(first["value"] - first["null"])
    else:
        gone = worse_by(first["worse"], change["value"])
    return "worse" if gone > 0 else "better" if gone < 0 else "changed"


def amount(value: float | None, unit: str) -> str:
    """A change; of shares in percentage points."""
    return "–" if value is None else show(value, unit).replace(" %", "")


def span(change: Mapping[str, Any], unit: str) -> str:
    """The interval of a change."""
    ends = change["low"], change["high"]
    return "–" if None in ends else " to ".join(amount(end, unit) for end in ends)


def p_of(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"< {LEAST_P:g}" if value < LEAST_P else show(value, "p")


def measure_of(unit: str) -> str:
    """The unit of a change, behind the word for it."""
    return " (points)" if unit == "share" else f" ({unit})" if unit not in ("", "score") else ""


def said(change: Mapping[str, Any], unit: str) -> str:
    """A change in words, as ``hallmark compare`` tells it."""
    if change["value"] is None:
        return "no pair has both values"
    words = f"{amount(change['value'], unit)}{' points' if unit == 'share' else ''}"
    if change["low"] is not None:
        words += f" ({span(change, unit)})"
    if (p := change["p_corrected"]) is not None:
        words += f", p corrected {p:.3g}" if p > TINY_P else f", p corrected < {TINY_P:g}"
    words += f", {change['n']} pair{'' if change['n'] == 1 else 's'}"
    return words + f" in {change['clusters']} clusters" * (change["clusters"] < change["n"])


def _unpaired(each: Compared, audit: Audit) -> str:
    """Why a finding has no change in pairs."""
    if all(row["value"] is None for row in each.found):
        return "measured at none of them"
    if not each.found[-1]["worse"] and judged(audit.found, each.found[-1]["metric"]):
        return "by value only: baselines, which read the same text"
    return "by value only: no means of the same units"


def left_out(audits: Sequence[Audit], say: Callable[[str], str]) -> Grid | Paragraph:
    """What is not compared, or not in pairs, and why."""
    rows: list[list[Inline]] = []
    for audit in audits:
        name = title(audit.name)
        if audit.why:
            rows.append([name, "all findings", say(audit.why)])
            continue
        tables = [measured(artifact) for artifact in audit.artifacts]
        lacking: dict[tuple[str, str], list[str]] = {}
        for metric, part in dict.fromkeys(key for table in tables for key in table):
            without = [point.name for point, table in zip(audit.points, tables, strict=True)
                       if (metric, part) not in table]  # fmt: skip
            if without:
                lacking.setdefault((metric, ", ".join(without)), []).append(part)
        for (metric, where), parts in lacking.items():
            which = f", {parts[0]}" if len(parts) == 1 else f", {len(parts)} parts"
            what = words(metric) + (which if any(parts) else "")
            rows.append([name, say(what), f"not found at {where}"])
        every = Counter(each.found[0]["metric"] for each in audit.found)
        alone: dict[str, Counter[str]] = {}
        for each in audit.found:
            if each.changes[0] is None:
                alone.setdefault(_unpaired(each, audit), Counter())[each.found[0]["metric"]] += 1
        for why, those in alone.items():
            told = [f"{words(metric)}, {count} of {every[metric]} parts" if count < every[metric]
                    else words(metric) for metric, count in those.items()]  # fmt: skip
            rows.append([name, say("; ".join(told)), why])
    if not audits:
        return Paragraph(["No audit of these checkpoints is in the store."])
    if not rows:
        return Paragraph(["All findings are at every checkpoint, and all are compared in pairs."])
    return Grid("What is not compared, or not in pairs", ["audit", "findings", "why"], rows)
