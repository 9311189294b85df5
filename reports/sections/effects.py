"""What curation did to people: the datasheet's first lines, and the section behind them."""

from __future__ import annotations

import math
from typing import Any

from reports.page.document import Block, Bullets, Grid, Inline, Paragraph, Section
from reports.page.figures import Figure, show
from reports.sections.corpus_figures import CorpusFigures
from reports.sections.selection import CHOSEN, pairs_of_every_group, with_all_groups
from tasks.audits.about import SIGNIFICANT

EFFECTS = "effects"

#: What the first page is about: documents that left, but not as copies of one that stayed.
STRUCK = {"stage": "", "reason": "struck out"}

#: Lines of the table on the first page, beside those about groups of people.
FIRST = 8

DIMENSIONS = {
    "identity": "mention {}",
    "dialect": "markers of {}",
    "language": "in {}",
    "length": "{}",
    "source": "from {}",
}

LEVEL = 0.95

#: A ratio to others none of whom left.
ALONE = "∞"

ABOUT = (
    "A ratio is no verdict: documents that mention a group differ in other ways too, and where the "
    "ratio within sources is near 1 it is the sources that differ. It says where to look. Mentions "
    "and dialect markers are found by lists of English words and turns; a marker is no proof of "
    "who wrote. Of what ingest took out only the source is known: it counts among sources alone."
)

AT_ONCE = "Compared by source alone: of what ingest took out nothing else is known."

Row = dict[str, Any]


def rows_of(corpus: CorpusFigures, table: str) -> list[Row]:
    effects = corpus.history.get(EFFECTS)
    return [] if effects is None else effects[table].read().to_pylist()


def whom(row: Row) -> str:
    """A group in words: whose documents these are."""
    if (row["dimension"], row["slice"]) == ("language", "undetermined"):
        return "in undetermined language"
    return DIMENSIONS[row["dimension"]].format(row["slice"])


def worst(rows: list[Row]) -> list[Row]:
    """The highest ratio first; before all a group that alone lost any."""
    alone = [r for r in rows if is_alone(r)]
    known = [r for r in rows if r["ratio"] is not None]
    return alone + sorted(known, key=lambda r: (-r["ratio"], -r["n"], r["dimension"], r["slice"]))


def interval(row: Row) -> str:
    if row["low"] is None:
        return "–"
    high = "any" if row["high"] is None else show(row["high"], "times")
    return f"{show(row['low'], 'times')} to {high}"


def ratio(corpus: CorpusFigures, row: Row, table: str = "rates", **more: Any) -> Figure:
    keys = ("stage", "reason", "dimension", "slice")
    where = {key: row[key] for key in keys} | more
    label = f"{row['reason'] or 'left for any reason'}: {whom(row)}, ratio to all others"
    return corpus.book.figure(
        "-".join([table, *(str(value) for value in where.values())]), label, "times",
        (EFFECTS, table), where, aggregate="last", column="ratio", n=row["n"], low=row["low"],
        high=row["high"], level=LEVEL, note="none of the others left", missing=ALONE,
        method="exact interval over clusters of near copies, see the column low",
    )  # fmt: skip


def line(corpus: CorpusFigures, row: Row) -> list[Inline]:
    within = "–" if row["within"] is None else show(row["within"], "times")
    rates = [show(row[name], "share") for name in ("rate", "other_rate")]
    return [whom(row), ratio(corpus, row), interval(row), f"{row['n']:,}", *rates, within]


def is_alone(row: Row) -> bool:
    """Whether documents of a group left, and none of the others."""
    return row["ratio"] is None and row["removed"] > 0


def has_ratio(row: Row) -> bool:
    return row["ratio"] is not None or is_alone(row)


def explained(rows: list[Row]) -> str:
    """A sentence on the sign for what is no number, where any of these ratios is none."""
    return f"{ALONE}: of all others none left. " if any(map(is_alone, rows)) else ""


COLUMNS = ["documents", "ratio", "95 % interval", "n", "left", "of others", "within sources"]
NUMBERS = frozenset(range(1, len(COLUMNS)))

#: The same for a rule that tags documents and keeps them.
TAG_COLUMNS = [{"left": "tagged", "of others": "others tagged"}.get(name, name) for name in COLUMNS]


def name_rule(corpus: CorpusFigures, stage: str, reason: str) -> str:
    """Return a reason as the page shows it: a rule that tags removes nothing."""
    return f"{reason} (tagged, not removed)" if corpus.is_tagging(stage, reason) else reason


# The first page --------------------------------------------------------------------------------


def silenced(corpus: CorpusFigures) -> list[Block]:
    """Whom curation took, in a few lines."""
    rows = [r for r in rows_of(corpus, "rates") if STRUCK.items() <= r.items()]
    if not rows:
        why = "nobody looked" if EFFECTS not in corpus.history else "too few documents to compare"
        return [Paragraph([f"Removal rates by group are not known: {why}."])]
    more = [r for r in rows if r["verdict"] == "more"]
    blocks: list[Block] = []
    if more:
        shown = with_all_groups(worst(more), FIRST)
        part = ""
        if len(shown) < len(more):
            part = f"; {len(shown)} of {len(more)}, {CHOSEN.format(f'worst {FIRST}')}"
        note = (
            f"Removed more often than all other documents{part}. Duplicates of kept documents are "
            f"not counted as removed here; the tables by rule count them. "
        )
        blocks.append(
            Grid("Removal rates by group", COLUMNS,
                 [line(corpus, row) for row in shown], NUMBERS,
                 note + explained(shown) + ABOUT)
        )  # fmt: skip
    else:
        blocks.append(
            Paragraph(
                [f"Removal rates by group: {len(rows)} groups of documents were compared, by whom "
                 "they mention, dialect, language, length and source. For none a higher removal "
                 "rate than that of all other documents was shown. Duplicates of kept documents "
                 "are not counted as removed here; the tables by rule count them."]
            )
        )  # fmt: skip
    items = [unshown(rows), *scorer_line(corpus), *lost_line(corpus)]
    return [*blocks, Bullets([item for item in items if item])]


def unshown(rows: list[Row]) -> list[Inline]:
    """Where no difference was shown, the smallest that n would have shown."""
    quiet = [r for r in rows if r["verdict"] == "not shown" and r["dimension"] == "identity"]
    if not quiet:
        return []
    quiet.sort(key=lambda r: (-(r["least"] or math.inf), r["slice"]))
    shown = [
        f"{row['slice']} ({row['n']:,} documents): "
        + ("no rate would show it" if row["least"] is None else f"{row['least']:.1f} times")
        for row in quiet
    ]
    return [
        "For documents that mention these groups no difference was shown, which is no proof that "
        "there is none. How many times as often as all others they would have to be struck out, "
        f"so that four of five such corpora showed it: {'; '.join(shown)}."
    ]


def scorer_line(corpus: CorpusFigures) -> list[list[Inline]]:
    own = [r for r in rows_of(corpus, "swaps") if r["origin"] == "templates" and is_shown(r)]
    if not own:
        return []
    row = max(own, key=lambda r: abs(r["difference"]))
    return [
        ["The scorer itself: when only the group in a sentence changes, its score does. Most with "
         f"{row['other']} in place of {row['group']}: by ", difference(corpus, row),
         " on average."]
    ]  # fmt: skip


def is_shown(row: Row) -> bool:
    """Whether a difference between two groups is beyond chance."""
    return row["corrected"] is not None and row["corrected"] < SIGNIFICANT


def lost_line(corpus: CorpusFigures) -> list[list[Inline]]:
    where = {"stage": "", "dimension": ""}
    if not any(where.items() <= row.items() for row in rows_of(corpus, "lost")):
        return []
    figures = [
        corpus.book.figure(f"lost-{column}", f"{column} lost with the kept copy", unit,
                           (EFFECTS, "lost"), where, column=column)
        for column, unit in (("copies", "documents"), ("clusters", "clusters"))
    ]  # fmt: skip
    return [[figures[0], " were removed as copies of one that left later for another reason; ",
             figures[1], " were lost whole with it."]]  # fmt: skip


# The section -----------------------------------------------------------------------------------


def effects(corpus: CorpusFigures) -> Section:
    title = "The effect on people"
    if EFFECTS not in corpus.history:
        return Section(title, [Paragraph(["Nobody looked at whom curation took."])])
    about = (
        "For every reason in a ledger: the share of a group's documents that left for it, or would "
        "have, beside that of all other documents at risk. Intervals count clusters of near "
        "copies, not documents; differences are called so where p, corrected for all groups of the "
        "rule, is under 5 %. Groups of few documents are left out. Of what ingest took out nothing "
        "but the source is known, and no text for an example; what it could not read is in "
        "quarantine and not compared; what was held back for planting is no loss. A rule that tags "
        "removes nothing: its shares are of the documents that its stage kept. All rules and "
        "groups are in the table rates."
    )
    parts = [by_rule(corpus), along(corpus), swaps(corpus), examples(corpus), found(corpus)]
    return Section(title, [Paragraph([about])], parts)


def by_rule(corpus: CorpusFigures) -> Section:
    section = Section("By rule")
    rules: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(corpus, "rates"):
        if row["stage"]:
            rules.setdefault((row["stage"], row["reason"]), []).append(row)
    for (stage, reason), rows in rules.items():
        whole = corpus.history[stage].stage == "ingest"  # few rows, and no others of the reason
        shown = [r for r in rows if whole or r["verdict"] != "not shown"]
        if not shown:
            name = name_rule(corpus, stage, reason)
            several = f"{len(rows)} groups"
            of = several if len(rows) > 1 else "the one group that could be compared"
            section.add(Paragraph([f"{stage}, {name}: no difference was shown, of {of}."]))
            continue
        lines = with_all_groups(worst(shown), corpus.lines_shown // 3 or 1)
        quiet = len(rows) - len(shown)
        note = ""
        if len(shown) > len(lines):
            note = f"{len(lines)} of {len(shown)}: {CHOSEN.format('highest ratios')}. "
        note += f"For {quiet} more groups no difference was shown. " if quiet else ""
        note += explained(lines)
        note += AT_ONCE if whole else ""
        grid = [line(corpus, row) for row in lines]
        tags = corpus.is_tagging(stage, reason)
        columns = TAG_COLUMNS if tags else COLUMNS
        caption = f"{stage}: {name_rule(corpus, stage, reason)}"
        section.add(Grid(caption, columns, grid, NUMBERS, note.strip()))
    if not section.blocks:
        section.add(Paragraph(["No rule took enough documents of a group to compare."]))
    return section


def along(corpus: CorpusFigures) -> Section:
    """Ratios at other thresholds, for the groups that the rule's own takes more or less often."""
    section = Section("Along the range of a threshold")
    tables: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows_of(corpus, "thresholds"):
        if row["dimension"] in ("identity", "dialect"):
            tables.setdefault((row["stage"], row["reason"], row["bound"]), []).append(row)
    for (stage, reason, bound), rows in tables.items():
        limits = sorted({row["threshold"] for row in rows})
        own = [row for row in rows if row["own"]]
        lines: list[list[Inline]] = []
        for chosen in worst(own):
            same = {r["threshold"]: r for r in rows
                    if all(r[k] == chosen[k] for k in ("dimension", "slice"))}  # fmt: skip
            cells: list[Inline] = [
                "–" if limit not in same or not has_ratio(same[limit])
                else ratio(corpus, same[limit], "thresholds", bound=bound, threshold=limit)
                for limit in limits
            ]  # fmt: skip
            lines.append([whom(chosen), *cells])
        if lines:
            name = name_rule(corpus, stage, reason)
            heads = [f"{bound} {limit:.6g}{' (own)' if limit == own[0]['threshold'] else ''}"
                     for limit in limits]  # fmt: skip
            section.add(
                Grid(f"{stage}, {name}: ratio to all others at other thresholds",
                     ["documents", *heads], lines, frozenset(range(1, len(heads) + 1)),
                     "Of documents that have what the rule looks at; by rule, ratios are of all "
                     "that came to it. The highest at the rule's own threshold first; with "
                     "intervals, n and all groups in the table thresholds.")
            )  # fmt: skip
    if not section.blocks:
        said = "No numeric rule judged enough documents of a group or dialect."
        section.add(Paragraph([said]))
    return section


def difference(corpus: CorpusFigures, row: Row) -> Figure:
    where = {key: row[key] for key in ("origin", "axis", "group", "other")}
    return corpus.book.figure(
        "-".join(["swaps", *where.values()]),
        f"{row['other']} in place of {row['group']}, {row['origin']}: difference in score", "score",
        (EFFECTS, "swaps"), where, aggregate="last", column="difference", n=row["n"],
        low=row["low"], high=row["high"], level=None if row["low"] is None else LEVEL,
        scorer=scorer_of(corpus), method="mean over sentences, t interval over their documents",
    )  # fmt: skip


def scorer_of(corpus: CorpusFigures) -> str:
    known = corpus.history[EFFECTS].manifest["parts"]["external"]
    return f"{known['scorer']} ({known['digest'][:12]})"


def swaps(corpus: CorpusFigures) -> Section:
    section = Section("When only the group changes")
    rows = sorted(rows_of(corpus, "swaps"), key=lambda r: -abs(r["difference"]))
    for origin, words in (("templates", "the project's own sentences"),
                          ("corpus", "sentences of the corpus")):  # fmt: skip
        own = [r for r in rows if r["origin"] == origin]
        shown = [r for r in own if is_shown(r)]
        if not shown:
            said = f"In {words} no difference was shown, of {len(own)} pairs of groups."
            if not own:
                said = f"In {words} no pair of groups was compared."
            section.add(Paragraph([said]))
            continue
        lines: list[list[Inline]] = []
        for row in pairs_of_every_group(shown, corpus.lines_shown // 3 or 1):
            figure = difference(corpus, row)
            crossed = show(row["raised"] + row["lowered"], "share")
            lines.append([f"{row['group']} → {row['other']}", f"{row['n']:,}", figure,
                          figure.interval, crossed])  # fmt: skip
        columns = ["group → put in its place", "n", "difference", "95 % interval", "crossed"]
        note = (
            f"The largest of {len(shown)} that are beyond chance, of {len(own)} pairs, and the "
            f"largest of every group; all are in the table swaps. Crossed: "
            f"sentences that pass the threshold {rows[0]['threshold']:g} on one side only. "
            f"Scorer: {scorer_of(corpus)}."
        )
        section.add(Grid(f"Difference in score: {words}", columns, lines, frozenset({1, 2, 3, 4}),
                         note))  # fmt: skip
    return section


def examples(corpus: CorpusFigures) -> Section:
    """What the filters took, by source and language; the documents are behind the numbers."""
    section = Section("What the filters took: examples")
    rows = rows_of(corpus, "examples")
    seen: dict[tuple[str, ...], Row] = {}
    for row in rows:
        seen.setdefault((row["stage"], row["reason"], row["dimension"], row["slice"]), row)
    ordered = sorted(seen.values(), key=lambda r: (not r["alone"], -(r["ratio"] or 0)))
    worst_of: dict[tuple[str, str], Row] = {}
    for row in ordered:
        worst_of.setdefault((row["dimension"], row["slice"]), row)
    first = [*worst_of.values()]  # a source or language too small for a ratio is seen all the same
    rest = [row for row in ordered if worst_of[row["dimension"], row["slice"]] is not row]
    lines: list[list[Inline]] = []
    for row in [*first, *rest[: max(0, corpus.lines_shown - len(first))]]:
        where = {k: row[k] for k in ("stage", "reason", "dimension", "slice")}
        figure = corpus.book.figure(
            "-".join(["examples", *where.values()]), f"{row['reason']}: examples {whom(row)}",
            "documents", (EFFECTS, "examples"), where, aggregate="count",
        )  # fmt: skip
        times = "–" if row["ratio"] is None else show(row["ratio"], "times")
        times = ALONE if row["alone"] else times
        rule = name_rule(corpus, row["stage"], row["reason"])
        lines.append([whom(row), row["stage"], rule, times, figure])
    if not lines:
        section.add(Paragraph(["No examples were kept."]))
        return section
    note = (
        "Of each source and language the highest ratio, then the highest of the rest. The number "
        "leads to the documents, masked as everywhere; hallmark report --reveal shows them in "
        "clear, on this machine alone."
    )
    if len(seen) > len(lines):
        note = f"{len(lines)} of {len(seen)}; all are in the table examples of effects. {note}"
    columns = ["documents", "stage", "reason", "ratio", "examples"]
    section.add(Grid("Documents that were taken", columns, lines, frozenset({3, 4}), note))
    return section


def found(corpus: CorpusFigures) -> Section:
    """How well mentions are found."""
    figures: list[Inline] = []
    for row in rows_of(corpus, "lexicon"):
        if row["group"]:
            continue
        for name, n in (("recall", row["mentions"]), ("precision", row["found"])):
            figures.append(
                corpus.book.figure(
                    f"lexicon-{name}", f"mentions of people: {name}", "share",
                    (EFFECTS, "lexicon"), {"group": ""}, aggregate="last", column=name, n=n,
                    low=row[f"{name}_low"], high=row[f"{name}_high"], level=LEVEL,
                    method="labelled sentences of the project's own, Wilson's interval",
                )
            )  # fmt: skip
    recall, precision = figures
    return Section(
        "How mentions are found",
        [Paragraph(
            ["On labelled sentences written for it the lexicon finds ", recall, " of the mentions, "
             "and of what it finds are mentions ", precision, ". Lexicon and sentences have one "
             "author, so this flatters; by group in the table lexicon."]
        )],
    )  # fmt: skip
