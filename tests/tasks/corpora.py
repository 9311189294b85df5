"""Build documents for tests of the corpus stages, as artifacts of a small stage."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from hallmark.tasks.contract import (
    DOCUMENTS,
    Artifact,
    StageConfig,
    StageContext,
    Table,
    TableWriters,
    doc_id_to_part_index,
    fill_document_columns,
    hash_texts,
    hash_to_ids,
    stage,
)
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig, find_personal_data
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans


class GivenConfig(StageConfig):
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    clusters: tuple[str, ...]
    toxicity: tuple[float | None, ...]
    splits: tuple[str, ...]
    parts: int = 1  # one part stands in the order given, more are sorted and cut


def cut(documents: pa.Table, parts: int) -> list[pa.Table]:
    """Sort documents by id and split them into parts, like tables about documents."""
    if parts == 1:
        return [documents]
    documents = documents.sort_by("doc_id")
    place = pa.array(
        [doc_id_to_part_index(i, parts) for i in documents["doc_id"].to_pylist()], pa.int64()
    )
    return [documents.filter(pa.compute.equal(place, number)) for number in range(parts)]


def write_cut(part: pa.Table, out: TableWriters) -> None:
    out.get_table_writer("documents").write(part)


def table_in(folder: Path, documents: pa.Table, parts: int = 1) -> Table:
    """Write documents as a table of a folder, without a store or a stage."""
    work = StageContext(folder, {"documents": DOCUMENTS})
    work.map_partitions(write_cut, cut(documents, parts))
    made = {"stage": "made", "fingerprint": "0" * 64, "content": "", "files": {}, "telemetry": {}}
    made["tables"] = work.assemble_tables(["documents"])
    return Artifact(made, None, str(work.output_folder))["documents"]


def columns(config: GivenConfig) -> dict[str, object]:
    texts = pa.array(config.texts, pa.large_string())
    return {
        "doc_id": hash_to_ids(f"document {i}" for i in range(len(texts))),
        "source": list(config.sources),
        "cluster": hash_to_ids(config.clusters),
        "text": texts,
        "text_hash": hash_texts(texts),
    }


def write(columns: dict[str, object], config: GivenConfig, context: StageContext) -> None:
    table = pa.table(fill_document_columns(columns), schema=DOCUMENTS)
    context.map_partitions(write_cut, cut(table, config.parts))


@stage(name="given_documents", tables={"documents": DOCUMENTS})
def given_documents(config: GivenConfig, context: StageContext) -> None:
    write(columns(config), config, context)


@stage(name="given_scored", tables={"documents": DOCUMENTS})
def given_scored(config: GivenConfig, context: StageContext) -> None:
    write(columns(config) | {"toxicity": list(config.toxicity)}, config, context)


@stage(name="given_split", tables={"documents": DOCUMENTS})
def given_split(config: GivenConfig, context: StageContext) -> None:
    more = {"toxicity": list(config.toxicity), "split": list(config.splits)}
    write(columns(config) | more, config, context)


def given(
    texts: Sequence[str],
    sources: Sequence[str] | None = None,
    clusters: Sequence[str] | None = None,
    toxicity: Sequence[float | None] | None = None,
    splits: Sequence[str] | None = None,
    kind: str = "documents",
    parts: int = 1,
) -> Artifact:
    """Build an artifact with these documents; ``kind`` is "documents", "scored" or "split"."""
    config = GivenConfig(
        texts=tuple(texts),
        sources=tuple(sources or ["source"] * len(texts)),
        clusters=tuple(clusters or [f"cluster {i}" for i in range(len(texts))]),
        toxicity=tuple(toxicity or [0.125] * len(texts)),
        splits=tuple(splits or ["train"] * len(texts)),
        parts=parts,
    )
    makers = {"documents": given_documents, "scored": given_scored, "split": given_split}
    return makers[kind](config)


def scrubbed(
    documents: Artifact,
    personal: PersonalDataConfig | None = None,
    config: RedactSpansConfig | None = None,
) -> Artifact:
    """Redact in the documents what ``find_personal_data`` finds."""
    found = find_personal_data(documents, personal or PersonalDataConfig())
    return redact_spans(documents, {"find_personal_data": found}, config or RedactSpansConfig())
