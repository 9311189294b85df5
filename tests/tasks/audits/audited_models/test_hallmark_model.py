"""Our own encoders and encoder-decoders as subjects, against one forward pass a token."""

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
def both(tmp_path_factory):
    base = tmp_path_factory.mktemp("own")
    folder = make_own(base, [GAP, NEXT], architecture="encoder_decoder", positions="rope")
    return open_audited_model(folder, device="cpu")


def next_token(subject, source, written):
    """log p (V,) of the next token, by a pass without cache, padding or batch."""
    with torch.inference_mode():
        scores = logits(subject.model, torch.tensor([written]), source=torch.tensor([source]))
    return scores[0, -1].log_softmax(-1)


def by_steps(subject, source, ids):
    start = [0, subject.sentinel_id]
    return [next_token(subject, source, [*start, *ids[:i]])[t].item() for i, t in enumerate(ids)]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return open_audited_model(
        make_own(tmp_path_factory.mktemp("own"), objective="prefix"), device="cpu"
    )


def behind(subject, prompt, text):
    """log p of each token of a text behind a prompt that is seen in full."""
    scores = []
    for i, token in enumerate(text):
        with torch.inference_mode():
            ids, given = torch.tensor([[*prompt, *text[:i]]]), torch.tensor([len(prompt)])
            scores.append(logits(subject.model, ids, prefix=given)[0, -1].log_softmax(-1)[token])
    return float(sum(scores))


def test_a_prefix_model_reads_what_is_given_in_both_directions(prefix):
    prompt = prefix.prepend_bos_id(prefix.encode("The nurse said that"))
    ends = [prefix.encode(t) for t in (" she would be late.", " he", " no")]
    expected = [behind(prefix, prompt, end) for end in ends]
    found = [p.sum() for p in prefix.compute_target_log_probs([prompt] * len(ends), ends)]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    long = [*ends, prefix.encode(LONG)[:60]]  # does not fit: windows take over
    windowed = [p.sum() for p in prefix.compute_target_log_probs([prompt] * len(long), long)[:3]]
    np.testing.assert_allclose(windowed, expected, atol=1e-3)
    context, text = "The nurse said that", " she would be late."
    line = prefix.prepend_bos_id(prefix.encode(context + text))
    shared = len(prompt)
    assert line[:shared] == prompt
    totals, counts = prefix.compute_log_likelihoods([text], [context])
    assert counts[0] == len(line) - shared
    assert totals[0] == pytest.approx(behind(prefix, prompt, line[shared:]), abs=1e-3)
    (made,) = prefix.generate_token_ids([prompt], max_new_tokens=1, temperature=0)[0]
    with torch.inference_mode():
        given = torch.tensor([len(prompt)])
        first = logits(prefix.model, torch.tensor([prompt]), prefix=given)[0, -1].clone()
        first[1] = -torch.inf  # the padding token is never written
    assert made == [int(first.argmax())]


def test_an_older_decoder_is_asked_for_its_objective(tmp_path):
    folder = make_own(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["objective"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="does not name the training objective"):
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


def test_an_encoder_decoder_writes_a_text_from_nothing(both):
    ids = both.encode(TEXT)
    found = both.compute_log_probs([both.prepend_bos_id(ids), both.prepend_bos_id(ids)[:3], [0]])
    expected = by_steps(both, [both.sentinel_id], ids)
    np.testing.assert_allclose(found[0], expected, atol=1e-4)
    np.testing.assert_allclose(found[1], expected[:2], atol=1e-4)
    assert len(found[2]) == 0


def test_a_long_text_is_written_half_a_context_at_a_time(both):
    ids = both.encode(LONG)
    step = (both.context_length - 2) // 2
    assert len(ids) > 3 * step
    found = both.compute_log_probs([both.prepend_bos_id(ids)])[0]
    assert len(found) == len(ids)
    for begin in (0, step, 3 * step):
        read = ids[max(0, begin - both.context_length + 1) : begin]
        expected = by_steps(both, [*read, both.sentinel_id], ids[begin : begin + step])
        np.testing.assert_allclose(found[begin : begin + step], expected, atol=1e-4)


def test_what_is_given_goes_to_the_encoder(both):
    prefix = both.prepend_bos_id(both.encode("Numbers: 0 1"))
    ends = [both.encode(t) for t in (" 2 3 4", " 5", " and so on.")] + [[]]
    found = [p.sum() for p in both.compute_target_log_probs([prefix] * len(ends), ends)]
    source = [*both.encode("Numbers: 0 1"), both.sentinel_id]
    expected = [sum(by_steps(both, source, end)) for end in ends]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_greedy_answers_by_single_steps(both):
    prompts = ["The nurse", "We read the documentation, line", ""]
    made = both.generate_token_ids(
        [both.prepend_bos_id(both.encode(p)) for p in prompts], max_new_tokens=9, temperature=0
    )
    for prompt, (ids,) in zip(prompts, made, strict=True):
        source = [*both.encode(prompt), both.sentinel_id]
        written: list[int] = []
        while len(written) < 9:
            scores = next_token(both, source, [0, both.sentinel_id, *written])
            scores[[1, both.sentinel_id]] = -torch.inf
            token = int(scores.argmax())
            if token in both.stop_ids:
                break
            written.append(token)
        assert ids == written


def test_draws_depend_on_the_source_and_not_on_the_batch(both):
    prompts = ["The nurse", "", "The engineer said that he"]
    options = {"max_new_tokens": 12, "samples": 3, "top_p": 0.9, "seed": 5}
    together = both.generate_texts(prompts, **options)
    assert [both.generate_texts([prompt], **options)[0] for prompt in prompts] == together
    assert len({text for row in together for text in row}) > 6


def test_a_tokenizer_without_the_objectives_tokens_is_refused(tmp_path):
    folder = make_own(tmp_path, architecture="encoder")
    with pytest.raises(UsageError, match=r"no token <\|mask\|>"):
        open_audited_model(folder, device="cpu")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")])
def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path, damage):
    """Whether a model is opened or only asked for: that reads no weights."""
    folder = make_own(tmp_path)
    damage(folder / "tokenizer.json")
    for opened in (
        lambda: open_audited_model(folder, device="cpu"),
        lambda: open_audited_tokenizer(folder),
    ):
        with pytest.raises(UsageError, match=r"tokenizer"):
            opened()


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_model_of_pairs_is_no_language_model(tmp_path, architecture):
    """It answers a source; what it would say of texts that go on means nothing."""
    objective = "prefix" if architecture == "decoder" else "seq2seq"
    how = {"special": [GAP, NEXT], "objective": objective, "architecture": architecture}
    folder = make_own(tmp_path, pairs=True, **how)
    with pytest.raises(UsageError, match=r"was fine-tuned on pairs.* an audit needs a language"):
        open_audited_model(folder, device="cpu")
