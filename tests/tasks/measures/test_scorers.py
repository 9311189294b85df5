"""Scorers: the embedded linear one, and Detoxify on a small checkpoint in its format."""

import hashlib
import itertools
import pickle
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.measures.scorers import (
    TOXICITY_HEADS,
    DetoxifyScorer,
    LinearScorer,
    ScorerConfig,
    open_scorer,
    scorer_versions,
)
from hallmark.tasks.measures.scorers.network import batch_by_length
from tests.tasks.measures.detoxify_checkpoint import VARIANTS, make_checkpoint


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Checkpoint and base folder of a small random BERT in Detoxify's format."""
    return make_checkpoint(tmp_path_factory.mktemp("detoxify"))


def config_of(small, **changes):
    checkpoint, base = small
    return ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base, **changes)


def test_linear_scores_equal_those_of_its_library():
    from profanity_check import predict_prob

    texts = ["What a lovely day", "you are a damned idiot", "Größe 12 µm"]
    scorer = open_scorer(ScorerConfig())
    scores = scorer.score_toxicity(texts)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, predict_prob(texts), rtol=1e-6)
    assert scores[1] > 0.5 > scores[0]
    assert scorer.name == f"alt-profanity-check {distribution('alt-profanity-check').version}"


def test_linear_digest_is_that_of_the_files_in_the_wheel():
    found = {}
    for file in distribution("alt-profanity-check").files:
        if file.suffix == ".joblib":
            found[file.name] = hashlib.sha256(file.locate().read_bytes()).hexdigest()
    text = '{"model.joblib":"%s","vectorizer.joblib":"%s"}'
    expected = text % (found["model.joblib"], found["vectorizer.joblib"])
    digest = scorer_versions(ScorerConfig())["digest"]
    assert digest == hashlib.sha256(expected.encode()).hexdigest()


def test_naming_a_scorer_does_not_load_it():
    code = (
        "import sys; from hallmark.tasks.measures.scorers import *;"
        "scorer_versions(ScorerConfig());"
        "print({'torch', 'sklearn', 'profanity_check'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("kind", ["linear", "detoxify"])
def test_a_text_without_content_has_no_score(kind, small):
    config = ScorerConfig() if kind == "linear" else config_of(small)
    scores = open_scorer(config).score_toxicity(["", "text", " \n\t"])
    assert np.isnan(scores).tolist() == [True, False, True]
    assert open_scorer(config).score_toxicity([]).shape == (0,)


def varied_texts(seed: int, count: int, longest: int) -> list[str]:
    """Words of the alphabet of the small tokenizers, of mixed lengths in tokens."""
    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz ")
    return ["".join(rng.choice(letters, size=n)) or "a" for n in rng.integers(1, longest, count)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_heads_equal_those_of_the_library(variant, tmp_path):
    """Below the length at which its own predict, which pads to the longest, begins to truncate."""
    from detoxify import Detoxify

    checkpoint, base = make_checkpoint(tmp_path, variant=variant)
    texts = varied_texts(1, 40, longest=30)
    own = Detoxify(checkpoint=str(checkpoint)).predict(texts)
    for budget in (1, 64, 4096):
        config = ScorerConfig(
            kind="detoxify",
            model=variant,
            checkpoint=checkpoint,
            base_model_folder=base,
            batch_tokens=budget,
        )
        scorer = DetoxifyScorer(config)
        scores = scorer.score_by_head(texts)
        assert set(scorer.heads) == set(own) and scores.dtype == np.float32
        for column, head in enumerate(TOXICITY_HEADS):
            expected = own.get(head, [np.nan] * len(texts))
            np.testing.assert_allclose(scores[:, column], expected, atol=1e-4)
        np.testing.assert_array_equal(scorer.score_toxicity(texts), scores[:, 0])
    assert all(np.ptp(own[head]) > 1e-2 for head in own)  # the random model does tell texts apart


def test_a_window_of_all_positions_fits_every_architecture(tmp_path):
    for variant in VARIANTS:
        checkpoint, base = make_checkpoint(tmp_path / variant, variant=variant)
        scorer = DetoxifyScorer(
            ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base)
        )
        assert (
            np.isfinite(scorer.score_toxicity(["abcdefgh " * 40])).all()
            and not scorer.failure_reason
        )


@given(st.lists(st.integers(1, 512), max_size=60), st.integers(1, 2000))
def test_batches_hold_all_windows_once_within_the_budget(lengths, budget):
    lengths = np.array(lengths, np.int64)
    found = list(batch_by_length(lengths, budget))
    assert sorted(np.concatenate(found).tolist() if found else []) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or lengths[batch].max() * len(batch) <= budget
    longest = [lengths[batch].max() for batch in found]
    assert longest == sorted(longest)
    for batch, after in itertools.pairwise(found):  # as full as the budget allows
        assert lengths[after[0]] * (len(batch) + 1) > budget


def seen_by(scorer, monkeypatch):
    """The windows that a scorer's network is given, as they come."""
    seen = []
    forward = scorer._score_windows

    def recorded(windows):
        seen.extend(windows)
        return forward(windows)

    monkeypatch.setattr(scorer, "_score_windows", recorded)
    return seen


def test_what_stands_there_twice_is_scored_once(small, monkeypatch):
    scorer = DetoxifyScorer(config_of(small, window_tokens=16))
    seen = seen_by(scorer, monkeypatch)
    repeated = "abcdefghijk" * 8  # windows start each 11 letters: they repeat
    texts = ["bad words", repeated, "good words", "bad words", repeated, "BAD  words"]
    scores = scorer.score_by_head(texts)
    assert len(seen) == len(set(seen))
    assert len(seen) < sum(len(text) for text in set(texts)) // 11
    np.testing.assert_array_equal(scores[[0, 1]], scores[[3, 4]])
    np.testing.assert_array_equal(scores[0], scores[5])  # the same tokens: other capitals
    assert scores[0, 0] != scores[2, 0]
    alone = np.concatenate([scorer.score_by_head([text]) for text in texts])
    np.testing.assert_allclose(scores, alone, atol=1e-5)


def test_in_bf16_scores_are_near(small):
    texts = varied_texts(2, 60, longest=200)
    exact = DetoxifyScorer(config_of(small)).score_by_head(texts)
    halved = DetoxifyScorer(config_of(small, precision="bf16"))
    assert {weight.dtype for weight in halved._model.parameters()} == {torch.bfloat16}
    found = halved.score_by_head(texts)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    error = np.abs(found - exact)[np.isfinite(exact)]
    assert 0 < error.mean() < 0.02  # random weights this large magnify the rounding
    assert exact[np.isfinite(exact)].std() > 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-4), ("bf16", 0.02)])
def test_on_a_gpu_scores_are_those_of_the_processor(small, precision, most):
    texts = varied_texts(3, 200, longest=200)
    exact = DetoxifyScorer(config_of(small, device="cpu")).score_by_head(texts)
    scorer = DetoxifyScorer(config_of(small, precision=precision))  # it takes the GPU by itself
    assert {weight.device.type for weight in scorer._model.parameters()} == {"cuda"}
    found = scorer.score_by_head(texts)
    assert not scorer.failure_reason
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    error = np.abs(found - exact)[np.isfinite(exact)]
    assert (error.max() if precision == "fp32" else error.mean()) < most


class Breaks:
    """A network that fails on batches with a window that holds a token."""

    def __init__(self, scorer, token):
        self.map_results, self.token, self.forward = 0, token, scorer._score_windows

    def __call__(self, windows):
        self.map_results += 1
        if any(self.token in window for window in windows):
            raise RuntimeError("no kernel for this\nsecond line")
        return self.forward(windows)


def test_a_batch_that_fails_is_scored_one_by_one(small, monkeypatch, caplog):
    whole = DetoxifyScorer(config_of(small))
    scorer = DetoxifyScorer(config_of(small))
    token = scorer._tokenizer.convert_tokens_to_ids("z")
    monkeypatch.setattr(scorer, "_score_windows", Breaks(scorer, token))
    texts = ["a b c", "it went to the z oo", "hello", "what", "z", ""]
    scores = scorer.score_by_head(texts)
    assert np.isnan(scores[[1, 4, 5]]).all()
    rest = [0, 2, 3]
    np.testing.assert_allclose(scores[rest], whole.score_by_head(texts)[rest], atol=1e-5)
    assert scorer.failure_reason == "RuntimeError: no kernel for this"
    assert len(caplog.records) == 1 and "oo" not in caplog.text
    assert not whole.failure_reason


def test_a_tokenizer_that_fails_on_a_text_leaves_the_others(small, monkeypatch):
    scorer = DetoxifyScorer(config_of(small))
    encoded = scorer._tokenize_into_windows

    def fails(texts):
        if any("q" in text for text in texts):
            raise ValueError(f"cannot read {texts}")
        return encoded(texts)

    monkeypatch.setattr(scorer, "_tokenize_into_windows", fails)
    assert np.isnan(scorer.score_toxicity(["one", "quite", "two"])).tolist() == [False, True, False]
    assert scorer.failure_reason == "ValueError"  # what it says may quote the text


def test_the_linear_scorer_scores_the_others_too(monkeypatch):
    scorer = LinearScorer()
    right, probabilities = (
        scorer.score_toxicity(["fine", "worse", "fine"]),
        scorer._predict_probabilities,
    )

    def fails(texts):
        if "worse" in texts:
            raise RuntimeError("no")
        return probabilities(texts)

    monkeypatch.setattr(scorer, "_predict_probabilities", fails)
    np.testing.assert_array_equal(
        scorer.score_toxicity(["fine", "worse", "fine"]), [right[0], np.nan, right[0]]
    )
    heads = scorer.score_by_head(["fine"])
    assert np.isnan(heads[0, 1:]).all() and heads.shape == (1, len(TOXICITY_HEADS))


def test_a_long_text_gets_the_highest_score_of_its_windows(small):
    import torch

    scorer = DetoxifyScorer(config_of(small, window_tokens=16))
    words = " ".join("abcdefghijklmnopqrstuvwxyz"[i % 26] for i in range(40))
    ids = scorer._tokenizer(words, add_special_tokens=False)["input_ids"]
    cls, sep = scorer._tokenizer.cls_token_id, scorer._tokenizer.sep_token_id
    # 14 tokens beside the two special ones; overlap 3, so a window starts each 11 tokens.
    expected = []
    for start in (0, 11, 22, 33):
        window = [cls, *ids[start : start + 14], sep]
        logits = scorer._model(torch.tensor([window])).logits
        expected.append(torch.sigmoid(logits)[0, 0].item())
        if start + 14 >= len(ids):
            break
    assert len(expected) == 4
    np.testing.assert_allclose(scorer.score_toxicity([words])[0], max(expected), atol=1e-6)


def test_a_network_that_fails_yields_a_missing_score(small):
    scorer = DetoxifyScorer(config_of(small))
    scorer._model.classifier.bias.data.fill_(float("nan"))
    assert np.isnan(scorer.score_toxicity(["some text"])).all()


def test_the_digest_of_detoxify_is_the_hash_of_its_checkpoint(small):
    expected = hashlib.sha256(small[0].read_bytes()).hexdigest()
    config = config_of(small)
    assert open_scorer(config).digest == expected
    assert scorer_versions(config)["digest"] == expected


def test_another_file_than_the_expected_one_is_refused(small):
    with pytest.raises(HallmarkError, match=r"has SHA-256 .* not the expected 0000"):
        open_scorer(config_of(small, sha256="0" * 64))


def test_a_downloaded_checkpoint_must_stay_the_same(small, tmp_path, monkeypatch):
    """The record beside the file, written when it first came, is held against it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "hallmark" / "detoxify"
    folder.mkdir(parents=True)
    data = small[0].read_bytes()
    file = folder / "toxic_debiased-c7548aa0.ckpt"
    file.write_bytes(data)
    config = ScorerConfig(kind="detoxify", base_model_folder=small[1])
    assert scorer_versions(config)["digest"] == hashlib.sha256(data).hexdigest()
    assert (folder / f"{file.name}.sha256").read_text().strip() == hashlib.sha256(data).hexdigest()
    file.write_bytes(data + b"\0")
    with pytest.raises(HallmarkError, match="not the expected"):
        scorer_versions(config)


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_a_checkpoint_never_runs_code(small, tmp_path):
    marker = tmp_path / "ran"
    file = tmp_path / "hostile.ckpt"
    file.write_bytes(pickle.dumps({"config": Hostile(marker), "state_dict": {}}))
    with pytest.raises(HallmarkError, match="no Detoxify checkpoint"):
        open_scorer(ScorerConfig(kind="detoxify", checkpoint=file, base_model_folder=small[1]))
    assert not marker.exists()
    pickle.loads(file.read_bytes())  # the file is hostile indeed
    assert marker.exists()


def test_missing_weights_are_not_filled_in(small, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path, leave_out="classifier.weight")
    with pytest.raises(HallmarkError, match=r"lacks 1 weights .*classifier\.weight"):
        open_scorer(ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": Path("no/such.ckpt")}, "does not exist"),
        ({"base_model_folder": Path("no/such/folder")}, r"holds no config\.json"),
    ],
)
def test_missing_files_get_one_sentence(small, changes, message):
    with pytest.raises(HallmarkError, match=message) as caught:
        open_scorer(config_of(small).model_copy(update=changes))
    assert "\n" not in str(caught.value)
