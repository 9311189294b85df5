"""Define the published quality rules of Gopher, C4 and FineWeb over the signals of ``quality``.

The rules follow their papers. If a paper does not define a signal precisely, datatrove's definition
is used; if it does not say what happens at a bound, the document is kept, as in datatrove. Comments
at the rules of FineWeb note where its paper and its code in datatrove differ.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

PresetName = Literal["gopher", "c4", "fineweb"]

#: Settings of the rules of ``select``, by preset and by name of the rule.
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
    # Raffel et al. 2020, section 2.2. C4 also removes single lines: the signals c4_… measure this,
    # but no text is changed. Its list of bad words is not included.
    "c4": {
        "c4_lorem_ipsum": {"le": 0},
        "c4_curly_brackets": {"le": 0},
        "c4_sentences": {"ge": 5},
    },
    # Penedo et al. 2024 ("The FineWeb Datasets"), section 3.6. The paper removes a document that
    # lies on a bound (<= 0.12, >= 0.1, >= 0.67); its code (datatrove) keeps it, as here. The last
    # rule is in that code only.
    "fineweb": {
        # A text without lines has no value here and is removed.
        "fineweb_terminal_lines": {"signal": "terminal_lines", "ge": 0.12, "on_missing": "remove"},
        "fineweb_short_lines": {"signal": "short_lines", "le": 0.67},
        # The paper's bound, half of MassiveText's 0.2; it removed 12.47 % of the tokens. The
        # default in datatrove's code is 0.01, ten times as strict.
        "fineweb_duplicate_characters": {"signal": "duplicate_characters", "le": 0.1},
        "fineweb_feeds_per_word": {"signal": "line_feeds_per_word", "le": 0.3},
    },
}


def find_rule_violations(rule: dict[str, Any], values: pa.Array) -> pa.Array:
    """Return whether each value violates the rule of a preset, (n,) bool; null without a value.

    This does not use ``select``, so that stages that only count violations do not depend on it.
    """
    violation_tests = {"ge": pc.less, "le": pc.greater}
    return reduce(
        pc.or_, [violation_tests[key](values, rule[key]) for key in violation_tests if key in rule]
    )


def describe_presets() -> str:
    """Describe all presets: name and bounds of each rule."""
    return "; ".join(
        f"{preset}: {', '.join(map(_format_rule_bounds, rules.items()))}"
        for preset, rules in PRESET_RULES.items()
    )


def _format_rule_bounds(named_rule: tuple[str, dict[str, Any]]) -> str:
    name, settings = named_rule
    signs = {"ge": "≥", "le": "≤"}
    bound_text = " and ".join(f"{signs[key]} {settings[key]:,}" for key in signs if key in settings)
    return f"{name} {bound_text}"
