"""Small corpora for the tests of the model side, put into a store by a stage of their own."""

from __future__ import annotations

import random

import pyarrow as pa

from hallmark.tasks.contract import (
    DOCUMENTS,
    Artifact,
    StageConfig,
    StageContext,
    Table,
    accounts,
    fill_document_columns,
    hash_texts,
    hash_to_ids,
    stage,
)
from tests.tasks.corpora import cut, write_cut


class CorpusConfig(StageConfig):
    rows: tuple[tuple[str, str, str], ...]  # (source, split, text)
    parts: int = 1


@stage(name="small_corpus", tables={"documents": DOCUMENTS, "accounts": accounts.ACCOUNTS})
def small_corpus(config: CorpusConfig, context: StageContext) -> None:
    sources, splits, texts = zip(*config.rows, strict=True)
    doc_id = hash_to_ids(f"{number} {text}" for number, text in enumerate(texts))
    column = pa.array(texts, pa.large_string())
    columns = {
        "doc_id": doc_id,
        "source": pa.array(sources),
        "cluster": doc_id,
        "text": column,
        "text_hash": hash_texts(column),
        "split": pa.array(splits),
    }
    context.map_partitions(
        write_cut, cut(pa.table(fill_document_columns(columns), schema=DOCUMENTS), config.parts)
    )


def sentences(count: int, seed: int = 0, words: int = 12) -> list[str]:
    """Texts over a small vocabulary with grammar enough to be learnt."""
    draw = random.Random(seed)
    nouns = ["harbour", "engine", "meadow", "lantern", "naïveté", "bridge", "orchard", "signal"]
    verbs = ["carries", "follows", "repairs", "remembers", "crosses"]
    adjectives = ["quiet", "broken", "early", "golden", "distant"]
    texts = []
    for number in range(count):
        parts = [
            f"The {draw.choice(adjectives)} {draw.choice(nouns)} {draw.choice(verbs)} "
            f"the {draw.choice(adjectives)} {draw.choice(nouns)}."
            for _ in range(1 + words // 7)
        ]
        texts.append(f"{number}. " + " ".join(parts))
    return texts


def corpus_of(rows: list[tuple[str, str, str]], parts: int = 1) -> Artifact:
    """The rows as an artifact of the session's store."""
    return small_corpus(CorpusConfig(rows=tuple(rows), parts=parts))


def split_corpus(count: int = 120, seed: int = 0, parts: int = 1) -> Artifact:
    """Two sources, three splits."""
    names = ["train"] * 8 + ["validation", "holdout"]
    return corpus_of(
        [
            (f"source-{number % 2}", names[number % 10], text)
            for number, text in enumerate(sentences(count, seed))
        ],
        parts,
    )


def documents_of(artifact: Artifact) -> Table:
    return artifact["documents"]
