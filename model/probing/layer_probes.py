"""Fit linear probes to find what each layer of a frozen model represents (Tenney et al. 2019).

A probe is a logistic regression on a layer's states. If it predicts well, the layer represents the
labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from hallmark.model.architecture import Transformer
from hallmark.model.decoding.activations import compute_layer_states
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode
from hallmark.model.padding import batch_indices_by_length, check_token_ids, pad_rows
from hallmark.model.special_tokens import TokenIds

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class LinearProbe:
    """p(class | x) = softmax(W (x - mean) / std + b); weight (C, d), bias (C,), mean, std (d,)."""

    weight: Float64
    bias: Float64
    mean: Float64
    std: Float64

    def predict_log_probs(self, features: Float32 | Float64) -> Float64:
        """Compute log p of each class, (n, C), for features (n, d)."""
        scores = ((features - self.mean) / self.std) @ self.weight.T + self.bias
        return torch.from_numpy(scores).log_softmax(-1).numpy()


@dataclass(frozen=True)
class LayerProbeScore:
    """Score of a layer's probe on held-out sequences.

    Attributes:
        layer: 0 is the input embedding, 1 the first block's output.
        accuracy: share of correct predictions.
        log_loss: mean cross-entropy in nats.
        majority_accuracy: accuracy of always predicting the most frequent class of the training
            data.
        n: number of held-out sequences.
    """

    layer: int
    accuracy: float
    log_loss: float
    majority_accuracy: float
    n: int


def fit_linear_probe(
    features: Float32 | Float64, labels: Sequence[int], class_count: int, *, penalty: float = 1.0
) -> LinearProbe:
    """Fit a multinomial logistic regression by L-BFGS.

    Minimises the summed cross-entropy + penalty/2 |W|^2 over standardised features; the bias is not
    penalised. This is scikit-learn's LogisticRegression(C=1/penalty) after a StandardScaler. A
    feature that never varies keeps a scale of 1.

    Args:
        features: (n, d).
        labels: (n,) classes, 0 ... class_count - 1.
        class_count: number of classes.
        penalty: weight of the L2 penalty.

    Raises:
        ValueError: The numbers of features and labels differ, or a label or ``penalty`` is invalid.
    """
    label_array = np.asarray(labels)
    if len(label_array) != len(features) or not len(label_array):
        raise ValueError(
            "Expected at least one row of features and one label per row, but got "
            f"{len(label_array)} for {len(features)} rows."
        )
    if (
        label_array.dtype.kind not in "iu"
        or label_array.min() < 0
        or label_array.max() >= class_count
    ):
        raise ValueError(f"Labels must be integers from 0 to {class_count - 1}.")
    if not penalty > 0.0:
        raise ValueError(f"penalty must be positive, not {penalty}.")
    feature_matrix = np.asarray(features, dtype=np.float64)
    mean, std = feature_matrix.mean(0), feature_matrix.std(0)
    std[std == 0.0] = 1.0
    inputs = torch.from_numpy((feature_matrix - mean) / std)
    targets = torch.from_numpy(label_array.astype(np.int64))
    weight = torch.zeros(
        class_count, feature_matrix.shape[1], dtype=torch.float64, requires_grad=True
    )
    bias = torch.zeros(class_count, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=1000,
        tolerance_grad=1e-7 * len(feature_matrix),
        tolerance_change=1e-12,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def compute_loss() -> Tensor:
        optimizer.zero_grad()
        nats = cross_entropy(inputs @ weight.T + bias, targets, reduction="sum")
        total = nats + 0.5 * penalty * weight.square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(compute_loss)
    return LinearProbe(weight.detach().numpy(), bias.detach().numpy(), mean, std)


@run_in_evaluation_mode
def compute_token_states(
    model: Transformer,
    sequences: Sequence[TokenIds],
    positions: Sequence[int],
    *,
    batch_tokens: int = 16_384,
) -> Float32:
    """Compute the state of one token of each sequence at every layer: (layers + 1, n, d).

    Layer 0 is the input embedding. Encoders and prefix LMs read the text in both directions.

    Args:
        positions: position of the token in each sequence; -1 is the last.

    Raises:
        ValueError: A sequence is empty or longer than the context, or does not have the position.
    """
    if len(positions) != len(sequences):
        raise ValueError(
            f"Expected one position per sequence, but got {len(positions)} for {len(sequences)} "
            "sequences."
        )
    lengths = [
        len(check_token_ids(sequence, model.config.vocab_size, f"Sequence {i}"))
        for i, sequence in enumerate(sequences)
    ]
    for i, (position, length) in enumerate(zip(positions, lengths, strict=True)):
        if not -length <= position < length:
            raise ValueError(
                f"Sequence {i} has no token at position {position} because it has only {length} "
                "tokens."
            )
    shape = (model.config.n_layers + 1, len(sequences), model.config.d_model)
    states = np.empty(shape, dtype=np.float32)
    for batch_indices in batch_indices_by_length(lengths, batch_tokens):
        ids, attention_mask = pad_rows(
            [sequences[i] for i in batch_indices], model.embedding.weight.device
        )
        layer_outputs = compute_layer_states(model, ids, attention_mask)
        position_tensor = torch.tensor(
            [positions[i] % lengths[i] for i in batch_indices], device=ids.device
        )
        row_indices = torch.arange(len(batch_indices), device=ids.device)
        selected_states = [layer[row_indices, position_tensor] for layer in layer_outputs]
        states[:, batch_indices] = torch.stack(selected_states).float().cpu().numpy()
    return states


def evaluate_layer_probes(
    model: Transformer,
    sequences: Sequence[TokenIds],
    positions: Sequence[int],
    labels: Sequence[int],
    is_held_out: Sequence[bool],
    *,
    class_count: int,
    penalty: float = 1.0,
    batch_tokens: int = 16_384,
) -> list[LayerProbeScore]:
    """Fit a probe for each layer on the training sequences, and score it on the held-out ones.

    Raises:
        ValueError: The arguments differ in length, or no sequences or all are held out.
    """
    held_out_mask = np.asarray(is_held_out, dtype=bool)
    label_array = np.asarray(labels)
    if not len(held_out_mask) == len(label_array) == len(sequences):
        raise ValueError(
            "Expected one label and one is_held_out value per sequence, but got "
            f"{len(label_array)} and {len(held_out_mask)} for {len(sequences)} sequences."
        )
    if held_out_mask.all() or not held_out_mask.any():
        raise ValueError(
            "is_held_out must be true for some sequences (used to test the probes) and false for "
            "others (used to train them)."
        )
    states_by_layer = compute_token_states(model, sequences, positions, batch_tokens=batch_tokens)
    majority_class = np.bincount(label_array[~held_out_mask], minlength=class_count).argmax()
    held_out_labels = label_array[held_out_mask]
    scores = []
    for layer, states in enumerate(states_by_layer):
        probe = fit_linear_probe(
            states[~held_out_mask],
            label_array[~held_out_mask].tolist(),
            class_count,
            penalty=penalty,
        )
        log_probs = probe.predict_log_probs(states[held_out_mask])
        scores.append(
            LayerProbeScore(
                layer=layer,
                accuracy=float((log_probs.argmax(1) == held_out_labels).mean()),
                log_loss=float(-log_probs[np.arange(len(held_out_labels)), held_out_labels].mean()),
                majority_accuracy=float((held_out_labels == majority_class).mean()),
                n=len(held_out_labels),
            )
        )
    return scores
