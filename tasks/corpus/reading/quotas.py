"""Limit how many documents are taken from a source, as a share or as a number.

A hash of the document ids decides. So the choice does not depend on files, order or workers, and
stays the same as a source grows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import ids_to_uint64_pairs
from hallmark.tasks.corpus.reading.block_list import BlockListConfig, load_block_list
from hallmark.tasks.corpus.reading.records import MaskedRun
from hallmark.tasks.corpus.reading.sources import Source

BLOCKED_DOCUMENT = "blocked document"
EXCLUDED_BY_SHARE, EXCLUDED_BY_MAXIMUM = "excluded by document_share", "excluded by max_documents"


@dataclass(frozen=True)
class SourceQuotas:
    """Hold, for each limited source, the hash from which on its documents are excluded."""

    share_limits: Mapping[str, int]
    maximum_limits: Mapping[str, int]
    block_config: BlockListConfig
    purged_ids: frozenset[bytes] = frozenset()  # purged from the store

    def find_removal_reasons(self, records: pa.Table) -> pa.Array:
        """Return why each record is removed, "" if it is kept; adds the reasons based on ids."""
        reasons = records["reason"].combine_chunks()
        reasons = pc.if_else(
            pa.array(mark_denied_ids(records["identity"], self.block_config, self.purged_ids)),
            BLOCKED_DOCUMENT,
            reasons,
        )
        id_hashes = ids_to_uint64_pairs(records["identity"])[:, 1]
        for limit_by_source, reason in (
            (self.share_limits, EXCLUDED_BY_SHARE),
            (self.maximum_limits, EXCLUDED_BY_MAXIMUM),
        ):
            for source_name, limit in limit_by_source.items():
                is_over_limit = pa.array(id_hashes >= limit)
                is_excluded = pc.and_(
                    pc.equal(records["source"].combine_chunks(), source_name), is_over_limit
                )
                reasons = pc.if_else(pc.and_(is_excluded, pc.equal(reasons, "")), reason, reasons)
        return reasons


def mark_blocked_reasons(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark the records that were removed by a block list.

    Neither the text nor its hash is kept of such a record, because a short text can be guessed from
    its hash.
    """
    return pc.starts_with(reasons, "blocked ")


def mark_denied_ids(
    doc_ids: pa.ChunkedArray, block_config: BlockListConfig, purged_ids: frozenset[bytes]
) -> np.ndarray:
    """Mark the ids that are on the block list or were purged from the store, (n,) bool."""
    denied_ids = load_block_list(block_config).doc_ids | purged_ids
    if not denied_ids:
        return np.zeros(len(doc_ids), bool)
    return np.array([doc_id in denied_ids for doc_id in doc_ids.to_pylist()], bool)


class QuotaResult(NamedTuple):
    """Hold the quotas of all sources and what they keep."""

    quotas: SourceQuotas
    kept_bytes: int
    """Total size of the text and metadata of all records that are kept, in bytes."""


def compute_quotas(
    runs: list[MaskedRun],
    sources: Mapping[str, Source],
    block_config: BlockListConfig,
    purged_ids: frozenset[bytes] = frozenset(),
) -> QuotaResult:
    """Compute the quotas of all sources."""
    share_limits = {
        n: int(s.document_share * 2**64) for n, s in sources.items() if s.document_share < 1
    }
    kept_bytes = 0
    # Only of sources with max_documents.
    hashes_by_source: dict[str, list[np.ndarray]] = defaultdict(list)
    sizes_by_source: dict[str, list[np.ndarray]] = defaultdict(list)
    for run, is_first in runs:
        records = run.read_columns(["source", "reason", "bytes"])
        source_name = records["source"][0].as_py()  # a run has records of one source
        is_kept = pc.equal(records["reason"], "").to_numpy()
        is_kept &= True if is_first is None else is_first
        text_sizes = records["bytes"].to_numpy()
        if (
            load_block_list(block_config).doc_ids
            or purged_ids
            or source_name in share_limits
            or sources[source_name].max_documents
        ):
            ids = run.read_columns(["identity"])["identity"]
            is_kept &= ~mark_denied_ids(ids, block_config, purged_ids)
            id_hashes = ids_to_uint64_pairs(ids)[:, 1]
            if source_name in share_limits:
                is_kept &= id_hashes < share_limits[source_name]
            if sources[source_name].max_documents:
                hashes_by_source[source_name].append(id_hashes[is_kept])
                sizes_by_source[source_name].append(text_sizes[is_kept])
                continue
        kept_bytes += int(text_sizes[is_kept].sum())
    maximum_limits = {}
    for source_name, hash_arrays in hashes_by_source.items():
        id_hashes = np.concatenate(hash_arrays)
        text_sizes = np.concatenate(sizes_by_source[source_name])
        max_documents = sources[source_name].max_documents
        if max_documents and len(id_hashes) > max_documents:
            maximum_limits[source_name] = int(np.partition(id_hashes, max_documents)[max_documents])
            text_sizes = text_sizes[id_hashes < maximum_limits[source_name]]
        kept_bytes += int(text_sizes.sum())
    quotas = SourceQuotas(share_limits, maximum_limits, block_config, purged_ids)
    return QuotaResult(quotas, kept_bytes)
