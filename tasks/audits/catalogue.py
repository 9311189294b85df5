"""The probes that ``about.AUDITS`` names, and the stages that are made of each."""

from __future__ import annotations

from importlib import import_module

from tasks.audits.about import AUDITS, LEFT_OUT
from tasks.audits.judging.units import CAPABILITY
from tasks.audits.probe import Probe, ask_of, judge_of

PROBES: tuple[Probe, ...] = tuple(
    import_module(f"tasks.audits.probes.{name}").PROBE for name in AUDITS if name != CAPABILITY
)

ASK = {probe.name: ask_of(probe) for probe in PROBES}
JUDGE = {probe.name: judge_of(probe) for probe in PROBES}

#: Metrics of each audit whose findings never have a confidence interval: no rule can pass there.
WITHOUT_INTERVAL = {probe.name: probe.without_interval for probe in PROBES} | {CAPABILITY: ()}

#: The metrics of each audit.
METRICS = {probe.name: (*probe.metrics, *LEFT_OUT.get(probe.name, ())) for probe in PROBES} | {
    CAPABILITY: (
        "bits_per_byte", "bits_per_byte_difference", "agreement_accuracy", "garden_path_share",
        "cloze_accuracy",
    )
}  # fmt: skip
