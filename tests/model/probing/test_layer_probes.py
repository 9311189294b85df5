"""Linear probes against scikit-learn, and the states of every layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.decoding.activations import compute_contextual_embeddings
from hallmark.model.probing.layer_probes import (
    compute_token_states,
    evaluate_layer_probes,
    fit_linear_probe,
)
from tests.model.oracles import tiny


def make_classes(n=90, d=5, classes=3, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    centres = random.normal(size=(classes, d))
    features = centres[labels] + random.normal(size=(n, d)) * (1.0, 3.0, 0.2, 1.0, 1.0)
    return features + 4.0, labels


@pytest.mark.parametrize("penalty", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_probe_equals_scikit_learns_logistic_regression(penalty, classes):
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = make_classes(classes=classes)
    features[:, 4] = 7.0  # never varies
    probe = fit_linear_probe(features, labels.tolist(), classes, penalty=penalty)
    x = (features - features.mean(0)) / np.where(features.std(0) > 0, features.std(0), 1.0)
    theirs = linear_model.LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
    if classes == 2:
        # For two classes scikit-learn fits one vector, w = w1 - w0, whose penalty is twice as
        # large.
        theirs.set_params(C=2 / penalty)
    theirs.fit(x, labels)
    fresh, _ = make_classes(seed=1)
    again = (fresh - features.mean(0)) / np.where(features.std(0) > 0, features.std(0), 1.0)
    np.testing.assert_allclose(
        probe.predict_log_probs(fresh), theirs.predict_log_proba(again), atol=1e-4
    )


def test_the_gradient_of_a_fitted_probe_is_zero():
    """W and b satisfy sum (p - onehot) x + penalty W = 0 and sum (p - onehot) = 0."""
    features, labels = make_classes()
    probe = fit_linear_probe(features, labels.tolist(), 3, penalty=2.0)
    x = (features - probe.mean) / probe.std
    error = np.exp(probe.predict_log_probs(features)) - np.eye(3)[labels]  # (n, C)
    np.testing.assert_allclose(error.T @ x + 2.0 * probe.weight, 0, atol=1e-4)
    np.testing.assert_allclose(error.sum(0), 0, atol=1e-4)


@pytest.mark.parametrize(
    ("features", "labels", "settings", "words"),
    [
        (np.ones((3, 2)), [0, 1], {}, "one label per row, but got 2 for 3 rows"),
        (np.ones((0, 2)), [], {}, "at least one row of features"),
        (np.ones((2, 2)), [0, 2], {}, "integers from 0 to 1"),
        (np.ones((2, 2)), [0, -1], {}, "integers from 0 to 1"),
        (np.ones((2, 2)), [0.5, 1], {}, "integers from 0 to 1"),
        (np.ones((2, 2)), [0, 1], {"penalty": 0.0}, "penalty must be positive"),
    ],
)
def test_invalid_probe_data_are_refused(features, labels, settings, words):
    with pytest.raises(ValueError, match=words):
        fit_linear_probe(features, labels, 2, **settings)


SEQUENCES = [
    np.random.default_rng(i).integers(2, 61, n).tolist() for i, n in enumerate((3, 16, 1, 8, 5))
]
PLACES = [-1, 4, 0, 7, -5]


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder_decoder"])
def test_token_states_equal_the_embeddings_of_each_layer(architecture, batch_tokens):
    model = tiny(architecture=architecture, n_layers=3)
    states_by_layer = compute_token_states(model, SEQUENCES, PLACES, batch_tokens=batch_tokens)
    assert states_by_layer.shape == (4, 5, 32)
    for layer, states in enumerate(states_by_layer):
        embeddings = compute_contextual_embeddings(model, SEQUENCES, layer=layer)
        expected = np.stack([rows[place] for rows, place in zip(embeddings, PLACES, strict=True)])
        np.testing.assert_allclose(states, expected, atol=1e-5)


def test_probes_find_what_each_layer_represents():
    """The input embedding represents the last token, but not the first, which needs attention."""
    torch.manual_seed(0)
    model = tiny(n_layers=1)
    random = np.random.default_rng(0)
    texts = random.integers(2, 61, (120, 4))
    last, first = random.integers(0, 2, (2, 120))
    texts[:, 3], texts[:, 0] = np.array([8, 9])[last], np.array([20, 21])[first]
    held_out = np.arange(120) % 3 == 0
    arguments = (model, texts.tolist(), [-1] * 120)
    last_token_scores = evaluate_layer_probes(
        *arguments, last.tolist(), held_out.tolist(), class_count=2
    )
    assert [(score.layer, score.accuracy, score.n) for score in last_token_scores] == [
        (0, 1.0, 40),
        (1, 1.0, 40),
    ]
    below, above = evaluate_layer_probes(
        *arguments, first.tolist(), held_out.tolist(), class_count=2
    )
    majority_class = np.bincount(first[~held_out]).argmax()
    assert (
        below.majority_accuracy
        == above.majority_accuracy
        == (first[held_out] == majority_class).mean()
    )
    assert below.accuracy < 0.8 < above.accuracy and above.log_loss < below.log_loss


@pytest.mark.parametrize(
    ("sequences", "positions", "held_out", "words"),
    [
        ([[2], [3]], [0, 1], [True, False], "Sequence 1 has no token at position 1"),
        ([[2], []], [0, 0], [True, False], "Sequence 1 has no token at position 0"),
        (
            [[2], [3]],
            [0],
            [True, False],
            "one position per sequence, but got 1 for 2 sequences",
        ),
        ([[2], [61]], [0, 0], [True, False], "Token id 61"),
        ([[2], [3] * 17], [0, 0], [True, False], "exceeds the context"),
        ([[2], [3]], [0, 0], [True, True], "is_held_out must be true for some sequences"),
        ([[2], [3]], [0, 0], [False, False], "is_held_out must be true for some sequences"),
        ([[2], [3]], [0, 0], [True], "one label and one is_held_out value"),
    ],
)
def test_invalid_probe_sequences_are_refused(sequences, positions, held_out, words):
    with pytest.raises(ValueError, match=words):
        evaluate_layer_probes(tiny(), sequences, positions, [0, 1], held_out, class_count=2)
