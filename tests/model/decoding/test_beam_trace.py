"""The chapters' examples of beam search, step by step, with scripted log-probabilities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hallmark.model.decoding.beam_search import run_beam_search
from tests.model.oracles import TableScorer

# The words and the search of *The green witch arrived* (Jurafsky & Martin, figures 10.22 and 10.23)
# with beam width 2: after each history, the log-probabilities of the words that are extended. All
# other words share the remaining probability.
WORDS = ["the", "green", "witch", "arrived", "mage", "who", "at", "by", "aardvark", "</s>"]
END = WORDS.index("</s>")
ARCS: dict[str, dict[str, float]] = {
    "": {"arrived": -1.6, "the": -0.92},
    "arrived": {"the": -0.69, "witch": -2.3},
    "the": {"green": -0.69, "witch": -1.2},
    "the green": {"witch": -0.51, "mage": -2.0},
    "the witch": {"arrived": -1.1, "who": -2.3},
    "the green witch": {"arrived": -0.36, "who": -1.6},
    "the witch arrived": {"at": -1.4, "by": -1.9},
    "the green witch arrived": {"</s>": -0.22, "at": -2.3},
    "the green witch who": {"arrived": -1.2},
}


def spell(ids):
    return " ".join(WORDS[i] for i in ids)


def witch_probabilities(history):
    arcs = {word: math.exp(log_p) for word, log_p in ARCS.get(spell(history), {}).items()}
    others = [word for word in WORDS[:-1] if word not in arcs]
    share = (1 - sum(arcs.values())) / len(others)
    return [arcs.get(word, share if word in others else 0.0) for word in WORDS]


def test_the_green_witch_arrived_step_by_step():
    scorer = TableScorer(witch_probabilities)
    (hypotheses,) = run_beam_search(scorer, width=2, max_new_tokens=5, stop={END})
    assert [[spell(history) for history in frontier] for frontier in scorer.frontiers] == [
        ["the", "arrived"],
        ["the green", "the witch"],
        ["the green witch", "the witch arrived"],
        ["the green witch arrived", "the green witch who"],
    ]
    # The best is complete, and keeps its place in the beam.
    assert [(spell(h.ids), h.complete) for h in hypotheses] == [
        ("the green witch arrived </s>", True),
        ("the green witch arrived at", False),
    ]
    assert hypotheses[0].log_prob == pytest.approx(-0.92 - 0.69 - 0.51 - 0.36 - 0.22)
    assert hypotheses[1].log_prob == pytest.approx(-0.92 - 0.69 - 0.51 - 0.36 - 2.3)


@pytest.mark.parametrize(
    "sums",
    [
        {"the": -0.92, "arrived": -1.6},
        {"the green": -1.61, "the witch": -2.12, "arrived the": -2.29, "arrived witch": -3.9},
        {
            "the green witch": -2.12,
            "the witch arrived": -3.22,
            "the green mage": -3.61,
            "the witch who": -4.42,
        },
    ],
)
def test_log_probabilities_add_up_along_the_trace(sums):
    """log P(y|x) of a text so far is the sum over its words (figure 10.23)."""
    (length,) = {len(text.split()) for text in sums}
    (hypotheses,) = run_beam_search(
        TableScorer(witch_probabilities), width=10, max_new_tokens=length, stop={END}
    )
    scores = {spell(h.ids): h.log_prob for h in hypotheses}
    assert list(scores)[: len(sums)] == list(sums)  # the best first
    assert [scores[text] for text in sums] == pytest.approx(list(sums.values()))


A, B, STOP = range(3)
#: The second search tree, over {a, b, </s>}: the most probable first word has improbable
#: successors.
SECOND_TREE = {
    (): [0.48, 0.40, 0.12],
    (A,): [0.34, 0.33, 0.33],
    (B,): [0.05, 0.05, 0.90],
    (A, A): [0.4, 0.3, 0.3],
    (A, B): [0.3, 0.4, 0.3],
}


def second_probabilities(history):
    return SECOND_TREE.get(history, [0.2, 0.2, 0.6])


def enumerate_complete_texts(probabilities, longest, vocabulary, end):
    """Return all complete texts of at most ``longest`` tokens with their log-probabilities."""
    texts = {}
    for length in range(1, longest + 1):
        for body in itertools.product(
            [w for w in range(vocabulary) if w != end], repeat=length - 1
        ):
            ids = (*body, end)
            texts[ids] = sum(math.log(probabilities(ids[:i])[t]) for i, t in enumerate(ids))
    return texts


def test_on_the_second_tree_greedy_fails_and_a_beam_equals_exhaustive_search():
    texts = enumerate_complete_texts(second_probabilities, 4, 3, STOP)
    assert len(texts) == 1 + 2 + 4 + 8
    best = max(texts, key=texts.get)
    assert best == (B, STOP) and texts[best] == pytest.approx(math.log(0.36))
    ((greedy,),) = run_beam_search(
        TableScorer(second_probabilities), width=1, max_new_tokens=4, stop={STOP}
    )
    assert greedy.ids[0] == A and greedy.log_prob < texts[best]
    (hypotheses,) = run_beam_search(
        TableScorer(second_probabilities), width=2, max_new_tokens=4, stop={STOP}
    )
    assert hypotheses[0].ids == best and hypotheses[0].log_prob == pytest.approx(texts[best])
    (wide_beam,) = run_beam_search(
        TableScorer(second_probabilities), width=31, max_new_tokens=4, stop={STOP}
    )
    for hypothesis in wide_beam:
        if hypothesis.complete:
            assert hypothesis.log_prob == pytest.approx(texts[hypothesis.ids])
    assert {h.ids for h in wide_beam if h.complete} == texts.keys()


@pytest.mark.parametrize("width", [5, 6, 7, 8, 9, 10])
@pytest.mark.parametrize("stopping", ["textbook", "transformers"])
def test_the_usual_widths_return_all_results_with_their_scores(width, stopping):
    """There are k results, best first, each with the sum of its steps."""
    random = np.random.default_rng(width)
    table: dict[tuple[int, ...], list[float]] = {}

    def probabilities(history):
        return table.setdefault(history, random.dirichlet(np.ones(6)).tolist())

    (hypotheses,) = run_beam_search(
        TableScorer(probabilities),
        width=width,
        max_new_tokens=6,
        stop={5},
        normalisation="mean",
        stopping=stopping,
    )
    assert len(hypotheses) == width == len({h.ids for h in hypotheses})
    for h in hypotheses:
        total = sum(math.log(table[h.ids[:i]][token]) for i, token in enumerate(h.ids))
        assert h.log_prob == pytest.approx(total)
        assert h.score == pytest.approx(total / len(h.ids))
        assert h.complete == (h.ids[-1] == 5) and 5 not in h.ids[:-1]
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
