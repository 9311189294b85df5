"""Name the heads of toxicity scorers; imports nothing, so that cards need no scorer."""

from __future__ import annotations

#: Classes of Detoxify's models, under the names of its `predict`. No scorer has all of them.
TOXICITY_HEADS = (
    "toxicity",
    "severe_toxicity",
    "obscene",
    "threat",
    "insult",
    "identity_attack",
    "sexual_explicit",
)
