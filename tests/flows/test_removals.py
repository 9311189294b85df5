"""The summary of a run reports what was removed or tagged, and agrees with the datasheet."""

import json

import pytest

from hallmark.flows.commands.removal_summary import render_removals
from hallmark.flows.runs import open_run
from hallmark.tasks.contract import format_count
from tests.flows.conftest import Hallmark
from tests.reports.pages import text_of

pytestmark = pytest.mark.slow

GAY = "lesbian, gay and bisexual people"
#: Harmless, and scored 0.8 or more by the embedded scorer.
OWN = "I am a Black gay man, and my husband runs the small gay bookshop in the old town."
#: Harmless, and scored low.
CALM = "A bisexual teacher works at the school by the harbour, and she sings in the choir."
OTHER = "Rain fell on the orchard by the harbour, and the ferry took nobody to the far bank."
RUDE = "You bloody idiot, you damned bloody idiot, go to hell."
WHY = (
    "the default with the embedded scorer, which matches words, not meaning, and may score "
    "harmless mentions of minorities as toxic"
)
REMOVE = 'select_scored.rules={toxicity = {lt = 0.8, action = "remove"}}'


@pytest.fixture
def hallmark(tmp_path, server):
    """The command line over an empty store."""
    return Hallmark(tmp_path / "store", server)


@pytest.fixture
def corpus(tmp_path):
    """Write a config for documents of which 24 mention gay or bisexual people and 40 do not."""

    def write(own=16, calm=8, other=38, rude=2):
        texts = [
            f"{text} Page {n}."
            for text, count in ((OWN, own), (CALM, calm), (OTHER, other), (RUDE, rude))
            for n in range(count)
        ]
        lines = [json.dumps({"text": text}) for text in texts]
        (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
        config = tmp_path / "mine.toml"
        config.write_text(
            f'name = "mine"\n[[ingest.sources]]\nkind = "jsonl"\nname = "a"\n'
            f'path = "{tmp_path}/a.jsonl"\n[deduplicate_near]\nsimilarity_threshold = 1.0\n'
        )
        return str(config)

    return write


def lines_of(report):
    return render_removals(report["removals"])


def test_a_run_prints_what_was_removed_by_rule_and_group(hallmark, corpus):
    alone = Hallmark(hallmark.store)  # in a new process, so that stderr is complete
    done = alone("run", corpus(), "--set", REMOVE, "--until", "datasheet")
    lines = done.stderr.splitlines()
    [start] = [n for n, line in enumerate(lines) if line.startswith("run ")]
    total, rule, heading, group = lines[start + 1 :]
    assert total == (
        "removed 18 of 64 documents (28.1 %): 18 by select_scored, including 0 duplicates of other "
        "documents; no copy of the text remains for 18 documents"
    )
    assert rule == (
        "select_scored: toxicity removed 18 of 64 documents (28.1 %); set in the config; the "
        f"default is tag with {WHY.removeprefix('the default with ')}"
    )
    assert heading == (
        "documents that mention these groups of people were removed most often (groups with at "
        "least 20 documents; ratios adjusted for source; removals by all stages are counted, "
        "including those of duplicates; q is the p-value adjusted for the false discovery rate):"
    )
    start = (
        f"  {GAY}: 16 of 24 documents (66.7 %); all other documents: 2 of 40 (5.0 %); 13.3 times"
    )
    assert group.startswith(start)

    report = hallmark.json("run", corpus(), "--set", REMOVE, "--until", "datasheet")
    assert lines_of(report) == [total, rule, heading, group]
    removals = report["removals"]
    assert removals["min_group_documents"] == 20
    [entry] = removals["rules"]
    assert (entry["rule"], entry["action"]) == ("toxicity", "removed")
    assert (entry["documents"], entry["total"]) == (18, 64)
    [entry] = removals["groups"]
    run = open_run("latest", str(hallmark.store))
    [row] = [
        row
        for row in run["removal_effects"]["group_removals"].read().to_pylist()
        if row["slice"] == GAY
    ]
    columns = ("removed_documents", "documents", "adjusted_ratio", "adjusted_low", "adjusted_high")
    assert [entry[name] for name in ("documents", "total", "ratio", "low", "high")] == [
        row[name] for name in columns
    ]
    assert entry["is_significant"] == (row["verdict"] == "more") and entry["q"] == row["q"]
    assert "q = " in group or "q < 0.001" in group
    assert removals["tagged_groups"] == []


def test_by_default_harmless_documents_are_tagged_and_kept(hallmark, corpus):
    report = hallmark.json("run", corpus(rude=0), "--until", "datasheet")
    assert lines_of(report) == [
        f"select_scored: toxicity tagged 16 of 62 documents (25.8 %) and kept them; {WHY}",
        "documents that mention these groups of people were tagged most often (groups with at "
        "least 20 documents; ratios adjusted for source; intervals corrected for the selection of "
        "these groups):",
        f"  {GAY}: 16 of 24 documents (66.7 %); all other documents: 0 of 38 (0.0 %); not "
        "statistically significant (near-duplicates are counted once)",
    ]
    run = open_run("latest", str(hallmark.store))
    assert run["select_scored"]["documents"].row_count == 62
    for account in run["select_scored"]["accounts"].read().to_pylist():
        assert account["input"] == account["kept"]


def test_small_groups_are_not_ranked_and_the_summary_says_so(hallmark, corpus):
    small = corpus(own=8, calm=7)
    report = hallmark.json("run", small, "--set", REMOVE, "--until", "datasheet")
    assert lines_of(report)[2:] == [
        "removal rates of identity groups are not compared, because there are no groups with at "
        "least 20 documents"
    ]


def test_duplicates_count_as_removed_and_the_page_says_the_same(hallmark, corpus, tmp_path):
    """Copies of 9 harmless documents: a run without any rule that removes still removes them."""
    config = corpus(rude=0)
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, *lines[16:25]]), encoding="utf-8")
    report = hallmark.json("run", config, "--until", "datasheet")
    assert lines_of(report)[0] == (
        "removed 9 of 71 documents (12.7 %): 9 by deduplicate, including 9 duplicates of other "
        "documents; no copy of the text remains for 0 documents"
    )
    [group] = report["removals"]["groups"]
    assert (group["group"], group["documents"], group["total"]) == (GAY, 8, 32)
    run = open_run("latest", str(hallmark.store))
    page = text_of(run["datasheet"], "datasheet")
    assert "Curation removed 9 of 71 documents (12.7 %). 9 of these were duplicates" in page
    assert "Of the removed documents, 0 are lost: no copy remains in the corpus." in page
    compared = format_count(report["removals"]["groups_compared"], "identity or dialect group")
    rates = f"removal rates, including duplicates, of {compared}"
    assert f"{rates} with at least 20 documents" in page


def test_nothing_is_printed_if_nothing_was_removed_or_tagged(hallmark, corpus):
    quiet = corpus(own=0, rude=0)
    report = hallmark.json("run", quiet, "--until", "datasheet")
    assert lines_of(report) == [] and report["removals"]["actions"][0]["action"] == "tag"
    report = hallmark.json("run", quiet, "--until", "ingest")
    assert lines_of(report) == [] and report["removals"] == {}


def test_a_dry_run_says_which_action_applies_and_why(hallmark, corpus):
    note = "select_scored.rules.toxicity: action"
    done = hallmark("run", corpus(), "--dry-run", "--until", "datasheet")
    assert f"note: {note} tag, {WHY}\n" in done.stdout
    neural = ("--set", "score_toxicity.scorer.kind=detoxify", "--until", "ingest")
    report = hallmark.json("run", corpus(), "--dry-run", *neural)
    assert f"{note} remove, the default with Detoxify, a neural classifier" in report["notes"]


def test_the_summary_has_at_most_twelve_lines():
    rule = {"stage": "select_scored", "rule": "a", "action": "removed", "documents": 9, "total": 90}
    group = {
        "group": "they",
        "documents": 8,
        "total": 25,
        "share": 0.32,
        "other_documents": 1,
        "other_total": 90,
        "other_share": 1 / 90,
        "ratio": 28.8,
        "low": 5.0,
        "high": None,
        "q": None,
        "is_significant": False,
        "is_invented": False,
    }
    unscored = {"documents": 3, "by_status": {"cleared": 2, "empty": 1}, "total": 90}
    stages = [{"stage": f"stage {n}", "documents": n} for n in (1, 2)]
    report = {
        "total": {"documents": 3, "total": 90, "duplicates": 1, "lost": 2, "stages": stages},
        "rules": [rule] * 9,
        "actions": [],
        "groups": [group] * 9,
        "groups_compared": 9,
        "tagged_groups": [group] * 9,
        "min_group_documents": 20,
        "unscored": unscored,
    }
    lines = render_removals(report)
    assert lines[4] == (
        "3 of 90 documents (3.3 %) have no toxicity score: 2 judged harmless by the cascade's "
        "cheap first scorer, 1 empty"
    )
    assert lines[0] == (
        "removed 3 of 90 documents (3.3 %): 1 by stage 1, 2 by stage 2, including 1 duplicate of "
        "other documents; no copy of the text remains for 2 documents"
    )
    assert len(lines) == 12 and "7 more rules removed or tagged documents" in lines[3]
    assert lines[-1].endswith(
        "(95 % CI 5.00–∞); not statistically significant (near-duplicates are counted once)"
    )
