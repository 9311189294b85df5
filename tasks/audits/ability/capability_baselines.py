"""Train baselines for the capability audit and score its texts with them.

The baselines are a bigram model, a 5-gram model and, if configured, a small LSTM over the tokens of
a checkpoint, trained on a sample of the corpus's train split. They use the checkpoint's tokenizer
but not its weights, so all checkpoints of one training share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.audits.ability.baselines import NgramModel
from hallmark.tasks.audits.ability.capability_texts import (
    RANDOM_TEXT,
    TRAINING_TEXT,
    generate_random_texts,
    sample_split_documents,
)
from hallmark.tasks.audits.ability.minimal_pairs import (
    PAIRS,
    Baseline,
    build_minimal_pair_rows,
    generate_agreement_pairs,
    generate_garden_path_pairs,
    make_baseline_scorer,
)
from hallmark.tasks.audits.audit_tables import HELD_OUT_TEXT
from hallmark.tasks.audits.audited_models.audited_tokenizer import METADATA_FILES, AuditedTokenizer
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    Seed,
    StageConfig,
    StageContext,
    Table,
    column,
    count_utf8_bytes,
    stage,
    table_schema,
)

NGRAM_ORDERS = {"bigram": 2, "fivegram": 5}
RECURRENT = "recurrent"

#: Training documents that the 5-gram model scores as a control.
TRAINING_CONTROL_DOCUMENTS = 64


class BaselinesConfig(StageConfig):
    validation_bytes: int = Field(
        200_000,
        ge=1_000,
        description="number of bytes of validation text used to compare the model with the "
        "baselines; documents are chosen by hash",
    )
    training_bytes: int = Field(
        16_000_000,
        ge=1_000,
        description="number of bytes of training text used to train the baselines; documents are "
        "chosen by hash, and training needs about 40 bytes of memory per byte of text and takes "
        "about 15 seconds for 16,000,000 bytes on two cores",
    )
    recurrent_tokens: int = Field(
        0,
        ge=0,
        description="number of tokens used to train the recurrent baseline, or 0 to omit this "
        "baseline; training on 1,000,000 tokens takes about a minute on two cores, and fewer "
        "tokens result in a weaker baseline",
    )
    seed: Seed = Field(0, description="seed for all random choices")


#: The columns of the bits that each baseline needs.
BASELINE_BITS = (
    column(
        "bigram_bits",
        pa.float64(),
        "figure",
        "number of bits needed by the bigram model to encode the text",
        unit="bits",
    ),
    column(
        "fivegram_bits",
        pa.float64(),
        "figure",
        "number of bits needed by the 5-gram model to encode the text",
        unit="bits",
    ),
    column(
        "recurrent_bits",
        pa.float64(),
        "figure",
        "number of bits needed by the recurrent baseline to encode the text; null if no recurrent "
        "baseline was trained",
        unit="bits",
    ),
)

TEXT_BITS = table_schema(
    "Number of bits needed by each baseline to encode each text. Rows are in the order in which "
    "the texts were chosen.",
    column(
        "text_kind",
        pa.string(),
        "label",
        "origin of the text: held-out text, random characters, or training text",
    ),
    column("doc_id", ID_TYPE, "id", "the document"),
    column("source", pa.string(), "label", "document source"),
    column("bytes", pa.int64(), "figure", "text length in UTF-8 bytes", unit="bytes"),
    column(
        "tokens",
        pa.int64(),
        "figure",
        "number of tokens in the text scored by the audited model",
        unit="tokens",
    ),
    *BASELINE_BITS,
)

TRAINING_SIZES = table_schema(
    "Amount of text used to train the baselines.",
    column("baseline", pa.string(), "label", "the baseline"),
    column(
        "documents",
        pa.int64(),
        "figure",
        "number of documents sampled from the train split",
        unit="documents",
    ),
    column(
        "bytes",
        pa.int64(),
        "figure",
        "total length of the sampled documents in UTF-8 bytes",
        unit="bytes",
    ),
    column(
        "tokens",
        pa.int64(),
        "figure",
        "number of tokens read during training; for the recurrent model, this is the configured "
        "number, which includes repeated reads of the same token",
        unit="tokens",
    ),
    column(
        "split_bytes",
        pa.int64(),
        "figure",
        "length of the whole train split in UTF-8 bytes",
        unit="bytes",
    ),
)


class BaselineTables(NamedTuple):
    """Rows of TEXT_BITS, PAIRS and TRAINING_SIZES."""

    text_bits: pa.Table
    pairs: pa.Table
    training_sizes: pa.Table


def build_text_bits_table(
    text_kind: str, texts: pa.Table, tokenizer: AuditedTokenizer, baselines: dict[str, Baseline]
) -> pa.Table:
    """Build rows of TEXT_BITS."""
    token_ids = tokenizer.encode_batch(texts["text"].to_pylist())
    # Without a begin token, the first token of a text has no context and is not scored.
    unscored_tokens = 1 if tokenizer.bos_id is None else 0
    document_columns = {
        name: texts[name] for name in ("doc_id", "source") if name in texts.column_names
    }
    computed_columns: dict[str, Any] = {
        "text_kind": [text_kind] * len(token_ids),
        "bytes": count_utf8_bytes(texts["text"]),
        "tokens": [max(0, len(sequence) - unscored_tokens) for sequence in token_ids],
        **{
            f"{name}_bits": baseline.compute_document_bits(token_ids)
            for name, baseline in baselines.items()
        },
    }
    null_columns = {
        name: pa.nulls(len(token_ids), TEXT_BITS.field(name).type) for name in TEXT_BITS.names
    }
    return pa.table(null_columns | document_columns | computed_columns, schema=TEXT_BITS)


def train_baselines(
    token_ids: list[list[int]],
    tokenizer: AuditedTokenizer,
    config: BaselinesConfig,
    report_progress: Callable[[int, int, str], None],
) -> dict[str, Baseline]:
    """Train the baselines and return them by name."""
    baselines: dict[str, Baseline] = {}
    for step, (name, order) in enumerate(NGRAM_ORDERS.items()):
        report_progress(step, 5, f"counting {name}s")
        baselines[name] = NgramModel(token_ids, order, tokenizer.vocab_size)
    if config.recurrent_tokens:
        from hallmark.model.training.lstm import train_lstm_language_model

        report_progress(2, 5, "training the recurrent baseline")
        baselines[RECURRENT] = train_lstm_language_model(
            token_ids, tokenizer.vocab_size, token_budget=config.recurrent_tokens, seed=config.seed
        )
    return baselines


def train_and_score_baselines(
    tokenizer: AuditedTokenizer,
    documents: Table,
    config: BaselinesConfig,
    report_progress: Callable[[int, int, str], None] = lambda done, total, activity: None,
) -> BaselineTables:
    """Train the baselines on the train split, and score the texts and pairs of the audit."""
    held_out = sample_split_documents(
        documents, "validation", config.validation_bytes, config.seed
    ).documents
    training_documents, split_bytes = sample_split_documents(
        documents, "train", config.training_bytes, config.seed
    )
    token_ids = tokenizer.encode_batch(training_documents["text"].to_pylist())
    baselines = train_baselines(token_ids, tokenizer, config, report_progress)
    report_progress(3, 5, "bits per byte")
    texts_by_kind = {
        HELD_OUT_TEXT: held_out,
        RANDOM_TEXT: generate_random_texts(config.seed),
        TRAINING_TEXT: training_documents.slice(0, TRAINING_CONTROL_DOCUMENTS),
    }
    text_bits = pa.concat_tables(
        build_text_bits_table(text_kind, texts, tokenizer, baselines)
        for text_kind, texts in texts_by_kind.items()
    )
    report_progress(4, 5, "dependencies")
    scorers = {
        name: make_baseline_scorer(baseline, tokenizer) for name, baseline in baselines.items()
    }
    pair_rows = build_minimal_pair_rows(
        [*generate_agreement_pairs(), *generate_garden_path_pairs()], scorers
    )
    token_count = sum(map(len, token_ids))
    training_size_rows = [
        {
            "baseline": name,
            "documents": len(training_documents),
            "bytes": sum(training_documents["bytes"].to_pylist()),
            "tokens": config.recurrent_tokens if name == RECURRENT else token_count,
            "split_bytes": split_bytes,
        }
        for name in baselines
    ]
    return BaselineTables(
        text_bits,
        pa.Table.from_pylist(pair_rows, schema=PAIRS),
        pa.Table.from_pylist(training_size_rows, schema=TRAINING_SIZES),
    )


@stage(
    name="capability_baselines",
    tables={"text_bits": TEXT_BITS, "pairs": PAIRS, "training_sizes": TRAINING_SIZES},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
    reads={"checkpoint": METADATA_FILES},
)
def capability_baselines(
    checkpoint: Artifact, documents: Table, config: BaselinesConfig, context: StageContext
) -> None:
    baseline_tables = train_and_score_baselines(
        open_audited_tokenizer(checkpoint), documents, config, context.report_progress
    )
    for name, table in baseline_tables._asdict().items():
        context.get_table_writer(name).write(table)
