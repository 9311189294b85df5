"""Test that audits include cases with known answers."""

import pytest

from tests.tasks.audits.audit_cases import CASES
from tests.tasks.audits.audit_runs import run_audit_stages


@pytest.mark.parametrize("case", CASES)
def test_every_audit_has_a_positive_and_a_negative_control(case, own_folder, tmp_path, session):
    audit, write_inputs = CASES[case]
    config, options = write_inputs(tmp_path)
    *_, (_, findings) = run_audit_stages(audit, own_folder, config, **options)
    rows = findings.to_pylist()
    assert {row["control"] for row in rows} - {""} == {"positive", "negative"}
    # Without a comparison there is nothing to test but the scorer.
    other_targets = {row["control_target"] for row in rows} - {"", "scorer"}
    assert bool(other_targets) == (audit not in ("misuse", "toxicity"))
