"""Each sentence of the card of a fine-tuned model follows from its tables."""

from types import SimpleNamespace

import pytest

from hallmark.reports.page.document import Callout, DataTable, Paragraph
from hallmark.reports.page.figures import Evidence, Figure
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.task_scores import TaskScores
from hallmark.reports.task_card import FINETUNE, TaskCardBuilder, TaskCardConfig
from hallmark.tasks.contract import Artifact, format_count
from hallmark.tasks.training.task_scores import METRIC_TITLES
from tests.reports.conclusions import text_of_blocks, text_of_parts, text_of_section


class Rows:
    """Stands for a table."""

    def __init__(self, rows):
        self.rows, self.row_count = rows, len(rows)
        self.names = None
        self.columns = {"slice": SimpleNamespace(kind="model text")}

    def read(self, columns=None):
        selected = Rows(self.rows)
        selected.names = columns
        return selected

    def to_pylist(self):
        return [{name: row[name] for name in self.names or row} for row in self.rows]


class Tuned(dict):
    """Stands for a fine-tuning; a table that is not given is empty."""

    def __init__(self, config=None, files=(), **tables):
        super().__init__({name: Rows(rows) for name, rows in tables.items()})
        self.manifest = {
            "parts": {"config": config or {}, "external": {"rows.jsonl": "d", "t.jsonl": "e"}},
            "files": dict.fromkeys(files),
            "lineage": {"checkpoint": "checkpoint/0"},
        }

    def __missing__(self, name):
        return Rows([])

    def get_input_name(self, name):
        return self.manifest["lineage"][name]


class Book:
    """Makes figures from rows that are given as lists."""

    def __init__(self, artifact):
        self.artifacts, self.figures = {FINETUNE: artifact}, {}

    def add_computed_figure(
        self, figure_id, label, unit, source, conditions=None, *, aggregate="sum", **more
    ):
        column = more.pop("value_column", "")
        rows = [
            row
            for row in self.artifacts[FINETUNE][source[1]].rows
            if all(row[name] == value for name, value in (conditions or {}).items())
        ]
        values = [row[column] for row in rows if column and row[column] is not None]
        value = {
            "count": float(len(rows)),
            "sum": float(sum(values)),
            "mean": sum(values) / len(values) if values else None,
            "last": values[-1] if values else None,
        }[aggregate]
        evidence = Evidence(FINETUNE, None, source[1], conditions or {})
        return Figure(figure_id, label, value, unit, evidence, column, aggregate, **more)


# Scores ------------------------------------------------------------------------------------------


def score(system, value, low=None, high=None, metric="accuracy", label=None, n=60, **more):
    row = {"system": system, "metric": metric, "label_id": label, "value": value, "low": low}
    row |= {"high": high, "unit": "share", "n": n, "scorer": "", "method": "m", "slice": ""}
    row["title"] = METRIC_TITLES[metric]
    return row | more


def scores_of(*rows, max_rows=40):
    return TaskScores(Book(Tuned(scores=rows)), Redactor(), max_rows, "texts")


MODEL = score("model", 0.6, 0.5, 0.7)
BAG, APART = "bag of words", "model minus bag of words"


@pytest.mark.parametrize(
    ("baseline", "apart", "look", "said", "end"),
    [
        # By the difference on the same rows.
        ((0.5, 0.4, 0.6), (0.1, 0.01, 0.2), "good", "is better than", ", which is above 0."),
        (
            (0.5, 0.4, 0.6),
            (0.1, 0.0, 0.2),
            "note",
            "shows no difference from",
            ", which includes 0; m",
        ),
        (
            (0.7, 0.6, 0.8),
            (-0.1, -0.2, 0.0),
            "note",
            "shows no difference from",
            ", which includes 0",
        ),
        (
            (0.7, 0.6, 0.8),
            (-0.1, -0.2, -0.01),
            "bad",
            "is worse than",
            ", which is below 0, so the model is worse",
        ),
        # By their own two.
        ((0.4, 0.3, 0.49), None, "good", "is better than", ". The intervals do not overlap."),
        (
            (0.4, 0.3, 0.5),
            None,
            "note",
            "shows no difference from",
            ". The intervals overlap; more",
        ),
        (
            (0.8, 0.7, 0.9),
            None,
            "note",
            "shows no difference from",
            ". The intervals overlap; more",
        ),
        (
            (0.8, 0.71, 0.9),
            None,
            "bad",
            "is worse than",
            ". The intervals do not overlap, so the model",
        ),
        (
            (0.8, None, None),
            None,
            "note",
            "cannot be compared with",
            ". The score of the model or this method has no interval",
        ),
        (
            (None, None, None),
            None,
            "note",
            "cannot be compared with",
            ". The model or this method has no score",
        ),
        (
            (0.8, 0.7, 0.9),
            (-0.2, None, None),
            "note",
            "shows no difference from",
            ". The intervals over",
        ),
    ],
)
def test_a_model_is_compared_by_the_interval_of_the_difference_else_by_both(
    baseline, apart, look, said, end
):
    rows = [MODEL, score(BAG, *baseline)] + ([score(APART, *apart)] if apart else [])
    scores = scores_of(*rows)
    [callout] = scores.build_comparison_callouts()
    text = text_of_parts(callout.content)
    assert callout.kind == look
    assert (
        text.startswith(f"On the test rows, the model {said}")
        and " a bag of words, which counts tokens and was trained on the same rows: " in text
    )
    assert end in text and "accuracy 60.0 % (95 % interval 50.0 % to 70.0 %), n = 60, ag" in text
    known = bool(apart and apart[1] is not None)
    assert ("The difference on the same rows is " in text) == known
    standing = scores.build_summary_table().rows[1][-1]
    word = {"good": "better", "bad": "worse"}.get(look)
    assert (standing == word) if word else (standing in said or standing.startswith("no"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "No test rows were scored, so the model's quality is not known."),
        (
            [score("model", None)],
            "No test rows were scored, so the model's quality is not known.",
        ),
        ([score(BAG, 0.5)], "No test rows were scored, so the model's quality is not known."),
        ([MODEL], "On the test rows: accuracy 60.0 %"),
    ],
)
def test_without_a_score_or_a_simple_method_nothing_is_compared(rows, said):
    [block] = scores_of(*rows).build_comparison_callouts()
    assert text_of_blocks([block]).startswith(said)
    assert isinstance(block, Paragraph if rows == [MODEL] else Callout)


@pytest.mark.parametrize(
    ("metrics", "main"),
    [
        ({"F1": 0.5, "accuracy": 0.5}, "accuracy"),
        ({"F1": 0.5, "accuracy": None}, "F1"),
        ({"BLEU": 0.5, "chrF2": 0.5}, "chrF2"),
        ({"F1": None}, ""),
    ],
)
def test_the_verdict_is_in_a_metric_that_the_model_has(metrics, main):
    rows = [score("model", value, metric=metric) for metric, value in metrics.items()]
    assert scores_of(*rows).main_metric == main


def labelled(*counts):
    return [score("model", 0.5, label=label, n=n, metric="F1") for label, n in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([], None),
        ([3, 1], None),
        ([3, 0], "Labels without test rows: 1 of 2 (label numbers: 1)."),
        ([0, 3, 0], "Labels without test rows: 2 of 3 (label numbers: 0, 2)."),
        ([0] * 12, f"12 of 12 (label numbers: {', '.join(map(str, range(12)))})."),
        ([0] * 13, f"13 of 13 (label numbers: {', '.join(map(str, range(12)))} …)."),
    ],
)
def test_labels_that_no_test_row_has_are_counted(counts, said):
    blocks = scores_of(*labelled(*counts)).build_untested_labels_callout()
    assert (said is None) == (blocks == []) and (said is None or said in text_of_blocks(blocks))


@pytest.mark.parametrize(("max_rows", "cut"), [(1, True), (2, False), (3, False)])
@pytest.mark.parametrize("named", [True, False])
def test_the_table_of_labels_says_how_many_it_shows_and_how_they_are_told(max_rows, cut, named):
    rows = [row | {"slice": "" if named else "a"} for row in labelled(3, 5)]
    [table] = scores_of(*rows, max_rows=max_rows).build_label_table()
    assert ("The table shows 1 of 2 labels: those with the most test rows." in table.note) == cut
    assert ("Labels are shown by their number" in table.note) == (not named)
    assert ("name" in table.columns) == named


# The card ----------------------------------------------------------------------------------------


def builder(kind="classification", test_path=None, base=None, **tables):
    data = {"path": "rows.jsonl", "validation_path": None, "test_path": test_path}
    task = {"kind": kind}
    config = {
        "task": task,
        "data": data | {"validation_share": 0.1, "test_share": 0.25},
        "trained_weights": "all",
        "train": {},
    }
    made = Tuned(config, **tables)
    scores = SimpleNamespace(
        build_comparison_callouts=list,
        build_untested_labels_callout=list,
        build_summary_table=lambda: Paragraph(["table"]),
    )
    checkpoint = SimpleNamespace(name="checkpoint/1")
    return TaskCardBuilder(Book(made), checkpoint, base, scores, Redactor(), TaskCardConfig())


def count(split, outcome, rows):
    return {"split": split, "outcome": outcome, "row_count": rows}


@pytest.mark.parametrize(
    ("counts", "test_path", "said"),
    [
        ([], None, "The test rows come from the user. Results on other text"),
        ([], "t.jsonl", "The test rows come from the user. Results on other text"),
        (
            [count("test", "used", 60)],
            None,
            "The test rows come from the user: 60 rows, which were split off from the file "
            "containing the training rows.",
        ),
        (
            [count("test", "used", 60)],
            "t.jsonl",
            "The test rows come from the user: 60 rows, which are in a separate file.",
        ),
    ],
)
def test_where_the_test_rows_come_from_follows_from_the_config(counts, test_path, said):
    text = text_of_blocks(builder(test_path=test_path, outcome_counts=counts).build_lead())
    assert said in text


@pytest.mark.parametrize(
    ("category", "rows", "said"),
    [
        ("text also in train", 3, "3 test rows contain a text that is also in the training"),
        ("text also in train", 1, "1 test row contains a text that is also in the training"),
        (
            "a label never seen in train",
            3,
            "3 test rows have a label that appears in no training row",
        ),
        (
            "a label never seen in train",
            1,
            "1 test row has a label that appears in no training row",
        ),
        (
            "cut to the context",
            3,
            "3 test rows were truncated because the text did not fit into",
        ),
        (
            "cut to the context",
            1,
            "1 test row was truncated because the text did not fit into",
        ),
    ],
)
def test_what_speaks_against_the_scores_is_said_where_a_row_does(category, rows, said):
    made = builder(outcome_counts=[count("test", category, rows)])
    assert text_of_blocks(made.build_warnings()).startswith(said)
    for counts in ([], [count("test", category, 0)], [count("train", category, rows)]):
        assert builder(outcome_counts=counts).build_warnings() == []


@pytest.mark.parametrize(
    ("validation_path", "test_path", "note"),
    [
        (
            None,
            None,
            (
                "Shares of the first file's rows that a hash assigned to other splits: 0.1 for "
                "validation and 0.25 for test."
            ),
        ),
        (
            None,
            "t.jsonl",
            "Shares of the first file's rows that a hash assigned to other splits: 0.1 for "
            "validation.",
        ),
        (
            "t.jsonl",
            None,
            "Shares of the first file's rows that a hash assigned to other splits: 0.25 for test.",
        ),
        ("t.jsonl", "t.jsonl", ""),
    ],
)
def test_shares_are_named_of_splits_without_a_file(validation_path, test_path, note):
    made = builder(test_path=test_path)
    made.finetuning_settings["data"]["validation_path"] = validation_path
    table = made.build_input_files_table()
    assert table.note == note
    given = [path for path in (validation_path, test_path) if path]
    assert [row[0] for row in table.rows] == ["rows.jsonl", *given]


@pytest.mark.parametrize("reasons", [0, 1, 40, 41])
def test_rows_in_quarantine_are_told_by_their_reasons(reasons):
    counts = [count("", f"quarantined: r{n}", n + 1) for n in range(reasons)]
    quarantine = [{} for row in counts for _ in range(row["row_count"])]
    blocks = builder(outcome_counts=counts, quarantine=quarantine).build_row_count_blocks()
    text = text_of_blocks(blocks)
    assert ("Every row could be used; the quarantine is empty." in text) == (not reasons)
    assert (f"Not used: {format_count(len(quarantine), 'row')}" in text) == bool(reasons)
    assert ("The table shows 40 of 41 reasons: those with the most rows." in text) == (reasons > 40)
    if reasons > 40:
        assert "r40" in text and "r0\n" not in text  # the smallest is left out


def setting(name, value, first=1, last=20):
    return {"setting": name, "value": value, "first_step": first, "last_step": last}


FIXED = [setting("precision", '"fp32"')]


@pytest.mark.parametrize(
    ("rows", "ran_on", "changed"),
    [
        ([setting("device", '"cpu"')], "cpu, in fp32", []),
        (
            [setting("device", '"cpu"', 1, 8), setting("device", '"cpu"', 9, 20)],
            "cpu, in fp32",
            [],
        ),
        (
            [setting("device", '"cpu"', 1, 8), setting("device", '"cuda"', 9, 1200)],
            "cpu and cuda, in fp32",
            ["1 to 8", "9 to 1,200"],
        ),
    ],
)
def test_settings_changed_only_where_a_later_value_differs(rows, ran_on, changed):
    card = builder(settings=[*rows, *FIXED])
    _, said = card.describe_device()
    blocks = card.build_changed_settings_table()
    assert text_of_parts(said) == ran_on
    assert [row[0] for block in blocks for row in block.rows] == changed
    assert all(isinstance(b, DataTable) and "with different settings" in b.note for b in blocks)


@pytest.mark.parametrize(
    ("kind", "right", "said"),
    [
        ("classification", [], "There are no predictions."),
        (
            "classification",
            [True],
            "Right answers: 1; wrong answers: 0. An answer is right if it equals the label ",
        ),
        (
            "pairs",
            [False],
            "Right answers: 0; wrong answers: 1. An answer is right if it equals the target ",
        ),
        (
            "labelling",
            [True, False, False],
            "Right answers: 1; wrong answers: 2. An answer is right if it equals the label ",
        ),
    ],
)
def test_predictions_are_counted_by_their_rows(kind, right, said):
    rows = [{"is_correct": each, "log_prob": -1.0 - each} for each in right]
    text = text_of_section(builder(kind, predictions=rows).build_predictions_section())
    assert said in text
    assert ("right answers none" in text) == (bool(right) and True not in right)
    assert ("wrong answers none" in text) == (bool(right) and False not in right)
    assert ("right answers −2.000" in text) == (True in right)


@pytest.mark.parametrize("kind", ["classification", "labelling", "pairs"])
def test_caveats_are_about_the_kind_of_task(kind):
    text = text_of_section(builder(kind).build_caveats_section())
    assert ("A row may have several right answers" in text) == (kind == "pairs")


def test_without_an_export_there_are_no_lines_for_transformers(monkeypatch):
    for code in ("", "import torch"):
        monkeypatch.setattr(
            "hallmark.reports.task_card.build_transformers_usage_code",
            lambda task, run, code=code: code,
        )
        text = text_of_section(builder().build_usage_section())
        assert ("The model was not exported in the transformers format." in text) == (not code)
        assert ("With transformers, from the export:" in text) == bool(code)


@pytest.mark.parametrize(
    ("lineage", "said"),
    [
        (None, "checkpoint/0, from a folder outside this store."),
        ({}, "checkpoint/0, written by the training run pretrain/0123456789abcdef at step 1,200."),
        (
            {"checkpoint": "checkpoint/2"},
            "checkpoint/0, written by the training run finetune/0123456789abcdef at step 1,200.",
        ),
    ],
)
def test_the_base_is_told_by_the_training_that_left_it(lineage, said):
    parts = {"parent": "0123456789abcdef0", "key": {"step": 1200}}
    manifest = {"stage": "checkpoint", "fingerprint": "0" * 64, "parts": parts, "lineage": lineage}
    base = None if lineage is None else Artifact(manifest, None, "folder")
    assert text_of_parts(builder(base=base).describe_base_checkpoint()) == said
