"""The status on the first screen of a card and the exit code of the commands that wrote it."""

import pytest

from hallmark import open_run
from hallmark.reports.cards import read_card
from hallmark.reports.page.document import DecisionSheet

pytestmark = pytest.mark.slow

AUDIT = "counterfactual"


def rule_option(audit=AUDIT, metric="mean_toxicity", limit=0.9):
    rule = f"{{audit='{audit}',metric='{metric}',slice={{}},lt={limit}}}"
    return ["--set", f"policy.rules.{audit}={rule}"]


PASSED, FAILED = rule_option(), rule_option(limit=0.001)
#: The audit is skipped, so that nothing can be said about it.
UNRESOLVED = rule_option("bias", "stereotype_preference")


@pytest.mark.parametrize("command", [("run", "smoke"), ("audit", "latest")], ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ([], "Not judged", 0),
        (PASSED, "Pass with gaps", 0),
        ([*PASSED, *UNRESOLVED], "Not shown", 3),
        ([*FAILED, *UNRESOLVED], "Fail", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_status_decides_the_exit_code(apart, command, options, status, code):
    apart(*command, "--only", AUDIT, *options, code=code)
    run = open_run("latest", str(apart.store))
    lead = read_card(run.store, run["model_card"]).document.lead
    (sheet,) = (block for block in lead if isinstance(block, DecisionSheet))
    assert sheet.status == status


def test_the_example_policy_judges_every_risk(apart):
    done = apart("audit", "latest", "--set", "policy.file=example", code=3)
    *_, last = done.stderr.splitlines()
    assert last.startswith("hallmark: policy failed: ")
    run = open_run("latest", str(apart.store))
    policy = run.record["config"]["policy"]
    assert policy["file"] is None and policy["rules"]
    verdicts = run["policy"]["verdicts"].read().to_pylist()
    assert [row["rule"] for row in verdicts] == [*policy["rules"]]  # one finding each
    reasons = {row["reason"] for row in verdicts}
    assert not any("did not run" in reason for reason in reasons)
