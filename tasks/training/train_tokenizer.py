"""Train a byte-level tokenizer on the train split: BPE, WordPiece or Unigram.

All 256 bytes are tokens, so every text can be encoded and decodes to itself. The tokens depend only
on word counts, not on the order or the batches of the texts; see `subword_tokenizers`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID
from hallmark.tasks.contract import (
    HallmarkError,
    StageConfig,
    StageContext,
    Table,
    column,
    count_utf8_bytes,
    stage,
    table_schema,
)
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_with_failing_texts_emptied,
)
from hallmark.tasks.measures.languages import detect_languages
from hallmark.tasks.training.encoding import load_tokenizer, split_long_text
from hallmark.tasks.training.subword_tokenizers import (
    BYTE_COUNT,
    train_bpe_tokenizer,
    train_unigram_tokenizer,
    train_wordpiece_tokenizer,
)
from hallmark.tasks.training.validation_groups import iter_validation_batches

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_TOKENS = {"<|endoftext|>": END_OF_TEXT_ID, "<|pad|>": PAD_ID}

#: Objectives that need additional special tokens, see `list_special_tokens`.
OBJECTIVES_WITH_SPECIAL_TOKENS = {"mlm", "span_corruption"}


class TokenizerConfig(StageConfig):
    """Settings of the tokenizer."""

    kind: Literal["bpe", "wordpiece", "unigram"] = Field(
        "bpe",
        description="algorithm that builds the vocabulary; all available algorithms are byte-level",
    )
    vocab_size: int = Field(
        4096,
        ge=BYTE_COUNT + len(SPECIAL_TOKENS) + 32,
        le=1_000_000,
        description="maximum number of tokens in the vocabulary; with a small corpus, the "
        "vocabulary can be smaller",
    )
    min_frequency: int = Field(
        2,
        ge=1,
        description="minimum number of occurrences at which a pair of tokens is merged; has no "
        "effect with the kind 'unigram'",
    )
    objective: Literal["causal", "prefix", "mlm", "span_corruption"] = Field(
        "causal",
        description="training objective of the model; it determines which special tokens the "
        "vocabulary needs",
    )
    sentinels: int = Field(
        32,
        ge=2,
        le=100_000,
        description="number of special tokens that can replace hidden spans with the objective "
        "'span_corruption': 32 are sufficient for sequences of 649 tokens, 51 for sequences of "
        "1,024 tokens",
    )

    @model_validator(mode="after")
    def _check_vocab_size(self) -> TokenizerConfig:
        special_count = len(list_special_tokens(self))
        if self.vocab_size < special_count + BYTE_COUNT:
            raise ValueError(
                f"'vocab_size' is {self.vocab_size}, but must be at least "
                f"{special_count + BYTE_COUNT}: one token for each of the {special_count} special "
                f"tokens and each of the {BYTE_COUNT} byte values"
            )
        min_vocab_size = special_count + 2 * BYTE_COUNT
        if self.kind == "wordpiece" and self.vocab_size < min_vocab_size:
            raise ValueError(
                f"'vocab_size' is {self.vocab_size}, but must be at least {min_vocab_size} for "
                "the kind 'wordpiece', which needs two tokens for each byte value: one at the "
                "beginning of a word and one inside a word"
            )
        return self


def list_special_tokens(config: TokenizerConfig) -> list[str]:
    """Return the special tokens in the order of their ids; `model/objectives.py` uses them."""
    objective_tokens = {
        "mlm": ["<|mask|>"],
        "span_corruption": [f"<|sentinel_{i}|>" for i in range(config.sentinels)],
    }
    return [*SPECIAL_TOKENS, *objective_tokens.get(config.objective, [])]


FERTILITY = table_schema(
    "Compression for each source, language and identity group, measured on the validation split, "
    "which was not used to train the tokenizer. Fewer bytes per token mean worse compression.",
    column("kind", pa.string(), "label", "source, language or identity"),
    column(
        "name",
        pa.string(),
        "label",
        "name of the source, the estimated language (may be undetermined), or the identity group "
        "that the documents mention",
    ),
    column(
        "documents",
        pa.int64(),
        "figure",
        "number of documents in the source, language or identity group",
        unit="documents",
    ),
    column(
        "bytes",
        pa.int64(),
        "figure",
        "total length, in UTF-8 bytes, of the documents in the source, language or identity group",
        unit="bytes",
    ),
    column(
        "tokens",
        pa.int64(),
        "figure",
        "total length, in tokens, of the documents in the source, language or identity group",
        unit="tokens",
    ),
    column(
        "bytes_per_token",
        pa.float64(),
        "figure",
        "mean number of bytes per token",
        unit="bytes per token",
    ),
)


def train_tokenizer_by_kind(
    text_batches: Iterator[list[str]], config: TokenizerConfig
) -> Tokenizer:
    """Train a tokenizer of the configured kind on batches of texts."""
    special_tokens = list_special_tokens(config)
    match config.kind:
        case "bpe":
            tokenizer = train_bpe_tokenizer(
                text_batches, config.vocab_size, config.min_frequency, special_tokens
            )
        case "wordpiece":
            tokenizer = train_wordpiece_tokenizer(
                text_batches, config.vocab_size, config.min_frequency, special_tokens
            )
        case "unigram":
            tokenizer = train_unigram_tokenizer(text_batches, config.vocab_size, special_tokens)
    for token, token_id in SPECIAL_TOKENS.items():
        assert tokenizer.token_to_id(token) == token_id, f"{token} must have the id {token_id}"
    return tokenizer


def iter_training_texts(documents: Table) -> Iterator[list[str]]:
    """Yield texts of the train split without the planted documents.

    Copies of a canary would give it dedicated tokens. The extraction audit only compares like with
    like if a secret is tokenized the same way whether it was planted 64 times or never.
    """
    for batch in documents.iter_batches(["source", "text", "split"]):
        is_planted = pc.starts_with(batch["source"], "planted/")
        is_selected = pc.and_not(pc.equal(batch["split"], "train"), is_planted)
        texts = batch["text"].filter(is_selected)
        if len(texts):
            yield [piece for text in texts.to_pylist() for piece in split_long_text(text)]


def measure_languages_and_lengths(documents: pa.RecordBatch, tokenizer: Tokenizer) -> pa.Table:
    """Measure language, bytes and tokens of each document."""
    encodings = tokenizer.encode_batch_fast(documents["text"].to_pylist(), add_special_tokens=False)
    return pa.table(
        {
            "language": detect_languages(documents["text"]),
            "bytes": count_utf8_bytes(documents["text"]),
            "tokens": pa.array([len(encoding) for encoding in encodings], pa.int64()),
        }
    )


class FertilityResult(NamedTuple):
    """How a tokenizer encodes the validation split.

    Attributes:
        fertility: Rows of FERTILITY.
        failures: Documents that could not be encoded; the rows do not include them.
    """

    fertility: pa.Table
    failures: FailureList


def compute_fertility(
    documents: Table, identity_signals: Table | None, tokenizer: Tokenizer
) -> FertilityResult:
    """Compute the fertility of the validation split."""
    group_tables = []
    failures: FailureList = []
    for validation_batch, group_names, document_indices in iter_validation_batches(
        documents, identity_signals, ["source", "text"]
    ):
        measurements, failed_rows = run_with_failing_texts_emptied(
            partial(measure_languages_and_lengths, tokenizer=tokenizer), validation_batch
        )
        failures += list_failures_by_doc_id(validation_batch, failed_rows)
        is_measured = pc.invert(
            pc.is_in(pa.array(range(len(measurements)), pa.int64()), failed_rows.rows)
        )
        is_measured_mention = is_measured.take(document_indices)
        sizes = measurements.select(["bytes", "tokens"])
        measured_sizes = sizes.filter(is_measured)
        group_tables.append(
            _add_group_columns(
                "source", validation_batch["source"].filter(is_measured), measured_sizes
            )
        )
        group_tables.append(
            _add_group_columns(
                "language", measurements["language"].filter(is_measured), measured_sizes
            )
        )
        group_tables.append(
            _add_group_columns(
                "identity",
                group_names.filter(is_measured_mention),
                sizes.take(document_indices).filter(is_measured_mention),
            )
        )
    if not group_tables:
        return FertilityResult(FERTILITY.empty_table(), failures)
    sums = (
        pa.concat_tables(group_tables)
        .group_by(["kind", "name"])
        .aggregate([("bytes", "count"), ("bytes", "sum"), ("tokens", "sum")])
    )
    sums = sums.sort_by([("kind", "descending"), ("name", "ascending")])
    bytes_per_token = pc.divide(sums["bytes_sum"].cast(pa.float64()), sums["tokens_sum"])
    columns = ["kind", "name", "bytes_count", "bytes_sum", "tokens_sum"]
    fertility = pa.table([*sums.select(columns).columns, bytes_per_token], schema=FERTILITY)
    return FertilityResult(fertility, failures)


def _add_group_columns(kind: str, names: pa.Array, sizes: pa.Table) -> pa.Table:
    kinds = pa.array([kind] * len(sizes), pa.string())
    return sizes.add_column(0, "kind", kinds).add_column(1, "name", names.cast(pa.string()))


@stage(
    name="train_tokenizer",
    tables={"fertility": FERTILITY},
    libraries=["confusable-homoglyphs", "py3langid", "sentencepiece", "tokenizers"],
    determinism="exact",
)
def train_tokenizer(
    documents: Table, signals: Table | None, config: TokenizerConfig, context: StageContext
) -> None:
    """Train the tokenizer and measure its fertility.

    Args:
        documents: Documents with splits.
        signals: Output of the `identities` stage; None gives no results by group.
        config: Settings of the tokenizer.
        context: Context of the stage.

    Raises:
        HallmarkError: The train split is empty.
    """
    text_batches = iter_training_texts(documents)
    first_batch = next(text_batches, None)
    if first_batch is None:
        raise HallmarkError(
            "the 'train' split has no documents to train a tokenizer on; ingest more text, relax "
            "the rules in select_scored.rules, or lower split.validation_share or "
            "split.holdout_share"
        )

    def iter_reporting_progress() -> Iterator[list[str]]:
        document_count = 0
        for batch in itertools.chain([first_batch], text_batches):
            document_count += len(batch)
            context.report_progress(document_count, documents.row_count, "documents")
            yield batch

    tokenizer = train_tokenizer_by_kind(iter_reporting_progress(), config)
    tokenizer_path = context.prepare_output_path("tokenizer.json")
    tokenizer.save(str(tokenizer_path))
    result = compute_fertility(documents, signals, load_tokenizer(tokenizer_path))
    context.get_table_writer("fertility").write(result.fertility)
    report_failures(
        context, [result.failures], documents.row_count, "the measurement of the tokenizer"
    )
    context.record_measurement("vocabulary", tokenizer.get_vocab_size(), "tokens")
