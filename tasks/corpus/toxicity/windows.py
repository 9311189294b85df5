"""Score documents window by window with all heads of a scorer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from hallmark.tasks.contract import ID_TYPE, HallmarkError, column, table_schema
from hallmark.tasks.measures.lookalikes import (
    fold_accents,
    fold_lookalikes,
    join_spaced_letters,
)
from hallmark.tasks.measures.scorers import (
    TOXICITY_HEADS,
    ScorerConfig,
    open_scorer,
    scorer_languages,
)

_HEAD_MEANINGS = {
    "toxicity": "how rude, disrespectful or unreasonable the text is",
    "severe_toxicity": "how hateful or aggressive the text is",
    "obscene": "how obscene the text is",
    "threat": "how threatening the text is",
    "insult": "how insulting the text is",
    "identity_attack": "how hateful the text is towards a group of people",
    "sexual_explicit": "how sexually explicit the text is",
}


def build_head_columns(meaning_suffix: str) -> list[pa.Field]:
    """Build a column for each head, whose meaning ends with ``meaning_suffix``."""
    return [
        column(
            head, pa.float32(), "figure", f"{_HEAD_MEANINGS[head]}: {meaning_suffix}", unit="score"
        )
        for head in TOXICITY_HEADS
    ]


WINDOW_SCORES = table_schema(
    "Toxicity scores for the windows (passages) in each document, with one column per category "
    "and at least one row per document. Scores are null for a category that the scorer does not "
    "provide.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column(
        "window_index", pa.int32(), "figure", "index of the window in the document, starting at 0"
    ),
    column(
        "char_start",
        pa.int64(),
        "figure",
        "start of the window, as a character offset in the text",
        unit="characters",
    ),
    column("char_end", pa.int64(), "figure", "end of the window", unit="characters"),
    *build_head_columns("score of the window; null if the scorer failed on the window"),
    partition_by_doc_id=True,
)

_LAST_BREAK = re.compile(r"\s(?=\S*\Z)")


def iter_window_spans(text: str, max_characters: int) -> Iterator[tuple[int, int]]:
    """Yield spans of at most ``max_characters`` that cover the text, split between words.

    Only the last fifth of a window is searched for a place to split, because a word may be longer.
    """
    start = 0
    while len(text) - start > max_characters:
        end = start + max_characters
        last_break = _LAST_BREAK.search(text[end - max_characters // 5 : end])
        if last_break:
            end += last_break.end() - max_characters // 5
        yield start, end
        start = end
    yield start, len(text)


def build_window_score_columns(
    batch: pa.RecordBatch, needs_scoring: np.ndarray, max_characters: int, scorer: ScorerConfig
) -> dict[str, pa.Array]:
    """Compute the columns of WINDOW_SCORES for a batch of documents.

    Disguised words are folded before a window is scored, and accents if the scorer supports only
    English; the span of the window is that of the text as it is.

    Args:
        needs_scoring: (n,) whether to score each document; the others are one window without
            scores.

    Raises:
        HallmarkError: A score is outside its range, so the others may be logits, too.
    """
    rows: list[tuple[int, int, int, int]] = []  # (document, window, start, end)
    window_texts: list[str] = []
    scored_rows: list[int] = []  # indices in rows of the window_texts
    is_english = scorer_languages(scorer) == ("en",)
    for document, (text, is_needed) in enumerate(
        zip(batch["text"].to_pylist(), needs_scoring, strict=True)
    ):
        window_spans = iter_window_spans(text, max_characters) if is_needed else [(0, len(text))]
        for window, (start, end) in enumerate(window_spans):
            rows.append((document, window, start, end))
            if is_needed:
                window_text = join_spaced_letters(fold_lookalikes(text[start:end]))
                window_texts.append(fold_accents(window_text) if is_english else window_text)
                scored_rows.append(len(rows) - 1)
    scores = np.full((len(rows), len(TOXICITY_HEADS)), np.nan, np.float32)
    opened_scorer = open_scorer(scorer)
    scores[scored_rows] = opened_scorer.score_by_head(window_texts)
    if opened_scorer.has_invalid_scores:
        raise HallmarkError(
            f"the scorer {opened_scorer.name} {opened_scorer.failure_reason.removeprefix('it ')}; "
            "none of its scores can be used; choose another scorer"
        )
    row_array = np.array(rows, np.int64).reshape(-1, 4)
    return {
        "doc_id": batch["doc_id"].take(pa.array(row_array[:, 0])),
        "window_index": pa.array(row_array[:, 1], pa.int32()),
        "char_start": pa.array(row_array[:, 2]),
        "char_end": pa.array(row_array[:, 3]),
        **{
            head: _nan_to_null(scores[:, head_index])
            for head_index, head in enumerate(TOXICITY_HEADS)
        },
    }


def _nan_to_null(scores: np.ndarray) -> pa.Array:
    return pa.array(scores, pa.float32(), mask=np.isnan(scores))


def compute_highest_score_columns(window_scores: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Compute doc_id and the highest score per head of each document.

    Args:
        window_scores: Columns of WINDOW_SCORES.
    """
    document_starts = np.flatnonzero(window_scores["window_index"].to_numpy() == 0)
    highest_scores = {"doc_id": window_scores["doc_id"].take(pa.array(document_starts, pa.int64()))}
    for head in TOXICITY_HEADS:
        # Null becomes NaN.
        head_scores = window_scores[head].to_numpy(zero_copy_only=False).astype(np.float32)
        highest_scores[head] = _nan_to_null(
            np.fmax.reduceat(head_scores, document_starts) if len(document_starts) else head_scores
        )
    return highest_scores
