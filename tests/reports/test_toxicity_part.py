"""What the datasheet says of the toxicity of documents: of which text, and how of a long one."""

import re

import pytest

from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.composition import describe_toxicity_windows
from hallmark.reports.sections.corpus_figures import CorpusFigures, ToxicityAction
from tests.reports import pages

SAID = (
    "A document's toxicity is the highest score among its windows of up to 1,000 characters, not "
    "the mean score, so a single insult can give a long document a high score. The scored "
    "text is the text that the filter read"
)


def test_the_part_begins_with_what_the_toxicity_of_a_long_document_is(cards):
    text = pages.text_of(cards["datasheet"], "datasheet")
    assert f"Offensive text {SAID}. Document toxicity before filtering" in text


def test_where_windows_were_cut_out_it_says_that_the_score_is_of_the_text_before(session, made):
    history = {label: made.corpus[label] for label in ("score_toxicity", "redact_spans")}
    history["cut_toxic"] = history.pop("redact_spans")
    [said] = describe_toxicity_windows(CorpusFigures(FigureBook(history), history, 30))
    assert said.content == [f"{SAID}, before cut_toxic removed windows from it."]
    del history["score_toxicity"]
    assert describe_toxicity_windows(CorpusFigures(FigureBook(history), history, 30)) == []


def test_the_score_beside_a_document_says_of_which_text_it_is(cards):
    folder = pages.write_pages(cards["datasheet"])
    texts = [pages.read(path).text for path in folder.rglob("rows/*.html")]
    shown = [text for text in texts if re.search(r" · toxicity \d", text)]
    assert shown
    assert all("as score_toxicity read it, before any windows were cut" in text for text in shown)


def test_the_heading_names_no_action_that_no_rule_takes(cards):
    text = pages.text_of(cards["datasheet"], "datasheet")
    assert "The toxicity rule removed 12 documents." in text
    assert "Documents removed by the toxicity filter" in text
    assert "removed or tagged" not in text


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([], "removed or tagged"),
        (["tag"], "tagged"),
        (["remove", "remove"], "removed"),
        (["tag", "remove"], "removed or tagged"),
    ],
)
def test_headings_name_only_the_actions_of_the_rules(monkeypatch, actions, expected):
    rules = [ToxicityAction("toxicity", action, "linear") for action in actions]
    monkeypatch.setattr(CorpusFigures, "list_toxicity_actions", lambda corpus: rules)
    assert CorpusFigures(FigureBook({}), {}, 30).describe_toxicity_outcome() == expected


def test_two_tables_say_which_bytes_of_a_replacement_they_count(cards):
    """One has the bytes of the replaced text, the other the change in length."""
    page = pages.read_whole_card(pages.write_pages(cards["datasheet"]) / "datasheet.html")
    text = " ".join(page.text.split())
    assert text.count("“Replaced” is the number of bytes before the replacements minus") == 1
    assert "The byte counts above exclude the replacement text." in text
    [head] = [table[0] for table in page.tables if table[0][:3] == ["stage", "action", "reason"]]
    assert head[3:] == ["rows", "bytes affected"]
