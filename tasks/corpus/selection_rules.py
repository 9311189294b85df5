"""Read the rules of a ``select`` stage from its artifact.

This module imports the contract only, so that cards that name the rules do not depend on the code
that applies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hallmark.tasks.contract import Artifact

#: Settings of a rule by name, as in the config of ``select``; ``name`` is one of them.
RuleSettings = Mapping[str, object]


def read_selection_rules(artifact: Artifact) -> Sequence[RuleSettings]:
    """Return the rules in the config of a ``select`` stage; none for other stages."""
    config = artifact.manifest["parts"]["config"]
    return config.get("rules", ()) if artifact.stage == "select" else ()


def read_tagging_rule_names(artifact: Artifact) -> list[str]:
    """Return the names of the rules that tag documents."""
    return [str(rule["name"]) for rule in read_selection_rules(artifact) if rule["action"] == "tag"]
