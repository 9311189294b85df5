"""The card of a fine-tuned model: what it says of the scores, and what it must not show."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from hallmark.reports.page.figures import format_number
from hallmark.reports.sections.usage_examples import (
    build_checkpoint_usage_code,
    build_transformers_usage_code,
)
from hallmark.reports.unredacted_site import write_unredacted_site
from tests.reports import pages
from tests.reports.artifacts import MASKED, SCRIPT
from tests.reports.finetuning_artifacts import LABELS, UNKNOWN, card_of, last_of, tune
from tests.reports.pages import text_of


@pytest.fixture
def made(session, tmp_path):
    return tune(tmp_path)


def page_of(card):
    return pages.read(pages.write_pages(card) / "task_card.html")


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(
    ("right", "words"),
    [
        ((0.9, 0.2), "the model is better than a bag of words"),
        ((0.2, 0.9), "the model is worse than a bag of words"),
        ((0.52, 0.5), "the model shows no difference from a bag of words"),
    ],
)
def test_the_first_words_say_whether_the_model_beats_the_simple_method(
    session, tmp_path, right, words, paired
):
    """By the interval of their difference; where nobody measured that, by their own two."""
    made = tune(tmp_path, right=right, paired=paired)
    text = text_of(card_of(made), "task_card")
    assert text.count("On the test rows, the model ") == 1 and words in text
    scores = {
        r["system"]: r for r in made["scores"].read().to_pylist() if r["metric"] == "accuracy"
    }
    apart = scores.pop("model minus bag of words", None)
    assert (apart is not None) == paired
    said = text[text.index(words) :].partition("The test rows come from the user")[0]
    for row in scores.values():
        assert f"{100 * row['value']:.1f} % (95 % interval {100 * row['low']:.1f} % to" in said
        assert f"n = {row['n']}, against" in said
    if apart is None:
        disjoint = max(r["low"] for r in scores.values()) > min(r["high"] for r in scores.values())
        assert disjoint == ("do not overlap" in said) and "overlap" in said
        assert "difference on the same rows" not in said
        return
    value, low, high = (format_number(apart[name], "points") for name in ("value", "low", "high"))
    assert (
        f"The difference on the same rows is {value} points (95 % interval {low} to {high})" in said
    )
    place = (
        "above 0."
        if apart["low"] > 0
        else "below 0, so the model"
        if apart["high"] < 0
        else "includes 0;"
    )
    assert place in said


def test_on_the_same_rows_less_tells_the_two_apart(session, tmp_path):
    """36 and 30 of 60 right: the two intervals overlap, yet every text that the simple method has
    right the model has, too."""
    made = tune(tmp_path, right=(0.6, 0.5))
    low, high = {}, {}
    for row in made["scores"].read().to_pylist():
        if row["metric"] == "accuracy":
            low[row["system"]], high[row["system"]] = row["low"], row["high"]
    assert low["model"] < high["bag of words"] and low["model minus bag of words"] > 0
    page = page_of(card_of(made))
    assert "the model is better than a bag of words" in page.text
    [table] = [t for t in page.tables if t[0][-1] == "model compared with system"]
    assert [line[1::4] for line in table[1:4]] == [
        ["this model", "–"],
        ["a bag of words", "better"],
        ["this model minus a bag of words", "–"],
    ]


def test_one_test_row_has_no_interval_and_tells_nothing_apart(session, tmp_path):
    text = text_of(card_of(tune(tmp_path, rows=1, right=(1, 0))), "task_card")
    assert "the model cannot be compared with a bag of words" in text


def test_figures_are_the_rows_of_scores_with_interval_n_scorer_and_method(made):
    figures = pages.read_figures(card_of(made)).to_dict("records")
    rows = made["scores"].read().to_pylist()
    figures = [{k: None if v != v else v for k, v in figure.items()} for figure in figures]
    found = {f["evidence_filter"]: f for f in figures if f["evidence_table"] == "scores"}
    assert len(found) == len(rows) == 16
    for row in rows:
        key = json.dumps({k: row[k] for k in ("system", "metric", "label_id")}, sort_keys=True)
        for name in ("value", "low", "high", "n", "scorer", "method"):
            assert found[key][name] == row[name], (key, name)
        assert found[key]["confidence_level"] == (None if row["low"] is None else 0.95)


def read_rows(card, table):
    return card[table].read().to_pylist()


def test_labels_have_numbers_and_their_names_stand_on_no_page(made):
    card = card_of(made)
    text = text_of(card, "task_card")
    [table] = [t for t in page_of(card).tables if t[0][0] == "label"]
    assert table[0][:3] == ["label", "n", "wrong"]
    assert [line[:3] for line in table[1:]] == [
        ["0", "15", "1"],
        ["1", "15", "1"],
        ["2", "15", "2"],
        ["3", "0", "0"],
        ["4", "15", "2"],
    ]
    assert table[4][3] == "not measured"
    assert "Labels without test rows: 1 of 5 (label numbers: 3)." in text
    assert "hallmark export-site RUN --unredacted" in text
    files = [p for p in pages.write_pages(card).rglob("*") if p.suffix in (".html", ".md", ".svg")]
    assert len(files) > 3
    for path in files:
        for hidden in (*MASKED, *LABELS, UNKNOWN):
            assert hidden not in path.read_text(), path
    told = [row for table in ("figures", "evidence", "sections") for row in read_rows(card, table)]
    assert not any(name in json.dumps(told) for name in (*LABELS, UNKNOWN))


def test_labels_left_out_are_those_with_the_fewest_rows(made):
    card = card_of(made, max_table_rows=2)
    [table] = [t for t in page_of(card).tables if t[0][0] == "label"]
    assert [line[0] for line in table[1:]] == ["0", "1"]
    assert "The table shows 2 of 5 labels: those with the most test rows." in page_of(card).text


def test_wrong_answers_lead_to_their_rows(made):
    card = card_of(made)
    figures = {f["id"]: f for f in pages.read_figures(card).to_dict("records")}
    assert (figures["predictions-right"]["value"], figures["predictions-wrong"]["value"]) == (54, 6)
    page = pages.read_evidence(pages.write_pages(card), figures["predictions-wrong"]["page_path"])
    wrong = [row for row in made["predictions"].read().to_pylist() if not row["is_correct"]]
    numbers = re.findall(r"row number(\d+)", page.text)
    assert numbers == [str(row["row_number"]) for row in wrong[: len(numbers)]] and numbers
    shown = "is" if len(numbers) == 1 else f"{len(numbers)} are"
    assert f"{len(wrong)} rows, of which the first {shown} shown" in page.text
    assert page.text.count("[not shown: no toxicity score") >= len(numbers)


def test_what_speaks_against_the_scores_is_said(session, tmp_path):
    counted = {"text also in train": 3, "a label never seen in train": 15, "cut to the context": 2}
    text = text_of(card_of(tune(tmp_path, counted=counted)), "task_card")
    first = text.split("Scores on the test rows")[0]
    assert "3 test rows contain a text that is also in the training rows" in first
    assert "15 test rows have a label that appears in no training row" in first
    assert "2 test rows were truncated because the text did not fit into the context" in first
    assert "The test rows come from the user: 60 rows, which were split off from the file" in first


def test_rows_that_could_not_be_used_are_counted_with_their_reasons(session, tmp_path):
    card = card_of(tune(tmp_path))
    assert "Not used: 2 rows." in text_of(card, "task_card")
    [table] = [t for t in page_of(card).tables if t[0][0] == "reason"]
    assert table[1:] == [[f"no {SCRIPT} {i}", "1"] for i in range(2)]
    text = text_of(card_of(tune(tmp_path, bad=0)), "task_card")
    assert "Every row could be used; the quarantine is empty." in text


def test_it_says_what_was_learnt_from_what(made, tmp_path):
    head = tune(tmp_path, trained_weights="head")
    text = text_of(card_of(head, title="My labels"), "task_card")
    assert text.count("My labels") == 2 and "Only the output layer" in text
    base = head.manifest["lineage"]["checkpoint"]
    assert f"{base}, from a folder outside this store." in text
    assert head.manifest["parts"]["inputs"]["checkpoint"] in text
    assert hashlib.sha256(b"{}\n").hexdigest() in text and "rows.jsonl" in text
    assert str(tmp_path) not in text
    first = last_of(made)
    text = text_of(card_of(head, first), "task_card")
    assert f"finetune/{first.manifest['parts']['parent'][:16]} at step 20." in text


def test_settings_that_changed_while_it_trained_are_told(made):
    page = page_of(card_of(made))
    [table] = [t for t in page.tables if t[0] == ["steps", "setting", "value"]]
    assert table[1:] == [
        ["1 to 8", "accumulation_steps", "1"],
        ["9 to 20", "accumulation_steps", "2"],
    ]
    assert "Ran on" in page.text and "cpu, in fp32" in page.text


def test_pairs_are_judged_by_chrf_beside_the_source(session, tmp_path):
    made = tune(tmp_path, "pairs", right=(0.9, 0.1))
    card = card_of(made)
    text = text_of(card, "task_card")
    [row] = [
        r
        for r in made["scores"].read().to_pylist()
        if (r["system"], r["metric"]) == ("model", "chrF2")
    ]
    assert "the model is better than the unchanged source" in text
    assert f"chrF2 {row['value']:.2f} of 100 (95 % interval" in text
    assert not any(table[0][0] == "label" for table in page_of(card).tables)
    for path in pages.write_pages(card).rglob("*.html"):
        assert not any(hidden in path.read_text() for hidden in MASKED), path


def test_revealed_it_names_the_labels_and_shows_the_rows(session, made, tmp_path):
    card = card_of(made)
    entry = {
        "label": "task_card",
        "artifact": card.name,
        "stage": card.stage,
        "seconds": 1.0,
        "content": card.content_digest,
        "fingerprint": card.fingerprint,
        "cached": False,
    }
    record = {
        "run": "20260101-100000-aaaa",
        "flow": "finetune",
        "config_name": "x",
        "ended": None,
        "started": "2026-01-01T10:00:00+00:00",
        "status": "completed",
        "config": {},
        "error": None,
        "stages": [entry],
    }
    page = write_unredacted_site(session.store, record, tmp_path / "clear")
    assert "Task card" in page.read_text()
    folder = page.parent / "task_card"
    found = pages.read(folder / "task_card.html")
    assert "Unredacted, for local use only" in found.text
    [table] = [t for t in found.tables if t[0][:2] == ["label", "name"]]
    assert [line[1] for line in table[1:]] == [*LABELS, UNKNOWN]
    text = "".join(path.read_text() for path in folder.rglob("*.html"))
    assert "[not shown" not in text and pages.broken_links(folder) == []


@pytest.mark.parametrize("kind", ["classification", "labelling", "pairs"])
@pytest.mark.parametrize("model", ["BertForX", "LlamaForX"])
def test_the_lines_of_python_are_python(kind, model, tmp_path):
    class Export:
        name, manifest = "finetune/0", {"files": {"transformers/config.json": {}}}

        def fetch_file(self, name):
            file = tmp_path / "config.json"
            file.write_text(json.dumps({"architectures": [model]}))
            return file

    for second in (None, "other"):
        task = {"kind": kind, "second_text_column": second}
        compile(build_checkpoint_usage_code(task, "checkpoint/0"), "ours", "exec")
        compile(build_transformers_usage_code(task, Export()), "theirs", "exec")
    Export.manifest = {"files": {}}
    assert build_transformers_usage_code({"kind": kind}, Export()) == ""
