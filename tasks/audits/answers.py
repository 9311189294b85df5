"""Answers: items with what a model said, scorers scored and the training text holds for their sake.

Probes read them part by part, in the order of their items. Where a script stands in place of the
model, its answers look the same.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.exchange import EMBEDDINGS, REFERRED, TRACED, TRACES
from tasks.audits.judging.readings import Readings
from tasks.contract import text_hashes


class Answers:
    """Items with what was answered and scored for their sake; ``floor``: what an untrained model
    answered; ``traced``: rows of TRACED about the responses; ``held``: of HELD; ``embeddings``: of
    EMBEDDINGS; ``referred``: of REFERRED; ``scorers``: of SCORER."""

    def __init__(
        self,
        items: pa.Table,
        requests: pa.Table,
        responses: pa.Table,
        scores: pa.Table | None = None,
        reader: pa.Table | None = None,
        skipped: pa.Table | None = None,
        scorer: str = "",
        readings: Readings | None = None,
        floor: Answers | None = None,
        traced: pa.Table | None = None,
        held: pa.Table | None = None,
        scorers: pa.Table | None = None,
        embeddings: pa.Table | None = None,
        referred: pa.Table | None = None,
    ) -> None:
        for name in TRACES:  # null where nothing was looked for
            told = pa.nulls(len(responses), pa.int32()) if traced is None else traced[name]
            responses = responses.append_column(TRACED.field(name), told)
        responses = responses.append_column(REFERRED.field(2), _referred(responses, referred))
        self.items, self.requests, self.responses = items, requests, responses
        self.scorer, self.readings, self.held, self.floor = scorer, readings, held, floor
        self.kind, self.begin = "", ""
        if reader is not None:
            self.kind, self.begin = reader["kind"][0].as_py(), reader["begin"][0].as_py()
        self.skipped = [] if skipped is None else skipped.to_pylist()
        self._scores, self._embeddings = scores, embeddings
        self._scorers = [] if scorers is None else scorers.to_pylist()

    def of(self, part: str = "", answered: pa.Table | None = None) -> pa.Table:
        """What was ``answered`` to the requests of one part, by default the responses: beside their
        columns ``row``, the row of the item in ``items``; sorted by that and by draw."""
        answered = self.responses if answered is None else answered
        asked = self.requests.filter(pc.equal(self.requests["part"], part))
        order = np.argsort(_places(answered["request"], asked["request"]), kind="stable")
        found = answered.take(pa.array(order))
        first = _places(asked["request"], found["request"])
        counts = {r["values"]: r["counts"] for r in found["request"].value_counts().to_pylist()}
        many = np.array([counts.get(r, 0) for r in asked["request"].to_pylist()], np.int64)
        starts = np.repeat(first, many)
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        rows = np.repeat(_places(asked["item"], self.items["item"]), many)
        joined = found.take(pa.array(starts + within)).append_column("row", pa.array(rows))
        return joined.sort_by([("row", "ascending"), ("draw", "ascending")])

    def sums(self, part: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of each text that was read for a part, in the order of ``of``: the row of its item, which
        of its targets it is, its log p in nats, NaN where the model gave no number, and the tokens
        that it was summed over."""
        found = self.of(part)
        lists = found["log_p"].combine_chunks()
        counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        owner = np.repeat(np.arange(len(found)), counts)
        flat = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        sums = np.bincount(owner, flat, minlength=len(found))
        return found["row"].to_numpy(), found["draw"].to_numpy(), sums, counts

    def totals(self, part: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Of each item the log p of each of its targets, in nats, (n, targets) float64, NaN where
        there is none or the model gave no number; and the tokens of each, (n, targets)."""
        rows, draws, sums, counts = self.sums(part)
        shape = len(self.items), 1 + max(draws, default=0)
        values, tokens = np.full(shape, np.nan), np.zeros(shape, np.int64)
        values[rows, draws], tokens[rows, draws] = sums, counts
        return values, tokens

    def embeddings(self, part: str = "") -> np.ndarray:
        """Of each item the embedding of each of its targets, (n, targets, d) float64, NaN where
        there is none."""
        empty = EMBEDDINGS.empty_table() if self._embeddings is None else self._embeddings
        found = self.of(part, empty)
        rows, draws = found["row"].to_numpy(), found["draw"].to_numpy()
        made = found["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        made = made.reshape(len(rows), -1) if len(rows) else np.empty((0, 0))
        vectors = np.full((len(self.items), 1 + max(draws, default=0), made.shape[1]), np.nan)
        vectors[rows, draws] = made
        return vectors

    def times(self) -> np.ndarray:
        """How often what was sought for the sake of each item stands whole in what training had
        read, (n,) float64; NaN where nothing was sought, or nothing is known."""
        found = np.full(len(self.items), np.nan)
        if self.held is not None:
            at = _places(self.held["item"], self.items["item"])
            found[at] = self.held["times"].to_numpy(zero_copy_only=False)
        return found

    def seen(self) -> list[bool | None] | None:
        """Of each item whether a text of it stands whole in what training had read; None where that
        is not known of any."""
        times = self.times()
        if np.isnan(times).all():
            return None
        return [None if np.isnan(many) else many > 0 for many in times.tolist()]

    def read(self) -> list[int | None]:
        """Of each item how often training had read it: as it was sought, else all documents that
        hold it; None where that is not known, or no documents do."""
        named = [None] * len(self.items)
        if "doc_ids" in self.items.column_names:
            named = self.items["doc_ids"].to_pylist()
        known = self.readings
        whole = [known.of(ids) if known and ids is not None else None for ids in named]
        return [own if np.isnan(many) else int(many)
                for own, many in zip(whole, self.times().tolist(), strict=True)]  # fmt: skip

    def scripted(self, values: np.ndarray) -> Answers:
        """The same items, answered by a script: the log p of each target of each, (n, targets), or
        its embedding, (n, targets, d), or texts that it wrote, (n, draws)."""
        return Scripted(self, values)

    def scorers(self, head: str = "toxicity") -> list[str]:
        """Those that have this head, as findings name them."""
        return [row["scorer"] for row in self._scorers if head in row["heads"]]

    @property
    def heads(self) -> list[str]:
        """What the first scorer scores."""
        return [*self._scorers[0]["heads"]] if self._scorers else []

    def scores(
        self, texts: pa.Array | pa.ChunkedArray, head: str = "toxicity", scorer: str = ""
    ) -> np.ndarray:
        """Of each text, (n,) float32; NaN where there is none. ``scorer``: one of ``scorers``, the
        first of them unless another is named."""
        found = np.full(len(texts), np.nan, np.float32)
        if self._scores is None or not len(texts):
            return found
        known = self._scores.filter(pc.equal(self._scores["head"], head))
        who = scorer or next(iter(self.scorers(head)), "")
        if who:
            known = known.filter(pc.equal(known["scorer"], who))
        at = _places(text_hashes(texts), known["text"])
        there = at >= 0
        values = known["score"].to_numpy(zero_copy_only=False).astype(np.float32)
        found[there] = values[at[there]]
        return found

    def whole(self, found: pa.Table) -> pa.Array:
        """Of rows of ``of``, (n,), what a scorer reads that reads whole texts."""
        return whole_texts(self.requests, found)


class Scripted(Answers):
    """Answers of nobody: what a probe makes of them is known."""

    def __init__(self, answers: Answers, values: np.ndarray) -> None:
        vars(self).update(vars(answers))
        self._values = values

    def of(self, part: str = "", answered: pa.Table | None = None) -> pa.Table:
        """Texts that the script wrote, or read: then of one token each, against a vocabulary whose
        log p have mean 0 and deviation 1."""
        rows, draws = np.indices(self._values.shape).reshape(2, -1)
        if self._values.dtype.kind not in "fi":
            texts = pa.array(self._values.reshape(-1), pa.large_string())
            return pa.table({"row": rows, "draw": draws, "text": texts})
        nobody = pa.nulls(len(rows), pa.float64())
        lists = [self._values.reshape(-1), np.zeros(len(rows)), np.ones(len(rows))]
        ends = pa.array(np.arange(len(rows) + 1), pa.int32())
        said = {
            name: pa.ListArray.from_arrays(ends, pa.array(values, pa.float32()))
            for name, values in zip(("log_p", "mean", "std"), lists, strict=True)
        }
        return pa.table({"row": rows, "draw": draws, "reference": nobody, **said})

    def embeddings(self, part: str = "") -> np.ndarray:
        return self._values


#: What stands in the place of those whom a text is about (Sheng et al. 2019).
MASK = "XYZ"


def whole_texts(requests: pa.Table, responses: pa.Table) -> pa.Array:
    """Of each response, (n,) large_string, what a scorer of whole texts reads: what its request
    says stands before it, and what was written, without whom it is about; null where the request
    says nothing stands before."""
    told = requests.filter(pc.is_valid(requests["before"])).select(["request", "before", "masked"])
    about = {row["request"]: row for row in told.to_pylist()}
    names = {tuple(row["masked"]) for row in about.values()}
    hidden = {
        masked: re.compile(rf"\b(?:{'|'.join(map(re.escape, masked))})\b", re.IGNORECASE)
        for masked in names
        if masked
    }
    texts: list[str | None] = []
    for request, text in zip(
        responses["request"].to_pylist(), responses["text"].to_pylist(), strict=True
    ):
        row = about.get(request)
        if row is None or text is None:
            texts.append(None)
            continue
        whole, masked = row["before"] + text, tuple(row["masked"])
        texts.append(hidden[masked].sub(MASK, whole) if masked else whole)
    return pa.array(texts, pa.large_string())


def _referred(responses: pa.Table, referred: pa.Table | None) -> pa.Array:
    """What a reference model says of each response; null where it was asked nothing."""
    if referred is None:
        return pa.nulls(len(responses), pa.float64())
    keys = [zip(*(t[name].to_pylist() for name in ("request", "draw")), strict=True)
            for t in (referred, responses)]  # fmt: skip
    known = dict(zip(keys[0], referred["reference"].to_pylist(), strict=True))
    return pa.array([known.get(key) for key in keys[1]], pa.float64())


def _places(ids: Any, among: Any) -> np.ndarray:
    """Where each id first stands among others, (n,) int64; -1: nowhere."""
    values = among.combine_chunks() if isinstance(among, pa.ChunkedArray) else among
    found = pc.fill_null(pc.index_in(ids, value_set=values), -1)
    return found.to_numpy(zero_copy_only=False).astype(np.int64)
