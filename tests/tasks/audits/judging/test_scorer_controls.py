"""Test the controls of scorers with scorers of which the failures are known."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy.stats import binomtest

from hallmark.tasks.audits.audit_tables import CONTROL_SCORES
from hallmark.tasks.audits.judging.findings import build_finding, select_evidence
from hallmark.tasks.audits.judging.scorer_controls import (
    ScorerLimits,
    add_scorer_limits,
    build_scorer_control_findings,
    collect_scorer_limits,
    name_text_kind,
    remove_scorer_limits,
)
from hallmark.tasks.audits.scoring import ScoreConfig, score_control_texts
from hallmark.tasks.measures.scorer_controls import compose_control_texts
from hallmark.tasks.measures.scorers import Scorer, open_scorer
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS


class SimulatedScorer(Scorer):
    """Scores control texts by a function of (control text, its number)."""

    heads = ("toxicity",)

    def __init__(self, function, head="toxicity"):
        self.name, self.digest, self.function = "simulated", "0" * 64, function
        self.head = head
        if head != "toxicity":
            self.columns = self.heads = (head,)
        self.controls = {
            control.text: (number, control)
            for number, control in enumerate(compose_control_texts(head))
        }

    def _score_distinct_texts(self, texts):
        scores = np.full((len(texts), len(self.columns)), np.nan, np.float32)
        scores[:, self.columns.index(self.head)] = [
            self.function(*reversed(self.controls[text])) for text in texts
        ]
        return scores


def judge(function, head="toxicity"):
    """Return the control findings and the limits of a simulated scorer."""
    table = score_control_texts(SimulatedScorer(function, head)).table
    assert table.schema.equals(CONTROL_SCORES)
    findings = build_scorer_control_findings("toxicity", table)
    assert len({finding.finding for finding in findings}) == len(findings)
    for finding in findings:
        evidence = select_evidence(table, finding.evidence_filter)
        assert len(evidence) == finding.n + finding.missing
    limits = collect_scorer_limits(map(asdict, findings))
    return findings, limits.get("simulated (000000000000)")


def test_a_scorer_that_knows_the_truth_passes_all_controls():
    findings, limits = judge(lambda control, number: float(control.is_harmful))
    assert limits is None and {finding.verdict for finding in findings} == {"pass"}
    assert {finding.control_target for finding in findings} == {"scorer"}
    assert {finding.control for finding in findings} == {"positive", "negative"}


def test_a_scorer_that_is_blind_to_threats_is_said_not_to_detect_them():
    findings, limits = judge(
        lambda control, number: float(control.is_harmful and control.kind != "threats")
    )
    (failed,) = [finding for finding in findings if finding.verdict == "fail"]
    assert failed.slice == {"part": "must flag", "text_kind": "threats"}
    assert failed.value == 0 and failed.n == 60 and failed.clusters == 20
    assert limits.describe() == "often misses threats"


def judge_share(kind, flagged_pairs):
    """Judge a scorer that knows the truth, except that it flags some pairs of a kind."""
    findings, limits = judge(
        lambda control, number: float(
            control.pair < flagged_pairs
            if kind in (control.kind, f"mentions of {control.mentioned_group}")
            else control.is_harmful
        )
    )
    (finding,) = [
        finding
        for finding in findings
        if kind in (name_text_kind(finding.slice), finding.slice["text_kind"])
    ]
    return finding, limits


@pytest.mark.parametrize(
    ("kind", "flagged_pairs", "verdict", "lead"),
    [
        ("insults", 20, "pass", ""),
        ("insults", 18, "pass", ""),
        ("insults", 12, "not_shown", "has not been shown to detect"),
        ("insults", 8, "not_shown", "has not been shown to detect"),
        ("insults", 2, "fail", "often misses"),
        ("dialect", 0, "pass", ""),
        ("dialect", 1, "not_shown", "may too often flag"),
        ("dialect", 7, "not_shown", "may too often flag"),
        ("dialect", 12, "fail", "too often flags"),
        ("mentions of Jews", 1, "not_shown", "may too often flag"),
    ],
)
def test_a_verdict_on_a_kind_follows_from_the_whole_interval(kind, flagged_pairs, verdict, lead):
    """The exact interval of 20 pairs, whose texts agree, gives the same verdict."""
    finding, limits = judge_share(kind, flagged_pairs)
    assert finding.verdict == verdict
    exact = binomtest(flagged_pairs, 20).proportion_ci(method="exact")
    sides = [exact.low >= 0.5, exact.high < 0.5]
    if finding.control == "negative":
        sides = [exact.high <= 0.2, exact.low > 0.2]
    assert sides == [verdict == "pass", verdict == "fail"]
    assert (limits.describe() if limits else "") == (lead and f"{lead} {kind}")
    if verdict == "not_shown":
        assert limits.summarize() == "has not been shown to pass all of its tests"


def test_too_few_texts_are_said_to_be_too_few():
    """Even without a flagged text, the interval of few harmless texts contains the limit."""
    table = score_control_texts(SimulatedScorer(lambda control, number: 0.0)).table
    few = table.filter(pc.and_(pc.equal(table["text_kind"], "dialect"), pc.less(table["pair"], 8)))
    findings = build_scorer_control_findings("toxicity", few)
    assert [finding.verdict for finding in findings] == ["not_shown"]
    (limits,) = collect_scorer_limits(map(asdict, findings)).values()
    assert limits.describe() == "has too few control texts to be judged on dialect"


def test_the_summary_names_what_is_not_detected_and_not_the_rest():
    _, limits = judge(
        lambda control, number: float(
            control.kind in ("dialect", "insults")
            or (control.is_harmful and control.kind not in ("threats", "veiled hate"))
        )
    )
    assert limits.describe() == "often misses threats and veiled hate; it too often flags dialect"
    assert limits.summarize() == "often misses threats and veiled hate"


@pytest.mark.parametrize(
    ("limits", "sentences"),
    [
        ({"unscored": ["a"]}, ["The scorer X returns no valid scores for any kind of text."]),
        (
            {"unscored": ["a"], "details": {"a": " (3 of 60)"}, "undetected": ["b", "c"]},
            ["The scorer X returns no valid scores for a (3 of 60); it often misses b and c."],
        ),
        (
            {"flagged_too_often": ["b and c", "d"], "maybe_undetected": ["e", "f", "g"]},
            [
                "The scorer X too often flags b and c, and d.",
                "For 3 other kinds of text, the controls do not show whether it errs too often.",
            ],
        ),
        (
            {"maybe_flagged_too_often": ["b"], "unjudged": ["c"]},
            ["For 2 kinds of text, the controls do not show whether the scorer X errs too often."],
        ),
    ],
)
def test_limits_are_said_in_sentences(limits, sentences):
    parts_of_sentences = ScorerLimits(tested={"a"}, **limits).list_sentences("X")
    assert ["the controls".join(parts) for parts in parts_of_sentences] == sentences


def test_a_scorer_that_flags_one_group_is_said_to_flag_its_mentions():
    _, limits = judge(
        lambda control, number: float(control.is_harmful or control.mentioned_group == "Jews")
    )
    assert limits.describe() == "too often flags mentions of Jews"


@pytest.mark.parametrize("constant", [0.0, 0.5, 1.0])
def test_a_constant_scorer_fails_and_is_said_to_be_constant(constant):
    findings, limits = judge(lambda control, number: constant)
    assert all(
        finding.method.endswith(f"the scorer assigns the score {constant:g} to all control texts")
        for finding in findings
    )
    assert bool(limits.undetected) == (constant < 0.5)
    assert bool(limits.flagged_too_often) == (constant >= 0.5)
    assert {"threats", "veiled hate", "insults"} <= {*limits.undetected} or constant >= 0.5


@pytest.mark.parametrize("failure", ["nan", "error"])
def test_a_scorer_that_fails_on_one_kind_fails_only_its_controls(failure):
    def score(control, number):
        if control.kind == "dialect":
            if failure == "error":
                raise ValueError("quotes the text")
            return np.nan
        return float(control.is_harmful)

    findings, limits = judge(score)
    (failed,) = [finding for finding in findings if finding.verdict == "fail"]
    reason = "ValueError" if failure == "error" else "it returned NaN"
    assert failed.value is None and failed.missing == 60
    assert failed.method.startswith(
        f"not measured: no score for 60 of 60 texts: {reason}; "
    ) or failed.method.startswith(f"not measured: no score for 60 of 60 texts: {reason}")
    assert "quotes" not in failed.method
    assert limits.describe() == "returns no valid scores for dialect"


def test_a_few_missing_scores_do_not_fail_a_control_but_are_stated():
    findings, limits = judge(
        lambda control, number: (
            np.nan if control.kind == "dialect" and control.pair < 2 else float(control.is_harmful)
        )
    )
    (dialect,) = [finding for finding in findings if finding.slice["text_kind"] == "dialect"]
    assert limits is None and dialect.missing == 6 and dialect.n == 54
    assert "no score for 6 of 60 texts: it returned NaN" in dialect.method


def test_logits_are_no_scores():
    """Some lie between 0 and 1, but they are no probabilities either."""
    scorer = SimulatedScorer(lambda control, number: 8.0 * control.is_harmful - 4 + number % 5)
    scored = score_control_texts(scorer)
    assert not scored.are_valid and scored.table["score"].null_count == len(scored.table)
    findings = build_scorer_control_findings("toxicity", scored.table)
    assert {finding.verdict for finding in findings} == {"fail"}
    assert {finding.value for finding in findings} == {None}
    (limits,) = collect_scorer_limits(map(asdict, findings)).values()
    assert limits.describe() == "returns no valid scores for any kind of text"
    options = {"unit": "score", "method": "a mean", "n": 0, "scorer": findings[0].scorer}
    (mean,) = add_scorer_limits(
        [build_finding("toxicity", "mean", None, **options)], findings, scored.table
    )
    assert mean.method.startswith(
        "a mean; not measured: the scorer simulated (000000000000) was not used because it "
        "returned scores outside the range from 0 to 1, such as "
    )
    assert all(
        "it returned scores outside the range from 0 to 1, such as" in finding.method
        and ", which may be logits" in finding.method
        for finding in findings
    )


def test_sentiment_may_be_negative():
    findings, limits = judge(
        lambda control, number: -0.8 if control.is_harmful else 0.0, "sentiment"
    )
    assert limits is None
    assert all(finding.slice["scorer_head"] == "sentiment" for finding in findings)
    _, limits = judge(lambda control, number: -3.0 if control.is_harmful else 2.0, "sentiment")
    assert limits.describe() == "returns no valid scores for any kind of text"


def test_harmful_texts_are_masked_on_pages_whatever_their_score():
    table = score_control_texts(SimulatedScorer(lambda control, number: 0.0)).table
    assert {*table["assumed_toxicity"].filter(table["is_harmful"]).to_pylist()} == {1.0}
    assert table.schema.field("text").metadata[b"judged_by"] == b"assumed_toxicity"


def test_findings_name_the_limits_of_their_scorer_and_of_no_other():
    controls, _ = judge(
        lambda control, number: float(control.is_harmful and control.kind != "threats")
    )
    options = {"unit": "score", "method": "a mean", "n": 5}
    findings = [
        build_finding("toxicity", name, 0.5, scorer=scorer, **options)
        for name, scorer in (("own", "simulated (000000000000)"), ("other", "b (1)"), ("no", ""))
    ]
    findings.append(build_finding("toxicity", "none", None, scorer=controls[0].scorer, **options))
    scores = CONTROL_SCORES.empty_table()
    methods = [finding.method for finding in add_scorer_limits(findings, controls, scores)]
    assert methods == [
        "a mean; the scorer simulated (000000000000) often misses threats",
        "a mean",
        "a mean",
        "a mean",
    ]
    rows = [asdict(control) for control in controls]
    assert {remove_scorer_limits(method, rows) for method in methods} == {"a mean"}


def test_what_the_default_scorers_do_not_detect_is_known():
    """The documentation states it; see docs/scorers.md."""
    limits = []
    for config in ScoreConfig().all_scorers:
        table = score_control_texts(open_scorer(config)).table
        limits += collect_scorer_limits(
            map(asdict, build_scorer_control_findings("toxicity", table))
        ).values()
    toxicity, sentiment = limits
    assert toxicity.undetected == ["threats", "veiled hate"]
    assert "hostility towards groups" in toxicity.maybe_undetected
    assert toxicity.flagged_too_often == ["quotations and reports of abuse", "mild profanity"]
    assert "mentions of lesbian, gay and bisexual people" in toxicity.maybe_flagged_too_often
    assert sentiment.undetected == ["descriptions of bad events"]


def test_the_documentation_states_the_shares_of_the_default_scorers():
    text = (Path(__file__).parents[4] / "docs" / "scorers.md").read_text(encoding="utf-8")
    table_cells = {cell.strip() for line in text.splitlines() for cell in line.split("|")}
    pieces = {piece.strip() for cell in table_cells for piece in cell.split(";")}
    for config in ScoreConfig().all_scorers:
        table = score_control_texts(open_scorer(config)).table
        for finding in build_scorer_control_findings("toxicity", table):
            tags = finding.slice
            share = f"{finding.value:.0%}".replace("%", " %")
            shown = {"fail": f"**{share}**", "not_shown": f"*{share}*"}.get(finding.verdict, share)
            shown += f" ({100 * finding.low:.0f}–{100 * finding.high:.0f})"
            if "mentioned_group" not in tags:
                assert tags["text_kind"] in table_cells and shown in pieces, finding
            elif finding.verdict != "pass":
                assert f"{tags['mentioned_group']}: {shown}" in pieces, finding


def test_a_second_scorer_of_a_property_has_controls_of_its_own():
    tables = []
    for name in ("first", "second"):
        scorer = SimulatedScorer(lambda control, number: float(control.is_harmful))
        scorer.name = name
        tables.append(score_control_texts(scorer).table)
    findings = build_scorer_control_findings("toxicity", pa.concat_tables(tables))
    assert (
        len({finding.finding for finding in findings})
        == len(findings)
        == 2 * len(build_scorer_control_findings("toxicity", tables[0]))
    )
    assert {finding.slice.get("second_scorer") for finding in findings} == {
        None,
        "second (000000000000)",
    }


def test_heads_other_than_those_tested_have_no_controls():
    scorer = SimulatedScorer(lambda control, number: 0.0)
    scorer.heads = ("insult",)
    assert "insult" in TOXICITY_HEADS
    scored = score_control_texts(scorer)
    assert scored.are_valid and len(scored.table) == 0
