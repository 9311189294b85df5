"""Membership inference: can the documents that were trained on be told from those that were not?

Training documents are members, held-out ones of the same corpus are not; the split is by lot, so
that nothing else tells them apart. Of planted passages those with copies are members and those
without are not. Each document's first tokens are read once, and scored in five ways; higher is more
like a member:

loss         mean log-likelihood of its tokens (Yeom et al. 2018)
zlib         its log-likelihood over the bytes that zlib makes of it (Carlini et al. 2021)
lower        the same over that of the text in lower case (Carlini et al. 2021)
min-k        mean of the lowest 20 % of the log-likelihoods (Shi et al. 2024)
min-k++      the same, each less the mean over the vocabulary, in its standard deviations
             (Zhang et al. 2025)

AUC is the chance that a member scores higher than one that is none; at a share of false alarms the
true-positive rate is the share of members above the score that so many others exceed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.audits.exchange import Answers, Questions, items_table
from tasks.audits.findings import finding, measured
from tasks.audits.measures import CONTROL_LEVEL
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Reader
from tasks.contract import Seed, StageConfig, Table, column, table
from tasks.measures.estimates import auc
from tasks.measures.sampling import sample_documents
from tasks.measures.statistics import wilson

#: Share of the tokens that count for min-k.
LOWEST = 0.2

#: Shares of false alarms, and how many that are no members they need.
ALARMS = {0.01: 100, 0.001: 10_000}

SCORES = ("loss", "zlib", "lower", "min-k", "min-k++")


class MembershipConfig(StageConfig):
    """Settings of the membership audit."""

    documents: int = Field(
        default=200, ge=0, le=1_000_000, description="documents to score, of each split"
    )
    tokens: int = Field(default=64, ge=8, le=100_000, description="first tokens of each")
    seed: Seed = Field(default=0, description="of the sample and of the controls")


TOLD = (
    column("kind", pa.string(), "label", "document or passage, a planted one"),
    column("member", pa.bool_(), "label", "whether it was trained on"),
    column("copies", pa.int32(), "figure", "copies of a plant; null for documents",
           unit="documents"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the documents of the corpus that hold it"),
)  # fmt: skip

ITEMS = items_table(*TOLD, kind="corpus text")

SAMPLES = table(
    "Documents that were trained on and others, with what is said to tell them apart.",
    column("sample", pa.int32(), "id", "number of the row"),
    *TOLD,
    column("read", pa.int64(), "figure", "how often training had read the document whole by this "
           "checkpoint's step; null where that is not known", unit="times"),
    column("text", pa.large_string(), "corpus text", "what was read of it"),
    *(column(name, pa.float64(), "figure", f"its score: {name}") for name in SCORES),
)  # fmt: skip


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: MembershipConfig) -> None:
    """The beginnings of documents and passages, and the same in lower case."""
    if reader.kind == "masked":
        questions.skip("", f"{reader.name} is a masked language model")
        return
    texts = [*documents_of(corpus.documents, config), *passages_of(corpus.plants)]
    encoded = reader.encode_batch([text["text"] for text in texts])
    size = min(config.tokens, reader.context - 1)
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) < size:
            continue  # of one length, or length would tell them apart
        shown = reader.decode(ids[:size])
        told = {field.name: text[field.name] for field in TOLD}
        item = questions.item(shown, str(text["cluster"]), **told)
        held = {"doc_ids": text["doc_ids"], "text": shown}
        questions.read(item, reader.opening, [ids[:size]], moments=True, **held)
        lower = reader.encode(shown.lower())[: reader.context - 1]
        questions.read(item, reader.opening, [lower], part="lower", **held)
    if not questions.items:
        questions.skip("", "no documents of this corpus are known that are long enough")


def documents_of(documents: Table | None, config: MembershipConfig) -> Iterator[dict[str, Any]]:
    """Training and held-out documents."""
    for split in ("train", "holdout") if documents is not None else ():
        assert documents is not None
        for doc_id, text in sample_documents(documents, split, config.documents, config.tokens,
                                             f"{config.seed}/membership/{split}"):  # fmt: skip
            yield {"kind": "document", "member": split == "train", "copies": None,
                   "doc_ids": [doc_id], "text": text, "cluster": doc_id.hex()}  # fmt: skip


def passages_of(plants: Table | None) -> Iterator[dict[str, Any]]:
    """Planted passages, those that were never planted among them."""
    for plant in plants.read().to_pylist() if plants is not None else ():
        if plant["kind"] == "passage":
            yield {"kind": "passage", "member": plant["copies"] > 0, "copies": plant["copies"],
                   "doc_ids": plant["doc_ids"], "text": plant["text"],
                   "cluster": plant["plant_id"].hex()}  # fmt: skip


def scores_of(log_p: Sequence[float], mean: Sequence[float], std: Sequence[float], text: str,
              lower: float) -> dict[str, float]:  # fmt: skip
    """The scores of a text, NaN where the model gave no number; ``lower``: the log-likelihood of
    the same in lower case."""
    p = np.array(log_p, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        standard = (p - np.array(mean, np.float64)) / np.array(std, np.float64)
    few = max(1, int(LOWEST * len(p)))
    total = float(p.sum())
    made = {
        "loss": total / len(p),
        "zlib": total / len(zlib.compress(text.encode())),
        "lower": -total / lower if lower else np.nan,
        "min-k": float(np.sort(p)[:few].mean()),
        "min-k++": float(np.sort(standard)[:few].mean()),
    }
    return {name: value if np.isfinite(value) else np.nan for name, value in made.items()}


def rows_of(answers: Answers) -> list[dict[str, Any]]:
    """Rows of SAMPLES."""
    read, lower = answers.of(), answers.totals("lower")[0]
    items = answers.items.to_pylist()
    rows: list[dict[str, Any]] = []
    for answer in read.to_pylist():
        item = items[answer["row"]]
        known = None if answers.readings is None else answers.readings.of(item["doc_ids"])
        found = scores_of(answer["log_p"], answer["mean"], answer["std"], item["text"],
                          lower[answer["row"], 0])  # fmt: skip
        told = {field.name: item[field.name] for field in TOLD}
        rows.append({"sample": len(rows), "read": known, "text": item["text"]} | told | found)
    return rows


def judge(answers: Answers, config: MembershipConfig) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The samples, and findings on them."""
    rows = rows_of(answers)
    found: list[dict[str, Any]] = []
    for kind, what in (("document", "documents"), ("passage", "planted passages")):
        mine = [row for row in rows if row["kind"] == kind]
        if mine:
            found += told_apart(mine, kind, what, f"first {config.tokens} tokens, {answers.begin}")
    documents = [row for row in rows if row["kind"] == "document"]
    found += controls(documents, config) if documents else []
    for skipped in answers.skipped:
        found.append(finding("membership", "auc", None, n=0, unit="probability",
                             method=f"not measured: {skipped['why']}"))  # fmt: skip
    samples = [{n: None if v != v else v for n, v in row.items()} for row in rows]
    return pa.Table.from_pylist(samples, schema=SAMPLES), found


def sides(rows: Sequence[Mapping[str, Any]], score: str) -> tuple[np.ndarray, np.ndarray]:
    """The scores of members and of others."""
    both = ([r[score] for r in rows if r["member"] == member] for member in (True, False))
    inside, outside = (np.array(values, np.float64) for values in both)
    return inside, outside


def told_apart(
    rows: Sequence[Mapping[str, Any]], kind: str, what: str, how: str
) -> list[dict[str, Any]]:
    """Findings of each score."""
    found = []
    for score in SCORES:
        inside, outside = sides(rows, score)
        area = auc(inside, outside, unit=what)
        options: dict[str, Any] = {"part": kind, "tags": {"score": score}, "where": {"kind": kind},
                                   "order": f"-{score}"}  # fmt: skip
        found.append(measured("membership", "auc", area, unit="probability", how=how, worse="up",
                              **options))  # fmt: skip
        inside, outside = inside[~np.isnan(inside)], outside[~np.isnan(outside)]
        for alarm, least in ALARMS.items():
            if len(outside) >= least and len(inside):
                said = f"{how}; above the score that {alarm:g} of {len(outside)} others exceed"
                bound = np.quantile(outside, 1 - alarm, method="higher")
                hits = float((inside > bound).sum())
                low, high = wilson(hits, len(inside))
                found.append(
                    finding("membership", f"true_positives_at_{alarm:g}", hits / len(inside),
                            low=low, high=high, n=len(inside), unit="share", worse="up", null=alarm,
                            method=f"{said}; Wilson interval", **options)
                )  # fmt: skip
    return found


def controls(rows: Sequence[Mapping[str, Any]], config: MembershipConfig) -> list[dict[str, Any]]:
    """Labels by lot must tell nothing; scores that were moved for one kind must tell it."""
    rng = np.random.default_rng(config.seed)
    inside, outside = sides(rows, "loss")
    every = np.concatenate([inside, outside])
    spread = float(np.nanstd(every)) if (~np.isnan(every)).any() else np.nan
    mixed = rng.permutation(every)
    made = []
    for kind, moved in (("negative", 0.0), ("positive", 2 * spread)):
        area = auc(mixed[: len(inside)] + moved, mixed[len(inside) :], level=CONTROL_LEVEL,
                   unit="documents")  # fmt: skip
        chance = area.low <= 0.5 <= area.high
        passed = chance if kind == "negative" else area.value > 0.5 and area.p < 1 - CONTROL_LEVEL
        how = ("labels by lot; passes where the 99.9 % interval covers one half" if not moved else
               "labels by lot, scores of one kind moved by twice their spread; passes where p is "
               "below 0.001")  # fmt: skip
        made.append(
            measured("membership", "auc", area, unit="probability", how=how, table="",
                     part="by lot" if not moved else "by lot, moved", level=CONTROL_LEVEL,
                     control=kind, passed=bool(passed), tests="instrument")
        )  # fmt: skip
    return made


PROBE = Probe(
    name="membership",
    settings=MembershipConfig,
    items=ITEMS,
    samples=SAMPLES,
    ask=ask,
    judge=judge,
    module=__name__,
    corpus=("plants", "documents"),
    traced=False,
)
