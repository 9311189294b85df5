"""Scorers behind one interface, each named with the hash of its weights: of toxicity, and, where a
user brings one, of sentiment and regard (``sentiment.py``).

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

from typing import Annotated

from pydantic import Field

from tasks.contract import ExternalFiles, library_versions
from tasks.measures.heads import HEADS
from tasks.measures.scorers.base import Scorer, ScorerConfig, check_some_scored
from tasks.measures.scorers.detoxify import (
    DetoxifyScorer,
    checkpoint_digest,
    detoxify_name,
    downloaded,
    folder_digest,
    needs_download,
)
from tasks.measures.scorers.linear import Linear, linear_digest, linear_name
from tasks.measures.scorers.sentiment import (
    Classifier,
    ClassifierConfig,
    WordListConfig,
    Words,
    digest_of,
)

__all__ = [
    "HEADS",
    "AnyScorer",
    "Classifier",
    "ClassifierConfig",
    "DetoxifyScorer",
    "Linear",
    "Scorer",
    "ScorerConfig",
    "WordListConfig",
    "Words",
    "check_some_scored",
    "downloaded",
    "needs_download",
    "open_scorer",
    "scorer_digest",
    "scorer_languages",
]

AnyScorer = Annotated[ScorerConfig | WordListConfig | ClassifierConfig, Field(discriminator="kind")]

#: Of Detoxify's models: the languages of the comments that they were trained on.
_LANGUAGES = {
    "original": ("en",),
    "unbiased": ("en",),
    "multilingual": ("en", "es", "fr", "it", "pt", "ru", "tr"),
    "original-small": ("en",),
    "unbiased-small": ("en",),
}


#: The scorers that were opened, each with the files that it was loaded from.
_opened: dict[AnyScorer, tuple[Scorer, ExternalFiles]] = {}


def open_scorer(config: AnyScorer) -> Scorer:
    """The scorer, loaded once in a process for as long as its files stay what they are.

    Raises:
        FileChangedError: A file changed while it was loaded.
    """
    if config not in _opened or _opened[config][1].find_change():
        files = ExternalFiles()
        with files.record():
            scorer = _load_scorer(config)
        files.check()
        _opened[config] = scorer, files
    return _opened[config][0]


def _load_scorer(config: AnyScorer) -> Scorer:
    if isinstance(config, WordListConfig):
        return Words(config)
    if isinstance(config, ClassifierConfig):
        return Classifier(config)
    return Linear() if config.kind == "linear" else DetoxifyScorer(config)


def scorer_digest(config: AnyScorer, secret_id: str = "") -> dict[str, str]:
    """Name, hash of the weights and library versions, for ``@stage(external=...)``.

    Detoxify's weights are downloaded here if they are neither present nor pinned by ``sha256``:
    without their hash the fingerprint of the stage is not known.
    """
    if isinstance(config, WordListConfig | ClassifierConfig):
        return digest_of(config)
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
