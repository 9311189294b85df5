"""The whole way of a document: its text at every stage, in or out, and the steps that read it; or
of a finding: its rows, and the documents behind them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cyclopts import Parameter

from flows.commands.shared import InStore, Json, show
from flows.growing import masking_of, runs_of
from flows.runs import Run, open_run
from flows.tracing import check_audit, trace_finding
from model.training.data import batch_sequences
from reports.page.masking import OFFENSIVE, Masker, neighbours_of, prompts_of, visible
from reports.sections.corpus_figures import masker_of
from tasks.contract import ID, Artifact, Column, Table, UsageError

Report = dict[str, Any]

#: Characters of a text, and of one in a line with others, and steps, that a terminal shows.
SHOWN, SHORT = 2000, 120
STEPS = 12

#: Training rows looked at together.
STRETCH = 1 << 22

#: Told by themselves: the document with its ledger, and where its tokens stand; or nothing that the
#: table of documents does not tell.
OWN = ("documents", "ledger", "spans", "checksums", "signatures")


def trace(
    run: str,
    id: str,
    *,
    masked: Annotated[bool, Parameter(negative="")] = False,
    attribute: Annotated[bool, Parameter(negative="")] = False,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Follow a document through a run, what each stage made of it, which steps read it; or a
    finding of an audit to its worst rows and the training documents behind them.

    Parameters
    ----------
    run
        A run, or "latest": the newest that made a corpus, or of a finding that has its audit.
    id
        32 hexadecimal digits, as the column doc_id of every table has them; or the audit and the
        metric of a finding, and its slice where it has one:
        "toxicity.toxicity_probability[prompted, k=25]".
    masked
        Mask personal data, planted secrets and offensive texts in all that is told of it, as the
        pages do.
    attribute
        Of a finding about likelihoods: name also, for each row, the training documents without
        which its text would be the less likely, by an estimate: those that share its rare words and
        runs of words. Reads the texts of all training documents; `hallmark study` measures how
        often it is right.
    """
    if attribute and "." not in id:
        raise UsageError("--attribute is about a finding, such as bias.preference, not a document")
    if "." in id:
        found = open_run(run, store, stage=f"audit_{check_audit(id)}")
        show(trace_finding(found, id, masked, attribute), json_, render_finding)
    else:
        show(trace_of(open_run(run, store, stage="ingest"), id, masked), json_, render)


def trace_of(run: Run, doc_id: str, masked: bool = False) -> Report:
    """What the stages of a run, in their order, say of a document, those of the runs before it to
    whose corpus it adds first; its spans and its steps."""
    wanted = parsed(doc_id)
    masker = masker_of(masking_of(run), OFFENSIVE) if masked else None
    stages = []
    before: Report | None = None
    for of, label, artifact in _ways(run):
        found = _at(artifact, wanted, masker)
        if found is None:
            continue
        text = found.pop("text", None)
        if text is not None:
            found["changed"] = before is not None and before["text_hash"] != found["text_hash"]
            if before is None or found["changed"]:
                found["text"] = _shown(text, found, masker)
            before = found
        stages.append({"stage": label, "run": of.id, "artifact": artifact.name, **found})
    if not stages:
        raise UsageError(
            f"no stage of run {run.id} knows a document {doc_id}; ids stand in the column doc_id "
            f"of its tables"
        )
    spans = _spans(run, wanted)
    return {
        "run": run.id,
        "doc_id": wanted.hex(),
        "stages": stages,
        "packed": "pack" in run.stages and run.packed["spans"].rows > 0,
        "spans": spans,
        "steps": steps_of(run, {span["sequence"] for span in spans if span["split"] == "train"}),
    }


def _ways(run: Run) -> Iterator[tuple[Run, str, Artifact]]:
    """Through which artifacts a document may have come: of earlier runs those of their corpus."""
    *before, last = runs_of(run)
    for earlier in before:
        labels = list(earlier.stages)
        for label in labels[: labels.index("plant") + 1]:
            yield earlier, label, earlier[label]
    for label, artifact in last.artifacts.items():
        yield last, label, artifact


def parsed(doc_id: str) -> bytes:
    """An id as bytes; UsageError if it is none."""
    try:
        found = bytes.fromhex(doc_id)
    except ValueError:
        found = b""
    if len(found) != ID.byte_width:
        raise UsageError(
            f"{doc_id!r:.80} is no doc_id, which has 32 hexadecimal digits, as in the column "
            f"doc_id, and no finding, which begins with its audit: bias.preference"
        )
    return found


def _at(artifact: Artifact, doc_id: bytes, masker: Masker | None) -> Report | None:
    """What one artifact says of the document, masked but for its text; None if nothing."""
    tables = artifact.tables

    def told(table: Table) -> list[Report]:
        return [_told(row, table, masker) for row in _rows(table, doc_id)]

    found: Report = {}
    if "documents" in tables:
        rows = _rows(tables["documents"], doc_id)
        found["state"] = "in" if rows else "out"
        if rows:
            found |= _told(rows[0], tables["documents"], masker)
            found |= {"text": rows[0]["text"], "toxicity": rows[0]["toxicity"]}
    if "ledger" in tables:
        found["ledger"] = told(tables["ledger"])
    rest = {name: told(table) for name, table in tables.items() if name not in OWN}
    found["tables"] = {name: rows for name, rows in rest.items() if rows}
    if when := artifact.purged.get(doc_id.hex()):
        found["purged"] = when
    known = found.get("state") == "in" or found.get("ledger") or found["tables"]
    return found if known else None


def _rows(table: Table, doc_id: bytes) -> list[Report]:
    """The rows of a table that name the document, in any column of ids."""
    if table.name in ("documents", "ledger"):
        return list(table.find([doc_id]).to_pylist())
    columns = [c.name for c in table.columns.values() if c.kind == "id" and c.type == str(ID)]
    if not columns:
        return []
    named = [pc.field(name) == pa.scalar(doc_id, ID) for name in columns]
    return list(table.where(reduce(or_, named)).to_pylist())


def _told(row: Report, table: Table, masker: Masker | None) -> Report:
    """A row of a ledger or another table without what is empty, and without its ``text``."""
    columns = table.columns
    prompts = prompts_of(column for name, column in columns.items() if name in row)
    return {
        name: _value(value, columns[name], row, masker, neighbours_of(name, row, prompts))
        for name, value in row.items()
        if value is not None and name not in ("doc_id", "text")
    }


def _value(
    value: Any,
    column: Column,
    row: Report,
    masker: Masker | None,
    beside: tuple[str, str] = ("", ""),
) -> Any:
    """Return a value of a row, with a masker as pages show it.

    ``beside``: what the row shows right before and after it.
    """
    if isinstance(value, list):
        return [_value(item, column, row, masker) for item in value]
    if masker and column.kind == "personal":
        return masker.shown(str(value), column.kind)
    if isinstance(value, bytes):
        return value.hex()
    if masker and isinstance(value, str):
        return masker.shown(value, column.kind, row.get(column.judged_by), beside=beside)
    return value


def _shown(text: str, document: Report, masker: Masker | None) -> str:
    if masker is None:
        return text
    return masker.shown(text, "corpus text", document["toxicity"], limit=len(text) + 1)


def _spans(run: Run, doc_id: bytes) -> list[Report]:
    """Where its tokens stand in the packed sequences."""
    if "pack" not in run.stages:
        return []
    found = run.packed["spans"].where(pc.field("doc_id") == doc_id)
    rows = found.drop_columns("doc_id").to_pylist()
    return sorted(rows, key=lambda r: (r["split"], r["sequence"], r["start"]))


def steps_of(run: Run, sequences: set[int]) -> list[int]:
    """The training steps that read any of these sequences, from 1."""
    if "pretrain" not in run.stages or not sequences:
        return []
    train, rows = run.config.pretrain.train, run.packed["train"].rows
    wanted = pa.array(sorted(sequences))
    # Consecutive steps are the rows of one longer batch.
    many = min(train.steps, max(1, STRETCH // train.batch_size))
    found: set[int] = set()
    for number in range(-(-train.steps // many)):
        read = batch_sequences(train.seed, number + 1, many * train.batch_size, rows)
        at = np.flatnonzero(pc.is_in(pa.array(read), value_set=wanted).to_numpy(False))
        found.update((number * many + at // train.batch_size + 1).tolist())
    return sorted(step for step in found if step <= train.steps)


# For a terminal ----------------------------------------------------------------------------------


def render(report: Report) -> str:
    lines = [f"document {report['doc_id']} in run {report['run']}"]
    for stage in report["stages"]:
        of = "" if stage["run"] == report["run"] else f" (run {stage['run']})"
        lines += ["", f"{stage['stage']:<20}{_state(stage)}{of}"]
        lines += [f"    {line}" for line in _facts(stage)]
        if "text" in stage:
            lines += _quoted(stage["text"])
    lines += ["", *_trained(report)]
    return "\n".join(lines)


def _state(stage: Report) -> str:
    if "state" not in stage:
        return ""
    if stage["state"] == "out":
        return "out"
    if "purged" in stage:
        return f"in, {stage['source']}, purged on {stage['purged'][:10]}"
    return f"in, {stage['source']}" + (", text changed" if stage["changed"] else "")


def _facts(stage: Report) -> Iterator[str]:
    for row in stage.get("ledger", []):
        yield f"{row['action']}: {visible(row['reason'])}{_figures(row, LEDGER_SHOWN)}"
    for name, rows in stage["tables"].items():
        yield from (f"{name}:{_figures(row, tuple(row))}" for row in rows[:STEPS])
        if len(rows) > STEPS:
            yield f"{name}: {len(rows) - STEPS} rows more"


#: Columns of a ledger row that a terminal shows.
LEDGER_SHOWN = ("score", "threshold", "matched", "start", "end")


def _figures(row: Report, names: tuple[str, ...]) -> str:
    shown = {n: row[n] for n in names if isinstance(row.get(n), str | int | float | list)}
    return "".join(f" {n}={_short(v)}" for n, v in shown.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = _line(str(value))
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def _line(text: str) -> str:
    return visible(" ".join(text.split()))


def _quoted(text: str) -> list[str]:
    lines = [f"    | {visible(line)}" for line in text[:SHOWN].splitlines()]
    if len(text) > SHOWN:
        lines.append(f"    | … {len(text) - SHOWN:,} characters more; --json has all of them")
    return lines


def _trained(report: Report) -> list[str]:
    if not report["packed"]:
        return ["the run packed nothing"]
    if not report["spans"]:
        return ["its tokens stand in no packed sequence"]
    lines = [
        f"{span['split']} sequence {span['sequence']}: tokens {span['start']} to "
        f"{span['end'] - 1}, characters {span['char_start']} to {span['char_end'] - 1}"
        for span in report["spans"][:STEPS]
    ]
    if (more := len(report["spans"]) - STEPS) > 0:
        lines.append(f"and {more} stretches more")
    steps = report["steps"]
    said = ", ".join(map(str, steps[:STEPS])) + (" …" if len(steps) > STEPS else "")
    lines.append(f"read in {len(steps)} training steps: {said}" if steps else "read in no step")
    return lines


def render_finding(report: Report) -> str:
    row = report["finding"]
    value = "not measured" if row["value"] is None else f"{row['value']:.4g} {row['unit']}"
    if row["low"] is not None:
        value += f", interval {row['low']:.4g} to {row['high']:.4g}"
    if row["null"] is not None:
        value += f", null {row['null']:.4g}"
    shown, rows = len(report["worst"]), report["rows"]
    many = f"{rows} row" if rows == 1 else f"{rows} rows"
    first = f"the first {shown} of {rows:,} rows" if rows > shown else many
    lines = [
        f"{row['audit']}.{row['metric']}" + (f"[{visible(row['slice'])}]" if row["slice"] else ""),
        f"    {value}, n = {row['n']}; {visible(row['method'])}",
        f"    checkpoint {visible(report['checkpoint'])}",
        f"    {first} of {report['table']} in {report['artifact']}"
        + ("; what was written was not looked for in the corpus" if report["unknown"] else ""),
    ]
    for number, entry in enumerate(report["worst"], start=1):
        lines += ["", f"row {number}:{_figures(entry['row'], tuple(entry['row']))}"]
        for found in entry["documents"]:
            lines += _document(found)
        if report["least"] and not entry["documents"]:
            lines.append(f"    no run of {report['least']} tokens of what was written stands in "
                         "the training text")  # fmt: skip
        if entry["more"]:
            lines.append(f"    and {entry['more']} documents more")
        if "attributed" in entry:
            lines.append(
                "    attributed, an estimate: share of the weight of the row's words"
                if entry["attributed"]
                else "    attributed: none shares its words"
            )
        for found in entry.get("attributed", ()):
            lines += _document(found)
    return "\n".join(lines)


def _document(found: Report) -> list[str]:
    many, step = found["read"], found["first_step"]
    of = " of the training before" if found.get("training") else ""
    first = "" if step is None else f", first in step {step}{of}"
    read = {None: "", 0: ", not read yet", 1: ", read once"}.get(many, f", read {many} times")
    if many == 0 and step is not None and "sequence" in found:
        first = f": first in step {step}{of}"  # its row was read behind this checkpoint
    elif many == 0 and step is not None:
        read = ", not read whole yet"
    elif found["split"] != "train":
        read = f", held out ({found['split']}): nobody trains on it"
    size = f", {found['size']} tokens" if "size" in found else ""
    share = f", {found['score']:.0%}" if "score" in found else ""
    licence = f", {visible(found['licence'])}" if found["licence"] else ""
    return [
        f"    {found['doc_id']} {visible(found['source'])}{licence}{size}{share}{read}{first}",
        *(f"    {line}" for line in _quoted(found["text"])),
    ]
