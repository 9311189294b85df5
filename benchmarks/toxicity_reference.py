"""Check the test of toxicity against held-out text: false positives and power by simulation.

The model of the null writes exactly like its corpus: its continuations have the distribution of
windows that follow the same kind of text. After toxic text, toxic text is more frequent. Documents
differ in how often they are toxic. Run `python -m benchmarks.toxicity_reference`; it prints the
share of models that are called more toxic than their corpus, at p < 0.05 and 0.001. Other models
have a toxic share that is 10 points higher, or a multiple.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hallmark.tasks.measures.reference_maxima import ReferenceWindows, compare_with_windows
from hallmark.tasks.measures.statistics import probability_each_rank_is_maximum

Floats = NDArray[np.float64]

TOXIC, OTHER = "toxic", "non-toxic"

#: Share of toxic texts after toxic text and after other text, as in the demo.
TOXIC_SHARES = {TOXIC: 0.14, OTHER: 0.011}

DRAWS = 25


@dataclass(frozen=True)
class Design:
    """A simulated audit.

    Attributes:
        name: Its name.
        toxic_prompts: Number of toxic prompts.
        other_prompts: Number of other prompts.
        documents: Number of documents with reference windows.
        windows_per_document: Number of windows of each.
        draw_count: The highest of so many continuations counts.
        is_share: Whether values are probabilities of a toxic text instead of highest scores.
        toxicity_factor: How often toxic text is written, relative to the corpus; 1: the null.
        toxic_share_increase: How much higher the toxic share is than in the corpus; 0: the null.
        document_spread: Spread of the log-odds of toxic text between documents.
        prompt_spread: The same between prompts.
        share_scale: Factor of TOXIC_SHARES in the corpus.
    """

    name: str
    toxic_prompts: int = 17
    other_prompts: int = 83
    documents: int = 300
    windows_per_document: int = 8
    draw_count: int = 25
    is_share: bool = False
    toxicity_factor: float = 1.0
    toxic_share_increase: float = 0.0
    document_spread: float = 1.0
    prompt_spread: float = 0.0
    share_scale: float = 1.0


def draw_scores(rng: np.random.Generator, toxic_shares: Floats) -> Floats:
    """Draw a score for each probability of a toxic text; most scores are close to 0."""
    uniform = rng.random(toxic_shares.shape)
    return np.where(
        rng.random(toxic_shares.shape) < toxic_shares,
        0.5 + 0.5 * uniform,
        0.5 * uniform**6,
    )


def draw_relative_risks(rng: np.random.Generator, spread: float, count: int) -> Floats:
    """Draw how often each document or prompt is toxic, relative to their mean, (count,)."""
    return np.exp(spread * rng.standard_normal(count) - spread**2 / 2)


class SimulatedWindows(NamedTuple):
    """Windows of simulated documents, one array row per position in the documents."""

    scores: Floats
    is_after_toxic: NDArray[np.bool_]


def simulate_documents(
    design: Design, document_count: int, rng: np.random.Generator
) -> SimulatedWindows:
    """Simulate documents in which a window may follow a toxic one, (windows, documents)."""
    risks = draw_relative_risks(rng, design.document_spread, document_count)
    scores = np.empty((design.windows_per_document, document_count))
    is_after_toxic = np.zeros(scores.shape, bool)
    for position in range(design.windows_per_document):
        if position:
            is_after_toxic[position] = scores[position - 1] >= 0.5
        shares = np.where(is_after_toxic[position], TOXIC_SHARES[TOXIC], TOXIC_SHARES[OTHER])
        toxic_shares = np.minimum(shares * design.share_scale * risks, 0.95)
        scores[position] = draw_scores(rng, toxic_shares)
    return SimulatedWindows(scores, is_after_toxic)


@cache
def measure_corpus_shares(design: Design) -> dict[str, float]:
    """Measure how often windows of a large corpus are toxic, by what they follow."""
    document_count = 1_000_000 // design.windows_per_document
    windows = simulate_documents(design, document_count, np.random.default_rng(1))
    is_toxic = windows.scores >= 0.5
    return {
        TOXIC: float(is_toxic[windows.is_after_toxic].mean()),
        OTHER: float(is_toxic[~windows.is_after_toxic].mean()),
    }


def simulate_p(design: Design, rng: np.random.Generator) -> float:
    """Simulate one audit and return its p."""
    windows = simulate_documents(design, design.documents, rng)
    prompt_kinds = [TOXIC] * design.toxic_prompts + [OTHER] * design.other_prompts
    corpus_shares = measure_corpus_shares(
        replace(design, toxicity_factor=1.0, toxic_share_increase=0.0, documents=0)
    )
    shares = np.array([corpus_shares[kind] for kind in prompt_kinds])
    shares *= draw_relative_risks(rng, design.prompt_spread, len(shares)) * design.toxicity_factor
    shares += design.toxic_share_increase
    scores = draw_scores(rng, np.minimum(np.repeat(shares[:, None], DRAWS, 1), 0.95))
    reference_scores = windows.scores
    if design.is_share:
        scores, reference_scores = ((s >= 0.5).astype(float) for s in (scores, reference_scores))
    weights = probability_each_rank_is_maximum(DRAWS, design.draw_count)
    values = np.sort(scores, axis=1) @ weights
    reference = ReferenceWindows.from_columns(
        reference_scores.ravel(),
        np.where(windows.is_after_toxic, TOXIC, OTHER).ravel(),
        np.tile(np.arange(design.documents), design.windows_per_document),
    )
    n = len(values)
    return compare_with_windows(
        values, [design.draw_count] * n, [DRAWS] * n, prompt_kinds, reference
    ).p


#: Parts of the names of designs, and what is unusual about them.
STRUCTURES: dict[str, dict[str, Any]] = {
    "": {},
    ", 10 documents of 8 windows": {"documents": 10},
    ", 12 documents of 200 windows": {"documents": 12, "windows_per_document": 200},
    ", 17 toxic prompts only": {"other_prompts": 0},
    ", 4 prompts": {"toxic_prompts": 0, "other_prompts": 4},
    ", 40 groups": {"toxic_prompts": 0, "other_prompts": 40},
    ", 400 prompts": {"toxic_prompts": 80, "other_prompts": 320},
    ", rarely toxic corpus": {"share_scale": 0.05},
    ", prompts differ": {"prompt_spread": 1.0},
    ", documents differ much": {"document_spread": 2.0},
}


def list_designs() -> list[Design]:
    """List designs by k and metric: first those of the null, then those of toxic models.

    Models with a toxic share 10 points higher have all structures at k = 1, where the test finds
    most.
    """
    designs = []
    for k in (1, 5, 25):
        for is_share in (False, True):
            label = f"{'probability' if is_share else 'maximum'}, k = {k}"
            options: dict[str, Any] = {"draw_count": k, "is_share": is_share}
            designs += [
                Design(f"null: {label}{name}", **options, **structure)
                for name, structure in STRUCTURES.items()
            ]
            designs += [
                Design(
                    f"10 points more: {label}{name}",
                    toxic_share_increase=0.1,
                    **options,
                    **structure,
                )
                for name, structure in STRUCTURES.items()
                if k == 1 or not name
            ]
            designs += [
                Design(
                    f"toxic {factor:g} times as often: {label}", toxicity_factor=factor, **options
                )
                for factor in (3.0, 30.0)
            ]
    return designs


def main() -> None:
    """Print the share of significant results of each design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for design in list_designs():
        rng = np.random.default_rng(arguments.seed)
        p_values = np.array([simulate_p(design, rng) for _ in range(arguments.repetitions)])
        print(
            f"{design.name:70s} p < 0.05: {np.mean(p_values < 0.05):6.1%}  "
            f"p < 0.001: {np.mean(p_values < 0.001):6.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
