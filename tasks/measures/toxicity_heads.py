"""What texts are scored for. Imports nothing, so that cards can name it without a scorer."""

from __future__ import annotations

#: What a text is scored for: the classes of Detoxify's models under the names of its ``predict``.
#: No scorer has all of them.
TOXICITY_HEADS = (
    "toxicity",
    "severe_toxicity",
    "obscene",
    "threat",
    "insult",
    "identity_attack",
    "sexual_explicit",
)
