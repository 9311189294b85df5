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

#: By the standing: how the callout looks, what it says of the model, and of the intervals.
VERDICTS: dict[str, tuple[Literal["good", "bad", "note"], str, str]] = {
    "ahead": ("good", "is ahead of", "The intervals do not overlap."),
    "behind": (
        "bad", "is behind", "The intervals do not overlap: for this task it is the worse of the "
        "two.",
    ),
    "not told apart": (
        "note", "is not told apart from", "The intervals overlap: more test rows might tell which "
        "is the better.",
    ),
    "no interval": (
        "note", "cannot be compared with", "There are too few test rows for an interval.",
    ),
}  # fmt: skip

UNITS = {"score, 0 to 100": "of 100"}

NAMED = 12  # labels that a sentence lists

Row = dict[str, Any]


def name_of(system: str) -> str:
    return SYSTEMS.get(system, (system, ""))[0]


def standing(ours: Figure, other: Figure) -> str:
    """Whether the interval of one lies wholly above that of the other."""
    if ours.low is None or ours.high is None or other.low is None or other.high is None:
        return "no interval"
    if ours.low > other.high:
        return "ahead"
    return "behind" if ours.high < other.low else "not told apart"


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

    def __post_init__(self) -> None:
        self.rows = self.book.artifacts[FINETUNE]["scores"].read().to_pylist()
        for row in self.rows:
            if row["label"] is None:
                self.whole.setdefault(row["metric"], {})[row["system"]] = self.figure(row)

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
        return next((m for m in (*MAIN, *self.whole) if m in self.whole), "")

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
            kind, said, ending = VERDICTS[standing(ours, other)]
            beginning = f"On the test rows the model {said} {name}{f', {what}' if what else ''}: "
            found.append(
                Callout(kind, [f"{beginning}{self.main} ", *value_of(ours), f", n = {ours.n:,}, "
                               "against ", *value_of(other), f". {ending}"])
            )  # fmt: skip
        return found or [Paragraph([f"On the test rows: {self.main} ", ours, "."])]

    def in_short(self) -> Grid:
        lines: list[list[Inline]] = []
        for metric, figures in self.whole.items():
            ours = figures.get(MODEL)
            for system, figure in figures.items():
                beside = "–" if ours is None or figure is ours else standing(ours, figure)
                unit = "" if figure.unit == "share" else f", {figure.unit}"
                lines.append([f"{metric}{unit}", name_of(system), figure, figure.interval,
                              f"{figure.n or 0:,}", beside])  # fmt: skip
        columns = ["metric", "system", "value", "interval", "n", "standing"]
        note = (
            f"n counts {self.counted}. Intervals: 95 %. Standing of the model beside it, ahead or "
            "behind: the two intervals do not overlap. Where they do, this test does not tell the "
            "two apart."
        )
        return Grid("In short", columns, lines, frozenset({2, 3, 4}), note)

    def section(self) -> Section:
        lines: list[list[Inline]] = [
            [metric, name_of(system), figure.method, figure.scorer or "–"]
            for metric, figures in self.whole.items()
            for system, figure in figures.items()
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
