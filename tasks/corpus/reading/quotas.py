"""How much of a source is taken: a share of its documents, or so many of them, by a hash of their
ids: whichever file, order or worker they come from, and the same ones as a source grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.corpus.reading.block_list import BlockListConfig, load_block_list
from hallmark.tasks.corpus.reading.records import SortedRun, ids_to_uint64_pairs
from hallmark.tasks.corpus.reading.sources import Source

BLOCKED_DOCUMENT = "blocked document"
EXCLUDED_BY_WEIGHT, EXCLUDED_BY_CAP = "left out by weight", "left out by cap"


@dataclass(frozen=True)
class SourceQuotas:
    """Of each source that is limited, the hash from which on its documents are left out."""

    weight_limits: Mapping[str, int]
    cap_limits: Mapping[str, int]
    block_config: BlockListConfig
    purged_ids: frozenset[bytes] = frozenset()  # from the store

    def find_removal_reasons(self, records: pa.Table) -> pa.Array:
        """Why each record is removed, "" if it is kept, with what can only be said of an id."""
        reasons = records["reason"].combine_chunks()
        reasons = pc.if_else(
            pa.array(is_denied_id(records["identity"], self.block_config, self.purged_ids)),
            BLOCKED_DOCUMENT,
            reasons,
        )
        id_hashes = ids_to_uint64_pairs(records["identity"])[:, 1]
        for limit_by_source, reason in (
            (self.weight_limits, EXCLUDED_BY_WEIGHT),
            (self.cap_limits, EXCLUDED_BY_CAP),
        ):
            for source_name, limit in limit_by_source.items():
                is_over_limit = pa.array(id_hashes >= limit)
                is_excluded = pc.and_(
                    pc.equal(records["source"].combine_chunks(), source_name), is_over_limit
                )
                reasons = pc.if_else(pc.and_(is_excluded, pc.equal(reasons, "")), reason, reasons)
        return reasons


def is_blocked_reason(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether a record is on any list: of it neither text is kept nor a hash, for that of a short
    text can be guessed."""
    return pc.starts_with(reasons, "blocked ")


def is_denied_id(
    doc_ids: pa.ChunkedArray, block_config: BlockListConfig, purged_ids: frozenset[bytes]
) -> np.ndarray:
    """Which of these ids are on the block list, or were purged from the store."""
    denied_ids = load_block_list(block_config).doc_ids | purged_ids
    if not denied_ids:
        return np.zeros(len(doc_ids), bool)
    return np.array([doc_id in denied_ids for doc_id in doc_ids.to_pylist()], bool)


def compute_quotas(
    runs: list[tuple[SortedRun, np.ndarray | None]],
    sources: Mapping[str, Source],
    block_config: BlockListConfig,
    purged_ids: frozenset[bytes] = frozenset(),
) -> tuple[SourceQuotas, int]:
    """The quotas, and the bytes of text that are kept under them.

    runs: each with which of its records are the first of their ids; None: all.
    """
    weight_limits = {
        n: int(s.document_share * 2**64) for n, s in sources.items() if s.document_share < 1
    }
    kept_bytes = 0
    hashes_by_source: dict[str, list[np.ndarray]] = defaultdict(list)  # of sources with a cap
    sizes_by_source: dict[str, list[np.ndarray]] = defaultdict(list)
    for run, is_first in runs:
        records = run.read_columns(["source", "reason", "bytes"])
        source_name = records["source"][0].as_py()  # all of a run are of one source
        is_kept = pc.equal(records["reason"], "").to_numpy()
        is_kept &= True if is_first is None else is_first
        text_sizes = records["bytes"].to_numpy()
        if (
            load_block_list(block_config).doc_ids
            or purged_ids
            or source_name in weight_limits
            or sources[source_name].max_documents
        ):
            ids = run.read_columns(["identity"])["identity"]
            is_kept &= ~is_denied_id(ids, block_config, purged_ids)
            id_hashes = ids_to_uint64_pairs(ids)[:, 1]
            if source_name in weight_limits:
                is_kept &= id_hashes < weight_limits[source_name]
            if sources[source_name].max_documents:
                hashes_by_source[source_name].append(id_hashes[is_kept])
                sizes_by_source[source_name].append(text_sizes[is_kept])
                continue
        kept_bytes += int(text_sizes[is_kept].sum())
    cap_limits = {}
    for source_name, hash_arrays in hashes_by_source.items():
        id_hashes, text_sizes, cap = (
            np.concatenate(hash_arrays),
            np.concatenate(sizes_by_source[source_name]),
            sources[source_name].max_documents,
        )
        if cap and len(id_hashes) > cap:
            cap_limits[source_name] = int(np.partition(id_hashes, cap)[cap])
            text_sizes = text_sizes[id_hashes < cap_limits[source_name]]
        kept_bytes += int(text_sizes.sum())
    return SourceQuotas(weight_limits, cap_limits, block_config, purged_ids), kept_bytes
