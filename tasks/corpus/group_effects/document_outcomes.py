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

from hallmark.tasks.contract import Artifact, HallmarkError, Table
from hallmark.tasks.corpus.group_effects import REMOVING_ACTIONS
from hallmark.tasks.corpus.group_effects.swaps import UNDETERMINED_LANGUAGE
from hallmark.tasks.corpus.selection_rules import read_tagging_rule_names
from hallmark.tasks.measures.rate_ratios import ClusteredGroup

Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: What can tell people's documents apart: signals of the stages ``language`` and ``identities``,
#: and the source.
COLUMN_BY_DIMENSION = {
    "identity": "identities",
    "dialect": "dialects",
    "language": "language",
    "length": "length_class",
    "source": "source",
}

#: Mentions and markers are looked for in English; documents surely in another language are none
#: of those that a group is compared with.
ENGLISH_DIMENSIONS = ("identity", "dialect")

NOT_REMOVED = 1 << 30


@dataclass(frozen=True)
class RemovalCause:
    """Why documents left, or would have: a reason in the ledger of a stage; or a rule that tagged
    documents and kept them."""

    stage: str
    reason: str
    stage_index: int  # place of the stage in the history
    is_affected: BoolArray  # (n,)
    only_tags: bool = False  # the rule tagged these documents and kept them


@dataclass
class DocumentOutcomes:
    """The documents of the first stage, and what became of them; behind them what that stage took
    out itself, of which nothing but the source is known. Arrays (n,), ``ids`` of the first alone.

    ``left``: the place in the history of the stage at which a document left, STAYED if it did not;
    ``copy``: it left as a copy of another one; ``twin``: the place of that one, -1 where it is of
    an earlier corpus, and for all others.
    """

    doc_ids: pa.Array
    removed_at: Int64Array
    reason_index: Int64Array  # number in ``reasons``, -1 if it stayed
    is_copy: BoolArray
    duplicate_of: Int64Array
    cluster_index: Int64Array
    reasons: list[tuple[str, str]]
    causes: list[RemovalCause]
    group_members: dict[tuple[str, str], BoolArray]  # by dimension and name: who belongs to it
    source_index: Int64Array  # numbers
    has_signals: BoolArray  # has signals, its own or its twin's
    may_be_english: BoolArray
    first_stage: str = ""  # label of the first stage
    _groups_by_dimension: dict[str, dict[str, ClusteredGroup]] = field(default_factory=dict)

    @cached_property
    def final_original(self) -> Int64Array:
        """Of each copy the last keeper in its chain that is of this corpus: a twin that left as a
        copy has a twin, unless that is of an earlier one."""
        has_original = self.duplicate_of >= 0
        final_original = np.where(
            has_original, self.duplicate_of, np.arange(len(self.duplicate_of))
        )
        while has_original[final_original].any():
            final_original = np.where(
                has_original[final_original], self.duplicate_of[final_original], final_original
            )
        return final_original

    @cached_property
    def is_lost_with_original(self) -> BoolArray:
        """Left as a copy, and what it was a copy of left later for another reason. What is a copy
        of an earlier document is not lost: that one is in the corpus."""
        return (
            self.is_copy
            & (self.removed_at[self.final_original] < NOT_REMOVED)
            & ~self.is_copy[self.final_original]
        )

    @cached_property
    def is_lost_cluster(self) -> BoolArray:
        """By cluster: none of its documents stayed."""
        remaining_counts = np.bincount(self.cluster_index, self.removed_at == NOT_REMOVED)
        return remaining_counts == 0

    def select_at_risk(self, dimension: str) -> BoolArray:
        """Documents that the groups of a dimension are compared among."""
        if dimension == "source":
            return np.ones(len(self.has_signals), bool)
        return (
            self.has_signals & self.may_be_english
            if dimension in ENGLISH_DIMENSIONS
            else self.has_signals
        )

    def find_groups(self, dimension: str, min_documents: int) -> dict[str, ClusteredGroup]:
        """The groups of a dimension with at least so many documents, by their names."""
        if dimension not in self._groups_by_dimension:
            at_risk = self.select_at_risk(dimension)
            self._groups_by_dimension[dimension] = {
                name: ClusteredGroup.from_members(
                    np.flatnonzero(is_member & at_risk), self.cluster_index
                )
                for (group_dimension, name), is_member in sorted(self.group_members.items())
                if group_dimension == dimension and (is_member & at_risk).sum() >= min_documents
            }
        return self._groups_by_dimension[dimension]


def compute_document_outcomes(
    history: Mapping[str, Artifact], removed_clusters: pa.Table | None = None
) -> DocumentOutcomes:
    """``history``: the artifacts of the corpus stages by label, in the order they ran; ``taken``:
    clusters of what left before there were any (people/taken.py).

    Raises HallmarkError where no stage left documents, or none said whom they mention.
    """
    first_stage = next(
        (stage_label for stage_label, a in history.items() if "documents" in a.tables), None
    )
    if first_stage is None:
        raise HallmarkError("no stage of the history left documents")
    first_documents = history[first_stage]["documents"].read(["doc_id", "source"]).sort_by("doc_id")
    doc_ids = first_documents["doc_id"].combine_chunks()
    refused_rows = _read_refused_documents(history[first_stage])
    sources = pa.chunked_array(
        [*first_documents["source"].chunks, *refused_rows["source"].chunks], pa.string()
    )
    sources = sources.combine_chunks()
    document_count = len(sources)
    doc_id_index = DocIdIndex(doc_ids)
    removed_at, reason_index, duplicate_of = (
        np.full(document_count, NOT_REMOVED),
        np.full(document_count, -1),
        np.full(document_count, -1),
    )
    is_copy = np.zeros(document_count, bool)
    reasons: list[tuple[str, str]] = []
    causes: list[RemovalCause] = []
    for stage_index, (stage_label, artifact) in enumerate(history.items()):
        if "ledger" not in artifact.tables:
            continue
        ledger = artifact["ledger"].read(["doc_id", "action", "reason", "score", "matched_doc_id"])
        departures = (
            _group_refused_documents(refused_rows, document_count)
            if stage_label == first_stage
            else _group_ledger_removals(ledger, doc_id_index)
        )
        for reason, action, positions, is_duplicate, matched_positions in departures:
            newly_removed = (
                positions[removed_at[positions] == NOT_REMOVED]
                if action in REMOVING_ACTIONS
                else positions[:0]
            )
            if len(newly_removed):
                removed_at[newly_removed], reason_index[newly_removed] = (
                    stage_index,
                    _get_or_add_reason_index(reasons, (stage_label, reason)),
                )
                is_new_removal = np.isin(positions, newly_removed)
                is_copy[positions], duplicate_of[positions] = (
                    np.where(is_new_removal, new_values, old_values[positions])
                    for new_values, old_values in (
                        (is_duplicate, is_copy),
                        (matched_positions, duplicate_of),
                    )
                )
            is_affected = _get_or_add_cause(
                causes, stage_label, reason, stage_index, document_count
            ).is_affected
            is_affected[positions] = True
        for rule, positions in _find_tagged_documents(artifact, doc_id_index):
            cause = RemovalCause(
                stage_label, rule, stage_index, np.zeros(document_count, bool), only_tags=True
            )
            cause.is_affected[positions] = True
            causes.append(cause)
    cluster_index = _assign_clusters(history, doc_id_index, duplicate_of, removed_clusters)
    group_members, has_signals, may_be_english = _find_group_members(
        history, doc_id_index, duplicate_of, sources
    )
    source_index = sources.dictionary_encode().indices.to_numpy().astype(np.int64)
    return DocumentOutcomes(
        doc_ids,
        removed_at,
        reason_index,
        is_copy,
        duplicate_of,
        cluster_index,
        reasons,
        causes,
        group_members,
        source_index,
        has_signals,
        may_be_english,
        first_stage,
    )


def _read_refused_documents(first_artifact: Artifact) -> pa.Table:
    """Source and reason of each document that the first stage took out: it never was one of those
    that the stage left, and no later stage saw it."""
    names = ["source", "action", "reason"]
    if "ledger" not in first_artifact.tables:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    rows = first_artifact["ledger"].read(names)
    return rows.filter(pc.is_in(rows["action"], value_set=pa.array(REMOVING_ACTIONS)))


def _group_refused_documents(
    refused_rows: pa.Table, document_count: int
) -> Iterator[tuple[str, str, Int64Array, BoolArray, Int64Array]]:
    """``_departures`` of these, which are the last of n."""
    for removal_group in (
        refused_rows.group_by(["action", "reason"]).aggregate([]).sort_by("reason").to_pylist()
    ):
        is_in_group = pc.and_(
            *(pc.equal(refused_rows[name], value) for name, value in removal_group.items())
        )
        positions = document_count - len(refused_rows) + np.flatnonzero(is_in_group.to_numpy())
        yield (
            removal_group["reason"],
            removal_group["action"],
            positions,
            np.zeros(len(positions), bool),
            np.full(len(positions), -1),
        )


class DocIdIndex:
    """Where documents stand among sorted ids."""

    def __init__(self, sorted_doc_ids: pa.Array) -> None:
        self._sorted_keys = _doc_ids_to_sort_keys(sorted_doc_ids)

    def find_positions(self, doc_ids: pa.Array | pa.ChunkedArray) -> Int64Array:
        """-1 for those that are not among them, and for null."""
        positions = np.full(len(doc_ids), -1, np.int64)
        if not len(self._sorted_keys) or not len(doc_ids):
            return positions
        if isinstance(doc_ids, pa.ChunkedArray):
            doc_ids = doc_ids.combine_chunks()
        is_valid = doc_ids.is_valid().to_numpy(zero_copy_only=False)
        keys = _doc_ids_to_sort_keys(doc_ids.drop_null())
        candidates = np.minimum(
            np.searchsorted(self._sorted_keys, keys), len(self._sorted_keys) - 1
        )
        positions[is_valid] = np.where(self._sorted_keys[candidates] == keys, candidates, -1)
        return positions


def _doc_ids_to_sort_keys(doc_ids: pa.Array) -> NDArray[np.void]:
    """16-byte ids as pairs of numbers that sort as the bytes do."""
    halves = np.frombuffer(b"".join(doc_ids.to_pylist()), ">u8").astype(np.uint64).reshape(-1, 2)
    pairs = np.empty(len(halves), [("high", np.uint64), ("low", np.uint64)])
    pairs["high"], pairs["low"] = halves.T
    return pairs


def _group_ledger_removals(
    ledger: pa.Table, doc_id_index: DocIdIndex
) -> Iterator[tuple[str, str, Int64Array, BoolArray, Int64Array]]:
    """(reason, action, places, whether as copies, places of the twins) of the rows about whole
    documents that leave, or would have; removed ones before those that are rows
    ``additional_reason``. A twin that leaves here itself is the earlier document of that id, to
    whose corpus this one adds; it has no place here, as no earlier document has."""
    ledger = ledger.filter(
        pc.is_in(ledger["action"], value_set=pa.array([*REMOVING_ACTIONS, "additional_reason"]))
    )
    removal_groups = ledger.group_by(["action", "reason"]).aggregate([]).to_pylist()
    removal_groups.sort(
        key=lambda removal_group: (
            removal_group["action"] == "additional_reason",
            removal_group["reason"],
            removal_group["action"],
        )
    )
    is_removal = pc.is_in(ledger["action"], value_set=pa.array(REMOVING_ACTIONS))
    removed_positions = doc_id_index.find_positions(ledger.filter(is_removal)["doc_id"])
    for removal_group in removal_groups:
        is_in_group = pc.and_(
            *(pc.equal(ledger[name], value) for name, value in removal_group.items())
        )
        rows = ledger.filter(is_in_group)
        positions = doc_id_index.find_positions(rows["doc_id"])
        is_in_corpus = positions >= 0  # of none but the documents of the first stage
        duplicate_of = doc_id_index.find_positions(rows["matched_doc_id"])
        duplicate_of[np.isin(duplicate_of, removed_positions)] = -1
        # Without a similarity: a record that came again under its id, with another text.
        is_duplicate = pc.and_(
            rows["matched_doc_id"].is_valid(), rows["score"].is_valid()
        ).to_numpy()
        yield (
            removal_group["reason"],
            removal_group["action"],
            positions[is_in_corpus],
            is_duplicate[is_in_corpus],
            duplicate_of[is_in_corpus],
        )


def _find_tagged_documents(
    artifact: Artifact, doc_id_index: DocIdIndex
) -> Iterator[tuple[str, Int64Array]]:
    """Yield each tagging rule of a stage with the places of the documents that it tagged."""
    rules = read_tagging_rule_names(artifact)
    if not rules:
        return
    rows = artifact["documents"].read(["doc_id", "tags"])
    tags = rows["tags"].combine_chunks()
    tag_names, row_numbers = pc.list_flatten(tags), pc.list_parent_indices(tags)
    for rule in rules:
        tagged_rows = pc.unique(row_numbers.filter(pc.equal(tag_names, rule)))
        yield rule, doc_id_index.find_positions(rows["doc_id"].take(tagged_rows))


def _get_or_add_reason_index(reasons: list[tuple[str, str]], reason: tuple[str, str]) -> int:
    if reason not in reasons:
        reasons.append(reason)
    return reasons.index(reason)


def _get_or_add_cause(
    causes: list[RemovalCause], stage: str, reason: str, stage_index: int, document_count: int
) -> RemovalCause:
    cause = next(
        (
            candidate
            for candidate in causes
            if (candidate.stage, candidate.reason) == (stage, reason)
        ),
        None,
    )
    if cause is None:
        cause = RemovalCause(stage, reason, stage_index, np.zeros(document_count, bool))
        causes.append(cause)
    return cause


def _assign_clusters(
    history: Mapping[str, Artifact],
    doc_id_index: DocIdIndex,
    duplicate_of: Int64Array,
    removed_clusters: pa.Table | None,
) -> Int64Array:
    """The number of each document's cluster: the last that a stage gave it, a copy's its twin's.
    One that is named after an earlier document, of what this corpus adds to, has no place here."""
    cluster = np.arange(len(duplicate_of))
    external_clusters: dict[bytes, int] = {}
    for artifact in history.values():
        if artifact.stage.startswith("deduplicate"):
            rows = artifact["documents"].read(["doc_id", "cluster"])
            positions, cluster_positions = (
                doc_id_index.find_positions(rows["doc_id"]),
                doc_id_index.find_positions(rows["cluster"]),
            )
            external_rows = np.flatnonzero(cluster_positions < 0)
            external_names = rows["cluster"].take(pa.array(external_rows)).to_pylist()
            cluster_positions[external_rows] = [
                len(duplicate_of) + external_clusters.setdefault(name, len(external_clusters))
                for name in external_names
            ]
            cluster[positions[positions >= 0]] = cluster_positions[positions >= 0]
    if removed_clusters is not None:
        cluster[doc_id_index.find_positions(removed_clusters["doc_id"])] = cluster[
            doc_id_index.find_positions(removed_clusters["cluster"])
        ]
    is_copy = duplicate_of >= 0
    while True:  # chains of twins are short: a copy's keeper stood in its own stage
        updated_cluster = np.where(is_copy, cluster[np.where(is_copy, duplicate_of, 0)], cluster)
        if (updated_cluster == cluster).all():
            return np.unique(cluster, return_inverse=True)[1].astype(np.int64)
        cluster = updated_cluster


def find_signal_table(history: Mapping[str, Artifact], column_name: str) -> Table | None:
    """The table ``signals`` that has this one; None where no stage left it."""
    tables = [a["signals"] for a in history.values() if "signals" in a.tables]
    return next((t for t in tables if column_name in t.columns), None)


def read_numeric_signal(
    history: Mapping[str, Artifact], column_name: str, outcomes: DocumentOutcomes
) -> NDArray[np.float64] | None:
    """A signal that is a number, (n,), NaN where there is none; None where no stage left it."""
    table = find_signal_table(history, column_name)
    if table is None or column_name not in table.columns:
        return None
    rows = table.read(["doc_id", column_name])
    positions = DocIdIndex(outcomes.doc_ids).find_positions(rows["doc_id"])
    values = np.full(len(outcomes.removed_at), np.nan)
    values[positions[positions >= 0]] = (
        rows[column_name].cast(pa.float64()).to_numpy()[positions >= 0]
    )
    return values


def _find_group_members(
    history: Mapping[str, Artifact],
    doc_id_index: DocIdIndex,
    duplicate_of: Int64Array,
    sources: pa.Array,
) -> tuple[dict[tuple[str, str], BoolArray], BoolArray, BoolArray]:
    """Who belongs to which group, who has signals, and who is not surely in another language."""
    document_count = len(duplicate_of)
    group_members: dict[tuple[str, str], BoolArray] = {}
    has_signals, may_be_english = np.ones(document_count, bool), np.ones(document_count, bool)
    for dimension, name in COLUMN_BY_DIMENSION.items():
        if name == "source":
            for value in pc.unique(sources).to_pylist():
                is_from_source = pc.equal(sources, value)
                group_members[dimension, value] = is_from_source.to_numpy(zero_copy_only=False)
            continue
        table = find_signal_table(history, name)
        if table is None:
            if name == "identities":
                raise HallmarkError("no stage of the history said whom the documents mention")
            continue
        rows = table.read(["doc_id", name])
        positions = doc_id_index.find_positions(rows["doc_id"])
        if (positions < 0).any():
            raise HallmarkError(
                f"the signals of {table.artifacts[0].name} are about documents that the history "
                f"does not begin with: they must have been made of the same corpus"
            )
        signal_rows = _inherit_signal_rows(positions, duplicate_of)
        has_signals &= signal_rows >= 0
        for value, is_member in _list_value_members(rows[name].combine_chunks(), len(rows)):
            group_members[dimension, value] = np.append(is_member, False)[signal_rows]
        if name == "language":
            may_be_english = group_members.get(
                (dimension, "en"), ~may_be_english
            ) | group_members.get(
                (dimension, UNDETERMINED_LANGUAGE), np.zeros(document_count, bool)
            )
    return group_members, has_signals, may_be_english


def _inherit_signal_rows(positions: Int64Array, duplicate_of: Int64Array) -> Int64Array:
    """For each document its row among the signals, a copy's where it has none its twin's; or -1.
    ``at``: the places of the documents that have rows."""
    signal_rows = np.full(len(duplicate_of), -1)
    signal_rows[positions[positions >= 0]] = np.flatnonzero(positions >= 0)
    while True:
        inherited_rows = np.where(
            (signal_rows < 0) & (duplicate_of >= 0), signal_rows[duplicate_of], signal_rows
        )
        if (inherited_rows == signal_rows).all():
            return signal_rows
        signal_rows = inherited_rows


def _list_value_members(values: pa.Array, row_count: int) -> Iterator[tuple[str, BoolArray]]:
    """Each value of a column of labels or of lists of them, and the rows that have it."""
    if pa.types.is_list(values.type):
        flat_values, row_numbers = (
            pc.list_flatten(values),
            pc.list_parent_indices(values).to_numpy(),
        )
    else:
        flat_values, row_numbers = pc.fill_null(values, UNDETERMINED_LANGUAGE), np.arange(row_count)
    encoded = flat_values.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        is_member = np.zeros(row_count, bool)
        is_member[row_numbers[codes == code]] = True
        yield value, is_member
