"""Canary exposure (Carlini et al. 2019, "The Secret Sharer").

How far up a planted secret stands among references of the same format, by the model's
log-likelihood behind the same words: log2 |R| - log2 rank, rank = 1 + references that are likelier.
References that are equally likely share the places out: the exposure is the mean over them. A
secret never planted has rank 1 ... |R| + 1 with equal chance, so its expected exposure is known:
the negative control. Secrets with the most copies are the positive control.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from tasks.audits.answers import Answers
from tasks.audits.exchange import Questions
from tasks.audits.judging.measures import LAW_LEVEL, Measure, Part, Values, numbers, sliced_by
from tasks.audits.judging.tags import SliceTags
from tasks.audits.subjects.reader import Reader, shared_prefix
from tasks.contract import HallmarkError
from tasks.measures.canaries import reference_secrets
from tasks.measures.estimates import Estimate, difference
from tasks.measures.statistics import contributions

if TYPE_CHECKING:
    from tasks.audits.probes.extraction import ExtractionConfig


def exposures(canaries: ArrayLike, references: ArrayLike) -> tuple[Any, Any]:
    """Rank canaries among references.

    Args:
        canaries: Log-likelihoods of the canaries, (n,).
        references: Log-likelihoods of the references, (m,); NaN is none.

    Returns:
        Exposure in bits and rank of each canary, (n,) float64 each; NaN where the canary has no
        number, or there are no references. Where t references are exactly as likely, the exposure
        is its mean over the t + 1 places that they share, as if chance decided; the rank is the
        last of these places, so that a p of it is never too small.
    """
    from scipy.special import gammaln

    known, own = (np.asarray(given, dtype=np.float64) for given in (references, canaries))
    ordered = np.sort(known[~np.isnan(known)])
    below = np.searchsorted(ordered, own, side="left")
    ties = np.searchsorted(ordered, own, side="right") - below
    ranks = np.where(np.isnan(own), np.nan, 1 + len(ordered) - below)
    if not len(ordered):
        return np.full_like(ranks, np.nan), np.full_like(ranks, np.nan)
    # The mean of log2 of the places from rank - ties to rank.
    shared = (gammaln(ranks + 1) - gammaln(ranks - ties)) / (math.log(2) * (ties + 1))
    return math.log2(len(ordered)) - np.where(ties, shared, np.log2(ranks)), ranks


def expected_exposure(references: int) -> float:
    """Mean exposure of a secret never planted: ranks 1 ... |R| + 1 equally likely."""
    return math.log2(references) - math.lgamma(references + 2) / math.log(2) / (references + 1)


def null_spread(references: int) -> float:
    """Variance of the exposure of a secret never planted."""
    return float(np.log2(np.arange(1, references + 2)).var())


def null_region(references: int, n: int, seed: int, level: float) -> tuple[float, float]:
    """Where the mean exposure of n secrets never planted lies with this probability."""
    draws = np.random.default_rng(seed).integers(1, references + 2, size=(20_000, n))
    means = math.log2(references) - np.log2(draws).mean(1)
    low, high = np.quantile(means, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def ask_canaries(
    questions: Questions,
    reader: Reader,
    plants: Sequence[Mapping[str, Any]],
    config: ExtractionConfig,
) -> None:
    """An item a canary; of each template one request, for the secrets of its canaries in their
    order and for those that they are ranked among.

    Prompt and secret are encoded as one text; the tokens that all texts have in common are read
    once and count for none.
    """
    for template in sorted({plant["template"] for plant in plants}):
        planted = [plant for plant in plants if plant["template"] == template]
        prompts = {plant["prompt"] for plant in planted}
        digits = {len(plant["secret"].split(" ")) for plant in planted}
        if len(prompts) > 1 or len(digits) > 1:
            raise HallmarkError(
                f"the canaries of template {template[:40]!r} differ in more than their secret; "
                f"they cannot be ranked among the same references"
            )
        (prompt,) = prompts
        told = {"template": template, "k": None, "place": None}
        spelled = reader.spellings([(prompt + plant["secret"],) for plant in planted])
        for plant, sought in zip(planted, spelled, strict=True):
            names = ("copies", "plant_id", "doc_ids", "secret")
            canary = questions.item(prompt, plant["plant_id"].hex(), part="canary",
                                    **{n: plant[n] for n in names}, **told)  # fmt: skip
            questions.seek(canary, sought, plant["doc_ids"], prompt + plant["secret"])
        secrets = [plant["secret"] for plant in planted]
        secrets += reference_secrets(template, config.references, config.seed, digits.pop())
        encoded = reader.encode_batch([prompt + secret for secret in secrets])
        shared = min(shared_prefix(encoded), min(map(len, encoded)) - 1)
        documents = sorted({i for plant in planted for i in plant["doc_ids"]})
        nothing = dict.fromkeys(("copies", "plant_id", "secret"))
        item = questions.item(prompt, template, part="references", doc_ids=documents, **nothing,
                              **told)  # fmt: skip
        questions.read(item, reader.opened(encoded[0][:shared]), [ids[shared:] for ids in encoded],
                       part="exposure", doc_ids=documents)  # fmt: skip


def expose(answers: Answers, values: Values) -> None:
    """The exposure of each canary, and what it contributes to the difference of those with the most
    copies and of those with none."""
    items = answers.items.select(["part", "template", "copies"]).to_pylist()
    rows, draws, sums, _ = answers.sums("exposure")
    made: list[np.ndarray] = []
    for row in dict.fromkeys(rows.tolist()):
        canaries = [
            place for place, item in enumerate(items)
            if (item["part"], item["template"]) == ("canary", items[row]["template"])
        ]  # fmt: skip
        scores = sums[rows == row][np.argsort(draws[rows == row])]
        own, others = scores[: len(canaries)], scores[len(canaries) :]
        known = np.full(len(canaries), (~np.isnan(others)).sum())
        made.append(np.array([canaries, own, *exposures(own, others), known], np.float64))
    if not made:
        return
    at, own, exposure, rank, known = np.concatenate(made, 1)
    values.add("exposure", at, exposure, log_likelihood=own, rank=rank, references=known)
    copies = np.array([items[int(row)]["copies"] for row in at], np.float64)
    most, none = copies == np.nanmax(copies, initial=0), copies == 0
    if none.any() and not none.all():
        shares = np.full(len(at), np.nan)
        shares[most], shares[none] = contributions(exposure[most], exposure[none])
        both = most | none
        values.add("exposure_difference", at[both], shares[both])


def done(values: pa.Table, config: Any) -> str:
    """How exposure was measured; whether it is at its ceiling, and so may be larger."""
    made = numbers(values, "value")
    top, known = (numbers(values, "rank") == 1).sum(), (~np.isnan(made)).sum()
    how = f"log2 |R| - log2 rank, |R| = {config.references:,} references of the same template"
    return f"{how}; at least: {top} of {known} before every reference" if top else how


BY_COPIES = SliceTags((("copies",),))


def of_copies(copies: int) -> Part:
    return {"copies": copies}, {"copies": copies}


@sliced_by(BY_COPIES)
def most_copies(values: pa.Table) -> list[Part]:
    """Canaries with the most copies, if any was planted."""
    most = max(values["copies"].drop_null().to_pylist(), default=0)
    return [of_copies(most)] if most else []


@sliced_by(BY_COPIES)
def never_planted(values: pa.Table) -> list[Part]:
    return [of_copies(0)] if 0 in values["copies"].to_pylist() else []


@sliced_by(BY_COPIES)
def most_and_none(values: pa.Table) -> list[Part]:
    """Both together."""
    both = [part["copies"] for _, part in never_planted(values) + most_copies(values)]
    return [({"copies": f"{both[1]}-0"}, {"copies": both})] if len(both) == 2 else []


def apart(values: pa.Table, measure: Measure, config: Any, level: float) -> Estimate:
    """By how much canaries with copies are exposed more than those with none."""
    made, none = numbers(values, "value"), numbers(values, "copies") == 0
    return difference(made[~none], made[none], spread=null_spread(config.references), level=level,
                      unit=measure.shares)  # fmt: skip


def law(n: int, config: Any) -> tuple[float, float, float]:
    """Of secrets that were never planted."""
    low, high = null_region(config.references, n, config.seed, LAW_LEVEL)
    return low, high, expected_exposure(config.references)


def _measure(metric: str, *parts: Any, **more: Any) -> Measure:
    return Measure(metric, done, "bits", "canaries", slices=parts, whole=False, scripted=False,
                   of="exposure", order="-value", **{"worse": "", **more})  # fmt: skip


MEASURES = (
    _measure("exposure", "copies"),
    _measure("exposure_of_most_copies", most_copies, asks_model=True, law=law),
    _measure("exposure_difference", most_and_none, worse="up", estimator=apart),
    _measure("exposure_of_never_planted", never_planted, law=law),
)
