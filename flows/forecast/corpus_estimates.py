"""Count or estimate the size of a corpus: documents, bytes, tokens and packed rows.

Figures are exact if the artifacts exist. Otherwise they are estimated from a sample, whose outcome
is scaled by bytes for each source. Estimates miss duplicates of documents outside the sample, so
they are too high for a corpus with many duplicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from hallmark.model.special_tokens import PAD_ID
from hallmark.tasks.contract import Artifact, Table, count_utf8_bytes
from hallmark.tasks.measures.association_canaries import generate_association_canaries
from hallmark.tasks.measures.canaries import generate_record_canaries, generate_secret_canaries
from hallmark.tasks.training.encoding import load_tokenizer

if TYPE_CHECKING:
    from hallmark.flows.config import Config
    from hallmark.flows.forecast.source_sampling import CorpusSample
    from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig

SPLITS = ("train", "validation", "holdout")


@dataclass(frozen=True)
class Estimate:
    """A figure, None if unknown, and whether it is exact."""

    value: float | None
    is_exact: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


UNKNOWN_ESTIMATE = Estimate(None)


def count_documents_and_bytes_by_source(documents: Table) -> dict[str, tuple[int, int]]:
    """Read the number of documents and the bytes of text by source from the manifest."""
    totals: dict[str, tuple[int, int]] = {}
    for source, action, document_count, _, byte_count, *_ in documents.source_counts:
        if action == "document":
            previous = totals.get(source, (0, 0))
            totals[source] = (previous[0] + document_count, previous[1] + byte_count)
    return totals


class QuarantineSummary(NamedTuple):
    """Hold how many records of a source go to quarantine; the fields are keys of its report.

    Attributes:
        quarantined: Number of records.
        first_quarantined: Place and error of the first one; "" if there is none.
    """

    quarantined: int
    first_quarantined: str


NO_QUARANTINE = QuarantineSummary(0, "")


def summarize_quarantine_by_source(ingested: Artifact) -> dict[str, QuarantineSummary]:
    """Count the quarantined records by source, and describe the first one."""
    summaries: dict[str, QuarantineSummary] = {}
    columns = ["source", "file_name", "location", "error", "records"]
    for row in ingested["quarantine"].read(columns).to_pylist():
        count, first_problem = summaries.get(row["source"], NO_QUARANTINE)
        first_problem = first_problem or f"{row['file_name']}, {row['location']}: {row['error']}"
        summaries[row["source"]] = QuarantineSummary(count + row["records"], first_problem)
    return summaries


def count_packed_tokens(packed: Artifact, split: str, context_length: int) -> int:
    """Count the tokens of a packed split, in which only the last row is padded."""
    table = packed[split]
    if not table.row_count:
        return 0
    last_ids = next(part for part in reversed(table.parts) if part.row_count).read(["token_ids"])[
        "token_ids"
    ]
    padding_count = pc.sum(pc.equal(last_ids[-1].values, PAD_ID)).as_py()
    return table.row_count * context_length - int(padding_count)


def read_vocabulary_size(tokenizer: Artifact) -> int:
    return load_tokenizer(tokenizer.fetch_file("tokenizer.json")).get_vocab_size()


def count_documents_by_split(documents: Table) -> dict[str, int]:
    """Count the documents by split, without planted ones."""
    counts = dict.fromkeys(SPLITS, 0)
    for batch in documents.iter_batches(["source", "split"]):
        unplanted = batch.filter(pc.invert(pc.starts_with(batch["source"], "planted/")))
        for row in pc.value_counts(unplanted["split"]).to_pylist():
            counts[row["values"]] += row["counts"]
    return counts


@dataclass(frozen=True)
class ScaledSample:
    """A sample after the stages, with which sizes of the whole corpus are estimated.

    Attributes:
        sample: The sample and its share of each source.
        artifacts: The artifacts of the stages by label, made without planting.
    """

    sample: CorpusSample
    artifacts: Mapping[str, Artifact]

    def estimate_documents_and_bytes(self, stage_label: str) -> tuple[float, float] | None:
        """Estimate documents and bytes after a stage; None if the size of a source is unknown."""
        source_totals = [
            (self.sample.get_source_ratio(source), *totals)
            for source, totals in count_documents_and_bytes_by_source(
                self.artifacts[stage_label]["documents"]
            ).items()
        ]
        if any(scale is None for scale, *_ in source_totals):
            return None
        return (
            sum(
                (scale_factor or 0) * document_count
                for scale_factor, document_count, _ in source_totals
            ),
            sum((scale_factor or 0) * byte_count for scale_factor, _, byte_count in source_totals),
        )

    def estimate_passage_count_and_mean_bytes(
        self, canary_config: PlantCanariesConfig
    ) -> tuple[float, float] | None:
        """Estimate how many training documents can be planted as passages, and their mean bytes.

        None if the size of a source is unknown.
        """
        documents = self.artifacts["split"]["documents"].read(
            ["source", "cluster", "split", "text"]
        )
        cluster_sizes = pc.value_counts(documents["cluster"].combine_chunks())
        singleton_clusters = cluster_sizes.filter(pc.equal(cluster_sizes.field("counts"), 1)).field(
            "values"
        )
        text_lengths = pc.utf8_length(documents["text"])
        is_candidate = pc.and_(
            pc.greater_equal(text_lengths, canary_config.min_passage_characters),
            pc.less_equal(text_lengths, canary_config.max_passage_characters),
        )
        is_candidate = pc.and_(is_candidate, pc.equal(documents["split"], "train"))
        candidates = documents.filter(
            pc.and_(is_candidate, pc.is_in(documents["cluster"], value_set=singleton_clusters))
        )
        scales = [
            self.sample.get_source_ratio(source) for source in candidates["source"].to_pylist()
        ]
        if any(scale is None for scale in scales):
            return None
        byte_sizes = count_utf8_bytes(candidates["text"]).to_pylist()
        default_size = (
            canary_config.min_passage_characters + canary_config.max_passage_characters
        ) / 2
        return sum(scale or 0 for scale in scales), mean(byte_sizes) if byte_sizes else default_size

    def compute_tokens_per_byte(self, context_length: int) -> float:
        """Compute tokens per byte of the sample's training text, with the sample's tokenizer."""
        documents = self.artifacts["plant_canaries"]["documents"]
        train_texts = documents.to_dataset().to_table(["text"], filter=pc.field("split") == "train")
        byte_count = pc.sum(count_utf8_bytes(train_texts["text"])).as_py() or 0
        return (
            count_packed_tokens(self.artifacts["pack"], "train", context_length) / byte_count
            if byte_count
            else 0.0
        )


def count_canary_documents_and_bytes(
    canary_config: PlantCanariesConfig, passage_bytes: float
) -> tuple[float, float]:
    """Count the documents and bytes that planting adds, minus the passages that it holds back.

    ``passage_bytes`` is the mean size of a passage.
    """
    if not canary_config.enabled:
        return 0.0, 0.0
    canary_texts = [
        *generate_secret_canaries(canary_config),
        *generate_record_canaries(canary_config),
        *generate_association_canaries(canary_config),
    ]
    document_count = sum(canary_text.copies for canary_text in canary_texts)
    byte_count = sum(
        canary_text.copies * len(canary_text.text.encode()) for canary_text in canary_texts
    )
    passage_copies = canary_config.passages_per_count * (
        sum(canary_config.copy_counts) - len(canary_config.copy_counts)
    )
    return float(document_count + passage_copies), byte_count + passage_copies * passage_bytes


def estimate_corpus_sizes_by_name(
    config: Config,
    known_artifacts: Mapping[str, Artifact],
    scaled_sample: ScaledSample | None,
    earlier_documents: Sequence[Artifact] = (),
) -> dict[str, Estimate]:
    """Count or estimate documents, bytes, tokens and packed rows of the corpus.

    Args:
        config: The config of the run.
        known_artifacts: The artifacts that exist, by label; figures from them are exact.
        scaled_sample: The sample for all other figures; None without one.
        earlier_documents: The corpora that this one extends, which are included.

    Returns:
        Estimates by name: documents, bytes, the splits, tokens, train_rows, validation_rows, and
        passages (documents that can be planted as passages).
    """
    estimate_names = (
        "documents",
        "bytes",
        *SPLITS,
        "tokens",
        "train_rows",
        "validation_rows",
        "passages",
    )
    estimates = dict.fromkeys(estimate_names, UNKNOWN_ESTIMATE)
    validation_share, holdout_share = config.split.validation_share, config.split.holdout_share
    split_shares = {
        "train": 1 - validation_share - holdout_share,
        "validation": validation_share,
        "holdout": holdout_share,
    }
    unplanted_totals, canary_totals = None, (0.0, 0.0)  # (documents, bytes)
    if scaled_sample and (
        passage_candidates := scaled_sample.estimate_passage_count_and_mean_bytes(
            config.plant_canaries
        )
    ):
        estimates["passages"] = Estimate(passage_candidates[0])
        unplanted_totals, canary_totals = (
            scaled_sample.estimate_documents_and_bytes("plant_canaries"),
            count_canary_documents_and_bytes(config.plant_canaries, passage_candidates[1]),
        )
    if unplanted_totals:
        earlier_table = Table(tuple(earlier_documents), "documents")
        earlier_totals, earlier_splits = (
            _sum_documents_and_bytes(count_documents_and_bytes_by_source(earlier_table).values()),
            count_documents_by_split(earlier_table),
        )
        estimates["documents"], estimates["bytes"] = (
            Estimate(earlier_totals[index] + unplanted_totals[index] + canary_totals[index])
            for index in (0, 1)
        )
        estimates |= {
            split: Estimate(earlier_splits[split] + unplanted_totals[0] * share)
            for split, share in split_shares.items()
        }
        unplanted_totals = (
            earlier_totals[0] + unplanted_totals[0],
            earlier_totals[1] + unplanted_totals[1],
        )
    if "plant_canaries" in known_artifacts:
        documents = Table((*earlier_documents, known_artifacts["plant_canaries"]), "documents")
        source_totals = count_documents_and_bytes_by_source(documents)
        unplanted_sources = [
            totals for source, totals in source_totals.items() if not source.startswith("planted/")
        ]
        corpus_totals, unplanted_totals = (
            _sum_documents_and_bytes(source_totals.values()),
            _sum_documents_and_bytes(unplanted_sources),
        )
        canary_totals = (
            corpus_totals[0] - unplanted_totals[0],
            corpus_totals[1] - unplanted_totals[1],
        )
        estimates["documents"], estimates["bytes"] = (
            Estimate(value, True) for value in corpus_totals
        )
        estimates |= {
            split: Estimate(rows, True)
            for split, rows in count_documents_by_split(documents).items()
        }
    if "pack" in known_artifacts:
        packed = known_artifacts["pack"]
        estimates["tokens"] = Estimate(
            count_packed_tokens(packed, "train", config.pack.context), True
        )
        for split in ("train", "validation"):
            estimates[f"{split}_rows"] = Estimate(packed[split].row_count, True)
    elif scaled_sample and unplanted_totals:
        tokens_per_byte = scaled_sample.compute_tokens_per_byte(config.pack.context)
        token_estimate = tokens_per_byte * (
            unplanted_totals[1] * split_shares["train"] + canary_totals[1]
        )
        estimates["tokens"] = Estimate(token_estimate)
        for split, split_tokens in (
            ("train", token_estimate),
            ("validation", tokens_per_byte * unplanted_totals[1] * split_shares["validation"]),
        ):
            estimates[f"{split}_rows"] = Estimate(math.ceil(split_tokens / config.pack.context))
    return estimates


def _sum_documents_and_bytes(
    documents_and_bytes_of_sources: Iterable[tuple[int, int]],
) -> tuple[float, float]:
    document_counts, byte_counts = [*zip(*documents_and_bytes_of_sources, strict=True)] or [(), ()]
    return float(sum(document_counts)), float(sum(byte_counts))


def estimate_source_sizes(
    known_artifacts: Mapping[str, Artifact],
    scaled_sample: ScaledSample | None,
    sample: CorpusSample | None,
) -> list[dict[str, Any]]:
    """Count or estimate documents and bytes of text by source, after the stage ingest."""
    if "ingest" in known_artifacts:
        quarantine_summaries = summarize_quarantine_by_source(known_artifacts["ingest"])
        return [
            _build_source_row(
                source, Estimate(document_count, True), Estimate(byte_count, True), 1.0
            )
            | quarantine_summaries.get(source, NO_QUARANTINE)._asdict()
            for source, (document_count, byte_count) in count_documents_and_bytes_by_source(
                known_artifacts["ingest"]["documents"]
            ).items()
        ]
    ingested_totals = (
        count_documents_and_bytes_by_source(scaled_sample.artifacts["ingest"]["documents"])
        if scaled_sample
        else {}
    )
    source_rows = []
    for source, source_sample in sample.source_samples.items() if sample else ():
        document_count, byte_count = ingested_totals.get(
            source, (source_sample.document_count, source_sample.text_bytes)
        )
        scale_factor = source_sample.source_to_sample_ratio
        if scale_factor is None:
            source_row = _build_source_row(source, UNKNOWN_ESTIMATE, UNKNOWN_ESTIMATE, None)
        else:
            source_row = _build_source_row(
                source,
                Estimate(document_count * scale_factor),
                Estimate(byte_count * scale_factor),
                1 / scale_factor,
            )
        quarantine_summary = QuarantineSummary(
            source_sample.unreadable_count, source_sample.first_read_error
        )
        source_rows.append(
            source_row | {"problem": source_sample.problem} | quarantine_summary._asdict()
        )
    return source_rows


def _build_source_row(
    source: str, documents: Estimate, text_bytes: Estimate, read_share: float | None
) -> dict[str, Any]:
    return {
        "source": source,
        "documents": documents.to_dict(),
        "bytes": text_bytes.to_dict(),
        "share_read": read_share,
    }
