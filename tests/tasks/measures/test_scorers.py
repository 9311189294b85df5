"""Test toxicity scorers: the built-in linear one, and Detoxify on small checkpoints."""

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
from pydantic import ValidationError

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.measures.scorers import (
    SCORER_CLASSES,
    TOXICITY_HEADS,
    Scorer,
    ScorerConfig,
    open_scorer,
    scorer_versions,
)
from hallmark.tasks.measures.scorers.detoxify import DetoxifyScorer
from hallmark.tasks.measures.scorers.linear import LinearScorer
from hallmark.tasks.measures.scorers.network import batch_by_length
from tests.tasks.measures.detoxify_checkpoint import VARIANTS, make_checkpoint


@pytest.fixture(scope="module")
def small_checkpoint(tmp_path_factory):
    """Return checkpoint and base folder of a small random BERT in Detoxify's format."""
    return make_checkpoint(tmp_path_factory.mktemp("detoxify"))


def build_config(small_checkpoint, **changes):
    checkpoint, base = small_checkpoint
    return ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base, **changes)


def test_linear_scores_equal_those_of_the_library():
    from profanity_check import predict_prob

    texts = ["What a lovely day", "you are a damned idiot", "Größe 12 µm"]
    scorer = open_scorer(ScorerConfig())
    scores = scorer.score_toxicity(texts)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, predict_prob(texts), rtol=1e-6)
    assert scores[1] > 0.5 > scores[0]
    assert scorer.name == f"alt-profanity-check {distribution('alt-profanity-check').version}"


def test_the_linear_digest_hashes_the_files_in_the_wheel():
    file_hashes = {}
    for file in distribution("alt-profanity-check").files:
        if file.suffix == ".joblib":
            file_hashes[file.name] = hashlib.sha256(file.locate().read_bytes()).hexdigest()
    text = '{"model.joblib":"%s","vectorizer.joblib":"%s"}'
    expected = text % (file_hashes["model.joblib"], file_hashes["vectorizer.joblib"])
    digest = scorer_versions(ScorerConfig())["digest"]
    assert digest == hashlib.sha256(expected.encode()).hexdigest()


def test_reading_scorer_versions_does_not_load_the_model():
    code = (
        "import sys; from hallmark.tasks.measures.scorers import *;"
        "scorer_versions(ScorerConfig());"
        "print({'torch', 'sklearn', 'profanity_check'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("kind", ["linear", "detoxify"])
def test_a_text_without_content_has_no_score(kind, small_checkpoint):
    config = ScorerConfig() if kind == "linear" else build_config(small_checkpoint)
    scores = open_scorer(config).score_toxicity(["", "text", " \n\t"])
    assert np.isnan(scores).tolist() == [True, False, True]
    assert open_scorer(config).score_toxicity([]).shape == (0,)


def varied_texts(seed: int, count: int, longest: int) -> list[str]:
    """Return random texts of letters and spaces, with mixed lengths."""
    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz ")
    return ["".join(rng.choice(letters, size=n)) or "a" for n in rng.integers(1, longest, count)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_heads_equal_those_of_the_library(variant, tmp_path):
    """The texts are short enough that the library's own predict does not truncate them."""
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
    assert all(
        np.ptp(own[head]) > 1e-2 for head in own
    )  # The random model gives different scores to different texts.


def test_windows_fit_the_positions_of_every_architecture(tmp_path):
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
def test_batches_contain_each_window_once_within_the_token_limit(lengths, budget):
    lengths = np.array(lengths, np.int64)
    batches = list(batch_by_length(lengths, budget))
    assert sorted(np.concatenate(batches).tolist() if batches else []) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or lengths[batch].max() * len(batch) <= budget
    longest = [lengths[batch].max() for batch in batches]
    assert longest == sorted(longest)
    for batch, after in itertools.pairwise(batches):  # as full as the budget allows
        assert lengths[after[0]] * (len(batch) + 1) > budget


def record_scored_windows(scorer, monkeypatch):
    """Record the windows that the scorer's network gets."""
    scored_windows = []
    forward = scorer._score_windows

    def recorded(windows):
        scored_windows.extend(windows)
        return forward(windows)

    monkeypatch.setattr(scorer, "_score_windows", recorded)
    return scored_windows


def test_repeated_texts_and_windows_are_scored_once(small_checkpoint, monkeypatch):
    scorer = DetoxifyScorer(build_config(small_checkpoint, window_tokens=16))
    scored_windows = record_scored_windows(scorer, monkeypatch)
    repeated = "abcdefghijk" * 8  # Windows start every 11 letters, so they repeat.
    texts = ["bad words", repeated, "good words", "bad words", repeated, "BAD  words"]
    scores = scorer.score_by_head(texts)
    assert len(scored_windows) == len(set(scored_windows))
    assert len(scored_windows) < sum(len(text) for text in set(texts)) // 11
    np.testing.assert_array_equal(scores[[0, 1]], scores[[3, 4]])
    np.testing.assert_array_equal(scores[0], scores[5])  # The same tokens, since case is ignored.
    assert scores[0, 0] != scores[2, 0]
    alone = np.concatenate([scorer.score_by_head([text]) for text in texts])
    np.testing.assert_allclose(scores, alone, atol=1e-5)


def test_scores_in_bf16_are_close(small_checkpoint):
    texts = varied_texts(2, 60, longest=200)
    exact = DetoxifyScorer(build_config(small_checkpoint)).score_by_head(texts)
    bf16_scorer = DetoxifyScorer(build_config(small_checkpoint, precision="bf16"))
    assert {weight.dtype for weight in bf16_scorer._model.parameters()} == {torch.bfloat16}
    scores = bf16_scorer.score_by_head(texts)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(scores), np.isnan(exact))
    error = np.abs(scores - exact)[np.isfinite(exact)]
    assert 0 < error.mean() < 0.02  # random weights this large magnify the rounding
    assert exact[np.isfinite(exact)].std() > 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-4), ("bf16", 0.02)])
def test_scores_on_a_gpu_equal_those_on_the_cpu(small_checkpoint, precision, most):
    texts = varied_texts(3, 200, longest=200)
    exact = DetoxifyScorer(build_config(small_checkpoint, device="cpu")).score_by_head(texts)
    scorer = DetoxifyScorer(
        build_config(small_checkpoint, precision=precision)
    )  # It selects the GPU automatically.
    assert {weight.device.type for weight in scorer._model.parameters()} == {"cuda"}
    scores = scorer.score_by_head(texts)
    assert not scorer.failure_reason
    np.testing.assert_array_equal(np.isnan(scores), np.isnan(exact))
    error = np.abs(scores - exact)[np.isfinite(exact)]
    assert (error.max() if precision == "fp32" else error.mean()) < most


class FailingNetwork:
    """A network that fails on batches that contain a given token."""

    def __init__(self, scorer, token):
        self.map_results, self.token, self.forward = 0, token, scorer._score_windows

    def __call__(self, windows):
        self.map_results += 1
        if any(self.token in window for window in windows):
            raise RuntimeError("no kernel for this\nsecond line")
        return self.forward(windows)


def test_a_failing_batch_is_scored_one_text_at_a_time(small_checkpoint, monkeypatch, caplog):
    intact_scorer = DetoxifyScorer(build_config(small_checkpoint))
    scorer = DetoxifyScorer(build_config(small_checkpoint))
    token = scorer._tokenizer.convert_tokens_to_ids("z")
    monkeypatch.setattr(scorer, "_score_windows", FailingNetwork(scorer, token))
    texts = ["a b c", "it went to the z oo", "hello", "what", "z", ""]
    scores = scorer.score_by_head(texts)
    assert np.isnan(scores[[1, 4, 5]]).all()
    rest = [0, 2, 3]
    np.testing.assert_allclose(scores[rest], intact_scorer.score_by_head(texts)[rest], atol=1e-5)
    assert scorer.failure_reason == "RuntimeError: no kernel for this"
    assert len(caplog.records) == 1 and "oo" not in caplog.text
    assert not intact_scorer.failure_reason


def test_a_tokenizer_failure_affects_only_its_text(small_checkpoint, monkeypatch):
    scorer = DetoxifyScorer(build_config(small_checkpoint))
    encoded = scorer._tokenize_into_windows

    def fail_on_text(texts):
        if any("q" in text for text in texts):
            raise ValueError(f"cannot read {texts}")
        return encoded(texts)

    monkeypatch.setattr(scorer, "_tokenize_into_windows", fail_on_text)
    assert np.isnan(scorer.score_toxicity(["one", "quite", "two"])).tolist() == [False, True, False]
    assert scorer.failure_reason == "ValueError"  # The message may quote the text.


def test_a_failure_of_the_linear_scorer_affects_only_its_text(monkeypatch):
    scorer = LinearScorer()
    right, probabilities = (
        scorer.score_toxicity(["fine", "worse", "fine"]),
        scorer._predict_probabilities,
    )

    def fail_on_text(texts):
        if "worse" in texts:
            raise RuntimeError("no")
        return probabilities(texts)

    monkeypatch.setattr(scorer, "_predict_probabilities", fail_on_text)
    np.testing.assert_array_equal(
        scorer.score_toxicity(["fine", "worse", "fine"]), [right[0], np.nan, right[0]]
    )
    heads = scorer.score_by_head(["fine"])
    assert np.isnan(heads[0, 1:]).all() and heads.shape == (1, len(TOXICITY_HEADS))


def test_a_long_text_gets_the_highest_score_of_its_windows(small_checkpoint):
    import torch

    scorer = DetoxifyScorer(build_config(small_checkpoint, window_tokens=16))
    words = " ".join("abcdefghijklmnopqrstuvwxyz"[i % 26] for i in range(40))
    ids = scorer._tokenizer(words, add_special_tokens=False)["input_ids"]
    cls, sep = scorer._tokenizer.cls_token_id, scorer._tokenizer.sep_token_id
    # 14 tokens plus two special ones; they overlap by 3, so a window starts every 11 tokens.
    expected = []
    for start in (0, 11, 22, 33):
        window = [cls, *ids[start : start + 14], sep]
        logits = scorer._model(torch.tensor([window])).logits
        expected.append(torch.sigmoid(logits)[0, 0].item())
        if start + 14 >= len(ids):
            break
    assert len(expected) == 4
    np.testing.assert_allclose(scorer.score_toxicity([words])[0], max(expected), atol=1e-6)


def test_a_network_that_returns_nan_gives_missing_scores(small_checkpoint):
    scorer = DetoxifyScorer(build_config(small_checkpoint))
    scorer._model.classifier.bias.data.fill_(float("nan"))
    assert np.isnan(scorer.score_toxicity(["some text"])).all()


def test_the_detoxify_digest_is_the_hash_of_the_checkpoint(small_checkpoint):
    expected = hashlib.sha256(small_checkpoint[0].read_bytes()).hexdigest()
    config = build_config(small_checkpoint)
    assert open_scorer(config).digest == expected
    assert scorer_versions(config)["digest"] == expected


def test_a_checkpoint_with_another_hash_is_rejected(small_checkpoint):
    with pytest.raises(HallmarkError, match=r"has SHA-256 .* not the expected 0000"):
        open_scorer(build_config(small_checkpoint, sha256="0" * 64))


def test_a_changed_download_is_rejected(small_checkpoint, tmp_path, monkeypatch):
    """The hash recorded at the first download is compared with the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "hallmark" / "detoxify"
    folder.mkdir(parents=True)
    data = small_checkpoint[0].read_bytes()
    file = folder / "toxic_debiased-c7548aa0.ckpt"
    file.write_bytes(data)
    config = ScorerConfig(kind="detoxify", base_model_folder=small_checkpoint[1])
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


def test_a_checkpoint_never_runs_code(small_checkpoint, tmp_path):
    marker = tmp_path / "ran"
    file = tmp_path / "hostile.ckpt"
    file.write_bytes(pickle.dumps({"config": Hostile(marker), "state_dict": {}}))
    with pytest.raises(HallmarkError, match="not a Detoxify checkpoint"):
        open_scorer(
            ScorerConfig(kind="detoxify", checkpoint=file, base_model_folder=small_checkpoint[1])
        )
    assert not marker.exists()
    pickle.loads(file.read_bytes())  # The file does run code if unpickled.
    assert marker.exists()


def test_missing_weights_are_rejected(small_checkpoint, tmp_path):
    checkpoint, base = make_checkpoint(tmp_path, leave_out="classifier.weight")
    with pytest.raises(HallmarkError, match=r"lacks 1 weight of .*classifier\.weight"):
        open_scorer(ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": Path("no/such.ckpt")}, "does not exist"),
        ({"base_model_folder": Path("no/such/folder")}, r"has no config\.json"),
    ],
)
def test_missing_files_are_reported_in_one_sentence(small_checkpoint, changes, message):
    with pytest.raises(HallmarkError, match=message) as caught:
        open_scorer(build_config(small_checkpoint).model_copy(update=changes))
    assert "\n" not in str(caught.value)


class NumberScorer(Scorer):
    """Returns the number that each text spells as its toxicity; fails on other texts."""

    name, digest, heads = "numbers", "0" * 64, ("toxicity",)

    def _score_distinct_texts(self, texts):
        scores = np.full((len(texts), len(self.columns)), np.nan, np.float32)
        scores[:, self.columns.index("toxicity")] = [float(text) for text in texts]
        return scores


def test_a_scorer_that_raises_on_a_text_scores_the_others():
    scorer = NumberScorer()
    scores = scorer.score_toxicity(["0.25", "secret", "1", "", "0.25"])
    np.testing.assert_array_equal(scores, np.float32([0.25, np.nan, 1, np.nan, 0.25]))
    assert scorer.failure_reason == "ValueError" and not scorer.has_invalid_scores


@pytest.mark.parametrize(("logit", "shown"), [("4.25", "4.25"), ("-0.5", "-0.5")])
def test_a_score_outside_its_range_is_missing(logit, shown):
    scorer = NumberScorer()
    scores = scorer.score_toxicity(["0.25", logit, "1.00001"])
    np.testing.assert_array_equal(scores, np.float32([0.25, np.nan, 1.00001]))
    assert scorer.has_invalid_scores
    assert scorer.failure_reason == (
        f"it returned scores outside the range from 0 to 1, such as {shown}, which may be logits"
    )


def test_every_scorer_is_found_and_offered():
    assert {*SCORER_CLASSES} == {"linear", "detoxify", "words", "classifier", "vader"}
    schema = ScorerConfig.model_json_schema()["properties"]["kind"]
    assert schema["enum"] == ["detoxify", "linear"] and schema["default"] == "linear"
    with pytest.raises(ValidationError, match="'detoxify' or 'linear'"):
        ScorerConfig(kind="words")


def test_two_scorers_of_the_same_kind_are_refused():
    with pytest.raises(HallmarkError, match="two scorers declare the kind 'linear'"):

        class OtherLinear(LinearScorer):
            kind = "linear"

    assert SCORER_CLASSES["linear"] is LinearScorer


def test_the_code_of_the_scorer_that_is_used_counts_and_no_other(monkeypatch, small_checkpoint):
    """Its module is no import of the stages that score."""
    from hallmark.tasks.contract import code_digests
    from tests.tasks.contract.code_caches import clear_code_caches

    configs = [ScorerConfig(), build_config(small_checkpoint)]
    before = [scorer_versions(config)["code"] for config in configs]
    read_statements = code_digests.read_statements
    clear_code_caches()

    def read_edited_statements(path):
        statements = read_statements(path)
        if path.name == "linear.py":
            statements = tuple(statement._replace(digest="edited") for statement in statements)
        return statements

    monkeypatch.setattr(code_digests, "read_statements", read_edited_statements)
    after = [scorer_versions(config)["code"] for config in configs]
    clear_code_caches()
    assert before[0] != after[0] and before[1] == after[1]


def test_every_stage_that_opens_scorers_depends_on_their_versions():
    from hallmark.flows.flow_registry import register_all_stages
    from hallmark.tasks.contract import STAGES

    register_all_stages()
    scoring = {
        name
        for name, stage in STAGES.items()
        if stage.body.__module__.startswith("hallmark.")
        and "hallmark.tasks.measures.scorers" in stage.compute_code_digests()
    }
    assert scoring == {"profile", "score_toxicity", "score", "removal_effects", "score_samples"}
    assert all(STAGES[name].external_digests for name in scoring)
