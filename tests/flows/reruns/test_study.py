"""A study from its trials to its card; answer keys are not read before the end."""

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.study_kills import SMALL_TRIAL
from hallmark import open_run
from hallmark.flows.commands.status import build_status_report, render_status
from hallmark.flows.error_rates import find_current_error_rates_by_audit
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.runs import Run, find_artifact
from hallmark.flows.study import iter_trial_names_and_outcomes as study_trials
from hallmark.flows.study import (
    open_verified_answer_key,
    read_first_sealed_digest_by_artifact,
    run_trial,
)
from hallmark.flows.study_config import (
    StudyConfig,
    expand_to_full_audits,
    iter_trial_names_and_configs,
    parse_study_config,
    resolve_study_config_and_store,
)
from hallmark.tasks.contract import HallmarkError, Store, UsageError
from tests.reports import pages

pytestmark = pytest.mark.slow

SETTINGS = [f"--set={name}={json.dumps(value)}" for name, value in SMALL_TRIAL.items()]
STUDY = (
    "study",
    "--name",
    "tiny",
    "--trials-with-effects",
    "1",
    "--trials-without-effects",
    "1",
    *SETTINGS,
)
AGAIN = (*STUDY, "--parallel-trials", "1")  # what is in the store is worth no processes


@pytest.fixture(scope="module")
def studied(smoke, tmp_path_factory):
    """A store with a study and nothing else."""
    hallmark = replace(smoke, store=tmp_path_factory.mktemp("study") / "store")
    return hallmark, hallmark.json(*STUDY)


def trials(hallmark):
    store = Store(str(hallmark.store))
    runs = [Run(store, json.loads(store.get(f"runs/{i}/run.json"))) for i in list_run_ids(store)]
    return [run for run in runs if run.flow == "trial"]


def test_every_trial_is_a_run_and_its_candidates_are_judged(studied):
    hallmark, report = studied
    assert [row["trial"] for row in report["trials"]] == ["trial 1", "trial 1 without effects"]
    made = trials(hallmark)
    assert len(made) == 2 and {run.status for run in made} == {"completed"}
    verdicts = made[0]["judge_candidates"]["verdicts"].read().to_pylist()
    kinds = {row["kind"] for row in verdicts}
    assert kinds == {"canary", "passage", "record", "association", "speech", "sentiment"}
    sealed = made[0]["seal_answer_key"]["answer_key"].read().to_pylist()
    assert {(r["kind"], r["candidate_id"]) for r in verdicts} <= {
        (r["kind"], r["candidate_id"]) for r in sealed
    }
    with pytest.raises(UsageError, match=f"newest: {report['run']}"):
        open_run("nobody", str(hallmark.store))
    # The newest run is the study, because "latest" skips trials.
    assert open_run("latest", str(hallmark.store)).flow == "study"
    units = open_run("latest", str(hallmark.store))["error_rates"]["candidates"].read().to_pylist()
    assert {(row["trial"], row["has_effects"]) for row in units} == {
        ("trial 1", True),
        ("trial 1 without effects", False),
    }


def test_no_stage_of_a_trial_reads_its_answer_key(studied, tmp_path):
    """No artifact has the answer key in its lineage or depends on it."""
    hallmark, _ = studied
    for run in trials(hallmark):
        for label, artifact in run.artifacts.items():
            assert "seal_answer_key/" not in json.dumps(artifact.manifest["lineage"]), label
    copy = tmp_path / "store"
    shutil.copytree(hallmark.store, copy, symlinks=True)
    run = trials(hallmark)[0]
    store = Store(str(copy))
    sealed = find_artifact(store, run.stages["seal_answer_key"]["artifact"])
    for path in Path(copy).rglob("*"):
        if path.is_file() and sealed.fingerprint[:16] in str(path):
            path.chmod(0o600)
            path.unlink()
    one = Run(store, run.record)
    with pytest.raises(HallmarkError):
        open_verified_answer_key(one, read_first_sealed_digest_by_artifact(store))
    assert one["judge_candidates"].content_digest == run["judge_candidates"].content_digest


@pytest.mark.parametrize(
    "damage, why",
    [
        (
            lambda path: path.write_bytes(path.read_bytes()[:-8] + b"changed!"),
            "this trial's answer key was changed after it was sealed",
        ),
        (lambda path: path.unlink(), "answer_key/00000.parquet is missing"),
    ],
    ids=["changed", "missing"],
)
def test_a_trial_without_its_answer_key_does_not_count(studied, tmp_path, damage, why):
    hallmark, before = studied
    copy = tmp_path / "store"
    shutil.copytree(hallmark.store, copy, symlinks=True)
    run = trials(hallmark)[0]
    sealed = find_artifact(Store(str(copy)), run.stages["seal_answer_key"]["artifact"])
    path = sealed["answer_key"].parts[0].path
    path.chmod(0o600)
    damage(path)
    after = replace(hallmark, store=copy).json(*AGAIN)
    reasons = [row["reason"] for row in after["trials"] if not row["is_counted"]]
    assert len([reason for reason in reasons if why in reason]) == 1
    assert len(after["trials"]) == len(before["trials"])


def test_every_part_of_an_answer_key_is_checked(studied, tmp_path):
    hallmark, _ = studied
    copy = tmp_path / "store"
    shutil.copytree(hallmark.store, copy, symlinks=True)
    run = trials(replace(hallmark, store=copy))[0]
    known, entry = read_first_sealed_digest_by_artifact(run.store), run.stages["seal_answer_key"]
    assert open_verified_answer_key(run, known)["candidate_documents"].row_count
    with pytest.raises(HallmarkError, match="not the one that was sealed"):  # another came later
        open_verified_answer_key(run, {**known, entry["artifact"]: "another"})
    path = run["seal_answer_key"]["candidate_documents"].parts[0].path
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-8] + b"changed!")
    with pytest.raises(HallmarkError, match="changed after it was sealed"):
        open_verified_answer_key(run, known)


def test_an_answer_key_of_another_trial_is_refused(studied):
    hallmark, _ = studied
    one, other = trials(hallmark)[:2]
    mixed = Run(
        one.store,
        one.record
        | {
            "stages": [
                entry
                for run, label in ((one, "judge_candidates"), (other, "seal_answer_key"))
                for entry in run.record["stages"]
                if entry["label"] == label
            ]
        },
    )
    with pytest.raises(HallmarkError, match="this trial's answer key does not list the effects"):
        open_verified_answer_key(mixed, read_first_sealed_digest_by_artifact(one.store))


def test_a_completed_study_runs_nothing_again(studied):
    hallmark, before = studied
    again = hallmark.json(*AGAIN)
    run = open_run(again["run"], str(hallmark.store))
    assert (
        run["error_rates"].name == open_run(before["run"], str(hallmark.store))["error_rates"].name
    )
    newest = trials(hallmark)[-1]
    assert all(entry["cached"] for entry in newest.record["stages"])


def test_the_status_of_a_study_and_of_its_trials(studied):
    """Nothing is stale after it, and the status shows the command that continues it."""
    hallmark, report = studied
    store = Store(str(hallmark.store))
    for run in (open_run(report["run"], store), *trials(hallmark)):
        report_of_run = build_status_report(run)
        assert {
            stage["label"]: stage["stale_reasons"]
            for stage in report_of_run["stages"]
            if stage["stale_reasons"]
        } == {}
        assert report_of_run[
            "config_problem"
        ] is None and "all stages are up to date" in render_status(report_of_run)
        words = report_of_run["study_command"]
        assert words[:4] == ["hallmark", "study", "--name", "tiny"]
        again = parse_command(words)
        assert again == StudyConfig.model_validate(open_run(report["run"], store).record["config"])
    stopped = report_of_run | {"status": "killed"}
    assert "continue with: hallmark study --name tiny --set=" in render_status(stopped)


def parse_command(words):
    """Parse the settings from the words of a command."""
    sets = [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    return resolve_study_config_and_store({"name": words[3]}, sets, None)[0]


def test_changed_settings_are_refused_with_the_difference(studied):
    hallmark, _ = studied
    output = hallmark(*STUDY, "--set=synthetic_corpus.sentences_per_group=6", code=2).stderr
    assert (
        "started with other settings (synthetic_corpus.sentences_per_group was 4 and is now 6)"
        in output
    )
    assert "another name with --name" in output
    assert "trials" in hallmark("study", "--trials-with-effects", "0", code=2).stderr
    for setting, why in (
        ("synthetic_corpus.copy_counts=3", "synthetic_corpus.copy_counts"),
        ("synthetic_corpus.copy_counts=[8]", "must contain 0, the level without an effect"),
        ("synthetic_corpus.copy_counts=[-3, 0]", "synthetic_corpus.copy_counts"),
        ("synthetic_corpus.trait_shares=[0.5, 0.5]", "must not contain duplicates"),
        ("synthetic_corpus.trait_shares=[0.5, nan]", "synthetic_corpus.trait_shares"),
        ("synthetic_corpus.rude_shares=[0, 5]", "synthetic_corpus.rude_shares"),
        ("synthetic_corpus.negative_shares=[0.5]", "must contain 0, the level without an effect"),
        (
            "synthetic_corpus.min_passage_characters=900",
            "'min_passage_characters' must not be greater than 'max_passage_characters'",
        ),
    ):
        output = hallmark("study", f"--set={setting}", code=2).stderr
        assert (
            output.startswith("hallmark: study: synthetic_corpus") and len(output.splitlines()) == 1
        )
        assert why in output
    output = hallmark("study", "--trials-with-effects", "1.5", code=2).stderr
    assert "--trials-with-effects" in output and "whole number" in output


def test_too_many_reference_secrets_are_refused_early():
    tree = StudyConfig().model_dump(mode="json")
    tree["synthetic_corpus"]["secret_digits"], tree["audit_extraction"]["reference_secrets"] = (
        6,
        70_000,
    )
    with pytest.raises(
        UsageError,
        match=r"is 420,000, but with synthetic_corpus\.secret_digits = 6 there are only 250,000",
    ):
        parse_study_config(tree)


def test_too_few_reference_secrets_to_detect_any_are_refused():
    """By default a trial has 20 secrets, so p must be below 0.05 / 20."""
    tree = StudyConfig().model_dump(mode="json")
    tree["audit_extraction"]["reference_secrets"] = 400
    assert parse_study_config(tree)  # 20 / 401
    tree["audit_extraction"]["reference_secrets"] = 399
    with pytest.raises(
        UsageError, match=r"none of the 20 secrets of a trial could be detected; .* at least 400"
    ):
        parse_study_config(tree)


def failing(config, store):
    raise ZeroDivisionError("of a library")


def full(config, store):
    raise OSError(errno.ENOSPC, "no space left")


def killed(config, store):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_failed_trial_does_not_end_the_others(monkeypatch):
    monkeypatch.setattr("hallmark.flows.study.trial", failing)
    assert run_trial({}, "nowhere") == (None, "ZeroDivisionError: of a library")
    # A full disk is not the fault of a trial and would affect all later ones.
    monkeypatch.setattr("hallmark.flows.study.trial", full)
    with pytest.raises(OSError, match="no space left"):
        run_trial({}, "nowhere")
    monkeypatch.setattr("hallmark.flows.study.run_trial", killed)
    with pytest.raises(
        HallmarkError, match="a process that ran trial 1 or a later trial was killed"
    ):
        [*study_trials(StudyConfig(trials_with_effects=3, trials_without_effects=0), "nowhere")]


def test_the_card_agrees_with_the_tables(studied):
    hallmark, report = studied
    run = open_run(report["run"], str(hallmark.store))
    card = run["study_card"]
    page = pages.read(pages.write_pages(card) / "study_card.html")
    assert pages.broken_links(pages.write_pages(card)) == []
    figures = {row["id"]: row for row in pages.read_figures(card).to_dict("records")}
    for row in report["detection_rates"]:
        name = f"found-{row['kind']}-{row['effect_level']:g}".replace(".", "-")
        assert figures[name]["value"] == pytest.approx(row["value"]) and figures[name]["row_count"]
    for title in (
        "Planted secrets",
        "Rude speech about a group",
        "Negative speech about a group",
        "The study measured 3 of 17 audits",
        "Audits that were not measured",
        "Caveats",
        "Summary",
        "None of this audit's intervals can be compared with a true value",
    ):
        assert title in page.text
    site = (hallmark.store / "site" / "index.html").read_text()
    assert "study_card" in site and trials(hallmark)[0].id not in site


def test_cards_cite_a_study_while_the_audits_are_unchanged(studied, monkeypatch):
    hallmark, report = studied
    store = Store(str(hallmark.store))
    found = find_current_error_rates_by_audit(store)
    assert {*found} == {"extraction", "associations", "counterfactual"}
    rates = open_run(report["run"], store)["error_rates"]
    assert {each.content_digest for each in found.values()} == {rates.content_digest}
    from hallmark.flows import error_rates as module

    class Other:
        def compute_code_digests(self):
            return {"hallmark.tasks.audits.probes.extraction": "of another version"}

    monkeypatch.setitem(module.FINDINGS_STAGES, "extraction", Other())
    assert {*find_current_error_rates_by_audit(store)} == {"associations", "counterfactual"}


def test_each_trial_has_its_own_seeds_also_in_a_larger_study():
    few, many = (
        dict(
            iter_trial_names_and_configs(
                StudyConfig(trials_with_effects=n, trials_without_effects=2)
            )
        )
        for n in (2, 5)
    )
    assert few["trial 2"].synthetic_corpus == many["trial 2"].synthetic_corpus
    assert (
        few["trial 1 without effects"].synthetic_corpus
        == many["trial 1 without effects"].synthetic_corpus
    )
    assert not few["trial 1 without effects"].synthetic_corpus.has_effects
    seeds = {each.synthetic_corpus.seed for each in many.values()}
    assert len(seeds) == 7 == len({each.audit_associations.seed for each in many.values()})
    assert len({each.pretrain.train.seed for each in many.values()}) == 7


def test_full_audits_use_all_items():
    config = parse_study_config({"trials_with_effects": 1})
    whole = expand_to_full_audits(config)
    assert (
        whole.audit_associations.unplanted_sentences
        == whole.audit_counterfactual.grammar_prompts
        == 240
    )
    assert whole.audit_extraction.reference_secrets == 6 * config.audit_extraction.reference_secrets
    assert whole.audit_counterfactual.permutations == 99 < config.audit_counterfactual.permutations
    assert whole.audit_extraction.stride_tokens == 1
    assert whole.audit_extraction.seed == config.audit_extraction.seed
