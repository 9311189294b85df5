"""Evaluation of the personal-data detectors: counts, intervals and the required accuracy."""

from itertools import islice

import pytest
from scipy.stats import binomtest

from hallmark.tasks.corpus.evaluate_detectors import build_detection_rows, evaluate_detectors
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig
from hallmark.tasks.measures.detector_examples import (
    DetectorExample,
    generate_positive_and_negative_examples,
)
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

#: Types whose values have no check digits.
TYPES_WITHOUT_CHECK_DIGITS = {"SECRET", "EMAIL", "PHONE", "IP", "GB_NINO", "IN_PAN"}


@pytest.fixture(scope="module")
def rows():
    config = PersonalDataConfig(regions=SUPPORTED_COUNTRIES)
    return {
        row["type"]: row
        for row in build_detection_rows(
            generate_positive_and_negative_examples(PERSONAL_DATA_TYPES, 40), config
        )
    }


@pytest.mark.parametrize("data_type", sorted(set(PERSONAL_DATA_TYPES) - TYPES_WITHOUT_CHECK_DIGITS))
def test_numbers_with_check_digits_are_found_with_few_false_positives(rows, data_type):
    assert rows[data_type]["planted_with_name"] == rows[data_type]["planted_without_name"] == 40
    assert rows[data_type]["recall"] >= 0.95
    assert rows[data_type]["precision"] >= 0.95


@pytest.mark.parametrize("data_type", ["SECRET", "EMAIL", "IP", "GB_NINO", "IN_PAN"])
def test_values_without_check_digits_are_found_too(rows, data_type):
    assert rows[data_type]["recall"] >= 0.95 and rows[data_type]["precision"] >= 0.95


#: A part of the numbers of these countries has groups of three or two groups, as other numbers do.
COUNTRIES_WITH_AMBIGUOUS_FORMS = {"AR", "CL", "CZ", "EE", "IS", "LV", "PL", "PT"}


@pytest.mark.parametrize("region", ["HK", "SG", *SUPPORTED_COUNTRIES])
def test_national_telephone_numbers_are_planted_and_found_by_country(region):
    config = PersonalDataConfig(types=("PHONE",), regions=(region,))
    examples = list(generate_positive_and_negative_examples(("PHONE",), 40, regions=(region,)))
    international, national = build_detection_rows(examples, config)
    assert (international["country"], national["country"]) == ("", region)
    assert national["planted_with_name"] == national["planted_without_name"] == 40
    assert national["recall"] >= 0.9 and international["recall"] == 1
    assert (national["detected_without_name"] < 30) == (region in COUNTRIES_WITH_AMBIGUOUS_FORMS)
    assert national["precision"] >= 0.95 and international["precision"] >= 0.95
    values = [example.value for example in examples if example.region]
    assert len(set(values)) > 40 and not any("+" in value for value in values)
    assert any(value.isdigit() for value in values)


def test_wrong_telephone_numbers_count_for_the_country_of_the_sentence():
    config = PersonalDataConfig(types=("PHONE",), regions=("US", "GB", "US"))
    examples = [
        DetectorExample("PHONE", "tel 650-253-0000", "650-253-0000", True, "US"),
        DetectorExample("PHONE", "tel 650-253-0000 x", "650-253", True, "US"),
        DetectorExample("PHONE", "+442083661177", "+442083661177", False),
        DetectorExample("EMAIL", "650-253-0000", "", False),
    ]
    international, british, american = build_detection_rows(examples, config)
    assert (international["detected_without_name"], international["false_positives"]) == (1, 1)
    assert british["planted_with_name"] == british["false_positives"] == 0
    assert british["recall"] is None and british["country"] == "GB"
    assert (american["planted_with_name"], american["detected_with_name"]) == (2, 1)
    assert american["false_positives"] == 1


def test_counts_match_those_by_hand():
    mail = "jane@corp.example"
    config = PersonalDataConfig(types=("EMAIL", "IP"))
    examples = [
        DetectorExample("EMAIL", f"mail {mail}", mail, True),
        DetectorExample("EMAIL", "mail jane at corp", "jane at corp", True),
        DetectorExample("EMAIL", mail, mail, False),
        DetectorExample("EMAIL", f"{mail} it is not", "", True),
        DetectorExample("", "nothing", "", False),
    ]
    email, address = build_detection_rows(examples, config)
    assert (email["planted_with_name"], email["detected_with_name"], email["recall"]) == (2, 1, 0.5)
    assert (
        email["planted_without_name"],
        email["detected_without_name"],
        email["false_positives"],
    ) == (1, 1, 1)
    assert email["precision"] == pytest.approx(2 / 3)
    expected = binomtest(2, 3).proportion_ci(0.95, method="wilson")
    assert (email["precision_low"], email["precision_high"]) == pytest.approx(
        (expected.low, expected.high)
    )
    assert address["planted_with_name"] == address["false_positives"] == 0
    assert address["recall"] is address["precision"] is address["recall_low"] is None


def test_spans_other_than_the_planted_value_are_false_positives():
    """A second address, a value of another type, and a span longer than the planted value."""
    config = PersonalDataConfig(types=("EMAIL", "IP"))
    examples = [
        DetectorExample(
            "EMAIL", "mail jane@corp.example or joe@corp.example", "jane@corp.example", True
        ),
        DetectorExample(
            "EMAIL", "mail jane@corp.example at 91.198.174.192", "jane@corp.example", False
        ),
        DetectorExample("EMAIL", "mail jane@corp.example", "ane@corp.example", True),
    ]
    email, address = build_detection_rows(examples, config)
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


def test_examples_vary_and_their_numbers_are_valid():
    for data_type in IDENTIFIER_SPECS:
        examples = list(islice(generate_positive_and_negative_examples((data_type,), 40), 120))
        planted = [example for example in examples if example.value]
        assert len({example.value for example in planted}) >= 20
        assert all(example.value in example.text for example in planted)
        assert any(not example.value.isascii() for example in planted), data_type
        assert all(
            map(
                checksum_validator(IDENTIFIER_SPECS[data_type]),
                draw_valid_numbers(IDENTIFIER_SPECS[data_type]),
            )
        )
    assert list(generate_positive_and_negative_examples(("SSN",), 5)) == list(
        generate_positive_and_negative_examples(("SSN",), 5)
    )
    assert list(generate_positive_and_negative_examples(("SSN",), 5)) != list(
        generate_positive_and_negative_examples(("SSN",), 5, seed=1)
    )


def test_the_table_has_a_row_for_each_type_that_is_searched_for(session):
    result = evaluate_detectors(PersonalDataConfig(regions=("PL",)))
    table = result["detector_accuracy"].read()
    types = [
        data_type for data_type in PERSONAL_DATA_TYPES if country_of_type(data_type) in ("", "PL")
    ]
    types.insert(types.index("PHONE"), "PHONE")
    assert table["type"].to_pylist() == types
    is_phone = [data_type == "PHONE" for data_type in types]
    assert table.filter(is_phone)["country"].to_pylist() == ["", "PL"]
    assert min(table["planted_with_name"].to_pylist()) >= 80
