"""What the subject can do, beside the harm it may do: bits per byte, cloze accuracy, dependencies.

Bits per byte: what it costs to spell held-out documents, each from its beginning, divided by
their UTF-8 bytes; it compares models over different tokens. Beside it stand gzip -9 over the same
text, and over the same tokens what ``capability_baselines`` has measured.

Cloze accuracy is the accuracy on the last words of held-out sentences, see ``cloze.py``; for
dependencies over a distance, with all of these models as readers, see ``dependencies.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from tasks.audits.ability.baselines import gzip_bits_per_byte
from tasks.audits.ability.capability_baselines import NGRAMS, RECURRENT, BaselinesConfig
from tasks.audits.ability.cloze import answer_passages, find_passages, measure_cloze
from tasks.audits.ability.dependencies import measure_dependencies
from tasks.audits.ability.minimal_pairs import PAIRS, SUBJECT, agreement, garden_paths, prefer
from tasks.audits.ability.texts import PRINTABLE, RANDOM, SEEN, TEXT, choose, random_texts
from tasks.audits.judging.findings import FINDINGS, finding, findings_table
from tasks.audits.subjects.subject import AUDIT_LIBRARIES, Subject, open_subject
from tasks.contract import (
    ID,
    Artifact,
    Device,
    HallmarkError,
    Table,
    Work,
    column,
    stage,
    table,
)
from tasks.measures.estimates import Estimate, estimate, student

Float64 = NDArray[np.float64]

AUDIT = "capability"

#: Of the intervals.
LEVEL = 0.95


class CapabilityConfig(BaselinesConfig):
    passages: int = Field(200, ge=2, description="most passages of the cloze test")
    passage_words: int = Field(20, ge=1, description="fewest words before the word to find")
    passage_characters: int = Field(1_000, ge=50, description="most characters of a passage")
    device: Device = Field("auto", description="of the subject")

    @property
    def of_baselines(self) -> BaselinesConfig:
        """What of it counts for the baselines."""
        return BaselinesConfig(**{n: getattr(self, n) for n in BaselinesConfig.model_fields})


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


@dataclass(frozen=True)
class Text:
    """The texts of a part, what they cost the baselines (rows of COSTS), and what they cost the
    model, in bits: None where that was not, or could not be, measured."""

    part: str
    texts: list[str]
    rows: pa.Table
    model: Float64 | None

    @property
    def sizes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each."""
        return self.rows["bytes"].to_numpy()

    @property
    def baselines(self) -> dict[str, Float64]:
        """What they cost each baseline that there is."""
        bits = {name: self.rows[f"{name}_bits"] for name in (*NGRAMS, RECURRENT)}
        return {name: each.to_numpy() for name, each in bits.items() if not each.null_count}


def bits_of(subject: Subject, texts: Sequence[str]) -> Float64 | None:
    """What each text costs the subject; None of a masked one, whose scores are no p(text)."""
    if subject.kind != "causal":
        return None
    scores = subject.log_probs([subject.opened(row) for row in subject.encode_batch(texts)])
    return np.array([-row.sum(dtype=np.float64) / np.log(2) for row in scores])


# Bits per byte -------------------------------------------------------------------------------


def rate(bits: Float64, sizes: NDArray[np.int64]) -> Estimate:
    """Sum of bits over sum of bytes, over documents, of which long ones weigh more."""
    return estimate(bits / sizes, weights=sizes, unit="documents", level=LEVEL)


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
    smoothing = f"interpolated modified Kneser-Ney over the subject's tokens, {trained}"
    made = dict.fromkeys(NGRAMS, smoothing) | {RECURRENT: recurrent}

    def row(name: str, part: Text, bits: Float64, keep: Any, method: str, **more: Any) -> Any:
        found = rate(bits[keep], part.sizes[keep])
        where = more.pop("where", {"part": part.part})
        metric = more.pop("metric", "bits_per_byte")
        return finding(AUDIT, metric, found.value, part=name, low=found.low, high=found.high,
                       unit="bits", n=found.n, method=f"{method}; {found.method}", where=where,
                       table="samples", **more)  # fmt: skip

    everything = slice(None)
    rows = []
    if text.model is None:
        why = f"not measured: {subject.name} is a masked language model, its scores are no p(text)"
        rows.append(
            finding(AUDIT, "bits_per_byte", None, part="model", unit="bits", n=0, method=why,
                    table="samples")
        )  # fmt: skip
    else:
        rows.append(row("model", text, text.model, everything, how, worse="up"))
    for name, bits in text.baselines.items():
        rows.append(row(name, text, bits, everything, made[name]))
    rows.append(_gzip(text.texts))
    if text.model is not None:
        for name, bits in text.baselines.items():
            rows.append(row("", text, text.model - bits, everything, "paired difference",
                            metric="bits_per_byte_difference", tags={"less": name}))  # fmt: skip
        sources = np.array(text.rows["source"].to_pylist())
        for source in sorted({*sources.tolist()}):
            rows.append(row("model", text, text.model, sources == source, how,
                            tags={"source": source}, worse="up",
                            where={"part": TEXT, "source": source}))  # fmt: skip
    rows.append(_random_control(random, row))
    high = next(r for r in rows if r["slice"] == "fivegram")["high"]
    found = rate(seen.baselines["fivegram"], seen.sizes).value
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
    end = made["value"] if made["high"] is None else made["high"]
    return {**made, "verdict": "pass" if end >= entropy else "fail"}


def _gzip(texts: Sequence[str]) -> dict[str, Any]:
    value, error, groups = gzip_bits_per_byte([text.encode() for text in texts])
    half, _ = student(error, groups - 1, 0.0, LEVEL)
    method = (
        f"gzip -9 over the documents one behind the other in the order of their hash; "
        f"Student's t, delete-a-group jackknife, {groups} groups of documents"
    )
    return finding(AUDIT, "bits_per_byte", value, part="gzip", low=value - half, high=value + half,
                   unit="bits", n=len(texts), method=method, where={"part": TEXT},
                   table="samples")  # fmt: skip


# The stage -----------------------------------------------------------------------------------


def text_rows(text: Text) -> list[dict[str, Any]]:
    """Rows of SAMPLES."""
    bits = [None] * len(text.rows) if text.model is None else text.model.tolist()
    shown = text.texts if text.part == RANDOM else [None] * len(text.rows)
    each = zip(text.rows.to_pylist(), bits, shown, strict=True)
    return [{**row, "model_bits": cost, "prompt": prompt} for row, cost, prompt in each]


@stage(
    tables={"samples": SAMPLES, "pairs": PAIRS, "findings": FINDINGS},
    libraries=AUDIT_LIBRARIES,
    determinism="machine",
)
def audit_capability(
    checkpoint: Artifact,
    documents: Table,
    baselines: Artifact,
    config: CapabilityConfig,
    work: Work,
) -> None:
    """``baselines``: of the stage ``capability_baselines``, of this model's tokenizer and corpus
    and of the same settings."""
    subject = open_subject(checkpoint, config.device)
    held_out = choose(documents, "validation", config.validation_bytes, config.seed)
    costs = baselines["costs"].read()
    own = costs.filter(pc.equal(costs["part"], TEXT))
    settings = baselines.manifest["parts"]["config"]
    same = settings == config.of_baselines.model_dump(mode="json")
    if not same or own["doc_id"].to_pylist() != held_out["doc_id"].to_pylist():
        raise HallmarkError(
            f"{baselines.name} is of another corpus, or of other settings; give what "
            f"capability_baselines leaves of this one"
        )
    (count,) = {row["documents"] for row in baselines["learned"].read().to_pylist()}
    trained = f"trained on {count:,} documents of the train split"
    recurrent = f"LSTM over the subject's tokens, {config.recurrent_tokens:,} of the train split"
    work.progress(0, 3, "bits per byte")

    def measured(part: str, texts: list[str]) -> Text:
        own = costs.filter(pc.equal(costs["part"], part))
        return Text(part, texts, own, bits_of(subject, texts) if texts else None)

    text = measured(TEXT, held_out["text"].to_pylist())
    random = measured(RANDOM, random_texts(config.seed)["text"].to_pylist())
    seen = measured(SEEN, [])
    rows = [row for part in (text, random, seen) for row in text_rows(part)]
    findings = measure_text(text, random, seen, subject, config, trained, recurrent)
    work.progress(1, 3, "dependencies")
    readers = {SUBJECT: lambda texts, contexts: subject.log_likelihoods(texts, contexts)[0]}
    preferred = prefer([*agreement(), *garden_paths()], readers)
    preferred += baselines["pairs"].read().to_pylist()
    findings += measure_dependencies(preferred, AUDIT)
    work.progress(2, 3, "cloze")
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
