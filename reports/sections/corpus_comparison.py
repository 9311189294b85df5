"""Compare the corpora of two runs: what each datasheet counts, before, after, and the difference.

The rows come from the tables of the corpus stages, so that two datasheets can be compared whatever
text their cards hold. A table shows the rows that differ, the largest difference first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hallmark.reports.page.document import Block, DataTable, InlineElement, Paragraph, Section
from hallmark.reports.page.figures import format_number
from hallmark.reports.sections.checkpoint_comparison import (
    format_change,
    format_change_interval,
    format_change_unit_suffix,
)
from hallmark.reports.sections.corpus_figures import PROFILE
from hallmark.reports.sections.curation_effects import EFFECTS
from hallmark.reports.sections.curation_evaluation import (
    CURATION_EVALUATION,
    select_filter_error_rows,
)
from hallmark.tasks.contract import Artifact, HallmarkError, Row, format_count

#: The stages of a corpus whose tables are compared.
COMPARED_STAGES = (PROFILE, EFFECTS, CURATION_EVALUATION)

#: Explains the differences of shares.
RATE_NOTE = (
    "Differences between shares are in percentage points. The 95 % interval of a difference "
    "combines the intervals of both shares (Newcombe 1998), which assumes that the corpora have "
    "no documents in common. If they have some in common, the interval is too wide."
)


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of two corpora.

    Attributes:
        name: What it is about, such as a source and a measure; one text for each column.
        before: The value in the first corpus; None if it has none.
        after: The value in the second corpus; None if it has none.
        low: Lower end of the 95 % interval of the difference; None if there is none.
        high: Upper end of that interval.
    """

    name: tuple[str, ...]
    before: float | None
    after: float | None
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float | None:
        """The second value minus the first; None if one is missing."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def is_equal(self) -> bool:
        return self.before == self.after

    @property
    def is_shown(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class CorpusComparison:
    """A table of figures of two corpora.

    Attributes:
        title: What the figures count.
        columns: The names of the columns of ``ComparedFigure.name``.
        unit: Their unit: "share", or what is counted.
        figures: The figures, the largest difference first.
        note: What a reader must know.
    """

    title: str
    columns: tuple[str, ...]
    unit: str
    figures: Sequence[ComparedFigure]
    note: str = ""

    @property
    def is_equal(self) -> bool:
        return all(figure.is_equal for figure in self.figures)


#: Figures by name, with their intervals if they have them.
Interval = tuple[float | None, float | None, float | None]
FiguresByName = Mapping[tuple[str, ...], Interval]


@dataclass(frozen=True)
class _TableSpecification:
    """How a table of figures is read from the artifacts of a corpus."""

    title: str
    columns: tuple[str, ...]
    unit: str
    stage: str
    read: Callable[[Artifact], FiguresByName]
    note: str = ""


def _sum_rows(
    rows: Iterable[Row], names: Sequence[str], value_column: str
) -> dict[tuple[str, ...], Interval]:
    """Sum a column over the rows of each name."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for row in rows:
        sums[tuple(str(row[name]) for name in names)] += row[value_column]
    return {name: (total, None, None) for name, total in sums.items()}


def _read_sources(profile: Artifact) -> FiguresByName:
    rows = profile["sources"].read(["source", "documents"]).to_pylist()
    total = _sum_rows(({**row, "source": "all sources"} for row in rows), ["source"], "documents")
    return total | _sum_rows(rows, ["source"], "documents")


def _read_composition(profile: Artifact) -> FiguresByName:
    rows = profile["composition"].read(["dimension", "value", "split", "documents"]).to_pylist()
    all_splits = [row for row in rows if row["split"] == "" and row["dimension"] != "source"]
    return _sum_rows(all_splits, ["dimension", "value"], "documents")


def _read_removed_documents(profile: Artifact) -> FiguresByName:
    rows = profile["stage_accounts"].read(["stage", "unit", "removed_rows", "quarantined"])
    row_accounts = [row for row in rows.to_pylist() if row["unit"] == "rows"]
    return {
        (*name, outcome): total
        for outcome, column in (("removed", "removed_rows"), ("quarantined", "quarantined"))
        for name, total in _sum_rows(row_accounts, ["stage"], column).items()
    }


def _read_personal_data(profile: Artifact) -> FiguresByName:
    rows = profile["personal_data"].read(["type", "spans", "documents"]).to_pylist()
    return _sum_rows(rows, ["type"], "spans")


def _read_removal_rates(effects: Artifact) -> FiguresByName:
    columns = ["dimension", "slice"]
    columns += ["removal_rate", "removal_rate_low", "removal_rate_high"]
    return {
        (row["dimension"] or "all documents", row["slice"]): (
            row["removal_rate"],
            row["removal_rate_low"],
            row["removal_rate_high"],
        )
        for row in effects["group_removals"].read(columns).to_pylist()
    }


def _read_filter_errors(evaluation: Artifact) -> FiguresByName:
    return {
        (row["source"], row["stage"], row["target"], row["measure"]): (
            row["share"],
            row["low"],
            row["high"],
        )
        for row in select_filter_error_rows(evaluation)
    }


_TABLES = (
    _TableSpecification("Documents by source", ("source",), "documents", PROFILE, _read_sources),
    _TableSpecification(
        "Documents by language, licence and other properties",
        ("property", "value"),
        "documents",
        PROFILE,
        _read_composition,
    ),
    _TableSpecification(
        "Documents removed by each stage",
        ("stage", "outcome"),
        "documents",
        PROFILE,
        _read_removed_documents,
    ),
    _TableSpecification(
        "Removal rates by group",
        ("dimension", "group"),
        "share",
        EFFECTS,
        _read_removal_rates,
        RATE_NOTE,
    ),
    _TableSpecification("Personal data found", ("type",), "spans", PROFILE, _read_personal_data),
    _TableSpecification(
        "Toxicity filter error rates",
        ("source", "stage", "documents", "measure"),
        "share",
        CURATION_EVALUATION,
        _read_filter_errors,
        RATE_NOTE,
    ),
)


def compare_corpora(
    before: Mapping[str, Artifact], after: Mapping[str, Artifact]
) -> tuple[list[CorpusComparison], list[tuple[str, str]]]:
    """Compare the figures of two corpora.

    Args:
        before: The artifacts of the stages of the first corpus, by label.
        after: Those of the second corpus.

    Returns:
        The comparisons, and the titles of those that are not possible with the reason.
    """
    comparisons: list[CorpusComparison] = []
    missing: list[tuple[str, str]] = []
    for table in _TABLES:
        first_artifact, second_artifact = before.get(table.stage), after.get(table.stage)
        if first_artifact is None or second_artifact is None:
            sides = "only one corpus has" if first_artifact or second_artifact else "no corpus has"
            missing.append((table.title, f"{sides} results from the {table.stage} stage"))
            continue
        try:
            first_figures, second_figures = table.read(first_artifact), table.read(second_artifact)
        except HallmarkError as error:
            missing.append((table.title, f"cannot be read: {error}"))
            continue
        figures = [
            _compare_figure(name, first_figures.get(name), second_figures.get(name), table.unit)
            for name in dict.fromkeys([*first_figures, *second_figures])
        ]
        comparisons.append(
            CorpusComparison(
                table.title,
                table.columns,
                table.unit,
                sorted(figures, key=build_difference_sort_key),
                table.note,
            )
        )
    return comparisons, missing


def _compare_figure(
    name: tuple[str, ...], before: Interval | None, after: Interval | None, unit: str
) -> ComparedFigure:
    """Compare a figure; a count that one side lacks is 0, a share is not known."""
    default = (None, None, None) if unit == "share" else (0.0, None, None)
    before, after = before or default, after or default
    low, high = compute_difference_interval(before, after)
    return ComparedFigure(name, before[0], after[0], low, high)


def compute_difference_interval(
    before: Interval, after: Interval
) -> tuple[float | None, float | None]:
    """Compute the interval of a difference of two independent shares from their intervals.

    This is method 10 of Newcombe (1998), "Interval estimation for the difference between
    independent proportions", which keeps the asymmetry of the two intervals.

    Args:
        before: The first share with the ends of its interval.
        after: The second share with the ends of its interval.

    Returns:
        The ends; None for both if one of the shares has no interval.
    """
    first, first_low, first_high = before
    second, second_low, second_high = after
    if (
        first is None
        or second is None
        or first_low is None
        or first_high is None
        or second_low is None
        or second_high is None
    ):
        return None, None
    difference = second - first
    return (
        difference - math.hypot(second - second_low, first_high - first),
        difference + math.hypot(second_high - second, first - first_low),
    )


def build_difference_sort_key(figure: ComparedFigure) -> tuple[bool, float, tuple[str, ...]]:
    """Return a key that sorts differences whose interval excludes 0 first, then by their size."""
    difference = figure.difference
    size = math.inf if difference is None and not figure.is_equal else abs(difference or 0.0)
    return not figure.is_shown, -size, figure.name


# Page --------------------------------------------------------------------------------------------


def build_corpus_comparison_section(comparisons: Sequence[CorpusComparison]) -> Section:
    """Build the section about the training data."""
    section = Section("Training data")
    equal_titles = []
    for comparison in comparisons:
        if comparison.is_equal:
            equal_titles.append(comparison.title)
        else:
            section.sections.append(Section(comparison.title, [_build_table(comparison)]))
    if not section.sections:
        section.add_blocks(
            Paragraph(["No figure differs between the two corpora."])
            if comparisons
            else Paragraph(["The corpora cannot be compared; the reasons are below."])
        )
    elif equal_titles:
        section.add_blocks(Paragraph([f"No difference in: {'; '.join(equal_titles)}."]))
    return section


def _build_table(comparison: CorpusComparison) -> Block:
    """Build the table of the figures that differ."""
    shown = [figure for figure in comparison.figures if not figure.is_equal]
    has_intervals = comparison.unit == "share"
    rows: list[list[InlineElement]] = [
        [
            *figure.name,
            *format_compared_figure(figure, comparison.unit)[: 4 if has_intervals else 3],
        ]
        for figure in shown
    ]
    unit_suffix = format_change_unit_suffix(comparison.unit) if has_intervals else ""
    columns = [*comparison.columns, "before", "after", f"difference{unit_suffix}"]
    if has_intervals:
        columns.append("95 % interval")
    notes = [comparison.note]
    if equal_count := len(comparison.figures) - len(shown):
        verb = "is" if equal_count == 1 else "are"
        notes.append(f"{format_count(equal_count, 'equal row')} {verb} not shown.")
    return DataTable(
        "Before and after",
        columns,
        rows,
        frozenset(range(len(comparison.columns), len(columns))),
        " ".join(filter(None, notes)),
    )


def format_compared_figure(figure: ComparedFigure, unit: str) -> list[str]:
    """Return the values before and after, the difference, and its interval as texts."""
    values = [
        "–" if value is None else format_number(value, unit)
        for value in (figure.before, figure.after)
    ]
    difference = format_change(figure.difference, unit)
    if figure.difference is not None and figure.difference > 0:
        difference = f"+{difference}"
    return [
        *values,
        difference,
        format_change_interval({"low": figure.low, "high": figure.high}, unit),
    ]
