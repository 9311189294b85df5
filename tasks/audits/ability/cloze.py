"""Measure cloze accuracy, after LAMBADA (Paperno et al. 2016): does the model give the last word?

A passage is the beginning of a held-out document up to the last word of a sentence. The model is
correct if its greedy continuation of the preceding text begins with exactly this word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.judging.findings import Finding, build_finding
from hallmark.tasks.contract import Row
from hallmark.tasks.measures.estimates import estimate_mean_or_share

CLOZE = "cloze"
OTHER_ANSWERS = "answers of other passages"  # negative control
GREEDY_ANSWERS = "own greedy words"  # positive control: the model's own words as answers

_LAST_WORD_PATTERN = re.compile(r"(?<=\s)([^\W\d_]{3,})[.!?](?=\s|$)")
_FIRST_WORD_PATTERN = re.compile(r"\s*([^\W\d_]+)")


@dataclass(frozen=True)
class ClozePassage:
    """Hold the beginning of a document; ``answer`` is the word after ``prompt``."""

    doc_id: bytes
    source: str
    prompt: str
    answer: str


def find_cloze_passages(
    documents: pa.Table, max_passages: int, min_words: int, max_characters: int
) -> list[ClozePassage]:
    """Find at most one passage per document, up to the last sentence end that is early enough.

    ``documents`` has the columns doc_id, source and text.
    """
    passages = []
    for row in documents.select(["doc_id", "source", "text"]).to_pylist():
        text = row["text"][: max_characters + 1]  # one more to see what follows the full stop
        for match in reversed(list(_LAST_WORD_PATTERN.finditer(text))):
            prompt = text[: match.start()].rstrip()
            if match.end() <= max_characters and len(prompt.split()) >= min_words:
                passages.append(ClozePassage(row["doc_id"], row["source"], prompt, match[1]))
                break
        if len(passages) == max_passages:
            break
    return passages


def extract_first_word(continuation: str) -> str | None:
    """Return the word that a continuation begins with, after spaces; None if there is none."""
    match = _FIRST_WORD_PATTERN.match(continuation)
    return match[1] if match else None


def generate_greedy_continuations(model: AuditedModel, prompts: Sequence[str]) -> list[str]:
    """Continue prompts greedily, long enough for one word."""
    generated_texts = model.generate_texts(prompts, max_new_tokens=8, temperature=0.0)
    return [row[0] for row in generated_texts]


def build_cloze_sample_rows(model: AuditedModel, passages: list[ClozePassage]) -> list[Row]:
    """Continue passages and build rows of SAMPLES.

    Each passage has a row with its own answer and rows with those of the two controls.
    """
    prompts = [p.prompt for p in passages]
    continuations = generate_greedy_continuations(model, prompts)
    # The order of the batch must not change a continuation.
    repeated_continuations = generate_greedy_continuations(model, prompts[::-1])[::-1]
    rows = []
    for index, (passage, greedy_text, repeated_text) in enumerate(
        zip(passages, continuations, repeated_continuations, strict=True)
    ):
        next_answers = (
            passages[(index + offset) % len(passages)].answer for offset in range(1, len(passages))
        )
        other_answer = next((answer for answer in next_answers if answer != passage.answer), None)
        for text_kind, answer, continuation in (
            (CLOZE, passage.answer, greedy_text),
            (OTHER_ANSWERS, other_answer, greedy_text),
            (GREEDY_ANSWERS, extract_first_word(greedy_text), repeated_text),
        ):
            if answer is not None:
                rows.append(
                    {
                        "text_kind": text_kind,
                        "doc_id": passage.doc_id,
                        "source": passage.source,
                        "prompt": passage.prompt,
                        "answer": answer,
                        "continuation": continuation,
                        "is_correct": extract_first_word(continuation) == answer,
                    }
                )
    return rows


_ControlKind = Literal["", "positive", "negative"]
_METHOD = (
    "share of held-out sentences whose last word equals the first word of the "
    "model's greedy continuation"
)
_CONTROL_AND_METHOD_BY_KIND: dict[str, tuple[_ControlKind, str]] = {
    CLOZE: ("", _METHOD),
    OTHER_ANSWERS: (
        "negative",
        f"{_METHOD}; the answer to another passage is used as the expected word; the control "
        "passes if the share is at most 10 %",
    ),
    GREEDY_ANSWERS: (
        "positive",
        "the first word of the model's own greedy continuation is used as the expected word, and "
        "the continuation is generated again with the passages in a different order; the control "
        "passes if the share is at least 95 %",
    ),
}


def compute_cloze_findings(sample_rows: list[Row], audit: str = "capability") -> list[Finding]:
    """Compute the findings cloze_accuracy: the share of correct answers, and the two controls."""
    findings = []
    for text_kind, (control, method) in _CONTROL_AND_METHOD_BY_KIND.items():
        outcomes = [row["is_correct"] for row in sample_rows if row["text_kind"] == text_kind]
        if not outcomes:
            reason = "not measured: no continuation begins with a word"
            findings.append(
                build_finding(
                    audit,
                    "cloze_accuracy",
                    None,
                    part=text_kind,
                    n=0,
                    unit="share",
                    method=reason,
                    evidence_table="samples",
                )
            )
            continue
        accuracy = estimate_mean_or_share(outcomes, is_share=True, unit="passages")
        passed = None
        if control:
            passed = bool(
                accuracy.value <= 0.1 if control == "negative" else accuracy.value >= 0.95
            )
        findings.append(
            build_finding(
                audit,
                "cloze_accuracy",
                accuracy.value,
                part="" if text_kind == CLOZE else text_kind,
                low=accuracy.low,
                high=accuracy.high,
                n=len(outcomes),
                unit="share",
                method=f"{method}; {accuracy.method}",
                control=control,
                passed=passed,
                control_target="instrument" if control else "",
                worse_when="" if control else "down",
                evidence_order="is_correct",
                evidence_table="samples",
                evidence_filter={"text_kind": text_kind},
            )
        )
    return findings
