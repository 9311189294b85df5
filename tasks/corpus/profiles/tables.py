"""Define the tables of the profile."""

from __future__ import annotations

import pyarrow as pa

from hallmark.tasks.contract import ACCOUNTS, column, table_schema
from hallmark.tasks.corpus.profiles.composition import DIMENSIONS
from hallmark.tasks.corpus.profiles.group_sentiment import SENTIMENT_TABLES
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
_SOURCE_OR_ALL_COLUMN = make_label_column(
    "source", "source name; empty in rows that combine all sources"
)
_STAGE_COLUMN = make_label_column("stage", "stage label in the run")
_QUANTILE_COLUMN = make_float_column(
    "quantile",
    "quantile level: share of documents whose value is less than or equal to the quantile",
    "share",
)

TABLES = {
    "stage_accounts": table_schema(
        "Number of documents and bytes of text that each stage received, kept and removed. The "
        "stages are listed in the order in which they ran.",
        column("stage_index", pa.int32(), "figure", "position of the stage, starting at 0"),
        _STAGE_COLUMN,
        *ACCOUNTS,
    ),
    "sources": table_schema(
        "Size of the corpus by source and split.",
        _SOURCE_COLUMN,
        make_label_column("split", "train, validation or holdout"),
        make_count_column("documents", "number of documents", "documents"),
        *(make_count_column(each.name, each.meaning, each.unit) for each in SOURCE_COLUMNS),
        make_float_column("mean_bytes", "mean document size", "bytes"),
        make_float_column("median_bytes", "median document size", "bytes"),
    ),
    "lengths": table_schema(
        "Quantiles of document length, by source.",
        _SOURCE_OR_ALL_COLUMN,
        _QUANTILE_COLUMN,
        make_float_column("bytes", "length of the text in UTF-8 bytes", "bytes"),
    ),
    "composition": table_schema(
        "Number and size of documents for each split and each value of a dimension, such as "
        "language.",
        make_label_column("dimension", f"one of {', '.join(DIMENSIONS)}"),
        make_label_column(
            "value",
            "value of the dimension. The values with the most bytes are listed individually; "
            "`other` stands for all other values, and `unknown` for documents without a value. "
            "If a document does not specify a licence, the licence of its source is used",
        ),
        make_label_column(
            "split",
            "split name: train, validation or holdout; empty in rows that combine all splits",
        ),
        make_count_column("documents", "number of documents", "documents"),
        make_count_column("bytes", "total length of the documents in UTF-8 bytes", "bytes"),
        make_float_column(
            "byte_share",
            "bytes of documents with this value, as a share of all bytes in the split; null if "
            "the split is empty",
            "share",
        ),
    ),
    "metadata_fields": table_schema(
        "Metadata fields provided by the sources.",
        make_label_column("field", "field name"),
        make_count_column(
            "documents", "number of documents that have a value for the field", "documents"
        ),
        make_count_column(
            "distinct_values",
            "number of distinct values of the field; null for free text, that is, a field with "
            f"more than {MAX_DISTINCT_VALUES:,} distinct values",
            "values",
        ),
    ),
    "metadata_values": table_schema(
        "The most frequent values of metadata fields that are not free text. Licences are always "
        f"listed, other values only if at least {MIN_VALUE_DOCUMENTS} documents have them.",
        make_label_column("field", "field name"),
        make_label_column("value", "value of the field as provided by the source"),
        make_count_column(
            "documents", "number of documents that have a value for the field", "documents"
        ),
    ),
    "occupations": table_schema(
        "Number of mentions of each occupation, by gender of the nearby words in the same "
        "sentence.",
        _SOURCE_OR_ALL_COLUMN,
        make_label_column(
            "occupation", "occupation (singular); empty in rows that combine all occupations"
        ),
        make_count_column("mentions", "number of mentions of the occupation", "mentions"),
        make_count_column(
            "women_words", "number of feminine words (she, her, woman …) near mentions", "words"
        ),
        make_count_column(
            "men_words", "number of masculine words (he, his, man …) near mentions", "words"
        ),
        make_count_column(
            "women_mentions",
            "number of mentions with more feminine than masculine words nearby",
            "mentions",
        ),
        make_count_column(
            "men_mentions",
            "number of mentions with more masculine than feminine words nearby",
            "mentions",
        ),
        make_float_column(
            "women_share",
            "share of women: women_mentions / (women_mentions + men_mentions); null if both are 0",
            "share",
        ),
        make_float_column(
            "low",
            "lower end of the 95 % confidence interval of `women_share` (Wilson); the interval is "
            "too narrow if many mentions are in the same document",
            "share",
        ),
        make_float_column(
            "high", "upper end of the 95 % confidence interval of `women_share`", "share"
        ),
    ),
    "ledger_summary": table_schema(
        "Number and size of documents and spans removed, changed or added by each stage, by "
        "reason.",
        _STAGE_COLUMN,
        make_label_column(
            "action",
            "action recorded for the documents or spans: `removed`, `additional_reason`, "
            "`removed_span`, `replaced`, `quarantined` or `added`",
        ),
        make_label_column("reason", "reason recorded in the ledger"),
        _SOURCE_COLUMN,
        make_count_column("rows", "number of ledger rows", "rows"),
        make_count_column("bytes", "number of bytes removed, changed or added", "bytes"),
    ),
    "tag_counts": table_schema(
        "Number of documents that each rule tagged but did not remove.",
        _STAGE_COLUMN,
        make_label_column("rule", "rule name, which is also the tag name"),
        _SOURCE_COLUMN,
        make_count_column("documents", "number of documents that the stage kept", "documents"),
        make_count_column(
            "tagged_documents", "number of kept documents that the rule tagged", "documents"
        ),
    ),
    "published_rules": table_schema(
        "Number of documents that each published quality rule would remove, whether or not the "
        "config uses the rule.",
        make_label_column("preset", "name of the published rule set"),
        make_label_column("rule", "name of the rule"),
        make_count_column(
            "documents", "number of documents that reached the `quality` stage", "documents"
        ),
        make_count_column("violations", "number of documents that violate the rule", "documents"),
        make_count_column(
            "undetermined",
            "number of documents for which the rule could not be evaluated",
            "documents",
        ),
    ),
    "personal_data": table_schema(
        "Amount of personal data that the `redact_spans` stage masked, cut out or removed "
        "together with the document. Personal data with the action `keep` is not counted here; it "
        "is listed only in the spans of the `find_personal_data` stage.",
        make_label_column("type", "type of personal data or credential"),
        _SOURCE_COLUMN,
        make_count_column("spans", "number of spans that were masked or cut out", "spans"),
        make_count_column(
            "documents",
            "number of documents that were removed because of personal data, or in which spans "
            "were masked or cut out",
            "documents",
        ),
        make_count_column(
            "removed_documents",
            "number of documents that were removed because of personal data",
            "documents",
        ),
    ),
    "toxicity": table_schema(
        "Quantiles of document toxicity scores before the `select_scored` stage removed documents.",
        _SOURCE_OR_ALL_COLUMN,
        make_count_column("scored_documents", "number of documents with a score", "documents"),
        make_count_column(
            "unscored_documents",
            "number of documents without a score; see the `toxicity_status` table for the reasons",
            "documents",
        ),
        _QUANTILE_COLUMN,
        make_float_column("score", "toxicity score", "score"),
    ),
    "toxicity_status": table_schema(
        "Number of documents by toxicity score status and selection rule decision.",
        _SOURCE_COLUMN,
        make_label_column(
            "status",
            "`scored`, or the reason why the documents have no score, as in the signals of the "
            "`score_toxicity` stage",
        ),
        make_label_column(
            "reason",
            "reason why the `select_scored` stage removed the documents; empty if the documents "
            "were kept",
        ),
        make_count_column("documents", "number of documents", "documents"),
    ),
    "identities": table_schema(
        "Number of mentions of groups of people. A mention is an occurrence of a whole word from "
        "the built-in list or from a lexicon in `identities.lexicons`.",
        make_label_column("group_name", "identity group"),
        make_label_column("term", "mentioned word, from the built-in list or a lexicon"),
        _SOURCE_COLUMN,
        make_count_column("mentions", "number of occurrences of the word", "mentions"),
        make_count_column("documents", "number of documents in which the word occurs", "documents"),
    ),
    **SENTIMENT_TABLES,
    "duplicates": table_schema(
        "Number of near-duplicate pairs, by similarity.",
        _STAGE_COLUMN,
        make_count_column("pairs", "number of pairs whose similarity is in the range", "pairs"),
        make_float_column(
            "similarity", "lower end of the similarity range; each range is 0.05 wide", "share"
        ),
    ),
    "errors": table_schema(
        "Number and size of the records that could not be read, by source and error.",
        _SOURCE_COLUMN,
        column("error", pa.string(), "project text", "reason why the records could not be read"),
        make_count_column("records", "number of records", "records"),
        make_count_column(
            "raw_bytes", "total size of the unreadable records, in raw bytes", "bytes"
        ),
    ),
    "canaries": table_schema(
        "Number of planted canaries (test texts), by kind and number of copies.",
        make_label_column("kind", "canary, passage, record or association"),
        make_count_column(
            "copies",
            "number of copies of each canary; canaries with 0 copies were not planted and "
            "serve as controls",
            "documents",
        ),
        make_count_column("canaries", "number of distinct canaries", "canaries"),
        make_count_column("documents", "number of planted documents", "documents"),
        make_count_column("bytes", "total length of the documents in UTF-8 bytes", "bytes"),
    ),
}
