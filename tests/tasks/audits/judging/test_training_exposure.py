"""Test how findings state how often training read their texts."""

import pytest

from hallmark.tasks.audits.judging.training_exposure import (
    describe_times_read,
    parse_mean_times_read,
)


@pytest.mark.parametrize(
    ("times_read", "description"),
    [
        ([], ""),
        ([None, None], ""),
        ([1, 1, None], "read completely 1 time up to this checkpoint's step"),
        ([2, 2], "read completely 2 times up to this checkpoint's step"),
        ([0], "read completely 0 times up to this checkpoint's step"),
        ([1, 4, 4], "read completely 1 to 4 times (mean 3.0) up to this checkpoint's step"),
    ],
)
def test_reads_are_counted_in_words(times_read, description):
    subject = "the text of each item, which can be part of a document, was " if description else ""
    assert describe_times_read(times_read) == f"{subject}{description}"


@pytest.mark.parametrize(
    ("times_read", "mean"),
    [([], None), ([0], 0.0), ([1, 1], 1.0), ([1, 4, 4], 3.0), ([900, 2100], 1500.0)],
)
def test_the_mean_is_read_from_the_method_of_a_finding(times_read, mean):
    method = f"share of texts; {describe_times_read(times_read)}; Wilson interval"
    assert parse_mean_times_read(method) == mean
