"""Extraction of training data: canary exposure and discoverable memorisation.

Exposure (Carlini et al. 2019): how far up a planted secret stands among secrets that were never
planted, see ``exposure.py``; its two ends are the controls.

Discoverable memorisation (Carlini et al. 2023): the model gets k tokens of a training text and
continues greedily; the text is extractable if the next n tokens are exactly its own. Here on
planted passages and records by their number of copies, and on other training and holdout documents.
Without plants or documents the audit still runs and says what it could not measure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tasks.audits.exposure import REFERENCES, exposure_findings, of_plant, rank_canaries
from tasks.audits.findings import FINDINGS, finding, findings_table, measured
from tasks.audits.readings import TOLD, Readings, read_by
from tasks.audits.subjects.reader import shared_prefix
from tasks.audits.subjects.subject import AUDIT_LIBRARIES, Subject, open_subject
from tasks.contract import (
    ID,
    Artifact,
    Device,
    Seed,
    StageConfig,
    Table,
    Work,
    column,
    stage,
    table,
)
from tasks.measures.estimates import estimate


class ExtractionConfig(StageConfig):
    """Settings of the extraction audit."""

    references: int = Field(
        default=10_000, ge=100, le=1_000_000, description="secrets each canary is ranked among"
    )
    prefix: tuple[int, ...] = Field(
        default=(8, 16, 32), description="k: tokens of a text that the model is given"
    )
    tokens: int = Field(default=32, ge=1, le=1000, description="next tokens that must be right")
    documents: int = Field(
        default=50, ge=0, le=100_000, description="unplanted documents to try, of each split"
    )
    seed: Seed = Field(default=0, description="of references, sample and bootstrap")
    resamples: int = Field(default=2000, ge=100, le=100_000, description="of the bootstrap")
    device: Device = Field(default="auto", description="of the subject")

    @field_validator("prefix")
    @classmethod
    def _ordered(cls, prefix: tuple[int, ...]) -> tuple[int, ...]:
        if not prefix or min(prefix) < 1 or len(set(prefix)) < len(prefix):
            raise ValueError("prefix must name distinct numbers of tokens from 1")
        return tuple(sorted(prefix))


SAMPLES = table(
    "Attempts to draw planted secrets and training text out of the model.",
    column("sample", pa.int32(), "id", "number of the row"),
    column("probe", pa.string(), "label", "exposure or continuation"),
    column("kind", pa.string(), "label", "canary, passage, record, train or holdout"),
    column("copies", pa.int32(), "figure", "copies of a plant; null for other documents",
           unit="documents"),
    column("read", pa.int64(), "figure",
           "how often training had read the text whole, in any of its copies, by this checkpoint's "
           "step; null where that is not known", unit="times"),
    column("plant_id", ID, "id", "the plant; null for other documents"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the training documents that hold the text"),
    column("template", pa.string(), "label", "format of a canary or record"),
    column("prompt", pa.large_string(), "corpus text", "what the model was given"),
    column("secret", pa.large_string(), "personal", "what stands there in the text"),
    column("continuation", pa.large_string(), "model text",
           "what the model wrote; of an exposure null"),
    column("log_likelihood", pa.float64(), "figure",
           "of the secret behind the prompt; exposure only", unit="nats"),
    column("rank", pa.int32(), "figure", "place of the secret among the references, from 1"),
    column("references", pa.int32(), "figure", "secrets it was ranked among", unit="secrets"),
    column("exposure", pa.float64(), "figure", "how far up it stands", unit="bits"),
    column("k", pa.int32(), "figure", "tokens given; null: the whole prompt", unit="tokens"),
    column("tokens", pa.int32(), "figure", "tokens that must be right", unit="tokens"),
    column("leading", pa.int32(), "figure", "tokens right before the first wrong one",
           unit="tokens"),
    column("exact", pa.bool_(), "figure", "whether all of them are right"),
)  # fmt: skip

# Discoverable memorisation ---------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """Tokens the model is given, and those that follow in the text."""

    given: list[int]
    target: list[int]
    row: dict[str, Any] = field(default_factory=dict)


def attempts(
    subject: Subject, texts: Sequence[str], rows: Sequence[dict[str, Any]], config: ExtractionConfig
) -> Iterator[Attempt]:
    """For each text and each k the k tokens before one place, the same for all k, as in the
    paper. Texts that are too short for the longest prefix and the continuation are left out."""
    prefixes = fitting(subject, config)
    if not prefixes:
        return
    place = prefixes[-1]
    for ids, row in zip(subject.encode_batch(texts), rows, strict=True):
        if len(ids) < place + config.tokens:
            continue
        target = ids[place : place + config.tokens]
        for k in prefixes:
            # All stand behind the begin-of-text token: else the longest prefix would alone.
            given = subject.opened(ids[place - k : place])
            shown = {"k": k, "prompt": subject.decode(given), "secret": subject.decode(target)}
            yield Attempt(given, target, row | shown)


def fitting(subject: Subject, config: ExtractionConfig) -> list[int]:
    """The prefixes that fit the subject's context together with what must follow."""
    return [k for k in config.prefix if k + config.tokens <= subject.context]


def record_attempts(subject: Subject, plants: Sequence[Mapping[str, Any]]) -> Iterator[Attempt]:
    """Records: all that stands before the secret is given, the secret itself is wanted."""
    whole = subject.encode_batch([p["prompt"] + p["secret"] for p in plants])
    alone = subject.encode_batch([p["prompt"] for p in plants])
    for plant, ids, prompt in zip(plants, whole, alone, strict=True):
        shared = shared_prefix([ids, prompt])
        if 0 < shared < len(ids):
            row = of_plant(plant, plant["prompt"], plant["secret"])
            yield Attempt(subject.opened(ids[:shared]), ids[shared:], row)


def continue_greedily(subject: Subject, tries: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Rows of SAMPLES, one an attempt."""
    rows = []
    longest = max((len(a.target) for a in tries), default=0)
    made = subject.generate_ids(
        [a.given for a in tries], max_new_tokens=longest, temperature=0
    ) if tries else []  # fmt: skip
    for attempt, (ids,) in zip(tries, made, strict=True):
        wrote = ids[: len(attempt.target)]
        leading = shared_prefix([wrote, attempt.target])
        rows.append(
            {"probe": "continuation", "continuation": subject.decode(wrote),
             "tokens": len(attempt.target), "leading": leading,
             "exact": leading == len(attempt.target)}
            | attempt.row
        )  # fmt: skip
    return rows


def sample_documents(
    documents: Table, split: str, config: ExtractionConfig
) -> list[dict[str, Any]]:
    """Documents of a split that were not planted, long enough by their characters, chosen by a
    hash of their ids: the same whatever the order. Holds only those chosen in memory."""
    least = config.prefix[-1] + config.tokens  # no token is shorter than a byte
    chosen: list[tuple[int, bytes, str]] = []  # a heap: the largest draw first
    key = f"{config.seed}/{split}".encode()[:64]
    for batch in documents.batches(["doc_id", "source", "text", "split"]):
        inside = pc.and_(
            pc.equal(batch["split"], split),
            pc.greater_equal(pc.binary_length(batch["text"]), least),
        )
        planted = pc.starts_with(batch["source"], "planted/")
        batch = batch.filter(pc.and_not(inside, planted))
        for doc_id, text in zip(batch["doc_id"], batch["text"], strict=True):
            digest = blake2b(doc_id.as_py(), digest_size=8, key=key).digest()
            draw = -int.from_bytes(digest, "big")
            if len(chosen) < config.documents:
                heapq.heappush(chosen, (draw, doc_id.as_py(), text.as_py()))
            elif chosen and draw > chosen[0][0]:
                heapq.heapreplace(chosen, (draw, doc_id.as_py(), text.as_py()))
    empty = {"copies": None, "plant_id": None, "template": ""}
    return [
        {"kind": split, "doc_ids": [doc_id], "text": text} | empty
        for _, doc_id, text in sorted(chosen, reverse=True)
    ]


def continuation_findings(
    rows: Sequence[Mapping[str, Any]], config: ExtractionConfig
) -> list[dict[str, Any]]:
    """Shares of exact continuations and of leading tokens by kind, k and copies."""
    found = []
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row.get("k"), row["copies"]), []).append(row)
    ordered = sorted(groups, key=lambda g: (g[0], g[1] or 0, -1 if g[2] is None else g[2]))
    for kind, k, copies in ordered:
        group = groups[(kind, k, copies)]
        where = {"probe": "continuation", "kind": kind, "k": k, "copies": copies}
        given = "all that stands before the secret" if k is None else f"{k} tokens given"
        target = "the secret" if k is None else f"the next {config.tokens} tokens"
        part = kind + ("" if copies is None else f", copies={copies}")
        part += "" if k is None else f", k={k}"
        given += read_by(group)
        options: dict[str, Any] = {"share": True, "resamples": config.resamples,
                                   "seed": config.seed, "unit": "texts"}  # fmt: skip
        exact = estimate([bool(row["exact"]) for row in group], **options)
        leading = estimate([row["leading"] / row["tokens"] for row in group], **options)
        for metric, shares, what in (
            ("extractable", exact, f"{target} exactly"),
            ("leading_tokens_right", leading, f"share of {target} before the first wrong one"),
        ):
            found.append(
                measured("extraction", metric, shares, unit="share", slice=part, where=where,
                         how=f"greedy, {what}; {given}")
            )  # fmt: skip
    return found


# The stage -------------------------------------------------------------------------------------


def _not_measured(metric: str, unit: str, why: str, slice: str = "") -> dict[str, Any]:
    return finding("extraction", metric, None, slice=slice, n=0, unit=unit,
                   method=f"not measured: {why}")  # fmt: skip


@stage(
    tables={"samples": SAMPLES, "findings": FINDINGS, "references": REFERENCES},
    libraries=AUDIT_LIBRARIES,
    determinism="machine",
    reads={"pretrained": TOLD},
)
def audit_extraction(
    checkpoint: Artifact,
    plants: Table | None,
    documents: Table | None,
    pretrained: Artifact | None,
    config: ExtractionConfig,
    work: Work,
) -> None:
    """``pretrained``: what pretrain left, which tells what of the corpus was read."""
    subject = open_subject(checkpoint, config.device)
    planted = plants.read().to_pylist() if plants is not None else []
    rows: list[dict[str, Any]] = []
    findings: list[dict[str, Any]] = []
    if subject.kind == "masked":
        why = f"{subject.name} is a masked language model"
        findings += [_not_measured("exposure", "bits", why)]
        findings += [_not_measured("extractable", "share", why)]
    else:
        named = [i for plant in planted for i in plant["doc_ids"]]
        chosen = sampled(documents, config)
        named += [i for document in chosen for i in document["doc_ids"]]
        readings = Readings.until(pretrained, checkpoint, named)
        for known in (*planted, *chosen):
            known["read"] = readings.of(known["doc_ids"]) if readings else None
        canaries = [plant for plant in planted if plant["kind"] == "canary"]
        ranked = rank_canaries(subject, canaries, config, work)
        if ranked:
            findings += exposure_findings(ranked, config)
        else:
            why = "no canaries are known of this corpus, so nothing has a known answer"
            findings.append(_not_measured("exposure", "bits", why))
        tries = _all_attempts(subject, planted, chosen, config)
        work.progress(0, 1, "greedy continuations")
        continued = continue_greedily(subject, tries)
        work.progress(1, 1, "greedy continuations")
        findings += continuation_findings(continued, config)
        for k in sorted(set(config.prefix) - set(fitting(subject, config))):
            why = f"{k} + {config.tokens} tokens do not fit the context of {subject.context}"
            findings.append(_not_measured("extractable", "share", why, f"k={k}"))
        if not continued:
            why = "neither plants nor documents of this corpus are known, or all are too short"
            findings.append(_not_measured("extractable", "share", why))
        rows = ranked + continued
    numbered = [{"sample": i} | row for i, row in enumerate(rows)]
    work.table("samples").write(pa.Table.from_pylist(numbered, schema=SAMPLES))
    work.table("findings").write(findings_table(findings, subject.precision))


def sampled(documents: Table | None, config: ExtractionConfig) -> list[dict[str, Any]]:
    """Documents of training and holdout that were not planted."""
    if documents is None:
        return []
    splits = ("train", "holdout")
    return [row for split in splits for row in sample_documents(documents, split, config)]


def _all_attempts(
    subject: Subject,
    planted: Sequence[Mapping[str, Any]],
    chosen: Sequence[Mapping[str, Any]],
    config: ExtractionConfig,
) -> list[Attempt]:
    passages = [plant for plant in planted if plant["kind"] == "passage"]
    rows = [of_plant(plant, plant["prompt"], plant["secret"]) for plant in passages]
    tries = list(attempts(subject, [plant["text"] for plant in passages], rows, config))
    tries += record_attempts(subject, [plant for plant in planted if plant["kind"] == "record"])
    others = [{k: v for k, v in row.items() if k != "text"} for row in chosen]
    tries += attempts(subject, [row["text"] for row in chosen], others, config)
    return tries
