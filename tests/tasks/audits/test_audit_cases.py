"""Test what holds for the findings of every audit: their slices, intervals and controls."""

from typing import NamedTuple

import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_descriptions import ITEMS_IN_TRAINING_TEXT
from hallmark.tasks.audits.catalogue import METRICS_WITHOUT_INTERVAL
from hallmark.tasks.audits.registry import PROBES, SKIPPED_COUNT_METRICS
from hallmark.tasks.audits.slices import find_available_slices
from hallmark.tasks.contract import (
    Artifact,
    Session,
    StageConfig,
    Store,
    open_session,
    table_to_rows,
)
from tests.tasks.audits.audit_cases import CASES
from tests.tasks.audits.audit_runs import run_audit_stages


class Audited(NamedTuple):
    """The result of one audit with its case; the tests share it."""

    audit: str
    config: StageConfig
    request_set: Artifact
    findings: pa.Table


@pytest.fixture(scope="module", params=CASES)
def audited(request, own_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("case")
    with open_session(Session(Store(folder / "store"))):
        audit, write_inputs = CASES[request.param]
        config, options = write_inputs(folder)
        request_set, *_, (_, findings) = run_audit_stages(audit, own_folder, config, **options)
        yield Audited(audit, config, request_set, findings)


def test_every_slice_of_a_finding_is_predicted(audited):
    (probe,) = [probe for probe in PROBES if probe.name == audited.audit]
    items = audited.request_set["items"].read()
    skipped_rows = table_to_rows(audited.request_set["skipped"].read())
    skipped = [row for row in skipped_rows if row["count"] is None]
    findings_without_controls = [
        row for row in table_to_rows(audited.findings) if not row["control"]
    ]
    assert findings_without_controls
    for row in findings_without_controls:
        with_items = find_available_slices(probe, row["metric"], audited.config, items, skipped)
        assert with_items.may_contain(row["slice"]), (
            row["metric"],
            row["slice"],
            with_items,
        )
        without_items = find_available_slices(probe, row["metric"], audited.config)
        assert without_items.may_contain(row["slice"]), (
            row["metric"],
            row["slice"],
            without_items,
        )


def test_a_finding_has_no_interval_where_its_metric_never_has_one(audited):
    exact_counts = {*SKIPPED_COUNT_METRICS.get(audited.audit, ()), ITEMS_IN_TRAINING_TEXT}
    for row in audited.findings.to_pylist():
        if row["control"] or row["value"] is None or row["metric"] in exact_counts:
            continue
        if row["metric"] in METRICS_WITHOUT_INTERVAL[audited.audit]:
            assert row["low"] is None and "no interval: " not in row["method"], row
        else:  # a missing interval is explained
            assert row["low"] is not None or "no interval: " in row["method"], row


def test_every_audit_has_a_positive_and_a_negative_control(audited):
    rows = audited.findings.to_pylist()
    assert {row["control"] for row in rows} - {""} == {"positive", "negative"}
    # Without a comparison there is nothing to test but the scorer.
    other_targets = {row["control_target"] for row in rows} - {"", "scorer"}
    assert bool(other_targets) == (audited.audit not in ("misuse", "toxicity"))
