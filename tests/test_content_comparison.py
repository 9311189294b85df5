"""Two recordings are equal exactly when their tables hold the same under the given names."""

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
    """A recording with one stage, whose tables are given by column."""
    place = folder / "store/artifacts" / stage / fingerprint
    place.mkdir(parents=True)
    entries = {}
    for name, columns in tables.items():
        half = pa.table(columns).slice(0, 1), pa.table(columns).slice(1)
        parts = [{"path": f"{name}-{n}.parquet"} for n in range(2)]
        for part, rows in zip(parts, half, strict=True):
            pq.write_table(rows, place / part["path"])
        entries[name] = {"parts": parts}
    (place / "manifest.json").write_text(json.dumps({"tables": entries}))
    for name in ("run", "audit"):
        home = folder / "store/runs" / f"{run}-{name}"
        home.mkdir(parents=True)
        label = {"label": stage, "artifact": f"{stage}/{fingerprint}"}
        (home / "run.json").write_text(json.dumps({"stages": [label] if name == "run" else []}))
    (folder / "runs.json").write_text(json.dumps({n: f"{run}-{n}" for n in ("run", "audit")}))
    return folder


@pytest.fixture
def compare(tmp_path, capsys):
    """Compare the base tables with changed ones; the exit code and the printed lines."""

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


def test_names_of_artifacts_do_not_count(compare):
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
def test_every_other_value_counts(compare, column, value):
    code, lines = compare({"words": LATER | {column: value}})
    assert code == 1
    assert lines[0].startswith(f"run: count.words.{column}: ")
    assert "3 columns with equal content" in lines[-1] and "1 other differences" in lines[-1]


def test_rows_may_come_in_another_order_but_not_as_other_rows(compare, tmp_path):
    order = [2, 0, 1]
    turned = {name: [values[i] for i in order] for name, values in LATER.items()}
    assert compare({"words": turned})[0] == 0


def test_rows_that_were_mixed_differ(compare):
    code, lines = compare({"words": LATER | {"word": ["beta", "alpha", "beta"]}})
    assert code == 1 and "word" not in lines[-1]
    assert len(lines) == 4  # the other columns no longer belong to the words


def test_names_may_change(compare):
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


def test_a_renaming_of_values_is_shown_as_one(compare):
    code, lines = compare({"words": LATER | {"word": ["ALPHA", "BETA", "BETA"]}})
    assert code == 1
    assert lines[0] == (
        'run: count.words.word: relabelled: 2 of 2 values, "beta" → "BETA", "alpha" → "ALPHA"'
    )


def test_what_is_missing_or_new_must_be_explained(compare):
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


def test_a_table_that_is_gone_and_one_with_fewer_rows(compare, tmp_path, capsys):
    code, lines = compare({})
    assert (code, lines[0]) == (1, "run: count.words.*: is missing")
    few = write_recording(tmp_path / "few", {"words": {k: v[:2] for k, v in BASE.items()}})
    assert print_comparison(tmp_path / "before", few, Renaming({})) == 1
    assert capsys.readouterr().out.splitlines()[0] == "run: count.words.*: 3 rows, now 2"


def test_names_that_name_nothing_are_refused(compare):
    code, lines = compare({"words": LATER}, {"columns": {"count.words.wrod": "term"}})
    assert code == 1
    assert lines[-1] == "the names say something of what is not there: columns: count.words.wrod"
    with pytest.raises(SystemExit, match="sections that mean nothing: column"):
        Renaming({"column": {}})


def test_a_recording_is_read_part_by_part(tmp_path):
    folder = write_recording(tmp_path / "one", {"words": BASE})
    (table,) = read_tables(folder, str.upper)
    assert (table.run, table.stage, table.name, table.rows) == ("run", "count", "words", 3)
    assert table.columns["made_of"] == ["<COUNT>#words", "<COUNT>", "deadbeef" * 2]
    [found] = compare_recordings(folder, folder, Renaming({}))
    assert found.equal == 4 and found.rows == (3, 3) and not found.differences
