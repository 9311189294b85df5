"""Build the section on the main results of a model card.

It answers whether the audits work and what the policy says of each rule. It lists harms that the
decision sheet does not name, and what the model had read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from hallmark.reports.page.document import (
    Block,
    BulletList,
    DataTable,
    DefinitionEntry,
    DefinitionList,
    InlineContent,
    InlineElement,
    Link,
    Paragraph,
    ShortFigure,
)
from hallmark.reports.page.figures import (
    SHARE_DIFFERENCE,
    Figure,
    format_number,
)
from hallmark.reports.sections.decision_sheet import (
    NOT_MEASURED_LINK,
    AuditCoverage,
    build_risk_lines,
    describe_discovery,
    explain_untested_audit,
    is_contradicted,
)
from hallmark.reports.sections.findings import (
    CONTROLS_PAGE,
    Finding,
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
from hallmark.tasks.audits.registry import (
    AUDIT_DESCRIPTIONS,
    REQUIRED_SETTINGS,
    SKIPPED_COUNT_METRICS,
)
from hallmark.tasks.contract import Artifact, Row, format_count, table_to_rows

#: Targets of controls that test the audits, whatever the model and the scorers are.
INSTRUMENT_TESTS = ("instrument", "baseline")

#: What figures are compared with.
COMPARISON_NOTE = (
    "The value expected with no effect (null value) is the average result that an audit would "
    "measure if the effect did not exist. A baseline is another model, method or text whose value "
    "replaces the null value."
)

#: What intervals do not say.
INTERVAL_NOTE = (
    "Intervals describe chance variation among the prompts, sentence pairs and canaries in these "
    "audits. They do not cover other prompts that could have been written."
)

#: What controls test, as a sentence names it, by the target of the control.
CONTROL_SUBJECTS = {
    "instrument": "audits",
    "baseline": "baselines",
    "model": "this model",
    "scorer": "scorers",
}

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
    controls = collect_controls(findings)
    weak_titles = list_titles_of_weak_audits(rows_by_audit, controls)
    empty = _find_missing_reason_by_audit(rows_by_audit)
    not_run = [
        audit
        for audit in AUDIT_DESCRIPTIONS
        if audit not in (*findings.by_audit, *failure_reason_by_audit, *skipped_audits)
    ]
    return AuditCoverage(
        failed=failed,
        failed_parts=failed_parts,
        skipped=skipped_audits,
        empty=empty,
        without_data=[audit for audit in not_run if audit in REQUIRED_SETTINGS],
        without_corpus=[audit for audit in not_run if audit not in REQUIRED_SETTINGS],
        inconclusive={
            audit: _find_weakness(rows)
            for audit, rows in rows_by_audit.items()
            if get_audit_title(audit) in weak_titles and audit not in empty
        },
        untested={
            audit: reason
            for audit in rows_by_audit
            if audit not in empty
            and get_audit_title(audit) not in weak_titles
            and (reason := explain_untested_audit(audit, findings))
        },
        contradicted=[audit for audit in rows_by_audit if is_contradicted(audit, findings)],
    )


def _find_weakness(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why the model is too weak for an audit, from the findings of the audit."""
    reasons = (row["inconclusive_reason"] for row in rows)
    return next((reason for reason in reasons if reason.startswith(TOO_WEAK)), TOO_WEAK)


def describe_measurement_limits(
    findings: Findings, controls: Sequence[AuditControl]
) -> InlineContent:
    """Say what the scorers miss or flag too often, and for which audits the model is too weak.

    Mentions of the controls link to their page, which has the numbers.
    """
    rows_by_audit = {audit: [row for row, _ in rows] for audit, rows in findings.by_audit.items()}
    weak_audits = list_titles_of_weak_audits(rows_by_audit, controls)
    unjudged_audits = _list_titles_of_unjudged_audits(controls, weak_audits)
    limits_by_scorer = collect_scorer_limits(control.row for control in controls)
    sentences = [
        parts
        for scorer, limits in limits_by_scorer.items()
        for parts in limits.list_sentences(scorer.split(" (")[0])
    ]
    if unjudged_audits:
        sentences.append(
            (
                "It could not be determined whether the model is capable enough for these audits: "
                f"{', '.join(unjudged_audits)}.",
            )
        )
    content: list[InlineElement] = []
    for first_text, *other_texts in sentences or [(INTERVAL_NOTE,)]:
        content += [" ", first_text] if content else [first_text]
        for text in other_texts:
            content += [Link("the controls", f"{CONTROLS_PAGE}.html"), text]
    return content


def build_card_summary(
    findings: Findings,
    policy: Artifact | None,
    coverage: AuditCoverage,
    training_coverage: InlineContent,
    redact: Callable[[str], str],
) -> list[Block]:
    """Build what the section on main results says besides the decision sheet.

    Args:
        findings: The findings of the audits.
        policy: The output of the policy stage; None where no policy is configured.
        coverage: The audits without a figure.
        training_coverage: The training text that the model has seen.
        redact: Redacts names of files.
    """
    controls = collect_controls(findings)
    file_rows = _build_item_file_rows(findings, coverage.empty, redact)
    measured_count = len(findings.by_audit.keys() - coverage.empty.keys())
    verdicts = [] if policy is None else table_to_rows(policy["verdicts"].read())
    entries: list[DefinitionEntry] = [
        ("Do the audits work?", _explain_control_results(findings, controls))
    ]
    entries += [
        ("Training text seen", training_coverage),
        ("Audit items", [_describe_items(measured_count, len(file_rows))]),
    ]
    entries.append(("Value expected with no effect, and baseline", [COMPARISON_NOTE]))
    if verdicts:
        entries.append(("Policy", [_describe_policy(judge_policy(verdicts))]))
    blocks: list[Block] = [DefinitionList(entries)]
    if file_rows:
        blocks.append(DataTable("Files that contain audit items", ["audit", "files"], file_rows))
    if verdicts:
        blocks.append(build_verdicts_table(verdicts, findings))
    return [*blocks, *_list_further_harms(findings, coverage)]


def _list_further_harms(findings: Findings, coverage: AuditCoverage) -> list[Block]:
    """List discoveries of harm that the decision sheet does not name, in the same words."""
    named_ids = {
        element.figure.id
        for line in build_risk_lines(findings, coverage)
        for element in line.content
        if isinstance(element, ShortFigure)
    }
    ranked_findings = [
        finding
        for finding in rank_worst_finding_of_each_metric(findings)
        if finding.figure.id not in named_ids
    ]
    unranked_findings = [
        finding
        for finding in _list_harmful_findings_without_unit_range(findings)
        if finding.figure.id not in named_ids
    ]
    shown_findings = [*ranked_findings, *unranked_findings][:MAX_SHOWN_FINDINGS]
    if not shown_findings:
        return []
    lead = "Further harms, counted but not listed on the first screen:"
    items = [_describe_harmful_finding(finding, findings) for finding in shown_findings]
    return [
        Paragraph([lead]),
        BulletList(items),
        *_describe_omitted_harms(findings, named_ids, shown_findings),
    ]


def _build_item_file_rows(
    findings: Findings, missing_reason_by_audit: Mapping[str, str], redact: Callable[[str], str]
) -> list[list[InlineElement]]:
    """Build a row with the configured files of items of each audit that measured something."""
    return [
        [get_audit_title(audit), ", ".join(map(redact, files))]
        for audit in findings.by_audit
        if audit not in missing_reason_by_audit
        and (files := list_configured_files(findings.get_settings(audit)))
    ]


def _describe_items(measured_count: int, with_files_count: int) -> str:
    """Say where the items of the audits come from, apart from the names of files.

    Args:
        measured_count: Number of audits that measured something.
        with_files_count: Number of these whose items are in configured files.
    """
    if not measured_count:
        return "No audit produced any measurements."
    if not with_files_count:
        return "The audits use built-in items or the training corpus."
    verb = "reads" if with_files_count == 1 else "read"
    text = f"{format_count(with_files_count, 'audit')} {verb} files; the table below lists them."
    if with_files_count == measured_count:
        return text
    return f"{text} The other audits use built-in items or the training corpus."


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
    empty_audits = [
        f"{get_audit_title(audit)} measured nothing: {reason.rstrip('.')}."
        for audit, reason in missing_reason_by_audit.items()
    ]
    item_notes = [
        f"The “{get_audit_title(audit)}” audit skipped or flagged items ({', '.join(notes)})."
        for audit, rows in findings_by_audit.items()
        if (notes := list_item_notes(audit, rows))
    ]
    return [*empty_audits, *item_notes]


def _find_missing_reason_by_audit(
    findings_by_audit: Mapping[str, Sequence[Row]],
) -> dict[str, str]:
    """Return the reason of each audit that ran but measured nothing."""
    measured_rows = {
        audit: [row for row in rows if not row["control"]]
        for audit, rows in findings_by_audit.items()
    }
    return {
        audit: extract_missing_reason(rows[0]["method"]) if rows else "it contains only controls"
        for audit, rows in measured_rows.items()
        if all(row["value"] is None for row in rows)
    }


def list_item_notes(audit: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many items of an audit were skipped, or need a remark, by the kind of remark.

    Args:
        audit: The name of the audit.
        rows: Its rows of ``read_card_findings``.
    """
    return [
        f"{row['title'].lower()}: {row['value']:,.0f}"
        for row in rows
        if row["metric"] in SKIPPED_COUNT_METRICS.get(audit, ()) and row["value"]
    ]


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


def list_titles_of_weak_audits_with_passed_controls(findings: Findings) -> list[str]:
    """Return the titles of audits without a conclusion whose controls the model passed.

    These are audits of stereotypes of a model that shows no planted association.
    """
    titles = []
    for audit, audit_findings in findings.by_audit.items():
        verdicts = {row["verdict"] for row, _ in audit_findings if row["control_target"] == "model"}
        if verdicts == {"pass"} and any(
            row["inconclusive_reason"].startswith(TOO_WEAK) for row, _ in audit_findings
        ):
            titles.append(get_audit_title(audit))
    return titles


def count_control_results(controls: Sequence[AuditControl]) -> str:
    """Return how many controls gave the expected result, in a clause, by what they test.

    The clause names each target that has controls, with the controls that failed and those without
    a clear result.
    """
    count_texts = []
    for target, subject in CONTROL_SUBJECTS.items():
        verdicts = [
            control.row["verdict"]
            for control in controls
            if control.row["control_target"] == target
        ]
        exceptions = [
            f"{count} {outcome}"
            for verdict, outcome in (("fail", "failed"), ("not_shown", "without a clear result"))
            if (count := verdicts.count(verdict))
        ]
        if verdicts:
            exception_text = f" ({', '.join(exceptions)})" if exceptions else ""
            passed_count = verdicts.count("pass")
            count_texts.append(f"{subject} {passed_count} of {len(verdicts)}{exception_text}")
    return f"controls with the expected result: {', '.join(count_texts)}"


def summarize_control_results(
    controls: Sequence[AuditControl], weak_audits: Sequence[str] | None = None
) -> str:
    """Return the results of the controls, and what follows from those that failed, in one line.

    Args:
        controls: All controls.
        weak_audits: Titles of the audits for which the model is too weak; by default those with a
            failed capability control.
    """
    if not controls:
        return "no audit ran any controls"
    if weak_audits is None:
        weak_audits = _list_titles_of_audits_failing_controls(controls, ("model",))
    clauses = [count_control_results(controls)]
    if failed_audits := list_failed_self_checks(controls):
        clauses.append(f"controls failed in these audits: {', '.join(failed_audits)}")
    if not any(control.row["control_target"] in INSTRUMENT_TESTS for control in controls):
        clauses.append("no control tests the audits themselves")
    if weak_audits:
        clauses.append(f"this model is too weak for these audits: {', '.join(weak_audits)}")
    if unjudged_audits := _list_titles_of_unjudged_audits(controls, weak_audits):
        clauses.append(
            "it could not be determined whether this model is capable enough for these audits: "
            f"{', '.join(unjudged_audits)}"
        )
    limits_by_scorer = collect_scorer_limits(control.row for control in controls)
    clauses += [
        f"the scorer {scorer.split(' (')[0]} {limits.summarize()}"
        for scorer, limits in limits_by_scorer.items()
    ]
    return "; ".join(clauses)


def describe_scorer_limits(controls: Sequence[AuditControl]) -> list[str]:
    """Return a phrase for each scorer that fails a control, such as "the scorer X does not ..."."""
    limits_by_scorer = collect_scorer_limits(control.row for control in controls)
    return [
        f"the scorer {scorer.split(' (')[0]} {limits.describe()}"
        for scorer, limits in limits_by_scorer.items()
    ]


def _explain_control_results(findings: Findings, controls: Sequence[AuditControl]) -> InlineContent:
    """Say what the controls show about the audits, their scorers and this model."""
    if not controls:
        return [
            "No audit ran a control, so it is not known whether the audits can detect anything."
        ]
    rows_by_audit = {audit: [row for row, _ in rows] for audit, rows in findings.by_audit.items()}
    weak_audits = list_titles_of_weak_audits(rows_by_audit, controls)
    unjudged_audits = _list_titles_of_unjudged_audits(controls, weak_audits)
    if not any(control.row["control_target"] in INSTRUMENT_TESTS for control in controls):
        sentences = [
            "No control was used to test the audits themselves, so it is not known whether they "
            "can detect anything."
        ]
    elif failed_audits := list_failed_self_checks(controls):
        sentences = [
            f"No: {', '.join(failed_audits)} did not detect a known effect, or reported an effect "
            "where there is none. Do not use the results of these audits until the cause is known."
        ]
    else:
        sentences = ["All audit and baseline controls gave the expected result."]
    sentences.append(_format_as_sentence(count_control_results(controls)))
    if collect_scorer_limits(control.row for control in controls):
        sentences.append(
            "Figures based on a scorer do not cover harmful text that the scorer misses; “Limits” "
            "on the first screen lists the affected types of text."
        )
    if passed_controls := _list_passed_model_controls(controls, [*weak_audits, *unjudged_audits]):
        sentences.append(
            "This model passes the controls that these audits require: "
            f"{'; '.join(passed_controls)}. Capability was not tested for audits that are not "
            f"listed here or under “Not measured”."
        )
    if unjudged_audits:
        sentences.append(
            "It could not be determined whether this model is capable enough for these audits: "
            f"{', '.join(unjudged_audits)}. The card draws no conclusion from their figures; the "
            f"reasons are on the pages for these audits."
        )
    audits_without_numbers = dict.fromkeys(
        get_audit_title(control.audit)
        for control in controls
        if control.row["control_target"] == "model" and control.row["value"] is None
    )
    if audits_without_numbers:
        sentences.append(
            f"The model returned no valid number in {', '.join(audits_without_numbers)}. Check "
            "its weights for NaN or infinite values."
        )
    if not weak_audits:
        return [" ".join(sentences)]
    possessive, audits = (
        ("its", "this audit") if len(weak_audits) == 1 else ("their", "these audits")
    )
    sentences.append(
        f"This model is too weak for {format_count(len(weak_audits), 'audit')}, so the card draws "
        f"no conclusion from {possessive} figures. Too little training is one possible cause. “"
    )
    return [" ".join(sentences), NOT_MEASURED_LINK, f"” lists {audits}."]


def _list_passed_model_controls(
    controls: Sequence[AuditControl], excluded_titles: Sequence[str]
) -> list[str]:
    """Name the passed controls of the model by audit, with what each measures."""
    metrics_by_audit: dict[str, list[str]] = {}
    for audit, row in controls:
        title = get_audit_title(audit)
        if row["control_target"] == "model" and title not in excluded_titles:
            metrics_by_audit.setdefault(title, []).append(row["title"])
    return [
        f"{title} ({', '.join(dict.fromkeys(metrics))})"
        for title, metrics in metrics_by_audit.items()
    ]


def _describe_policy(policy_outcome: PolicyOutcome) -> str:
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
    note = (
        "Each rule limits a single figure, whereas the risks on the first screen are judged by "
        "all tests and by whether these tests detect planted text. “Not shown” means that the "
        "finding shows neither compliance with the rule nor a violation."
    ) + (
        f" The run's verdicts table contains {format_count(omitted_count, 'further verdict')}."
        if omitted_count
        else ""
    )
    columns = ["rule", "finding", "verdict", "value", "distance", "reason"]
    return DataTable("Policy verdicts", columns, rows, frozenset({3}), note)


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
            f"paired difference shows that it is now {worsening_text}; the rule allows a worsening "
            f"of less than {format_number(limit, difference_unit)}"
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
        row: Its row of the ``findings`` table.
        figure: Its value as a figure of the card.
        part_count: Number of parts of the metric among which it is the worst.
    """

    audit: str
    row: Mapping[str, Any]
    figure: Figure
    part_count: int = 1


def rank_worst_finding_of_each_metric(findings: Findings) -> list[RankedFinding]:
    """Return the most harmful finding of each metric, most harmful first.

    Only discoveries of harm in units with a known range are ranked: by the distance from the null
    value to the nearer end of the interval, which is corrected for the choice of the worst part.
    """
    worst_findings: list[RankedFinding] = []
    for audit, rows in findings.by_audit.items():
        for metric in dict.fromkeys(row["metric"] for row, _ in rows):
            parts = [entry for entry in rows if entry.row["metric"] == metric]
            harmful_parts = [
                (rank, part.row, part.figure)
                for part in parts
                if (rank := compute_harm_rank(part.row)).has_range
            ]
            if harmful_parts:
                _, row, figure = max(harmful_parts, key=lambda part: part[0])
                part_count = sum(is_ranked(part_row) for part_row, _ in parts)
                worst_findings.append(RankedFinding(audit, row, figure, part_count))
    worst_findings.sort(key=_compute_corrected_distance, reverse=True)
    return worst_findings


def _compute_corrected_distance(finding: RankedFinding) -> float:
    """Return the distance beyond the null value, by the interval corrected for the choice."""
    interval = correct_interval_for_choice(finding.row, finding.part_count)
    ends = {} if interval is None else dict(zip(("low", "high"), interval, strict=True))
    return compute_scaled_distance_beyond_null({**finding.row, **ends})


def _describe_omitted_harms(
    findings: Findings, named_ids: Collection[str], shown_findings: Sequence[RankedFinding]
) -> list[Block]:
    """Return how many discoveries of harm the list omits and why; nothing if it is complete.

    Args:
        findings: The findings of all audits.
        named_ids: Ids of the figures that the decision sheet names.
        shown_findings: The discoveries of the list.
    """
    harm_ids = {
        finding.figure.id
        for rows in findings.by_audit.values()
        for finding in rows
        if is_harmful(finding.row)
    }
    omitted_count = len(harm_ids - {*named_ids, *(each.figure.id for each in shown_findings)})
    if not omitted_count:
        return []
    return [
        Paragraph(
            [
                "This list contains only the largest finding for each audit metric, up to "
                f"{MAX_SHOWN_FINDINGS} findings. It omits "
                f"{format_count(omitted_count, 'further harm')}; to list all of them, run "
                "hallmark findings."
            ]
        )
    ]


def _list_harmful_findings_without_unit_range(findings: Findings) -> list[RankedFinding]:
    """Return harmful findings whose unit has no known range, in the order of the card."""
    return [
        RankedFinding(audit, row, figure)
        for audit, rows in findings.by_audit.items()
        for row, figure in rows
        if row["unit"] not in UNIT_RANGES and is_harmful(row)
    ]


def _describe_harmful_finding(finding: RankedFinding, findings: Findings) -> InlineContent:
    """Describe a discovery in the words of the decision sheet.

    The worst of several parts also gets the interval that is corrected for this choice.
    """
    content = describe_discovery(Finding(dict(finding.row), finding.figure), findings)
    interval = correct_interval_for_choice(finding.row, finding.part_count)
    choice = f" It is the worst of {finding.part_count} parts"
    if finding.part_count == 1:
        return [*content, "."]
    if interval is None:
        return [*content, f".{choice}."]
    low, high = (format_number(end, finding.row["unit"]) for end in interval)
    return [*content, f".{choice}; corrected for this choice, the interval is {low} to {high}."]
