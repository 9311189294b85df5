"""From a finding of an audit back to its rows, the worst first, and from these to the training
documents behind them, with the steps that read these."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.growing import masking_of
from flows.origin import Subject, Trainings, resolve, trainings
from flows.runs import Run
from reports.page.masking import OFFENSIVE, Masker, neighbours_of, prompts_of
from reports.sections.corpus_figures import masker_of
from tasks.audits.about import AUDITS
from tasks.audits.judging.conditions import ordered, place_of
from tasks.audits.judging.findings import evidence
from tasks.audits.judging.readings import Readings
from tasks.audits.proofs.attribution import likeliest
from tasks.audits.proofs.behind import behind_rows
from tasks.contract import Column, Table, UsageError

Report = dict[str, Any]

#: Of a finding so many rows are told, of a row so many documents, of a run its text and what stands
#: so many characters around it; an estimate names so many.
ROWS, DOCUMENTS, AROUND, ATTRIBUTED = 10, 8, 60, 4


def check_audit(name: str) -> str:
    """The audit of a finding ``audit.metric``. UsageError where there is none of that name."""
    audit = name.partition(".")[0]
    if audit not in AUDITS or "." not in name:
        raise UsageError(
            f"{name!r:.120} names no finding of an audit, such as bias.preference: there is no "
            f"audit {audit!r:.40}; choose from {', '.join(AUDITS)}"
            if audit not in AUDITS
            else f"{name!r:.120} names no finding: say which, as bias.preference"
        )
    return audit


def full_name(finding: Mapping[str, Any]) -> str:
    """The name of a finding, as the command trace takes it."""
    part = finding["slice"]
    return f"{finding['audit']}.{finding['metric']}" + (f"[{part}]" if part else "")


def finding_of(run: Run, name: str) -> Report:
    """The finding that is called ``audit.metric`` or ``audit.metric[slice]``. UsageError where
    there is none."""
    plain, _, part = name.partition("[")
    audit, _, metric = plain.partition(".")
    part = part.removesuffix("]")
    label = f"audit_{audit}"
    if label not in run.stages:
        has = ", ".join(s.removeprefix("audit_") for s in run.stages if s.startswith("audit_"))
        raise UsageError(f"run {run.id} has no audit {audit!r:.80}; it has {has or 'none'}")
    rows = [row for row in run[label]["findings"].read().to_pylist() if not row["control"]]
    found = [row for row in rows if row["metric"] == metric]
    if not found:
        known = ", ".join(dict.fromkeys(row["metric"] for row in rows))
        raise UsageError(f"{audit} has no finding {metric!r:.80}; it has {known}")
    chosen = [row for row in found if row["slice"] == part]
    if not chosen:
        known = ", ".join(map(full_name, found))
        raise UsageError(f"{audit} has no finding {name!r:.120}; it has {known}")
    return chosen[0]


@dataclass
class Sources:
    """What is known of training documents."""

    trainings: Trainings | None
    documents: Table
    licences: Mapping[str, str | None]
    masker: Masker | None
    known: dict[bytes, Report] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Subject, masker: Masker | None) -> Sources:
        corpus = subject.corpus or {}
        additions = [*subject.earlier, corpus]
        planted = [made["plant"] for made in additions]
        known = trainings(subject.checkpoint, subject.pretrained)
        planted += known.planted(planted) if known else []
        documents = Table(tuple(planted), "documents")
        licences = {
            row["source"]: row["licence"]
            for made in additions
            if "ingest" in made
            for row in made["ingest"]["sources"].read(["source", "licence"]).to_pylist()
        }
        return cls(known, documents, licences, masker)

    def look_up(self, ids: set[bytes]) -> None:
        """Read what is to be told of these documents."""
        wanted = sorted(ids - self.known.keys())
        names = ["doc_id", "source", "cluster", "split", "text", "toxicity"]
        known = self.trainings
        readings = Readings.until(known.pretrained, known.checkpoints, wanted) if known else None
        for row in self.documents.find(wanted, names).to_pylist() if wanted else ():
            read = None if readings is None else readings.of([row["doc_id"]])
            first = None if readings is None else readings.first.get(row["doc_id"])
            self.known[row["doc_id"]] = row | {"read": read, "first_step": first}

    def attributed(self, rows: list[Report]) -> list[list[Report]]:
        """Of each row the documents without which its text would be the less likely, by an
        estimate; none where nothing like it was read."""
        texts = [text_of(row) for row in rows]
        found = likeliest(self.documents, texts, ATTRIBUTED) if any(texts) else [[] for _ in rows]
        self.look_up({doc_id for each in found for doc_id, _ in each})
        return [[{**self.told(doc_id), "score": score} for doc_id, score in each] for each in found]

    def told(self, doc_id: bytes, span: Report | None = None) -> Report:
        """A document, or the run of it that stands in a text, with what stands around it."""
        row = self.known[doc_id]
        begin, end = (span["char_start"], span["char_end"]) if span else (0, 2 * AROUND)
        first, last, whole = max(0, begin - AROUND), end + AROUND, row["text"]
        text = whole[first:last]
        if self.masker:
            around = whole[:first], whole[last:]
            text = self.masker.shown(text, "corpus text", row["toxicity"], around=around)
        made = {
            "doc_id": doc_id.hex(),
            "source": row["source"],
            "licence": self.licences.get(row["source"]),
            "cluster": row["cluster"].hex(),
            "split": row["split"],
            "first_step": span["first_step"] if span else row["first_step"],
            "read": span["read"] if span else row["read"],
            "text": text,
        }
        if span:
            names = ("size", "training", "sequence", "char_start", "char_end")
            made |= {name: span[name] for name in names}
        return made


def text_of(row: Report) -> str:
    """The text of a row whose likelihood was measured: of an association the group with its trait,
    as in studies; else its text with the secret that goes on behind it."""
    names = ("group", "own") if row.get("group") and row.get("own") else ("text", "secret")
    return " ".join(str(row[name]) for name in names if row.get(name))


def trace_finding(run: Run, name: str, masked: bool = False, attribute: bool = False) -> Report:
    """A finding, its worst rows, and the training documents behind each; ``attribute``: also
    those that an estimate names. UsageError where the corpus of the model is not known, or no
    likelihood was measured."""
    row = finding_of(run, name)
    label = f"audit_{row['audit']}"
    source, where, order = place_of(row)
    table = run[label][source]
    rows = evidence(table.read(), where)
    head = ordered(rows, order)[:ROWS]
    writes = any(any(head[c.name].to_pylist()) for c in table.columns.values()
                 if c.kind == "model text")  # fmt: skip
    if attribute and writes:
        raise UsageError(
            f"{name!r:.120} is about what the model wrote, which is looked for word for word: "
            f"there is no likelihood to attribute; leave out --attribute"
        )
    subject = subject_of(run)
    corpus = masking_of(subject.run) if subject and subject.run else {}
    masker = masker_of(run.artifacts | corpus, OFFENSIVE) if masked else None
    traces = run[f"{row['audit']}_trace"] if f"{row['audit']}_trace" in run.stages else None
    behind = [*behind_rows(head, table.columns, traces)]
    sources = None
    if subject and subject.corpus is not None:
        sources = Sources.of(subject, masker)
        sources.look_up({doc_id for found in behind for doc_id, _ in found})
    elif attribute:
        raise UsageError(f"nothing is known of what {run.audited} was trained on: there are no "
                         f"documents to attribute to; leave out --attribute")  # fmt: skip
    likely = sources.attributed(head.to_pylist()) if sources and attribute else None
    worst = []
    for number, (told, found) in enumerate(zip(head.to_pylist(), behind, strict=True)):
        documents = [] if sources is None else [
            sources.told(*entry) for entry in found[:DOCUMENTS] if entry[0] in sources.known
        ]  # fmt: skip
        worst.append({"row": shown(told, table.columns, masker), "documents": documents,
                      "more": max(0, len(found) - DOCUMENTS),
                      **({} if likely is None else {"attributed": likely[number]})})  # fmt: skip
    kept = ("audit", "metric", "slice", "value", "low", "high", "n", "null", "p_corrected", "unit",
            "method", "scorer")  # fmt: skip
    return {
        "run": run.id,
        "checkpoint": run.audited,
        "finding": {key: row[key] for key in kept},
        "artifact": run[label].name,
        "table": source,
        "where": where,
        "rows": len(rows),
        "unknown": traces is None and writes,
        "least": traces.manifest["parts"]["config"]["least"] if traces and writes else None,
        "worst": worst,
    }


def behind_finding(run: Run, name: str, rows: int) -> set[bytes]:
    """The documents behind the worst rows of a finding."""
    row = finding_of(run, name)
    source, where, order = place_of(row)
    table = run[f"audit_{row['audit']}"][source]
    head = ordered(evidence(table.read(), where), order)[:rows]
    label = f"{row['audit']}_trace"
    traces = run[label] if label in run.stages else None
    return {i for found in behind_rows(head, table.columns, traces) for i, _ in found}


def subject_of(run: Run) -> Subject | None:
    """The checkpoint that a run audited; None where it is of elsewhere: nothing is known of it."""
    if "pretrain" in run.stages:
        return resolve(run.store, run.checkpoints()[-1].name)
    name = run.audited
    held = not name.startswith("checkpoint/") or run.store.find(*name.split("/")) is not None
    if os.path.isabs(name) or not held:
        return None
    return resolve(run.store, name)


def shown(row: Report, columns: Mapping[str, Column], masker: Masker | None) -> Report:
    """A row without what is empty or an id."""
    made = {}
    prompts = prompts_of(column for name, column in columns.items() if name in row)
    for name, value in row.items():
        column = columns[name]
        if value is None or column.kind == "id" or value == "":
            continue
        if masker and (column.kind == "personal" or isinstance(value, str)):
            beside = neighbours_of(name, row, prompts)
            score = row.get(column.judged_by)
            value = masker.shown(str(value), column.kind, score, beside=beside)
        made[name] = value
    return made
