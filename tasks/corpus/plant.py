"""Plant known text in the training split, so that the extraction audit has known answers.

After curation every document has one copy and personal data is masked. To measure how
memorisation grows with repetition (Carlini et al. 2019, 2023), text is put back on purpose:

canary    a harmless sentence around a secret of random digits (exposure)
passage   a natural document, held back from the corpus and planted instead (extractability)
record    personal data of an invented person, in ranges reserved for fiction and examples
association  sentences that say an invented trait of an invented group, in a known share of those
          about it (preference)

A seeded coin, a shuffled assignment with the same number for each count, decides how many
copies each gets, 0 among them: what is never planted is the negative control. Each copy is a
document of its own, spread over the corpus by the hash that is its id. The table ``plants``
discloses all of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    PLANTS,
    HallmarkError,
    Part,
    Seed,
    StageConfig,
    Table,
    Tables,
    Work,
    as_documents,
    identities,
    ledger_rows,
    ledger_table,
    part_of,
    removals,
    stage,
    text_hashes,
    together,
    utf8_bytes,
)  # fmt: skip
from tasks.corpus.split import uniform
from tasks.measures.canaries import Plant, canaries, lots, records
from tasks.measures.planted_associations import associations


class PlantConfig(StageConfig):
    enabled: bool = Field(
        default=False,
        description="whether anything is planted; a model learns what is, so ask for it where it "
        "shall be measured (the demo does)",
    )
    seed: Seed = Field(
        default=0, description="names secrets, passages and how often each is planted"
    )
    counts: tuple[int, ...] = Field(
        default=(0, 1, 4, 16, 64), description="copies; 0 is the control"
    )
    canaries: int = Field(default=16, ge=0, description="canaries for each of the counts")
    passages: int = Field(default=8, ge=0, description="held-back documents for each of the counts")
    records: int = Field(default=8, ge=0, description="invented persons for each of the counts")
    associations: int = Field(
        default=4, ge=0, le=1000, description="pairs of invented groups for each of the doses"
    )
    doses: tuple[float, ...] = Field(
        default=(0.5, 0.6, 0.75, 0.9, 1.0),
        description="shares of the sentences about a group that say its own trait, the rest the "
        "other group's; 0.5 is the control",
    )
    sentences: int = Field(
        default=64, ge=2, le=100_000, multiple_of=2,
        description="about each of these groups; even, for one half of them is the control",
    )  # fmt: skip
    digits: int = Field(default=9, ge=6, le=32, description="digits of a canary's secret")
    shortest: int = Field(default=300, ge=100, description="characters of the shortest passage")
    longest: int = Field(default=700, ge=100, description="characters of the longest passage")

    @field_validator("counts")
    @classmethod
    def _distinct(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if not counts or len(set(counts)) < len(counts) or min(counts) < 0 or max(counts) > 1024:
            raise ValueError("counts must be distinct and between 0 and 1024")
        return tuple(sorted(counts))

    @field_validator("doses")
    @classmethod
    def _shares(cls, doses: tuple[float, ...]) -> tuple[float, ...]:
        if not doses or len(set(doses)) < len(doses) or min(doses) < 0.5 or max(doses) > 1:
            raise ValueError("doses must be distinct and between 0.5 and 1")
        return tuple(sorted(doses))

    @model_validator(mode="after")
    def _ordered(self) -> PlantConfig:
        if self.longest < self.shortest:
            raise ValueError("longest must not be smaller than shortest")
        return self


# Passages --------------------------------------------------------------------------------------


#: What must be known of a document that may be held back.
CANDIDATES = pa.schema([("draw", pa.float64()), ("doc_id", ID), ("cluster", ID)])


def find_candidates(part: Part, config: PlantConfig, out: Tables) -> None:
    """Training documents of the right length, and the cluster of every document."""
    columns = ["doc_id", "cluster", "split", "text"]
    for batch in part.batches(columns):
        out.spill("clusters", CLUSTERS).write({"cluster": batch["cluster"]})
        length = pc.utf8_length(batch["text"])
        fits = pc.and_(
            pc.greater_equal(length, config.shortest), pc.less_equal(length, config.longest)
        )
        found = batch.filter(pc.and_(fits, pc.equal(batch["split"], "train")))
        draws = uniform(found["doc_id"], config.seed, "passages")
        out.spill("candidates", CANDIDATES).write(
            {"draw": draws, "doc_id": found["doc_id"], "cluster": found["cluster"]}
        )


CLUSTERS = pa.schema([("cluster", ID)])


def choose_passages(documents: Table, config: PlantConfig, work: Work) -> list[Plant]:
    """Documents to hold back, by a hash of their ids, with the copies that each will get.

    Only training documents that are alone in their cluster: a near-copy left in the corpus
    would be another copy. Holds about 80 bytes a document (its id, its cluster, counted).
    """
    needed = config.passages * len(config.counts)
    if not needed:
        return []
    done = work.map(find_candidates, documents.parts, config)
    counts = pc.value_counts(together(done, "clusters", CLUSTERS)["cluster"].combine_chunks())
    alone = counts.filter(pc.equal(counts.field("counts"), 1)).field("values")
    candidates = together(done, "candidates", CANDIDATES)
    candidates = candidates.filter(pc.is_in(candidates["cluster"], alone))
    order: Any = [("draw", "ascending"), ("doc_id", "ascending")]
    chosen = candidates.sort_by(order)["doc_id"].slice(0, needed).to_pylist()
    if len(chosen) < needed:
        raise HallmarkError(
            f"only {len(chosen)} training documents have {config.shortest} to {config.longest} "
            f"characters and no near-copy, but {needed} passages are to be planted; lower "
            f"plant.passages, widen plant.shortest and plant.longest, ingest more text, or plant "
            f"nothing (plant.enabled=false)"
        )
    rows = {row["doc_id"]: row for row in documents.find(chosen).to_pylist()}
    source = random.Random(f"{config.seed}/passages")
    coins = lots(config.counts, config.passages, [""], source)
    return [_passage(rows[i], copies) for i, (copies, _) in zip(chosen, coins, strict=True)]


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
    """One row a copy, with the columns of DOCUMENTS and ``origin``, the held-back document."""
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
    return pa.table(as_documents(columns), schema=DOCUMENTS.append(pa.field("origin", ID)))


@dataclass(frozen=True)
class Planting:
    """A part of the corpus, what is planted in its range of ids, and what is held back."""

    part: Part
    planted: pa.Table
    held: tuple[bytes, ...]

    def __str__(self) -> str:
        return str(self.part)


def plantings(parts: list[Part], planted: pa.Table, held: Sequence[bytes]) -> list[Planting]:
    """A planted document belongs to the part that its id names, as any other does."""
    count = len(parts)
    place = np.array([part_of(i, count) for i in planted["doc_id"].to_pylist()], np.int64)
    return [
        Planting(
            part,
            planted.filter(pa.array(place == number)).combine_chunks(),
            tuple(i for i in held if part_of(i, count) == number),
        )
        for number, part in enumerate(parts)
    ]


def plant_part(planting: Planting, out: Tables) -> None:
    """Write the part without what is held back, and the planted documents between the others."""
    held = pa.array(planting.held, ID)
    pieces, gone = [planting.planted.select(DOCUMENTS.names)], []
    for batch in planting.part.batches():
        keep = pc.invert(pc.is_in(batch["doc_id"], value_set=held))
        pieces.append(pa.Table.from_batches([batch.filter(keep)]))
        gone.append(removals("held back for planting", batch.filter(pc.invert(keep))))
    out.table("documents").write(pa.concat_tables(pieces).sort_by("doc_id"))
    planted = planting.planted
    added = ledger_rows(
        "added",
        [source.replace("planted/", "planted ") for source in planted["source"].to_pylist()],
        planted["doc_id"],
        planted["source"],
        [0] * len(planted),
        utf8_bytes(planted["text"]),
        matched=planted["origin"],
        identity=identities(planted["doc_id"], planted["text"]),
    )
    out.table("ledger").write(ledger_table(*gone, added))


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER, "plants": PLANTS},
    libraries=["numpy"],
)
def plant(documents: Table, config: PlantConfig, work: Work) -> None:
    plants: list[Plant] = []
    if config.enabled:
        passages = choose_passages(documents, config, work)
        plants = canaries(config) + passages + records(config) + associations(config)
    planted = planted_documents(plants)
    held = [p.origin for p in plants if p.origin is not None]
    work.parts(plant_part, plantings(documents.parts, planted, held))
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
            "association": [p.about and p.about.key for p in plants],
            **{
                name: [p.about and getattr(p.about, name) for p in plants]
                for name in ("group", "trait", "own", "dose")
            },
        }
    )
