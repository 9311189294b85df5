"""The policy: what a checkpoint's findings must be. A rule is a gate that it passes or not.

A rule looks at the end of the interval that speaks against the checkpoint: of what must stay below
a bound the upper, of what must reach one the lower. A finding without an interval passes no rule:
nobody knows how far off its value is, so the rule is not shown to hold. Nor does what could not be
measured, or was not asked for. Counts of items are exact and are judged by their value: how many
were left out (``about.LEFT_OUT``), and how many stand in the training text. They describe what was
asked and do not estimate anything; counts and maxima over texts that a model wrote do, for more
texts may hold more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from tasks.audits.about import AUDITS, LEFT_OUT, SEEN_ITEMS
from tasks.contract import Artifact, PlainName, StageConfig, UsageError, Work, column, stage, table

#: The ends of an interval.
ENDS = ("low", "high")

#: Bounds and how they are written.
SIGNS = {"lt": "<", "le": "≤", "gt": ">", "ge": "≥"}

VERDICTS = table(
    "What each rule of the policy says of each finding that it is about.",
    column("rule", pa.string(), "label", "the rule"),
    column("audit", pa.string(), "label", "the audit"),
    column("metric", pa.string(), "label", "what was measured"),
    column("slice", pa.string(), "label", "which part; empty for the whole"),
    column("bound", pa.string(), "label", "what the end of the interval must be"),
    column("value", pa.float64(), "figure", "the finding's value"),
    column(
        "end",
        pa.float64(),
        "figure",
        "the end of its interval that was looked at, or the value of a count; null: there is none",
    ),
    column(
        "distance",
        pa.float64(),
        "figure",
        "from the bound; above 0: beyond it; null: the rule is not shown",
    ),
    column("verdict", pa.string(), "label", "pass or fail"),
    column("why", pa.string(), "project text", "in words"),
)


class Gate(StageConfig):
    """What the findings of a metric must be. Without rules nothing is judged."""

    audit: str = Field(description="the audit, as hallmark audit --only names it")
    metric: str = Field(description="the metric of its findings")
    slice: str | None = Field(
        None,
        description="the slice of the findings; empty: the whole; left out: every one of "
        "them, but for what the checkpoint is set beside, as baselines",
    )
    lt: float | None = Field(None, allow_inf_nan=False, description="it must be below this")
    le: float | None = Field(None, allow_inf_nan=False, description="it must be at most this")
    gt: float | None = Field(None, allow_inf_nan=False, description="it must be above this")
    ge: float | None = Field(None, allow_inf_nan=False, description="it must be at least this")

    @field_validator("audit")
    @classmethod
    def _known(cls, audit: str) -> str:
        if audit not in AUDITS:
            raise ValueError(f"must be one of {', '.join(AUDITS)}")
        return audit

    @model_validator(mode="after")
    def _one_bound(self) -> Gate:
        given = [name for name in SIGNS if getattr(self, name) is not None]
        if len(given) != 1:
            has = f"; it has {' and '.join(given)}" if given else ""
            raise ValueError(f"needs one bound of {', '.join(SIGNS)}{has}")
        return self

    @property
    def bound(self) -> tuple[str, float]:
        return next((n, v) for n in SIGNS if (v := getattr(self, n)) is not None)


class PolicyConfig(StageConfig):
    """The rules that a checkpoint's findings must hold."""

    rules: dict[PlainName, Gate] = Field({}, description="[policy.rules.NAME], one a rule")


def judge(name: str, gate: Gate, finding: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row of VERDICTS: about a finding, or that there is none."""
    sign, limit = gate.bound
    said = {"rule": name, "audit": gate.audit, "metric": gate.metric,
            "slice": finding["slice"] if finding else gate.slice or "",
            "bound": f"{SIGNS[sign]} {limit:g}"}  # fmt: skip
    value = None if finding is None else finding["value"]
    if finding is None or _is_missing(value):
        why = "the audit did not run" if finding is None else finding["method"]
        return said | {"value": None, "end": None, "distance": None, "verdict": "fail",
                       "why": f"not measured: {why.removeprefix('not measured: ')}"}  # fmt: skip
    upper = sign in ("lt", "le")
    end = finding["high" if upper else "low"]
    which = f"the {'upper' if upper else 'lower'} end of its interval"
    if any(_is_missing(finding[name]) for name in ENDS):
        if not is_exact(gate.audit, gate.metric):
            return said | {"value": value, "end": None, "distance": None, "verdict": "fail",
                           "why": _explain_missing_interval(gate, finding)}  # fmt: skip
        end, which = value, "its value, an exact count,"
    distance = end - limit if upper else limit - end
    passed = distance < 0 or (distance == 0 and sign in ("le", "ge"))
    why = f"{which} is {end:.4g} and must be {said['bound']}"
    return said | {"value": value, "end": end, "distance": distance,
                   "verdict": "pass" if passed else "fail", "why": why}  # fmt: skip


def _is_missing(number: float | None) -> bool:
    return number is None or math.isnan(number)


def is_exact(audit: str, metric: str) -> bool:
    """Whether a metric counts items, so that its value is exact and has no interval."""
    return metric in (*LEFT_OUT.get(audit, ()), SEEN_ITEMS)


def _explain_missing_interval(gate: Gate, finding: Mapping[str, Any]) -> str:
    """Say in one sentence why a finding without an interval passes no rule."""
    reasons = re.findall(r"no interval: ([^;]+)", finding.get("method") or "")
    reason = reasons[-1].strip() if reasons else f"the audit gives none for {gate.metric}"
    return f"no interval: {reason}, so the rule is not shown to hold"


@stage(tables={"verdicts": VERDICTS}, reads={"audits": ("findings",)})
def policy(audits: dict[str, Artifact], config: PolicyConfig, work: Work) -> None:
    """``audits`` by name ("bias")."""
    rows = []
    for name, gate in config.rules.items():
        if gate.audit not in audits:
            rows.append(judge(name, gate, None))
            continue
        found = [row for row in audits[gate.audit]["findings"].read().to_pylist()
                 if not row["control"]]  # fmt: skip
        of_metric = [row for row in found if row["metric"] == gate.metric]
        # What a checkpoint is set beside, as a baseline, is worse in no way.
        own = [row for row in of_metric if row["worse"]] or of_metric
        meant = own if gate.slice is None else [r for r in of_metric if r["slice"] == gate.slice]
        if not meant:
            where, why = unknown(gate, found)
            counts = LEFT_OUT.get(gate.audit, ())
            measured = [row for row in found if row["value"] is not None]
            asked = any(row["metric"] not in counts for row in measured)
            if asked and not of_metric and gate.metric in counts and not gate.slice:
                rows.append(judge(name, gate, {"slice": "", "value": 0.0} | dict.fromkeys(ENDS)))
                continue
            # An audit that could not measure all it does has no rows of what hangs on that.
            if all(row["value"] is not None for row in found):
                raise UsageError(f"policy.rules.{name}.{where}: {why}")
            meant = [{"slice": gate.slice or "", "value": None, "method": why}]
        rows += [judge(name, gate, row) for row in meant]
    work.table("verdicts").write(pa.Table.from_pylist(rows, schema=VERDICTS))


def unknown(gate: Gate, found: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The setting by which a rule is about none of the findings, and why."""
    metrics = list(dict.fromkeys(row["metric"] for row in found))
    if gate.metric not in metrics and gate.slice and gate.metric in LEFT_OUT.get(gate.audit, ()):
        return "slice", f"{gate.metric} has no slice {gate.slice!r}; it has ''"
    if gate.metric not in metrics:
        return "metric", f"the audit {gate.audit} measures no {gate.metric!r}; it measures " \
                         f"{', '.join(metrics)}"  # fmt: skip
    slices = [repr(row["slice"]) for row in found if row["metric"] == gate.metric]
    return "slice", f"{gate.metric} has no slice {gate.slice!r}; it has {', '.join(slices[:20])}"
