"""What must not be shown is masked where a page is made, so that no page source holds it.

What a column's kind does not allow is denied (tasks/contract/columns.py). Text of the corpus or of
a model is shown where a scorer found it harmless, and nowhere else; ``personal`` is never shown.
In all that is shown, personal data and credentials (found as ``tasks.corpus.scrub`` finds them, and
whatever nobody sees stands in them) and the secrets of planted documents are masked. Characters
that a reader cannot see, or that turn the text around them, are written out.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

#: A text whose stored toxicity is at or above this is shown as blocks.
OFFENSIVE = 0.5

#: Kinds of text that are shown as far as they hold nothing that must be masked, and those that need
#: a score; every other kind of text is shown nowhere.
OPEN = ("audit text", "project text", "label", "id", "figure")
JUDGED = ("corpus text", "model text")

#: Unicode's default ignorable characters, which nobody sees (some are letters, some marks), and the
#: blank of braille; as a class of a regular expression.
UNSEEN = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_UNSEEN = re.compile(UNSEEN)

Say = Callable[[str], str]  # a text as it may be shown

#: A secret with so many letters and digits is found by them alone.
_LONG = 8
_BETWEEN, _LETTER = re.compile(r"[\W_]+"), re.compile(r"[^\W_]")

_READ = 4000  # characters of a text that are looked at ...
_MARGIN = 500  # ... of which the last are dropped where it was cut: a span may straddle the cut


class Masker:
    """Masks texts for one card.

    ``secrets`` are the planted ones, of the table ``plants``; ``regions`` countries whose national
    telephone numbers are looked for beside the detectors' own.
    """

    notice = ""  # what stands at the top of each page

    def __init__(
        self,
        secrets: Iterable[str] = (),
        threshold: float = OFFENSIVE,
        regions: Iterable[str] = (),
    ) -> None:
        self.threshold, self.regions = threshold, frozenset(regions)
        self._secrets = sorted({bare for secret in secrets if (bare := _bare(secret)).strip()})
        letters = {_BETWEEN.sub("", secret) for secret in self._secrets}
        self._long = sorted(found for found in letters if len(found) >= _LONG)
        self._seen: dict[tuple[str, int, tuple[str, str]], str] = {}
        self._said: dict[str, str] = {}

    def is_offensive(self, score: float | None) -> bool:
        return score is not None and score >= self.threshold

    def shown(
        self,
        text: str,
        kind: str,
        score: float | None = None,
        limit: int = 400,
        around: tuple[str, str] = ("", ""),
    ) -> str:
        """A text of this kind as it may be shown; ``score`` is what judges it, if anything did.
        ``around``: what stands before and behind it where it is cut out of a longer one."""
        if kind in JUDGED:
            unscored = score is None or math.isnan(score)
            if unscored and text.strip():
                return f"[not shown: not scored, {len(text):,} characters]"
        elif kind not in OPEN:
            return f"[not shown: may hold personal data, {len(text):,} characters]"
        return self.text(text, score, limit, around)

    def text(
        self,
        text: str,
        score: float | None = None,
        limit: int = 400,
        around: tuple[str, str] = ("", ""),
    ) -> str:
        """A text that may be shown, masked; at most about ``limit`` characters of it."""
        if self.is_offensive(score):
            return f"{blocks(text)} [masked: scored {score:.2f}, {len(text):,} characters]"
        key = (text, limit, (around[0][-_MARGIN:], around[1][:_MARGIN]))
        if key not in self._seen:
            self._seen[key] = self._masked(*key)
        return self._seen[key]

    def whole(self, text: str) -> str:
        """What we say ourselves of rows and on cards (labels, conditions, lines of Python), masked,
        at any length."""
        if text not in self._said:
            self._said[text] = _without(text, self.spans(text))
        return self._said[text]

    def _masked(self, text: str, limit: int, around: tuple[str, str]) -> str:
        read, (before, behind) = text, around
        if len(text) > _READ:
            read, behind = text[: _READ - _MARGIN], text[_READ - _MARGIN : _READ]
        # Spans are looked for in more than is kept: one may straddle either cut.
        at = len(before)
        found = self.spans(before + read + behind)
        plain = _without(read, [(max(0, a - at), b - at, kind) for a, b, kind in found if b > at])
        length = len(plain)
        if length > limit:
            plain = plain[:limit]
        if length > limit or len(read) < len(text):
            plain += f"… [{len(text):,} characters in all]"
        return plain

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """Spans to mask, in order, not overlapping."""
        seen = [n for n, c in enumerate(text) if _is_seen(c)] if _hides(text) else range(len(text))
        bare = "".join([text[n] for n in seen]) if len(seen) < len(text) else text
        found = [*self._find(bare), *(("planted secret", *span) for span in self._planted(bare))]
        named = [(seen[a], seen[b - 1] + 1, kind.lower()) for kind, a, b in found]
        if bare is not text:  # what nobody sees may also set apart what it stands between
            spaced = "".join(c if _is_seen(c) else " " for c in text)
            named += [(start, end, kind.lower()) for kind, start, end in self._find(spaced)]
        merged: list[tuple[int, int, str]] = []
        for start, end, kind in sorted(named):
            if merged and start < merged[-1][1]:
                first, last, name = merged[-1]
                merged[-1] = (first, max(last, end), name)
            else:
                merged.append((start, end, kind))
        return merged

    def _planted(self, text: str) -> Iterator[tuple[int, int]]:
        """Where secrets stand; long ones also written with other marks between their letters."""
        yield from _occurrences(self._secrets, text)
        letters = _BETWEEN.sub("", text)
        if found := list(_occurrences(self._long, letters)):
            places = [match.start() for match in _LETTER.finditer(text)]
            yield from ((places[start], places[end - 1] + 1) for start, end in found)

    @cached_property
    def _find(self) -> Callable[[str], Any]:
        from tasks.measures.personal.types import TYPES
        from tasks.measures.personal_data import REGIONS, find  # they take a while to import

        # All types, whatever the config of the corpus left out.
        return partial(find, types=TYPES, regions=sorted(self.regions.union(REGIONS)))


class Unmasked(Masker):
    """Shows everything: for ``reports.reveal`` alone, whose pages nobody else may see."""

    notice = (
        "Unmasked, for local eyes: this page shows personal data, planted secrets and offensive "
        "text in clear, whatever it says below. Do not publish it."
    )

    def shown(
        self,
        text: str,
        kind: str,
        score: float | None = None,
        limit: int = 400,
        around: tuple[str, str] = ("", ""),
    ) -> str:
        return self.text(text, score, limit, around)

    def is_offensive(self, score: float | None) -> bool:
        return False

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        return []


def _without(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    """The text with each span replaced by its kind; spans in order, some behind the text's end."""
    shown: list[str] = []
    end = 0
    for start, stop, kind in spans:
        if start < len(text):
            shown += [text[end:start], f"[{kind} masked]"]
            end = stop
    return visible("".join([*shown, text[end:]]))


def blocks(text: str, limit: int = 60) -> str:
    """Words as blocks of their length: how much stands there, not what."""
    return re.sub(r"\S", "█", " ".join(text[: 4 * limit].split()))[:limit] or "█"


def visible(text: str) -> str:
    """What a reader cannot see written out as ‹U+202E›: control, format, private and lone surrogate
    characters, and UNSEEN.

    Line breaks and tabs stay: the renderers deal with them; so does what gives a symbol its colour.
    """
    if not _hides(text):
        return text
    return "".join(
        c if _is_seen(c) or (c == "\ufe0f" and _is_symbol(before)) else f"‹U+{ord(c):04X}›"
        for before, c in zip(" " + text, text, strict=False)
    )


def _bare(text: str) -> str:
    return "".join(filter(_is_seen, text))


def _occurrences(words: Iterable[str], text: str) -> Iterator[tuple[int, int]]:
    for word in filter(text.__contains__, words):
        start = text.find(word)
        while start >= 0:
            yield start, start + len(word)
            start = text.find(word, start + 1)


def _hides(text: str) -> bool:
    """Whether a text may hold what nobody sees: a quick look."""
    printable = text.replace("\n", "").replace("\t", "").isprintable()
    return not printable or bool(_UNSEEN.search(text))


def _is_symbol(character: str) -> bool:
    return unicodedata.category(character) == "So"


def _is_seen(character: str) -> bool:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return character in "\n\t" or not (hidden or _UNSEEN.match(character))
