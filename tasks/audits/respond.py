"""Respond: ask the model. The only stage of an audit that opens one.

Requests are answered in chunks that are a function of the requests alone; a kill loses the one in
hand. The model is opened at the first chunk that is not yet answered, once for all probes, in this
process: its kernels use every processor, and with fewer threads some sums would come in another
order, so that the mapper decided what is answered. Nothing here knows what the answers are for:
another scorer, threshold or statistic asks nobody again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from pydantic import Field

from tasks.audits.exchange import EMBEDDINGS, MODEL, REQUESTS, RESPONSES, SETTINGS
from tasks.audits.subjects.reader import READ as READERS
from tasks.audits.subjects.subject import Subject, Written, open_subject
from tasks.contract import (
    Artifact,
    Device,
    ExternalFiles,
    InProcess,
    StageConfig,
    Table,
    Tables,
    Work,
    stage,
    watch_folder,
)

#: Tokens to be written, and to be read, between two moments from which a killed stage goes on.
WRITTEN, READ = 1 << 15, 1 << 18

#: Kinds of requests whose cost is what is written.
WRITES = ("write", "complete")

#: Of the weights of a model that was never trained.
SEED = 0

Row = dict[str, Any]

#: The tables of answers.
ANSWERED = {"responses": RESPONSES, "embeddings": EMBEDDINGS}


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
    listed = rows.select([*SETTINGS, "request", "context", "targets"]).to_pylist()
    order = sorted(range(len(listed)), key=lambda i: (*_settings(listed[i]), *_size(listed[i])))
    cuts, cost, kind = [0], 0, ""
    for place, index in enumerate(order):
        row = listed[index]
        more = row["draws"] * row["tokens"] if row["kind"] in WRITES else _size(row)[0]
        most = WRITTEN if row["kind"] in WRITES else READ
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
    targets = sum(len(target) for target in row["targets"] or ())
    return len(row["context"]) + targets, row["request"]


#: The model that was opened last by what it was opened from, and the files outside the store that
#: it was loaded from.
_opened: dict[tuple[str, str], tuple[Subject, ExternalFiles]] = {}


def opened(checkpoint: Artifact, device: str, seed: int | None = None) -> Subject:
    """The model of a checkpoint, kept until another is asked for or a file of it changes.

    Raises:
        FileChangedError: The files are not those of the checkpoint's digest, or a file changed
            while the model was loaded.
    """
    key = (checkpoint.content, f"{device} {seed}")
    if key not in _opened or _opened[key][1].find_change():
        _opened.clear()
        files = watch_folder(checkpoint)
        subject = open_subject(checkpoint, device, seed=seed)
        files.check()
        _opened[key] = subject, files
    return _opened[key][0]


def answer(chunk: Chunk, checkpoint: Artifact, device: str, seed: int | None, out: Tables) -> Row:
    """Answer the requests of a chunk; says in which precision."""
    subject, requests = opened(checkpoint, device, seed), chunk.requests.to_pylist()
    rows = list(responses_to(subject, requests))
    name = "embeddings" if requests[0]["kind"] == "embed" else "responses"
    out.table(name).write(pa.Table.from_pylist(rows, schema=ANSWERED[name]))
    return {"precision": subject.precision}


def responses_to(subject: Subject, requests: list[Row]) -> Iterator[Row]:
    """Rows of RESPONSES, or of EMBEDDINGS, to rows of REQUESTS of one kind."""
    how = {"write": _written, "read": _read, "complete": _completed, "embed": _embedded}
    for _, group in groupby(requests, key=_settings):
        alike = list(group)
        yield from how[alike[0]["kind"]](subject, alike)


def _written(subject: Subject, alike: list[Row]) -> list[Row]:
    """What was written, and what the model says of it when it reads it again."""
    first = alike[0]
    sampling = ("temperature", "first_temperature", "top_p", "top_k", "seed")
    made = subject.write(
        [row["context"] for row in alike],
        max_new_tokens=first["tokens"],
        samples=first["draws"],
        **{name: first[name] for name in sampling},
    )
    rows = _texts(subject, alike, made)
    contexts = [row["context"] for row in alike for _ in range(row["draws"])]
    if first["moments"]:
        for row, again in zip(rows, _moments(subject, contexts, [r["ids"] for r in rows]),
                              strict=True):  # fmt: skip
            row |= again | {"log_p": row["log_p"]}
    if first["lower"]:
        lower = subject.encode_batch([row["text"].lower() for row in rows])
        for row, log_p in zip(rows, subject.log_probs_behind(contexts, lower), strict=True):
            row["lower_log_p"] = log_p
    return rows


def _completed(subject: Subject, alike: list[Row]) -> list[Row]:
    made = subject.complete(
        [row["context"] for row in alike],
        [row["targets"][0] for row in alike],
        count=alike[0]["draws"],
        max_new_tokens=alike[0]["tokens"],
    )
    return _texts(subject, alike, made)


def _texts(subject: Subject, alike: list[Row], made: list[list[Written]]) -> list[Row]:
    return [
        {"request": row["request"], "draw": draw, "ids": written.ids,
         "text": subject.decode(written.ids), "log_p": written.log_probs,
         "stop": "end" if written.stopped else "length"}
        for row, texts in zip(alike, made, strict=True)
        for draw, written in enumerate(texts)
    ]  # fmt: skip


def _embedded(subject: Subject, alike: list[Row]) -> Iterator[Row]:
    layer = alike[0]["layer"]
    targets = [target for row in alike for target in row["targets"]]
    places = [at for row in alike for at in row["places"]]
    each = iter(subject.embed(targets, places, layer))
    for row in alike:
        for draw in range(len(row["targets"])):
            yield {"request": row["request"], "draw": draw, "layer": layer, "vector": next(each)}


def _read(subject: Subject, alike: list[Row]) -> Iterator[Row]:
    each = iter(_answers(subject, alike))
    for row in alike:
        for draw in range(len(row["targets"])):
            yield {"request": row["request"], "draw": draw, "stop": "", **next(each)}


def _answers(subject: Subject, requests: list[Row]) -> list[Row]:
    """Of each target of each request, one behind the other, what is said of its tokens; requests
    are alike in settings."""
    if subject.kind == "masked":
        from tasks.audits.subjects.masked import Masked

        assert isinstance(subject, Masked)
        targets = [target for row in requests for target in row["targets"]]
        places = [at for row in requests for at in row["places"] or map(_all, row["targets"])]
        return [{"log_p": log_p} for log_p in subject.masked_log_probs(targets, places)]
    if requests[0]["moments"]:
        return _moments(subject, *_pairs(requests))
    return [{"log_p": log_p} for log_p in subject.log_probs_behind(*_pairs(requests))]


def _moments(subject: Subject, contexts: list[list[int]], targets: list[list[int]]) -> list[Row]:
    found = subject.moments(contexts, targets)
    return [{"log_p": m.log_probs, "rank": m.rank + 1, "mean": m.mean, "std": m.std} for m in found]


def _pairs(requests: list[Row]) -> tuple[list[list[int]], list[list[int]]]:
    """Contexts and targets, one a target."""
    return (
        [row["context"] for row in requests for _ in row["targets"]],
        [target for row in requests for target in row["targets"]],
    )


def _all(target: list[int]) -> list[int]:
    return [*range(len(target))]


@stage(
    tables={**ANSWERED, "model": MODEL},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
)
def respond(checkpoint: Artifact, requests: Table, config: RespondConfig, work: Work) -> None:
    """``requests``: of ``ask``. What is to be written needs a context of at least one token."""
    _respond(checkpoint, requests, config, work, None)


@stage(
    tables={**ANSWERED, "model": MODEL},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
    reads={"checkpoint": READERS},
)
def respond_untrained(
    checkpoint: Artifact, requests: Table, config: RespondConfig, work: Work
) -> None:
    """As ``respond``, asking the model as it was before any training: a floor. All checkpoints of
    one training share it."""
    _respond(checkpoint, requests, config, work, SEED)


def _respond(
    checkpoint: Artifact, requests: Table, config: RespondConfig, work: Work, seed: int | None
) -> None:
    work.mapper = InProcess()
    asked = requests.read(REQUESTS.names)
    done = work.map(answer, chunks(asked), checkpoint, config.device, seed)
    precisions = [part.value["precision"] for part in done[:1]]
    work.table("model").write(pa.table({"precision": precisions}, schema=MODEL))
