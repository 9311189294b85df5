"""A release has the datasheet of the corpus that its approved model card describes."""

import pytest

from hallmark.reports.review.release_folder import _find_corpus_problems

BOTH = ["model_card", "datasheet"]


@pytest.mark.parametrize(
    ("kinds", "digests", "problem"),
    [
        (BOTH, {"model_card": {"a"}, "datasheet": {"a"}}, ""),
        (BOTH, {"model_card": {"a"}, "datasheet": {"b"}}, "describe different corpora"),
        (BOTH, {"model_card": {"a"}}, ""),  # that it is not approved is another problem
        (BOTH, {"model_card": {"a"}, "datasheet": set()}, ""),
        (BOTH, {"datasheet": {"b"}}, ""),
        (["model_card"], {"model_card": {"a"}}, "has no datasheet"),
        (["model_card"], {"model_card": set()}, ""),  # a foreign model: its corpus is unknown
        ([], {}, ""),
    ],
)
def test_the_datasheet_belongs_to_the_model_card(kinds, digests, problem):
    problems = _find_corpus_problems(kinds, digests)
    assert len(problems) == bool(problem) and problem in "".join(problems)
