"""Published rules of quality over the signals of ``quality``, as their papers have them.

Where a paper leaves open what it counts, the figures are those of datatrove, and where it leaves
open what becomes of a value on a bound, it keeps the document, as there. FineWeb's paper and its
code in datatrove differ in one bound, and on the bounds: see the notes at its rules.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

PresetName = Literal["gopher", "c4", "fineweb"]

#: By preset, by name: what a rule of ``select`` has set. Of an empty text nothing is known; that
#: removes it.
PRESET_RULES: dict[str, dict[str, dict[str, Any]]] = {
    # Rae et al. 2021, section A1.1: quality filtering, then repetition removal (table A1).
    "gopher": {
        "gopher_words": {"signal": "word_count", "ge": 50, "le": 100_000},
        "gopher_word_length": {"signal": "mean_word_length", "ge": 3, "le": 10},
        "gopher_hashes": {"signal": "hash_signs_per_word", "le": 0.1},
        "gopher_ellipses": {"signal": "ellipses_per_word", "le": 0.1},
        "gopher_bullet_lines": {"signal": "bullet_lines", "le": 0.9},
        "gopher_ellipsis_lines": {"signal": "ellipsis_lines", "le": 0.3},
        "gopher_alphabetic_words": {"signal": "alphabetic_words", "ge": 0.8},
        "gopher_stop_words": {"signal": "stop_word_count", "ge": 2},
        "gopher_duplicate_paragraphs": {"signal": "duplicate_paragraphs", "le": 0.3},
        "gopher_duplicate_paragraphs_characters": {
            "signal": "duplicate_paragraphs_characters",
            "le": 0.2,
        },
        "gopher_duplicate_lines": {"signal": "duplicate_lines", "le": 0.3},
        "gopher_duplicate_lines_characters": {"signal": "duplicate_lines_characters", "le": 0.2},
        "gopher_top_2gram": {"signal": "top_2gram", "le": 0.2},
        "gopher_top_3gram": {"signal": "top_3gram", "le": 0.18},
        "gopher_top_4gram": {"signal": "top_4gram", "le": 0.16},
        "gopher_duplicate_5grams": {"signal": "duplicate_5grams", "le": 0.15},
        "gopher_duplicate_6grams": {"signal": "duplicate_6grams", "le": 0.14},
        "gopher_duplicate_7grams": {"signal": "duplicate_7grams", "le": 0.13},
        "gopher_duplicate_8grams": {"signal": "duplicate_8grams", "le": 0.12},
        "gopher_duplicate_9grams": {"signal": "duplicate_9grams", "le": 0.11},
        "gopher_duplicate_10grams": {"signal": "duplicate_10grams", "le": 0.1},
    },
    # Raffel et al. 2020, section 2.2. Which lines it takes besides is in the signals c4_…; no text
    # is changed. Its list of bad words is no part of this.
    "c4": {
        "c4_lorem_ipsum": {"le": 0},
        "c4_curly_brackets": {"le": 0},
        "c4_sentences": {"ge": 5},
    },
    # Penedo et al. 2024 ("The FineWeb Datasets"), section 3.6. By the paper's words a document on a
    # bound leaves (<= 0.12, >= 0.1, >= 0.67), by its code (datatrove), and here, it stays. The last
    # rule is in that code alone.
    "fineweb": {
        "fineweb_terminal_lines": {"signal": "terminal_lines", "ge": 0.12, "on_missing": "remove"},
        "fineweb_short_lines": {"signal": "short_lines", "le": 0.67},
        # The section's own figure, half of MassiveText's 0.2; it took 12.47 % of the tokens. The
        # default in datatrove's code is 0.01, ten times as strict.
        "fineweb_duplicate_characters": {"signal": "duplicate_characters", "le": 0.1},
        "fineweb_feeds_per_word": {"signal": "line_feeds_per_word", "le": 0.3},
    },
}


def find_rule_violations(rule: dict[str, Any], values: pa.Array) -> pa.Array:
    """Whether values of its signal break the bounds of a preset's rule, (n,) bool, null where there
    is no value. Apart from ``select``, so that what only counts does not depend on that."""
    violation_tests = {"ge": pc.less, "le": pc.greater}
    return reduce(
        pc.or_, [violation_tests[key](values, rule[key]) for key in violation_tests if key in rule]
    )


def describe_presets() -> str:
    """All presets in words: each rule's signal and bounds."""
    return "; ".join(
        f"{preset}: {', '.join(map(_format_rule_bounds, rules.items()))}"
        for preset, rules in PRESET_RULES.items()
    )


def _format_rule_bounds(named_rule: tuple[str, dict[str, Any]]) -> str:
    name, settings = named_rule
    signs = {"ge": "≥", "le": "≤"}
    bound_text = " and ".join(f"{signs[key]} {settings[key]:,}" for key in signs if key in settings)
    return f"{name} {bound_text}"
