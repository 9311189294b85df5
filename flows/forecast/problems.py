"""What a run would fail of for want of data, or measure nothing, before it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hallmark.flows.forecast.corpus_estimates import SPLITS, Estimate

if TYPE_CHECKING:
    from hallmark.flows.config import Config


@dataclass(frozen=True)
class ForecastProblem:
    message: str
    is_certain: bool = False  # the run will fail of it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def predict_problems(
    config: Config,
    estimates: dict[str, Estimate],
    vocabulary_size: Estimate,
    expected_vocabulary_size: float | None,
    runs_audits: bool,
) -> Iterator[ForecastProblem]:
    """``vocabulary``: tokens of the tokenizer; ``filled``: those that the sample filled, if it is
    not known; ``audited``: whether the run goes on to the audits."""
    yield from _find_empty_splits(config, estimates, runs_audits)
    yield from _find_passage_shortage(config, estimates)
    yield from _find_packed_row_shortage(config, estimates)
    configured_size = config.train_tokenizer.vocab_size
    resulting_size = vocabulary_size.value if vocabulary_size.is_exact else expected_vocabulary_size
    if resulting_size is not None and resulting_size < configured_size:
        verb = "makes" if vocabulary_size.is_exact else "is expected to make about"
        yield ForecastProblem(
            f"the corpus {verb} {resulting_size:,.0f} tokens of the {configured_size:,} of "
            f"train_tokenizer.vocab_size: "
            f"lower it, or ingest more text"
        )


def _find_empty_splits(
    config: Config, estimates: dict[str, Estimate], runs_audits: bool
) -> Iterator[ForecastProblem]:
    consequences = {
        "train": "there is nothing to train on",
        "validation": "training is not validated, and audit_capability has no text to measure on",
        "holdout": "audit_extraction has no documents that were never trained on",
    }
    for split in SPLITS:
        estimate = estimates[split]
        if estimate.value is None or estimate.value >= (1 if estimate.is_exact else 2):
            continue
        if split == "holdout" and config.split.holdout_share == 0:
            continue  # as it was asked for
        amount = (
            "is empty"
            if estimate.is_exact
            else f"is expected to hold {estimate.value:.1f} documents"
        )
        remedy = "ingest more text"
        if split == "train":
            remedy += " or lower split.validation_share and split.holdout_share"
        else:
            remedy += f", raise split.{split}_share or take another split.seed"
        is_certain = estimate.is_exact and (
            split == "train" or (split == "validation" and runs_audits)
        )
        yield ForecastProblem(
            f"the split {split!r} {amount}: {consequences[split]}; {remedy}", is_certain
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
            f"planting needs {needed_count} training documents of "
            f"{canary_config.min_passage_characters} to {canary_config.max_passage_characters} "
            f"characters without a near-copy (plant_canaries.passages_per_count x the number of "
            f"plant_canaries.copy_counts), and about {available_count:,.0f} are expected: lower "
            f"plant_canaries.passages_per_count, widen plant_canaries.min_passage_characters and "
            f"plant_canaries.max_passage_characters, or plant nothing "
            f"(plant_canaries.enabled=false)"
        )


def _find_packed_row_shortage(
    config: Config, estimates: dict[str, Estimate]
) -> Iterator[ForecastProblem]:
    train_rows, batch_size = estimates["train_rows"], config.pretrain.train.batch_size
    about_prefix = "" if train_rows.is_exact else "about "
    if train_rows.value is not None and 0 < train_rows.value < batch_size:
        yield ForecastProblem(
            f"{about_prefix}{train_rows.value:,.0f} packed rows are fewer than a batch of "
            f"{batch_size}: each step "
            f"would see rows more than once; lower pretrain.train.batch_size or pack.context"
        )
