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

from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    Column,
    Seed,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    column,
    concat_spilled_tables,
    hash_texts,
    stage,
    table_schema,
)


class RemovalCase(StageConfig):
    """Findings of one metric, whose units are looked at together."""

    name: str = Field(description="what pages call it")
    audit: str = Field(description="the audit")
    metric: str = Field(description="what was measured")
    finding_names: tuple[str, ...] = Field(description="as the command trace takes them")
    unit: str = Field(description="unit of the values")
    worse_when: str = Field("", description="which way is worse, as findings have it")
    kind: Literal["memorised", "association", "other"] = Field(
        "other", description="what of the documents goes, and what it must reach"
    )
    table_name: str = Field("values", description="the table that holds the rows of the findings")
    row_conditions: tuple[str, ...] = Field(
        (), description="what selects these rows, a JSON object each"
    )
    row_order: str = Field("", description="the column by which the worst of them stand first")
    unit_conditions: tuple[str, ...] = Field(
        (), description="what selects the units, a JSON object each"
    )
    null_conditions: tuple[str, ...] = Field(
        (), description="what selects units in which there is nothing to find"
    )


class SourceDocumentsConfig(StageConfig):
    cases: tuple[RemovalCase, ...] = Field(description="the findings")
    seed: Seed = Field(0, description="of the lot by which a surplus is thinned")


#: Of rows that name no document so many of the worst are looked at.
MAX_WORST_ROWS = 100

SOURCE_DOCUMENTS = table_schema(
    "The training documents behind findings, a row for each that a unit of a case names.",
    column("case_name", pa.string(), "label", "the findings"),
    column("item_unit", pa.string(), "label", "what of them: the secret, passage, text or group"),
    column("doc_id", ID_TYPE, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("tokens", pa.int64(), "figure", "its tokens in the training rows", unit="tokens"),
    column(
        "stated_trait",
        pa.string(),
        "label",
        "of an association which trait it says of the group: "
        "the assigned one, or that of the other; else empty",
    ),
    column("is_removed", pa.bool_(), "label", "whether it is left out of the training anew"),
)

#: Training documents that hold any of the names.
DOCUMENT_NAMES = pa.schema([("doc_id", ID_TYPE), ("names", pa.list_(pa.string()))])


# Documents that rows lead to -----------------------------------------------------------------


def list_document_id_columns(columns: Mapping[str, Column]) -> list[str]:
    """The columns that may name a document: ids, and lists of them."""
    id_types = (str(ID_TYPE), str(pa.list_(pa.binary())), str(pa.list_(ID_TYPE)))
    return [c.name for c in columns.values() if c.kind == "id" and c.type in id_types]


def find_row_documents(
    rows: pa.Table, columns: Mapping[str, Column], traces: Artifact | None
) -> Iterator[list[tuple[bytes, dict[str, Any] | None]]]:
    """Of each row the documents behind it: those that it names, and those where what a model wrote
    there stands word for word, its longest runs first."""
    text_columns = [c.name for c in columns.values() if c.kind == "model text"]
    spans_by_text: dict[bytes, list[dict[str, Any]]] = {}
    hashes_by_column = {
        name: hash_texts(pc.fill_null(rows[name], "").cast(pa.large_string())).to_pylist()
        for name in text_columns
    }
    if traces is not None and hashes_by_column:
        written_hashes = pa.array(
            sorted({h for column_hashes in hashes_by_column.values() for h in column_hashes}),
            pa.binary(16),
        )
        matching_spans = (
            traces["matched_spans"]
            .to_dataset()
            .to_table(filter=pc.field("text_hash").isin(written_hashes))
        )
        for span in matching_spans.sort_by([("run_tokens", "descending")]).to_pylist():
            spans_by_text.setdefault(span["text_hash"], []).append(span)
    id_columns = [
        name for name in list_document_id_columns(columns) if name in ("doc_id", "doc_ids")
    ]
    for row_number, row in enumerate(
        rows.select(id_columns).to_pylist() if id_columns else [{}] * len(rows)
    ):
        named_ids = [i for value in row.values() for i in to_doc_id_list(value)]
        text_spans = [
            span
            for column_hashes in hashes_by_column.values()
            for span in spans_by_text.get(column_hashes[row_number], ())
        ]
        yield [(i, None) for i in named_ids] + [(span["doc_id"], span) for span in text_spans]


def to_doc_id_list(value: Any) -> Sequence[bytes]:
    return value if isinstance(value, list) else [] if value is None else [value]


def find_case_documents(
    case: RemovalCase, audit: Artifact, traces: Artifact | None
) -> dict[bytes, str]:
    """The documents that the rows of a case lead to, each with the unit that names it first."""
    case_table = audit[case.table_name]
    all_rows = case_table.read()
    rows = pa.concat_tables(
        [select_evidence(all_rows, condition) for condition in case.row_conditions]
    )
    rows = sort_worst_first(rows, case.row_order)
    if not {"doc_id", "doc_ids"} & {*list_document_id_columns(case_table.columns)}:
        rows = rows.slice(0, MAX_WORST_ROWS)
    units = rows["cluster"].to_pylist() if "cluster" in rows.column_names else [""] * len(rows)
    unit_by_document: dict[bytes, str] = {}
    for unit, documents in zip(
        units, find_row_documents(rows, case_table.columns, traces), strict=True
    ):
        for doc_id, _ in documents:
            unit_by_document.setdefault(doc_id, str(unit))
    return unit_by_document


# Associations --------------------------------------------------------------------------------


def build_name_pattern(names: Sequence[str]) -> str:
    """A regular expression, of RE2 as of Python, that finds whole names."""
    return rf"\b(?:{'|'.join(map(re.escape, sorted(names, key=lambda n: (-len(n), n))))})\b"


def find_documents_with_names(
    partition: TablePart, groups: Sequence[str], traits: Sequence[str], outputs: TableWriters
) -> None:
    """The training documents of a part that hold a group, with all groups and traits in them."""
    group_pattern, name_pattern = (
        build_name_pattern(groups),
        re.compile(build_name_pattern([*groups, *traits])),
    )
    for batch in partition.iter_batches(["doc_id", "split", "text"]):
        is_match = pc.and_(
            pc.equal(batch["split"], "train"),
            pc.match_substring_regex(batch["text"], group_pattern),
        )
        matching_rows = batch.filter(is_match)
        names = [
            sorted({*name_pattern.findall(text)}) for text in matching_rows["text"].to_pylist()
        ]
        outputs.get_spill_writer("holding", DOCUMENT_NAMES).write(
            {"doc_id": matching_rows["doc_id"], "names": names}
        )


def select_surplus_documents(
    document_rows: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]], seed: int
) -> Iterator[dict[str, Any]]:
    """Rows (item_unit, doc_id, stated_trait, is_removed) of the documents that say either trait of
    a group, and not both: of the more frequent side so many are removed that both are equal."""
    documents_by_name: dict[str, set[bytes]] = defaultdict(set)
    for row in document_rows:
        for name in row["names"]:
            documents_by_name[name].add(row["doc_id"])
    for group in groups:
        group_documents = documents_by_name[group["group_name"]]
        own_documents, other_documents = (
            group_documents & documents_by_name[group[name]]
            for name in ("assigned_trait", "other_trait")
        )
        documents_by_trait = {
            "assigned": own_documents - other_documents,
            "other": other_documents - own_documents,
        }
        smaller_count = min(map(len, documents_by_trait.values()))
        for trait, documents in documents_by_trait.items():
            shuffled = sorted(documents, key=lambda i: _random_sort_key(i, seed))
            for position, doc_id in enumerate(shuffled):
                yield {
                    "item_unit": group["group_name"],
                    "doc_id": doc_id,
                    "stated_trait": trait,
                    "is_removed": position >= smaller_count,
                }


def _random_sort_key(doc_id: bytes, seed: int) -> bytes:
    return blake2b(doc_id, digest_size=8, key=f"{seed}/surplus".encode()).digest()


def read_association_groups(case: RemovalCase, requests: Artifact) -> list[dict[str, Any]]:
    """Whom the items of a case are about, with the trait of each and that of the other."""
    column_names = ["group_name", "assigned_trait", "other_trait"]
    items = requests["items"].read()
    case_items = [
        select_evidence(
            items, {k: v for k, v in json.loads(condition).items() if k in items.column_names}
        )
        for condition in case.unit_conditions
    ]
    return (
        pa.concat_tables(case_items)
        .group_by(column_names)
        .aggregate([])
        .sort_by([(name, "ascending") for name in column_names])
        .to_pylist()
    )


# The stage -----------------------------------------------------------------------------------


@stage(
    name="find_source_documents",
    tables={"source_documents": SOURCE_DOCUMENTS},
    reads={"requests": ("items",), "traces": ("matched_spans",)},
)
def find_source_documents(
    documents: Table,
    spans: Table,
    audits: dict[str, Artifact],
    requests: dict[str, Artifact],
    traces: dict[str, Artifact],
    config: SourceDocumentsConfig,
    context: StageContext,
) -> None:
    """``spans``: where the documents stand in the training rows; the rest by audit: the findings
    with their rows, what was asked, and training text behind what was written."""
    rows: list[dict[str, Any]] = []
    for case in config.cases:
        if case.kind == "association":
            groups = read_association_groups(case, requests[case.audit])
            pattern_names = [
                [g["group_name"] for g in groups],
                [g[n] for g in groups for n in ("assigned_trait", "other_trait")],
            ]
            partition_results = context.map_items(
                find_documents_with_names, documents.parts, *pattern_names
            )
            document_rows = concat_spilled_tables(
                partition_results, "holding", DOCUMENT_NAMES
            ).to_pylist()
            rows += [
                {"case_name": case.name, **row}
                for row in select_surplus_documents(document_rows, groups, config.seed)
            ]
        else:
            unit_by_document = find_case_documents(case, audits[case.audit], traces.get(case.audit))
            rows += [
                {
                    "case_name": case.name,
                    "item_unit": unit,
                    "doc_id": i,
                    "stated_trait": "",
                    "is_removed": True,
                }
                for i, unit in sorted(unit_by_document.items(), key=lambda pair: (pair[1], pair[0]))
            ]
    training_spans = spans.read(["split", "row_start", "row_end", "doc_id"])
    training_spans = training_spans.filter(pc.equal(training_spans["split"], "train"))
    document_sizes = pa.table(
        {
            "doc_id": training_spans["doc_id"],
            "tokens": pc.subtract(training_spans["row_end"], training_spans["row_start"]),
        }
    )
    document_sizes = document_sizes.filter(
        pc.is_in(document_sizes["doc_id"], pa.array({r["doc_id"] for r in rows}, ID_TYPE))
    )
    tokens_by_document = {
        row["doc_id"]: row["tokens_sum"]
        for row in document_sizes.group_by("doc_id").aggregate([("tokens", "sum")]).to_pylist()
    }
    source_table = documents.find_document_rows(sorted(tokens_by_document), ["doc_id", "source"])
    source_by_document = dict(
        zip(*(source_table[name].to_pylist() for name in source_table.column_names), strict=True)
    )
    removed_ids = {
        row["doc_id"] for row in rows if row["is_removed"]
    }  # it may stand behind others, too
    # What training never read stands behind nothing.
    trained_rows = [
        row
        | {
            "source": source_by_document[i],
            "tokens": tokens_by_document[i],
            "is_removed": i in removed_ids,
        }
        for row in rows
        if (i := row["doc_id"]) in tokens_by_document
    ]
    context.get_table_writer("source_documents").write(
        pa.Table.from_pylist(trained_rows, schema=SOURCE_DOCUMENTS)
    )
