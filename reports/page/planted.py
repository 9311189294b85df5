"""Finding planted secrets in text, whole or in part, whatever separates their letters.

A model that its token limit cuts off shows the first digits of a secret, a window of a document
its last ones, and a model that memorised it badly a run of its middle. All of them are hidden, down
to a few letters that occur in other text by chance.

What counts are letters and digits: case, separators and the script of digits do not. How many must
agree depends on what else speaks for the secret:

- ``RUN`` letters, nearly all digits or both in turn, anywhere. 100 secrets of 9 digits have 400
  runs of 1,000,000: one number of six digits in 2,500 is hidden by mistake.
- ``EDGE`` letters where a text ends with the beginning of a secret, begins with its end, or is all
  of it inside one; only in texts that something may have cut. With 100 secrets, one number of four
  digits in 100 that ends a text is hidden by mistake; with three digits it would be one in ten.
- A single letter right after the sentence that the secret was planted in, or right before its rest,
  if ``CONTEXT`` letters of that sentence are there. What was written in place of the secret is
  hidden to its end, so that nobody sees where the model went wrong.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tasks.measures.personal.folding import fold

RUN = 6
EDGE = 4
CONTEXT = 12
#: Letters of a sentence that are enough where it has no more.
SHORTEST_CONTEXT = 8

_BETWEEN, _LETTER = re.compile(r"[\W_]+"), re.compile(r"[^\W_]")
_DIGITS = re.compile(r"\d+")
#: What may be written in place of a secret: a word, an address, or groups of digits.
_SLOT = re.compile(r"[\w.@+-]+(?:[^\w\n]{1,3}\d+)*")
_SLOT_BEFORE = re.compile(r"(?:\d+[^\w\n]{1,3}){0,40}[\w.@+-]{1,80}\Z")


@dataclass(frozen=True)
class PlantedSecret:
    """A secret, and what stands around it in the text that was planted."""

    text: str
    before: str = ""
    after: str = ""


class SecretFinder:
    """Finds the secrets, or parts of them, in texts without characters that nobody sees."""

    def __init__(self, secrets: Iterable[PlantedSecret]) -> None:
        known = [secret for secret in secrets if secret.text.strip()]
        self._any = bool(known)
        letters = sorted({spelling for secret in known if (spelling := _letters(secret.text))})
        self._runs = {run for spelling in letters for run in _runs(spelling) if _is_telling(run)}
        # What consists of such runs is found by them.
        self._exact = sorted({_lower(s.text) for s in known if not _is_runs(_letters(s.text))})
        self._long = [s for s in letters if len(s) >= RUN and not _is_runs(s)]
        self._every = "\n".join(letters)
        # The name of a domain or a word inside a secret with digits says nothing of it.
        self._without_digits = "\n".join(s for s in letters if not _has_digit(s))
        sizes = range(EDGE, max(map(len, letters), default=0))
        self._heads = {s[:size] for s in letters for size in sizes if size < len(s)}
        self._tails = {
            tail
            for s in letters
            for tail in (s[-size:] for size in sizes if size < len(s))
            if _has_digit(tail) or not _has_digit(s)
        }
        self._longest = len(sizes) + EDGE - 1
        self._after = _by_context(((s.before, s.text) for s in known), ends_with=True)
        self._before = _by_context(((s.after, s.text) for s in known), ends_with=False)

    def find(self, text: str, *, may_be_cut: bool) -> Iterator[tuple[int, int]]:
        """Find secrets and parts of them.

        Args:
            text: Where to look.
            may_be_cut: Whether the text may end or begin in the middle of a secret.

        Yields:
            The first character and the one after the last; spans may overlap.
        """
        if not self._any:
            return
        folded = _lower(text)
        yield from occurrences(self._exact, folded)
        letters = _BETWEEN.sub("", folded)
        spans = [*self._runs_in(letters), *occurrences(self._long, letters)]
        if may_be_cut:
            spans += self._at_ends(letters, folded)
        after = [*self._slots(letters, self._after, ends_with=True)]
        before = [*self._slots(letters, self._before, ends_with=False)]
        if not (spans or after or before):
            return
        places = [match.start() for match in _LETTER.finditer(folded)]
        yield from ((places[start], places[end - 1] + 1) for start, end in spans)
        for start, end in after:
            slot = _SLOT.match(folded, places[start])
            yield places[start], max(slot.end() if slot else 0, places[end - 1] + 1)
        for start, end in before:
            stop = places[end - 1] + 1
            slot = _SLOT_BEFORE.search(folded, max(0, stop - 80), stop)
            yield min(slot.start() if slot else stop, places[start]), stop

    def _runs_in(self, letters: str) -> Iterator[tuple[int, int]]:
        done = 0
        for digits in _DIGITS.finditer(letters):
            for at in range(max(done, digits.start() - RUN + 1), digits.end()):
                if letters[at : at + RUN] in self._runs:
                    yield at, at + RUN
            done = digits.end()

    def _at_ends(self, letters: str, text: str) -> Iterator[tuple[int, int]]:
        size = len(letters)
        inside = self._every if _has_digit(letters) else self._without_digits
        if size >= EDGE and letters in inside:
            yield 0, size
            return
        sizes = range(min(self._longest, size), EDGE - 1, -1)
        # Most texts end and begin with letters that no secret has in a row.
        heads = sizes if letters[-EDGE:] in self._every else ()
        for n in (n for n in heads if letters[-n:] in self._heads):
            if _is_apart(text, size - n):
                yield size - n, size
                break
        tails = sizes if letters[:EDGE] in self._every else ()
        for n in (n for n in tails if letters[:n] in self._tails):
            if _is_apart(text, n):
                yield 0, n
                break

    def _slots(
        self, letters: str, contexts: dict[str, list[str]], *, ends_with: bool
    ) -> Iterator[tuple[int, int]]:
        """Find what follows the sentence before a secret, or precedes its rest, as far as it agrees
        with one of the secrets that belong there."""
        for start, end in occurrences(contexts, letters):
            context = letters[start:end]
            if ends_with:
                size = max(_common(letters[end : end + len(s)], s) for s in contexts[context])
                if size:
                    yield end, end + size
            else:
                size = max(
                    _common(letters[max(0, start - len(s)) : start][::-1], s[::-1])
                    for s in contexts[context]
                )
                if size:
                    yield start - size, start


def occurrences(words: Iterable[str], text: str) -> Iterator[tuple[int, int]]:
    """Find each of the words wherever it occurs in the text."""
    for word in filter(text.__contains__, words):
        start = text.find(word)
        while start >= 0:
            yield start, start + len(word)
            start = text.find(word, start + 1)


def _by_context(pairs: Iterable[tuple[str, str]], *, ends_with: bool) -> dict[str, list[str]]:
    """Group secrets by the letters right before them, or right after them."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for context, secret in pairs:
        letters, spelling = _letters(context), _letters(secret)
        if len(letters) >= SHORTEST_CONTEXT and spelling:
            grouped[letters[-CONTEXT:] if ends_with else letters[:CONTEXT]].append(spelling)
    return dict(grouped)


def _runs(spelling: str) -> list[str]:
    return [spelling[at : at + RUN] for at in range(len(spelling) - RUN + 1)]


def _has_digit(text: str) -> bool:
    return bool(_DIGITS.search(text))


def _is_runs(spelling: str) -> bool:
    """Whether every run of a secret's letters is telling, so that the runs cover all of it."""
    runs = _runs(spelling)
    return bool(runs) and all(map(_is_telling, runs))


def _is_telling(run: str) -> bool:
    """Whether a run of letters is unlikely in other text: digits, or both in turn. An address
    ends with the name of a domain, which is no secret."""
    digits = [c.isdigit() for c in run]
    return sum(digits) >= RUN - 2 or sum(a != b for a, b in pairwise(digits)) >= RUN // 2


def _common(text: str, secret: str) -> int:
    """Count the first letters that agree."""
    pairs = zip(text, secret, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(text), len(secret)))


def _is_apart(text: str, place: int) -> bool:
    """Whether no word runs across the place before this letter of the text; digits may."""
    letters = [*_LETTER.finditer(text)]
    if not 0 < place < len(letters):
        return True
    before, after = letters[place - 1], letters[place]
    adjacent = before.end() == after.start()
    return not (adjacent and before[0].isalpha() and after[0].isalpha())


def _lower(text: str) -> str:
    """Fold case and digits, one character for one."""
    folded = fold(text)
    lower = folded.lower()
    if len(lower) == len(folded):
        return lower
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in folded)


def _letters(text: str) -> str:
    return _BETWEEN.sub("", _lower(text))
