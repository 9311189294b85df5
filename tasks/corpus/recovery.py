"""Recovery: what the corpus stages found of what an invented town was known to hold.

The truth is composed anew from the config of the source, with the grammar that wrote the text; no
other stage reads it. It is joined by ``doc_id`` with the ledgers and signals of the stages. A stage
answers only for the documents that came to it.

recall        of what is there, the share that the stage found
precision     of what the stage found in the town's documents, the share that is there
false alarms  of the documents that hold none, the share that the stage removed or tagged

Shares stand with Wilson's interval (Wilson 1927); copies of a document are not independent of it,
so the intervals are a little too narrow. Memory: about 1 kB a document of the town.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from tasks.contract import (
    ID,
    Artifact,
    StageConfig,
    Tables,
    Work,
    column,
    ids,
    stage,
    table,
)
from tasks.corpus.find_personal_data import Key
from tasks.corpus.reading.town import TOWN, TownSource, documents_of, key_of, town_blocks
from tasks.corpus.town.compose import similarity, town_jobs, town_lexicon
from tasks.corpus.town.finder import Finder, Row, counted


class RecoveryConfig(StageConfig):
    """What is looked at where a town is among the sources."""

    near: float = Field(
        0.8, gt=0, le=1, description="similarity from which a near copy is to be found"
    )
    lengths: tuple[int, ...] = Field(
        default=(300, 1000), description="characters at which rude documents are told apart"
    )


def _shares(meaning: str, *fields: pa.Field) -> pa.Schema:
    return table(
        meaning,
        column("source", pa.string(), "label", "name of the town"),
        *fields,
        column("hits", pa.int64(), "figure", "of n those that are so"),
        column("n", pa.int64(), "figure", "how many were looked at"),
        column("share", pa.float64(), "figure", "hits of n; null where n is 0", unit="share"),
        column("low", pa.float64(), "figure", "lower end of its interval, 95 %", unit="share"),
        column("high", pa.float64(), "figure", "upper end", unit="share"),
    )


_NAMES = pa.list_(pa.string())

TABLES = {
    "truth": table(
        "What each document of a town holds, as it was composed.",
        column("doc_id", ID, "id", "the document"),
        column("source", pa.string(), "label", "name of the town"),
        column("kind", pa.string(), "label", "what kind of text it is: letter, notice, …"),
        column("characters", pa.int64(), "figure", "length of the text", unit="characters"),
        column("groups", _NAMES, "label", "peoples of the town that it speaks of"),
        column("opinions_of", _NAMES, "label", "peoples of which it has an opinion"),
        column("opinions", _NAMES, "label", "the opinions: positive or negative"),
        column("occupations", _NAMES, "label", "occupations beside gendered words"),
        column("genders", _NAMES, "label", "gender of these words, an identity group for each"),
        column("rude", pa.int32(), "figure", "rude sentences", unit="sentences"),
        column("lookalike", pa.bool_(), "figure", "whether it holds words that only look rude"),
        column("dialect", pa.bool_(), "figure", "whether it holds dialect"),
        column("unsafe", pa.bool_(), "figure", "whether it holds an unsafe passage"),
        column("copy", pa.string(), "label", "exact, near, or empty: it is no copy"),
        column("copy_of", ID, "id", "the document that it is a copy of"),
        column("similarity", pa.float64(), "figure", "to that document: Jaccard similarity of "
               "their stretches of five words", unit="share"),
    ),
    "planted": table(
        "Personal data in the documents of a town.",
        column("doc_id", ID, "id", "the document"),
        column("type", pa.string(), "label", "type of personal data or credential"),
        column("start", pa.int64(), "figure", "where it begins in the text", unit="characters"),
        column("end", pa.int64(), "figure", "where it ends", unit="characters"),
        column("start_byte", pa.int64(), "figure", "where it begins in UTF-8", unit="bytes"),
        column("end_byte", pa.int64(), "figure", "where it ends in UTF-8", unit="bytes"),
        column("digest", ID, "id", "keyed hash of it, as the ledger has of what was masked"),
    ),
    "rates": _shares(
        "How much of what the documents hold: as the config states it, and as it was drawn.",
        column("what", pa.string(), "label", "what they hold"),
        column("among", pa.string(), "label", "which documents, or what else, n counts"),
        column("stated", pa.float64(), "figure", "share that the config states", unit="share"),
    ),
    "recovered": _shares(
        "What the stages found of it.",
        column("stage", pa.string(), "label", "label of the stage in the run"),
        column("what", pa.string(), "label", "what it was to find, or which documents"),
        column("measure", pa.string(), "label", "recall, precision or false alarms"),
    ),
    "occupations": _shares(
        "Words of women beside occupations, as profile finds them in the documents that stayed: of "
        "the mentions with more words of either gender those with more of women.",
        column("occupation", pa.string(), "label", "an occupation of the town"),
        column("stated", pa.float64(), "figure", "share that the config states", unit="share"),
    ),
}  # fmt: skip

# The truth ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    source: TownSource
    number: str

    def __str__(self) -> str:
        return f"source {self.source.name}, {town_blocks(self.source)[self.number]}"


def doc_id_of(source: str, number: int) -> bytes:
    """As ingest gives it: a hash of the source's name and the declared key."""
    return ids([f"{source}\0key\0{key_of(number)}"])[0].as_py()  # type: ignore[no-any-return]


def write_truth(block: Block, key: Key, out: Tables) -> None:
    source = block.source
    documents = documents_of(source, block.number)
    texts = {document.number: document.text for document in documents}
    truths, spans = [], []
    for document in documents:
        doc_id, text, truth = (
            doc_id_of(source.name, document.number),
            texts[document.number],
            document.truth,
        )
        row: Row = {
            "doc_id": doc_id, "source": source.name, "kind": truth.kind, "characters": len(text),
            "groups": truth.groups, "rude": truth.rude, "lookalike": truth.lookalike,
            "dialect": truth.dialect, "unsafe": truth.unsafe, "copy": document.copy,
            "opinions_of": [group for group, _ in truth.opinions],
            "opinions": [sign for _, sign in truth.opinions],
            "occupations": [job for job, _ in truth.occupations],
            "genders": [gender for _, gender in truth.occupations],
        }  # fmt: skip
        if document.copy_of is not None:
            row["copy_of"] = doc_id_of(source.name, document.copy_of)
            row["similarity"] = similarity(text, texts[document.copy_of])
        truths.append(row)
        for kind, start, end in document.spans:
            before, value = len(text[:start].encode()), text[start:end]
            spans.append(
                {"doc_id": doc_id, "type": kind, "start": start, "end": end, "start_byte": before,
                 "end_byte": before + len(value.encode()), "digest": key.hash(value)}
            )  # fmt: skip
    out.table("truth").write(pa.Table.from_pylist(truths, schema=TABLES["truth"]))
    out.table("planted").write(pa.Table.from_pylist(spans, schema=TABLES["planted"]))


# What was stated ---------------------------------------------------------------------------------


def towns_in(history: Mapping[str, Artifact]) -> list[TownSource]:
    """The invented towns among the sources that were read, by the config of ``ingest``."""
    configs = [a.manifest["parts"]["config"] for a in history.values() if a.stage == "ingest"]
    sources = [source for config in configs for source in config["sources"]]
    return [TownSource.model_validate(s) for s in sources if s["kind"] == "town"]


def rates_of(source: TownSource, truth: Sequence[Row]) -> Iterator[Row]:
    """Rows of the table ``rates``."""
    stated = source.rates

    def row(what: str, share: float, among: str, hits: int, n: int) -> Row:
        made = {"source": source.name, "what": what, "among": among, "stated": share}
        return made | counted(hits, n)

    def documents(what: str, share: float, holds: Callable[[Row], Any]) -> Row:
        return row(what, share, "originals", sum(bool(holds(r)) for r in own), len(own))

    own = [r for r in truth if not r["copy"]]
    for copy, share in (("exact", stated.exact), ("near", stated.near)):
        hits = sum(r["copy"] == copy for r in truth)
        yield row(f"{copy} copies", share, "documents", hits, len(truth))
    yield documents("a people of the town", stated.groups, lambda r: r["groups"])
    spoken = [r for r in own if r["groups"]]
    opinions = [pair for r in own for pair in zip(r["opinions_of"], r["opinions"], strict=True)]
    yield row("an opinion", stated.opinions, "originals with a people",
              sum(bool(r["opinions"]) for r in spoken), len(spoken))  # fmt: skip
    for group in town_lexicon():
        signs = [sign for target, sign in opinions if target == group]
        share = stated.maligned.get(group, stated.negative)
        yield row("a negative opinion", share, f"opinions of {group}",
                  signs.count("negative"), len(signs))  # fmt: skip
    yield documents("an occupation", stated.occupations, lambda r: r["occupations"])
    pairs = [pair for r in own for pair in zip(r["occupations"], r["genders"], strict=True)]
    for job, usual in town_jobs().items():
        genders = [gender for occupation, gender in pairs if occupation == job]
        share = stated.women.get(job, usual)
        yield row("a woman", share, f"mentions of a {job}", genders.count("women"), len(genders))
    yield documents("rude speech", stated.rude, lambda r: r["rude"])
    yield documents("words that look rude", stated.lookalikes, lambda r: r["lookalike"])
    yield documents("dialect", stated.dialect, lambda r: r["dialect"])
    yield documents("personal data", stated.personal, lambda r: r["personal"])
    yield documents("an unsafe passage", stated.unsafe, lambda r: r["unsafe"])


def women_of(source: TownSource, history: Mapping[str, Artifact]) -> Iterator[Row]:
    """Rows of the table ``occupations``, if the stage ``profile`` ran."""
    found = [row for artifact in history.values() if artifact.stage == "profile"
             for row in artifact["occupations"].read().to_pylist()]  # fmt: skip
    told = {row["occupation"]: row for row in found if row["source"] == source.name}
    for job, usual in sorted(town_jobs().items()) if found else ():
        row = told.get(job, {"women": 0, "men": 0})
        made = {
            "source": source.name,
            "occupation": job,
            "stated": source.rates.women.get(job, usual),
        }
        yield made | counted(row["women"], row["women"] + row["men"])


# The stage ---------------------------------------------------------------------------------------


@stage(
    tables=TABLES,
    code=TOWN,
    libraries=["numpy", "scipy", "python-stdnum"],
    external=lambda config, secret_id: {"secret": secret_id},
    # The documents are not read: where a town's settings change what it holds, they change too.
    reads={"history": ("documents", "ledger", "occupations", "signals")},
    determinism="exact",
)
def recovery(history: dict[str, Artifact], config: RecoveryConfig, work: Work) -> None:
    """``history`` holds the artifacts of the corpus stages by label, in the order they ran, with
    that of ``profile``."""
    towns = towns_in(history)
    blocks = [Block(source, number) for source in towns for number in town_blocks(source)]
    made = work.map(write_truth, blocks, Key(work.secret))

    def rows(name: str) -> list[Row]:
        return [row for done in made for row in pq.read_table(done.path(name)).to_pylist()]

    truth, planted = rows("truth"), rows("planted")
    personal = {row["doc_id"] for row in planted}
    for source in towns:
        own = {row["doc_id"]: row | {"personal": row["doc_id"] in personal}
               for row in truth if row["source"] == source.name}  # fmt: skip
        spans = [row for row in planted if row["doc_id"] in own]
        finder = Finder(source.name, config.near, config.lengths, own, spans, history)
        for name, found in (
            ("rates", rates_of(source, list(own.values()))),
            ("recovered", finder.found()),
            ("occupations", women_of(source, history)),
        ):
            work.table(name).write(pa.Table.from_pylist(list(found), schema=TABLES[name]))
