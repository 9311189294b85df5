"""Make the stages of all probes, and list the metrics of all audits."""

from __future__ import annotations

from hallmark.tasks.audits.audit_descriptions import CAPABILITY
from hallmark.tasks.audits.probe import make_findings_stage, make_request_stage
from hallmark.tasks.audits.registry import PROBES

REQUEST_STAGES = {probe.name: make_request_stage(probe) for probe in PROBES}
FINDINGS_STAGES = {probe.name: make_findings_stage(probe) for probe in PROBES}

#: Metrics by audit whose findings never have a confidence interval, so no policy rule can pass.
METRICS_WITHOUT_INTERVAL = {probe.name: probe.derived.without_interval for probe in PROBES} | {
    CAPABILITY: ()
}

#: All metrics by audit.
METRICS_BY_AUDIT = {
    probe.name: (*probe.metrics, *probe.description.skipped_count_metrics) for probe in PROBES
} | {
    CAPABILITY: (
        "bits_per_byte",
        "bits_per_byte_difference",
        "agreement_accuracy",
        "garden_path_share",
        "cloze_accuracy",
    )
}
