"""Score the toxicity of documents, window by window.

Scoring and keeping are two stages: another bound in ``select_scored`` scores nothing again. Long
documents are scored in windows, since one insult in a long text hardly moves the score of the
whole.

A scorer is asked only about texts in the languages that it was made for. An English word list finds
profanity in Hawaiian that is none: what it would say of other languages is not known, and so is the
toxicity of these documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.contract import (
    ID,
    InProcess,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    aligned,
    column,
    stage,
    table,
)
from tasks.corpus.signals import looked_up, signals
from tasks.measures.scorers import (
    ScorerConfig,
    open_scorer,
    scorer_digest,
    scorer_languages,
)


class ScoreToxicityConfig(StageConfig):
    scorer: ScorerConfig = Field(default=ScorerConfig(), description="who scores")
    window: int = Field(
        default=1000, ge=100, le=1_000_000, description="characters scored together"
    )
    languages: tuple[str, ...] = Field(
        default=(),
        description="the scorer is asked about documents in these (ISO 639) and no others; if left "
        "out, those that it was made for",
    )
    too_short: int = Field(
        default=200,
        ge=0,
        description="shorter documents, in characters, are also scored if their language is "
        "undetermined: it can hardly be told",
    )


WINDOWS = table(
    "Toxicity of the documents, window by window; at least one row a document.",
    column("doc_id", ID, "id", "the document"),
    column("window", pa.int32(), "figure", "which window of it, from 0"),
    column("start", pa.int64(), "figure", "where the window begins in the text", unit="characters"),
    column("end", pa.int64(), "figure", "where it ends", unit="characters"),
    column("score", pa.float32(), "figure", "what the scorer says; null where it could not",
           unit="score"),
    cut=True,
)  # fmt: skip

SIGNALS = signals(
    "How toxic each document is.",
    column("toxicity", pa.float32(), "figure", "highest score of its windows; null where no window "
           "could be scored, or the scorer does not know its language", unit="score"),
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


def spoken(languages: pa.Array, texts: pa.Array, config: ScoreToxicityConfig) -> np.ndarray:
    """Which documents the scorer is asked about, (n,) bool. languages: null where undetermined."""
    known = pa.array(config.languages or scorer_languages(config.scorer))
    short = pc.and_(pc.is_null(languages), pc.less(pc.utf8_length(texts), config.too_short))
    return pc.or_(pc.is_in(languages, value_set=known), short).to_numpy(zero_copy_only=False)


def score_batch(
    batch: pa.RecordBatch, asked: np.ndarray, config: ScoreToxicityConfig
) -> dict[str, pa.Array]:
    """Columns of WINDOWS for a batch of documents; one that is not ``asked`` is one window."""
    rows: list[tuple[int, int, int, int]] = []  # (document, window, start, end)
    pieces: list[str] = []
    at: list[int] = []  # which rows the pieces are
    for number, (text, ask) in enumerate(zip(batch["text"].to_pylist(), asked, strict=True)):
        cuts = windows(text, config.window) if ask else [(0, len(text))]
        for window, (start, end) in enumerate(cuts):
            rows.append((number, window, start, end))
            if ask:
                pieces.append(text[start:end])
                at.append(len(rows) - 1)
    scores = np.full(len(rows), np.nan, np.float32)
    scores[at] = open_scorer(config.scorer).score(pieces)
    numbers = np.array(rows, np.int64).reshape(-1, 4)
    return {
        "doc_id": batch["doc_id"].take(pa.array(numbers[:, 0])),
        "window": pa.array(numbers[:, 1], pa.int32()),
        "start": pa.array(numbers[:, 2]),
        "end": pa.array(numbers[:, 3]),
        "score": pa.array(scores, pa.float32(), mask=np.isnan(scores)),
    }


def highest(windows: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Columns of SIGNALS from those of WINDOWS: of each document the highest score it has."""
    first = np.flatnonzero(windows["window"].to_numpy() == 0)
    known = windows["score"].to_numpy(zero_copy_only=False).astype(np.float32)  # null is NaN
    best = np.fmax.reduceat(known, first) if len(first) else known
    doc_id = windows["doc_id"].take(pa.array(first))
    return {"doc_id": doc_id, "toxicity": pa.array(best, pa.float32(), mask=np.isnan(best))}


def score_part(pair: tuple[Part, ...], config: ScoreToxicityConfig, out: Tables) -> dict[str, int]:
    part, *signals = pair
    counts = {"windows": 0, "unscored": 0, "other languages": 0}
    languages = looked_up(signals[0], "language", part).combine_chunks() if signals else None
    start = 0
    for batch in part.batches(["doc_id", "text"]):
        asked = np.ones(len(batch), bool)
        if languages is not None:
            asked = spoken(languages[start : start + len(batch)], batch["text"], config)
        start += len(batch)
        counts["other languages"] += int((~asked).sum())
        columns = score_batch(batch, asked, config)
        out.table("windows").write(columns)
        out.table("signals").write(highest(columns))
        counts["windows"] += len(columns["score"])
        counts["unscored"] += columns["score"].null_count
    return counts


@stage(
    tables={"windows": WINDOWS, "signals": SIGNALS},
    libraries=["numpy"],
    external=lambda config, secret_id: scorer_digest(config.scorer),
    determinism="machine",
)
def score_toxicity(
    documents: Table, signals: Table | None, config: ScoreToxicityConfig, work: Work
) -> None:
    """``signals``: those of the stage ``language``; without them all documents are scored."""
    if config.scorer.kind == "detoxify":
        work.mapper = InProcess()  # a network uses all cores, or the one device, by itself
    tables = [documents] if signals is None else [documents, signals]
    done = work.parts(score_part, aligned(*tables), config)
    for name, unit in (
        ("windows", "windows"),
        ("unscored", "windows"),
        ("other languages", "documents"),
    ):
        work.measure(name, sum(part.value[name] for part in done), unit)
