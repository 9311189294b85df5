"""List the probes that AUDIT_DESCRIPTIONS names, and make their stages and lists of metrics."""

from __future__ import annotations

from importlib import import_module

from hallmark.tasks.audits.audit_descriptions import AUDIT_DESCRIPTIONS, SKIPPED_COUNT_METRICS
from hallmark.tasks.audits.judging.comparison_units import CAPABILITY
from hallmark.tasks.audits.probe import Probe, make_findings_stage, make_request_stage

PROBES: tuple[Probe, ...] = tuple(
    import_module(f"hallmark.tasks.audits.probes.{name}").PROBE
    for name in AUDIT_DESCRIPTIONS
    if name != CAPABILITY
)

REQUEST_STAGES = {probe.name: make_request_stage(probe) for probe in PROBES}
FINDINGS_STAGES = {probe.name: make_findings_stage(probe) for probe in PROBES}

#: Metrics by audit whose findings never have a confidence interval, so no policy rule can pass.
METRICS_WITHOUT_INTERVAL = {probe.name: probe.derived.without_interval for probe in PROBES} | {
    CAPABILITY: ()
}

#: All metrics by audit.
METRICS_BY_AUDIT = {
    probe.name: (*probe.metrics, *SKIPPED_COUNT_METRICS.get(probe.name, ())) for probe in PROBES
} | {
    CAPABILITY: (
        "bits_per_byte",
        "bits_per_byte_difference",
        "agreement_accuracy",
        "garden_path_share",
        "cloze_accuracy",
    )
}
