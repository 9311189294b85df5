"""Discover the probes, and describe all audits for cards, in the order of the card.

Every file in ``probes/`` is a probe, so nothing lists them by hand. No import statement here names
a probe or the class ``Probe``. So a stage that imports this module does not depend on their code,
and another probe does not make it stale. A stage that shows the descriptions needs
``compute_descriptions_digest`` as its ``external_digests``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from hallmark.tasks.audits.audit_descriptions import (
    CAPABILITY,
    NO_CANDIDATES,
    AuditDescription,
    ChartDescription,
    Headline,
)
from hallmark.tasks.contract import HallmarkError, sha256_hex, to_canonical_json

#: The audit without a probe trains models to compare with.
CAPABILITY_DESCRIPTION = AuditDescription(
    0,
    "Capability",
    "This audit measures how many bits per byte the model needs for held-out text, compared with "
    "simpler models. Good prediction is the benefit to weigh against possible harm.",
    "Prediction of held-out text was not measured.",
    risk="capability",
    not_studied_because=NO_CANDIDATES,
    sample_unit="documents",
    sample_units={
        "agreement_accuracy": "pairs of sentences",
        "garden_path_share": "pairs of sentences",
        "cloze_accuracy": "passages",
    },
    question="Does the model predict text better than much simpler models?",
    charts=(
        ChartDescription(
            "bits_per_byte",
            "bits per byte (lower is better)",
            "Bits per byte of held-out text for the model and its baselines.",
            kind="bars",
            is_ordered=True,
        ),
        ChartDescription(
            "agreement_accuracy",
            "share of pairs",
            "Share of sentence pairs in which the model prefers the verb form that agrees with "
            "the subject, by number of words between the subject and the verb. The dashed line "
            "marks 50 % (guessing).",
            reference_value=0.5,
            tags={"part": "model"},
            varying_tag="distance",
            is_ordered=True,
        ),
    ),
    limits=(
        "The held-out text is from the same sources as the training text. Prediction quality on "
        "other text is unknown."
    ),
    glossary={
        "bits_per_byte": ("bits that the model needs per byte of held-out text; lower is better"),
        "bits_per_byte_difference": (
            "the model's bits per byte minus a simpler model's bits per byte; negative if the "
            "model is better"
        ),
        "agreement_accuracy": (
            "share of sentence pairs in which the verb form that agrees with the subject is more "
            "likely"
        ),
        "garden_path_share": (
            "share of sentences with a misleading beginning that surprise the model in the same "
            "way as they surprise people"
        ),
        "cloze_accuracy": "share of passages for which the model correctly predicts the missing "
        "last word",
    },
    headline=Headline(
        "bits_per_byte_difference",
        "the model needs {value} more for each byte of held-out text than the {baseline}",
    ),
)


def discover_probes(package: ModuleType) -> tuple[Any, ...]:
    """Return the ``PROBE`` of every module of a package, in the order of the card.

    Raises:
        HallmarkError: A module has no probe, or two probes have the same name.
    """
    probes: dict[str, Any] = {}
    for module_info in iter_modules(package.__path__, f"{package.__name__}."):
        probe = getattr(import_module(module_info.name), "PROBE", None)
        if probe is None:
            raise HallmarkError(
                f"module {module_info.name} has no PROBE; define one, or move the module out of "
                "the folder"
            )
        if probe.name in {CAPABILITY, *probes}:
            other = probes[probe.name].module if probe.name in probes else "the built-in audit"
            raise HallmarkError(
                f"two audits are named {probe.name!r} (the probe in {module_info.name} and "
                f"{other}); rename one of them"
            )
        probes[probe.name] = probe
    return tuple(
        sorted(probes.values(), key=lambda probe: (probe.description.position, probe.name))
    )


def describe_audits(probes: Iterable[Any]) -> dict[str, AuditDescription]:
    """Return the descriptions of all audits by name, in the order of the card."""
    descriptions = {CAPABILITY: CAPABILITY_DESCRIPTION}
    descriptions |= {probe.name: probe.description for probe in probes}
    return dict(sorted(descriptions.items(), key=lambda item: (item[1].position, item[0])))


PROBES = discover_probes(import_module("hallmark.tasks.audits.probes"))

#: All audits, whether they run or not.
AUDIT_DESCRIPTIONS = describe_audits(PROBES)

#: Settings of files of the user, by audit, without which an audit does not run.
REQUIRED_SETTINGS = {
    probe.name: probe.required_settings for probe in PROBES if probe.required_settings
}

#: Titles of the metrics that count skipped or truncated items, for the audits that have any.
SKIPPED_COUNT_METRICS = {
    name: description.skipped_count_metrics
    for name, description in AUDIT_DESCRIPTIONS.items()
    if description.skipped_count_metrics
}


def compute_descriptions_digest(_config: Any, _secret_id: str) -> dict[str, str]:
    """Return the digest of all descriptions, for ``@stage(external_digests=...)``."""
    descriptions = {name: asdict(each) for name, each in AUDIT_DESCRIPTIONS.items()}
    described = {"descriptions": descriptions, "required settings": REQUIRED_SETTINGS}
    return {"audit descriptions": sha256_hex(to_canonical_json(described))}
