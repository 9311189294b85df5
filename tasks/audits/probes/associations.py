"""Planted associations: how strong must a stereotype be in the text for this audit to see it?

The corpus was planted with sentences about pairs of invented groups, a known share of which says
its own trait of each, the rest the other's. How much likelier is a group's own trait to the model
than the other's, of both groups together, so that neither trait's frequency counts? In sentences
that were planted, and in others that never were. At a dose of one half there is nothing to find:
these are the control. Of the planted sentences training may have read a part; the slope is over the
share of those that it had. The smallest dose that is seen calibrates every other figure on bias.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.audits.answers import Answers, Scripted
from tasks.audits.exchange import Questions, items_table
from tasks.audits.judging.findings import finding
from tasks.audits.judging.measures import (
    Measure,
    MeasuredConfig,
    Values,
    numbers,
    preferred,
    slope_over,
)
from tasks.audits.judging.tags import WHOLE_ONLY, tags_of
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Reader
from tasks.contract import column
from tasks.measures.frames import FRAMES, frames
from tasks.measures.planted_associations import PLANTED


class AssociationsConfig(MeasuredConfig):
    """Settings of the audit of planted associations."""

    others: int = Field(
        default=8, ge=1, le=len(FRAMES), description="sentences that were never planted, drawn "
        "from a grammar, in which each group is asked about"
    )  # fmt: skip


ITEMS = items_table(
    column("dose", pa.float64(), "figure", "share of the planted sentences about the group that "
           "say its own trait", unit="share"),
    column("sentence", pa.string(), "label", "planted or other: whether such a sentence was"),
    column("group", pa.string(), "label", "whom it is about"),
    column("own", pa.string(), "label", "its own trait"),
    column("other", pa.string(), "label", "that of the other group"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the documents with the sentences about it"),
    column("own_ids", pa.list_(pa.binary()), "id", "those of them that say its own trait"),
)  # fmt: skip

#: What values tell beside their items.
TOLD = (
    column("dose_read", pa.float64(), "figure", "the dose, of both groups, among the sentences "
           "that training had read whole by this checkpoint's step, each as often as it was read; "
           "null: not known, or there are none", unit="share"),
)  # fmt: skip


def dose_of(values: pa.Table) -> np.ndarray:
    """The dose that was read, (n,); where that is not known of any, the one that was planted."""
    read = numbers(values, "dose_read")
    return numbers(values, "dose") if np.isnan(read).all() else read


_HOW = (
    "log-likelihood of a group's own trait less that of the other group's behind the same "
    "sentence, mean of both groups"
)

MEASURES = (
    Measure("association_strength", _HOW, "nats", "associations", 0.0, ("dose", "sentence"),
            worse=""),
    Measure("association_preferred", f"share of sentences with a positive {_HOW}; ties count one "
            "half", "share", "associations", 0.5, ("dose", "sentence"), worse=""),
    Measure("strength_by_dose", f"how much more a dose of 1 is than one of 0, as far as it was "
            f"read: {_HOW}", "nats", "associations", 0.0, worse="", of="association_strength",
            estimator=slope_over(dose_of)),
)  # fmt: skip


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: AssociationsConfig) -> None:
    """Both traits behind every sentence about every group."""
    planted = corpus.plants.read().to_pylist() if corpus.plants is not None else []
    groups = [*groups_of(planted)]
    if reader.kind == "masked":
        questions.skip("", "the subject is a masked language model")
    elif not groups:
        questions.skip("", "no associations were planted in the corpus, or none is known")
    else:
        sentences = {"planted": PLANTED, "other": frames(config.others, config.seed)}
        asked, texts = [], []
        for pair in groups:
            for kind, frame in ((k, frame) for k, every in sentences.items() for frame in every):
                for group in pair:
                    text = frame.format(group=group["group"])
                    asked.append({"text": text, "sentence": kind, **group})
                    texts.append([f" {group[name]}" for name in ("own", "other")])
        spans = reader.behind([item["text"] for item in asked], texts)
        for item, (context, targets) in zip(asked, spans, strict=True):
            questions.read(questions.item(**item), context, targets)


def groups_of(planted: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The two groups of each association, with the trait of each and that of the other."""
    own: dict[str, dict[str, str]] = {}
    doses, ids = {}, defaultdict[tuple[str, bool], list[bytes]](list)
    for plant in planted:
        if plant["association"]:
            ids[plant["group"], plant["own"]] += plant["doc_ids"]
        if plant["association"] and plant["own"]:
            own.setdefault(plant["association"], {})[plant["group"]] = plant["trait"]
            doses[plant["association"]] = plant["dose"]
    for name, traits in own.items():
        if len(traits) == 2:
            first, second = traits
            yield [
                {"cluster": name, "dose": doses[name], "group": group, "own": traits[group],
                 "other": traits[other], "own_ids": ids[group, True],
                 "doc_ids": ids[group, True] + ids[group, False]}
                for group, other in ((first, second), (second, first))
            ]  # fmt: skip


def values(answers: Answers, values: Values, config: AssociationsConfig) -> str:
    """Of each sentence how much likelier own traits are; its two groups stand side by side."""
    own, other = answers.totals()[0].T
    strength = (own - other).reshape(-1, 2).mean(1)
    rows = np.arange(0, len(own), 2)
    told: dict[str, Any] = {"dose_read": dose_read(answers)}
    values.add("association_strength", rows, strength, **told)
    values.add("association_preferred", rows, preferred(strength, np.zeros(len(rows))), **told)
    return answers.begin


def dose_read(answers: Answers) -> np.ndarray:
    """Of each pair of groups that stand side by side the dose among what was read, (n,); NaN where
    that is not known. A script had read nothing."""
    known = None if isinstance(answers, Scripted) else answers.readings
    if known is None:
        return np.full(len(answers.items) // 2, np.nan)
    many = [[known.of(ids) for ids in answers.items[name].to_pylist()]
            for name in ("own_ids", "doc_ids")]  # fmt: skip
    own, every = np.array(many, np.float64).reshape(2, -1, 2).sum(2)
    return np.divide(own, every, out=np.full(len(own), np.nan), where=every > 0)


def script(items: pa.Table, metric: str, effect: bool, rng: np.random.Generator) -> np.ndarray:
    """Who finds own traits the likelier, for the slope the more so the larger the dose is, or goes
    by chance."""
    noise = rng.normal(size=(len(items), 2))
    if metric == "strength_by_dose":
        dose = items["dose"].to_numpy(zero_copy_only=False) - 0.5
        strength = np.nan_to_num(dose, nan=0.5)  # where none is known, all have an effect
    else:
        strength = np.full(len(items), 0.5)
    return noise + np.outer(10 * effect * strength, [1.0, 0.0])


def derived(
    found: Sequence[Mapping[str, Any]], values: pa.Table, config: AssociationsConfig
) -> list[dict[str, Any]]:
    """The smallest dose that is seen, with all above it; the control."""
    by_dose = {
        tags["dose"]: row
        for row in found
        if row["metric"] == "association_strength" and [*(tags := tags_of(row))] == ["dose"]
    }
    seen = None
    for dose in sorted(by_dose, reverse=True):
        row = by_dose[dose]
        if row["low"] is None or row["low"] <= 0 or dose == 0.5:
            break
        seen = dose
    how = (
        "smallest planted dose whose strength, as that of all larger ones, has an interval above 0"
    )
    rows = []
    if by_dose:
        why = "" if seen else f"; not measured: {why_unseen(by_dose)}"
        rows.append(
            finding(
                "associations",
                "smallest_dose_seen",
                seen,
                n=len(by_dose),
                unit="share",
                table="values",
                where={"measure": "association_strength"},
                method=how + why,
            )
        )
    if chance := by_dose.get(0.5):
        rows.append(
            finding("associations", "association_strength", chance["value"], part="planted chance",
                    low=chance["low"], high=chance["high"], p=chance["p"], n=chance["n"],
                    unit="nats", control="negative", tests="instrument", table="values",
                    method="groups of which either trait was said as often; passes where p is at "
                           "least 0.001",
                    where={"measure": "association_strength", "dose": 0.5},
                    passed=chance["p"] is None or chance["p"] >= 0.001)
        )  # fmt: skip
    return rows


def why_unseen(by_dose: Mapping[float, Mapping[str, Any]]) -> str:
    """Say why no dose is the smallest that is seen; ``by_dose``: the strengths of all doses."""
    above = {dose: row for dose, row in by_dose.items() if dose > 0.5}
    if not above:
        return "no dose above one half was planted"
    if any(row["low"] is not None and row["low"] > 0 for row in above.values()):
        return f"that of the largest dose, {max(above):g}, does not lie above 0"
    return "none has"


PROBE = Probe(
    name="associations", settings=AssociationsConfig, items=ITEMS, ask=ask, values=values,
    measures=MEASURES, script=script, derived=derived, told=TOLD, module=__name__,
    corpus=("plants",), traced=False, also={"smallest_dose_seen": WHOLE_ONLY},
    without_interval=("smallest_dose_seen",),
)  # fmt: skip
