"""Build findings tables for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from hallmark.tasks.audits.judging.findings import Finding, build_findings_table


def title_metric(metric: str) -> str:
    """Return the name of a metric in words."""
    return metric.replace("_", " ").capitalize()


def findings_to_rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Convert findings to the rows that their table would have."""
    return [asdict(finding) for finding in findings]


def build_titled_table(findings: Sequence[Finding], precision: str = "fp32") -> pa.Table:
    """Build a findings table in which the title of each metric is its name in words."""
    titles = {finding.metric: title_metric(finding.metric) for finding in findings}
    return build_findings_table(findings, titles, precision)
