"""Sentences of a model card follow from the very rows that its tables print, in every branch."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.sections.analyses import grids, smallest_dose
from tests.reports.conclusions import (
    estimates,
    findings_of,
    quick,
    text_of_blocks,
)


def difference_shown(cells, null):
    """The side of its null on which a line of a table is, as a reader of it would say: by its
    interval, else by its corrected p; 0: on neither."""
    line = {name: text.replace("−", "-") for name, text in cells.items()}
    if line["value"].startswith("not measured"):
        return 0
    value, ends = float(line["value"].split()[0]), line["interval"].split(" to ")
    if len(ends) == 2:
        low, high = (float(end.split()[0]) for end in ends)
        if low > null or high < null:
            return 1 if low > null else -1
    p = line.get("p, corrected", "–")
    if p != "–" and float(p) < 0.05:
        return (value > null) - (value < null)
    return 0


# Planted associations ----------------------------------------------------------------------------


def association(metric, estimate, **tags):
    null = 0.5 if metric == "association_preferred" else 0.0
    return {"metric": metric, "unit": "nats", "null": null, "tags": tags, **estimate}


def smallest(doses):
    """The smallest dose that is seen, with all above it, as the audit computes it."""
    seen = None
    for dose, row in sorted(doses.items(), reverse=True):
        if dose == 0.5 or row["low"] is None or row["low"] <= 0:
            break
        seen = dose
    return seen


def calibration_of(doses, slope=None, **more):
    """The sentence of the card, and the lines of its tables, by metric and part."""
    rows = [association("association_strength", row, dose=dose) for dose, row in doses.items()]
    rows += [association("strength_by_dose", slope)] if slope else []
    rows += [association("association_strength", row, **{name: "x"}) for name, row in more.items()]
    rows.append({"metric": "smallest_dose_seen", "value": smallest(doses), "n": len(doses)})
    findings = findings_of(associations=rows)
    lines = {}
    for grid in grids(findings, "associations", 40):
        for row in grid.rows:
            cells = [cell if isinstance(cell, str) else cell.short for cell in row]
            lines[grid.caption, cells[0]] = dict(zip(grid.columns, cells, strict=True))
    return text_of_blocks(smallest_dose(findings)), lines


@given(
    doses=st.dictionaries(st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0]), estimates(), min_size=1),
    slope=st.one_of(st.none(), estimates()),
    sentence=st.one_of(st.none(), estimates()),
)
@quick
def test_no_association_is_called_missing_that_a_table_shows(session, doses, slope, sentence):
    """Whatever the figures are: of each dose, over all of them, and of a kind of sentences."""
    more = {"sentence": sentence} if sentence else {}
    said, lines = calibration_of(doses, slope, **more)
    shown = {
        part: side
        for (caption, part), line in lines.items()
        if "mallest" not in caption and part != "dose=0.5" and (side := difference_shown(line, 0.0))
    }
    if "No planted association was found" in said:
        assert not shown
        assert any(dose > 0.5 and row["value"] is not None for dose, row in doses.items())
    for part, side in itertools.islice(shown.items(), 3):
        if smallest(doses) is None:
            assert part in said or part == "all"
            assert ("higher" if side > 0 else "lower") in said
    largest = max(doses)
    assert ("shows all those" in said) == (smallest(doses) is not None)
    if smallest(doses) is None and (largest == 0.5 or doses[largest]["value"] is None):
        assert "lies at or below 0" not in said and "includes 0" not in said


def test_a_dose_that_is_shown_below_one_that_is_not_is_named(session):
    """The figures with which the card said that the model shows none."""
    not_shown = {"value": 0.4, "low": -0.01, "high": 0.81, "p": 0.06}
    shown = {"value": 0.5, "low": 0.05, "high": 0.95, "p": 0.01}
    slope = {"value": 1.0, "low": 0.4, "high": 1.6, "p": 0.0013}
    said, lines = calibration_of({0.5: not_shown, 0.9: shown, 1.0: not_shown}, slope)
    assert float(lines["Association strength (nats)", "dose=0.9"]["p, corrected"]) == 0.03
    assert "shows none" not in said and "No planted association was found" not in said
    assert "dose=0.9" in said and "0.0500 to 0.9500" in said and "Strength by dose" in said


@pytest.mark.parametrize(
    ("doses", "expected"),
    [
        ({1.0: (0.2, 0.4)}, "shows all those that were at least 100.0 %"),
        ({1.0: (-0.2, 0.4)}, "No planted association was found on this model"),
        ({1.0: (0.0, 0.4)}, "No planted association was found on this model"),
        ({1.0: (-0.4, -0.2)}, "lower than where there is nothing to find"),
        ({0.5: (0.2, 0.4)}, "No association was planted at more than one half"),
        ({1.0: None}, "None of the planted associations could be measured"),
    ],
)
def test_of_planted_associations_each_case_has_its_sentence(session, doses, expected):
    known = {
        dose: {"value": None, "low": None, "high": None, "p": None}
        if ends is None
        else {"value": sum(ends) / 2, "low": ends[0], "high": ends[1], "p": 0.5}
        for dose, ends in doses.items()
    }
    said, _ = calibration_of(known)
    assert expected in said
