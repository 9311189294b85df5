"""Scrub: treat spans that other stages found, by a policy for each type.

``mask`` puts the type in place of a span, ``<EMAIL>``; a placeholder says the type and nothing
else, so that it depends neither on the order of the documents nor on how they are cut. ``cut``
takes the span out, ``drop`` the whole document, ``keep`` leaves both. Overlapping spans that are
masked or cut are one, see ``spans.overlapping``; those that are kept or drop take no part in that.
A document of which cutting leaves nothing but white space leaves whole (``nothing left``): empty
texts are all the same, so the search for copies would join whatever they were alike to.

The stage serves any kind of span. A run that uses it twice names it anew:

    cut_repeats = scrub.named("cut_repeats")
    cut_repeats(documents, {"find_repeats": found}, ScrubConfig(policies={"REPEAT": "cut"}))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tasks.contract import (
    DOCUMENTS,
    LEDGER,
    Artifact,
    HallmarkError,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    aligned,
    departures,
    identities,
    ledger_rows,
    stage,
    text_hashes,
    with_columns,
)
from tasks.corpus.spans import TYPES, Utf8, overlapping, spans_of, substitute
from tasks.measures.personal.types import UNREAD

#: Why a document leaves of which cutting left nothing.
NOTHING_LEFT = "nothing left"

Policy = Literal["mask", "cut", "drop", "keep"]


class ScrubConfig(StageConfig):
    policy: Policy = Field(
        "mask",
        description="what becomes of a span: mask puts its type in its place, cut takes it out "
        "(and the document, where nothing else is in it), drop takes out the whole document, keep "
        "leaves it",
    )
    policies: dict[str, Policy] = Field(
        default={}, description='policies by type, instead, such as { PHONE = "drop" }'
    )

    @field_validator("policies")
    @classmethod
    def _known(cls, policies: dict[str, Policy]) -> dict[str, Policy]:
        known = [name for name in TYPES if name != UNREAD]
        for name in policies:
            if name not in known:
                raise ValueError(f"there is no type {name!r}; the types are {', '.join(known)}")
        return policies

    def of(self, types: pa.Array) -> np.ndarray:
        """The policy for each type, (m,) of str."""
        names, number = pc.dictionary_encode(types).dictionary, pc.dictionary_encode(types).indices
        policies = [
            "quarantine" if name == UNREAD else self.policies.get(name, self.policy)
            for name in names.to_pylist()
        ]
        return np.array(policies, "U10")[number.to_numpy()]


class CutRepeatsConfig(ScrubConfig):
    """Where repeated text is treated: it is cut, and nothing else is touched."""

    policy: Policy = Field("keep", description="what becomes of a span of any other type")
    policies: dict[str, Policy] = Field(default={"REPEAT": "cut"}, description="policies by type")


class CutToxicConfig(ScrubConfig):
    """Where toxic windows are treated: they are cut, and nothing else is touched."""

    policy: Policy = Field("keep", description="what becomes of a span of any other type")
    policies: dict[str, Policy] = Field(default={"TOXIC": "cut"}, description="policies by type")


def placeholders(types: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("<", types, ">", "")


def scrub_part(
    parts: tuple[Part, ...], names: Sequence[str], config: ScrubConfig, out: Tables
) -> None:
    documents, *tables = parts
    spans = spans_of(documents, dict(zip(names, tables, strict=True)))
    rows = spans["row"].to_numpy()
    start = 0
    for batch in documents.batches():
        low, high = np.searchsorted(rows, [start, start + len(batch)])
        kept, ledger = scrub_batch(batch, spans.slice(low, high - low), start, config)
        start += len(batch)
        out.table("documents").write(kept)
        out.table("ledger").write(ledger)


def scrub_batch(
    batch: pa.RecordBatch, spans: pa.Table, first: int, config: ScrubConfig
) -> tuple[pa.Table, pa.Table]:
    """The documents that stay, with their spans treated, and the rows of the ledger.

    spans: SPANS with ``row``, the document of each counted from ``first``, the batch's.
    """
    spans = spans.combine_chunks()
    row = spans["row"].to_numpy() - first
    start, end = spans["start"].to_numpy(), spans["end"].to_numpy()
    wrong = np.flatnonzero(~Utf8.of(batch["text"]).inside(row, start, end))
    if len(wrong):
        place = spans.slice(wrong[0], 1).to_pylist()[0]
        raise HallmarkError(
            f"a span from byte {place['start']} to {place['end']} of document "
            f"{place['doc_id'].hex()} lies outside of its text or within a character: the spans "
            f"were found in other texts; find them in these documents"
        )
    types = spans["type"].combine_chunks()
    policy = config.of(types)
    gone, leaving = removed(batch, row, types, policy)
    acts = np.isin(policy, ["mask", "cut"]) & ~gone[row]
    treated = spans.filter(pa.array(acts))
    changed, ledger = treat(batch, treated, row[acts], policy[acts])
    empty = emptied(changed["text"], row[acts & (policy == "cut")])
    gone[empty] = True
    ledger = ledger.filter(pa.array(~np.isin(ledger["row"].to_numpy(), empty)))
    lost = _numbered(departures("removed", NOTHING_LEFT, batch.take(pa.array(empty))), empty)
    rows = pa.concat_tables([leaving, ledger, lost])
    rows = rows.take(pc.sort_indices(rows["row"])).drop_columns("row")
    return changed.filter(pa.array(~gone)), rows


def removed(
    batch: pa.RecordBatch, row: np.ndarray, types: pa.Array, policy: np.ndarray
) -> tuple[np.ndarray, pa.Table]:
    """Which documents leave whole, (n,) bool, and their rows of the ledger with ``row``: for the
    first such type in the text, and ``also`` for each further one."""
    gone, pieces = np.zeros(len(batch), bool), []
    hits = np.flatnonzero(np.isin(policy, ["drop", "quarantine"]))
    numbers = pc.dictionary_encode(types).indices.to_numpy()[hits]
    hits = hits[np.sort(np.unique(np.stack([row[hits], numbers]), axis=1, return_index=True)[1])]
    for action, before in (("quarantined", "quarantine"), ("removed", "drop")):
        here = hits[policy[hits] == before]
        owners, first = np.unique(row[here], return_index=True)
        leads = np.zeros(len(here), bool)
        leads[first[~gone[owners]]] = True
        gone[owners] = True
        for what, which in ((action, here[leads]), ("also", here[~leads])):
            left = batch.take(pa.array(row[which], pa.int64()))
            reasons = types.take(pa.array(which, pa.int64()))
            pieces.append(_numbered(departures(what, reasons, left), row[which]))
    return gone, pa.concat_tables(pieces)


def emptied(texts: pa.ChunkedArray, rows: np.ndarray) -> np.ndarray:
    """Which of these rows, (k,), are nothing but white space, ascending."""
    rows = np.unique(rows)
    blank = pc.equal(pc.utf8_trim_whitespace(texts.take(pa.array(rows))), "")
    return rows[blank.to_numpy()]


def treat(
    batch: pa.RecordBatch, spans: pa.Table, row: np.ndarray, policy: np.ndarray
) -> tuple[pa.Table, pa.Table]:
    """The batch with these spans masked or cut, and a row of the ledger for each, with ``row``."""
    owners = np.unique(row)
    at = pa.array(owners, pa.int64())
    texts = batch["text"].take(at)
    utf8, owner = Utf8.of(texts), np.searchsorted(owners, row)
    rank = pc.index_in(spans["type"], value_set=pa.array(TYPES)).fill_null(len(TYPES)).to_numpy()
    which, start, end = overlapping(
        utf8, owner, spans["start"].to_numpy(), spans["end"].to_numpy(), rank
    )
    spans, owner, policy = spans.take(pa.array(which, pa.int64())), owner[which], policy[which]
    cut = pa.array(policy == "cut")
    words = pc.if_else(cut, "", placeholders(spans["type"].combine_chunks()))
    made = substitute(texts, owner, start, end, words)

    changed = pa.array(np.isin(np.arange(len(batch)), owners))
    documents = with_columns(
        batch,
        text=pc.replace_with_mask(batch["text"], changed, made),
        text_hash=pc.replace_with_mask(batch["text_hash"], changed, text_hashes(made)),
    )
    entered = pa.array(identities(batch["doc_id"].take(at), texts), pa.binary(16))
    once = np.diff(owner, prepend=-1) > 0  # the identity stands in one row a document
    within = pa.array(owner, pa.int64())
    rows = batch.take(at.take(within))
    columns = ledger_rows(
        "replaced",
        spans["type"],
        rows["doc_id"],
        rows["source"],
        end - start,
        pc.binary_length(words),
        start=utf8.to_characters(owner, start),
        end=utf8.to_characters(owner, end),
        digest=spans["digest"],
        score=spans["score"],
        identity=pc.if_else(pa.array(once), entered.take(within), None),
    )
    columns["action"] = pc.if_else(cut, "removed_span", "replaced")
    return pa.table(documents), _numbered(columns, owners[owner])


def _numbered(columns: dict[str, Any], rows: np.ndarray) -> pa.Table:
    """Rows of the ledger with the rows of their documents, by which they are put in order."""
    arrays = {name: pa.array(v, LEDGER.field(name).type) if isinstance(v, list | np.ndarray)
              else v.cast(LEDGER.field(name).type) for name, v in columns.items()}  # fmt: skip
    return pa.table(arrays).append_column("row", pa.array(rows, pa.int64()))


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy"],
    reads={"spans": ("spans",)},
)
def scrub(documents: Table, spans: dict[str, Artifact], config: ScrubConfig, work: Work) -> None:
    """``spans`` holds what stages found in these documents, in their tables ``spans``.
    HallmarkError where no document is left."""
    tables = [artifact["spans"] for artifact in spans.values()]
    done = work.parts(scrub_part, aligned(documents, *tables), list(spans), config)
    if documents.rows and not sum(part.parts["documents"]["rows"] for part in done):
        raise HallmarkError(
            f"none of {documents.rows:,} documents is left: all hold what is to be dropped, are "
            f"cut whole, or could not be looked through; see policy and policies"
        )
