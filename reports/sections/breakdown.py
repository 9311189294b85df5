"""What the corpus is composed of by domain, licence and so on, and occupations beside gender."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.page.document import Grid, Inline, Paragraph, Section
from reports.page.figures import Figure
from reports.sections.corpus_figures import PROFILE, CorpusFigures

#: Beside sources and their bytes, which have a table of their own.
DIMENSIONS = ("licence", "domain", "language", "length", "year")

UNKNOWN = "unknown"
Row = dict[str, Any]


def breakdown(
    corpus: CorpusFigures, stated: str | None = None, declared: Sequence[str] = ()
) -> Section:
    """The largest values of each dimension; a dimension of which nothing is known in a sentence.

    Args:
        stated: The licence that a person stated for the whole corpus.
        declared: The licences that sources declare, whether or not documents of them remain.
    """
    rows = corpus.profile["composition"].read().to_pylist()
    lines: list[list[Inline]] = []
    dark: list[str] = []
    left = 0
    for dimension in DIMENSIONS:
        found = [r for r in rows if r["dimension"] == dimension and r["split"] == ""]
        if {row["value"] for row in found} == {UNKNOWN}:
            dark.append(dimension)
            continue
        found.sort(key=lambda row: (row["value"] in (UNKNOWN, "other"), -row["bytes"]))
        shown = found[: max(3, corpus.lines_shown // 5)]
        left += len(found) - len(shown)
        lines += [[dimension, row["value"], *_figures(corpus, row)] for row in shown]
    section = Section("Licences, domains, languages, lengths and years")
    if lines:
        note = f"{left:,} smaller ones are in the table composition of the profile." if left else ""
        columns = ["by", "value", "documents", "share of bytes"]
        caption = "Documents by what is known of them"
        section.add(Grid(caption, columns, lines, frozenset({2, 3}), note))
    if "licence" in dark and (declared or (stated and stated.strip())):
        dark.remove("licence")
        said = "No document is from a source that declares a licence."
        if not declared:
            said = (
                "No source declares a licence; the one stated for the whole corpus is on this page."
            )
        section.add(Paragraph([said]))
    if dark:
        *first, last = dark
        named = f"{', '.join(first)} or {last}" if first else last
        said = f"Nothing is known of any document's {named}."
        section.add(Paragraph([said]))
    return section


def _figures(corpus: CorpusFigures, row: Row) -> list[Inline]:
    keys = {name: row[name] for name in ("dimension", "value", "split")}
    name, label = f"{row['dimension']}-{row['value']}", f"{row['dimension']} {row['value']}"
    documents, share = (
        corpus.book.figure(
            f"composition-{column}-{name}", f"{said}, {label}", unit, (PROFILE, "composition"),
            keys, aggregate="last", column=column, note="there is no text",
        )
        for column, said, unit in (
            ("documents", "documents", "documents"), ("share", "share of bytes", "share"),
        )
    )  # fmt: skip
    return [documents, share]


# Occupations -------------------------------------------------------------------------------------


def occupations(corpus: CorpusFigures) -> Section:
    """Those whose company is of one gender more often than that of all, by their intervals."""
    rows: list[Row] = corpus.profile["occupations"].read().to_pylist()
    whole = [row for row in rows if row["source"] == ""]
    every = next((row for row in whole if row["occupation"] == ""), None)
    section = Section("Occupations beside gendered words")
    if every is None or every["share"] is None:
        said = (
            "No mention of an occupation of the list has more words of one gender than of the "
            "other near it in its sentence."
        )
        section.add(Paragraph([said]))
        return section
    named = [row for row in whole if row["occupation"]]
    counted = [row for row in named if row["share"] is not None]
    apart = [r for r in counted if not r["low"] <= every["share"] <= r["high"]]
    apart.sort(key=lambda row: (-_distance(row, every["share"]), row["occupation"]))
    open_ = len(counted) - len(apart)
    of_all = _share(corpus, every, "all occupations")
    section.add(
        Paragraph(
            [
                "Of the mentions of an occupation that have more words of one gender than of the "
                "other near them in their sentence, ", of_all,
                " have more words of women: she, her, woman, Mrs.",
            ]
        )
    )  # fmt: skip
    shown = apart[: corpus.lines_shown // 2]
    lines: list[list[Inline]] = []
    for row in shown:
        share = _share(corpus, row, row["occupation"])
        lines.append([row["occupation"], share, share.interval, f"{row['women'] + row['men']:,}"])
    if lines:
        columns = ["occupation", "beside women", "95 % interval", "n"]
        few = f"The {len(shown)} most skewed of {len(apart):,}. " if len(shown) < len(apart) else ""
        note = (
            f"{few}Most skewed first, by the nearer end of their interval; n counts mentions. All "
            "are in the table occupations of the profile."
        )
        section.add(Grid("Occupations whose share is not that of all", columns, lines,
                         frozenset({1, 2, 3}), note))  # fmt: skip
    section.add(
        Paragraph(
            [
                f"Of {open_:,} other occupations beside gendered words nothing can be said: their "
                f"interval holds the share of all. {len(named) - len(counted):,} are mentioned, "
                "but never with more words of one gender beside them. With so many compared, about "
                "one in twenty would stand out by chance. Intervals (Wilson) take mentions for "
                "independent and are too narrow where a text repeats itself. Whole English words "
                "are counted, not who does what: a printer may be a machine."
            ]
        )
    )
    return section


def _distance(row: Row, share: float) -> float:
    """How far the whole interval is from a share."""
    return max(row["low"] - share, share - row["high"])


def _share(corpus: CorpusFigures, row: Row, label: str) -> Figure:
    n = row["women"] + row["men"]
    return corpus.book.figure(
        f"occupations-{row['occupation'] or 'all'}", f"beside women, {label}", "share",
        (PROFILE, "occupations"), {"source": "", "occupation": row["occupation"]},
        aggregate="last", column="share", low=row["low"], high=row["high"], level=0.95, n=n,
        method="Wilson interval over mentions",
    )  # fmt: skip
