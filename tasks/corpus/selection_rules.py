"""The rules of a stage that selects documents, read from its artifact.

Imports the contract alone, so that cards that name the rules depend on no code that applies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hallmark.tasks.contract import Artifact


def read_selection_rules(artifact: Artifact) -> Sequence[Mapping[str, object]]:
    """The rules of a stage ``select``, as its config said them."""
    config = artifact.manifest["parts"]["config"]
    return config.get("rules", ()) if artifact.stage == "select" else ()


def read_tagging_rule_names(artifact: Artifact) -> list[str]:
    """Return the names of the rules of a stage that tag documents and keep them."""
    return [str(rule["name"]) for rule in read_selection_rules(artifact) if rule["action"] == "tag"]
