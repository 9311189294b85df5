"""The training documents behind findings: which of them are to go, so that a training anew shows
what the finding is due to.

Of a finding whose rows name documents, or whose texts stand in them word for word, all of these go.
An association is learnt from many, most of them harmless: of the training documents that hold a
group together with either trait those of the more frequent one are the surplus. So many of them go,
drawn by a hash of their ids, that both traits are said of the group equally often.

Memory: 100 bytes a document behind a finding; of each worker one row group of texts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.audits.judging.conditions import ordered
from tasks.audits.judging.findings import evidence
from tasks.contract import (
    ID,
    Artifact,
    Column,
    Part,
    Seed,
    StageConfig,
    Table,
    Tables,
    Work,
    column,
    stage,
    table,
    text_hashes,
    together,
)


class Case(StageConfig):
    """Findings of one metric, whose units are looked at together."""

    name: str = Field(description="what pages call it")
    audit: str = Field(description="the audit")
    metric: str = Field(description="what was measured")
    findings: tuple[str, ...] = Field(description="as the command trace takes them")
    unit: str = Field(description="unit of the values")
    worse: str = Field("", description="which way is worse, as findings have it")
    kind: Literal["memorised", "association", "other"] = Field(
        "other", description="what of the documents goes, and what it must reach"
    )
    table: str = Field("values", description="the table that holds the rows of the findings")
    rows: tuple[str, ...] = Field((), description="what selects these rows, a JSON object each")
    order: str = Field("", description="the column by which the worst of them stand first")
    units: tuple[str, ...] = Field((), description="what selects the units, a JSON object each")
    nothing: tuple[str, ...] = Field(
        (), description="what selects units in which there is nothing to find"
    )


class BehindConfig(StageConfig):
    cases: tuple[Case, ...] = Field(description="the findings")
    seed: Seed = Field(0, description="of the lot by which a surplus is thinned")


#: Of rows that name no document so many of the worst are looked at.
WORST = 100

BEHIND = table(
    "The training documents behind findings, a row for each that a unit of a case names.",
    column("case", pa.string(), "label", "the findings"),
    column("unit", pa.string(), "label", "what of them: the secret, passage, text or group"),
    column("doc_id", ID, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("tokens", pa.int64(), "figure", "its tokens in the training rows", unit="tokens"),
    column("holds", pa.string(), "label", "of an association which trait it says of the group: "
           "its own, or that of the other; else empty"),
    column("removed", pa.bool_(), "label", "whether it is left out of the training anew"),
)  # fmt: skip

#: Training documents that hold any of the names.
HOLDING = pa.schema([("doc_id", ID), ("names", pa.list_(pa.string()))])


# Documents that rows lead to -----------------------------------------------------------------


def naming(columns: Mapping[str, Column]) -> list[str]:
    """The columns that may name a document: ids, and lists of them."""
    kinds = (str(ID), str(pa.list_(pa.binary())), str(pa.list_(ID)))
    return [c.name for c in columns.values() if c.kind == "id" and c.type in kinds]


def behind_rows(
    rows: pa.Table, columns: Mapping[str, Column], traces: Artifact | None
) -> Iterator[list[tuple[bytes, dict[str, Any] | None]]]:
    """Of each row the documents behind it: those that it names, and those where what a model wrote
    there stands word for word, its longest runs first."""
    written = [c.name for c in columns.values() if c.kind == "model text"]
    spans: dict[bytes, list[dict[str, Any]]] = {}
    hashes = {
        name: text_hashes(pc.fill_null(rows[name], "").cast(pa.large_string())).to_pylist()
        for name in written
    }
    if traces is not None and hashes:
        wanted = pa.array(sorted({h for each in hashes.values() for h in each}), pa.binary(16))
        found = traces["spans"].dataset().to_table(filter=pc.field("text").isin(wanted))
        for span in found.sort_by([("size", "descending")]).to_pylist():
            spans.setdefault(span["text"], []).append(span)
    names = [name for name in naming(columns) if name in ("doc_id", "doc_ids")]
    for number, row in enumerate(rows.select(names).to_pylist() if names else [{}] * len(rows)):
        named = [i for value in row.values() for i in listed(value)]
        texts = [span for each in hashes.values() for span in spans.get(each[number], ())]
        yield [(i, None) for i in named] + [(span["doc_id"], span) for span in texts]


def listed(value: Any) -> Sequence[bytes]:
    return value if isinstance(value, list) else [] if value is None else [value]


def named_by(case: Case, audit: Artifact, traces: Artifact | None) -> dict[bytes, str]:
    """The documents that the rows of a case lead to, each with the unit that names it first."""
    source = audit[case.table]
    every = source.read()
    rows = pa.concat_tables([evidence(every, where) for where in case.rows])
    rows = ordered(rows, case.order)
    if not {"doc_id", "doc_ids"} & {*naming(source.columns)}:
        rows = rows.slice(0, WORST)
    units = rows["cluster"].to_pylist() if "cluster" in rows.column_names else [""] * len(rows)
    found: dict[bytes, str] = {}
    for unit, documents in zip(units, behind_rows(rows, source.columns, traces), strict=True):
        for doc_id, _ in documents:
            found.setdefault(doc_id, str(unit))
    return found


# Associations --------------------------------------------------------------------------------


def pattern_of(names: Sequence[str]) -> str:
    """A regular expression, of RE2 as of Python, that finds whole names."""
    return rf"\b(?:{'|'.join(map(re.escape, sorted(names, key=lambda n: (-len(n), n))))})\b"


def holding(part: Part, groups: Sequence[str], traits: Sequence[str], out: Tables) -> None:
    """The training documents of a part that hold a group, with all groups and traits in them."""
    some, every = pattern_of(groups), re.compile(pattern_of([*groups, *traits]))
    for batch in part.batches(["doc_id", "split", "text"]):
        hit = pc.and_(pc.equal(batch["split"], "train"),
                      pc.match_substring_regex(batch["text"], some))  # fmt: skip
        found = batch.filter(hit)
        names = [sorted({*every.findall(text)}) for text in found["text"].to_pylist()]
        out.spill("holding", HOLDING).write({"doc_id": found["doc_id"], "names": names})


def surplus(
    found: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]], seed: int
) -> Iterator[dict[str, Any]]:
    """Rows (unit, doc_id, holds, removed) of the documents that say either trait of a group, and
    not both: of the more frequent side so many are removed that both are equal."""
    by_name: dict[str, set[bytes]] = defaultdict(set)
    for row in found:
        for name in row["names"]:
            by_name[name].add(row["doc_id"])
    for group in groups:
        inside = by_name[group["group"]]
        own, other = (inside & by_name[group[name]] for name in ("own", "other"))
        sides = {"own": own - other, "other": other - own}
        least = min(map(len, sides.values()))
        for holds, documents in sides.items():
            drawn = sorted(documents, key=lambda i: _draw(i, seed))
            for place, doc_id in enumerate(drawn):
                yield {"unit": group["group"], "doc_id": doc_id, "holds": holds,
                       "removed": place >= least}  # fmt: skip


def _draw(doc_id: bytes, seed: int) -> bytes:
    return blake2b(doc_id, digest_size=8, key=f"{seed}/surplus".encode()).digest()


def groups_of(case: Case, asked: Artifact) -> list[dict[str, Any]]:
    """Whom the items of a case are about, with the trait of each and that of the other."""
    names = ["group", "own", "other"]
    items = asked["items"].read()
    mine = [
        evidence(items, {k: v for k, v in json.loads(where).items() if k in items.column_names})
        for where in case.units
    ]
    return pa.concat_tables(mine).group_by(names).aggregate([]).sort_by(
        [(name, "ascending") for name in names]
    ).to_pylist()  # fmt: skip


# The stage -----------------------------------------------------------------------------------


@stage(
    tables={"behind": BEHIND},
    reads={"asked": ("items",), "traces": ("spans",)},
)
def behind(
    documents: Table,
    spans: Table,
    audits: dict[str, Artifact],
    asked: dict[str, Artifact],
    traces: dict[str, Artifact],
    config: BehindConfig,
    work: Work,
) -> None:
    """``spans``: where the documents stand in the training rows; the rest by audit: the findings
    with their rows, what was asked, and training text behind what was written."""
    rows: list[dict[str, Any]] = []
    for case in config.cases:
        if case.kind == "association":
            groups = groups_of(case, asked[case.audit])
            names = [[g["group"] for g in groups], [g[n] for g in groups for n in ("own", "other")]]
            done = work.map(holding, documents.parts, *names)
            found = together(done, "holding", HOLDING).to_pylist()
            rows += [{"case": case.name, **row} for row in surplus(found, groups, config.seed)]
        else:
            named = named_by(case, audits[case.audit], traces.get(case.audit))
            rows += [
                {"case": case.name, "unit": unit, "doc_id": i, "holds": "", "removed": True}
                for i, unit in sorted(named.items(), key=lambda pair: (pair[1], pair[0]))
            ]
    read = spans.read(["split", "start", "end", "doc_id"])
    read = read.filter(pc.equal(read["split"], "train"))
    sizes = pa.table({"doc_id": read["doc_id"], "tokens": pc.subtract(read["end"], read["start"])})
    sizes = sizes.filter(pc.is_in(sizes["doc_id"], pa.array({r["doc_id"] for r in rows}, ID)))
    tokens = {
        row["doc_id"]: row["tokens_sum"]
        for row in sizes.group_by("doc_id").aggregate([("tokens", "sum")]).to_pylist()
    }
    sources = documents.find(sorted(tokens), ["doc_id", "source"])
    source = dict(zip(*(sources[name].to_pylist() for name in sources.column_names), strict=True))
    gone = {row["doc_id"] for row in rows if row["removed"]}  # it may stand behind others, too
    # What training never read stands behind nothing.
    known = [row | {"source": source[i], "tokens": tokens[i], "removed": i in gone} for row in rows
             if (i := row["doc_id"]) in tokens]  # fmt: skip
    work.table("behind").write(pa.Table.from_pylist(known, schema=BEHIND))
