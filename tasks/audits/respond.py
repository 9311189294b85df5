"""Respond: ask the model. The only stage of an audit that opens one.

Requests are answered in chunks that are a function of the requests alone; a kill loses the one in
hand. The model is opened at the first chunk that is not yet answered, once for all probes, in this
process: its kernels use every processor. Nothing here knows what the answers are for: another
scorer, threshold or statistic asks nobody again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.audits.exchange import MODEL, REQUESTS, RESPONSES, SETTINGS
from tasks.audits.subjects.subject import Subject, open_subject
from tasks.contract import Artifact, Device, InProcess, StageConfig, Table, Tables, Work, stage

#: Tokens to be written, and to be read, between two moments from which a killed stage goes on.
WRITTEN, READ = 1 << 15, 1 << 18

Row = dict[str, Any]


class RespondConfig(StageConfig):
    """Settings of the model under audit."""

    device: Device = Field(default="auto", description="of the model under audit")


@dataclass(frozen=True)
class Chunk:
    """Requests of one kind that are answered together."""

    number: int
    requests: pa.Table

    def __str__(self) -> str:
        return f"chunk {self.number + 1} of the requests"


def chunks(requests: pa.Table) -> list[Chunk]:
    """The distinct requests, those alike in settings and length together."""
    ids = requests["request"].to_pylist()
    first = list({request: place for place, request in reversed([*enumerate(ids)])}.values())
    rows = requests.take(pa.array(sorted(first), pa.int64()))
    listed = rows.select([*SETTINGS, "request", "context", "target"]).to_pylist()
    order = sorted(range(len(listed)), key=lambda i: (*_settings(listed[i]), *_size(listed[i])))
    cuts, cost, kind = [0], 0, ""
    for place, index in enumerate(order):
        row = listed[index]
        more = row["draws"] * row["tokens"] if row["kind"] == "write" else _size(row)[0]
        most = WRITTEN if row["kind"] == "write" else READ
        if place > cuts[-1] and (cost + more > most or row["kind"] != kind):
            cuts.append(place)
            cost = 0
        cost, kind = cost + more, row["kind"]
    ends = [*cuts[1:], len(order)]
    return [
        Chunk(number, rows.take(pa.array(order[begin:end], pa.int64())))
        for number, (begin, end) in enumerate(zip(cuts, ends, strict=True))
        if begin < end
    ]


def _settings(row: Row) -> tuple[Any, ...]:
    return tuple(-1 if row[name] is None else row[name] for name in SETTINGS)


def _size(row: Row) -> tuple[int, bytes]:
    return len(row["context"]) + len(row["target"] or ()), row["request"]


#: The model that was opened last, and what it was opened from.
_opened: dict[tuple[str, str], Subject] = {}


def opened(checkpoint: Artifact, device: str) -> Subject:
    """The model of a checkpoint, kept until another is asked for."""
    key = (checkpoint.content, device)
    if key not in _opened:
        _opened.clear()
        _opened[key] = open_subject(checkpoint, device)
    return _opened[key]


def answer(chunk: Chunk, checkpoint: Artifact, device: str, out: Tables) -> Row:
    """Answer the requests of a chunk; says in which precision."""
    subject = opened(checkpoint, device)
    requests = chunk.requests.to_pylist()
    answers = _written if requests[0]["kind"] == "write" else _read
    rows = list(answers(subject, requests))
    out.table("responses").write(pa.Table.from_pylist(rows, schema=RESPONSES))
    return {"precision": subject.precision}


def _written(subject: Subject, requests: list[Row]) -> Iterator[Row]:
    for _, group in groupby(requests, key=_settings):
        alike = list(group)
        options = {name: alike[0][name] for name in ("temperature", "top_p", "top_k", "seed")}
        made = subject.write(
            [row["context"] for row in alike],
            max_new_tokens=alike[0]["tokens"],
            samples=alike[0]["draws"],
            **options,
        )
        for row, texts in zip(alike, made, strict=True):
            for draw, written in enumerate(texts):
                yield {"request": row["request"], "draw": draw, "ids": written.ids,
                       "text": subject.decode(written.ids), "log_p": written.log_probs,
                       "stop": "end" if written.stopped else "length"}  # fmt: skip


def _read(subject: Subject, requests: list[Row]) -> Iterator[Row]:
    for row, log_p in zip(requests, _log_probs(subject, requests), strict=True):
        yield {"request": row["request"], "draw": 0, "log_p": log_p, "stop": ""}


def _log_probs(subject: Subject, requests: list[Row]) -> list[np.ndarray]:
    if subject.kind == "masked":
        from tasks.audits.subjects.masked import Masked

        assert isinstance(subject, Masked)
        targets = [row["target"] for row in requests]
        places = [row["places"] for row in requests]
        places = [
            [*range(len(t))] if p is None else p for t, p in zip(targets, places, strict=True)
        ]
        return list(subject.masked_log_probs(targets, places))
    given = [len(row["context"]) for row in requests]
    scored = subject.log_probs([[*row["context"], *row["target"]] for row in requests], given)
    return [log_p[before - 1 :] for log_p, before in zip(scored, given, strict=True)]


def _asked_places(row: Row) -> list[int]:
    return [*range(len(row["target"]))] if row["places"] is None else row["places"]


@stage(
    tables={"responses": RESPONSES, "model": MODEL},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
)
def respond(checkpoint: Artifact, requests: Table, config: RespondConfig, work: Work) -> None:
    """``requests``: of ``ask``. Only a causal model's context must hold a token."""
    work.mapper = InProcess()
    asked = requests.read(REQUESTS.names)
    done = work.map(answer, chunks(asked), checkpoint, config.device)
    precisions = [part.value["precision"] for part in done[:1]]
    work.table("model").write(pa.table({"precision": precisions}, schema=MODEL))
