"""Test that audits include cases with known answers."""

import pytest

from tests.tasks.audits.audit_cases import CASES
from tests.tasks.audits.audit_runs import run_audit_stages


@pytest.mark.parametrize("case", CASES)
def test_every_audit_except_misuse_has_a_positive_and_a_negative_control(
    case, own_folder, tmp_path, session
):
    audit, write_inputs = CASES[case]
    config, options = write_inputs(tmp_path)
    *_, (_, findings) = run_audit_stages(audit, own_folder, config, **options)
    controls = {*findings["control"].to_pylist()} - {""}
    assert controls == (set() if audit == "misuse" else {"positive", "negative"})
