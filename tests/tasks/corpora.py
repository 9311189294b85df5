"""Documents for tests of the corpus stages, as artifacts of a small stage."""

from collections.abc import Sequence

import pyarrow as pa

from tasks.contract import (
    DOCUMENTS,
    SCORED,
    SPLIT,
    Artifact,
    StageConfig,
    Work,
    ids,
    stage,
    text_hashes,
)


class GivenConfig(StageConfig):
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    clusters: tuple[str, ...]
    toxicity: tuple[float | None, ...]
    splits: tuple[str, ...]


def columns(config: GivenConfig) -> dict[str, object]:
    texts = pa.array(config.texts, pa.large_string())
    return {
        "doc_id": ids(f"document {i}" for i in range(len(texts))),
        "source": list(config.sources),
        "cluster": ids(config.clusters),
        "text": texts,
        "text_hash": text_hashes(texts),
    }


@stage(tables={"documents": DOCUMENTS})
def given_documents(config: GivenConfig, work: Work) -> None:
    work.table("documents").write(columns(config))


@stage(tables={"documents": SCORED})
def given_scored(config: GivenConfig, work: Work) -> None:
    work.table("documents").write(columns(config) | {"toxicity": list(config.toxicity)})


@stage(tables={"documents": SPLIT})
def given_split(config: GivenConfig, work: Work) -> None:
    more = {"toxicity": list(config.toxicity), "split": list(config.splits)}
    work.table("documents").write(columns(config) | more)


def given(
    texts: Sequence[str],
    sources: Sequence[str] | None = None,
    clusters: Sequence[str] | None = None,
    toxicity: Sequence[float | None] | None = None,
    splits: Sequence[str] | None = None,
    kind: str = "documents",
) -> Artifact:
    """An artifact with these documents; ``kind`` is documents, scored or split."""
    config = GivenConfig(
        texts=tuple(texts),
        sources=tuple(sources or ["source"] * len(texts)),
        clusters=tuple(clusters or [f"cluster {i}" for i in range(len(texts))]),
        toxicity=tuple(toxicity or [0.125] * len(texts)),
        splits=tuple(splits or ["train"] * len(texts)),
    )
    makers = {"documents": given_documents, "scored": given_scored, "split": given_split}
    return makers[kind](config)
