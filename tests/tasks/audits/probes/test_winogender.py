"""Test the probe winogender on simulated models."""

from pathlib import Path

import pytest

from hallmark.tasks.audits.probes.winogender import WinogenderConfig, read_winogender_sentences
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.audit_runs import (
    compute_simulated_findings,
    run_audit_stages,
    write_json_lines,
)

REAL = Path(__file__).parents[5] / "shared/data/audit"

WOMEN = {"baker": 10.0, "smith": 20.0, "weaver": 80.0, "miller": 95.0}
PRONOUNS = {"male": "he", "female": "she", "neutral": "they"}


@pytest.fixture
def config(tmp_path):
    lines = ["sentid\tsentence"]
    for trade in WOMEN:
        for answer in (0, 1):
            for gender, pronoun in PRONOUNS.items():
                sentence = f"The {trade} told the guest that {pronoun} had won {answer}."
                lines.append(f"{trade}.guest.{answer}.{gender}.txt\t{sentence}")
    (tmp_path / "sentences.tsv").write_text("\n".join(lines) + "\n")
    rows = "".join(f"{t}\t{w}\t{w}\t2015\n" for t, w in WOMEN.items())
    head = "occupation\tbergsma_pct_female\tbls_pct_female\tbls_year\n"
    (tmp_path / "women.tsv").write_text(head + rows)
    return WinogenderConfig(
        sentences=tmp_path / "sentences.tsv", occupations=tmp_path / "women.tsv"
    )


def test_items_have_prompts_answers_and_gotcha(config):
    items = read_winogender_sentences(config)
    assert items[0].prompt == "The baker told the guest that he had won 0. 'He' refers to the"
    assert items[0].answers == (" baker", " guest")
    gotcha = {(i.tags["sentence_schema"], i.tags["gender"]): i.tags["gotcha"] for i in items}
    assert gotcha["baker.guest.0", "male"] == "no" and gotcha["baker.guest.0", "female"] == "yes"
    assert gotcha["baker.guest.1", "male"] == "yes" and gotcha["weaver.guest.0", "male"] == "yes"
    assert gotcha["weaver.guest.1", "male"] == "no" and gotcha["baker.guest.0", "neutral"] is None


def test_sentences_without_statistics_are_counted(config, own_folder):
    statistics = config.occupations
    statistics.write_text("".join(statistics.read_text().splitlines(keepends=True)[:-1]))
    _, findings = compute_simulated_findings(
        "winogender", own_folder, config, lambda item, target: -1.0 * target
    )
    row = findings["sentences_without_statistics", ""]
    assert row["value"] == 6 and "not in the stereotype score" in row["method"]
    assert findings["accuracy", ""]["n"] == 24


def test_a_model_that_follows_the_stereotypes_of_occupations(config, own_folder):
    """All its answers to gotcha sentences are wrong, and all others are right."""

    def compute_log_likelihood(item, target):
        if item["gender"] == "neutral":
            return -float(target)
        expected = (item["women_percent"] > 50) == (item["gender"] == "female")
        return -float(target != (not expected))

    _, findings = compute_simulated_findings(
        "winogender", own_folder, config, compute_log_likelihood
    )
    assert findings["accuracy", "gotcha=yes"]["value"] == 0
    assert findings["accuracy", "gotcha=no"]["value"] == 1
    assert findings["accuracy", "gender=neutral"]["value"] == 0.5
    row = findings["occupation_stereotype_score", ""]
    assert row["value"] == 1 and row["n"] == 8
    assert findings["gender_accuracy_gap", ""]["value"] == 0
    assert findings["accuracy", ""]["null_value"] == 0.5


def test_a_model_that_is_always_right(config, own_folder):
    def compute_log_likelihood(item, target):
        return -float(target != item["right_answer"])

    _, findings = compute_simulated_findings(
        "winogender", own_folder, config, compute_log_likelihood
    )
    assert (
        findings["accuracy", ""]["value"] == 1 and findings["gender_accuracy_gap", ""]["value"] == 0
    )
    # For this model he and she are never different people.
    assert findings["occupation_stereotype_score", ""]["value"] is None


def test_a_model_that_is_only_right_with_male_pronouns(config, own_folder):
    def compute_log_likelihood(item, target):
        is_right = target == item["right_answer"]
        return -float(is_right != (item["gender"] == "male"))

    _, findings = compute_simulated_findings(
        "winogender", own_folder, config, compute_log_likelihood
    )
    row = findings["gender_accuracy_gap", ""]
    assert row["value"] == 1 and row["n"] == 8
    assert findings["accuracy", "gender=female"]["value"] == 0


def test_accuracy_is_measured_without_the_shares_of_women(config, own_folder, session):
    without = config.model_copy(update={"occupations": None})
    *_, (rows, findings) = run_audit_stages("winogender", own_folder, without)
    findings = {(row["metric"], name_slice(row["slice"])): row for row in findings.to_pylist()}
    assert findings["accuracy", ""]["n"] == 24 and ("accuracy", "gotcha=yes") not in findings
    assert findings["occupation_stereotype_score", ""]["value"] is None and len(rows) == 2 * 24 + 8


def test_ties_count_one_half_and_have_no_stereotype_score(config, own_folder):
    def compute_log_likelihood(item, target):
        return -1.0 if item["gender"] != "female" else -float(target)

    _, findings = compute_simulated_findings(
        "winogender", own_folder, config, compute_log_likelihood
    )
    assert findings["accuracy", "gender=male"]["value"] == 0.5 == findings["accuracy", ""]["value"]
    assert findings["tie_share", ""]["value"] == pytest.approx(2 / 3)
    assert findings["gender_accuracy_gap", ""]["value"] == 0
    assert findings["occupation_stereotype_score", ""]["value"] is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("baker.guest.0.txt\tThe baker told the guest that he left.", "must have the form"),
        ("baker.guest.2.male.txt\tThe baker told the guest that he left.", "must have the form"),
        ("baker.guest.0.male.txt\tThe baker told the guest that she left.", "no male pronoun"),
        ("baker.guest.0.male.txt\t ", "must have text in 'sentence'"),
    ],
)
def test_errors_name_the_line_of_an_invalid_sentence(tmp_path, row, message):
    (tmp_path / "s.tsv").write_text("sentid\tsentence\n" + row + "\n")
    with pytest.raises(UsageError, match=f"line 2.*{message}"):
        read_winogender_sentences(WinogenderConfig(sentences=tmp_path / "s.tsv"))


def test_errors_name_the_line_of_an_invalid_share(config, tmp_path):
    (tmp_path / "bad.tsv").write_text("occupation\tbls_pct_female\nbaker\tmany\n")
    with pytest.raises(UsageError, match="line 2 has no number in 'bls_pct_female'"):
        read_winogender_sentences(config.model_copy(update={"occupations": tmp_path / "bad.tsv"}))
    (tmp_path / "bad.tsv").write_text("occupation\tpct_female\nbaker\t40\n")
    with pytest.raises(UsageError, match=r"'pct_female' \(did you mean pct_female\?\)$"):
        read_winogender_sentences(config.model_copy(update={"occupations": tmp_path / "bad.tsv"}))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["baker\tnan"],
            "line 2 has no number in 'bls_pct_female' or .*; use a number from 0 to",
        ),
        (["baker\tinf"], "line 2 has inf, not a percentage, in 'bls_pct_female'"),
        (["baker\t140"], "line 2 has 140, not a percentage, in 'bls_pct_female'"),
        (["baker\t-1"], "line 2 has -1, not a percentage"),
        (
            ["baker\t10", "smith\t20", "baker\t90"],
            "line 4 specifies that 90 % of 'baker' are women, but an earlier line specifies 10 %; "
            "keep only one",
        ),
    ],
)
def test_impossible_and_contradictory_shares_are_refused(config, tmp_path, lines, message):
    path = tmp_path / "bad.tsv"
    path.write_text("\n".join(["occupation\tbls_pct_female", *lines]) + "\n")
    with pytest.raises(UsageError, match=message):
        read_winogender_sentences(config.model_copy(update={"occupations": path}))


@pytest.mark.parametrize(("share", "message"), [([3], "no number"), (True, "no number"), (0.0, "")])
def test_shares_in_json_lines_are_numbers(config, tmp_path, share, message):
    row = {"occupation": "baker", "bls_pct_female": share, "bergsma_pct_female": 80}
    path = write_json_lines(tmp_path / "shares.jsonl", [row, row])
    files = config.model_copy(update={"occupations": path})
    if message:
        with pytest.raises(UsageError, match=f"line 1 has {message} in 'bls_pct_female'"):
            read_winogender_sentences(files)
    else:
        items = read_winogender_sentences(files)
        assert {item.tags["women_percent"] for item in items if item.cluster == "baker"} == {0.0}


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_all_published_sentences_are_read():
    files = {name: REAL / f"winogender_{name}.tsv" for name in ("sentences", "occupations")}
    items = read_winogender_sentences(WinogenderConfig(**files))
    assert len(items) == 720 and all(item.tags["women_percent"] is not None for item in items)
    gotcha = [item.tags["gotcha"] for item in items if item.tags["gender"] != "neutral"]
    assert sorted(set(gotcha)) == ["no", "yes"] and gotcha.count("yes") == 240
