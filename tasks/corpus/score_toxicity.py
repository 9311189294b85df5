"""Score the toxicity of documents, window by window, by all heads of a scorer.

Scoring and keeping are two stages: another bound in ``select_scored`` scores nothing again. Long
documents are scored in windows, since one insult in a long text hardly moves the score of the
whole.

A scorer is asked only about texts in the languages that it was made for. An English word list finds
profanity in Hawaiian that is none: what it would say of other languages is not known, and so is the
toxicity of these documents. A text at which the scorer fails has no score either; the stage fails
only where it fails at all of them.

With a cascade a cheap scorer clears documents first (see ``toxicity/cascade.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from tasks.contract import (
    Done,
    HallmarkError,
    InProcess,
    Mapper,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    aligned,
    column,
    looked_up,
    stage,
    together,
)
from tasks.corpus.signals import signals
from tasks.corpus.split import uniform
from tasks.corpus.toxicity.cascade import (
    CASCADE,
    SAMPLE,
    CascadeConfig,
    Recall,
    check,
    drawn_up_to,
    measured,
    row_of,
)
from tasks.corpus.toxicity.windows import WINDOWS, head_columns, highest, score_batch
from tasks.measures.scorers import ScorerConfig, open_scorer, scorer_digest, scorer_languages


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
    cascade: CascadeConfig | None = Field(
        default=None, description="a cheap scorer that is asked first"
    )

    @model_validator(mode="after")
    def _two_scorers(self) -> ScoreToxicityConfig:
        if self.cascade and self.cascade.cheap == self.scorer:
            raise ValueError("cascade.cheap is the same as scorer: a cascade needs two of them")
        return self


SIGNALS = signals(
    "How toxic each document is, by head. A head that the scorer lacks is null.",
    *head_columns("highest score of its windows, before cut_toxic took any out; null where there "
                  "is none, see toxicity_status"),
    column("toxicity_status", pa.string(), "label", "scored; other language: the scorer was not "
           "made for it; cleared: by the cheap scorer of a cascade; empty: no visible character; "
           "failed: the scorer could not"),
)  # fmt: skip

#: What holds for a document, and stands in ``toxicity_status``.
STATUS = ("scored", "other language", "cleared", "empty", "failed")

#: What the cheap scorer of a cascade leaves of each document, for this stage alone.
DRAWS = pa.schema([("draw", pa.float64()), ("asked", pa.bool_()), ("cheap", pa.float32())])


def spoken(
    languages: pa.Array, texts: pa.Array, known: tuple[str, ...], too_short: int
) -> np.ndarray:
    """Of which documents the language is known to a scorer, or the text too short to tell, (n,)
    bool. languages: null where undetermined."""
    short = pc.and_(pc.is_null(languages), pc.less(pc.utf8_length(texts), too_short))
    of_these = pc.is_in(languages, value_set=pa.array(known, pa.string()))
    return pc.or_(of_these, short).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class Item:
    """A part of the documents, with the signals of their languages where there are; with a cascade
    also what its first two passes left of the part."""

    documents: Part
    languages: Part | None
    draws: Done | None = None
    sample: Done | None = None

    def __str__(self) -> str:
        return str(self.documents)


def batches(
    item: Item, config: ScoreToxicityConfig
) -> Iterator[tuple[pa.RecordBatch, np.ndarray, np.ndarray]]:
    """Batches of documents; (n,) bool whether the scorer is asked about them, and (n,) bool whether
    the cheap one of a cascade is."""
    codes = [config.languages or scorer_languages(config.scorer)]
    codes += [scorer_languages(config.cascade.cheap)] if config.cascade else []
    languages = pa.nulls(0)
    if item.languages:
        languages = looked_up(item.languages, "language", item.documents).combine_chunks()
    start = 0
    for batch in item.documents.batches(["doc_id", "text"]):
        asked = [np.ones(len(batch), bool) for _ in codes]
        if item.languages:
            here = languages[start : start + len(batch)]
            asked = [spoken(here, batch["text"], known, config.too_short) for known in codes]
        start += len(batch)
        yield batch, asked[0], np.logical_and.reduce(asked)


def score_part(
    item: Item, up_to: float, config: ScoreToxicityConfig, out: Tables
) -> dict[str, Any]:
    """Score what no cascade has cleared, nor scored for its sample: documents drawn ``up_to``."""
    counts = Counter(dict.fromkeys(("windows", "unscored", *STATUS), 0))
    first = item.draws.mapped("draws", DRAWS) if item.draws else None
    known = item.sample.mapped("windows", WINDOWS) if item.sample else WINDOWS.empty_table()
    start = 0
    for batch, asked, _ in batches(item, config):
        drawn = cleared = np.zeros(len(batch), bool)
        if first is not None and config.cascade:
            here = first.slice(start, len(batch))
            drawn = asked & (here["draw"].to_numpy() <= up_to)
            low = here["cheap"].to_numpy().astype(np.float64) < config.cascade.clears_below
            cleared = asked & ~drawn & low
        start += len(batch)
        columns = score_batch(batch, asked & ~drawn & ~cleared, config.window, config.scorer)
        if drawn.any():
            columns = replaced(columns, known, batch["doc_id"], drawn)
        best = highest(columns)
        status = statuses(batch["text"], best["toxicity"], asked, cleared)
        out.table("windows").write(columns)
        out.table("signals").write({**best, "toxicity_status": pa.array(status, pa.string())})
        counts.update(status.tolist())
        counts["windows"] += len(columns["toxicity"])
        counts["unscored"] += columns["toxicity"].null_count
    return {**counts, "why": open_scorer(config.scorer).failure}


def replaced(
    columns: Mapping[str, pa.Array], known: pa.Table, ids: pa.Array, drawn: np.ndarray
) -> dict[str, pa.Array]:
    """Columns of WINDOWS for documents ``ids``, in which those drawn, (n,) bool, have their rows in
    ``known`` instead."""
    rows = pa.table(dict(columns), schema=known.schema)
    chosen = ids.filter(pa.array(drawn))
    others = rows.filter(pc.invert(pc.is_in(rows["doc_id"], value_set=chosen)))
    both = pa.concat_tables([others, known.filter(pc.is_in(known["doc_id"], value_set=chosen))])
    document = pc.index_in(both["doc_id"], value_set=ids).to_numpy()
    order = np.lexsort((both["window"].to_numpy(), document))
    both = both.take(pa.array(order)).combine_chunks()
    return {name: both[name].combine_chunks() for name in both.schema.names}


def statuses(
    texts: pa.Array, toxicity: pa.Array, asked: np.ndarray, cleared: np.ndarray
) -> np.ndarray:
    """Of STATUS what holds for each document, (n,)."""
    missing = toxicity.is_null().to_numpy(zero_copy_only=False) & asked & ~cleared
    empty = np.zeros(len(asked), bool)
    empty[missing] = [not text.strip() for text in texts.filter(pa.array(missing)).to_pylist()]
    return np.select([~asked, cleared, empty, missing], STATUS[1:], STATUS[0])


# The cascade -----------------------------------------------------------------------------------


def ask_cheap(item: Item, config: ScoreToxicityConfig, out: Tables) -> None:
    """Spill, of each document of the part, its draw and what the cheap scorer says."""
    assert config.cascade
    for batch, asked, cheap_asked in batches(item, config):
        found = highest(score_batch(batch, cheap_asked, config.window, config.cascade.cheap))
        draw = uniform(batch["doc_id"], config.cascade.seed, "cascade")
        columns = {"draw": pa.array(draw), "asked": pa.array(asked), "cheap": found["toxicity"]}
        out.spill("draws", DRAWS).write(columns)


def score_sample(item: Item, up_to: float, config: ScoreToxicityConfig, out: Tables) -> str:
    """Spill what the scorer says of the documents drawn up to ``up_to``; why it failed, if so."""
    assert config.cascade and item.draws
    first = item.draws.mapped("draws", DRAWS)
    start = 0
    for batch, asked, _ in batches(item, config):
        here = first.slice(start, len(batch))
        start += len(batch)
        drawn = asked & (here["draw"].to_numpy() <= up_to)
        if not drawn.any():
            continue
        chosen = batch.filter(pa.array(drawn))
        columns = score_batch(chosen, np.ones(len(chosen), bool), config.window, config.scorer)
        out.spill("windows", WINDOWS).write(columns)
        cheap = here["cheap"].filter(pa.array(drawn)).combine_chunks()
        low = cheap.to_numpy(zero_copy_only=False).astype(np.float64) < config.cascade.clears_below
        best = highest(columns)
        rows = {"doc_id": best["doc_id"], "cheap": cheap, "toxicity": best["toxicity"]}
        out.spill("sample", SAMPLE).write({**rows, "cleared": pa.array(low)})
    return open_scorer(config.scorer).failure


def cascade(
    items: list[Item], config: ScoreToxicityConfig, work: Work
) -> tuple[list[Item], float, Recall]:
    """The items with what is known of them so far, up to which draw, and the recall of the cascade.

    Holds 9 bytes a document. HallmarkError if the sample does not show the recall that is required.
    """
    assert config.cascade
    first = work.map(ask_cheap, items, config)
    draws = together(first, "draws", DRAWS)
    work.mapper = mapper_of(config.scorer, work.mapper)
    up_to = drawn_up_to(draws["draw"].to_numpy()[draws["asked"].to_numpy()], config.cascade.sample)
    items = [replace(item, draws=done) for item, done in zip(items, first, strict=True)]
    second = work.map(score_sample, items, up_to, config)
    sample = together(second, "sample", SAMPLE)
    work.table("sample").write(sample)
    unknown = sample["toxicity"].null_count
    some_scored(len(sample) - unknown, unknown, [done.value for done in second], config)
    found = measured(sample, pc.sum(draws["asked"]).as_py() or 0, config.cascade.threshold)
    check(found, config.cascade)
    items = [replace(item, sample=done) for item, done in zip(items, second, strict=True)]
    return items, up_to, found


# The stage -------------------------------------------------------------------------------------


def mapper_of(scorer: ScorerConfig, given: Mapper) -> Mapper:
    """A network uses all cores, or the one device, by itself."""
    return given if scorer.kind == "linear" else InProcess()


def some_scored(scored: int, failed: int, why: Iterable[str], config: ScoreToxicityConfig) -> None:
    """HallmarkError if none was; ``why``: what each part of the documents says of its failures."""
    if failed and not scored and (said := next(filter(None, why), "")):
        raise HallmarkError(
            f"the scorer {open_scorer(config.scorer).name} failed at all {failed:,} texts that it "
            f'was given ({said}); try score_toxicity.scorer.device = "cpu" or precision = '
            f'"fp32", or another scorer'
        )


def digests(config: ScoreToxicityConfig) -> dict[str, str]:
    found = scorer_digest(config.scorer)
    if config.cascade:
        cheap = scorer_digest(config.cascade.cheap)
        found |= {f"cheap {name}": value for name, value in cheap.items()}
    return found


@stage(
    tables={"windows": WINDOWS, "signals": SIGNALS, "cascade": CASCADE, "sample": SAMPLE},
    libraries=["numpy", "scipy"],
    external=lambda config, secret_id: digests(config),
    determinism="machine",
)
def score_toxicity(
    documents: Table, signals: Table | None, config: ScoreToxicityConfig, work: Work
) -> None:
    """``signals``: those of the stage ``language``; without them all documents are scored."""
    pairs = aligned(documents, signals) if signals else [(part, None) for part in documents.parts]
    items = [Item(*pair) for pair in pairs]
    up_to, recall = -1.0, None
    work.mapper = mapper_of(config.cascade.cheap if config.cascade else config.scorer, work.mapper)
    if config.cascade:
        items, up_to, recall = cascade(items, config, work)
    done = work.parts(score_part, items, up_to, config)
    total: Counter[str] = Counter()
    for part in done:
        total.update({name: count for name, count in part.value.items() if name != "why"})
    some_scored(total["scored"], total["failed"], [part.value["why"] for part in done], config)
    if config.cascade and recall:
        work.table("cascade").write(row_of(recall, config.cascade, total["cleared"]))
    for name in ("windows", "unscored"):
        work.measure(name, total[name], "windows")
    for status in STATUS[1:]:
        work.measure(status, total[status], "documents")
