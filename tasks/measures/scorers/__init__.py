"""Open toxicity, sentiment and regard scorers, each identified by a hash of its weights.

`linear`    alt-profanity-check, a linear model shipped in its wheel. It counts words and knows
            English profanity, not meaning. It is the default because it needs no download.
`detoxify`  Detoxify (Hanu et al. 2020), transformers with six or seven heads. The full SHA-256 of a
            checkpoint is checked, then it is loaded without running code from it (`weights_only`).

Sentiment and regard scorers are user-supplied word lists and classifiers, see `sentiment.py`.

Use `open_scorer(config).score_toxicity(texts)` or `score_by_head`. Pass `scorer_versions(config)`
to a stage's `external`, so that other weights change its fingerprint.
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

#: Languages of the comments on which each Detoxify model was trained.
_LANGUAGES_BY_MODEL = {
    "original": ("en",),
    "unbiased": ("en",),
    "multilingual": ("en", "es", "fr", "it", "pt", "ru", "tr"),
    "original-small": ("en",),
    "unbiased-small": ("en",),
}


#: Opened scorers, each with the files from which it was loaded.
_scorers_in_use: dict[AnyScorerConfig, tuple[Scorer, ExternalFiles]] = {}


def open_scorer(config: AnyScorerConfig) -> Scorer:
    """Return the scorer; load it once per process, and again if its files have changed.

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
    """Return name, hash of the weights and library versions, for `@stage(external=...)`.

    Detoxify's weights are downloaded here if they are neither present nor pinned by `sha256`: the
    stage's fingerprint needs their hash.
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
    """Return the ISO 639 codes of the languages that a scorer supports."""
    return ("en",) if config.kind == "linear" else _LANGUAGES_BY_MODEL[config.model]
