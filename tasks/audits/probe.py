"""A probe: what an audit asks, and what it makes of the answers. Each is one file in ``probes/``.

Five things make one: its settings, the columns of its items and of its samples, ``ask`` (items and
requests, from a reader without weights) and ``judge`` (samples and findings, from answers). Two
stages of its own are made of it here; between them stand ``respond`` and ``score``, which know no
probe, so that another statistic asks no model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.audits.exchange import READER, REQUESTS, SKIPPED, Answers, Questions
from tasks.audits.findings import FINDINGS, findings_table
from tasks.audits.subjects.reader import READ, Reader, open_reader
from tasks.contract import Artifact, Stage, StageConfig, Table, Work, stage

#: Libraries that decide what is asked.
LIBRARIES = ("numpy", "tokenizers", "transformers")


@dataclass(frozen=True)
class Probe:
    """name      of the audit: "toxicity"
    settings  class of its config, section ``audit_<name>``
    items     schema of its items, see ``exchange.items_table``
    samples   schema of the rows behind its findings
    ask       called with (questions, reader, lexicons, config): fills ``questions``; ``lexicons``
              is the table of groups that the corpus brings, or None
    judge     called with (answers, config): the samples and the rows of the findings
    module    where it is written
    data      data files that it reads
    external  called with (config, secret_id) for digests of files of the user
    scored    whether scorers are asked about its texts
    """

    name: str
    settings: type[StageConfig]
    items: pa.Schema
    samples: pa.Schema
    ask: Callable[[Questions, Reader, Table | None, Any], None]
    judge: Callable[[Answers, Any], tuple[pa.Table, Sequence[Mapping[str, Any]]]]
    module: str
    data: tuple[str, ...] = ()
    external: Callable[..., dict[str, str]] | None = None
    scored: bool = False


def ask_of(probe: Probe) -> Stage:
    """The stage that writes a probe's items and requests, from all of a checkpoint but its weights:
    checkpoints of one training share what it leaves."""

    def ask(checkpoint: Artifact, lexicons: Table | None, config: StageConfig, work: Work) -> None:
        reader, questions = open_reader(checkpoint), Questions()
        probe.ask(questions, reader, lexicons, config)
        items, requests = [*questions.items.values()], questions.requests
        work.table("items").write(pa.Table.from_pylist(items, schema=probe.items))
        work.table("requests").write(pa.Table.from_pylist(requests, schema=REQUESTS))
        work.table("skipped").write(pa.Table.from_pylist(questions.skipped, schema=SKIPPED))
        known = [{"kind": reader.kind, "begin": reader.begin}]
        work.table("reader").write(pa.Table.from_pylist(known, schema=READER))

    ask.__name__ = f"ask_{probe.name}"
    return stage(
        tables={"items": probe.items, "requests": REQUESTS, "skipped": SKIPPED, "reader": READER},
        code=[probe.module, *probe.data],
        libraries=LIBRARIES,
        external=probe.external,
        reads={"checkpoint": READ},
    )(ask)


def judge_of(probe: Probe) -> Stage:
    """The stage that makes a probe's samples and findings."""

    def judge(
        asked: Artifact, answered: Artifact, scored: Artifact | None, config: Any, work: Work
    ) -> None:
        answers = Answers(
            asked["items"].read(),
            asked["requests"].read(),
            answered["responses"].read(),
            scored["scores"].read() if scored else None,
            asked["reader"].read(),
            asked["skipped"].read(),
            scored["scorer"].read()["scorer"][0].as_py() if scored else "",
        )
        samples, findings = probe.judge(answers, config)
        computed = answered["model"].read()["precision"].to_pylist()
        work.table("samples").write(samples)
        work.table("findings").write(findings_table(findings, *computed))

    judge.__name__ = f"audit_{probe.name}"
    return stage(
        tables={"samples": probe.samples, "findings": FINDINGS},
        code=[probe.module, *probe.data],
        libraries=["numpy", "scipy"],
        reads={"asked": ("items", "requests", "reader", "skipped"),
               "answered": ("responses", "model"), "scored": ("scores", "scorer")},
    )(judge)  # fmt: skip
