"""The card of a study: how often the audits are wrong, on worlds whose answers were sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from reports.page.charts import intervals
from reports.page.document import (
    Block,
    Brief,
    Bullets,
    Callout,
    Chart,
    Document,
    Grid,
    Inline,
    Paragraph,
    Parts,
    Section,
)
from reports.page.evidence import publish
from reports.page.figures import FIGURES, Book, Figure, show
from reports.page.masking import Masker
from reports.page.rendering import LIBRARIES, TEMPLATES
from reports.sections.rates import KINDS, RATES, Rates, between, dose_of
from tasks.contract import Artifact, StageConfig, Work, stage

#: What an audit must reach at the largest dose, and the ends of a sound coverage.
FOUND, COVERED = 0.95, (0.92, 0.98)

#: With fewer worlds little is known; with fewer intervals their own share is no verdict.
FEW_WORLDS, FEW_INTERVALS = 10, 400


class StudyCardConfig(StageConfig):
    """Settings of the card of a study."""

    title: str = Field("How often the audits are wrong", description="its title")
    rows_shown: int = Field(200, ge=1, le=5000, description="rows on a page of evidence")


#: What candidates of a dose have.
TO_FIND = {True: "yes", False: "no", None: "less than of others"}


@dataclass
class Card:
    """Makes the figures of the card, section by section."""

    book: Book
    rates: Rates
    config: StudyCardConfig

    def __post_init__(self) -> None:
        self.all = self.book.figure("worlds", "worlds", "worlds", (RATES, "worlds"),
                                    aggregate="count")  # fmt: skip

    # The first screen ----------------------------------------------------------------------

    def head(self) -> list[Block]:
        if not self.rates.counted.value:
            return [Callout("bad", ["No world counts, so nothing was measured: ",
                                    Brief(self.all), " were made."])]  # fmt: skip
        return [
            Paragraph(["Each world is an invented town's text with effects in it whose strength "
                       "nobody knew: a model was trained on it, the ordinary audits judged every "
                       "candidate, and only then were the answers opened. ",
                       Brief(self.rates.counted), " of ", Brief(self.all), " worlds count."]),
            self.detection(),
            self.alarms(),
            self.coverage(),
            self.in_short(),
        ]  # fmt: skip

    def detection(self) -> Callout:
        """What is asked for at the largest effects, where there are any."""
        judged = any(map(self.rates.largest, self.rates.kinds()))
        silent = [told for kind in self.rates.kinds() if (told := self.rates.silent(kind))]
        if not judged and not silent:
            return Callout("note", ["Detection: no world that counts has anything to find."])
        largest = "the largest effect that it judged" if silent else "its largest effect"
        good = f"every audit with an effect to find finds {largest} in at least 95 % of cases"
        if not judged:
            good = "no audit judged anything that there is to find"
        return self.verdict("Detection", self.weak(), [good], silent)

    def alarms(self) -> Callout:
        if not any(figure.value is not None for figure in self.rates.alarmed.values()):
            return Callout("note", ["Alarms: no candidate without effect was judged."])
        return self.verdict("Alarms", self.loud(), self.quiet())

    def coverage(self) -> Callout:
        if not any(figure.value is not None for figure in self.rates.covered.values()):
            return Callout("note", ["Intervals: none can be compared with the true figure."])
        return self.verdict("Intervals", self.narrow(), [self.sound()])

    def verdict(
        self, what: str, wrong: list[Parts], good: Parts, silent: Sequence[Parts] = ()
    ) -> Callout:
        """``silent``: what was not judged, and so does not hold."""
        few = not wrong and (self.rates.counted.value or 0) < FEW_WORLDS
        told: list[Parts] = [*(wrong or [good]), *silent]
        parts: list[Inline] = [f"{what}: "]
        for number, each in enumerate(told):
            parts += ["; " if number else "", *each]
        parts.append("; of so few worlds that says little." if few else ".")
        return Callout("bad" if wrong else "note" if few or silent else "good", parts)

    def weak(self) -> list[Parts]:
        """The audits that find their largest effect too seldom, and by how much."""
        found: list[Parts] = []
        for kind in self.rates.kinds():
            most = self.rates.largest(kind)
            if most and most.figure.value is not None and most.figure.value < FOUND:
                by = f"{100 * (FOUND - most.figure.value):.1f}"
                where = f"{KINDS[kind].title} at {dose_of(most.dose)} ({KINDS[kind].dose})"
                found.append([f"{where}: found in ", *between(most.figure),
                              f", {by} points too few"])  # fmt: skip
        return found

    def loud(self) -> list[Parts]:
        """The audits that claim too much where there is nothing."""
        return [
            [f"{KINDS[kind].title}: claimed in ", *between(figure)]
            for kind, figure in self.rates.alarmed.items()
            if figure.low is not None and figure.low > 0.05
        ]

    def quiet(self) -> Parts:
        """That none is known to claim too much, and which is the nearest to it."""
        parts: list[Inline] = [
            "no audit is known to claim more where there is nothing than the 5 % it names"
        ]
        measured = {k: f for k, f in self.rates.alarmed.items() if f.value is not None}
        if measured:
            most = max(measured, key=lambda kind: measured[kind].value or 0.0)
            figure = measured[most]
            parts += ["; the most is ", *between(figure), f", {KINDS[most].title}"]
        return parts

    def narrow(self) -> list[Parts]:
        """Those whose intervals cover too little, or more than they say."""
        low, high = COVERED
        found: list[Parts] = []
        for kind, figure in self.rates.covered.items():
            # Of few intervals the share's own interval must lie outside.
            few = (figure.n or 0) < FEW_INTERVALS
            most, least = (figure.high, figure.low) if few else (figure.value, figure.value)
            if most is None or least is None or (most >= low and least <= high):
                continue
            much = "cover too little" if most < low else "are wider than they say"
            found.append([f"{KINDS[kind].title}: they {much}, ", Brief(figure),
                          f" of {figure.n or 0:,} ({figure.interval})"])  # fmt: skip
        return found

    def sound(self) -> str:
        few = any((figure.n or 0) < FEW_INTERVALS for figure in self.rates.covered.values())
        if few:
            return "none is known to cover the true figure in other than 92 to 98 % of cases"
        return "the 95 % intervals cover the true figure in 92 to 98 % of cases"

    def in_short(self) -> Grid:
        rows: list[list[Inline]] = []
        for kind in self.rates.kinds():
            largest, seen = self.rates.largest(kind), self.rates.smallest.get(kind)
            dose: list[Inline] = [dose_of(largest.dose), largest.figure] if largest else ["–", "–"]
            smallest = "none" if seen is None else dose_of(seen)
            rows.append([
                KINDS[kind].title, *dose, smallest if largest else "–",
                self.rates.alarmed.get(kind, "–"), self.rates.covered.get(kind, "–"),
            ])  # fmt: skip
        columns = ["what", "largest dose", "found there", "smallest found in 80 %, as all above",
                   "claimed without effect", "intervals cover"]  # fmt: skip
        note = "Candidates of a world share its model: intervals are over worlds. The largest dose "
        note += (
            "is that of all at which there is something to find. Intervals: those with two ends."
        )
        return Grid("In short", columns, rows, frozenset({1, 2, 3, 4, 5}), note)

    # The sections --------------------------------------------------------------------------

    def section(self, kind: str) -> Section:
        about = KINDS[kind]
        section = Section(about.title)
        section.add(Paragraph([f"A candidate is {about.what}. The audit {about.asked}."]))
        if kind in self.rates.detected:
            section.add(*self.found(kind))
        if silent := self.rates.unjudged(kind):
            section.add(Callout("bad", ["Of ", Brief(silent), " more the audit gave no verdict, "
                                        "since the model gave no number or there was no place to "
                                        "try: they are in no rate."]))  # fmt: skip
        if kind in self.rates.alarmed:
            figure = self.rates.alarmed[kind]
            holds = f"; the {100 * (figure.level or 0):g} % interval holds for all kinds together"
            section.add(Paragraph(["Claimed of candidates without effect: ", figure,
                                   ", at a nominal 5.0 %", holds * (figure.low is not None),
                                   "."]))  # fmt: skip
        covered: Parts = ["None of its intervals can be compared with a true figure."]
        if kind in self.rates.covered:
            covered = [f"Its 95 % intervals cover the true figure, which is {about.true}, in ",
                       self.rates.covered[kind], " of cases."]  # fmt: skip
            if without := self.rates.without_ends(kind):
                covered += [" Not counted are ", Brief(without), " more, whose interval has not "
                            "two ends or whose true figure is not known."]  # fmt: skip
        section.add(Paragraph(covered))
        return section

    def found(self, kind: str) -> list[Block]:
        """How often by dose."""
        about, rows = KINDS[kind], self.rates.detected[kind]
        figures = [each.figure for each in rows]
        ends = [None if f.low is None or f.high is None else (f.low, f.high) for f in figures]
        labels = [dose_of(each.dose) for each in rows]
        values = [figure.value or 0.0 for figure in figures]
        words = ", ".join(
            f"{label}: {show(v, 'share')}" for label, v in zip(labels, values, strict=True)
        )
        cells: list[list[Inline]] = [
            [dose_of(each.dose), TO_FIND[each.effect], each.figure, each.figure.interval,
             f"{each.figure.n:,}"] for each in rows
        ]  # fmt: skip
        columns = [about.dose, "something to find?", "found", "interval", "candidates"]
        return [
            Chart(f"found-{kind}",
                  lambda say: intervals(labels, values, ends, "share found", FOUND, say),
                  f"Share found by {about.dose}: {words}",
                  f"Found, by {about.dose}; bars are 95 % intervals over worlds, the line is at "
                  f"95 %"),
            Grid(f"Found, by {about.dose}", columns, cells, frozenset({2, 3, 4})),
        ]  # fmt: skip

    def attribution(self) -> Section:
        """Which documents matter to a likelihood: how often that was predicted rightly, and what
        became of findings without them."""
        section = Section("Which documents matter")
        section.add(Paragraph([
            "Without a gradient documents are named by the rare words and runs of words that they "
            "share with a text. Right is a document that was written for that text; as many are "
            "looked at as there are of these, or as are named of a text at most."
        ]))  # fmt: skip
        rows: list[list[Inline]] = []
        for row in self.rates.tables["precision"]:
            figure = self.told(row, "precision", {"kind": row["kind"]})
            rows.append([KINDS[row["kind"]].title, figure, figure.interval, f"{row['n']:,}"])
        columns = ["of", "right", "interval", "texts"]
        section.add(Grid("Documents named that are right", columns, rows, frozenset({1, 2, 3})))
        if not self.rates.tables["removed"]:
            said = "No model was trained anew without them."
            if self.rates.artifact.manifest["lineage"].get("arms"):
                said = "No figure of a model that was trained anew without them can be compared."
            section.add(Paragraph([said]))
            return section
        titles = {"removed": "without them", "random": "without as many others",
                  "between": "by how much more"}  # fmt: skip
        rows = []
        for row in self.rates.tables["removed"]:
            where = {"kind": row["kind"], "arm": row["arm"]}
            figure = self.told(row, "removed", where)
            name = f"{KINDS[row['kind']].title}, {titles[row['arm']]}"
            rows.append([name, figure, figure.interval, f"{row['n']:,}"])
        section.add(Grid("By how much figures fall in models that were trained anew",
                         ["figure", "share of it", "interval", "candidates"], rows,
                         frozenset({1, 2, 3}), "Of candidates that were found."))  # fmt: skip
        return section

    def told(self, row: Mapping[str, Any], table: str, where: Mapping[str, str]) -> Figure:
        """A figure that stands in a table of the study."""
        label = " ".join([table, *where.values()])
        more = {name: row[name] for name in ("low", "high", "level", "n", "method")}
        return self.book.figure(label, label, "share", (RATES, table), where, aggregate="last",
                                column="value", **more)  # fmt: skip

    def worlds(self) -> Section:
        section = Section("Worlds that do not count")
        rows: list[list[Inline]] = [
            [row["world"], row["why"]] for row in self.rates.tables["worlds"] if not row["counts"]
        ]
        none = "Every world counts." if self.rates.tables["worlds"] else "No world was made."
        said: Sequence[Block] = [Paragraph([none])]
        section.add(*([Grid("Void", ["world", "why"], rows)] if rows else said))
        return section

    def caveats(self) -> Section:
        items: list[Parts] = [
            ["The worlds are invented, and their models small (half a million parameters and a "
             "megabyte of text, where nothing else was asked for): rates on larger models and "
             "other text may differ."],
            ["What is found depends on how often the model read a text, and so on the length of "
             "its training; the study's settings stand in its run."],
            ["The true figure of an interval is what the same model gives over all items, not what "
             "the text says: an interval is right about the model, detection about the text. So "
             "may be what is claimed without effect: by chance a model speaks otherwise of one "
             "group than of another of which its text says the same."],
        ]  # fmt: skip
        return Section("Caveats", [Bullets(items)])

    def document(self) -> Document:
        sections = [self.section(kind) for kind in self.rates.kinds()]
        return Document(self.config.title, "Study", self.head(),
                        [*sections, self.attribution(), self.worlds(), self.caveats()])  # fmt: skip


@stage(tables={"figures": FIGURES}, code=TEMPLATES, libraries=LIBRARIES)
def study_card(rates: Artifact, config: StudyCardConfig, work: Work) -> None:
    """``rates``: what ``error_rates`` left."""
    book = Book({RATES: rates})
    document = Card(book, Rates(book, rates), config).document()
    publish(document, book, work, "study_card", {}, Masker(), config.rows_shown)
