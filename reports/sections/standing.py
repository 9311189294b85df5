"""The first screen of a model card: whether to believe the audits, what they found against the
policy, what they did not look at; and the findings that are furthest from what is harmless."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from reports.page.document import Block, Bullets, Callout, Facts, Inline, Paragraph, Parts
from reports.page.figures import Figure
from reports.sections.findings import Finding, Findings, title, words
from tasks.audits.about import AUDITS, LEFT_OUT, SIGNIFICANT
from tasks.contract import Artifact

#: What controls test whose answer does not depend on the model.
INSTRUMENTS = ("instrument", "scorer", "baseline")

#: Findings that are said in a sentence.
SHOWN = 5

#: How far from each other values of a unit may be: distances are compared as shares of it.
RANGE = {"share": 1.0, "probability": 1.0, "score": 1.0, "percent": 100.0, "bits": 10.0}


def standing(
    findings: Findings,
    policy: Artifact | None,
    failed: Mapping[str, str],
    beside: Parts,
    read: Parts,
    visible: Callable[[str], str],
) -> list[Block]:
    """What a reader must know first. Green only where all of it holds. ``failed``: why, by what of
    the examination could not be made; ``beside``: the baselines that are ahead; ``read``: what the
    model has read; ``visible``: names of files as they may be shown."""
    controls = [(name, row) for name, rows in findings.by_audit.items()
                for row, _ in rows if row["control"]]  # fmt: skip
    broken = _failed(controls, INSTRUMENTS)
    weak = _failed(controls, ("model",))
    missing = [
        about.without for name, about in AUDITS.items()
        if name not in findings.by_audit and name not in failed
    ]  # fmt: skip
    mute = _mute(findings)
    tested = any(row["tests"] in INSTRUMENTS for _, row in controls)
    verdicts = [] if policy is None else policy["verdicts"].read().to_pylist()
    fails = [row for row in verdicts if row["verdict"] != "pass"]
    rules = {row["rule"] for row in verdicts}
    said = [
        _instruments(controls, broken, weak),
        "nothing was judged: there is no policy" if not rules else
        _count_rules(len(rules), fails) if fails else f"all {len(rules)} rules of the policy hold",
        _ran(len(missing), len(mute), len([name for name in failed if name in AUDITS])),
    ]  # fmt: skip
    if failed:
        said[-1] = f"failed: {', '.join(map(title, failed))}; {said[-1]}"
    bad, good = (
        bool(broken or fails or failed or not tested),
        bool(rules and not missing and not mute and not weak),
    )
    headline = "; ".join(said)
    silent = [f"{title(name)} failed: {why.rstrip('.')}." for name, why in failed.items()]
    silent += [f"{title(name)} measured nothing: {why.rstrip('.')}." for name, why in mute.items()]
    silent += [*missing, *_partly(findings, mute)]
    blocks: list[Block] = [
        Callout("bad" if bad else "good" if good else "note", [_sentence(headline)]),
        Facts(
            [
                ("Do the instruments work?", [_believed(controls, broken, weak)]),
                ("Against the policy", _judged(rules, fails, findings)),
                ("Not audited", [" ".join(silent) or "Nothing that can be audited was left out."]),
                *([("Beside simpler models", beside)] if beside else []),
            ]
        ),
    ]
    worst = worst_of(findings)
    if worst:
        lead = "Furthest from what a harmless model has, by the nearer end of the interval"
        lead += ", or by the value where all values agree:" if _agree(worst) else ":"
        blocks.append(Paragraph([lead]))
        blocks.append(Bullets([_said(name, row, figure) for name, row, figure in worst]))
    unranked = _unranked(findings)
    if unranked:
        lead = "Worse than what a harmless model has, in units that cannot be ranked with others:"
        lead += f" the first {SHOWN} of {len(unranked)}:" if len(unranked) > SHOWN else ""
        blocks.append(Paragraph([lead]))
        blocks.append(Bullets([_said(name, row, figure) for name, row, figure in unranked[:SHOWN]]))
    audited: Parts = [_audited(findings, visible)]
    return [*blocks, Facts([("What it had read", read), ("Audited", audited)])]


def _audited(findings: Findings, visible: Callable[[str], str]) -> str:
    """The audits, each with the files that it was made on; the others have items of their own."""
    said = []
    for name in findings.by_audit:
        artifact = findings.audits.get(name)
        files = [] if artifact is None else files_of(artifact.manifest["parts"]["config"])
        named = ", ".join(map(visible, files))
        said.append(f"{title(name)} (on {named})" if named else title(name))
    rest = " Where no file is named an audit has items of its own, or asks about the corpus."
    return ", ".join(said) + "." + rest if said else "Nothing."


def files_of(config: Mapping[str, Any]) -> list[str]:
    """The names of the files that settings name."""
    values = [
        v for value in config.values() for v in (value if isinstance(value, list) else [value])
    ]
    paths = [PurePath(value) for value in values if isinstance(value, str)]
    return [path.name for path in paths if path.suffix]


def _mute(findings: Findings) -> dict[str, str]:
    """The audits that ran without a single figure, each with why."""
    found = {name: [row for row, _ in rows if not row["control"]]
             for name, rows in findings.by_audit.items()}  # fmt: skip
    return {
        name: rows[0]["method"].removeprefix("not measured: ") if rows else "it has controls alone"
        for name, rows in found.items()
        if all(row["value"] is None for row in rows)
    }


def _partly(findings: Findings, mute: Mapping[str, str]) -> list[str]:
    """Say of each audit that measured something what it did not measure, and what it left out."""
    said = []
    for name, found in findings.by_audit.items():
        rows = [row for row, _ in found if not row["control"]]
        unknown = sum(row["value"] is None for row in rows)
        if unknown and name not in mute:
            said.append(f"{title(name)} could not measure {unknown} of {len(rows)} figures.")
        counts = [
            f"{words(row['metric']).lower()}: {row['value']:,.0f}"
            for row in rows
            if row["metric"] in LEFT_OUT.get(name, ()) and row["value"]
        ]
        if counts:
            said.append(f"{title(name)} left items out ({', '.join(counts)}).")
    return said


def _ran(missing: int, mute: int, failed: int) -> str:
    if failed == len(AUDITS):
        return "no audit ran"
    if not missing and not mute:
        return "every other audit ran" if failed else "every audit ran"
    said = [f"{missing} of {len(AUDITS)} audits did not run"] if missing else []
    said += [f"{mute} of {len(AUDITS)} measured nothing"] if mute else []
    return ", ".join(said)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _failed(controls: Sequence[tuple[str, Mapping[str, Any]]], of: Sequence[str]) -> list[str]:
    """The audits of which a control of these kinds failed."""
    return list(dict.fromkeys(title(name) for name, row in controls
                              if row["tests"] in of and row["verdict"] != "pass"))  # fmt: skip


def _instruments(controls: Sequence[Any], broken: Sequence[str], weak: Sequence[str]) -> str:
    if not controls:
        return "no audit ran a control"
    if broken:
        return f"instruments failed ({', '.join(broken)})"
    few = f", but this model is too weak for {', '.join(weak)}" if weak else ""
    if not any(row["tests"] in INSTRUMENTS for _, row in controls):
        return f"no audit ran a control of its instruments{few.replace('but', 'and')}"
    return f"the instruments work{few}"


def _believed(controls: Sequence[Any], broken: Sequence[str], weak: Sequence[str]) -> str:
    if not controls:
        return "No audit ran a control: nothing shows that they can detect."
    kinds = [row["tests"] for _, row in controls]
    alone = sum(kind in ("scorer", "baseline") for kind in kinds)
    said = (
        f"No: {', '.join(broken)} did not detect what it must, or detected what it must not. Do "
        f"not rely on its figures before the cause is known."
        if broken
        else "Yes: every control whose answer is known whatever the model came out as it must."
    )
    if not any(kind in INSTRUMENTS for kind in kinds):
        said = "No control tests the audits themselves: nothing shows that they can detect."
    if alone:
        said += f" {alone} of {len(kinds)} controls test a scorer or a baseline, not the model."
    asking = list(dict.fromkeys(title(name) for name, row in controls if row["tests"] == "model"))
    if asking and not weak:
        said += (
            f" Whether this model is strong enough to be asked is known for {', '.join(asking)} "
            f"alone: it is."
        )
    if weak:
        said += (
            f" This model is too weak to be asked by {', '.join(weak)}: what is not found there "
            f"says nothing of a stronger one; an undertrained model is one cause."
        )
    mute = list(dict.fromkeys(title(name) for name, row in controls
                              if row["tests"] == "model" and row["value"] is None))  # fmt: skip
    if mute:
        said += (
            f" To {', '.join(mute)} it gave no number at all: see whether its weights hold NaN or "
            f"infinity."
        )
    return said


def _count_rules(rules: int, fails: Sequence[Mapping[str, Any]]) -> str:
    """Say how many rules are broken, and how many are not shown to hold."""
    broken = {row["rule"] for row in fails if row["distance"] is not None}
    unshown = {row["rule"] for row in fails} - broken
    counts = ((broken, "broken"), (unshown, "not shown to hold"))
    return " and ".join(
        f"{len(names)} of {rules} rules of the policy are {how}" for names, how in counts if names
    )


def _judged(rules: set[str], fails: Sequence[Mapping[str, Any]], findings: Findings) -> Parts:
    if not rules:
        return ["Nothing was judged. A policy says what findings must be: [policy.rules.NAME]."]
    if not fails:
        return [f"All {len(rules)} rules hold."]
    parts: list[Inline] = []
    for row in fails[:SHOWN]:
        part = f"{words(row['metric'])} {row['slice']}".strip()
        parts += [" " if parts else "", f"{row['rule']}: {part}, {row['why']}"]
        if row["distance"] is not None:
            parts.append(f" ({row['distance']:.3g} beyond it)")
        figure = _figure(row, findings)
        parts += [": ", figure, "."] if figure is not None else ["."]
    if len(fails) > SHOWN:
        parts.append(f" And {len(fails) - SHOWN} more, in the table verdicts of the run.")
    return parts


def _figure(row: Mapping[str, Any], findings: Findings) -> Figure | None:
    """The figure that a verdict is about."""
    known = findings.by_audit.get(row["audit"], [])
    key = (row["metric"], row["slice"])
    return next(
        (f for r, f in known if (r["metric"], r["slice"]) == key and not r["control"]), None
    )


def worst_of(findings: Findings, most: int = SHOWN) -> list[tuple[str, dict[str, Any], Figure]]:
    """Of each metric the finding that is, by the nearer end of its interval, the furthest from what
    a harmless model has; the furthest first. What chance explains is none."""
    best: dict[tuple[str, str], tuple[float, str, Finding]] = {}
    for name, rows in findings.by_audit.items():
        for row, figure in rows:
            found = distance(row)
            key = (name, row["metric"])
            if found > 0 and found > best.get(key, (0.0,))[0]:
                best[key] = (found, name, (row, figure))
    ordered = sorted(best.values(), key=lambda entry: -entry[0])[:most]
    return [(name, row, figure) for _, name, (row, figure) in ordered]


def _agree(worst: Sequence[tuple[str, Mapping[str, Any], Figure]]) -> bool:
    """Whether any of these has no interval."""
    return any(row["low"] is None for _, row, _ in worst)


def _unranked(findings: Findings) -> list[tuple[str, dict[str, Any], Figure]]:
    """Findings on the worse side of their null whose unit has no range, in the card's order."""
    return [
        (name, row, figure)
        for name, rows in findings.by_audit.items()
        for row, figure in rows
        if row["unit"] not in RANGE and not row["control"] and reach(row) > 0
    ]


def distance(row: Mapping[str, Any]) -> float:
    """How far the nearer end of a finding's interval lies on the worse side of its null, as a share
    of the range of its unit; 0 where chance explains it, nothing is worse, or it has no range."""
    scale = RANGE.get(row["unit"])
    return 0.0 if scale is None else reach(row) / scale


def reach(row: Mapping[str, Any]) -> float:
    """The same in the unit itself. Where all agree there is no interval, and the value counts."""
    null, low, high = row["null"], row["low"], row["high"]
    p = row["p_corrected"]
    if p is not None and low is None and high is None:
        low = high = row["value"]
    if not row["worse"] or None in (null, low, high) or (p or 0) >= SIGNIFICANT:
        return 0.0
    if p is None and row["worse"] == "apart":  # nothing tells it from chance
        return 0.0
    up, down = low - null, null - high
    return max(0.0, float({"up": up, "down": down, "apart": max(up, down)}[row["worse"]]))


def _said(audit: str, row: Mapping[str, Any], figure: Figure) -> Parts:
    part = f"{words(row['metric'])}, {row['slice']}" if row["slice"] else words(row["metric"])
    null = Figure(figure.id, "", row["null"], row["unit"], figure.evidence, "", "finding").short
    return [f"{title(audit)}. {part}: ", figure, f"; {null} where there is nothing to find."]
