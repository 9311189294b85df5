"""Build the section on the main results of a model card.

It answers whether the audits work, what they found against the policy and what they did not cover,
and lists the largest harms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from hallmark.reports.page.document import (
    Block,
    BulletList,
    Callout,
    DataTable,
    DefinitionList,
    InlineContent,
    InlineElement,
    Paragraph,
    ShortFigure,
)
from hallmark.reports.page.figures import (
    SHARE_DIFFERENCE,
    Figure,
    format_number,
    format_unit_suffix,
)
from hallmark.reports.sections.decision_sheet import AuditCoverage, find_harm_without_planted_text
from hallmark.reports.sections.findings import (
    Findings,
    get_audit_title,
    name_finding,
)
from hallmark.tasks.audits.judging.conclusions import TOO_WEAK, UNIT_RANGES
from hallmark.tasks.audits.judging.discoveries import (
    compute_harm_rank,
    compute_scaled_distance_beyond_null,
    is_harmful,
    is_ranked,
)
from hallmark.tasks.audits.judging.findings import AuditControl
from hallmark.tasks.audits.judging.policy import describe_worsening, extract_missing_reason
from hallmark.tasks.audits.judging.policy_outcome import (
    VERDICT_NAMES,
    PolicyOutcome,
    describe_distance,
    judge_policy,
)
from hallmark.tasks.audits.judging.scorer_controls import collect_scorer_limits
from hallmark.tasks.audits.judging.selection import correct_interval_for_choice
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS, SKIPPED_COUNT_METRICS
from hallmark.tasks.contract import Artifact, Row, format_count, table_to_rows

#: Targets of controls that test the audits, whatever the model and the scorers are.
INSTRUMENT_TESTS = ("instrument", "baseline")

#: Largest number of findings in a list, and of verdicts in the table of the policy.
MAX_SHOWN_FINDINGS, MAX_SHOWN_VERDICTS = 5, 20


def collect_controls(findings: Findings) -> list[AuditControl]:
    """Return the controls of all audits."""
    return [
        AuditControl(audit, row)
        for audit, rows in findings.by_audit.items()
        for row, _ in rows
        if row["control"]
    ]


def list_failed_self_checks(controls: Sequence[AuditControl]) -> list[str]:
    """Return the titles of the audits in which a control that does not concern the model failed."""
    return _list_titles_of_audits_failing_controls(controls, INSTRUMENT_TESTS)


def find_audit_coverage(
    findings: Findings,
    failure_reason_by_audit: Mapping[str, str],
    skipped_audits: Sequence[str],
) -> AuditCoverage:
    """Return the audits without a figure, by the reason.

    Args:
        findings: The findings of the audits.
        failure_reason_by_audit: By audit or other part of the run that failed, the reason.
        skipped_audits: The audits that the user skipped.
    """
    failed, failed_parts = dict[str, str](), dict[str, str]()
    for name, reason in failure_reason_by_audit.items():
        (failed if name in AUDIT_DESCRIPTIONS else failed_parts)[name] = reason
    rows_by_audit = {audit: [row for row, _ in rows] for audit, rows in findings.by_audit.items()}
    weak_titles = list_titles_of_weak_audits(rows_by_audit, collect_controls(findings))
    empty = _find_missing_reason_by_audit(rows_by_audit)
    return AuditCoverage(
        failed=failed,
        failed_parts=failed_parts,
        skipped=skipped_audits,
        empty=empty,
        not_run=[
            audit
            for audit in AUDIT_DESCRIPTIONS
            if audit not in (*findings.by_audit, *failure_reason_by_audit, *skipped_audits)
        ],
        inconclusive=[
            audit
            for audit in findings.by_audit
            if get_audit_title(audit) in weak_titles and audit not in empty
        ],
    )


def describe_measurement_limits(findings: Findings, controls: Sequence[AuditControl]) -> str:
    """Say what the scorers miss or flag too often, and for which audits the model is too weak."""
    rows_by_audit = {audit: [row for row, _ in rows] for audit, rows in findings.by_audit.items()}
    weak_audits = list_titles_of_weak_audits(rows_by_audit, controls)
    unjudged_audits = _list_titles_of_unjudged_audits(controls, weak_audits)
    limits_by_scorer = collect_scorer_limits(control.row for control in controls)
    sentences = [
        sentence
        for scorer, limits in limits_by_scorer.items()
        for sentence in limits.list_sentences(scorer.split(" (")[0])
    ]
    if unjudged_audits:
        sentences.append(
            "It could not be judged whether the model is capable enough for these audits: "
            f"{', '.join(unjudged_audits)}."
        )
    sentences.append(
        "The intervals describe chance among the items of the audits. They do not cover other "
        "items that could have been written."
    )
    return " ".join(sentences)


def build_card_summary(
    findings: Findings,
    policy: Artifact | None,
    coverage: AuditCoverage,
    baseline_comparison: InlineContent,
    training_coverage: InlineContent,
    redact: Callable[[str], str],
) -> list[Block]:
    """Build the callout, the answers and the lists of the first screen.

    The callout is good only if every rule holds, every audit ran and measured something, and every
    control passed.

    Args:
        findings: The findings of the audits.
        policy: The output of the policy stage; None where no policy is configured.
        coverage: The audits without a figure.
        baseline_comparison: The baselines that predict held-out text at least as well as the model.
        training_coverage: The training text that the model has seen.
        redact: Redacts names of files.
    """
    controls = collect_controls(findings)
    failed_instruments = list_failed_self_checks(controls)
    weak_audits = list_titles_of_weak_audits(
        {
            audit: [row for row, _ in audit_findings]
            for audit, audit_findings in findings.by_audit.items()
        },
        controls,
    )
    unjudged_audits = _list_titles_of_unjudged_audits(controls, weak_audits)
    not_run_messages = [AUDIT_DESCRIPTIONS[audit].not_run_message for audit in coverage.not_run]
    failure_reasons = {**coverage.failed, **coverage.failed_parts}
    has_limited_scorer = bool(collect_scorer_limits(control.row for control in controls))
    findings_by_audit = {
        audit: [row for row, _ in rows] for audit, rows in findings.by_audit.items()
    }
    has_instrument_control = any(
        control.row["control_target"] in INSTRUMENT_TESTS for control in controls
    )
    verdicts = [] if policy is None else table_to_rows(policy["verdicts"].read())
    policy_outcome = judge_policy(verdicts)
    headline_parts = [
        summarize_control_results(controls, weak_audits),
        policy_outcome.describe() or "no verdict, because no policy is configured",
        _format_audit_run_counts(coverage),
    ]
    if failure_reasons:
        failed_titles = ", ".join(map(get_audit_title, failure_reasons))
        headline_parts[-1] = f"failed: {failed_titles}; {headline_parts[-1]}"
    is_bad, is_good = (
        bool(
            failed_instruments
            or policy_outcome.verdict in ("fail", "not_shown")
            or failure_reasons
            or not has_instrument_control
        ),
        bool(
            policy_outcome.verdict == "pass"
            and not coverage.missing_count
            and not (weak_audits or unjudged_audits or has_limited_scorer)
        ),
    )
    headline = "; ".join(headline_parts)
    coverage_gaps = [
        f"{get_audit_title(audit)} failed: {reason.rstrip('.')}."
        for audit, reason in failure_reasons.items()
    ]
    coverage_gaps += _describe_empty_audits(coverage.empty)
    if coverage.skipped:
        titles = ", ".join(map(get_audit_title, coverage.skipped))
        coverage_gaps.append(f"The user skipped these audits: {titles}.")
    coverage_gaps += [
        *not_run_messages,
        *_describe_unmeasured_figures(findings_by_audit, coverage.empty),
        *_describe_items(findings_by_audit),
    ]
    blocks: list[Block] = [
        Callout(
            "bad" if is_bad else "good" if is_good else "note", [_format_as_sentence(headline)]
        ),
        DefinitionList(
            [
                (
                    "Do the audits work?",
                    [_explain_control_results(controls, failed_instruments, weak_audits)],
                ),
                ("Policy", [_describe_policy(policy_outcome)]),
                (
                    "Not audited",
                    [" ".join(coverage_gaps) or "Every available audit ran."],
                ),
                *(
                    [("Compared with simpler models", baseline_comparison)]
                    if baseline_comparison
                    else []
                ),
            ]
        ),
    ]
    if verdicts:
        blocks.append(build_verdicts_table(verdicts, findings))
    largest_risks = rank_worst_finding_of_each_metric(findings)
    if largest_risks:
        lead = (
            "Largest harms found, ranked by the end of the interval that is closer to the value "
            "expected without an effect"
        )
        lead += (
            ", or by the value if there is no interval:"
            if _has_missing_interval(largest_risks)
            else ":"
        )
        blocks.append(Paragraph([lead]))
        blocks.append(BulletList([*map(_describe_harmful_finding, largest_risks)]))
        blocks += _describe_omitted_risks(findings, len(largest_risks))
    unranked_findings = _list_harmful_findings_without_unit_range(findings)
    if unranked_findings:
        lead = (
            "Other risks, in units that cannot be ranked with the risks above:"
            if largest_risks
            else "Risks, in units that cannot be ranked:"
        )
        lead += (
            f" the first {MAX_SHOWN_FINDINGS} of {len(unranked_findings)}:"
            if len(unranked_findings) > MAX_SHOWN_FINDINGS
            else ""
        )
        blocks.append(Paragraph([lead]))
        blocks.append(
            BulletList([*map(_describe_harmful_finding, unranked_findings[:MAX_SHOWN_FINDINGS])])
        )
    audited_parts: InlineContent = [_format_audits_with_files(findings, coverage.empty, redact)]
    return [
        *blocks,
        DefinitionList([("Training text seen", training_coverage), ("Audited", audited_parts)]),
    ]


def _format_audits_with_files(
    findings: Findings, missing_reason_by_audit: Mapping[str, str], redact: Callable[[str], str]
) -> str:
    """List the audits that measured something, each with its configured files of items."""
    audit_texts = []
    for audit in findings.by_audit:
        if audit in missing_reason_by_audit:
            continue
        artifact = findings.audit_artifacts.get(audit)
        files = (
            [] if artifact is None else list_configured_files(artifact.manifest["parts"]["config"])
        )
        file_list = ", ".join(map(redact, files))
        audit_texts.append(
            f"{get_audit_title(audit)} (on {file_list})" if file_list else get_audit_title(audit)
        )
    closing_sentence = (
        " Audits for which no file is listed use built-in items or the training corpus."
    )
    return ", ".join(audit_texts) + "." + closing_sentence if audit_texts else "Nothing."


def list_configured_files(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the files in settings: strings that have a file extension."""
    values = [
        v for value in config.values() for v in (value if isinstance(value, list) else [value])
    ]
    paths = [PurePath(value) for value in values if isinstance(value, str)]
    return [path.name for path in paths if path.suffix]


def describe_empty_audits_and_item_notes(
    findings_by_audit: Mapping[str, Sequence[Row]],
) -> list[str]:
    """Return sentences on audits that measured nothing, and notes on the items of audits."""
    missing_reason_by_audit = _find_missing_reason_by_audit(findings_by_audit)
    return [*_describe_empty_audits(missing_reason_by_audit), *_describe_items(findings_by_audit)]


def _find_missing_reason_by_audit(
    findings_by_audit: Mapping[str, Sequence[Row]],
) -> dict[str, str]:
    """Return the reason of each audit that ran but measured nothing."""
    measured_rows = {
        audit: [row for row in rows if not row["control"]]
        for audit, rows in findings_by_audit.items()
    }
    return {
        audit: extract_missing_reason(rows[0]["method"]) if rows else "it has only controls"
        for audit, rows in measured_rows.items()
        if all(row["value"] is None for row in rows)
    }


def _describe_empty_audits(missing_reason_by_audit: Mapping[str, str]) -> list[str]:
    return [
        f"{get_audit_title(audit)} measured nothing: {reason.rstrip('.')}."
        for audit, reason in missing_reason_by_audit.items()
    ]


def _describe_unmeasured_figures(
    findings_by_audit: Mapping[str, Sequence[Row]], missing_reason_by_audit: Mapping[str, str]
) -> list[str]:
    sentences = []
    for audit, findings in findings_by_audit.items():
        rows = [row for row in findings if not row["control"]]
        unmeasured_count = sum(row["value"] is None for row in rows)
        if unmeasured_count and audit not in missing_reason_by_audit:
            sentences.append(
                f"{get_audit_title(audit)} could not measure {unmeasured_count} of "
                f"{format_count(len(rows), 'figure')}."
            )
    return sentences


def _describe_items(findings_by_audit: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return a sentence for each audit with items that were skipped or that need a remark."""
    sentences = []
    for audit, rows in findings_by_audit.items():
        counts = [
            f"{row['title'].lower()}: {row['value']:,.0f}"
            for row in rows
            if row["metric"] in SKIPPED_COUNT_METRICS.get(audit, ()) and row["value"]
        ]
        if counts:
            sentences.append(f"{get_audit_title(audit)}, notes on items: {', '.join(counts)}.")
    return sentences


def _format_audit_run_counts(coverage: AuditCoverage) -> str:
    audit_count = len(AUDIT_DESCRIPTIONS)
    if len(coverage.failed) == audit_count:
        return "no audit ran"
    count_texts = [
        f"{count} of {audit_count} {outcome}"
        for count, outcome in (
            (len(coverage.skipped), "audits were skipped by the user"),
            (len(coverage.not_run), "audits did not run"),
            (len(coverage.empty), "measured nothing"),
        )
        if count
    ]
    if not count_texts:
        return "every other audit ran" if coverage.failed else "every audit ran"
    return ", ".join(count_texts)


def _format_as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _list_titles_of_audits_failing_controls(
    controls: Sequence[AuditControl], control_targets: Sequence[str]
) -> list[str]:
    """Return the titles of the audits in which a control with one of these targets failed."""
    return list(
        dict.fromkeys(
            get_audit_title(control.audit)
            for control in controls
            if control.row["control_target"] in control_targets and control.row["verdict"] == "fail"
        )
    )


def _list_titles_of_unjudged_audits(
    controls: Sequence[AuditControl], weak_audits: Sequence[str]
) -> list[str]:
    """Return the titles of the audits whose capability control could not be judged.

    Args:
        controls: All controls.
        weak_audits: Titles of the audits for which the model is too weak, which are omitted.
    """
    titles = dict.fromkeys(
        get_audit_title(control.audit)
        for control in controls
        if control.row["control_target"] == "model" and control.row["verdict"] == "not_shown"
    )
    return [title for title in titles if title not in weak_audits]


def list_titles_of_weak_audits(
    findings_by_audit: Mapping[str, Sequence[Mapping[str, Any]]], controls: Sequence[AuditControl]
) -> list[str]:
    """Return the titles of the audits for which the model is too weak, in the order of the card.

    These are audits with a failed capability control, and audits of stereotypes of a model that
    shows no planted association.

    Args:
        findings_by_audit: Rows of ``read_card_findings``.
        controls: The controls of these audits.
    """
    failing_titles = _list_titles_of_audits_failing_controls(controls, ("model",))
    weak_titles = [
        get_audit_title(audit)
        for audit, rows in findings_by_audit.items()
        if get_audit_title(audit) in failing_titles
        or any(row["inconclusive_reason"].startswith(TOO_WEAK) for row in rows)
    ]
    return weak_titles + [title for title in failing_titles if title not in weak_titles]


def summarize_control_results(
    controls: Sequence[AuditControl], weak_audits: Sequence[str] | None = None
) -> str:
    """Return which self-checks failed, for what the model is too weak, and what scorers miss.

    Args:
        controls: All controls.
        weak_audits: Titles of the audits for which the model is too weak; by default those with a
            failed capability control.
    """
    if not controls:
        return "no audit ran a control"
    limits_by_scorer = collect_scorer_limits(control.row for control in controls)
    scorer_texts = [
        f"; the scorer {scorer.split(' (')[0]} {limits.summarize()}"
        for scorer, limits in limits_by_scorer.items()
    ]
    if weak_audits is None:
        weak_audits = _list_titles_of_audits_failing_controls(controls, ("model",))
    return _summarize_checks_of_audits(controls, weak_audits) + "".join(scorer_texts)


def describe_scorer_limits(controls: Sequence[AuditControl]) -> list[str]:
    """Return a phrase for each scorer that fails a control, such as "the scorer X does not ..."."""
    limits_by_scorer = collect_scorer_limits(control.row for control in controls)
    return [
        f"the scorer {scorer.split(' (')[0]} {limits.describe()}"
        for scorer, limits in limits_by_scorer.items()
    ]


def _summarize_checks_of_audits(
    controls: Sequence[AuditControl], weak_audits: Sequence[str]
) -> str:
    failed_instruments = _list_titles_of_audits_failing_controls(controls, INSTRUMENT_TESTS)
    if failed_instruments:
        return f"audit self-checks failed ({', '.join(failed_instruments)})"
    weakness_text = (
        f", but this model is too weak for these audits: {', '.join(weak_audits)}"
        if weak_audits
        else ""
    )
    if unjudged_audits := _list_titles_of_unjudged_audits(controls, weak_audits):
        weakness_text += (
            ", and it could not be judged whether this model is capable enough for these audits: "
            f"{', '.join(unjudged_audits)}"
        )
    if not any(control.row["control_target"] in INSTRUMENT_TESTS for control in controls):
        return f"no audit ran a self-check{weakness_text.replace('but', 'and')}"
    return f"all audit self-checks passed{weakness_text}"


def _explain_control_results(
    controls: Sequence[AuditControl], failed_instruments: Sequence[str], weak_audits: Sequence[str]
) -> str:
    if not controls:
        return "No audit ran a control, so it is not known whether the audits can detect anything."
    control_targets = [control.row["control_target"] for control in controls]
    scorer_limits = describe_scorer_limits(controls)
    exception = ", except those of scorers," if scorer_limits else ""
    baseline_control_count = sum(target in ("scorer", "baseline") for target in control_targets)
    explanation = (
        f"No: {', '.join(failed_instruments)} did not detect a known effect, or reported an "
        "effect where there is none. Do not use figures of these audits until the cause is "
        "known."
        if failed_instruments
        else f"Yes: all model-independent controls{exception} gave the expected result."
    )
    if not any(target in INSTRUMENT_TESTS for target in control_targets):
        explanation = (
            "No control tests the audits themselves, so it is not known whether they can detect "
            "anything."
        )
    if baseline_control_count:
        explanation += f" {baseline_control_count} of {len(control_targets)} controls test a "
        explanation += "scorer or a baseline, not the model."
    for text in scorer_limits:
        explanation += f" {_format_as_sentence(text)}"
    if scorer_limits:
        explanation += " Figures based on a scorer say nothing about what it does not detect."
    unjudged_audits = _list_titles_of_unjudged_audits(controls, weak_audits)
    capability_tested_audits = [
        title
        for title in dict.fromkeys(
            get_audit_title(control.audit)
            for control in controls
            if control.row["control_target"] == "model"
        )
        if title not in unjudged_audits
    ]
    if capability_tested_audits and not weak_audits:
        explanation += (
            " This model is strong enough for these audits: "
            f"{', '.join(capability_tested_audits)}. For other audits, this was not tested."
        )
    if weak_audits:
        explanation += (
            f" This model is too weak for these audits: {', '.join(weak_audits)}. Their questions "
            "cannot be asked: the card draws no conclusion from their figures. Too little training "
            "is one possible cause."
        )
    if unjudged_audits:
        explanation += (
            " It could not be judged whether this model is capable enough for these audits: "
            f"{', '.join(unjudged_audits)}. The card draws no conclusion from their figures, which "
            "state the reason."
        )
    audits_without_numbers = list(
        dict.fromkeys(
            get_audit_title(control.audit)
            for control in controls
            if control.row["control_target"] == "model" and control.row["value"] is None
        )
    )
    if audits_without_numbers:
        explanation += (
            f" The model returned no valid number in {', '.join(audits_without_numbers)}: "
            "check its weights for NaN or infinity."
        )
    return explanation


def _describe_policy(policy_outcome: PolicyOutcome) -> str:
    if policy_outcome.verdict is None:
        return (
            "No verdict: no policy is configured. To set limits for findings, add "
            "[policy.rules.NAME] to the config."
        )
    rules_by_verdict = {
        "fail": policy_outcome.failed_rules,
        "not_shown": policy_outcome.not_shown_rules,
        "pass": policy_outcome.passed_rules,
    }
    rule_lists = [
        f" {VERDICT_NAMES[verdict].capitalize()}: {', '.join(rules)}."
        for verdict, rules in rules_by_verdict.items()
        if rules
    ]
    return _format_as_sentence(policy_outcome.describe()) + "".join(rule_lists)


def build_verdicts_table(verdicts: Sequence[Mapping[str, Any]], findings: Findings) -> DataTable:
    """Build the table of the verdicts of the policy, the worst first."""
    order = [*VERDICT_NAMES]
    worst_first = sorted(
        verdicts, key=lambda row: (order.index(row["verdict"]), -(row["distance"] or 0.0))
    )
    rows: list[list[InlineElement]] = []
    for row in worst_first[:MAX_SHOWN_VERDICTS]:
        figure = _find_verdict_figure(row, findings)
        finding_label = name_finding(
            {"title": findings.get_metric_title(row["audit"], row["metric"]), **row}
        )
        rows.append(
            [
                row["rule"],
                finding_label,
                VERDICT_NAMES[row["verdict"]],
                "–" if figure is None else figure,
                _format_distance(row, figure),
                _explain_verdict(row, figure),
            ]
        )
    omitted_count = len(verdicts) - len(rows)
    note = "Not shown: the finding shows neither that the rule holds nor that it does not." + (
        f" The table verdicts of the run has {format_count(omitted_count, 'more verdict')}."
        if omitted_count
        else ""
    )
    columns = ["rule", "finding", "verdict", "value", "distance", "reason"]
    return DataTable("Verdicts of the policy", columns, rows, frozenset({3}), note)


def _format_distance(verdict_row: Mapping[str, Any], figure: Figure | None) -> str:
    """Format the distance of a verdict from the limit; an en dash if it has none."""
    distance = verdict_row["distance"]
    if distance is None:
        return "–"
    unit = "" if figure is None else figure.unit
    distance_unit = SHARE_DIFFERENCE if unit == "share" else unit
    return describe_distance(distance, format_number(abs(distance), distance_unit))


def _explain_verdict(verdict_row: Mapping[str, Any], figure: Figure | None) -> str:
    """Return the compared end of the interval and the bound, in the figure's unit."""
    if figure is None or verdict_row["distance"] is None:
        return str(verdict_row["reason"])
    unit = figure.unit
    *_, sign, limit_text = verdict_row["bound"].split()
    limit = float(limit_text)
    if verdict_row["previous_run"]:
        difference_unit = SHARE_DIFFERENCE if unit == "share" else unit
        worsening = verdict_row["interval_end"]
        worsening_text = describe_worsening(
            worsening, format_number(abs(worsening), difference_unit)
        )
        return (
            f"in run {verdict_row['previous_run']} it was "
            f"{format_number(verdict_row['previous_value'], unit)}; the confidence interval of the "
            f"paired difference shows that it is now {worsening_text}; the rule allows less than "
            f"{format_number(limit, difference_unit)}"
        )
    end = "upper" if sign in ("<", "≤") else "lower"
    end_text = (
        "its value, an exact count," if figure.low is None else f"the {end} end of its interval"
    )
    return (
        f"{end_text} is {format_number(verdict_row['interval_end'], unit)} and must be {sign} "
        f"{format_number(limit, unit)}"
    )


def _find_verdict_figure(verdict_row: Mapping[str, Any], findings: Findings) -> Figure | None:
    """Return the figure that a verdict is about; None where the card has none."""
    audit_findings = findings.by_audit.get(verdict_row["audit"], [])
    key = (verdict_row["metric"], verdict_row["slice"])
    return next(
        (
            figure
            for finding_row, figure in audit_findings
            if (finding_row["metric"], finding_row["slice"]) == key and not finding_row["control"]
        ),
        None,
    )


class RankedFinding(NamedTuple):
    """A discovery of harm in the list of the largest harms.

    Attributes:
        audit: The name of the audit.
        row: Its row of the table ``findings``.
        figure: Its value as a figure of the card.
        part_count: Number of parts of the metric among which it is the worst.
    """

    audit: str
    row: Mapping[str, Any]
    figure: Figure
    part_count: int = 1


def rank_worst_finding_of_each_metric(
    findings: Findings, limit: int = MAX_SHOWN_FINDINGS
) -> list[RankedFinding]:
    """Return the most harmful finding of each metric, most harmful first.

    Only discoveries of harm in units with a known range are ranked, without planted text where an
    audit has such a figure: by the distance from the null
    value to the nearer end of the interval, which is corrected for the choice of the worst part.
    """
    worst_findings: list[RankedFinding] = []
    for audit, rows in findings.by_audit.items():
        for metric in dict.fromkeys(row["metric"] for row, _ in rows):
            parts = [entry for entry in rows if entry.row["metric"] == metric]
            harmful_parts = [
                (rank, harm.row, harm.figure)
                for part in parts
                if (harm := find_harm_without_planted_text(part, rows)) is not None
                and (rank := compute_harm_rank(harm.row)).has_range
            ]
            if harmful_parts:
                _, row, figure = max(harmful_parts, key=lambda part: part[0])
                part_count = sum(is_ranked(part_row) for part_row, _ in parts)
                worst_findings.append(RankedFinding(audit, row, figure, part_count))
    worst_findings.sort(key=_compute_corrected_distance, reverse=True)
    return worst_findings[:limit]


def _compute_corrected_distance(finding: RankedFinding) -> float:
    """Return the distance beyond the null value, by the interval corrected for the choice."""
    interval = correct_interval_for_choice(finding.row, finding.part_count)
    ends = {} if interval is None else dict(zip(("low", "high"), interval, strict=True))
    return compute_scaled_distance_beyond_null({**finding.row, **ends})


def _describe_omitted_risks(findings: Findings, shown_count: int) -> list[Block]:
    """Return how many ranked risks the list omits and why; nothing if it is complete."""
    risk_count = sum(
        compute_harm_rank(finding.row).has_range
        and find_harm_without_planted_text(finding, rows) is not None
        for rows in findings.by_audit.values()
        for finding in rows
    )
    omitted_count = risk_count - shown_count
    if not omitted_count:
        return []
    relation = "that is" if omitted_count == 1 else "that are"
    return [
        Paragraph(
            [
                f"This list is limited to {MAX_SHOWN_FINDINGS} findings and to the largest of "
                f"each metric of an audit. It omits {format_count(omitted_count, 'finding')} "
                f"{relation} also worse than under the null; hallmark findings lists all."
            ]
        )
    ]


def _has_missing_interval(audit_findings: Sequence[RankedFinding]) -> bool:
    """Return whether any of these findings has no interval."""
    return any(finding.row["low"] is None for finding in audit_findings)


def _list_harmful_findings_without_unit_range(findings: Findings) -> list[RankedFinding]:
    """Return harmful findings whose unit has no known range, in the order of the card."""
    return [
        RankedFinding(audit, row, figure)
        for audit, rows in findings.by_audit.items()
        for row, figure in rows
        if row["unit"] not in UNIT_RANGES and is_harmful(row)
    ]


def _describe_harmful_finding(finding: RankedFinding) -> InlineContent:
    """Describe a discovery with its value under the null.

    The worst of several parts gets the interval that is corrected for this choice.
    """
    audit, finding_row, figure, part_count = finding
    null_value = Figure(
        figure.id,
        "",
        finding_row["null_value"],
        finding_row["unit"],
        figure.evidence_id,
        "",
        "finding",
    ).short_text
    lead = f"{get_audit_title(audit)}. {name_finding(finding_row)}: "
    interval = correct_interval_for_choice(finding_row, part_count)
    value: list[InlineElement] = [figure]
    if part_count > 1 and interval is not None:
        low, high = (format_number(end, finding_row["unit"]) for end in interval)
        level = 100 * (finding_row["confidence_level"] or 0.95)
        unit_suffix = format_unit_suffix(figure.unit, finding_row["value"])
        scorer = f", scorer {figure.scorer}" if figure.scorer else ""
        value = [
            ShortFigure(figure),
            f"{unit_suffix} ({level:g} % interval {low} to {high}, corrected for the choice of the "
            f"worst of {part_count} parts; n = {finding_row['n']:,}{scorer})",
        ]
    elif part_count > 1:
        value = [figure, f", the worst of {part_count} parts"]
    return [lead, *value, f"; without an effect, it would be {null_value}."]
