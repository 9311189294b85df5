"""Scorers: the embedded linear one, and Detoxify on a small checkpoint in its format."""

import hashlib
import pickle
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest

from tasks.contract import HallmarkError
from tasks.measures.scorers import DetoxifyScorer, ScorerConfig, open_scorer, scorer_digest
from tests.tasks.measures.detoxify_checkpoint import make_checkpoint


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Checkpoint and base folder of a small random BERT in Detoxify's format."""
    return make_checkpoint(tmp_path_factory.mktemp("detoxify"))


def config_of(small, **changes):
    checkpoint, base = small
    return ScorerConfig(kind="detoxify", checkpoint=checkpoint, base=base, **changes)


def test_linear_scores_equal_those_of_its_library():
    from profanity_check import predict_prob

    texts = ["What a lovely day", "you are a damned idiot", "Größe 12 µm"]
    scorer = open_scorer(ScorerConfig())
    scores = scorer.score(texts)
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
    digest = scorer_digest(ScorerConfig())["digest"]
    assert digest == hashlib.sha256(expected.encode()).hexdigest()


def test_naming_a_scorer_does_not_load_it():
    code = (
        "import sys; from tasks.measures.scorers import *; scorer_digest(ScorerConfig());"
        "print({'torch', 'sklearn', 'profanity_check'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("kind", ["linear", "detoxify"])
def test_a_text_without_content_has_no_score(kind, small):
    config = ScorerConfig() if kind == "linear" else config_of(small)
    scores = open_scorer(config).score(["", "text", " \n\t"])
    assert np.isnan(scores).tolist() == [True, False, True]
    assert open_scorer(config).score([]).shape == (0,)


def test_detoxify_scores_equal_those_of_its_library(small):
    """Short texts: its own predict, which pads to the longest and does not batch."""
    from detoxify import Detoxify

    texts = ["a", "you are bad", "the quick brown fox", "zz top", "long " * 8]
    own = Detoxify(checkpoint=str(small[0])).predict(texts)["toxicity"]
    for batch in (1, 2, 32):
        scores = open_scorer(config_of(small, batch=batch)).score(texts)
        np.testing.assert_allclose(scores, own, atol=1e-6)
    assert np.ptp(own) > 1e-3  # the random model does tell texts apart


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
    np.testing.assert_allclose(scorer.score([words])[0], max(expected), atol=1e-6)


def test_a_network_that_fails_yields_a_missing_score(small):
    scorer = DetoxifyScorer(config_of(small))
    scorer._model.classifier.bias.data.fill_(float("nan"))
    assert np.isnan(scorer.score(["some text"])).all()


def test_the_digest_of_detoxify_is_the_hash_of_its_checkpoint(small):
    expected = hashlib.sha256(small[0].read_bytes()).hexdigest()
    config = config_of(small)
    assert open_scorer(config).digest == expected
    assert scorer_digest(config)["digest"] == expected


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
    config = ScorerConfig(kind="detoxify", base=small[1])
    assert scorer_digest(config)["digest"] == hashlib.sha256(data).hexdigest()
    assert (folder / f"{file.name}.sha256").read_text().strip() == hashlib.sha256(data).hexdigest()
    file.write_bytes(data + b"\0")
    with pytest.raises(HallmarkError, match="not the expected"):
        scorer_digest(config)


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
        open_scorer(ScorerConfig(kind="detoxify", checkpoint=file, base=small[1]))
    assert not marker.exists()
    pickle.loads(file.read_bytes())  # the file is hostile indeed
    assert marker.exists()


def test_missing_weights_are_not_filled_in(small, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path, leave_out="classifier.weight")
    with pytest.raises(HallmarkError, match=r"lacks 1 weights .*classifier\.weight"):
        open_scorer(ScorerConfig(kind="detoxify", checkpoint=checkpoint, base=base))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": Path("no/such.ckpt")}, "does not exist"),
        ({"base": Path("no/such/folder")}, r"holds no config\.json"),
    ],
)
def test_missing_files_get_one_sentence(small, changes, message):
    with pytest.raises(HallmarkError, match=message) as caught:
        open_scorer(config_of(small).model_copy(update=changes))
    assert "\n" not in str(caught.value)
