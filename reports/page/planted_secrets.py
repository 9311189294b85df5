"""Find planted secrets in text, whole or in part, whatever separates their characters.

A model that reaches its token limit shows the first digits of a secret, a window of a document
shows its last ones, and a model that memorised it imperfectly shows a run from its middle. All of
them are hidden, unless they are so short that they occur in other text by chance.

Only letters and digits count; case, separators and the script of digits do not. How many must match
depends on the other evidence for the secret:

- ``RUN_LENGTH`` characters, nearly all digits or letters and digits in turn, anywhere. 100 secrets
  of 9 digits have 400 runs out of 1,000,000: one number of six digits in 2,500 is hidden by
  mistake.
- ``MIN_EDGE_LENGTH`` characters where a text ends with the beginning of a secret, begins with its
  end, or lies entirely inside one; only in texts that may be truncated. With 100 secrets, one
  number of four digits in 100 that ends a text is hidden by mistake; with three digits, one in ten.
- A single character directly after the sentence that the secret was planted in, or directly before
  the rest of that sentence, if ``CONTEXT_LENGTH`` characters of the sentence match. Whatever was
  written in place of the secret is hidden to its end, so that nobody sees where the model went
  wrong.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hallmark.tasks.measures.personal.folding import fold_digits_and_separators

RUN_LENGTH = 6
MIN_EDGE_LENGTH = 4
CONTEXT_LENGTH = 12
#: Context characters that are sufficient if the sentence has no more.
MIN_CONTEXT_LENGTH = 8

_SEPARATOR_PATTERN, _ALPHANUMERIC_PATTERN = re.compile(r"[\W_]+"), re.compile(r"[^\W_]")
_DIGITS_PATTERN = re.compile(r"\d+")
#: Text that may replace a secret: a word, an address, or groups of digits.
_SUBSTITUTE_PATTERN = re.compile(r"[\w.@+-]+(?:[^\w\n]{1,3}\d+)*")
_SUBSTITUTE_SUFFIX_PATTERN = re.compile(r"(?:\d+[^\w\n]{1,3}){0,40}[\w.@+-]{1,80}\Z")


#: Start and end of a part of a text, end exclusive.
TextSpan = tuple[int, int]


@dataclass(frozen=True)
class PlantedSecret:
    """A secret, and the text before and after it in the planted document."""

    text: str
    preceding_text: str = ""
    following_text: str = ""


class SecretFinder:
    """Finds secrets, or parts of them, in texts without invisible characters."""

    def __init__(self, secrets: Iterable[PlantedSecret]) -> None:
        nonempty_secrets = [secret for secret in secrets if secret.text.strip()]
        self._has_secrets = bool(nonempty_secrets)
        spellings = sorted(
            {
                spelling
                for secret in nonempty_secrets
                if (spelling := _extract_alphanumerics(secret.text))
            }
        )
        self._distinctive_runs = {
            run
            for spelling in spellings
            for run in _extract_letter_runs(spelling)
            if _is_distinctive_run(run)
        }
        # Secrets that consist of distinctive runs are found by these runs.
        self._exact_texts = sorted(
            {
                _fold_case_and_digits(s.text)
                for s in nonempty_secrets
                if not _is_covered_by_runs(_extract_alphanumerics(s.text))
            }
        )
        self._long_spellings = [
            s for s in spellings if len(s) >= RUN_LENGTH and not _is_covered_by_runs(s)
        ]
        self._joined_spellings = "\n".join(spellings)
        # A word or domain name inside a secret with digits does not reveal the secret.
        self._joined_digitless_spellings = "\n".join(s for s in spellings if not _has_digit(s))
        edge_lengths = range(MIN_EDGE_LENGTH, max(map(len, spellings), default=0))
        self._prefixes = {s[:size] for s in spellings for size in edge_lengths if size < len(s)}
        self._suffixes = {
            suffix
            for s in spellings
            for suffix in (s[-size:] for size in edge_lengths if size < len(s))
            if _has_digit(suffix) or not _has_digit(s)
        }
        # What the beginning or the end of a text must be to be a part of a secret.
        self._edges = {
            spelling[start : start + MIN_EDGE_LENGTH]
            for spelling in spellings
            for start in range(len(spelling) - MIN_EDGE_LENGTH + 1)
        }
        self._max_edge_length = len(edge_lengths) + MIN_EDGE_LENGTH - 1
        self._secrets_by_left_context = _group_secrets_by_context(
            ((s.preceding_text, s.text) for s in nonempty_secrets), context_precedes=True
        )
        self._secrets_by_right_context = _group_secrets_by_context(
            ((s.following_text, s.text) for s in nonempty_secrets), context_precedes=False
        )

    def find_secret_spans(self, text: str, *, may_be_truncated: bool) -> Iterator[TextSpan]:
        """Find secrets and parts of them.

        Args:
            text: The text to search.
            may_be_truncated: Whether the text may begin or end in the middle of a secret.

        Yields:
            Start and end of each span, end exclusive; spans may overlap.
        """
        if not self._has_secrets:
            return
        normalized_text = _fold_case_and_digits(text)
        yield from find_occurrences(self._exact_texts, normalized_text)
        letters = _SEPARATOR_PATTERN.sub("", normalized_text)
        spans = [
            *self._find_distinctive_runs(letters),
            *find_occurrences(self._long_spellings, letters),
        ]
        if may_be_truncated:
            spans += self._find_edge_matches(letters, normalized_text)
        matches_after_context = [
            *self._find_context_matches(
                letters, self._secrets_by_left_context, context_precedes=True
            )
        ]
        matches_before_context = [
            *self._find_context_matches(
                letters, self._secrets_by_right_context, context_precedes=False
            )
        ]
        if not (spans or matches_after_context or matches_before_context):
            return
        letter_positions = [
            match.start() for match in _ALPHANUMERIC_PATTERN.finditer(normalized_text)
        ]
        yield from (
            (letter_positions[start], letter_positions[end - 1] + 1) for start, end in spans
        )
        for start, end in matches_after_context:
            substitute = _SUBSTITUTE_PATTERN.match(normalized_text, letter_positions[start])
            yield (
                letter_positions[start],
                max(substitute.end() if substitute else 0, letter_positions[end - 1] + 1),
            )
        for start, end in matches_before_context:
            text_end = letter_positions[end - 1] + 1
            substitute = _SUBSTITUTE_SUFFIX_PATTERN.search(
                normalized_text, max(0, text_end - 80), text_end
            )
            yield (
                min(substitute.start() if substitute else text_end, letter_positions[start]),
                text_end,
            )

    def find_candidates(self, texts: Sequence[str]) -> set[int]:
        """Return the indices of the texts in which `find_secret_spans` may find a secret.

        All texts together are searched once for each secret, which is much faster than each text
        for all secrets.
        """
        if not self._has_secrets:
            return set()
        normalized_texts = [_fold_case_and_digits(text) for text in texts]
        letters = [_SEPARATOR_PATTERN.sub("", text) for text in normalized_texts]
        exact_texts = _select_occurring(self._exact_texts, normalized_texts)
        spellings = _select_occurring(
            [
                *self._long_spellings,
                *self._secrets_by_left_context,
                *self._secrets_by_right_context,
            ],
            letters,
        )
        return {
            index
            for index, (text, text_letters) in enumerate(
                zip(normalized_texts, letters, strict=True)
            )
            if any(exact_text in text for exact_text in exact_texts)
            or any(spelling in text_letters for spelling in spellings)
            or text_letters[:MIN_EDGE_LENGTH] in self._edges
            or text_letters[-MIN_EDGE_LENGTH:] in self._edges
            or (
                _has_digit(text_letters)
                and any(True for _ in self._find_distinctive_runs(text_letters))
            )
        }

    def _find_distinctive_runs(self, text_without_separators: str) -> Iterator[TextSpan]:
        """Find runs of digits and letters that only a secret contains."""
        scanned_end = 0
        for digits in _DIGITS_PATTERN.finditer(text_without_separators):
            for start in range(max(scanned_end, digits.start() - RUN_LENGTH + 1), digits.end()):
                if text_without_separators[start : start + RUN_LENGTH] in self._distinctive_runs:
                    yield start, start + RUN_LENGTH
            scanned_end = digits.end()

    def _find_edge_matches(self, text_without_separators: str, text: str) -> Iterator[TextSpan]:
        """Find the beginning of a secret at the end of a text, and the end of one at its start."""
        size = len(text_without_separators)
        # A quick check: most texts begin and end with characters that no secret contains.
        begins_like_secret = text_without_separators[:MIN_EDGE_LENGTH] in self._edges
        ends_like_secret = text_without_separators[-MIN_EDGE_LENGTH:] in self._edges
        if not (begins_like_secret or ends_like_secret):
            return
        containing_spellings = (
            self._joined_spellings
            if _has_digit(text_without_separators)
            else self._joined_digitless_spellings
        )
        if size >= MIN_EDGE_LENGTH and text_without_separators in containing_spellings:
            yield 0, size
            return
        edge_lengths = range(min(self._max_edge_length, size), MIN_EDGE_LENGTH - 1, -1)
        prefix_lengths = edge_lengths if ends_like_secret else ()
        for length in (
            length
            for length in prefix_lengths
            if text_without_separators[-length:] in self._prefixes
        ):
            if _is_word_boundary(text, size - length):
                yield size - length, size
                break
        suffix_lengths = edge_lengths if begins_like_secret else ()
        for length in (
            length
            for length in suffix_lengths
            if text_without_separators[:length] in self._suffixes
        ):
            if _is_word_boundary(text, length):
                yield 0, length
                break

    def _find_context_matches(
        self,
        text_without_separators: str,
        secrets_by_context: dict[str, list[str]],
        *,
        context_precedes: bool,
    ) -> Iterator[TextSpan]:
        """Find text next to a known context that agrees with a secret planted in that context.

        The context is the text before the secret if ``context_precedes``, else the text after it. A
        match extends as far as the text agrees with one of the secrets.
        """
        for start, end in find_occurrences(secrets_by_context, text_without_separators):
            context = text_without_separators[start:end]
            if context_precedes:
                match_length = max(
                    _count_common_prefix(text_without_separators[end : end + len(secret)], secret)
                    for secret in secrets_by_context[context]
                )
                if match_length:
                    yield end, end + match_length
            else:
                match_length = max(
                    _count_common_prefix(
                        text_without_separators[max(0, start - len(secret)) : start][::-1],
                        secret[::-1],
                    )
                    for secret in secrets_by_context[context]
                )
                if match_length:
                    yield start - match_length, start


def find_occurrences(substrings: Iterable[str], text: str) -> Iterator[TextSpan]:
    """Yield start and end of every occurrence of each substring in the text."""
    for substring in filter(text.__contains__, substrings):
        start = text.find(substring)
        while start >= 0:
            yield start, start + len(substring)
            start = text.find(substring, start + 1)


def _select_occurring(substrings: Iterable[str], texts: Sequence[str]) -> list[str]:
    """Return the substrings that occur in the texts, and perhaps some across two texts."""
    joined_texts = "\n".join(texts)
    return [substring for substring in substrings if substring in joined_texts]


def _group_secrets_by_context(
    context_secret_pairs: Iterable[tuple[str, str]], *, context_precedes: bool
) -> dict[str, list[str]]:
    """Group secrets by the characters directly before them, or directly after them."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for context, secret in context_secret_pairs:
        context_letters, spelling = _extract_alphanumerics(context), _extract_alphanumerics(secret)
        if len(context_letters) >= MIN_CONTEXT_LENGTH and spelling:
            grouped[
                context_letters[-CONTEXT_LENGTH:]
                if context_precedes
                else context_letters[:CONTEXT_LENGTH]
            ].append(spelling)
    return dict(grouped)


def _extract_letter_runs(spelling: str) -> list[str]:
    return [spelling[start : start + RUN_LENGTH] for start in range(len(spelling) - RUN_LENGTH + 1)]


def _has_digit(text: str) -> bool:
    return bool(_DIGITS_PATTERN.search(text))


def _is_covered_by_runs(spelling: str) -> bool:
    """Return whether every run of a secret is distinctive, so that the runs cover all of it."""
    runs = _extract_letter_runs(spelling)
    return bool(runs) and all(map(_is_distinctive_run, runs))


def _is_distinctive_run(run: str) -> bool:
    """Return whether a run is unlikely in other text: mostly digits, or letters and digits in turn.

    The name of a domain at the end of an address is not secret, and not distinctive.
    """
    is_digit = [character.isdigit() for character in run]
    return (
        sum(is_digit) >= RUN_LENGTH - 2
        or sum(a != b for a, b in pairwise(is_digit)) >= RUN_LENGTH // 2
    )


def _count_common_prefix(text: str, secret: str) -> int:
    """Return the length of the common prefix."""
    character_pairs = zip(text, secret, strict=False)
    return next(
        (index for index, (a, b) in enumerate(character_pairs) if a != b),
        min(len(text), len(secret)),
    )


def _is_word_boundary(text: str, letter_index: int) -> bool:
    """Return whether no word continues across the position before this character; digits may."""
    letters = [*_ALPHANUMERIC_PATTERN.finditer(text)]
    if not 0 < letter_index < len(letters):
        return True
    letter_before, letter_after = letters[letter_index - 1], letters[letter_index]
    adjacent = letter_before.end() == letter_after.start()
    return not (adjacent and letter_before[0].isalpha() and letter_after[0].isalpha())


def _fold_case_and_digits(text: str) -> str:
    """Fold case and digits, one character to one character."""
    folded_text = fold_digits_and_separators(text)
    lower_text = folded_text.lower()
    if len(lower_text) == len(folded_text):
        return lower_text
    return "".join(
        character.lower() if len(character.lower()) == 1 else character for character in folded_text
    )


def _extract_alphanumerics(text: str) -> str:
    return _SEPARATOR_PATTERN.sub("", _fold_case_and_digits(text))
