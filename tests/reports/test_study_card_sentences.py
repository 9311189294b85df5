"""Each sentence on how often audits are wrong follows from the rates of a study."""

from types import SimpleNamespace

import pytest

from hallmark.reports.page.document import Chart
from hallmark.reports.page.figures import Evidence, Figure
from hallmark.reports.sections.error_rates import (
    CANDIDATE_KINDS,
    DetectionRate,
    ErrorRates,
    describe_missing_error_rates,
    format_rate_with_interval,
    group_unmeasured_audits_by_reason,
)
from hallmark.reports.study_card import StudyCardBuilder, StudyCardConfig
from hallmark.tasks.audits.audit_descriptions import AUDIT_BY_CANDIDATE_KIND, AuditDescription
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from tests.reports.conclusions import text_of_blocks, text_of_parts, text_of_section


def figure(value, low=None, high=None, unit="share", **more):
    evidence = Evidence("error_rates", None, "units", {})
    return Figure("i", "l", value, unit, evidence, "v", "mean", low=low, high=high, **more)


class Rates(ErrorRates):
    """Rates that are given, of no study."""

    def __init__(self, detection=(), alarms=(), coverage=(), trials=10, unjudged=None, **more):
        self.detection_rates, self.false_alarm_rates = dict(detection), dict(alarms)
        self.coverage_rates, self.smallest_detected = dict(coverage), more.get("smallest", {})
        self.counted_trials = figure(float(trials), unit="trials")
        self.unjudged_counts = unjudged or {}
        rows = [
            {"kind": kind, "effect_level": known_amount}
            for kind, known_amount in self.unjudged_counts
        ]
        self.rows_by_table = {"unjudged_candidates": rows} | more.get("tables", {})
        self.study = SimpleNamespace(manifest={"lineage": more.get("lineage", {})})
        self.incomparable = more.get("incomparable")

    def add_unjudged_count_figure(self, kind, planted_amount=None):
        found = [
            n
            for (each, known_amount), n in self.unjudged_counts.items()
            if each == kind and planted_amount in (None, known_amount)
        ]
        return figure(float(sum(found)), unit="candidates") if found else None

    def add_missing_interval_count_figure(self, kind):
        return self.incomparable and figure(float(self.incomparable), unit="candidates")


def card_of(**more):
    card = StudyCardBuilder.__new__(StudyCardBuilder)
    card.error_rates, card.config = Rates(**more), StudyCardConfig()
    card.trial_count = figure(float(more.get("made", 12)), unit="trials")
    return card


def detection(value, low=None, high=None, effect=True, amount=64.0, kind="canary", n=9):
    return {kind: [DetectionRate(amount, effect, figure(value, low, high, n=n))]}


# Detection ---------------------------------------------------------------------------------------


#: How the sentence about an effect ends that is found too rarely.
TOO_WEAK = (
    " less than the required 95.0 %, so the audit is too weak for this effect with these settings."
)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            0.95,
            "every audit with a planted effect detects its largest effect in at least 95 %",
        ),
        (
            1.0,
            "every audit with a planted effect detects its largest effect in at least 95 %",
        ),
        (0.949, f"Planted secrets at 64 (copies): found in 94.9 %, 0.10 points{TOO_WEAK}"),
        (0.9499, f"Planted secrets at 64 (copies): found in 95.0 %, 0.01 points{TOO_WEAK}"),
        (0.0, f"Planted secrets at 64 (copies): found in 0.0 %, 95.0 points{TOO_WEAK}"),
    ],
)
def test_the_largest_effect_is_found_in_95_percent_or_it_is_said_by_how_much_not(value, said):
    callout = card_of(detection=detection(value)).build_detection_callout()
    text = text_of_parts(callout.content)
    assert text.startswith(f"Detection: {said}") and "−" not in text
    assert callout.kind == ("good" if value >= 0.95 else "bad")


@pytest.mark.parametrize(
    ("rates", "unjudged", "look", "said"),
    [
        (
            {},
            None,
            "note",
            "Detection: no trial that counts towards the results has a planted effect.",
        ),
        (
            detection(0.5, effect=False),
            None,
            "note",
            "Detection: no trial that counts towards the results has a planted effect.",
        ),
        (
            {},
            {("canary", 64.0): 3},
            "note",
            "Detection: no audit reached a verdict on a candidate with an effect; 3 at 64 "
            "(copies) could not be judged (planted secrets).",
        ),
        (
            detection(1.0),
            {("canary", 64.0): 3},
            "note",
            "Detection: every audit with a planted effect detects the largest effect on which it "
            "reached a verdict in at least 95 % of cases; 3 at 64 (copies) could not be judged "
            "(planted secrets).",
        ),
        (
            detection(0.0),
            {("canary", 64.0): 3},
            "bad",
            "Detection: Planted secrets at 64 (copies): found in 0.0 %, 95.0 points"
            f"{TOO_WEAK.removesuffix('.')}; 3 at 64 (copies) could not be judged (planted "
            "secrets).",
        ),
    ],
)
def test_what_was_not_judged_is_said_beside_what_was(rates, unjudged, look, said):
    callout = card_of(detection=rates, unjudged=unjudged).build_detection_callout()
    assert (callout.kind, text_of_parts(callout.content)) == (look, said)


@pytest.mark.parametrize("trials", [1, 9, 10])
@pytest.mark.parametrize("value", [1.0, 0.5])
def test_of_few_trials_only_what_holds_says_little(trials, value):
    callout = card_of(detection=detection(value), trials=trials).build_detection_callout()
    few = trials < 10 and value == 1.0
    assert text_of_parts(callout.content).endswith("so few trials are weak evidence.") == few
    assert callout.kind == ("bad" if value < 1 else "note" if few else "good")


# Alarms and intervals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alarms", "look", "said"),
    [
        ({}, "note", "False alarms: no audit reached a verdict on a candidate without an effect."),
        (
            {"canary": figure(None)},
            "note",
            "False alarms: no audit reached a verdict on a candidate without an effect.",
        ),
        (
            {"canary": figure(0.5, 0.05, 0.9), "speech": figure(0.2)},
            "good",
            "False alarms: no audit has been shown to produce false alarms for more than 5 % of "
            "the candidates without an effect; the highest rate is 50.0 % (5.0 % to 90.0 %), "
            "Planted secrets.",
        ),
        (
            {"canary": figure(0.0, 0.0, 0.1), "speech": figure(None)},
            "good",
            "False alarms: no audit has been shown to produce false alarms for more than 5 % of "
            "the candidates without an effect; the highest rate is 0.0 % (0.0 % to 10.0 %), "
            "Planted secrets.",
        ),
        (
            {"canary": figure(0.5, 0.051, 0.9), "speech": figure(0.2)},
            "bad",
            "False alarms: Planted secrets: false alarms in 50.0 % (5.1 % to 90.0 %).",
        ),
    ],
)
def test_an_audit_claims_too_much_only_where_its_interval_says_so(alarms, look, said):
    callout = card_of(alarms=alarms).build_false_alarm_callout()
    assert (callout.kind, text_of_parts(callout.content)) == (look, said)


GOOD = "Intervals: the 95 % intervals cover the true value in 92 to 98 % of cases."
UNKNOWN = (
    "Intervals: no candidate type is shown to have intervals that cover the true value in "
    "fewer than 92 % or more than 98 % of cases."
)


@pytest.mark.parametrize(
    ("coverage", "look", "said"),
    [
        (None, "note", "Intervals: no interval can be compared with a true value."),
        (figure(None, n=0), "note", "Intervals: no interval can be compared with a true value."),
        # Of 400 and more the share itself.
        (figure(0.92, 0.8, 0.99, n=400), "good", GOOD),
        (figure(0.98, 0.8, 0.99, n=400), "good", GOOD),
        (
            figure(0.919, 0.8, 0.99, n=400),
            "bad",
            (
                "Intervals: Planted secrets: the intervals cover the true value too rarely, "
                "in 91.9 % of 400 (80.0 % to 99.0 %)."
            ),
        ),
        (
            figure(0.981, 0.8, 0.99, n=1400),
            "bad",
            (
                "Intervals: Planted secrets: the intervals cover the true value too often, in "
                "98.1 % of 1,400 (80.0 % to 99.0 %)."
            ),
        ),
        # Of fewer its interval must lie outside.
        (figure(0.5, 0.2, 0.92, n=399), "good", UNKNOWN),
        (figure(1.0, 0.98, 1.0, n=399), "good", UNKNOWN),
        (figure(0.5, n=399), "good", UNKNOWN),
        (
            figure(0.5, 0.2, 0.919, n=399),
            "bad",
            (
                "Intervals: Planted secrets: the intervals cover the true value too rarely, "
                "in 50.0 % of 399 (20.0 % to 91.9 %)."
            ),
        ),
        (
            figure(1.0, 0.981, 1.0, n=399),
            "bad",
            (
                "Intervals: Planted secrets: the intervals cover the true value too often, in "
                "100.0 % of 399 (98.1 % to 100.0 %)."
            ),
        ),
    ],
)
def test_intervals_are_wrong_by_their_share_or_where_few_by_its_interval(coverage, look, said):
    coverage = {} if coverage is None else {"canary": coverage}
    callout = card_of(coverage=coverage).build_coverage_callout()
    assert (callout.kind, text_of_parts(callout.content)) == (look, said)


# The rest of the card ----------------------------------------------------------------------------


@pytest.mark.parametrize(("counted", "made"), [(0, 0), (0, 1), (1, 1), (9, 12)])
def test_the_first_words_say_how_many_trials_count(counted, made):
    card = card_of(trials=counted, made=made)
    text = text_of_blocks(card.build_lead())
    nothing = f"No trial could be counted, so nothing was measured. Trials created: {made}."
    assert (text == nothing) == (not counted)
    assert (f"towards the results: {counted} of {made}." in text) == bool(counted)


@pytest.mark.parametrize(
    ("rows", "present", "absent"),
    [
        ([], "No trial was created.", "Every trial"),
        (
            [{"trial": "a", "is_counted": True, "reason": ""}],
            "Every trial counts.",
            "Reasons for exclusion",
        ),
        (
            [
                {"trial": "a", "is_counted": True, "reason": ""},
                {"trial": "b", "is_counted": False, "reason": "gone"},
            ],
            "Reasons for exclusion",
            "Every trial",
        ),
    ],
)
def test_trials_that_do_not_count_are_listed(rows, present, absent):
    text = text_of_section(card_of(tables={"trials": rows}).build_excluded_trials_section())
    assert present in text and absent not in text


@pytest.mark.parametrize("smallest", [None, 8.0])
@pytest.mark.parametrize("effect", [True, False])
def test_the_smallest_effect_is_spoken_of_where_there_is_one_to_find(smallest, effect):
    card = card_of(detection=detection(1.0, effect=effect), smallest={"canary": smallest})
    [row] = card.build_summary_table().rows
    assert row[3] == ("–" if not effect else "none" if smallest is None else "8")
    assert (row[1] == "64") == effect and row[4:] == ["–", "–"]


@pytest.mark.parametrize(
    ("rate", "alt", "bars"),
    [
        (detection(0.5, 0.25, 0.75), "64: 50.0 %", True),
        (detection(0.0), "64: 0.0 %", False),
        (detection(None), "not measured", False),
    ],
)
def test_a_rate_that_is_not_known_is_not_drawn_as_none(rate, alt, bars):
    chart, table = card_of(detection=rate).build_detection_blocks("canary")
    assert (
        isinstance(chart, Chart)
        and chart.alt_text == f"Share of candidates found, by copies: {alt}"
    )
    assert ("error bars show 95 % intervals with trials as units" in chart.caption) == bars
    assert table.rows[0][1] == "yes"


@pytest.mark.parametrize(("effect", "cell"), [(True, "yes"), (False, "no"), (None, "less than")])
def test_whether_there_is_something_to_find_is_said_of_each_amount(effect, cell):
    _, table = card_of(detection=detection(0.5, effect=effect)).build_detection_blocks("canary")
    assert table.rows[0][1].startswith(cell)


@pytest.mark.parametrize(
    ("changes", "present", "absent"),
    [
        (
            {},
            "None of this audit's intervals can be compared with a true value.",
            "False alarms among",
        ),
        (
            {"alarms": {"canary": figure(0.05)}},
            "False alarms among candidates without an effect: 5.0 %. The correction allows a false "
            "alarm of this kind in at most 5 % of trials, so at most 5 %",
            "is simultaneous for all candidate types",
        ),
        (
            {"alarms": {"canary": figure(0.05, 0.01, 0.2, confidence_level=1 - 0.05 / 6)}},
            "; the 99.17 % interval is simultaneous for all candidate types. The correction",
            "could not be judged",
        ),
        (
            {"coverage": {"canary": figure(0.95)}},
            "in 95.0 % of cases.",
            "None of this audit's intervals",
        ),
        (
            {"coverage": {"canary": figure(0.95)}, "incomparable": 2},
            "Not counted: 2 candidates, which lack a two-sided interval",
            "None of this audit's intervals",
        ),
        (
            {"unjudged": {("canary", 8.0): 2}},
            "Not judged: 2 candidates, because the model",
            "Not counted:",
        ),
    ],
)
def test_a_kind_of_candidates_has_the_sentences_that_its_rates_allow(changes, present, absent):
    text = text_of_section(card_of(**changes).build_kind_section("canary"))
    assert present in text and absent not in text


@pytest.mark.parametrize(
    ("removed", "lineage", "said"),
    [
        ([], {}, "No model was retrained without the listed documents."),
        ([], {"retrained_verdicts": ["a"]}, "No figure from a model retrained without"),
        (["removed"], {"retrained_verdicts": ["a"]}, "Planted secrets, without the documents"),
        (
            ["random"],
            {"retrained_verdicts": ["a"]},
            "Planted secrets, without an equal number of randomly chosen documents",
        ),
        (["difference"], {"retrained_verdicts": ["a"]}, "Planted secrets, difference"),
    ],
)
def test_models_that_were_trained_anew_are_compared_where_there_are_any(removed, lineage, said):
    row = {
        "kind": "canary",
        "low": None,
        "high": None,
        "n": 3,
        "method": "m",
        "confidence_level": None,
    }
    tables = {
        "attribution_precision": [],
        "removal_reductions": [row | {"arm": arm, "unit": "bits"} for arm in removed],
    }
    card = card_of(tables=tables, lineage=lineage)
    card.add_stored_figure = lambda *_: figure(0.5)
    text = text_of_section(card.build_attribution_section())
    assert said in text
    assert ("Decrease in measured values" in text) == bool(removed)
    assert ("No model was retrained" in text) == (not removed and not lineage)


KINDS_BY_RULE = {
    "the one-sided p-value, Holm-corrected for the number of such candidates in the trial, is "
    "below 0.05": ("canary", "association"),
    "the model continues with exactly the next tokens at one or more of the tested positions": (
        "passage",
    ),
    "the model generates both the email address and the telephone number": ("record",),
    "q is below 0.05, as in model cards; q is the p-value adjusted to control the false discovery "
    "rate over all of the trial's tests in the harmful direction": ("speech", "sentiment"),
}


@pytest.mark.parametrize(("rule", "kinds"), KINDS_BY_RULE.items())
def test_the_rule_is_stated_in_the_section_of_each_kind(rule, kinds):
    for kind in CANDIDATE_KINDS:
        text = text_of_section(card_of().build_kind_section(kind))
        assert (f"The candidate is found if {rule}." in text) == (kind in kinds)


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        ("canary", "The correction allows a false alarm of this kind in at most 5 % of trials"),
        ("association", "The correction allows a false alarm of this kind in at most 5 % of"),
        ("passage", "No statistical test is involved, so there is no expected false-alarm rate."),
        ("record", "No statistical test is involved, so there is no expected false-alarm rate."),
        ("speech", "On average, the rule allows at most 5 % of a trial's discoveries to be"),
        ("sentiment", "On average, the rule allows at most 5 % of a trial's discoveries to be"),
    ],
)
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_what_5_percent_means_is_said_next_to_the_rate(kind, bound, value):
    """As what the rule allows, not as what was measured, so that no rate contradicts it."""
    card = card_of(alarms={kind: figure(value)})
    text = text_of_section(card.build_kind_section(kind))
    assert f"among candidates without an effect: {100 * value:.1f} %. {bound}" in text


def test_the_rules_stand_next_to_the_table():
    table = card_of(coverage={"canary": figure(0.9)}).build_summary_table()
    assert table.note.endswith(
        "Rule: a candidate is found if the one-sided p-value, Holm-corrected for the number of "
        "such candidates in the trial, is below 0.05 (planted secrets). A false alarm is a "
        "candidate without an effect that is found by the same rule."
    )
    table = card_of(alarms=dict.fromkeys(CANDIDATE_KINDS, figure(0.0))).build_summary_table()
    assert "(planted secrets, associations between groups and traits); if the model" in table.note
    assert table.note.count("q is below 0.05") == 1


def test_the_page_names_the_audits_that_were_measured():
    lead = text_of_blocks(card_of(alarms={"speech": figure(0.1)}).build_lead())
    assert (
        "The study measured 1 of 17 audits: Comparison of text about groups (Rude speech about a "
        "group). The error rates of the other audits are not known."
    ) in lead
    lead = text_of_blocks(card_of(alarms=dict.fromkeys(CANDIDATE_KINDS, figure(0.1))).build_lead())
    assert (
        "The study measured 3 of 17 audits: Comparison of text about groups (Rude speech about a "
        "group, Negative speech about a group); Planted associations (Associations between groups "
        "and traits); Training-data extraction (Planted secrets, Repeated passages, Personal "
        "records). The error rates of the other audits are not known."
    ) in lead


def test_each_audit_is_measured_or_has_a_reason():
    reasons = group_unmeasured_audits_by_reason(CANDIDATE_KINDS)
    titles = [title for titles in reasons.values() for title in titles]
    measured = {AUDIT_DESCRIPTIONS[audit].title for audit in AUDIT_BY_CANDIDATE_KIND.values()}
    assert {*titles} | measured == {each.title for each in AUDIT_DESCRIPTIONS.values()}
    assert len(titles) == len(AUDIT_DESCRIPTIONS) - len(measured) == 14
    declared = {audit.not_studied_because for audit in AUDIT_DESCRIPTIONS.values()}
    assert reasons.keys() == declared - {""}  # none of the general reasons
    (amplification,) = (reason for reason, names in reasons.items() if "Amplification" in names)
    assert "it depends on the model and not only on the text" in amplification
    few = group_unmeasured_audits_by_reason(["canary"])
    assert few["No candidate of this study could be judged."] == [
        "Comparison of text about groups",
        "Planted associations",
    ]


def test_an_audit_of_a_user_has_a_reason_too(monkeypatch):
    monkeypatch.setitem(
        AUDIT_DESCRIPTIONS, "own", AuditDescription(999, "Own", "", "", risk="bias", question="")
    )
    reasons = group_unmeasured_audits_by_reason(CANDIDATE_KINDS)
    assert reasons["The study plants no effects that this audit measures."] == ["Own"]
    text = text_of_section(
        card_of(alarms={"canary": figure(0.1)}).build_unmeasured_audits_section()
    )
    assert "Own" in text and "exaggerates its training text" in text


# On a model card ---------------------------------------------------------------------------------


def said_of(**more):
    return text_of_blocks(Rates(**more).describe_error_rates("extraction"))


RATE = detection(0.5)["canary"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"detection": {"canary": []}},
            "in 10 synthetic corpora (trials) with known effects that were hidden from the audit, "
            "it had ",
        ),
        (
            {"detection": {"canary": []}, "trials": 1},
            "in 1 synthetic corpus (trial) with known effects",
        ),
        (
            {"detection": {"canary": []}},
            "it had no effect to find. The models trained on these corpora",
        ),
        (
            {"unjudged": {("canary", 64.0): 3}},
            "it reached no verdict on any candidate with a true effect, while 3 at 64 (copies) "
            "could "
            "not be judged",
        ),
        (
            {"detection": {"canary": RATE}, "smallest": {"canary": None}},
            "it found 50.0 % of the candidates (possible effects) at 64 (copies). The models "
            "trained on these corpora",
        ),
        (
            {"detection": {"canary": RATE}, "smallest": {"canary": 64.0}},
            "it found 50.0 % of the candidates (possible effects) at 64 (copies). The models "
            "trained on these corpora",
        ),
        (
            {
                "detection": {"canary": [DetectionRate(8.0, True, figure(0.25)), *RATE]},
                "smallest": {"canary": 8.0},
            },
            "it found 50.0 % of the candidates (possible effects) at 64 (copies), 25.0 % of "
            "those at 8.",
        ),
        (
            {"alarms": {"canary": figure(0.1, 0.0, 0.2)}},
            "it had no effect to find, and reported an effect for 10.0 % (0.0 % to 20.0 "
            "%) of those without",
        ),
        (
            {"coverage": {"canary": figure(0.9)}},
            "; its 95 % intervals covered the true value in 90.0 %. The models trained on these "
            "corpora",
        ),
        (
            {"coverage": {"canary": figure(0.9)}, "incomparable": 2},
            (
                "in 90.0 %, not counting 2 candidates that lack a two-sided interval, a known true "
                "value, or both. The models trained on these corpora"
            ),
        ),
    ],
)
def test_how_often_an_audit_is_wrong_follows_from_its_rates(changes, said):
    assert said in said_of(**{"smallest": {"canary": None}} | changes)


@pytest.mark.parametrize(
    ("study_settings", "card_settings", "expected"),
    [
        ({"max_windows": "8"}, {"max_windows": 8, "seed": 5}, ""),
        (
            {"max_windows": "8", "prefix_tokens": "[16]"},
            {"max_windows": 64, "prefix_tokens": [16]},
            "different settings for this audit: max_windows is 64 on this card and 8 in the study.",
        ),
        (
            {"old": "8"},
            {"toxicity": {"draws": 2}},
            "old is not set on this card and 8 in the study; toxicity.draws is 2 on this "
            "card and not set in the study.",
        ),
        (
            {f"s{number}": "1" for number in range(8)},
            {f"s{number}": 2 for number in range(8)},
            "s5 is 2 on this card and 1 in the study; 2 more differ.",
        ),
    ],
)
def test_a_card_names_the_settings_that_differ_from_the_study(
    study_settings, card_settings, expected
):
    rows = [
        {"audit": audit, "setting": setting, "value": value}
        for audit in ("extraction",)
        for setting, value in study_settings.items()
    ] + [{"audit": "associations", "setting": "max_windows", "value": "1"}]
    audit = SimpleNamespace(manifest={"parts": {"config": card_settings}})
    rates = Rates(tables={"audit_settings": rows})
    text = text_of_blocks(rates.describe_differing_settings("extraction", audit))
    assert text.endswith(expected) and bool(text) == bool(expected)
    assert not text or text.startswith("The error rates below may not apply to this card")


def test_missing_rates_are_said_to_be_missing_only_where_no_study_is():
    assert describe_missing_error_rates({"extraction": None}, ["extraction", "other"]) == []
    [[text]] = describe_missing_error_rates({"extraction": None}, ["extraction", "bias", "weat"])
    assert text == (
        "The error rates of these audits are not known: Bias, Associations between words (WEAT)."
    )
    [[text]] = describe_missing_error_rates({}, ["bias"])
    assert text.startswith("The error rates of these audits are not known")
    assert text_of_parts(format_rate_with_interval(figure(0.5))) == "50.0 %"
    assert text_of_parts(format_rate_with_interval(figure(0.5, 0.0, 1.0))) == (
        "50.0 % (0.0 % to 100.0 %)"
    )
