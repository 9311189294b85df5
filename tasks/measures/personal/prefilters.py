"""Write expressions for RE2 that match whatever the expressions of the detectors match.

RE2 searches a column for texts that may have a value. It knows fewer white-space characters and
fewer forms of the letter i than Python.
"""

from __future__ import annotations

import re

from hallmark.tasks.measures.personal.folding import build_character_class

#: What `\s` matches in Python; in RE2 it matches only ASCII characters.
WHITE_SPACE = build_character_class(code for code in range(0x3001) if chr(code).isspace())
#: Forms of the letter i that Python, but not RE2, takes for one in an expression without case. The
#: lower case of the first one begins with an i, and the upper case of the second one is an I.
_FORMS_OF_I = "\u0130\u0131"
#: The beginning of a group, an escaped character, a character class, or the letter i.
_TOKEN = re.compile(r"\(\?[a-z-]*[:)]|\\.|\[\^?\]?[^\]]*\]|[iI]")


def ignore_case(pattern: str) -> str:
    """Write an expression without case for RE2, with all forms of the letter i."""
    return f"(?i:{_TOKEN.sub(_add_forms_of_i, pattern)})"


def _add_forms_of_i(token: re.Match[str]) -> str:
    if token[0] in ("i", "I"):
        return f"[i{_FORMS_OF_I}]"
    is_class = token[0][0] == "[" and token[0][1] != "^"
    if is_class and re.fullmatch(token[0], "i", re.IGNORECASE):
        return f"{token[0][:-1]}{_FORMS_OF_I}]"
    return token[0]
