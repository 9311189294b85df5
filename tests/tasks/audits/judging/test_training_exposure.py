"""Test how findings state how often training read their texts."""

import pytest

from hallmark.tasks.audits.judging.training_exposure import describe_times_read


@pytest.mark.parametrize(
    ("times_read", "description"),
    [
        ([], ""),
        ([None, None], ""),
        ([1, 1, None], "read completely 1 time by this checkpoint's step"),
        ([2, 2], "read completely 2 times by this checkpoint's step"),
        ([0], "read completely 0 times by this checkpoint's step"),
        ([1, 4, 4], "read completely 1 to 4 times (mean 3.0) by this checkpoint's step"),
    ],
)
def test_reads_are_counted_in_words(times_read, description):
    assert describe_times_read(times_read) == description
