"""Define the tables of the profile."""

from __future__ import annotations

import pyarrow as pa

from hallmark.tasks.contract import ACCOUNTS, column, table_schema
from hallmark.tasks.corpus.profiles.composition import DIMENSIONS
from hallmark.tasks.corpus.profiles.metadata_counts import (
    MAX_DISTINCT_VALUES,
    MIN_VALUE_DOCUMENTS,
)
from hallmark.tasks.corpus.profiles.source_columns import SOURCE_COLUMNS
from hallmark.tasks.corpus.table_columns import (
    make_count_column,
    make_float_column,
    make_label_column,
)

_SOURCE_COLUMN = make_label_column("source", "name of the source")
_SOURCE_OR_ALL_COLUMN = make_label_column("source", "name of the source; empty: all sources")
_STAGE_COLUMN = make_label_column("stage", "label of the stage in the run")
_QUANTILE_COLUMN = make_float_column(
    "quantile", "share of documents with at most this value", "share"
)

TABLES = {
    "stage_accounts": table_schema(
        "Document counts and text sizes of every stage (accounts), in the order in which "
        "the stages ran.",
        column("stage_index", pa.int32(), "figure", "position of the stage, from 0"),
        _STAGE_COLUMN,
        *ACCOUNTS,
    ),
    "sources": table_schema(
        "Size of the corpus by source and split.",
        _SOURCE_COLUMN,
        make_label_column("split", "train, validation or holdout"),
        make_count_column("documents", "number of documents", "documents"),
        *(make_count_column(each.name, each.meaning, each.unit) for each in SOURCE_COLUMNS),
        make_float_column("mean_bytes", "mean size of a document", "bytes"),
        make_float_column("median_bytes", "median size of a document", "bytes"),
    ),
    "lengths": table_schema(
        "Quantiles of the lengths of documents.",
        _SOURCE_OR_ALL_COLUMN,
        _QUANTILE_COLUMN,
        make_float_column("bytes", "UTF-8 bytes of the text", "bytes"),
    ),
    "composition": table_schema(
        "Composition of the corpus by dimension and split.",
        make_label_column("dimension", f"one of {', '.join(DIMENSIONS)}"),
        make_label_column(
            "value",
            "value of the dimension: one of those with the most bytes; other: all other "
            "values; unknown: the source or the stage language gives no value. A licence "
            "is that of the document or, if it has none, that of its source",
        ),
        make_label_column("split", "train, validation or holdout; empty: all splits"),
        make_count_column("documents", "number of documents", "documents"),
        make_count_column("bytes", "UTF-8 bytes of their text", "bytes"),
        make_float_column(
            "byte_share", "share of the bytes of the split; null if the split is empty", "share"
        ),
    ),
    "metadata_fields": table_schema(
        "Fields of metadata that the sources give for documents.",
        make_label_column("field", "name of the field"),
        make_count_column("documents", "documents that have it", "documents"),
        make_count_column(
            "distinct_values",
            "number of distinct values; null for free text, which has more than "
            f"{MAX_DISTINCT_VALUES:,}",
            "values",
        ),
    ),
    "metadata_values": table_schema(
        f"The most frequent values of fields that are not free text. Licences are always counted, "
        f"other values only if at least {MIN_VALUE_DOCUMENTS} documents have them.",
        make_label_column("field", "name of the field"),
        make_label_column("value", "the value according to the source"),
        make_count_column("documents", "documents that have it", "documents"),
    ),
    "occupations": table_schema(
        "Mentions of occupations by the gendered words near them in the sentence.",
        _SOURCE_OR_ALL_COLUMN,
        make_label_column("occupation", "occupation in the singular; empty: all occupations"),
        make_count_column("mentions", "mentions of the occupation", "mentions"),
        make_count_column(
            "women_words", "number of women's words near a mention: she, her, woman …", "words"
        ),
        make_count_column(
            "men_words", "number of men's words near a mention: he, his, man …", "words"
        ),
        make_count_column(
            "women_mentions",
            "mentions with more women's than men's words near them",
            "mentions",
        ),
        make_count_column(
            "men_mentions", "mentions with more men's than women's words near them", "mentions"
        ),
        make_float_column(
            "women_share",
            "women_mentions / (women_mentions + men_mentions); null without either",
            "share",
        ),
        make_float_column(
            "low",
            "lower end of the 95 % interval of women_share (Wilson); the interval is too "
            "narrow if one text has several mentions",
            "share",
        ),
        make_float_column("high", "upper end of the interval", "share"),
    ),
    "ledger_summary": table_schema(
        "What was removed, changed or added, and why.",
        _STAGE_COLUMN,
        make_label_column(
            "action", "removed, additional_reason, removed_span, replaced, quarantined or added"
        ),
        make_label_column("reason", "reason in the ledger"),
        _SOURCE_COLUMN,
        make_count_column("rows", "number of ledger rows", "rows"),
        make_count_column("bytes", "bytes removed, changed or added", "bytes"),
    ),
    "tag_counts": table_schema(
        "Documents that a rule tagged and kept.",
        _STAGE_COLUMN,
        make_label_column("rule", "name of the rule, which is also the tag"),
        _SOURCE_COLUMN,
        make_count_column("documents", "documents that the stage kept", "documents"),
        make_count_column("tagged_documents", "kept documents that the rule tagged", "documents"),
    ),
    "published_rules": table_schema(
        "What each published quality rule would remove, even if the config does not use it.",
        make_label_column("preset", "set of published rules"),
        make_label_column("rule", "name of the rule"),
        make_count_column("documents", "documents that reached the stage quality", "documents"),
        make_count_column("violations", "documents that break the rule", "documents"),
        make_count_column(
            "undetermined", "documents for which the rule could not be evaluated", "documents"
        ),
    ),
    "personal_data": table_schema(
        "Personal data that was masked, cut out or removed with its document by the "
        "policies of redact_spans. Personal data for which a policy is keep is only in the "
        "spans of find_personal_data.",
        make_label_column("type", "type of personal data or credential"),
        _SOURCE_COLUMN,
        make_count_column("spans", "spans that were masked or cut out", "spans"),
        make_count_column(
            "documents", "documents with such spans, or removed because of them", "documents"
        ),
        make_count_column("removed_documents", "documents removed because of them", "documents"),
    ),
    "toxicity": table_schema(
        "Quantiles of the toxicity of documents before the filter.",
        _SOURCE_OR_ALL_COLUMN,
        make_count_column("scored_documents", "documents with a score", "documents"),
        make_count_column(
            "unscored_documents", "documents without a score, see toxicity_status", "documents"
        ),
        _QUANTILE_COLUMN,
        make_float_column("score", "toxicity score", "score"),
    ),
    "toxicity_status": table_schema(
        "Documents by the status of their toxicity score and by the decision of the rules.",
        _SOURCE_COLUMN,
        make_label_column(
            "status",
            "scored, or the reason why there is no score; see the signals of score_toxicity",
        ),
        make_label_column(
            "reason", "reason for which select_scored removed the documents; empty: they were kept"
        ),
        make_count_column("documents", "number of documents", "documents"),
    ),
    "identities": table_schema(
        "Mentions of people: whole words of a short list and of the lexicons in identities.",
        make_label_column("group_name", "identity group"),
        make_label_column("term", "word of the list"),
        _SOURCE_COLUMN,
        make_count_column("mentions", "mentions of the word", "mentions"),
        make_count_column("documents", "documents with at least one mention", "documents"),
    ),
    "duplicates": table_schema(
        "Pairs of near copies by similarity.",
        _STAGE_COLUMN,
        make_count_column("pairs", "pairs whose similarity was computed", "pairs"),
        make_float_column("similarity", "lower end of a range of 0.05", "share"),
    ),
    "errors": table_schema(
        "Records that could not be read, by error.",
        _SOURCE_COLUMN,
        column("error", pa.string(), "project text", "reason why the records could not be read"),
        make_count_column("records", "number of records", "records"),
        make_count_column("raw_bytes", "raw bytes of these records", "bytes"),
    ),
    "canaries": table_schema(
        "Canaries by kind and number of copies.",
        make_label_column("kind", "canary, passage, record or association"),
        make_count_column(
            "copies", "number of copies of each canary; 0: never planted, as a control", "documents"
        ),
        make_count_column("canaries", "distinct canaries", "canaries"),
        make_count_column("documents", "planted documents", "documents"),
        make_count_column("bytes", "UTF-8 bytes of their text", "bytes"),
    ),
}
