"""Summarize what a run removed or tagged, and documents about which identity groups most often.

``hallmark run`` prints the summary at its end and adds it to its JSON. All figures come from the
tables of the stages profile and removal_effects; nothing is counted again here. What was removed in
total and by group is in the ``group_removals`` table, which the datasheet shows, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypedDict

from hallmark.flows.runs import Run
from hallmark.reports.page.figures import format_number
from hallmark.reports.sections.group_removals import format_false_discovery_rate
from hallmark.tasks.audits.judging.selection import correct_ratio_interval_for_choice
from hallmark.tasks.contract import Artifact, Row, format_count
from hallmark.tasks.corpus.toxicity.actions import explain_action
from hallmark.tasks.measures.scorers import TOXICITY_HEADS


class StageRemovals(TypedDict):
    """How many documents a stage removed or quarantined."""

    stage: str
    documents: int


class TotalRemovals(TypedDict):
    """How many documents all stages removed."""

    documents: int
    total: int
    """Documents that ingest read."""
    duplicates: int
    """Removed documents that are exact or near duplicates of another document."""
    lost: int
    """Removed documents of whose text no copy remains."""
    stages: list[StageRemovals]
    """Stages that removed documents, in the order in which they ran."""


class RuleCount(TypedDict):
    """How many documents a rule removed or tagged."""

    stage: str
    rule: str
    action: str
    """"removed" or "tagged"."""
    documents: int
    total: int
    """Documents that reached the rule."""
    share: float


class RuleAction(TypedDict):
    """The action of a rule over a toxicity score, and why it applies."""

    rule: str
    action: str
    reason: str


class UnscoredDocuments(TypedDict):
    """Documents without a toxicity score, of those that reached the rules."""

    documents: int
    total: int
    by_status: dict[str, int]


class GroupRemovalRate(TypedDict):
    """How often documents that mention a group were removed or tagged, and all others."""

    group: str
    is_invented: bool
    documents: int
    total: int
    share: float
    other_documents: int
    other_total: int
    other_share: float
    ratio: float | None
    """Removal ratio, adjusted for source; null if it is infinite."""
    low: float | None
    """Ends of the 95 % interval of the ratio. Only for a rule that tags, the interval is corrected
    for the choice of the highest ratios."""
    high: float | None
    q: float | None
    """False discovery rate of the difference; null for a rule that tags, whose adjusted ratio has
    no q."""
    is_significant: bool
    """Whether q is below 5 %; for a rule that tags, whether the interval is above 1."""


class RemovalSummary(TypedDict):
    """What a run removed or tagged."""

    total: TotalRemovals
    rules: list[RuleCount]
    """Rules that removed or tagged documents, the largest first."""
    actions: list[RuleAction]
    unscored: UnscoredDocuments
    groups: list[GroupRemovalRate]
    """Identity groups whose documents were removed more often than all others of the same sources,
    duplicates included."""
    tagged_groups: list[GroupRemovalRate]
    """The same for rules that tag."""
    groups_compared: int
    min_group_documents: int
    """Groups with fewer documents are not ranked."""


#: Maximum number of lines for rules, for groups removed and for groups tagged. With the total, two
#: headings, a line on further rules and one on documents without a score, that is twelve lines.
MAX_RULES_SHOWN, MAX_REMOVED_GROUPS_SHOWN, MAX_TAGGED_GROUPS_SHOWN = 2, 3, 2

#: Why documents have no score, by their status in the ``toxicity_status`` table.
UNSCORED_REASONS = {
    "other language": "in a language that the scorer does not support",
    "undetermined language": "in an undetermined language and a script that the scorer does not "
    "support",
    "cleared": "judged harmless by the cascade's cheap first scorer",
    "empty": "empty",
    "failed": "failed",
}

#: Stages whose reasons in the ledger are names of rules: both uses of select, and cut_toxic.
FILTER_STAGES = ("select", "select_scored", "cut_toxic")

#: The lexicon of the invented peoples of the demo corpus.
TOWN_LEXICON = "town"


def summarize_removals(run: Run) -> RemovalSummary | None:
    """Summarize the removals and tags of a run, and the identity groups with the highest rates.

    Returns None if the run stopped before the stages profile and removal_effects.
    """
    if not {"profile", "removal_effects"} <= run.stages.keys():
        return None
    effects = run["removal_effects"]
    min_group_documents = effects.manifest["parts"]["config"]["min_group_documents"]
    group_rates = [
        row
        for row in effects["group_removals"].read().to_pylist()
        if row["dimension"] == "identity" and row["documents"] >= min_group_documents
    ]
    rules = _count_removals_by_rule(run) + _count_tags_by_rule(run)
    tagging_rules = {(rule["stage"], rule["rule"]) for rule in rules if rule["action"] == "tagged"}
    tag_rates = [
        row
        for row in effects["removal_rates"].read().to_pylist()
        if row["dimension"] == "identity" and (row["stage"], row["reason"]) in tagging_rules
    ]
    lexicons = run["identities"]["lexicons"].read(["lexicon", "group_name"]).to_pylist()
    invented_groups = {row["group_name"] for row in lexicons if row["lexicon"] == TOWN_LEXICON}
    return {
        "total": _read_total_removals(effects),
        "rules": sorted(rules, key=lambda rule: -rule["documents"]),
        "actions": _list_toxicity_rule_actions(run),
        "unscored": _count_unscored_documents(run),
        "groups": _rank_overrepresented_groups(group_rates, "adjusted", invented_groups),
        "tagged_groups": _rank_overrepresented_groups(
            tag_rates, "source_adjusted", invented_groups
        ),
        "groups_compared": len(group_rates),
        "min_group_documents": min_group_documents,
    }


def _read_total_removals(effects: Artifact) -> TotalRemovals:
    """Read the row for all documents from ``group_removals`` and ``group_removals_by_reason``."""
    [total] = [row for row in effects["group_removals"].read().to_pylist() if not row["dimension"]]
    stages: dict[str, int] = {}
    for row in effects["group_removals_by_reason"].read().to_pylist():
        if not row["dimension"]:
            stages[row["stage"]] = stages.get(row["stage"], 0) + row["documents"]
    return {
        "documents": total["removed_documents"],
        "total": total["documents"],
        "duplicates": total["duplicate_documents"],
        "lost": total["lost_documents"],
        "stages": [{"stage": name, "documents": count} for name, count in stages.items()],
    }


def _count_removals_by_rule(run: Run) -> list[RuleCount]:
    """Read how many documents each rule removed from ``ledger_summary`` and ``stage_accounts``."""
    removed_counts: dict[tuple[str, str], int] = {}
    for row in run["profile"]["ledger_summary"].read().to_pylist():
        if row["stage"] in FILTER_STAGES and row["action"] == "removed":
            key = (row["stage"], row["reason"])
            removed_counts[key] = removed_counts.get(key, 0) + row["rows"]
    input_counts: dict[str, int] = {}
    for row in run["profile"]["stage_accounts"].read().to_pylist():
        if row["unit"] == "rows":
            input_counts[row["stage"]] = input_counts.get(row["stage"], 0) + row["input"]
    return [
        _build_rule_count(stage, rule, "removed", removed_count, input_counts[stage])
        for (stage, rule), removed_count in removed_counts.items()
    ]


def _count_tags_by_rule(run: Run) -> list[RuleCount]:
    """Read how many documents each rule tagged from the ``tag_counts`` table."""
    counts: dict[tuple[str, str], list[int]] = {}
    for row in run["profile"]["tag_counts"].read().to_pylist():
        totals = counts.setdefault((row["stage"], row["rule"]), [0, 0])
        totals[0] += row["tagged_documents"]
        totals[1] += row["documents"]
    return [
        _build_rule_count(stage, rule, "tagged", tagged_count, document_count)
        for (stage, rule), (tagged_count, document_count) in counts.items()
        if tagged_count
    ]


def _build_rule_count(
    stage: str, rule: str, action: str, affected_count: int, total_count: int
) -> RuleCount:
    return {
        "stage": stage,
        "rule": rule,
        "action": action,
        "documents": affected_count,
        "total": total_count,
        "share": affected_count / total_count,
    }


def _list_toxicity_rule_actions(run: Run) -> list[RuleAction]:
    """Return the action of each rule over a toxicity score in the config of the run, and why."""
    scorer_kind = run.record["config"]["score_toxicity"]["scorer"]["kind"]
    return [
        {
            "rule": rule["name"],
            "action": rule["action"],
            "reason": explain_action(rule["action"], scorer_kind),
        }
        for rule in run.record["config"]["select_scored"]["rules"]
        if rule["signal"] in TOXICITY_HEADS
    ]


def _count_unscored_documents(run: Run) -> UnscoredDocuments:
    """Read how many documents have no toxicity score, and why, from ``toxicity_status``."""
    rows = run["profile"]["toxicity_status"].read().to_pylist()
    by_status: Counter[str] = Counter()
    for row in rows:
        by_status[row["status"]] += row["documents"]
    total = by_status.total()
    return {
        "documents": total - by_status.pop("scored", 0),
        "total": total,
        "by_status": dict(by_status),
    }


def _rank_overrepresented_groups(
    group_rates: list[Row], column_prefix: str, invented_groups: Collection[str]
) -> list[GroupRemovalRate]:
    """Return the groups with a higher rate than all other documents, the highest ratio first.

    The ``group_removals`` table has q for each group. For a rule that tags there is none for the
    adjusted ratio; its interval is corrected for showing only the highest of all groups.

    Args:
        group_rates: Rows of ``group_removals`` or, for a rule that tags, ``removal_rates``.
        column_prefix: Prefix of the columns with the adjusted ratio and its interval.
        invented_groups: Names of groups that do not exist.
    """
    ratio_name, low_name, high_name = (f"{column_prefix}_{end}" for end in ("ratio", "low", "high"))
    ranked_rates = [
        row
        for row in group_rates
        if row[low_name] is not None and (row[ratio_name] is None or row[ratio_name] > 1)
    ]
    ranked_rates.sort(
        key=lambda row: (
            row[ratio_name] is not None,
            -(row[ratio_name] or 0),
            -row["documents"],
            row["slice"],
        )
    )
    has_q = column_prefix == "adjusted"
    intervals = [
        (row[low_name], row[high_name])
        if has_q
        else correct_ratio_interval_for_choice(
            row[ratio_name] or 0.0, row[low_name], row[high_name], len(group_rates)
        )
        for row in ranked_rates
    ]
    return [
        {
            "group": row["slice"],
            "is_invented": row["slice"] in invented_groups,
            "documents": row["removed_documents"],
            "total": row["documents"],
            "share": row["removal_rate"],
            "other_documents": row["other_removed_documents"],
            "other_total": row["other_documents"],
            "other_share": row["other_removal_rate"],
            "ratio": row[ratio_name],
            "low": low,
            "high": high,
            "q": row["q"] if has_q else None,
            "is_significant": row["verdict"] == "more" if has_q else low is not None and low > 1,
        }
        for row, (low, high) in zip(ranked_rates, intervals, strict=True)
    ]


def render_removals(summary: RemovalSummary | None) -> list[str]:
    """Format the summary as lines for a terminal; no lines if nothing was removed or tagged."""
    if not summary or not (summary["rules"] or summary["total"]["documents"]):
        return []
    reasons_by_rule = {row["rule"]: row["reason"] for row in summary["actions"]}
    lines = [_render_total_line(summary["total"])] if summary["total"]["documents"] else []
    lines += [
        _render_rule_line(rule, reasons_by_rule) for rule in summary["rules"][:MAX_RULES_SHOWN]
    ]
    if hidden_rules := summary["rules"][MAX_RULES_SHOWN:]:
        lines.append(
            f"{len(hidden_rules)} more {'rule' if len(hidden_rules) == 1 else 'rules'} removed or "
            "tagged documents; the datasheet lists all rules"
        )
    unscored = summary["unscored"]
    if unscored["documents"]:
        reasons = ", ".join(
            f"{count:,} {UNSCORED_REASONS.get(status, status)}"
            for status, count in unscored["by_status"].items()
            if count
        )
        verb = "has" if unscored["documents"] == 1 else "have"
        lines.append(f"{_format_document_share(unscored)} {verb} no toxicity score: {reasons}")
    size_condition = (
        f"groups with at least {format_count(summary['min_group_documents'], 'document')}"
    )
    if summary["total"]["documents"] and not summary["groups_compared"]:
        lines.append(
            "removal rates of identity groups are not compared, because there are no "
            f"{size_condition}"
        )
    q_note = (
        "removals by all stages are counted, including those of duplicates; q is the p-value "
        "adjusted for the false discovery rate"
    )
    choice_note = "intervals corrected for the selection of these groups"
    for groups, verb, limit, note in (
        (summary["groups"], "removed", MAX_REMOVED_GROUPS_SHOWN, q_note),
        (summary["tagged_groups"], "tagged", MAX_TAGGED_GROUPS_SHOWN, choice_note),
    ):
        if shown_groups := groups[:limit]:
            lines.append(
                f"documents that mention these groups of people were {verb} most often "
                f"({size_condition}; ratios adjusted for source; {note}):"
            )
            lines += [_render_group_line(row) for row in shown_groups]
    return lines


def _render_total_line(total: TotalRemovals) -> str:
    stages = ", ".join(f"{row['documents']:,} by {row['stage']}" for row in total["stages"])
    return (
        f"removed {_format_document_share(total)}: {stages}, including "
        f"{format_count(total['duplicates'], 'duplicate')} of other documents; no copy of the text "
        f"remains for {format_count(total['lost'], 'document')}"
    )


def _render_rule_line(rule: RuleCount, reasons_by_rule: dict[str, str]) -> str:
    kept_suffix = " and kept them" if rule["action"] == "tagged" else ""
    rule_name = rule["rule"].removesuffix(" unknown")
    reason_suffix = (
        f"; {reasons_by_rule[rule_name]}"
        if rule["stage"] == "select_scored" and rule_name in reasons_by_rule
        else ""
    )
    return (
        f"{rule['stage']}: {rule['rule']} {rule['action']} "
        f"{_format_document_share(rule)}{kept_suffix}{reason_suffix}"
    )


def _render_group_line(row: GroupRemovalRate) -> str:
    other_share = format_number(row["other_share"], "share")
    other_documents = f"{row['other_documents']:,} of {row['other_total']:,} ({other_share})"
    group_name = f"{row['group']} (invented)" if row["is_invented"] else row["group"]
    line = f"  {group_name}: {_format_document_share(row)}; all other documents: {other_documents}"
    q_text = "" if row["q"] is None else format_false_discovery_rate(row["q"])
    if row["ratio"] is None:
        line += f"; {q_text}" if q_text else ""
    else:
        line += f"; {_format_ratio(row['ratio'])} times as often"
        high = "∞" if row["high"] is None else _format_ratio(row["high"])
        interval = "" if row["low"] is None else f"95 % CI {_format_ratio(row['low'])}–{high}"
        if details := ", ".join(filter(None, (interval, q_text))):
            line += f" ({details})"
    return (
        line
        if row["is_significant"]
        else f"{line}; not statistically significant (near-duplicates are counted once)"
    )


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _format_document_share(
    row: RuleCount | UnscoredDocuments | GroupRemovalRate | TotalRemovals,
) -> str:
    share = format_number(row["documents"] / row["total"], "share")
    return f"{row['documents']:,} of {format_count(row['total'], 'document')} ({share})"
