"""Fates: where each document of a corpus went, by the ledgers of its stages, and whose it is.

Held for each document: its id, its place in the history, its cluster and its signals, about 120
bytes; no text. What ingest took out never was a document: of it only the source is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.contract import Artifact, HallmarkError, Table
from tasks.corpus.people import LEAVING
from tasks.corpus.people.swaps import UNDETERMINED
from tasks.corpus.rules import tagging_rules
from tasks.measures.ratios import Group

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

#: What can tell people's documents apart: signals of the stages ``language`` and ``identities``,
#: and the source.
DIMENSIONS = {
    "identity": "identities",
    "dialect": "dialects",
    "language": "language",
    "length": "length_class",
    "source": "source",
}

#: Mentions and markers are looked for in English; documents surely in another language are none
#: of those that a group is compared with.
ENGLISH = ("identity", "dialect")

STAYED = 1 << 30


@dataclass(frozen=True)
class Cause:
    """Why documents left, or would have: a reason in the ledger of a stage; or a rule that tagged
    documents and kept them."""

    stage: str
    reason: str
    order: int  # place of the stage in the history
    hit: Bool  # (n,)
    tags: bool = False  # the rule tagged these documents and kept them


@dataclass
class Fates:
    """The documents of the first stage, and what became of them; behind them what that stage took
    out itself, of which nothing but the source is known. Arrays (n,), ``ids`` of the first alone.

    ``left``: the place in the history of the stage at which a document left, STAYED if it did not;
    ``copy``: it left as a copy of another one; ``twin``: the place of that one, -1 where it is of
    an earlier corpus, and for all others.
    """

    ids: pa.Array
    left: Int64
    why: Int64  # number in ``reasons``, -1 if it stayed
    copy: Bool
    twin: Int64
    cluster: Int64
    reasons: list[tuple[str, str]]
    causes: list[Cause]
    groups: dict[tuple[str, str], Bool]  # by dimension and name: who belongs to it
    source: Int64  # numbers
    known: Bool  # has signals, its own or its twin's
    english: Bool
    first: str = ""  # label of the first stage
    _groups: dict[str, dict[str, Group]] = field(default_factory=dict)

    @cached_property
    def root(self) -> Int64:
        """Of each copy the last keeper in its chain that is of this corpus: a twin that left as a
        copy has a twin, unless that is of an earlier one."""
        chained = self.twin >= 0
        root = np.where(chained, self.twin, np.arange(len(self.twin)))
        while chained[root].any():
            root = np.where(chained[root], self.twin[root], root)
        return root

    @cached_property
    def lost(self) -> Bool:
        """Left as a copy, and what it was a copy of left later for another reason. What is a copy
        of an earlier document is not lost: that one is in the corpus."""
        return self.copy & (self.left[self.root] < STAYED) & ~self.copy[self.root]

    @cached_property
    def whole(self) -> Bool:
        """By cluster: none of its documents stayed."""
        stayed = np.bincount(self.cluster, self.left == STAYED)
        return stayed == 0

    def at_risk(self, dimension: str) -> Bool:
        """Documents that the groups of a dimension are compared among."""
        if dimension == "source":
            return np.ones(len(self.known), bool)
        return self.known & self.english if dimension in ENGLISH else self.known

    def slices(self, dimension: str, least: int) -> dict[str, Group]:
        """The groups of a dimension with at least so many documents, by their names."""
        if dimension not in self._groups:
            risk = self.at_risk(dimension)
            self._groups[dimension] = {
                name: Group.of(np.flatnonzero(member & risk), self.cluster)
                for (of, name), member in sorted(self.groups.items())
                if of == dimension and (member & risk).sum() >= least
            }
        return self._groups[dimension]


def fates(history: Mapping[str, Artifact], taken: pa.Table | None = None) -> Fates:
    """``history``: the artifacts of the corpus stages by label, in the order they ran; ``taken``:
    clusters of what left before there were any (people/taken.py).

    Raises HallmarkError where no stage left documents, or none said whom they mention.
    """
    first = next((label for label, a in history.items() if "documents" in a.tables), None)
    if first is None:
        raise HallmarkError("no stage of the history left documents")
    rows = history[first]["documents"].read(["doc_id", "source"]).sort_by("doc_id")
    ids = rows["doc_id"].combine_chunks()
    refused = _refused(history[first])
    source = pa.chunked_array([*rows["source"].chunks, *refused["source"].chunks], pa.string())
    source = source.combine_chunks()
    n = len(source)
    place = Places(ids)
    left, why, twin = np.full(n, STAYED), np.full(n, -1), np.full(n, -1)
    copy = np.zeros(n, bool)
    reasons: list[tuple[str, str]] = []
    causes: list[Cause] = []
    for order, (label, artifact) in enumerate(history.items()):
        if "ledger" not in artifact.tables:
            continue
        ledger = artifact["ledger"].read(["doc_id", "action", "reason", "score", "matched"])
        left_here = _at_once(refused, n) if label == first else _departures(ledger, place)
        for reason, action, at, copied, matched in left_here:
            gone = at[left[at] == STAYED] if action in LEAVING else at[:0]
            if len(gone):
                left[gone], why[gone] = order, _number(reasons, (label, reason))
                here = np.isin(at, gone)
                copy[at], twin[at] = (
                    np.where(here, new, old[at]) for new, old in ((copied, copy), (matched, twin))
                )
            hit = _cause(causes, label, reason, order, n).hit
            hit[at] = True
        for rule, at in _tagged_places(artifact, place):
            cause = Cause(label, rule, order, np.zeros(n, bool), tags=True)
            cause.hit[at] = True
            causes.append(cause)
    cluster = _clusters(history, place, twin, taken)
    groups, known, english = _groups(history, place, twin, source)
    number = source.dictionary_encode().indices.to_numpy().astype(np.int64)
    return Fates(ids, left, why, copy, twin, cluster, reasons, causes, groups, number, known,
                 english, first)  # fmt: skip


def _refused(first: Artifact) -> pa.Table:
    """Source and reason of each document that the first stage took out: it never was one of those
    that the stage left, and no later stage saw it."""
    names = ["source", "action", "reason"]
    if "ledger" not in first.tables:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    rows = first["ledger"].read(names)
    return rows.filter(pc.is_in(rows["action"], value_set=pa.array(LEAVING)))


def _at_once(refused: pa.Table, n: int) -> Iterator[tuple[str, str, Int64, Bool, Int64]]:
    """``_departures`` of these, which are the last of n."""
    for pair in refused.group_by(["action", "reason"]).aggregate([]).sort_by("reason").to_pylist():
        here = pc.and_(*(pc.equal(refused[name], value) for name, value in pair.items()))
        at = n - len(refused) + np.flatnonzero(here.to_numpy())
        yield pair["reason"], pair["action"], at, np.zeros(len(at), bool), np.full(len(at), -1)


class Places:
    """Where documents stand among sorted ids."""

    def __init__(self, ids: pa.Array) -> None:
        self._sorted = _keys(ids)

    def of(self, ids: pa.Array | pa.ChunkedArray) -> Int64:
        """-1 for those that are not among them, and for null."""
        found = np.full(len(ids), -1, np.int64)
        if not len(self._sorted) or not len(ids):
            return found
        if isinstance(ids, pa.ChunkedArray):
            ids = ids.combine_chunks()
        known = ids.is_valid().to_numpy(zero_copy_only=False)
        keys = _keys(ids.drop_null())
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        found[known] = np.where(self._sorted[at] == keys, at, -1)
        return found


def _keys(ids: pa.Array) -> NDArray[np.void]:
    """16-byte ids as pairs of numbers that sort as the bytes do."""
    halves = np.frombuffer(b"".join(ids.to_pylist()), ">u8").astype(np.uint64).reshape(-1, 2)
    pairs = np.empty(len(halves), [("high", np.uint64), ("low", np.uint64)])
    pairs["high"], pairs["low"] = halves.T
    return pairs


def _departures(ledger: pa.Table, place: Places) -> Iterator[tuple[str, str, Int64, Bool, Int64]]:
    """(reason, action, places, whether as copies, places of the twins) of the rows about whole
    documents that leave, or would have; removed ones before those that are rows ``also``. A twin
    that leaves here itself is the earlier document of that id, to whose corpus this one adds; it
    has no place here, as no earlier document has."""
    ledger = ledger.filter(pc.is_in(ledger["action"], value_set=pa.array([*LEAVING, "also"])))
    pairs = ledger.group_by(["action", "reason"]).aggregate([]).to_pylist()
    pairs.sort(key=lambda pair: (pair["action"] == "also", pair["reason"], pair["action"]))
    left = pc.is_in(ledger["action"], value_set=pa.array(LEAVING))
    leaving = place.of(ledger.filter(left)["doc_id"])
    for pair in pairs:
        here = pc.and_(*(pc.equal(ledger[name], value) for name, value in pair.items()))
        rows = ledger.filter(here)
        at = place.of(rows["doc_id"])
        ours = at >= 0  # of none but the documents of the first stage
        twin = place.of(rows["matched"])
        twin[np.isin(twin, leaving)] = -1
        # Without a similarity: a record that came again under its id, with another text.
        copied = pc.and_(rows["matched"].is_valid(), rows["score"].is_valid()).to_numpy()
        yield pair["reason"], pair["action"], at[ours], copied[ours], twin[ours]


def _tagged_places(artifact: Artifact, place: Places) -> Iterator[tuple[str, Int64]]:
    """Yield each tagging rule of a stage with the places of the documents that it tagged."""
    rules = tagging_rules(artifact)
    if not rules:
        return
    rows = artifact["documents"].read(["doc_id", "tags"])
    tags = rows["tags"].combine_chunks()
    names, owners = pc.list_flatten(tags), pc.list_parent_indices(tags)
    for rule in rules:
        tagged = pc.unique(owners.filter(pc.equal(names, rule)))
        yield rule, place.of(rows["doc_id"].take(tagged))


def _number(reasons: list[tuple[str, str]], found: tuple[str, str]) -> int:
    if found not in reasons:
        reasons.append(found)
    return reasons.index(found)


def _cause(causes: list[Cause], stage: str, reason: str, order: int, n: int) -> Cause:
    known = next((c for c in causes if (c.stage, c.reason) == (stage, reason)), None)
    if known is None:
        known = Cause(stage, reason, order, np.zeros(n, bool))
        causes.append(known)
    return known


def _clusters(
    history: Mapping[str, Artifact], place: Places, twin: Int64, taken: pa.Table | None
) -> Int64:
    """The number of each document's cluster: the last that a stage gave it, a copy's its twin's.
    One that is named after an earlier document, of what this corpus adds to, has no place here."""
    cluster = np.arange(len(twin))
    afar: dict[bytes, int] = {}
    for artifact in history.values():
        if artifact.stage.startswith("deduplicate"):
            rows = artifact["documents"].read(["doc_id", "cluster"])
            at, found = place.of(rows["doc_id"]), place.of(rows["cluster"])
            away = np.flatnonzero(found < 0)
            names = rows["cluster"].take(pa.array(away)).to_pylist()
            found[away] = [len(twin) + afar.setdefault(name, len(afar)) for name in names]
            cluster[at[at >= 0]] = found[at >= 0]
    if taken is not None:
        cluster[place.of(taken["doc_id"])] = cluster[place.of(taken["cluster"])]
    copy = twin >= 0
    while True:  # chains of twins are short: a copy's keeper stood in its own stage
        moved = np.where(copy, cluster[np.where(copy, twin, 0)], cluster)
        if (moved == cluster).all():
            return np.unique(cluster, return_inverse=True)[1].astype(np.int64)
        cluster = moved


def signal_table(history: Mapping[str, Artifact], name: str) -> Table | None:
    """The table ``signals`` that has this one; None where no stage left it."""
    tables = [a["signals"] for a in history.values() if "signals" in a.tables]
    return next((t for t in tables if name in t.columns), None)


def signal(history: Mapping[str, Artifact], name: str, fates: Fates) -> NDArray[np.float64] | None:
    """A signal that is a number, (n,), NaN where there is none; None where no stage left it."""
    table = signal_table(history, name)
    if table is None or name not in table.columns:
        return None
    rows = table.read(["doc_id", name])
    at = Places(fates.ids).of(rows["doc_id"])
    values = np.full(len(fates.left), np.nan)
    values[at[at >= 0]] = rows[name].cast(pa.float64()).to_numpy()[at >= 0]
    return values


def _groups(
    history: Mapping[str, Artifact], place: Places, twin: Int64, source: pa.Array
) -> tuple[dict[tuple[str, str], Bool], Bool, Bool]:
    """Who belongs to which group, who has signals, and who is not surely in another language."""
    n = len(twin)
    found: dict[tuple[str, str], Bool] = {}
    known, english = np.ones(n, bool), np.ones(n, bool)
    for dimension, name in DIMENSIONS.items():
        if name == "source":
            for value in pc.unique(source).to_pylist():
                here = pc.equal(source, value)
                found[dimension, value] = here.to_numpy(zero_copy_only=False)
            continue
        table = signal_table(history, name)
        if table is None:
            if name == "identities":
                raise HallmarkError("no stage of the history said whom the documents mention")
            continue
        rows = table.read(["doc_id", name])
        at = place.of(rows["doc_id"])
        if (at < 0).any():
            raise HallmarkError(
                f"the signals of {table.artifacts[0].name} are about documents that the history "
                f"does not begin with: they must have been made of the same corpus"
            )
        row_of = _rows_of(at, twin)
        known &= row_of >= 0
        for value, member in _members(rows[name].combine_chunks(), len(rows)):
            found[dimension, value] = np.append(member, False)[row_of]
        if name == "language":
            english = found.get((dimension, "en"), ~english) | found.get(
                (dimension, UNDETERMINED), np.zeros(n, bool)
            )
    return found, known, english


def _rows_of(at: Int64, twin: Int64) -> Int64:
    """For each document its row among the signals, a copy's where it has none its twin's; or -1.
    ``at``: the places of the documents that have rows."""
    row_of = np.full(len(twin), -1)
    row_of[at[at >= 0]] = np.flatnonzero(at >= 0)
    while True:
        lent = np.where((row_of < 0) & (twin >= 0), row_of[twin], row_of)
        if (lent == row_of).all():
            return row_of
        row_of = lent


def _members(values: pa.Array, rows: int) -> Iterator[tuple[str, Bool]]:
    """Each value of a column of labels or of lists of them, and the rows that have it."""
    if pa.types.is_list(values.type):
        flat, owner = pc.list_flatten(values), pc.list_parent_indices(values).to_numpy()
    else:
        flat, owner = pc.fill_null(values, UNDETERMINED), np.arange(rows)
    encoded = flat.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        member = np.zeros(rows, bool)
        member[owner[codes == code]] = True
        yield value, member
