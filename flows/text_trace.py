"""Trace any text: find its spans that occur in the training text of a checkpoint.

For each span the report shows how often it occurs and the first documents that contain it. The
command ``trace --text`` and the pages of the review application use the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from hallmark.flows.checkpoint_resolution import ResolvedCheckpoint
from hallmark.flows.corpus_additions import collect_artifacts_for_redaction_by_label
from hallmark.flows.finding_trace import CONTEXT_CHARACTERS, TrainingDocuments
from hallmark.flows.notices import NOTICE, log
from hallmark.reports.page.redaction import (
    OFFENSIVE_TOXICITY,
    Redactor,
    SensitiveSpan,
    escape_invisible,
)
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.text_index import TextIndex, TextOccurrence, open_text_index
from hallmark.tasks.audits.training_spans import (
    MIN_SPAN_CHARACTERS,
    TrainingSpan,
    find_training_spans,
)
from hallmark.tasks.contract import UsageError, format_count

Report = dict[str, Any]

#: Maximum length of a traced text: a text that repeats itself takes quadratic time.
MAX_TRACED_CHARACTERS = 50_000

#: Number of spans of a text by default, and of documents of each span.
DEFAULT_SPANS, DOCUMENTS_PER_SPAN = 10, 3

#: Characters on either side of a shown text that are searched for sensitive values, too.
DETECTION_MARGIN = 500


class OccurrenceText(NamedTuple):
    """The text of an occurrence with its context."""

    text_before: str
    text: str
    text_after: str


@dataclass(frozen=True)
class TextTracer:
    """Trace texts to the training documents of one checkpoint.

    Attributes:
        checkpoint_name: Name of the checkpoint.
        index: Its training text.
        documents: Its training documents.
    """

    checkpoint_name: str
    index: TextIndex
    documents: TrainingDocuments

    @classmethod
    def from_checkpoint(cls, resolved: ResolvedCheckpoint, *, redact: bool) -> TextTracer:
        """Open the training text of a checkpoint; this builds its index on first use.

        Args:
            resolved: The checkpoint.
            redact: Whether to redact all texts as the pages do.

        Raises:
            UsageError: If the training documents of the checkpoint are unknown.
        """
        if resolved.corpus is None:
            raise UsageError(
                f"the training documents of {resolved.name} are unknown, so no text can be traced "
                "to them; choose a checkpoint trained by Hallmark"
            )
        documents = TrainingDocuments.from_checkpoint(resolved, redactor=None)
        if redact:
            run = resolved.source_run
            run_artifacts = collect_artifacts_for_redaction_by_label(run) if run else {}
            # The checkpoint may continue a training on another corpus, with other secrets.
            artifacts = [*run_artifacts.values(), *documents.documents.artifacts]
            documents.redactor = build_corpus_redactor(
                {artifact.name: artifact for artifact in artifacts}, OFFENSIVE_TOXICITY
            )
        index = open_text_index(documents.documents, _announce_build)
        return cls(resolved.name, index, documents)

    def trace_text(self, text: str, max_spans: int = DEFAULT_SPANS) -> Report:
        """Find the spans of a text that occur in the training text.

        Args:
            text: The text.
            max_spans: Maximum number of spans of the report.

        Returns:
            The number of maximal spans, and the rarest ``spans``, each with its place in the text,
            its occurrences, the logarithm of its unigram probability and its first ``documents``.

        Raises:
            UsageError: If the text is empty, too long or not valid Unicode.
        """
        check_traceable(text)
        spans = find_training_spans(self.index, text)
        shown_occurrences = [
            [
                *islice(
                    self.index.iter_first_occurrences(
                        text[span.start : span.end].encode(), CONTEXT_CHARACTERS + DETECTION_MARGIN
                    ),
                    DOCUMENTS_PER_SPAN,
                )
            ]
            for span in spans[:max_spans]
        ]
        history = self.documents.training_history
        exposure = history and TrainingExposure.from_checkpoints(
            history.training_runs,
            history.checkpoints,
            {
                occurrence.document["doc_id"]
                for occurrences in shown_occurrences
                for occurrence in occurrences
            },
        )
        return {
            "checkpoint": self.checkpoint_name,
            "training_documents": self.index.document_count,
            "training_bytes": self.index.text_bytes,
            "text_characters": len(text),
            "min_span_characters": MIN_SPAN_CHARACTERS,
            "span_count": len(spans),
            "spans": [
                self._describe_span(span, text, occurrences, exposure)
                for span, occurrences in zip(spans, shown_occurrences, strict=False)
            ],
        }

    def _describe_span(
        self,
        span: TrainingSpan,
        text: str,
        occurrences: list[TextOccurrence],
        exposure: TrainingExposure | None,
    ) -> Report:
        span_text = text[span.start : span.end]
        return {
            "char_start": span.start,
            "char_end": span.end,
            "occurrences": span.occurrences,
            "log_probability": span.log_probability,
            "documents": [
                self._describe_document(occurrence, span_text, exposure)
                for occurrence in occurrences
            ],
        }

    def _describe_document(
        self, occurrence: TextOccurrence, span_text: str, exposure: TrainingExposure | None
    ) -> Report:
        document, char_start = occurrence.document, occurrence.char_start
        doc_id, redactor = document["doc_id"], self.documents.redactor
        occurrence_text = OccurrenceText(occurrence.text_before, span_text, occurrence.text_after)
        return {
            "doc_id": doc_id.hex(),
            "source": document["source"],
            "licence": self.documents.describe_licence(document),
            "char_start": char_start,
            "char_end": char_start + len(span_text),
            "times_read": None if exposure is None else exposure.count_reads([doc_id]),
            "first_step": None if exposure is None else exposure.first_steps.get(doc_id),
            **redact_occurrence(occurrence_text, document["toxicity"], redactor)._asdict(),
        }


def check_traceable(text: str) -> None:
    """Check that a text can be traced.

    Raises:
        UsageError: If it is empty, too long or not valid Unicode.
    """
    if not text.strip():
        raise UsageError("the text is empty; specify the text to trace")
    if len(text) > MAX_TRACED_CHARACTERS:
        raise UsageError(
            f"the text has more than {MAX_TRACED_CHARACTERS:,} characters; trace it in smaller "
            "parts"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the text is not valid UTF-8; encode it as UTF-8") from error


def redact_occurrence(
    occurrence: OccurrenceText, toxicity: float | None, redactor: Redactor | None
) -> OccurrenceText:
    """Return an occurrence in a training document with a short context, as it may be shown.

    Args:
        occurrence: The text, with more context than is shown.
        toxicity: The toxicity score of the document; None if it has none.
        redactor: Redacts the texts; None to show them unredacted.
    """
    before, text, after = occurrence
    shown_start = max(0, len(before) - CONTEXT_CHARACTERS)
    shown = OccurrenceText(before[shown_start:], text, after[:CONTEXT_CHARACTERS])
    if redactor is None:
        return shown
    if toxicity is None or math.isnan(toxicity) or redactor.is_offensive(toxicity):
        return OccurrenceText(
            *(redactor.redact_by_kind(part, "corpus text", toxicity) for part in shown)
        )
    # The three texts are searched together, since a value may begin in one and end in another.
    sensitive_spans = redactor.find_sensitive_spans(before + text + after)
    parts, start = [], shown_start
    for part in shown:
        parts.append(_replace_sensitive_spans(part, start, sensitive_spans))
        start += len(part)
    return OccurrenceText(*parts)


def _replace_sensitive_spans(text: str, offset: int, spans: Iterable[SensitiveSpan]) -> str:
    """Replace sensitive spans in a text that begins at ``offset`` of the text they refer to."""
    parts, end = [], 0
    for span in spans:
        start = max(span.start - offset, 0)
        if start < min(len(text), span.end - offset):
            parts += [text[end:start], f"[{span.kind} masked]"]
            end = span.end - offset
    return escape_invisible("".join([*parts, text[end:]]))


def _announce_build(document_count: int) -> None:
    log.log(
        NOTICE,
        "indexing the training text (%s); this is done once per corpus",
        format_count(document_count, "document"),
    )
