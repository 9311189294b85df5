"""Test Hallmark encoders and encoder-decoders against one forward pass per token."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.contract import HallmarkError, UsageError
from tests.model.oracles import logits
from tests.tasks.audits.conftest import make_own

TEXT = "The nurse said that she would be late."
LONG = " ".join(["The engineer said that he would be early, as always."] * 8)
GAP, NEXT = "<|sentinel_0|>", "<|sentinel_1|>"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = make_own(tmp_path_factory.mktemp("own"), ["<|mask|>"], architecture="encoder")
    return open_audited_model(folder, device="cpu")


@pytest.fixture(scope="module")
def encoder_decoder(tmp_path_factory):
    base = tmp_path_factory.mktemp("own")
    folder = make_own(base, [GAP, NEXT], architecture="encoder_decoder", positions="rope")
    return open_audited_model(folder, device="cpu")


def compute_next_log_probs(model, source, written):
    """Compute the log probabilities (V,) of the next token without cache, padding or batch."""
    with torch.inference_mode():
        scores = logits(model.model, torch.tensor([written]), source=torch.tensor([source]))
    return scores[0, -1].log_softmax(-1)


def compute_stepwise_log_probs(model, source, ids):
    start = [0, model.sentinel_id]
    return [
        compute_next_log_probs(model, source, [*start, *ids[:i]])[t].item()
        for i, t in enumerate(ids)
    ]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return open_audited_model(
        make_own(tmp_path_factory.mktemp("own"), objective="prefix"), device="cpu"
    )


def sum_log_probs_after(model, prompt, text):
    """Sum the log probabilities of a text after a prompt that is read in both directions."""
    scores = []
    for i, token in enumerate(text):
        with torch.inference_mode():
            ids, prefix_lengths = torch.tensor([[*prompt, *text[:i]]]), torch.tensor([len(prompt)])
            scores.append(
                logits(model.model, ids, prefix=prefix_lengths)[0, -1].log_softmax(-1)[token]
            )
    return float(sum(scores))


def test_a_prefix_model_reads_the_prompt_in_both_directions(prefix):
    prompt = prefix.prepend_bos_id(prefix.encode("The nurse said that"))
    ends = [prefix.encode(t) for t in (" she would be late.", " he", " no")]
    expected = [sum_log_probs_after(prefix, prompt, end) for end in ends]
    totals_of_ends = [p.sum() for p in prefix.compute_target_log_probs([prompt] * len(ends), ends)]
    np.testing.assert_allclose(totals_of_ends, expected, atol=1e-3)
    long = [*ends, prefix.encode(LONG)[:60]]  # too long for the context, so windows are used
    windowed = [p.sum() for p in prefix.compute_target_log_probs([prompt] * len(long), long)[:3]]
    np.testing.assert_allclose(windowed, expected, atol=1e-3)
    context, text = "The nurse said that", " she would be late."
    line = prefix.prepend_bos_id(prefix.encode(context + text))
    shared = len(prompt)
    assert line[:shared] == prompt
    totals, counts = prefix.compute_log_likelihoods([text], [context])
    assert counts[0] == len(line) - shared
    assert totals[0] == pytest.approx(sum_log_probs_after(prefix, prompt, line[shared:]), abs=1e-3)
    (greedy_token,) = prefix.generate_token_ids([prompt], max_new_tokens=1, temperature=0)[0]
    with torch.inference_mode():
        prefix_lengths = torch.tensor([len(prompt)])
        first = logits(prefix.model, torch.tensor([prompt]), prefix=prefix_lengths)[0, -1].clone()
        first[1] = -torch.inf  # the padding token is never written
    assert greedy_token == [int(first.argmax())]


def test_a_decoder_without_an_objective_is_refused(tmp_path):
    folder = make_own(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["objective"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="does not specify the model's training objective"):
        open_audited_model(folder, device="cpu")


def test_an_encoder_is_scored_by_single_masks(encoder):
    ids = encoder.encode(TEXT)
    line = encoder.prepend_bos_id(ids)
    expected = []
    for place in range(1, len(line)):
        masked = [*line]
        masked[place] = encoder.tokenizer.token_to_id("<|mask|>")
        with torch.inference_mode():
            scores = logits(encoder.model, torch.tensor([masked]))[0, place]
        expected.append(scores.log_softmax(-1)[line[place]].item())
    np.testing.assert_allclose(encoder.compute_log_probs([line, line[:4]])[0], expected, atol=1e-4)
    assert encoder.model_kind == "masked"
    with pytest.raises(HallmarkError, match="cannot continue"):
        encoder.generate_texts([TEXT], max_new_tokens=3)


def test_an_encoder_decoder_scores_a_text_without_context(encoder_decoder):
    ids = encoder_decoder.encode(TEXT)
    log_probs = encoder_decoder.compute_log_probs(
        [encoder_decoder.prepend_bos_id(ids), encoder_decoder.prepend_bos_id(ids)[:3], [0]]
    )
    expected = compute_stepwise_log_probs(encoder_decoder, [encoder_decoder.sentinel_id], ids)
    np.testing.assert_allclose(log_probs[0], expected, atol=1e-4)
    np.testing.assert_allclose(log_probs[1], expected[:2], atol=1e-4)
    assert len(log_probs[2]) == 0


def test_a_long_text_is_scored_half_a_context_at_a_time(encoder_decoder):
    ids = encoder_decoder.encode(LONG)
    step = (encoder_decoder.context_length - 2) // 2
    assert len(ids) > 3 * step
    log_probs = encoder_decoder.compute_log_probs([encoder_decoder.prepend_bos_id(ids)])[0]
    assert len(log_probs) == len(ids)
    for begin in (0, step, 3 * step):
        read = ids[max(0, begin - encoder_decoder.context_length + 1) : begin]
        expected = compute_stepwise_log_probs(
            encoder_decoder, [*read, encoder_decoder.sentinel_id], ids[begin : begin + step]
        )
        np.testing.assert_allclose(log_probs[begin : begin + step], expected, atol=1e-4)


def test_the_encoder_reads_the_context(encoder_decoder):
    prefix = encoder_decoder.prepend_bos_id(encoder_decoder.encode("Numbers: 0 1"))
    ends = [encoder_decoder.encode(t) for t in (" 2 3 4", " 5", " and so on.")] + [[]]
    totals = [p.sum() for p in encoder_decoder.compute_target_log_probs([prefix] * len(ends), ends)]
    source = [*encoder_decoder.encode("Numbers: 0 1"), encoder_decoder.sentinel_id]
    expected = [sum(compute_stepwise_log_probs(encoder_decoder, source, end)) for end in ends]
    np.testing.assert_allclose(totals, expected, atol=1e-4)


def test_greedy_texts_equal_single_steps(encoder_decoder):
    prompts = ["The nurse", "We read the documentation, line", ""]
    generated = encoder_decoder.generate_token_ids(
        [encoder_decoder.prepend_bos_id(encoder_decoder.encode(p)) for p in prompts],
        max_new_tokens=9,
        temperature=0,
    )
    for prompt, (ids,) in zip(prompts, generated, strict=True):
        source = [*encoder_decoder.encode(prompt), encoder_decoder.sentinel_id]
        expected_ids: list[int] = []
        while len(expected_ids) < 9:
            scores = compute_next_log_probs(
                encoder_decoder, source, [0, encoder_decoder.sentinel_id, *expected_ids]
            )
            scores[[1, encoder_decoder.sentinel_id]] = -torch.inf
            token = int(scores.argmax())
            if token in encoder_decoder.stop_ids:
                break
            expected_ids.append(token)
        assert ids == expected_ids


def test_draws_depend_on_the_source_and_not_on_the_batch(encoder_decoder):
    prompts = ["The nurse", "", "The engineer said that he"]
    options = {"max_new_tokens": 12, "samples": 3, "top_p": 0.9, "seed": 5}
    together = encoder_decoder.generate_texts(prompts, **options)
    assert [
        encoder_decoder.generate_texts([prompt], **options)[0] for prompt in prompts
    ] == together
    assert len({text for row in together for text in row}) > 6


def test_a_tokenizer_without_special_tokens_of_the_objective_is_refused(tmp_path):
    folder = make_own(tmp_path, architecture="encoder")
    with pytest.raises(UsageError, match=r"no <\|mask\|> token"):
        open_audited_model(folder, device="cpu")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")])
def test_an_unreadable_tokenizer_is_refused(tmp_path, damage):
    """For the model and for its tokenizer alone."""
    folder = make_own(tmp_path)
    damage(folder / "tokenizer.json")
    for open_folder in (
        lambda: open_audited_model(folder, device="cpu"),
        lambda: open_audited_tokenizer(folder),
    ):
        with pytest.raises(UsageError, match=r"tokenizer"):
            open_folder()


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_model_trained_on_pairs_is_refused(tmp_path, architecture):
    """It answers a source, and its scores of continued text mean nothing."""
    objective = "prefix" if architecture == "decoder" else "seq2seq"
    options = {"special": [GAP, NEXT], "objective": objective, "architecture": architecture}
    folder = make_own(tmp_path, pairs=True, **options)
    with pytest.raises(
        UsageError, match=r"was fine-tuned on source-target pairs.* an audit needs a language"
    ):
        open_audited_model(folder, device="cpu")
