"""Scores of documents, window by window, by all heads of a scorer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from tasks.contract import ID, column, table
from tasks.measures.scorers import HEADS, ScorerConfig, open_scorer

_MEANING = {
    "toxicity": "how rude, disrespectful or unreasonable",
    "severe_toxicity": "how hateful or aggressive",
    "obscene": "how obscene",
    "threat": "how much it threatens somebody",
    "insult": "how insulting",
    "identity_attack": "how hateful against a group of people",
    "sexual_explicit": "how sexually explicit",
}


def head_columns(more: str) -> list[pa.Field]:
    """A column for each head; ``more``: what is said of all of them."""
    return [
        column(head, pa.float32(), "figure", f"{_MEANING[head]}: {more}", unit="score")
        for head in HEADS
    ]


WINDOWS = table(
    "Scores of the documents by head, window by window; at least one row a document. A head that "
    "the scorer lacks is null.",
    column("doc_id", ID, "id", "the document"),
    column("window", pa.int32(), "figure", "which window of it, from 0"),
    column("start", pa.int64(), "figure", "where the window begins in the text", unit="characters"),
    column("end", pa.int64(), "figure", "where it ends", unit="characters"),
    *head_columns("what the scorer says; null where it could not"),
    cut=True,
)  # fmt: skip

_LAST_BREAK = re.compile(r"\s(?=\S*\Z)")


def windows(text: str, length: int) -> Iterator[tuple[int, int]]:
    """Stretches of at most ``length`` characters that cover the text, cut between words.

    Only the last fifth of a window is searched for a place to cut: a word may be longer.
    """
    start = 0
    while len(text) - start > length:
        end = start + length
        cut = _LAST_BREAK.search(text[end - length // 5 : end])
        if cut:
            end += cut.end() - length // 5
        yield start, end
        start = end
    yield start, len(text)


def score_batch(
    batch: pa.RecordBatch, asked: np.ndarray, length: int, scorer: ScorerConfig
) -> dict[str, pa.Array]:
    """Columns of WINDOWS for a batch of documents; one that is not ``asked`` is one window."""
    rows: list[tuple[int, int, int, int]] = []  # (document, window, start, end)
    pieces: list[str] = []
    at: list[int] = []  # which rows the pieces are
    for number, (text, ask) in enumerate(zip(batch["text"].to_pylist(), asked, strict=True)):
        cuts = windows(text, length) if ask else [(0, len(text))]
        for window, (start, end) in enumerate(cuts):
            rows.append((number, window, start, end))
            if ask:
                pieces.append(text[start:end])
                at.append(len(rows) - 1)
    scores = np.full((len(rows), len(HEADS)), np.nan, np.float32)
    scores[at] = open_scorer(scorer).score_heads(pieces)
    numbers = np.array(rows, np.int64).reshape(-1, 4)
    return {
        "doc_id": batch["doc_id"].take(pa.array(numbers[:, 0])),
        "window": pa.array(numbers[:, 1], pa.int32()),
        "start": pa.array(numbers[:, 2]),
        "end": pa.array(numbers[:, 3]),
        **{head: _known(scores[:, place]) for place, head in enumerate(HEADS)},
    }


def _known(scores: np.ndarray) -> pa.Array:
    return pa.array(scores, pa.float32(), mask=np.isnan(scores))  # NaN: null


def highest(windows: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """doc_id and, by head, the highest score that each document has, from columns of WINDOWS."""
    first = np.flatnonzero(windows["window"].to_numpy() == 0)
    found = {"doc_id": windows["doc_id"].take(pa.array(first, pa.int64()))}
    for head in HEADS:
        known = windows[head].to_numpy(zero_copy_only=False).astype(np.float32)  # null is NaN
        found[head] = _known(np.fmax.reduceat(known, first) if len(first) else known)
    return found
