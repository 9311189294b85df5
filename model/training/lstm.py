"""A recurrent language model, the transformer's predecessor: a baseline, small and soon trained.

One layer of LSTM (Hochreiter & Schmidhuber 1997), whose output is compared with the embeddings
(Press & Wolf 2017). What it knows of a text is one vector, passed on from token to token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.batch import Batch
from model.keyed_randomness import make_generator
from model.loss import compute_token_cross_entropy, sum_linear_cross_entropy
from model.padding import batch_indices_by_length, pad_rows

Float64 = NDArray[np.float64]


class LstmLanguageModel(nn.Module):
    """An LSTM over the token ids 0 ... vocab_size - 1 and one more, which begins every text."""

    def __init__(self, vocab_size: int, d_model: int = 128) -> None:
        super().__init__()
        self.begin_id = vocab_size
        self.embedding = nn.Embedding(vocab_size + 1, d_model)
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """The state behind each token, (B, T, d), of ids (B, T)."""
        states, _ = self.lstm(self.embedding(ids))
        return states  # type: ignore[no-any-return]

    def compute_loss_sum(self, batch: Batch) -> Tensor:
        """Sum over the batch of weight x cross-entropy, in nats."""
        return sum_linear_cross_entropy(
            self(batch.ids), self.embedding.weight, None, *batch.require_targets_and_weights()
        )

    @torch.inference_mode()
    def compute_document_bits(
        self, documents: Sequence[Sequence[int]], batch_tokens: int = 16_384
    ) -> Float64:
        """Bits that the tokens of each document cost, (documents,)."""
        bits_per_document = np.zeros(len(documents))
        lengths = [len(document) + 1 for document in documents]
        device = self.embedding.weight.device
        for batch_indices in batch_indices_by_length(lengths, batch_tokens):
            ids, attention_mask = pad_rows(
                [[self.begin_id, *documents[i]] for i in batch_indices], device
            )  # (B, T)
            if ids.shape[1] > 1:
                states = self(ids[:, :-1])
                nats = compute_token_cross_entropy(states, self.embedding.weight, None, ids[:, 1:])
                bits_per_document[batch_indices] = (nats.double() * attention_mask[:, 1:]).sum(
                    1
                ).cpu().numpy() / math.log(2)
        return bits_per_document


def train_lstm_language_model(
    documents: Sequence[Sequence[int]],
    vocab_size: int,
    *,
    token_budget: int,
    d_model: int = 128,
    context: int = 64,
    batch_size: int = 8,
    learning_rate: float = 1e-2,
    seed: int = 0,
    device: str = "cpu",
) -> LstmLanguageModel:
    """An LSTM trained on about ``tokens`` tokens of the documents, in rows of ``context``, or of
    all there is. ValueError where that is nothing.

    Documents stand one behind the other, each behind the begin token; rows are drawn by ``seed``,
    each once before any is drawn again. AdamW, the rate falling to 0 behind a short warm-up. It
    learns by steps, so batches are small: a million tokens of the demo came to 1.27 bits per byte
    in batches of 8, to 1.77 in batches of 32, which took three quarters of the time. The same
    arguments give the same weights on the same machine.
    """
    if not any(map(len, documents)):
        raise ValueError("There is no token to learn from: bring documents with text.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LstmLanguageModel(vocab_size, d_model)
    model.to(device)
    begin_ids = np.array([vocab_size], np.int64)
    token_stream = np.concatenate(
        [ids for document in documents for ids in (begin_ids, np.asarray(document, np.int64))]
    )
    context = min(context, len(token_stream) - 1)
    row_count = (len(token_stream) - 1) // context
    step_count = max(1, token_budget // (batch_size * context))
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.99))
    rng, row_queue = make_generator(seed), np.empty(0, np.int64)
    for step in range(step_count):
        while len(row_queue) < batch_size:  # more than once, of a small text
            row_queue = np.concatenate((row_queue, rng.permutation(row_count)))
        batch_rows, row_queue = row_queue[:batch_size], row_queue[batch_size:]
        token_positions = batch_rows[:, None] * context + np.arange(context + 1)  # (B, T + 1)
        batch_ids = torch.from_numpy(token_stream[token_positions]).to(device)
        targets = batch_ids[:, 1:]
        batch = Batch(batch_ids[:, :-1], targets=targets, weights=torch.ones_like(targets).float())
        loss = model.compute_loss_sum(batch) / targets.numel()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min((step + 1) / 20, 1 - step / step_count)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()
