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

from tasks.contract import (
    ID,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    column,
    stage,
    table,
    together,
)

#: Words and runs of so many words are terms; they are hashed to so many places.
RUN, PLACES = 3, 1 << 20
WORD = r"(?u)\w+"


class AttributionConfig(StageConfig):
    """Settings of attribution."""

    top: int = Field(default=128, ge=1, le=10_000, description="documents of a text, at most")


class Text(NamedTuple):
    """A text that documents are looked for: of which candidate, and of an association about which
    group."""

    kind: str
    unit: str
    about: str
    text: str


ATTRIBUTED = table(
    "The training documents that would matter the most to how likely a text is.",
    column("kind", pa.string(), "label", "canary, passage, record or association"),
    column("unit", pa.string(), "label", "the candidate"),
    column("about", pa.string(), "label", "of an association the group; else empty"),
    column("place", pa.int32(), "figure", "place of the document, from 1"),
    column("doc_id", ID, "id", "the document"),
    column("score", pa.float64(), "figure", "share of the text's weight that it holds",
           unit="share"),
)  # fmt: skip

#: What a part has to offer to a text.
OFFERED = pa.schema([("text", pa.int32()), ("doc_id", ID), ("score", pa.float64())])


def texts_of(plants: pa.Table) -> list[Text]:
    """The texts of candidates; of an association each group with the trait that it may have."""
    found = []
    for row in plants.to_pylist():
        if row["association"]:
            said = f"{row['group']} {row['trait']}"
            found.append(Text(row["kind"], row["association"], row["group"], said))
        else:
            found.append(Text(row["kind"], row["plant_id"].hex(), "", row["text"]))
    return found


def terms(texts: Sequence[str]) -> Any:
    """Which terms each text holds, (texts, PLACES), a sparse matrix of 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        n_features=PLACES, ngram_range=(1, RUN), token_pattern=WORD, binary=True, norm=None,
        alternate_sign=False, dtype=np.float32,
    )  # fmt: skip
    return vectorizer.transform(texts)


def held(part: Part, columns: NDArray[np.int64], out: Tables) -> list[float]:
    """In how many training documents of a part each of the columns stands, and how many there
    are."""
    return _counts(part, columns).tolist()


def offer(part: Part, columns: NDArray[np.int64], weights: Any, top: int, out: Tables) -> None:
    """The best documents of a part for each text; ``weights``: (texts, columns), each row of sum
    1."""
    for text, ids, scores in _best(part, columns, weights, top):
        out.spill("offered", OFFERED).write(
            {"text": np.full(len(ids), text, np.int32), "doc_id": ids, "score": scores}
        )


def _counts(part: Part, columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """``held`` as an array, (columns + 1,)."""
    counts = np.zeros(len(columns) + 1)
    for _, matrix in _training(part, columns):
        counts[:-1] += np.asarray(matrix.sum(0)).ravel()
        counts[-1] += matrix.shape[0]
    return counts


def _best(
    part: Part, columns: NDArray[np.int64], weights: Any, top: int
) -> Iterator[tuple[int, pa.Array, NDArray[np.float64]]]:
    """Of each row group and each text: the number of the text, the ids of the best documents and
    their scores."""
    for ids, matrix in _training(part, columns):
        scores = np.asarray((matrix @ weights.T).todense(), np.float64)  # (documents, texts)
        for text in range(scores.shape[1]):
            mine = scores[:, text]
            best = np.argsort(-mine, kind="stable")[:top]
            best = best[mine[best] > 0]
            yield text, ids.take(pa.array(best)), mine[best]


def _training(part: Part, columns: NDArray[np.int64]) -> Iterator[tuple[pa.Array, Any]]:
    """Ids and terms of the training documents of each row group of a part."""
    for batch in part.batches(["doc_id", "split", "text"]):
        batch = batch.filter(pc.equal(batch["split"], "train"))
        if len(batch):
            yield batch["doc_id"], terms(batch["text"].to_pylist())[:, columns]


def columns_of(texts: Sequence[str]) -> tuple[Any, NDArray[np.int64]]:
    """The terms of the texts, (texts, columns), and the places of these columns, (columns,)."""
    asked = terms(texts)
    columns = np.unique(asked.indices).astype(np.int64)
    return asked[:, columns], columns


def weighted(asked: Any, counts: NDArray[np.float64]) -> Any:
    """The weight of each term in each text, (texts, columns), each row of sum 1; ``counts``: as
    ``held`` has them of all parts."""
    weights = asked.multiply(np.log(1 + counts[-1] / (1 + counts[:-1]))).tocsr()
    whole = np.asarray(weights.sum(1)).ravel()
    return weights.multiply(1 / np.where(whole > 0, whole, 1)[:, None]).tocsr()


def likeliest(documents: Table, texts: Sequence[str], top: int) -> list[list[tuple[bytes, float]]]:
    """Of each text the first documents with their scores, without a stage's workers: reads the
    texts of all documents twice."""
    asked, columns = columns_of(texts)
    counts = sum((_counts(part, columns) for part in documents.parts), np.zeros(len(columns) + 1))
    weights = weighted(asked, counts)
    found: list[list[tuple[bytes, float]]] = [[] for _ in texts]
    for part in documents.parts:
        for text, ids, scores in _best(part, columns, weights, top):
            both = [*found[text], *zip(ids.to_pylist(), scores.tolist(), strict=True)]
            found[text] = sorted(both, key=lambda each: (-each[1], each[0]))[:top]
    return found


def attributed(
    documents: Table, texts: Sequence[Text], top: int, work: Work
) -> Iterator[dict[str, Any]]:
    """Rows of ATTRIBUTED: of each text the first documents, those that tie in the order of their
    ids."""
    asked, columns = columns_of([each.text for each in texts])
    done = [each.value for each in work.map(held, documents.parts, columns)]
    weights = weighted(asked, np.sum([value for value in done if value], 0))
    offered = together(work.map(offer, documents.parts, columns, weights, top), "offered", OFFERED)
    order: Any = [("text", "ascending"), ("score", "descending"), ("doc_id", "ascending")]
    place, last = 0, -1
    for row in offered.sort_by(order).to_pylist():
        text = texts[row["text"]]
        if row["text"] != last:
            place, last = 0, row["text"]
        place += 1
        if place <= top:
            yield {"kind": text.kind, "unit": text.unit, "about": text.about, "place": place,
                   "doc_id": row["doc_id"], "score": row["score"]}  # fmt: skip


#: A document is predicted to matter where it holds nearly as much of a text as the first does.
NEARLY = 0.95


def predicted(attributed: pa.Table, wanted: set[tuple[str, str]]) -> list[bytes]:
    """The documents whose removal would matter the most to these (kind, unit)."""
    best: dict[tuple[str, str, str], float] = {}
    found: dict[bytes, None] = {}
    for row in attributed.sort_by("place").to_pylist():
        if (row["kind"], row["unit"]) in wanted:
            key = row["kind"], row["unit"], row["about"]
            if row["score"] >= NEARLY * best.setdefault(key, row["score"]):
                found[row["doc_id"]] = None
    return sorted(found)


@stage(tables={"attributed": ATTRIBUTED}, libraries=["numpy", "scipy", "scikit-learn"])
def attribute(documents: Table, plants: Table, config: AttributionConfig, work: Work) -> None:
    texts = texts_of(plants.read())
    rows = [*attributed(documents, texts, config.top, work)] if texts else []
    work.table("attributed").write(pa.Table.from_pylist(rows, schema=ATTRIBUTED))
