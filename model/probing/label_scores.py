"""Score the labels of a fine-tuned classifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hallmark.model.architecture import Transformer
from hallmark.model.decoding.inference_mode import run_in_evaluation_mode
from hallmark.model.decoding.token_scores import Float32
from hallmark.model.padding import batch_indices_by_length, check_no_nan
from hallmark.model.training.example_batches import make_example_objective
from hallmark.model.training.examples import Example


@run_in_evaluation_mode
def compute_log_probs_at_labelled_tokens(
    classifier: Transformer, examples: Sequence[Example], *, batch_tokens: int = 16_384
) -> list[Float32]:
    """Compute log p of every label in nats, (labelled tokens, labels) for each example.

    Labels are scored at each token that has one in the example; which label it is has no effect.

    Raises:
        ValueError: The classifier has no labels.
    """
    if not classifier.config.labels:
        raise ValueError(
            "This model is a language model without labels: fine-tune it as a classifier first."
        )
    build_batch = make_example_objective(classifier.config, classifier.objective)
    device = classifier.embedding.weight.device
    results = [np.empty((0, len(classifier.config.labels)), np.float32) for _ in examples]
    for batch_indices in batch_indices_by_length(
        [len(example.ids) for example in examples], batch_tokens
    ):
        batch = build_batch([examples[i] for i in batch_indices], 0, 0).to_device(device)
        is_labelled = batch.require_targets_and_weights()[1] > 0  # (B, T)
        logits = classifier.compute_logits(classifier(batch)[is_labelled]).float()
        log_probs = check_no_nan(logits.log_softmax(-1)).cpu().numpy()  # (labelled tokens, labels)
        split_points = is_labelled.sum(1).cumsum(0)[:-1].tolist()
        for i, example_log_probs in zip(
            batch_indices, np.split(log_probs, split_points), strict=True
        ):
            results[i] = example_log_probs
    return results
