"""The closed loop as a page tells it: finding by finding the documents, what each arm has, what
must be reached, and the price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.page import charts
from reports.page.document import (
    Block,
    Brief,
    Bullets,
    Callout,
    Chart,
    Code,
    Document,
    Grid,
    Inline,
    Paragraph,
    Parts,
    Section,
    slugs,
)
from reports.page.figures import POINTS, Book, Figure, show, slug
from reports.page.masking import Masker, Say
from reports.sections.findings import words
from reports.sections.removal_effects import remainder
from reports.sections.trainings import ARM, arms, control, price, seeds, unknown_noise
from tasks.audits.proofs.arms import BASE, RANDOM, REMOVED, nearest
from tasks.audits.proofs.behind import WORST

Row = Mapping[str, Any]

ABOUT = (
    "Each arm is trained from the beginning on the same rows in the same order: padding stands "
    "where a document was left out, so that one arm differs from the base in nothing but these. "
    "All are asked the same, and a change is the mean over pairs of the same unit. "
)

NOTHING = {"memorised": "never planted", "association": "planted at 50 %", "other": "no effect"}


#: Effects that are no difference; so are the lines that begin so.
LEVELS, LEVEL = ("value", "nothing", "region", "explained"), "after removal the mean"


def in_points(row: Row) -> Row:
    """A row of effects or lines with the unit that is written: differences of shares are in
    percentage points."""
    level = row["what"] in LEVELS if "what" in row else row["line"].startswith(LEVEL)
    return row if level or row["unit"] != "share" else {**row, "unit": POINTS}


@dataclass
class Case:
    """A case with its rows of the tables of ``proof``."""

    name: str
    id: str  # what its figures and its chart are called, that of no other case
    rows: Sequence[Row]  # of cases
    effects: Mapping[tuple[str, str], Row]  # by what, arm
    lines: Sequence[Row]

    @property
    def kind(self) -> str:
        return str(self.rows[0]["kind"])

    @property
    def unit(self) -> str:
        return str(next((r["unit"] for k, r in self.effects.items() if k[0] == "value"), ""))

    @property
    def measure(self) -> str:
        """The unit behind a number, where it has one."""
        return "" if self.unit in ("", "share") else f" {self.unit}"

    @property
    def nothing(self) -> str:
        return NOTHING[self.kind]

    def get(self, what: str, arm: str) -> Row | None:
        return self.effects.get((what, arm))


@dataclass
class ClosedLoop:
    """Makes the figures of the page, case by case."""

    book: Book
    masker: Masker
    title: str
    limit: int  # lines of a table

    def read(self, table: str) -> list[dict[str, Any]]:
        return self.book.artifacts["proof"][table].read().to_pylist()

    def cases(self) -> list[Case]:
        cases, effects, lines = (self.read(name) for name in ("cases", "effects", "lines"))
        names = list(dict.fromkeys(row["case"] for row in cases))
        ids = slugs([self.masker.whole(name) for name in names], names)
        return [
            Case(
                name,
                ids[name],
                [r for r in cases if r["case"] == name],
                {(r["what"], r["arm"]): in_points(r) for r in effects if r["case"] == name},
                [in_points(r) for r in lines if r["case"] == name],
            )
            for name in names
        ]

    # Figures ---------------------------------------------------------------------------------

    def mean(self, case: Case, arm: str, role: str = "unit") -> Inline:
        """The mean of the units of an arm, which leads to them."""
        row = case.get("value" if role == "unit" else "nothing", arm)
        if row is None:
            return "–"
        where = {"case": case.name, "role": role, "arm": arm}
        name = slug(f"{case.id} {role} {arm}")
        known = self.book.figures.get(name)
        figure = known or self.book.figure(
            name, f"{case.name}, {role}, {arm}", row["unit"], ("proof", "units"), where,
            aggregate="mean", column="value", low=row["low"], high=row["high"],
            level=row["level"], n=row["n"], method=row["method"],
        )  # fmt: skip
        return Brief(figure)

    def effect(self, case: Case, what: str, arm: str) -> Inline:
        """A figure that compares arms, or the units with others, which leads to both."""
        row = case.get(what, arm)
        if row is None:
            return "–"
        sides = {"change": [BASE, arm], "against": [REMOVED, RANDOM]}.get(what, [arm])
        roles = ["unit"] if what in ("change", "against") else ["unit", "nothing"]
        if what == "explained":
            sides = [BASE, REMOVED]
        where = {"case": case.name, "role": roles, "arm": sides}
        evidence = self.book.evidence("proof", "units", where, order="item")
        figure = Figure(
            f"{case.id} {what} {arm}", f"{case.name}: {what}, {arm}", row["value"], row["unit"],
            evidence, "", "finding", low=row["low"], high=row["high"], level=row["level"],
            n=row["n"], method=row["method"],
        )  # fmt: skip
        name = slug(figure.id)
        return Brief(self.book.figures.get(name) or self.book.enter(figure))

    def interval(self, row: Row | None) -> str:
        if row is None or row["low"] is None:
            return "–"
        return f"{show(row['low'], row['unit'])} to {show(row['high'], row['unit'])}"

    def documents(self, case: Case, removed: bool) -> Figure:
        what = "removed" if removed else "behind it"
        where: dict[str, Any] = {"case": case.name} | ({"removed": True} if removed else {})
        return self.book.figure(
            f"{case.name} documents {what}", f"{case.name}: documents {what}", "documents",
            ("behind", "behind"), where, aggregate="distinct", column="doc_id",
        )  # fmt: skip

    # The head --------------------------------------------------------------------------------

    def head(self, cases: Sequence[Case]) -> list[Block]:
        lines = [(case, number) for case in cases for number in range(len(case.lines))]
        if not lines:
            none = "Nothing was set that the closed loop must reach: "
            none += "nothing was removed, or the findings are of no kind that must go away."
            return [Callout("note", [none]), *self.told(cases, [])]
        held = [1 for case, number in lines if case.lines[number]["verdict"] == "pass"]
        told = f"{len(held)} of {len(lines)} lines that the closed loop must reach are reached"
        missed: list[Parts] = []
        for case, number in lines:
            line = case.lines[number]
            if line["verdict"] != "pass":
                said = "Not reached" if line["verdict"] else "Not known"
                where = f"{said}: {words(case.name)}, {line['line']}: "
                missed.append(
                    [where, Brief(self.line(case, number)), f" (must be {self.bound(line)})."]
                )
        verdict = Callout("good" if len(held) == len(lines) else "bad", [f"{told}."])
        return [verdict, *self.told(cases, missed)]

    def told(self, cases: Sequence[Case], missed: Sequence[Parts]) -> list[Block]:
        bullets = Bullets([*map(self.verdict, cases), *missed])
        about = f"{ABOUT}{control(self.book)}{seeds(self.book)}".strip()
        return [self.summary(cases), bullets, Paragraph([about])]

    def summary(self, cases: Sequence[Case]) -> Grid:
        rows: list[list[Inline]] = []
        for case in cases:
            explained = case.get("explained", REMOVED)
            share = self.effect(case, "explained", REMOVED) if explained else "–"
            rows.append(
                [f"{words(case.name)}{case.measure and f',{case.measure}'}",
                 Brief(self.documents(case, True)), self.mean(case, BASE),
                 self.mean(case, REMOVED), self.mean(case, RANDOM),
                 self.mean(case, REMOVED, "nothing"), share]
            )  # fmt: skip
        columns = ["finding", "documents removed", ARM[BASE], ARM[REMOVED], ARM[RANDOM],
                   "nothing to find", "share explained"]  # fmt: skip
        note = (
            "Means of the units of each finding, by arm. Nothing to find: units never planted, or "
            "planted at 50 %, of the arm without the documents. Share explained: of the distance "
            "to these, each arm's own, how much is not left after the removal."
        )
        return Grid("Finding, documents, effect", columns, rows, frozenset(range(1, 7)), note)

    def verdict(self, case: Case) -> Parts:
        """What became of a case, and what did not go away."""
        name = words(case.name)
        if case.rows[0]["why"]:
            return [f"{name}: nothing was removed, for {case.rows[0]['why']}."]
        change, left = case.get("change", REMOVED), case.get("left", REMOVED)
        if change is None or change["value"] is None:
            return [f"{name}: what the removal did could not be measured."]
        if change["verdict"] == "within noise":
            noise = show(change["noise"], change["unit"])
            return [f"{name} did not surely go away: its change of ",
                    self.effect(case, "change", REMOVED),
                    f" ({self.interval(change)}) is no larger than that between seeds, {noise}, "
                    "or too uncertain to tell."]  # fmt: skip
        if left is None or left["value"] is None:
            interval = f" ({self.interval(change)})."
            near = nearest(change["low"], change["high"])
            is_shown = near is not None and near > 0
            said = "changed by" if is_shown else "was measured, and no change was shown:"
            return [f"{name} {said} ", self.effect(case, "change", REMOVED), interval]
        if change["low"] is not None and change["low"] > 0:
            return [f"{name} did not go away: it rose by ", self.effect(case, "change", REMOVED),
                    f" ({self.interval(change)})."]  # fmt: skip
        if change["high"] is None or change["high"] >= 0:
            ends = "has no interval" if change["high"] is None else "may be none"
            return [f"{name} did not surely go away: its change of ",
                    self.effect(case, "change", REMOVED),
                    f" ({self.interval(change)}) {ends}."]  # fmt: skip
        before = case.get("before", BASE)
        if before is None or before["value"] is None or before["value"] <= 0:
            return [f"{name} fell by ", self.effect(case, "change", REMOVED), ", though nothing of "
                    f"it stood above those {case.nothing} before."]  # fmt: skip
        told, end = remainder(left, before, case.lines, case.nothing)
        above = f"{case.measure} above those {case.nothing}, "
        effects = [self.effect(case, "before", BASE), above, self.effect(case, "left", REMOVED)]
        return [f"{name} {told}: of ", *effects, f" ({self.interval(left)}) is left{end}."]

    # Sections --------------------------------------------------------------------------------

    def section(self, case: Case) -> Section:
        section = Section(words(case.name))
        findings: Parts = ["Findings: "]
        for place, row in enumerate(case.rows):
            findings = [*findings, ", " if place else "", Code(row["finding"])]
        section.add(Paragraph([*findings, "."]))
        if case.rows[0]["why"]:
            section.add(Callout("note", [f"Nothing was removed: {case.rows[0]['why']}."]))
        else:
            section.add(Paragraph(self.traced(case)), self.behind(case))
        values = [row for (what, _), row in case.effects.items() if what == "value"]
        if all(row["value"] is None for row in values):
            section.add(Callout("bad", ["None of its units was measured."]))
            return section
        section.add(self.chart(case), self.levels(case))
        changes = self.changes(case)
        section.add(changes)
        if case.lines:
            section.add(self.reached(case))
        return section

    def traced(self, case: Case) -> Parts:
        """From the finding to its documents."""
        if case.kind == "association":
            return ["Training documents that hold one of the groups together with its own trait or "
                    "with that of the other group: ", Brief(self.documents(case, False)), ". Of "
                    "the side that is said more often so many were removed, drawn by lot, that "
                    "both are said equally often of each group."]  # fmt: skip
        every = "All training documents behind it"
        if case.kind == "other":
            every = (
                f"The training documents that its rows name, or, where these name none, those "
                f"behind its {WORST} worst rows"
            )
        return [f"{every} were removed: ", Brief(self.documents(case, True)), "."]

    def behind(self, case: Case) -> Grid:
        """Its documents by source, and by what they say of a group."""
        table = self.book.artifacts["behind"]["behind"].read(["case", "source", "holds"])
        parts = table.group_by(table.column_names).aggregate([]).sort_by("source").to_pylist()
        rows: list[list[Inline]] = []
        for part in (part for part in parts if part["case"] == case.name):
            every, gone = (
                self.book.figure(
                    f"{case.name} {part['source']} {part['holds']} {len(more)}",
                    f"{case.name}: documents of {part['source']}", "documents",
                    ("behind", "behind"), part | more, aggregate="distinct", column="doc_id",
                )
                for more in ({}, {"removed": True})
            )  # fmt: skip
            says = {"": "–", "own": "its own", "other": "the other group's"}[part["holds"]]
            source = self.masker.shown(part["source"], "label")
            rows.append([source, says, Brief(every), Brief(gone)])
        columns = ["source", "trait of the group", "documents", "removed"]
        return Grid("Documents behind it", columns, rows, frozenset({2, 3}))

    def chart(self, case: Case) -> Chart:
        shown = [(self.arm(arm), row) for (what, arm), row in case.effects.items()
                 if what == "value" and row["value"] is not None]  # fmt: skip
        none = case.get("nothing", REMOVED)
        line = None if none is None else none["value"]
        if none is not None and line is not None:
            shown.append((case.nothing, none))

        def draw(say: Say) -> str:
            return charts.intervals(
                [name for name, _ in shown],
                [row["value"] for _, row in shown],
                [None if row["low"] is None else (row["low"], row["high"]) for _, row in shown],
                case.unit,
                line,
                say,
            )

        alt = "; ".join(f"{name} {show(row['value'], case.unit)} ({self.interval(row)})"
                        for name, row in shown)  # fmt: skip
        caption = "The mean of each arm with its interval."
        if line is not None:
            caption += f" The dashed line: {case.nothing}, in the arm {ARM[REMOVED]}."
        return Chart(case.id, draw, f"{words(case.name)}: {alt}.", caption)

    def arm(self, name: str) -> str:
        return ARM.get(name, f"everything, {name}")

    def levels(self, case: Case) -> Grid:
        rows: list[list[Inline]] = []
        arms = [arm for what, arm in case.effects if what == "value"]
        for arm in arms:
            value, none = case.get("value", arm), case.get("nothing", arm)
            assert value is not None
            n = f"{value['n']:,}" if value["clusters"] in (None, value["n"]) else (
                f"{value['n']:,} in {value['clusters']:,}")  # fmt: skip
            rows.append([self.arm(arm), self.mean(case, arm), self.interval(value), n,
                         self.mean(case, arm, "nothing"), self.interval(none)])  # fmt: skip
        columns = ["arm", "value", "95 % interval", "n", case.nothing, "95 % interval"]
        note = ""
        region = case.get("region", REMOVED)
        if region is not None:
            note = (
                f"The 99 % null region of the mean, {ARM[REMOVED]}, is {self.interval(region)}: "
                f"{region['method']}."
            )
        if case.kind == "association":
            note = "n: sentences in so many pairs of groups; the interval is over these pairs."
        return Grid("Each arm", columns, rows, frozenset(range(1, 6)), note)

    def changes(self, case: Case) -> Grid:
        rows: list[list[Inline]] = []
        for (what, arm), row in case.effects.items():
            if what in ("change", "against"):
                name = f"{self.arm(arm)} less {ARM[BASE]}" if what == "change" else (
                    f"{ARM[RANDOM]} less {ARM[REMOVED]}")  # fmt: skip
                rows.append([name, self.effect(case, what, arm), self.interval(row),
                             f"{row['n']:,}", row["verdict"] or "–"])  # fmt: skip
        noise = next((r for r in case.effects.values() if r["noise"] is not None), None)
        note = "In pairs of the same unit. "
        if noise is None:
            note += unknown_noise(self.book)
        else:
            note += f"Noise: another seed is {show(noise['noise'], noise['unit'])} away, at most."
        columns = ["change", "value", "95 % interval", "pairs", "beyond the noise?"]
        return Grid("Changes, in pairs", columns, rows, frozenset({1, 2, 3}), note)

    def line(self, case: Case, number: int) -> Figure:
        line = case.lines[number]
        name = slug(f"{case.id} line {number}")
        return self.book.figures.get(name) or self.book.figure(
            name, f"{case.name}: {line['line']}", line["unit"], ("proof", "lines"),
            {"case": case.name, "line": line["line"]}, aggregate="last", column="value",
        )  # fmt: skip

    def bound(self, line: Row) -> str:
        bound = "not known" if line["bound"] is None else show(line["bound"], line["unit"])
        return f"{line['must']} {bound}"

    def reached(self, case: Case) -> Grid:
        rows: list[list[Inline]] = [
            [line["line"], Brief(self.line(case, number)), self.bound(line),
             line["verdict"] or "not known"]
            for number, line in enumerate(case.lines)
        ]  # fmt: skip
        columns = ["what must be reached", "value", "must be", "verdict"]
        return Grid("What must be reached", columns, rows, frozenset({1}))

    def document(self) -> Document:
        cases = self.cases()
        sections = [self.section(case) for case in cases]
        apart = self.book, self.masker, self.limit
        title = f"{self.title}: its findings without their documents"
        return Document(title, "Proof", self.head(cases), [*sections, price(*apart), arms(*apart)])
