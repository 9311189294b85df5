"""Train without the documents behind findings, beside a control that lacks as many others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.comparing import Audited, by, compare
from flows.origin import Subject, resolve
from flows.runs import Run
from flows.tracing import behind_finding, check_audit
from tasks.audits.proofs.proof import last_costs
from tasks.contract import Store, Table, UsageError

Report = dict[str, Any]

#: The two models that are trained, and whether theirs are documents by lot.
ARMS = {"control": True, "without": False}


def known(store: Store, checkpoint: str) -> Subject:
    """A checkpoint whose corpus and config are known. UsageError for any other."""
    subject = resolve(store, checkpoint)
    if subject.pretrained is None or subject.corpus is None or subject.run is None:
        raise UsageError(
            f"{checkpoint}: the store does not know what it was trained on, so nothing can be left "
            f"out; name a checkpoint of a run of this store"
        )
    return subject


def behind(store: Store, checkpoint: str, findings: Sequence[str], rows: int) -> list[bytes]:
    """The training documents behind the worst rows of these findings, and their near copies."""
    audited = by(store, checkpoint)
    if audited is None:
        raise UsageError(f"{checkpoint} was not audited yet; run: hallmark audit {checkpoint}")
    for name in findings:
        check_audit(name)
    subject = known(store, checkpoint)
    assert subject.corpus is not None
    runs = {name: audited.made(name.partition(".")[0]) or audited.run for name in findings}
    found = {i for name, run in runs.items() for i in behind_finding(run, name, rows)}
    if not found:
        raise UsageError(
            f"no training document is behind {', '.join(findings)}: its rows name none, and "
            f"nothing that the model wrote there stands in what it read; name another finding, or "
            f"--toxicity alone"
        )
    if "leave_out" in subject.corpus:  # what was left out before stays out
        before = subject.corpus["leave_out"]["ledger"].read(["doc_id"])["doc_id"].to_pylist()
        found |= {i for i in before if i is not None}
    documents = Table((subject.corpus["plant"],), "documents")
    rows_of = documents.find(sorted(found), ["doc_id", "cluster", "split"])
    if len(rows_of) and not pc.any(pc.equal(rows_of["split"], "train")).as_py():
        raise UsageError(
            f"the documents behind {', '.join(findings)} are held out: none was trained on, and "
            f"there is nothing to leave out; name another finding, or --toxicity alone"
        )
    ids = pa.array(sorted(found), pa.binary(16))
    clusters = pc.unique(rows_of["cluster"])
    near = [
        batch["doc_id"].filter(pc.is_in(batch["cluster"], value_set=clusters))
        for batch in documents.batches(["doc_id", "cluster"])
    ]
    return sorted({*ids.to_pylist(), *(i for each in near for i in each.to_pylist())})


def left_out(store: Store) -> Path:
    """The folder of lists of documents that are left out."""
    return store.local / "left-out"


def write_list(ids: Sequence[bytes], folder: Path) -> Path:
    """A file with these ids, named by what it holds."""
    text = "".join(f"{doc_id.hex()}\n" for doc_id in ids)
    path = folder / f"left-out-{blake2b(text.encode(), digest_size=4).hexdigest()}.txt"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path.resolve()


def settings(
    arm: str, documents: Path | None, toxicity: float | None, steps: int | None
) -> list[str]:
    """The overrides of an arm."""
    made = [f"leave_out.control={str(ARMS[arm]).lower()}"]
    made += [f"leave_out.documents={json.dumps(str(documents))}"] if documents else []
    made += [f"leave_out.toxicity={toxicity}"] if toxicity is not None else []
    return made + ([f"pretrain.train.steps={steps}"] if steps is not None else [])


def outcome(runs: Sequence[Run], start: Audited | None) -> Report:
    """What the arms differ in, the control first; and, where they went on from one, the start."""
    arms = [Audited(f"{name}: run {run.id}", run) for name, run in zip(ARMS, runs, strict=True)]
    found = compare([*arms, *([start] if start else [])])
    gone = [run["leave_out"]["ledger"].rows for run in runs]
    return found | {"left_out": gone, "price": price(runs)}


def price(runs: Sequence[Run]) -> list[Report]:
    """What a byte of held-out text costs the last checkpoint of each, by source and by the groups
    that documents mention; of how many bytes, and without intervals."""
    tables = [last_costs(run["pretrain"]) for run in runs]
    return [
        {"kind": kind, "name": name, "bytes": row["bytes"],
         "values": [table.get((kind, name), {}).get("bits_per_byte") for table in tables]}
        for (kind, name), row in tables[0].items()
    ]  # fmt: skip
