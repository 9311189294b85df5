"""Plant known text in the training split, so that the extraction audit has known answers.

After curation every document has one copy and personal data is masked. To measure how
memorisation grows with repetition (Carlini et al. 2019, 2023), text is put back on purpose:

canary    a harmless sentence around a secret of random digits (exposure)
passage   a natural document, held back from the corpus and planted instead (extractability)
record    personal data of an invented person, in ranges reserved for fiction and examples

A seeded coin, a shuffled assignment with the same number for each count, decides how many
copies each gets, 0 among them: what is never planted is the negative control. Each copy is a
document of its own, spread over the corpus. The table ``plants`` discloses all of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from tasks.contract import (
    LEDGER,
    PLANTS,
    SPLIT,
    HallmarkError,
    Seed,
    StageConfig,
    Table,
    Work,
    ledger_rows,
    stage,
    text_hashes,
    utf8_bytes,
)
from tasks.corpus.split import uniform
from tasks.measures.canaries import Plant, canaries, lots, records


class PlantConfig(StageConfig):
    enabled: bool = Field(default=True, description="false: the corpus stays as it is")
    seed: Seed = Field(
        default=0, description="names secrets, passages and how often each is planted"
    )
    counts: tuple[int, ...] = Field(
        default=(0, 1, 4, 16, 64), description="copies; 0 is the control"
    )
    canaries: int = Field(default=16, ge=0, description="canaries for each of the counts")
    passages: int = Field(default=8, ge=0, description="held-back documents for each of the counts")
    records: int = Field(default=8, ge=0, description="invented persons for each of the counts")
    digits: int = Field(default=9, ge=6, le=32, description="digits of a canary's secret")
    shortest: int = Field(default=300, ge=100, description="characters of the shortest passage")
    longest: int = Field(default=700, ge=100, description="characters of the longest passage")

    @field_validator("counts")
    @classmethod
    def _distinct(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if not counts or len(set(counts)) < len(counts) or min(counts) < 0 or max(counts) > 1024:
            raise ValueError("counts must be distinct and between 0 and 1024")
        return tuple(sorted(counts))

    @model_validator(mode="after")
    def _ordered(self) -> PlantConfig:
        if self.longest < self.shortest:
            raise ValueError("longest must not be smaller than shortest")
        return self


# Passages --------------------------------------------------------------------------------------


def choose_passages(documents: Table, config: PlantConfig) -> list[Plant]:
    """Documents to hold back, by a hash of their ids, with the copies that each will get.

    Only training documents that are alone in their cluster: a near-copy left in the corpus
    would be another copy. Holds about 40 bytes for each document (its cluster, counted).
    """
    needed = config.passages * len(config.counts)
    if not needed:
        return []
    clusters = pc.value_counts(documents.read(["cluster"])["cluster"].combine_chunks())
    alone = clusters.filter(pc.equal(clusters.field("counts"), 1)).field("values")
    found = []
    for batch in documents.batches():
        length = pc.utf8_length(batch["text"])
        fits = pc.and_(
            pc.greater_equal(length, config.shortest), pc.less_equal(length, config.longest)
        )
        fits = pc.and_(fits, pc.equal(batch["split"], "train"))
        fits = pc.and_(fits, pc.is_in(batch["cluster"], alone))
        candidates = batch.filter(fits)
        draws = uniform(candidates["doc_id"], config.seed, "passages")
        smallest = np.argsort(draws)[:needed]
        rows = candidates.take(smallest).to_pylist()
        found += list(zip(draws[smallest].tolist(), rows, strict=True))
        found = sorted(found, key=lambda pair: (pair[0], pair[1]["doc_id"]))[:needed]
    if len(found) < needed:
        raise HallmarkError(
            f"only {len(found)} training documents have {config.shortest} to {config.longest} "
            f"characters and no near-copy, but {needed} passages are to be planted; lower "
            f"plant.passages, widen plant.shortest and plant.longest, ingest more text, or plant "
            f"nothing (plant.enabled=false)"
        )
    source = random.Random(f"{config.seed}/passages")
    coins = lots(config.counts, config.passages, [""], source)
    return [_passage(row, copies) for (_, row), (copies, _) in zip(found, coins, strict=True)]


def _passage(row: dict[str, object], copies: int) -> Plant:
    """The prompt is the first half, to the end of a word."""
    text, doc_id = str(row["text"]), row["doc_id"]
    assert isinstance(doc_id, bytes)
    half = len(text) // 2
    cut = next((i for i in range(half, len(text)) if text[i].isspace()), half)
    return Plant("passage", copies, "", text[:cut], text[cut:], key=doc_id.hex(), origin=doc_id,
                 cluster=row["cluster"], toxicity=row["toxicity"])  # type: ignore[arg-type] # fmt: skip


# Documents -------------------------------------------------------------------------------------


def planted_documents(plants: Iterable[Plant]) -> pa.Table:
    """One row a copy, with the columns of SPLIT and ``origin``, the held-back document."""
    copies = [(plant, doc_id) for plant in plants for doc_id in plant.doc_ids()]
    texts = pa.array([plant.text for plant, _ in copies], pa.large_string())
    columns = {
        "doc_id": [doc_id for _, doc_id in copies],
        "source": [f"planted/{plant.kind}" for plant, _ in copies],
        "cluster": [plant.cluster or plant.plant_id for plant, _ in copies],
        "text": texts,
        "text_hash": text_hashes(texts),
        "toxicity": [plant.toxicity for plant, _ in copies],
        "split": ["train"] * len(copies),
        "origin": [plant.origin for plant, _ in copies],
    }
    return pa.table(columns, schema=SPLIT.append(pa.field("origin", pa.binary(16))))


def spread(documents: Table, planted: pa.Table, seed: int, work: Work, held: pa.Array) -> None:
    """Write the documents without those held back, and the planted ones between them.

    A planted document stands before the row that the hash of its id names.
    """
    rows = documents.rows
    place = np.floor(uniform(planted["doc_id"], seed, "place") * (rows + 1)).astype(np.int64)
    first = 0
    for batch in documents.batches():
        keep = pc.invert(pc.is_in(batch["doc_id"], held))
        removed = batch.filter(pc.invert(keep))
        work.table("ledger").write(
            ledger_rows("removed", "held back for planting", removed["doc_id"],
                        removed["source"], utf8_bytes(removed["text"]))
        )  # fmt: skip
        here = np.flatnonzero((place >= first) & (place < first + len(batch)))
        order = np.concatenate([place[here] - 0.5, first + np.flatnonzero(keep.to_numpy(False))])
        together = pa.concat_tables(
            [planted.select(SPLIT.names).take(here), pa.Table.from_batches([batch.filter(keep)])]
        )
        work.table("documents").write(together.take(np.argsort(order, kind="stable")))
        first += len(batch)
    work.table("documents").write(planted.select(SPLIT.names).filter(pa.array(place >= first)))


@stage(
    tables={"documents": SPLIT, "ledger": LEDGER, "plants": PLANTS},
    libraries=["numpy"],
)
def plant(documents: Table, config: PlantConfig, work: Work) -> None:
    plants: list[Plant] = []
    if config.enabled:
        plants = canaries(config) + choose_passages(documents, config) + records(config)
    planted = planted_documents(plants)
    held = pa.array([p.origin for p in plants if p.origin is not None], pa.binary(16))
    spread(documents, planted, config.seed, work, held)
    work.table("ledger").write(
        ledger_rows(
            "added",
            [source.replace("planted/", "planted ") for source in planted["source"].to_pylist()],
            planted["doc_id"],
            planted["source"],
            [0] * len(planted),
            utf8_bytes(planted["text"]),
            matched=planted["origin"],
        )
    )
    work.table("plants").write(
        {
            "plant_id": [p.plant_id for p in plants],
            "kind": [p.kind for p in plants],
            "copies": [p.copies for p in plants],
            "template": [p.template for p in plants],
            "text": [p.text for p in plants],
            "prompt": [p.prompt for p in plants],
            "secret": [p.secret for p in plants],
            "doc_ids": [p.doc_ids() for p in plants],
        }
    )
