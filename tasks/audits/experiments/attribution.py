"""Attribute texts without gradients: predict which training documents make a text probable.

A model finds a text probable if it has read it, or has read its rare words together. So a
document's score is the weight of the words and n-grams that it shares with the text, each weighted
by idf (Spärck Jones 1972) and counted once, so that long documents gain nothing by length. The
prediction is that the text becomes less probable without its top documents; sealed trials measure
how often this is right. Memory is 12 bytes for each pair of a document of a part and a term of the
texts in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    Row,
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

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


#: Terms are n-grams of up to this many words; they are hashed to this number of columns.
MAX_NGRAM, HASH_BUCKETS = 3, 1 << 20
WORD_PATTERN = r"(?u)\w+"


class AttributionConfig(StageConfig):
    """Settings of the attribution."""

    max_documents: int = Field(
        default=128,
        ge=1,
        le=10_000,
        description="maximum number of documents to which each text is attributed",
    )


class CandidateKey(NamedTuple):
    """Identify a candidate of a trial.

    Attributes:
        kind: canary, passage, record, association, speech or sentiment.
        candidate_id: Its id, unique among those of its kind.
    """

    kind: str
    candidate_id: str


class ScoredDocument(NamedTuple):
    """Hold a document that is attributed to a text.

    Attributes:
        doc_id: The document.
        score: Share of the weighted terms of the text that the document contains.
    """

    doc_id: bytes
    score: float


class TextTerms(NamedTuple):
    """Hold the terms of texts.

    Attributes:
        matrix: Which text has which term, sparse and binary, (texts, columns).
        term_columns: For each column of the matrix, that of ``mark_hashed_terms``, (columns,).
    """

    matrix: csr_matrix
    term_columns: NDArray[np.int64]


class DocumentTerms(NamedTuple):
    """Hold the terms of the training documents of a row group.

    Attributes:
        doc_ids: The documents.
        matrix: Which document has which term, sparse and binary, (documents, columns).
    """

    doc_ids: pa.Array
    matrix: csr_matrix


class BestDocuments(NamedTuple):
    """Hold the best documents of a row group for a text, best first.

    Attributes:
        text_index: Index of the text.
        doc_ids: The documents.
        scores: The score of each, (documents,).
    """

    text_index: int
    doc_ids: pa.Array
    scores: NDArray[np.float64]


class CandidateText(NamedTuple):
    """Hold a text to attribute.

    Attributes:
        kind: Kind of its candidate.
        candidate_id: Id of its candidate.
        group_name: For an association, the group that the text is about; else empty.
        text: The text.
    """

    kind: str
    candidate_id: str
    group_name: str
    text: str


ATTRIBUTED = table_schema(
    "Training documents to which each text is attributed, that is, documents predicted to make "
    "the text more probable.",
    column("kind", pa.string(), "label", "type of text: canary, passage, record or association"),
    column("candidate_id", pa.string(), "label", "the candidate"),
    column(
        "group_name",
        pa.string(),
        "label",
        "group in the association; empty for other texts",
    ),
    column("rank", pa.int32(), "figure", "document rank, starting from 1"),
    column("doc_id", ID_TYPE, "id", "the document"),
    column(
        "score",
        pa.float64(),
        "figure",
        "share of the text's words and n-grams, weighted by rarity, that occur in the document",
        unit="share",
    ),
)

#: The best documents of one part for each text.
PARTITION_MATCHES = pa.schema([("text", pa.int32()), ("doc_id", ID_TYPE), ("score", pa.float64())])


def build_candidate_texts(canaries: pa.Table) -> list[CandidateText]:
    """Build the texts of candidates; for an association, each group with its possible trait."""
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


def mark_hashed_terms(texts: Sequence[str]) -> csr_matrix:
    """Mark the terms of each text: a sparse binary matrix, (texts, HASH_BUCKETS)."""
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


def list_training_document_counts(
    partition: TablePart, term_columns: NDArray[np.int64], _outputs: TableWriters
) -> list[float]:
    """Return the counts of ``count_training_documents_by_term_and_in_total`` as a list."""
    counts: list[float] = count_training_documents_by_term_and_in_total(
        partition, term_columns
    ).tolist()
    return counts


def spill_best_training_documents(
    partition: TablePart,
    term_columns: NDArray[np.int64],
    term_weights: csr_matrix,
    max_documents_per_text: int,
    outputs: TableWriters,
) -> None:
    """Spill the best documents of each row group of a part for each text.

    ``term_weights``, (texts, columns), has rows that sum to 1.
    """
    for best in _find_best_documents_by_row_group_and_text(
        partition, term_columns, term_weights, max_documents_per_text
    ):
        outputs.get_spill_writer("offered", PARTITION_MATCHES).write(
            {
                "text": np.full(len(best.doc_ids), best.text_index, np.int32),
                "doc_id": best.doc_ids,
                "score": best.scores,
            }
        )


def count_training_documents_by_term_and_in_total(
    partition: TablePart, term_columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Count the training documents of a part with each term, and at the end all, (columns + 1,)."""
    counts = np.zeros(len(term_columns) + 1)
    for document_terms in _read_training_document_terms(partition, term_columns):
        counts[:-1] += np.asarray(document_terms.matrix.sum(0)).ravel()
        counts[-1] += document_terms.matrix.shape[0]
    return counts


def _find_best_documents_by_row_group_and_text(
    partition: TablePart,
    term_columns: NDArray[np.int64],
    term_weights: csr_matrix,
    max_documents_per_text: int,
) -> Iterator[BestDocuments]:
    """Yield the best documents of each row group of a part for each text."""
    for document_terms in _read_training_document_terms(partition, term_columns):
        # (documents, texts)
        scores = np.asarray((document_terms.matrix @ term_weights.T).todense(), np.float64)
        for text_index in range(scores.shape[1]):
            text_scores = scores[:, text_index]
            best_rows = np.argsort(-text_scores, kind="stable")[:max_documents_per_text]
            best_rows = best_rows[text_scores[best_rows] > 0]
            yield BestDocuments(
                text_index, document_terms.doc_ids.take(pa.array(best_rows)), text_scores[best_rows]
            )


def _read_training_document_terms(
    partition: TablePart, term_columns: NDArray[np.int64]
) -> Iterator[DocumentTerms]:
    """Yield the terms of the training documents of each row group of a part."""
    for batch in partition.iter_batches(["doc_id", "split", "text"]):
        batch = batch.filter(pc.equal(batch["split"], "train"))
        if len(batch):
            terms = mark_hashed_terms(batch["text"].to_pylist())
            yield DocumentTerms(batch["doc_id"], terms[:, term_columns])


def build_text_terms(texts: Sequence[str]) -> TextTerms:
    """Mark the terms of each text, with columns only for terms that some text has."""
    text_terms = mark_hashed_terms(texts)
    term_columns = np.unique(text_terms.indices).astype(np.int64)
    return TextTerms(text_terms[:, term_columns], term_columns)


def compute_term_weights(
    text_terms: csr_matrix, document_counts: NDArray[np.float64]
) -> csr_matrix:
    """Compute the weight of each term in each text, (texts, columns); rows sum to 1.

    ``document_counts`` is the sum of ``count_training_documents_by_term_and_in_total`` over
    all parts.
    """
    weights = text_terms.multiply(
        np.log(1 + document_counts[-1] / (1 + document_counts[:-1]))
    ).tocsr()
    row_sums = np.asarray(weights.sum(1)).ravel()
    return weights.multiply(1 / np.where(row_sums > 0, row_sums, 1)[:, None]).tocsr()


def find_influential_documents(
    documents: Table, texts: Sequence[str], max_documents_per_text: int
) -> list[list[ScoredDocument]]:
    """Find the top documents of each text, best first, without the workers of a stage.

    This reads the texts of all documents twice.
    """
    text_terms = build_text_terms(texts)
    document_counts = sum(
        (
            count_training_documents_by_term_and_in_total(partition, text_terms.term_columns)
            for partition in documents.parts
        ),
        np.zeros(len(text_terms.term_columns) + 1),
    )
    term_weights = compute_term_weights(text_terms.matrix, document_counts)
    best_by_text: list[list[ScoredDocument]] = [[] for _ in texts]
    for partition in documents.parts:
        for best in _find_best_documents_by_row_group_and_text(
            partition, text_terms.term_columns, term_weights, max_documents_per_text
        ):
            ranked = [
                *best_by_text[best.text_index],
                *map(ScoredDocument, best.doc_ids.to_pylist(), best.scores.tolist()),
            ]
            best_by_text[best.text_index] = sorted(
                ranked, key=lambda document: (-document.score, document.doc_id)
            )[:max_documents_per_text]
    return best_by_text


def build_attribution_rows(
    documents: Table,
    texts: Sequence[CandidateText],
    max_documents_per_text: int,
    context: StageContext,
) -> Iterator[Row]:
    """Yield rows of ATTRIBUTED: the top documents of each text, ties in the order of their ids."""
    text_terms = build_text_terms([text.text for text in texts])
    partition_counts = [
        result.value
        for result in context.map_items(
            list_training_document_counts, documents.parts, text_terms.term_columns
        )
    ]
    document_counts = np.sum([counts for counts in partition_counts if counts], 0)
    term_weights = compute_term_weights(text_terms.matrix, document_counts)
    matches = concat_spilled_tables(
        context.map_items(
            spill_best_training_documents,
            documents.parts,
            text_terms.term_columns,
            term_weights,
            max_documents_per_text,
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
        if rank <= max_documents_per_text:
            yield {
                "kind": text.kind,
                "candidate_id": text.candidate_id,
                "group_name": text.group_name,
                "rank": rank,
                "doc_id": row["doc_id"],
                "score": row["score"],
            }


#: A document is influential if its score is at least this share of the best score.
NEAR_BEST_SHARE = 0.95


def select_near_best_documents(
    attributions: pa.Table, candidates: Set[CandidateKey]
) -> list[bytes]:
    """Return the documents whose removal should affect these candidates the most."""
    best_scores: dict[tuple[str, str, str], float] = {}
    doc_ids: dict[bytes, None] = {}
    for row in attributions.sort_by("rank").to_pylist():
        if CandidateKey(row["kind"], row["candidate_id"]) in candidates:
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
        [*build_attribution_rows(documents, candidate_texts, config.max_documents, context)]
        if candidate_texts
        else []
    )
    context.get_table_writer("attributions").write(pa.Table.from_pylist(rows, schema=ATTRIBUTED))
