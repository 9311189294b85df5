"""What the datasheet says of what was removed and masked, under other settings than the default."""

from __future__ import annotations

from reports.datasheet import DatasheetConfig, datasheet
from tests.reports import artifacts, pages
from tests.tasks.corpora import given


def sheet_of(history):
    card = datasheet(artifacts.profiled(history), history, DatasheetConfig())
    page = pages.read(card.directory() / "datasheet.html")
    assert pages.broken_links(card.directory()) == []
    return card, page, " ".join(page.text.split())


def lines_of(page, *columns):
    """The rows of the one table with these heads."""
    [table] = [table for table in page.tables if table[0] == [*columns]]
    return table[1:]


def test_removed_for_toxicity_is_what_rules_over_toxicity_removed(session):
    """Two rules share the rude documents, and a third takes long ones, rude or not."""
    rude = [f"You are a {artifacts.OFFENSIVE}, number {n}." for n in range(6)]
    long = [f"The harbour was quiet, and {'the boats lay still, ' * 9} {n}." for n in range(9)]
    short = [f"Rain fell on the orchard, night {n}." for n in range(10)]
    sources = ["a"] * 4 + ["b"] * 2 + ["b"] * 9 + ["a"] * 10
    rules = {"long": {"signal": "words", "le": 30}, "worst": {"signal": "toxicity", "lt": 0.95}}
    rules |= {"toxicity": {"lt": 0.5}, "seen": {"signal": "toxicity", "lt": 0, "action": "tag"}}
    made = artifacts.curated(given([*rude, *long, *short], sources), rules)
    ledger = made["select_scored"]["ledger"].read().to_pylist()
    reasons = [row["reason"] for row in ledger if row["action"] == "removed"]
    assert reasons.count("long") == 9 and len(reasons) == 15
    _, page, _ = sheet_of(made)
    lines = lines_of(page, "source", "in", "removed", "share removed")
    assert lines == [["a", "14", "4", "28.6 %"], ["b", "11", "2", "18.2 %"]]


def test_without_a_rule_over_toxicity_nothing_was_removed_for_it(session):
    texts = [f"You are a {artifacts.OFFENSIVE}, number {n}." for n in range(30)]
    texts += ["The harbour was quiet, " + "and the boats lay still, " * 9]
    made = artifacts.curated(given(texts), {"long": {"signal": "words", "le": 30}})
    assert made["select_scored"]["ledger"].rows == 1
    _, _, said = sheet_of(made)
    assert "No rule over toxicity removed documents." in said
    assert "Removed for toxicity" not in said
