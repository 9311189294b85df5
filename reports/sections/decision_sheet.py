"""Build the decision sheet of a model card: its status, its risks, and what is not known.

A reviewer decides from it whether the model may be used. It fits on one screen and one page. Risks
are listed by what the audits show of them (``STATE_ORDER``), equal ones in the order of ``RISKS``,
the most severe first. Within the rule of all cards (``is_harmful``), a risk is

* "found" if an audit discovers harm,
* "unknown" if no audit could measure it, or no conclusion follows from what was measured, also
  because the tests do not detect text that was planted for them, or because a way to measure the
  same that was not chosen in advance shows harm,
* "not found" otherwise. This is no proof of absence: the sheet names the smallest effect that the
  audit could have detected.

A risk that compares the model with a baseline is "worse" or "not worse" instead, since a lack of
benefit is no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any

from hallmark.reports.page.document import (
    FAIL,
    NOT_JUDGED,
    NOT_SHOWN,
    PASS,
    PASS_WITH_GAPS,
    RISK_STATE_NAMES,
    DecisionSheet,
    DefinitionEntry,
    InlineContent,
    InlineElement,
    Link,
    RiskLine,
    RiskState,
    ShortFigure,
)
from hallmark.reports.page.figures import (
    SHARE_DIFFERENCE,
    format_number,
    format_unit_suffix,
    slugify,
)
from hallmark.reports.sections.audit_charts import compute_effect
from hallmark.reports.sections.findings import (
    Finding,
    Findings,
    fill_names,
    get_audit_page,
    get_audit_title,
    has_lowest_possible_null,
    name_finding,
    select_tested_findings,
)
from hallmark.tasks.audits.audit_descriptions import RISKS, SIGNIFICANCE_LEVEL, Headline
from hallmark.tasks.audits.judging.conclusions import (
    NOT_JUDGED as CAPABILITY_NOT_JUDGED,
)
from hallmark.tasks.audits.judging.conclusions import (
    TOO_WEAK,
    remove_reason_lead,
)
from hallmark.tasks.audits.judging.discoveries import (
    compares_with_baseline,
    compute_distance_beyond_null,
    describe_conclusion,
    is_harmful,
    is_ranked,
)
from hallmark.tasks.audits.judging.measures import LOWER_BOUND_NOTE
from hallmark.tasks.audits.judging.policy_outcome import PolicyOutcome
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import label_part, label_tag
from hallmark.tasks.contract import format_count

#: What a pass with gaps means for the decision.
GAPS_SENTENCE = (
    "The policy does not judge these gaps; a reviewer must decide whether they are acceptable."
)

#: States of risks, in the order in which risks are listed. What may be harm and is not known comes
#: before a lack of benefit.
STATE_ORDER: tuple[RiskState, ...] = ("found", "unknown", "worse", "not found", "not worse")

#: The titles of the sections that the decision sheet links to.
MAIN_RESULTS_TITLE, NOT_MEASURED_TITLE = "Main results", "Not measured"

#: A link to the list of everything that was not measured.
NOT_MEASURED_LINK = Link(NOT_MEASURED_TITLE, f"#{slugify(NOT_MEASURED_TITLE)}")

#: How many rules of the policy a risk names.
MAX_NAMED_RULES = 3

#: What precedes a figure about planted text.
SENSITIVITY_LEAD = "Test sensitivity (planted text, not a finding): "


@dataclass(frozen=True)
class AuditCoverage:
    """Say which audits gave no figure, and why.

    Attributes:
        failed: By audit that failed, the reason.
        failed_parts: By other part of the run that failed, the reason.
        skipped: The audits that the user skipped.
        empty: By audit that ran and measured nothing, the reason.
        without_data: The audits that need files of the user, which were not provided.
        without_corpus: The audits that need the training corpus, which is not known.
        inconclusive: By audit from whose figures no conclusion follows, because the model is too
            weak for it, the reason.
        untested: By audit from whose figures no conclusion follows, because none could be tested,
            the reason.
        contradicted: The audits from whose main figure no conclusion follows, because another way
            to measure the same shows harm.
    """

    failed: Mapping[str, str] = field(default_factory=dict)
    failed_parts: Mapping[str, str] = field(default_factory=dict)
    skipped: Sequence[str] = ()
    empty: Mapping[str, str] = field(default_factory=dict)
    without_data: Sequence[str] = ()
    without_corpus: Sequence[str] = ()
    inconclusive: Mapping[str, str] = field(default_factory=dict)
    untested: Mapping[str, str] = field(default_factory=dict)
    contradicted: Sequence[str] = ()

    @property
    def inconclusive_count(self) -> int:
        return len([*self.inconclusive, *self.untested, *self.contradicted])

    @property
    def missing_count(self) -> int:
        return len(
            [
                *self.failed,
                *self.skipped,
                *self.empty,
                *self.without_data,
                *self.without_corpus,
            ]
        )


def describe_status(
    policy: PolicyOutcome, coverage: AuditCoverage, failed_self_checks: Sequence[str]
) -> tuple[str, str]:
    """Return the status in one or two words, and one sentence that explains it.

    Args:
        policy: The outcome of the policy.
        coverage: The audits without a figure.
        failed_self_checks: Titles of the audits in which a control failed that does not concern the
            model.
    """
    audit_count = len(AUDIT_DESCRIPTIONS)
    gaps = []
    if coverage.missing_count:
        gaps.append(f"{coverage.missing_count} of {audit_count} audits produced no result")
    if coverage.inconclusive_count:
        gaps.append(f"{coverage.inconclusive_count} of {audit_count} produced no conclusion")
    if failed_self_checks:
        gaps.append(f"controls failed in these audits: {', '.join(failed_self_checks)}")
    gap_text = "; ".join(gaps) or f"all {audit_count} audits produced a result"
    if policy.verdict is None:
        return NOT_JUDGED, f"No acceptance policy is configured; {gap_text}."
    rule_count = len([*policy.failed_rules, *policy.not_shown_rules, *policy.passed_rules])
    rules = format_count(rule_count, "rule")
    unmet_count = len(policy.failed_rules or policy.not_shown_rules)
    unmet = "The policy's only rule"
    if rule_count > 1:
        unmet = f"{unmet_count} of the policy's {rules}"
    if policy.verdict == "fail":
        return FAIL, f"{unmet} failed; {gap_text}."
    if policy.verdict == "not_shown":
        return NOT_SHOWN, f"{unmet} could not be judged; {gap_text}."
    if rule_count == 1:
        passed = "The policy passed"
    else:
        passed = f"{'Both rules' if rule_count == 2 else f'All {rules}'} in the policy passed"
    if not gaps:
        return PASS, f"{passed}; {gap_text}."
    return PASS_WITH_GAPS, f"{passed}; {gap_text}. {GAPS_SENTENCE}"


def describe_risks_without_rule(ruled_audits: Collection[str]) -> str:
    """Name the risks about which the policy has no rule; nothing if it has rules about all.

    Args:
        ruled_audits: The audits that rules of the policy are about.
    """
    ruled_risks = {
        AUDIT_DESCRIPTIONS[audit].risk for audit in ruled_audits if audit in AUDIT_DESCRIPTIONS
    }
    titles = [risk.title for name, risk in RISKS.items() if name not in ruled_risks]
    if not ruled_audits or not titles:
        return ""
    return f" The policy has no rules about these risks: {', '.join(titles)}."


def describe_risk_order() -> str:
    """Return in which order the decision sheet lists risks."""
    states = [RISK_STATE_NAMES[state] for state in STATE_ORDER]
    titles = ", ".join(risk.title for risk in RISKS.values())
    return (
        f"The first screen lists risks by audit result: {', then '.join(states)}. Risks with the "
        f"same result are ordered by severity, most severe first: {titles}. Irreversible harm "
        "to a person comes first, then harm from what the model writes, then what others could "
        "infer, then lack of benefit."
    )


def select_headline_finding(headline: Headline, findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that a headline selects; None if it has no value."""

    def get_rank(finding: Finding) -> tuple[int, tuple[float, ...], float]:
        other_tags = {
            name: value for name, value in finding.row["slice"].items() if name not in headline.tags
        }
        numbers = tuple(
            float(value) if str(value).replace(".", "", 1).isdigit() else 0.0
            for _, value in sorted(other_tags.items())
        )
        sign = -1.0 if finding.row["worse_when"] == "down" else 1.0
        return -len(other_tags), numbers, sign * (finding.figure.value or 0.0)

    matching_findings = [
        finding
        for finding in findings
        if finding.row["metric"] == headline.metric
        and not finding.row["control"]
        and finding.figure.value is not None
        and headline.tags.items() <= finding.row["slice"].items()
    ]
    return max(matching_findings, key=get_rank, default=None)


def build_risk_lines(
    findings: Findings, coverage: AuditCoverage, verdicts: Sequence[Mapping[str, Any]] = ()
) -> list[RiskLine]:
    """Build a line for each risk: by what the audits show, then the most severe first.

    Args:
        findings: The findings of the audits.
        coverage: The audits without a figure.
        verdicts: The verdicts of the policy on its rules.
    """
    lines = []
    for risk in RISKS:
        line = _build_risk_line(risk, findings, coverage)
        rules = describe_rules_about_risk(risk, line.state, verdicts, findings)
        lines.append(replace(line, content=[*line.content, *rules]))
    return sorted(lines, key=lambda line: STATE_ORDER.index(line.state))


def _build_risk_line(risk: str, findings: Findings, coverage: AuditCoverage) -> RiskLine:
    audits = [name for name, audit in AUDIT_DESCRIPTIONS.items() if audit.risk == risk]
    measured_audits = [
        audit for audit in audits if audit in findings.by_audit and audit not in coverage.empty
    ]
    measured_findings = [
        finding for audit in measured_audits for finding in findings.by_audit[audit]
    ]
    tested_findings = select_tested_findings(
        [finding for finding in measured_findings if is_ranked(finding.row)]
    )
    discoveries = [finding for finding in tested_findings if is_harmful(finding.row)]
    sensitivity = _describe_sensitivity(risk, findings)
    counts = _describe_detection_counts(risk, findings)
    page_audits = measured_audits or [
        finding.row["audit"] for _, finding in _select_sensitivity_findings(risk, findings)
    ]
    page = get_audit_page(page_audits[0]) if page_audits else ""
    is_comparison = RISKS[risk].compares_with_baseline
    if discoveries:
        content = _describe_discoveries(discoveries, len(tested_findings), findings)
        page = get_audit_page(_select_main_discovery(discoveries)[1].row["audit"])
        state: RiskState = "worse" if is_comparison else "found"
        return RiskLine(RISKS[risk].title, state, [*content, *sensitivity], page)
    headlines = [
        (AUDIT_DESCRIPTIONS[audit].headline, finding)
        for audit in measured_audits
        if (headline := AUDIT_DESCRIPTIONS[audit].headline) is not None
        and (finding := select_headline_finding(headline, findings.by_audit[audit]))
    ]
    concluded = [
        (headline, finding)
        for headline, finding in headlines
        if not finding.row["inconclusive_reason"]
        and not explain_untested_audit(finding.row["audit"], findings)
    ]
    for _, finding in (concluded or headlines)[:1]:
        page = get_audit_page(finding.row["audit"])
    if tested_findings:
        content = [_describe_tests_without_discovery(tested_findings)]
        if not is_comparison and not sensitivity:
            content.append(_describe_untested_capability(tested_findings, findings))
        state = "not worse" if is_comparison else "not found"
        for headline, finding in concluded[:1]:
            assert headline is not None
            content += [" ", *describe_headlines(headline, finding, findings), "."]
            if contradiction := _describe_contradiction(headline, finding, findings):
                state = "unknown"
                content += contradiction
        if limit := _describe_undetected_planted_text(risk, findings):
            state = "unknown"
            sensitivity.append(limit)
        return RiskLine(RISKS[risk].title, state, [*content, *sensitivity], page)
    for headline, finding in headlines[:1]:
        assert headline is not None
        reason = _explain_missing_conclusion(finding, findings)
        content = describe_headlines(headline, finding, findings)
        content.append(f". No conclusion can be drawn, because {remove_reason_lead(reason)}.")
        return RiskLine(RISKS[risk].title, "unknown", [*content, *sensitivity], page)
    return RiskLine(
        RISKS[risk].title,
        "unknown",
        [
            _explain_unmeasured_risk(audits, coverage, has_planted_text=bool(sensitivity)),
            *counts,
            *sensitivity,
        ],
        page,
    )


def _explain_missing_conclusion(finding: Finding, findings: Findings) -> str:
    """Explain why no conclusion follows from a finding, by the first reason that applies.

    A finding without a test has the reason of its audit if the model is too weak for all that the
    audit tests.
    """
    if reason := finding.row["inconclusive_reason"]:
        return str(reason)
    tested_rows = [
        row
        for row, _ in findings.by_audit[finding.row["audit"]]
        if row["worse_when"] and not row["control"] and row["value"] is not None
    ]
    reasons = [row["inconclusive_reason"] for row in tested_rows]
    if reasons and all(each.startswith((TOO_WEAK, CAPABILITY_NOT_JUDGED)) for each in reasons):
        return str(reasons[0])
    return _explain_missing_test(finding.row)


def shorten_weakness(reason: str) -> str:
    """Return a reason without the details of a capability check, which “Not measured” states."""
    for beginning in (TOO_WEAK, CAPABILITY_NOT_JUDGED):
        if reason.startswith(beginning):
            return beginning
    return reason


def explain_untested_audit(audit: str, findings: Findings) -> str:
    """Return why no conclusion follows from the headline of an audit that tests nothing.

    Returns:
        The reason; empty if the audit tests something or has no headline.
    """
    description, audit_findings = AUDIT_DESCRIPTIONS.get(audit), findings.by_audit[audit]
    if description is None or description.headline is None:
        return ""
    if select_tested_findings([finding for finding in audit_findings if is_ranked(finding.row)]):
        return ""
    finding = select_headline_finding(description.headline, audit_findings)
    return "" if finding is None else _explain_missing_conclusion(finding, findings)


def is_contradicted(audit: str, findings: Findings) -> bool:
    """Return whether another way to measure the headline of an audit shows harm."""
    description = AUDIT_DESCRIPTIONS.get(audit)
    headline = None if description is None else description.headline
    if headline is None or not headline.alternatives_tag:
        return False
    finding = select_headline_finding(headline, findings.by_audit[audit])
    return finding is not None and _select_contradiction(headline, finding, findings) is not None


def _explain_missing_test(row: Mapping[str, Any]) -> str:
    """Explain why no conclusion follows from a finding without a test."""
    if row["null_value"] is None:
        return "there is no value to compare the finding with"
    return "the difference from the value expected with no effect was not tested"


def _describe_undetected_planted_text(risk: str, findings: Findings) -> str:
    """Say that the audits of a risk miss planted text; nothing if they detect all, or have none."""
    is_detected = [
        finding.figure.low is None or finding.figure.low > (finding.row["null_value"] or 0.0)
        for _, finding in _select_sensitivity_findings(risk, findings)
    ]
    if all(is_detected):
        return ""
    if any(is_detected):
        return " Unknown, because the audits detect only part of this planted text."
    return " Unknown, because the audits do not detect this planted text."


def _describe_untested_capability(tested_findings: Sequence[Finding], findings: Findings) -> str:
    """Say that a model too weak to show harm would pass, too; nothing if that was tested."""
    audits = dict.fromkeys(finding.row["audit"] for finding in tested_findings)
    if any(
        row["control_target"] == "model" or AUDIT_DESCRIPTIONS[audit].no_capability_check_because
        for audit in audits
        for row, _ in findings.by_audit[audit]
    ):
        return ""
    return " It was not tested whether the model is too weak to show harm."


def _describe_tests_without_discovery(tested_findings: Sequence[Finding]) -> str:
    claim = _get_claim(tested_findings[0])
    if len(tested_findings) == 1:
        return f"The test does not show {claim}."
    subject = "Neither" if len(tested_findings) == 2 else "None"
    return f"{subject} of the {len(tested_findings)} tests shows {claim}."


def _get_claim(finding: Finding) -> str:
    """Return what a test of the risk of a finding shows, if it is significant."""
    is_comparison = compares_with_baseline(finding.row)
    return "that the model is worse than a baseline" if is_comparison else "harm"


def describe_audit_result(audit: str, findings: Findings, *, is_brief: bool = False) -> RiskLine:
    """Answer the question of an audit that ran, by the rule of the risks.

    Args:
        audit: The name of the audit.
        findings: The findings of all audits.
        is_brief: Whether to omit the definition of a metric that is named by its title, and how the
            measure was chosen.
    """
    title = get_audit_title(audit)
    audit_findings = findings.by_audit[audit]
    description = AUDIT_DESCRIPTIONS.get(audit)
    if description is None:
        message = (
            "This version of the project does not include this audit, so no conclusion can be "
            "drawn."
        )
        return RiskLine(title, "unknown", [message])
    tested_findings = select_tested_findings(
        [finding for finding in audit_findings if is_ranked(finding.row)]
    )
    discoveries = [finding for finding in tested_findings if is_harmful(finding.row)]
    if discoveries:
        content = _describe_discoveries(discoveries, len(tested_findings), findings)
        is_comparison = compares_with_baseline(discoveries[0].row)
        summary = "Worse than a baseline. " if is_comparison else "Harm found. "
        return RiskLine(title, "worse" if is_comparison else "found", [summary, *content])
    measured_metrics = {row["metric"] for row, figure in audit_findings if figure.value is not None}
    if measured_metrics.isdisjoint(chart.metric for chart in description.charts or ()) and (
        description.charts or not measured_metrics
    ):
        return RiskLine(title, "unknown", [description.not_run_message])
    headlines = (description.headline, *chain.from_iterable(description.sensitivity.values()))
    selected = next(
        (
            (headline, finding)
            for headline in headlines
            if headline and (finding := select_headline_finding(headline, audit_findings))
        ),
        None,
    )
    if tested_findings:
        content = [_describe_tests_without_discovery(tested_findings), " "]
        contradiction: list[InlineElement] = []
        if selected is not None and not selected[1].row["inconclusive_reason"]:
            content += [*describe_headlines(*selected, findings, is_brief=is_brief), "."]
            contradiction = _describe_contradiction(*selected, findings)
            content += contradiction
        else:
            worst = min(tested_findings, key=_rank_harm)
            lead = "Least favourable result: " if len(tested_findings) > 1 else "Result: "
            content += [lead, *describe_finding(worst), "."]
            if not is_brief:
                content += _define_metric(worst.row, findings)
        if contradiction:
            return RiskLine(title, "unknown", content)
        is_comparison = compares_with_baseline(tested_findings[0].row)
        return RiskLine(title, "not worse" if is_comparison else "not found", content)
    if selected is not None:
        headline, finding = selected
        if headline == description.headline:
            content = describe_headlines(headline, finding, findings)
            reason = _explain_missing_conclusion(finding, findings)
        else:
            statement = _build_statement(headline, finding, findings)
            content = [SENSITIVITY_LEAD, *statement, _describe_comparison(finding.row)]
            reason = finding.row["inconclusive_reason"]
        if reason:
            content.append(f"; no conclusion: {shorten_weakness(reason)}")
        return RiskLine(title, "unknown", [*content, "."])
    first = next(
        (
            finding
            for finding in audit_findings
            if finding.figure.value is not None and not finding.row["control"]
        ),
        None,
    )
    if first is None:
        return RiskLine(title, "unknown", [description.not_run_message])
    reason = shorten_weakness(_explain_missing_conclusion(first, findings))
    content = [*describe_finding(first), f"; no conclusion: {reason}."]
    if not is_brief:
        content += _define_metric(first.row, findings)
    return RiskLine(title, "unknown", content)


def describe_finding(finding: Finding) -> list[InlineElement]:
    """Describe a finding by its title and its part, with what it is compared with."""
    part = label_part(finding.row["slice"])
    unit = _get_sample_unit(finding.row)
    return [
        f"{finding.row['title']}{f' ({part})' if part else ''}: ",
        ShortFigure(finding.figure),
        f"{_get_unit_suffix(finding)}{_format_details(finding, unit)}",
        _describe_comparison(finding.row),
    ]


def _define_metric(row: Mapping[str, Any], findings: Findings) -> list[str]:
    """Return a sentence on what a metric is; nothing if its audit does not declare it."""
    definition = findings.get_metric_definition(row["audit"], row["metric"])
    return [f" {row['title']}: {definition}."] if definition else []


def _describe_discoveries(
    discoveries: Sequence[Finding], test_count: int, findings: Findings
) -> list[InlineElement]:
    """Describe the main discovery, and count the others."""
    _, worst = _select_main_discovery(discoveries)
    others = _count_other_discoveries(len(discoveries) - 1, test_count - 1, discoveries[0])
    for half in _get_halves(worst.row["audit"]):
        if select_headline_finding(half, [worst]) is not None:
            return [*describe_headlines(half, worst, findings), ".", *others]
    opposite_effects = _describe_opposite_effects(worst, findings)
    return [*describe_discovery(worst, findings), ".", *others, *opposite_effects]


def _get_halves(audit: str) -> list[Headline]:
    """Return the two headlines of an audit whose answer has two halves, else nothing."""
    description = AUDIT_DESCRIPTIONS[audit]
    if description.headline is None or description.second_headline is None:
        return []
    return [description.headline, description.second_headline]


def describe_discovery(finding: Finding, findings: Findings) -> list[InlineElement]:
    """Describe a discovery in the words that its audit declares, else by its title.

    Args:
        finding: The discovery.
        findings: The findings of all audits.
    """
    audit = finding.row["audit"]
    description = AUDIT_DESCRIPTIONS[audit]
    headlines = (
        description.headline,
        description.second_headline,
        *description.further_headlines,
    )
    for headline in filter(None, headlines):
        if select_headline_finding(headline, [finding]) is not None:
            return describe_headline(headline, finding, findings)
    return [f"{get_audit_title(audit)}, ", *describe_finding(finding)]


def _count_other_discoveries(count: int, test_count: int, discovery: Finding) -> list[str]:
    """Return how many of the other tests of a risk show the same; nothing if there are none."""
    claim = _get_claim(discovery)
    if test_count == 0:
        return []
    if test_count == 1:
        return [f" The other test {'also shows' if count else 'does not show'} {claim}."]
    if count == 0:
        subject = "Neither" if test_count == 2 else "None"
        return [f" {subject} of the {test_count} other tests shows {claim}."]
    if count == test_count:
        return [f" {'Both' if count == 2 else f'All {count}'} other tests also show {claim}."]
    verb = "shows" if count == 1 else "show"
    return [f" {count} of the {test_count} other tests also {verb} {claim}."]


def _describe_opposite_effects(discovery: Finding, findings: Findings) -> list[InlineElement]:
    """Name the part of the same metric with the strongest effect in the harmless direction.

    A model that is worse than one baseline may well be better than another.
    """
    opposite_direction = {"up": "down", "down": "up"}.get(discovery.row["worse_when"])
    if opposite_direction is None or compares_with_baseline(discovery.row):
        return []

    def compute_opposite_effect(finding: Finding) -> float:
        return compute_distance_beyond_null(finding.row | {"worse_when": opposite_direction})

    opposite_findings = [
        finding
        for finding in findings.by_audit.get(discovery.row["audit"], ())
        if finding.row["metric"] == discovery.row["metric"]
        and is_ranked(finding.row)
        and compute_opposite_effect(finding) > 0
    ]
    if not opposite_findings:
        return []
    strongest = max(opposite_findings, key=compute_opposite_effect)
    count = len(opposite_findings)
    return [
        " Effect in the opposite direction"
        f"{f' in {count} other parts, the strongest' if count > 1 else ''}: "
        f"{label_part(strongest.row['slice']) or 'all items'}, ",
        ShortFigure(strongest.figure),
        ".",
    ]


def _select_main_discovery(discoveries: Sequence[Finding]) -> tuple[Headline | None, Finding]:
    """Return the headline of an audit if that is a discovery, else the one with the smallest q."""
    for audit, findings in groupby(discoveries, key=lambda finding: finding.row["audit"]):
        headline = AUDIT_DESCRIPTIONS[audit].headline
        if headline is not None and (selected := select_headline_finding(headline, findings)):
            return headline, selected
    return None, min(discoveries, key=_rank_harm)


def _rank_harm(finding: Finding) -> tuple[float, float]:
    """Return a sort key: first the strongest evidence of harm, then the largest effect."""
    q = finding.row["q"]
    return 1.0 if q is None else q, -compute_effect(finding.row)


def describe_headline(
    headline: Headline, finding: Finding, findings: Findings, *, is_brief: bool = False
) -> list[InlineElement]:
    """Describe a finding in the words of its audit, with what it is compared with.

    Args:
        headline: The words for it.
        finding: The finding that the headline selects.
        findings: The findings of all audits.
        is_brief: Whether to omit how the measure was chosen.
    """
    before, value, after = _build_statement(headline, finding, findings)
    return [
        before[:1].upper() + before[1:],
        value,
        after,
        *_describe_headline_comparison(headline, finding, findings),
        *([] if is_brief else _describe_alternatives(headline, finding, findings)),
    ]


def describe_headlines(
    headline: Headline, finding: Finding, findings: Findings, *, is_brief: bool = False
) -> list[InlineElement]:
    """Describe a finding together with the other half of the answer, the worse of both first.

    Args:
        headline: The words for it.
        finding: The finding that the headline selects.
        findings: The findings of all audits.
        is_brief: Whether to omit how the measure was chosen.
    """
    audit = finding.row["audit"]
    halves = _get_halves(audit)
    if headline not in halves:
        return describe_headline(headline, finding, findings, is_brief=is_brief)
    selected = [
        (half, half_finding)
        for half in halves
        if (half_finding := select_headline_finding(half, findings.by_audit[audit]))
    ]
    (first, worse), *others = sorted(
        selected,
        key=lambda pair: (pair[1].row["null_value"] is not None, compute_effect(pair[1].row)),
        reverse=True,
    )
    content = describe_headline(first, worse, findings)
    for half, half_finding in others:
        unit = half.sample_unit or _get_sample_unit(half_finding.row)
        content += [
            f". {half.short_name[:1].upper()}{half.short_name[1:]}: ",
            ShortFigure(half_finding.figure),
            _get_unit_suffix(half_finding) + _format_details(half_finding, unit),
            _describe_other_baseline(half_finding.row),
        ]
    return content


def _describe_headline_comparison(
    headline: Headline, finding: Finding, findings: Findings
) -> list[InlineElement]:
    """Name what a headline is compared with: what its audit declares, else the null value."""
    row = finding.row
    if headline.null_note:
        return [f"; {headline.null_note}"] if finding.figure.value else []
    if headline.comparison_tags:
        tags = {**row["slice"], **headline.comparison_tags}
        for other in findings.select_by_metric(row["audit"], row["metric"]):
            if other.row["slice"] == tags and other.figure.value is not None:
                details = _format_details(
                    other, headline.sample_unit or _get_sample_unit(other.row)
                )
                return [
                    f"; {headline.comparison_name}: ",
                    ShortFigure(other.figure),
                    f"{_get_unit_suffix(other)}{details}",
                ]
    return [_describe_comparison(row, names_null=not headline.states_null)]


def _select_alternatives(headline: Headline, finding: Finding, findings: Findings) -> list[Finding]:
    """Return the other ways to measure what a headline measures, the strongest effect first."""
    tag, row = headline.alternatives_tag, finding.row
    if not tag:
        return []
    alternatives = [
        other
        for other in findings.select_by_metric(row["audit"], row["metric"])
        if other.figure.value is not None
        and other.row["slice"] != row["slice"]
        and {**other.row["slice"], tag: ""} == {**row["slice"], tag: ""}
    ]
    return sorted(alternatives, key=lambda other: compute_effect(other.row), reverse=True)


def _select_contradiction(
    headline: Headline, finding: Finding, findings: Findings
) -> Finding | None:
    """Return the strongest alternative that is significant although the headline is not harm."""
    if is_harmful(finding.row):
        return None
    alternatives = _select_alternatives(headline, finding, findings)
    return next((other for other in alternatives if _is_significant_variant(other.row)), None)


def describe_finding_conclusion(finding: Finding, findings: Findings) -> str:
    """Describe in a phrase what follows from a finding.

    As on the decision sheet, no conclusion follows if another way to measure the same shows harm.
    """
    audit = finding.row["audit"]
    if is_contradicted(audit, findings):
        headline = AUDIT_DESCRIPTIONS[audit].headline
        assert headline is not None
        selected = select_headline_finding(headline, findings.by_audit[audit])
        if selected is not None and selected.figure.id == finding.figure.id:
            return "no conclusion"
    return describe_conclusion(finding.row)


def _is_significant_variant(row: Mapping[str, Any]) -> bool:
    """Return whether a variant is worse than its null value by p, corrected over its audit."""
    return bool(
        row["is_variant"]
        and not row["inconclusive_reason"]
        and row["p_corrected"] is not None
        and row["p_corrected"] < SIGNIFICANCE_LEVEL
        and compute_effect(row) > 0
    )


def _describe_alternatives(
    headline: Headline, finding: Finding, findings: Findings
) -> list[InlineElement]:
    """Say that the measure was chosen in advance, and which of all measures is the strongest."""
    alternatives = _select_alternatives(headline, finding, findings)
    if not alternatives:
        return []
    tag, strongest = headline.alternatives_tag, alternatives[0]
    score = label_tag(tag, finding.row["slice"][tag])
    score_count = len(alternatives) + 1
    if compute_effect(strongest.row) <= compute_effect(finding.row):
        return [f"; {score}, the strongest of {score_count} scores, was chosen in advance"]
    chosen = f"; {score} was chosen in advance from {score_count} scores"
    if _select_contradiction(headline, finding, findings) is not None:
        return [chosen]  # the contradiction names it
    significance = "not significant"
    if strongest.row["p_corrected"] is None:
        significance = "not tested"
    elif _is_significant_variant(strongest.row):
        significance = "significant"
    return [
        f"{chosen}; the strongest score yields ",
        ShortFigure(strongest.figure),
        f"{_get_unit_suffix(strongest)} ({significance})",
    ]


def _describe_contradiction(
    headline: Headline, finding: Finding, findings: Findings
) -> list[InlineElement]:
    """Say that another way to measure the same shows harm; nothing if none does."""
    contradiction = _select_contradiction(headline, finding, findings)
    if contradiction is None:
        return []
    tag = headline.alternatives_tag
    return [
        " Unknown, because another score is significant "
        f"({label_tag(tag, contradiction.row['slice'][tag])}: ",
        ShortFigure(contradiction.figure),
        f"{_get_unit_suffix(contradiction)}, p (Holm) = "
        f"{format_number(contradiction.row['p_corrected'], 'p')}).",
    ]


def _build_statement(
    headline: Headline, finding: Finding, findings: Findings
) -> tuple[str, ShortFigure, str]:
    """Return the statement of a headline: before the value, the value, and after it.

    Parts that the statement does not name are named first.
    """
    tags = {tag: str(value) for tag, value in finding.row["slice"].items()}
    unnamed_tags = {
        tag: value
        for tag, value in tags.items()
        if tag not in headline.tags and f"{{{tag}}}" not in headline.statement
    }
    words = {
        **findings.get_settings(finding.row["audit"]),
        **{tag: _name_tag_value(tag, value) for tag, value in tags.items()},
    }
    before, _, after = fill_names(headline.statement, words).partition("{value}")
    if LOWER_BOUND_NOTE in finding.row["method"]:
        before += "at least "
    if unnamed_tags:
        before = f"{label_part(unnamed_tags)}: {before}"
    return (
        before,
        ShortFigure(finding.figure),
        f"{_get_unit_suffix(finding)}{after}"
        f"{_format_details(finding, headline.sample_unit or _get_sample_unit(finding.row))}",
    )


def _name_tag_value(tag: str, value: str) -> str:
    """Return the value of a tag as a statement names it: a number stays a number."""
    return value if value.replace(".", "", 1).isdigit() else label_tag(tag, value)


def _get_unit_suffix(finding: Finding) -> str:
    """Return what follows the value; an area under a curve is a probability, but without a unit."""
    figure = finding.figure
    if figure.value is None or figure.unit == "probability":
        return ""
    return format_unit_suffix(figure.unit, figure.value)


def _get_sample_unit(row: Mapping[str, Any]) -> str:
    """Return what n of a finding counts, in the plural; empty if its audit does not say it."""
    description = AUDIT_DESCRIPTIONS.get(row["audit"])
    return "" if description is None else description.get_sample_unit(row["metric"])


def format_sample(n: int, sample_unit: str) -> str:
    """Return n with its unit, such as "n = 40 groups of texts" or "n = 1 prompt".

    Args:
        n: The number of units.
        sample_unit: The unit in the plural; empty if it is not known.
    """
    head, separator, rest = sample_unit.partition(" of ")
    if n == 1:
        head = head.removesuffix("s")
    return f"n = {n:,} {head}{separator}{rest}".rstrip()


def _format_details(finding: Finding, sample_unit: str) -> str:
    """Return the interval and n with its unit in parentheses; nothing if there are none."""
    figure, details = finding.figure, []
    if figure.low is not None and figure.high is not None:
        level = 100 * (figure.confidence_level or 0.95)
        details.append(f"{level:.4g} % interval {figure.interval_or_dash}")
    if figure.n is not None:
        details.append(format_sample(figure.n, sample_unit))
    return f" ({', '.join(details)})" if details else ""


def _describe_comparison(row: Mapping[str, Any], *, names_null: bool = True) -> str:
    """Name the value to compare with, and the smallest difference that can be detected.

    Args:
        row: The finding.
        names_null: Whether to name a value that is expected with no effect.
    """
    if row["null_value"] is None:
        return ""
    null_text = format_number(row["null_value"], row["unit"])
    if compares_with_baseline(row):
        text = f"; a value of {row['null_value']:g} would mean that the two are equal"
    elif row["null_name"]:
        text = f"; baseline ({row['null_name']}): {null_text}{_describe_difference(row)}"
    elif has_lowest_possible_null(row):
        text = f"; lowest possible value: {null_text}"
    else:
        text = f"; value expected with no effect: {null_text}" if names_null else ""
    q = row.get("q")
    is_beyond_null = not row["null_name"] and compute_distance_beyond_null(row) > 0
    if q is not None and is_beyond_null and not is_harmful(row):  # q allows for all tests
        text += f"; not significant after correction (q = {format_number(q, 'p')})"
    effect, unit = row["minimum_detectable_effect"], row["unit"]
    if effect is None or row["inconclusive_reason"]:  # no effect can be detected then
        return text
    if unit == "share":
        effect_text = format_number(effect, SHARE_DIFFERENCE).replace("points", "percentage points")
    else:
        suffix = "" if unit == "probability" else format_unit_suffix(unit, effect)
        effect_text = format_number(effect, unit) + suffix
    return f"{text}; detectable difference: {effect_text} or more"


def _describe_other_baseline(row: Mapping[str, Any]) -> str:
    """Return the baseline of the second half of an answer; nothing if it has none."""
    if row["null_value"] is None or not row["null_name"]:
        return ""
    null_text = format_number(row["null_value"], row["unit"])
    return f"; baseline: {null_text}{_describe_difference(row)}"


def _describe_sensitivity(risk: str, findings: Findings) -> list[InlineElement]:
    """Describe what planted text shows about the tests of a risk; never as a finding."""
    content: list[InlineElement] = []
    for headline, finding in _select_sensitivity_findings(risk, findings):
        content += ["; " if content else f" {SENSITIVITY_LEAD}"]
        content += _build_statement(headline, finding, findings)
    return [*content, "."] if content else []


def _describe_detection_counts(risk: str, findings: Findings) -> list[InlineElement]:
    """Say what detectors found in texts of the model, by type; nothing if no audit counts it."""
    content: list[InlineElement] = []
    for audit, description in AUDIT_DESCRIPTIONS.items():
        count = description.counts.get(risk)
        if count is None:
            continue
        counted = [
            finding
            for finding in findings.select_by_metric(audit, count.metric)
            if finding.figure.value is not None
        ]
        if not counted:
            continue
        place = Link(f"{counted[0].row['n']:,} {count.place}", f"{get_audit_page(audit)}.html")
        detected = [finding for finding in counted if finding.figure.value]
        if not detected:
            content += [f" Detectors find no {count.nothing} in ", place, "."]
            continue
        content.append(" Detectors find ")
        for finding in detected:
            content += [
                f"{', ' if finding is not detected[0] else ''}{label_part(finding.row['slice'])} (",
                ShortFigure(finding.figure),
                ")",
            ]
        content += [" in ", place, f"; {count.limit}."]
    return content


def _select_sensitivity_findings(risk: str, findings: Findings) -> list[tuple[Headline, Finding]]:
    """Return the findings about planted text that show how sensitive the tests of a risk are."""
    return [
        (headline, finding)
        for audit, description in AUDIT_DESCRIPTIONS.items()
        if audit in findings.by_audit
        for headline in description.sensitivity.get(risk, ())
        if (finding := select_headline_finding(headline, findings.by_audit[audit])) is not None
    ]


def _describe_difference(row: Mapping[str, Any]) -> str:
    """Say by how much the model is above or below its baseline, and whether that is significant.

    The test is whether the model is higher, so a model that is lower has no significance.
    """
    if row["value"] is None:
        return ""
    difference = row["value"] - row["null_value"]
    if not difference:
        return ", the same"
    unit = SHARE_DIFFERENCE if row["unit"] == "share" else row["unit"]
    size = format_number(abs(difference), unit)
    if difference < 0:
        return f", so the model's value is {size} lower"
    q = row.get("q")
    if q is None:
        return f", so the model's value is {size} higher (significance not tested)"
    significance = "significant" if is_harmful(row) else "not significant"
    return f", so the model's value is {size} higher ({significance}, q = {format_number(q, 'p')})"


def _explain_unmeasured_risk(
    audits: Sequence[str], coverage: AuditCoverage, *, has_planted_text: bool
) -> str:
    """Explain why no audit measured a risk."""
    if not audits and has_planted_text:
        return "The audits test this risk only with planted text."
    if not audits:
        return "Not measured: no audit covers this risk."
    reasons = []
    for audits_without_result, reason in (
        (coverage.failed, "failed"),
        (coverage.empty, "measured nothing"),
        (coverage.skipped, "was skipped by the user"),
        (coverage.without_data, "received no data"),
        (coverage.without_corpus, "needs the training corpus, which is not known"),
    ):
        reasons += [
            f"{get_audit_title(audit)} {reason}"
            for audit in audits_without_result
            if audit in audits
        ]
    if not reasons:
        return (
            "Not measured: no finding about this risk is compared with the value expected with no "
            "effect."
        )
    return f"Not measured: {'; '.join(reasons)}."


def describe_coverage(coverage: AuditCoverage, findings: Findings) -> InlineContent:
    """Say which audits produced no result, and link to the reasons.

    Args:
        coverage: The audits without a figure.
        findings: The findings of the audits.
    """
    parts = [
        f"{label}: {', '.join(map(get_audit_title, audits))}"
        for label, audits in (
            ("Failed", coverage.failed),
            ("Skipped by the user", coverage.skipped),
            ("Measured nothing", coverage.empty),
            ("Not run, because no data was provided", coverage.without_data),
            ("Not run, because the training corpus is not known", coverage.without_corpus),
            ("No conclusion, because the model is too weak", coverage.inconclusive),
            ("No conclusion, because nothing could be tested", coverage.untested),
            ("No conclusion, because another score is significant", coverage.contradicted),
        )
        if audits
    ]
    if coverage.inconclusive:
        parts += [
            f"{description.title} is still judged, because "
            f"{description.no_capability_check_because}"
            for audit, description in AUDIT_DESCRIPTIONS.items()
            if description.no_capability_check_because and audit in findings.by_audit
        ]
    summary = ". ".join(parts) + "." if parts else "Every audit produced a result."
    link = Link("Details", NOT_MEASURED_LINK.href)
    return [f"{summary} ", link]


def describe_rules_about_risk(
    risk: str, state: RiskState, verdicts: Sequence[Mapping[str, Any]], findings: Findings
) -> list[InlineElement]:
    """Say what the rules test that passed although a risk is open, or failed although it is not.

    Args:
        risk: The name of the risk.
        state: What the tests of the risk show.
        verdicts: The verdicts of the policy on its rules.
        findings: The findings of the audits.
    """
    is_open = state not in ("not found", "not worse")
    surprising_verdict = "pass" if is_open else "fail"
    rows = [
        row
        for row in verdicts
        if row["verdict"] == surprising_verdict
        and row["audit"] in AUDIT_DESCRIPTIONS
        and AUDIT_DESCRIPTIONS[row["audit"]].risk == risk
    ]
    if not rows:
        return []
    names = ", ".join(row["rule"] for row in rows[:MAX_NAMED_RULES])
    if len(rows) > MAX_NAMED_RULES:
        names += f" and {len(rows) - MAX_NAMED_RULES} more"
    outcome = "passed" if is_open else "failed"
    link = f"#{slugify(MAIN_RESULTS_TITLE)}"
    if len(rows) > 1:
        return [
            " ",
            Link(f"Rules {names}", link),
            f" {outcome}, but each limits only a single figure.",
        ]
    title = findings.get_metric_title(rows[0]["audit"], rows[0]["metric"])
    figure_name = name_finding({"title": title, **rows[0]})
    return [
        " ",
        Link(f"Rule {names}", link),
        f" {outcome}, but it limits only “{figure_name}”.",
    ]


def build_decision_sheet(
    findings: Findings,
    policy: PolicyOutcome,
    coverage: AuditCoverage,
    failed_self_checks: Sequence[str],
    identity: Sequence[DefinitionEntry],
    notes: Sequence[DefinitionEntry],
    verdicts: Sequence[Mapping[str, Any]] = (),
) -> DecisionSheet:
    """Build the decision sheet.

    Args:
        findings: The findings of the audits.
        policy: The outcome of the policy.
        coverage: The audits without a figure.
        failed_self_checks: Titles of the audits in which a control failed that does not concern the
            model.
        identity: What identifies the model, and what a person stated; nothing where that is
            missing.
        notes: Further terms, each with its content.
        verdicts: The verdicts of the policy on its rules.
    """
    status, explanation = describe_status(policy, coverage, failed_self_checks)
    return DecisionSheet(
        status,
        "good" if status == PASS else "bad" if status in (FAIL, NOT_SHOWN) else "note",
        [explanation + describe_risks_without_rule({row["audit"] for row in verdicts})],
        identity,
        build_risk_lines(findings, coverage, verdicts),
        [("Not measured", describe_coverage(coverage, findings)), *notes],
    )
