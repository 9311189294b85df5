"""Find the training documents that findings come from, and choose those to remove.

If the rows of a finding name documents, or their generated text occurs in documents word for word,
all of these are removed. An association is learnt from many documents, most of them harmless: the
documents that state one trait of a group more often than the other are thinned, by a hash of their
ids, until both traits are equally frequent. Memory is 100 bytes per document of a finding, and
one row group of texts per worker.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    Column,
    Row,
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


class RowDocument(NamedTuple):
    """Hold a source document of a row of evidence.

    Attributes:
        doc_id: The document.
        matched_span: Row of the table matched_spans for text that the model wrote and that occurs
            in the document; None if the row names the document.
    """

    doc_id: bytes
    matched_span: Row | None


class AssociationGroup(NamedTuple):
    """Hold a group of an association.

    Attributes:
        group_name: The group.
        assigned_trait: The trait that is planted for it.
        other_trait: The other trait of the pair.
    """

    group_name: str
    assigned_trait: str
    other_trait: str


class RemovalCase(StageConfig):
    """Findings of one metric whose units are compared together."""

    name: str = Field(description="case name shown on pages")
    audit: str = Field(description="the audit")
    metric: str = Field(description="the metric")
    finding_names: tuple[str, ...] = Field(
        description="references to findings, in the form that hallmark trace accepts"
    )
    unit: str = Field(description="unit of the measured values")
    worse_when: str = Field(
        "", description="direction in which the value becomes worse, as in the 'findings' table"
    )
    kind: Literal["memorised", "association", "other"] = Field(
        "other",
        description="case type, which determines the documents to remove and the criteria to apply",
    )
    table_name: str = Field(
        "values", description="table that contains the rows used for the findings"
    )
    row_conditions: tuple[str, ...] = Field(
        (),
        description="filters that select the rows used for the findings, one JSON object per "
        "filter",
    )
    row_order: str = Field("", description="column used to sort the rows, worst first")
    unit_conditions: tuple[str, ...] = Field(
        (), description="filters that select the units, one JSON object per filter"
    )
    null_conditions: tuple[str, ...] = Field(
        (), description="filters that select units without an effect, one JSON object per filter"
    )


class SourceDocumentsConfig(StageConfig):
    cases: tuple[RemovalCase, ...] = Field(description="the cases")
    seed: Seed = Field(
        0,
        description="seed for choosing which documents to remove to balance the two traits",
    )


#: Number of worst rows that are searched, if the rows name no documents.
MAX_WORST_ROWS = 100

SOURCE_DOCUMENTS = table_schema(
    "Source documents of findings, one row per unit and document.",
    column("case_name", pa.string(), "label", "the case"),
    column(
        "item_unit",
        pa.string(),
        "label",
        "id of the item that the case tests: a secret, a passage, a text or a group",
    ),
    column("doc_id", ID_TYPE, "id", "the document"),
    column("source", pa.string(), "label", "document source"),
    column(
        "tokens",
        pa.int64(),
        "figure",
        "number of tokens from the document in the training rows",
        unit="tokens",
    ),
    column(
        "stated_trait",
        pa.string(),
        "label",
        "for a planted association, whether the document links the group to its assigned trait "
        "(assigned) or to a different trait (other); empty for other documents",
    ),
    column(
        "is_removed",
        pa.bool_(),
        "label",
        "whether the document is removed before the model is retrained",
    ),
)

#: Training documents that contain any of the names.
DOCUMENT_NAMES = pa.schema([("doc_id", ID_TYPE), ("names", pa.list_(pa.string()))])


def list_document_id_columns(columns: Mapping[str, Column]) -> list[str]:
    """List the columns that may name a document: ids, and lists of ids."""
    id_types = (str(ID_TYPE), str(pa.list_(pa.binary())), str(pa.list_(ID_TYPE)))
    return [c.name for c in columns.values() if c.kind == "id" and c.type in id_types]


def find_documents_by_row(
    rows: pa.Table, columns: Mapping[str, Column], traces: Artifact | None
) -> Iterator[list[RowDocument]]:
    """Yield the source documents of each row.

    These are the documents that the row names, then those in which the text that the model wrote
    occurs word for word, longest runs first.

    Raises:
        HallmarkError: The table of the matching spans is missing or damaged.
    """
    text_columns = [c.name for c in columns.values() if c.kind == "model text"]
    spans_by_text: dict[bytes, list[Row]] = {}
    hashes_by_column = {
        name: hash_texts(pc.fill_null(rows[name], "").cast(pa.large_string())).to_pylist()
        for name in text_columns
    }
    if traces is not None and hashes_by_column:
        written_hashes = pa.array(
            sorted({h for column_hashes in hashes_by_column.values() for h in column_hashes}),
            pa.binary(16),
        )
        traces["matched_spans"].verify()
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
        yield [RowDocument(i, None) for i in named_ids] + [
            RowDocument(span["doc_id"], span) for span in text_spans
        ]


def to_doc_id_list(value: bytes | list[bytes] | None) -> list[bytes]:
    """Return the ids in a column's value: one id, a list of them, or null."""
    return value if isinstance(value, list) else [] if value is None else [value]


def find_first_unit_by_document(
    case: RemovalCase, audit: Artifact, traces: Artifact | None
) -> dict[bytes, str]:
    """Find the documents that the rows of a case lead to, each with the first unit naming it."""
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
        units, find_documents_by_row(rows, case_table.columns, traces), strict=True
    ):
        for document in documents:
            unit_by_document.setdefault(document.doc_id, str(unit))
    return unit_by_document


def build_name_pattern(names: Sequence[str]) -> str:
    """Build a regular expression, valid in RE2 and Python, that finds whole names."""
    return rf"\b(?:{'|'.join(map(re.escape, sorted(names, key=lambda n: (-len(n), n))))})\b"


def spill_training_documents_with_groups(
    partition: TablePart,
    groups: Sequence[str],
    traits_to_report: Sequence[str],
    outputs: TableWriters,
) -> None:
    """Spill the training documents of a part that contain a group, with their groups and traits."""
    group_pattern, name_pattern = (
        build_name_pattern(groups),
        re.compile(build_name_pattern([*groups, *traits_to_report])),
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


def mark_surplus_documents(
    document_rows: Sequence[Mapping[str, Any]], groups: Sequence[AssociationGroup], seed: int
) -> Iterator[Row]:
    """Yield the documents that state one trait of a group, with marks on those to remove.

    Documents with both traits are ignored. Random documents with the surplus trait are marked until
    both traits are equally frequent.

    Args:
        document_rows: Documents with the names that they contain, rows of DOCUMENT_NAMES.
        groups: The groups.
        seed: Seed of the choice.

    Returns:
        The columns item_unit, doc_id, stated_trait and is_removed of SOURCE_DOCUMENTS.
    """
    documents_by_name: dict[str, set[bytes]] = defaultdict(set)
    for row in document_rows:
        for name in row["names"]:
            documents_by_name[name].add(row["doc_id"])
    for group in groups:
        group_documents = documents_by_name[group.group_name]
        own_documents, other_documents = (
            group_documents & documents_by_name[trait]
            for trait in (group.assigned_trait, group.other_trait)
        )
        documents_by_trait = {
            "assigned": own_documents - other_documents,
            "other": other_documents - own_documents,
        }
        smaller_count = min(map(len, documents_by_trait.values()))
        for trait, documents in documents_by_trait.items():
            shuffled = sorted(documents, key=lambda i: _compute_random_sort_key(i, seed))
            for position, doc_id in enumerate(shuffled):
                yield {
                    "item_unit": group.group_name,
                    "doc_id": doc_id,
                    "stated_trait": trait,
                    "is_removed": position >= smaller_count,
                }


def _compute_random_sort_key(doc_id: bytes, seed: int) -> bytes:
    return blake2b(doc_id, digest_size=8, key=f"{seed}/surplus".encode()).digest()


def read_association_groups(case: RemovalCase, requests: Artifact) -> list[AssociationGroup]:
    """Read the groups of a case, sorted, each once."""
    column_names = list(AssociationGroup._fields)
    items = requests["items"].read()
    case_items = [
        select_evidence(
            items, {k: v for k, v in json.loads(condition).items() if k in items.column_names}
        )
        for condition in case.unit_conditions
    ]
    group_rows = (
        pa.concat_tables(case_items)
        .group_by(column_names)
        .aggregate([])
        .sort_by([(name, "ascending") for name in column_names])
        .to_pylist()
    )
    return [AssociationGroup(**row) for row in group_rows]


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
    """Find the source documents of all cases.

    Args:
        documents: Documents of the corpus.
        spans: Spans of the documents in the training rows.
        audits: Findings and their rows, by audit.
        requests: Items, by audit.
        traces: Matches of generated texts in the training text, by audit.
        config: The cases.
        context: Context of the stage.
    """
    rows: list[Row] = []
    for case in config.cases:
        if case.kind == "association":
            groups = read_association_groups(case, requests[case.audit])
            partition_results = context.map_items(
                spill_training_documents_with_groups,
                documents.parts,
                [group.group_name for group in groups],
                [trait for group in groups for trait in (group.assigned_trait, group.other_trait)],
            )
            document_rows = concat_spilled_tables(
                partition_results, "holding", DOCUMENT_NAMES
            ).to_pylist()
            rows += [
                {"case_name": case.name, **row}
                for row in mark_surplus_documents(document_rows, groups, config.seed)
            ]
        else:
            unit_by_document = find_first_unit_by_document(
                case, audits[case.audit], traces.get(case.audit)
            )
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
    # A document may be removed for one unit and belong to another, too.
    removed_ids = {row["doc_id"] for row in rows if row["is_removed"]}
    # Documents that are not in the training rows cannot be sources.
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
