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
from model.draws import generator
from model.loss import linear_cross_entropy, token_cross_entropy
from model.rows import by_length, padded

Float64 = NDArray[np.float64]


class Recurrent(nn.Module):
    """An LSTM over the token ids 0 ... vocab_size - 1 and one more, which begins every text."""

    def __init__(self, vocab_size: int, d_model: int = 128) -> None:
        super().__init__()
        self.begin = vocab_size
        self.embedding = nn.Embedding(vocab_size + 1, d_model)
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """The state behind each token, (B, T, d), of ids (B, T)."""
        states, _ = self.lstm(self.embedding(ids))
        return states  # type: ignore[no-any-return]

    def loss(self, batch: Batch) -> Tensor:
        """Sum over the batch of weight x cross-entropy, in nats."""
        return linear_cross_entropy(self(batch.ids), self.embedding.weight, None, *batch.answers())

    @torch.inference_mode()
    def bits(self, documents: Sequence[Sequence[int]], batch_tokens: int = 16_384) -> Float64:
        """Bits that the tokens of each document cost, (documents,)."""
        costs = np.zeros(len(documents))
        sizes = [len(document) + 1 for document in documents]
        device = self.embedding.weight.device
        for rows in by_length(sizes, batch_tokens):
            ids, real = padded([[self.begin, *documents[i]] for i in rows], device)  # (B, T)
            if ids.shape[1] > 1:
                states = self(ids[:, :-1])
                nats = token_cross_entropy(states, self.embedding.weight, None, ids[:, 1:])
                costs[rows] = (nats.double() * real[:, 1:]).sum(1).cpu().numpy() / math.log(2)
        return costs


def train_recurrent(
    documents: Sequence[Sequence[int]],
    vocab_size: int,
    *,
    tokens: int,
    d_model: int = 128,
    context: int = 64,
    batch_size: int = 8,
    learning_rate: float = 1e-2,
    seed: int = 0,
    device: str = "cpu",
) -> Recurrent:
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
        model = Recurrent(vocab_size, d_model)
    model.to(device)
    begin = np.array([vocab_size], np.int64)
    flat = np.concatenate([x for d in documents for x in (begin, np.asarray(d, np.int64))])
    context = min(context, len(flat) - 1)
    rows = (len(flat) - 1) // context
    steps = max(1, tokens // (batch_size * context))
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.99))
    random, order = generator(seed), np.empty(0, np.int64)
    for step in range(steps):
        while len(order) < batch_size:  # more than once, of a small text
            order = np.concatenate((order, random.permutation(rows)))
        chosen, order = order[:batch_size], order[batch_size:]
        places = chosen[:, None] * context + np.arange(context + 1)  # (B, T + 1)
        text = torch.from_numpy(flat[places]).to(device)
        targets = text[:, 1:]
        batch = Batch(text[:, :-1], targets=targets, weights=torch.ones_like(targets).float())
        loss = model.loss(batch) / targets.numel()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min((step + 1) / 20, 1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()
