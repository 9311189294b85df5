"""How well planted personal data is found: the counts, the intervals, and what must be reached."""

from itertools import islice

import pytest
from scipy.stats import binomtest

from hallmark.tasks.corpus.evaluate_detectors import (
    count_detections,
    evaluate_detectors,
    wilson_interval,
)
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig
from hallmark.tasks.measures.detector_examples import DetectorExample, generate_detector_examples
from hallmark.tasks.measures.personal.types import (
    PERSONAL_DATA_TYPES,
    SUPPORTED_COUNTRIES,
    country_of_type,
)
from hallmark.tasks.measures.synthetic_identifiers import (
    IDENTIFIER_SPECS,
    checksum_validator,
    draw_valid_numbers,
)

#: Types whose numbers have no check digits.
UNCHECKED = {"SECRET", "EMAIL", "PHONE", "IP", "GB_NINO", "IN_PAN"}


@pytest.fixture(scope="module")
def rows():
    config = PersonalDataConfig(regions=SUPPORTED_COUNTRIES)
    return {
        row["type"]: row
        for row in count_detections(generate_detector_examples(PERSONAL_DATA_TYPES, 40), config)
    }


@pytest.mark.parametrize("kind", sorted(set(PERSONAL_DATA_TYPES) - UNCHECKED))
def test_numbers_with_check_digits_are_found_and_little_else(rows, kind):
    assert rows[kind]["planted_with_name"] == rows[kind]["planted_without_name"] == 40
    assert rows[kind]["recall"] >= 0.95
    assert rows[kind]["precision"] >= 0.95


@pytest.mark.parametrize("kind", ["SECRET", "EMAIL", "IP", "GB_NINO", "IN_PAN"])
def test_what_has_none_is_found_too(rows, kind):
    assert rows[kind]["recall"] >= 0.95 and rows[kind]["precision"] >= 0.95


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (3, 7), (80, 80), (999, 1000)])
def test_the_interval_is_wilsons(hits, n):
    known = binomtest(hits, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(hits, n) == pytest.approx((known.low, known.high))


def test_counts_of_sentences_by_hand():
    mail = "jane@corp.example"
    config = PersonalDataConfig(types=("EMAIL", "IP"))
    planted = [
        DetectorExample("EMAIL", f"mail {mail}", mail, True),
        DetectorExample("EMAIL", "mail jane at corp", "jane at corp", True),
        DetectorExample("EMAIL", mail, mail, False),
        DetectorExample("EMAIL", f"{mail} it is not", "", True),
        DetectorExample("", "nothing", "", False),
    ]
    email, address = count_detections(planted, config)
    assert (email["planted_with_name"], email["detected_with_name"], email["recall"]) == (2, 1, 0.5)
    assert (
        email["planted_without_name"],
        email["detected_without_name"],
        email["false_positives"],
    ) == (1, 1, 1)
    assert email["precision"] == pytest.approx(2 / 3)
    assert address["planted_with_name"] == address["false_positives"] == 0
    assert address["recall"] is address["precision"] is address["recall_low"] is None


def test_what_stands_beside_what_was_planted_is_not_what_was_planted():
    """A second address, one of another type, and one that is found longer than it was planted."""
    config = PersonalDataConfig(types=("EMAIL", "IP"))
    planted = [
        DetectorExample(
            "EMAIL", "mail jane@corp.example or joe@corp.example", "jane@corp.example", True
        ),
        DetectorExample(
            "EMAIL", "mail jane@corp.example at 91.198.174.192", "jane@corp.example", False
        ),
        DetectorExample("EMAIL", "mail jane@corp.example", "ane@corp.example", True),
    ]
    email, address = count_detections(planted, config)
    assert (
        email["planted_with_name"],
        email["detected_with_name"],
        email["planted_without_name"],
        email["detected_without_name"],
    ) == (2, 1, 1, 1)
    assert (email["false_positives"], address["false_positives"], address["planted_with_name"]) == (
        2,
        1,
        0,
    )
    assert (email["precision"], address["precision"]) == (0.5, 0)


def test_what_is_planted_is_varied_and_look_alikes_are_wrong():
    for kind in IDENTIFIER_SPECS:
        made = list(islice(generate_detector_examples((kind,), 40), 120))
        right = [p for p in made if p.value]
        assert len({p.value for p in right}) >= 20
        assert all(p.value in p.text for p in right)
        assert any(not p.value.isascii() for p in right), kind
        assert all(
            map(
                checksum_validator(IDENTIFIER_SPECS[kind]),
                draw_valid_numbers(IDENTIFIER_SPECS[kind]),
            )
        )
    assert list(generate_detector_examples(("SSN",), 5)) == list(
        generate_detector_examples(("SSN",), 5)
    )
    assert list(generate_detector_examples(("SSN",), 5)) != list(
        generate_detector_examples(("SSN",), 5, seed=1)
    )


def test_the_table_has_a_row_for_each_type_that_is_looked_for(session):
    made = evaluate_detectors(PersonalDataConfig(regions=("PL",)))
    table = made["detector_accuracy"].read()
    assert table["type"].to_pylist() == [
        k for k in PERSONAL_DATA_TYPES if country_of_type(k) in ("", "PL")
    ]
    assert min(table["planted_with_name"].to_pylist()) >= 80
