"""What the decision sheet says about the previous release, and how that release is found."""

import json
import logging

import pytest
from scipy import stats

from hallmark.reports.page.figures import FigureBook
from hallmark.reports.review import released_versions
from hallmark.reports.review.released_versions import (
    RELEASED_VERSIONS_FOLDER,
    ReleasedVersion,
    find_release_before,
    read_released_versions,
    record_released_version,
)
from hallmark.reports.sections.findings import Findings
from hallmark.reports.sections.release_changes import (
    COMPARISON,
    build_changes_entry,
    describe_changes,
)
from hallmark.tasks.audits.judging.previous_comparison import (
    PreviousComparisonConfig,
    compare_with_previous,
)
from hallmark.tasks.contract import Store, table_to_rows
from tests.reports.conclusions import audit_of, text_of_parts
from tests.tasks.audits.judging.test_previous_comparison import (
    ReleaseConfig,
    audit_release,
    draw_scores,
)


def build_book(current=None, previous=None, reasons=None, version="1.2", audits=("bias",)):
    """Compare two releases, and return the book, the comparison and the findings of a card."""
    named = {audit: audit_of(audit, {"metric": "m", "value": 0.5}) for audit in audits}
    if "bias" in named:
        named["bias"] = audit_release(current or ReleaseConfig(shift=0.3))
    comparison = compare_with_previous(
        audits=named,
        previous_audits={
            audit: audit_release(previous or ReleaseConfig())
            for audit in named
            if audit not in (reasons or {})
        },
        previous_associations=None,
        config=PreviousComparisonConfig(
            previous_run="r0", previous_version=version, incomparable_reasons=reasons or {}
        ),
    )
    labelled = {f"audit_{audit}": each for audit, each in named.items()}
    book = FigureBook({**labelled, COMPARISON: comparison})
    return book, comparison, Findings(book, named)


def describe(*arguments, **options):
    term, content = build_changes_entry(*build_book(*arguments, **options))
    return term, text_of_parts(content)


def test_without_an_earlier_release_that_is_said(session):
    book, _, findings = build_book()
    assert build_changes_entry(book, None, findings) == (
        "Changes",
        ["No earlier release has this name."],
    )


def test_the_sheet_counts_the_main_findings_and_names_the_most_important_change(session):
    term, text = describe()
    assert term == "Changes since 1.2"
    before, after = draw_scores(ReleaseConfig()), draw_scores(ReleaseConfig(shift=0.3))
    test = stats.ttest_rel(after, before)
    assert test.pvalue < 1e-10 and f"(change {after.mean() - before.mean():.4f}, 95 % i" in text
    assert f"from {before.mean():.3f} to {after.mean():.3f} nats" in text
    assert "Most important change: Bias, Harm (worse), from " in text and text.endswith(
        "60 pairs)."
    )


def test_every_figure_of_the_sheet_is_that_of_its_rows(session):
    book, comparison, findings = build_book()
    rows = table_to_rows(comparison["changes"].read())
    describe_changes(book, rows, findings)
    figures = {figure.id: figure for figure in book.figures.values()}
    main_rows = [row for row in rows if row["is_main"]]
    for verdict in ("worse", "better"):
        count = sum(row["verdict"] == verdict for row in main_rows)
        assert figures[f"changes-{verdict}"].value == count
        evidence = book.evidence_by_id[figures[f"changes-{verdict}"].evidence_id]
        assert evidence.read_first_rows(99).num_rows == count
    (harm,) = (row for row in rows if row["metric"] == "harm")
    change = figures["change-bias-harm"]
    assert (change.value, change.low, change.high) == (harm["change"], harm["low"], harm["high"])
    assert figures["previous-value-bias-harm"].value == harm["previous_value"]


@pytest.mark.parametrize(
    ("current", "sentence"),
    [
        (ReleaseConfig(shift=0.3), "3 got worse, 1 got better, 1 was not tested"),
        (ReleaseConfig(shift=-0.3), "1 got worse, 3 got better, 1 was not tested"),
        (ReleaseConfig(missing_share=1.0), "0 got worse, 0 got better, "),
        (ReleaseConfig(), "0 got worse, 0 got better, "),
    ],
)
def test_the_counts_are_said(session, current, sentence):
    _, text = describe(current)
    assert sentence in text, text
    assert ("Most important" in text) == (current.shift != 0)


def test_a_better_release_names_the_change_for_the_worse_first(session):
    _, text = describe(ReleaseConfig(shift=-0.3))
    assert "Most important change: Bias, Skill (worse), from " in text


def test_audits_that_are_not_compared_are_named(session):
    reasons = {"toxicity": "the items differ"}
    _, text = describe(audits=("bias", "toxicity"), reasons=reasons)
    assert "Not compared: Toxic continuations." in text
    many = ("toxicity", "extraction", "membership", "weat")
    _, text = describe(audits=("bias", *many), reasons=dict.fromkeys(many, "the items differ"))
    assert "Not compared: Toxic continuations, Training-data extraction" in text
    assert "and 1 more." in text


@pytest.mark.parametrize(
    ("reasons", "sentence"),
    [
        ({"bias": "the run is missing"}, "Not compared: the run is missing."),
        (
            {"bias": "the items differ", "weat": "the settings differ: seed"},
            "Not compared: Bias (the items differ); Associations between words (WEAT) (the "
            "settings differ: seed).",
        ),
        (
            {name: name for name in ("bias", "weat", "toxicity", "membership", "extraction")},
            "; 2 more.",
        ),
    ],
)
def test_a_release_that_cannot_be_compared_is_said_with_the_reasons(session, reasons, sentence):
    term, text = describe(audits=tuple(reasons), reasons=reasons, version="")
    assert term == "Changes since run r0" and text.endswith(sentence)


def test_without_a_common_finding_that_is_said(session):
    book, _, findings = build_book()
    content = describe_changes(book, [], findings)
    assert text_of_parts(content) == "Not compared: the runs have no findings in common."


# Releases in the store ---------------------------------------------------------------------------


def release(number, name="letters", checkpoint=None):
    return ReleasedVersion(
        name=name,
        version=f"{number}.0",
        run=f"r{number}",
        checkpoint=checkpoint or f"c{number}",
        released="2026-01-01T00:00:00+00:00",
        number=number,
    )


def record(store, number, name="letters"):
    """Record a release of the run r<number>."""
    fields = release(number, name).model_dump(exclude={"released", "number"})
    record_released_version(store, **fields)


def read_runs(store):
    return [version.run for version in read_released_versions(store)]


def test_releases_are_read_in_their_order_whatever_the_clock_and_never_overwritten(
    tmp_path, monkeypatch
):
    store = Store(tmp_path)
    assert read_released_versions(store) == []
    for number, time in ((2, "2026-01-01T12:00:00+00:00"), (1, "2026-01-01T11:00:00+00:00")):
        monkeypatch.setattr(released_versions, "format_current_time", lambda time=time: time)
        record(store, number)
    record(store, 2, name="other")
    assert read_runs(store) == ["r2", "r1"]
    assert [version.number for version in read_released_versions(store)] == [1, 2]
    assert {version.name for version in read_released_versions(store)} == {"letters"}


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"name": 1}', b"\xff\x00"])
def test_a_damaged_record_is_skipped_with_a_warning(tmp_path, caplog, text):
    store = Store(tmp_path)
    record(store, 1)
    store.put(f"{RELEASED_VERSIONS_FOLDER}/r2.json", text)
    with caplog.at_level(logging.WARNING, "hallmark"):
        assert read_runs(store) == ["r1"]
    assert "r2.json is damaged" in caplog.text
    extra = json.dumps(release(3).model_dump() | {"path": "../x"})
    store.put(f"{RELEASED_VERSIONS_FOLDER}/r3.json", extra.encode())
    assert read_runs(store) == ["r1"]


@pytest.mark.parametrize(
    ("name", "checkpoint", "expected"),
    [
        ("letters", "new", 3),
        ("letters", None, 3),
        ("letters", "c3", 1),  # its own release, and later ones, do not count
        ("letters", "c1", None),
        ("other", "new", 2),
        ("unknown", "new", None),
    ],
)
def test_the_previous_release_is_the_newest_before_the_checkpoint(name, checkpoint, expected):
    versions = [release(1), release(2, name="other"), release(3), release(4, checkpoint="c3")]
    found = find_release_before(versions, name, checkpoint)
    if expected == 3:
        expected = 4  # released again, by another audit
    assert found == (None if expected is None else versions[expected - 1])
