"""Which stage is given what: the pipeline, walked through without running anything."""

from collections.abc import Mapping

import pytest

from flows.config import MEASURED, load
from flows.growing import READ
from flows.pipeline import curate, examine, train
from tasks.audits.about import AUDITS
from tasks.contract import Session, Store, open_session


class Made:
    """Stands for what a stage leaves."""

    store = None

    def __init__(self, label):
        self.label = label


def labels(value):
    """The stages that an input of a stage is from, whatever it is packed in."""
    if isinstance(value, Made):
        return {value.label}
    values = value.values() if isinstance(value, Mapping) else value
    return set() if value is None else {label for each in values for label in labels(each)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """For each stage of a run of smoke the stages that it is given something of."""
    found = {}

    def plan(stage, given, config):
        found[stage.title] = {label for each in given for label in labels(each)}
        return Made(stage.title)

    config = load("smoke")
    with open_session(Session(Store(tmp_path_factory.mktemp("store")), plan=plan)):
        curated = curate(config)
        trained = train(config, curated)
        examine(config, Made("checkpoint"), AUDITS, curated, trained["pretrain"])
    return found


def test_only_the_cards_read_the_truth_of_the_town(inputs):
    """Whatever learnt, filtered or measured with it would know the answers."""
    assert "recovery" in inputs and "recovery" not in READ  # nor does a corpus that adds to it
    readers = {label for label, given in inputs.items() if "recovery" in given}
    assert readers == {"datasheet", "model_card"}


def test_the_audits_that_ask_about_groups_are_given_those_that_the_corpus_brings(inputs):
    readers = {label for label, given in inputs.items() if "identities" in given}
    assert readers >= {"toxicity_ask", "bias_ask"} and "audit_capability" not in readers


@pytest.mark.parametrize("section", MEASURED)
def test_the_signals_that_a_config_may_name_are_those_that_select_is_given(inputs, section):
    (documents,) = inputs[section] - set(MEASURED[section])
    assert inputs[section] == {documents, *MEASURED[section]}
