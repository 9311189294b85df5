"""Several searches together give what each gives alone, for every kind of model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hallmark.model.batch import Batch
from hallmark.model.decoding.beam_search import (
    CachedModelScorer,
    decode_with_beam_search,
    run_beam_search,
)
from tests.model.oracles import TableScorer, naive_next_log_probs, tiny

PROMPTS = [[0, 5, 9], [0], [0, 7, 7, 3, 2], [4] * 6, [0, 5, 9, 2, 2, 8], [0, 3]]
SOURCES = [[5, 6, 7], [9], [3] * 16, [8, 2], [4, 4, 4, 9, 9], [60, 2, 2]]
KINDS = {
    "learned": {},
    "rotary": {"positions": "rope", "norm": "rmsnorm", "n_kv_heads": 2},
    "post-norm": {"norm_position": "post", "positions": "sinusoidal"},
    "prefix": {"positions": "rope"},
    "encoder-decoder": {"architecture": "encoder_decoder", "positions": "sinusoidal"},
}


def make_model_and_sources(kind):
    """Return a model whose texts sometimes end, and its sources if it has an encoder."""
    model = tiny(head_bias=True, **KINDS[kind])
    with torch.no_grad():
        model.head.bias[[0, 11]] += 3.0 if kind in ("learned", "rotary") else 1.0
    if kind == "prefix":
        model.objective = "prefix"
    return model, SOURCES if kind == "encoder-decoder" else None


def naive_scores(model, prompt, ids, source):
    """Compute the log-probability of each id after a prompt, without a cache."""
    totals = []
    for i, token in enumerate(ids):
        batch = Batch(torch.tensor([[*prompt, *ids[:i]]]))
        if source is not None:
            batch = replace(batch, source=torch.tensor([source]))
        if model.objective == "prefix":
            batch = replace(batch, prefix=torch.tensor([len(prompt)]))
        with torch.no_grad():
            totals.append(float(model.compute_logits(model(batch))[0, -1].log_softmax(-1)[token]))
    return totals


@pytest.mark.parametrize("stopping", ["textbook", "transformers"])
@pytest.mark.parametrize("kind", KINDS)
def test_searches_together_equal_each_search_alone(kind, stopping):
    model, sources = make_model_and_sources(kind)
    settings = {
        "width": 4,
        "max_new_tokens": 8,
        "stop": {0, 11},
        "normalisation": "gnmt",
        "stopping": stopping,
    }
    together = decode_with_beam_search(model, PROMPTS, sources=sources, **settings)
    small_batches = decode_with_beam_search(
        model, PROMPTS[::-1], sources=sources and sources[::-1], batch_rows=8, **settings
    )
    lengths = set()
    for i, prompt in enumerate(PROMPTS):
        source = sources and sources[i]
        (alone,) = decode_with_beam_search(
            model, [prompt], sources=sources and [source], **settings
        )
        assert len(together[i]) == 4
        for other in (alone, small_batches[::-1][i]):
            assert [h.ids for h in together[i]] == [h.ids for h in other]
            assert [h.complete for h in together[i]] == [h.complete for h in other]
            for name in ("score", "log_prob"):
                values = [[getattr(h, name) for h in found] for found in (together[i], other)]
                assert values[0] == pytest.approx(values[1], abs=1e-4)
        for h in together[i]:
            expected = naive_scores(model, prompt, h.ids, source)
            assert h.log_probs == pytest.approx(expected, abs=1e-3)
            assert h.log_prob == pytest.approx(sum(h.log_probs))
            assert h.complete == (h.ids[-1] in (0, 11)) and not {0, 11} & set(h.ids[:-1])
            lengths.add(len(h.ids))
    assert len(lengths) > 3  # the searches ended at different steps


def naive_search(log_probs, width, longest, stop):
    """Search with Jurafsky & Martin's algorithm, literally, one history at a time."""
    frontier, complete = [((), 0.0)], []
    while width and frontier:
        extended = [
            ((*ids, token), total + value)
            for ids, total in frontier
            for token, value in enumerate(log_probs(ids))
        ]
        extended = sorted(extended, key=lambda h: -h[1])[:width]
        ended = [h for h in extended if h[0][-1] in stop]
        complete += ended
        width -= len(ended)
        frontier = [h for h in extended if h[0][-1] not in stop]
        if frontier and len(frontier[0][0]) == longest:
            complete, frontier = complete + frontier, []
    return sorted(complete, key=lambda h: -h[1])


@pytest.mark.parametrize("width", [1, 2, 5])
def test_searches_together_equal_the_published_algorithm(width):
    tables = [{}, {}, {}, {}]

    def probabilities(i):
        random = np.random.default_rng(i)
        sharp = np.ones(5) * (0.3, 1.0, 3.0, 0.1)[i]

        def probabilities_after(history):
            return tables[i].setdefault(history, random.dirichlet(sharp).tolist())

        return probabilities_after

    together = run_beam_search(
        TableScorer(*map(probabilities, range(4))), width=width, max_new_tokens=6, stop={3, 4}
    )
    ends = set()
    for table, hypotheses in zip(tables, together, strict=True):
        expected = naive_search(
            lambda ids, table=table: [math.log(p) for p in table[ids]], width, 6, {3, 4}
        )
        assert [h.ids for h in hypotheses] == [ids for ids, _ in expected]
        assert [h.log_prob for h in hypotheses] == pytest.approx([total for _, total in expected])
        ends.add(max(len(h.ids) for h in hypotheses))
    assert len(ends) > 1 or width == 5


def naive_search_like_transformers(log_probs, width, longest, stop):
    """Move ended texts to a list of the best, which the rest must be able to beat.

    Scores are means.
    """
    live, ended = [((), 0.0)], []
    for length in range(1, longest + 1):
        extended = [
            ((*ids, token), total + value)
            for ids, total in live
            for token, value in enumerate(log_probs(ids))
        ]
        extended.sort(key=lambda h: -h[1])
        out = [h for h in extended[:width] if h[0][-1] in stop or length == longest]
        ended = sorted(ended + [(ids, total / length) for ids, total in out], key=lambda h: -h[1])
        ended = ended[:width]
        live = [h for h in extended if h[0][-1] not in stop][:width]
        if length == longest or (len(ended) == width and live[0][1] / length <= ended[-1][1]):
            return ended


@pytest.mark.parametrize("stop", [{5}, {0, 3, 4, 5}])
@pytest.mark.parametrize("likely", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("width", [1, 3, 5])
def test_searches_equal_the_stopping_rule_of_transformers(width, likely, stop):
    """The end may be the most probable word everywhere: then all of the best end at once."""
    for seed in range(20):
        random, table = np.random.default_rng(seed), {}
        shape = [likely / 2, 1.0, 1.0, 1.0, 1.0, likely]

        def probabilities(history, table=table, random=random, shape=shape):
            return table.setdefault(history, random.dirichlet(shape).tolist())

        (hypotheses,) = run_beam_search(
            TableScorer(probabilities),
            width=width,
            max_new_tokens=5,
            stop=stop,
            normalisation="mean",
            stopping="transformers",
        )
        expected = naive_search_like_transformers(
            lambda ids, after=probabilities: [math.log(p) for p in after(ids)], width, 5, stop
        )
        assert [h.ids for h in hypotheses] == [ids for ids, _ in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score in expected])


def test_a_scorer_reads_at_most_max_new_tokens():
    scorer = CachedModelScorer(tiny(), [[0, 5], [0]], max_new_tokens=3)
    scorer.score_first_tokens()
    for token in (7, 8, 9):
        scores = scorer.score_next_tokens([0, 1], [token, token])
    assert scores[1].tolist() == pytest.approx(
        naive_next_log_probs(tiny(), [0, 7, 8, 9]).tolist(), abs=1e-4
    )
    with pytest.raises(ValueError, match=r"than the scorer's max_new_tokens allows \(3\)"):
        scorer.score_next_tokens([0, 1], [4, 4])


def test_forbidden_tokens_are_in_no_hypothesis_and_do_not_change_scores():
    model, _ = make_model_and_sources("learned")
    (free,) = decode_with_beam_search(model, [[0, 5]], width=4, max_new_tokens=5, forbid=())
    best = free[0].ids[0]
    (hypotheses,) = decode_with_beam_search(
        model, [[0, 5]], width=4, max_new_tokens=5, forbid=(best,)
    )
    assert all(best not in h.ids for h in hypotheses)
    for h in hypotheses:
        expected = naive_scores(model, [0, 5], h.ids, None)
        assert h.log_probs == pytest.approx(expected, abs=1e-3)


def test_no_prompts_give_no_results():
    assert decode_with_beam_search(tiny(), [], width=2, max_new_tokens=3) == []
