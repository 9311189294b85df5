"""Train a byte-level tokenizer on the train split: BPE, WordPiece or Unigram, see subwords.py.

Every one of the 256 bytes is a token, so every text has an encoding and decodes to itself. The
tokens depend on counts of words alone, not on the order or the batches the text comes in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from model.tokens import END_OF_TEXT, PAD
from tasks.contract import HallmarkError, StageConfig, Table, Work, column, stage, table, utf8_bytes
from tasks.measures.faults import Noted, careful, noted, tell
from tasks.measures.languages import languages
from tasks.training.encoding import load_tokenizer, pieces
from tasks.training.held_out import held_out_documents
from tasks.training.subwords import BYTES, train_bpe, train_unigram, train_wordpiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_TOKENS = {"<|endoftext|>": END_OF_TEXT, "<|pad|>": PAD}

#: Objectives that need others beside them, see ``special_tokens``.
OF_OBJECTIVE = {"mlm", "span_corruption"}


class TokenizerConfig(StageConfig):
    kind: Literal["bpe", "wordpiece", "unigram"] = Field(
        "bpe", description="how the vocabulary is found; all three spell bytes"
    )
    vocab_size: int = Field(
        4096,
        ge=BYTES + len(SPECIAL_TOKENS) + 32,
        le=1_000_000,
        description="most tokens of the vocabulary; a small corpus may not fill it",
    )
    min_frequency: int = Field(
        2,
        ge=1,
        description="how often a pair must occur in the corpus to be merged; unigram merges none",
    )
    objective: Literal["causal", "prefix", "mlm", "span_corruption"] = Field(
        "causal", description="what the model is trained for; it decides the special tokens"
    )
    sentinels: int = Field(
        32,
        ge=2,
        le=100_000,
        description="special tokens that stand for the spans that span_corruption hides: 32 are "
        "enough for sequences of 649 tokens, 51 for 1,024",
    )

    @model_validator(mode="after")
    def _room_for_the_letters(self) -> TokenizerConfig:
        special = len(special_tokens(self))
        if self.vocab_size < special + BYTES:
            raise ValueError(
                f"vocab_size is {self.vocab_size}; {special} special tokens and the {BYTES} bytes "
                f"need {special + BYTES}"
            )
        least = special + 2 * BYTES
        if self.kind == "wordpiece" and self.vocab_size < least:
            raise ValueError(
                f"vocab_size is {self.vocab_size}; wordpiece needs {least}, for every byte at the "
                f"beginning of a word and inside it"
            )
        return self


def special_tokens(config: TokenizerConfig) -> list[str]:
    """The special tokens, in the order of their ids; for what: model/objectives.py."""
    own = {
        "mlm": ["<|mask|>"],
        "span_corruption": [f"<|sentinel_{i}|>" for i in range(config.sentinels)],
    }
    return [*SPECIAL_TOKENS, *own.get(config.objective, [])]


FERTILITY = table(
    "How well the tokenizer compresses text it was not trained on (the validation split): "
    "tokenizers tax groups differently.",
    column("kind", pa.string(), "label", "source, language or identity"),
    column("name", pa.string(), "label", "the source, the language (an estimate that may be "
           "undetermined) or the identity group that documents mention"),
    column("documents", pa.int64(), "figure", "documents of the group", unit="documents"),
    column("bytes", pa.int64(), "figure", "UTF-8 bytes of their text", unit="bytes"),
    column("tokens", pa.int64(), "figure", "tokens of their text", unit="tokens"),
    column("bytes_per_token", pa.float64(), "figure", "bytes that a token spells",
           unit="bytes a token"),
)  # fmt: skip


def train(texts: Iterator[list[str]], config: TokenizerConfig) -> Tokenizer:
    """A tokenizer from batches of texts."""
    special = special_tokens(config)
    match config.kind:
        case "bpe":
            made = train_bpe(texts, config.vocab_size, config.min_frequency, special)
        case "wordpiece":
            made = train_wordpiece(texts, config.vocab_size, config.min_frequency, special)
        case "unigram":
            made = train_unigram(texts, config.vocab_size, special)
    for token, number in SPECIAL_TOKENS.items():
        assert made.token_to_id(token) == number, f"{token} must have the id {number}"
    return made


def training_texts(documents: Table) -> Iterator[list[str]]:
    """Texts of the train split without the planted documents.

    The copies of a canary would earn it tokens of its own. A secret must be cut the same way
    whether it was planted 64 times or never, or the extraction audit compares unlike things.
    """
    for batch in documents.batches(["source", "text", "split"]):
        planted = pc.starts_with(batch["source"], "planted/")
        chosen = pc.and_not(pc.equal(batch["split"], "train"), planted)
        texts = batch["text"].filter(chosen)
        if len(texts):
            yield [piece for text in texts.to_pylist() for piece in pieces(text)]


def measured(documents: pa.RecordBatch, tokenizer: Tokenizer) -> pa.Table:
    """Of each document its language, and its bytes and tokens."""
    encodings = tokenizer.encode_batch_fast(documents["text"].to_pylist(), add_special_tokens=False)
    return pa.table(
        {
            "language": languages(documents["text"]),
            "bytes": utf8_bytes(documents["text"]),
            "tokens": pa.array([len(encoding) for encoding in encodings], pa.int64()),
        }
    )


def fertility(
    documents: Table, signals: Table | None, tokenizer: Tokenizer
) -> tuple[pa.Table, Noted]:
    """FERTILITY of the validation split, and the documents on which it failed, which are not in
    it."""
    rows = []
    failed: Noted = []
    for held_out, group, owner in held_out_documents(documents, signals, ["source", "text"]):
        found, faults = careful(partial(measured, tokenizer=tokenizer), held_out)
        failed += noted(held_out, faults)
        good = pc.invert(pc.is_in(pa.array(range(len(found)), pa.int64()), faults.rows))
        mentions = good.take(owner)
        sizes = found.select(["bytes", "tokens"])
        whole = sizes.filter(good)
        rows.append(_of_kind("source", held_out["source"].filter(good), whole))
        rows.append(_of_kind("language", found["language"].filter(good), whole))
        rows.append(
            _of_kind("identity", group.filter(mentions), sizes.take(owner).filter(mentions))
        )
    if not rows:
        return FERTILITY.empty_table(), failed
    sums = pa.concat_tables(rows).group_by(["kind", "name"]).aggregate(
        [("bytes", "count"), ("bytes", "sum"), ("tokens", "sum")]
    )  # fmt: skip
    sums = sums.sort_by([("kind", "descending"), ("name", "ascending")])
    ratio = pc.divide(sums["bytes_sum"].cast(pa.float64()), sums["tokens_sum"])
    columns = ["kind", "name", "bytes_count", "bytes_sum", "tokens_sum"]
    return pa.table([*sums.select(columns).columns, ratio], schema=FERTILITY), failed


def _of_kind(kind: str, name: pa.Array, measured: pa.Table) -> pa.Table:
    kinds = pa.array([kind] * len(measured), pa.string())
    return measured.add_column(0, "kind", kinds).add_column(1, "name", name.cast(pa.string()))


@stage(
    tables={"fertility": FERTILITY},
    libraries=["py3langid", "sentencepiece", "tokenizers"],
    determinism="exact",
)
def train_tokenizer(
    documents: Table, signals: Table | None, config: TokenizerConfig, work: Work
) -> None:
    """``signals``: those of the stage ``identities``; without them no figure is by group."""
    texts = training_texts(documents)
    first = next(texts, None)
    if first is None:
        raise HallmarkError(
            "the split 'train' holds no documents to train a tokenizer on; ingest more text or "
            "loosen what removed it: select_scored.rules, split.validation, split.holdout"
        )

    def counted() -> Iterator[list[str]]:
        done = 0
        for batch in itertools.chain([first], texts):
            done += len(batch)
            work.progress(done, documents.rows, "documents")
            yield batch

    tokenizer = train(counted(), config)
    path = work.file("tokenizer.json")
    tokenizer.save(str(path))
    rows, failed = fertility(documents, signals, load_tokenizer(path))
    work.table("fertility").write(rows)
    tell(work, [failed], documents.rows, "the measure of the tokenizer")
    work.measure("vocabulary", tokenizer.get_vocab_size(), "tokens")
