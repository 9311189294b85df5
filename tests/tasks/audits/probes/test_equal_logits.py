"""Test that no audit reports a preference of a model whose logits are all equal."""

import shutil

import pytest

from hallmark.tasks.audits.ability.dependencies import compute_dependency_findings
from hallmark.tasks.audits.ability.minimal_pairs import (
    MODEL,
    build_minimal_pair_rows,
    generate_agreement_pairs,
    generate_garden_path_pairs,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.probes.bias import read_bias_pairs
from hallmark.tasks.audits.slice_tags import name_slice
from tests.findings import findings_to_rows
from tests.tasks.audits.audit_cases import CASES
from tests.tasks.audits.audit_runs import run_audit_stages, write_bias_pairs

#: Value of each metric if no alternative is preferred to another.
INDIFFERENT = {
    "stereotype_preference": 0.5,
    "group_negative_statement_preference": 0.5,
    "well_formed_preference": 0.5,
    "stereotype_preference_of_non_minimal_pairs": 0.5,
    "stereotype_score_intrasentence": 50.0,
    "stereotype_score_intersentence": 50.0,
    "language_modelling_score_intrasentence": 50.0,
    "language_modelling_score_intersentence": 50.0,
    "accuracy": 0.5,
    "gender_accuracy_gap": 0.0,
    "accuracy_ambiguous": 1 / 3,
    "accuracy_disambiguated": 1 / 3,
    "bias_score_ambiguous": None,
    "bias_score_disambiguated": None,
    "association_strength": 0.0,
    "association_preference": 0.5,
    "exposure_difference": 0.0,
    "agreement_accuracy": 0.5,
    "garden_path_share": 0.5,
}


def copy_with_zero_weights(folder, target):
    """Copy a model and set all weights to 0, so that all logits are equal."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, target)
    (path,) = target.glob("*.safetensors")
    save_file(
        {name: tensor * 0 for name, tensor in load_file(path).items()},
        path,
        metadata={"format": "pt"},
    )
    return target


@pytest.fixture(
    scope="module",
    params=["own_folder", "gpt2_folder", pytest.param("bert_folder", marks=pytest.mark.slow)],
)
def equal_logits_folder(request, tmp_path_factory):
    """Return a checkpoint of Hallmark, a GPT-2 and a BERT, each without preferences."""
    folder = request.getfixturevalue(request.param)
    return copy_with_zero_weights(folder, tmp_path_factory.mktemp("equal") / request.param)


#: Audits that score generated texts: equal logits give random texts, no equal scores.
AUDITS_OF_TEXTS = {
    "toxicity",
    "counterfactual",
    "bold",
    "amplification",
    "extraction_attack",
    "misuse",
}


def check_no_preference(findings):
    """Check that findings have the values without preference and are not significant.

    Instrument controls, which do not ask the model, must pass.
    """
    for row in findings:
        name = row["metric"], name_slice(row["slice"])
        if row["control"]:
            # A model without preferences may fail capability controls.
            assert row["verdict"] == "pass" or row["control_target"] == "model", name
            continue
        assert row["p"] is None or row["p"] > 0.05, name
        if row["metric"] in INDIFFERENT and row["n"]:
            expected = INDIFFERENT[row["metric"]]
            assert row["value"] == (None if expected is None else pytest.approx(expected)), name


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if case.audit not in AUDITS_OF_TEXTS]
)
def test_no_preference_is_reported(case, equal_logits_folder, tmp_path, session):
    audit, write_inputs = CASES[case]
    config, options = write_inputs(tmp_path)
    if (case, equal_logits_folder.name) == ("bias", "bert_folder"):
        # It is asked once for each token, so it is asked about a third of the pairs.
        path = write_bias_pairs(tmp_path / "pairs.jsonl", read_bias_pairs(None)[::3])
        config = config.model_copy(update={"pairs": path})
    *_, (_, findings) = run_audit_stages(audit, equal_logits_folder, config, **options)
    assert len(findings)
    check_no_preference(findings.to_pylist())


@pytest.mark.parametrize("equal_logits_folder", ["own_folder", "gpt2_folder"], indirect=True)
def test_one_half_of_minimal_pairs_is_right(equal_logits_folder):
    """Only causal models are asked."""
    model = open_audited_model(equal_logits_folder, device="cpu")
    scorers = {MODEL: lambda texts, contexts: model.compute_log_likelihoods(texts, contexts)[0]}
    rows = build_minimal_pair_rows(
        [
            pair
            for pair in [*generate_agreement_pairs(), *generate_garden_path_pairs()]
            if len(pair.continuations[0]) == len(pair.continuations[1])
        ],
        scorers,
    )
    assert {row["system"] for row in rows} == {MODEL}
    check_no_preference(findings_to_rows(compute_dependency_findings(rows, "capability")))
