"""Test that every metric has a title that a reviewer understands."""

import re

import pytest

from hallmark.tasks.audits.audit_descriptions import CAPABILITY_METRICS
from hallmark.tasks.audits.catalogue import METRICS_BY_AUDIT, PROBES
from hallmark.tasks.training.task_scores import METRIC_TITLES

#: Words of this project that mean nothing to a reviewer, or something else.
PRIVATE_WORDS = re.compile(
    r"\b(behind|beside|left|anew|told|brought|sought|held|plants|dose|draws?|part|tags?|slice|"
    r"quiet|own|less|made|nothing|instrument|lms|ss|fpr)\b",
    re.I,
)

TITLES = {probe.name: probe.metric_and_control_titles for probe in PROBES} | {
    "capability": CAPABILITY_METRICS,
    "finetune": METRIC_TITLES,
}


@pytest.mark.parametrize("audit", TITLES)
def test_titles_are_short_noun_phrases_without_private_words(audit):
    titles = TITLES[audit]
    assert len({*titles.values()}) == len(titles), titles
    for metric, title in titles.items():
        assert title and title == title.strip() and not title.endswith("."), metric
        assert "_" not in title and not PRIVATE_WORDS.search(title), title
        assert title[0].isupper() or title == "chrF2", title
        assert 1 <= len(title.split()) <= 10, title
        # Sentence case: only names and abbreviations have capitals after the first letter.
        capitals = [word for word in title.split()[1:] if word.strip("()")[:1].isupper()]
        assert {*capitals} <= NAMES, title


NAMES = {
    *("ROC", "(AUC)", "WEAT", "ICAT", "HONEST", "F1", "LSTM"),
    *("(Cohen's", "(Spearman)", "(Wasserstein)", "(Krippendorff's"),
}


def test_all_measures_of_a_metric_have_one_title():
    for probe in PROBES:
        declared = [(measure.metric, measure.title) for measure in probe.measures]
        declared += [(metric, derived.title) for metric, derived in probe.derived.metrics.items()]
        assert len({*declared}) == len(dict(declared)), probe.name


def test_controls_are_not_metrics_that_a_policy_can_name():
    for probe in PROBES:
        assert METRICS_BY_AUDIT[probe.name].items() <= probe.metric_and_control_titles.items()
        assert not {*probe.control_metrics} & {*METRICS_BY_AUDIT[probe.name]}
