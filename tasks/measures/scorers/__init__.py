"""Open toxicity, sentiment and regard scorers, each identified by a hash of its weights.

`linear`    alt-profanity-check, a linear model shipped in its wheel. It counts words and knows
            English profanity, not meaning. It is the default because it needs no download.
`detoxify`  Detoxify (Hanu et al. 2020), transformers with six or seven heads. The full SHA-256 of a
            checkpoint is checked, then it is loaded without running code from it (`weights_only`).

`vader`     VADER (Hutto & Gilbert 2014), a list of words with rules, shipped in its wheel. It
            scores sentiment. The audits use it by default, because it needs no download.

Other scorers of sentiment and regard are user-supplied word lists and classifiers, see
`sentiment.py`.

Every module of this package may define scorers, which register themselves (`Scorer` in `base.py`).
No import names these modules, so they are not code of the stages that score. Instead
`scorer_versions(config)`, which a stage passes as `external_digests`, has a digest of the code of
the scorer that is used. So another scorer makes no stage stale.

Use `open_scorer(config).score_toxicity(texts)` or `score_by_head`.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hallmark.tasks.contract import (
    ExternalFiles,
    compute_reached_code_digests,
    find_module_file,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.measures.scorers.base import (
    SCORER_CLASSES,
    Scorer,
    ScorerSettings,
    VersionByKey,
    check_any_text_scored,
)
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS

__all__ = [
    "SCORER_CLASSES",
    "TOXICITY_HEADS",
    "AnyScorerConfig",
    "Scorer",
    "ScorerConfig",
    "VersionByKey",
    "check_any_text_scored",
    "check_scorer_files",
    "compute_code_digest",
    "needs_checkpoint_download",
    "open_scorer",
    "scorer_languages",
    "scorer_versions",
]

for _module_info in iter_modules(__path__, f"{__name__}."):
    import_module(_module_info.name)

_TOXICITY_SCORERS = {
    kind: scorer_class
    for kind, scorer_class in sorted(SCORER_CLASSES.items())
    if scorer_class.config_class is ScorerSettings
}

if TYPE_CHECKING:
    ToxicityScorerKind = str
else:
    ToxicityScorerKind = Literal[tuple(_TOXICITY_SCORERS)]


class ScorerConfig(ScorerSettings):
    """Configure the toxicity scorer and where its weights are."""

    kind: ToxicityScorerKind = Field(
        default="linear",
        description="; ".join(
            f"{kind}: {each.summary}" for kind, each in _TOXICITY_SCORERS.items()
        ),
    )

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads that a scorer of this kind can have."""
        return SCORER_CLASSES[self.kind].possible_heads


if TYPE_CHECKING:
    AnyScorerConfig = Any
else:
    AnyScorerConfig = Annotated[
        reduce(
            or_,
            [
                ScorerConfig,
                *(
                    each.config_class
                    for kind, each in sorted(SCORER_CLASSES.items(), reverse=True)
                    if kind not in _TOXICITY_SCORERS
                ),
            ],
        ),
        Field(discriminator="kind"),
    ]

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
            scorer = SCORER_CLASSES[config.kind].from_config(config)
        files.check_unchanged()
        _scorers_in_use[config] = scorer, files
    return _scorers_in_use[config][0]


def check_scorer_files(config: AnyScorerConfig) -> None:
    """Raise UsageError if a file of the user that is not weights cannot be used."""
    SCORER_CLASSES[config.kind].check_files(config)


def scorer_versions(config: AnyScorerConfig) -> VersionByKey:
    """Return name, code, hash of the weights and library versions, for `@stage(external=...)`.

    Detoxify's weights are downloaded here if they are neither present nor pinned by `sha256`: the
    stage's fingerprint needs their hash.
    """
    scorer_class = SCORER_CLASSES[config.kind]
    return {**scorer_class.read_versions(config), "code": compute_code_digest(scorer_class)}


def compute_code_digest(scorer_class: type[Scorer]) -> str:
    """Compute the digest of a scorer and of the code that it reaches, as for a stage."""
    module = scorer_class.__module__
    if find_module_file(module) is None:
        return "not part of the project"
    digests = compute_reached_code_digests([f"{module}:{scorer_class.__name__}"])
    return sha256_hex(to_canonical_json(digests))


def scorer_languages(config: AnyScorerConfig) -> tuple[str, ...]:
    """Return the ISO 639 codes of the languages that a scorer supports."""
    return SCORER_CLASSES[config.kind].list_languages(config)


def needs_checkpoint_download(config: ScorerConfig) -> bool:
    """Return whether opening the scorer would download its weights first."""
    return SCORER_CLASSES[config.kind].needs_download(config)
