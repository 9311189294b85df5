"""Plant known text in the training split, so that the extraction audit has known answers.

After curation every document has one copy and personal data is masked. To measure how memorisation
grows with repetition (Carlini et al. 2019, 2023), this stage plants text:

canary       a harmless sentence around a secret of random digits (exposure)
passage      a natural document, withheld from the corpus and planted instead (extractability)
record       personal data of an invented person, in ranges reserved for fiction and examples
association  sentences that ascribe an invented trait to an invented group, in a known share of the
             sentences about that group (preference)

A seeded shuffle assigns each text a number of copies, each number equally often. Texts with 0
copies are never planted and are the negative control. Each copy is a separate document; its id is a
hash, which spreads the copies over the corpus. The ``canaries`` table discloses everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from hallmark.tasks.contract import (
    CANARIES,
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    HallmarkError,
    Seed,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    build_ledger_columns,
    build_ledger_table,
    build_removal_ledger_columns,
    concat_spilled_tables,
    count_utf8_bytes,
    doc_id_to_part_index,
    fill_document_columns,
    hash_documents,
    hash_texts,
    stage,
)
from hallmark.tasks.corpus.split import hash_ids_to_uniform_draws
from hallmark.tasks.measures.association_canaries import generate_association_canaries
from hallmark.tasks.measures.canaries import (
    Canary,
    assign_copies_and_templates,
    generate_record_canaries,
    generate_secret_canaries,
)


class PlantCanariesConfig(StageConfig):
    """Choose which texts are planted, and in how many copies."""

    enabled: bool = Field(
        default=False,
        description="whether to plant canaries (artificial text) in the corpus; models learn "
        "this text, so enable this setting only to measure memorisation, as in the demo",
    )
    seed: Seed = Field(
        default=0,
        description="random seed for choosing the secrets, the passages and their numbers of "
        "copies",
    )
    copy_counts: tuple[int, ...] = Field(
        default=(0, 1, 4, 16, 64),
        description="numbers of copies of the secrets, passages and records to plant; items "
        "with 0 copies are not planted and serve as controls",
    )
    secrets_per_count: int = Field(
        default=16, ge=0, description="number of secrets for each value of `copy_counts`"
    )
    passages_per_count: int = Field(
        default=8,
        ge=0,
        description="number of passages for each value of `copy_counts`; the passages are taken "
        "from documents that are otherwise withheld from training",
    )
    records_per_count: int = Field(
        default=8,
        ge=0,
        description="number of records of invented persons for each value of `copy_counts`",
    )
    associations_per_share: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="number of pairs of invented groups for each value of `trait_shares`",
    )
    trait_shares: tuple[float, ...] = Field(
        default=(0.5, 0.6, 0.75, 0.9, 1.0),
        description="shares of sentences about a group that state the trait assigned to the "
        "group; the other sentences state the trait assigned to the other group in the pair. A "
        "share of 0.5 is the control",
    )
    sentences_per_group: int = Field(
        default=64,
        ge=2,
        le=100_000,
        multiple_of=2,
        description="number of sentences about each group in a pair. The number must be even "
        "because, in control pairs, half of these sentences state the trait assigned to the group "
        "and the other half state the trait assigned to the other group",
    )
    secret_digits: int = Field(
        default=9, ge=6, le=32, description="number of digits in each secret"
    )
    min_passage_characters: int = Field(
        default=300, ge=100, description="minimum length of a passage, in characters"
    )
    max_passage_characters: int = Field(
        default=700, ge=100, description="maximum length of a passage, in characters"
    )

    @field_validator("copy_counts")
    @classmethod
    def _check_copy_counts(cls, copy_counts: tuple[int, ...]) -> tuple[int, ...]:
        are_distinct = len(set(copy_counts)) == len(copy_counts)
        if not copy_counts or not are_distinct or min(copy_counts) < 0 or max(copy_counts) > 1024:
            raise ValueError("the values of 'copy_counts' must be distinct and between 0 and 1024")
        return tuple(sorted(copy_counts))

    @field_validator("trait_shares")
    @classmethod
    def _check_trait_shares(cls, trait_shares: tuple[float, ...]) -> tuple[float, ...]:
        are_distinct = len(set(trait_shares)) == len(trait_shares)
        if not trait_shares or not are_distinct or min(trait_shares) < 0.5 or max(trait_shares) > 1:
            raise ValueError("the values of 'trait_shares' must be distinct and between 0.5 and 1")
        return tuple(sorted(trait_shares))

    @model_validator(mode="after")
    def _check_passage_lengths(self) -> PlantCanariesConfig:
        if self.max_passage_characters < self.min_passage_characters:
            raise ValueError(
                "'max_passage_characters' must not be less than 'min_passage_characters'"
            )
        return self


#: Columns of CANARIES that are fields of Association.
ASSOCIATION_FIELDS = ("group_name", "trait", "is_assigned_trait", "assigned_trait_share")

# Passages --------------------------------------------------------------------------------------


#: Documents that may be withheld as passages.
PASSAGE_CANDIDATES = pa.schema([("draw", pa.float64()), ("doc_id", ID_TYPE), ("cluster", ID_TYPE)])


def spill_passage_candidates_and_clusters(
    partition: TablePart, config: PlantCanariesConfig, out: TableWriters
) -> None:
    """Spill the training documents of the right length, and the cluster of every document."""
    columns = ["doc_id", "cluster", "split", "text"]
    for batch in partition.iter_batches(columns):
        out.get_spill_writer("clusters", CLUSTERS).write({"cluster": batch["cluster"]})
        character_counts = pc.utf8_length(batch["text"])
        has_passage_length = pc.and_(
            pc.greater_equal(character_counts, config.min_passage_characters),
            pc.less_equal(character_counts, config.max_passage_characters),
        )
        candidates = batch.filter(pc.and_(has_passage_length, pc.equal(batch["split"], "train")))
        draws = hash_ids_to_uniform_draws(candidates["doc_id"], config.seed, "passages")
        out.get_spill_writer("candidates", PASSAGE_CANDIDATES).write(
            {"draw": draws, "doc_id": candidates["doc_id"], "cluster": candidates["cluster"]}
        )


CLUSTERS = pa.schema([("cluster", ID_TYPE)])


def choose_passage_canaries(
    documents: Table, config: PlantCanariesConfig, context: StageContext
) -> list[Canary]:
    """Choose the documents to withhold, by a hash of their ids, and assign their copies.

    Only training documents that are alone in their cluster qualify, because a near-duplicate that
    remains in the corpus would count as a copy. Memory: about 80 bytes per document.

    Raises:
        HallmarkError: Too few documents qualify.
    """
    needed_count = config.passages_per_count * len(config.copy_counts)
    if not needed_count:
        return []
    results = context.map_items(spill_passage_candidates_and_clusters, documents.parts, config)
    cluster_sizes = pc.value_counts(
        concat_spilled_tables(results, "clusters", CLUSTERS)["cluster"].combine_chunks()
    )
    singleton_clusters = cluster_sizes.filter(pc.equal(cluster_sizes.field("counts"), 1)).field(
        "values"
    )
    candidates = concat_spilled_tables(results, "candidates", PASSAGE_CANDIDATES)
    candidates = candidates.filter(pc.is_in(candidates["cluster"], singleton_clusters))
    sort_keys: Any = [("draw", "ascending"), ("doc_id", "ascending")]
    chosen_ids = candidates.sort_by(sort_keys)["doc_id"].slice(0, needed_count).to_pylist()
    if len(chosen_ids) < needed_count:
        raise HallmarkError(
            f"{needed_count} passages must be planted, but only {len(chosen_ids)} training "
            f"documents have {config.min_passage_characters} to {config.max_passage_characters} "
            "characters and no near-duplicate; lower plant_canaries.passages_per_count, lower "
            "plant_canaries.min_passage_characters, raise plant_canaries.max_passage_characters, "
            "ingest more text, or plant nothing (plant_canaries.enabled=false)"
        )
    rows_by_id = {
        row["doc_id"]: row for row in documents.find_document_rows(chosen_ids).to_pylist()
    }
    rng = random.Random(f"{config.seed}/passages")
    copy_assignments = assign_copies_and_templates(
        config.copy_counts, config.passages_per_count, [""], rng
    )
    return [
        _build_passage_canary(rows_by_id[doc_id], copies)
        for doc_id, (copies, _) in zip(chosen_ids, copy_assignments, strict=True)
    ]


def _build_passage_canary(row: dict[str, object], copies: int) -> Canary:
    """Build a passage; its prompt is the first half of the text, up to the end of a word."""
    text, doc_id = str(row["text"]), row["doc_id"]
    assert isinstance(doc_id, bytes)
    middle = len(text) // 2
    prompt_end = next((i for i in range(middle, len(text)) if text[i].isspace()), middle)
    return Canary(
        "passage",
        copies,
        "",
        text[:prompt_end],
        text[prompt_end:],
        key=doc_id.hex(),
        source_doc_id=doc_id,
        cluster=cast("bytes | None", row["cluster"]),
        toxicity=cast("float | None", row["toxicity"]),
    )


# Documents -------------------------------------------------------------------------------------


def build_canary_documents(canaries: Iterable[Canary]) -> pa.Table:
    """Build one row per copy: the columns of DOCUMENTS and ``origin``, the withheld document."""
    canary_copies = [
        (canary, doc_id) for canary in canaries for doc_id in canary.compute_copy_doc_ids()
    ]
    texts = pa.array([canary.text for canary, _ in canary_copies], pa.large_string())
    columns = {
        "doc_id": [doc_id for _, doc_id in canary_copies],
        "source": [f"planted/{canary.kind}" for canary, _ in canary_copies],
        "cluster": [canary.cluster or canary.canary_id for canary, _ in canary_copies],
        "text": texts,
        "text_hash": hash_texts(texts),
        "toxicity": [canary.toxicity for canary, _ in canary_copies],
        "split": ["train"] * len(canary_copies),
        "origin": [canary.source_doc_id for canary, _ in canary_copies],
    }
    return pa.table(
        fill_document_columns(columns), schema=DOCUMENTS.append(pa.field("origin", ID_TYPE))
    )


@dataclass(frozen=True)
class PlantingPlan:
    """A partition of the corpus, with the documents to plant in it and those to withhold."""

    partition: TablePart
    canary_documents: pa.Table
    withheld_ids: tuple[bytes, ...]

    def __str__(self) -> str:
        return str(self.partition)


def plan_planting(
    partitions: list[TablePart], canary_documents: pa.Table, withheld_ids: Sequence[bytes]
) -> list[PlantingPlan]:
    """Assign planted and withheld documents to the partitions that their ids belong to."""
    partition_count = len(partitions)
    partition_numbers = np.array(
        [
            doc_id_to_part_index(doc_id, partition_count)
            for doc_id in canary_documents["doc_id"].to_pylist()
        ],
        np.int64,
    )
    return [
        PlantingPlan(
            partition,
            canary_documents.filter(
                pa.array(partition_numbers == partition_number)
            ).combine_chunks(),
            tuple(
                doc_id
                for doc_id in withheld_ids
                if doc_id_to_part_index(doc_id, partition_count) == partition_number
            ),
        )
        for partition_number, partition in enumerate(partitions)
    ]


def plant_in_partition(plan: PlantingPlan, out: TableWriters) -> None:
    """Write the partition with its planted and without its withheld documents, sorted by id."""
    withheld_ids = pa.array(plan.withheld_ids, ID_TYPE)
    document_tables, removal_columns = [plan.canary_documents.select(DOCUMENTS.names)], []
    for batch in plan.partition.iter_batches():
        is_kept = pc.invert(pc.is_in(batch["doc_id"], value_set=withheld_ids))
        document_tables.append(pa.Table.from_batches([batch.filter(is_kept)]))
        removal_columns.append(
            build_removal_ledger_columns("withheld for planting", batch.filter(pc.invert(is_kept)))
        )
    out.get_table_writer("documents").write(pa.concat_tables(document_tables).sort_by("doc_id"))
    canary_documents = plan.canary_documents
    addition_columns = build_ledger_columns(
        "added",
        [
            source.replace("planted/", "planted ")
            for source in canary_documents["source"].to_pylist()
        ],
        canary_documents["doc_id"],
        canary_documents["source"],
        [0] * len(canary_documents),
        count_utf8_bytes(canary_documents["text"]),
        matched_doc_id=canary_documents["origin"],
        document_hash=hash_documents(canary_documents["doc_id"], canary_documents["text"]),
    )
    out.get_table_writer("ledger").write(build_ledger_table(*removal_columns, addition_columns))


@stage(
    name="plant_canaries",
    tables={"documents": DOCUMENTS, "ledger": LEDGER, "canaries": CANARIES},
    libraries=["numpy"],
)
def plant_canaries(documents: Table, config: PlantCanariesConfig, context: StageContext) -> None:
    """Generate the canaries, plant their copies and record them in the ``canaries`` table."""
    all_canaries: list[Canary] = []
    if config.enabled:
        passages = choose_passage_canaries(documents, config, context)
        all_canaries = (
            generate_secret_canaries(config)
            + passages
            + generate_record_canaries(config)
            + generate_association_canaries(config)
        )
    canary_documents = build_canary_documents(all_canaries)
    withheld_ids = [
        canary.source_doc_id for canary in all_canaries if canary.source_doc_id is not None
    ]
    context.map_partitions(
        plant_in_partition, plan_planting(documents.parts, canary_documents, withheld_ids)
    )
    context.get_table_writer("canaries").write(
        {
            "canary_id": [canary.canary_id for canary in all_canaries],
            "kind": [canary.kind for canary in all_canaries],
            "copies": [canary.copies for canary in all_canaries],
            "template": [canary.template for canary in all_canaries],
            "text": [canary.text for canary in all_canaries],
            "prompt": [canary.prompt for canary in all_canaries],
            "secret": [canary.secret for canary in all_canaries],
            "doc_ids": [canary.compute_copy_doc_ids() for canary in all_canaries],
            "association": [
                canary.association and canary.association.key for canary in all_canaries
            ],
            **{
                field: [
                    canary.association and getattr(canary.association, field)
                    for canary in all_canaries
                ]
                for field in ASSOCIATION_FIELDS
            },
        }
    )
