"""What the rules of a run removed or tagged, and which identity groups that hit hardest.

``hallmark run`` prints it at its end and adds it to its JSON. Every figure is read from the tables
of the stages profile and effects; nothing is counted again here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from flows.runs import Run
from tasks.corpus.toxicity.actions import explain_action
from tasks.measures.scorers import HEADS

Report = dict[str, Any]
Row = dict[str, Any]

#: Lines that are printed at most: of rules, of groups removed, of groups tagged. With two
#: headings, a line on further rules and one on documents without a score, twelve in all.
RULES_SHOWN, REMOVED_SHOWN, TAGGED_SHOWN = 3, 3, 2

#: Why documents have no score, by their status in the table ``toxicity_status``.
UNSCORED = {
    "other language": "in a language that the scorer was not made for, or an undetermined one",
    "cleared": "cleared by the cheap scorer",
    "empty": "empty",
    "failed": "failed",
}

#: Stages whose reasons in the ledger are rules: both uses of select, and what cuts toxic windows.
FILTERS = ("select", "select_scored", "cut_toxic")

#: The reason under which effects counts documents removed for any reason but as duplicates.
NOT_AS_COPIES = {"stage": "", "reason": "struck out"}


def summarize_removals(run: Run) -> Report:
    """Return what the rules of a run removed or tagged, and the identity groups hit hardest.

    Returns:
        ``rules``: one entry for each rule that removed or tagged documents, the largest first.
        ``actions``: the action of each rule over a toxicity score, and why it applies.
        ``unscored``: documents without a toxicity score, of those that reached the rules.
        ``groups``: identity groups whose documents were removed more often than all others,
        duplicates not counted; ``tagged_groups``: the same for rules that tag.
        ``least_documents``: groups with fewer documents are not ranked.
        Empty where the run stopped before the stages profile and effects.
    """
    if not {"profile", "effects"} <= run.stages.keys():
        return {}
    effects = run["effects"]
    rates = [row for row in effects["rates"].read().to_pylist() if row["dimension"] == "identity"]
    rules = _removing_rules(run) + _tagging_rules(run)
    tagging = {(rule["stage"], rule["rule"]) for rule in rules if rule["action"] == "tagged"}
    removed = [row for row in rates if row.items() >= NOT_AS_COPIES.items()]
    tagged = [row for row in rates if (row["stage"], row["reason"]) in tagging]
    return {
        "rules": sorted(rules, key=lambda rule: -rule["documents"]),
        "actions": _toxicity_actions(run),
        "unscored": _count_unscored(run),
        "groups": _rank_groups(removed),
        "tagged_groups": _rank_groups(tagged),
        "groups_compared": len(removed),
        "least_documents": effects.manifest["parts"]["config"]["least"],
    }


def _removing_rules(run: Run) -> list[Row]:
    """Return the documents that each rule removed, by the tables ``reasons`` and ``flow``."""
    removed: dict[tuple[str, str], int] = {}
    for row in run["profile"]["reasons"].read().to_pylist():
        if row["stage"] in FILTERS and row["action"] == "removed":
            key = (row["stage"], row["reason"])
            removed[key] = removed.get(key, 0) + row["rows"]
    entered: dict[str, int] = {}
    for row in run["profile"]["flow"].read().to_pylist():
        if row["unit"] == "rows":
            entered[row["stage"]] = entered.get(row["stage"], 0) + row["in"]
    return [
        _rule_entry(stage, rule, "removed", documents, entered[stage])
        for (stage, rule), documents in removed.items()
    ]


def _tagging_rules(run: Run) -> list[Row]:
    """Return the documents that each rule tagged, by the table ``tagged``."""
    counts: dict[tuple[str, str], list[int]] = {}
    for row in run["profile"]["tagged"].read().to_pylist():
        total = counts.setdefault((row["stage"], row["rule"]), [0, 0])
        total[0] += row["tagged"]
        total[1] += row["documents"]
    return [
        _rule_entry(stage, rule, "tagged", tagged, kept)
        for (stage, rule), (tagged, kept) in counts.items()
        if tagged
    ]


def _rule_entry(stage: str, rule: str, action: str, documents: int, total: int) -> Row:
    return {
        "stage": stage,
        "rule": rule,
        "action": action,
        "documents": documents,
        "of": total,
        "share": documents / total,
    }


def _toxicity_actions(run: Run) -> list[Row]:
    """Return the action of each rule over a toxicity score, as the config of the run has it."""
    kind = run.record["config"]["score_toxicity"]["scorer"]["kind"]
    return [
        {
            "rule": rule["name"],
            "action": rule["action"],
            "why": explain_action(rule["action"], kind),
        }
        for rule in run.record["config"]["select_scored"]["rules"]
        if rule["signal"] in HEADS
    ]


def _count_unscored(run: Run) -> Row:
    """Return how many documents have no toxicity score, by the table ``toxicity_status``."""
    rows = run["profile"]["toxicity_status"].read().to_pylist()
    by_status: Counter[str] = Counter()
    for row in rows:
        by_status[row["status"]] += row["documents"]
    total = by_status.total()
    return {
        "documents": total - by_status.pop("scored", 0),
        "of": total,
        "by_status": dict(by_status),
    }


def _rank_groups(rates: list[Row]) -> list[Row]:
    """Return the groups hit more often than all other documents, the highest ratio first."""
    hit = [row for row in rates if row["removed"] and row["rate"] > row["other_rate"]]
    hit.sort(key=lambda row: (row["ratio"] is not None, -(row["ratio"] or 0), -row["n"]))
    return [
        {
            "group": row["slice"],
            "documents": row["removed"],
            "of": row["n"],
            "share": row["rate"],
            "other_documents": row["other_removed"],
            "other_of": row["other_n"],
            "other_share": row["other_rate"],
            "ratio": row["ratio"],
            "low": row["low"],
            "high": row["high"],
            "shown": row["verdict"] == "more",
        }
        for row in hit
    ]


def render_removals(report: Report) -> list[str]:
    """Return the summary as lines for a terminal: none where nothing was removed or tagged."""
    if not report or not report["rules"]:
        return []
    whys = {row["rule"]: row["why"] for row in report["actions"]}
    lines = [_render_rule(rule, whys) for rule in report["rules"][:RULES_SHOWN]]
    if more := report["rules"][RULES_SHOWN:]:
        lines.append(f"{len(more)} more rules removed or tagged documents; the datasheet lists all")
    unscored = report["unscored"]
    if unscored["documents"]:
        reasons = ", ".join(
            f"{UNSCORED.get(status, status)} {count:,}"
            for status, count in unscored["by_status"].items()
            if count
        )
        lines.append(f"{_count(unscored)} have no toxicity score: {reasons}")
    least = f"groups with at least {report['least_documents']} documents"
    removed = any(rule["action"] == "removed" for rule in report["rules"])
    if removed and not report["groups_compared"]:
        lines.append(f"removals by identity group are not compared: there are no {least}")
    for groups, verb, most in (
        ("groups", "removed (as duplicates not counted)", REMOVED_SHOWN),
        ("tagged_groups", "tagged", TAGGED_SHOWN),
    ):
        if shown := report[groups][:most]:
            lines.append(f"documents that mention these people were {verb} most often, {least}:")
            lines += [_render_group(row) for row in shown]
    return lines


def _render_rule(rule: Row, whys: dict[str, str]) -> str:
    kept = " and kept them" if rule["action"] == "tagged" else ""
    name = rule["rule"].removesuffix(" unknown")
    why = f"; {whys[name]}" if rule["stage"] == "select_scored" and name in whys else ""
    return f"{rule['stage']}: {rule['rule']} {rule['action']} {_count(rule)}{kept}{why}"


def _render_group(row: Row) -> str:
    others = f"{row['other_documents']:,} of {row['other_of']:,} ({_percent(row['other_share'])})"
    said = f"  {row['group']}: {_count(row)}; all other documents: {others}"
    if row["ratio"] is not None:
        high = "∞" if row["high"] is None else f"{row['high']:.1f}"
        interval = "" if row["low"] is None else f" (95 % CI {row['low']:.1f}–{high})"
        said += f"; {row['ratio']:.1f} times as often{interval}"
    return said if row["shown"] else f"{said}; may be due to chance (near copies count once)"


def _count(row: Row) -> str:
    share = _percent(row["documents"] / row["of"])
    return f"{row['documents']:,} of {row['of']:,} documents ({share})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
