"""Linear probes: what can be read off each layer of a frozen model (Tenney et al. 2019).

A probe is a logistic regression on the states of a layer; where it does well, the layer tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.architecture import Transformer
from model.decoding.inside import states_of_layers
from model.decoding.mode import asks
from model.rows import by_length, check_ids, padded
from model.tokens import Tokens

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Probe:
    """p(class | x) = softmax(W (x - mean) / std + b); weight (C, d), bias (C,), mean, std (d,)."""

    weight: Float64
    bias: Float64
    mean: Float64
    std: Float64

    def log_probs(self, features: Float32 | Float64) -> Float64:
        """log p of each class, (n, C), for features (n, d)."""
        scores = ((features - self.mean) / self.std) @ self.weight.T + self.bias
        return torch.from_numpy(scores).log_softmax(-1).numpy()


@dataclass(frozen=True)
class LayerScore:
    """How a layer's probe does on what it was not fitted on: 0 is the input embedding.

    majority: the accuracy of always saying the class that is most frequent in training. n: how
    many were asked. log_loss in nats.
    """

    layer: int
    accuracy: float
    log_loss: float
    majority: float
    n: int


def fit_probe(
    features: Float32 | Float64, labels: Sequence[int], classes: int, *, penalty: float = 1.0
) -> Probe:
    """The multinomial logistic regression of ``labels`` (n,) on features (n, d), by L-BFGS.

    Minimises the summed cross-entropy + penalty/2 |W|^2 over standardised features; the bias is
    not penalised. That is scikit-learn's LogisticRegression(C=1/penalty) behind a StandardScaler.
    A feature that never varies keeps a scale of 1.
    """
    answers = np.asarray(labels)
    if len(answers) != len(features) or not len(answers):
        raise ValueError(f"{len(features)} features need as many labels, not {len(answers)}.")
    if answers.dtype.kind not in "iu" or answers.min() < 0 or answers.max() >= classes:
        raise ValueError(f"Labels must be classes, 0 to {classes - 1}.")
    if not penalty > 0.0:
        raise ValueError(f"penalty must be positive, not {penalty}.")
    x = np.asarray(features, dtype=np.float64)
    mean, std = x.mean(0), x.std(0)
    std[std == 0.0] = 1.0
    inputs, wanted = torch.from_numpy((x - mean) / std), torch.from_numpy(answers.astype(np.int64))
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [weight, bias], max_iter=1000, tolerance_grad=1e-7 * len(x), tolerance_change=1e-12,
        history_size=20, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        search.zero_grad()
        nats = cross_entropy(inputs @ weight.T + bias, wanted, reduction="sum")
        total = nats + 0.5 * penalty * weight.square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        search.step(loss)
    return Probe(weight.detach().numpy(), bias.detach().numpy(), mean, std)


@asks
def layer_states(
    model: Transformer,
    sequences: Sequence[Tokens],
    places: Sequence[int],
    *,
    batch_tokens: int = 16_384,
) -> Float32:
    """The state of one token of each sequence, the one at ``places[i]`` (-1: the last), at every
    layer: (layers + 1, n, d), first the input embedding. An encoder
    sees both sides, and so does a prefix LM.

    ValueError names a sequence that is empty, longer than the context or has no such place.
    """
    if len(places) != len(sequences):
        raise ValueError(f"{len(sequences)} sequences need as many places, not {len(places)}.")
    lengths = [
        len(check_ids(s, model.config.vocab_size, f"Sequence {i}")) for i, s in enumerate(sequences)
    ]
    for i, (place, length) in enumerate(zip(places, lengths, strict=True)):
        if not -length <= place < length:
            raise ValueError(f"Sequence {i} has {length} tokens, and no place {place}.")
    shape = (model.config.n_layers + 1, len(sequences), model.config.d_model)
    states = np.empty(shape, dtype=np.float32)
    for rows in by_length(lengths, batch_tokens):
        ids, real = padded([sequences[i] for i in rows], model.embedding.weight.device)
        layers = states_of_layers(model, ids, real)
        at = torch.tensor([places[i] % lengths[i] for i in rows], device=ids.device)
        lines = torch.arange(len(rows), device=ids.device)
        chosen = [layer[lines, at] for layer in layers]  # (B, d) each
        states[:, rows] = torch.stack(chosen).float().cpu().numpy()
    return states


def probe_layers(
    model: Transformer,
    sequences: Sequence[Tokens],
    places: Sequence[int],
    labels: Sequence[int],
    held_out: Sequence[bool],
    *,
    classes: int,
    penalty: float = 1.0,
    batch_tokens: int = 16_384,
) -> list[LayerScore]:
    """A probe for each layer, fitted on the sequences that are not ``held_out`` and scored on those
    that are. ValueError where either part is empty."""
    apart = np.asarray(held_out, dtype=bool)
    answers = np.asarray(labels)
    if not len(apart) == len(answers) == len(sequences):
        raise ValueError(
            f"{len(sequences)} sequences need as many labels and marks of what is held out, not "
            f"{len(answers)} and {len(apart)}."
        )
    if apart.all() or not apart.any():
        raise ValueError("Some sequences must be held out, and some must not.")
    found = layer_states(model, sequences, places, batch_tokens=batch_tokens)
    usual = np.bincount(answers[~apart], minlength=classes).argmax()
    wanted = answers[apart]
    scores = []
    for layer, states in enumerate(found):
        probe = fit_probe(states[~apart], answers[~apart].tolist(), classes, penalty=penalty)
        log_p = probe.log_probs(states[apart])
        scores.append(
            LayerScore(
                layer=layer,
                accuracy=float((log_p.argmax(1) == wanted).mean()),
                log_loss=float(-log_p[np.arange(len(wanted)), wanted].mean()),
                majority=float((wanted == usual).mean()),
                n=len(wanted),
            )
        )
    return scores
