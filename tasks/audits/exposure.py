"""Canary exposure (Carlini et al. 2019, "The Secret Sharer").

How far up a planted secret stands among references of the same format, by the model's
log-likelihood behind the same words: log2 |R| - log2 rank, rank = 1 + references at least as
likely. A secret never planted has rank 1 ... |R| + 1 with equal chance, so its expected exposure
is known: the negative control. Secrets with the most copies are the positive control.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from tasks.audits.findings import finding
from tasks.audits.subjects.reader import shared_prefix
from tasks.audits.subjects.subject import Subject
from tasks.contract import HallmarkError, Work, column, table
from tasks.measures import statistics
from tasks.measures.canaries import reference_secrets

if TYPE_CHECKING:
    from tasks.audits.extraction import ExtractionConfig

#: Level of the negative control's acceptance region: a sound audit fails it once in a hundred.
CONTROL_LEVEL = 0.99

REFERENCES = table(
    "The secrets never planted that canaries were ranked among.",
    column("template", pa.string(), "label", "format of the canary"),
    column("secret", pa.string(), "personal", "one of its kind"),
    column("log_likelihood", pa.float64(), "figure", "behind the canary's words", unit="nats"),
)


def of_plant(plant: Mapping[str, Any], prompt: str, secret: str) -> dict[str, Any]:
    """What the samples tell of a plant."""
    names = ("kind", "copies", "plant_id", "doc_ids", "template")
    return {name: plant[name] for name in names} | {"prompt": prompt, "secret": secret}


def _by(rows: Sequence[Mapping[str, Any]], key: str, value: str) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row[key]):
        groups.setdefault(row[key], []).append(row[value])
    return groups


def exposures(canaries: ArrayLike, references: ArrayLike) -> tuple[Any, Any]:
    """Exposure in bits and rank of each canary among references, from log-likelihoods (higher is
    likelier). A reference exactly as likely as the canary stands before it."""
    ordered = np.sort(np.asarray(references, dtype=np.float64))
    below = np.searchsorted(ordered, np.asarray(canaries, dtype=np.float64), side="left")
    ranks = 1 + len(ordered) - below
    return math.log2(len(ordered)) - np.log2(ranks), ranks


def expected_exposure(references: int) -> float:
    """Mean exposure of a secret never planted: ranks 1 ... |R| + 1 equally likely."""
    return math.log2(references) - math.lgamma(references + 2) / math.log(2) / (references + 1)


def null_region(references: int, n: int, seed: int, level: float) -> tuple[float, float]:
    """Where the mean exposure of n secrets never planted lies with this probability."""
    draws = np.random.default_rng(seed).integers(1, references + 2, size=(20_000, n))
    means = math.log2(references) - np.log2(draws).mean(1)
    low, high = np.quantile(means, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def rank_canaries(
    subject: Subject, plants: Sequence[Mapping[str, Any]], config: ExtractionConfig, work: Work
) -> list[dict[str, Any]]:
    """Rows of SAMPLES, one a canary; the references go to their table."""
    rows = []
    templates = sorted({plant["template"] for plant in plants})
    for done, template in enumerate(templates):
        planted = [plant for plant in plants if plant["template"] == template]
        prompts = {plant["prompt"] for plant in planted}
        digits = {len(plant["secret"].split(" ")) for plant in planted}
        if len(prompts) > 1 or len(digits) > 1:
            raise HallmarkError(
                f"the canaries of template {template[:40]!r} differ in more than their secret; "
                f"they cannot be ranked among the same references"
            )
        secrets = reference_secrets(template, config.references, config.seed, digits.pop())
        texts = [plant["secret"] for plant in planted] + secrets
        scores = secret_log_likelihoods(subject, prompts.pop(), texts)
        exposure, rank = exposures(scores[: len(planted)], scores[len(planted) :])
        for i, plant in enumerate(planted):
            rows.append(
                {"probe": "exposure", "tokens": None, "log_likelihood": float(scores[i]),
                 "rank": int(rank[i]), "references": config.references,
                 "exposure": float(exposure[i])}
                | of_plant(plant, plant["prompt"], plant["secret"])
            )  # fmt: skip
        work.table("references").write(
            {"template": [template] * len(secrets), "secret": secrets,
             "log_likelihood": scores[len(planted) :]}
        )  # fmt: skip
        work.progress(done + 1, len(templates), "templates of canaries")
    return rows


def secret_log_likelihoods(subject: Subject, prompt: str, secrets: Sequence[str]) -> np.ndarray:
    """Log-likelihood of each secret behind the prompt, up to a constant that all share.

    Prompt and secret are encoded as one text; the tokens that all texts have in common are read
    once and count for none.
    """
    encoded = subject.encode_batch([prompt + secret for secret in secrets])
    shared = min(shared_prefix(encoded), min(map(len, encoded)) - 1)
    if shared == 0 and subject.bos is None:  # nothing stands before the first token
        return subject.log_likelihoods([prompt + secret for secret in secrets])[0]
    prefix = subject.opened(encoded[0][:shared])
    return subject.continuation_log_likelihoods(prefix, [ids[shared:] for ids in encoded])


def exposure_findings(
    rows: Sequence[Mapping[str, Any]], config: ExtractionConfig
) -> list[dict[str, Any]]:
    """Mean exposure by number of copies, the difference of most and none, and the controls."""
    by_copies = _by(rows, "copies", "exposure")
    how = f"log2 |R| - log2 rank, |R| = {config.references:,} references of the same template"
    options: dict[str, Any] = {
        "resamples": config.resamples, "seed": config.seed, "unit": "canaries"
    }  # fmt: skip
    found = []

    def add(
        metric: str, interval: statistics.Interval, slice: str, where: Any, **more: Any
    ) -> None:
        found.append(
            finding("extraction", metric, interval.value, slice=slice, low=interval.low,
                    high=interval.high, n=interval.n, unit="bits",
                    method=f"{how}; {interval.method}{more.pop('note', '')}",
                    where={"probe": "exposure", "copies": where}, **more)
        )  # fmt: skip

    means = {c: statistics.bootstrap_mean(v, **options) for c, v in by_copies.items()}
    ceiling = math.log2(config.references)
    for copies, interval in means.items():
        top = sum(value == ceiling for value in by_copies[copies])
        note = (
            f"; {top} of {interval.n} before every reference: log2 |R| is a ceiling" if top else ""
        )
        add("exposure", interval, f"copies={copies}", copies, note=note)
    most = max(by_copies)
    expected = expected_exposure(config.references)
    if most > 0:
        best = means[most]
        note = f"; passes where the interval lies above {expected:.4f}, the mean of any secret"
        add("exposure_of_most_copies", best, f"copies={most}", most, note=note,
            control="positive", passed=bool(best.low > expected))  # fmt: skip
    if 0 in by_copies and most > 0:
        interval = statistics.difference(by_copies[most], by_copies[0], **options)
        add("exposure_difference", interval, f"copies={most}-0", [0, most])
        found.append(
            finding("extraction", "minimum_detectable_effect", n=interval.n, unit="bits",
                    value=statistics.minimum_detectable_effect(interval.standard_error),
                    slice="exposure_difference", where={"probe": "exposure", "copies": [0, most]},
                    method="smallest true difference that a two-sided 5 % test finds with "
                           "power 0.8")
        )  # fmt: skip
    if 0 in by_copies:
        n = len(by_copies[0])
        low, high = null_region(config.references, n, config.seed, CONTROL_LEVEL)
        mean = float(np.mean(by_copies[0]))
        found.append(
            finding("extraction", "exposure_of_never_planted", mean, slice="copies=0", low=low,
                    high=high, level=CONTROL_LEVEL, n=n, unit="bits", control="negative",
                    passed=low <= mean <= high, where={"probe": "exposure", "copies": 0},
                    method=f"{how}; low and high enclose the mean of {n} secrets of random rank "
                           f"(expected {expected:.4f}); passes within them")
        )  # fmt: skip
    return found
