"""The tables of the profile: which figures of the corpus it holds."""

from __future__ import annotations

import pyarrow as pa

from hallmark.tasks.contract import ACCOUNTS, column, table_schema


def make_label_column(name: str, meaning: str) -> pa.Field:
    return column(name, pa.string(), "label", meaning)


def make_count_column(name: str, meaning: str, unit: str) -> pa.Field:
    return column(name, pa.int64(), "figure", meaning, unit=unit)


def make_float_column(name: str, meaning: str, unit: str) -> pa.Field:
    return column(name, pa.float64(), "figure", meaning, unit=unit)


_SOURCE_COLUMN = make_label_column("source", "name of the source")
_SOURCE_OR_ALL_COLUMN = make_label_column(
    "source", "name of the source; empty: all sources together"
)
_STAGE_COLUMN = make_label_column("stage", "label of the stage in the run")
_QUANTILE_COLUMN = make_float_column(
    "quantile", "share of the documents that are at most this", "share"
)

TABLES = {
    "stage_accounts": table_schema(
        "The accounts of every stage, in the order in which they ran.",
        column("stage_index", pa.int32(), "figure", "place of the stage, from 0"),
        _STAGE_COLUMN,
        *ACCOUNTS,
    ),
    "sources": table_schema(
        "Size of the corpus by source and split.",
        _SOURCE_COLUMN,
        make_label_column("split", "train, validation or holdout"),
        make_count_column("documents", "documents", "documents"),
        make_count_column("bytes", "UTF-8 bytes of their text", "bytes"),
        make_count_column("characters", "characters of their text", "characters"),
        make_float_column("mean_bytes", "mean size of a document", "bytes"),
        make_float_column("median_bytes", "median size of a document", "bytes"),
    ),
    "lengths": table_schema(
        "Quantiles of the documents' lengths.",
        _SOURCE_OR_ALL_COLUMN,
        _QUANTILE_COLUMN,
        make_float_column("bytes", "UTF-8 bytes of the text", "bytes"),
    ),
    "composition": table_schema(
        "What the corpus is composed of, by dimension and split.",
        make_label_column("dimension", "source, domain, licence, language, length or year"),
        make_label_column(
            "value",
            "of the largest by bytes its name; other: the rest; unknown: the source, or the stage "
            "language, says nothing of it",
        ),
        make_label_column("split", "train, validation or holdout; empty: all of them together"),
        make_count_column("documents", "documents", "documents"),
        make_count_column("bytes", "UTF-8 bytes of their text", "bytes"),
        make_float_column(
            "byte_share", "these bytes of those of the split; null where it has none", "share"
        ),
    ),
    "occupations": table_schema(
        "Occupations beside gendered words: mentions by the words near them in their sentence.",
        _SOURCE_OR_ALL_COLUMN,
        make_label_column("occupation", "in the singular; empty: all occupations together"),
        make_count_column("mentions", "how often it is mentioned", "mentions"),
        make_count_column(
            "women_words", "words of women beside a mention: she, her, woman …", "words"
        ),
        make_count_column("men_words", "words of men beside a mention: he, his, man …", "words"),
        make_count_column(
            "women_mentions",
            "mentions with more words of women than of men beside them",
            "mentions",
        ),
        make_count_column("men_mentions", "mentions with more words of men", "mentions"),
        make_float_column(
            "women_share", "women of women and men; null where there are neither", "women_share"
        ),
        make_float_column(
            "low",
            "lower end of its interval, 95 % (Wilson); too narrow where one text has "
            "several mentions",
            "share",
        ),
        make_float_column("high", "upper end", "share"),
    ),
    "ledger_summary": table_schema(
        "What left, changed or was added, and why.",
        _STAGE_COLUMN,
        make_label_column(
            "action", "removed, additional_reason, removed_span, replaced, quarantined or added"
        ),
        make_label_column("reason", "why, as the ledger says"),
        _SOURCE_COLUMN,
        make_count_column("rows", "rows of the ledger", "rows"),
        make_count_column("bytes", "what left or changed, or was added", "bytes"),
    ),
    "tag_counts": table_schema(
        "Documents that a rule tagged and kept.",
        _STAGE_COLUMN,
        make_label_column("rule", "name of the rule, which is the tag"),
        _SOURCE_COLUMN,
        make_count_column("documents", "documents that the stage kept", "documents"),
        make_count_column("tagged_documents", "of these, those that the rule tagged", "documents"),
    ),
    "published_rules": table_schema(
        "What each published rule of quality would take, whether it was asked for or not.",
        make_label_column("preset", "the rules it is of"),
        make_label_column("rule", "its name"),
        make_count_column("documents", "documents that came to the stage quality", "documents"),
        make_count_column("violations", "those that break it", "documents"),
        make_count_column("undetermined", "those of which it cannot be told", "documents"),
    ),
    "personal_data": table_schema(
        "Personal data that was masked, cut out or left out with its document, as the policies of "
        "redact_spans say; what they keep stands in no ledger, but among the spans of its finder.",
        make_label_column("type", "type of personal data or credential"),
        _SOURCE_COLUMN,
        make_count_column("spans", "spans of it that were masked or cut out", "spans"),
        make_count_column(
            "documents", "documents in which any was, or which left for it", "documents"
        ),
        make_count_column("removed_documents", "documents that left for it", "documents"),
    ),
    "toxicity": table_schema(
        "Quantiles of the documents' toxicity before the filter.",
        _SOURCE_OR_ALL_COLUMN,
        make_count_column("scored_documents", "documents that were scored", "documents"),
        make_count_column(
            "unscored_documents", "documents that have no score, see toxicity_status", "documents"
        ),
        _QUANTILE_COLUMN,
        make_float_column("score", "toxicity", "score"),
    ),
    "toxicity_status": table_schema(
        "What is known of the documents' toxicity, and what the rules made of that.",
        _SOURCE_COLUMN,
        make_label_column("status", "scored, or why not, see the signals of score_toxicity"),
        make_label_column("reason", "why select_scored removed them, empty if it kept them"),
        make_count_column("documents", "documents", "documents"),
    ),
    "identities": table_schema(
        "Mentions of people: whole words of a short list, and of the lexicons named in identities.",
        make_label_column("group_name", "identity group"),
        make_label_column("term", "a word of the list"),
        _SOURCE_COLUMN,
        make_count_column("mentions", "how often it stands there", "mentions"),
        make_count_column("documents", "documents with at least one", "documents"),
    ),
    "duplicates": table_schema(
        "Pairs of near-copies by their similarity.",
        _STAGE_COLUMN,
        make_count_column("pairs", "verified pairs", "pairs"),
        make_float_column("similarity", "lower edge of a bucket 0.05 wide", "share"),
    ),
    "errors": table_schema(
        "What could not be read, counted by its error.",
        _SOURCE_COLUMN,
        column("error", pa.string(), "project text", "why it could not be read"),
        make_count_column("records", "records", "records"),
        make_count_column("raw_bytes", "raw bytes of them", "bytes"),
    ),
    "canaries": table_schema(
        "What was planted, by kind and number of copies.",
        make_label_column("kind", "canary, passage, record or association"),
        make_count_column("copies", "copies of each; 0: never planted, the control", "documents"),
        make_count_column("canaries", "different plants", "canaries"),
        make_count_column("documents", "planted documents", "documents"),
        make_count_column("bytes", "UTF-8 bytes of their text", "bytes"),
    ),
}
