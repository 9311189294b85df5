"""Compute the figures of the corpus from which the datasheet is rendered.

Every table is counted from the tables of the stages, so each figure can be traced back to rows. In
``lengths`` and ``toxicity`` the source "" means all sources together, because quantiles of single
sources cannot be combined into those of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    ItemResult,
    Row,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    align_parts,
    concat_spilled_tables,
    count_utf8_bytes,
    lookup_column_by_doc_id,
    stage,
)
from hallmark.tasks.corpus.group_effects.group_sentences import (
    DRAWN_SENTENCES_SCHEMA,
    draw_group_sentences,
)
from hallmark.tasks.corpus.identities import (
    LengthBounds,
    UserLexicons,
    combine_with_builtin_lexicon,
    load_user_lexicons,
)
from hallmark.tasks.corpus.profiles.composition import (
    COUNTS_SCHEMA,
    DimensionContext,
    build_composition_rows,
    count_documents_by_dimension,
    find_signals,
    read_licences_by_source,
)
from hallmark.tasks.corpus.profiles.group_sentiment import (
    SENTIMENT_SCORER,
    build_sentiment_rows,
    plan_sentence_draw,
)
from hallmark.tasks.corpus.profiles.metadata_counts import (
    FIELD_COUNTS,
    VALUE_COUNTS,
    MetadataCounts,
)
from hallmark.tasks.corpus.profiles.source_columns import SOURCE_COLUMNS
from hallmark.tasks.corpus.profiles.tables import TABLES
from hallmark.tasks.corpus.profiles.tag_counts import build_tag_count_rows
from hallmark.tasks.corpus.quality_presets import PRESET_RULES, find_rule_violations
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_with_failing_texts_emptied,
)
from hallmark.tasks.measures.identities import Lexicon, find_term_mentions
from hallmark.tasks.measures.occupations import (
    count_gendered_words_by_mention,
    list_occupations,
)
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES
from hallmark.tasks.measures.scorers import scorer_versions
from hallmark.tasks.measures.statistics import wilson_interval


class ProfileConfig(StageConfig):
    """Settings of the statistics that describe the corpus."""

    quantiles: tuple[float, ...] = Field(
        default=(0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0),
        description="quantile levels (between 0 and 1) to report for document lengths and "
        "toxicity scores",
    )
    max_composition_values: int = Field(
        50,
        ge=1,
        le=100_000,
        description="maximum number of values per dimension in the `composition` table, where all "
        "other values are summed in one row, and per field in the `metadata_values` table",
    )
    length_bounds_bytes: LengthBounds = Field(
        default=(200, 1000, 5000, 20_000),
        description="lower bounds of the length classes, in bytes; omit the bound of the first "
        "class, which is always 0",
    )
    occupation_window_words: int = Field(
        10,
        ge=1,
        le=1000,
        description="maximum distance, in words, at which a gendered word in the same sentence "
        "as an occupation is counted",
    )
    max_sentiment_sentences_per_group: int = Field(
        500,
        ge=0,
        le=10_000,
        description="maximum number of sentences per group and axis (kind of group) whose "
        "sentiment is compared with the sentiment of sentences about other groups",
    )

    @field_validator("quantiles")
    @classmethod
    def _check_quantiles(cls, quantiles: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 <= q <= 1 for q in quantiles) or sorted(set(quantiles)) != list(quantiles):
            raise ValueError(
                "the quantiles must be between 0 and 1, in ascending order and without duplicates"
            )
        return quantiles


# Documents, by partition -----------------------------------------------------------------------

_DOCUMENT_SIZES = pa.schema(
    [TABLES["sources"].field(name) for name in ("source", "split")]
    + [TABLES["sources"].field(each.name) for each in SOURCE_COLUMNS]
)


class MentionCounts(NamedTuple):
    """Hold the counts of a batch of documents."""

    identities: pa.Table
    """Rows of the ``identities`` table."""
    occupations: pa.Table
    """Rows of OCCUPATION_COUNTS."""


def profile_partition(
    documents_and_languages: tuple[TablePart, ...],
    licence_by_source: Mapping[str, str | None],
    user_lexicons: UserLexicons,
    config: ProfileConfig,
    out: TableWriters,
) -> FailureList:
    """Spill the sizes, composition, metadata, identity and occupation counts of a partition.

    Args:
        documents_and_languages: The partition of documents and, if known, that of their languages.
        licence_by_source: Licence of each source; None if it is unknown.

    Returns:
        The documents whose words could not be counted.
    """
    documents, *language_partitions = documents_and_languages
    languages = (
        lookup_column_by_doc_id(language_partitions[0], "language", documents).combine_chunks()
        if language_partitions
        else None
    )
    group_lexicon, start = combine_with_builtin_lexicon(user_lexicons), 0
    failures: FailureList = []

    def count_mentions(batch: pa.RecordBatch) -> MentionCounts:
        return MentionCounts(
            count_identity_mentions_by_term_and_source(
                batch["text"], batch["source"], group_lexicon
            ),
            count_occupation_mentions_by_source(
                batch["text"], batch["source"], config.occupation_window_words
            ),
        )

    metadata_counts = MetadataCounts.merge([])
    column_names = ["doc_id", "source", "domain", "date", "metadata", "split", "text"]
    for batch in documents.iter_batches(column_names):
        measured_columns = {each.name: each.measure(batch) for each in SOURCE_COLUMNS}
        sizes = measured_columns["bytes"]
        out.get_spill_writer("document_sizes", _DOCUMENT_SIZES).write(
            {"source": batch["source"], "split": batch["split"], **measured_columns}
        )
        batch_languages = None if languages is None else languages.slice(start, len(batch))
        start += len(batch)
        context = DimensionContext(
            sizes, batch_languages, licence_by_source, config.length_bounds_bytes
        )
        for counts in count_documents_by_dimension(batch, context):
            out.get_spill_writer("composition", COUNTS_SCHEMA).write(counts)
        batch_counts = MetadataCounts.from_documents(batch["metadata"])
        metadata_counts = MetadataCounts.merge([metadata_counts, batch_counts])
        mention_counts, faults = run_with_failing_texts_emptied(count_mentions, batch)
        out.get_spill_writer("identities", TABLES["identities"]).write(mention_counts.identities)
        out.get_spill_writer("occupations", OCCUPATION_COUNTS).write(mention_counts.occupations)
        failures += list_failures_by_doc_id(batch, faults)
    out.get_spill_writer("metadata_fields", FIELD_COUNTS).write(metadata_counts.fields)
    out.get_spill_writer("metadata_values", VALUE_COUNTS).write(metadata_counts.values)
    return failures


def count_identity_mentions_by_term_and_source(
    texts: pa.Array, sources: pa.Array, group_lexicon: Lexicon
) -> pa.Table:
    """Count the identity terms of a batch; return rows of the ``identities`` table."""
    terms = group_lexicon.terms
    term_numbers, text_rows, _ = find_term_mentions(texts, group_lexicon)
    term_table = pa.table(
        {"group_name": [group for group, _ in terms], "term": [term for _, term in terms]}
    )
    mention_rows = term_table.take(pa.array(term_numbers)).append_column(
        "source", sources.take(pa.array(text_rows))
    )
    grouped_mentions = mention_rows.append_column("text_row", pa.array(text_rows)).group_by(
        ["group_name", "term", "source"]
    )
    counts = grouped_mentions.aggregate([("text_row", "count"), ("text_row", "count_distinct")])
    return counts.rename_columns(TABLES["identities"].names)


#: Counts by source and occupation.
OCCUPATION_COUNTS = pa.schema(
    [("source", pa.string()), ("occupation", pa.string())]
    + [
        (name, pa.int64())
        for name in ("mentions", "women_words", "men_words", "women_mentions", "men_mentions")
    ]
)


def count_occupation_mentions_by_source(
    texts: pa.Array, sources: pa.Array, window: int
) -> pa.Table:
    """Count mentions of occupations and the gendered words near them; see OCCUPATION_COUNTS."""
    occupation_numbers, text_rows, gendered_words = count_gendered_words_by_mention(texts, window)
    women, men = gendered_words.T
    columns = [np.ones(len(occupation_numbers), np.int64), women, men, women > men, men > women]
    count_columns = {
        "source": sources.take(pa.array(text_rows)),
        "occupation": pa.array(list_occupations(), pa.string()).take(pa.array(occupation_numbers)),
    }
    for name, values in zip(OCCUPATION_COUNTS.names[2:], columns, strict=True):
        count_columns[name] = pa.array(values.astype(np.int64))
    return sum_occupation_counts_by_source(pa.table(count_columns, schema=OCCUPATION_COUNTS))


def sum_occupation_counts_by_source(counts: pa.Table) -> pa.Table:
    """Add up OCCUPATION_COUNTS by source and occupation."""
    sums = counts.group_by(OCCUPATION_COUNTS.names[:2]).aggregate(
        [(name, "sum") for name in OCCUPATION_COUNTS.names[2:]]
    )
    return sums.rename_columns(OCCUPATION_COUNTS.names)


def build_occupation_rows(counts: pa.Table) -> list[Row]:
    """Build the rows of the ``occupations`` table, with totals over sources and occupations.

    Total rows have the source "" or the occupation "", or both.
    """
    empty_labels = pa.repeat(pa.scalar(""), len(counts))
    count_tables = [counts, counts.set_column(0, "source", empty_labels)]
    count_tables += [
        count_table.set_column(1, "occupation", empty_labels) for count_table in count_tables
    ]
    rows: list[Row] = sum_occupation_counts_by_source(pa.concat_tables(count_tables)).to_pylist()
    for row in rows:
        n = row["women_mentions"] + row["men_mentions"]
        low, high = wilson_interval(row["women_mentions"], n) if n else (None, None)
        row |= {"women_share": row["women_mentions"] / n if n else None, "low": low, "high": high}
    return rows


# Tables ----------------------------------------------------------------------------------------


def summarise_sizes_by_source_and_split(document_sizes: pa.Table) -> pa.Table:
    """Build the rows of the ``sources`` table."""
    sums = [(each.name, "sum") for each in SOURCE_COLUMNS]
    groups = document_sizes.group_by(["source", "split"]).aggregate(
        [("bytes", "count"), ("bytes", "list"), *sums]
    )
    return pa.table(
        {
            "source": groups["source"],
            "split": groups["split"],
            "documents": groups["bytes_count"],
            **{each.name: groups[f"{each.name}_sum"] for each in SOURCE_COLUMNS},
            "mean_bytes": pc.divide(groups["bytes_sum"].cast(pa.float64()), groups["bytes_count"]),
            "median_bytes": [
                float(np.median(sizes.values.to_numpy())) for sizes in groups["bytes_list"]
            ],
        }
    )


def iter_values_overall_and_by_source(
    table: pa.Table, column: str
) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield each source with its values of a column, after "" with all values."""
    yield "", table[column]
    for source in sorted(pc.unique(table["source"]).to_pylist()):
        yield source, table.filter(pc.equal(table["source"], source))[column]


def build_length_rows(document_sizes: pa.Table, quantiles: Sequence[float]) -> list[Row]:
    """Build the rows of the ``lengths`` table."""
    return [
        {"source": source, "quantile": quantile, "bytes": value}
        for source, sizes in iter_values_overall_and_by_source(document_sizes, "bytes")
        for quantile, value in _compute_quantiles(sizes, quantiles)
    ]


class QuantileValue(NamedTuple):
    """Hold a value and the share of all values up to it."""

    quantile: float
    value: float


def _compute_quantiles(values: pa.ChunkedArray, quantiles: Sequence[float]) -> list[QuantileValue]:
    """Compute these quantiles of the values; none if all values are null."""
    valid_values = values.drop_null().to_numpy().astype(np.float64)
    if not len(valid_values):
        return []
    quantile_values = np.quantile(valid_values, quantiles).tolist()
    return [
        QuantileValue(quantile, value)
        for quantile, value in zip(quantiles, quantile_values, strict=True)
    ]


def join_toxicity_decisions(signals: Table, selection: Artifact | None) -> pa.Table:
    """Join the toxicity of each document with the decision of ``select_scored`` on it.

    Returns:
        doc_id, source, reason of the removal ("" if kept), score and status of each document.

    Raises:
        HallmarkError: There is no ``select_scored``, or the signals are of other documents.
    """
    if selection is None:
        raise HallmarkError(
            "the history includes the score_toxicity stage but not the select_scored stage, "
            "which applies rules to the scores; include both stages"
        )
    removed_documents = selection["ledger"].read(["doc_id", "source", "action", "reason"])
    removed_documents = removed_documents.filter(
        pc.equal(removed_documents["action"], "removed")
    ).drop_columns("action")
    kept_documents = selection["documents"].read(["doc_id", "source"])
    kept_documents = kept_documents.append_column("reason", pa.repeat("", len(kept_documents)))
    toxicity_scores = signals.read(["doc_id", "toxicity", "toxicity_status"]).sort_by("doc_id")
    all_documents = pa.concat_tables([kept_documents, removed_documents]).sort_by("doc_id")
    if not all_documents["doc_id"].equals(toxicity_scores["doc_id"]):
        raise HallmarkError(
            f"{signals.artifacts[0].name} and {selection.name} describe different documents; use "
            "artifacts from the same corpus"
        )
    return all_documents.append_column("score", toxicity_scores["toxicity"]).append_column(
        "status", toxicity_scores["toxicity_status"]
    )


def build_toxicity_rows(scored_documents: pa.Table, quantiles: Sequence[float]) -> list[Row]:
    """Build the rows of the ``toxicity`` table."""
    rows: list[Row] = []
    for source, scores in iter_values_overall_and_by_source(scored_documents, "score"):
        counts = {
            "scored_documents": len(scores) - scores.null_count,
            "unscored_documents": scores.null_count,
        }
        for quantile, score in _compute_quantiles(scores, quantiles):
            rows.append({"source": source, **counts, "quantile": quantile, "score": score})
    return rows


def count_ledger_reasons(stage_label: str, ledger: Table) -> pa.Table:
    """Build the rows of the ``ledger_summary`` table for one stage."""
    rows = ledger.read(["action", "reason", "source", "bytes_before", "bytes_after"])
    is_added = pc.equal(rows["action"], "added")
    sizes = pc.if_else(is_added, rows["bytes_after"], rows["bytes_before"])
    rows = rows.append_column("bytes", sizes)
    counts = rows.group_by(["action", "reason", "source"]).aggregate(
        [("bytes", "count"), ("bytes", "sum")]
    )
    counts = counts.rename_columns(["action", "reason", "source", "rows", "bytes"])
    return counts.append_column("stage", pa.array([stage_label] * len(counts), pa.string()))


def build_published_rule_rows(signals: Table) -> list[Row]:
    """Build the rows of the ``published_rules`` table from the signals of ``quality``."""
    rules = [
        (preset, *rule)
        for preset, preset_rules in PRESET_RULES.items()
        for rule in preset_rules.items()
    ]
    counts = np.zeros((len(rules), 2), np.int64)
    for batch in signals.iter_batches():
        for count, (_, name, rule) in zip(counts, rules, strict=True):
            violations = find_rule_violations(rule, batch[rule.get("signal", name)])
            count += pc.sum(violations).as_py() or 0, violations.null_count
    return [
        {
            "preset": preset,
            "rule": name,
            "documents": signals.row_count,
            "violations": violation_count,
            "undetermined": unknown_count,
        }
        for (preset, name, _), (violation_count, unknown_count) in zip(
            rules, counts.tolist(), strict=True
        )
    ]


def count_personal_data_by_type_and_source(ledger: Table) -> pa.Table:
    """Build the rows of the ``personal_data`` table from a ledger of ``redact_spans``."""
    rows = ledger.read(["doc_id", "source", "action", "reason"])
    rows = rows.filter(pc.is_in(rows["reason"], value_set=pa.array(PERSONAL_DATA_TYPES)))
    for name, actions in (
        ("spans", ["replaced", "removed_span"]),
        ("removed_documents", ["removed", "additional_reason"]),
    ):
        has_action = pc.is_in(rows["action"], value_set=pa.array(actions))
        rows = rows.append_column(name, has_action.cast(pa.int64()))
    counts = rows.group_by(["reason", "source"]).aggregate(
        [("spans", "sum"), ("doc_id", "count_distinct"), ("removed_documents", "sum")]
    )
    return counts.rename_columns(["type", "source", "spans", "documents", "removed_documents"])


def count_pairs_by_similarity(stage_label: str, pairs: Table) -> pa.Table:
    """Build the rows of the ``duplicates`` table for one stage, in buckets 0.05 wide."""
    similarity = pairs.read(["similarity"])["similarity"].to_numpy().astype(np.float64)
    # 1e-6 corrects rounding, which would put 0.85 into the bucket below.
    buckets, pair_counts = np.unique(np.floor(similarity * 20 + 1e-6), return_counts=True)
    return pa.table(
        {
            "stage": [stage_label] * len(pair_counts),
            "pairs": pair_counts,
            "similarity": buckets / 20,
        }
    )


def count_canaries_by_kind_and_copies(canaries: pa.Table) -> pa.Table:
    """Build the rows of the ``canaries`` table."""
    sizes = pc.multiply(count_utf8_bytes(canaries["text"]), canaries["copies"].cast(pa.int64()))
    rows = canaries.select(["kind", "copies"]).append_column("bytes", sizes)
    counts = rows.group_by(["kind", "copies"]).aggregate([("bytes", "count"), ("bytes", "sum")])
    counts = counts.rename_columns(["kind", "copies", "canaries", "bytes"])
    documents = pc.multiply(counts["canaries"], counts["copies"].cast(pa.int64()))
    return counts.append_column("documents", documents)


def merge_partition_metadata(results: Sequence[ItemResult]) -> MetadataCounts:
    """Add up the spilled metadata counts of all partitions, one after the other."""
    counts = MetadataCounts.merge([])
    for result in results:
        partition_counts = MetadataCounts(
            result.open_spilled_table("metadata_fields", FIELD_COUNTS),
            result.open_spilled_table("metadata_values", VALUE_COUNTS),
        )
        counts = MetadataCounts.merge([counts, partition_counts])
    return counts


def iter_account_tables(corpus_artifacts: dict[str, Artifact]) -> Iterator[pa.Table]:
    """Yield the rows of the ``stage_accounts`` table for each stage that has accounts."""
    for stage_number, (stage_label, artifact) in enumerate(corpus_artifacts.items()):
        if "accounts" in artifact.tables:
            accounts = artifact["accounts"].read()
            accounts = accounts.append_column(
                "stage_index", pa.array([stage_number] * len(accounts), pa.int32())
            )
            yield accounts.append_column(
                "stage", pa.array([stage_label] * len(accounts), pa.string())
            )


@stage(
    name="profile",
    tables=TABLES,
    extra_code=[
        "tasks/measures/data/identities.json",
        "tasks/measures/data/occupations.json",
        "tasks/measures/data/swaps.json",
    ],
    libraries=["numpy", "scipy"],
    external_digests=lambda config, secret_id: scorer_versions(SENTIMENT_SCORER),
    determinism="machine",
    reads={
        "corpus_artifacts": (
            "accounts",
            "documents",
            "errors",
            "ledger",
            "lexicons",
            "pairs",
            "signals",
            "sources",
        ),
        "earlier_corpora": ("signals", "sources"),
    },
)
def profile_corpus(
    documents: Table,
    canaries: Table,
    corpus_artifacts: dict[str, Artifact],
    earlier_corpora: dict[str, Artifact],
    config: ProfileConfig,
    context: StageContext,
) -> None:
    """Compute all figures of the corpus.

    Figures about stages describe the last addition to the corpus; figures about documents describe
    the whole corpus. Memory: about 80 bytes per document (id, source, split, lengths, toxicity),
    400 bytes per distinct domain, and the sentences about groups.

    Args:
        corpus_artifacts: Artifacts of the corpus stages by label, in the order they ran.
        earlier_corpora: Artifacts of ingest, language and identities from the earlier additions.
    """
    artifacts = {**earlier_corpora, **corpus_artifacts}
    language_signals = find_signals(artifacts, "language")
    aligned_partitions = align_parts(documents, *([language_signals] if language_signals else []))
    user_lexicons = load_user_lexicons(corpus_artifacts)
    results = context.map_items(
        profile_partition,
        aligned_partitions,
        read_licences_by_source(artifacts),
        user_lexicons,
        config,
    )
    search_results: list[ItemResult] = []
    identity_signals = find_signals(artifacts, "identities")
    if identity_signals and language_signals:
        search_results = context.map_items(
            draw_group_sentences,
            align_parts(documents, identity_signals, language_signals),
            plan_sentence_draw(identity_signals, config.max_sentiment_sentences_per_group),
            user_lexicons,
        )
    # A document may fail in the count and in the search.
    failures = {
        failure[0]: failure for result in [*results, *search_results] for failure in result.value
    }
    report_failures(context, [list(failures.values())], documents.row_count, "the word count")
    document_sizes = concat_spilled_tables(results, "document_sizes", _DOCUMENT_SIZES)
    grouped_terms = concat_spilled_tables(results, "identities", TABLES["identities"]).group_by(
        ["group_name", "term", "source"]
    )
    term_counts = grouped_terms.aggregate([("mentions", "sum"), ("documents", "sum")])

    def write_table(name: str, rows: pa.Table | list[Row]) -> None:
        schema = TABLES[name]
        if isinstance(rows, list):
            rows = pa.Table.from_pylist(rows, schema=schema)
        sort_keys = [
            (column_name, "ascending")
            for column_name in schema.names
            if schema.field(column_name).type == pa.string()
        ]
        sort_keys += [
            (column_name, "ascending")
            for column_name in ("copies", "similarity", "quantile", "sentiment")
            if column_name in schema.names
        ]
        context.get_table_writer(name).write(
            rows.sort_by(sort_keys) if name != "stage_accounts" else rows
        )

    write_table("sources", summarise_sizes_by_source_and_split(document_sizes))
    write_table("lengths", build_length_rows(document_sizes, config.quantiles))
    write_table("identities", term_counts.rename_columns(TABLES["identities"].names))
    composition_counts = concat_spilled_tables(results, "composition", COUNTS_SCHEMA)
    write_table(
        "composition", build_composition_rows(composition_counts, config.max_composition_values)
    )
    metadata_counts = merge_partition_metadata(results)
    write_table("metadata_fields", metadata_counts.build_field_rows())
    write_table("metadata_values", metadata_counts.build_value_rows(config.max_composition_values))
    write_table(
        "occupations",
        build_occupation_rows(concat_spilled_tables(results, "occupations", OCCUPATION_COUNTS)),
    )
    summary_rows, sentence_rows = build_sentiment_rows(
        concat_spilled_tables(search_results, "drawn", DRAWN_SENTENCES_SCHEMA),
        user_lexicons,
        config.max_sentiment_sentences_per_group,
    )
    write_table("group_sentiment", summary_rows)
    write_table("group_sentences", sentence_rows)
    write_table(
        "canaries", count_canaries_by_kind_and_copies(canaries.read(["kind", "copies", "text"]))
    )
    for accounts in iter_account_tables(corpus_artifacts):
        write_table("stage_accounts", accounts)
    for stage_label, artifact in corpus_artifacts.items():
        tables = artifact.tables
        if "ledger" in tables:
            write_table("ledger_summary", count_ledger_reasons(stage_label, tables["ledger"]))
        if "pairs" in tables:
            write_table("duplicates", count_pairs_by_similarity(stage_label, tables["pairs"]))
        if "errors" in tables:
            write_table("errors", tables["errors"].read())
        if artifact.stage == "select":
            write_table("tag_counts", build_tag_count_rows(stage_label, artifact))
        if artifact.stage == "quality":
            write_table("published_rules", build_published_rule_rows(tables["signals"]))
        if artifact.stage == "redact_spans":
            write_table("personal_data", count_personal_data_by_type_and_source(tables["ledger"]))
        if artifact.stage == "score_toxicity":
            scored_documents = join_toxicity_decisions(
                tables["signals"], corpus_artifacts.get("select_scored")
            )
            write_table("toxicity", build_toxicity_rows(scored_documents, config.quantiles))
            status_counts = scored_documents.group_by(["source", "status", "reason"]).aggregate(
                [("doc_id", "count")]
            )
            column_names = {"doc_id_count": "documents"}
            write_table("toxicity_status", status_counts.rename_columns(column_names))
