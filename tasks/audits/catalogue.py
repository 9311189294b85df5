"""Make the stages of all probes, and list the metrics of all audits."""

from __future__ import annotations

from hallmark.tasks.audits.audit_descriptions import CAPABILITY, CAPABILITY_METRICS
from hallmark.tasks.audits.probe import make_findings_stage, make_request_stage
from hallmark.tasks.audits.registry import PROBES

REQUEST_STAGES = {probe.name: make_request_stage(probe) for probe in PROBES}
FINDINGS_STAGES = {probe.name: make_findings_stage(probe) for probe in PROBES}

#: Metrics by audit whose findings never have a confidence interval, so no policy rule can pass.
METRICS_WITHOUT_INTERVAL = {probe.name: probe.derived.without_interval for probe in PROBES} | {
    CAPABILITY: ()
}

#: The title of each metric, by audit; without controls.
METRICS_BY_AUDIT: dict[str, dict[str, str]] = {
    probe.name: probe.metric_titles for probe in PROBES
} | {CAPABILITY: CAPABILITY_METRICS}
