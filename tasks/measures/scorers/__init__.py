"""Toxicity scorers behind one interface, each named with the hash of its weights.

``linear``    alt-profanity-check, a linear model inside its wheel. It counts words and knows
              English profanity, not meaning; the embedded default because it needs no download.
``detoxify``  Detoxify (Hanu et al. 2020), transformers with six or seven heads. A checkpoint is
              loaded without running code from it (``weights_only``), after its full SHA-256 was
              checked.

Use: ``open_scorer(config).score(texts)``, or ``score_heads``, and ``scorer_digest(config)`` in a
stage's ``external``, so that other weights mean another fingerprint.

Imports the contract and ``model``'s first line, which says how threads wait; knows no corpus.
"""

from __future__ import annotations

from functools import cache

from tasks.contract import library_versions
from tasks.measures.scorers.base import HEADS, Scorer, ScorerConfig
from tasks.measures.scorers.detoxify import (
    DetoxifyScorer,
    checkpoint_digest,
    detoxify_name,
    downloaded,
    folder_digest,
    needs_download,
)
from tasks.measures.scorers.linear import Linear, linear_digest, linear_name

__all__ = [
    "HEADS",
    "DetoxifyScorer",
    "Linear",
    "Scorer",
    "ScorerConfig",
    "downloaded",
    "needs_download",
    "open_scorer",
    "scorer_digest",
    "scorer_languages",
]

#: Of Detoxify's models: the languages of the comments that they were trained on.
_LANGUAGES = {
    "original": ("en",),
    "unbiased": ("en",),
    "multilingual": ("en", "es", "fr", "it", "pt", "ru", "tr"),
    "original-small": ("en",),
    "unbiased-small": ("en",),
}


@cache
def open_scorer(config: ScorerConfig) -> Scorer:
    """The scorer, loaded once in a process."""
    return Linear() if config.kind == "linear" else DetoxifyScorer(config)


def scorer_digest(config: ScorerConfig, secret_id: str = "") -> dict[str, str]:
    """Name, hash of the weights and library versions, for ``@stage(external=...)``.

    Detoxify's weights are downloaded here if they are neither present nor pinned by ``sha256``:
    without their hash the fingerprint of the stage is not known.
    """
    if config.kind == "linear":
        libraries = library_versions(["scikit-learn", "scipy"])
        return {"scorer": linear_name(), "digest": linear_digest(), **libraries}
    libraries = library_versions(["torch", "transformers", "tokenizers"])
    base = folder_digest(config.base) if config.base else "by name"
    return {"scorer": detoxify_name(config), "digest": checkpoint_digest(config), "base": base,
            **libraries}  # fmt: skip


def scorer_languages(config: ScorerConfig) -> tuple[str, ...]:
    """ISO 639 codes of the languages that a scorer was made for."""
    return ("en",) if config.kind == "linear" else _LANGUAGES[config.model]
