"""Test the small untrained models that show what an audit reports if there is nothing to find."""

import numpy as np
import pytest
import torch

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig
from hallmark.model.interchange.checkpoint import save_checkpoint
from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.opening import (
    iter_small_untrained_models,
    open_audited_model,
    open_audited_tokenizer,
)
from hallmark.tasks.audits.audited_models.small_configs import (
    scale_down_hallmark_config,
    scale_down_transformers_config,
)
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, REQUEST_STAGES
from hallmark.tasks.audits.inference import (
    SMALL_MODEL_COUNT,
    RespondConfig,
    respond,
    respond_untrained_models,
)
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import bias
from hallmark.tasks.contract import HallmarkError, folder_to_artifact
from tests.tasks.audits.audit_runs import write_json_lines
from tests.tasks.audits.conftest import train_bpe


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("wide")
    tokenizer = train_bpe(base / "tokenizer.json")
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(), context=48, d_model=192, n_heads=6, n_kv_heads=2
    )
    save_checkpoint(Transformer(config), base / "wide", tokenizer_path=base / "tokenizer.json")
    return base / "wide"


@pytest.fixture(scope="module")
def mamba2_folder(tmp_path_factory):
    """Write an architecture whose sizes depend on each other in a way that scaling breaks."""
    from transformers import Mamba2Config, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("mamba2") / "mamba2"
    folder.mkdir()
    tokenizer = train_bpe(folder / "tokenizer.json")
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|endoftext|>"
    ).save_pretrained(folder)
    Mamba2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_heads=8,
        head_dim=32,
        num_hidden_layers=3,
        architectures=["Mamba2ForCausalLM"],
    ).save_pretrained(folder)
    return folder


def test_small_configs_keep_the_architecture():
    config = ModelConfig(
        d_model=512, n_layers=12, n_heads=8, n_kv_heads=2, d_ff=1024, positions="rope", dropout=0.1
    )
    small = scale_down_hallmark_config(config)
    assert (small.d_model, small.n_layers, small.n_heads, small.n_kv_heads) == (64, 2, 2, 1)
    assert (small.d_ff, small.positions, small.dropout) == (128, "rope", 0.0)
    narrow = ModelConfig(d_model=48, n_layers=1, n_heads=3)
    assert scale_down_hallmark_config(narrow) == narrow


@pytest.mark.parametrize(
    ("class_name", "settings"),
    [
        ("GPT2", {"n_embd": 768, "n_head": 12, "n_layer": 12}),
        ("Bert", {"hidden_size": 768, "intermediate_size": 3072}),
        ("Llama", {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4}),
        ("OPT", {"hidden_size": 768, "word_embed_proj_dim": 768, "ffn_dim": 3072}),
        ("Qwen3", {"hidden_size": 1024, "head_dim": 128, "num_attention_heads": 16}),
    ],
)
def test_small_transformers_models_can_be_built_and_run(class_name, settings):
    import transformers

    config = getattr(transformers, f"{class_name}Config")(vocab_size=300, **settings)
    small = scale_down_transformers_config(config)
    assert type(small) is type(config) and small.vocab_size == 300
    assert (small.hidden_size, small.num_hidden_layers, small.num_attention_heads) == (64, 2, 2)
    head = "MaskedLM" if class_name == "Bert" else "CausalLM"
    model = getattr(transformers, f"AutoModelFor{head}").from_config(small)
    with torch.inference_mode():
        logits = model(torch.tensor([[1, 2, 3, 4]])).logits
    assert logits.shape == (1, 4, 300) and torch.isfinite(logits).all()
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000


def test_logits_spread_as_at_full_width(wide_folder):
    def measure_spread(models):
        tokens = [[0, *range(5, 45)]]
        return np.mean([model.compute_log_probs(tokens)[0].std() for model in models])

    full = measure_spread(
        open_audited_model(wide_folder, "cpu", untrained_seed=seed) for seed in range(5)
    )
    small = measure_spread(iter_small_untrained_models(wide_folder, "cpu", range(5)))
    assert small == pytest.approx(full, rel=0.3)


@pytest.mark.parametrize("folder", ["wide_folder", "gpt2_folder", "bert_folder"])
def test_each_seed_gives_other_weights_and_always_the_same(folder, request):
    path = request.getfixturevalue(folder)

    def score():
        return [
            model.compute_log_probs([[0, 7, 8, 9]])[0]
            for model in iter_small_untrained_models(path, "cpu", (1, 2, 3))
        ]

    first, second = score(), score()
    for one, same in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, same)
    assert len({tuple(values) for values in first}) == 3


def test_weights_of_a_trained_model_are_not_redrawn(own_folder, gpt2_folder):
    for folder in (own_folder, gpt2_folder):
        with pytest.raises(
            HallmarkError, match="is not an untrained model, so its weights cannot be replaced"
        ):
            open_audited_model(folder, "cpu").redraw_untrained_weights(1)


def test_the_pairs_alone_are_scored_and_the_findings_name_both_tests(session, own_folder, tmp_path):
    rows = [
        {"stereo": f"aa {n} b c", "anti": f"bb {n} b c", "category": "x", "template": str(n)}
        for n in range(30)
    ]
    config = bias.BiasConfig(pairs=write_json_lines(tmp_path / "pairs.jsonl", rows))
    checkpoint = folder_to_artifact(own_folder, "checkpoint")
    requests = REQUEST_STAGES["bias"](checkpoint, None, None, None, config)
    untrained = respond_untrained_models(checkpoint, requests, RespondConfig())
    models = untrained["untrained_models"].read().to_pylist()
    assert len(models) == SMALL_MODEL_COUNT and not any(row["failure"] for row in models)
    assert len({row["seed"] for row in models}) == SMALL_MODEL_COUNT
    assert untrained["untrained_log_probs"].row_count == SMALL_MODEL_COUNT * 30 * 2
    answers = respond(checkpoint, requests, RespondConfig())
    audit = FINDINGS_STAGES["bias"](requests, answers, *[None] * 7, untrained, None, config)
    (row,) = [
        row
        for row in read_findings(audit)
        if row["metric"] == "stereotype_preference" and not row["slice"] and not row["control"]
    ]
    assert "prediction test against 20 untrained models (mean 0." in row["method"]
    assert " in the test against 0.5, and p = " in row["method"]


def test_an_architecture_that_cannot_be_scaled_down_gives_a_reason(
    session, mamba2_folder, own_folder, tmp_path
):
    rows = [{"stereo": f"a {n} b", "anti": f"c {n} b", "category": "x"} for n in range(12)]
    config = bias.BiasConfig(pairs=write_json_lines(tmp_path / "pairs.jsonl", rows))
    builder = RequestBuilder()
    bias.build_requests(builder, open_audited_tokenizer(mamba2_folder), CorpusTables(), config)
    checkpoint = folder_to_artifact(mamba2_folder, "checkpoint")
    requests = REQUEST_STAGES["bias"](checkpoint, None, None, None, config)
    untrained = respond_untrained_models(checkpoint, requests, RespondConfig())
    failures = {row["failure"] for row in untrained["untrained_models"].read().to_pylist()}
    assert untrained["untrained_log_probs"].row_count == 0 and all(failures)
    own_requests = REQUEST_STAGES["bias"](
        folder_to_artifact(own_folder, "checkpoint"), None, None, None, config
    )
    answers = respond(folder_to_artifact(own_folder, "checkpoint"), own_requests, RespondConfig())
    audit = FINDINGS_STAGES["bias"](own_requests, answers, *[None] * 7, untrained, None, config)
    methods = {
        row["method"]
        for row in read_findings(audit)
        if row["metric"] == "stereotype_preference" and not row["control"]
    }
    assert all("not compared with untrained models because no small model" in m for m in methods)
