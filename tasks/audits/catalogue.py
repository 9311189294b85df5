"""The probes that ``about.AUDITS`` names, and the stages that are made of each."""

from __future__ import annotations

from importlib import import_module

from tasks.audits.about import AUDITS
from tasks.audits.probe import Probe, ask_of, judge_of

PROBES: tuple[Probe, ...] = tuple(
    import_module(f"tasks.audits.probes.{name}").PROBE for name in AUDITS if name != "capability"
)

ASK = {probe.name: ask_of(probe) for probe in PROBES}
JUDGE = {probe.name: judge_of(probe) for probe in PROBES}
