"""The tables of the profile: which figures of the corpus it holds."""

from __future__ import annotations

import pyarrow as pa

from tasks.contract import ACCOUNTS, column, table


def label(name: str, meaning: str) -> pa.Field:
    return column(name, pa.string(), "label", meaning)


def count(name: str, meaning: str, unit: str) -> pa.Field:
    return column(name, pa.int64(), "figure", meaning, unit=unit)


def measure(name: str, meaning: str, unit: str) -> pa.Field:
    return column(name, pa.float64(), "figure", meaning, unit=unit)


_SOURCE = label("source", "name of the source")
_OR_ALL = label("source", "name of the source; empty: all sources together")
_STAGE = label("stage", "label of the stage in the run")
_QUANTILE = measure("quantile", "share of the documents that are at most this", "share")

TABLES = {
    "flow": table(
        "The accounts of every stage, in the order in which they ran.",
        column("order", pa.int32(), "figure", "place of the stage, from 0"),
        _STAGE,
        *ACCOUNTS,
    ),
    "sources": table(
        "Size of the corpus by source and split.",
        _SOURCE,
        label("split", "train, validation or holdout"),
        count("documents", "documents", "documents"),
        count("bytes", "UTF-8 bytes of their text", "bytes"),
        count("characters", "characters of their text", "characters"),
        measure("mean_bytes", "mean size of a document", "bytes"),
        measure("median_bytes", "median size of a document", "bytes"),
    ),
    "lengths": table(
        "Quantiles of the documents' lengths.",
        _OR_ALL,
        _QUANTILE,
        measure("bytes", "UTF-8 bytes of the text", "bytes"),
    ),
    "composition": table(
        "What the corpus is composed of, by dimension and split.",
        label("dimension", "source, domain, licence, language, length or year"),
        label(
            "value",
            "of the largest by bytes its name; other: the rest; unknown: the source, or the stage "
            "language, says nothing of it",
        ),
        label("split", "train, validation or holdout; empty: all of them together"),
        count("documents", "documents", "documents"),
        count("bytes", "UTF-8 bytes of their text", "bytes"),
        measure("share", "these bytes of those of the split; null where it has none", "share"),
    ),
    "occupations": table(
        "Occupations beside gendered words: mentions by the words near them in their sentence.",
        _OR_ALL,
        label("occupation", "in the singular; empty: all occupations together"),
        count("mentions", "how often it is mentioned", "mentions"),
        count("women_words", "words of women beside a mention: she, her, woman …", "words"),
        count("men_words", "words of men beside a mention: he, his, man …", "words"),
        count("women", "mentions with more words of women than of men beside them", "mentions"),
        count("men", "mentions with more words of men", "mentions"),
        measure("share", "women of women and men; null where there are neither", "share"),
        measure(
            "low",
            "lower end of its interval, 95 % (Wilson); too narrow where one text has "
            "several mentions",
            "share",
        ),
        measure("high", "upper end", "share"),
    ),
    "reasons": table(
        "What left, changed or was added, and why.",
        _STAGE,
        label("action", "removed, also, removed_span, replaced, quarantined or added"),
        label("reason", "why, as the ledger says"),
        _SOURCE,
        count("rows", "rows of the ledger", "rows"),
        count("bytes", "what left or changed, or was added", "bytes"),
    ),
    "tagged": table(
        "Documents that a rule tagged and kept.",
        _STAGE,
        label("rule", "name of the rule, which is the tag"),
        _SOURCE,
        count("documents", "documents that the stage kept", "documents"),
        count("tagged", "of these, those that the rule tagged", "documents"),
    ),
    "published_rules": table(
        "What each published rule of quality would take, whether it was asked for or not.",
        label("preset", "the rules it is of"),
        label("rule", "its name"),
        count("documents", "documents that came to the stage quality", "documents"),
        count("broken", "those that break it", "documents"),
        count("unknown", "those of which it cannot be told", "documents"),
    ),
    "personal_data": table(
        "Personal data that was masked, cut out or left out with its document, as the policies of "
        "scrub say; what they keep stands in no ledger, but among the spans of its finder.",
        label("type", "type of personal data or credential"),
        _SOURCE,
        count("spans", "spans of it that were masked or cut out", "spans"),
        count("documents", "documents in which any was, or which left for it", "documents"),
        count("left", "documents that left for it", "documents"),
    ),
    "toxicity": table(
        "Quantiles of the documents' toxicity before the filter.",
        _OR_ALL,
        count("n", "documents that were scored", "documents"),
        count("unscored", "documents that have no score, see toxicity_status", "documents"),
        _QUANTILE,
        measure("score", "toxicity", "score"),
    ),
    "toxicity_status": table(
        "What is known of the documents' toxicity, and what the rules made of that.",
        _SOURCE,
        label("status", "scored, or why not, see the signals of score_toxicity"),
        label("reason", "why select_scored removed them, empty if it kept them"),
        count("documents", "documents", "documents"),
    ),
    "identities": table(
        "Mentions of people: whole words of a short list, and of the lexicons named in identities.",
        label("group", "identity group"),
        label("term", "a word of the list"),
        _SOURCE,
        count("mentions", "how often it stands there", "mentions"),
        count("documents", "documents with at least one", "documents"),
    ),
    "duplicates": table(
        "Pairs of near-copies by their similarity.",
        _STAGE,
        count("pairs", "verified pairs", "pairs"),
        measure("similarity", "lower edge of a bucket 0.05 wide", "share"),
    ),
    "errors": table(
        "What could not be read, counted by its error.",
        _SOURCE,
        column("error", pa.string(), "project text", "why it could not be read"),
        count("records", "records", "records"),
        count("bytes", "raw bytes of them", "bytes"),
    ),
    "plants": table(
        "What was planted, by kind and number of copies.",
        label("kind", "canary, passage, record or association"),
        count("copies", "copies of each; 0: never planted, the control", "documents"),
        count("plants", "different plants", "plants"),
        count("documents", "planted documents", "documents"),
        count("bytes", "UTF-8 bytes of their text", "bytes"),
    ),
}
