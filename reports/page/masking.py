"""What must not be shown is masked where a page is made, so that no page source holds it.

What a column's kind does not allow is denied (tasks/contract/columns.py). Text of the corpus or of
a model is shown where a scorer found it harmless, and nowhere else; ``personal`` is never shown.
In all that is shown, personal data and credentials (found as ``tasks.corpus.scrub`` finds them, and
whatever nobody sees stands in them) and the secrets of planted documents are masked, also parts of
them that the ends of a text cut off (``reports.page.planted``,
``tasks.measures.personal.truncated``), or that begin in one text and end in the next; and keys with
the prefix of a vendor that are shorter than complete ones. Characters that a reader cannot see, or
that turn the text around them, are written out.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

from reports.page.planted import PlantedSecret, SecretFinder
from tasks.contract import Column

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

#: Kinds of text that a token limit or a window may have cut off in the middle of a value. Labels,
#: ids and figures are whole: many end with a number.
CUT = (*JUDGED, "audit text")

_READ = 4000  # characters of a text that are looked at ...
_MARGIN = 500  # ... of which the last are dropped where it was cut: a span may straddle the cut


class Masker:
    """Masks texts for one card.

    ``secrets`` are the planted ones, of the table ``plants``, with the sentences that they were
    planted in where these are known; ``regions`` countries whose national telephone numbers are
    looked for beside the detectors' own.
    """

    notice = ""  # what stands at the top of each page

    def __init__(
        self,
        secrets: Iterable[str | PlantedSecret] = (),
        threshold: float = OFFENSIVE,
        regions: Iterable[str] = (),
    ) -> None:
        self.threshold, self.regions = threshold, frozenset(regions)
        planted = (PlantedSecret(s) if isinstance(s, str) else s for s in secrets)
        self._planted = SecretFinder(
            PlantedSecret(_bare(s.text), _bare(s.before), _bare(s.after)) for s in planted
        )
        self._seen: dict[tuple[Any, ...], str] = {}
        self._said: dict[str, str] = {}
        #: Neighbouring texts are searched together once for each of them.
        self._spans_of_joined = lru_cache(maxsize=4096)(self.spans)

    def is_offensive(self, score: float | None) -> bool:
        return score is not None and score >= self.threshold

    def shown(
        self,
        text: str,
        kind: str,
        score: float | None = None,
        limit: int = 400,
        around: tuple[str, str] = ("", ""),
        beside: tuple[str, str] = ("", ""),
    ) -> str:
        """Return a text of this kind as it may be shown.

        Args:
            text: The text.
            kind: Of its column; decides whether it is shown at all.
            score: What judges it, if anything did.
            limit: About how many characters are shown at most.
            around: What precedes and follows it where it is cut out of a longer text.
            beside: What is shown before and after it and reads on from one to the next, such as a
                prompt and its continuation. What crosses the border is masked on both sides.
        """
        if kind in JUDGED:
            unscored = score is None or math.isnan(score)
            if unscored and text.strip():
                return f"[not shown: not scored, {len(text):,} characters]"
        elif kind not in OPEN:
            return f"[not shown: may hold personal data, {len(text):,} characters]"
        return self.text(text, score, limit, around, beside, may_be_cut=kind in CUT)

    def text(
        self,
        text: str,
        score: float | None = None,
        limit: int = 400,
        around: tuple[str, str] = ("", ""),
        beside: tuple[str, str] = ("", ""),
        *,
        may_be_cut: bool = True,
    ) -> str:
        """Return a text that may be shown, masked; at most about ``limit`` characters of it.

        ``may_be_cut``: whether its ends may cut off what must not be shown; the other arguments are
        those of ``shown``.
        """
        if self.is_offensive(score):
            return f"{blocks(text)} [masked: scored {score:.2f}, {len(text):,} characters]"
        around = (around[0][-_MARGIN:], around[1][:_MARGIN])
        key = (text, limit, around, beside, may_be_cut)
        if key not in self._seen:
            self._seen[key] = self._masked(text, limit, around, beside, may_be_cut)
        return self._seen[key]

    def whole(self, text: str) -> str:
        """What we say ourselves of rows and on cards (labels, conditions, lines of Python), masked,
        at any length."""
        if text not in self._said:
            self._said[text] = _without(text, self.spans(text, may_be_cut=False))
        return self._said[text]

    def _masked(
        self,
        text: str,
        limit: int,
        around: tuple[str, str],
        beside: tuple[str, str],
        may_be_cut: bool,
    ) -> str:
        read, (before, behind) = text, around
        if len(text) > _READ:
            read, behind = text[: _READ - _MARGIN], text[_READ - _MARGIN : _READ]
        # Spans are looked for in more than is kept: one may straddle either cut.
        at = len(before)
        found = self.spans(before + read + behind, may_be_cut=may_be_cut)
        spans = [(max(0, a - at), b - at, kind) for a, b, kind in found if b > at]
        spans += self._shared(text, beside)
        plain = _without(read, _merged(spans))
        length = len(plain)
        if length > limit:
            plain = plain[:limit]
        if length > limit or len(read) < len(text):
            plain += f"… [{len(text):,} characters in all]"
        return plain

    def _shared(self, text: str, beside: tuple[str, str]) -> list[tuple[int, int, str]]:
        """Return the spans of a text that show only beside the texts before and after it."""
        before, after = beside
        spans: list[tuple[int, int, str]] = []
        if before and text:
            start = max(0, len(before) - _MARGIN)
            joined = self._spans_of_joined(before[start:] + text[:_MARGIN])
            at = len(before) - start
            spans += [(max(0, a - at), b - at, kind) for a, b, kind in joined if b > at]
        if after and text:
            start = max(0, len(text) - _MARGIN)
            joined = self._spans_of_joined(text[start:] + after[:_MARGIN])
            found = ((a + start, min(b + start, len(text)), kind) for a, b, kind in joined)
            spans += [span for span in found if span[0] < span[1]]
        return spans

    def spans(self, text: str, *, may_be_cut: bool = True) -> list[tuple[int, int, str]]:
        """Return the spans to mask, in order, not overlapping.

        ``may_be_cut``: whether the ends of the text may cut off what must not be shown.
        """
        seen = [n for n, c in enumerate(text) if _is_seen(c)] if _hides(text) else range(len(text))
        bare = "".join([text[n] for n in seen]) if len(seen) < len(text) else text
        found = [*self._find(bare)]
        if may_be_cut:
            found += self._find_truncated(bare)
        planted = self._planted.find(bare, may_be_cut=may_be_cut)
        found += [("planted secret", *span) for span in planted]
        named = [(seen[a], seen[b - 1] + 1, kind.lower()) for kind, a, b in found]
        if bare is not text:  # what nobody sees may also set apart what it stands between
            spaced = "".join(c if _is_seen(c) else " " for c in text)
            named += [(start, end, kind.lower()) for kind, start, end in self._find(spaced)]
        return _merged(named)

    @cached_property
    def _find_truncated(self) -> Callable[[str], Any]:
        from tasks.measures.personal.truncated import find_truncated
        from tasks.measures.personal_data import REGIONS

        return partial(find_truncated, regions=sorted(self.regions.union(REGIONS)))

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
        beside: tuple[str, str] = ("", ""),
    ) -> str:
        return self.text(text, score, limit, around)

    def is_offensive(self, score: float | None) -> bool:
        return False

    def spans(self, text: str, *, may_be_cut: bool = True) -> list[tuple[int, int, str]]:
        return []


def _merged(spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the spans in order, those that overlap as one, which has the name of its first."""
    merged: list[tuple[int, int, str]] = []
    for start, end, kind in sorted(spans):
        if merged and start < merged[-1][1]:
            first, last, name = merged[-1]
            merged[-1] = (first, max(last, end), name)
        elif start < end:
            merged.append((start, end, kind))
    return merged


def prompts_of(columns: Iterable[Column]) -> dict[str, str]:
    """Return, for each column that holds what a model wrote, the column that holds its prompt."""
    by_name = {column.name: column for column in columns}
    prompt = next((name for name in ("prompt", "text") if name in by_name), None)
    if prompt is None or by_name[prompt].kind == "model text":
        return {}
    return {name: prompt for name, column in by_name.items() if column.kind == "model text"}


def neighbours_of(name: str, row: Mapping[str, Any], prompts: Mapping[str, str]) -> tuple[str, str]:
    """Return what precedes and follows the value of a column in a row that shows both.

    ``prompts``: those of the row's columns, as ``prompts_of`` finds them.
    """
    if name in prompts:
        return str(row[prompts[name]] or ""), ""
    written = [row[other] for other, prompt in prompts.items() if prompt == name and row[other]]
    return "", str(written[0]) if written else ""


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


def _hides(text: str) -> bool:
    """Whether a text may hold what nobody sees: a quick look."""
    printable = text.replace("\n", "").replace("\t", "").isprintable()
    return not printable or bool(_UNSEEN.search(text))


def _is_symbol(character: str) -> bool:
    return unicodedata.category(character) == "So"


def _is_seen(character: str) -> bool:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return character in "\n\t" or not (hidden or _UNSEEN.match(character))
