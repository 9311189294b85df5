"""The labels that a fine-tuned model gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.architecture import Transformer
from model.decoding.mode import asks
from model.decoding.score import Float32
from model.rows import by_length, check_numbers
from model.training.examples import Example
from model.training.tasks import make_task


@asks
def label_log_probs(
    model: Transformer, examples: Sequence[Example], *, batch_tokens: int = 16_384
) -> list[Float32]:
    """log p of every label at each token that an example asks for one, (asked, labels) each, in
    nats; what it gives as an answer does not count. ValueError for a model without labels."""
    if not model.config.labels:
        raise ValueError("This model scores words, not labels: fine-tune it first.")
    make = make_task(model.config, model.objective)
    device = model.embedding.weight.device
    results = [np.empty((0, len(model.config.labels)), np.float32) for _ in examples]
    for chosen in by_length([len(example.ids) for example in examples], batch_tokens):
        batch = make([examples[i] for i in chosen], 0, 0).to(device)
        asked = batch.answers()[1] > 0  # (B, T)
        log_p = model.logits(model(batch)[asked]).float().log_softmax(-1)  # (asked, labels)
        ends = asked.sum(1).cumsum(0)[:-1].tolist()
        for i, part in zip(chosen, np.split(check_numbers(log_p).cpu().numpy(), ends), strict=True):
            results[i] = part
    return results
