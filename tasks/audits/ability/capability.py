"""What the subject can do, beside the harm it may do: bits per byte, cloze accuracy, dependencies.

Bits per byte: what it costs to spell held-out documents, each from its beginning, divided by
their UTF-8 bytes; it compares models over different tokens. Beside it stand gzip -9 over the same
text, and over the same tokens a bigram and a 5-gram model and a small LSTM, trained on the corpus's
train split.

Cloze accuracy is the accuracy on the last words of held-out sentences, see ``cloze.py``; for
dependencies over a distance, with all of these models as readers, see ``dependencies.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from model.draws import combine
from tasks.audits.ability.baselines import NgramModel, gzip_bits_per_byte
from tasks.audits.ability.cloze import answer_passages, find_passages, measure_cloze
from tasks.audits.ability.dependencies import (
    PAIRS,
    SUBJECT,
    Baseline,
    Reader,
    agreement,
    garden_paths,
    measure_dependencies,
    prefer,
    reader_of,
)
from tasks.audits.judging.findings import FINDINGS, finding, findings_table
from tasks.audits.subjects.subject import AUDIT_LIBRARIES, Subject, open_subject
from tasks.contract import (
    ID,
    Artifact,
    Device,
    HallmarkError,
    Seed,
    StageConfig,
    Table,
    Work,
    column,
    stage,
    table,
    utf8_bytes,
)

Float64 = NDArray[np.float64]

AUDIT = "capability"
NGRAMS = {"bigram": 2, "fivegram": 5}
RECURRENT = "recurrent"
PRINTABLE = "".join(map(chr, range(32, 127)))


class CapabilityConfig(StageConfig):
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
    passages: int = Field(200, ge=2, description="most passages of the cloze test")
    passage_words: int = Field(20, ge=1, description="fewest words before the word to find")
    passage_characters: int = Field(1_000, ge=50, description="most characters of a passage")
    resamples: int = Field(2_000, ge=100, le=100_000, description="of the bootstrap")
    seed: Seed = Field(0, description="of choices and resampling")
    device: Device = Field("auto", description="of the subject")


SAMPLES = table(
    "A document, a passage or a control text a row; columns of the other kinds are null.",
    column("sample", pa.int32(), "id", "number of the row"),
    column("part", pa.string(), "label", "which measurement or control it belongs to"),
    column("doc_id", ID, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("bytes", pa.int64(), "figure", "UTF-8 bytes of the text", unit="bytes"),
    column("tokens", pa.int64(), "figure", "tokens that were scored", unit="tokens"),
    column("model_bits", pa.float64(), "figure", "what the text costs the model", unit="bits"),
    column("bigram_bits", pa.float64(), "figure", "what it costs the bigram model", unit="bits"),
    column("fivegram_bits", pa.float64(), "figure", "what it costs the 5-gram model", unit="bits"),
    column(
        "recurrent_bits", pa.float64(), "figure", "what it costs the recurrent model", unit="bits"
    ),
    column("prompt", pa.large_string(), "corpus text", "a passage without its last word"),
    column("answer", pa.string(), "corpus text", "the last word"),
    column("continuation", pa.large_string(), "model text", "what the model wrote instead"),
    column("correct", pa.bool_(), "figure", "whether the model found the word"),
)

TEXT = "text"  # held-out documents
RANDOM = "random characters"  # negative control: nobody can compress them
SEEN = "training text"  # positive control: the 5-gram model's own training documents


# Documents -----------------------------------------------------------------------------------


def no_text(split: str) -> str:
    return (
        f"the split {split!r} holds no text to measure capability on; ingest more text, raise "
        f"split.{split} or take another split.seed"
    )


def check_held_out(documents: Table) -> None:
    """HallmarkError where there is nothing to measure on, for who is about to train a model: that
    is then not paid for."""
    for batch in documents.batches(["split"]):
        if pc.any(pc.equal(batch["split"], "validation")).as_py():
            return
    raise HallmarkError(f"audit_capability would fail behind the training: {no_text('validation')}")


def choose(documents: Table, split: str, most_bytes: int, seed: int) -> pa.Table:
    """Documents of a split, about ``most_bytes`` of text chosen by a hash of (seed, doc_id).

    Columns doc_id, source, text, bytes, in the order of the hash; empty documents stay out.
    """

    def of_split(columns: list[str]) -> Iterator[pa.Table]:
        for batch in documents.batches([*columns, "split"]):
            table = pa.table(batch).filter(pc.equal(batch["split"], split))
            table = table.append_column("bytes", utf8_bytes(table["text"]))
            yield table.filter(pc.greater(table["bytes"], 0))

    total = sum(pc.sum(part["bytes"]).as_py() or 0 for part in of_split(["text"]))
    share = min(1.0, most_bytes / total) if total else 1.0
    chosen = []
    for part in of_split(["doc_id", "source", "text"]):
        if len(part):
            halves = np.frombuffer(b"".join(part["doc_id"].to_pylist()), "<u8").reshape(-1, 2)
            key = combine(seed, *halves.T.astype(np.uint64))
            part = part.append_column("key", pa.array(key))
            chosen.append(part.filter(pa.array(key / 2.0**64 <= share)))
    if not sum(map(len, chosen)):
        raise HallmarkError(no_text(split))
    return pa.concat_tables(chosen).sort_by("key").drop_columns(["key", "split"])


@dataclass(frozen=True)
class Text:
    """Texts with their tokens and their costs in bits, None where it could not be measured."""

    part: str
    texts: list[str]
    ids: list[list[int]]
    sizes: NDArray[np.int64]  # UTF-8 bytes
    model: Float64 | None
    baselines: dict[str, Float64]
    doc_id: Sequence[bytes | None]
    source: Sequence[str | None]


def cost(part: str, table: pa.Table, subject: Subject, baselines: dict[str, Baseline]) -> Text:
    texts = table["text"].to_pylist()
    ids = subject.encode_batch(texts)
    bits = None
    if subject.kind == "causal" and part != SEEN:
        scores = subject.log_probs([subject.opened(row) for row in ids])
        bits = np.array([-row.sum(dtype=np.float64) / np.log(2) for row in scores])
    costs = {name: model.bits(ids) for name, model in baselines.items()}
    names = table.column_names
    nothing = [None] * len(texts)
    doc_id, source = (table[n].to_pylist() if n in names else nothing for n in ("doc_id", "source"))
    sizes = utf8_bytes(table["text"]).to_numpy()
    return Text(part, texts, ids, sizes, bits, costs, doc_id, source)


def random_texts(seed: int, count: int = 64, length: int = 200) -> pa.Table:
    drawn = np.random.default_rng(seed).integers(len(PRINTABLE), size=(count, length))
    texts = ["".join(PRINTABLE[i] for i in row) for row in drawn]
    return pa.table({"text": pa.array(texts, pa.large_string())})


# Bits per byte -------------------------------------------------------------------------------


def ratio(
    bits: Float64, sizes: NDArray[np.int64], resamples: int, seed: int
) -> tuple[float, float, float]:
    """Sum of bits over sum of bytes, with the percentile bootstrap interval over documents."""
    value = float(bits.sum() / sizes.sum())
    if len(bits) < 2:
        return value, np.nan, np.nan
    rng = np.random.default_rng(seed)
    draws = np.empty(resamples)
    for i in range(resamples):
        drawn = rng.integers(len(bits), size=len(bits))
        draws[i] = bits[drawn].sum() / sizes[drawn].sum()
    low, high = np.quantile(draws, (0.025, 0.975))
    return value, float(low), float(high)


def measure_text(
    text: Text,
    random: Text,
    seen: Text,
    subject: Subject,
    config: CapabilityConfig,
    trained: str,
    recurrent: str,
) -> list[dict[str, Any]]:
    """Findings bits_per_byte: the model, overall and by source, the baselines and the controls."""
    how = f"every token given the left context in its document, {subject.begin}"
    over = f"percentile bootstrap over documents, {config.resamples} resamples"
    smoothing = f"interpolated modified Kneser-Ney over the subject's tokens, {trained}"
    made = dict.fromkeys(NGRAMS, smoothing) | {RECURRENT: recurrent}

    def row(name: str, part: Text, bits: Float64, keep: Any, method: str, **more: Any) -> Any:
        value, low, high = ratio(bits[keep], part.sizes[keep], config.resamples, config.seed)
        where = more.pop("where", {"part": part.part})
        metric = more.pop("metric", "bits_per_byte")
        return finding(AUDIT, metric, value, part=name, low=low, high=high, unit="bits",
                       n=len(bits[keep]), method=f"{method}; {over}", where=where, table="samples",
                       **more)  # fmt: skip

    everything = slice(None)
    rows = []
    if text.model is None:
        why = f"not measured: {subject.name} is a masked language model, its scores are no p(text)"
        rows.append(
            finding(AUDIT, "bits_per_byte", None, part="model", unit="bits", n=0, method=why,
                    table="samples")
        )  # fmt: skip
    else:
        rows.append(row("model", text, text.model, everything, how))
    for name, bits in text.baselines.items():
        rows.append(row(name, text, bits, everything, made[name]))
    rows.append(_gzip(text))
    if text.model is not None:
        for name, bits in text.baselines.items():
            rows.append(row("", text, text.model - bits, everything, "paired difference",
                            metric="bits_per_byte_difference", tags={"less": name}))  # fmt: skip
        sources = np.array(text.source)
        for source in sorted(set(text.source) - {None}):  # type: ignore[type-var]
            rows.append(row("model", text, text.model, sources == source, how,
                            tags={"source": source},
                            where={"part": TEXT, "source": source}))  # fmt: skip
    rows.append(_random_control(random, row))
    high = next(r for r in rows if r["slice"] == "fivegram")["high"]
    found = ratio(seen.baselines["fivegram"], seen.sizes, 100, config.seed)[0]
    rows.append(
        row(SEEN, seen, seen.baselines["fivegram"], everything, control="positive",
            passed=found < (high if high is not None else np.inf), tests="baseline",
            method="5-gram model over documents it was trained on; passes where they cost less "
                   "than held-out ones")
    )  # fmt: skip
    return rows


def _random_control(random: Text, row: Any) -> dict[str, Any]:
    entropy = float(np.log2(len(PRINTABLE)))
    bits = random.baselines["fivegram"] if random.model is None else random.model
    judged = "the 5-gram model" if random.model is None else "the subject"
    method = (
        f"{judged} over uniformly random characters, which no model can spell in fewer than "
        f"{entropy:.3f} bits each; fails where the interval lies below"
    )
    made = row(
        RANDOM,
        random,
        bits,
        slice(None),
        method,
        control="negative",
        passed=True,
        tests="baseline" if random.model is None else "instrument",
    )
    return {**made, "verdict": "pass" if made["high"] >= entropy else "fail"}


def _gzip(text: Text) -> dict[str, Any]:
    value, error, groups = gzip_bits_per_byte([t.encode() for t in text.texts])
    half = 1.959964 * error
    method = (
        f"gzip -9 over the documents one behind the other in the order of their hash; "
        f"normal interval, delete-a-group jackknife, {groups} groups of documents"
    )
    return finding(AUDIT, "bits_per_byte", value, part="gzip", low=value - half, high=value + half,
                   unit="bits", n=len(text.texts), method=method, where={"part": TEXT},
                   table="samples")  # fmt: skip


# The stage -----------------------------------------------------------------------------------


def text_rows(text: Text, subject: Subject) -> list[dict[str, Any]]:
    unscored = 1 if subject.bos is None else 0
    return [
        {
            "part": text.part,
            "doc_id": text.doc_id[i],
            "source": text.source[i],
            "bytes": int(text.sizes[i]),
            "tokens": max(0, len(text.ids[i]) - unscored),
            "model_bits": None if text.model is None else float(text.model[i]),
            **{f"{name}_bits": float(bits[i]) for name, bits in text.baselines.items()},
            "prompt": text.texts[i] if text.part == RANDOM else None,
        }
        for i in range(len(text.texts))
    ]


@stage(
    tables={"samples": SAMPLES, "pairs": PAIRS, "findings": FINDINGS},
    libraries=AUDIT_LIBRARIES,
    determinism="machine",
)
def audit_capability(
    checkpoint: Artifact, documents: Table, config: CapabilityConfig, work: Work
) -> None:
    subject = open_subject(checkpoint, config.device)
    held_out = choose(documents, "validation", config.validation_bytes, config.seed)
    training = choose(documents, "train", config.training_bytes, config.seed)
    ids = subject.encode_batch(training["text"].to_pylist())
    baselines: dict[str, Baseline] = {}
    for number, (name, order) in enumerate(NGRAMS.items()):
        work.progress(number, 6, f"counting {name}s")
        baselines[name] = NgramModel(ids, order, subject.vocab_size)
    trained = f"trained on {len(ids):,} documents of the train split"
    if config.recurrent_tokens:
        from model.training.recurrent import train_recurrent

        work.progress(2, 6, "training the recurrent baseline")
        baselines[RECURRENT] = train_recurrent(
            ids, subject.vocab_size, tokens=config.recurrent_tokens, seed=config.seed
        )
    recurrent = f"LSTM over the subject's tokens, {config.recurrent_tokens:,} of the train split"
    work.progress(3, 6, "bits per byte")
    text = cost(TEXT, held_out, subject, baselines)
    random = cost(RANDOM, random_texts(config.seed), subject, baselines)
    seen = cost(SEEN, training.slice(0, 64), subject, baselines)
    rows = [row for part in (text, random, seen) for row in text_rows(part, subject)]
    findings = measure_text(text, random, seen, subject, config, trained, recurrent)
    work.progress(4, 6, "dependencies")
    readers: dict[str, Reader] = {
        SUBJECT: lambda texts, contexts: subject.log_likelihoods(texts, contexts)[0]
    }
    readers |= {name: reader_of(baseline, subject) for name, baseline in baselines.items()}
    preferred = prefer([*agreement(), *garden_paths()], readers)
    findings += measure_dependencies(preferred, AUDIT)
    work.progress(5, 6, "cloze")
    found = find_passages(
        held_out, config.passages, config.passage_words, config.passage_characters
    )
    if subject.kind == "masked" or len(found) < 2:
        why = f"{subject.name} is a masked language model"
        why = why if subject.kind == "masked" else "the held-out text has too few whole sentences"
        findings.append(
            finding(AUDIT, "cloze_accuracy", None, n=0, unit="share", table="samples",
                    method=f"not measured: {why}")
        )  # fmt: skip
    else:
        answers = answer_passages(subject, found)
        rows += answers
        findings += measure_cloze(answers)
    nothing = dict.fromkeys(SAMPLES.names)
    numbered = [{**nothing, **row, "sample": number} for number, row in enumerate(rows)]
    work.table("pairs").write(pa.Table.from_pylist(preferred, schema=PAIRS))
    work.table("samples").write(pa.Table.from_pylist(numbered, schema=SAMPLES))
    work.table("findings").write(findings_table(findings, subject.precision))
