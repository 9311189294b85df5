"""Attribution without gradients: which training documents would matter to how likely a text is.

A model finds a text likely that it has read, or whose rare words it has read together. So a
document is scored by the words and runs of words that it shares with the text, each weighted by how
few documents hold it (idf: Spärck Jones 1972; whether, not how often, so that long documents do
not win by length): the tracer predicts that without its first documents the text would be less
likely. Worlds with sealed answers measure how often it is right.

Memory: 12 bytes for each pair of a document of a part and a term of the texts that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    column,
    concat_spilled_tables,
    stage,
    table_schema,
)

#: Words and runs of so many words are terms; they are hashed to so many places.
MAX_NGRAM, HASH_BUCKETS = 3, 1 << 20
WORD_PATTERN = r"(?u)\w+"


class AttributionConfig(StageConfig):
    """Settings of attribution."""

    max_documents: int = Field(
        default=128, ge=1, le=10_000, description="documents named for a text"
    )


class CandidateText(NamedTuple):
    """A text that documents are looked for: of which candidate, and of an association about which
    group."""

    kind: str
    candidate_id: str
    group_name: str
    text: str


ATTRIBUTED = table_schema(
    "The training documents that would matter the most to how likely a text is.",
    column("kind", pa.string(), "label", "canary, passage, record or association"),
    column("candidate_id", pa.string(), "label", "the candidate"),
    column("group_name", pa.string(), "label", "of an association the group; else empty"),
    column("rank", pa.int32(), "figure", "place of the document, from 1"),
    column("doc_id", ID_TYPE, "id", "the document"),
    column(
        "score", pa.float64(), "figure", "share of the text's weight that it holds", unit="share"
    ),
)

#: What a part has to offer to a text.
PARTITION_MATCHES = pa.schema([("text", pa.int32()), ("doc_id", ID_TYPE), ("score", pa.float64())])


def build_candidate_texts(canaries: pa.Table) -> list[CandidateText]:
    """The texts of candidates; of an association each group with the trait that it may have."""
    candidate_texts = []
    for row in canaries.to_pylist():
        if row["association"]:
            association_text = f"{row['group_name']} {row['trait']}"
            candidate_texts.append(
                CandidateText(row["kind"], row["association"], row["group_name"], association_text)
            )
        else:
            candidate_texts.append(
                CandidateText(row["kind"], row["canary_id"].hex(), "", row["text"])
            )
    return candidate_texts


def vectorize_terms(texts: Sequence[str]) -> Any:
    """Which terms each text holds, (texts, PLACES), a sparse matrix of 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        n_features=HASH_BUCKETS,
        ngram_range=(1, MAX_NGRAM),
        token_pattern=WORD_PATTERN,
        binary=True,
        norm=None,
        alternate_sign=False,
        dtype=np.float32,
    )
    return vectorizer.transform(texts)


def count_term_documents(
    partition: TablePart, term_columns: NDArray[np.int64], outputs: TableWriters
) -> list[float]:
    """In how many training documents of a part each of the columns stands, and how many there
    are."""
    return _count_term_documents(partition, term_columns).tolist()


def write_best_documents(
    partition: TablePart,
    term_columns: NDArray[np.int64],
    weights: Any,
    max_documents: int,
    outputs: TableWriters,
) -> None:
    """The best documents of a part for each text; ``weights``: (texts, columns), each row of sum
    1."""
    for text_number, doc_ids, scores in _find_best_in_partition(
        partition, term_columns, weights, max_documents
    ):
        outputs.get_spill_writer("offered", PARTITION_MATCHES).write(
            {
                "text": np.full(len(doc_ids), text_number, np.int32),
                "doc_id": doc_ids,
                "score": scores,
            }
        )


def _count_term_documents(
    partition: TablePart, term_columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """``held`` as an array, (columns + 1,)."""
    counts = np.zeros(len(term_columns) + 1)
    for _, matrix in _read_training_terms(partition, term_columns):
        counts[:-1] += np.asarray(matrix.sum(0)).ravel()
        counts[-1] += matrix.shape[0]
    return counts


def _find_best_in_partition(
    partition: TablePart, term_columns: NDArray[np.int64], weights: Any, max_documents: int
) -> Iterator[tuple[int, pa.Array, NDArray[np.float64]]]:
    """Of each row group and each text: the number of the text, the ids of the best documents and
    their scores."""
    for doc_ids, document_terms in _read_training_terms(partition, term_columns):
        scores = np.asarray(
            (document_terms @ weights.T).todense(), np.float64
        )  # (documents, texts)
        for text_number in range(scores.shape[1]):
            text_scores = scores[:, text_number]
            best_rows = np.argsort(-text_scores, kind="stable")[:max_documents]
            best_rows = best_rows[text_scores[best_rows] > 0]
            yield text_number, doc_ids.take(pa.array(best_rows)), text_scores[best_rows]


def _read_training_terms(
    partition: TablePart, term_columns: NDArray[np.int64]
) -> Iterator[tuple[pa.Array, Any]]:
    """Ids and terms of the training documents of each row group of a part."""
    for batch in partition.iter_batches(["doc_id", "split", "text"]):
        batch = batch.filter(pc.equal(batch["split"], "train"))
        if len(batch):
            yield batch["doc_id"], vectorize_terms(batch["text"].to_pylist())[:, term_columns]


def select_term_columns(texts: Sequence[str]) -> tuple[Any, NDArray[np.int64]]:
    """The terms of the texts, (texts, columns), and the places of these columns, (columns,)."""
    text_terms = vectorize_terms(texts)
    term_columns = np.unique(text_terms.indices).astype(np.int64)
    return text_terms[:, term_columns], term_columns


def compute_term_weights(text_terms: Any, document_counts: NDArray[np.float64]) -> Any:
    """The weight of each term in each text, (texts, columns), each row of sum 1; ``counts``: as
    ``held`` has them of all parts."""
    weights = text_terms.multiply(
        np.log(1 + document_counts[-1] / (1 + document_counts[:-1]))
    ).tocsr()
    row_sums = np.asarray(weights.sum(1)).ravel()
    return weights.multiply(1 / np.where(row_sums > 0, row_sums, 1)[:, None]).tocsr()


def find_influential_documents(
    documents: Table, texts: Sequence[str], max_documents: int
) -> list[list[tuple[bytes, float]]]:
    """Of each text the first documents with their scores, without a stage's workers: reads the
    texts of all documents twice."""
    text_terms, term_columns = select_term_columns(texts)
    document_counts = sum(
        (_count_term_documents(partition, term_columns) for partition in documents.parts),
        np.zeros(len(term_columns) + 1),
    )
    weights = compute_term_weights(text_terms, document_counts)
    best_by_text: list[list[tuple[bytes, float]]] = [[] for _ in texts]
    for partition in documents.parts:
        for text_number, doc_ids, scores in _find_best_in_partition(
            partition, term_columns, weights, max_documents
        ):
            ranked = [
                *best_by_text[text_number],
                *zip(doc_ids.to_pylist(), scores.tolist(), strict=True),
            ]
            best_by_text[text_number] = sorted(ranked, key=lambda scored: (-scored[1], scored[0]))[
                :max_documents
            ]
    return best_by_text


def compute_attributions(
    documents: Table, texts: Sequence[CandidateText], max_documents: int, context: StageContext
) -> Iterator[dict[str, Any]]:
    """Rows of ATTRIBUTED: of each text the first documents, those that tie in the order of their
    ids."""
    text_terms, term_columns = select_term_columns(
        [candidate_text.text for candidate_text in texts]
    )
    partition_counts = [
        candidate_text.value
        for candidate_text in context.map_items(count_term_documents, documents.parts, term_columns)
    ]
    weights = compute_term_weights(
        text_terms, np.sum([result for result in partition_counts if result], 0)
    )
    matches = concat_spilled_tables(
        context.map_items(
            write_best_documents, documents.parts, term_columns, weights, max_documents
        ),
        "offered",
        PARTITION_MATCHES,
    )
    sort_keys: Any = [("text", "ascending"), ("score", "descending"), ("doc_id", "ascending")]
    rank, last_text_number = 0, -1
    for row in matches.sort_by(sort_keys).to_pylist():
        text = texts[row["text"]]
        if row["text"] != last_text_number:
            rank, last_text_number = 0, row["text"]
        rank += 1
        if rank <= max_documents:
            yield {
                "kind": text.kind,
                "candidate_id": text.candidate_id,
                "group_name": text.group_name,
                "rank": rank,
                "doc_id": row["doc_id"],
                "score": row["score"],
            }


#: A document is predicted to matter where it holds nearly as much of a text as the first does.
NEAR_BEST_SHARE = 0.95


def select_influential_documents(
    attributions: pa.Table, candidates: set[tuple[str, str]]
) -> list[bytes]:
    """The documents whose removal would matter the most to these (kind, candidate_id)."""
    best_scores: dict[tuple[str, str, str], float] = {}
    doc_ids: dict[bytes, None] = {}
    for row in attributions.sort_by("rank").to_pylist():
        if (row["kind"], row["candidate_id"]) in candidates:
            text_key = row["kind"], row["candidate_id"], row["group_name"]
            if row["score"] >= NEAR_BEST_SHARE * best_scores.setdefault(text_key, row["score"]):
                doc_ids[row["doc_id"]] = None
    return sorted(doc_ids)


@stage(
    name="attribute_texts",
    tables={"attributions": ATTRIBUTED},
    libraries=["numpy", "scipy", "scikit-learn"],
)
def attribute_texts(
    documents: Table, canaries: Table, config: AttributionConfig, context: StageContext
) -> None:
    candidate_texts = build_candidate_texts(canaries.read())
    rows = (
        [*compute_attributions(documents, candidate_texts, config.max_documents, context)]
        if candidate_texts
        else []
    )
    context.get_table_writer("attributions").write(pa.Table.from_pylist(rows, schema=ATTRIBUTED))
