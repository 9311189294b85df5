"""Test a reference model whose tokenizer is not that of the audited model."""

import pytest

from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.catalogue import REQUEST_STAGES
from hallmark.tasks.audits.inference import RespondConfig, respond
from hallmark.tasks.audits.judging.comparison import REFERENCE_STAGES
from hallmark.tasks.audits.probes.extraction_attack import ExtractionAttackConfig
from hallmark.tasks.audits.probes.membership import MembershipConfig
from hallmark.tasks.audits.reference_scoring import score_with_reference
from hallmark.tasks.contract import folder_to_artifact
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.audits.audited_models.random_models import LLAMA, MAMBA, save_model
from tests.tasks.corpora import given


@pytest.fixture
def documents(session):
    texts = [f"Document {n} speaks of the harbour, of lamps and boat {n * 7}." for n in range(60)]
    splits = ["train" if n % 2 else "holdout" for n in range(60)]
    return given(texts, splits=splits, kind="split")["documents"]


@pytest.fixture(params=["LlamaForCausalLM", "MambaForCausalLM"])
def reference_folder(request, tmp_path):
    values = LLAMA if request.param.startswith("Llama") else MAMBA
    return save_model(tmp_path, request.param, 0.2, tokenizer_size=262, **values)


def test_texts_are_compared_although_their_tokens_differ(documents, own_folder, reference_folder):
    model, reference = (open_audited_model(f, device="cpu") for f in (own_folder, reference_folder))
    config = MembershipConfig(
        documents_per_split=20, max_tokens=8, reference_model_folder=reference_folder
    )
    *_, (values, _) = run_audit_stages(
        "membership",
        own_folder,
        config,
        corpus=(None, None, documents),
        reference_folder=reference_folder,
    )
    rows = [row for row in values.to_pylist() if row["measure"] == "reference_ratio"]
    texts = [row["text"] for row in rows]
    assert len(texts) > 30 and reference.encode_batch(texts) != model.encode_batch(texts)
    expected = model.compute_log_likelihoods(texts)[0] / reference.compute_log_likelihoods(texts)[0]
    assert [row["value"] for row in rows] == pytest.approx([*-expected], rel=1e-3)


def test_generated_texts_are_scored_by_the_reference(documents, own_folder, reference_folder):
    config = ExtractionAttackConfig(texts_per_sampler=10, max_new_tokens=8)
    *_, (values, _) = run_audit_stages(
        "extraction_attack", own_folder, config, reference_folder=reference_folder
    )
    ratios = [row["reference_ratio"] for row in values.to_pylist() if row["reference_ratio"]]
    assert ratios and all(ratio < 0 for ratio in ratios)


def test_a_comparison_finds_the_name_of_the_reference(session, own_folder, gpt2_folder):
    model, reference = (folder_to_artifact(f, "checkpoint") for f in (own_folder, gpt2_folder))
    config = ExtractionAttackConfig(texts_per_sampler=2, max_new_tokens=3)
    requests = REQUEST_STAGES["extraction_attack"](model, None, None, None, config)
    responses = respond(model, requests, RespondConfig())
    scores = score_with_reference(reference, requests, responses, RespondConfig())
    model_input = REFERENCE_STAGES["score_with_reference"]
    assert scores.manifest["lineage"][model_input] == reference.name
    # A reference that writes texts itself answers requests in its own tokens.
    own_requests = REQUEST_STAGES["extraction_attack"](reference, None, None, None, config)
    answers = respond(reference, own_requests, RespondConfig())
    assert answers.manifest["lineage"][REFERENCE_STAGES["respond_reference"]] == reference.name
    (row,) = answers["model"].read().to_pylist()
    assert row["dtype"] and row["precision"]
    assert answers["responses"].row_count == responses["responses"].row_count
