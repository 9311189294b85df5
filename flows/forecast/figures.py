"""What a corpus comes to: counted where its artifacts are known, else estimated from a sample.

A figure is a value and whether it is exact. Estimates scale what became of the sample by bytes,
each source by itself. They do not see duplicates between what was read and what was not: of a
corpus that repeats itself less remains than they say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from model.tokens import PAD
from tasks.contract import Artifact, Table, utf8_bytes
from tasks.measures.canaries import canaries, records
from tasks.measures.planted_associations import associations
from tasks.training.encoding import load_tokenizer

if TYPE_CHECKING:
    from flows.config import Config
    from flows.forecast.sampling import Sample
    from tasks.corpus.plant import PlantConfig

SPLITS = ("train", "validation", "holdout")


@dataclass(frozen=True)
class Figure:
    value: float | None  # None: not known
    exact: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


UNKNOWN = Figure(None)


def counts_of(documents: Table) -> dict[str, tuple[int, int]]:
    """Documents and bytes of text by source, from the manifest."""
    found: dict[str, tuple[int, int]] = {}
    for source, action, rows, _, size, *_ in documents.counts:
        if action == "document":
            before = found.get(source, (0, 0))
            found[source] = (before[0] + rows, before[1] + size)
    return found


#: Of a source: how many records of what was read go to quarantine; the first, and why.
QUARANTINED = ("quarantined", "first_quarantined")


def quarantined_of(ingested: Artifact) -> dict[str, tuple[int, str]]:
    """By source, as ``QUARANTINED``."""
    found: dict[str, tuple[int, str]] = {}
    columns = ["source", "file", "place", "error", "records"]
    for row in ingested["quarantine"].read(columns).to_pylist():
        count, first = found.get(row["source"], (0, ""))
        first = first or f"{row['file']}, {row['place']}: {row['error']}"
        found[row["source"]] = count + row["records"], first
    return found


def tokens_of(packed: Artifact, split: str, context: int) -> int:
    """Tokens of a packed split; only the last row is padded."""
    table = packed[split]
    if not table.rows:
        return 0
    ids = next(p for p in reversed(table.parts) if p.rows).read(["ids"])["ids"]
    padded = pc.sum(pc.equal(ids[-1].values, PAD)).as_py()
    return table.rows * context - int(padded)


def vocabulary_of(tokenizer: Artifact) -> int:
    return load_tokenizer(tokenizer.path("tokenizer.json")).get_vocab_size()


def split_counts(documents: Table) -> dict[str, int]:
    """Documents by split that were not planted."""
    found = dict.fromkeys(SPLITS, 0)
    for batch in documents.batches(["source", "split"]):
        own = batch.filter(pc.invert(pc.starts_with(batch["source"], "planted/")))
        for row in pc.value_counts(own["split"]).to_pylist():
            found[row["values"]] += row["counts"]
    return found


@dataclass(frozen=True)
class Grown:
    """What became of a sample, each source scaled to its size."""

    sample: Sample
    made: Mapping[str, Artifact]  # by label; without planted documents

    def sums(self, label: str) -> tuple[float, float] | None:
        """Documents and bytes that a stage would leave; None where a source's size is unknown."""
        found = [
            (self.sample.scale(source), *both)
            for source, both in counts_of(self.made[label]["documents"]).items()
        ]
        if any(scale is None for scale, *_ in found):
            return None
        return (sum((s or 0) * n for s, n, _ in found), sum((s or 0) * b for s, _, b in found))

    def passages(self, config: PlantConfig) -> tuple[float, float] | None:
        """How many training documents could be held back as passages, and their mean bytes."""
        rows = self.made["split"]["documents"].read(["source", "cluster", "split", "text"])
        clusters = pc.value_counts(rows["cluster"].combine_chunks())
        alone = clusters.filter(pc.equal(clusters.field("counts"), 1)).field("values")
        length = pc.utf8_length(rows["text"])
        fits = pc.and_(pc.greater_equal(length, config.shortest),
                       pc.less_equal(length, config.longest))  # fmt: skip
        fits = pc.and_(fits, pc.equal(rows["split"], "train"))
        chosen = rows.filter(pc.and_(fits, pc.is_in(rows["cluster"], value_set=alone)))
        scales = [self.sample.scale(source) for source in chosen["source"].to_pylist()]
        if any(scale is None for scale in scales):
            return None
        sizes = utf8_bytes(chosen["text"]).to_pylist()
        usual = (config.shortest + config.longest) / 2
        return sum(scale or 0 for scale in scales), mean(sizes) if sizes else usual

    def tokens_per_byte(self, context: int) -> float:
        """Of the training text of the sample, with the tokenizer made on it."""
        documents = self.made["plant"]["documents"]
        train = documents.dataset().to_table(["text"], filter=pc.field("split") == "train")
        size = pc.sum(utf8_bytes(train["text"])).as_py() or 0
        return tokens_of(self.made["pack"], "train", context) / size if size else 0.0


def planted(config: PlantConfig, passage: float) -> tuple[float, float]:
    """Documents and bytes that planting adds, less those it holds back, of ``passage`` bytes."""
    if not config.enabled:
        return 0.0, 0.0
    texts = [*canaries(config), *records(config), *associations(config)]
    rows = sum(text.copies for text in texts)
    size = sum(text.copies * len(text.text.encode()) for text in texts)
    copies = config.passages * (sum(config.counts) - len(config.counts))
    return float(rows + copies), size + copies * passage


def corpus_figures(
    config: Config,
    known: Mapping[str, Artifact],
    grown: Grown | None,
    earlier: Sequence[Artifact] = (),
) -> dict[str, Figure]:
    """Documents, bytes, tokens and packed rows of the corpus, each as well as it is known.

    ``earlier``: the documents that it adds to, and that count with it.
    """
    names = ("documents", "bytes", *SPLITS, "tokens", "train_rows", "validation_rows", "passages")
    found = dict.fromkeys(names, UNKNOWN)
    shares = _shares(config)
    sums, extra = None, (0.0, 0.0)  # of what is not planted, and of what is
    if grown and (candidates := grown.passages(config.plant)):
        found["passages"] = Figure(candidates[0])
        sums, extra = grown.sums("plant"), planted(config.plant, candidates[1])
    if sums:
        before = Table(tuple(earlier), "documents")
        there, splits = _total(counts_of(before).values()), split_counts(before)
        found["documents"], found["bytes"] = (Figure(there[i] + sums[i] + extra[i]) for i in (0, 1))
        found |= {s: Figure(splits[s] + sums[0] * share) for s, share in shares.items()}
        sums = (there[0] + sums[0], there[1] + sums[1])
    if "plant" in known:
        documents = Table((*earlier, known["plant"]), "documents")
        every = counts_of(documents)
        own = [both for source, both in every.items() if not source.startswith("planted/")]
        whole, sums = _total(every.values()), _total(own)
        extra = (whole[0] - sums[0], whole[1] - sums[1])
        found["documents"], found["bytes"] = (Figure(value, True) for value in whole)
        found |= {s: Figure(rows, True) for s, rows in split_counts(documents).items()}
    if "pack" in known:
        packed = known["pack"]
        found["tokens"] = Figure(tokens_of(packed, "train", config.pack.context), True)
        for split in ("train", "validation"):
            found[f"{split}_rows"] = Figure(packed[split].rows, True)
    elif grown and sums:
        rate = grown.tokens_per_byte(config.pack.context)
        tokens = rate * (sums[1] * shares["train"] + extra[1])
        found["tokens"] = Figure(tokens)
        for split, n in (("train", tokens), ("validation", rate * sums[1] * shares["validation"])):
            found[f"{split}_rows"] = Figure(math.ceil(n / config.pack.context))
    return found


def _total(pairs: Iterable[tuple[int, int]]) -> tuple[float, float]:
    rows, sizes = [*zip(*pairs, strict=True)] or [(), ()]
    return float(sum(rows)), float(sum(sizes))


def _shares(config: Config) -> dict[str, float]:
    validation, holdout = config.split.validation, config.split.holdout
    return {"train": 1 - validation - holdout, "validation": validation, "holdout": holdout}


def source_figures(
    known: Mapping[str, Artifact], grown: Grown | None, sample: Sample | None
) -> list[dict[str, Any]]:
    """Documents and bytes of text by source, as ingest leaves them."""
    if "ingest" in known:
        bad = quarantined_of(known["ingest"])
        return [
            _source(source, Figure(rows, True), Figure(size, True), 1.0)
            | dict(zip(QUARANTINED, bad.get(source, (0, "")), strict=True))
            for source, (rows, size) in counts_of(known["ingest"]["documents"]).items()
        ]
    made = counts_of(grown.made["ingest"]["documents"]) if grown else {}
    found = []
    for source, reading in sample.readings.items() if sample else ():
        rows, size = made.get(source, (reading.documents, reading.text))
        scale = reading.scale
        if scale is None:
            row = _source(source, UNKNOWN, UNKNOWN, None)
        else:
            row = _source(source, Figure(rows * scale), Figure(size * scale), 1 / scale)
        bad_ones = reading.unreadable, reading.first_unreadable
        told = dict(zip(QUARANTINED, bad_ones, strict=True))
        found.append(row | {"problem": reading.problem} | told)
    return found


def _source(source: str, rows: Figure, size: Figure, read: float | None) -> dict[str, Any]:
    return {"source": source, "documents": rows.to_json(), "bytes": size.to_json(), "read": read}
