"""Report how well a model learned a task: its scores compared with those of simple baselines.

The rows come from the tables of ``finetune``. The callouts state whether the model is better than
each baseline on the same test rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hallmark.reports.page.document import (
    Block,
    Callout,
    DataTable,
    InlineElement,
    Paragraph,
    Section,
    ShortFigure,
)
from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.contract import Row

FINETUNE = "finetune"
SCORES_TABLE, PREDICTIONS_TABLE, COUNTS_TABLE = (
    (FINETUNE, table_name) for table_name in ("scores", "predictions", "outcome_counts")
)

#: The metrics on which the verdict is based, in order of preference; else the first metric.
MAIN_METRICS = ("accuracy", "chrF2")

#: The systems of the table: their names in sentences, and what they are.
MODEL_SYSTEM = "model"
SYSTEM_DESCRIPTIONS = {
    MODEL_SYSTEM: ("this model", ""),
    "bag of words": ("a bag of words", "which counts tokens and was trained on the same rows"),
    "most frequent label of the word": (
        "each word's most frequent label",
        "as counted in the same rows",
    ),
    "the source itself": ("the unchanged source", "which was not trained"),
}

#: Prefix of systems whose figures are differences; the name of the baseline follows.
DIFFERENCE_PREFIX = f"{MODEL_SYSTEM} minus "

#: Whether the model is better than a baseline, and why that may not be known.
ComparisonResult = Literal["better", "worse", "no difference shown", "not measured", "no interval"]

#: For each result of ``compare_with_baseline``: the kind of the callout, the verb, the text about
#: the interval of the difference on the same rows, and the text used without that interval.
COMPARISON_MESSAGES: dict[
    ComparisonResult, tuple[Literal["good", "bad", "note"], str, str, str]
] = {
    "better": ("good", "is better than", "which is above 0.", "The intervals do not overlap."),
    "worse": (
        "bad",
        "is worse than",
        "which is below 0, so the model is worse on this task.",
        "The intervals do not overlap, so the model is worse on this task.",
    ),
    "no difference shown": (
        "note",
        "shows no difference from",
        "which includes 0; more test rows might show a difference.",
        "The intervals overlap; more test rows might show a difference.",
    ),
    "not measured": (
        "note",
        "cannot be compared with",
        "",
        "The model or this method has no score.",
    ),
    "no interval": (
        "note",
        "cannot be compared with",
        "",
        "The score of the model or this method has no interval.",
    ),
}

UNIT_LABELS = {"score, 0 to 100": "of 100"}

MAX_LISTED_LABELS = 12  # in a sentence


def format_system_name(system: str) -> str:
    if system.startswith(DIFFERENCE_PREFIX):
        return (
            f"{format_system_name(MODEL_SYSTEM)} minus "
            f"{format_system_name(system.removeprefix(DIFFERENCE_PREFIX))}"
        )
    return SYSTEM_DESCRIPTIONS.get(system, (system, ""))[0]


def get_interval_bounds(figure: Figure | None) -> tuple[float, float] | None:
    """Return the interval of a figure; None where it has none."""
    if figure is None or figure.low is None or figure.high is None:
        return None
    return figure.low, figure.high


def compare_with_baseline(
    model_score: Figure | None, baseline_score: Figure, difference: Figure | None
) -> ComparisonResult:
    """Compare the score of the model with that of a baseline.

    The interval of the difference on the same rows decides. Without it, a score is higher only if
    its interval lies entirely above the interval of the other.
    """
    if model_score is None or model_score.value is None or baseline_score.value is None:
        return "not measured"
    model_interval, baseline_interval = (
        get_interval_bounds(model_score),
        get_interval_bounds(baseline_score),
    )
    if difference_interval := get_interval_bounds(difference):
        model_interval, baseline_interval = difference_interval, (0.0, 0.0)
    if model_interval is None or baseline_interval is None:
        return "no interval"
    if model_interval[0] > baseline_interval[1]:
        return "better"
    return "worse" if model_interval[1] < baseline_interval[0] else "no difference shown"


def _format_title_in_sentence(title: str) -> str:
    """Begin a title with a lower-case letter, unless it is an abbreviation such as F1."""
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def format_value_with_interval(figure: Figure) -> list[InlineElement]:
    """Return a value with its interval; the table below holds the details."""
    unit = "" if figure.unit == "share" else f" {figure.unit}"
    return [
        ShortFigure(figure),
        f"{unit} (95 % interval {figure.interval_or_dash})" if figure.high is not None else unit,
    ]


@dataclass
class TaskScores:
    """Builds the blocks on task scores and adds their figures to the book.

    Names of labels are user text without a toxicity score: a redacted card shows their numbers.

    Attributes:
        book: The figures of the card.
        redactor: Redacts names of labels.
        max_rows: The largest number of rows of a table.
        counted_unit: The unit of n: texts, words or pairs.
        score_rows: The rows of the ``scores`` table.
        score_figures: By metric and system, the score over all labels.
        difference_figures: By metric and baseline, the score of the model minus that of the
            baseline.
    """

    book: FigureBook
    redactor: Redactor
    max_rows: int
    counted_unit: str
    score_rows: list[Row] = field(init=False)
    score_figures: dict[str, dict[str, Figure]] = field(init=False, default_factory=dict)
    difference_figures: dict[str, dict[str, Figure]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.score_rows = self.book.artifacts[FINETUNE]["scores"].read().to_pylist()
        for row in self.score_rows:
            if row["label_id"] is None:
                system = row["system"]
                target_figures = (
                    self.difference_figures
                    if system.startswith(DIFFERENCE_PREFIX)
                    else self.score_figures
                )
                target_figures.setdefault(row["metric"], {})[
                    system.removeprefix(DIFFERENCE_PREFIX)
                ] = self.add_score_figure(row)

    def add_score_figure(self, score_row: Row) -> Figure:
        """Add the figure of a row of the ``scores`` table."""
        conditions = {name: score_row[name] for name in ("system", "metric", "label_id")}
        unit: str = score_row["unit"]
        label_parts = [] if score_row["label_id"] is None else [f"label {score_row['label_id']}"]
        return self.book.add_computed_figure(
            " ".join(["score", score_row["metric"], score_row["system"], *label_parts]),
            ", ".join([score_row["title"], format_system_name(score_row["system"]), *label_parts]),
            UNIT_LABELS.get(unit, unit),
            SCORES_TABLE,
            conditions,
            aggregate="last",
            value_column="value",
            low=score_row["low"],
            high=score_row["high"],
            confidence_level=None if score_row["low"] is None else 0.95,
            n=score_row["n"],
            scorer=score_row["scorer"],
            method=score_row["method"],
            missing_reason=score_row["method"] if score_row["value"] is None else "",
        )

    @property
    def title_by_metric(self) -> dict[str, str]:
        """Return the title that cards show for each metric."""
        return {row["metric"]: row["title"] for row in self.score_rows}

    @property
    def main_metric(self) -> str:
        """Return the metric of the verdict: the first measured of ``MAIN_METRICS``, else any."""
        scored_metrics = [
            metric
            for metric, figures in self.score_figures.items()
            if MODEL_SYSTEM in figures and figures[MODEL_SYSTEM].value is not None
        ]
        return next(
            (metric for metric in (*MAIN_METRICS, *scored_metrics) if metric in scored_metrics), ""
        )

    def build_comparison_callouts(self) -> list[Block]:
        """Return whether the model is better than each baseline, in words."""
        figures = self.score_figures.get(self.main_metric, {})
        model_score = figures.get(MODEL_SYSTEM)
        if model_score is None or model_score.value is None:
            return [
                Callout("bad", ["No test rows were scored, so the model's quality is not known."])
            ]
        title = _format_title_in_sentence(self.title_by_metric[self.main_metric])
        callouts: list[Block] = []
        for system, baseline_score in figures.items():
            if system == MODEL_SYSTEM:
                continue
            system_name, system_note = SYSTEM_DESCRIPTIONS.get(system, (system, ""))
            difference = self.difference_figures.get(self.main_metric, {}).get(system)
            callout_kind, comparison, difference_message, interval_message = COMPARISON_MESSAGES[
                compare_with_baseline(model_score, baseline_score, difference)
            ]
            lead = (
                f"On the test rows, the model {comparison} "
                f"{system_name}{f', {system_note}' if system_note else ''}: "
            )
            parts: list[InlineElement] = [
                f"{lead}{title} ",
                *format_value_with_interval(model_score),
                f", n = {model_score.n:,}, against ",
                *format_value_with_interval(baseline_score),
            ]
            if difference is not None and get_interval_bounds(difference):
                parts += [
                    ". The difference on the same rows is ",
                    *format_value_with_interval(difference),
                ]
                parts.append(f", {difference_message}")
            else:
                parts.append(f". {interval_message}")
            callouts.append(Callout(callout_kind, parts))
        return callouts or [Paragraph([f"On the test rows: {title} ", model_score, "."])]

    def build_summary_table(self) -> DataTable:
        """Build the table of scores and differences by metric and system."""
        table_rows: list[list[InlineElement]] = []
        for metric, figures in self.score_figures.items():
            model_score = figures.get(MODEL_SYSTEM)
            for system, figure in figures.items():
                difference = self.difference_figures.get(metric, {}).get(system)
                is_model_row = model_score is None or figure is model_score
                comparison = (
                    "–" if is_model_row else compare_with_baseline(model_score, figure, difference)
                )
                table_rows.append(self.build_summary_row(metric, system, figure, comparison))
                if difference is not None:
                    table_rows.append(
                        self.build_summary_row(
                            metric, f"{DIFFERENCE_PREFIX}{system}", difference, "–"
                        )
                    )
        columns = ["metric", "system", "value", "interval", "n", "model compared with system"]
        note = (
            f"n is the number of {self.counted_unit}. Confidence level: 95 %. The model is better "
            "or worse if the interval of the difference on the same rows lies above or below 0. "
            "If the interval includes 0, no difference is shown."
        )
        return DataTable("Scores on the test rows", columns, table_rows, frozenset({2, 3, 4}), note)

    def build_summary_row(
        self, metric: str, system: str, figure: Figure, comparison: str
    ) -> list[InlineElement]:
        unit_suffix = "" if figure.unit == "share" else f", {figure.unit}"
        return [
            f"{self.title_by_metric[metric]}{unit_suffix}",
            format_system_name(system),
            figure,
            figure.interval_or_dash,
            f"{figure.n or 0:,}",
            comparison,
        ]

    def build_score_details_section(self) -> Section:
        differences_by_metric = {
            metric: {f"{DIFFERENCE_PREFIX}{system}": figure for system, figure in figures.items()}
            for metric, figures in self.difference_figures.items()
        }
        table_rows: list[list[InlineElement]] = [
            [
                self.title_by_metric[metric],
                format_system_name(system),
                figure.method,
                figure.scorer or "–",
            ]
            for metric, figures in self.score_figures.items()
            for system, figure in {**figures, **differences_by_metric.get(metric, {})}.items()
        ]
        method_table = DataTable(
            "How each score was measured", ["metric", "system", "method", "scorer"], table_rows
        )
        return Section("Scores", [method_table, *self.build_label_table()])

    def list_model_f1_rows(self) -> list[Row]:
        """Return the rows of the model's F1 of each label, by label number."""
        return sorted(
            (
                score_row
                for score_row in self.score_rows
                if score_row["label_id"] is not None and score_row["system"] == MODEL_SYSTEM
            ),
            key=lambda row: row["label_id"],
        )

    def build_untested_labels_callout(self) -> list[Block]:
        """Return a warning that lists the labels without a test row, if there are any."""
        label_rows = self.list_model_f1_rows()
        untested_labels = [row["label_id"] for row in label_rows if not row["n"]]
        if not untested_labels:
            return []
        label_list = ", ".join(map(str, untested_labels[:MAX_LISTED_LABELS])) + (
            " …" if len(untested_labels) > MAX_LISTED_LABELS else ""
        )
        message = (
            f"Labels without test rows: {len(untested_labels):,} of {len(label_rows):,} (label "
            f"numbers: {label_list}). The accuracy for these labels is not known."
        )
        return [Callout("bad", [message])]

    def build_label_table(self) -> list[Block]:
        """Build the table of the F1 score of each label; the most frequent labels are shown."""
        label_rows = self.list_model_f1_rows()
        if not label_rows:
            return []
        shown_rows = sorted(label_rows, key=lambda row: -row["n"])[: self.max_rows]
        shown_rows = sorted(shown_rows, key=lambda row: row["label_id"])
        column_kind = self.book.artifacts[FINETUNE]["scores"].columns["slice"].kind
        name_by_label = {
            row["label_id"]: self.redactor.redact_by_kind(row["slice"], column_kind)
            for row in shown_rows
        }
        has_names = any(name_by_label[row["label_id"]] == row["slice"] for row in shown_rows)
        row_by_system_label = {
            (score_row["system"], score_row["label_id"]): score_row
            for score_row in self.score_rows
            if score_row["label_id"] is not None
        }
        baseline_systems = list(
            dict.fromkeys(system for system, _ in row_by_system_label if system != MODEL_SYSTEM)
        )
        table_rows: list[list[InlineElement]] = []
        for row in shown_rows:
            label_number = row["label_id"]
            wrong_count = self.book.add_computed_figure(
                f"wrong label {label_number}",
                f"wrong answers, label {label_number}",
                "rows",
                PREDICTIONS_TABLE,
                {"label_id": label_number, "is_correct": False},
                aggregate="count",
            )
            table_row: list[InlineElement] = [
                f"{label_number}",
                *([name_by_label[label_number]] if has_names else []),
            ]
            table_row += [f"{row['n']:,}", wrong_count]
            for system in (MODEL_SYSTEM, *baseline_systems):
                figure = self.add_score_figure(row_by_system_label[system, label_number])
                table_row += [figure, figure.interval_or_dash]
            table_rows.append(table_row)
        columns = ["label", *(["name"] if has_names else []), "n", "wrong"]
        for system in (MODEL_SYSTEM, *baseline_systems):
            columns += [f"F1, {format_system_name(system)}", "interval"]
        first_numeric_column = 1 + has_names
        numeric_columns = frozenset(range(first_numeric_column, len(columns)))
        note = ""
        if len(label_rows) > len(shown_rows):
            note = (
                f"The table shows {len(shown_rows)} of {len(label_rows):,} labels: those with "
                "the most test rows. "
            )
        note += (
            f"n is the number of test {self.counted_unit} with the label; “wrong” is the number "
            "of these for which the model predicted a different label. "
        )
        if not has_names:
            note += (
                "Labels are shown by their number in the checkpoint's config.json, counted from "
                "0, because their names have not been checked by a scorer. To see the names, run "
                "hallmark report RUN --unredacted, or read the slice column of the scores table."
            )
        return [DataTable("By label", columns, table_rows, numeric_columns, note.strip())]
