"""The figures of the corpus: what the datasheet is rendered from.

Every table is counted from the tables of the stages, so that each figure leads back to rows.
In ``lengths`` and ``toxicity`` the source "" stands for all sources together: quantiles of
parts do not add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tasks.contract import (
    Artifact,
    HallmarkError,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    aligned,
    looked_up,
    stage,
    together,
    utf8_bytes,
)
from tasks.corpus.identities import Brought, Lengths, all_groups, brought_of
from tasks.corpus.presets import PRESETS, broken
from tasks.corpus.profiles.composition import (
    COUNTS,
    composed,
    composition_rows,
    licences,
    told_languages,
)
from tasks.corpus.profiles.tables import TABLES
from tasks.corpus.profiles.tagged import count_tagged
from tasks.measures.faults import Noted, careful, noted, tell
from tasks.measures.identities import Lexicon, find_terms
from tasks.measures.occupations import beside, occupations
from tasks.measures.personal.types import TYPES as PERSONAL
from tasks.measures.statistics import wilson


class ProfileConfig(StageConfig):
    quantiles: tuple[float, ...] = Field(
        default=(0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0),
        description="of lengths and toxicity scores",
    )
    values: int = Field(
        50,
        ge=1,
        le=100_000,
        description="values of a dimension that are named in composition; the rest is told as one",
    )
    length_classes: Lengths = Field(
        default=(200, 1000, 5000, 20_000),
        description="where the classes of length begin, in bytes, behind the first",
    )
    window: int = Field(
        10,
        ge=1,
        le=1000,
        description="words before and behind an occupation, within its "
        "sentence, among which gendered words stand beside it",
    )

    @field_validator("quantiles")
    @classmethod
    def _ordered(cls, quantiles: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 <= q <= 1 for q in quantiles) or sorted(set(quantiles)) != list(quantiles):
            raise ValueError("quantiles must be between 0 and 1, and each larger than the last")
        return quantiles


# Documents, part by part -----------------------------------------------------------------------

_MEASURES = pa.schema(
    [TABLES["sources"].field(name) for name in ("source", "split", "bytes", "characters")]
)


def measure_part(
    parts: tuple[Part, ...],
    licence: Mapping[str, str | None],
    brought: Brought,
    config: ProfileConfig,
    out: Tables,
) -> Noted:
    """Of a part of the documents, with that of their languages where it is known: the lengths of
    each, what it is composed of, mentions of identity terms, occupations beside gendered words.
    Returns those whose words could not be counted."""
    documents, *told = parts
    languages = looked_up(told[0], "language", documents).combine_chunks() if told else None
    groups, start = all_groups(brought), 0
    failed: Noted = []

    def counted(batch: pa.RecordBatch) -> tuple[pa.Table, pa.Table]:
        found = mentions(batch["text"], batch["source"], groups)
        return found, count_beside(batch["text"], batch["source"], config.window)

    for batch in documents.batches(["doc_id", "source", "domain", "date", "split", "text"]):
        sizes = utf8_bytes(batch["text"])
        out.spill("measures", _MEASURES).write(
            {
                "source": batch["source"],
                "split": batch["split"],
                "bytes": sizes,
                "characters": pc.utf8_length(batch["text"]),
            }
        )
        here = None if languages is None else languages.slice(start, len(batch))
        start += len(batch)
        for counts in composed(batch, sizes, here, licence, config.length_classes):
            out.spill("composed", COUNTS).write(counts)
        (found, near), faults = careful(counted, batch)
        out.spill("mentions", TABLES["identities"]).write(found)
        out.spill("beside", BESIDE).write(near)
        failed += noted(batch, faults)
    return failed


def mentions(texts: pa.Array, sources: pa.Array, lexicon: Lexicon) -> pa.Table:
    """Rows of the table ``identities`` for a batch."""
    terms = lexicon.terms
    number, owner = find_terms(texts, lexicon)
    names = pa.table({"group": [g for g, _ in terms], "term": [t for _, t in terms]})
    rows = names.take(pa.array(number)).append_column("source", sources.take(pa.array(owner)))
    counted = rows.append_column("owner", pa.array(owner)).group_by(["group", "term", "source"])
    counts = counted.aggregate([("owner", "count"), ("owner", "count_distinct")])
    return counts.rename_columns(TABLES["identities"].names)


#: Counts by source and number of the occupation.
BESIDE = pa.schema(
    [("source", pa.string()), ("occupation", pa.string())]
    + [(name, pa.int64()) for name in ("mentions", "women_words", "men_words", "women", "men")]
)


def count_beside(texts: pa.Array, sources: pa.Array, window: int) -> pa.Table:
    """Mentions of occupations in a batch by the gendered words beside them."""
    number, owner, words = beside(texts, window)
    women, men = words.T
    columns = [np.ones(len(number), np.int64), women, men, women > men, men > women]
    rows = {"source": sources.take(pa.array(owner)),
            "occupation": pa.array(occupations(), pa.string()).take(pa.array(number))}  # fmt: skip
    for name, values in zip(BESIDE.names[2:], columns, strict=True):
        rows[name] = pa.array(values.astype(np.int64))
    return summed(pa.table(rows, schema=BESIDE))


def summed(rows: pa.Table) -> pa.Table:
    counted = rows.group_by(BESIDE.names[:2]).aggregate([(c, "sum") for c in BESIDE.names[2:]])
    return counted.rename_columns(BESIDE.names)


def occupation_rows(counts: pa.Table) -> list[dict[str, Any]]:
    """Rows of the table ``occupations``: by source and occupation, and for all of either."""
    every = pa.repeat(pa.scalar(""), len(counts))
    sides = [counts, counts.set_column(0, "source", every)]
    sides += [side.set_column(1, "occupation", every) for side in sides]
    rows = summed(pa.concat_tables(sides)).to_pylist()
    for row in rows:
        n = row["women"] + row["men"]
        low, high = wilson(row["women"], n) if n else (None, None)
        row |= {"share": row["women"] / n if n else None, "low": low, "high": high}
    return rows


# Tables ----------------------------------------------------------------------------------------


def count_sources(measures: pa.Table) -> pa.Table:
    groups = measures.group_by(["source", "split"]).aggregate(
        [("bytes", "count"), ("bytes", "sum"), ("characters", "sum"), ("bytes", "list")]
    )
    return pa.table(
        {
            "source": groups["source"],
            "split": groups["split"],
            "documents": groups["bytes_count"],
            "bytes": groups["bytes_sum"],
            "characters": groups["characters_sum"],
            "mean_bytes": pc.divide(groups["bytes_sum"].cast(pa.float64()), groups["bytes_count"]),
            "median_bytes": [
                float(np.median(sizes.values.to_numpy())) for sizes in groups["bytes_list"]
            ],
        }
    )


def by_source(table: pa.Table, column: str) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """(source, its values); first "" with all of them."""
    yield "", table[column]
    for source in sorted(pc.unique(table["source"]).to_pylist()):
        yield source, table.filter(pc.equal(table["source"], source))[column]


def length_quantiles(measures: pa.Table, quantiles: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"source": source, "quantile": quantile, "bytes": value}
        for source, sizes in by_source(measures, "bytes")
        for quantile, value in _quantiles(sizes, quantiles)
    ]


def _quantiles(values: pa.ChunkedArray, quantiles: Sequence[float]) -> list[tuple[float, float]]:
    known = values.drop_null().to_numpy().astype(np.float64)
    if not len(known):
        return []
    return list(zip(quantiles, np.quantile(known, quantiles).tolist(), strict=True))


def judged(signals: Table, selected: Artifact | None) -> pa.Table:
    """Of each document that came to ``selected``: doc_id, source, the reason for which it was
    removed, "" if it was kept, its toxicity, and what is known of that. HallmarkError where the
    signals are of other documents."""
    if selected is None:
        raise HallmarkError(
            "the history holds score_toxicity and not select_scored, which says what became of the "
            "documents: give both"
        )
    gone = selected["ledger"].read(["doc_id", "source", "action", "reason"])
    gone = gone.filter(pc.equal(gone["action"], "removed")).drop_columns("action")
    kept = selected["documents"].read(["doc_id", "source"])
    kept = kept.append_column("reason", pa.repeat("", len(kept)))
    known = signals.read(["doc_id", "toxicity", "toxicity_status"]).sort_by("doc_id")
    came = pa.concat_tables([kept, gone]).sort_by("doc_id")
    if not came["doc_id"].equals(known["doc_id"]):
        raise HallmarkError(
            f"{signals.artifacts[0].name} and {selected.name} are not about the same documents: "
            f"give both of one corpus"
        )
    return came.append_column("score", known["toxicity"]).append_column(
        "status", known["toxicity_status"]
    )


def toxicity_quantiles(scored: pa.Table, quantiles: Sequence[float]) -> list[dict[str, Any]]:
    """Of the documents ``judged``."""
    rows: list[dict[str, Any]] = []
    for source, scores in by_source(scored, "score"):
        counts = {"n": len(scores) - scores.null_count, "unscored": scores.null_count}
        for quantile, score in _quantiles(scores, quantiles):
            rows.append({"source": source, **counts, "quantile": quantile, "score": score})
    return rows


def count_reasons(label: str, ledger: Table) -> pa.Table:
    rows = ledger.read(["action", "reason", "source", "bytes_before", "bytes_after"])
    added = pc.equal(rows["action"], "added")
    size = pc.if_else(added, rows["bytes_after"], rows["bytes_before"])
    rows = rows.append_column("bytes", size)
    counts = rows.group_by(["action", "reason", "source"]).aggregate(
        [("bytes", "count"), ("bytes", "sum")]
    )
    counts = counts.rename_columns(["action", "reason", "source", "rows", "bytes"])
    return counts.append_column("stage", pa.array([label] * len(counts), pa.string()))


def count_rules(signals: Table) -> list[dict[str, Any]]:
    """Of the signals of ``quality``, a row for each rule of each preset."""
    rules = [(preset, *rule) for preset, named in PRESETS.items() for rule in named.items()]
    counts = np.zeros((len(rules), 2), np.int64)
    for batch in signals.batches():
        for count, (_, name, rule) in zip(counts, rules, strict=True):
            found = broken(rule, batch[rule.get("signal", name)])
            count += pc.sum(found).as_py() or 0, found.null_count
    return [
        {"preset": preset, "rule": name, "documents": signals.rows, "broken": many, "unknown": few}
        for (preset, name, _), (many, few) in zip(rules, counts.tolist(), strict=True)
    ]


def count_personal_data(ledger: Table) -> pa.Table:
    rows = ledger.read(["doc_id", "source", "action", "reason"])
    rows = rows.filter(pc.is_in(rows["reason"], value_set=pa.array(PERSONAL)))
    for name, actions in (("spans", ["replaced", "removed_span"]), ("left", ["removed", "also"])):
        here = pc.is_in(rows["action"], value_set=pa.array(actions))
        rows = rows.append_column(name, here.cast(pa.int64()))
    counts = rows.group_by(["reason", "source"]).aggregate(
        [("spans", "sum"), ("doc_id", "count_distinct"), ("left", "sum")]
    )
    return counts.rename_columns(["type", "source", "spans", "documents", "left"])


def count_duplicates(label: str, pairs: Table) -> pa.Table:
    similarity = pairs.read(["similarity"])["similarity"].to_numpy().astype(np.float64)
    # The small number keeps 0.85, as stored in binary, out of the bucket below.
    bucket, count = np.unique(np.floor(similarity * 20 + 1e-6), return_counts=True)
    return pa.table({"stage": [label] * len(count), "pairs": count, "similarity": bucket / 20})


def count_plants(plants: pa.Table) -> pa.Table:
    size = pc.multiply(utf8_bytes(plants["text"]), plants["copies"].cast(pa.int64()))
    rows = plants.select(["kind", "copies"]).append_column("bytes", size)
    counts = rows.group_by(["kind", "copies"]).aggregate([("bytes", "count"), ("bytes", "sum")])
    counts = counts.rename_columns(["kind", "copies", "plants", "bytes"])
    documents = pc.multiply(counts["plants"], counts["copies"].cast(pa.int64()))
    return counts.append_column("documents", documents)


def flow_rows(history: dict[str, Artifact]) -> Iterator[pa.Table]:
    for order, (label, artifact) in enumerate(history.items()):
        if "accounts" in artifact.tables:
            books = artifact["accounts"].read()
            books = books.append_column("order", pa.array([order] * len(books), pa.int32()))
            yield books.append_column("stage", pa.array([label] * len(books), pa.string()))


@stage(
    tables=TABLES,
    code=["tasks/measures/data/identities.json", "tasks/measures/data/occupations.json"],
    libraries=["numpy", "scipy"],
    reads={
        "history": (
            "accounts",
            "documents",
            "errors",
            "ledger",
            "lexicons",
            "pairs",
            "signals",
            "sources",
        ),
        "earlier": ("signals", "sources"),
    },
)
def profile(
    documents: Table,
    plants: Table,
    history: dict[str, Artifact],
    earlier: dict[str, Artifact],
    config: ProfileConfig,
    work: Work,
) -> None:
    """``history`` holds the artifacts of the corpus stages by label, in the order they ran;
    ``earlier`` those of ingest and language of the additions before. What stages did is told of
    the last addition, what the corpus holds of all of it.

    Holds about 80 bytes a document: id, source, split, lengths and toxicity; and of composition
    about 400 bytes for each different domain.
    """
    known = {**earlier, **history}
    told = told_languages(known)
    pairs = aligned(documents, *([told] if told else []))
    brought = brought_of(history)
    parts = work.map(measure_part, pairs, licences(known), brought, config)
    tell(work, [part.value for part in parts], documents.rows, "the count of words")
    measures = together(parts, "measures", _MEASURES)
    terms = together(parts, "mentions", TABLES["identities"]).group_by(["group", "term", "source"])
    counts = terms.aggregate([("mentions", "sum"), ("documents", "sum")])

    def write(name: str, rows: pa.Table | list[dict[str, Any]]) -> None:
        schema = TABLES[name]
        if isinstance(rows, list):
            rows = pa.Table.from_pylist(rows, schema=schema)
        keys = [(c, "ascending") for c in schema.names if schema.field(c).type == pa.string()]
        keys += [
            (c, "ascending") for c in ("copies", "similarity", "quantile") if c in schema.names
        ]
        work.table(name).write(rows.sort_by(keys) if name != "flow" else rows)

    write("sources", count_sources(measures))
    write("lengths", length_quantiles(measures, config.quantiles))
    write("identities", counts.rename_columns(TABLES["identities"].names))
    counted = together(parts, "composed", COUNTS)
    write("composition", composition_rows(counted, config.values))
    write("occupations", occupation_rows(together(parts, "beside", BESIDE)))
    write("plants", count_plants(plants.read(["kind", "copies", "text"])))
    for books in flow_rows(history):
        write("flow", books)
    for label, artifact in history.items():
        tables = artifact.tables
        if "ledger" in tables:
            write("reasons", count_reasons(label, tables["ledger"]))
        if "pairs" in tables:
            write("duplicates", count_duplicates(label, tables["pairs"]))
        if "errors" in tables:
            write("errors", tables["errors"].read())
        if artifact.stage == "select":
            write("tagged", count_tagged(label, artifact))
        if artifact.stage == "quality":
            write("published_rules", count_rules(tables["signals"]))
        if artifact.stage == "scrub":
            write("personal_data", count_personal_data(tables["ledger"]))
        if artifact.stage == "score_toxicity":
            scored = judged(tables["signals"], history.get("select_scored"))
            write("toxicity", toxicity_quantiles(scored, config.quantiles))
            known = scored.group_by(["source", "status", "reason"]).aggregate([("doc_id", "count")])
            names = {"doc_id_count": "documents"}
            write("toxicity_status", known.rename_columns(names))
