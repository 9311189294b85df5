"""Choose the default action of a rule over a toxicity score, and explain it.

The embedded scorer matches words, not meaning. It scores harmless sentences about Black or gay
people as toxic, so by default it removes nothing: its rules tag. A neural classifier reads
sentences, so its rules remove by default.
"""

from __future__ import annotations

from typing import Literal

#: Description of each kind of scorer, which explains its default action.
_SCORER_DESCRIPTIONS = {
    "linear": "the embedded scorer, which matches words, not meaning, and may score harmless "
    "mentions of minorities as toxic",
    "detoxify": "Detoxify, a neural classifier",
}

#: What a reader must know of the scores of each kind of scorer; kinds without a warning are absent.
SCORER_WARNINGS = {
    "linear": "Warning: the embedded scorer matches words, not meaning, and may rate harmless "
    "mentions of minorities as toxic."
}


def choose_default_action(scorer_kind: str) -> Literal["remove", "tag"]:
    """Return the action of a toxicity rule for which the config names none."""
    return "tag" if scorer_kind == "linear" else "remove"


def explain_action(action: str, scorer_kind: str) -> str:
    """Say whether an action is the default of a scorer, or was set in the config."""
    default_action = choose_default_action(scorer_kind)
    description = _SCORER_DESCRIPTIONS[scorer_kind]
    if action == default_action:
        return f"the default with {description}"
    return f"set in the config; the default is {default_action} with {description}"
