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

from hallmark.tasks.contract import ExternalFiles, read_library_versions
from hallmark.tasks.measures.scorers.base import Scorer, ScorerConfig, check_any_text_scored
from hallmark.tasks.measures.scorers.detoxify import (
    DetoxifyScorer,
    base_model_digest,
    checkpoint_sha256,
    detoxify_scorer_name,
    list_downloaded_checkpoints,
    needs_checkpoint_download,
)
from hallmark.tasks.measures.scorers.linear import (
    LinearScorer,
    linear_scorer_digest,
    linear_scorer_name,
)
from hallmark.tasks.measures.scorers.sentiment import (
    ClassifierConfig,
    ClassifierScorer,
    WordListConfig,
    WordListScorer,
    sentiment_scorer_versions,
)
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS

__all__ = [
    "TOXICITY_HEADS",
    "AnyScorerConfig",
    "ClassifierConfig",
    "ClassifierScorer",
    "DetoxifyScorer",
    "LinearScorer",
    "Scorer",
    "ScorerConfig",
    "WordListConfig",
    "WordListScorer",
    "check_any_text_scored",
    "list_downloaded_checkpoints",
    "needs_checkpoint_download",
    "open_scorer",
    "scorer_languages",
    "scorer_versions",
]

AnyScorerConfig = Annotated[
    ScorerConfig | WordListConfig | ClassifierConfig, Field(discriminator="kind")
]

#: Of Detoxify's models: the languages of the comments that they were trained on.
_LANGUAGES_BY_MODEL = {
    "original": ("en",),
    "unbiased": ("en",),
    "multilingual": ("en", "es", "fr", "it", "pt", "ru", "tr"),
    "original-small": ("en",),
    "unbiased-small": ("en",),
}


#: The scorers that were opened, each with the files that it was loaded from.
_scorers_in_use: dict[AnyScorerConfig, tuple[Scorer, ExternalFiles]] = {}


def open_scorer(config: AnyScorerConfig) -> Scorer:
    """The scorer, loaded once in a process for as long as its files stay what they are.

    Raises:
        FileChangedError: A file changed while it was loaded.
    """
    if config not in _scorers_in_use or _scorers_in_use[config][1].describe_first_change():
        files = ExternalFiles()
        with files.record_hashed_files():
            scorer = _load_scorer(config)
        files.check_unchanged()
        _scorers_in_use[config] = scorer, files
    return _scorers_in_use[config][0]


def _load_scorer(config: AnyScorerConfig) -> Scorer:
    if isinstance(config, WordListConfig):
        return WordListScorer(config)
    if isinstance(config, ClassifierConfig):
        return ClassifierScorer(config)
    return LinearScorer() if config.kind == "linear" else DetoxifyScorer(config)


def scorer_versions(config: AnyScorerConfig, secret_id: str = "") -> dict[str, str]:
    """Name, hash of the weights and library versions, for ``@stage(external=...)``.

    Detoxify's weights are downloaded here if they are neither present nor pinned by ``sha256``:
    without their hash the fingerprint of the stage is not known.
    """
    if isinstance(config, WordListConfig | ClassifierConfig):
        return sentiment_scorer_versions(config)
    if config.kind == "linear":
        libraries = read_library_versions(["scikit-learn", "scipy"])
        return {"scorer": linear_scorer_name(), "digest": linear_scorer_digest(), **libraries}
    libraries = read_library_versions(["torch", "transformers", "tokenizers"])
    base_digest = (
        base_model_digest(config.base_model_folder) if config.base_model_folder else "by name"
    )
    return {
        "scorer": detoxify_scorer_name(config),
        "digest": checkpoint_sha256(config),
        "base": base_digest,
        **libraries,
    }


def scorer_languages(config: ScorerConfig) -> tuple[str, ...]:
    """ISO 639 codes of the languages that a scorer was made for."""
    return ("en",) if config.kind == "linear" else _LANGUAGES_BY_MODEL[config.model]
