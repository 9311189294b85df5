"""What other models make of what capability is measured on: a bigram and a 5-gram model and a small
LSTM over the same tokens, trained on the corpus's train split.

It knows the tokenizer of a checkpoint, never its weights: checkpoints of one training stand beside
the same baselines.
"""

from __future__ import annotations

from typing import Any

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
    compare_minimal_pairs,
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

#: Training documents that the 5-gram model reads once more.
TRAINING_CONTROL_DOCUMENTS = 64


class BaselinesConfig(StageConfig):
    validation_bytes: int = Field(
        200_000, ge=1_000, description="text of the validation split to measure on, chosen by hash"
    )
    training_bytes: int = Field(
        64_000_000,
        ge=1_000,
        description="text of the train split that the baselines learn from, chosen by hash; about "
        "40 bytes of memory each",
    )
    recurrent_tokens: int = Field(
        1_000_000, ge=0, description="tokens that the recurrent baseline is trained on; 0: none"
    )
    seed: Seed = Field(0, description="of what is drawn by lot")


TEXT_BITS = table_schema(
    "What each text costs the baselines, in the order in which the texts were chosen.",
    column("text_kind", pa.string(), "label", "held-out text, random characters, or training text"),
    column("doc_id", ID_TYPE, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("bytes", pa.int64(), "figure", "UTF-8 bytes of the text", unit="bytes"),
    column("tokens", pa.int64(), "figure", "tokens that a subject is scored over", unit="tokens"),
    column("bigram_bits", pa.float64(), "figure", "what it costs the bigram model", unit="bits"),
    column("fivegram_bits", pa.float64(), "figure", "what it costs the 5-gram model", unit="bits"),
    column(
        "recurrent_bits",
        pa.float64(),
        "figure",
        "what it costs the recurrent model; null: there is none",
        unit="bits",
    ),
)

TRAINING_SIZES = table_schema(
    "What the baselines learnt from.",
    column("baseline", pa.string(), "label", "the baseline"),
    column(
        "documents",
        pa.int64(),
        "figure",
        "documents of the train split that it was given",
        unit="documents",
    ),
)


def build_text_bits_table(
    text_kind: str, texts: pa.Table, tokenizer: AuditedTokenizer, baselines: dict[str, Baseline]
) -> pa.Table:
    """Rows of TEXT_BITS."""
    token_ids = tokenizer.encode_batch(texts["text"].to_pylist())
    unscored_tokens = (
        1 if tokenizer.bos_id is None else 0
    )  # of a text's tokens, before which nothing stands
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
    context: StageContext,
) -> dict[str, Baseline]:
    """The baselines, by name."""
    baselines: dict[str, Baseline] = {}
    for step, (name, order) in enumerate(NGRAM_ORDERS.items()):
        context.report_progress(step, 5, f"counting {name}s")
        baselines[name] = NgramModel(token_ids, order, tokenizer.vocab_size)
    if config.recurrent_tokens:
        from hallmark.model.training.lstm import train_lstm_language_model

        context.report_progress(2, 5, "training the recurrent baseline")
        baselines[RECURRENT] = train_lstm_language_model(
            token_ids, tokenizer.vocab_size, token_budget=config.recurrent_tokens, seed=config.seed
        )
    return baselines


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
    tokenizer = open_audited_tokenizer(checkpoint)
    held_out = sample_split_documents(documents, "validation", config.validation_bytes, config.seed)
    training_documents = sample_split_documents(
        documents, "train", config.training_bytes, config.seed
    )
    token_ids = tokenizer.encode_batch(training_documents["text"].to_pylist())
    baselines = train_baselines(token_ids, tokenizer, config, context)
    context.report_progress(3, 5, "bits per byte")
    texts_by_kind = {
        HELD_OUT_TEXT: held_out,
        RANDOM_TEXT: generate_random_texts(config.seed),
        TRAINING_TEXT: training_documents.slice(0, TRAINING_CONTROL_DOCUMENTS),
    }
    for text_kind, texts in texts_by_kind.items():
        context.get_table_writer("text_bits").write(
            build_text_bits_table(text_kind, texts, tokenizer, baselines)
        )
    context.report_progress(4, 5, "dependencies")
    scorers = {
        name: make_baseline_scorer(baseline, tokenizer) for name, baseline in baselines.items()
    }
    pair_rows = compare_minimal_pairs(
        [*generate_agreement_pairs(), *generate_garden_path_pairs()], scorers
    )
    context.get_table_writer("pairs").write(pa.Table.from_pylist(pair_rows, schema=PAIRS))
    training_size_rows = [{"baseline": name, "documents": len(token_ids)} for name in baselines]
    context.get_table_writer("training_sizes").write(
        pa.Table.from_pylist(training_size_rows, schema=TRAINING_SIZES)
    )
