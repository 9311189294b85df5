"""A probe: what an audit asks, and what it makes of the answers. Each is one file in ``probes/``.

What makes one: its settings, the columns of its items, ``ask`` (items and requests, from a reader
without weights), ``values`` (from answers) and measures: how findings are drawn from values. Two
stages of its own are made of it here; between them stand ``respond`` and
``score``, which know no probe, so that another statistic asks no model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.about import SEEN_ITEMS
from tasks.audits.answers import Answers
from tasks.audits.exchange import READER, REQUESTS, SKIPPED, SOUGHT, Questions
from tasks.audits.judging.findings import FINDINGS, finding, findings_table
from tasks.audits.judging.measures import Measure, Values, measure_all, values_table
from tasks.audits.judging.readings import TOLD, Readings
from tasks.audits.judging.tags import SliceTags, tags_of
from tasks.audits.methods.instruments import instrument
from tasks.audits.subjects.reader import READ, Reader, open_reader
from tasks.contract import Artifact, Stage, StageConfig, Table, Work, stage

#: Clusters of items in which a large effect cannot be overlooked: where all agree, chance agrees as
#: well in 1 of 1,024 draws, which is below the 0.001 that a control asks for.
ENOUGH = 11

#: The metric of the finding that every probe has whose items are looked for in the training text.
SEEN = SEEN_ITEMS

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
    ask       called with (questions, reader, corpus, config): fills ``questions``
    module    where it is written
    measures  what findings are drawn from its values, with
    values    called with (answers, values, config): fills ``values``; returns what the methods of
              all findings end with
    told      columns of its values beside those of its items
    script    called with (items, metric, effect, random numbers): log p of each target of each
              item, (n, targets), or its embedding, (n, targets, d), or texts, (n, draws), of
              who has no effect on that measure, or a large one
    derived   called with (findings of its measures, values, config): further ones, computed from
              them, with
    also      the metrics of these, and the slices that they have beside those of measures
    without_interval  metrics whose findings never have an interval, so that no rule of a policy
              about them can pass
    data      data files that it reads
    external  called with (config, secret_id) for digests of files of the user
    read_back called as ``external``, for files that ``values`` reads
    scored    whether scorers are asked about its texts, with
    heads     what for: scorers that score nothing of that are not asked
    floor     called with the config: whether an untrained model answers its requests, too
    traced    whether what was written, and what is sought, is looked for in the training text
    corpus    tables of the corpus that it asks about, as ``Corpus`` names them
    needs     settings without which it does not run: files of the user
    libraries that decide its findings, beside those of every probe
    reference called with the config: the folder of a model that reads what was written, too
    """

    name: str
    settings: type[StageConfig]
    items: pa.Schema
    ask: Callable[[Questions, Reader, Corpus, Any], None]
    values: Callable[[Answers, Values, Any], str]
    measures: tuple[Measure, ...]
    module: str
    told: tuple[pa.Field, ...] = ()
    script: Callable[[pa.Table, str, bool, np.random.Generator], np.ndarray] | None = None
    derived: Callable[[Sequence[Any], pa.Table, Any], list[dict[str, Any]]] = (
        lambda found, values, config: []
    )
    also: Mapping[str, SliceTags] = field(default_factory=dict)
    without_interval: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    external: Callable[..., dict[str, str]] | None = None
    read_back: Callable[..., dict[str, str]] | None = None
    scored: bool = False
    heads: tuple[str, ...] = ("toxicity",)
    floor: Callable[[Any], bool] = lambda config: False
    traced: bool = True
    corpus: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    reference: Callable[[Any], Path | None] = lambda config: None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of its findings, as far as these are no controls, and no counts of what was not
        asked, which are in ``about.LEFT_OUT``."""
        drawn = [each.metric for each in self.measures if not (each.asks_model or each.law)]
        return tuple(dict.fromkeys([*drawn, *self.also, *([] if self.dated else [SEEN])]))

    def lacks(self, config: Any) -> list[str]:
        """The settings without which it does not run, as far as they are not set."""
        return [name for name in self.needs if not getattr(config, name)]

    def judged(self, answers: Answers, config: Any) -> tuple[pa.Table, list[dict[str, Any]]]:
        """The values, and the rows of the findings."""
        # What asks how much of its training text a model gives away is about what it read.
        seen = None if self.dated else answers.seen()
        made, found = Values(answers.items, seen, answers.read(), self.told), []
        values = made.table()
        if not any(row["count"] is None and not row["part"] for row in answers.skipped):
            note = self.values(answers, made, config)
            values = made.table()
            found = measure_all(self.name, values, self.measures, config, note)
            found += self.derived(found, values, config)
            found += self.instruments(answers, config)
            if seen is not None:
                found.append(
                    finding(self.name, SEEN, seen.count(True),
                            n=len(seen) - seen.count(None),
                            unit="items", table="values", where={"seen": True},
                            method="a text of theirs stands whole in what the model had read; each "
                                   "measure stands with and without them")
                )  # fmt: skip
        return values, [*found, *skipped(self, answers)]

    def instruments(self, answers: Answers, config: Any) -> list[dict[str, Any]]:
        """The verdicts on scripts in place of the model: does this audit find what is there, and
        nothing where nothing is?"""
        rows: list[dict[str, Any] | None] = []
        for measure in (m for m in self.measures if m.scripted and self.script):
            for effect in (False, True):
                assert self.script is not None
                rng = np.random.default_rng(config.seed)
                values = Values(answers.items, told=self.told)
                said = self.script(answers.items, measure.metric, effect, rng)
                self.values(answers.scripted(said), values, config)
                mine = measure.drawn(values.table())
                if len(pc.unique(mine["cluster"])) >= ENOUGH:
                    rows.append(instrument(self.name, mine, measure, config, effect))
        return [row for row in rows if row]

    @property
    def dated(self) -> bool:
        """Whether its findings depend on what training had read by the checkpoint's step."""
        return "doc_ids" in self.items.names


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
        work.table("sought").write(pa.Table.from_pylist(questions.sought, schema=SOUGHT))
        work.table("skipped").write(pa.Table.from_pylist(questions.skipped, schema=SKIPPED))
        known = [{"kind": reader.kind, "begin": reader.begin}]
        work.table("reader").write(pa.Table.from_pylist(known, schema=READER))

    ask.__name__ = f"ask_{probe.name}"
    return stage(
        tables={
            "items": probe.items,
            "requests": REQUESTS,
            "sought": SOUGHT,
            "skipped": SKIPPED,
            "reader": READER,
        },
        code=[probe.module, *probe.data],
        libraries=LIBRARIES,
        external=probe.external,
        reads={"checkpoint": READ},
    )(ask)


def judge_of(probe: Probe) -> Stage:
    """The stage that makes a probe's values and findings."""

    def judge(
        asked: Artifact,
        answered: Artifact,
        scored: Artifact | None,
        checkpoints: dict[str, Artifact] | None,
        pretrained: dict[str, Artifact] | None,
        untrained: Artifact | None,
        untrained_scored: Artifact | None,
        traced: Artifact | None,
        referred: Artifact | None,
        config: Any,
        work: Work,
    ) -> None:
        items = asked["items"].read()
        scores = [each["scores"].read() for each in (scored, untrained_scored) if each]

        def answers_of(
            responses: Artifact,
            place: Artifact | None = None,
            other: Artifact | None = None,
            floor: Answers | None = None,
        ) -> Answers:
            return Answers(
                items,
                asked["requests"].read(),
                responses["responses"].read(),
                pa.concat_tables(scores) if scores else None,
                asked["reader"].read(),
                asked["skipped"].read(),
                scored["scorer"].read()["scorer"][0].as_py() if scored else "",
                readings_of(items, checkpoints, pretrained),
                floor,
                place["traced"].read() if place else None,
                place["held"].read() if place else None,
                scored["scorer"].read() if scored else None,
                responses["embeddings"].read(),
                other["referred"].read() if other else None,
            )

        floor = answers_of(untrained) if untrained else None
        answers = answers_of(answered, traced, referred, floor)
        values, findings = probe.judged(answers, config)
        computed = answered["model"].read()["precision"].to_pylist()
        work.table("values").write(values)
        work.table("findings").write(findings_table(findings, *computed))

    judge.__name__ = f"audit_{probe.name}"
    return stage(
        tables={"values": values_table(probe.items, probe.told), "findings": FINDINGS},
        code=[probe.module, *probe.data],
        libraries=["numpy", "scipy", *probe.libraries],
        external=probe.read_back,
        reads={"asked": ("items", "requests", "reader", "skipped"),
               "answered": ("responses", "embeddings", "model"), "scored": ("scores", "scorer"),
               "untrained": ("responses", "embeddings"), "untrained_scored": ("scores",),
               "pretrained": TOLD, "traced": ("traced", "held"), "referred": ("referred",)},
    )(judge)  # fmt: skip


def skipped(probe: Probe, answers: Answers) -> list[dict[str, Any]]:
    """Findings about what was not asked: how many, or of each measure that it concerns why it has
    no value."""
    rows = []
    units = {measure.metric: measure.unit for measure in probe.measures}
    for row in answers.skipped:
        if row["count"] is not None:
            rows.append(finding(probe.name, row["part"], row["count"], n=row["count"],
                                unit="items", method=row["why"], table=""))  # fmt: skip
            continue
        rows += [
            finding(probe.name, metric, None, n=0, unit=units.get(metric, ""), table="",
                    tags=tags_of(row), method=f"not measured: {row['why']}")
            for metric in ([row["part"]] if row["part"] else units)
        ]  # fmt: skip
    return rows


def readings_of(
    items: pa.Table,
    checkpoints: Mapping[str, Artifact] | None,
    pretrained: Mapping[str, Artifact] | None,
) -> Readings | None:
    """How often the documents of the items were read by a checkpoint's step."""
    if not checkpoints:
        return None
    named = pc.unique(pc.list_flatten(items["doc_ids"])).drop_null().to_pylist()
    return Readings.until(pretrained, checkpoints, named)
