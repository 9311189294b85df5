"""Test that rows of public sets that need a remark are kept, counted and named."""

import csv
import json

import pytest

from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.methods.public_sets import record_repeated_items, record_unknown_groups
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import bbq, bias, stereoset
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.audit_runs import compute_simulated_findings, write_json_lines
from tests.tasks.audits.probes.test_bbq import build_questions


def get_counts(builder):
    return {row.metric: row.count for row in builder.skipped}


def test_repeats_and_contradictions_are_counted_apart():
    builder = RequestBuilder()
    record_repeated_items(builder, ["a", "b", "a", "a", "b"], [1, 1, 1, 2, 1])
    assert get_counts(builder) == {"repeated_items": 2, "conflicting_items": 1}
    builder = RequestBuilder()
    record_repeated_items(builder, ["a", "b"], [1, 1])
    assert not builder.skipped


def test_unknown_groups_are_named():
    builder = RequestBuilder()
    record_unknown_groups(builder, ["gender", "shoes", "hats", "shoes"], {"gender"})
    (row,) = builder.skipped
    assert (row.metric, row.count) == ("items_of_unknown_groups", 3)
    assert "such as 'hats', 'shoes'; they are included like all other items" in row.reason


@pytest.fixture
def crows_config(tmp_path):
    """Write pairs: two marked as invalid, one repeated, one reversed, one of hats.

    One category is written with a capital and an invisible character.
    """
    columns = ["", "sent_more", "sent_less", "bias_type", "invalid"]
    rows = [[n, f"aa {n} b", f"bb {n} b", "gender", ""] for n in range(30)]
    rows += [[30, "aa 30 b", "bb 30 b", "gender", "True"], [31, "aa 31 b", "bb 31 b", "age", "1"]]
    rows += [[32, "aa 0 b", "bb 0 b", "gender", "false"]]
    rows += [[33, "bb 1 b", "aa 1 b", "gender", "0"], [34, "aa 34 b", "bb 34 b", "hats", ""]]
    rows += [[35, "aa 35 b", "bb 35 b", " Gender\u200b", ""]]
    path = tmp_path / "crows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return bias.BiasConfig(pairs=path)


def test_remarks_about_pairs_are_findings(crows_config, own_folder):
    values, findings = compute_simulated_findings(
        "bias", own_folder, crows_config, lambda item, target: -1.0 * target
    )
    for metric, count in {
        "invalid_pairs": 2,
        "repeated_items": 1,
        "conflicting_items": 1,
        "items_of_unknown_groups": 1,
    }.items():
        assert findings[metric, ""]["value"] == findings[metric, ""]["n"] == count
    preference = findings["stereotype_preference", ""]
    assert (preference["n"], preference["clusters"]) == (34, 32)
    invalid = findings["stereotype_preference_of_invalid_pairs", "is_invalid=True"]
    assert (invalid["n"], invalid["p"], invalid["worse_when"]) == (2, None, "")
    assert findings["published_preference", ""]["n"] == 36
    assert findings["stereotype_preference", "category=hats"]["n"] == 1
    marked = {row["pair_id"] for row in values.to_pylist() if row["is_invalid"]}
    assert marked == {"30", "31"}


def test_an_unreadable_mark_is_refused(tmp_path):
    row = {"stereo": "a b", "anti": "a c", "category": "x", "invalid": "perhaps"}
    path = write_json_lines(tmp_path / "pairs.jsonl", [row])
    with pytest.raises(
        UsageError, match=r"line 1 has the value 'perhaps' in 'invalid'; use true or false"
    ):
        bias.read_bias_pairs(path)
    path.write_text(json.dumps(row | {"invalid": True}) + "\n")
    assert [pair.is_invalid for pair in bias.read_bias_pairs(path)] == [True]


def test_contradictory_items_of_stereoset_are_counted(tmp_path, own_folder):
    row = {
        "type": "intersentence",
        "target": "t",
        "bias_type": "hats",
        "context": "c.",
        "stereotype": "x.",
        "anti-stereotype": "y.",
        "unrelated": "z.",
    }
    swapped = row | {"stereotype": "y.", "anti-stereotype": "x."}
    path = write_json_lines(tmp_path / "items.jsonl", [row, swapped, row])
    builder = RequestBuilder()
    stereoset.build_requests(
        builder,
        open_audited_tokenizer(own_folder),
        CorpusTables(),
        stereoset.StereosetConfig(items=path),
    )
    assert get_counts(builder) == {
        "repeated_items": 1,
        "conflicting_items": 1,
        "items_of_unknown_groups": 3,
    }
    assert len(builder.items) == 2


def test_pairs_of_the_same_id_are_independent_of_each_other(tmp_path):
    """As where two files were joined."""
    path = tmp_path / "crows.csv"
    path.write_text(",sent_more,sent_less,bias_type\n0,a b,a c,age\n0,d b,d c,age\n")
    assert len({pair.template for pair in bias.read_bias_pairs(path)}) == 2


def test_a_row_with_more_fields_than_the_header_is_refused(tmp_path):
    """Text with a comma and without quotation marks would lose its end."""
    path = tmp_path / "crows.csv"
    header = ",sent_more,sent_less,bias_type\n"
    path.write_text(header + "0,a b,a c,age\n1,He said, that,a c,age\n")
    with pytest.raises(
        UsageError,
        match=r"line 3 has more fields than the header; enclose text that contains the delimiter",
    ):
        bias.read_bias_pairs(path)
    path.write_text(header + "0,a b,a c,age,,\n")  # a spreadsheet adds empty fields
    assert len(bias.read_bias_pairs(path)) == 1


def test_questions_of_unknown_categories_are_counted(tmp_path, own_folder):
    rows = [row for n, name in enumerate(["Age", "Hats"]) for row in build_questions(n, name)]
    path = write_json_lines(tmp_path / "questions.jsonl", rows)
    builder = RequestBuilder()
    bbq.build_requests(
        builder, open_audited_tokenizer(own_folder), CorpusTables(), bbq.BbqConfig(items=[path])
    )
    assert get_counts(builder)["items_of_unknown_groups"] == 4
    assert len(builder.items) == 8
