"""What was looked for of personal data, what was found, and what became of it by the policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.page.document import Block, Grid, Inline, Paragraph, Section
from reports.sections.corpus_figures import CorpusFigures
from tasks.measures.personal.types import TYPES, UNREAD

FINDER, SCRUB = "find_personal_data", "scrub"

#: By policy: what becomes of a span, the ledger's actions for it, and what these rows count.
BECOMES: Mapping[str, tuple[str, list[str], str]] = {
    "mask": ("masked", ["replaced"], "spans"),
    "cut": ("cut out", ["removed_span"], "spans"),
    "drop": ("left out with its document", ["removed", "also"], "documents"),
    "keep": ("kept as it is", [], ""),
}


def was_sought(corpus: CorpusFigures) -> bool:
    return FINDER in corpus.history and SCRUB in corpus.history


def policy_of(corpus: CorpusFigures, kind: str = "") -> str:
    """What the config says is done with a type, or without one with those that it does not name."""
    config = corpus.history[SCRUB].manifest["parts"]["config"]
    return str(config.get("policies", {}).get(kind, config.get("policy", "mask")))


def in_use(corpus: CorpusFigures) -> str:
    """A sentence for those who use the corpus."""
    if not was_sought(corpus):
        return "Nobody looked for personal data: it may stand anywhere."
    said = BECOMES[policy_of(corpus)][0]
    other = [f"{kind}: {BECOMES[policy_of(corpus, kind)][0]}" for kind in TYPES
             if policy_of(corpus, kind) != policy_of(corpus)]  # fmt: skip
    more = f" ({', '.join(other)})" if other else ""
    return f"Personal data is {said} where a detector found it{more}, and may stand where none did."


def personal_data(corpus: CorpusFigures) -> Section:
    section = Section("Personal data")
    if not was_sought(corpus):
        section.add(Paragraph(["Nobody looked for personal data in this corpus."]))
        return section
    there = set(corpus.history[FINDER]["spans"].read(["type"])["type"].unique().to_pylist())
    rows = [line(corpus, kind) for kind in TYPES if kind in there]
    if rows:
        columns = ["type", "spans found", "in documents", "what became of it", "how many"]
        note = (
            "Masked and cut out are counted in spans, left out in documents. Spans that overlap "
            "are treated as one, and in a document that left whole, as one does of which cutting "
            "leaves nothing, no more was masked or cut."
        )
        section.add(Grid("Personal data that was found", columns, rows, frozenset({1, 2, 4}), note))
    else:
        section.add(Paragraph(["The detectors found none."]))
    if UNREAD in there:
        unread = corpus.book.figure(
            "personal-unread", "documents that could not be looked through", "documents",
            (SCRUB, "ledger"), {"action": "quarantined", "reason": UNREAD}, aggregate="count",
        )  # fmt: skip
        section.add(Paragraph([unread, " could not be looked through and went to quarantine."]))
    section.add(
        Paragraph(
            [
                "Found by patterns, check digits and numbering plans. Names, addresses and "
                "whatever has no such form are not found; the counts are a lower bound."
            ]
        )
    )
    if "evaluate_detectors" in corpus.history:
        section.add(*detection(corpus, "evaluate_detectors"))
    return section


def line(corpus: CorpusFigures, kind: str) -> list[Inline]:
    """What was found of a type, and what became of it."""
    spans, where = (FINDER, "spans"), {"type": kind}
    said, actions, unit = BECOMES[policy_of(corpus, kind)]
    treated: Inline = "all"
    if actions:
        rows = {"action": actions, "reason": kind}
        treated = corpus.book.figure(
            f"personal-{kind}-treated", f"{kind}: {unit} {said}", unit, (SCRUB, "ledger"), rows,
            aggregate="count",
        )  # fmt: skip
    return [
        kind,
        corpus.book.figure(f"personal-{kind}-spans", f"{kind}: spans found", "spans", spans, where,
                           aggregate="count"),
        corpus.book.figure(f"personal-{kind}-documents", f"documents with {kind}", "documents",
                           spans, where, aggregate="distinct", column="doc_id"),
        said,
        treated,
    ]  # fmt: skip


def detection(corpus: CorpusFigures, label: str) -> list[Block]:
    """How much of planted personal data the detectors find, and what they take for it."""
    source = (label, "detection")
    rows: list[list[Inline]] = []
    for found in corpus.history[label]["detection"].read().to_pylist():
        kind, where = found["type"], {"type": found["type"]}
        shares = [
            corpus.book.figure(
                f"detection-{kind}-{name}",
                f"{kind}: {name}",
                "share",
                source,
                where,
                aggregate="last",
                column=name,
                low=found[f"{name}_low"],
                high=found[f"{name}_high"],
                level=0.95,
                n=n,
                note="nothing was found",
                method="Wilson interval over invented sentences",
            )
            for name, n in (("recall", found["planted"]), ("precision", _spans(found)))
        ]
        alone = corpus.book.figure(
            f"detection-{kind}-alone",
            f"{kind}: found without its name",
            "share",
            source,
            where,
            aggregate="ratio",
            column="alone_found/alone",
            n=found["alone"],
        )
        recall, precision = shares
        rows.append([kind, recall, recall.interval, alone, precision, precision.interval])
    columns = ["type", "recall", "95 % interval", "without its name", "precision", "95 % interval"]
    note = (
        "Of invented numbers in varied formats and scripts, in a sentence with their name beside "
        "them, or without: many numbers are told from others by their name alone. Precision is "
        "over as many look-alikes, such as wrong check digits, and depends on how many there are: "
        "that in the corpus is not known."
    )
    return [Grid("How well it is found", columns, rows, frozenset(range(1, 6)), note)]


def _spans(found: dict[str, Any]) -> int:
    return found["found"] + found["alone_found"] + found["false"]
