"""Summarize what the rules of a run removed or tagged, and which identity groups most often.

``hallmark run`` prints the summary at its end and adds it to its JSON. All figures come from the
tables of the stages profile and removal_effects; nothing is counted again here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypedDict

from hallmark.flows.runs import Run
from hallmark.reports.page.figures import format_number
from hallmark.tasks.audits.judging.selection import correct_ratio_interval_for_choice
from hallmark.tasks.contract import Row, format_count
from hallmark.tasks.corpus.toxicity.actions import explain_action
from hallmark.tasks.measures.scorers import TOXICITY_HEADS


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
    low: float | None
    """Ends of the interval of the ratio, corrected for the choice of the highest ratios."""
    high: float | None
    is_significant: bool


class RemovalSummary(TypedDict):
    """What the rules of a run removed or tagged."""

    rules: list[RuleCount]
    """Rules that removed or tagged documents, the largest first."""
    actions: list[RuleAction]
    unscored: UnscoredDocuments
    groups: list[GroupRemovalRate]
    """Identity groups whose documents were removed more often than all others, without
    duplicates."""
    tagged_groups: list[GroupRemovalRate]
    """The same for rules that tag."""
    groups_compared: int
    min_group_documents: int
    """Groups with fewer documents are not ranked."""


#: Maximum number of lines for rules, for groups removed and for groups tagged. With two headings,
#: a line on further rules and one on documents without a score, that is twelve lines.
MAX_RULES_SHOWN, MAX_REMOVED_GROUPS_SHOWN, MAX_TAGGED_GROUPS_SHOWN = 3, 3, 2

#: Why documents have no score, by their status in the table ``toxicity_status``.
UNSCORED_REASONS = {
    "other language": "in an undetermined language or one that the scorer does not support",
    "cleared": "judged harmless by the cheap first scorer of the cascade",
    "empty": "empty",
    "failed": "failed",
}

#: Stages whose reasons in the ledger are names of rules: both uses of select, and cut_toxic.
FILTER_STAGES = ("select", "select_scored", "cut_toxic")

#: The lexicon of the invented peoples of the demo corpus.
TOWN_LEXICON = "town"

#: The rows of removal_rates that count removals for any reason other than duplication.
NON_DUPLICATE_REMOVALS = {"stage": "", "reason": "all except duplicates"}


def summarize_removals(run: Run) -> RemovalSummary | None:
    """Summarize the removals and tags of a run, and the identity groups with the highest rates.

    Returns None if the run stopped before the stages profile and removal_effects.
    """
    if not {"profile", "removal_effects"} <= run.stages.keys():
        return None
    effects = run["removal_effects"]
    identity_rates = [
        row for row in effects["removal_rates"].read().to_pylist() if row["dimension"] == "identity"
    ]
    rules = _count_removals_by_rule(run) + _count_tags_by_rule(run)
    tagging_rules = {(rule["stage"], rule["rule"]) for rule in rules if rule["action"] == "tagged"}
    removal_rates = [row for row in identity_rates if row.items() >= NON_DUPLICATE_REMOVALS.items()]
    tag_rates = [row for row in identity_rates if (row["stage"], row["reason"]) in tagging_rules]
    lexicons = run["identities"]["lexicons"].read(["lexicon", "group_name"]).to_pylist()
    invented_groups = {row["group_name"] for row in lexicons if row["lexicon"] == TOWN_LEXICON}
    return {
        "rules": sorted(rules, key=lambda rule: -rule["documents"]),
        "actions": _list_toxicity_rule_actions(run),
        "unscored": _count_unscored_documents(run),
        "groups": _rank_overrepresented_groups(removal_rates, invented_groups),
        "tagged_groups": _rank_overrepresented_groups(tag_rates, invented_groups),
        "groups_compared": len(removal_rates),
        "min_group_documents": effects.manifest["parts"]["config"]["min_group_documents"],
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
    """Read how many documents each rule tagged from the table ``tag_counts``."""
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
    group_rates: list[Row], invented_groups: Collection[str]
) -> list[GroupRemovalRate]:
    """Return the groups with a higher rate than all other documents, the highest ratio first.

    Their intervals are corrected for showing only the highest of all groups that were compared.
    """
    ranked_rates = [
        row
        for row in group_rates
        if row["removed_documents"] and row["removal_rate"] > row["other_removal_rate"]
    ]
    ranked_rates.sort(
        key=lambda row: (
            row["rate_ratio"] is not None,
            -(row["rate_ratio"] or 0),
            -row["documents"],
        )
    )
    intervals = [
        correct_ratio_interval_for_choice(
            row["rate_ratio"] or 0.0, row["low"], row["high"], len(group_rates)
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
            "ratio": row["rate_ratio"],
            "low": low,
            "high": high,
            "is_significant": row["verdict"] == "more",
        }
        for row, (low, high) in zip(ranked_rates, intervals, strict=True)
    ]


def render_removals(summary: RemovalSummary | None) -> list[str]:
    """Format the summary as lines for a terminal; no lines if nothing was removed or tagged."""
    if not summary or not summary["rules"]:
        return []
    reasons_by_rule = {row["rule"]: row["reason"] for row in summary["actions"]}
    lines = [
        _render_rule_line(rule, reasons_by_rule) for rule in summary["rules"][:MAX_RULES_SHOWN]
    ]
    if hidden_rules := summary["rules"][MAX_RULES_SHOWN:]:
        lines.append(
            f"{len(hidden_rules)} more {'rule' if len(hidden_rules) == 1 else 'rules'} removed or "
            "tagged documents; the datasheet lists all"
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
    has_removals = any(rule["action"] == "removed" for rule in summary["rules"])
    if has_removals and not summary["groups_compared"]:
        lines.append(f"removals by identity group are not compared: there are no {size_condition}")
    removed = "removed (by any stage except deduplication)"
    for groups, verb, limit in (
        (summary["groups"], removed, MAX_REMOVED_GROUPS_SHOWN),
        (summary["tagged_groups"], "tagged", MAX_TAGGED_GROUPS_SHOWN),
    ):
        if shown_groups := groups[:limit]:
            lines.append(
                f"documents that mention these people were {verb} most often, {size_condition}, "
                "intervals corrected for this choice:"
            )
            lines += [_render_group_line(row) for row in shown_groups]
    return lines


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
    if row["ratio"] is not None:
        high = "∞" if row["high"] is None else f"{row['high']:.1f}"
        interval = "" if row["low"] is None else f" (95 % CI {row['low']:.1f}–{high})"
        line += f"; {row['ratio']:.1f} times as often{interval}"
    return (
        line
        if row["is_significant"]
        else f"{line}; not statistically significant (near-duplicates count once)"
    )


def _format_document_share(row: RuleCount | UnscoredDocuments | GroupRemovalRate) -> str:
    share = format_number(row["documents"] / row["total"], "share")
    return f"{row['documents']:,} of {format_count(row['total'], 'document')} ({share})"
