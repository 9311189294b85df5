"""What other models make of what capability is measured on: a bigram and a 5-gram model and a small
LSTM over the same tokens, trained on the corpus's train split.

It knows the tokenizer of a checkpoint, never its weights: checkpoints of one training stand beside
the same baselines.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pydantic import Field

from tasks.audits.ability.baselines import NgramModel
from tasks.audits.ability.minimal_pairs import (
    PAIRS,
    Baseline,
    agreement,
    garden_paths,
    prefer,
    reader_of,
)
from tasks.audits.ability.texts import RANDOM, SEEN, TEXT, choose, random_texts
from tasks.audits.subjects.reader import READ, Reader, open_reader
from tasks.contract import (
    ID,
    Artifact,
    Seed,
    StageConfig,
    Table,
    Work,
    column,
    stage,
    table,
    utf8_bytes,
)

NGRAMS = {"bigram": 2, "fivegram": 5}
RECURRENT = "recurrent"

#: Training documents that the 5-gram model reads once more.
AGAIN = 64


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


COSTS = table(
    "What each text costs the baselines, in the order in which the texts were chosen.",
    column("part", pa.string(), "label", "held-out text, random characters, or training text"),
    column("doc_id", ID, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("bytes", pa.int64(), "figure", "UTF-8 bytes of the text", unit="bytes"),
    column("tokens", pa.int64(), "figure", "tokens that a subject is scored over", unit="tokens"),
    column("bigram_bits", pa.float64(), "figure", "what it costs the bigram model", unit="bits"),
    column("fivegram_bits", pa.float64(), "figure", "what it costs the 5-gram model", unit="bits"),
    column("recurrent_bits", pa.float64(), "figure", "what it costs the recurrent model; null: "
           "there is none", unit="bits"),
)  # fmt: skip

LEARNED = table(
    "What the baselines learnt from.",
    column("baseline", pa.string(), "label", "the baseline"),
    column("documents", pa.int64(), "figure", "documents of the train split that it was given",
           unit="documents"),
)  # fmt: skip


def costs(part: str, texts: pa.Table, reader: Reader, baselines: dict[str, Baseline]) -> pa.Table:
    """Rows of COSTS."""
    ids = reader.encode_batch(texts["text"].to_pylist())
    unscored = 1 if reader.bos is None else 0  # of a text's tokens, before which nothing stands
    known = {name: texts[name] for name in ("doc_id", "source") if name in texts.column_names}
    columns: dict[str, Any] = {
        "part": [part] * len(ids),
        "bytes": utf8_bytes(texts["text"]),
        "tokens": [max(0, len(row) - unscored) for row in ids],
        **{f"{name}_bits": baseline.bits(ids) for name, baseline in baselines.items()},
    }
    nothing = {name: pa.nulls(len(ids), COSTS.field(name).type) for name in COSTS.names}
    return pa.table(nothing | known | columns, schema=COSTS)


def learned(
    ids: list[list[int]], reader: Reader, config: BaselinesConfig, work: Work
) -> dict[str, Baseline]:
    """The baselines, by name."""
    found: dict[str, Baseline] = {}
    for number, (name, order) in enumerate(NGRAMS.items()):
        work.progress(number, 5, f"counting {name}s")
        found[name] = NgramModel(ids, order, reader.vocab_size)
    if config.recurrent_tokens:
        from model.training.recurrent import train_recurrent

        work.progress(2, 5, "training the recurrent baseline")
        found[RECURRENT] = train_recurrent(
            ids, reader.vocab_size, tokens=config.recurrent_tokens, seed=config.seed
        )
    return found


@stage(
    tables={"costs": COSTS, "pairs": PAIRS, "learned": LEARNED},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
    reads={"checkpoint": READ},
)
def capability_baselines(
    checkpoint: Artifact, documents: Table, config: BaselinesConfig, work: Work
) -> None:
    reader = open_reader(checkpoint)
    held_out = choose(documents, "validation", config.validation_bytes, config.seed)
    training = choose(documents, "train", config.training_bytes, config.seed)
    ids = reader.encode_batch(training["text"].to_pylist())
    baselines = learned(ids, reader, config, work)
    work.progress(3, 5, "bits per byte")
    parts = {TEXT: held_out, RANDOM: random_texts(config.seed), SEEN: training.slice(0, AGAIN)}
    for part, texts in parts.items():
        work.table("costs").write(costs(part, texts, reader, baselines))
    work.progress(4, 5, "dependencies")
    readers = {name: reader_of(baseline, reader) for name, baseline in baselines.items()}
    pairs = prefer([*agreement(), *garden_paths()], readers)
    work.table("pairs").write(pa.Table.from_pylist(pairs, schema=PAIRS))
    rows = [{"baseline": name, "documents": len(ids)} for name in baselines]
    work.table("learned").write(pa.Table.from_pylist(rows, schema=LEARNED))
