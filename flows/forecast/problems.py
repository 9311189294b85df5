"""Predict from estimates where a run has too little data to succeed or to measure anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hallmark.flows.forecast.corpus_estimates import SPLITS, Estimate
from hallmark.tasks.contract import format_count

if TYPE_CHECKING:
    from hallmark.flows.config import Config


@dataclass(frozen=True)
class ForecastProblem:
    """A problem that a run is expected to have; ``is_certain`` if the run will fail."""

    message: str
    is_certain: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def predict_problems(
    config: Config,
    estimates: dict[str, Estimate],
    vocabulary_size: Estimate,
    expected_vocabulary_size: float | None,
    runs_audits: bool,
) -> Iterator[ForecastProblem]:
    """Yield the problems that follow from the estimated sizes.

    Args:
        config: The config of the run.
        estimates: The sizes from ``estimate_corpus_sizes_by_name``.
        vocabulary_size: Number of tokens of the tokenizer.
        expected_vocabulary_size: The number expected from a sample; None if unknown.
        runs_audits: Whether the run includes the audits.
    """
    yield from _find_empty_splits(config, estimates, runs_audits)
    yield from _find_passage_shortage(config, estimates)
    yield from _find_packed_row_shortage(config, estimates)
    configured_size = config.train_tokenizer.vocab_size
    resulting_size = vocabulary_size.value if vocabulary_size.is_exact else expected_vocabulary_size
    if resulting_size is not None and resulting_size < configured_size:
        verb = "yields only" if vocabulary_size.is_exact else "is expected to yield only about"
        yield ForecastProblem(
            f"the corpus {verb} {resulting_size:,.0f} of the {configured_size:,} vocabulary "
            "entries that train_tokenizer.vocab_size requests; lower this setting or ingest more "
            "text"
        )


def _find_empty_splits(
    config: Config, estimates: dict[str, Estimate], runs_audits: bool
) -> Iterator[ForecastProblem]:
    consequences = {
        "train": "there is no text to train on",
        "validation": "no validation loss can be computed, and audit_capability has no text to "
        "evaluate",
        "holdout": "audit_extraction has no held-out documents for comparison",
    }
    for split in SPLITS:
        estimate = estimates[split]
        if estimate.value is None or estimate.value >= (1 if estimate.is_exact else 2):
            continue
        if split == "holdout" and config.split.holdout_share == 0:
            continue  # the config asks for an empty holdout
        amount = (
            "is empty"
            if estimate.is_exact
            else f"is expected to have {estimate.value:.1f} documents"
        )
        remedy = "ingest more text"
        if split == "train":
            remedy += " or lower split.validation_share and split.holdout_share"
        else:
            remedy += f", raise split.{split}_share or change split.seed"
        is_certain = estimate.is_exact and (
            split == "train" or (split == "validation" and runs_audits)
        )
        yield ForecastProblem(
            f"the {split!r} split {amount}: {consequences[split]}; {remedy}", is_certain
        )


def _find_passage_shortage(
    config: Config, estimates: dict[str, Estimate]
) -> Iterator[ForecastProblem]:
    canary_config, available_count = config.plant_canaries, estimates["passages"].value
    needed_count = canary_config.passages_per_count * len(canary_config.copy_counts)
    if (
        canary_config.enabled
        and available_count is not None
        and available_count < needed_count
        and not estimates["documents"].is_exact
    ):
        yield ForecastProblem(
            f"planting canaries needs {needed_count} training documents of "
            f"{canary_config.min_passage_characters} to {canary_config.max_passage_characters} "
            "characters without near-duplicates (plant_canaries.passages_per_count x the number of "
            f"values in plant_canaries.copy_counts), but only about {available_count:,.0f} are "
            "expected; lower plant_canaries.passages_per_count or "
            "plant_canaries.min_passage_characters, raise plant_canaries.max_passage_characters, "
            "or set plant_canaries.enabled=false"
        )


def _find_packed_row_shortage(
    config: Config, estimates: dict[str, Estimate]
) -> Iterator[ForecastProblem]:
    train_rows, batch_size = estimates["train_rows"], config.pretrain.train.batch_size
    about_prefix = "" if train_rows.is_exact else "about "
    if train_rows.value is not None and 0 < train_rows.value < batch_size:
        yield ForecastProblem(
            f"the corpus has {about_prefix}{format_count(round(train_rows.value), 'packed row')}, "
            f"fewer than a batch of {batch_size}, so each step would read rows more than once; "
            "lower pretrain.train.batch_size or pack.context"
        )
