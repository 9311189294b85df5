"""``--only`` and ``--skip`` select audits; the card and run.json record the selection."""

import os
from types import SimpleNamespace

import pytest

import hallmark as hallmark_package
from hallmark.flows.audit_execution import check_scorers_of_audits
from hallmark.flows.audit_selection import (
    ALL_AUDITS,
    CORPUS_AUDITS,
    format_selection_options,
    parse_audit_names,
    select_audits,
)
from hallmark.flows.auditing import (
    choose_audits_of_run,
    list_available_audits,
    record_other_lexicons,
)
from hallmark.flows.checkpoint_resolution import ResolvedCheckpoint, check_corpus_known
from hallmark.flows.config import load_config
from hallmark.flows.forecast.run_forecast import forecast_run
from hallmark.flows.run_recording import check_overrides_used
from hallmark.tasks.audits.catalogue import REQUEST_STAGES
from hallmark.tasks.audits.methods.user_lexicons import read_lexicon_groups
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
        assert (
            f"the 'only' option ('{name}') selects audits that compare a model with its training "
            "corpus" in output
        )
    with pytest.raises(UsageError, match=r"the 'only' option \('membership'\) selects audits"):
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


@pytest.mark.parametrize(
    "override",
    [
        "pretrain.train.steps=9",
        "identities.length_bounds_bytes=[5]",
        "earlier_run=latest",
        "datasheet.title=x",
        "finetune.data=x",
    ],
)
def test_a_setting_that_an_audit_does_not_use_is_refused(override):
    key = override.partition("=")[0]
    with pytest.raises(UsageError, match=f"--set {key}.*: audit builds no corpus and .*score"):
        check_overrides_used("audit", [override])
    check_overrides_used("pipeline", [override])


def test_settings_that_a_flow_uses_are_accepted():
    check_overrides_used(
        "audit",
        [
            "identities.lexicons=['a.json']",
            "identities={}",
            "audit_bias.seed=4",
            " score.scorer.kind = detoxify",
            "policy.rules.r={}",
            "store=elsewhere",
        ],
    )
    check_overrides_used("finetune", ["finetune.train.steps=3", "task_card.title=x"])
    with pytest.raises(
        UsageError,
        match="that apply: name, store, workers, mapper, report_to, reporters, credentials, retry, "
        "finetune, task_c",
    ):
        check_overrides_used("finetune", ["audit_bias.seed=4"])


def make_empty_resolved_checkpoint(folder, source_run=None):
    return ResolvedCheckpoint(folder_to_artifact(folder, "checkpoint"), source_run=source_run)


def test_the_lexicons_of_the_settings_join_the_audit_of_a_model_from_elsewhere(
    gpt2_folder,  # noqa: F811
    session,
    tmp_path,
):
    path = tmp_path / "mine.json"
    path.write_text('{"Hillfolk": ["hillfolk"], "Coasters": ["coasters"]}')
    config = load_config("smoke", [f"identities.lexicons=['{path}']"])
    resolved = make_empty_resolved_checkpoint(gpt2_folder)
    lexicons = record_other_lexicons(config, resolved)
    groups = [group.name for group in read_lexicon_groups(lexicons["lexicons"])]
    assert groups == ["mine:Hillfolk", "mine:Coasters"]
    requests = REQUEST_STAGES["bias"](resolved.checkpoint, lexicons, None, None, config.audit_bias)
    assert "mine:Hillfolk" in requests["items"].read()["category"].to_pylist()
    without_lexicons = load_config("smoke", ["identities.lexicons=[]"])
    assert record_other_lexicons(without_lexicons, resolved) is None
    path.unlink()
    with pytest.raises(UsageError, match=r"mine\.json"):
        record_other_lexicons(config, resolved)


def test_the_lexicons_of_the_corpus_are_not_read_again(gpt2_folder, session, tmp_path):  # noqa: F811
    """The file may have changed or disappeared since the corpus was built."""
    config = load_config("smoke", [f"identities.lexicons=['{tmp_path}/gone.json']"])
    record = {"config": config.model_dump(mode="json")}
    source_run = SimpleNamespace(record=record, working_folder=os.getcwd())
    resolved = make_empty_resolved_checkpoint(gpt2_folder, source_run)
    assert record_other_lexicons(config, resolved) is None
    other_config = load_config("smoke", ["identities.lexicons=['town']"])
    assert record_other_lexicons(other_config, resolved)["lexicons"].row_count
    no_lexicons = load_config("smoke", ["identities.lexicons=[]"])
    assert not record_other_lexicons(no_lexicons, resolved)["lexicons"].row_count


def test_a_broken_word_list_is_found_before_the_model_is_asked(gpt2_folder, tmp_path):  # noqa: F811
    words = tmp_path / "words.txt"
    words.write_text("good\n")
    scorers = f"score.additional_scorers=[{{kind='words', path='{words}'}}]"
    config = load_config("smoke", [scorers])
    with pytest.raises(UsageError, match=r"words\.txt, line 1 does not consist"):
        check_scorers_of_audits(config, ["counterfactual"])
    check_scorers_of_audits(config, ["bias"])
    # It scores sentiment, which the audit of toxicity does not use.
    check_scorers_of_audits(config, ["toxicity"])


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
