"""What the corpus is composed of: documents and bytes by source, domain, licence and so on.

Domains and the like are counted in full before the smallest are told as one row, so that the order
of parts decides nothing. That takes about 400 bytes for each different value, and on disk 70 for
each of a batch, however many documents have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import Artifact, Table
from tasks.corpus.identities import length_classes

#: What stands for a null, and for all values but the largest.
UNKNOWN, OTHER = "unknown", "other"

#: All splits together.
ANY = ""

COUNTS = pa.schema(
    [
        ("dimension", pa.string()), ("value", pa.string()), ("split", pa.string()),
        ("documents", pa.int64()), ("bytes", pa.int64()),
    ]
)  # fmt: skip
_KEYS = ["dimension", "value", "split"]


def licences(history: Mapping[str, Artifact]) -> dict[str, str | None]:
    """By source, what the config declares; nothing of sources that ingest has not read."""
    return {
        row["source"]: row["licence"]
        for artifact in history.values() if "sources" in artifact.tables
        for row in artifact["sources"].read(["source", "licence"]).to_pylist()
    }  # fmt: skip


def told_languages(history: Mapping[str, Artifact]) -> Table | None:
    """The signals of the stage ``language``, where it ran, one behind the other."""
    told = [a for a in history.values()
            if "signals" in a.tables and "language" in a["signals"].columns]  # fmt: skip
    return Table(tuple(told), "signals") if told else None


def composed(
    batch: pa.RecordBatch,
    sizes: pa.Array,
    languages: pa.Array | None,
    licence: Mapping[str, str | None],
    bounds: Sequence[int],
) -> Iterator[pa.Table]:
    """Rows of COUNTS for a batch of documents, for each dimension.

    ``sizes``: bytes of their texts, ``languages``: theirs, if any is known, ``licence``: by source,
    ``bounds``: of the classes of length.
    """
    terms = pa.array(list(licence.values()), pa.string())
    declared = pc.index_in(batch["source"], value_set=pa.array(licence, pa.string()))
    dimensions = {
        "source": batch["source"],
        "domain": batch["domain"],
        "licence": terms.take(declared),
        "length": length_classes(sizes, bounds),
        "year": pc.utf8_slice_codeunits(batch["date"], 0, 4),
    }
    if languages is not None:
        dimensions["language"] = languages
    for dimension, values in dimensions.items():
        named = pc.fill_null(pc.if_else(pc.equal(values, ""), None, values), UNKNOWN)
        rows = pa.table({"value": named, "split": batch["split"], "bytes": sizes})
        counted = rows.group_by(["value", "split"]).aggregate(
            [("bytes", "count"), ("bytes", "sum")]
        )
        counted = counted.rename_columns(["value", "split", "documents", "bytes"])
        name = pa.repeat(pa.scalar(dimension), len(counted))
        yield counted.append_column("dimension", name).select(COUNTS.names)


def composition_rows(counts: pa.Table, most: int) -> list[dict[str, Any]]:
    """Rows of the table ``composition``: of each dimension the ``most`` largest values by bytes,
    those of one size by name, the rest as OTHER, and UNKNOWN always by its name."""
    sums = _summed(counts)
    whole = _summed(sums.set_column(2, "split", pa.repeat(pa.scalar(ANY), len(sums))))
    kept = _largest(whole, most)
    rows = pa.concat_tables([whole, sums])
    pairs = pc.binary_join_element_wise(rows["dimension"], rows["value"], "\0")
    other = pc.invert(pc.is_in(pairs, value_set=kept))
    rows = rows.set_column(1, "value", pc.if_else(other, OTHER, rows["value"]))
    made = _summed(rows).to_pylist()
    totals: dict[tuple[str, str], int] = {}
    for row in made:
        key = row["dimension"], row["split"]
        totals[key] = totals.get(key, 0) + row["bytes"]
    for row in made:
        total = totals[row["dimension"], row["split"]]
        row["share"] = row["bytes"] / total if total else None
    return made


def _summed(counts: pa.Table) -> pa.Table:
    summed = counts.group_by(_KEYS).aggregate([("documents", "sum"), ("bytes", "sum")])
    return summed.select([*_KEYS, "documents_sum", "bytes_sum"]).rename_columns(COUNTS.names)


def _largest(whole: pa.Table, most: int) -> pa.Array:
    """ "dimension NUL value" of what has a row of its own."""
    ordered = whole.sort_by(
        [("dimension", "ascending"), ("bytes", "descending"), ("value", "ascending")]
    )
    unknown = pc.equal(ordered["value"], UNKNOWN).to_numpy()
    named = ~unknown & ~pc.equal(ordered["value"], OTHER).to_numpy()
    codes = ordered["dimension"].combine_chunks().dictionary_encode().indices.to_numpy()
    rank = np.cumsum(named)
    first = np.flatnonzero(np.diff(codes, prepend=-1))
    before = np.repeat(rank[first] - named[first], np.diff([*first, len(codes)]))
    kept = ordered.filter(pa.array(unknown | (named & (rank - before <= most))))
    return pc.binary_join_element_wise(kept["dimension"], kept["value"], "\0").combine_chunks()
