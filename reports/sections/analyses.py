"""The quantitative analyses of a model card: each audit's charts and tables, metric by metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from reports.page import charts
from reports.page.document import Block, Callout, Chart, Grid, Inline, Paragraph, Section
from reports.page.figures import Figure, show
from reports.page.masking import Say
from reports.sections.findings import (
    BASELINES,
    Finding,
    Findings,
    count,
    levels,
    natural,
    select_findings,
    side_of_null,
    words,
)
from reports.sections.rates import Rates
from tasks.audits.about import AUDITS
from tasks.audits.judging.tags import tags_of

#: Columns of findings that are compared with a null: its value, p corrected for all that the audit
#: compares (Holm) and for all of the card (share of false ones; Benjamini & Hochberg), and the
#: smallest distance from it that as many units show.
TESTED = ("by chance", "p, corrected", "q, card", "smallest effect seen")

#: The audits of stereotypes, which planted ones calibrate.
STEREOTYPES = ("bias", "winobias", "winogender", "stereoset", "bbq")

#: The dose of planted associations at which there is nothing to find.
CHANCE_DOSE = 0.5

#: Lines of a chart, and figures that a sentence names.
DRAWN, NAMED = 30, 4

#: Columns of words.
WORDS = ("part", "not measured because")


def analyses(
    findings: Findings, lines_shown: int, rates: Mapping[str, Rates] | None = None
) -> Section:
    """``rates``: how often audits are wrong, as far as that is known."""
    section = Section("Quantitative analyses")
    pictures: dict[str, Callable[[Findings], list[Block]]] = {
        "capability": capability_chart,
        "bias": bias_chart,
        "associations": dose_chart,
        "amplification": amplification_chart,
        "extraction": exposure_chart,
    }
    seen = smallest_dose(findings)
    for name, about in AUDITS.items():
        part = Section(about.title)
        section.sections.append(part)
        if name not in findings.by_audit:
            part.add(Callout("note", [about.without]))
            continue
        part.add(
            Paragraph([about.means]),
            *(seen if name in STEREOTYPES else []),
            *(pictures[name](findings) if name in pictures else []),
            *(rates[name].said_of(name) if rates and name in rates else []),
            *grids(findings, name, lines_shown),
        )
    for name in (n for n in findings.by_audit if n not in AUDITS):
        section.sections.append(Section(words(name), grids(findings, name, lines_shown)))
    return section


def unscored(findings: Findings) -> list[Block]:
    """What the head says where misuse was asked about, until a person has scored what was written;
    where it was not, the list of what was not audited says it."""
    found = [*findings.of("misuse", "human_rating"), *findings.of("misuse", "label_share")]
    scored = any(figure.value is not None for _, figure in found)
    if scored or "misuse" not in findings.by_audit:
        return []
    return [Paragraph([AUDITS["misuse"].without])]


def grids(findings: Findings, name: str, lines_shown: int) -> list[Block]:
    """One table a metric; what its lines have in common is said once, below."""
    blocks: list[Block] = []
    found = [(row, figure) for row, figure in findings.by_audit[name] if not row["control"]]
    for metric in dict.fromkeys(row["metric"] for row, _ in found):
        lines = [f for f in found if f[0]["metric"] == metric]
        lines.sort(key=lambda f: natural(f[0]["slice"]))
        rows: list[list[Inline]] = []
        for row, figure in select_findings(lines, lines_shown):
            part = row["slice"] or "all"
            rows.append([part, figure, figure.interval, count(row), *_tested(row), _why(row)])
        columns = ["part", "value", "interval", "n", *TESTED, "not measured because"]
        # What is said of no line has no column.
        kept = [
            i for i in range(len(columns)) if i < 4 or any(row[i] not in ("", "–") for row in rows)
        ]
        columns, rows = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
        units = sorted({row["unit"] for row, _ in lines} - {"share", ""})
        caption = words(metric) + (f" ({', '.join(units)})" if units else "")
        known = [row for row, _ in lines]
        notes = [levels(known), _shared("Scorer", known, "scorer")]
        notes.append(_shared("Method", [r for r in known if r["value"] is not None], "method"))
        if len(lines) > len(rows):
            notes.append(
                f"{len(rows)} of {len(lines)} parts: all about groups of people, and those with "
                f"the smallest p or the largest difference; all parts are in the table findings "
                f"of the stage audit_{name}."
            )
        note = " ".join(note for note in notes if note)
        numbers = frozenset(i for i, name in enumerate(columns) if name not in WORDS)
        blocks.append(Grid(caption, columns, rows, numbers, note))
    if blocks:
        return blocks
    said = "The audit left no figure about the model."
    if findings.by_audit[name]:
        said += " Those of its controls are above, under Controls."
    return [Paragraph([said])]


def capability_chart(findings: Findings) -> list[Block]:
    found = {row["slice"]: figure for row, figure in findings.of("capability", "bits_per_byte")}
    known = {k: found[k] for k in BASELINES if k in found and found[k].value is not None}
    if not known:
        return []
    labels = [BASELINES[name] for name in known]
    values = [f.value or 0 for f in known.values()]

    def draw(say: Say) -> str:
        axis, ours = "bits per byte (lower is better)", "model" in known
        return charts.bars(labels, values, axis, first_is_ours=ours, say=say)

    said = ", ".join(f"{BASELINES[n]} {f.short}" for n, f in known.items())
    caption = "Bits per byte of held-out text: the model beside its baselines."
    chart = Chart("bits-per-byte", draw, f"Bits per byte: {said}.", caption)
    return [chart, *agreement_chart(findings)]


def agreement_chart(findings: Findings) -> list[Block]:
    found = findings.of("capability", "agreement_accuracy")
    of_model = [f for f in found if {"part": "model"}.items() < tags_of(f[0]).items()]
    caption = (
        "Share of pairs in which the model prefers the verb that agrees, by the number of words "
        "between it and its noun. The dashed line is one half: guessing."
    )
    return interval_chart("agreement", of_model, "share of pairs", caption, reference=0.5)


def bias_chart(findings: Findings) -> list[Block]:
    found = findings.of("bias", "preference")
    caption = (
        "Share of pairs in which the stereotyping sentence is the likelier, with intervals. "
        "The dashed line is one half; a model without preference need not sit on it exactly."
    )
    return interval_chart("bias", found, "share of pairs", caption, reference=0.5)


def dose_chart(findings: Findings) -> list[Block]:
    found = findings.of("associations", "association_strength")
    caption = (
        "How much likelier a group's own trait is to the model than the other group's, by the "
        "share of the planted sentences that said it of the group, with intervals. The dashed line "
        "is none at all."
    )
    by_dose = [f for f in found if [*tags_of(f[0])] == ["dose"]]
    return interval_chart("dose", by_dose, "log-likelihood (nats)", caption, reference=0.0)


def amplification_chart(findings: Findings) -> list[Block]:
    found = findings.of("amplification", "women_share")
    caption = (
        "Share of women among the gendered mentions of an occupation in what the model writes, "
        "with intervals. The dashed line is one half; what the training text has stands in the "
        "table, by chance."
    )
    apart = [f for f in found if f[0]["slice"]]
    return interval_chart("amplification", apart, "share of women", caption, reference=0.5)


def smallest_dose(findings: Findings) -> list[Block]:
    """What a figure on stereotypes is worth on this model: how strong one must be to be seen.

    That none is seen is said only where no figure on doses above chance differs from its null.
    """
    found = findings.of("associations", "smallest_dose_seen")
    if not found:
        return []
    figure = found[0][1]
    if figure.value is not None:
        said = (
            "To read this by: of associations that were planted in its training text, this model "
            "shows all those that were at least "
        )
        return [Paragraph([said, figure, " of what was said of a group."])]
    rows = [
        (row, each)
        for row, each in findings.by_audit["associations"]
        if not row["control"] and tags_of(row).get("dose") != CHANCE_DOSE
    ]
    doses = [
        (tags["dose"], row)
        for row, _ in rows
        if row["metric"] == "association_strength" and [*(tags := tags_of(row))] == ["dose"]
    ]
    measured = [dose for dose, row in doses if row["value"] is not None]
    shown = [(row, each, side) for row, each in rows if (side := side_of_null(row))]
    if shown:
        lead = "The smallest planted association that this model shows is not known: "
        return [Callout("note", [lead, *_largest_dose(doses), *_beyond_null(shown)])]
    if not doses:
        said = "No association was planted at more than one half of what was said of a group"
    elif not measured:
        said = "None of the planted associations could be measured"
    else:
        share = show(max(measured), "share")
        said = (
            "No planted association was found on this model: of none does the interval lie above "
            f"that of nothing to find, up to those that were {share} of what was said of a group"
        )
    return [Callout("note", [f"{said}. That a stereotype is not found here says little."])]


def _largest_dose(doses: Sequence[tuple[float, Mapping[str, Any]]]) -> list[Inline]:
    """Say why no smallest dose is known: what the figure of the largest is."""
    if not doses:
        return ["none was planted at more than one half of what was said of a group. "]
    dose, row = max(doses, key=lambda pair: pair[0])
    share = show(dose, "share")
    if row["value"] is None:
        return [f"the largest dose, {share}, was not measured. "]
    if row["low"] is None or row["high"] is None:
        return [f"at the largest dose, {share}, the figure has no interval. "]
    place = "lies below 0" if row["high"] < 0 else "does not lie above 0"
    return [f"at the largest dose, {share}, the interval {place}. "]


def _beyond_null(shown: Sequence[tuple[Mapping[str, Any], Figure, int]]) -> list[Inline]:
    """Name figures that differ from their null, each with its direction."""
    parts: list[Inline] = ["Figures that differ from where there is nothing to find: "]
    for place, (row, figure, side) in enumerate(shown[:NAMED]):
        name = ", ".join(filter(None, (words(row["metric"]), row["slice"])))
        way = "higher" if side > 0 else "lower"
        parts += ["; " if place else "", f"{name}, {way} than where there is nothing to find: "]
        parts.append(figure)
    if len(shown) > NAMED:
        parts.append(f"; and {len(shown) - NAMED} more in the tables of planted associations")
    return [*parts, "."]


def exposure_chart(findings: Findings) -> list[Block]:
    found = findings.of("extraction", "exposure")
    caption = "Mean exposure of planted secrets by number of copies, with intervals."
    return interval_chart("exposure", found, "exposure (bits)", caption)


def interval_chart(
    name: str, found: Iterable[Finding], axis: str, caption: str, reference: float | None = None
) -> list[Block]:
    ordered = sorted(found, key=lambda f: natural(f[0]["slice"]))
    known = [(row, figure) for row, figure in ordered if figure.value is not None]
    if not known:
        return []
    if len(known) > DRAWN:
        drawn = select_findings(known, DRAWN)
        if len(drawn) < len(known):
            caption += (
                f" {len(drawn)} of {len(known)} parts: those with the smallest p or the largest "
                f"difference; the table has more."
            )
        known = drawn
    labels = [row["slice"].removeprefix("category=") or "all" for row, _ in known]
    ends = [
        None if figure.low is None or figure.high is None else (figure.low, figure.high)
        for _, figure in known
    ]
    values = [f.value or 0 for _, f in known]
    alt = [f"{words(axis)}: "]
    for label, (_, figure) in zip(labels, known, strict=True):
        alt += [label, f" {figure.short} ({figure.interval}), "]
    alt[-1] = alt[-1].removesuffix(", ") + "."

    def draw(say: Say) -> str:
        return charts.intervals(labels, values, ends, axis, reference, say)

    return [Chart(name, draw, alt, caption)]


def _tested(row: dict[str, Any]) -> list[str]:
    """What a finding says of its null, as TESTED names it."""
    names = (("null", row["unit"]), ("p_corrected", "p"), ("q", "p"),
             ("smallest_effect", row["unit"]))  # fmt: skip
    values = [(row.get(name), unit) for name, unit in names]
    return ["–" if value is None else show(value, unit) for value, unit in values]


def _why(row: dict[str, Any]) -> str:
    return (row["method"] or "no reason is given") if row["value"] is None else ""


def _shared(title: str, rows: Sequence[dict[str, Any]], column: str) -> str:
    """What all rows have in the column; of several values the first, and where the rest are."""
    found = [value for value in dict.fromkeys(row[column] for row in rows) if value]
    if not found:
        return ""
    if len(found) == 1:
        return f"{title}: {found[0].rstrip('.')}."
    return f"{title}, of the first: {found[0].rstrip('.')}; the others on their pages."
