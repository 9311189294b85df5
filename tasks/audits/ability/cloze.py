"""Cloze accuracy, after LAMBADA (Paperno et al. 2016): does the subject find a last word?

A passage is the beginning of a held-out document up to the last word of a sentence. The word is
found where the subject's greedy continuation of what stands before begins with exactly it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tasks.audits.judging.findings import finding
from tasks.audits.subjects.subject import Subject
from tasks.measures.estimates import estimate

CLOZE = "cloze"
OTHERS = "answers of other passages"  # negative control
OWN = "own greedy words"  # positive control: answers known to be what the subject says

_LAST_WORD = re.compile(r"(?<=\s)([^\W\d_]{3,})[.!?](?=\s|$)")
_FIRST_WORD = re.compile(r"\s*([^\W\d_]+)")


@dataclass(frozen=True)
class Passage:
    doc_id: bytes
    source: str
    prompt: str
    answer: str


def find_passages(
    table: pa.Table, most: int, fewest_words: int, most_characters: int
) -> list[Passage]:
    """At most one passage a document: up to the last sentence end within its first characters.

    ``table`` has the columns doc_id, source and text.
    """
    found = []
    for row in table.select(["doc_id", "source", "text"]).to_pylist():
        text = row["text"][: most_characters + 1]  # one more shows what follows the full stop
        for match in reversed(list(_LAST_WORD.finditer(text))):
            prompt = text[: match.start()].rstrip()
            if match.end() <= most_characters and len(prompt.split()) >= fewest_words:
                found.append(Passage(row["doc_id"], row["source"], prompt, match[1]))
                break
        if len(found) == most:
            break
    return found


def first_word(continuation: str) -> str | None:
    """The letters that a continuation begins with, after spaces; None where it begins otherwise."""
    match = _FIRST_WORD.match(continuation)
    return match[1] if match else None


def continuations(subject: Subject, prompts: Sequence[str]) -> list[str]:
    """Greedy, long enough for a word of any length that occurs."""
    made = subject.generate(prompts, max_new_tokens=8, temperature=0.0)
    return [row[0] for row in made]


def answer_passages(subject: Subject, found: list[Passage]) -> list[dict[str, Any]]:
    """Rows of SAMPLES: each passage with its answer, and with those of the two controls."""
    prompts = [p.prompt for p in found]
    said = continuations(subject, prompts)
    # Other neighbours in the batch must not change a continuation.
    again = continuations(subject, prompts[::-1])[::-1]
    rows = []
    for number, (passage, text, repeated) in enumerate(zip(found, said, again, strict=True)):
        following = (found[(number + step) % len(found)].answer for step in range(1, len(found)))
        other = next((answer for answer in following if answer != passage.answer), None)
        for part, answer, continuation in (
            (CLOZE, passage.answer, text),
            (OTHERS, other, text),
            (OWN, first_word(text), repeated),
        ):
            if answer is not None:
                rows.append(
                    {
                        "part": part,
                        "doc_id": passage.doc_id,
                        "source": passage.source,
                        "prompt": passage.prompt,
                        "answer": answer,
                        "continuation": continuation,
                        "correct": first_word(continuation) == answer,
                    }
                )
    return rows


_Control = Literal["", "positive", "negative"]
_HOW = "last word of a held-out sentence, first word of the greedy continuation, exact match"
_PARTS: dict[str, tuple[_Control, str]] = {
    CLOZE: ("", _HOW),
    OTHERS: ("negative", f"{_HOW}; with another passage's answer; passes up to 10 %"),
    OWN: (
        "positive",
        "the subject's own greedy words as answers, decoded again in batches of another order; "
        "passes from 95 %",
    ),
}


def measure_cloze(rows: list[dict[str, Any]], audit: str = "capability") -> list[dict[str, Any]]:
    """Findings cloze_accuracy: the share of answers found, and of the two controls."""
    findings = []
    for part, (control, method) in _PARTS.items():
        hits = [row["correct"] for row in rows if row["part"] == part]
        if not hits:
            why = "not measured: no continuation begins with a word"
            findings.append(
                finding(audit, "cloze_accuracy", None, part=part, n=0, unit="share", method=why,
                        table="samples")
            )  # fmt: skip
            continue
        found = estimate(hits, share=True, unit="passages")
        passed = None
        if control:
            passed = bool(found.value <= 0.1 if control == "negative" else found.value >= 0.95)
        findings.append(
            finding(
                audit,
                "cloze_accuracy",
                found.value,
                part="" if part == CLOZE else part,
                low=found.low,
                high=found.high,
                n=len(hits),
                unit="share",
                method=f"{method}; {found.method}",
                control=control,
                passed=passed,
                tests="instrument" if control else "",
                worse="" if control else "down",
                order="correct",
                table="samples",
                where={"part": part},
            )
        )
    return findings
