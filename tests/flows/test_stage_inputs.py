"""The inputs of each stage, from a pipeline that is planned but not run."""

from collections.abc import Mapping

import pytest

from hallmark.flows.audit_execution import map_labels_to_settings
from hallmark.flows.auditing import audit_checkpoint
from hallmark.flows.config import SIGNALS_BY_STAGE, load_config
from hallmark.flows.corpus_additions import CORPUS_STAGES
from hallmark.flows.curation import curate_corpus
from hallmark.flows.training import train_model
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import Artifact, Session, Store, UsageError, open_session


class Made:
    """Imitates the artifact of a stage."""

    store = None

    def __init__(self, label):
        self.label = label


def labels(value):
    """Return the stages of an input, also inside lists and mappings."""
    if isinstance(value, Made):
        return {value.label}
    if isinstance(value, Artifact):
        return {value.name}
    values = value.values() if isinstance(value, Mapping) else value
    return set() if value is None else {label for each in values for label in labels(each)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return inputs_of(load_config("smoke"), tmp_path_factory.mktemp("store"))


def inputs_of(config, folder):
    """Map each stage of a run to the stages whose artifacts it reads."""
    return {name: given for name, (given, _) in planned_of(config, folder).items()}


def planned_of(config, folder):
    """Map each stage of a run to its inputs and its settings."""
    found = {}

    def plan(stage, given, config):
        found[stage.run_label] = ({label for each in given for label in labels(each)}, config)
        return Made(stage.run_label)

    with open_session(Session(Store(folder), plan_stage=plan)):
        curated = curate_corpus(config)
        trained = train_model(config, curated)
        audit_checkpoint(
            config, Made("checkpoint"), AUDIT_DESCRIPTIONS, curated, trained["pretrain"]
        )
    return found


def test_only_cards_and_evaluation_read_the_truth_of_the_town(inputs):
    """Stages that filter, train or audit with it would know the answers."""
    assert (
        "evaluate_curation" in inputs and "evaluate_curation" not in CORPUS_STAGES
    )  # nor does an extended corpus
    readers = {label for label, given in inputs.items() if "evaluate_curation" in given}
    assert readers == {"datasheet", "model_card"}


def test_every_label_has_the_settings_of_its_stage(tmp_path):
    """These are what status compares; scorers are restricted to the heads that a probe needs."""
    words = tmp_path / "moods.txt"
    words.write_text("good\t1\n")
    config = load_config(
        "smoke", [f"score.additional_scorers=[{{kind = 'words', path = '{words}'}}]"]
    )
    planned = planned_of(config, tmp_path / "store")
    used = {label: settings for label, (_, settings) in planned.items() if settings is not None}
    known = map_labels_to_settings(config)
    assert len(used) > 60 and used == {label: known.get(label) for label in used}
    assert used["toxicity_score"] != used["counterfactual_score"]


def test_audits_about_groups_get_the_lexicons_of_the_corpus(inputs):
    readers = {label for label, given in inputs.items() if "identities" in given}
    assert (
        readers >= {"toxicity_build_requests", "bias_build_requests"}
        and "audit_capability" not in readers
    )


@pytest.mark.parametrize("section", SIGNALS_BY_STAGE)
def test_configurable_signals_are_those_that_select_receives(inputs, section):
    (documents,) = inputs[section] - set(SIGNALS_BY_STAGE[section])
    assert inputs[section] == {documents, *SIGNALS_BY_STAGE[section]}


def test_a_reference_model_scores_the_responses(inputs, tmp_path):
    """A missing folder is refused before any request."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    named = load_config("smoke", [f"audit_extraction_attack.reference_model_folder={folder}"])
    found = inputs_of(named, tmp_path / "store")
    assert {*found} - {*inputs} == {"extraction_attack_score_with_reference"}
    given = found["extraction_attack_score_with_reference"]
    asked = {f"extraction_attack_{part}" for part in ("build_requests", "respond")}
    assert given > asked and {name.split("/")[0] for name in given - asked} == {"checkpoint"}
    more = found["audit_extraction_attack"] - inputs["audit_extraction_attack"]
    assert more == {"extraction_attack_score_with_reference"}
    (folder / "config.json").write_text('{"model_type": "hallmark"}')
    half = load_config(
        "smoke",
        [
            f"audit_extraction_attack.reference_model_folder={folder}",
            "respond.dtype='float16'",
        ],
    )
    with pytest.raises(UsageError, match="reference_model_folder: dtype is float16, but Hallmark"):
        inputs_of(half, tmp_path / "store")
    nowhere = load_config("smoke", ["audit_extraction_attack.reference_model_folder=/nowhere"])
    with pytest.raises(UsageError, match="reference_model_folder: there is no folder"):
        inputs_of(nowhere, tmp_path / "store")
