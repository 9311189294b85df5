"""The comparison of decoding methods: limits at which they agree, draws and settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.decoding.method_comparison import DecodingMethods, decode_with_every_method
from tests.model.oracles import naive_generate, tiny


def test_methods_limited_to_one_token_equal_greedy():
    """Top-1, a tiny nucleus, min-p 1 and a beam of one are all greedy decoding."""
    model, prompt = tiny(), [0, 5, 9]
    strictest = DecodingMethods(
        width=1,
        temperature=1e-4,
        top_k=1,
        top_p=1e-6,
        min_p=1.0,
        repetition_penalty=1.0,
        first_temperature=1e-4,
    )
    settings = {"max_new_tokens": 10, "stop": (), "forbid": ()}
    outputs = decode_with_every_method(model, prompt, methods=strictest, **settings)
    ids, scores = naive_generate(model, prompt, 10, lambda log_p, _: int(log_p.argmax()))
    assert [output.method for output in outputs][:2] == ["greedy", "beam search"] and len(
        outputs
    ) == 9
    for output in outputs:
        if output.method == "falling temperature":  # only its first token is greedy
            assert output.ids[:1] == ids[:1]
        elif output.method != "sampling":
            assert output.ids == ids and not output.stopped
            np.testing.assert_allclose(output.log_probs, scores, atol=1e-4)


def test_methods_draw_with_the_same_random_numbers():
    """Filters that keep everything give the texts of plain sampling."""
    model = tiny()
    all_kept = DecodingMethods(
        temperature=1.0, top_k=61, top_p=1.0, min_p=0.0, first_temperature=1.0
    )
    outputs = decode_with_every_method(model, [0, 5], max_new_tokens=12, methods=all_kept, seed=3)
    texts = {output.method: output.ids for output in outputs}
    assert texts["sampling"] == texts["temperature"] == texts["top-k"] == texts["nucleus"]
    assert texts["sampling"] == texts["min-p"] == texts["falling temperature"] != texts["greedy"]


def test_beams_are_ranked_by_the_mean():
    outputs = decode_with_every_method(tiny(), [0, 5], max_new_tokens=8)
    (beam_output,) = (output for output in outputs if output.method == "beam search")
    assert beam_output.score == pytest.approx(float(beam_output.log_probs.mean()), abs=1e-5)
    assert beam_output.settings == {"width": 5, "normalisation": "mean"}


def test_texts_end_at_the_end_symbol():
    model = tiny(head_bias=True)
    with torch.no_grad():
        model.head.bias[0] += 50
    for one in decode_with_every_method(model, [0, 5], max_new_tokens=8):
        assert one.ids == [0] and one.stopped


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"width": 0}, "width"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"first_temperature": 0.0}, "first_temperature must be at least 0.0001, not 0.0"),
    ],
)
def test_settings_out_of_range_are_named(setting, words):
    with pytest.raises(ValueError, match=words):
        DecodingMethods(**setting)
