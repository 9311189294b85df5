"""Test audited models against transformers and against slow reference computations."""

import json

import numpy as np
import pytest
import torch

from hallmark.model.architecture import Transformer
from hallmark.model.interchange.checkpoint import CheckpointError, load_matching_tokenizer
from hallmark.tasks.audits.audited_models import transformers_model
from hallmark.tasks.audits.audited_models.audited_tokenizer import count_shared_prefix_tokens
from hallmark.tasks.audits.audited_models.hallmark_tokenizer import load_checkpoint_tokenizer
from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.contract import HallmarkError, UsageError, folder_to_artifact
from tests.model.oracles import logits
from tests.tasks.audits.conftest import make_own

TEXT = "The nurse said that she would be late."
LONG = " ".join(["The engineer said that he would be early, as always."] * 8)


@pytest.fixture(scope="module")
def own(own_folder):
    return open_audited_model(own_folder, device="cpu")


@pytest.fixture(scope="module")
def gpt2(gpt2_folder):
    return open_audited_model(gpt2_folder, device="cpu")


@pytest.fixture(scope="module")
def bert(bert_folder):
    return open_audited_model(bert_folder, device="cpu")


@pytest.fixture(params=["own", "gpt2"])
def causal(request):
    return request.getfixturevalue(request.param)


def compute_stepwise_log_probs(model, ids):
    """Compute the log probability of each token after the first, one forward pass per token."""
    result = []
    for i in range(1, len(ids)):
        token_ids = torch.tensor([ids[:i]])
        is_hallmark = isinstance(model.model, Transformer)
        scores = logits(model.model, token_ids) if is_hallmark else model.model(token_ids).logits
        result.append(scores[0, -1].log_softmax(-1)[ids[i]].item())
    return result


def test_log_probs_equal_single_steps(causal):
    ids = causal.prepend_bos_id(causal.encode(TEXT))
    with torch.inference_mode():
        expected = compute_stepwise_log_probs(causal, ids)
    scores = causal.compute_log_probs([ids, ids[:3], [], ids[:1]])
    np.testing.assert_allclose(scores[0], expected, atol=1e-4)
    np.testing.assert_allclose(scores[1], expected[:2], atol=1e-4)
    assert len(scores[2]) == len(scores[3]) == 0


def test_log_probs_beyond_the_context(causal):
    """Each token is scored once, with at least half a context before it."""
    ids = causal.prepend_bos_id(causal.encode(LONG))
    assert len(ids) > 2 * causal.context_length
    scores = causal.compute_log_probs([ids])[0]
    assert len(scores) == len(ids) - 1 and np.isfinite(scores).all() and (scores < 0).all()
    with torch.inference_mode():
        np.testing.assert_allclose(
            scores[: causal.context_length],
            compute_stepwise_log_probs(causal, ids[: causal.context_length + 1]),
            atol=1e-4,
        )
    from hallmark.model.decoding.context_windows import compute_window_start

    last = len(ids) - 1
    start = compute_window_start(last, causal.context_length, causal.context_length // 2)
    with torch.inference_mode():
        assert scores[-1] == pytest.approx(
            compute_stepwise_log_probs(causal, ids[start:])[-1], abs=1e-4
        )


def test_log_likelihoods_of_texts_and_of_texts_in_context(causal):
    totals, counts = causal.compute_log_likelihoods([TEXT, ""])
    ids = causal.prepend_bos_id(causal.encode(TEXT))
    assert totals[0] == pytest.approx(causal.compute_log_probs([ids])[0].sum(), abs=1e-3)
    assert counts.tolist() == [len(ids) - 1, 0] and totals[1] == 0
    # p(context + text) = p(context) p(text | context) if both are split at a token boundary.
    context, text = "The nurse said", " that she would be late."
    context_totals, _ = causal.compute_log_likelihoods([context])
    text_totals, n = causal.compute_log_likelihoods([text], [context])
    assert context_totals[0] + text_totals[0] == pytest.approx(totals[0], abs=1e-3)
    assert n[0] == len(causal.encode(text))


def test_targets_of_one_context_are_scored_together(causal):
    prefix = causal.prepend_bos_id(causal.encode("Numbers: 0 1"))
    targets = [causal.encode(t) for t in (" 2 3 4", " 5", " and so on.", " 2 3")] + [[]]
    full_log_probs = causal.compute_log_probs([[*prefix, *c] for c in targets])
    for target_log_probs, sequence_log_probs in zip(
        causal.compute_target_log_probs([prefix] * len(targets), targets),
        full_log_probs,
        strict=True,
    ):
        np.testing.assert_allclose(
            target_log_probs, sequence_log_probs[len(prefix) - 1 :], atol=1e-4
        )
    long = [causal.encode(LONG)[: causal.context_length]]  # too long, so windows are used
    windowed = causal.compute_log_probs([[*prefix, *long[0]]])[0][len(prefix) - 1 :].sum()
    long_total = causal.compute_target_log_probs([prefix] * len(long), long)[0].sum()
    assert long_total == pytest.approx(windowed, abs=1e-3)


def test_special_names_in_a_text_are_plain_text(causal):
    ids = causal.encode("a<|endoftext|>b")
    assert causal.bos_id not in ids
    assert causal.decode(ids) == "a<|endoftext|>b"


def test_generated_text_does_not_depend_on_the_batch(causal):
    prompts = ["The nurse", "", "The engineer said that he", "We read", "Numbers:"]
    options = {"max_new_tokens": 12, "samples": 3, "top_p": 0.9, "seed": 5}
    together = causal.generate_texts(prompts, **options)
    assert [len(row) for row in together] == [3] * 5
    assert len({text for row in together for text in row}) > 10
    alone = [causal.generate_texts([prompt], **options)[0] for prompt in prompts]
    assert alone == together
    fewer = causal.generate_texts(prompts, **options | {"samples": 2})
    assert fewer == [row[:2] for row in together]
    assert causal.generate_texts(prompts, **options | {"seed": 6}) != together


def test_draws_follow_the_model(gpt2):
    """Frequencies of the first token over many draws equal the model's probabilities."""
    prompt = gpt2.prepend_bos_id(gpt2.encode("The nurse"))
    counts = gpt2.generate_token_ids([prompt], max_new_tokens=1, samples=20_000)[0]
    counts = np.bincount([ids[0] if ids else 0 for ids in counts], minlength=gpt2.vocab_size)
    with torch.inference_mode():
        p = gpt2.model(torch.tensor([prompt])).logits[0, -1].softmax(-1).numpy()
    import scipy.stats

    likely = p > 5e-4
    assert likely.sum() > 50
    observed = [*counts[likely], counts[~likely].sum()]
    expected = np.array([*p[likely], p[~likely].sum()], dtype=np.float64)
    assert scipy.stats.chisquare(observed, expected / expected.sum() * 20_000).pvalue > 1e-3


def test_greedy_continuations_agree_with_transformers(gpt2):
    prompts = [
        gpt2.prepend_bos_id(gpt2.encode(t)) for t in ("The nurse", "We read the documentation,")
    ]
    generated = gpt2.generate_token_ids(prompts, max_new_tokens=10, temperature=0)
    for prompt, (ids,) in zip(prompts, generated, strict=True):
        expected = gpt2.model.generate(
            torch.tensor([prompt]), max_new_tokens=10, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert ids == expected[: expected.index(0) if 0 in expected else None]


def test_pseudo_log_likelihoods_equal_single_masks(bert, bert_folder):
    ids = bert.encode(TEXT)
    line = bert.prepend_bos_id(ids)
    expected = []
    for place in range(1, len(line)):
        masked = [*line, bert.tokenizer.sep_token_id]
        masked[place] = bert.tokenizer.mask_token_id
        with torch.inference_mode():
            logits = bert.model(torch.tensor([masked])).logits[0, place]
        expected.append(logits.log_softmax(-1)[line[place]].item())
    np.testing.assert_allclose(bert.compute_log_probs([line, line[:4]])[0], expected, atol=1e-4)
    totals, counts = bert.compute_log_likelihoods([TEXT])
    assert totals[0] == pytest.approx(sum(expected), abs=1e-3) and counts[0] == len(ids)
    long = bert.compute_masked_log_probs(
        [bert.encode(LONG)], [[0, 50, len(bert.encode(LONG)) - 1]]
    )[0]
    assert np.isfinite(long).all()


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder", "bert_folder"])
def test_scores_and_texts_are_in_the_models_precision(request, folder):
    path = request.getfixturevalue(folder)
    exact, rounded = (open_audited_model(path, "cpu", dtype=p) for p in ("auto", "bfloat16"))
    assert (exact.precision, rounded.precision) == ("fp32", "bf16")
    line = exact.prepend_bos_id(exact.encode(TEXT))
    log_probs = [model.compute_log_probs([line])[0] for model in (exact, rounded)]
    if exact.model_kind == "causal":
        repeated = [line[:20] * 2] * 3, [line[5:]] * 3
        log_probs += [s.compute_target_log_probs(*repeated)[0] for s in (exact, rounded)]
    for exact_values, rounded_values in (log_probs[:2], log_probs[-2:]):
        assert 0 < np.abs(exact_values - rounded_values).max() < 0.25 * len(line)
    if exact.model_kind == "causal":
        generated = [
            s.generate_token_ids([line], max_new_tokens=20, samples=8) for s in (exact, rounded)
        ]
        assert generated[0] != generated[1]
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_with_bf16_uses_it(own_folder):
    model = open_audited_model(own_folder, "cuda")
    assert model.precision == ("bf16" if torch.cuda.is_bf16_supported(False) else "fp32")


def test_log_probs_of_generated_texts_equal_their_scores(causal):
    prompts = [
        causal.prepend_bos_id(ids) for ids in causal.encode_batch(["The nurse", "We", "Numbers: 0"])
    ]
    continuations = causal.generate_continuations(
        prompts, max_new_tokens=12, samples=40, temperature=5, seed=3
    )
    ended_count = 0
    for prompt, row in zip(prompts, continuations, strict=True):
        assert len(row) == 40
        for continuation in row:
            log_probs = causal.compute_log_probs([[*prompt, *continuation.token_ids]])[0][
                len(prompt) - 1 :
            ]
            np.testing.assert_allclose(continuation.log_probs, log_probs, atol=1e-4)
            assert continuation.has_ended == (len(continuation.token_ids) < 12)
            ended_count += continuation.has_ended
    assert ended_count > 0


def test_draws_of_one_prompt_are_split_into_batches(gpt2, monkeypatch):
    """Thousands of draws at once would not fit into memory."""
    prompts = [gpt2.encode(text) for text in ("The nurse", "We go", "The doctor")]
    expected = gpt2.generate_continuations(prompts, max_new_tokens=6, samples=7, seed=3)
    sizes, sample = [], type(gpt2)._sample_continuations

    def sample_and_count(self, prompts, keys, *rest):
        sizes.append(len(keys))
        return sample(self, prompts, keys, *rest)

    monkeypatch.setattr(type(gpt2), "_sample_continuations", sample_and_count)
    monkeypatch.setattr(transformers_model, "MAX_LOGITS", 4 * 3 * gpt2.vocab_size)
    generated = gpt2.generate_continuations(prompts, max_new_tokens=6, samples=7, seed=3)
    assert [[w.token_ids for w in row] for row in generated] == [
        [w.token_ids for w in row] for row in expected
    ]
    assert sorted(sizes) == [1, 1, 1, 3, 3, 3, 3, 3, 3]


def test_a_masked_model_does_not_generate(bert):
    with pytest.raises(HallmarkError, match="masked language model and cannot continue"):
        bert.generate_texts(["The nurse"], max_new_tokens=3)


def test_without_a_begin_token_the_first_token_is_not_scored(gpt2_folder, edited):
    folder = edited(gpt2_folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings = {k: v for k, v in settings.items() if k not in ("bos_token", "eos_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        config = {k: v for k, v in config.items() if k not in ("bos_token_id", "eos_token_id")}
        (folder / name).write_text(json.dumps(config))
    model = open_audited_model(folder, device="cpu")
    assert model.bos_id is None and "not scored" in model.opening_description
    _, counts = model.compute_log_likelihoods([TEXT])
    assert counts[0] == len(model.encode(TEXT)) - 1
    with pytest.raises(HallmarkError, match="cannot generate text without a prompt"):
        model.generate_texts([""], max_new_tokens=2)


def test_an_artifact_is_opened_like_its_folder(own_folder, own):
    model = open_audited_model(folder_to_artifact(own_folder, "checkpoint"), device="cpu")
    assert model.name.startswith("checkpoint/") and own.name == "checkpoint"
    assert model.compute_log_likelihoods([TEXT])[0] == own.compute_log_likelihoods([TEXT])[0]


def test_shared_prefix():
    assert count_shared_prefix_tokens([[1, 2, 3], [1, 2, 4], [1, 2]]) == 2
    assert count_shared_prefix_tokens([[1], [2]]) == 0
    assert count_shared_prefix_tokens([[5, 6]]) == 2


@pytest.mark.parametrize(
    ("folder", "without", "message"),
    [
        ("own_folder", ["config.json"], "has no config.json, so it is not a checkpoint"),
        ("own_folder", ["model.safetensors"], "has no model.safetensors"),
        ("own_folder", ["tokenizer.json"], "has no tokenizer.json"),
        ("gpt2_folder", ["model.safetensors"], "has no model.safetensors"),
        ("gpt2_folder", ["tokenizer.json"], "has no tokenizer, because it contains none of the"),
        ("bert_folder", ["tokenizer.json", "vocab.txt", "tokenizer_config.json"], "no tokenizer"),
    ],
)
def test_missing_files_are_named(request, edited, folder, without, message):
    with pytest.raises(UsageError, match=message) as caught:
        open_audited_model(edited(request.getfixturevalue(folder), without=without), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["GPT2ForSequenceClassification"]}, "neither a causal nor a masked"),
        ({"architectures": None}, "neither a causal nor a masked"),
        ({"vocab_size": 100}, r"wte.weight has shape \(\d+, \d+\), expected \(100, "),
        ({"n_layer": 3}, "12 tensors of the model are missing from the weights"),
        ({"n_layer": 2**63}, f"config.json is {2**63}, but models can have at most 10,000 layers"),
        ({"model_type": "no-such-model"}, "cannot be loaded"),
        ({"model_type": 5}, "no model_type"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(edited, gpt2_folder, config, message):
    with pytest.raises(UsageError, match=message) as caught:
        open_audited_model(edited(gpt2_folder, config=config), device="cpu")
    assert "\n" not in str(caught.value)


def test_an_error_that_quotes_a_line_break_of_a_tokenizer_is_one_line(edited, own_folder):
    folder = edited(own_folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"].append(["a\n", "b"])
    (folder / "tokenizer.json").write_text(json.dumps(content))
    vocab_size = len(content["model"]["vocab"])
    for load, error_type in (
        (lambda: load_checkpoint_tokenizer(folder), UsageError),
        (lambda: load_matching_tokenizer(folder / "tokenizer.json", vocab_size), CheckpointError),
    ):
        with pytest.raises(error_type, match=r"a tokenizer.*out of vocabulary") as refused:
            load()
        assert "\n" not in str(refused.value)


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="needs a machine of fewer than 8 GPUs")
def test_a_missing_device_is_refused(own_folder):
    with pytest.raises(
        UsageError, match=r"device cuda:7 does not exist: torch detects \d usable GPUs"
    ):
        open_audited_model(own_folder, device="cuda:7")


def test_folders_without_a_checkpoint_are_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        open_audited_model(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="is not valid JSON"):
        open_audited_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UsageError, match="not a JSON object"):
        open_audited_model(tmp_path)


def test_pickled_weights_are_refused_and_never_read(edited, gpt2_folder):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was run",))

    folder = edited(gpt2_folder, without=["model.safetensors"])
    torch.save({"weights": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"only in pytorch_model\.bin, a file that can run code"):
        open_audited_model(folder, device="cpu")


def test_code_of_the_folder_is_never_run(edited, gpt2_folder):
    folder = edited(
        gpt2_folder,
        config={
            "model_type": "mine",
            "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"},
        },
    )
    (folder / "mine.py").write_text("raise SystemExit('code of the folder was run')")
    with pytest.raises(UsageError, match="cannot be loaded"):
        open_audited_model(folder, device="cpu")


def test_a_tokenizer_of_another_model_is_refused(edited, gpt2_folder, tmp_path):
    from tests.tasks.audits.conftest import train_bpe

    folder = edited(gpt2_folder)
    tokenizer = train_bpe(tmp_path / "larger.json", vocab=420)
    tokenizer.add_tokens([f"word{i}" for i in range(200)])
    tokenizer.save(str(folder / "tokenizer.json"))
    for open_folder in (open_audited_model, open_audited_tokenizer):
        with pytest.raises(
            UsageError, match="provide a checkpoint with the tokenizer used to train it"
        ):
            open_folder(folder)


def test_truncated_weights_are_refused(edited, own_folder, gpt2_folder, tmp_path):
    for folder in (own_folder, gpt2_folder):
        copy = edited(folder)
        weights = copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        with pytest.raises(UsageError) as caught:
            open_audited_model(copy, device="cpu")
        assert "\n" not in str(caught.value)
        copy.rename(tmp_path / folder.name)


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder", "bert_folder"])
def test_a_tokenizer_knows_all_but_the_weights(request, edited, folder):
    """Requests are built where the weights are not available."""
    path = request.getfixturevalue(folder)
    model = open_audited_model(path, device="cpu")
    tokenizer = open_audited_tokenizer(edited(path, without=["model.safetensors"]))
    facts = (
        "model_kind",
        "context_length",
        "vocab_size",
        "bos_id",
        "closing_id",
        "opening_description",
        "mask_id",
    )
    assert [getattr(tokenizer, f, None) for f in facts] == [getattr(model, f, None) for f in facts]
    texts = ["The nurse said <|endoftext|> twice.", "", "\u00e9\U0001f600 10"]
    ids = tokenizer.encode_batch(texts)
    assert ids == model.encode_batch(texts)
    assert [*map(tokenizer.decode, ids)] == [*map(model.decode, ids)]
    assert tokenizer.prepend_bos_id(ids[0]) == model.prepend_bos_id(ids[0])
    assert tokenizer.encode_with_char_spans(texts[0]) == model.encode_with_char_spans(texts[0])


def test_pairs_or_labels_are_refused_for_tokenizer_and_model(tmp_path):
    for name, options, message in (
        ("pairs", {"pairs": True}, "was fine-tuned on source-target pairs"),
        (
            "labels",
            {"labels": ("a", "b"), "tie_embeddings": False},
            "outputs labels, not text; this command needs a language model",
        ),
    ):
        (tmp_path / name).mkdir()
        folder = make_own(tmp_path / name, **options)
        for open_folder in (open_audited_tokenizer, open_audited_model):
            with pytest.raises(UsageError, match=message):
                open_folder(folder)
