"""Rules about the previous release, from the command line to the verdict, on the smoke store."""

import pytest

from hallmark import open_run
from hallmark.tasks.contract import table_to_rows
from tests.reports import pages

pytestmark = pytest.mark.slow

#: Bias is no choice: the smoke model is too weak for its questions.
AUDIT, METRIC = "counterfactual", "mean_toxicity"


def rule_options(margin=0.9, audit=AUDIT, metric=METRIC, **rule):
    """Options for a rule about the whole of a metric."""
    settings = {"audit": audit, "metric": metric, "not_worse_than_previous_by": margin} | rule
    pairs = [f"{key}={value!r}" for key, value in settings.items()]
    return ["--set", f"policy.rules.r={{{', '.join([*pairs, 'slice={}'])}}}"]


def audit(apart, *options, code=0, previous=None, checkpoint=None, audit_name=AUDIT):
    """Audit the untrained model of the smoke run with a rule about a previous run."""
    named = ["--set", f"policy.previous={previous}"] if previous else []
    return apart(
        "audit", checkpoint or f"{apart.first}@0", "--only", audit_name, *named, *options, code=code
    )


def read_last_verdict(apart):
    run = open_run("latest", str(apart.store))
    (row,) = table_to_rows(run["policy"]["verdicts"].read())
    return run, row


@pytest.fixture(scope="module")
def passed(apart):
    """A run that passes a rule with a large margin, compared with the trained model."""
    audit(apart, *rule_options(), previous=apart.first[:-1])
    return read_last_verdict(apart)


def test_the_previous_run_is_pinned_and_its_differences_are_stored(apart, passed):
    run, row = passed
    assert run.record["config"]["policy"]["previous"] == apart.first
    assert (row["verdict"], row["previous_run"]) == ("pass", apart.first)
    previous = (
        open_run(apart.first, str(apart.store))[f"audit_{AUDIT}"]["findings"].read().to_pylist()
    )
    (value,) = (f["value"] for f in previous if (f["metric"], f["slice"]) == (METRIC, []))
    assert row["previous_value"] == pytest.approx(value)
    changes = table_to_rows(run["compare_with_previous"]["changes"].read())
    (change,) = (c for c in changes if (c["metric"], c["slice"]) == (METRIC, {}))
    compared = apart.json("compare", apart.first, run.id)["rows"]
    (pair,) = (r for r in compared if (r["metric"], r["slice"]) == (METRIC, {}))
    assert [change[end] for end in ("change", "low", "high")] == [
        pair["differences"][0][end] for end in ("value", "low", "high")
    ]
    assert row["interval_end"] == change["largest_worsening"]
    report = apart.json("status", run.id)
    assert (report["policy"], report["passed_rules"]) == ("pass", ["r"])
    assert not any(stage["stale_reasons"] for stage in report["stages"])
    again = apart.json("audit", f"{apart.first}@0", "--only", AUDIT, *run_options(run))
    assert all(stage["cached"] for stage in again["stages"])
    (page,) = pages.write_pages(run["model_card"]).glob("model_card.html")
    text = page.read_text()
    assert "Policy verdicts" in text and f"in run {apart.first} it was" in text


def run_options(run):
    return [part for override in run.request.overrides for part in ("--set", override)]


def test_a_small_margin_is_not_met(apart, passed):
    done = audit(apart, *rule_options(1e-9), previous=apart.first, code=3)
    run, row = read_last_verdict(apart)
    assert (row["verdict"], row["bound"]) == ("fail", "worse by < 1e-09")
    *_, last = done.stderr.splitlines()
    policy = f"policy failed: 1 of 1 rule failed; failed: r ({AUDIT}.{METRIC}: the value in run"
    assert policy in last
    listed = next(entry for entry in apart.json("runs") if entry["run"] == run.id)
    assert (listed["policy"], listed["failed_rules"]) == ("fail", ["r"])


@pytest.mark.parametrize(
    ("options", "previous", "reason"),
    [
        ([], None, "no previous run is specified, and no earlier release with this name is known"),
        (["--set", f"audit_{AUDIT}.seed=3"], "first", "the settings differ: seed"),
        (
            ["--set", "respond.dtype=bfloat16"],
            "first",
            "the models ran at different precisions (respond",
        ),
    ],
)
def test_what_cannot_be_compared_is_not_shown(apart, passed, options, previous, reason):
    done = audit(apart, *rule_options(), *options, previous=previous and apart.first, code=3)
    _, row = read_last_verdict(apart)
    assert row["verdict"] == "not_shown" and reason in row["reason"]
    *_, last = done.stderr.splitlines()
    assert "policy not shown to pass: 1 of 1 rule could not be judged; not shown: r (" in last
    assert "policy failed" not in last and reason in last


def test_a_model_that_is_too_weak_for_an_audit_is_not_compared(apart, passed):
    options = rule_options(audit="bias", metric="stereotype_preference")
    done = audit(apart, *options, previous=apart.first, audit_name="bias", code=3)
    _, row = read_last_verdict(apart)
    assert row["verdict"] == "not_shown"
    assert "the model is too weak for this audit" in row["reason"]
    *_, last = done.stderr.splitlines()
    assert "policy not shown to pass" in last and "policy failed" not in last


def test_a_checkpoint_is_not_compared_with_itself(apart, passed):
    last = open_run(apart.first, str(apart.store)).config.pretrain.train.steps
    audit(
        apart,
        *rule_options(),
        checkpoint=f"{apart.first}@{last}",
        previous=apart.first,
        code=3,
    )
    _, row = read_last_verdict(apart)
    assert row["verdict"] == "not_shown"
    assert row["reason"] == (
        f"not comparable with run {apart.first}: both runs audited the same checkpoint, so there "
        "is no difference to evaluate"
    )


def test_bad_settings_are_refused_before_the_first_stage(apart, passed):
    before = len(apart.json("runs"))
    run, _ = passed
    for options, previous, sentence in (
        (rule_options(), "nobody", "policy.previous: the store"),
        (
            rule_options(audit="capability", metric="cloze_accuracy"),
            run.id,
            f"has no audit capability; it has {AUDIT}",
        ),
        (
            rule_options(audit="bias", metric="tie_share"),
            apart.first,
            "neither higher nor lower values of tie_share are worse",
        ),
        (rule_options(lt=0.5), apart.first, "it has lt and not_worse_than_previous_by"),
        (rule_options(0), apart.first, "must be greater than 0"),
    ):
        done = audit(apart, *options, previous=previous, code=2)
        assert sentence in done.stderr and len(done.stderr.strip().splitlines()) == 1
        planned = ["--set", f"policy.previous={previous}", *options]
        assert sentence in apart("run", "smoke", "--dry-run", *planned, code=2).stderr
    assert len(apart.json("runs")) == before


def test_a_forecast_knows_the_stage_that_compares(apart, passed):
    planned = ["--set", f"policy.previous={apart.first}", *rule_options()]
    report = apart.json("run", "smoke", "--dry-run", *planned, "--set", "pretrain.train.steps=80")
    labels = [stage["label"] for stage in report["stages"]]
    assert labels.index("compare_with_previous") < labels.index("policy")
