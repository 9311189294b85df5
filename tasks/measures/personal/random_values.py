"""Decide whether a value looks random, as keys and good passwords do."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

#: The 250 pairs of letters that make up 94 % of the pairs in the words of program code and its
#: documentation, but 37 % of random pairs.
_FREQUENT_PAIR = (
    "a[bcdfgiklmnprstuvy]|b[aeilorsu]|c[acehiklorstu]|d[adeilorsu]|"
    "e[abcdefgilmnpqrstvwx]|f[aefilortu]|g[aeghilnorsu]|h[aeiort]|i[abcdefglmnoprstvxz]|"
    "k[eis]|l[adeilostuy]|m[abeimopsu]|n[acdefgiknostuv]|o[abcdfgiklmnoprstuvw]|"
    "p[aehiloprstuy]|qu|r[acdegiklmnoprstuvy]|s[acehiklopstuy]|t[acehiloprstuy]|"
    "u[abcegilmnprst]|v[aeio]|w[aeior]|x[eipt]|y[ps]|ze"
)
_ORDERED_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789012345"
_ORDERED_PAIR = "|".join(a + b for a, b in pairwise(_ORDERED_CHARACTERS) if a + b != "z0")
#: Parts of a value in lower case that are no evidence of randomness: runs of frequent pairs, as in
#: words, repeated characters, and characters in their order.
_PREDICTABLE_PART = re.compile(
    rf"(?<![a-z])keys?(?![a-z])|(?:(?={_FREQUENT_PAIR})[a-z]){{3,}}[a-z]"
    rf"|(?<![a-z])(?:(?={_FREQUENT_PAIR})[a-z]){{2}}[a-z](?![a-z])"
    r"|[0-9]{1,4}(?:[-/:.][0-9]{1,2}){2,}"  # dates and times
    rf"|(.)\1{{2,}}|(?:(?={_ORDERED_PAIR})[a-z0-9]){{2,}}[a-z0-9]"
)
_WORD_BOUNDARY_IN_NAME = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_ALPHANUMERIC = re.compile("[^A-Za-z0-9]+")
#: An encoded character in a URL.
_URL_ENCODED_CHARACTER = re.compile("%[0-9A-Fa-f]{2}")
#: A name in place of the value: "${VAR}", "$VAR", "{{ var }}", "%VAR%", "<var>", "[redacted]".
_PLACEHOLDER = re.compile(
    r"\$?\{+[^{}]*\}+|\$\([^()]*\)|\$(?:[A-Z_][A-Z0-9_]*|[a-z_][A-Za-z_]*)|%[A-Za-z_]\w*%|<[^<>]*>"
    r"|\[[^\[\]]*\]|[^\n]*(?:A-Za-z|a-zA-Z|a-z0-9|A-Z0-9|\[(?:a-z|A-Z|0-9)\])[^\n]*|arn:[^\n]*"
)
#: Marks that occur in passwords more often than in names.
_PASSWORD_MARKS = frozenset("!@#$%^&*?~+")
#: Number of characters of a value that are judged.
_JUDGED_CHARACTERS = 200


def is_random_looking(value: str, min_characters: int) -> bool:
    """Return whether a value looks random, as keys and good passwords do.

    At least half of its letters and digits must be outside of words, repetitions and sequences, and
    it must change between lower case, capitals, digits and marks more often than names do.
    """
    value = _URL_ENCODED_CHARACTER.sub("_", value[:_JUDGED_CHARACTERS]).rstrip(".!?")
    if len(value) < min_characters or _PLACEHOLDER.fullmatch(value):
        return False
    if value.count(".") > max(2, len(value) // 12) or value.count("/") > max(1, len(value) // 6):
        return False
    parts = _PREDICTABLE_PART.sub("", _WORD_BOUNDARY_IN_NAME.sub(" ", value).lower())
    unpredictable = len(_NOT_ALPHANUMERIC.sub("", parts))
    share = unpredictable / max(1, sum(map(str.isalnum, value)))
    if share < 0.4:
        return False
    kinds = map(_character_kind, value)
    neighbours = [(a, b) for a, b in pairwise(kinds) if a and b]
    changes = sum(a != b for a, b in neighbours)
    change_rate = changes / max(1, len(neighbours))
    has_digit = any(map(str.isdigit, value))
    if len(value) >= 16 and change_rate >= 0.5:
        return True
    # Names in code seldom have digits.
    if unpredictable < 6 or share < (0.5 if has_digit else 0.6):
        return False
    if len(value) >= 16 and has_digit and share >= 0.75:
        return changes >= 2 and change_rate >= 0.1
    return changes >= 3 and change_rate >= (0.35 if len(value) < 16 or " " in value else 0.15)


@cache
def _character_kind(character: str) -> int:
    """Return a number for digits, capitals, other letters or marks of passwords, else 0."""
    if character.isdigit():
        return 1
    if character.isalpha():
        return 2 if character.isupper() else 3
    return 4 if character in _PASSWORD_MARKS else 0
