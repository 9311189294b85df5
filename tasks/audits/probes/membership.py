"""Membership inference: can the documents that were trained on be told from those that were not?

Training documents are members, held-out ones of the same corpus are not; the split is by lot, so
that nothing else tells them apart. Of planted passages those with copies are members and those
without are not. Members that training had not read whole by the checkpoint's step, where that is
known, are neither, and left out; where it had read none there is nothing to find, and all stay: a
control. Each document's first tokens are read once, and scored in six ways; higher is more like a
member:

loss         mean log-likelihood of its tokens (Yeom et al. 2018)
zlib         its log-likelihood over the bytes that zlib makes of it (Carlini et al. 2021)
lower        the same over that of the text in lower case (Carlini et al. 2021)
reference    the same over that under another model (Carlini et al. 2021)
min-k        mean of the lowest 20 % of the log-likelihoods (Shi et al. 2024)
min-k++      the same, each less the mean over the vocabulary, in its standard deviations
             (Zhang et al. 2025)

AUC is the chance that a member scores higher than one that is none; at a share of false alarms the
true-positive rate is the share of members above the score that so many others exceed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.audits.answers import Answers
from tasks.audits.exchange import Questions, items_table
from tasks.audits.judging.measures import (
    Drawn,
    Estimator,
    Measure,
    MeasuredConfig,
    Values,
    numbers,
)
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Reader
from tasks.contract import Table, column
from tasks.measures.estimates import Estimate, auc, true_positives
from tasks.measures.sampling import sample_documents

#: Share of the tokens that count for min-k.
LOWEST = 0.2

#: The score that needs another model.
REFERENCE = "reference"

#: Shares of false alarms, and how many that are no members they need.
ALARMS = {0.01: 100, 0.001: 10_000}

SCORES = ("loss", "zlib", "lower", "reference", "min-k", "min-k++")


class MembershipConfig(MeasuredConfig):
    """Settings of the membership audit."""

    documents: int = Field(
        default=200, ge=0, le=1_000_000, description="documents to score, of each split"
    )
    tokens: int = Field(default=64, ge=8, le=100_000, description="first tokens of each")
    reference: Path | None = Field(
        None, description="folder of another model of the language, which did not read the corpus"
    )


ITEMS = items_table(
    column("kind", pa.string(), "label", "document or passage, a planted one"),
    column("member", pa.bool_(), "label", "whether it was trained on"),
    column("copies", pa.int32(), "figure", "copies of a plant; null for documents",
           unit="documents"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the documents of the corpus that hold it"),
    kind="corpus text",
)  # fmt: skip


def told_apart_by(tag: str) -> Estimator:
    """The chance that a value of which a tag is true is above one of which it is not."""

    def area(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate:
        inside = values[tag].to_numpy(zero_copy_only=False).astype(bool)
        made = numbers(values, "value")
        if len(made) and np.isnan(made).all() and measure.tags["score"] == REFERENCE:
            why = "not measured: no other model is named (audit_membership.reference)"
            return replace(auc([], []), missing=len(made), method=why)
        return auc(made[inside], made[~inside], level=level, unit=measure.shares)

    return area


def hits_at(alarm: float, least: int) -> Estimator:
    """The share of members above the score that a share of at least so many others exceeds."""

    def hits(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate | None:
        member = values["member"].to_numpy(zero_copy_only=False).astype(bool)
        made = numbers(values, "value")
        inside, outside = made[member], made[~member]
        if (~np.isnan(outside)).sum() < least or np.isnan(inside).all():
            return None
        return true_positives(inside, outside, alarm, level=level, unit=measure.shares)

    return hits


MEASURES = tuple(
    Measure(metric, how, unit, "documents", null, ("kind",), whole=False, worse="up", of=score,
            tags={"score": score}, estimator=estimator, scripted=score == "loss" and null == 0.5)
    for score in SCORES
    for metric, how, unit, null, estimator in (
        ("auc", "chance that a member scores higher than one that is none", "probability", 0.5,
         told_apart_by("member")),
        *((f"true_positives_at_{alarm:g}", f"share of members above the score that at most "
           f"{alarm:g} of the others exceed", "share", alarm, hits_at(alarm, least))
          for alarm, least in ALARMS.items()),
    )
)  # fmt: skip


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: MembershipConfig) -> None:
    """The beginnings of documents and passages, and the same in lower case."""
    if reader.kind == "masked":
        questions.skip("", "the subject is a masked language model")
        return
    size = min(config.tokens, reader.context - 1)
    texts = [*documents_of(reader, corpus.documents, size, config), *passages_of(corpus.plants)]
    encoded = reader.encode_batch([text["text"] for text in texts])
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) < size:
            continue  # of one length, or length would tell them apart
        shown = reader.decode(ids[:size])
        item = questions.item(**text | {"text": shown})
        held = {"doc_ids": text["doc_ids"], "text": shown}
        questions.read(item, reader.opening, [ids[:size]], moments=True, **held)
        lower = reader.encode(shown.lower())[: reader.context - 1]
        questions.read(item, reader.opening, [lower], part="lower", **held)
    if not questions.items:
        questions.skip("", "no documents of this corpus are known that are long enough")


def documents_of(
    reader: Reader, documents: Table | None, size: int, config: MembershipConfig
) -> Iterator[dict[str, Any]]:
    """Training and held-out documents of at least so many tokens."""
    for split in ("train", "holdout") if documents is not None else ():
        assert documents is not None
        for doc_id, text in sample_documents(
            documents, split, config.documents, size, f"{config.seed}/membership/{split}",
            reader.tokens,
        ):  # fmt: skip
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
              lower: float, reference: float | None = None) -> dict[str, float]:  # fmt: skip
    """The scores of a text, NaN where the model gave no number; ``lower``: the log-likelihood of
    the same in lower case; ``reference``: that under another model, None: there is none."""
    p = np.array(log_p, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        standard = (p - np.array(mean, np.float64)) / np.array(std, np.float64)
    few = max(1, int(LOWEST * len(p)))
    total = float(p.sum())
    made = {
        "loss": total / len(p),
        "zlib": total / len(zlib.compress(text.encode())),
        "lower": -total / lower if lower else np.nan,
        REFERENCE: -total / reference if reference else np.nan,
        "min-k": float(np.sort(p)[:few].mean()),
        "min-k++": float(np.sort(standard)[:few].mean()),
    }
    return {name: value if np.isfinite(value) else np.nan for name, value in made.items()}


def values(answers: Answers, values: Values, config: MembershipConfig) -> str:
    """Each document's scores."""
    read, lower = answers.of(), answers.totals("lower")[0][:, 0]
    rows = read["row"].to_numpy()
    texts = answers.items["text"].take(pa.array(rows)).to_pylist()
    told = zip(*(read[name].to_pylist() for name in ("log_p", "mean", "std")), texts, lower[rows],
               read["reference"].to_pylist(), strict=True)  # fmt: skip
    found = [scores_of(*each) for each in told]
    kept = np.flatnonzero(~unread(values.items)[rows])
    for score in SCORES:
        values.add(score, rows[kept], [found[place][score] for place in kept])
    tokens = {len(each) for each in read["log_p"].to_pylist()}
    left = len(found) - len(kept)
    said = f"; without {left} members that training had not read by then" if left else ""
    many = numbers(values.items, "read")[values.items["member"].to_numpy(zero_copy_only=False)]
    nothing = len(many) and (many == 0).all()
    said = "; training had read no member by then" if nothing else said
    return f"first {max(tokens, default=0)} tokens, {answers.begin}{said}"


def unread(items: pa.Table) -> np.ndarray:
    """Members that training had not read whole, of the kinds of which it had read some, (n,)
    bool; none where that is not known."""
    member = items["member"].to_numpy(zero_copy_only=False).astype(bool)
    read, kind = numbers(items, "read"), items["kind"].to_numpy(zero_copy_only=False)
    some = np.isin(kind, np.unique(kind[member & (read > 0)]))
    return member & (read == 0) & some


def script(items: pa.Table, metric: str, effect: bool, rng: np.random.Generator) -> np.ndarray:
    """To whom members are the likelier, or all documents alike."""
    member = items["member"].to_numpy(zero_copy_only=False).astype(float)
    return (rng.normal(size=len(items)) + 3 * effect * member)[:, None]


PROBE = Probe(
    name="membership", settings=MembershipConfig, items=ITEMS, ask=ask, values=values,
    measures=MEASURES, script=script, module=__name__, corpus=("plants", "documents"),
    traced=False, reference=lambda config: config.reference,
)  # fmt: skip
