"""The page of a training whose checkpoints were audited: what became of each finding.

<folder>/trajectory.html      a chart and its numbers for each finding that counts
<folder>/charts/              the charts
<folder>/rows/                the pairs behind each change

It is a view of the store, not a card: which checkpoints were audited changes behind a run.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reports.page import charts
from reports.page.document import (
    Callout,
    Chart,
    Document,
    Facts,
    Grid,
    Inline,
    Link,
    Paragraph,
    Section,
    masked,
)
from reports.page.evidence import cell_of
from reports.page.figures import Book, Evidence, Figure, show, slug
from reports.page.masking import OFFENSIVE, Masker
from reports.page.rendering import environment
from reports.sections.corpus_figures import masker_of
from reports.sections.course import (
    Audit,
    Point,
    Row,
    amount,
    audits_of,
    headlines,
    judged,
    left_out,
    measure_of,
    p_of,
    said,
    span,
    verdict,
    worse_by,
    worst_part,
)
from reports.sections.findings import is_about_groups, levels, title, words
from tasks.audits.about import AUDITS
from tasks.audits.judging.comparison import Compared
from tasks.audits.judging.units import AREA, CAPABILITY, Units, by_item
from tasks.contract import Artifact, HallmarkError

FOLDER, PAGE = "trajectory", "trajectory.html"

TITLE = "What became of the findings while it trained"

#: Lines of a table of other findings, and rows on a page of pairs.
LINES, PAIRS = 30, 100

ABOUT = (
    "Checkpoints of one training answer the same questions, so one is compared with another in "
    "pairs: prompt by prompt, secret by secret, document by document. That shows changes that two "
    "separate intervals would hide. The p of a change is corrected for all changes of its audit "
    "that were looked at here, of all parts and between all these checkpoints (Holm). Intervals "
    "tell what chance would do to these items, not what other items, or another training, would "
    "show."
)

NOTE = (
    "First and last: of the checkpoints at which the audit was made. Changes of shares are in "
    "percentage points. Worse: as the audit says which way that is, or further from what is by "
    "chance; no change shown is no proof that there is none; not tested: no units are paired, or "
    "they allow no test."
)


def page_of(run: str) -> Path:
    """The page of the training of a run, within the site."""
    return Path("runs") / run / FOLDER / PAGE


@dataclass(frozen=True)
class Training:
    """A training, and the runs that audited its checkpoints: by ids, of what build_site has.

    run     the first that trained it
    runs    all whose pages lead to its page
    audits  of each step the runs that audited it, the newest first
    """

    run: str
    runs: frozenset[str]
    audits: Mapping[int, Sequence[str]]


class Writer:
    """Writes the page into a folder of the site, two below that of the runs."""

    def __init__(self, points: Sequence[Point], history: Mapping[str, Artifact], out: Path) -> None:
        self.points, self.out = points, out
        self.masker = masker_of(dict(history), OFFENSIVE)
        self.say = self.masker.whole
        self.pages = {run: _pages(left) for point in points for run, left in point.runs.items()}
        self.books: dict[tuple[str, int], Book] = {}
        self.units: dict[tuple[str, int], Units] = {}
        self.whole = True  # all that is told of could be read

    def document(self, name: str) -> Document:
        audits = audits_of(self.points)
        self.whole = not any(audit.unread for audit in audits)
        known = [audit for audit in audits if audit.found]
        sections = [self.section(audit) for audit in known]
        sections.append(Section("Not compared", [left_out(audits, self.say)]))
        where: list[Inline] = []
        for point in self.points:
            where += [", " if where else "", self.card(point)]
        lead: list[Any] = [Facts([("Training", [f"run {name}"]), ("Audited at", where)])]
        if known:
            lead += [self.summary(known), Paragraph([ABOUT])]
        else:
            lead.append(Callout("bad", ["Nothing can be compared; why is said below."]))
        return Document(TITLE, "Trajectory", lead, sections)

    def card(self, point: Point) -> Inline:
        newest = next(iter(point.runs))
        if not self.pages[newest]:
            return point.name
        return Link(point.name, f"{card_of(newest)}/model_card.html")

    def summary(self, audits: Sequence[Audit]) -> Grid:
        """Each finding that counts, at the first and the last checkpoint."""
        rows: list[list[Inline]] = []
        for audit in audits:
            for each in headlines(audit.found):
                change = each.changes[0]
                ends = [self.value(audit, each, place) for place in (0, -1)]
                rows.append([self.name(each), verdict(each, change), *ends,
                             *self.told(audit, each, 0), title(audit.name)])  # fmt: skip
        columns = ["finding", "verdict", "first", "last", "change", "95 % interval",
                   "p, corrected", "audit"]  # fmt: skip
        caption = "From the first checkpoint to the last"
        return Grid(caption, columns, rows, frozenset({2, 3, 4, 5, 6}), NOTE)

    def section(self, audit: Audit) -> Section:
        shown = headlines(audit.found)
        section = Section(title(audit.name), [Paragraph([AUDITS[audit.name].means])])
        if len(audit.points) < len(self.points):
            at = ", ".join(point.name for point in audit.points)
            section.add(Paragraph([f"This audit was made at {at}."]))
        section.sections = [self.finding(audit, each) for each in shown]
        others = [e for e in audit.found if e not in shown and e.changes[0] is not None]
        if others:
            section.sections.append(self.others(audit, others))
        return section

    def finding(self, audit: Audit, each: Compared) -> Section:
        first, last, unit = each.found[0], each.found[-1], each.found[0]["unit"]
        section = Section(self.name(each))
        change = each.changes[0]
        ends = audit.points[0].name, audit.points[-1].name
        sentence: list[Inline] = ["From ", self.value(audit, each, 0), f" at {ends[0]} to ",
                                  self.value(audit, each, -1), f" at {ends[1]}: "]  # fmt: skip
        if change is None:
            sentence.append("not paired, for it is no mean of the same units at each.")
        else:
            sentence += [self.linked(said(change, unit), audit, each, 0), f": "
                         f"{verdict(each, change)}."]  # fmt: skip
        section.add(Paragraph(sentence))
        parts = judged(audit.found, last["metric"])
        if told := worst_part(each, parts, ends[1]):
            section.add(Paragraph([told]))
        name = slug(f"{audit.name} {first['metric']}")
        if first["slice"]:  # which may be called anything, and hold what must not be shown
            name += f"-{hashlib.sha256(first['slice'].encode()).hexdigest()[:10]}"
        figures = [self.figure(audit, each, place) for place in range(len(each.found))]
        svg = charts.course(
            [point.step for point in audit.points],
            [figure.value for figure in figures],
            [None if f.low is None or f.high is None else (f.low, f.high) for f in figures],
            [row["null"] for row in each.found],
            self.say(words(first["metric"])) + ("" if unit in ("share", "") else f" ({unit})"),
            unit == "share",
        )
        alt = ", ".join(f"{p.name} {f.short} ({f.interval})"
                        for p, f in zip(audit.points, figures, strict=True))  # fmt: skip
        dashed = any(row["null"] is not None for row in each.found)
        caption = f"{self.name(each)} by training step, with intervals." + (
            " The dashed line is what nothing to find would give." if dashed else ""
        )
        section.add(Chart(name, lambda _: svg, f"{self.name(each)}: {alt}.", caption))
        section.add(self.steps(audit, each, figures))
        if change is not None:
            section.add(self.changes(audit, each))
        return section

    def steps(self, audit: Audit, each: Compared, figures: Sequence[Figure]) -> Grid:
        """The numbers of a chart."""
        rows: list[list[Inline]] = []
        for place, (row, figure) in enumerate(zip(each.found, figures, strict=True)):
            null = "–" if row["null"] is None else show(row["null"], row["unit"])
            why = "" if row["value"] is not None else self.say(row["method"] or "no reason given")
            rows.append([f"{audit.points[place].step:,}", self.value(audit, each, place),
                         figure.interval, "–" if row["n"] is None else f"{row['n']:,}", null,
                         p_of(row["p_corrected"]), why])  # fmt: skip
        columns = ["step", "value", "interval", "n", "by chance", "p, corrected",
                   "not measured because"]  # fmt: skip
        kept = [i for i in range(len(columns))
                if i < 4 or any(row[i] not in ("", "–") for row in rows)]  # fmt: skip
        unit = each.found[0]["unit"]
        caption = "At each checkpoint" + (f" ({unit})" if unit not in ("share", "") else "")
        scorer = each.found[0]["scorer"]
        note = f"Scorer: {self.say(scorer)}. " * bool(scorer) + levels(each.found)
        return Grid(caption, [columns[i] for i in kept], [[row[i] for i in kept] for row in rows],
                    frozenset(n for n, i in enumerate(kept) if 0 < i < 6), note)  # fmt: skip

    def changes(self, audit: Audit, each: Compared) -> Grid:
        rows: list[list[Inline]] = []
        for place, (i, j) in enumerate(audit.pairs):
            change = each.changes[place]
            steps = f"{audit.points[i].step:,} → {audit.points[j].step:,}"
            pairs = "–" if change is None else f"{change['n']:,}"
            rows.append([steps, *self.told(audit, each, place), pairs])
        columns = ["steps", "change", "95 % interval", "p, corrected", "pairs"]
        caption = f"Change, in pairs{measure_of(each.found[0]['unit'])}"
        return Grid(caption, columns, rows, frozenset(range(1, 5)))

    def others(self, audit: Audit, others: Sequence[Compared]) -> Section:
        """The other findings that are paired, those that moved most surely first."""

        def surely(each: Compared) -> float:
            change = each.changes[0]
            return 2.0 if change is None or change["p"] is None else float(change["p"])

        rows: list[list[Inline]] = []
        moved = sorted(others, key=surely)
        for each in (e for n, e in enumerate(moved) if n < LINES or is_about_groups(e.found[0])):
            ends = [self.value(audit, each, place) for place in (0, -1)]
            rows.append([self.name(each), *ends, *self.told(audit, each, 0)])
        first, last = audit.points[0].name, audit.points[-1].name
        columns = ["finding", first, last, "change", "95 % interval", "p, corrected"]
        note = "Those that moved most surely first; of shares in percentage points."
        if len(others) > len(rows):
            ends_of = " ".join(f"RUN@{audit.points[place].step}" for place in (0, -1))
            note += f" {len(rows)} of {len(others)}; hallmark compare {ends_of} shows all."
        grid = Grid("First and last", columns, rows, frozenset(range(1, 6)), note)
        return Section("Other findings of this audit", [grid])

    # Figures and their rows ------------------------------------------------------------------

    def name(self, each: Compared) -> str:
        row = each.found[0]
        return self.say(words(row["metric"]) + (f", {row['slice']}" if row["slice"] else ""))

    def figure(self, audit: Audit, each: Compared, place: int) -> Figure:
        return self.book(audit, place).finding(f"audit_{audit.name}", each.found[place])

    def side(self, audit: Audit, each: Compared, place: int) -> Evidence:
        """The units of a finding that is a mean of some."""
        key = audit.name, place
        if key not in self.units:
            self.units[key] = Units(audit.artifacts[place])
        where = self.units[key].where(each.found[place])
        assert where is not None
        return self.book(audit, place).evidence(f"audit_{audit.name}", "values", where)

    def book(self, audit: Audit, place: int) -> Book:
        key = audit.name, audit.points[place].step  # the last is -1, too
        if key not in self.books:
            self.books[key] = Book({f"audit_{audit.name}": audit.artifacts[place]})
        return self.books[key]

    def value(self, audit: Audit, each: Compared, place: int) -> Inline:
        """A value, which leads to its rows on the card of the checkpoint where that has them."""
        figure, run = self.figure(audit, each, place), audit.points[place].run_of(audit.name)
        if run is None or figure.page not in self.pages[run]:
            return figure.short
        return Link(figure.short, f"{card_of(run)}/{figure.page}")

    def told(self, audit: Audit, each: Compared, place: int) -> list[Inline]:
        """A change, its interval and p."""
        change, unit = each.changes[place], each.found[0]["unit"]
        if change is None:
            return ["not paired", "–", "–"]
        text = amount(change["value"], unit)
        value = self.linked(text, audit, each, place)
        return [value, span(change, unit), p_of(change["p_corrected"])]

    def linked(self, text: str, audit: Audit, each: Compared, place: int) -> Inline:
        """A change in words, which leads to its pairs, where values of a table are these."""
        if audit.name == CAPABILITY or each.found[0]["unit"] == AREA:
            return text
        return Link(text, self.pairs(audit, each, place))

    def pairs(self, audit: Audit, each: Compared, place: int) -> str:
        """The page of the pairs behind a change; written where it is not there."""
        i, j = audit.pairs[place]
        row, change = each.found[0], each.changes[place]
        assert change is not None
        named = (
            f"{audit.name}#{row['metric']}#{row['slice']}#{[audit.points[k].step for k in (i, j)]}"
        )
        page = f"rows/{slug(audit.name)}-{hashlib.sha256(named.encode()).hexdigest()[:10]}.html"
        if (self.out / page).exists():
            return page
        sides = [self.side(audit, each, k) for k in (i, j)]
        first, second = (
            {r["item"]: r for r in by_item(side.dataset.to_table(filter=side.filter())).to_pylist()}
            for side in sides
        )
        both = [(mine, second[item]) for item, mine in first.items() if item in second]
        both.sort(key=lambda pair: _most(row["worse"], pair))
        known = [n for n in ("item", "cluster", "text") if n in sides[0].dataset.schema.names]
        columns = [sides[0].column_of(name) for name in known]
        cells = [
            ([cell_of(column, one[column.name], one.get(column.judged_by), self.masker)
              for column in columns],
             [_number(one["value"]), _number(other["value"]), _number(_gap((one, other)))])
            for one, other in both[:PAIRS]
        ]  # fmt: skip
        html = environment().get_template("site_pairs.html").render(
            title=f"{self.name(each)}: {audit.points[i].name} to {audit.points[j].name}",
            said=f"Change: {said(change, row['unit'])}.", how=self.say(change["method"]),
            sides=[(audit.points[k].name, side, self.say(side.condition), self.say(side.python()))
                   for k, side in zip((i, j), sides, strict=True)],
            columns=columns, rows=cells, shown=len(cells), total=len(both),
            worse=row["worse"] in ("up", "down"),
        )  # fmt: skip
        path = self.out / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
        return page


def _gap(pair: tuple[Row, Row]) -> float | None:
    values = [row["value"] for row in pair]
    return None if None in values else values[1] - values[0]


def _most(worse: str, pair: tuple[Row, Row]) -> tuple[bool, float, str]:
    """Sorts pairs: what changed most for the worse first, what has no value last."""
    gap = _gap(pair)
    if gap is None:
        return True, 0.0, str(pair[0]["item"])
    return False, -worse_by(worse, gap) if worse else -abs(gap), str(pair[0]["item"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _pages(left: Mapping[str, Artifact | None]) -> set[str]:
    """The pages of rows of the card that a run left; none where that is gone."""
    card = left.get("model_card")
    return set() if card is None else set(card["figures"].read(["page"])["page"].to_pylist())


def card_of(run: str) -> str:
    """Where the card of a run is, from a page of a trajectory."""
    return f"../../{quote(run)}/model_card"


def write(run: str, points: Sequence[Point], history: Mapping[str, Artifact], folder: Path) -> bool:
    """Write the page of the training of a run, in its folder of the site; ``history``: what its
    stages left, by label, for what must be masked. What cannot be read is said there; returns
    whether all could be."""
    out = folder / FOLDER
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    try:
        writer = Writer(points, history, out)
        document = masked(writer.document(run), writer.say)
        whole = writer.whole
    except (HallmarkError, LookupError, TypeError, ValueError, AttributeError) as error:
        # One artifact that was changed must not hide all other pages.
        why = Masker().whole(f"{error}" if isinstance(error, HallmarkError) else f"{error!r}")
        whole = False
        said_so = Callout("bad", [f"The checkpoints could not be compared: {why}"])
        document = Document(TITLE, "Trajectory", [said_so], [])
    for chart in document.charts():
        path = out / chart.path
        path.parent.mkdir(exist_ok=True)
        path.write_text(chart.draw(str), encoding="utf-8")
    html = environment().get_template("site_trajectory.html").render(document=document, run=run)
    (out / PAGE).write_text(html, encoding="utf-8")
    return whole
