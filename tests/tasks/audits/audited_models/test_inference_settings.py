"""dtype and batch_size of an audited model: what they change, and what is refused."""

import sys

import numpy as np
import pytest
import torch

from hallmark.reports.sections.checkpoint import describe_inference_settings
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, REQUEST_STAGES
from hallmark.tasks.audits.inference import RespondConfig, respond
from hallmark.tasks.audits.probes.bias import BiasConfig
from hallmark.tasks.contract import UsageError, folder_to_artifact

TEXTS = [
    "The nurse said that she was late.",
    "We",
    "A bird hunted in the wood, and the boat that floated down the river sank.",
    "The engineer",
    "Numbers: 0 1 2 3",
]
BATCH_SIZES = (1, 2, 3, None)


def open_with_row_counts(folder, batch_size):
    """Open a model, and a list to which each call of it adds its number of rows."""
    model = open_audited_model(folder, "cpu", batch_size=batch_size)
    row_counts = []

    def record_rows(module, arguments, options):
        row_counts.append(len(arguments[0] if arguments else options["input_ids"]))

    model.model.base_model.register_forward_pre_hook(record_rows, with_kwargs=True)
    return model, row_counts


def check_row_counts(row_counts, batch_size):
    assert row_counts and max(row_counts) <= (batch_size or sys.maxsize)
    row_counts.clear()


@pytest.mark.parametrize("folder", ["gpt2_folder", "bert_folder"])
def test_scores_do_not_depend_on_the_batch_size(request, folder):
    """And no call of the model has more rows than the setting allows."""
    scores_by_size = []
    for batch_size in BATCH_SIZES:
        model, row_counts = open_with_row_counts(request.getfixturevalue(folder), batch_size)
        sequences = [model.prepend_bos_id(ids) for ids in model.encode_batch(TEXTS)]
        scores = model.compute_log_probs(sequences)
        check_row_counts(row_counts, batch_size)
        scores += model.compute_hidden_states([ids[:20] for ids in sequences], 1)
        check_row_counts(row_counts, batch_size)
        scores_by_size.append(scores)
    assert model.batch_size is None
    for scores in scores_by_size[:-1]:
        for values, expected in zip(scores, scores_by_size[-1], strict=True):
            np.testing.assert_allclose(values, expected, atol=2e-5)


def test_texts_and_shared_contexts_do_not_depend_on_the_batch_size(gpt2_folder):
    results = []
    for batch_size in BATCH_SIZES:
        model, row_counts = open_with_row_counts(gpt2_folder, batch_size)
        prompts = [model.prepend_bos_id(ids) for ids in model.encode_batch(TEXTS)]
        texts = model.generate_token_ids(prompts, max_new_tokens=6, samples=5, seed=3)
        check_row_counts(row_counts, batch_size)
        contexts = [prompts[0] * 5] * 6 + [prompts[2] * 2] * 2
        targets = [ids[:3] for ids in prompts[:4]] * 2
        scores = model.compute_target_log_probs(contexts, targets)
        check_row_counts(row_counts, batch_size)
        completions = model.generate_completions(
            prompts, [[]] * len(prompts), completion_count=2, max_new_tokens=3
        )
        check_row_counts(row_counts, max(2, batch_size) if batch_size else None)
        found = [[row.token_ids for row in rows] for rows in completions]
        results.append((texts, found, scores))
    for texts, found, scores in results[:-1]:
        assert (texts, found) == results[-1][:2]
        for values, expected in zip(scores, results[-1][2], strict=True):
            np.testing.assert_allclose(values, expected, atol=2e-5)


@pytest.mark.parametrize("folder", ["gpt2_folder", "bert_folder"])
def test_weights_are_read_in_the_named_type(request, folder):
    path = request.getfixturevalue(folder)
    models = {
        dtype: open_audited_model(path, "cpu", dtype=dtype)
        for dtype in ("auto", "float32", "bfloat16")
    }
    for dtype, model in models.items():
        expected = "float32" if dtype == "auto" else dtype
        assert {p.dtype for p in model.model.parameters()} == {getattr(torch, expected)}
        assert model.build_inference_settings_row() == {
            "dtype": expected,
            "precision": "bf16" if dtype == "bfloat16" else "fp32",
            "batch_size": None,
        }
        assert model.batching == models["auto"].batching
    sequence = models["auto"].prepend_bos_id(models["auto"].encode(TEXTS[0]))
    automatic, exact, rounded = (
        model.compute_log_probs([sequence])[0] for model in models.values()
    )
    np.testing.assert_array_equal(automatic, exact)
    assert 0 < np.abs(exact - rounded).max() < 0.5
    untrained = open_audited_model(path, "cpu", dtype="bfloat16", untrained_seed=0)
    assert {p.dtype for p in untrained.model.parameters()} == {torch.bfloat16}


def test_a_checkpoint_of_hallmark_multiplies_in_the_named_type(own_folder):
    model = open_audited_model(own_folder, "cpu", dtype="bfloat16")
    assert model.build_inference_settings_row() == {
        "dtype": "float32",
        "precision": "bf16",
        "batch_size": None,
    }


@pytest.mark.parametrize(
    ("folder", "settings", "message"),
    [
        ("gpt2_folder", {"dtype": "float16"}, "would run on the CPU, where float16 is slow"),
        ("own_folder", {"dtype": "float16"}, "Hallmark checkpoints run in float32 or bfloat16"),
        (
            "own_folder",
            {"batch_size": 8},
            "batch_size is 8, but this setting applies to Hugging Face models",
        ),
    ],
)
def test_settings_that_a_model_does_not_support_are_refused(request, folder, settings, message):
    with pytest.raises(UsageError, match=message):
        open_audited_model(request.getfixturevalue(folder), "cpu", **settings)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_float16_runs_on_a_gpu(gpt2_folder):
    exact, half = (
        open_audited_model(gpt2_folder, "cuda", dtype=dtype) for dtype in ("float32", "float16")
    )
    assert (exact.precision, half.precision) == ("fp32", "fp16")
    sequence = exact.prepend_bos_id(exact.encode(TEXTS[0]))
    scores = [model.compute_log_probs([sequence])[0] for model in (exact, half)]
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.05


def test_the_settings_decide_the_responses_and_are_stated(gpt2_folder, session):
    """From requests to the tables of an audit, in its real stages."""
    checkpoint = folder_to_artifact(gpt2_folder, "checkpoint")
    requests = REQUEST_STAGES["bias"](checkpoint, None, None, None, BiasConfig())

    def answer(**settings):
        return respond(checkpoint, requests, RespondConfig(device="cpu", **settings))

    plain, batched, rounded = answer(), answer(batch_size=4), answer(dtype="bfloat16")
    assert len({artifact.fingerprint for artifact in (plain, batched, rounded)}) == 3
    assert rounded.content_digest != plain.content_digest
    log_probs = [
        np.concatenate(artifact["responses"].read()["log_probs"].to_pylist())
        for artifact in (plain, batched, rounded)
    ]
    np.testing.assert_allclose(log_probs[1], log_probs[0], atol=2e-5)
    assert np.abs(log_probs[2] - log_probs[0]).max() > 1e-3
    audit = FINDINGS_STAGES["bias"](requests, rounded, *[None] * 8, None, BiasConfig())
    assert set(audit["findings"].read()["precision"].to_pylist()) == {"bf16"}
    assert describe_inference_settings({"bias": audit}) == "Weights in bfloat16."
    audit = FINDINGS_STAGES["bias"](requests, batched, *[None] * 8, None, BiasConfig())
    assert describe_inference_settings({"bias": audit}) == (
        "Weights in float32, at most 4 rows per model call."
    )
