"""Check that two recordings are equal exactly if their tables are, after renaming."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.content_comparison import (
    Renaming,
    compare_recordings,
    print_comparison,
    read_tables,
)

FINGERPRINTS = {"old": "0123456789abcdef", "new": "fedcba9876543210"}
BASE = {
    "word": ["alpha", "beta", "beta"],
    "share": [0.1, None, float("nan")],
    "places": [[1, 2], [], None],
    "made_of": ["count/0123456789abcdef#words", "0123456789abcdef" + "0" * 48, "deadbeef" * 2],
}


def write_recording(
    folder, tables, *, fingerprint=FINGERPRINTS["old"], run="20260101-1", stage="count"
):
    """Write a recording with one stage, whose tables are given by column."""
    artifact_folder = folder / "store/artifacts" / stage / fingerprint
    artifact_folder.mkdir(parents=True)
    entries = {}
    for name, columns in tables.items():
        part_tables = pa.table(columns).slice(0, 1), pa.table(columns).slice(1)
        parts = [{"path": f"{name}-{n}.parquet"} for n in range(2)]
        for part, rows in zip(parts, part_tables, strict=True):
            pq.write_table(rows, artifact_folder / part["path"])
        entries[name] = {"parts": parts}
    (artifact_folder / "manifest.json").write_text(json.dumps({"tables": entries}))
    for name in ("run", "audit"):
        run_folder = folder / "store/runs" / f"{run}-{name}"
        run_folder.mkdir(parents=True)
        entry = {"label": stage, "artifact": f"{stage}/{fingerprint}"}
        (run_folder / "run.json").write_text(
            json.dumps({"stages": [entry] if name == "run" else []})
        )
    (folder / "runs.json").write_text(json.dumps({n: f"{run}-{n}" for n in ("run", "audit")}))
    return folder


@pytest.fixture
def compare(tmp_path, capsys):
    """Compare the base tables with changed ones; return the exit code and the printed lines."""

    def compare(after, names=None, **changes):
        before = write_recording(tmp_path / "before", {"words": BASE})
        later = write_recording(
            tmp_path / "after", after, fingerprint=FINGERPRINTS["new"], run="20270101-2", **changes
        )
        code = print_comparison(before, later, Renaming(names or {}))
        return code, capsys.readouterr().out.splitlines()

    return compare


LATER = BASE | {
    "made_of": ["count/fedcba9876543210#words", "fedcba9876543210" + "0" * 48, "deadbeef" * 2],
}


def test_names_of_artifacts_are_not_compared(compare):
    code, lines = compare({"words": LATER})
    assert code == 0
    assert lines == [
        "1 tables, 4 columns with equal content, 0 changed on purpose, 0 other differences"
    ]


OTHER_VALUES = [
    ("share", [0.1, None, 0.0]),
    ("share", [0.1, 0.0, float("nan")]),
    ("share", [0.1 + 2e-17, None, float("nan")]),
    ("places", [[1, 2], None, []]),
    ("word", ["alpha", "beta", ""]),
    ("word", ["a", "b", None]),
]


@pytest.mark.parametrize(("column", "value"), OTHER_VALUES)
def test_any_changed_value_is_a_difference(compare, column, value):
    code, lines = compare({"words": LATER | {column: value}})
    assert code == 1
    assert lines[0].startswith(f"run: count.words.{column}: ")
    assert "3 columns with equal content" in lines[-1] and "1 other differences" in lines[-1]


def test_reordered_rows_are_equal(compare):
    order = [2, 0, 1]
    reordered = {name: [values[i] for i in order] for name, values in LATER.items()}
    assert compare({"words": reordered})[0] == 0


def test_rows_with_swapped_values_differ(compare):
    code, lines = compare({"words": LATER | {"word": ["beta", "alpha", "beta"]}})
    assert code == 1 and "word" not in lines[-1]
    assert len(lines) == 4  # the other columns no longer belong to the words


def test_renamed_tables_columns_and_values_are_equal(compare):
    terms = {
        "term": ["ALPHA", "BETA", "BETA"],
        "ratio": LATER["share"],
        "places": LATER["places"],
        "made_of": ["tally/fedcba9876543210#words", *LATER["made_of"][1:]],
    }
    names = {
        "stages": {"count": "tally"},
        "tables": {"count.words": "terms"},
        "columns": {"count.words.word": "term", "*.*.share": "ratio"},
        "values": {"*.*.word": {"alpha": "ALPHA", "beta": "BETA"}},
    }
    code, lines = compare({"terms": terms}, names, stage="tally")
    assert (code, len(lines)) == (0, 1)


def test_one_to_one_replacement_is_reported_as_relabelled(compare):
    code, lines = compare({"words": LATER | {"word": ["ALPHA", "BETA", "BETA"]}})
    assert code == 1
    assert lines[0] == (
        'run: count.words.word: relabelled: 2 of 2 values, "beta" → "BETA", "alpha" → "ALPHA"'
    )


def test_missing_and_new_columns_need_a_reason(compare):
    words = {name: values for name, values in LATER.items() if name != "share"}
    after = {"words": words | {"extra": [1, 2, 3]}, "more": {"x": [1]}}
    changed = {"count.words.share": "of no use", "count.words.extra": "asked for"}
    code, lines = compare(after, {"changed": changed})
    assert code == 1
    assert set(lines[:-1]) == {
        "run: count.words.share: is missing [of no use]",
        "run: count.words.extra: is a new column [asked for]",
        "run: count.more.*: is a new table",
    }
    assert lines[-1].endswith("2 changed on purpose, 1 other differences")


def test_missing_table_and_missing_rows_are_differences(compare, tmp_path, capsys):
    code, lines = compare({})
    assert (code, lines[0]) == (1, "run: count.words.*: is missing")
    few = write_recording(tmp_path / "few", {"words": {k: v[:2] for k, v in BASE.items()}})
    assert print_comparison(tmp_path / "before", few, Renaming({})) == 1
    assert capsys.readouterr().out.splitlines()[0] == "run: count.words.*: 3 rows, now 2"


def test_entries_that_apply_to_nothing_are_refused(compare):
    code, lines = compare({"words": LATER}, {"columns": {"count.words.wrod": "term"}})
    assert code == 1
    assert lines[-1] == "an entry of NAMES.toml applies to nothing: columns: count.words.wrod"
    with pytest.raises(SystemExit, match=r"unknown sections in NAMES\.toml: column"):
        Renaming({"column": {}})


def test_recording_is_read_from_all_parts(tmp_path):
    folder = write_recording(tmp_path / "one", {"words": BASE})
    (table,) = read_tables(folder, str.upper)
    assert (table.run, table.stage, table.name, table.row_count) == ("run", "count", "words", 3)
    assert table.columns["made_of"] == ["<COUNT>#words", "<COUNT>", "deadbeef" * 2]
    [comparison] = compare_recordings(folder, folder, Renaming({}))
    assert comparison.equal_count == 4 and not comparison.differences
