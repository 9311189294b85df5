"""Define which texts are exact duplicates: those that a reader sees as the same text.

Texts count as equal if they differ only in what no reader sees:

* the Unicode form of a character (canonical equivalence, NFC): ``é`` as one code point or as two
* the characters that end a line: CR LF, CR, form feed, U+2028 and others instead of a line feed
* blanks at the end of a line, and blank lines at the beginning and the end of the text
* a no-break space instead of a space
* characters of no width: soft hyphen, zero-width space, word joiner and byte order mark

Everything else makes texts different: capitals, digits in another form (10² and 102), indentation,
the number of blanks between words, and the lines into which a text is divided. The search for near
duplicates ignores these differences (``hallmark.tasks.measures.normalised_words``).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.measures.normalised_words import limit_combining_marks

#: Characters of which NFC changes no text: letters up to U+02FF, Cyrillic, punctuation, kana,
#: ideographs, syllables of Hangul and full-width forms.
STABLE_CHARACTERS = (
    r"\x00-\x{2FF}\x{400}-\x{482}\x{2010}-\x{2027}\x{3001}-\x{3029}\x{3041}-\x{3096}"
    r"\x{30A1}-\x{30FF}\x{4E00}-\x{9FFF}\x{AC00}-\x{D7A3}\x{FF01}-\x{FF5E}"
)
#: Finds each text that folding may change, and a few others.
_MAY_CHANGE = (
    rf"[\r\x0B\x0C\x{{85}}\x{{A0}}\x{{AD}}]|[^{STABLE_CHARACTERS}]|[ \t](?:\n|\z)|\A\n|\n\z"
)
#: Soft hyphen, zero-width space, word joiner and byte order mark. A joiner changes the shape of its
#: neighbours, and a mark of direction their order.
_ZERO_WIDTH_CHARACTER = r"[\x{AD}\x{200B}\x{2060}\x{FEFF}]"
#: The mandatory line breaks of Unicode's line breaking algorithm (UAX 14), except the line feed.
_LINE_END = r"\r\n|[\r\x0B\x0C\x{85}\x{2028}\x{2029}]"


def fold_invisible_differences(texts: pa.Array) -> pa.Array:
    """Replace what no reader sees by one form, so that equal texts have equal characters.

    The result is a fixed point, and does not depend on the other texts of the column.
    """
    may_change = pc.match_substring_regex(texts, _MAY_CHANGE)
    if not pc.any(may_change).as_py():
        return texts
    folded = pc.replace_substring_regex(texts.filter(may_change), _ZERO_WIDTH_CHARACTER, "")
    folded = pc.replace_substring(folded, "\u00a0", " ")
    is_unstable = pc.match_substring_regex(folded, f"[^{STABLE_CHARACTERS}]")
    folded = pc.replace_with_mask(folded, is_unstable, _apply_nfc(folded.filter(is_unstable)))
    folded = pc.replace_substring_regex(folded, _LINE_END, "\n")
    folded = pc.replace_substring_regex(folded, r"[\t\pZ]+(\n|\z)", r"\1")
    folded = pc.replace_substring_regex(folded, r"\A\n+|\n+\z", "")
    return pc.replace_with_mask(texts, may_change, folded)


def _apply_nfc(texts: pa.Array) -> pa.Array:
    """Apply NFC word by word, because nothing composes with a space.

    A word with more than 30 combining marks in a row remains as it is: no script uses so many, and
    ordering them takes quadratic time.
    """
    words = pc.split_pattern(texts, " ")
    bounded_words = limit_combining_marks(words.values)
    normalised_words = pc.if_else(
        pc.equal(bounded_words, words.values), pc.utf8_normalize(bounded_words, "NFC"), words.values
    )
    word_lists = pa.ListArray.from_arrays(words.offsets, normalised_words)
    return pc.binary_join(word_lists, pa.scalar(" ", pa.large_string()))
