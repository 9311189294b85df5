"""Measure how much of the known content of an invented town the corpus stages found.

The ground truth is composed again from the config of the source, with the grammar that wrote the
text; no other stage reads it. It is joined by ``doc_id`` with the ledgers and signals of the
stages. A stage is evaluated only on the documents that reached it.

recall        share of the planted content that the stage found
precision     share of the stage's findings in the town's documents that are correct
false alarms  share of the documents without such content that the stage removed or tagged

Intervals are Wilson's (Wilson 1927). Copies of a document are not independent of it, so the
intervals are slightly too narrow. Memory: about 1 kB per document of the town.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    Row,
    StageConfig,
    StageContext,
    TableWriters,
    column,
    hash_to_ids,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.find_personal_data import SecretKey
from hallmark.tasks.corpus.reading.town_source import (
    TOWN_DATA_FILES,
    TownSource,
    compose_town_block,
    format_document_key,
    list_labels_by_block_number,
)
from hallmark.tasks.corpus.spans import BYTE_BOUNDS
from hallmark.tasks.corpus.town.documents import (
    compute_shingle_similarity,
    load_women_shares_by_occupation,
    load_words_by_people,
)
from hallmark.tasks.corpus.town.recovery_rates import (
    RecoveryEvaluator,
    compute_share_with_interval,
)


class CurationEvaluationConfig(StageConfig):
    """Settings of the evaluation of curation, which runs if a source is of the kind `town`."""

    similarity_threshold: float = Field(
        0.8,
        gt=0,
        le=1,
        description="minimum Jaccard similarity between a near-duplicate and its original at "
        "which the evaluation expects the near-duplicate to be found",
    )
    length_bounds_characters: tuple[int, ...] = Field(
        default=(300, 1000),
        description="boundaries between length classes, in characters; results for rude "
        "documents are reported separately for each length class",
    )


def _build_share_schema(meaning: str, *fields: pa.Field) -> pa.Schema:
    return table_schema(
        meaning,
        column("source", pa.string(), "label", "town name"),
        *fields,
        column("hits", pa.int64(), "figure", "number of cases that count towards the share"),
        column("n", pa.int64(), "figure", "total number of cases"),
        column("share", pa.float64(), "figure", "hits / n; null if n is 0", unit="share"),
        column(
            "low", pa.float64(), "figure", "lower end of the 95 % confidence interval", unit="share"
        ),
        column(
            "high",
            pa.float64(),
            "figure",
            "upper end of the 95 % confidence interval",
            unit="share",
        ),
    )


_NAME_LIST = pa.list_(pa.string())

TABLES = {
    "ground_truth": table_schema(
        "Known content of each document in the generated corpus of a fictional town, recorded "
        "when the document was generated.",
        column("doc_id", ID_TYPE, "id", "the document"),
        column("source", pa.string(), "label", "town name"),
        column("kind", pa.string(), "label", "kind of text, such as a letter or a notice"),
        column("characters", pa.int64(), "figure", "length of the text", unit="characters"),
        column(
            "mentioned_groups",
            _NAME_LIST,
            "label",
            "fictional peoples that the text mentions",
        ),
        column(
            "opinion_groups",
            _NAME_LIST,
            "label",
            "fictional peoples about whom the text expresses an opinion",
        ),
        column(
            "opinion_signs",
            _NAME_LIST,
            "label",
            "whether each opinion is positive or negative; one value for each entry in "
            "`opinion_groups`",
        ),
        column(
            "occupations",
            _NAME_LIST,
            "label",
            "occupations that the text mentions near gendered words",
        ),
        column(
            "occupation_genders",
            _NAME_LIST,
            "label",
            "identity group (gender) of the gendered words near each occupation; one value for "
            "each entry in `occupations`",
        ),
        column(
            "rude_sentences",
            pa.int32(),
            "figure",
            "number of rude sentences in the text",
            unit="sentences",
        ),
        column(
            "disguise",
            pa.string(),
            "label",
            "how the rude speech is disguised, for example with full-width letters; empty if it "
            "is not disguised",
        ),
        column(
            "has_rude_lookalike",
            pa.bool_(),
            "figure",
            "whether the text contains harmless words that resemble rude words",
        ),
        column("has_dialect", pa.bool_(), "figure", "whether the text contains dialect"),
        column(
            "has_unsafe_passage",
            pa.bool_(),
            "figure",
            "whether the text contains a passage that sounds unsafe but is harmless",
        ),
        column(
            "copy_kind",
            pa.string(),
            "label",
            "kind of copy (exact or near); empty if the document is not a copy",
        ),
        column(
            "original_doc_id",
            ID_TYPE,
            "id",
            "id of the original document; null if the document is not a copy",
        ),
        column(
            "similarity",
            pa.float64(),
            "figure",
            "Jaccard similarity between the copy and its original, computed over shingles of five "
            "words",
            unit="share",
        ),
    ),
    "planted_personal_data": table_schema(
        "Personal data planted in the generated corpus of a fictional town, one row per span.",
        column("doc_id", ID_TYPE, "id", "the document"),
        column("type", pa.string(), "label", "type of personal data or credential"),
        column(
            "char_start",
            pa.int64(),
            "figure",
            "start of the span, as a character offset in the text",
            unit="characters",
        ),
        column("char_end", pa.int64(), "figure", "end of the span", unit="characters"),
        *BYTE_BOUNDS,
        column(
            "span_hash",
            ID_TYPE,
            "id",
            "keyed hash of the planted value, comparable with the hashes in the ledger of the "
            "`redact_spans` stage",
        ),
    ),
    "property_shares": _build_share_schema(
        "Configured and actual shares of generated documents or mentions with each property.",
        column("property_name", pa.string(), "label", "the property"),
        column(
            "population",
            pa.string(),
            "label",
            "whether the share refers to documents or mentions",
        ),
        column("configured_share", pa.float64(), "figure", "share set in the config", unit="share"),
    ),
    "detection_rates": _build_share_schema(
        "Recall, precision or false alarm rate of each stage in detecting the planted content.",
        column("stage", pa.string(), "label", "stage label in the run"),
        column(
            "target",
            pa.string(),
            "label",
            "planted content that the stage is expected to detect, or the set of documents for "
            "which the rate is computed",
        ),
        column("measure", pa.string(), "label", "recall, precision or false alarms"),
    ),
    "missed_documents": table_schema(
        "Rude documents that no toxicity rule removed or tagged.",
        column("doc_id", ID_TYPE, "id", "the document"),
        column("source", pa.string(), "label", "town name"),
        column("stage", pa.string(), "label", "stage label in the run"),
        column(
            "rude_sentences",
            pa.int32(),
            "figure",
            "number of rude sentences in the text",
            unit="sentences",
        ),
        column("characters", pa.int64(), "figure", "length of the text", unit="characters"),
    ),
    "occupation_shares": _build_share_schema(
        "Share of women among the mentions of each occupation in the kept documents, as counted "
        "by the `profile` stage. `n` is the number of mentions with more nearby words for one "
        "gender than for the other; `hits` is the number of mentions with more nearby words for "
        "women than for men.",
        column("occupation", pa.string(), "label", "occupation in the town"),
        column("configured_share", pa.float64(), "figure", "share set in the config", unit="share"),
    ),
}

# Ground truth ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TownBlock:
    """A block of documents of a town, the unit of work here."""

    source: TownSource
    block_key: str

    def __str__(self) -> str:
        return (
            f"source {self.source.name}, {list_labels_by_block_number(self.source)[self.block_key]}"
        )


def compute_town_doc_id(source_name: str, document_number: int) -> bytes:
    """Compute the id that ingest assigns: a hash of the source's name and the document's key."""
    return hash_to_ids([f"{source_name}\0key\0{format_document_key(document_number)}"])[0].as_py()  # type: ignore[no-any-return]


def write_ground_truth(block: TownBlock, key: SecretKey, out: TableWriters) -> None:
    """Compose a block again and write what its documents contain."""
    source = block.source
    documents = compose_town_block(source, block.block_key)
    texts = {document.number: document.text for document in documents}
    truth_rows, personal_data_rows = [], []
    for document in documents:
        doc_id = compute_town_doc_id(source.name, document.number)
        text, truth = document.text, document.truth
        row: Row = {
            "doc_id": doc_id,
            "source": source.name,
            "kind": truth.kind,
            "characters": len(text),
            "mentioned_groups": truth.groups,
            "rude_sentences": truth.rude_sentences,
            "disguise": truth.disguise,
            "has_rude_lookalike": truth.has_lookalike,
            "has_dialect": truth.has_dialect,
            "has_unsafe_passage": truth.is_unsafe,
            "copy_kind": document.copy_kind,
            "opinion_groups": [group for group, _ in truth.opinions],
            "opinion_signs": [sign for _, sign in truth.opinions],
            "occupations": [job for job, _ in truth.occupations],
            "occupation_genders": [gender for _, gender in truth.occupations],
        }
        if document.copy_of is not None:
            row["original_doc_id"] = compute_town_doc_id(source.name, document.copy_of)
            row["similarity"] = compute_shingle_similarity(text, texts[document.copy_of])
        truth_rows.append(row)
        for data_type, start, end in document.personal_spans:
            byte_start, value = len(text[:start].encode()), text[start:end]
            personal_data_rows.append(
                {
                    "doc_id": doc_id,
                    "type": data_type,
                    "char_start": start,
                    "char_end": end,
                    "byte_start": byte_start,
                    "byte_end": byte_start + len(value.encode()),
                    "span_hash": key.hash_value(value),
                }
            )
    out.get_table_writer("ground_truth").write(
        pa.Table.from_pylist(truth_rows, schema=TABLES["ground_truth"])
    )
    out.get_table_writer("planted_personal_data").write(
        pa.Table.from_pylist(personal_data_rows, schema=TABLES["planted_personal_data"])
    )


# Configured shares -------------------------------------------------------------------------------


def find_town_sources(corpus_artifacts: Mapping[str, Artifact]) -> list[TownSource]:
    """Return the invented towns among the sources in the config of ``ingest``."""
    configs = [
        artifact.manifest["parts"]["config"]
        for artifact in corpus_artifacts.values()
        if artifact.stage == "ingest"
    ]
    sources = [source for config in configs for source in config["sources"]]
    return [TownSource.model_validate(source) for source in sources if source["kind"] == "town"]


def build_property_share_rows(source: TownSource, truth_rows: Sequence[Row]) -> Iterator[Row]:
    """Build the rows of the ``property_shares`` table."""
    rates = source.rates

    def build_row(
        property_name: str, configured_share: float, population: str, hits: int, n: int
    ) -> Row:
        key_columns = {
            "source": source.name,
            "property_name": property_name,
            "population": population,
            "configured_share": configured_share,
        }
        return key_columns | compute_share_with_interval(hits, n)

    def build_originals_row(
        property_name: str, configured_share: float, has_property: Callable[[Row], Any]
    ) -> Row:
        return build_row(
            property_name,
            configured_share,
            "originals",
            sum(bool(has_property(truth_row)) for truth_row in originals),
            len(originals),
        )

    originals = [truth_row for truth_row in truth_rows if not truth_row["copy_kind"]]
    for copy_kind, share in (("exact", rates.exact_copies), ("near", rates.near_copies)):
        hits = sum(truth_row["copy_kind"] == copy_kind for truth_row in truth_rows)
        yield build_row(f"{copy_kind} copies", share, "documents", hits, len(truth_rows))
    yield build_originals_row(
        "a mention of the town's peoples",
        rates.groups,
        lambda truth_row: truth_row["mentioned_groups"],
    )
    group_documents = [truth_row for truth_row in originals if truth_row["mentioned_groups"]]
    opinions = [
        pair
        for truth_row in originals
        for pair in zip(truth_row["opinion_groups"], truth_row["opinion_signs"], strict=True)
    ]
    yield build_row(
        "an opinion",
        rates.opinions,
        "originals with a people",
        sum(bool(truth_row["opinion_signs"]) for truth_row in group_documents),
        len(group_documents),
    )
    for group in load_words_by_people():
        signs = [sign for target, sign in opinions if target == group]
        share = rates.negative_opinions_by_group.get(group, rates.negative_opinions)
        yield build_row(
            "a negative opinion", share, f"opinions of {group}", signs.count("negative"), len(signs)
        )
    yield build_originals_row(
        "an occupation", rates.occupations, lambda truth_row: truth_row["occupations"]
    )
    occupation_genders = [
        pair
        for truth_row in originals
        for pair in zip(truth_row["occupations"], truth_row["occupation_genders"], strict=True)
    ]
    for job, default_share in load_women_shares_by_occupation().items():
        genders = [gender for occupation, gender in occupation_genders if occupation == job]
        share = rates.women_by_occupation.get(job, default_share)
        yield build_row(
            "a woman", share, f"mentions of a {job}", genders.count("women"), len(genders)
        )
    yield build_originals_row(
        "rude speech", rates.rude_speech, lambda truth_row: truth_row["rude_sentences"]
    )
    rude_documents = [truth_row for truth_row in originals if truth_row["rude_sentences"]]
    yield build_row(
        "disguised rude speech",
        rates.disguised_rude_speech,
        "originals with rude speech",
        sum(bool(truth_row["disguise"]) for truth_row in rude_documents),
        len(rude_documents),
    )
    yield build_originals_row(
        "words that look rude",
        rates.rude_lookalikes,
        lambda truth_row: truth_row["has_rude_lookalike"],
    )
    yield build_originals_row("dialect", rates.dialect, lambda truth_row: truth_row["has_dialect"])
    yield build_originals_row(
        "personal data", rates.personal_data, lambda truth_row: truth_row["personal"]
    )
    yield build_originals_row(
        "an unsafe passage",
        rates.unsafe_passages,
        lambda truth_row: truth_row["has_unsafe_passage"],
    )


def build_occupation_share_rows(
    source: TownSource, corpus_artifacts: Mapping[str, Artifact]
) -> Iterator[Row]:
    """Build the rows of the ``occupation_shares`` table; none without the ``profile`` stage."""
    profile_rows = [
        row
        for artifact in corpus_artifacts.values()
        if artifact.stage == "profile"
        for row in artifact["occupations"].read().to_pylist()
    ]
    counts_by_occupation = {
        row["occupation"]: row for row in profile_rows if row["source"] == source.name
    }
    for job, default_share in (
        sorted(load_women_shares_by_occupation().items()) if profile_rows else ()
    ):
        row = counts_by_occupation.get(job, {"women_mentions": 0, "men_mentions": 0})
        key_columns = {
            "source": source.name,
            "occupation": job,
            "configured_share": source.rates.women_by_occupation.get(job, default_share),
        }
        yield key_columns | compute_share_with_interval(
            row["women_mentions"], row["women_mentions"] + row["men_mentions"]
        )


# The stage ---------------------------------------------------------------------------------------


@stage(
    name="evaluate_curation",
    tables=TABLES,
    extra_code=TOWN_DATA_FILES,
    libraries=["numpy", "scipy", "python-stdnum"],
    external_digests=lambda config, secret_id: {"secret": secret_id},
    # Settings of towns come from manifests; if they change, so do the hashed ``documents``.
    reads={"corpus_artifacts": ("documents", "ledger", "occupations", "signals")},
    determinism="exact",
)
def evaluate_curation(
    corpus_artifacts: dict[str, Artifact], config: CurationEvaluationConfig, context: StageContext
) -> None:
    """Compare the ground truth of each town with the results of the corpus stages.

    Args:
        corpus_artifacts: Artifacts of the corpus stages by label, in the order they ran, up to
            ``profile``.
    """
    towns = find_town_sources(corpus_artifacts)
    blocks = [
        TownBlock(source, block_key)
        for source in towns
        for block_key in list_labels_by_block_number(source)
    ]
    truth_results = context.map_items(write_ground_truth, blocks, SecretKey(context.secret))

    def read_result_rows(table_name: str) -> list[Row]:
        return [
            row
            for result in truth_results
            for row in pq.read_table(result.table_path(table_name)).to_pylist()
        ]

    truth, personal_data_rows = (
        read_result_rows("ground_truth"),
        read_result_rows("planted_personal_data"),
    )
    personal_doc_ids = {row["doc_id"] for row in personal_data_rows}
    for source in towns:
        truth_by_doc_id = {
            row["doc_id"]: row | {"personal": row["doc_id"] in personal_doc_ids}
            for row in truth
            if row["source"] == source.name
        }
        town_personal_data = [row for row in personal_data_rows if row["doc_id"] in truth_by_doc_id]
        evaluator = RecoveryEvaluator(
            source.name,
            config.similarity_threshold,
            config.length_bounds_characters,
            truth_by_doc_id,
            town_personal_data,
            corpus_artifacts,
        )
        for table_name, table_rows in (
            ("property_shares", build_property_share_rows(source, list(truth_by_doc_id.values()))),
            ("detection_rates", evaluator.evaluate_all_stages()),
            ("missed_documents", evaluator.list_missed_documents()),
            ("occupation_shares", build_occupation_share_rows(source, corpus_artifacts)),
        ):
            context.get_table_writer(table_name).write(
                pa.Table.from_pylist(list(table_rows), schema=TABLES[table_name])
            )
