"""A probe: what an audit asks, and what it makes of the answers. Each is one file in ``probes/``.

What makes one: its settings, the columns of its items and of its samples,
``ask`` (items and requests, from a reader without weights) and ``judge`` (samples and findings,
from answers). Two stages of its own are made of it here; between them stand ``respond`` and
``score``, which know no probe, so that another statistic asks no model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.exchange import READER, REQUESTS, SKIPPED, Answers, Questions
from tasks.audits.findings import FINDINGS, findings_table
from tasks.audits.readings import TOLD, Readings
from tasks.audits.subjects.reader import READ, Reader, open_reader
from tasks.contract import Artifact, Stage, StageConfig, Table, Work, stage

#: Libraries that decide what is asked.
LIBRARIES = ("numpy", "tokenizers", "transformers")


@dataclass(frozen=True)
class Corpus:
    """Tables of the training corpus that a probe asks about; None where they are not known.

    lexicons   groups that the corpus brings, as the stage ``identities`` leaves them
    plants     texts that were planted
    documents  all documents
    """

    lexicons: Table | None = None
    plants: Table | None = None
    documents: Table | None = None


@dataclass(frozen=True)
class Probe:
    """name      of the audit: "toxicity"
    settings  class of its config, section ``audit_<name>``
    items     schema of its items, see ``exchange.items_table``
    samples   schema of the rows behind its findings
    ask       called with (questions, reader, corpus, config): fills ``questions``
    judge     called with (answers, config): the samples and the rows of the findings
    module    where it is written
    data      data files that it reads
    external  called with (config, secret_id) for digests of files of the user
    scored    whether scorers are asked about its texts
    corpus    tables of the corpus that it asks about, as ``Corpus`` names them
    """

    name: str
    settings: type[StageConfig]
    items: pa.Schema
    samples: pa.Schema
    ask: Callable[[Questions, Reader, Corpus, Any], None]
    judge: Callable[[Answers, Any], tuple[pa.Table, Sequence[Mapping[str, Any]]]]
    module: str
    data: tuple[str, ...] = ()
    external: Callable[..., dict[str, str]] | None = None
    scored: bool = False
    corpus: tuple[str, ...] = ()

    @property
    def dated(self) -> bool:
        """Whether its findings depend on what training had read by the checkpoint's step."""
        return "documents" in self.corpus


def ask_of(probe: Probe) -> Stage:
    """The stage that writes a probe's items and requests, from all of a checkpoint but its weights:
    checkpoints of one training share what it leaves."""

    def ask(
        checkpoint: Artifact,
        lexicons: Table | None,
        plants: Table | None,
        documents: Table | None,
        config: StageConfig,
        work: Work,
    ) -> None:
        reader, questions = open_reader(checkpoint), Questions()
        probe.ask(questions, reader, Corpus(lexicons, plants, documents), config)
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
        asked: Artifact,
        answered: Artifact,
        scored: Artifact | None,
        checkpoint: Artifact | None,
        pretrained: Artifact | None,
        config: Any,
        work: Work,
    ) -> None:
        items = asked["items"].read()
        answers = Answers(
            items,
            asked["requests"].read(),
            answered["responses"].read(),
            scored["scores"].read() if scored else None,
            asked["reader"].read(),
            asked["skipped"].read(),
            scored["scorer"].read()["scorer"][0].as_py() if scored else "",
            readings_of(items, checkpoint, pretrained),
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
               "answered": ("responses", "model"), "scored": ("scores", "scorer"),
               "pretrained": TOLD},
    )(judge)  # fmt: skip


def readings_of(
    items: pa.Table, checkpoint: Artifact | None, pretrained: Artifact | None
) -> Readings | None:
    """How often the documents of the items were read by a checkpoint's step."""
    if checkpoint is None or pretrained is None:
        return None
    named = pc.unique(pc.list_flatten(items["doc_ids"])).drop_null().to_pylist()
    return Readings.until(pretrained, checkpoint, named)
