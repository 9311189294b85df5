"""``--only`` and ``--skip`` select audits; the card and run.json record the selection."""

import pytest

import hallmark as hallmark_package
from hallmark.flows.audit_selection import (
    ALL_AUDITS,
    CORPUS_AUDITS,
    check_corpus_known,
    format_selection_options,
    parse_audit_names,
    select_audits,
)
from hallmark.flows.auditing import choose_audits_of_run, list_available_audits
from hallmark.flows.config import load_config
from hallmark.flows.forecast.run_forecast import forecast_run
from hallmark.tasks.audits.catalogue import REQUEST_STAGES
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.contract import Store, UsageError, folder_to_artifact
from tests.flows.conftest import Hallmark
from tests.tasks.audits.conftest import gpt2_folder  # noqa: F401


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


def test_audits_that_cannot_run_are_not_skipped_by_the_user():
    config = load_config("smoke")
    user_file_audits = {"bold", "winobias", "winogender", "stereoset", "bbq", "honest", "misuse"}
    with_corpus = list_available_audits(config, has_corpus=True)
    assert {*ALL_AUDITS} - {*with_corpus} == user_file_audits
    without_corpus = list_available_audits(config, has_corpus=False)
    assert {*with_corpus} - {*without_corpus} == {*CORPUS_AUDITS}


def test_audits_that_need_the_corpus_are_refused_if_they_are_named(gpt2_folder, tmp_path):  # noqa: F811
    hallmark = Hallmark(tmp_path / "store")
    model = str(gpt2_folder)
    for name in CORPUS_AUDITS:
        output = hallmark("audit", model, "--only", f"{name},bias", code=2).stderr
        assert f"only '{name}': these audits compare a model with its training corpus" in output
    with pytest.raises(UsageError, match="only 'membership': these audits"):
        hallmark_package.audit(model, store=str(tmp_path / "store"), only=["membership"])
    check_corpus_known(Store(tmp_path / "store"), model, ["bias", "toxicity"])
    check_corpus_known(Store(tmp_path / "store"), model, None)


def test_audits_that_need_the_corpus_have_no_requests_without_it(gpt2_folder, session):  # noqa: F811
    """All but one: extraction_attack writes texts, but has nothing to compare them with."""
    config = load_config("smoke")
    checkpoint = folder_to_artifact(gpt2_folder, "checkpoint")
    available_audits = list_available_audits(config, has_corpus=True)
    without_requests = {
        probe.name
        for probe in PROBES
        if probe.name in available_audits
        and not REQUEST_STAGES[probe.name](
            checkpoint, None, None, None, getattr(config, f"audit_{probe.name}")
        )["requests"].row_count
    }
    # weat reads embeddings instead of asking.
    assert without_requests - {"weat"} == {*CORPUS_AUDITS} - {"capability", "extraction_attack"}


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
