"""Trace: where in the training text stands what a model wrote, word for word, and how often
training had read what it was asked about.

Both are indexed and the packed rows of the training stream past them, those that were read
by the checkpoint's step; memory grows with the corpus by 16 bytes a row. A run of tokens counts
where it stands within one row, as the model read it. Nothing here knows what responses are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, model_validator

from model.training.data import step_of, times_read
from tasks.audits.exchange import HELD, TRACED
from tasks.audits.judging.readings import step_of as left_at
from tasks.audits.matching import Int32, Int64, Runs, Windows
from tasks.contract import ID, Artifact, StageConfig, Table, Work, column, stage, table, text_hashes

#: Tokens of the corpus that are looked through together.
STRETCH = 1 << 20


class TraceConfig(StageConfig):
    """Settings of the search for responses in the training text."""

    enabled: bool = Field(default=True, description="whether responses are looked for")
    least: int = Field(
        default=8, ge=2, le=1000, description="tokens of the shortest run that is told"
    )
    verbatim: int = Field(
        default=50, ge=2, le=10_000, description="tokens from which a run is verbatim reuse"
    )
    places: int = Field(
        default=5, ge=1, le=1000, description="places that are kept of a text, its longest runs"
    )

    @model_validator(mode="after")
    def _ordered(self) -> TraceConfig:
        if self.verbatim < self.least:
            raise ValueError("verbatim must not be smaller than least")
        return self


SPANS = table(
    "Where in the training text the longest runs of what was written stand.",
    column("text", ID, "id", "hash of the text that was written"),
    column("start", pa.int32(), "figure", "its first token of the run, from 0", unit="tokens"),
    column("size", pa.int32(), "figure", "tokens of the run", unit="tokens"),
    column("doc_id", ID, "id", "the training document where the run begins"),
    column("source", pa.string(), "label", "source of the document"),
    column("cluster", ID, "id", "the near-duplicates that the document belongs to"),
    column("training", pa.int32(), "label", "0: the training that left the checkpoint; 1: the one "
           "that it went on from, and so on"),
    column("sequence", pa.int64(), "figure", "packed row of the training, from 0"),
    column("place", pa.int32(), "figure", "first position of the run in the row", unit="tokens"),
    column("char_start", pa.int32(), "figure", "first character of the run in the document",
           unit="characters"),
    column("char_end", pa.int32(), "figure", "the character behind its last", unit="characters"),
    column("first_step", pa.int64(), "figure", "first step of that training that read the row"),
    column("read", pa.int64(), "figure", "how often that training had read the row by this "
           "checkpoint's step, or until it was gone on from", unit="times"),
)  # fmt: skip


@dataclass
class Best:
    """Of each text the longest runs found so far, ``keep`` of them."""

    keep: int
    rows: pa.Table | None = None

    def add(self, runs: Runs, training: int, numbers: Int64, characters: Sequence[Int32]) -> None:
        """``numbers`` of the rows of a training; ``characters``: where each token of them begins
        and ends in its document."""
        begin, end = characters
        made = pa.table(
            {
                "text": runs.text,
                "start": runs.start,
                "size": runs.size,
                "training": np.full(len(runs.text), training),
                "sequence": numbers[runs.row],
                "place": runs.place,
                "char_start": begin[runs.row, runs.place],
                "char_end": end[runs.row, runs.place + runs.size - 1],
            }
        )
        joined = made if self.rows is None else pa.concat_tables([self.rows, made])
        then = ("training", "sequence", "place", "start")
        by: Any = [("text", "ascending"), ("size", "descending"), *((n, "ascending") for n in then)]
        joined = joined.sort_by(by)
        text = joined["text"].to_numpy()
        within = np.arange(len(text)) - np.searchsorted(text, text)
        self.rows = joined.filter(pa.array(within < self.keep))


@dataclass
class Planted:
    """Where planted documents stand in the training rows: (n,) begins and ends in the flat rows, in
    their order."""

    begin: Int64
    end: Int64

    @classmethod
    def of(cls, spans: Table, plants: Table | None, width: int) -> Planted:
        ids = [] if plants is None else pc.list_flatten(plants.read(["doc_ids"])["doc_ids"])
        named = pc.unique(ids).cast(ID) if len(ids) else pa.array([], ID)
        wanted = (pc.field("split") == "train") & pc.field("doc_id").isin(named)
        found = spans.dataset().to_table(["sequence", "start", "end"], filter=wanted)
        base = found["sequence"].to_numpy() * width
        order = np.argsort(base + found["start"].to_numpy())
        begin, end = (base + found[name].to_numpy() for name in ("start", "end"))
        return cls(begin[order], end[order])

    def within(self, begin: Int64, size: Int64) -> Int64:
        """Tokens of runs, at places in the flat rows, that lie in one of them, (n,)."""
        if not len(self.begin):
            return np.zeros(len(begin), np.int64)
        # Of planted documents side by side the run's longest piece may lie in a later one.
        best = np.zeros(len(begin), np.int64)
        at = np.searchsorted(self.end, begin, "right")
        while True:
            known = at < len(self.begin)
            here = np.minimum(at, len(self.begin) - 1)
            shared = np.minimum(self.end[here], begin + size) - np.maximum(self.begin[here], begin)
            shared = np.where(known, shared, 0)
            if (shared <= 0).all():
                return best
            best, at = np.maximum(best, shared), at + 1


def distinct(texts: Iterable[Sequence[int]]) -> tuple[list[list[int]], Int64]:
    """The token ids of each distinct text, and which of them each text is."""
    numbers: dict[tuple[int, ...], int] = {}
    which = [numbers.setdefault(tuple(ids), len(numbers)) for ids in texts]
    return [list(ids) for ids in numbers], np.array(which, np.int64)


@stage(
    tables={"traced": TRACED, "held": HELD, "spans": SPANS},
    libraries=["numpy"],
    reads={
        "asked": ("sought",),
        "answered": ("responses",),
        "packed": ("train", "spans"),
        "pretrained": ("checkpoints",),
    },
)
def trace(
    asked: Artifact,
    answered: Artifact,
    checkpoints: dict[str, Artifact],
    pretrained: dict[str, Artifact],
    packed: dict[str, Artifact],
    documents: Table,
    plants: Table,
    config: TraceConfig,
    work: Work,
) -> None:
    """``pretrained``: the training, and those that it went on from, each with the checkpoint that
    it left and what it read; ``documents``: of the corpora, packed or left out."""
    responses = answered["responses"].read(["request", "draw", "text", "ids"])
    written = pc.is_valid(responses["ids"]).to_numpy()
    sought = asked["sought"].read(["item", "ids"])
    wanted, places = distinct(sought["ids"].to_pylist())
    texts, which = distinct(responses["ids"].filter(pa.array(written)).to_pylist())
    names = names_of(responses["text"].filter(pa.array(written)), which, len(texts))
    windows, reuse = Windows(texts, config.least), Windows(texts, config.verbatim)
    whole, times = Windows(wanted, config.least), np.zeros(len(wanted), np.int64)
    covered = np.zeros(len(windows.tokens), bool)
    longest, plant = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    trainings = [Training.of(checkpoints[name], pretrained[name], packed[name])
                 for name in pretrained]  # fmt: skip
    best, done, total = Best(config.places), 0, sum(len(each.read) for each in trainings)
    for number, training in enumerate(trainings):
        planted = Planted.of(training.spans, plants, training.width)
        for numbers, rows, *characters in stretches(training):
            runs = windows.runs(rows)
            np.maximum.at(longest, runs.text, runs.size)
            begin = numbers[runs.row] * training.width + runs.place
            inside = planted.within(begin, runs.size)
            np.maximum.at(plant, runs.text, np.where(inside >= config.least, inside, 0))
            reuse.cover(rows, covered)
            best.add(runs, number, numbers, characters)
            runs = whole.runs(rows)
            all_of = runs.size == np.diff(whole.first)[runs.text]
            np.add.at(times, runs.text[all_of], training.read[numbers[runs.row[all_of]]])
            work.progress(done + int(numbers[-1]) + 1, total, "training rows")
        done += len(training.read)
    reused = np.add.reduceat(np.append(covered, False), windows.first[:-1]) if texts else longest
    reused = np.where(np.diff(windows.first) > 0, reused, 0)
    told = {"longest": longest, "verbatim": reused, "planted": plant}
    at = np.full(len(responses), -1)
    at[written] = which
    columns = {name: pa.array(np.append(values, 0)[at], pa.int32(), mask=~written)
               for name, values in told.items()}  # fmt: skip
    work.table("traced").write(
        pa.table({"request": responses["request"], "draw": responses["draw"], **columns},
                 schema=TRACED)
    )  # fmt: skip
    long = np.diff(whole.first) >= config.least
    work.table("held").write(held(sought["item"], times[places], long[places]))
    parts = [placed(best.rows, number, training, names, documents)
             for number, training in enumerate(trainings)]  # fmt: skip
    work.table("spans").write(pa.concat_tables([SPANS.empty_table(), *parts]))


def held(items: pa.ChunkedArray, times: Int64, known: NDArray[np.bool_]) -> pa.Table:
    """Rows of HELD, from how often each text of an item was found; ``known``: whether it is long
    enough to be. Texts that are not are passed over where others are."""
    rows = pa.table({"item": items, "times": pa.array(times, mask=~known)})
    sums = rows.group_by("item", use_threads=False).aggregate([("times", "sum")])
    return pa.table([sums["item"], sums["times_sum"]], HELD.names).cast(HELD)


def names_of(texts: pa.ChunkedArray, which: Int64, count: int) -> pa.Array:
    """Of each distinct text the hash of its spelling, (count,)."""
    row = np.zeros(count, np.int64)
    row[which[::-1]] = np.arange(len(texts))[::-1]  # the first that is the same
    return text_hashes(texts.take(pa.array(row)))


@dataclass(frozen=True)
class Training:
    """What a training read until it left a checkpoint: its rows of ``width`` tokens, and where
    documents stand in them; how often it had read each, and the first step that did, (rows,)."""

    train: Table
    spans: Table
    width: int
    read: Int64
    first_step: Int64

    @classmethod
    def of(cls, checkpoint: Artifact, pretrained: Artifact, packed: Artifact) -> Training:
        rows, width = packed["train"].rows, packed["train"].dataset().schema.field("ids").type
        read, first = reading(checkpoint, pretrained, rows)
        return cls(packed["train"], packed["spans"], width.list_size, read, first)


def reading(checkpoint: Artifact, pretrained: Artifact, rows: int) -> tuple[Int64, Int64]:
    """Of each training row how often it was read by the checkpoint's step, and the first step that
    did, (rows,) each."""
    train = pretrained.manifest["parts"]["config"]["train"]
    seed, batch = train["seed"], train["batch_size"]
    first = step_of(np.zeros(rows, np.int64), seed, batch)
    return times_read(seed, left_at(pretrained, checkpoint) or 0, batch, rows), first


def stretches(training: Training) -> Iterator[list[Any]]:
    """Some packed rows at a time, of those that were read: their numbers, (n,), ids, first
    characters and those behind the last, (n, width)."""
    names, width = ["ids", "char_start", "char_end"], training.width
    most, first = max(1, STRETCH // width), 0
    for batch in training.train.batches(names):
        arrays = [batch[name].flatten().to_numpy().reshape(-1, width) for name in names]
        rows = np.flatnonzero(training.read[first : first + len(batch)])
        for some in np.split(rows, range(most, len(rows), most)):
            if len(some):
                yield [some + first, *(array[some] for array in arrays)]
        first += len(batch)


def placed(
    best: pa.Table | None, number: int, training: Training, names: pa.Array, documents: Table
) -> pa.Table:
    """Rows of SPANS: of the longest runs of what was written those in the rows of a training, with
    the documents that they begin in, and when these were read. ``names``: the hash of each text."""
    if best is None:
        return SPANS.empty_table()
    best = best.filter(pc.equal(best["training"], number)).combine_chunks()
    best = best.set_column(0, "text", names.take(best["text"].combine_chunks()))
    sequences = pc.unique(best["sequence"])
    wanted = (pc.field("split") == "train") & pc.field("sequence").isin(sequences)
    known = training.spans.dataset().to_table(["sequence", "start", "doc_id"], filter=wanted)
    known = known.sort_by([("sequence", "ascending"), ("start", "ascending")])
    # The stretch in which a run begins: the last that does not begin behind it.
    wide = 1 << 32
    keys = known["sequence"].to_numpy() * wide + known["start"].to_numpy()
    row, place = best["sequence"].to_numpy(), best["place"].to_numpy()
    at = np.searchsorted(keys, row * wide + place, "right") - 1
    doc_id = known["doc_id"].combine_chunks().take(pa.array(at))
    about = documents.find(pc.unique(doc_id).to_pylist(), ["doc_id", "source", "cluster"])
    about = about.take(pc.index_in(doc_id, value_set=about["doc_id"].combine_chunks()))
    columns = {name: best[name] for name in best.column_names}
    columns |= {name: about[name] for name in about.column_names}
    first, read = training.first_step[row], training.read[row]
    columns |= {"first_step": pa.array(first), "read": pa.array(read)}
    return pa.table([columns[name] for name in SPANS.names], SPANS.names).cast(SPANS)
