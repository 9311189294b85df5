"""Refuse rules of a policy that no finding can hold, before a model is asked.

Such a rule is about a metric or a slice that does not exist, or about a metric that never has a
confidence interval.

What the settings tell is checked before anything runs; what the files and the items tell, as the
categories of a set of questions, once the requests of the audits are built. What only the texts
that a model writes tell is checked by the stage ``policy``, after the audits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.mistakes import closest
from tasks.audits.catalogue import METRICS, PROBES, WITHOUT_INTERVAL
from tasks.audits.judging.policy import Gate, is_exact
from tasks.audits.judging.tags import tags_of
from tasks.audits.judging.units import CAPABILITY
from tasks.audits.methods.agreement import AGREEMENT
from tasks.audits.methods.labelled import SHARES
from tasks.audits.probe import Probe
from tasks.audits.slices import Slices, capability_slices, slices_of
from tasks.contract import Artifact, UsageError

#: Slices that an error names at most.
MOST_NAMED = 20


def check_policy(config: Any) -> None:
    """Refuse a rule about a metric or a slice that the audits of a config cannot have.

    A rule about a metric that never has an interval is refused, too: without one no rule passes.

    Raises:
        UsageError: There is such a rule; the sentence names what exists, or has an interval.
    """
    probes = {probe.name: probe for probe in PROBES}
    for name, gate in config.policy.rules.items():
        known = METRICS[gate.audit]
        if gate.metric not in known:
            raise UsageError(
                f"policy.rules.{name}.metric: the audit {gate.audit} measures no {gate.metric!r}"
                f"{closest(gate.metric, known)}; it measures {', '.join(known)}"
            )
        if gate.metric in WITHOUT_INTERVAL[gate.audit]:
            raise UsageError(
                f"policy.rules.{name}.metric: {gate.metric} never has a confidence interval, so no "
                f"rule about it can pass; choose a metric of the audit {gate.audit} with an "
                f"interval: {', '.join(_metrics_with_interval(gate.audit))}"
            )
        if needed := _missing_setting(gate, config):
            raise UsageError(
                f"policy.rules.{name}.metric: the audit {gate.audit} measures {gate.metric} only "
                f"with {needed}; set that or remove the rule"
            )
        if gate.slice is None:
            continue
        if gate.audit == CAPABILITY:
            _check(name, gate, capability_slices(gate.metric))
            continue
        probe = probes[gate.audit]
        settings = getattr(config, f"audit_{probe.name}")
        _check(name, gate, slices_of(probe, gate.metric, settings))


def check_slices(config: Any, probes: Sequence[Probe], asked: Mapping[str, Artifact]) -> None:
    """Refuse a rule about a slice that no item of its audit is in.

    Args:
        config: The config with the policy.
        probes: The audits that run.
        asked: What each of them asks, by its name.

    Raises:
        UsageError: There is such a rule; the sentence names the slices that exist.
    """
    for name, gate in config.policy.rules.items():
        for probe in (probe for probe in probes if probe.name == gate.audit):
            artifact = asked.get(probe.name)
            # Of a run that is only planned there may be no requests yet. An audit that asks nothing
            # says why, and its rules are not shown to hold.
            if gate.slice is None or not isinstance(artifact, Artifact):
                continue
            if not artifact["requests"].rows:
                continue
            items = artifact["items"].read()
            skipped = [
                row | {"tags": tags_of(row)}
                for row in artifact["skipped"].read().to_pylist()
                if row["count"] is None
            ]
            settings = getattr(config, f"audit_{probe.name}")
            _check(name, gate, slices_of(probe, gate.metric, settings, items, skipped))


def _check(name: str, gate: Gate, slices: Slices) -> None:
    assert gate.slice is not None
    if slices.may_have(gate.slice):
        return
    problem = f"policy.rules.{name}.slice: {gate.metric} has no slice {gate.slice!r}"
    if reordered := slices.reordered(gate.slice):
        raise UsageError(f"{problem}; write {reordered!r}")
    named = [repr(each) for each in slices.names if each != "seen=False"]
    listed = ", ".join(named[:MOST_NAMED]) + (", ..." if len(named) > MOST_NAMED else "")
    tags = sorted(slices.open_tags)
    sliced = f"slices by {', '.join(tags)}" if tags else ""
    has = " and ".join(filter(None, (listed, sliced))) or "none"
    raise UsageError(f"{problem}{closest(gate.slice, slices.names)}; it has {has}")


def _metrics_with_interval(audit: str) -> list[str]:
    without = WITHOUT_INTERVAL[audit]
    return [each for each in METRICS[audit] if each not in without and not is_exact(audit, each)]


def _missing_setting(gate: Gate, config: Any) -> str:
    """Name the setting without which an audit does not measure a metric; empty: it is there."""
    if gate.metric in {measure.metric for measure in AGREEMENT}:
        scoring = [one for one in config.score.scorers if "toxicity" in one.heads]
        if len(scoring) < 2:
            return "a further scorer of toxicity in [[score.also]]"
    corrected = gate.audit == "toxicity" and gate.metric in {each.metric for each in SHARES}
    if corrected and config.audit_toxicity.labelled is None:
        return "labelled texts, audit_toxicity.labelled"
    return ""
