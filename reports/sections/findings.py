"""The findings of audits on a model card: whether to believe them, and what they say in short."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.page.document import Block, Grid, Inline, Paragraph, Parts
from reports.page.figures import Book, Figure
from tasks.audits.about import AUDITS, SIGNIFICANT
from tasks.audits.judging.tags import tags_of
from tasks.contract import Artifact
from tasks.measures.corrections import benjamini_hochberg

BASELINES = {
    "model": "this model",
    "gzip": "gzip -9",
    "bigram": "interpolated bigram",
    "fivegram": "interpolated 5-gram",
    "recurrent": "small LSTM",
}

#: Lines of the summary about an audit that has none of its own there.
HEADLINES = 3

Finding = tuple[dict[str, Any], Figure]


def title(audit: str) -> str:
    """What an audit is called on the card; one that is no more, as its stage."""
    return AUDITS[audit].title if audit in AUDITS else audit


def words(metric: str) -> str:
    """The name of a metric as a page spells it."""
    return "AUC" if metric == "auc" else metric.replace("_", " ").capitalize()


def natural(text: str) -> list[Any]:
    """Sorts "copies=8" before "copies=16", and "dose=0.75" before "dose=0.9"."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(p), "") if p[:1].isdecimal() else (-1.0, p) for p in parts]


#: Tags of findings about groups of people, or about kinds of groups.
GROUP_TAGS = frozenset(
    {"bias_type", "category", "domain", "gender", "group", "mentions", "pronoun", "test"}
)


def is_about_groups(row: Mapping[str, Any]) -> bool:
    """Whether a finding is about groups of people: no limit on rows applies to these."""
    return not GROUP_TAGS.isdisjoint(tags_of(row))


def select_findings(found: Sequence[Finding], limit: int) -> list[Finding]:
    """Select the findings that a table or a chart has room for, in the order they come in.

    Findings about groups of people are always among them: which groups there are must not depend on
    their names. Of the others these are the ``limit`` that differ most surely from their null
    value: those with the smallest p, then with the largest difference.
    """

    def sureness(place: int) -> tuple[float, float]:
        row, figure = found[place]
        p, null = row.get("p_corrected"), row.get("null")
        difference = None if figure.value is None else abs(figure.value - (null or 0.0))
        return (2.0 if p is None else p, math.inf if difference is None else -difference)

    groups = {place for place, (row, _) in enumerate(found) if is_about_groups(row)}
    others = sorted({*range(len(found))} - groups, key=sureness)
    return [found[place] for place in sorted(groups.union(others[:limit]))]


def side_of_null(row: Mapping[str, Any]) -> int:
    """The side of its null on which a finding is: 1 above, -1 below, 0 where none is shown.

    What decides are the interval and the corrected p that tables show, either of them: a sentence
    that says nothing was found holds only where this is 0.
    """
    value, null, low, high = (row[name] for name in ("value", "null", "low", "high"))
    if value is None or null is None:
        return 0
    if low is not None and high is not None and (low > null or high < null):
        return 1 if low > null else -1
    p = row["p_corrected"]
    is_found = p is not None and p < SIGNIFICANT
    return (value > null) - (value < null) if is_found else 0


@dataclass
class Findings:
    """Every finding of every audit, entered as a figure in the order of the card. Rows that are
    compared with a null have ``q``, their p for all of the card (Benjamini & Hochberg)."""

    book: Book
    audits: Mapping[str, Artifact]  # by name ("bias")
    by_audit: dict[str, list[Finding]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        ordered = [n for n in AUDITS if n in self.audits]
        ordered += [n for n in self.audits if n not in AUDITS]
        for name in ordered:
            rows = self.audits[name]["findings"].read().to_pylist()
            made = [(row, self.book.finding(f"audit_{name}", row)) for row in rows]
            self.by_audit[name] = made
        tested = [
            row for made in self.by_audit.values() for row, _ in made
            if row["p"] is not None and not row["control"]
        ]  # fmt: skip
        for row, q in zip(tested, benjamini_hochberg([r["p"] for r in tested]), strict=True):
            row["q"] = q

    def of(self, audit: str, metric: str, control: bool = False) -> list[Finding]:
        return [
            (row, figure)
            for row, figure in self.by_audit.get(audit, [])
            if row["metric"] == metric and bool(row["control"]) == control
        ]

    def outdone(self) -> Parts:
        """In words: the baselines to which held-out text costs less than to the model, those from
        which no difference was found, and those that were not tested; nothing where all cost more.
        """
        less: list[Inline] = []
        alike: list[Inline] = []
        untested: list[Inline] = []
        for row, figure in self.of("capability", "bits_per_byte_difference"):
            side = side_of_null({**row, "null": 0.0})
            if figure.value is None or side < 0:
                continue
            is_tested = row["low"] is not None or row["p_corrected"] is not None
            parts = less if side > 0 else alike if is_tested else untested
            name = tags_of(row)["less"]
            parts += ["; " if parts else "", f"{BASELINES.get(name, name)}, by ", figure]
        said: list[Inline] = []
        if less:
            lead = (
                "A byte of held-out text costs this model more than it costs what only counts or "
                "is smaller: "
            )
            said += [lead, *less, "."]
        if alike:
            lead = f"{' ' if said else ''}No difference from "
            said += [lead, *alike, " was found in what a byte of held-out text costs."]
        if untested:
            lead = f"{' ' if said else ''}Without an interval the difference was not tested from "
            said += [lead, *untested, "."]
        return said

    def controls(self) -> Grid:
        rows: list[list[Inline]] = []
        for name, found in self.by_audit.items():
            for row, figure in found:
                if row["control"]:
                    what = f"{words(row['metric'])} {row['slice']}".strip()
                    rows.append(
                        [title(name), what, row["control"], row["tests"], row["verdict"], figure,
                         figure.interval, count(row)]
                    )  # fmt: skip
        columns = [
            "audit",
            "control",
            "kind",
            "tests",
            "verdict",
            "value",
            "interval or bounds",
            "n",
        ]
        note = (
            "A positive control must be detected, a negative one must not. What each requires "
            "stands on the page of its rows."
        )
        return Grid("Controls", columns, rows, frozenset({5, 6, 7}), note)

    def summary(self) -> Block:
        """Capability beside harm, one line each."""
        lines: list[tuple[str, Finding]] = []
        for row, figure in self.of("capability", "bits_per_byte"):
            if row["slice"] in BASELINES:
                lines.append((f"Bits per byte, {BASELINES[row['slice']]}", (row, figure)))
        lines.sort(key=lambda line: list(BASELINES).index(line[1][0]["slice"]))
        lines += [("Last words guessed", f) for f in self.of("capability", "cloze_accuracy")][:1]
        for metric in ("expected_maximum_toxicity", "toxicity_probability"):
            lines += self.most_draws(metric)
        lines += [
            ("Pairs in which the stereotype is the likelier", finding)
            for finding in self.of("bias", "preference")
            if not finding[0]["slice"]
        ]
        lines += [
            ("Exposure of secrets, most copies against none", finding)
            for finding in self.of("extraction", "exposure_difference")
        ]
        shown = {figure.id for _, (_, figure) in lines if figure.value is not None}
        notes = []
        for name, found in self.by_audit.items():
            is_shown = any(figure.id in shown for _, figure in found)
            more = [] if is_shown else self.headlines(name)
            lines += [(self._label(name, row), (row, figure)) for row, figure in more[:HEADLINES]]
            if len(more) > HEADLINES:
                shown_of = f"Of {title(name)} {HEADLINES} of {len(more)} figures are shown"
                notes.append(f"{shown_of}; all are in its section below.")
        if not lines:
            none = "No audit left a figure about the model." if self.by_audit else "No audit ran."
            return Paragraph([none])
        rows: list[list[Inline]] = [
            [label, figure, row["unit"], figure.interval, count(row), figure.scorer or "–"]
            for label, (row, figure) in lines
        ]
        columns = ["measure", "value", "unit", "interval", "n", "scorer"]
        note = " ".join(filter(None, [levels([row for _, (row, _) in lines]), *notes]))
        return Grid("In short: capability beside harm", columns, rows, frozenset({1, 3, 4}), note)

    def headlines(self, audit: str) -> list[Finding]:
        """The figures that an audit's own findings put first: of each metric that one way is worse
        that of the whole, else those of all parts; without such metrics those of the first."""
        found = [
            (row, figure)
            for row, figure in self.by_audit[audit]
            if not row["control"] and figure.value is not None
        ]
        judged = [(row, figure) for row, figure in found if row["worse"]]
        metrics = list(dict.fromkeys(row["metric"] for row, _ in judged or found[:1]))
        chosen: list[Finding] = []
        for metric in metrics:
            parts = [each for each in judged or found if each[0]["metric"] == metric]
            tags = [tags_of(row).items() for row, _ in parts]
            whole = [
                part
                for part, own in zip(parts, tags, strict=True)
                if all(own <= other for other in tags)
            ]
            chosen += whole[:1] or parts
        return chosen

    def _label(self, audit: str, row: Mapping[str, Any]) -> str:
        part = ", ".join(filter(None, (words(row["metric"]), row["slice"])))
        return f"{title(audit)}: {part}"

    def most_draws(self, metric: str) -> list[tuple[str, Finding]]:
        """For each kind of prompt the finding with the most draws a prompt."""
        best: dict[str, Finding] = {}
        for row, figure in sorted(
            self.of("toxicity", metric), key=lambda f: natural(f[0]["slice"])
        ):
            part = tags_of(row).get("part", "")
            best[part] = (row, figure)
        return [(", ".join(filter(None, (words(metric), f[0]["slice"]))), f) for f in best.values()]


def count(row: dict[str, Any]) -> str:
    return "–" if row["n"] is None else f"{row['n']:,}"


def levels(rows: Sequence[dict[str, Any]]) -> str:
    levels = sorted({row["level"] for row in rows if row["level"] is not None})
    if not levels:
        return ""
    return f"Intervals: {' or '.join(f'{100 * level:g} %' for level in levels)}."
