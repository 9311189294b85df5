"""``--only`` and ``--skip`` select audits; the card and run.json record the selection."""

import pytest

from hallmark.flows.audit_selection import (
    ALL_AUDITS,
    format_selection_options,
    parse_audit_names,
    select_audits,
)
from hallmark.flows.auditing import choose_audits_of_run
from hallmark.flows.config import load_config
from hallmark.flows.forecast.run_forecast import forecast_run
from hallmark.tasks.contract import UsageError


def test_both_options_can_be_repeated_or_hold_several_names():
    assert parse_audit_names(["weat, bias", "toxicity"]) == ["weat", "bias", "toxicity"]
    assert parse_audit_names(None) is None


def test_audits_are_selected_in_the_order_of_the_card():
    assert select_audits() == ALL_AUDITS
    assert select_audits(["bias", "toxicity", "bias"]) == ("toxicity", "bias")
    assert select_audits(skip=["capability"]) == ALL_AUDITS[1:]
    assert select_audits(["bias", "weat"], ["weat", "misuse"]) == ("bias",)
    for options in ((["bias"], ["bias"]), (None, ALL_AUDITS)):
        with pytest.raises(UsageError, match="excludes every audit; skip fewer"):
            select_audits(*options)
    with pytest.raises(UsageError, match=r"no audit .baise. .did you mean b"):
        select_audits(skip=["baise"])


def test_the_recorded_selection_is_repeated_by_the_shorter_option():
    assert format_selection_options(None) == []
    assert format_selection_options(["bias"]) == ["--only", "bias"]
    assert format_selection_options(ALL_AUDITS[1:]) == ["--skip", ALL_AUDITS[0]]


def test_a_run_whose_audits_need_files_ends_before_it_computes_anything():
    config = load_config("smoke")
    assert choose_audits_of_run(config, ["bold"], "pretrain") == []
    assert choose_audits_of_run(config, ["bold", "bias"], None) == ["bold", "bias"]
    assert choose_audits_of_run(config, ["weat", "bias"], "audit_bias") == ["bias"]
    with pytest.raises(UsageError, match="bold: requires files that you must provide"):
        choose_audits_of_run(config, ["bold"], None)


def test_a_dry_run_plans_only_the_selected_audits(tmp_path):
    """A word list as corpus: only the plan matters here."""
    (tmp_path / "texts.txt").write_text("One text.\n")
    source = f"ingest.sources=[{{kind='text', name='t', path='{tmp_path}/texts.txt'}}]"

    def list_stages(only):
        report = forecast_run("smoke", [source], store=str(tmp_path / "store"), only=only)
        return [row["label"] for row in report["stages"]]

    stages = list_stages(("bias",))
    assert {"bias_respond", "audit_bias", "missing_audits", "model_card"} <= {*stages}
    others = {"capability_baselines", "audit_capability", "toxicity_respond", "audit_membership"}
    assert not others & {*stages}
    stages = list_stages(ALL_AUDITS)
    assert others <= {*stages} and "missing_audits" not in stages
