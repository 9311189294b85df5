"""Determine from the ledgers what became of each document and which groups it belongs to.

Memory: id, outcome, cluster and signals of each document, about 120 bytes, but no text. Only the
source is known of documents that ingest refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.contract import Artifact, HallmarkError, Table
from hallmark.tasks.corpus.group_effects import REMOVING_ACTIONS
from hallmark.tasks.corpus.group_effects.group_sentences import UNDETERMINED_LANGUAGE
from hallmark.tasks.corpus.selection_rules import read_tagging_rule_names
from hallmark.tasks.measures.rate_ratios import ClusteredGroup

Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Columns that define groups: signals of ``language`` and ``identities``, and the source.
COLUMN_BY_DIMENSION = {
    "identity": "identities",
    "dialect": "dialects",
    "language": "language",
    "length": "length_class",
    "source": "source",
}

#: Dimensions found only in English text; groups are not compared with documents that are certainly
#: in another language.
ENGLISH_DIMENSIONS = ("identity", "dialect")

NOT_REMOVED = 1 << 30


class StageReason(NamedTuple):
    """Name a reason of a stage to remove documents."""

    stage: str
    reason: str


class Group(NamedTuple):
    """Name a group of documents, such as ("language", "en")."""

    dimension: str
    name: str


@dataclass(frozen=True)
class RemovalCause:
    """Describe a reason in a stage's ledger, or a rule that tagged documents and kept them.

    Attributes:
        stage_index: Position of the stage in the history.
        is_affected: (n,) documents that were, or would have been, removed for this reason.
        only_tags: Whether the rule tagged these documents and kept them.
    """

    stage: str
    reason: str
    stage_index: int
    is_affected: BoolArray
    only_tags: bool = False


@dataclass
class DocumentOutcomes:
    """Hold the outcome of each document of the first stage.

    All arrays are (n,), except ``doc_ids``. The last documents are those that the first stage
    refused: they have no id, and only their source is known.

    Attributes:
        doc_ids: Sorted ids, without refused documents.
        removed_at: Position in the history of the stage that removed the document; NOT_REMOVED if
            kept.
        reason_index: Index in ``reasons``; -1 if kept.
        is_quarantined: Whether the stage that removed it could not process it.
        is_copy: Whether it was removed as a copy.
        duplicate_of: Position of the document that it is a copy of; -1 for an earlier corpus, and
            for all other documents.
        reasons: All reasons to remove documents.
        members_by_group: Whether each document is a member of the group, (n,), by group.
        source_index: Numbers of the sources.
        has_signals: Whether the document, or the one that it is a copy of, has signals.
        may_be_english: Whether it is not certainly in another language.
        first_stage: Label of the first stage.
    """

    doc_ids: pa.Array
    removed_at: Int64Array
    reason_index: Int64Array
    is_quarantined: BoolArray
    is_copy: BoolArray
    duplicate_of: Int64Array
    cluster_index: Int64Array
    reasons: list[StageReason]
    causes: list[RemovalCause]
    members_by_group: Mapping[Group, BoolArray]
    source_index: Int64Array
    has_signals: BoolArray
    may_be_english: BoolArray
    first_stage: str = ""
    _groups_by_dimension: dict[str, dict[str, ClusteredGroup]] = field(default_factory=dict)

    @cached_property
    def final_original(self) -> Int64Array:
        """Return for each document the last one in its chain of copies, (n,).

        The chain ends at a document of this corpus; a document that is no copy is its own.
        """
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
        """Return which copies lost their original, (n,).

        The original was removed later for another reason. Copies of a document of an earlier corpus
        are not lost, because the corpus still has that document.
        """
        return self.is_copy & self.is_text_lost

    @cached_property
    def is_text_lost(self) -> BoolArray:
        """Return of which removed documents no copy remains, (n,).

        The document, or the original of a copy, was removed for a reason other than being a copy.
        """
        is_original_removed: BoolArray = self.removed_at[self.final_original] < NOT_REMOVED
        return is_original_removed & ~self.is_copy[self.final_original]

    @cached_property
    def is_lost_cluster(self) -> BoolArray:
        """Return for each cluster whether none of its documents was kept."""
        remaining_counts = np.bincount(self.cluster_index, self.removed_at == NOT_REMOVED)
        is_lost: BoolArray = remaining_counts == 0
        return is_lost

    def select_at_risk(self, dimension: str) -> BoolArray:
        """Return the documents among which the groups of a dimension are compared, (n,)."""
        if dimension == "source":
            return np.ones(len(self.has_signals), bool)
        return (
            self.has_signals & self.may_be_english
            if dimension in ENGLISH_DIMENSIONS
            else self.has_signals
        )

    def find_groups_by_name(self, dimension: str, min_documents: int) -> dict[str, ClusteredGroup]:
        """Return the groups of a dimension with at least ``min_documents``, by name."""
        if dimension not in self._groups_by_dimension:
            at_risk = self.select_at_risk(dimension)
            self._groups_by_dimension[dimension] = {
                name: ClusteredGroup.from_members(
                    np.flatnonzero(is_member & at_risk), self.cluster_index
                )
                for (group_dimension, name), is_member in sorted(self.members_by_group.items())
                if group_dimension == dimension
            }
        return {
            name: group
            for name, group in self._groups_by_dimension[dimension].items()
            if len(group.member_rows) >= min_documents
        }


def compute_document_outcomes(
    history: Mapping[str, Artifact], removed_clusters: pa.Table | None = None
) -> DocumentOutcomes:
    """Compute the outcome of every document.

    Args:
        history: Artifacts of the corpus stages by label, in the order in which they ran.
        removed_clusters: Clusters of documents that were removed before the stage that clusters,
            from ``cluster_removed_documents``.

    Raises:
        HallmarkError: if no stage has documents, or none has identities.
    """
    first_stage = next(
        (stage_label for stage_label, a in history.items() if "documents" in a.tables), None
    )
    if first_stage is None:
        raise HallmarkError(
            "no stage in the history has a 'documents' table; use a history that includes the "
            "ingest stage"
        )
    first_documents = history[first_stage]["documents"].read(["doc_id", "source"]).sort_by("doc_id")
    doc_ids = first_documents["doc_id"].combine_chunks()
    refused_rows = _read_refused_documents(history[first_stage])
    sources = pa.chunked_array(
        [*first_documents["source"].chunks, *refused_rows["source"].chunks], pa.string()
    )
    sources = sources.combine_chunks()
    document_count = len(sources)
    doc_id_index = DocIdIndex(doc_ids)
    removed_at = np.full(document_count, NOT_REMOVED)
    reason_index = np.full(document_count, -1)
    is_quarantined = np.zeros(document_count, bool)
    duplicate_of = np.full(document_count, -1)
    is_copy = np.zeros(document_count, bool)
    reasons: list[StageReason] = []
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
        for reason, action, positions, is_copy_removal, matched_positions in departures:
            newly_removed = (
                positions[removed_at[positions] == NOT_REMOVED]
                if action in REMOVING_ACTIONS
                else positions[:0]
            )
            if len(newly_removed):
                removed_at[newly_removed] = stage_index
                reason_index[newly_removed] = _get_or_add_reason_index(
                    reasons, StageReason(stage_label, reason)
                )
                is_quarantined[newly_removed] = action == "quarantined"
                is_new_removal = np.isin(positions, newly_removed)
                is_copy[positions] = np.where(is_new_removal, is_copy_removal, is_copy[positions])
                duplicate_of[positions] = np.where(
                    is_new_removal, matched_positions, duplicate_of[positions]
                )
            is_affected = _get_or_add_cause(
                causes, stage_label, reason, stage_index, document_count
            ).is_affected
            is_affected[positions] = True
        positions_by_rule = _find_positions_by_tagging_rule(artifact, doc_id_index)
        for rule, positions in positions_by_rule.items():
            cause = RemovalCause(
                stage_label, rule, stage_index, np.zeros(document_count, bool), only_tags=True
            )
            cause.is_affected[positions] = True
            causes.append(cause)
    cluster_index = _number_clusters_consecutively(
        history, doc_id_index, duplicate_of, removed_clusters
    )
    memberships = _find_group_memberships(history, doc_id_index, duplicate_of, sources)
    source_index = sources.dictionary_encode().indices.to_numpy().astype(np.int64)
    return DocumentOutcomes(
        doc_ids,
        removed_at,
        reason_index,
        is_quarantined,
        is_copy,
        duplicate_of,
        cluster_index,
        reasons,
        causes,
        memberships.members_by_group,
        source_index,
        memberships.has_signals,
        memberships.may_be_english,
        first_stage,
    )


def _read_refused_documents(first_artifact: Artifact) -> pa.Table:
    """Read source and reason of each document that the first stage removed.

    Neither its table of documents nor a later stage has them.
    """
    names = ["source", "action", "reason"]
    if "ledger" not in first_artifact.tables:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    rows = first_artifact["ledger"].read(names)
    return rows.filter(pc.is_in(rows["action"], value_set=pa.array(REMOVING_ACTIONS)))


class LedgerRemovals(NamedTuple):
    """Hold the k documents that a stage removed, or would have removed, for one reason."""

    reason: str
    action: str
    """``additional_reason`` if the stage removed these documents for another reason."""
    positions: Int64Array
    """Shape (k,)."""
    is_copy: BoolArray
    """Whether the document was removed as a copy; shape (k,)."""
    matched_positions: Int64Array
    """Position of the document whose copy this document is; -1 if it is not a copy; shape (k,)."""


def _group_refused_documents(
    refused_rows: pa.Table, document_count: int
) -> Iterator[LedgerRemovals]:
    """Yield the refused documents by action and reason."""
    for removal_group in (
        refused_rows.group_by(["action", "reason"]).aggregate([]).sort_by("reason").to_pylist()
    ):
        is_in_group = pc.and_(
            *(pc.equal(refused_rows[name], value) for name, value in removal_group.items())
        )
        positions = document_count - len(refused_rows) + np.flatnonzero(is_in_group.to_numpy())
        yield LedgerRemovals(
            removal_group["reason"],
            removal_group["action"],
            positions,
            np.zeros(len(positions), bool),
            np.full(len(positions), -1),
        )


class DocIdIndex:
    """Look up the positions of documents among sorted ids."""

    def __init__(self, sorted_doc_ids: pa.Array) -> None:
        self._sorted_keys = _doc_ids_to_sort_keys(sorted_doc_ids)

    def find_positions(self, doc_ids: pa.Array | pa.ChunkedArray) -> Int64Array:
        """Return the position of each id; -1 for unknown ids and null."""
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
    """Convert 16-byte ids to pairs of numbers that sort in the same order."""
    halves = np.frombuffer(b"".join(doc_ids.to_pylist()), ">u8").astype(np.uint64).reshape(-1, 2)
    pairs = np.empty(len(halves), [("high", np.uint64), ("low", np.uint64)])
    pairs["high"], pairs["low"] = halves.T
    return pairs


def _group_ledger_removals(ledger: pa.Table, doc_id_index: DocIdIndex) -> Iterator[LedgerRemovals]:
    """Yield the removals of a stage by action and reason, actual removals first.

    Rows with the action ``additional_reason`` would have been removed for this reason, too. If a
    matched document was removed by the same stage, the match was an earlier document with the same
    id, from the corpus that this one extends; it has no position here.
    """
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
        is_in_corpus = positions >= 0  # only documents of the first stage
        duplicate_of = doc_id_index.find_positions(rows["matched_doc_id"])
        duplicate_of[np.isin(duplicate_of, removed_positions)] = -1
        # A row without a score is another text under an id that was used before.
        is_copy = pc.and_(rows["matched_doc_id"].is_valid(), rows["score"].is_valid()).to_numpy()
        yield LedgerRemovals(
            removal_group["reason"],
            removal_group["action"],
            positions[is_in_corpus],
            is_copy[is_in_corpus],
            duplicate_of[is_in_corpus],
        )


def _find_positions_by_tagging_rule(
    artifact: Artifact, doc_id_index: DocIdIndex
) -> dict[str, Int64Array]:
    """Find the positions of the documents that each rule of a stage tagged, by name of the rule."""
    rules = read_tagging_rule_names(artifact)
    if not rules:
        return {}
    rows = artifact["documents"].read(["doc_id", "tags"])
    tags = rows["tags"].combine_chunks()
    tag_names, row_numbers = pc.list_flatten(tags), pc.list_parent_indices(tags)
    positions_by_rule = {}
    for rule in rules:
        tagged_rows = pc.unique(row_numbers.filter(pc.equal(tag_names, rule)))
        positions_by_rule[rule] = doc_id_index.find_positions(rows["doc_id"].take(tagged_rows))
    return positions_by_rule


def _get_or_add_reason_index(reasons: list[StageReason], reason: StageReason) -> int:
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


def _number_clusters_consecutively(
    history: Mapping[str, Artifact],
    doc_id_index: DocIdIndex,
    duplicate_of: Int64Array,
    removed_clusters: pa.Table | None,
) -> Int64Array:
    """Return the cluster number of each document, (n,).

    It is the last cluster that a stage assigned; copies get the cluster of their original. A
    cluster named after a document of an earlier corpus has a separate number.
    """
    cluster = np.arange(len(duplicate_of))
    external_clusters: dict[bytes, int] = {}
    for artifact in history.values():
        if artifact.stage.startswith("deduplicate"):
            rows = artifact["documents"].read(["doc_id", "cluster"])
            positions = doc_id_index.find_positions(rows["doc_id"])
            cluster_positions = doc_id_index.find_positions(rows["cluster"])
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
    while True:  # chains are short: a stage matches a copy with a document that it keeps
        updated_cluster = np.where(is_copy, cluster[np.where(is_copy, duplicate_of, 0)], cluster)
        if (updated_cluster == cluster).all():
            return np.unique(cluster, return_inverse=True)[1].astype(np.int64)
        cluster = updated_cluster


def find_signal_table(history: Mapping[str, Artifact], column_name: str) -> Table | None:
    """Return the first table ``signals`` with this column; None if there is none."""
    tables = [a["signals"] for a in history.values() if "signals" in a.tables]
    return next((t for t in tables if column_name in t.columns), None)


def read_numeric_signal(
    history: Mapping[str, Artifact], column_name: str, outcomes: DocumentOutcomes
) -> NDArray[np.float64] | None:
    """Read a numeric signal, (n,), NaN where it is missing; None if no stage has it."""
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


class GroupMemberships(NamedTuple):
    """Say to which groups n documents belong."""

    members_by_group: dict[Group, BoolArray]
    """Whether the document is a member of the group; shape (n,)."""
    has_signals: BoolArray
    """Whether the document or, if it is a copy, the original has signals; shape (n,)."""
    may_be_english: BoolArray
    """Whether the document is in English or its language is undetermined; shape (n,)."""


def _find_group_memberships(
    history: Mapping[str, Artifact],
    doc_id_index: DocIdIndex,
    duplicate_of: Int64Array,
    sources: pa.Array,
) -> GroupMemberships:
    """Find the groups of each document by its source and its signals."""
    document_count = len(duplicate_of)
    members_by_group: dict[Group, BoolArray] = {}
    has_signals, may_be_english = np.ones(document_count, bool), np.ones(document_count, bool)
    for dimension, name in COLUMN_BY_DIMENSION.items():
        if name == "source":
            for value in pc.unique(sources).to_pylist():
                is_from_source = pc.equal(sources, value)
                members_by_group[Group(dimension, value)] = is_from_source.to_numpy(
                    zero_copy_only=False
                )
            continue
        table = find_signal_table(history, name)
        if table is None:
            if name == "identities":
                raise HallmarkError(
                    "no stage in the history computed the signal 'identities'; run the "
                    "identities stage"
                )
            continue
        rows = table.read(["doc_id", name])
        positions = doc_id_index.find_positions(rows["doc_id"])
        if (positions < 0).any():
            raise HallmarkError(
                f"{table.artifacts[0].name} has signals for documents that are not in the first "
                "stage of the history; use artifacts from the same corpus"
            )
        signal_rows = _find_signal_row_of_each_document(positions, duplicate_of)
        has_signals &= signal_rows >= 0
        for value, is_member in _iter_members_by_value(rows[name].combine_chunks(), len(rows)):
            members_by_group[Group(dimension, value)] = np.append(is_member, False)[signal_rows]
        if name == "language":
            may_be_english = members_by_group.get(
                Group(dimension, "en"), ~may_be_english
            ) | members_by_group.get(
                Group(dimension, UNDETERMINED_LANGUAGE), np.zeros(document_count, bool)
            )
    return GroupMemberships(members_by_group, has_signals, may_be_english)


def _find_signal_row_of_each_document(
    positions: Int64Array, duplicate_of: Int64Array
) -> Int64Array:
    """Return the row of each document among the signals, or -1.

    A copy without signals gets the row of its original.

    Args:
        positions: Positions of the documents that have signals.
    """
    signal_rows = np.full(len(duplicate_of), -1)
    signal_rows[positions[positions >= 0]] = np.flatnonzero(positions >= 0)
    while True:
        inherited_rows = np.where(
            (signal_rows < 0) & (duplicate_of >= 0), signal_rows[duplicate_of], signal_rows
        )
        if (inherited_rows == signal_rows).all():
            return signal_rows
        signal_rows = inherited_rows


def _iter_members_by_value(values: pa.Array, row_count: int) -> Iterator[tuple[str, BoolArray]]:
    """Yield each value of a column of labels or lists of labels with a mask of the rows with it."""
    if pa.types.is_list(values.type):
        flat_values = pc.list_flatten(values)
        row_numbers = pc.list_parent_indices(values).to_numpy()
    else:
        flat_values, row_numbers = pc.fill_null(values, UNDETERMINED_LANGUAGE), np.arange(row_count)
    encoded = flat_values.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        is_member = np.zeros(row_count, bool)
        is_member[row_numbers[codes == code]] = True
        yield value, is_member
