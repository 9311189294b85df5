"""How well a task was learnt: the model's scores beside those of a simple method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from reports.page.document import Block, Brief, Callout, Grid, Inline, Paragraph, Section
from reports.page.figures import Book, Figure
from reports.page.masking import Masker

FINETUNE = "finetune"
SCORES, PREDICTIONS, COUNTS = ((FINETUNE, name) for name in ("scores", "predictions", "counts"))

#: What the verdict is in, where it was measured; else the first metric.
MAIN = ("accuracy", "chrF2")

#: The systems of the table, as sentences name them, and what they are.
MODEL = "model"
SYSTEMS = {
    MODEL: ("this model", ""),
    "bag of words": ("a bag of words", "which counts tokens and learnt from the same rows"),
    "most frequent label of the word": (
        "each word's most frequent label", "which was counted in the same rows",
    ),
    "the source itself": ("the source handed back", "which has learnt nothing"),
}  # fmt: skip

#: The system whose figures are differences begins so; what it is compared with stands behind.
MINUS = f"{MODEL} minus "

#: By the standing: how the callout looks, what it says of the model, of the interval of the
#: difference on the same rows, and, where that is not known, of the two intervals.
VERDICTS: dict[str, tuple[Literal["good", "bad", "note"], str, str, str]] = {
    "ahead": ("good", "is ahead of", "above 0.", "The intervals do not overlap."),
    "behind": (
        "bad", "is behind", "below 0: for this task it is the worse of the two.",
        "The intervals do not overlap: for this task it is the worse of the two.",
    ),
    "not told apart": (
        "note", "is not told apart from", "which holds 0: more test rows might tell which is the "
        "better.", "The intervals overlap: more test rows might tell which is the better.",
    ),
    "not measured": ("note", "cannot be compared with", "", "One of the two has no score."),
    "no interval": (
        "note", "cannot be compared with", "", "At least one of the two has no interval.",
    ),
}  # fmt: skip

UNITS = {"score, 0 to 100": "of 100"}

NAMED = 12  # labels that a sentence lists

Row = dict[str, Any]


def name_of(system: str) -> str:
    if system.startswith(MINUS):
        return f"{name_of(MODEL)} minus {name_of(system.removeprefix(MINUS))}"
    return SYSTEMS.get(system, (system, ""))[0]


def ends(figure: Figure | None) -> tuple[float, float] | None:
    """The interval of a figure, where there is one."""
    if figure is None or figure.low is None or figure.high is None:
        return None
    return figure.low, figure.high


def standing(ours: Figure | None, other: Figure, apart: Figure | None) -> str:
    """Whether the interval of the difference ``apart`` on the same rows lies above 0 or below it;
    where there is none, whether the interval of one lies wholly above that of the other."""
    if ours is None or ours.value is None or other.value is None:
        return "not measured"
    one, two = ends(ours), ends(other)
    if known := ends(apart):
        one, two = known, (0.0, 0.0)
    if one is None or two is None:
        return "no interval"
    if one[0] > two[1]:
        return "ahead"
    return "behind" if one[1] < two[0] else "not told apart"


def value_of(figure: Figure) -> list[Inline]:
    """A value with its interval; the table beneath says the rest."""
    unit = "" if figure.unit == "share" else f" {figure.unit}"
    return [
        Brief(figure),
        f"{unit} (95 % interval {figure.interval})" if figure.high is not None else unit,
    ]


@dataclass
class Scores:
    """Makes the figures of the scores. Names of labels are text of the user's, which nobody has
    judged: a masked card shows their numbers."""

    book: Book
    masker: Masker
    lines_shown: int
    counted: str  # what n counts: texts, words or pairs
    rows: list[Row] = field(init=False)
    whole: dict[str, dict[str, Figure]] = field(init=False, default_factory=dict)
    #: Of each metric, by what the model is compared with, how far it is above that.
    apart: dict[str, dict[str, Figure]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = self.book.artifacts[FINETUNE]["scores"].read().to_pylist()
        for row in self.rows:
            if row["label"] is None:
                system = row["system"]
                kept = self.apart if system.startswith(MINUS) else self.whole
                kept.setdefault(row["metric"], {})[system.removeprefix(MINUS)] = self.figure(row)

    def figure(self, row: Row) -> Figure:
        where = {name: row[name] for name in ("system", "metric", "label")}
        unit: str = row["unit"]
        of = [] if row["label"] is None else [f"label {row['label']}"]
        return self.book.figure(
            " ".join(["score", row["metric"], row["system"], *of]),
            ", ".join([row["metric"], name_of(row["system"]), *of]),
            UNITS.get(unit, unit), SCORES, where, aggregate="last", column="value",
            low=row["low"], high=row["high"], level=None if row["low"] is None else 0.95,
            n=row["n"], scorer=row["scorer"], method=row["method"],
            note=row["method"] if row["value"] is None else "",
        )  # fmt: skip

    @property
    def main(self) -> str:
        """The metric of the verdict: of those that the model has a score in the first."""
        known = [
            metric
            for metric, figures in self.whole.items()
            if MODEL in figures and figures[MODEL].value is not None
        ]
        return next((metric for metric in (*MAIN, *known) if metric in known), "")

    def verdict(self) -> list[Block]:
        """In words: whether the model is better than what it is compared with."""
        figures = self.whole.get(self.main, {})
        ours = figures.get(MODEL)
        if ours is None or ours.value is None:
            return [Callout("bad", ["No test row was scored: how well it does is not known."])]
        found: list[Block] = []
        for system, other in figures.items():
            if system == MODEL:
                continue
            name, what = SYSTEMS.get(system, (system, ""))
            apart = self.apart.get(self.main, {}).get(system)
            kind, said, of_difference, of_both = VERDICTS[standing(ours, other, apart)]
            beginning = f"On the test rows the model {said} {name}{f', {what}' if what else ''}: "
            parts: list[Inline] = [f"{beginning}{self.main} ", *value_of(ours),
                                   f", n = {ours.n:,}, against ", *value_of(other)]  # fmt: skip
            if apart is not None and ends(apart):
                parts += [". On the same rows they differ by ", *value_of(apart)]
                parts.append(f", {of_difference}")
            else:
                parts.append(f". {of_both}")
            found.append(Callout(kind, parts))
        return found or [Paragraph([f"On the test rows: {self.main} ", ours, "."])]

    def in_short(self) -> Grid:
        lines: list[list[Inline]] = []
        for metric, figures in self.whole.items():
            ours = figures.get(MODEL)
            for system, figure in figures.items():
                apart = self.apart.get(metric, {}).get(system)
                alone = ours is None or figure is ours
                beside = "–" if alone else standing(ours, figure, apart)
                lines.append(self.line(metric, system, figure, beside))
                if apart is not None:
                    lines.append(self.line(metric, f"{MINUS}{system}", apart, "–"))
        columns = ["metric", "system", "value", "interval", "n", "standing"]
        note = (
            f"n counts {self.counted}. Intervals: 95 %. Standing of the model beside it, ahead or "
            "behind: the interval of their difference on the same rows lies above 0, or below it. "
            "Where it holds 0, this test does not tell the two apart."
        )
        return Grid("In short", columns, lines, frozenset({2, 3, 4}), note)

    def line(self, metric: str, system: str, figure: Figure, beside: str) -> list[Inline]:
        unit = "" if figure.unit == "share" else f", {figure.unit}"
        return [f"{metric}{unit}", name_of(system), figure, figure.interval, f"{figure.n or 0:,}",
                beside]  # fmt: skip

    def section(self) -> Section:
        apart = {metric: {f"{MINUS}{system}": figure for system, figure in figures.items()}
                 for metric, figures in self.apart.items()}  # fmt: skip
        lines: list[list[Inline]] = [
            [metric, name_of(system), figure.method, figure.scorer or "–"]
            for metric, figures in self.whole.items()
            for system, figure in {**figures, **apart.get(metric, {})}.items()
        ]
        grid = Grid("How each was measured", ["metric", "system", "method", "scorer"], lines)
        return Section("Scores", [grid, *self.by_label()])

    def labels(self) -> list[Row]:
        """The model's F1 of each label, in the order of their numbers."""
        return sorted(
            (r for r in self.rows if r["label"] is not None and r["system"] == MODEL),
            key=lambda row: row["label"],
        )

    def untested(self) -> list[Block]:
        """The labels of which no test row is."""
        every = self.labels()
        none = [row["label"] for row in every if not row["n"]]
        if not none:
            return []
        some = ", ".join(map(str, none[:NAMED])) + (" …" if len(none) > NAMED else "")
        said = (
            f"Labels without a test row: {len(none):,} of {len(every):,} (number {some}). How well "
            f"these are found is not known."
        )
        return [Callout("bad", [said])]

    def by_label(self) -> list[Block]:
        every = self.labels()
        if not every:
            return []
        shown = sorted(every, key=lambda row: -row["n"])[: self.lines_shown]
        shown = sorted(shown, key=lambda row: row["label"])
        kind = self.book.artifacts[FINETUNE]["scores"].columns["slice"].kind
        names = {row["label"]: self.masker.shown(row["slice"], kind) for row in shown}
        named = any(names[row["label"]] == row["slice"] for row in shown)
        others = {(r["system"], r["label"]): r for r in self.rows if r["label"] is not None}
        simple = list(dict.fromkeys(system for system, _ in others if system != MODEL))
        lines: list[list[Inline]] = []
        for row in shown:
            number = row["label"]
            wrong = self.book.figure(
                f"wrong label {number}", f"wrong answers, label {number}", "rows", PREDICTIONS,
                {"label": number, "right": False}, aggregate="count",
            )  # fmt: skip
            line: list[Inline] = [f"{number}", *([names[number]] if named else [])]
            line += [f"{row['n']:,}", wrong]
            for system in (MODEL, *simple):
                figure = self.figure(others[system, number])
                line += [figure, figure.interval]
            lines.append(line)
        columns = ["label", *(["name"] if named else []), "n", "wrong"]
        for system in (MODEL, *simple):
            columns += [f"F1, {name_of(system)}", "interval"]
        first = 1 + named
        numeric = frozenset(range(first, len(columns)))
        note = ""
        if len(every) > len(shown):
            note = f"The {len(shown)} of {len(every):,} labels with the most test rows. "
        note += f"n: {self.counted} of the test with the label; wrong: those given another. "
        if not named:
            note += (
                "A label is told by its number, as config.json of the checkpoint counts them from "
                "0: its name is text that nobody has judged. For your own eyes: hallmark report "
                "RUN --reveal, or the column slice of the table scores."
            )
        return [Grid("By label", columns, lines, numeric, note.strip())]
