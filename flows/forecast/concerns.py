"""What a run would fail of for want of data, or measure nothing, before it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flows.forecast.figures import SPLITS, Figure

if TYPE_CHECKING:
    from flows.config import Config


@dataclass(frozen=True)
class Concern:
    says: str
    sure: bool = False  # the run will fail of it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def concerns(
    config: Config,
    figures: dict[str, Figure],
    vocabulary: Figure,
    filled: float | None,
    audited: bool,
) -> Iterator[Concern]:
    """``vocabulary``: tokens of the tokenizer; ``filled``: those that the sample filled, if it is
    not known; ``audited``: whether the run goes on to the audits."""
    yield from _splits(config, figures, audited)
    yield from _planting(config, figures)
    yield from _rows(config, figures)
    wanted = config.train_tokenizer.vocab_size
    had = vocabulary.value if vocabulary.exact else filled
    if had is not None and had < wanted:
        how = "makes" if vocabulary.exact else "is expected to make about"
        yield Concern(
            f"the corpus {how} {had:,.0f} tokens of the {wanted:,} of train_tokenizer.vocab_size: "
            f"lower it, or ingest more text"
        )


def _splits(config: Config, figures: dict[str, Figure], audited: bool) -> Iterator[Concern]:
    needs = {
        "train": "there is nothing to train on",
        "validation": "training is not validated, and audit_capability has no text to measure on",
        "holdout": "audit_extraction has no documents that were never trained on",
    }
    for split in SPLITS:
        figure = figures[split]
        if figure.value is None or figure.value >= (1 if figure.exact else 2):
            continue
        if split == "holdout" and config.split.holdout == 0:
            continue  # as it was asked for
        much = "is empty" if figure.exact else f"is expected to hold {figure.value:.1f} documents"
        remedy = "ingest more text"
        if split == "train":
            remedy += " or lower split.validation and split.holdout"
        else:
            remedy += f", raise split.{split} or take another split.seed"
        sure = figure.exact and (split == "train" or (split == "validation" and audited))
        yield Concern(f"the split {split!r} {much}: {needs[split]}; {remedy}", sure)


def _planting(config: Config, figures: dict[str, Figure]) -> Iterator[Concern]:
    plant, there = config.plant, figures["passages"].value
    needed = plant.passages * len(plant.counts)
    if plant.enabled and there is not None and there < needed and not figures["documents"].exact:
        yield Concern(
            f"planting needs {needed} training documents of {plant.shortest} to {plant.longest} "
            f"characters without a near-copy (plant.passages x the number of plant.counts), and "
            f"about {there:,.0f} are expected: lower plant.passages, widen plant.shortest and "
            f"plant.longest, or plant nothing (plant.enabled=false)"
        )


def _rows(config: Config, figures: dict[str, Figure]) -> Iterator[Concern]:
    rows, batch = figures["train_rows"], config.pretrain.train.batch_size
    about = "" if rows.exact else "about "
    if rows.value is not None and 0 < rows.value < batch:
        yield Concern(
            f"{about}{rows.value:,.0f} packed rows are fewer than a batch of {batch}: each step "
            f"would see rows more than once; lower pretrain.train.batch_size or pack.context"
        )
