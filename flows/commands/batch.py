"""Which documents, and which characters of them, a training step saw."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.commands.shared import InStore, Json, show
from flows.runs import Run, open_run
from model.training.data import batch_sequences
from tasks.contract import UsageError

Report = dict[str, Any]


def batch(run: str = "latest", *, step: int, store: InStore = None, json_: Json = False) -> None:
    """Show which documents, and which characters of them, a training step saw.

    Parameters
    ----------
    step
        The optimizer step, from 1.
    """
    show(batch_of(open_run(run, store, stage="pretrain"), step), json_, render)


def batch_of(run: Run, step: int) -> Report:
    """The batch of a step (from 1): its sequences in their order, each with the stretches of
    documents in it. Batches are a function of (seed, step), so nothing was logged for this."""
    pretrained, packed = run["pretrain"], run["pack"]
    train = run.config.pretrain.train
    if not 1 <= step <= train.steps:
        raise UsageError(f"--step {step}: run {run.id} trained the steps 1 to {train.steps}")
    rows = batch_sequences(train.seed, step, train.batch_size, packed["train"].rows)
    inside = (pc.field("split") == "train") & pc.field("sequence").isin(pa.array(rows))
    spans = packed["spans"].read().filter(inside).to_pylist()
    origin = _sources(run, {span["doc_id"] for span in spans})
    by_row: dict[int, list[Report]] = {}
    for span in sorted(spans, key=lambda s: (s["sequence"], s["start"])):
        by_row.setdefault(span["sequence"], []).append(
            {
                "start": span["start"],
                "end": span["end"],
                "doc_id": span["doc_id"].hex(),
                "source": origin.get(span["doc_id"]),
                "char_start": span["char_start"],
                "char_end": span["char_end"],
            }
        )
    return {
        "run": run.id,
        "step": step,
        "pretrain": pretrained.name,
        "packed": packed.name,
        "sequences": [{"sequence": row, "spans": by_row.get(row, [])} for row in rows.tolist()],
    }


def _sources(run: Run, ids: set[bytes]) -> dict[bytes, str]:
    rows = run["plant"]["documents"].find(sorted(ids), ["doc_id", "source"])
    return dict(zip(rows["doc_id"].to_pylist(), rows["source"].to_pylist(), strict=True))


def render(report: Report) -> str:
    """The batch as text for a terminal: no text of a document, only where to find it."""
    lines = [f"run {report['run']}, step {report['step']}: {len(report['sequences'])} sequences"]
    for number, sequence in enumerate(report["sequences"]):
        lines += ["", f"{number}: sequence {sequence['sequence']} of {report['packed']}"]
        for span in sequence["spans"]:
            tokens = f"tokens {span['start']} to {span['end'] - 1}"
            text = f"characters {span['char_start']} to {span['char_end'] - 1}"
            lines.append(f"   {tokens:<20} {span['doc_id']}  {text:<28} {span['source']}")
    return "\n".join(lines)
