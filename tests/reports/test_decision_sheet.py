"""The first screen of a model card: status, risks, and what is not known, branch by branch."""

from dataclasses import replace

import pytest

from hallmark.reports.page.document import DecisionSheet, Link
from hallmark.reports.sections.audit_charts import select_drawn_findings
from hallmark.reports.sections.card_summary import (
    describe_measurement_limits,
    find_audit_coverage,
    rank_worst_finding_of_each_metric,
)
from hallmark.reports.sections.decision_sheet import (
    AuditCoverage,
    build_decision_sheet,
    build_risk_lines,
    describe_audit_result,
    describe_coverage,
    describe_finding,
    describe_finding_conclusion,
    describe_risk_order,
    describe_risks_without_rule,
    describe_rules_about_risk,
    describe_status,
    format_sample,
    select_headline_finding,
)
from hallmark.reports.sections.findings import Finding
from hallmark.reports.sections.missing_results import build_missing_results_section
from hallmark.tasks.audits.audit_descriptions import (
    RISKS,
    AuditDescription,
    ChartDescription,
    Headline,
)
from hallmark.tasks.audits.catalogue import METRICS_BY_AUDIT
from hallmark.tasks.audits.judging.discoveries import describe_conclusion, is_harmful
from hallmark.tasks.audits.judging.findings import AuditControl
from hallmark.tasks.audits.judging.measures import LOWER_BOUND_NOTE
from hallmark.tasks.audits.judging.policy_outcome import PolicyOutcome
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from tests.reports.conclusions import findings_of, text_of_parts, text_of_section

GAPS = AuditCoverage(failed={"bias": "it broke"}, without_data=["bold", "bbq"])
DECIDE = "The policy does not judge these gaps; a reviewer must decide whether they are acceptable."
COUNT = len(AUDIT_DESCRIPTIONS)
ALL = f"all {COUNT} audits produced a result"


@pytest.mark.parametrize(
    ("policy", "coverage", "failed", "expected"),
    [
        ({}, AuditCoverage(), [], ("Not judged", f"No acceptance policy is configured; {ALL}.")),
        (
            {},
            GAPS,
            ["Bias"],
            (
                "Not judged",
                f"No acceptance policy is configured; 3 of {COUNT} audits produced no result; "
                "controls failed in these audits: Bias.",
            ),
        ),
        (
            {"failed_rules": ("a",), "not_shown_rules": ("b",), "passed_rules": ("c",)},
            AuditCoverage(),
            [],
            ("Fail", f"1 of the policy's 3 rules failed; {ALL}."),
        ),
        (
            {"not_shown_rules": ("b",)},
            AuditCoverage(),
            [],
            ("Not shown", f"The policy's only rule could not be judged; {ALL}."),
        ),
        (
            {"passed_rules": ("c", "d")},
            AuditCoverage(skipped=["weat"]),
            [],
            (
                "Pass with gaps",
                f"Both rules in the policy passed; 1 of {COUNT} audits produced no result. "
                f"{DECIDE}",
            ),
        ),
        (
            {"passed_rules": ("c",)},
            AuditCoverage(inconclusive={"bias": "why", "weat": "why"}),
            [],
            ("Pass with gaps", f"The policy passed; 2 of {COUNT} produced no conclusion. {DECIDE}"),
        ),
        (
            {"passed_rules": ("c",)},
            AuditCoverage(),
            ["Bias"],
            (
                "Pass with gaps",
                f"The policy passed; controls failed in these audits: Bias. {DECIDE}",
            ),
        ),
        ({"passed_rules": ("c",)}, AuditCoverage(), [], ("Pass", f"The policy passed; {ALL}.")),
    ],
)
def test_the_status_is_the_worst_that_applies(policy, coverage, failed, expected):
    assert describe_status(PolicyOutcome(**policy), coverage, failed) == expected


def verdict_of(rule, audit, metric, verdict, **tags):
    return {"rule": rule, "audit": audit, "metric": metric, "slice": tags, "verdict": verdict}


def test_risks_without_a_rule_are_named(session):
    titles = [risk.title for risk in RISKS.values()]
    assert describe_risks_without_rule([]) == ""  # no policy
    said = describe_risks_without_rule(["toxicity", "of a later version"])
    others = ", ".join(title for title in titles if title != "Toxicity")
    assert said == f" The policy has no rules about these risks: {others}."
    audits = [*AUDIT_DESCRIPTIONS]
    assert "Bias" not in describe_risks_without_rule(audits)
    verdicts = [verdict_of("a", "bias", "found", "pass")]
    sheet = build_decision_sheet(
        findings_of(), PolicyOutcome(passed_rules=("a",)), AuditCoverage(), [], [], [], verdicts
    )
    assert " The policy has no rules about these risks: " in text_of_parts(sheet.explanation)


@pytest.mark.parametrize(
    ("rules", "look"),
    [
        ({}, "note"),
        ({"failed_rules": ("a",)}, "bad"),
        ({"not_shown_rules": ("a",)}, "bad"),
        ({"passed_rules": ("a",)}, "good"),
    ],
)
def test_only_a_pass_without_gaps_is_green(session, rules, look):
    sheet = build_decision_sheet(
        findings_of(), PolicyOutcome(**rules), AuditCoverage(), [], [("Owner", [])], []
    )
    assert isinstance(sheet, DecisionSheet) and sheet.look == look
    with_gaps = build_decision_sheet(findings_of(), PolicyOutcome(**rules), GAPS, [], [], [])
    assert with_gaps.look == ("note" if look == "good" else look)


def lines_of(coverage=None, **audits):
    """Return the lines of risks by title, as text."""
    findings = findings_of(**audits)
    coverage = coverage or find_audit_coverage(findings, {}, [])
    lines = build_risk_lines(findings, coverage)
    titles = [risk.title for risk in RISKS.values()]
    assert sorted(line.title for line in lines) == sorted(titles)
    states = ["found", "unknown", "worse", "not found", "not worse"]
    order = [(states.index(line.state), titles.index(line.title)) for line in lines]
    assert order == sorted(order)
    return {line.title: (line.state, text_of_parts(line.content)) for line in lines}


PAIRS = {
    "metric": "stereotype_preference",
    "low": 0.48,
    "value": 0.5,
    "high": 0.52,
    "p": 0.9,
    "n": 540,
    "null_value": 0.5,
    "worse_when": "up",
    "minimum_detectable_effect": 0.038,
}


def test_a_risk_without_harm_names_what_could_be_detected(session):
    said = lines_of(bias=[PAIRS])
    assert said["Bias against groups"] == (
        "not found",
        "The test does not show harm. It was not tested whether the model is too weak to show "
        "harm. The model prefers the stereotypical sentence in 50.0 % of "
        "the pairs (95 % interval 48.0 % to 52.0 %, n = 540 pairs); value expected with no "
        "effect: 50.0 %; detectable difference: 3.8 percentage points or more.",
    )


@pytest.mark.parametrize(
    ("low", "other_count", "is_explained"), [(0.51, 2, True), (0.49, 2, False), (0.51, 0, False)]
)
def test_an_interval_without_the_null_value_may_be_insignificant(
    session, low, other_count, is_explained
):
    """An interval allows for one test, a conclusion for all tests of the card."""
    row = PAIRS | {"value": 0.55, "low": low, "high": 0.59, "p": 0.04}
    others = [PAIRS | {"tags": {"category": f"{n}"}} for n in range(other_count)]
    state, text = lines_of(bias=[row, *others])["Bias against groups"]
    assert state == ("not found" if other_count else "found")
    explanation = "effect: 50.0 %; not significant after correction (q = 0.0600);"
    assert (explanation in text) == is_explained


def test_a_discovery_is_told_by_the_headline_of_its_audit(session):
    harm = PAIRS | {"value": 0.7, "low": 0.66, "high": 0.74, "p": 1e-9}
    other = harm | {"tags": {"category": "age"}, "value": 0.9, "low": 0.8, "high": 0.95, "p": 1e-20}
    state, text = lines_of(bias=[harm, other, PAIRS | {"tags": {"category": "sex"}}])[
        "Bias against groups"
    ]
    assert state == "found"
    assert text.startswith(
        "The model prefers the stereotypical sentence in 70.0 % of the pairs (95 % interval 66.0 %"
    )
    assert text.endswith(" 1 of the 2 other tests also shows harm.")


def test_a_discovery_of_an_audit_without_a_headline_is_the_one_with_the_smallest_q(session):
    row = PAIRS | {"metric": "effect_size_input", "unit": "standard deviations", "null_value": 0.0}
    weak = row | {"tags": {"test": "a"}, "value": 0.6, "low": 0.2, "high": 1.0, "p": 0.004}
    strong = row | {"tags": {"test": "b"}, "value": 0.9, "low": 0.5, "high": 1.3, "p": 1e-6}
    state, text = lines_of(weat=[weak, strong, weak | {"tags": {"test": "c"}}])[
        "Bias against groups"
    ]
    assert state == "found" and text.startswith("In the test “b”, the model's input embeddings ")
    assert "0.9000 standard deviations (95 % interval 0.5000 to 1.300" in text
    assert text.endswith("Both other tests also show harm.")


@pytest.mark.parametrize("order", [1, -1])
def test_of_discoveries_with_the_same_q_the_one_furthest_from_the_null_value_is_named(
    session, order
):
    row = PAIRS | {"metric": "effect_size_input", "unit": "standard deviations", "p": 1e-6}
    row |= {"null_value": 0.5, "worse_when": "away_from_null"}
    far = row | {"tags": {"test": "a"}, "value": 0.1, "low": 0.0, "high": 0.2}
    near = row | {"tags": {"test": "b"}, "value": 0.7, "low": 0.6, "high": 0.8}
    state, text = lines_of(weat=[far, near][::order])["Bias against groups"]
    assert state == "found" and text.startswith("In the test “a”, the model's input embeddings ")
    assert "0.1000 standard deviations" in text


def test_a_model_too_weak_for_an_audit_is_unknown_not_harmless(session):
    reason = "the model is too weak for this audit: x is 0"
    row = PAIRS | {"p": None, "inconclusive_reason": reason}
    state, text = lines_of(bias=[row])["Bias against groups"]
    assert state == "unknown" and f". No conclusion can be drawn, because {reason}." in text
    assert "detectable" not in text  # a model that is too weak shows no effect of any size


def test_a_headline_without_a_test_is_unknown_and_says_why(session):
    row = PAIRS | {"p": None, "null_value": None}
    state, text = lines_of(bias=[row])["Bias against groups"]
    assert state == "unknown"
    assert (
        ". No conclusion can be drawn, because there is no value to compare the finding with."
        in text
    )
    state, text = lines_of(bias=[PAIRS | {"p": None, "worse_when": ""}])["Bias against groups"]
    assert state == "unknown" and text.endswith(
        ". No conclusion can be drawn, because the difference from the value expected with no "
        "effect was not tested."
    )


def test_a_risk_that_no_audit_measured_says_why(session):
    coverage = AuditCoverage(
        failed={"bias": "it broke"},
        skipped=["weat"],
        empty={"counterfactual": "no text"},
        without_data=["bbq"],
        without_corpus=["amplification"],
    )
    state, text = lines_of(coverage)["Bias against groups"]
    assert state == "unknown"
    assert text == (
        "Not measured: Bias failed; Comparison of text about groups measured nothing; "
        "Associations between words (WEAT) was skipped by the user; Stereotyped answers (BBQ) "
        "received no data; Amplification needs the training corpus, which is not known."
    )
    assert lines_of(coverage)["Personal data"] == (
        "unknown",
        "Not measured: no audit covers this risk.",
    )
    assert text_of_parts(describe_coverage(coverage, findings_of())) == (
        "Failed: Bias. Skipped by the user: Associations between words (WEAT). Measured nothing: "
        "Comparison of text about groups. Not run, because no data was provided: Stereotyped "
        "answers (BBQ). Not run, because the training corpus is not known: Amplification. Details"
    )
    *text, link = describe_coverage(AuditCoverage(), findings_of())
    assert text == ["Every audit produced a result. "] and link == Link("Details", "#not-measured")


HURTFUL = {"metric": "hurtful_share", "value": 0.1, "low": 0.05, "high": 0.2, "n": 40, "p": None}


def test_an_audit_whose_figures_cannot_be_tested_produces_no_conclusion(session):
    coverage = find_audit_coverage(findings_of(honest=[HURTFUL], bias=[PAIRS]), {}, [])
    assert coverage.untested == {"honest": "there is no value to compare the finding with"}
    assert coverage.inconclusive == {}
    text = text_of_parts(describe_coverage(coverage, findings_of(honest=[HURTFUL])))
    reason = "No conclusion, because nothing could be tested: Hurtful completions (HONEST)."
    assert text.endswith(f"{reason} Details")
    _, status = describe_status(PolicyOutcome(), coverage, [])
    assert "; 1 of 17 produced no conclusion" in status


@pytest.mark.parametrize("has_tests", [True, False])
def test_a_risk_is_described_by_an_audit_with_a_conclusion(session, has_tests):
    weak = PAIRS | {"inconclusive_reason": "the model is too weak for this audit"}
    tested = {"metric": "effect_size_input", "value": 0.2, "null_value": 0.0, "worse_when": "up"}
    tested |= {"low": -0.1, "high": 0.5, "p": 0.3, "n": 16}
    others = {"weat": [tested]} if has_tests else {}
    _, text = lines_of(bias=[weak], honest=[HURTFUL], **others)["Bias against groups"]
    assert "hurtful" not in text
    assert ("No conclusion can be drawn" in text) == (not has_tests)


def test_an_audit_that_asks_the_model_nothing_is_judged_nevertheless(session):
    weak = AuditCoverage(inconclusive={"bias": "why", "winobias": "why"})
    text = (
        "No conclusion, because the model is too weak: Bias, Occupations and pronouns (WinoBias). "
    )
    judged = (
        "Associations between words (WEAT) is still judged, because the audit compares embeddings "
        "and does not prompt the model. "
    )
    association = {"metric": "effect_size_input", "value": 0.2, "null_value": 0.0}
    with_weat = findings_of(bias=[PAIRS], weat=[association])
    assert text_of_parts(describe_coverage(weak, with_weat)) == f"{text}{judged}Details"
    assert text_of_parts(describe_coverage(weak, findings_of(bias=[PAIRS]))) == f"{text}Details"
    strong = describe_coverage(AuditCoverage(), with_weat)
    assert text_of_parts(strong) == "Every audit produced a result. Details"
    assert "does not prompt the model" in AUDIT_DESCRIPTIONS["weat"].limits


@pytest.mark.parametrize(
    ("state", "verdicts", "expected"),
    [
        ("unknown", [], ""),
        ("unknown", [("a", "pass")], " Rule a passed, but it limits only “Found, age”."),
        ("found", [("a", "pass")], " Rule a passed, but it limits only “Found, age”."),
        ("worse", [("a", "pass")], " Rule a passed, but it limits only “Found, age”."),
        ("unknown", [("a", "fail"), ("b", "not_shown")], ""),
        ("not found", [("a", "pass"), ("b", "not_shown")], ""),
        ("not found", [("a", "fail")], " Rule a failed, but it limits only “Found, age”."),
        ("not worse", [("a", "fail")], " Rule a failed, but it limits only “Found, age”."),
        (
            "unknown",
            [(name, "pass") for name in "abc"],
            " Rules a, b, c passed, but each limits only a single figure.",
        ),
        (
            "not found",
            [(name, "fail") for name in "abcde"],
            " Rules a, b, c and 2 more failed, but each limits only a single figure.",
        ),
    ],
)
def test_a_rule_that_seems_to_contradict_a_risk_says_what_it_tests(
    session, state, verdicts, expected
):
    rows = [
        verdict_of(rule, "bias", "found", verdict, category="age") for rule, verdict in verdicts
    ]
    rows += [verdict_of("other risk", "toxicity", "found", "pass")]
    rows += [verdict_of("later version", "rudeness", "found", "pass")]
    findings = findings_of(bias=[PAIRS | {"metric": "found", "tags": {"category": "age"}}])
    content = describe_rules_about_risk("bias", state, rows, findings)
    assert text_of_parts(content) == expected
    links = [part.href for part in content if isinstance(part, Link)]
    assert links == ["#main-results"] * bool(expected)


def test_the_line_of_a_risk_names_the_rule_that_passed_nevertheless(session):
    harm = PAIRS | {"value": 0.7, "low": 0.66, "high": 0.74, "p": 1e-9}
    findings = findings_of(bias=[harm])
    verdicts = [verdict_of("fair", "bias", "stereotype_preference", "pass")]
    lines = build_risk_lines(findings, find_audit_coverage(findings, {}, []), verdicts)
    text = text_of_parts(next(line for line in lines if line.title.startswith("Bias")).content)
    assert text.endswith(" Rule fair passed, but it limits only “Stereotype preference”.")


VERBATIM = {
    "metric": "verbatim_share",
    "value": 0.2,
    "low": 0.15,
    "high": 0.26,
    "null_value": 0.0,
    "worse_when": "up",
}


@pytest.mark.parametrize(
    ("low", "state"), [(0.015, "found"), (0.0, "not found"), (None, "unknown")]
)
def test_planted_text_is_no_finding_about_the_model(session, low, state):
    """All texts together are beyond the null value, because some repeat planted text."""
    unplanted = VERBATIM | {"value": 0.046, "low": low, "high": None if low is None else 0.1}
    complete = VERBATIM | {"is_variant": True, "tags": {"part": "planted text included"}}
    said_state, text = lines_of(extraction_attack=[unplanted, complete])["Memorised training text"]
    assert said_state == state and "20.0 %" not in text and "4.6 %" in text
    findings = findings_of(extraction_attack=[unplanted, complete])
    rows = findings.by_audit["extraction_attack"]
    (drawn,) = select_drawn_findings(rows, ChartDescription("verbatim_share", "share", ""))
    assert drawn.row["slice"] == {} and is_harmful(drawn.row) == (state == "found")
    conclusions = [describe_conclusion(finding.row) for finding in rows]
    assert conclusions == ["harm found" if state == "found" else "", "not ranked"]
    ranked = rank_worst_finding_of_each_metric(findings)
    assert [finding.row["value"] for finding in ranked] == [0.046] * (state == "found")
    alone = lines_of(extraction_attack=[VERBATIM])["Memorised training text"]
    assert alone[0] == "found" and "20.0 %" in alone[1]


PASSAGES = {"kind": "passage", "prefix_tokens": "8"}


def test_planted_secrets_are_shown_as_sensitivity(session):
    planted = {
        "metric": "extractable",
        "null_value": 0.0,
        "worse_when": "up",
        "is_variant": True,
        "low": 0.5,
        "high": 1.0,
    }
    rows = [
        planted | {"value": value, "tags": PASSAGES | {"copies": str(copies)}}
        for value, copies in ((0.0, 4), (0.9, 64), (0.1, 16))
    ]
    rows += [planted | {"value": 0.75, "tags": {"kind": "record", "copies": "64"}}]
    said = lines_of(extraction=rows)
    assert said["Memorised training text"][0] == "unknown"
    assert (
        "Test sensitivity (planted text, not a finding): given 8 tokens of a passage planted 64 "
        "times, the model writes the next 32 tokens word for word for 90.0 % of the passages (95 % "
        "interval 50.0 % to 100.0 %, n = 9 excerpts)."
    ) in said["Memorised training text"][1]
    assert said["Personal data"] == (
        "unknown",
        "The audits test this risk only with planted text. Test "
        "sensitivity (planted text, not a finding): given the preceding text, the model writes the "
        "personal data of 75.0 % of the invented records planted 64 times (95 % interval 50.0 % to "
        "100.0 %, n = 9 records).",
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "state"),
    [
        (0.08, 0.04, 0.13, "worse"),
        (-0.5, -0.6, -0.4, "not worse"),
        (0.01, -0.02, 0.04, "not worse"),
    ],
)
def test_capability_is_judged_against_the_best_baseline(session, value, low, high, state):
    row = {"metric": "bits_per_byte_difference", "unit": "bits", "null_value": 0.0}
    row |= {"worse_when": "up", "value": value, "low": low, "high": high}
    weaker = row | {"value": -0.9, "low": -1.0, "high": -0.8, "tags": {"baseline": "bigram"}}
    said_state, text = lines_of(capability=[weaker, row | {"tags": {"baseline": "fivegram"}}])[
        "Capability"
    ]
    assert said_state == state
    assert " bits more for each byte of held-out text than the 5-gram model (95 %" in text
    assert ("Neither of the 2 tests shows that the model is worse than a base" in text) == (low < 0)
    assert "; a value of 0 would mean that the two are equal" in text and "harm" not in text


def test_several_baselines_that_are_better_are_counted(session):
    row = {"metric": "bits_per_byte_difference", "unit": "bits", "null_value": 0.0}
    row |= {"worse_when": "up", "value": 0.5, "low": 0.4, "high": 0.6}
    rows = [row | {"tags": {"baseline": name}} for name in ("bigram", "recurrent")]
    state, text = lines_of(capability=rows)["Capability"]
    assert state == "worse"
    assert " than the bigram model (" in text or " than the LSTM model (" in text
    assert text.endswith(" The other test also shows that the model is worse than a baseline.")
    better = rows[1] | {"value": -0.5, "low": -0.6, "high": -0.4}
    _, text = lines_of(capability=[rows[0], better])["Capability"]
    assert text.endswith(" The other test does not show that the model is worse than a baseline.")


@pytest.mark.parametrize(
    ("metric", "embeddings"),
    [
        ("effect_size_input", "input embeddings"),
        ("effect_size_contextual", "embeddings of words in sentences"),
    ],
)
def test_an_association_between_words_is_said_with_its_direction(session, metric, embeddings):
    row = {"metric": metric, "unit": "standard deviations", "null_value": 0.0, "worse_when": "up"}
    row |= {"value": 1.1, "low": 0.6, "high": 1.4, "tags": {"test": "cats and dogs, a and b"}}
    state, text = lines_of(weat=[row])["Bias against groups"]
    assert state == "found" and text.startswith(
        f"In the test “cats and dogs, a and b”, the model's {embeddings} associate the first "
        "group with the first words and the second group with the second words; the effect size "
        "(at most about 2) is 1.100 standard deviations (95 % interval "
    )


@pytest.mark.parametrize(
    ("other_values", "said"),
    [
        ([], "standard deviations or more."),
        ([0.1], " The other test does not show harm."),
        ([0.9], " The other test also shows harm."),
        ([0.1, 0.1], " Neither of the 2 other tests shows harm."),
        ([0.9, 0.1], " 1 of the 2 other tests also shows harm."),
        ([0.9, 0.8], " Both other tests also show harm."),
        (
            [-0.9],
            " The other test does not show harm. Effect in the opposite direction: test 1, "
            "−0.9000.",
        ),
        (
            [-0.9, -0.8, 0.1],
            " None of the 3 other tests shows harm. Effect in the opposite direction in 2 other "
            "parts, the strongest: test 1, −0.9000.",
        ),
    ],
)
def test_a_discovery_is_counted_among_the_tests(session, other_values, said):
    row = {"metric": "effect_size_input", "unit": "standard deviations", "null_value": 0.0}
    row |= {"worse_when": "up", "minimum_detectable_effect": 0.3}
    rows = [
        row | {"value": v, "low": v - 0.2, "high": v + 0.2, "tags": {"test": f"test {number}"}}
        for number, v in enumerate([1.1, *other_values])
    ]
    state, text = lines_of(weat=rows)["Bias against groups"]
    assert state == "found" and text.endswith(said)
    assert ("opposite" in text) == ("opposite" in said)


def test_a_named_null_value_and_a_unit_without_a_name(session):
    row = {"metric": "auc", "unit": "probability", "null_value": 0.5, "worse_when": "up", "p": 0.9}
    row |= {"tags": {"kind": "document", "score": "loss"}, "minimum_detectable_effect": 0.08}
    _, text = lines_of(membership=[row | {"value": 0.53, "low": 0.47, "high": 0.59}])["Membership"]
    assert (
        "with an AUC (0.5 is guessing, 1 is perfect) of 0.5300 (95 % "
        "interval 0.4700 to 0.5900, n = 9 documents); detectable difference: 0.0800 or more."
    ) in text
    assert "probability" not in text and "expected" not in text


@pytest.mark.parametrize(
    ("value", "p", "said"),
    [
        (0.4, 0.4, "0.3000, so the model's value is 0.1000 higher (not significant, q = 0.2000)."),
        (0.4, 0.01, "0.3000, so the model's value is 0.1000 higher (significant, q = 0.0050)."),
        (0.4, None, "0.3000, so the model's value is 0.1000 higher (significance not tested)."),
        (0.1, 0.4, "0.3000, so the model's value is 0.2000 lower."),
        (0.3, 0.4, "0.3000, the same."),
    ],
)
def test_the_baseline_is_named_with_the_difference_from_it(session, value, p, said):
    row = {"metric": "expected_maximum_toxicity", "unit": "score", "null_value": 0.3, "p": p}
    row |= {"null_name": "held-out text", "worse_when": "up", "value": value}
    row |= {"tags": {"prompt_subset": "prompted", "draw_count": "25"}}
    _, text = lines_of(toxicity=[row])["Toxicity"]
    assert (
        "n a scale from 0 to 1, the most toxic of up to 25 continuations of a prompt scores "
        f"{value:.4f} on average (n = 9 prompts); baseline (held-out text): {said}"
    ) in text


def prompted_row(subset, value, null, **changes):
    row = {"metric": "expected_maximum_toxicity", "unit": "score", "p": 0.4, "worse_when": "up"}
    row |= {"null_name": "held-out text", "value": value, "null_value": null}
    return row | {"tags": {"prompt_subset": subset, "draw_count": "25"}} | changes


AFTER_PROMPTS, WITHOUT_PROMPT = (
    "On a scale from 0 to 1, the most toxic of up to 25 continuations of a prompt scores ",
    "On a scale from 0 to 1, the most toxic of up to 25 texts without a prompt scores ",
)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [prompted_row("prompted", 0.2, 0.4), prompted_row("unprompted", 0.3, 0.2)],
            f"{WITHOUT_PROMPT}0.3000 on average (n = 9 groups of texts); baseline (held-out text): "
            "0.2000, so the model's value is 0.1000 higher (not significant, q = 0.4000). After "
            "prompts: "
            "0.2000 (n = 9 prompts); baseline: 0.4000, so the model's value is 0.2000 lower.",
        ),
        (
            [prompted_row("prompted", 0.5, 0.2), prompted_row("unprompted", 0.1, 0.2)],
            f"{AFTER_PROMPTS}0.5000 on average (n = 9 prompts); baseline (held-out text): 0.2000, "
            "so the model's value is 0.3000 higher (not significant, q = 0.4000). Without a "
            "prompt: "
            "0.1000 (n = 9 groups of texts); baseline: 0.2000, so the model's value is 0.1000 "
            "lower.",
        ),
        (
            [prompted_row("prompted", 0.2, 0.4)],
            f"{AFTER_PROMPTS}0.2000 on average (n = 9 prompts); baseline (held-out text): 0.4000, "
            "so the model's value is 0.2000 lower.",
        ),
        (
            [
                prompted_row("prompted", 0.2, 0.4),
                prompted_row("unprompted", 0.3, None, null_name="", p=None),
            ],
            "Without a prompt: 0.3000 (n = 9 groups of texts).",
        ),
        (
            [prompted_row("prompted", 0.2, 0.4), prompted_row("unprompted", 0.7, 0.2, p=0.001)],
            f"{WITHOUT_PROMPT}0.7000 on average (n = 9 groups of texts); baseline (held-out text): "
            "0.2000, so the model's value is 0.5000 higher (significant, q = 0.0010). After "
            "prompts: "
            "0.2000 (n = 9 prompts); baseline: 0.4000, so the model's value is 0.2000 lower. "
            "The other "
            "test does not show harm.",
        ),
    ],
)
def test_both_halves_of_an_answer_are_named_and_the_worse_comes_first(session, rows, said):
    _, text = lines_of(toxicity=rows)["Toxicity"]
    assert said in text
    answer = text_of_parts(describe_audit_result("toxicity", findings_of(toxicity=rows)).content)
    assert said in answer
    assert "opposite" not in text


def score_row(score, value, **changes):
    row = {"metric": "auc", "unit": "probability", "null_value": 0.5, "worse_when": "up", "p": 0.9}
    row |= {"value": value, "tags": {"kind": "document", "score": score}}
    return row | {"is_variant": score != "loss"} | changes


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], "to 0.5300, n = 9 documents); not "),
        (
            [score_row("min_k", 0.53), score_row("reference_ratio", None)],
            "; loss was chosen in advance from 2 scores; the strongest score yields 0.5300 (not "
            "significant).",
        ),
        (
            [score_row("min_k", 0.53, p=None)],
            "; loss was chosen in advance from 2 scores; the strongest score yields 0.5300 (not "
            "tested).",
        ),
        (
            [score_row("min_k", 0.2, p=1e-6)],  # significant, but in the harmless direction
            "; loss, the strongest of 2 scores, was chosen in advance.",
        ),
        (
            [score_row("min_k", 0.51)],
            "; loss, the strongest of 2 scores, was chosen in advance.",
        ),
        (
            [score_row("min_k", 0.9, tags={"kind": "passage", "score": "min_k"})],
            "to 0.5300, n = 9 documents); not ",
        ),
    ],
)
def test_a_score_that_was_chosen_in_advance_stands_next_to_the_strongest(session, others, said):
    row = score_row("loss", 0.52, low=0.51, high=0.53)
    state, text = lines_of(membership=[row, *others])["Membership"]
    assert state == "not found" and said in text
    assert ("chosen" in text) == ("chosen" in said)
    result = describe_audit_result("membership", findings_of(membership=[row, *others]))
    assert result.state == "not found" and said in text_of_parts(result.content)


@pytest.mark.parametrize(
    ("loss_p", "state", "chosen"),
    [
        (
            0.9,
            "unknown",
            "; loss was chosen in advance from 3 scores. Unknown, because another score ",
        ),
        (1e-6, "found", " from 3 scores; the strongest score yields 0.7300 (significant)."),
    ],
)
def test_no_conclusion_follows_if_a_score_that_was_not_chosen_is_significant(
    session, loss_p, state, chosen
):
    rows = [
        score_row("loss", 0.64, low=0.52, high=0.75, p=loss_p),
        score_row("min_k", 0.73, p=1e-4),
        score_row("zlib_ratio", 0.6, p=0.2),
    ]
    said_state, text = lines_of(membership=rows)["Membership"]
    findings = findings_of(membership=rows)
    result = describe_audit_result("membership", findings)
    brief = describe_audit_result("membership", findings, is_brief=True)
    assert said_state == result.state == brief.state == state
    reason = (
        " Unknown, because another score is significant (least likely tokens (Min-K): 0.7300, "
        "p (Holm) = 3.000e−04)."
    )
    for answer in (text, text_of_parts(result.content)):
        assert chosen in answer and (reason in answer) == (state == "unknown")
    conclusions = {
        finding.row["slice"]["score"]: describe_finding_conclusion(finding, findings)
        for finding in findings.by_audit["membership"]
    }
    assert conclusions == {
        "loss": {"unknown": "no conclusion", "found": "harm found"}[state],
        "min_k": "not ranked",
        "zlib_ratio": "not ranked",
    }
    short = text_of_parts(brief.content)
    assert (reason in short) == (state == "unknown")
    assert ("chosen" in short) == (state == "found")
    coverage = find_audit_coverage(findings, {}, [])
    assert coverage.contradicted == ["membership"] * (state == "unknown")
    _, status = describe_status(PolicyOutcome(), coverage, [])
    assert ("1 of 17 produced no conclusion" in status) == (state == "unknown")
    summary = text_of_parts(describe_coverage(coverage, findings))
    list_text = text_of_section(build_missing_results_section(findings, coverage))
    for said in (summary, list_text):
        assert ("Membership inference" in said) == (state == "unknown")
        assert ("another score is significant" in said) == (state == "unknown")


PLANTED_PASSAGES = score_row(
    "loss",
    0.9,
    low=0.69,
    high=0.97,
    p=0.007,
    is_variant=True,
    tags={"kind": "passage", "score": "loss"},
)


@pytest.mark.parametrize(
    ("low", "state", "end"),
    [
        (0.69, "not found", ""),
        (0.49, "unknown", " Unknown, because the audits do not detect this planted text."),
    ],
)
def test_planted_passages_show_whether_membership_can_be_detected(session, low, state, end):
    planted = PLANTED_PASSAGES | {"low": low}
    said_state, text = lines_of(membership=[score_row("loss", 0.52), planted])["Membership"]
    assert said_state == state and "too weak" not in text
    assert text.endswith(
        ". Test sensitivity (planted text, not a finding): the AUC for planted passages is 0.9000 "
        f"(95 % interval {low:.4f} to 0.9700, n = 9 passages).{end}"
    )


def test_copies_are_compared_with_text_that_the_model_has_not_read(session):
    row = {"metric": "extractable", "null_value": 0.0, "worse_when": "up", "value": 0.0}
    row |= {"low": 0.0, "high": 0.09, "tags": {"kind": "train", "prefix_tokens": "32"}}
    unread = row | {"value": 0.02, "tags": {"kind": "holdout", "prefix_tokens": "32"}}
    unread |= {"is_variant": True, "high": 0.1}
    _, text = lines_of(extraction=[row, unread])["Memorised training text"]
    assert (
        "for 0.0 % of the texts (95 % interval 0.0 % to 9.0 %, n = 9 excerpts); for unread "
        "text: 2.0 % (95 % interval 0.0 % to 10.0 %, n = 9 excerpts)."
    ) in text
    for rows in ([row], [row, unread | {"value": None}]):
        _, text = lines_of(extraction=rows)["Memorised training text"]
        assert "n = 9 excerpts); lowest possible value: 0.0 %." in text
        assert "expected" not in text


IDENTIFIERS = {"metric": "detected_identifiers", "unit": "identifiers", "n": 180}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [
                IDENTIFIERS | {"value": 4, "tags": {"part": "EMAIL"}},
                IDENTIFIERS | {"value": 1, "tags": {"part": "PHONE"}},
            ],
            " Detectors find email addresses (4), telephone numbers (1) in 180 generated texts; "
            "planted identifiers are not counted; the others may be invented or copied (not "
            "tested).",
        ),
        (
            [IDENTIFIERS | {"value": 0}],
            " Detectors find no personal identifiers, apart from planted ones, in 180 generated "
            "texts.",
        ),
        ([IDENTIFIERS | {"value": None}], ""),
        ([], ""),
    ],
)
def test_detected_personal_data_is_counted_on_the_first_screen(session, rows, said):
    state, text = lines_of(extraction_attack=[VERBATIM, *rows])["Personal data"]
    assert state == "unknown" and text == f"Not measured: no audit covers this risk.{said}"


def test_the_count_of_texts_without_personal_data_links_to_the_page_that_shows_it(session):
    findings = findings_of(extraction_attack=[VERBATIM, IDENTIFIERS | {"value": 0}])
    lines = {line.title: line for line in build_risk_lines(findings, AuditCoverage())}
    link = Link("180 generated texts", "audit-extraction-attack.html")
    assert link in lines["Personal data"].content


def test_the_order_of_severity_is_defined_where_the_first_screen_links_to():
    order = describe_risk_order()
    assert "harm found, then unknown, then worse than the baseline" in order
    positions = [order.index(risk.title) for risk in RISKS.values()]
    assert positions == sorted(positions)


def test_the_capability_of_a_model_without_harm_is_tested_or_said_to_be_untested(session):
    untested = "It was not tested whether the model is too weak to show harm."
    control = {"metric": "well_formed_preference", "value": 0.9, "control": "positive"}
    control |= {"control_target": "model", "passed": True, "verdict": "pass"}
    planted = {"metric": "strength_by_trait_share", "unit": "nats", "value": 3.6, "low": 0.2}
    planted |= {"high": 7.0, "null_value": 0.0}
    assert untested in lines_of(bias=[PAIRS])["Bias against groups"][1]
    for audits in (
        {"bias": [PAIRS, control]},
        {"bias": [PAIRS], "associations": [planted]},
        {"weat": [PAIRS | {"metric": "effect_size_input"}]},
        {"bias": [PAIRS | {"value": 0.7, "low": 0.66, "high": 0.74, "p": 1e-9}]},
    ):
        assert untested not in lines_of(**audits)["Bias against groups"][1]


@pytest.mark.parametrize(
    ("n", "unit", "said"),
    [
        (1, "prompts", "n = 1 prompt"),
        (1, "groups of texts", "n = 1 group of texts"),
        (2500, "gendered mentions", "n = 2,500 gendered mentions"),
        (9, "", "n = 9"),
    ],
)
def test_n_has_its_unit(n, unit, said):
    assert format_sample(n, unit) == said


def test_every_audit_says_what_n_counts():
    for name, description in AUDIT_DESCRIPTIONS.items():
        assert description.sample_unit.endswith("s") or " of " in description.sample_unit, name
        assert description.sample_units.keys() <= METRICS_BY_AUDIT[name].keys(), name


def test_the_number_of_tokens_that_count_as_a_copy_comes_from_the_settings(session):
    _, text = lines_of(extraction_attack=[VERBATIM])["Memorised training text"]
    assert text.startswith(
        "20.0 % of the texts that the model writes without a prompt, or after unseen text, contain "
        "at least 16 consecutive tokens of training text (95 % interval 15.0 % to 26.0 %, n = 9 "
        "texts); some of the repeated text may be stock phrases (not measured)."
    )
    zero = {"value": 0.0, "low": 0.0, "high": 0.1, "p": 1.0}
    _, text = lines_of(extraction_attack=[VERBATIM | zero])["Memorised training text"]
    assert "(95 % interval 0.0 % to 10.0 %, n = 9 texts)" in text and "stock phrases" not in text


def test_a_discovery_in_one_part_names_the_part(session):
    harm = PAIRS | {"value": 0.7, "low": 0.66, "high": 0.74, "p": 1e-9, "tags": {"category": "age"}}
    _, text = lines_of(bias=[PAIRS, harm])["Bias against groups"]
    assert text.startswith("Age: the model prefers the stereotypical sentence in 70.0 % of the ")


def test_a_discovery_has_the_words_that_its_audit_declares(session):
    row = {"metric": "precision", "value": 0.6, "low": 0.4, "high": 0.7, "null_value": 0.2}
    row |= {"worse_when": "up", "p": 1e-6}
    _, text = lines_of(extraction_attack=[row | {"tags": {"score": "zlib_ratio"}}])[
        "Memorised training text"
    ]
    assert text == (
        "Of the texts selected by a score of the model (log-likelihood divided by compressed "
        "size) to find training text, 60.0 % contain at least 16 consecutive tokens of training "
        "text (95 % interval 40.0 % to 70.0 %, n = 9 texts); value expected with no effect: "
        "20.0 %."
    )
    _, text = lines_of(extraction_attack=[row | {"metric": "other"}])["Memorised training text"]
    assert text.startswith("Training text in generated text, Other: 60.0 % (95 % interval 40.0 %")


@pytest.mark.parametrize("inconclusive", ["", "the model is too weak for this audit: x is 0"])
def test_an_audit_of_planted_text_alone_says_that_it_is_no_finding(session, inconclusive):
    row = {"metric": "strength_by_trait_share", "unit": "nats", "value": 3.6, "low": 0.2}
    row |= {"high": 7.0, "null_value": 0.0, "inconclusive_reason": inconclusive}
    strength = {"metric": "association_strength", "value": 0.5}
    findings = findings_of(associations=[strength, row])
    line = describe_audit_result("associations", findings)
    assert line.state == "unknown"
    assert text_of_parts(line.content) == (
        "Test sensitivity (planted text, not a finding): the model's preference for a planted "
        "association increases by 3.600 nats (log-odds) per 100 percentage points of planted share "
        "(95 % interval 0.2000 to 7.000, n = 9 sentences); value expected with no effect: "
        f"0.000{inconclusive and '; no conclusion: the model is too weak for this audit'}."
    )


def test_the_largest_effect_comes_with_the_definition_of_its_metric(session):
    row = {"metric": "effect_size_input", "unit": "standard deviations", "null_value": 0.0}
    row |= {"value": 0.7, "low": -0.2, "high": 1.3, "p": 0.3, "tags": {"test": "trades, men"}}
    findings = findings_of(weat=[row | {"worse_when": "away_from_null"}])
    line = describe_audit_result("weat", findings)
    brief = describe_audit_result("weat", findings, is_brief=True)
    assert text_of_parts(brief.content).endswith("n = 9 words); value expected with no effect: 0.")
    assert text_of_parts(line.content) == (
        "The test does not show harm. Result: Effect size input (trades, men): 0.7000 "
        "standard deviations (95 % interval −0.2000 to 1.300, n = 9 words); value expected with no "
        "effect: 0. Effect size input: strength of the association between two pairs of word "
        "lists in the input embeddings, in standard deviations; 0 means no association, and the "
        "maximum is about 2."
    )


@pytest.mark.parametrize(
    ("low", "exposure_low", "limit"),
    [
        (0.0, None, "do not detect this planted text"),
        (0.0, -1.0, "do not detect this planted text"),
        (0.0, 7.0, "detect only part of this planted text"),
        (0.02, -1.0, "detect only part of this planted text"),
        (0.02, 7.0, ""),
        (0.02, None, ""),
        (None, None, ""),
    ],
)
def test_no_conclusion_follows_where_planted_text_is_not_detected(
    session, low, exposure_low, limit
):
    planted = {"metric": "extractable", "null_value": 0.0, "worse_when": "up", "is_variant": True}
    planted |= {"tags": {"kind": "passage", "copies": "64"}, "value": 0.1, "low": low}
    planted |= {"high": None if low is None else 0.4}
    exposure = {"metric": "exposure_difference", "null_value": 0.0, "unit": "bits", "value": 8.0}
    exposure |= {"tags": {"copies": "64-0"}, "low": exposure_low, "high": 9.0, "is_variant": True}
    verbatim = VERBATIM | {"value": 0.0, "low": 0.0, "high": 0.02}
    extraction = [planted] if exposure_low is None else [planted, exposure]
    state, text = lines_of(extraction_attack=[verbatim], extraction=extraction)[
        "Memorised training text"
    ]
    assert state == ("unknown" if limit else "not found")
    assert text.endswith(f" Unknown, because the audits {limit}.") == bool(limit)
    assert text.count("Test sensitivity") == 1
    said_exposure = (
        "; the exposure of planted secrets (copies: 64 compared with 0) is 8.000 bits higher ("
    )
    assert (said_exposure in text) == (exposure_low is not None)


@pytest.mark.parametrize("is_lower_bound", [True, False])
def test_a_lower_bound_is_stated_as_one(session, is_lower_bound):
    bound_note = f"; {LOWER_BOUND_NOTE}, because 3 of 4 secrets rank above all references"
    exposure = {"metric": "exposure_difference", "null_value": 0.0, "unit": "bits", "value": 8.0}
    exposure |= {"tags": {"copies": "64-0"}, "low": 7.0, "high": 9.0, "is_variant": True}
    exposure |= {"method": "log2 |R| - log2 rank" + bound_note * is_lower_bound}
    verbatim = VERBATIM | {"value": 0.0, "low": 0.0, "high": 0.02}
    _, text = lines_of(extraction_attack=[verbatim], extraction=[exposure])[
        "Memorised training text"
    ]
    amount = "at least 8.000 bits" if is_lower_bound else "8.000 bits"
    assert f"(copies: 64 compared with 0) is {amount} higher" in text


def test_the_headline_of_an_audit_is_its_most_general_and_largest_case(session):
    rows = [
        PAIRS | {"metric": "m", "value": count / 100, "tags": tags | {"draw_count": str(count)}}
        for count in (1, 25, 5)
        for tags in ({"kind": "a"}, {"kind": "b"})
    ]
    findings = findings_of(bias=rows).by_audit["bias"]
    selected = select_headline_finding(Headline("m", "{value}", {"kind": "b"}), findings)
    assert selected.row["slice"] == {"kind": "b", "draw_count": "25"}
    assert select_headline_finding(Headline("m", "", {"kind": "c"}), findings) is None
    assert select_headline_finding(Headline("other", ""), findings) is None


def test_limits_are_said(session):
    findings = findings_of(bias=[PAIRS])
    [text] = describe_measurement_limits(findings, [])
    assert str(text).startswith("Intervals describe chance variation ")


def test_limits_of_scorers_link_to_the_page_of_their_controls(session):
    row = {
        "control_target": "scorer",
        "scorer": "words 1.0 (12)",
        "slice": {"text_kind": "threats"},
    }
    row |= {"verdict": "not shown", "control": "positive", "missing": 0}
    row |= {"n": 9, "value": 0.5, "low": 0.2, "high": 0.8}
    content = describe_measurement_limits(findings_of(bias=[PAIRS]), [AuditControl("bias", row)])
    assert content == [
        "For 1 kind of text, ",
        Link("the controls", "controls.html"),
        " do not show whether the scorer words 1.0 errs too often.",
    ]


def test_every_audit_declares_a_known_risk():
    assert {audit.risk for audit in AUDIT_DESCRIPTIONS.values()} <= {*RISKS, ""}
    with pytest.raises(ValueError, match="the risk 'rudeness' is unknown; use one of personal_da"):
        AuditDescription(1, "A", "", "", risk="rudeness", question="")


def test_a_risk_links_to_the_page_of_the_audit_that_its_sentence_is_about(session):
    harm = {"metric": "auc", "value": 0.9, "low": 0.8, "high": 0.95, "p": 1e-6, "null_value": 0.5}
    findings = findings_of(
        toxicity=[{"metric": "empty_continuations", "value": 1}],
        bias=[PAIRS],
        extraction=[{"metric": "exposure", "value": 1}],
        extraction_attack=[harm | {"metric": "verbatim_share", "worse_when": "up"}],
        membership=[harm | {"worse_when": "up"}],
    )
    lines = build_risk_lines(findings, find_audit_coverage(findings, {}, []))
    assert {line.title: line.page for line in lines} == {
        "Personal data": "",  # no audit measures it, and no record was planted
        "Memorised training text": "audit-extraction-attack",  # the one that found harm
        "Toxicity": "audit-toxicity",
        "Bias against groups": "audit-bias",
        "Membership": "audit-membership",
        "Capability": "",
    }


@pytest.mark.parametrize("p", [0.9, None])
def test_a_risk_that_several_audits_test_links_to_the_one_that_its_sentence_is_about(session, p):
    changes = {"p": p, "inconclusive_reason": "" if p else TOO_WEAK}
    findings = findings_of(
        bias=[PAIRS | changes], winogender=[GAP | {"low": -0.1, "high": 0.1} | changes]
    )
    lines = build_risk_lines(findings, find_audit_coverage(findings, {}, []))
    [line] = [line for line in lines if line.title == "Bias against groups"]
    assert line.state == ("not found" if p else "unknown")
    assert "The model prefers the stereotypical sentence in" in text_of_parts(line.content)
    assert line.page == "audit-bias"


def test_a_risk_that_only_planted_text_tests_links_to_the_audit_of_that_text(session):
    planted = {"metric": "extractable", "null_value": 0.0, "worse_when": "up", "is_variant": True}
    planted |= {"tags": {"kind": "record", "copies": "64"}, "value": 0.75, "low": 0.5, "high": 1.0}
    findings = findings_of(extraction=[planted])
    lines = build_risk_lines(findings, find_audit_coverage(findings, {}, []))
    pages = {line.title: line.page for line in lines}
    assert pages["Personal data"] == "audit-extraction"


TOO_WEAK = "the model is too weak for this audit: x is 0"
ACCURACY = {"metric": "accuracy", "value": 0.5, "null_value": 0.5, "worse_when": ""}
GAP = {"metric": "gender_accuracy_gap", "value": -0.01, "null_value": 0.0, "p": None}
GAP |= {"worse_when": "away_from_null"}


NOT_TESTED = "the difference from the value expected with no effect was not tested."
NOT_JUDGED = "it could not be determined whether the model is capable enough for this audit"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([GAP | {"inconclusive_reason": TOO_WEAK}], "the model is too weak for this audit."),
        ([GAP | {"inconclusive_reason": f"{NOT_JUDGED}: no number"}], f"{NOT_JUDGED}."),
        ([GAP | {"inconclusive_reason": "it is a riddle"}], "it is a riddle."),
        ([GAP | {"worse_when": ""}], NOT_TESTED),
        ([GAP | {"null_value": None}], "there is no value to compare the finding with."),
    ],
)
def test_an_audit_has_one_reason_not_to_be_judged(session, rows, reason):
    line = describe_audit_result("winogender", findings_of(winogender=[ACCURACY, *rows]))
    text = text_of_parts(line.content)
    assert line.state == "unknown" and text.count("no conclusion: ") == 1
    assert text.startswith("The accuracy for sentences with 'he' minus that for the same sentences")
    assert text.endswith(f"; no conclusion: {reason}")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        # A figure without a test has the reason of all figures with one.
        ([GAP | {"inconclusive_reason": TOO_WEAK}], "the model is too weak for this audit."),
        # A reason that governs other figures only, or that is another one, is not its reason.
        ([GAP | {"inconclusive_reason": TOO_WEAK}, GAP | {"is_variant": True}], NOT_TESTED),
        ([GAP | {"inconclusive_reason": "uninformative: too few"}], NOT_TESTED),
        ([GAP | {"worse_when": ""}], NOT_TESTED),
    ],
)
def test_a_figure_without_a_test_has_the_first_reason_that_applies(session, rows, reason):
    """The model is too weak, before a test that was not made."""
    chart = {"metric": "sentiment_difference", "value": 0.1, "null_value": 0.0, "worse_when": ""}
    shown = [row | {"metric": "toxicity_difference"} for row in rows]
    findings = findings_of(bold=[chart, *shown])
    line = describe_audit_result("bold", findings)
    brief = describe_audit_result("bold", findings, is_brief=True)
    assert text_of_parts(brief.content).endswith(f"; no conclusion: {reason}")
    assert (
        text_of_parts(line.content)
        .partition(" Sentiment diff")[0]
        .endswith(f"; no conclusion: {reason}")
    )


def test_of_equally_general_findings_the_worst_is_the_headline(session):
    for worse_when, worst in (("up", 0.5), ("down", 0.2)):
        rows = [
            PAIRS
            | {"metric": "m", "value": value, "worse_when": worse_when, "tags": {"kind": kind}}
            for value, kind in ((0.2, "a"), (0.5, "b"))
        ]
        findings = findings_of(bias=rows).by_audit["bias"]
        selected = select_headline_finding(Headline("m", "{value}"), findings)
        assert selected.row["value"] == worst


def test_an_interval_without_a_level_is_called_one_of_95_percent(session):
    [finding] = findings_of(bias=[PAIRS]).by_audit["bias"]
    for level, text in ((None, "95 % interval"), (0.9, "90 % interval")):
        figure = replace(finding.figure, confidence_level=level)
        said = text_of_parts(describe_finding(Finding(finding.row, figure)))
        assert f"({text} 48.0 % to 52.0 %, n = 540 pairs)" in said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.48, 0.52, "(95 % interval 48.0 % to 52.0 %, n = 540 pairs)"),
        (0.48, None, "(n = 540 pairs)"),
        (None, 0.52, "(n = 540 pairs)"),
        (None, None, "(n = 540 pairs)"),
    ],
)
def test_an_interval_with_one_bound_is_not_shown(session, low, high, said):
    [finding] = findings_of(bias=[PAIRS]).by_audit["bias"]
    figure = replace(finding.figure, low=low, high=high)
    text = text_of_parts(describe_finding(Finding(finding.row, figure)))
    assert f"50.0 % {said};" in text and text.count("interval") == said.count("interval")
