"""Redact text before it reaches a page, so that no page source holds what must not be shown.

The kind of a column decides what may be shown (tasks/contract/columns.py). Text of the corpus or of
a model is shown only if a scorer found it harmless; ``personal`` is not shown, unless a document
that the row names contains the text and may be shown (``hallmark.reports.page.cases``). In all text
that is shown, personal data and credentials (found as ``hallmark.tasks.corpus.redact_spans`` finds
them, even with invisible characters inside) and the secrets of canaries are redacted. So are
fragments of them at the end of a truncated text or across two texts
(``hallmark.reports.page.planted_secrets``, ``hallmark.tasks.measures.personal.truncated_values``),
and keys with a vendor's prefix that are shorter than complete ones. Characters that are invisible
or change the direction of text are written out.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import pyarrow as pa

from hallmark.reports.page.planted_secrets import (
    PlantedSecret,
    SecretFinder,
    find_occurrences,
)
from hallmark.tasks.contract import Column, format_count

#: A text with at least this toxicity is shown as blocks.
OFFENSIVE_TOXICITY = 0.5

#: Kinds of text that are shown after redaction, and kinds that also need a toxicity score. No other
#: kind of text is shown as such.
DISPLAYABLE_KINDS = ("audit text", "project text", "label", "id", "figure")
SCORE_GATED_KINDS = ("corpus text", "model text")

#: Unicode's default ignorable characters, which are invisible (some are letters, some marks), and
#: the braille blank, as a character class of a regular expression.
INVISIBLE_PATTERN = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_INVISIBLE_REGEX = re.compile(INVISIBLE_PATTERN)

#: Libraries that decide what is redacted, for ``@stage(libraries=...)``.
REDACTION_LIBRARIES = ("phonenumbers", "python-stdnum")

RedactFunction = Callable[[str], str]  # returns a text as it may be shown

#: Returns type, start and end (exclusive) of each span of personal data in a text.
PersonalDataFinder = Callable[[str], Iterable[tuple[str, int, int]]]

#: Kinds of text that a token limit or a window may have truncated in the middle of a value. Labels,
#: ids and figures are never truncated, and many end with a number.
TRUNCATABLE_KINDS = (*SCORE_GATED_KINDS, "audit text")

#: The kind of overlapping values of different kinds.
SEVERAL_KINDS = "personal data"

_MAX_SCANNED_CHARACTERS = 4000
#: Characters at the end of a shortened text that are scanned but not shown: a span may cross the
#: cut.
_CUT_MARGIN = 500

#: Texts of columns whose spans a redactor remembers, unless it searched more at once.
_MAX_SEARCHED_TEXTS = 16_384

#: How the replacement of a masked span ends: in general, and where only a part is highlighted.
MASK_ENDING, PARTLY_SHARED_MASK_ENDING = " masked]", " masked, shared in part]"


class TextNeighbours(NamedTuple):
    """The texts directly before and after a text.

    Attributes:
        before: The preceding text.
        after: The following text.
    """

    before: str = ""
    after: str = ""


NO_NEIGHBOURS = TextNeighbours()


class MarkedPart(NamedTuple):
    """A part of a redacted text.

    Attributes:
        text: The part, redacted and not escaped.
        is_marked: Whether it is highlighted.
    """

    text: str
    is_marked: bool


#: Start and end of a part of a text, end exclusive.
TextRange = tuple[int, int]


class SensitiveSpan(NamedTuple):
    """A part of a text that must not be shown.

    Attributes:
        start: The index of its first character.
        end: The index after its last character.
        kind: The lower-case name of what it contains, such as "email" or "planted secret".
    """

    start: int
    end: int
    kind: str


class Redactor:
    """Redacts texts for one card.

    Args:
        secrets: The planted secrets of the ``canaries`` table, with the text around them if known.
        toxicity_threshold: Texts with at least this score are replaced with blocks.
        phone_regions: Countries whose national telephone numbers are searched for, in addition to
            the default ones.
    """

    notice = ""  # shown at the top of each page

    def __init__(
        self,
        secrets: Iterable[str | PlantedSecret] = (),
        toxicity_threshold: float = OFFENSIVE_TOXICITY,
        phone_regions: Iterable[str] = (),
    ) -> None:
        self.toxicity_threshold, self.phone_regions = toxicity_threshold, frozenset(phone_regions)
        planted_secrets = [
            PlantedSecret(secret) if isinstance(secret, str) else secret for secret in secrets
        ]
        self._secret_texts = sorted({s.text for s in planted_secrets if s.text.strip()})
        self._secret_finder = SecretFinder(
            PlantedSecret(
                _remove_invisible(secret.text),
                _remove_invisible(secret.preceding_text),
                _remove_invisible(secret.following_text),
            )
            for secret in planted_secrets
        )
        self._redacted_excerpts: dict[tuple[Any, ...], str] = {}
        self._redacted_texts: dict[str, str] = {}
        self._spans_of_searched_texts: dict[tuple[str, bool], list[SensitiveSpan]] = {}
        # Pages repeat texts: labels, documents of several figures, and adjacent texts, which are
        # searched together, once for each of them.
        self._find_spans = lru_cache(maxsize=16_384)(self.find_sensitive_spans)

    def is_offensive(self, toxicity: float | None) -> bool:
        """Return whether a toxicity score reaches the threshold; a missing score does not."""
        return toxicity is not None and toxicity >= self.toxicity_threshold

    def explain_hidden(self, text: str, column_kind: str, toxicity: float | None) -> str:
        """Return what is shown in place of a text; empty if the text may be shown.

        Args:
            text: The text.
            column_kind: The kind of its column.
            toxicity: The toxicity score of the text; None or NaN if it has none.
        """
        if column_kind in SCORE_GATED_KINDS:
            is_unscored = toxicity is None or math.isnan(toxicity)
            if is_unscored and text.strip():
                return f"[not shown: no toxicity score, {format_count(len(text), 'character')}]"
        elif column_kind not in DISPLAYABLE_KINDS:
            return f"[not shown: may contain personal data, {format_count(len(text), 'character')}]"
        return self._explain_offensive(text, toxicity)

    def _explain_offensive(self, text: str, toxicity: float | None) -> str:
        if not self.is_offensive(toxicity):
            return ""
        return (
            f"{replace_with_blocks(text)} [masked: toxicity score {toxicity:.2f}, {len(text):,} "
            "characters]"
        )

    def redact_by_kind(
        self,
        text: str,
        column_kind: str,
        toxicity: float | None = None,
        max_characters: int = 400,
        detection_context: TextNeighbours = NO_NEIGHBOURS,
        shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
    ) -> str:
        """Return a text of a kind of column as it may be shown.

        Args:
            text: The text.
            column_kind: The kind of its column; decides whether it is shown at all.
            toxicity: The toxicity score of the text; None or NaN if it has none.
            max_characters: About how many characters are shown at most.
            detection_context: The rest of the longer text that it is an excerpt of. It is searched
                for sensitive values, too, but not shown.
            shown_neighbours: Texts shown directly before and after it, such as a prompt and its
                continuation. A value that crosses the boundary is redacted on both sides.
        """
        if reason := self.explain_hidden(text, column_kind, toxicity):
            return reason
        return self.redact_excerpt(
            text,
            toxicity,
            max_characters,
            detection_context,
            shown_neighbours,
            may_be_truncated=column_kind in TRUNCATABLE_KINDS,
        )

    def redact_excerpt(
        self,
        text: str,
        toxicity: float | None = None,
        max_characters: int = 400,
        detection_context: TextNeighbours = NO_NEIGHBOURS,
        shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
        *,
        may_be_truncated: bool = True,
    ) -> str:
        """Return a text that may be shown, redacted, shortened to about ``max_characters``.

        Args:
            may_be_truncated: Whether the text may begin or end in the middle of a value to hide.
                The other arguments are those of ``redact_by_kind``.
        """
        if reason := self._explain_offensive(text, toxicity):
            return reason
        detection_context = TextNeighbours(
            detection_context.before[-_CUT_MARGIN:], detection_context.after[:_CUT_MARGIN]
        )
        key = (text, max_characters, detection_context, shown_neighbours, may_be_truncated)
        if key not in self._redacted_excerpts:
            self._redacted_excerpts[key] = self._redact_and_shorten(
                text, max_characters, detection_context, shown_neighbours, may_be_truncated
            )
        return self._redacted_excerpts[key]

    def redact_full_text(self, text: str) -> str:
        """Return a text of the project (label, condition, code) redacted, at full length.

        Decimal numbers are statistics: one card has thousands, and some have six digits of a
        planted secret by chance.
        """
        if text not in self._redacted_texts:
            searched_text = _DECIMAL_NUMBER.sub(_replace_digits, text)
            self._redacted_texts[text] = _replace_spans(
                text, self._find_spans(searched_text, may_be_truncated=False)
            )
        return self._redacted_texts[text]

    def search_full_texts(self, texts: Iterable[str]) -> None:
        """Search many texts at once, before ``redact_full_text`` shows them; see `search_texts`."""
        searched_texts = {
            _DECIMAL_NUMBER.sub(_replace_digits, text)
            for text in texts
            if text not in self._redacted_texts
        }
        self.search_texts((), sorted(searched_texts))

    def search_texts(
        self, truncatable_texts: Iterable[str], whole_texts: Iterable[str] = ()
    ) -> None:
        """Search many texts at once for all that must not be shown, before they are redacted.

        A column is searched much faster than its texts one by one. The result is the same.

        Args:
            truncatable_texts: Texts that may begin or end in the middle of a value to hide, as
                ``list_searched_texts`` returns them.
            whole_texts: Texts that may not, such as labels.
        """
        from hallmark.tasks.measures.personal.truncated_values import may_have_truncated_values
        from hallmark.tasks.measures.personal_data import find_spans_by_row

        keys = dict.fromkeys(
            [
                *((text, True) for text in truncatable_texts),
                *((text, False) for text in whole_texts),
            ]
        )
        known_spans = self._spans_of_searched_texts
        new_keys = [
            key for key in keys if key not in known_spans and not _may_contain_invisible(key[0])
        ]
        if not new_keys:
            return
        new_texts = [text for text, _ in new_keys]
        personal_spans = find_spans_by_row(
            pa.array(new_texts, pa.string()), **self._personal_data_options
        )
        secret_rows = self._secret_finder.find_candidates(new_texts)
        truncated_rows = may_have_truncated_values(new_texts)
        new_spans = {}
        for row, (text, may_be_truncated) in enumerate(new_keys):
            detected_spans: list[tuple[str, int, int]] = [*personal_spans.get(row, ())]
            if row in secret_rows:
                detected_spans += self._find_planted_secrets(
                    text, may_be_truncated=may_be_truncated
                )
            if may_be_truncated and truncated_rows[row]:
                detected_spans += self._truncated_data_finder(text)
            new_spans[text, may_be_truncated] = _merge_spans(
                SensitiveSpan(start, end, kind.lower()) for kind, start, end in detected_spans
            )
        if len(known_spans) + len(new_spans) > _MAX_SEARCHED_TEXTS:  # forget earlier columns
            known_spans = {key: known_spans[key] for key in keys if key in known_spans}
        self._spans_of_searched_texts = known_spans | new_spans

    def redact_range(
        self,
        text: str,
        shown_range: TextRange,
        marked_ranges: Iterable[TextRange] = (),
        shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
        *,
        shows_planted_secrets: bool = False,
    ) -> list[MarkedPart]:
        """Return a part of a text in redacted parts, some of them highlighted.

        The text is searched beyond the part, so that a value that crosses its ends is redacted.

        Args:
            text: The whole text, which was found harmless.
            shown_range: The part that is shown.
            marked_ranges: What is highlighted.
            shown_neighbours: Texts shown directly before and after the whole text.
            shows_planted_secrets: Whether planted secrets are shown, which are invented.
        """
        start, end = max(0, shown_range[0]), min(len(text), shown_range[1])
        scan_start = max(0, start - _CUT_MARGIN)
        spans = [
            SensitiveSpan(span.start + scan_start, span.end + scan_start, span.kind)
            for span in self._find_spans(
                text[scan_start : end + _CUT_MARGIN], shows_planted_secrets=shows_planted_secrets
            )
        ]
        spans += self._find_spans_across_boundary(
            text, shown_neighbours, shows_planted_secrets=shows_planted_secrets
        )
        bounded_spans = (
            span._replace(start=max(start, span.start), end=min(end, span.end)) for span in spans
        )
        bounded_marks = [(max(start, a), min(end, b)) for a, b in marked_ranges]
        return _split_into_parts(
            text, (start, end), _merge_spans(bounded_spans), _merge_ranges(bounded_marks)
        )

    def _redact_and_shorten(
        self,
        text: str,
        max_characters: int,
        detection_context: TextNeighbours,
        shown_neighbours: TextNeighbours,
        may_be_truncated: bool,
    ) -> str:
        scanned_text, (preceding_text, following_text) = text, detection_context
        if len(text) > _MAX_SCANNED_CHARACTERS:
            scanned_text, following_text = (
                text[: _MAX_SCANNED_CHARACTERS - _CUT_MARGIN],
                text[_MAX_SCANNED_CHARACTERS - _CUT_MARGIN : _MAX_SCANNED_CHARACTERS],
            )
        # More text is searched than is kept, because a span may cross either cut.
        offset = len(preceding_text)
        candidate_spans = self._find_spans(
            preceding_text + scanned_text + following_text, may_be_truncated=may_be_truncated
        )
        spans = [
            SensitiveSpan(max(0, span.start - offset), span.end - offset, span.kind)
            for span in candidate_spans
            if span.end > offset
        ]
        spans += self._find_spans_across_boundary(text, shown_neighbours)
        redacted_text = _replace_spans(scanned_text, _merge_spans(spans))
        length = len(redacted_text)
        if length > max_characters:
            redacted_text = redacted_text[:max_characters]
        if length > max_characters or len(scanned_text) < len(text):
            redacted_text += f"… [{len(text):,} characters in total]"
        return redacted_text

    def _find_spans_across_boundary(
        self,
        text: str,
        shown_neighbours: TextNeighbours,
        *,
        shows_planted_secrets: bool = False,
    ) -> list[SensitiveSpan]:
        """Return the spans of a text that are found only together with an adjacent text."""
        preceding_text, following_text = shown_neighbours
        spans: list[SensitiveSpan] = []
        if preceding_text and text:
            joined_spans = self._find_spans(
                _join_at_boundary(preceding_text, text),
                shows_planted_secrets=shows_planted_secrets,
            )
            offset = min(len(preceding_text), _CUT_MARGIN)
            spans += [
                SensitiveSpan(max(0, span.start - offset), span.end - offset, span.kind)
                for span in joined_spans
                if span.end > offset
            ]
        if following_text and text:
            start = max(0, len(text) - _CUT_MARGIN)
            joined_spans = self._find_spans(
                _join_at_boundary(text, following_text),
                shows_planted_secrets=shows_planted_secrets,
            )
            candidate_spans = (
                SensitiveSpan(span.start + start, min(span.end + start, len(text)), span.kind)
                for span in joined_spans
            )
            spans += [span for span in candidate_spans if span.start < span.end]
        return spans

    def find_sensitive_spans(
        self, text: str, *, may_be_truncated: bool = True, shows_planted_secrets: bool = False
    ) -> list[SensitiveSpan]:
        """Return the spans to redact, in order, without overlaps.

        Args:
            text: The text to search.
            may_be_truncated: Whether the text may begin or end in the middle of a value to hide.
            shows_planted_secrets: Whether planted secrets, which are invented, are omitted. Other
                personal data is found all the same.
        """
        known_spans = self._spans_of_searched_texts.get((text, may_be_truncated))
        if known_spans is not None and not (shows_planted_secrets and known_spans):
            return known_spans
        visible_positions = (
            [position for position, character in enumerate(text) if _is_visible(character)]
            if _may_contain_invisible(text)
            else range(len(text))
        )
        visible_text = (
            "".join([text[position] for position in visible_positions])
            if len(visible_positions) < len(text)
            else text
        )
        # Of equal spans, the first names the kind: what a truncated value is, is a guess.
        detected_spans = [*self._personal_data_finder(visible_text)]
        if not shows_planted_secrets:
            detected_spans += self._find_planted_secrets(
                visible_text, may_be_truncated=may_be_truncated
            )
        if may_be_truncated:
            detected_spans += self._truncated_data_finder(visible_text)
        if shows_planted_secrets and detected_spans:
            shown_secrets = [*find_occurrences(self._secret_texts, visible_text)]
            detected_spans = [
                detected
                for detected in detected_spans
                if not any(
                    start <= detected[1] and detected[2] <= end for start, end in shown_secrets
                )
            ]
        named_spans = [
            SensitiveSpan(visible_positions[start], visible_positions[end - 1] + 1, kind.lower())
            for kind, start, end in detected_spans
        ]
        if visible_text is not text:  # invisible characters may also act as separators
            spaced_text = "".join(
                character if _is_visible(character) else " " for character in text
            )
            named_spans += [
                SensitiveSpan(start, end, kind.lower())
                for kind, start, end in self._personal_data_finder(spaced_text)
            ]
        return _merge_spans(named_spans)

    def _find_planted_secrets(
        self, text: str, *, may_be_truncated: bool
    ) -> Iterator[tuple[str, int, int]]:
        for span in self._secret_finder.find_secret_spans(text, may_be_truncated=may_be_truncated):
            yield "planted secret", *span

    @cached_property
    def _truncated_data_finder(self) -> PersonalDataFinder:
        from hallmark.tasks.measures.personal.truncated_values import find_truncated_values
        from hallmark.tasks.measures.personal_data import DEFAULT_REGIONS

        return partial(
            find_truncated_values, regions=sorted(self.phone_regions.union(DEFAULT_REGIONS))
        )

    @cached_property
    def _personal_data_options(self) -> dict[str, Any]:
        """All types are searched for, even those that the config of the corpus excludes."""
        # The imports are slow, so they are local.
        from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES
        from hallmark.tasks.measures.personal_data import DEFAULT_REGIONS

        regions = sorted(self.phone_regions.union(DEFAULT_REGIONS))
        return {"types": PERSONAL_DATA_TYPES, "regions": regions}

    @cached_property
    def _personal_data_finder(self) -> PersonalDataFinder:
        from hallmark.tasks.measures.personal_data import find_personal_data_spans

        return partial(find_personal_data_spans, **self._personal_data_options)


class PassthroughRedactor(Redactor):
    """Redacts nothing: only for ``hallmark.reports.unredacted_site``, whose pages are private."""

    notice = (
        "Unredacted, for local use only: this page shows personal data, planted secrets and "
        "offensive text, even where the text below says otherwise. Do not publish it."
    )

    def redact_by_kind(
        self,
        text: str,
        column_kind: str,
        toxicity: float | None = None,
        max_characters: int = 400,
        detection_context: TextNeighbours = NO_NEIGHBOURS,
        shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
    ) -> str:
        return self.redact_excerpt(text, toxicity, max_characters, detection_context)

    def is_offensive(self, toxicity: float | None) -> bool:
        return False

    def explain_hidden(self, text: str, column_kind: str, toxicity: float | None) -> str:
        return ""

    def find_sensitive_spans(
        self, text: str, *, may_be_truncated: bool = True, shows_planted_secrets: bool = False
    ) -> list[SensitiveSpan]:
        return []

    def search_texts(
        self, truncatable_texts: Iterable[str], whole_texts: Iterable[str] = ()
    ) -> None:
        pass


def list_searched_texts(text: str, shown_neighbours: TextNeighbours = NO_NEIGHBOURS) -> list[str]:
    """Return what is searched to redact a whole text: itself, and its ends with adjacent texts."""
    preceding_text, following_text = shown_neighbours
    searched_texts = [text]
    if preceding_text and text:
        searched_texts.append(_join_at_boundary(preceding_text, text))
    if following_text and text:
        searched_texts.append(_join_at_boundary(text, following_text))
    return searched_texts


def _join_at_boundary(preceding_text: str, following_text: str) -> str:
    """Return the end of a text and the beginning of the next, between which a value may cross."""
    return preceding_text[-_CUT_MARGIN:] + following_text[:_CUT_MARGIN]


def _merge_spans(spans: Iterable[SensitiveSpan]) -> list[SensitiveSpan]:
    """Return the spans in order, with overlapping spans merged.

    A merged span has the kind of the span that covers all of it, the first of equal ones; without
    such a span, it contains several values.
    """
    merged: list[SensitiveSpan] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if span.start >= span.end:
            continue
        if not merged or span.start >= merged[-1].end:
            merged.append(span)
        elif span.end > merged[-1].end:
            kind = span.kind if span.kind == merged[-1].kind else SEVERAL_KINDS
            merged[-1] = SensitiveSpan(merged[-1].start, span.end, kind)
    return merged


def _merge_ranges(ranges: Iterable[TextRange]) -> list[TextRange]:
    """Return the ranges in order; overlapping and adjacent ones are merged."""
    merged: list[TextRange] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _split_into_parts(
    text: str,
    shown_range: TextRange,
    spans: Sequence[SensitiveSpan],
    marked_ranges: Sequence[TextRange],
) -> list[MarkedPart]:
    """Split a part of a text at the ends of marks, and replace each span with its kind.

    A replaced span is highlighted if all of it is. If only a part of it is, the replacement says so
    in words, since a highlighted one would claim that the whole is shared. Spans and marks are in
    order, without overlaps, and inside of the part.
    """
    parts: list[MarkedPart] = []

    def add_part(part_text: str, is_marked: bool) -> None:
        if parts and parts[-1].is_marked == is_marked:
            part_text = parts.pop().text + part_text
        if part_text:
            parts.append(MarkedPart(part_text, is_marked))

    def add_clear_text(start: int, end: int) -> None:
        for mark_start, mark_end in marked_ranges:
            if mark_end > start and mark_start < end:
                add_part(escape_invisible(text[start : max(start, mark_start)]), False)
                start, mark_end = max(start, mark_start), min(end, mark_end)
                add_part(escape_invisible(text[start:mark_end]), True)
                start = mark_end
        add_part(escape_invisible(text[start:end]), False)

    position, end = shown_range
    for span in spans:
        add_clear_text(position, span.start)
        is_marked = any(a <= span.start and span.end <= b for a, b in marked_ranges)
        is_partly_marked = any(a < span.end and span.start < b for a, b in marked_ranges)
        ending = MASK_ENDING if is_marked or not is_partly_marked else PARTLY_SHARED_MASK_ENDING
        add_part(f"[{span.kind}{ending}", is_marked)
        position = span.end
    add_clear_text(position, end)
    return parts


def find_prompt_column_by_response_column(columns: Iterable[Column]) -> dict[str, str]:
    """Return, for each column of model text, the column that holds its prompt."""
    columns_by_name = {column.name: column for column in columns}
    prompt_column = next((name for name in ("prompt", "text") if name in columns_by_name), None)
    if prompt_column is None or columns_by_name[prompt_column].kind == "model text":
        return {}
    return {
        name: prompt_column
        for name, column in columns_by_name.items()
        if column.kind == "model text"
    }


def get_shown_neighbours(
    column_name: str, row: Mapping[str, Any], prompt_column_by_response_column: Mapping[str, str]
) -> TextNeighbours:
    """Return the texts directly before and after the value of a column in a row that shows both.

    Args:
        column_name: The column of the value.
        row: The row.
        prompt_column_by_response_column: The result of ``find_prompt_column_by_response_column``
            for the columns of the row.
    """
    if column_name in prompt_column_by_response_column:
        return TextNeighbours(before=str(row[prompt_column_by_response_column[column_name]] or ""))
    responses = [
        row[response_column]
        for response_column, prompt_column in prompt_column_by_response_column.items()
        if prompt_column == column_name and row[response_column]
    ]
    return TextNeighbours(after=str(responses[0]) if responses else "")


#: A number with one decimal point, as in "0.1247 (0.0624 to 0.3001)".
_DECIMAL_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})*\.\d{1,8}(?![\w.]*\d|\w)")


def _replace_digits(match: re.Match[str]) -> str:
    """Return a text of the same length in which no detector finds a number."""
    return "ʭ" * len(match[0])


def _replace_spans(text: str, spans: Sequence[SensitiveSpan]) -> str:
    """Replace each span with its kind.

    The spans are in order; those that begin after the end of the text are ignored.
    """
    segments: list[str] = []
    end = 0
    for start, span_end, kind in spans:
        if start < len(text):
            segments += [text[end:start], f"[{kind}{MASK_ENDING}"]
            end = span_end
    return escape_invisible("".join([*segments, text[end:]]))


def replace_with_blocks(text: str, max_characters: int = 60) -> str:
    """Replace each word with blocks of its length, up to ``max_characters``."""
    return re.sub(r"\S", "█", " ".join(text[: 4 * max_characters].split()))[:max_characters] or "█"


def escape_invisible(text: str) -> str:
    """Write out control, format, private, surrogate and ignorable characters, as in ‹U+202E›.

    Line breaks and tabs stay, since the renderers handle them. The variation selector after a
    symbol stays, too.
    """
    if not _may_contain_invisible(text):
        return text
    return "".join(
        character
        if _is_visible(character) or (character == "\ufe0f" and _is_symbol(previous))
        else f"‹U+{ord(character):04X}›"
        for previous, character in zip(" " + text, text, strict=False)
    )


def _remove_invisible(text: str) -> str:
    return "".join(filter(_is_visible, text))


def _may_contain_invisible(text: str) -> bool:
    """Return quickly whether a text may contain invisible characters."""
    is_printable = text.replace("\n", "").replace("\t", "").isprintable()
    return not is_printable or bool(_INVISIBLE_REGEX.search(text))


def _is_symbol(character: str) -> bool:
    return unicodedata.category(character) == "So"


def _is_visible(character: str) -> bool:
    is_hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return character in "\n\t" or not (is_hidden or _INVISIBLE_REGEX.match(character))
