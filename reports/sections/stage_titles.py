"""Name the stages of a corpus in words, for the tables of a datasheet and for pages of runs.

Commands, configs and tables of the store name a stage by its label. Pages add the title.
"""

from __future__ import annotations

#: The titles of the stages of the corpus, by label.
CORPUS_STAGE_TITLES = {
    "ingest": "source reading",
    "deduplicate": "exact duplicates",
    "language": "languages",
    "quality": "quality signals",
    "identities": "mentions of groups of people",
    "select": "filter by rules",
    "deduplicate_near": "near-duplicates",
    "evaluate_near_duplicates": "near-duplicate search test",
    "find_repeats": "search for repeated passages",
    "cut_repeats": "removal of repeated passages",
    "evaluate_detectors": "personal-data search test",
    "find_personal_data": "search for personal data",
    "redact_spans": "personal-data masking",
    "deduplicate_redacted": "duplicates after masking",
    "score_toxicity": "toxicity scores",
    "find_toxic_spans": "search for toxic passages",
    "cut_toxic": "removal of toxic passages",
    "contamination": "search for items from the configured evaluation sets",
    "select_scored": "filter by toxicity and other scores",
    "leave_out": "document exclusion for an experiment",
    "split": "split into train, validation and holdout",
    "plant_canaries": "planting of known texts",
    "profile": "corpus statistics",
    "removal_effects": "removal rates by group",
    "evaluate_curation": "comparison with known content",
}


def name_corpus_stage(label: str) -> str:
    """Return the title of a stage with its label in brackets; only the label without a title."""
    title = CORPUS_STAGE_TITLES.get(label)
    return f"{title} ({label})" if title else label
