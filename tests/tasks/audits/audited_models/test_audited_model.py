"""Subjects against transformers itself and against the slow way of doing the same."""

import json

import numpy as np
import pytest
import torch

from hallmark.model.architecture import Transformer
from hallmark.tasks.audits.audited_models import transformers_model
from hallmark.tasks.audits.audited_models.audited_tokenizer import count_shared_prefix_tokens
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


def stepwise(subject, ids):
    """log p of each token after the first, one forward pass a token."""
    result = []
    for i in range(1, len(ids)):
        read = torch.tensor([ids[:i]])
        own = isinstance(subject.model, Transformer)
        scores = logits(subject.model, read) if own else subject.model(read).logits
        result.append(scores[0, -1].log_softmax(-1)[ids[i]].item())
    return result


def test_log_probs_by_single_steps(causal):
    ids = causal.prepend_bos_id(causal.encode(TEXT))
    with torch.inference_mode():
        expected = stepwise(causal, ids)
    scores = causal.compute_log_probs([ids, ids[:3], [], ids[:1]])
    np.testing.assert_allclose(scores[0], expected, atol=1e-4)
    np.testing.assert_allclose(scores[1], expected[:2], atol=1e-4)
    assert len(scores[2]) == len(scores[3]) == 0


def test_log_probs_beyond_the_context(causal):
    """Each token is scored with at least half a context before it, and once."""
    ids = causal.prepend_bos_id(causal.encode(LONG))
    assert len(ids) > 2 * causal.context_length
    scores = causal.compute_log_probs([ids])[0]
    assert len(scores) == len(ids) - 1 and np.isfinite(scores).all() and (scores < 0).all()
    with torch.inference_mode():
        np.testing.assert_allclose(
            scores[: causal.context_length],
            stepwise(causal, ids[: causal.context_length + 1]),
            atol=1e-4,
        )
    from hallmark.model.decoding.context_windows import compute_window_start

    last = len(ids) - 1
    start = compute_window_start(last, causal.context_length, causal.context_length // 2)
    with torch.inference_mode():
        assert scores[-1] == pytest.approx(stepwise(causal, ids[start:])[-1], abs=1e-4)


def test_log_likelihoods_of_texts_and_of_texts_in_context(causal):
    totals, counts = causal.compute_log_likelihoods([TEXT, ""])
    ids = causal.prepend_bos_id(causal.encode(TEXT))
    assert totals[0] == pytest.approx(causal.compute_log_probs([ids])[0].sum(), abs=1e-3)
    assert counts.tolist() == [len(ids) - 1, 0] and totals[1] == 0
    # p(context + text) = p(context) p(text | context) where both are cut at one token boundary
    context, text = "The nurse said", " that she would be late."
    alone, _ = causal.compute_log_likelihoods([context])
    behind, n = causal.compute_log_likelihoods([text], [context])
    assert alone[0] + behind[0] == pytest.approx(totals[0], abs=1e-3)
    assert n[0] == len(causal.encode(text))


def test_continuations_behind_one_prefix(causal):
    prefix = causal.prepend_bos_id(causal.encode("Numbers: 0 1"))
    ends = [causal.encode(t) for t in (" 2 3 4", " 5", " and so on.", " 2 3")] + [[]]
    whole = causal.compute_log_probs([[*prefix, *c] for c in ends])
    for one, other in zip(
        causal.compute_target_log_probs([prefix] * len(ends), ends), whole, strict=True
    ):
        np.testing.assert_allclose(one, other[len(prefix) - 1 :], atol=1e-4)
    long = [causal.encode(LONG)[: causal.context_length]]  # does not fit: windows take over
    windowed = causal.compute_log_probs([[*prefix, *long[0]]])[0][len(prefix) - 1 :].sum()
    found = causal.compute_target_log_probs([prefix] * len(long), long)[0].sum()
    assert found == pytest.approx(windowed, abs=1e-3)


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
    """Frequencies of the first token over many draws against the model's own probabilities."""
    prompt = gpt2.prepend_bos_id(gpt2.encode("The nurse"))
    drawn = gpt2.generate_token_ids([prompt], max_new_tokens=1, samples=20_000)[0]
    drawn = np.bincount([ids[0] if ids else 0 for ids in drawn], minlength=gpt2.vocab_size)
    with torch.inference_mode():
        p = gpt2.model(torch.tensor([prompt])).logits[0, -1].softmax(-1).numpy()
    import scipy.stats

    likely = p > 5e-4
    assert likely.sum() > 50
    observed = [*drawn[likely], drawn[~likely].sum()]
    expected = np.array([*p[likely], p[~likely].sum()], dtype=np.float64)
    assert scipy.stats.chisquare(observed, expected / expected.sum() * 20_000).pvalue > 1e-3


def test_greedy_continuations_agree_with_transformers(gpt2):
    prompts = [
        gpt2.prepend_bos_id(gpt2.encode(t)) for t in ("The nurse", "We read the documentation,")
    ]
    ours = gpt2.generate_token_ids(prompts, max_new_tokens=10, temperature=0)
    for prompt, (ids,) in zip(prompts, ours, strict=True):
        peer = gpt2.model.generate(
            torch.tensor([prompt]), max_new_tokens=10, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert ids == peer[: peer.index(0) if 0 in peer else None]


def test_pseudo_log_likelihoods_by_single_masks(bert, bert_folder):
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
def test_scores_and_texts_are_in_the_subjects_precision(request, folder):
    path = request.getfixturevalue(folder)
    exact, near = (open_audited_model(path, "cpu", precision=p) for p in ("auto", "bf16"))
    assert (exact.precision, near.precision) == ("fp32", "bf16")
    line = exact.prepend_bos_id(exact.encode(TEXT))
    found = [subject.compute_log_probs([line])[0] for subject in (exact, near)]
    if exact.model_kind == "causal":
        twice = [line[:20] * 2] * 3, [line[5:]] * 3
        found += [s.compute_target_log_probs(*twice)[0] for s in (exact, near)]
    for one, other in (found[:2], found[-2:]):
        assert 0 < np.abs(one - other).max() < 0.25 * len(line)
    if exact.model_kind == "causal":
        made = [s.generate_token_ids([line], max_new_tokens=20, samples=8) for s in (exact, near)]
        assert made[0] != made[1]
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_with_bf16_that_is_the_precision(own_folder):
    subject = open_audited_model(own_folder, "cuda")
    assert subject.precision == ("bf16" if torch.cuda.is_bf16_supported(False) else "fp32")


def test_what_was_written_has_the_log_p_that_scoring_gives_it(causal):
    prompts = [
        causal.prepend_bos_id(ids) for ids in causal.encode_batch(["The nurse", "We", "Numbers: 0"])
    ]
    made = causal.generate_continuations(
        prompts, max_new_tokens=12, samples=40, temperature=5, seed=3
    )
    stopped = 0
    for prompt, row in zip(prompts, made, strict=True):
        assert len(row) == 40
        for written in row:
            scored = causal.compute_log_probs([[*prompt, *written.token_ids]])[0][len(prompt) - 1 :]
            np.testing.assert_allclose(written.log_probs, scored, atol=1e-4)
            assert written.has_ended == (len(written.token_ids) < 12)
            stopped += written.has_ended
    assert stopped > 0


def test_draws_of_one_prompt_are_shared_among_batches(gpt2, monkeypatch):
    """Of thousands, all at once would not fit the memory."""
    prompts = [gpt2.encode(text) for text in ("The nurse", "We go", "The doctor")]
    whole = gpt2.generate_continuations(prompts, max_new_tokens=6, samples=7, seed=3)
    sizes, continued = [], type(gpt2)._sample_continuations

    def counted(self, prompts, keys, *rest):
        sizes.append(len(keys))
        return continued(self, prompts, keys, *rest)

    monkeypatch.setattr(type(gpt2), "_sample_continuations", counted)
    monkeypatch.setattr(transformers_model, "MAX_LOGITS", 4 * 3 * gpt2.vocab_size)
    made = gpt2.generate_continuations(prompts, max_new_tokens=6, samples=7, seed=3)
    assert [[w.token_ids for w in row] for row in made] == [
        [w.token_ids for w in row] for row in whole
    ]
    assert sorted(sizes) == [1, 1, 1, 3, 3, 3, 3, 3, 3]


def test_a_masked_model_does_not_generate(bert):
    with pytest.raises(HallmarkError, match="masked language model and cannot continue"):
        bert.generate_texts(["The nurse"], max_new_tokens=3)


def test_a_tokenizer_without_begin_says_so(gpt2_folder, edited):
    folder = edited(gpt2_folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings = {k: v for k, v in settings.items() if k not in ("bos_token", "eos_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        config = {k: v for k, v in config.items() if k not in ("bos_token_id", "eos_token_id")}
        (folder / name).write_text(json.dumps(config))
    subject = open_audited_model(folder, device="cpu")
    assert subject.bos_id is None and "not scored" in subject.opening_description
    _, counts = subject.compute_log_likelihoods([TEXT])
    assert counts[0] == len(subject.encode(TEXT)) - 1
    with pytest.raises(HallmarkError, match="cannot write without a prompt"):
        subject.generate_texts([""], max_new_tokens=2)


def test_an_artifact_is_opened_like_its_folder(own_folder, own):
    subject = open_audited_model(folder_to_artifact(own_folder, "checkpoint"), device="cpu")
    assert subject.name.startswith("checkpoint/") and own.name == "checkpoint"
    assert subject.compute_log_likelihoods([TEXT])[0] == own.compute_log_likelihoods([TEXT])[0]


def test_shared_prefix():
    assert count_shared_prefix_tokens([[1, 2, 3], [1, 2, 4], [1, 2]]) == 2
    assert count_shared_prefix_tokens([[1], [2]]) == 0
    assert count_shared_prefix_tokens([[5, 6]]) == 2


@pytest.mark.parametrize(
    ("folder", "without", "message"),
    [
        ("own_folder", ["config.json"], "has no config.json: it is not a checkpoint"),
        ("own_folder", ["model.safetensors"], "has no model.safetensors"),
        ("own_folder", ["tokenizer.json"], "has no tokenizer.json"),
        ("gpt2_folder", ["model.safetensors"], "has no model.safetensors"),
        ("gpt2_folder", ["tokenizer.json"], "holds no tokenizer"),
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
        ({"n_layer": 3}, "lack 12 tensors"),
        ({"model_type": "no-such-model"}, "can be loaded"),
        ({"model_type": 5}, "no model_type"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(edited, gpt2_folder, config, message):
    with pytest.raises(UsageError, match=message) as caught:
        open_audited_model(edited(gpt2_folder, config=config), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="needs a machine of fewer than 8 GPUs")
def test_a_device_that_is_not_there_is_refused(own_folder):
    with pytest.raises(UsageError, match=r"device cuda:7: this machine has \d GPUs"):
        open_audited_model(own_folder, device="cuda:7")


def test_folders_that_are_no_checkpoints(tmp_path):
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
    with pytest.raises(UsageError, match=r"only in pytorch_model\.bin, a format that can run code"):
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
    with pytest.raises(UsageError, match="can be loaded"):
        open_audited_model(folder, device="cpu")


def test_a_tokenizer_of_another_model_is_refused(edited, gpt2_folder, tmp_path):
    from tests.tasks.audits.conftest import train_bpe

    folder = edited(gpt2_folder)
    tokenizer = train_bpe(tmp_path / "larger.json", vocab=420)
    tokenizer.add_tokens([f"word{i}" for i in range(200)])
    tokenizer.save(str(folder / "tokenizer.json"))
    for opened in (open_audited_model, open_audited_tokenizer):  # before anything is asked
        with pytest.raises(UsageError, match="do not belong together"):
            opened(folder)


def test_weights_cut_short_are_refused(edited, own_folder, gpt2_folder, tmp_path):
    for folder in (own_folder, gpt2_folder):
        copy = edited(folder)
        weights = copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        with pytest.raises(UsageError) as caught:
            open_audited_model(copy, device="cpu")
        assert "\n" not in str(caught.value)
        copy.rename(tmp_path / folder.name)


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder", "bert_folder"])
def test_a_reader_knows_all_but_the_weights(request, edited, folder):
    """What is asked of a model is decided where its weights are not."""
    whole = request.getfixturevalue(folder)
    subject = open_audited_model(whole, device="cpu")
    reader = open_audited_tokenizer(edited(whole, without=["model.safetensors"]))
    facts = (
        "model_kind",
        "context_length",
        "vocab_size",
        "bos_id",
        "closing_id",
        "opening_description",
        "mask_id",
    )
    assert [getattr(reader, f, None) for f in facts] == [getattr(subject, f, None) for f in facts]
    texts = ["The nurse said <|endoftext|> twice.", "", "\u00e9\U0001f600 10"]
    ids = reader.encode_batch(texts)
    assert ids == subject.encode_batch(texts)
    assert [*map(reader.decode, ids)] == [*map(subject.decode, ids)]
    assert reader.prepend_bos_id(ids[0]) == subject.prepend_bos_id(ids[0])
    assert reader.encode_with_char_spans(texts[0]) == subject.encode_with_char_spans(texts[0])


def test_a_reader_of_pairs_or_labels_is_refused_as_its_model_is(tmp_path):
    for name, made, message in (
        ("pairs", {"pairs": True}, "was fine-tuned on pairs"),
        ("labels", {"labels": ("a", "b"), "tie_embeddings": False}, "gives labels and no text"),
    ):
        (tmp_path / name).mkdir()
        folder = make_own(tmp_path / name, **made)
        for opens in (open_audited_tokenizer, open_audited_model):
            with pytest.raises(UsageError, match=message):
                opens(folder)
