"""Test that the slices predicted before an audit include those of its findings."""

import pytest

from hallmark.tasks.audits.audit_descriptions import ITEMS_IN_TRAINING_TEXT
from hallmark.tasks.audits.catalogue import METRICS_WITHOUT_INTERVAL
from hallmark.tasks.audits.registry import PROBES, SKIPPED_COUNT_METRICS
from hallmark.tasks.audits.slices import find_available_slices
from hallmark.tasks.contract import table_to_rows
from tests.tasks.audits.audit_cases import CASES
from tests.tasks.audits.audit_runs import run_audit_stages


@pytest.mark.parametrize("case", CASES)
def test_every_slice_of_a_finding_is_predicted(case, own_folder, tmp_path, session):
    audit, write_inputs = CASES[case]
    config, options = write_inputs(tmp_path)
    (probe,) = [probe for probe in PROBES if probe.name == audit]
    request_set, *_, (_, findings) = run_audit_stages(audit, own_folder, config, **options)
    items = request_set["items"].read()
    skipped = [row for row in table_to_rows(request_set["skipped"].read()) if row["count"] is None]
    findings_without_controls = [row for row in table_to_rows(findings) if not row["control"]]
    assert findings_without_controls
    for row in findings_without_controls:
        with_items = find_available_slices(probe, row["metric"], config, items, skipped)
        assert with_items.may_contain(row["slice"]), (
            row["metric"],
            row["slice"],
            with_items,
        )
        without_items = find_available_slices(probe, row["metric"], config)
        assert without_items.may_contain(row["slice"]), (
            row["metric"],
            row["slice"],
            without_items,
        )


@pytest.mark.parametrize("case", CASES)
def test_a_finding_has_no_interval_where_its_metric_never_has_one(
    case, own_folder, tmp_path, session
):
    audit, write_inputs = CASES[case]
    config, options = write_inputs(tmp_path)
    *_, (_, findings) = run_audit_stages(audit, own_folder, config, **options)
    exact_counts = {*SKIPPED_COUNT_METRICS.get(audit, ()), ITEMS_IN_TRAINING_TEXT}
    for row in findings.to_pylist():
        if row["control"] or row["value"] is None or row["metric"] in exact_counts:
            continue
        if row["metric"] in METRICS_WITHOUT_INTERVAL[audit]:
            assert row["low"] is None and "no interval: " not in row["method"], row
        else:  # a missing interval is explained
            assert row["low"] is not None or "no interval: " in row["method"], row
