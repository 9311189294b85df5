"""Which documents, and which characters of them, a training step saw."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from cyclopts import Parameter

from flows.commands.shared import InStore, Json, Whole, show
from flows.growing import documents_of, masking_of
from flows.runs import Run, open_run
from model.training.data import batch_sequences
from reports.page.masking import OFFENSIVE, Masker, visible
from reports.sections.corpus_figures import masker_of
from tasks.contract import UsageError

Report = dict[str, Any]

#: Characters of a stretch that a terminal shows.
SHOWN = 60


def batch(
    run: str = "latest",
    *,
    step: Whole | None = None,
    masked: Annotated[bool, Parameter(negative="")] = False,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Show which documents, and which characters of them, a training step saw.

    Parameters
    ----------
    step
        The optimizer step, from 1; must be given.
    masked
        Mask personal data, planted secrets and offensive texts, as the pages do.
    """
    show(batch_of(open_run(run, store, stage="pretrain"), step, masked), json_, render)


def batch_of(run: Run, step: int | None, masked: bool = False) -> Report:
    """The batch of a step (from 1): its sequences in their order, each with the stretches of
    documents in it. Batches are a function of (seed, step), so nothing was logged for this."""
    pretrained, packed = run["pretrain"], run.packed
    train = run.config.pretrain.train
    if step is None or not 1 <= step <= train.steps:
        wrong = "no step was named with --step" if step is None else f"--step {step}"
        raise UsageError(f"{wrong}: run {run.id} trained the steps 1 to {train.steps}")
    rows = batch_sequences(train.seed, step, train.batch_size, packed["train"].rows)
    inside = (pc.field("split") == "train") & pc.field("sequence").isin(pa.array(rows))
    spans = packed["spans"].where(inside).to_pylist()
    documents = _documents(run, {span["doc_id"] for span in spans})
    masker = masker_of(masking_of(run), OFFENSIVE) if masked else None
    by_row: dict[int, list[Report]] = {}
    for span in sorted(spans, key=lambda s: (s["sequence"], s["start"])):
        document = documents[span["doc_id"]]
        by_row.setdefault(span["sequence"], []).append(
            {
                **{name: span[name] for name in ("start", "end", "char_start", "char_end")},
                "doc_id": span["doc_id"].hex(),
                "source": document["source"],
                "text": _text(document, span["char_start"], span["char_end"], masker),
            }
        )
    return {
        "run": run.id,
        "step": step,
        "pretrain": pretrained.name,
        "packed": packed.name,
        "sequences": [{"sequence": row, "spans": by_row.get(row, [])} for row in rows.tolist()],
    }


def _documents(run: Run, ids: set[bytes]) -> dict[bytes, Report]:
    rows = documents_of(run).find(sorted(ids), ["doc_id", "source", "text", "toxicity"])
    return {row["doc_id"]: row for row in rows.to_pylist()}


def _text(document: Report, start: int, end: int, masker: Masker | None) -> str:
    text = document["text"][start:end]
    if masker is None:
        return text
    # A stretch may cut what a detector would find: the whole document is masked instead of it.
    if masker.spans(document["text"]) != masker.spans(text):
        return f"[not shown: holds or borders on what is masked, {len(text):,} characters]"
    return masker.shown(text, "corpus text", document["toxicity"], limit=len(text) + 1)


def render(report: Report) -> str:
    """The batch as text for a terminal: of each stretch its beginning, and where to find it."""
    lines = [f"run {report['run']}, step {report['step']}: {len(report['sequences'])} sequences"]
    for number, sequence in enumerate(report["sequences"]):
        lines += ["", f"{number}: sequence {sequence['sequence']} of {report['packed']}"]
        for span in sequence["spans"]:
            tokens = f"tokens {span['start']} to {span['end'] - 1}"
            text = f"characters {span['char_start']} to {span['char_end'] - 1}"
            lines.append(f"   {tokens:<20} {span['doc_id']}  {text:<28} {span['source']}")
            said = visible(" ".join(span["text"][: 2 * SHOWN].split()))
            lines.append(f"   {said if len(said) <= SHOWN else said[: SHOWN - 1] + '…'}")
    return "\n".join(lines)
